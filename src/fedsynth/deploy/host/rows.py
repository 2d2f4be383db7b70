"""A site's rows for its questions: one encoded copy for each run, or the source itself, counted or streamed.

Rule 1: every file with rows that is written here is readable by its owner only. Rule 2: the copy or the source is
opened before a question's privacy cost is charged, and its rows are read afterwards. Where copies are made, a run reads
only the one made for its first question; it is never compared with the current source, so that no run learns whether a
row has changed since. Rule 3: copies are named by their content. Runs over the same rows share one, so that a server
that invents run names cannot fill the disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsynth.archive import pack, unpack
from fedsynth.errors import FedsynthError
from fedsynth.federation.site import rows_digest
from fedsynth.files import private_folder, write_private
from fedsynth.keys import SecretBytes
from fedsynth.locks import exclusive
from fedsynth.persons import require_persons
from fedsynth.platforms import is_exposed
from fedsynth.rows import Rows, Source, Table
from fedsynth.schema import Schema

if TYPE_CHECKING:
    from fedsynth.data.read import PersonLimit
    from fedsynth.deploy.host.config import SiteConfig
    from fedsynth.privacy.book import Book

_KIND = b"fedsynth rows "
_MAGIC = _KIND + b"1\n"
_CHECKSUM = 32  # bytes of SHA-256, after the magic
_LOCK = "lock"  # in the folder of the copies
_REST = 2 * 10**9  # ns; a file that changed this shortly before it was read may change again with the same stamp
_log = logging.getLogger(__name__)


# ---------------------------------------------------------------------------------------------------------------------
# The rows of a run


@dataclass(frozen=True, eq=False)
class RunRows:
    """The rows of a deployed site, opened for each question once its privacy cost is charged.

    ``secret`` (32 bytes) is the key of the digests of rows and of the choice among the rows of one person. The first
    question of a run reads the source under a lock and makes the run's copy; later questions read the copy. Rows that
    are counted or streamed have no copy: each question reads their current version, and the guarantee covers a person's
    rows in every version that the run read. Versions are not compared, since the result would reveal whether rows
    changed.
    """

    config: SiteConfig
    schema: Schema
    account: Book
    secret: bytes = field(repr=False)
    # The table of the run that asked last, by its name: a transport's message may hold many questions.
    _last: dict[str, Table] = field(default_factory=dict, repr=False)

    @property
    def holds_rows(self) -> bool:
        """Whether single rows can be read, from a run's copy."""
        return self.config.holds_rows

    @property
    def digest(self) -> str:
        """Digest (hex) that stands for the rows in the account; empty if each run's copy has its own.

        Rows that are counted or streamed may change, and have one digest for all runs, which does not depend on the
        rows, but on the source file.
        """
        declared = self._declared
        return "" if self.config.holds_rows else rows_digest(self.secret, f"counted in the database{declared}")

    @property
    def _declared(self) -> str:
        """What a run's record in the account says of the source file; empty without one."""
        digest = getattr(self.config.data, "digest", "")
        return f"-{digest}" if digest else ""

    def require(self, run: str) -> None:
        """Raise an error, before a question is charged, if the rows of a run evidently cannot be opened.

        Idle runs are closed first, never this one. The run's copy or, if it has none, the source is opened, and the
        header of a file or the catalogue of a database compared with the schema. Raises
        :class:`~fedsynth.errors.FedsynthError` if the steward has not said who a person is, and ``OSError`` or
        :class:`~fedsynth.errors.FedsynthError` for a copy or source that is missing, that may not be read, or that
        lacks a column. No row is read: the result depends on files, their rights, and the names and types of columns.
        Damage that only shows while rows are read fails after the charge.
        """
        self.config.require_persons()
        try:
            close_idle_runs(self.config, self.account, asking=run)
        except Exception as error:  # such as a full disk; this run can be answered nevertheless
            _log.warning("site %s: idle runs could not be closed: %s", self.config.name, error)
        if self.config.holds_rows and (pinned := self.account.pinned(run)):
            if self.account.agreed(run):  # else it is closed, has no copy, and is refused
                if not pinned.endswith(self._declared) or ("-" in pinned and not self._declared):
                    raise FedsynthError(
                        f"the source file of {self.config.name} has changed since run {run} began: undo the change, or "
                        "close the run (fedsynth account --close) and have another one started"
                    )
                _require_copy(run, _copy(self.config, pinned))
        else:
            _require_source(self.config, self.schema)

    @contextlib.contextmanager
    def opened(self, run: str) -> Iterator[Rows]:
        """A context manager that yields the rows for a question of the run; the first call for a run makes its copy.

        Raises :class:`~fedsynth.errors.FedsynthError` if the copy is missing, damaged, readable by others or of another
        schema or version, and all errors of :func:`load_rows`.
        """
        if (there := rows_in_place(self.config, self.schema)) is not None:
            with there as rows:
                yield rows
            return
        if run not in self._last:
            self._last.clear()
            self._last[run] = self._copy_of(run)
        yield self._last[run]

    def _copy_of(self, run: str) -> Table:
        if pinned := self.account.pinned(run):
            return self._pinned(run, pinned)
        with exclusive(private_folder(self.config.copies) / _LOCK):
            if pinned := self.account.pinned(run):  # by another process, meanwhile
                return self._pinned(run, pinned)
            table = load_rows(self.config, self.schema, self.secret)
            name = rows_digest(self.secret, table.digest) + self._declared
            if _read_copy(_copy(self.config, name), self.schema) is None:
                _write_copy(_copy(self.config, name), {}, table)
            self.account.pin(run, name)
            delete_copies(self.config, self.account)
        return table

    def _pinned(self, run: str, name: str) -> Table:
        path = _copy(self.config, name)
        _require_copy(run, path)
        found = _read_copy(path, self.schema)
        if found is None:
            raise _unusable(run, path, "damaged, or of another schema")
        return found[1]


