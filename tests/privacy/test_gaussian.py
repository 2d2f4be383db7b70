"""Exact accounting of discrete Gaussian noise: held beside laws that are summed up number by number."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import signal, special, stats

from fedsynth.privacy.cost import epsilon_of, rho_of
from fedsynth.privacy.gaussian import _delta, gaussian_epsilon


def discrete(variance: float, reach: int) -> NDArray[np.float64]:
    weights: NDArray[np.float64] = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * variance))
    return weights / math.fsum(weights)


def exact_delta(epsilon: float, cells: Sequence[tuple[int, float]]) -> float:
    """Return the delta of cells that move by (integer, variance of its noise): from the law of their privacy loss.

    A cell's loss is (d^2 + 2 d X) / (2 w): a lattice; losses of several cells add up, on a fine grid.
    """
    step = 2e-5
    loss = np.ones(1)
    lowest = 0
    for moved, variance in cells:
        reach = math.ceil(9 * math.sqrt(variance))
        at = np.rint((moved**2 + 2 * moved * np.arange(-reach, reach + 1)) / (2 * variance) / step).astype(int)
        law = np.zeros(at.max() - at.min() + 1)
        np.add.at(law, at - at.min(), discrete(variance, reach))
        loss, lowest = signal.fftconvolve(loss, law), lowest + at.min()
    grid = (lowest + np.arange(loss.size)) * step
    above = grid > epsilon
    return float((loss[above] * -np.expm1(epsilon - grid[above])).sum())


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 2.0, 3.0, 8.0, 20.0])
@pytest.mark.parametrize("parts", [1, 3, 10, 100])
def test_exact_accounting_is_never_above_zcdp_nor_below_continuous_noise(epsilon, delta, parts):
    rho = rho_of(epsilon, delta)
    found = gaussian_epsilon(rho, delta, rho / parts)
    assert found <= epsilon_of(rho, delta)
    assert _delta(found, math.sqrt(2 * rho)) <= delta  # more than one continuous release of that rho has
    assert found == pytest.approx(gaussian_epsilon(rho, delta, rho / parts / (1 + 1e-9)), rel=1e-6)


def test_what_is_gained_at_equal_guarantees():
    """Standard deviations of the noise, against zCDP's; many small releases at larger epsilons."""

    def factor(epsilon: float, parts: int) -> float:
        low, high = 0.5, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            rho = rho_of(epsilon, 1e-6) / middle**2
            low, high = (low, middle) if gaussian_epsilon(rho, 1e-6, rho / parts) <= epsilon else (middle, high)
        return high

    assert factor(0.1, 1) == pytest.approx(0.920, abs=0.001)
    assert factor(1.0, 1) == pytest.approx(0.940, abs=0.001)
    assert factor(1.0, 10) == pytest.approx(0.933, abs=0.001)
    assert factor(3.0, 100) == pytest.approx(0.941, abs=0.001)
    assert factor(8.0, 1) == pytest.approx(1.0)  # noise is too small: zCDP's figure is taken


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-3), (1.0, 1e-6), (4.0, 1e-4)])
@pytest.mark.parametrize("moves", [[1], [2], [1, -1], [3, 1], [1] * 15, [5, 1, 1, 1], [1, 1, 2, 2, 4, 4]], ids=str)
def test_no_split_of_a_sensitivity_over_cells_has_more_delta_than_stated(epsilon, delta, moves):
    """One release whose cells move by these integers, and the same cells as releases of their own."""
    rho = rho_of(epsilon, delta)
    variance = sum(move**2 for move in moves) / (2 * rho)
    stated = gaussian_epsilon(rho, delta)
    found = exact_delta(stated, [(move, variance) for move in moves])
    assert found <= delta * 1.001
    assert stated == epsilon_of(rho, delta) or found > 0.8 * delta  # nor is noise wasted
    prices = np.arange(1, len(moves) + 1)
    prices = prices * rho / prices.sum()
    alone = gaussian_epsilon(rho, delta, prices.max())
    cells = [(move, move**2 / (2 * price)) for move, price in zip(moves, prices, strict=True)]
    assert exact_delta(alone, cells) <= delta * 1.001


@pytest.mark.parametrize("variance", [0.3, 0.5, 1.0, 3.0, 24.0, 500.0])
@pytest.mark.parametrize("reach", [3.0, 6.0, 10.0])
def test_the_laws_of_discrete_and_rounded_noise_are_as_close_as_the_proof_says(variance, reach):
    largest = math.floor(reach * math.sqrt(variance))
    k = np.arange(largest + 1)
    log_discrete = -(k**2) / (2 * (variance + 1 / 12))
    far = np.arange(1, 400 + 40 * math.ceil(math.sqrt(variance)))
    log_discrete = log_discrete - math.log1p(2 * np.exp(-(far**2) / (2 * (variance + 1 / 12))).sum())
    log_rounded = np.log(
        np.where(
            k > 0,
            stats.norm.sf((k - 0.5) / math.sqrt(variance)) - stats.norm.sf((k + 0.5) / math.sqrt(variance)),
            special.erf(0.5 / math.sqrt(2 * variance)),
        )
    )
    s = largest**2 / variance
    bound = (s**2 / 2880 + s * (1 / 288 + 1 / 480) + 1 / 128) / variance**2 + 3 * math.exp(-2 * math.pi**2 * variance)
    assert np.abs(log_discrete - log_rounded).max() <= bound + 1e-11


def test_impossible_and_boundless_cases_fall_back_to_zcdp():
    assert gaussian_epsilon(0.0, 1e-6) == 0
    assert gaussian_epsilon(math.inf, 1e-6) == math.inf
    assert gaussian_epsilon(50.0, 1e-6) == epsilon_of(50.0, 1e-6)
