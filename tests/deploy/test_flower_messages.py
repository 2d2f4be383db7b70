"""A real answerer behind real Flower messages, without a network: same bits as in process, and every way to fail."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.attacks.world import (
    answer_in,
    rewritten,
    signed,
)
from tests.contract.world import SCHEMA, random_table
from tests.deploy.flower_world import RUN, SEED, accounts, lay_out, of, product, seeded_salts, simulated, spent
from tests.due import noted_waits, whole
from tests.world import request_of

from fedsynth.deploy import batches
from fedsynth.keys import Keys

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

import httpx
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError, inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

import fedsynth
from fedsynth.deploy.flower import node as site_node
from fedsynth.deploy.flower import records, server
from fedsynth.deploy.flower.node import reply
from fedsynth.deploy.flower.server import FlowerTransport
from fedsynth.deploy.host.config import load_site_config
from fedsynth.errors import BudgetExceeded, FedsynthError, Interrupted, Refused, RunLost, SiteLost
from fedsynth.federation.ending import is_end, write_acknowledgement, write_end
from fedsynth.federation.events import PlainAnswer
from fedsynth.federation.policy_file import trust_named
from fedsynth.federation.query import RecordCount
from fedsynth.federation.simulate import _secret
from fedsynth.federation.transport import Message as Asked
from fedsynth.federation.wire import (
    NO_MESSAGE,
    AuditPosition,
    ReplyHead,
    encode,
    read_request,
)
from fedsynth.methods import find_method
from fedsynth.privacy.charge import BegunRun
from fedsynth.privacy.cost import Budget, Unit
from fedsynth.privacy.release import Gaussian
from fedsynth.proof.extract import extract
from fedsynth.proof.prove import prove_run
from fedsynth.runs.ending import PATIENCE, unacknowledged
from fedsynth.runs.folder import RunFolder
from fedsynth.runs.job import Job
from fedsynth.runs.run import run_deployed

BUDGET = Budget(2.0, 1e-6)
REQUEST = httpx.Request("POST", "https://127.0.0.1:9")
TABLES = {
    name: random_table(rows, at) for at, (name, rows) in enumerate({"north": 400, "south": 150, "east": 1}.items())
}
OPTIONS: dict[str, dict[str, Any]] = {
    "oneshot": {},
    "augflaim": {"rounds": 3, "rate": 0.6},
    "adafedprivsyn": {"batch": 2},
}
TRUSTS: dict[str, dict[str, Any]] = {"local": {}, "trusted": {}, "secure": {"min_honest": 2}}


@dataclass
class LocalGrid(Grid):
    """Delivers messages to the site's answerer in this process, through the bytes that Flower sends.

    ``faults`` turn the message to a site (or the reply that it gave) into what goes wrong; a fault that returns
    nothing never answers.
    """

    sites: Path
    names: Sequence[str]
    faults: dict[str, Callable[[Message], Message | None]] = field(default_factory=dict)
    offline: frozenset[str] = frozenset()
    dies_at: int | None = None
    pushes: list[list[str]] = field(default_factory=list)
    replies: dict[str, Message] = field(default_factory=dict)
    sent: list[bytes] = field(default_factory=list)
    objects: list[int] = field(default_factory=list)

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        return Run.create_empty(1)

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return [node.node_id for node in self.get_nodes()]

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=100 + at, name=name) for at, name in enumerate(self.names) if name not in self.offline]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        names = [self.names[message.metadata.dst_node_id - 100] for message in messages]
        self.pushes.append(names)
        if self.dies_at == len(self.pushes):
            raise ConnectionError("the server's process ended here")
        ids = []
        for name, message in zip(names, messages, strict=True):
            self.objects.append(len(get_all_nested_objects(message)))
            arrived = over_the_wire(message)
            ids.append(arrived.metadata.message_id)
            fault = self.faults.get(name)
            reply = fault(arrived) if fault else answer(self.sites / name, arrived)
            if reply is not None:
                parts = get_all_nested_objects(reply)
                self.sent += [one.deflate() for one in parts.values()]
                self.objects.append(len(parts))
                self.replies[ids[-1]] = over_the_wire(reply)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(one) for one in list(message_ids) if one in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError


def over_the_wire(message: Message) -> Message:
    """Return what arrives: the message taken apart into the objects that Flower sends, and put together again."""
    message.metadata.__dict__["_message_id"] = message.object_id
    with no_object_id_recompute():
        contents = {name: one.deflate() for name, one in get_all_nested_objects(message).items()}
        arrived = inflate_object_from_contents(message.object_id, contents)
    assert isinstance(arrived, Message)
    arrived.metadata.__dict__["_message_id"] = message.metadata.message_id
    return arrived


def answer(home: Path, message: Message) -> Message:
    """Return what the site in a folder replies."""
    return reply(home, message)


@pytest.fixture(autouse=True)
def _salts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites draw the salts of the simulation, so that bits can be compared."""
    seeded_salts(monkeypatch)


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's messages ask the process which task it runs."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@dataclass
class Clock:
    """A clock that goes on while the transport sleeps and at no other time, however busy the machine is."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return the clock by which the transport measures its deadlines."""
    made = Clock()
    monkeypatch.setattr(server, "time", made)
    return made


