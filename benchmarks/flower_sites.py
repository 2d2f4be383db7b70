"""What a federation over Flower costs its server (SuperLink), by the number of sites, into benchmarks/tables.md.

    python -m benchmarks.flower_sites [--sites 3,30,100]

All sites are processes of this machine, which need 40 MB each. The data set is read from the folder named by
FEDSYNTH_DATA (default: ../shared/data beside the repository).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.many_sites import ROWS, Load, ManySites, adult

from benchmarks import DATA, PAGE
from fedsynth.bench.page import write_section
from fedsynth.deploy.pace import Pace
from fedsynth.rows import Table

IDLE = 60.0  # s for which nothing is done


@dataclass(frozen=True)
class Figures:
    """What a federation of so many ``sites`` costs the SuperLink without a run (``idle``) and in a ``run``.

    ``site_seconds`` are a site's CPU seconds in the run, ``average`` is the machine's load average at its end.
    """

    sites: int
    idle: Load
    run: Load
    site_seconds: float
    average: float


def measure(sites: int, table: Table) -> Figures:
    """Make a run over as many sites, then leave them alone."""
    with tempfile.TemporaryDirectory(prefix="fedsynth-sites-") as folder:
        world = ManySites(Path(folder), [f"site-{at:03d}" for at in range(sites)])
        try:
            world.start()
            before = world.site_seconds()
            run = world.run(Path(folder) / "federation", table, "secure")
            site_seconds = (world.site_seconds() - before) / sites
            average = os.getloadavg()[0]
            return Figures(sites, world.idle(IDLE), run, site_seconds, average)
        finally:
            world.stop()


def lines(measured: Sequence[Figures]) -> list[str]:
    """Return the figures as a text with a table."""
    rows = []
    for figures in measured:
        pace, idle, run = Pace(figures.sites), figures.idle, figures.run
        rows.append(
            f"| {figures.sites} | {pace.idle:.0f} | {pace.due:.1f} | {pace.heartbeat:.0f} | {pace.away:.0f} "
            f"| {idle.requests / idle.seconds:.1f} | {100 * idle.cpu / idle.seconds:.0f} | {run.seconds:.0f} "
            f"| {run.cpu:.0f} | {run.requests} | {figures.site_seconds:.1f} | {figures.average:.0f} |"
        )
    return [
        f"`oneshot` under the trust `secure` over the first {ROWS:,} rows of Adult, all sites together, one run each;",
        "SuperLink, server and sites on one machine (2 cores, shared), Flower 1.41, TLS without nginx; the run's time",
        "includes `fedsynth deploy run` itself. Polls and heartbeats: the longest pause between two, in seconds. Idle:",
        f"{IDLE:.0f} seconds without a run. Beside: load average during the run.",
        "",
        "| sites | poll, idle | poll, in a run | heartbeat | dead after | idle, requests a second | idle, % of a core "
        "| run, s | SuperLink CPU s | requests | a site's CPU s | beside |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
        *rows,
    ]


def main() -> None:
    """Measure each number of sites, print, and write the section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", default="3,30,100", help="numbers of sites, separated by commas")
    parser.add_argument("--out", type=Path, default=PAGE, help="page to write into")
    arguments = parser.parse_args()
    table = adult(DATA)
    measured = []
    for sites in map(int, arguments.sites.split(",")):
        measured.append(measure(sites, table))
        print(measured[-1], flush=True)
    write_section(arguments.out, "flower-sites", "Sites over Flower", "\n".join(lines(measured)))


if __name__ == "__main__":
    main()
