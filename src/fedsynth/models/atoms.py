"""Atoms: single values that many rows share, found in noisy counts of ever finer cells of a number's range.

Rows of a smooth distribution fill a cell about as densely as its neighbours. A narrow cell with far more rows holds a
value that many rows share, such as a usual price, a limit or a code. Its rows belong on one number, and the round ones
are the likely ones. Everything here is computed from released counts, so it has no privacy cost.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsynth.schema.bins import Grid

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
STANDS_OUT = 4.0  # standard deviations of the noise by which a cell must exceed its neighbours to hold an atom
RATIO = 3.0  # such a cell also has at least so many times the rows of either neighbour
AGREES = 2.5  # standard deviations within which two counts are taken for estimates of the same number
SHOWS = 3.0  # standard deviations by which the fullest part of such a cell is taken for the place of its atom
_NARROW = 2.0  # a neighbour so many times narrower than a cell is no measure of it
_AROUND = 2  # cells on each side of a cell whose mean density is that of its neighbourhood


class Level(NamedTuple):
    """Noisy ``counts`` (rows) of the cells of one ``grid``, shape ``(cells,)``, with noise ``std`` (rows) in each."""

    grid: Grid
    counts: Array
    std: float


class Atoms(NamedTuple):
    """Values that many rows share, in ascending order; all arrays have shape ``(atoms,)``.

    ``values`` are guesses: the roundest number of the cell, from ``lower`` to ``upper``, in which the rows were
    counted. ``counts`` are the estimated numbers of rows and ``variances`` the variances of these estimates.
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

    A cell of the second or a later level holds an atom if it exceeds both its neighbours by ``STANDS_OUT`` (4) standard
    deviations of the noise and has ``RATIO`` (3) times their rows. The finest such cell counts; a cell whose rows would
    show in its parts, but are spread over them, holds none. The atom's rows are those above the mean density of the
    neighbourhood, at least ``least``. The cells around it, on coarser levels, are further and less noisy counts of the same rows: where
    they agree, the average by inverse variance is taken, and the other rows are as many as in the neighbourhood. An
    atom that a coarser count contradicts is none. ``steps`` are those of :func:`roundest`.
    """
    alone = [levels[0].grid.single]
    parents = [np.arange(len(levels[0].grid))]
    for coarse, fine in itertools.pairwise(levels):
        parents.append(np.searchsorted(coarse.grid.upper, fine.grid.upper))
        alone.append(alone[-1][parents[-1]])
    depths, paths = _candidates(levels, parents, alone, least)

    # Bottom up: each level counts the rows of the atoms in its cells once more.
    counts, variances, held = np.zeros(len(depths)), np.zeros(len(depths)), np.ones(len(depths), dtype=bool)
    rest = [level.counts.copy() for level in levels]
    agreed = [np.zeros(len(level.counts), dtype=bool) for level in levels]
    for depth in range(len(levels) - 1, -1, -1):
        level, path = levels[depth], paths[:, depth]
        inside = held & (depths >= depth)
        cells = np.unique(path[inside])
        free = ~alone[depth]
        free[cells] = False
        around = _around(level, cells, free, _AROUND)
        for cell, mean, lowest, doubt in zip(cells, around.mean, around.lowest, around.variance, strict=True):
            members = np.flatnonzero(inside & (path == cell))
            found, noise = level.counts[cell] - mean, level.std**2 + doubt + max(mean, 0.0)
            if depths[members[0]] == depth:
                counts[members], variances[members] = found, noise
                rest[depth][cell], agreed[depth][cell] = mean, True
                continue
            while len(members):
                known, doubtful = counts[members].sum(), variances[members].sum()
                reach = AGREES * math.sqrt(doubtful + noise)
                if level.counts[cell] - (max(lowest, 0.0) if lowest < np.inf else 0.0) >= known - reach:
                    break
                least = members[np.argmin(counts[members])]
                held[least] = False
                members = members[members != least]
            if len(members) and level.std and abs(found - known) <= reach:
                part = variances[members] / (doubtful + noise)
                counts[members] += part * (found - known)
                variances[members] *= 1 - part
                rest[depth][cell], agreed[depth][cell] = mean, True
    held &= counts >= np.maximum(STANDS_OUT * np.sqrt(variances), least)

    for depth, (level, path) in enumerate(zip(levels, paths.T, strict=True)):
        inside = held & (depths >= depth)
        holds = np.zeros(len(level.counts), dtype=bool)
        holds[path[inside]] = True
        rows = np.bincount(path[inside], weights=counts[inside], minlength=len(holds))
        rest[depth] = np.where(holds & agreed[depth], rest[depth], level.counts - rows)
        within = held & (depths < depth)
        for atom in np.flatnonzero(within):  # an atom's cell, in parts: as dense as its neighbourhood
            above = np.arange(len(holds))
            for up in range(depth, depths[atom], -1):
                above = parents[up][above]
            parts = np.flatnonzero(above == paths[atom, depths[atom]])
            width = (level.grid.upper - level.grid.lower)[parts]
            rest[depth][parts] = rest[depths[atom]][paths[atom, depths[atom]]] * width / width.sum()
    return _atoms(levels, depths[held], paths[held], counts[held], variances[held], steps), rest


class _Around(NamedTuple):
    """What the neighbours of some cells suggest as their rows, and the variance of the mean; shape ``(cells,)``."""

    mean: Array
    lowest: Array
    highest: Array
    variance: Array


def _around(level: Level, cells: Integers, free: Mask, reach: int) -> _Around:
    """Return the density of the nearest ``free`` cells, ``reach`` on each side, times the width of each of ``cells``.

    Without any, it is 0. A density that varies from neighbour to neighbour by more than the noise is doubtful.
    """
    where = np.flatnonzero(free)
    width = level.grid.upper - level.grid.lower
    if not len(where):
        none = np.zeros(len(cells))
        return _Around(none, none, none, none)
    at = np.searchsorted(where, cells)
    right = at + (where[np.minimum(at, len(where) - 1)] == cells)
    near = np.concatenate([at[:, None] - np.arange(1, reach + 1), right[:, None] + np.arange(reach)], axis=1)
    known = (near >= 0) & (near < len(where))
    near = where[np.clip(near, 0, len(where) - 1)]
    own, widths, counts = width[cells], np.where(known, width[near], 0.0), level.counts[near]
    square = np.maximum((widths**2).sum(axis=1), np.finfo(float).tiny)
    density = (counts * widths).sum(axis=1) / square  # the same noise in all: wide cells tell more
    apart = np.where(known, counts - density[:, None] * widths, 0.0)
    varies = np.maximum((apart**2).sum(axis=1) - (known.sum(axis=1) - 1) * level.std**2, 0.0)
    known &= widths * _NARROW >= own[:, None]
    rows = counts * own[:, None] / np.where(known, widths, 1.0)
    lowest, highest = (np.where(known, rows, end) for end in (np.inf, -np.inf))
    return _Around(own * density, lowest.min(axis=1), highest.max(axis=1), own**2 * (level.std**2 + varies) / square)


def _candidates(
    levels: Sequence[Level], parents: Sequence[Integers], alone: Sequence[Mask], least: float
) -> tuple[Integers, Integers]:
    """Return the level of each cell that may hold an atom, and its cell on every level (-1 on finer ones), ascending.

    ``parents`` are each level's cells' places on the level before, and ``alone`` says which have been single values
    since the first level.
    """
    found: list[tuple[int, int]] = []
    last = len(levels) - 1
    holds = np.zeros(len(levels[last].counts), dtype=bool)
    for depth in range(last, 0, -1):
        level = levels[depth]
        cells = np.arange(len(level.counts))
        highest = np.maximum(_around(level, cells, ~alone[depth], 1).highest, 0.0)
        excess = level.counts - highest
        clear = excess >= np.maximum(STANDS_OUT * np.sqrt(level.std**2 + highest + 1), least)
        here = ~alone[depth] & ~holds & clear & (level.counts >= RATIO * highest)
        for cell in np.flatnonzero(here):
            if depth == last:
                found.append((depth, cell))
                continue
            fine = levels[depth + 1]
            parts = slice(*np.searchsorted(parents[depth + 1], [cell, cell + 1]))
            peak = int(parts.start + np.argmax(fine.counts[parts]))
            if fine.counts[peak] >= excess[cell] - AGREES * math.hypot(level.std, fine.std):
                shows = fine.counts[peak] >= SHOWS * fine.std
                found.append((depth + 1, peak) if shows else (depth, cell))
                holds[cell] = True
        if depth == last:
            holds = here
        holds = np.bincount(parents[depth], weights=holds, minlength=len(levels[depth - 1].counts)) > 0
    depths = np.array([depth for depth, _ in found], dtype=np.int64)
    paths = np.full((len(found), len(levels)), -1, dtype=np.int64)
    for atom, (depth, cell) in enumerate(found):
        for up in range(depth, -1, -1):
            paths[atom, up] = cell
            cell = parents[up][cell]
    order = np.argsort([levels[depth].grid.lower[cell] for depth, cell in found])
    return depths[order], paths[order]


def _atoms(
    levels: Sequence[Level], depths: Integers, paths: Integers, counts: Array, variances: Array, steps: Sequence[int]
) -> Atoms:
    """Return the atoms of these cells, each with the roundest number of its cell."""
    cells = [(levels[depth].grid, path[depth]) for depth, path in zip(depths, paths, strict=True)]
    lower = np.array([grid.lower[cell] for grid, cell in cells])
    upper = np.array([grid.upper[cell] for grid, cell in cells])
    per_unit = levels[0].grid.per_unit
    half = 0.5 / per_unit if per_unit else 0.0
    values = [roundest(low + half, high - half, per_unit, steps) for low, high in zip(lower, upper, strict=True)]
    return Atoms(np.array(values), lower, upper, counts, variances)
