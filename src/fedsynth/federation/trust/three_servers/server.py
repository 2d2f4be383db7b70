"""One of three servers: its terms, its ledger, the shares that it holds, and every step that it takes by itself.

No messages are here: whoever runs a server hands it what came (over a network, or within one process) and passes on
what it returns. A server trusts its own terms, what sites signed, and what the other two servers signed; the
coordinator can make it refuse, and nothing else.

Rule 1: a question is asked (:meth:`Server.ask`) before it is agreed to (:meth:`Server.agree`), and a share leaves, or
    enters a draw, only after all three have signed the same roster and this server's own ledger has charged it.
Rule 2: noise is bound to the server's secret and the whole roster, which names the question, the sites, what they dealt
    and what was released before. So equal noise hides equal sums.
Rule 3: a site deals once to a vault. What it dealt is kept by its digest: another deal is refused, in a later try too.
    A question that sites deal to belongs to the one vault that it was first put to.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import BudgetExceeded, InvalidParameter, Refused
from fedsynth.federation.coordinator import signed_by as asked_by
from fedsynth.federation.events import Bytes, Dealt
from fedsynth.federation.query import Counts
from fedsynth.federation.trust.secure import masking
from fedsynth.federation.trust.three_servers import keys as server_keys
from fedsynth.federation.trust.three_servers.keys import BOX, SERVERS, ServerKeys, check_publics
from fedsynth.federation.trust.three_servers.questions import (
    Draw,
    Layout,
    Open,
    Question,
    Roster,
    SignedRoster,
    check_deposit,
    digest_of,
    inputs_of,
    noise_part,
    price_of,
)
from fedsynth.federation.trust.three_servers.shares import (
    Words,
    expand,
    last_share,
    open_share,
    score,
    seal_share,
    zero_share,
)
from fedsynth.federation.wire import Head, Request, encode
from fedsynth.privacy.cost import ONE_ROW, ROUNDING, Budget, Neighbours, Norms, Unit
from fedsynth.privacy.noise import KeyedBits, discrete_gumbel
from fedsynth.privacy.release import Deposit
from fedsynth.schema import Schema
from fedsynth.schema.bins import Integers

_CONFIRM = b"both hold this share"
_DEAL = "a deal to three servers"


# ---------------------------------------------------------------------------------------------------------------------
# A site's end


def deal(values: Integers, digest: str, site: str, publics: Sequence[bytes], terms: str, secrets: SiteSecrets) -> Dealt:
    """Return a site's tables, shared among the servers of these public keys, for the question of that digest.

    ``terms`` is the trust's, which servers that agreed to other ones cannot open.
    """
    shares = [secrets.key(f"share {number}") for number in range(SERVERS)]
    context = (digest, site, terms)
    boxes = [
        server_keys.seal(
            public, secrets.key(f"box {server}"), shares[server], shares[(server + 1) % SERVERS], str(server), *context
        )
        for server, public in enumerate(publics)
    ]
    body = seal_share(shares[2], last_share(values, shares[0], shares[1]), *context)
    digest_of_body = hashlib.sha256(body).digest()
    signature = masking.sign(secrets.identity, _DEAL, *context, *boxes, digest_of_body)
    return Dealt(_array(*boxes).reshape(SERVERS, BOX), digest_of_body, signature, _array(body))


def part_for(dealt: Dealt, server: int) -> Dealt:
    """Return what a server (0, 1, 2) needs of a deal: the first one makes both of its shares of secrets alone."""
    return dealt if server else msgspec.structs.replace(dealt, body=_array())


class SiteSecrets(Protocol):
    """What dealing needs of a site's turn (:class:`~fedsynth.federation.trust.SiteTurn`)."""

    @property
    def identity(self) -> bytes:
        """Seed (32 bytes) of the key that the site signs with."""

    def key(self, purpose: str) -> bytes:
        """Return 32 secret bytes bound to the site's secret, the question, its salt, its terms and the purpose."""


def _array(*parts: bytes) -> Bytes:
    return np.frombuffer(b"".join(parts), dtype=np.uint8)


# ---------------------------------------------------------------------------------------------------------------------
# A server


