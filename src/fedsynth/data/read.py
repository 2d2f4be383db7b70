"""A site's rows in (CSV and Parquet files, PostgreSQL tables) and files out, a chunk of rows at a time.

Every function takes any :class:`~fedsynth.rows.Source`, or the path of a file. A cell of a CSV file is read as text and
understood by the schema, so that "007" keeps its zeros. No row stops the reading of a table: one that does not fit the
schema is clipped, recoded or left out, as the schema says, and a line of a CSV file that is no row is left out.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from fedsynth.data.persons import keep_rows
from fedsynth.data.sources import open_source
from fedsynth.data.sources.arrow import encode, frame_of, in_parts
from fedsynth.data.sources.files import check_suffix
from fedsynth.errors import SchemaError
from fedsynth.rows import BadLine, Source, Table, concatenate
from fedsynth.schema import MISSING, Schema
from fedsynth.schema.columns import Column, distinct_values
from fedsynth.schema.derive import breaking

Place = Source | Path | str
"""A source, or the path of a file of rows."""

_SHOWN = 3  # lines that are no rows and are named
_log = logging.getLogger(__name__)


class Persons(NamedTuple):
    """How many rows of a person take part: ``column`` names the persons, ``most`` rows of each are kept under ``key``.

    The column need not be in the schema.
    """

    column: str
    most: int
    key: bytes


@dataclass(frozen=True)
class Check:
    """What :func:`check_table` found: ``rows`` read, how many are ``left_out``, and a sentence for each finding.

    ``ok`` says that the table can be read and no row is left out. Values that are clipped or counted as other or
    missing, and columns that the schema does not name, are among the ``problems`` but leave ``ok`` true.
    """

    ok: bool
    rows: int
    problems: list[str]
    left_out: int = 0


def _source(place: Place) -> Source:
    return place if isinstance(place, Source) else open_source(str(place))


def read_table(place: Place, schema: Schema, *, persons: Persons | None = None, chunk_rows: int = 1 << 16) -> Table:
    """Return the rows of a file or a database table as codes, for a site that loads its data.

    At most about ``chunk_rows`` rows (or 4 MiB of CSV text) are held as values at a time; what stays are the
    codes, and a float for each value of a numeric or datetime column. Rows of a database come out in an order
    that depends on the rows alone; NULL and NaN are missing. Rows that do not fit are handled as
    :meth:`Schema.encode` does, and lines of a CSV file that are no rows are left out; :func:`check_table` names both,
    and the log the lines. Raises :class:`SchemaError` for a missing column, one of a type that cannot be read, and a
    file without a header.

    With ``persons``, rows beyond a person's limit and rows without a person are dropped before anything else, and not
    counted as left out: their number would tell more of a person than the limit allows. That holds for lines that are
    no rows too. A file is then read twice, and the rows of a database table are held as values.
    """
    source = _source(place)
    check_columns(source, schema)
    wanted = {column.name: column for column in schema.asked}
    bad = BadLines()
    batches = (
        _batches(source, wanted, chunk_rows, bad)
        if persons is None
        else _limited(source, wanted, persons, chunk_rows, bad)
    )
    parts = [encode(schema, rows) for rows in batches]
    table = concatenate(parts) if parts else schema.encode(pd.DataFrame(columns=list(schema.names)))
    parts.clear()  # sorting needs the room
    if bad.count:
        _log.warning("%s: %s", source.name, bad)
        table = table if persons else replace(table, left_out=table.left_out + bad.count)
    return table if source.keeps_order else in_canonical_order(table)


def check_table(place: Place, schema: Schema, *, chunk_rows: int = 1 << 16) -> Check:
    """Say everything that keeps a source from fitting a schema, the first few rows for each column and kind of fault.

    Each sentence says how such values are handled (:meth:`Schema.problems`). A source that fits is read once in chunks;
    columns with faults are read once more, as a whole, to count them. Rows count from 0, without the header and lines
    that are no rows; a database table has no order: its rows are numbered as the database happened to return them.
    Rows that break a rule of the schema, or a bound of a derived column, are counted in one more reading; no row is
    left out for that.
    """
    source = _source(place)
    names = source.columns()
    absent = [name for name in schema.names if name not in names]
    known = {column.name for column in schema.columns}
    extra = [name for name in names if name not in known]
    unreadable = [_absent(source, absent)] if absent else []
    present = [column for column in schema.asked if column.name in names]
    unfit = source.unfit(present)
    unreadable += unfit.values()
    readable = [column for column in present if column.name not in unfit]
    wanted: dict[str, Column | None] = {column.name: column for column in readable} or dict.fromkeys(names)
    faulty: list[Column] = []
    remarks: list[str] = []
    bad = BadLines()
    rows = left_out = 0
    try:
        for frame in map(frame_of, _batches(source, wanted, chunk_rows, bad)):
            kept = np.ones(len(frame), dtype=bool)
            for column in list(readable):
                try:
                    encoded = schema.encode_column(column, frame)
                except SchemaError as error:  # its type as a whole
                    unreadable.append(str(error))
                    readable.remove(column)
                    continue
                kept &= encoded.codes >= 0
                if encoded.faults and column not in faulty:
                    faulty.append(column)
            rows += len(frame)
            left_out += int(np.count_nonzero(~kept))
        if faulty:
            again = _batches(source, {column.name: column for column in faulty}, chunk_rows, BadLines())
            whole = pd.concat(map(frame_of, again), ignore_index=True)
            names_of = {column.name for column in faulty}
            ordered = tuple(column for column in schema.plain().asked if column.name in names_of)
            remarks += Schema(ordered, schema.missing_values).problems(whole)
        if not unreadable:
            remarks += _breaking(source, schema, chunk_rows)
    except SchemaError as error:
        unreadable.append(str(error))
    if bad.count:
        remarks.append(str(bad))
    if extra:
        remarks.append(f"columns {extra} are not in the schema and will be left out")
    rows, left_out = rows + bad.count, left_out + bad.count
    return Check(not unreadable and not left_out, rows, unreadable + remarks, left_out)


def _breaking(source: Source, schema: Schema, chunk_rows: int) -> list[str]:
    """Return a sentence for each rule, and each bound of a derived column, that rows of a source break."""
    if not (schema.rules or schema.derives):
        return []
    plain = schema.plain(source.columns())
    wanted: dict[str, Column | None] = {column.name: column for column in plain.asked}
    counts: Counter[str] = Counter()
    for rows in _batches(source, wanted, chunk_rows, BadLines()):
        counts.update({said: int(mask.sum()) for said, mask in schema.broken(encode(plain, rows)).items()})
    return breaking(counts)


def read_frame(place: Place, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Return a file or a database table as a data frame, to draft a schema or to evaluate; ``columns`` selects some.

    Text in one of the usual spellings of a missing value (``?``, ``NA``, ...) becomes missing. The columns of
    a CSV file get types by :func:`parse_text`; others keep theirs. Lines of a CSV file that are no rows are left out,
    and the log says which. Raises :class:`SchemaError` for text that is not UTF-8: drafts are made of what can be read.
    """
    source = _source(place)
    names = source.columns()
    if unknown := [name for name in columns or () if name not in names]:
        raise SchemaError(f"{source.name} has no columns {unknown}; it has {', '.join(names)}")
    wanted = list(columns) if columns is not None else names
    bad = BadLines()
    read = list(_batches(source, dict.fromkeys(wanted), 1 << 20, bad, strict=True))
    if bad.count:
        _log.warning("%s: %s", source.name, bad)
    frame = (
        frame_of(pa.concat_tables(read).unify_dictionaries(), strict=True)
        if read
        else pd.DataFrame(columns=wanted, dtype=object)
    )
    found = {name: without_missing(frame[name]) for name in wanted}
    return pd.DataFrame({name: parse_text(values) for name, values in found.items()} if source.is_text else found)


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """Write a data frame to ``path`` (.csv or .parquet), without its index; the file appears complete or not at all."""
    check_suffix(path)
    partial = path.with_name(path.name + ".partial")
    try:
        if path.suffix.lower() == ".parquet":
            frame.to_parquet(partial, index=False)
        else:
            # pandas rather than pyarrow: it quotes only what needs quotes and writes times as ISO 8601.
            _early_years(frame).to_csv(partial, index=False)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _early_years(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with times of the years before 1000 as ISO 8601 text: pandas writes their years too short."""
    times = frame.select_dtypes(["datetime", "datetimetz"])
    early = [name for name in times if (times[name].dt.year < 1000).any()]
    return frame.assign(**{str(name): frame[name].map(lambda time: time.isoformat(), "ignore") for name in early})


def check_columns(source: Source, schema: Schema) -> None:
    """Raise :class:`SchemaError` for a source without a column of the schema; no row is read."""
    names = source.columns()
    if absent := [name for name in schema.names if name not in names]:
        raise SchemaError(_absent(source, absent))


def column_names(place: Place) -> list[str]:
    """Return the names of a source's columns in their order; raises :class:`SchemaError` if two are equal."""
    return _source(place).columns()


def without_missing(values: pd.Series[Any]) -> pd.Series[Any]:
    """Return a column with the usual spellings of a missing value replaced, if it is text."""
    if values.dtype == object or pd.api.types.is_string_dtype(values.dtype):
        return values.mask(values.isin(MISSING))
    return values


def parse_text(values: pd.Series[Any]) -> pd.Series[Any]:
    """Return a text column as the type that all its values read as, or unchanged; missing values stay missing.

    In turn: ``true``/``false`` as booleans, integers, numbers, ISO 8601 times (aware ones in UTC). Numbers
    with leading zeros, or of more than 18 digits, are codes and stay text, and so does a column without
    values.
    """
    codes, texts = distinct_values(values)
    kinds = {
        "boolean": r"(?i:true|false)",
        "Int64": r"[+-]?(?:0|[1-9]\d{0,17})",
        "Float64": _NUMBER,
        "time": _TIME,
    }
    kind = next((kind for kind, form in kinds.items() if _all_match(texts, form)), None)
    if kind is None:
        return values
    parsed: pd.Series[Any]
    column = pd.Series(texts, dtype=object)  # whatever pandas' default type for text
    if kind == "time":
        aware = any(re.search(r"(?:Z|[+-]\d\d:?\d\d)$", text) for text in texts)
        # Microseconds are the finest unit of a schema; the type that pandas chooses depends on its version.
        parsed = pd.to_datetime(column, format="ISO8601", utc=aware, errors="coerce").dt.as_unit("us")
        # The form of a date, but not one that the calendar holds, or one that pandas' nanoseconds do not.
        if not parsed.dt.year.between(1, 9999).all():
            far = _far_times(texts, aware)
            if far is None:
                return values
            parsed = far
    elif kind == "boolean":
        parsed = column.str.lower() == "true"
    else:
        try:
            parsed = pd.to_numeric(column)
        except ValueError:  # pandas before 3 does not read 1e999
            parsed = column.astype("float64")
    missing = codes < 0
    if kind in ("boolean", "Int64") and missing.any():
        parsed = parsed.astype(kind)  # type: ignore[call-overload]
    result: pd.Series[Any] = parsed.take(np.where(missing, 0, codes)).set_axis(values.index)
    result.name = values.name
    return result.mask(missing) if missing.any() else result


_NUMBER = r"[+-]?(?:0|[1-9]\d{0,17}|(?=\.\d))(?:\.\d*)?(?:[eE][+-]?\d+)?|[+-]?inf"
_TIME = r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)?"


