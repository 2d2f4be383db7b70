"""A site: its rows, policy and account, and the only code path by which answers leave it.

The account is the site's record of charges, stored answers and refusals. Rule 1: only this module reads a site's rows
on behalf of a server. Rule 2: a question is parsed and checked, its rows are opened, and it is charged, in that order,
before a row is read. A refusal before that, and the codes ``refused`` and ``spent``, depend on request, account and
configuration (policy, schema, installed packages), never on rows. Any other error is reported as ``failed`` before the
charge and as ``void`` after it. The text of an error never leaves the site. Rule 3: a question is answered once. One
transaction charges it and records a random salt and its terms (noise, persons protected and the like), a second one
stores the answer; only stored answers are sent, the first time and on every repetition, each in a reply that is signed
for the request that came. Of a large answer that the site can make again from the same salt, terms and rows, a hash is
stored, and only bytes with this hash are sent. If, after the charge, rows cannot be read or the statistic not be
computed, the stored answer is ``void``, permanently. Rule 4: noise is a function of the site's secret, the question,
its salt, its terms and the noise's purpose. It does not depend on the rows, so that equal noise says nothing about
them.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

import fedsynth
from fedsynth.errors import BudgetExceeded, FedsynthError, Refused, Unsupported, is_fault, reason_of
from fedsynth.federation.agreement import Agreement
from fedsynth.federation.events import Answer, PlainAnswer
from fedsynth.federation.policy import Policy
from fedsynth.federation.query import (
    MOST_ROWS,
    Counts,
    Query,
    RecordCount,
    Selection,
    SiteMeasurement,
    SiteRandomness,
    Training,
    Weights,
    read_weights,
)
from fedsynth.federation.question import VERSION, QuestionHead
from fedsynth.federation.quote import Quote, noise_of
from fedsynth.federation.trust import sums_of
from fedsynth.federation.wire import (
    DIGEST,
    UNKNOWN,
    AuditPosition,
    Code,
    Received,
    ReplyHead,
    Request,
    WireError,
    encode,
    read_request,
    write_answer,
    write_reply,
)
from fedsynth.keys import Keys, SecretBytes, seal
from fedsynth.privacy.book import LARGEST_KEPT, Book
from fedsynth.privacy.charge import Charge, Opened
from fedsynth.privacy.cost import protect
from fedsynth.privacy.noise import LARGEST_SCALE, KeyedBits, add_noise, exponential_mechanism, noise_std
from fedsynth.privacy.release import AdaptiveSelection, Exact, Exponential, Gaussian, Laplace, Release, kind_of
from fedsynth.rows import Rows
from fedsynth.schema import Schema

STORED_BESIDE = 6144
"""Most bytes that a site stores for a question beside its answers: salt, terms, audit rows, hashes and heads."""
STORED_OF_MEMBER = 1024
"""Most bytes that a site stores, for each member of a secure sum, of the messages of one such sum."""
_log = logging.getLogger(__name__)


class RowStore(Protocol):
    """Where a site's rows are kept; in simulations, a :class:`~fedsynth.rows.Table`."""

    @property
    def schema(self) -> Schema:
        """The agreed schema that the rows are encoded under."""

    @property
    def holds_rows(self) -> bool:
        """Whether single rows are available, and not only counts of them."""

    def require(self, run: str) -> None:
        """Open the rows of a ``run``, before a question is charged, and raise an error if they cannot be; read none."""

    def opened(self, run: str) -> AbstractContextManager[Rows]:
        """A context manager that yields the rows for a ``run``, to count or, if :attr:`holds_rows`, to read.

        The rows are then a :class:`~fedsynth.rows.Table`. A site enters the block after it has charged the question, so
        only errors that :meth:`require` could not foresee are raised here.
        """


