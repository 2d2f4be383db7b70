"""Costs add up, convert tightly, and bound what a person with several rows at several sites pays."""

from __future__ import annotations

import itertools
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from fedsynth.privacy.cost import (
    Budget,
    Cost,
    Norms,
    ProtectedChange,
    Sensitivity,
    Unit,
    best_guess,
    epsilon_of,
    protect,
    rho_of,
    times_charged,
)
from fedsynth.privacy.release import Exact, Exponential, Gaussian, Laplace

ORDERS = [1.001, 1.1, 1.5, 2, 3, 5, 10, 33.3, 100, 1000]


@pytest.mark.parametrize(("epsilon", "rho"), [(0.5, 0.008506), (1, 0.030557), (3, 0.22425), (5, 0.55097)])
def test_known_conversions(epsilon, rho):
    assert rho_of(epsilon, 1e-5) == pytest.approx(rho, rel=1e-4)


@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-2, 0.5])
@pytest.mark.parametrize("rho", [1e-6, 1e-3, 0.03, 0.5, 3.0, 100.0, 1e6])
def test_the_conversion_is_the_minimum_over_orders(rho, delta):
    def epsilon_at(log_excess):  # arXiv 2004.00010, proposition 12, as it is printed
        order = 1 + math.exp(log_excess)
        return order * rho + (math.log(1 / delta) + (order - 1) * math.log1p(-1 / order) - math.log(order)) / (
            order - 1
        )

    grid = np.linspace(-10, 20, 61)
    best = min(
        minimize_scalar(epsilon_at, bounds=(low, high), method="bounded", options={"xatol": 1e-11}).fun
        for low, high in itertools.pairwise(grid)
    )
    assert epsilon_of(rho, delta) == pytest.approx(max(0.0, best), rel=1e-7, abs=1e-9)


@given(st.floats(1e-4, 20), st.floats(-12, -2))
@settings(max_examples=40, deadline=None)
def test_the_conversion_is_inverted_from_below(epsilon, log_delta):
    delta = 10**log_delta
    rho = rho_of(epsilon, delta)
    assert epsilon_of(rho, delta) <= epsilon
    assert epsilon_of(rho * 1.0001, delta) > epsilon
    assert epsilon_of(rho, delta) <= rho + 2 * math.sqrt(rho * math.log(1 / delta)) + 1e-12  # the textbook's


def test_no_finite_epsilon_holds_at_delta_0():
    assert (epsilon_of(0.5, 0.0), epsilon_of(0.0, 0.0), rho_of(1.0, 0.0)) == (math.inf, 0.0, 0.0)


@pytest.mark.parametrize(("rho", "delta"), [(0.001, 1e-5), (0.03, 1e-5), (0.5, 1e-6), (3.0, 1e-9)])
def test_a_second_accountant_agrees(rho, delta):
    # dp_accounting's Renyi accountant composes rho / 7 seven times; its orders are dense, so it comes close.
    from dp_accounting import GaussianDpEvent
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(orders=list(1 + np.logspace(-3, 6, 4000)))
    accountant.compose(GaussianDpEvent(1 / math.sqrt(2 * rho / 7)), 7)
    assert epsilon_of(rho, delta) == pytest.approx(accountant.get_epsilon(delta), rel=1e-3)


def test_the_privacy_loss_distribution_never_exceeds_our_bound():
    # The exact privacy loss of a Gaussian at the same rho lies below; the gap is the price of one currency for all
    # releases.
    from dp_accounting import GaussianDpEvent, LaplaceDpEvent
    from dp_accounting.pld import PLDAccountant

    for rho in (0.01, 0.1, 1.0):
        exact = PLDAccountant()
        exact.compose(GaussianDpEvent(1 / math.sqrt(2 * rho)))
        assert 0.7 * epsilon_of(rho, 1e-6) < exact.get_epsilon(1e-6) <= epsilon_of(rho, 1e-6) * (1 + 1e-4)
    # Fifty cells, each moved by 1, under Laplace noise: the L2 norm, not the L1 norm, decides what they cost together.
    exact = PLDAccountant()
    exact.compose(LaplaceDpEvent(50 / 2.0), 50)
    ours = Laplace(2.0).cost(Norms(50, math.sqrt(50))).at(1e-6)
    assert 0.7 * ours < exact.get_epsilon(1e-6) <= ours < 2.0


