"""The queries of two kinds of declared questions: how sites differ, and how well a scorer ranks real rows."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter
from fedsynth.federation.query import Query, check_tables
from fedsynth.privacy.cost import Sensitivity
from fedsynth.rows import Rows, Table
from fedsynth.schema import Schema
from fedsynth.schema.bins import MOST_COLUMNS, Axis, Floats, Integers

GRID = 2**16
"""Shares are given to a site in units of 1 / GRID."""
_LARGEST_POINTS = 2**20
_MOST_CUTS = 2**10

Axes = Annotated[tuple[Axis, ...], msgspec.Meta(min_length=1, max_length=MOST_COLUMNS)]


class SiteDistances(Query, frozen=True):
    """How far each site's columns are from given shares: for each axis, the L1 distance times the site's rows.

    With n_c rows in cell c of the axis, n rows in all and shares q_c in units of 1 / GRID, a site's number is the sum
    over c of ``|GRID n_c - q_c n|``; numbers of sites are added up.
    """

    kind: ClassVar[str] = "site-distances"
    unit: ClassVar[float] = float(GRID)

    axes: Axes
    shares: Annotated[tuple[Integers, ...], msgspec.Meta(min_length=1, max_length=MOST_COLUMNS)]

    def check(self, schema: Schema) -> None:
        """Raise :class:`InvalidParameter` unless each axis has shares for all of its cells, of one whole together."""
        check_tables(schema, self.axes, [(at,) for at in range(len(self.axes))], ())
        if len(self.shares) != len(self.axes):
            raise InvalidParameter(f"{len(self.shares)} lists of shares for {len(self.axes)} axes; give one each")
        for axis, shares in zip(self.axes, self.shares, strict=True):
            column = schema.stored[axis.column]
            fits = shares.shape == (axis.size(column.size, column.missing),)
            if not fits or shares.min() < 0 or shares.max() > GRID or shares.sum() != GRID:
                raise InvalidParameter(f"the shares of column {axis.column} must be one for each cell, {GRID} in all")

    def sensitivity(self, schema: Schema) -> Sensitivity:
        """Return the bound: 2 GRID for each axis.

        The number is no sum over records, but a function of a site's counts. A record added to cell a moves ``GRID n_a
        - q_a n`` by GRID - q_a, and that of any other cell c by -q_c. By the triangle inequality their absolute values,
        added up, move by at most GRID - q_a + (GRID - q_a) <= 2 GRID, since the shares add up to GRID. Replacing a
        record is a removal and an addition.
        """
        many = len(self.axes)
        return Sensitivity(2.0 * GRID * many, 2.0 * GRID * math.sqrt(many))

    def cells(self, schema: Schema) -> int:
        """Return the number of axes."""
        return len(self.axes)

    def row_range(self, schema: Schema) -> tuple[int, int]:
        """Return 0 and 2 GRID: no site's distance exceeds 2 a row."""
        return 0, 2 * GRID

    def answer(self, rows: Rows) -> Integers:
        """Return the site's number for each axis."""
        tables = rows.tables(self.axes, [(at,) for at in range(len(self.axes))])
        found = [np.abs(GRID * of - shares * of.sum()).sum() for of, shares in zip(tables, self.shares, strict=True)]
        return np.array(found, dtype=np.int64)

    def split(self, schema: Schema, flat: NDArray[Any]) -> list[Floats]:
        """Return the distances times rows, in records, shape ``(axes,)``."""
        return [flat / GRID]

    def stds(self, std: float) -> list[float]:
        """Return the noise's standard deviation in a distance times rows, in records."""
        return [std / GRID]


class ScoreHistogram(Query, frozen=True):
    """The rows of each label by a score, a sum of whole points: shape ``(cuts + 1, labels)``, in records.

    A row's score is the sum, over ``axes``, of the points of its cell; it is counted above as many of ``cuts``
    (ascending) as it exceeds, and under its group on the axis ``label``.
    """

    kind: ClassVar[str] = "score-histogram"
    needs_rows: ClassVar[bool] = True

    axes: Axes
    points: Annotated[tuple[Integers, ...], msgspec.Meta(min_length=1, max_length=MOST_COLUMNS)]
    cuts: Integers
    label: Axis

    def check(self, schema: Schema) -> None:
        """Raise :class:`InvalidParameter` unless every row has a score and a label."""
        axes = (*self.axes, self.label)
        check_tables(schema, axes, [(at,) for at in range(len(axes))], ())
        if len(self.points) != len(self.axes):
            raise InvalidParameter(f"{len(self.points)} lists of points for {len(self.axes)} axes; give one each")
        for axis, points in zip(self.axes, self.points, strict=True):
            column = schema.stored[axis.column]
            fits = points.shape == (axis.size(column.size, column.missing),)
            if not fits or points.min() < -_LARGEST_POINTS or points.max() > _LARGEST_POINTS:
                raise InvalidParameter(f"the points of column {axis.column} must be one for each cell, at most 2^20")
        if self.cuts.ndim != 1 or not 1 <= len(self.cuts) <= _MOST_CUTS or not (self.cuts[1:] > self.cuts[:-1]).all():
            raise InvalidParameter(f"cuts must be 1 to {_MOST_CUTS} ascending whole numbers")

    def sensitivity(self, schema: Schema) -> Sensitivity:
        """Return the bound: a record is in one cell, and replacing it moves two cells by 1 each."""
        return Sensitivity(1, 1, 2, math.sqrt(2))

    def _labels(self, schema: Schema) -> int:
        column = schema.stored[self.label.column]
        return self.label.size(column.size, column.missing)

    def cells(self, schema: Schema) -> int:
        """Return the number of cells."""
        return (len(self.cuts) + 1) * self._labels(schema)

    def answer(self, rows: Table) -> Integers:
        """Count the rows, cell by cell in C order."""
        score = np.zeros(len(rows), dtype=np.int64)
        for axis, points in zip(self.axes, self.points, strict=True):
            score += points[axis.places(rows.codes[axis.column], rows.numbers.get(axis.column))]
        label = self.label.places(rows.codes[self.label.column], rows.numbers.get(self.label.column))
        labels = self._labels(rows.schema)
        cell = np.searchsorted(self.cuts, score) * labels + label
        return np.bincount(cell, minlength=(len(self.cuts) + 1) * labels).astype(np.int64)

    def split(self, schema: Schema, flat: NDArray[Any]) -> list[Floats]:
        """Return the histogram, shape ``(cuts + 1, labels)``, in records."""
        return [flat.astype(np.float64).reshape(-1, self._labels(schema))]
