"""Backup and restoration of a site, and of a federation's server: one zip archive of files with their SHA-256 digests.

Rule 1: the archive holds secrets and may hold rows, so only its owner can read it. It is written completely or not at
all, and it never replaces another backup. Rule 2: databases are copied by SQLite, as of one moment, also while they are
written. Rule 3: nothing is put back before the whole archive has been read and every digest verified; nothing that a
restoration replaces is deleted, and it is kept under another name.

Rule 4: a site's account and its secret are one file; a damaged account is not backed up. A restored account may lack
charges that were made after the backup. If a coordinator has seen later entries than the account has, the site refuses
its requests until the steward has the account charged for what it lacks
(:meth:`~fedsynth.privacy.book.Book.restored`). Only a row that the site itself signed counts as lost.
"""

from __future__ import annotations

import contextlib
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
from typing import IO, Literal

import msgspec

import fedsynth
from fedsynth.deploy.host.config import FILE, SiteConfig
from fedsynth.deploy.host.state import open_account, site_secret
from fedsynth.errors import FedsynthError, InvalidParameter, said
from fedsynth.federation.wire import AuditPosition
from fedsynth.files import copy_database, load_toml, private_folder, refuse_format, sync, writing
from fedsynth.keys import Keys
from fedsynth.privacy.book import Book
from fedsynth.runs.state import load_coordinator

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
_JOURNALS = ("-journal", "-wal", "-shm")  # SQLite's, beside a database
_STATE, _ACCOUNT, _ROWS = "state", "account.sqlite", "rows"  # names in a backup of what [site] state holds
_BESIDE = ("*.toml", "*.pem", "*.key", "*.pub", "*.conf", "*.service", "compose.yaml", "Dockerfile")  # of a site.toml


