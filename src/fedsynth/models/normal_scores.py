"""Normal scores: every column, of whatever kind, as a latent standard normal variable.

A column is an ordered list of *cells*: the values of a category, or intervals of numbers on a public grid, and one
cell for what is missing. A cell takes the interval of the normal axis that its share of the rows asks for, so that a
category and a number are treated alike. Cells are public; only their shares come from rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedsynth.schema.columns import Datetime, Numeric

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

FARTHEST = 3.719  # largest score: a probability of 1e-4 lies beyond, the paper's lambda
TERMS = 300  # of the series in r: r^300 is 5e-8 at 0.945, and coefficients fall as well
_NARROW = 1e-12  # share below which an interval is a point


# ---------------------------------------------------------------------------------------------------------------------
# Cells of numbers


@dataclass(frozen=True, eq=False)
class Grid:
    """Public cells of a numeric or datetime column: cell i holds the values from ``lower[i]`` up to ``upper[i]``.

    A cell without width is an atom. ``per_unit`` says of which fraction of a unit values are multiples; 0 for all.
    """

    lower: Array
    upper: Array
    per_unit: int

    @classmethod
    def of(cls, column: Numeric | Datetime, bins: int) -> Grid:
        """Return about ``bins`` cells between the column's public bounds, in steps of the schema's own bins.

        Values like to pile up at a lower bound (no loss, no visit, no gain): the first bin is cut further, in half,
        and in half again, and both bounds are atoms of their own.
        """
        edges = column.bin_edges
        own = len(edges) - 1
        if own > bins:
            edges = edges[np.linspace(0, own, bins + 1).round().astype(int)]
        parts = max(1, bins // own)
        cuts = (edges[:-1, None] + np.diff(edges)[:, None] * np.arange(parts) / parts).ravel()[1:]
        low, high = float(edges[0]), float(edges[-1])
        first = (cuts[0] if len(cuts) else high) - low
        halves = low + first * 0.5 ** np.arange(2 * max(1, round(math.log2(bins))), 0, -1.0)
        per_unit = per_unit_of(column)
        if per_unit:
            # Halfway between values, below the first that a cut leaves above it: no value is ever on a cut.
            cuts = (np.ceil(np.round(np.concatenate([halves, cuts]) * per_unit, 6)) - 0.5) / per_unit
            low, high = low - 0.5 / per_unit, high + 0.5 / per_unit
            upper = np.unique(np.append(cuts[(cuts > low) & (cuts < high)], high))
            return cls(np.append(low, upper[:-1]), upper, per_unit)
        upper = np.unique(np.concatenate([[low], halves, cuts, [np.nextafter(high, low), high]]))
        lower = np.append(low, upper[:-1])
        lower[-1] = high
        return cls(lower, upper, 0)

    def __len__(self) -> int:
        return len(self.upper)

    @property
    def cuts(self) -> Array:
        """The cells as cut points of an :class:`~fedsynth.schema.bins.Axis`: their upper ends, zero without a sign."""
        return self.upper + 0.0

    @property
    def centres(self) -> Array:
        """Middle of each cell."""
        return (self.lower + self.upper) / 2

    def values(self, cells: Integers, share: Array) -> Array:
        """Return the number at ``share`` (0 to 1) of each cell; NaN past the last cell."""
        held = np.minimum(cells, len(self) - 1)
        drawn = self.lower[held] + share * (self.upper[held] - self.lower[held])
        return np.where(cells < len(self), self.admitted(drawn), np.nan)

    def overlap(self, low: float, high: float) -> tuple[Array, Array]:
        """Return where in each cell (0 to 1) the numbers from ``low`` to ``high`` begin and end; equal without any."""
        half = 0.5 / self.per_unit if self.per_unit else 0.0
        width = self.upper - self.lower
        safe = np.where(width > 0, width, 1.0)
        begin, end = (np.clip((one - self.lower) / safe, 0, 1) for one in (low - half, high + half))
        inside = (low <= self.lower) & (self.lower <= high)
        return np.where(width > 0, begin, 0.0), np.where(width > 0, end, inside.astype(np.float64))

    def admitted(self, numbers: Array) -> Array:
        """Return the nearest values that the column admits."""
        if not self.per_unit:
            return np.clip(numbers, self.lower[0], self.upper[-1])
        half = 0.5 / self.per_unit
        inside = np.clip(numbers, self.lower[0] + half, self.upper[-1] - half)
        whole: Array = np.rint(inside * self.per_unit) / self.per_unit
        return whole

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the cells as arrays; the inverse of :meth:`from_arrays`."""
        return {"lower": self.lower, "upper": self.upper, "per_unit": np.array(self.per_unit)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Grid | None:
        """Return the cells among ``arrays``; ``None`` where they hold none: the column is a category."""
        return cls(arrays["lower"], arrays["upper"], int(arrays["per_unit"])) if "upper" in arrays else None


def codes_of(column: Numeric | Datetime, numbers: Array) -> Integers:
    """Return the schema's codes of numbers within the column's bounds; NaN has the code of a missing value."""
    edges = column.bin_edges
    codes = np.clip(np.searchsorted(edges, numbers, side="right") - 1, 0, len(edges) - 2)
    return np.where(np.isnan(numbers), len(edges) - 1, codes)


def series_of(column: Numeric | Datetime, numbers: Array) -> pd.Series[Any]:
    """Return numbers that a column admits as the values that it decodes to; NaN is missing."""
    gone = np.isnan(numbers)
    known = np.where(gone, 0.0, numbers)
    if isinstance(column, Datetime):
        instants = (known.astype(np.int64) * column.microseconds).astype("datetime64[us]")
        instants[gone] = np.datetime64("NaT")
        times = pd.Series(instants, name=column.name)
        return times if column.timezone is None else times.dt.tz_localize("UTC").dt.tz_convert(column.timezone)
    if not column.integer:
        return pd.Series(numbers, name=column.name)
    whole = known.astype(np.int64)
    return pd.Series(pd.arrays.IntegerArray(whole, gone) if column.missing else whole, name=column.name)


def per_unit_of(column: Numeric | Datetime) -> int:
    """Return of which fraction of a unit a column's values are multiples; 0 for all."""
    if isinstance(column, Datetime) or column.integer:
        return 1
    return 0 if column.decimals is None else 10**column.decimals


# ---------------------------------------------------------------------------------------------------------------------
# Scores


@dataclass(frozen=True, eq=False)
class NormalScores:
    """How one column's cells lie on a standard normal axis: ``order`` of the cells, and the ``shares`` of all cells.

    The paper's interval-based encoding (ICDM) has them in ascending order of frequency.
    """

    order: Integers
    shares: Array

    @classmethod
    def of(cls, shares: Array, order: Integers | None = None) -> NormalScores:
        """Return the axis of cells with these shares (normalised here), in their own order if no other is given."""
        total = shares.sum()
        even = np.full(len(shares), 1 / len(shares))
        return cls(np.arange(len(shares)) if order is None else order, shares / total if total > 0 else even)

    @property
    def thresholds(self) -> Array:
        """Where one place of the axis ends and the next begins, shape ``(cells - 1,)``; infinite beside empty ends."""
        from scipy.special import ndtri

        thresholds: Array = ndtri(np.clip(np.cumsum(self.shares[self.order])[:-1], 0, 1))
        return thresholds

    def scores(self) -> Array:
        """Return each cell's mean of a standard normal over its interval, by cell, at most ``FARTHEST`` from zero.

        Deterministic where the paper draws a random point of the interval: the expectation of every product of two
        columns is the same, and so is every run. A cell without share has the score of the point where it lies.
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
        """Return the cell at each point of the axis, and how far into its interval the point lies (0 to 1)."""
        from scipy.special import ndtr

        thresholds = self.thresholds
        place = np.searchsorted(thresholds, z, side="right")
        ends = ndtr(np.concatenate([[-np.inf], thresholds, [np.inf]]))
        width = np.diff(ends)[place]
        inside = np.clip((ndtr(z) - ends[place]) / np.where(width > 0, width, 1.0), 0, 1)
        return self.order[place], inside

    def within(self, cells: Integers, rng: np.random.Generator) -> Array:
        """Return a normal point in each cell's interval: the inverse of :meth:`cells`."""
        from scipy.special import ndtr, ndtri

        ends = ndtr(np.concatenate([[-np.inf], self.thresholds, [np.inf]]))
        place = np.argsort(self.order)[cells]
        u = ends[place] + rng.random(len(cells)) * (ends[place + 1] - ends[place])
        tiny = np.finfo(np.float64).tiny
        points: Array = ndtri(np.clip(u, tiny, 1 - 2.0**-53))
        return points

    def coefficients(self, scores: Array) -> Array:
        """Return the Hermite coefficients 1 to 300 of the step function that gives each place its cell's score.

        The integral of h_k times the normal density over (a, b) is (h_(k-1)(a) f(a) - h_(k-1)(b) f(b)) / sqrt(k) for
        the normalised polynomials h_k, so that each threshold adds its step times one such term.
        """
        thresholds = self.thresholds
        finite = np.isfinite(thresholds)
        x, steps = thresholds[finite], np.diff(scores[self.order])[finite]
        previous, current = np.zeros_like(x), np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
        found = np.empty(TERMS)
        for k in range(1, TERMS + 1):
            found[k - 1] = steps @ current / math.sqrt(k)
            previous, current = current, (x * current - math.sqrt(k - 1) * previous) / math.sqrt(k)
        return found


# ---------------------------------------------------------------------------------------------------------------------
# The order of levels


def correspondence_order(table: Array, rows: Array, columns: Array, std: float) -> Integers:
    """Return the order of one column's levels by what other columns say of them, shape ``(levels,)``.

    ``table`` holds noisy counts of the levels against the levels of one or more other columns, side by side;
    ``rows`` and ``columns`` are the known counts of both, and ``std`` is the noise in each cell. Levels are ordered
    along the first axis of a correspondence analysis (Benzécri 1973) in which cells are weighted by sampling and
    noise variance together, and rare levels are drawn to the middle.
    """
    expected = np.outer(rows, columns) / max(rows.sum(), 1.0)
    residual = (table - expected) / np.sqrt(expected + std**2 + _NARROW)
    left, singular, _ = np.linalg.svd(residual, full_matrices=False)
    place = left[:, 0] * singular[0] / np.sqrt(rows + std * math.sqrt(table.shape[1]) + _NARROW)
    return np.argsort(np.sign(place[np.abs(place).argmax()]) * place, kind="stable")
