"""The whole evaluation: what fresh rows, copies and shuffled columns score, and what is said of sampling."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import threadpoolctl
from numpy.typing import NDArray
from tests.public_data import public_data

from fedsynth.data.draft import draft_schema
from fedsynth.data.read import read_frame
from fedsynth.encoding import encode
from fedsynth.errors import InvalidParameter, SchemaError, Unsupported
from fedsynth.evaluation import detection
from fedsynth.evaluation.evaluate import evaluate, forecast
from fedsynth.evaluation.metric import Comparison
from fedsynth.evaluation.metrics import METRICS
from fedsynth.evaluation.report import Evaluation, render_report
from fedsynth.evaluation.score import Estimate, EvaluationTables, Score, over_trials
from fedsynth.evaluation.settings import EvaluationSettings
from fedsynth.evaluation.utility import utility
from fedsynth.privacy.cost import Budget
from fedsynth.rows import Table, concatenate
from fedsynth.schema import Categorical, Numeric, Schema

pytest.importorskip("sklearn")


def shuffled(table: Table, seed: int = 0) -> Table:
    rng = np.random.default_rng(seed)
    ways = [rng.permutation(len(table)) for _ in table.codes]
    columns = tuple(column[way] for column, way in zip(table.codes, ways, strict=True))
    return Table(table.schema, columns, {j: values[ways[j]] for j, values in table.numbers.items()})


@cache
def adult() -> tuple[Table, Table, Table]:
    """Return 3,000 training rows, 2,500 of a hold-out and 3,000 others."""
    frame = read_frame(public_data("adult.csv"))
    schema = draft_schema(frame).schema
    table = encode(schema, frame)
    order = np.random.default_rng(1).permutation(len(table))
    return table.take(order[:3000]), table.take(order[3000:5500]), table.take(order[5500:8500])


@cache
def judged(what: str) -> dict[str, Score]:
    real, holdout, others = adult()
    synthetic = {"fresh": others, "copy": real, "shuffled": shuffled(others)}[what]
    evaluation = evaluate(
        EvaluationTables(real, synthetic, holdout),
        EvaluationSettings(full=True, target="income", repeats=3, suites=("flaim",)),
    )
    return {score.name: score for score in evaluation.scores}


def test_real_rows_in_place_of_synthetic_ones_are_near_the_reference_everywhere():
    scores = judged("fresh")
    assert scores["column similarity"].synthetic.value > 0.97
    assert scores["pair similarity"].synthetic.value > 0.95
    assert scores["propensity MSE"].synthetic.value < 0.03
    assert scores["share nearer to training rows"].synthetic.value == pytest.approx(0.5, abs=0.03)
    for name, score in scores.items():
        assert score.verdict != "alarm", name
        if "membership AUC" in name:
            assert score.synthetic.value == pytest.approx(0.5, abs=0.04)
        if score.family == "fidelity" and score.metric != "means":  # measured once, on all rows
            spread = max(score.reference.high - score.reference.low, score.synthetic.high - score.synthetic.low)
            assert abs(score.synthetic.value - score.reference.value) <= 1.5 * spread, name


def test_a_copy_of_the_training_rows_is_good_and_alarms():
    scores = judged("copy")
    assert scores["column similarity"].synthetic.value > 0.97
    assert scores["ROC AUC"].verdict == "good"
    alarms = {name for name, score in scores.items() if score.verdict == "alarm"}
    assert {"exact matches by values", "median DCR", "share nearer to training rows"} <= alarms
    assert "membership AUC, GAN-Leaks" in alarms


def test_shuffled_columns_keep_column_scores_and_lose_pairs_and_utility():
    scores, fresh = judged("shuffled"), judged("fresh")
    for name in ("column similarity", "Hellinger distance (20 bins)", "Wasserstein distance", "workload error, 1-way"):
        assert scores[name].synthetic.value == pytest.approx(fresh[name].synthetic.value, rel=0.3), name
    assert scores["pair similarity"].synthetic.value < scores["pair similarity"].reference.low - 0.03
    assert scores["association difference"].synthetic.value > 5 * scores["association difference"].reference.value
    assert scores["propensity MSE"].synthetic.value > 3 * scores["propensity MSE"].reference.value
    assert scores["log-cluster (20 clusters)"].synthetic.value > scores["log-cluster (20 clusters)"].reference.high
    assert scores["ROC AUC"].verdict != "good"
    assert scores["ROC AUC"].synthetic.value < 0.6


def test_headlines_are_the_means_of_their_details():
    several = 0
    for score in judged("fresh").values():
        if score.details and score.metric not in ("means", "associations-kept", "correlations-kept", "heaps"):
            several += 1
            sides = np.array(list(score.details.values()))
            assert score.synthetic.value == pytest.approx(sides[:, 0].mean()), score.name
            if score.family != "privacy":
                assert score.reference.value == pytest.approx(sides[:, 1].mean()), score.name
    assert several > 10


# ---------------------------------------------------------------------------------------------------------------------
# Small tables


def small(rows: int, seed: int, columns: int = 3) -> Table:
    schema = Schema(
        (
            *(Numeric(f"n{j}", 0, 1) for j in range(columns)),
            Categorical("k", ("a", "b", "c")),
            Categorical("y", ("no", "yes"), missing=True),
        )
    )
    rng = np.random.default_rng(seed)
    numbers = {j: rng.random(rows) for j in range(columns)}
    codes = [np.minimum((numbers[j] * 32).astype(np.uint8), 31) for j in range(columns)]
    k = rng.integers(0, 3, rows).astype(np.uint8)
    y = np.where(rng.random(rows) < 0.1, 2, numbers[0] > 0.5).astype(np.uint8)
    return Table(schema, (*codes, k, y), numbers)


def test_an_evaluation_survives_json_and_says_what_was_sampled():
    found = evaluate(
        EvaluationTables(small(300, 0), small(250, 1), small(200, 2)),
        EvaluationSettings(full=True, target="y", guarantee=Budget(1.0, 1e-6), repeats=2),
        log_likelihood=lambda table: np.full(len(table), -2.5),
    )
    again = Evaluation.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False)))
    assert json.dumps(again.to_json()) == json.dumps(found.to_json())
    assert again.rows == {"real": 300, "synthetic": 250, "holdout": 200}
    assert any("200 others as the reference" in note and "200 synthetic rows" in note for note in found.notes)
    likelihood = next(score for score in found.scores if "likelihood" in score.name)
    assert likelihood.synthetic.value == likelihood.reference.value == 2.5
    assert {score.family for score in found.scores} == {"fidelity", "utility", "privacy"}


def test_a_first_report_runs_no_attack_and_says_how_to_get_the_rest():
    evidence = EvaluationTables(small(300, 0), small(250, 1), small(200, 2))
    found = evaluate(evidence, EvaluationSettings(target="y", repeats=2))
    assert found.first
    assert {score.metric for score in found.scores} <= {name for name, metric in METRICS.items() if metric.first}
    assert {"column-similarity", "pair-similarity", "learning", "exact-matches"} <= {s.metric for s in found.scores}
    auc = next(score for score in found.scores if score.name == "ROC AUC")
    assert list(auc.details) == ["gradient boosting"]
    assert "1 draw;" in auc.note
    assert "full=True" in found.notes[-1]
    page = render_report(found, None)
    assert "attacks come with --full" in page
    asked = evaluate(
        evidence, EvaluationSettings(target="y", sensitive="k", suites=("flaim",), repeats=2)
    )  # what is asked for is measured
    assert "attribute-disclosure" in {score.metric for score in asked.scores}
    assert "2 draws; flaim" in next(score for score in asked.scores if score.name == "ROC AUC").note
    full = evaluate(evidence, EvaluationSettings(full=True, target="y", repeats=2))
    assert not full.first
    assert {"membership-inference", "propensity", "wasserstein-2d"} <= {score.metric for score in full.scores}
    assert "full=True" not in " ".join(full.notes)
    for one in found.scores:  # a score does not depend on the others, but for the learners
        if one.family == "fidelity":
            assert next(score for score in full.scores if score.name == one.name).synthetic == one.synthetic


def test_the_time_of_a_report_is_told_from_sizes_alone():
    little, much = (EvaluationTables(small(rows, 0), small(rows, 1)) for rows in (200, 20_000))
    for evidence in (little, much):
        assert (
            forecast(evidence)
            < forecast(evidence, EvaluationSettings(target="y"))
            < forecast(evidence, EvaluationSettings(target="y", full=True))
        )
    assert forecast(little, EvaluationSettings(target="y", full=True)) < forecast(
        much, EvaluationSettings(target="y", full=True)
    )
    assert forecast(much, EvaluationSettings(target="y", max_rows=2_000)) < forecast(
        much, EvaluationSettings(target="y")
    )


def test_an_evaluation_runs_on_one_thread():
    seen: list[int] = []

    def asked(table: Table) -> NDArray[np.float64]:
        seen.extend(pool["num_threads"] for pool in threadpoolctl.threadpool_info())
        return np.zeros(len(table))

    before = [pool["num_threads"] for pool in threadpoolctl.threadpool_info()]
    evidence = EvaluationTables(small(60, 0), small(60, 1), small(60, 2))
    with threadpoolctl.threadpool_limits(2):
        evaluate(evidence, EvaluationSettings(metrics=["likelihood"]), log_likelihood=asked)
        assert {pool["num_threads"] for pool in threadpoolctl.threadpool_info()} == {2}
    assert set(seen) == {1}
    assert before == [pool["num_threads"] for pool in threadpoolctl.threadpool_info()][: len(before)]


def test_the_same_seed_gives_the_same_scores_and_another_other_ones():
    evidence = EvaluationTables(small(200, 0), small(200, 1), small(150, 2))
    one, two, other = (
        evaluate(evidence, EvaluationSettings(full=True, target="y", repeats=2, seed=seed)).to_json()
        for seed in (0, 0, 3)
    )
    assert one == two
    assert one["scores"] != other["scores"]


def test_without_a_hold_out_halves_stand_in_and_the_rest_is_said():
    found = evaluate(
        EvaluationTables(small(300, 0), small(300, 1)), EvaluationSettings(full=True, target="y", repeats=2)
    )
    names = {score.name for score in found.scores}
    assert "column similarity" in names
    assert not {name for name in names if "membership" in name}
    said = " ".join(found.notes)
    assert "hold-out" in said
    assert "a fifth of the real rows" in said
    halves = [one for one in found.scores if one.family == "fidelity" and one.metric != "means"]
    assert all("half of the real rows" in score.reference_is for score in halves)


def test_without_a_target_and_with_an_impossible_one_utility_is_said_to_be_missing():
    evidence = EvaluationTables(small(200, 0), small(200, 1), small(150, 2))
    for target, why in (("", "--target"), ("y", "one class only")):
        holdout = evidence.holdout
        assert holdout is not None
        if target:
            holdout = holdout.take(holdout.codes[4] == 1)
        found = evaluate(
            EvaluationTables(evidence.real, evidence.synthetic, holdout), EvaluationSettings(target=target, repeats=1)
        )
        assert not [score for score in found.scores if score.family == "utility"]
        assert any("Utility was not measured" in note and why in note for note in found.notes)


def test_a_wide_table_says_which_pairs_it_looked_at():
    evidence = EvaluationTables(small(60, 0, 48), small(60, 1, 48), small(50, 2, 48))
    found = evaluate(evidence, EvaluationSettings(full=True, repeats=1))
    scores = {score.name: score for score in found.scores}
    assert len(scores["pair similarity"].details) == 300
    assert "300 random pairs of columns of 1,225" in scores["pair similarity"].note
    assert "40 random columns of 50" in scores["pairwise correlation difference"].note
    assert len(found.plot_data.columns) == 50
    assert len(found.plot_data.associations.names) == 40


@pytest.mark.parametrize("kind", ["numbers", "categories", "one column"])
def test_tables_of_one_kind_or_one_column(kind):
    columns = {"numbers": [0, 1, 2], "categories": [3, 4], "one column": [3]}[kind]

    def part(table: Table) -> Table:
        schema = Schema(tuple(table.schema.columns[j] for j in columns))
        numbers = {at: table.numbers[j] for at, j in enumerate(columns) if j in table.numbers}
        return Table(schema, tuple(table.codes[j] for j in columns), numbers)

    sides = EvaluationTables(part(small(100, 0)), part(small(100, 1)), part(small(80, 2)))
    found = evaluate(sides, EvaluationSettings(full=True, repeats=1))
    names = {score.name for score in found.scores}
    assert ("Wasserstein distance" in names) == (kind == "numbers")
    assert ("Jensen-Shannon divergence" in names) == (kind != "numbers")
    assert ("pair similarity" in names) == (kind != "one column")
    assert all(np.isfinite(score.synthetic.value) for score in found.scores)


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(Unsupported, match="at least 2"):
        EvaluationTables(small(1, 0), small(10, 0))
    with pytest.raises(Unsupported, match="different schemas"):
        EvaluationTables(small(10, 0), small(10, 0, columns=2))
    with pytest.raises(SchemaError, match="no column"):
        evaluate(EvaluationTables(small(10, 0), small(10, 1)), EvaluationSettings(target="nobody"))
    with pytest.raises(InvalidParameter, match="repeats: expected a whole number of at least 1, not 0"):
        evaluate(EvaluationTables(small(10, 0), small(10, 1)), EvaluationSettings(repeats=0))
    with pytest.raises(InvalidParameter, match="did you mean 'flaim'"):
        evaluate(EvaluationTables(small(10, 0), small(10, 1)), EvaluationSettings(suites=("default", "flaimm")))


def test_a_suite_that_cannot_be_used_costs_no_other_its_scores(monkeypatch):
    def without(*of: Any, suite: str, **options: Any) -> list[Score]:
        if suite == "flaim":
            raise Unsupported("its package is missing")
        return utility(*of, suite=suite, **options)

    monkeypatch.setattr("fedsynth.evaluation.evaluate.utility", without)
    evidence = EvaluationTables(small(200, 0), small(200, 1), small(150, 2))
    found = evaluate(
        evidence, EvaluationSettings(metrics=("learning",), target="y", suites=("flaim", "default"), repeats=1)
    )
    assert [score for score in found.scores if score.family == "utility"]
    assert any("not measured by the suite flaim: its package is missing" in note for note in found.notes)
    with pytest.raises(Unsupported, match="its package is missing"):
        evaluate(evidence, EvaluationSettings(metrics=("learning",), target="y", suites=("flaim",), repeats=1))


def test_attacks_look_for_the_rows_that_were_fitted():
    """A copy of one site's rows leaks them all; among the rows of ten sites, a tenth of that is to be seen."""
    site, others, holdout = small(200, 0), small(1800, 1), small(400, 2)
    evidence = EvaluationTables(concatenate([site, others]), site, holdout)
    among, alone = (
        evaluate(evidence, EvaluationSettings(metrics=("membership-inference",)), fitted=fitted)
        .scores[0]
        .synthetic.value
        for fitted in (None, site)
    )
    assert alone > 0.9
    assert among < 0.7


