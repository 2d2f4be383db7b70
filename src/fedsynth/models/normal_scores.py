"""Normal scores: maps every column, of any type, to a latent standard normal variable.

A column is an ordered list of *cells*: the values of a category, or intervals of numbers on a public grid, and one cell
for missing values. Each cell is an interval of the normal axis whose probability is the cell's share of the rows, so
categories and numbers are treated alike. Cells are public; only their shares come from rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter
from fedsynth.models.saved import check_shares, read_floats, read_integers

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

FARTHEST = 3.719  # largest score: normal values exceed it with probability 1e-4, the paper's lambda
TERMS = 300  # terms of the series in r: r^300 is 4e-8 at r = 0.945, and the coefficients decrease as well
_NARROW = 1e-12  # intervals of smaller probability are treated as points


# ---------------------------------------------------------------------------------------------------------------------
# Scores


@dataclass(frozen=True, eq=False)
class NormalScores:
    """One column's cells (values or bins) as consecutive intervals of a standard normal axis.

    An interval has the probability of its cell. ``order[i]`` is the cell at place i along the axis; ``shares``, by
    cell, sum to 1. The order is free; Fed-TDA's interval-based encoding orders cells by ascending frequency.
    """

    order: Integers
    shares: Array

    @classmethod
    def of(cls, shares: Array, order: Integers | None = None) -> NormalScores:
        """Make the normal axis of cells with these ``shares`` (or counts) in this ``order``, by default their own.

        If the shares sum to 0 or less, all cells get equal shares.
        """
        total = shares.sum()
        even = np.full(len(shares), 1 / len(shares))
        return cls(np.arange(len(shares)) if order is None else order, shares / total if total > 0 else even)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the cells' order and shares as named arrays."""
        return {"order": self.order, "shares": self.shares}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> NormalScores:
        """Restore the cells; raises :class:`InvalidParameter` for other arrays."""
        shares = read_floats(arrays, "shares", (None,), 0)
        check_shares("shares", shares)
        order = read_integers(arrays, "order", shares.shape, len(shares))
        if len(np.unique(order)) < len(order):
            raise InvalidParameter("the order of its cells is not a permutation")
        return cls(order, shares)

    @property
    def thresholds(self) -> Array:
        """Boundaries between the cells' intervals, shape ``(cells - 1,)``; infinite next to empty cells at an end."""
        from scipy.special import ndtri

        thresholds: Array = ndtri(np.clip(np.cumsum(self.shares[self.order])[:-1], 0, 1))
        return thresholds

    def scores(self) -> Array:
        """Return each cell's score, by cell: the mean of a standard normal over its interval, clipped to +-3.719.

        This is deterministic, while Fed-TDA draws a random point of the interval: the expectation of every product of
        two columns is the same, and runs are reproducible. A cell with share 0 has the score of the point where it
        lies.
        """
        from scipy.special import ndtr, ndtri

        ends = np.concatenate([[-np.inf], self.thresholds, [np.inf]])
        share = np.diff(ndtr(ends))
        density = np.exp(-(ends**2) / 2) / math.sqrt(2 * math.pi)
        narrow = share < _NARROW
        middle = ndtri((ndtr(ends[:-1]) + ndtr(ends[1:])) / 2)
        mean = np.where(narrow, middle, -np.diff(density) / np.where(narrow, 1.0, share))
        scores = np.empty_like(mean)
        scores[self.order] = np.clip(mean, -FARTHEST, FARTHEST)
        return scores

    def cells(self, z: Array) -> tuple[Integers, Array]:
        """Return the cell at each point ``z`` of the axis, and the point's place in it as a share of probability."""
        from scipy.special import ndtr

        thresholds = self.thresholds
        place = np.searchsorted(thresholds, z, side="right")
        ends = ndtr(np.concatenate([[-np.inf], thresholds, [np.inf]]))
        width = np.diff(ends)[place]
        inside = np.clip((ndtr(z) - ends[place]) / np.where(width > 0, width, 1.0), 0, 1)
        return self.order[place], inside

    def within(self, cells: Integers, rng: np.random.Generator) -> Array:
        """Draw a standard normal point in the interval of each of ``cells``, of the same shape."""
        from scipy.special import ndtr, ndtri

        ends = ndtr(np.concatenate([[-np.inf], self.thresholds, [np.inf]]))
        place = np.argsort(self.order)[cells]
        u = ends[place] + rng.random(len(cells)) * (ends[place + 1] - ends[place])
        tiny = np.finfo(np.float64).tiny
        points: Array = ndtri(np.clip(u, tiny, 1 - 2.0**-53))
        return points

    def coefficients(self, scores: Array) -> Array:
        """Return Hermite coefficients 1 to 300 of the step function from points of the axis to scores of cells.

        They give the correlation that discretising loses (:func:`~fedsynth.models.copula.latent_correlation`).
        ``scores`` is by cell. For the normalised polynomials h_k and normal density f, the integral of h_k f over (a,
        b) is ``(h_(k-1)(a) f(a) - h_(k-1)(b) f(b)) / sqrt(k)``, so each threshold contributes its step times one such
        term.
        """
        thresholds = self.thresholds
        finite = np.isfinite(thresholds)
        x, steps = thresholds[finite], np.diff(scores[self.order])[finite]
        previous, current = np.zeros_like(x), np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
        coefficients = np.empty(TERMS)
        for k in range(1, TERMS + 1):
            coefficients[k - 1] = steps @ current / math.sqrt(k)
            previous, current = current, (x * current - math.sqrt(k - 1) * previous) / math.sqrt(k)
        return coefficients


# ---------------------------------------------------------------------------------------------------------------------
# The order of levels


def correspondence_order(table: Array, rows: Array, columns: Array, std: float) -> Integers:
    """Order the values of an unordered category so that values associated alike with other columns are neighbours.

    ``table`` holds noisy counts of the category's values (rows of the table) against the values of one or more other
    columns, side by side. ``rows`` and ``columns`` are estimated counts of these values from other measurements;
    ``std`` is the noise in each cell of the table. Returns the values' codes in their new order: along the first axis
    of a correspondence analysis (Benzécri 1973) that divides each cell's deviation from independence by its standard
    deviation, from sampling and noise, and shrinks rare values towards the middle.
    """
    expected = np.outer(rows, columns) / max(rows.sum(), 1.0)
    residual = (table - expected) / np.sqrt(expected + std**2 + _NARROW)
    left, singular, _ = np.linalg.svd(residual, full_matrices=False)
    place = left[:, 0] * singular[0] / np.sqrt(rows + std * math.sqrt(table.shape[1]) + _NARROW)
    return np.argsort(np.sign(place[np.abs(place).argmax()]) * place, kind="stable")
