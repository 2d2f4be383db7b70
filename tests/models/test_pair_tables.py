"""Pairs' tables without most of their noise: copulas, low ranks and averages, against what they should be."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.special import ndtri
from scipy.stats import multivariate_normal

from fedsynth.models.estimate import Measurement
from fedsynth.models.pair_tables import (
    Margin,
    averaged,
    copula_shares,
    correlation_outside,
    denoised,
    dependence,
    expected,
    low_rank,
)

EVEN = np.full(8, 1 / 8)
SKEWED = np.array([0.55, 0.2, 0.1, 0.06, 0.04, 0.03, 0.02])


def rectangle_shares(first: np.ndarray, second: np.ndarray, correlation: float) -> np.ndarray:
    """Return the copula's shares from the distribution function of a bivariate normal at the corners of cells."""
    law = multivariate_normal([0, 0], [[1, correlation], [correlation, 1]])
    ends = [np.clip(ndtri(np.concatenate([[0.0], np.cumsum(part)[:-1], [1.0]])), -9, 9) for part in (first, second)]
    below = np.array([[law.cdf([x, y]) for y in ends[1]] for x in ends[0]])
    return np.diff(np.diff(below, axis=0), axis=1)


@pytest.mark.parametrize("correlation", [-0.9, -0.4, 0.0, 0.3, 0.7, 0.95])
def test_copula_shares_are_those_of_a_bivariate_normal(correlation):
    for first, second in ((EVEN, EVEN), (EVEN, SKEWED), (SKEWED, SKEWED[::-1])):
        found = copula_shares(first, second, correlation)
        assert np.abs(found - rectangle_shares(first, second, correlation)).max() < 0.006
        assert np.allclose(found.sum(axis=1), first, atol=1e-12)
        assert np.allclose(found.sum(axis=0), second, atol=0.002)
        assert (found >= 0).all()


def test_empty_groups_of_a_copula_stay_empty():
    first = np.array([0.0, 0.4, 0.0, 0.6])
    found = copula_shares(first, np.array([0.5, 0.0, 0.5]), 0.6)
    assert np.isfinite(found).all()
    assert found[[0, 2]].sum() == 0
    assert found[:, 1].sum() == 0
    assert found.sum() == pytest.approx(1)


def test_an_expected_table_has_the_correlation_of_the_exact_one_whatever_the_noise():
    first, second, total, std = Margin(EVEN, 8), Margin(SKEWED, 7), 5000.0, 25.0
    truth = total * copula_shares(EVEN, SKEWED, 0.6)
    rng = np.random.default_rng(0)
    found = [expected(truth + rng.normal(0, std, truth.shape), std, first, second, total)[1] for _ in range(300)]
    error = np.std(found) / math.sqrt(len(found))
    assert min(found) > 0
    assert abs(np.mean(found) - 0.6) < 4 * error + 0.005
    table, correlation, numbers, apart = expected(truth, std, first, second, total)
    assert (numbers, apart) == (1, False)
    assert correlation == pytest.approx(0.6, abs=0.01)
    assert np.abs(table - truth).max() < 0.01 * total * truth.max() / total + 1


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01])
@pytest.mark.parametrize("correlation", [-0.6, 0.2, 0.8, 0.99])
def test_a_copula_of_few_skewed_groups_is_found_again(correlation, share):
    """Scores of groups vary less than values: a step per unit of their moment overshot, to -0.995 for 0.8."""
    margin, total = Margin(np.array([1 - share, share]), 2), 16_000.0
    truth = total * copula_shares(margin.shares, margin.shares, correlation)
    table, found, *_ = expected(truth, 1e-3, margin, margin, total)
    assert np.abs(table - truth).max() < 5
    assert found == pytest.approx(correlation, abs=0.005) or truth[1, 1] < 1  # all are as good without such rows


HEAPED = np.array([True, *[False] * 6])


@pytest.mark.parametrize("correlation", [-0.8, 0.0, 0.5, 0.9])
def test_a_part_of_a_copula_has_the_correlation_of_the_whole(correlation):
    table = 9000.0 * copula_shares(SKEWED, SKEWED, correlation)
    assert correlation_outside(table, 5.0, correlation or 0.3, HEAPED, HEAPED) == pytest.approx(correlation, abs=0.01)


