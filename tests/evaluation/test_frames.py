"""`fedsynth.evaluate` on data frames: the evaluator of the command line, and the names of what it measures."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pandas as pd
import pytest
from msgspec.structs import fields

import fedsynth
from fedsynth.bench.metrics import FinishedRun, find_metric
from fedsynth.cliques import random_workload
from fedsynth.encoding import encode
from fedsynth.errors import DataWarning, InvalidParameter, SchemaError, Unsupported
from fedsynth.evaluation import evaluate as evaluator
from fedsynth.evaluation.metrics import METRICS
from fedsynth.evaluation.report import Evaluation, render_report
from fedsynth.evaluation.score import EvaluationTables, value_of
from fedsynth.evaluation.settings import EvaluationOptions, EvaluationSettings
from fedsynth.schema import (
    Categorical,
    Computed,
    Numeric,
    Rule,
    Schema,
)
from fedsynth.settings import texts

pytest.importorskip("sklearn")

SCHEMA = Schema(
    (
        Numeric("age", 0, 100),
        Numeric("pay", 0, 50, missing=True),
        Categorical("job", ("cook", "nurse", "clerk")),
        Categorical("sick", ("no", "yes")),
    ),
    rules=(Rule({"job": ["clerk"], "sick": ["yes"]}),),
)


@cache
def rows(many: int, seed: int, tilt: float = 0.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.uniform(0, 100, many)
    pay = np.where(rng.random(many) < 0.1, np.nan, np.clip(age / 2 * (1 - tilt) + rng.normal(0, 3, many), 5, 50))
    job = np.array(["cook", "nurse", "clerk"])[rng.integers(0, 3, many)]
    sick = np.where(rng.random(many) < age / 100, "yes", "no")
    return pd.DataFrame({"age": age, "pay": pay, "job": job, "sick": sick})


def judged(**options) -> pd.DataFrame:
    return fedsynth.evaluate(rows(180, 1, 0.3), train=rows(200, 0), schema=SCHEMA, repeats=2, **options).frame


@cache
def everything() -> pd.DataFrame:
    return judged(
        full=True, holdout=rows(150, 2), target="sick", log_likelihood=lambda table: np.full(len(table), -2.5)
    )


def test_the_frame_holds_what_the_evaluator_says():
    real, synthetic, holdout = (encode(SCHEMA, frame) for frame in (rows(200, 0), rows(180, 1, 0.3), rows(150, 2)))
    found = evaluator.evaluate(
        EvaluationTables(real, synthetic, holdout, agreed=SCHEMA),
        EvaluationSettings(full=True, target="sick", repeats=2),
        log_likelihood=lambda table: np.full(len(table), -2.5),
    )
    frame = everything()
    assert list(frame.columns) == ["metric", "score", "column", "value", "reference"]
    assert frame.attrs["notes"] == list(found.notes)
    headlines = frame[frame["column"] == ""]
    assert list(headlines["score"]) == [score.name for score in found.scores]
    assert list(headlines["value"]) == [score.synthetic.value for score in found.scores]
    assert list(headlines["reference"]) == [score.reference.value for score in found.scores]
    by_column = frame[(frame["metric"] == "wasserstein") & (frame["column"] != "")]
    assert list(by_column["column"]) == ["age", "pay"]
    whole = headlines.set_index("score").loc["Wasserstein distance"]
    assert by_column[["value", "reference"]].mean().tolist() == pytest.approx([whole["value"], whole["reference"]])


def test_every_metric_can_be_asked_for_and_scores_the_same_alone():
    frame = everything()
    assert set(frame["metric"]) == set(METRICS)
    for name in ("pair-similarity", "workload-error", "exact-matches", "nearer-to-training"):
        alone = judged(holdout=rows(150, 2), target="sick", metrics=[name])
        expected = frame[frame["metric"] == name].reset_index(drop=True)
        pd.testing.assert_frame_equal(alone, expected, check_flags=False, obj=name)
    assert set(judged(metrics="coverage")["metric"]) == {"coverage"}


def test_an_unknown_metric_is_refused_with_the_nearest_spelling_and_the_list():
    with pytest.raises(InvalidParameter, match=r"'wassertein'; did you mean 'wasserstein'\?"):
        judged(metrics=["coverage", "wassertein"])
    with pytest.raises(
        InvalidParameter, match=r"no metric named 'x'; choose one of validity, means, associations-kept"
    ):
        judged(metrics=["x"])
    with pytest.raises(Unsupported, match="cannot import 'means:means'"):
        judged(metrics=["means:means"])
    with pytest.raises(
        InvalidParameter, match=r"bench.metrics:spent' \(it must be a fedsynth.evaluation.metric.Metric"
    ):
        judged(metrics=["fedsynth.bench.metrics:spent"])
    with pytest.raises(Unsupported, match=r"'jensen-shanon'; for one of your own .*; did you mean 'jensen-shannon'\?"):
        find_metric("jensen-shanon")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("membership-inference", "hold-out rows"),
        ("learning", "column to predict"),
        ("likelihood", "a model that has a likelihood"),
    ],
)
def test_what_is_named_and_cannot_be_measured_is_refused(name, why):
    with pytest.raises(Unsupported, match=f"^{name} cannot be measured on these tables: .*{why}"):
        judged(metrics=["coverage", name])
    assert name not in set(judged()["metric"])  # of the usual set it is left out, and the notes say so


def test_a_metric_of_columns_that_the_schema_lacks_is_refused():
    numbers = Schema((Numeric("age", 0, 100),))
    with pytest.raises(Unsupported, match=r"jensen-shannon cannot be measured .* too few columns of the type"):
        fedsynth.evaluate(rows(50, 1)[["age"]], train=rows(50, 0)[["age"]], schema=numbers, metrics=["jensen-shannon"])
    alone = Schema((Categorical("job", ("cook", "nurse", "clerk")), Categorical("sick", ("no", "yes"))))
    real, synthetic = (rows(50, seed)[["job", "sick"]] for seed in (0, 1))
    with pytest.raises(Unsupported, match=r"associations-kept cannot be measured .* no strongly associated pair"):
        fedsynth.evaluate(synthetic, train=real, schema=alone, metrics=["associations-kept"])


def test_rows_without_anything_to_check_have_no_validity():
    """The only derived column is computed, and the frames lack it: no score says that no row breaks a rule."""
    total = Numeric("total", 0, 150, computed=Computed(sum=("age", "other")))
    schema = Schema((Numeric("age", 0, 100), Numeric("other", 0, 50), total))
    real, fresh = (rows(50, seed)[["age"]].assign(other=1.0) for seed in (0, 1))
    full = [frame.assign(total=frame["age"] + 1.0) for frame in (real, fresh)]
    found = fedsynth.evaluate(full[1], train=full[0], schema=schema, metrics=["validity"])
    assert list(found.frame["value"]) == [0.0, 0.0]
    with pytest.raises(Unsupported, match=r"validity cannot be measured on these tables: .* nothing to check"):
        fedsynth.evaluate(fresh, train=real, schema=schema, metrics=["validity"])


def test_a_metric_of_another_package_is_one_file(tmp_path, monkeypatch):
    documented = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text().split("## A metric of your own")[1]
    (code,) = re.findall(r"```python\n(.*?)```", documented.split("\n## ")[0], re.DOTALL)
    (tmp_path / "widths.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    narrow = rows(180, 1).assign(age=rows(180, 1)["age"] / 4 + 40, pay=rows(180, 1)["pay"] / 4)
    found = fedsynth.evaluate(narrow, train=rows(200, 0), schema=SCHEMA, metrics=["widths:WIDTHS", "coverage"])
    assert [score.metric for score in found.scores] == ["coverage", "widths"]
    score = found.scores[1]
    assert (score.name, score.best, score.verdict) == ("range used", 1.0, "alarm")
    assert score.details["age"] == pytest.approx((0.25, 1.0), abs=0.05)
    page = render_report(Evaluation.from_json(found.to_json()), None)
    assert "Ranges of numbers are too narrow (range used)." in page
    assert score.says in page
    run = FinishedRun(encode(SCHEMA, rows(200, 0)), encode(SCHEMA, narrow))
    assert find_metric("widths:WIDTHS")(run) == pytest.approx(score.synthetic.value, abs=0.05)
    (tmp_path / "taken.py").write_text(code.replace('"widths"', '"coverage"'))
    with pytest.raises(InvalidParameter, match="with a name of its own"):
        judged(metrics=["taken:WIDTHS"])


def test_rows_that_do_not_fit_the_schema_are_refused():
    strange = rows(50, 1).assign(job="pilot")
    with pytest.raises(SchemaError, match="50 of the 50 synthetic rows do not fit the schema"):
        fedsynth.evaluate(strange, train=rows(50, 0), schema=SCHEMA)


def test_the_keywords_of_evaluate_are_the_settings_of_an_evaluation():
    assert get_type_hints(EvaluationOptions) == get_type_hints(EvaluationSettings)
    assert set(texts(EvaluationSettings)) == set(EvaluationSettings.__struct_fields__)
    keywords = inspect.signature(fedsynth.evaluate).parameters
    shown = {one.name: keywords[one.name].default for one in fields(EvaluationSettings)}
    assert shown == {one.name: one.default for one in fields(EvaluationSettings)}
    assert keywords["max_rows"].annotation is int
    with pytest.raises(InvalidParameter, match="max_rows: expected a whole number of at least 100, not 99"):
        judged(max_rows=99)


def test_evaluate_is_public_and_is_not_imported_before_it_is_used():
    code = (
        "import sys, fedsynth; assert 'evaluate' in dir(fedsynth); "
        "assert not {'pandas', 'scipy', 'sklearn'} & set(sys.modules), sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_benchmarks_and_evaluations_measure_the_same_under_one_name():
    real, synthetic = encode(SCHEMA, rows(200, 0)), encode(SCHEMA, rows(180, 1, 0.3))
    run = FinishedRun(real, synthetic, real, target="sick", workload=random_workload(4, 2, 64, seed=0))
    parts = {"associations-kept": "above 0.3", "correlations-kept": "Spearman", "workload-error": "2-way"}
    compared = 0
    for name in METRICS:
        metric = METRICS[name]
        if metric.comparisons is None:
            continue
        every = {one.part: one.compare(real, synthetic) for one in metric.comparisons(real, 0)}
        # Trees and clusters of a benchmark see the rows in another order.
        slack = {"propensity": 0.05, "log-cluster": 2.0}.get(name, 1e-12)
        theirs = find_metric(name)(run)
        theirs = theirs[parts.get(name, "")] if isinstance(theirs, dict) else theirs
        assert theirs == pytest.approx(value_of(every[parts.get(name, "")]), abs=slack), name
        compared += 1
    assert compared >= 21
    with pytest.warns(DataWarning, match="200 of the 200 hold-out rows are among the real rows"):
        scores = find_metric("exact-matches")(run)  # like every score that has no measure of its own
    assert isinstance(scores, dict)
    assert {"exact matches by codes", "exact matches by codes, real rows"} <= set(scores)


def test_the_evaluator_is_a_metric_of_benchmarks():
    real, synthetic, holdout = (encode(SCHEMA, frame) for frame in (rows(200, 0), rows(180, 1, 0.3), rows(150, 2)))
    run = FinishedRun(real, synthetic, holdout, target="sick")
    found = find_metric("evaluation")(run, metrics=["coverage", "learning"], suites=["flaim"], repeats=2)
    scores = judged(holdout=rows(150, 2), target="sick", metrics=["coverage", "learning"], suites=["flaim"])
    headlines = scores[scores["column"] == ""]
    expected = dict(zip(headlines["score"], headlines["value"], strict=True))
    expected |= {
        f"{name}, real rows": value for name, value in zip(headlines["score"], headlines["reference"], strict=True)
    }
    assert found == expected
