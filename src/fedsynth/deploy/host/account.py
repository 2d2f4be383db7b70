"""What a site's account shows its steward: what is spent, the open runs with their questions, refusals, and the audit.

These are facts; ``fedsynth account`` and ``fedsynth site check`` print them.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

from fedsynth.deploy.host.config import SiteConfig
from fedsynth.errors import Refused
from fedsynth.federation.agreement import Agreement
from fedsynth.privacy.book import Book
from fedsynth.privacy.book_file import AuditResult
from fedsynth.privacy.cost import Budget, Cost, Neighbours, ProtectedChange, Unit, to_json

_REFUSALS = 10  # of which the last are shown


class Spending(msgspec.Struct, frozen=True):
    """What a site's account has charged, for one person of the ``change`` that it states, and the ``limit`` on it.

    ``demanded`` is the change that the policy demands now, with the account's own; ``repriced`` is what is spent for
    that, or ``None``, where the account cannot say (``refusal`` says why). ``row`` is the number of the last audit row.
    """

    limit: Budget
    spent: Cost
    change: ProtectedChange
    demanded: ProtectedChange
    repriced: Cost | None
    refusal: str
    exact_releases: int
    open_runs: int
    row: int


class ChargedQuestion(msgspec.Struct, frozen=True):
    """A question that was charged, with its ``cost`` (JSON values), its audit row, and the bytes that are kept for it.

    ``key`` (hex) is that of :class:`~fedsynth.proof.extract.AccountCharge`.
    """

    key: str
    step: int
    verb: str
    kind: str
    cost: Mapping[str, Any]
    row: int
    bytes: int


class OpenRun(msgspec.Struct, frozen=True):
    """A run that is not closed: its cost to one person of a unit, its agreement (``agreement`` is the digest, hex)."""

    run: str
    idle_days: float
    spent: Cost
    unit: Unit
    neighbours: Neighbours
    method: str
    trust: str
    sites: int
    agreement: str
    questions: tuple[ChargedQuestion, ...]


class SiteAccount(msgspec.Struct, frozen=True):
    """A site's account; ``refusals`` are the last audit rows (JSON values) of messages that were not answered.

    A run that was idle for ``keep_runs_days`` is closed.
    """

    name: str
    spending: Spending
    keep_runs_days: float
    open_runs: tuple[OpenRun, ...]
    refusals: tuple[Mapping[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        """Return the account as JSON values, as ``fedsynth account --json`` prints it."""
        spending = self.spending
        return {
            "name": self.name,
            "spent": to_json(spending.spent),
            **to_json(spending.change),
            "repriced": to_json(spending.repriced),
            "limit": {"epsilon": spending.limit.epsilon, "delta": spending.limit.delta},
            "exact_releases": spending.exact_releases,
            "open_runs": [{**to_json(run), "idle_days": round(run.idle_days, 3)} for run in self.open_runs],
            "refusals": list(self.refusals),
        }


class AuditVerdict(msgspec.Struct, frozen=True):
    """Whether the audit of an account is intact, and how far; without a fault it has no ``problems``.

    The other fields are those of :class:`~fedsynth.privacy.book_file.AuditResult`.
    """

    intact: bool
    problems: tuple[str, ...]
    rows: int
    noted_at: int
    broken: int
    head: str


def site_spending(config: SiteConfig, account: Book) -> Spending:
    """Return what a site's ``account`` has charged, by the policy of its ``config``."""
    policy, repriced, refusal = config.policy, None, ""
    try:
        repriced = account.spent_under(policy.change)
    except Refused as error:
        refusal = str(error)
    change, row, runs = account.change, account.head()[0], len(account.open_runs())
    demanded = change.covering(policy.change)
    return Spending(policy.budget, account.spent(), change, demanded, repriced, refusal, account.exact, runs, row)


def site_account(config: SiteConfig, account: Book) -> SiteAccount:
    """Return what a site's ``account`` shows its steward."""
    charges, kept = account.charges(), account.kept()
    open_runs = []
    for run, idle in account.open_runs():
        change, agreed = account.change_of(run), Agreement.read(account.agreed(run))
        questions = tuple(
            msgspec.convert({**charge, "bytes": kept.get(charge["key"], 0)}, ChargedQuestion)
            for charge in charges
            if charge["run"] == run and "key" in charge
        )
        of = (agreed.method, agreed.trust, agreed.sites, agreed.digest)
        open_runs.append(OpenRun(run, idle, account.spent(run), change.unit, change.neighbours, *of, questions))
    refusals = deque((json.loads(row) for row in account.export() if '"reason":' in row), _REFUSALS)
    spending = site_spending(config, account)
    return SiteAccount(config.name, spending, config.policy.keep_runs_days, tuple(open_runs), tuple(refusals))


def audit_verdict(result: AuditResult, noted: str) -> AuditVerdict:
    """Return the verdict on the audit of a site or an export of it, of which ``noted`` (hex, or "") was a head."""
    problems = [result.fault] if result.fault else []
    if noted and not result.noted_at:
        problems.append(
            "the head given by --noted does not occur: rows were cut off the end, or the chain was rewritten"
        )
    return AuditVerdict(not problems, tuple(problems), result.rows, result.noted_at, result.broken, result.head)
