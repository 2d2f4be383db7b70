"""Privacy loss distributions: the epsilon of a run whose releases are fixed, some of them on random samples of rows.

Setting: it is fixed beforehand which releases may be made at most: discrete Gaussian noise for a total rho of zCDP, as
in :mod:`~fedsynth.privacy.gaussian`, and n_c steps of DP-SGD of each kind c, as in :mod:`~fedsynth.privacy.sampling`
(:class:`SampledSteps`). Their order, their queries, and whether they are made at all, may depend on everything released
before. Tables are neighbours if all rows of one person are added or removed. For laws P, Q let H(P, Q; x) be the
supremum of P(S) - x Q(S) over sets S of outcomes: a run is (epsilon, delta)-DP if H(P, Q; exp(epsilon)) <= delta for
its laws P, Q under neighbouring tables, in either order. A pair (A, B) dominates (P, Q) if H(P, Q; x) <= H(A, B; x) for
all x > 0; then (B, A) dominates (Q, P).

1. One step with normal noise. A person has k rows; each is in the sample with probability q. Fix everything else that
is drawn: the sample of the other rows, and the order and the further draws of all rows. A set S of the person's rows is
drawn with probability p(S) = q^|S| (1 - q)^(k - |S|), and then moves the answer by a vector d(S) of norm at most |S| s,
if one row changes any sum by at most s (triangle inequality: the rows of S are added one after another; in the order of
rows, which matters for rounding, each is inserted at a random place, in turn). With normal noise of variance v =
(m k s)^2 in each cell, the laws are P = sum_S p(S) N(d(S), v) and Q = N(0, v). The pair

    A = sum_j Binomial(k, q)(j) N(j / (m k), 1),   B = N(0, 1)

dominates (P, Q). Proof: under Q, the ratio P / Q is sum_S p(S) exp(X_S - E X_S^2 / 2), with centred normal variables
X_S of covariances d(S).d(T) / v. Under B, the ratio A / B has the same form, with covariances |S| |T| / (m k)^2, which
are at least as large. So E F(P / Q) <= E F(A / B) for every convex F: this is Kahane's inequality (Rhodes & Vargas,
arXiv 1305.6221, theorem 2.1; along normal variables of covariances (1 - t) c + t c', from the former to the latter, the
derivative of E F in t is half the sum over S and T of p(S) p(T) (c'(S, T) - c(S, T)) times an expectation that is not
negative). And H(P, Q; x) is E max(P / Q - x, 0) under Q. What was fixed has the same law under both tables, and H is
jointly convex, so the pair dominates the step. (Ganesh, arXiv 2401.10294, has this for sums of rows that are added up
exactly.)

The pair of a smaller rate, of fewer rows with the same s, or of more noise is dominated: A / B grows along the line, so
the best sets are half-lines, to which A gives the less probability the smaller j is, stochastically; and noise can be
added afterwards.

2. Several sums. A person at s sites, whose rows there are summed before noise is added, has k s rows, and the noise is
sized for them. Each site answers at most n questions of a kind, but some sums may contain the rows of some of the
person's sites only. By Kahane's inequality again, the pair for the rows of i + j <= s sites dominates the product of
the pairs for those of i and of j sites. So sums are put together as long as they contain the rows of at most s / 2
sites, and each pair that is left, but for one, is of more than s / 2 sites: together at most n s / (floor(s / 2) + 1)
pairs, rounded up, and each is dominated by that of all s sites (:func:`sampled_steps`). This holds also if the sites of
a sum depend on earlier answers. Let a state be the number of answers that the person's sites have left, and the number
of sites in the pair that is being filled. By induction on the former, as in step 3, this pair together with whatever
follows is dominated by as many pairs of s sites as the sum of both numbers allows. If each site adds its own noise,
each of its answers is a release of its own, of k rows: n s in all.

3. All steps. If one pair (A, B) dominates a release, and another pair (A', B') dominates whatever follows, for each of
its outcomes, then the product of the pairs dominates both together. Proof: let L be the ratio of the first laws, P and
Q, at an outcome, and L' = A' / B'. H of both is the mean under Q of L H(x / L) of what follows, hence at most the mean
under Q and B' of max(L L' - x, 0). That is the mean under B' of L' H(P, Q; x / L'), where (A, B) replaces (P, Q). So
let the state of a run be the zCDP r and the numbers of steps that are left. By induction on it, everything that a run
does from there on is dominated by the product of N(sqrt(2 r), 1) and N(0, 1) and of the pairs of all steps that are
left: a Gaussian release of cost u leads to r - u, and in a product of normal pairs the squared shifts add up; a step of
DP-SGD leads to one step less; and a run that stops is dominated by anything.

4. Discrete noise. As in steps 1 to 4 of :mod:`~fedsynth.privacy.gaussian`, rounded normal noise of variance w - 1/12
stands for discrete noise of parameter w, since rounding is post-processing, with a factor exp(h) on delta and an
epsilon that is larger by 2 h, except with a small probability. A step's noise has w = (m k s)^2. All its d cells may
move, and the means of any two samples of the person's rows are at most 2 k s apart. Sites answer planned questions only
if s >= :data:`LEAST_STEP` sqrt(d) (the gradients' grid is that fine), so w >= 2^20 m^2 d. In step 4 there, this is as
if a release of d cells cost 1 / (2 m^2) / 2^20, with cells that move by at most 2 sqrt(w) / m: h follows from the sum
and the largest of these costs. It is far below 0.001.

5. Numbers. The line is cut into cells, with at most a share of delta beyond the last ones, which counts as delta. All
losses log(A / B) of a cell are between those at its ends. Its mass under A is split between two points of a grid, below
and above them, so that its mass under B is kept: this pair dominates the original one, since a law on an interval is
made from the law with the same mean at its ends (Doroshenko et al., arXiv 2207.04380). The losses of many steps then
add up by a discrete Fourier transform of the masses times exp(t loss), for the t that makes losses near the result the
most frequent: errors of the transform, for which a bound is added, are relative to delta then. Chernoff's bound is
added for sums of losses beyond the transform's period. (A sum below it counts as one above, which is on the safe side.)
Both orders of the two tables are computed, and the larger epsilon counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsynth.privacy.cost import Unit
from fedsynth.privacy.gaussian import LARGEST, LEAST_DELTA, TAIL, continuous_shift, gaussian_epsilon, log_odds
from fedsynth.privacy.release import SampledGaussian

Floats = NDArray[np.float64]

LEAST_STEP = 2.0**10
"""L2 sensitivity of a sum over sampled rows to one row, in its integers, divided by the root of its cells, at least."""
_CELLS = 1 << 14  # of the line, for one kind of step
_PERIOD = 1 << 18  # points of the grid of losses
_MOST_SHIFTS = 64  # of rows that are drawn at once: larger numbers are rounded up to so many different ones
_MOST_ROWS = 1024  # of a person; of more, all count as drawn if any is
_MOST_APART = 10.0  # beyond it, after hundreds of millions of steps, the bound says nothing of use
_BEYOND = 1e-6  # share of delta for each of several small probabilities
_SLACK = 1e-11  # of a cell's mass, added to that with the larger loss: the masses of a cell have errors below 1e-12
_EDGE = 1e-6  # of the grid's step, by which losses are moved apart
_ROUNDED = 1e-13  # and in nats: more than their rounding errors
# Sum over the period of the absolute errors of a transform, for each factor, with a margin for sums over the period.
_TRANSFORM = 40 * 2.0**-53 * math.log2(_PERIOD) * math.sqrt(_PERIOD)


class SampledSteps(NamedTuple):
    """Steps of DP-SGD of one kind: at most ``steps`` in a run, each of which samples rows with probability ``rate``.

    ``multiplier`` is the noise's standard deviation divided by the L2 sensitivity to all ``rows`` of one person
    together.
    """

    rate: float
    multiplier: float
    rows: int
    steps: int


def sampled_steps(release: SampledGaussian, unit: Unit, times: int, *, pooled: bool) -> SampledSteps:
    """Return the steps that dominate all releases of this kind to one person of the ``unit``.

    Each site is asked for at most ``times`` releases, none weaker than ``release``, and a person may be at several
    sites. If noise is ``pooled``, a release is a sum over sites, with noise for the person's rows at all of them;
    otherwise each site releases its own answer, with noise for the rows there. The proof is step 2 of this module's.
    """
    rows = unit.rows * (unit.sites if pooled else 1)
    releases = -(-times * unit.sites // (unit.sites // 2 + 1)) if pooled else times * unit.sites
    return SampledSteps(release.rate, release.multiplier, rows, releases * release.steps)


@lru_cache(maxsize=64)
def fixed_epsilon(delta: float, rho: float, largest: float, sampled: tuple[SampledSteps, ...] = ()) -> float:
    """Return an epsilon at ``delta`` of a run that makes only these releases, by its privacy loss distribution.

    ``rho`` is the zCDP of all its releases with discrete Gaussian noise together, ``largest`` the most that one of them
    costs (both 0 without any), and ``sampled`` are its steps on samples of rows. The proof of this module allows the
    run to choose among them, and to stop, depending on what was released. The result is an upper bound; for an epsilon
    between 0.001 and 100, it is mostly within 0.1% of the smallest one that the proof gives. It is infinite if the
    bound does not apply: for a ``delta`` below 1e-200, for so large a cost of a release that the noise's integrality
    matters (``largest`` above 3), and for so many steps that it matters in sum.
    """
    asked = [one for one in sampled if one.steps]
    if not asked:
        return gaussian_epsilon(rho, delta, largest or None)
    if not (LEAST_DELTA < delta < 1 and largest <= LARGEST and rho < math.inf):
        return math.inf
    tail, finest = TAIL * delta, LEAST_STEP**2
    costs = [1 / (2 * one.multiplier**2) for one in asked]  # of one step to those who know the sample
    total = math.fsum(cost * one.steps for cost, one in zip(costs, asked, strict=True))
    apart = log_odds(total / finest, max(costs) / finest, tail, 2 * math.sqrt(2 * max(costs)))
    pairs = [_Pair.of(one) for one in asked]
    if rho:
        apart += log_odds(rho, largest, tail, math.sqrt(2 * largest))
        pairs.append(_Pair(np.array([continuous_shift(rho, largest)]), np.ones(1), 1))
    if apart > _MOST_APART:
        return math.inf
    left = (delta - 2 * tail) * math.exp(-apart)
    beyond = _BEYOND * left / sum(pair.times for pair in pairs)
    losses = [pair.losses(beyond) for pair in pairs]
    return max(_composed(one, left) for one in zip(*losses, strict=True)) + 2 * apart


class _Pair(NamedTuple):
    """A mixture of normal laws of deviation 1, at ``shifts`` with ``weights``, and N(0, 1), to the power ``times``."""

    shifts: Floats
    weights: Floats
    times: int

    @classmethod
    def of(cls, steps: SampledSteps) -> _Pair:
        """Return the dominating pair of step 1, with rounded numbers of rows: larger ones are on the safe side."""
        rate, multiplier, rows, times = steps
        if rows > _MOST_ROWS:
            drawn = np.array([0, rows])
            weights = np.array([math.exp(rows * math.log1p(-rate)) if rate < 1 else 0.0, 1.0])
            weights[1] -= weights[0]
        else:
            drawn = np.arange(rows + 1)
            weights = np.exp([_log_binomial(rows, int(one), rate) for one in drawn])
            group = -(-rows // _MOST_SHIFTS)
            if group > 1:
                tops = np.minimum(-(-drawn // group) * group, rows)
                drawn, at = np.unique(tops, return_inverse=True)
                weights = np.bincount(at, weights)
        noise = multiplier * math.sqrt(1 - 1 / (12 * (multiplier * LEAST_STEP) ** 2))
        there = weights > 0
        return cls(drawn[there] / (rows * noise), weights[there], times)

    def losses(self, beyond: float) -> tuple[_Losses, _Losses]:
        """Return the losses of the pair and of the reversed one; outcomes of probability ``beyond`` are left out."""
        from scipy.special import ndtr, ndtri

        far = float(-ndtri(beyond))
        edges = np.linspace(-far, far + self.shifts[-1], _CELLS + 1)
        loss = _log_sum(np.log(self.weights) - self.shifts**2 / 2 + np.multiply.outer(edges, self.shifts))
        first = _masses(edges[:, None] - self.shifts) @ self.weights
        second = _masses(edges)
        ends = ndtr(edges[0] - self.shifts) @ self.weights, ndtr(self.shifts - edges[-1]) @ self.weights
        return (
            _Losses.of(first, second, loss, float(ends[0]), float(ends[1]), self.times),
            _Losses.of(second[::-1], first[::-1], -loss[::-1], float(ndtr(-edges[-1])), beyond, self.times),
        )


class _Losses(NamedTuple):
    """Masses of cells under the first law of a pair and under the second, between the losses at the cells' ends.

    The mass ``infinite`` has no finite loss. The pair occurs ``times`` times.
    """

    mass: Floats
    second: Floats
    low: Floats
    high: Floats
    infinite: float
    times: int

    @classmethod
    def of(cls, mass: Floats, second: Floats, loss: Floats, below: float, above: float, times: int) -> _Losses:
        """Return the losses of cells with their ends at ``loss``; the mass ``below`` them has the least one."""
        low, high = np.append(loss[:-1], loss[0]), np.append(loss[1:], loss[0])
        return cls(np.append(mass, below), np.append(second, 0.0), low, high, above, times)

    def on_grid(self, step: float) -> tuple[NDArray[np.int64], Floats]:
        """Return a dominating law on multiples of ``step``: their numbers, some of them repeated, and masses."""
        edge = _EDGE + _ROUNDED / step
        low = np.floor(self.low / step - edge).astype(np.int64)
        high = np.ceil(self.high / step + edge).astype(np.int64)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = np.nan_to_num(self.second / self.mass * np.exp(low * step))
        up = self.mass * np.clip((1 - ratio + _SLACK) / -np.expm1((low - high) * step), 0.0, 1.0)
        return np.concatenate((low, high)), np.concatenate((self.mass - up, up))


def _composed(losses: Sequence[_Losses], delta: float, guess: float | None = None) -> float:
    """Return the epsilon at ``delta`` of the product of pairs with these losses, computed twice without a ``guess``."""

    def log_moment(t: float) -> float:
        return math.fsum(one.times * _log_mean(one.mass, (one.high if t > 0 else one.low) * t) for one in losses)

    found = [(t, log_moment(t)) for t in np.geomspace(1e-2, 1e6, 161)]
    guessed = guess is not None
    if guess is None:  # max(1 - exp(epsilon - loss), 0) is at most exp(t (loss - epsilon)) / (1 + t)
        guess = min((moment - math.log(delta) - math.log1p(t)) / t for t, moment in found)
    tilt, moment = min(found, key=lambda one: one[1] - guess * one[0])
    rises = np.geomspace(tilt / 100, 100 * tilt, 81)
    top, steepest = min(((log_moment(tilt + u) - moment - math.log(_BEYOND)) / u, tilt + u) for u in rises)
    bottom = max((moment - log_moment(tilt - u) + math.log(_BEYOND)) / u for u in rises)
    step = (top - bottom) / (_PERIOD - 4)
    first = math.floor(bottom / step)

    laws = [(*one.on_grid(step), one.times) for one in losses]
    transform, moment = np.ones(_PERIOD // 2 + 1, dtype=np.complex128), 0.0
    for at, mass, times in laws:
        of = _log_mean(mass, at * step * tilt)
        tilted = mass * np.exp(np.where(mass > 0, at * step * tilt - of, 0.0))
        transform *= np.fft.rfft(np.bincount(at % _PERIOD, tilted, _PERIOD)) ** times
        moment += times * of
    grid = np.arange(first, first + _PERIOD)
    mass = np.maximum(np.fft.irfft(transform, _PERIOD), 0.0)[grid % _PERIOD]
    loss = grid * step
    end = (first + _PERIOD) * step
    outside = math.fsum(times * _log_mean(mass, at * step * steepest) for at, mass, times in laws) - steepest * end
    lost = math.fsum(one.times * one.infinite for one in losses) + math.exp(min(0.0, outside))

    near = moment - tilt * loss <= 600  # what is below has no finite weight, and is not needed
    mass, loss = mass[near] * np.exp(moment - tilt * loss[near]), loss[near]
    falling = np.exp(loss[0] - loss)
    above, weighted = (np.cumsum(one[::-1])[::-1] for one in (mass, mass * falling))
    errors = _TRANSFORM * (2 + sum(one.times for one in losses)) * np.exp(moment - tilt * loss)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        deltas = above - weighted / falling + errors + lost
    enough = np.flatnonzero(deltas <= delta)
    largest = math.fsum(one.times * float(one.high.max()) for one in losses)  # beyond it there are infinite losses only
    epsilon = max(0.0, min(largest, float(loss[enough[0]]) if enough.size else math.inf))
    return epsilon if guessed or math.isinf(epsilon) else min(epsilon, _composed(losses, delta, epsilon))


def _masses(edges: Floats) -> Floats:
    """Return the standard normal probabilities between neighbours along the first axis of ``edges``."""
    from scipy.special import ndtr

    low, high = edges[:-1], edges[1:]
    sign = np.where(low + high > 0, -1.0, 1.0)
    return np.abs(ndtr(sign * high) - ndtr(sign * low))


def _log_binomial(rows: int, drawn: int, rate: float) -> float:
    if rate == 1:
        return 0.0 if drawn == rows else -math.inf
    return math.log(math.comb(rows, drawn)) + drawn * math.log(rate) + (rows - drawn) * math.log1p(-rate)


def _log_sum(exponents: Floats) -> Floats:
    """Return log sum exp over the last axis."""
    most = exponents.max(axis=-1, keepdims=True)
    found: Floats = np.log(np.exp(exponents - most).sum(axis=-1)) + most[..., 0]
    return found


def _log_mean(mass: Floats, exponents: Floats) -> float:
    mass, exponents = mass[mass > 0], exponents[mass > 0]
    most = exponents.max()
    return float(math.log(np.exp(exponents - most) @ mass) + most)
