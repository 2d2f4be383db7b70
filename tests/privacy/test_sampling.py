"""Noise on random samples of rows costs what is proved: against two accountants, and against the laws themselves."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import norm

from fedsynth.errors import InvalidParameter, Unsupported
from fedsynth.privacy.book_file import RunRecord
from fedsynth.privacy.cost import ORDERS, ROUNDING, Budget, Cost, Norms, ProtectedChange, group_epsilon
from fedsynth.privacy.ledger import Entry, Ledger
from fedsynth.privacy.release import (
    SMALLEST_RHO,
    Exact,
    Gaussian,
    Laplace,
    Release,
    SampledGaussian,
    kind_of,
    sampled_for,
)
from fedsynth.privacy.sampling import log_moments

ONE = Norms(1.0, 1.0)
BUDGET = Budget(1.0, 1e-5)
RUNS = [(0.01, 0.7, 100), (0.01, 4.0, 4096), (0.05, 1.0, 200), (0.1, 4.7, 300), (0.3, 2.0, 10), (0.9, 20.0, 50)]
TRAINING = st.builds(
    SampledGaussian,
    st.floats(math.log(1e-4), 0).map(math.exp),
    st.floats(math.log(0.3), math.log(1e4)).map(math.exp),
    st.integers(1, 4096),
)


def divergences(cost: Cost) -> NDArray[np.float64]:
    """Return the bound on the Renyi divergence at each order of a curve."""
    orders = np.array(ORDERS, dtype=float)
    bounds: NDArray[np.float64] = orders * cost.rho + np.array(cost.curve or (0.0,) * len(ORDERS)) / (orders - 1)
    return bounds


# Two accountants


@pytest.mark.parametrize(("rate", "multiplier", "steps"), RUNS)
def test_a_second_accountant_has_the_same_divergences(rate, multiplier, steps):
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(orders=list(ORDERS))
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier)), steps)
    cost = SampledGaussian(rate, multiplier, steps).cost(ONE)
    assert cost.rho == 0
    assert math.isinf(cost.epsilon)
    theirs = np.array(accountant._rdp)
    here = theirs < 1e6  # where their own sums are exact enough
    assert divergences(cost)[here] == pytest.approx(theirs[here], rel=1e-9)
    assert cost.at(1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=0.01)


@pytest.mark.parametrize(("rate", "multiplier", "steps"), RUNS)
def test_the_privacy_loss_distribution_never_exceeds_our_bound(rate, multiplier, steps):
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    exact = PLDAccountant(value_discretization_interval=1e-3)
    exact.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier)), steps)
    ours = SampledGaussian(rate, multiplier, steps).cost(ONE).at(1e-5)
    assert 0.5 * ours < exact.get_epsilon(1e-5) <= ours


# Real orders


@pytest.mark.parametrize(("rate", "multiplier", "steps"), RUNS)
def test_between_orders_the_bound_is_never_below_the_truth(rate, multiplier, steps):
    # The continuous law by numerical integration: dp_accounting's fractional orders do not converge at all of these.
    orders = (1.01, 1.5, 1.97, 2.5, 3.3, 7.1, 12.17, 15.5, 16.9, 31.77, 47.3, 99.5, 333.3)
    cost = SampledGaussian(rate, multiplier, steps).cost(ONE)
    for order in orders:
        at = np.arange(-20 * multiplier, order + 20 * multiplier, multiplier / 100)
        law = -(at**2) / (2 * multiplier**2)
        ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * at - 1) / (2 * multiplier**2))
        truth = steps * float(logsumexp(law + order * ratio) - logsumexp(law)) / (order - 1)
        bound = order * cost.sampled(order)
        assert truth * (1 - 1e-6) <= bound
        if order > 2:
            assert bound <= 1.5 * truth


@given(TRAINING, st.floats(1.001, 4096))
@settings(max_examples=60, deadline=None)
def test_the_bound_at_a_real_order_lies_on_the_line_between_its_neighbours(release, order):
    cost = release.cost(ONE)
    if cost.curve:
        points, moments = (1, *ORDERS), (0.0, *cost.curve)
        assert cost.sampled(order) * order * (order - 1) == pytest.approx(np.interp(order, points, moments), rel=1e-9)
        at = bisect_left(ORDERS, order)
        exactly = ORDERS[at]
        assert cost.sampled(exactly) == pytest.approx(cost.curve[at] / (exactly * (exactly - 1)), rel=1e-12)
        assert cost.sampled(4096.5) == math.inf


@given(TRAINING)
@settings(max_examples=60, deadline=None)
def test_the_price_grows_with_the_order(release):
    cost = release.cost(ONE)
    prices = cost.rho + np.array([cost.sampled(order) for order in ORDERS])
    assert np.all(np.diff(prices) >= -1e-9 * prices[:-1])


# The laws themselves


def pair(sigma: float, laws: dict[int, float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return log-probabilities of discrete Gaussian noise moved by random shifts (with their odds), and unmoved."""
    reach = math.ceil(45 * sigma + 3 * max(laws))
    at = np.arange(-reach, reach + 1)

    def law(shift: int) -> NDArray[np.float64]:
        density: NDArray[np.float64] = -((at - shift) ** 2) / (2 * sigma**2)
        return density - float(logsumexp(density))

    moved = logsumexp([math.log(odds) + law(shift) for shift, odds in laws.items()], axis=0)
    return moved, law(0)