def _far_times(texts: Sequence[str], aware: bool) -> pd.Series[Any] | None:
    """Return times of the years 1 to 9999 in microseconds (``aware`` ones in UTC); ``None`` if one is no time."""
    try:
        times = [datetime.fromisoformat(text) for text in texts]
        plain = [(time - (time.utcoffset() or timedelta(0))).replace(tzinfo=None) for time in times]
    except (ValueError, OverflowError):
        return None
    found: pd.Series[Any] = pd.Series(np.array(plain, dtype="datetime64[us]"))
    return found.dt.tz_localize("UTC") if aware else found


def _all_match(texts: Sequence[Any], form: str) -> bool:
    """Say whether there are texts and all have the form."""
    # Not by pandas, which matches some types of text by another engine than Python's.
    whole = re.compile(form, re.ASCII).fullmatch
    return bool(texts) and all(isinstance(text, str) and whole(text) for text in texts)


class BadLines:
    """The lines of a CSV file that are no rows: their ``count``, and as text what is wrong with the first few."""

    def __init__(self) -> None:
        """Begin with none."""
        self.count = 0
        self._first: list[BadLine] = []

    def __str__(self) -> str:
        told = "; ".join(f"line {line.number} {line.wrong}" for line in self._first)
        more = f"; and {self.count - len(self._first)} more" if self.count > len(self._first) else ""
        return (
            f"lines that are no rows, and are left out: {self.count} ({told}{more}); write as many cells in every row "
            "as the header has, and close every quote"
        )

    def add(self, lines: Sequence[BadLine]) -> None:
        """Count more of them."""
        self.count += len(lines)
        self._first += lines[: _SHOWN - len(self._first)]


