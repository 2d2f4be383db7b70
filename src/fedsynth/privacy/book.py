"""A book: one durable, hash-chained record of the questions that a site was asked, their costs and its replies.

A site's book is its privacy account; a compute server keeps one of what it releases of the sites' shares, and a
simulation one in memory. A question is one request of a run to the site. Its terms are everything that its answer
depends on besides the request and the rows: the noise, the unit of protection, the settings of the trust model, the
version of fedsynth. An audit row records one event, such as a charge or a refusal. The salt of a question is 32 random
bytes, one source of its noise.

Rule 1: a question is charged once, in the transaction that also stores its salt, its terms and its audit row. This is
    durable before anything is computed (``synchronous = EXTRA``).
Rule 2: a second transaction stores the reply, unless there is one already; only stored answers leave the site (except
    large ones in a simulation). After a crash between the two transactions, the reply is computed again from the same
    salt, under the same terms and on the same rows, or not at all.
Rule 3: limits are the site's own; nothing that a server sends can raise them.
Rule 4: the totals are the costs to one person of the book's unit, under its neighbour relation: the largest that
    the site's policy demanded of any charge (:class:`~fedsynth.privacy.cost.ProtectedChange`). A larger one re-prices
    the site's total in the transaction of the next charge, as an audit row; a smaller one changes nothing.
Rule 5: an audit row consists of the request, its cost or the reason why it was not answered, and the running totals,
    without any value or row of the table. The reason is an error's text; fedsynth's own sources of rows keep values out
    of theirs. Audit rows form a hash chain (:mod:`~fedsynth.privacy.book_file`).
Rule 6: nothing that cannot be undone follows from the clock alone, which may be wrong by years. Runs age by at most a
    day between two readings of it (:class:`~fedsynth.privacy.book_file.ClockRecord`). Times in audit rows are for
    people; the hour of a message without cost only decides whether it gets an audit row of its own.

A charge at audit row r means that an answer *may* have left the site since then.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from fedsynth.errors import BudgetExceeded, FedsynthError, InvalidParameter, Refused, Unsupported
from fedsynth.keys import SecretBytes
from fedsynth.privacy.book_file import (
    RESTORES,
    START,
    AuditHead,
    AuditResult,
    BookFile,
    ChainCheck,
    ClockRecord,
    PartRecord,
    QuestionRecord,
    Records,
    RejectedRecord,
    RunRecord,
    damaged,
    short,
)
from fedsynth.privacy.charge import BegunRun, Charge, LostCharges, LostRun, Opened
from fedsynth.privacy.cost import ROUNDING, Cost, ProtectedChange, in_full

FREE_AN_HOUR = 1000
"""Messages without cost in one hour that an account on disk answers or, if it refuses them, gives a row each."""
_SESSIONS = 64  # most uncharged open sessions of secure sums
_BATCH = 1000  # rows that an export reads at a time, so that no lock is held while they are written elsewhere
_MOST_ROWS = 2**53
_DAY = 86400.0  # s; by no more does an account age between two readings of the clock
_TICK = 600.0  # s that may pass until a reading of the clock is stored
LARGEST_KEPT = 2**16
"""Largest reply that is stored, in bytes, if the site can make the same one again from salt, terms and rows."""
_RUNS_STORED = 16  # times what one run may store is what all open runs may store together
_BACK = 60.0  # s by which a clock that is being set right may go back without a warning
_FREE, _UNANSWERED = "hour free", "hour unanswered"  # keys of the parts that list this hour's messages without cost
_AGREEMENT = "agreement"  # name of the part of a run that holds what it is agreed to be
_log = logging.getLogger(__name__)


def always(agreement: bytes) -> bool:
    """Say of any agreement that its run may have had releases on samples: charges more than enough."""
    return True


def now() -> datetime:
    """Return the current time; the default clock of a :class:`Book`."""
    return datetime.now(UTC)


class Book:
    """A durable record of questions, safe under concurrent requests from threads and processes.

    Methods name a question by its ``key`` (:class:`~fedsynth.privacy.charge.Charge`), and the messages of a protocol
    that takes several, such as a secure sum, by ``turn``, from 0. What must be remembered of earlier messages is the
    question's session.

    ``path`` may be ``":memory:"`` in a simulation, where a site exists only as long as the process. ``entropy(key)``
    returns the salt of the question with this key in a seeded simulation; otherwise salts come from the operating
    system. ``clock()`` returns the time, with a time zone; if it jumps by more than a day, or goes back, the log has a
    warning. In each hour of the clock, the first :data:`FREE_AN_HOUR` messages that are not answered get an audit row
    each, and those after them share one; so do the repetitions of a message. As many questions without cost (about
    public facts, and openings of secure sums) are answered; those after them are refused. In memory, where they fill no
    disk, their number has no bound, and replies of more than :data:`LARGEST_KEPT` bytes are not kept.

    A method that finds damage raises :class:`FedsynthError`; only :meth:`verify` returns the fault.
    """

    def __init__(
        self,
        path: Path | str = ":memory:",
        *,
        entropy: Callable[[str], bytes] | None = None,
        clock: Callable[[], datetime] = now,
    ) -> None:
        """Open the book; a missing file is created, accessible to its owner only."""
        self._file = BookFile(str(path))
        self._entropy = entropy
        self._clock = clock
        self.free_an_hour = FREE_AN_HOUR if self._file.durable else sys.maxsize

    # Questions

    def begin(self, charge: Charge, *, pay: bool = True, resume: bool = False) -> Opened:
        """Charge a question, durably, or return the entry of a question that is already charged.

        This is the first of two transactions; the second is :meth:`store`. With ``pay=False`` the session of a secure
        sum is opened: its salt, its terms, the digest of its rows and an audit row are stored, and the limits are
        checked, but nothing is charged until a call with the same key and ``pay=True``. At most 64 sessions may be open
        uncharged; opening another one deletes the oldest completely. Set ``resume`` for the later messages of a
        session: if it was deleted, the call is refused, and no new one is begun with another salt.

        Raises :class:`BudgetExceeded` beyond a limit, and :class:`Refused` for a closed run; for other terms, rows or
        another agreement than those stored; for a run or plan of a smaller unit than the book's, and a cost without a
        bound for that; for a plan in another measure than the run's, or without an unused question that covers this
        cost; and if too much would be stored or is asked without cost. Nothing is charged in these cases.
        """
        with self._file.transaction() as records:
            run = records.get(RunRecord, charge.run)
            if run is not None:
                _refuse_other_rows(run, charge)
                if _agreement(records, charge.run) != charge.agreement:
                    raise Refused(f"run {charge.run} began under another agreement; start another run")
            known = records.get(QuestionRecord, charge.key)
            _refuse_other_terms(known, charge, resume=resume)
            if known is not None and (known.paid or not pay):
                return Opened(known.salt, known.row, records.chain(known.row), bool(known.paid))
            free = known is None and (not pay or not (charge.cost.rho or charge.cost.curve))
            again = self._listed(records, _FREE, charge.key) if free else 0
            if again is None:
                raise Refused("too many questions without cost in this hour; ask again in the next hour")
            before = records.head()
            head, cost = _repriced(before, charge.least), _cost_for(charge, before.change.covering(charge.least))
            if new := run is None:
                if records.execute("SELECT 1 FROM questions WHERE run = ?", charge.run).fetchone():
                    raise damaged(records.path, f"the record of the run {charge.run} is missing")
                run = RunRecord(charge.run, 0, charge.rows, Cost(), charge.per_run, 0.0, head.change)
            if run.change != head.change:
                raise Refused(
                    f"start another run: {run.run} began when this account counted for {run.change}, and now it counts "
                    f"for {head.change}"
                )
            _refuse_overdraft(charge, cost, head.total, run.spent)
            _refuse_other_measure(run, charge)
            slot = self._slot(records, charge)
            spent, stored = run.spent, run.stored
            if known is None:
                stored += charge.stored + (len(charge.agreement) if new else 0)
                self._refuse_storage(records, charge, stored)
            if head.change != before.change:
                facts = {"before": before.total, "steps": before.change.steps_to(head.change)}
                self._append(records, "re-priced", facts, change=head.change)
            if pay:
                spent += cost
                facts = {"quoted": charge.cost} if cost != charge.cost else {}
                facts |= {"cost": cost, "slot": slot, "run_total": spent}
                row, chain = self._append(records, "charged", {**charge.facts, **facts}, cost)
            else:
                records.forget_sessions(_SESSIONS)
                row, chain = (again, records.chain(again)) if again else self._append(records, "opened", charge.facts)
            if free:
                records.put(PartRecord(_FREE, charge.key, row.to_bytes(8)))
            if known is None:
                salt = self._random(charge.key)
                known = QuestionRecord(charge.key, charge.run, row, pay, salt, charge.terms, charge.group, slot or 0.0)
            records.put(known._replace(row=row, paid=int(pay), price=slot or 0.0))
            if new and charge.agreement:
                records.put(PartRecord(_run(charge.run), _AGREEMENT, charge.agreement))
            limit = run.limit.wider(charge.per_run)  # a narrower limit does not undo what the run may have used
            used, rows = max(run.used, self._age(records)), charge.rows or run.rows
            records.put(run._replace(rows=rows, spent=spent, limit=limit, used=used, stored=stored))
        return Opened(known.salt, row, chain, pay)

    def stored(self, key: str, turn: int) -> bytes | None:
        """Return the stored reply to one message of a question, to be sent again; ``None`` if there is none.

        A reply that is found is counted as sent again (``replays`` in :meth:`charges`).
        """
        with self._file.open() as records:
            reply = records.get(PartRecord, key, f"turn {turn}")
        if reply is not None:
            self._count_replay(key)
        return None if reply is None else reply.value

    def store(self, key: str, turn: int, reply: bytes, *, again: bool = False) -> bytes:
        """Store ``reply`` to one message of a question, unless one is stored already, and return the stored one.

        Only the returned bytes may leave. Set ``again`` if the same reply can be made from the question's salt, its
        terms and the run's rows whenever the message comes: then only a hash is stored of one larger than
        :data:`LARGEST_KEPT`, and no other reply can take its place. Raises :class:`Refused` if the session or the run
        is closed, and :class:`FedsynthError` for a reply that differs from the first one.
        """
        if len(reply) > LARGEST_KEPT and not self._file.durable:
            return reply
        if not again or len(reply) <= LARGEST_KEPT:
            return self._keep(key, f"turn {turn}", reply)
        digest, known = hashlib.sha256(reply).digest(), self.hashed(key, turn)
        if known is not None:
            self._count_replay(key)
        if (known or self.first(key, f"hash {turn}", digest)) != digest:
            raise FedsynthError(
                "the site's first reply to this message cannot be made again; was fedsynth, or a package that it uses, "
                "upgraded during the run? Go back to the version that began it, or have another run started"
            )
        return reply

    def hashed(self, key: str, turn: int) -> bytes | None:
        """Return the hash (SHA-256) of a reply of which :meth:`store` kept only that; ``None`` if there is none."""
        return self.said(key, f"hash {turn}")

    def first(self, key: str, part: str, value: bytes) -> bytes:
        """Store ``value`` under the name ``part`` in a question's session unless there is one; return the stored value.

        It is durable on return, so that a site that starts a new process for every message never contradicts itself.
        With an empty ``key`` it belongs to no question, and stays as long as the book (the site's secret, for example).
        Raises :class:`Refused` if the session or the run is closed.
        """
        return self._keep(key, f"session {part}", value)

    def said(self, key: str, part: str) -> bytes | None:
        """Return the value that :meth:`first` stored under these names; ``None`` if none."""
        with self._file.open() as records:
            found = records.get(PartRecord, key, f"session {part}")
        return None if found is None else found.value

    def pinned(self, run: str) -> str | None:
        """Return the digest that :meth:`pin` stored for a ``run``: "" if none yet, ``None`` if the run is unknown."""
        with self._file.open() as records:
            found = records.get(RunRecord, run)
        return None if found is None else found.rows

    def agreed(self, run: str) -> bytes:
        """Return the agreement that a ``run`` began under, as :meth:`begin` stored it; empty if it is not open."""
        with self._file.open() as records:
            return _agreement(records, run)

    def pin(self, run: str, rows: str) -> str:
        """Bind a run to its rows, unless it is bound to some already; return the digest of the rows it is bound to.

        ``rows`` is the keyed digest (hex) of the rows. If the result differs from it, the rows have changed since the
        run began, and :meth:`begin` refuses to charge the run for them. Raises :class:`Refused` for a run that is not
        open.
        """
        with self._file.transaction() as records:
            found = self._open_run(records, run)
            if not found.rows:
                found = found._replace(rows=rows)
                records.put(found)
        return found.rows

    def run_salt(self, run: str) -> bytes:
        """Return the random salt (32 bytes) of a run, for keys that all its questions share; the first call draws it.

        Raises :class:`Refused` for a run that is not open.
        """
        key = _run(run)
        with self._file.transaction() as records:
            self._open_run(records, run)
            known = records.get(PartRecord, key, "salt")
            if known is None:
                known = PartRecord(key, "salt", self._random(key))
                records.put(known)
        return known.value

    # Audit

    def note(self, outcome: str, *, request: str = "", **facts: object) -> tuple[int, bytes]:
        """Record a message that was not answered; return the number and the chain value of the last audit row.

        ``outcome`` is what happened, such as "refused", and ``request`` the message's digest (hex). ``facts`` (run,
        step, kind, reason, ...) are only for whoever is responsible for the book; long texts are truncated. Messages
        that share a row are counted there, with a hash of them; it is written before the first entry of a later hour.
        """
        facts = {"request": request, **facts} if request else facts
        shortened = {name: short(value) for name, value in facts.items()}
        content = msgspec.json.encode([outcome, shortened])
        key = request or hashlib.sha256(content).hexdigest()
        with self._file.transaction() as records:
            if self._listed(records, _UNANSWERED, key) == 0:
                row, _ = self._append(records, outcome, shortened)
                records.put(PartRecord(_UNANSWERED, key, row.to_bytes(8)))
            else:
                over = records.get(RejectedRecord) or RejectedRecord(_hour(self._clock()))
                records.execute("DELETE FROM rejected")
                digest = hashlib.sha256(over.digest + content).digest()
                records.put(RejectedRecord(over.hour, over.number + 1, digest))
            return records.head()[:2]

    def head(self) -> tuple[int, bytes]:
        """Return number and chain value (32 bytes) of the last audit row; 0 and 32 zero bytes without a row."""
        with self._file.open() as records:
            return records.head()[:2]

    def holds(self, row: int, chain: bytes) -> bool:
        """Return whether the audit has the chain value ``chain`` at ``row``, as a server has seen it (0: none yet).

        The result is false if a backup without that row was restored, until :meth:`restored` has charged for the rows
        that the backup lacks.
        """
        if not 0 < row < _MOST_ROWS:
            return row == 0 and chain == START
        with self._file.open() as records:
            found = records.execute("SELECT chain FROM audit WHERE row = ?", row).fetchone()
            if found is not None and found[0] == chain:
                return True
            return any(int.from_bytes(one.value) >= row for one in records.all(PartRecord, "key = ?", RESTORES))

    def verify(self, noted: str = "") -> AuditResult:
        """Verify the whole book: file, chain of audit rows, totals, and every hash; changes nothing.

        ``noted`` is the chain value (hex) of a row that was noted elsewhere: if the book lacks this row, its end was
        cut off or it was rewritten. A fault is returned, not raised.
        """
        chain = ChainCheck(noted)
        try:
            with self._file.open() as records:
                records.execute("BEGIN")
                try:
                    return chain.findings(*records.faults(chain))
                finally:
                    records.execute("ROLLBACK")
        except (FedsynthError, sqlite3.Error) as error:
            return chain.findings(0, str(error))

    def export(self) -> Iterator[str]:
        """Yield the audit rows as JSON texts, oldest first (see :func:`~fedsynth.privacy.book_file.verify_export`)."""
        last = 0
        while True:
            with self._file.open() as records:
                rows = records.execute(
                    "SELECT row, content FROM audit WHERE row > ? ORDER BY row LIMIT ?", last, _BATCH
                ).fetchall()
            if not rows:
                return
            yield from (content.decode(errors="backslashreplace") for _, content in rows)
            last = rows[-1][0]

    # What was spent

    def spent(self, run: str | None = None) -> Cost:
        """Return the cost to one person of everything charged here, or of one ``run`` (:meth:`change_of`)."""
        with self._file.open() as records:
            if run is None:
                return records.head().total
            found = records.get(RunRecord, run)
        return Cost() if found is None else found.spent

    def asked(self, run: str) -> int:
        """Return how many questions of a ``run`` were charged."""
        with self._file.open() as records:
            found = records.execute("SELECT count(*) FROM questions WHERE paid AND run = ?", run).fetchone()
        return int(found[0])

    @property
    def change(self) -> ProtectedChange:
        """Whom the total is for: the unit and neighbour relation of the book; before any charge one row."""
        with self._file.open() as records:
            return records.head().change

    def change_of(self, run: str) -> ProtectedChange:
        """Return whom a run's total is for: :attr:`change` as it was when the run began, or is for an unknown run."""
        with self._file.open() as records:
            found = records.get(RunRecord, run)
            return records.head().change if found is None else found.change

    def spent_under(self, least: ProtectedChange) -> Cost:
        """Return what :meth:`spent` becomes with the next charge, if the site's policy demands ``least``.

        Raises :class:`Refused` if the book has charges without a bound for it.
        """
        with self._file.open() as records:
            return _repriced(records.head(), least).total

    @property
    def exact(self) -> int:
        """Number of releases without noise ever charged; any value but 0 voids every guarantee."""
        with self._file.open() as records:
            return records.head().exact

    def charges(self) -> list[dict[str, Any]]:
        """Return the audit rows of all charges, oldest first, as JSON values.

        Each describes the question as its :class:`~fedsynth.privacy.charge.Charge` does, its cost, and the running
        totals of the run and of the book, for persons of the row's ``unit`` and ``neighbours``; ``replays`` counts how
        often the reply was sent again. If the request stated less, ``quoted`` is the cost for that. The charges that
        :meth:`restored` makes for lost audit rows describe no question, but name the run.
        """
        with self._file.open() as records:
            replays = dict(records.execute("SELECT row, replays FROM questions WHERE paid").fetchall())
            held = records.execute("SELECT content, chain FROM audit ORDER BY row")
            charged = [(records.checked(*row), row[0]) for row in held]
        return [
            {**msgspec.json.decode(content), "replays": replays.get(row.row, 0)}
            for row, content in charged
            if row.cost is not None
        ]

    # Runs

    def open_runs(self) -> list[tuple[str, float]]:
        """Return the runs that are not closed, and for how many days each was idle; the longest first.

        A run is used when a question is charged or its session opened, and when a stored reply is sent again. Days
        count as for :meth:`expire`.
        """
        with self._file.open() as records:
            now, _ = self._passed(records)
            runs = records.all(RunRecord, "NOT closed ORDER BY used, run")
        return [(run.run, max(0.0, now.age - run.used) / _DAY) for run in runs]

    def kept(self) -> dict[str, int]:
        """Return the bytes kept by key: a question's (replies, session) and those of runs and of the site itself."""
        with self._file.open() as records:
            return dict(records.execute("SELECT key, SUM(LENGTH(value)) FROM parts GROUP BY key").fetchall())

    def close(self, run: str, by: str = "steward") -> int:
        """Delete the replies, salts and sessions of a ``run`` permanently, and return the number of its questions.

        The number is 0 if the run was closed before, when nothing changes. Its questions are refused from then on; its
        charges remain. The audit row says by whom it was closed. Raises :class:`InvalidParameter` for an unknown run.
        """
        with self._file.transaction() as records:
            found = records.get(RunRecord, run)
            if found is None:
                raise InvalidParameter(f"this account has no run {run!r}; `fedsynth account` lists the runs")
            if found.closed:
                return 0
            closed = self._close(records, found, by)
        self._file.clear()
        return closed

    def expire(self, days: float, keep: str = "") -> list[str]:
        """Close all runs that were idle for more than ``days`` days, except the run named ``keep``; return their names.

        Days are those that the account has seen pass: at most one between two readings of the clock.
        """
        idle = "NOT closed AND used < ? AND run != ? ORDER BY used, run"
        with self._file.open() as records:  # called for each question: nothing is locked if there is nothing to do
            now, due = self._passed(records)
            if not due and not records.all(RunRecord, idle, now.age - days * _DAY, keep):
                return []
        with self._file.transaction() as records:
            expired = records.all(RunRecord, idle, self._age(records) - days * _DAY, keep)
            for run in expired:
                self._close(records, run, "age")
        if expired:
            self._file.clear()
        return [run.run for run in expired]

    def lost(
        self, began: Mapping[str, BegunRun] | None = None, *, samples: Callable[[bytes], bool] = always
    ) -> LostCharges:
        """Return what :meth:`restored` charges when it is given the same arguments, and charge nothing."""
        with self._file.open() as records:
            return self._lost(records, began or {}, samples)[1]

    def restored(
        self,
        row: int,
        began: Mapping[str, BegunRun] | None = None,
        *,
        samples: Callable[[bytes], bool] = always,
        announced: LostCharges | None = None,
    ) -> None:
        """Charge for what a restored backup lacks, up to ``row``, the last audit row that a server has seen.

        The lost charges are unknown, so each open run is charged up to the widest limit under which it was asked
        (:meth:`RunRecord.rest <fedsynth.privacy.book_file.RunRecord.rest>`), and closed. ``began`` has the limits, by
        run name, of runs that began after the backup was made. Later audit rows get numbers above ``row``, and
        :meth:`holds` accepts what servers have seen up to there. ``announced`` is what :meth:`lost` returned, for a
        person to agree to: nothing else is then charged. Raises :class:`InvalidParameter` for a row number that cannot
        exist, and :class:`Refused` if something else than what was announced would be charged.

        Lost charges may be for releases on random samples of rows, unless ``samples(agreement)`` is false for the
        agreement under which the run began (its data; empty if unknown), or the book counts for replaced rows. They
        cost more than as many releases of whole tables, and beyond the order of a run's limit nothing bounds them: if
        the site's own limit has a higher one, its total exceeds that limit.

        Proof that the charges bound what was lost, whatever the policy became and whatever runs were asked meanwhile:
        (1) :meth:`begin` refuses a charge with which a run would exceed the limit it names, and that of a run under a
        plan is its plan's. If no limit was raised after the backup, the costs of a run in the measure of its limit,
        those that the backup knows and those that it lacks, sum up to at most that limit, so that the lost ones are at
        most its rest. (2) Without samples, a cost in that measure is the cost itself, a rho or an epsilon, at every
        order and so at every limit of the site. (3) Whether a lost charge may be on samples is known of a run from its
        agreement alone: the book holds the first one, :meth:`begin` refuses any other for this run, and a plan is kept
        to under every policy. The agreement of one run says nothing about another. (4) A book that counts for replaced
        rows counts for them for good (rule 4), and a cost on samples has no bound for them, so that :meth:`begin`
        refuses it. (5) Of runs that the backup does not know, the caller states limit and agreement. What one run spent
        twice, in the lost rows and again from the backup before the loss was noticed, is not bounded: a server that
        keeps back the last row that it saw can bring that about.

        Runs that are no longer answered, because they began when the book counted for a smaller unit, have no lost
        charges and are only closed. What is charged is for the backup's unit. If the lost charges were for a larger
        one, they bound this cost; the next charge under a larger one re-prices it with the rest.
        """
        if not 0 < row < _MOST_ROWS:
            raise InvalidParameter(f"audit row {row} cannot exist; give the last row number that the server reported")
        with self._file.transaction() as records:
            runs, charges = self._lost(records, began or {}, samples)
            if announced not in (None, charges):
                raise Refused("the account has changed since these charges were announced; give the command again")
            number, _ = self._append(records, "restored", {"behind": records.head().row, "seen": row}, above=row)
            records.put(PartRecord(RESTORES, str(number), row.to_bytes(8)))
            for run, lost in zip(runs, charges.runs, strict=True):
                total = lost.spent + lost.rest
                facts = {"run": run.run, "cost": lost.rest, "run_total": total}
                self._append(records, "written off", facts, lost.rest)
                self._close(records, run._replace(spent=total), "restoration")
            for run in records.all(RunRecord, "NOT closed ORDER BY run"):
                self._close(records, run, "restoration")
        self._file.clear()

    # Inside a transaction

    def _open_run(self, records: Records, run: str) -> RunRecord:
        found = records.get(RunRecord, run)
        if found is None or found.closed:
            raise Refused(f"run {run} is not open here; start another run")
        return found

    def _lost(
        self, records: Records, began: Mapping[str, BegunRun], samples: Callable[[bytes], bool]
    ) -> tuple[list[RunRecord], LostCharges]:
        head = records.head()
        open_runs = [run for run in records.all(RunRecord, "NOT closed ORDER BY run") if run.change == head.change]
        agreed = [(run, _agreement(records, run.run)) for run in open_runs]
        for name, (limit, agreement) in began.items():
            if records.get(RunRecord, name) is None:
                agreed.append((RunRecord(name, 0, "", Cost(), limit, 0.0, head.change), agreement))
        charged = []
        for run, agreement in agreed:
            sampled = head.change.neighbours == "add-remove" and samples(agreement)
            charged.append(LostRun(run.run, run.limit, run.spent, run.rest(sampled=sampled)))
        return [run for run, _ in agreed], LostCharges(tuple(charged), head.total)

    def _passed(self, records: Records) -> tuple[ClockRecord, bool]:
        """Return the account's time now, and whether this reading of the clock is to be stored."""
        reading = self._clock().timestamp()
        known = records.get(ClockRecord)
        if known is None:
            return ClockRecord(reading, 0.0), True
        passed = reading - known.reading
        return ClockRecord(reading, known.age + min(max(passed, 0.0), _DAY)), not 0 <= passed < _TICK

    def _age(self, records: Records) -> float:
        """Return the account's age, in seconds; store the reading of the clock, and warn of one that cannot be right.

        Only every so often is it stored, to write less: the days between two stored readings count as one at most.
        """
        now, due = self._passed(records)
        if due:
            known = records.get(ClockRecord) or now
            records.execute("DELETE FROM clock")
            records.put(now)
            if not -_BACK <= (passed := now.reading - known.reading) <= _DAY:
                ahead = "ahead of" if passed > 0 else "behind"
                _log.warning(
                    "the clock is %.1f days %s the last time that the account %s was used; if it is wrong, set it "
                    "(chrony or systemd-timesyncd), and if it is right, nothing is to be done: runs have aged by %s",
                    abs(passed) / _DAY,
                    ahead,
                    self._file.path,
                    "one day" if passed > 0 else "nothing",
                )
        return now.age

    def _random(self, key: str) -> bytes:
        return SecretBytes(os.urandom(32) if self._entropy is None else self._entropy(key))

    def _append(
        self,
        records: Records,
        outcome: str,
        facts: Mapping[str, object],
        cost: Cost | None = None,
        above: int = 0,
        change: ProtectedChange | None = None,
    ) -> tuple[int, bytes]:
        """Append an audit row, with a number over ``above``; return its number and chain value.

        With a ``change``, it re-prices the total. The row of a past hour comes before it.
        """
        moment = self._clock()
        self._close_hour(records, moment)
        head = records.head()
        head = head if change is None else head.repriced(change)
        number = max(head.row, above) + 1
        nonce = self._random(f"row {number}")[:16]
        content, chain = head.next_row(number, moment, nonce, outcome, facts, cost)
        records.execute("INSERT INTO audit VALUES (?, ?, ?)", number, content, chain)
        return number, chain

    def _listed(self, records: Records, kind: str, key: str) -> int | None:
        """Return the number of this hour's audit row about a message without cost.

        It is 0 if there is none yet, and ``None`` if ``free_an_hour`` other messages of the ``kind`` have one.
        """
        moment = self._clock()
        self._close_hour(records, moment)
        if records.get(RejectedRecord) is None:
            records.put(RejectedRecord(_hour(moment)))
        known = records.get(PartRecord, kind, key)
        if known is not None:
            return int.from_bytes(known.value)
        (number,) = records.execute("SELECT count(*) FROM parts WHERE key = ?", kind).fetchone()
        return 0 if number < self.free_an_hour else None

    def _close_hour(self, records: Records, moment: datetime) -> None:
        """Write the shared audit row of a past hour, if it had messages without a row of their own."""
        over = records.get(RejectedRecord)
        if over is None or over.hour == _hour(moment):
            return
        records.execute("DELETE FROM rejected")
        for kind in (_FREE, _UNANSWERED):
            records.forget(kind)
        if over.number:
            start = datetime.fromtimestamp(over.hour * 3600, UTC).isoformat(timespec="minutes")
            self._append(records, "rejected", {"hour": start, "count": over.number, "digest": over.digest.hex()})

    def _count_replay(self, key: str) -> None:
        with self._file.transaction() as records:
            question = records.get(QuestionRecord, key)
            run = None if question is None else records.get(RunRecord, question.run)
            if question is not None and run is not None:
                records.put(question._replace(replays=question.replays + 1))
                records.put(run._replace(used=max(run.used, self._age(records))))

    def _refuse_storage(self, records: Records, charge: Charge, stored: int) -> None:
        if stored > charge.most_stored:
            raise Refused(
                f"with this question, run {charge.run} may make the site store {stored} bytes, and largest_stored in "
                f"[policy] is {charge.most_stored:g}; ask for smaller tables, or raise it (fedsynth plan says how much "
                "a run needs)"
            )
        (others,) = records.execute(
            "SELECT total(stored) FROM runs WHERE NOT closed AND run != ?", charge.run
        ).fetchone()
        if others + stored > _RUNS_STORED * charge.most_stored:
            raise Refused(
                f"all open runs together may make the site store {_RUNS_STORED} times largest_stored in [policy]; "
                "close those that are finished (fedsynth account --close)"
            )

    def _slot(self, records: Records, charge: Charge) -> float | None:
        """Return the price of the plan's slot that a charge uses; ``None`` without a plan."""
        if charge.slots is None:
            return None
        used = records.execute(
            "SELECT price, count(*) FROM questions WHERE paid AND run = ? AND slots = ? GROUP BY price",
            charge.run,
            charge.group,
        ).fetchall()
        slot = _free_slot(charge.slots, used, charge.price)
        if slot is None:
            raise Refused(
                f"the approved plan has no free slot for {charge.group!r} at {charge.price:.6g}; this run has used "
                f"{sum(times for _, times in used)} of {sum(times for _, times in charge.slots)}; make a plan with "
                "more slots and have it approved"
            )
        return slot

    def _close(self, records: Records, run: RunRecord, by: str) -> int:
        """Delete everything about a run's questions except their charges; return their number."""
        questions = records.all(QuestionRecord, "run = ?", run.run)
        for question in questions:
            records.forget(question.key)
            if question.paid:
                records.put(question._replace(salt=b""))
        records.forget(_run(run.run))
        records.put(run._replace(closed=1))
        self._append(records, "closed", {"run": run.run, "questions": len(questions), "by": by})
        return len(questions)

    def _keep(self, key: str, part: str, value: bytes) -> bytes:
        with self._file.transaction() as records:
            question = records.get(QuestionRecord, key)
            if key and (question is None or not question.salt):
                raise Refused("the session of this question has ended; start another run")
            known = records.get(PartRecord, key, part)
            if known is None:
                records.put(PartRecord(key, part, value))
        return value if known is None else known.value


