"""Evaluation by person: persons with several nearly identical rows, in attacks, bands, splits and texts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedsynth
from fedsynth.encoding import encode, publish, store
from fedsynth.errors import SchemaError, Unsupported
from fedsynth.evaluation.attacks import (
    AttackTargets,
    attribute_disclosure,
    formal_auc_bound,
    gan_leaks,
    replacement_guarantee,
)
from fedsynth.evaluation.classifier_scores import auc_with_band
from fedsynth.evaluation.distances import NeighbourIndex, holdout_share, median, share, share_of
from fedsynth.evaluation.evaluate import evaluate
from fedsynth.evaluation.features import MixedSpace
from fedsynth.evaluation.persons import (
    count_persons,
    effective_rows,
    mean_by_person,
    numbered_persons,
    standard_error,
    take_persons,
)
from fedsynth.evaluation.privacy import METRICS, AttackBounds, RowLimits, UncorrectedScore, privacy
from fedsynth.evaluation.references import cached
from fedsynth.evaluation.report import Evaluation, attack_groups, render_report
from fedsynth.evaluation.score import Estimate, EvaluationTables, Score
from fedsynth.evaluation.settings import EvaluationSettings
from fedsynth.persons import UNKNOWN, identify
from fedsynth.privacy.cost import Budget, Unit
from fedsynth.rows import Table, concatenate
from fedsynth.schema import Categorical, Numeric, Schema, Stored

SCHEMA = Schema((Numeric("age", 0, 1, bins=10), Numeric("dose", 0, 1, bins=10), Categorical("group", tuple(range(4)))))
LEAKS = "membership AUC, GAN-Leaks"


def visits(persons: int, seed: int, each: int = 4, spread: float = 0.001) -> Table:
    """Return ``each`` rows of so many persons, which differ by ``spread``; other seeds have other persons."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(persons), each)
    age, dose = (np.clip(rng.random(persons)[who] + spread * rng.standard_normal(len(who)), 0, 1) for _ in "ab")
    group = rng.integers(0, 4, persons)[who].astype(np.uint8)
    codes = (*(np.minimum(column * 10, 9).astype(np.uint8) for column in (age, dose)), group)
    order = rng.permutation(len(who))
    table = Table(SCHEMA, codes, {0: age, 1: dose}, persons=identify([f"{seed} {at}" for at in who]))
    return table.take(order)


def without_persons(table: Table) -> Table:
    return replace(table, persons=None)


def by_row(real: Table, holdout: Table) -> tuple[Table, Table]:
    """Deal the rows of both tables again, without regard to persons."""
    pool = without_persons(concatenate([real, holdout]))
    order = np.random.default_rng(0).permutation(len(pool))
    return pool.take(order[: len(real)]), pool.take(order[len(real) :])


def with_noise(table: Table) -> Table:
    """Return a synthetic table: each row with a little noise in its numbers."""
    rng = np.random.default_rng(5)
    noisy = {j: np.clip(values + 0.02 * rng.standard_normal(len(values)), 0, 1) for j, values in table.numbers.items()}
    return replace(table, numbers=noisy, persons=None)


def leaked(real: Table, synthetic: Table, holdout: Table, seed: int = 0) -> Estimate:
    """Return the AUC of the attack GAN-Leaks."""
    evidence = EvaluationTables(real, synthetic, holdout)
    rng = np.random.default_rng(seed)
    targets = AttackTargets.of(evidence, rng, 5000)
    index = NeighbourIndex.of(synthetic, MixedSpace.of(real), rng, 5000)
    return auc_with_band(*targets.by_person(gan_leaks(targets, index)))


def test_rows_of_known_persons_hide_a_copy_that_the_attack_on_persons_finds():
    real, holdout = visits(100, 1), visits(100, 2)
    found = leaked(real, with_noise(real), holdout)
    assert found.low > 0.9
    assert count_persons(holdout) // 2 == 50
    # Dealt by row, most hold-out rows are of persons whose other rows were copied.
    half, rest = by_row(real, holdout)
    assert leaked(half, with_noise(half), rest).value < 0.7


