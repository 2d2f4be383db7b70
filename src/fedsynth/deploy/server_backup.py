"""Backup and restoration of a federation's server: its folder in one file."""

from __future__ import annotations

import tempfile
from pathlib import Path

import fedsynth
from fedsynth.deploy.backup import (
    FORMAT,
    BackupContents,
    put,
    refuse_existing,
    timestamp,
    unpacked,
    write_backup,
)
from fedsynth.errors import FedsynthError
from fedsynth.files import copy_database
from fedsynth.runs.state import load_coordinator

KIND = "server"
_JOURNALS = ("-journal", "-wal", "-shm")


def back_up_server(folder: Path, to: Path) -> BackupContents:
    """Write a backup of the whole folder of a federation's server to the new file ``to``; return its table of contents.

    A run may go on meanwhile: the backup then lacks the end of the run's transcript (the record of its messages). A run
    that has asked more since must not be resumed from the backup: it would ask for the missing answers again, maybe of
    other sites. Raises :class:`~fedsynth.errors.FedsynthError` for a folder without the coordinator's secret, and if
    ``to`` exists.
    """
    refuse_existing(to)
    load_coordinator(folder)
    with tempfile.TemporaryDirectory(prefix=".backup.", dir=folder) as scratch:
        files: dict[str, Path] = {}
        for path in sorted(folder.rglob("*")):
            within = path.relative_to(folder)
            # Hidden files belong to a run or a backup in progress.
            if not path.is_file() or any(part.startswith(".") for part in within.parts):
                continue
            if path.name in ("lock", "seen.lock") or path.resolve() == to.resolve():
                continue
            if path.suffix == ".db":
                files[within.as_posix()] = Path(scratch) / f"{len(files)}.db"
                copy_database(path, files[within.as_posix()])
            elif not path.name.endswith(tuple(f".db{end}" for end in _JOURNALS)):
                files[within.as_posix()] = path
        contents = BackupContents(FORMAT, KIND, folder.resolve().name, timestamp(), fedsynth.__version__, {})
        return write_backup(to, contents, files)


def restore_server(archive: Path, folder: Path) -> BackupContents:
    """Restore the backup of a federation's server into a new or empty folder; return the backup's table of contents.

    Raises :class:`~fedsynth.errors.FedsynthError` for a folder that is not empty (move the damaged one away by hand),
    and for a file that is no complete backup of a server.
    """
    if folder.is_dir() and any(folder.iterdir()):
        raise FedsynthError(f"{folder} is not empty; move it away, keep it, and restore into a new folder")
    with unpacked(archive, KIND, folder) as (contents, found):
        load_coordinator(found)
        for name in contents.files:
            put(found / name, folder / name)
        return contents
