"""The proof sheet of a run, as data and as a table: all releases, recomputed, and contradictions in the run's files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedsynth.errors import number_of
from fedsynth.federation.question import QuestionHead
from fedsynth.privacy.cost import Budget, Cost, Norms, in_full, rounded_up, to_json
from fedsynth.privacy.ledger import Entry
from fedsynth.privacy.release import kind_of


@dataclass(frozen=True)
class ProvedRelease:
    """One line of a proof sheet: a release, recomputed from its question, with its sensitivity, noise and cost.

    ``entry`` is the correct entry of the ledger. Its sites and the sizes of its messages are as the ledger says;
    ``answered`` are those that answered, according to the transcript. ``noise`` is the distribution with its scale, as
    text. ``tables`` names the columns of each contingency table that the question asks for. ``norms`` are the
    sensitivity to one person of the vector that noise is added to, ``None`` for private selections and releases from a
    vault. That vector is the sum over sites if ``pooled``, and otherwise each site's own answer. Each site is charged
    for ``times`` releases, which the cost in ``entry`` includes.
    """

    entry: Entry
    noise: str
    answered: tuple[str, ...]
    tables: tuple[tuple[str, ...], ...] = ()
    norms: Norms | None = None
    pooled: bool = True
    times: int = 1

    def to_json(self) -> dict[str, Any]:
        """Return the line as JSON values; ``null`` where a number is infinite or undefined."""
        entry = self.entry
        content: dict[str, Any] = to_json(
            {
                "step": entry.step,
                "verb": entry.verb,
                "kind": entry.kind,
                "release": kind_of(entry.release),
                "question": entry.question,
                "exchanges": len(entry.turns),
                "bytes": _bytes(entry),
                "tables": self.tables,
                "cells": entry.cells,
                "sensitivity": None if self.norms is None else self.norms._asdict(),
                "pooled": self.pooled,
                "noise": self.noise,
                "std": entry.std,
                "cost": entry.cost,
                "times_charged": self.times,
                "sites": entry.sites,
                "answered": self.answered,
                "paid_by": entry.paid_by,
            }
        )
        return content


def _bytes(entry: Entry) -> int:
    return sum(down + up for _, down, up in entry.messages())


def name_of(release: Entry | QuestionHead) -> str:
    """Return the words by which a proof sheet's problems refer to a release, such as ``step 3 (sum counts)``."""
    return f"step {release.step} ({release.verb} {release.kind})"


@dataclass(frozen=True)
class ProofSheet:
    """Every release of a run, recomputed by :func:`~fedsynth.proof.prove.prove`, and all contradictions.

    Without ``problems`` the run is proved. ``protected`` says in words who is protected, and ``limit`` is the run's
    budget. ``per_site`` is the total cost of each site's releases to one person; releases without noise are not in it,
    and ``exact`` is their number. ``confirmed`` names the sites whose signed account extracts agree with the
    transcript, ``notes`` are the comparisons left to the reader, and ``problems`` the contradictions, as sentences.
    """

    run: str
    trust: str
    schema: str
    protected: str
    limit: Budget
    lines: tuple[ProvedRelease, ...]
    per_site: Mapping[str, Cost]
    exact: int
    confirmed: tuple[str, ...]
    notes: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def basis(self) -> str:
        """What the sheet is based on, in words: signed account extracts of sites, or the word of the server alone."""
        told = sorted(set(self.per_site) - set(self.confirmed))
        parts = []
        if self.confirmed:
            parts.append(f"confirmed by the signed accounts of {', '.join(self.confirmed)}")
        if told or not self.confirmed:
            parts.append("as told by the server" + (f" for {', '.join(told)}" if self.confirmed else ""))
        return "; ".join(parts)

    @property
    def verdict(self) -> str:
        """The result in one sentence, for the last line of the sheet."""
        if self.problems:
            return f"NOT PROVED, for the {len(self.problems)} reasons above" if len(self.problems) > 1 else "NOT PROVED"
        if self.exact or self.limit.exact:
            return f"The ledger is right, and the run is NOT PRIVATE; {self.basis}."
        return f"All releases and their costs are as the ledger says, and within the limit; {self.basis}."

    @property
    def text(self) -> str:
        """The sheet as a table to read, with all problems and the verdict."""
        width = max([len(name) for name in self.per_site], default=4)
        limit = (
            "none"
            if self.limit.exact
            else f"epsilon = {rounded_up(self.limit.epsilon)}, delta = {in_full(self.limit.delta)}"
        )
        columns: tuple[str, ...] = ("step", "question", "digest", "cells", "L1", "L2", "noise", "std", "cost")
        columns += ("asked", "answered", "exchanges", "bytes")
        rows = [_cells_of(line, self.limit) for line in self.lines]
        widths = [max(len(row[at]) for row in [columns, *rows]) for at in range(len(columns))]
        table = [
            "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)) for row in [columns, *rows]
        ]
        costs = [
            f"  {site:{width}}  {price(cost, self.limit):24}  "
            + ("-" if self.limit.exact else f"{self.limit.share_of(cost):.2%}")
            for site, cost in sorted(self.per_site.items())
        ]
        return "\n".join(
            [
                f"Proof sheet of run {self.run}: {number_of(len(self.lines), 'release')}, trust {self.trust}",
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
            "limit": to_json(self.limit),
            "releases": [line.to_json() for line in self.lines],
            "per_site": to_json(dict(sorted(self.per_site.items()))),
            "exact_releases": self.exact,
            "basis": self.basis,
            "confirmed": list(self.confirmed),
            "notes": list(self.notes),
            "problems": list(self.problems),
            "proved": not self.problems,
            "verdict": self.verdict,
        }


def _cells_of(line: ProvedRelease, limit: Budget) -> tuple[str, ...]:
    entry = line.entry
    tables = f" ({len(line.tables)} table{'s' if len(line.tables) > 1 else ''})" if line.tables else ""
    l1, l2 = ("-", "-") if line.norms is None else (f"{line.norms.l1:.4g}", f"{line.norms.l2:.4g}")
    cost = price(entry.cost, limit)
    times = f" ({line.times} sites)" if line.times > 1 else ""
    return (
        str(entry.step),
        f"{entry.verb} {entry.kind}{tables}",
        entry.question[:12],
        str(entry.cells),
        l1,
        l2,
        line.noise,
        "-" if math.isnan(entry.std) else f"{entry.std:.4g}",
        f"({cost}, {entry.paid_by})" if entry.paid_by else cost + times,
        str(len(entry.sites)),
        str(len(line.answered)),
        *(("", "") if entry.paid_by else (str(len(entry.turns)), f"{_bytes(entry):,}")),
    )


def price(cost: Cost, limit: Budget) -> str:
    """Return a cost to one person as text: rho of zCDP, with epsilon before it if the cost has a finite pure epsilon.

    For releases on sampled rows, rho holds at the order of ``limit``, the run's budget; the text names it.
    """
    if math.isinf(cost.epsilon):
        rho = limit.price(cost) if cost.curve else cost.rho
        order = f" at order {limit.order:.4g}" if cost.curve else ""
        return "no finite cost" if math.isinf(rho) else f"rho {rho:.4g}{order}"
    return f"epsilon {cost.epsilon:.4g}, rho {cost.rho:.4g}"
