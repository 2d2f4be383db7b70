"""Variational Gaussian mixtures of single columns, fitted from exact sums over rows, and a copula's axes of them.

The equations are those of scikit-learn's ``BayesianGaussianMixture`` with a Dirichlet process prior in one dimension
(Bishop 2006, 10.2; Blei & Jordan 2006, doi 10.1214/06-BA104). Many columns are fitted at once, independently of each
other: arrays have a leading axis of columns and, if they describe components, a last axis of T components. Only
:class:`Mixture`, :class:`TwoAxes` and :func:`quantile_start` are about a single column.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter
from fedsynth.models.conditions import Between, Condition
from fedsynth.models.normal_scores import NormalScores
from fedsynth.models.saved import DrawnColumn, check_cells, check_shares, read_floats, read_grid
from fedsynth.schema.bins import Grid
from fedsynth.schema.columns import Column

Array = NDArray[np.float64]

_NEGLIGIBLE = 0.005  # components of smaller weight are dropped from the point estimate
_EMPTY = 10 * np.finfo(np.float64).eps  # scikit-learn's safeguard for components without rows


@dataclass(frozen=True, eq=False)
class Prior:
    """Prior of each column's Gaussian mixture.

    ``mean``, ``scale`` and ``floor`` have shape ``(columns,)``; the other fields are shared by all columns.
    ``concentration`` is that of the stick-breaking weights (Dirichlet process). ``mean`` is the prior mean of the
    components, worth ``precision`` rows. ``degrees`` of freedom and ``scale`` (1 / W_0, an expected variance) belong to
    the Wishart prior of the components' precisions. ``floor`` is added to every variance.
    """

    mean: Array
    scale: Array
    floor: Array
    concentration: float = 0.001
    precision: float = 1.0
    degrees: float = 1.0


@dataclass(frozen=True, eq=False)
class SufficientStatistics:
    """What an E step adds up over rows: all that the sites of a federation need to send for the next M step.

    ``counts``, ``first`` and ``second`` are the sums of r, r x and r x^2, where r is the probability that a row's value
    x belongs to a component, shape ``(columns, T)`` for T components. ``evidence``, shape ``(columns,)``, is the sum of
    the rows' log normalisers, in nats. Sites compute them in :class:`fedsynth.bench.published.tda_sums.MixtureSums`.
    """

    counts: Array
    first: Array
    second: Array
    evidence: Array


@dataclass(frozen=True, eq=False)
class Posterior:
    """Variational parameters of each column's mixture, all of shape ``(columns, T)`` for T components.

    Component t takes a share, distributed as Beta(``a``, ``b``), of the weight that components before it leave (stick
    breaking). Its parameters have a normal-Wishart distribution: a mean around ``mean`` worth ``precision`` rows, and a
    precision (inverse variance) with ``degrees`` of freedom and expectation ``degrees / scale``.
    """

    a: Array
    b: Array
    precision: Array
    mean: Array
    degrees: Array
    scale: Array

    def coefficients(self) -> Array:
        """Return c such that component t of a column has the log weight c_0 + c_1 x + c_2 x^2 for a value x.

        The shape is ``(3, columns, T)``. The log weight is ln rho in Bishop's notation, before normalisation over
        components. These numbers are the only input of an E step, and all that the server sends to sites.
        """
        from scipy.special import digamma

        stick, rest = digamma(self.a) - digamma(self.a + self.b), digamma(self.b) - digamma(self.a + self.b)
        log_weight = stick + np.cumsum(rest, axis=-1) - rest
        log_precision = digamma(self.degrees / 2) + math.log(2) - np.log(self.scale)
        curvature = self.degrees / self.scale
        constant = log_weight + (log_precision - math.log(2 * math.pi) - 1 / self.precision) / 2
        return np.stack([constant - curvature * self.mean**2 / 2, curvature * self.mean, -curvature / 2])

    def mixture(self) -> tuple[Mixture, ...]:
        """Return each column's point estimate of its mixture, without components of weight 0.005 or less."""
        stick = self.a / (self.a + self.b)
        weights = stick * np.cumprod(np.concatenate([np.ones_like(stick[:, :1]), 1 - stick[:, :-1]], axis=1), axis=1)
        weights /= weights.sum(axis=1, keepdims=True)
        deviations = np.sqrt(self.scale / self.degrees)
        found = []
        for weight, mean, deviation in zip(weights, self.mean, deviations, strict=True):
            kept = (weight > _NEGLIGIBLE) | (weight == weight.max())
            found.append(Mixture(weight[kept] / weight[kept].sum(), mean[kept], deviation[kept]))
        return tuple(found)