def divergence(one: NDArray[np.float64], other: NDArray[np.float64], order: float) -> float:
    """Return the Renyi divergence of two laws, by summation."""
    return float(logsumexp(order * one + (1 - order) * other)) / (order - 1)


@pytest.mark.parametrize(("multiplier", "sensitivity"), [(1.0, 4), (0.4, 1), (0.5, 1), (2.0, 3), (0.3, 7)])
@pytest.mark.parametrize("rate", [0.001, 0.05, 0.5, 0.95])
def test_the_discrete_law_has_these_divergences_in_both_directions(rate, multiplier, sensitivity):
    sigma = multiplier * sensitivity
    cost = SampledGaussian(rate, multiplier, 1).cost(Norms(sensitivity, sensitivity))
    moved, still = pair(sigma, {0: 1 - rate, sensitivity: rate})
    for order, bound in zip(ORDERS[:12], divergences(cost), strict=False):
        if cost.rho == 0 and order * sensitivity < 40 * sigma:  # the sum sees all that matters
            assert divergence(moved, still, order) == pytest.approx(bound, rel=1e-6)
        assert divergence(moved, still, order) <= bound * (1 + 1e-9)
        assert divergence(still, moved, order) <= bound * (1 + 1e-9)
    for real in (1.1, 2.5, 5.2, 9.9):  # at orders that are no integers the law has no formula, and the bound holds
        bound = real * (cost.rho + cost.sampled(real))
        assert max(divergence(moved, still, real), divergence(still, moved, real)) <= bound * (1 + 1e-9)
    for smaller in range(1, sensitivity):  # a smaller shift costs no more, in either direction
        moved, still = pair(sigma, {0: 1 - rate, smaller: rate})
        for order, bound in zip(ORDERS[:12], divergences(cost), strict=False):
            assert max(divergence(moved, still, order), divergence(still, moved, order)) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("moves", [(1, 1), (1, -1), (2, 1, 1), (3, 3, 3), (1, 1, 1, 1, 1)])
@pytest.mark.parametrize("rate", [0.01, 0.2, 0.7])
def test_rows_of_a_person_that_are_drawn_one_by_one_cost_what_is_charged(rate, moves):
    each, count = max(map(abs, moves)), len(moves)
    release = SampledGaussian(rate, 1.1, 1)
    norms = Norms(count * each, count * each, count)
    sigma = release.noise.sigma(norms.l2)
    laws: dict[int, float] = {}
    for taken in itertools.product((0, 1), repeat=count):
        shift = sum(move for move, one in zip(moves, taken, strict=True) if one)
        laws[shift] = laws.get(shift, 0.0) + math.prod(rate if one else 1 - rate for one in taken)
    moved, still = pair(sigma, laws)
    bounds = divergences(release.cost(norms))
    for order, bound in zip(ORDERS[:12], bounds, strict=False):
        assert max(divergence(moved, still, order), divergence(still, moved, order)) <= bound * (1 + 1e-9)
    if count == 2 and moves[1] > 0:  # it would not do to charge one row of twice the sensitivity
        one = divergences(release.cost(Norms(norms.l1, norms.l2)))
        assert divergence(*pair(sigma, {0: (1 - rate) ** 2, 2: 1 - (1 - rate) ** 2}), 2) > one[0]