@dataclass(frozen=True, eq=False)
class ServerTerms:
    """What a server agreed to, by its own operator's files; nothing of it comes from the coordinator.

    ``publics`` are the three servers' public keys, of which ``position`` is its own; ``sites`` the identity keys of
    those that may deal; ``coordinator`` (64 bytes) who may ask. ``budget`` bounds what all vaults of a run may release
    together, ``unit`` is the least that a question must protect. ``trust`` is the text of the trust's terms
    (:attr:`~fedsynth.federation.trust.Trust.terms`), ``exact`` allows releases without noise.
    """

    position: int
    publics: tuple[bytes, ...]
    sites: Mapping[str, bytes]
    coordinator: bytes
    schema: Schema
    budget: Budget
    trust: str
    unit: Unit = ONE_ROW
    neighbours: Neighbours = "add-remove"
    exact: bool = False

    def __post_init__(self) -> None:
        """Refuse keys that are not three servers'."""
        check_publics(self.publics)


class Book(Protocol):
    """A server's ledger: durable where the server is a process of its own, and held for a run in one process."""

    def deposit(self, run: str, vault: str, price: float) -> float:
        """Write down the price of a vault's deposit, once, and return what those of the run add up to."""

    def spent(self, vault: str) -> tuple[int, float]:
        """Return how many questions of a vault were charged, and what they cost together."""

    def charge(self, vault: str, number: int, question: str, price: float) -> None:
        """Charge question ``number`` of a vault, once; raises :class:`Refused` for another one of that number."""

    def first(self, key: str, value: bytes) -> bytes:
        """Return what was first written under a key: ``value``, if nothing was."""

    def said(self, key: str) -> bytes | None:
        """Return what was written under a key, if anything was."""


@dataclass
class MemoryBook:
    """A ledger that lives no longer than the process."""

    charges: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    written: dict[str, bytes] = field(default_factory=dict)
    vaults: dict[str, dict[str, float]] = field(default_factory=dict)

    def deposit(self, run: str, vault: str, price: float) -> float:
        """Return what the vaults of a run add up to, this one included."""
        of_run = self.vaults.setdefault(run, {})
        of_run.setdefault(vault, price)
        return sum(of_run.values())

    def spent(self, vault: str) -> tuple[int, float]:
        """Return number and total price of a vault's charges."""
        paid = self.charges.get(vault, [])
        return len(paid), sum(price for _, price in paid)

    def charge(self, vault: str, number: int, question: str, price: float) -> None:
        """Append a charge, unless the very same question was charged as that number."""
        paid = self.charges.setdefault(vault, [])
        if number < len(paid) and paid[number][0] == question:
            return
        if number != len(paid):
            raise Refused(f"question {number} of this vault is not the one that was charged, or not the next one")
        paid.append((question, price))

    def first(self, key: str, value: bytes) -> bytes:
        """Return what was first written under a key."""
        return self.written.setdefault(key, value)

    def said(self, key: str) -> bytes | None:
        """Return what was written under a key."""
        return self.written.get(key)


@dataclass
class _Vault:
    """The sums of two shares, over the sites that are in; ``staged`` are those of a deposit that is not kept yet."""

    head: Head
    deposit: Deposit
    query: Counts
    layout: Layout
    own: Words
    following: Words
    sites: list[str] = field(default_factory=list)
    held: list[bytes] = field(default_factory=list)

    @classmethod
    def empty(cls, head: Head, deposit: Deposit, query: Counts, layout: Layout) -> _Vault:
        own, following = np.zeros(layout.cells, dtype=np.uint64), np.zeros(layout.cells, dtype=np.uint64)
        return cls(head, deposit, query, layout, own, following)

    def add(self, other: _Vault) -> None:
        self.own += other.own
        self.following += other.following
        self.sites += other.sites
        self.held += other.held


@dataclass
class _Pending:
    """What one site dealt, before the other servers confirmed that they hold the same."""

    site: str
    own: Words
    following: Words
    held: bytes
    confirmations: tuple[bytes, bytes]


