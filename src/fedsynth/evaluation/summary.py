"""Summary of a run for its report: its description (method, budget, ...), its guarantee, and its privacy costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fedsynth.models.card import ModelCard
from fedsynth.privacy.cost import Budget, Cost, ProtectedChange, Unit, best_guess
from fedsynth.privacy.ledger import Entry, LedgerFile
from fedsynth.privacy.release import kind_of
from fedsynth.trusts import TRUSTS


@dataclass(frozen=True)
class MergedReleases:
    """Lines of the ledger merged into one for a report, by :meth:`RunSummary.charges` or :meth:`RunSummary.totals`.

    - ``steps``: the step numbers of the first and the last line; ``asked``: the number of lines.
    - ``what``: the query, as verb and kind ("sum counts"); ``release``: the kind of noise ("gaussian", "laplace", ...).
    - ``cost``: that of one line at each site queried, in the run's currency; None for a release without noise.
    - ``sites``: the number of sites queried; ``cells``: how many numbers the answers hold, summed over the lines.
    - ``note``: the deposit that paid ``cost`` in advance, so that the line itself is not charged; "" for other lines.
    - ``total``: in :meth:`RunSummary.charges`, the cost of the run up to these lines at the site most charged so far;
      in :meth:`RunSummary.totals`, the cost of these lines at the site that they charge most. Releases without noise,
      and those that a deposit paid for, do not count.
    """

    steps: tuple[int, int]
    asked: int
    what: str
    release: str
    cost: float | None
    sites: int
    cells: int
    note: str
    total: float


@dataclass(frozen=True)
class SiteGroup:
    """Sites with the same privacy cost, also as an ``epsilon`` at the limit's delta and as a ``share`` of the limit."""

    names: tuple[str, ...]
    cost: float
    epsilon: float
    share: float


