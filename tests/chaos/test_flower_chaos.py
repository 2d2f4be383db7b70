"""Whole runs over real Flower processes under random faults: each completes once all is mended, and pays once.

A seed determines method, trust and faults; `tests/chaos/deployed.py` says what goes wrong. FEDSYNTH_CHAOS_REPORT names
a file that gets a line for each run.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from tests.chaos.world import faults_of_accounts
from tests.transports.flower_world import RUN, product
from tests.transports.recomputing import drop_triggers, recomputed

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from tests.chaos.deployed import KNOWN, DeployedWorld, note_replies, plan_of

SEEDS = 20

pytestmark = [
    pytest.mark.deployment,
    pytest.mark.chaos,
    pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificates"),
]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_run_over_flower_under_faults_ends_and_pays_once(seed, tmp_path):
    plan = plan_of(seed)
    world = DeployedWorld(tmp_path / "world", plan)
    try:
        outcome = world.run()
    finally:
        world.close()
    note_replies(outcome)
    if report := os.environ.get("FEDSYNTH_CHAOS_REPORT"):
        line = {
            "seed": seed,
            "setup": str(plan.setup),
            "codes": outcome.codes,
            "said": outcome.said,
            "hit": [*outcome.hit, *(f"clock {name} {days}" for name, days in plan.clocks.items())],
            "loss": plan.loss,
            "completed": outcome.completed,
            "lost": outcome.lost if outcome.completed else [],
            "seconds": round(outcome.seconds),
        }
        with Path(report).open("a") as file:
            file.write(json.dumps(line) + "\n")
    drop_triggers(outcome.root)
    assert faults_of_accounts(outcome) == []
    assert sorted(outcome.exposed) == []
    assert outcome.left == 0
    for code, said in zip(outcome.codes, outcome.said, strict=True):
        assert code in (-9, *KNOWN), said
        assert "Traceback" not in said
        assert code <= 0 or len([line for line in said.splitlines() if line.startswith("fedsynth: ")]) == 1, said
    assert outcome.completed, (outcome.codes, outcome.said)
    if not outcome.lost:
        assert product(outcome.root / "runs" / RUN) == recomputed(outcome.root, tmp_path / "again")
