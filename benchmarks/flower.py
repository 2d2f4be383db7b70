"""Overhead of Flower: time, CPU time and bytes of a round, and start-up of a client, into benchmarks/tables.md.

    python -m benchmarks.flower

Starts a SuperLink, a server and four sites on this machine (TLS, registered keys) and runs Adult.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from tests.deploy.flower_world import FlowerWorld, accounts, lay_out, simulated

from benchmarks import DATA, PAGE
from fedsynth.bench.page import write_section
from fedsynth.data.partition import Quantity, split
from fedsynth.deploy.host.config import load_site_config
from fedsynth.deploy.host.rows import load_rows
from fedsynth.encoding import encode
from fedsynth.federation.policy_file import trust_named
from fedsynth.methods import find_method
from fedsynth.privacy.cost import Budget
from fedsynth.rows import Table
from fedsynth.schema import Categorical, Numeric, Schema

SITES = ("north", "south", "east", "west")
JOBS: dict[str, dict[str, Any]] = {"oneshot": {}, "augflaim": {"rounds": 3, "rate": 1.0}}
REPEATS = 5
ROWS = 1_000_000
TICKS = os.sysconf("SC_CLK_TCK")


def adult() -> Mapping[str, Table]:
    """Return Adult in four parts of unequal sizes."""
    sizes = json.loads((DATA / "adult_discrete.domain.json").read_text())
    schema = Schema(tuple(Categorical(column, tuple(range(size))) for column, size in sizes.items()))
    table = encode(schema, pq.read_table(DATA / "adult_discrete.parquet").to_pandas())
    return dict(zip(SITES, split(table, len(SITES), Quantity(2.0), np.random.default_rng(0)), strict=True))


def processor(world: FlowerWorld, *prefixes: str) -> float:
    """Return the CPU seconds of the processes with these name prefixes and of their ended children."""
    total = 0
    for name, process in world.processes.items():
        if name.startswith(prefixes):
            fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            total += sum(int(field) for field in fields[11:15])
    return total / TICKS


def rounds(root: Path) -> list[datetime]:
    """Return the times at which each query of a run first reached a site, from the sites' audit logs, sorted."""
    first: dict[str, datetime] = {}
    for account in accounts(root).values():
        for line in account.export():
            said = json.loads(line)
            if "step" in said:
                when = datetime.fromisoformat(said["time"])
                first[said["step"]] = min(when, first.get(said["step"], when))
    return sorted(first.values())


def deployed(world: FlowerWorld, folder: Path, tables: Mapping[str, Table], method: str) -> str:
    """Run a method over Flower and in this process; return a line of the table."""
    schema, budget = next(iter(tables.values())).schema, Budget(1.0, 1e-6)
    root = folder / method
    lay_out(root, tables, schema, "local", method, budget=budget, options=JOBS[method], deadline=300.0)
    world.use(root)
    sites, server = processor(world, "node"), processor(world, "superlink", "server")
    run_id = world.submit_job(root)
    if world.finish(run_id, 500) != "finished:completed":
        raise RuntimeError(world.log("server"))
    sites, server = processor(world, "node") - sites, processor(world, "superlink", "server") - server
    run = world.control.run(run_id)
    traffic = run["network-traffic"]
    began = time.process_time()
    simulated(
        folder / f"{method}-here",
        tables,
        schema,
        trust_named("local", {}),
        find_method(method).kind(**JOBS[method]),
        budget=budget,
    )
    here = time.process_time() - began
    times = rounds(root)
    between = [(later - one).total_seconds() for one, later in itertools.pairwise(times)]
    spread = f"{statistics.mean(between):.1f}" if between else "-"
    spread += f" ± {statistics.stdev(between):.1f}" if len(between) > 1 else ""
    messages = len(times) * len(SITES)
    inbound, outbound = (traffic[f"{way}-bytes"] / messages / 1e3 for way in ("inbound", "outbound"))
    return (
        f"| {method} | {len(times)} | {messages} | {run['elapsed']:.0f} | {spread} | {sites / messages:.1f} | "
        f"{server:.1f} | {here:.1f} | {(sites + server) / here:.0f} | {inbound:.0f} | {outbound:.0f} |"
    )