def renyi(law: NDArray[np.float64], shift: int, order: float) -> float:
    """Renyi divergence of an integer law (its logarithms, unnormalised) from the same law moved by ``shift``."""
    law = law - logsumexp(law)
    here, there = law[shift:], law[: law.size - shift]
    return float(logsumexp(order * here + (1 - order) * there)) / (order - 1)


@pytest.mark.parametrize("shift", [1, 2, 7])
@pytest.mark.parametrize("scale", [0.4, 1.0, 3.7, 50.0])
def test_discrete_laplace_noise_keeps_its_zcdp_price(scale, shift):
    law = -np.abs(np.arange(-math.ceil(60 * scale) - shift, math.ceil(60 * scale) + shift + 1)) / scale
    cost = Laplace(shift / scale).cost(Norms(shift, shift))
    assert cost.epsilon == pytest.approx(shift / scale)
    divergences = [renyi(law, shift, order) for order in ORDERS]
    for order, divergence in zip(ORDERS, divergences, strict=True):
        assert divergence <= min(cost.rho * order, cost.epsilon) * (1 + 1e-9)
    if scale == 50.0 and shift == 1:  # wide noise: the price is nearly reached, so a smaller one would be wrong
        assert divergences[3] > 0.95 * cost.rho * ORDERS[3]


@pytest.mark.parametrize("moves", [(1, 1, 1, 1), (5, 1), (3, 2, 2), (1,) * 78])
def test_laplace_noise_on_many_cells_costs_by_the_l2_norm(moves):
    l1, l2 = float(sum(moves)), math.sqrt(sum(d * d for d in moves))
    release = Laplace(1.5)
    scale, cost = release.scale(l1), release.cost(Norms(l1, l2))
    assert cost.rho == pytest.approx(1.5**2 / 2 * (l2 / l1) ** 2)
    reach = math.ceil(60 * scale) + max(moves)
    law = -np.abs(np.arange(-reach, reach + 1)) / scale
    for order in ORDERS:
        assert sum(renyi(law, d, order) for d in moves) <= min(cost.rho * order, cost.epsilon) * (1 + 1e-9)


@pytest.mark.parametrize("l2", [1.0, math.sqrt(78), 64.0])
@pytest.mark.parametrize("rho", [0.001, 0.1, 2.0])
def test_discrete_gaussian_noise_keeps_its_zcdp_price(rho, l2):
    sigma = Gaussian(rho).sigma(l2)
    reach = math.ceil(40 * sigma + 40 * l2)
    law = -(np.arange(-reach, reach + 1).astype(np.float64) ** 2) / (2 * sigma**2)
    shift = math.floor(l2)
    for order in ORDERS[:6]:
        assert renyi(law, shift, order) <= rho * order * (shift / l2) ** 2 * (1 + 1e-9)


COSTS = [Cost(0.5, 0.1), Cost(math.inf, 0.03), Gaussian(0.2).cost(Norms(1, 1)), Laplace(0.3).cost(Norms(4, 2)), Cost()]


@given(st.sampled_from(COSTS), st.integers(0, 200))
@settings(deadline=None)
def test_composition_is_multiplication(cost, times):
    total = sum([cost] * times, Cost())
    assert total.rho == pytest.approx((cost * times).rho, rel=1e-12)
    assert total.epsilon == pytest.approx((cost * times).epsilon, rel=1e-12)
    assert (cost * times).at(1e-6) <= (cost * (times + 1)).at(1e-6)


@given(st.lists(st.sampled_from(COSTS), max_size=6), st.sampled_from([0.0, 1e-9, 1e-6, 1e-2]))
@settings(deadline=None)
def test_order_of_composition_does_not_matter(costs, delta):
    forth, back = sum(costs, Cost()), sum(reversed(costs), Cost())
    assert forth.at(delta) == pytest.approx(back.at(delta), rel=1e-12)