@dataclass(frozen=True, eq=False)
class Mixture:
    """A Gaussian mixture of one column: ``weights`` of sum 1, ``means`` and standard ``deviations``, shape ``(T,)``."""

    weights: Array
    means: Array
    deviations: Array

    def cdf(self, x: Array) -> Array:
        """Return the probability of values up to ``x``, of the same shape."""
        from scipy.special import ndtr

        standard = (x[..., None] - self.means) / self.deviations
        below: Array = (self.weights * ndtr(standard)).sum(axis=-1)
        return below

    def places(self, x: Array) -> tuple[Array, NDArray[np.int64]]:
        """Return each value's signed distance, in deviations, from its likeliest component, and that one's index."""
        with np.errstate(over="ignore"):  # an overflow to infinity is a correct distance
            standard = (x[:, None] - self.means) / self.deviations
            likeliest = (np.log(self.weights) - np.log(self.deviations) - standard**2 / 2).argmax(axis=1)
        return standard[np.arange(len(x)), likeliest], likeliest

    def scaled(self, centre: float, half: float) -> Mixture:
        """Return the mixture that ``centre + half * x`` follows if x follows this one, to undo a scaling."""
        return Mixture(self.weights, centre + half * self.means, half * self.deviations)


def m_step(sums: SufficientStatistics, prior: Prior) -> Posterior:
    """Return the posterior of all columns' mixtures after an M step: from the ``sums`` of an E step and the prior."""
    n = sums.counts + _EMPTY
    centre = sums.first / n
    variance = np.maximum(sums.second / n - centre**2, 0) + prior.floor[:, None]
    later = np.cumsum(n[:, ::-1], axis=1)[:, ::-1] - n
    precision = prior.precision + n
    away = centre - prior.mean[:, None]
    return Posterior(
        1 + n,
        prior.concentration + later,
        precision,
        (prior.precision * prior.mean[:, None] + n * centre) / precision,
        prior.degrees + n,
        prior.scale[:, None] + n * variance + prior.precision * n / precision * away**2,
    )


def lower_bound(evidence: Array, posterior: Posterior, prior: Prior) -> Array:
    """Return the evidence lower bound of each column's fit, in nats, to decide when to stop; shape ``(columns,)``.

    ``evidence`` is the sum of the rows' log normalisers (:class:`SufficientStatistics`) that an E step under
    ``posterior`` finds. Without a variance floor, no E or M step lowers the bound.
    """
    from scipy.special import betaln, digamma, gammaln

    a, b, gamma = posterior.a, posterior.b, prior.concentration
    both = digamma(a + b)
    sticks = -math.log(gamma) - betaln(a, b) + (a - 1) * (digamma(a) - both) + (b - gamma) * (digamma(b) - both)
    s, q = posterior.degrees / 2, posterior.scale / 2
    s0, q0 = prior.degrees / 2, prior.scale[:, None] / 2
    ratio = prior.precision / posterior.precision
    wishart = (s - s0) * digamma(s) - gammaln(s) + gammaln(s0) + s0 * (np.log(q) - np.log(q0)) + s * (q0 - q) / q
    away = posterior.mean - prior.mean[:, None]
    normal = (ratio - 1 - np.log(ratio) + prior.precision * s / q * away**2) / 2
    bound: Array = evidence - (sticks + wishart + normal).sum(axis=-1)
    return bound


def started(values: Sequence[Array], counts: Sequence[Array], components: int) -> tuple[SufficientStatistics, Prior]:
    """Return the initial sums and the prior of a fit to several columns, for the first M step.

    ``values[j]`` are the distinct values of column j (ascending), and ``counts[j]`` their numbers of rows;
    ``components`` is the largest number of components of a mixture. The initial sums are those of
    :func:`quantile_start`. The prior is scikit-learn's: the column's mean and variance.
    """
    rows = [max(1.0, float(held.sum())) for held in counts]
    means = [float(held @ x) / n for x, held, n in zip(values, counts, rows, strict=True)]
    spread = [float(held @ (x - mean) ** 2) / n for x, held, n, mean in zip(values, counts, rows, means, strict=True)]
    variances = np.maximum(spread, 1e-12)
    starts = [quantile_start(x, held, components) for x, held in zip(values, counts, strict=True)]
    stacked = (np.stack([getattr(sums, name) for sums in starts]) for name in ("counts", "first", "second", "evidence"))
    return SufficientStatistics(*stacked), Prior(np.array(means), variances, 1e-6 * variances)