def delete_copies(config: SiteConfig, account: Book) -> int:
    """Delete the copies of rows that no open run reads; return how many were deleted.

    The caller holds the lock of the copies' folder, under which a new copy is written and becomes a run's: so none
    belongs to a run that is just starting.
    """
    kept = {account.pinned(run) for run, _ in account.open_runs()}
    gone = 0
    for path in config.copies.glob("*.rows"):
        with contextlib.suppress(FileNotFoundError):  # deleted by another process
            if path.stem not in kept:
                path.unlink()
                gone += 1
    return gone


def close_run(config: SiteConfig, account: Book, run: str, by: str = "steward") -> int:
    """Close a run for good, so that the site answers no more of its questions, and return their number so far.

    Deleted are its stored replies, the random salts from which its noise followed, and its copy of the rows, unless
    another open run uses the same. ``by`` goes to the audit. What the run has spent stays charged; a run that was
    closed before gives 0. Raises :class:`~fedsynth.errors.InvalidParameter` for an unknown run.
    """
    with exclusive(private_folder(config.copies) / _LOCK):
        copy = account.pinned(run)
        questions = account.close(run, by)
        if copy and copy not in {account.pinned(other) for other, _ in account.open_runs()}:
            _copy(config, copy).unlink(missing_ok=True)
    return questions


def close_idle_runs(config: SiteConfig, account: Book, asking: str = "") -> list[str]:
    """Close the runs that asked nothing for ``keep_runs_days``, except the run named ``asking``; return their names.

    The copies of rows that no open run reads are deleted, too; with ``asking``, only if a run was closed.
    """
    closed = account.expire(config.policy.keep_runs_days, keep=asking)
    for run in closed:
        _log.info("run %s has asked nothing for %g days and is closed", run, config.policy.keep_runs_days)
    if (closed or not asking) and config.copies.is_dir():
        with exclusive(config.copies / _LOCK):
            delete_copies(config, account)
    return closed


def _copy(config: SiteConfig, name: str) -> Path:
    return config.copies / f"{name}.rows"


# ---------------------------------------------------------------------------------------------------------------------
# The source


def load_rows(config: SiteConfig, schema: Schema, secret: bytes, *, quiet: bool = False) -> Table:
    """Return the current rows of a site's source, encoded under ``schema``.

    Rows of a file come from a cache in the state folder if the file's size, times, inode and columns, or else its
    SHA-256, are unchanged, and so are the schema, the declared kind of a CSV file and the limit on a person's rows. If
    ``config`` names a column of persons, at most as many rows of each as its ``[policy] unit`` says are used, chosen by
    a key derived from ``secret``. The site's own log says what does not fit the schema, unless ``quiet`` is true;
    nothing else does. Raises :class:`~fedsynth.errors.SchemaError` if a column is missing or unreadable, or a CSV file
    that is declared ``rfc4180`` is not valid as a whole, and :class:`~fedsynth.errors.FedsynthError` for a source that
    is missing or being written to.
    """
    file = config.data.file
    if file is None:
        return _read(config, schema, secret, quiet)
    _require_file(config, file)
    stamp = _stamp(config.data, file)
    persons = [config.person, config.policy.unit.rows, _persons_key(secret)[:8].hex()] if config.person else []
    read_as = {"persons": persons, "records": getattr(config.data, "records", "")}
    found = _read_copy(config.cache, schema)
    head = found[0] if found is not None and read_as.items() <= found[0].items() else {}
    if found is not None and head.get("stamp") == stamp and head["at_rest"]:
        return found[1]
    at_rest = time.time_ns() - max(stamp["mtime_ns"], stamp["ctime_ns"]) > _REST
    with file.open("rb") as opened:
        sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
    unchanged = found is not None and head.get("sha256") == sha256
    table = found[1] if found is not None and unchanged else _read(config, schema, secret, quiet)
    if _stamp(config.data, file) != stamp:
        raise FedsynthError(f"{file} changed while it was read; try again when it is complete")
    _write_copy(config.cache, {"stamp": stamp, "at_rest": at_rest, "sha256": sha256, **read_as}, table)
    return table


