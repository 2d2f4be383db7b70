"""Intervals for statistics of noisy counts and sums: noise of known size, and the sampling of the rows, together.

All intervals are for 95 %, under normal noise and sampling errors. ``std`` is always the standard deviation of the
noise alone. Negative noisy counts are kept: clipping them at zero would bias every sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedsynth.schema.bins import Floats

Z = 1.959963984540054
"""Standard normal quantile of two-sided intervals for 95 %."""
_SINGULAR = 1e-9  # ratio of eigenvalues below which one is rounding alone
_LARGEST_STEP = 5.0  # of Newton's steps, in log odds


@dataclass(frozen=True)
class Interval:
    """A ``value`` with its interval from ``low`` to ``high``; its half-width by noise alone, and by sampling alone."""

    value: float
    low: float
    high: float
    noise: float
    sampling: float


def normal(value: float, noise: float, sampling: float = 0.0) -> Interval:
    """Return the interval of a normal estimate with these standard deviations by noise and by sampling."""
    half = Z * math.hypot(noise, sampling)
    return Interval(value, value - half, value + half, Z * noise, Z * sampling)


def ratio(total: float, total_std: float, records: float, records_std: float, variance: float) -> Interval:
    """Return the interval of a mean, ``total / records``, by Fieller's theorem, with Gaussian noise in both.

    ``variance`` is that of one record's value. The interval holds every mean m for which ``total - m records`` is
    within Z standard deviations of zero. ``records`` must exceed Z of its noise deviations. Source: Fieller (1954, doi
    10.1111/j.2517-6161.1954.tb00159.x).
    """

    def ends(variance: float) -> tuple[float, float]:
        square = records**2 - (Z * records_std) ** 2
        rest = total**2 - Z**2 * (total_std**2 + records * variance)
        root = math.sqrt(max(0.0, (total * records) ** 2 - square * rest))
        return (total * records - root) / square, (total * records + root) / square

    (low, high), (least, most) = ends(variance), ends(0.0)
    return Interval(total / records, low, high, (most - least) / 2, Z * math.sqrt(variance / records))


def share(inside: float, inside_std: float, outside: float, outside_std: float) -> Interval:
    """Return the interval of the share of records inside, from noisy counts of those inside and outside.

    It holds every share s for which ``(1 - s) inside - s outside`` is within Z deviations of zero, with the binomial
    variance of s: without noise this is Wilson's interval (1927, doi 10.1080/01621459.1927.10502953).
    """
    records = inside + outside

    def ends(binomial: float) -> tuple[float, float]:
        square = records**2 - Z**2 * (inside_std**2 + outside_std**2 - binomial)
        linear = -2 * inside * records - Z**2 * (binomial - 2 * inside_std**2)
        rest = inside**2 - (Z * inside_std) ** 2
        root = math.sqrt(max(0.0, linear**2 - 4 * square * rest))
        return (-linear - root) / (2 * square), (-linear + root) / (2 * square)

    (low, high), (least, most) = ends(records), ends(0.0)
    value = min(max(inside / records, 0.0), 1.0)
    sampling = Z * math.sqrt(value * (1 - value) / records)
    return Interval(value, min(max(low, 0.0), value), max(min(high, 1.0), value), (most - least) / 2, sampling)


def quantile(counts: Floats, std: float, ends: Floats, level: float) -> Interval:
    """Return the interval of a quantile from the noisy counts of cells, by Woodruff's method.

    ``ends`` are the cells' ends in the column's unit, shape ``(cells + 1,)``. The interval begins at the
    last end below which a smaller share than ``level`` surely lies, by noise and binomial variance, and ends at the
    first end below which a larger one does. Source: Woodruff (1952, doi
    10.1080/01621459.1952.10483443).
    """
    cells, records = len(counts), float(counts.sum())
    sampling = np.full(cells + 1, math.sqrt(max(0.0, records) * level * (1 - level)))
    noise, off = _quantile_noise(cells, std, level), _off(counts, level)
    low, high = _surely(off, Z * np.hypot(noise, sampling), ends)
    least, most = _surely(off, Z * noise, ends)
    sure, well = _surely(off, Z * sampling, ends)
    crossed = int(np.flatnonzero(np.maximum.accumulate(off)[1:] >= 0).min(initial=cells - 1))
    part = -off[crossed] / (off[crossed + 1] - off[crossed]) if off[crossed + 1] > off[crossed] else 0.5
    value = float(ends[crossed] + min(max(part, 0.0), 1.0) * (ends[crossed + 1] - ends[crossed]))
    return Interval(value, min(low, value), max(high, value), (most - least) / 2, (well - sure) / 2)


def quantile_of_rows(counts: Floats, std: float, ends: Floats, level: float, z: float) -> tuple[float, float]:
    """Return between which ends of cells the counted rows' own quantile lies, if noise is within ``z`` deviations."""
    return _surely(_off(counts, level), z * _quantile_noise(len(counts), std, level), ends)


