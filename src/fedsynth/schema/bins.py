"""Discretisation: ranges cut into bins, values drawn from them, and the axes of contingency tables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
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
_NARROWEST = 2.0**-40  # share of the range below which a cell of real numbers is not cut
_MOST_BINS = 10**6  # bins of a column: more are a slip of the pen, and fill the memory


class Axis(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, eq=False):
    """One axis of a contingency table: where the rows' values of ``column`` (a position in the schema) fall.

    Without ``cuts`` the fine cells are the schema's own codes. With them, a numeric or datetime column has one cell for
    each cut point, which holds the values above the cut point before it up to and including its own (values beyond the
    last belong to the last), and one more for missing values if the column admits them. ``groups[i]`` is the group that
    fine cell ``i`` is counted in, from 0; without groups each cell is one of its own.
    """

    column: Annotated[int, msgspec.Meta(ge=0, lt=MOST_COLUMNS)]
    cuts: Floats | None = None
    groups: Integers | None = None

    def cells(self, codes: int, admits_missing: bool) -> int:
        """Return the number of fine cells, for a column of ``codes`` codes."""
        return codes if self.cuts is None else len(self.cuts) + admits_missing

    def size(self, codes: int, admits_missing: bool) -> int:
        """Return the number of cells of the table along this axis."""
        return self.cells(codes, admits_missing) if self.groups is None else int(self.groups.max()) + 1

    def same(self, other: Axis) -> bool:
        """Say whether both have the same cells of the same column."""
        pairs = ((self.cuts, other.cuts), (self.groups, other.groups))
        return self.column == other.column and all(
            one is two if one is None or two is None else np.array_equal(one, two) for one, two in pairs
        )

    def check(self, codes: int, admits_missing: bool, is_number: bool) -> None:
        """Raise :class:`InvalidParameter` unless every value of such a column falls into exactly one group."""
        if self.cuts is not None:
            if not is_number:
                raise InvalidParameter(f"column {self.column} holds no numbers to cut; use the schema's own bins")
            if self.cuts.ndim != 1 or not len(self.cuts) or not (self.cuts[1:] > self.cuts[:-1]).all():
                raise InvalidParameter(f"cut points of column {self.column} must be a list that increases")
        if self.groups is not None:
            cells = self.cells(codes, admits_missing)
            if self.groups.shape != (cells,):
                raise InvalidParameter(
                    f"column {self.column} has {cells} cells, and {self.groups.size} groups are given; name one each"
                )
            if not (self.groups.min() >= 0 and self.groups.max() < MOST_CELLS):
                raise InvalidParameter(f"groups of column {self.column} count from 0")

    def places(self, codes: NDArray[np.generic], numbers: Floats | None) -> Integers:
        """Return each row's cell along this axis, from its codes and, where there are cut points, its numbers."""
        if self.cuts is None:
            found = codes.astype(np.int64)
        else:
            assert numbers is not None
            fine = np.minimum(np.searchsorted(self.cuts, numbers), len(self.cuts) - 1)
            found = np.where(np.isnan(numbers), len(self.cuts), fine)
        return found if self.groups is None else self.groups[found]


def equal_bins(low: float, high: float, bins: int, *, whole: bool, per_unit: int) -> NDArray[np.float64]:
    """Return the edges of ``bins`` bins of one width; of whole numbers no more bins than values.

    An edge that is a multiple of ``1 / per_unit`` but for rounding (25.000000000000004) becomes that multiple: such a
    value lies at the lower end of a bin.
    """
    if low == high:
        return np.array([low, high], dtype=np.float64)
    if whole and high - low < bins:
        return np.append(np.arange(low, high + 1, dtype=np.float64), high)  # a bin a value; the last has no width
    edges = np.linspace(low, high, bins + 1)
    if not per_unit:
        return edges
    multiples = np.rint(edges * per_unit)
    return np.where(np.isclose(edges * per_unit, multiples, rtol=1e-15, atol=1e-9), multiples / per_unit, edges)


def bin_of(edges: Floats, numbers: Floats) -> Integers:
    """Return the bin of each number within the ``edges``, which begin bins; the last edge belongs to the last bin."""
    return np.clip(np.searchsorted(edges, numbers, side="right") - 1, 0, len(edges) - 2)


def check_bins(name: str, low: float, high: float, edges: Sequence[float] | None, bins: int) -> None:
    """Raise :class:`SchemaError` for a range, a number of bins or edges that cannot be."""
    if low > high:
        raise SchemaError(f"column {name!r} has low = {low} above high = {high}; swap them")
    if not 1 <= bins <= _MOST_BINS:
        raise SchemaError(f"column {name!r} has bins = {bins}; give at least 1, and at most {_MOST_BINS}")
    if edges is None:
        return
    if len(edges) < 2 or edges[0] != low or edges[-1] != high:
        raise SchemaError(f"column {name!r}: edges must run from low = {low} to high = {high}")
    if low < high and any(b <= a for a, b in itertools.pairwise(edges)):
        raise SchemaError(f"column {name!r}: edges must increase")


