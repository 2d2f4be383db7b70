"""One of three servers: its terms, its book, the shares that it holds, and every step that it takes by itself.

This module sends no messages: its caller hands a server the data that arrived (over a network, or within one process)
and passes on the results. A server trusts its own terms and what the sites and the other two servers signed. The worst
that a coordinator can do is make it refuse.

Rule 1: a question is asked (:meth:`ComputeParty.ask`) before it is agreed to (:meth:`ComputeParty.agree`), and a share
    leaves, or enters a draw, only after all three servers have signed the same statement, a statement of the question
    and of their state, and this server's own book has charged the question.
Rule 2: noise is bound to the server's secret and the whole statement, which names the question, the sites, the shares
    that they sent and what was released before. So equal noise hides equal sums.
Rule 3: a site sends shares of its tables to a vault once. The server keeps the digest of these shares and refuses
    different ones, also in a later attempt. A question that asks sites for tables belongs to the one vault for which it
    was first asked.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import BudgetExceeded, FedsynthError, InvalidParameter, Refused, is_fault, reason_of
from fedsynth.federation.agreement import Agreement
from fedsynth.federation.events import Bytes, DealtShares
from fedsynth.federation.query import Counts
from fedsynth.federation.wire import Request, agreed_in, decode, encode, is_signed
from fedsynth.keys import KEY_BYTES, TAG_BYTES, Keys, SecretBytes, seal, sign, verified
from fedsynth.keys import digest as keyed_digest
from fedsynth.privacy.book import Book
from fedsynth.privacy.charge import Charge
from fedsynth.privacy.cost import ROUNDING, Budget, Cost, Norms, ProtectedChange
from fedsynth.privacy.noise import KeyedBits, discrete_gumbel
from fedsynth.privacy.release import Deposit
from fedsynth.schema.bins import Integers
from fedsynth.servers.calls import (
    MOST_REASON,
    Agree,
    Answered,
    AnyCall,
    AnyResult,
    Ask,
    Asked,
    Begin,
    Confirm,
    Confirmations,
    Confirmed,
    Done,
    Drop,
    Failure,
    Keep,
    Recall,
    Take,
)
from fedsynth.servers.draw import DrawFailed, Drawn
from fedsynth.servers.questions import (
    OpenTables,
    Question,
    SelectTable,
    ServerStatement,
    ShareLayout,
    SignedStatement,
    check_deposit,
    digest_of,
    inputs_of,
    noise_part,
    price_of,
)
from fedsynth.servers.shares import (
    SERVERS,
    Wide,
    Words,
    added,
    check_publics,
    expand,
    last_share,
    open_share,
    score,
    seal_share,
    subtracted,
    words_of,
    zero_share,
)
from fedsynth.terms import Terms

BOX = 3 * KEY_BYTES + TAG_BYTES
"""Length of a box in bytes: the sender's public key for this box, and two sealed secrets of 32 bytes."""
_CONFIRM = b"both hold this share"
_DEAL = "a deal to three servers"
_log = logging.getLogger(__name__)


# ---------------------------------------------------------------------------------------------------------------------
# At a site


def deal(
    values: Integers, digest: str, site: str, publics: Sequence[bytes], terms: str, secrets: SiteSecrets
) -> DealtShares:
    """Return a site's answer to a request for tables: secret shares for three compute servers, sealed and signed.

    ``values`` (flat) are the tables, one after the other, ``digest`` is the SHA-256 (hex) of the question, and
    ``publics`` are the three servers' public keys in order. ``terms`` is the text of the trust model's terms
    (:attr:`~fedsynth.federation.trust.Trust.terms`): a server that agreed to different terms cannot open the shares.
    """
    shares = [secrets.key(f"share {number}") for number in range(SERVERS)]
    context = (digest, site, terms)
    boxes = [
        b"".join(seal(public, secrets.key(f"box {at}"), shares[at] + shares[(at + 1) % SERVERS], str(at), *context))
        for at, public in enumerate(publics)
    ]
    body = seal_share(shares[2], last_share(values, shares[0], shares[1]), *context)
    digest_of_body = hashlib.sha256(body).digest()
    signature = sign(secrets.identity, _DEAL, *context, *boxes, digest_of_body)
    return DealtShares(_array(*boxes).reshape(SERVERS, BOX), digest_of_body, signature, _array(body))