@given(TRAINING)
@settings(max_examples=40, deadline=None)
def test_the_noise_is_never_smaller_than_the_multiplier_says(release):
    for l2 in (1.0, math.sqrt(78), 2.0**20 + 1):
        sigma = release.noise.sigma(l2)
        assert release.multiplier * l2 <= sigma <= release.multiplier * l2 * (1 + 1e-12)


# Costs


def test_without_sampling_the_cost_is_that_of_the_noise():
    whole = SampledGaussian(1.0, 2.0, 8)
    assert whole.cost(ONE) == Cost(math.inf, 8 / (2 * 2.0**2)) == whole.noise.cost(ONE) * 8
    nearly = SampledGaussian(1 - 1e-12, 2.0, 8).cost(ONE)
    assert divergences(nearly) == pytest.approx(divergences(whole.cost(ONE)), rel=1e-6)
    assert SampledGaussian(0.9, 2.0, 8).cost(Norms(50, 50, 50)) == whole.cost(ONE)  # some row is always drawn


def test_moments_are_exact_where_they_are_tiny():
    for multiplier in (10.0, 1e4):
        first = math.expm1(multiplier**-2) * 1e-8
        assert log_moments(1e-4, multiplier)[0] == pytest.approx(first, rel=1e-9)


@given(TRAINING, st.floats(1e-9, 0.1))
@settings(max_examples=60, deadline=None)
def test_no_question_costs_less_than_the_least_price(release, delta):
    cost = release.cost(ONE)
    for epsilon in (0.05, 1.0, 20.0):
        assert Budget(epsilon, delta).price(cost) >= SMALLEST_RHO * (1 - 1e-9)


@given(st.lists(st.one_of(TRAINING, st.just(Gaussian(0.01)), st.just(Laplace(0.1))), max_size=5), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_curves_add_up(releases, times):
    costs = [release.cost(ONE) for release in releases]
    total = sum(costs, Cost())
    assert divergences(total) == pytest.approx(sum(map(divergences, costs), np.zeros(len(ORDERS))), rel=1e-9)
    price = sum(map(BUDGET.price, costs))
    assert BUDGET.price(total) == pytest.approx(price, rel=1e-9)
    assert BUDGET.price(total * times) == pytest.approx(times * price, rel=1e-9)
    assert BUDGET.share_of(total) == pytest.approx(price / BUDGET.rho, rel=1e-9)
    assert BUDGET.covers(total) == (BUDGET.price(total) <= BUDGET.rho * ROUNDING)
    assert sum(reversed(costs), Cost()).at(1e-5) == pytest.approx(total.at(1e-5), rel=1e-9)
    assert (total * (times + 1)).at(1e-5) <= (total * (times + 2)).at(1e-5) * (1 + 1e-12)


@given(TRAINING, st.floats(0.05, 20), st.floats(1, 1.5))
@settings(max_examples=60, deadline=None)
def test_prices_grow_with_rate_and_steps_and_fall_with_noise(release, epsilon, factor):
    budget = Budget(epsilon, 1e-6)
    price = budget.price(release.cost(ONE))
    wider = msgspec.structs.replace(release, rate=min(1.0, release.rate * factor))
    longer = msgspec.structs.replace(release, steps=release.steps + 1)
    noisier = msgspec.structs.replace(release, multiplier=release.multiplier * factor)
    costs = [one.cost(ONE) for one in (wider, longer)] + [release.cost(Norms(1, 1, 3))]
    # Between two orders of the grid, h apart, a sampled release is charged the chord of its log-moments. A release of
    # all rows is charged its parabola, rho a (a - 1), which lies below the chord by at most rho h^2 / 4.
    grid = (1, *ORDERS)
    gap = next((above - below for below, above in itertools.pairwise(grid) if above >= budget.order), math.inf)
    chord = gap**2 / (4 * budget.order * (budget.order - 1))
    for dearer in costs:
        excess = chord if release.cost(ONE).curve and not dearer.curve else 1e-9
        assert budget.price(dearer) * (1 + excess) >= price * (1 - 1e-9)
    assert budget.price(noisier.cost(ONE)) <= price * (1 + 1e-9)


def test_an_epsilon_needs_no_more_than_the_pure_one_and_a_curve_has_none():
    cost = SampledGaussian(0.05, 1.0, 100).cost(ONE)
    assert cost.at(0) == math.inf
    assert (cost + Exact().cost(ONE)).at(1e-6) == math.inf
    assert Budget(1.0, 0).price(cost) == math.inf
    assert not Budget(100.0, 0).covers(cost)
    assert Budget.none().covers(cost)
    assert Budget.none().share_of(cost) == 0


@pytest.mark.parametrize(
    "curve",
    [[1.0], [0.0] * (len(ORDERS) - 1), [-1.0] * len(ORDERS), ["1"] * len(ORDERS), [None] * len(ORDERS), "1" * 63, 1.0],
)
def test_a_curve_that_is_none_is_not_read(curve):
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode({"epsilon": None, "rho": 0.0, "curve": curve}), type=Cost)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, -1e-300])
def test_a_curve_is_made_of_plain_numbers(wrong):
    curve = (*([0.1] * (len(ORDERS) - 1)), wrong)
    with pytest.raises(InvalidParameter, match="curve of a cost"):
        Cost(math.inf, 0.0, curve)
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode({"curve": curve}), type=Cost)


