"""The quote of a question: its sensitivity, noise and cost, computed alike by sites, server and the proof of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fedsynth.federation.query import Query
from fedsynth.federation.trust import Trust, sums_of
from fedsynth.federation.wire import Request
from fedsynth.privacy.cost import Cost, Norms, protect, times_charged
from fedsynth.privacy.ledger import Entry
from fedsynth.privacy.noise import noise_std
from fedsynth.privacy.release import Exact, Release, SampledGaussian
from fedsynth.schema import Schema


def noise_of(release: Release) -> Release:
    """Return the noise distribution of a release: the release itself or, if rows are sampled, its Gaussian noise."""
    return release.noise if isinstance(release, SampledGaussian) else release


@dataclass(frozen=True, eq=False)
class Quote:
    """Sensitivity, noise and cost of a question, derived from the question, the schema and the trust model alone."""

    request: Request
    schema: Schema
    trust: Trust

    @property
    def pooled(self) -> bool:
        """Whether noise is added to the sum over sites, rather than by each site to its own answer."""
        verb = self.request.head.verb
        return verb == "deposit" or (verb == "sum" and self.trust.pooled)

    @property
    def noise(self) -> Release:
        """The noise that is added to the answers or their sum.

        It is :class:`~fedsynth.privacy.release.Exact` for the verb ``average``: the sites' training adds noise already.
        """
        head = self.request.head
        return Exact() if head.verb == "average" else noise_of(head.release)

    @cached_property
    def norms(self) -> Norms:
        """Sensitivity to one person of the vector that noise is added to.

        Both norms are 1 for a selection: how far a record moves its utilities is its span
        (:class:`~fedsynth.federation.query.UtilityBound`).
        """
        query = self.request.query
        if not isinstance(query, Query):
            return Norms(1.0, 1.0)
        return protect(query.sensitivity(self.schema), self.request.agreement.change, pooled=self.pooled)

    @cached_property
    def cells(self) -> int:
        """Number of integers in an answer: the cells of a query, or the draws of a selection."""
        query = self.request.query
        return query.cells(self.schema) if isinstance(query, Query) else query.steps

    @property
    def times(self) -> int:
        """How many times the cost of one noisy release each site is charged for the question."""
        return times_charged(self.request.agreement.unit, pooled=self.pooled)

    @property
    def cost(self) -> Cost:
        """The question's cost to one person, as charged at each site."""
        return self.request.head.release.cost(self.norms) * self.times

    def entry(self, sites: Sequence[str]) -> Entry:
        """Return the ledger's entry for the question, put to ``sites`` (names)."""
        head, query, std = self.request.head, self.request.query, math.nan
        if head.verb == "sum":
            std = sums_of(self.trust).std(self.noise, self.norms, len(sites))
        elif head.verb == "each":
            std = noise_std(self.noise, self.norms)
        std /= query.unit if isinstance(query, Query) else 1.0
        what, asked = (head.step, head.verb, head.kind, head.release), tuple(sites)
        return Entry(*what, asked, self.cells, self.cost, std, self.request.question)
