"""What an operator does with a real SuperLink: a run from start to end, what it leaves, sites that go and return."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest
from tests.attacks.world import SCHEMA, table
from tests.deploy.flower_world import RUN, FlowerWorld, children, connected_world, lay_out, spent

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from fedsynth.deploy.flower.control import TABLES, purge, unfinished
from fedsynth.deploy.flower.local import wait_for
from fedsynth.errors import FedsynthError
from fedsynth.federation.transport import recorded_answer, records
from fedsynth.privacy.cost import Budget
from fedsynth.rows import Table

SITES = ("north", "south")
BUDGET = Budget(1.0, 1e-6)

pytestmark = [
    pytest.mark.deployment,
    pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificates"),
]


@pytest.fixture(scope="module")
def tables() -> Mapping[str, Table]:
    """The rows of two sites."""
    return {name: table(60, seed) for seed, name in enumerate(SITES)}


world = connected_world(SITES)


def messages(root: Path) -> dict[str, list[bytes]]:
    """Return the requests and the replies of a run, from its transcript."""
    found: dict[str, list[bytes]] = {"question": [], "answer": []}
    for kind, data in records(root / "runs" / RUN / "transcript"):
        if kind in found:
            found[kind].append(data if kind == "question" else recorded_answer(data)[2])
    return found


def held(world: FlowerWorld, root: Path) -> set[str]:
    """Return the kinds of messages of which a part lies in any file of Flower's, programs and logs included."""
    files = [path for path in world.folder.rglob("*") if path.is_file() and not path.is_symlink()]
    content = [path.read_bytes() for path in files]
    assert any(path.name == "state.db" for path in files)
    return {
        kind
        for kind, known in messages(root).items()
        for data in known
        for at in range(0, len(data) - 48, 24)
        if len(set(part := data[at : at + 48])) > 12 and any(part in one for one in content)
    }


def events(root: Path) -> list[dict[str, object]]:
    file = root / "state" / RUN / "events.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def happened(root: Path, event: str) -> bool:
    return any(one["event"] == event for one in events(root))


def test_a_run_is_seen_to_its_end_and_purged_while_the_server_and_its_registrations_stay(tmp_path, world, tables):
    root = tmp_path / "first"
    lay_out(root, tables, SCHEMA, "local", "oneshot", budget=BUDGET)
    world.use(root)
    assert world.finish(world.submit_job(root)) == "finished:completed"  # by Flower's command: nothing is purged
    assert held(world, root) == {"question", "answer"}
    done = world.deploy("stop", root, "--purge", "--database", str(world.folder / "state.db"))
    said = done.communicate(timeout=60)
    assert done.returncode == 0, said
    assert held(world, root) == set()
    assert world.online() == len(SITES)

    root = tmp_path / "second"
    lay_out(root, tables, SCHEMA, "local", "oneshot", budget=BUDGET)
    world.use(root)
    shown, complaints = world.deploy_run(root).communicate(timeout=300)
    assert complaints == ""
    for part in (
        "2 sites; a round waits for them",
        "round 1",  # "of about 1" if the dry run was done first
        "north answered after",
        "the run is complete",
    ):
        assert part in shown
    assert f"the table is in {world.root / 'runs' / RUN}" in shown
    assert "-differentially private" in shown
    assert held(world, root) == set()
    assert world.online() == len(SITES)


def test_an_expected_end_is_one_sentence_and_no_traceback_stays_in_the_log(tmp_path, world, tables):
    root = tmp_path / "federation"
    lay_out(root, tables, SCHEMA, "local", "oneshot", budget=BUDGET, site_budget=Budget(0.5, 1e-6))
    world.use(root)
    process = world.deploy_run(root, "--json")
    shown, complaints = process.communicate(timeout=300)
    last = [json.loads(line) for line in shown.splitlines()][-1]
    assert (process.returncode, last["event"], last["exit_code"]) == (4, "ended", 4)
    assert complaints == ""
    assert "has too little budget" in last["message"]
    assert world.control.status(str(last["attempt"]))[0] == "finished:failed"
    assert last["message"] in world.log("server")
    assert "Traceback" not in world.log("server")


@pytest.mark.chaos
def test_a_site_that_pauses_longer_than_flowers_heartbeat_answers_in_the_same_exchange(tmp_path, world, tables):
    root = tmp_path / "federation"
    lay_out(root, tables, SCHEMA, "local", "oneshot", budget=BUDGET, deadline=300.0)
    world.use(root)
    node = world.processes["node-south"].pid
    os.killpg(node, signal.SIGSTOP)
    try:
        running = world.deploy_run(root)
        time.sleep(90)
    finally:
        os.killpg(node, signal.SIGCONT)
    shown, _ = running.communicate(timeout=200)
    assert running.returncode == 0, shown
    assert "south is away" in shown
    assert shown.index("south is away") < shown.index("south answered after")
    assert "missed" not in shown
    charged = spent(root)
    assert charged["north"] == pytest.approx(charged["south"])


