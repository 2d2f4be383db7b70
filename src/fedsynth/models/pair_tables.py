"""Noisy tables of two columns, with most of the noise taken out before a model is fitted to them.

What two columns have in common has few dimensions, and noise has as many as there are cells. A table is therefore
split into what would be expected (independent columns; of ordered ones that correlate, the Gaussian copula of the
table's own correlation), and a remainder, of which only the singular vectors that stand out of the noise are kept. A
model can be fitted to the end to what is left. Fitted to the raw tables, it would fit noise, and as counts cannot be
negative, noise in cells without rows would wash strong correlations out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsynth.models.estimate import Measurement
from fedsynth.models.junction_tree import Clique
from fedsynth.models.normal_scores import NormalScores

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

CLEAR = 3.0  # standard deviations from which on a correlation is no accident of noise
_NODES = 12  # points of a group at which the copula's conditional distribution is taken
_RAKES = 3  # rounds that bring a table's margins back
_STEPS = 4  # towards the correlation that has the wanted moment once it is in groups
_MOST = 0.995
_ROOM = 2.0  # prior standard deviation of a cell's deviation from the copula's, as a multiple of that
_FREE = 4.0  # numbers that a copula is told by: its correlation, and what the margins still move


@dataclass(frozen=True, eq=False)
class Margin:
    """One column of a pair: the ``shares`` of its groups, of which the first ``ordered`` ones lie in an order.

    The others are missing values, or all of an unordered category, which has ``ordered = 0``.
    """

    shares: Array
    ordered: int

    @property
    def of_ordered(self) -> Array:
        """Shares of the ordered groups among themselves."""
        held = self.shares[: self.ordered]
        among: Array = held / held.sum()
        return among

    def scores(self) -> Array:
        """Return the ordered groups' normal scores, centred, shape ``(ordered,)``."""
        found = NormalScores.of(self.of_ordered).scores()
        centred: Array = found - self.of_ordered @ found
        return centred


@dataclass(frozen=True, eq=False)
class PairTable:
    """A noisy table without most of its noise: its ``table`` in rows, and how many ``numbers`` it was told by.

    ``strength`` is its distance (L1, in rows) from that of independent columns; ``clear`` says whether anything stands
    out of the noise, and ``correlation`` is the copula's, 0 where there is none.
    """

    table: Array
    numbers: float
    strength: float
    clear: bool
    correlation: float

    def measurement(self, pair: Clique, std: float) -> Measurement:
        """Return the table as a measurement, given the noise's standard deviation ``std`` in a cell before."""
        return Measurement(pair, self.table, std * math.sqrt(min(1.0, self.numbers / self.table.size)))


def denoised(values: Array, std: float, first: Margin, second: Margin, total: float) -> PairTable:
    """Return a noisy table (white noise of ``std``) of ``total`` rows without most of the noise.

    Where the copula expects next to no rows, what is left of the noise would outweigh them, and a fit keeps its
    positive half: far from the diagonal, that costs correlation. The remainder is therefore filtered (Wiener), as if
    deviations from the copula were in proportion to it.
    """
    base, correlation = expected(values, std, first, second, total)
    rest, rank = low_rank(values - base, std)
    rows, columns = values.shape
    numbers = _FREE if correlation and not rank else max(1, rank) * (rows + columns)
    if correlation and rank:
        noise = std**2 * min(1.0, numbers / values.size)
        deviation = (_ROOM * base) ** 2
        rest = rest * (deviation / (deviation + noise))
    distance = float(np.abs(base + rest - total * np.outer(first.shares, second.shares)).sum())
    return PairTable(base + rest, numbers, distance, bool(rank or correlation), correlation)


def dependence(values: Array, std: float, first: Margin, second: Margin, total: float) -> tuple[float, float]:
    """Return the estimated distance (L2, in rows) of the exact table from that of independent columns.

    It is what the noisy one's is beyond the noise, and at least that of the copula of a clear correlation, which is
    returned as well (0 where there is none).
    """
    independent = total * np.outer(first.shares, second.shares)
    square = float(((values - independent) ** 2).sum()) - std**2 * values.size
    base, correlation = expected(values, std, first, second, total)
    return math.sqrt(max(square, float(((base - independent) ** 2).sum()), 0.0)), correlation


