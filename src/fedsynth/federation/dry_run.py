"""Dry runs on random rows, to predict what a run will take: exchanges, bytes, epsilon, noise, and the plan to approve.

The real method puts its real questions to real sites, whose rows are nobody's. Everything here follows from public
facts: schema, budget, trust, number of sites and a stated number of rows. A method that chooses by the data chooses by
random rows here, so it runs on several very different tables; what differs between them is given as a range.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter, Unsupported
from fedsynth.federation.federation import Federation, Progress, silent
from fedsynth.federation.plan import Plan, Slot, options_of, settings_of
from fedsynth.federation.query import AnyQuery
from fedsynth.federation.simulate import federate
from fedsynth.federation.site import Site
from fedsynth.federation.transport import InProcess, Message
from fedsynth.federation.trust import Trust
from fedsynth.federation.wire import Reply
from fedsynth.privacy.cost import ONE_ROW, Budget, Cost, Unit
from fedsynth.privacy.ledger import Entry
from fedsynth.rows import Table
from fedsynth.schema import Schema

SETTLED = 1.05  # a range this narrow is a number
MARGIN = 0.25  # of the spread that dry runs showed, added on either side of it
# Steps of fits, which ask nobody anything; on random rows a few are as good as all, and a hundred times faster.
_FITTING = ("iterations", "final_iterations", "sweeps")
_STEPS = 3
_COHORT_RATE = "fedsynth.cohort_rate"  # in the metadata of an option that is the rate of cohorts
_FACTORS = 3  # hidden numbers that likely rows follow, at most
_TWINS, _FOLDED = 10, 4  # one in so many likely columns follows another one, or depends on others in no single sense
_FALL = (0.5, 3.0)  # exponents of the frequencies of likely rows


class Fits(Protocol):
    """A method: anything that can be fitted to a federation."""

    def fit(self, federation: Federation) -> Any:
        """Spend what the federation's budget has left."""


# ---------------------------------------------------------------------------------------------------------------------
# Rows that are nobody's


def even_rows(schema: Schema, rows: int, rng: np.random.Generator) -> Table:
    """Return rows of independent, uniform columns: nothing depends on anything."""
    return _table(schema, [rng.integers(0, size, rows) for size in schema.sizes], rng)


def steep_rows(schema: Schema, rows: int, rng: np.random.Generator) -> Table:
    """Return rows whose every column follows one hidden number and has few frequent values, as real columns do."""
    from scipy.special import ndtr

    hidden = rng.normal(size=rows)
    columns = []
    for size in schema.sizes:
        level = ndtr(math.sqrt(0.7) * hidden + math.sqrt(0.3) * rng.normal(size=rows))
        weight = 1 / np.arange(1, size + 1) ** 2
        columns.append(np.minimum(np.searchsorted(np.cumsum(weight) / weight.sum(), level), size - 1))
    return _table(schema, columns, rng)


def chain_rows(schema: Schema, rows: int, rng: np.random.Generator) -> Table:
    """Return rows whose every column follows the one before it, each next pair less: some pairs depend, most hardly."""
    level = rng.random(rows)
    columns = []
    for column, size in enumerate(schema.sizes):
        level = np.where(rng.random(rows) < 1 / (1 + column), level, rng.random(rows))
        columns.append(np.minimum(level**2 * size, size - 1).astype(np.int64))
    return _table(schema, columns, rng)


def likely_rows(schema: Schema, rows: int, strength: tuple[float, float], rng: np.random.Generator) -> Table:
    """Return rows of a Gaussian copula with skewed columns, all drawn anew: a guess at what real rows may be like.

    Of each column's normal score, a share between the bounds ``strength`` is told by one to ``_FACTORS`` hidden
    numbers; 0 is independence. Where anything depends at all, one column in ``_TWINS`` follows another one nearly
    exactly, as a code follows a name, and one in ``_FOLDED`` is large where its score is far from 0 on either side. A
    column's frequencies fall from a peak, its first value or any other, by a power law.
    """
    laws, draws = rng.spawn(2)  # another number of rows changes nothing in what they are drawn from
    hidden = draws.normal(size=(int(laws.integers(1, _FACTORS + 1)), rows))
    scores: list[NDArray[np.float64]] = []
    columns = []
    for at, size in enumerate(schema.sizes):
        told, own = laws.uniform(*strength), draws.normal(size=rows)
        loading = laws.normal(size=len(hidden))
        base = loading @ hidden / np.linalg.norm(loading)
        twin, folded = told > 0 and at > 0 and laws.random() < 1 / _TWINS, laws.random() < 1 / _FOLDED
        if twin:
            base, told = scores[int(laws.integers(at))], 0.98
        score = math.sqrt(told) * base + math.sqrt(1 - told) * own
        scores.append(np.abs(score) if told and folded and not twin else score)
        peak = 0 if laws.random() < 0.5 else int(laws.integers(size))
        weight = (1.0 + np.abs(np.arange(size) - peak)) ** -laws.uniform(*_FALL)
        level = np.sort(scores[-1])[np.minimum((np.cumsum(weight) / weight.sum() * rows).astype(np.int64), rows - 1)]
        columns.append(np.searchsorted(level[:-1], scores[-1], side="right"))
    return _table(schema, columns, draws)


