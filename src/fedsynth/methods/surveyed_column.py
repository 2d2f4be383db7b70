"""Adaptive bins of one column, estimated from a survey's noisy counts of ever finer cells.

Rows of a number are of three kinds, each counted in its own way: atoms, single values that stand out on fine cells
(:mod:`fedsynth.models.atoms`); rows apart, on a bound, on zero, or missing, each of which is a cell from the start; and
all others, which neighbouring cells share (:mod:`fedsynth.models.piecewise`). How many others there are is known far
better than where they are: the total without the first two kinds has the noise of few counts. All this is computed from
released counts and has no privacy cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsynth.methods.measure import EXACT_STD
from fedsynth.schema.bins import Floats, Grid, Integers

if TYPE_CHECKING:
    from fedsynth.models.adaptive_bins import AdaptiveBins
    from fedsynth.models.atoms import Atoms
    from fedsynth.models.estimate import Measurement
    from fedsynth.schema.columns import Column

Mask = NDArray[np.bool_]

FINEST = 256.0  # a cell with at least one row in so many is cut
CUT = 4.0  # a cell is cut only from this many standard deviations of the noise on
HIDDEN = 2.5  # a value apart has no rows below this many standard deviations of the noise
SURE = 3.0  # there are other rows than atoms and those apart from this many standard deviations on


def column_bins(
    column: Column, levels: Sequence[AdaptiveBins], tables: Sequence[Measurement], total: float, doubt: float
) -> AdaptiveBins:
    """Return the adaptive bins of a ``column`` of about ``total`` rows, from noisy ``tables`` at each of its levels.

    ``levels`` are the cells that were counted, from coarse to fine; each divides the one before. ``doubt`` is the
    variance of ``total`` in rows squared, 0 if the number is public. Every cell of the result is its own group, but for
    those around an atom (:meth:`AdaptiveBins.with_atoms`), and counts sum to ``total``.
    """
    first, std, exact = levels[0], tables[0].std, tables[-1].std <= EXACT_STD
    if not first.in_order:
        return first.updated(tables[0].values, std**2, total, even=True)
    atoms, counts = _without_atoms(column, levels, tables, total)
    apart = _apart(column, levels, tables, counts, total)
    for values, places in zip(counts, apart.places(levels), strict=True):
        values[places] = 0.0
    others = max(total - float(atoms.counts.sum() + apart.counts.sum()), 0.0)
    deviation = math.sqrt(doubt + atoms.variances.sum() + np.count_nonzero(apart.counts) * apart.variance)
    cells = first.updated(counts[0], std**2, others, even=True)
    if len(apart.at) or first.grid is not None:
        cells = _placed(column, cells, apart.at, counts[0], std, others, deviation, total)
    cells = _refined(cells, levels, tables, counts, total / FINEST)
    if first.grid is not None and not cells.unplaced:
        finer = levels[min(1, len(levels) - 1)].grid
        assert finer is not None
        cells = cells.with_tails(first.grid, counts[0][: len(first.grid)], std, finer)
    cells = apart.joined_to(cells, first)
    if first.grid is not None:
        cells = cells.with_atoms(atoms)
    if exact and (finest := levels[-1].grid) is not None:  # without noise, the counts need no model
        known = np.bincount(cells.groups, weights=cells.sums_of(finest, tables[-1].values))
        return replace(cells, counts=cells.shares * known[cells.groups])
    return replace(cells, counts=cells.counts * (total / max(cells.counts.sum(), EXACT_STD)))


# ---------------------------------------------------------------------------------------------------------------------
# Rows that say nothing of their neighbours


def _without_atoms(
    column: Column, levels: Sequence[AdaptiveBins], tables: Sequence[Measurement], total: float
) -> tuple[Atoms, list[Floats]]:
    """Return a number's atoms, and the noisy counts of all other rows at each level."""
    from fedsynth.models.atoms import Atoms, Level, separate

    counts = [table.values.copy() for table in tables]
    if len(levels) == 1 or not column.is_number:
        return Atoms(*np.zeros((5, 0))), counts
    parts = [
        Level(level.grid, table.values[: len(level.grid)], table.std if table.std > EXACT_STD else 0.0)
        for level, table in zip(levels, tables, strict=True)
        if level.grid is not None
    ]
    atoms, rest = separate(parts, total / FINEST, column.round_steps)
    for values, others in zip(counts, rest, strict=True):
        values[: len(others)] = others
    return atoms, counts


class _Apart(NamedTuple):
    """Cells of a column's first level whose rows are counted by themselves.

    ``at`` are their places, and ``counts`` the estimated rows, 0 where all that was counted may be noise; both have
    shape ``(cells,)``. ``variance`` is that of each estimate.
    """

    at: Integers
    counts: Floats
    variance: float

    def places(self, levels: Sequence[AdaptiveBins]) -> list[Integers]:
        """Return the places of these cells, which no level divides, at each level."""
        return [_places(self.at, levels[0], level) for level in levels]

    def joined_to(self, cells: AdaptiveBins, first: AdaptiveBins) -> AdaptiveBins:
        """Return ``cells``, cut from those of the ``first`` level, with these rows."""
        places, counts, variances = _places(self.at, first, cells), cells.counts.copy(), cells.variances.copy()
        counts[places], variances[places] = self.counts, self.variance
        return replace(cells, counts=counts, variances=variances)


def _places(at: Integers, first: AdaptiveBins, cells: AdaptiveBins) -> Integers:
    """Return where ``cells`` have those undivided cells of the ``first`` level that are ``at`` these places."""
    if first.grid is None or cells.grid is None:
        return at
    size = len(first.grid)
    among = np.searchsorted(cells.grid.upper, first.grid.upper[np.minimum(at, size - 1)])
    return np.where(at < size, among, at - size + len(cells.grid))


