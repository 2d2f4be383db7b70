"""Answers that a run keeps: the same after a trip to disk, hostile ones refused, and what criteria say of a table."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from tests.answers.world import DECLARED, SCHEMA, labelled, rows

from fedsynth.answers.asking import Questioned, ask
from fedsynth.answers.declared import read_declared
from fedsynth.answers.questions import Answer
from fedsynth.answers.results import Answers, answers_text, judged_text
from fedsynth.encoding import encode
from fedsynth.errors import FedsynthError
from fedsynth.federation.simulate import federate
from fedsynth.methods.oneshot import OneShot
from fedsynth.models.synthesizer import load
from fedsynth.privacy.cost import Budget

FRAME = rows(2400)
BUDGET = Budget(3.0, 1e-6)


@pytest.fixture(scope="module")
def answers() -> Answers:
    return ask(DECLARED, federate([FRAME], SCHEMA, BUDGET, trust="trusted", seed=0))[1]


def test_a_saved_model_has_the_answers_of_its_run(tmp_path):
    federation = federate([FRAME], SCHEMA, BUDGET, trust="trusted", seed=0)
    synthesizer = Questioned(DECLARED, OneShot()).fit(federation)
    synthesizer.save(tmp_path / "model.fedsynth")
    read = Answers.from_json(load(tmp_path / "model.fedsynth").info["answers"], SCHEMA)
    _, made = ask(DECLARED, federate([FRAME], SCHEMA, BUDGET, trust="trusted", seed=0))
    assert read.answers == made.answers
    assert read.declared == made.declared == DECLARED
    for one, other in zip(read.tables, made.tables, strict=True):
        np.testing.assert_array_equal(one.values, other.values)
        assert one.std == other.std
    table = encode(SCHEMA, FRAME)
    assert read.exact(table) == made.exact(table)
    assert read.to_json() == made.to_json()


def changed(content: dict[str, Any], *path: str | int, to: Any) -> dict[str, Any]:
    """Return a copy of JSON values with another one at a path; ``None`` for a deletion."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(content))
    inner: Any = found
    for step in path[:-1]:
        inner = inner[step]
    if to is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return found


@pytest.mark.parametrize(
    ("path", "to"),
    [
        (("declared",), None),
        (("declared", "question"), "all"),
        (("declared", "question", 0, "kind"), "shares"),
        (("declared", "question", 0, "of"), "moon=yes"),
        (("declared", "cuts", "age"), [60.0, 40.0]),
        (("declared", "cuts", "age"), [50.0]),
        (("ranges",), []),
        (("ranges", 0, "column"), 99),
        (("ranges", 0, "column"), -1),
        (("ranges", 0, "low"), "0"),
        (("ranges", 0, "low"), 1e9),
        (("ranges", 0, "edges"), []),
        (("ranges", 0, "cumulated"), [0.0]),
        (("tables",), []),
        (("tables", 0, "values"), [1.0]),
        (("tables", 0, "values"), ["many"]),
        (("tables", 0, "std"), -1.0),
        (("answers", 0, "value"), "many"),
        (("answers",), []),
        (("answers", 0, "label"), "another"),
        (("answers", 0, "question"), "another"),
        (("more",), 1),
    ],
)
def test_hostile_answers_are_refused_with_a_sentence(answers, path, to):
    content = answers.to_json()
    Answers.from_json(content, SCHEMA)
    with pytest.raises(FedsynthError) as caught:
        Answers.from_json(changed(content, *path, to=to), SCHEMA)
    assert len(str(caught.value)) > 20


def test_answers_of_another_schema_are_refused(answers):
    smaller = type(SCHEMA)(SCHEMA.columns[1:])
    with pytest.raises(FedsynthError):
        Answers.from_json(answers.to_json(), smaller)


# ---------------------------------------------------------------------------------------------------------------------
# Criteria


def judging(tolerance: float, budget: Budget = BUDGET, **question: Any) -> Answers:
    of = {"kind": "cross", "name": "wards", "columns": ["ward"], **question, "tolerance": tolerance}
    asked = read_declared({"criterion": [of], "cuts": {"age": [40, 60, 75]}})
    return ask(asked, federate([FRAME], SCHEMA, budget, trust="trusted", seed=1))[1]


def test_a_criterion_is_met_by_the_rows_themselves_and_not_by_others():
    answers = judging(0.06)
    (same,) = answers.judged(encode(SCHEMA, FRAME))
    assert (same.verdict, same.criterion, same.tolerance) == ("met", "wards", 0.06)
    assert same.distance is not None
    assert same.low == 0
    assert same.high is not None
    assert 0 < same.distance < same.high <= 0.06
    (far,) = answers.judged(encode(SCHEMA, FRAME[FRAME.ward == "surgery"]))
    assert far.verdict == "not met"
    assert far.low is not None
    assert far.low > 0.06
    assert far.distance == pytest.approx(1 - (FRAME.ward == "surgery").mean(), abs=0.05)


