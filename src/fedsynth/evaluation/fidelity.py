"""How close a synthetic table is to a real one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.cliques import Clique, Workload
from fedsynth.errors import Unsupported
from fedsynth.evaluation.features import is_numeric
from fedsynth.rows import Table


@dataclass(frozen=True)
class WorkloadError:
    """L1 distance of normalised marginals, between 0 and 2: the ``mean`` over a workload, and each clique's own."""

    mean: float
    per_clique: dict[Clique, float]


def workload_error(real: Table, synthetic: Table, workload: Workload) -> WorkloadError:
    """Return the mean over ``workload`` of the L1 distance between the tables' normalised marginals.

    The "workload error" of FLAIM's tables (arXiv 2310.06447), without the factor 1/2 of total variation.
    Raises :class:`Unsupported` for an empty table or workload.
    """
    if not len(real) or not len(synthetic) or not workload:
        raise Unsupported("a workload error needs rows on both sides and at least one marginal")
    per_clique = {
        clique: l1_distance(real.flat_codes(clique), synthetic.flat_codes(clique), math.prod(real.schema.shape(clique)))
        for clique in workload
    }
    return WorkloadError(float(np.mean(list(per_clique.values()))), per_clique)


def l1_distance(one: NDArray[np.integer[Any]], other: NDArray[np.integer[Any]], cells: int) -> float:
    """Return the L1 distance of two samples' frequencies over ``cells`` cells, between 0 and 2.

    A sample is the cell of each of its rows, at least one. Of a table with many more cells than rows only those that
    occur are visited.
    """
    rows = len(one) + len(other)
    if cells > 4 * rows:
        _, which = np.unique(np.concatenate([one, other]), return_inverse=True)
        one, other, cells = which[: len(one)], which[len(one) :], rows
    shares = (np.bincount(sample, minlength=cells) / len(sample) for sample in (one, other))
    return float(np.abs(np.subtract(*shares)).sum())


@dataclass(frozen=True)
class Likelihood:
    """Mean negative log-likelihood of rows in nats, plain and with each row's probability held above a floor.

    ``floored_share`` is the share of rows that the floor touched: a model that gives a seen row next to no
    mass has a plain value that says little else.
    """

    nll: float
    nll_floored: float
    floored_share: float


def likelihood(log_likelihood: NDArray[np.float64], floor: float = 1e-30) -> Likelihood:
    """Summarise the log-likelihood of each held-out row, shape ``(rows,)``, in nats."""
    if not len(log_likelihood):
        raise Unsupported("a likelihood needs at least one held-out row")
    held = np.maximum(log_likelihood, np.log(floor))
    return Likelihood(float(-log_likelihood.mean()), float(-held.mean()), float((log_likelihood < held).mean()))


def hellinger(real: Table, other: Table, bins: int = 20) -> dict[str, float]:
    """Return the Hellinger distance of each column, sqrt(1 - sum sqrt(p q)), between 0 and 1.

    Numbers are counted in ``bins`` equal bins over the real range (values beyond it count with the outer
    bins), missing values in a bin of their own. More bins measure more sampling noise: near-unique values
    score about 0.2 on real against real.
    """
    return {
        name: float(np.sqrt(max(0.0, 1 - np.sqrt(p * q).sum())))
        for name, (p, q) in _shares(real, other, bins, range(len(real.codes)))
    }


def jensen_shannon(real: Table, other: Table) -> dict[str, float]:
    """Return the Jensen-Shannon divergence of each categorical or boolean column in bits, between 0 and 1.

    Its square root is the *distance*, which Fed-TDA's tables print under the divergence's name:
    :func:`jensen_shannon_distance`.
    """
    return {name: value**2 for name, value in jensen_shannon_distance(real, other).items()}


def jensen_shannon_distance(real: Table, other: Table) -> dict[str, float]:
    """Return the Jensen-Shannon distance (base 2) of each categorical or boolean column, between 0 and 1."""
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
    """Return the 1-Wasserstein distance of each column of numbers or times, in shares of the real range.

    Both tables are scaled by the *real* range: errors of location and scale count.
    """
    distances = {}
    for column in real.numbers:
        one, two = _known(real, column), _known(other, column)
        distances[real.schema.names[column]] = _scaled_distance(one, two, one, one)
    return distances


