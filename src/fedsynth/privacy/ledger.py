"""The server's ledger of one run: the releases, the sites involved, and the cost to one person.

It serves planning and reporting. What a site allows is decided by its own privacy account
(:class:`~fedsynth.privacy.book.Book`), which no server can change.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from fedsynth.errors import BudgetExceeded
from fedsynth.files import load_json
from fedsynth.privacy.cost import Budget, Cost, Number, in_full, rounded_up, to_json
from fedsynth.privacy.release import Exact, Release, kind_of
from fedsynth.text import table

FORMAT = 1  # format number of ledger.json
_Name = Annotated[str, msgspec.Meta(max_length=200, pattern="^[ -~]*\\Z")]  # printable: files are shown in terminals
_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**60)]


class Turn(msgspec.Struct):
    """Sizes in bytes of a question's messages in one turn of the trust model's protocol, for each site of an entry.

    ``down`` are the messages to the sites (0: none was sent) and ``up`` their replies (0: no valid one came), as
    encoded, without the overhead of a network. Integers of answers have a fixed width, so sizes follow from the
    question, the sites' names and the numbers of digits of their audit rows, and say nothing of rows of data. A file
    has a single number where all sites have the same.
    """

    down: list[int]
    up: list[int]


class Entry(msgspec.Struct, frozen=True):
    """One release in a run's ledger: what was asked, of which sites, its cost to one person, and its messages.

    * ``step``: number of the question in its run.
    * ``verb``: what was asked for, such as "sum" or "choose"; ``kind``: the query's class, such as "counts".
    * ``cells``: number of integers in the answer.
    * ``cost``: charged to each of the sites; it already accounts for persons at several of them
      (:func:`~fedsynth.privacy.cost.times_charged`).
    * ``std``: standard deviation of the noise in each cell, in records or another unit of the query; NaN if undefined.
    * ``question``: SHA-256 (hex) of the question that is charged; for a release from a vault, of its first deposit.
    * ``paid_by``: for a release from a vault (:class:`~fedsynth.federation.vault.Vault`), the deposit that was charged
      for it, such as "deposit of step 2"; empty for all other releases.
    * ``turns``: sizes of the question's messages in each turn; none for a release from a vault. A turn takes one
      exchange, which the questions of a step share. A resumed run counts the replies that it takes from its transcript
      like others, and each message once, however often it was sent: more bytes may have been exchanged. The server
      alone knows these sizes; no proof rests on them.
    """

    step: int
    verb: str
    kind: str
    release: Release
    sites: tuple[str, ...]
    cells: int
    cost: Cost
    std: Number = math.nan
    question: str = ""
    paid_by: str = ""
    turns: list[Turn] = []

    def __post_init__(self) -> None:
        if self.std is None:
            msgspec.structs.force_setattr(self, "std", math.nan)
        for turn in self.turns:
            turn.down, turn.up = (
                sizes * len(self.sites) if len(sizes) == 1 else sizes for sizes in (turn.down, turn.up)
            )

    def messages(self) -> Iterator[tuple[str, int, int]]:
        """Yield the site of each message, and the sizes in bytes of the message and of the reply (0: no valid one)."""
        for turn in self.turns:
            # A changed file may have other numbers of sizes than of sites: a proof must get as far as to say so.
            yield from (sizes for sizes in zip(self.sites, turn.down, turn.up, strict=False) if sizes[1])

    @property
    def exact(self) -> bool:
        """Whether some part of the release has no noise, so that no finite cost covers it."""
        return isinstance(self.release, Exact) or math.isinf(self.cost.rho)


class Releases(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All releases of one kind in a run: one line of a ledger's summary.

    * ``query``: verb and kind of what was asked, such as "sum counts"; ``release``: the kind of noise, such as
      "gaussian"; ``paid_by``: the deposit that was charged for them, if they are from a vault.
    * ``times``: how many there were; ``sites``: how many sites were asked; ``cells``: numbers in all answers together.
    * ``least_std``, ``largest_std``: standard deviations of the noise in a cell; NaN if undefined.
    * ``share``: their part of the budget at the site that they charge most; NaN without noise or without a limit.
    """

    query: _Name
    release: _Name
    times: _Count
    sites: _Count
    cells: _Count
    least_std: Number = math.nan
    largest_std: Number = math.nan
    share: Number = math.nan
    paid_by: _Name = ""

    def __post_init__(self) -> None:
        for name in ("least_std", "largest_std", "share"):
            if getattr(self, name) is None:
                msgspec.structs.force_setattr(self, name, math.nan)

    @property
    def cells_of_table(self) -> tuple[str, ...]:
        """The line of :func:`releases_table`, one text for each column."""
        std = "-" if math.isnan(self.least_std) else f"{self.least_std:.4g}"
        if self.least_std < self.largest_std:
            std = f"{self.least_std:.3g}-{self.largest_std:.3g}"
        cost = f"paid by {self.paid_by}" if self.paid_by else "-" if math.isnan(self.share) else f"{self.share:.2%}"
        return (self.query, self.release, f"{self.times}", f"{self.sites}", f"{self.cells}", std, cost)


