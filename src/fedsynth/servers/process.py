"""One of three servers as a process: it answers one coordinator, and takes part in draws with the other two.

Rule 1: a call is answered only on a connection whose client signed this server's challenge with the coordinator's key.
    The server's own terms and ledger decide what the coordinator may ask
    (:class:`~fedsynth.servers.server.ComputeParty`).
Rule 2: calls are answered one at a time. Their lasting effects are in the ledger; shares are in memory only, and a
    restarted server receives them again from the coordinator's file of the run's answers (transcript).
Rule 3: the reason given for a refusal depends on the calls, on the server's terms and on its ledger, and never on the
    numbers that shares stand for. Any other error is reported without a reason.
"""

from __future__ import annotations

import hashlib
import logging
import os
import ssl
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from fedsynth.errors import BudgetExceeded, FedsynthError, Refused, is_fault, reason_of
from fedsynth.federation.wire import WireError, decode, encode
from fedsynth.keys import verified
from fedsynth.servers.calls import (
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
from fedsynth.servers.draw import Candidates, DrawFailed, draw
from fedsynth.servers.links import Listener, Meetings, ServerCard, receive, send
from fedsynth.servers.questions import Question, SelectTable
from fedsynth.servers.server import ComputeParty

CHALLENGE = 32
PURPOSE = "compute server challenge"
IDLE = 24 * 3600.0
"""Longest time in seconds between two calls of a coordinator on one connection, which then ends."""
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class ComputeServer:
    """One of the three servers as a process that listens for the coordinator's calls and for the two other servers.

    ``server`` does the computing (:class:`~fedsynth.servers.server.ComputeParty`); ``cards`` are
    the addresses and public keys of all three servers. The other servers must join a draw (a private selection by all
    three) within ``patience`` seconds, and the draw may take ``timeout`` seconds. The port is opened when the object is
    made; :meth:`run` answers calls.
    """

    server: ComputeParty
    cards: Sequence[ServerCard]
    patience: float = 30.0
    timeout: float = 600.0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _replies: int = 0  # that are being computed or sent
    _closed: bool = False
    _question: Question | None = None

    def __post_init__(self) -> None:
        """Listen at the address in this server's own card.

        Raises :class:`FedsynthError` if that fails, or if the cards do not hold the keys of the server's terms.
        """
        terms, secret = self.server.terms, self.server.secret
        if tuple(card.keys for card in self.cards) != terms.publics:
            raise FedsynthError(
                "the cards do not hold the three public keys of this server's terms; pin all three cards again"
            )
        self._meetings = Meetings(self.cards, terms.position, secret)
        try:
            self._listener = Listener(self.cards, terms.position, secret, self._serve, self._failed)
        except OSError as error:
            raise FedsynthError(
                f"cannot listen at {self.cards[terms.position].address} ({error}); check the address and that its "
                "port is free"
            ) from error

    def run(self) -> None:
        """Answer calls of the coordinator and of the other servers until another thread calls :meth:`close`."""
        self._listener.run()

    def close(self) -> None:
        """Stop listening, take no further call, and wait until the replies in progress have been sent.

        A later call on an open connection gets no reply: the connection ends.
        """
        self._listener.close()
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._replies)

    def _failed(self, error: Exception) -> None:
        _log.warning("a client was not served: %s", error)

    def _serve(self, other: int | None, client: ssl.SSLSocket) -> None:
        """Serve one client: another server (by its number ``other``) for a draw, or else the coordinator."""
        if other is not None:
            self._meetings.offer(other, client)
            return
        with client:
            challenge = os.urandom(CHALLENGE)
            send(client, challenge)
            said = challenge + self.server.keys.public
            if not verified(self.server.terms.coordinator, receive(client, most=64), PURPOSE, said):
                raise Refused("the client does not hold the key of the coordinator that this server answers")
            client.settimeout(IDLE)
            while True:
                try:
                    data = receive(client)
                except OSError:  # the coordinator closed the connection
                    return
                with self._changed:
                    if self._closed:
                        return
                    self._replies += 1
                try:
                    client.settimeout(self.timeout)
                    send(client, encode(self.answer(data)))
                    client.settimeout(IDLE)
                finally:
                    with self._changed:
                        self._replies -= 1
                        self._changed.notify_all()

    def answer(self, data: bytes) -> AnyResult:
        """Return the result of one call of the coordinator, or a ``Failure`` that says why there is none; never raises.

        ``data`` is the encoded call, one of :data:`~fedsynth.servers.calls.AnyCall`.
        """
        with self._lock:
            try:
                return self._answered(decode(data, AnyCall))
            except BudgetExceeded as error:
                return self._failure("spent", str(error))
            except DrawFailed as error:
                return self._failure("lost", str(error))
            except (WireError, FedsynthError) as error:
                return self._failure("refused", str(error))
            except Exception as error:
                _log.error("a call could not be answered: %s", reason_of(error), exc_info=is_fault(error))
                return Failure("failed", "")

    def _failure(self, code: str, reason: str) -> Failure:
        _log.warning("%s: %s", code, reason)
        return msgspec.convert({"type": "failure", "code": code, "reason": reason[:1000]}, Failure)

    def _answered(self, call: AnyCall) -> AnyResult:
        server = self.server
        match call:
            case Begin():
                server.begin(call.vault, call.body.tobytes(), call.signature)
            case Take():
                return Confirmations(*server.take(call.vault, call.site, call.dealt))
            case Confirm():
                return Confirmed(server.confirm(call.vault, call.site, call.before, call.after))
            case Drop():
                server.drop(call.vault, call.site)
            case Keep():
                server.keep(call.vault, call.sites)
            case Ask():
                self._question = None
                statement = server.ask(call.question)
                self._question = call.question
                return Asked(statement, server.replied(call.question) is not None)
            case Recall():
                reply = server.replied(call.question)
                if reply is None:
                    raise Refused("this question was not answered yet; run the same command again")
                return Answered(np.frombuffer(reply, dtype=np.uint8))
            case Agree():
                return self._agreed(call)
        return Done()

    def _agreed(self, call: Agree) -> AnyResult:
        """Agree to the question that was asked last, and answer it; a repeated question gets the stored answer.

        If a server has answered a draw but another one has not, both repeat the draw with the same inputs, which gives
        the same index.
        """
        question = self._question
        if question is None:
            raise Refused("no question was asked before this statement; run the same command again")
        self.server.agree(call.statements)
        sent, began = 0, time.monotonic()
        if isinstance(question, SelectTable):
            purpose = hashlib.sha256(call.statements[0].statement.body).digest()
            drawn = draw(
                self.server.terms.position,
                self._meetings.links(purpose, self.patience, self.timeout),
                Candidates(question.weights.astype(np.int64), question.penalties.astype(np.int64)),
                self.server.scores(),
                self.server.gumbels(),
                self.timeout,
            )
            reply, sent = drawn.index.to_bytes(4), drawn.sent
        else:
            reply = self.server.share().tobytes()
        first = self.server.answered(reply)
        if first != reply:
            raise Refused("this question had another answer before; start another run")
        kind = "drawn" if isinstance(question, SelectTable) else "opened"
        seconds, tables = time.monotonic() - began, len(question.cliques)
        _log.info("question %d: %s of %d tables in %.1f s, %d bytes", question.number, kind, tables, seconds, sent)
        return Answered(np.frombuffer(first, dtype=np.uint8), sent)