def test_the_likelihood_stands_beside_that_of_the_rows_that_were_fitted():
    site, others, holdout = small(60, 0), small(240, 1), small(50, 2)
    score = evaluate(
        EvaluationTables(concatenate([site, others]), site, holdout),
        EvaluationSettings(metrics=("likelihood",)),
        log_likelihood=lambda table: -table.numbers[0],
        fitted=site,
    ).scores[0]
    assert score.synthetic.value == pytest.approx(holdout.numbers[0].mean())
    assert score.reference.value == pytest.approx(site.numbers[0].mean())
    assert score.reference_is == "the rows that the model was fitted to"


def test_trials_compare_on_equal_terms():
    evidence = EvaluationTables(small(500, 0), small(90, 1), small(200, 2))
    for trial in evidence.trials(4, max_rows=400):
        assert len(trial.synthetic) == len(trial.reference) == 90
        assert len(trial.real) == 400
        rows = [set(map(tuple, zip(*table.numbers.values(), strict=True))) for table in (trial.real, trial.reference)]
        assert not rows[0] & rows[1]
    (alone,) = EvaluationTables(small(101, 0), small(500, 1)).trials(1, 1000)
    assert (len(alone.real), len(alone.reference), len(alone.synthetic)) == (51, 50, 50)


def test_scores_over_trials_by_hand():
    trials = list(EvaluationTables(small(20, 0), small(20, 1), small(20, 2)).trials(2, 100))
    calls = itertools.count()
    score = over_trials("x", trials, lambda real, other: {"a": float(next(calls)), "b": 10.0}, best=1.0)
    # Calls: both trials' references give 0 and 1, their synthetic rows 2 and 3.
    assert score.details == {"a": (2.5, 0.5), "b": (10.0, 10.0)}
    assert score.synthetic.value == pytest.approx(6.25)
    assert score.synthetic.high - score.synthetic.value == pytest.approx(1.959964 * np.std([6.0, 6.5], ddof=1))
    assert np.isnan(Estimate.over([1.0]).low)


