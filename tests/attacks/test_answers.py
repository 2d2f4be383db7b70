"""Declared questions against hostile plans, hostile models, careless settings and rows of awkward shape."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from tests.answers.world import SCHEMA, rows

from fedsynth.answers import intervals
from fedsynth.answers.asking import Questioned, ask
from fedsynth.answers.declared import read_declared, words_of
from fedsynth.answers.intervals import Interval
from fedsynth.answers.queries import ScoreHistogram
from fedsynth.answers.questions import Answer, NoisyTable
from fedsynth.answers.ranges import Range, value_axis
from fedsynth.answers.results import Answers, Judged, _judged
from fedsynth.encoding import encode
from fedsynth.errors import FedsynthError, InvalidParameter
from fedsynth.federation.agreement import Agreement
from fedsynth.federation.simulate import federate
from fedsynth.methods.oneshot import OneShot
from fedsynth.privacy.cost import Budget
from fedsynth.runs.job import Job
from fedsynth.schema import Categorical, Numeric, Schema
from fedsynth.schema.bins import Axis


def asked(**entries: Any) -> dict[str, Any]:
    return {"question": [{"kind": "count", "name": "all", **entries}]}


# ---------------------------------------------------------------------------------------------------------------------
# What stewards read and approve


@pytest.mark.parametrize(
    "entries",
    [
        {"name": "all\x1b[2Japproved by everybody"},
        {"name": "all\nplan 0123456789ab"},
        {"among": "age>70\r"},
        {"kind": "mean", "column": "age\u202e"},
        {"kind": "sites", "columns": ["ward", "sex\x07"]},
    ],
)
def test_a_question_cannot_move_what_a_steward_reads(entries):
    with pytest.raises(InvalidParameter, match="control character"):
        words_of(asked(**entries))


@pytest.mark.parametrize("name", ["", " ", "a" * 201])
def test_a_question_has_a_name(name):
    with pytest.raises(InvalidParameter, match="1 to 200"):
        read_declared(asked(name=name))


def test_a_plan_read_from_its_file_has_the_questions_of_its_job():
    """A run under an approved plan compares both, and is refused if they differ."""
    job = Job.from_toml(
        'method = "oneshot"\nepsilon = 1.0\ndelta = 1e-6\n[[question]]\nkind = "quantile"\nname = "age"\n'
        'column = "age"\nat = [0.25, 0.5]\n[cuts]\nage = [40, 60]\n[clips]\nage = [0, 100]\n'
    )
    own = Agreement.of(job.terms(SCHEMA), 3, "oneshot", answers=job.declared)
    assert Agreement.from_toml(own.to_toml()).answers == own.answers
    assert Agreement.read(own.data).answers == own.answers


# ---------------------------------------------------------------------------------------------------------------------
# Hostile requests and models


def test_cuts_that_overflow_are_not_ascending():
    schema = Schema((Categorical("a", ("x", "y")), Categorical("b", ("x", "y"))))
    extremes = np.array([2**63 - 1, -(2**63)])
    query = ScoreHistogram((Axis(0),), (np.array([0, 1]),), extremes, Axis(1))
    with pytest.raises(InvalidParameter, match="ascending"):
        query.check(schema)


@pytest.fixture(scope="module")
def scored() -> Answers:
    """Answers with a scorer of readmission."""
    declared = read_declared(asked(kind="auc", name="auc", of="readmitted=yes", bins=8))
    federation = federate([rows(3000)], SCHEMA, Budget(8.0, 1e-6), trust="trusted", seed=0)
    found = Answers.from_json(Questioned(declared, OneShot()).fit(federation).info["answers"], SCHEMA)
    assert found.answers[0].value is not None
    return found


@pytest.mark.parametrize(
    ("path", "to"),
    [
        (("later", "auc", "shape"), [-8, -2]),
        (("later", "auc", "std"), -1.0),
        (("scorers", "auc", "points", "0"), [1]),
        (("scorers", "auc", "points", "0"), [2**40] * 4),
        (("scorers", "auc", "points"), {"99": [1]}),
        (("scorers", "auc", "points"), {"-1": [1, 2]}),
        (("scorers", "auc", "cuts"), [3, 2]),
        (("scorers", "auc", "cuts"), []),
        (("scorers",), {"another": {"points": {"0": [0, 0, 0, 0]}, "cuts": [0]}}),
    ],
)
def test_a_scorer_that_fits_no_schema_is_refused(scored, path, to):
    content = msgspec.json.decode(msgspec.json.encode(scored.to_json()))
    inner: Any = content
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = to
    with pytest.raises(FedsynthError):
        Answers.from_json(content, SCHEMA)


def test_a_table_without_one_of_the_labels_has_no_area(scored):
    frame = rows(200).assign(readmitted="no")
    (answer,) = scored.exact(encode(SCHEMA, frame))
    assert (answer.value, answer.refused) == (None, "about 0 rows meet the condition, too few for the noise")


# ---------------------------------------------------------------------------------------------------------------------
# Numbers


def test_an_area_lies_in_its_interval_even_where_noise_takes_it_above_1():
    found = intervals.auc(np.array([-3.0, 0, 5, 100]), np.array([100.0, 5, 0, -3]), 2.0)
    assert 0 <= found.low < found.value == found.high == 1


@pytest.mark.parametrize("clip", [(0.5, 10.5), (3.2, 3.7), (0.5, 5000.5)])
def test_clips_between_two_values_move_no_other_value(clip):
    column = Numeric("x", 0, 10_000, integer=True, bins=1)
    axis, values = value_axis(column, 0, Range.of(0, 10_000).clipped(*clip))
    numbers = np.arange(12.0) if clip[1] < 100 else np.array([0.0, 5001, 10_000])
    found = values[axis.places(np.zeros(len(numbers)), numbers)]
    np.testing.assert_allclose(found, numbers.clip(*clip))


@pytest.mark.parametrize("shape", ["fees", "lognormal", "whole"])
def test_means_and_totals_of_skewed_numbers_lie_in_their_intervals_by_noise(shape):
    """Values of most rows lie much closer together than a 256th of the range."""
    rng = np.random.default_rng(3)
    tail = rng.lognormal(6, 1.5, 60_000)
    values = {
        "fees": np.where(rng.random(60_000) < 0.9, 30.0, tail),
        "lognormal": rng.lognormal(5, 1.5, 60_000),
        "whole": np.where(rng.random(60_000) < 0.9, 3.0, tail).round(),
    }[shape]
    column = Numeric("x", 0, 1e6, bins=1, **({"integer": True} if shape == "whole" else {"decimals": 2}))
    schema = Schema((column, Categorical("a", ("x", "y"))))
    frame = pd.DataFrame({"x": values.clip(0, 1e6).round(2), "a": "x"})
    content = {
        "question": [{"kind": kind, "name": kind, "column": "x"} for kind in ("mean", "total")],
        "clips": {"x": [0, 30_000]},
        "answer_share": 0.9,
    }
    _, found = ask(read_declared(content), federate([frame], schema, Budget(5.0, 1e-6), trust="trusted", seed=0))
    clipped = frame.x.clip(0, 30_000)
    for answer, true in zip(found.answers, (clipped.mean(), clipped.sum()), strict=True):
        assert answer.value is not None
        assert answer.noise is not None
        assert answer.value == pytest.approx(true, abs=1.5 * answer.noise)


# ---------------------------------------------------------------------------------------------------------------------
# Criteria


def judged(answers: Answers, answer: Answer, synthetic: float, within: tuple[float, float] | None = None) -> Judged:
    """Return how a criterion is met if the sites answer so, and the synthetic table has that value."""
    (asked,) = answers.declared.criterion
    assert answer.value is not None
    assert answer.noise is not None
    return _judged(asked, [synthetic], [answer], [within or (answer.value - answer.noise, answer.value + answer.noise)])


def criterion(**entries: Any) -> Answers:
    content = {"criterion": [{"name": "c", "tolerance": 6.0, **entries}]}
    declared = read_declared(content)
    return Answers(declared, {}, (), ())


def test_a_criterion_allows_for_a_quantile_at_one_end_of_its_interval():
    """The real quantile may be 10 away, although half of the interval is 5."""
    answers = criterion(kind="quantile", column="age")
    (asked,) = answers.declared.criterion
    answer = asked.answer(Interval(50.0, 50.0, 60.0, 5.0, 0.0), "50 %")
    counts, ends = np.array([30.0, 19.0, 3.0, 48.0]), np.array([0.0, 40.0, 50.0, 60.0, 110.0])
    bounds = intervals.quantile_of_rows(counts, 0.4, ends, 0.5, 2.0)
    assert bounds == (50.0, 60.0)
    assert judged(answers, answer, 50.0, bounds).verdict == "cannot be told"


def test_a_criterion_is_not_met_by_what_is_no_number():
    answers = criterion(kind="count")
    (asked,) = answers.declared.criterion
    for value, noise in ((float("nan"), 1.0), (1.0, float("nan")), (1.0, float("inf"))):
        answer = asked.answer(Interval(value, value, value, noise, 0.0))
        assert judged(answers, answer, 1.0).verdict == "cannot be told"


def test_values_of_tables_are_never_taken_from_another_question():
    """Answers of a model's file are as many as its questions have."""
    declared = read_declared({"question": [{"kind": "count", "name": "a"}, {"kind": "count", "name": "b"}]})
    made = Answers.of(declared, SCHEMA, {}, [NoisyTable(np.array(float(at)), 1.0) for at in (1, 2)])
    content = msgspec.json.decode(msgspec.json.encode(made.to_json()))
    for answers in (content["answers"][::-1], [content["answers"][0]] * 2 + content["answers"][1:]):
        with pytest.raises(FedsynthError, match="other questions"):
            Answers.from_json({**content, "answers": answers}, SCHEMA)
