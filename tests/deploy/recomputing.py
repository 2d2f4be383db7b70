"""A deployed run, computed anew by sites in this process from the salts that the deployed ones drew."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.deploy.flower_world import of, product

from fedsynth.deploy.host.config import load_site_config
from fedsynth.deploy.host.state import open_site
from fedsynth.federation.site import Site
from fedsynth.federation.transport import InProcess, Transport
from fedsynth.privacy.book_file import BookFile, RunRecord
from fedsynth.runs.job import Job
from fedsynth.runs.run import run_deployed

_KEEP = {
    "keep_salts": "INSERT ON questions WHEN new.salt = x''",
    "keep_questions": "DELETE ON questions WHEN old.paid",
    "keep_runs": "DELETE ON parts WHEN old.key LIKE 'run %'",
}


def keep_salts(root: Path) -> None:
    """Let the sites of a laid-out federation keep their salts when a run has ended, for :func:`recomputed`.

    Their accounts have triggers then, and are no valid ones until :func:`drop_triggers`.
    """
    for home in (root / "sites").iterdir():
        with contextlib.closing(sqlite3.connect(load_site_config(home).account, isolation_level=None)) as account:
            for name, event in _KEEP.items():
                account.execute(f"CREATE TRIGGER {name} BEFORE {event} BEGIN SELECT RAISE(IGNORE); END")


def drop_triggers(root: Path) -> None:
    """Make the accounts that :func:`keep_salts` changed valid ones again."""
    for home in (root / "sites").iterdir():
        with contextlib.closing(sqlite3.connect(load_site_config(home).account, isolation_level=None)) as account:
            for name in _KEEP:
                account.execute(f"DROP TRIGGER IF EXISTS {name}")


def _reopen(account: Path) -> None:
    """Let the runs of an account that kept its salts go on, over a new copy of the same rows."""
    with BookFile(str(account)).transaction() as records:
        records.execute("DELETE FROM parts WHERE key != '' AND key NOT LIKE 'run %'")
        for run in records.all(RunRecord):
            records.put(run._replace(closed=0, rows=""))


def _copy(account: Path, to: Path) -> None:
    with contextlib.closing(sqlite3.connect(account)) as source, contextlib.closing(sqlite3.connect(to)) as copied:
        source.backup(copied)
    to.chmod(0o600)


def recomputed(
    root: Path, folder: Path, transport: Callable[[Sequence[Site]], Transport] = InProcess
) -> tuple[bytes, bytes]:
    """Return what sites in this process make of the same run, from the salts that the deployed ones drew.

    Nothing but the salts of questions and of the run is left of what they answered (:func:`keep_salts`, called before
    the run): every reply is computed anew.
    """
    left = ("runs", "transcript", "seen.json", "lock", "account.sqlite*")
    shutil.copytree(root, folder, ignore=shutil.ignore_patterns(*left))
    for account in root.glob("sites/*/state/account.sqlite"):  # which the site may be writing
        _copy(account, folder / account.relative_to(root))
    drop_triggers(folder)
    job = Job.load(folder / "job.toml")
    sites = []
    for name in of(job).sites:
        config = load_site_config(folder / "sites" / name)
        _reopen(config.account)
        sites.append(open_site(config))
    return product(run_deployed(job, folder, transport(sites)).folder)