def expected(values: Array, std: float, first: Margin, second: Margin, total: float) -> tuple[Array, float]:
    """Return the table that columns of these margins would have, and its correlation.

    Of two ordered columns, it is that of the Gaussian copula whose correlation is the noisy table's own, if that is
    ``CLEAR``; of others, that of independent columns (correlation 0).
    """
    independent: Array = total * np.outer(first.shares, second.shares)
    own, one, two = _correlation(values, std, first, second, total)
    if own == 0:
        return independent, 0.0
    rows, columns = first.ordered, second.ordered
    of_first, of_second = (margin.of_ordered for margin in (first, second))
    spread = (of_first @ one**2) * (of_second @ two**2)
    found = own
    for _ in range(_STEPS):
        found = float(
            np.clip(found + own - one @ copula_shares(of_first, of_second, found) @ two / spread, -_MOST, _MOST)
        )
    weight = total * first.shares[:rows].sum() * second.shares[:columns].sum()
    independent[:rows, :columns] = weight * copula_shares(of_first, of_second, found)
    return independent, found


def _correlation(values: Array, std: float, first: Margin, second: Margin, total: float) -> tuple[float, Array, Array]:
    """Return the correlation of normal scores, 0 where it is not clear, and the scores.

    It is a linear function of the table, so that noise does not bias it.
    """
    none = 0.0, np.zeros(0), np.zeros(0)
    if min(first.ordered, second.ordered) < 2:
        return none
    held = [margin.shares[: margin.ordered].sum() for margin in (first, second)]
    if min(held) <= 0:
        return none
    one, two = first.scores(), second.scores()
    spread = math.prod(
        float(margin.shares[: margin.ordered] @ scores**2) / part
        for margin, scores, part in zip((first, second), (one, two), held, strict=True)
    )
    unit = total * held[0] * held[1] * spread
    if spread < 1e-9:
        return none
    found = float(one @ values[: first.ordered, : second.ordered] @ two) / unit
    noise = std * math.sqrt(float(one @ one) * float(two @ two)) / unit
    return (float(np.clip(found, -_MOST, _MOST)) if abs(found) > CLEAR * noise else 0.0), one, two


def copula_shares(first: Array, second: Array, correlation: float) -> Array:
    """Return the Gaussian copula's share of each cell, given the shares of each margin's groups, in order."""
    from scipy.special import ndtr, ndtri

    starts = np.cumsum(first) - first
    points = ndtri(np.clip(starts[:, None] + first[:, None] * ((np.arange(_NODES) + 0.5) / _NODES), 1e-9, 1 - 1e-9))
    cuts = ndtri(np.clip(np.cumsum(second)[:-1], 1e-12, 1 - 1e-12))
    below = ndtr((cuts - correlation * points[:, :, None]) / math.sqrt(1 - correlation**2)).mean(axis=1)
    found: Array = first[:, None] * np.diff(below, axis=1, prepend=0.0, append=1.0)
    for _ in range(_RAKES):
        for axis, wanted in ((0, second), (1, first)):
            sums = found.sum(axis=axis)
            factor = np.where(sums > 0, wanted / np.where(sums > 0, sums, 1.0), 0.0)
            found = found * np.expand_dims(factor, axis)
    return found


def low_rank(values: Array, std: float) -> tuple[Array, int]:
    """Return the matrix under white noise of ``std``, and its rank: singular values below the noise's edge are none.

    The others shrink by what noise adds to them: optimal for the squared error (Gavish & Donoho 2017, doi
    10.1109/TIT.2017.2653801).
    """
    rows, columns = values.shape
    left, singular, right = np.linalg.svd(values / std, full_matrices=False)
    kept = singular > math.sqrt(rows) + math.sqrt(columns)
    large = singular[kept]
    shrunk = np.sqrt((large**2 - rows - columns) ** 2 - 4 * rows * columns) / large
    return std * (left[:, kept] * shrunk) @ right[kept], int(kept.sum())


def averaged(fine: Measurement, coarse: Measurement, unions: Mapping[int, Integers]) -> Measurement:
    """Return a noisy table averaged, by least squares, with an independent one over unions of its groups.

    ``unions`` holds the union of each group, by column. What the sums over unions differ by is spread evenly.
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
