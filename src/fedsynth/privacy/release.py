"""Releases: which noise a statistic gets before it leaves a site, and what that costs one person, as data.

A release states its privacy cost (rho or epsilon), and its noise follows from that cost; for samples of rows it states
the noise, and the cost follows. The noise is sized by the sensitivity that the site itself derives from query, schema
and unit of protection, so the cost holds for every question. Other modules decide who adds the noise.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Annotated

import msgspec

from fedsynth.errors import InvalidParameter, Unsupported
from fedsynth.privacy.cost import ORDERS, Budget, Cost, Norms
from fedsynth.privacy.sampling import log_moments

SMALLEST_RHO = 1e-6
SMALLEST_EPSILON = 1e-3
# Noise is rounded up by a few units in the last place, so that the stated price holds despite all rounding errors.
_UP = 1 + 2.0**-49

Rho = Annotated[float, msgspec.Meta(ge=SMALLEST_RHO, le=1e12)]
Epsilon = Annotated[float, msgspec.Meta(ge=SMALLEST_EPSILON, le=1e6)]
SMALLEST_RATE = 1e-4
Rate = Annotated[float, msgspec.Meta(ge=SMALLEST_RATE, le=1)]
SMALLEST_MULTIPLIER, LARGEST_MULTIPLIER = 0.3, 1e4
Multiplier = Annotated[float, msgspec.Meta(ge=SMALLEST_MULTIPLIER, le=LARGEST_MULTIPLIER)]
MOST_STEPS = 4096  # of one training release
Steps = Annotated[int, msgspec.Meta(ge=1, le=MOST_STEPS)]
MOST_DRAWS = 64  # of one selection


class Gaussian(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="gaussian"):
    """The release of an integer vector with discrete Gaussian noise in each entry, at a cost of ``rho`` of zCDP.

    The noise follows from that cost and the sensitivity (arXiv 2004.00010, theorem 14). In every class of release,
    ``cost(norms)`` is the cost to one person who can change the statistic by :class:`~fedsynth.privacy.cost.Norms`; it
    depends on them only where the class says so.
    """

    rho: Rho

    def sigma(self, l2: float) -> float:
        """Return the noise's sigma for the L2 sensitivity ``l2``, in its units, rounded up so that ``rho`` holds."""
        return l2 / math.sqrt(2 * self.rho) * _UP

    def cost(self, norms: Norms) -> Cost:
        """Return the cost to one person: ``rho`` of zCDP and no finite pure epsilon."""
        return Cost(math.inf, self.rho)


class Laplace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="laplace"):
    """The release of an integer vector with discrete Laplace noise in each entry, at ``epsilon`` of pure DP."""

    epsilon: Epsilon

    def scale(self, l1: float) -> float:
        """Return the noise's scale b for the L1 sensitivity ``l1``, in its units, rounded up so that ``epsilon`` holds.

        The noise has the law P(k) ∝ exp(-|k| / b).
        """
        return l1 / self.epsilon * _UP

    def cost(self, norms: Norms) -> Cost:
        """Return the cost to one person: ``epsilon`` of pure DP, and the zCDP that the noise implies.

        An entry that changes by d has pure epsilon d / b, hence d^2 / (2 b^2) of zCDP (arXiv 1605.02065, proposition
        1.4). Entries have independent noise, so together they cost l2^2 / (2 b^2), at most epsilon^2 / 2 since l2 <=
        l1. No question costs less than ``SMALLEST_RHO`` (1e-6), so that an account bounds the number of questions.
        """
        scale = self.scale(norms.l1)
        return Cost(self.epsilon, max(SMALLEST_RHO, norms.l2**2 / (2 * scale**2)) if scale else SMALLEST_RHO)


class SampledGaussian(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="sampled"):
    """The release of ``steps`` sums over random samples of rows, each with discrete Gaussian noise: DP-SGD.

    Every row is in a step's sample with probability ``rate``, drawn from the site's own secret. ``multiplier`` is the
    noise's standard deviation divided by the L2 sensitivity. Neighbouring tables differ by adding or removing a
    person's rows.
    """

    rate: Rate
    multiplier: Multiplier
    steps: Steps

    @property
    def noise(self) -> Gaussian:
        """The noise of one step, priced without sampling; sigma is at least ``multiplier`` times the sensitivity."""
        return Gaussian(1 / (2 * self.multiplier**2))

    def weakest(self, other: SampledGaussian) -> SampledGaussian:
        """Return a release that protects no better than either: the larger rate and steps, the smaller multiplier."""
        return SampledGaussian(
            max(self.rate, other.rate), min(self.multiplier, other.multiplier), max(self.steps, other.steps)
        )

    def cost(self, norms: Norms) -> Cost:
        """Return the cost of all steps to a person with ``norms.rows`` rows that are sampled independently.

        It is a curve, proved in :mod:`~fedsynth.privacy.sampling`; without sampling (rate 1) it is the rho of the
        noise. If all steps cost almost nothing, rho is added, so that no question costs less than ``SMALLEST_RHO``
        (1e-6) at any order. (If each log-moment is at least r a (a - 1) at the orders of the curve, so is the line
        between them, because r a (a - 1) is convex.)
        """
        rate = 1.0 if self.rate == 1 else -math.expm1(norms.rows * math.log1p(-self.rate)) * _UP
        if rate >= 1:
            return Cost(math.inf, max(SMALLEST_RHO, self.steps * self.noise.rho))
        total = Cost(math.inf, 0.0, log_moments(rate, self.multiplier)) * self.steps
        least = min(moment / (order * (order - 1)) for order, moment in zip(ORDERS, total.curve, strict=True))
        return total + Cost(0.0, max(0.0, SMALLEST_RHO - least))


