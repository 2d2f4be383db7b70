"""Who spent what: the server's plan and report, and each site's own durable account.

Rule 1: a charge is durable on the site's disk before the answer that it pays for leaves.
Rule 2: the same question about the same rows is charged once, because its answer is the same to the bit.
Rule 3: a site's limit is the site's; nothing that a server sends can raise it.
"""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsynth.errors import BudgetExceeded, Refused
from fedsynth.privacy.release import Budget, Exact, Release, epsilon_of, release_to_json

# Sums of floats may overshoot an exactly spent budget by rounding; one part in a billion of epsilon is not
# a leak.
_ROUNDING = 1 + 1e-9


@dataclass(frozen=True)
class Entry:
    """One line of the server's ledger: a release, and the sites that it was asked of."""

    step: int
    verb: str
    task: str
    release: Release
    sites: tuple[str, ...]
    cells: int
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the line as JSON values (an exact release costs ``null``: no finite number)."""
        return {
            "step": self.step,
            "verb": self.verb,
            "task": self.task,
            "release": release_to_json(self.release),
            "rho": None if math.isinf(self.release.rho) else self.release.rho,
            "sites": list(self.sites),
            "cells": self.cells,
            "note": self.note,
        }


@dataclass
class Ledger:
    """The server's account of one run.

    A record lives at one site, so the run costs what its most charged site was charged (parallel composition
    over sites, sequential composition within one). Exact releases are counted apart: a run that has any
    guarantees nothing. ``assumption`` says under what the guarantee holds, where the trust needs anything.
    """

    budget: Budget
    entries: list[Entry] = field(default_factory=list)
    per_site: dict[str, float] = field(default_factory=dict)
    seeded_noise: bool = False
    assumption: str = ""

    def check(self, site: str, rho: float) -> None:
        """Raise :class:`BudgetExceeded` if ``rho`` more at ``site`` would pass the budget."""
        if math.isfinite(rho) and self.per_site.get(site, 0.0) + rho > self.budget.rho * _ROUNDING:
            spent = self.per_site.get(site, 0.0)
            raise BudgetExceeded(
                f"{site} has spent rho={spent:.6g} of {self.budget.rho:.6g} and the request costs "
                f"{rho:.6g} more; give the method fewer rounds or the run a larger epsilon"
            )

    def record(self, entry: Entry) -> None:
        """Charge every site of the entry; raise :class:`BudgetExceeded`, charging none, if one cannot pay."""
        rho = entry.release.rho
        for site in entry.sites:
            self.check(site, rho)
        self.entries.append(entry)
        for site in entry.sites:
            self.per_site[site] = self.per_site.get(site, 0.0) + (rho if math.isfinite(rho) else 0.0)

    def note(self, entry: Entry) -> None:
        """Write down a release that an earlier deposit already paid for."""
        self.entries.append(entry)

    @property
    def rho(self) -> float:
        """What the noisy releases cost the most charged site, in zCDP."""
        return max(self.per_site.values(), default=0.0)

    @property
    def epsilon(self) -> float:
        """What the noisy releases cost the most charged site, at the budget's delta."""
        return epsilon_of(self.rho, self.budget.delta)

    @property
    def exact_releases(self) -> int:
        """Number of releases without noise; anything but 0 voids the guarantee."""
        return sum(isinstance(entry.release, Exact) for entry in self.entries)

    @property
    def guarantee(self) -> str:
        """The statement that the run may be published with, in one sentence."""
        if self.exact_releases:
            return (
                f"NOT PRIVATE: {self.exact_releases} releases without noise (the noisy ones alone would cost "
                f"epsilon = {self.epsilon:.4g})"
            )
        assumption = f"; {self.assumption}" if self.assumption else ""
        seeded = ". Noise was seeded: a simulation, not for publication" if self.seeded_noise else ""
        return (
            f"({self.epsilon:.4g}, {self.budget.delta:.3g})-differential privacy for each record of each site "
            f"(add or remove one record; rho = {self.rho:.6g} zCDP){assumption}{seeded}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the whole account as JSON values."""
        return {
            "budget": {"epsilon": self.budget.epsilon, "delta": self.budget.delta, "rho": self.budget.rho},
            "spent": {"epsilon": self.epsilon, "delta": self.budget.delta, "rho": self.rho},
            "exact_releases": self.exact_releases,
            "seeded_noise": self.seeded_noise,
            "guarantee": self.guarantee,
            "per_site_rho": dict(sorted(self.per_site.items())),
            "entries": [entry.to_json() for entry in self.entries],
        }

    def __str__(self) -> str:
        """Return a table of what was asked, of how many sites, and what it cost."""
        lines = [
            f"{'task':24} {'release':12} {'asked':>6} {'sites':>6} {'cells':>10} {'rho each':>10} {'max rho/site':>12}"
        ]
        for (task, kind), entries in _grouped(self.entries).items():
            costs: dict[str, float] = {}
            for entry in entries:
                for site in entry.sites:
                    costs[site] = costs.get(site, 0.0) + entry.release.rho
            each = entries[0].release.rho
            lines.append(
                f"{task:24} {kind:12} {len(entries):6d} {len(costs):6d} {sum(e.cells for e in entries):10d} "
                f"{each:10.3g} {max(costs.values(), default=0.0):12.4g}"
            )
        lines.append(f"spent: {self.guarantee}")
        return "\n".join(lines)


def _grouped(entries: Sequence[Entry]) -> dict[tuple[str, str], list[Entry]]:
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((f"{entry.verb} {entry.task}", type(entry.release).__name__), []).append(entry)
    return groups


@dataclass(frozen=True)
class Quota:
    """What an approved plan lets a run ask of one ``task`` released as one ``kind``: how often, for what rho."""

    kind: str
    times: int
    rho: float


_SCHEMA = """
CREATE TABLE IF NOT EXISTS charges (
    question TEXT PRIMARY KEY, run TEXT NOT NULL, task TEXT NOT NULL, release TEXT NOT NULL,
    rho REAL NOT NULL, exact INTEGER NOT NULL,
    charged_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')));
CREATE INDEX IF NOT EXISTS charges_run ON charges (run);
CREATE TABLE IF NOT EXISTS secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS sessions (
    question TEXT NOT NULL, part TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (question, part));
"""


class SiteLedger:
    """One site's account in SQLite: durable, and safe under concurrent requests from threads and processes.

    ``path`` may be ``":memory:"`` in a simulation, where a site lives no longer than the process.
    """

    def __init__(self, path: Path | str = ":memory:") -> None:
        """Open the account, creating the file if there is none."""
        self._path = str(path)
        self._lock = threading.Lock()
        self._memory = self._connect() if self._path == ":memory:" else None
        with self._open() as connection:
            connection.executescript(_SCHEMA)

    def charge(
        self,
        question: str,
        run: str,
        task: str,
        release: Release,
        limit: float,
        run_limit: float,
        quota: Quota | None = None,
    ) -> bool:
        """Charge ``release`` for ``question`` and return whether it was new.

        ``limit`` and ``run_limit`` (rho) bound what the site spends in total and in this run, ``quota`` what this
        run spends on such questions. Raises :class:`BudgetExceeded` or, beyond the quota, :class:`Refused`, charging
        nothing, when the charge would pass any of them. Durable on return.
        """
        exact = isinstance(release, Exact)
        rho = 0.0 if exact else release.rho
        with self._open() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                known = connection.execute("SELECT 1 FROM charges WHERE question = ?", (question,)).fetchone()
                if not known:
                    self._refuse_overdraft(connection, run, rho, limit, run_limit)
                    if quota is not None:
                        self._refuse_unplanned(connection, run, task, rho, quota)
                    connection.execute(
                        "INSERT INTO charges (question, run, task, release, rho, exact) VALUES (?, ?, ?, ?, ?, ?)",
                        (question, run, task, json.dumps(release_to_json(release)), rho, int(exact)),
                    )
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise
        return not known

    def spent(self, run: str | None = None) -> float:
        """Return the rho spent in all, or in one run."""
        with self._open() as connection:
            return _spent(connection, run)

    def charges(self) -> list[dict[str, Any]]:
        """Return every charge, oldest first, as JSON values."""
        columns = ("question", "run", "task", "release", "rho", "exact", "charged_at")
        with self._open() as connection:
            rows = connection.execute(f"SELECT {', '.join(columns)} FROM charges ORDER BY rowid").fetchall()
        return [{**dict(zip(columns, row, strict=True)), "release": json.loads(row[3])} for row in rows]

    def secret(self, name: str, fresh: bytes) -> bytes:
        """Return the stored secret ``name``, storing ``fresh`` the first time."""
        with self._open() as connection:
            connection.execute("INSERT OR IGNORE INTO secrets VALUES (?, ?)", (name, fresh))
            stored: bytes = connection.execute("SELECT value FROM secrets WHERE name = ?", (name,)).fetchone()[0]
        return stored

    def first(self, question: str, part: str, value: bytes) -> bytes:
        """Return what was first said as this part of a question's session: ``value``, if nothing was before.

        Durable on return, so that a site that is a new process for every message holds to one story.
        """
        with self._open() as connection:
            connection.execute("INSERT OR IGNORE INTO sessions VALUES (?, ?, ?)", (question, part, value))
        stored = self.said(question, part)
        assert stored is not None
        return stored

    def said(self, question: str, part: str) -> bytes | None:
        """Return what was said as this part of a question's session, if anything was."""
        with self._open() as connection:
            row = connection.execute(
                "SELECT value FROM sessions WHERE question = ? AND part = ?", (question, part)
            ).fetchone()
        return None if row is None else bytes(row[0])

    @staticmethod
    def _refuse_overdraft(connection: sqlite3.Connection, run: str, rho: float, limit: float, run_limit: float) -> None:
        for scope, bound, spent in (
            ("in total", limit, _spent(connection, None)),
            ("in this run", run_limit, _spent(connection, run)),
        ):
            if spent + rho > bound * _ROUNDING:
                raise BudgetExceeded(
                    f"the site has spent rho={spent:.6g} of {bound:.6g} {scope} and the request costs {rho:.6g} more; "
                    "ask for less, or ask the site's data steward to raise its limit"
                )

    @staticmethod
    def _refuse_unplanned(connection: sqlite3.Connection, run: str, task: str, rho: float, quota: Quota) -> None:
        rows = connection.execute("SELECT release, rho FROM charges WHERE run = ? AND task = ?", (run, task)).fetchall()
        paid = [cost for release, cost in rows if json.loads(release)["kind"] == quota.kind]
        if len(paid) + 1 > quota.times or math.fsum([*paid, rho]) > quota.rho * _ROUNDING:
            raise Refused(
                f"this run has asked for {task!r} {len(paid)} times at rho={math.fsum(paid):.6g}; the approved plan "
                f"allows {quota.times} times and rho={quota.rho:.6g} in all; plan again with more and have it approved"
            )

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=60, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        if self._memory is not None:
            with self._lock:
                yield self._memory
            return
        connection = self._connect()  # one a request: a connection must not cross a fork
        try:
            yield connection
        finally:
            connection.close()


def _spent(connection: sqlite3.Connection, run: str | None) -> float:
    where, values = ("", ()) if run is None else (" WHERE run = ?", (run,))
    rows = connection.execute(f"SELECT rho FROM charges{where}", values).fetchall()
    return math.fsum(row[0] for row in rows)
