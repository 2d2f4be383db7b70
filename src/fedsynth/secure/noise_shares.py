"""Distributed noise: each of several sites adds a share, and the honest sites' shares make the release's noise.

A share consists of independent parts. While the number of sites in a sum is not yet known, every site adds all parts,
enough for the smallest possible number of honest sites; once it is known, sites reveal the unnecessary parts, which are
subtracted (XNoise; Jiang, Wang & Chen, EuroSys 2024, arXiv 2209.14528). Let h sites of the sum be honest, and let each
of them keep at least the first k parts secret. The adversary then sees the honest sites' total under h shares of k
parts, and in addition noise that is independent of these and of all rows: the revealed parts, and further parts that
were kept. This is post-processing of the total under h shares of k parts, whose privacy cost must therefore be that
of the release, for every number h of honest sites that a sum can have and the k that its sites keep
(:class:`NoiseShare`).

Gaussian releases: every part is a discrete Gaussian. A sum of discrete Gaussians is close to one, but not exactly one.
Let X and Y be discrete Gaussians of variances v, w >= 1/4, W one of variance v + w, and u = vw / (v + w). Completing
the square,

    P[X + Y = z] is proportional to exp(-z^2 / (2 (v + w))) t(z v / (v + w)),   t(m) = sum_x exp(-(x - m)^2 / (2 u)),

where by Poisson summation t lies within a factor 1 +- 2q of a constant, q = sum_{k >= 1} exp(-2 pi^2 u k^2). So the
odds of X + Y and of W at any z are within (1 + 2q) / (1 - 2q), which for u >= 1/8 is at most exp(5 exp(-2 pi^2 u))
(arXiv 2102.06387, theorem 9). With the parts of all honest sites added up one after another, variances v_1, v_2, ..., a
discrete Gaussian of their total V is reached within odds of exp(tau / 2), since no later addition widens odds:

    tau = 10 sum_{k >= 1} exp(-2 pi^2 / (1 / (v_1 + ... + v_k) + 1 / v_{k+1})).

An integer shift D of one cell is then a step of tau / 2 to that law, one of |D| / sqrt(V) within it, and one of tau / 2
back; these add up (Bun & Steinke, arXiv 1605.02065, proposition 27; as in arXiv 2102.06387, proposition 14): for every
real order a >= 1 the Renyi divergence is at most a/2 (|D| / sqrt(V) + tau)^2. Cells are independent, those that do not
move add nothing, and at most l1 integer cells move (each by at least 1), so the sum is rho-zCDP for

    rho = ( l2^2 / V + 2 tau l1 / sqrt(V) + tau^2 l1 ) / 2.

If every part has sigma >= 2, tau is below 10^-15 and the sum costs what one sample of a trusted server costs. Where
noise is too small for parts of that size a share is one part, as large as the privacy cost demands and never larger
than the release's whole noise: with that the noise of any one honest site suffices by itself (arXiv 2004.00010, theorem
14).

Laplace releases: a discrete Laplace sample is the difference of two geometric ones, which are the sum of independent
negative binomial (Polya) ones of the same ratio, of any shapes that add up to 1. So h shares of parts whose shapes add
up to 1/h make the noise exactly (Agarwal et al., arXiv 1805.10559, and Goryczka & Xiong, doi
10.1109/TDSC.2015.2484326, for the use). Tables of Polya noise end at a scale of 4096; beyond it every site adds the
whole noise: that of one honest site suffices, and the sum has the variance of all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from itertools import pairwise

import numpy as np

from fedsynth.privacy import noise
from fedsynth.privacy.cost import Norms
from fedsynth.privacy.noise import noise_std
from fedsynth.privacy.release import Gaussian, Laplace, Release
from fedsynth.schema.bins import Integers

# Rounds up by more than the accumulated rounding errors, as in `release`.
_UP = 1 + 2.0**-44
# A Gaussian share is split into parts only if each has at least this parameter.
_SMALLEST_PART = 2.0

SEED_BYTES = 32


@dataclass(frozen=True)
class NoisePart:
    """One of the independent parts of a :class:`NoiseShare`.

    ``std`` is the standard deviation of the part in each cell, or an upper bound of it; ``draw(cells, bits)`` samples
    one integer per cell.
    """

    std: float
    draw: Callable[[int, noise.RandomBits], Integers]

    def noise(self, cells: int, seed: bytes) -> Integers:
        """Return this part's noise, int64 of shape ``(cells,)``, as a function of a secret ``seed``.

        ``seed`` has :data:`SEED_BYTES` bytes, and must serve this part of this sum alone. Whoever knows it can subtract
        the noise.
        """
        return self.draw(cells, noise.KeyedBits(seed, b"a part of a share of noise"))


@dataclass(frozen=True)
class NoiseShare:
    """One site's share of a release's noise, made by :func:`share_of` of independent ``parts``.

    If the first k + 1 parts of each share are kept secret, the shares of ``honest[k]`` honest sites add up to the noise
    of the release. ``honest`` decreases: the more parts are kept, the fewer honest sites suffice. Both tuples are empty
    for a release without noise.
    """

    parts: tuple[NoisePart, ...]
    honest: tuple[int, ...]

    def kept(self, honest: int) -> int:
        """Return how many parts, from the first, a site must keep secret if ``honest`` sites in a sum are honest."""
        return next((k + 1 for k, enough in enumerate(self.honest) if enough <= honest), len(self.parts))

    def std(self, parts: int) -> float:
        """Return the standard deviation of the noise that the first ``parts`` parts together add to each cell."""
        return math.hypot(*(part.std for part in self.parts[:parts]))

    def add_to(self, answer: Integers, seeds: Sequence[bytes]) -> Integers:
        """Return ``answer`` plus the noise of all parts (int64, same shape); ``seeds`` has one seed for each part."""
        total = answer.astype(np.int64, copy=True)
        for part, seed in zip(self.parts, seeds, strict=True):
            total += part.noise(answer.size, seed)
        return total


def share_of(release: Release, norms: Norms, least: int, most: int) -> NoiseShare:
    """Return the share of a release's noise that each site adds so that the honest sites alone add enough.

    The number of honest sites in the sum will be at least ``least`` and at most ``most``; ``norms`` are the sensitivity
    of the sum to one person. Raises :class:`~fedsynth.errors.Unsupported` for a release that is not a noisy sum.
    """
    std = noise_std(release, norms)
    if isinstance(release, Gaussian) and norms.l2 > 0:
        sigmas, honest = _gaussian(release.rho, norms, release.sigma(norms.l2), least, most)
        return NoiseShare(tuple(NoisePart(sigma, partial(noise.discrete_gaussian, sigma)) for sigma in sigmas), honest)
    if isinstance(release, Laplace) and norms.l1 > 0:
        scale = release.scale(norms.l1)
        if scale > noise.POLYA_SCALE:
            return NoiseShare((NoisePart(std, partial(noise.discrete_laplace, scale)),), (1,))
        honest = _numbers(least, most)
        shapes = [Fraction(1, honest[0])]
        shapes += [Fraction(1, fewer) - Fraction(1, more) for more, fewer in pairwise(honest)]
        parts = [NoisePart(std * math.sqrt(shape), partial(noise.polya_difference, scale, shape)) for shape in shapes]
        return NoiseShare(tuple(parts), honest)
    return NoiseShare((), ())


def _numbers(least: int, most: int) -> tuple[int, ...]:
    """Return the numbers of honest sites for which a share has parts: the most, fewer by 1, 2, 4, 8, ..., the least.

    Doubling the number of lost sites takes one more part, so that a hundred sites need seven parts, not twenty-six.
    """
    found = [most]
    lost = 1
    while most - lost > least:
        found.append(most - lost)
        lost *= 2
    return (*found, least) if least < most else (most,)


@lru_cache(maxsize=1024)
def _gaussian(
    rho: float, norms: Norms, whole: float, least: int, most: int
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return the parameters of a share's parts, and how many honest sites the first 1, 2, ... of them suffice for."""
    needed = {h: (whole * _UP) ** 2 / h for h in _numbers(least, most)}  # variance of each share
    smallest = _SMALLEST_PART**2
    honest = [most]
    for h in list(needed)[1:]:
        if needed[h] - needed[honest[-1]] >= smallest and (h == least or needed[least] - needed[h] >= smallest):
            honest.append(h)
    if honest[-1] == least < most and needed[most] >= smallest:
        variances = [needed[most]]
        variances += [needed[fewer] - needed[more] for more, fewer in pairwise(honest)]
        sigmas = tuple(math.sqrt(variance) * _UP for variance in variances)
        if all(gaussian_cost(sigmas[: k + 1], norms.l1, norms.l2, h) <= rho for k, h in enumerate(honest)):
            return sigmas, tuple(honest)
    return (_one_part(rho, norms, whole, least),), (least,)


