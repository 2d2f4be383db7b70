"""A run that ends while its message is on its way to a site or back: the next run completes, and no site is restarted.

One site runs in this process, so that the run can be ended at a chosen moment; the others are processes.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.attacks.world import SCHEMA, table
from tests.deploy.flower_world import RUN, FlowerWorld, accounts, children, connected_world, lay_out, spent

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

import httpx
from flwr.supernode.fleet_http_client import FleetHttpClient

from fedsynth.deploy.flower.local import wait_for
from fedsynth.deploy.flower.node import FlowerNode
from fedsynth.deploy.host.config import load_site_config
from fedsynth.deploy.run_events import events_file
from fedsynth.deploy.status import last_attempt
from fedsynth.privacy.cost import Budget
from fedsynth.rows import Table

SITES = ("north", "south", "east")
BUDGET = Budget(1.0, 1e-6)
AFTERWARDS = 30.0  # s after the end of the old run, beyond what a run takes, within which the next one is complete
POINTS = {  # the call before which the run ends, and which call of that kind it is
    "before the pull": ("PullMessages", 0),
    "before the first object": ("PullObject", 0),
    "between objects": ("PullObject", 2),
    "before the message is confirmed": ("ConfirmMessageReceived", 0),
    "before the reply is pushed": ("PushMessages", 0),
    "between objects of the reply": ("PushObject", 1),
}

pytestmark = pytest.mark.deployment


@pytest.fixture(scope="module")
def tables() -> Mapping[str, Table]:
    """Return the rows of three sites."""
    return {name: table(60, seed) for seed, name in enumerate(SITES)}


world = connected_world(SITES)


@contextlib.contextmanager
def in_this_process(world: FlowerWorld, name: str) -> Iterator[FlowerNode]:
    """Let this process answer for a site, in place of the site's own."""
    world.processes[f"node-{name}"].terminate()
    world.processes[f"node-{name}"].wait(60)
    home = world.sites[name]
    node = FlowerNode(home, replace(load_site_config(home), superlink=f"127.0.0.1:{world.port}"))
    thread = threading.Thread(target=node.serve)
    thread.start()
    try:
        wait_for("the site's return", lambda: world.online() == len(SITES), 60)
        yield node
    finally:
        node.stop()
        thread.join()
        world.kill(f"node-{name}")
        world.start_node(name)
        wait_for("the site's return", lambda: world.online() == len(SITES), 60)


