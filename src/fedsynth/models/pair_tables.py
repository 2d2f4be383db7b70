"""Denoising of noisy 2-way tables before a model is fitted to them.

The association of two columns has few dimensions, while noise has as many as there are cells. A table is therefore
split into an expected table (independent columns or, for correlated ordered columns, the Gaussian copula with the
table's own correlation, if need be without the rows of values that many rows share) and a remainder. Only those
singular vectors of the remainder that stand out of the noise are kept. A model can then be fitted to convergence. If it
were fitted to the raw tables, it would fit noise, and since counts cannot be negative, noise in cells without rows
would weaken strong correlations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsynth.models.estimate import Measurement
from fedsynth.models.junction_tree import Clique
from fedsynth.models.normal_scores import NormalScores

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

CLEAR = 3.0  # a correlation is significant from this many standard deviations on
_NODES = 12  # points of a group at which the copula's conditional distribution is evaluated
_RAKES = 3  # rounds of iterative proportional fitting, to restore the margins
_NEAR = 1e-3  # error of a copula's correlation
_MOST = 0.995  # largest absolute correlation
_HALVINGS = 12  # of an interval that holds the correlation of a part of a table
_HEAP = 1.5  # share of a group of a value that many rows share, relative to the mean of the ordered groups
_LEAST = 1e-9  # replaces sums that must not be 0
_ROOM = 2.0  # prior standard deviation of a cell's deviation from the copula, as a multiple of the copula's count
_FREE = 3.0  # degrees of freedom of an expected table that its margins leave, besides its own numbers


@dataclass(frozen=True, eq=False)
class Margin:
    """The distribution of one column of a pair over its groups (bins), and how many of them are in a meaningful order.

    ``shares``, shape ``(groups,)``, sum to 1. The first ``ordered`` groups are ordered; the others are those of missing
    or of merged rare values, or all groups of an unordered category.
    """

    shares: Array
    ordered: int

    @property
    def of_ordered(self) -> Array:
        """Shares of the ordered groups, normalised to sum 1."""
        held = self.shares[: self.ordered]
        among: Array = held / held.sum()
        return among

    @property
    def heap(self) -> int | None:
        """The commonest ordered group, if its share is more than 1.5 times the mean of three or more; else ``None``."""
        shares = self.shares[: self.ordered]
        if len(shares) < 3 or not _HEAP * shares.mean() < shares.max() < shares.sum() - _LEAST:
            return None
        return int(shares.argmax())

    def scores(self) -> Array:
        """Return the normal scores of the ordered groups, shifted so that their mean over the rows is 0."""
        found = NormalScores.of(self.of_ordered).scores()
        centred: Array = found - self.of_ordered @ found
        return centred


@dataclass(frozen=True, eq=False)
class PairTable:
    """A denoised table of two columns; made by :func:`denoised`.

    ``table`` holds the estimated rows per cell. ``numbers`` is the effective number of parameters estimated from the
    noisy table, which determines the noise that is left. ``strength`` is the table's distance (L1, in rows) from that
    of independent columns. ``correlation`` is that of the Gaussian copula of two ordered columns, or 0 if it is within
    3 standard deviations of its noise; if ``apart``, it is that of the rows without the commonest values. ``clear`` is
    true if the expected table (:func:`expected`) is not that of independent columns, or if the rest of the table has a
    singular value larger than noise alone would give.
    """

    table: Array
    numbers: float
    strength: float
    clear: bool
    correlation: float
    apart: bool

    def measurement(self, pair: Clique, std: float) -> Measurement:
        """Return the table of ``pair`` with the noise left; ``std`` is that in a cell before denoising."""
        return Measurement(pair, self.table, std * math.sqrt(min(1.0, self.numbers / self.table.size)))


def denoised(values: Array, std: float, first: Margin, second: Margin, total: float) -> PairTable:
    """Denoise the table ``values`` of two columns (rows per cell), given the distributions of both columns.

    The table is of about ``total`` rows, with independent noise of ``std`` in each cell. The result is the table
    expected of these distributions and of their dependence, if it is significant (:func:`expected`), plus a low-rank
    estimate of the remainder (:func:`low_rank`). In cells where the table expected of a dependence has almost no rows,
    the remaining noise would dominate, and a fit keeps only its positive part: far from the diagonal, this reduces the
    correlation. If the dependence is significant, the remainder is therefore Wiener filtered, under the prior that
    deviations are proportional to the expected counts.
    """
    base, correlation, free, apart = expected(values, std, first, second, total)
    rest, rank = low_rank(_without_margins(values - base), std, 1)
    rows, columns = values.shape
    numbers = free + _FREE if free and not rank else max(1, rank) * (rows + columns)
    if free and rank:
        noise = std**2 * min(1.0, numbers / values.size)
        deviation = (_ROOM * base) ** 2
        rest = rest * (deviation / (deviation + noise))
    distance = float(np.abs(base + rest - total * np.outer(first.shares, second.shares)).sum())
    return PairTable(base + rest, numbers, distance, bool(rank or free), correlation, apart)


def contradicts(values: Array, std: float, table: Array) -> bool:
    """Return whether the noisy table ``values`` contradicts the ``table`` that a model gives for it.

    It does if the difference, without its margins, has a singular value larger than noise of ``std`` in each cell alone
    would give (:func:`low_rank`).
    """
    return low_rank(_without_margins(values - table), std, 1)[1] > 0


def dependence(values: Array, std: float, first: Margin, second: Margin, total: float) -> tuple[float, float]:
    """Return an estimate of how far two columns are from independence, and their correlation (0: not significant).

    The distance is the L2 distance, in rows, between the exact table and that of independent columns. The arguments are
    those of :func:`denoised`. The squared distance of the noisy table is reduced by the expected square of the noise.
    The estimate is at least the distance of the expected table (:func:`expected`).
    """
    independent = total * np.outer(first.shares, second.shares)
    rows, columns = values.shape
    square = float((_without_margins(values - independent) ** 2).sum()) - std**2 * (rows - 1) * (columns - 1)
    base, correlation, *_ = expected(values, std, first, second, total)
    return math.sqrt(max(square, float(((base - independent) ** 2).sum()), 0.0)), correlation


class Expected(NamedTuple):
    """A table of two columns (rows per cell), described by a few ``numbers`` besides its margins (0: independent).

    ``correlation`` is that of its Gaussian copula, or 0 if it is not significant; if ``apart``, that of the rows
    without the commonest values.
    """

    table: Array
    correlation: float
    numbers: int
    apart: bool = False


def expected(values: Array, std: float, first: Margin, second: Margin, total: float) -> Expected:
    """Return the table expected of two columns with these margins, whose noisy table is ``values``.

    For two ordered columns, it is the table of the Gaussian copula with the noisy table's own correlation, if this is
    significant (beyond 3 standard deviations of its noise). Otherwise it is the table of independent columns. Many rows
    may share a value in both columns, such as two zeros, whether or not the others depend on each other. If both have
    such a group (:attr:`Margin.heap`), these groups are therefore also tried apart, and taken so if that brings the
    table closer to the noisy one: by more than 3 standard deviations of the noise for each further number. The
    arguments are those of :func:`denoised`.
    """
    of_all = _of_copula(values, std, first, second, total)
    if first.heap is not None and second.heap is not None:
        apart = _apart(values, std, first, second, total, (first.heap, second.heap))
        gain = float(((values - of_all.table) ** 2).sum() - ((values - apart.table) ** 2).sum())
        if gain > CLEAR**2 * std**2 * (apart.numbers - of_all.numbers):
            return apart
    return of_all


def _of_copula(values: Array, std: float, first: Margin, second: Margin, total: float) -> Expected:
    """Return the table of the Gaussian copula with the correlation of ``values``, or of independent columns."""
    from scipy.optimize import brentq

    independent: Array = total * np.outer(first.shares, second.shares)
    own, noise, first_scores, second_scores = _correlation(values, std, first, second, total)
    if own == 0:
        return Expected(independent, 0.0, 0)
    rows, columns = first.ordered, second.ordered
    of_first, of_second = (margin.of_ordered for margin in (first, second))
    spread = (of_first @ first_scores**2) * (of_second @ second_scores**2)

    def moment(correlation: float) -> float:
        """Return what :func:`_correlation` finds in the exact table of this copula; it rises from 0 at 0."""
        return float(first_scores @ copula_shares(of_first, of_second, correlation) @ second_scores / spread)

    strongest = math.copysign(_MOST, own)
    limit = abs(moment(strongest))
    own = math.copysign(min(abs(own), max(_MOST, limit - noise)), own)  # noise also lifts it beyond what can be
    own_correlation = strongest
    if abs(own) < limit:
        own_correlation = float(brentq(lambda correlation: moment(correlation) - own, 0.0, strongest, xtol=_NEAR))
    weight = total * first.shares[:rows].sum() * second.shares[:columns].sum()
    independent[:rows, :columns] = weight * copula_shares(of_first, of_second, own_correlation)
    return Expected(independent, own_correlation, 1)


def _apart(values: Array, std: float, first: Margin, second: Margin, total: float, heaps: tuple[int, int]) -> Expected:
    """Return the table (rows per cell) in which the rows of the two groups ``heaps`` are described apart.

    The number of rows in both groups is that of ``values``. In the rows in neither, the columns have the Gaussian
    copula of those rows; in the rows in one of the two, the other column is distributed as in all rows.
    """
    table: Array = total * np.outer(first.shares, second.shares)
    sides = [margin.shares[: margin.ordered] for margin in (first, second)]
    weight = total * math.prod(float(side.sum()) for side in sides)
    row, column = heaps
    most = [float(side.max() / side.sum()) for side in sides]
    both = float(np.clip(values[row, column] / weight, max(0.0, sum(most) - 1), min(most)))
    neither = 1 - sum(most) + both
    others = np.delete(np.arange(first.ordered), row), np.delete(np.arange(second.ordered), column)
    left, right = (Margin(side[at] / side[at].sum(), len(at)) for side, at in zip(sides, others, strict=True))
    rest = Expected(np.zeros((left.ordered, right.ordered)), 0.0, 0)
    if neither > _LEAST:
        rest = _of_copula(values[np.ix_(*others)], std, left, right, weight * neither)
    table[np.ix_(*others)] = rest.table
    table[row, column] = weight * both
    table[row, others[1]] = weight * (most[0] - both) * right.shares
    table[others[0], column] = weight * (most[1] - both) * left.shares
    return Expected(table, rest.correlation, rest.numbers + 1, apart=True)


def _correlation(
    values: Array, std: float, first: Margin, second: Margin, total: float
) -> tuple[float, float, Array, Array]:
    """Return the correlation of normal scores (0 unless it is significant), its noise, and both columns' scores.

    The correlation is a linear function of the table, so noise does not bias it. It is that of scores relative to
    their variances, which are below 1 for groups: if most rows are in one, it may exceed 1 by far.
    """
    none = 0.0, 0.0, np.zeros(0), np.zeros(0)
    if min(first.ordered, second.ordered) < 2:
        return none
    parts = [margin.shares[: margin.ordered].sum() for margin in (first, second)]
    if min(parts) <= 0:
        return none
    first_scores, second_scores = first.scores(), second.scores()
    spread = math.prod(
        float(margin.shares[: margin.ordered] @ scores**2) / part
        for margin, scores, part in zip((first, second), (first_scores, second_scores), parts, strict=True)
    )
    unit = total * parts[0] * parts[1] * spread
    if spread < 1e-9:
        return none
    found = float(first_scores @ values[: first.ordered, : second.ordered] @ second_scores) / unit
    noise = std * math.sqrt(float(first_scores @ first_scores) * float(second_scores @ second_scores)) / unit
    return (found if abs(found) > CLEAR * noise else 0.0), noise, first_scores, second_scores


def correlation_outside(
    table: Array, std: float, correlation: float, first: NDArray[np.bool_], second: NDArray[np.bool_]
) -> float:
    """Return the correlation of the Gaussian copula that is like ``table`` outside single values that many rows share.

    ``table`` holds the rows of pairs of ordered groups, with noise of ``std`` in each cell and ``correlation`` in all;
    ``first`` and ``second`` are the groups of single values. The result's copula has the same correlation of scores as
    the table in the cells of other groups or, if noise would hide one as strong as ``correlation`` in these, in those
    of at least one other group. If noise hides that as well, or if no group is of a single value, the result is
    ``correlation``.
    """
    shares = [np.maximum(table.sum(axis=axis), _LEAST) / max(table.sum(), _LEAST) for axis in (1, 0)]
    scores = [Margin(side, len(side)).scores() for side in shares]

    def moment(cells: Array) -> tuple[float, float]:
        """Return the correlation of scores in ``cells``, and the standard deviation of its noise."""
        rows = max(float(cells.sum()), _LEAST)
        one, two = ((score - cells.sum(axis=axis) @ score / rows) for score, axis in zip(scores, (1, 0), strict=True))
        spread = math.sqrt(max((cells.sum(axis=1) @ one**2) * (cells.sum(axis=0) @ two**2), 0.0))
        noise = std * math.sqrt(float((part * np.outer(one, two) ** 2).sum()))
        return (float(one @ cells @ two) / spread, noise / spread) if spread > _LEAST * rows else (0.0, math.inf)

    for part in (np.outer(~first, ~second), ~np.outer(first, second)):
        wanted, noise = moment(np.maximum(table, 0.0) * part)
        if not part.all() and CLEAR * noise <= abs(correlation):
            low, high = -_MOST, _MOST
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                below = moment(copula_shares(shares[0], shares[1], middle) * part)[0] < wanted
                low, high = (middle, high) if below else (low, middle)
            return (low + high) / 2
    return correlation


def copula_shares(first: Array, second: Array, correlation: float) -> Array:
    """Return the share of each cell under a Gaussian copula of two columns with these shares of ordered groups."""
    from scipy.special import ndtr, ndtri

    starts = np.cumsum(first) - first
    points = ndtri(np.clip(starts[:, None] + first[:, None] * ((np.arange(_NODES) + 0.5) / _NODES), 1e-9, 1 - 1e-9))
    cuts = ndtri(np.clip(np.cumsum(second)[:-1], 1e-12, 1 - 1e-12))
    below = ndtr((cuts - correlation * points[:, :, None]) / math.sqrt(1 - correlation**2)).mean(axis=1)
    shares: Array = first[:, None] * np.diff(below, axis=1, prepend=0.0, append=1.0)
    for _ in range(_RAKES):
        for axis, wanted in ((0, second), (1, first)):
            sums = shares.sum(axis=axis)
            factor = np.where(sums > 0, wanted / np.where(sums > 0, sums, 1.0), 0.0)
            shares = shares * np.expand_dims(factor, axis)
    return shares


def _without_margins(values: Array) -> Array:
    """Return a table whose rows and columns add up to 0: the margins are known better from elsewhere."""
    found: Array = values - values.mean(axis=0) - values.mean(axis=1, keepdims=True) + values.mean()
    return found


def low_rank(values: Array, std: float, fixed: int = 0) -> tuple[Array, int]:
    """Estimate the low-rank matrix behind a noisy one, and return it with its rank.

    ``values`` has independent noise of standard deviation ``std`` in each entry, or less its margins: ``fixed`` (1,
    else 0) dimensions fewer on each side. Singular values up to ``std * (sqrt(rows) + sqrt(columns))``, the largest to
    expect of noise alone, are set to 0. The others are reduced by the amount that noise adds to them, which is optimal
    for the squared error (Gavish & Donoho 2017, doi 10.1109/TIT.2017.2653801).
    """
    rows, columns = (length - fixed for length in values.shape)
    left, singular, right = np.linalg.svd(values / std, full_matrices=False)
    kept = singular > math.sqrt(rows) + math.sqrt(columns)
    large = singular[kept]
    shrunk = np.sqrt((large**2 - rows - columns) ** 2 - 4 * rows * columns) / large
    return std * (left[:, kept] * shrunk) @ right[kept], int(kept.sum())


def averaged(fine: Measurement, coarse: Measurement, unions: Mapping[int, Integers]) -> Measurement:
    """Return the noisy table ``fine``, combined by least squares with a table ``coarse`` over unions of its groups.

    ``unions`` maps a column's position to the number of the union that each of its groups is in. The noise of the two
    tables is independent. All fine cells that one coarse cell covers change by the same amount: by a part of the
    difference between the coarse cell and their sum, which is the larger the less noise ``coarse`` has. The standard
    deviation of the result is the root mean square over the cells.
    """
    of = [unions[column] for column in fine.clique]
    cell = np.ravel_multi_index(np.ix_(*of), coarse.values.shape)
    sums = np.bincount(cell.ravel(), weights=fine.values.ravel(), minlength=coarse.values.size)
    cells = np.bincount(cell.ravel(), minlength=coarse.values.size)
    variance = fine.std**2
    part = variance / (cells * variance + coarse.std**2)
    values = fine.values + ((coarse.values.ravel() - sums) * part)[cell]
    left = float(variance * (1 - part[cell]).mean())
    return Measurement(fine.clique, values, math.sqrt(left))