def test_a_cost_has_the_smaller_of_its_two_epsilons():
    assert Cost(1.0, 0.5).at(0) == 1.0
    assert Cost(1.0, 0.5).at(1e-6) == 1.0  # zCDP alone would say 5.2
    assert Cost(100.0, 0.5).at(1e-6) == epsilon_of(0.5, 1e-6)
    assert Cost(math.inf, 0.5).at(0) == math.inf
    assert Cost().at(1e-6) == Cost().at(0) == epsilon_of(0, 1e-6) == 0
    assert epsilon_of(math.inf, 1e-6) == Exact().cost(Norms(1, 1)).at(1e-6) == math.inf


def test_replacement_is_twice_a_removal_unless_the_query_knows_better():
    signed, counts, size = Sensitivity(3, 2), Sensitivity(1, 1, 2, math.sqrt(2)), Sensitivity(1, 1, 0, 0)
    assert signed.of("add-remove") == (3, 2, 1)
    assert signed.of("replace") == (6, 4, 1)
    assert counts.of("replace") == (2, math.sqrt(2), 1)
    assert size.of("replace") == (0, 0, 1)


def test_a_person_moves_a_sum_by_all_rows_at_all_pooled_sites():
    norms, unit = Sensitivity(3, 2, 4, 2.5), Unit(rows=5, sites=3)
    assert protect(norms, ProtectedChange(Unit()), pooled=True) == (3, 2, 1)
    assert protect(norms, ProtectedChange(unit), pooled=False) == (15, 10, 5)  # each site adds its own noise
    assert protect(norms, ProtectedChange(unit), pooled=True) == (45, 30, 15)
    assert protect(norms, ProtectedChange(unit, "replace"), pooled=True) == (60, 37.5, 15)
    assert times_charged(unit, pooled=False) == 3
    assert times_charged(unit, pooled=True) == times_charged(Unit(rows=5), pooled=False) == 1


@given(st.data())
@settings(deadline=None)
def test_no_person_pays_more_than_the_most_charged_site(data):
    """Releases asked of any sites, noised by each site or in their sum; a person with rows at any few of the sites."""
    sites = data.draw(st.integers(1, 5))
    unit = Unit(sites=data.draw(st.integers(1, sites)))
    person = data.draw(st.sets(st.integers(0, sites - 1), min_size=1, max_size=unit.sites))
    charges, paid = [Cost()] * sites, Cost()
    for _ in range(data.draw(st.integers(1, 5))):
        asked = data.draw(st.sets(st.integers(0, sites - 1), min_size=1))
        pooled = data.draw(st.booleans())
        release = data.draw(st.sampled_from([Laplace(0.5), Laplace(0.1)]))
        sized_for = protect(Sensitivity(1, 1), ProtectedChange(unit), pooled=pooled).l2
        charged = release.cost(Norms(1, 1)) * times_charged(unit, pooled=pooled)
        for site in asked:
            charges[site] += charged
        answering = len(asked & person)
        if pooled:  # noise for `sized_for` sites, of which the person is at `answering`
            part = answering / sized_for
            paid += Cost(release.epsilon * part, release.cost(Norms(1, 1)).rho * part**2)
        else:
            paid += release.cost(Norms(1, 1)) * answering
    assert paid.epsilon <= max(charge.epsilon for charge in charges) * (1 + 1e-12)
    assert paid.rho <= max(charge.rho for charge in charges) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0, 1e-5), (-1, 1e-5), (math.nan, 1e-5), (1, 1), (1, -1), (1, math.nan), (1, math.inf)]
)
def test_a_budget_that_guarantees_nothing_is_refused(epsilon, delta):
    with pytest.raises(ValueError, match=r"epsilon must be|delta must be"):
        Budget(epsilon, delta)


def test_epsilon_and_delta_are_never_defaulted():
    for few in ((), (1.0,)):
        with pytest.raises(TypeError):
            Budget(*few)


