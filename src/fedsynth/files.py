"""Files written whole or not at all: after a crash or a power cut there is the old content or the new, never a part.

Text, TOML and JSON files are read here too: a file that is none is an error with its name, never a traceback.
"""

from __future__ import annotations

import json
import os
import secrets
import tomllib
from pathlib import Path
from typing import Any, TypeVar

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
    sync_folder(path.parent)


def write_private(path: Path, content: str | bytes) -> None:
    """Write a file as :func:`write_whole` does, readable and writable by its owner alone (0600)."""
    write_whole(path, content, 0o600)


def private_folder(path: Path) -> Path:
    """Return ``path``; it and those above it that were not there are made for their owner alone (0700)."""
    if not path.parent.is_dir():  # Path.mkdir would give those above it the mode of the umask
        private_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def read_text(path: Path) -> str:
    """Return a file's text: UTF-8, with or without a byte order mark; raises :class:`FedsynthError` for other bytes."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise FedsynthError(f"{path} is not UTF-8 text; save it as UTF-8") from error


def parse_toml(text: str, what: str) -> dict[str, Any]:
    """Return the entries of a TOML text; raises :class:`FedsynthError`, whose message begins with ``what``."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits is a bare ValueError
        raise FedsynthError(f"{what} is not TOML: {_first_line(error)}; correct it there") from error


def load_toml(path: Path) -> dict[str, Any]:
    """Return the entries of a TOML file; raises :class:`FedsynthError` for one that is none."""
    return parse_toml(read_text(path), str(path))


def load_object(path: Path, what: str) -> dict[str, Any]:
    """Return the entries of a JSON file that holds one object; raises :class:`FedsynthError` for any other file."""
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise FedsynthError(f"{path} is not JSON: {_first_line(error)}; give {what}") from error
    if not isinstance(content, dict):
        raise FedsynthError(f"{path} is not {what}: it must hold one JSON object, {{...}}")
    return content


class _Marked(msgspec.Struct):
    """The entry of a JSON file that says which format the rest is in."""

    format: Any = None


def load_json(path: Path, kind: type[_T], what: str, mend: str, number: int | None = None) -> _T:
    """Return the struct in a JSON file, which says ``"format": number`` where a number is given.

    Raises :class:`FedsynthError` for a file that is not ``what``, and for one of another format, with ``mend`` as what
    to do next.
    """
    content = path.read_bytes()
    try:
        if number is not None:
            refuse_format(msgspec.json.decode(content, type=_Marked).format, number, f"{path} ({what})", mend)
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FedsynthError(f"{path} is not {what} of this version ({_first_line(error)}); {mend}") from error


def refuse_format(found: object, number: int, what: str, mend: str) -> None:
    """Raise :class:`FedsynthError` for a file that says another number of its format; ``mend`` is what to do next."""
    if type(found) is not int or found != number:
        said = f"is in format {found}" if type(found) is int else "says no format that is known"
        raise FedsynthError(f"{what} {said}, and this version of fedsynth reads format {number}; {mend}")


def _first_line(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error).splitlines()[0]


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