def _run(name: str) -> str:
    """Return the key of the parts of a run, which differs from every question's key."""
    return f"run {name}"


def _agreement(records: Records, run: str) -> bytes:
    found = records.get(PartRecord, _run(run), _AGREEMENT)
    return b"" if found is None else found.value


def _hour(moment: datetime) -> int:
    return int(moment.timestamp() // 3600)


# ---------------------------------------------------------------------------------------------------------------------
# Rules by which a charge is refused. They depend on the charge and the book alone, hence on what the site was asked,
# and never on its rows.


def _refuse_other_rows(run: RunRecord, charge: Charge) -> None:
    if run.closed:
        raise Refused(f"run {charge.run} is closed at this site; start another run")
    if charge.rows and run.rows and charge.rows != run.rows:
        raise Refused(f"the rows of run {charge.run} have changed since it began; start another run for the new rows")


def _refuse_other_terms(known: QuestionRecord | None, charge: Charge, *, resume: bool) -> None:
    if known is None and resume:
        raise Refused("this question has no open session at this site; start another run")
    if known is not None and (known.run, known.terms) != (charge.run, charge.terms):
        raise Refused(
            f"this question of run {charge.run} was asked under other terms ({known.terms}; now {charge.terms}); undo "
            "the change of policy or version, or let the run ask a new question"
        )


def _refuse_other_measure(run: RunRecord, charge: Charge) -> None:
    """Refuse a plan whose prices are in another measure than the run's, since slots are counted by their prices.

    For sampled releases these refer to one order, that of the limit.
    """
    limit, plan = run.limit, charge.per_run
    if charge.slots is None or (limit.measure == plan.measure and not (run.spent.curve and limit.order != plan.order)):
        return
    before, now = limit.measure, plan.measure
    if before == now:
        before, now = (f"rho at order {one.order:.4g}" for one in (limit, plan))
    raise Refused(
        f"run {charge.run} was charged in {before} but this plan's prices are in {now}; a run keeps to one "
        "currency: continue under the plan that it began with, or start another run"
    )


def _repriced(head: AuditHead, least: ProtectedChange) -> AuditHead:
    """Return the end of an audit with its total for the book's unit and relation and for ``least`` as well."""
    change = head.change.covering(least)
    try:
        return head.repriced(change)
    except Unsupported as error:
        raise Refused(
            "undo the change of unit or size_is_public in [policy]: this account has training on random samples of "
            f"rows, whose cost is proved for {head.change} and has no bound for {change}"
        ) from error


def _cost_for(charge: Charge, change: ProtectedChange) -> Cost:
    """Return the cost of a charge to the persons for whom the book counts, ``change``."""
    steps = charge.change.steps_to(change)
    if steps > 1 and charge.slots is not None:
        raise Refused(
            "plan again with --rows-per-person and --sites-per-person as in `fedsynth account`, and have the plan "
            f"approved: it is for {charge.change}, and this account counts for {change}"
        )
    try:
        return charge.cost.grouped(steps)
    except Unsupported as error:
        raise Refused(
            "run with --rows-per-person and --sites-per-person as in `fedsynth account`, or a method that samples "
            f"no rows: noise on samples is proved for {charge.change}, and this account counts for {change}"
        ) from error


def _refuse_overdraft(charge: Charge, cost: Cost, total: Cost, in_run: Cost) -> None:
    """Refuse a charge whose ``cost``, on top of what is spent (``total``; ``in_run``), is beyond one of its limits."""
    if cost == Cost():
        return  # public facts cost nothing, and are answered even if the budget is used up
    own, planned = "per_run in [policy]", "the plan's budget"
    limits = [
        ("in total", "budget in [policy]", charge.total, total),
        ("in this run", own if charge.slots is None else planned, charge.per_run, in_run),
    ]
    if charge.own is not None:
        limits.append(("in this run", own, charge.own, in_run))
    for scope, name, limit, before in limits:
        if not limit.covers(before + cost):
            raise BudgetExceeded(
                f"the question costs {limit.measure} = {limit.price(cost):.6g}, and {limit.measure} = "
                f"{limit.price(before):.6g} of {limit.amount:.6g} is spent {scope}, where {name} is epsilon = "
                f"{in_full(limit.epsilon)} at delta = {in_full(limit.delta)}; ask a cheaper question, or have "
                "that limit raised"
            )


def _free_slot(slots: Iterable[tuple[float, int]], used: Iterable[tuple[float, int]], price: float) -> float | None:
    """Return the price of the cheapest slot that covers ``price`` after ``used`` ones are taken; ``None`` if none does.

    That is optimal: of two slots that cover a charge, the dearer one covers everything that the cheaper one covers.
    Used slots are reassigned each time, so a run may continue under a plan with other prices.
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
