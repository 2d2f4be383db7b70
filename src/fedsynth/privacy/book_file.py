"""The file of a book (:mod:`~fedsynth.privacy.book`): one SQLite database, its audit, and how damage is found.

Every row of the database ends with a SHA-256 hash of its content, which is verified whenever the row is read whole, so
before anything is charged or sent: SQLite's own check sees no flipped bit within a value. It detects damage, not
forgery by those who can write the file. Counts and sums over rows (a plan's used slots, repeated replies, stored bytes)
are read without.

The hash of an audit row is its *chain value*: the row, JSON with the request, its cost, the running totals and whom
they are for, contains that of the row before. Editing, removing or moving a row breaks this chain. The chain alone
cannot show that its end was cut off or rewritten from some row on; therefore servers remember the last row that they
saw, and who is responsible for the book can note the hash of the last row elsewhere.

The writes of a transaction are durable when it ends (``synchronous = EXTRA``), and deleted content is overwritten.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_type_hints

import msgspec

from fedsynth.errors import FedsynthError, Unsupported
from fedsynth.privacy.cost import ONE_ROW, ORDERS, Budget, Cost, Neighbours, ProtectedChange, Unit

_LONGEST = 200  # most characters of a text in the row of a rejected message, so that no message can fill the disk
_UNKNOWN = 1e15  # a log-moment that no limit covers
_FORMAT = 1  # of the file, stored as user_version
# SQLite errors that are not damage but concern the disk, its permissions, or other processes.
_PASSING = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}

_PLAIN = {int, float, str, bytes}
RESTORES = "restores"
"""Key of the parts that list restored backups."""

# Hashes cover values as they are read; numeric columns have no declared type, so SQLite never converts them.
_TABLES = """
CREATE TABLE audit (row INTEGER PRIMARY KEY, content BLOB NOT NULL, chain BLOB NOT NULL);
CREATE TABLE runs (
    run TEXT PRIMARY KEY, closed NOT NULL, rows TEXT NOT NULL, spent BLOB NOT NULL, most BLOB NOT NULL,
    used NOT NULL, change BLOB NOT NULL, stored NOT NULL, hash BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE questions (
    key TEXT PRIMARY KEY, run TEXT NOT NULL, row NOT NULL, paid NOT NULL, salt BLOB NOT NULL, terms TEXT NOT NULL,
    slots TEXT NOT NULL, price NOT NULL, replays NOT NULL, hash BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX questions_slots ON questions (run, slots, price) WHERE paid;
CREATE INDEX questions_open ON questions (row) WHERE NOT paid;
CREATE TABLE parts (
    key TEXT NOT NULL, part TEXT NOT NULL, value BLOB NOT NULL, hash BLOB NOT NULL, PRIMARY KEY (key, part));
CREATE TABLE rejected (hour NOT NULL, count NOT NULL, digest BLOB NOT NULL, hash BLOB NOT NULL);
CREATE TABLE clock (reading NOT NULL, age NOT NULL, hash BLOB NOT NULL);
"""


# ---------------------------------------------------------------------------------------------------------------------
# The audit

START = bytes(32)
"""Chain value before the first row."""


@dataclass(frozen=True)
class AuditResult:
    """The result of verifying a book, or an export of its audit: how far the audit goes, and the first fault.

    ``rows`` is the number of the last verified audit row, and ``head`` its chain value (hex). ``wrong`` describes the
    first fault, or is empty; ``broken`` is the audit row that it concerns, 0 if it concerns no single row. ``noted_at``
    is the row whose chain value was noted outside the book and given to be found again, 0 if there is no such row.
    """

    rows: int
    head: str
    broken: int = 0
    wrong: str = ""
    noted_at: int = 0

    @property
    def fault(self) -> str:
        """The first fault with its audit row; empty without one."""
        return f"row {self.broken} {self.wrong}" if self.broken else self.wrong


class AuditRow(msgspec.Struct, frozen=True):
    """The fields of an audit row that the book itself reads; further fields are for people.

    * ``row``: number of the row, from 1.
    * ``outcome``: what happened, such as "charged", "re-priced", "opened", "refused", "closed" or "restored".
    * ``total``: all costs charged up to this row; ``exact``: the number of releases without noise up to it.
    * ``unit``, ``neighbours``: whom the costs are for (:class:`~fedsynth.privacy.cost.ProtectedChange`). Only a row
      "re-priced" changes them, and multiplies the total accordingly.
    * ``previous``: chain value (hex) of the row before.
    * ``cost``: ``None`` if nothing was charged; ``run_total``: all costs of the run up to this row, otherwise.
    * ``seen``: in a row about a restored backup, the last row that a server had seen before; otherwise 0.
    """

    row: int
    outcome: str
    total: Cost
    exact: int
    previous: str
    unit: Unit = ONE_ROW
    neighbours: Neighbours = "add-remove"
    key: str = ""
    run: str = ""
    cost: Cost | None = None
    run_total: Cost = Cost()
    seen: int = 0

    @property
    def change(self) -> ProtectedChange:
        """The change of a table that the costs are for."""
        return ProtectedChange(self.unit, self.neighbours)


read_row = msgspec.json.Decoder(AuditRow).decode


class AuditHead(NamedTuple):
    """The end of an audit: its last row's number and chain value (0 and zero bytes before any), and the totals."""

    row: int = 0
    chain: bytes = START
    total: Cost = Cost()
    exact: int = 0
    change: ProtectedChange = ProtectedChange()

    def plus(self, cost: Cost | None) -> tuple[Cost, int]:
        """Return the total cost and the number of exact releases after a further ``cost``; ``None`` adds nothing."""
        return (self.total, self.exact) if cost is None else (self.total + cost, self.exact + math.isinf(cost.rho))

    def repriced(self, change: ProtectedChange) -> AuditHead:
        """Return the end with the total for another ``change``, of which the present one is a part.

        Raises :class:`~fedsynth.errors.Unsupported` if the total has no bound for it.
        """
        return self._replace(total=self.total.grouped(self.change.steps_to(change)), change=change)

    def next_row(
        self, number: int, moment: datetime, nonce: bytes, outcome: str, facts: Mapping[str, object], cost: Cost | None
    ) -> tuple[bytes, bytes]:
        """Return the content (JSON) of the row that follows, and its chain value (32 bytes).

        ``cost`` is what it charges, ``None`` for nothing. ``nonce`` must be random: chain values leave the site, and
        without a nonce anyone could use them to test guesses about a row's content.
        """
        total, exact = self.plus(cost)
        opening = {"row": number, "time": moment.isoformat(timespec="milliseconds"), "outcome": outcome}
        whom = {"unit": self.change.unit, "neighbours": self.change.neighbours}
        ending = {"total": total, "exact": exact, **whom, "previous": self.chain.hex()}
        content = msgspec.json.encode({**opening, "nonce": nonce.hex(), **facts, **ending})
        return content, hashlib.sha256(content).digest()


@dataclass
class ChainCheck:
    """Verification of audit rows from the first one on: the hash chain, the running totals, and the charges.

    ``noted`` is a chain value (hex) that is to be found again, or empty. The other attributes are the state after the
    rows so far: ``noted_at`` the row with that value (0: not met), ``runs`` the cost of each run, ``charged`` the row
    that charged each question (by its key), and ``restores`` the rows about restored backups, with the last row that a
    server had seen before each.
    """

    noted: str
    head: AuditHead = field(default_factory=AuditHead)
    noted_at: int = 0
    runs: dict[str, Cost] = field(default_factory=dict)
    charged: dict[str, int] = field(default_factory=dict)
    restores: dict[int, int] = field(default_factory=dict)

    def follow(self, content: object) -> str:
        """Verify the next audit row, and add it unless faulty; return the fault (a clause after "row n") or ""."""
        try:
            row = read_row(content if isinstance(content, bytes) else b"")
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return "is not an audit row"
        assert isinstance(content, bytes)
        before = self.head
        if row.previous != before.chain.hex():
            return "does not follow from the row before it: one of the two was changed, or rows are missing or moved"
        if row.row != before.row + 1 and not (row.outcome == "restored" and row.row > before.row):
            return f"follows row {before.row} but has the number {row.row}"
        if row.change != before.change:
            if row.outcome != "re-priced" or row.change.covering(before.change) != row.change:
                return "counts its total for other persons than the row before it"
            try:
                before = before.repriced(row.change)
            except Unsupported as error:
                return f"has a total without a bound: {error}"
        if (row.total, row.exact) != before.plus(row.cost):
            return "has another total than the sum of all charges"
        if row.cost is not None:
            run_total = self.runs.get(row.run, Cost()) + row.cost
            if row.run_total != run_total:
                return "has another total for its run than the sum of the run's charges"
            self.runs[row.run] = run_total
        if row.outcome == "charged":
            self.charged[row.key] = row.row
        if row.outcome == "restored":
            self.restores[row.row] = row.seen
        self.head = AuditHead(row.row, hashlib.sha256(content).digest(), row.total, row.exact, row.change)
        if self.head.chain.hex() == self.noted:
            self.noted_at = row.row
        return ""

    def findings(self, broken: int = 0, wrong: str = "") -> AuditResult:
        """Return the result so far, with a fault if ``wrong`` describes one; ``broken`` is its audit row, or 0."""
        return AuditResult(self.head.row, self.head.chain.hex(), broken, wrong, self.noted_at)


def verify_export(path: Path, noted: str = "") -> AuditResult:
    """Verify audit rows exported to a file, one JSON object per line, and return the result up to the first fault.

    ``noted`` is as in :meth:`~fedsynth.privacy.book.Book.verify`. Raises ``OSError`` for a file that cannot be read.
    """
    chain = ChainCheck(noted)
    with path.open("rb") as file:
        for line in file:
            wrong = chain.follow(line.removesuffix(b"\n"))
            if wrong:
                return chain.findings(chain.head.row + 1, wrong)
    return chain.findings()


def short(value: object) -> int | str:
    """Return a fact about a message as an audit row stores it: a 64-bit integer as it is, else up to 200 characters."""
    if type(value) is int and abs(value) < 2**63:
        return value
    text = str(value)
    cut = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"
    return cut.encode(errors="backslashreplace").decode()


# ---------------------------------------------------------------------------------------------------------------------
# Records


class RunRecord(NamedTuple):
    """The book's record of a run.

    * ``closed``: 1 if it may ask nothing more, otherwise 0.
    * ``rows``: keyed digest (hex) of the rows that it reads; empty if not yet known.
    * ``spent``: its cost to one person so far; ``limit``: the most that it may cost one person.
    * ``used``: the book's age (:class:`ClockRecord`, in seconds) at its last use.
    * ``change``: whom its cost and its limit are for: the book's when the run began.
    * ``stored``: the most bytes that its questions make the book store.
    """

    run: str
    closed: int
    rows: str
    spent: Cost
    limit: Budget
    used: float
    change: ProtectedChange
    stored: int = 0

    def rest(self, *, sampled: bool) -> Cost:
        """Return the most that the run may still have spent within its limit, for a run whose last charges are lost.

        That is the rest of the limit (:meth:`Budget.rest <fedsynth.privacy.cost.Budget.rest>`), unless the lost charges
        may be for releases on random samples of rows (``sampled``). The limit bounds the Renyi divergence of those at
        one order (:attr:`Budget.order <fedsynth.privacy.cost.Budget.order>`) alone, by D = order * (the rho that is
        left). Divergences grow with the order, so D is also a bound at every lower order; nothing is known at higher
        orders, and the result is a curve. Curves have values at the orders :data:`~fedsynth.privacy.cost.ORDERS` only,
        between which they are interpolated: a site whose own limit has an order above the last of these that is not
        above the run's is charged more than that limit. A limit with an order above all of them admits no such
        releases.
        """
        limit = self.limit
        if not limit.pure and math.isinf(self.spent.rho):
            return Cost()
        rest = limit.rest(self.spent)
        if not sampled or limit.pure or limit.exact or limit.order > ORDERS[-1] or not rest.rho:
            return rest
        bound = rest.rho * limit.order
        return Cost(math.inf, 0.0, tuple((a - 1) * bound if a <= limit.order else _UNKNOWN for a in ORDERS))


class QuestionRecord(NamedTuple):
    """The book's record of a question that is charged or has an open session.

    * ``key``, ``terms``: as in :class:`Charge`; ``row``: number of its audit row.
    * ``paid``: 1 if it is charged, 0 if only its session is open.
    * ``salt``: random bytes for its noise, empty once the run is closed.
    * ``slots``: its group (verb, kind and class of release) in an approved plan; ``price``: that of the slot that it
      uses up, 0 without a plan.
    * ``replays``: how often its reply was sent again.
    """

    key: str
    run: str
    row: int
    paid: int
    salt: bytes
    terms: str
    slots: str
    price: float
    replays: int = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}(key={self.key!r}, run={self.run!r}, row={self.row})"


class PartRecord(NamedTuple):
    """The book's record of a reply, or of another value that is stored by name.

    =================================  =======================  ======================================================
    ``key``                            ``part``                 ``value``
    =================================  =======================  ======================================================
    a question's                       "turn" and a number      the reply to that message
    a question's, or empty             "session" and a name     a value stored between messages, or the site's own
    "run" and a run's name             "salt", "agreement"      the run's salt and agreement
    "hour free", "hour unanswered"     digest of a message      number of this hour's audit row about it
    "restores"                         number of an audit row   last row that a server had seen before that restoration
    =================================  =======================  ======================================================
    """

    key: str
    part: str
    value: bytes

    def __repr__(self) -> str:
        return f"{type(self).__name__}(key={self.key!r}, part={self.part!r})"


class RejectedRecord(NamedTuple):
    """The book's count of the unanswered messages of one hour that got no audit row of their own.

    ``hour`` counts hours since 1970, and ``number`` the messages; ``digest`` is a hash of them.
    """

    hour: int
    number: int = 0
    digest: bytes = START


class ClockRecord(NamedTuple):
    """The book's own time: the last ``reading`` of the clock (seconds since 1970), and its ``age`` then, in seconds.

    The age grows by at most a day between two readings. Idle runs are closed by it, so that a clock that is wrong for a
    while closes none.
    """

    reading: float
    age: float


_Record = TypeVar("_Record", RunRecord, QuestionRecord, PartRecord, RejectedRecord, ClockRecord)
_TABLE_OF = {
    RunRecord: "runs",
    QuestionRecord: "questions",
    PartRecord: "parts",
    RejectedRecord: "rejected",
    ClockRecord: "clock",
}
# What reads each column that is not a number, text or bytes, and is therefore stored as MessagePack.
_READERS = {
    kind: [None if hint in _PLAIN else msgspec.msgpack.Decoder(hint).decode for hint in get_type_hints(kind).values()]
    for kind in _TABLE_OF
}


@dataclass(frozen=True)
class Records:
    """Reads and writes the records of a book over one database ``connection``; damage raises :class:`FedsynthError`.

    ``path`` is the book's file, for messages.
    """

    connection: sqlite3.Connection
    path: str

    def execute(self, command: str, *values: object) -> sqlite3.Cursor:
        """Run an SQL command with ``values`` for its question marks, and return its cursor."""
        return self.connection.execute(command, values)

    def all(self, kind: type[_Record], where: str = "true", *values: object) -> list[_Record]:
        """Return the records of one class for which the SQL condition ``where`` holds, after verifying their hashes."""
        rows = self.execute(f"SELECT * FROM {_TABLE_OF[kind]} WHERE {where}", *values).fetchall()
        if any(_hash(row[:-1]) != row[-1] for row in rows):
            raise damaged(self.path, "a checksum is wrong")
        readers = _READERS[kind]
        return [
            kind(*(read(value) if read else value for read, value in zip(readers, row, strict=False))) for row in rows
        ]

    def get(self, kind: type[_Record], *key: str) -> _Record | None:
        """Return the record with a primary ``key``, the first fields of its class, or ``None``.

        Without a key, it is that of a class with one record at most.
        """
        where = " AND ".join(f"{name} = ?" for name in kind._fields[: len(key)]) or "true"
        return next(iter(self.all(kind, where, *key)), None)

    def put(self, record: _Record) -> None:
        """Write a record with its hash; it replaces a record with the same primary key."""
        values = tuple(map(_plain, record))
        marks = ", ".join("?" * (len(values) + 1))
        self.execute(f"INSERT OR REPLACE INTO {_TABLE_OF[type(record)]} VALUES ({marks})", *values, _hash(values))

    def forget(self, key: str) -> None:
        """Delete a question's record, replies and session; for "run" and a name, what is stored of that run."""
        for table in ("parts", "questions"):
            self.execute(f"DELETE FROM {table} WHERE key = ?", key)

    def forget_sessions(self, most: int) -> None:
        """Delete the oldest uncharged sessions, to make room for one more of at most ``most``."""
        keys = self.execute("SELECT key FROM questions WHERE NOT paid ORDER BY row").fetchall()
        for (key,) in keys[: max(0, len(keys) - most + 1)]:
            self.forget(key)

    def head(self) -> AuditHead:
        """Return the end of the audit; all zero if there is no row."""
        last = self.execute("SELECT content, chain FROM audit ORDER BY row DESC LIMIT 1").fetchone()
        if last is None:
            return AuditHead()
        row = self.checked(*last)
        return AuditHead(row.row, last[1], row.total, row.exact, row.change)

    def chain(self, row: int) -> bytes:
        """Return the chain value of the audit row with the number ``row``."""
        found = self.execute("SELECT content, chain FROM audit WHERE row = ?", row).fetchone()
        if found is None or self.checked(*found).row != row:
            raise damaged(self.path, f"audit row {row} is missing")
        return bytes(found[1])

    def checked(self, content: object, chain: bytes) -> AuditRow:
        """Return a stored audit row in decoded form, after verifying its hash."""
        if not isinstance(content, bytes) or hashlib.sha256(content).digest() != chain:
            raise damaged(self.path, "the content of an audit row does not match its hash")
        return read_row(content)

    def faults(self, chain: ChainCheck) -> tuple[int, str]:
        """Verify everything in the book, and return the first fault: the number of its audit row and a description.

        The number is 0 for a fault of no single row; (0, "") means no fault. ``chain`` is a new :class:`ChainCheck`,
        which follows the audit rows. A wrong hash, and a file that is damaged as a database, raise
        :class:`FedsynthError`.
        """
        sound = self.execute("PRAGMA integrity_check").fetchone()[0]
        for row, content, value in self.execute("SELECT row, content, chain FROM audit ORDER BY row"):
            wrong = chain.follow(content)
            if not wrong and (row, value) != chain.head[:2]:
                wrong = "has another number or chain value than its content"
            if wrong:
                return row, wrong
        if sound != "ok":
            raise damaged(self.path, " ".join(str(sound).split()))  # SQLite says it in several lines
        tables = self.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL").fetchall()
        if set(tables) != {(statement.strip(),) for statement in _TABLES.split(";")[:-1]}:
            raise damaged(self.path, "its tables are not an account's")
        charged = dict(chain.charged)
        for question in self.all(QuestionRecord):
            if question.paid and charged.pop(question.key, 0) != question.row:
                return question.row, "is not the charge of the question that refers to it"
        if charged:
            return min(charged.values()), "charges a question that is not in the account"
        totals = dict(chain.runs)
        for run in self.all(RunRecord):
            if run.spent != totals.pop(run.run, Cost()):
                return 0, f"the total of run {run.run} differs from the sum of its charges"
        if totals:
            return 0, f"run {min(totals)} was charged but is not in the account"
        self.all(RejectedRecord)
        self.all(ClockRecord)
        restores = {int(one.part): int.from_bytes(one.value) for one in self.all(PartRecord) if one.key == RESTORES}
        if restores != chain.restores:
            return 0, "the list of restored backups differs from that of the audit rows"
        return 0, ""


class BookFile:
    """The database of a book at ``path``, for several threads and processes.

    ``":memory:"`` is a database that lives as long as the object. Raises :class:`FedsynthError` for a file that is not
    a book of this version, or cannot be used, and ``OSError`` if it cannot be created.
    """

    def __init__(self, path: str) -> None:
        """Open the file; a missing file is created, accessible to its owner only."""
        self.path = path
        self._lock = threading.Lock()
        self._memory: sqlite3.Connection | None = None
        if path == ":memory:":
            self._memory = self._connect()
            weakref.finalize(self, self._memory.close)
            self._memory.deserialize(_empty())
        else:
            self._create()

    @property
    def durable(self) -> bool:
        """Whether it is a file on disk."""
        return self._memory is None

    @contextlib.contextmanager
    def open(self) -> Iterator[Records]:
        """Yield the book's :class:`Records`, outside a transaction, for use within the ``with`` block.

        Raises :class:`FedsynthError` for a damaged file, or one that is busy or not writable at the moment.
        """
        try:
            if self._memory is not None:
                with self._lock:
                    yield Records(self._memory, self.path)
                return
            connection = self._connect()  # a new one for each call, because a connection must not cross a fork
            try:
                yield Records(connection, self.path)
            finally:
                connection.close()
        except sqlite3.ProgrammingError:
            raise
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter occurs while reading SQLite messages
            code = getattr(error, "sqlite_errorcode", 0) & 255
            if code == sqlite3.SQLITE_FULL:
                raise FedsynthError(
                    f"{self.path}: no space left on its disk (or its limit is reached); free space there, then do the "
                    "same again"
                ) from error
            if code in _PASSING:
                raise FedsynthError(f"cannot use the account {self.path} at the moment: {error}; try again") from error
            raise damaged(self.path, str(error)) from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Records]:
        """Yield the book's :class:`Records` within one transaction.

        All changes become durable when the block ends; an exception in the block undoes all.
        """
        with self.open() as records:
            connection = records.connection
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield records
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def clear(self) -> None:
        """Rewrite the file without the copies of deleted content that SQLite leaves when it splits or merges pages."""
        if self._memory is None:
            with self.open() as records:
                records.execute("PRAGMA temp_store = MEMORY")
                records.execute("VACUUM")

    def _create(self) -> None:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        if os.stat(self.path).st_mode & 0o077:
            os.chmod(self.path, 0o600)  # a restored backup may be readable by others
        with self.open() as records:
            if records.execute("PRAGMA user_version").fetchone()[0] == _FORMAT:
                return
        with self.transaction() as records:
            found = records.execute("PRAGMA user_version").fetchone()[0]
            if found == _FORMAT:  # another process was faster
                return
            if found or records.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise FedsynthError(
                    f"{self.path} is not an account of this version of fedsynth; keep it with the version that wrote "
                    "it, and begin a new one with the rest of the limit"
                )
            _make_tables(records.connection)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA secure_delete = ON")
        return connection


def damaged(path: str, fault: str) -> FedsynthError:
    """Return the error for a damaged book, with the steps to repair it; ``fault`` is a clause."""
    return FedsynthError(
        f"the account {path} is damaged ({fault}); restore the last backup (at a site with `fedsynth restore "
        "--replace`, which keeps the damaged file aside, and then run `fedsynth account --restored`)"
    )


def _plain(value: Any) -> Any:
    """Return a value as the database holds it; secrets (of a class of their own) are bytes there."""
    if isinstance(value, bytes):
        return bytes(value)
    return value if type(value) in _PLAIN else msgspec.msgpack.encode(value)


def _hash(values: tuple[Any, ...]) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(values)).digest()


def _make_tables(connection: sqlite3.Connection) -> None:
    for statement in _TABLES.split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {_FORMAT}")


@lru_cache
def _empty() -> bytes:
    """Return an empty book as bytes; copying it is ten times faster than creating its tables."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("PRAGMA page_size = 1024")
        _make_tables(connection)
        return connection.serialize()