def part_for(dealt: DealtShares, server: int) -> DealtShares:
    """Return the part of a site's answer that a server needs: server 0 derives both of its shares from secrets."""
    return dealt if server else msgspec.structs.replace(dealt, body=_array())


class SiteSecrets(Protocol):
    """What :func:`deal` needs of a site, as in :class:`~fedsynth.federation.trust.SiteTurn`."""

    @property
    def identity(self) -> bytes:
        """Seed of the key that the site signs with."""

    def key(self, purpose: str) -> bytes:
        """Return 32 secret bytes for one use."""


def _array(*parts: bytes) -> Bytes:
    return np.frombuffer(b"".join(parts), dtype=np.uint8)


# ---------------------------------------------------------------------------------------------------------------------
# A server


_NO_LIMIT = Budget.none()  # of a book's total; what a vault's questions may cost, :meth:`ComputeParty._price` checks
_WHOM = ProtectedChange()  # for all charges: they are to the persons whom each deposit's own terms name


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _run_of(vault: str) -> str:
    """Return the name under which a book keeps a vault: no run of a coordinator has a space in its name."""
    return f"vault {vault}"


@dataclass(frozen=True, eq=False)
class ServerTerms:
    """The terms that a compute server agreed to. They come from its operator's own files, never from the coordinator.

    ``publics`` are the three servers' public keys, and ``position`` (0, 1, 2) says which of them is the server's own.
    ``sites`` are the identity keys of the sites that may send shares, by name; ``coordinator`` (64 bytes) holds the
    public keys of the coordinator whose questions are answered. ``agreed`` are the run's terms, the least that a
    question must protect. ``trust`` is the text of the trust model's terms; ``exact`` allows releases without noise.
    ``questions`` is the largest number of questions that the server answers about one vault: a method asks about two in
    each of its rounds, and some before the first.
    """

    position: int
    publics: tuple[bytes, ...]
    sites: Mapping[str, bytes]
    coordinator: bytes
    agreed: Terms
    trust: str
    exact: bool = False
    questions: int = sys.maxsize

    def __post_init__(self) -> None:
        check_publics(self.publics)


@dataclass(repr=False)
class _Vault:
    """The server's two shares, each summed over the vault's sites, or over those of a deposit not yet kept."""

    request: Request
    deposit: Deposit
    query: Counts
    layout: ShareLayout
    own: Wide
    following: Wide
    sites: list[str] = field(default_factory=list)
    held: list[bytes] = field(default_factory=list)

    @classmethod
    def empty(cls, request: Request, deposit: Deposit, query: Counts, layout: ShareLayout) -> _Vault:
        own, following = (np.zeros((2, layout.cells), dtype=np.uint64) for _ in range(2))
        return cls(request, deposit, query, layout, own, following)

    def add(self, other: _Vault) -> None:
        self.own = added(self.own, other.own)
        self.following = added(self.following, other.following)
        self.sites += other.sites
        self.held += other.held


@dataclass(repr=False)
class _Pending:
    """The shares of one site until the other servers have confirmed that they hold the same shares."""

    site: str
    own: Wide
    following: Wide
    held: bytes
    confirmations: tuple[bytes, bytes]


JointDraw = Callable[[SelectTable, Agree], Drawn]
"""A server's part in a draw (private selection) of all three, once each has agreed to the statements of this call."""


