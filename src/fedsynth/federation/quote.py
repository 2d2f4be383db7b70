"""The quote of a question: its sensitivity, noise and cost, computed alike by sites, server and the proof of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
    """Sensitivity, noise and cost of a question, derived from the question, the schema and the trust model alone.

    * ``pooled``: whether ``noise`` is added to the sum over sites, rather than by each site to its own answer.
    * ``noise``: :class:`~fedsynth.privacy.release.Exact` for the verb ``average``, whose training adds noise already.
    * ``norms``: sensitivity to one person of the vector that noise is added to; 1 for a selection, since how far a
      record moves its utilities is its span (:class:`~fedsynth.federation.query.UtilityBound`).
    * ``cells``: number of integers in an answer: the cells of a query, or the draws of a selection.
    * ``times``: how many times the cost of one noisy release each site is charged for the question.
    """

    request: Request
    schema: Schema
    trust: Trust
    pooled: bool
    noise: Release
    norms: Norms
    cells: int
    times: int

    @classmethod
    def of(cls, request: Request, schema: Schema, trust: Trust) -> Quote:
        """Return the quote of the question of a ``request``."""
        head, query, change = request.head, request.query, request.agreement.change
        pooled = head.verb == "deposit" or (head.verb == "sum" and trust.pooled)
        noise = Exact() if head.verb == "average" else noise_of(head.release)
        if isinstance(query, Query):
            norms, cells = protect(query.sensitivity(schema), change, pooled=pooled), query.cells(schema)
        else:
            norms, cells = Norms(1.0, 1.0), query.steps
        return cls(request, schema, trust, pooled, noise, norms, cells, times_charged(change.unit, pooled=pooled))

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
