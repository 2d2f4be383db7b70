"""Data-adaptive binning: fine cells that follow a column's values, and groups of cells whose dependence is measured.

Bins of equal width describe a number badly if nine rows of ten are zero, or if it has few distinct values: this alone
explains the propensity MSE of 0.249 on Adult in the FedBN thesis (at 0.25, a tree tells every synthetic row from the
real ones). Here a number starts with cells that depend only on its public bounds and bins. Released counts of these
cells, never rows, decide which cells to split further and which to merge into groups. Within a group, rows are drawn in
proportion to the counts of its fine cells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter
from fedsynth.models.atoms import Atoms
from fedsynth.models.conditions import Between, Condition, Is
from fedsynth.models.estimate import inverse_variance_mean
from fedsynth.models.evidence import CodeEvidence, PlacedEvidence
from fedsynth.models.gum import simplex
from fedsynth.models.piecewise import piecewise_mean
from fedsynth.models.saved import DrawnColumn, check_cells, read_floats, read_grid, read_integers
from fedsynth.models.stratified import stratified_uniforms
from fedsynth.schema.bins import Axis, Grid
from fedsynth.schema.columns import Column

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
START = 32  # cells of a number's range before anything is known about the rows, unless the schema has 33 to 128 bins
FACTOR = 3.0  # ratio of the widths of neighbouring cells next to zero
SINGLE = 128  # if a number has at most this many values, each is a cell from the start
PARTS = 32  # largest number of parts of a heavy cell
LEVELS = 3  # levels of ever finer cells: about 32, 32^2 and 32^3
_EVEN, _EVEN_WITHIN = 1.2, 4.0  # penalty for a difference between neighbours, times the log of the number of cells
_GAP = 2.0  # the same penalty when deciding which cells are empty; small, so that few scattered rows are kept
_TYPICAL = 0.25  # typical count of a non-empty cell, as a share of the mean of at most 32: most rows are in few cells
_TAILS, _HEIGHTS = 64, 8  # tails are 1 to 1/64 of their distance from the median long, and have as many heights
_STEEPEST = 2.0  # change of a density's logarithm within half a cell, at most, that neighbours suggest
_LEAST = 1e-6  # rows; emptier cells are never split
_EXACT = 1e-12  # replaces the variance 0 of exact counts, by which one cannot divide


@dataclass(frozen=True, eq=False)
class AdaptiveBins:
    """Adaptive bins of one column: fine cells with estimated counts, and groups of cells that are the bins of a model.

    The fine cells are the codes of a category, or the intervals of ``grid`` (ascending, :class:`Grid`) for a number or
    time, followed by one cell for missing values if the column admits them. All arrays have shape ``(fine cells,)``:
    ``groups`` holds each cell's group, numbered from 0 without gaps; ``counts`` its estimated number of rows;
    ``variances`` the variance of that estimate, infinite before any count is released. Cells with the same number in
    ``whole`` were one cell when counts were last released: the count of that cell is split evenly between them, and
    each has, in ``variances``, the variance of the whole count. The first ``in_order`` cells are in a meaningful order,
    so that neighbours may be smoothed; 0 if there is none.

    ``unplaced`` is the number of rows, as far as noise lets it be estimated, of which a survey could not tell in which
    cells they lie: a column of zeros but for few rows, say. They are among the rows of ``counts``, in cells that are
    not known to be theirs.
    """

    groups: Integers
    whole: Integers
    counts: Array
    variances: Array
    grid: Grid | None = None
    in_order: int = 0
    unplaced: float = 0.0
    kind: ClassVar[str] = "cells"

    @classmethod
    def of(cls, column: Column) -> AdaptiveBins:
        """Return the fine cells of ``column`` before its rows are counted: counts are 1, with infinite variance.

        Each cell is its own group. A number or time gets about 32 cells between its public bounds (about as many as the
        schema's bins, if these are 33 to 128), or one for each value if there are at most 128 integers or rounded
        values; a category one cell per code. A number's cells next to zero are cut further, by magnitude.
        """
        if not column.is_number:
            return replace(cls._unknown(np.arange(column.size), None), in_order=column.ordered_codes)
        factor = 0.0 if column.is_time else FACTOR  # no time is the origin of all others
        grid = Grid.coarse(column.bin_edges, column.per_unit, START, SINGLE, factor)
        return cls._unknown(np.arange(len(grid) + column.missing), grid)

    @classmethod
    def levels(cls, column: Column) -> list[AdaptiveBins]:
        """Return the cells in which ``column`` is counted first, in up to 3 levels; each divides those before it."""
        levels = [cls.of(column)]
        while len(levels) < LEVELS and levels[-1].grid is not None:
            grid = levels[-1].grid
            finer = grid.finer(START * PARTS ** len(levels), PARTS)
            if len(finer) == len(grid):
                break
            levels.append(cls._unknown(np.arange(len(finer) + column.missing), finer))
        return levels

    def to_values(self, most: int) -> AdaptiveBins:
        """Return the cells of integers, decimals or times split into single values (:meth:`Grid.to_values`).

        Of more than ``most`` values, those nearest to zero. Counts are unknown, as in :meth:`of`.
        """
        assert self.grid is not None
        finer = self.grid.to_values(most)
        return self._unknown(np.arange(len(finer) + len(self.groups) - len(self.grid)), finer)

    @classmethod
    def of_bins(cls, column: Column) -> AdaptiveBins:
        """Return the schema's own bins or values of ``column``, each its own group with a count of 1."""
        if not column.is_number:
            return cls.of(column)
        return cls._unknown(np.arange(column.size), column.bins_as_cells)

    @classmethod
    def _unknown(cls, groups: Integers, grid: Grid | None) -> AdaptiveBins:
        known = np.ones(len(groups)), np.full(len(groups), np.inf)
        return cls(groups, np.arange(len(groups)), *known, grid, 0 if grid is None else len(grid))

    def axis(self, column: int) -> Axis:
        """Return the groups as the axis by which sites count the column at the position ``column``."""
        own = np.array_equal(self.groups, np.arange(len(self.groups)))
        return Axis(column, None if self.grid is None else self.grid.cuts, None if own else self.groups)

    def cells(self, column: Column) -> Grid | None:
        """Return the fine cells of a number or time."""
        return self.grid

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that sampling needs; variances are not among them."""
        arrays = {"groups": self.groups, "counts": self.counts, "unplaced": np.array(self.unplaced)}
        if self.grid is not None:
            arrays |= self.grid.to_arrays()
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> AdaptiveBins:
        """Restore cells for sampling from :meth:`to_arrays`; raises :class:`InvalidParameter` for anything else."""
        shape = arrays["groups"].shape if "groups" in arrays else (None,)
        groups = read_integers(arrays, "groups", (None,), math.prod(length or 0 for length in shape))
        if len(np.unique(groups)) != groups.max() + 1:
            raise InvalidParameter("the groups of a column's cells have gaps")
        grid = read_grid(arrays) if "upper" in arrays else None
        counts, unplaced = read_floats(arrays, "counts", groups.shape, 0), read_floats(arrays, "unplaced", (), 0)
        return replace(cls._unknown(groups, grid), counts=counts, unplaced=float(unplaced))

    def check(self, column: Column, drawn: DrawnColumn) -> None:
        """Raise :class:`InvalidParameter` unless the cells fit ``column``, and the model has ``drawn`` their groups."""
        check_cells(column, self.grid, len(self.groups))
        if drawn.latents or drawn.size != self.size:
            raise InvalidParameter(f"the model draws {drawn.size} groups of {column.name!r}, not {self.size}")

    def given(self, column: Column, condition: Condition) -> tuple[CodeEvidence, AdaptiveBins]:
        """Return evidence on the groups from a condition on values, and new cells to draw from.

        For a number or time, the evidence also says which part of each group meets the condition
        (:class:`~fedsynth.models.evidence.PlacedEvidence`). The returned cells have the same groups, but :meth:`drawn`
        draws from them only values that meet the condition.
        """
        begin, end, grid = *np.zeros((2, len(self.groups))), self.grid
        if isinstance(condition, Between):
            assert grid is not None
            begin[: len(grid)], end[: len(grid)] = low, high = grid.overlap(condition.low, condition.high)
            width = grid.upper - grid.lower
            grid = Grid(grid.lower + low * width, grid.lower + high * width, grid.per_unit)
        else:
            end[list(condition.codes) if isinstance(condition, Is) else -1] = 1.0
        counts = self.shares * (end - begin)
        weights = np.minimum(np.bincount(self.groups, weights=counts), 1.0)
        conditioned = replace(self, counts=counts, grid=grid)
        if grid is None:
            return CodeEvidence(weights), conditioned
        order, ends = self._within
        return PlacedEvidence(weights, ends, begin[order], end[order], conditioned._within[1]), conditioned

    @property
    def shares(self) -> Array:
        """Each fine cell's share of its group's estimated rows; equal ones if the group has no rows."""
        rows = np.bincount(self.groups, weights=self.counts)[self.groups]
        even = 1 / np.bincount(self.groups)[self.groups]
        return np.where(rows > 0, self.counts / np.where(rows > 0, rows, 1.0), even)

    def covers(self, column: Column) -> bool:
        """Return whether the fine cells are the schema's own bins or values of ``column``."""
        if not column.is_number:
            return True
        return self.grid is not None and np.array_equal(self.grid.upper, column.bins_as_cells.upper)

    @property
    def size(self) -> int:
        """Number of groups."""
        return int(self.groups.max()) + 1

    def ordered(self, column: Column) -> int:
        """Return how many of the groups, from the first, are in an order in which a correlation has a meaning.

        Ordered are the groups of numbers and times, and those of a category whose values are ascending integers or
        declared ordered. Any other category counts as ordered if it has two groups, even if one is of missing values.
        Otherwise, missing values are not ordered, nor is the group of merged rare values unless it holds the highest
        values.
        """
        if self.grid is not None:
            return self.size - (len(self.groups) > len(self.grid))
        if column.is_number or not column.ordered_codes:
            return 2 if self.size == 2 else 0
        values, others = np.split(self.groups, [column.ordered_codes])
        backwards = values[:-1][np.diff(values) < 0]  # a union of rare values is the last group but may start early
        return int(min([values.max() + 1, *others, *backwards]))

    def updated(self, counts: Array, variance: float | Array, total: float, *, even: bool = False) -> AdaptiveBins:
        """Return the cells with their counts updated by newly released noisy ``counts`` of about ``total`` rows.

        ``counts`` has one entry per fine cell, in rows, with noise of ``variance`` (rows squared): one number, or an
        array over the fine cells that is constant within each former cell. A former cell is one of the last release,
        which may have been split since (``whole``). First, the sum of ``counts`` over each former cell is averaged, by
        inverse variance, with its previous count; these averages are projected on the simplex (made non-negative, of
        sum ``total``). Then the counts within each former cell are made non-negative and of the sum found for it, in
        the same way. With ``even``, differences between neighbouring cells are smoothed out unless they exceed the
        noise: within each former cell and, if no count was released before and no cell was split, between all ordered
        cells. Former cells without estimated rows then remain empty: each would get only a few rows of noise, but
        together, these are many, and far from all others.
        """
        noise = np.maximum(np.broadcast_to(variance, len(counts)), _EXACT)
        many = np.bincount(self.whole)
        first = np.searchsorted(self.whole, np.arange(len(many)))
        sums = [np.bincount(self.whole, weights=values) for values in (counts, self.counts)]
        of_sums = np.bincount(self.whole, weights=noise)
        mean, of_whole = inverse_variance_mean(sums, [of_sums, self.variances[first]])
        known, filled = np.zeros(len(mean)), np.isinf(self.variances[first]) | (sums[1] > 0)
        if not even or not filled.any():
            filled[:] = True
        if total > 0:
            known[filled] = simplex(mean[filled], total)
        if even and self.in_order and len(many) == len(counts) and np.isinf(self.variances).all():
            size = self.in_order
            held = float(known[:size].sum())
            known[:size] = _evened(counts[:size], float(noise[0]), held, _EVEN, _TYPICAL * held / min(size, START))
        estimated, variances = known[self.whole], of_whole[self.whole]
        for whole in np.flatnonzero(many > 1):
            part = slice(first[whole], first[whole] + many[whole])
            trend = self.counts[part] if even else np.zeros(many[whole])
            trend = trend * (known[whole] / max(trend.sum(), _LEAST))
            estimated[part] = _evened(
                counts[part], float(noise[part][0]), known[whole], _EVEN_WITHIN if even else 0.0, trend=trend
            )
            variances[part] = noise[part] if not even else np.minimum(noise[part], of_whole[whole])
        return replace(self, whole=np.arange(len(estimated)), counts=estimated, variances=variances)

    def with_tails(self, coarse: Grid, counts: Array, std: float, finer: Grid) -> AdaptiveBins:
        """Return the cells of a number with the rows to expect in its tails, which noise hides.

        ``counts``, shape ``(len(coarse),)``, are noisy counts of the cells of ``coarse``, from which these cells were
        cut, with noise of ``std`` rows (above 0) in each. Beyond the last cell with rows on either side, density is
        taken to fall exponentially, from at most that of this cell. Expected rows are averaged over all such tails,
        weighted by their likelihood: heights are uniform; lengths, with a uniform logarithm, are 1 to 1/64 of the
        distance from the median to the coarse cell with the last rows (the geometric mean of the distances to its ends,
        or half of that to its far end if the median lies in it). The tail ends where less than one row is expected
        beyond. Cells of bounds and zero (:attr:`Grid.points`) get none. The total is kept.

        Cells of ``coarse`` that have rows but were not cut so far, and the first ones beyond, are cut as in ``finer``,
        the next level.
        """
        cells = self._cut_to_shape(coarse, finer)
        if cells is None:
            return self
        grid, total, unit = cells.grid, self.counts.sum(), 1 / coarse.per_unit if coarse.per_unit else 0.0
        assert grid is not None
        at = np.searchsorted(coarse.upper, grid.upper)
        free = ~coarse.points[at]
        extended, rows = cells.counts.copy(), cells.counts[: len(grid)]
        occupied, width = np.flatnonzero(free & (rows > 0)), np.maximum(grid.upper - grid.lower, unit)
        median = grid.centres[np.searchsorted(np.cumsum(rows), rows.sum() / 2)]
        sides = (
            (occupied[-1], np.arange(occupied[-1] + 1, len(grid)), coarse.lower[at[occupied[-1]]] - median, grid.upper),
            (occupied[0], np.arange(occupied[0])[::-1], median - coarse.upper[at[occupied[0]]], grid.lower),
        )
        for last, beyond, near, ends in sides:
            beyond, far = beyond[free[beyond]], abs(ends[last] - median)
            reach = math.sqrt(near * far) if near > 0 else far / 2
            if not len(beyond) or reach <= 0:
                continue
            whole = beyond[at[beyond] != at[last]]  # whose coarse cells these cells alone divide
            starts = np.flatnonzero(np.diff(at[whole], prepend=-1))
            first, observed = len(beyond) - len(whole), counts[at[whole[starts]]]
            tails = _tails(rows[last] / width[last], width[beyond], reach)
            predicted = np.add.reduceat(tails[:, first:], starts, axis=1)
            log = -((observed - predicted) ** 2).sum(axis=1) / (2 * std**2)
            likely = np.exp(log - log.max())
            expected = likely @ tails / likely.sum()
            extended[beyond] += np.where(np.cumsum(expected[::-1])[::-1] >= 1, expected, 0.0)
        return replace(cells, counts=extended * (total / extended.sum()))

    def _cut_to_shape(self, coarse: Grid, finer: Grid) -> AdaptiveBins | None:
        """Return the cells with those of ``coarse`` that have rows, and the first ones beyond, cut as in ``finer``.

        Cells of bounds and zero do not count; ``None`` if fewer than two others have rows.
        """
        assert self.grid is not None
        at = np.searchsorted(coarse.upper, self.grid.upper)
        occupied = at[~coarse.points[at] & (self.counts[: len(self.grid)] > 0)]
        if len(occupied) < 2:
            return None
        around = np.isin(at, [occupied[0] - 1, *occupied, occupied[-1] + 1])
        cells = self._cut_in(finer, around & (np.bincount(at)[at] == 1))
        shared = cells.variances / np.bincount(cells.whole)[cells.whole]
        return replace(cells, whole=np.arange(len(shared)), variances=shared)

    @property
    def heaped(self) -> NDArray[np.bool_]:
        """Whether one value alone has more than half of a group's rows, shape ``(groups,)``; only for numbers."""
        assert self.grid is not None
        size, largest = len(self.grid), np.zeros(self.size)
        np.maximum.at(largest, self.groups[:size], self.shares[:size] * self.grid.single)
        return largest > 0.5

    def sums_of(self, finer: Grid, counts: Array) -> Array:
        """Return counts over a ``finer`` grid (and missing values, if admitted) summed over these cells of a number."""
        assert self.grid is not None
        at = np.searchsorted(self.grid.upper, finer.upper)
        at = np.append(at, np.arange(len(self.grid), len(self.groups)))
        return np.bincount(at, weights=counts, minlength=len(self.groups)).astype(np.float64)

    def cut(self, finer: Grid, least: float) -> AdaptiveBins:
        """Split each cell of a number with at least ``least`` estimated rows into its parts in a ``finer`` grid.

        A cell's count is divided between its parts as the density of its neighbours suggests (:func:`_trend`), until
        :meth:`updated` updates them. Every cell of the result is its own group.
        """
        assert self.grid is not None
        return self._cut_in(finer, self.counts[: len(self.grid)] >= max(least, _LEAST))

    def _cut_in(self, finer: Grid, heavy: NDArray[np.bool_]) -> AdaptiveBins:
        """Split the ``heavy`` cells of a number into their parts in a ``finer`` grid."""
        assert self.grid is not None
        grid, size = self.grid, len(self.grid)
        at = np.searchsorted(grid.upper, finer.upper)
        lower = np.unique(np.concatenate([grid.lower, finer.lower[heavy[at]]]))
        upper = np.unique(np.concatenate([grid.upper, finer.upper[heavy[at]]]))
        whole = np.append(np.searchsorted(grid.upper, upper), np.arange(size, len(self.groups)))  # missing is kept
        parts = Grid(lower, upper, grid.per_unit)
        counts = self.counts[whole].copy()
        counts[: len(parts)] *= _trend(grid, self.counts[:size], parts, whole[: len(parts)])
        return AdaptiveBins(np.arange(len(whole)), whole, counts, self.variances[whole], parts, len(parts))

    def grouped(self, least: float, most: int) -> AdaptiveBins:
        """Merge the fine cells into at most ``most`` groups (bins) of at least ``least`` estimated rows.

        While there are more than ``most`` groups, or one has fewer than ``least`` rows, the group with the fewest rows
        joins the one of its two neighbours that has fewer; a group ends with fewer than ``least`` rows only if the
        column has fewer. Numbers are neighbours in their order, values of a category in the order of their counts. A
        value with many rows thus mostly keeps a group of its own. Missing numbers form one more group, which may hold
        fewer rows.
        """
        free = self.size - (self.grid is not None and len(self.groups) > len(self.grid))
        rows = np.bincount(self.groups, weights=self.counts)[:free].astype(np.float64)
        order = np.argsort(rows, kind="stable") if self.grid is None else np.arange(free)
        kept, starts = _joined(rows[order], np.arange(free), least, most)
        if len(kept) == free:
            return self
        unions = np.full(self.size, len(kept), dtype=np.int64)
        unions[order] = np.searchsorted(starts, np.arange(free), side="right") - 1
        return replace(self, groups=unions[self.groups])

    def with_atoms(self, atoms: Atoms) -> AdaptiveBins:
        """Add single values that many rows share (:class:`~fedsynth.models.atoms.Atoms`) to the cells of a number.

        Each value becomes a cell of its own, with the atom's rows added. The cells within the atom's bounds form one
        group: since the value is a guess, it must not matter for what sites count, only for what is drawn.
        """
        assert self.grid is not None
        if not len(atoms.values):
            return self
        grid, per_unit = self.grid, self.grid.per_unit
        half = 0.5 / per_unit if per_unit else 0.0

        def after(ends: Array) -> Array:
            """Return where the cell after one that ends here begins."""
            return ends if per_unit else np.nextafter(ends, np.inf)

        value = np.where(
            np.isclose(atoms.values - half, atoms.lower, rtol=0, atol=half / 2), atoms.lower, atoms.values - half
        )
        beyond = np.where(
            np.isclose(atoms.values + half, atoms.upper, rtol=0, atol=half / 2), atoms.upper, atoms.values + half
        )
        lower = np.unique(np.concatenate([grid.lower, atoms.lower, value, after(beyond), after(atoms.upper)]))
        lower = lower[lower <= grid.upper[-1] - half]
        upper = np.append(lower[1:] if per_unit else np.nextafter(lower[1:], -np.inf), grid.upper[-1])
        at = np.searchsorted(grid.lower, lower, side="right") - 1
        width, whole = upper - lower, (grid.upper - grid.lower)[at]
        share = np.where(whole > 0, width / np.where(whole > 0, whole, 1.0), 1.0)
        at = np.append(at, np.arange(len(grid), len(self.groups)))
        share = np.append(share, np.ones(len(self.groups) - len(grid)))
        counts, variances = self.counts[at] * share, self.variances[at] / np.bincount(at)[at]
        places = np.searchsorted(lower, value)
        counts[places] += atoms.counts
        variances[places] += atoms.variances
        begins = np.ones(len(at), dtype=bool)
        for first, last in zip(*np.searchsorted(lower, [atoms.lower, after(atoms.upper)]), strict=True):
            begins[first + 1 : last] = False
        groups = np.cumsum(begins) - 1
        grid = Grid(lower, upper, per_unit)
        return AdaptiveBins(groups, np.arange(len(at)), counts, variances, grid, len(lower), self.unplaced)

    def drawn(self, groups: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        """Convert the ``groups`` that a model drew, shape ``(rows,)``, to values drawn within each row's group.

        For integers, one of the group's fine cells is drawn for each row, in proportion to the cells' counts, and a
        number is drawn uniformly within its cell. A float64 entry is group + place, with a place from 0 to below 1, and
        nothing is drawn: place 0.25 stands for the lower quartile of the group's rows. Returns integer codes for a
        category, float64 numbers (NaN for missing) otherwise, shape ``(rows,)``.
        """
        order, cumulative = self._within
        if groups.dtype == np.float64:
            at = np.searchsorted(cumulative, groups, side="right")
            begin = np.where(at > 0, cumulative[at - 1], 0.0)
            share = (groups - begin) / (cumulative[at] - begin)
            return order[at] if self.grid is None else self.grid.values(order[at], share)
        fine = groups
        if len(order) > self.size:  # otherwise each fine cell is its own group, in order
            fine = order[np.searchsorted(cumulative, groups + stratified_uniforms(groups, rng), side="right")]
        return fine if self.grid is None else self.grid.values(fine, rng.random(len(fine)))

    def unions(self, least: float, most: int) -> Integers:
        """Merge groups into larger unions, for coarser tables; return each group's union, shape ``(groups,)``, int64.

        Neighbouring groups of a number or time are merged, as in :meth:`grouped`, to at most ``most`` unions of at
        least ``least`` estimated rows; missing values form one more union. Of a category, all groups with fewer than
        ``least`` rows form one union, and ``most`` is ignored (:func:`rare_together`).
        """
        rows = np.bincount(self.groups, weights=self.counts).astype(np.float64)
        if self.grid is None:
            return rare_together(rows, least)
        free = self.size - (len(self.groups) > len(self.grid))
        kept, starts = _joined(rows[:free], np.arange(free), least, most)
        unions = np.arange(self.size) - free + len(kept)  # missing values stay alone
        unions[:free] = np.searchsorted(starts, np.arange(free), side="right") - 1
        return unions

    @cached_property
    def _within(self) -> tuple[Integers, Array]:
        """Fine cells ordered by group, and their cumulated shares within the group plus the group's number."""
        order = np.argsort(self.groups, kind="stable")
        group = self.groups[order]
        rows = np.bincount(group, weights=self.counts[order])
        empty = rows == 0  # no information on this group: all its cells are equally likely
        weight = np.where(empty[group], 1.0, self.counts[order])
        rows = np.where(empty, np.bincount(group), rows)
        last = np.append(group[1:] != group[:-1], True)
        cumulative = np.cumsum(weight)
        before = np.append(0.0, cumulative[last])[group]
        share = np.where(last, 1.0, np.clip((cumulative - before) / rows[group], 0.0, 1.0))
        return order, share + group


def rare_together(rows: Array, least: float) -> Integers:
    """Return each value's group: one group per value, but a last one for two or more with under ``least`` rows."""
    rare = rows < least
    if rare.sum() < 2:
        return np.arange(len(rows))
    groups: Integers = np.where(rare, len(rows) - int(rare.sum()), np.cumsum(~rare) - 1)
    return groups


def _trend(grid: Grid, counts: Array, parts: Grid, whole: Integers) -> Array:
    """Return each part's share of the rows of the cell ``whole`` of ``grid`` that it is a part of.

    The logarithm of the density is linear within a cell. At a border, it is the mean of those of both cells; where one
    of them has no rows, the other's density goes on to fall or rise as on its other side. ``counts`` are the rows of
    the cells of ``grid``. Shares of a cell sum to 1.
    """
    unit = 1 / grid.per_unit if grid.per_unit else 0.0
    width = np.maximum(grid.upper - grid.lower, unit)
    known = (counts > 0) & (width > 0) & ~grid.points
    log = np.log(np.where(known, counts, 1.0) / np.where(known, width, 1.0))
    both = known[1:] & known[:-1]
    step = np.where(both, np.diff(log) / 2, np.nan)  # from a cell's middle to its border, or from there to the next
    before, after = np.append(np.nan, step), np.append(step, np.nan)
    slope = np.nan_to_num(np.where(np.isnan(before), after, np.where(np.isnan(after), before, (before + after) / 2)))
    slope = np.clip(slope, -_STEEPEST, _STEEPEST)
    place = (parts.centres - grid.centres[whole]) / np.where(width > 0, width, 1.0)[whole]
    weight = np.maximum(parts.upper - parts.lower, unit) * np.exp(2 * slope[whole] * place)
    weight = np.where(width[whole] > 0, weight, 1.0)
    found: Array = weight / np.bincount(whole, weights=weight)[whole]
    return found


def _tails(density: float, width: Array, reach: float) -> Array:
    """Return the rows of exponential tails in successive cells of these widths, shape ``(tails, cells)``.

    Each begins with a part of ``density`` (rows per unit), and falls at a length of 1 to 1/64 of ``reach``.
    """
    lengths = (reach * np.geomspace(1 / _TAILS, 1.0, _TAILS // 2))[:, None]
    ends = np.append(0.0, np.cumsum(width))
    heights = (np.arange(_HEIGHTS) + 0.5) / _HEIGHTS
    tails = density * lengths * -np.diff(np.exp(-ends / lengths))
    found: Array = (heights[:, None, None] * tails).reshape(-1, len(width))
    return found


def _joined(rows: Array, starts: Integers, least: float, most: int) -> tuple[Array, Integers]:
    """Let the lightest join its lighter neighbour until at most ``most`` remain, of at least ``least`` rows each."""
    rows = rows.copy()
    while len(rows) > 1 and (len(rows) > most or rows.min() < least):
        lightest = int(rows.argmin())
        around = [at for at in (lightest - 1, lightest + 1) if 0 <= at < len(rows)]
        first = min(lightest, min(around, key=lambda at: float(rows[at])))
        rows[first] += rows[first + 1]
        rows, starts = np.delete(rows, first + 1), np.delete(starts, first + 1)
    return rows, starts


def _evened(
    counts: Array, variance: float, total: float, penalty: float, typical: float = 0.0, trend: Array | float = 0.0
) -> Array:
    """Project noisy counts on the simplex of sum ``total``; with a positive ``penalty``, smooth them first.

    What is smoothed is their difference from the ``trend``, expected counts.
    With a ``typical`` count, cells that are probably empty get 0, unless the others hold less than half of the total.
    """
    evened = np.zeros(len(counts))
    if total <= 0:
        return evened
    occupied = np.ones(len(counts), dtype=bool)
    if penalty and len(counts) > 2 and variance > _EXACT:
        log = math.log(len(counts))
        noisy, counts = counts, piecewise_mean(counts - trend, variance, penalty * log)[0] + trend
        if typical:
            occupied = piecewise_mean(noisy, variance, _GAP * log, typical)[1] >= 0.5
        occupied |= bool(counts[occupied].sum() < total / 2)
    evened[occupied] = simplex(counts[occupied], total)
    return evened
