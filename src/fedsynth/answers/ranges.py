"""The ranges of numbers to which sums are clipped, found by a first look at noisy counts, and axes of rounded values.

A sum's sensitivity grows with the range of its values, and generous public bounds would drown it in noise. The first
look counts each number that questions name once, in cells by magnitude. Its noisy counts say between which bounds
nearly all rows lie, where their middle is, and where their quantiles are about. All of this is a function of released
numbers, and part of the estimand: an answer names the bounds at which it clips.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedsynth.schema.bins import Axis, Floats, Grid, Integers
from fedsynth.schema.columns import Column, Datetime, Numeric

UNIT = 1024
"""Values are rounded to integers in units of 1 / UNIT of the largest distance from the centre."""
FINE = 2**18
"""The same for a sum of values alone: where the range is wide, most values may lie within 1 / UNIT of each other."""
_CELLS = 16  # of a first look, about, besides those by magnitude
_CLEAR = 2.5  # noise deviations above which a tail of the first look has rows
_POINTS = 64  # in a cell of the first look, between which its cumulated shares are straight
_STEP = 2.0**-30  # part of the range below which a cell is a single value
_FINEST = 256  # cells of a sum along a column; a range with fewer multiples has one for each


@dataclass(frozen=True, eq=False)
class Range:
    """Where nearly all values of a column lie: between ``low`` and ``high``, around a ``centre``, in its own unit.

    ``edges`` and ``cumulated`` are the cells of the first look and the estimated share of rows up to each edge, both of
    shape ``(cells + 1,)``; without a first look there are just the two ends.
    """

    low: float
    high: float
    centre: float
    edges: Floats
    cumulated: Floats

    @classmethod
    def of(cls, low: float, high: float) -> Range:
        """Return a range of which nothing but its ends is known."""
        return cls(low, high, (low + high) / 2, np.array([low, high]), np.array([0.0, 1.0]))

    def clipped(self, low: float, high: float) -> Range:
        """Return this range with declared ends in place of its own."""
        return replace(self, low=low, high=high, centre=float(np.clip(self.centre, low, high)))

    @property
    def scale(self) -> float:
        """The largest distance of a value from the centre."""
        return max(self.high - self.centre, self.centre - self.low) or 1.0

    def fine(self, cells: int) -> Floats:
        """Return the ends between so many cells of the range: half of them by width, and half by where the rows are."""
        points = np.unique(np.clip(np.concatenate([[self.low, self.high], self.edges]), self.low, self.high))
        by_width = (points - self.low) / (self.high - self.low or 1.0)
        rows = np.interp(points, self.edges, self.cumulated)
        by_rows = (rows - rows[0]) / (rows[-1] - rows[0]) if rows[-1] > rows[0] else by_width
        found: Floats = np.interp(np.arange(1, cells) / cells, (by_width + by_rows) / 2, points)
        return found

    def quantiles(self, shares: Sequence[float] | Floats) -> Floats:
        """Return about where these shares of the rows end, shape of ``shares``.

        The shares below the edges are interpolated by monotone cubics (Fritsch & Butland, 1984, doi 10.1137/0905021):
        straight lines would put many rows of a wide cell on the wrong side. A cell that holds a single real number is a
        step.
        """
        from scipy.interpolate import PchipInterpolator

        wide = np.diff(self.edges) > _STEP * (self.edges[-1] - self.edges[0])
        if not wide.any():
            return np.full(np.shape(shares), self.edges[-1])
        rows = np.diff(self.cumulated)
        smooth, steps = (np.append(0.0, np.cumsum(np.where(of, rows, 0.0))) for of in (wide, ~wide))
        ends = np.append(True, wide)
        many = np.arange(_POINTS * int(wide.sum()) + 1) / _POINTS
        points = np.union1d(np.interp(many, np.arange(ends.sum()), self.edges[ends]), self.edges)
        below = PchipInterpolator(self.edges[ends], smooth[ends])(points) + np.interp(points, self.edges, steps)
        found: Floats = np.interp(shares, below, points)
        return found


def look_grid(column: Numeric) -> Grid:
    """Return the cells of the first look at a column: about 16 of equal width, finer ones by magnitude near zero."""
    return Grid.coarse(column.bin_edges[[0, -1]], column.per_unit, _CELLS, _CELLS, 2.0)


def look_axis(column: Numeric, at: int) -> Axis:
    """Return the axis of the first look at a column, the one at the position ``at``."""
    return Axis(at, look_grid(column).cuts)


def found_range(column: Numeric, counts: Floats, std: float) -> Range:
    """Return the range of a column from the noisy counts of its first look, with noise of ``std`` in each.

    A tail belongs to the range if its rows stand out from their noise (2.5 deviations), and one cell more, since noise
    may hide a smaller tail. Where nothing stands out, all of the column does.
    """
    grid = look_grid(column)
    counts = counts[: len(grid)]
    noise = std * np.sqrt(np.arange(1, len(grid) + 1))
    above = np.flatnonzero(np.cumsum(counts[::-1]) > _CLEAR * noise)
    below = np.flatnonzero(np.cumsum(counts) > _CLEAR * noise)
    last = min(len(grid) - 1, len(grid) - int(above[0])) if len(above) else len(grid) - 1
    first = max(0, int(below[0]) - 1) if len(below) else 0
    if first > last:  # noise alone
        first, last = 0, len(grid) - 1
    kept = np.maximum(counts[first : last + 1], 0.0)
    kept = kept if kept.sum() > 0 else np.ones(last + 1 - first)
    shares = kept / kept.sum()
    half = 0.5 / column.per_unit if column.per_unit else 0.0
    low, high = float(grid.lower[first]) + half, float(grid.upper[last]) - half
    centre = float(np.clip(shares @ grid.centres[first : last + 1], low, high))
    edges = np.append(grid.lower[first : last + 1], grid.upper[last])
    return Range(low, high, centre, edges, np.append(0.0, np.cumsum(shares)))


def value_axis(column: Numeric, at: int, within: Range) -> tuple[Axis, Floats]:
    """Return an axis of fine cells over a range, and the value that stands for each cell; NaN for missing values.

    A value outside the range counts as its nearer end. If the range has at most 256 multiples of the column's unit,
    every value has a cell of its own; else a cell's middle stands for its values, and cells are narrow where the first
    look saw many rows.
    """
    first = np.floor(np.round(within.low * column.per_unit, 6))
    last = np.ceil(np.round(within.high * column.per_unit, 6))
    if column.per_unit and last - first < _FINEST:
        multiples = np.arange(first, last + 1) / column.per_unit
        values, cuts = np.clip(multiples, within.low, within.high), multiples + 0.5 / column.per_unit
    elif column.per_unit:
        inner = np.floor(np.round(within.fine(_FINEST) * column.per_unit, 6))
        ends = np.unique([first, *np.clip(inner, first, last - 1), last - 1, last]) + 0.5
        values = np.clip(np.append(first, (ends[:-1] + ends[1:]) / 2) / column.per_unit, within.low, within.high)
        cuts = ends / column.per_unit
    else:
        inner = within.fine(_FINEST)
        cuts = np.concatenate([[within.low], inner, [np.nextafter(within.high, -np.inf), within.high]])
        values = np.concatenate([[within.low], (cuts[:-2] + cuts[1:-1]) / 2, [within.high]])
    if len(cuts) > 1 and not (np.diff(cuts) > 0).all():  # a range of hardly more than one value
        cuts, values = np.array([within.high]), np.array([within.centre])
    return Axis(at, cuts + 0.0), np.append(values, [np.nan] * column.missing)


def quantile_axis(column: Numeric, at: int, within: Range, shares: Sequence[float]) -> tuple[Axis, Floats]:
    """Return an axis of cells that end at about these ``shares`` of the rows, and the cells' ends, ``(cells + 1,)``.

    The last cell holds all that lies above. Missing values have one more cell.
    """
    low, high = (float(end) for end in column.bin_edges[[0, -1]])
    ends = within.quantiles(np.asarray(shares))
    if column.per_unit:
        ends = (np.floor(np.round(ends * column.per_unit, 6)) + 0.5) / column.per_unit
        low, high = low - 0.5 / column.per_unit, high + 0.5 / column.per_unit
    ends = np.unique(ends[(ends > low) & (ends < high)])
    return Axis(at, np.append(ends, high) + 0.0), np.concatenate([[low], ends, [high]])


def scaled(values: Floats, within: Range, unit: int = UNIT) -> Integers:
    """Return values as integers, in units of ``scale / unit`` from the centre; 0 for NaN."""
    found: NDArray[np.float64] = np.rint(
        (np.nan_to_num(values, nan=within.centre) - within.centre) / within.scale * unit
    )
    return found.astype(np.int64)


# ---------------------------------------------------------------------------------------------------------------------
# Cells in words


def cell_ends(column: Numeric | Datetime, axis: Axis) -> Floats:
    """Return the ends between the fine cells of a number's axis, as cut points: values up to and including each."""
    if axis.cuts is not None:
        inner: Floats = axis.cuts[:-1]
        return inner
    edges = np.unique(column.bin_edges)[1:-1] if len(column.bin_edges) > 2 else column.bin_edges[:0]
    if len(np.unique(column.bin_edges)) < len(column.bin_edges):  # the last bin holds just the highest value
        edges = np.append(edges, column.bin_edges[-1])
    if size := column.per_unit:  # between the last multiple below an edge and the first from it on
        return np.asarray((np.ceil(np.round(edges * size, 6)) - 0.5) / size)
    return np.asarray(np.nextafter(edges, -np.inf))