def world(tmp_path: Path, trust: str = "local", method: str = "oneshot", **options: Any) -> tuple[Job, Path, LocalGrid]:
    root = tmp_path / "federation"
    options = {"budget": BUDGET, "options": OPTIONS[method], "trust_options": TRUSTS[trust], **options}
    job = lay_out(root, TABLES, SCHEMA, trust, method, **options)
    return job, root, LocalGrid(root / "sites", tuple(TABLES))


def to(job: Job, grid: Grid, deadline: float | None = None) -> FlowerTransport:
    """Return the transport to a job's sites."""
    return FlowerTransport(grid, of(job).sites, deadline or of(job).deadline, poll=0.01)


def run(job: Job, root: Path, grid: Grid) -> Path:
    return run_deployed(job, root, to(job, grid)).folder


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("method", OPTIONS)
def test_a_deployed_run_has_the_bits_of_the_simulated_one(tmp_path, method, trust):
    job, root, grid = world(tmp_path, trust, method)
    assert Job.load(root / "job.toml") == job
    expected = simulated(
        tmp_path / "simulated",
        TABLES,
        SCHEMA,
        trust_named(trust, TRUSTS[trust]),
        find_method(method).kind(**OPTIONS[method]),
        budget=BUDGET,
    )
    out = run(job, root, grid)
    assert product(out) == expected
    assert all(len(set(names)) == len(names) for names in grid.pushes)  # one message to a node and exchange
    assert set(grid.objects) == {3}  # each is a request to the SuperLink, at either end; they were five and more
    assert {path.name for path in out.iterdir()} == {
        *("about.md", "synthetic.csv", "model.fedsynth", "schema.toml", "ledger.json", "transcript", "run.toml")
    }
    account = json.loads((out / "ledger.json").read_text())
    assert account["statement"]["trust"] == trust


@pytest.mark.parametrize("trust", TRUSTS)
def test_a_deployed_run_is_proved_against_the_sites_own_accounts(tmp_path, trust):
    job, root, grid = world(tmp_path, trust)
    out = run(job, root, grid)
    extracts = []
    for name, account in accounts(root).items():
        extracts.append(extract(account, _secret(SEED, name), name, RUN, COORDINATOR.public))
    known = {name: bytes.fromhex(key) for name, key in of(job).peers.items()}
    assert prove_run(RunFolder(out), extracts, known).problems == ()


def test_public_sizes_are_asked_for_and_change_no_bit(tmp_path):
    job, root, grid = world(tmp_path, "trusted", "augflaim", public_sizes=True)
    method = find_method("augflaim").kind(**OPTIONS["augflaim"])
    options: dict[str, Any] = {"budget": BUDGET, "public_sizes": True}
    expected = simulated(tmp_path / "s", TABLES, SCHEMA, trust_named("trusted", {}), method, **options)
    assert product(run(job, root, grid)) == expected
    ledger = json.loads((root / "runs" / RUN / "ledger.json").read_text())
    assert ledger["statement"]["public_sizes"]
    assert (ledger["entries"][0]["kind"], ledger["entries"][0]["cost"]["rho"]) == ("size", 0)


def test_the_unit_of_a_job_is_that_of_its_requests_and_costs_what_the_site_says(tmp_path):
    unit = Unit(rows=3, sites=2)
    job, root, grid = world(tmp_path, "local", "oneshot", unit=unit)
    expected = simulated(
        tmp_path / "s",
        TABLES,
        SCHEMA,
        trust_named("local", {}),
        find_method("oneshot").kind(),
        budget=BUDGET,
        unit=unit,
    )
    assert product(run(job, root, grid)) == expected
    assert all(rho == pytest.approx(BUDGET.rho) for rho in spent(root).values())
    with pytest.raises(Refused):  # less than the sites' stewards ask for
        run(replace(job, rows_per_person=2, deployment=of(job, run="other")), root, grid)


def test_large_payloads_travel_in_several_messages_with_the_same_bits(tmp_path, monkeypatch):
    job, root, grid = world(tmp_path, "local", "adafedprivsyn")
    expected = product(run(job, root, grid))
    shutil.rmtree(root)
    monkeypatch.setattr(batches, "LARGEST", 1)
    job, root, grid = world(tmp_path, "local", "adafedprivsyn")
    transport = to(job, grid)
    asked = [question("north", step) for step in range(5)] + [question("south", 9)]
    assert [reply.digest for reply in transport.exchange(asked)] == [message.request.digest for message in asked]
    assert grid.pushes == [["north"] * 5 + ["south"]]
    shutil.rmtree(root)
    job, root, grid = world(tmp_path, "local", "adafedprivsyn")
    assert product(run(job, root, grid)) == expected


