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


def piecewise_mean(counts: Array, variance: float, penalty: float, typical: float = 0.0) -> tuple[Array, Array]:
    """Smooth noisy counts of neighbouring cells; return each cell's expected count and its probability of holding rows.

    ``counts``, shape ``(cells,)``, are unbiased with Gaussian noise of ``variance`` (rows squared) each; both results
    have the same shape. The expectation is over all partitions of the cells into pieces of equal counts. A partition
    has the weight ``exp(-(squared error / variance + penalty * pieces) / 2)``, where the error is that of the pieces'
    means, so a larger ``penalty`` gives fewer pieces. The sum of the counts is preserved. Time and memory grow with the
    square of the number of cells.

    With a ``typical`` count of non-empty cells (in rows), a piece may also be empty. An empty piece has no free
    parameter; a non-empty one has a height, spread over counts of the typical size, so its weight is divided by the
    Occam factor ``1 + typical / deviation``, where the deviation is that of the piece's mean. Noise in cells beyond all
    rows then averages to nothing, while it would add up to rows if each height were as likely as zero. The sum of the
    counts is then not preserved. Without ``typical``, all probabilities of holding rows are 1.
    """
    cells = len(counts)
    ends = np.arange(cells + 1)
    sums, squares = (np.concatenate([[0.0], np.cumsum(terms)]) for terms in (counts, counts**2))
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