def _one_part(rho: float, norms: Norms, whole: float, honest: int) -> float:
    """Return the parameter of a share in one part, such that ``honest`` of them cost at most ``rho``."""
    low = max(0.5, whole / math.sqrt(honest))
    if low >= whole or gaussian_cost((whole,), norms.l1, norms.l2, honest) > rho:
        return whole
    if gaussian_cost((low * _UP,), norms.l1, norms.l2, honest) <= rho:
        return low * _UP
    high = whole
    while high / low > _UP:
        middle = (low + high) / 2
        low, high = (low, middle) if gaussian_cost((middle,), norms.l1, norms.l2, honest) <= rho else (middle, high)
    return high


def gaussian_cost(sigmas: Sequence[float], l1: float, l2: float, honest: int) -> float:
    """Return the cost, as rho of zCDP, of a sum under the noise shares of ``honest`` sites.

    Each share consists of discrete Gaussian parts with the parameters ``sigmas``, all at least 1/2. ``l1`` and ``l2``
    are the sensitivity of the sum to one person. The module's docstring has the proof.
    """
    total, terms = 0.0, []
    for sigma in sigmas:
        for _ in range(honest):
            if total:
                terms.append(math.exp(-2 * math.pi**2 / (1 / total + 1 / sigma**2)))
            total += sigma**2
    tau, whole = 10 * math.fsum(terms), math.sqrt(total)
    return ((l2 / whole) ** 2 + 2 * tau * l1 / whole + tau**2 * l1) / 2
