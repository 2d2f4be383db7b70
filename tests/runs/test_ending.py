"""The end of a run is told to the sites: who may tell it, what it does, and what happens while nobody hears it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.attacks.world import COORDINATOR, ask_deployed, deployed, frame, question
from tests.contract.world import SCHEMA, random_table
from tests.deploy.flower_world import RUN, SEED, accounts, lay_out, of, run_over_files

from fedsynth.deploy.files.server import RepliesMissing
from fedsynth.deploy.files.site import FileAnswerer
from fedsynth.deploy.host.config import SiteConfig, load_site_config
from fedsynth.deploy.host.state import answer, open_account, site_secret
from fedsynth.errors import InvalidParameter
from fedsynth.federation.ending import acknowledges, is_end, read_end, write_acknowledgement, write_end
from fedsynth.federation.simulate import _secret
from fedsynth.federation.wire import WireError
from fedsynth.keys import Keys
from fedsynth.privacy.cost import Budget
from fedsynth.runs.ending import unacknowledged
from fedsynth.runs.job import Job

TABLES = {name: random_table(rows, at) for at, (name, rows) in enumerate({"north": 60, "south": 30}.items())}
OTHER = Keys(b"o" * 32)


# ---------------------------------------------------------------------------------------------------------------------
# At a site


@pytest.fixture
def config(tmp_path: Path) -> SiteConfig:
    """Return a deployed site that has answered a question of the run named ``run``."""
    config = deployed(tmp_path / "north", frame())
    assert ask_deployed(config, question()).code == "answered"
    return config


def tell(config: SiteConfig, data: bytes) -> bytes:
    (reply,) = answer(config, [data]).replies
    return reply


def test_a_run_that_has_ended_is_closed_and_acknowledged(config, caplog):
    end = write_end(COORDINATOR, "run")
    assert list(config.copies.glob("*.rows"))
    reply = tell(config, end)
    key = Keys(site_secret(config)).identity
    assert acknowledges(reply, end, "north", key)
    account = open_account(config)
    assert account.open_runs() == []
    assert list(config.copies.glob("*.rows")) == []
    last = json.loads(list(account.export())[-1])
    assert (last["outcome"], last["run"], last["questions"], last["by"]) == ("closed", "run", 1, "coordinator")
    assert ask_deployed(config, question()).code == "refused"
    assert ask_deployed(config, question(step=1)).code == "refused"
    assert "run run is closed at this site; start another run" in caplog.text
    assert account.spent().rho == pytest.approx(1e-4)
    assert account.verify().wrong == ""


def test_an_end_among_questions_is_answered_in_its_place(config):
    from tests.attacks.world import sealed

    end, other = write_end(COORDINATOR, "run"), question(run="other")
    first, second, third = answer(config, [sealed(other), end, sealed(other)]).replies
    assert first == third
    assert acknowledges(second, end, "north", Keys(site_secret(config)).identity)


def _cut(end: bytes) -> bytes:
    return end[:-1]


def _flipped(end: bytes) -> bytes:
    return end[:40] + bytes([end[40] ^ 1]) + end[41:]


def _renamed(end: bytes) -> bytes:
    return end.replace(b"other", b"run\0\0")


FORGED: dict[str, Callable[[], bytes]] = {
    "another coordinator": lambda: write_end(OTHER, "run"),
    "another coordinator in this one's name": lambda: write_end(OTHER, "run").replace(OTHER.public, COORDINATOR.public),
    "cut": lambda: _cut(write_end(COORDINATOR, "run")),
    "a flipped bit": lambda: _flipped(write_end(COORDINATOR, "run")),
    "another run": lambda: _renamed(write_end(COORDINATOR, "other")),
    "longer": lambda: write_end(COORDINATOR, "run") + bytes(5000),
    "a signature for a question": lambda: (
        write_end(COORDINATOR, "run")[:24]
        + COORDINATOR.sign("request", write_end(COORDINATOR, "run")[88:])
        + write_end(COORDINATOR, "run")[88:]
    ),
}


@pytest.mark.parametrize("how", FORGED)
def test_b09_an_end_that_the_coordinator_did_not_sign_changes_nothing(config, how):
    before = config.account.read_bytes()
    data = FORGED[how]()
    assert is_end(data)
    assert tell(config, data) == b""
    assert config.account.read_bytes() == before
    assert ask_deployed(config, question(step=1)).code == "answered"


def test_b09_an_end_that_is_told_again_or_of_an_unknown_run_leaves_no_trace(config):
    """Anybody who has seen one can tell it for ever; a coordinator can tell those of any number of runs."""
    end = write_end(COORDINATOR, "run")
    first = tell(config, end)
    before = config.account.read_bytes()
    for _ in range(3):
        assert tell(config, end) == first
    for number in range(20):
        unknown = write_end(COORDINATOR, f"unknown-{number}")
        assert acknowledges(tell(config, unknown), unknown, "north", Keys(site_secret(config)).identity)
    assert config.account.read_bytes() == before
    assert sorted(path.name for path in config.state.iterdir()) == ["account.sqlite", "rows", "table.fedsynth"]


def test_an_acknowledgement_is_of_one_end_by_one_site():
    end, seed, key = write_end(COORDINATOR, "run"), Keys(bytes(32)).seed, Keys(bytes(32)).identity
    said = write_acknowledgement(seed, "north", end)
    assert acknowledges(said, end, "north", key)
    assert not acknowledges(said, end, "south", key)
    assert not acknowledges(said, write_end(COORDINATOR, "other"), "north", key)
    assert not acknowledges(said, end, "north", Keys(bytes(range(32))).identity)
    assert not acknowledges(said[:-1], end, "north", key)
    assert not acknowledges(b"", end, "north", key)
    with pytest.raises(WireError):
        read_end(said, COORDINATOR.public)


# ---------------------------------------------------------------------------------------------------------------------
# Over files


def world(tmp_path: Path) -> tuple[Path, Path]:
    """Return the folder of a federation of two sites that can answer two runs, and an empty exchange."""
    root, exchange = tmp_path / "federation", tmp_path / "exchange"
    lay_out(root, TABLES, SCHEMA, "local", "oneshot", budget=Budget(1.0, 1e-6), site_budget=Budget(9.0, 1e-6))
    exchange.mkdir()
    return root, exchange


def serve(root: Path, exchange: Path, *names: str) -> list[str]:
    """Let sites look at their files once; return what they say."""
    said: list[str] = []
    for name in names or TABLES:
        FileAnswerer(root / "sites" / name, exchange, said.append).answer_once()
    return said


def complete(root: Path, exchange: Path, run: str = RUN) -> None:
    """Make a run, carrying the files once."""
    job = Job.load(root / "job.toml")
    (root / "job.toml").write_text(replace(job, schema="schema.toml", deployment=of(job, run=run)).to_toml())
    with pytest.raises(RepliesMissing):
        run_over_files(root, exchange, wait=False)
    serve(root, exchange)
    run_over_files(root, exchange, wait=False)


def files(exchange: Path) -> list[str]:
    return sorted(str(path.relative_to(exchange)) for path in exchange.rglob("*") if not path.is_dir())


def open_runs(root: Path) -> dict[str, list[str]]:
    return {name: [run for run, _ in account.open_runs()] for name, account in accounts(root).items()}


def test_over_files_the_end_waits_for_nobody_and_is_taken_when_a_site_looks(tmp_path):
    root, exchange = world(tmp_path)
    complete(root, exchange)  # the second call returned although no site had heard of it
    assert (root / "runs" / RUN / "synthetic.csv").is_file()
    assert unacknowledged(root) == {RUN: ("north", "south")}
    assert files(exchange) == [f"north/requests/{RUN}.end", f"south/requests/{RUN}.end"]
    assert open_runs(root) == {"north": [RUN], "south": [RUN]}
    assert serve(root, exchange, "north") == [f"run {RUN} has ended, and is closed here"]
    assert open_runs(root) == {"north": [], "south": [RUN]}
    assert serve(root, exchange, "north") == []  # once acknowledged, it is not looked at again

    complete(root, exchange, "second")  # the start of any run takes acknowledgements, and tells again
    assert unacknowledged(root) == {"second": ("north", "south")}
    serve(root, exchange)
    assert open_runs(root) == {"north": [], "south": []}
    complete(root, exchange, "third")
    assert unacknowledged(root) == {"third": ("north", "south")}
    assert files(exchange) == ["north/requests/third.end", "south/requests/third.end"]


def test_an_end_that_was_lost_is_told_again_and_damage_to_its_files_does_no_harm(tmp_path):
    root, exchange = world(tmp_path)
    complete(root, exchange)
    for file in files(exchange):
        (exchange / file).unlink()
    job = Job.load(root / "job.toml")
    (root / "job.toml").write_text(replace(job, schema="schema.toml", deployment=of(job, run="second")).to_toml())
    with pytest.raises(RepliesMissing):
        run_over_files(root, exchange, wait=False)
    end = exchange / "north" / "requests" / f"{RUN}.end"
    whole = end.read_bytes()
    end.write_bytes(whole[: len(whole) // 2])
    said = serve(root, exchange, "north")
    assert any("incomplete" in one for one in said)
    assert RUN in open_runs(root)["north"]
    end.write_bytes(whole)
    other = exchange / "north" / "requests" / "second.end"
    other.write_bytes(whole)  # under another run's name
    assert any("tells the end of another run" in one for one in serve(root, exchange, "north"))
    assert open_runs(root)["north"] == ["second"]
    (exchange / "north" / "replies" / f"{RUN}.ended").write_bytes(b"nonsense")
    other.unlink()
    end.unlink()
    serve(root, exchange, "south")
    run_over_files(root, exchange, wait=False)
    assert unacknowledged(root)[RUN] == ("north",)


def test_questions_that_are_carried_after_the_end_do_not_open_the_run_again(tmp_path):
    """A site that was away for the whole run gets its questions and their end together."""
    root, exchange = world(tmp_path)
    with pytest.raises(RepliesMissing):
        run_over_files(root, exchange, wait=False)
    shutil.copytree(exchange, tmp_path / "late")
    serve(root, exchange)
    run_over_files(root, exchange, wait=False)
    shutil.copytree(exchange, tmp_path / "late", dirs_exist_ok=True)
    shutil.rmtree(root / "sites" / "north" / "state")
    fresh(root / "sites" / "north")
    assert serve(root, tmp_path / "late", "north") == [f"run {RUN} has ended, and is closed here"]
    account = accounts(root)["north"]
    assert (account.head()[0], account.open_runs()) == (0, [])
    with pytest.raises(InvalidParameter):
        account.close(RUN)


def fresh(home: Path) -> None:
    """Give a site an empty account, as if it had been away."""
    from fedsynth.deploy.host.state import SECRET
    from fedsynth.privacy.book import Book

    (home / "state").mkdir(mode=0o700)
    Book(load_site_config(home).account).first("", SECRET, _secret(SEED, home.name))


def test_a_run_that_stops_tells_no_end(tmp_path):
    root, exchange = world(tmp_path)
    with pytest.raises(RepliesMissing):
        run_over_files(root, exchange, wait=False)
    assert unacknowledged(root) == {}
    assert not [file for file in files(exchange) if file.endswith(".end")]


def test_the_end_is_told_only_of_a_run_whose_folder_is_complete(tmp_path, monkeypatch):
    """The server dies before its result is in place: the sites keep their answers, and the run resumes."""
    from fedsynth.runs.folder import RunFolder

    root, exchange = world(tmp_path)
    with pytest.raises(RepliesMissing):
        run_over_files(root, exchange, wait=False)
    serve(root, exchange)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(RunFolder, "write", full)
        with pytest.raises(OSError, match="No space"):
            run_over_files(root, exchange, wait=False)
    assert unacknowledged(root) == {}
    assert not [file for file in files(exchange) if file.endswith(".end")]
    run_over_files(root, exchange, wait=False)
    assert unacknowledged(root) == {RUN: ("north", "south")}