class BackupContents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table of contents of a backup, which is stored in the backup itself.

    ``made`` is the time of the backup (UTC, such as ``2026-01-31T12:00:00Z``), ``files`` maps the relative path of each
    file to the SHA-256 (hex) of its content, and ``row`` is the last row of the site's audit log; 0 for a server.
    """

    format: int
    kind: Literal["site", "server"]
    name: str
    made: str
    fedsynth: str
    files: dict[str, str]
    row: int = 0


class _Head(msgspec.Struct):
    """What a backup of any version says."""

    format: int
    kind: Literal["site", "server"]


# ---------------------------------------------------------------------------------------------------------------------
# A site


def back_up_site(config: SiteConfig, to: Path, *, with_rows: bool = False) -> tuple[BackupContents, tuple[Path, ...]]:
    """Write a backup of a site to the new file ``to``, also while the site answers; return its contents and its gaps.

    Its gaps are the files that the site needs and that lie outside its folder; the source of the rows is in no backup,
    and not listed. With ``with_rows``, the backup also holds the copies of rows that open runs read; without them,
    those runs cannot go on after a restore. Raises :class:`~fedsynth.errors.FedsynthError` if the account is missing,
    damaged or readable by others, and if ``to`` exists.
    """
    _refuse_existing(to)
    account = open_account(config)
    site_secret(config, account)
    files, elsewhere = _files(config)
    with tempfile.TemporaryDirectory(prefix=".backup.", dir=config.state) as scratch:  # 0700, and of the account's disk
        copy = Path(scratch) / _ACCOUNT
        copy_database(config.account, copy)
        held = Book(copy)
        if wrong := held.verify().wrong:
            raise FedsynthError(
                f"{config.account} is not backed up, since it is damaged ({wrong}); put the last backup in its place "
                "with `fedsynth restore --replace`"
            )
        files[f"{_STATE}/{_ACCOUNT}"] = copy
        pinned = {held.pinned(run) for run, _ in held.open_runs()} if with_rows else set()
        files |= {f"{_STATE}/{_ROWS}/{path.name}": path for path in _copies(config, pinned)}
        return _write(to, "site", config.name, files, held.head()[0]), elsewhere


def restore_site(archive: Path, folder: Path, *, replace: bool = False) -> tuple[BackupContents, list[Path]]:
    """Restore a site's backup into a folder; return its table of contents, and the new paths of files that it replaced.

    ``folder`` must be new or empty. With ``replace``, existing files are replaced as well, also in a state folder that
    the backup's ``site.toml`` places elsewhere; they are kept under new names beside the restored ones. Digests, format
    and the account are checked first: if :class:`~fedsynth.errors.FedsynthError` is raised for any of them, nothing has
    changed. The restored account lacks the charges made after the backup; in their place,
    :meth:`~fedsynth.privacy.book.Book.restored`, to be called by hand, charges each open run up to its limit.
    """
    there = folder.is_dir() and any(folder.iterdir())
    if there and not replace:
        raise FedsynthError(
            f"{folder} is not empty; restore into a new folder, or pass --replace to put the backup in the place of "
            "what is there, which is kept aside"
        )
    with _unpacked(archive, "site", folder) as (contents, found):
        account = found / _STATE / _ACCOUNT
        if not account.is_file() or not (found / FILE).is_file():
            raise FedsynthError(f"{archive} holds no account or no {FILE}; use another copy of the backup")
        if wrong := Book(account).verify().wrong:
            raise FedsynthError(f"the account in {archive} is damaged ({wrong}); use another copy of the backup")
        Book(account).note("put back", made=contents.made)
        site = load_toml(found / FILE).get("site")
        state = folder / str(site.get("state", _STATE) if isinstance(site, dict) else _STATE)
        targets = {name: _target(folder, state, name) for name in contents.files}
        if not replace and (live := [path for path in targets.values() if path.exists() or path.is_symlink()]):
            raise FedsynthError(
                f"{live[0]} is there, where the backup's {FILE} puts it: it may be the account of a site that answers. "
                "Stop that site and pass --replace to put the backup in the place of what is there, which is kept aside"
            )
        # SQLite would apply a journal of the replaced account to the restored one.
        journals = [state / f"{_ACCOUNT}{end}" for end in _JOURNALS]
        aside = _set_aside([*targets.values(), *journals])
        # The account comes last: an interrupted restoration leaves a site that cannot answer.
        for name in sorted(targets, key=lambda name: name == f"{_STATE}/{_ACCOUNT}"):
            _put(found / name, targets[name])
        return contents, aside


def lost_row(config: SiteConfig, account: Book, head: str) -> int:
    """Return the number of the last audit row that a restored ``account`` lacks, from its signed ``head``.

    The head is the text ``ROW:CHAIN:SIGNATURE`` (:class:`~fedsynth.federation.wire.AuditPosition`), as the site's log
    and the server's ``state/seen.json`` have it. Raises :class:`InvalidParameter` for another text, for a head that
    this site did not sign, and for a row that the account has or has charged for: then nothing is lost.
    """
    found = AuditPosition.parse(head)
    if not found.verified(config.name, Keys(site_secret(config, account)).identity):
        raise InvalidParameter(
            f"--restored {head[:40]}...: {config.name} did not sign this head of its audit, so nothing is charged for "
            "it; copy it whole from this site's log or from the server's state/seen.json"
        )
    if account.holds(found.row, found.chain):
        raise InvalidParameter(
            f"--restored {head[:40]}...: the account has audit row {found.row}, or has charged for its loss, so "
            "nothing is missing and nothing is charged; start the site again"
        )
    return found.row


def _target(folder: Path, state: Path, name: str) -> Path:
    """Return the target of a backup's file; the state folder, which may lie anywhere, takes only account and rows."""
    within = PurePosixPath(name)
    if within.parts[0] != _STATE:
        return folder / within
    inner = within.relative_to(_STATE)
    if inner.as_posix() != _ACCOUNT and not (inner.parent.as_posix() == _ROWS and inner.suffix == ".rows"):
        raise FedsynthError(f"the backup holds {name}, which no site has in its state; use another copy of the backup")
    return state / inner


