"""Files that are counted by DuckDB, which scans them batch by batch for every question.

Rule 1: DuckDB opens no file and loads no extension: it is handed the batches of a reader of ours, so that the rows are
    those that a reader sees, and a row that DuckDB could not read stops nothing.
Rule 2: values of types for which SQL would need rules of its own (times, text that stands for numbers, and columns that
    are stored by their relation to another one) are placed on their axes before DuckDB sees them.
Rule 3: codes of half a million rows are held at a time, in memory; nothing is written to disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from fedsynth.data.sources.arrow import encode_column, encode_stored, in_parts, is_text, readable
from fedsynth.errors import FedsynthError, Unsupported
from fedsynth.rows import Rows, Source
from fedsynth.schema import Schema
from fedsynth.schema.bins import Axis
from fedsynth.schema.columns import Boolean, Categorical, Column, Numeric

MEMORY = "400MB"
"""What DuckDB may hold."""
_BATCH, _AT_ONCE = 1 << 16, 8  # rows of a batch, and batches whose codes are held


@contextmanager
def count_file(source: Source, schema: Schema) -> Iterator[Rows]:
    """Give the rows of a file, counted by DuckDB; raises :class:`SchemaError` for columns that cannot be read."""
    try:
        import duckdb

        from fedsynth.data.sources.ibis import CountedRows
    except ImportError as error:
        raise Unsupported("counting a file needs DuckDB and ibis; pip install 'fedsynth[sql]'") from error
    from fedsynth.data.read import check_columns

    check_columns(source, schema)
    with source.snapshot() as held:
        settings = {"memory_limit": MEMORY, "temp_directory": "", "threads": "2"}
        with duckdb.connect(config=settings) as connection:
            connection.execute("SET enable_external_access = false; SET lock_configuration = true")
            yield CountedRows(schema, _Scans(held, schema, connection))


@dataclass
class _Scans:
    """The counting of a file: every statement scans its batches once."""

    source: Source
    schema: Schema
    connection: Any
    types: Mapping[int, str] = field(init=False)
    dialect = "duckdb"
    fence = ""
    orders_text = True
    _read: int | None = None

    def __post_init__(self) -> None:
        """Look at the types of the columns; raises :class:`SchemaError` for those that a column cannot read."""
        every = {column.name: column for column in self.schema.asked}
        first = next((rows for rows, _ in self.source.batches(every, 1)), None)
        self.types = {}
        if first is None:
            return
        for position, column in enumerate(self.schema.asked):
            encode_column(self.schema, column, first.slice(0, 0))
            if position in self.schema.links:  # placed before DuckDB sees it
                continue
            kind = _compared(column, readable(column.name, first.column(column.name)).type, self.schema.missing_values)
            if kind:
                self.types[position] = kind

    def ask(
        self, columns: Sequence[int], places: Mapping[int, Axis], coded: str, counts: Sequence[str]
    ) -> Iterator[Any]:
        """Yield the replies for some rows after the other, while the file is read once: codes of all are never held."""
        import duckdb

        fields = [(f"v{column}", _ARROW[self.types[column]]) for column in columns]
        kinds = pa.schema([*fields, *((f"p{at}", pa.int32()) for at in places), ("nothing", pa.int64())])
        shown = {*columns, *(axis.column for axis in places.values())} or {0}
        wanted = sorted(shown | {link.other for at, link in self.schema.links.items() if at in shown})
        parts = self._parts({self.schema.asked[column].name: self.schema.asked[column] for column in wanted})
        held = [self._batch(rows, columns, places, kinds) for rows in islice(parts, _AT_ONCE)]
        while held:
            try:
                self.connection.register("handed", pa.Table.from_batches(held))
                sql = f"WITH rows AS (SELECT * FROM handed), {coded}"
                self.connection.execute(f"CREATE TEMPORARY TABLE coded AS {sql}")
                self.connection.unregister("handed")
                for count in counts:
                    yield self.connection.sql(count).to_arrow_table()
                self.connection.execute("DROP TABLE coded")
            except duckdb.Error as error:
                raise FedsynthError(f"DuckDB could not count {self.source.name} ({type(error).__name__})") from None
            held = [self._batch(rows, columns, places, kinds) for rows in islice(parts, _AT_ONCE)]

    def _parts(self, wanted: Mapping[str, Column]) -> Iterator[Any]:
        """Yield the file's rows as Arrow tables, and note their number at the end."""
        read = 0
        for rows, bad in self.source.batches(wanted, _BATCH):
            read += rows.num_rows + len(bad)
            yield from in_parts(rows, _BATCH)
        self._read = read

    def rows_read(self) -> int:
        """Return the number of rows and of lines that are no rows."""
        if self._read is None:
            first = self.schema.asked[0]
            for _ in self._parts({first.name: first}):
                pass
            assert self._read is not None
        return self._read

    def _batch(self, rows: Any, columns: Sequence[int], places: Mapping[int, Axis], kinds: Any) -> Any:
        held = []
        for column in columns:
            name = self.schema.asked[column].name
            held.append(readable(name, rows.column(name)).cast(_ARROW[self.types[column]]).combine_chunks())
        for axis in places.values():
            found = encode_stored(self.schema, axis.column, rows)
            fits = found.codes >= 0
            cells = np.zeros(len(fits), dtype=np.int32)
            cells[fits] = axis.places(found.codes[fits], None if found.numbers is None else found.numbers[fits])
            held.append(pa.array(cells, mask=~fits))
        held.append(pa.nulls(rows.num_rows, pa.int64()))
        chunks = [one.combine_chunks() if isinstance(one, pa.ChunkedArray) else one for one in held]
        return pa.RecordBatch.from_arrays(chunks, schema=kinds)


_ARROW = {"string": pa.large_string(), "int64": pa.int64(), "float64": pa.float64(), "boolean": pa.bool_()}


def _compared(column: Column, kind: Any, missing_values: Sequence[str]) -> str:
    """Return the type of ibis in which SQL compares values of an Arrow type as the column does; empty for none."""
    labels = isinstance(column, Categorical) and isinstance(column.values[0], str)
    numbers = isinstance(column, Numeric | Boolean) or (isinstance(column, Categorical) and not labels)
    if labels and is_text(kind):
        assert isinstance(column, Categorical)
        return "" if any("\0" in str(text) for text in (*column.labels, *missing_values)) else "string"
    if numbers and pa.types.is_integer(kind) and kind != pa.uint64():
        return "int64"
    if numbers and (pa.types.is_float32(kind) or pa.types.is_float64(kind)):
        return "float64"
    return "boolean" if isinstance(column, Boolean) and pa.types.is_boolean(kind) else ""
