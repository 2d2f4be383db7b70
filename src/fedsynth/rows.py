"""A site's rows: :class:`Source` (where rows are stored), :class:`Rows` (what a query may count), :class:`Table`.

Rule 1: counting queries use :class:`Rows` and nothing else, so any implementation can answer them: a :class:`Table` in
    memory, a stream of batches (:mod:`fedsynth.data.sources.streamed`) or a database
    (:mod:`fedsynth.data.sources.ibis`).
Rule 2: all implementations return identical counts for identical rows, even on bin edges: the schema alone determines
    the codes (integers) by which a row's values are encoded.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedsynth.cliques import Clique, Workload
from fedsynth.errors import SchemaError, Unsupported, listed
from fedsynth.schema import Schema
from fedsynth.schema.bins import Axis
from fedsynth.schema.columns import Column, binned
from fedsynth.schema.misfits import Misfits, findings, with_lines

_CHUNK = 1 << 16  # rows counted at a time
_LISTED = 20  # columns named in a message
_STRIP = 1 << 8  # axes whose products with all others are computed at a time


PairBlock = tuple[Sequence[int], Sequence[int]]
"""Two sequences of positions, which stand for pairs: :func:`pairs_of`."""


def pairs_of(block: PairBlock) -> NDArray[np.int64]:
    """Return the pairs of a block: each of the first positions with the later ones of these, and all second ones.

    Shape ``(pairs, 2)``.
    """
    first, second = block
    every = np.array([*first, *second], dtype=np.int64)
    return np.stack([every[at] for at in np.triu_indices(len(first), 1, len(every))], axis=1)


def count_pairs(block: PairBlock) -> int:
    """Return how many pairs a block has."""
    first, second = block
    return len(first) * (len(first) - 1) // 2 + len(first) * len(second)


class Rows(Protocol):
    """Rows that can be counted, which is all that most queries need; ``len()`` is how many of them fit the schema."""

    @property
    def schema(self) -> Schema:
        """The agreed schema under which the rows are encoded."""

    @property
    def rows_read(self) -> int:
        """Number of rows read, including rows left out because they do not fit the schema."""

    def __len__(self) -> int: ...

    def tables(self, axes: Sequence[Axis], cliques: Sequence[Sequence[int]]) -> list[NDArray[np.int64]]:
        """Return one contingency table of counts (int64) for each clique, in order.

        Each of ``cliques`` is a sequence of positions in ``axes``, one for each dimension of its table. Adding or
        removing one record changes one cell of each table by one, so the L2 (and L1) sensitivity of one table under
        add/remove adjacency is 1. Raises :class:`Unsupported` for an axis with cut points, if only codes of its values
        are known here.
        """

    def products(self, axes: Sequence[Axis], blocks: Sequence[PairBlock]) -> list[NDArray[np.int64]]:
        """Return, for each pair of axes in each block, the sum over rows of the product of two signs (int64).

        A row's sign on an axis, which must have two groups, is 1 in the first group and -1 in the second. A block is
        two sequences of positions in ``axes``; its pairs are those of two axes of the first and, after those of each,
        of this axis and all of the second (:func:`pairs_of`). Adding or removing one record changes each sum by one.
        Raises :class:`Unsupported` as :meth:`tables` does.
        """


class NoSingleRows:
    """Base class of :class:`Rows` that can be counted but not read one by one; ``repr`` shows none of them."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    @property
    def codes(self) -> NoReturn:
        """Raise :class:`Unsupported`: single rows are not available here."""
        raise Unsupported(
            "this site counts its rows in place and cannot provide single rows; load them into memory (read_table), "
            "or use a method that only needs marginals"
        )

    numbers = codes


class BadLine(NamedTuple):
    """A line that could not be parsed: its ``number`` (from 1), and what is ``wrong``, without any of its values."""

    number: int
    wrong: str


def absent_columns(source: str, names: Sequence[str], wanted: Iterable[str]) -> str:
    """Return what to do about the ``wanted`` columns that a source of these columns (``names``) lacks; "" if none."""
    asked = list(wanted)
    absent = [name for name in asked if name not in names]
    if absent and len(absent) == len(asked) > 1:
        return (
            f"{source} has none of the {len(absent)} columns of the schema ({', '.join(absent[:_LISTED])}"
            f"{', ...' * (len(absent) > _LISTED)}), and cannot be used; give the file that the schema describes, or "
            f"the schema of this file ({listed(names, 'it has')})"
        )
    if not absent:
        return ""
    return (
        f"{source} lacks the columns {absent}; add them to the table, or remove them from the schema. Columns that the "
        "schema lets be missing (missing = true) may be declared absent in a source file, or be NULL in a view"
    )