@pytest.mark.parametrize("correlation", [-0.7, 0.0, 0.6])
def test_zeros_that_occur_together_say_nothing_about_other_rows(correlation):
    """The truth has 5,000 rows of zeros in both columns, 200 and 100 in one, and 4,000 others."""
    others = SKEWED[1:] / SKEWED[1:].sum()
    truth = np.zeros((7, 7))
    truth[1:, 1:] = 4000 * copula_shares(others, others, correlation)
    truth[0, 0], truth[0, 1:], truth[1:, 0] = 5000, 200 * others, 100 * others
    first, second = (Margin(truth.sum(axis=axis) / truth.sum(), 7) for axis in (1, 0))
    rng = np.random.default_rng(0)
    for std in (1e-3, 20.0):
        noisy = truth + rng.normal(0, std, truth.shape)
        table, found, numbers, apart = expected(noisy, std, first, second, truth.sum())
        assert (numbers, apart) == (1 + (correlation != 0), True)
        for axis in (0, 1):
            assert np.allclose(table.sum(axis=axis), truth.sum(axis=axis), rtol=0.02)
        assert found == pytest.approx(correlation, abs=0.01 + std / 400)
        assert np.abs(table - truth).sum() < max(100, 0.25 * np.abs(noisy - truth).sum())
        clean = denoised(noisy, std, first, second, truth.sum())
        assert clean.clear
        assert clean.apart
        assert clean.correlation == found


def test_rows_that_are_all_in_a_heap_leave_nothing_to_others():
    shares = np.array([0.6, 0.3, 0.1])
    truth = 1000 * np.array([[0.2, 0.3, 0.1], [0.3, 0, 0], [0.1, 0, 0]])
    table, correlation, numbers, apart = expected(truth, 1.0, Margin(shares, 3), Margin(shares, 3), 1000.0)
    assert apart
    assert (correlation, numbers) == (0.0, 1)
    assert np.abs(table - truth).max() < 1e-6
    assert Margin(np.array([0.0, 1.0, 0.0]), 3).heap is None
    assert Margin(np.array([0.4, 0.3, 0.3]), 3).heap is None


def test_without_single_values_or_under_noise_a_correlation_outside_them_is_that_of_all_cells():
    table = 4000.0 * copula_shares(SKEWED, SKEWED, 0.5)
    nothing = np.zeros(7, dtype=bool)
    for std, heaped in ((1e4, HEAPED), (5.0, np.ones(7, dtype=bool)), (5.0, nothing)):
        assert correlation_outside(table, std, 0.8, heaped, heaped) == 0.8


def test_no_correlation_is_expected_of_noise_nor_of_categories():
    rng = np.random.default_rng(1)
    independent = 2000 * np.outer(EVEN, SKEWED)
    clear = 0
    for _ in range(400):
        noisy = independent + rng.normal(0, 20, independent.shape)
        table, _, numbers, _ = expected(noisy, 20.0, Margin(EVEN, 8), Margin(SKEWED, 7), 2000.0)
        clear += numbers > 0
        assert numbers or np.array_equal(table, independent)
    assert clear <= 8  # three standard deviations: one in 370 for the correlation, one for the commonest groups
    strong = 2000 * copula_shares(EVEN, SKEWED, 0.9)
    for ordered in ((0, 7), (8, 0), (8, 1)):
        assert expected(strong, 1.0, Margin(EVEN, ordered[0]), Margin(SKEWED, ordered[1]), 2000.0)[1] == 0.0


def test_missing_values_are_independent_of_a_copula():
    present = copula_shares(EVEN, EVEN, 0.8)
    shares = np.append(0.9 * EVEN, 0.1)
    truth = 6000 * np.outer(shares, shares)
    truth[:8, :8] = 6000 * 0.81 * present
    table, correlation, *_ = expected(truth, 5.0, Margin(shares, 8), Margin(shares, 8), 6000.0)
    assert correlation == pytest.approx(0.8, abs=0.01)
    assert np.abs(table - truth).max() < 3
    assert np.allclose(table[8], truth[8])