def test_bands_by_row_find_persons_where_nothing_is_to_be_found():
    """The synthetic rows are of other persons: 5 % of bands should exclude one half."""
    wrong = {"persons": 0, "rows": 0}
    for seed in range(0, 120, 3):
        real, synthetic, holdout = (visits(60, seed + at, each=8) for at in range(3))
        fresh = without_persons(synthetic.take(np.arange(60)))
        by_person = leaked(real, fresh, holdout)
        single = leaked(without_persons(real), fresh, without_persons(holdout))
        wrong["persons"] += not by_person.low <= 0.5 <= by_person.high
        wrong["rows"] += not single.low <= 0.5 <= single.high
    assert wrong["persons"] <= 6
    assert wrong["rows"] >= 10  # of 40: less than once in ten thousand at 5 % each


def test_utility_without_a_hold_out_is_tested_on_other_persons():
    """The group is a person's own and says nothing of others: only rows of known persons can be predicted."""
    real = visits(150, 3)
    scores = {}
    for name, table in {"persons": real, "rows": without_persons(real)}.items():
        found = evaluate(
            EvaluationTables(table, without_persons(visits(150, 4))),
            EvaluationSettings(metrics=["learning"], target="group", suites=("flaim",), repeats=1),
        )
        scores[name] = found.scores[0].reference.value
        assert ("rows of a fifth of the persons" in " ".join(found.notes)) == (name == "persons")
    assert scores["rows"] > 0.8
    assert abs(scores["persons"] - 0.5) < 0.15


@pytest.mark.parametrize("held", [True, False])
def test_no_comparison_has_a_person_on_both_sides(held: bool):
    real, holdout = visits(30, 5), visits(20, 6) if held else None
    evidence = EvaluationTables(real, without_persons(visits(40, 7)), holdout)
    for trial in evidence.trials(3, 1000):
        assert trial.real.persons is not None
        assert trial.reference.persons is not None
        assert not len(np.intersect1d(trial.real.persons, trial.reference.persons))
        assert len(trial.reference) == len(trial.synthetic) == 4 * (20 if held else 15)
        assert len(trial.real) == 4 * (30 if held else 15)
    assert [len(trial.real) for trial in evidence.trials(1, 50)] == [50]
    if held:
        targets = AttackTargets.of(evidence, np.random.default_rng(0), 5000)
        sides = [targets.members, targets.nonmembers, targets.reference]
        assert [count_persons(side) for side in sides] == [10, 10, 10]
        assert [len(side) for side in sides] == [40, 40, 40]
        assert len(np.unique(np.concatenate([numbered(side) for side in sides]))) == 30


def numbered(table: Table) -> np.ndarray:
    assert table.persons is not None
    return table.persons


def test_a_person_on_both_sides_is_refused():
    real, holdout = visits(30, 8), visits(20, 9)
    mixed = concatenate([holdout, real.take(np.isin(numbered(real), np.unique(numbered(real))[:3]))])
    with pytest.raises(Unsupported, match="3 of the 23 persons in the hold-out table also have rows in the real"):
        EvaluationTables(real, real, mixed)
    with pytest.raises(Unsupported, match="only one of the real and the hold-out table has persons"):
        EvaluationTables(real, real, without_persons(holdout))
    nobody = replace(real, persons=np.where(np.arange(len(real)) < 5, UNKNOWN, numbered(real)))
    with pytest.raises(Unsupported, match="rows of the real table without a person: 5"):
        EvaluationTables(nobody, real, holdout)
    with pytest.raises(Unsupported, match="rows of one person"):
        EvaluationTables(visits(1, 0), real)