def wasserstein_on_own_scales(real: Table, other: Table) -> dict[str, float]:
    """Return the distance as published with Fed-TDA and Fed-TGAN: each table scaled by its own range.

    Errors of location and scale vanish; for comparison with those tables only.
    """
    distances = {}
    for column in real.numbers:
        one, two = _known(real, column), _known(other, column)
        distances[real.schema.names[column]] = _scaled_distance(one, two, one, two)
    return distances


def _known(table: Table, column: int) -> NDArray[np.float64]:
    values = table.numbers[column]
    return values[~np.isnan(values)]


def _scaled_distance(
    one: NDArray[np.float64], two: NDArray[np.float64], scale: NDArray[np.float64], other_scale: NDArray[np.float64]
) -> float:
    """Return the 1-Wasserstein distance after moving each scale's range to [0, 1]; a side without values is 1 away."""
    if not len(one) or not len(two):
        return float(len(one) != len(two))
    scaled = [(values - by.min()) / (np.ptp(by) or 1.0) for values, by in ((one, scale), (two, other_scale))]
    values, gaps = _distribution_gaps(*scaled)
    return float((np.abs(gaps[:-1]) * np.diff(values)).sum())


def _distribution_gaps(
    one: NDArray[np.float64], two: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the values of both samples in order, and there the first distribution function less the second."""
    values = np.sort(np.concatenate([one, two]))
    first, second = (np.searchsorted(np.sort(side), values, side="right") / len(side) for side in (one, two))
    return values, first - second


def _potentials(one: NDArray[np.float64], two: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return a function's values at both samples whose difference of means is their 1-Wasserstein distance.

    It climbs by one where the second sample has more values below, and falls by one where the first has (Kantorovich).
    """
    values, gaps = _distribution_gaps(one, two)
    climbed = np.concatenate([[0.0], np.cumsum(-np.sign(gaps[:-1]) * np.diff(values))])
    at_one, at_two = (climbed[np.searchsorted(values, side)] for side in (one, two))
    return at_one, at_two


def wasserstein_2d(
    real: Table, other: Table, pairs: Iterable[tuple[int, int]], rows: int, seed: int
) -> dict[str, float]:
    """Return the exact 1-Wasserstein distance of pairs of columns of numbers or times, over ``rows`` rows of each.

    Columns are scaled to [0, 1] over both tables, the ground distance is L1, pairs with a missing value are
    left out. Equally many equal weights make optimal transport an assignment, solved exactly; its time grows
    with the cube of ``rows``. The fidelity error of SynMeter (arXiv 2402.06806) and HeteroFedSyn.

    The solver gets costs that are reduced by the potentials f of both columns: ``c(x, y) - f(x) + f(y)``. Any choice of
    partners loses the same by that, so the best one stays the best; and as the potentials solve the problem of each
    column, most partners are found at once: four times as fast on tables that differ.
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
        reduced = np.zeros((size, size))
        for values in scaled.T:
            left, right = values[:size], values[size:]
            own, theirs = _potentials(left, right)
            apart = np.subtract.outer(left, right)
            reduced += np.abs(apart, out=apart)
            reduced -= own[:, None]
            reduced += theirs
        from_rows, to_rows = linear_sum_assignment(reduced)
        distances[name] = float(np.abs(scaled[:size][from_rows] - scaled[size:][to_rows]).sum(axis=1).mean())
    return distances


def range_query_error(real: Table, other: Table, order: int = 2, queries: int = 1000, seed: int = 0) -> float:
    """Return the mean absolute difference of the tables' answers (shares of rows) to random range queries.

    A query draws ``order`` distinct columns, of each category one code, of each number lo ~ U(low, high) and
    hi ~ U(lo, high) between the schema's bounds, both ends included: the "query error" of SynMeter (arXiv
    2402.06806) and HeteroFedSyn, with a seed.
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
