"""Backup and restoration of a site: what it needs to run elsewhere but the source of its rows, in one file.

Rule 1: the site's account (its record of spent budget) and its secret are backed up together, as a snapshot of one
file; a damaged account is not backed up. Rule 2: a restoration deletes nothing: replaced files are kept under other
names. Rule 3: a restored account may lack charges that were made after the backup. If a coordinator has seen later
entries than the account has, the site refuses its requests until the steward has the account charged for what it lacks
(:meth:`~fedsynth.privacy.book.Book.restored`). Only a row that the site itself signed counts as lost.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import fedsynth
from fedsynth.deploy.backup import (
    FORMAT,
    BackupContents,
    put,
    refuse_existing,
    set_aside,
    timestamp,
    unpacked,
    write_backup,
)
from fedsynth.deploy.host.config import FILE, SiteConfig
from fedsynth.deploy.host.state import open_account, site_secret
from fedsynth.errors import FedsynthError, InvalidParameter
from fedsynth.federation.wire import AuditPosition
from fedsynth.files import copy_database, load_toml
from fedsynth.keys import Keys
from fedsynth.privacy.book import Book

KIND = "site"
_ACCOUNT, _ROWS = "account.sqlite", "rows"  # names in the backup of what [site] state holds
_STATE = "state"
_BESIDE = (
    "*.toml",
    "*.pem",
    "*.key",
    "*.pub",
    "*.conf",
    "*.service",
    "compose.yaml",
    "Dockerfile",
)  # keys, proxy, units


@dataclass(frozen=True)
class Backup:
    """Result of :func:`back_up_site`: the table of contents of the written file, and the files that it lacks.

    ``elsewhere`` are files that the site needs and that lie outside its folder, such as a schema named by an absolute
    path. The source of the rows is in no backup, and not listed.
    """

    contents: BackupContents
    elsewhere: tuple[Path, ...]


def back_up_site(config: SiteConfig, to: Path, *, with_rows: bool = False) -> Backup:
    """Write a backup of a site to the new file ``to``, also while the site answers; return its contents and its gaps.

    Its gaps are the files that the site needs and that lie elsewhere (:class:`Backup`). The backup holds the account
    (the record of spent budget), secret, keys and configuration: protect it like the rows. With ``with_rows``, it also
    holds the copies of rows that open runs read; without them, those runs cannot go on after a restore. Raises
    :class:`~fedsynth.errors.FedsynthError` if the account is missing, damaged or readable by others, and if ``to``
    exists.
    """
    refuse_existing(to)
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
                "with `fedsynth site restore --replace`"
            )
        files[f"{_STATE}/{_ACCOUNT}"] = copy
        pinned = {held.pinned(run) for run, _ in held.open_runs()} if with_rows else set()
        files |= {f"{_STATE}/{_ROWS}/{path.name}": path for path in _copies(config, pinned)}
        contents = BackupContents(FORMAT, KIND, config.name, timestamp(), fedsynth.__version__, {}, held.head()[0])
        return Backup(write_backup(to, contents, files), elsewhere)


def restore_site(archive: Path, folder: Path, *, replace: bool = False) -> tuple[BackupContents, list[Path]]:
    """Restore a site's backup into a folder; return its table of contents, and the new paths of files that it replaced.

    ``folder`` must be new or empty. With ``replace``, existing files are replaced as well, also in a state folder that
    the backup's ``site.toml`` places elsewhere; they are kept under new names beside the restored ones. Digests, format
    and the account (the record of spent budget) are checked first: if :class:`~fedsynth.errors.FedsynthError` is raised
    for any of them, nothing has changed. The restored account lacks the charges made after the backup; in their place,
    :meth:`~fedsynth.privacy.book.Book.restored`, to be called by hand, charges each open run up to its limit.
    """
    there = folder.is_dir() and any(folder.iterdir())
    if there and not replace:
        raise FedsynthError(
            f"{folder} is not empty; restore into a new folder, or pass --replace to put the backup in the place of "
            "what is there, which is kept aside"
        )
    with unpacked(archive, KIND, folder) as (contents, found):
        account = found / _STATE / _ACCOUNT
        if not account.is_file() or not (found / FILE).is_file():
            raise FedsynthError(f"{archive} holds no account or no {FILE}; use another copy of the backup")
        if wrong := Book(account).verify().wrong:
            raise FedsynthError(f"the account in {archive} is damaged ({wrong}); use another copy of the backup")
        Book(account).note("put back", made=contents.made)
        state = folder / str(load_toml(found / FILE).get("site", {}).get("state", _STATE))
        targets = {name: _target(folder, state, name) for name in contents.files}
        if not replace and (live := [path for path in targets.values() if path.exists() or path.is_symlink()]):
            raise FedsynthError(
                f"{live[0]} is there, where the backup's {FILE} puts it: it may be the account of a site that answers. "
                "Stop that site and pass --replace to put the backup in the place of what is there, which is kept aside"
            )
        # SQLite would apply a journal of the replaced account to the restored one.
        journals = [state / f"{_ACCOUNT}{end}" for end in ("-journal", "-wal", "-shm")]
        aside = set_aside([*targets.values(), *journals])
        # The account comes last: an interrupted restoration leaves a site that cannot answer.
        for name in sorted(targets, key=lambda name: name == f"{_STATE}/{_ACCOUNT}"):
            put(found / name, targets[name])
        return contents, aside


def lost_row(config: SiteConfig, account: Book, head: str) -> int:
    """Return the number of the last audit row that a restored ``account`` lacks, from its signed head.

    ``head`` is the text ``ROW:CHAIN:SIGNATURE`` (:class:`~fedsynth.federation.wire.AuditPosition`), as the site's log
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
    said = load_toml(config.folder / FILE)
    plans = said.get("policy", {}).get("plans", {})
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
    """Return the copies of rows with these names that still exist; a run may have been closed meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(path for path in config.copies.iterdir() if path.suffix == ".rows" and path.stem in names)
    return []
