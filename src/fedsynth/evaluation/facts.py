"""What a run directory says about a run, for the report: the job, the guarantee, and the account of its ledger."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedsynth.data.source import column_names, read_frame
from fedsynth.errors import FedsynthError
from fedsynth.privacy.cost import Budget, Cost

_TRUSTS = {
    "trusted": "The server had to be trusted: it saw every site's exact counts and added the noise once. "
    "The guarantee holds against everybody else.",
    "local": "Nobody had to be trusted: every site added the full noise to its own answers before they left. "
    "The guarantee holds against the server and all other sites together.",
    "secure": "Enough sites had to be trusted not to collude with the server: each added a share of the noise under "
    "masks that only the sum sheds, and nobody saw exact counts.",
    "three-servers": "The computing servers had to be trusted not to collude: together they added the noise, "
    "and none of them saw exact counts.",
}


@dataclass(frozen=True)
class Charge:
    """Some consecutive, identical lines of the server's ledger, and what the run had cost after them.

    ``price`` is the cost of one line at each of its sites (None without noise, which no finite number covers),
    ``total`` the cost so far of the most charged site, both in the currency of the run. ``note`` says what paid for a
    line that was free.
    """

    steps: tuple[int, int]
    asked: int
    what: str
    release: str
    price: float | None
    sites: int
    cells: int
    note: str
    total: float


@dataclass(frozen=True)
class SiteGroup:
    """Sites that were charged alike: what, its epsilon at the budget's delta, and its share of the budget."""

    names: tuple[str, ...]
    price: float
    epsilon: float
    share: float