def test_margins_of_nothing_have_no_correlation():
    for shares, ordered in ((np.array([0.0, 0.0, 1.0]), 2), (np.array([0.0, 1.0, 0.0]), 3), (np.ones(1), 1)):
        margin = Margin(shares, ordered)
        values = 100 * np.outer(shares, EVEN)
        table, correlation, *_ = expected(values, 1.0, margin, Margin(EVEN, 8), 100.0)
        assert correlation == 0.0
        assert np.isfinite(table).all()


def test_singular_values_shrink_as_gavish_and_donoho_have_it():
    rows, columns, std = 30, 20, 2.0
    rng = np.random.default_rng(2)
    left, _ = np.linalg.qr(rng.normal(size=(rows, 2)))
    right, _ = np.linalg.qr(rng.normal(size=(columns, 2)))
    values = (left * [60.0, 40.0]) @ right.T
    found, rank = low_rank(values, std)
    scaled = np.array([30.0, 20.0])
    wanted = std * np.sqrt((scaled**2 - rows - columns) ** 2 - 4 * rows * columns) / scaled
    assert rank == 2
    assert np.linalg.svd(found, compute_uv=False)[:2] == pytest.approx(wanted)
    assert np.linalg.svd(found, compute_uv=False)[2:].max() < 1e-9


def test_little_of_pure_noise_is_left_and_a_signal_in_it_comes_out_closer_than_it_went_in():
    rng = np.random.default_rng(3)
    for shape in ((24, 24), (24, 16), (16, 24), (16, 3), (5, 3)):
        found = [low_rank(rng.normal(0, 3, shape), 3.0) for _ in range(1000)]
        assert np.mean([rank == 0 for _, rank in found]) > 0.85
        assert np.mean([(table**2).mean() for table, _ in found]) < 0.02 * 9  # what passes the edge by chance is small
    signal = 40 * np.outer(np.linspace(-1, 1, 24), np.linspace(-1, 1, 16))
    ratio = []
    for _ in range(100):
        noisy = signal + rng.normal(0, 3, signal.shape)
        ratio.append(((low_rank(noisy, 3.0)[0] - signal) ** 2).sum() / ((noisy - signal) ** 2).sum())
    assert np.mean(ratio) < 0.25


@pytest.mark.parametrize(("correlation", "part"), [(0.0, 0.2), (0.5, 0.5), (0.9, 0.6)])
def test_a_denoised_table_is_closer_to_the_exact_one(correlation, part):
    rng = np.random.default_rng(4)
    total, std = 7000.0, 20.0
    first, second = Margin(np.full(16, 1 / 16), 16), Margin(SKEWED, 7)
    exact = total * copula_shares(first.shares, second.shares, correlation)
    exact = rng.multinomial(int(total), (exact / exact.sum()).ravel()).reshape(exact.shape).astype(float)
    errors = []
    for _ in range(100):
        noisy = exact + rng.normal(0, std, exact.shape)
        found = denoised(noisy, std, first, second, total)
        errors.append([((table - exact) ** 2).sum() for table in (noisy, found.table)])
        assert found.table.shape == exact.shape
        measured = found.measurement((1, 4), std)
        assert measured.clique == (1, 4)
        assert 0 < measured.std <= std
    raw, clean = np.mean(errors, axis=0)
    assert clean < part * raw


def test_a_pair_that_no_copula_describes_comes_out_closer_too():
    """Every second group goes with every second one: no correlation, and one singular vector."""
    rng = np.random.default_rng(5)
    sign = np.where(np.arange(12) % 2, 1.0, -1.0)
    exact = 8000 / 144 * (1 + 0.8 * np.outer(sign, sign))
    margin = Margin(np.full(12, 1 / 12), 12)
    errors = []
    for _ in range(100):
        noisy = exact + rng.normal(0, 20, exact.shape)
        found = denoised(noisy, 20.0, margin, margin, 8000.0)
        assert found.clear
        errors.append([((table - exact) ** 2).sum() for table in (noisy, found.table)])
    raw, clean = np.mean(errors, axis=0)
    assert clean < 0.4 * raw