def levels(column: Numeric | Datetime, ends: Floats) -> Floats:
    """Return what tells two ends of cells apart: of multiples of a unit, the last one up to each."""
    return np.asarray(np.floor(np.round(ends * column.per_unit, 6))) if column.per_unit else ends


def shown(column: Numeric | Datetime, numbers: Floats) -> list[str]:
    """Return numbers as conditions name them: in at most 12 digits, or as times."""
    if isinstance(column, Datetime):
        return [str(time) for time in column.series(numbers).astype(str)]
    return [f"{number:.12g}" for number in numbers]


def cell_labels(column: Column, axis: Axis) -> list[str]:
    """Return a label for each cell of an axis: values joined by |, or intervals; "no value" for an empty cell."""
    if isinstance(column, Numeric | Datetime):
        ends = levels(column, np.array([column.bin_edges[0], *cell_ends(column, axis), column.bin_edges[-1]]))
        low, high = ends[:-1], ends[1:]
        if size := column.per_unit:  # values are multiples: those above one end, up to the next
            low, high = np.append(low[0], low[1:] + 1) / size, high / size
        first = np.array(shown(column, low), dtype=object)
        last, several = first.copy(), low != high
        last[several] = shown(column, high[several])  # the others need not be written twice: there may be many
        texts = zip(low <= high, ~several, first, last, strict=True)
        fine = [f"{a}" if same else f"{a}..{b}" if some else "no value" for some, same, a, b in texts]
    else:
        fine = list(map(str, column.labels))
    fine += ["missing"] * column.missing
    if axis.groups is None:
        return fine
    groups = range(int(axis.groups.max()) + 1)
    return [" | ".join(fine[at] for at in np.flatnonzero(axis.groups == group)) for group in groups]