def test_a_large_message_is_cut_into_objects_of_four_mebibytes():
    parts = [bytes([7]) * (9 << 20), b"", b"last"]
    message = Message(records.pack("replies", parts), 100, records.ASK)
    sizes = [len(one.deflate()) for one in get_all_nested_objects(message).values()]
    assert len(sizes) == 2 + 3
    assert max(sizes) < (4 << 20) + 200
    assert list(records.unpack("replies", over_the_wire(message).content)) == parts


def test_objects_of_equal_messages_differ():
    """Flower knows an object by its hash, and deletes it with the first message that it is part of."""
    first, second = (get_all_nested_objects(Message(records.pack("a", [b"b"]), 100, records.ASK)) for _ in range(2))
    assert not first.keys() & second.keys()


COORDINATOR = Keys(_secret(SEED, "coordinator"))


def question(site: str, step: int, coordinator: Keys = COORDINATOR, **fields: Any) -> Asked:
    told: dict[str, Any] = {
        "run": RUN,
        "step": step,
        "verb": "sum",
        "release": Gaussian(1e-4),
        "trust": "local",
        "schema": SCHEMA.digest,
        "unit": Unit(),
        "neighbours": "add-remove",
    }
    key, request = Keys(_secret(SEED, site)).identity, request_of(RecordCount(), **{**told, **fields})
    return Asked.of(site, key, request, coordinator, AuditPosition())


def test_everything_to_one_node_goes_in_one_message_and_replies_keep_their_order(tmp_path):
    job, _, grid = world(tmp_path)
    transport = to(job, grid)
    asked = [question(name, step) for step in range(3) for name in ("south", "north")]
    replies = list(transport.exchange(asked))
    assert [(reply.site, reply.digest) for reply in replies] == [(one.site, one.request.digest) for one in asked]
    assert {reply.code for reply in replies} == {"answered"}
    assert grid.pushes == [["south", "north"]]
    assert list(transport.exchange([])) == []


@pytest.mark.parametrize("trust", ["local", "trusted"])
def test_an_interrupted_run_resumes_to_the_same_bits_and_is_charged_once(tmp_path, trust):
    job, root, grid = world(tmp_path, trust, "augflaim")
    expected = product(run(job, root, grid))
    once = spent(root)
    shutil.rmtree(root)
    job, root, grid = world(tmp_path, trust, "augflaim")
    grid.dies_at = 5
    with pytest.raises(ConnectionError):
        run(job, root, grid)
    assert not (root / "runs").exists()
    again = LocalGrid(root / "sites", tuple(TABLES))
    assert product(run(job, root, again)) == expected
    assert spent(root) == pytest.approx(once)
    if trust == "local":  # a trusted server's exact answers are not written down, and asked again for free
        ends = len(TABLES)
        assert sum(map(len, again.pushes)) < sum(map(len, grid.pushes)) + 2 * len(TABLES) + ends


def test_a_run_that_is_complete_or_was_changed_is_not_run_again(tmp_path):
    job, root, grid = world(tmp_path)
    grid.dies_at = 1
    with pytest.raises(ConnectionError):
        run(job, root, grid)
    with pytest.raises(FedsynthError, match="set another run"):
        run(replace(job, epsilon=3.0), root, grid)
    run(job, root, grid)
    with pytest.raises(FedsynthError, match="complete"):
        run(job, root, grid)


def test_the_end_of_a_run_reaches_the_sites_that_are_there_and_the_others_with_the_next_run(tmp_path, clock):
    """A site that is away, and one that never answers, hold up the result by 20 s at most."""
    job, root, grid = world(tmp_path, site_budget=Budget(9.0, 1e-6))
    run(job, root, grid)
    assert [account.open_runs() for account in accounts(root).values()] == [[]] * 3
    assert unacknowledged(root) == {}
    second = replace(job, deployment=of(job, run="second", min_sites=1))
    asked = len(grid.pushes)

    def ends_alone(message: Message) -> Message | None:
        parts = list(records.unpack("requests", message.content))
        return None if is_end(parts[0]) else answer(root / "sites" / "south", message)

    grid.faults["south"] = ends_alone
    began = clock.now
    run_deployed(second, root, to(second, grid))
    assert PATIENCE + 5 <= clock.now - began < PATIENCE + 6  # the time in which each site looks for messages, and 15 s
    assert len(grid.pushes) > asked
    assert unacknowledged(root) == {"second": ("south",)}
    grid.faults, grid.offline = {}, frozenset({"north"})
    third = replace(job, deployment=of(job, run="third", min_sites=1, deadline=0.1))
    began = clock.now
    run_deployed(third, root, to(third, grid))
    assert clock.now - began < 1  # nobody waits for a site that is not connected
    assert unacknowledged(root) == {"third": ("north",)}
    assert [run for run, _ in accounts(root)["south"].open_runs()] == []


