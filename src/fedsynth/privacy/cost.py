"""Privacy costs: budgets, costs that add up, and the effect of one person's rows on a sensitivity.

Costs are in zero-concentrated differential privacy (zCDP; Bun & Steinke, arXiv 1605.02065) and in pure differential
privacy. Both add up under composition. :func:`epsilon_of` converts a zCDP total to (epsilon, delta) by the tight
conversion of Canonne, Kamath & Steinke (arXiv 2004.00010, proposition 12). The Renyi divergences of noise on random
samples of rows (:mod:`~fedsynth.privacy.sampling`) are not linear in the order: such a cost has a curve, a bound for
each order, in addition to its rho, and a budget counts it at one order (:attr:`Budget.order`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from functools import cached_property, lru_cache
from itertools import pairwise
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter, Unsupported, whole

if TYPE_CHECKING:
    Number = float
else:
    Number = float | None
"""A number that files write as ``null`` if it is infinite or undefined, because JSON cannot express such numbers."""

# Sums of floats may exceed an exactly spent budget by rounding; one part in a billion is negligible.
ROUNDING = 1 + 1e-9

ORDERS: tuple[int, ...] = (*range(2, 17), *(round(2.0 ** (4 + step / 6)) for step in range(1, 49)))
"""The orders of a cost's curve: integers from 2 to 4096, all of them up to 16 and about six per doubling above.

The moments of sampled discrete Gaussian noise are known at integer orders (:mod:`~fedsynth.privacy.sampling`).
"""
_POINTS = (1, *ORDERS)  # at order 1 every log-moment is 0

Neighbours = Literal["add-remove", "replace"]
"""Neighbouring tables, which a guarantee makes indistinguishable: one person's rows are added or removed, or replaced.

If the numbers of rows are public, only "replace" is possible: the tables have exactly the stated numbers of rows.
"""


WEAK_DELTA = 0.01
"""A larger delta needs a yes by name (:func:`require_delta`): the guarantee may fail with that probability."""


def rounded_up(value: float, digits: int = 4) -> str:
    """Return a bound as text with up to ``digits`` significant digits that never states less than ``value``."""
    if not math.isfinite(value):
        return f"{value:g}"
    written = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(float(value)))
    return f"{float(written):.{digits}g}"


def in_full(value: float) -> str:
    """Return a number, such as a delta, as text with all its digits: a rounded one would state another guarantee."""
    return repr(float(value)).removesuffix(".0")


def to_json(value: Any) -> Any:
    """Convert numbers, containers, dataclasses and structs to JSON values; infinite numbers and NaN become ``None``."""
    return msgspec.json.decode(msgspec.json.encode(value))


class Norms(NamedTuple):
    """How far one person can change the statistic to which noise is added (:func:`protect`), as L1 and L2 distances.

    ``rows`` is the largest number of the person's rows in it.
    """

    l1: float
    l2: float
    rows: int = 1


@dataclass(frozen=True)
class Sensitivity:
    """How far one record can change a query's answer, as L1 and L2 distances in units of the answer.

    ``l1`` and ``l2`` are for adding or removing a record, ``replace_l1`` and ``replace_l2`` for replacing one. A
    replacement is a removal and an addition, so twice ``l1`` and ``l2`` always bound it, and are the default
    (``None``); a query may state smaller distances (in a table of counts, one count falls and another rises by one:
    sqrt(2) in L2).
    """

    l1: float
    l2: float
    replace_l1: float | None = None
    replace_l2: float | None = None

    def of(self, neighbours: Neighbours) -> Norms:
        """Return how far one record can change the answer between neighbouring tables."""
        if neighbours == "add-remove":
            return Norms(self.l1, self.l2)
        l1 = 2 * self.l1 if self.replace_l1 is None else self.replace_l1
        l2 = 2 * self.l2 if self.replace_l2 is None else self.replace_l2
        return Norms(l1, l2)


class Unit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The unit of protection: a person with at most ``rows`` rows per site, at no more than ``sites`` sites.

    A guarantee covers all rows of such a person together. The default protects single rows. Raises
    :class:`InvalidParameter` for numbers below 1 or above 2^20.
    """

    rows: Annotated[int, msgspec.Meta(ge=1, le=2**20)] = 1
    sites: Annotated[int, msgspec.Meta(ge=1, le=2**20)] = 1

    def __post_init__(self) -> None:
        for name in ("rows", "sites"):
            number = getattr(self, name)
            if type(number) is not int or not 1 <= number <= 2**20:
                whole(1, 2**20, **{f"{name} of a person's unit": number})
                msgspec.structs.force_setattr(self, name, int(number))  # of NumPy, which messages cannot hold


