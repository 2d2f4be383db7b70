"""A site's rows: where they lie (:class:`Source`), what a question may ask of them (:class:`Rows`), and rows in memory.

Rule 1: counting questions use :class:`Rows` and nothing else, so that whatever can count answers them: a
    :class:`Table`, batches counted in passing (:mod:`fedsynth.data.sources.streamed`), a database
    (:mod:`fedsynth.data.sources.ibis`).
Rule 2: all of them give equal counts for equal rows, to the last edge: a row's codes are those of the schema.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import Unsupported
from fedsynth.schema import Schema
from fedsynth.schema.bins import Axis
from fedsynth.schema.columns import Column

_CHUNK = 1 << 16


class Rows(Protocol):
    """What every question may use of a site's rows: their number, and contingency tables of them."""

    @property
    def schema(self) -> Schema:
        """The agreed schema that the rows are encoded under."""

    @property
    def rows_read(self) -> int:
        """Number of rows, those included that the schema leaves out."""

    def __len__(self) -> int: ...

    def tables(self, axes: Sequence[Axis], cliques: Sequence[Sequence[int]]) -> list[NDArray[np.int64]]:
        """Return one contingency table for each clique, whose members are positions in ``axes``."""


class NoSingleRows:
    """Rows that are counted and not held: they refuse to be looked at one by one, and show nothing of themselves."""

    def __repr__(self) -> str:
        """Never shows a row, nor how many there are."""
        return f"<{type(self).__name__}>"

    @property
    def codes(self) -> NoReturn:
        """Raise :class:`Unsupported`."""
        raise Unsupported(
            "this site counts its rows where they are and cannot hand them to a task; let it read them (read_table), "
            "or use a method that asks for marginals only"
        )

    numbers = codes


class BadLine(NamedTuple):
    """A line of a file that is no row: its number, from 1, and what is wrong with it, without a value of it."""

    number: int
    wrong: str


@runtime_checkable
class Source(Protocol):
    """Where rows lie: a file, or a table of a database. Nothing is read before it is asked for."""

    @property
    def name(self) -> str:
        """The source as messages name it, without a secret."""

    @property
    def file(self) -> Path | None:
        """The file that holds the rows; none where a database does."""

    @property
    def is_text(self) -> bool:
        """Whether every value comes as text, whatever it stands for."""

    @property
    def keeps_order(self) -> bool:
        """Whether the rows come in the same order whenever they are read."""

    def columns(self) -> list[str]:
        """Return the names of the columns in their order; raises :class:`SchemaError` if two are equal."""

    def unfit(self, columns: Sequence[Column]) -> dict[str, str]:
        """Return a sentence for each of the columns whose type in the source is known not to be readable."""

    def batches(
        self, wanted: Mapping[str, Column | None], chunk_rows: int, *, strict: bool = False
    ) -> Iterator[tuple[Any, Sequence[BadLine]]]:
        """Yield the columns ``wanted`` as Arrow tables of about ``chunk_rows`` rows, each with the lines left out.

        A column of the schema says what its values are read for; ``None`` stands for anything. ``strict`` refuses
        values that could only be read as something else.
        """

    def snapshot(self) -> AbstractContextManager[Source]:
        """Give the source as it is now, while the block lasts: later changes do not show, or raise an error."""

    def counted(self, schema: Schema) -> AbstractContextManager[Rows]:
        """Give a snapshot of the rows, counted by a database that holds them or scans their file."""