def test_what_real_rows_score_is_computed_once_for_all_synthetic_tables(monkeypatch):
    real, holdout = small(300, 0), small(200, 1)
    metrics = ("column-similarity", "association-difference", "propensity", "wasserstein-2d")
    first = evaluate(EvaluationTables(real, small(250, 2), holdout), EvaluationSettings(metrics=metrics))
    asked: list[Table] = []
    measured = detection.propensity_mse

    def counted(one: Table, other: Table, seed: int) -> float:
        asked.append(other)
        return measured(one, other, seed)

    comparison = Comparison(partial(counted, seed=0), "between 0 and 0.25")
    metric = replace(METRICS["propensity"], comparisons=lambda real, seed: iter([comparison]))
    monkeypatch.setitem(METRICS, "propensity", metric)
    again = small(300, 0)  # the same rows, read once more
    second = evaluate(EvaluationTables(again, small(250, 3), holdout), EvaluationSettings(metrics=metrics))
    assert len(asked) == 5  # trials: the synthetic rows alone
    for one, other in zip(first.scores, second.scores, strict=True):
        assert one.reference == other.reference
        assert one.synthetic != other.synthetic
    evaluate(EvaluationTables(small(300, 4), small(250, 3), holdout), EvaluationSettings(metrics=metrics))
    assert len(asked) == 15
    evaluate(EvaluationTables(real, small(250, 3), holdout), EvaluationSettings(metrics=metrics, seed=1))
    assert len(asked) == 25


