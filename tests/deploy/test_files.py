"""Requests and replies as files: same bits as in process, whoever carries them, and all that a folder can hold."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.attacks.world import (
    PARTS,
    rewritten,
    signed,
)
from tests.command import invoke
from tests.contract.world import SCHEMA, random_table
from tests.deploy.flower_world import (
    RUN,
    SEED,
    accounts,
    lay_out,
    of,
    product,
    run_over_files,
    seeded_salts,
    simulated,
    spent,
)
from tests.deploy.recomputing import keep_salts, recomputed
from tests.due import noted_waits, whole
from tests.world import request_of

import fedsynth
from fedsynth.deploy import batches
from fedsynth.deploy.files import folder as files_folder
from fedsynth.deploy.files import site as files_site
from fedsynth.deploy.files.folder import ExchangeFolder
from fedsynth.deploy.files.messages import (
    MessageName,
    named,
)
from fedsynth.deploy.files.server import (
    FileTransport,
    RepliesMissing,
)
from fedsynth.deploy.files.site import FileAnswerer
from fedsynth.deploy.flower.local import wait_for
from fedsynth.deploy.host import state as site_state
from fedsynth.deploy.host.config import load_site_config
from fedsynth.deploy.host.state import answer
from fedsynth.errors import BudgetExceeded, FedsynthError, InvalidParameter, SiteLost
from fedsynth.federation.agreement import Agreement
from fedsynth.federation.policy_file import trust_named
from fedsynth.federation.query import RecordCount
from fedsynth.federation.simulate import _secret, _seeded
from fedsynth.federation.transport import Message
from fedsynth.federation.wire import (
    NO_MESSAGE,
    AuditPosition,
    Code,
    ForeignReply,
    ReplyHead,
    Request,
    WireError,
    code_of,
    encode,
    open_reply,
    read_reply,
    read_request,
)
from fedsynth.keys import Keys
from fedsynth.methods import find_method
from fedsynth.privacy.book import Book, now
from fedsynth.privacy.cost import Budget, Unit
from fedsynth.privacy.release import Gaussian
from fedsynth.runs.job import Job

BUDGET = Budget(2.0, 1e-6)
TABLES = {
    name: random_table(rows, at) for at, (name, rows) in enumerate({"north": 400, "south": 150, "east": 1}.items())
}
TRUSTS: dict[str, dict[str, Any]] = {"local": {}, "trusted": {}, "secure": {"min_honest": 2}}
COORDINATOR = Keys(_secret(SEED, "coordinator"))
KEYS = {name: Keys(_secret(SEED, name)).identity for name in TABLES}
Texts = list[str]


@pytest.fixture
def salts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites in this process draw the salts of the simulation, so that bits can be compared."""
    seeded_salts(monkeypatch)


def world(tmp_path: Path, trust: str = "local", method: str = "oneshot", **options: Any) -> tuple[Job, Path, Path]:
    """Return a job, the folder of its federation, and an empty exchange."""
    root, exchange = tmp_path / "federation", tmp_path / "exchange"
    options = {"budget": BUDGET, "trust_options": TRUSTS[trust], **options}
    job = lay_out(root, TABLES, SCHEMA, trust, method, **options)
    exchange.mkdir()
    return job, root, exchange


def expected(tmp_path: Path, trust: str, method: str) -> tuple[bytes, bytes]:
    """Return the bits of the simulated run."""
    folder, kind = tmp_path / "simulated", find_method(method).kind
    return simulated(folder, TABLES, SCHEMA, trust_named(trust, TRUSTS[trust]), kind(), budget=BUDGET)


def answerer(root: Path, site: str, exchange: Path, said: Texts | None = None) -> FileAnswerer:
    """Return what answers for a site."""
    return FileAnswerer(root / "sites" / site, exchange, (said if said is not None else []).append)


def answer_all(root: Path, exchange: Path, *but: str) -> None:
    """Let all sites answer what lies there, but for some."""
    for site in TABLES:
        if site not in but:
            answerer(root, site, exchange).answer_once()


def by_hand(root: Path, exchange: Path, carry: Callable[[], None], **options: Any) -> int:
    """Run a job without waiting, carrying whenever it asks for that; return how often that was."""
    for carried in range(100):
        try:
            run_over_files(root, exchange, wait=False, **options)
        except RepliesMissing:
            carry()
        else:
            return carried
    raise AssertionError("the run never ends")


def lost(root: Path) -> list[str]:
    """Return the sites that missed a round of the complete run."""
    sites: list[str] = tomllib.loads((root / "runs" / RUN / "run.toml").read_text())["made"]["lost_sites"]
    return sites


def files(exchange: Path) -> list[str]:
    """Return what lies in an exchange, at any depth, but for the ends of runs."""
    found = [path for path in exchange.rglob("*") if not path.is_dir() and path.suffix not in (".end", ".ended")]
    return sorted(str(path.relative_to(exchange)) for path in found)


def question(site: str, step: int = 0, coordinator: Keys = COORDINATOR, **fields: Any) -> Message:
    """Return a message to a site: how many rows have you?"""
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
    request = request_of(RecordCount(), **{**told, **fields})
    return Message.of(site, KEYS[site], request, coordinator, AuditPosition())


