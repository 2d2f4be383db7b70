"""Streaming counts: rows are read in batches, encoded, counted and discarded, anew for every query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsynth import encoding
from fedsynth.data.read import check_columns
from fedsynth.data.sources.arrow import encode, in_parts
from fedsynth.rows import NoSingleRows, PairBlock, Rows, Source, Table, count_pairs
from fedsynth.schema import Schema
from fedsynth.schema.bins import Axis


@contextmanager
def stream(source: Source, schema: Schema, chunk_rows: int = 1 << 16) -> Iterator[Rows]:
    """Yield the rows of a ``source``, read anew for every query, within a ``with`` block.

    A file that changes raises :class:`FedsynthError` at the end of the block; later changes of a database are not seen.
    Rows are encoded ``chunk_rows`` at a time. Raises :class:`SchemaError` for a column that is missing or cannot be
    read.
    """
    check_columns(source, schema)
    with source.snapshot() as held:
        yield StreamedRows(held, schema, chunk_rows)


@dataclass(eq=False, repr=False)
class StreamedRows(NoSingleRows):
    """The rows of a source's snapshot under a schema, none of which is kept: memory does not grow with their number.

    Every call of :meth:`tables` reads the ``source`` once. If nothing was counted before, asking for the number of rows
    reads it once, too.
    """

    source: Source
    schema: Schema
    chunk_rows: int = 1 << 16
    _kept: int | None = None
    _read: int = 0

    def __len__(self) -> int:
        if self._kept is None:
            for _ in self._parts():
                pass
        assert self._kept is not None
        return self._kept

    @property
    def rows_read(self) -> int:
        """Number of rows read, including malformed lines and rows that do not fit the schema."""
        len(self)
        return self._read

    def tables(self, axes: Sequence[Axis], cliques: Sequence[Sequence[int]]) -> list[NDArray[np.int64]]:
        """Return the tables of :meth:`Rows.tables <fedsynth.rows.Rows.tables>`, from one pass over the source."""
        found: list[NDArray[np.int64]] = []
        for part in self._parts():
            counted = part.tables(axes, cliques)
            found = [np.add(a, b, out=a) for a, b in zip(found, counted, strict=True)] if found else counted
        return found

    def products(self, axes: Sequence[Axis], blocks: Sequence[PairBlock]) -> list[NDArray[np.int64]]:
        """Return the sums of :meth:`Rows.products <fedsynth.rows.Rows.products>`, from one pass over the source."""
        found = [np.zeros(count_pairs(block), dtype=np.int64) for block in blocks]
        for part in self._parts():
            for sums, more in zip(found, part.products(axes, blocks), strict=True):
                sums += more
        return found

    def _parts(self) -> Iterator[Table]:
        """Yield the rows as tables, at least one; record their number at the end."""
        wanted = {column.name: column for column in self.schema.asked}
        kept = read = 0
        some = False
        for rows, bad in self.source.batches(wanted, self.chunk_rows):
            read += len(bad)
            for part in in_parts(rows, self.chunk_rows):
                table = encode(self.schema, part)
                kept, read, some = kept + len(table), read + table.rows_read, True
                yield table
        if not some:
            import pandas as pd

            yield encoding.encode(self.schema, pd.DataFrame(columns=[column.name for column in self.schema.asked]))
        self._kept, self._read = kept, read
