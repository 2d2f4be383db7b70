"""Intervals: textbook values without noise, and how often they hold the truth with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from scipy.optimize import minimize

from fedsynth.answers.intervals import (
    Interval,
    Z,
    by_delta,
    correlation,
    correlation_within,
    logistic,
    normal,
    quantile,
    quantile_of_rows,
    ratio,
    share,
    survival,
)

# ---------------------------------------------------------------------------------------------------------------------
# Without noise


def test_a_mean_is_its_own_with_the_standard_error_of_a_mean():
    found = ratio(600.0, 0.0, 200.0, 0.0, 4.0)
    assert (found.value, found.noise) == (3.0, 0.0)
    assert found.sampling == pytest.approx(Z * math.sqrt(4 / 200))
    assert (found.low, found.high) == pytest.approx((3 - found.sampling, 3 + found.sampling))
    assert normal(3.0, 0.0, 2.0) == Interval(3.0, 3 - 2 * Z, 3 + 2 * Z, 0.0, 2 * Z)


@pytest.mark.parametrize("variance", [0.0, 9.0])
def test_the_ends_of_a_noisy_mean_solve_fiellers_equation(variance):
    """They are the means m for which total - m records is just Z of its standard deviations from zero."""
    found = ratio(500.0, 40.0, 100.0, 12.0, variance)
    for mean in (found.low, found.high):
        assert (500 - 100 * mean) ** 2 == pytest.approx(Z**2 * (40**2 + (12 * mean) ** 2 + 100 * variance))
    assert found.low < 5 < found.high


@pytest.mark.parametrize(
    ("inside", "records", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0000, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_a_share_has_wilsons_interval(inside, records, low, high):
    """The values are those of method 3 in Newcombe (1998), Statistics in Medicine 17, 857-872, table I."""
    found = share(float(inside), 0.0, float(records - inside), 0.0)
    assert found.value == inside / records
    assert (found.low, found.high) == pytest.approx((low, high), abs=6e-5)
    assert found.noise == 0


def test_the_ends_of_a_noisy_share_are_just_so_far_from_zero():
    found = share(40.0, 9.0, 160.0, 20.0)
    for s in (found.low, found.high):
        variance = ((1 - s) * 9) ** 2 + (s * 20) ** 2 + 200 * s * (1 - s)
        assert ((1 - s) * 40 - s * 160) ** 2 == pytest.approx(Z**2 * variance)
    assert share(-30.0, 9.0, 160.0, 20.0).low == 0
    assert share(160.0, 20.0, -30.0, 9.0).high == 1


LEUKAEMIA = {
    6: (0.8571, 0.0764, 0.6197, 0.9516),
    7: (0.8067, 0.0869, 0.5631, 0.9228),
    10: (0.7529, 0.0963, 0.5032, 0.8894),
    13: (0.6902, 0.1068, 0.4316, 0.8491),
    16: (0.6275, 0.1141, 0.3675, 0.8049),
    22: (0.5378, 0.1282, 0.2678, 0.7468),
    23: (0.4482, 0.1346, 0.1881, 0.6801),
}


def test_survival_is_that_of_kaplan_and_meier_with_greenwoods_variance():
    """Remissions of leukaemia under 6-MP (Freireich et al., 1963, Blood 21, 699-716), as every textbook has them."""
    events, censored = np.zeros(36), np.zeros(36)
    for time in (6, 6, 6, 7, 10, 13, 16, 22, 23):
        events[time] += 1
    for time in (6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35):
        censored[time] += 1
    found = survival(events, censored, 0.0)
    assert len(found) == 36
    assert found[5] == Interval(1.0, 1.0, 1.0, 0.0, 0.0)
    for time, (value, error, low, high) in LEUKAEMIA.items():
        at = found[time]
        assert (at.value, at.sampling / Z, at.low, at.high) == pytest.approx((value, error, low, high), abs=6e-5)
        assert at.noise == 0


def test_survival_ends_where_too_few_are_at_risk():
    events, censored = np.full(10, 20.0), np.full(10, 30.0)
    begins = 50.0 * np.arange(10, 0, -1)
    enough = begins > 6 * 10.0 * np.sqrt(2 * np.arange(10, 0, -1))
    assert len(survival(events, censored, 10.0)) == int(enough.sum()) == 8
    assert len(survival(np.array([5.0, 5.0]), np.array([5.0, 0.0]), 0.0)) == 1  # nobody is left of the second
    assert survival(events, censored, 1000.0) == []


def test_a_quantile_has_woodruffs_interval():
    """Its ends are those cell ends at which the share below is still, or just, clear of the level."""
    counts, ends = np.array([10.0, 20, 30, 25, 10, 5]), np.arange(7.0)
    found = quantile(counts, 0.0, ends, 0.5)
    assert found.value == pytest.approx(2 + 20 / 30)
    # 50 -+ 1.96 * 5 = 40.2 and 59.8: 30 rows lie below 2, which is clear of it, and 60 below 3.
    assert (found.low, found.high) == (2.0, 3.0)
    assert (quantile(counts, 0.0, ends, 0.05).low, quantile(counts, 0.0, ends, 0.95).high) == (0.0, 6.0)
    # at 0.9: 90 -+ 5.88, and 95 lie below 5
    assert (quantile(counts, 0.0, ends, 0.9).low, quantile(counts, 0.0, ends, 0.9).high) == (3.0, 6.0)


def test_the_quantile_of_the_counted_rows_is_known_but_for_noise():
    counts, ends = np.array([10.0, 20, 30, 25, 10, 5]), np.arange(7.0)
    assert quantile_of_rows(counts, 0.0, ends, 0.5, 2.0) == (2.0, 3.0)
    assert quantile_of_rows(counts, 0.0, ends, 0.6, 2.0) == (3.0, 3.0)
    # half of six cells' noise below and above the end at 2: 20 rows off, of 10 sqrt(6) / 2 = 12.2
    assert quantile_of_rows(counts, 10.0, ends, 0.5, 1.6) == (2.0, 4.0)
    assert quantile_of_rows(counts, 10.0, ends, 0.5, 1.7) == (1.0, 4.0)


def test_bounds_of_a_correlation_by_noise_are_not_symmetrical_near_1():
    """Half of the interval that is cut at 1 would not reach as far down as the noise does."""
    sums, stds = np.array([1000.0, 960.0, 1000.0]), np.full(3, 50.0)
    found = correlation(moments, sums, stds, 1e9)
    low, high = correlation_within(moments, sums, stds, Z)
    assert (found.value, high) == (0.96, 1.0)
    assert found.value - low > 1.2 * found.noise
    beyond = correlation_within(moments, np.array([1000.0, 1200.0, 1000.0]), stds, Z)
    assert beyond[1] == 1.0
    assert beyond[0] < 0.95  # a point at 1 would say more than is known
    exact = correlation(moments, sums, np.zeros(3), 103)
    assert exact.noise == 0
    assert exact.sampling == pytest.approx(Z * (1 - 0.96**2) / 10, rel=0.2)


DESIGN = np.array([[1, a, b, c] for a in (0, 1) for b, c in ((0, 0), (1, 0), (0, 1))], dtype=float)
COEFFICIENTS = np.array([-1.0, 0.8, -0.5, 0.3])


def test_a_logistic_fit_is_the_optimum_of_the_likelihood():
    rng = np.random.default_rng(0)
    records = rng.integers(80, 300, len(DESIGN)).astype(float)
    positive = rng.binomial(records.astype(int), 1 / (1 + np.exp(-DESIGN @ COEFFICIENTS))).astype(float)

    def loss(beta: np.ndarray) -> float:
        scores = DESIGN @ beta
        return float((records * np.logaddexp(0, scores)).sum() - positive @ scores)

    best = minimize(loss, np.zeros(4), method="BFGS", options={"gtol": 1e-8})
    fit = logistic(DESIGN, positive, records - positive, 0.0)
    assert fit.clear
    np.testing.assert_allclose(fit.coefficients, best.x, atol=1e-6)
    steps = 1e-3 * np.eye(4)
    hessian = [
        [
            (loss(best.x + a + b) - loss(best.x + a - b) - loss(best.x - a + b) + loss(best.x - a - b)) / 4e-6
            for b in steps
        ]
        for a in steps
    ]
    np.testing.assert_allclose(fit.sampling, np.sqrt(np.diag(np.linalg.inv(hessian))), rtol=1e-3)
    assert not fit.noise.any()


def test_a_logistic_fit_without_enough_rows_or_end_is_not_clear():
    few = np.full(len(DESIGN), 3.0)
    assert not logistic(DESIGN, few, few, 10.0).clear
    assert not logistic(DESIGN, 100 * few, 0 * few, 0.1).clear  # all alike: the odds have no maximum
    assert not logistic(DESIGN, -few, -few, 0.1).clear
    assert logistic(DESIGN, 100 * few, 100 * few, 1.0).clear


# ---------------------------------------------------------------------------------------------------------------------
# With noise: rows are drawn, noise is added, and an interval holds the truth in 95 of 100 cases

RUNS = 2000
Case = Callable[[np.random.Generator, float], tuple[Interval, float]]
"""One draw of rows and noise: the interval, computed as if the noise were ``factor`` times as large, and the truth."""


def of_normal(rng: np.random.Generator, factor: float) -> tuple[Interval, float]:
    return normal(700 + rng.normal(0, 20), factor * 20), 700.0


def of_mean(rng: np.random.Generator, factor: float) -> tuple[Interval, float]:
    values = rng.gamma(2, 1.5, rng.poisson(400))
    records, total = len(values) + rng.normal(0, 25), values.sum() + rng.normal(0, 90)
    variance = float(np.mean(values**2) - values.mean() ** 2)
    return ratio(total, factor * 90, records, factor * 25, variance), 3.0


def of_share(rng: np.random.Generator, factor: float) -> tuple[Interval, float]:
    inside = rng.binomial(600, 0.15)
    noisy = (inside + rng.normal(0, 25), 600 - inside + rng.normal(0, 40))
    return share(noisy[0], factor * 25, noisy[1], factor * 40), 0.15


def of_quantile(rng: np.random.Generator, factor: float) -> tuple[Interval, float]:
    """A median beside which the cells are narrow, so that hardly anything is added for them."""
    edges = np.concatenate([[0, 0.2, 0.3], np.linspace(0.3, 0.7, 400)[1:-1], [0.7, 0.8, 1]])
    counts = np.histogram(rng.random(4000), edges)[0] + rng.normal(0, 10, len(edges) - 1)
    return quantile(counts, factor * 10, edges, 0.5), 0.5


def of_survival(rng: np.random.Generator, factor: float) -> tuple[Interval, float]:
    """A share of .05 dies, and one of .03 leaves, in each of ten intervals."""
    records, events, censored = 4000, [], []
    for _ in range(10):
        events.append(rng.binomial(records, 0.05))
        censored.append(rng.binomial(records - events[-1], 0.03) if len(events) < 10 else records - events[-1])
        records -= events[-1] + censored[-1]
    noise = rng.normal(0, 25, (2, 10))
    return survival(np.array(events) + noise[0], np.array(censored) + noise[1], factor * 25)[7], 0.95**8


def of_delta(rng: np.random.Generator, factor: float) -> tuple[Interval, float]:
    """The logarithm of a ratio of two sums."""
    sums = np.array([900.0, 400.0]) + rng.normal(0, [30, 20])
    (found,) = by_delta(
        lambda of: np.array([math.log(of[0] / of[1])]), sums, factor * np.array([30.0, 20.0]), np.zeros(1)
    )
    return found, math.log(900 / 400)


def of_logistic(rng: np.random.Generator, factor: float, at: int = 1) -> tuple[Interval, float]:
    records = np.full(len(DESIGN), 500)
    positive = rng.binomial(records, 1 / (1 + np.exp(-DESIGN @ COEFFICIENTS)))
    noise = rng.normal(0, 20, (2, len(DESIGN)))
    fit = logistic(DESIGN, positive + noise[0], records - positive + noise[1], factor * 20)
    assert fit.clear
    return normal(fit.coefficients[at], fit.noise[at], fit.sampling[at]), COEFFICIENTS[at]


def of_correlation(rng: np.random.Generator, factor: float) -> tuple[Interval, float]:
    """One of .9, so noisy that many estimates lie beyond 1; without the mean, which takes no part."""
    root = np.linalg.cholesky([[1.0, 0.9], [0.9, 1.0]])
    bartlett = np.array([[math.sqrt(rng.chisquare(4000)), 0.0], [rng.normal(), math.sqrt(rng.chisquare(3999))]])
    products = (root @ bartlett) @ (root @ bartlett).T
    sums = np.array([products[0, 0], products[0, 1], products[1, 1]]) + rng.normal(0, 250, 3)
    return correlation(moments, sums, np.full(3, factor * 250.0), 4000), 0.9


def moments(sums: np.ndarray) -> np.ndarray:
    return np.array([sums[1], math.sqrt(max(sums[0] * sums[2], 1e-300))])


CASES: dict[str, Case] = {
    "normal": of_normal,
    "mean": of_mean,
    "share": of_share,
    "quantile": of_quantile,
    "survival": of_survival,
    "delta": of_delta,
    "correlation": of_correlation,
    **{f"logistic {at}": partial(of_logistic, at=at) for at in range(4)},
}


def coverage(case: Case, factor: float) -> float:
    rng = np.random.default_rng(0)
    found = [case(rng, factor) for _ in range(RUNS)]
    return sum(interval.low <= truth <= interval.high for interval, truth in found) / RUNS


@pytest.mark.parametrize("case", CASES)
def test_intervals_hold_the_truth_in_95_of_100_cases(case):
    """Within four standard errors of 2,000 runs; with half of the noise declared they would not."""
    assert 0.93 < coverage(CASES[case], 1.0) < 0.97
    assert coverage(CASES[case], 0.5) < 0.88


@pytest.mark.parametrize("case", CASES)
def test_an_interval_holds_its_value_and_its_parts_are_no_wider_than_the_whole(case):
    rng = np.random.default_rng(1)
    for _ in range(50):
        of, _ = CASES[case](rng, 1.0)
        assert of.low <= of.value <= of.high
        assert 0 < of.noise <= (of.high - of.low) / 2 * 1.1
        assert 0 <= of.sampling <= (of.high - of.low) / 2 * 1.1
