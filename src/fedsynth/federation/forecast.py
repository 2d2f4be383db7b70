"""What a run will take, from rehearsals: exchanges, bytes, epsilon, noise, and the plan that its sites can approve."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsynth.errors import InvalidParameter
from fedsynth.federation.federation import Progress, silent
from fedsynth.federation.plan import Ask, Plan, numbers_of, options_of
from fedsynth.federation.rehearsal import TABLES, Fits, Notes, Released, Sent, rehearse
from fedsynth.federation.trust import Trust
from fedsynth.privacy.release import Budget, release_to_json
from fedsynth.schema import Schema

SETTLED = 1.05  # a range this narrow is a number
MARGIN = 0.25  # of the spread that rehearsals showed, added on either side of it
# Steps of fits, which ask nobody anything; on random rows a few are as good as all, and a hundred times faster.
_FITTING = ("iterations", "final_iterations", "sweeps")
_STEPS = 3


@dataclass(frozen=True)
class Range:
    """A figure: the least, the typical and the most that rehearsals showed of it."""

    low: float
    typical: float
    high: float

    @property
    def settled(self) -> bool:
        """Whether the rehearsals agree, so that the typical figure is the figure."""
        return self.high <= self.low * SETTLED


@dataclass(frozen=True)
class Noise:
    """How noisy a kind of released statistic is: ``times`` released, ``cells`` in all.

    ``std`` ranges over the noise's standard deviation in a cell, ``l1`` (marginals only) over the expected L1
    distance between noisy and exact table as a share of the rows: of noise only.
    """

    task: str
    order: int
    times: int
    cells: int
    std: Range
    l1: Range | None


@dataclass(frozen=True)
class Forecast:
    """What a run will take. ``messages``, ``down`` and ``up`` (bytes) are one site's; ``epsilon`` is the worst site's.

    ``chosen`` says whether the method decides by the data what it asks, so that ``noise`` is an example of many.
    """

    plan: Plan
    rows: int
    rehearsals: int
    exchanges: Range
    messages: Range
    down: Range
    up: Range
    epsilon: Range
    noise: tuple[Noise, ...]
    chosen: bool

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        content = dataclasses.asdict(self)
        return {**content, "plan": self.plan.to_json(), "plan_digest": self.plan.digest}


def forecast(
    name: str,
    method: Fits,
    schema: Schema,
    budget: Budget,
    *,
    trust: Trust,
    sites: int,
    rows: int,
    public_sizes: bool = False,
    repeats: int = 3,
    headroom: float = 2.0,
    attempts: int = 1,
    progress: Progress = silent,
) -> Forecast:
    """Return what a run of ``method`` (called ``name``) will take over ``sites`` equal sites of ``rows`` rows together.

    Every table is rehearsed ``repeats`` times, with other noise and other cohorts. Where the method draws cohorts, it
    is rehearsed once more on each with every site in every cohort: the most that one site can be asked. The plan
    allows what all rehearsals agree on exactly, and ``headroom`` times the most seen of what depends on the data.
    Fits are cut short, since what they move is what is chosen among random rows. ``attempts`` is how often the
    federation may ask for a sum that fails; each is another question, for which the budget must have room.
    """
    if min(rows, sites, repeats, attempts) < 1 or not headroom >= 1:
        raise InvalidParameter("rows, sites, repeats, attempts and headroom must all be at least 1")
    short = _shortened(method)
    tables = {kind: make(schema, rows, np.random.default_rng(0)) for kind, make in TABLES.items()}

    def run(kind: str, seed: int, everybody: bool) -> Notes:
        return rehearse(
            short,
            schema,
            budget,
            trust=trust,
            table=tables[kind],
            sites=sites,
            seed=seed,
            public_sizes=public_sizes,
            everybody=everybody,
        )

    usual: list[Notes] = []
    for kind, seed in itertools.product(tables, range(repeats)):
        usual.append(run(kind, seed, False))
        progress(f"rehearsals of {name}", len(usual), len(tables) * repeats)
    most = [run(kind, repeats, True) for kind in tables] if any(notes.drew_cohorts for notes in usual) else []

    figures = _Figures(usual, usual[:repeats], most)
    options = {key: value for key, value in options_of(method).items() if key != "is"}
    asks = _asks(usual, most, budget, headroom, attempts)
    return Forecast(
        plan=Plan(name, options, schema.digest, trust.name, numbers_of(trust), sites, budget, asks),
        rows=rows,
        rehearsals=len(usual) + len(most),
        exchanges=figures.count(lambda notes: [notes.exchanges]),
        messages=figures.count(_messages),
        down=figures.bytes(lambda one: one.down),
        up=figures.bytes(lambda one: one.up),
        epsilon=figures.range(lambda notes: [notes.epsilon]),
        noise=_noise(usual[0].released),
        chosen=figures.chosen,
    )


@dataclass(frozen=True, eq=False)
class _Figures:
    """What ``usual`` rehearsals, of which the ``first`` are typical, and those with everybody (``most``) add up to.

    They show the extremes of what rows can do to sizes, and the most that cohorts can ask of a site. Of what noise and
    rows together make a method choose, and of who is drawn, they are a sample: hence a margin beyond what they show.
    """

    usual: Sequence[Notes]
    first: Sequence[Notes]
    most: Sequence[Notes]

    @property
    def chosen(self) -> bool:
        """Whether what is released differs from rehearsal to rehearsal."""
        return any(_statistics(notes) != _statistics(self.usual[0]) for notes in self.usual)

    def range(self, figure: Callable[[Notes], Sequence[float]]) -> Range:
        seen = [value for notes in [*self.usual, *self.most] for value in figure(notes)]
        spread = (max(seen) - min(seen)) * (MARGIN if self.chosen or self.most else 0.0)
        typical = float(np.mean([value for notes in self.first for value in figure(notes)]))
        return Range(max(0.0, min(seen) - spread), typical, max(seen) + (0.0 if self.most else spread))

    def count(self, figure: Callable[[Notes], Sequence[float]]) -> Range:
        of = self.range(figure)
        return Range(math.floor(of.low), of.typical, math.ceil(of.high))

    def bytes(self, weight: Callable[[Sent], int]) -> Range:
        of = self.range(lambda notes: _per_site(notes, weight))
        messages = self.count(_messages)
        if self.most or not self.chosen or messages.settled:
            return of
        # More messages than any rehearsal had weigh as much more as the largest, fewer as much less as the smallest.
        mean = [
            total / count
            for notes in self.usual
            for total, count in zip(_per_site(notes, weight), _messages(notes), strict=True)
            if count
        ]
        return Range(min(of.low, messages.low * min(mean)), of.typical, max(of.high, messages.high * max(mean)))


def _shortened(value: Any) -> Any:
    """Return a method, or a generator that it was given, whose fits take a few steps only."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value) if one.init}
    short = {
        name: min(one, _STEPS) if name in _FITTING else _shortened(one)
        for name, one in fields.items()
        if name in _FITTING or dataclasses.is_dataclass(one)
    }
    return dataclasses.replace(value, **short) if short else value