@pytest.mark.parametrize("rows", [2, 3])
def test_a_pair_of_rows_is_enough(rows):
    found = evaluate(EvaluationTables(small(rows, 0), small(rows, 1)), EvaluationSettings(full=True))
    assert {"propensity MSE", "pair similarity"} <= {score.name for score in found.scores}


@pytest.mark.parametrize(
    ("column", "draw"),
    [
        (Numeric("x", 0, 1, missing=True), lambda rng, rows: np.full(rows, np.nan)),
        (Numeric("x", 0, 1e-300), lambda rng, rows: rng.random(rows) * 1e-300),
        (Numeric("x", -1e20, 1e20), lambda rng, rows: rng.uniform(-1e20, 1e20, rows)),
        (Categorical("x", tuple(range(40))), lambda rng, rows: rng.integers(0, 40, rows)),
    ],
    ids=["all missing", "tiny", "large", "many classes"],
)
def test_odd_columns_get_scores_that_json_holds_and_a_report(column, draw):
    schema = Schema((column, Categorical("y", ("no", "yes")), Numeric("z", 0, 1)))

    def rows(many: int, seed: int) -> Table:
        rng = np.random.default_rng(seed)
        columns = {"x": draw(rng, many), "y": rng.choice(["no", "yes"], many), "z": rng.random(many)}
        return encode(schema, pd.DataFrame(columns))

    found = evaluate(
        EvaluationTables(rows(60, 0), rows(50, 1), rows(40, 2)),
        EvaluationSettings(full=True, target="y", sensitive="x"),
    )
    json.dumps(found.to_json(), allow_nan=False)
    assert all(np.isfinite([score.synthetic.value, score.reference.value]).all() for score in found.scores)
    assert "column similarity" in render_report(found, None)