def test_files_have_a_curve_only_where_there_is_one():
    cost = SampledGaussian(0.05, 1.0, 100).cost(ONE)
    assert msgspec.json.decode(msgspec.json.encode(cost), type=Cost) == cost
    assert msgspec.json.encode(Cost()) == b'{"epsilon":0.0,"rho":0.0}'
    assert msgspec.json.encode(Cost(0.0, 0.5)) == b'{"epsilon":0.0,"rho":0.5}'
    assert cost != Cost(math.inf, 0.0)


# Budgets and their order


@given(st.floats(0.01, 50), st.floats(-12, -1))
@settings(max_examples=60, deadline=None)
def test_at_its_order_a_budget_is_what_its_rho_gives(epsilon, log_delta):
    budget = Budget(epsilon, 10**log_delta)
    order = budget.order  # proposition 12 of arXiv 2004.00010, as it is printed
    converted = order * budget.rho + (
        math.log(1 / budget.delta) + (order - 1) * math.log1p(-1 / order) - math.log(order)
    ) / (order - 1)
    assert converted == pytest.approx(epsilon, rel=1e-9)
    assert converted <= epsilon * (1 + 1e-11)


def test_a_budget_without_delta_or_limit_has_no_order():
    assert Budget(1.0, 0).order == Budget.none().order == math.inf


@given(TRAINING, st.floats(0.05, 20), st.floats(-9, -3))
@settings(max_examples=60, deadline=None)
def test_what_a_budget_covers_is_as_private_as_it_says(release, epsilon, log_delta):
    budget = Budget(epsilon, 10**log_delta)
    cost = release.cost(ONE)
    price = budget.price(cost)
    if math.isfinite(price) and price > 0:
        full = cost * (budget.rho / price)
        assert budget.covers(full)
        assert full.at(budget.delta) <= epsilon * (1 + 1e-4)  # at finely spaced orders
        assert not budget.covers(full * 1.001)


def test_linear_and_sampled_releases_share_a_budget():
    training = SampledGaussian(0.05, 3.0, 50).cost(ONE)
    left = Gaussian(BUDGET.rho - BUDGET.price(training)).cost(ONE)
    assert BUDGET.covers(training + left)
    assert not BUDGET.covers(training + left + Gaussian(SMALLEST_RHO).cost(ONE))


