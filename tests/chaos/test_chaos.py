"""Whole runs of real processes under random faults: each completes or ends with one sentence, and pays once.

A seed determines method, trust, sites and faults; `tests/chaos/world.py` says what goes wrong. Four of the 80 seeds run
with the other tests, the rest by ``make chaos``. FEDSYNTH_CHAOS_REPORT names a file that gets a line for each run.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.chaos.world import World, exact_counts_in_files, faults_of_accounts, plan_of, same_result

SEEDS = 80
GATE = (0, 4, 8, 13)  # oneshot trusted, auto local, fedprivsyn secure, auto local


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the runs without faults, each made once."""
    return tmp_path_factory.mktemp("undisturbed")


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=[] if seed in GATE else [pytest.mark.chaos, pytest.mark.deployment])
        for seed in range(SEEDS)
    ],
)
def test_a_run_under_faults_ends_and_pays_once(seed, tmp_path, baseline, record_property):
    plan = plan_of(seed)
    world = World(tmp_path, plan)
    try:
        outcome = world.run()
        told = [
            *([] if 1 not in outcome.codes else [f"a traceback: {outcome.said}"]),
            *faults_of_accounts(outcome),
            *exact_counts_in_files(outcome),
        ]
    finally:
        world.close()
    if report := os.environ.get("FEDSYNTH_CHAOS_REPORT"):
        line = {
            "seed": seed,
            "setup": str(plan.setup),
            "codes": outcome.codes,
            "said": outcome.said,
            "hit": [*outcome.hit, *(["disk"] if plan.disk else []), *(["clock"] if plan.clocks else [])],
            "loss": plan.loss,
            "failed": outcome.notes.read_text().count('"failed"') if outcome.notes.exists() else 0,
            "completed": outcome.completed,
            "lost": outcome.lost if outcome.completed else [],
        }
        with Path(report).open("a") as file:
            file.write(json.dumps(line) + "\n")
    assert told == []
    assert outcome.completed or outcome.codes[-1] in (7, 8), (outcome.codes, outcome.said)
    assert all("\n" not in said for said in outcome.said)
    if outcome.completed and plan.setup.seeded and not outcome.lost:
        assert same_result(outcome, baseline)
