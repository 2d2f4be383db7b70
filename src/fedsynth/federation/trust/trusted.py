"""A server that every site trusts with its exact counts: the central model of differential privacy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedsynth.federation.trust import Arrays, Counts, Desk, OneMessage, add_noise, noise_std, total
from fedsynth.federation.wire import Request
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
    turns: int = 1
    assumption: str = ""

    def among(self, roster: Mapping[str, bytes]) -> TrustedServer:
        """Return this very trust: it needs to know nobody."""
        return self

    def contribute(self, answer: Counts, release: Release, sensitivity: Sensitivity, bits: RandomBits) -> Counts:
        """Return the exact answer."""
        return answer

    def answer(self, request: Request, desk: Desk) -> Arrays:
        """Return the exact answer."""
        exact, sensitivity = desk.statistic()
        return {"values": self.contribute(exact, request.release, sensitivity, desk.bits("contribute"))}

    def session(
        self,
        request: Request,
        sites: Sequence[str],
        sensitivity: Sensitivity,
        bits: Callable[[Counts], RandomBits],
    ) -> OneMessage:
        """Return the sum of what sites answer, with one sample of the release's noise."""
        return OneMessage(
            request,
            tuple(sites),
            lambda exact: add_noise(exact, request.release, sensitivity, bits(exact)),
            lambda heard: self.std(request.release, sensitivity, heard),
        )

    def std(self, release: Release, sensitivity: Sensitivity, sites: int) -> float:
        """Return the release's own standard deviation, whatever the number of sites."""
        return noise_std(release, sensitivity)

    def vault(self, contributions: Iterable[Counts]) -> Counts:
        """Return the exact sum, for the server to hold and to release from."""
        return total(contributions)
