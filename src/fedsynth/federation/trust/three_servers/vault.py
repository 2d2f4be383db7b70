"""The vault that three servers hold in shares: nobody can read it, and everybody can see what comes out of it.

Two implementations of :class:`Servers` are behind it: three servers in one process (`ideal`), and three processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from fedsynth.cliques import Clique, integer_weights
from fedsynth.errors import FedsynthError, Refused, Unsupported
from fedsynth.federation.events import Answer, Dealt
from fedsynth.federation.query import Counts
from fedsynth.federation.trust.three_servers.questions import MOST_PENALTY, Draw, Open, opened_std
from fedsynth.federation.vault import Distances, Releases, VaultTerms, held_axes
from fedsynth.federation.wire import Request
from fedsynth.privacy.cost import Norms, Sensitivity, protect
from fedsynth.privacy.release import draw_for, noise_for
from fedsynth.schema.bins import Floats, Integers

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation


class Servers(Protocol):
    """The coordinator's hold on three servers: it relays what is sealed, asks, and is answered by all three or by none.

    Every verb raises :class:`~fedsynth.errors.SiteLost` naming a server that is silent, and
    :class:`~fedsynth.errors.Refused` or :class:`~fedsynth.errors.BudgetExceeded` for what one of them refuses. The same
    question again is answered as it was first.
    """

    def begin(self, vault: str, body: bytes, signature: bytes) -> None:
        """Hand the signed question of a deposit to all three: ``vault`` is the digest of the vault's first one.

        Deals to the same question that were taken before, and not kept, are forgotten.
        """

    def take(self, vault: str, site: str, dealt: Dealt) -> bool:
        """Hand a site's shares to all three; whether they open and any two that hold the same share hold the same."""

    def keep(self, vault: str, sites: Sequence[str]) -> None:
        """Let the sites into the vault whose shares were taken, in the order in which they were."""

    def open(self, question: Open) -> Integers:
        """Return the sum of the three noisy shares of the tables, one table after the other, flat."""

    def draw(self, question: Draw) -> int:
        """Return the index of the candidate that the three servers drew."""


@dataclass(eq=False)
class SharedVault:
    """Tables in shares among three servers.

    What is opened has 1.5 times the variance of the release, since each server adds noise and one may be curious; a
    draw has two Gumbel numbers a candidate in place of one. Distances are by the L2 norm: a secure product for each
    cell, in place of a comparison. All of this is post-processing of what the release promises, and costs what it
    costs.
    """

    opens_scores: ClassVar[bool] = False

    terms: VaultTerms
    servers: Servers
    sites: tuple[str, ...] = ()
    _staged: list[str] = field(default_factory=list)
    _number: int = 0

    def __post_init__(self) -> None:
        """Start an account of what is released."""
        self._releases = Releases(self.terms)

    @property
    def left(self) -> float:
        """Share of the run's budget that may still be released."""
        return self._releases.left

    def add(self, cohort: Federation) -> None:
        """Ask the sites of ``cohort`` that are not in yet for shares of their tables."""
        self.terms.fill(self, cohort.sites)

    def begin(self, request: Request) -> None:
        """Hand the servers the question that sites answer; shares that were not kept are forgotten."""
        if request.signature is None:
            raise FedsynthError("the deposit's question is not signed; servers answer nobody else than the coordinator")
        self._staged = []
        self.servers.begin(self.terms.question, request.body, request.signature)

    def take(self, site: str, answer: Answer) -> None:
        """Hand on a site's shares; raises :class:`Refused` where servers hold different ones."""
        if not isinstance(answer, Dealt):
            raise Refused("it dealt no shares")
        if not self.servers.take(self.terms.question, site, answer):
            raise Refused("what it dealt does not open, or two servers hold different shares of it")
        self._staged.append(site)

    def keep(self) -> None:
        """Let the sites in whose shares were taken."""
        self.servers.keep(self.terms.question, self._staged)
        self.sites += tuple(self._staged)
        self._staged = []

    def select(self, distances: Distances, share: float) -> int:
        """Return the index of one candidate, drawn by L2 distances, with the Gumbel numbers of two servers.

        Expected counts and noise are rounded to whole records.
        """
        release = draw_for(self.terms.budget, share, at_site=False)
        cliques = distances.candidates
        expected = np.concatenate([np.rint(np.maximum(table, 0.0)).ravel() for table in distances.expected])
        penalties = np.minimum(np.rint(np.maximum(distances.noise, 0.0)), MOST_PENALTY)
        question = Draw(
            self.terms.question,
            self._number,
            cliques,
            expected.astype(np.int32),
            integer_weights(distances.weights).astype(np.int32),
            penalties.astype(np.int32),
            release,
        )
        self._releases.charge("select", release, share, self.sites, len(cliques), float("nan"))
        self._number += 1
        return self.servers.draw(question)

    def scores(self, distances: Distances, share: float) -> tuple[Floats, float]:
        """Raise :class:`Unsupported`: scores are never opened."""
        raise Unsupported("three servers draw by scores and never open them; use a method that draws")

    def open(self, query: Counts, share: float) -> tuple[list[Floats], list[float]]:
        """Return noisy tables, in records, and the noise's standard deviation in each."""
        release = noise_for(self.terms.budget, share, at_site=False)
        held_axes(self.terms, query)
        self._held(query.cliques)
        question = Open(self.terms.question, self._number, tuple(query.cliques), release, query.weights)
        std = opened_std(release, question.norms(self.terms.schema, self.terms.unit, self.terms.neighbours))
        self._releases.charge("open", release, share, self.sites, query.cells(self.terms.schema), std)
        self._number += 1
        return query.split(self.terms.schema, self.servers.open(question)), query.stds(std)

    def std(self, share: float) -> float:
        """Return the noise's standard deviation in a cell of one table that is opened for that share: all of it."""
        one = protect(Sensitivity(1, 1, 2, 2**0.5), self.terms.unit, self.terms.neighbours, pooled=True)
        return opened_std(noise_for(self.terms.budget, share, at_site=False), Norms(*one))

    def _held(self, cliques: Sequence[Clique]) -> None:
        deposited = [set(clique) for clique in self.terms.query.cliques]
        for clique in cliques:
            if not any(set(clique) <= held for held in deposited):
                raise Unsupported(f"columns {clique} were not deposited together; deposit a clique that contains them")