class SiteReply(NamedTuple):
    """A site's reply as bytes, and the seconds to allow for it: 0 unless the message asks for training.

    A deployed site sends such replies at multiples of a time that is not shorter
    (:func:`~fedsynth.deploy.host.state.wait_until_due`).
    """

    data: bytes
    seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class Site:
    """One organisation's end of the federation: it answers one coordinator, and nothing else reads its rows.

    ``coordinator`` (64 bytes) holds the public keys of the only peer whose requests are answered. ``secret`` is at
    least 32 random bytes (else :class:`FedsynthError`) that never leave the site; noise and keys are derived from it.
    ``rows_digest`` (hex, :func:`rows_digest`) stands for the rows, so that a run is not answered over other ones, and
    is empty if ``rows`` keeps a copy of them for each run; it never leaves the site either. Without ``trains``,
    training questions are answered with zeros at the same privacy cost, for dry runs.
    """

    name: str
    rows: RowStore = field(repr=False)
    policy: Policy
    account: Book
    secret: bytes = field(repr=False)
    coordinator: bytes
    rows_digest: str = ""
    trains: bool = True
    keys: Keys = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", Keys(self.secret))

    def answer(self, data: bytes) -> SiteReply:
        """Return the reply to the request ``data``, whatever its bytes; never raises.

        A request that is not answered gets one of the codes ``refused``, ``spent`` (no budget left), ``failed`` (any
        other error; the message may be sent again) and ``void`` (charged, and failed for good). If even the account
        cannot be read or written, the reply is ``failed``. Bytes that the coordinator did not sign for this site leave
        no trace in the account, and the reply to them names no message.
        """
        try:
            found = read_request(data, self.name, self.coordinator)
        except WireError as error:
            _log.warning("site %s: %s", self.name, error)
            return SiteReply(write_reply(self.keys.seed, self.name, UNKNOWN, write_answer("refused", AuditPosition())))
        request, seconds = self._read(found, len(data))
        try:
            stored = memoryview(self._answered(found, request))
        except Exception as error:
            what = "site %s: a message could be neither answered nor recorded: %s"
            _log.error(what, self.name, reason_of(error), exc_info=is_fault(error))
            stored = memoryview(_naming(found.message, write_answer("failed", AuditPosition())))
        # A turn that was answered keeps its answer: to another message of that turn, the reply names the first one.
        asked = ReplyHead(found.digest, stored[:DIGEST].hex())
        return SiteReply(write_reply(self.keys.seed, self.name, asked, stored[DIGEST:]), seconds)

    def _read(self, found: Received, size: int) -> tuple[Request | Exception, float]:
        """Return the message of a request of ``size`` bytes, checked by the policy, and the seconds to allow for it.

        For a message that the site refuses, it returns the reason in its place. The seconds depend on the message, the
        policy and the schema alone, not on the rows.
        """
        try:
            here, server = fedsynth.__version__, found.head.fedsynth
            if here != server:
                raise Refused(f"it runs fedsynth {here} and the server {server!r}; upgrade both together")
            if size > self.policy.largest_message:
                raise WireError(
                    "the message is larger than this site reads; raise largest_message in [policy], or ask for less"
                )
            request = Request.read(found.body, partial(self._agreed, bytes(found.agreement)), self.policy.kinds)
            told = (found.head.run, found.head.step, found.head.turn)
            if told != (request.head.run, request.head.step, request.turn):
                raise WireError("the request's head tells another run, step or turn than its message")
            self.policy.check(request, self.rows.schema)
            sums = self.policy.trusts[request.agreement.trust].sums
            if isinstance(request.query, Training) and sums is not None and request.turn == sums.reads:
                return request, request.query.seconds(self.rows.schema, self.policy.timed_rows)
        except Exception as error:
            return error, 0.0
        return request, 0.0

    def _agreed(self, attached: bytes, head: QuestionHead) -> Agreement:
        """Return the agreement that a question names: attached to its request, approved, or kept with its run."""
        if head.agreement in self.policy.plans:
            return self.policy.plans[head.agreement]
        data = attached or self.account.agreed(head.run)
        if hashlib.sha256(data).hexdigest() != head.agreement:
            raise Refused(
                "the run began under another agreement than the question names, or sent none; start another run"
            )
        return Agreement.read(data)

    def _answered(self, found: Received, request: Request | Exception) -> bytes:
        digest, seen = found.message, found.head.seen
        # Nobody but this site can make it refuse by what it once signed; any other position is as good as none.
        if seen.row and seen.verified(self.name, self.keys.identity) and not self.account.holds(seen.row, seen.chain):
            _log.warning("site %s: was a backup put back? fedsynth account FOLDER --restored %s", self.name, seen)
            return self._turn_down(
                "refused",
                digest,
                f"the coordinator has audit row {seen.row}, which this site signed and its account lacks: was a backup "
                "put back? (fedsynth account FOLDER --restored HEAD)",
                lacking=str(seen),
            )
        try:
            if isinstance(request, Exception):
                raise request
            if request.query.needs_rows and not self.rows.holds_rows:
                raise Refused(
                    "this site only counts rows in its database; configure it to read them, or use another method"
                )
            if isinstance(request.query, Training):
                request.query.require()
            turn = _Turn(self, request)
            turn.take(found.attached)
            turn.check_noise()
        except Exception as error:
            return self._turn_down("refused", digest, reason_of(error), run=found.head.run, step=found.head.step)
        return self._answer(turn, digest)

    def _answer(self, turn: _Turn, digest: str) -> bytes:
        """Return the stored answer to a message, or the first one, once it is stored."""
        code: Code
        try:
            stored = self.account.stored(turn.asked, turn.request.turn)
            if stored is not None:
                return stored
            if not turn.request.turn:
                turn.require_rounding()
            answer, sealed = turn.answer()
            written = turn.written(answer, digest, sealed=sealed)
            return self.account.store(turn.asked, turn.request.turn, written, again=turn.again)
        except _Failed as error:
            if self.account.hashed(turn.asked, turn.request.turn) is not None:  # and is again once its rows are back
                return self._turn_down("failed", digest, error.reason, turn.request.head)
            void = self._turn_down("void", digest, error.reason, turn.request.head)
            return self.account.store(turn.asked, turn.request.turn, void)
        except BudgetExceeded as error:
            code, reason = "spent", str(error)
        except Refused as error:
            code, reason = "refused", str(error)
        except Exception as error:
            code, reason = "failed", reason_of(error)
        return self._turn_down(code, digest, reason, turn.request.head)

    def _turn_down(
        self, code: Code, digest: str, reason: str, head: QuestionHead | None = None, **more: object
    ) -> bytes:
        """Record in the audit log, for the steward alone, why a message is not answered; return the code as answer."""
        _log.warning("site %s: %s: %s", self.name, code, reason)
        known = {"run": "", "step": 0, "verb": "", "kind": "", "agreement": ""}
        facts = known if head is None else {name: getattr(head, name) for name in known}
        last = self.account.note(code, request=digest, reason=reason, **{**facts, **more})
        return _naming(digest, write_answer(code, AuditPosition.signed(self.keys.seed, self.name, *last)))