def _off(counts: Floats, level: float) -> Floats:
    """Return how many more records than ``level`` of all lie below each end."""
    found: Floats = np.append(0.0, np.cumsum(counts)) - level * float(counts.sum())
    return found


def _quantile_noise(cells: int, std: float, level: float) -> Floats:
    below = np.arange(cells + 1)
    found: Floats = std * np.sqrt((1 - level) ** 2 * below + level**2 * (cells - below))
    return found


def _surely(off: Floats, slack: Floats, ends: Floats) -> tuple[float, float]:
    """Return the last end that is below the quantile by more than the ``slack``, and the first that is above it."""
    below = int(np.flatnonzero(off <= -slack).max(initial=0))
    above = int(np.flatnonzero(off >= slack).min(initial=len(off) - 1))
    first, last = sorted((below, above))
    return float(ends[first]), float(ends[last])


def survival(events: Floats, censored: Floats, std: float) -> list[Interval]:
    """Return the share that survives the end of each interval, by Kaplan and Meier, as far as enough are at risk.

    ``events`` and ``censored`` are noisy counts by interval of time, shape ``(intervals,)``; those censored count as at
    risk for the whole interval. The list ends before the first interval at whose begin fewer are at risk than 6
    deviations of that number's noise. The variance is Greenwood's and that of the noise, by the delta method on the
    logarithm; the interval is that of log(-log S) (Kalbfleisch & Prentice, 2002, doi 10.1002/9781118032985).
    """
    many, found = len(events), []
    at_risk = np.cumsum((events + censored)[::-1])[::-1]
    enough = at_risk > 6 * std * np.sqrt(2.0 * np.arange(many, 0, -1))
    last = many if enough.all() else int(np.argmin(enough))
    left = at_risk - events
    last = min(last, int(np.argmin(left > 0)) if not (left > 0).all() else many)
    log, greenwood = 0.0, 0.0
    of_events, of_both = np.zeros(many), np.zeros(many)
    for at in range(last):
        log += math.log(left[at] / at_risk[at])
        slope = events[at] / (at_risk[at] * left[at])
        greenwood += slope
        of_both[at:] += slope  # all who leave later are at risk here
        of_events[at] -= 1 / left[at]
        noise = std * math.sqrt(float(((of_both + of_events) ** 2).sum() + (of_both**2).sum()))
        found.append(_surviving(log, noise, math.sqrt(max(0.0, greenwood))))
    return found


def _surviving(log: float, noise: float, sampling: float) -> Interval:
    value, both = math.exp(min(log, 0.0)), Z * math.hypot(noise, sampling)
    if log < -1e-9 and both / -log < 20:
        low, high = (math.exp(log * math.exp(way * both / -log)) for way in (1, -1))
    else:
        low, high = math.exp(min(log - both, 0.0)), 1.0
    return Interval(value, low, high, Z * noise * value, Z * sampling * value)


def by_delta(statistic: Callable[[Floats], Floats], sums: Floats, stds: Floats, sampling: Floats) -> list[Interval]:
    """Return the intervals of a smooth ``statistic`` of noisy sums by the delta method, with numeric derivatives.

    ``sums`` and ``stds`` have the shape ``(sums,)``; the statistic's values, and their standard deviations by
    ``sampling``, any other, the same for both.
    """
    noise = np.sqrt((_errors(statistic, sums, stds) ** 2).sum(axis=0))
    return [normal(*map(float, parts)) for parts in zip(statistic(sums), noise, sampling, strict=True)]


def correlation(moments: Callable[[Floats], Floats], sums: Floats, stds: Floats, records: float) -> Interval:
    """Return the interval of a correlation: a covariance divided by the product of both standard deviations.

    ``moments`` returns these two, ``(2,)``, from the noisy ``sums``, ``(sums,)``, with noise of ``stds``; ``records``
    is the number of records. The interval is that of :func:`correlation_within`, with the sampling error of jointly
    normal numbers, ``(1 - r^2) / sqrt(records)``. Noise is thus not taken for smaller where the correlation happens to
    come out near 1, as it is on the scale of Fisher's z.
    """
    covariance, scale = moments(sums)
    sampling = Z / math.sqrt(max(records - 3, 1.0))
    low, high = correlation_within(moments, sums, stds, Z, sampling)
    least, most = correlation_within(moments, sums, stds, Z)
    sure, well = correlation_within(moments, sums, stds, 0.0, sampling)
    return Interval(_correlation(covariance, scale), low, high, (most - least) / 2, (well - sure) / 2)


