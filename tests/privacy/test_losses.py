"""Privacy loss distributions: held beside another accountant, beside whole laws, and beside what they bound."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binom, norm

from fedsynth.privacy.cost import Cost, Norms, Unit
from fedsynth.privacy.gaussian import _delta, gaussian_epsilon
from fedsynth.privacy.losses import LEAST_STEP, SampledSteps, fixed_epsilon, sampled_steps
from fedsynth.privacy.release import SampledGaussian

RUNS = [
    SampledSteps(0.01, 0.7, 1, 100),
    SampledSteps(0.01, 4.0, 1, 4096),
    SampledSteps(0.05, 1.0, 1, 200),
    SampledSteps(0.3, 2.0, 1, 10),
    SampledSteps(0.9, 20.0, 1, 50),
    SampledSteps(0.05, 2.0, 3, 100),
    SampledSteps(0.2, 8.0, 3, 300),
    SampledSteps(0.3, 1.0, 2, 1),
    SampledSteps(0.01, 1.0, 10, 50),
]
STEPS = st.builds(
    SampledSteps,
    st.floats(math.log(1e-4), 0).map(math.exp),
    st.floats(math.log(0.5), math.log(50)).map(math.exp),
    st.integers(1, 5),
    st.integers(1, 4096),
)


def epsilon(*steps: SampledSteps, delta: float = 1e-6, rho: float = 0.0, largest: float = 0.0) -> float:
    return fixed_epsilon(delta, rho, largest, steps)


def renyi(steps: SampledSteps, delta: float, rho: float = 0.0) -> float:
    """Return what the sites' account says of the same steps."""
    cost = SampledGaussian(steps.rate, steps.multiplier, 1).cost(Norms(1, 1, steps.rows)) * steps.steps
    return (cost + Cost(math.inf, rho)).at(delta)


# ---------------------------------------------------------------------------------------------------------------------
# Another accountant


def drawn_rows(steps: SampledSteps) -> list[float]:
    """Return the probability of each number of a person's rows in a sample."""
    return [float(binom.pmf(drawn, steps.rows, steps.rate)) for drawn in range(steps.rows + 1)]


def theirs(steps: SampledSteps, interval: float, **kind: Any) -> Any:
    from dp_accounting.pld import privacy_loss_distribution

    one = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        steps.multiplier * steps.rows,
        [float(drawn) for drawn in range(steps.rows + 1)],
        drawn_rows(steps),
        value_discretization_interval=interval,
        **kind,
    )
    return one.self_compose(steps.steps)


@pytest.mark.parametrize("steps", RUNS, ids=str)
def test_another_accountant_finds_the_same(steps):
    other = theirs(steps, 1e-3 if steps.steps < 1000 else 1e-4)
    for delta in (1e-5, 1e-9):
        found = epsilon(steps, delta=delta)
        assert found == pytest.approx(other.get_epsilon_for_delta(delta), rel=2e-3)
        assert found <= renyi(steps, delta)


@pytest.mark.parametrize("steps", [RUNS[2], RUNS[3], RUNS[5]], ids=str)
def test_a_lower_bound_stays_below(steps):
    optimistic = theirs(steps, 1e-3, pessimistic_estimate=False, use_connect_dots=False)
    assert optimistic.get_epsilon_for_delta(1e-5) <= epsilon(steps, delta=1e-5)


def test_other_noise_of_the_run_is_composed_with_its_steps():
    from dp_accounting.pld import privacy_loss_distribution

    steps, rho = SampledSteps(0.1, 6.0, 1, 200), 0.02
    gaussian = privacy_loss_distribution.from_gaussian_mechanism(
        1 / math.sqrt(2 * rho), value_discretization_interval=1e-3
    )
    both = gaussian.compose(theirs(steps, 1e-3)).get_epsilon_for_delta(1e-6)
    found = epsilon(steps, rho=rho, largest=1e-3)
    assert both <= found <= 1.002 * both
    assert found < renyi(steps, 1e-6, rho)
    two = epsilon(SampledSteps(0.1, 6.0, 1, 120), SampledSteps(0.1, 6.0, 1, 80))
    assert two == pytest.approx(epsilon(steps), rel=1e-3)


# ---------------------------------------------------------------------------------------------------------------------
# Whole laws


def hockey(first: NDArray[np.float64], second: NDArray[np.float64], at: float) -> float:
    """Return the most by which the first law exceeds exp(``at``) times the second."""
    return float(np.maximum(first - math.exp(at) * second, 0).sum())


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-10])
@pytest.mark.parametrize(
    "steps", [SampledSteps(0.2, 0.5, 1, 1), SampledSteps(0.05, 1.0, 3, 1), SampledSteps(0.7, 3.0, 5, 1)], ids=str
)
def test_integer_noise_has_no_more_delta_than_stated(steps, delta):
    """One step in the coarsest integers that are allowed, number by number, with rows added and removed."""
    found = epsilon(steps, delta=delta)
    sigma = steps.multiplier * steps.rows * LEAST_STEP
    reach = math.ceil(9 * sigma + steps.rows * LEAST_STEP)
    at = np.arange(-reach, reach + 1)
    total = np.exp(-(at**2) / (2 * sigma**2)).sum()

    def law(drawn: int) -> NDArray[np.float64]:
        moved: NDArray[np.float64] = np.exp(-((at - drawn * LEAST_STEP) ** 2) / (2 * sigma**2)) / total
        return moved

    first, second = np.zeros(at.size), law(0)
    for drawn, weight in enumerate(drawn_rows(steps)):
        first += weight * law(drawn)
    deltas = hockey(first, second, found), hockey(second, first, found)
    assert 0.98 * delta <= max(deltas) <= delta


