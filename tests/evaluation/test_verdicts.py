"""Verdicts on fidelity: what is lost alarms, what differs wants a review, and what real rows would score is good."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import spearmanr
from tests.evaluation.report_example import score

from fedsynth.evaluation.dependence import (
    associations_kept,
    correlations_kept,
    spearman,
    strong_associations,
    strong_correlations,
)
from fedsynth.evaluation.evaluate import evaluate
from fedsynth.evaluation.metrics import METRICS
from fedsynth.evaluation.score import EvaluationTables, Score
from fedsynth.evaluation.settings import EvaluationSettings
from fedsynth.evaluation.verdicts import means, worst
from fedsynth.rows import Table
from fedsynth.schema import Categorical, Numeric, Schema


def judged(
    metric: str, value: float, reference: float, details: dict[str, tuple[float, float]], rows: int = 1000
) -> Score:
    made = dataclasses.replace(score("fidelity", "x", value, reference, details=details), metric=metric)
    return METRICS[metric].judged(made, rows)


@pytest.mark.parametrize(
    ("associations", "verdict", "lost"),
    [
        ((0.95, 0.45, -0.6), "good", "other real rows 100%."),
        ((0.95, 0.45, 0.6), "review", "Lost (real → synthetic): a × 2: -0.60 → 0.60."),
        ((0.04, 0.39, -0.29), "alarm", "synthetic): a × 0: 0.98 → 0.04; a × 1: 0.80 → 0.39; a × 2: -0.60 → -0.29."),
    ],
)
def test_strong_associations(associations, verdict, lost):
    details = {f"a × {at}": pair for at, pair in enumerate(zip(associations, (0.98, 0.8, -0.6), strict=True))}
    kept = sum(2 * one / real >= 1 for one, real in details.values()) / 3
    found = judged("associations-kept", kept, 1.0, details)
    assert found.verdict == verdict
    assert f"Of 3 pairs of strongly associated columns, the synthetic rows keep {kept:.0%}" in found.says
    assert found.says.endswith(lost)


@pytest.mark.parametrize(
    ("metric", "value", "details", "verdict", "says"),
    [
        ("correlations-kept", 0.95, {"a × b": (0.6, 0.65)}, "good", "95% are within 0.1"),
        (
            "correlations-kept",
            0.5,
            {"a × b": (0.7, 0.9), "a × c": (0.1, 0.9)},
            "review",
            "a × c: 0.90 → 0.10; a × b: 0.90 → 0.70",
        ),
        ("heaps", 0.95, {"n = 0": (0.17, 0.175)}, "good", "95% are as frequent in the synthetic rows, 98%"),
        ("heaps", 0.0, {"n = 1,000": (0.007, 0.17)}, "review", "(real → synthetic): n = 1,000: 17.0% → 0.7%."),
        ("quantiles", 0.04, {"n, 99 %": (0.04, 0.01)}, "good", "off by 4.0% of their column's range on average."),
        ("quantiles", 0.3, {"n, 99 %": (0.3, 0.01)}, "review", "Farthest off: n, 99 % by 30%."),
    ],
)
def test_correlations_heaps_and_quantiles(metric, value, details, verdict, says):
    found = judged(metric, value, 0.02 if metric == "quantiles" else 0.98, details)
    assert found.verdict == verdict
    assert says in found.says


@pytest.mark.parametrize(
    ("similarities", "verdict", "says"),
    [
        ((0.97, 0.95), "good", "None of 2 columns is"),
        ((0.97, 0.2), "alarm", "1 of 2 columns is more than 0.15 below the reference: c1."),
        ((0.97, 0.97, 0.97, 0.97, 0.5), "review", "c4."),
        ((0.9, 0.9), "review", "None of 2"),
        ((0.1, 0.2, 0.3, 0.4, 0.5), "alarm", "c0; c1; c2 and 2 others."),
    ],
)
def test_columns(similarities, verdict, says):
    details = {f"c{at}": (one, 0.98) for at, one in enumerate(similarities)}
    found = judged("column-similarity", float(np.mean(similarities)), 0.98, details)
    assert found.verdict == verdict
    assert says in found.says


def test_a_tree_that_tells_rows_apart_never_alarms():
    assert [judged("propensity", value, 0.02, {}).verdict for value in (0.03, 0.06, 0.25)] == [
        "good",
        "review",
        "review",
    ]
    assert judged("propensity", 0.12, 0.115, {}).verdict == "good"  # inside the band of the reference


def test_few_rows_and_other_scores_have_no_verdict():
    assert judged("associations-kept", 0.0, 1.0, {"a × b": (0.0, 1.0)}, rows=99).verdict == ""
    assert judged("coverage", 0.0, 1.0, {}).verdict == ""
    assert (worst([]), worst(["good", ""]), worst(["good", "alarm", "review"])) == ("", "good", "alarm")


def numbers(*columns: NDArray[np.float64]) -> Table:
    schema = Schema(tuple(Numeric(f"n{at}", -9, 9, bins=9) for at in range(len(columns))))
    codes = tuple(np.nan_to_num(np.clip((column + 9) // 2, 0, 8)).astype(np.uint8) for column in columns)
    return Table(schema, codes, dict(enumerate(columns)))


def correlated(rows: int, seed: int, strength: float) -> Table:
    rng = np.random.default_rng(seed)
    first, other, third = rng.standard_normal((3, rows))
    return numbers(first, strength * first + np.sqrt(1 - strength**2) * other, third)


def test_what_is_kept_of_an_association_by_hand():
    real, weak, opposite = (correlated(20_000, seed, r) for seed, r in enumerate((0.8, 0.4, -0.8)))
    assert strong_associations(real) == {"above 0.3": [(0, 1)], "above 0.5": [(0, 1)]}
    assert strong_associations(weak) == {"above 0.3": [(0, 1)]}
    pairs = [(0, 1)]
    for other, strength, kept in ((weak, 0.4, None), (opposite, -0.8, 0), (correlated(20_000, 3, 0.45), 0.45, 1)):
        found = associations_kept(real, other, pairs)
        assert found.details == {"n0 × n1": pytest.approx(strength, abs=0.03)}
        assert kept is None or found.value == kept
    assert associations_kept(real, correlated(20_000, 4, 0.3), pairs).value == 0
    assert associations_kept(weak, real, pairs).value == 1
    assert associations_kept(real, real, [(0, 1), (0, 2)]).value == 1


def test_correlations_are_kept_within_a_tenth():
    real, near, far = (correlated(20_000, seed, r) for seed, r in enumerate((0.8, 0.75, 0.95)))
    assert strong_correlations(real) == {"Pearson": [(0, 1)], "Spearman": [(0, 1)]}
    assert correlations_kept(real, near, [(0, 1)]).value == 1
    assert correlations_kept(real, far, [(0, 1)]).value == 0
    tailed = numbers(np.exp(3 * real.numbers[0]), np.exp(3 * real.numbers[1]))
    assert strong_correlations(tailed) == {"Spearman": [(0, 1)]}
    assert spearman(tailed, 0, 1) == pytest.approx(spearman(real, 0, 1))


def test_spearman_shares_ranks_of_equal_values_and_leaves_out_missing_ones():
    rng = np.random.default_rng(0)
    one = rng.integers(0, 5, 500).astype(float)
    two = one + rng.normal(0, 2, 500)
    assert spearman(numbers(one, two), 0, 1) == pytest.approx(spearmanr(one, two).statistic)
    gap = np.concatenate([one, [np.nan] * 3]), np.concatenate([two, [np.nan] * 3])
    assert spearman(numbers(*gap), 0, 1) == pytest.approx(spearmanr(one, two).statistic)
    assert spearman(numbers(one * 0, two), 0, 1) == 0


def test_an_evaluation_alarms_where_an_association_is_gone():
    metrics = ("associations-kept", "column-similarity", "propensity")
    sides = [correlated(1500, seed, r) for seed, r in enumerate((0.8, 0.02))]
    found = {
        one.metric: one
        for one in evaluate(EvaluationTables(*sides), EvaluationSettings(metrics=metrics, repeats=2)).scores
    }
    assert found["associations-kept"].verdict == "alarm"
    assert found["associations-kept"].details.keys() == {"n0 × n1"}
    assert found["column-similarity"].verdict == "good"
    sides[1] = correlated(1500, 5, 0.8)
    calm = evaluate(EvaluationTables(*sides), EvaluationSettings(metrics=metrics, repeats=2))
    assert [one.verdict for one in calm.scores] == ["good"] * 4  # two of associations


# ---------------------------------------------------------------------------------------------------------------------
# Means


def amounts(values: NDArray[np.float64], persons: NDArray[np.uint64] | None = None) -> Table:
    schema = Schema((Numeric("amount", -1e9, 1e9, missing=True), Categorical("sex", ("f", "m"))))
    found = Table.of(schema, [values, np.arange(len(values)) % 2])
    return found if persons is None else dataclasses.replace(found, persons=persons.astype(np.uint64))


def means_of(real: NDArray[np.float64], synthetic: NDArray[np.float64]) -> Score:
    found = means(amounts(real), amounts(synthetic))
    assert found is not None
    assert found.problem == "Means of columns are wrong"
    return found


RNG = np.random.default_rng(0)
AMOUNTS = RNG.lognormal(3, 1.2, 20_000)
ERROR = float(AMOUNTS.std(ddof=1)) / np.sqrt(len(AMOUNTS))  # about 1.4 % of the mean


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(1.0, "good"), (1.19, "good"), (1.21, "alarm"), (0.81, "good"), (0.79, "alarm"), (480.0, "alarm")],
)
def test_a_mean_off_by_a_fifth_alarms_and_less_does_not(factor, verdict):
    found = means_of(AMOUNTS, AMOUNTS * factor)
    assert found.verdict == verdict
    assert found.off == (("amount",) if verdict == "alarm" else ())
    assert found.synthetic.value == (0.0 if verdict == "alarm" else 1.0)
    assert found.details["amount"] == pytest.approx((AMOUNTS.mean() * factor, AMOUNTS.mean()))


def test_a_mean_off_by_less_than_three_standard_errors_does_not_alarm():
    few = AMOUNTS[:200]
    error = float(few.std(ddof=1)) / np.sqrt(len(few))
    assert 3 * error > 0.2 * few.mean()  # so that the standard errors decide
    for errors, verdict in ((2.9, "good"), (3.1, "alarm")):
        assert means_of(few, few + errors * error).verdict == verdict
    # Fewer synthetic rows scatter more: the error is then that of so many real ones.
    fewer = np.full(100, few.mean())
    assert means_of(few, fewer + 4 * error).verdict == "good"
    assert means_of(few, fewer + 4.4 * error).verdict == "alarm"


def test_a_fifth_is_of_the_size_of_values_where_they_have_both_signs():
    centred = RNG.normal(0, 1, 100_000)  # its mean is far smaller than its values
    assert means_of(centred, centred + 0.1).verdict == "good"
    assert means_of(centred, centred + 0.2).verdict == "alarm"


def test_missing_values_and_values_that_are_all_the_same():
    gaps = np.where(np.arange(20_000) % 3 == 0, np.nan, AMOUNTS)
    assert means_of(gaps, AMOUNTS).verdict == "good"
    nothing = means_of(AMOUNTS, np.full(500, np.nan))
    assert nothing.verdict == "alarm"
    assert np.isnan(nothing.details["amount"][0])
    zeros = np.zeros(5000)
    assert means_of(zeros, np.append(zeros, 1.0)).verdict == "good"  # one row in 5,001
    assert means_of(zeros, np.append(zeros, np.ones(50))).verdict == "alarm"
    assert means(amounts(np.full(9, np.nan)), amounts(AMOUNTS)) is None
    assert means_of(AMOUNTS, AMOUNTS[:99] * 480).verdict == ""  # too few rows to say


def test_the_error_of_a_mean_is_over_persons_where_rows_have_them():
    persons = np.repeat(np.arange(20, dtype=np.uint64), 50)
    each = RNG.lognormal(3, 1, 20)
    rows = np.repeat(each, 50)
    off = float(each.std(ddof=1)) / np.sqrt(20) * 2.9
    assert off > 0.2 * each.mean()
    by_person = means(amounts(rows, persons), amounts(rows + off))
    by_row = means(amounts(rows), amounts(rows + off))
    assert by_person is not None
    assert by_row is not None
    assert (by_person.verdict, by_row.verdict) == ("good", "alarm")


def test_an_evaluation_alarms_for_a_lost_mean_and_a_first_report_measures_it():
    evidence = EvaluationTables(amounts(AMOUNTS), amounts(AMOUNTS * 3))
    found = {one.metric: one for one in evaluate(evidence).scores}
    assert found["means"].verdict == "alarm"
    real = AMOUNTS.mean()
    assert f"Off (real → synthetic): amount: {real:,.4g} → {3 * real:,.4g}." in found["means"].says