def _steps(edges: Floats, bins: int) -> tuple[float, float, Floats]:
    """Return both ends of ``edges``, and inner points that cut them into about ``bins`` cells, in steps of theirs."""
    own = len(edges) - 1
    if own > bins:
        edges = edges[np.linspace(0, own, bins + 1).round().astype(int)]
    parts = max(1, bins // own)
    cuts: Floats = (edges[:-1, None] + np.diff(edges)[:, None] * np.arange(parts) / parts).ravel()[1:]
    return float(edges[0]), float(edges[-1]), cuts


@dataclass(frozen=True, eq=False)
class Grid:
    """Public cells of numbers or times: cell i holds the values from ``lower[i]`` up to ``upper[i]``.

    A cell without width is an atom. ``per_unit`` says of which fraction of a unit values are multiples; 0 for all.
    """

    lower: Floats
    upper: Floats
    per_unit: int

    @classmethod
    def of_bins(cls, edges: Floats, per_unit: int) -> Grid:
        """Return the bins between ``edges`` as cells; of multiples, each reaches from halfway below its first one.

        A bin without a multiple has no width, or less. A last bin without width holds the highest value alone.
        """
        if not per_unit:
            return cls(edges[:-1], edges[1:], 0)
        scaled = np.round(edges * per_unit, 6)  # 0.29 * 100 is not 29 to the last bit
        ends = np.append(np.ceil(scaled[:-1]) - 0.5, np.floor(scaled[-1]) + 0.5) / per_unit
        return cls(ends[:-1], ends[1:], per_unit)

    @classmethod
    def fine(cls, edges: Floats, per_unit: int, bins: int) -> Grid:
        """Return about ``bins`` cells between public bounds, in steps of the bins between ``edges``.

        Values like to pile up at a lower bound (no loss, no visit, no gain): the first bin is cut further, in half,
        and in half again, and both bounds are atoms of their own.
        """
        low, high, cuts = _steps(edges, bins)
        first = (cuts[0] if len(cuts) else high) - low
        halves = low + first * 0.5 ** np.arange(2 * max(1, round(math.log2(bins))), 0, -1.0)
        if per_unit:
            # Halfway between values, below the first that a cut leaves above it: no value is ever on a cut.
            cuts = (np.ceil(np.round(np.concatenate([halves, cuts]) * per_unit, 6)) - 0.5) / per_unit
            low, high = low - 0.5 / per_unit, high + 0.5 / per_unit
            upper = np.unique(np.append(cuts[(cuts > low) & (cuts < high)], high))
            return cls(np.append(low, upper[:-1]), upper, per_unit)
        upper = np.unique(np.concatenate([[low], halves, cuts, [np.nextafter(high, low), high]]))
        lower = np.append(low, upper[:-1])
        lower[-1] = high
        return cls(lower, upper, 0)

    @classmethod
    def coarse(cls, edges: Floats, per_unit: int, bins: int, single: int) -> Grid:
        """Return about ``bins`` cells of like width between public bounds, in steps of the bins between ``edges``.

        Both bounds, and zero between them, are cells of their own. Like a bin, a cell begins with its lower end: real
        numbers pile up at round ones, which are ends more often than others are. All edges are kept where there are at
        most ``single``. Where there are at most ``single`` multiples of ``1 / per_unit``, each is a cell.
        """
        low, high, cuts = _steps(edges, max(bins, len(edges) - 1) if len(edges) - 1 <= single else bins)
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
        lower = lower[lower <= high]  # where both bounds are one number, none lies above it
        return cls(lower, np.append(np.nextafter(lower[1:], -np.inf), high), 0)

    def finer(self, cells: int, most: int) -> Grid:
        """Return the grid with each cell cut into 2 to ``most`` cells of like width, about ``cells`` together at most.

        Single values stay whole, and so do cells of real numbers that are tiny beside the range.
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

    def __len__(self) -> int:
        return len(self.upper)

    @property
    def cuts(self) -> Floats:
        """The cells as cut points of an :class:`Axis`: their upper ends, zero without a sign."""
        return self.upper + 0.0

    @property
    def centres(self) -> Floats:
        """Middle of each cell."""
        return (self.lower + self.upper) / 2

    def values(self, cells: Integers, share: Floats) -> Floats:
        """Return the number at ``share`` (0 to 1) of each cell; NaN past the last cell."""
        held = np.minimum(cells, len(self) - 1)
        drawn = self.lower[held] + share * (self.upper[held] - self.lower[held])
        return np.where(cells < len(self), self.admitted(drawn), np.nan)

    def overlap(self, low: float, high: float) -> tuple[Floats, Floats]:
        """Return where in each cell (0 to 1) the numbers from ``low`` to ``high`` begin and end; equal without any."""
        half = 0.5 / self.per_unit if self.per_unit else 0.0
        width = self.upper - self.lower
        safe = np.where(width > 0, width, 1.0)
        begin, end = (np.clip((one - self.lower) / safe, 0, 1) for one in (low - half, high + half))
        inside = (low <= self.lower) & (self.lower <= high)
        return np.where(width > 0, begin, 0.0), np.where(width > 0, end, inside.astype(np.float64))

    def admitted(self, numbers: Floats) -> Floats:
        """Return the nearest values that the column admits."""
        if not self.per_unit:
            return np.clip(numbers, self.lower[0], self.upper[-1])
        half = 0.5 / self.per_unit
        inside = np.clip(numbers, self.lower[0] + half, self.upper[-1] - half)
        whole: Floats = np.rint(inside * self.per_unit) / self.per_unit
        return whole

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the cells as arrays; the inverse of :meth:`from_arrays`."""
        return {"lower": self.lower, "upper": self.upper, "per_unit": np.array(self.per_unit)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Grid | None:
        """Return the cells among ``arrays``; ``None`` where they hold none: the column is a category."""
        return cls(arrays["lower"], arrays["upper"], int(arrays["per_unit"])) if "upper" in arrays else None
