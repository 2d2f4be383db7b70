"""How a compute server that listens at a port is stopped."""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest
from tests.ports import kept_ports
from tests.servers.three_servers_world import COORDINATOR, World

from fedsynth.federation.wire import decode, encode
from fedsynth.servers import links
from fedsynth.servers.calls import AnyResult, Begin, Done
from fedsynth.servers.links import card_of
from fedsynth.servers.process import ComputeServer
from fedsynth.servers.remote import RemoteServers


@dataclass(eq=False)
class Slow(ComputeServer):
    """A server that takes its time over each call: it answers once ``go`` is set."""

    busy: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)

    def answer(self, data: bytes) -> AnyResult:
        self.busy.set()
        assert self.go.wait(60)
        return super().answer(data)


def test_a_server_that_is_closed_sends_the_reply_in_progress_and_takes_no_other_call():
    world = World()
    ports = kept_ports(len(world.secrets))
    cards = [card_of(secret, f"127.0.0.1:{port}") for secret, port in zip(world.secrets, ports, strict=True)]
    server = Slow(world.server(0), cards)
    running = threading.Thread(target=server.run, daemon=True)
    running.start()
    coordinator = RemoteServers(cards, COORDINATOR, timeout=60)
    request = world.request()
    assert request.signature is not None
    agreed, asked = (np.frombuffer(part, dtype=np.uint8) for part in (request.agreement.data, request.body))
    frame = encode(Begin(request.question, agreed, asked, request.signature))
    heard: list[AnyResult] = []
    calling = threading.Thread(target=lambda: heard.append(decode(coordinator.one(0, frame), AnyResult)), daemon=True)
    calling.start()
    assert server.busy.wait(60)
    closing = threading.Thread(target=server.close, daemon=True)
    closing.start()
    running.join(60)
    closing.join(0.2)
    assert closing.is_alive()
    assert not heard
    server.go.set()
    for thread in (closing, calling):
        thread.join(60)
        assert not thread.is_alive()
    assert isinstance(heard[0], Done)
    with pytest.raises(OSError, match="the connection ended"):
        coordinator.one(0, frame)
    coordinator.close()


def test_a_server_listens_on_after_an_error_of_its_port(monkeypatch):
    """Too many open files for a moment must not end the server in silence."""
    monkeypatch.setattr(links, "_PAUSE", 0.01)
    world = World()
    (port,) = kept_ports(1)
    failed: list[Exception] = []
    cards = [card_of(secret, f"127.0.0.1:{port}") for secret in world.secrets]
    listener = links.Listener(cards, 0, world.secrets[0], lambda number, client: None, failed.append)
    real, left = listener._socket.accept, [OSError(24, "too many open files")]

    class Failing:
        def accept(self) -> object:
            if left:
                raise left.pop()
            return real()

        def __getattr__(self, name: str) -> object:
            return getattr(whole, name)

    whole = listener._socket
    listener._socket = Failing()  # type: ignore[assignment]
    running = threading.Thread(target=listener.run, daemon=True)
    running.start()
    socket.create_connection(("127.0.0.1", port), timeout=60).close()
    listener.close()
    running.join(60)
    assert not running.is_alive()
    assert failed[0].args == (24, "too many open files")
