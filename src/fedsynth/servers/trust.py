"""The trust model of three servers: sites send them shares of tables, and no server alone can read the tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedsynth.errors import Refused, Unsupported
from fedsynth.federation.events import Answer, Event
from fedsynth.federation.query import Counts, Query
from fedsynth.federation.trust import Aggregation, SimulationTerms, SiteTurn, Traffic
from fedsynth.keys import Keys
from fedsynth.privacy.book import Book
from fedsynth.privacy.cost import Norms
from fedsynth.privacy.noise import RandomBits
from fedsynth.privacy.release import Release
from fedsynth.schema.bins import Integers
from fedsynth.servers.questions import MOST_RECORDS, check_deposit, largest_count
from fedsynth.servers.server import ComputeParty, ServerTerms, deal
from fedsynth.servers.shares import SERVERS, check_publics
from fedsynth.servers.vault import Servers, SharedVault

if TYPE_CHECKING:
    from fedsynth.federation.vault import VaultTerms

_NO_SUMS = (
    "three servers hold deposits, from which methods draw and open tables; for plain sums use --trust secure, which "
    "needs no servers"
)


@dataclass(frozen=True, eq=False)
class ThreeServers:
    """Trust model in which sites deal secret shares of their tables to three compute servers; none can read them alone.

    The guarantee holds against the coordinator, any one of the three servers and any number of sites together, as long
    as servers follow the protocol, no two of them collude, and no site deals counts that its rows do not give. In
    return, tables that the servers open have 1.5 times the noise variance that a trusted server would add, up to 3
    times for very small and very large noise (:func:`~fedsynth.servers.questions.opened_std`),
    and each candidate of a draw (private selection) gets two Gumbel numbers as noise instead of one. A candidate is a
    table, and its score is the L2 distance of its counts from those that a model expects: the larger, the likelier it
    is drawn. There are no plain sums: methods need a vault (:class:`~fedsynth.federation.vault.Vault`).

    ``publics`` are the three servers' public keys (64 bytes each), ``roster`` the sites' identity keys by name. In a
    deployed run, coordinator and sites each read both from files of their own; a simulation makes them. ``servers`` is
    the coordinator's connection to the three servers, which sites do not have. The class attributes are those of
    :class:`~fedsynth.federation.trust.Trust`.
    """

    publics: tuple[bytes, ...] = field(default_factory=tuple)
    roster: Mapping[str, bytes] = field(default_factory=dict)
    servers: Servers | None = field(default_factory=lambda: None)

    name: ClassVar[str] = "three-servers"
    confidential: ClassVar[bool] = False
    deposits: ClassVar[bool] = True
    pooled: ClassVar[bool] = True
    turns: ClassVar[int] = 0
    reads: ClassVar[int] = 0
    assumption: ClassVar[str] = (
        "of three servers that follow the protocol no two collude (one may collude with the coordinator and any "
        "sites), and no site deals counts that its rows do not give; noise in tables has 1.5 times the variance of a "
        "trusted server's (up to 3 times if that noise is very small or very large), and each draw two Gumbel "
        "numbers in place of one"
    )

    def __post_init__(self) -> None:
        """Raise :class:`InvalidParameter` unless there are no keys, or those of three different servers."""
        if self.publics:
            check_publics(self.publics)

    @property
    def terms(self) -> str:
        """The servers' public keys, the number of sites and the largest total of a table at all sites, as text.

        The keys of a site's sealed shares depend on this text: a server with other terms cannot open them.
        """
        pinned = " ".join(public.hex() for public in self.publics)
        return f"{pinned} at most {MOST_RECORDS} records at {len(self.roster)} sites"

    def with_roster(self, roster: Mapping[str, bytes]) -> ThreeServers:
        """Return a copy for the sites in ``roster``, their public identity keys (Ed25519, 32 bytes) by name."""
        return replace(self, roster=dict(roster))

    def in_process(self, secret: Callable[[str], bytes], terms: SimulationTerms) -> ThreeServers:
        """Return a copy with three compute servers in this process, for a simulation.

        ``secret(name)`` gives the secret (32 bytes) of each server; ``terms`` are what all three agree to: schema,
        budget, who is protected, and the coordinator's keys.
        """
        from fedsynth.servers.ideal import IdealServers

        secrets = [secret(f"server {number}") for number in range(SERVERS)]
        pinned = replace(self, publics=tuple(Keys(one).public for one in secrets))

        def server(position: int) -> ComputeParty:
            agreed = ServerTerms(
                position,
                pinned.publics,
                self.roster,
                terms.coordinator,
                terms.schema,
                terms.budget,
                pinned.terms,
                terms.unit,
                terms.neighbours,
                exact=terms.budget.exact,
            )
            return ComputeParty(agreed, secrets[position], Book())

        return replace(pinned, servers=IdealServers((server(0), server(1), server(2))))

    @property
    def traffic(self) -> Traffic:
        """What the three servers sent and computed so far if they are in this process; otherwise zeros."""
        return getattr(self.servers, "traffic", None) or Traffic()

    def pinned(self, folder: Path) -> ThreeServers:
        """Return a copy with the servers' public keys, from the file ``servers.toml`` in a site's ``folder``."""
        from fedsynth.servers.cards import SERVERS_FILE, load_cards

        return replace(self, publics=tuple(card.keys for card in load_cards(folder / SERVERS_FILE)))

    @contextmanager
    def connected(self, folder: Path, coordinator: Keys) -> Iterator[ThreeServers]:
        """A context manager (for a ``with`` block) that yields a copy with connections to the servers, for one run.

        Each is opened at the first call, and all are closed at the block's end. The servers' addresses, keys and
        certificates come from the file ``servers.toml`` in the coordinator's ``folder`` (:class:`FedsynthError` if it
        is missing or invalid); ``coordinator`` are the coordinator's keys.
        """
        from fedsynth.servers.cards import SERVERS_FILE, load_cards
        from fedsynth.servers.remote import RemoteServers

        cards = load_cards(folder / SERVERS_FILE)
        servers = RemoteServers(cards, coordinator)
        try:
            yield replace(self, publics=tuple(card.keys for card in cards), servers=servers)
        finally:
            servers.close()

    def answer(self, site: SiteTurn, turn: int, event: Event | None) -> Answer:
        """Raise :class:`Refused`: this trust model has no sums over sites, only vaults (:class:`ThreeServers`)."""
        raise Refused(_NO_SUMS)

    def deposit(self, site: SiteTurn, query: Query) -> Answer:
        """Return secret shares of the site's exact tables for ``query``, sealed for the three servers and signed.

        Raises :class:`InvalidParameter` without the servers' keys, or for a query that three servers cannot hold
        (:func:`~fedsynth.servers.questions.check_deposit`). Each count is capped at
        :func:`~fedsynth.servers.questions.largest_count`, so that no sum of squares can wrap and
        no number of rows makes a site fail.
        """
        check_publics(self.publics)
        sizes = [math.prod(shape) for shape in check_deposit(query).shapes(site.schema)]
        caps = np.repeat([largest_count(cells, len(self.roster)) for cells in sizes], sizes)
        values = np.minimum(site.statistic(), caps)
        return deal(values, site.digest, site.name, self.publics, self.terms, site)

    def aggregation(
        self, digest: str, release: Release, norms: Norms, sites: Sequence[str], bits: Callable[[Integers], RandomBits]
    ) -> Aggregation:
        """Raise :class:`Unsupported`: this trust model has no sums over sites, only vaults (:class:`ThreeServers`)."""
        raise Unsupported(_NO_SUMS)

    def std(self, release: Release, norms: Norms, sites: int) -> float:
        """Raise :class:`Unsupported`: this trust model has no sums over sites, only vaults (:class:`ThreeServers`)."""
        raise Unsupported(_NO_SUMS)

    def vault(self, terms: VaultTerms) -> SharedVault:
        """Return an empty vault for the tables that ``terms`` describe, whose sums three servers hold in secret shares.

        ``terms`` also say what the vault's releases may cost together (:class:`~fedsynth.federation.vault.VaultTerms`).
        Raises :class:`Unsupported` without a connection to the servers, and :class:`InvalidParameter` for tables that
        they cannot hold.
        """
        if self.servers is None:
            raise Unsupported(
                "the vault is held by three servers, and there is no connection to them; start them, and pin their "
                "cards"
            )
        check_deposit(Counts(terms.query.axes, terms.query.tables, terms.query.weights))
        return SharedVault(terms, self.servers)