@given(st.sampled_from([0.5, 1.0, 3.0]), st.integers(2, 12))
@settings(max_examples=40, deadline=None)
def test_several_rows_by_the_limit_alone(epsilon, times):
    """Of Gaussian noise, whose true cost for a group is known, and never above what the group property says."""
    budget = Budget(epsilon, 1e-6)
    found = group_epsilon(budget, times)
    if times >= budget.order:
        assert found == math.inf
        return
    shift = times * math.sqrt(2 * budget.rho)

    def excess(e: float) -> float:
        return float(norm.cdf(shift / 2 - e / shift) - math.exp(e) * norm.cdf(-shift / 2 - e / shift)) - budget.delta

    assert brentq(excess, 0, 500) <= found
    assert times * epsilon < found
    one = found / times  # (one, delta') for a single person, from the divergence at the budget's order
    delta = math.exp((budget.order - 1) * (budget.order * budget.rho - one)) * (1 - 1 / budget.order) ** (
        budget.order - 1
    )
    delta /= budget.order
    assert delta * sum(math.exp(k * one) for k in range(times)) == pytest.approx(budget.delta, rel=1e-4)


# Releases


@pytest.mark.parametrize(
    "change",
    [
        *({"rate": rate} for rate in (0.0, -0.1, 9e-5, 1.1, math.nan, math.inf, None, "0.1", True)),
        *({"multiplier": value} for value in (0.0, 0.29, 1.1e4, -1.0, math.nan, math.inf, None, "1")),
        *({"steps": steps} for steps in (0, -1, 4097, 2**63, 1.5, None, "1", True)),
        {"rho": 0.1},
    ],
)
def test_hostile_sampled_releases_are_not_read(change):
    fields = {"type": "sampled", "rate": 0.1, "multiplier": 1.0, "steps": 10}
    release = SampledGaussian(0.1, 1.0, 10)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=Release) == release
    assert kind_of(release) == "sampled"
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode({**fields, **change}), type=Release)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**fields, **change}, Release)


@pytest.mark.parametrize("missing", ["rate", "multiplier", "steps"])
def test_a_sampled_release_says_everything(missing):
    fields = {"type": "sampled", "rate": 0.1, "multiplier": 1.0, "steps": 10}
    del fields[missing]
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(fields, Release)


# Noise that was computed by hand for the optimal order, at epsilon 0.5, 1.6 and 5 and delta 1e-5.
NEEDED = {(0.05, 200): (5.6, 2.1, 1.04), (0.05, 1000): (12.2, 4.3, 1.7), (0.1, 300): (13.4, 4.7, 1.9)}


@pytest.mark.parametrize(("rate", "steps"), NEEDED)
def test_a_run_of_training_needs_the_noise_that_the_optimal_order_needs(rate, steps):
    for epsilon, sigma in zip((0.5, 1.6, 5.0), NEEDED[rate, steps], strict=True):
        release = sampled_for(Budget(epsilon, 1e-5), 1.0, rate, steps)
        assert isinstance(release, SampledGaussian)
        # Few steps at a large epsilon are where a fixed order costs most: 3.1 % more noise.
        assert release.multiplier == pytest.approx(sigma, rel=0.02 if sigma > 1.5 else 0.035)
        least = brentq(
            lambda noise, limit=epsilon: SampledGaussian(rate, noise, steps).cost(ONE).at(1e-5) - limit, 0.5, 20
        )
        assert least == pytest.approx(sigma, rel=0.02)
        assert least <= release.multiplier * (1 + 1e-4)


@given(
    st.floats(0.3, 8),
    st.floats(0.01, 1),
    st.floats(1e-3, 1),
    st.integers(1, 300),
    st.integers(1, 4),
    st.sampled_from([1, 2.5]),
)
@settings(max_examples=40, deadline=None)
def test_a_share_buys_the_least_noise_that_it_pays_for(epsilon, share, rate, steps, rows, times):
    budget, norms = Budget(epsilon, 1e-6), Norms(1, 1, rows)
    release = sampled_for(budget, share, rate, steps, rows, times)
    assert isinstance(release, SampledGaussian)
    assert msgspec.convert(msgspec.to_builtins(release), SampledGaussian) == release
    assert budget.price(release.cost(norms)) * times <= share * budget.rho * (1 + 1e-12)
    if release.multiplier > 0.3:
        less = msgspec.structs.replace(release, multiplier=release.multiplier * (1 - 2e-4))
        assert budget.price(less.cost(norms)) * times > share * budget.rho
        assert len(f"{release.multiplier:g}") <= 7