def quantile_start(values: Array, counts: Array, components: int) -> SufficientStatistics:
    """Return the sums of a first E step of one column: each value belongs to the nearest of ``components`` quantiles.

    ``values``, ascending, occur in ``counts`` rows each. Each quantile starts one component. Several quantiles at one
    heavy value count once; the remaining components start without rows. (Equal components would stay equal for ever,
    and random ones would not be reproducible.) The result has no axis of columns, and its ``evidence``, which an M step
    does not need, is 0.
    """
    sums = SufficientStatistics(np.zeros(components), np.zeros(components), np.zeros(components), np.zeros(()))
    if counts.sum() <= 0:
        return sums
    reached = np.cumsum(counts) / counts.sum()
    asked = (np.arange(components) + 0.5) / components
    centres = np.unique(values[np.minimum(np.searchsorted(reached, asked), len(values) - 1)])
    nearest = np.searchsorted((centres[1:] + centres[:-1]) / 2, values)
    for power, into in enumerate((sums.counts, sums.first, sums.second)):
        into += np.bincount(nearest, weights=counts * values**power, minlength=components)
    return sums


@dataclass(frozen=True, eq=False)
class ConditionEvidence:
    """Evidence on a number with two normal axes (:class:`TwoAxes`): its value meets the ``condition``.

    ``axis`` converts points to numbers, so any condition can be evaluated, but only by rejection sampling.
    """

    axis: TwoAxes
    condition: Condition

    def likelihood(self, codes: NDArray[Any]) -> Array:
        """Return 1.0 for each point, shape ``(rows, 2)``, whose number meets the condition and 0.0 for others."""
        numbers = self.axis.values(codes)
        if isinstance(self.condition, Between):
            return ((numbers >= self.condition.low) & (numbers <= self.condition.high)).astype(np.float64)
        return np.isnan(numbers).astype(np.float64)


@dataclass(frozen=True, eq=False)
class TwoAxes:
    """How a copula represents a number by two standard normal variables, its axes, as in Fed-TDA's paper.

    The second variable selects a component of ``mixture``: ``axis`` divides it among the components and one last cell,
    which stands for missing values. A value is the mean of its component plus the first variable times the component's
    standard deviation. ``grid`` holds the values that the column admits, to which numbers are rounded.
    """

    mixture: Mixture
    axis: NormalScores
    grid: Grid
    kind: ClassVar[str] = "mixture"
    latents: ClassVar[int] = 2

    def drawn(self, points: Array, rng: np.random.Generator) -> Array:
        """Return the numbers at ``points``; nothing is drawn from ``rng``."""
        return self.values(points)

    def values(self, points: Array) -> Array:
        """Return the numbers (NaN: missing), shape ``(rows,)``, at ``points`` of both axes, shape ``(rows, 2)``."""
        component, _ = self.axis.cells(points[:, 1])
        held = np.minimum(component, len(self.mixture.means) - 1)
        numbers = self.mixture.means[held] + self.mixture.deviations[held] * points[:, 0]
        return np.where(component < len(self.mixture.means), self.grid.admitted(numbers), np.nan)

    def given(self, column: Column, condition: Condition) -> tuple[ConditionEvidence, TwoAxes]:
        """Return ``condition`` as evidence, and this object: a point determines the number."""
        return ConditionEvidence(self, condition), self

    def cells(self, column: Column) -> None:
        """Return nothing: within a component, numbers are not drawn evenly."""

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return both axes as named arrays."""
        mixture = np.stack([self.mixture.weights, self.mixture.means, self.mixture.deviations])
        return {**self.axis.to_arrays(), **self.grid.to_arrays(), "mixture": mixture}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> TwoAxes:
        """Restore the axes from :meth:`to_arrays`."""
        mixture = read_floats(arrays, "mixture", (3, None))
        if not ((mixture[0] >= 0).all() and (mixture[2] > 0).all()):
            raise InvalidParameter("its mixture has a negative weight, or a deviation that is not positive")
        check_shares("mixture", mixture[0])
        return cls(Mixture(*mixture), NormalScores.from_arrays(arrays), read_grid(arrays))

    def check(self, column: Column, drawn: DrawnColumn) -> None:
        """Raise :class:`InvalidParameter` unless it converts what the model has ``drawn`` to values of ``column``."""
        cells = len(self.mixture.means)
        check_cells(column, self.grid, len(self.grid) + column.missing)
        if drawn != DrawnColumn(0, latents=self.latents) or len(self.axis.shares) != cells + 1:
            raise InvalidParameter(f"the model does not draw a point of two normal axes for {column.name!r}")
        ends = np.concatenate([[-np.inf], self.axis.thresholds, [np.inf]])
        place = int(np.flatnonzero(self.axis.order == cells)[0])
        if not column.missing and ends[place] < ends[place + 1]:
            raise InvalidParameter(f"{column.name!r} has no missing values, but its axis does")