@pytest.mark.parametrize("what", ["nonsense", "another end", "nothing"])
def test_what_is_no_acknowledgement_leaves_the_site_to_be_told_again(tmp_path, clock, what):
    job, root, grid = world(tmp_path)

    def wrong(message: Message) -> Message | None:
        parts = list(records.unpack("requests", message.content))
        if not is_end(parts[0]):
            return answer(root / "sites" / "south", message)
        said = write_acknowledgement(Keys(_secret(SEED, "south")).seed, "south", write_end(COORDINATOR, "other"))
        content = {"nonsense": [bytes(100)], "another end": [said], "nothing": []}[what]
        return Message(records.pack("replies", content), reply_to=message)

    grid.faults["south"] = wrong
    run(job, root, grid)
    assert unacknowledged(root) == {RUN: ("south",)}


def test_a_resumed_run_keeps_the_servers_secret_to_itself(tmp_path):
    job, root, grid = world(tmp_path, "trusted")
    shutil.rmtree(root / "state")
    run(job, root, grid)
    state = root / "state" / RUN
    assert state.stat().st_mode & 0o777 == 0o700
    assert (state / "run.json").stat().st_mode & 0o777 == 0o600
    assert not json.loads((root / "runs" / RUN / "ledger.json").read_text())["statement"]["seeded"]


def test_two_servers_do_not_run_one_run(tmp_path):
    job, root, grid = world(tmp_path)

    def second(message: Message) -> Message | None:
        if is_end(next(records.unpack("requests", message.content))):
            return answer(root / "sites" / "north", message)
        with pytest.raises(FedsynthError, match="another process"):
            run(job, root, LocalGrid(root / "sites", tuple(TABLES)))
        return answer(root / "sites" / "north", message)

    grid.faults["north"] = second
    run(job, root, grid)


# ---------------------------------------------------------------------------------------------------------------------
# What goes wrong


def error(code: int) -> Callable[[Message], Message]:
    return lambda message: Message(Error(code, "secret 42"), reply_to=message)


def holding(**content: Any) -> Callable[[Message], Message]:
    return lambda message: Message(RecordDict(content), reply_to=message)


def forged(
    site: str = "south", values: Any = None, digest: str = "", request: str = "", by: str = "south", **change: Any
) -> Callable[[Message], Message]:
    """Return a site that answers well but for a field of its replies."""

    def fault(message: Message) -> Message:
        replies = []
        for data in records.unpack("requests", message.content):
            found = read_request(data, "south", COORDINATOR.public)
            asked = ReplyHead(request or found.digest, digest or found.message)
            body = encode(PlainAnswer(np.zeros(1, dtype=np.int64) if values is None else values))
            replies.append(signed(Keys(_secret(SEED, by)).seed, site, asked, "answered", body, **change))
        return Message(records.pack("replies", replies), reply_to=message)

    return fault


