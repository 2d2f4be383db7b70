"""Who spent what: the server's plan and report of one run. Each site keeps an account of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedsynth.errors import BudgetExceeded
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