def test_a_budget_is_spent_in_its_own_currency():
    noisy, pure, none = Budget(1.0, 1e-6), Budget(1.0, 0), Budget.none()
    assert (noisy.pure, pure.pure, none.pure) == (False, True, False)
    assert (noisy.exact, pure.exact, none.exact) == (False, False, True)
    assert noisy.rho == rho_of(1.0, 1e-6)
    assert pure.rho == 0.5
    laplace, gaussian, exact = (
        Laplace(0.4).cost(Norms(10, 1)),
        Gaussian(noisy.rho / 4).cost(Norms(1, 1)),
        Exact().cost(Norms(1, 1)),
    )
    assert noisy.share_of(gaussian) == pytest.approx(0.25)
    assert noisy.share_of(laplace) == pytest.approx(0.0008 / noisy.rho, rel=1e-6)
    assert pure.share_of(laplace) == pytest.approx(0.4)
    assert none.share_of(laplace) == none.share_of(exact) == 0
    assert noisy.covers(gaussian * 4)
    assert not noisy.covers(gaussian * 4.001)
    assert pure.covers(laplace * 2.5)
    assert not pure.covers(gaussian)  # has no pure epsilon at all
    assert not noisy.covers(exact)
    assert none.covers(exact)


def test_an_exactly_spent_budget_is_not_refused_for_rounding():
    budget, tenth = Budget(0.3, 0), Laplace(0.03).cost(Norms(1, 1))
    assert budget.covers(sum([tenth] * 10, Cost()))
    assert not budget.covers(sum([tenth] * 10, Cost()) + Exponential(1e-6).cost(Norms(1, 1)))


@pytest.mark.parametrize("unit", [{"rows": 0}, {"sites": 0}, {"rows": 2**21}, {"rows": 1.5}, {"people": 1}])
def test_units_that_protect_nobody_are_refused(unit):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(unit, Unit)


# ---------------------------------------------------------------------------------------------------------------------
# The best attacker


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=8),
    st.floats(0, 3),
)
def test_nobody_guesses_better_than_the_bound_between_any_two_laws(weights, epsilon):
    """Two laws are (epsilon, delta)-DP at their own delta, and the best attacker is right that often at most."""
    p, q = (np.array(side) + 1e-9 for side in zip(*weights, strict=True))
    p, q = p / p.sum(), q / q.sum()
    delta = max(np.maximum(one - np.exp(epsilon) * two, 0).sum() for one, two in ((p, q), (q, p)))
    right = np.maximum(p, q).sum() / 2  # the likelier table at each outcome, at even odds
    assert right <= best_guess(epsilon, float(delta)) + 1e-12


def test_the_bound_on_guesses_is_attained():
    for epsilon, delta in ((0.0, 0.0), (1.0, 0.0), (1.0, 0.01), (0.1, 0.5)):
        odds = math.exp(epsilon)
        slack = (1 - delta) / (1 + odds)
        p = np.array([delta, 0.0, odds * slack, slack])  # randomised response that tells the truth with delta
        q = np.array([0.0, delta, slack, odds * slack])
        assert p.sum() == pytest.approx(1)
        assert np.maximum(p - odds * q, 0).sum() == pytest.approx(delta)
        assert np.maximum(p, q).sum() / 2 == pytest.approx(best_guess(epsilon, delta))
    assert best_guess(1.0, 1.0) == 1.0
    assert best_guess(math.inf, 0.0) == 1.0


def test_a_belief_beyond_the_bound_is_as_rare_as_the_docstring_says():
    """Of a normal release that is (1, 1e-6)-DP, at beliefs above e^t / (1 + e^t)."""
    rho = rho_of(1.0, 1e-6)
    shift = math.sqrt(2 * rho)
    for above in (1.2, 2.0, 5.0):
        rare = math.erfc((above / shift - shift / 2) / math.sqrt(2)) / 2  # P(log(P / Q) > t) under P
        assert rare <= 1e-6 / (1 - math.exp(1.0 - above))


def test_what_stays_hidden_is_named_by_unit_and_neighbours():
    assert ProtectedChange().unknown == "whether any one row is in the data"
    assert ProtectedChange(Unit(3, 2)).unknown == "whether any one person's rows are in the data"
    assert ProtectedChange(neighbours="replace").unknown == "which of two rows is in the data"
    assert ProtectedChange(Unit(3), "replace").unknown == "which of two persons' rows are in the data"
