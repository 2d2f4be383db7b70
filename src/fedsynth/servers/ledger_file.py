"""A server's ledger as a file: the questions that it charged, agreed to and answered, with an audit trail.

The ledger is one SQLite file. Every entry is durable before anything that depends on it leaves the server
(``synchronous = EXTRA``). Each audit row holds the hash of the previous one, so that an edited or deleted row breaks
the chain unless all later rows are rewritten; the number of charges shows that last rows are missing. If an older copy
of the file is restored at one server, the next question about a vault of which it lacks charges shows it, because all
three servers must state the same amount spent.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from fedsynth.errors import BudgetExceeded, FedsynthError, Refused

_FORMAT = 1
_TAMPERED = "keep the file as evidence, and stop this server until it is known who changed it"
_TABLES = (
    "CREATE TABLE vaults (vault TEXT PRIMARY KEY, run TEXT NOT NULL, price REAL NOT NULL)",
    "CREATE TABLE charges (vault TEXT NOT NULL, number INTEGER NOT NULL, question TEXT NOT NULL, price REAL NOT NULL,"
    " PRIMARY KEY (vault, number))",
    "CREATE TABLE written (key TEXT PRIMARY KEY, value BLOB NOT NULL)",
    "CREATE TABLE audit (row INTEGER PRIMARY KEY, content BLOB NOT NULL, chain BLOB NOT NULL)",
)


class ServerAuditRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of a compute server's audit trail, which records one charged question.

    ``row`` is the row's number from 1, ``at`` the time (UTC, ISO 8601), and ``vault`` the name (a digest, hex) of the
    vault that was asked: the sum of the sites' tables, held in secret shares. ``number`` is the question's number in
    its vault, ``question`` its digest (hex), ``price`` its privacy cost (rho, or epsilon if delta is 0), and
    ``previous`` the hash (hex) of the previous row.
    """

    row: int
    at: str
    vault: str
    number: int
    question: str
    price: float
    previous: str


