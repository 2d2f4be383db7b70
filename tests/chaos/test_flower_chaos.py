"""Whole runs over real Flower processes under faults: each completes, pays once, and leaves no site to be restarted.

A seed determines method, trust and faults; the matrix has one fault at a time. `tests/chaos/deployed.py` says what goes
wrong. FEDSYNTH_CHAOS_REPORT names a file that gets a line for each run.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from tests.chaos.world import faults_of_accounts
from tests.deploy.flower_world import RUN, product
from tests.deploy.recomputing import drop_triggers, recomputed

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from tests.chaos.deployed import DEADLINE, KNOWN, MATRIX, DeployedWorld, cell_of, note_replies, plan_of

SEEDS = 20
SITES = ("site-0", "site-1", "site-2")
PATIENT = 120.0  # s of a round, longer than each fault of the matrix
RESUMED = ("kill", "pause", "clock", "reboot")  # faults at a site that one `deploy run` outlasts

pytestmark = [
    pytest.mark.deployment,
    pytest.mark.chaos,
    pytest.mark.skipif(not shutil.which("cc"), reason="a C compiler makes what disturbs the clock"),
]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """Return the processes of the last run, which serve the next one as well, unless it failed."""
    held: list[DeployedWorld] = []

    def hold():
        if not held:
            held.append(DeployedWorld(tmp_path_factory.mktemp("flower"), SITES))
        return held

    yield hold
    for world in held:
        world.close()


def checked(name, worlds, plan, tmp_path, deadline=DEADLINE):
    """Run a plan, check what holds whatever happens, and return world and outcome."""
    held = worlds()
    world = held.pop()
    outcome = world.begin(tmp_path / "world", plan, deadline)
    try:
        world.run()
    except BaseException:
        world.close()
        raise
    else:
        held.append(world)
    finally:
        if report := os.environ.get("FEDSYNTH_CHAOS_REPORT"):
            line = {
                "name": name,
                "setup": str(plan.setup),
                "codes": outcome.codes,
                "said": outcome.said,
                "hit": outcome.hit,
                "loss": plan.loss,
                "completed": outcome.completed,
                "lost": outcome.lost if outcome.completed else [],
                "ended": outcome.ended,
                "seconds": round(outcome.seconds),
            }
            with Path(report).open("a") as file:
                file.write(json.dumps(line) + "\n")
    note_replies(outcome)
    assert outcome.completed, (outcome.hit, outcome.codes, outcome.said)
    assert outcome.ended == []  # nobody has to start a site's process again
    assert "Traceback" not in "\n".join(world.printed("server"))  # that would be a fault of fedsynth: docs/deploy.md
    drop_triggers(outcome.root)
    assert faults_of_accounts(outcome) == []
    assert sorted(outcome.exposed) == []
    assert outcome.left == 0
    for code, said in zip(outcome.codes, outcome.said, strict=True):
        assert code in (-9, *KNOWN), said
        assert "Traceback" not in said
        assert code <= 0 or len([line for line in said.splitlines() if line.startswith("fedsynth: ")]) == 1, said
    if not outcome.lost:
        assert product(outcome.root / "runs" / RUN) == recomputed(outcome.root, tmp_path / "again")
    return world, outcome


@pytest.mark.parametrize("method", ["oneshot", "auto"])
@pytest.mark.parametrize(("kind", "target"), MATRIX)
def test_one_fault_ends_nothing_for_good(kind, target, method, worlds, tmp_path):
    plan = cell_of(kind, target, method)
    world, outcome = checked(f"{kind} {target} {method}", worlds, plan, tmp_path, PATIENT)
    assert outcome.hit
    full = kind == "fill" and target.startswith("node-")  # a site that cannot store an answer is passed over
    assert outcome.lost in ([], [target.removeprefix("node-")] if full else [])
    if kind == "part" or (target.startswith("node-") and kind in RESUMED):
        assert outcome.codes == [0], outcome.said
    if kind in ("clock", "reboot"):
        refusals = [line for line in world.printed(target) if "the clock of this host" in line]
        # An old connection is answered, with a refusal; for a new one, the server's certificate is of another time.
        assert 1 <= len(refusals) <= 2


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_run_over_flower_under_faults_ends_and_pays_once(seed, worlds, tmp_path):
    checked(seed, worlds, plan_of(seed), tmp_path)