def beyond_two_steps(rate: float, multiplier: float, at: float, *, reverse: bool) -> float:
    """Return the exact delta at the epsilon ``at`` of two steps for one row, the second in closed form."""
    shift = 1 / multiplier
    line = np.linspace(-38, 38 + shift, 200_001)
    loss = np.logaddexp(math.log1p(-rate), math.log(rate) + shift * line - shift**2 / 2)
    sign, density = (-1, norm.pdf(line)) if reverse else (1, norm.pdf(line) * np.exp(loss))
    rest = at - sign * loss
    with np.errstate(all="ignore"):  # the second loss exceeds the rest beyond ``edge``, on one side
        odds = (np.exp(sign * rest) - (1 - rate)) / rate
        edge = np.where(odds > 0, (np.log(np.maximum(odds, 1e-320)) + shift**2 / 2) / shift, -np.inf)
        without = norm.cdf(-sign * edge)
        mixed = (1 - rate) * without + rate * norm.cdf(-sign * (edge - shift))
        first, second = (without, mixed) if reverse else (mixed, without)
        more = first - np.exp(rest) * second
    if reverse:
        more = np.where(np.isneginf(edge), 0, more)
    return float((density * np.maximum(more, 0)).sum() * (line[1] - line[0]))


@pytest.mark.parametrize("delta", [1e-150, 1e-40, 1e-15, 1e-6, 0.3, 0.9])
@pytest.mark.parametrize(
    ("rate", "multiplier"), [(1e-4, 1.0), (1e-4, 0.3), (1e-3, 8.0), (0.01, 1.0), (0.5, 2.0), (0.9999, 0.5)]
)
def test_two_steps_have_no_more_delta_than_stated_however_small_or_large_it_is(rate, multiplier, delta):
    found = epsilon(SampledSteps(rate, multiplier, 1, 2), delta=delta)
    for reverse in (False, True):
        assert beyond_two_steps(rate, multiplier, found, reverse=reverse) <= delta


def normal(at: NDArray[np.float64], centre: NDArray[np.float64]) -> NDArray[np.float64]:
    density: NDArray[np.float64] = np.prod(norm.pdf(at - centre), axis=-1)
    return density


KINK = 5e-4  # error of sums over this plane of functions with a kink
PLANE = np.stack(np.meshgrid(*[np.arange(-8, 8, 0.1)] * 2), axis=-1)


@given(st.integers(0, 2**32 - 1), st.floats(0.05, 0.95), st.integers(1, 3), st.floats(0.5, 3))
@settings(max_examples=6, deadline=None)
def test_rows_that_pull_in_different_directions_tell_less_than_rows_that_pull_in_one(seed, rate, rows, multiplier):
    """Each set of drawn rows moves the sum anyhow, by its number of rows at most; the noise is normal, in the plane."""
    rng = np.random.default_rng(seed)
    second = normal(PLANE, np.zeros(2)) * 0.1**2
    first, line = np.zeros_like(second), np.zeros_like(second)
    for drawn in range(2**rows):
        many = drawn.bit_count()
        weight = rate**many * (1 - rate) ** (rows - many)
        angle, length = rng.uniform(0, 2 * math.pi), many * rng.choice([1.0, rng.uniform()]) / (multiplier * rows)
        first += weight * normal(PLANE, length * np.array([math.cos(angle), math.sin(angle)])) * 0.1**2
        line += weight * normal(PLANE, np.array([many / (multiplier * rows), 0.0])) * 0.1**2
    for at in (-1.0, -0.3, 0.0, 0.2, 0.7, 1.5):
        assert hockey(first, second, at) <= hockey(line, second, at) + KINK
        assert hockey(second, first, at) <= hockey(second, line, at) + KINK


@given(st.floats(0.05, 0.95), st.floats(0.3, 3))
@settings(max_examples=6, deadline=None)
def test_two_sums_with_one_site_each_tell_less_than_one_sum_with_both(rate, multiplier):
    second = normal(PLANE, np.zeros(2)) * 0.1**2
    apart, together = np.zeros_like(second), np.zeros_like(second)
    for here in (0, 1):
        for there in (0, 1):
            weight = math.prod(rate if one else 1 - rate for one in (here, there))
            apart += weight * normal(PLANE, np.array([here, there]) / (2 * multiplier)) * 0.1**2
            together += weight * normal(PLANE, np.array([here + there, 0.0]) / (2 * multiplier)) * 0.1**2
    for at in (-1.0, -0.3, 0.0, 0.2, 0.7, 1.5):
        assert hockey(apart, second, at) <= hockey(together, second, at) + KINK
        assert hockey(second, apart, at) <= hockey(second, together, at) + KINK