def _apart(
    column: Column,
    levels: Sequence[AdaptiveBins],
    tables: Sequence[Measurement],
    counts: Sequence[Floats],
    total: float,
) -> _Apart:
    """Return the rows of single values that say nothing of their neighbours: bounds, zero, missing values.

    Where each value of a column is a cell from the start, it is the one value that more than half of all rows have, if
    any, and missing values. Each is counted once a level, and the counts are averaged by inverse variance. All noise
    above zero on a value far from all others would become rows there. A value therefore has none unless its count
    stands out from the noise as an interval does (:func:`~fedsynth.models.piecewise.clear_range`); next to other rows,
    and on zero, which is far from none, ``HIDDEN`` (2.5) standard deviations are enough.
    """
    from fedsynth.models.estimate import inverse_variance_mean
    from fedsynth.models.piecewise import clear_range, standing_out

    first, std, size = levels[0], tables[0].std, levels[0].in_order
    if first.grid is not None and not first.grid.single.all():
        at = np.flatnonzero(first.grid.points)
    else:
        commonest = int(np.argmax(counts[0][:size]))
        at = np.array([commonest] if counts[0][commonest] > max(total / 2, standing_out(size) * std) else [], np.int64)
        if not len(at):
            return _Apart(at, np.zeros(0), 0.0)
    at = np.append(at, np.arange(size, len(first.groups)))
    found = [table.values[_places(at, first, level)] for level, table in zip(levels, tables, strict=True)]
    mean, variance = inverse_variance_mean(found, [table.std**2 for table in tables])
    others = counts[0][:size].copy()
    others[at[at < size]] = 0.0
    clear = clear_range(others, std)
    near = (clear.start - 1 <= at) & (at <= clear.stop) if clear.stop else np.zeros(len(at), dtype=bool)
    if first.grid is not None and not column.is_time:
        near |= at == first.grid.nearest_to_zero
    needed = np.where(near, HIDDEN, standing_out(size))
    needed[at >= size] = 0.0
    return _Apart(at, np.where(mean > needed * math.sqrt(variance), mean, 0.0), float(variance))


# ---------------------------------------------------------------------------------------------------------------------
# All others


def _placed(
    column: Column,
    cells: AdaptiveBins,
    apart: Integers,
    noisy: Floats,
    std: float,
    others: float,
    deviation: float,
    total: float,
) -> AdaptiveBins:
    """Return the first level's cells with ``others``, rows neither of atoms nor ``apart``, where they stand out.

    Cells of a number beyond the range in which ``noisy`` counts stand out from noise of ``std`` each
    (:func:`~fedsynth.models.piecewise.clear_range`) are emptied. The rows in that range are as many as
    ``others``, if these are more than ``SURE`` (3) times their own ``deviation``, and as estimated otherwise.

    If nothing stands out although most of the ``total`` rows are atoms or apart, noise hides where the others lie, if
    there are any. In cells that are merely likely, few of them would change a mean by factors. They are put next to
    zero (times: anywhere), and their number is kept as ``unplaced``. So is that of all rows if noise hides everything.
    """
    from fedsynth.models.piecewise import clear_range

    size, sure = cells.in_order, others > SURE * deviation
    free = np.ones(len(cells.groups), dtype=bool)
    free[apart] = False
    rows, variances, unplaced = np.where(free, cells.counts, 0.0), cells.variances.copy(), 0.0
    if cells.grid is not None:
        clear = clear_range(noisy[:size], std)
        inside = free.copy()
        inside[: clear.start] = inside[clear.stop : size] = False
        if clear.stop:
            variances[free & ~inside] = EXACT_STD**2
            rows = np.where(inside, rows if rows[inside].any() else np.maximum(noisy, 0.0), 0.0)
        elif others >= total / 2:
            unplaced = others
        else:
            unplaced = others if sure else 0.0
            rows = unplaced * _next_to_zero(column, cells.grid, free)
    if sure and rows.any():
        rows *= others / rows.sum()
    return replace(cells, counts=rows, variances=variances, unplaced=unplaced)


def _next_to_zero(column: Column, grid: Grid, free: Mask) -> Floats:
    """Return equal shares of the ``free`` cells next to zero, or to the bound nearest to it; of times, of all of them.

    Shape ``(len(free),)``: ``free`` has an entry for missing values, too, if the column admits them.
    """
    near = free.copy()
    near[len(grid) :] = False
    if not column.is_time:
        zero = grid.nearest_to_zero
        beside = near & (np.abs(np.arange(len(near)) - zero) == 1)
        near = beside if beside.any() else near & (np.arange(len(near)) == zero)
    return near / max(int(near.sum()), 1)


def _refined(
    cells: AdaptiveBins,
    levels: Sequence[AdaptiveBins],
    tables: Sequence[Measurement],
    counts: Sequence[Floats],
    least: float,
) -> AdaptiveBins:
    """Return the cells cut as in the second and the third level, where rows stand out from the noise."""
    from fedsynth.models.adaptive_bins import LEVELS

    for finer, values, table in zip(levels[1:LEVELS], counts[1:LEVELS], tables[1:LEVELS], strict=True):
        assert finer.grid is not None
        cut = cells.cut(finer.grid, max(least, CUT * table.std))
        if len(cut.groups) == len(cells.groups):
            break
        sums, many = (cut.sums_of(finer.grid, each) for each in (values, np.ones(len(values))))
        cells = cut.updated(sums, many * table.std**2, float(cells.counts.sum()), even=True)
    return cells
