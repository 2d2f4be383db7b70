"""Counting of files by DuckDB, which scans a file in batches for every query.

Rule 1: DuckDB opens no file and loads no extension. It receives the batches of fedsynth's own reader, so it counts the
    same rows as that reader, and a row that DuckDB could not read stops nothing.
Rule 2: values for which SQL would need special rules (such as text, times, and columns stored by their relation to
    another column) are converted to positions on the axes of the contingency tables before DuckDB receives them.
Rule 3: the codes of half a million rows are held in memory at a time; nothing is written to disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from fedsynth.data.sources.arrow import encode_stored, in_parts, readable
from fedsynth.errors import FedsynthError, Unsupported
from fedsynth.rows import Rows, Source
from fedsynth.schema import Schema
from fedsynth.schema.bins import Axis
from fedsynth.schema.columns import Boolean, Categorical, Column, Numeric, missing_spellings

MEMORY = "400MB"
"""Memory limit of DuckDB."""
_BATCH, _AT_ONCE = 1 << 16, 8  # rows per batch, and number of batches whose codes are held at a time


@contextmanager
def count_file(source: Source, schema: Schema) -> Iterator[Rows]:
    """Return a context manager (for a ``with`` block) that yields a file's rows, to be counted by DuckDB.

    ``source`` is the file, such as a :class:`~fedsynth.data.sources.files.CsvRows`, and ``schema`` encodes its rows.
    Within the block, the yielded :class:`~fedsynth.rows.Rows` gives their number and their contingency tables, but no
    single rows; DuckDB scans the file anew for every such query. Raises :class:`SchemaError` for a column that is
    missing, :class:`Unsupported` without DuckDB, and :class:`FedsynthError` if DuckDB fails, or at
    the end of the block if the file has changed.
    """
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
    """Counting of a file for :class:`~fedsynth.data.sources.ibis.CountedRows`: each statement scans the file once."""

    source: Source
    schema: Schema
    connection: Any
    types: Mapping[int, str] = field(init=False)
    dialect = "duckdb"
    fence = ""
    orders_text = True
    _read: int | None = None

    def __post_init__(self) -> None:
        """Determine the types of the columns that SQL compares."""
        every = {column.name: column for column in self.schema.asked}
        first = next((rows for rows, _ in self.source.batches(every, 1)), None)
        self.types = {}
        if first is None:
            return
        for position, column in enumerate(self.schema.asked):
            if position in self.schema.links:  # placed on its axis before DuckDB receives it
                continue
            kind = _compared(column, readable(column.name, first.column(column.name)).type, self.schema.missing_values)
            if kind:
                self.types[position] = kind

    def ask(
        self, columns: Sequence[int], places: Mapping[int, Axis], coded: str, counts: Sequence[str]
    ) -> Iterator[Any]:
        """Yield replies for successive groups of batches, of half a million rows each at most, during one scan."""
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
                raise FedsynthError(
                    f"DuckDB could not count {self.source.name} ({type(error).__name__}); let the site read its rows"
                ) from None
            held = [self._batch(rows, columns, places, kinds) for rows in islice(parts, _AT_ONCE)]

    def _parts(self, wanted: Mapping[str, Column]) -> Iterator[Any]:
        """Yield the file's rows as Arrow tables, and record their number at the end."""
        read = 0
        for rows, bad in self.source.batches(wanted, _BATCH):
            read += rows.num_rows + len(bad)
            yield from in_parts(rows, _BATCH)
        self._read = read

    def rows_read(self) -> int:
        """Return the number of rows, including malformed lines."""
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
        chunks = [column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column for column in held]
        return pa.RecordBatch.from_arrays(chunks, schema=kinds)


_ARROW = {"int64": pa.int64(), "float64": pa.float64(), "boolean": pa.bool_()}


def _compared(column: Column, kind: Any, missing_values: Sequence[str]) -> str:
    """Return the ibis type in which SQL compares an Arrow type as the schema column does; empty if there is none.

    SQL compares neither text, whose cells are compared by value, nor numbers of which some stand for missing values.
    """
    integers = isinstance(column, Categorical) and not isinstance(column.values[0], str)
    if not (integers or isinstance(column, Numeric | Boolean)) or missing_spellings(column, missing_values)[1]:
        return ""
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return "int64"
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return "float64"
    return "boolean" if isinstance(column, Boolean) and pa.types.is_boolean(kind) else ""
