"""Trust models: the protocols that decide who adds the noise and who may see exact counts.

A trust model is a few values and one or two roles: how sums over sites are made (:class:`SumProtocol`), and how vaults
are filled (:class:`VaultProtocol`). A sum takes one or more turns: a turn is one message to each site, and the site's
answer.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import msgspec
import numpy as np

from fedsynth import keys
from fedsynth.errors import Unsupported
from fedsynth.federation.events import Answer, Event, values_of
from fedsynth.federation.query import Query
from fedsynth.federation.vault import Vault, VaultQuestion
from fedsynth.keys import Keys
from fedsynth.privacy.cost import Norms
from fedsynth.privacy.noise import RandomBits
from fedsynth.privacy.release import Release
from fedsynth.schema import Schema
from fedsynth.schema.bins import Integers
from fedsynth.terms import Terms

NO_SUMS = (
    "three servers hold deposits, from which methods draw and open tables; for plain sums use --trust secure, which "
    "needs no servers"
)


class SiteTurn(Protocol):
    """What a site gives a :class:`Trust` to compute its answer with, for one message of one question.

    When a site first takes up a question it draws a random salt, which serves all turns and repetitions of the question
    until the site deletes its record of it.
    """

    @property
    def name(self) -> str:
        """Name of the site."""

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the question, the same in each turn."""

    @property
    def schema(self) -> Schema:
        """The agreed schema."""

    @property
    def identity(self) -> bytes:
        """Seed (32 bytes) of the site's identity key (Ed25519), which never leaves the site."""

    @property
    def release(self) -> Release:
        """Noise that the trust model is to add."""

    @property
    def norms(self) -> Norms:
        """Sensitivity to one person of the vector that noise is added to.

        That vector is the sum over sites if noise is added to the sum (:attr:`Trust.pooled`; never for an average of
        the sites' own training), and otherwise this site's answer.
        """

    def statistic(self) -> Integers:
        """Return the site's exact answer (int64, flat), after charging the question to the site's privacy budget, once.

        Only the changes by the site's own training, for an average, have the site's noise in them already. Raises
        :class:`~fedsynth.errors.BudgetExceeded` and :class:`~fedsynth.errors.Refused` as :meth:`Book.begin
        <fedsynth.privacy.book.Book.begin>` does.
        """

    def bits(self, purpose: str) -> RandomBits:
        """Return random bits for one purpose, a function of the site's secret, the question, its salt and its terms."""

    def key(self, purpose: str) -> bytes:
        """Return 32 secret bytes for one use, derived from the same inputs as :meth:`bits`."""

    def run_key(self, purpose: str) -> bytes:
        """Return 32 secret bytes for one use, the same for all questions of one run: it has a salt of its own."""

    def first(self, part: str, value: bytes) -> bytes:
        """Durably store ``value`` for this question under the name ``part`` unless it has one; return the stored value.

        If that differs from ``value``, the site has taken a different message for this part of the protocol before.
        """

    def said(self, part: str) -> bytes | None:
        """Return the value that :meth:`first` stored for this question under the name ``part``, or ``None``."""


class Released(msgspec.Struct, frozen=True, forbid_unknown_fields=True, eq=False):
    """A released sum over sites, as it is recorded in a run's transcript.

    ``sites`` are the names of the sites in the sum, ``std`` is the standard deviation of the noise in each of its
    cells, or an upper bound (:func:`~fedsynth.privacy.noise.noise_std`), and ``values`` (int64, shape ``(cells,)``) are
    the integers with that noise.
    """

    sites: tuple[str, ...]
    std: float
    values: Integers


class Aggregation(Protocol):
    """The server's side of one sum over sites: makes the messages for the sites, takes their answers, returns the sum.

    The server calls :meth:`ask`, then :meth:`receive` for each site that answers this turn, and so on until :meth:`ask`
    returns no more messages; then :meth:`result`.
    """

    def ask(self) -> Mapping[str, Event | None]:
        """Return the message for each site in the next turn, by name; empty if the sum is complete or has failed.

        The value is the event that the message has beside the question, or ``None`` for the question alone.
        """

    def receive(self, site: str, answer: Answer) -> None:
        """Take in one site's answer to the last message of :meth:`ask`; a site that does not answer drops out.

        Raises :class:`~fedsynth.errors.FedsynthError` for an invalid answer; the caller then treats the site as lost.
        """

    def result(self) -> Released | None:
        """Return the released sum once :meth:`ask` has no more messages; ``None`` if no site answered at all.

        Raises :class:`~fedsynth.errors.SiteLost` if too few sites answered all messages.
        """


