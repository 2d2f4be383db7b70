"""The bounds hold the true thresholds, and words in doubt are refined to the cell that the true law says."""

from bisect import bisect_right
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from tests.privacy.test_noise import Script

from fedsynth.privacy.inversion import (
    DIGITS,
    GaussianMagnitude,
    Geometric,
    Law,
    cumulative_bounds,
    decide,
    exp_minus,
    table,
)

EXACT = Context(prec=150)
ONES = 2**64 - 1


def exact_exp(x: Fraction) -> Fraction:
    """exp(x) to 145 digits, independently of the code under test."""
    quotient = EXACT.divide(Decimal(x.numerator), Decimal(x.denominator))
    return Fraction(EXACT.exp(quotient))


def gaussian_weight(sigma: float) -> Callable[[int], Fraction]:
    return lambda k: (2 if k else 1) * exact_exp(-Fraction(k * k) / (2 * Fraction(sigma) ** 2))


def geometric_weight(scale: float, step: int) -> Callable[[int], Fraction]:
    return lambda k: exact_exp(-k * step / Fraction(scale))


# A law, its weights computed one by one, and how many of them leave nothing within 10^-110
CASES: list[tuple[Law, Callable[[int], Fraction], int]] = [
    (GaussianMagnitude(0.3), gaussian_weight(0.3), 10),
    (GaussianMagnitude(1.0), gaussian_weight(1.0), 24),
    (GaussianMagnitude(20.9), gaussian_weight(20.9), 480),
    (Geometric(1.3, 1, None), geometric_weight(1.3, 1), 340),
    (Geometric(700.0, 16, 16), geometric_weight(700.0, 16), 16),
]
NAMES = [repr(case[0]) for case in CASES]


@cache
def thresholds(weight: Callable[[int], Fraction], cells: int) -> list[Fraction]:
    running, total = [], Fraction(0)
    for k in range(cells):
        total += weight(k)
        running.append(total)
    return [value / total for value in running]


@pytest.mark.parametrize(("law", "weight", "cells"), CASES, ids=NAMES)
@pytest.mark.parametrize("length", [DIGITS, DIGITS + 128])
def test_bounds_hold_the_true_thresholds_tightly(law, weight, cells, length):
    low, high = cumulative_bounds(law, length)
    true = thresholds(weight, cells)
    slack = Fraction(2**length, 10**110)
    tail = 0 if law.finite else 1
    for j in range(len(low) - tail):
        exact = (true[j] if j < cells else 1) * 2**length
        assert low[j] - slack <= exact <= high[j] + slack
        assert high[j] - low[j] <= 2
    assert high[-1] == 2**length
    assert low[-1] >= 2**length - tail


@pytest.mark.parametrize(("law", "weight", "cells"), CASES, ids=NAMES)
def test_ratios_are_rounded_outwards(law, weight, cells):
    width = 20  # so coarse that rounding either way would show
    for k, (low, high) in enumerate(law.ratios(14, width)):
        assert low <= weight(k + 1) / weight(k) * 2**width <= high


@pytest.mark.parametrize(
    "law",
    [
        GaussianMagnitude(1e-300),
        GaussianMagnitude(1024.0),
        Geometric(5e-324, 1, None),
        Geometric(256.0, 1, None),
        Geometric(2.0**40, 1, 1024),
        Geometric(2.0**40, 2**40, None),
    ],
    ids=repr,
)
def test_extreme_parameters_leave_little_doubt(law):
    lookup = table(law)
    assert (np.diff(lookup.low) >= 0).all()
    assert (np.diff(lookup.high) >= 0).all()
    assert (lookup.high - lookup.low).max() <= 3
    assert lookup.low[-1] >= 2**DIGITS - 2


@pytest.mark.parametrize(("law", "weight", "cells"), CASES, ids=NAMES)
def test_a_word_on_a_threshold_is_decided_by_the_next_digits(law, weight, cells):
    true = thresholds(weight, cells)
    for j in range(0, min(len(true) - 1, 60), 7):
        first = int(true[j] * 2**DIGITS)
        following = int(true[j] * 2 ** (DIGITS + 64)) - (first << 64)
        if not 8 < following < ONES - 8 or true[j + 1] - true[j] < Fraction(1, 2**60):
            continue
        words = np.array([first, first], dtype=np.int64)
        assert table(law).cells(words, Script(following - 8, following + 8).words).tolist() == [j, j + 1]


def test_doubt_that_lasts_draws_a_third_word():
    true = thresholds(gaussian_weight(1.0), 24)
    digits = int(true[1] * 2 ** (DIGITS + 128))
    words = [digits >> 128, (digits >> 64) & ONES, digits & ONES]
    below = np.array(words[:1], dtype=np.int64)
    assert table(GaussianMagnitude(1.0)).cells(below, Script(words[1], words[2] - 8).words).tolist() == [1]
    assert table(GaussianMagnitude(1.0)).cells(below, Script(words[1], words[2] + 8).words).tolist() == [2]


@pytest.mark.parametrize(("law", "weight", "cells"), CASES[:-1], ids=NAMES[:-1])
@pytest.mark.parametrize("following", [[0], [2**63], [ONES - 2**10], [ONES, 2**63]])
def test_the_last_cell_refines_into_the_infinite_tail(law, weight, cells, following):
    word = 2**DIGITS - 1
    uniform = Fraction(word, 2**DIGITS)
    for i, extra in enumerate(following, start=1):
        uniform += Fraction(extra, 2 ** (DIGITS + 64 * i))
    expected = bisect_right(thresholds(weight, cells), uniform)
    found = table(law).cells(np.array([word], dtype=np.int64), Script(*following).words)
    assert found.tolist() == [expected]
    assert expected >= bisect_right(cumulative_bounds(law, DIGITS)[0], word - 1)  # in the tail indeed


@pytest.mark.parametrize("law", [GaussianMagnitude(20.9), Geometric(50.0, 1, None)])
def test_look_up_by_guide_is_plain_bisection(law):
    low, high = cumulative_bounds(law, DIGITS)
    rng = np.random.default_rng(5)
    near = [min(bound + shift, 2**DIGITS - 1) for bound in low[:-1] for shift in (-1, 3)]
    words = np.concatenate([rng.integers(0, 2**DIGITS, 20_000), np.array(near), [0]])
    clear = np.array([bisect_right(high, word) == bisect_right(low, word) for word in words.tolist()])
    assert clear.mean() > 0.95
    found = table(law).cells(words[clear], Script().words)
    assert found.tolist() == [bisect_right(high, word) for word in words[clear].tolist()]


@pytest.mark.parametrize("x", [0, Fraction(1, 10**30), Fraction(1, 3), 41, Fraction(187, 2), 188, 189, 10**6])
def test_exp_minus_encloses(x):
    low, high = exp_minus(Fraction(x), 188)
    exact = exact_exp(-Fraction(x)) * 2**188
    assert low <= exact <= high
    assert high - low <= 3


def test_decide_is_uniform_between_equal_cells():
    def halves(length: int) -> tuple[list[int], list[int]]:
        return [2 ** (length - 1), 2**length], [2 ** (length - 1), 2**length]

    assert decide(2 ** (DIGITS - 1) - 1, halves, Script().words) == 0
    assert decide(2 ** (DIGITS - 1), halves, Script().words) == 1