def transport(exchange: Path, deadline: float = 0.3, **options: Any) -> FileTransport:
    """Return the transport to all sites."""
    return FileTransport(exchange, tuple(TABLES), deadline, poll=0.02, **options)


def asked(exchange: Path, message: Message) -> MessageName:
    """Write a message into the exchange and return its name there."""
    with pytest.raises(RepliesMissing) as missing:
        list(transport(exchange, wait=False).exchange([message]))
    ((file,),) = missing.value.missing.values()
    name = named(file.name)
    assert name is not None
    return name


# ---------------------------------------------------------------------------------------------------------------------
# Whole runs, carried by hand


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("method", ["oneshot", "auto"])
def test_a_run_carried_between_separate_folders_has_the_bits_of_the_simulated_one(tmp_path, salts, trust, method):
    """Server and sites have exchanges of their own; copies go to and fro, the same ones again and again."""
    _, root, exchange = world(tmp_path, trust, method)
    there = {site: tmp_path / f"at-{site}" for site in TABLES}

    def carry() -> None:
        for site, home in there.items():
            shutil.copytree(exchange / site / "requests", home / site / "requests", dirs_exist_ok=True)
            answerer(root, site, home).answer_once()
            shutil.copytree(home / site / "replies", exchange / site / "replies", dirs_exist_ok=True)

    carries = by_hand(root, exchange, carry)
    assert product(root / "runs" / RUN) == expected(tmp_path, trust, method)
    assert carries == (5 if trust == "secure" else 1) * (1 if method == "oneshot" else 3)
    assert files(exchange) == []  # the server keeps nothing; what is elsewhere nobody needs
    assert all(len(files(home)) == 2 * carries for home in there.values()) or method == "auto"
    assert lost(root) == []
    assert all(rho <= BUDGET.rho * (1 + 1e-9) for rho in spent(root).values())


@pytest.mark.parametrize("days", [400, -400])
@pytest.mark.parametrize("whose", ["sites", "server"])
def test_a_clock_that_is_wrong_for_one_answer_changes_nothing(tmp_path, monkeypatch, whose, days):
    """The sites' clock, or the server's, in the second of three exchanges, while another run is open.

    A site closed that other run, once and for all, where its clock was ahead or came back.
    """
    _, root, exchange = world(tmp_path, "local", "auto", site_budget=Budget(4.0, 1e-6))
    off = dict.fromkeys(("sites", "server"), 0)
    seconds = time.time

    def opened(path: Path) -> Book:
        entropy = _seeded(_secret(SEED, path.parents[1].name))
        return Book(path, entropy=entropy, clock=lambda: now() + timedelta(days=off["sites"]))

    monkeypatch.setattr(site_state, "Book", opened)
    monkeypatch.setattr(time, "time", lambda: seconds() + 86400 * off["server"])
    for site in TABLES:
        (reply,) = answer(load_site_config(root / "sites" / site), [question(site, run="older").data]).replies
        assert code_of(reply) == "answered"
    carried = 0

    def carry() -> None:
        nonlocal carried
        carried += 1
        off[whose] = days if carried == 2 else 0
        answer_all(root, exchange)

    assert by_hand(root, exchange, carry) == 3
    assert product(root / "runs" / RUN) == expected(tmp_path, "local", "auto")
    for site, account in accounts(root).items():
        assert {run for run, _ in account.open_runs()} == {"older", RUN}
        FileAnswerer(root / "sites" / site, exchange).answer_once()  # looks for idle runs, and hears of the end
        assert {run for run, _ in account.open_runs()} == {"older"}


def test_confidential_answers_are_sealed_in_their_files(tmp_path, salts):
    _, root, exchange = world(tmp_path, "trusted")
    with pytest.raises(RepliesMissing):
        run_over_files(root, exchange, wait=False)
    answer_all(root, exchange)
    (request,) = (exchange / "north" / "requests").iterdir()
    (reply,) = (exchange / "north" / "replies").iterdir()
    asked = read_request(request.read_bytes(), "north", COORDINATOR.public)
    message = Request.read(asked.body, lambda head: Agreement.read(bytes(asked.agreement)))
    found = read_reply(reply.read_bytes(), message, "north", KEYS["north"], COORDINATOR.unseal)
    assert found.sealed
    exact = encode(found.answer)[-64:]
    assert found.answer is not None
    assert exact not in reply.read_bytes()
    with pytest.raises(FedsynthError, match="is for another key"):
        read_reply(reply.read_bytes(), message, "north", KEYS["north"], Keys(bytes(32)).unseal)


def test_a_message_without_a_reply_stops_the_run_and_says_what_to_carry_where(tmp_path, salts):
    _, root, exchange = world(tmp_path)
    with pytest.raises(RepliesMissing, match=r"south: carry .*south/requests") as first:
        run_over_files(root, exchange, wait=False)
    assert set(first.value.missing) == set(TABLES)
    assert all(file.is_file() for wanted in first.value.missing.values() for file in wanted)
    answer_all(root, exchange, "south")
    with pytest.raises(RepliesMissing) as second:
        run_over_files(root, exchange, wait=False)
    assert {site: list(map(str, named)) for site, named in second.value.missing.items()} == {
        "south": [str(path) for path in (exchange / "south" / "requests").iterdir()]
    }
    outcome = run_over_files(root, exchange, wait=False, without={"south"})
    assert outcome.lost == ("south",)
    assert files(exchange) == []
    assert spent(root)["south"] == 0
    with pytest.raises(InvalidParameter, match="no such site"):
        run_over_files(root, exchange, without={"sputh"})


