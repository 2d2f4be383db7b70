"""Who adds the noise, and who may see what: a value handed to the federation.

A trust decides two things: what a site sends in reply to a statistic (:meth:`Trust.contribute`), and how the
server turns the contributions into the released sum (:meth:`Trust.reveal`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import SiteLost, Unsupported
from fedsynth.privacy import noise
from fedsynth.privacy.release import Exact, Gaussian, Laplace, Public, Release, Sensitivity

Counts = NDArray[np.int64]


class Trust(Protocol):
    """The seam between a method and whoever has to be trusted."""

    @property
    def name(self) -> str:
        """Name in requests, policies and on the command line."""

    @property
    def confidential(self) -> bool:
        """Whether a site's contribution is itself secret (and must not be written down by the server)."""

    def contribute(self, answer: Counts, release: Release, sensitivity: Sensitivity, bits: noise.RandomBits) -> Counts:
        """Return what leaves the site in place of ``answer``."""

    def reveal(
        self,
        contributions: Iterable[Counts],
        release: Release,
        sensitivity: Sensitivity,
        bits: Callable[[Counts], noise.RandomBits],
    ) -> Counts:
        """Return the released sum; ``bits(exact)`` gives the server's noise source for an exact sum."""

    def std(self, release: Release, sensitivity: Sensitivity, sites: int) -> float:
        """Return the standard deviation of the noise in each cell of a sum over ``sites`` sites."""

    def vault(self, contributions: Iterable[Counts]) -> Counts:
        """Return a sum that only a vault may hold, or raise :class:`Unsupported`."""


def add_noise(answer: Counts, release: Release, sensitivity: Sensitivity, bits: noise.RandomBits) -> Counts:
    """Return ``answer`` plus the noise that ``release`` stands for; exact integers throughout.

    Raises :class:`Unsupported` for a release that is not a noisy sum.
    """
    match release:
        case Gaussian():
            return answer + noise.discrete_gaussian(release.sigma(sensitivity), answer.size, bits)
        case Laplace():
            return answer + noise.discrete_laplace(release.scale(sensitivity), answer.size, bits)
        case Exact() | Public():
            return answer
        case _:
            raise Unsupported(f"a sum cannot be released as {release}; use Gaussian or Laplace")


def noise_std(release: Release, sensitivity: Sensitivity) -> float:
    """Return the standard deviation of the noise that :func:`add_noise` adds to each cell."""
    match release:
        case Gaussian():
            return release.sigma(sensitivity)  # the discrete law's deviation is never larger (arXiv 2004.00010, cor. 9)
        case Laplace():
            return float(np.sqrt(2.0)) * release.scale(sensitivity)  # likewise: the discrete law's is smaller
        case Exact() | Public():
            return 0.0
        case _:
            raise Unsupported(f"a sum cannot be released as {release}; use Gaussian or Laplace")


def total(contributions: Iterable[Counts]) -> Counts:
    """Return the sum of at least one contribution, holding no more than two in memory."""
    result: Counts | None = None
    for contribution in contributions:
        result = contribution.copy() if result is None else np.add(result, contribution, out=result)
    if result is None:
        raise SiteLost("no site answered; check that the sites run, then start the run again: it resumes")
    return result
