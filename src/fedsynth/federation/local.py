"""Local noise: each site adds the full noise to its own answer, and trusts no other party."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from fedsynth.errors import Refused
from fedsynth.federation.events import Answer, Event, PlainAnswer
from fedsynth.federation.trust import OneMessageSum, SiteTurn, SumProtocol, Trust
from fedsynth.privacy.cost import Norms
from fedsynth.privacy.noise import RandomBits, add_noise, noise_std
from fedsynth.privacy.release import Release
from fedsynth.schema.bins import Integers


@dataclass(frozen=True)
class LocalNoise(Trust, SumProtocol):
    """Trust model in which every site adds the full noise of a release to its own answer; the server only adds up.

    The guarantee holds against the server and all other sites together. In return, the noise variance of a sum over m
    sites is m times that under a trusted server where each person is at one site.
    """

    name: ClassVar[str] = "local"
    confidential: ClassVar[bool] = False
    pooled: ClassVar[bool] = False

    @override
    def answer(self, site: SiteTurn, turn: int, event: Event | None) -> Answer:
        if event is not None:
            raise Refused("a sum with local noise takes one message; install the same fedsynth everywhere")
        exact = site.statistic()
        return PlainAnswer(add_noise(exact, site.release, site.norms, site.bits("noise")))

    @override
    def aggregation(
        self, digest: str, release: Release, norms: Norms, sites: Sequence[str], bits: Callable[[Integers], RandomBits]
    ) -> OneMessageSum:
        return OneMessageSum(tuple(sites), lambda noisy: noisy, lambda heard: self.std(release, norms, heard))

    @override
    def std(self, release: Release, norms: Norms, sites: int) -> float:
        return noise_std(release, norms) * math.sqrt(sites)
