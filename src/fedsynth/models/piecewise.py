"""Noisy counts of neighbouring cells, evened out where the noise does not say that neighbours differ.

A number's cells hold either about what their neighbours hold, or much more (an atom) or nothing. Averaging over all
ways to cut the row of cells into pieces of equal counts keeps both: a Bayesian model of product partitions (Barry &
Hartigan 1992, doi 10.1214/aos/1176348521), computed exactly by dynamic programming over the places of the cuts.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def piecewise_mean(counts: Array, variance: float, penalty: float, typical: float = 0.0) -> tuple[Array, Array]:
    """Return the posterior mean of each cell's count, and the probability that it holds rows: both ``(cells,)``.

    ``counts`` are unbiased with Gaussian noise of ``variance`` each. A way to cut the cells into pieces has the weight
    ``exp(-(squared error / variance + penalty * pieces) / 2)``, its error being that of the pieces' means. The sum of
    the counts stays. Takes time and memory in the square of the number of cells.

    With a ``typical`` count, that of a cell if all were alike, a piece may also hold nothing. Its height need not be
    told, whereas one that holds rows had a height spread over counts of this size: its weight is divided by the Occam
    factor ``1 + typical / deviation``, with the deviation of the piece's mean. Noise in cells beyond all rows then adds
    up to nothing, where it would add up to rows if each height were as likely as zero; the sum of the counts does not
    stay.
    """
    cells = len(counts)
    ends = np.arange(cells + 1)
    sums, squares = (np.concatenate([[0.0], np.cumsum(one)]) for one in (counts, counts**2))
    length = np.maximum(ends[None, :] - ends[:, None], 1)
    means = (sums[None, :] - sums[:, None]) / length
    errors = (squares[None, :] - squares[:, None]) - length * means**2
    filled = -(errors / variance + penalty) / 2
    empty = np.full_like(filled, -np.inf)
    if typical > 0:
        filled -= np.log1p(typical * np.sqrt(length / variance))
        empty = -((squares[None, :] - squares[:, None]) / variance + penalty) / 2
    either = np.logaddexp(filled, empty)
    piece = np.where(ends[None, :] > ends[:, None], either, -np.inf)

    before, after = np.zeros(cells + 1), np.zeros(cells + 1)  # log weights of all ways to cut what lies on either side
    for end in range(1, cells + 1):
        before[end] = _log_sum(before[:end] + piece[:end, end])
        start = cells - end
        after[start] = _log_sum(after[start + 1 :] + piece[start, start + 1 :])
    weight = np.exp(before[:, None] + piece + after[None, :] - before[cells] + filled - either)
    return _of_cells(weight * means), np.clip(_of_cells(weight), 0.0, 1.0)


def _of_cells(pieces: Array) -> Array:
    """Return the sum over the pieces that hold each cell; entry ``[start, end]`` is a piece's."""
    found: Array = np.cumsum(pieces.sum(axis=1) - pieces.sum(axis=0))[:-1]
    return found


def _log_sum(logs: Array) -> float:
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).sum()))
