"""Discretisation: ranges cut into bins, values drawn from them, and the axes of contingency tables."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter, SchemaError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MOST_COLUMNS = 2**12
MOST_CELLS = 2**24
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

    def check(self, codes: int, admits_missing: bool, is_number: bool) -> None:
        """Raise :class:`InvalidParameter` unless every value of such a column falls into exactly one group."""
        if self.cuts is not None:
            if not is_number:
                raise InvalidParameter(f"column {self.column} holds no numbers to cut; use the schema's own bins")
            if self.cuts.ndim != 1 or not len(self.cuts) or not (np.diff(self.cuts) > 0).all():
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
    value lies at the lower end of a bin, as it does for :func:`grid`.
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


def grid(edges: NDArray[np.float64], per_unit: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the first and last multiple of ``1 / per_unit`` in each bin, as multiples; first > last where none is."""
    scaled = np.round(edges * per_unit, 6)  # 0.29 * 100 is not 29 to the last bit
    first, last = np.ceil(scaled[:-1]), np.ceil(scaled[1:]) - 1
    last[-1] = np.floor(scaled[-1])
    return first, last


def draw(
    edges: NDArray[np.float64], bins: NDArray[np.int64], rng: np.random.Generator, per_unit: int
) -> NDArray[np.float64]:
    """Return a value drawn uniformly from each bin; a multiple of ``1 / per_unit`` unless that is zero."""
    if not per_unit:
        low, high = edges[bins], edges[bins + 1]
        return low + (high - low) * rng.random(len(bins))
    first, last = grid(edges, per_unit)
    many = (last - first + 1)[bins]
    drawn: NDArray[np.float64] = (first[bins] + np.floor(rng.random(len(bins)) * many)) / per_unit
    return drawn


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
