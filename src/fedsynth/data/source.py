"""A site's rows in (CSV and Parquet files, PostgreSQL tables) and files out, a chunk of rows at a time.

A CSV file is UTF-8 text with a header; its delimiter is the comma or, where the header has none, the
semicolon, the tab or the bar. Every cell is read as text and understood by the schema, so that "007" keeps
its zeros. A row that does not fit the schema never stops the reading of a table: it is clipped, recoded or left out, as
the schema says. Rows of too few or too many cells do: such a file is no table.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from fedsynth.column import Column
from fedsynth.data import sql
from fedsynth.data.persons import keep_rows
from fedsynth.errors import SchemaError, Unsupported
from fedsynth.schema import MISSING, Schema
from fedsynth.table import Table, concatenate

Source = Path | sql.PostgresTable

_FORMATS = (".csv", ".parquet")
_BLOCK = 1 << 22  # bytes of CSV text parsed at once; also the longest row that can be read
_LONGEST = 2000  # distinct values looked at before a text column is worth a full look

# pandas would turn these into floats and objects as soon as a value is missing.
_NULLABLE: dict[Any, Any] = {
    pa.bool_(): pd.BooleanDtype(),
    pa.int8(): pd.Int8Dtype(),
    pa.int16(): pd.Int16Dtype(),
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.uint8(): pd.UInt8Dtype(),
    pa.uint16(): pd.UInt16Dtype(),
    pa.uint32(): pd.UInt32Dtype(),
    pa.uint64(): pd.UInt64Dtype(),
}


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


def open_source(text: str, folder: Path = Path()) -> Source:
    """Return what a configuration's ``data`` names: a file in ``folder`` (.csv or .parquet), or a database table.

    A table is ``postgresql://user@host/database?table=schema.name``, without a password
    (:func:`fedsynth.data.sql.parse_address`). Raises :class:`Unsupported` for anything else.
    """
    scheme, mark, _ = text.partition("://")
    if mark and scheme in sql.SCHEMES:
        return sql.parse_address(text)
    if mark:
        raise Unsupported(f"{scheme}:// is no source of rows here; use a file, or postgresql://...?table=schema.name")
    _check_suffix(Path(text))
    return folder / text


def read_table(source: Source, schema: Schema, *, persons: Persons | None = None, chunk_rows: int = 1 << 16) -> Table:
    """Return the rows of a file or a database table as codes, for a site that loads its data.

    At most about ``chunk_rows`` rows (or 4 MiB of CSV text) are held as values at a time; what stays are the
    codes, and a float for each value of a numeric or datetime column. Rows of a database come out in an order
    that depends on the rows alone; NULL and NaN are missing. Rows that do not fit are handled as
    :meth:`Schema.encode` does; :func:`check_table` names them. Raises :class:`SchemaError` for a missing column, one of
    a type that cannot be read, and a file that is no table.

    With ``persons``, rows beyond a person's limit and rows without a person are dropped before anything else, and not
    counted as left out: their number would tell more of a person than the limit allows. A file is then read twice, and
    the rows of a database table are held as values.
    """
    names = column_names(source)
    if absent := [name for name in schema.names if name not in names]:
        raise SchemaError(_absent(source, absent))
    wanted = {column.name: column for column in schema.columns}
    frames = _frames(source, wanted, chunk_rows) if persons is None else _limited(source, wanted, persons, chunk_rows)
    parts = [schema.encode(frame) for frame in frames]
    table = concatenate(parts) if parts else schema.encode(pd.DataFrame(columns=list(schema.names)))
    parts.clear()  # sorting needs the room
    return table if isinstance(source, Path) else sql.in_canonical_order(table)


def check_table(source: Source, schema: Schema, *, chunk_rows: int = 1 << 16) -> Check:
    """Say everything that keeps a source from fitting a schema, the first few rows for each column and kind of fault.

    Each sentence says how such values are handled (:meth:`Schema.problems`). A source that fits is read once in chunks;
    columns with faults are read once more, as a whole, to count them. Rows count from 0, without the header; a database
    table has no order: its rows are numbered as the database happened to return them.
    """
    names = column_names(source)
    absent = [name for name in schema.names if name not in names]
    extra = [name for name in names if name not in schema.names]
    unreadable = [_absent(source, absent)] if absent else []
    present = [column for column in schema.columns if column.name in names]
    unfit = {} if isinstance(source, Path) else sql.misfits(source, present)
    unreadable += unfit.values()
    readable = [column for column in present if column.name not in unfit]
    wanted: dict[str, Column | None] = {column.name: column for column in readable} or dict.fromkeys(names)
    faulty: list[Column] = []
    remarks: list[str] = []
    rows = left_out = 0
    try:
        for frame in _frames(source, wanted, chunk_rows):
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
            again = _frames(source, {column.name: column for column in faulty}, chunk_rows)
            whole = pd.concat(again, ignore_index=True)
            ordered = tuple(column for column in schema.columns if column in faulty)
            remarks += Schema(ordered, schema.missing_values).problems(whole)
    except SchemaError as error:
        unreadable.append(str(error))
    if extra:
        remarks.append(f"columns {extra} are not in the schema and will be left out")
    return Check(not unreadable and not left_out, rows, unreadable + remarks, left_out)


def read_frame(source: Source, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Return a file or a database table as a data frame, to draft a schema or to evaluate; ``columns`` selects some.

    Text in one of the usual spellings of a missing value (``?``, ``NA``, ...) becomes missing. The columns of
    a CSV file get types by :func:`parse_text`; others keep theirs.
    """
    names = column_names(source)
    if unknown := [name for name in columns or () if name not in names]:
        raise SchemaError(f"{source.name} has no columns {unknown}; it has {', '.join(names)}")
    wanted = list(columns) if columns is not None else names
    if isinstance(source, Path) and source.suffix.lower() == ".parquet":
        with _open_parquet(source) as file:
            frame = _frame(file.read(columns=wanted, use_pandas_metadata=False).select(wanted))
        return pd.DataFrame({name: without_missing(frame[name]) for name in wanted})
    chunks = list(_frames(source, dict.fromkeys(wanted), 1 << 20, strict=True))
    frame = pd.concat(chunks, ignore_index=True) if chunks else pd.DataFrame(columns=wanted, dtype=object)
    if not isinstance(source, Path):
        return pd.DataFrame({name: without_missing(frame[name]) for name in wanted})
    return pd.DataFrame({name: parse_text(without_missing(frame[name])) for name in wanted})


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """Write a data frame to ``path`` (.csv or .parquet), without its index; the file appears complete or not at all."""
    _check_suffix(path)
    partial = path.with_name(path.name + ".partial")
    try:
        if path.suffix.lower() == ".parquet":
            frame.to_parquet(partial, index=False)
        else:
            # pandas rather than pyarrow: it quotes only what needs quotes and writes times as ISO 8601.
            frame.to_csv(partial, index=False)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def column_names(source: Source) -> list[str]:
    """Return the names of a source's columns in their order; raises :class:`SchemaError` if two are equal."""
    if not isinstance(source, Path):
        return sql.column_names(source)
    path = source
    _check_suffix(path)
    if path.suffix.lower() == ".parquet":
        with _open_parquet(path) as file:
            names = list(file.schema_arrow.names)
    else:
        with _csv(path, None) as reader:
            names = list(reader.schema.names)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SchemaError(f"{path.name} has two columns named {twice}; rename them in the file")
    return names


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
    codes, distinct = pd.factorize(values)
    texts = pd.Series(np.asarray(distinct, dtype=object))
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
    if kind == "time":
        aware = bool(texts.str.contains(r"(?:Z|[+-]\d\d:?\d\d)$").any())
        parsed = pd.to_datetime(texts, format="ISO8601", utc=aware, errors="coerce")
        if parsed.isna().any():  # the form of a date, but not one of the calendar
            return values
    elif kind == "boolean":
        parsed = texts.str.lower() == "true"
    else:
        parsed = pd.to_numeric(texts)
    missing = codes < 0
    if kind in ("boolean", "Int64") and missing.any():
        parsed = parsed.astype(kind)  # type: ignore[call-overload]
    result: pd.Series[Any] = parsed.take(np.where(missing, 0, codes)).set_axis(values.index)
    result.name = values.name
    return result.mask(missing) if missing.any() else result


