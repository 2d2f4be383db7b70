"""What federations of thirty and of a hundred sites cost Flower's server (SuperLink), idle and in a run."""

from __future__ import annotations

import pytest
from tests.public_data import public_data

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from tests.deploy.many_sites import ManySites, adult

pytestmark = [pytest.mark.deployment, pytest.mark.chaos]


@pytest.mark.parametrize(("sites", "most"), [(30, 60.0), (100, 200.0)])
def test_the_superlink_carries_many_sites(tmp_path, sites, most):
    """Thirty took 42 % of a core while idle, and 95 CPU seconds a run."""
    table = adult(public_data("adult_discrete.parquet").parent)
    world = ManySites(tmp_path, [f"site-{at:03d}" for at in range(sites)])
    try:
        world.start()
        run = world.run(tmp_path / "federation", table, "secure")
        idle = world.idle(60.0)
    finally:
        world.stop()
    print(f"{sites} sites: run {run}, idle {idle}")
    assert run.cpu < most
    assert idle.requests < 10 * idle.seconds
    assert idle.cpu < 0.15 * idle.seconds
