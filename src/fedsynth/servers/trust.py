"""The trust model of three servers: sites send them shares of tables, and no server alone can read the tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from typing_extensions import override

from fedsynth.errors import Unsupported
from fedsynth.federation.events import Answer
from fedsynth.federation.query import Counts, Query
from fedsynth.federation.trust import SiteTurn, Traffic, Trust, VaultProtocol
from fedsynth.federation.vault import VaultQuestion
from fedsynth.keys import Keys
from fedsynth.privacy.book import Book
from fedsynth.servers.questions import MOST_RECORDS, check_deposit, largest_count
from fedsynth.servers.server import ComputeParty, ServerTerms, deal
from fedsynth.servers.shares import SERVERS, check_publics
from fedsynth.servers.vault import Servers, SharedVault
from fedsynth.terms import Terms


@dataclass(frozen=True, eq=False)
class ThreeServers(Trust, VaultProtocol):
    """Trust model in which sites deal secret shares of their tables to three compute servers; none can read them alone.

    The guarantee holds against the coordinator, any one of the three servers and any number of sites together, as long
    as servers follow the protocol, no two of them collude, and no site deals counts that its rows do not give. In
    return, tables that the servers open have 1.5 times the noise variance that a trusted server would add, up to 3
    times for very small and very large noise (:func:`~fedsynth.servers.questions.opened_std`), and each candidate of a
    draw gets two Gumbel numbers as noise instead of one. There are no plain sums: methods need a vault
    (:class:`~fedsynth.federation.vault.Vault`).

    ``publics`` are the three servers' public keys (64 bytes each), ``roster`` the sites' identity keys by name. In a
    deployed run, coordinator and sites each read both from files of their own, the keys from ``servers.toml``; a
    simulation makes them. ``servers`` is the coordinator's connection to the three servers, which sites do not have.
    """

    publics: tuple[bytes, ...] = field(default_factory=tuple)
    roster: Mapping[str, bytes] = field(default_factory=dict)
    servers: Servers | None = field(default_factory=lambda: None)

    name: ClassVar[str] = "three-servers"
    confidential: ClassVar[bool] = False
    pooled: ClassVar[bool] = True
    opens_scores: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.publics:
            check_publics(self.publics)

    @property
    @override
    def assumption(self) -> str:
        return (
            "of three servers that follow the protocol no two collude (one may collude with the coordinator and any "
            "sites), and no site deals counts that its rows do not give; noise in tables has 1.5 times the variance of "
            "a trusted server's (up to 3 times if that noise is very small or very large), and each draw two Gumbel "
            "numbers in place of one"
        )

    @property
    @override
    def terms(self) -> str:
        """The servers' public keys, the number of sites and the largest total of a table at all sites, as text.

        The keys of a site's sealed shares depend on this text: a server with other terms cannot open them.
        """
        pinned = " ".join(public.hex() for public in self.publics)
        return f"{pinned} at most {MOST_RECORDS} records at {len(self.roster)} sites"

    @override
    def with_roster(self, roster: Mapping[str, bytes]) -> ThreeServers:
        return replace(self, roster=dict(roster))

    @override
    def in_process(self, secret: Callable[[str], bytes], terms: Terms, coordinator: bytes) -> ThreeServers:
        from fedsynth.servers.ideal import IdealServers

        secrets = [secret(f"server {number}") for number in range(SERVERS)]
        pinned = replace(self, publics=tuple(Keys(one).public for one in secrets))

        def server(position: int) -> ComputeParty:
            agreed = ServerTerms(
                position,
                pinned.publics,
                self.roster,
                coordinator,
                terms,
                pinned.terms,
                exact=terms.budget.exact,
            )
            return ComputeParty(agreed, secrets[position], Book())

        return replace(pinned, servers=Servers(IdealServers((server(0), server(1), server(2)))))

    @property
    @override
    def traffic(self) -> Traffic:
        each = self.servers.traffic if self.servers else (Traffic(),)
        down, up, among = (sum(getattr(one, way) for one in each) for way in ("down", "up", "among"))
        return Traffic(down, up, among, each[0].draw_seconds)

    @override
    def pinned(self, folder: Path) -> ThreeServers:
        from fedsynth.servers.cards import SERVERS_FILE, load_cards

        return replace(self, publics=tuple(card.keys for card in load_cards(folder / SERVERS_FILE)))

    @override
    @contextmanager
    def connected(self, folder: Path, coordinator: Keys) -> Iterator[ThreeServers]:
        from fedsynth.servers.cards import SERVERS_FILE, load_cards
        from fedsynth.servers.remote import RemoteServers

        cards = load_cards(folder / SERVERS_FILE)
        connections = RemoteServers(cards, coordinator)
        try:
            yield replace(self, publics=tuple(card.keys for card in cards), servers=Servers(connections))
        finally:
            connections.close()

    @override
    def deposit(self, site: SiteTurn, query: Query) -> Answer:
        # Each count is capped, so that no sum of squares can wrap and no number of rows makes a site fail.
        check_publics(self.publics)
        sizes = [math.prod(shape) for shape in check_deposit(query).shapes(site.schema)]
        caps = np.repeat([largest_count(cells, len(self.roster)) for cells in sizes], sizes)
        values = np.minimum(site.statistic(), caps)
        return deal(values, site.digest, site.name, self.publics, self.terms, site)

    @override
    def create(self, terms: Terms, question: VaultQuestion) -> SharedVault:
        if self.servers is None:
            raise Unsupported(
                "the vault is held by three servers, and there is no connection to them; start them, and pin their "
                "cards"
            )
        check_deposit(Counts(question.query.axes, question.query.tables, question.query.weights))
        return SharedVault(terms, question, servers=self.servers)
