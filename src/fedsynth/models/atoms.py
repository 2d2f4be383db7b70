"""Atoms: single values that many rows share, found in noisy counts of ever finer cells of a number's range.

Rows of a smooth distribution fill a cell about as densely as its neighbours. A narrow cell with far more rows holds a
value that many rows share, such as a usual price, a limit or a code: one number, and the round ones are the likely
ones. Everything here is computed from released counts, so it has no privacy cost.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsynth.models.piecewise import clear_range
from fedsynth.schema.bins import Grid

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
STANDS_OUT = 4.0  # standard deviations of the noise by which a cell must exceed its neighbours to hold an atom
RATIO = 3.0  # such a cell also has at least so many times the rows of either neighbour
AGREES = 2.5  # standard deviations within which two counts are taken for estimates of the same number
_NARROW = 2.0  # a neighbour so many times narrower than a cell is no measure of it
_TINY = np.finfo(np.float64).tiny
_AROUND = 2  # cells on each side of a cell whose mean density is that of its neighbourhood


class Level(NamedTuple):
    """Noisy ``counts`` (rows) of the cells of one ``grid``, shape ``(cells,)``, with noise ``std`` (rows) in each."""

    grid: Grid
    counts: Array
    std: float


class Atoms(NamedTuple):
    """Values that many rows share, in ascending order; all arrays have shape ``(atoms,)``.

    ``values`` are guesses: the roundest number of the cell, from ``lower`` to ``upper``, in which the rows were
    counted.
    """

    values: Array
    lower: Array
    upper: Array
    counts: Array
    variances: Array


def roundest(low: float, high: float, per_unit: int, steps: Sequence[int] = ()) -> float:
    """Return the number from ``low`` to ``high`` that has the fewest significant decimal digits.

    Of several, a multiple of five in the last digit is preferred, then the one nearest to the middle. If ``per_unit``
    is positive, numbers are multiples of ``1 / per_unit``, and one of them must lie in the interval. ``steps``, in
    descending order, are units that count as rounder than any power of ten (of a time in seconds: day, hour, minute).
    """
    for step in steps:
        if (first := math.ceil(low / step)) <= math.floor(high / step):
            return float(first * step)
    digits = 15 - math.ceil(math.log10(max(abs(low), abs(high), 1e-290)))  # of a double after the decimal point
    unit = per_unit or 10.0**digits
    least, most = math.ceil(round(low * unit, 6)), math.floor(round(high * unit, 6))
    if least > most:  # neighbouring doubles
        return low
    if least <= 0 <= most:
        return 0.0
    step = 10 ** len(str(max(abs(least), abs(most))))
    while -(-least // step) > most // step:
        step //= 10
    first, last = -(-least // step), most // step
    five = -(-first // 5) * 5
    found = (five if five <= last else (first + last) // 2) * step
    return found / per_unit if per_unit else min(max(float(f"{found}e{-digits}"), low), high)


def separate(levels: Sequence[Level], least: float, steps: Sequence[int] = ()) -> tuple[Atoms, list[Array]]:
    """Take the atoms out of the noisy counts of a number's cells; return them and the counts of all other rows.

    ``levels`` hold the counts of nested grids, from coarse to fine. The second result has, for each level, the counts
    without the atoms' rows, shape ``(cells,)``.

    A cell of the second or a later level holds an atom if it has ``RATIO`` (3) times the rows of either neighbour and
    exceeds both by ``STANDS_OUT`` (4) standard deviations of the noise, or by more if noise alone does so in one of so
    many cells. The finest such cell counts; a cell whose rows would show in its parts, but are spread over them, holds
    none, nor does one that no level divides: its rows may have many values. The atom's rows are those above the mean
    density of the neighbourhood. The cells around it, on coarser levels, are further and less noisy counts of the same
    rows: where they hold no more, all are averaged by inverse variance. An atom is dropped if a coarser count
    contradicts it, if it has fewer than ``least`` rows, or if it lies far from all others, where the first level shows
    no rows (:func:`~fedsynth.models.piecewise.clear_range`): one of 30,000 fine cells often has as many by noise.
    ``steps`` are those of :func:`roundest`.
    """
    alone, parents = [levels[0].grid.single], [np.arange(len(levels[0].grid))]
    for coarse, fine in itertools.pairwise(levels):
        parents.append(np.searchsorted(coarse.grid.upper, fine.grid.upper))
        first = np.searchsorted(levels[0].grid.upper, fine.grid.upper)
        alone.append(np.bincount(first)[first] == 1)
    depths, paths = _candidates(levels, parents, alone, least, steps)

    clear = clear_range(levels[0].counts, levels[0].std)
    accepted = (paths[:, 0] >= clear.start) & (paths[:, 0] < clear.stop) | (clear.stop == 0)

    # Bottom up: each level counts the rows of the atoms in its cells once more.
    counts, variances = np.zeros(len(depths)), np.zeros(len(depths))
    others = [np.full((2, len(level.counts)), np.nan) for level in levels]  # a cell's other rows, and their variance
    for depth in range(len(levels) - 1, -1, -1):
        level, path = levels[depth], paths[:, depth]
        cells = np.unique(path[accepted & (depths >= depth)])
        free = ~alone[depth]
        free[cells] = False
        for cell, (mean, _, doubt) in zip(cells, _around(level, cells, free, _AROUND), strict=True):
            doubt += max(mean, 0.0)  # rows are a sample
            noise, above = level.std**2 + doubt, level.counts[cell] - mean
            members = np.flatnonzero(accepted & (path == cell))
            if depths[members[0]] == depth:
                counts[members], variances[members] = above, noise
                others[depth][:, cell] = mean, doubt
                continue
            while len(members):
                known, std = counts[members].sum(), math.sqrt(variances[members].sum() + noise)
                if level.counts[cell] >= known - STANDS_OUT * std:
                    break
                accepted[members[np.argmin(counts[members])]] = False
                members = members[accepted[members]]
            if len(members) and above <= known + AGREES * std:
                part = variances[members] / max(std**2, _TINY)
                counts[members] += part * (above - known)
                variances[members] *= 1 - part
                others[depth][:, cell] = mean, doubt
    accepted &= counts >= np.maximum(STANDS_OUT * np.sqrt(variances), least)

    rest = []
    for level, path, (mean, doubt) in zip(levels, paths.T, others, strict=True):
        inside = accepted & (path >= 0)
        holds = np.bincount(path[inside], minlength=len(level.counts)) > 0
        without = level.counts - np.bincount(path[inside], weights=counts[inside], minlength=len(level.counts))
        weight = doubt / np.maximum(doubt + level.std**2, _TINY)
        rest.append(np.where(holds & ~np.isnan(mean), mean + weight * (without - mean), without))
    for depth, cell in zip(depths[accepted], paths[accepted, depths[accepted]], strict=True):
        above = np.arange(len(rest[depth]))
        for finer in range(depth + 1, len(levels)):  # the parts of an atom's cell: as dense as its neighbourhood
            above = above[parents[finer]]
            parts = np.flatnonzero(above == cell)
            width = (levels[finer].grid.upper - levels[finer].grid.lower)[parts]
            rest[finer][parts] = rest[depth][cell] * width / width.sum()
    return _atoms(levels, depths[accepted], paths[accepted], counts[accepted], variances[accepted], steps), rest


def _around(level: Level, cells: Integers, free: Mask, reach: int) -> Array:
    """Return what the nearest ``free`` cells, ``reach`` on each side, suggest as the rows of each of ``cells``.

    The result has shape ``(cells, 3)``: rows by the mean density, by the highest one (0 or more), for which neighbours
    much narrower than the cell do not count, and the variance of the first, which is larger if the density varies by
    more than the noise. Without neighbours, all are 0.
    """
    where, width = np.flatnonzero(free), level.grid.upper - level.grid.lower
    if not len(where):
        return np.zeros((len(cells), 3))
    at = np.searchsorted(where, cells)
    right = at + (where[np.minimum(at, len(where) - 1)] == cells)
    near = np.concatenate([at[:, None] - np.arange(1, reach + 1), right[:, None] + np.arange(reach)], axis=1)
    known = (near >= 0) & (near < len(where))
    near = where[np.clip(near, 0, len(where) - 1)]
    own, widths, counts = width[cells], np.where(known, width[near], 0.0), level.counts[near]
    square = np.maximum((widths**2).sum(axis=1), _TINY)
    density = (counts * widths).sum(axis=1) / square  # the same noise in all: wide cells tell more
    apart = np.where(known, counts - density[:, None] * widths, 0.0)
    varies = np.maximum((apart**2).sum(axis=1) - (known.sum(axis=1) - 1) * level.std**2, 0.0)
    known &= widths * _NARROW >= own[:, None]
    rows = np.maximum(counts * own[:, None] / np.where(known, widths, 1.0), 0.0)
    highest = np.where(known, rows, 0.0).max(axis=1)
    return np.stack([own * density, highest, own**2 * (level.std**2 + varies) / square], axis=1)


def _candidates(
    levels: Sequence[Level], parents: Sequence[Integers], alone: Sequence[Mask], least: float, steps: Sequence[int]
) -> tuple[Integers, Integers]:
    """Return the level of each cell that may hold an atom, and its cell on every level (-1 on finer ones), ascending.

    ``parents`` are each level's cells' places on the level before, and ``alone`` says which of the first level are
    single values, and which of a later one are cells of the first.
    """
    candidates: list[tuple[int, int]] = []
    last = len(levels) - 1
    holds = np.zeros(len(levels[last].counts), dtype=bool)
    for depth in range(last, 0, -1):
        level = levels[depth]
        cells = np.arange(len(level.counts))
        highest = _around(level, cells, ~alone[depth], 1)[:, 1]
        excess = level.counts - highest
        beyond = max(STANDS_OUT, math.sqrt(2 * math.log(len(cells))))  # the largest of so many normal numbers
        clear = excess >= np.maximum(beyond * np.sqrt(level.std**2 + highest + 1), least)
        here = ~alone[depth] & ~holds & clear & (level.counts >= RATIO * highest)
        for cell in np.flatnonzero(here).tolist():
            if depth == last:
                candidates.append((depth, cell))
                continue
            fine = levels[depth + 1]
            parts = slice(*np.searchsorted(parents[depth + 1], [cell, cell + 1]))
            peak = int(parts.start + np.argmax(fine.counts[parts]))
            enough = excess[cell] - AGREES * math.hypot(level.std, fine.std)
            if fine.counts[peak] >= enough:
                value = _round_value(level.grid, cell, steps)
                likely = fine.counts[np.searchsorted(fine.grid.upper, value)] >= enough
                candidates.append((depth, cell) if likely else (depth + 1, peak))
                holds[cell] = True
        if depth == last:
            holds = here
        holds = np.bincount(parents[depth], weights=holds, minlength=len(levels[depth - 1].counts)) > 0
    depths = np.array([depth for depth, _ in candidates], dtype=np.int64)
    paths = np.full((len(candidates), len(levels)), -1, dtype=np.int64)
    for atom, (depth, cell) in enumerate(candidates):
        for up in range(depth, -1, -1):
            paths[atom, up] = cell
            cell = int(parents[up][cell])
    order = np.argsort([levels[depth].grid.lower[cell] for depth, cell in candidates])
    return depths[order], paths[order]


def _atoms(
    levels: Sequence[Level], depths: Integers, paths: Integers, counts: Array, variances: Array, steps: Sequence[int]
) -> Atoms:
    cells = [(levels[depth].grid, path[depth]) for depth, path in zip(depths, paths, strict=True)]
    lower = np.array([grid.lower[cell] for grid, cell in cells])
    upper = np.array([grid.upper[cell] for grid, cell in cells])
    values = np.array([_round_value(grid, cell, steps) for grid, cell in cells])
    return Atoms(values, lower, upper, counts, variances)


def _round_value(grid: Grid, cell: int, steps: Sequence[int]) -> float:
    half = 0.5 / grid.per_unit if grid.per_unit else 0.0
    return roundest(grid.lower[cell] + half, grid.upper[cell] - half, grid.per_unit, steps)
