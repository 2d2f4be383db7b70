"""The coordinator's connections to three servers that run as processes.

If one of them cannot be reached or does not answer, the run stops with an error that names it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from fedsynth.federation.wire import WireError
from fedsynth.keys import Keys
from fedsynth.servers.links import ServerCard, connect, receive, send
from fedsynth.servers.process import CHALLENGE, IDLE, PURPOSE
from fedsynth.servers.shares import SERVERS
from fedsynth.servers.vault import lost


@dataclass(eq=False)
class RemoteServers:
    """Connections to the compute servers with these ``cards`` (a :data:`~fedsynth.servers.vault.SendAll`).

    ``coordinator`` holds the keys that prove who calls. Each call must be answered within ``timeout`` seconds.
    """

    cards: Sequence[ServerCard]
    coordinator: Keys
    timeout: float = 900.0
    _connections: dict[int, socket.socket] = field(default_factory=dict)
    _used: dict[int, float] = field(default_factory=dict)

    def __call__(self, frames: Sequence[bytes]) -> list[bytes]:
        """Send each server its frame, all at once, and return their replies.

        Raises :class:`SiteLost` naming the servers that do not answer.
        """
        with ThreadPoolExecutor(SERVERS) as pool:
            futures = [pool.submit(self.one, number, frame) for number, frame in enumerate(frames)]
        found, silent = [], []
        for number, future in enumerate(futures):
            try:
                found.append(future.result())
            except (OSError, WireError) as error:
                silent.append(f"server {number + 1} at {self.cards[number].address} ({error})")
        if silent:
            raise lost(f"no answer from {', '.join(silent)}")
        return found

    def one(self, number: int, frame: bytes) -> bytes:
        """Send ``frame`` to the server with this ``number`` (0, 1 or 2), and return its reply."""
        if number in self._connections and time.monotonic() - self._used[number] > IDLE / 2:  # it may be ended by now
            self._connections.pop(number).close()
        try:
            connection = self._connections.get(number) or self._connected(number)
            send(connection, frame)
            reply = receive(connection)
        except BaseException:
            if number in self._connections:  # what comes late must not answer the next call
                self._connections.pop(number).close()
            raise
        self._used[number] = time.monotonic()
        return reply

    def close(self) -> None:
        """Close the connections to all servers."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _connected(self, number: int) -> socket.socket:
        card = self.cards[number]
        connection = connect(card, None, self.timeout)
        challenge = receive(connection, most=CHALLENGE)
        send(connection, self.coordinator.sign(PURPOSE, challenge + card.keys))
        self._connections[number], self._used[number] = connection, time.monotonic()
        return connection
