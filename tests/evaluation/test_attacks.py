"""Formal bounds against integration and randomised response; attacks against scikit-learn and cases worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.naive_bayes import CategoricalNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC

from fedsynth.errors import InvalidParameter, Unsupported
from fedsynth.evaluation.attacks import (
    AttackTargets,
    _guesses,
    _majority,
    attribute_disclosure,
    calibrated_gan_leaks,
    domias,
    formal_advantage_bound,
    formal_auc_bound,
    formal_tpr_bound,
    gan_leaks,
    replacement_guarantee,
    tpr_at,
)
from fedsynth.evaluation.classifier_scores import auc_with_band
from fedsynth.evaluation.distances import NeighbourIndex
from fedsynth.evaluation.features import MixedSpace
from fedsynth.evaluation.score import EvaluationTables
from fedsynth.rows import Table
from fedsynth.schema import Categorical, Numeric, Schema

LINE = Schema((Numeric("n", -9, 9, bins=6),))
LETTERS = Schema((Categorical("a", tuple(range(4))), Categorical("b", (0, 1)), Categorical("s", tuple(range(4)))))


def line(numbers: np.ndarray | list[float]) -> Table:
    values = np.clip(np.asarray(numbers, dtype=float), -9, 9)
    return Table(LINE, (np.clip((values + 9) // 3, 0, 5).astype(np.uint8),), {0: values})


def letters(rows: int, rng: np.random.Generator, told: float) -> Table:
    """``s`` equals ``a`` in a share ``told`` of the rows, and is chance in the others."""
    a, b = rng.integers(0, 4, rows), rng.integers(0, 2, rows)
    s = np.where(rng.random(rows) < told, a, rng.integers(0, 4, rows))
    return Table(LETTERS, tuple(column.astype(np.uint8) for column in (a, b, s)))


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (0.0, 0.1), (0.5, 1e-6), (1.0, 0.05), (3.0, 0.3), (9.0, 0)])
def test_formal_bounds_are_those_of_the_trade_off_curve(epsilon: float, delta: float):
    grid = np.linspace(0, 1, 400_001)
    curve = np.array([formal_tpr_bound(x, epsilon, delta) for x in grid[::10]])
    assert formal_auc_bound(epsilon, delta) == pytest.approx(np.trapezoid(curve, grid[::10]), abs=2e-5)
    assert formal_advantage_bound(epsilon, delta) == pytest.approx((curve - grid[::10]).max(), abs=1e-3)
    assert (np.diff(curve) >= -1e-15).all()


def test_formal_bounds_at_their_ends_and_for_randomised_response():
    assert formal_auc_bound(0, 0) == 0.5
    assert formal_auc_bound(2000, 0) == formal_auc_bound(0, 1) == 1
    assert formal_tpr_bound(0.0, 2000, 0) == 0
    assert formal_tpr_bound(0.2, 0, 0) == pytest.approx(0.2)
    for epsilon in (0.3, 2.0):
        honest = math.exp(epsilon) / (1 + math.exp(epsilon))  # the chance to answer truly is the best test's AUC
        assert formal_auc_bound(epsilon, 0) == pytest.approx(honest)
        assert formal_advantage_bound(epsilon, 0) == pytest.approx(2 * honest - 1)
    assert replacement_guarantee(1.0, 1e-3) == pytest.approx((2.0, 1e-3 * (1 + math.e)))
    assert replacement_guarantee(5000.0, 1e-3) == (10000.0, 1.0)
    for epsilon, delta in ((-1.0, 0.0), (1.0, 1.5), (math.nan, 0.0)):
        with pytest.raises(InvalidParameter, match="epsilon"):
            formal_auc_bound(epsilon, delta)


def test_auc_and_its_band():
    rng = np.random.default_rng(0)
    members, nonmembers = rng.integers(0, 12, 70).astype(float) + 1, rng.integers(0, 12, 90).astype(float)
    found = auc_with_band(members, nonmembers)
    labels = np.repeat([1, 0], (70, 90))
    assert found.value == pytest.approx(roc_auc_score(labels, np.concatenate([members, nonmembers])))
    # DeLong by definition: each pair's win, averaged by row and by column.
    wins = (members[:, None] > nonmembers) + 0.5 * (members[:, None] == nonmembers)
    variance = wins.mean(axis=1).var(ddof=1) / 70 + wins.mean(axis=0).var(ddof=1) / 90
    assert (found.high - found.low) / 2 == pytest.approx(1.959964 * math.sqrt(variance))


def test_delong_bands_cover_one_half_where_nothing_is_to_be_found():
    rng = np.random.default_rng(1)
    bands = [auc_with_band(rng.random(60), rng.random(60)) for _ in range(400)]
    assert 0.92 < np.mean([band.low <= 0.5 <= band.high for band in bands]) < 0.98


def test_tpr_lies_on_the_roc_curve():
    rng = np.random.default_rng(2)
    for members, nonmembers in (
        (rng.normal(1, 1, 400), rng.normal(0, 1, 300)),
        (rng.integers(0, 5, 400).astype(np.float64), rng.integers(0, 4, 300).astype(np.float64)),
        (np.zeros(50), np.zeros(50)),
    ):
        labels = np.repeat([1, 0], (len(members), len(nonmembers)))
        fpr, tpr, _ = roc_curve(labels, np.concatenate([members, nonmembers]), drop_intermediate=False)
        for rate in (0.0155, 0.1011, 0.5013):  # no multiple of 1/300: there the curve may stand upright
            assert tpr_at(rate, members, nonmembers).value == pytest.approx(np.interp(rate, fpr, tpr))
    found = tpr_at(0.01, np.ones(100), np.zeros(100))
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(0.025 ** (1 / 100))


def test_nearest_row_attacks_by_hand():
    space = MixedSpace.of(line([0.0, 9.0]))  # a range of 9
    targets = AttackTargets(line([0.0, 9.0]), line([2.0, 6.0]), line([1.0, 6.0]))
    index = NeighbourIndex.of(line([0.0, 8.0]), space, np.random.default_rng(0), 10)
    scores = gan_leaks(targets, index)
    assert np.concatenate(scores) * 9 == pytest.approx([0, -1, -2, -2])
    assert np.concatenate(calibrated_gan_leaks(scores, targets, space)) * 9 == pytest.approx([1, 2, -1, -2])


def test_domias_of_thousands_of_categories_takes_approximate_components(monkeypatch: pytest.MonkeyPatch):
    schema = Schema((Categorical("vendor", tuple(range(1200))), Numeric("n", 0, 1), Categorical("k", tuple(range(5)))))
    rng = np.random.default_rng(0)

    def rows(many: int) -> Table:
        vendor = np.minimum(rng.geometric(0.2, many), 1199).astype(np.uint16)
        numbers = rng.random(many)
        codes = (vendor, np.minimum(numbers * 32, 31).astype(np.uint8), rng.integers(0, 5, many).astype(np.uint8))
        return Table(schema, codes, {1: numbers})

    evidence = EvaluationTables(rows(400), rows(600), rows(900))
    targets = AttackTargets.of(evidence, rng, 300)
    index = NeighbourIndex.of(evidence.synthetic, MixedSpace.of(evidence.real), rng, 600)
    wide = np.concatenate(domias(targets, index, components=5))
    assert np.array_equal(wide, np.concatenate(domias(targets, index, components=5)))  # drawn by a fixed seed
    monkeypatch.setattr("fedsynth.evaluation.attacks._WIDE", 10_000)
    exact = np.concatenate(domias(targets, index, components=5))
    assert not np.array_equal(wide, exact)
    assert np.corrcoef(wide, exact)[0, 1] > 0.99


def test_domias_of_sorted_rows_is_that_of_shuffled_ones():
    rng = np.random.default_rng(6)
    values, rest = rng.normal(1, 1, 4000), rng.normal(0, 1.5, 300)
    targets = AttackTargets(line(values[::40]), line(rest[:100]), line(rest[100:]))
    space = MixedSpace.of(line(values))
    ordered, mixed = (
        np.concatenate(domias(targets, NeighbourIndex.of(line(rows), space, rng, 4000), max_kernels=1000))
        for rows in (np.sort(values), values)
    )
    assert np.corrcoef(ordered, mixed)[0, 1] > 0.9


def test_domias_is_a_ratio_of_kernel_densities():
    rng = np.random.default_rng(3)
    synthetic, reference = rng.normal(1, 1, 300), rng.normal(0, 1.5, 200)
    members, nonmembers = rng.normal(1, 1, 20), rng.normal(0, 1, 20)
    targets = AttackTargets(line(members), line(nonmembers), line(reference))
    index = NeighbourIndex.of(line(synthetic), MixedSpace.of(line(synthetic)), rng, 1000)
    found = np.concatenate(domias(targets, index))
    spread = np.concatenate([synthetic, reference]).std(ddof=1)

    def log_density(rows: np.ndarray) -> np.ndarray:
        width = spread * len(rows) ** (-1 / 5)
        asked = np.concatenate([members, nonmembers])
        return np.asarray(np.log(norm.pdf(asked[:, None], rows, width).mean(axis=1)))

    assert found == pytest.approx(log_density(synthetic) - log_density(reference), abs=1e-5)
    alike = AttackTargets(line([1.0] * 5), line([1.0] * 5), line([1.0] * 5))
    flat = domias(alike, NeighbourIndex.of(line([1.0] * 4), MixedSpace.of(line([1.0, 1.0])), rng, 10))
    assert np.concatenate(flat).tolist() == [0.0] * 10


def test_suspects_are_disjoint_and_as_many():
    rng = np.random.default_rng(4)
    evidence = EvaluationTables(line(np.arange(9) / 9), line([0.0, 1.0]), line(np.arange(1, 9)))
    targets = AttackTargets.of(evidence, rng, 100)
    assert len(targets.members) == len(targets.nonmembers) == 4
    everyone = np.concatenate([targets.nonmembers.numbers[0], targets.reference.numbers[0]])
    assert sorted(everyone.tolist()) == list(range(1, 9))
    with pytest.raises(Unsupported, match="never saw"):
        AttackTargets.of(EvaluationTables(evidence.real, evidence.synthetic), rng, 100)


def test_majority_and_its_ties():
    votes = [np.array(one) for one in ([3, 0, 5], [1, 0, 5], [3, 2, 1], [1, 2, 1], [0, 2, 5])]
    assert _majority(votes).tolist() == [1, 2, 5]


def test_attribute_disclosure_finds_what_columns_tell():
    rng = np.random.default_rng(5)
    real, synthetic, held = (letters(400, rng, 0.8) for _ in range(3))
    found = attribute_disclosure(EvaluationTables(real, synthetic, held), 2, [0, 1], rng, size=1, max_rows=1000)
    # From a: right in 0.8 + 0.2/4; from b: 1/4.
    assert found.subsets == 2
    assert found.members.value == pytest.approx((0.85 + 0.25) / 2, abs=0.05)
    assert found.members.low < found.population.value < found.members.high
    assert found.advantage is not None
    assert found.advantage.low < 0 < found.advantage.high
    guesses = {}
    for j in (0, 1):
        model = CategoricalNB(min_categories=[real.schema.sizes[j]]).fit(
            synthetic.codes[j][:, None], synthetic.codes[2]
        )
        guesses[j] = (model.predict(real.codes[j][:, None]) == real.codes[2]).mean()
    assert found.by_attacker["naive Bayes"][0] == pytest.approx((guesses[0] + guesses[1]) / 2)
    assert found.members.value == pytest.approx(np.mean([one for one, _ in found.by_attacker.values()]))
    commonest = np.bincount(synthetic.codes[2]).argmax()
    assert found.floor == pytest.approx((real.codes[2] == commonest).mean())
    with pytest.raises(Unsupported, match="known columns"):
        attribute_disclosure(EvaluationTables(real, synthetic, held), 2, [0, 2], rng)


def test_attackers_of_repeated_rows_guess_as_scikit_learn_does_from_all_of_them():
    rng = np.random.default_rng(8)
    train, asked = letters(400, rng, 0.7), letters(300, rng, 0.7)
    points, others = (MixedSpace.of(train, (0, 1)).coordinates(table) for table in (train, asked))
    assert len(np.unique(points, axis=0)) < 40
    found = _guesses(train, [asked], 2, (0, 1), seed=0)
    for name, learner in (
        ("support vector machine", SVC()),
        ("logistic regression", LogisticRegression(max_iter=1000)),
        ("nearest neighbours", KNeighborsClassifier(5)),
        ("random forest", RandomForestClassifier(random_state=0)),
    ):
        assert (found[name][0] == learner.fit(points, train.codes[2]).predict(others)).all(), name


def test_a_copy_tells_more_about_its_own_rows():
    schema = Schema((Numeric("n", 0, 1), Categorical("s", (0, 1))))
    rng = np.random.default_rng(6)

    def noise(rows: int) -> Table:
        values = rng.random(rows)
        return Table(schema, ((values * 32).astype(np.uint8), rng.integers(0, 2, rows).astype(np.uint8)), {0: values})

    real, held = noise(300), noise(300)
    found = attribute_disclosure(EvaluationTables(real, real, held), 1, [0], rng)
    assert found.advantage is not None
    assert found.advantage.low > 0.05
    assert found.ceiling > found.population.value + 0.1
    assert attribute_disclosure(EvaluationTables(real, held, noise(300)), 1, [0], rng).advantage.low < 0.05  # type: ignore[union-attr]


def test_attribute_disclosure_of_one_value_and_without_a_hold_out():
    rng = np.random.default_rng(7)
    real, synthetic = letters(200, rng, 0.9), letters(200, rng, 0.9)
    synthetic.codes[2][:] = 3
    found = attribute_disclosure(EvaluationTables(real, synthetic), 2, [0, 1], rng)
    assert found.advantage is None
    assert found.rows == 100
    assert {one for one, _ in found.by_attacker.values()} == {found.floor}
    assert found.population.value > 0.8
