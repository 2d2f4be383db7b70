"""Networks trained over a SuperLink and three SuperNodes: real processes, TLS, and weights beside the questions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deploy.flower_world import RUN, FlowerWorld, accounts, connected_world, lay_out, product
from tests.deploy.recomputing import keep_salts, recomputed

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
pytest.importorskip("torch", reason="the extra 'deep' is not installed")

from fedsynth.data.partition import Quantity, split
from fedsynth.datasets import rand_hie, rand_hie_schema
from fedsynth.encoding import encode
from fedsynth.models.synthesizer import load
from fedsynth.privacy.cost import Budget
from fedsynth.rows import Table

BUDGET = Budget(2.0, 1e-6)
SITES = ("north", "south", "east")
SMALL: dict[str, Any] = {"width": 16, "depth": 1, "tokens": 4}
SUMS = {"latent": 4, "modes": 2, "steps": 2, "rate": 0.5, **SMALL}
AVERAGES = {"local": True, "rounds": 1, "updates": 2, "rate": 0.5, "times": 20, "sampling": 2, **SMALL}

pytestmark = [pytest.mark.deployment, pytest.mark.chaos]  # two minutes: with `make chaos`, not in the gate


@pytest.fixture(scope="module")
def tables() -> Mapping[str, Table]:
    """The demo's table in three parts of unequal sizes."""
    table = encode(rand_hie_schema(), rand_hie())
    return dict(zip(SITES, split(table, len(SITES), Quantity(2.0), np.random.default_rng(0)), strict=True))


world = connected_world(SITES)


@pytest.mark.parametrize(
    ("method", "options", "verb", "kind"),
    [("fedvae", SUMS, "sum", "gradient-sum"), ("fedtabdiff", AVERAGES, "average", "local-training")],
    ids=["gradient sums", "averages"],
)
def test_a_network_trained_by_deployed_sites_has_the_bits_of_one_trained_in_one_process(
    tmp_path: Path,
    world: FlowerWorld,
    tables: Mapping[str, Table],
    method: str,
    options: dict[str, Any],
    verb: str,
    kind: str,
) -> None:
    root, schema = tmp_path / "federation", next(iter(tables.values())).schema
    lay_out(
        root,
        tables,
        schema,
        "secure",
        method,
        budget=BUDGET,
        options=options,
        trust_options={"min_honest": 2},
        verbs=["sum", "each", "average"],
    )
    keep_salts(root)
    world.use(root)
    assert world.finish(world.submit_job(root)) == "finished:completed"
    assert product(root / "runs" / RUN) == recomputed(root, tmp_path / "again")
    weights = load(root / "runs" / RUN / "model.fedsynth").model.to_arrays()[1]["weights"]
    assert np.isfinite(weights).all()
    assert weights.any()
    asked = (root / "state" / RUN / "events.jsonl").read_text()
    assert f'"verb":"{verb}","kind":"{kind}"' in asked
    for account in accounts(root).values():
        assert 0.99 < BUDGET.share_of(account.spent()) <= 1 + 1e-9