def few() -> Table:
    """Three persons with 1, 2 and 3 rows, in mixed order."""
    table = visits(6, 0, each=1)
    return replace(table, persons=np.array([9, 5, 9, 5, 7, 9], dtype=np.uint64))


def test_means_and_bands_of_persons_by_hand():
    table, values = few(), np.array([1.0, 2.0, 3.0, 4.0, 10.0, 5.0])
    assert numbered_persons(table).tolist() == [2, 0, 2, 0, 1, 2]
    assert mean_by_person(values, table).tolist() == [3.0, 10.0, 3.0]
    assert mean_by_person(values, without_persons(table)).tolist() == values.tolist()
    off = values - 25 / 6
    sums = [off[1] + off[3], off[4], off[0] + off[2] + off[5]]
    assert standard_error(values, table) == pytest.approx(math.sqrt(1.5 * sum(one**2 for one in sums)) / 6)
    alone = replace(table, persons=np.arange(6, dtype=np.uint64))
    assert standard_error(values, alone) == pytest.approx(values.std(ddof=1) / math.sqrt(6))
    assert standard_error(values, without_persons(table)) == pytest.approx(values.std(ddof=1) / math.sqrt(6))
    assert take_persons(table, np.array([2, 1])).numbers[0].tolist() == table.numbers[0][[0, 2, 5, 4]].tolist()
    # Rows that agree within each person are worth as many rows as there are persons.
    hits = np.repeat([True, False], 50)
    tenfold = replace(visits(100, 0, each=1), persons=np.repeat(np.arange(10, dtype=np.uint64), 10))
    assert effective_rows(hits, tenfold) == pytest.approx(10 * 9 / 9 * 100 / 99 * 9 / 10, rel=0.02)
    assert effective_rows(hits, without_persons(tenfold)) == 100
    assert effective_rows(np.zeros(100, dtype=bool), tenfold) == 10
    assert share_of(hits, without_persons(tenfold)) == share(50, 100)
    assert share_of(np.zeros(100, dtype=bool), tenfold) == share(0, 10)
    assert share_of(hits, tenfold).low < share(50, 100).low - 0.1
    assert median(np.arange(100.0), tenfold).low < median(np.arange(100.0)).low


def test_a_score_of_a_person_is_the_mean_of_the_rows():
    table, scores = few(), np.array([1.0, 2.0, 3.0, 4.0, 10.0, 5.0])
    targets = AttackTargets(table, without_persons(table), table)
    members, nonmembers = targets.by_person((scores, scores))
    assert members.tolist() == [3.0, 10.0, 3.0]
    assert nonmembers.tolist() == scores.tolist()


def test_the_share_nearer_to_training_rows_counts_persons():
    real, holdout = visits(60, 10, each=8, spread=0.0), visits(60, 11, each=8, spread=0.0)
    fresh = without_persons(visits(400, 12, each=1))
    space, rng = MixedSpace.of(real), np.random.default_rng(0)
    found = holdout_share(EvaluationTables(real, fresh, holdout), space, rng)
    # Equal rows of a person are worth one row.
    one_each = [table.take(np.unique(numbered(table), return_index=True)[1]) for table in (real, holdout)]
    single = holdout_share(EvaluationTables(one_each[0], fresh, one_each[1]), space, rng)
    assert found == single
    assert found.side == 60
    copied = holdout_share(EvaluationTables(real, without_persons(real), holdout), space, rng)
    assert copied.value.value == copied.of_a_copy == 1
    smaller = holdout_share(EvaluationTables(real, without_persons(real), visits(30, 13)), space, rng)
    assert smaller.side == 30
    assert smaller.of_a_copy == 0.75


