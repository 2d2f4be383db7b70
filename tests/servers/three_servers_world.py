"""Three servers in this process, with sites that deal to them, for tests of the servers' own rules."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from tests.contract.world import SCHEMA, random_table
from tests.world import request_of

from fedsynth.federation.events import DealtShares
from fedsynth.federation.query import Counts
from fedsynth.federation.wire import Request, sign_request
from fedsynth.keys import Keys, derive
from fedsynth.privacy.book import Book
from fedsynth.privacy.cost import ONE_ROW, Budget, Neighbours, Unit
from fedsynth.privacy.release import Deposit, Exponential, Gaussian
from fedsynth.rows import Table
from fedsynth.schema.bins import Integers
from fedsynth.servers.ideal import IdealServers
from fedsynth.servers.questions import OpenTables, SelectTable
from fedsynth.servers.server import ComputeParty, ServerTerms, deal
from fedsynth.servers.shares import SERVERS
from fedsynth.servers.vault import Servers, lost
from fedsynth.terms import Terms

COORDINATOR = Keys(b"the coordinator's secret of test")
QUERY = Counts.of(4, [(0, 1), (1, 2, 3)])
DEPOSIT = Deposit(rho=1.0)


@dataclass(frozen=True)
class Secrets:
    """A site's secrets for one deal; ``salt`` is that of the question."""

    name: str
    salt: bytes = b""

    @property
    def secret(self) -> bytes:
        """The site's own secret."""
        return hashlib.sha256(self.name.encode()).digest()

    @property
    def identity(self) -> bytes:
        """Seed of the site's signing key."""
        return Keys(self.secret).seed

    def key(self, purpose: str) -> bytes:
        return derive(self.secret, self.salt, purpose)


class Silent(IdealServers):
    """Three servers of which number 1 does not answer."""

    def __call__(self, frames: Sequence[bytes]) -> list[bytes]:
        for party, frame in zip(self.parties[::2], frames[::2], strict=True):
            party.answer(frame, self._draw)
        raise lost("no answer from server 2")


@dataclass
class World:
    """Three servers and their sites; ``seed`` makes other servers' secrets."""

    names: tuple[str, ...] = ("a", "b", "c")
    seed: int = 0
    budget: Budget = field(default_factory=lambda: Budget(20.0, 1e-6))
    unit: Unit = ONE_ROW
    neighbours: Neighbours = "add-remove"
    exact: bool = False
    terms: str = "terms"
    questions: int = sys.maxsize
    books: tuple[Book, ...] = field(default_factory=lambda: tuple(Book() for _ in range(SERVERS)))

    @cached_property
    def secrets(self) -> list[bytes]:
        return [hashlib.sha256(f"server {number} {self.seed}".encode()).digest() for number in range(SERVERS)]

    @cached_property
    def publics(self) -> tuple[bytes, ...]:
        return tuple(Keys(secret).public for secret in self.secrets)

    @cached_property
    def parties(self) -> tuple[ComputeParty, ComputeParty, ComputeParty]:
        first, second, third = (self.server(number) for number in range(SERVERS))
        return first, second, third

    @cached_property
    def ideal(self) -> Servers:
        """The coordinator's side of all three servers."""
        return Servers(IdealServers(self.parties))

    def spent(self, vault: str) -> list[tuple[int, float]]:
        """Return what each server's book has charged to a vault: questions, and their cost."""
        return [server.spent(vault) for server in self.parties]

    def server(self, position: int) -> ComputeParty:
        """Return one server, over its own book."""
        sites = {name: Keys(Secrets(name).secret).identity for name in self.names}
        terms = ServerTerms(
            position,
            self.publics,
            sites,
            COORDINATOR.public,
            Terms(SCHEMA, self.budget, "three-servers", unit=self.unit, public_sizes=self.neighbours == "replace"),
            self.terms,
            self.exact,
            self.questions,
        )
        return ComputeParty(terms, self.secrets[position], self.books[position])

    def request(self, query: Counts = QUERY, release: Deposit = DEPOSIT, step: int = 0, run: str = "run") -> Request:
        request = request_of(
            query,
            run=run,
            step=step,
            verb="deposit",
            release=release,
            trust="three-servers",
            schema=SCHEMA.digest,
            unit=self.unit,
            neighbours=self.neighbours,
        )
        request.signature = sign_request(COORDINATOR, request.body)
        return request

    def dealt(self, name: str, values: Integers, question: str, salt: bytes = b"") -> DealtShares:
        return deal(values, question, name, self.publics, self.terms, Secrets(name, salt))

    def begin(self, request: Request, vault: str = "") -> str:
        """Begin a vault, or let more sites in, and return its name."""
        assert request.signature is not None
        self.ideal.begin(vault or request.question, request.agreement.data, request.body, request.signature)
        return vault or request.question

    def filled(self, query: Counts = QUERY, release: Deposit = DEPOSIT, rows: Sequence[int] = (30, 12, 0)) -> str:
        """Return a vault with tables of all sites."""
        request = self.request(query, release)
        vault = self.begin(request)
        for table, name in zip(self.tables(rows), self.names, strict=True):
            assert self.ideal.take(vault, name, self.dealt(name, query.answer(table), vault))
        self.ideal.keep(vault, self.names)
        return vault

    def tables(self, rows: Sequence[int]) -> list[Table]:
        """Return the sites' rows."""
        return [random_table(number, seed) for seed, number in enumerate(rows)]


def open_of(vault: str, *cliques: tuple[int, ...], rho: float = 0.1, number: int = 0) -> OpenTables:
    return OpenTables(vault, number, cliques, Gaussian(rho))


def draw_of(
    vault: str,
    *cliques: tuple[int, ...],
    rho: float = 0.1,
    number: int = 0,
    weights: Sequence[int] = (),
    penalties: Sequence[int] = (),
    expected: Integers | None = None,
) -> SelectTable:
    cells = sum(int(np.prod([SCHEMA.sizes[column] for column in clique])) for clique in cliques)
    count = len(cliques)
    return SelectTable(
        vault,
        number,
        cliques,
        (np.zeros(cells) if expected is None else expected).astype(np.int32),
        np.array(weights or [1] * count, dtype=np.int32),
        np.array(penalties or [0] * count, dtype=np.int32),
        Exponential(rho),
    )
