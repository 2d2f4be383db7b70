"""Smoothing of noisy counts of neighbouring cells by a piecewise constant model.

A cell of a number has about the same count as its neighbours, or a much larger one (an atom), or none. Averaging over
all partitions of the cells into pieces of equal counts preserves all three: a Bayesian product partition model (Barry &
Hartigan 1992, doi 10.1214/aos/1176348521), computed exactly by dynamic programming over the cut points.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_NEXT = 3.0  # deviations of the noise from which on a cell next to others with rows has rows, too


def piecewise_mean(counts: Array, variance: float, penalty: float, typical: float = 0.0) -> tuple[Array, Array]:
    """Smooth noisy counts of neighbouring cells; return each cell's expected count and its probability of holding rows.

    ``counts``, shape ``(cells,)``, are unbiased with Gaussian noise of ``variance`` (rows squared) each; both results
    have the same shape. The expectation is over all partitions of the cells into pieces of equal counts. A partition
    has the weight ``exp(-(squared error / variance + penalty * pieces) / 2)``, where the error is that of the pieces'
    means, so a larger ``penalty`` gives fewer pieces. The sum of the counts is preserved. Time and memory grow with the
    square of the number of cells.

    With a ``typical`` count of non-empty cells (in rows), a piece may also be empty. An empty piece has no free
    parameter; a non-empty one has a positive height, spread over counts of the typical size. Let m be the piece's mean
    and d the deviation of its noise. The integral over a height h >= 0 of the normal density of m around h is Phi(m /
    d): the piece's weight is multiplied by it, and divided by the Occam factor ``1 + typical / d``; the expected height
    is that of the truncated normal distribution, ``m + d phi(m / d) / Phi(m / d)``. A dip in the noise is then no sign
    of rows, as it would be if heights could be negative, and noise in cells beyond all rows averages to nothing. The
    sum of the counts is not preserved. Without ``typical``, heights may be negative, and all probabilities of holding
    rows are 1.
    """
    from scipy.special import log_ndtr

    cells = len(counts)
    ends = np.arange(cells + 1)
    sums, squares = (np.concatenate([[0.0], np.cumsum(terms)]) for terms in (counts, counts**2))
    length = np.maximum(ends[None, :] - ends[:, None], 1)
    means = (sums[None, :] - sums[:, None]) / length
    errors = (squares[None, :] - squares[:, None]) - length * means**2
    filled = -(errors / variance + penalty) / 2
    empty = np.full_like(filled, -np.inf)
    if typical > 0:
        deviation = np.sqrt(variance / length)
        positive = log_ndtr(means / deviation)
        filled += positive - np.log1p(typical / deviation)
        means = means + deviation * np.exp(-((means / deviation) ** 2) / 2 - positive) / math.sqrt(2 * math.pi)
        empty = -((squares[None, :] - squares[:, None]) / variance + penalty) / 2
    either = np.logaddexp(filled, empty)
    piece = np.where(ends[None, :] > ends[:, None], either, -np.inf)

    before, after = np.zeros(cells + 1), np.zeros(cells + 1)  # log weights of all partitions on either side
    for end in range(1, cells + 1):
        before[end] = _log_sum(before[:end] + piece[:end, end])
        start = cells - end
        after[start] = _log_sum(after[start + 1 :] + piece[start, start + 1 :])
    weight = np.exp(before[:, None] + piece + after[None, :] - before[cells] + filled - either)
    return _of_cells(weight * means), np.clip(_of_cells(weight), 0.0, 1.0)


def _of_cells(pieces: Array) -> Array:
    """Return, for each cell, the sum over the pieces that contain it; entry ``[start, end]`` belongs to a piece."""
    found: Array = np.cumsum(pieces.sum(axis=1) - pieces.sum(axis=0))[:-1]
    return found


def _log_sum(logs: Array) -> float:
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).sum()))


def clear_range(counts: Array, std: float) -> slice:
    """Return the range of neighbouring cells in which rows stand out from the noise; it may be empty.

    ``counts``, shape ``(cells,)``, have Gaussian noise of ``std`` rows each. The sum over an interval of k cells stands
    out if it exceeds ``t std sqrt(k)``, with ``t = sqrt(2 ln(50 n (n + 1)))`` for n cells. If all cells were empty, any
    one interval would do so with a probability of at most ``exp(-t^2 / 2) / 2 = 1 / (100 n (n + 1))``, and any of the
    ``n (n + 1) / 2`` intervals with at most 1 / 200. The range ends with the interval that starts last of those that
    stand out, and begins with the one that ends first: rows beyond cannot be told from noise. Of several intervals with
    the same start (or end), the shortest counts. Then its neighbours are added, one after the other, as long as each
    has more than ``_NEXT`` (3) times the noise: of few cells, few exceed that by chance.
    """
    size = len(counts)
    sums, ends = np.concatenate([[0.0], np.cumsum(counts)]), np.arange(size + 1)
    length = ends[None, :] - ends[:, None]
    clear = (length > 0) & (sums[None, :] - sums[:, None] > standing_out(size) * std * np.sqrt(np.maximum(length, 0)))
    if not clear.any():
        return slice(0, 0)
    last, first = int(np.flatnonzero(clear.any(axis=1))[-1]), int(np.flatnonzero(clear.any(axis=0))[0])
    start, stop = int(np.flatnonzero(clear[:, first])[-1]), int(np.flatnonzero(clear[last])[0])
    hidden = np.flatnonzero(counts <= _NEXT * std)
    start = int(hidden[hidden < start].max(initial=-1)) + 1
    return slice(start, int(hidden[hidden >= stop].min(initial=size)))


def standing_out(cells: int) -> float:
    """Return by how many deviations of noise a sum over neighbours must exceed 0 to stand out (:func:`clear_range`)."""
    return math.sqrt(2 * math.log(50 * cells * (cells + 1)))
