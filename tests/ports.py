"""Ports of the loopback interface that are kept for the servers of a test."""

from __future__ import annotations

import atexit
import socket

_KEPT: list[socket.socket] = []


def kept_ports(count: int) -> list[int]:
    """Return ports at which a test's servers can listen, and which nothing else gets while this process runs.

    A port that was merely found free can be taken before its server starts, by any connection that leaves this machine
    or stays on it. These stay bound, without listening: Linux lets a server listen there that sets SO_REUSEADDR, as
    ``socket.create_server`` and nginx do, and gives them to nobody who asks for any port.
    """
    made = [socket.socket() for _ in range(count)]
    for one in made:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", 0))
    _KEPT.extend(made)
    return [one.getsockname()[1] for one in made]


@atexit.register
def _close() -> None:
    for one in _KEPT:
        one.close()
