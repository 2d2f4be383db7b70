"""The metrics of evaluations: what evaluations, reports and comparisons compute of synthetic rows, by name.

An evaluation (:func:`fedsynth.evaluation.evaluate.evaluate`) puts each beside a reference from real rows. Benchmarks
compute these and others of finished runs (:mod:`fedsynth.bench.metrics`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from fedsynth import rows
from fedsynth.cliques import Workload, random_workload
from fedsynth.errors import number_of
from fedsynth.evaluation import dependence, detection, fidelity, privacy, similarity
from fedsynth.evaluation.score import Details, Family, Measured
from fedsynth.rows import Table

Item = TypeVar("Item")
_PAIRS = 300  # pairs of columns in a pair score
_PLANES = 30  # pairs of numbers with an exact transport distance
_COLUMNS = 40  # columns of an association matrix
_MARGINALS = 64
_POINTS = 500  # rows of a transport distance: its time grows with their cube


@dataclass(frozen=True)
class Comparison:
    """One score of an evaluation: ``compare`` maps real rows and others to what it has :data:`Measured`.

    ``part`` tells it from other scores of the same metric ("" if it is the only one); ``note`` says what it compares.
    """

    compare: Callable[[Table, Table], Measured]
    note: str = ""
    part: str = ""


Comparisons = Callable[[Table, int], Iterator[Comparison]]


@dataclass(frozen=True)
class Metric:
    """A metric of synthetic rows, as evaluations have it.

    - ``title``: that of its scores. ``best``: the value of a perfect table, None if there is none.
    - ``comparisons``: maps real rows and a seed to the scores that apply to them; None if an evaluation computes it in
      another way.
    """

    title: str
    best: float | None = None
    comparisons: Comparisons | None = None
    family: Family = "fidelity"


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


# ---------------------------------------------------------------------------------------------------------------------
# All metrics

METRICS: dict[str, Metric] = {
    "validity": Metric("rows that break a rule", 0.0),
    "means": Metric("means kept", 1.0),
    "associations-kept": Metric("strong associations kept", 1.0, _associations_kept),
    "correlations-kept": Metric("strong correlations kept", 1.0, _correlations_kept),
    "heaps": Metric("heaps kept", 1.0, _heaps),
    "quantiles": Metric("quantile error", 0.0, _quantiles),
    "column-similarity": Metric("column similarity", 1.0, _one(similarity.column_similarity)),
    "pair-similarity": Metric("pair similarity", 1.0, _of_pairs(similarity.pair_similarity)),
    "pair-similarity-deciles": Metric(
        "pair similarity (numbers cut at deciles)", 1.0, _of_pairs(similarity.pair_similarity_by_deciles, mixed=True)
    ),
    "coverage": Metric("coverage", 1.0, _one(similarity.coverage)),
    "missing-values-similarity": Metric("missing values similarity", 1.0, _missing),
    "association-difference": Metric("association difference", 0.0, _of_pairs(dependence.association_differences)),
    "correlation-difference": Metric("pairwise correlation difference", 0.0, _correlation_difference),
    "propensity": Metric("propensity MSE", 0.0, _one(detection.propensity_mse, "between 0 and 0.25", seeded=True)),
    "log-cluster": Metric(
        "log-cluster (20 clusters)", None, _one(detection.log_cluster, "lower is better", seeded=True)
    ),
    "hellinger": Metric("Hellinger distance (20 bins)", 0.0, _one(fidelity.hellinger)),
    "hellinger-100": Metric("Hellinger distance (100 bins)", 0.0, _one(partial(fidelity.hellinger, bins=100))),
    "jensen-shannon": Metric(
        "Jensen-Shannon divergence", 0.0, _one(fidelity.jensen_shannon, "categorical columns, in bits", "categories")
    ),
    "jensen-shannon-distance": Metric(
        "Jensen-Shannon distance",
        0.0,
        _one(fidelity.jensen_shannon_distance, "the divergence's square root", "categories"),
    ),
    "wasserstein": Metric(
        "Wasserstein distance",
        0.0,
        _one(fidelity.wasserstein, "numeric columns, as a fraction of the real range", "numbers"),
    ),
    "wasserstein-2d": Metric("2-way Wasserstein distance", 0.0, _wasserstein_2d),
    "workload-error": Metric("workload error", 0.0, _workload_errors),
    "range-queries": Metric(
        "range queries, 2-way", 0.0, _one(fidelity.range_query_error, "1000 random queries", seeded=True)
    ),
    "likelihood": Metric("negative log-likelihood of a held-out row"),
    "learning": Metric("utility", family="utility"),
    **{name: Metric(title, family="privacy") for name, title in privacy.TITLES.items()},
    "membership-inference": Metric("membership inference", family="privacy"),
    "distance-to-real": Metric("distances to real rows", family="privacy"),
}
"""The metrics of evaluations by name, in the order of a report."""
FIRST = (
    *("validity", "means", "associations-kept", "correlations-kept", "heaps", "quantiles", "column-similarity"),
    *("pair-similarity", "missing-values-similarity", "workload-error", "likelihood", "learning", "exact-matches"),
)
"""The metrics of a first report: what costs seconds, and shows what is lost."""
