"""Sketches: random projections of every pair's contingency table, short but enough to find the dependent pairs.

Source: HeteroFedSyn. Corrected: one public projection of counts for all sites, and an estimator that is corrected for
the bias caused by the noise actually added, which depends on who adds it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.cliques import Clique, as_tables
from fedsynth.errors import InvalidParameter
from fedsynth.federation.query import Position, Query
from fedsynth.privacy.cost import Sensitivity
from fedsynth.rows import Rows
from fedsynth.schema.bins import Axis, Floats, Integers

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.models.estimate import Measurement
    from fedsynth.schema import Schema

LARGEST_WIDTH, LARGEST_SEED = 2**16, 2**63 - 1
_MOST_CELLS = 2**23  # cells of one pair's table, at most: 64 MB
_MOST_SIGNS = 2**25  # signs of one pair's projection, at most: 4 MB as bits
_ALL_SIGNS = 2**32  # signs of all pairs of a query, at most: two seconds of hashing
_BLOCK = 2**23  # signs held as numbers at once: 64 MB

# ---------------------------------------------------------------------------------------------------------------------
# At the site


def project(table: NDArray[Any], pair: Sequence[int], width: int, seed: int) -> Floats:
    """Return the sketch of a pair's flat table: the table times a public matrix of ``width`` columns of +1 and -1.

    ``table`` holds counts or other numbers, shape ``(cells,)``; the result has the shape ``(width,)``. The matrix is
    derived from a hash of the public ``seed`` and the ``pair`` of column positions, so that it is the same at every
    site. Each of its rows has the norm sqrt(width), so that a sketch divided by sqrt(width) preserves squared norms on
    average and one record moves it by 1 (with normal entries, as published, the norm of a row can be twice as large,
    which costs four times the variance). The sketch of a table with at most ``width`` cells is isqrt(width) times the
    table, the largest integer multiple that one record moves no further, shape ``(cells,)``. Integers give integers,
    exactly: they stay far below 2^53.
    """
    if table.size <= width:
        return np.asarray(table, dtype=np.float64) * math.isqrt(width)
    bits = _bits(pair, table.size, width, seed)
    flat = np.asarray(table, dtype=np.float64)
    projected: Floats = np.zeros(width)
    rows = max(8, _BLOCK // width // 8 * 8)  # whole bytes of bits
    for start in range(0, flat.size, rows):
        part = flat[start : start + rows]
        signs = np.unpackbits(bits[start * width // 8 :], count=len(part) * width).astype(np.float64)
        signs *= 2.0
        signs -= 1.0
        projected += part @ signs.reshape(len(part), width)
    return projected


def project_counts(table: NDArray[np.int64], pair: Sequence[int], width: int, seed: int) -> Integers:
    """Return :func:`project` of a pair's flat table of counts as integers; its time depends on no value of a row.

    If the rows are at most half as many as the cells, only the non-empty cells are multiplied, padded to as many as
    there are rows; otherwise, all cells are. The running time therefore depends on the number of rows and on public
    numbers, not on which rows are equal to each other.
    """
    rows = int(table.sum())
    if table.size <= width or rows * 2 > table.size:
        return project(table, pair, width, seed).astype(np.int64)
    held = np.flatnonzero(table)
    cells, counts = np.zeros((2, rows), dtype=np.int64)
    cells[: len(held)], counts[: len(held)] = held, table[held]
    places = cells[:, None] * width + np.arange(width)
    bits = _bits(pair, table.size, width, seed)[places >> 3] >> (7 - (places & 7)).astype(np.uint8) & 1
    projected: Integers = counts @ (2 * bits.astype(np.int64) - 1)
    return projected


def _bits(pair: Sequence[int], cells: int, width: int, seed: int) -> NDArray[np.uint8]:
    """Return the public signs of a projection as bits, cell by cell, eight to a byte."""
    digest = hashlib.shake_256(f"projection {seed} {tuple(pair)} {cells} {width}".encode())
    return np.frombuffer(digest.digest(-(-cells * width // 8)), dtype=np.uint8)


def record_norm(cells: int, width: int) -> float:
    """Return the L2 norm of what one record adds to the sketch of a table of ``cells`` cells (see :func:`project`)."""
    return float(math.isqrt(width)) if cells <= width else math.sqrt(width)


class Sketches(Query, frozen=True):
    """Query for sketches of the contingency tables of ``pairs``, over the schema's own bins (:func:`project`).

    The answer is the sketches of the tables, each flattened in C order, one after the other.
    """

    kind: ClassVar[str] = "sketches"

    pairs: Annotated[tuple[tuple[Position, Position], ...], msgspec.Meta(min_length=1, max_length=2**16)]
    width: Annotated[int, msgspec.Meta(ge=1, le=LARGEST_WIDTH)]
    seed: Annotated[int, msgspec.Meta(ge=0, le=LARGEST_SEED)]

    def check(self, schema: Schema) -> None:
        """Raise :class:`InvalidParameter` for invalid pairs of columns, and for tables too large to project.

        A pair needs two different columns that the schema has. A table may have at most 2^23 cells, and a projection
        2^25 signs (cells times ``width``), 2^32 for all pairs together.
        """
        for first, second in self.pairs:
            if max(first, second) >= len(schema.stored) or first == second:
                raise InvalidParameter(
                    f"the pair {first}, {second} is invalid; give two different column positions below "
                    f"{len(schema.stored)}"
                )
        sizes = self._sizes(schema)
        if max(sizes) > _MOST_CELLS:
            one, other = (schema.names[at] for at in self.pairs[sizes.index(max(sizes))])
            raise InvalidParameter(
                f"the table of columns {one!r} and {other!r} has {max(sizes)} cells, too many to project (at most "
                f"{_MOST_CELLS}); give these columns fewer values or bins in the schema"
            )
        signs = [size * self.width for size in sizes if size > self.width]
        if max(signs, default=0) > _MOST_SIGNS or sum(signs) > _ALL_SIGNS:
            raise InvalidParameter(
                f"projecting such large tables to {self.width} numbers takes too long; set a smaller --set width=..."
            )

    def sensitivity(self, schema: Schema) -> Sensitivity:
        """Return a bound on how far one record moves a site's answer (integers), in L1 and L2; noise is sized by it.

        Adding a record adds one row of each pair's projection matrix. A row of w signs has the L1 norm w and the L2
        norm sqrt(w). For a table that is not projected, the record adds m = isqrt(w) to one entry. L1 norms add up over
        pairs, and so do squared L2 norms. Replace a record: two rows of signs differ by at most 2 in each of w entries,
        twice both norms; in a table that is not projected, two entries move by m each: 2 m in L1, and sqrt(2) m in L2.
        """
        cells = self._sizes(schema)
        norms = [record_norm(size, self.width) for size in cells]
        projected = [size > self.width for size in cells]
        l1 = sum(self.width if signs else norm for signs, norm in zip(projected, norms, strict=True))
        l2 = math.sqrt(sum(norm**2 for norm in norms))
        replaced = math.sqrt(sum((4 if signs else 2) * norm**2 for signs, norm in zip(projected, norms, strict=True)))
        return Sensitivity(float(l1), l2, 2.0 * l1, replaced)

    def cells(self, schema: Schema) -> int:
        """Return the number of integers in an answer: per pair ``width``, or its table's cells if fewer."""
        return sum(min(self.width, size) for size in self._sizes(schema))

    def row_range(self, schema: Schema) -> tuple[int, int]:
        """Return bounds: a record adds 1 or -1 to each projected number, isqrt(width) to a cell not projected."""
        projected = [size > self.width for size in self._sizes(schema)]
        return -1 if any(projected) else 0, 1 if all(projected) else math.isqrt(self.width)

    def answer(self, rows: Rows) -> Integers:
        """Return a site's exact sketches, concatenated: a pair's sums stay below 2^28 isqrt(width), exact in floats."""
        axes = [Axis(column) for column in range(len(rows.schema.stored))]
        tables = (rows.tables(axes, [pair])[0].ravel() for pair in self.pairs)
        return np.concatenate(
            [project_counts(table, pair, self.width, self.seed) for table, pair in zip(tables, self.pairs, strict=True)]
        )

    def split(self, schema: Schema, flat: NDArray[Any]) -> list[Floats]:
        """Return the sketch of each pair, shape ``(width,)`` or ``(its cells,)``, in the sites' unit."""
        return as_tables(flat.astype(np.float64), [(min(self.width, size),) for size in self._sizes(schema)])

    def stds(self, std: float) -> list[float]:
        """Return ``std`` for each pair."""
        return [std] * len(self.pairs)

    def _sizes(self, schema: Schema) -> list[int]:
        return [math.prod(schema.shape(pair)) for pair in self.pairs]


