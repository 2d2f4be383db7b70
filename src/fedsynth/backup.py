"""One file that holds a backup: a zip of files as they were at one moment, with the digest of each.

Rule 1: the file holds secrets and may hold rows; its owner alone can read it. Rule 2: it is written whole or not at
all, and never in the place of another. Rule 3: nothing of it is put back before all of it has been read and every
digest is right.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import sqlite3
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import IO

import msgspec

from fedsynth.errors import FedsynthError
from fedsynth.files import private_folder, refuse_format, sync_folder

FORMAT = 1
_CONTENTS = "backup.json"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_BLOCK = 1 << 20
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    msgspec.MsgspecError,
)


class Contents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a backup says of itself: of a ``site`` or of a ``server``, whose, when it was made, by which fedsynth.

    ``files`` are the SHA-256 (hex) of the files by their paths, ``row`` the last audit row of a site's account.
    """

    format: int
    kind: str
    name: str
    made: str
    fedsynth: str
    files: dict[str, str]
    row: int = 0


class _Marked(msgspec.Struct):
    format: int


def write_backup(to: Path, contents: Contents, files: Mapping[str, Path]) -> Contents:
    """Write a backup of ``files`` (by their paths in it), readable by its owner alone; return what it says of itself.

    Raises :class:`FedsynthError` where ``to`` exists, and ``OSError``; then nothing is left behind.
    """
    refuse_existing(to)
    partial = to.with_name(f".{to.name}.{secrets.token_hex(4)}")
    descriptor = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        digests = {}
        with os.fdopen(descriptor, "w+b") as opened:
            with zipfile.ZipFile(opened, "w") as archive:
                for name, path in files.items():
                    digests[name] = _add(archive, name, path)
                contents = msgspec.structs.replace(contents, files=digests)
                archive.writestr(zipfile.ZipInfo(_CONTENTS, _EPOCH), msgspec.json.encode(contents))
            opened.flush()
            os.fsync(opened.fileno())
        _place(partial, to)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(to.parent)
    return contents


@contextmanager
def unpacked(archive: Path, kind: str, beside: Path) -> Iterator[tuple[Contents, Path]]:
    """Give what a backup says of itself, and a folder in ``beside`` with its files, all of them checked.

    The folder is gone when the block ends, and so is ``beside`` if it was made here and holds nothing. Raises
    :class:`FedsynthError` for a file that is no whole backup of that kind and of this version.
    """
    made = not beside.exists()
    partial = Path(tempfile.mkdtemp(prefix=".restore.", dir=private_folder(beside)))
    try:
        try:
            with zipfile.ZipFile(archive) as opened:
                contents = _contents(archive, opened, kind)
                if any(info.compress_type != zipfile.ZIP_STORED for info in opened.infolist()):
                    raise ValueError("its files are compressed, and could fill the disk")
                for name, digest in contents.files.items():
                    target = partial / _inside(name)
                    private_folder(target.parent)
                    with opened.open(name) as source, open(target, "xb", opener=_private) as copy:
                        found = _copy(source, copy)
                        copy.flush()
                        os.fsync(copy.fileno())
                    if found != digest:
                        raise ValueError(f"{name} is not what was written")
        except _DAMAGE as error:
            raise FedsynthError(
                f"{archive} is damaged, or no backup of fedsynth ({error}); use another copy of the backup"
            ) from error
        yield contents, partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if made and not any(beside.iterdir()):
            beside.rmdir()


def copy_database(source: Path, target: Path) -> None:
    """Write one consistent copy of an SQLite database that others may be writing to, for the owner alone."""
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        with closing(sqlite3.connect(source, timeout=60)) as held, closing(sqlite3.connect(target)) as copy:
            held.backup(copy)
    except sqlite3.Error as error:
        raise FedsynthError(f"{source} cannot be copied ({error}); is the disk full, or the file damaged?") from error


def set_aside(paths: Iterable[Path]) -> list[Path]:
    """Rename the files of these paths that are there, so that others can take their places; return the new names."""
    mark = f"before-restore-{moment().replace(':', '')}-{secrets.token_hex(2)}"
    aside = []
    for path in paths:
        if path.exists() or path.is_symlink():
            aside.append(path.with_name(f"{path.name}.{mark}"))
            os.replace(path, aside[-1])
    return aside


def put(source: Path, target: Path) -> None:
    """Move a file to its place, whole or not at all, be it on another disk; it is its owner's alone."""
    private_folder(target.parent)
    if source.stat().st_dev != target.parent.stat().st_dev:
        partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        with source.open("rb") as held, open(partial, "xb", opener=_private) as copy:
            _copy(held, copy)
            copy.flush()
            os.fsync(copy.fileno())
        source = partial
    os.replace(source, target)
    sync_folder(target.parent)


def moment() -> str:
    """Return the time (UTC) as it stands in a backup and in the names of what a backup replaced."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def refuse_existing(to: Path) -> None:
    """Raise :class:`FedsynthError` for a file that a backup would replace."""
    if to.exists() or to.is_symlink():
        raise FedsynthError(f"{to} exists and may be the only backup; choose another file")


def _place(partial: Path, to: Path) -> None:
    """Give a file its name; raises :class:`FedsynthError` where another got that name meanwhile."""
    try:
        os.link(partial, to)  # unlike a rename, refuses to replace a file made meanwhile
    except FileExistsError:
        refuse_existing(to)
    except OSError:  # a stick or a share without hard links: the name is taken first, by an empty file
        try:
            os.close(os.open(to, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            refuse_existing(to)
        os.replace(partial, to)


def _contents(archive: Path, opened: zipfile.ZipFile, kind: str) -> Contents:
    text = opened.read(_CONTENTS)
    mend = "restore it with the fedsynth that wrote it"
    refuse_format(msgspec.json.decode(text, type=_Marked).format, FORMAT, f"the backup {archive}", mend)
    contents = msgspec.json.decode(text, type=Contents)
    if contents.kind != kind:
        command = "fedsynth site restore" if contents.kind == "site" else "fedsynth deploy restore"
        raise FedsynthError(f"{archive} is the backup of a {contents.kind}; put it back with `{command}`")
    return contents


def _inside(name: str) -> PurePosixPath:
    """Return the path of a file in a backup, which must not lead out of the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"{name!r} leads out of the folder")
    return path


def _add(archive: zipfile.ZipFile, name: str, path: Path) -> str:
    with path.open("rb") as source, archive.open(zipfile.ZipInfo(name, _EPOCH), "w", force_zip64=True) as copy:
        return _copy(source, copy)


def _copy(source: IO[bytes], target: IO[bytes]) -> str:
    """Copy a file, and return the SHA-256 (hex) of its content."""
    digest = hashlib.sha256()
    while block := source.read(_BLOCK):
        digest.update(block)
        target.write(block)
    return digest.hexdigest()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
