"""Time and memory of reading, streaming or counting in place a site's rows, from PostgreSQL, DuckDB and Parquet.

    python -m benchmarks.rows [--rows 10000000] [--folder DIR]

Starts its own PostgreSQL server in a temporary folder (within DIR; 2 GB for 10 million rows), and removes it at the
end. Linux only: the server's CPU seconds are read from /proc.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq
from tests.data.postgres import Server, server

from benchmarks import PAGE
from fedsynth.bench.page import write_section
from fedsynth.data.read import read_table
from fedsynth.data.sources import open_source
from fedsynth.data.sources.streamed import stream
from fedsynth.rows import Rows, Source
from fedsynth.schema import Boolean, Categorical, Datetime, Numeric, Schema
from fedsynth.schema.bins import Axis

SCHEMA = Schema(
    (
        Categorical("sex", ("female", "male")),
        Categorical("ward", tuple(f"ward {k}" for k in range(8))),
        Categorical("diagnosis", tuple(f"D{k:02d}" for k in range(40)), missing=True),
        Categorical("region", tuple(f"region {k}" for k in range(16))),
        Categorical("insurance", ("statutory", "private", "none", "other")),
        Categorical("outcome", ("home", "care", "transfer", "death", "unknown")),
        Categorical("visits", tuple(range(12))),
        Boolean("emergency"),
        Boolean("smoker", missing=True),
        Numeric("age", 0, 100, bins=20, integer=True),
        Numeric("stay", 0, 60, bins=20, integer=True),
        Numeric("weight", 30.0, 150.0, bins=24, missing=True),
        Numeric("glucose", 50.0, 400.0, bins=32),
        Numeric("cost", 0.0, 50_000.0, bins=25, decimals=2),
        Datetime("admitted", "2020-01-01", "2026-01-01", bins=24),
    )
)
ROWS = """
CREATE TABLE visits AS SELECT
  (ARRAY['female', 'male'])[1 + floor(random() * 2)::int] AS sex,
  'ward ' || floor(random() * 8)::int AS ward,
  CASE WHEN random() < 0.95 THEN 'D' || lpad(floor(power(random(), 2) * 40)::text, 2, '0') END AS diagnosis,
  'region ' || floor(random() * 16)::int AS region,
  (ARRAY['statutory', 'private', 'none', 'other'])[1 + floor(power(random(), 2) * 4)::int] AS insurance,
  (ARRAY['home', 'care', 'transfer', 'death', 'unknown'])[1 + floor(power(random(), 3) * 5)::int] AS outcome,
  floor(power(random(), 2) * 12)::int AS visits,
  random() < 0.3 AS emergency,
  CASE WHEN random() < 0.9 THEN random() < 0.2 END AS smoker,
  floor(random() * 101)::int AS age,
  floor(power(random(), 3) * 61)::int AS stay,
  CASE WHEN random() < 0.97 THEN 30 + random() * 120 END AS weight,
  50 + power(random(), 2) * 350 AS glucose,
  round((random() * 50000)::numeric, 2) AS cost,
  timestamp '2020-01-01' + floor(random() * 189388799) * interval '1 second' AS admitted
