"""Noise in shares: each of several sites adds a part, and the parts of the honest ones are what the release promises.

Shares are sized for ``honest`` sites, the fewest whose noise is certain to be in the sum and unknown to the
adversary; further shares are independent of them and only add noise, which is post-processing.

Gaussian releases: every share is a discrete Gaussian. Their sum is not one, but nearly: for h shares of parameter s >=
1/2 and an integer shift D in one cell, and every real order a >= 1, the Renyi divergence is at most

    a/2 (|D| / (sqrt(h) s) + tau)^2,   tau = 10 sum_{k=1}^{h-1} exp(-2 pi^2 s^2 k / (k+1))

(Kairouz, Liu & Steinke, arXiv 2102.06387, proposition 14). Cells are independent, those that do not move add
nothing, and at most l1 integer cells move (each by at least 1), so the sum is rho-zCDP for

    rho(s) = ( l2^2 / (h s^2) + 2 tau l1 / (sqrt(h) s) + tau^2 l1 ) / 2.

From s = 2 on tau is below 10^-15 and the sum costs what one sample of a trusted server costs. A share is never
larger than the release's whole noise: with that the noise of any one honest site suffices by itself
(arXiv 2004.00010, theorem 14), which also covers s < 1/2.

Laplace releases: a discrete Laplace sample is the difference of two geometric ones, each a sum of h negative binomial
(Polya) ones of shape 1/h with the same ratio. So h shares make the noise exactly (Agarwal et al., arXiv 1805.10559,
and Goryczka & Xiong, doi 10.1109/TDSC.2015.2484326, for the use). Tables of Polya noise end at a scale of 4096;
beyond it every site adds the whole noise: that of one honest site suffices, and the sum has the variance of all.
"""

from __future__ import annotations

import math
from functools import lru_cache

from fedsynth.federation.trust import add_noise, noise_std
from fedsynth.privacy import noise
from fedsynth.privacy.cost import Norms
from fedsynth.privacy.release import Gaussian, Laplace, Release
from fedsynth.schema.bins import Integers

# Rounded up by more than the handful of roundings on the way, as in `release`.
_UP = 1 + 2.0**-44


def add_share(answer: Integers, release: Release, norms: Norms, honest: int, bits: noise.RandomBits) -> Integers:
    """Return ``answer`` plus one site's share of the noise, when at least ``honest`` sites add theirs.

    Raises :class:`Unsupported` for a release that is not a noisy sum.
    """
    if isinstance(release, Gaussian) and norms.l2 > 0:
        return answer + noise.discrete_gaussian(gaussian_share(release, norms, honest), answer.size, bits)
    if isinstance(release, Laplace) and norms.l1 > 0 and honest > 1:
        scale = release.scale(norms.l1)
        if scale <= noise.POLYA_SCALE:
            return answer + noise.polya_difference(scale, honest, answer.size, bits)
    return add_noise(answer, release, norms, bits)


def share_std(release: Release, norms: Norms, honest: int) -> float:
    """Return (a bound of) the standard deviation of what :func:`add_share` adds to each cell; raises what it raises."""
    if isinstance(release, Gaussian):
        return gaussian_share(release, norms, honest)
    if isinstance(release, Laplace) and release.scale(norms.l1) > noise.POLYA_SCALE:
        return noise_std(release, norms)
    return noise_std(release, norms) / math.sqrt(honest)


def gaussian_share(release: Gaussian, norms: Norms, honest: int) -> float:
    """Return the parameter of each site's discrete Gaussian, such that ``honest`` of them give the release's rho."""
    return _share(release.rho, norms.l1, norms.l2, release.sigma(norms.l2), honest)


@lru_cache(maxsize=1024)
def _share(rho: float, l1: float, l2: float, whole: float, honest: int) -> float:
    low = max(0.5, whole / math.sqrt(honest))
    if low >= whole or gaussian_cost(whole, l1, l2, honest) > rho:
        return whole
    if gaussian_cost(low * _UP, l1, l2, honest) <= rho:
        return low * _UP
    high = whole
    while high / low > _UP:
        middle = (low + high) / 2
        low, high = (low, middle) if gaussian_cost(middle, l1, l2, honest) <= rho else (middle, high)
    return high


def gaussian_cost(sigma: float, l1: float, l2: float, honest: int) -> float:
    """Return the zCDP of a sum of ``honest`` discrete Gaussians of parameter ``sigma`` >= 1/2; see the file's head."""
    tau = 10 * math.fsum(math.exp(-2 * (math.pi * sigma) ** 2 * k / (k + 1)) for k in range(1, honest))
    whole = math.sqrt(honest) * sigma
    return ((l2 / whole) ** 2 + 2 * tau * l1 / whole + tau**2 * l1) / 2
