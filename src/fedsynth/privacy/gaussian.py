"""Exact accounting for runs with discrete Gaussian noise only, which gives a smaller epsilon than zCDP.

Setting: releases 1, 2, ..., each an integer vector that one person changes by an integer vector D_i of |D_i|_2 <= l_i,
with independent discrete Gaussian noise of parameter w_i = l_i^2 / (2 r_i), P(k) proportional to exp(-k^2 / 2w_i), in
each cell (number of the vector), which costs r_i of zCDP. The choice of the next release, and of its cost r_i, may
depend on everything released before, as long as r_i <= y and the sum of all r_i stays within r. It is fixed beforehand
that only such releases will be made.

1. Continuous noise. Let noise be normal with variances v_i, and m_i^2 = l_i^2 / v_i. Given the past, the log-likelihood
ratio of a release moves like a Brownian motion with drift 1/2 (under one table, P; -1/2 under the other, Q) for a time
|D_i|^2 / v_i <= m_i^2 that is known before it starts. Paths put together at such times are one Brownian path (strong
Markov property). One additional normal release that depends on the table, which can only help the adversary, lets the
path run until exactly m^2 >= sum m_i^2. So the final ratio has the law of one normal release of shift m: for every e
and every set S of outcomes,

    P(S) - exp(e) Q(S) <= d(e, m) = Phi(m/2 - e/m) - exp(e) Phi(-m/2 - e/m)

(Balle & Wang, arXiv 1805.06530, theorem 8; for adaptive choices Smith & Thakurta, arXiv 2210.17520). An integer answer
plus rounded noise is the rounded sum, so this is post-processing: the same holds for noise R = round(N(0, v)).

2. One cell. With v = w - 1/12 > 0, the laws of X (discrete Gaussian of parameter w) and R nearly agree: for |k| <= K
and s = K^2 / v,

    |log P(X = k) - log P(R = k)| <= B = (s^2 / 2880 + s (1/288 + 1/480) + 1/128) / v^2 + 3 exp(-2 pi^2 v).

Proof: with a = k/v and U uniform on [-1/2, 1/2], P(R = k) = (2 pi v)^(-1/2) exp(-k^2 / 2v) E exp(-aU - U^2 / 2v), and
P(X = k) = exp(-k^2 / 2w) / (sqrt(2 pi w) (1 + 2q)), q = sum_{j >= 1} exp(-2 pi^2 w j^2) (Poisson summation). For g(a) =
log E exp(-aU) = log(sinh(a/2) / (a/2)) the series give a^2/24 - a^4/2880 <= g <= a^2/24, |g'| <= |a|/12 and 1/12 -
a^2/240 <= g'' <= 1/12. U has the second moment g'' + g'^2 under the weight exp(-aU), within [1/12 - a^2/240, 1/12 +
a^2/144], and U^2 / 2v <= 1/(8v); by Jensen's inequality, and exp(-z) <= 1 - z + z^2/2, the logarithm of the last
expectation is within

    [a^2/24 - a^4/2880 - 1/(24v) - a^2/(288v),  a^2/24 - 1/(24v) + a^2/(480v) + 1/(128 v^2)].

The remaining terms are k^2/(2v) - k^2/(2w) = k^2/(24vw), which is below a^2/24 by at most k^2/(288 v^3), and
log(w/v)/2, which is below 1/(24v) by at most 1/(576 v^2). Adding up, the logarithms differ by no more than k^4/(2880
v^4) + k^2/(288 v^3) + k^2/(480 v^3) + 1/(128 v^2) + 2q, and k^2 <= s v.

3. All cells. At most l_i^2 cells of release i change, each by an integer; let n_i be their number and y_i = r_i / n_i.
The other cells have the same law under both tables. Let K_i = (t_i + sqrt(2y)) sqrt(w_i) with n_i 4 exp(-t_i^2 / 2) = c
r_i / r. The magnitude of a discrete Gaussian exceeds t sqrt(w) with probability 2 exp(-t^2 / 2) at most, since E
exp(uX) <= exp(u^2 w / 2) (by Poisson summation, sum_k exp(-(k - uw)^2 / 2w) is largest at u = 0), and no cell changes
by more than l_i = sqrt(2 r_i w_i). So, except with total probability c, the outcome of each changing cell is within K_i
of the answers under both tables. On these outcomes the laws P, Q of all releases are within a factor exp(h), h = sum
n_i B_i, of the laws P', Q' under rounded noise:

    P(S) - exp(e) Q(S) <= c + exp(h) (P'(S) - exp(e - 2h) Q'(S)) <= c + exp(h) d(e - 2h, m).

4. All releases. l_i^2 >= n_i gives v_i >= 1/(2 y_i) - 1/12, and m_i^2 <= 2 r_i / (1 - y/6). t_i depends on y_i alone:
t_i^2 = 2 log(4r / (c y_i)). So h = sum r_i (B(y_i) / y_i), and since B(y) / y grows with y as long as 4r / (c y) > e^2
and y < 6, h <= r B(y) / y at the largest cost y.
"""

