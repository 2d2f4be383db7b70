"""Tilted rows: they agree with released sums as far as noise allows, survive a file, and hostile tilts are refused."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.answers.world import CONTENT, SCHEMA, declared, labelled, rows

from fedsynth.answers.asking import SLACKS, Questioned
from fedsynth.answers.intervals import Z
from fedsynth.answers.results import Answers
from fedsynth.archive import pack, unpack
from fedsynth.encoding import encode, problems, with_numbers
from fedsynth.errors import FedsynthError, InvalidParameter
from fedsynth.federation.federation import Federation
from fedsynth.federation.query import Counts
from fedsynth.federation.simulate import federate
from fedsynth.methods.oneshot import OneShot
from fedsynth.models.mrf import MarkovRandomField
from fedsynth.models.synthesizer import Synthesizer, load, own_bins
from fedsynth.models.tilt import STIFFNESS, Tilt, pool_size
from fedsynth.privacy.cost import Budget
from fedsynth.schema import Categorical, Numeric, Schema
from fedsynth.schema.bins import Axis

FRAME = rows(3000)
ASKED = declared("share", "mean", "cross", "survival", "correlation", answer_share=0.4)
BUDGET = Budget(2.0, 1e-6)


@pytest.fixture(scope="module")
def fitted() -> Synthesizer:
    return Questioned(ASKED, OneShot()).fit(federate([FRAME], SCHEMA, BUDGET, trust="trusted", seed=0))


@dataclass(frozen=True)
class Independent:
    """Single columns alone: a model that is wrong of all that columns have to do with each other."""

    def fit(self, federation: Federation) -> Synthesizer:
        columns = range(len(SCHEMA.sizes))
        tables = federation.sum(Counts.of(len(columns), [(at,) for at in columns]), 1.0).tables
        potentials = [np.log(np.maximum(table, 1.0)) for table in tables]
        model = MarkovRandomField(SCHEMA.sizes, len(FRAME), [(at,) for at in columns], potentials)
        return Synthesizer(SCHEMA, own_bins(SCHEMA), model)


def answered(fitted: Synthesizer) -> Answers:
    return Answers.from_json(fitted.info["answers"], SCHEMA)


def distances(fitted: Synthesizer) -> np.ndarray:
    """Return how far drawn rows are from each answer, in standard deviations of its noise."""
    answers = answered(fitted)
    of_rows = labelled(answers.exact(encode(SCHEMA, fitted.sample(len(FRAME), 1))))
    found = []
    for key, answer in labelled(answers.answers).items():
        synthetic = of_rows[key].value
        if answer.value is not None and answer.noise and synthetic is not None:
            found.append(abs(synthetic - answer.value) / (answer.noise / Z))
    return np.array(found)


def test_rows_agree_with_released_sums_within_their_noise(fitted):
    """Model and answers have noise of their own: tilted rows are nearer to the answers, and most are within it."""
    tilted, plain = distances(fitted), distances(replace(fitted, tilt=None))
    assert len(tilted) > 20
    assert (tilted <= Z).mean() >= 0.75  # of 22 answers, by rows that are a sample themselves
    assert (tilted**2).mean() < 0.7 * (plain**2).mean()


def test_rows_of_a_model_without_noise_answer_as_the_rows_do():
    """What a model of single columns misses, the answers have."""
    federation = federate([FRAME], SCHEMA, Budget.none(), trust="trusted", exact=True, seed=0)
    made = Questioned(declared("mean", "share", "cross"), Independent()).fit(federation)
    answers = answered(made)
    off = []
    for tilt in (made.tilt, None):
        of_rows = answers.exact(encode(SCHEMA, replace(made, tilt=tilt).sample(len(FRAME), 1)))
        shares = [(of.value, answer.value) for of, answer in zip(of_rows, answers.answers, strict=True)][:-1]
        off.append(max(abs(of - value) for of, value in shares if of is not None and value is not None))
    assert off[0] < 0.02  # pools of ten times as many rows are samples themselves
    assert off[1] > 0.08


def test_the_pull_of_each_sum_is_what_its_noise_allows():
    """At the minimum, a sum within its slack pulls at nothing, and any other is at the end: narrower for criteria."""
    judged = [{**of, "tolerance": 1.0} for of in CONTENT["question"] if of["name"] in ("cross", "survival")]
    asked = declared("share", "mean", "correlation", answer_share=0.4, criterion=judged)
    made = Questioned(asked, OneShot()).fit(federate([FRAME], SCHEMA, BUDGET, trust="trusted", seed=0))
    assert made.tilt is not None
    rng = np.random.default_rng(0)
    plain = replace(made, tilt=None)
    pool = with_numbers(plain.sample_table(pool_size(round(made.model.total / 3)), rng), rng)
    log = sum(
        weight * of.ravel()[cell]
        for (cell, weight), of in zip(made.tilt.features(pool), made.tilt.exponents, strict=True)
    )
    share = np.exp(log - np.max(log))
    share *= made.model.total / share.sum()
    answers = answered(made)
    slacks = [SLACKS[name in ("cross", "survival")] for name, of in answers.tables_of(SCHEMA).items() for _ in of]
    assert len(set(slacks)) == 2
    for (cell, weight), of, table, slack in zip(
        made.tilt.features(pool), made.tilt.exponents, answers.tables, slacks, strict=True
    ):
        expected = np.bincount(cell, share * weight, minlength=of.size)
        pulled = (table.values.ravel() - expected) / table.std
        exponent = of.ravel() * table.std
        within = np.sign(exponent) * slack + STIFFNESS * exponent
        np.testing.assert_allclose(np.where(np.abs(exponent) < 1e-9, 0.0, pulled - within), 0.0, atol=0.05)
        assert (np.abs(pulled) <= slack + STIFFNESS * np.abs(exponent) + 0.05).all()


def test_columns_that_no_question_names_stay_as_they_were(fitted):
    tilted, plain = (of.sample(6000, 2) for of in (fitted, replace(fitted, tilt=None)))
    assert tilted.smoker.mean() == pytest.approx(plain.smoker.mean(), abs=0.03)
    assert problems(SCHEMA, tilted) == []


def test_a_saved_model_gives_the_same_rows(fitted, tmp_path):
    fitted.save(tmp_path / "model.fedsynth")
    again = load(tmp_path / "model.fedsynth")
    pd.testing.assert_frame_equal(again.sample(400, 3), fitted.sample(400, 3))
    assert again.tilt is not None
    assert fitted.tilt is not None
    for one, other in zip(again.tilt.exponents, fitted.tilt.exponents, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not again.sample(400, 3).equals(replace(again, tilt=None).sample(400, 3))


def test_rows_under_conditions_meet_them(fitted):
    drawn = fitted.sample(500, 4, where={"ward": "surgery", "age": (60, 80)})
    assert len(drawn) == 500
    assert set(drawn.ward) == {"surgery"}
    assert drawn.age.between(60, 80).all()


def test_the_tilt_depends_on_released_numbers_alone():
    """The same answers and model make the same tilt, whatever the rows were."""
    made = [
        Questioned(ASKED, OneShot()).fit(federate([FRAME], SCHEMA, BUDGET, trust="trusted", seed=0)) for _ in range(2)
    ]
    first, second = (one.tilt for one in made)
    assert first is not None
    assert second is not None
    for one, other in zip(first.exponents, second.exponents, strict=True):
        np.testing.assert_array_equal(one, other)


# ---------------------------------------------------------------------------------------------------------------------
# Draws

SMALL = Schema((Categorical("sex", ("f", "m")), Numeric("age", 0, 9, integer=True)))
SEX, AGE = Axis(0), Axis(1, np.arange(10.0))


def small(count: int) -> Any:
    frame = pd.DataFrame({"sex": ["f", "m"] * (count // 2), "age": np.arange(count) % 10})
    return encode(SMALL, frame)


def test_rows_are_drawn_in_proportion_to_their_weights():
    """Systematically: shares are off by little more than a row."""
    tilt = Tilt((SEX,), (None,), ((0,),), (np.array([0.0, math.log(3)]),))
    table = small(20_000)
    chosen = tilt.choose(table, 4000, np.random.default_rng(0))
    assert chosen.shape == (4000,)
    assert (table.codes[0][chosen] == 1).sum() == pytest.approx(3000, abs=2)
    assert (np.diff(chosen) < 0).any()  # shuffled


def test_a_sum_moves_as_its_exponent_says():
    """Weights of exp(0.2 age): the mean is that of the tilted distribution."""
    tilt = Tilt((AGE,), (np.arange(10),), ((0,),), (np.array(0.2),))
    table = small(20_000)
    chosen = tilt.choose(table, 2000, np.random.default_rng(0))
    weights = np.exp(0.2 * np.arange(10))
    assert table.numbers[1][chosen].mean() == pytest.approx((weights * np.arange(10)).sum() / weights.sum(), abs=0.01)
    ((cell, weight),) = tilt.features(table)
    assert not cell.any()
    np.testing.assert_array_equal(weight, table.numbers[1])


def test_pools_have_thirty_rows_for_each_and_at_least_three():
    assert [pool_size(rows) for rows in (1, 100, 20_000, 50_000, 100_000)] == [30, 3000, 200_000, 200_000, 300_000]


# ---------------------------------------------------------------------------------------------------------------------
# Files

SAVED = Tilt((SEX, AGE), (None, np.arange(10)), ((0,), (0, 1)), (np.zeros(2), np.ones(2)))


def test_a_tilt_is_its_arrays():
    meta, arrays = SAVED.to_arrays()
    again = Tilt.from_arrays(meta, arrays, SMALL)
    assert (again.tables, again.weights[0]) == (SAVED.tables, None)
    assert again.axes[1].same(AGE)
    np.testing.assert_array_equal(again.exponents[1], np.ones(2))


@pytest.mark.parametrize(
    "change",
    [
        {"exponents": None},
        {"exponents": np.zeros(3)},
        {"exponents": np.array([0, 0, 0, np.nan])},
        {"exponents": np.array([0, 0, 0, np.inf])},
        {"exponents": np.zeros(5)},
        {"exponents": np.zeros((2, 2, 1))},
        {"weights1": np.arange(9)},
        {"weights1": np.arange(10) * 0.5},
        {"cuts1": np.arange(10.0)[::-1].copy()},
        {"cuts1": np.array([[1.0]])},
        {"cuts0": np.arange(2.0)},
        {"groups0": np.array([0, -1])},
        {"groups0": np.array([0, 5])},
        {"groups0": np.zeros(0, dtype=np.int64)},
        {"columns": [0, 2]},
        {"columns": [0]},
        {"columns": "all"},
        {"tables": [[0], [2]]},
        {"tables": [[0], []]},
        {"tables": [[0], [-1]]},
        {"tables": [[0], [0, 0]]},
        {"more": 1},
    ],
)
def test_hostile_tilts_are_refused_with_a_sentence(fitted, change, tmp_path):
    meta, arrays = SAVED.to_arrays()
    for name, value in change.items():
        if name in ("columns", "tables", "more"):
            meta = {**meta, name: value}
        elif value is None:
            del arrays[name]
        else:
            arrays[name] = value
    plain = OneShot().fit(federate([small(200)], SMALL, BUDGET, trust="trusted", seed=0))
    replace(plain, tilt=SAVED).save(tmp_path / "model.fedsynth")
    assert load(tmp_path / "model.fedsynth").sample(10, 0) is not None
    head, saved = unpack((tmp_path / "model.fedsynth").read_bytes())
    others = {name: array for name, array in saved.items() if not name.startswith("tilt.")}
    named = {f"tilt.{name}": array for name, array in arrays.items()}
    (tmp_path / "hostile.fedsynth").write_bytes(pack({**head, "tilt": meta}, {**others, **named}))
    with pytest.raises(FedsynthError, match=r"hostile\.fedsynth"):
        load(tmp_path / "hostile.fedsynth")


def test_a_tilt_without_exponents_is_none():
    with pytest.raises(InvalidParameter, match="lacks weights or exponents"):
        replace(SAVED, exponents=()).check(SMALL)
    SAVED.check(SMALL)
