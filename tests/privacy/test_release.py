from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.privacy.release import (
    Budget,
    Exact,
    Exponential,
    Gaussian,
    Laplace,
    Public,
    Release,
    Reserved,
    Sensitivity,
    Steered,
    epsilon_of,
    release_from_json,
    release_to_json,
    rho_of,
)

EVERY: list[Release] = [
    Gaussian(0.1), Laplace(0.5), Exponential(0.01), Steered(0.1, 0.2, 3), Reserved(1.0), Public(), Exact()
]  # fmt: skip


@pytest.mark.parametrize(("epsilon", "rho"), [(0.5, 0.008506), (1, 0.030557), (3, 0.22425), (5, 0.55097)])
def test_known_conversions(epsilon, rho):
    assert rho_of(epsilon, 1e-5) == pytest.approx(rho, rel=1e-4)


@given(st.floats(1e-4, 20), st.floats(-12, -2))
@settings(max_examples=40, deadline=None)
def test_conversion_is_inverted_from_below_and_is_tight(epsilon, log_delta):
    delta = 10**log_delta
    rho = rho_of(epsilon, delta)
    assert epsilon_of(rho, delta) <= epsilon
    assert epsilon_of(rho * 1.0001, delta) > epsilon
    # Never better than the best possible for a Gaussian, never worse than the textbook conversion.
    assert epsilon_of(rho, delta) <= rho + 2 * math.sqrt(rho * math.log(1 / delta)) + 1e-12


@pytest.mark.parametrize(("rho", "delta"), [(0.001, 1e-5), (0.03, 1e-5), (0.5, 1e-6), (3.0, 1e-9)])
def test_a_second_accountant_agrees(rho, delta):
    # dp_accounting's Renyi accountant composes rho / n Gaussian events n times; orders are dense, so it
    # comes close.
    from dp_accounting import GaussianDpEvent
    from dp_accounting.rdp import RdpAccountant

    orders = 1 + np.logspace(-3, 6, 4000)
    accountant = RdpAccountant(orders=list(orders))
    accountant.compose(GaussianDpEvent(1 / math.sqrt(2 * rho / 7)), 7)
    assert epsilon_of(rho, delta) == pytest.approx(accountant.get_epsilon(delta), rel=1e-3)


def test_the_privacy_loss_distribution_never_exceeds_our_bound():
    # The exact privacy loss of a Gaussian at the same rho lies below; the gap is the price of one currency
    # for all releases.
    from dp_accounting import GaussianDpEvent
    from dp_accounting.pld import PLDAccountant

    for rho in (0.01, 0.1, 1.0):
        exact = PLDAccountant()
        exact.compose(GaussianDpEvent(1 / math.sqrt(2 * rho)))
        assert 0.7 * epsilon_of(rho, 1e-6) < exact.get_epsilon(1e-6) <= epsilon_of(rho, 1e-6) * (1 + 1e-4)


def test_costs_are_additive():
    assert Steered(0.1, 0.2, 1).rho == pytest.approx(0.1)
    assert Steered(0.1, 0.2, 4).rho == pytest.approx(4 * 0.1 + 3 * 0.2)
    assert Laplace(0.4).rho == pytest.approx(0.08)
    assert Exponential(0.02).epsilon == pytest.approx(0.4)
    assert Exponential(0.02).epsilon ** 2 / 8 <= 0.02


def test_noise_is_never_smaller_than_paid_for():
    for rho in np.random.default_rng(0).random(200):
        sigma = Gaussian(float(rho)).sigma(Sensitivity(l1=3, l2=math.sqrt(3)))
        assert 3 / (2 * sigma**2) <= rho
    assert Laplace(0.3).scale(Sensitivity(l1=2, l2=2)) * 0.3 >= 2


@pytest.mark.parametrize("release", EVERY, ids=lambda r: type(r).__name__)
def test_json_round_trip(release):
    assert release_from_json(release_to_json(release)) == release


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(0, 1e-5), (-1, 1e-5), (math.nan, 1e-5), (math.inf, 1e-5), (1, 0), (1, 1), (1, -1), (1, math.nan)],
)
def test_a_budget_that_guarantees_nothing_is_refused(epsilon, delta):
    with pytest.raises(ValueError, match=r"epsilon must be|delta must lie"):
        Budget(epsilon, delta)


@pytest.mark.parametrize(
    "make", [Gaussian, Laplace, Exponential, Reserved, lambda r: Steered(r, 1, 2), lambda r: Steered(1, r, 2)]
)
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_a_release_that_costs_nothing_is_refused(make, value):
    with pytest.raises(ValueError, match="positive number"):
        make(value)


def test_epsilon_and_delta_are_never_defaulted():
    with pytest.raises(TypeError):
        Budget()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Budget(1.0)  # type: ignore[call-arg]


def test_no_budget_no_cost():
    assert epsilon_of(0, 1e-6) == 0
    assert epsilon_of(math.inf, 1e-6) == math.inf