FAULTS: dict[str, Callable[[Message], Message | None]] = {
    "never answers": lambda message: None,
    "node unavailable": error(5),
    "busy with another run": error(records.BUSY),
    "client raised": error(2),
    "no records": holding(),
    "other records": holding(replies=ConfigRecord({"a": 1})),
    "nothing but a failure": holding(failed=ConfigRecord({})),
    "no bytes": holding(**{"replies-000000": ConfigRecord({"bytes": 1})}),
    "half a part": holding(**{"replies-000000": ConfigRecord({"bytes": bytes(16) + (9).to_bytes(8, "big")})}),
    "half a length": holding(**{"replies-000000": ConfigRecord({"bytes": bytes(16) + bytes(7)})}),
    "garbage": lambda m: Message(records.pack("replies", [b"garbage"]), reply_to=m),
    "too few replies": lambda m: Message(records.pack("replies", []), reply_to=m),
    "too many replies": lambda m: Message(records.pack("replies", [b"garbage"] * 99), reply_to=m),
    "another digest": forged(digest="1" * 64),
    "another request": forged(request="1" * 64),
    "no message": forged(digest=NO_MESSAGE),
    "another site": forged(site="north"),
    "signed by another site": forged(by="north"),
    "floats": forged(values=np.ones(1)),
    "a matrix": forged(values=np.ones((1, 1), dtype=np.int64)),
    "nothing that rows can give": forged(values=np.full(14, 2**62)),
    "said to be sealed": forged(sealed=True),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_site_that_fails_is_lost_and_the_run_goes_on(tmp_path, clock, fault):
    job, root, grid = world(tmp_path, deadline=0.2)
    grid.faults["south"] = FAULTS[fault]
    out = run(job, root, grid)
    assert 'lost_sites = [\n    "south",\n]' in (out / "run.toml").read_text()
    assert spent(root)["south"] == 0
    assert spent(root)["north"] == pytest.approx(BUDGET.rho)
    if fault == "never answers":
        assert clock.now >= 0.2


def test_an_exchange_never_lasts_longer_than_its_deadline(tmp_path, clock):
    job, _, grid = world(tmp_path)
    grid.faults = dict.fromkeys(TABLES, lambda message: None)
    transport = to(job, grid, deadline=0.3)
    replies = list(transport.exchange([question(name, 0) for name in TABLES]))
    assert 0.3 <= clock.now < 0.3 + 2 * 0.01
    assert [(reply.site, reply.code) for reply in replies] == [(name, "lost") for name in TABLES]


def test_a_site_that_is_not_connected_is_waited_for_once_and_then_not_until_it_is_back(tmp_path, clock):
    _, _, grid = world(tmp_path)
    grid.offline = frozenset({"south"})
    transport = FlowerTransport(grid, ["north", "south"], 0.4, poll=0.01)

    def asked(step: int) -> tuple[list[str], float]:
        began = clock.now
        replies = list(transport.exchange([question("south", step), question("north", step)]))
        return [reply.code for reply in replies], clock.now - began

    codes, seconds = asked(0)
    assert codes == ["lost", "answered"]
    assert seconds == pytest.approx(0.4, abs=0.02)
    codes, seconds = asked(1)
    assert codes == ["lost", "answered"]
    assert seconds < 0.02
    grid.offline = frozenset()
    assert asked(2)[0] == ["answered", "answered"]
    grid.offline = frozenset({"south"})
    assert asked(3)[1] == pytest.approx(0.4, abs=0.02)  # it has answered since: it is waited for again


def test_a_site_that_connects_during_an_exchange_is_asked_in_it(tmp_path, clock):
    _, _, grid = world(tmp_path)
    grid.offline = frozenset({"south"})
    heard: list[tuple[str, str]] = []

    def tell(site: str, state: str) -> None:
        heard.append((site, state))
        grid.offline = frozenset()

    transport = FlowerTransport(grid, ["north", "south"], 5.0, poll=0.01, report=tell)
    replies = list(transport.exchange([question("south", 0), question("north", 0)]))
    assert [reply.code for reply in replies] == ["answered", "answered"]
    assert [state for site, state in heard if site == "south"] == ["away", "connected", "answered"]
    assert grid.pushes == [["north"], ["south"]]


def test_too_few_sites_end_the_run_before_it_asks_and_after(tmp_path, clock):
    job, root, grid = world(tmp_path, deadline=0.2)
    grid.offline = frozenset({"south"})
    transport = to(job, grid)
    assert transport.wait(2) == ("north", "east")
    with pytest.raises(SiteLost, match="missing: south"):
        transport.wait(3)
    began = clock.now
    assert [reply.code for reply in transport.exchange([question("south", 0)])] == ["lost"]
    assert clock.now - began < 0.02  # the deadline was spent on waiting for it already
    with pytest.raises(SiteLost, match="resumes"):
        run(replace(job, deployment=of(job, run="other", min_sites=3)), root, grid)


@dataclass
class Returning(LocalGrid):
    """A node that comes back at its n-th look: its messages until then end in ``error``, or in nothing."""

    back_at: int = 5
    looks: int = 0
    error: int | None = None
    listed: bool = False

    def get_nodes(self) -> Iterable[NodeInfo]:
        self.looks += 1
        back = self.looks >= self.back_at
        self.offline = frozenset() if back or self.listed or self.looks == 1 else frozenset({"south"})
        if back:
            self.faults = {}
        elif self.error is None:
            self.faults = {"south": lambda message: None}
        else:
            self.faults = {"south": error(self.error)}
        nodes = list(super().get_nodes())
        for node in nodes:
            node.last_activated_at = f"{'back' if back and node.name == 'south' else 'first'}"
        return nodes


@pytest.mark.parametrize(("code", "listed"), [(3, True), (4, False), (5, False), (records.BUSY, True), (None, True)])
def test_a_site_that_comes_back_within_the_deadline_answers_in_the_same_exchange_and_is_charged_once(
    tmp_path, clock, code, listed
):
    """Flower's errors for it, whether it is listed or not, and the silence of a node that was restarted at once."""
    _, root, _ = world(tmp_path)
    grid = Returning(root / "sites", tuple(TABLES), error=code, listed=listed)
    heard: list[tuple[str, str]] = []
    transport = FlowerTransport(
        grid, list(TABLES), 10.0, poll=0.01, report=lambda site, state: heard.append((site, state))
    )
    replies = list(transport.exchange([question(name, 0) for name in TABLES]))
    assert [reply.code for reply in replies] == ["answered"] * 3
    assert 5 <= grid.looks <= 10  # a message that ended in an error is not sent again at every look
    assert heard.count(("south", "answered")) == 1
    busy = code == records.BUSY
    assert busy or ("south", "connected") in heard
    assert (("south", "busy") in heard) == busy
    assert (("south", "away") in heard) == (code is not None and not busy)
    assert len(set(spent(root).values())) == 1
    again = list(transport.exchange([question(name, 0) for name in TABLES]))
    assert [answer_in(reply.data) for reply in again] == [answer_in(reply.data) for reply in replies]


def test_a_run_of_few_sites_of_a_large_roster_waits_for_polls_at_the_rosters_pace(tmp_path, clock, caplog):
    _, _, grid = world(tmp_path)
    grid.faults["south"] = lambda message: None
    transport = FlowerTransport(grid, ["south"], 60.0, enrolled=100, poll=0.01)
    waits = []
    for step in range(2):
        began = clock.now
        (reply,) = transport.exchange([question("south", step)])
        assert reply.code == "lost"
        waits.append(clock.now - began)
    assert waits == pytest.approx([60.0, server.GRACE + 100 / 3.5], abs=0.1)
    transport.deadline = 20.0
    transport.wait(1)
    assert "deadline = 20 is too short: a site may look for messages after 29 s only" in caplog.text


def test_a_node_that_comes_and_goes_for_ever_is_sent_few_copies(tmp_path, clock, monkeypatch):
    _, root, _ = world(tmp_path)
    grid = Returning(root / "sites", tuple(TABLES), back_at=10**9, listed=True)
    pushes: list[int] = []
    nodes, push = grid.get_nodes, grid.push_messages

    def anew() -> Iterable[NodeInfo]:
        found = list(nodes())
        for node in found:
            node.last_activated_at = str(grid.looks)
        return found

    def counted(messages: Iterable[Message]) -> Iterable[str]:
        held = list(messages)
        pushes.append(len(held))
        return push(held)

    monkeypatch.setattr(grid, "get_nodes", anew)
    monkeypatch.setattr(grid, "push_messages", counted)
    (reply,) = FlowerTransport(grid, ["south"], 1.0, poll=0.01).exchange([question("south", 0)])
    assert reply.code == "lost"
    assert grid.looks > 10
    assert 2 <= sum(pushes) <= 6  # at 0, 40, 120, 280 and 600 ms


def test_a_message_that_flower_does_not_take_is_sent_again_until_the_deadline(tmp_path, clock, monkeypatch):
    _, _, grid = world(tmp_path)
    pushes: list[int] = []

    def refusing(messages: Iterable[Message]) -> Iterable[str]:
        pushes.append(len(list(messages)))
        if len(pushes) == 1:
            raise ObjectPushError("0a", 1, "a session of before the SuperLink's restart")
        return [""] if len(pushes) < 3 else LocalGrid.push_messages(grid, messages)

    monkeypatch.setattr(grid, "push_messages", refusing)
    (reply,) = FlowerTransport(grid, ["north"], 5.0, poll=0.01).exchange([question("north", 0)])
    assert (reply.code, pushes) == ("answered", [1, 1, 1])
    pushes.clear()
    (reply,) = FlowerTransport(grid, ["north"], 0.05, poll=0.01).exchange([question("north", 1)])
    assert reply.code == "lost"
    assert "did not take" in reply.lost


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        ("pull_messages", httpx.ConnectError("refused"), r"\(ConnectError\): it ended, stood still"),
        ("pull_messages", ObjectPullError("0a", "not there"), r"\(ObjectPullError\): it ended, stood still"),
        (
            "push_messages",
            httpx.HTTPStatusError("500", request=REQUEST, response=httpx.Response(500, request=REQUEST)),
            "HTTP status 500: its own log says why, and a full disk is one reason",
        ),
    ],
    ids=["gone", "restarted while it gave a reply", "its disk is full"],
)
def test_a_superlink_that_is_gone_ends_the_run_with_a_sentence(call, error, says, tmp_path, monkeypatch):
    job, root, grid = world(tmp_path)

    def gone(*_: Any) -> Iterable[Any]:
        raise error

    monkeypatch.setattr(grid, call, gone)
    with pytest.raises(Interrupted, match=rf"{says}.*`fedsynth deploy serve` takes the run up by itself"):
        run(job, root, grid)