def start(imports: Sequence[str]) -> str:
    """Return the CPU seconds of the imports in a fresh process: mean ± standard deviation."""
    code = f"import time; {'; '.join(f'import {name}' for name in imports)}; print(time.process_time())"
    taken = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for _ in range(REPEATS)
    ]
    return f"{statistics.mean(taken):.2f} ± {statistics.stdev(taken):.2f}"


def timed(call: Callable[[], Any]) -> float:
    """Return the CPU seconds of a call."""
    began = time.process_time()
    call()
    return time.process_time() - began


def big_site(folder: Path) -> str:
    """Return a text on the CPU time that the encoded copy saves at a site with a million rows."""
    rng = np.random.default_rng(0)
    words = tuple(f"value {j}" for j in range(8))
    columns = [Categorical(f"c{j}", words) for j in range(10)] + [Numeric(f"n{j}", 0, 1000, bins=20) for j in range(5)]
    schema = Schema(tuple(columns))
    codes = tuple(rng.integers(0, size, ROWS).astype(np.uint8) for size in schema.sizes)
    table = Table(schema, codes)
    lay_out(folder / "big", {"north": table}, schema, "local", "oneshot", budget=Budget(1.0, 1e-9))
    config = load_site_config(folder / "big" / "sites" / "north")
    time.sleep(3)  # until the file is old enough to be recognised by its timestamp
    read = timed(lambda: load_rows(config, schema, bytes(32)))
    copied = [timed(lambda: load_rows(config, schema, bytes(32))) for _ in range(REPEATS)]
    megabytes = config.cache.stat().st_size / 1e6
    return (
        f"A site of {ROWS:,} rows (10 categories, 5 numbers; CSV): reading and encoding the source {read:.1f} CPU s, "
        f"once; from the encoded copy ({megabytes:.0f} MB) {statistics.mean(copied):.2f} ± "
        f"{statistics.stdev(copied):.2f} CPU s a message, {read / statistics.mean(copied):.0f} times less."
    )


def main() -> None:
    """Measure, print, and write the section of the benchmark page."""
    folder = Path(tempfile.mkdtemp(prefix="fedsynth-flower-"))
    world = FlowerWorld(folder, SITES)
    try:
        world.start()
        tables = adult()
        table = [deployed(world, folder, tables, method) for method in JOBS]
    finally:
        world.stop()
    starts = [
        (
            "Flower alone (`flwr.app`, `flwr.clientapp`, `flwr.serverapp`)",
            ["flwr.app", "flwr.clientapp", "flwr.serverapp"],
        ),
        ("numpy, pandas, scipy.optimize alone", ["numpy", "pandas", "scipy.optimize"]),
        ("a site's node, all of it (`fedsynth.deploy.flower.node`)", ["fedsynth.deploy.flower.node"]),
    ]
    text = "\n".join(
        [
            f"Adult over {len(SITES)} sites and one SuperLink on one machine (2 cores, shared), Flower 1.41, TLS,",
            "process isolation, local noise, one run each. A round is one exchange: one message to each site. Its time",
            "is Flower's polling and the server's fit. kB in: from the sites.",
            f"Other work ran beside it: load average {os.getloadavg()[2]:.0f} over these 15 minutes.",
            "",
            "| method | rounds | messages | run, s | s a round (mean ± sd) | site CPU s a message | server CPU s | "
            "in one process, CPU s | ratio | kB in a message | kB out a message |",
            "|---|---|---|---|---|---|---|---|---|---|---|",
            *table,
            "",
            "A site's answerer stays in memory between messages. What its start costs once, by its imports, CPU s "
            f"(mean ± sd of {REPEATS}):",
            "",
            "| imports | CPU s |",
            "|---|---|",
            *(f"| {what} | {start(names)} |" for what, names in starts),
            "",
            big_site(folder),
        ]
    )
    shutil.rmtree(folder)
    print(text)
    write_section(PAGE, "flower", "Flower", text)


if __name__ == "__main__":
    main()
