"""Noisy counts of neighbours, averaged over all ways to cut them: the same as counted out one by one."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import norm, truncnorm

from fedsynth.models.piecewise import clear_range, piecewise_mean


def enumerated(counts: np.ndarray, variance: float, penalty: float, typical: float) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and probability of rows from every segmentation, and every choice of its pieces that are empty."""
    cells = len(counts)
    mean, chance, whole = np.zeros(cells), np.zeros(cells), 0.0
    for inner in itertools.product([False, True], repeat=cells - 1):
        cuts = [0, *(at + 1 for at, cut in enumerate(inner) if cut), cells]
        pieces = list(itertools.pairwise(cuts))
        for empty in itertools.product([False, True] if typical else [False], repeat=len(pieces)):
            log, height, held = 0.0, np.zeros(cells), np.zeros(cells)
            for (start, stop), nothing in zip(pieces, empty, strict=True):
                part = counts[start:stop]
                level, deviation = 0.0 if nothing else part.mean(), math.sqrt(variance / len(part))
                log -= (((part - level) ** 2).sum() / variance + penalty) / 2
                if typical and not nothing:
                    log += norm.logcdf(level / deviation) - math.log1p(typical / deviation)
                    level = truncnorm.mean(-level / deviation, math.inf, level, deviation)
                height[start:stop], held[start:stop] = level, not nothing
            weight = math.exp(log)
            mean, chance, whole = mean + weight * height, chance + weight * held, whole + weight
    return mean / whole, chance / whole


@pytest.mark.parametrize("typical", [0.0, 3.0, 40.0])
@pytest.mark.parametrize("cells", [1, 2, 3, 5, 7])
def test_it_is_the_mean_over_all_segmentations(cells, typical):
    rng = np.random.default_rng(cells)
    for penalty, variance in ((0.0, 4.0), (2.5, 9.0), (8.0, 1.0)):
        counts = rng.uniform(0, 12, cells) * rng.integers(0, 2, cells) + rng.normal(0, 2, cells)
        mean, chance = piecewise_mean(counts, variance, penalty, typical)
        wanted, wanted_chance = enumerated(counts, variance, penalty, typical)
        assert np.allclose(mean, wanted, atol=1e-9)
        assert np.allclose(chance, wanted_chance, atol=1e-9)


def test_the_sum_stays_as_long_as_every_piece_holds_rows():
    rng = np.random.default_rng(0)
    for cells in (2, 33, 66, 128):
        counts = rng.normal(20, 30, cells)
        mean, chance = piecewise_mean(counts, 900.0, 4.0)
        assert mean.sum() == pytest.approx(counts.sum(), rel=1e-9)
        assert np.allclose(chance, 1.0)


def test_an_atom_stays_and_even_neighbours_become_alike():
    rng = np.random.default_rng(1)
    truth = np.full(32, 100.0)
    truth[9] = 1500.0
    errors = []
    for _ in range(30):
        counts = truth + rng.normal(0, 25, 32)
        mean, _ = piecewise_mean(counts, 625.0, 4.0)
        assert abs(mean[9] - counts[9]) < 1.0
        errors.append(np.abs(mean - truth)[np.arange(32) != 9].mean() / 25)
    assert np.mean(errors) < 0.4  # 0.8 as counted


def test_noise_beyond_all_rows_adds_up_to_no_rows():
    rng = np.random.default_rng(2)
    truth = np.concatenate([[900.0, 700.0, 300.0, 120.0], np.zeros(29)])
    beyond, plain = [], []
    for _ in range(200):
        counts = truth + rng.normal(0, 30, 33)
        mean, chance = piecewise_mean(counts, 900.0, 2 * math.log(33), truth.mean())
        assert chance[:3].min() > 0.99
        beyond.append(mean[4:][chance[4:] >= 0.5].sum())
        plain.append(np.maximum(piecewise_mean(counts, 900.0, 2 * math.log(33))[0][4:], 0).sum())
    assert np.mean(np.array(beyond) == 0) > 0.7
    assert np.mean(beyond) < np.mean(plain) / 3


def test_few_rows_spread_evenly_are_not_taken_for_noise():
    rng = np.random.default_rng(3)
    sums = []
    for _ in range(50):
        counts = np.concatenate([[3500.0], np.full(33, 16.0)]) + rng.normal(0, 15, 34)
        mean, _ = piecewise_mean(counts, 225.0, 2 * math.log(34), 4000 / 34)
        sums.append(mean[1:].sum())
    assert np.mean(sums) == pytest.approx(33 * 16, rel=0.1)


def test_large_counts_overflow_nothing():
    counts = np.array([0.0, 1e9, 0.0, 5e8, 5e8, -30.0])
    mean, chance = piecewise_mean(counts, 1.0, 5.0, 1e8)
    assert np.allclose(mean, np.maximum(counts, 0), atol=40)
    assert (chance[[1, 3, 4]] > 0.999).all()


def test_a_dip_in_the_noise_is_no_sign_of_rows():
    """Heights below zero made such dips as likely to hold rows as rises: .53 to .67."""
    counts = np.array([5000.0, 3000, 900, 60, -183, 22, -251, -126, -195, 40, -30, 90, -80, 10])
    _, chance = piecewise_mean(counts, 92.0**2, 2 * math.log(len(counts)), 0.25 * 9000 / len(counts))
    assert chance[4:9].max() < 0.2
    assert chance[:3].min() > 0.99


def test_no_interval_of_noise_stands_out_but_in_one_of_two_hundred():
    rng = np.random.default_rng(4)
    for cells in (10, 69):
        clear = [clear_range(rng.normal(0, 30, cells), 30.0) for _ in range(2000)]
        assert sum(one.stop > 0 for one in clear) <= 2000 / 200


@pytest.mark.parametrize("place", [0, 20, 68])
def test_a_cell_of_eight_deviations_stands_out_wherever_it_is(place):
    rng = np.random.default_rng(5)
    lost = 0
    for _ in range(300):
        counts = rng.normal(0, 30, 69)
        counts[place] += 8 * 30
        found = clear_range(counts, 30.0)
        lost += not found.start <= place < found.stop
    assert lost <= 3


def test_the_clear_range_ends_with_the_interval_that_starts_last():
    counts = np.array([0.0, 0, 9, 0, 0, 6, 6, 0, 0, 4, 0])
    assert clear_range(counts, 1.0) == slice(2, 7)
    assert clear_range(counts, 0.001) == slice(2, 10)
    assert clear_range(counts, 10.0) == slice(0, 0)
    assert clear_range(np.array([5000.0]), 30.0) == slice(0, 1)