def roster_digest(roster: Mapping[str, bytes]) -> str:
    """Return the SHA-256 (hex) of the sites in ``roster``: each site's public identity key (32 bytes) by name."""
    return keys.digest("roster", *(part for name in sorted(roster) for part in (name, roster[name]))).hex()


def settable(trust: Any) -> tuple[str, ...]:
    """Return the names of the settings of ``trust``, a trust model (class or object), that users may choose.

    These are its fields whose default is a number or ``None``. fedsynth fills in the others, such as the sites' keys.
    """
    return tuple(one.name for one in dataclasses.fields(trust) if isinstance(one.default, int | float | None))


def settings_of(trust: Any) -> dict[str, float]:
    """Return the settings of a trust model by name; those that follow from the number of sites are left out."""
    values = {name: getattr(trust, name) for name in settable(trust)}
    return {name: value for name, value in values.items() if value is not None}


@dataclass
class Traffic:
    """What one compute server, or all three together, sent, received and computed so far.

    ``down`` are bytes of the coordinator's calls, ``up`` those of the results, and ``among`` bytes that servers sent
    each other in draws (private selections), all without what TLS adds. ``draw_seconds`` is the estimated CPU time of
    one server in all draws.
    """

    down: int = 0
    up: int = 0
    among: int = 0
    draw_seconds: float = 0.0

    @property
    def sent(self) -> int:
        """Bytes that were sent by servers."""
        return self.up + self.among


class SumProtocol(ABC):
    """The sums of a trust model: sites answer in one or more turns, and the server makes a released sum of the answers.

    ``turns`` is the number of turns, and ``reads`` the index, from 0, of the one in which a site reads its rows.
    """

    turns: ClassVar[int] = 1
    reads: ClassVar[int] = 0

    @abstractmethod
    def answer(self, site: SiteTurn, turn: int, event: Event | None) -> Answer:
        """Return a site's answer to one message of a sum, with whatever noise or masks this trust model demands.

        ``turn`` counts the messages of the sum from 0, and ``event`` is what the server sent with this one. Raises
        :class:`~fedsynth.errors.Refused` for an event that does not belong to the turn.
        """

    @abstractmethod
    def aggregation(
        self, digest: str, release: Release, norms: Norms, sites: Sequence[str], bits: Callable[[Integers], RandomBits]
    ) -> Aggregation:
        """Return the server's side of one sum over ``sites``.

        ``digest`` is the SHA-256 (hex) of the question. ``norms`` are the sensitivity to one person: of the sum if
        :attr:`Trust.pooled`, otherwise of one site's answer. ``bits(exact)`` gives the server's own noise source for an
        exact sum, where the server adds the noise. For a release that is not a noisy sum, either this raises
        :class:`~fedsynth.errors.Unsupported` or :meth:`Aggregation.result` does.
        """

    @abstractmethod
    def std(self, release: Release, norms: Norms, sites: int) -> float:
        """Return the standard deviation of the noise in each cell of a sum over ``sites`` sites, without asking any.

        It is never too small. ``norms`` are as in :meth:`aggregation`. Raises :class:`~fedsynth.errors.Unsupported` if
        there are no sums with such noise.
        """


class VaultProtocol(ABC):
    """The vaults of a trust model, which hold exact sums of tables and release only noisy results of them.

    ``opens_scores`` says whether :meth:`Vault.scores <fedsynth.federation.vault.Vault.scores>` is available.
    """

    opens_scores: ClassVar[bool] = True

    @abstractmethod
    def deposit(self, site: SiteTurn, query: Query) -> Answer:
        """Return a site's answer to ``query``: exact tables, which are then sealed for the server, or secret shares."""

    @abstractmethod
    def create(self, terms: Terms, question: VaultQuestion) -> Vault:
        """Return an empty vault for the tables that ``question`` asked sites for."""