class Exponential(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="exponential"):
    """The release of one candidate's index, drawn by the exponential mechanism at a cost of ``rho`` of zCDP.

    A draw at ``epsilon`` has bounded range ``epsilon``, hence costs ``epsilon**2 / 8`` of zCDP (Cesar & Rogers, arXiv
    2004.07223); no monotonicity is assumed.
    """

    rho: Rho

    @property
    def epsilon(self) -> float:
        """The epsilon of the draw, ``sqrt(8 * rho)``, rounded down so that ``rho`` holds in floating point."""
        return math.sqrt(8 * self.rho) / _UP

    def cost(self, norms: Norms) -> Cost:
        """Return the cost to one person: ``rho`` of zCDP and ``epsilon`` of pure DP."""
        return Cost(self.epsilon, self.rho)


class Exact(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="exact"):
    """The release of an answer without noise, for baselines marked NOT PRIVATE; a site refuses it by default."""

    def cost(self, norms: Norms) -> Cost:
        """Return an infinite cost."""
        return Cost(math.inf, math.inf)


class Public(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="public"):
    """The release, without noise, of a fact that the site's own policy declares public, such as its number of rows."""

    def cost(self, norms: Norms) -> Cost:
        """Return zero."""
        return Cost()


class AdaptiveSelection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="adaptive"):
    """The release of the indices of ``steps`` candidates that a site draws one after another by the mechanism ``pick``.

    A candidate is a contingency table. After each draw but the last, the site measures the drawn candidate's table with
    the noise of ``look``. The measurements influence later draws, so they are charged although they never leave the
    site.
    """

    pick: Exponential | Exact
    look: Gaussian | Laplace | Exact
    steps: Annotated[int, msgspec.Meta(ge=2, le=MOST_DRAWS)]

    def cost(self, norms: Norms) -> Cost:
        """Return the cost of all draws and measurements to one person.

        Only the ratio of L2 to L1 in ``norms`` matters, for which sites take 1, its largest value.
        """
        return self.pick.cost(norms) * self.steps + self.look.cost(norms) * (self.steps - 1)


class Deposit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="deposit"):
    """Exact answers for a vault: nothing is released yet, and everything that the vault releases costs at most this.

    For a vault see :class:`~fedsynth.federation.vault.Vault`. One of ``rho`` (zCDP) and ``epsilon`` (pure DP) is
    positive; if both are zero, the vault has no limit, for runs without noise. Raises :class:`InvalidParameter` if both
    are positive, and for one below the minimum that sites accept (rho 1e-6, epsilon 1e-3).
    """

    rho: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.0
    epsilon: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0

    def __post_init__(self) -> None:
        if self.rho and self.epsilon:
            raise InvalidParameter("a deposit has one price; set either rho or epsilon, not both")
        if 0 < self.rho < SMALLEST_RHO or 0 < self.epsilon < SMALLEST_EPSILON:
            raise InvalidParameter("a deposit below the minimum price is not answered; deposit a larger share")
        if math.copysign(1, self.rho) < 0 or math.copysign(1, self.epsilon) < 0:
            raise InvalidParameter("the price of a deposit must not be -0.0; give a positive number, or 0")

    def cost(self, norms: Norms) -> Cost:
        """Return the deposit as a cost; infinite without a limit."""
        return Cost.of(self.epsilon or self.rho or math.inf, pure=bool(self.epsilon))


Noise = Gaussian | Laplace | Exact
Release = Gaussian | SampledGaussian | Laplace | Exponential | AdaptiveSelection | Deposit | Public | Exact


def kind_of(release: Release) -> str:
    """Return the name of a release's class in policies, plans and ledgers, such as "gaussian" or "sampled"."""
    return str(release.__struct_config__.tag)


