"""Renyi divergences of integer noise on random samples of rows: the cost of one step of DP-SGD.

Setting: every row is in a step's sample with probability q, independently of all others and of everything public. The
answer is an integer vector f(sample), which one additional row changes by an integer vector of L2 norm at most s, plus
integer noise with independent, symmetric cells of the same law for every sample. Let N be the law of the noise, and N_d
the law shifted by d. Only this property of the noise is used, for every integer vector d of |d| <= s and every integer
order k >= 2:

    D_k(N_d || N) <= k r,   r = 1 / (2 m^2),   that is   E_N (N_d / N)^k <= exp(k (k - 1) r).                      (1)

The discrete Gaussian law of parameter m s satisfies (1), with the moments of the continuous law: completing the square,

    E_N (N_d / N)^k = exp(k (k - 1) |d|^2 / (2 m^2 s^2)) sum_x exp(-|x - k d|^2 / (2 m^2 s^2)) / sum_x exp(-|x|^2 /
    (2 m^2 s^2)),

and both sums are over the same lattice, since k d is an integer vector: their quotient is 1. (At non-integer orders it
is not, so the curves of costs are at integer orders.) Sums of several sites' noise shares satisfy (1) by their zCDP
(:mod:`~fedsynth.secure.noise_shares`); they are symmetric as well.

1. One row more. Fix the sample of the other rows. With and without the row, the laws of the answer are, up to a shift
by f of that sample, P = (1 - q) N + q N_d and N. The laws of the whole answer are mixtures of such pairs with equal
weights, and divergences are jointly quasi-convex, so the largest pair bounds them (Mironov, Talwar & Zhang, arXiv
1908.10530, section 3). With the binomial theorem, for every integer a >= 2,

    exp((a - 1) D_a(P || N)) = E_N (1 - q + q N_d / N)^a <= A(a) = sum_k C(a, k) (1 - q)^(a - k) q^k exp(k (k - 1) r).

2. One row less. x -> d - x maps the lattice to itself and exchanges N and N_d, as the noise is symmetric. With such a
map D_a(N || P) <= D_a(P || N) (arXiv 1908.10530, theorem 5), so A(a) bounds both directions.

3. A person with k rows, drawn independently. Some row of the person is in the sample with probability q' = 1 - (1 -
q)^k, and then the shift is an integer vector of norm at most k s. So P is a mixture, over the non-empty sets of the
person's rows, of (1 - q') N + q' N_d with |d| <= k s, and by quasi-convexity steps 1 and 2 hold with q' and the
sensitivity k s, for which the noise is sized. Rows at several sites whose answers are summed before noise is added
count in the same way.

4. Several steps: log-moments at one order add up, even if a step depends on the answers to earlier ones (Mironov,
arXiv 1702.07476, proposition 1).

At q = 1, A(a) = exp(a (a - 1) r): the linear cost of the noise itself. If neighbouring tables replace rows, both laws
are mixtures, for which none of this is proved: sites then refuse such releases.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedsynth.privacy.cost import ORDERS

# The logarithm of A(a) is computed from exponents below 1e6 unless it is that large itself, with at most six roundings
# each: at most 1e6 * 6 * 2^-53 in all. This factor adds more than that, yet less than one part in 1e9.
_UP = 1 + 2.0**-30


@lru_cache(maxsize=256)
def log_moments(rate: float, multiplier: float) -> tuple[float, ...]:
    """Return bounds on the log-moments (in nats) of one step of DP-SGD, one for each order in ``ORDERS``, rounded up.

    The bound at order a is log A(a) of this module's docstring. ``rate`` is q, the probability that the step's sample
    contains a row, between 0 and 1 exclusive. ``multiplier`` is m, the noise's standard deviation divided by the L2
    sensitivity.

    A(a) - 1 = sum_{k >= 2} C(a, k) (1 - q)^(a - k) q^k (exp(k (k - 1) r) - 1) has no negative term, so its relative
    error is small even if it is small itself.
    """
    taken, left = math.log(rate), math.log1p(-rate)
    found = []
    for order, (chosen, ways) in zip(ORDERS, _binomials(), strict=True):
        exponent = chosen * (chosen - 1) / (2 * multiplier**2)
        terms = ways + (order - chosen) * left + chosen * taken + exponent + np.log(-np.expm1(-exponent))
        largest = float(terms.max())
        excess = largest + math.log(float(np.exp(terms - largest).sum()))
        found.append(float(np.logaddexp(0.0, excess)) * _UP)
    return tuple(found)


@lru_cache
def _binomials() -> tuple[tuple[NDArray[np.float64], NDArray[np.float64]], ...]:
    """Return, for each order a, the numbers k = 2 to a and the logarithms of C(a, k), from exact integers."""
    found = []
    for order in ORDERS:
        ways, logarithms = order, []
        for chosen in range(2, order + 1):
            ways = ways * (order - chosen + 1) // chosen
            logarithms.append(math.log(ways))
        found.append((np.arange(2.0, order + 1), np.array(logarithms)))
    return tuple(found)