def test_a_tolerance_below_the_noise_cannot_be_told():
    (near,) = judging(0.001).judged(encode(SCHEMA, FRAME))
    assert near.verdict == "cannot be told"
    assert near.low is not None
    assert near.low <= 0.001
    (refused,) = judging(0.5, among="age>=109 & sex=f").judged(encode(SCHEMA, FRAME))
    assert (refused.verdict, refused.distance, refused.low, refused.high) == ("cannot be told", None, None, None)


def test_verdicts_allow_for_all_answers_of_a_criterion_at_once():
    """Of one with 16 cells, the interval is wider than that of its least sure cell alone."""
    answers = judging(0.5, columns=["ward", "age"])
    (judged,) = answers.judged(encode(SCHEMA, FRAME))
    widest = max(answer.noise for answer in answers.answers if answer.noise is not None)
    assert len(answers.answers) == 16
    assert judged.high is not None
    assert judged.distance is not None
    assert judged.high >= 1.45 * widest  # the 1 - .05 / 32 quantile is 1.5 times that of one interval


def test_a_table_without_rows_in_a_group_is_not_judged_and_breaks_nothing(answers):
    """Nor one whose covariates do not vary."""
    nobody = labelled(answers.exact(encode(SCHEMA, FRAME[FRAME.age < 20])))
    assert "about 0 rows" in nobody["mean", ""].refused
    assert "about 0 rows" in nobody["share", ""].refused
    alike = labelled(answers.exact(encode(SCHEMA, FRAME.assign(age=50, sex="f"))))
    assert "variance of age" in alike["correlation", "nights, age"].refused
    assert alike["correlation", "nights, bill"].value is not None
    assert "in some direction" in alike["slope", "age"].refused
    assert "information" in alike["odds", "sex=m"].refused
    assert judging(0.5, among="sex=f").judged(encode(SCHEMA, FRAME[FRAME.sex == "m"]))[0].verdict == "cannot be told"


@pytest.mark.parametrize(
    "asks",
    [
        {"kind": "cross", "columns": ["ward"], "tolerance": 0.05},
        {"kind": "quantile", "column": "bill", "at": [0.1, 0.5, 0.9], "tolerance": 400},
    ],
    ids=lambda asks: asks["kind"],
)
def test_verdicts_hold_the_true_distance_in_at_least_95_of_100_runs(asks):
    """Of a table that is off by a known distance; each answer's noise alone would not be enough for the largest."""
    moved = FRAME.index % 10 != 0
    table = encode(SCHEMA, FRAME.assign(ward=FRAME.ward.where(moved, "surgery"), bill=FRAME.bill.where(moved, 300)))
    asked = read_declared({"criterion": [{"name": "w", **asks}]})
    held = []
    for seed in range(200):
        _, answers = ask(asked, federate([FRAME], SCHEMA, Budget(1.0, 1e-6), trust="trusted", seed=seed))
        of_both = [np.array([of.value for of in answers.exact(one)]) for one in (table, encode(SCHEMA, FRAME))]
        exact = float(np.abs(of_both[0] - of_both[1]).max())
        (judged,) = answers.judged(table)
        assert judged.low is not None
        assert judged.high is not None
        held.append(judged.low <= exact <= judged.high)
    assert np.mean(held) >= 0.92  # three standard errors below 95 %


# ---------------------------------------------------------------------------------------------------------------------
# For people


def test_answers_are_shown_with_the_digits_that_their_intervals_leave():
    shown = answers_text(
        [
            Answer("a", "", "share", 0.123456, 0.11, 0.14, 0.012, 0.009),
            Answer("bb", "label", "total", 1234567.8, 1e6, 1.5e6, 2.5e5, 0.0),
            Answer("c", "", "mean", refused="too few"),
        ]
    )
    assert shown.splitlines() == [
        "a              0.123  [0.110, 0.140]  noise 0.012, sampling 0.009",
        "bb: label  1,234,568  [1,000,000, 1,500,000]  noise 250,000, sampling 0",
        "c            refused  too few",
    ]


def test_frames_have_a_row_for_each_answer(answers):
    frame = answers.frame
    assert list(frame.columns[:4]) == ["question", "label", "estimand", "value"]
    assert len(frame) == len(answers.answers)
    assert "<table" in answers._repr_html_()


def test_verdicts_are_shown_with_what_the_real_rows_may_be():
    met, refused = judging(0.06), judging(0.5, among="age>=109 & sex=f")
    table = encode(SCHEMA, FRAME)
    (line,) = judged_text(met.judged(table)).splitlines()
    assert line.startswith("met: wards: 0.0")
    assert line.endswith("(95 %); tolerance 0.06")
    assert "cannot be told: wards: an answer is refused" in judged_text(refused.judged(table))
