"""A server's ledger as a file: what it charged, what it agreed to and what it answered, and an audit of all that.

One SQLite file. What is written down is durable before anything that follows from it leaves the server
(``synchronous = EXTRA``). Audit rows hold the hash of the row before them: a row that is edited or taken out breaks the
chain. An older copy of the file that is put back shows in the next roster, since the three servers must say the same of
what was spent.
"""

from __future__ import annotations

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
_TABLES = (
    "CREATE TABLE vaults (vault TEXT PRIMARY KEY, run TEXT NOT NULL, price REAL NOT NULL)",
    "CREATE TABLE charges (vault TEXT NOT NULL, number INTEGER NOT NULL, question TEXT NOT NULL, price REAL NOT NULL,"
    " PRIMARY KEY (vault, number))",
    "CREATE TABLE written (key TEXT PRIMARY KEY, value BLOB NOT NULL)",
    "CREATE TABLE audit (row INTEGER PRIMARY KEY, content BLOB NOT NULL, chain BLOB NOT NULL)",
)


class AuditRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the audit: when which question was charged at which price, and the hash (hex) of the row before."""

    row: int
    at: str
    vault: str
    number: int
    question: str
    price: float
    previous: str


class BookFile:
    """A server's ledger, one file that only its owner may read.

    ``most_questions`` bounds the questions of each vault: rounds times two, and what comes before them.
    """

    def __init__(self, path: Path, most_questions: int, *, make: bool = False) -> None:
        """Open the file; raises :class:`FedsynthError` where it is not there, unless it is to be made."""
        self.path, self.most_questions = path, most_questions
        self._lock = threading.RLock()
        if make:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        elif not path.is_file():
            raise FedsynthError(f"{path} is not there: without its ledger a server does not know what it released")
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            found = self._opened(make)
        except sqlite3.DatabaseError as error:
            self._connection.close()
            raise FedsynthError(f"{path} is damaged ({error}); put its backup back") from error
        if found != _FORMAT:
            self._connection.close()
            raise FedsynthError(f"{path} is not a ledger of this version; use the fedsynth that wrote it")

    def _opened(self, make: bool) -> int:
        """Return the number of the file's format, having made its tables where it is new."""
        self._connection.execute("PRAGMA synchronous = EXTRA")
        if make:
            with self._transaction() as book:
                for table in _TABLES:
                    book.execute(table)
                book.execute(f"PRAGMA user_version = {_FORMAT}")
        found: int = self._connection.execute("PRAGMA user_version").fetchone()[0]
        return found

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def deposit(self, run: str, vault: str, price: float) -> float:
        """Write down a vault of a run with its deposit's price, once, and return what the run's vaults add up to."""
        with self._transaction() as book:
            book.execute("INSERT OR IGNORE INTO vaults VALUES (?, ?, ?)", (vault, run, price))
            found = book.execute("SELECT price FROM vaults WHERE run = ? ORDER BY rowid", (run,)).fetchall()
        prices: list[float] = [price for (price,) in found]
        return sum(prices)

    def spent(self, vault: str) -> tuple[int, float]:
        """Return how many questions of a vault were charged, and what they cost together."""
        with self._lock:
            found = self._connection.execute("SELECT price FROM charges WHERE vault = ? ORDER BY number", (vault,))
            prices = [price for (price,) in found]
        return len(prices), sum(prices)

    def charge(self, vault: str, number: int, question: str, price: float) -> None:
        """Charge question ``number`` of a vault, once; raises :class:`Refused` for another one of that number."""
        with self._transaction() as book:
            known = book.execute(
                "SELECT question FROM charges WHERE vault = ? AND number = ?", (vault, number)
            ).fetchone()
            if known == (question,):
                return
            (count,) = book.execute("SELECT count(*) FROM charges WHERE vault = ?", (vault,)).fetchone()
            if known is not None or number != count:
                raise Refused(f"question {number} of this vault is not the one that was charged, or not the next one")
            if number >= self.most_questions:
                raise BudgetExceeded(f"this server answers {self.most_questions} questions of a vault and no more")
            book.execute("INSERT INTO charges VALUES (?, ?, ?, ?)", (vault, number, question, price))
            self._note(book, vault, number, question, price)

    def first(self, key: str, value: bytes) -> bytes:
        """Return what was first written under a key: ``value``, if nothing was."""
        with self._transaction() as book:
            book.execute("INSERT OR IGNORE INTO written VALUES (?, ?)", (key, value))
            found: bytes = book.execute("SELECT value FROM written WHERE key = ?", (key,)).fetchone()[0]
        return found

    def said(self, key: str) -> bytes | None:
        """Return what was written under a key, if anything was."""
        with self._lock:
            found = self._connection.execute("SELECT value FROM written WHERE key = ?", (key,)).fetchone()
        return None if found is None else found[0]

    def audit(self) -> list[AuditRow]:
        """Return the audit; raises :class:`FedsynthError` where the chain is broken, or charges are not in it."""
        with self._lock:
            rows = self._connection.execute("SELECT row, content, chain FROM audit ORDER BY row").fetchall()
            (charged,) = self._connection.execute("SELECT count(*) FROM charges").fetchone()
        found, previous = [], bytes(32)
        for number, (row, content, chain) in enumerate(rows, 1):
            whole = isinstance(content, bytes) and _link(content) == chain
            read = msgspec.json.decode(content, type=AuditRow) if whole else None
            if read is None or (row, read.row, read.previous) != (number, number, previous.hex()):
                raise FedsynthError(f"row {number} of the audit was changed, or rows are missing before it")
            found.append(read)
            previous = chain
        if len(found) != charged:
            raise FedsynthError(f"{charged} questions were charged, and {len(found)} are in the audit")
        return found

    def _note(self, book: sqlite3.Connection, vault: str, number: int, question: str, price: float) -> None:
        last = book.execute("SELECT row, chain FROM audit ORDER BY row DESC LIMIT 1").fetchone() or (0, bytes(32))
        at = datetime.now(UTC).isoformat(timespec="seconds")
        content = msgspec.json.encode(AuditRow(last[0] + 1, at, vault, number, question, price, last[1].hex()))
        book.execute("INSERT INTO audit VALUES (?, ?, ?)", (last[0] + 1, content, _link(content)))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Give the file for one transaction: all of it is durable at the end, or nothing of it."""
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")


def _link(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