def test_two_nodes_of_one_name_are_refused_and_strangers_are_not_asked(tmp_path):
    job, root, grid = world(tmp_path)
    grid.names = ("north", "south", "east", "stranger", "")
    run(job, root, grid)
    assert {name for names in grid.pushes for name in names} == set(TABLES)
    grid.names = ("north", "south", "east", "south")
    with pytest.raises(Refused, match="two nodes are registered as 'south'"):
        run(replace(job, deployment=of(job, run="other")), root, grid)


def test_of_an_error_at_a_site_nothing_leaves_but_a_code(tmp_path):
    job, root, grid = world(tmp_path)
    rows = root / "sites" / "south" / "rows.csv"
    rows.write_text("patient 4711,patient 4711\n" + rows.read_text())  # a header of two columns of one name
    run(job, root, grid)
    everything = b"".join(grid.sent)
    assert not [told for told in (b"Error", b"patient", b"rows.csv", b"missing") if told in everything]
    assert spent(root)["south"] == 0
    (row,) = {json.loads(row)["reason"] for row in accounts(root)["south"].export()}
    assert "patient 4711" in row  # for the steward alone
    assert 'lost_sites = [\n    "south",\n]' in (root / "runs" / RUN / "run.toml").read_text()


def test_a_run_that_a_site_failed_for_good_says_so_and_takes_another_name(tmp_path):
    """Restarting it cannot help: the site has paid for the question and will not answer it."""
    job, root, grid = world(tmp_path, min_sites=3)
    home = root / "sites" / "south"
    text = (home / "site.toml").read_text()
    (home / "site.toml").write_text(text.replace("rows_are_persons", 'records = "rfc4180"\nrows_are_persons'))
    whole_file = (home / "rows.csv").read_bytes()
    (home / "rows.csv").write_bytes(whole_file + b'"never closed\n')
    for _ in range(2):
        with pytest.raises(RunLost, match=r"2 sites answered and 3 .* failed for good at south, .* another name of"):
            run(job, root, grid)
    assert spent(root)["south"] > 0
    (home / "rows.csv").write_bytes(whole_file)
    with pytest.raises(RunLost, match="failed for good at south"):
        run(job, root, grid)


