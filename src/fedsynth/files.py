"""Files written whole or not at all: after a crash or a power cut there is the old content or the new, never a part.

JSON files are read here too, each by the type that it must have.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TypeVar

import msgspec

from fedsynth.errors import FedsynthError

_T = TypeVar("_T")


def write_whole(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Write a file, replacing an old one only when the new one is complete and on the disk.

    Text is written as UTF-8. ``mode`` holds less what the process's umask takes away, also where an old file had
    another mode. Raises ``OSError``; then the old file is as it was.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def write_private(path: Path, content: str | bytes) -> None:
    """Write a file as :func:`write_whole` does, readable and writable by its owner alone (0600)."""
    write_whole(path, content, 0o600)


def private_folder(path: Path) -> Path:
    """Return ``path``, made as a folder that its owner alone may enter (0700) if it was not there."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def load_json(path: Path, kind: type[_T], what: str) -> _T:
    """Return the struct in a JSON file; raises :class:`FedsynthError` for a file that is not ``what``."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FedsynthError(f"{path} is not {what} of this version ({error})") from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