def _files(config: SiteConfig) -> tuple[dict[str, Path], tuple[Path, ...]]:
    """Return the site's files beside site.toml, by name, and the files that it needs elsewhere."""
    plans = load_toml(config.folder / FILE).get("policy", {}).get("plans", {})
    named = [config.schema, config.root_certificates, config.key]
    named += [config.folder / str(file) for file in plans.values()] if isinstance(plans, dict) else []
    named += [path for pattern in _BESIDE for path in sorted(config.folder.glob(pattern))]
    files, elsewhere = {FILE: config.folder / FILE}, []
    for path in named:
        place = Path(os.path.abspath(path))
        if not place.is_file():
            continue
        if place.is_relative_to(config.folder) and not place.is_relative_to(config.state):
            files[place.relative_to(config.folder).as_posix()] = place
        else:
            elsewhere.append(place)
    return files, tuple(dict.fromkeys(elsewhere))


def _copies(config: SiteConfig, names: set[str | None]) -> list[Path]:
    with contextlib.suppress(FileNotFoundError):
        return sorted(path for path in config.copies.iterdir() if path.suffix == ".rows" and path.stem in names)
    return []


# ---------------------------------------------------------------------------------------------------------------------
# A server


def back_up_server(folder: Path, to: Path) -> BackupContents:
    """Write a backup of the whole folder of a federation's server to the new file ``to``; return its table of contents.

    A run may go on meanwhile: the backup then lacks the end of its transcript. A run that has asked more since must not
    be resumed from the backup: it would ask for the missing answers again, maybe of other sites. Raises
    :class:`~fedsynth.errors.FedsynthError` for a folder without the coordinator's secret, and if ``to`` exists.
    """
    _refuse_existing(to)
    load_coordinator(folder)
    with tempfile.TemporaryDirectory(prefix=".backup.", dir=folder) as scratch:
        files: dict[str, Path] = {}
        for path in sorted(folder.rglob("*")):
            within = path.relative_to(folder)
            # Hidden files belong to a run or a backup in progress.
            if not path.is_file() or any(part.startswith(".") for part in within.parts):
                continue
            lock = path.name in ("lock", "seen.lock") or path.name.startswith("events.lock.")
            if lock or path.resolve() == to.resolve():
                continue
            if path.suffix == ".db":
                files[within.as_posix()] = Path(scratch) / f"{len(files)}.db"
                copy_database(path, files[within.as_posix()])
            elif not path.name.endswith(tuple(f".db{end}" for end in _JOURNALS)):
                files[within.as_posix()] = path
        return _write(to, "server", folder.resolve().name, files)


def restore_server(archive: Path, folder: Path) -> BackupContents:
    """Restore a server's backup into a new or empty folder; return its table of contents.

    Raises :class:`FedsynthError` for another folder, and for a file that is no complete backup of a server.
    """
    if folder.is_dir() and any(folder.iterdir()):
        raise FedsynthError(f"{folder} is not empty; move it away, keep it, and restore into a new folder")
    with _unpacked(archive, "server", folder) as (contents, found):
        load_coordinator(found)
        for name in contents.files:
            _put(found / name, folder / name)
        return contents


# ---------------------------------------------------------------------------------------------------------------------
# The archive


def _write(
    to: Path, kind: Literal["site", "server"], name: str, files: Mapping[str, Path], row: int = 0
) -> BackupContents:
    """Write the new archive ``to`` of ``files`` by their path in it, or nothing; return its table of contents."""
    partial = to.with_name(f".{to.name}.{secrets.token_hex(4)}")
    try:
        digests = {}
        with writing(to), open(partial, "x+b", opener=_private) as opened:
            with zipfile.ZipFile(opened, "w") as archive:
                for within, path in files.items():
                    member = zipfile.ZipInfo(within, _EPOCH)
                    with path.open("rb") as source, archive.open(member, "w", force_zip64=True) as copy:
                        digests[within] = _copy(source, copy)
                contents = BackupContents(FORMAT, kind, name, _timestamp(), fedsynth.__version__, digests, row)
                archive.writestr(zipfile.ZipInfo(_CONTENTS, _EPOCH), msgspec.json.encode(contents))
            opened.flush()
            os.fsync(opened.fileno())
        _place(partial, to)
    finally:
        partial.unlink(missing_ok=True)
    sync(to.parent)
    return contents


def kind_of(archive: Path) -> Literal["site", "server"]:
    """Return what a backup is of; raises :class:`FedsynthError` for another file, and ``OSError``."""
    with _opened(archive) as opened:
        return msgspec.json.decode(opened.read(_CONTENTS), type=_Head).kind


