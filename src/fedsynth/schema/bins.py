"""Discretisation: bins of numeric ranges, sampling of values within bins, and the axes of contingency tables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter, SchemaError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MOST_COLUMNS = 2**12
MOST_CELLS = 2**24
_NARROWEST = 2.0**-40  # cells of real numbers narrower than this share of the range are not split
_MOST_BINS = 10**6  # bins of a column: a larger number is taken for a mistake, and would exhaust the memory


class Axis(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, eq=False):
    """One axis of a contingency table: a column and a partition of its values.

    ``column`` is a position in :attr:`Schema.stored <fedsynth.schema.schema.Schema.stored>`. The fine cells are the
    parts of the partition before any of them are merged. Without ``cuts``, they are the schema's own codes. With
    ``cuts``, a numeric or datetime column has one fine cell for each cut point: the values above the previous cut
    point, up to and including this one (values above the last cut point belong to the last cell). If the column admits
    missing values, one more cell holds these. ``groups[i]`` is the group, numbered from 0, in which fine cell ``i`` is
    counted; without ``groups``, each fine cell is its own group.
    """

    column: Annotated[int, msgspec.Meta(ge=0, lt=MOST_COLUMNS)]
    cuts: Floats | None = None
    groups: Integers | None = None

    @property
    def merges(self) -> bool:
        """Whether any group has more than one fine cell."""
        return self.groups is not None and len(np.unique(self.groups)) < self.groups.size

    def cells(self, codes: int, admits_missing: bool) -> int:
        """Return the number of fine cells, for a column of so many ``codes`` that may have missing values or not."""
        return codes if self.cuts is None else len(self.cuts) + admits_missing

    def size(self, codes: int, admits_missing: bool) -> int:
        """Return the length of this axis in a table: its number of groups, or of fine cells if there are no groups."""
        return self.cells(codes, admits_missing) if self.groups is None else int(self.groups.max()) + 1

    def same(self, other: Axis) -> bool:
        """Return whether this axis and the ``other`` divide the same column into the same cells, in the same order."""
        pairs = ((self.cuts, other.cuts), (self.groups, other.groups))
        return self.column == other.column and all(
            a is b if a is None or b is None else np.array_equal(a, b) for a, b in pairs
        )

    def check(self, codes: int, admits_missing: bool, is_number: bool) -> None:
        """Raise :class:`InvalidParameter` unless each value of the column falls into one group, from 0 to 2^24 - 1.

        Only a column that ``is_number`` (numeric or datetime) may be divided by cut points.
        """
        if self.cuts is not None:
            if not is_number:
                raise InvalidParameter(f"column {self.column} has no numbers to apply cut points to; leave out cuts")
            if self.cuts.ndim != 1 or not len(self.cuts) or not (self.cuts[1:] > self.cuts[:-1]).all():
                raise InvalidParameter(f"cut points of column {self.column} must be a strictly increasing list")
        if self.groups is not None:
            cells = self.cells(codes, admits_missing)
            if self.groups.shape != (cells,):
                raise InvalidParameter(
                    f"column {self.column} has {cells} cells but {self.groups.size} groups; give one group per cell"
                )
            if not (self.groups.min() >= 0 and self.groups.max() < MOST_CELLS):
                raise InvalidParameter(f"groups of column {self.column} must be integers from 0 to {MOST_CELLS - 1}")

    def places(self, codes: NDArray[np.generic], numbers: Floats | None) -> Integers:
        """Return the position of each row on this axis (group, or fine cell without groups): int64, shape ``(rows,)``.

        ``codes`` are those of the rows, shape ``(rows,)``. If the axis has cut points, ``numbers`` are used instead:
        the values as float64 (NaN: missing), in the units of the cut points.
        """
        if self.cuts is None:
            found = codes.astype(np.int64)
        else:
            assert numbers is not None
            fine = np.minimum(np.searchsorted(self.cuts, numbers), len(self.cuts) - 1)
            found = np.where(np.isnan(numbers), len(self.cuts), fine)
        return found if self.groups is None else self.groups[found]


def equal_bins(low: float, high: float, bins: int, *, whole: bool, per_unit: int) -> NDArray[np.float64]:
    """Return the edges, in ascending order, of ``bins`` bins of equal width from ``low`` to ``high``.

    The shape is ``(bins + 1,)``, with two exceptions. Equal bounds give one bin of width zero. If values are ``whole``
    numbers and at most ``bins`` of them, each gets a bin of its own, and the last edge, ``high``, occurs twice. Values
    are multiples of ``1 / per_unit``, or arbitrary real numbers if ``per_unit`` is 0. An edge that differs from such a
    multiple only by rounding (25.000000000000004) is set to it, so that this value is the lower end of a bin.
    """
    if low == high:
        return np.array([low, high], dtype=np.float64)
    if whole and high - low < bins:
        return np.append(np.arange(low, high + 1, dtype=np.float64), high)  # one bin per value; the last has no width
    edges = np.linspace(low, high, bins + 1)
    if not per_unit:
        return edges
    multiples = np.rint(edges * per_unit)
    return np.where(np.isclose(edges * per_unit, multiples, rtol=1e-15, atol=1e-9), multiples / per_unit, edges)


def check_bins(name: str, low: float, high: float, edges: Sequence[float] | None, bins: int) -> None:
    """Raise :class:`SchemaError` for an invalid range, number of bins or list of edges of the column ``name``.

    ``edges`` must run from ``low`` to ``high`` and increase (equal bounds: be just these two); ``None`` stands for
    ``bins`` bins of equal width. ``bins`` must always be from 1 to 1,000,000, even if edges are given, which do not
    depend on it.
    """
    if low > high:
        raise SchemaError(f"column {name!r} has low = {low} above high = {high}; swap them")
    if not 1 <= bins <= _MOST_BINS:
        raise SchemaError(f"column {name!r} has bins = {bins}; give at least 1, and at most {_MOST_BINS}")
    if edges is None:
        return
    if len(edges) < 2 or edges[0] != low or edges[-1] != high:
        raise SchemaError(f"column {name!r}: edges must run from low = {low} to high = {high}")
    if (low < high or len(edges) > 2) and not all(a < b for a, b in itertools.pairwise(edges)):
        raise SchemaError(f"column {name!r}: edges must increase")


def _steps(edges: Floats, bins: int) -> tuple[float, float, Floats]:
    """Return both ends of ``edges``, and inner cut points for about ``bins`` cells, aligned with the given edges."""
    own = len(edges) - 1
    if own > bins:
        edges = edges[np.linspace(0, own, bins + 1).round().astype(int)]
    parts = max(1, bins // own)
    cuts: Floats = (edges[:-1, None] + np.diff(edges)[:, None] * np.arange(parts) / parts).ravel()[1:]
    return float(edges[0]), float(edges[-1]), cuts


def _magnitudes(low: float, high: float, cuts: Floats, factor: float, least: float) -> Floats:
    """Return cut points at distances from the number nearest to zero that fall by ``factor``, from ``cuts`` on.

    On either side of this number, the largest distance is that of the nearest of ``cuts`` (or the bound) divided by
    ``factor``, and no distance is below ``least`` (or the least normal number).
    """
    nearest, ends, found = min(max(0.0, low), high), np.concatenate([[low], cuts, [high]]), []
    for way, side in ((1, ends[ends > nearest]), (-1, ends[ends < nearest])):
        distance = float(np.abs(side - nearest).min(initial=np.inf)) / factor
        while max(least, np.finfo(np.float64).tiny) <= distance < np.inf:
            found.append(nearest + way * distance)
            distance /= factor
    return np.array(found)


def _multiples(low: float, high: float, per_unit: int) -> tuple[float, float]:
    """Return the least and the greatest multiple of ``1 / per_unit`` from ``low`` to ``high``, both included."""
    first, last = np.round(low * per_unit, 6), np.round(high * per_unit, 6)
    low = low if np.ceil(first) == first else float(np.ceil(first) / per_unit)
    return low, high if np.floor(last) == last else float(np.floor(last) / per_unit)


@dataclass(frozen=True, eq=False)
class Grid:
    """The range of a numeric or datetime column, divided into cells (intervals) without a look at any row.

    Cells ascend: cell i holds the values from ``lower[i]`` to ``upper[i]`` (both arrays float64, shape ``(cells,)``). A
    cell of width zero is an atom: it holds a single value. If ``per_unit`` is positive, all values are multiples of ``1
    / per_unit``; 0 stands for arbitrary real numbers. Times are counted in the column's unit, such as seconds, from
    1970 (UTC).
    """

    lower: Floats
    upper: Floats
    per_unit: int

    @classmethod
    def of_bins(cls, edges: Floats, per_unit: int) -> Grid:
        """Return a column's bins as cells, one for each pair of neighbouring ``edges`` (ascending).

        With multiples, a cell starts ``0.5 / per_unit`` below the first multiple in its bin; the cell of a bin without
        any multiple gets a width of zero or less. A last bin of width zero holds only the highest value.
        """
        if not per_unit:
            return cls(edges[:-1], edges[1:], 0)
        scaled = np.round(edges * per_unit, 6)  # 0.29 * 100 differs from 29 in floating point
        ends = np.append(np.ceil(scaled[:-1]) - 0.5, np.floor(scaled[-1]) + 0.5) / per_unit
        return cls(ends[:-1], ends[1:], per_unit)

    @classmethod
    def fine(cls, edges: Floats, per_unit: int, bins: int) -> Grid:
        """Return about ``bins`` cells between the first and the last of ``edges``, the public edges of a column's bins.

        Each bin is divided into equal cells, or neighbouring bins are merged if there are more than ``bins`` of them.
        Values often accumulate at a lower bound (no loss, no visit, no gain). The first cell is therefore halved
        repeatedly, ``2 log2(bins)`` times. If all numbers are admitted, both bounds are atoms. With multiples, the
        lower bound is one unless the last of these halves still holds several multiples.
        """
        low, high, cuts = _steps(edges, bins)
        first = (cuts[0] if len(cuts) else high) - low
        halves = low + first * 0.5 ** np.arange(2 * max(1, round(math.log2(bins))), 0, -1.0)
        if per_unit:
            # Cuts are moved halfway between two values, below the first value above the cut: no value lies on a cut.
            cuts = (np.ceil(np.round(np.concatenate([halves, cuts]) * per_unit, 6)) - 0.5) / per_unit
            low, high = _multiples(low, high, per_unit)
            low, high = low - 0.5 / per_unit, high + 0.5 / per_unit
            upper = np.unique(np.append(cuts[(cuts > low) & (cuts < high)], high))
            return cls(np.append(low, upper[:-1]), upper, per_unit)
        upper = np.unique(np.concatenate([[low], halves, cuts, [np.nextafter(high, low), high]]))
        lower = np.append(low, upper[:-1])
        lower[-1] = high
        return cls(lower, upper, 0)

    @classmethod
    def coarse(cls, edges: Floats, per_unit: int, bins: int, single: int, factor: float = 0.0) -> Grid:
        """Return about ``bins`` cells of similar width between the ends of ``edges``, as :meth:`fine` does.

        Bins are merged only if there are more than ``single`` of them. If the range has at most ``single`` multiples of
        ``1 / per_unit``, each is a cell. Both bounds, and zero if it lies between them, are cells of their own. A cell
        includes its lower end, as a bin does: real numbers accumulate at round numbers, which are often cell ends.

        With a ``factor`` above 1, the cell next to zero, on either side, is cut further at distances from zero that
        fall by this factor, down to one multiple of ``1 / per_unit`` or 2^-40 of the range: cells by magnitude. A bound
        that is a thousand times the largest value then costs ten cells, not a thousandth of the resolution. If zero
        lies outside the range, the bound nearest to it takes its place.
        """
        low, high, cuts = _steps(edges, max(bins, len(edges) - 1) if len(edges) - 1 <= single else bins)
        if per_unit:
            low, high = _multiples(low, high, per_unit)
        if factor:
            least = 1 / per_unit if per_unit else _NARROWEST * (high - low)
            cuts = np.append(cuts, _magnitudes(low, high, cuts, factor, least))
        points = np.array([low, 0.0, high] if low < 0 < high else [low, high])
        if per_unit:
            half = 0.5 / per_unit
            many = round((high - low) * per_unit) + 1
            if many <= single:
                cuts = low + np.arange(1, many) / per_unit
            cuts = (np.ceil(np.round(cuts * per_unit, 6)) - 0.5) / per_unit
            cuts = np.concatenate([cuts, points - half, points + half])
            low, high = low - half, high + half
            upper = np.unique(np.append(cuts[(cuts > low) & (cuts < high)], high))
            return cls(np.append(low, upper[:-1]), upper, per_unit)
        lower = np.unique(np.concatenate([points, np.nextafter(points[:-1], np.inf), cuts]))
        lower = lower[lower <= high]  # if both bounds are equal, drop the point above them
        return cls(lower, np.append(np.nextafter(lower[1:], -np.inf), high), 0)

    def finer(self, cells: int, most: int) -> Grid:
        """Return the grid with each cell split into 2 to ``most`` cells of similar width, about ``cells`` in total.

        Cells with a single value are not split, nor are cells of real numbers that are narrower than 2^-40 of the
        range. If no cell can be split, the grid itself is returned.
        """
        width = self.upper - self.lower
        least = 1.5 / self.per_unit if self.per_unit else _NARROWEST * (self.upper[-1] - self.lower[0])
        wide = np.flatnonzero(width > least)
        if not len(wide):
            return self
        parts = int(np.clip(cells // len(wide), 2, most))
        steps = np.arange(1, parts) / parts
        if self.per_unit:
            cuts = np.rint((width[wide] * self.per_unit)[:, None] * steps) / self.per_unit
        else:
            cuts = width[wide][:, None] * steps
        cuts = (self.lower[wide][:, None] + cuts)[(cuts > 0) & (cuts < width[wide][:, None])]
        lower = np.unique(np.concatenate([self.lower, cuts]))
        upper = lower[1:] if self.per_unit else np.nextafter(lower[1:], -np.inf)
        return Grid(lower, np.append(upper, self.upper[-1]), self.per_unit)

    def to_values(self, most: int) -> Grid:
        """Return the grid with its cells split into the single multiples of ``1 / per_unit`` (positive) they hold.

        If there are more than ``most`` multiples, only the cells nearest to zero, or to the bound nearest to it, are
        split: as many as hold ``most`` together.
        """
        distance = np.abs(self.centres - self.centres[self.nearest_to_zero])
        values = np.rint((self.upper - self.lower) * self.per_unit)
        order = np.argsort(distance, kind="stable")
        split = np.sort(order[np.cumsum(values[order]) <= most])
        many = values[split].astype(np.int64)
        place = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
        lower = np.unique(np.append(self.lower, np.repeat(self.lower[split], many) + place / self.per_unit))
        return Grid(lower, np.append(lower[1:], self.upper[-1]), self.per_unit)

    def __len__(self) -> int:
        return len(self.upper)

    @property
    def cuts(self) -> Floats:
        """The cells as cut points of an :class:`Axis`: their upper ends, ascending, with 0.0 in place of -0.0."""
        return self.upper + 0.0

    @property
    def centres(self) -> Floats:
        """Middle of each cell, float64, shape ``(cells,)``."""
        return (self.lower + self.upper) / 2

    @property
    def single(self) -> NDArray[np.bool_]:
        """Whether each cell holds only one value, shape ``(cells,)``."""
        single: NDArray[np.bool_] = self.upper - self.lower < (
            1.5 / self.per_unit if self.per_unit else np.finfo(float).tiny
        )
        return single

    @property
    def points(self) -> NDArray[np.bool_]:
        """Whether each cell is a bound's or zero's, which have cells of their own, shape ``(cells,)``.

        All are False if every cell holds a single value anyway.
        """
        found = self.single & ((self.lower <= 0) & (self.upper >= 0))
        found[[0, -1]] = self.single[[0, -1]]
        return found & ~self.single.all()

    @property
    def nearest_to_zero(self) -> int:
        """The cell of zero or, if zero lies outside the range, of the bound nearest to it."""
        half = 0.5 / self.per_unit if self.per_unit else 0.0
        nearest = min(max(0.0, self.lower[0] + half), self.upper[-1] - half)
        return int(np.searchsorted(self.upper, nearest))

    def values(self, cells: Integers, share: Floats) -> Floats:
        """Return one value from each of the numbered ``cells``, at the fraction ``share`` (0 to 1) of its width.

        Values (float64) are rounded to those that the column admits. Cell numbers past the last cell, which stand for
        missing values, give NaN.
        """
        held = np.minimum(cells, len(self) - 1)
        drawn = self.lower[held] + share * (self.upper[held] - self.lower[held])
        return np.where(cells < len(self), self.admitted(drawn), np.nan)

    def overlap(self, low: float, high: float) -> tuple[Floats, Floats]:
        """Return the part of each cell that lies within [``low``, ``high``], as arrays of its begin and its end.

        Both are fractions of the cell's width (0 to 1), shape ``(cells,)``, and equal for a cell outside the interval.
        """
        half = 0.5 / self.per_unit if self.per_unit else 0.0
        width = self.upper - self.lower
        safe = np.where(width > 0, width, 1.0)
        begin, end = (np.clip((bound - self.lower) / safe, 0, 1) for bound in (low - half, high + half))
        inside = (low <= self.lower) & (self.lower <= high)
        return np.where(width > 0, begin, 0.0), np.where(width > 0, end, inside.astype(np.float64))

    def admitted(self, numbers: Floats) -> Floats:
        """Return, for each of ``numbers``, the nearest value that the column admits."""
        if not self.per_unit:
            return np.clip(numbers, self.lower[0], self.upper[-1])
        half = 0.5 / self.per_unit
        inside = np.clip(numbers, self.lower[0] + half, self.upper[-1] - half)
        whole: Floats = np.rint(inside * self.per_unit) / self.per_unit + 0.0  # no -0.0
        return whole

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the cells as arrays by name, for model files."""
        return {"lower": self.lower, "upper": self.upper, "per_unit": np.array(self.per_unit)}
