"""Backup and restoration of a federation's server: its folder, in one file."""

from __future__ import annotations

import tempfile
from pathlib import Path

import fedsynth
from fedsynth.backup import (
    FORMAT,
    Contents,
    copy_database,
    moment,
    put,
    refuse_existing,
    unpacked,
    write_backup,
)
from fedsynth.errors import FedsynthError
from fedsynth.runs.state import load_coordinator

KIND = "server"
_JOURNALS = ("-journal", "-wal", "-shm")


def back_up_server(folder: Path, to: Path) -> Contents:
    """Write a backup of a server's folder to a file that is not there yet, also while a run is going on.

    Everything in it is part of the backup. Of a transcript that is being written, the backup may lack the
    end: a run that resumes from there asks for it again. Raises :class:`FedsynthError` for a folder without the
    coordinator's secret, and where ``to`` exists.
    """
    refuse_existing(to)
    load_coordinator(folder)
    with tempfile.TemporaryDirectory(prefix=".backup.", dir=folder) as scratch:
        files: dict[str, Path] = {}
        for path in sorted(folder.rglob("*")):
            within = path.relative_to(folder)
            # Hidden files are those of a run or a backup that is being written.
            if not path.is_file() or any(part.startswith(".") for part in within.parts):
                continue
            if path.name in ("lock", "seen.lock") or path.resolve() == to.resolve():
                continue
            if path.suffix == ".db":
                files[within.as_posix()] = Path(scratch) / f"{len(files)}.db"
                copy_database(path, files[within.as_posix()])
            elif not path.name.endswith(tuple(f".db{end}" for end in _JOURNALS)):
                files[within.as_posix()] = path
        contents = Contents(FORMAT, KIND, folder.resolve().name, moment(), fedsynth.__version__, {})
        return write_backup(to, contents, files)


def restore_server(archive: Path, folder: Path) -> Contents:
    """Put a server's backup into a new or an empty folder, and return what the backup says of itself.

    Raises :class:`FedsynthError` for a folder that holds anything: the damaged one is to be moved away by hand.
    """
    if folder.is_dir() and any(folder.iterdir()):
        raise FedsynthError(f"{folder} is not empty; move it away, keep it, and restore into a new folder")
    with unpacked(archive, KIND, folder) as (contents, found):
        load_coordinator(found)
        for name in contents.files:
            put(found / name, folder / name)
        return contents
