"""The operator's side of Flower: starts, lists and stops runs by its ``flwr`` command, and purges its database."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedsynth.errors import FedsynthError, lacking, said

CONNECTION = "federation"  # what the `flwr` command calls the SuperLink
FULL = "and a full disk is one reason: free space where its --database is (df shows how much is left)"
SECONDS = 120.0  # time limit of a Flower command
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # this Python first
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "OMP_NUM_THREADS": "1",
    "NO_COLOR": "1",
    "PATH": PATH,
}  # environment of Flower's programs
SETTLED = 90.0  # s that Flower has to record the end of a run
LOOKED = 0.5  # s between two looks for it in the database
ASKED = 10.0  # s between two questions to the SuperLink, which notices only then that a run's process was killed
LOCKED = 60.0  # s to wait for the SuperLink's lock on its database
# Tables of messages and their contents, referring tables first. Nodes, runs and logs are kept.
TABLES = (
    *("message_res", "message_ins", "task_message"),
    *("object_push_session_pending", "object_push_session_roots", "object_push_sessions"),
    *("object_children", "run_objects", "objects"),
)
_RUNS = "SELECT count(*) FROM run JOIN task ON task.task_id = run.primary_task_id WHERE "
_UNFINISHED = _RUNS + "task.finished_at IS NULL"
_FINISHED = _RUNS + "task.finished_at IS NOT NULL AND run.run_id = ?"
_CONNECTED = "SELECT count(*) FROM node WHERE status = 'online' AND online_until > ?"


@dataclass(frozen=True)
class FlowerControl:
    """A federation's Flower server (SuperLink), controlled by Flower's ``flwr`` command: the one way to call it.

    ``folder`` is the federation's. ``connection`` is the SuperLink's name in Flower's ``config.toml``, which lies in
    ``home`` or, if that is empty, in FLWR_HOME or else the folder ``server`` of the federation. All methods raise
    :class:`FedsynthError` with Flower's message if a command fails, and :class:`Unsupported` if Flower is not
    installed.
    """

    folder: Path
    connection: str = CONNECTION
    home: str = ""

    @classmethod
    def at(cls, superlink: str, root_certificates: Path, folder: Path, home: Path) -> FlowerControl:
        """Return the control of the SuperLink at HOST:PORT, whose connection is written to ``config.toml`` in ``home``.

        ``root_certificates`` is the PEM file of the authority that vouches for it.
        """
        connection = {"address": superlink, "root-certificates": str(root_certificates)}
        content = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
        (home / "config.toml").write_text(tomli_w.dumps(content))
        return cls(folder, CONNECTION, str(home))

    def start(self, app: Path | None = None, *options: str) -> str:
        """Start a run of a Flower app (by default the federation's folder ``app``); return Flower's id of the run."""
        return str(self._json("run", str(app or self.folder / "app"), self.connection, *options)["run-id"])

    def require_begun(self, run_id: str) -> str:
        """Raise :class:`FedsynthError` if Flower says that a run without any event has ended.

        Returns a sentence for the operator while no process has taken it on, else "".
        """
        status, details = self.status(run_id)
        if status.startswith("finished"):
            raise FedsynthError(
                f"Flower ended the run before it began ({status}: {details}); the log of `fedsynth deploy serve` shows "
                "why"
            )
        pending = "no process has taken on the run yet; does `fedsynth deploy serve` run at the server?"
        return pending if status == "pending" else ""

    def status(self, run_id: str) -> tuple[str, str]:
        """Return a run's status, such as ``finished:failed``, and Flower's details about its end, if there are any."""
        run = self.run(run_id)
        return str(run["status"]), str(run.get("status-details") or "")

    def run(self, run_id: str) -> dict[str, Any]:
        """Return what Flower tells of a run, by its id."""
        (run,) = self._json("list", self.connection, "--run-id", run_id)["runs"]
        return dict(run)

    def stop(self, run_id: str) -> None:
        """Stop the run with Flower's id ``run_id``; its process ends within a minute. One that has ended stays so."""
        try:
            self._json("stop", run_id, self.connection)
        except FedsynthError:
            if not self.status(run_id)[0].startswith("finished"):
                raise

    def register(self, name: str, key: Path) -> None:
        """Register the node of the site ``name``, by the file of its public key."""
        self._json("supernode", "register", str(key), self.connection, "--name", name)

    def _json(self, *arguments: str) -> dict[str, Any]:
        """Return the JSON output of a Flower command; raise :class:`FedsynthError` with its message if it fails."""
        home = self.home or os.environ.get("FLWR_HOME", str(self.folder.resolve() / "server"))
        environment = {**os.environ, **QUIET, "FLWR_HOME": home, "PYTHONIOENCODING": "utf-8"}
        command = [program("flwr"), *arguments, "--format", "json"]
        late = f"`flwr {arguments[0]}` did not end within {SECONDS:g} s; is the SuperLink up?"
        with said(late, subprocess.TimeoutExpired):
            done = subprocess.run(
                command,
                env=environment,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=SECONDS,
                stdin=subprocess.DEVNULL,
            )
        content = _object(done.stdout)
        if done.returncode or content is None or not content.get("success", True):
            why = str((content or {}).get("error-message") or done.stderr or done.stdout).strip()
            why = " ".join(why.split()).rstrip(".") or "it says nothing"
            mend = f"Is the SuperLink up, and does config.toml in FLWR_HOME ({home}) name it?"
            if "internal server error" in why.lower():
                mend = f"The SuperLink could not do it: its own log says why, {FULL}"
            raise FedsynthError(f"`flwr {arguments[0]} ... {self.connection}` failed: {why}. {mend}")
        return content


def program(name: str) -> str:
    """Return the path of a command of Flower or fedsynth: installed with this Python, or else on the PATH."""
    found = shutil.which(name, path=PATH)
    if found is None:
        raise lacking("flower", f"the command `{name}` is not installed")
    return found


def _object(text: str) -> dict[str, Any] | None:
    """Return the JSON object in a command's output, which may be preceded by other text."""
    start = text.find("{")
    try:
        content = json.loads(text[start:]) if start >= 0 else None
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def unfinished(database: Path) -> int:
    """Return the number of unfinished runs in the database file of a Flower server (SuperLink).

    A run whose process was killed counts until Flower has missed its heartbeats for a minute and is asked about runs or
    tasks the next time. Raises :class:`FedsynthError` if the file cannot be read or is no such database.
    """
    return _count(database, _UNFINISHED)


def finished(database: Path, run_id: str) -> bool:
    """Return whether the run with Flower's id ``run_id`` has ended, with limits and errors of :func:`unfinished`."""
    signed = int(run_id) - (int(run_id) >> 63 << 64)  # SQLite's integers are signed
    return _count(database, _FINISHED, signed) > 0


def connected(database: Path) -> int:
    """Return the number of nodes that are connected; raises the errors of :func:`unfinished`."""
    return _count(database, _CONNECTED, time.time())


def _count(database: Path, statement: str, *values: float) -> int:
    unreadable = f"{database} cannot be read ({{error}}); give the SuperLink's --database"
    place = f"{database.resolve().as_uri()}?mode=ro"
    with said(unreadable, sqlite3.Error), closing(sqlite3.connect(place, uri=True, timeout=LOCKED)) as link:
        return int(link.execute(statement, values).fetchone()[0])


def purge(database: Path) -> Mapping[str, int]:
    """Delete every message from a Flower server's (SuperLink's) database; return the number of deleted rows by table.

    The SuperLink may be running, since each step is an SQLite transaction. Registrations and the list of runs stay. The
    file is rewritten, since rows that Flower deleted may still be in its free pages, and SQLite's log (``-wal``) is
    truncated. Raises :class:`FedsynthError` during a run, and if the file is missing, is no SuperLink's database or
    stays locked.
    """
    if not database.is_file():
        raise FedsynthError(f"{database} does not exist; give the SuperLink's --database")
    locked = "could not be purged ({error}); stop the SuperLink and run `fedsynth deploy stop --purge` again"
    with (
        said(f"{database} {locked}", sqlite3.Error),
        closing(sqlite3.connect(database, timeout=LOCKED, isolation_level=None)) as link,
    ):
        link.execute("PRAGMA foreign_keys = ON")
        link.execute("PRAGMA secure_delete = ON")
        deleted = _delete_messages(link)
        link.execute("VACUUM")
        _cut_log(link)
    return deleted


def purge_after(control: FlowerControl, run_id: str, database: Path) -> None:
    """Delete a run's messages (:func:`purge`) once Flower has recorded that the run ``run_id`` ended."""
    end = time.monotonic() + SETTLED
    due = time.monotonic() + ASKED
    # An earlier attempt may still count as running if its process was killed a moment ago.
    while time.monotonic() < end and (not finished(database, run_id) or unfinished(database)):
        if time.monotonic() > due:
            control.status(run_id)
            due = time.monotonic() + ASKED
        time.sleep(LOOKED)
    purge(database)


def _delete_messages(link: sqlite3.Connection) -> dict[str, int]:
    link.execute("BEGIN IMMEDIATE")
    try:
        if link.execute(_UNFINISHED).fetchone()[0]:
            raise FedsynthError("a run is going on; wait for its end, or `fedsynth deploy stop` it, then purge again")
        deleted = {table: link.execute(f"DELETE FROM {table}").rowcount for table in TABLES}
        link.execute("COMMIT")
    except BaseException:
        link.execute("ROLLBACK")
        raise
    return deleted


def _cut_log(link: sqlite3.Connection) -> None:
    """Write the log into the database and truncate it, waiting for readers if needed."""
    end = time.monotonic() + LOCKED
    while link.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        if time.monotonic() > end:
            raise sqlite3.OperationalError("its log is in use")
        time.sleep(0.2)
