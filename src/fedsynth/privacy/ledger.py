"""The server's account of one run: what was released, by which sites, and what it cost one person.

It plans and reports. What a site allows is decided by that site's own account, which no server can change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from fedsynth.errors import BudgetExceeded
from fedsynth.files import load_json
from fedsynth.privacy.cost import Budget, Cost, Number, to_json
from fedsynth.privacy.release import Exact, Release, kind_of

FORMAT = 1  # of ledger.json


class Entry(msgspec.Struct, frozen=True):
    """One release: what was asked (``verb`` and ``kind`` of query), of which sites, and what it costs one person.

    ``cost`` already counts a person at several of the sites (:func:`~fedsynth.privacy.cost.times_charged`). ``std`` is
    the standard deviation of the noise in each of the ``cells`` cells, in the units of the answer; NaN where there is
    no such number. ``paid_by`` names the deposit that paid for a release from a vault; empty for all others.
    """

    step: int
    verb: str
    kind: str
    release: Release
    sites: tuple[str, ...]
    cells: int
    cost: Cost
    std: Number = math.nan
    paid_by: str = ""

    def __post_init__(self) -> None:
        """Take the ``null`` of a file for no number."""
        if self.std is None:
            msgspec.structs.force_setattr(self, "std", math.nan)

    @property
    def exact(self) -> bool:
        """Whether something in it has no noise, so that no finite cost covers it."""
        return isinstance(self.release, Exact) or math.isinf(self.cost.rho)


@dataclass
class Ledger:
    """The releases of one run and their cost at each site, held to ``budget``.

    No person pays more than the most charged site does: costs add up at a site (sequential composition), and rows of
    one person at several sites are in the cost of each entry. Releases without noise are counted apart, because nothing
    can be added to an infinite cost: ``per_site`` holds the noisy ones alone.
    """

    budget: Budget
    entries: list[Entry] = field(default_factory=list)
    per_site: dict[str, Cost] = field(default_factory=dict)

    def check(self, sites: Iterable[str], cost: Cost) -> None:
        """Raise :class:`BudgetExceeded` if one of the sites cannot pay ``cost`` from what is left of the budget.

        A cost without a finite part (a release without noise) passes: it voids the guarantee instead.
        """
        if math.isinf(cost.rho):
            return
        if self.budget.pure and math.isinf(cost.epsilon):
            raise BudgetExceeded(
                "Gaussian noise cannot be paid from a budget with delta = 0; use Laplace noise, or a positive delta"
            )
        for site in sites:
            spent = self.per_site.get(site, Cost())
            if not self.budget.covers(spent + cost):
                raise BudgetExceeded(
                    f"site {site} has spent {self.budget.share_of(spent):.4%} of the budget and the request costs "
                    f"{self.budget.share_of(cost):.4%} more; give the method fewer rounds or the run a larger epsilon"
                )

    def record(self, entry: Entry) -> None:
        """Charge the entry to each of its sites; raise :class:`BudgetExceeded`, charging none, if one cannot pay."""
        self.check(entry.sites, entry.cost)
        self.entries.append(entry)
        if not math.isinf(entry.cost.rho):
            for site in entry.sites:
                self.per_site[site] = self.per_site.get(site, Cost()) + entry.cost

    def note(self, entry: Entry) -> None:
        """Write down a release that an earlier deposit already paid for; nothing is charged."""
        self.entries.append(entry)

    @property
    def spent(self) -> Cost:
        """What one person paid at most; infinite if any release had no noise.

        The largest epsilon, the largest rho and the largest curve of any site: an upper bound that need not be one
        site's. Where rho and curve of two sites are together more than the budget, which each of them keeps, it is the
        budget's rho: at the budget's order nobody paid more.
        """
        if self.exact_releases:
            return Cost(math.inf, math.inf)
        costs = self.per_site.values()
        curves = [cost.curve for cost in costs if cost.curve]
        epsilon, rho = max((c.epsilon for c in costs), default=0.0), max((c.rho for c in costs), default=0.0)
        most = Cost(epsilon, rho, tuple(map(max, zip(*curves, strict=True))))
        if curves and not self.budget.covers(most) and all(map(self.budget.covers, costs)):
            return Cost(epsilon, self.budget.rho)
        return most

    @property
    def epsilon(self) -> float:
        """What was spent, as an epsilon at the budget's delta."""
        return self.spent.at(self.budget.delta)

    @property
    def share_spent(self) -> float:
        """What was spent, as a part of the budget (1 is all of it); 0 if the budget has no limit."""
        return self.budget.share_of(self.spent)

    @property
    def exact_releases(self) -> int:
        """Number of releases without noise; anything but 0 voids the guarantee."""
        return sum(entry.exact for entry in self.entries)

    def to_json(self) -> dict[str, Any]:
        """Return the whole account as JSON values, of which :class:`LedgerFile` is the reader."""
        content: dict[str, Any] = to_json(
            {
                "format": FORMAT,
                "budget": self.budget,
                "spent": _Spent(self.spent.epsilon, self.spent.rho, self.spent.curve, self.epsilon),
                "share_spent": self.share_spent,
                "exact_releases": self.exact_releases,
                "per_site": dict(sorted(self.per_site.items())),
                "entries": self.entries,
            }
        )
        return content

    def __str__(self) -> str:
        """Return a table of the releases, those of one kind in one line, and what they cost together."""
        lines = [
            f"{'question':28} {'release':12} {'times':>6} {'sites':>6} {'cells':>10} {'noise std':>10} {'budget':>8}"
        ]
        lines += [self._line(entries) for entries in _grouped(self.entries)]
        if self.exact_releases:
            lines.append(f"NOT PRIVATE: {self.exact_releases} of {len(self.entries)} releases have no noise")
        elif self.budget.exact:
            lines.append(f"spent: epsilon = {self.epsilon:.4g}, without a limit")
        else:
            at = f" at delta = {self.budget.delta:.3g}" if self.budget.delta else ""
            lines.append(
                f"spent: epsilon = {self.epsilon:.4g} of {self.budget.epsilon:.4g}{at}; "
                f"{self.share_spent:.1%} of the budget"
            )
        return "\n".join(lines)

    def _line(self, entries: Sequence[Entry]) -> str:
        first = entries[0]
        shares: dict[str, float] = {}
        for entry in entries:
            for site in entry.sites:
                shares[site] = shares.get(site, 0.0) + self.budget.share_of(entry.cost)
        deviations = sorted({entry.std for entry in entries if not math.isnan(entry.std)})
        std = "-" if not deviations else f"{deviations[0]:.4g}"
        if len(deviations) > 1:
            std = f"{deviations[0]:.3g}-{deviations[-1]:.3g}"
        if first.paid_by:
            cost = f"paid by {first.paid_by}"
        elif first.exact or self.budget.exact:
            cost = "-"
        else:
            cost = f"{max(shares.values(), default=0.0):.2%}"
        return (
            f"{first.verb + ' ' + first.kind:28} {kind_of(first.release):12} {len(entries):6d} {len(shares):6d} "
            f"{sum(entry.cells for entry in entries):10d} {std:>10} {cost:>8}"
        )


