"""A deployed run, computed anew by sites in this process from the salts that the deployed ones drew."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.transports.flower_world import of, product

from fedsynth.federation.site import Site
from fedsynth.federation.transport import InProcess, Transport
from fedsynth.host.config import load_site_config
from fedsynth.host.state import open_site
from fedsynth.runs.job import Job
from fedsynth.runs.run import run_deployed


def recomputed(
    root: Path, folder: Path, transport: Callable[[Sequence[Site]], Transport] = InProcess
) -> tuple[bytes, bytes]:
    """Return what sites in this process make of the same run, from the salts that the deployed ones drew.

    Nothing but the salts of questions and of the run is left of what they answered: every reply is computed anew.
    """
    shutil.copytree(root, folder, ignore=shutil.ignore_patterns("runs", "transcript", "seen.json", "lock"))
    job = Job.load(folder / "job.toml")
    sites = []
    for name in of(job).sites:
        config = load_site_config(folder / "sites" / name)
        with contextlib.closing(sqlite3.connect(config.account, isolation_level=None)) as account:
            account.execute("DELETE FROM parts WHERE key NOT LIKE 'run %'")
        sites.append(open_site(config))
    return product(run_deployed(job, folder, transport(sites)).folder)