@dataclass(eq=False)
class Server:
    """One server: ``secret`` is at least 32 random bytes that never leave."""

    terms: ServerTerms
    secret: bytes
    book: Book
    _vaults: dict[str, _Vault] = field(default_factory=dict)
    _staged: dict[str, tuple[str, _Vault]] = field(default_factory=dict)
    _pending: _Pending | None = None
    _last: _Pending | None = None
    _asked: tuple[Question, Roster] | None = None

    def __post_init__(self) -> None:
        """Refuse a secret of another server."""
        self.keys = ServerKeys(self.secret)
        if self.terms.publics[self.terms.position] != self.keys.public:
            raise InvalidParameter("the server's secret is not that of its own public key; correct its position")

    # Dealing

    def begin(self, vault: str, body: bytes, signature: bytes) -> None:
        """Take the deposit question of a vault, or of more sites for it, as the coordinator signed it for the sites.

        ``vault`` is the digest of its first deposit question. What was staged of that very question before is
        forgotten: the sites' deals follow. Raises :class:`Refused` for a question beyond this server's terms, or
        another one than the vault's.
        """
        if not asked_by(self.terms.coordinator, signature, body):
            raise Refused("the question is not signed by the coordinator that this server answers")
        request = Request.read(body)
        head, deposit = request.head, request.head.release
        if head.verb != "deposit" or not isinstance(deposit, Deposit):
            raise Refused("three servers hold deposits; this is another question")
        self._check(head, deposit)
        query = check_deposit(request.query)
        query.check(self.terms.schema)
        self._pending = None
        if request.question != vault:
            first = self._held(vault)
            if msgspec.structs.replace(head, step=0) != msgspec.structs.replace(first.head, step=0) or (
                encode(query) != encode(first.query)
            ):
                raise Refused("sites join a vault under the terms that it began with")
        # Sites pay once for what they deal to a question: in two vaults it would be released at the price of one.
        if self.book.first(f"question {request.question}", vault.encode()) != vault.encode():
            raise Refused("what sites deal to this question is for another vault; ask them another one")
        if request.question == vault:  # of a run that resumes too: it deals anew, from its transcript
            self._reserve(head.run, vault, deposit)
            first = self._vaults[vault] = _Vault.empty(head, deposit, query, Layout(query, self.terms.schema))
        self._staged[vault] = request.question, _Vault.empty(head, deposit, query, first.layout)

    def take(self, vault: str, site: str, dealt: Dealt) -> tuple[bytes, bytes]:
        """Open what a site dealt, and return what confirms its two shares to the servers that hold the same.

        The first is for the server before this one, which holds this one's own share as well, the second for the one
        after it. They are keyed by what the two servers share: a digest that the third, or the coordinator, could
        compute would let it test guesses of a table. Raises :class:`Refused` for a deal that does not open, by a site
        that this server does not know, or that dealt something else before.
        """
        question, staged = self._staging(vault)
        self._pending = self._last = None
        if site in self._vaults[vault].sites or site in staged.sites:
            raise Refused(f"{site} is in this vault already; a site deals once")
        if site not in self.terms.sites:
            raise Refused(f"{site} is none of the sites whose identities this server pins")
        if dealt.keys.shape != (SERVERS, BOX):
            raise Refused("a deal has one box for each of three servers")
        context = (question, site, self.terms.trust)
        signed = (*(box.tobytes() for box in dealt.keys), dealt.digest)
        if not masking.verified(self.terms.sites[site], dealt.signature, _DEAL, *context, *signed):
            raise Refused(f"what came in the name of {site} is not signed by it, or is of another question")
        digest = masking.digest(*signed)
        if self.book.first(f"deal {vault} {site}", digest) != digest:
            raise Refused(f"{site} dealt other shares before; a site deals once")
        at, cells, body = self.terms.position, staged.layout.cells, dealt.body.tobytes()
        if at and hashlib.sha256(body).digest() != dealt.digest:
            raise Refused(f"the share of {site} was changed on its way")
        secrets = self.keys.unseal(dealt.keys[at].tobytes(), str(at), *context)
        own, following = (
            open_share(secret, body, cells, *context) if number == SERVERS - 1 else expand(secret, cells)
            for secret, number in zip(secrets, (at, (at + 1) % SERVERS), strict=True)
        )
        mine = self._confirmation(at - 1, vault, site, secrets[0], own, digest)
        next_ones = self._confirmation(at + 1, vault, site, secrets[1], following, digest)
        self._pending = _Pending(site, own, following, digest, (mine, next_ones))
        return mine, next_ones

    def confirm(self, vault: str, site: str, before: bytes, after: bytes) -> bool:
        """Whether the servers before and after this one hold the same shares, by what :meth:`take` returned to them.

        ``before`` is the second confirmation of the server before, ``after`` the first of the one after. Where they
        do the site is staged, until :meth:`keep` says which sites all three have; otherwise what it dealt is dropped.
        """
        _, staged = self._staging(vault)
        found, self._pending = self._pending, None
        if found is None or found.site != site:
            return False
        mine, next_ones = found.confirmations
        if not (hmac.compare_digest(before, mine) and hmac.compare_digest(after, next_ones)):
            return False
        staged.own += found.own
        staged.following += found.following
        staged.sites.append(site)
        staged.held.append(found.held)
        self._last = found
        return True

    def drop(self, vault: str, site: str) -> None:
        """Leave out the site that was staged last, or is pending, where another server does not hold the same."""
        _, staged = self._staging(vault)
        found, self._last, self._pending = self._last, None, None
        if found is not None and found.site == site and staged.sites[-1:] == [site]:
            staged.own -= found.own
            staged.following -= found.following
            staged.sites.pop()
            staged.held.pop()

    def keep(self, vault: str, sites: Sequence[str]) -> None:
        """Let the staged sites into the vault; raises :class:`Refused` if they are not these."""
        _, staged = self._staging(vault)
        self._last = None
        if list(sites) != staged.sites:
            raise Refused("the servers disagree on who has dealt; run the same command again")
        self._vaults[vault].add(staged)
        del self._staged[vault]

    # Questions

    def ask(self, question: Question) -> SignedRoster:
        """Return this server's signed roster of a question, having checked all that it can check by itself.

        Raises :class:`Refused` for a question beyond its bounds, :class:`BudgetExceeded` beyond what sites deposited.
        Nothing is charged yet.
        """
        held = self._held(question.vault)
        if question.vault in self._staged:
            raise Refused("sites are being let in; ask when that is done")
        question.check()
        cells = [int(np.prod(held.layout.shape(clique))) for clique in question.cliques]
        if isinstance(question, Draw):
            question.tables(cells)
            question.scale(held.head.unit, held.head.neighbours)
        digest = digest_of(question)
        count, spent = self.book.spent(question.vault)
        kept = self.book.said(f"roster {question.vault} {question.number}")
        if kept is not None:
            known = msgspec.msgpack.decode(kept, type=Roster)
            if known.question != digest or known.sites != tuple(held.sites) or known.held != self._dealt(held):
                raise Refused(f"question {question.number} of this vault was another one; start another run")
            roster = known
        else:
            if question.number != count:
                raise Refused(f"question {question.number} of this vault does not follow on {count} answered ones")
            sites = tuple(held.sites)
            roster = Roster(question.vault, count, digest, inputs_of(question), sites, self._dealt(held), float(spent))
            self._price(question, held, spent)
        self._asked = question, roster
        return SignedRoster(roster, self.keys.sign("roster", roster.body))

    def agree(self, rosters: Sequence[SignedRoster]) -> None:
        """Charge the question that was asked last, if all three servers signed the same roster; once.

        Raises :class:`Refused` otherwise, for a roster of another question, and where the vault has other sites by now:
        shares of different sites would make a sum of squares that one record moves by any number.
        """
        question, roster = self._current()
        if len(rosters) != SERVERS:
            raise Refused("three servers sign a roster; one is missing, and nothing is opened")
        for number, (public, one) in enumerate(zip(self.terms.publics, rosters, strict=True)):
            if one.roster.body != roster.body:
                raise Refused(f"server {number + 1} was asked something else, or of other sites; nothing is opened")
            if not server_keys.signed_by(public, one.signature, "roster", roster.body):
                raise Refused(f"the roster of server {number + 1} is not signed by it; nothing is opened")
        held = self._held(question.vault)
        if roster.sites != tuple(held.sites) or roster.held != self._dealt(held) or question.vault in self._staged:
            raise Refused("other sites are in the vault than when the question was asked; ask it again")
        price = self._price(question, held, roster.spent)
        # In this order: a roster that was not charged is agreed to again, a charge without its roster could not be.
        self.book.first(f"roster {question.vault} {question.number}", msgspec.msgpack.encode(roster))
        self.book.charge(question.vault, question.number, roster.question, price)

    def share(self) -> Words:
        """Return the additive share, with this server's noise, of the tables that it agreed to open; flat."""
        question, roster = self._agreed()
        if not isinstance(question, Open):
            raise Refused("the question that was agreed to opens no table")
        held = self._held(question.vault)
        tables = zip(question.cliques, question.times, strict=True)
        found: Words = np.concatenate(
            [held.layout.table(held.own, clique) * np.uint64(times) for clique, times in tables]
        )
        norms = question.norms(self.terms.schema, held.head.unit, held.head.neighbours)
        part = noise_part(question.release, norms)
        if part is not None:
            found += part.noise(found.size, self.keys.own("noise", roster.body)).view(np.uint64)
        found += zero_share(self.keys, self.terms.publics, self.terms.position, found.size, roster.body)
        return found

    def scores(self) -> Words:
        """Return this server's additive shares of the candidates' sums of squares: for the draw, and nothing else."""
        question, _ = self._agreed()
        if not isinstance(question, Draw):
            raise Refused("the question that was agreed to draws nothing")
        held = self._held(question.vault)
        own = [held.layout.table(held.own, clique) for clique in question.cliques]
        following = [held.layout.table(held.following, clique) for clique in question.cliques]
        expected = question.tables([table.size for table in own])
        position = self.terms.position
        return np.array(
            [score(*one, position) for one in zip(own, following, expected, strict=True)],
            dtype=np.uint64,
        )

    def gumbels(self) -> NDArray[np.int64] | None:
        """Return this server's own Gumbel numbers, one a candidate in utilities' parts; ``None`` if it adds none.

        Servers 0 and 1 add a full set each, so that whichever server is curious, one set is unknown to it.
        """
        question, roster = self._agreed()
        if not isinstance(question, Draw):
            raise Refused("the question that was agreed to draws nothing")
        head = self._held(question.vault).head
        scale = question.scale(head.unit, head.neighbours)
        if scale is None or self.terms.position == SERVERS - 1:
            return None
        bits = KeyedBits(self.keys.own("gumbels", roster.body), b"one a candidate")
        return discrete_gumbel(scale, len(question.cliques), bits)

    def answered(self, reply: bytes) -> bytes:
        """Write down what came of the question that was agreed to, and return what was written first."""
        question, _ = self._agreed()
        return self.book.first(f"reply {question.vault} {question.number}", reply)

    def replied(self, question: Question) -> bytes | None:
        """Return what was answered to a question before, if it was this very one."""
        kept = self.book.said(f"roster {question.vault} {question.number}")
        if kept is None:
            return None
        known = msgspec.msgpack.decode(kept, type=Roster)
        if known.question != digest_of(question):
            raise Refused(f"question {question.number} of this vault was another one; start another run")
        return self.book.said(f"reply {question.vault} {question.number}")

    # What is behind them

    def _check(self, head: Head, deposit: Deposit) -> None:
        terms = self.terms
        if head.schema != terms.schema.digest:
            raise Refused("the question was asked under another schema than this server's")
        if (
            head.unit.rows < terms.unit.rows
            or head.unit.sites < terms.unit.sites
            or head.neighbours != terms.neighbours
        ):
            raise Refused("the question protects less than this server agreed to")
        if not deposit.rho and not deposit.epsilon and not terms.exact:
            raise Refused("this server opens nothing without noise; deposit with a price")

    def _reserve(self, run: str, vault: str, deposit: Deposit) -> None:
        """Write down what a vault may release; raises :class:`BudgetExceeded` for more than a run's vaults may."""
        budget = self.terms.budget
        price = budget.price(deposit.cost(Norms(1.0, 1.0))) if deposit.rho or deposit.epsilon else 0.0
        limit = budget.epsilon if budget.pure else budget.rho
        if self.book.deposit(run, vault, price) > limit * ROUNDING:
            raise BudgetExceeded("the deposits of this run are larger than what this server may release in one")

    def _price(self, question: Question, held: _Vault, spent: float) -> float:
        """Return what a question costs; raises :class:`BudgetExceeded` for more than is left of the deposit."""
        deposit = held.deposit
        price = price_of(question.release, deposit)
        limit = deposit.epsilon or deposit.rho
        if limit and not spent + price <= limit * ROUNDING:
            raise BudgetExceeded(
                f"this vault has released {spent:.6g} of the {limit:.6g} that was deposited, and this costs {price:.6g}"
            )
        return price

    def _confirmation(self, other: int, vault: str, site: str, secret: bytes, share: Words, digest: bytes) -> bytes:
        pair = self.keys.shared(self.terms.publics[other % SERVERS], _CONFIRM, vault, site, digest)
        content = secret + hashlib.sha256(share.astype("<u8").tobytes()).digest()
        return hmac.digest(pair, content, "sha256")

    def _dealt(self, held: _Vault) -> str:
        return hashlib.sha256(b"".join(held.held)).hexdigest()

    def _held(self, vault: str) -> _Vault:
        if vault not in self._vaults:
            raise Refused("this vault was never begun here; start another run")
        return self._vaults[vault]

    def _staging(self, vault: str) -> tuple[str, _Vault]:
        if vault not in self._staged:
            raise Refused("nobody is being let into this vault; begin with the deposit's question")
        return self._staged[vault]

    def _current(self) -> tuple[Question, Roster]:
        if self._asked is None:
            raise Refused("nothing was asked; a question comes before its roster")
        return self._asked

    def _agreed(self) -> tuple[Question, Roster]:
        question, roster = self._current()
        if self.book.said(f"roster {question.vault} {question.number}") is None:
            raise Refused("the three servers have not agreed to this question; nothing is opened")
        return question, roster
