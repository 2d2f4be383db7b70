"""Three servers that see nothing, as a trust: sites deal them shares, and nobody can read the vault that they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from fedsynth.errors import Refused, Unsupported
from fedsynth.federation.events import Answer, Event
from fedsynth.federation.query import Counts, Query
from fedsynth.federation.trust import Aggregation, SimulationTerms, SiteTurn
from fedsynth.federation.trust.three_servers.keys import SERVERS, ServerKeys, check_publics
from fedsynth.federation.trust.three_servers.questions import MOST_RECORDS, check_deposit
from fedsynth.federation.trust.three_servers.server import MemoryBook, Server, ServerTerms, deal
from fedsynth.federation.trust.three_servers.vault import Servers, SharedVault
from fedsynth.privacy.cost import Norms
from fedsynth.privacy.noise import RandomBits
from fedsynth.privacy.release import Release
from fedsynth.schema.bins import Integers

if TYPE_CHECKING:
    from fedsynth.federation.vault import VaultTerms

_NO_SUMS = (
    "three servers hold deposits, from which methods draw and open tables; for plain sums use --trust secure, where "
    "sites need nobody else"
)


@dataclass(frozen=True, eq=False)
class ThreeServers:
    """Sites deal shares of their tables to three servers, of which any one alone has numbers that are uniform.

    The guarantee holds against the coordinator, any one of the three servers and any number of sites together, as long
    as servers follow the protocol and no two of them collude. The price: what is opened has 1.5 times the variance of a
    trusted server, each draw has the noise of two Gumbel numbers in place of one, and scores are by L2 distances.

    ``publics`` are the three servers' public keys (64 bytes each), ``roster`` the sites' identity keys; sites pin
    both. ``servers`` is the coordinator's connection to the three, which sites do not have.
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
        "of three servers that follow the protocol no two work together (one may work with the coordinator and any "
        "sites), and no site deals counts that its rows do not give; noise in tables has 1.5 times the variance of a "
        "trusted server, and each draw two Gumbel numbers in place of one"
    )

    def __post_init__(self) -> None:
        """Refuse keys that are not three servers'."""
        if self.publics:
            check_publics(self.publics)

    @property
    def terms(self) -> str:
        """The servers' keys and the largest number of records: servers that agreed to others cannot open a deal."""
        pinned = " ".join(public.hex() for public in self.publics)
        return f"{pinned} at most {MOST_RECORDS} records at {len(self.roster)} sites"

    @property
    def most_rows(self) -> int:
        """Rows of a site at most: its part of the largest number of records, by the sites that were agreed on."""
        return MOST_RECORDS // max(1, len(self.roster))

    def among(self, roster: Mapping[str, bytes]) -> ThreeServers:
        """Return the trust among these sites: their names and public identity keys."""
        return replace(self, roster=dict(roster))

    def in_process(self, secret: Callable[[str], bytes], terms: SimulationTerms) -> ThreeServers:
        """Return the trust with three servers in this process: the ideal functionality."""
        from fedsynth.federation.trust.three_servers.ideal import Ideal

        secrets = [secret(f"server {number}") for number in range(SERVERS)]
        pinned = replace(self, publics=tuple(ServerKeys(one).public for one in secrets))

        def server(position: int) -> Server:
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
            return Server(agreed, secrets[position], MemoryBook())

        return replace(pinned, servers=Ideal((server(0), server(1), server(2))))

    def answer(self, site: SiteTurn, turn: int, event: Event | None) -> Answer:
        """Raise :class:`Refused`: there are no sums."""
        raise Refused(_NO_SUMS)

    def deposit(self, site: SiteTurn, query: Query) -> Answer:
        """Return shares of the exact answer, sealed for the three servers.

        A site with more than its part of the largest number of records fails, so that no sum of squares can wrap:
        whether it does follows from its number of rows alone, and is told once.
        """
        check_publics(self.publics)
        check_deposit(query)
        values = site.statistic(self.most_rows)
        return deal(values, site.digest, site.name, self.publics, self.terms, site)

    def aggregation(
        self, digest: str, release: Release, norms: Norms, sites: Sequence[str], bits: Callable[[Integers], RandomBits]
    ) -> Aggregation:
        """Raise :class:`Unsupported`: there are no sums."""
        raise Unsupported(_NO_SUMS)

    def std(self, release: Release, norms: Norms, sites: int) -> float:
        """Raise :class:`Unsupported`: there are no sums."""
        raise Unsupported(_NO_SUMS)

    def vault(self, terms: VaultTerms) -> SharedVault:
        """Return a vault that the three servers hold; raises :class:`Unsupported` without a connection to them."""
        if self.servers is None:
            raise Unsupported("three servers hold the vault, and there is no connection to them; start them first")
        check_deposit(Counts(terms.query.axes, terms.query.tables, terms.query.weights))
        return SharedVault(terms, self.servers)
