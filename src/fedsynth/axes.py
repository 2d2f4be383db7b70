"""Axes of contingency tables: a column of the schema, by its own bins or by public cut points and groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MOST_COLUMNS = 2**12
MOST_CELLS = 2**24


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


def as_tables(flat: Floats, shapes: Sequence[tuple[int, ...]]) -> list[Floats]:
    """Return the tables of these ``shapes`` that a flat vector holds one after the other, each in C order."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), shapes, strict=True)]
