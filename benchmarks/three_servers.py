"""Cost of three compute servers: DistAIM on Adult over real processes, into benchmarks/tables.md.

    python -m benchmarks.three_servers [SITES]

Starts three servers on this machine (TLS, pinned keys, a ledger each) and runs the whole job over them, with Adult's
original columns and with columns reduced to at most 32 values. The same job over the ideal functionality must give the
same rows.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from tests.servers.compute_world import Processes, deployed, ideal, servers_of

from benchmarks import DATA, PAGE
from fedsynth import Budget, Categorical, Schema, encoding
from fedsynth.bench.page import write_section
from fedsynth.cliques import Workload, all_marginals, maximal, random_workload
from fedsynth.data.partition import parse_partition, split
from fedsynth.federation.federation import Federation
from fedsynth.federation.query import Counts
from fedsynth.federation.wire import encode
from fedsynth.methods.aim import AIM
from fedsynth.rows import Table
from fedsynth.servers.server import deal
from fedsynth.servers.trust import ThreeServers

TICKS = os.sysconf("SC_CLK_TCK")
BUDGET = Budget(1.0, 1e-5)
ROUNDS = 10
RATE = 0.1
SEED = 1


def adult(most: int, sites: int) -> tuple[dict[str, Table], Schema]:
    """Return Adult split over ``sites`` sites, and its schema; codes from ``most`` - 1 on become one value."""
    sizes = json.loads((DATA / "adult_discrete.domain.json").read_text())
    frame = pq.read_table(DATA / "adult_discrete.parquet").to_pandas().clip(upper=most - 1)
    schema = Schema(tuple(Categorical(name, tuple(range(min(size, most)))) for name, size in sizes.items()))
    table = encoding.encode(schema, frame)
    parts = split(table, sites, parse_partition("iid", schema, ""), np.random.default_rng(0))
    return {f"site-{number:03d}": part for number, part in enumerate(parts)}, schema


def workload(columns: int) -> Workload:
    """Return the 64 3-way marginals of the published experiments."""
    return random_workload(columns, 3, 64, 123)


def processor(processes: Processes) -> list[float]:
    """Return the CPU seconds of each server's process so far."""
    found = []
    for _, process in sorted(processes.running.items()):
        fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        found.append((int(fields[11]) + int(fields[12])) / TICKS)
    return found


def memory(processes: Processes) -> int:
    """Return the peak memory in bytes, of the server with the largest."""
    peaks = []
    for process in processes.running.values():
        lines = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines()
        peaks.append(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")))
    return 1024 * max(peaks)


def run(federation: Federation, schema: Schema) -> pd.DataFrame:
    """Run the published job, and return 1,000 rows of its synthesizer."""
    method = AIM(rounds=ROUNDS, rate=RATE, workload=workload(len(schema.stored)))
    return method.fit(federation).sample(1000, np.random.default_rng(0))


def draws(processes: Processes) -> list[float]:
    """Return the seconds of each selection (draw), from the log of the first server."""
    lines = [line for line in processes.log(0).splitlines() if ": drawn of " in line]
    return [float(line.split(" in ")[1].split(" s,")[0]) for line in lines]


class Keys:
    """Fixed keys for a site's secret sharing, in place of the site's own secret."""

    identity = bytes(32)

    def key(self, purpose: str) -> bytes:
        """Return 32 bytes for one purpose."""
        return hashlib.sha256(purpose.encode()).digest()


def dealing(federation: Federation, table: Table) -> str:
    """Return the cost of a deposit at a site: CPU seconds to count and share, and megabytes to upload."""
    columns = len(table.schema.stored)
    query = Counts.of(columns, maximal([*workload(columns), *all_marginals(columns, 1)]))
    trust = federation.trust
    assert isinstance(trust, ThreeServers)
    began = time.process_time()
    dealt = deal(query.answer(table), "0" * 64, "site", trust.publics, trust.terms, Keys())
    return f"{time.process_time() - began:.2f} | {len(encode(dealt)) / 1e6:.1f}"


def line(name: str, most: int, sites: int) -> str:
    """Return a line of the table for one size of Adult."""
    tables, schema = adult(most, sites)
    began, cpu = time.monotonic(), time.process_time()
    wanted = run(ideal(tables, schema, BUDGET, seed=SEED), schema)
    here, here_cpu = time.monotonic() - began, time.process_time() - cpu
    print(f"{name}: {here:.0f} s and {here_cpu:.0f} CPU s over the ideal functionality", flush=True)
    with tempfile.TemporaryDirectory() as home, deployed(Path(home), tables, schema, BUDGET, seed=SEED) as world:
        build, processes = world
        federation = build()
        servers = servers_of(federation)
        began = time.monotonic()
        found = run(federation, schema)
        wall = time.monotonic() - began
        if not found.equals(wanted):
            raise RuntimeError("the three processes gave different rows from the ideal functionality")
        spent, peak, each = processor(processes), memory(processes), draws(processes)
        dealt = len({site for entry in federation.ledger.entries for site in entry.sites if entry.verb == "deposit"})
        down, up, among = (
            max(getattr(moved, way) for moved in servers.traffic) / 1e6 for way in ("down", "up", "among")
        )
    return (
        f"| {name} | {dealt} | {wall:.0f} | {here:.0f} | {max(spent):.0f} | {np.mean(each):.1f} | {peak / 1e6:.0f} | "
        f"{down:.0f} | {up:.2f} | {among:.0f} | {dealing(federation, next(iter(tables.values())))} |"
    )


def main() -> None:
    """Measure, print, and write the section of the benchmark page."""
    sites = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    table = [line("at most 32 values", 32, sites), line("as shipped", 2**16, sites)]
    text = "\n".join(
        [
            f"DistAIM on Adult over three compute servers on one machine (2 cores, shared), {sites} sites, {ROUNDS}",
            "rounds, a tenth of the sites in each, epsilon 1, the 64 3-ways of the published workload: 161 candidates",
            "in each draw. Servers are processes that speak TLS 1.3 over loopback, sites and coordinator one process",
            "beside them; the rows that come out are those of the ideal functionality, bit for bit. A server's figures",
            f"are of the one with the most. Load average {os.getloadavg()[2]:.0f} over the last 15 minutes.",
            "",
            "| columns | sites that dealt | run, s | ideal, s | CPU s a server | s a draw | MB of memory | MB to a "
            "server | MB from it | MB to the other two | CPU s a site | MB a site |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|",
            *table,
        ]
    )
    print(text)
    write_section(PAGE, "three-servers", "Three compute servers", text)


if __name__ == "__main__":
    main()
