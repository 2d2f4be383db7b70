"""Releases as data: what they cost, what noise follows, and that only releases with a bounded price are read."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.errors import InvalidParameter
from fedsynth.privacy.cost import ORDERS, Budget, Cost, Norms
from fedsynth.privacy.release import (
    SMALLEST_RHO,
    AdaptiveSelection,
    Deposit,
    Exact,
    Exponential,
    Gaussian,
    Laplace,
    Public,
    Release,
    SampledGaussian,
    deposit_for,
    draw_for,
    kind_of,
    noise_for,
    sampled_for,
)

EVERY: dict[str, Release] = {
    "gaussian": Gaussian(0.1),
    "laplace": Laplace(0.5),
    "exponential": Exponential(0.01),
    "adaptive": AdaptiveSelection(Exponential(0.1), Gaussian(0.2), 3),
    "deposit": Deposit(rho=1.0),
    "public": Public(),
    "exact": Exact(),
}


@pytest.mark.parametrize("kind", EVERY)
def test_a_release_comes_back_from_the_wire(kind):
    release = EVERY[kind]
    assert kind_of(release) == kind
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(release), type=Release) == release
    assert msgspec.convert(msgspec.to_builtins(release), Release) == release


@pytest.mark.parametrize("price", [0.0, -0.0, -1.0, 1e-7, 1e13, math.nan, math.inf, -math.inf, "1", None, True])
@pytest.mark.parametrize(
    "fields",
    [
        {"type": "gaussian", "rho": ...},
        {"type": "laplace", "epsilon": ...},
        {"type": "exponential", "rho": ...},
        {"type": "adaptive", "pick": {"type": "exponential", "rho": ...}, "look": {"type": "exact"}, "steps": 2},
        {"type": "adaptive", "pick": {"type": "exact"}, "look": {"type": "laplace", "epsilon": ...}, "steps": 2},
    ],
    ids=lambda fields: fields["type"],
)
def test_a_price_out_of_range_is_not_read(fields, price):
    def put(value: object) -> object:
        if isinstance(value, dict):
            return {key: put(item) for key, item in value.items()}
        return price if value is ... else value

    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(put(fields), Release)
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(put(fields)), type=Release)


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "gaussian"},
        {"type": "gaussian", "rho": 0.1, "sigma": 0.0},
        {"type": "none"},
        {"rho": 0.1},
        {"type": "public", "rho": 0.0},
        {"type": "adaptive", "pick": {"type": "exact"}, "look": {"type": "exact"}, "steps": 1},
        {"type": "adaptive", "pick": {"type": "gaussian", "rho": 1.0}, "look": {"type": "exact"}, "steps": 2},
        {"type": "deposit", "rho": math.nan},
        {"type": "deposit", "rho": -1.0},
        {"type": "deposit", "epsilon": math.inf},
        {"type": "deposit", "rho": -0.0},
        {"type": "deposit", "epsilon": 1e-3, "rho": 1e3},  # which of the two would be charged?
    ],
)
def test_what_is_no_release_is_not_read(fields):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(fields, Release)


def test_costs():
    assert Gaussian(0.1).cost(Norms(5, 2)) == Cost(math.inf, 0.1)
    assert Laplace(0.4).cost(Norms(1, 1)).epsilon == 0.4
    assert Laplace(0.4).cost(Norms(1, 1)).rho == pytest.approx(0.08)
    assert Laplace(0.4).cost(Norms(10, 2)).rho == pytest.approx(0.08 / 25)
    assert Laplace(0.4).cost(Norms(0, 0)) == Cost(0.4, SMALLEST_RHO)  # no question is for nothing
    assert Exponential(0.02).cost(Norms(1, 1)).rho == 0.02
    assert Exponential(0.02).cost(Norms(1, 1)).epsilon == pytest.approx(0.4)
    assert AdaptiveSelection(Exponential(0.1), Gaussian(0.2), 4).cost(Norms(1, 1)).rho == pytest.approx(
        4 * 0.1 + 3 * 0.2
    )
    pure = AdaptiveSelection(Exponential(0.02), Laplace(0.3), 3).cost(Norms(1, 1))
    assert pure.epsilon == pytest.approx(3 * 0.4 + 2 * 0.3)
    assert AdaptiveSelection(Exact(), Gaussian(0.2), 2).cost(Norms(1, 1)).rho == math.inf
    assert Deposit(rho=0.5).cost(Norms(1, 1)) == Cost(math.inf, 0.5)
    assert Deposit(epsilon=0.5).cost(Norms(1, 1)) == Cost(0.5, 0.125)
    assert Deposit().cost(Norms(1, 1)) == Exact().cost(Norms(1, 1)) == Cost(math.inf, math.inf)
    assert Public().cost(Norms(1, 1)) == Cost(0.0, 0.0)


@pytest.mark.parametrize("rows", [1, 2, 7, 40])
@pytest.mark.parametrize("rate", [0.001, 0.05, 0.4])
def test_a_sampled_release_charges_for_all_rows_of_a_person(rate, rows):
    """Some of them are drawn with probability q' = 1 - (1 - q)^k.

    At order 2 the log-moment has a closed form: log(1 + q'^2 (exp(1 / m^2) - 1)), once for each step.
    """
    multiplier, steps = 1.5, 3
    caught = sum(math.comb(rows, k) * rate**k * (1 - rate) ** (rows - k) for k in range(1, rows + 1))
    truly = steps * math.log1p(caught**2 * math.expm1(1 / multiplier**2))
    cost = SampledGaussian(rate, multiplier, steps).cost(Norms(rows, rows, rows))
    assert ORDERS[0] == 2
    assert truly <= (cost.curve[0] + 2 * cost.rho) * (1 + 1e-12) <= truly * (1 + 1e-6) + 2 * SMALLEST_RHO
    alike = SampledGaussian(caught, multiplier, steps).cost(Norms(1, 1))
    np.testing.assert_allclose(cost.curve, alike.curve, rtol=1e-9)
    if rows > 1:
        alone = SampledGaussian(rate, multiplier, steps).cost(Norms(rows, rows))
        assert all(many > one for many, one in zip(cost.curve, alone.curve, strict=True))


def test_noise_for_samples_is_sized_for_all_rows_of_a_person():
    """The noise of a share covers a person of that many rows, and less noise does not."""
    budget = Budget(1.0, 1e-6)
    for rows in (1, 5, 20):
        release = sampled_for(budget, 0.5, 0.02, 50, rows)
        assert isinstance(release, SampledGaussian)
        norms = Norms(1, 1, rows)
        assert budget.price(release.cost(norms)) <= 0.5 * budget.rho
        less = SampledGaussian(release.rate, release.multiplier * 0.999, release.steps)
        assert budget.price(less.cost(norms)) > 0.5 * budget.rho


@given(st.floats(1e-6, 1e12), st.floats(1e-3, 1e6))
@settings(deadline=None)
def test_noise_is_never_smaller_than_paid_for(rho, l2):
    assert l2**2 / (2 * Gaussian(rho).sigma(l2) ** 2) <= rho
    assert Exponential(rho).epsilon ** 2 / 8 <= rho


@given(st.floats(1e-3, 1e6), st.floats(1, 1e6))
@settings(deadline=None)
def test_laplace_noise_is_never_smaller_than_paid_for(epsilon, l1):
    assert l1 / Laplace(epsilon).scale(l1) <= epsilon


@pytest.mark.parametrize("times", [1, 1.5, 4])
@pytest.mark.parametrize("share", [0.01, 0.3, 1.0])
def test_a_share_buys_what_it_costs(share, times):
    noisy, pure, none = Budget(1.0, 1e-6), Budget(2.0, 0), Budget.none()
    assert isinstance(noise_for(noisy, share, times), Gaussian)
    assert isinstance(noise_for(pure, share, times), Laplace)
    assert noise_for(none, share, times) == draw_for(none, share, times) == Exact()
    for budget in (noisy, pure):
        for release in (noise_for(budget, share, times), draw_for(budget, share, times)):
            assert budget.share_of(release.cost(Norms(1, 1)) * times) == pytest.approx(share)
            assert budget.covers(release.cost(Norms(1, 1)) * (times / share))
        assert budget.share_of(deposit_for(budget, share).cost(Norms(1, 1))) == pytest.approx(share)
    assert deposit_for(none, share) == Deposit()


@pytest.mark.parametrize("make", [noise_for, draw_for])
@pytest.mark.parametrize("budget", [Budget(1.0, 1e-6), Budget(1.0, 0)], ids=["zCDP", "pure"])
def test_shares_too_small_to_answer_are_refused(make, budget):
    with pytest.raises(InvalidParameter, match="below the minimum"):
        make(budget, 1e-7)


@pytest.mark.parametrize("make", [noise_for, draw_for, deposit_for])
@pytest.mark.parametrize("budget", [Budget(1.0, 1e-6), Budget(1.0, 0), Budget.none()], ids=["zCDP", "pure", "none"])
@pytest.mark.parametrize("share", [0.0, -1.0, math.nan, math.inf])
def test_a_share_is_a_positive_number(make, budget, share):
    with pytest.raises(InvalidParameter, match="must be positive"):
        make(budget, share)


def test_a_small_pure_draw_never_costs_more_than_its_share():
    budget = Budget(1.0, 0)
    for share in np.geomspace(1e-3, 1e-2, 50):
        try:
            release = draw_for(budget, float(share))
        except InvalidParameter:
            assert share < 2.83e-3
        else:
            assert budget.share_of(release.cost(Norms(1, 1))) <= share
            assert msgspec.convert(msgspec.to_builtins(release), Release) == release


@pytest.mark.parametrize("deposit", [{"rho": 1e-300}, {"epsilon": 1e-9}])
def test_a_deposit_has_a_least_price_as_every_question_has(deposit):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"type": "deposit", **deposit}, Deposit)
    for budget in (Budget(1.0, 1e-6), Budget(1.0, 0.0)):
        with pytest.raises(InvalidParameter):
            deposit_for(budget, 0.0)
