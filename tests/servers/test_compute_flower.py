"""Sites that deal to three compute servers over Flower: SuperLink, SuperNodes and servers as real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.deploy.flower_world import RUN, SEED, FlowerWorld, lay_out, spent
from tests.servers.compute_world import agreement, set_up, small_tables

from fedsynth.keys import Keys

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
pytest.importorskip("mpyc", reason="the extra 'mpc' is not installed")

from fedsynth.encoding import encode
from fedsynth.federation.simulate import _secret
from fedsynth.privacy.cost import Budget
from fedsynth.servers.host import pin

BUDGET = Budget(1.0, 1e-6)

pytestmark = pytest.mark.deployment


def test_sites_deal_over_flower(tmp_path: Path) -> None:
    frames, schema = small_tables()
    names = dict(zip(frames, ("north", "south", "east"), strict=True))
    tables = {names[old]: encode(schema, frame) for old, frame in frames.items()}
    root = tmp_path / "federation"
    lay_out(root, tables, schema, "three-servers", "aim", budget=BUDGET, options={"rounds": 2}, deadline=300.0)
    identities = {name: Keys(_secret(SEED, name)).identity for name in tables}
    agreed = agreement(Keys(_secret(SEED, "coordinator")), schema, identities, BUDGET, questions=5)
    processes = set_up(tmp_path, [bytes([number]) * 32 for number in range(1, 4)], agreed)
    for folder in (root, *(root / "sites").iterdir()):
        pin(folder, processes.cards)
    world = FlowerWorld(tmp_path, tuple(tables))
    try:
        processes.start(0, 1, 2)
        world.start()
        world.use(root)
        assert world.finish(world.submit_job(root)) == "finished:completed"
    finally:
        world.stop()
        processes.stop()
    assert [len(processes.charged(number)) for number in range(3)] == [5] * 3
    assert all(found == pytest.approx(BUDGET.rho) for found in spent(root).values())
    statement = json.loads((root / "runs" / RUN / "ledger.json").read_text())["statement"]
    assert "no two collude" in str(statement)