def tied_rows(schema: Schema, rows: int, rng: np.random.Generator) -> Table:
    """Return rows of uniform columns that all follow one number exactly: every pair depends as much as it can."""
    hidden = rng.random(rows)
    return _table(schema, [np.floor(hidden * size).astype(np.int64) for size in schema.sizes], rng)


def equal_rows(schema: Schema, rows: int, rng: np.random.Generator) -> Table:
    """Return copies of one row: exact tables are as sparse as they can be."""
    return _table(schema, [np.zeros(rows, dtype=np.int64) for _ in schema.sizes], rng)


# The first is the one that typical figures are taken from.
TABLES: dict[str, Callable[[Schema, int, np.random.Generator], Table]] = {
    "steep": steep_rows,
    "chain": chain_rows,
    "even": even_rows,
    "tied": tied_rows,
    "equal": equal_rows,
}


def _table(schema: Schema, codes: Sequence[NDArray[Any]], rng: np.random.Generator) -> Table:
    stored = Schema(schema.stored, schema.missing_values)
    return dataclasses.replace(stored.encode(stored.decode(list(codes), rng)), schema=schema)


# ---------------------------------------------------------------------------------------------------------------------
# One dry run


@dataclass(frozen=True)
class Sent:
    """One message to a site and its reply, in bytes as fedsynth packs them, before the transport's own wrapping."""

    site: str
    down: int
    up: int


@dataclass(frozen=True)
class Asked:
    """One question that a site was charged for: ``group`` is (verb, kind of query, kind of release).

    ``price`` is that of plans (:meth:`~fedsynth.privacy.cost.Budget.price`).
    """

    group: tuple[str, str, str]
    price: float


@dataclass
class Notes:
    """What one run was seen to take: every message, and what each site was charged for, by its own account."""

    sent: list[Sent] = field(default_factory=list)
    exchanges: int = 0
    asked: dict[str, list[Asked]] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    epsilon: float = 0.0
    repeated: dict[str, list[Asked]] = field(default_factory=dict)

    def repeat(self, times: int, federation: Federation, sites: Sequence[Site]) -> Iterator[int]:
        """Yield one step of a loop whose ``times`` steps ask the same, but for weights; note it ``times`` times.

        Prices and bytes do not depend on weights, so that the other steps need not be computed.
        """
        sent, exchanges, entries = len(self.sent), self.exchanges, len(federation.ledger.entries)
        charged = {site.name: len(site.account.charges()) for site in sites}
        yield 0
        others = times - 1
        for site in sites:
            asked = list(_charges(site, federation.budget))[charged[site.name] :]
            self.repeated[site.name] = self.repeated.get(site.name, []) + asked * others
        self.sent += self.sent[sent:] * others
        self.exchanges += (self.exchanges - exchanges) * others
        for entry in federation.ledger.entries[entries:] * others:
            federation.ledger.record(entry)

    def _charged(self, federation: Federation, sites: Sequence[Site]) -> dict[str, list[Asked]]:
        """Return what each site was asked for, by its own account and by steps that stand for others."""
        return {site.name: [*_charges(site, federation.budget), *self.repeated.get(site.name, ())] for site in sites}

    def close(self, federation: Federation, sites: Sequence[Site]) -> None:
        """Take down what accounts and ledger hold at the end of the run."""
        self.asked = self._charged(federation, sites)
        self.entries = federation.ledger.entries
        self.epsilon = federation.ledger.epsilon

    def per_site(self, weight: Callable[[Sent], int]) -> list[float]:
        """Return the sum of a weight over each site's messages."""
        totals = dict.fromkeys(self.asked, 0)
        for message in self.sent:
            totals[message.site] += weight(message)
        return [float(total) for total in totals.values()]

    def messages(self) -> list[float]:
        """Return the number of each site's messages."""
        return self.per_site(lambda message: 1)


