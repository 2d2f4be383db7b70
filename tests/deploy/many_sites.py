"""A federation of many sites as processes on this machine, and what it costs Flower's server (SuperLink)."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from flwr.proto.control_pb2 import RegisterNodeRequest
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from tests.deploy.flower_world import RUN, FlowerWorld, children, lay_out

from fedsynth.data.partition import IID, split
from fedsynth.deploy.flower.local import wait_for
from fedsynth.deploy.host.state import load_node_key
from fedsynth.deploy.pace import DECAY, Pace
from fedsynth.encoding import encode
from fedsynth.privacy.cost import Budget
from fedsynth.rows import Table
from fedsynth.schema import Categorical, Schema

ROWS = 8000  # of all sites together
TICKS = os.sysconf("SC_CLK_TCK")


def adult(data: Path) -> Table:
    """Return the first rows of Adult, from a folder of data sets, under the public description of its columns."""
    sizes = json.loads((data / "adult_discrete.domain.json").read_text())
    schema = Schema(tuple(Categorical(column, tuple(range(size))) for column, size in sizes.items()))
    return encode(schema, pq.read_table(data / "adult_discrete.parquet").to_pandas().iloc[:ROWS])


@dataclass(frozen=True)
class Load:
    """What the SuperLink did in some ``seconds``: its CPU seconds, and the requests that it answered."""

    seconds: float
    cpu: float
    requests: int


class ManySites(FlowerWorld):
    """Sites whose processes are forks of one; the SuperLink's log has a line for each request."""

    def __init__(self, folder: Path, sites: Sequence[str]) -> None:
        """Write their folders; start nothing yet."""
        super().__init__(folder, sites)
        self._since = 0.0

    def start(self) -> None:
        """Start all processes, register the sites' nodes by name, and wait until they are connected."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FLWR_LOG_LEVEL", "DEBUG")
            self.start_superlink()
        self.start_server()
        self._register()
        template = Path(__file__).with_name("site_processes.py")
        self.spawn("sites", sys.executable, str(template), f"127.0.0.1:{self.port}", *map(str, self.sites.values()))
        wait_for("the nodes' connection", lambda: self.online() == len(self.sites), 300)
        self._since = time.monotonic()

    def _register(self) -> None:
        """Register the sites' nodes as `flwr supernode register` does, which would take more than a second for each."""
        certificates = (self.server / "ca.crt").read_bytes()
        version = RuntimeVersionHttpInterceptor(component_name="flwr-cli")
        with ControlHttpClient.from_server_address(f"127.0.0.1:{self.port}", False, certificates, [version]) as client:
            for name, home in self.keys.items():
                public = load_node_key((home / "node-key").read_bytes()).public_key()
                client.RegisterNode(RegisterNodeRequest(public_key=public_key_to_bytes(public), name=name))

    def run(self, folder: Path, table: Table, trust: str, method: str = "oneshot") -> Load:
        """Deal a table to the sites, make a run over them by ``deploy run``, and return what it took."""
        parts = split(table, len(self.sites), IID(), np.random.default_rng(0))
        options = {"min_honest": len(self.sites) // 2 + 1} if trust == "secure" else {}
        lay_out(
            folder,
            dict(zip(self.sites, parts, strict=True)),
            table.schema,
            trust,
            method,
            budget=Budget(1.0, 1e-6),
            trust_options=options,
            deadline=600.0,
            answer_every=1.0,
        )
        self.use(folder)
        began = self._mark()
        process = self.deploy_run(folder)
        shown, complaints = process.communicate(timeout=1200)
        self._since = time.monotonic()
        assert process.returncode == 0, (shown, complaints)
        assert "missed" not in shown, shown
        assert (folder / "runs" / RUN).is_dir()
        return self._load(began)

    def idle(self, seconds: float) -> Load:
        """Wait until the sites have slowed down, then return what the SuperLink does in so many seconds."""
        slow = self._since + Pace(len(self.sites)).idle * (1 + 1 / DECAY)
        time.sleep(max(0.0, slow - time.monotonic()))
        began = self._mark()
        time.sleep(seconds)
        assert self.online() == len(self.sites)
        return self._load(began)

    def site_seconds(self) -> float:
        """Return the CPU seconds of the sites' processes so far."""
        return sum(map(cpu_seconds, children(self.processes["sites"].pid)))

    def _mark(self) -> tuple[float, float, int]:
        return time.monotonic(), cpu_seconds(self.processes["superlink"].pid), len(self.log("superlink"))

    def _load(self, began: tuple[float, float, int]) -> Load:
        moment, cpu, size = self._mark()
        requests = len(re.findall(r'"POST /v1/', self.log("superlink")[began[2] : size]))
        return Load(moment - began[0], cpu - began[1], requests)


def cpu_seconds(process: int) -> float:
    """Return the CPU seconds of a process and of its ended children."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS
