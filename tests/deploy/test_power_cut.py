"""A run goes on by itself after whatever ended its processes: real ones, killed by their ids, with nobody there."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.contract.world import SCHEMA, random_table
from tests.deploy.flower_world import RUN, FlowerWorld, children, connected_world, lay_out, product, spent
from tests.deploy.recomputing import keep_salts, recomputed

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from fedsynth.deploy.flower.control import TABLES
from fedsynth.deploy.flower.local import wait_for
from fedsynth.deploy.run_events import EventReader as Reader
from fedsynth.deploy.run_events import events_file
from fedsynth.deploy.status import PAUSES, RunView, attempts, last_attempt
from fedsynth.privacy.cost import Budget

BUDGET = Budget(1.0, 1e-6)
SITES = ("north", "south", "east")
pytestmark = pytest.mark.deployment


world = connected_world(SITES)


def started(world: FlowerWorld, root: Path, trust: str = "secure", **options: Any) -> None:
    """Lay out a federation whose run takes several rounds of a second and more, and start it."""
    tables = {name: random_table(100 + 50 * at, at) for at, name in enumerate(SITES)}
    trust_options = {"min_honest": 2} if trust == "secure" else {}
    options = {"budget": BUDGET, "trust_options": trust_options, "answer_every": 1.0, **options}
    lay_out(root, tables, SCHEMA, trust, "oneshot", min_sites=3, **options)
    keep_salts(root)
    world.submit_job(root)


def view(root: Path) -> RunView:
    found = last_attempt(events_file(root, RUN))
    return found or RunView("")


def is_asked(root: Path, number: int) -> bool:
    """Whether the current attempt has asked the question of a round, or of a later one."""
    asked = view(root).asked
    return asked is not None and asked.round >= number


def messages(world: FlowerWorld) -> int:
    with closing(sqlite3.connect(world.database)) as link:
        return sum(int(link.execute(f"SELECT count(*) FROM {table}").fetchone()[0]) for table in TABLES)


def status(world: FlowerWorld, root: Path) -> tuple[str, dict[str, Any]]:
    """Return what ``deploy status`` prints, as text and as JSON."""
    return given(world, "status", root), json.loads(given(world, "status", root, "--json"))["runs"][-1]


def made(root: Path) -> dict[str, RunView]:
    """Return the attempts at the run, by their ids."""
    return attempts(Reader(events_file(root, RUN)).new())


def is_made(root: Path, number: int) -> bool:
    """Whether the attempt of this number has asked something."""
    return len(made(root)) > number and view(root).asked is not None


def given(world: FlowerWorld, command: str, root: Path, *options: str) -> str:
    """Give a command of the coordinator, and return what it prints."""
    process = world.deploy(command, root, *options)
    shown, complaints = process.communicate(timeout=120)
    assert process.returncode == 0, complaints
    return shown


def power_cut(world: FlowerWorld, *names: str) -> None:
    """End processes at once, and start them again."""
    world.kill(*names)
    for name in names:
        kind, _, site = name.partition("-")
        if kind == "superlink":
            world.start_superlink()
        elif kind == "server":
            world.start_server()
        else:
            world.start_node(site)


def test_a_run_completes_by_itself_though_the_server_loses_its_power_in_rounds_1_2_and_3(tmp_path, world):
    root = tmp_path / "federation"
    started(world, root)
    for number in (1, 2, 3):
        wait_for(f"round {number}", partial(is_asked, root, number), 180, pause=0.02)
        power_cut(world, "superlink", "server")
    wait_for("the end of the run", lambda: view(root).ended, 240)
    assert len(made(root)) == 4
    assert product(root / "runs" / RUN) == recomputed(root, tmp_path / "again")
    assert len({round(rho, 12) for rho in spent(root).values()}) == 1
    assert max(spent(root).values()) <= BUDGET.rho * (1 + 1e-9)
    assert world.log("server").count("was interrupted and is taken up: try ") == 3
    assert "Traceback" not in world.log("server")
    said, facts = status(world, root)
    assert facts["state"] == "complete"
    assert "takes it up" not in said
    wait_for("the end of its messages", lambda: not messages(world), 120)


def test_after_a_power_cut_of_server_and_sites_the_run_completes(tmp_path, world):
    root = tmp_path / "federation"
    started(world, root)
    wait_for("round 2", lambda: is_asked(root, 2), 180, pause=0.02)
    power_cut(world, "superlink", "server", *(f"node-{name}" for name in SITES))
    wait_for("the end of the run", lambda: view(root).ended, 240)
    assert product(root / "runs" / RUN) == recomputed(root, tmp_path / "again")


@pytest.mark.chaos
def test_after_a_standstill_of_the_server_the_run_completes(tmp_path, world):
    """Flower gives up an attempt that it has not heard of for a minute."""
    root = tmp_path / "federation"
    started(world, root, deadline=300.0)
    wait_for("round 2", lambda: is_asked(root, 2), 180, pause=0.02)
    pids = [world.processes["server"].pid, *children(world.processes["server"].pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(90)
    for pid in reversed(pids):
        os.kill(pid, signal.SIGCONT)
    wait_for("the end of the run", lambda: (root / "runs" / RUN).is_dir(), 300)
    assert product(root / "runs" / RUN) == recomputed(root, tmp_path / "again")


def test_a_run_that_a_person_stops_or_that_cannot_be_completed_is_not_taken_up(tmp_path, world):
    root = tmp_path / "federation"
    started(world, root)
    wait_for("round 1", lambda: is_asked(root, 1), 180, pause=0.02)
    world.kill("server")  # the attempt with it
    given(world, "stop", root)  # the run is interrupted, and would be taken up
    said, facts = status(world, root)
    assert (facts["state"], facts["end"]["error"]) == ("ended", "Stopped")
    assert "takes it up" not in said
    world.start_server()
    time.sleep(8)
    assert len(made(root)) == 1
    again = world.deploy_run(root)
    shown, complaints = again.communicate(timeout=240)
    assert again.returncode == 0, (shown, complaints)

    poor = tmp_path / "poor"
    before = world.log("server")
    started(world, poor, "local", site_budget=Budget(0.1, 1e-6))
    wait_for("the end of the attempt", lambda: view(poor).ended, 120)
    time.sleep(8)
    assert len(made(poor)) == 1
    assert "taken up" not in world.log("server").removeprefix(before)


@pytest.mark.chaos
def test_a_run_whose_process_dies_again_and_again_is_taken_up_with_pauses_until_it_is_stopped(tmp_path, world):
    """Each try is killed before it finishes a round."""
    root = tmp_path / "federation"
    started(world, root, "local", answer_every=60.0)
    for number in range(3):
        wait_for(f"attempt {number}", partial(is_made, root, number), 120)
        said, facts = status(world, root)
        assert facts["tries"] == {"made": number, "of": len(PAUSES), "goes_on": False}
        assert (f"taken it up: try {number} of {len(PAUSES)}" in said) == (number > 0)
        for pid in children(world.processes["server"].pid):
            os.kill(pid, signal.SIGKILL)
        wait_for("the end of the attempt", lambda: not Reader(events_file(root, RUN)).alive(), 30)
    said, facts = status(world, root)
    assert facts["tries"] == {"made": 2, "of": len(PAUSES), "goes_on": True}
    assert f"takes it up by itself, try 3 of {len(PAUSES)}; `fedsynth deploy stop` stops it" in said
    given(world, "stop", root)
    began = view(root).last
    wait_for("the next try, if there is one", lambda: time.time() > began + PAUSES[2] + 10, 120)
    assert len(made(root)) == 3
