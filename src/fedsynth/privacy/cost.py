"""What releases cost: budgets, costs that add up, and the one place where a sensitivity meets a person's rows.

The currency is zero-concentrated differential privacy (zCDP; Bun & Steinke, arXiv 1605.02658) beside pure differential
privacy: both add up, :func:`epsilon_of` turns a zCDP total into (epsilon, delta) by the tight conversion of Canonne,
Kamath & Steinke (arXiv 2004.00010, proposition 12).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec

from fedsynth.errors import InvalidParameter

if TYPE_CHECKING:
    Number = float
else:
    Number = float | None
"""A number that a file has as ``null`` where it is infinite or undefined: JSON has no word for that."""

# Sums of floats may overshoot an exactly spent budget by rounding; one part in a billion is not a leak.
ROUNDING = 1 + 1e-9

Neighbours = Literal["add-remove", "replace"]
"""Tables that a guarantee makes indistinguishable: with the rows of one person more, or with other rows in their place.

Where numbers of rows are public, only the second can hold: the tables have exactly the stated numbers of rows.
"""


def to_json(value: Any) -> Any:
    """Return data as JSON values; infinite and undefined numbers are ``null``."""
    return msgspec.json.decode(msgspec.json.encode(value))


class Norms(NamedTuple):
    """How far one person moves what noise is added to, in the L1 and the L2 norm."""

    l1: float
    l2: float


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
    return Norms(factor * norms.l1, factor * norms.l2)


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


class Cost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What releases cost one person: ``epsilon`` of pure DP (infinite where there is none) and ``rho`` of zCDP."""

    epsilon: Number = 0.0
    rho: Number = 0.0

    def __post_init__(self) -> None:
        """Take the ``null`` of a file for infinity."""
        for name in self.__struct_fields__:
            if getattr(self, name) is None:
                msgspec.structs.force_setattr(self, name, math.inf)

    def __add__(self, other: Cost) -> Cost:
        """Return the cost of both (composition)."""
        return Cost(self.epsilon + other.epsilon, self.rho + other.rho)

    def __mul__(self, times: float) -> Cost:
        """Return the cost of ``times`` such releases."""
        return Cost(self.epsilon * times, self.rho * times) if times else Cost()

    def at(self, delta: float) -> float:
        """Return the smallest known epsilon for which this is (epsilon, delta)-DP."""
        return min(self.epsilon, epsilon_of(self.rho, delta)) if delta else self.epsilon


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

    def covers(self, cost: Cost) -> bool:
        """Whether a total cost stays within the budget."""
        if self.exact:
            return True
        return cost.epsilon <= self.epsilon * ROUNDING if self.pure else cost.rho <= self.rho * ROUNDING

    def share_of(self, cost: Cost) -> float:
        """Return which part of the budget a cost is (1 is all of it); 0 for a budget without end."""
        if self.exact:
            return 0.0
        return cost.epsilon / self.epsilon if self.pure else cost.rho / self.rho


def epsilon_of(rho: float, delta: float) -> float:
    """Return the smallest known epsilon such that ``rho``-zCDP implies (epsilon, delta)-DP.

    Every order ``a > 1`` gives a valid epsilon (arXiv 2004.00010, proposition 12), so the numerical minimum over
    orders is sound whether or not it is the exact one.
    """
    if rho == 0:
        return 0.0
    if math.isinf(rho):
        return math.inf

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
    return max(0.0, min(at_left, at_right))


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
