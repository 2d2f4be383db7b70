"""How a compute server that listens at a port is stopped."""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest
from tests.federation.three_servers_world import COORDINATOR, World

from fedsynth.federation.trust.three_servers.calls import AnyResult, Begin, Done
from fedsynth.federation.trust.three_servers.links import card_of
from fedsynth.federation.trust.three_servers.process import ComputeServer
from fedsynth.federation.trust.three_servers.remote import RemoteServers
from fedsynth.federation.wire import encode


@dataclass(eq=False)
class Slow(ComputeServer):
    """A server that takes its time over each call: it answers once ``go`` is set."""

    busy: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)

    def answer(self, data: bytes) -> AnyResult:
        self.busy.set()
        assert self.go.wait(20)
        return super().answer(data)


def test_a_server_that_is_closed_sends_the_reply_in_progress_and_takes_no_other_call():
    world = World()
    ports = [socket.create_server(("127.0.0.1", 0)) for _ in world.secrets]
    cards = [
        card_of(secret, f"127.0.0.1:{port.getsockname()[1]}") for secret, port in zip(world.secrets, ports, strict=True)
    ]
    for port in ports:
        port.close()
    server = Slow(world.server(0), cards)
    running = threading.Thread(target=server.run, daemon=True)
    running.start()
    coordinator = RemoteServers(cards, COORDINATOR, timeout=20)
    request = world.request()
    assert request.signature is not None
    frame = encode(Begin(request.question, np.frombuffer(request.body, dtype=np.uint8), request.signature))
    heard: list[AnyResult] = []
    calling = threading.Thread(target=lambda: heard.append(coordinator._one(0, frame)), daemon=True)
    calling.start()
    assert server.busy.wait(20)
    closing = threading.Thread(target=server.close, daemon=True)
    closing.start()
    running.join(20)
    closing.join(0.2)
    assert closing.is_alive()
    assert not heard
    server.go.set()
    for thread in (closing, calling):
        thread.join(20)
        assert not thread.is_alive()
    assert isinstance(heard[0], Done)
    with pytest.raises(OSError, match="the connection ended"):
        coordinator._one(0, frame)
    coordinator.close()