def test_attribute_disclosure_without_a_hold_out_asks_of_other_persons():
    """A person's group is the same in all rows: those who hold one half of the rows know the other half's."""
    real = visits(120, 14)
    rng = np.random.default_rng(0)
    fresh = without_persons(visits(120, 15))
    found = attribute_disclosure(EvaluationTables(real, fresh), 2, [0, 1], rng, size=2)
    single = attribute_disclosure(EvaluationTables(without_persons(real), fresh), 2, [0, 1], rng, size=2)
    assert found.population.value < 0.35
    assert single.population.value > 0.45
    assert (found.persons, found.rows) == (60, 240)
    assert (single.persons, single.rows) == (240, 240)
    assert found.members.high - found.members.low > 1.5 * (single.members.high - single.members.low)


def test_exact_matches_without_a_hold_out_are_with_other_persons():
    real = visits(50, 16, spread=0.0)
    found = {score.name: score for score in privacy(EvaluationTables(real, without_persons(visits(50, 17)))).scores}
    exact = found["exact matches by values"]
    assert exact.reference.value == 0
    assert exact.reference_is == "training rows that equal another training row, of another person"
    rows = {score.name: score for score in privacy(EvaluationTables(without_persons(real), visits(50, 17))).scores}
    assert rows["exact matches by values"].reference.value == 1


def test_texts_name_persons_and_their_unit():
    real, holdout = visits(60, 18), visits(60, 19)
    evidence = EvaluationTables(real, without_persons(real), holdout)
    budget = Budget(0.5, 1e-6)
    found = evaluate(
        evidence, EvaluationSettings(metrics=["membership-inference"], guarantee=budget, unit=Unit(4), repeats=1)
    )
    auc = next(score for score in found.scores if score.name == LEAKS)
    assert auc.verdict == "alarm"
    assert "does not hold" in auc.says
    assert auc.note.startswith("30 persons with 120 training rows against 30 with 120 hold-out rows, each by the mean")
    assert "all rows of a person in the training rows and of one who is not" in auc.says
    assert found.notes[0].endswith("stated for the table: (0.5, 1e-06) for one person with up to 4 rows.")
    assert found.persons == {"real": 60, "holdout": 60}
    assert Evaluation.from_json(found.to_json()).attacked == "the presence of one person with up to 4 rows"
    groups, _ = attack_groups(found)
    assert "one particular person was among the training persons" in groups[0].question
    assert groups[1].bound == (
        f"no attack on the presence of one person with up to 4 rows has an AUC above {formal_auc_bound(0.5, 1e-6):.3f};"
        " 0.5 is guessing."
    )
    page = render_report(found, None)
    assert "240 real rows of 60 persons" in page
    assert "no attack on the presence of one person with up to 4 rows has an AUC above" in page
    assert "the presence of one row" not in page
    honest = EvaluationTables(real, without_persons(visits(60, 20)), holdout)
    calm = privacy(
        honest,
        EvaluationSettings(unit=Unit(4, 2), guarantee=Budget(0.5, 1e-6)),
        metrics=[METRICS["membership-inference"]],
    )
    assert "presence of one person with up to 4 rows at each of up to 2 sites exceeds 0.622" in calm.scores[0].says


def test_a_guarantee_for_fewer_rows_than_persons_have_bounds_nothing():
    evidence = EvaluationTables(visits(60, 18), without_persons(visits(60, 18)), visits(60, 19))
    found = evaluate(
        evidence,
        EvaluationSettings(metrics=["membership-inference"], guarantee=Budget(0.5, 1e-6), unit=Unit(3), repeats=1),
    )
    assert all(math.isnan(score.bound) for score in found.scores)
    assert "60 persons have more real rows than the 3 that it covers" in found.notes[0]
    assert AttackBounds(Budget(0.5, 0), Unit(2, 2)).persons_beyond(evidence) == 0


def test_a_unit_of_several_rows_without_persons_is_said():
    tables = [without_persons(visits(60, seed)) for seed in (18, 20, 19)]
    evidence = EvaluationTables(*tables)
    notes = AttackBounds(None, Unit(3)).notes(evidence)
    assert len(notes) == 1
    assert "one person with up to 3 rows, but nothing says which rows are of one person" in notes[0]
    assert "--person" in notes[0]
    assert AttackBounds(None).notes(evidence) == []