@pytest.mark.chaos
def test_a_site_that_is_restarted_within_the_deadline_answers_in_the_same_exchange(tmp_path, world, tables):
    root = tmp_path / "federation"
    lay_out(root, tables, SCHEMA, "local", "oneshot", budget=BUDGET, deadline=300.0, answer_every=8.0)
    world.use(root)
    running = world.deploy_run(root)
    wait_for("the question", lambda: happened(root, "asked"), 120)
    world.kill("node-south")
    world.start_node("south")
    shown, _ = running.communicate(timeout=300)
    assert running.returncode == 0, shown
    assert "south answered after" in shown
    assert "missed" not in shown
    charged = spent(root)
    assert charged["north"] == pytest.approx(charged["south"])


@pytest.mark.chaos
def test_a_run_that_is_stopped_says_so_is_not_purged_from_under_itself_and_resumes(tmp_path, world, tables):
    root = tmp_path / "federation"
    lay_out(root, tables, SCHEMA, "local", "oneshot", budget=BUDGET, deadline=300.0, answer_every=20.0)
    world.use(root)
    running = world.deploy_run(root)
    wait_for("the question", lambda: happened(root, "asked"), 120)
    with pytest.raises(FedsynthError, match="a run is going on"):
        purge(world.folder / "state.db")
    stopped = world.deploy("stop", root, "--connection", "federation")
    said = stopped.communicate(timeout=60)
    assert stopped.returncode == 0, said
    _, complaints = running.communicate(timeout=200)
    assert running.returncode == 130, complaints
    assert "stopped by the operator" in complaints
    again = world.deploy_run(root)
    shown, complaints = again.communicate(timeout=300)
    assert again.returncode == 0, complaints
    assert "the run is complete" in shown
    charged = spent(root)
    assert charged["north"] == pytest.approx(charged["south"])


@pytest.mark.chaos
def test_a_run_that_is_taken_up_after_its_process_was_killed_leaves_no_message(tmp_path, world, tables):
    root = tmp_path / "federation"
    lay_out(root, tables, SCHEMA, "local", "oneshot", budget=BUDGET, deadline=300.0, answer_every=5.0)
    world.use(root)
    running = world.deploy_run(root)
    wait_for("the question", lambda: happened(root, "asked"), 120)
    for process in children(world.processes["server"].pid):
        os.kill(process, signal.SIGKILL)
    _, complaints = running.communicate(timeout=60)
    assert running.returncode == 8
    assert "process at the server has disappeared" in complaints
    wait_for("the end of the run", lambda: happened(root, "ended"), 120)
    assert events(root)[-1]["exit_code"] == 0
    wait_for("the end of its messages", lambda: not held(world, root), 120)


@pytest.mark.chaos
def test_the_view_may_end_before_the_run_does(tmp_path, world, tables):
    root = tmp_path / "federation"
    lay_out(root, tables, SCHEMA, "local", "oneshot", budget=BUDGET, deadline=300.0, answer_every=10.0)
    world.use(root)
    running = world.deploy_run(root)
    wait_for("the question", lambda: happened(root, "asked"), 120)
    running.send_signal(signal.SIGINT)
    _, complaints = running.communicate(timeout=60)
    assert running.returncode == 130, complaints
    assert "the run goes on at the server if it was taken on" in complaints
    wait_for("the end of the run", lambda: happened(root, "ended"), 120)
    assert events(root)[-1]["exit_code"] == 0


def test_a_database_that_is_none_or_not_there_is_said_to_be(tmp_path):
    with pytest.raises(FedsynthError, match="--database"):
        purge(tmp_path / "superlink.db")
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE mine (value TEXT)")
    with pytest.raises(FedsynthError, match="--database"):
        unfinished(tmp_path / "other.db")
    with pytest.raises(FedsynthError, match="could not be purged"):
        purge(tmp_path / "other.db")


def test_every_table_of_messages_is_one_of_this_version_of_flower(world):
    with closing(sqlite3.connect(world.folder / "state.db")) as link:
        known = {name for (name,) in link.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        bytes_in = {
            name
            for name in known
            for _, column, kind, *_ in link.execute(f"PRAGMA table_info({name})")
            if kind in ("BLOB", "BYTEA", "LARGEBINARY") and column not in ("public_key",)
        }
    assert set(TABLES) <= known
    # Beside messages: the app, contexts of runs (which are empty), and requests to start runs by a clock.
    assert bytes_in - set(TABLES) <= {"fab", "series_context", "compacted_contexts", "automation"}
