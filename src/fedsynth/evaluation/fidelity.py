"""Fidelity metrics: distances between the distributions of a synthetic and a real table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import Unsupported
from fedsynth.evaluation.features import is_numeric
from fedsynth.evaluation.score import Summary
from fedsynth.rows import Table


@dataclass(frozen=True)
class Likelihood:
    """Mean negative log-likelihood of held-out rows under a model, in nats: the result of :func:`likelihood`.

    ``nll_floored`` is the mean after raising each row's probability to a floor, below which ``floored_share`` of the
    rows are; such rows dominate the plain mean.
    """

    nll: float
    nll_floored: float
    floored_share: float


def likelihood(log_likelihood: NDArray[np.float64], floor: float = 1e-30) -> Likelihood:
    """Summarise a model's log-likelihood of each held-out row, in nats, shape ``(rows,)``.

    ``floor`` is the least probability of a row in the floored mean. Raises :class:`Unsupported` without rows.
    """
    if not len(log_likelihood):
        raise Unsupported("a likelihood needs at least one held-out row; hold out more rows")
    held = np.maximum(log_likelihood, np.log(floor))
    return Likelihood(float(-log_likelihood.mean()), float(-held.mean()), float((log_likelihood < held).mean()))


def hellinger(real: Table, other: Table, bins: int = 20) -> dict[str, float]:
    """Return the Hellinger distance of each column by its name, sqrt(1 - sum sqrt(p q)), between 0 and 1.

    p and q are the shares of the two tables' rows in a category or bin. Numbers are counted in ``bins`` equal bins over
    the range of ``real`` (values beyond it count in the outer bins), missing values in a bin of their own. More bins
    add sampling noise: with near-unique values, real against real scores about 0.2.
    """
    return {
        name: float(np.sqrt(max(0.0, 1 - np.sqrt(p * q).sum())))
        for name, (p, q) in _shares(real, other, bins, range(len(real.codes)))
    }


def jensen_shannon(real: Table, other: Table) -> dict[str, float]:
    """Return the Jensen-Shannon divergence, in bits, of each categorical and boolean column, by name, 0 to 1.

    Its square root is the *distance*, which Fed-TDA (arXiv 2211.13116) reports under the name of the divergence.
    """
    return {name: value**2 for name, value in jensen_shannon_distance(real, other).items()}


def jensen_shannon_distance(real: Table, other: Table) -> dict[str, float]:
    """Return the square root of :func:`jensen_shannon`, for each categorical or boolean column by name: 0 to 1."""
    discrete = [column for column in range(len(real.codes)) if not is_numeric(real, column)]
    return {
        name: math.sqrt(max(0.0, (_divergence(p, (p + q) / 2) + _divergence(q, (p + q) / 2)) / 2))
        for name, (p, q) in _shares(real, other, 0, discrete)
    }


def _divergence(p: NDArray[np.float64], q: NDArray[np.float64]) -> float:
    """Return the Kullback-Leibler divergence of ``p`` from ``q`` in bits; ``q`` is positive wherever ``p`` is."""
    held = p > 0
    return float((p[held] * np.log2(p[held] / q[held])).sum())


def wasserstein(real: Table, other: Table) -> dict[str, float]:
    """Return the 1-Wasserstein distance of each column of numbers or times, by name, as a fraction of the real range.

    Both tables are scaled by the *real* range, so a shifted or stretched column counts as different; if the real values
    are all equal, the distance is in the column's own units. Missing values are left out; if all are missing in one
    table only, the distance is 1.
    """
    distances = {}
    for column in real.numbers:
        one, two = _known(real, column), _known(other, column)
        distances[real.schema.names[column]] = _scaled_distance(one, two, one, one)
    return distances


def wasserstein_on_own_scales(real: Table, other: Table) -> dict[str, float]:
    """Return the distances of :func:`wasserstein` with each table scaled by its own range, as Fed-TDA and Fed-TGAN do.

    A column that is only shifted or stretched has distance 0: use it only to compare with those publications.
    """
    distances = {}
    for column in real.numbers:
        one, two = _known(real, column), _known(other, column)
        distances[real.schema.names[column]] = _scaled_distance(one, two, one, two)
    return distances


Heaps = Mapping[str, tuple[int, float]]

_HEAP, _HEAP_ROWS = 0.01, 10  # least share and least number of rows at a heap
_POINT = 0.01  # a share is kept within one percentage point ...
_ERRORS = 3  # ... or so many standard errors


def heaps_of(real: Table) -> Heaps:
    """Return the heaps of a table: numbers and times that at least 1 % of its rows, and at least 10, have exactly.

    Keys are "column = value"; values are (position of the column, number). Zero, round numbers and caps make heaps, and
    so does each value of a column that has few.
    """
    found = {}
    for column in real.numbers:
        values, counts = np.unique(_known(real, column), return_counts=True)
        for value in values[counts >= max(_HEAP * len(real), _HEAP_ROWS)].tolist():
            found[f"{real.schema.names[column]} = {_written(real, column, value)}"] = (column, value)
    return found


def _written(table: Table, column: int, value: float) -> str:
    described = table.schema.stored[column]
    if described.is_time:
        moment = described.times(np.array(value))
        return str(np.datetime_as_string(moment, unit="D" if described.unit == "D" else "auto"))
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:.15g}"


def heaps_kept(real: Table, other: Table, heaps: Heaps) -> Summary:
    """Return the share of ``heaps`` (:func:`heaps_of`, at least one) that ``other`` has as often as ``real``: 0 to 1.

    As many are shares of rows within one percentage point or, in small tables, within three standard errors of the real
    share. The details are the shares of rows of ``other``, by heap.
    """
    rows = min(len(real), len(other))
    shares = {
        name: tuple(float((table.numbers[column] == value).mean()) for table in (real, other))
        for name, (column, value) in heaps.items()
    }
    kept = [abs(q - p) <= max(_POINT, _ERRORS * math.sqrt(p * (1 - p) / rows)) for p, q in shares.values()]
    return Summary(float(np.mean(kept)), {name: q for name, (_, q) in shares.items()})


QUANTILES = (0.01, 0.5, 0.9, 0.99)


def quantile_ranges(real: Table) -> dict[int, float]:
    """Return the range of each column of numbers or times, by position, from its 5 % to its 95 % quantile.

    If these are equal, it is the range of all known values; a column with a single value is left out.
    """
    found = {}
    for column in real.numbers:
        if len(values := _known(real, column)) and np.ptp(values):
            low, high = np.quantile(values, [0.05, 0.95], method="inverted_cdf")
            found[column] = float(high - low) or float(np.ptp(values))
    return found


def quantile_errors(real: Table, other: Table, ranges: Mapping[int, float]) -> dict[str, float]:
    """Return the absolute errors of the 1, 50, 90 and 99 % quantiles of columns of numbers, relative to their ranges.

    Keys are "column, 50 %". ``ranges`` is that of :func:`quantile_ranges`. Missing values are left out; if all are
    missing in one table only, the error is 1. It sees tails, of which other distances see little.
    """
    errors = {}
    for column, width in ranges.items():
        sides = [_known(table, column) for table in (real, other)]
        found = [float(len(sides[0]) != len(sides[1]))] * len(QUANTILES)
        if all(map(len, sides)):
            one, two = (np.quantile(values, QUANTILES, method="inverted_cdf") for values in sides)
            found = (np.abs(two - one) / width).tolist()
        for quantile, error in zip(QUANTILES, found, strict=True):
            errors[f"{real.schema.names[column]}, {quantile:.0%}".replace("%", " %")] = error
    return errors


def _known(table: Table, column: int) -> NDArray[np.float64]:
    values = table.numbers[column]
    return values[~np.isnan(values)]


def _scaled_distance(
    one: NDArray[np.float64], two: NDArray[np.float64], scale: NDArray[np.float64], other_scale: NDArray[np.float64]
) -> float:
    """Return the 1-Wasserstein distance after mapping each scale's range to [0, 1]; 1 if only one side is empty."""
    if not len(one) or not len(two):
        return float(len(one) != len(two))
    scaled = [(values - by.min()) / (np.ptp(by) or 1.0) for values, by in ((one, scale), (two, other_scale))]
    values, gaps = _distribution_gaps(*scaled)
    return float((np.abs(gaps[:-1]) * np.diff(values)).sum())