def test_a_server_that_stopped_reads_what_is_there_and_asks_nothing_twice(tmp_path, salts):
    """Exact answers are not in the transcript: their files are read again, and no site is bothered."""
    _, root, exchange = world(tmp_path, "trusted", "auto")
    carries = 0

    def carry() -> None:
        nonlocal carries
        carries += 1
        before = files(exchange)
        with pytest.raises(RepliesMissing):
            run_over_files(root, exchange, wait=False)
        assert files(exchange) == before
        answer_all(root, exchange)
        assert len(files(exchange)) == 2 * 3 * carries

    by_hand(root, exchange, carry)
    assert product(root / "runs" / RUN) == expected(tmp_path, "trusted", "auto")


def test_a_site_that_failed_is_not_waited_for_again_while_others_are(tmp_path, salts):
    _, root, exchange = world(tmp_path)
    (root / "sites" / "south" / "rows.csv").unlink()
    with pytest.raises(RepliesMissing):
        run_over_files(root, exchange, wait=False)
    answer_all(root, exchange, "east")
    with pytest.raises(RepliesMissing) as missing:
        run_over_files(root, exchange, wait=False)
    assert set(missing.value.missing) == {"east"}
    answer_all(root, exchange)
    assert run_over_files(root, exchange, wait=False).lost == ("south",)


def test_a_refusal_that_is_brought_back_is_not_believed_once_the_question_is_asked_again(tmp_path, salts):
    _, root, exchange = world(tmp_path, site_budget=Budget(0.1, 1e-6))
    with pytest.raises(RepliesMissing):
        run_over_files(root, exchange, wait=False)
    answer_all(root, exchange)
    old = shutil.copytree(exchange, tmp_path / "old")
    with pytest.raises(BudgetExceeded, match="north has too little budget left") as error:
        run_over_files(root, exchange, wait=False)
    assert files(exchange) == []  # though the error still holds what it broke off
    assert error.value.__traceback__ is not None
    for site in TABLES:
        file = root / "sites" / site / "site.toml"
        file.write_text(file.read_text().replace("epsilon = 0.1", "epsilon = 2.0"))

    def carry() -> None:
        shutil.copytree(old, exchange, dirs_exist_ok=True)
        answer_all(root, exchange)

    shutil.copytree(old, exchange, dirs_exist_ok=True)  # with the old requests, too
    assert by_hand(root, exchange, carry) == 1
    assert product(root / "runs" / RUN) == expected(tmp_path, "local", "oneshot")


def test_another_version_at_a_site_refuses(tmp_path, salts, monkeypatch):
    _, root, exchange = world(tmp_path)
    monkeypatch.setattr(fedsynth, "__version__", "0.0.1")
    with pytest.raises(RepliesMissing):
        run_over_files(root, exchange, wait=False)
    monkeypatch.undo()
    seeded_salts(monkeypatch)
    said: Texts = []
    answerer(root, "north", exchange, said).answer_once()
    assert "refused" in said[0]
    assert "upgrade both together" in list(accounts(root)["north"].export())[-1]
    assert by_hand(root, exchange, lambda: answer_all(root, exchange)) == 1  # asked anew by the version of today


def test_a_run_that_is_complete_is_tidied_up_and_not_run_again(tmp_path, salts):
    _, root, exchange = world(tmp_path)
    with pytest.raises(RepliesMissing):
        run_over_files(root, exchange, wait=False)
    answer_all(root, exchange)
    kept = shutil.copytree(exchange, tmp_path / "kept")
    run_over_files(root, exchange)
    shutil.copytree(kept, exchange, dirs_exist_ok=True)  # as if the server had been killed before it removed them
    (exchange / "north" / "requests" / "reminder.txt").write_text("call Anna")
    with pytest.raises(FedsynthError, match="complete"):
        run_over_files(root, exchange)
    assert files(exchange) == ["north/requests/reminder.txt"]


def test_every_site_needs_a_key_by_which_its_files_are_known(tmp_path):
    job, root, exchange = world(tmp_path)
    peers = dict(of(job).peers)
    for wrong, match in (({"north": peers["north"]}, "lacks south, east"), ({**peers, "east": "ab"}, "east must be")):
        changed = msgspec.structs.replace(
            Job.from_toml((root / "job.toml").read_text()), deployment=of(job, peers=wrong)
        )
        (root / "job.toml").write_text(changed.to_toml())
        with pytest.raises(FedsynthError, match=match):
            run_over_files(root, exchange)
    with pytest.raises(FedsynthError, match="is not a folder"):
        run_over_files(root, tmp_path / "not-mounted")


