"""Places of numbers within their groups: even in each group, and as correlated as the numbers are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtri
from scipy.stats import spearmanr

from fedsynth.errors import InvalidParameter
from fedsynth.models.adaptive_bins import AdaptiveBins
from fedsynth.models.conditions import read_conditions
from fedsynth.models.evidence import CodeEvidence, Evidence, PlacedEvidence, RejectionSampler
from fedsynth.models.mrf import MarkovRandomField
from fedsynth.models.ranked import RankedGroups, tail_dependence
from fedsynth.models.synthesizer import Synthesizer
from fedsynth.schema import Categorical, Numeric, Schema

SHARES = np.array([0.4, 0.2, 0.2, 0.2])
CORRELATION = 0.9


def normal_pairs(correlation: float, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Return two normal columns of unit variance, shape ``(2, rows)``."""
    return rng.multivariate_normal(np.zeros(2), np.array([[1.0, correlation], [correlation, 1.0]]), rows).T


def groups_of(rows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    points = normal_pairs(CORRELATION, rows, rng)
    return points, np.digitize(points, ndtri(np.cumsum(SHARES)[:-1]))


def model(missing: bool = False) -> RankedGroups:
    """Return the model of such pairs; with ``missing``, the second column has one more group, without a place."""
    rng = np.random.default_rng(0)
    _, groups = groups_of(200_000, rng)
    table = np.zeros((4, 4 + missing))
    np.add.at(table, (groups[0], groups[1]), 1.0)
    if missing:
        table[:, 4] = 10_000
    field = MarkovRandomField(table.shape, table.sum(), [(0, 1)], [np.log(np.maximum(table, 1e-6))])
    return RankedGroups(field, (0, 1), (4, 4), (-1, 0), np.array([0.0, CORRELATION]))


def test_places_are_even_within_each_group_and_correlate_as_the_points_do():
    rng = np.random.default_rng(1)
    drawn = model().sample(40_000, rng)
    points, groups = groups_of(40_000, rng)
    for column in drawn:
        for group in range(4):
            places = column[np.floor(column) == group] - group
            assert np.abs(np.histogram(places, bins=10, range=(0, 1))[0] - len(places) / 10).max() < 2
    for one, two in ((1, 1), (1, 2), (2, 3), (0, 1)):
        real = (groups[0] == one) & (groups[1] == two)
        own = (np.floor(drawn[0]) == one) & (np.floor(drawn[1]) == two)
        found, wanted = (
            float(spearmanr(first[held], second[held])[0]) for (first, second), held in ((drawn, own), (points, real))
        )
        assert found == pytest.approx(wanted, abs=0.02 + 3 / math.sqrt(min(own.sum(), real.sum())))  # of the slots


def test_numbers_that_share_their_tails_keep_their_order_there():
    one, two = model().sample(40_000, np.random.default_rng(1))
    for group in (0, 3):
        held = (np.floor(one) == group) & (np.floor(two) == group)
        assert spearmanr(one[held], two[held])[0] > 0.8
    assert tail_dependence(np.diag([5.0, 3, 2]), 2, 2) == pytest.approx(1)
    assert tail_dependence(np.outer([0.2, 0.3, 0.5], [0.7, 0.2, 0.1]), 2, 2) == pytest.approx(0)


def lognormal_table(rho: float, cells: int, rows: int) -> tuple[Synthesizer, np.ndarray]:
    """Return a model, exact but for its groups, of two lognormal numbers that depend as ``rho`` says, and the numbers.

    If ``rho`` is 1, the second is the first times a number near 1. There are ten groups of as many rows.
    """
    rng = np.random.default_rng(0)
    if rho == 1:
        first = np.exp(rng.normal(0, 1, rows))
        numbers = np.array([first, first * rng.uniform(0.7, 1.3, rows)])
    else:
        numbers = np.exp(normal_pairs(rho, rows, rng))
    high = float(numbers.max()) + 1
    schema = Schema((Numeric("x", 0.0, high, bins=cells), Numeric("y", 0.0, high, bins=cells)))
    axes, groups = [], []
    for column, values in zip(schema.stored, numbers, strict=True):
        bins = AdaptiveBins.of_bins(column)
        assert bins.grid is not None
        cell = np.searchsorted(bins.grid.upper, values)
        counts = np.bincount(cell, minlength=cells).astype(float)
        of = np.unique(np.minimum(10 * (np.cumsum(counts) - counts) // rows, 9), return_inverse=True)[1]
        axes.append(replace(bins, counts=counts, groups=of.astype(np.int64)))
        groups.append(of[cell])
    table = np.zeros([int(of.max()) + 1 for of in groups])
    np.add.at(table, tuple(groups), 1.0)
    field = MarkovRandomField(table.shape, float(rows), [(0, 1)], [np.log(np.maximum(table, 1e-6))])
    scores = ndtri((np.argsort(np.argsort(numbers, axis=1), axis=1) + 0.5) / rows)
    correlation = np.array([0.0, min(float(np.asarray(np.corrcoef(scores))[0, 1]), 0.995)])
    places = RankedGroups(field, (0, 1), table.shape, (-1, 0), correlation)
    return Synthesizer(schema, tuple(axes), places), numbers


@pytest.mark.parametrize("rho", [1.0, 0.9, 0.6, 0.3, -0.5])
def test_pearsons_correlation_of_heavy_tails_is_kept_and_weak_ones_are_not_exaggerated(rho):
    fitted, numbers = lognormal_table(rho, 4096, 50_000)
    found = [fitted.sample(50_000, seed).corr().to_numpy()[0, 1] for seed in range(4)]
    assert np.mean(found) == pytest.approx(np.corrcoef(numbers)[0, 1], abs=0.1)


def test_places_follow_the_parent_along_the_tree_with_the_sign_of_each_correlation():
    rng = np.random.default_rng(0)
    field = MarkovRandomField((3, 3, 3), 1000.0, [(0, 1), (1, 2)], [np.zeros((3, 3))] * 2)
    made = RankedGroups(field, (2, 0, 1), (3, 3, 2), (-1, 0, 1), np.array([0.0, -0.9, 0.9]))
    drawn = made.sample(30_000, rng)
    middle = (np.floor(drawn[2]) == 1) & (np.floor(drawn[0]) == 1)
    assert spearmanr(drawn[2][middle], drawn[0][middle])[0] < -0.2
    low = (np.floor(drawn[0]) == 0) & (np.floor(drawn[1]) == 0)
    assert spearmanr(drawn[0][low], drawn[1][low])[0] > 0.2
    missing = np.floor(drawn[1]) == 2  # not ordered
    assert abs(spearmanr(drawn[0][missing], drawn[1][missing])[0]) < 4 / math.sqrt(missing.sum())


def test_missing_values_have_no_place_and_conditions_are_met():
    one, two = model(missing=True).sample(5000, np.random.default_rng(0))
    assert (np.floor(two) == 4).any()
    assert np.isfinite(one).all()
    assert (two < 5).all()
    given = model(missing=True).given({1: CodeEvidence(np.array([0.0, 0, 0, 0, 1]))})
    assert given is not None
    assert (np.floor(given.sample(100, np.random.default_rng(0))[1]) == 4).all()
    assert model(missing=True).given({1: CodeEvidence(np.zeros(5))}) is None


def test_it_survives_a_trip_to_arrays_and_groups_without_rows():
    made = model()
    again = RankedGroups.from_arrays(*made.to_arrays())
    for one, two in zip(
        made.sample(500, np.random.default_rng(3)), again.sample(500, np.random.default_rng(3)), strict=True
    ):
        np.testing.assert_array_equal(one, two)
    empty = MarkovRandomField((4, 4), 100.0, [(0,), (1,)], [np.array([0.0, -1e3, 0.0, -1e3])] * 2)
    drawn = RankedGroups(empty, (0, 1), (4, 4), (-1, 0), np.array([0.0, CORRELATION])).sample(
        500, np.random.default_rng(0)
    )
    assert all(np.isfinite(one).all() for one in drawn)


@pytest.mark.parametrize(
    ("head", "correlation", "message"),
    [
        ({"parents": [-1, 1]}, [0.0, 0.5], "before its parent"),
        ({"parents": [-1]}, [0.0, 0.5], "different lengths"),
        ({"parents": [-2, 0]}, [0.0, 0.5], "does not fit"),
        ({"columns": [1, 1]}, [0.0, 0.5], "ascending"),
        ({"ordered": [4, 5]}, [0.0, 0.5], "ordered groups"),
        ({}, [0.0, 1.0], "strictly between"),
        ({}, [0.0], "shape"),
    ],
)
def test_heads_and_arrays_that_do_not_fit_are_refused(head, correlation, message):
    meta, arrays = model().to_arrays()
    with pytest.raises(InvalidParameter, match=message):
        RankedGroups.from_arrays({**meta, **head}, {**arrays, "correlation": np.array(correlation)})


class Rejected(RankedGroups):
    """The same model, which meets conditions by rejection alone."""

    def given(self, evidence: Mapping[int, Evidence]) -> RejectionSampler:
        return RejectionSampler(self, evidence)


PAIRS = Schema((Numeric("x", 0.0, 10.0, bins=40), Numeric("y", 0.0, 10.0, bins=40), Categorical("c", ("a", "b", "c"))))
ROWS = 20_000
CONDITIONS = {
    "one group": {"x": (5.0, 6.0)},
    "a part of one group": {"x": (5.1, 5.4)},
    "the end of the last group": {"x": (9.8, 10.0)},
    "above a threshold": {"x": (3.3, 10.0)},
    "a category": {"c": "c"},
    "two columns": {"x": (8.6, 9.7), "y": (2.4, 9.5)},
    "a category and a column": {"c": "a", "y": (6.2, 6.9)},
}


def pairs(rho: float, kind: type[RankedGroups] = RankedGroups) -> Synthesizer:
    """Return a model of two correlated numbers, ten groups of four cells each, and a category that follows the first.

    Group k of a number is the interval from k to k + 1.
    """
    rng = np.random.default_rng(0)
    points = normal_pairs(rho, 400_000, rng)
    groups = np.digitize(points, ndtri(np.arange(1, 10) / 10))
    category = np.digitize(points[0] + 0.8 * rng.normal(size=points.shape[1]), [-0.5, 0.7])
    table = np.zeros((10, 10, 3))
    np.add.at(table, (groups[0], groups[1], category), 1.0)
    field = MarkovRandomField(table.shape, table.sum(), [(0, 1, 2)], [np.log(np.maximum(table, 0.01))])
    axes = [AdaptiveBins.of(column) for column in PAIRS.stored]
    for at in (0, 1):
        cells, counts = AdaptiveBins.of_bins(PAIRS.stored[at]), rng.uniform(0.5, 2.0, 40)
        axes[at] = replace(cells, groups=np.arange(40) // 4, counts=counts)
    return Synthesizer(PAIRS, tuple(axes), kind(field, (0, 1), (10, 10), (-1, 0), np.array([0.0, rho])))


@pytest.fixture(scope="module", params=[0.9, -0.6])
def both(request: pytest.FixtureRequest) -> tuple[Synthesizer, Synthesizer]:
    """Return a model, and the same model under rejection."""
    return pairs(request.param), pairs(request.param, Rejected)


def shares(values: pd.Series) -> np.ndarray:
    """Return the shares of ten groups, or of three categories, among values."""
    if values.name == "c":
        return np.array([(values == label).mean() for label in "abc"])
    return np.bincount(np.floor(values).clip(0, 9).astype(int), minlength=10) / len(values)


@pytest.mark.parametrize("conditions", CONDITIONS.values(), ids=CONDITIONS)
def test_rows_under_conditions_are_those_that_rejection_keeps(both, conditions):
    given, kept = (fitted.sample(ROWS, 1, conditions) for fitted in both)
    error = 5 * math.sqrt(2 / ROWS)  # standard errors of a difference of means; places of slots are estimates: 1.5
    correlations = [frame["x"].corr(frame["y"]) for frame in (given, kept)]
    assert correlations[0] == pytest.approx(correlations[1], abs=error)
    for name in ("x", "y"):
        assert given[name].mean() == pytest.approx(kept[name].mean(), abs=error * kept[name].std()), name
        assert given[name].std() == pytest.approx(kept[name].std(), rel=2 * error), name  # of long-tailed numbers
        within, other = (frame[name] - np.floor(frame[name]) for frame in (given, kept))
        assert within.mean() == pytest.approx(other.mean(), abs=error * other.std()), name
    for name in ("x", "y", "c"):
        one, other = shares(given[name]), shares(kept[name])
        assert (np.abs(one - other) <= (error + 0.01) * np.sqrt(np.maximum(one, other)) + 1 / ROWS).all(), name


def test_a_condition_on_one_number_tilts_the_other_within_its_groups():
    even, up, down = (
        pairs(rho).sample(ROWS, 0, conditions)["y"]
        for rho, conditions in ((0.9, {}), (0.9, {"x": (9.0, 10.0)}), (-0.6, {"x": (9.0, 10.0)}))
    )
    assert up[up >= 9].mean() > even[even >= 9].mean() + 0.05
    assert up[(up >= 7) & (up < 8)].mean() > even[(even >= 7) & (even < 8)].mean() + 0.05
    assert down[down < 1].mean() < even[even < 1].mean() - 0.05


def test_conditions_on_groups_alone_leave_the_graphical_models_shares():
    fitted = pairs(0.9)
    assert isinstance(fitted.model, RankedGroups)
    joint = fitted.model.groups.marginal((0, 1))[3:5].sum(0)
    frame = fitted.sample(ROWS, 0, {"x": (3.0, 5.0 - 1e-12)})
    np.testing.assert_allclose(shares(frame["y"]), joint / joint.sum(), atol=3 / ROWS + 1e-9)


def evidence_on(fitted: Synthesizer, conditions: Mapping[str, object]) -> dict[int, Evidence]:
    """Return conditions as evidence on the codes of a model's columns."""
    asked = read_conditions(fitted.schema, conditions)
    return {at: fitted.axes[at].given(fitted.schema.stored[at], one)[0] for at, one in asked.items()}


def test_a_part_may_be_as_narrow_as_one_number():
    fitted = pairs(0.9)
    x, y = (fitted.sample(2000, 0, {"x": (5.1234, 5.1234 + 1e-12)})[name] for name in "xy")
    assert x.between(5.1234, 5.1234 + 1e-12).all()
    near = fitted.sample(2000, 1, {"x": (5.12, 5.13)})["y"]
    assert y.mean() == pytest.approx(near.mean(), abs=3 * math.sqrt(2 / 2000) * near.std())


def test_the_last_ten_thousandth_of_a_number_leaves_the_other_in_its_tail():
    frame = pairs(0.9).sample(2000, 0, {"x": (9.999, 10.0)})
    assert frame["x"].between(9.999, 10.0).all()
    assert 9.9993 < frame["x"].mean() < 9.9997
    assert (frame["y"] >= 9).mean() > 0.999
    assert frame["y"].mean() > 9.975


def test_the_places_that_evidence_admits_are_those_it_finds_likely():
    fitted = pairs(0.9)
    for low, high in ((5.1, 5.4), (3.3, 10.0), (0.0, 0.01), (2.9, 3.0)):
        (known,) = evidence_on(fitted, {"x": (low, high)}).values()
        assert isinstance(known, PlacedEvidence)
        begin, end = known.places
        np.testing.assert_allclose(end - begin, known.values, atol=1e-12)
        codes = np.arange(10) + (begin + end) / 2
        np.testing.assert_array_equal(known.likelihood(codes)[known.values > 0], 1.0)
        outside = np.concatenate([np.arange(10) + begin - 1e-6, np.arange(10) + end + 1e-6])
        partial = np.tile((known.values > 0) & (known.values < 1), 2)
        beyond = partial & (outside >= np.tile(np.arange(10), 2)) & (outside < np.tile(np.arange(1, 11), 2))
        assert not known.likelihood(outside[beyond]).any()
