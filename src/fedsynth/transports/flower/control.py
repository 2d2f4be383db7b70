"""The operator's side of Flower: runs started, listed and stopped by its ``flwr`` command, and its database emptied."""

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

from fedsynth.errors import FedsynthError, Unsupported

SECONDS = 120.0  # that a command of Flower's may take
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # what this Python has comes first
LOCKED = 60.0  # s to wait for the SuperLink to leave its database alone for a moment
# Where messages and their contents lie, rows that refer to others before those. Nodes, runs and logs stay.
TABLES = (
    *("message_res", "message_ins", "task_message"),
    *("object_push_session_pending", "object_push_session_roots", "object_push_sessions"),
    *("object_children", "run_objects", "objects"),
)
_UNFINISHED = "SELECT count(*) FROM run JOIN task ON task.task_id = run.primary_task_id WHERE task.finished_at IS NULL"


@dataclass(frozen=True)
class Control:
    """A SuperLink as the ``flwr`` command reaches it.

    ``connection`` is its name in Flower's ``config.toml``, which lies in FLWR_HOME or, where that is not set, in the
    folder ``server`` of the federation.
    """

    folder: Path
    connection: str = "federation"

    def start(self) -> str:
        """Start the federation's app; return Flower's id of the run."""
        return str(self._json("run", str(self.folder / "app"), self.connection)["run-id"])

    def status(self, run_id: str) -> tuple[str, str]:
        """Return how a run stands, such as ``running`` or ``finished:failed``, and what Flower says of its end."""
        (run,) = self._json("list", self.connection, "--run-id", run_id)["runs"]
        return str(run["status"]), str(run.get("status-details") or "")

    def stop(self, run_id: str) -> None:
        """Stop a run; its process ends within a minute."""
        self._json("stop", run_id, self.connection)

    def _json(self, *arguments: str) -> dict[str, Any]:
        """Return what a command of Flower's prints; raise :class:`FedsynthError` with what it says if it fails."""
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "NO_COLOR": "1"}
        environment = {"FLWR_HOME": str(self.folder.resolve() / "server"), **os.environ, **quiet}
        command = [program("flwr"), *arguments, "--format", "json"]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired as error:
            raise FedsynthError(
                f"`flwr {arguments[0]}` did not end within {SECONDS:g} s; is the SuperLink up?"
            ) from error
        content = _object(done.stdout)
        if done.returncode or content is None or not content.get("success", True):
            said = str((content or {}).get("error-message") or done.stderr or done.stdout).strip()
            said = " ".join(said.split()).rstrip(".") or "it says nothing"
            raise FedsynthError(
                f"`flwr {arguments[0]} ... {self.connection}` failed: {said}. Is the SuperLink up, and does "
                f"config.toml in FLWR_HOME ({environment['FLWR_HOME']}) name it?"
            )
        return content


def program(name: str) -> str:
    """Return a command of Flower's, or our own, that was installed with this Python, or else the one on the PATH."""
    found = shutil.which(name, path=PATH)
    if found is None:
        raise Unsupported(f"the command `{name}` is not installed; pip install 'fedsynth[flower]'")
    return found


def _object(text: str) -> dict[str, Any] | None:
    """Return the JSON object in what a command printed, which may say other things before it."""
    start = text.find("{")
    try:
        content = json.loads(text[start:]) if start >= 0 else None
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def unfinished(database: Path) -> int:
    """Return the number of runs in a SuperLink's database that it has not seen the end of.

    A run whose process was killed is one of them until Flower has missed its heartbeats for a minute.
    """
    try:
        with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True, timeout=LOCKED)) as link:
            return int(link.execute(_UNFINISHED).fetchone()[0])
    except sqlite3.Error as error:
        raise FedsynthError(f"{database} cannot be read ({error}); give the SuperLink's --database") from error


def purge(database: Path) -> Mapping[str, int]:
    """Delete every message from a SuperLink's database, its ``-wal`` and its ``-shm``; return the rows by table.

    The SuperLink may be running: each step is a transaction of SQLite's. Registrations and the list of runs stay. The
    file is written anew, since rows that Flower deleted itself may still lie in its free pages, and the log is cut off.

    Raises :class:`FedsynthError` while a run is going on, and where the database is another one or is not left alone.
    """
    if not database.is_file():
        raise FedsynthError(f"{database} is not there; give the SuperLink's --database")
    try:
        with closing(sqlite3.connect(database, timeout=LOCKED, isolation_level=None)) as link:
            link.execute("PRAGMA foreign_keys = ON")
            link.execute("PRAGMA secure_delete = ON")
            deleted = _delete_messages(link)
            link.execute("VACUUM")
            _cut_log(link)
    except sqlite3.Error as error:
        raise FedsynthError(
            f"{database} could not be purged ({error}); stop the SuperLink and run `fedsynth deploy purge` again"
        ) from error
    return deleted


def _delete_messages(link: sqlite3.Connection) -> dict[str, int]:
    """Delete all messages in one transaction, in which no run is going on."""
    link.execute("BEGIN IMMEDIATE")
    try:
        if link.execute(_UNFINISHED).fetchone()[0]:
            raise FedsynthError("a run is going on; wait for its end, or `fedsynth deploy stop` it, then purge again")
        deleted = {}
        for table in TABLES:
            deleted[table] = link.execute(f"DELETE FROM {table}").rowcount
        link.execute("COMMIT")
    except BaseException:
        link.execute("ROLLBACK")
        raise
    return deleted


def _cut_log(link: sqlite3.Connection) -> None:
    """Write the log into the database and cut it off; a reader may be in the way for a moment."""
    end = time.monotonic() + LOCKED
    while link.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        if time.monotonic() > end:
            raise sqlite3.OperationalError("its log is in use")
        time.sleep(0.2)