class ServerLedgerFile:
    """A compute server's ledger as an SQLite file: the questions that were charged, and the server's answers.

    A vault is the sum of the tables of one run's sites, which three servers hold in secret shares; questions open
    tables of it with noise, or select one of its tables privately. The ledger is the file ``path``, which only its
    owner may read; with ``make`` it is created. ``most_questions`` is the largest number of questions that the server
    answers about one vault: a method asks about two in each of its rounds, and some before the first.
    :class:`~fedsynth.servers.server.ServerLedger` is the interface.
    """

    def __init__(self, path: Path, most_questions: int, *, make: bool = False) -> None:
        """Open the ledger at ``path``, or create it if ``make``.

        Raises :class:`FedsynthError` if it is missing or unusable, and ``FileExistsError`` if there is one to create.
        """
        self.path, self.most_questions = path, most_questions
        self._lock = threading.RLock()
        if make:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        elif not path.is_file():
            raise FedsynthError(
                f"{path} is missing, and without its ledger a server does not know what it released; restore its "
                "newest backup, or make a new server in another folder (fedsynth compute-server init)"
            )
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            found = self._opened(make)
        except sqlite3.DatabaseError as error:
            self._connection.close()
            raise FedsynthError(f"{path} is damaged ({error}); restore its backup") from error
        except OSError:
            self._connection.close()
            raise
        if found != _FORMAT:
            self._connection.close()
            raise FedsynthError(f"{path} is not a ledger of this version; use the fedsynth version that wrote it")

    def _opened(self, make: bool) -> int:
        """Return the number of the file's format; create the tables first if the file is new."""
        self._connection.execute("PRAGMA synchronous = EXTRA")
        if make:
            with self._transaction() as ledger:
                for table in _TABLES:
                    ledger.execute(table)
                ledger.execute(f"PRAGMA user_version = {_FORMAT}")
        found: int = self._connection.execute("PRAGMA user_version").fetchone()[0]
        return found

    def close(self) -> None:
        """Close the ledger's file; the ledger cannot be used any more."""
        with self._lock:
            self._connection.close()

    def deposit(self, run: str, vault: str, price: float) -> float:
        """Record the most that all releases of a vault may cost; return the sum of these limits over a run's vaults.

        ``run`` is the run's name, ``vault`` the vault's name (a digest, hex) and ``price`` the limit. If a limit is
        recorded for the vault already, that one stays. ``price`` and the result are in rho, or epsilon if delta is 0.
        """
        with self._transaction() as ledger:
            ledger.execute("INSERT OR IGNORE INTO vaults VALUES (?, ?, ?)", (vault, run, price))
            found = ledger.execute("SELECT price FROM vaults WHERE run = ? ORDER BY rowid", (run,)).fetchall()
        prices: list[float] = [price for (price,) in found]
        return sum(prices)

    def spent(self, vault: str) -> tuple[int, float]:
        """Return how many questions were charged to a vault, and their total cost in rho, or epsilon if delta is 0.

        ``vault`` is the vault's name (a digest, hex).
        """
        with self._lock:
            found = self._connection.execute("SELECT price FROM charges WHERE vault = ? ORDER BY number", (vault,))
            prices = [price for (price,) in found]
        return len(prices), sum(prices)

    def charge(self, vault: str, number: int, question: str, price: float) -> None:
        """Charge the question with this ``number`` to a vault; charging the same question again costs nothing.

        ``vault`` is the vault's name (a digest, hex), and its questions are numbered from 0; ``question`` is this one's
        digest (hex), and ``price`` its privacy cost in rho, or epsilon if delta is 0. Raises :class:`Refused` if a
        different question was charged under this number, or if an earlier number has no charged question yet, and
        :class:`BudgetExceeded` after ``most_questions``.
        """
        with self._transaction() as ledger:
            known = ledger.execute(
                "SELECT question FROM charges WHERE vault = ? AND number = ?", (vault, number)
            ).fetchone()
            if known == (question,):
                return
            (count,) = ledger.execute("SELECT count(*) FROM charges WHERE vault = ?", (vault,)).fetchone()
            if known is not None or number != count:
                raise Refused(
                    f"question {number} of this vault differs from the one charged under that number, or leaves out "
                    "an earlier number; start another run"
                )
            if number >= self.most_questions:
                raise BudgetExceeded(
                    f"this server answers at most {self.most_questions} questions about one vault; run fewer rounds, "
                    "or ask the server's operator to allow more (fedsynth compute-server agree --questions)"
                )
            ledger.execute("INSERT INTO charges VALUES (?, ?, ?, ?)", (vault, number, question, price))
            self._note(ledger, vault, number, question, price)

    def first(self, key: str, value: bytes) -> bytes:
        """Durably store ``value`` under ``key`` unless the key has a value already; return the stored value.

        ``key`` is any text, such as ``"reply VAULT 3"``. A server stores here what must stay the same when it is asked
        again, such as its answers.
        """
        with self._transaction() as ledger:
            ledger.execute("INSERT OR IGNORE INTO written VALUES (?, ?)", (key, value))
            found: bytes = ledger.execute("SELECT value FROM written WHERE key = ?", (key,)).fetchone()[0]
        return found

    def said(self, key: str) -> bytes | None:
        """Return the value that :meth:`first` stored under ``key``, or ``None``."""
        with self._lock:
            found = self._connection.execute("SELECT value FROM written WHERE key = ?", (key,)).fetchone()
        return None if found is None else found[0]

    def audit(self) -> list[ServerAuditRow]:
        """Return the audit trail, oldest row first, one row for each question that the server charged.

        Raises :class:`FedsynthError` if its hash chain is broken or a charge is missing in it.
        """
        with self._lock:
            rows = self._connection.execute("SELECT row, content, chain FROM audit ORDER BY row").fetchall()
            (charged,) = self._connection.execute("SELECT count(*) FROM charges").fetchone()
        found, previous = [], bytes(32)
        for number, (row, content, chain) in enumerate(rows, 1):
            whole = isinstance(content, bytes) and _link(content) == chain
            read = msgspec.json.decode(content, type=ServerAuditRow) if whole else None
            if read is None or (row, read.row, read.previous) != (number, number, previous.hex()):
                raise FedsynthError(
                    f"row {number} of the audit was changed, or rows before it are missing; {_TAMPERED}"
                )
            found.append(read)
            previous = chain
        if len(found) != charged:
            raise FedsynthError(f"{charged} questions were charged, and the audit has {len(found)}; {_TAMPERED}")
        return found

    def _note(self, ledger: sqlite3.Connection, vault: str, number: int, question: str, price: float) -> None:
        last = ledger.execute("SELECT row, chain FROM audit ORDER BY row DESC LIMIT 1").fetchone() or (0, bytes(32))
        at = datetime.now(UTC).isoformat(timespec="seconds")
        content = msgspec.json.encode(ServerAuditRow(last[0] + 1, at, vault, number, question, price, last[1].hex()))
        ledger.execute("INSERT INTO audit VALUES (?, ?, ?)", (last[0] + 1, content, _link(content)))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction: at its end, all or nothing of it is durable; ``OSError`` if the disk is full."""
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    yield self._connection
                    self._connection.execute("COMMIT")
                except BaseException:
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                    raise
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 255 == sqlite3.SQLITE_FULL:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path)) from error
                raise


def _link(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