def noise_for(budget: Budget, share: float, times: float = 1, *, at_site: bool = True) -> Noise:
    """Return the noise of a sum that costs ``share`` of a ``budget`` (1: all of it) when charged ``times`` times.

    It is Gaussian for (epsilon, delta), Laplace for delta = 0, and none (:class:`Exact`) for a budget without
    guarantee. ``times`` is the number of charges per release, :func:`~fedsynth.privacy.cost.times_charged`; each gets
    an equal part of the share. ``at_site`` is true for releases that sites are asked for: they refuse costs below a
    minimum (rho 1e-6, epsilon 1e-3), which a vault does not have. Raises :class:`InvalidParameter` for a share that is
    not positive and finite, or a cost below that minimum.
    """
    _positive("share", share)
    if budget.exact:
        return Exact()
    if budget.pure:
        return Laplace(_enough("epsilon", share * budget.epsilon / times, SMALLEST_EPSILON * at_site))
    return Gaussian(_enough("rho", share * budget.rho / times, SMALLEST_RHO * at_site))


@lru_cache(maxsize=256)
def sampled_for(
    budget: Budget, share: float, rate: float, steps: int, rows_of_person: int = 1, times: float = 1
) -> SampledGaussian | Exact:
    """Return the noise of ``steps`` sums over samples of rows that together cost ``share`` of a ``budget`` (1: all).

    ``rate``, ``steps`` and ``times`` are as in :class:`SampledGaussian` and :func:`noise_for`; ``rows_of_person`` is
    the number of a person's rows in a noisy sum (:attr:`Norms.rows <fedsynth.privacy.cost.Norms>`). The noise
    multiplier is the smallest (at least 0.3) at which the cost stays within the share, to one part in 10,000; a budget
    without guarantee gives no noise (:class:`Exact`).

    A budget counts all costs at one order of Renyi divergence, at which they add up: a method that trains for R rounds
    gives each round ``share`` / R. Raises :class:`Unsupported` for delta = 0, and :class:`InvalidParameter` for an
    invalid rate, number of steps or share, and for a share below the cost of the largest supported noise.
    """
    _positive("share", share)
    try:
        msgspec.convert({"type": "sampled", "rate": rate, "multiplier": 1.0, "steps": steps}, SampledGaussian)
    except msgspec.ValidationError as error:
        raise InvalidParameter(
            f"cannot sample rows at rate = {rate} for {steps} steps ({error}); change the rate or the number of steps"
        ) from error
    if budget.exact:
        return Exact()
    if budget.pure:
        raise Unsupported(
            "training adds Gaussian noise, which is impossible with delta = 0; give the budget a delta well below "
            "1 / records, or choose a method that measures tables"
        )
    allowed = _enough("rho", share * budget.rho / times, SMALLEST_RHO)
    norms = Norms(1.0, 1.0, rows_of_person)

    def too_expensive(multiplier: float) -> bool:
        return budget.price(SampledGaussian(rate, multiplier, steps).cost(norms)) > allowed

    low, high = SMALLEST_MULTIPLIER, LARGEST_MULTIPLIER
    if too_expensive(high):
        raise InvalidParameter(
            f"{steps} steps on samples of {rate:g} of the rows cost more than rho = {allowed:.3g} with any noise; take "
            "fewer steps or rounds, smaller samples, or a larger epsilon"
        )
    if not too_expensive(low):
        return SampledGaussian(rate, low, steps)
    while high > low * (1 + 1e-5):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if too_expensive(middle) else (low, middle)
    digits = 10.0 ** (4 - math.floor(math.log10(high)))
    return SampledGaussian(rate, max(high, math.ceil(high * digits) / digits), steps)


def draw_for(budget: Budget, share: float, times: float = 1, *, at_site: bool = True) -> Exponential | Exact:
    """Return the exponential-mechanism draw that costs ``share`` of a ``budget`` (1: all) when charged ``times`` times.

    For a budget without guarantee it is :class:`Exact`: the candidate with the highest utility is taken. Parameters and
    errors are those of :func:`noise_for`.
    """
    _positive("share", share)
    if budget.exact:
        return Exact()
    if budget.pure:
        epsilon = _enough("epsilon", share * budget.epsilon / times, math.sqrt(8 * SMALLEST_RHO) * at_site)
        return Exponential(max(SMALLEST_RHO * at_site, epsilon**2 / 8))
    return Exponential(_enough("rho", share * budget.rho / times, SMALLEST_RHO * at_site))


def deposit_for(budget: Budget, share: float) -> Deposit:
    """Return the deposit that costs one person ``share`` of a ``budget`` (1: all of it), whatever is released from it.

    Raises the errors of :func:`noise_for`.
    """
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
            f"a release of {what} = {price:.3g} is below the minimum that sites answer ({least:g}); use fewer rounds, "
            "or a larger epsilon"
        )
    return price
