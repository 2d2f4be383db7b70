"""Backup files: a zip archive with a snapshot of files and the SHA-256 digest of each.

Rule 1: the archive holds secrets and may hold rows, so only its owner can read it. Rule 2: it is written completely or
not at all, and it never replaces another backup. Rule 3: a restore puts no file back before the whole archive has been
read and every digest verified.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import IO

import msgspec

from fedsynth.errors import FedsynthError
from fedsynth.files import private_folder, refuse_format, sync, writing

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


class BackupContents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table of contents of a backup, which is stored in the backup itself.

    ``format`` is the version of the backup format, ``kind`` is ``site`` or ``server``, and ``name`` is the site's name
    or that of the server's folder. ``made`` is the time of the backup (UTC, as :func:`timestamp` writes it) and
    ``fedsynth`` the version of fedsynth that made it. ``files`` maps the relative path of each file in the backup to
    the SHA-256 (hex) of its content. ``row`` is the number of the last row of the site's audit log, the hash chain of
    everything that it was asked; 0 for a server.
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


def write_backup(to: Path, contents: BackupContents, files: Mapping[str, Path]) -> BackupContents:
    """Write a backup that only its owner can read, and return its table of contents with all digests.

    ``to`` is the new file. ``files`` maps each relative path in the backup to the file to read. ``contents`` is the
    table of contents to store; its own ``files`` may be empty, since the digests computed here take their place. Raises
    :class:`FedsynthError` if ``to`` exists, and ``OSError``; no partial file is left behind in either case.
    """
    refuse_existing(to)
    partial = to.with_name(f".{to.name}.{secrets.token_hex(4)}")
    descriptor = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        digests = {}
        with writing(to), os.fdopen(descriptor, "w+b") as opened:
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
    sync(to.parent)
    return contents


@contextmanager
def unpacked(archive: Path, kind: str, beside: Path) -> Iterator[tuple[BackupContents, Path]]:
    """Return a context manager that unpacks a backup for the ``with`` block, in which the caller restores its files.

    It yields the backup's table of contents, and the temporary folder in ``beside`` that holds the files; the caller
    moves them to their places. ``kind`` is ``site`` or ``server``. ``beside`` should be on the disk of the restored
    files, and is created if missing. On exit the folder is deleted, and so is ``beside`` if this function created it
    and it is empty. Raises :class:`FedsynthError` unless ``archive`` is a complete backup of this kind and this format
    version, with the right digest of every file, and ``OSError`` if it cannot be read.
    """
    made = not beside.exists()
    partial = Path(tempfile.mkdtemp(prefix=".restore.", dir=private_folder(beside)))
    try:
        try:
            with zipfile.ZipFile(archive) as opened:
                contents = _contents(archive, opened, kind)
                if any(info.compress_type != zipfile.ZIP_STORED for info in opened.infolist()):
                    raise ValueError("its files are compressed, and decompressing them could fill the disk")
                for name, digest in contents.files.items():
                    target = partial / _inside(name)
                    private_folder(target.parent)
                    with opened.open(name) as source, writing(target), open(target, "xb", opener=_private) as copy:
                        found = _copy(source, copy)
                        copy.flush()
                        os.fsync(copy.fileno())
                    if found != digest:
                        raise ValueError(f"the content of {name} does not match its digest")
        except _DAMAGE as error:
            raise FedsynthError(
                f"{archive} is damaged or is not a fedsynth backup ({error}); use another copy of the backup"
            ) from error
        yield contents, partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if made and not any(beside.iterdir()):
            beside.rmdir()


def set_aside(paths: Iterable[Path]) -> list[Path]:
    """Rename those of the files ``paths`` that exist, to make room for restored ones; return their new paths, in order.

    A new name is the old one with ``.before-restore-``, the time and four random hexadecimal digits appended.
    """
    mark = f"before-restore-{timestamp().replace(':', '')}-{secrets.token_hex(2)}"
    aside = []
    for path in paths:
        if path.exists() or path.is_symlink():
            aside.append(path.with_name(f"{path.name}.{mark}"))
            os.replace(path, aside[-1])
    return aside


def put(source: Path, target: Path) -> None:
    """Put the file ``source`` in the place of ``target`` atomically; missing folders are created for their owner only.

    On one disk the file is moved and keeps its mode. From another disk it is copied, readable by its owner only, and
    ``source`` remains. An existing ``target`` is replaced; :func:`set_aside` keeps it.
    """
    private_folder(target.parent)
    if source.stat().st_dev != target.parent.stat().st_dev:
        partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        with source.open("rb") as held, writing(target), open(partial, "xb", opener=_private) as copy:
            _copy(held, copy)
            copy.flush()
            os.fsync(copy.fileno())
        source = partial
    os.replace(source, target)
    sync(target.parent)


def timestamp() -> str:
    """Return the current time in UTC, such as ``2026-01-31T12:00:00Z``, for backups and the names of replaced files."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def refuse_existing(to: Path) -> None:
    """Raise :class:`FedsynthError` if the backup file ``to`` would replace an existing file."""
    if to.exists() or to.is_symlink():
        raise FedsynthError(f"{to} exists and may be the only backup; choose another file")


def _place(partial: Path, to: Path) -> None:
    """Rename a file; raises :class:`FedsynthError` if a file of that name was created in the meantime."""
    try:
        os.link(partial, to)  # unlike a rename, fails if the target was created in the meantime
    except FileExistsError:
        refuse_existing(to)
    except OSError:  # a USB stick or network share without hard links: reserve the name with an empty file first
        try:
            os.close(os.open(to, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            refuse_existing(to)
        os.replace(partial, to)


def _contents(archive: Path, opened: zipfile.ZipFile, kind: str) -> BackupContents:
    text = opened.read(_CONTENTS)
    mend = "restore it with the fedsynth version that wrote it"
    refuse_format(msgspec.json.decode(text, type=_Marked).format, FORMAT, f"the backup {archive}", mend)
    contents = msgspec.json.decode(text, type=BackupContents)
    if contents.kind != kind:
        command = "fedsynth site restore" if contents.kind == "site" else "fedsynth deploy restore"
        raise FedsynthError(f"{archive} is the backup of a {contents.kind}; restore it with `{command}`")
    return contents


def _inside(name: str) -> PurePosixPath:
    """Return the path of a file in a backup; raises ``ValueError`` if it would lie outside the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"the path {name!r} leads out of the folder")
    return path


def _add(archive: zipfile.ZipFile, name: str, path: Path) -> str:
    with path.open("rb") as source, archive.open(zipfile.ZipInfo(name, _EPOCH), "w", force_zip64=True) as copy:
        return _copy(source, copy)


def _copy(source: IO[bytes], target: IO[bytes]) -> str:
    """Copy a file and return the SHA-256 (hex) of its content."""
    digest = hashlib.sha256()
    while block := source.read(_BLOCK):
        digest.update(block)
        target.write(block)
    return digest.hexdigest()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
