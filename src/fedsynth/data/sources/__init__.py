"""Sources of rows: files and database tables, each a :class:`~fedsynth.rows.Source`.

Creating the source of a file does not import the libraries that read it, such as pyarrow. A site's process that already
has an encoded copy of the file's rows therefore never loads them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

from fedsynth.data.sources.files import FORMATS, CsvRows, check_suffix
from fedsynth.errors import InvalidParameter, Unsupported, nearest
from fedsynth.files import Records
from fedsynth.plugins import installed, load
from fedsynth.rows import Source

_DATABASES = ("postgresql", "postgres")


def open_source(text: str, folder: Path = Path(), records: Records | None = None) -> Source:
    """Open the source of rows that ``data`` in a site's configuration names, without reading anything yet.

    ``text`` is the path of a .csv or .parquet file, relative to ``folder``, or a table's address,
    ``postgresql://user@host/database?table=schema.name``, without a password
    (:func:`fedsynth.data.sources.postgres.parse_address`). Addresses with another scheme (the part before ``://``) are
    opened by a plugin: what an installed package offers under the scheme's name, as an entry point in the group
    ``fedsynth.sources``. ``records`` is the kind of a CSV file (:data:`~fedsynth.files.Records`; ``None``: ``lines``).
    Raises :class:`Unsupported` for anything else, :class:`InvalidParameter` for ``records`` of another source than a
    CSV file, and :class:`FedsynthError` for an invalid address.
    """
    source = _opened(text, folder)
    if records is None:
        return source
    if not isinstance(source, CsvRows):
        raise InvalidParameter(
            f"records (--records) is the kind of a CSV file, and {source.name} is none; leave it out"
        )
    if records not in get_args(Records):
        raise InvalidParameter(f"records = {records!r}: {nearest(records, get_args(Records))}")
    return replace(source, records=records)


def plugin_of(text: str) -> str:
    """Return what opens the address ``text``, as ``package.module:name``, if another package does; else ""."""
    scheme, mark, _ = text.partition("://")
    found = installed("fedsynth.sources", _DATABASES, scheme) if mark and scheme not in _DATABASES else {}
    return found[scheme].value if found else ""


def _opened(text: str, folder: Path) -> Source:
    scheme, mark, _ = text.partition("://")
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
    if mark:
        raise Unsupported(f"no source for {scheme}:// is installed; use a file, or postgresql://...?table=schema.name")
    check_suffix(Path(text))
    return FORMATS[Path(text).suffix.lower()](folder / text)