def test_a_table_that_is_not_there_for_a_while_ends_no_run(tmp_path):
    job, root, grid = world(tmp_path, min_sites=3)
    rows = root / "sites" / "south" / "rows.csv"
    rows.rename(rows.with_name("away.csv"))
    with pytest.raises(SiteLost, match=r"south could not answer: .*`fedsynth account`; have that mended and") as error:
        run(job, root, grid)
    assert not isinstance(error.value, RunLost)
    assert spent(root)["south"] == 0
    rows.with_name("away.csv").rename(rows)
    run(job, root, grid)


def test_a_complete_run_leaves_no_transcript_in_its_state(tmp_path):
    """It was there twice, and nothing deleted it: of secure sums, a hundred times what anybody needs later."""
    job, root, grid = world(tmp_path, "secure", site_budget=Budget(9.0, 1e-6))
    run(job, root, grid)
    left = root / "state" / RUN / "transcript"
    kept = root / "runs" / RUN / "transcript"
    assert not left.exists()
    assert kept.stat().st_size < 0.6 * sum(map(len, grid.sent))
    shutil.copy(kept, left)  # as of a process that ended before it was deleted
    job = replace(job, deployment=replace(of(job), run="another"))
    run(job, root, grid)
    assert not left.exists()
    assert not (root / "state" / "another" / "transcript").exists()


def test_failures_of_every_kind_look_alike(tmp_path):
    """Rows that are not there and a damaged copy of them: replies of as many bytes."""
    _, root, grid = world(tmp_path)
    home = root / "sites" / "south"
    transport = FlowerTransport(grid, ["south"], 5, poll=0.01)

    def reply(step: int) -> tuple[str, int]:
        (got,) = transport.exchange([question("south", step)])
        return got.code, len(got.data)

    assert reply(0)[0] == "answered"
    (copy,) = (home / "state" / "rows").glob("*.rows")
    kept = copy.read_bytes()
    copy.write_bytes(kept[:-1])
    damaged = reply(1)
    copy.write_bytes(kept)
    assert reply(1)[0] == "void"  # for good: it was charged before its rows were looked at
    (home / "rows.csv").unlink()
    assert reply(2)[0] == "answered"  # the run has its copy
    (got,) = transport.exchange([question("south", 0, run="another")])
    account = home / "state" / "account.sqlite"
    account.rename(account.with_suffix(".away"))
    gone = reply(3)
    assert (damaged[0], got.code) == ("void", "failed")
    assert damaged[1] == len(got.data)
    assert gone == ("lost", 0)  # without the account there is no key to sign with
    assert not account.exists()


def test_a_site_answers_the_coordinator_that_it_pinned_and_nobody_else(tmp_path):
    job, root, grid = world(tmp_path)
    transport = to(job, grid)
    stranger = Keys(bytes(32))
    (reply,) = transport.exchange([question("north", 0, stranger)])
    assert (reply.code, reply.seen) == ("lost", AuditPosition())
    assert "its coordinator did not sign" in reply.lost
    assert not (root / "sites" / "north" / "state" / "rows").exists()  # no row was read for it
    (root / "coordinator.key").unlink()
    with pytest.raises(FedsynthError, match="backup"):
        run(job, root, grid)


def test_a_backup_that_is_put_back_is_noticed_by_the_next_run(tmp_path):
    job, root, grid = world(tmp_path, site_budget=Budget(9.0, 1e-6))
    account = load_site_config(root / "sites" / "south").account
    backup = account.read_bytes()
    run(job, root, grid)
    account.write_bytes(backup)
    with pytest.raises(Refused, match="south refused"):
        run(replace(job, deployment=of(job, run="second")), root, grid)
    assert "was a backup put back" in list(accounts(root)["south"].export())[-1]
    seen = json.loads((root / "state" / "seen.json").read_text())["seen"]
    south = accounts(root)["south"]
    south.restored(AuditPosition.parse(seen["south"]).row, {RUN: BegunRun(BUDGET)})
    assert BUDGET.price(south.spent()) >= BUDGET.rho * (1 - 1e-9)  # as if the lost run had spent its limit


def test_b08_a_reply_that_a_relay_rewrites_is_lost_and_no_later_run_is_refused(tmp_path):
    """Replies had no signature over Flower: the site's row was remembered as rewritten, and it refused from then on."""
    job, root, grid = world(tmp_path, site_budget=Budget(9.0, 1e-6))
    south = root / "sites" / "south"

    def relayed(message: Message) -> Message:
        if is_end(next(records.unpack("requests", message.content))):
            return answer(south, message)
        replies = [rewritten(data, "row") for data in records.unpack("replies", answer(south, message).content)]
        return Message(records.pack("replies", replies), reply_to=message)

    grid.faults["south"] = relayed
    run(job, root, grid)
    assert set(json.loads((root / "state" / "seen.json").read_text())["seen"]) == {"north", "east"}
    grid.faults.clear()
    out = run(replace(job, deployment=of(job, run="second")), root, grid)
    assert "lost_sites = []" in (out / "run.toml").read_text()
    assert spent(root)["south"] == pytest.approx(2 * BUDGET.rho)


