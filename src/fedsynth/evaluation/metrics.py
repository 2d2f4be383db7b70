"""The metrics of evaluations: what evaluations, reports and comparisons compute of synthetic rows, by name.

An evaluation (:func:`fedsynth.evaluation.evaluate.evaluate`) puts each beside a reference from real rows. Benchmarks
compute these and others of finished runs (:mod:`fedsynth.bench.metrics`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from fedsynth import rows
from fedsynth.cliques import Workload, random_workload
from fedsynth.encoding import broken
from fedsynth.errors import InvalidParameter, nearest, number_of
from fedsynth.evaluation import dependence, detection, fidelity, privacy, similarity, verdicts
from fedsynth.evaluation.metric import Comparison, Comparisons, Metric
from fedsynth.evaluation.score import Details, Estimate, EvaluationTables, Measured, Score
from fedsynth.plugins import installed, load, named
from fedsynth.rows import Table

Item = TypeVar("Item")
_PAIRS = 300  # pairs of columns in a pair score
_PLANES = 30  # pairs of numbers with an exact transport distance
_COLUMNS = 40  # columns of an association matrix
_MARGINALS = 64
_POINTS = 500  # rows of a transport distance: its time grows with their cube


# ---------------------------------------------------------------------------------------------------------------------
# The scores of each fidelity metric that apply to real rows


def _one(compare: Callable[..., Measured], note: str = "", needs: str = "", seeded: bool = False) -> Comparisons:
    """Return one score, of tables with columns of the kind that it ``needs``: "numbers", "categories" or "" (any)."""

    def found(real: Table, seed: int) -> Iterator[Comparison]:
        numbers, columns = len(real.numbers), len(real.codes)
        if {"numbers": numbers, "categories": columns - numbers, "": columns}[needs]:
            yield Comparison(partial(compare, seed=seed) if seeded else compare, note)

    return found


def _of_pairs(compare: Callable[..., Measured], mixed: bool = False) -> Comparisons:
    """Return the score of at most 300 pairs of columns; with ``mixed``, only where some are numbers and some not."""

    def found(real: Table, seed: int) -> Iterator[Comparison]:
        every = list(itertools.combinations(range(len(real.codes)), 2))
        pairs, note = _some(every, _PAIRS, "pairs of columns", seed)
        if pairs and (not mixed or 0 < len(real.numbers) < len(real.codes)):
            yield Comparison(partial(compare, pairs=pairs), note)

    return found


def _associations_kept(real: Table, seed: int) -> Iterator[Comparison]:
    note = "pairs of columns that are so strongly associated in the real rows; half of it is kept, with its sign"
    for name, pairs in dependence.strong_associations(real).items():
        yield Comparison(partial(dependence.associations_kept, pairs=pairs), note, name)


def _correlations_kept(real: Table, seed: int) -> Iterator[Comparison]:
    note = "pairs of numbers whose correlation is at least 0.5 in the real rows; within 0.1 of it is kept"
    for name, pairs in dependence.strong_correlations(real).items():
        how = dependence.CORRELATIONS[name]
        yield Comparison(partial(dependence.correlations_kept, pairs=pairs, how=how), note, name)


def _heaps(real: Table, seed: int) -> Iterator[Comparison]:
    note = "values that at least 1 % of the real rows have exactly; within 1 percentage point of their share is kept"
    if heaps := fidelity.heaps_of(real):
        yield Comparison(partial(fidelity.heaps_kept, heaps=heaps), note)


def _quantiles(real: Table, seed: int) -> Iterator[Comparison]:
    note = "1, 50, 90 and 99 % quantiles of numeric columns, as a fraction of the range from 5 to 95 %"
    if ranges := fidelity.quantile_ranges(real):
        yield Comparison(partial(fidelity.quantile_errors, ranges=ranges), note)


def _missing(real: Table, seed: int) -> Iterator[Comparison]:
    if any(column.missing for column in real.schema.stored):
        yield Comparison(similarity.missing_similarity)


def _correlation_difference(real: Table, seed: int) -> Iterator[Comparison]:
    columns, note = _some(list(range(len(real.codes))), _COLUMNS, "columns", seed)
    if len(real.codes) > 1:
        yield Comparison(partial(difference_of_matrices, columns=columns), note)


def difference_of_matrices(real: Table, other: Table, columns: Sequence[int] | None = None) -> float:
    """Return the pairwise correlation difference of two tables, of all columns or those at some positions."""
    matrices = (dependence.association_matrix(table, columns) for table in (real, other))
    return dependence.pairwise_correlation_difference(*matrices)


def _wasserstein_2d(real: Table, seed: int) -> Iterator[Comparison]:
    planes, note = _some(list(itertools.combinations(sorted(real.numbers), 2)), _PLANES, "pairs", seed)
    if planes:
        compare = partial(fidelity.wasserstein_2d, pairs=planes, rows=_POINTS, seed=seed)
        yield Comparison(compare, "; ".join(filter(None, (note, f"{_POINTS} rows a side"))))


def _workload_errors(real: Table, seed: int) -> Iterator[Comparison]:
    for order in range(1, min(3, len(real.codes)) + 1):
        workload = random_workload(len(real.codes), order, _MARGINALS, seed)
        note = f"{number_of(len(workload), 'marginal')}, L1 distance (0 to 2)"
        yield Comparison(partial(_error_by_marginal, workload=workload), note, f"{order}-way")


def _error_by_marginal(real: Table, other: Table, workload: Workload) -> Details:
    errors = rows.workload_error(real, other, workload).per_clique
    return {" × ".join(real.schema.names[column] for column in clique): error for clique, error in errors.items()}


def _some(items: list[Item], most: int, what: str, seed: int) -> tuple[list[Item], str]:
    """Return at most ``most`` of the items, drawn with the seed, and a note if any were left out."""
    if len(items) <= most:
        return items, ""
    kept = np.sort(np.random.default_rng(seed).choice(len(items), most, replace=False))
    return [items[at] for at in kept], f"{most} random {what} of {len(items):,}"


def _validity(tables: EvaluationTables) -> Score | None:
    """Return the share of rows that violate a rule, or a bound of a derived column, if these rows have any to check."""
    agreed = tables.agreed
    if agreed is None or not (agreed.rules or agreed.derives):
        return None
    synthetic, real = (broken(agreed, table) for table in (tables.synthetic, tables.real))
    if not synthetic:  # the only derived columns are computed ones that the tables lack
        return None
    shares = [float(np.logical_or.reduce(list(masks.values())).mean()) for masks in (synthetic, real)]
    return Score(
        "fidelity",
        "rows that break a rule",
        Estimate(shares[0]),
        Estimate(shares[1]),
        "the real rows",
        0.0,
        "share of rows that violate a rule of the schema or a bound of a derived column",
        {said: (float(mask.mean()), float(real[said].mean())) for said, mask in synthetic.items()},
    )


# ---------------------------------------------------------------------------------------------------------------------
# All metrics

_BUILT_IN = (
    Metric(
        "validity",
        "rows that break a rule",
        0.0,
        of_all=_validity,
        needs="the schema has no rule, and the tables no derived column, so there is nothing to check",
        first=True,
    ),
    Metric(
        "means",
        "means kept",
        1.0,
        of_all=lambda tables: verdicts.means(tables.real, tables.synthetic),
        needs="there is no numeric column with a known value",
        first=True,
    ),
    Metric("associations-kept", "strong associations kept", 1.0, _associations_kept, verdicts.ASSOCIATIONS, first=True),
    Metric("correlations-kept", "strong correlations kept", 1.0, _correlations_kept, verdicts.CORRELATIONS, first=True),
    Metric("heaps", "heaps kept", 1.0, _heaps, verdicts.HEAPS, first=True),
    Metric("quantiles", "quantile error", 0.0, _quantiles, verdicts.QUANTILES, first=True),
    Metric(
        "column-similarity", "column similarity", 1.0, _one(similarity.column_similarity), verdicts.COLUMNS, first=True
    ),
    Metric("pair-similarity", "pair similarity", 1.0, _of_pairs(similarity.pair_similarity), first=True),
    Metric(
        "pair-similarity-deciles",
        "pair similarity (numbers cut at deciles)",
        1.0,
        _of_pairs(similarity.pair_similarity_by_deciles, mixed=True),
    ),
    Metric("coverage", "coverage", 1.0, _one(similarity.coverage)),
    Metric("missing-values-similarity", "missing values similarity", 1.0, _missing, first=True),
    Metric("association-difference", "association difference", 0.0, _of_pairs(dependence.association_differences)),
    Metric("correlation-difference", "pairwise correlation difference", 0.0, _correlation_difference),
    Metric(
        "propensity",
        "propensity MSE",
        0.0,
        _one(detection.propensity_mse, "between 0 and 0.25", seeded=True),
        verdicts.PROPENSITY,
    ),
    Metric(
        "log-cluster", "log-cluster (20 clusters)", None, _one(detection.log_cluster, "lower is better", seeded=True)
    ),
    Metric("hellinger", "Hellinger distance (20 bins)", 0.0, _one(fidelity.hellinger)),
    Metric("hellinger-100", "Hellinger distance (100 bins)", 0.0, _one(partial(fidelity.hellinger, bins=100))),
    Metric(
        "jensen-shannon",
        "Jensen-Shannon divergence",
        0.0,
        _one(fidelity.jensen_shannon, "categorical columns, in bits", "categories"),
    ),
    Metric(
        "jensen-shannon-distance",
        "Jensen-Shannon distance",
        0.0,
        _one(fidelity.jensen_shannon_distance, "the divergence's square root", "categories"),
    ),
    Metric(
        "wasserstein",
        "Wasserstein distance",
        0.0,
        _one(fidelity.wasserstein, "numeric columns, as a fraction of the real range", "numbers"),
    ),
    Metric("wasserstein-2d", "2-way Wasserstein distance", 0.0, _wasserstein_2d),
    Metric("workload-error", "workload error", 0.0, _workload_errors, first=True),
    Metric(
        "range-queries",
        "range queries, 2-way",
        0.0,
        _one(fidelity.range_query_error, "1000 random queries", seeded=True),
    ),
    Metric(
        "likelihood",
        "negative log-likelihood of a held-out row",
        needs="a likelihood needs hold-out rows and a model that has a likelihood",
        first=True,
    ),
    Metric("learning", "utility", needs="", first=True, family="utility"),
)
METRICS: dict[str, Metric] = {metric.name: metric for metric in (*_BUILT_IN, *privacy.METRICS.values())}
"""The metrics of evaluations by name, in the order of a report; a first report has those that cost seconds."""


def metric_named(name: str) -> Metric:
    """Return a metric of evaluations: one of :data:`METRICS`, or another package's :class:`Metric`.

    That is named by an entry point in the group ``fedsynth.metrics``, or as ``package.module:NAME``. Raises
    :class:`InvalidParameter` for an unknown name, for something else than a :class:`Metric`, and for one that has the
    name of one of :data:`METRICS`, and :class:`Unsupported` for one that cannot be imported.
    """
    if name in METRICS:
        return METRICS[name]
    entry = installed("fedsynth.metrics", METRICS, name).get(name)
    found = named(name) if ":" in name else None if entry is None else load(entry)
    if isinstance(found, Metric) and found.name not in METRICS:
        return found
    own = "" if found is None else " (it must be a fedsynth.evaluation.metric.Metric with a name of its own)"
    raise InvalidParameter(f"no metric named {name!r}{own}; {nearest(name, METRICS)}")