@runtime_checkable
class Source(Protocol):
    """The place where rows are stored: a file, or a table of a database. Nothing is read before a method is called."""

    @property
    def name(self) -> str:
        """Name of the source for messages, without credentials."""

    @property
    def file(self) -> Path | None:
        """The file with the rows; ``None`` for a database."""

    @property
    def is_text(self) -> bool:
        """Whether all values are read as text, as from a CSV file."""

    @property
    def keeps_order(self) -> bool:
        """Whether every read returns the rows in the same order."""

    def columns(self) -> list[str]:
        """Return the names of all columns in their order; raises :class:`SchemaError` for a duplicate name."""

    def unfit(self, columns: Sequence[Column]) -> dict[str, str]:
        """Return a sentence for each of the schema's ``columns`` that cannot be read because of its type, by name.

        There are none if the types can only be judged by reading, as in a file.
        """

    def require(self, wanted: Mapping[str, Column | None]) -> None:
        """Open the source, and raise an error unless the ``wanted`` columns are there to be read; reads no row.

        ``wanted`` is as in :meth:`batches`. Raises :class:`SchemaError` for a column that is missing or whose type
        cannot be read, and ``OSError`` or :class:`FedsynthError` for a source that may not be opened.
        """

    def batches(
        self, wanted: Mapping[str, Column | None], chunk_rows: int, *, strict: bool = False
    ) -> Iterator[tuple[Any, Sequence[BadLine]]]:
        """Yield the ``wanted`` columns of all rows in batches: an Arrow table, and the lines that were left out of it.

        ``wanted`` maps each name to the schema column that its values are read for, or to ``None`` to read values of
        any kind. A table has about ``chunk_rows`` rows, more or fewer where the source reads by bytes. ``strict``
        refuses values that could only be read by converting them to another type. Raises :class:`SchemaError` for a
        column that cannot be read.
        """

    def snapshot(self) -> AbstractContextManager[Source]:
        """Yield the source as it is at this moment, within a ``with`` block.

        Reads of it do not see later changes of a database. A file that changes during the block raises
        :class:`FedsynthError` at its end.
        """

    def counted(self, schema: Schema) -> AbstractContextManager[Rows]:
        """Yield the rows, within a ``with`` block, to be counted by the database, and not read one by one.

        All counts refer to one snapshot. Raises :class:`SchemaError` if the source does not fit the schema, and
        :class:`Unsupported` for a file, which can be streamed instead (:func:`~fedsynth.data.sources.streamed.stream`).
        """