def correlation_within(
    moments: Callable[[Floats], Floats], sums: Floats, stds: Floats, noise: float, sampling: float = 0.0
) -> tuple[float, float]:
    """Return the least and the largest correlation that noisy sums allow, arguments as for :func:`correlation`.

    That is every r for which the covariance less r times the product is within ``noise`` deviations of its noise (delta
    method) and ``sampling (1 - r^2)`` times the product of zero. A correlation beyond 1 counts as 1. Source: as for
    :func:`ratio`, Fieller (1954).
    """
    covariance, scale = moments(sums)
    value, errors = _correlation(covariance, scale), _errors(moments, sums, stds)

    def slack(r: Floats) -> Floats:
        by_noise = np.sqrt(((errors[:, 0] - np.multiply.outer(r, errors[:, 1])) ** 2).sum(axis=-1))
        found: Floats = np.hypot(noise * by_noise / scale, sampling * (1 - r**2))
        return found

    near = value + slack(np.array(value)) * np.linspace(-4, 4, 8001)
    tried = np.clip(np.concatenate([np.linspace(-1, 1, 2001), near]), -1.0, 1.0)
    inside = tried[np.abs(value - tried) <= slack(tried)]
    return float(inside.min(initial=value)), float(inside.max(initial=value))


def _correlation(covariance: float, scale: float) -> float:
    return min(max(float(covariance / scale), -1.0), 1.0)


def _errors(statistic: Callable[[Floats], Floats], sums: Floats, stds: Floats) -> Floats:
    """Return by how much one deviation of the noise in each sum moves each value of a statistic, ``(sums, values)``."""
    found = []
    for at, std in enumerate(stds):
        step = np.zeros_like(sums)
        step[at] = max(std * 1e-3, 1e-9)
        found.append((statistic(sums + step) - statistic(sums - step)) / (2 * step[at]) * std)
    return np.array(found)


@dataclass(frozen=True, eq=False)
class Logistic:
    """A logistic fit: ``coefficients``, their standard deviations by ``noise`` and by ``sampling``, all ``(columns,)``.

    ``clear`` says whether the least eigenvalue of the information exceeds 4 deviations of its noise.
    """

    coefficients: Floats
    noise: Floats
    sampling: Floats
    clear: bool


def logistic(design: Floats, positive: Floats, negative: Floats, std: float) -> Logistic:
    """Fit a logistic regression to noisy counts of both outcomes by cell, shape ``(cells,)``, negative counts kept.

    ``design`` has a row for each cell, ``(cells, columns)``. The variance is that of a sandwich: the score's noise, and
    its variance by sampling, between two inverses of the information.
    """
    records = positive + negative
    coefficients: Floats = np.zeros(design.shape[1])
    information: Floats = np.eye(design.shape[1])
    clear = False
    for _ in range(50):
        odds = 1 / (1 + np.exp(-design @ coefficients))
        spread = odds * (1 - odds)
        information = np.asarray(design.T @ (design * (records * spread)[:, None]), dtype=np.float64)
        values, vectors = np.linalg.eigh(information)
        noise = std * math.sqrt(float((2 * spread**2 * (design @ vectors[:, 0]) ** 4).sum()))
        clear = bool(values[0] > 4 * noise)
        if not values[0] > _SINGULAR * values[-1]:
            clear = False
            break
        step = np.linalg.solve(information, design.T @ (positive - records * odds))
        step = step * min(1.0, _LARGEST_STEP / max(float(np.abs(step).max()), 1e-12))
        coefficients = np.asarray(coefficients + step, dtype=np.float64)
        if np.abs(step).max() < 1e-9:
            break
    else:
        clear = False
    if not clear:
        return Logistic(coefficients, np.full(len(coefficients), np.nan), np.full(len(coefficients), np.nan), False)
    inverse = np.asarray(np.linalg.inv(information), dtype=np.float64)
    meat = design.T @ (design * (std**2 * ((1 - odds) ** 2 + odds**2))[:, None])
    variance = np.diag(inverse @ meat @ inverse)
    return Logistic(coefficients, np.sqrt(variance), np.sqrt(np.maximum(np.diag(inverse), 0.0)), True)


def auc(positive: Floats, negative: Floats, std: float) -> Interval:
    """Return the area under the ROC curve, from noisy counts of both labels by ascending score, ``(scores,)`` each.

    Equal scores count half. The noise enters by the delta method, the sampling of rows by Hanley & McNeil (1982, doi
    10.1148/radiology.143.1.7063747).
    """
    many, positives, negatives = len(positive), float(positive.sum()), float(negative.sum())

    def area(counts: Floats) -> float:
        above, below = counts[:many], counts[many:]
        lower = np.cumsum(below) - below / 2
        return float(above @ lower / (above.sum() * below.sum()))

    value = area(np.concatenate([positive, negative]))
    lower = (np.cumsum(negative) - negative / 2) / negatives
    higher = (positives - np.cumsum(positive) + positive / 2) / positives
    slopes = np.concatenate([(lower - value) / positives, (higher - value) / negatives])
    held = min(max(value, 0.0), 1.0)
    first, second = held / (2 - held), 2 * held**2 / (1 + held)
    variance = held * (1 - held) + (positives - 1) * (first - held**2) + (negatives - 1) * (second - held**2)
    found = normal(
        held, std * float(np.sqrt((slopes**2).sum())), math.sqrt(max(0.0, variance) / (positives * negatives))
    )
    return Interval(held, max(found.low, 0.0), min(found.high, 1.0), found.noise, found.sampling)