_NUMBER = r"[+-]?(?:0|[1-9]\d{0,17}|(?=\.\d))(?:\.\d*)?(?:[eE][+-]?\d+)?|[+-]?inf"
_TIME = r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)?"


def _all_match(texts: pd.Series[Any], form: str) -> bool:
    """Say whether there are texts and all have the form; the first few decide most columns."""
    if texts.empty or not all(isinstance(text, str) for text in texts):
        return False
    return all(bool(part.str.fullmatch(form).all()) for part in (texts[:_LONGEST], texts[_LONGEST:]) if len(part))


def _frames(
    source: Source, wanted: Mapping[str, Column | None], chunk_rows: int, *, strict: bool = False
) -> Iterator[pd.DataFrame]:
    """Yield the columns ``wanted`` in frames of at most ``chunk_rows`` rows; ``strict`` refuses what is not UTF-8."""
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows = {chunk_rows}; give at least 1")
    if not isinstance(source, Path):
        yield from map(_frame, sql.stream(source, wanted, chunk_rows))
        return
    path, names = source, list(wanted)
    if path.suffix.lower() == ".parquet":
        with _open_parquet(path) as file:
            for batch in file.iter_batches(chunk_rows, columns=names):
                yield _frame(pa.Table.from_batches([batch]).select(names), plain=True)
        return
    with _csv(path, names) as reader:
        while True:
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                return
            except pa.ArrowInvalid as error:
                raise SchemaError(_unreadable(path, error)) from error
            for start in range(0, batch.num_rows, chunk_rows):
                part = batch.slice(start, chunk_rows)
                try:
                    text = [_text(cells, strict=strict) for cells in part.columns]
                except pa.ArrowInvalid as error:
                    raise SchemaError(_unreadable(path, error)) from error
                yield _frame(pa.table(text, names))


