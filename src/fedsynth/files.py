"""Atomic file writes, and readers of text, TOML and JSON files.

After a crash or a power failure a file has its old content or its new content, never a part. A file of the wrong format
raises an error that names the file. Modes of files and folders are POSIX's: Windows ignores them, and gives a file the
permissions of its folder.
"""

from __future__ import annotations

import codecs
import json
import os
import secrets
import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from fedsynth.errors import FedsynthError
from fedsynth.platforms import POSIX

Records = Literal["lines", "rfc4180"]
"""The kind of a CSV file: its lines are records, each by itself, or its cells may hold newlines and it is all valid."""

_T = TypeVar("_T")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Within a ``with`` block in which ``path`` is written, let an ``OSError`` name that file.

    The system names no file where a write or a sync fails, as on a full disk.
    """
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def write_whole(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Write a file atomically: an old file is replaced only after the new one is complete and on the disk.

    Text is written as UTF-8. ``mode`` (permission bits) is reduced by the process's umask, and applies even if an old
    file had another mode. Raises ``OSError``; the old file is then unchanged, unless only the last step failed, the
    sync of its folder.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with writing(path):
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
        sync(path.parent)


def write_private(path: Path, content: str | bytes) -> None:
    """Write a file as :func:`write_whole` does, readable and writable by its owner only (mode 0600)."""
    write_whole(path, content, 0o600)


def private_folder(path: Path) -> Path:
    """Create ``path`` and its missing parents, accessible to their owner only (mode 0700), and return ``path``.

    Existing folders keep their mode.
    """
    if not path.parent.is_dir():  # Path.mkdir(parents=True) would give the parents the mode of the umask
        private_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    return path


@contextmanager
def folder_made_whole(out: Path, mode: int = 0o755) -> Iterator[Path]:
    """A context manager that yields an empty folder beside ``out``, to be filled.

    It becomes ``out``, with the permissions ``mode``, when the block ends, and is deleted if the block raises an error.
    An existing ``out`` is replaced only once the new one is complete: whether it may be is for the caller to decide.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        yield partial
        os.chmod(partial, mode)
        if out.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{out.name}.old.", dir=out.parent))
            os.replace(out, old / "old")
            os.replace(partial, out)
            shutil.rmtree(old)
        else:
            os.replace(partial, out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file, with or without byte order mark; raises :class:`FedsynthError` for another."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        if error.object.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            said = "is UTF-16 text, as Windows PowerShell writes it for `>`; write it with --out instead, or save it"
            raise FedsynthError(f"{path} {said} as UTF-8") from error
        raise FedsynthError(f"{path} is not UTF-8 text; save it as UTF-8") from error


def parse_toml(text: str, what: str) -> dict[str, Any]:
    """Parse TOML text, which messages call ``what``; raises :class:`FedsynthError` for text that is not TOML."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits is a bare ValueError
        raise FedsynthError(f"{what} is not TOML: {_first_line(error)}; correct it there") from error


def load_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file; raises :class:`FedsynthError` if it is not TOML."""
    return parse_toml(read_text(path), str(path))


def load_object(path: Path, what: str) -> dict[str, Any]:
    """Return the object in a JSON file; raises :class:`FedsynthError` if it is not ``what``, such as "SDV metadata"."""
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise FedsynthError(f"{path} is not JSON: {_first_line(error)}; give {what}") from error
    if not isinstance(content, dict):
        raise FedsynthError(f"{path} is not {what}: it must hold one JSON object, {{...}}")
    return content


class _Marked(msgspec.Struct):
    """The format number of a JSON file, read before the rest of it."""

    format: Any = None


def load_json(path: Path, kind: type[_T], what: str, mend: str, number: int | None = None) -> _T:
    """Decode a JSON file into a ``msgspec.Struct``.

    With a ``number``, the file must have the entry ``"format": number``. Raises :class:`FedsynthError` if the file does
    not fit the struct or is in another format. ``what`` says in the message what the file should be, and the message
    ends with ``mend``, the next step for the user.
    """
    content = path.read_bytes()
    try:
        if number is not None:
            refuse_format(msgspec.json.decode(content, type=_Marked).format, number, f"{path} ({what})", mend)
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FedsynthError(f"{path} is not {what} of this version ({_first_line(error)}); {mend}") from error


def refuse_format(found: object, number: int, what: str, mend: str) -> None:
    """Raise :class:`FedsynthError` unless a file's format (``found``, of any type) is the ``number`` that is read.

    The message begins with ``what``, the file's name, and ends with ``mend``, the next step for the user.
    """
    if type(found) is not int or found != number:
        problem = f"is in format {found}" if type(found) is int else "has no known format number"
        raise FedsynthError(f"{what} {problem}, but this version of fedsynth reads format {number}; {mend}")


def _first_line(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error).splitlines()[0]


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's directory entries, are on the disk (fsync).

    Windows opens no folder, and syncs a file only through a descriptor that may write to it: there, a folder's entries
    are left to the system.
    """
    if not POSIX and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if POSIX else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_database(source: Path, target: Path) -> None:
    """Copy an SQLite database consistently even while other processes write to it; only the owner can read the copy.

    Raises ``FileExistsError`` if ``target`` exists, and :class:`FedsynthError` if SQLite cannot copy.
    """
    import sqlite3  # few commands need it

    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        with closing(sqlite3.connect(source, timeout=60)) as held, closing(sqlite3.connect(target)) as copy:
            held.backup(copy)
    except sqlite3.Error as error:
        raise FedsynthError(f"cannot copy {source} ({error}); check for a full disk or a damaged file") from error
