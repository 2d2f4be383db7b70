"""Counts in which each row has a public whole number as its weight: sums and products of bounded, rounded values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.cliques import as_tables
from fedsynth.errors import InvalidParameter
from fedsynth.federation.query import Cliques, Extent, Query, check_tables
from fedsynth.privacy.cost import Sensitivity
from fedsynth.rows import Rows
from fedsynth.schema import Schema
from fedsynth.schema.bins import MOST_CELLS, MOST_COLUMNS, Axis, Floats, Integers

LARGEST_BOUND = 2**32
"""Largest number that one record may add to a sum: sums over 2^28 rows (``MOST_ROWS``) stay below 2^60."""
WHOLE = 2**25
"""The factor of a table of plain counts that has a question's budget to itself: what stands for one record."""
_LARGEST_FACTOR = 2**26


class WeightedCounts(Query, frozen=True):
    """Contingency tables, some axes of which are summed over with public weights at the site.

    Table ``i`` has the axes at the positions ``tables[i]``. An axis whose entry in ``weights`` is ``None`` is kept: the
    answer has its cells. Along any other axis, cell ``c`` is multiplied by the integer ``weights[axis][c]``, and the
    axis is summed over. So an axis whose weights are the values of a column, rounded to integers, gives sums of that
    column, two such axes sums of products, and weights of 0 and 1 count the rows that meet a condition. At the end,
    table ``i`` is multiplied by ``factors[i]``, and divided by it after the release: a larger factor means less noise.
    """

    kind: ClassVar[str] = "weighted-counts"
    unit: ClassVar[float] = float(WHOLE)

    axes: Annotated[tuple[Axis, ...], msgspec.Meta(min_length=1, max_length=MOST_COLUMNS)]
    weights: Annotated[tuple[Integers | None, ...], msgspec.Meta(min_length=1, max_length=MOST_COLUMNS)]
    tables: Annotated[Cliques, msgspec.Meta(min_length=1)]
    factors: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=1, le=_LARGEST_FACTOR)], ...], msgspec.Meta(min_length=1, max_length=2**16)
    ]

    def check(self, schema: Schema) -> None:
        """Refuse what :func:`check_tables` refuses, weights that fit no axis, and sums or tables that grow too large.

        A site counts the tables before it sums over their axes, so that all of their cells count as those of an answer.
        """
        check_tables(schema, self.axes, self.tables, self.factors)
        if len(self.weights) != len(self.axes):
            raise InvalidParameter(f"{len(self.weights)} weights for {len(self.axes)} axes; give each its own, or None")
        for axis, size, weights in zip(self.axes, self._sizes(schema), self.weights, strict=True):
            if weights is not None and weights.shape != (size,):
                raise InvalidParameter(f"column {axis.column} has {size} cells but {weights.size} weights on an axis")
            if weights is not None and not (weights.min() >= -LARGEST_BOUND and weights.max() <= LARGEST_BOUND):
                raise InvalidParameter(f"a weight of column {axis.column} exceeds {LARGEST_BOUND}; scale the weights")
        if max(self._bounds()) > LARGEST_BOUND:
            raise InvalidParameter(f"one record may add {max(self._bounds())} to a sum, and at most {LARGEST_BOUND}")
        sizes = self._sizes(schema)
        if (counted := sum(math.prod(sizes[at] for at in table) for table in self.tables)) > MOST_CELLS:
            raise InvalidParameter(f"the tables to sum over have {counted} cells, and at most {MOST_CELLS}")

    def sensitivity(self, schema: Schema) -> Sensitivity:
        """Return the bound, by the largest weights of each table.

        A record is in one cell of each table. In table i it moves one number of the answer, by the product of the
        weights of its cell and the factor: at most b_i, the product of the largest absolute weights of the summed axes
        times the factor. Adding or removing it thus changes the answer by at most sum b_i in L1 and sqrt(sum b_i^2) in
        L2. Replacing it changes two numbers of table i by at most b_i each, or one by at most 2 b_i: in L1 2 sum b_i.
        In L2 the change in table i is at most 2 b_i; if none of its weights is negative, one number changes by at most
        b_i, and two by sqrt(2) b_i together. All numbers are integers, so that nothing is rounded afterwards.
        """
        bounds = self._bounds()
        signed = [any(weights is not None and weights.min() < 0 for weights in of) for of in self._of_tables()]
        replaced = sum((4 if sign else 2) * bound**2 for sign, bound in zip(signed, bounds, strict=True))
        l1, squares = float(sum(bounds)), sum(bound**2 for bound in bounds)
        return Sensitivity(l1, math.sqrt(squares), 2 * l1, math.sqrt(replaced))

    def _of_tables(self) -> list[list[Integers | None]]:
        return [[self.weights[at] for at in table] for table in self.tables]

    def _bounds(self) -> list[int]:
        """Return, for each table, the largest absolute number that one record adds to a cell of the answer."""
        return [factor * of for factor, of in zip(self.factors, self.largest, strict=True)]

    @property
    def largest(self) -> list[int]:
        """The largest absolute number that one record adds to a cell of each table, in records times weights."""
        return [
            math.prod(max(int(weights.max()), -int(weights.min())) for weights in of if weights is not None)
            for of in self._of_tables()
        ]

    def _sizes(self, schema: Schema) -> list[int]:
        columns = [schema.stored[axis.column] for axis in self.axes]
        return [axis.size(column.size, column.missing) for axis, column in zip(self.axes, columns, strict=True)]

    def shapes(self, schema: Schema) -> list[tuple[int, ...]]:
        """Return the shape of each table of the answer: the numbers of cells of its kept axes; () for a single sum."""
        sizes = self._sizes(schema)
        return [tuple(sizes[at] for at in table if self.weights[at] is None) for table in self.tables]

    def cells(self, schema: Schema) -> int:
        """Return the number of numbers in the answer."""
        return sum(map(math.prod, self.shapes(schema)))

    def extent(self, schema: Schema) -> Extent:
        """Return the extent of the tables: all of their columns, and the cells that come out."""
        cliques: list[set[int]] = [{self.axes[at].column for at in table} for table in self.tables]
        return Extent(len(set().union(*cliques)), max(map(len, cliques)), self.cells(schema))

    def row_range(self, schema: Schema) -> tuple[int, int]:
        """Return the largest bound of a table, and its negative if any weight is negative."""
        most = max(self._bounds())
        negative = any(weights is not None and weights.min() < 0 for weights in self.weights)
        return -most if negative else 0, most

    def answer(self, rows: Rows) -> Integers:
        """Count the tables, sum over the weighted axes, and return the results one after the other, in C order."""
        parts = []
        for counted, table, factor in zip(rows.tables(self.axes, self.tables), self.tables, self.factors, strict=True):
            parts.append(factor * summed(counted, [self.weights[at] for at in table]).ravel())
        return np.concatenate(parts)

    def split(self, schema: Schema, flat: NDArray[Any]) -> list[Floats]:
        """Return the tables in the answer ``flat``, each in its shape, in records times weights."""
        tables = as_tables(flat.astype(np.float64), self.shapes(schema))
        return [table / factor for table, factor in zip(tables, self.factors, strict=True)]

    def stds(self, std: float) -> list[float]:
        """Return the standard deviation of the noise in a number of each table, in records times weights."""
        return [std / factor for factor in self.factors]


def summed(table: Integers, weights: Sequence[Integers | None]) -> Integers:
    """Return a ``table`` summed over those of its axes that have ``weights``, each cell times its weight."""
    for at in reversed(range(len(weights))):
        along = weights[at]
        if along is not None:
            table = np.tensordot(table, along, axes=(at, 0))
    return np.asarray(table, dtype=np.int64)