def _limited(
    source: Source, wanted: Mapping[str, Column | None], persons: Persons, chunk_rows: int
) -> Iterator[pd.DataFrame]:
    """Yield the columns ``wanted`` of the rows that are kept of each person."""
    if persons.column not in column_names(source):
        raise SchemaError(f"{source.name} lacks the column {persons.column!r}, which names the person of each row")
    who = {persons.column: wanted.get(persons.column)}
    frames: Iterable[pd.DataFrame]
    if isinstance(source, Path):  # its rows come in the same order whenever it is read
        ids = [frame[persons.column] for frame in _frames(source, who, chunk_rows)]
        frames = _frames(source, wanted, chunk_rows)
    else:
        frames = list(_frames(source, {**wanted, **who}, chunk_rows))
        ids = [frame[persons.column] for frame in frames]
    kept = keep_rows(pd.concat(ids), persons.most, persons.key) if ids else np.zeros(0, dtype=bool)
    start = 0
    for frame in frames:
        yield frame[kept[start : start + len(frame)]].reset_index(drop=True)
        start += len(frame)


def _csv(path: Path, names: Sequence[str] | None) -> Any:
    """Open a CSV file; ``names`` are read as bytes, and no others. Without them any type will do: the header counts."""
    with path.open("rb") as file:
        header = file.readline()
    delimiter = next((mark for mark in ",;\t|" if mark.encode() in header), ",")
    text = pa_csv.ConvertOptions(
        column_types=dict.fromkeys(names or (), pa.binary()),
        include_columns=list(names or ()),
        strings_can_be_null=False,
    )
    try:
        return pa_csv.open_csv(
            path,
            read_options=pa_csv.ReadOptions(block_size=_BLOCK),
            parse_options=pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=text,
        )
    except pa.ArrowInvalid as error:
        raise SchemaError(_unreadable(path, error)) from error


def _text(cells: Any, *, strict: bool) -> Any:
    """Return cells of bytes as text; unless ``strict``, what is not UTF-8 becomes U+FFFD, in its own cell alone."""
    try:
        return cells.cast(pa.string())
    except pa.ArrowInvalid:
        if strict:
            raise
        return pa.array([cell.decode("utf-8", "replace") for cell in cells.to_pylist()], pa.string())


def _open_parquet(path: Path) -> Any:
    try:
        return pa_parquet.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise SchemaError(f"{path.name} is not a Parquet file ({error}); write it again") from error


def _frame(table: Any, *, plain: bool = False) -> pd.DataFrame:
    """Return an Arrow table as a frame whose integers and booleans stay so when values are missing.

    ``plain`` replaces dictionary codes by their values, which is what the schema's columns read.
    """
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if plain and pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        mapper = _NULLABLE.get if column.null_count else None
        columns[name] = column.to_pandas(types_mapper=mapper, date_as_object=False)
    return pd.DataFrame(columns)


def _check_suffix(path: Path) -> None:
    if path.suffix.lower() not in _FORMATS:
        raise Unsupported(f"{path.name} ends in {path.suffix!r}; use a file that ends in {' or '.join(_FORMATS)}")


def _absent(source: Source, absent: Sequence[str]) -> str:
    return f"{source.name} lacks the columns {list(absent)}; add them there, or take them out of the schema"


def _unreadable(path: Path, error: Exception) -> str:
    return f"{path.name} cannot be read ({error}); save it as UTF-8 text with a header and as many cells in every row"