def test_a_deadline_may_be_days(tmp_path, salts):
    _, root, exchange = world(tmp_path, deadline=30 * 24 * 3600.0)
    assert of(Job.load(root / "job.toml")).deadline == 2592000
    assert by_hand(root, exchange, lambda: answer_all(root, exchange)) == 1


# ---------------------------------------------------------------------------------------------------------------------
# What may lie in the server's folder


@dataclass
class Scene:
    """A request to south that waits in an exchange, and where its reply belongs."""

    root: Path
    exchange: Path
    message: Message
    name: MessageName

    @property
    def place(self) -> Path:
        """Where the reply belongs."""
        return self.exchange / "south" / "replies" / self.name.reply

    def signed(self) -> bytes:
        """Return what the site answers."""
        return answer(load_site_config(self.root / "sites" / "south"), [self.message.data]).replies[0]

    def said(
        self, code: Code = "refused", *body: bytes, site: str = "south", by: str = "south", **change: str
    ) -> bytes:
        """Return a reply to the message that a site signs and that is all right but for what is changed."""
        asked = ReplyHead(self.message.digest, self.message.request.digest)._replace(**change)
        return signed(Keys(_secret(SEED, by)).seed, site, asked, code, *body)


@pytest.fixture
def scene(tmp_path: Path, salts: None) -> Scene:
    """Return a request that waits."""
    _, root, exchange = world(tmp_path)
    message = question("south")
    found = Scene(root, exchange, message, asked(exchange, message))
    found.place.parent.mkdir()
    return found


def linked(scene: Scene) -> None:
    away = scene.exchange.parent / "away"
    away.write_bytes(scene.signed())
    scene.place.symlink_to(away)


def replies_linked(scene: Scene) -> None:
    away = scene.exchange.parent / "away"
    away.mkdir()
    scene.place.parent.rmdir()
    scene.place.parent.symlink_to(away)
    (away / scene.name.reply).write_bytes(scene.signed())


def sparse(scene: Scene) -> None:
    with scene.place.open("wb") as file:
        file.write(scene.signed()[:64])
        file.truncate(2**40)


def unreadable(scene: Scene) -> None:
    scene.place.write_bytes(b"x")
    scene.place.chmod(0)