def test_without_sampling_steps_are_gaussian_noise():
    for rows in (1, 4):
        steps = SampledSteps(1.0, 10.0, rows, 25)  # one normal release of shift 1/2
        found = epsilon(steps)
        assert 0.99e-6 <= _delta(found, 0.5) <= 1e-6
    alone = gaussian_epsilon(0.125, 1e-6, 0.005)  # its noise may be in few integers
    assert found == pytest.approx(alone, rel=5e-3)
    assert (
        fixed_epsilon(1e-6, 0.125, 0.005) == fixed_epsilon(1e-6, 0.125, 0.005, (SampledSteps(0.1, 1, 1, 0),)) == alone
    )


# ---------------------------------------------------------------------------------------------------------------------
# What must hold for all


@given(STEPS, st.floats(-12, -2), st.sampled_from([0.0, 1e-3, 0.1]))
@example(SampledSteps(math.exp(-5), 1.0, 1, 1), -2.0, 0.0)  # delta alone covers what it tells
@settings(max_examples=6, deadline=None)
def test_more_of_anything_never_costs_less(steps, log_delta, rho):
    """Up to the grid of losses, and never more than the sites' account says."""
    delta, least = 10**log_delta, 0.999
    terms: dict[str, Any] = {"delta": delta, "rho": rho, "largest": rho / 10}
    found = epsilon(steps, **terms)
    assert 0 <= found <= renyi(steps, delta, rho) * 1.001 + 1e-4
    dearer = [
        steps._replace(rate=min(1.0, steps.rate * 1.5)),
        steps._replace(multiplier=steps.multiplier / 1.2),
        steps._replace(steps=steps.steps + 5),
    ]
    for one in dearer:
        assert epsilon(one, **terms) >= least * found - 1e-6
    assert epsilon(steps, **{**terms, "delta": delta / 2}) >= least * found
    assert epsilon(steps, **{**terms, "rho": rho + 0.01, "largest": 0.01}) >= least * found
    fewer = steps._replace(rows=steps.rows + 1, multiplier=steps.multiplier * steps.rows / (steps.rows + 1))
    assert epsilon(fewer, **terms) >= least * found - 1e-6  # one row more, of the same size, under the same noise


def test_many_rows_are_rounded_up():
    exactly = theirs(SampledSteps(0.2, 10.0, 100, 300), 1e-3).get_epsilon_for_delta(1e-6)
    assert exactly <= epsilon(SampledSteps(0.2, 10.0, 100, 300)) <= 1.05 * exactly
    all_at_once = epsilon(SampledSteps(1 - 0.999**5000, 10.0, 1, 10))
    assert epsilon(SampledSteps(0.001, 10.0, 5000, 10)) == pytest.approx(all_at_once, rel=1e-3)


def test_rare_steps_of_little_noise_lose_at_most_what_a_missing_row_tells():
    """Without a row that is rarely drawn, losses are bounded; with it they are not."""
    steps = SampledSteps(3e-4, 0.5, 1, 2)
    for delta in (1e-6, 1e-12):
        assert epsilon(steps, delta=delta) == pytest.approx(theirs(steps, 1e-3).get_epsilon_for_delta(delta), rel=2e-3)


def test_what_no_bound_covers_is_infinite():
    steps = SampledSteps(0.1, 2.0, 1, 10)
    assert fixed_epsilon(0.0, 0.0, 0.0, (steps,)) == math.inf
    assert fixed_epsilon(1e-6, math.inf, 0.1, (steps,)) == math.inf
    assert fixed_epsilon(1e-6, 5.0, 5.0, (steps,)) == math.inf
    assert epsilon(SampledSteps(1.0, 0.3, 1, 2**22)) > 1e6
    assert 1e-9 < epsilon(SampledSteps(1e-4, 1e4, 1, 1), delta=1e-12) < 1e-6
    assert epsilon(steps, delta=1e-250) == math.inf


def test_the_sums_that_a_person_is_in():
    release = SampledGaussian(0.1, 2.0, 4)
    assert sampled_steps(release, Unit(3, 1), 10, pooled=True) == SampledSteps(0.1, 2.0, 3, 40)
    assert sampled_steps(release, Unit(3, 1), 10, pooled=False) == SampledSteps(0.1, 2.0, 3, 40)
    assert sampled_steps(release, Unit(3, 2), 10, pooled=False) == SampledSteps(0.1, 2.0, 3, 80)
    assert sampled_steps(release, Unit(3, 2), 10, pooled=True) == SampledSteps(0.1, 2.0, 6, 40)
    assert sampled_steps(release, Unit(1, 3), 10, pooled=True) == SampledSteps(0.1, 2.0, 3, 60)
