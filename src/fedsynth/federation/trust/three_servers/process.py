"""One of three servers as a process: it answers one coordinator, and draws with the two others.

Rule 1: a call is answered only on a connection whose client signed this server's challenge with the coordinator's key.
    What the coordinator may ask is for the server's own terms and ledger to say
    (:class:`~fedsynth.federation.trust.three_servers.server.Server`).
Rule 2: one call at a time. What a call leaves behind is in the ledger; shares are in memory, and are dealt anew from
    the coordinator's transcript to a server that was started again.
Rule 3: reasons of a refusal are made of public questions and of the ledger. Of any other error nothing is said.
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

from fedsynth.errors import BudgetExceeded, FedsynthError, Refused
from fedsynth.federation.coordinator import signed_by
from fedsynth.federation.trust.three_servers.calls import (
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
from fedsynth.federation.trust.three_servers.draw import Candidates, DrawFailed, draw
from fedsynth.federation.trust.three_servers.links import Card, Listener, Meetings, receive, send
from fedsynth.federation.trust.three_servers.questions import Draw, Question
from fedsynth.federation.trust.three_servers.server import Server
from fedsynth.federation.wire import WireError, decode, encode

CHALLENGE = 32
PURPOSE = b"fedsynth compute server challenge 1"
IDLE = 24 * 3600.0
"""Seconds that a coordinator may be silent between two calls."""
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class ComputeServer:
    """A server that listens; ``cards`` are those of all three.

    The others have ``patience`` seconds to come to a draw, which may take ``timeout`` seconds.
    """

    server: Server
    cards: Sequence[Card]
    patience: float = 30.0
    timeout: float = 600.0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _question: Question | None = None

    def __post_init__(self) -> None:
        """Listen at the address of this server's own card; raises :class:`FedsynthError` where that cannot be."""
        terms, secret = self.server.terms, self.server.secret
        if tuple(card.keys for card in self.cards) != terms.publics:
            raise FedsynthError("the cards of the three servers are not of the keys that this server pins")
        self._meetings = Meetings(self.cards, terms.position, secret)
        try:
            self._listener = Listener(self.cards, terms.position, secret, self._serve, self._failed)
        except OSError as error:
            raise FedsynthError(f"cannot listen at {self.cards[terms.position].address} ({error})") from error

    def run(self) -> None:
        """Answer until :meth:`close`."""
        self._listener.run()

    def close(self) -> None:
        """Answer nobody more, once the call at hand is answered."""
        self._listener.close()
        with self._lock:
            return

    def _failed(self, error: Exception) -> None:
        _log.warning("a client was sent away: %s", error)

    def _serve(self, other: int | None, client: ssl.SSLSocket) -> None:
        """Serve one client: another server that comes to a draw, or the coordinator."""
        if other is not None:
            self._meetings.offer(other, client)
            return
        with client:
            challenge = os.urandom(CHALLENGE)
            send(client, challenge)
            said = challenge + self.server.keys.public
            if not signed_by(self.server.terms.coordinator, receive(client, most=64), said, PURPOSE):
                raise Refused("it does not hold the key of the coordinator that this server answers")
            client.settimeout(IDLE)
            while True:
                try:
                    data = receive(client)
                except OSError:  # it has gone
                    return
                client.settimeout(self.timeout)
                send(client, encode(self.answer(data)))
                client.settimeout(IDLE)

    def answer(self, data: bytes) -> AnyResult:
        """Return the answer to one call of the coordinator; never raises."""
        with self._lock:
            try:
                return self._answered(decode(data, AnyCall))
            except BudgetExceeded as error:
                return self._failure("spent", str(error))
            except DrawFailed as error:
                return self._failure("lost", str(error))
            except (WireError, FedsynthError) as error:
                return self._failure("refused", str(error))
            except Exception:
                _log.exception("a call could not be answered")
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
                roster = server.ask(call.question)
                self._question = call.question
                return Asked(roster, server.replied(call.question) is not None)
            case Recall():
                reply = server.replied(call.question)
                if reply is None:
                    raise Refused("this question was not answered yet")
                return Answered(np.frombuffer(reply, dtype=np.uint8))
            case Agree():
                return self._agreed(call)
        return Done()

    def _agreed(self, call: Agree) -> AnyResult:
        """Agree to the question that was asked last, and answer it as it was answered first.

        A server that has answered a draw takes part in it again where another has not: the same numbers go in, so that
        the same index comes out.
        """
        question = self._question
        if question is None:
            raise Refused("nothing was asked; a question comes before its roster")
        self.server.agree(call.rosters)
        sent, began = 0, time.monotonic()
        if isinstance(question, Draw):
            purpose = hashlib.sha256(call.rosters[0].roster.body).digest()
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
            raise Refused("this question was answered otherwise before; start another run")
        kind = "drawn" if isinstance(question, Draw) else "opened"
        seconds, tables = time.monotonic() - began, len(question.cliques)
        _log.info("question %d: %s of %d tables in %.1f s, %d bytes", question.number, kind, tables, seconds, sent)
        return Answered(np.frombuffer(first, dtype=np.uint8), sent)
