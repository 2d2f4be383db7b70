"""Noisy counts of neighbours, averaged over all ways to cut them: the same as counted out one by one."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fedsynth.models.piecewise import piecewise_mean


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
                level = 0.0 if nothing else part.mean()
                log -= (((part - level) ** 2).sum() / variance + penalty) / 2
                if typical and not nothing:
                    log -= math.log1p(typical * math.sqrt(len(part) / variance))
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
