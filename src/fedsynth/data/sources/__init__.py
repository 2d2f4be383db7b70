"""Where rows lie: files and tables of databases, each a :class:`~fedsynth.rows.Source`.

Naming one imports no reader: a site's process that has a good copy of its rows needs none.
"""

from __future__ import annotations

from pathlib import Path

from fedsynth.data.sources.files import FORMATS, check_suffix
from fedsynth.errors import Unsupported
from fedsynth.plugins import installed, load
from fedsynth.rows import Source

_DATABASES = ("postgresql", "postgres")


def open_source(text: str, folder: Path = Path()) -> Source:
    """Return what a configuration's ``data`` names: a file in ``folder`` (.csv or .parquet), or a database table.

    A table is ``postgresql://user@host/database?table=schema.name``, without a password
    (:func:`fedsynth.data.sources.postgres.parse_address`). An entry point ``fedsynth.sources`` named like the scheme of
    another address opens that. Raises :class:`Unsupported` for anything else.
    """
    scheme, mark, _ = text.partition("://")
    if mark and scheme in _DATABASES:
        from fedsynth.data.sources.postgres import parse_address

        return parse_address(text)
    if mark and (entry := installed("fedsynth.sources", _DATABASES, scheme).get(scheme)):
        source: Source = load(entry)(text)
        return source
    if mark:
        raise Unsupported(f"{scheme}:// is no source of rows here; use a file, or postgresql://...?table=schema.name")
    check_suffix(Path(text))
    return FORMATS[Path(text).suffix.lower()](folder / text)