FROM generate_series(1, {rows})
"""
AXES = [Axis(column) for column in range(len(SCHEMA.stored))]
PAIRS = tuple(itertools.combinations(range(len(SCHEMA.stored)), 2))


@dataclass(frozen=True)
class Figures:
    """Cost of one way of counting: elapsed seconds, CPU seconds (ours, the server's), and our peak memory in MB."""

    seconds: float
    ours: float
    servers: float
    megabytes: float
    checksum: int


def read(source: Source) -> AbstractContextManager[Rows]:
    """Read all rows into memory as codes."""
    return nullcontext(read_table(source, SCHEMA))


def counted(source: Source) -> AbstractContextManager[Rows]:
    """Open a snapshot whose tables the database counts."""
    return source.counted(SCHEMA)


def streamed(source: Source) -> AbstractContextManager[Rows]:
    """Stream the rows, counting them batch by batch."""
    return stream(source, SCHEMA)


Way = tuple[str, Callable[[Source], AbstractContextManager[Rows]], Sequence[tuple[int, int]]]
WAYS: dict[str, Way] = {
    "PostgreSQL: read the rows, count all 105 pairs": ("table", read, PAIRS),
    "PostgreSQL: stream the rows, count all 105 pairs": ("table", streamed, PAIRS),
    "PostgreSQL counts its rows": ("table", counted, ()),
    "PostgreSQL counts one pair": ("table", counted, ((2, 12),)),
    "PostgreSQL counts all 105 pairs": ("table", counted, PAIRS),
    "DuckDB counts its rows": ("duckdb", counted, ()),
    "DuckDB counts one pair": ("duckdb", counted, ((2, 12),)),
    "DuckDB counts all 105 pairs": ("duckdb", counted, PAIRS),
    "Parquet: read the rows, count all 105 pairs": ("file", read, PAIRS),
    "Parquet: stream the rows, count all 105 pairs": ("file", streamed, PAIRS),
}


def measure(case: tuple[str, Mapping[str, str], Mapping[str, str], int]) -> Figures:
    """Run one case; call it in a fresh process, since peak memory is per process."""
    way, places, environment, postmaster = case
    os.environ.update(environment)
    began, ours, servers = time.perf_counter(), time.process_time(), _cpu_seconds(postmaster)
    place, opened, pairs = WAYS[way]
    with opened(open_source(places[place])) as rows:
        result = rows.tables(AXES, pairs)
        size = len(rows)
    assert all(int(table.sum()) == size for table in result)
    checksum = sum(int((table.ravel() * np.arange(1, table.size + 1)).sum()) for table in result)
    seconds, ours = time.perf_counter() - began, time.process_time() - ours
    time.sleep(1)  # until the server has accounted for its ended process
    return Figures(seconds, ours, _cpu_seconds(postmaster) - servers, _peak(), checksum)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _cpu_seconds(postmaster: int) -> float:
    """Return the CPU seconds of a server so far: of its live processes, and of its ended ones from the postmaster."""
    ticks = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # the process has ended
            continue
        own, children = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
        if int(folder.name) == postmaster:
            ticks += own + children
        elif int(fields[1]) == postmaster:
            ticks += own
    return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def _filled(rows: int, folder: Path | None) -> Any:
    settings = {"fsync": "off", "shared_buffers": "512MB", "work_mem": "64MB", "max_wal_size": "2GB"}
    with server(folder, **settings) as running:
        running.run(f"SELECT setseed(0.5); {ROWS.format(rows=rows)}")
        running.run("VACUUM ANALYZE visits")
        yield running


def _report(rows: int, sizes: str, figures: dict[str, Figures]) -> list[str]:
    lines = [
        f"{rows:,} rows of 15 columns ({sizes}: text, booleans, integers, doubles, a decimal, a time). Each line is "
        "the whole work of one message to the site. Memory: the peak of our process, Python and all; the least is "
        "that of the process which starts it. Elapsed: on two cores shared with other work; the CPU "
        "seconds, ours and the server's, are what compares.",
        "",
        "| what | elapsed s | our CPU s | server's CPU s | MB |",
        "|---|---|---|---|---|",
    ]
    return lines + [
        f"| {way} | {one.seconds:.0f} | {one.ours:.1f} | {one.servers:.1f} | {one.megabytes:.0f} |"
        for way, one in figures.items()
    ]


def _written(source: Source, file: Path) -> None:
    """Write the rows of a source to a Parquet file, a batch at a time."""
    batches = (rows for rows, _ in source.batches({column.name: column for column in SCHEMA.stored}, 1 << 16))
    first = next(batches)
    with pq.ParquetWriter(file, first.schema) as writer:
        for rows in itertools.chain([first], batches):
            writer.write_table(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every case in its own process, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, help="folder for the server's temporary files")
    parser.add_argument("--ways", default="", help="measure only the cases whose names contain this text")
    parser.add_argument("--out", type=Path, default=PAGE, help="page to write into")
    given = parser.parse_args(arguments)
    figures: dict[str, Figures] = {}
    running: Server
    with (
        _filled(given.rows, given.folder) as running,
        tempfile.TemporaryDirectory(prefix="fedsynth-rows-", dir=given.folder) as folder,
        ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool,
    ):
        environment = {"PGPASSFILE": str(running.passfile)}
        os.environ.update(environment)
        places = {"table": running.uri("table=visits&timeout=7200"), "file": str(Path(folder, "visits.parquet"))}
        _written(open_source(places["table"]), Path(places["file"]))
        with duckdb.connect(str(Path(folder, "visits.duckdb"))) as connection:
            connection.execute(f"CREATE TABLE visits AS SELECT * FROM '{places['file']}'")
        places["duckdb"] = f"duckdb://{folder}/visits.duckdb?table=visits"
        size = running.run("SELECT pg_size_pretty(pg_table_size('visits'))")
        sizes = f"{size} in PostgreSQL, {Path(places['file']).stat().st_size / 2**20:.0f} MB in Parquet"
        for way in (one for one in WAYS if given.ways in one):
            figures[way] = pool.submit(measure, (way, places, environment, running.pid)).result()
            print(f"{way}: {figures[way]}", flush=True)
    for pairs in {pairs for _, _, pairs in WAYS.values()}:
        found = {figures[way].checksum for way, (_, _, these) in WAYS.items() if these == pairs and way in figures}
        assert len(found) <= 1, "ways of counting disagree"
    if not given.ways:
        write_section(
            given.out, "rows", "A site's rows: read, streamed, counted", "\n".join(_report(given.rows, sizes, figures))
        )


if __name__ == "__main__":
    main()