class Weighing(InProcess):
    """Sites in this process whose messages are weighed as they would travel."""

    def __init__(self, sites: Sequence[Site], notes: Notes) -> None:
        """Weigh the messages of ``sites`` into ``notes``."""
        super().__init__(sites)
        self._notes = notes
        self.members = tuple(sites)

    def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
        """Yield each site's reply, noting what it and its message weigh."""
        asked = list(messages)
        self._notes.exchanges += bool(asked)
        for message, reply in zip(asked, super().exchange(asked), strict=True):
            self._notes.sent.append(Sent(message.site, len(message.data), len(reply.data)))
            yield reply


def dry_run(
    method: Fits,
    schema: Schema,
    budget: Budget,
    *,
    trust: Trust,
    table: Table,
    sites: int,
    seed: int,
    unit: Unit = ONE_ROW,
    public_sizes: bool = False,
    queries: Sequence[type[AnyQuery]] = (),
) -> Notes:
    """Run ``method`` over ``table``, dealt out to ``sites`` sites in equal parts, and return what it took."""
    dealt = np.random.default_rng(seed).permutation(len(table))
    parts = [table.take(part) for part in np.array_split(dealt, sites)]
    notes = Notes()

    def weighing(members: Sequence[Site]) -> Weighing:
        # Replies of all weights weigh the same, and no question depends on them: training could take hours.
        return Weighing([dataclasses.replace(site, trains=False) for site in members], notes)

    federation = federate(
        parts,
        schema,
        budget,
        trust=trust,
        unit=unit,
        seed=seed,
        public_sizes=public_sizes,
        queries=queries,
        transport=weighing,
    )
    assert isinstance(federation.transport, Weighing)
    members = federation.transport.members
    federation = dataclasses.replace(
        federation,
        # A planned run names its plan in every request; the plan is made after this, but all digests weigh the same.
        plan=hashlib.sha256(b"dry run").hexdigest(),
        loop=partial(notes.repeat, federation=federation, sites=members),
    )
    if public_sizes:
        federation.public_sizes()  # a deployed run has to ask for them
    method.fit(federation)
    notes.close(federation, members)
    return notes


def expected_exchanges(
    method: Fits,
    schema: Schema,
    budget: Budget,
    *,
    trust: Trust,
    sites: int,
    public_sizes: bool = False,
    queries: Sequence[type[AnyQuery]] = (),
    rows: int = 2000,
) -> int:
    """Return about how many exchanges a run will take, by one dry run on a few random rows, its fits cut short."""
    table = steep_rows(schema, rows, np.random.default_rng(0))
    short = _changed(method, _few_fitting_steps)
    return dry_run(
        short,
        schema,
        budget,
        trust=trust,
        table=table,
        sites=sites,
        seed=0,
        public_sizes=public_sizes,
        queries=queries,
    ).exchanges


def _charges(site: Site, budget: Budget) -> Iterator[Asked]:
    for charge in site.account.charges():
        release = charge["release"]["type"]
        price = budget.price(msgspec.convert(charge["cost"], Cost))
        yield Asked((charge["verb"], charge["kind"], release), price)


# ---------------------------------------------------------------------------------------------------------------------
# What dry runs predict


@dataclass(frozen=True)
class Range:
    """A figure: the least, the typical and the most that dry runs showed of it."""

    low: float
    typical: float
    high: float

    @property
    def settled(self) -> bool:
        """Whether the dry runs agree, so that the typical figure is the figure."""
        return self.high <= self.low * SETTLED


@dataclass(frozen=True)
class Noise:
    """How noisy a kind of released answer is: ``times`` released, ``cells`` in all.

    ``std`` ranges over the noise's standard deviation in a cell, in the units of the answer.
    """

    verb: str
    kind: str
    times: int
    cells: int
    std: Range