@dataclass(frozen=True, eq=False)
class Table:
    """Rows under a public schema.

    ``codes[j]`` holds column ``j`` as unsigned integers below ``schema.sizes[j]`` (shape ``(rows,)``, the
    narrowest type that fits); ``numbers[j]`` holds the values behind the codes of a numeric or datetime
    column as float64 (NaN where missing). ``left_out`` counts the rows that were read but did not fit the schema: a
    site's public size is :attr:`rows_read`, so that it does not tell whether a row fits.
    """

    schema: Schema
    codes: tuple[NDArray[Any], ...]
    numbers: Mapping[int, NDArray[np.float64]] = field(default_factory=dict)
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.codes[0])

    @property
    def holds_rows(self) -> bool:
        """Whether single rows are at hand: always, for a site that has this table for its store of rows."""
        return True

    @property
    def rows_read(self) -> int:
        """Number of rows that were read, those that are left out included."""
        return len(self) + self.left_out

    def require(self, run: str) -> None:
        """Raise nothing: these rows are at hand."""

    def opened(self, run: str) -> AbstractContextManager[Table]:
        """Give these rows, whatever the run: they are at hand."""
        return nullcontext(self)

    def __repr__(self) -> str:
        """Never shows a row: a table must not end up in a log."""
        return f"<Table of {len(self.codes)} columns>"

    def tables(self, axes: Sequence[Axis], cliques: Sequence[Sequence[int]]) -> list[NDArray[np.int64]]:
        """Return one contingency table for each clique, whose members are positions in ``axes``.

        One record changes one cell of each by one: the L2 (and L1) sensitivity of a table under add/remove adjacency
        is 1. All are counted in one pass over the rows, in chunks whose codes stay in the cache. Raises
        :class:`Unsupported` for cut points where the rows hold no numbers.
        """
        columns = self.schema.stored
        used = sorted({at for clique in cliques for at in clique})
        for at in used:
            if axes[at].cuts is not None and axes[at].column not in self.numbers:
                raise Unsupported("these rows hold no numbers to cut; encode them with Schema.encode")
        sizes = {at: axes[at].size(columns[axes[at].column].size, columns[axes[at].column].missing) for at in used}
        shapes = [tuple(sizes[at] for at in clique) for clique in cliques]
        cells = [math.prod(shape) for shape in shapes]
        counted: list[NDArray[np.int64]] = []
        rows = max(1 << 10, _CHUNK * 64 // max(64, len(used)))  # of a chunk: many axes would fill the memory
        for start in range(0, max(1, len(self)), rows):
            stop = start + rows
            places = {}
            for at in used:
                column, numbers = axes[at].column, self.numbers.get(axes[at].column)
                part = None if numbers is None else numbers[start:stop]
                places[at] = axes[at].places(self.codes[column][start:stop], part)
            chunk = []
            for clique, size in zip(cliques, cells, strict=True):
                flat = places[clique[0]]
                if len(clique) > 1:
                    flat = flat * sizes[clique[1]]
                    flat += places[clique[1]]
                for at in clique[2:]:
                    flat *= sizes[at]
                    flat += places[at]
                chunk.append(np.bincount(flat, minlength=size))
            counted = [np.add(a, b, out=a) for a, b in zip(counted, chunk, strict=True)] if start else chunk
        return [table.reshape(shape) for table, shape in zip(counted, shapes, strict=True)]

    def flat_codes(self, clique: Sequence[int]) -> NDArray[np.int64]:
        """Return each row's cell number in the (C-ordered) contingency table of ``clique``, shape ``(rows,)``."""
        first, *rest = clique
        flat = self.codes[first].astype(np.int64)
        for column in rest:
            flat *= self.schema.sizes[column]
            flat += self.codes[column]
        return flat

    def take(self, rows: NDArray[Any]) -> Table:
        """Return the rows selected by an index or boolean array; none of those left out are among them."""
        return Table(
            self.schema,
            tuple(column[rows] for column in self.codes),
            {column: values[rows] for column, values in self.numbers.items()},
        )

    @cached_property
    def digest(self) -> str:
        """SHA-256 over schema and rows, those left out by their number: the name of an encoded copy."""
        sha = hashlib.sha256(self.schema.digest.encode())
        for column in self.codes:
            sha.update(str(column.dtype).encode() + b"\0" + np.ascontiguousarray(column).tobytes())
        for index, values in sorted(self.numbers.items()):
            sha.update(index.to_bytes(4, "big") + np.ascontiguousarray(values).tobytes())
        sha.update(self.left_out.to_bytes(8, "big"))
        return sha.hexdigest()


def concatenate(tables: Sequence[Table]) -> Table:
    """Pool tables of one schema: for central baselines and tests, never at a deployed site."""
    first = tables[0]
    return Table(
        first.schema,
        tuple(np.concatenate([table.codes[j] for table in tables]) for j in range(len(first.codes))),
        {j: np.concatenate([table.numbers[j] for table in tables]) for j in first.numbers},
        sum(table.left_out for table in tables),
    )