def _distribution_gaps(
    one: NDArray[np.float64], two: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the sorted values of both samples, and the first distribution function minus the second at each."""
    values = np.sort(np.concatenate([one, two]))
    first, second = (np.searchsorted(np.sort(side), values, side="right") / len(side) for side in (one, two))
    return values, first - second


def _potentials(one: NDArray[np.float64], two: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the values of the Kantorovich potential at both samples.

    The difference of their means is the 1-Wasserstein distance. The potential has slope 1 where the second distribution
    function is larger, and slope -1 where the first is.
    """
    values, gaps = _distribution_gaps(one, two)
    climbed = np.concatenate([[0.0], np.cumsum(-np.sign(gaps[:-1]) * np.diff(values))])
    at_one, at_two = (climbed[np.searchsorted(values, side)] for side in (one, two))
    return at_one, at_two


def wasserstein_2d(
    real: Table, other: Table, pairs: Iterable[tuple[int, int]], rows: int, seed: int
) -> dict[str, float]:
    """Return the exact 1-Wasserstein distance of pairs of numeric columns, over at most ``rows`` rows of each table.

    Times count as numbers. ``pairs`` holds pairs of column positions; keys of the result are "first name × second
    name". ``seed`` draws the rows. Columns are scaled to [0, 1] over the rows drawn from both tables, the ground
    distance is L1, and rows with a missing value in the pair are left out; if that leaves rows in one table only, the
    distance is 1. With equally many rows of equal weight, optimal transport is an assignment problem. It is solved
    exactly, in time that grows with the cube of ``rows``. The fidelity error of SynMeter (arXiv 2402.06806) and
    HeteroFedSyn.

    The solver gets reduced costs ``c(x, y) - f(x) + f(y)``, with f the sum of the Kantorovich potentials of the two
    columns. That changes the total cost of every assignment by the same constant, so the optimum is the same. Since the
    potentials solve the transport of each column by itself, the solver finds most of the assignment at once: four times
    as fast on tables that differ. Before that, rows that both tables have are left out, one against one: the optimum
    depends on the difference of the two distributions alone, since the ground distance is a metric.
    """
    from scipy.optimize import linear_sum_assignment

    rng = np.random.default_rng(seed)
    distances = {}
    for one, two in pairs:
        points = []
        for table in (real, other):
            both = np.stack([table.numbers[one], table.numbers[two]], axis=1)
            points.append(both[~np.isnan(both).any(axis=1)])
        size = min(rows, *(len(part) for part in points))
        name = f"{real.schema.names[one]} × {real.schema.names[two]}"
        if not size:
            distances[name] = float(len(points[0]) != len(points[1]))
            continue
        drawn = np.concatenate([part[rng.permutation(len(part))[:size]] for part in points])
        scaled = (drawn - drawn.min(axis=0)) / np.where(np.ptp(drawn, axis=0) > 0, np.ptp(drawn, axis=0), 1.0)
        cells, which = np.unique(scaled.view(np.complex128), return_inverse=True)  # a complex number is a pair
        surplus = np.bincount(which[:size, 0], minlength=len(cells)) - np.bincount(
            which[size:, 0], minlength=len(cells)
        )
        sides = [np.repeat(cells, np.maximum(sign * surplus, 0)).view(np.float64).reshape(-1, 2) for sign in (1, -1)]
        reduced = np.zeros((len(sides[0]), len(sides[1])))
        for left, right in zip(sides[0].T, sides[1].T, strict=True):
            own, theirs = _potentials(left, right)
            apart = np.subtract.outer(left, right)
            reduced += np.abs(apart, out=apart)
            reduced -= own[:, None]
            reduced += theirs
        from_rows, to_rows = linear_sum_assignment(reduced)
        distances[name] = float(np.abs(sides[0][from_rows] - sides[1][to_rows]).sum() / size)
    return distances


def range_query_error(real: Table, other: Table, order: int = 2, queries: int = 1000, seed: int = 0) -> float:
    """Return the mean absolute difference of the tables' answers (shares of rows, 0 to 1) to random range queries.

    Each query draws ``order`` distinct columns: of a category one value, of a number a closed interval with lo ~ U(low,
    high) and hi ~ U(lo, high) between the schema's bounds. Its answer is the share of rows that match in all of them.
    This is the "query error" of SynMeter (arXiv 2402.06806) and HeteroFedSyn.
    """
    rng = np.random.default_rng(seed)
    order = min(order, len(real.codes))
    total = 0.0
    for _ in range(queries):
        inside = [np.ones(len(table), dtype=bool) for table in (real, other)]
        for column in rng.choice(len(real.codes), order, replace=False).tolist():
            if is_numeric(real, column):
                edges = real.schema.stored[column].bin_edges
                low = rng.uniform(edges[0], edges[-1])
                high = rng.uniform(low, edges[-1])
                for rows, table in zip(inside, (real, other), strict=True):
                    rows &= (table.numbers[column] >= low) & (table.numbers[column] <= high)
            else:
                code = rng.integers(real.schema.sizes[column])
                for rows, table in zip(inside, (real, other), strict=True):
                    rows &= table.codes[column] == code
        total += abs(float(inside[0].mean() - inside[1].mean()))
    return total / queries


def _shares(
    real: Table, other: Table, bins: int, columns: Iterable[int]
) -> Iterator[tuple[str, tuple[NDArray[np.float64], NDArray[np.float64]]]]:
    """Yield each column's name and both tables' shares over the same cells."""
    for column in columns:
        if is_numeric(real, column):
            known = _known(real, column)
            inner = np.linspace(known.min(), known.max(), bins + 1)[1:-1] if len(known) else np.zeros(1)
            cells = [
                np.where(np.isnan(values), bins, np.searchsorted(inner, values, side="right"))
                for values in (table.numbers[column] for table in (real, other))
            ]
            size = bins + 1
        else:
            cells, size = [table.codes[column] for table in (real, other)], real.schema.sizes[column]
        p, q = (np.bincount(one, minlength=size) / len(one) for one in cells)
        yield real.schema.names[column], (p, q)