def _naming(message: str, answer: bytes) -> bytes:
    """Return an answer as the account stores it: behind the digest (hex) of the message that it was made for."""
    return bytes.fromhex(message) + answer


class _Failed(Exception):
    """Rows could not be read, or a statistic not be computed; only a code may leave the site."""

    def __init__(self, error: Exception) -> None:
        super().__init__(type(error).__name__)
        self.reason = reason_of(error)


class _Turn:
    """One turn of one question at a site; its randomness is bound to question and terms, but for :meth:`run_key`.

    It is what the trust model sees of it (:class:`~fedsynth.federation.trust.SiteTurn`). ``asked`` is the digest (hex)
    of peer and question, which is charged and answered once.
    """

    def __init__(self, site: Site, request: Request) -> None:
        """Take a ``request`` that the policy of the ``site`` has checked."""
        self.site, self.request = site, request
        self.name, self.identity, self.schema = site.name, site.keys.seed, site.rows.schema
        self.trust = site.policy.trusts[request.agreement.trust]
        self.quote = Quote.of(request, self.schema, self.trust)
        self.digest, self.release, self.norms = request.question, self.quote.noise, self.quote.norms
        self.asked = hashlib.sha256(site.coordinator + bytes.fromhex(request.question)).hexdigest()
        # How the trust model makes sums, only for sums and averages, which the policy refuses without.
        self._sums = sums_of(self.trust) if request.head.verb in ("sum", "average") else None
        self._several = self._sums is not None and self._sums.turns > 1
        self._reads = self._sums is None or request.turn == self._sums.reads
        self._fixed = site.rows.holds_rows and not isinstance(request.query, Training)
        self._opened: Opened | None = None
        self._weights: Weights | None = None

    def take(self, weights: bytes | memoryview) -> None:
        """Keep the weights sent beside the message, if they are those that this turn needs."""
        query = self.request.query
        if isinstance(query, Training) and self._reads:
            self._weights = read_weights(query, self.schema, weights)
        elif len(weights):
            raise WireError("this message takes no weights; install the same fedsynth everywhere")

    def answer(self) -> tuple[Answer, bool]:
        """Charge the question or open its session; return this turn's answer, and whether it must be sealed."""
        head = self.request.head
        several, later = self._several, self.request.turn > 0
        if not later:
            self.site.rows.require(head.run)
        self._opened = self.site.account.begin(self._charge, pay=not several, resume=several and later)
        match head.verb:
            case "sum" | "average":
                assert self._sums is not None
                return self._sums.answer(self, self.request.turn, self.request.event), self.trust.confidential
            case "each":
                noisy = add_noise(self.statistic(), self.release, self.norms, self.bits("noise"))
                return PlainAnswer(noisy), False
            case "deposit":
                query, vault = self.request.query, self.trust.vault
                assert isinstance(query, Query)
                assert vault is not None  # the policy refuses other deposits
                return vault.deposit(self, query), True
            case _:
                return PlainAnswer(self._drawn()), False

    def check_noise(self) -> None:
        """Refuse, before anything is charged, noise too large to be sampled exactly."""
        release, norms = noise_of(self.request.head.release), self.norms
        scale = release.sigma(norms.l2) if isinstance(release, Gaussian) else 0.0
        scale = release.scale(norms.l1) if isinstance(release, Laplace) else scale
        if scale > LARGEST_SCALE:
            raise Refused(f"noise of scale {scale:.3g} is too large to sample; ask for fewer tables, or spend more")

    def require_rounding(self) -> None:
        """Refuse, before anything is charged, if this machine cannot train within the sensitivity."""
        query = self.request.query
        if isinstance(query, Training) and self.site.trains and not isinstance(self.request.head.release, Exact):
            try:
                query.require_rounding()
            except Unsupported as error:
                raise Refused(str(error)) from error

    @property
    def again(self) -> bool:
        """Whether the same answer can be made whenever the message comes, so that a large one need not be stored.

        It can from rows that are fixed for the run, in the turn that reads them: the audit row that answers to other
        turns name changes with the charge. What training gives depends on the machine, and takes long.
        """
        return self._fixed and self._reads

    @property
    def most_stored(self) -> int:
        """Most bytes that the account stores for the question, known from question, schema and policy."""
        answer = 8 * self.quote.cells
        if self._fixed and answer > LARGEST_KEPT:
            answer = 0  # only a hash is stored
        members = len(getattr(self.trust, "roster", ())) if self._several else 0
        return STORED_BESIDE + answer + STORED_OF_MEMBER * members

    def written(self, answer: Answer, digest: str, *, sealed: bool) -> bytes:
        """Return the bytes of an answer to the message ``digest``, as the account stores them."""
        assert self._opened is not None
        seen = AuditPosition.signed(self.identity, self.name, self._opened.row, self._opened.chain)
        body = encode(answer)
        if not sealed:
            return _naming(digest, write_answer("answered", seen, body))
        box = seal(self.site.coordinator, self.key(f"sealed {digest}"), body, self.name, digest)
        return _naming(digest, write_answer("answered", seen, *box, sealed=True))

    def statistic(self) -> NDArray[np.int64]:
        """Return the answer without the trust model's noise, after charging the question if it has not paid yet.

        Under the verb ``average``, each training step has its noise already. A site with more than ``MOST_ROWS`` rows
        answers ``void`` to a question that is not for counts, now and whenever the question is repeated.
        """
        assert self._opened is not None
        if self.request.turn:  # the first one, when the rows were opened, may be long ago
            self.site.rows.require(self.request.head.run)
        if not self._opened.charged:
            self._opened = self.site.account.begin(self._charge, resume=True)
        query = self.request.query
        assert isinstance(query, Query)
        with self._rows() as rows:
            if not isinstance(query, Training):
                return query.answer(rows)
            assert self._weights is not None
            if not self.site.trains:
                return np.zeros(query.cells(self.schema), dtype=np.int64)
            return query.trained(rows, self._weights, SiteRandomness(self.name, self.bits, self._noisy))

    def _noisy(self, values: NDArray[np.int64], step: int) -> NDArray[np.int64]:
        """Return a training step's sum, with the site's own noise unless the trust model adds it."""
        if self.request.head.verb == "sum":
            return values
        return add_noise(values, noise_of(self.request.head.release), self.norms, self.bits(f"noise {step}"))

    @contextmanager
    def _rows(self) -> Iterator[Rows]:
        """Yield the rows that the question's run reads; any error in the block becomes :class:`_Failed`."""
        assert self._opened is not None
        assert self._opened.charged
        try:
            with self.site.rows.opened(self.request.head.run) as rows:
                yield rows
                # Other sums might not fit the wire's integers; counts always do, even times the largest weight. Rows
                # counted while read know their number only now.
                if len(rows) > MOST_ROWS and not isinstance(self.request.query, Counts | RecordCount):
                    raise FedsynthError(
                        f"a site answers this question for at most {MOST_ROWS} rows; split the table over several sites"
                    )
        except Exception as error:
            raise _Failed(error) from error

    def bits(self, purpose: str) -> KeyedBits:
        """Return random bits bound to the site's secret, the question, its salt, its terms and the purpose."""
        return KeyedBits(self.site.secret, self._context("bits", purpose))

    def key(self, purpose: str) -> bytes:
        """Return 32 secret bytes, bound in the same way as :meth:`bits`."""
        return SecretBytes(hmac.digest(self.site.secret, self._context("key", purpose), "sha256"))

    def run_key(self, purpose: str) -> bytes:
        """Return 32 secret bytes that all questions of the run share."""
        run = self.request.head.run
        salt = SecretBytes(self.site.account.run_salt(run))
        parts = ("run key", self.name, self.site.coordinator.hex(), run, salt.hex(), purpose)
        return SecretBytes(hmac.digest(self.site.secret, msgspec.json.encode(parts), "sha256"))

    def first(self, part: str, value: bytes) -> bytes:
        return self.site.account.first(self.asked, part, value)

    def said(self, part: str) -> bytes | None:
        return self.site.account.said(self.asked, part)

    def _context(self, use: str, purpose: str) -> bytes:
        assert self._opened is not None
        # Bound to the question too: copies of a virtual machine may draw the same salt for two questions.
        parts = (use, self.name, self.asked, self._opened.salt.hex(), self.terms, purpose)
        return msgspec.json.encode(parts)

    @cached_property
    def terms(self) -> str:
        """Terms of noise and protection (JSON): noise depends on them, and the question is answered under no others."""
        head, norms, change = self.request.head, self.norms, self.request.agreement.change
        trust = f"{self.trust.name} {self.trust.terms}"
        terms = [VERSION, head.release, norms.l1, norms.l2, change.unit, change.neighbours, trust]
        return msgspec.json.encode(terms).decode()

    @property
    def _charge(self) -> Charge:
        head, agreement = self.request.head, self.request.agreement
        total, per_run, slots = self.site.policy.limits(self.request)
        return Charge(
            key=self.asked,
            run=head.run,
            step=head.step,
            verb=head.verb,
            kind=head.kind,
            release=msgspec.json.encode(head.release).decode(),
            agreement=agreement.data,
            trust=agreement.trust,
            method=agreement.method,
            cost=self.quote.cost,
            terms=self.terms,
            rows=self.site.rows_digest,
            total=total,
            per_run=per_run,
            own=None if slots is None or self.site.policy.exact else self.site.policy.per_run,
            group=f"{head.verb} {head.kind} {kind_of(head.release)}",
            slots=slots,
            change=agreement.change,
            least=self.site.policy.change,
            stored=self.most_stored,
            most_stored=self.site.policy.largest_stored,
        )

    def _drawn(self) -> NDArray[np.int64]:
        selection, head = self.request.query, self.request.head
        assert isinstance(selection, Selection)
        release = head.release
        pick: Release = release.pick if isinstance(release, AdaptiveSelection) else release
        change = self.request.agreement.change
        moved = selection.span(self.schema).of(change.neighbours) * change.unit.rows
        looks: list[SiteMeasurement] = []
        drawn = []
        with self._rows() as rows:
            for step in range(selection.steps):
                utilities = selection.utilities(rows, looks)
                if isinstance(pick, Exponential):
                    index = exponential_mechanism(utilities, moved, pick.epsilon, self.bits(f"draw {step}"))
                else:
                    index = int(utilities.argmax())
                drawn.append(index)
                if isinstance(release, AdaptiveSelection) and step < selection.steps - 1:
                    looks.append(self._look(rows, selection, index, release.look, step))
        return np.array(drawn, dtype=np.int64)

    def _look(self, rows: Rows, selection: Selection, index: int, release: Release, step: int) -> SiteMeasurement:
        """Return a noisy measurement of the candidate just drawn; it informs later draws and never leaves the site."""
        query = selection.look(index, self.schema)
        norms = protect(query.sensitivity(self.schema), self.request.agreement.change, pooled=False)
        noisy = add_noise(query.answer(rows), release, norms, self.bits(f"look {step}"))
        return SiteMeasurement(index, noisy, noise_std(release, norms))


def rows_digest(secret: bytes, digest: str) -> str:
    """Return the keyed digest (hex) of a site's rows, from the site's ``secret`` and the rows' own ``digest``.

    ``digest`` is :attr:`Table.digest <fedsynth.rows.Table.digest>`, or a fixed text for rows that may change. Without
    the key, results reveal nothing about the rows but whether they are the same.
    """
    return hmac.digest(secret, b"rows " + digest.encode(), "sha256").hex()
