"""The proof sheet of a run as data and as a table to read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedsynth.federation.trust import Norms
from fedsynth.privacy.cost import Budget, Cost
from fedsynth.privacy.ledger import cost_to_json


@dataclass(frozen=True)
class Line:
    """One release, recomputed: what was asked, how far one person moves it, its noise and what it costs one person.

    ``norms`` are the L1 and L2 sensitivity of what the noise is added to, the sum over sites (``pooled``) or each
    site's own answer; ``None`` for draws. ``noise`` is the law with its scale, ``std`` the standard deviation in each
    of ``cells`` cells (NaN where there is none). ``tables`` are the columns of contingency tables. ``sites`` were
    asked, according to the ledger, and ``answered`` have answered, according to the transcript. ``paid_by`` is the
    deposit that paid for a release from a vault.
    """

    step: int
    attempt: int
    verb: str
    kind: str
    release: str
    question: str
    tables: tuple[tuple[str, ...], ...]
    cells: int
    norms: Norms | None
    pooled: bool
    noise: str
    std: float
    cost: Cost
    times: int
    sites: tuple[str, ...]
    answered: tuple[str, ...]
    paid_by: str = ""

    @property
    def name(self) -> str:
        """How problems refer to the release."""
        return f"step {self.step} ({self.verb} {self.kind}{f', attempt {self.attempt}' if self.attempt else ''})"

    def to_json(self) -> dict[str, Any]:
        """Return the line as JSON values; ``null`` where a number is infinite or undefined."""
        return {
            **{name: getattr(self, name) for name in ("step", "attempt", "verb", "kind", "release", "question")},
            "tables": [list(table) for table in self.tables],
            "cells": self.cells,
            "sensitivity": None if self.norms is None else {"l1": self.norms.l1, "l2": self.norms.l2},
            "pooled": self.pooled,
            "noise": self.noise,
            "std": None if math.isnan(self.std) else self.std,
            "cost": cost_to_json(self.cost),
            "times_charged": self.times,
            "sites": list(self.sites),
            "answered": list(self.answered),
            "paid_by": self.paid_by,
        }


@dataclass(frozen=True)
class ProofSheet:
    """Every release of a run, recomputed, and what does not agree with it: nothing, if the run is proved.

    ``per_site`` is what each site's releases cost one person together, those without noise apart (``exact``).
    ``confirmed`` names the sites whose signed extracts agree, ``notes`` what a reader has to compare by hand.
    """

    run: str
    trust: str
    schema: str
    protected: str
    limit: Budget
    lines: tuple[Line, ...]
    per_site: Mapping[str, Cost]
    exact: int
    confirmed: tuple[str, ...]
    notes: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def basis(self) -> str:
        """Whose word the sheet rests on."""
        told = sorted(set(self.per_site) - set(self.confirmed))
        parts = []
        if self.confirmed:
            parts.append(f"confirmed by the signed accounts of {', '.join(self.confirmed)}")
        if told or not self.confirmed:
            parts.append("as told by the server" + (f" for {', '.join(told)}" if self.confirmed else ""))
        return "; ".join(parts)

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        if self.problems:
            return f"NOT PROVED, for the {len(self.problems)} reasons above" if len(self.problems) > 1 else "NOT PROVED"
        if self.exact or self.limit.exact:
            return f"The ledger is right, and the run is NOT PRIVATE; {self.basis}."
        return f"All releases and their costs are as the ledger says, and within the limit; {self.basis}."

    @property
    def text(self) -> str:
        """The sheet as a table to read."""
        width = max([len(name) for name in self.per_site], default=4)
        limit = "none" if self.limit.exact else f"epsilon = {self.limit.epsilon:.4g}, delta = {self.limit.delta:.3g}"
        columns = ("step", "question", "cells", "L1", "L2", "noise", "std", "cost", "asked", "answered")
        rows = [_cells_of(line) for line in self.lines]
        widths = [max(len(row[at]) for row in [columns, *rows]) for at in range(len(columns))]
        table = [
            "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)) for row in [columns, *rows]
        ]
        costs = [
            f"  {site:{width}}  {price(cost):24}  {'-' if self.limit.exact else f'{self.limit.share_of(cost):.2%}'}"
            for site, cost in sorted(self.per_site.items())
        ]
        return "\n".join(
            [
                f"Proof sheet of run {self.run}: {len(self.lines)} releases, trust {self.trust}",
                f"Schema: {self.schema}",
                f"Protected: {self.protected}. Limit: {limit}.",
                "",
                *(row.rstrip() for row in table),
                "",
                "Cost of one person by site, and part of the limit:",
                *costs,
                *(f"note: {note}" for note in self.notes),
                *(f"PROBLEM: {problem}" for problem in self.problems),
                "",
                self.verdict,
            ]
        )

    def to_json(self) -> dict[str, Any]:
        """Return the sheet as JSON values; ``null`` where a number is infinite or undefined."""
        return {
            "run": self.run,
            "trust": self.trust,
            "schema": self.schema,
            "protected": self.protected,
            "limit": {"epsilon": None if self.limit.exact else self.limit.epsilon, "delta": self.limit.delta},
            "releases": [line.to_json() for line in self.lines],
            "per_site": {site: cost_to_json(cost) for site, cost in sorted(self.per_site.items())},
            "exact_releases": self.exact,
            "basis": self.basis,
            "confirmed": list(self.confirmed),
            "notes": list(self.notes),
            "problems": list(self.problems),
            "proved": not self.problems,
            "verdict": self.verdict,
        }


def _cells_of(line: Line) -> tuple[str, ...]:
    attempt = f".{line.attempt}" if line.attempt else ""
    tables = f" ({len(line.tables)} table{'s' if len(line.tables) > 1 else ''})" if line.tables else ""
    l1, l2 = ("-", "-") if line.norms is None else (f"{line.norms.l1:.4g}", f"{line.norms.l2:.4g}")
    times = f" ({line.times} sites)" if line.times > 1 else ""
    return (
        f"{line.step}{attempt}",
        f"{line.verb} {line.kind}{tables}",
        str(line.cells),
        l1,
        l2,
        line.noise,
        "-" if math.isnan(line.std) else f"{line.std:.4g}",
        f"({price(line.cost)}, {line.paid_by})" if line.paid_by else price(line.cost) + times,
        str(len(line.sites)),
        str(len(line.answered)),
    )


def price(cost: Cost) -> str:
    """Return a cost as text."""
    if math.isinf(cost.epsilon):
        return "no finite cost" if math.isinf(cost.rho) else f"rho {cost.rho:.4g}"
    return f"epsilon {cost.epsilon:.4g}, rho {cost.rho:.4g}"