# ---------------------------------------------------------------------------------------------------------------------
# At the server


@dataclass(frozen=True, eq=False)
class Sketch:
    """A released sketch (:func:`project`) of the table of ``pair``, scaled so that its norm estimates the table's.

    ``values`` are in records, shape ``(width,)`` or ``(cells,)``, and ``variance`` is that of the noise in each number.
    """

    pair: Clique
    values: Floats
    variance: float
    width: int
    seed: int

    def of(self, table: Floats) -> Floats:
        """Return the sketch of another ``table`` of the pair, in records, under the same matrix, without noise."""
        return project(table.ravel(), self.pair, self.width, self.seed) / record_norm(table.size, self.width)

    def distance(self, table: Floats) -> float:
        """Return an unbiased estimate of the squared L2 distance (records^2) to ``table``; it may be negative."""
        return float(((self.values - self.of(table)) ** 2).sum()) - self.values.size * self.variance


def sketch(federation: Federation, pairs: Sequence[Clique], share: float, width: int, seed: int) -> list[Sketch]:
    """Return noisy sketches of the tables of ``pairs``, in order, from one sum for ``share`` of the budget."""
    query = Sketches(tuple((first, second) for first, second in pairs), width, seed)
    released = federation.sum(query, share)
    norms = [record_norm(math.prod(federation.schema.shape(pair)), width) for pair in pairs]
    return [
        Sketch(pair, values / norm, (released.std / norm) ** 2, width, seed)
        for pair, norm, values in zip(pairs, norms, released.tables, strict=True)
    ]


def dependence(of_pair: Sketch, first: Measurement, second: Measurement, total: float) -> float:
    """Return an unbiased estimate of || table - first x second / total ||^2, in squared records; may be negative.

    ``of_pair`` is the sketch of two columns' table, ``first`` and ``second`` are their noisy 1-way tables, all of
    ``total`` records.

    InDif2 of HeteroFedSyn. With noise of variances v, w in the 1-way tables a, b, which have |a| and |b| cells, the
    squared norm of the product of the noisy tables exceeds that of the exact ones by v |a| ||b||^2 + w |b| ||a||^2 + v
    w |a| |b| on average, for the exact norms; the exact ||a||^2 is estimated by that of the noisy table minus v |a|.
    The projection preserves squared norms on average.
    """
    a, b = first.values, second.values
    v, w = first.std**2, second.std**2
    too_much = v * a.size * float((b**2).sum()) + w * b.size * float((a**2).sum()) - v * w * a.size * b.size
    return of_pair.distance(np.outer(a, b) / total) - too_much / total**2