ONE_ROW = Unit()
"""Every person has one row, at one site."""


class ProtectedChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The change of a table that a cost is for: a person of the ``unit`` is added or removed, or replaced by another.

    Costs for different changes do not add up. :meth:`steps_to` says how one bounds the other, and :meth:`Cost.grouped`
    applies it.
    """

    unit: Unit = ONE_ROW
    neighbours: Neighbours = "add-remove"

    def covering(self, other: ProtectedChange) -> ProtectedChange:
        """Return the smallest change of which both are a part; a replaced row is one removed and one added."""
        unit = Unit(max(self.unit.rows, other.unit.rows), max(self.unit.sites, other.unit.sites))
        return ProtectedChange(unit, "replace" if "replace" in (self.neighbours, other.neighbours) else "add-remove")

    def steps_to(self, other: ProtectedChange) -> int:
        """Return how many changes of this kind make up one of the kind ``other``: at least 1.

        If a release costs rho of zCDP for this change, it costs steps^2 rho for the other; a pure epsilon costs steps
        times as much (group privacy; Bun & Steinke, arXiv 1605.02065). The same factors hold for what sites are charged
        (:func:`times_charged`), so the total at the most charged site still bounds the cost to every person. Proof: let
        the units have r and s, and r' and s' rows and sites, with R = ceil(r' / r) and S = ceil(s' / s), and let j of
        the s' sites of a person take part in a release.

        * Each site adds noise: a site is charged c s, where c is the cost of its own release to r rows. The person pays
          c R^2 j, and the j sites are charged c s R^2 S^2 >= c R^2 s' each, which adds at least c R^2 j to the mean
          charge of the person's sites.
        * Noise is pooled: c is charged for s sites, and g <= s sites pay at most c g / s. The j sites form m = ceil(j /
          s) <= S groups of g_1, ..., g_m sites, whose changes follow one another. The square roots of zCDP costs add up
          over such steps (D_a(P || R) <= k a / (k a - 1) D_b(P || Q) + D_{k a}(Q || R) with b = (k a - 1) / (k - 1),
          for k = 1 + sqrt(rho_1 / rho_2)), so the person pays at most R^2 (sqrt(c g_1 / s) + ... + sqrt(c g_m / s))^2
          <= R^2 c m j / s, and the j sites are charged c R^2 S^2 >= c R^2 m s' / s each, which adds at least that to
          the mean.

        Without the squares, the same holds of pure epsilons. For noise that each site adds, S in place of S^2 would do,
        but a total is over releases of both kinds, and the larger factor bounds both. A replaced row is one removed and
        one added: twice as many steps. Raises :class:`InvalidParameter` from replaced to added rows: sizes may have
        been published exactly, which no number of replacements changes.
        """
        if (self.neighbours, other.neighbours) == ("replace", "add-remove"):
            raise InvalidParameter(
                "a cost for replaced rows bounds none for added or removed rows; state replaced rows"
            )
        rows = -(-other.unit.rows // self.unit.rows)
        sites = -(-other.unit.sites // self.unit.sites)
        return rows * sites * (1 if self.neighbours == other.neighbours else 2)

    @property
    def unknown(self) -> str:
        """What stays hidden, in words: "whether any one row is in the data", or "which of two rows is in the data"."""
        row = self.unit == ONE_ROW
        if self.neighbours == "replace":
            return "which of two rows is in the data" if row else "which of two persons' rows are in the data"
        return "whether any one row is in the data" if row else "whether any one person's rows are in the data"

    def __str__(self) -> str:
        rows = "1 row" if self.unit.rows == 1 else f"{self.unit.rows} rows"
        sites = "1 site" if self.unit.sites == 1 else f"{self.unit.sites} sites"
        changed = "added or removed" if self.neighbours == "add-remove" else "replaced"
        return f"persons with up to {rows} at {sites}, rows {changed}"


def protect(sensitivity: Sensitivity, change: ProtectedChange, *, pooled: bool) -> Norms:
    """Return how far one person can change the statistic to which noise is added, given how far one record can.

    ``change.unit`` bounds the number of a person's rows and sites. The rows at one site change an answer by at most
    ``unit.rows`` times as much as one row (triangle inequality). If answers are summed before noise is added
    (``pooled``: a trusted server, secure sums), the sum may contain the rows at all ``unit.sites`` sites. If each site
    adds its own noise, its answers are separate releases about the person, and :func:`times_charged` says how often
    each of them is charged.
    """
    factor = change.unit.rows * (change.unit.sites if pooled else 1)
    norms = sensitivity.of(change.neighbours)
    return Norms(factor * norms.l1, factor * norms.l2, factor)


def times_charged(unit: Unit, *, pooled: bool) -> int:
    """Return how many times a release is charged at each site that takes part: 1 if ``pooled``, else ``unit.sites``.

    ``pooled`` says whether noise is added to the sum over sites rather than by each site to its own answer. If releases
    are charged that often, the cost of all releases to any person is at most the total charged at the most charged
    site. Proof: let a person be at s = ``unit.sites`` sites, of which j take part in a release of cost c. If noise is
    pooled, it is sized for s sites, so the person pays at most c (j / s)^2 of zCDP or of a curve (log A(a) of
    :mod:`~fedsynth.privacy.sampling` is convex in r, 0 at r = 0, and grows with q) or c j / s of pure DP; since each of
    the j sites is charged c, the release adds c j / s to the mean charge of the person's sites. (The bound of
    :func:`~fedsynth.privacy.noise.gumbel_scale` has a constant term: a draw of three servers is proved to cost c j / s
    of zCDP, but of pure DP only up to 0.3% more.) If each site adds its own noise, the person pays c j; since each of
    the j sites is charged c s, the release adds c j to that mean. So the mean, hence the largest charge, bounds what
    the person pays, even if the person's sites take part in different sums. (For a person at fewer sites the mean is
    larger still.)
    """
    return 1 if pooled else unit.sites


class Cost(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The cost of releases to one person: ``epsilon`` of pure DP (infinite if there is none) and ``rho`` of zCDP.

    Costs add up (``+``); ``cost * n`` is the cost of n such releases. ``curve`` is the cost of releases on random
    samples of rows, in addition to ``rho``: for each order a in :data:`ORDERS`, a bound on the log-moment (a - 1) D_a
    (in nats), where D_a is the Renyi divergence of order a in either direction. It is empty without such releases. The
    total divergence of order a is at most rho a + D_a.
    """

    # Only an empty curve is omitted from files: fields with a default factory are always written.
    epsilon: Number = msgspec.field(default_factory=float)
    rho: Number = msgspec.field(default_factory=float)
    curve: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("epsilon", "rho"):
            if getattr(self, name) is None:
                msgspec.structs.force_setattr(self, name, math.inf)
        if self.curve and not (len(self.curve) == len(ORDERS) and all(0 <= moment < math.inf for moment in self.curve)):
            raise InvalidParameter(
                f"the curve of a cost must have {len(ORDERS)} finite, non-negative numbers; this one was not written "
                "by this version of fedsynth"
            )

    @classmethod
    def of(cls, amount: float, *, pure: bool) -> Cost:
        """Return the cost of ``amount`` (0: nothing): epsilon of pure DP if ``pure``, which implies a rho, or rho."""
        if not amount:
            return cls()
        return cls(amount, amount**2 / 2) if pure else cls(math.inf, amount)

    def __add__(self, other: Cost) -> Cost:
        curve = self.curve or other.curve
        if self.curve and other.curve:
            curve = tuple(first + second for first, second in zip(self.curve, other.curve, strict=True))
        return Cost(self.epsilon + other.epsilon, self.rho + other.rho, curve)

    def __mul__(self, times: float) -> Cost:
        if not times:
            return Cost()
        return Cost(self.epsilon * times, self.rho * times, tuple(moment * times for moment in self.curve))

    def grouped(self, steps: int) -> Cost:
        """Return the cost for tables that are ``steps`` steps apart, each of which is between neighbours.

        This is group privacy (Bun & Steinke, arXiv 1605.02065, proposition 1.9): rho grows with the square of
        the steps, and epsilon with the steps. Raises :class:`Unsupported` for more than one step if the cost has a
        curve: a limit counts it at one order, at which it bounds nothing for tables that are further apart.
        """
        if self.curve and steps > 1:
            raise Unsupported("noise on random samples of rows has no cost for larger groups; keep to the unit it has")
        return self if steps == 1 else Cost(self.epsilon * steps, self.rho * steps**2)

    def at(self, delta: float) -> float:
        """Return the smallest known epsilon such that the releases are (epsilon, ``delta``)-DP; infinite without one.

        For a ``delta`` of 0 it is the epsilon of pure DP.
        """
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
        """Return the rho of zCDP that stands for the curve at a real ``order`` > 1: D / order, for a divergence of D.

        D is the curve's bound on the Renyi divergence at this order. Log-moments are interpolated linearly between
        neighbouring orders of :data:`ORDERS` (and order 1, where they are 0). Above the largest order nothing is known,
        and the result is infinite.

        Proof that this is an upper bound: let P and Q be the laws of one release under two neighbouring tables. Its
        log-moment (a - 1) D_a(P || Q) = log E_Q (P / Q)^a is convex in a (Hoelder's inequality) and 0 at a = 1. It
        therefore lies below the straight line between its values at any two orders, hence below the line between bounds
        on them. This holds whatever was released before, and a sum of such lines is the line between the sums.
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
    """The limit on the total cost of all releases about one person: (``epsilon``, ``delta``)-DP.

    ``delta`` should be well below one over the number of records. With ``delta = 0`` the guarantee is pure and noise is
    Laplace. :meth:`none` means no guarantee and no noise. Raises :class:`InvalidParameter` for an epsilon that is not
    positive or a delta outside [0, 1).
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta"):
            number = getattr(self, name)
            if type(number) in (int, float):
                continue
            if isinstance(number, bool) or not isinstance(number, Real):
                raise InvalidParameter(f"{name} must be a number, not {number!r}")
            object.__setattr__(self, name, float(number))  # of NumPy, say, which messages cannot hold
        if math.isnan(self.epsilon) or self.epsilon <= 0:
            raise InvalidParameter(f"epsilon must be a positive number, not {self.epsilon}; usual values are 0.1 to 10")
        if not 0 <= self.delta < 1:
            raise InvalidParameter(
                f"delta must be at least 0 and below 1, not {self.delta}; choose a value well below 1 / records, "
                "for example 1e-6, or 0 for pure differential privacy"
            )

    @classmethod
    def none(cls) -> Budget:
        """Return the budget of runs without noise: NOT PRIVATE, for baselines; sites refuse it by default."""
        return cls(math.inf, 0.0)

    @property
    def exact(self) -> bool:
        """Whether releases have no noise, because the budget is :meth:`none`: nothing is guaranteed."""
        return math.isinf(self.epsilon)

    @property
    def pure(self) -> bool:
        """Whether the budget is in pure DP: delta is 0, and epsilon is finite."""
        return self.delta == 0 and not self.exact

    @cached_property
    def rho(self) -> float:
        """The largest zCDP total that this budget covers; for a pure budget, the zCDP that its epsilon implies."""
        if self.exact:
            return math.inf
        return self.epsilon**2 / 2 if self.pure else rho_of(self.epsilon, self.delta)

    @cached_property
    def order(self) -> float:
        """The real order of Renyi divergence at which :attr:`rho` gives the budget's epsilon, or infinity if none does.

        A limit refuses what would take the total Renyi divergence at this one order, fixed together with the limit,
        above it: it is a privacy filter. The next question may depend on all previous answers, including answers to
        questions that overlap in time, and the guarantee still holds, because divergences at a fixed order add up
        (Feldman & Zrnic, arXiv 2008.11193; concurrent questions: arXiv 2309.05901). A total divergence of at most rho
        times this order gives (epsilon, delta) by proposition 12 of arXiv 2004.00010. So ``cost.rho <= rho`` is the
        filter for costs that are linear in the order.
        """
        return _tight(self.rho, self.delta)[1] if self.delta and not self.exact else math.inf

    @property
    def measure(self) -> str:
        """What :meth:`price` is in: "epsilon" if the budget is :attr:`pure`, otherwise "rho"."""
        return "epsilon" if self.pure else "rho"

    @property
    def amount(self) -> float:
        """The whole budget in its own :attr:`measure`: what a total :meth:`price` may be."""
        return self.epsilon if self.pure else self.rho

    def price(self, cost: Cost) -> float:
        """Return a ``cost`` as one number that adds up: epsilon if :attr:`pure`, else rho of zCDP at :attr:`order`.

        A curve counts by :meth:`Cost.sampled`. The result is then infinite if the budget has no limit, or is so small
        that its order is above all :data:`ORDERS`.
        """
        return cost.epsilon if self.pure else cost.rho + cost.sampled(self.order)

    def covers(self, cost: Cost) -> bool:
        """Return whether a total ``cost`` stays within the budget, up to rounding; true for a budget without limit."""
        return self.exact or self.price(cost) <= self.amount * ROUNDING

    def share_of(self, cost: Cost) -> float:
        """Return the :meth:`price` of a cost as a share of the whole budget (1: all); 0 for a budget without limit."""
        return 0.0 if self.exact else self.price(cost) / self.amount

    def wider(self, other: Budget) -> Budget:
        """Return that of two limits which admits more; one with delta above 0 admits releases that pure ones do not."""
        return max(other, self, key=lambda limit: (not limit.pure, limit.amount))

    def rest(self, spent: Cost) -> Cost:
        """Return the cost that is left after ``spent``, for releases that are not on random samples of rows."""
        return Cost.of(math.inf if self.exact else max(0.0, self.amount - self.price(spent)), pure=self.pure)


