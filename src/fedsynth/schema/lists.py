"""Lists of values and tables of lookups in CSV files beside a schema file: what is too long to be written in it.

``values = "icd10.csv"`` of a column stands for the cells of the file's column of that name, or of its first one;
``computed = { lookup = "city", table = "cities.csv" }`` for its columns of both names, or its first two. The file's
first line has the names. Its content becomes a part of the schema, with the schema's digest.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsynth.errors import FedsynthError, SchemaError
from fedsynth.files import read_text

MOST_VALUES = 1 << 20  # lines of a list


def with_lists(entry: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """Return the entries of a column with the content of the files in ``folder`` that they name.

    Raises :class:`SchemaError` for a file that cannot be read, has too few columns or over 2^20 lines, and for any
    file without a ``folder``.
    """
    found, form = dict(entry), entry.get("computed")
    if isinstance(values := entry.get("values"), str):
        found["values"] = [cells[0] for cells in _lines(values, folder, [str(entry.get("name"))])]
    if isinstance(form, Mapping) and isinstance(table := form.get("table"), str):
        names = [str(form.get("lookup")), str(entry.get("name"))]
        found["computed"] = {**form, "table": {cells[0]: cells[1] for cells in _lines(table, folder, names)}}
    return found


def _lines(file: str, folder: Path | None, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of the columns ``names`` of each line, or of the first columns if not all have these names."""
    if folder is None:
        raise SchemaError(f"the schema names the file {file!r}; load it from its own file, beside which that one lies")
    try:
        lines = csv.reader(read_text(folder / file).splitlines())
    except (OSError, FedsynthError) as error:
        raise SchemaError(f"the schema names the file {file!r}, which cannot be read: {error}") from error
    header = next(lines, [])
    if len(header) < len(names):
        raise SchemaError(f"{file} has {len(header)} columns, and {len(names)} are needed: {', '.join(names)}")
    places = [header.index(name) for name in names] if set(names) <= set(header) else range(len(names))
    for at, cells in enumerate(lines, 2):
        if len(cells) <= max(places):
            raise SchemaError(f"line {at} of {file} has {len(cells)} cells, fewer than its header; complete the line")
        if at > MOST_VALUES + 1:
            raise SchemaError(f"{file} has more than {MOST_VALUES} lines; list fewer, such as the codes' first letters")
        yield tuple(cells[place] for place in places)
