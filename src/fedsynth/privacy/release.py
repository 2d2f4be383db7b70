"""What noise a number gets before it leaves, and what that costs: data, not behaviour.

The currency is zero-concentrated differential privacy (zCDP; Bun & Steinke, arXiv 1605.02658) for one record
added or removed: costs add up, and :func:`epsilon_of` turns a total into (epsilon, delta) by the tight
conversion of Canonne, Kamath & Steinke (arXiv 2004.00010, proposition 12).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from scipy.optimize import minimize_scalar

from fedsynth.errors import InvalidParameter

# Noise is rounded up by a few units in the last place, so that what is stated holds after every rounding on
# the way.
_UP = 1 + 2.0**-49


@dataclass(frozen=True)
class Sensitivity:
    """How far one record can move an answer: in the L1 and in the L2 norm."""

    l1: float
    l2: float


@dataclass(frozen=True)
class Gaussian:
    """Discrete Gaussian noise on an integer vector, at ``rho`` zCDP (arXiv 2004.00010, theorem 14)."""

    rho: float

    def __post_init__(self) -> None:
        """Refuse a cost that no noise can meet."""
        _positive("rho of a Gaussian release", self.rho)

    def sigma(self, sensitivity: Sensitivity) -> float:
        """Noise parameter for an answer of that sensitivity; rounded up, so that ``rho`` holds in floats."""
        return sensitivity.l2 / math.sqrt(2 * self.rho) * _UP


@dataclass(frozen=True)
class Laplace:
    """Discrete Laplace noise on an integer vector: pure ``epsilon`` DP, hence ``epsilon**2 / 2`` zCDP."""

    epsilon: float

    def __post_init__(self) -> None:
        """Refuse a cost that no noise can meet."""
        _positive("epsilon of a Laplace release", self.epsilon)

    @property
    def rho(self) -> float:
        """Cost in zCDP (arXiv 1605.02658, proposition 4)."""
        return self.epsilon**2 / 2

    def scale(self, sensitivity: Sensitivity) -> float:
        """Noise scale for an answer of that sensitivity; rounded up, so that ``epsilon`` holds in floats."""
        return sensitivity.l1 / self.epsilon * _UP


@dataclass(frozen=True)
class Exponential:
    """One draw of the exponential mechanism at ``rho`` zCDP.

    A draw at ``epsilon`` is ``epsilon``-bounded-range, hence ``epsilon**2 / 8`` zCDP
    (Cesar & Rogers, arXiv 2004.07223); no monotonicity is assumed.
    """

    rho: float

    def __post_init__(self) -> None:
        """Refuse a cost that no draw can meet."""
        _positive("rho of an exponential release", self.rho)

    @property
    def epsilon(self) -> float:
        """Parameter of the draw; rounded down, so that ``rho`` holds in floats."""
        return math.sqrt(8 * self.rho) / _UP


@dataclass(frozen=True)
class Steered:
    """``steps`` draws of the exponential mechanism, each but the last followed by a noisy look at what was drawn.

    Costs ``steps * pick + (steps - 1) * look`` in zCDP: the looks steer later draws, so they are paid for
    although they never leave the site.
    """

    pick: float
    look: float
    steps: int

    def __post_init__(self) -> None:
        """Refuse costs that nothing can meet."""
        _positive("rho of a draw", self.pick)
        _positive("rho of a look", self.look)
        if self.steps < 1:
            raise InvalidParameter(f"steps must be at least 1, not {self.steps}")

    @property
    def rho(self) -> float:
        """Cost of all draws and looks."""
        return self.steps * self.pick + (self.steps - 1) * self.look


@dataclass(frozen=True)
class Reserved:
    """A deposit in a vault: nothing is released yet, and all that the vault releases costs at most ``rho``."""

    rho: float

    def __post_init__(self) -> None:
        """Refuse an empty reservation."""
        _positive("rho of a reserved release", self.rho)


@dataclass(frozen=True)
class Exact:
    """No noise and no privacy: for labelled oracles and non-private baselines; a site refuses it by default."""

    @property
    def rho(self) -> float:
        """Infinite: no finite cost covers it."""
        return math.inf


@dataclass(frozen=True)
class Public:
    """A fact that the site's own policy declares to be no secret (its number of rows, for one): costs nothing."""

    @property
    def rho(self) -> float:
        """Zero: what is public already is not released again."""
        return 0.0


Release = Gaussian | Laplace | Exponential | Steered | Reserved | Public | Exact
_KINDS: dict[str, type[Release]] = {
    "gaussian": Gaussian,
    "laplace": Laplace,
    "exponential": Exponential,
    "steered": Steered,
    "reserved": Reserved,
    "public": Public,
    "exact": Exact,
}


def release_to_json(release: Release) -> dict[str, Any]:
    """Return the release as JSON values; the inverse of :func:`release_from_json`."""
    return {"kind": type(release).__name__.lower(), **asdict(release)}


def release_from_json(data: dict[str, Any]) -> Release:
    """Return the release that :func:`release_to_json` wrote."""
    fields = dict(data)
    return _KINDS[fields.pop("kind")](**fields)


@dataclass(frozen=True)
class Budget:
    """What all releases about one record may cost together: (epsilon, delta)-DP under add/remove of one record.

    Both are always explicit. ``delta`` should stay well below one over the number of records.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        """Refuse values that guarantee nothing, with the usual range in the message."""
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise InvalidParameter(f"epsilon must be a positive number, not {self.epsilon}; usual values are 0.1 to 10")
        if not 0 < self.delta < 1:
            raise InvalidParameter(
                f"delta must lie strictly between 0 and 1, not {self.delta}; choose one well below 1 / records, "
                "for example 1e-6"
            )

    @property
    def rho(self) -> float:
        """The largest zCDP total that this budget covers."""
        return rho_of(self.epsilon, self.delta)


def epsilon_of(rho: float, delta: float) -> float:
    """Return the smallest known epsilon such that ``rho``-zCDP implies (epsilon, delta)-DP.

    Every order ``a > 1`` gives a valid epsilon (arXiv 2004.00010, proposition 12), so the numerical minimum
    over orders is sound whether or not it is the exact one.
    """
    if rho == 0:
        return 0.0
    if math.isinf(rho):
        return math.inf

    def at_order(log_excess: float) -> float:
        excess = math.exp(log_excess)  # a - 1
        order = 1 + excess
        return order * rho + (order * math.log1p(-1 / order) - log_excess - math.log(delta)) / excess

    best = minimize_scalar(at_order, bounds=(-12.0, 40.0), method="bounded", options={"xatol": 1e-12})
    return max(0.0, float(best.fun))


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


def _positive(what: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InvalidParameter(f"{what} must be a positive number, not {value}; use Exact() for no noise at all")