@dataclass(frozen=True)
class RunFacts:
    """One run directory: ``job`` and ``made`` from run.toml, ``ledger`` from ledger.json, ``rows`` synthetic ones."""

    folder: str
    job: Mapping[str, Any]
    made: Mapping[str, Any]
    ledger: Mapping[str, Any]
    rows: int
    toml: str

    @classmethod
    def read(cls, run_dir: Path) -> RunFacts:
        """Return what ``fedsynth simulate`` wrote into a directory; raises :class:`FedsynthError` if it is none."""
        try:
            text = (run_dir / "run.toml").read_text(encoding="utf-8")
            job = tomllib.loads(text)
            ledger = json.loads((run_dir / "ledger.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise FedsynthError(f"{run_dir} is no complete run directory: {error}; run `fedsynth simulate`") from error
        made = job.pop("made", {})
        table = run_dir / f"synthetic.{job.get('format', 'csv')}"
        if not table.is_file():
            raise FedsynthError(f"{table} is missing; put it back, or run the job again")
        rows = len(read_frame(table, column_names(table)[:1]))
        return cls(run_dir.resolve().name, job, made, ledger, rows, text)

    @property
    def statement(self) -> Mapping[str, Any]:
        """What the run guarantees, as ledger.json holds it (:meth:`fedsynth.privacy.statement.Statement.to_json`)."""
        found: Mapping[str, Any] = self.ledger["statement"]
        return found

    @property
    def private(self) -> bool:
        """Whether anything is guaranteed."""
        return bool(self.statement["private"])

    @property
    def budget(self) -> Budget:
        """The limit that the run was held to."""
        limit = self.statement["limit"]
        return Budget.none() if limit["epsilon"] is None else Budget(limit["epsilon"], limit["delta"])

    @property
    def pure(self) -> bool:
        """Whether costs are told in epsilon of pure DP; in rho of zCDP otherwise."""
        return self.budget.pure

    @property
    def spent(self) -> float:
        """What the most charged site paid, in the currency of the run; 0 where no number covers it."""
        return _paid(self.ledger["spent"], pure=self.pure)

    @property
    def limit(self) -> float:
        """The budget in the currency of the run; infinite without one."""
        return self.budget.epsilon if self.pure else self.budget.rho

    @property
    def trust_says(self) -> str:
        """Who had to be trusted, in a sentence."""
        name = self.job.get("trust", "trusted")
        return _TRUSTS.get(name, f"The trust {name!r} is unknown to this version: look up who had to be trusted.")

    @property
    def odds(self) -> float:
        """By what factor one person can change the probability of an outcome: e to the epsilon of the limit."""
        return math.exp(min(self.budget.epsilon, 700.0))

    @property
    def best_guess(self) -> float:
        """Largest share of right answers of any attacker who guesses membership at even odds.

        From the trade-off of both errors under (epsilon, delta)-DP (Kairouz, Oh & Viswanath, arXiv
        1311.0776): (e^epsilon + delta) / (e^epsilon + 1).
        """
        return 1 - (1 - self.budget.delta) / (1 + self.odds)

    def sites(self) -> list[SiteGroup]:
        """Return the sites by what they were charged, most charged first."""
        groups: dict[tuple[float, float], list[str]] = {}
        for name, cost in self.ledger["per_site"].items():
            paid = _cost(cost)
            groups.setdefault((float(f"{paid.rho:.9g}"), float(f"{paid.epsilon:.9g}")), []).append(name)
        found = []
        for (rho, epsilon), names in sorted(groups.items(), reverse=True):
            cost = Cost(epsilon, rho)
            price, share = (epsilon if self.pure else rho), self.budget.share_of(cost)
            found.append(SiteGroup(tuple(names), price, cost.at(self.budget.delta), share))
        return found

    def charges(self) -> list[Charge]:
        """Return the ledger in its order, consecutive identical lines as one."""
        found: list[Charge] = []
        for line in self._lines():
            if found and _kind(found[-1]) == _kind(line) and found[-1].sites == line.sites:
                found[-1] = _joined([found[-1], line], line.sites, line.total)
            else:
                found.append(line)
        return found

    def totals(self) -> list[Charge]:
        """Return one line for every kind of question and release; ``total`` is what it cost the most charged site."""
        lines: dict[tuple[Any, ...], list[Charge]] = {}
        costs: dict[tuple[Any, ...], dict[str, float]] = {}
        for line, entry in zip(self._lines(), self.ledger["entries"], strict=True):
            lines.setdefault(_kind(line), []).append(line)
            spent = costs.setdefault(_kind(line), {})
            for site in entry["sites"]:
                spent[site] = spent.get(site, 0.0) + self._charged(entry)
        return [_joined(same, len(costs[kind]), max(costs[kind].values(), default=0.0)) for kind, same in lines.items()]

    def _lines(self) -> Iterator[Charge]:
        spent: dict[str, float] = {}
        for entry in self.ledger["entries"]:
            for site in entry["sites"]:
                spent[site] = spent.get(site, 0.0) + self._charged(entry)
            yield Charge(
                (entry["step"], entry["step"]),
                1,
                f"{entry['verb']} {entry['kind']}",
                entry["release"]["type"],
                entry["cost"]["epsilon" if self.pure else "rho"],
                len(entry["sites"]),
                entry["cells"],
                entry["paid_by"] and f"paid by the {entry['paid_by']}",
                max(spent.values(), default=0.0),
            )

    def _charged(self, entry: Mapping[str, Any]) -> float:
        """Return what a line charged: nothing for one paid before, nor for one that no number covers."""
        return 0.0 if entry["paid_by"] else _paid(entry["cost"], pure=self.pure)


def _paid(cost: Mapping[str, float | None], *, pure: bool) -> float:
    return cost["epsilon" if pure else "rho"] or 0.0


def _cost(cost: Mapping[str, float | None]) -> Cost:
    epsilon, rho = (math.inf if cost[name] is None else float(cost[name] or 0.0) for name in ("epsilon", "rho"))
    return Cost(epsilon, rho)


def _kind(line: Charge) -> tuple[Any, ...]:
    return (line.what, line.release, line.price, line.note)


def _joined(lines: Sequence[Charge], sites: int, total: float) -> Charge:
    """Return lines of one kind as one."""
    return replace(
        lines[0],
        steps=(lines[0].steps[0], lines[-1].steps[1]),
        asked=sum(line.asked for line in lines),
        cells=sum(line.cells for line in lines),
        sites=sites,
        total=total,
    )
