"""A server that every site trusts with its exact counts: the central model of differential privacy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fedsynth.federation.trust import Counts, add_noise, noise_std, total
from fedsynth.privacy.noise import RandomBits
from fedsynth.privacy.release import Release, Sensitivity


@dataclass(frozen=True)
class TrustedServer:
    """Sites send exact counts; the server adds one sample of noise to their sum.

    The guarantee holds against everyone but the server. The sum of the sites' tables equals the table of the
    pooled rows, so every counting method here computes, bit for bit, what it would compute on pooled rows.
    """

    name: str = "trusted"
    confidential: bool = True

    def contribute(self, answer: Counts, release: Release, sensitivity: Sensitivity, bits: RandomBits) -> Counts:
        """Return the exact answer."""
        return answer

    def reveal(
        self,
        contributions: Iterable[Counts],
        release: Release,
        sensitivity: Sensitivity,
        bits: Callable[[Counts], RandomBits],
    ) -> Counts:
        """Return the sum with one sample of the release's noise."""
        exact = total(contributions)
        return add_noise(exact, release, sensitivity, bits(exact))

    def std(self, release: Release, sensitivity: Sensitivity, sites: int) -> float:
        """Return the release's own standard deviation, whatever the number of sites."""
        return noise_std(release, sensitivity)

    def vault(self, contributions: Iterable[Counts]) -> Counts:
        """Return the exact sum, for the server to hold and to release from."""
        return total(contributions)
