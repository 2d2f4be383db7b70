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
    """The coordinator's access to three compute servers: it passes on sealed shares and asks questions of all three.

    There are two: :class:`~fedsynth.federation.trust.three_servers.ideal.Ideal` in one process and
    :class:`~fedsynth.federation.trust.three_servers.remote.RemoteServers`. Every method raises
    :class:`~fedsynth.errors.SiteLost`, naming a server that does not answer, and :class:`~fedsynth.errors.Refused` or
    :class:`~fedsynth.errors.BudgetExceeded` if one of them refuses. A repeated question gets the same answer, and is
    not charged again. A vault is the sites' tables, summed in secret shares.
    """

    def begin(self, vault: str, body: bytes, signature: bytes) -> None:
        """Begin a vault, or let more sites join it, by passing a signed question for tables to all three servers.

        ``vault`` is the digest (hex) that names the vault: the sites' tables, summed in secret shares. That is the
        digest of the first such question; ``body`` and ``signature`` are the one that sites now answer, as the
        coordinator signed it. Shares that sites dealt to the same question, and that :meth:`keep` did not let in, are
        forgotten. Errors are those of :class:`Servers`.
        """

    def take(self, vault: str, site: str, dealt: Dealt) -> bool:
        """Pass one site's sealed shares to all three servers; return whether all could open them and they agree.

        ``vault`` is the digest (hex) that names the vault: the sites' tables, summed in secret shares. ``site`` is the
        site's name and ``dealt`` its answer. Errors are those of :class:`Servers`.
        """

    def keep(self, vault: str, sites: Sequence[str]) -> None:
        """Let ``sites``, whose shares were taken, into the vault; they are in the order of :meth:`take`.

        ``vault`` is the digest (hex) that names the vault: the sites' tables, summed in secret shares. Errors are those
        of :class:`Servers`.
        """

    def open(self, question: Open) -> Integers:
        """Return the noisy tables that ``question`` asks for, one after the other, int64 and flat.

        They are the sum of the three servers' noisy shares. A repeated question gets the same answer and is not charged
        again. Errors are those of :class:`Servers`.
        """

    def draw(self, question: Draw) -> int:
        """Return the index of the candidate of ``question`` that the three servers drew together.

        A repeated question gets the same answer and is not charged again. Errors are those of :class:`Servers`.
        """


@dataclass(eq=False)
class SharedVault:
    """The vault of the trust model three-servers: sums of the sites' tables, held in secret shares by three servers.

    It is a :class:`~fedsynth.federation.vault.Vault`; ``terms`` are its terms and ``servers`` the access to the three.
    In its methods ``share`` is the fraction of the run's budget that a release may cost. Opened tables have 1.5 times
    the noise variance of the release, up to 3 times for very small and very large noise
    (:func:`~fedsynth.federation.trust.three_servers.questions.opened_std`), because
    each server adds noise and one of them may be curious; each candidate of a draw gets two Gumbel numbers instead of
    one. Distances are L2 distances, since these need one secure product for each cell instead of a comparison. None of
    this changes the price of a release. ``sites`` are those whose tables are in; ``opens_scores`` is false:
    :meth:`scores` always fails.
    """

    opens_scores: ClassVar[bool] = False

    terms: VaultTerms
    servers: Servers
    sites: tuple[str, ...] = ()
    _staged: list[str] = field(default_factory=list)
    _number: int = 0

    def __post_init__(self) -> None:
        """Start an empty record of releases."""
        self._releases = Releases(self.terms)

    @property
    def left(self) -> float:
        """Fraction of the run's budget that this vault may still release."""
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

        Shares that were taken and not kept are forgotten. Raises :class:`FedsynthError` for a ``request`` without the
        coordinator's signature, and what :class:`Servers` raises.
        """
        if request.signature is None:
            raise FedsynthError("the deposit question is not signed; sign it with the coordinator's key")
        self._staged = []
        self.servers.begin(self.terms.question, request.body, request.signature)

    def take(self, site: str, answer: Answer) -> None:
        """Pass the shares in a site's ``answer`` to the servers; call :meth:`keep` once all sites have answered.

        Raises :class:`Refused` if the answer holds no shares, or if they cannot be opened or do not agree, and what
        :class:`Servers` raises.
        """
        if not isinstance(answer, Dealt):
            raise Refused("its answer holds no shares; install the same fedsynth there")
        if not self.servers.take(self.terms.question, site, answer):
            raise Refused("its shares cannot be opened, or two servers hold different ones; compare its servers.toml")
        self._staged.append(site)

    def keep(self) -> None:
        """Let the sites whose shares were taken since :meth:`begin` into the vault.

        Raises what :class:`Servers` raises.
        """
        self.servers.keep(self.terms.question, self._staged)
        self.sites += tuple(self._staged)
        self._staged = []

    def select(self, distances: Distances, share: float) -> int:
        """Return the index of a candidate, drawn privately with preference for tables far from the expected ones.

        ``distances`` gives candidates, expected tables and weights (:class:`~fedsynth.federation.vault.Distances`). The
        three servers draw by L2 distances, with the Gumbel numbers of two of them, for the fraction ``share`` of the
        run's budget. Expected counts and noise are rounded to whole records. Raises
        :class:`~fedsynth.errors.BudgetExceeded` if less than ``share`` is left, and what :class:`Servers` raises.
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
        """Raise :class:`Unsupported`: three servers use scores in draws (:meth:`select`) and release none of them."""
        raise Unsupported("three servers draw by scores and never open them; use a method that draws")

    def open(self, query: Counts, share: float) -> tuple[list[Floats], list[float]]:
        """Return the noisy tables of ``query`` (in records), and the standard deviation of the noise in each.

        They cost the fraction ``share`` of the run's budget. Raises :class:`~fedsynth.errors.BudgetExceeded` if less is
        left, :class:`Unsupported` for tables whose columns were not deposited together or over other axes (bins), and
        what :class:`Servers` raises.
        """
        release = noise_for(self.terms.budget, share, at_site=False)
        held_axes(self.terms, query)
        self._held(query.cliques)
        question = Open(self.terms.question, self._number, tuple(query.cliques), release, query.weights)
        std = opened_std(release, question.norms(self.terms.schema, self.terms.unit, self.terms.neighbours))
        self._releases.charge("open", release, share, self.sites, query.cells(self.terms.schema), std)
        self._number += 1
        return query.split(self.terms.schema, self.servers.open(question)), query.stds(std)

    def std(self, share: float) -> float:
        """Return the standard deviation of all noise in a cell, if one table is opened for that share of the budget.

        ``share`` is a fraction of the run's budget; the unit is records.
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