def require_delta(delta: float, *, weak_delta: bool) -> None:
    """Raise :class:`InvalidParameter` for a ``delta`` above :data:`WEAK_DELTA`, unless ``weak_delta`` accepts it."""
    if delta > WEAK_DELTA and not weak_delta:
        raise InvalidParameter(
            f"delta = {in_full(delta)} is above {WEAK_DELTA:g}: to publish that share of the rows as they are would "
            "satisfy the guarantee. Choose a delta well below 1 / number of persons, such as 1e-6, or say yes to so "
            "weak a guarantee by name: --weak-delta (weak_delta = true in a file, weak_delta=True in Python)"
        )


def repeated_epsilon(budget: Budget, times: int, *, sampled: bool = False) -> float:
    """Return an epsilon, at the budget's delta, for ``times`` runs that each cost up to ``budget``.

    Pure epsilons add up, and so does rho of zCDP. With ``sampled``, releases may be on random samples of rows: then the
    Renyi divergences at the budget's order (:attr:`Budget.order`) add up, and are converted at that order alone.
    """
    if budget.exact:
        return math.inf
    if budget.pure:
        return times * budget.epsilon
    if not sampled:
        return epsilon_of(times * budget.rho, budget.delta)
    order = budget.order
    log_excess = (math.log(budget.delta) + math.log(order)) / (order - 1)
    return max(0.0, order * times * budget.rho + math.log1p(-1 / order) - log_excess)