HOSTILE: dict[str, Callable[[Scene], Any]] = {
    "nothing": lambda scene: None,
    "empty": lambda scene: scene.place.touch(),
    "half": lambda scene: scene.place.write_bytes(scene.signed()[:-1]),
    "padded": lambda scene: scene.place.write_bytes(scene.signed() + b"\0"),
    "zeros": lambda scene: scene.place.write_bytes(bytes(len(scene.signed()))),
    "garbage": lambda scene: scene.place.write_bytes(random.Random(0).randbytes(5000)),
    "signed by another site": lambda scene: scene.place.write_bytes(scene.said(by="north")),
    "of another site": lambda scene: scene.place.write_bytes(scene.said(site="north")),
    "to another message": lambda scene: scene.place.write_bytes(scene.said(message="1" * 64)),
    "to another request": lambda scene: scene.place.write_bytes(scene.said(request="1" * 64)),
    "to no message": lambda scene: scene.place.write_bytes(scene.said(message=NO_MESSAGE)),
    "the request itself": lambda scene: shutil.copy(
        scene.exchange / "south" / "requests" / scene.name.request, scene.place
    ),
    "a link": linked,
    "a linked folder": replies_linked,
    "a pipe": lambda scene: os.mkfifo(scene.place),
    "a folder": lambda scene: scene.place.mkdir(),
    "huge": sparse,
    "under another name": lambda scene: scene.place.with_name(f"{scene.name} (copy).reply").write_bytes(scene.signed()),
    "unreadable": unreadable,
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_what_is_no_reply_is_not_believed_and_the_site_is_lost(scene, fault):
    HOSTILE[fault](scene)
    began = time.monotonic()
    (reply,) = transport(scene.exchange).exchange([scene.message])
    assert (reply.site, reply.code, reply.seen) == ("south", "lost", AuditPosition())
    assert 0.3 <= time.monotonic() - began < 60  # whatever lies there, no look at it lasts
    assert not (scene.exchange / "south" / "requests" / scene.name.request).exists()  # answered no more


@pytest.mark.parametrize("code", ["answered", "failed"])
def test_nonsense_that_a_site_signed_is_a_lost_reply(scene, code):
    scene.place.write_bytes(scene.said(code, b"garbage"))
    (reply,) = transport(scene.exchange, 60).exchange([scene.message])
    assert (reply.code, reply.seen) == ("lost", AuditPosition())


@pytest.mark.parametrize("part", PARTS)
def test_b08_a_reply_that_a_carrier_rewrites_is_waited_for_and_not_remembered(tmp_path, salts, part):
    """Whatever byte is changed, the server remembers nothing of it; with the site's own file the run goes on."""
    _, root, exchange = world(tmp_path)
    with pytest.raises(RepliesMissing):
        run_over_files(root, exchange, wait=False)
    answer_all(root, exchange)
    (place,) = (exchange / "east" / "replies").iterdir()
    whole = place.read_bytes()
    place.write_bytes(rewritten(whole, part))
    with pytest.raises(RepliesMissing, match="is not a valid reply") as missing:
        run_over_files(root, exchange, wait=False)
    assert set(missing.value.missing) == {"east"}
    assert set(json.loads((root / "state" / "seen.json").read_text())["seen"]) == {"north", "south"}
    place.write_bytes(whole)
    run_over_files(root, exchange, wait=False)
    assert product(root / "runs" / RUN) == expected(tmp_path, "local", "oneshot")
    assert spent(root) == pytest.approx(dict.fromkeys(TABLES, BUDGET.rho))


@pytest.mark.parametrize("fault", ["nothing", "half", "zeros", "garbage", "signed by another site", "padded"])
def test_a_reply_that_comes_to_be_whole_is_taken(scene, fault, monkeypatch):
    HOSTILE[fault](scene)
    whole = scene.signed()
    times = (scene.place.stat() if scene.place.exists() else scene.root.stat()).st_mtime_ns

    def carried(seconds: float) -> None:
        scene.place.write_bytes(whole)
        os.utime(scene.place, ns=(times, times))  # as carriers may do
        monkeypatch.setattr(files_folder, "AGAIN", 0.0)
        monkeypatch.setattr(time, "sleep", lambda seconds: None)

    monkeypatch.setattr(time, "sleep", carried)
    (reply,) = transport(scene.exchange, 60).exchange([scene.message])
    assert reply.code == "answered"


def test_a_reply_that_comes_too_late_is_not_taken_and_a_later_attempt_is(scene):
    (reply,) = transport(scene.exchange, 0.0).exchange([scene.message])
    assert reply.code == "lost"
    scene.message = question("south")
    again = asked(scene.exchange, scene.message)
    assert again != scene.name
    assert again.without_attempt == scene.name.without_attempt
    answer_all(scene.root, scene.exchange)
    (reply,) = transport(scene.exchange, 60).exchange([scene.message])
    assert reply.code == "answered"


def test_a_request_of_somebody_else_does_not_stand_for_the_servers_own(scene, monkeypatch):
    """By another coordinator or version, for another site, of another message or name, cut off, or out of reach."""
    home = scene.exchange / "south" / "requests"
    (home / scene.name.request).unlink()
    stranger = Keys(bytes(32))
    for message in (question("south", coordinator=stranger), question("north"), question("south", 1)):
        name = replace(scene.name, attempt=message.attempt.hex())
        (home / name.request).write_bytes(message.data)
    with monkeypatch.context() as older:
        older.setattr(fedsynth, "__version__", "0.0.1")
        message = question("south")
    (home / replace(scene.name, attempt=message.attempt.hex()).request).write_bytes(message.data)
    message = question("south")
    (home / replace(scene.name, attempt=message.attempt.hex()).request).write_bytes(message.data[:-1])
    (home / replace(scene.name, attempt="2" * 16).request).write_bytes(question("south").data)
    (home / replace(scene.name, attempt="3" * 16).request).symlink_to("/etc/passwd")
    (home / replace(scene.name, attempt="4" * 16).request).mkdir()
    name = asked(scene.exchange, scene.message)
    assert name == scene.name
    assert asked(scene.exchange, scene.message) == name


def test_replies_keep_their_order_and_a_carrier_that_comes_late_is_waited_for(tmp_path, salts, monkeypatch):
    _, root, exchange = world(tmp_path)
    messages = [question(site, step) for step in range(3) for site in ("south", "north")]
    away = exchange.rename(tmp_path / "away")
    with pytest.raises(FedsynthError, match="is not a folder"):
        list(transport(exchange).exchange(messages))
    away.rename(exchange)
    blocked = exchange / "south"
    blocked.write_text("not a folder")
    looks = 0

    def sleep(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            blocked.unlink()
        if looks > 5:
            answer_all(root, exchange)

    monkeypatch.setattr(time, "sleep", sleep)
    replies = list(transport(exchange, 60).exchange(messages))
    assert [(one.site, one.digest) for one in replies] == [(one.site, one.request.digest) for one in messages]
    assert {reply.code for reply in replies} == {"answered"}
    assert list(transport(exchange).exchange([])) == []


def test_without_waiting_a_folder_that_cannot_be_written_is_an_error(tmp_path, salts):
    _, root, exchange = world(tmp_path)
    (exchange / "south").write_text("not a folder")
    with pytest.raises(FedsynthError, match="the request to south cannot be written"):
        run_over_files(root, exchange, wait=False)


def test_too_few_sites_end_the_run_which_resumes(tmp_path, salts):
    _, root, exchange = world(tmp_path, deadline=0.2, min_sites=2)
    with pytest.raises(SiteLost, match="resumes"):
        run_over_files(root, exchange)
    assert by_hand(root, exchange, lambda: answer_all(root, exchange)) == 1
    assert product(root / "runs" / RUN) == expected(tmp_path, "local", "oneshot")


# ---------------------------------------------------------------------------------------------------------------------
# What may lie in a site's folder


def test_files_that_are_no_requests_are_left_unanswered_and_do_no_harm(tmp_path, salts):
    _, root, exchange = world(tmp_path)
    home = exchange / "north" / "requests"
    first = asked(exchange, question("north", 0))
    data = (home / first.request).read_bytes()
    south = asked(exchange, question("south", 1))
    other = replace(first, attempt="1" * 16)
    foreign = {
        f"{first} (conflicted copy).request": data,
        f"../{first}.request": data,
        ".request": data,
        "notes.txt": b"call Anna",
        f".{other.request}.partial": data[:50],
        other.request: data,  # a copy under another name
        south.request: (exchange / "south" / "requests" / south.request).read_bytes(),
        replace(first, step=7).request: data[:-1],
        replace(first, step=8).request: data[:40] + bytes(len(data) - 40),
        replace(first, step=9).request: b"",
        replace(first, step=10).request: question("north", 10, Keys(bytes(32))).data,
    }
    for name, content in foreign.items():
        (home / name).write_bytes(content)
    os.mkfifo(home / replace(first, step=11).request)
    (home / replace(first, step=12).request).symlink_to(home / first.request)
    (home / replace(first, step=13).request).mkdir()
    with (home / replace(first, step=14).request).open("wb") as file:
        file.truncate(2**40)
    said: Texts = []
    one = answerer(root, "north", exchange, said)
    assert one.answer_once() == 1
    assert os.listdir(exchange / "north" / "replies") == [first.reply]
    assert sum("answered" in text and "unanswered" not in text for text in said) == 1
    assert sum("left unanswered" in text for text in said) == 10
    told = len(said)
    assert one.answer_once() == 0
    assert len(said) == told  # each is complained of once
    assert len(list(accounts(root)["north"].export())) == 1  # and nothing of it reached the account


def test_a_site_writes_nowhere_but_into_its_own_replies(tmp_path, salts):
    _, root, exchange = world(tmp_path)
    asked(exchange, question("north"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    replies = exchange / "north" / "replies"
    replies.symlink_to(elsewhere)
    said: Texts = []
    assert answerer(root, "north", exchange, said).answer_once() == 0
    assert "left unanswered" in said[0]
    assert list(elsewhere.iterdir()) == []
    assert spent(root)["north"] == 0
    replies.unlink()
    assert answerer(root, "north", exchange).answer_once() == 1
    assert spent(root)["north"] == pytest.approx(1e-4)


def test_a_folder_in_a_replys_place_keeps_no_other_reply_back(tmp_path, salts):
    _, root, exchange = world(tmp_path)
    names = [asked(exchange, question("north", step)) for step in range(3)]
    replies = exchange / "north" / "replies"
    (replies / names[0].reply).mkdir(parents=True)
    with pytest.raises(FedsynthError, match="cannot be written"):
        answerer(root, "north", exchange).answer_once()
    assert [(replies / name.reply).is_file() for name in names] == [False, True, True]


def test_a_reply_is_written_again_where_it_is_missing_damaged_or_another_ones(tmp_path, salts, monkeypatch):
    monkeypatch.setattr(files_folder, "AGAIN", 0.0)
    _, root, exchange = world(tmp_path)
    name, other = (asked(exchange, question("north", step)) for step in range(2))
    one = answerer(root, "north", exchange)
    assert one.answer_once() == 2
    place = exchange / "north" / "replies" / name.reply
    kept = place.read_bytes()

    def replaced(make: Callable[[Path], None]) -> None:
        place.unlink()
        make(place)

    changes: list[Callable[[], Any]] = [
        place.unlink,
        lambda: place.write_bytes(kept[:-1]),
        lambda: place.write_bytes(b"\0" * len(kept)),
        lambda: shutil.copy(place.with_name(other.reply), place),
        lambda: place.write_bytes(signed(bytes(32), "north", open_reply(kept, "north", None)[0], "refused")),
        lambda: replaced(os.mkfifo),
        lambda: replaced(lambda path: path.symlink_to("/etc/passwd")),
    ]
    for change in changes:
        change()
        assert one.answer_once() == 1
        assert place.read_bytes() == kept
        assert one.answer_once() == 0
        assert answerer(root, "north", exchange).answer_once() == 0  # another process sees that it is answered
    assert spent(root)["north"] == pytest.approx(2e-4)


def test_a_site_answers_the_coordinator_that_it_pinned_and_nobody_else(tmp_path, salts):
    _, root, exchange = world(tmp_path)
    asked(exchange, question("north", coordinator=Keys(bytes(32))))
    said: Texts = []
    assert answerer(root, "north", exchange, said).answer_once() == 0
    assert "not signed by the coordinator" in said[0]
    assert not list(accounts(root)["north"].export())


def test_a_server_of_another_version_is_refused_with_what_to_do(tmp_path, salts, monkeypatch):
    _, root, exchange = world(tmp_path)
    with monkeypatch.context() as older:
        older.setattr(fedsynth, "__version__", "0.0.1")
        name = asked(exchange, question("north"))
    assert answerer(root, "north", exchange).answer_once() == 1
    assert code_of((exchange / "north" / "replies" / name.reply).read_bytes()) == "refused"
    (row,) = accounts(root)["north"].export()
    assert "the server '0.0.1'; upgrade both together" in row
    assert spent(root)["north"] == 0


def test_a_site_without_its_account_says_so_and_makes_no_new_one(tmp_path, salts):
    _, root, exchange = world(tmp_path)
    asked(exchange, question("north"))
    account = load_site_config(root / "sites" / "north").account
    account.unlink()
    with pytest.raises(FedsynthError, match="is missing; restore it"):
        answerer(root, "north", exchange).answer_once()
    assert not account.exists()
    assert len(files(exchange / "north")) == 1  # nothing but the request


def test_replies_leave_at_multiples_of_answer_every(tmp_path, salts, monkeypatch):
    _, root, exchange = world(tmp_path, answer_every=0.4)
    due = noted_waits(monkeypatch, files_site)
    for step in range(3):
        asked(exchange, question("north", step, trust="local" if step else "nobody"))
    began = time.monotonic()
    assert answerer(root, "north", exchange).answer_once() == 3
    assert time.monotonic() - began >= due[0]
    assert answerer(root, "north", exchange).answer_once() == 0
    assert len(due) == 1  # once for all three, and not for nothing
    assert whole(due[0], 0.4)


def test_many_requests_are_answered_in_batches_in_their_order(tmp_path, salts, monkeypatch):
    monkeypatch.setattr(batches, "LARGEST", 1)
    _, root, exchange = world(tmp_path)
    for step in (11, 2, 3):
        asked(exchange, question("north", step))
    said: Texts = []
    assert answerer(root, "north", exchange, said).answer_once() == 3
    assert [text.partition(", turn")[0] for text in said] == [f"run {RUN}, step {step}" for step in (2, 3, 11)]


def test_an_answerer_outlives_a_folder_that_goes_away(tmp_path, salts, monkeypatch):
    _, root, exchange = world(tmp_path)
    asked(exchange, question("north"))
    one = FileAnswerer(root / "sites" / "north", exchange, print, poll=0.0)
    away = exchange.rename(tmp_path / "away")
    looks = 0

    def look(timeout: float) -> bool:
        nonlocal looks
        looks += 1
        if looks == 3:
            away.rename(exchange)
        if looks == 6:
            one.stop()
        return True

    monkeypatch.setattr(one._stopped, "wait", look)
    one.serve()
    assert len(files(exchange / "north" / "replies")) == 1


# ---------------------------------------------------------------------------------------------------------------------
# Files


def test_a_file_is_whole_signed_and_canonical_or_it_is_none():
    message = question("north")
    request = message.data
    asked = ReplyHead(message.digest, message.request.digest)
    reply = signed(Keys(_secret(SEED, "north")).seed, "north", asked, "answered", b"answer")
    assert MessageName.received(read_request(request, "north", COORDINATOR.public)) == MessageName.of(message)
    assert bytes(open_reply(reply, "north", KEYS["north"])[1]).endswith(b"answer")
    readers: Mapping[bytes, tuple[Callable[[bytes], Any], type[WireError]]] = {
        request: (lambda data: read_request(data, "north", COORDINATOR.public), WireError),
        reply: (lambda data: open_reply(data, "north", KEYS["north"]), ForeignReply),
    }
    for data, (read, error) in readers.items():
        for at in range(len(data)):
            with pytest.raises(error):
                read(data[:at])
            with pytest.raises(WireError):
                read(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(error):
            read(data + b"\0")
    with pytest.raises(WireError, match="not signed"):
        read_request(request, "north", Keys(bytes(32)).public)
    for site, key in (("north", KEYS["south"]), ("south", KEYS["north"])):
        with pytest.raises(ForeignReply, match="not signed"):
            open_reply(reply, site, key)


@pytest.mark.parametrize(
    "file",
    [
        "",
        "request",
        ".request",
        "../x.request",
        "x.000001.0.{d}.{a}.reply.request",
        "x.1.0.{d}.{a}.request",
        "x.0000000001.0.{d}.{a}.request",
        "x.000001.00.{d}.{a}.request",
        "x.000001.0.{d}.{a}.Request",
        "x.000001.0.{d}.{a}.request ",
        "x.000001.0.{d}.{a}.request\n",
        "x.٠٠٠٠٠١.0.{d}.{a}.request",
        "../x.000001.0.{d}.{a}.request",
        ".x.000001.0.{d}.{a}.request",
    ],
)
def test_only_names_of_ours_are_names(file):
    parts = {"d": "0" * 32, "a": "0" * 16}
    assert named("x.000001.0.{d}.{a}.request".format(**parts)) == MessageName("x", 1, 0, "0" * 32, "0" * 16)
    assert named(file.format(**parts)) is None


def test_what_a_crash_left_half_written_is_replaced_and_removed(tmp_path):
    folder = ExchangeFolder(tmp_path, "north", "requests")
    name = MessageName.of(question("north"))
    folder.write(name.request, b"one")
    partial = folder.path / f".{name.request}.partial"
    away = tmp_path / "away"
    away.write_text("untouched")
    partial.symlink_to(away)
    folder.write(name.request, b"two")
    assert folder.read(name.request, 10) == b"two"
    assert folder.read(name.request, 2) is None
    assert away.read_text() == "untouched"
    partial.write_text("half")
    folder.remove_run("another")
    assert len(files(folder.path)) == 2
    folder.remove_run(RUN)
    assert files(folder.path) == []


# ---------------------------------------------------------------------------------------------------------------------
# The command, and real processes

FEDSYNTH = [sys.executable, "-c", "from fedsynth.cli.app import main; main()"]
SERVER = "import sys; from pathlib import Path; from fedsynth.deploy.files import server; server.POLL = 0.1; "
SERVER += "from tests.deploy.flower_world import run_over_files; run_over_files(*map(Path, sys.argv[1:]))"


def test_the_command_answers_once_and_says_so(tmp_path):
    _, root, exchange = world(tmp_path)
    command = ["site", "serve", str(root / "sites" / "north"), "--exchange", str(exchange), "--once"]
    run = invoke(command)
    assert (run.exit_code, run.output.count("nothing to answer")) == (0, 1)
    asked(exchange, question("north"))
    asked(exchange, question("north", 1, trust="nobody"))
    run = invoke(command)
    assert run.exit_code == 0
    assert f"run {RUN}, step 0, turn 0: answered\n" in run.output
    assert f"run {RUN}, step 1, turn 0: refused; this site's log and fedsynth account have the reason\n" in run.output
    assert f"Answered 2 requests. Carry {exchange / 'north' / 'replies'} back" in run.output.replace("\n", " ")
    done = subprocess.run([*FEDSYNTH, *command, "--json"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "")
    assert "nothing to answer" in json.loads(done.stderr.splitlines()[-1])["message"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--once"], "--once needs --exchange"),
        (["--exchange", "EXCHANGE", "--superlink", "x:1"], "Leave it out with --exchange"),
        (["--exchange", "nowhere", "--once"], "is not a folder"),
    ],
)
def test_what_does_not_go_together_is_said(tmp_path, options, says):
    _, root, exchange = world(tmp_path)
    options = [str(exchange) if option == "EXCHANGE" else option for option in options]
    run = invoke(["site", "serve", str(root / "sites" / "north"), *options])
    assert run.exit_code
    assert says in run.output


@dataclass
class Processes:
    """Sites, and perhaps a server, as processes that are ended by their id."""

    root: Path
    exchange: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """Start a site, or the server."""
        command = [sys.executable, "-c", SERVER, str(self.root), str(self.exchange)]
        if name != "server":
            command = [*FEDSYNTH, "site", "serve", str(self.root / "sites" / name), "--exchange", str(self.exchange)]
        with (self.root / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        """End a process as a power cut would."""
        process = self.running.pop(name)
        process.kill()
        process.wait(60)

    def log(self, name: str) -> str:
        """Return what a process printed."""
        return (self.root / f"{name}.log").read_text()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Callable[[Path, Path], Processes]]:
    """Return what starts processes, all of which end with the test."""
    started: list[Processes] = []

    def start(root: Path, exchange: Path) -> Processes:
        started.append(Processes(root, exchange))
        for site in TABLES:
            started[-1].start(site)
        return started[-1]

    yield start
    for one in started:
        for name in list(one.running):
            one.kill(name)


@pytest.mark.parametrize(
    ("trust", "method"), [("trusted", "oneshot"), ("local", "auto"), ("secure", "oneshot"), ("secure", "auto")]
)
def test_sites_as_processes_give_the_bits_of_the_same_run_in_one(tmp_path, processes, trust, method):
    _, root, exchange = world(tmp_path, trust, method, deadline=300.0)
    keep_salts(root)
    sites = processes(root, exchange)
    outcome = run_over_files(root, exchange)
    assert outcome.lost == ()
    assert product(root / "runs" / RUN) == recomputed(root, tmp_path / "again")
    assert files(exchange) == []
    assert max(spent(root).values()) <= BUDGET.rho * (1 + 1e-9)
    for site, process in sites.running.items():
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, sites.log(site)
        assert "answered" in sites.log(site)


@pytest.mark.parametrize(
    ("seed", "trust"),
    [pytest.param(at, trust, marks=[pytest.mark.slow] if at else []) for at, trust in enumerate(TRUSTS)],
)
def test_server_and_sites_that_are_killed_at_any_moment_go_on_and_are_charged_once(tmp_path, processes, seed, trust):
    _, root, exchange = world(tmp_path, trust, "auto", deadline=300.0)
    keep_salts(root)
    all_of_them = processes(root, exchange)
    draw = random.Random(seed)
    all_of_them.start("server")
    kills = 0
    while kills < 12 and not (root / "runs" / RUN).exists():
        time.sleep(draw.uniform(0.0, 2.5))
        victim = draw.choice(["server", *TABLES])
        all_of_them.kill(victim)
        all_of_them.start(victim)
        kills += 1

    wait_for("the end of the run", lambda: all_of_them.running["server"].poll() is not None, 300)
    assert kills
    assert (root / "runs" / RUN).exists(), all_of_them.log("server")
    assert files(exchange) == []
    assert product(root / "runs" / RUN) == recomputed(root, tmp_path / "again")
    assert lost(root) == []
    per_site = json.loads((root / "runs" / RUN / "ledger.json").read_text())["per_site"]
    assert spent(root) == pytest.approx({site: cost["rho"] for site, cost in per_site.items()})