@contextmanager
def _opened(archive: Path) -> Iterator[zipfile.ZipFile]:
    damaged = f"{archive} is damaged or is not a fedsynth backup ({{error}}); use another copy of the backup"
    with said(damaged, *_DAMAGE), zipfile.ZipFile(archive) as opened:
        if any(info.compress_type != zipfile.ZIP_STORED for info in opened.infolist()):
            raise ValueError("its files are compressed, and decompressing them could fill memory or disk")
        yield opened


@contextmanager
def _unpacked(archive: Path, kind: str, beside: Path) -> Iterator[tuple[BackupContents, Path]]:
    """Return a context manager that yields a backup's contents, and the temporary folder with its files.

    In the ``with`` block, the caller moves the files to their places. The folder lies in ``beside``, which should be on
    the disk of the restored files, and is removed again if it was missing and is empty. Raises :class:`FedsynthError`
    unless ``archive`` is a complete backup of this kind and format, with the right digest of every file.
    """
    made = not beside.exists()
    partial = Path(tempfile.mkdtemp(prefix=".restore.", dir=private_folder(beside)))
    try:
        with _opened(archive) as opened:
            text = opened.read(_CONTENTS)
            mend = "restore it with the fedsynth version that wrote it"
            refuse_format(msgspec.json.decode(text, type=_Head).format, FORMAT, f"the backup {archive}", mend)
            contents = msgspec.json.decode(text, type=BackupContents)
            if contents.kind != kind:
                raise FedsynthError(f"{archive} is the backup of a {contents.kind}, not of a {kind}; give another one")
            for name, digest in contents.files.items():
                target = partial / _inside(name)
                private_folder(target.parent)
                with opened.open(name) as source:
                    found = _copy_to(source, target)
                if found != digest:
                    raise ValueError(f"the content of {name} does not match its digest")
        yield contents, partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if made and not any(beside.iterdir()):
            beside.rmdir()


def _inside(name: str) -> PurePosixPath:
    """Return the path of a file in a backup; raises ``ValueError`` if it would lie outside the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"the path {name!r} leads out of the folder")
    return path


def _set_aside(paths: Iterable[Path]) -> list[Path]:
    """Rename those of the files ``paths`` that exist, to make room for restored ones; return their new paths."""
    mark = f"before-restore-{_timestamp().replace(':', '')}-{secrets.token_hex(2)}"
    aside = []
    for path in paths:
        if path.exists() or path.is_symlink():
            aside.append(path.with_name(f"{path.name}.{mark}"))
            os.replace(path, aside[-1])
    return aside


def _put(source: Path, target: Path) -> None:
    """Put ``source`` in the place of ``target`` atomically: moved on one disk, else copied for its owner alone."""
    private_folder(target.parent)
    if source.stat().st_dev != target.parent.stat().st_dev:
        partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        with source.open("rb") as held, writing(target):
            _copy_to(held, partial)
        source = partial
    os.replace(source, target)
    sync(target.parent)


def _refuse_existing(to: Path) -> None:
    if to.exists() or to.is_symlink():
        raise FedsynthError(f"{to} exists and may be the only backup; choose another file")


def _place(partial: Path, to: Path) -> None:
    """Rename a file; raises :class:`FedsynthError` if a file of that name was created in the meantime."""
    try:
        os.link(partial, to)  # unlike a rename, fails if the target was created in the meantime
    except FileExistsError:
        _refuse_existing(to)
    except OSError:  # a USB stick or network share without hard links: reserve the name with an empty file first
        try:
            os.close(os.open(to, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            _refuse_existing(to)
        os.replace(partial, to)


def _copy_to(source: IO[bytes], target: Path) -> str:
    """Copy into a new file that only its owner can read; return the SHA-256 (hex) of its content."""
    with writing(target), open(target, "xb", opener=_private) as copy:
        digest = _copy(source, copy)
        copy.flush()
        os.fsync(copy.fileno())
    return digest


def _copy(source: IO[bytes], target: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while block := source.read(_BLOCK):
        digest.update(block)
        target.write(block)
    return digest.hexdigest()


def _timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