@dataclass(frozen=True, eq=False)
class Table:
    """Rows in memory, encoded under a public schema.

    Position ``j`` below is that in ``schema.stored``. ``codes[j]`` holds column ``j`` as unsigned integers below
    ``schema.sizes[j]`` (shape ``(rows,)``, the narrowest dtype that fits). ``numbers[j]`` holds the original values of
    a numeric or datetime column as float64 (NaN where missing). ``left_out`` counts the rows that were read but did not
    fit the schema. A site's public size is :attr:`rows_read`, which includes them, so that the size does not reveal
    whether a row fits. ``persons``, if the person of each row is known, has an integer for each row read
    (:func:`~fedsynth.persons.identify`, shape ``(rows_read,)``): first for the rows of the table, then for those left
    out. ``misfits`` is the record of what encoding changed or left out, for the people who may see the rows
    (:meth:`findings`). Neither is counted, stored or part of :attr:`digest`.
    """

    schema: Schema
    codes: tuple[NDArray[Any], ...]
    numbers: Mapping[int, NDArray[np.float64]] = field(default_factory=dict)
    left_out: int = 0
    persons: NDArray[np.uint64] | None = None
    misfits: Misfits = field(default=Misfits(), repr=False)

    @classmethod
    def of(cls, schema: Schema, values: Iterable[NDArray[Any]]) -> Table:
        """Return the rows with these ``values``, one array of shape ``(rows,)`` for each of ``schema.stored``.

        Floats are the numbers of a numeric or datetime column (NaN: missing), which are clipped to its bounds. Integers
        are codes.
        """
        codes, numbers = [], {}
        for at, (column, found) in enumerate(zip(schema.stored, values, strict=True)):
            if column.is_number and found.dtype == np.float64:
                found, numbers[at] = binned(column, found)
            codes.append(found.astype(np.min_scalar_type(column.size - 1), copy=False))
        return cls(schema, tuple(codes), numbers)

    def __len__(self) -> int:
        return len(self.codes[0])

    @property
    def holds_rows(self) -> bool:
        """True: single rows are available."""
        return True

    @property
    def rows_read(self) -> int:
        """Number of rows that were read, including the ``left_out`` ones."""
        return len(self) + self.left_out

    def findings(self) -> list[str]:
        """Return sentences on the rows left out, the values changed and the columns ignored when this was encoded.

        They give counts and quote a few values of real rows: show them to people who may see the rows. A selection of
        rows (:meth:`take`) has none.
        """
        return findings(self.rows_read, self.left_out, self.misfits)

    def require_rows(self, name: str) -> None:
        """Raise :class:`SchemaError`, with reasons, if rows of ``name`` were read and none of them fits."""
        if self.left_out and not len(self):
            raise SchemaError(
                with_lines(
                    f"{name}: none of the {self.left_out} rows fits the schema; correct the rows or the schema "
                    "(fedsynth schema check lists what does not fit), or go on without this table",
                    self.misfits.reasons(),
                )
            )

    def require(self, run: str) -> None:
        """Do nothing: the table is there (:class:`~fedsynth.federation.site.RowStore`)."""

    def opened(self, run: str) -> AbstractContextManager[Table]:
        """Yield this table (:class:`~fedsynth.federation.site.RowStore`)."""
        return nullcontext(self)

    def __repr__(self) -> str:
        """Show no row, so that none ends up in a log."""
        return f"<Table of {len(self.codes)} columns>"

    def tables(self, axes: Sequence[Axis], cliques: Sequence[Sequence[int]]) -> list[NDArray[np.int64]]:
        """Return the tables of :meth:`Rows.tables`.

        They are counted in one pass over the rows, in chunks whose codes fit into the cache. Raises
        :class:`Unsupported` for an axis with cut points over a column that ``numbers`` lacks.
        """
        used = sorted({at for clique in cliques for at in clique})
        sizes = {at: self._size(axes[at]) for at in used}
        shapes = [tuple(sizes[at] for at in clique) for clique in cliques]
        cells = [math.prod(shape) for shape in shapes]
        counted: list[NDArray[np.int64]] = []
        for places in self._places(axes, used):
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
            counted = [np.add(a, b, out=a) for a, b in zip(counted, chunk, strict=True)] if counted else chunk
        return [table.reshape(shape) for table, shape in zip(counted, shapes, strict=True)]

    def products(self, axes: Sequence[Axis], blocks: Sequence[PairBlock]) -> list[NDArray[np.int64]]:
        """Return the sums of :meth:`Rows.products`, by matrix products of the signs of a chunk of rows.

        All entries of these are integers below 2^24, which single precision holds exactly.
        """
        used = sorted({at for first, second in blocks for at in (*first, *second)})
        found = [np.zeros(count_pairs(block), dtype=np.int64) for block in blocks]
        rank = {at: number for number, at in enumerate(used)}
        members = [
            (len(first), np.array([rank[at] for at in (*first, *second)], dtype=np.int64)) for first, second in blocks
        ]
        for places in self._places(axes, used):
            signs = np.array([1 - 2 * places[at] for at in used], dtype=np.float32)
            for sums, (firsts, at) in zip(found, members, strict=True):
                every, start = signs[at], 0
                for strip in range(0, firsts, _STRIP):
                    products = every[strip : min(strip + _STRIP, firsts)] @ every[strip:].T
                    for number, row in enumerate(products):
                        later = row[number + 1 :]
                        sums[start : start + len(later)] += later.astype(np.int64)
                        start += len(later)
        return found

    def _size(self, axis: Axis) -> int:
        column = self.schema.stored[axis.column]
        return axis.size(column.size, column.missing)

    def _places(self, axes: Sequence[Axis], used: Sequence[int]) -> Iterator[dict[int, NDArray[np.int64]]]:
        """Yield the positions of the rows on the axes at the positions ``used``, for one chunk of rows after another.

        There is at least one chunk; with many axes, chunks are smaller, to bound memory.
        """
        for at in used:
            if axes[at].cuts is not None and axes[at].column not in self.numbers:
                raise Unsupported("these rows hold no numbers to apply cut points to; encode them from a frame or file")
        rows = max(1 << 10, _CHUNK * 64 // max(64, len(used)))
        for start in range(0, max(1, len(self)), rows):
            places = {}
            for at in used:
                column, numbers = axes[at].column, self.numbers.get(axes[at].column)
                part = None if numbers is None else numbers[start : start + rows]
                places[at] = axes[at].places(self.codes[column][start : start + rows], part)
            yield places

    def flat_codes(self, clique: Sequence[int]) -> NDArray[np.int64]:
        """Return each row's cell in the contingency table of a clique: its position in C order, shape ``(rows,)``."""
        first, *rest = clique
        flat = self.codes[first].astype(np.int64)
        for column in rest:
            flat *= self.schema.sizes[column]
            flat += self.codes[column]
        return flat

    def take(self, rows: NDArray[Any]) -> Table:
        """Return the table of the selected rows (an index array or a mask), without ``left_out`` and ``misfits``."""
        return Table(
            self.schema,
            tuple(column[rows] for column in self.codes),
            {column: values[rows] for column, values in self.numbers.items()},
            persons=None if self.persons is None else self.persons[: len(self)][rows],
        )

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) over schema, rows and number of rows left out; identifies the encoded rows."""
        sha = hashlib.sha256(self.schema.digest.encode())
        for column in self.codes:
            sha.update(str(column.dtype).encode() + b"\0" + np.ascontiguousarray(column).tobytes())
        for index, values in sorted(self.numbers.items()):
            sha.update(index.to_bytes(4, "big") + np.ascontiguousarray(values).tobytes())
        sha.update(self.left_out.to_bytes(8, "big"))
        return sha.hexdigest()


def concatenate(tables: Sequence[Table]) -> Table:
    """Return one table with the rows of several ``tables`` under one schema, in order.

    The tables are the batches of one site's rows, or those of all sites in a central baseline or test; sites of a
    deployment never pool rows. The result has persons if all tables do.
    """
    first = tables[0]
    known = [
        (table.persons[: len(table)], table.persons[len(table) :]) for table in tables if table.persons is not None
    ]
    return Table(
        first.schema,
        tuple(np.concatenate([table.codes[j] for table in tables]) for j in range(len(first.codes))),
        {j: np.concatenate([table.numbers[j] for table in tables]) for j in first.numbers},
        sum(table.left_out for table in tables),
        np.concatenate([part for parts in zip(*known, strict=True) for part in parts])
        if len(known) == len(tables)
        else None,
        Misfits.merged(table.misfits for table in tables),
    )


@dataclass(frozen=True)
class WorkloadError:
    """The result of :func:`workload_error`: its ``mean``, and the distance of each clique."""

    mean: float
    per_clique: dict[Clique, float]


def workload_error(real: Table, synthetic: Table, workload: Workload) -> WorkloadError:
    """Return the mean over ``workload`` of the L1 distance (0 to 2) between the tables' normalised marginals.

    Numbers count by their bins in the schema. The "workload error" of FLAIM's tables (arXiv 2310.06447), without the
    factor 1/2 of total variation. Raises :class:`Unsupported` for an empty table or workload.
    """
    if not len(real) or not len(synthetic) or not workload:
        raise Unsupported("a workload error needs rows on both sides and at least one marginal")
    per_clique = {
        clique: l1_distance(real.flat_codes(clique), synthetic.flat_codes(clique), math.prod(real.schema.shape(clique)))
        for clique in workload
    }
    return WorkloadError(float(np.mean(list(per_clique.values()))), per_clique)


def l1_distance(one: NDArray[np.integer[Any]], other: NDArray[np.integer[Any]], cells: int) -> float:
    """Return the L1 distance of two samples' frequencies over the ``cells`` cells of a contingency table: 0 to 2.

    ``one`` and ``other`` hold the cell of each row, shape ``(rows,)``; each sample has at least one row. If there are
    many more cells than rows, only the cells that occur are visited.
    """
    rows = len(one) + len(other)
    if cells > 4 * rows:
        _, which = np.unique(np.concatenate([one, other]), return_inverse=True)
        one, other, cells = which[: len(one)], which[len(one) :], rows
    shares = (np.bincount(sample, minlength=cells) / len(sample) for sample in (one, other))
    return float(np.abs(np.subtract(*shares)).sum())
