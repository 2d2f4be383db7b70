"""Sites that trust nobody: each noises its own answer in full before it leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedsynth.errors import Unsupported
from fedsynth.federation.trust import Arrays, Counts, Desk, OneMessage, add_noise, noise_std
from fedsynth.federation.wire import Request
from fedsynth.privacy.noise import RandomBits
from fedsynth.privacy.release import Release, Sensitivity


@dataclass(frozen=True)
class LocalNoise:
    """Every site adds the full noise of the release itself; the server only adds up.

    The guarantee holds against the server and all other sites together. The price: the variance of a sum over
    m sites is m times that of a trusted server.
    """

    name: str = "local"
    confidential: bool = False
    turns: int = 1
    assumption: str = ""

    def among(self, roster: Mapping[str, bytes]) -> LocalNoise:
        """Return this very trust: it needs to know nobody."""
        return self

    def contribute(self, answer: Counts, release: Release, sensitivity: Sensitivity, bits: RandomBits) -> Counts:
        """Return the answer with the site's own noise."""
        return add_noise(answer, release, sensitivity, bits)

    def answer(self, request: Request, desk: Desk) -> Arrays:
        """Return the answer with the site's own noise."""
        exact, sensitivity = desk.statistic()
        return {"values": self.contribute(exact, request.release, sensitivity, desk.bits("contribute"))}

    def session(
        self,
        request: Request,
        sites: Sequence[str],
        sensitivity: Sensitivity,
        bits: Callable[[Counts], RandomBits],
    ) -> OneMessage:
        """Return the sum of the noisy answers."""
        return OneMessage(
            request, tuple(sites), lambda noisy: noisy, lambda heard: self.std(request.release, sensitivity, heard)
        )

    def std(self, release: Release, sensitivity: Sensitivity, sites: int) -> float:
        """Return the release's standard deviation times the square root of the number of sites."""
        return noise_std(release, sensitivity) * float(np.sqrt(sites))

    def vault(self, contributions: Iterable[Counts]) -> Counts:
        """Refuse: a sum of noisy answers can be read, so it is no vault."""
        raise Unsupported(
            "LocalNoise has nobody to hold exact sums for a central method; use OneShot or FLAIM, or TrustedServer"
        )
