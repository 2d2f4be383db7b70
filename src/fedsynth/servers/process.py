"""One of three servers as a process: it answers one coordinator, and takes part in draws with the other two.

Rule 1: a call is answered only on a connection whose client signed this server's challenge with the coordinator's key.
    The server's own terms and ledger decide what the coordinator may ask
    (:class:`~fedsynth.servers.server.ComputeParty`).
Rule 2: calls are answered one at a time. Their lasting effects are in the ledger; shares are in memory only, and a
    restarted server receives them again from the coordinator's file of the run's answers (transcript).
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedsynth.errors import FedsynthError, Refused
from fedsynth.federation.wire import encode
from fedsynth.keys import verified
from fedsynth.servers.calls import Agree, AnyResult, Failure
from fedsynth.servers.draw import Candidates, Drawn, draw
from fedsynth.servers.links import Listener, Meetings, ServerCard, receive, send
from fedsynth.servers.questions import SelectTable
from fedsynth.servers.server import ComputeParty

CHALLENGE = 32
PURPOSE = "compute server challenge"
IDLE = 24 * 3600.0
"""Longest time in seconds between two calls of a coordinator on one connection, which then ends."""
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class ComputeServer:
    """One of the three servers as a process that listens for the coordinator's calls and for the two other servers.

    ``server`` does the computing. The other servers must join a draw within ``patience`` seconds, and the draw may take
    ``timeout`` seconds. The port is opened when the object is made (:class:`FedsynthError` if that fails, or if the
    ``cards`` are not those of the server's terms); :meth:`run` answers calls.
    """

    server: ComputeParty
    cards: Sequence[ServerCard]
    patience: float = 30.0
    timeout: float = 600.0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _replies: int = 0  # that are being computed or sent
    _closed: bool = False

    def __post_init__(self) -> None:
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
        """Return the result of one encoded call, and log why it was not carried out; never raises."""
        with self._lock:
            found = self.server.answer(data, self._draw)
        if isinstance(found, Failure):
            _log.warning("%s: %s", found.code, found.reason)
        return found

    def _draw(self, question: SelectTable, call: Agree) -> Drawn:
        return draw(
            self.server.terms.position,
            self._meetings.links(call.meeting, self.patience, self.timeout),
            Candidates(question.weights.astype(np.int64), question.penalties.astype(np.int64)),
            self.server.scores(),
            self.server.gumbels(),
            self.timeout,
        )
