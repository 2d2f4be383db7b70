"""The quote of a question: its sensitivity, noise and cost, computed alike by sites, server and the proof of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fedsynth.federation.query import AnyQuery, Query
from fedsynth.federation.trust import Trust, sums_of
from fedsynth.federation.wire import QuestionHead
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

    ``head`` holds the question's price and terms (:class:`~fedsynth.federation.wire.QuestionHead`), and ``query`` what
    it asks.
    """

    head: QuestionHead
    query: AnyQuery
    schema: Schema
    trust: Trust

    @property
    def pooled(self) -> bool:
        """Whether noise is added to the sum over sites, rather than by each site to its own answer."""
        verb = self.head.verb
        return verb == "deposit" or (verb == "sum" and self.trust.pooled)

    @property
    def noise(self) -> Release:
        """The noise added to the answers or their sum: its kind and price (:data:`~fedsynth.privacy.release.Release`).

        It is :class:`~fedsynth.privacy.release.Exact`, no noise, for the verb ``average``: the sites' training adds
        noise already.
        """
        return Exact() if self.head.verb == "average" else noise_of(self.head.release)

    @cached_property
    def norms(self) -> Norms:
        """Sensitivity (L1, L2) to one person of the vector that noise is added to.

        Both are 1 for a selection: how far a record moves its utilities is its span
        (:class:`~fedsynth.federation.query.UtilityBound`).
        """
        if not isinstance(self.query, Query):
            return Norms(1.0, 1.0)
        sensitivity = self.query.sensitivity(self.schema)
        return protect(sensitivity, self.head.unit, self.head.neighbours, pooled=self.pooled)

    @property
    def times(self) -> int:
        """How many times the cost of one noisy release each site is charged for the question.

        It is 1 if noise is added once, to the sum over sites. Otherwise it is the number of sites that a person may be
        at, since each of these releases an answer with its own noise.
        """
        return times_charged(self.head.unit, pooled=self.pooled)

    @property
    def cost(self) -> Cost:
        """The question's cost to one person, as charged at each site."""
        return self.head.release.cost(self.norms) * self.times

    def entry(self, sites: Sequence[str], question: str) -> Entry:
        """Return the ledger's entry for the question, of which ``question`` is the digest, put to ``sites`` (names).

        Raises :class:`~fedsynth.errors.Unsupported` for a sum under a trust model without sums.
        """
        head, std = self.head, math.nan
        if head.verb == "sum":
            std = sums_of(self.trust).std(self.noise, self.norms, len(sites))
        elif head.verb == "each":
            std = noise_std(self.noise, self.norms)
        cells = self.query.cells(self.schema) if isinstance(self.query, Query) else self.query.steps
        unit = self.query.unit if isinstance(self.query, Query) else 1.0
        cost, asked = self.cost, tuple(sites)
        return Entry(head.step, head.verb, head.kind, head.release, asked, cells, cost, std / unit, question)
