"""Sketches: every pair's contingency table in a few numbers, enough to tell which pairs depend.

Source: HeteroFedSyn. Corrected: one public projection for all sites, on counts, and an estimator whose corrections
follow from the noise of the trust in use.
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

_MOST_CELLS = 2**23  # of one pair's table: 64 MB
_MOST_SIGNS = 2**25  # of one pair's projection: 4 MB as bits
_ALL_SIGNS = 2**32  # of all pairs of a question: two seconds of hashing
_BLOCK = 2**23  # signs that are held as numbers at once: 64 MB

# ---------------------------------------------------------------------------------------------------------------------
# What a site computes


def project(table: NDArray[Any], pair: Sequence[int], width: int, seed: int) -> Floats:
    """Return a flat table of a pair, counts or not, times a public matrix of ``width`` columns of +1 and -1.

    The matrix is the same at every site: it comes from a hash of the public seed and the pair. Each of its rows has
    the norm sqrt(width), so that a sketch over sqrt(width) keeps squared norms on average and one record
    moves it by 1 (normal entries as published have rows twice as long, and cost four times the variance). A
    table of no more cells than ``width`` is sketched by the largest multiple of itself that one record moves
    no further. Integers give integers, exactly: they stay far below 2^53.
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
    """Return :func:`project` of a flat table of counts, from the cells that hold rows alone.

    As many cells are visited as there are rows, whichever of them are alike: how long it takes does not depend on that.
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
    """Return the norm of what one record adds to a sketch."""
    return float(math.isqrt(width)) if cells <= width else math.sqrt(width)


class Sketches(Query, frozen=True):
    """Each pair's contingency table (flattened in C order) times its :func:`project`, one after the other.

    ``width`` numbers a pair; a pair of fewer cells has one number a cell.
    ``seed`` is that of the public projection.
    """

    kind: ClassVar[str] = "sketches"

    pairs: Annotated[tuple[tuple[Position, Position], ...], msgspec.Meta(min_length=1, max_length=2**16)]
    width: Annotated[int, msgspec.Meta(ge=1, le=2**16)]
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

    def check(self, schema: Schema) -> None:
        """Refuse pairs that are none, and projections too large to be made."""
        for first, second in self.pairs:
            if max(first, second) >= len(schema.stored) or first == second:
                raise InvalidParameter(
                    f"a pair is made of two of the {len(schema.stored)} columns, not of {first} and {second}"
                )
        sizes = self._sizes(schema)
        signs = [size * self.width for size in sizes if size > self.width]
        if max(sizes) > _MOST_CELLS or max(signs, default=0) > _MOST_SIGNS or sum(signs) > _ALL_SIGNS:
            raise InvalidParameter(f"projections to {self.width} numbers of tables this large take too long; use fewer")

    def sensitivity(self, schema: Schema) -> Sensitivity:
        """Add a record: one row of each pair's projection.

        A row of w signs has the norms w and sqrt(w); that of a table which is held as it is, one entry m = isqrt(w).
        Norms of pairs add up, squared for L2. Replace a record: two rows of signs differ by at most 2 in each of w
        entries, twice the norms; in a table held as it is, two entries move by m each: 2 m, and sqrt(2) m in L2.
        """
        cells = self._sizes(schema)
        norms = [record_norm(size, self.width) for size in cells]
        projected = [size > self.width for size in cells]
        l1 = sum(self.width if signs else norm for signs, norm in zip(projected, norms, strict=True))
        l2 = math.sqrt(sum(norm**2 for norm in norms))
        replaced = math.sqrt(sum((4 if signs else 2) * norm**2 for signs, norm in zip(projected, norms, strict=True)))
        return Sensitivity(float(l1), l2, 2.0 * l1, replaced)

    def cells(self, schema: Schema) -> int:
        """``width`` numbers a pair; a pair of fewer cells has one number a cell."""
        return sum(min(self.width, size) for size in self._sizes(schema))

    def row_range(self, schema: Schema) -> tuple[int, int]:
        """One record adds a sign to each number of a projection, and isqrt(width) to a cell that is held as it is."""
        projected = [size > self.width for size in self._sizes(schema)]
        return -1 if any(projected) else 0, 1 if all(projected) else math.isqrt(self.width)

    def answer(self, rows: Rows) -> Integers:
        """Project every table; the sums of a pair stay below 2^28 rows times isqrt(width), exact in floats."""
        axes = [Axis(column) for column in range(len(rows.schema.stored))]
        tables = (rows.tables(axes, [pair])[0].ravel() for pair in self.pairs)
        return np.concatenate(
            [project_counts(table, pair, self.width, self.seed) for table, pair in zip(tables, self.pairs, strict=True)]
        )

    def split(self, schema: Schema, flat: NDArray[Any]) -> list[Floats]:
        """Return each pair's sketch."""
        return as_tables(flat.astype(np.float64), [(min(self.width, size),) for size in self._sizes(schema)])

    def stds(self, std: float) -> list[float]:
        """Return the noise of each sketch: all have that of the answer."""
        return [std] * len(self.pairs)

    def _sizes(self, schema: Schema) -> list[int]:
        return [math.prod(schema.shape(pair)) for pair in self.pairs]


# ---------------------------------------------------------------------------------------------------------------------
# What the server makes of it


@dataclass(frozen=True, eq=False)
class Sketch:
    """A pair's noisy sketch, in the norm of its table (records), and the noise's variance in each number."""

    pair: Clique
    values: Floats
    variance: float
    width: int
    seed: int

    def of(self, table: Floats) -> Floats:
        """Return the same sketch of another table of the pair, without noise."""
        return project(table.ravel(), self.pair, self.width, self.seed) / record_norm(table.size, self.width)

    def distance(self, table: Floats) -> float:
        """Return an unbiased estimate of the squared distance of the pair's table to a known one; may be negative."""
        return float(((self.values - self.of(table)) ** 2).sum()) - self.values.size * self.variance


def sketch(federation: Federation, pairs: Sequence[Clique], share: float, width: int, seed: int) -> list[Sketch]:
    """Return noisy sketches of ``pairs``, all of them for ``share`` of the budget."""
    query = Sketches(tuple((first, second) for first, second in pairs), width, seed)
    released = federation.sum(query, share)
    norms = [record_norm(math.prod(federation.schema.shape(pair)), width) for pair in pairs]
    return [
        Sketch(pair, values / norm, (released.std / norm) ** 2, width, seed)
        for pair, norm, values in zip(pairs, norms, released.tables, strict=True)
    ]


def dependence(of_pair: Sketch, first: Measurement, second: Measurement, total: float) -> float:
    """Return an unbiased estimate of || table - first x second / total ||^2, in squared records; may be negative.

    InDif2 of HeteroFedSyn. With noise of variances v, w in the 1-way tables a, b, the product of the noisy tables has
    v |a| ||b||^2 + w |b| ||a||^2 + v w |a| |b| too much squared norm on average, and the exact ||a||^2 is known as
    that of the noisy table less v |a|. The projection keeps squared norms on average.
    """
    a, b = first.values, second.values
    v, w = first.std**2, second.std**2
    too_much = v * a.size * float((b**2).sum()) + w * b.size * float((a**2).sum()) - v * w * a.size * b.size
    return of_pair.distance(np.outer(a, b) / total) - too_much / total**2