@dataclass(frozen=True)
class RunSummary:
    """One run for a report: its job, its ledger of privacy costs, and the number of its synthetic rows.

    ``job`` is the content of run.toml, and ``made`` what the run recorded there (versions, digests, names of lost
    sites); ``folder`` and ``toml`` are for display. ``card`` is that of the run's model; ``None`` without a model. The
    ledger must hold the run's :class:`~fedsynth.statement.Statement`. The epsilon and
    delta here are the limit set before the run; by exact accounting, the statement may guarantee a smaller epsilon.
    """

    folder: str
    job: Mapping[str, Any]
    made: Mapping[str, Any]
    ledger: LedgerFile
    rows: int
    toml: str
    card: ModelCard | None = None

    @property
    def statement(self) -> Mapping[str, Any]:
        """The :class:`~fedsynth.statement.Statement` of the run's guarantee, as JSON values."""
        assert self.ledger.statement is not None
        return self.ledger.statement

    @property
    def private(self) -> bool:
        """Whether there is a guarantee: a single release without noise, or a run without a limit, leaves none."""
        return bool(self.statement["private"])

    @cached_property
    def limit(self) -> Budget:
        """The (epsilon, delta) limit of all releases together, set before the run; infinite if no limit was set."""
        return self.ledger.budget

    @property
    def guarantee(self) -> Budget | None:
        """The limit, or less by exact accounting; None without one, if a release had no noise, or with a seed."""
        if not self.private or self.statement["seeded"]:
            return None
        return Budget(self.statement["exact"] or self.limit.epsilon, self.limit.delta)

    @property
    def currency(self) -> str:
        """Symbol of the unit in which privacy costs add up: "ρ" (rho of zCDP), or "ε" for a pure limit (delta = 0)."""
        return "ε" if self.limit.pure else "ρ"

    @property
    def spent(self) -> float:
        """An upper bound on the privacy cost to any one person, as an epsilon at the limit's delta.

        Read it only if the run is :attr:`private`: the cost of a release without noise is infinite, and the value None.
        """
        return self.ledger.spent.epsilon_at_delta

    @property
    def site_names(self) -> list[str]:
        """The names of the sites that were queried, sorted."""
        return sorted({site for entry in self.ledger.entries for site in entry.sites})

    @property
    def trust_says(self) -> str:
        """Who has to be trusted, and against whom the guarantee holds, in sentences for a report."""
        against = f"The guarantee holds against {self.statement['adversary']}."
        facts = TRUSTS.get(self.statement["trust"])
        of_trust = "" if facts is None else facts.demands
        if self.statement["simulated"] and of_trust:
            of_trust = f"Of a deployment: {of_trust} This run was simulated in one process."
        return f"{of_trust} {against}".strip()

    @property
    def unknown(self) -> str:
        """What the guarantee hides, such as "whether any one row is in the data"."""
        return ProtectedChange(Unit(**self.statement["unit"]), self.statement["neighbours"]).unknown

    @property
    def odds(self) -> float:
        """The factor by which one protected row or person can change a probability, up to delta: e to the epsilon.

        An epsilon above 700 counts as 700.
        """
        return math.exp(min(self.limit.epsilon if self.guarantee is None else self.guarantee.epsilon, 700.0))

    @property
    def certainty(self) -> float:
        """How often the best attacker is right at even prior odds, 1/2 to 1; 1 if nothing is guaranteed.

        :func:`~fedsynth.privacy.cost.best_guess` has the formula and its proof.
        """
        return 1.0 if self.guarantee is None else best_guess(self.guarantee.epsilon, self.guarantee.delta)

    def sites(self) -> list[SiteGroup]:
        """Return the sites grouped by privacy cost, the most charged first, without uncharged ones."""
        groups: dict[float, list[str]] = {}
        for name, cost in self.ledger.per_site.items():
            groups.setdefault(float(f"{self._price(cost):.9g}"), []).append(name)
        found = []
        for price, names in sorted(groups.items(), reverse=True):
            cost = self.ledger.per_site[names[0]]
            found.append(SiteGroup(tuple(names), price, cost.at(self.limit.delta), self.limit.share_of(cost)))
        return found

    def charges(self) -> list[MergedReleases]:
        """Return the ledger in its order, with consecutive lines merged that differ in step and cells alone."""
        found: list[MergedReleases] = []
        for line in self._lines():
            if found and _kind(found[-1]) == _kind(line) and found[-1].sites == line.sites:
                found[-1] = _joined([found[-1], line], line.sites, line.total)
            else:
                found.append(line)
        return found

    def totals(self) -> list[MergedReleases]:
        """Return the ledger with all lines merged that agree in query, release, cost and note, in order of the first.

        ``sites`` is then the number of different sites. Totals of lines at different sites do not add up to the run's.
        """
        lines: dict[tuple[Any, ...], list[MergedReleases]] = {}
        costs: dict[tuple[Any, ...], dict[str, float]] = {}
        for line, entry in zip(self._lines(), self.ledger.entries, strict=True):
            lines.setdefault(_kind(line), []).append(line)
            spent = costs.setdefault(_kind(line), {})
            for site in entry.sites:
                spent[site] = spent.get(site, 0.0) + self._charged(entry)
        return [_joined(same, len(costs[kind]), max(costs[kind].values(), default=0.0)) for kind, same in lines.items()]

    def _lines(self) -> Iterator[MergedReleases]:
        spent: dict[str, float] = {}
        for entry in self.ledger.entries:
            for site in entry.sites:
                spent[site] = spent.get(site, 0.0) + self._charged(entry)
            yield MergedReleases(
                (entry.step, entry.step),
                1,
                f"{entry.verb} {entry.kind}",
                kind_of(entry.release),
                None if math.isinf(price := self._price(entry.cost)) else price,
                len(entry.sites),
                entry.cells,
                f"paid by the {entry.paid_by}" if entry.paid_by else "",
                max(spent.values(), default=0.0),
            )

    def _price(self, cost: Cost) -> float:
        """Return a cost in the run's currency; infinite for a release without noise."""
        return self.limit.price(cost)

    def _charged(self, entry: Entry) -> float:
        """Return the finite cost of a line: 0 if a deposit paid for it, and 0 for a release without noise."""
        price = self._price(entry.cost)
        return 0.0 if entry.paid_by or math.isinf(price) else price


def _kind(line: MergedReleases) -> tuple[Any, ...]:
    return (line.what, line.release, line.cost, line.note)


def _joined(lines: Sequence[MergedReleases], sites: int, total: float) -> MergedReleases:
    """Return lines of one kind, merged into one."""
    return replace(
        lines[0],
        steps=(lines[0].steps[0], lines[-1].steps[1]),
        asked=sum(line.asked for line in lines),
        cells=sum(line.cells for line in lines),
        sites=sites,
        total=total,
    )