@dataclass(frozen=True)
class Forecast:
    """What a run will take. ``messages``, ``down`` and ``up`` (bytes) are one site's; ``epsilon`` is the worst site's.

    ``largest`` is the most bytes that one message to a site had.

    ``chosen`` says whether the method decides by the data what it asks, so that ``noise`` is an example of many.
    """

    plan: Plan
    rows: int
    dry_runs: int
    exchanges: Range
    messages: Range
    down: Range
    up: Range
    epsilon: Range
    noise: tuple[Noise, ...]
    chosen: bool
    largest: int

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        content = dataclasses.asdict(self)
        guarantee = dataclasses.asdict(self.plan.guarantee)
        return {**content, "plan": self.plan.to_json(), "plan_digest": self.plan.digest, "guarantee": guarantee}


def forecast(
    name: str,
    method: Fits,
    schema: Schema,
    budget: Budget,
    *,
    trust: Trust,
    sites: int,
    rows: int,
    unit: Unit = ONE_ROW,
    public_sizes: bool = False,
    queries: Sequence[type[AnyQuery]] = (),
    repeats: int = 3,
    headroom: float = 2.0,
    progress: Progress = silent,
) -> Forecast:
    """Return what a run of ``method`` (called ``name``) will take over ``sites`` equal sites of ``rows`` rows together.

    The method runs ``repeats`` times on every table, each time with other noise, other cohorts and other draws of what
    it asks. Where it draws cohorts, it runs once more on each with every site in every cohort: the most rounds that one
    site can be in. The plan has exactly the slots that all dry runs agree on, and ``headroom`` times the most seen of
    what depends on the data or on who is drawn. Fits are cut short, since what they move is what is chosen among random
    rows.

    Raises :class:`Unsupported` for a budget without limit: a run without noise has no price to approve.
    """
    if min(rows, sites, repeats) < 1 or not headroom >= 1:
        raise InvalidParameter("rows, sites, repeats and headroom must all be at least 1")
    if budget.exact:
        raise Unsupported("a run without noise cannot be planned: sites approve prices; give --epsilon a number")
    tables = {kind: make(schema, rows, np.random.default_rng(0)) for kind, make in TABLES.items()}
    run = partial(
        dry_run,
        schema=schema,
        budget=budget,
        trust=trust,
        sites=sites,
        unit=unit,
        public_sizes=public_sizes,
        queries=queries,
    )
    short = _changed(method, _few_fitting_steps)
    everybody = _changed(short, _of_everybody)

    # No seed twice: what a method draws by chance alone, such as random pairs, differs by the seed, not by the table.
    seeds = itertools.count()
    usual: list[Notes] = []
    for table, _ in itertools.product(tables.values(), range(repeats)):
        usual.append(run(short, table=table, seed=next(seeds)))
        progress(f"dry runs of {name}", len(usual), len(tables) * repeats)
    most = [] if everybody is short else [run(everybody, table=table, seed=next(seeds)) for table in tables.values()]

    figures = _Figures(usual, usual[:repeats], most)
    options = {key: value for key, value in options_of(method).items() if key != "is"}
    slots = tuple(_slots(usual, most, budget, headroom))
    return Forecast(
        plan=Plan(name, options, schema.digest, trust.name, settings_of(trust), sites, budget, unit, slots),
        rows=rows,
        dry_runs=len(usual) + len(most),
        exchanges=figures.count(lambda notes: [notes.exchanges]),
        messages=figures.count(Notes.messages),
        down=figures.bytes(lambda message: message.down),
        up=figures.bytes(lambda message: message.up),
        epsilon=figures.range(lambda notes: [notes.epsilon]),
        noise=tuple(_noise(usual[0].entries)),
        chosen=figures.chosen,
        largest=max(message.down for notes in (*usual, *most) for message in notes.sent),
    )


