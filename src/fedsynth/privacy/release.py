"""What noise a number gets before it leaves a site, as data: who adds it and how is decided elsewhere.

A release states its price and follows from it: noise is sized by the sensitivity that a site derives itself from
query, schema and unit, so that the price holds whatever was asked.
"""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

from fedsynth.errors import InvalidParameter
from fedsynth.privacy.cost import Budget, Cost

SMALLEST_RHO = 1e-6
SMALLEST_EPSILON = 1e-3
# Noise is rounded up by a few units in the last place, so that what is stated holds after every rounding on the way.
_UP = 1 + 2.0**-49

Rho = Annotated[float, msgspec.Meta(ge=SMALLEST_RHO, le=1e12)]
Epsilon = Annotated[float, msgspec.Meta(ge=SMALLEST_EPSILON, le=1e6)]


class Gaussian(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="gaussian"):
    """Discrete Gaussian noise on an integer vector, at ``rho`` zCDP (arXiv 2004.00010, theorem 14)."""

    rho: Rho

    def sigma(self, l2: float) -> float:
        """Return the noise parameter for an answer that one person moves by ``l2``; rounded up, so that rho holds."""
        return l2 / math.sqrt(2 * self.rho) * _UP

    def cost(self, l1: float, l2: float) -> Cost:
        """Return what it costs: no pure epsilon covers it."""
        return Cost(math.inf, self.rho)


class Laplace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="laplace"):
    """Discrete Laplace noise on an integer vector: pure ``epsilon`` DP."""

    epsilon: Epsilon

    def scale(self, l1: float) -> float:
        """Return the noise scale for an answer that one person moves by ``l1``; rounded up, so that epsilon holds."""
        return l1 / self.epsilon * _UP

    def cost(self, l1: float, l2: float) -> Cost:
        """Return what it costs.

        A cell that moves by d has pure epsilon d / b, hence d^2 / (2 b^2) zCDP (arXiv 1605.02658, proposition 4); cells
        are independent, so that together they cost l2^2 / (2 b^2), at most epsilon^2 / 2 since l2 <= l1. No question
        costs less than ``SMALLEST_RHO``, so that an account bounds their number.
        """
        scale = self.scale(l1)
        return Cost(self.epsilon, max(SMALLEST_RHO, l2**2 / (2 * scale**2)) if scale else SMALLEST_RHO)


class Exponential(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="exponential"):
    """One draw of the exponential mechanism at ``rho`` zCDP.

    A draw at ``epsilon`` is ``epsilon``-bounded-range, hence ``epsilon**2 / 8`` zCDP (Cesar & Rogers, arXiv
    2004.07223); no monotonicity is assumed.
    """

    rho: Rho

    @property
    def epsilon(self) -> float:
        """Parameter of the draw; rounded down, so that ``rho`` holds in floats."""
        return math.sqrt(8 * self.rho) / _UP

    def cost(self, l1: float, l2: float) -> Cost:
        """Return what it costs: the mechanism is pure too."""
        return Cost(self.epsilon, self.rho)


class Exact(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="exact"):
    """No noise and no privacy, for labelled baselines; a site refuses it by default."""

    def cost(self, l1: float, l2: float) -> Cost:
        """Return infinity: no finite cost covers it."""
        return Cost(math.inf, math.inf)


class Public(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="public"):
    """A fact that the site's own policy declares to be no secret (its number of rows, for one)."""

    def cost(self, l1: float, l2: float) -> Cost:
        """Return zero: what is public already is not released again."""
        return Cost()


class AdaptiveSelection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="adaptive"):
    """``steps`` private draws, each but the last followed by a noisy look at what was drawn.

    Looks steer later draws, so they are paid for although they never leave the site.
    """

    pick: Exponential | Exact
    look: Gaussian | Laplace | Exact
    steps: Annotated[int, msgspec.Meta(ge=2, le=64)]

    def cost(self, l1: float, l2: float) -> Cost:
        """Return what all draws and looks cost; a look at one table has both norms 1."""
        return self.pick.cost(l1, l2) * self.steps + self.look.cost(l1, l2) * (self.steps - 1)