from __future__ import annotations

import math

from fedsynth.privacy.cost import epsilon_of

TAIL = 1e-3  # share of delta for noise beyond K: a smaller share widens K, a larger one leaves less for the rest
LEAST, LEAST_DELTA = 1e-100, 1e-200  # what is smaller is left to zCDP, since products of both must not be zero
LARGEST = 3.0  # higher prices are left to zCDP, since the noise is then so small that its integrality matters
# Rounded up by more than all rounding errors of the computation.
_UP = 1 + 1e-9


def gaussian_epsilon(rho: float, delta: float, largest: float | None = None) -> float:
    """Return an epsilon at ``delta`` of a run that makes only discrete Gaussian releases, by exact accounting.

    ``rho`` is the zCDP of all releases together, and ``largest`` is the most zCDP that a single release may cost
    (default: ``rho``). The proof of this module allows the choice and the cost of a release to depend on earlier ones.

    The result is never above the epsilon of zCDP (:func:`~fedsynth.privacy.cost.epsilon_of`), and usually below it:
    0.93 instead of 1 at delta = 1e-6. It is not below if ``rho`` or ``largest`` is large, as 0.1 is at delta = 1e-10.
    It is infinite for infinite ``rho``, and for a ``delta`` of 0 unless ``rho`` is 0.
    """
    usual = epsilon_of(rho, delta)
    price = rho if largest is None else min(largest, rho)
    if not LEAST <= price <= LARGEST or not LEAST_DELTA < delta < 1 or math.isinf(rho):
        return usual
    tail = TAIL * delta
    apart = log_odds(rho, price, tail, math.sqrt(2 * price))
    shift = continuous_shift(rho, price)
    left = (delta - tail) * math.exp(-apart) / _UP
    low, high = 0.0, usual
    if _delta(high, shift) > left:
        return usual
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if _delta(middle, shift) <= left else (middle, high)
    return min(usual, (high + 2 * apart) * _UP)


def continuous_shift(rho: float, price: float) -> float:
    """Return m of this module's proof: the shift, in deviations, of one normal release that stands for all of them."""
    return math.sqrt(2 * rho / (1 - price / 6)) * _UP


def log_odds(rho: float, price: float, tail: float, moved: float) -> float:
    """Return h of this module's proof: how far discrete noise is from rounded noise, as a logarithm of odds.

    ``rho`` and ``price`` are r and y of step 4, ``tail`` is c, the probability of outcomes for which the bound does not
    hold. No cell of a release moves by more than ``moved`` times the parameter sqrt(w) of its noise.
    """
    price = max(price, LEAST)  # h grows with both
    rho = max(rho, price)
    variance = 1 / (2 * price) - 1 / 12
    reach = math.sqrt(2 * math.log(4 * rho / (tail * price))) + moved
    s = reach**2 / (1 - price / 6)
    odds = (s**2 / 2880 + s * (1 / 288 + 1 / 480) + 1 / 128) / variance**2 + 3 * math.exp(-2 * math.pi**2 * variance)
    return rho * odds / price * _UP


def _delta(epsilon: float, shift: float) -> float:
    """Return the least delta at ``epsilon`` of one normal release that one person shifts by ``shift`` deviations."""
    above = math.erfc((epsilon / shift - shift / 2) / math.sqrt(2)) / 2
    below = math.erfc((epsilon / shift + shift / 2) / math.sqrt(2)) / 2
    return (above - math.exp(epsilon) * below) if epsilon < 700 else above
