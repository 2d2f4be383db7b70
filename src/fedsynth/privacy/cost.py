"""What releases cost: budgets, costs that add up, and the one place where a sensitivity meets a person's rows.

The currency is zero-concentrated differential privacy (zCDP; Bun & Steinke, arXiv 1605.02658) beside pure differential
privacy: both add up, :func:`epsilon_of` turns a zCDP total into (epsilon, delta) by the tight conversion of Canonne,
Kamath & Steinke (arXiv 2004.00010, proposition 12). Noise on random samples of rows (:mod:`~fedsynth.privacy.sampling`)
has Renyi divergences that are not linear in the order: such a cost has a curve beside its rho, and a budget prices it
at one order (:attr:`Budget.order`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter

if TYPE_CHECKING:
    Number = float
else:
    Number = float | None
"""A number that a file has as ``null`` where it is infinite or undefined: JSON has no word for that."""

# Sums of floats may overshoot an exactly spent budget by rounding; one part in a billion is not a leak.
ROUNDING = 1 + 1e-9

ORDERS: tuple[int, ...] = (*range(2, 17), *(round(2.0 ** (4 + step / 6)) for step in range(1, 49)))
"""The orders of a cost's curve: integers from 2 to 4096, every one up to 16 and then about six to a doubling.

At integer orders the moments of sampled discrete Gaussian noise are known (:mod:`~fedsynth.privacy.sampling`).
"""
_POINTS = (1, *ORDERS)  # at order 1 every log-moment is 0

Neighbours = Literal["add-remove", "replace"]
"""Tables that a guarantee makes indistinguishable: with the rows of one person more, or with other rows in their place.

Where numbers of rows are public, only the second can hold: the tables have exactly the stated numbers of rows.
"""


def to_json(value: Any) -> Any:
    """Return data as JSON values; infinite and undefined numbers are ``null``."""
    return msgspec.json.decode(msgspec.json.encode(value))


class Norms(NamedTuple):
    """How far one person moves what noise is added to, in the L1 and the L2 norm, and with how many ``rows``."""

    l1: float
    l2: float
    rows: int = 1


@dataclass(frozen=True)
class Sensitivity:
    """How far one record moves an answer in the L1 and the L2 norm: added or removed, and replaced by another one.

    A replacement is a removal and an addition, so twice the norms always hold for it; a query that knows better (two
    cells of a table move by one each: sqrt(2) in L2) says so.
    """

    l1: float
    l2: float
    replace_l1: float | None = None
    replace_l2: float | None = None

    def of(self, neighbours: Neighbours) -> Norms:
        """Return the norms between neighbouring tables that differ in one record."""
        if neighbours == "add-remove":
            return Norms(self.l1, self.l2)
        l1 = 2 * self.l1 if self.replace_l1 is None else self.replace_l1
        l2 = 2 * self.l2 if self.replace_l2 is None else self.replace_l2
        return Norms(l1, l2)


class Unit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who is protected: a person with at most ``rows`` rows at a site, at no more than ``sites`` sites."""

    rows: Annotated[int, msgspec.Meta(ge=1, le=2**20)] = 1
    sites: Annotated[int, msgspec.Meta(ge=1, le=2**20)] = 1


ONE_ROW = Unit()
"""Persons have one row, at one site."""


def protect(sensitivity: Sensitivity, unit: Unit, neighbours: Neighbours, *, pooled: bool) -> Norms:
    """Return how far one person moves what noise is added to.

    The rows of a person at one site move an answer by at most ``unit.rows`` times what one row does (triangle
    inequality). Where answers are added up before noise is (``pooled``: a trusted server, secure sums), the person's
    rows at all ``unit.sites`` sites may be in the sum. Where each site adds noise of its own, its answers are separate
    releases about the person, for which :func:`times_charged` is the factor.
    """
    factor = unit.rows * (unit.sites if pooled else 1)
    norms = sensitivity.of(neighbours)
    return Norms(factor * norms.l1, factor * norms.l2, factor)


def times_charged(unit: Unit, *, pooled: bool) -> int:
    """Return how many times its cost a release is charged at each site that it is asked of.

    With that factor no person pays more for all releases together than the most charged site does. Proof: let a person
    be at s = ``unit.sites`` sites, of which j take part in a release of cost c. Where noise is pooled it is sized for s
    sites, so that the person pays at most c (j / s)^2 of zCDP or c j / s of pure DP; charged c at each of the j, the
    release adds c j / s to the mean charge of the person's sites. Where each site adds its own noise, the person pays
    c j; charged c s at each of the j, it adds c j to that mean. So the mean, hence the largest charge, bounds what the
    person pays, even when the person's sites take part in different sums. (Of a person at fewer sites the mean is
    larger still.)
    """
    return 1 if pooled else unit.sites