class _Spent(Cost, frozen=True):
    """What one person paid at most, also as an epsilon at the budget's delta."""

    epsilon_at_delta: Number = msgspec.field(default_factory=float)


class _Limit(msgspec.Struct, frozen=True):
    epsilon: float | None
    delta: float


class LedgerFile(msgspec.Struct, frozen=True):
    """A run's ``ledger.json``: what :meth:`Ledger.to_json` wrote, and the statement of the guarantee beside it."""

    limit: _Limit = msgspec.field(name="budget")
    spent: _Spent
    share_spent: float | None
    exact_releases: int
    per_site: dict[str, Cost]
    entries: tuple[Entry, ...]
    statement: dict[str, Any] | None = None

    @classmethod
    def read(cls, path: Path) -> LedgerFile:
        """Return the ledger of a file; raises :class:`FedsynthError` for a file that holds none."""
        mend = "read it with the fedsynth that `made` in run.toml names, or run the job again"
        return load_json(path, cls, "a ledger", mend, FORMAT)

    @property
    def budget(self) -> Budget:
        """What the run was held to."""
        return Budget.none() if self.limit.epsilon is None else Budget(self.limit.epsilon, self.limit.delta)


def _grouped(entries: Sequence[Entry]) -> Iterable[list[Entry]]:
    groups: dict[tuple[str, str, str, str], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.verb, entry.kind, kind_of(entry.release), entry.paid_by), []).append(entry)
    return groups.values()
