"""Arrow tables as what schemas read: frames of pandas, and codes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from fedsynth.errors import SchemaError
from fedsynth.rows import Table
from fedsynth.schema import Schema
from fedsynth.schema.columns import Column, Encoded

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


def frame_of(table: Any, *, strict: bool = False) -> pd.DataFrame:
    """Return an Arrow table as a frame whose integers and booleans stay so when values are missing.

    Columns are those of :func:`readable`; ``strict`` leaves types as they are, and refuses text that is not UTF-8.
    """
    columns = {}
    for name, given in zip(table.column_names, table.columns, strict=True):
        column = readable(name, given, strict=strict)
        mapper = _NULLABLE.get if column.null_count else None
        columns[name] = column.to_pandas(types_mapper=mapper, date_as_object=False)
    return pd.DataFrame(columns)


def readable(name: str, column: Any, *, strict: bool = False) -> Any:
    """Return an Arrow column of types that the schema's columns read.

    Dictionary codes are replaced by their values, which is what the schema's columns read, and times of a zone by those
    of UTC: pandas crashes at times before a zone's first change. Text that is not UTF-8 has U+FFFD in its place, in its
    own cell alone. ``strict`` leaves types as they are, and refuses such text.
    """
    if not strict and pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not strict and pa.types.is_timestamp(column.type) and column.type.tz is not None:
        column = column.cast(pa.timestamp(column.type.unit, "UTC"))
    return _whole_text(name, column, strict=strict) if is_text(column.type) else column


def is_text(kind: Any) -> bool:
    """Whether an Arrow type is that of text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def encode(schema: Schema, table: Any) -> Table:
    """Return the rows of an Arrow table as codes: those of :meth:`Schema.encode`, at less cost for text."""
    return schema.assembled(encode_column(schema, column, table) for column in schema.asked)


def encode_stored(schema: Schema, at: int, table: Any) -> Encoded:
    """Return the codes and numbers of the stored column at a position, -1 where its value leaves the row out."""
    found = encode_column(schema, schema.asked[at], table)
    if (link := schema.links.get(at)) is None:
        return found
    return link.encoded(found, encode_column(schema, schema.asked[link.other], table))


def encode_column(schema: Schema, column: Column, table: Any) -> Encoded:
    """Return one asked column's codes and numbers as published, without the faults.

    What becomes of a text depends on it and the column alone, so that each distinct text is read once.
    """
    given = readable(column.name, table.column(column.name))
    if not is_text(given.type):
        return schema.encode_column(column, frame_of(pa.table({column.name: given})))
    texts = given.combine_chunks().dictionary_encode()
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks() if texts.num_chunks else pa.array([], pa.string()).dictionary_encode()
    distinct = pd.Series([*texts.dictionary.to_pylist(), None], dtype=object)
    found = schema.encode_column(column, pd.DataFrame({column.name: distinct}))
    which = np.asarray(texts.indices.fill_null(len(distinct) - 1))
    return Encoded(found.codes[which], None if found.numbers is None else found.numbers[which], ())


def in_parts(table: Any, rows: int) -> Iterator[Any]:
    """Yield an Arrow table cut so that no part has more than ``rows`` rows; an empty one is its only part."""
    for start in range(0, max(1, table.num_rows), rows):
        yield table.slice(start, rows)


def _whole_text(name: str, column: Any, *, strict: bool) -> Any:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        if strict:
            raise SchemaError(f"column {name!r} holds text that is not UTF-8; write it as UTF-8") from error
        cells = column.cast(pa.large_binary()).to_pylist()
        text = [None if cell is None else cell.decode("utf-8", "replace") for cell in cells]
        return pa.chunked_array([pa.array(text, pa.large_string())])
    return column
