"""Verdicts on fidelity: what is lost alarms, what differs wants a review, and what real rows would score is good."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.evaluation.report_example import score

from fedsynth.evaluation.dependence import associations_kept, strong_pairs
from fedsynth.evaluation.evaluate import evaluate
from fedsynth.evaluation.score import EvaluationTables, Score
from fedsynth.evaluation.verdicts import with_verdict, worst
from fedsynth.rows import Table
from fedsynth.schema import Numeric, Schema


def judged(
    metric: str, value: float, reference: float, details: dict[str, tuple[float, float]], rows: int = 1000
) -> Score:
    made = dataclasses.replace(score("fidelity", "x", value, reference, details=details), metric=metric)
    return with_verdict(made, rows)


@pytest.mark.parametrize(
    ("kept", "verdict"),
    [((0.95, 0.9), "good"), ((0.99, 0.6), "review"), ((0.99, 0.95, 0.4), "review"), ((0.5, 0.3), "alarm")],
)
def test_strong_associations(kept, verdict):
    details = {f"a × {at}": (one, 0.98) for at, one in enumerate(kept)}
    found = judged("associations-kept", float(np.mean(kept)), 0.98, details)
    assert found.verdict == verdict
    assert f"Of {len(kept)} strong associations" in found.says


@pytest.mark.parametrize(
    ("similarities", "verdict", "says"),
    [
        ((0.97, 0.95), "good", "No of 2 columns"),
        ((0.97, 0.2), "alarm", "1 of 2 columns are more than 0.15 below their reference: c1."),
        ((0.97, 0.97, 0.97, 0.97, 0.5), "review", "c4."),
        ((0.9, 0.9), "review", "No of 2"),
        ((0.1, 0.2, 0.3, 0.4, 0.5), "alarm", "c0, c1, c2 and 2 others."),
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
    codes = tuple(np.clip((column + 9) // 2, 0, 8).astype(np.uint8) for column in columns)
    return Table(schema, codes, dict(enumerate(columns)))


def correlated(rows: int, seed: int, strength: float) -> Table:
    rng = np.random.default_rng(seed)
    first, other, third = rng.standard_normal((3, rows))
    return numbers(first, strength * first + np.sqrt(1 - strength**2) * other, third)


def test_what_is_kept_of_an_association_by_hand():
    real, weak, opposite = (correlated(20_000, seed, r) for seed, r in enumerate((0.8, 0.4, -0.8)))
    pairs = strong_pairs(real, [(0, 1), (0, 2), (1, 2)], 0.3)
    assert pairs == [(0, 1)]
    assert associations_kept(real, weak, pairs) == {"n0 × n1": pytest.approx(0.5, abs=0.03)}
    assert associations_kept(real, opposite, pairs) == {"n0 × n1": 0.0}
    assert associations_kept(weak, real, pairs) == {"n0 × n1": 1.0}
    assert associations_kept(real, real, [(0, 2)]) == {"n0 × n2": 1.0}


def test_an_evaluation_alarms_where_an_association_is_gone():
    metrics = ("associations-kept", "column-similarity", "propensity")
    sides = [correlated(1500, seed, r) for seed, r in enumerate((0.8, 0.02))]
    found = {one.metric: one for one in evaluate(EvaluationTables(*sides), metrics=metrics, repeats=2).scores}
    assert found["associations-kept"].verdict == "alarm"
    assert found["column-similarity"].verdict == "good"
    sides[1] = correlated(1500, 5, 0.8)
    calm = evaluate(EvaluationTables(*sides), metrics=metrics, repeats=2)
    assert [one.verdict for one in calm.scores] == ["good"] * 3