def _batches(
    source: Source, wanted: Mapping[str, Column | None], chunk_rows: int, bad: BadLines, *, strict: bool = False
) -> Iterator[Any]:
    """Yield the columns ``wanted`` as Arrow tables of at most ``chunk_rows`` rows, and add to ``bad`` what is no row.

    ``strict`` refuses times that are none.
    """
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows = {chunk_rows}; give at least 1")
    for rows, lines in source.batches(wanted, chunk_rows, strict=strict):
        bad.add(lines)
        yield from in_parts(rows, chunk_rows)


def _limited(
    source: Source, wanted: Mapping[str, Column | None], persons: Persons, chunk_rows: int, bad: BadLines
) -> Iterator[Any]:
    """Yield the columns ``wanted`` of the rows that are kept of each person."""
    if persons.column not in source.columns():
        raise SchemaError(f"{source.name} lacks the column {persons.column!r}, which names the person of each row")
    who = {persons.column: wanted.get(persons.column)}
    batches: Iterable[Any]
    if source.keeps_order:  # it is read twice
        ids = [frame_of(rows)[persons.column] for rows in _batches(source, who, chunk_rows, BadLines())]
        batches = _batches(source, wanted, chunk_rows, bad)
    else:
        batches = list(_batches(source, {**wanted, **who}, chunk_rows, bad))
        ids = [frame_of(rows.select([persons.column]))[persons.column] for rows in batches]
    kept = keep_rows(pd.concat(ids), persons.most, persons.key) if ids else np.zeros(0, dtype=bool)
    start = 0
    for rows in batches:
        yield rows.filter(pa.array(kept[start : start + rows.num_rows]))
        start += rows.num_rows


def in_canonical_order(table: Table) -> Table:
    """Return the same rows in an order that depends on nothing but the rows.

    A database keeps no order, and a table's digest does: without this, the same rows would look like others after every
    rewrite, to runs that share a copy of them and to a report that reads them again. Columns of codes are packed into
    as few keys as hold them; numbers are sorted by their bits, since the digest covers those, and decide their codes.
    """
    keys: list[np.ndarray[Any, Any]] = [values.view(np.int64) for values in table.numbers.values()]
    room = 1
    for position, size in enumerate(table.schema.sizes):
        if position in table.numbers:
            continue
        if room == 1 or room * size >= 2**63:
            keys.append(table.codes[position].astype(np.int64))
            room = size
        else:
            keys[-1] *= size
            keys[-1] += table.codes[position]
            room *= size
    return replace(table.take(np.lexsort(keys)), left_out=table.left_out)


def _absent(source: Source, absent: Sequence[str]) -> str:
    return f"{source.name} lacks the columns {list(absent)}; add them to the table, or remove them from the schema"