def _per_site(notes: Notes, weight: Callable[[Sent], int]) -> list[float]:
    totals = dict.fromkeys(notes.sites, 0)
    for one in notes.sent:
        totals[one.site] += weight(one)
    return [float(total) for total in totals.values()]


def _messages(notes: Notes) -> list[float]:
    return _per_site(notes, lambda one: 1)


def _statistics(notes: Notes) -> list[tuple[str, tuple[int, ...], int]]:
    return sorted((one.task, one.columns, one.cells) for one in notes.released)


def _asks(
    usual: Sequence[Notes], most: Sequence[Notes], budget: Budget, headroom: float, attempts: int
) -> tuple[Ask, ...]:
    """Return the limits of each kind of question: those that no site was seen to differ in as they are.

    Where cohorts are drawn, only sites that are in all of them are asked for all that there is.
    """
    bounding = [limits for notes in most or usual for limits in _asked(notes)]
    seen = [limits for notes in [*usual, *most] for limits in _asked(notes)]
    asks = []
    for kind in sorted({kind for limits in seen for kind in limits}):
        of_kind = [limits[kind] for limits in seen if kind in limits]
        times, each, total = (max(values) for values in zip(*of_kind, strict=True))
        agreed = all(
            kind in limits and np.allclose(limits[kind], (times, each, total), rtol=1e-9) for limits in bounding
        )
        if not agreed:
            times = math.ceil(headroom * times)
            each, total = (min(budget.rho, headroom * rho) for rho in (each, total))
        if kind[0] == "sum":
            times, total = times * attempts, min(budget.rho, total * attempts)
        asks.append(Ask(*kind, times, each, total))
    return tuple(asks)


def _asked(notes: Notes) -> Iterable[dict[tuple[str, str, str], tuple[int, float, float]]]:
    """Yield, for each site, how often it was asked each kind of question, the dearest one and the sum (rho)."""
    for site in notes.sites:
        prices: dict[tuple[str, str, str], list[float]] = {}
        for one in notes.sent:
            if one.site == site and one.turn == 0:
                prices.setdefault((one.verb, one.task, release_to_json(one.release)["kind"]), []).append(
                    one.release.rho
                )
        yield {kind: (len(paid), max(paid), math.fsum(paid)) for kind, paid in prices.items()}


def _noise(released: Sequence[Released]) -> tuple[Noise, ...]:
    groups: dict[tuple[str, int], list[Released]] = {}
    for one in released:
        groups.setdefault((one.task, len(one.columns)), []).append(one)
    return tuple(
        Noise(
            task,
            order,
            len(some),
            sum(one.cells for one in some),
            _range([one.std for one in some]),
            _range([one.l1 for one in some if one.l1 is not None]) if order else None,
        )
        for (task, order), some in sorted(groups.items())
    )


def _range(values: Sequence[float]) -> Range:
    return Range(min(values), float(np.median(values)), max(values))
