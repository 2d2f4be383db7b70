"""One site's account: what it was asked, what that cost, and what it answered; one SQLite file.

Rule 1: a question is charged once, in the transaction that also stores its random salt, the terms it was charged under
    and its audit row. That is durable before anything is computed (``synchronous = EXTRA``).
Rule 2: a second transaction stores the reply, unless there is one already; only stored replies leave. A crash between
    the two leaves a charged question without a reply: it is computed again from the same salt, under the same terms
    and on the same rows, or not at all.
Rule 3: limits are the site's own; nothing that a server sends can raise them.
Rule 4: an audit row is made of the request, its cost and the running totals; no value, no row of the table. Each holds
    the SHA-256 of the row before it, so that a row that is edited, taken out or moved breaks the chain. A chain cannot
    show by itself that its end was cut off or that it was written anew: servers remember the last row that they saw,
    and a steward can note the head elsewhere.

A charge at row r of the audit says that an answer *may* have left since.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import sqlite3
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fedsynth.errors import BudgetExceeded, FedsynthError, InvalidParameter, Refused
from fedsynth.privacy.cost import ROUNDING, Budget, Cost

START = bytes(32)
"""Chain value before the first row."""

_FORMAT = 2  # of the file, in its user_version; 1 and 0 were other tables
_LONGEST = 200  # characters of a text in the row of a rejected message: one message must not fill the disk
_SESSIONS = 64  # open sessions of secure sums that are not charged
_BATCH = 1000  # rows that an export reads at a time: no lock is held while they are written elsewhere
_MOST_ROWS = 2**53
# Errors that are not damage: the disk, its rights, or another process.
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

# Every row but those of the audit ends in a checksum, for which numbers have no declared type: they come back as they
# went in.
_TABLES = """
CREATE TABLE audit (row INTEGER PRIMARY KEY, content BLOB NOT NULL, chain BLOB NOT NULL);
CREATE TABLE restores (row INTEGER PRIMARY KEY);
CREATE TABLE runs (
    run TEXT PRIMARY KEY, closed NOT NULL, rows TEXT NOT NULL, epsilon NOT NULL, rho NOT NULL,
    limit_epsilon NOT NULL, limit_delta NOT NULL, used NOT NULL, seal BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE questions (
    key TEXT PRIMARY KEY, run TEXT NOT NULL, row NOT NULL, paid NOT NULL, salt BLOB NOT NULL, terms TEXT NOT NULL,
    slots TEXT NOT NULL, price NOT NULL, replays NOT NULL, seal BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX questions_slots ON questions (run, slots, price) WHERE paid;
CREATE INDEX questions_open ON questions (row) WHERE NOT paid;
CREATE TABLE parts (
    key TEXT NOT NULL, part TEXT NOT NULL, value BLOB NOT NULL, seal BLOB NOT NULL, PRIMARY KEY (key, part));
CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL, seal BLOB NOT NULL);
CREATE TABLE rejected (hour NOT NULL, count NOT NULL, digest BLOB NOT NULL, seal BLOB NOT NULL);
"""


def now() -> datetime:
    """Return the time, in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Charge:
    """A question as the account knows it: who asks what, what it costs one person, and under which limits.

    ``key`` (hex) names the question: the coordinator's key and the digest of the question. ``terms`` is everything
    that the answer depends on beside question and rows: law, scale, unit, neighbours, the trust's terms, version.
    ``rows`` is the keyed digest of the encoded rows that the run reads, empty where it is pinned after the first charge
    (:meth:`Account.pin`). ``total`` limits everything ever spent here,
    ``per_run`` the run.

    ``slots`` are the (price, times) that an approved plan gives the run for questions of this ``group`` (verb, kind
    and release), ``None`` where no plan is needed. Prices are in epsilon if ``per_run`` is pure, else in rho; a charge
    uses up the cheapest free slot whose price covers it.
    """

    key: str
    run: str
    step: int
    attempt: int
    verb: str
    kind: str
    release: str
    trust: str
    plan: str
    cost: Cost
    terms: str
    rows: str
    total: Budget
    per_run: Budget
    group: str = ""
    slots: tuple[tuple[float, int], ...] | None = None

    def __post_init__(self) -> None:
        """Refuse costs that no sum can hold."""
        if not (self.cost.epsilon >= 0 and self.cost.rho >= 0):
            raise InvalidParameter(f"a question cannot cost {self.cost}; costs are zero or more")

    @property
    def price(self) -> float:
        """What it costs, in the currency of the run's slots."""
        return self.cost.epsilon if self.per_run.pure else self.cost.rho


@dataclass(frozen=True)
class Opened:
    """What the account holds of a question: its ``salt``, and ``row`` and ``chain`` value of its audit row.

    ``charged`` says whether the question is paid for; the session of a secure sum is not, at first.
    """

    salt: bytes
    row: int
    chain: bytes
    charged: bool


@dataclass(frozen=True)
class Findings:
    """What verifying an account or an export showed: the number of its last row, that row's chain value (hex), faults.

    ``wrong`` says what is wrong first, empty if nothing is; ``broken`` is the audit row that this concerns, 0 if it is
    no single row. ``noted_at`` is the row whose chain value was noted elsewhere, 0 if there is none such.
    """

    rows: int
    head: str
    broken: int = 0
    wrong: str = ""
    noted_at: int = 0


class _Spent(msgspec.Struct, frozen=True):
    """A cost as it stands in an audit row; JSON has no infinity, so that ``None`` is infinite."""

    epsilon: float | None = 0.0
    rho: float | None = 0.0

    @classmethod
    def of(cls, cost: Cost) -> _Spent:
        finite = (value if math.isfinite(value) else None for value in (cost.epsilon, cost.rho))
        return cls(*finite)

    @property
    def cost(self) -> Cost:
        return Cost(*(math.inf if value is None else value for value in (self.epsilon, self.rho)))


class _Row(msgspec.Struct, frozen=True):
    """The part of an audit row that the account itself reads; other fields are for people."""

    row: int
    outcome: str
    total: _Spent
    exact: int
    previous: str
    key: str = ""
    run: str = ""
    cost: _Spent | None = None
    run_total: _Spent = _Spent()
    seen: int = 0


class _Head(NamedTuple):
    """The last audit row, and what was spent up to it: in all, and in how many exact releases."""

    row: int = 0
    chain: bytes = START
    total: Cost = Cost()
    exact: int = 0

    def plus(self, cost: Cost | None) -> tuple[Cost, int]:
        """Return the totals of the next row."""
        return (self.total, self.exact) if cost is None else (self.total + cost, self.exact + math.isinf(cost.rho))


class _Run(NamedTuple):
    run: str
    closed: int
    rows: str
    epsilon: float
    rho: float
    limit_epsilon: float
    limit_delta: float
    used: float

    @property
    def spent(self) -> Cost:
        return Cost(self.epsilon, self.rho)

    @property
    def rest(self) -> Cost:
        """What the run may still spend."""
        limit = Budget(self.limit_epsilon, self.limit_delta)
        if limit.pure:
            epsilon = max(0.0, limit.epsilon - self.epsilon)
            return Cost(epsilon, epsilon**2 / 2)
        rho = 0.0 if math.isinf(self.rho) else max(0.0, limit.rho - self.rho)
        return Cost(math.inf, rho) if rho else Cost()


class _Question(NamedTuple):
    key: str
    run: str
    row: int
    paid: int
    salt: bytes
    terms: str
    slots: str
    price: float
    replays: int = 0


_read_row = msgspec.json.Decoder(_Row).decode


class Account:
    """One site's account, durable and safe under concurrent requests from threads and processes.

    ``path`` may be ``":memory:"`` in a simulation, where a site lives no longer than the process. ``entropy(key)``
    gives the salt of a question (32 bytes) in a seeded simulation; otherwise it comes from the operating system.

    Raises :class:`FedsynthError` wherever the file is damaged, says so, and answers nothing from it.
    """

    free_an_hour = 1000
    """Messages that cost nothing and get an audit row each; rejected ones beyond them share one, others are refused."""

    largest_kept = 2**62
    """Bytes of a reply beyond which it is not stored. Only where the rows cannot change: in a simulation, where the
    same question gives the same bytes again."""

    def __init__(
        self,
        path: Path | str = ":memory:",
        *,
        entropy: Callable[[str], bytes] | None = None,
        clock: Callable[[], datetime] = now,
    ) -> None:
        """Open the account, creating the file (for its owner alone) if there is none."""
        self._path = str(path)
        self._entropy = entropy
        self._clock = clock
        self._lock = threading.Lock()
        self._memory: sqlite3.Connection | None = None
        if self._path == ":memory:":
            self._memory = self._connect()
            weakref.finalize(self, self._memory.close)
            self._memory.deserialize(_empty())
        else:
            self._create()

    def secret(self, name: str, fresh: bytes) -> bytes:
        """Return the stored secret ``name``, storing ``fresh`` the first time."""
        with self._transaction() as connection:
            found = self._get(connection, "secrets", "name = ?", name)
            if found is not None:
                return bytes(found[1])
            self._put(connection, "secrets", (name, fresh))
        return fresh

    # Questions

    def begin(self, charge: Charge, *, pay: bool = True, resume: bool = False) -> Opened:
        """Charge a question, durably, or return what is stored of one that is charged already: transaction 1.

        With ``pay=False`` the session of a secure sum is opened: salt, terms, rows and an audit row are stored and the
        limits are checked, but nothing is charged until the same key begins with ``pay=True``. At most 64 sessions are
        open uncharged; the oldest is forgotten whole. ``resume`` is for later turns of a session: one that was
        forgotten is not begun again under another salt.

        Raises :class:`Refused` for other terms or rows than the question's or the run's, for a closed run and where the
        plan has no slot left; :class:`BudgetExceeded` beyond a limit. Nothing is charged then.
        """
        with self._transaction() as connection:
            run = self._run(connection, charge.run)
            if run is not None:
                _refuse_other_rows(run, charge)
            known = self._question(connection, charge.key)
            if known is not None:
                _refuse_other_terms(known, charge)
                if known.paid or not pay:
                    return Opened(known.salt, known.row, self._chain(connection, known.row), bool(known.paid))
            elif resume:
                raise Refused("this question has no session here, or it was forgotten; ask it anew, as another attempt")
            if known is None and (not pay or not charge.cost.rho):
                self._count_free(connection, charge.key)
            spent = Cost() if run is None else run.spent
            _refuse_overdraft(charge, self._head(connection).total, spent)
            slot = self._slot(connection, charge)
            if pay:
                spent += charge.cost
                facts = {"cost": _Spent.of(charge.cost), "slot": slot, "run_total": _Spent.of(spent)}
                row, chain = self._append(connection, "charged", {**_facts(charge), **facts}, charge.cost)
            else:
                self._forget_sessions(connection)
                row, chain = self._append(connection, "opened", _facts(charge))
            if known is None:
                salt = self._random(charge.key)
                known = _Question(charge.key, charge.run, row, pay, salt, charge.terms, charge.group, slot or 0.0)
            self._put(connection, "questions", known._replace(row=row, paid=int(pay), price=slot or 0.0))
            limit, used = charge.per_run, self._clock().timestamp()
            rows = charge.rows or ("" if run is None else run.rows)
            record = _Run(charge.run, 0, rows, spent.epsilon, spent.rho, limit.epsilon, limit.delta, used)
            self._put(connection, "runs", record)
        return Opened(known.salt, row, chain, pay)

    def stored(self, key: str, turn: int) -> bytes | None:
        """Return the reply to one turn of a question, if it was stored, and count that it was asked for again."""
        with self._open() as connection:
            reply = self._part(connection, key, f"turn {turn}")
        if reply is None:
            return None
        with self._transaction() as connection:
            question = self._question(connection, key)
            run = None if question is None else self._run(connection, question.run)
            if question is not None and run is not None:
                self._put(connection, "questions", question._replace(replays=question.replays + 1))
                self._put(connection, "runs", run._replace(used=self._clock().timestamp()))
        return reply

    def store(self, key: str, turn: int, reply: bytes) -> bytes:
        """Return the stored reply to one turn of a question, which is ``reply`` if there was none: transaction 2.

        Raises :class:`Refused` for a question that never began, or whose session or run is over.
        """
        return reply if len(reply) > self.largest_kept else self._keep(key, f"turn {turn}", reply)

    def first(self, key: str, part: str, value: bytes) -> bytes:
        """Return what was first said as this part of a question's session: ``value``, if nothing was before.

        Durable on return, so that a site that is a new process for every message holds to one story. Raises
        :class:`Refused` for a question that never began, or whose session or run is over.
        """
        return self._keep(key, f"session {part}", value)

    def said(self, key: str, part: str) -> bytes | None:
        """Return what was said as this part of a question's session, if anything was."""
        with self._open() as connection:
            return self._part(connection, key, f"session {part}")

    def pinned(self, run: str) -> str | None:
        """Return the keyed digest of the rows that a run reads, empty before it is pinned, if it has asked anything."""
        with self._open() as connection:
            found = self._run(connection, run)
        return None if found is None else found.rows

    def pin(self, run: str, rows: str) -> str:
        """Return the keyed digest of the rows that a run reads from now on: ``rows``, if none was pinned before.

        Raises :class:`Refused` for a run that is not open.
        """
        with self._transaction() as connection:
            found = self._run(connection, run)
            if found is None or found.closed:
                raise Refused(f"run {run} is not open here; start another run")
            if not found.rows:
                found = found._replace(rows=rows)
                self._put(connection, "runs", found)
        return found.rows

    # Audit

    def note(self, outcome: str, **facts: object) -> tuple[int, bytes]:
        """Write down a message that was not answered, and return the number and chain value of the last audit row.

        ``facts`` are for the site's steward alone (run, step, kind, reason, ...); long texts are cut. The first 1,000
        messages of an hour get a row each, the others one row with their number and digest.
        """
        short = {name: _short(value) for name, value in facts.items()}
        with self._transaction() as connection:
            if self._count(connection, msgspec.json.encode([outcome, short])):
                self._append(connection, outcome, short)
            head = self._head(connection)
        return head.row, head.chain

    def head(self) -> tuple[int, bytes]:
        """Return the number and the chain value of the last audit row; 0 and zero bytes before the first."""
        with self._open() as connection:
            head = self._head(connection)
        return head.row, head.chain

    def holds(self, row: int, chain: bytes) -> bool:
        """Whether the audit has this chain value at ``row``: no means that the account is behind, a restored backup.

        Rows that :meth:`restored` has written off are accepted.
        """
        if row == 0:
            return chain == START
        if not 0 < row < _MOST_ROWS:
            return False
        with self._open() as connection:
            found = connection.execute("SELECT chain FROM audit WHERE row = ?", (row,)).fetchone()
            if found is not None and found[0] == chain:
                return True
            restores = connection.execute("SELECT content, chain FROM audit JOIN restores USING (row)").fetchall()
            return any(self._checked(*restore).seen >= row for restore in restores)

    def verify(self, noted: str = "") -> Findings:
        """Verify the whole account: file, chain, totals, and every checksum; changes nothing.

        ``noted`` is a head (hex) that was written down elsewhere: an account without that row was cut or written anew.
        """
        chain = _Chain(noted)
        try:
            with self._open() as connection:
                connection.execute("BEGIN")
                try:
                    return chain.findings(*self._faults(connection, chain))
                finally:
                    connection.execute("ROLLBACK")
        except (FedsynthError, sqlite3.Error) as error:
            return chain.findings(0, str(error))

    def export(self) -> Iterator[str]:
        """Yield the audit rows as lines of JSON, without line ends; :func:`verify_export` verifies them."""
        last = 0
        while True:
            with self._open() as connection:
                rows = connection.execute(
                    "SELECT row, content FROM audit WHERE row > ? ORDER BY row LIMIT ?", (last, _BATCH)
                ).fetchall()
            if not rows:
                return
            yield from (content.decode(errors="backslashreplace") for _, content in rows)
            last = rows[-1][0]

    # What was spent

    def spent(self, run: str | None = None) -> Cost:
        """Return what one person was charged in all, or in one run."""
        with self._open() as connection:
            if run is None:
                return self._head(connection).total
            found = self._run(connection, run)
        return Cost() if found is None else found.spent

    @property
    def exact(self) -> int:
        """Number of releases without noise ever made from these rows: anything but 0 voids every guarantee."""
        with self._open() as connection:
            return self._head(connection).exact

    def charges(self) -> list[dict[str, Any]]:
        """Return every charge, oldest first, as JSON values; ``replays`` is how often its reply was sent again."""
        with self._open() as connection:
            replays = dict(connection.execute("SELECT row, replays FROM questions WHERE paid").fetchall())
            held = connection.execute("SELECT content, chain FROM audit ORDER BY row").fetchall()
        charged = [(self._checked(*row), row[0]) for row in held]
        return [
            {**msgspec.json.decode(content), "replays": replays.get(row.row, 0)}
            for row, content in charged
            if row.cost is not None
        ]

    # Runs

    def open_runs(self) -> list[tuple[str, datetime]]:
        """Return the runs that are not closed, each with the time of its last question or replay, oldest first."""
        with self._open() as connection:
            rows = connection.execute("SELECT * FROM runs WHERE NOT closed").fetchall()
        runs = sorted((_Run(*self._sealed(row)) for row in rows), key=lambda run: (run.used, run.run))
        return [(run.run, datetime.fromtimestamp(run.used, UTC)) for run in runs]

    def close(self, run: str) -> int:
        """Delete replies, salts and sessions of a run for good, and return of how many questions.

        Its questions are refused from then on; what it spent stays. Raises :class:`InvalidParameter` for a run that has
        asked nothing.
        """
        with self._transaction() as connection:
            found = self._run(connection, run)
            if found is None:
                raise InvalidParameter(f"there is no run {run!r} in this account; `fedsynth site account` lists them")
            closed = 0 if found.closed else self._close(connection, found)
        self._clear()
        return closed

    def expire(self, days: float, keep: str = "") -> list[str]:
        """Close the runs but ``keep`` that were last used more than ``days`` days ago, and return their names."""
        oldest = self._clock() - timedelta(days=days)
        expired = [run for run, used in self.open_runs() if used < oldest and run != keep]
        for run in expired:
            self.close(run)
        return expired

    def restored(self, row: int, began: Mapping[str, Budget] | None = None) -> None:
        """Write off everything between the backup that was put back and ``row``, the last row that a server saw.

        Each open run is charged up to its limit and closed; later audit rows are numbered above ``row``, and
        :meth:`holds` accepts what servers saw up to there. ``began`` names runs with their limits that began after the
        backup was made: the account knows nothing of them, so that it must be told.
        """
        if not 0 < row < _MOST_ROWS:
            raise InvalidParameter(f"there is no audit row {row}; give the number that the refused server last saw")
        with self._transaction() as connection:
            head = self._head(connection)
            number = max(row, head.row) + 1
            self._append(connection, "restored", {"behind": head.row, "seen": row}, number=number)
            connection.execute("INSERT INTO restores VALUES (?)", (number,))
            found = connection.execute("SELECT * FROM runs WHERE NOT closed ORDER BY run").fetchall()
            runs = [_Run(*self._sealed(values)) for values in found]
            for name, limit in (began or {}).items():
                if self._run(connection, name) is None:
                    runs.append(_Run(name, 0, "", 0.0, 0.0, limit.epsilon, limit.delta, 0.0))
            for run in runs:
                total = run.spent + run.rest
                facts = {"run": run.run, "cost": _Spent.of(run.rest), "run_total": _Spent.of(total)}
                self._append(connection, "written off", facts, run.rest)
                self._close(connection, run._replace(epsilon=total.epsilon, rho=total.rho))
        self._clear()

    # Inside a transaction

    def _random(self, key: str) -> bytes:
        return os.urandom(32) if self._entropy is None else self._entropy(key)

    def _head(self, connection: sqlite3.Connection) -> _Head:
        last = connection.execute("SELECT content, chain FROM audit ORDER BY row DESC LIMIT 1").fetchone()
        if last is None:
            return _Head()
        row = self._checked(*last)
        return _Head(row.row, last[1], row.total.cost, row.exact)

    def _append(
        self,
        connection: sqlite3.Connection,
        outcome: str,
        facts: Mapping[str, object],
        cost: Cost | None = None,
        number: int | None = None,
    ) -> tuple[int, bytes]:
        """Add a row to the audit, numbered ``number`` or the next, and return its number and chain value."""
        moment = self._clock()
        self._close_hour(connection, moment)
        head = self._head(connection)
        number = head.row + 1 if number is None else number
        total, exact = head.plus(cost)
        opening = {"row": number, "time": moment.isoformat(timespec="milliseconds"), "outcome": outcome}
        # Chain values leave the site: without a nonce they would tell whoever guesses what a row says.
        opening["nonce"] = self._random(f"row {number}")[:16].hex()
        ending = {"total": _Spent.of(total), "exact": exact, "previous": head.chain.hex()}
        content = msgspec.json.encode({**opening, **facts, **ending})
        chain = hashlib.sha256(content).digest()
        connection.execute("INSERT INTO audit VALUES (?, ?, ?)", (number, content, chain))
        return number, chain

    def _count(self, connection: sqlite3.Connection, message: bytes) -> bool:
        """Count a message that costs nothing; return whether it is one of the first of its hour."""
        moment = self._clock()
        self._close_hour(connection, moment)
        found = self._get(connection, "rejected")
        hour, count, digest = found or (_hour(moment), 0, START)
        if count >= self.free_an_hour:
            digest = hashlib.sha256(digest + message).digest()
        connection.execute("DELETE FROM rejected")
        self._put(connection, "rejected", (hour, count + 1, digest))
        return bool(count < self.free_an_hour)

    def _count_free(self, connection: sqlite3.Connection, key: str) -> None:
        """Raise :class:`Refused` for more questions that cost nothing, in an hour, than get rows of their own."""
        if not self._count(connection, key.encode()):
            raise Refused("too many questions that cost nothing in this hour; ask again in the next")

    def _close_hour(self, connection: sqlite3.Connection, moment: datetime) -> None:
        """Write the row of an hour that is over, if it had more rejected messages than get rows of their own."""
        found = self._get(connection, "rejected")
        if found is None or found[0] == _hour(moment):
            return
        hour, count, digest = found
        connection.execute("DELETE FROM rejected")
        if count > self.free_an_hour:
            start = datetime.fromtimestamp(hour * 3600, UTC).isoformat(timespec="minutes")
            facts = {"hour": start, "count": count - self.free_an_hour, "digest": digest.hex()}
            self._append(connection, "rejected", facts)

    def _slot(self, connection: sqlite3.Connection, charge: Charge) -> float | None:
        """Return the price of the plan's slot that a charge uses; ``None`` without a plan."""
        if charge.slots is None:
            return None
        used = connection.execute(
            "SELECT price, count(*) FROM questions WHERE paid AND run = ? AND slots = ? GROUP BY price",
            (charge.run, charge.group),
        ).fetchall()
        slot = _free_slot(charge.slots, used, charge.price)
        if slot is None:
            raise Refused(
                f"the approved plan has no slot left for {charge.group!r} at {charge.price:.6g}; this run has used "
                f"{sum(times for _, times in used)} of {sum(times for _, times in charge.slots)}. Plan again with more "
                "and have it approved"
            )
        return slot

    def _forget_sessions(self, connection: sqlite3.Connection) -> None:
        """Make room for one more session."""
        keys = connection.execute("SELECT key FROM questions WHERE NOT paid ORDER BY row").fetchall()
        for key in keys[: max(0, len(keys) - _SESSIONS + 1)]:
            connection.execute("DELETE FROM parts WHERE key = ?", key)
            connection.execute("DELETE FROM questions WHERE key = ?", key)

    def _close(self, connection: sqlite3.Connection, run: _Run) -> int:
        """Delete all of a run's questions but their charges; return their number."""
        rows = connection.execute("SELECT * FROM questions WHERE run = ?", (run.run,)).fetchall()
        questions = [_Question(*self._sealed(row)) for row in rows]
        for question in questions:
            connection.execute("DELETE FROM parts WHERE key = ?", (question.key,))
            connection.execute("DELETE FROM questions WHERE key = ?", (question.key,))
            if question.paid:
                self._put(connection, "questions", question._replace(salt=b""))
        self._put(connection, "runs", run._replace(closed=1))
        self._append(connection, "closed", {"run": run.run, "questions": len(questions)})
        return len(questions)

    def _clear(self) -> None:
        """Write the file anew: pages that were split or merged hold copies of what was deleted since."""
        if self._memory is None:
            with self._open() as connection:
                connection.execute("PRAGMA temp_store = MEMORY")
                connection.execute("VACUUM")

    def _keep(self, key: str, part: str, value: bytes) -> bytes:
        with self._transaction() as connection:
            question = self._question(connection, key)
            if question is None or not question.salt:
                raise Refused("the session of this question is over; ask it anew, or start another run")
            known = self._part(connection, key, part)
            if known is None:
                self._put(connection, "parts", (key, part, value))
        return value if known is None else known

    def _part(self, connection: sqlite3.Connection, key: str, part: str) -> bytes | None:
        found = self._get(connection, "parts", "key = ? AND part = ?", key, part)
        return None if found is None else bytes(found[2])

    def _run(self, connection: sqlite3.Connection, run: str) -> _Run | None:
        found = self._get(connection, "runs", "run = ?", run)
        return None if found is None else _Run(*found)

    def _question(self, connection: sqlite3.Connection, key: str) -> _Question | None:
        found = self._get(connection, "questions", "key = ?", key)
        return None if found is None else _Question(*found)

    def _chain(self, connection: sqlite3.Connection, row: int) -> bytes:
        found = connection.execute("SELECT content, chain FROM audit WHERE row = ?", (row,)).fetchone()
        if found is None or self._checked(*found).row != row:
            raise FedsynthError(self._damaged(f"audit row {row} is missing"))
        return bytes(found[1])

    def _get(
        self, connection: sqlite3.Connection, table: str, where: str = "true", *values: object
    ) -> tuple[Any, ...] | None:
        found = connection.execute(f"SELECT * FROM {table} WHERE {where}", values).fetchone()
        return None if found is None else self._sealed(found)

    def _put(self, connection: sqlite3.Connection, table: str, record: tuple[Any, ...]) -> None:
        marks = ", ".join("?" * (len(record) + 1))
        connection.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", (*record, _seal(record)))

    def _sealed(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a row of a table without its checksum, which must be right."""
        if _seal(row[:-1]) != row[-1]:
            raise FedsynthError(self._damaged("a checksum is wrong"))
        return row[:-1]

    def _checked(self, content: object, chain: bytes) -> _Row:
        """Return an audit row, whose chain value must be right."""
        if not isinstance(content, bytes) or hashlib.sha256(content).digest() != chain:
            raise FedsynthError(self._damaged("an audit row is not what was written"))
        return _read_row(content)

    # Verification

    def _faults(self, connection: sqlite3.Connection, chain: _Chain) -> tuple[int, str]:
        """Return the audit row that the first fault concerns (0: no single one), and the fault; 0 and "" without."""
        sound = connection.execute("PRAGMA integrity_check").fetchone()[0]
        for row, content, value in connection.execute("SELECT row, content, chain FROM audit ORDER BY row"):
            wrong = chain.follow(content)
            if not wrong and (row, value) != chain.head[:2]:
                wrong = "stands under another number or chain value than its own"
            if wrong:
                return row, wrong
        if sound != "ok":
            return 0, self._damaged(str(sound))
        tables = connection.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL").fetchall()
        if set(tables) != {(statement.strip(),) for statement in _TABLES.split(";")[:-1]}:
            return 0, self._damaged("its tables are not an account's")
        charged = dict(chain.charged)
        for values in connection.execute("SELECT * FROM questions"):
            question = _Question(*self._sealed(values))
            if question.paid and charged.pop(question.key, 0) != question.row:
                return question.row, "is not the charge of the question that refers to it"
        if charged:
            return min(charged.values()), "charges a question that is not in the account"
        totals = dict(chain.runs)
        for values in connection.execute("SELECT * FROM runs"):
            run = _Run(*self._sealed(values))
            if run.spent != totals.pop(run.run, Cost()):
                return 0, f"the total of run {run.run} is not that of its charges"
        if totals:
            return 0, f"run {min(totals)} was charged and is not in the account"
        for table in ("parts", "secrets", "rejected"):
            for values in connection.execute(f"SELECT * FROM {table}"):
                self._sealed(values)
        if [row[0] for row in connection.execute("SELECT row FROM restores ORDER BY row")] != chain.restores:
            return 0, "the list of restored backups is not that of the audit rows"
        return 0, ""

    def _damaged(self, fault: str) -> str:
        return (
            f"the account {self._path} is damaged ({fault}); keep a copy of it, put the last backup in its place, and "
            "then run `fedsynth site account --restored`"
        )

    # Connections

    def _create(self) -> None:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        if os.stat(self._path).st_mode & 0o077:
            os.chmod(self._path, 0o600)  # a backup may come back readable for others
        with self._open() as connection:
            if connection.execute("PRAGMA user_version").fetchone()[0] == _FORMAT:
                return
        with self._transaction() as connection:
            found = connection.execute("PRAGMA user_version").fetchone()[0]
            if found == _FORMAT:  # another process was faster
                return
            if found or connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise FedsynthError(
                    f"{self._path} is not an account of this version of fedsynth; keep it with the version that "
                    "wrote it, and give the site a new account with what is left of its limit"
                )
            _make_tables(connection)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=60, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA secure_delete = ON")
        return connection

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            if self._memory is not None:
                with self._lock:
                    yield self._memory
                return
            connection = self._connect()  # for each call: a connection must not cross a fork
            try:
                yield connection
            finally:
                connection.close()
        except sqlite3.ProgrammingError:
            raise
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter in the text of the former
            if getattr(error, "sqlite_errorcode", 0) & 255 in _PASSING:
                raise FedsynthError(f"the account {self._path} cannot be used now: {error}; try again") from error
            raise FedsynthError(self._damaged(str(error))) from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._open() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise


def verify_export(path: Path, noted: str = "") -> Findings:
    """Verify audit rows that were exported to a file, one line of JSON each; ``noted`` as in :meth:`Account.verify`."""
    chain = _Chain(noted)
    with path.open("rb") as file:
        for line in file:
            wrong = chain.follow(line.removesuffix(b"\n"))
            if wrong:
                return chain.findings(chain.head.row + 1, wrong)
    return chain.findings()


@dataclass
class _Chain:
    """Audit rows followed from the first one on: the chain, the running totals, and what was charged."""

    noted: str
    head: _Head = field(default_factory=_Head)
    noted_at: int = 0
    runs: dict[str, Cost] = field(default_factory=dict)
    charged: dict[str, int] = field(default_factory=dict)
    restores: list[int] = field(default_factory=list)

    def follow(self, content: object) -> str:
        """Take in the next row; say what keeps it from following the last one, empty if nothing does."""
        try:
            row = _read_row(content if isinstance(content, bytes) else b"")
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return "is no row of an audit"
        assert isinstance(content, bytes)
        before = self.head
        if row.previous != before.chain.hex():
            return "does not follow from the row before it: one of the two was changed, or rows are missing or moved"
        if row.row != before.row + 1 and not (row.outcome == "restored" and row.row > before.row):
            return f"follows row {before.row} and has the number {row.row}"
        cost = None if row.cost is None else row.cost.cost
        if (row.total.cost, row.exact) != before.plus(cost):
            return "has another total than the sum of what was charged"
        if cost is not None:
            self.runs[row.run] = self.runs.get(row.run, Cost()) + cost
            if row.run_total.cost != self.runs[row.run]:
                return "has another total for its run than the sum of what the run was charged"
        if row.outcome == "charged":
            self.charged[row.key] = row.row
        if row.outcome == "restored":
            self.restores.append(row.row)
        self.head = _Head(row.row, hashlib.sha256(content).digest(), row.total.cost, row.exact)
        if self.head.chain.hex() == self.noted:
            self.noted_at = row.row
        return ""

    def findings(self, broken: int = 0, wrong: str = "") -> Findings:
        """Return what was found so far."""
        return Findings(self.head.row, self.head.chain.hex(), broken, wrong, self.noted_at)


def _refuse_other_rows(run: _Run, charge: Charge) -> None:
    if run.closed:
        raise Refused(f"run {charge.run} is closed here and answers nothing more; start another run")
    if charge.rows and run.rows and charge.rows != run.rows:
        raise Refused(f"run {charge.run} reads other rows than those it began with; start another run for the new rows")


def _refuse_other_terms(known: _Question, charge: Charge) -> None:
    if (known.run, known.terms) != (charge.run, charge.terms):
        raise Refused(
            f"this question of run {charge.run} was asked under other terms ({known.terms}; now {charge.terms}); undo "
            "the change of policy or version, or let the run ask a new question"
        )


def _refuse_overdraft(charge: Charge, total: Cost, in_run: Cost) -> None:
    if charge.cost == Cost():
        return  # what is public costs nothing, also where nothing is left
    for scope, limit, before in (("in total", charge.total, total), ("in this run", charge.per_run, in_run)):
        if not limit.covers(before + charge.cost):
            unit = "epsilon" if limit.pure else "rho"
            raise BudgetExceeded(
                f"one person was charged {unit} = {getattr(before, unit):.6g} of {getattr(limit, unit):.6g} {scope}, "
                f"and the question costs {getattr(charge.cost, unit):.6g} more; ask for less, or ask the site's data "
                "steward to raise the limit"
            )


def _free_slot(slots: Iterable[tuple[float, int]], used: Iterable[tuple[float, int]], price: float) -> float | None:
    """Return the price of the cheapest slot that covers ``price`` once ``used`` ones are taken; ``None`` if none does.

    Taking the cheapest that covers never loses: of two slots that cover a charge, the dearer one covers all that the
    cheaper does. Used slots are placed anew, so that a run may go on under a plan with other prices.
    """
    free: Counter[float] = Counter()
    for slot, times in slots:
        free[slot] += times
    place: float | None = None
    for taken, times in [*used, (price, 1)]:
        for place in sorted(slot for slot, left in free.items() if left and slot * ROUNDING >= taken):
            here = min(times, free[place])
            free[place] -= here
            times -= here
            if not times:
                break
        if times:
            return None
    return place


def _facts(charge: Charge) -> dict[str, object]:
    names = ("key", "run", "step", "attempt", "verb", "kind", "trust", "plan", "terms")
    return {name: getattr(charge, name) for name in names} | {"release": msgspec.json.decode(charge.release)}


def _short(value: object) -> int | str:
    """Return a fact as it may stand in an audit row; JSON escapes what is left of control characters."""
    if type(value) is int and abs(value) < 2**63:
        return value
    text = str(value)
    cut = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"
    return cut.encode(errors="backslashreplace").decode()


def _hour(moment: datetime) -> int:
    return int(moment.timestamp() // 3600)


def _seal(values: tuple[Any, ...]) -> bytes:
    """Return the checksum of a table's row: it finds damage, not forgery; against that there is the chain."""
    return hashlib.blake2b(msgspec.msgpack.encode(tuple(values)), digest_size=16).digest()


def _make_tables(connection: sqlite3.Connection) -> None:
    for statement in _TABLES.split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {_FORMAT}")


@lru_cache
def _empty() -> bytes:
    """Return an account without rows: a copy is opened ten times faster than tables are made."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("PRAGMA page_size = 1024")
        _make_tables(connection)
        return connection.serialize()