def releases_table(releases: Iterable[Releases]) -> str:
    """Return a ledger's summary as an aligned table of text, one line for each kind of release."""
    head = ("question", "release", "times", "sites", "cells", "noise std", "budget")
    return table([head, *(one.cells_of_table for one in releases)])


@dataclass
class Ledger:
    """The releases of one run, in order, and their cost at each site, limited by ``budget``; kept by the server.

    The cost to any person is at most that at the most charged site: costs add up at a site (sequential composition),
    and the cost of each entry accounts for one person's rows at several sites. Releases without noise are counted
    separately, because nothing can be added to an infinite cost: ``per_site`` contains only noisy releases.
    """

    budget: Budget
    entries: list[Entry] = field(default_factory=list)
    per_site: dict[str, Cost] = field(default_factory=dict)
    _charged: dict[str, Entry] = field(default_factory=dict, repr=False)  # by question

    def check(self, sites: Iterable[str], cost: Cost) -> None:
        """Raise :class:`BudgetExceeded` if one of the ``sites`` cannot pay ``cost`` from the rest of the budget.

        An infinite cost (a release without noise) is accepted: it voids the guarantee instead.
        """
        if math.isinf(cost.rho):
            return
        if self.budget.pure and math.isinf(cost.epsilon):
            raise BudgetExceeded(
                "Gaussian noise is impossible under a budget with delta = 0; use Laplace noise, or a positive delta"
            )
        for site in sites:
            spent = self.per_site.get(site, Cost())
            if not self.budget.covers(spent + cost):
                raise BudgetExceeded(
                    f"site {site} has spent {self.budget.share_of(spent):.4%} of the budget and the request costs "
                    f"{self.budget.share_of(cost):.4%} more; let the method ask less often or for smaller shares "
                    "(shares are parts of the whole budget, so a larger epsilon does not help)"
                )

    def record(self, entry: Entry) -> None:
        """Add a release and charge its cost to each of its sites, or none, if :meth:`check` raises."""
        self.check(entry.sites, entry.cost)
        self.entries.append(entry)
        self._charged[entry.question] = entry
        if not math.isinf(entry.cost.rho):
            for site in entry.sites:
                self.per_site[site] = self.per_site.get(site, Cost()) + entry.cost

    def note(self, entry: Entry) -> None:
        """Add a release from a vault without a charge: the deposit into the vault was already charged for it."""
        self.entries.append(entry)

    def count(self, question: str, turn: int, site: str, down: int, up: int) -> None:
        """Enter the sizes in bytes of one message of a recorded ``question`` (digest) to ``site``, and of its reply."""
        entry = self._charged[question]
        while len(entry.turns) <= turn:
            entry.turns.append(Turn([0] * len(entry.sites), [0] * len(entry.sites)))
        at = entry.sites.index(site)
        entry.turns[turn].down[at], entry.turns[turn].up[at] = down, up

    @property
    def exchanges(self) -> int:
        """Number of exchanges so far: how often the server sent messages to several sites and waited for replies."""
        turns = Counter[tuple[int, str]]()
        for entry in self.entries:
            turns[entry.step, entry.question] += len(entry.turns)
        steps: dict[int, int] = {}
        for (step, _), count in turns.items():
            steps[step] = max(count, steps.get(step, 0))
        return sum(steps.values())

    @property
    def spent(self) -> Cost:
        """An upper bound on the cost to one person of all releases so far; infinite if any release had no noise.

        It consists of the largest epsilon, the largest rho and the largest curve of all sites, and need not be the cost
        of any one site. If this combination exceeds the budget although every site stays within it, it is the budget's
        rho instead: at the budget's order (:attr:`Budget.order <fedsynth.privacy.cost.Budget.order>`) nobody paid more.
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
        """The spent cost, as an epsilon at the budget's delta."""
        return self.spent.at(self.budget.delta)

    @property
    def share_spent(self) -> float:
        """The spent cost, as a share of the budget (1: all of it); 0 if the budget has no limit."""
        return self.budget.share_of(self.spent)

    @property
    def exact_releases(self) -> int:
        """Number of releases without noise; any value but 0 voids the guarantee."""
        return sum(entry.exact for entry in self.entries)

    def to_json(self) -> dict[str, Any]:
        """Return the ledger as JSON values, which :class:`LedgerFile` reads."""
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
        for turn in (turn for entry in content["entries"] for turn in entry["turns"]):
            turn.update({way: sizes[:1] for way, sizes in turn.items() if len(set(sizes)) == 1})
        return content

    def __str__(self) -> str:
        lines = [releases_table(self.summary())]
        if self.exact_releases:
            lines.append(f"NOT PRIVATE: no noise in {self.exact_releases} of {len(self.entries)} releases")
        elif self.budget.exact:
            lines.append(f"spent: epsilon = {rounded_up(self.epsilon)}, without a limit")
        else:
            at = f" at delta = {in_full(self.budget.delta)}" if self.budget.delta else ""
            lines.append(
                f"spent: epsilon = {rounded_up(self.epsilon)} of {rounded_up(self.budget.epsilon)}{at}; "
                f"{self.share_spent:.1%} of the budget"
            )
        return "\n".join(lines)

    def summary(self) -> tuple[Releases, ...]:
        """Return the releases, those of one kind together, in order of the first of each."""
        groups: dict[tuple[str, str, str], list[Entry]] = {}
        for entry in self.entries:
            kind = (f"{entry.verb} {entry.kind}", kind_of(entry.release), entry.paid_by)
            groups.setdefault(kind, []).append(entry)
        return tuple(self._together(*kind, entries) for kind, entries in groups.items())

    def _together(self, query: str, release: str, paid_by: str, entries: Sequence[Entry]) -> Releases:
        shares: dict[str, float] = {}
        for entry in entries:
            share = self.budget.share_of(entry.cost)
            for site in entry.sites:
                shares[site] = shares.get(site, 0.0) + share
        stds = [entry.std for entry in entries if not math.isnan(entry.std)]
        counted = not (paid_by or entries[0].exact or self.budget.exact)
        return Releases(
            query,
            release,
            len(entries),
            len(shares),
            sum(entry.cells for entry in entries),
            min(stds, default=math.nan),
            max(stds, default=math.nan),
            max(shares.values(), default=0.0) if counted else math.nan,
            paid_by,
        )