@dataclass(frozen=True, eq=False)
class _Figures:
    """What ``usual`` dry runs, of which the ``first`` are typical, and those with everybody (``most``) add up to.

    They show the extremes of what rows can do to sizes, and the most rounds that cohorts can ask of a site. Of what
    noise and rows together make a method choose, of what it draws by chance, and of who is drawn, they are a sample:
    hence a margin beyond what they show. No site can be in more rounds than all: beyond the runs with everybody, the
    margin is for what differs among these.
    """

    usual: Sequence[Notes]
    first: Sequence[Notes]
    most: Sequence[Notes]

    @property
    def chosen(self) -> bool:
        """Whether what is released differs from dry run to dry run."""
        return any(_statistics(notes) != _statistics(self.usual[0]) for notes in self.usual)

    def range(self, figure: Callable[[Notes], Sequence[float]]) -> Range:
        seen = [value for notes in [*self.usual, *self.most] for value in figure(notes)]
        bounding = [value for notes in self.most or self.usual for value in figure(notes)]
        margin = MARGIN if self.chosen or self.most else 0.0
        below, above = (margin * (max(values) - min(values)) for values in (seen, bounding))
        typical = float(np.mean([value for notes in self.first for value in figure(notes)]))
        return Range(max(0.0, min(seen) - below), typical, max(seen) + above)

    def count(self, figure: Callable[[Notes], Sequence[float]]) -> Range:
        of = self.range(figure)
        return Range(math.floor(of.low), of.typical, math.ceil(of.high))

    def bytes(self, weight: Callable[[Sent], int]) -> Range:
        of = self.range(lambda notes: notes.per_site(weight))
        messages = self.count(Notes.messages)
        if self.most or not self.chosen or messages.settled:
            return of
        # More messages than any dry run had weigh as much more as the largest, fewer as much less as the smallest.
        mean = [
            total / count
            for notes in self.usual
            for total, count in zip(notes.per_site(weight), notes.messages(), strict=True)
            if count
        ]
        return Range(min(of.low, messages.low * min(mean)), of.typical, max(of.high, messages.high * max(mean)))


def _few_fitting_steps(option: dataclasses.Field[Any], value: Any) -> Any:
    return min(value, _STEPS) if option.name in _FITTING else value


def _of_everybody(option: dataclasses.Field[Any], value: Any) -> Any:
    return 1.0 if option.metadata.get(_COHORT_RATE) else value


def _changed(value: Any, change: Callable[[dataclasses.Field[Any], Any], Any]) -> Any:
    """Return a method whose options, and those of its options that have some, are changed."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    changed = {}
    for one in dataclasses.fields(value):
        option = getattr(value, one.name)
        new = change(one, _changed(option, change))
        if one.init and new is not option and new != option:
            changed[one.name] = new
    return dataclasses.replace(value, **changed) if changed else value


def _statistics(notes: Notes) -> list[tuple[str, str, int]]:
    return sorted((entry.verb, entry.kind, entry.cells) for entry in notes.entries)


def _slots(usual: Sequence[Notes], most: Sequence[Notes], budget: Budget, headroom: float) -> Iterator[Slot]:
    """Yield the slots of each group of questions: those that no site was seen to differ in as they are.

    Where cohorts are drawn, only sites that are in all of them are asked for all that there is. Prices are then higher
    the fewer rounds the most charged site is in; how often a site is asked may still be one number at most.
    """
    whole = budget.epsilon if budget.pure else budget.rho
    seen = [_by_group(asked) for notes in [*usual, *most] for asked in notes.asked.values()]
    bounding = [_by_group(asked) for notes in most or usual for asked in notes.asked.values()]
    for group in sorted({group for site in seen for group in site}):
        agreed = bounding[0].get(group, Counter())
        if all(site.get(group, Counter()) == agreed for site in bounding) and all(
            site.get(group, Counter()) <= agreed for site in seen
        ):
            for price, count in sorted(agreed.items()):
                yield Slot(*group, price, count)
        else:
            dearest = max(max(site[group]) for site in seen if group in site)
            most_asked = max(site[group].total() for site in seen if group in site)
            settled = all(site.get(group, Counter()).total() == most_asked for site in bounding)
            count = most_asked if settled else math.ceil(headroom * most_asked)
            yield Slot(*group, min(whole, headroom * dearest), count)


def _by_group(asked: Sequence[Asked]) -> dict[tuple[str, str, str], Counter[float]]:
    """Return how often a site was asked for each price, by group; prices that differ by rounding alone are one.

    What rounding takes off a price is less than what an account overlooks (:data:`fedsynth.privacy.cost.ROUNDING`).
    """
    groups: dict[tuple[str, str, str], Counter[float]] = {}
    for question in asked:
        prices = groups.setdefault(question.group, Counter())
        prices[float(f"{question.price:.10g}")] += 1
    return groups


def _noise(entries: Sequence[Entry]) -> Iterator[Noise]:
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        if not math.isnan(entry.std):
            groups.setdefault((entry.verb, entry.kind), []).append(entry)
    for (verb, kind), some in sorted(groups.items()):
        deviations = [entry.std for entry in some]
        std = Range(min(deviations), float(np.median(deviations)), max(deviations))
        yield Noise(verb, kind, len(some), sum(entry.cells for entry in some), std)