def ending_before(point: str, end: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Call ``end`` before a call of the site in this process, once; return whether it has been called."""
    method, number = POINTS[point]
    original = getattr(FleetHttpClient, method)
    lock, seen, ended = threading.Lock(), iter(range(1 << 30)), threading.Event()

    def call(client: FleetHttpClient, request: Any) -> Any:
        with lock:
            if not ended.is_set() and next(seen) == number:
                ended.set()
                end()
        return original(client, request)

    monkeypatch.setattr(FleetHttpClient, method, call)
    return ended.is_set


def asked(root: Path) -> bool:
    """Return whether the run's first question has been sent."""
    view = last_attempt(events_file(root, RUN))
    return view is not None and view.asked is not None


def completed(process: subprocess.Popen[str], within: float) -> str:
    """Return what ``deploy run`` printed, once it has ended with a table."""
    shown, complaints = process.communicate(timeout=within)
    assert process.returncode == 0, (shown, complaints)
    return shown


def rarely(values: Sequence[str], always: Sequence[str]) -> list[Any]:
    """Return values of a parameter, of which only some are tested in the gate."""
    return [value if value in always else pytest.param(value, marks=pytest.mark.chaos) for value in values]


@pytest.mark.parametrize("site", rarely(SITES, ["north"]))
@pytest.mark.parametrize("point", rarely([*POINTS], ["between objects", "before the reply is pushed"]))
def test_a_run_that_ends_while_a_site_takes_its_message_keeps_no_site_from_the_next(
    tmp_path, world, tables, monkeypatch, site, point
):
    """Before, the site waited up to 83 minutes, or sent each reply one message late, until it was restarted."""
    root = tmp_path / "federation"
    lay_out(root, tables, SCHEMA, "secure", "oneshot", budget=BUDGET, deadline=300.0)
    world.use(root)
    with in_this_process(world, site):
        began: list[str] = []

        def end() -> None:
            if point == "before the pull":
                wait_for("the question", lambda: asked(root), 60)
            wait_for("the run's number", lambda: began, 60)  # a site may take the message before it is known here
            world.control.stop(began[0])

        reached = ending_before(point, end, monkeypatch) if point != "before the pull" else None
        began.append(world.submit_job(root))
        if reached is None:
            reached = ending_before(point, end, monkeypatch)
        status = world.control.status
        wait_for(f"the end of the run {point}", lambda: reached() and "finished" in status(began[0])[0], 90)
        before = time.monotonic()
        shown = completed(world.deploy_run(root), 120)
        seconds = time.monotonic() - before
    print(f"{point} at {site}: complete {seconds:.0f} s after the end of the run before")
    assert "missed" not in shown
    assert seconds < AFTERWARDS + 60  # its own 15 s, more on a busy machine: far from the deadline of 300 s
    assert {account.spent().rho for account in accounts(root).values()} == {max(spent(root).values())}
    assert max(spent(root).values()) <= BUDGET.rho * (1 + 1e-9)


def test_a_message_whose_delivery_is_cut_is_sent_again(tmp_path, world, tables, monkeypatch):
    """Before, the SuperLink had given it out, the site had not got it, and the run waited for its deadline."""
    root = tmp_path / "federation"
    lay_out(root, tables, SCHEMA, "secure", "oneshot", budget=BUDGET, deadline=600.0)
    world.use(root)
    original, cut = FleetHttpClient.PullMessages, threading.Event()

    def pull(client: FleetHttpClient, request: Any) -> Any:
        found = original(client, request)
        if found.messages_list and not cut.is_set():
            cut.set()
            raise httpx.ReadError("the connection was cut")
        return found

    with in_this_process(world, "north"):
        monkeypatch.setattr(FleetHttpClient, "PullMessages", pull)
        shown = completed(world.deploy_run(root), 240)
    assert cut.is_set()
    assert "missed" not in shown


def test_a_site_asks_seldom_while_nothing_is_due(tmp_path, world, tables, monkeypatch):
    """Without a run, and while it answers: it asked twice a second."""
    root = tmp_path / "federation"
    lay_out(root, tables, SCHEMA, "local", "oneshot", budget=BUDGET, deadline=300.0, answer_every=6.0)
    world.use(root)
    original, polls = FleetHttpClient.PullMessages, []

    def pull(client: FleetHttpClient, request: Any) -> Any:
        found = original(client, request)
        polls.append((time.monotonic(), bool(found.messages_list)))
        return found

    with in_this_process(world, "north") as node:
        monkeypatch.setattr(FleetHttpClient, "PullMessages", pull)
        node._last_activity -= 60.0  # as if no message had come for a minute
        time.sleep(1.0)
        polls.clear()
        time.sleep(6.0)
        idle = len(polls)
        completed(world.deploy_run(root), 240)
    assert idle <= 2
    taken = next(moment for moment, message in polls if message)
    assert len([moment for moment, _ in polls if taken < moment < taken + 6.0]) <= 2
    gaps = [after - before for (before, _), (after, _) in itertools.pairwise(polls) if taken + 7.0 < after]
    assert min(gaps) < 1.0  # once it has replied, it asks often


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(20))
def test_after_a_kill_of_the_servers_process_the_next_run_completes(tmp_path, world, tables, seed):
    rng = random.Random(seed)
    root = tmp_path / "federation"
    lay_out(root, tables, SCHEMA, rng.choice(["secure", "local"]), "oneshot", budget=BUDGET, deadline=300.0)
    world.use(root)
    running = world.deploy_run(root)
    made = world.processes["server"].pid
    wait_for("the run's process", lambda: children(made), 60, pause=0.05)
    time.sleep(rng.uniform(0.0, 6.0))
    for process in children(made):
        os.kill(process, signal.SIGKILL)
    shown, complaints = running.communicate(timeout=120)
    if running.returncode:  # 8: the process has disappeared
        assert running.returncode == 8, (shown, complaints)
        if not (root / "runs" / RUN).is_dir() and last_attempt(events_file(root, RUN)) is None:
            completed(world.deploy_run(root), 120)  # it had not begun, so that nobody knows of it
        elif "the run is complete" not in complaints:  # the kill came while its end was noticed
            assert "has disappeared" in complaints
    wait_for("the end of the run", lambda: (root / "runs" / RUN).is_dir(), 120)
    assert all(process.poll() is None for name, process in world.processes.items() if name.startswith("node-"))
    assert len({round(rho, 12) for rho in spent(root).values()}) == 1
    assert max(spent(root).values()) <= BUDGET.rho * (1 + 1e-9)


@pytest.mark.chaos
def test_a_site_that_answers_an_earlier_run_says_that_it_is_busy(tmp_path, world, tables):
    """The first run is stopped while its question is answered for a minute, and another one begins."""
    first, second = tmp_path / "first", tmp_path / "second"
    for root, every in ((first, 60.0), (second, 0.0)):
        lay_out(root, tables, SCHEMA, "local", "oneshot", budget=BUDGET, deadline=300.0, answer_every=every)
    run = world.submit_job(first)
    wait_for("the answers", lambda: all(one.spent().rho for one in accounts(first).values()), 60)
    world.control.stop(run)
    world.use(second)
    shown = completed(world.deploy_run(second), 240)
    assert "is busy" in shown, (shown, world.log("node-north")[-1500:])
    assert "is away" not in shown
    assert "missed" not in shown