class _Spent(Cost, frozen=True):
    epsilon_at_delta: Number = msgspec.field(default_factory=float)


class _Limit(msgspec.Struct, frozen=True):
    epsilon: float | None
    delta: float


class LedgerFile(msgspec.Struct, frozen=True):
    """The content of a run's ``ledger.json``, as :meth:`Ledger.to_json` writes it.

    ``spent`` is an upper bound on the cost to one person; its field ``epsilon_at_delta`` is that cost as an epsilon at
    the budget's delta. ``share_spent`` is ``None`` if it is infinite. ``statement`` is the run's privacy statement
    (:meth:`Statement.to_json <fedsynth.statement.Statement.to_json>`), if the file has one.
    """

    limit: _Limit = msgspec.field(name="budget")
    spent: _Spent
    share_spent: float | None
    exact_releases: int
    per_site: dict[str, Cost]
    entries: tuple[Entry, ...]
    statement: dict[str, Any] | None = None

    @classmethod
    def read(cls, path: Path) -> LedgerFile:
        """Read a ledger file; raises :class:`FedsynthError` for another file or format, and ``OSError`` without one."""
        mend = "read it with the fedsynth version that `made` in run.toml names, or run the job again"
        return load_json(path, cls, "a ledger", mend, FORMAT)

    @property
    def budget(self) -> Budget:
        """The budget of the run."""
        return Budget.none() if self.limit.epsilon is None else Budget(self.limit.epsilon, self.limit.delta)