def test_rounds_share_a_budget_evenly():
    rounds = sampled_for(BUDGET, 1 / 40, 0.05, 5)
    once = sampled_for(BUDGET, 1.0, 0.05, 200)
    assert isinstance(rounds, SampledGaussian)
    assert isinstance(once, SampledGaussian)
    assert rounds.multiplier == pytest.approx(once.multiplier, rel=2e-4)
    assert BUDGET.covers(sum([rounds.cost(ONE)] * 40, Cost()))


def test_what_no_noise_can_pay_for_is_said():
    assert sampled_for(Budget.none(), 0.5, 0.1, 10) == Exact()
    with pytest.raises(Unsupported, match="delta = 0"):
        sampled_for(Budget(1.0, 0), 0.5, 0.1, 10)
    with pytest.raises(InvalidParameter, match="below the minimum"):
        sampled_for(BUDGET, 1e-6, 0.1, 10)
    with pytest.raises(InvalidParameter, match="larger epsilon"):  # its order is above all of a curve
        sampled_for(Budget(0.009, 1e-12), 1.0, 0.1, 10)
    with pytest.raises(InvalidParameter, match="must be positive"):
        sampled_for(BUDGET, math.nan, 0.1, 10)
    for rate, steps in ((0.0, 10), (1.5, 10), (math.nan, 10), (0.1, 0), (0.1, 4097)):
        with pytest.raises(InvalidParameter, match="cannot sample rows"):
            sampled_for(BUDGET, 0.5, rate, steps)


# The server's ledger


def entry(step: int, release: Release, *sites: str) -> Entry:
    return Entry(step, "sum", "counts", release, sites, 5, release.cost(ONE))


def test_a_ledger_holds_every_site_to_the_budget():
    training = sampled_for(BUDGET, 0.5, 0.05, 100)
    ledger = Ledger(BUDGET)
    ledger.record(entry(0, training, "a", "b"))
    ledger.record(entry(1, training, "a", "b"))
    assert ledger.share_spent == pytest.approx(1.0, abs=1e-3)
    assert ledger.epsilon <= 1.0001
    assert ledger.spent == training.cost(ONE) * 2
    with pytest.raises(Exception, match="let the method ask less often"):
        ledger.record(entry(2, Gaussian(0.001), "b"))
    assert msgspec.convert(ledger.to_json()["per_site"]["a"], Cost) == ledger.spent


def test_sites_that_paid_in_different_ways_are_each_within_the_budget():
    ledger = Ledger(BUDGET)
    ledger.record(entry(0, sampled_for(BUDGET, 0.9, 0.05, 100), "a"))
    ledger.record(entry(1, Gaussian(0.9 * BUDGET.rho), "b"))
    assert ledger.spent == Cost(math.inf, BUDGET.rho)  # the budget itself: at its order nobody paid more
    assert BUDGET.covers(ledger.spent)
    assert ledger.epsilon == pytest.approx(1.0)
    ledger = Ledger(BUDGET)
    ledger.record(entry(0, sampled_for(BUDGET, 0.3, 0.05, 100), "a"))
    ledger.record(entry(1, Gaussian(0.3 * BUDGET.rho), "b"))
    assert ledger.spent == ledger.per_site["a"] + ledger.per_site["b"]


def test_a_backup_of_an_account_that_paid_for_samples_is_written_off_at_every_order_up_to_the_runs():
    limit, other = Budget(1.0, 1e-6), Budget(4.0, 1e-6)
    run = RunRecord("r", 0, "", Cost(), limit, 0.0, ProtectedChange())
    rest = run.rest(sampled=True)
    assert limit.price(rest) >= limit.rho
    assert other.order < limit.order
    for rate in (0.01, 0.2, 0.9):
        spent = sampled_for(limit, 1.0, rate, 300)
        assert isinstance(spent, SampledGaussian)
        assert other.price(spent.cost(Norms(1.0, 1.0))) <= other.price(rest) * (1 + 1e-9)
    assert Budget(0.5, 1e-9).order > limit.order
    assert not Budget(0.5, 1e-9).covers(rest)
    assert run.rest(sampled=False) == Cost(math.inf, limit.rho)
    above = Budget(0.99, 1e-6)  # between the run's order and the next one for which curves have a value
    assert limit.order < above.order < min(order for order in ORDERS if order > limit.order)
    assert not above.covers(rest)
