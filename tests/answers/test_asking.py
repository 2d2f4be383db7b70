"""Declared questions put to sites: what they answer without noise, what they cost, and whose rows they protect."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.answers.world import DECLARED, SCHEMA, declared, labelled, pooled, rows, slopes
from tests.world import of_strangers

from fedsynth.answers.asking import LOOK, Questioned, ask
from fedsynth.answers.intervals import Z
from fedsynth.encoding import encode
from fedsynth.errors import InvalidParameter, SchemaError, Unsupported
from fedsynth.federation.simulate import federate
from fedsynth.methods.oneshot import OneShot
from fedsynth.privacy.cost import Budget, Unit
from fedsynth.schema import Numeric, Schema
from fedsynth.secure.site import SecureSum

BUDGET = Budget(1.0, 1e-6)
SITES = [rows(count, seed) for seed, count in enumerate((900, 600, 300))]
EVERYBODY = pd.concat(SITES, ignore_index=True)
SURVIVAL = {"kind": "survival", "time": "nights", "event": "readmitted=yes", "at": [5]}
ODDS = {"kind": "regression", "outcome": "readmitted=yes", "covariates": ["age"]}
TRUSTS: dict[str, Any] = {"trusted": "trusted", "local": "local", "secure": SecureSum(min_honest=2)}


@pytest.mark.parametrize("trust", TRUSTS)
def test_without_noise_answers_are_those_of_the_pooled_rows(trust):
    federation = federate(SITES, SCHEMA, Budget.none(), trust=TRUSTS[trust], exact=True, seed=0)
    _, answers = ask(DECLARED, federation)
    found, expected = labelled(answers.answers), pooled(EVERYBODY)
    assert found.keys() == expected.keys()
    for key, (value, rounding) in expected.items():
        answer = found[key]
        assert answer.value == pytest.approx(value, abs=rounding), key
        assert answer.value is not None
        assert answer.low is not None
        assert answer.high is not None
        assert answer.low <= answer.value <= answer.high
        assert answer.noise == 0 or key[0] == "quantile", key
    exact = labelled(answers.exact(encode(SCHEMA, EVERYBODY)))
    assert {key: answer.value for key, answer in exact.items()} == {key: answer.value for key, answer in found.items()}


def test_the_sampling_error_of_slopes_means_and_shares_is_the_usual_one():
    _, answers = ask(DECLARED, federate(SITES, SCHEMA, Budget.none(), trust="trusted", exact=True, seed=0))
    found = labelled(answers.answers)
    for name, error in slopes(EVERYBODY)[1].items():
        assert found["slope", name].sampling == pytest.approx(Z * error, rel=0.01)
    nights = EVERYBODY[EVERYBODY.age > 70].nights.dropna().astype(float)
    assert found["mean", ""].sampling == pytest.approx(Z * nights.std(ddof=0) / math.sqrt(len(nights)), rel=0.01)
    share, group = found["share", ""], int(((EVERYBODY.ward == "cardiology") & (EVERYBODY.age >= 50)).sum())
    assert share.value is not None
    assert share.sampling == pytest.approx(Z * math.sqrt(share.value * (1 - share.value) / group))
    assert found["count", ""].sampling == found["total", ""].sampling == 0


def test_a_trust_without_sums_is_refused_before_anything_is_asked():
    federation = federate(SITES, SCHEMA, BUDGET, trust="three-servers", seed=0)
    with pytest.raises(Unsupported, match="declared questions need sums over sites, which --trust three-servers"):
        ask(DECLARED, federation)
    assert not federation.ledger.entries


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize(("names", "looks"), [(("mean", "share"), True), (("share", "odds"), False)])
def test_questions_cost_their_share_and_the_method_the_rest(trust, names, looks):
    federation = federate(SITES, SCHEMA, BUDGET, trust=TRUSTS[trust], seed=0)
    Questioned(declared(*names, answer_share=0.3), OneShot()).fit(federation)
    rho = {entry.step: entry.cost.rho for entry in federation.ledger.entries}
    kinds = [entry.kind for entry in federation.ledger.entries]
    asked = kinds.count("weighted-counts")
    assert kinds[:asked] == ["weighted-counts"] * (2 if looks else 1)
    prices = list(rho.values())
    assert math.fsum(prices[:asked]) == pytest.approx(0.3 * BUDGET.rho, rel=1e-9)
    if looks:
        assert prices[0] == pytest.approx(LOOK * 0.3 * BUDGET.rho, rel=1e-9)
    assert math.fsum(prices) == pytest.approx(BUDGET.rho, rel=1e-6)
    assert federation.ledger.epsilon <= BUDGET.epsilon


def test_in_pure_dp_questions_cost_their_share_as_well():
    federation = federate(SITES, SCHEMA, Budget(1.0, 0.0), trust="trusted", seed=0)
    left, answers = ask(declared("share", "count"), federation)
    (entry,) = federation.ledger.entries
    assert entry.cost.epsilon == pytest.approx(0.2)
    assert left.part == pytest.approx(0.8)
    assert all(answer.value is not None for answer in answers.answers)


def test_questions_that_follow_others_have_shares_of_what_is_left():
    federation = federate(SITES, SCHEMA, BUDGET, trust="trusted", seed=0)
    left, _ = ask(declared("share", answer_share=0.5), federation)
    again, _ = ask(declared("count", answer_share=0.5), left)
    first, second = federation.ledger.entries
    assert (left.part, again.part) == (0.5, 0.25)
    assert second.cost.rho == pytest.approx(first.cost.rho / 2)


@pytest.mark.parametrize(("trust", "factor"), [("trusted", 12), ("secure", 12), ("local", 4 * math.sqrt(3))])
def test_a_person_with_several_rows_gets_as_many_times_the_noise(trust, factor):
    """Of four rows at each of three sites; under local noise, three sites cost sqrt(3) in noise and not 3."""
    tables = of_strangers([encode(SCHEMA, frame) for frame in SITES])
    stds = []
    for unit in (Unit(), Unit(rows=4, sites=3)):
        federation = federate(tables, SCHEMA, BUDGET, trust=TRUSTS[trust], unit=unit, seed=0)
        _, answers = ask(declared("share", "count"), federation)
        stds.append(np.array([table.std for table in answers.tables]))
    np.testing.assert_allclose(stds[1] / stds[0], factor, rtol=1e-3)


def test_intervals_of_a_run_hold_the_rows_that_were_counted():
    """The noise alone stands between an answer and its rows: 4 deviations of it hold all of them."""
    federation = federate(SITES, SCHEMA, Budget(3.0, 1e-6), trust="trusted", seed=3)
    _, answers = ask(declared("share", "all", "count", "cross", "odds", answer_share=0.9), federation)
    rows_themselves = labelled(answers.exact(encode(SCHEMA, EVERYBODY)))
    looked_at = 0
    for key, answer in labelled(answers.answers).items():
        of_rows = rows_themselves[key].value
        if answer.value is None or answer.noise is None or of_rows is None:
            assert answer.refused
            continue
        assert abs(answer.value - of_rows) <= 4 / Z * answer.noise + 1e-9, key
        assert answer.value != of_rows
        looked_at += 1
    assert looked_at > 15


def test_a_group_that_noise_hides_is_refused_with_the_reason():
    tiny = declared("mean", question=[{"kind": "mean", "name": "m", "column": "nights", "among": "age>=109"}])
    _, answers = ask(tiny, federate(SITES, SCHEMA, BUDGET, trust="trusted", seed=0))
    (answer,) = answers.answers
    assert answer.value is answer.low is answer.high is answer.noise is None
    assert answer.half_width == math.inf
    assert "below 4 deviations of the noise" in answer.refused


def test_declared_clips_take_the_place_of_those_that_were_found():
    clipped = declared("mean", clips={"nights": [2, 6]})
    _, answers = ask(clipped, federate(SITES, SCHEMA, Budget.none(), trust="trusted", exact=True, seed=0))
    (answer,) = answers.answers
    old = EVERYBODY[EVERYBODY.age > 70].nights.dropna()
    assert answer.estimand == "mean of nights clipped to [2, 6] among rows with age>70"
    assert answer.value == pytest.approx(old.clip(2, 6).mean(), abs=2e-3)


def test_generous_bounds_of_a_column_cost_hardly_any_precision():
    """The first look finds out where the rows are."""
    wide = Schema(
        tuple(
            Numeric("nights", 0, 6000, integer=True, missing=True) if of.name == "nights" else of
            for of in SCHEMA.columns
        )
    )
    noise = []
    for schema in (SCHEMA, wide):
        _, answers = ask(declared("mean"), federate(SITES, schema, Budget(3.0, 1e-6), trust="trusted", seed=0))
        (answer,) = answers.answers
        assert answer.noise is not None
        noise.append(answer.noise)
    assert noise[1] < 5 * noise[0]  # not 100 times: two cells of doubled width


@pytest.mark.parametrize(
    ("question", "error", "says"),
    [
        ({"kind": "share", "of": "reamitted=yes"}, InvalidParameter, "no column and comparison"),
        ({"kind": "share", "of": ""}, InvalidParameter, "counts nothing"),
        ({"kind": "mean", "column": "ward"}, InvalidParameter, "'ward' is no column of numbers"),
        ({"kind": "mean", "column": "wards"}, SchemaError, "wards"),
        ({"kind": "cross", "columns": ["ward", "wards"]}, SchemaError, "wards"),
        ({"kind": "correlation", "columns": ["age", "sex"]}, InvalidParameter, "'sex' is no column of numbers"),
        (
            {"kind": "survival", "time": "nights", "event": "ward=surgery & sex=f", "at": [5]},
            InvalidParameter,
            "on one column",
        ),
        (
            {"kind": "survival", "time": "nights", "event": "readmitted=yes", "at": [5, 3]},
            InvalidParameter,
            "ascending times",
        ),
        ({"kind": "survival", "time": "nights", "event": "readmitted=yes", "at": [70]}, InvalidParameter, "up to 60"),
        (
            {"kind": "regression", "outcome": "readmitted=yes", "covariates": ["age", "ward", "nights", "sex"]},
            InvalidParameter,
            "combinations",
        ),
        (
            {"kind": "regression", "outcome": "sex=f & ward=surgery", "covariates": ["age"]},
            InvalidParameter,
            "on one column",
        ),
        ({"kind": "regression", "outcome": "ward", "covariates": ["age"]}, InvalidParameter, "ward"),
    ],
)
def test_questions_that_do_not_fit_the_schema_are_refused_before_anything_is_asked(question, error, says):
    federation = federate(SITES, SCHEMA, BUDGET, trust="trusted", seed=0)
    with pytest.raises(error, match=says):
        ask(declared(question=[{"name": "q", **question}]), federation)
    assert not federation.ledger.entries