class Cost(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What releases cost one person: ``epsilon`` of pure DP (infinite where there is none) and ``rho`` of zCDP.

    ``curve`` is what releases on random samples of rows cost beside ``rho``: for each a of :data:`ORDERS` a bound on
    the log-moment (a - 1) D_a, D_a the Renyi divergence at order a in either direction. It is empty where there are no
    such releases. The divergence of everything at order a is at most rho a + D_a.
    """

    # Files leave out an empty curve and nothing else: values with a factory of their own are always written.
    epsilon: Number = msgspec.field(default_factory=float)
    rho: Number = msgspec.field(default_factory=float)
    curve: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Take the ``null`` of a file for infinity, and refuse a curve that is none."""
        for name in ("epsilon", "rho"):
            if getattr(self, name) is None:
                msgspec.structs.force_setattr(self, name, math.inf)
        if self.curve and not (len(self.curve) == len(ORDERS) and all(0 <= moment < math.inf for moment in self.curve)):
            raise InvalidParameter(
                f"the curve of a cost has {len(ORDERS)} numbers, finite and not negative; this one was not written by "
                "this version of fedsynth"
            )

    def __add__(self, other: Cost) -> Cost:
        """Return the cost of both (composition)."""
        curve = self.curve or other.curve
        if self.curve and other.curve:
            curve = tuple(one + two for one, two in zip(self.curve, other.curve, strict=True))
        return Cost(self.epsilon + other.epsilon, self.rho + other.rho, curve)

    def __mul__(self, times: float) -> Cost:
        """Return the cost of ``times`` such releases."""
        if not times:
            return Cost()
        return Cost(self.epsilon * times, self.rho * times, tuple(moment * times for moment in self.curve))

    def at(self, delta: float) -> float:
        """Return the smallest known epsilon for which this is (epsilon, delta)-DP."""
        if not delta:
            return self.epsilon
        if not self.curve:
            return min(self.epsilon, epsilon_of(self.rho, delta))
        orders = _fine_orders()
        excess = orders - 1
        divergences = orders * self.rho + np.interp(orders, _POINTS, (0.0, *self.curve)) / excess
        converted = divergences + np.log(excess) - (orders * np.log(orders) + math.log(delta)) / excess
        return min(self.epsilon, max(0.0, float(converted.min())))

    def sampled(self, order: float) -> float:
        """Return the zCDP that has, at a real ``order`` > 1, at least the divergence of the curve: D / order.

        Between neighbouring orders of :data:`ORDERS`, and 1, log-moments are interpolated on straight lines; beyond
        the largest nothing is known, and the result is infinite.

        Proof that this is an upper bound: let P and Q be the laws of one release under two neighbouring tables. Its
        log-moment (a - 1) D_a(P || Q) = log E_Q (P / Q)^a is convex in a (Hoelder's inequality) and 0 at a = 1, so
        that it lies below the straight line between its values at any two orders, hence below that between bounds on
        them. That holds whatever was released before, and a sum of such lines is the line between the sums.
        """
        if not self.curve:
            return 0.0
        if order > ORDERS[-1]:
            return math.inf
        above = bisect_left(_POINTS, order)
        low, high = _POINTS[above - 1], _POINTS[above]
        moments = (0.0, *self.curve)
        part = (order - low) / (high - low)
        moment: float = (1 - part) * moments[above - 1] + part * moments[above]
        return moment / (order * (order - 1))


@dataclass(frozen=True)
class Budget:
    """What all releases about one person may cost together: (epsilon, delta)-DP.

    ``delta`` should stay well below one over the number of records. With ``delta = 0`` the guarantee is pure and noise
    is Laplace; :meth:`none` is no guarantee at all, and no noise.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        """Refuse values that guarantee nothing, with the usual range in the message."""
        if math.isnan(self.epsilon) or self.epsilon <= 0:
            raise InvalidParameter(f"epsilon must be a positive number, not {self.epsilon}; usual values are 0.1 to 10")
        if not 0 <= self.delta < 1:
            raise InvalidParameter(
                f"delta must lie in [0, 1), not {self.delta}; choose one well below 1 / records, for example 1e-6, "
                "or 0 for pure differential privacy"
            )

    @classmethod
    def none(cls) -> Budget:
        """Return the budget of runs without noise: NOT PRIVATE, for baselines; sites refuse it by default."""
        return cls(math.inf, 0.0)

    @property
    def exact(self) -> bool:
        """Whether releases have no noise."""
        return math.isinf(self.epsilon)

    @property
    def pure(self) -> bool:
        """Whether the budget is spent in pure DP."""
        return self.delta == 0 and not self.exact

    @cached_property
    def rho(self) -> float:
        """The largest zCDP total that this budget covers; for pure budgets what its epsilon implies."""
        if self.exact:
            return math.inf
        return self.epsilon**2 / 2 if self.pure else rho_of(self.epsilon, self.delta)

    @cached_property
    def order(self) -> float:
        """The real order of Renyi divergence at which :attr:`rho` gives the budget's epsilon; infinite without delta.

        A limit is a filter at this one order, which is fixed with the limit: what is asked next may depend on all
        that was answered, also in questions that overlap in time, and the guarantee still holds, since at a fixed
        order divergences add up (Feldman & Zrnic, arXiv 2008.11193; concurrent questions: arXiv 2309.05901).
        Divergences of at most rho times this order in all give (epsilon, delta) by proposition 12 of arXiv 2004.00010.
        So ``cost.rho <= rho`` is the filter where costs are linear in the order.
        """
        return _tight(self.rho, self.delta)[1] if self.delta and not self.exact else math.inf

    def price(self, cost: Cost) -> float:
        """Return a cost as one number that adds up: epsilon where delta is 0, else rho of zCDP at :attr:`order`.

        A cost with a curve has the rho whose divergence is that of the cost at the budget's order (at least:
        :meth:`Cost.sampled`); it is infinite for a budget without limit, and for one so small that its order is above
        all :data:`ORDERS`.
        """
        return cost.epsilon if self.pure else cost.rho + cost.sampled(self.order)

    def covers(self, cost: Cost) -> bool:
        """Whether a total cost stays within the budget."""
        return self.exact or self.price(cost) <= (self.epsilon if self.pure else self.rho) * ROUNDING

    def share_of(self, cost: Cost) -> float:
        """Return which part of the budget a cost is (1 is all of it); 0 for a budget without end."""
        return 0.0 if self.exact else self.price(cost) / (self.epsilon if self.pure else self.rho)


def epsilon_of(rho: float, delta: float) -> float:
    """Return the smallest known epsilon such that ``rho``-zCDP implies (epsilon, delta)-DP.

    Every order ``a > 1`` gives a valid epsilon (arXiv 2004.00010, proposition 12), so the numerical minimum over
    orders is sound whether or not it is the exact one.
    """
    if rho == 0:
        return 0.0
    if math.isinf(rho):
        return math.inf
    return max(0.0, _tight(rho, delta)[0])


def _tight(rho: float, delta: float) -> tuple[float, float]:
    """Return the numerical minimum over orders of the conversion of ``rho`` > 0, and the order that attains it."""

    def at_order(log_excess: float) -> float:
        excess = math.exp(log_excess)  # a - 1
        order = 1 + excess
        return order * rho + log_excess - (order * math.log1p(excess) + math.log(delta)) / excess

    low, high = -12.0, 40.0
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = at_order(left), at_order(right)
    while high - low > 1e-10:
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = at_order(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = at_order(right)
    return (at_left, 1 + math.exp(left)) if at_left <= at_right else (at_right, 1 + math.exp(right))


@lru_cache
def rho_of(epsilon: float, delta: float) -> float:
    """Return the largest ``rho`` (to 1 part in 1e12, from below) whose zCDP implies (epsilon, delta)-DP."""
    low, high = 0.0, 1.0
    while epsilon_of(high, delta) < epsilon:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if epsilon_of(middle, delta) <= epsilon:
            low = middle
        else:
            high = middle
    return low


@lru_cache
def group_epsilon(budget: Budget, times: int) -> float:
    """Return an epsilon at the budget's delta between tables that are ``times`` steps between neighbours apart.

    It holds for whatever the budget covers. At its order a (:attr:`Budget.order`) the divergence between neighbours is
    at most a rho, which gives (e, d(e))-DP for every e, log d(e) = (a - 1) (a rho + log(1 - 1/a) - e) - log a (arXiv
    2004.00010, proposition 12 solved for delta), and over k steps (k e, d(e) (1 + exp(e) + ... + exp((k - 1) e))). Of
    that delta the logarithm is convex in e, with slope k - a in the end: for k < a it falls throughout, and the least e
    is taken at which it is the budget's delta. For k >= a nothing is known, and the result is infinite.
    """
    order = budget.order
    if times >= order or math.isinf(order):
        return math.inf

    def excess(epsilon: float) -> float:
        one = (order - 1) * (order * budget.rho + math.log1p(-1 / order) - epsilon) - math.log(order)
        return one + float(np.logaddexp.reduce(epsilon * np.arange(times))) - math.log(budget.delta)

    low, high = 0.0, budget.epsilon
    while excess(high) > 0:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return times * high


@lru_cache
def _fine_orders() -> NDArray[np.float64]:
    """Return real orders for conversions, so close that the best of them is nearly the best of all."""
    gaps = [np.linspace(low, high, 65)[1:] for low, high in pairwise(ORDERS)]
    return np.concatenate([1 + np.geomspace(2.0**-12, 1, 257), *gaps])