def test_what_is_far_from_the_diagonal_of_a_strong_correlation_is_next_to_nothing():
    rng = np.random.default_rng(6)
    margin, total, std = Margin(np.full(16, 1 / 16), 16), 7000.0, 17.0
    exact = total * copula_shares(margin.shares, margin.shares, 0.9) * (1 + 0.3 * np.sin(np.arange(16)))
    exact *= total / exact.sum()
    corners = [slice(0, 4), slice(12, 16)]
    clipped = []
    for _ in range(50):
        noisy = exact + rng.normal(0, std, exact.shape)
        found = denoised(noisy, std, margin, margin, total)
        clipped.append(np.maximum(found.table[corners[0], corners[1]], 0).sum())
    assert exact[corners[0], corners[1]].sum() < 1
    assert np.mean(clipped) < 3  # of some 110 in the noisy table


def test_strength_is_without_bias_the_distance_from_independence():
    rng = np.random.default_rng(7)
    exact = np.diag([500.0, 300.0, 200.0])
    margin = Margin(np.array([0.5, 0.3, 0.2]), 0)
    wanted = np.linalg.norm(exact - 1000 * np.outer(margin.shares, margin.shares))
    found = [dependence(exact + rng.normal(0, 30, (3, 3)), 30.0, margin, margin, 1000.0)[0] for _ in range(400)]
    assert np.mean(np.square(found)) == pytest.approx(wanted**2, rel=0.05)
    nothing = [
        dependence(rng.normal(111, 30, (3, 3)), 30.0, Margin(np.ones(3) / 3, 0), Margin(np.ones(3) / 3, 0), 1000.0)[0]
    ]
    assert all(value >= 0 for value in nothing)


def generalised_least_squares(
    fine: np.ndarray, fine_std: float, coarse: np.ndarray, coarse_std: float, cell: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return estimate and covariance of the fine cells from both, with the design matrix written out."""
    unions = (cell.ravel()[None, :] == np.arange(coarse.size)[:, None]).astype(float)
    design = np.vstack([np.eye(fine.size), unions])
    weight = np.concatenate([np.full(fine.size, fine_std**-2), np.full(coarse.size, coarse_std**-2)])
    covariance = np.linalg.inv(design.T @ (weight[:, None] * design))
    found = covariance @ design.T @ (weight * np.concatenate([fine.ravel(), coarse.ravel()]))
    return found.reshape(fine.shape), covariance


@pytest.mark.parametrize("stds", [(1.0, 1.0), (5.0, 0.1), (0.2, 40.0)])
def test_an_average_over_unions_is_the_least_squares_one(stds):
    rng = np.random.default_rng(8)
    unions = {3: np.array([0, 0, 1, 2, 2, 2]), 5: np.array([0, 1, 1, 0])}
    fine = Measurement((3, 5), rng.normal(10, 5, (6, 4)), stds[0])
    coarse = Measurement((3, 5), rng.normal(30, 5, (3, 2)), stds[1])
    cell = unions[3][:, None] * 2 + unions[5][None, :]
    found = averaged(fine, coarse, unions)
    wanted, covariance = generalised_least_squares(fine.values, stds[0], coarse.values, stds[1], cell)
    assert np.allclose(found.values, wanted)
    assert found.std == pytest.approx(math.sqrt(np.diag(covariance).mean()))
    assert found.clique == (3, 5)


def test_an_average_over_single_groups_is_the_inverse_variance_mean():
    one, two = Measurement((0,), np.array([10.0, 20.0]), 2.0), Measurement((0,), np.array([14.0, 14.0]), 1.0)
    found = averaged(one, two, {0: np.arange(2)})
    assert np.allclose(found.values, [13.2, 15.2])
    assert found.std == pytest.approx(math.sqrt(0.8))


def test_scores_of_a_margin_are_centred_and_increase():
    for margin, ordered in itertools.product((EVEN, SKEWED, np.array([0.0, 0.5, 0.0, 0.3, 0.2])), (0, 1)):
        held = len(margin) - ordered
        scores = Margin(margin, held).scores()
        assert scores.shape == (held,)
        assert (np.diff(scores) >= 0).all()
        assert scores @ (margin[:held] / margin[:held].sum()) == pytest.approx(0, abs=1e-12)
