"""Places of numbers within their groups: even in each group, and as correlated as the numbers are."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtri

from fedsynth.models.evidence import Weights
from fedsynth.models.mrf import MarkovRandomField
from fedsynth.models.ranked import RankedGroups

SHARES = np.array([0.4, 0.2, 0.2, 0.2])
CORRELATION = np.array([[1.0, 0.9], [0.9, 1.0]])


def groups_of(rows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return normal pairs and their groups."""
    points = rng.multivariate_normal(np.zeros(2), CORRELATION, rows).T
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
    return RankedGroups(field, (0, 1), (4, 4), CORRELATION)


def test_places_are_even_within_each_group_and_correlate_as_the_points_do():
    rng = np.random.default_rng(1)
    one, two = model().sample(40_000, rng)
    points, groups = groups_of(40_000, rng)
    for column in (one, two):
        for group in range(4):
            places = column[np.floor(column) == group] - group
            assert np.abs(np.histogram(places, bins=10, range=(0, 1))[0] - len(places) / 10).max() < 2
    low = (one < 1) & (two < 1)
    real = (groups[0] == 0) & (groups[1] == 0)
    drawn = np.corrcoef(one[low], two[low])[0, 1]
    first, second = (np.argsort(np.argsort(points[at][real])).astype(float) for at in (0, 1))
    assert drawn == pytest.approx(np.corrcoef(first, second)[0, 1], abs=0.08)
    assert drawn > 0.5


def test_missing_values_have_no_place_and_conditions_are_met():
    one, two = model(missing=True).sample(5000, np.random.default_rng(0))
    assert (np.floor(two) == 4).any()
    assert np.isfinite(one).all()
    assert (two < 5).all()
    given = model(missing=True).given({1: Weights(np.array([0.0, 0, 0, 0, 1]))})
    assert given is not None
    assert (np.floor(given.sample(100, np.random.default_rng(0))[1]) == 4).all()
    assert model(missing=True).given({1: Weights(np.zeros(5))}) is None


def test_it_survives_a_trip_to_arrays_and_groups_without_rows():
    made = model()
    again = RankedGroups.from_arrays(*made.to_arrays())
    for one, two in zip(
        made.sample(500, np.random.default_rng(3)), again.sample(500, np.random.default_rng(3)), strict=True
    ):
        np.testing.assert_array_equal(one, two)
    empty = MarkovRandomField((4, 4), 100.0, [(0,), (1,)], [np.array([0.0, -1e3, 0.0, -1e3])] * 2)
    drawn = RankedGroups(empty, (0, 1), (4, 4), CORRELATION).sample(500, np.random.default_rng(0))
    assert all(np.isfinite(one).all() for one in drawn)