def best_guess(epsilon: float, delta: float) -> float:
    """Return how often, at most, an attacker is right who guesses at even odds which of two neighbouring tables it was.

    The result, (e^epsilon + delta) / (1 + e^epsilon), lies between 1/2 (a coin toss) and 1 (certainty, where nothing is
    guaranteed). It holds for every attacker, whatever they know and compute, about everything that the guarantee
    covers.

    Proof: let P and Q be the laws of what is released under the two tables. An attacker names the first table on a set
    S of outcomes and the second on all others (one who also tosses coins mixes such sets), and is right on P with
    probability x = P(S), on Q with y = 1 - Q(S). The guarantee says P(S) <= e^epsilon Q(S) + delta, so x <= e^epsilon
    (1 - y) + delta; for the complement of S, with both tables exchanged, y <= e^epsilon (1 - x) + delta. The sum is (x
    + y) (1 + e^epsilon) <= 2 (e^epsilon + delta), and (x + y) / 2 is how often the attacker is right at even odds. In
    other words, the total variation distance x + y - 1 is at most (e^epsilon - 1 + 2 delta) / (e^epsilon + 1), which
    some releases attain (Kairouz, Oh & Viswanath, arXiv 1311.0776).

    That is the mean over the noise. After one release, the belief in P can only exceed e^t / (1 + e^t) for t > epsilon
    on the set S where P > e^t Q, and delta >= P(S) - e^epsilon Q(S) >= P(S) (1 - e^(epsilon - t)): with a probability
    of at most delta / (1 - e^(epsilon - t)), and never without a delta.
    """
    odds = math.exp(min(epsilon, 700.0))
    return 1 - (1 - delta) / (1 + odds)