@dataclass(eq=False)
class ComputeParty:
    """One of three compute servers: its state and every step that it takes by itself, without sending any message.

    ``secret`` holds at least 32 random bytes, which never leave the server; ``keys`` are derived from it. ``book``
    records what it charged and answered: on disk if the server is a process of its own, otherwise in memory for one
    run. A deposit is charged there to its run, within the budget of the terms; a question is charged to its vault,
    which the book keeps as a run of its own, within the deposit. The book's total thus counts a deposit and what is
    released of it.

    Calls of the coordinator come to :meth:`answer`. Whenever sites are asked for tables, it calls :meth:`begin`, for
    each site :meth:`take` and :meth:`confirm`, then :meth:`keep`. For each question about a vault it calls :meth:`ask`,
    :meth:`agree`, then :meth:`share` (to open tables), or :meth:`scores` and :meth:`gumbels` (to draw one), and
    :meth:`answered`. ``vault`` is a vault's name, and the last four raise :class:`Refused` for a question that
    :meth:`agree` has not charged, or of the other kind.
    """

    terms: ServerTerms
    secret: bytes = field(repr=False)
    book: Book
    _vaults: dict[str, _Vault] = field(default_factory=dict)
    _staged: dict[str, tuple[str, _Vault]] = field(default_factory=dict)
    _pending: _Pending | None = None
    _last: _Pending | None = None
    _asked: tuple[Question, ServerStatement] | None = None

    def __post_init__(self) -> None:
        self.keys = Keys(self.secret)
        if self.terms.publics[self.terms.position] != self.keys.public:
            raise InvalidParameter("the server's secret does not belong to its public key; correct the position")

    # Calls

    def answer(self, data: bytes, draw: JointDraw) -> AnyResult:
        """Return the result of one encoded call of the coordinator, or a ``Failure`` that says why not; never raises.

        ``draw`` makes the joint draw. The reason given for a refusal depends on the calls, on the server's terms and on
        its ledger, and never on the numbers that shares stand for. Any other error is reported without a reason.
        """
        try:
            return self._result(decode(data, AnyCall), draw)
        except BudgetExceeded as error:
            return Failure("spent", str(error)[:MOST_REASON])
        except DrawFailed as error:
            return Failure("lost", str(error)[:MOST_REASON])
        except FedsynthError as error:
            return Failure("refused", str(error)[:MOST_REASON])
        except Exception as error:
            _log.error("a call could not be answered: %s", reason_of(error), exc_info=is_fault(error))
            return Failure("failed", "")

    def _result(self, call: AnyCall, draw: JointDraw) -> AnyResult:
        match call:
            case Begin():
                self.begin(call.vault, call.agreement.tobytes(), call.body.tobytes(), call.signature)
            case Take():
                return Confirmations(*self.take(call.vault, call.site, call.dealt))
            case Confirm():
                return Confirmed(self.confirm(call.vault, call.site, call.before, call.after))
            case Drop():
                self.drop(call.vault, call.site)
            case Keep():
                self.keep(call.vault, call.sites)
            case Ask():
                return Asked(self.ask(call.question), self.replied(call.question) is not None)
            case Recall():
                reply = self.replied(call.question)
                if reply is None:
                    raise Refused("this question was not answered yet; run the same command again")
                return Answered(np.frombuffer(reply, dtype=np.uint8))
            case Agree():
                return self._conclude(call, draw)
        return Done()

    def _conclude(self, call: Agree, draw: JointDraw) -> Answered:
        """Agree to the question that was asked last, and answer it; a repeated question gets the stored answer.

        If a server has answered a draw but another one has not, both repeat the draw with the same inputs, which gives
        the same index.
        """
        self.agree(call.statements)
        question, _ = self._current()
        sent, began = 0, time.monotonic()
        if isinstance(question, SelectTable):
            drawn = draw(question, call)
            reply, sent = drawn.index.to_bytes(4), drawn.sent
        else:
            reply = self.share().tobytes()
        first = self.answered(reply)
        if first != reply:
            raise Refused("this question had another answer before; start another run")
        kind = "drawn" if isinstance(question, SelectTable) else "opened"
        seconds, tables = time.monotonic() - began, len(question.cliques)
        _log.info("question %d: %s of %d tables in %.1f s, %d bytes", question.number, kind, tables, seconds, sent)
        return Answered(np.frombuffer(first, dtype=np.uint8), sent)

    # Dealing

    def begin(self, vault: str, agreement: bytes, body: bytes, signature: bytes) -> None:
        """Begin a vault, or let more sites join it, by a question that asks the sites for their tables.

        ``agreement`` is the run's agreement, ``body`` holds the bytes of the question that sites are asked now, and
        ``signature`` is the coordinator's signature of them. Shares that were taken for this vault before, but not kept
        (:meth:`keep`), are forgotten; the question that it began with, sent again, empties the vault. Raises
        :class:`Refused` for a question that the coordinator in this server's terms did not sign, is beyond these terms,
        belongs to another vault, or differs from the vault's first question in more than its number in the run, and
        :class:`BudgetExceeded` if the vaults of the run exceed the budget in the terms; other errors of fedsynth are
        for a malformed question.
        """
        if not is_signed(body, signature, self.terms.coordinator):
            raise Refused(
                "the question is not signed by the coordinator in this server's terms; check that both belong to one "
                "federation"
            )
        agreed = Agreement.read(agreement)
        request = Request.read(body, agreed_in({agreed.digest: agreed}))
        head, deposit = request.head, request.head.release
        if head.verb != "deposit" or not isinstance(deposit, Deposit):
            raise Refused("three servers can only begin a vault with a deposit; use a method that makes deposits")
        self._check(agreed, deposit)
        query = check_deposit(request.query)
        query.check(self.terms.agreed.schema)
        self._pending = None
        if request.question != vault:
            first = self._held(vault)
            if msgspec.structs.replace(head, step=0) != msgspec.structs.replace(first.request.head, step=0) or (
                encode(query) != encode(first.query)
            ):
                raise Refused(
                    "sites join a vault under the terms that it began with, and these differ; start another run"
                )
        # Sites pay once for what they deal to a question: in two vaults it would be released at the price of one.
        if self.book.first("", f"question {request.question}", vault.encode()) != vault.encode():
            raise Refused("this deposit question belongs to another vault; ask the sites a new question for this one")
        if request.question == vault:  # also when a run resumes: it deals again, from its transcript
            self._reserve(request, vault, deposit)
            first = self._vaults[vault] = _Vault.empty(
                request, deposit, query, ShareLayout(query, self.terms.agreed.schema)
            )
        self._staged[vault] = request.question, _Vault.empty(request, deposit, query, first.layout)

    def take(self, vault: str, site: str, dealt: DealtShares) -> tuple[bytes, bytes]:
        """Open a site's two shares, and return a keyed digest of each for the other server that holds the same share.

        The first digest is for the previous server (its number less 1, modulo 3), with which this server has its first
        share in common; the second is for the next server. Each is keyed by a secret of these two servers, because
        anybody who could compute it (the third server, the coordinator) could test guesses of a table. Raises
        :class:`Refused` if the shares cannot be opened, if the site is not in the server's terms or is in the vault
        already, or if it sent other shares before.
        """
        question, staged = self._staging(vault)
        self._pending = self._last = None
        if site in self._vaults[vault].sites or site in staged.sites:
            raise Refused(f"{site} is in this vault already; a site deals only once to a vault")
        if site not in self.terms.sites:
            raise Refused(
                f"{site} is not in the roster of this server; agree to the current one (fedsynth compute-server agree)"
            )
        if dealt.keys.shape != (SERVERS, BOX):
            raise Refused(
                "a deal must have one box for each of the three servers; install the same fedsynth everywhere"
            )
        context = (question, site, self.terms.trust)
        signed = (*(box.tobytes() for box in dealt.keys), dealt.digest)
        if not verified(self.terms.sites[site], dealt.signature, _DEAL, *context, *signed):
            raise Refused(f"the shares sent as {site}'s are not signed by {site}, or belong to another question")
        digest = keyed_digest(*signed)
        if self.book.first(vault, f"deal {site}", digest) != digest:
            raise Refused(f"{site} dealt other shares to this vault before; start another run")
        at, cells, body = self.terms.position, staged.layout.cells, dealt.body.tobytes()
        if at and hashlib.sha256(body).digest() != dealt.digest:
            raise Refused(f"the share of {site} was changed on its way to this server; run the same command again")
        opened = SecretBytes(self.keys.unseal(dealt.keys[at].tobytes(), str(at), *context))
        secrets = SecretBytes(opened[:KEY_BYTES]), SecretBytes(opened[KEY_BYTES:])
        own, following = (
            open_share(secret, body, cells, *context) if number == SERVERS - 1 else expand(secret, cells)
            for secret, number in zip(secrets, (at, (at + 1) % SERVERS), strict=True)
        )
        mine = self._confirmation(at - 1, vault, site, secrets[0], own, digest)
        next_ones = self._confirmation(at + 1, vault, site, secrets[1], following, digest)
        self._pending = _Pending(site, own, following, digest, (mine, next_ones))
        return mine, next_ones

    def confirm(self, vault: str, site: str, before: bytes, after: bytes) -> bool:
        """Return whether the other two servers hold the same shares of a site as this one.

        ``before`` is the second digest that :meth:`take` returned at the previous server, ``after`` the first one at
        the next server. If both match, the site is staged until :meth:`keep` lets it into the vault; otherwise its
        shares are dropped.
        """
        _, staged = self._staging(vault)
        found, self._pending = self._pending, None
        if found is None or found.site != site:
            return False
        mine, next_ones = found.confirmations
        if not (hmac.compare_digest(before, mine) and hmac.compare_digest(after, next_ones)):
            return False
        staged.own = added(staged.own, found.own)
        staged.following = added(staged.following, found.following)
        staged.sites.append(site)
        staged.held.append(found.held)
        self._last = found
        return True

    def drop(self, vault: str, site: str) -> None:
        """Leave out a site, if it was taken last, because another server does not hold the same shares."""
        _, staged = self._staging(vault)
        found, self._last, self._pending = self._last, None, None
        if found is not None and found.site == site and staged.sites[-1:] == [site]:
            staged.own = subtracted(staged.own, found.own)
            staged.following = subtracted(staged.following, found.following)
            staged.sites.pop()
            staged.held.pop()

    def keep(self, vault: str, sites: Sequence[str]) -> None:
        """Let the staged sites into the vault: those whose shares were taken and confirmed since :meth:`begin`.

        Raises :class:`Refused` if ``sites`` are not exactly these, in order.
        """
        _, staged = self._staging(vault)
        self._last = None
        if list(sites) != staged.sites:
            raise Refused("the servers disagree on which sites have dealt; run the same command again")
        self._vaults[vault].add(staged)
        del self._staged[vault]

    # Questions

    def ask(self, question: Question) -> SignedStatement:
        """Check a question about a vault, and return this server's signed statement of it; nothing is charged yet.

        Raises :class:`Refused` for an invalid question, or one out of order, and :class:`BudgetExceeded` for one that
        costs more than the deposit has left.
        """
        self._asked = None
        held = self._held(question.vault)
        if question.vault in self._staged:
            raise Refused("sites are still joining this vault; run the same command again")
        question.check()
        cells = [int(np.prod(held.layout.shape(clique))) for clique in question.cliques]
        if isinstance(question, SelectTable):
            question.tables(cells)
            question.scale(held.request.agreement.change)
        digest = digest_of(question)
        count, spent = self.spent(question.vault)
        kept = self.book.said(question.vault, f"statement {question.number}")
        if kept is not None:
            known = msgspec.msgpack.decode(kept, type=ServerStatement)
            if known.question != digest or known.sites != tuple(held.sites) or known.held != self._dealt(held):
                raise Refused(
                    f"question {question.number} of this vault differs from the one asked before; start another run"
                )
            statement = known
        else:
            if question.number != count:
                raise Refused(
                    f"question {question.number} of this vault is out of order: {count} were answered so far; start "
                    "another run"
                )
            sites = tuple(held.sites)
            statement = ServerStatement(
                question.vault, count, digest, inputs_of(question), sites, self._dealt(held), spent
            )
            self._price(question, held, spent)
        self._asked = question, statement
        return SignedStatement(statement, self.keys.sign("statement", statement.body))

    def agree(self, statements: Sequence[SignedStatement]) -> None:
        """Charge the question that was asked last, once, if all three servers signed the same statement of it.

        Raises :class:`Refused` if ``statements``, in the order of the servers' numbers, differ, are not signed, or are
        of another question, and if the vault's sites have changed since: if servers held shares of different sites, one
        record could change a sum of squares by any amount. Raises :class:`BudgetExceeded` beyond the deposit, or beyond
        the number of questions in the terms.
        """
        question, statement = self._current()
        if len(statements) != SERVERS:
            raise Refused(
                "a statement needs the signatures of all three servers; nothing is opened, run the same command again"
            )
        for number, (public, one) in enumerate(zip(self.terms.publics, statements, strict=True)):
            if one.statement.body != statement.body:
                raise Refused(
                    f"the statement of server {number + 1} and this server's differ in the question, the sites or the "
                    "amount spent, and nothing is opened; restore that server's newest ledger, or start another run"
                )
            if not verified(public, one.signature, "statement", statement.body):
                raise Refused(
                    f"the statement of server {number + 1} is not signed by it, and nothing is opened; pin the current "
                    "cards of all three servers"
                )
        held = self._held(question.vault)
        if (
            statement.sites != tuple(held.sites)
            or statement.held != self._dealt(held)
            or question.vault in self._staged
        ):
            raise Refused("the vault's sites have changed since the question was asked; run the same command again")
        price = self._price(question, held, statement.spent)
        # In this order: a statement that was not charged is agreed to again, a charge without its statement could not
        # be.
        stated = msgspec.msgpack.encode(statement)
        count, _ = self.spent(question.vault)
        if question.number > count or self.book.first(question.vault, f"statement {question.number}", stated) != stated:
            raise Refused(
                f"question {question.number} of this vault differs from the one charged under that number, or leaves "
                "out an earlier number; start another run"
            )
        if question.number >= max(count, self.terms.questions):
            raise BudgetExceeded(
                f"this server answers at most {self.terms.questions} questions about one vault; run fewer rounds, or "
                "ask the server's operator to allow more (fedsynth compute-server agree --questions)"
            )
        cost = Cost.of(price, pure=bool(held.deposit.epsilon))
        key, verb = f"{question.vault} {question.number}", "select" if isinstance(question, SelectTable) else "open"
        asked = (key, _run_of(question.vault), question.number, verb, _text(question.release), cost, statement.question)
        self.book.begin(Charge(*asked, _NO_LIMIT, _NO_LIMIT, _WHOM, _WHOM))

    def spent(self, vault: str) -> tuple[int, float]:
        """Return how many questions were charged to a vault, and their total cost in rho, or epsilon if delta is 0."""
        cost = self.book.spent(_run_of(vault))
        return self.book.asked(_run_of(vault)), cost.rho if math.isinf(cost.epsilon) else cost.epsilon

    def share(self) -> Words:
        """Return this server's additive share (uint64, flat, modulo 2^64) of the tables to open, with its noise."""
        question, statement = self._agreed()
        if not isinstance(question, OpenTables):
            raise Refused("the question agreed to last is a draw, which opens no tables")
        held = self._held(question.vault)
        tables = zip(question.cliques, question.times, strict=True)
        found: Words = np.concatenate(
            [held.layout.table(held.own, clique)[0] * np.uint64(times) for clique, times in tables]
        )
        norms = question.norms(self.terms.agreed.schema, held.request.agreement.change)
        part = noise_part(question.release, norms)
        if part is not None:
            found += part.noise(found.size, self.keys.own("noise", statement.body)).view(np.uint64)
        found += zero_share(self.keys, self.terms.publics, self.terms.position, found.size, statement.body)
        return found

    def scores(self) -> Wide:
        """Return this server's additive shares of the candidates' squared distances, for the joint draw only.

        They are modulo 2^128, shape (2, candidates).
        """
        question, _ = self._agreed()
        if not isinstance(question, SelectTable):
            raise Refused("the question agreed to last opens tables, and is not a draw")
        held = self._held(question.vault)
        own = [held.layout.table(held.own, clique) for clique in question.cliques]
        following = [held.layout.table(held.following, clique) for clique in question.cliques]
        expected = question.tables([table.shape[1] for table in own])
        position = self.terms.position
        return words_of([score(*one, position) for one in zip(own, following, expected, strict=True)])

    def gumbels(self) -> NDArray[np.int64] | None:
        """Return this server's Gumbel noise for the joint draw; ``None`` if it adds none.

        It is int64, one number per candidate, in units of 1 / ``GRAIN`` weighted record. Servers 0 and 1 each add a
        full set, so at least one set is unknown to any single server; server 2 adds none, nor does any server to a draw
        without noise.
        """
        question, statement = self._agreed()
        if not isinstance(question, SelectTable):
            raise Refused("the question agreed to last opens tables, and is not a draw")
        scale = question.scale(self._held(question.vault).request.agreement.change)
        if scale is None or self.terms.position == SERVERS - 1:
            return None
        bits = KeyedBits(self.keys.own("gumbels", statement.body), b"one a candidate")
        return discrete_gumbel(scale, len(question.cliques), bits)

    def answered(self, reply: bytes) -> bytes:
        """Store ``reply`` as the answer to the last question, unless it has one, and return the stored answer."""
        question, _ = self._agreed()
        return self.book.first(question.vault, f"reply {question.number}", reply)

    def replied(self, question: Question) -> bytes | None:
        """Return the stored answer to a question about a vault, or ``None`` if it was not answered yet.

        Raises :class:`Refused` if another question of the same number was agreed to before.
        """
        kept = self.book.said(question.vault, f"statement {question.number}")
        if kept is None:
            return None
        known = msgspec.msgpack.decode(kept, type=ServerStatement)
        if known.question != digest_of(question):
            raise Refused(
                f"question {question.number} of this vault differs from the one asked before; start another run"
            )
        return self.book.said(question.vault, f"reply {question.number}")

    # Checks

    def _check(self, run: Agreement, deposit: Deposit) -> None:
        terms, agreed = self.terms, self.terms.agreed
        if run.schema != agreed.schema.digest:
            raise Refused(
                "the question was asked under another schema than the one that this server agreed to; agree to the "
                "current terms"
            )
        if (
            run.unit.rows < agreed.unit.rows
            or run.unit.sites < agreed.unit.sites
            or run.public_sizes != agreed.public_sizes
        ):
            raise Refused(
                "the question protects a person with fewer rows or sites than this server agreed to, or has other "
                "public sizes"
            )
        if not deposit.rho and not deposit.epsilon and not terms.exact:
            raise Refused("this server releases nothing without noise; give --epsilon a finite number")

    def _reserve(self, request: Request, vault: str, deposit: Deposit) -> None:
        """Charge what a vault may release, within the budget of the run's vaults."""
        cost = deposit.cost(Norms(1.0, 1.0)) if deposit.rho or deposit.epsilon else Cost()
        head, change = request.head, request.agreement.change
        asked = (vault, head.run, head.step, head.verb, _text(deposit), cost, _text((change.unit, change.neighbours)))
        limit = self.terms.agreed.budget
        exceeded = BudgetExceeded(
            "the deposits of this run exceed the budget in this server's terms; run the job with at most their epsilon "
            "and delta"
        )
        try:
            self.book.begin(Charge(*asked, _NO_LIMIT, limit, _WHOM, _WHOM))
        except BudgetExceeded as error:
            raise exceeded from error
        if not limit.covers(self.book.spent(head.run)):  # the terms were narrowed after the deposit was charged
            raise exceeded

    def _price(self, question: Question, held: _Vault, spent: float) -> float:
        """Return the price of a question, if the deposit has that left."""
        deposit = held.deposit
        price = price_of(question.release, deposit)
        limit = deposit.epsilon or deposit.rho
        if limit and not spent + price <= limit * ROUNDING:
            raise BudgetExceeded(
                f"this vault has released {spent:.6g} of the deposited {limit:.6g}, and the question costs {price:.6g} "
                "more; deposit a larger share"
            )
        return price

    def _confirmation(self, other: int, vault: str, site: str, secret: bytes, share: Wide, digest: bytes) -> bytes:
        pair = self.keys.shared(self.terms.publics[other % SERVERS], _CONFIRM, vault, site, digest)
        content = secret + hashlib.sha256(share.astype("<u8").tobytes()).digest()
        return hmac.digest(pair, content, "sha256")

    def _dealt(self, held: _Vault) -> str:
        return hashlib.sha256(b"".join(held.held)).hexdigest()

    def _held(self, vault: str) -> _Vault:
        if vault not in self._vaults:
            raise Refused(
                "this server does not hold the vault; run the same command again, which sends the deposits again"
            )
        return self._vaults[vault]

    def _staging(self, vault: str) -> tuple[str, _Vault]:
        if vault not in self._staged:
            raise Refused(
                "no sites are joining this vault; run the same command again, which begins with the deposit's question"
            )
        return self._staged[vault]

    def _current(self) -> tuple[Question, ServerStatement]:
        if self._asked is None:
            raise Refused("no question was asked before this statement; run the same command again")
        return self._asked

    def _agreed(self) -> tuple[Question, ServerStatement]:
        question, statement = self._current()
        # A statement is stored before its charge, which may be refused.
        if self.spent(question.vault)[0] <= question.number:
            raise Refused(
                "the three servers have not agreed to this question, so nothing is opened; run the same command again"
            )
        return question, statement
