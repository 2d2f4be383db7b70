"""Conversion of Arrow tables to pandas frames and to encoded rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from fedsynth import encoding
from fedsynth.encoding import assembled
from fedsynth.errors import SchemaError
from fedsynth.rows import Table
from fedsynth.schema import Schema
from fedsynth.schema.canonical import decode_cell
from fedsynth.schema.columns import Column, Encoded
from fedsynth.schema.misfits import repeated

_COUNT = b"fedsynth count: "  # begins keys of a table's metadata
# Without these types, pandas would convert columns with missing values to floats or objects.
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


def frame_of(table: Any, *, typed: bool = False, strict: bool = False) -> pd.DataFrame:
    """Convert an Arrow ``table`` to a pandas frame; integers and booleans keep their type even with missing values.

    Columns are made :func:`readable` first, to which ``typed`` and ``strict`` belong.
    """
    columns = {}
    for name, given in zip(table.column_names, table.columns, strict=True):
        column = readable(name, given, typed=typed, strict=strict)
        mapper = _NULLABLE.get if column.null_count else None
        columns[name] = column.to_pandas(types_mapper=mapper, date_as_object=False)
    return pd.DataFrame(columns)


def readable(name: str, column: Any, *, typed: bool = False, strict: bool = False) -> Any:
    """Convert an Arrow ``column`` (a chunked array) called ``name`` to a type that the columns of schemas can read.

    Binary columns become text: a cell of bytes among texts makes a whole column binary. In text that is not UTF-8,
    invalid bytes are replaced by U+FFFD; other cells are unaffected. Dictionary-encoded columns are replaced by their
    values. Times with a time zone are converted to UTC, because pandas crashes on times before a zone's first
    transition. ``typed`` keeps dictionaries of valid text and time zones, for readers other than schemas; ``strict``
    refuses columns of text that is not UTF-8 with :class:`SchemaError`.
    """
    if pa.types.is_dictionary(column.type):
        if typed and not is_binary(column.type.value_type) and _is_valid(column):
            return column
        column = column.cast(column.type.value_type)
    if not typed and pa.types.is_timestamp(column.type) and column.type.tz is not None:
        column = column.cast(pa.timestamp(column.type.unit, "UTC"))
    if is_binary(column.type) or (is_text(column.type) and not _is_valid(column)):
        if strict and is_text(column.type):
            raise SchemaError(f"column {name!r} holds text that is not UTF-8; write it as UTF-8")
        return _decoded(column)
    return column


def is_text(kind: Any) -> bool:
    """Return whether an Arrow type is a text type."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_binary(kind: Any) -> bool:
    """Return whether an Arrow type is one of bytes."""
    fixed = pa.types.is_fixed_size_binary(kind)  # false for decimals, which have this layout
    return bool(fixed or pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def encode(schema: Schema, table: Any, persons: NDArray[np.uint64] | None = None) -> Table:
    """Encode an Arrow ``table`` as :func:`~fedsynth.encoding.encode` does, but faster."""
    return assembled(schema, (encode_column(schema, column, table) for column in schema.asked), persons)


def encode_column(schema: Schema, column: Column, table: Any) -> Encoded:
    """Return one of the :attr:`Schema.asked <fedsynth.schema.schema.Schema.asked>` columns of an Arrow table, encoded.

    Each distinct text is encoded, and looked at for faults, only once.
    """
    given = readable(column.name, table.column(column.name))
    if not is_text(given.type):
        return encoding.encode_column(schema, column, frame_of(pa.table({column.name: given})))
    texts = given.combine_chunks().dictionary_encode()
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks() if texts.num_chunks else pa.array([], pa.string()).dictionary_encode()
    distinct = pd.Series([*texts.dictionary.to_pylist(), *[None] * bool(texts.null_count)], dtype=object)
    found = encoding.encode_column(schema, column, pd.DataFrame({column.name: distinct}))
    index = np.asarray(texts.indices.fill_null(len(distinct) - 1))
    faults = tuple(repeated(fault, index) for fault in found.faults)
    return Encoded(found.codes[index], None if found.numbers is None else found.numbers[index], faults)


def with_counts(table: Any, counts: Mapping[str, int]) -> Any:
    """Return an Arrow table that carries sentences with their counts, except those of 0, for :func:`counts_of`."""
    said = {_COUNT + text.encode(): str(count) for text, count in counts.items() if count}
    return table.replace_schema_metadata(said)


def counts_of(table: Any) -> dict[str, int]:
    """Return the sentences that a source gave an Arrow table, on cells that it could not read, with their counts."""
    held = (table.schema.metadata or {}).items()
    return {key.removeprefix(_COUNT).decode(): int(count) for key, count in held if key.startswith(_COUNT)}


def in_parts(table: Any, rows: int) -> Iterator[Any]:
    """Yield an Arrow ``table`` in parts of at most ``rows`` rows; an empty table gives one empty part."""
    for start in range(0, max(1, table.num_rows), rows):
        yield table.slice(start, rows)


def _is_valid(column: Any) -> bool:
    """Return whether all text of a column is UTF-8."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _decoded(column: Any) -> Any:
    """Return a column of bytes, or of text that is not UTF-8, as text, cell by cell."""
    held = column.cast(pa.large_binary())
    text = held.cast(pa.large_string(), safe=False)  # of the same bytes
    if _is_valid(text):
        return text
    cells = (None if cell is None else decode_cell(cell) for cell in held.to_pylist())
    return pa.chunked_array([pa.array(cells, pa.large_string())])
