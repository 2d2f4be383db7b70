"""The audit of one site, a log of its charges and refusals: a hash chain of rows, and its verification.

A row is JSON: the request, its cost, the running totals, whom they are for, and the SHA-256 hash of the previous row.
Editing, removing or moving a row breaks the chain. The chain alone cannot show that its end was cut off or rewritten
from some row on; therefore servers remember the last row that they saw, and the site's data steward (the person who
decides what the site answers) can note the hash of the last row elsewhere.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from fedsynth.errors import Unsupported
from fedsynth.privacy.cost import ONE_ROW, Cost, Neighbours, ProtectedChange, Unit

START = bytes(32)
"""Chain value before the first row."""

_LONGEST = 200  # most characters of a text in the row of a rejected message, so that no message can fill the disk


@dataclass(frozen=True)
class AuditResult:
    """The result of verifying a site's account, or an export of its audit: how far the audit goes, and the first fault.

    ``rows`` is the number of the last verified audit row, and ``head`` its chain value (hex), the hash to which all
    rows up to there contribute. ``wrong`` describes the first fault, or is empty; ``broken`` is the audit row that it
    concerns, 0 if it concerns no single row. ``noted_at`` is the row whose chain value was noted outside the account
    and given to be found again, 0 if there is no such row.
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
    """The fields of an audit row that the account itself reads; further fields are for people.

    * ``row``: number of the row, from 1.
    * ``outcome``: what happened, such as "charged", "re-priced", "opened", "refused", "closed" or "restored".
    * ``total``: all costs charged up to this row; ``exact``: the number of releases without noise up to it.
    * ``unit``, ``neighbours``: whom the costs are for (:class:`~fedsynth.privacy.cost.ProtectedChange`). Only a row
      "re-priced" changes them, and multiplies the total accordingly.
    * ``previous``: chain value (hex), that is the SHA-256 hash, of the row before.
    * ``key``, ``run``, ``cost``: the question, its run and its cost; no cost if nothing was charged.
    * ``run_total``: all costs of the run up to this row, if something was charged.
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
    """The end of an audit: its last row's number and chain value, and the totals up to there.

    ``row`` is 0, and ``chain`` is 32 zero bytes, before the first row. ``chain`` is the SHA-256 hash of the row, which
    contains that of the row before. ``total`` is the cost of everything charged, for the persons that ``change`` names,
    and ``exact`` the number of releases without noise.
    """

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

        Raises :class:`~fedsynth.errors.Unsupported` if the total has no bound for it (:meth:`Cost.grouped
        <fedsynth.privacy.cost.Cost.grouped>`).
        """
        return self._replace(total=self.total.grouped(self.change.steps_to(change)), change=change)

    def next_row(
        self, number: int, moment: datetime, nonce: bytes, outcome: str, facts: Mapping[str, object], cost: Cost | None
    ) -> tuple[bytes, bytes]:
        """Return the content (JSON) of the row that follows, and its chain value (32 bytes).

        ``number`` is the row's number, ``moment`` its time, and ``outcome`` and ``facts`` say what happened; ``cost``
        is what it charges, ``None`` for nothing. ``nonce`` must be random: chain values leave the site, and without a
        nonce anyone could use them to test guesses about a row's content.
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

    ``noted`` is a chain value (hex) that was noted outside the account and is to be found again, or empty. The other
    attributes are the state after the rows so far: ``head`` is the last row, ``noted_at`` the row with the noted chain
    value (0: not met), ``runs`` the cost of each run, ``charged`` the row that charged each question (by its key), and
    ``restores`` the rows about restored backups.
    """

    noted: str
    head: AuditHead = field(default_factory=AuditHead)
    noted_at: int = 0
    runs: dict[str, Cost] = field(default_factory=dict)
    charged: dict[str, int] = field(default_factory=dict)
    restores: list[int] = field(default_factory=list)

    def follow(self, content: object) -> str:
        """Verify the next audit row and add it; return the fault that breaks the chain, or an empty text.

        ``content`` is the row as stored (bytes); anything else is a fault. A faulty row is not added. The fault is a
        clause that follows "row n".
        """
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
            self.restores.append(row.row)
        self.head = AuditHead(row.row, hashlib.sha256(content).digest(), row.total, row.exact, row.change)
        if self.head.chain.hex() == self.noted:
            self.noted_at = row.row
        return ""

    def findings(self, broken: int = 0, wrong: str = "") -> AuditResult:
        """Return the result so far, with a fault if ``wrong`` describes one (a clause); ``broken`` is its audit row.

        A fault that concerns no single row has the row number 0.
        """
        return AuditResult(self.head.row, self.head.chain.hex(), broken, wrong, self.noted_at)


def verify_export(path: Path, noted: str = "") -> AuditResult:
    """Verify audit rows exported to a file, one JSON object per line, and return the result up to the first fault.

    ``noted`` is a chain value (hex) that was noted elsewhere, as in :meth:`~fedsynth.privacy.account.Account.verify`.
    Raises ``OSError`` for a file that cannot be read.
    """
    chain = ChainCheck(noted)
    with path.open("rb") as file:
        for line in file:
            wrong = chain.follow(line.removesuffix(b"\n"))
            if wrong:
                return chain.findings(chain.head.row + 1, wrong)
    return chain.findings()


def short(value: object) -> int | str:
    """Return a fact about a message (``value``) as an audit row stores it: a 64-bit integer as it is, else text.

    Text is cut after 200 characters. Control characters are escaped later, when the row is written as JSON.
    """
    if type(value) is int and abs(value) < 2**63:
        return value
    text = str(value)
    cut = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"
    return cut.encode(errors="backslashreplace").decode()
