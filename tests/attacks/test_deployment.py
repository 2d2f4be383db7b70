"""A real SuperLink with real nodes: what stays on the server's disk, and who may start code at the sites."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.attacks.world import SCHEMA, table
from tests.deploy.flower_world import RUN, FlowerWorld, connected_world, lay_out, spent
from tests.world import contingency

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from fedsynth.privacy.cost import Budget
from fedsynth.rows import Table
from fedsynth.runs.state import COORDINATOR

SITES = ("north", "south")
OTHER = 65534  # another user, nobody
AS_OTHER: dict[str, Any] = {"user": OTHER, "group": OTHER, "extra_groups": ()}

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
job = ""
"""
CODE = """
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
client = ClientApp()
server = ServerApp()
LOOT = Path("@LOOT@")
(LOOT / "imported").touch()

@client.query()
def read(message, context):
    (LOOT / "site").write_text(Path("rows.csv").read_text())
    return Message(RecordDict({"loot": ConfigRecord({})}), reply_to=message)

@server.main()
def main(grid, context):
    (LOOT / "server").write_bytes(Path("@KEY@").read_bytes())
    asked = [Message(RecordDict(), node, "query") for node in grid.get_node_ids()]
    list(grid.send_and_receive(asked, timeout=60))
"""


@pytest.fixture(scope="module")
def tables() -> Mapping[str, Table]:
    """Return the rows of two sites."""
    return {name: table(60, seed) for seed, name in enumerate(SITES)}


world = connected_world(SITES)


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


def submitted(world: FlowerWorld, folder: Path, root: Path) -> tuple[str, Path]:
    """Submit a stranger's app, as any user of the server's host can; return Flower's id of the run, and its loot."""
    app, loot = folder / "app", folder / "loot"
    app.mkdir()
    loot.mkdir()
    (app / "pyproject.toml").write_text(APP)
    code = CODE.replace("@LOOT@", str(loot)).replace("@KEY@", str(root / COORDINATOR))
    (app / "stranger.py").write_text(code)
    return world.control.start(app, "--run-config", f'job="{folder}/job.toml"'), loot


def test_a15_a_stranger_cannot_start_code_at_the_sites_nor_read_the_coordinators_key(world, root, tmp_path):
    """Before, one line of curl on the server's host was enough for the key, and for every row without own answerers."""
    spent_before = spent(root)
    run, loot = submitted(world, tmp_path, root)
    assert world.finish(run, 120) == "finished:completed"  # as an attempt at a run that another one completed
    assert [path.name for path in loot.iterdir()] == []
    assert "is complete" in world.log("server")  # the job of the federation's own folder is what was tried
    assert spent(root) == spent_before


def test_a15_what_a_stranger_starts_is_the_federations_own_run(world, tables, tmp_path):
    root = tmp_path / "root"
    lay_out(root, tables, SCHEMA, "local", "oneshot", budget=Budget(1.0, 1e-6))
    world.use(root)
    run, loot = submitted(world, tmp_path, root)
    assert world.finish(run) == "finished:completed"
    assert [path.name for path in loot.iterdir()] == []
    assert (root / "runs" / RUN / "synthetic.csv").is_file()


def can_start_another() -> bool:
    """Return whether this Python can be started as another user: by root, and from folders that all may enter."""
    try:
        return os.geteuid() == 0 and not subprocess.run([sys.executable, "-c", ""], **AS_OTHER, check=False).returncode
    except PermissionError:
        return False


@pytest.mark.skipif(not can_start_another(), reason="this Python cannot be started as another user")
def test_a15_the_superlink_of_another_user_relays_and_reads_no_key(tables):
    """The two users of docs/deploy.md: the SuperLink's owns the folder server, fedsynth's is in its group."""
    with tempfile.TemporaryDirectory() as folder:  # pytest's own temporary folders are closed to other users
        place = Path(folder)
        place.chmod(0o711)
        world = FlowerOfTwoUsers(place, SITES)
        root = place / "federation"
        lay_out(root, tables, SCHEMA, "trusted", "oneshot", budget=Budget(1.0, 1e-6))
        world.use(root)
        root.chmod(0o711)
        try:
            world.start()
            assert {int(part) for part in status_of(world.processes["superlink"].pid, "Uid")} == {OTHER}
            reads = ["cat", str(root / COORDINATOR)]
            tried = subprocess.run(reads, **AS_OTHER, capture_output=True, text=True, check=False)
            assert "Permission denied" in tried.stderr
            process = world.deploy("run", root, "--database", str(world.database))
            shown, complaints = process.communicate(timeout=300)
            assert (complaints, "the run is complete" in shown) == ("", True)
            assert "messages have been deleted" in shown
            assert world.database.stat().st_uid == OTHER
        finally:
            world.stop()


class FlowerOfTwoUsers(FlowerWorld):
    """Processes of which the SuperLink belongs to another user, who owns its folder alone."""

    def start_superlink(self) -> None:
        for path in (self.server, *self.server.iterdir()):
            os.chown(path, OTHER, OTHER)
        self.database = self.server / "superlink.db"
        super().start_superlink()

    def spawn(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a process, the SuperLink with the other user's rights."""
        if name != "superlink":
            return super().spawn(name, *command)
        home = self.folder / f"home-{name}"
        home.mkdir(exist_ok=True)
        os.chown(home, OTHER, OTHER)
        return super().spawn(name, "setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups", *command)


def status_of(pid: int, entry: str) -> list[str]:
    """Return the values of an entry of a process's status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{entry}:")).split()[1:]