class Trust:
    """A trust model: the protocol that decides who adds the noise, and who may see exact counts.

    There are four: :class:`~fedsynth.federation.trusted.TrustedServer`, :class:`~fedsynth.federation.local.LocalNoise`,
    :class:`~fedsynth.secure.site.SecureSum` and :class:`~fedsynth.servers.trust.ThreeServers`. Sites and server each
    hold a copy. A trust model states its roles as further base classes: it has :attr:`sums` if it is a
    :class:`SumProtocol`, and a :attr:`vault` if it is a :class:`VaultProtocol`.

    ``name`` is its name in requests, site policies and on the command line, such as ``secure``. ``confidential`` says
    whether a site's answer to a sum is exact, and must therefore be encrypted for the server; ``pooled`` whether noise
    is added once, to the sum over sites, or by each site in full to its own answer.
    """

    name: ClassVar[str]
    confidential: ClassVar[bool]
    pooled: ClassVar[bool]

    @property
    def sums(self) -> SumProtocol | None:
        """How sums over sites are made, or ``None`` if there are none."""
        return self if isinstance(self, SumProtocol) else None

    @property
    def vault(self) -> VaultProtocol | None:
        """How vaults are filled and made, or ``None`` if no party can hold exact sums."""
        return self if isinstance(self, VaultProtocol) else None

    @property
    def terms(self) -> str:
        """The site's own settings of this trust model, as text; the noise and keys of the site depend on them too."""
        return ""

    @property
    def assumption(self) -> str:
        """The assumption about other parties that the guarantee rests on, as English text; empty if there is none."""
        return ""

    @property
    def traffic(self) -> Traffic:
        """What further parties, such as three compute servers, together sent, received and computed so far."""
        return Traffic()

    def with_roster(self, roster: Mapping[str, bytes]) -> Trust:
        """Return a copy for the sites in ``roster``: each site's public identity key (Ed25519, 32 bytes) by name."""
        return self

    def in_process(self, secret: Callable[[str], bytes], terms: Terms, coordinator: bytes) -> Trust:
        """Return a copy for a simulation, with further parties, such as compute servers, in process.

        ``secret(name)`` gives 32 secret bytes for the party of that name; ``terms`` are what these parties agree to,
        and ``coordinator`` (64 bytes) holds the server's public keys.
        """
        return self

    def pinned(self, folder: Path) -> Trust:
        """Return a copy with the public keys of further parties, as a site's ``folder`` has them.

        Raises :class:`~fedsynth.errors.FedsynthError` if they are missing or invalid.
        """
        return self

    def connected(self, folder: Path, coordinator: Keys) -> AbstractContextManager[Trust]:
        """A context manager that yields a copy with connections to further parties, for one run.

        Each connection is opened at the first call, and all are closed at the block's end. Addresses, keys and
        certificates come from the coordinator's ``folder``. Raises :class:`~fedsynth.errors.FedsynthError` if they are
        missing or invalid.
        """
        return nullcontext(self)


def sums_of(trust: Trust) -> SumProtocol:
    """Return the sums of a trust model; raises :class:`Unsupported` if it has none."""
    if trust.sums is None:
        raise Unsupported(NO_SUMS)
    return trust.sums


@dataclass(eq=False)
class OneMessageSum:
    """The server's side of a sum in which each site sends one message (an :class:`Aggregation`).

    ``finish`` turns the total of the answers into the released integers, for example by adding noise. ``std(number)``
    returns the standard deviation of the noise in each cell of the sum if ``number`` sites answered.
    """

    sites: tuple[str, ...]
    finish: Callable[[Integers], Integers]
    std: Callable[[int], float]
    _asked: bool = False
    _total: Integers | None = field(default=None, repr=False)  # exact under a trusted server
    _heard: list[str] = field(default_factory=list)

    def ask(self) -> Mapping[str, Event | None]:
        """Return ``None`` for each site at the first call: the question goes alone. Later, return an empty mapping."""
        if self._asked:
            return {}
        self._asked = True
        return dict.fromkeys(self.sites)

    def receive(self, site: str, answer: Answer) -> None:
        """Add one site's answer to the total, so that memory holds two vectors at most."""
        values = values_of(site, answer)
        self._total = values.copy() if self._total is None else np.add(self._total, values, out=self._total)
        self._heard.append(site)

    def result(self) -> Released | None:
        """Return the released sum over the sites that answered, or ``None`` if none did."""
        if self._total is None:
            return None
        return Released(tuple(self._heard), self.std(len(self._heard)), self.finish(self._total))
