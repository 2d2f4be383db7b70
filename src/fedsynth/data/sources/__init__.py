"""Sources of rows: files, as they are or as a source file declares them, and database tables.

Each is a :class:`~fedsynth.rows.Source`.

Creating the source of a file does not import the libraries that read it, such as pyarrow. A site's process that already
has an encoded copy of the file's rows therefore never loads them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from fedsynth.data.sources.files import SOURCE_FILE, WORKBOOK, CsvRows, open_file
from fedsynth.data.sources.source_file import PLAIN, CsvSection, SourceFile
from fedsynth.errors import InvalidParameter, Unsupported, nearest
from fedsynth.files import Records
from fedsynth.plugins import installed, load
from fedsynth.rows import Source

if TYPE_CHECKING:
    from fedsynth.data.sources.declared import DeclaredRows

_DATABASES = ("postgresql", "postgres", "duckdb")


def open_source(text: str, folder: Path = Path(), records: Records | None = None, *, immutable: bool = False) -> Source:
    """Open the source of rows that ``data`` in a site's configuration names, without reading any row yet.

    ``text`` is the path, relative to ``folder``, of a .csv, .tsv, .txt (also .gz), .xlsx or .parquet file or of a
    source file (.toml, :class:`~fedsynth.data.sources.source_file.SourceFile`), or a table's address, without a
    password: ``postgresql://user@host/database?table=schema.name``
    (:func:`fedsynth.data.sources.postgres.parse_address`), or ``duckdb:///path/file.duckdb?table=schema.name``.
    Addresses with another scheme (the part before ``://``) are opened by a plugin: what an installed package offers
    under the scheme's name, as an entry point in the group ``fedsynth.sources``; or else by an engine of ibis
    (:func:`fedsynth.data.sources.engine.parse_address`), whose table the site promises to be ``immutable``. ``records``
    is the kind of a CSV file (:data:`~fedsynth.files.Records`; ``None``: ``lines``).
    Raises :class:`Unsupported` for anything else, :class:`InvalidParameter` for ``records`` of another source than a
    CSV file, and :class:`FedsynthError` for an invalid address or source file.
    """
    scheme, mark, _ = text.partition("://")
    if immutable and (scheme in _DATABASES if mark else not text.lower().endswith(SOURCE_FILE)):
        raise InvalidParameter(
            "immutable = true is a promise for engines without a snapshot that fedsynth has tested; files, PostgreSQL "
            "and DuckDB need none: delete it"
        )
    source = _opened(text, folder, immutable)
    if records is None:
        return source
    if not isinstance(source, CsvRows):
        said = "write records into csv in it" if text.lower().endswith(SOURCE_FILE) else "leave it out"
        raise InvalidParameter(f"records (--records) is the kind of a CSV file, and {source.name} is none; {said}")
    if records not in get_args(Records):
        raise InvalidParameter(f"records = {records!r}: {nearest(records, get_args(Records))}")
    return replace(source, records=records)


def addresses(text: str) -> list[str]:
    """Return the address or files of a source: those that a source file names, if it is one."""
    if "://" in text or not text.lower().endswith(SOURCE_FILE):
        return [text]
    return list(SourceFile.load(Path(text)).files)


def plugin_of(text: str) -> str:
    """Return what opens the address ``text``, as ``package.module:name``, if another package does; else ""."""
    scheme, mark, _ = text.partition("://")
    found = installed("fedsynth.sources", _DATABASES, scheme) if mark and scheme not in _DATABASES else {}
    return found[scheme].value if found else ""


def _opened(text: str, folder: Path, immutable: bool = False) -> Source:
    scheme, mark, _ = text.partition("://")
    if mark and scheme == "duckdb":
        from fedsynth.data.sources import duckdb

        return duckdb.parse_address(text, folder)
    if mark and scheme in _DATABASES:
        from fedsynth.data.sources.postgres import parse_address

        return parse_address(text)
    if mark and (entry := installed("fedsynth.sources", _DATABASES, scheme).get(scheme)):
        source = load(entry)(text)
        if not isinstance(source, Source):
            raise Unsupported(
                f"{entry.value} opens {text} as a {type(source).__name__}, not as a fedsynth.rows.Source; update its "
                "package, or export the table to a file"
            )
        return source
    if mark and installed("ibis.backends", _DATABASES, scheme):
        from fedsynth.data.sources import engine

        return engine.parse_address(text, folder, immutable=immutable)
    if mark:
        raise Unsupported(
            f"no source for {scheme}:// is installed; use a file, postgresql://...?table=schema.name, "
            "duckdb:///FILE?table=NAME, or an engine that ibis connects to (pip install 'fedsynth[sql]')"
        )
    path = folder / text
    if path.suffix.lower() == SOURCE_FILE:
        return declared_rows(path.name, SourceFile.load(path), path.parent, immutable)
    if path.suffix.lower() == WORKBOOK:
        return declared_rows(path.name, SourceFile(data=path.name), path.parent)
    if (found := open_file(path)) is None:
        raise Unsupported(
            f"{path.name} is no .csv, .tsv, .txt (also .gz), .xlsx or .parquet file, nor a source file (.toml); save "
            "the table as one of these"
        )
    return found


def declared_rows(name: str, told: SourceFile, folder: Path, immutable: bool = False) -> DeclaredRows:
    """Return the rows that the source file ``told`` declares, which is called ``name`` and lies in ``folder``."""
    from fedsynth.data.sources.declared import DeclaredRows

    def opened(text: str, sheet: str, csv: CsvSection) -> Source:
        if text.lower().endswith(WORKBOOK) and "://" not in text:
            from fedsynth.data.sources.workbook import WorkbookRows

            return WorkbookRows(folder / text, sheet, csv.first_line, csv.names)
        if text.lower().endswith(SOURCE_FILE):
            raise InvalidParameter(f"{name}: data names another source file; name the files with the rows")
        source = _opened(text, folder, immutable)
        return replace(source, records=csv.records, form=csv) if isinstance(source, CsvRows) else source

    bases = tuple(opened(text, told.sheet, told.csv) for text in told.files)
    lookup = None if told.lookup is None else opened(told.lookup.data, told.lookup.sheet, PLAIN)
    return DeclaredRows(name, told, bases, lookup)
