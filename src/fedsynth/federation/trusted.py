"""The trusted server, which sees every site's exact counts: the central model of differential privacy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from fedsynth.errors import Refused
from fedsynth.federation.events import Answer, Event, PlainAnswer
from fedsynth.federation.query import Query
from fedsynth.federation.trust import OneMessageSum, SiteTurn, SumProtocol, Trust, VaultProtocol
from fedsynth.federation.vault import TrustedVault, VaultQuestion
from fedsynth.privacy.cost import Norms
from fedsynth.privacy.noise import RandomBits, add_noise, noise_std
from fedsynth.privacy.release import Release
from fedsynth.schema.bins import Integers
from fedsynth.terms import Terms


@dataclass(frozen=True)
class TrustedServer(Trust, SumProtocol, VaultProtocol):
    """Trust model in which sites send exact counts, sealed for the server, which adds noise once to their sum.

    The guarantee holds against everyone but the server. The sum of the sites' tables equals the table of the pooled
    rows, so under this model a method that uses only sums and deposits of tables at all sites computes, bit for bit,
    what it would compute on pooled rows.
    """

    name: ClassVar[str] = "trusted"
    confidential: ClassVar[bool] = True
    pooled: ClassVar[bool] = True

    @override
    def answer(self, site: SiteTurn, turn: int, event: Event | None) -> Answer:
        if event is not None:
            raise Refused("a sum by a trusted server takes one message; install the same fedsynth everywhere")
        return PlainAnswer(site.statistic())

    @override
    def aggregation(
        self, digest: str, release: Release, norms: Norms, sites: Sequence[str], bits: Callable[[Integers], RandomBits]
    ) -> OneMessageSum:
        return OneMessageSum(
            tuple(sites),
            lambda exact: add_noise(exact, release, norms, bits(exact)),
            lambda heard: self.std(release, norms, heard),
        )

    @override
    def std(self, release: Release, norms: Norms, sites: int) -> float:
        return noise_std(release, norms)

    @override
    def deposit(self, site: SiteTurn, query: Query) -> Answer:
        return PlainAnswer(site.statistic())

    @override
    def create(self, terms: Terms, question: VaultQuestion) -> TrustedVault:
        return TrustedVault(terms, question)