def _require_source(config: SiteConfig, schema: Schema) -> None:
    if (file := config.data.file) is not None:
        _require_file(config, file)
    if config.counted:
        with config.data.counted(schema):
            return
    config.data.require({column.name: column for column in schema.asked})
    if config.person:
        require_persons(config.data, config.person)


def _require_file(config: SiteConfig, path: Path) -> None:
    if not path.is_file():
        raise FedsynthError(
            f"the source {path} is missing, or not a file; correct [source] data in the site.toml of {config.folder}"
        )


def rows_in_place(config: SiteConfig, schema: Schema) -> contextlib.AbstractContextManager[Rows] | None:
    """Return a context manager that yields the current rows of a site that counts or streams them; else ``None``."""
    if config.counted:
        return config.data.counted(schema)
    if not config.streamed:
        return None
    from fedsynth.data.sources.streamed import stream

    return stream(config.data, schema)


def _read(config: SiteConfig, schema: Schema, secret: bytes, quiet: bool) -> Table:
    from fedsynth.data.read import read_table  # imports pyarrow: not needed with a valid cache

    return read_table(config.data, schema, persons=person_limit(config, secret), quiet=quiet)


def person_limit(config: SiteConfig, secret: bytes) -> PersonLimit | None:
    """Return the limit on the rows that the site uses of each person, if any; ``secret`` decides which they are."""
    from fedsynth.data.read import PersonLimit

    return PersonLimit(config.person, config.policy.unit.rows, _persons_key(secret)) if config.person else None


def _persons_key(secret: bytes) -> bytes:
    return SecretBytes(hmac.digest(secret, b"rows of persons", "sha256"))


def _stamp(source: Source, file: Path) -> dict[str, Any]:
    found = file.stat()
    told = {name: getattr(found, f"st_{name}") for name in ("size", "mtime_ns", "ctime_ns", "ino")}
    return {**told, "columns": source.columns()}


# ---------------------------------------------------------------------------------------------------------------------
# Files of encoded rows


def _read_copy(path: Path, schema: Schema) -> tuple[dict[str, Any], Table] | None:
    """Read head and rows of a copy; ``None`` if it is missing, damaged, readable by others or of another schema."""
    try:
        exposed, data = is_exposed(path), path.read_bytes()
    except FileNotFoundError:
        return None
    start = len(_MAGIC) + _CHECKSUM
    content = memoryview(data)[start:]
    if exposed or not data.startswith(_MAGIC) or hashlib.sha256(content).digest() != data[len(_MAGIC) : start]:
        _log.warning("%s is damaged, of another version or readable by others", path)
        return None
    try:
        head, arrays = unpack(bytes(content))
    except FedsynthError as error:
        _log.warning("%s: %s", path, error)
        return None
    if head["schema"] != schema.digest:
        return None
    codes = tuple(arrays[f"codes{j}"] for j in range(len(schema.stored)))
    numbers = {int(name.removeprefix("numbers")): a for name, a in arrays.items() if name.startswith("numbers")}
    return head, Table(schema, codes, numbers, head["left_out"])


def _require_copy(run: str, path: Path) -> None:
    """Raise :class:`FedsynthError` unless the copy of a run's rows is there, private and of this version."""
    if not path.is_file():
        raise _unusable(run, path, "missing")
    if is_exposed(path):
        raise _unusable(run, path, "not private")
    with path.open("rb") as file:
        begun = file.read(len(_MAGIC))
    if begun.startswith(_KIND) and begun != _MAGIC:
        raise FedsynthError(
            f"the rows of run {run} were written by another version of fedsynth: {path}; finish the run with that "
            "version, or close it (fedsynth account --close) and have another one started"
        )
    if begun != _MAGIC:
        raise _unusable(run, path, "damaged")


def _unusable(run: str, path: Path, why: str) -> FedsynthError:
    return FedsynthError(
        f"the rows of run {run} are {why}: {path}; restore them, or close the run (fedsynth account --close) and have "
        "another one started"
    )


def _write_copy(path: Path, head: Mapping[str, Any], table: Table) -> None:
    arrays: dict[str, np.ndarray[Any, Any]] = {f"codes{j}": column for j, column in enumerate(table.codes)}
    arrays |= {f"numbers{j}": values for j, values in table.numbers.items()}
    content = pack({"schema": table.schema.digest, "left_out": table.left_out, **head}, arrays, compress=False)
    write_private(path, _MAGIC + hashlib.sha256(content).digest() + content)