def test_what_a_run_sees_of_a_sites_account_is_on_the_disk_before_it_asks_on(tmp_path):
    """A server that lost its power in the middle of a run still notices the backup of an account."""
    job, root, grid = world(tmp_path, method="adafedprivsyn")
    file, found = root / "state" / "seen.json", []
    file.parent.mkdir(exist_ok=True)
    other = str(AuditPosition(7, b"c" * 32, b"s" * 64))
    file.write_text(json.dumps({"format": 1, "seen": {"elsewhere": other}}))  # what another run saw

    def watched(message: Message) -> Message:
        known = json.loads(file.read_text())["seen"]
        row = int(known.get("south", "0").partition(":")[0])
        found.append((row, accounts(root)["south"].head()[0], known["elsewhere"]))
        return answer(root / "sites" / "south", message)

    grid.faults["south"] = watched
    run(job, root, grid)
    assert [known for known, _, _ in found] == [row for _, row, _ in found]
    assert len({row for _, row, _ in found}) == len(found) > 2
    assert {kept for _, _, kept in found} == {other}


def test_replies_leave_at_multiples_of_answer_every_whatever_they_are(tmp_path, monkeypatch):
    _, root, _ = world(tmp_path, answer_every=0.3)
    home = root / "sites" / "north"
    due = noted_waits(monkeypatch, site_node)

    def seconds(*data: bytes) -> float:
        began = time.monotonic()
        answer(home, Message(records.pack("requests", list(data)), 100, records.ASK))
        return time.monotonic() - began

    first = question("north", 0).data
    took = [seconds(first), seconds(first), seconds(b"garbage"), seconds(question("north", 1, trust="nobody").data)]
    (home / "site.toml").rename(home / "away")
    took.append(seconds(first))
    steps = [0.3, 0.3, 0.3, 0.3, 1.0]  # a second, where the policy cannot be read
    assert all(whole(moment, step) for moment, step in zip(due, steps, strict=True)), due
    assert all(time_ >= moment for time_, moment in zip(took, due, strict=True)), (took, due)


def test_a_site_without_its_account_answers_nothing_and_makes_no_new_one(tmp_path):
    job, root, grid = world(tmp_path)
    account = load_site_config(root / "sites" / "south").account
    account.unlink()
    run(job, root, grid)
    assert not account.exists()
    assert 'lost_sites = [\n    "south",\n]' in (root / "runs" / RUN / "run.toml").read_text()


def test_a_node_registered_under_another_name_is_lost_and_not_charged(tmp_path):
    job, root, grid = world(tmp_path)
    grid.faults["south"] = lambda message: answer(root / "sites" / "north", message)
    run(job, root, grid)
    assert spent(root)["north"] == pytest.approx(BUDGET.rho)  # for its own answers alone
    assert 'lost_sites = [\n    "south",\n]' in (root / "runs" / RUN / "run.toml").read_text()


def test_versions_must_agree(tmp_path, monkeypatch):
    job, root, grid = world(tmp_path)

    def older(message: Message) -> Message:
        with monkeypatch.context() as installed:
            installed.setattr(fedsynth, "__version__", "0.0.1")
            return answer(root / "sites" / "south", message)

    grid.faults["south"] = older
    with pytest.raises(Refused, match="site south refused"):
        run(job, root, grid)
    assert spent(root)["south"] == 0
    assert "upgrade both together" in next(accounts(root)["south"].export())


def test_a_sites_policy_stands_whatever_the_server_asks(tmp_path):
    job, root, grid = world(tmp_path, site_budget=Budget(0.5, 1e-6))
    with pytest.raises(BudgetExceeded, match="too little budget left"):
        run(job, root, grid)
    assert all(rho <= Budget(0.5, 1e-6).rho * (1 + 1e-9) for rho in spent(root).values())
    changes: dict[str, dict[str, Any]] = {"other": {"trust": "trusted"}, "third": {"public_sizes": True}}
    for name, change in changes.items():
        with pytest.raises(Refused, match="refused step 0"):
            run(replace(job, deployment=of(job, run=name), **change), root, grid)


def test_a_run_reads_its_source_once(tmp_path, monkeypatch):
    job, _, grid = world(tmp_path)
    transport = to(job, grid)
    (first,) = transport.exchange([question("north", 0)])
    from fedsynth.deploy.host import rows as site_rows

    monkeypatch.setattr(site_rows, "load_rows", lambda *_: pytest.fail("looked at again"))
    again, other = transport.exchange([question("north", 0), question("north", 1)])
    assert answer_in(again.data) == answer_in(first.data)
    assert other.code == "answered"
