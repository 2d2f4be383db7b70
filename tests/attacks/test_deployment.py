"""A real SuperLink with real nodes: what stays on the server's disk, and who may start code at the sites."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from tests.attacks.world import SCHEMA, table
from tests.tables import contingency
from tests.transports.flower_world import RUN, FlowerWorld, lay_out

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from fedsynth.errors import FedsynthError
from fedsynth.privacy.cost import Budget
from fedsynth.rows import Table

SITES = ("north", "south")

pytestmark = pytest.mark.deployment

APP = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "stranger"
version = "1.0.0"
description = "Reads what it finds"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "stranger"

[tool.flwr.app.components]
serverapp = "stranger:server"
clientapp = "stranger:client"

[tool.flwr.app.config]
loot = ""
"""
CODE = """
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
client = ClientApp()
server = ServerApp()

@client.query()
def read(message, context):
    rows = Path(str(context.node_config["site-config"])).parent / "rows.csv"
    return Message(RecordDict({"loot": ConfigRecord({"row": rows.read_text().splitlines()[1]})}), reply_to=message)

@server.main()
def main(grid, context):
    asked = [Message(RecordDict(), node, "query") for node in grid.get_node_ids()]
    found = [reply.content.config_records["loot"]["row"] for reply in grid.send_and_receive(asked, timeout=60)]
    Path(context.run_config["loot"]).write_text("\\n".join(found))
"""


@pytest.fixture(scope="module")
def tables() -> Mapping[str, Table]:
    """Return the rows of two sites."""
    return {name: table(60, seed) for seed, name in enumerate(SITES)}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlowerWorld]:
    """Give two connected nodes."""
    world = FlowerWorld(tmp_path_factory.mktemp("flower"), SITES)
    try:
        world.start()
        yield world
    finally:
        world.stop()


@pytest.fixture(scope="module")
def root(world: FlowerWorld, tables: Mapping[str, Table], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a federation that has run under a trusted server."""
    root = tmp_path_factory.mktemp("federation") / "root"
    lay_out(root, tables, SCHEMA, "trusted", "oneshot", budget=Budget(1.0, 1e-6))
    world.use(root)
    assert world.finish(world.submit_job(root)) == "finished:completed"
    assert (root / "runs" / RUN).is_dir()
    return root


def test_a14_no_exact_table_stays_on_the_servers_disk(world, root, tables):
    """What a site entrusts to a trusted server is in that server's memory only, and its files are its owner's alone."""
    files = sorted(world.folder.glob("state.db*"))
    assert files
    held = b"".join(path.read_bytes() for path in files)
    found = [
        name
        for name, of in tables.items()
        if np.concatenate([contingency(of, [0]), contingency(of, [1])]).tobytes() in held
    ]
    readable = [path.name for path in files if path.stat().st_mode & 0o077]
    assert (found, readable) == ([], [])


def test_a15_a_stranger_cannot_start_code_at_the_sites(world, root, tmp_path, monkeypatch):
    """Code runs at a site only for a coordinator that the site knows, whoever reaches the server's ports."""
    app, loot = tmp_path / "app", tmp_path / "loot"
    app.mkdir()
    (app / "pyproject.toml").write_text(APP)
    (app / "stranger.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    assert "Successfully built" in world.flwr("build", "--app", str(app))  # it is not refused for its form
    try:
        answer = json.loads(
            world.flwr("run", str(app), "federation", "--format", "json", "--run-config", f'loot="{loot}"')
        )
    except FedsynthError:
        return
    if not answer["success"]:
        return
    world.finish(str(answer["run-id"]), 120)
    taken = loot.read_text().splitlines() if loot.exists() else []
    rows = {name: (root / "sites" / name / "rows.csv").read_text().splitlines()[1] for name in SITES}
    assert [name for name, row in rows.items() if row in taken] == []