class Deposit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="deposit"):
    """Exact answers for a vault: nothing is released yet, and all that the vault releases costs at most this.

    Exactly one of ``rho`` (zCDP) and ``epsilon`` (pure DP) is not zero; both zero is a vault without limit, for runs
    without noise.
    """

    rho: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.0
    epsilon: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0

    def __post_init__(self) -> None:
        """Refuse a deposit with two prices, and zeros with a sign, which would be a second way to say the same."""
        if self.rho and self.epsilon:
            raise InvalidParameter("a deposit has one price; set rho or epsilon, not both")
        if 0 < self.rho < SMALLEST_RHO or 0 < self.epsilon < SMALLEST_EPSILON:
            raise InvalidParameter("a deposit below the least price is not answered; deposit a larger share")
        if math.copysign(1, self.rho) < 0 or math.copysign(1, self.epsilon) < 0:
            raise InvalidParameter("the price of a deposit must be positive, or 0 without a sign")

    def cost(self, l1: float, l2: float) -> Cost:
        """Return what was set apart."""
        if self.epsilon:
            return Cost(self.epsilon, self.epsilon**2 / 2)
        return Cost(math.inf, self.rho if self.rho else math.inf)


Noise = Gaussian | Laplace | Exact
Release = Gaussian | Laplace | Exponential | AdaptiveSelection | Deposit | Public | Exact


def kind_of(release: Release) -> str:
    """Return the release's tag: what policies, plans and ledgers call it."""
    return str(release.__struct_config__.tag)


def noise_for(budget: Budget, share: float, times: float = 1, *, at_site: bool = True) -> Noise:
    """Return the noise of a sum that costs ``share`` of a budget when it is charged ``times`` times.

    Gaussian for (epsilon, delta), Laplace for delta = 0, none for a budget without guarantee. Sites answer no question
    below a least price; a vault (not ``at_site``) has none.
    """
    _positive("share", share)
    if budget.exact:
        return Exact()
    if budget.pure:
        return Laplace(_enough("epsilon", share * budget.epsilon / times, SMALLEST_EPSILON * at_site))
    return Gaussian(_enough("rho", share * budget.rho / times, SMALLEST_RHO * at_site))


def draw_for(budget: Budget, share: float, times: float = 1, *, at_site: bool = True) -> Exponential | Exact:
    """Return the draw that costs ``share`` of a budget when it is charged ``times`` times."""
    _positive("share", share)
    if budget.exact:
        return Exact()
    if budget.pure:
        epsilon = _enough("epsilon", share * budget.epsilon / times, math.sqrt(8 * SMALLEST_RHO) * at_site)
        return Exponential(max(SMALLEST_RHO * at_site, epsilon**2 / 8))
    return Exponential(_enough("rho", share * budget.rho / times, SMALLEST_RHO * at_site))


def deposit_for(budget: Budget, share: float) -> Deposit:
    """Return the deposit that costs one person ``share`` of a budget."""
    _positive("share", share)
    if budget.exact:
        return Deposit()
    if budget.pure:
        return Deposit(epsilon=_enough("epsilon", share * budget.epsilon, SMALLEST_EPSILON))
    return Deposit(rho=_enough("rho", share * budget.rho, SMALLEST_RHO))


def _positive(what: str, number: float) -> None:
    if not (math.isfinite(number) and number > 0):
        raise InvalidParameter(f"a release's share of the budget must be positive, not {what} = {number}")


def _enough(what: str, price: float, least: float) -> float:
    _positive(what, price)
    if price < least:
        raise InvalidParameter(
            f"a release of {what} = {price:.3g} is below the least that sites answer ({least:g}); use fewer rounds, or "
            "a larger epsilon"
        )
    return price