def test_a_guarantee_for_replacing_is_not_doubled():
    score = Score("privacy", "attack", Estimate(0.70, 0.69, 0.71), Estimate(0.5), "guessing", says="So.")
    attempt = UncorrectedScore(score, formal_auc_bound)
    assert formal_auc_bound(0.5, 0) < 0.68 < formal_auc_bound(*replacement_guarantee(0.5, 0))
    added = AttackBounds(Budget(0.5, 0)).with_bound(attempt)
    assert added.verdict == ""
    assert added.says == "So. Under the formal guarantee, no attack on the presence of one row exceeds 0.622."
    replaced = AttackBounds(Budget(0.5, 0), neighbours="replace").with_bound(attempt)
    assert replaced.verdict == "alarm"
    below = replace(attempt, score=replace(score, synthetic=Estimate(0.6, 0.58, 0.62)))
    said = AttackBounds(Budget(0.5, 0), Unit(3), "replace").with_bound(below).says
    assert said.endswith("no attack on which of two persons with up to 3 rows was used exceeds 0.622.")
    assert AttackBounds(Budget(0.5, 0), neighbours="replace").attacked == "which of two rows was used"


def test_verdicts_count_persons():
    """Nineteen persons are too few for a verdict, however many rows they have."""
    evidence = EvaluationTables(visits(19, 21, each=30), without_persons(visits(19, 21, each=30)), visits(19, 22))
    found = privacy(evidence, caps=RowLimits(attacked=100))
    assert {score.verdict for score in found.scores} == {""}
    assert any("membership inference: not computed, it needs 20" in reason for reason in found.missing)


def test_references_are_not_shared_between_rows_and_persons():
    table = visits(10, 0)
    assert cached((table,), "persons", lambda: 1) == 1
    assert cached((without_persons(table),), "persons", lambda: 2) == 2


def test_published_and_stored_rows_keep_their_persons():
    difference = Stored(difference=("high", "low"), lower=0, upper=10)
    schema = Schema(
        (Numeric("low", 0, 9, decimals=0, bins=5), Numeric("high", 0, 19, decimals=0, bins=5, stored=difference))
    )
    frame = pd.DataFrame({"low": [1, 2, 3], "high": [4, 4, 9]})
    table = replace(encode(schema, frame), persons=np.array([7, 8, 7, 9], dtype=np.uint64), left_out=1)
    plain = publish(schema, table)
    assert plain.schema.digest != table.schema.digest
    assert numbered(plain).tolist() == [7, 8, 7, 9]
    stored = store(schema, plain)
    assert numbered(stored).tolist() == [7, 8, 7, 9]
    assert stored.left_out == 1


def test_frames_name_their_column_of_persons():
    real, holdout = (
        pd.DataFrame({"age": t.numbers[0], "dose": t.numbers[1], "group": t.codes[2], "who": numbered(t)})
        for t in (visits(30, 23), visits(60, 24))
    )
    options: dict[str, Any] = {"metrics": ["nearer-to-training"], "holdout": holdout, "unit": Unit(3)}
    synthetic = real.drop(columns="who")
    found = fedsynth.evaluate(synthetic, train=real, schema=SCHEMA, person="who", guarantee=Budget(1, 0), **options)
    assert "30 persons have more real rows" in found.notes[0]
    with pytest.raises(SchemaError, match="lack the column 'nobody'"):
        fedsynth.evaluate(synthetic, train=real.drop(columns="who"), schema=SCHEMA, person="nobody", **options)
    with pytest.raises(Unsupported, match="30 of the 30 persons"):
        fedsynth.evaluate(synthetic, train=real, schema=SCHEMA, person="who", **{**options, "holdout": real.copy()})