def epsilon_of(rho: float, delta: float) -> float:
    """Return the smallest known epsilon such that ``rho``-zCDP implies (epsilon, ``delta``)-DP.

    Every order ``a > 1`` gives a valid epsilon (arXiv 2004.00010, proposition 12), so the numerical minimum over orders
    is valid whether or not it is the exact minimum. It is infinite for a ``delta`` of 0, unless ``rho`` is 0.
    """
    if rho == 0:
        return 0.0
    if math.isinf(rho) or delta <= 0:
        return math.inf
    return max(0.0, _tight(rho, delta)[0])


def _tight(rho: float, delta: float) -> tuple[float, float]:
    """Return the numerical minimum over orders of the conversion of ``rho`` > 0, and the minimising order."""

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
    """Return the largest rho (to 1 part in 1e12, from below) for which rho-zCDP implies (``epsilon``, ``delta``)-DP.

    It is 0 for a ``delta`` of 0.
    """
    if delta <= 0:
        return 0.0
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
    """Return an epsilon, at the budget's delta, for tables that are k = ``times`` steps apart, each between neighbours.

    This is group privacy. It holds for all releases that the ``budget`` covers. At the budget's order a
    (:attr:`Budget.order`) the divergence between neighbours is at most a rho, with the budget's rho. This gives (e,
    d(e))-DP for every e, with log d(e) = (a - 1) (a rho + log(1 - 1/a) - e) - log a (arXiv 2004.00010, proposition 12
    solved for delta), and over k steps (k e, d(e) (1 + exp(e) + ... + exp((k - 1) e))). The logarithm of that delta is
    convex in e, and its slope tends to k - a: for k < a it decreases, and e is the smallest number at which that delta
    is the budget's; the result is k e. For k >= a nothing is known, and the result is infinite; so it is for a budget
    without limit or with delta 0, whose order is infinite.
    """
    order = budget.order
    if times >= order or math.isinf(order):
        return math.inf

    def excess(epsilon: float) -> float:
        log_delta = (order - 1) * (order * budget.rho + math.log1p(-1 / order) - epsilon) - math.log(order)
        return log_delta + float(np.logaddexp.reduce(epsilon * np.arange(times))) - math.log(budget.delta)

    low, high = 0.0, budget.epsilon
    while excess(high) > 0:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return times * high


@lru_cache
def _fine_orders() -> NDArray[np.float64]:
    """Return a grid of real orders for conversions, so fine that its best order is nearly the best of all."""
    gaps = [np.linspace(low, high, 65)[1:] for low, high in pairwise(ORDERS)]
    return np.concatenate([1 + np.geomspace(2.0**-12, 1, 257), *gaps])
