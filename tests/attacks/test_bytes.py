"""One byte that changes on the way, in every part of a request or of a reply, over every carrier.

Carriers carry bytes, and only the wire's signatures stand between them and a site's account.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.attacks.world import PARTS, rewritten
from tests.contract.world import SCHEMA, random_table
from tests.deploy.flower_world import SEED, accounts, lay_out
from tests.world import request_of

from fedsynth.deploy.files.server import FileTransport, RepliesMissing
from fedsynth.deploy.files.site import FileAnswerer
from fedsynth.deploy.host.config import load_site_config
from fedsynth.deploy.host.state import answer
from fedsynth.federation.query import RecordCount
from fedsynth.federation.simulate import _secret
from fedsynth.federation.transport import Message, Transport
from fedsynth.federation.wire import SIGNATURE, AuditPosition, Reply
from fedsynth.keys import Keys
from fedsynth.privacy.cost import Budget, Unit
from fedsynth.privacy.release import Gaussian
from fedsynth.runs.state import WitnessTransport

Change = Callable[[bytes], bytes]
COORDINATOR = Keys(_secret(SEED, "coordinator"))


def beside(message: Message) -> bytes:
    """Return the digest of agreement and weights that the request's head holds."""
    digests = (hashlib.sha256(part).digest() for part in (message.agreement, message.request.weights))
    return hashlib.sha256(b"".join(digests)).digest()


REQUEST: dict[str, Callable[[Message], int]] = {
    "length": lambda message: 0,
    "length of the agreement": lambda message: 5,
    "site": lambda message: message.data.index(b"north"),
    "version": lambda message: message.data.index(b"0.1.0"),
    "attempt": lambda message: message.data.index(message.attempt),
    "digest of the message": lambda message: message.data.index(bytes.fromhex(message.request.digest)),
    "digest of what is attached": lambda message: message.data.index(beside(message)),
    "position": lambda message: message.data.index(bytes(SIGNATURE)),
    "signature": lambda message: len(message.head) - 1,
    "question": lambda message: len(message.head) + 40,
    "agreement": lambda message: len(message.head) + len(message.request.body) + 40,
    "turn": lambda message: len(message.head) + len(message.request.body) - 8,
    "weights": lambda message: message.size - 1,
}
"""The parts of a request in which a carrier can change a byte, and where."""


def unchanged(data: bytes) -> bytes:
    return data


@dataclass
class Direct:
    """Carries requests to a deployed site in this process."""

    root: Path
    request: Change = unchanged
    reply: Change = unchanged
    sites = ("north",)

    def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
        for message in messages:
            (data,) = answer(load_site_config(self.root / "sites" / "north"), [self.request(message.data)]).replies
            yield message.reply(self.reply(data))


class Files(Direct):
    """Carries them as files, by the programs of server and site."""

    def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
        exchange = self.root / "exchange"
        exchange.mkdir(exist_ok=True)
        for message in messages:
            with pytest.raises(RepliesMissing) as missing:
                list(FileTransport(exchange, self.sites, 60, wait=False).exchange([message]))
            ((file,),) = missing.value.missing.values()
            file.write_bytes(self.request(file.read_bytes()))
            FileAnswerer(self.root / "sites" / "north", exchange).answer_once()
            for written in (exchange / "north").glob(f"replies/{file.stem}.reply"):
                written.write_bytes(self.reply(written.read_bytes()))
            yield from FileTransport(exchange, self.sites, 0).exchange([message])  # what is not there now is lost


class Flower(Direct):
    """Carries them in Flower's messages, by the programs of server and node."""

    def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
        pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
        from flwr.app import Message as FlowerMessage
        from tests.deploy.test_flower_messages import LocalGrid

        from fedsynth.deploy.flower import node, records
        from fedsynth.deploy.flower.server import FlowerTransport

        def relayed(message: FlowerMessage) -> FlowerMessage:
            requests = [self.request(data) for data in records.unpack("requests", message.content)]
            message.content = records.pack("requests", requests)
            said = node.reply(self.root / "sites" / "north", message)
            said.content = records.pack(
                "replies", [self.reply(data) for data in records.unpack("replies", said.content)]
            )
            return said

        grid = LocalGrid(self.root / "sites", self.sites, faults={"north": relayed})
        yield from FlowerTransport(grid, self.sites, 60, poll=0.01).exchange(messages)


CARRIERS = {"in process": Direct, "files": Files, "Flower": Flower}


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's messages ask the process which task it runs."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:
        return
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def message(weights: bytes = b"") -> Message:
    """Return a question to the site: how many rows has it?"""
    fields: dict[str, Any] = {"run": "run", "step": 0, "verb": "sum", "release": Gaussian(1e-4), "trust": "local"}
    fields |= {"schema": SCHEMA.digest, "unit": Unit(), "neighbours": "add-remove"}
    request = replace(request_of(RecordCount(), **fields), weights=weights)
    return Message.of("north", Keys(_secret(SEED, "north")).identity, request, COORDINATOR, AuditPosition())


def flipped(at: int) -> Change:
    return lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def asked(transport: Transport, sent: Message) -> Reply:
    (reply,) = transport.exchange([sent])
    return reply


@pytest.mark.parametrize("part", [*REQUEST, *(f"reply's {part}" for part in PARTS), "nothing"])
@pytest.mark.parametrize("carrier", CARRIERS)
def test_b08_a_byte_that_changes_on_its_way_is_ignored_and_the_next_question_answered(tmp_path, carrier, part):
    """Nobody remembers anything of it: not the site's account, not the server's positions."""
    root = tmp_path / "federation"
    lay_out(root, {"north": random_table(40, 0)}, SCHEMA, "local", "oneshot", budget=Budget(2.0, 1e-6))
    carried = CARRIERS[carrier](root)
    server = WitnessTransport(carried, tmp_path / "seen.json")
    if part in REQUEST:
        sent = message(b"weights")
        carried.request = flipped(REQUEST[part](sent))
    else:
        sent = message()
        carried.reply = lambda data: data if part == "nothing" else rewritten(data, part.removeprefix("reply's "))
    reply, site = asked(server, sent), accounts(root)["north"]
    if part != "nothing":
        assert (reply.code, reply.answer, reply.seen) == ("lost", None, AuditPosition())
        assert server.seen == {}
        assert len(site.charges()) == site.head()[0] == (0 if part in REQUEST else 1)
        carried.request = carried.reply = unchanged
        reply = asked(server, message())
    assert reply.code == "answered"
    assert server.seen.keys() == {"north"}
    assert len(site.charges()) == site.head()[0] == 1
    assert site.verify().wrong == ""
