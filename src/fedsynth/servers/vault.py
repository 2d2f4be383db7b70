"""The vault that three servers hold in shares: nobody can read it, and only noisy results are released from it.

:class:`Servers` has two implementations: three servers in this process (`ideal`), and three processes (`remote`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from fedsynth.cliques import Clique, integer_weights
from fedsynth.errors import FedsynthError, Refused, Unsupported
from fedsynth.federation.events import Answer, DealtShares
from fedsynth.federation.query import Counts
from fedsynth.federation.vault import CandidateScores, VaultAccounting, VaultTerms, held_axes
from fedsynth.federation.wire import Request
from fedsynth.privacy.cost import Norms, Sensitivity, protect
from fedsynth.privacy.release import draw_for, noise_for
from fedsynth.schema.bins import Floats, Integers
from fedsynth.servers.questions import MOST_PENALTY, OpenTables, SelectTable, opened_std

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation


class Servers(Protocol):
    """The coordinator's access to three compute servers: it passes on sealed shares and asks questions of all three.

    There are two: :class:`~fedsynth.servers.ideal.IdealServers` in one process and
    :class:`~fedsynth.servers.remote.RemoteServers`. Every method raises
    :class:`~fedsynth.errors.SiteLost`, naming a server that does not answer, and :class:`~fedsynth.errors.Refused` or
    :class:`~fedsynth.errors.BudgetExceeded` if one of them refuses, except for what one refuses of a site
    (:meth:`take`). A repeated question gets the same answer, and is not charged again. A vault is the sum of the sites'
    tables, which the three servers hold in secret shares.
    """

    def begin(self, vault: str, body: bytes, signature: bytes) -> None:
        """Begin a vault, or let more sites join it, by passing a signed question for tables to all three servers.

        The vault's name ``vault`` is the digest (hex) of the question that it began with. ``body`` holds the bytes of
        the question that sites are asked now, and ``signature`` is the coordinator's signature of them. Shares that
        were taken for this vault before, but not kept (:meth:`keep`), are forgotten; the question that it began with,
        sent again, empties the vault. Errors are those of :class:`Servers`.
        """

    def take(self, vault: str, site: str, dealt: DealtShares) -> bool:
        """Pass one site's sealed shares to all three servers; return whether they accept them.

        They do if each server can open its two shares, and the two servers that have a share in common hold the same.
        Otherwise, all three leave the site out. ``vault`` is the vault's name (a digest, hex). ``site`` is the site's
        name, and ``dealt`` holds its shares (:class:`~fedsynth.federation.events.DealtShares`). Errors are those of
        :class:`Servers`.
        """

    def keep(self, vault: str, sites: Sequence[str]) -> None:
        """Let into the vault all ``sites``, which are those whose shares were accepted, in the order of :meth:`take`.

        ``vault`` is the vault's name (a digest, hex). Errors are those of :class:`Servers`.
        """

    def open(self, question: OpenTables) -> Integers:
        """Return the noisy tables that ``question`` asks for, one after the other, int64 and flat.

        They are the sum of the three servers' noisy shares. A repeated question gets the same answer and is not charged
        again. Errors are those of :class:`Servers`.
        """

    def draw(self, question: SelectTable) -> int:
        """Return the index of the candidate (a table) of ``question`` that the three servers drew together, privately.

        A repeated question gets the same answer and is not charged again. Errors are those of :class:`Servers`.
        """


@dataclass(eq=False)
class SharedVault:
    """The vault of the trust model three-servers: sums of the sites' tables, held in secret shares by three servers.

    It is a :class:`~fedsynth.federation.vault.Vault`. ``terms`` say which tables it holds and what its releases may
    cost together (:class:`~fedsynth.federation.vault.VaultTerms`); ``servers`` is the access to the three servers. In
    its methods ``share`` is the fraction of the run's budget that a release may cost. Opened tables have 1.5 times the
    noise variance of the release, up to 3 times for very small and very large noise
    (:func:`~fedsynth.servers.questions.opened_std`), because each server adds noise and one of
    them may be curious; each candidate of a draw (private selection) gets two Gumbel numbers instead of one. Distances
    are L2 distances, since these need one secure product for each cell instead of a comparison. None of this changes
    the privacy cost of a release. ``sites`` are the names of the sites whose tables are in the vault; ``opens_scores``
    is false: :meth:`scores` always fails.
    """

    opens_scores: ClassVar[bool] = False

    terms: VaultTerms
    servers: Servers
    sites: tuple[str, ...] = ()
    _staged: list[str] = field(default_factory=list)
    _number: int = 0

    def __post_init__(self) -> None:
        """Start an empty record of releases."""
        self._releases = VaultAccounting(self.terms)

    @property
    def left(self) -> float:
        """What this vault's further releases may cost together, as a fraction of the run's budget."""
        return self._releases.left

    def add(self, cohort: Federation) -> None:
        """Ask those sites of ``cohort`` that were not asked yet for shares of their tables; each pays the full deposit.

        ``cohort`` is a federation of some of the run's sites. The deposit is the part of the budget for everything that
        the vault will ever release. Raises what :class:`Servers` raises, and :class:`~fedsynth.errors.SiteLost` if too
        few sites answer.
        """
        self.terms.fill(self, cohort.sites)

    def begin(self, request: Request) -> None:
        """Pass the signed question that asks sites for their tables to the servers, before the sites answer it.

        Shares that were taken before, but not kept (:meth:`keep`), are forgotten; the vault's first question, sent
        again, empties it. Raises :class:`FedsynthError` for a ``request``, the question, without the coordinator's
        signature, and what :class:`Servers` raises.
        """
        if request.signature is None:
            raise FedsynthError("the deposit question is not signed; sign it with the coordinator's key")
        self._staged = []
        self.servers.begin(self.terms.question, request.body, request.signature)

    def take(self, site: str, answer: Answer) -> None:
        """Pass the shares in a site's ``answer`` to the servers; call :meth:`keep` once all sites have answered.

        Raises :class:`Refused` if the answer holds no shares, if a server cannot open its shares, or if two servers
        hold different values of the share that both should have, and what :class:`Servers` raises.
        """
        if not isinstance(answer, DealtShares):
            raise Refused("its answer holds no shares; install the same fedsynth there")
        if not self.servers.take(self.terms.question, site, answer):
            raise Refused("its shares cannot be opened, or two servers hold different ones; compare its servers.toml")
        self._staged.append(site)

    def keep(self) -> None:
        """Let into the vault all sites whose shares the servers have accepted since :meth:`begin`.

        Raises what :class:`Servers` raises.
        """
        self.servers.keep(self.terms.question, self._staged)
        self.sites += tuple(self._staged)
        self._staged = []

    def select(self, distances: CandidateScores, share: float) -> int:
        """Return the index of a candidate, drawn privately with preference for tables far from the expected ones.

        ``distances`` gives candidates, expected tables and weights
        (:class:`~fedsynth.federation.vault.CandidateScores`). The three servers draw by L2 distances, with the Gumbel
        numbers of two of them, for the fraction ``share`` of the run's budget. Expected counts and noise are rounded to
        whole records, negative ones to 0, and weights to integers (:func:`~fedsynth.cliques.integer_weights`). Raises
        :class:`~fedsynth.errors.BudgetExceeded` if less than ``share`` is left, :class:`Unsupported` for a candidate
        whose columns are not together in a table of the vault, and what :class:`Servers` raises.
        """
        self._held(distances.candidates)
        release = draw_for(self.terms.budget, share, at_site=False)
        cliques = distances.candidates
        expected = np.concatenate([np.rint(np.clip(table, 0.0, 2.0**31 - 1)).ravel() for table in distances.expected])
        penalties = np.minimum(np.rint(np.maximum(distances.noise, 0.0)), MOST_PENALTY)
        question = SelectTable(
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

    def scores(self, distances: CandidateScores, share: float) -> tuple[Floats, float]:
        """Raise :class:`Unsupported`: three servers use scores in draws (:meth:`select`) and release none of them."""
        raise Unsupported("three servers draw by scores and never open them; use a method that draws")

    def open(self, query: Counts, share: float) -> tuple[list[Floats], list[float]]:
        """Return the noisy tables of ``query`` (in records), and the noise's standard deviation in a cell of each.

        All together they cost the fraction ``share`` of the run's budget. Raises
        :class:`~fedsynth.errors.BudgetExceeded` if less is left, :class:`Unsupported` for a table whose columns are not
        together in a table of the vault or have other bins there, and what :class:`Servers` raises.
        """
        release = noise_for(self.terms.budget, share, at_site=False)
        held_axes(self.terms, query)
        self._held(query.cliques)
        question = OpenTables(self.terms.question, self._number, tuple(query.cliques), release, query.weights)
        std = opened_std(release, question.norms(self.terms.schema, self.terms.unit, self.terms.neighbours))
        self._releases.charge("open", release, share, self.sites, query.cells(self.terms.schema), std, query)
        self._number += 1
        return query.split(self.terms.schema, self.servers.open(question)), query.stds(std)

    def std(self, share: float) -> float:
        """Return the standard deviation of all noise in a cell, if a single table is opened for ``share``.

        ``share`` is a fraction of the run's budget; the result is in records.
        """
        one = protect(Sensitivity(1, 1, 2, 2**0.5), self.terms.unit, self.terms.neighbours, pooled=True)
        return opened_std(noise_for(self.terms.budget, share, at_site=False), Norms(*one))

    def _held(self, cliques: Sequence[Clique]) -> None:
        deposited = [set(clique) for clique in self.terms.query.cliques]
        for clique in cliques:
            if not any(set(clique) <= held for held in deposited):
                raise Unsupported(
                    f"columns {clique} were not deposited together; deposit one table that contains all of them"
                )
