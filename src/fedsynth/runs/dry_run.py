"""Dry runs on random rows, to forecast a run's exchanges, bytes, epsilon and noise, and to make its plan.

A plan lists the questions that a run may ask and their highest privacy costs, for sites to approve. In a dry run the
real method sends its real queries to real sites that hold random rows. The forecast depends on public facts alone:
schema, budget, trust model, number of sites and an assumed number of rows. An adaptive method adapts to random rows
here, so it runs on several very different tables; figures that differ between them are given as a range.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.encoding import decode, encode
from fedsynth.errors import DataWarning, InvalidParameter, Unsupported
from fedsynth.federation.agreement import Agreement, PlannedQuestion
from fedsynth.federation.federation import Federation
from fedsynth.federation.noise_record import NoiseRecord, say_nothing
from fedsynth.federation.policy_file import trust_named
from fedsynth.federation.query import TABLE_KINDS, AnyQuery, Extent
from fedsynth.federation.simulate import federate
from fedsynth.federation.site import STORED_BESIDE, STORED_OF_MEMBER
from fedsynth.federation.transport import InProcess
from fedsynth.federation.trust import Traffic
from fedsynth.federation.weighted import WeightedCounts
from fedsynth.methods import find_method
from fedsynth.privacy.cost import Budget
from fedsynth.privacy.ledger import Entry, Ledger
from fedsynth.privacy.release import SMALLEST_MULTIPLIER, SampledGaussian, kind_of
from fedsynth.progress import Progress, ignore_progress
from fedsynth.rows import Table
from fedsynth.runs.job import Job
from fedsynth.runs.resolution import Resolution, resolution
from fedsynth.schema import Schema
from fedsynth.terms import Terms

SETTLED = 1.05  # a range with a ratio up to this counts as one number
MARGIN = 0.25  # part of the spread over dry runs that is added at either end of a range
# Options for the steps of fits. Fits send no queries; on random rows a few steps suffice, and are 100 times faster.
_FITTING = ("iterations", "final_iterations", "sweeps")
_STEPS = 3
_COHORT_RATE = "fedsynth.cohort_rate"  # metadata key of an option that is the sampling rate of sites
_FACTORS = 3  # hidden factors of likely rows, at most
_TWINS, _FOLDED = 10, 4  # one in so many likely columns copies another, or depends on others non-monotonically
_FALL = (0.5, 3.0)  # exponents of the frequencies of likely rows


class FittableMethod(Protocol):
    """A method: anything that can be fitted to a federation."""

    def fit(self, federation: Federation) -> Any:
        """Fit the method to the federation's tables, spending its budget, and return a synthesizer."""


# ---------------------------------------------------------------------------------------------------------------------
# Random rows


def even_rows(schema: Schema, rows: int, rng: np.random.Generator) -> Table:
    """Return a table of ``rows`` random rows, for dry runs: independent columns, all values or bins equally likely."""
    return _table(schema, [rng.integers(0, size, rows) for size in schema.sizes], rng)


def steep_rows(schema: Schema, rows: int, rng: np.random.Generator) -> Table:
    """Return a table of ``rows`` random rows in which one hidden factor drives all columns, as in many real tables.

    In each column the first value or bin is the most frequent; frequencies fall as 1 / k^2 for the k-th one.
    """
    from scipy.special import ndtr

    hidden = rng.normal(size=rows)
    columns = []
    for size in schema.sizes:
        level = ndtr(math.sqrt(0.7) * hidden + math.sqrt(0.3) * rng.normal(size=rows))
        weight = 1 / np.arange(1, size + 1) ** 2
        columns.append(np.minimum(np.searchsorted(np.cumsum(weight) / weight.sum(), level), size - 1))
    return _table(schema, columns, rng)


def chain_rows(schema: Schema, rows: int, rng: np.random.Generator) -> Table:
    """Return a table of ``rows`` random rows in which each column depends on the one before it, ever more weakly.

    In each row, every column has a level between 0 and 1. Column k (from 0) copies the level of column k - 1 with
    probability 1 / (k + 1), and otherwise draws a uniform one of its own. The first pairs thus depend on each other
    strongly, the last ones hardly. The square of the level gives the place among the column's values or bins: low ones
    are the most frequent.
    """
    level = rng.random(rows)
    columns = []
    for column, size in enumerate(schema.sizes):
        level = np.where(rng.random(rows) < 1 / (1 + column), level, rng.random(rows))
        columns.append(np.minimum(level**2 * size, size - 1).astype(np.int64))
    return _table(schema, columns, rng)


def likely_rows(schema: Schema, rows: int, strength: tuple[float, float], rng: np.random.Generator) -> Table:
    """Return a table of ``rows`` rows of a random Gaussian copula with skewed columns, as stand-ins for real rows.

    In each row, every column has a normally distributed score; higher scores give later values. One to three hidden
    factors, the same for all columns, explain a part of the score's variance. For each column, this part is drawn
    uniformly between the two bounds ``strength`` (from 0 to 1; 0 is independence). Unless the part is 0, a column
    copies the score of an earlier column almost exactly with probability 1/10, as a code follows a name, and otherwise
    takes the absolute value of its score with probability 1/4, so that its dependence on others is not monotone. The
    frequencies of a column's values fall by a power law from a peak, at the first or at any other value. The
    distribution depends on all arguments but ``rows``.
    """
    laws, draws = rng.spawn(2)  # the distribution does not depend on the number of rows
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
    """Return a table of ``rows`` rows, in each of which one uniform random number determines all values or bins."""
    hidden = rng.random(rows)
    return _table(schema, [np.floor(hidden * size).astype(np.int64) for size in schema.sizes], rng)


def equal_rows(schema: Schema, rows: int, rng: np.random.Generator) -> Table:
    """Return a table whose ``rows`` rows have the first value or bin of each column: one cell has all rows."""
    return _table(schema, [np.zeros(rows, dtype=np.int64) for _ in schema.sizes], rng)


# Typical figures come from the first.
TABLES: dict[str, Callable[[Schema, int, np.random.Generator], Table]] = {
    "steep": steep_rows,
    "chain": chain_rows,
    "even": even_rows,
    "tied": tied_rows,
    "equal": equal_rows,
}


def _table(schema: Schema, codes: Sequence[NDArray[Any]], rng: np.random.Generator) -> Table:
    stored = Schema(schema.stored, schema.missing_values)
    return dataclasses.replace(encode(stored, decode(stored, list(codes), rng)), schema=schema)


# ---------------------------------------------------------------------------------------------------------------------
# One dry run

Group = tuple[str, str, str]
"""Questions of one verb (how sites are asked, such as ``sum``), kind of query (``counts``) and kind of release."""


def dealt(table: Table, sites: int, seed: int) -> list[Table]:
    """Return the rows of ``table`` dealt to ``sites`` sites, at random and evenly."""
    order = np.random.default_rng(seed).permutation(len(table))
    return [table.take(part) for part in np.array_split(order, sites)]


def dry_run(
    method: FittableMethod,
    terms: Terms,
    parts: Sequence[Table],
    *,
    seed: int,
    queries: Sequence[type[AnyQuery]] = (),
    trains: bool = False,
) -> tuple[Federation, Any]:
    """Fit ``method`` to simulated sites with the random rows ``parts``; return the federation and the synthesizer.

    ``queries`` are other packages' kinds of questions, as in :func:`~fedsynth.federation.simulate.federate`. ``seed``
    fixes the noise and the method's own random choices.

    Unless the run ``trains``, which can take hours, its synthesizer is useless, but its questions, costs and sizes are
    those of a deployed run: they do not depend on a network's weights. Sites answer training questions with zeros, and
    of training steps that differ in weights alone, the first is computed and all are entered in the ledger
    (:meth:`Federation.repeat <fedsynth.federation.federation.Federation.repeat>`).
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # made-up rows may be fewer than sites
        federation = federate(
            _of_strangers(parts),
            terms.schema,
            terms.budget,
            trust=trust_named(terms.trust, terms.trust_options),
            unit=terms.unit,
            seed=seed,
            public_sizes=terms.public_sizes,
            queries=queries,
            weak_delta=True,  # a forecast guarantees nothing
            transport=lambda sites: InProcess([dataclasses.replace(site, trains=trains) for site in sites]),
        )
    federation = dataclasses.replace(federation, noise=NoiseRecord(tell=say_nothing))  # callers say what it drowns
    if not trains:
        federation = dataclasses.replace(federation, loop=partial(_one_step, federation.ledger))
        if terms.public_sizes:
            federation.public_sizes()  # a deployed run asks for them
    return federation, method.fit(federation)


def _of_strangers(parts: Sequence[Table]) -> list[Table]:
    """Return the tables with a person of its own for each row, of whom no unit needs to drop any."""
    ends = np.cumsum([len(part) for part in parts])
    return [
        dataclasses.replace(part, persons=np.arange(end - len(part), end, dtype=np.uint64))
        for part, end in zip(parts, ends, strict=True)
    ]


def _one_step(ledger: Ledger, times: int) -> Iterator[int]:
    """Yield 0, the only computed one of ``times`` training steps, and enter its releases for all of them."""
    before = len(ledger.entries)
    yield 0
    for entry in ledger.entries[before:] * (times - 1):
        ledger.record(entry)


@dataclass(frozen=True)
class DryRun:
    """What a forecast reads of one dry run, whose rows are not kept.

    ``servers`` is the traffic of compute servers (:class:`~fedsynth.federation.trust.Traffic`), zero without them, and
    ``agreement`` the size of the run's agreement in bytes.
    """

    sites: tuple[str, ...]
    ledger: Ledger
    servers: Traffic
    resolution: Resolution
    agreement: int

    @classmethod
    def of(cls, federation: Federation, rows: int) -> DryRun:
        """Return what a finished ``federation`` recorded, with the resolution of a run over ``rows`` rows."""
        told, size = resolution(federation, rows), len(federation.agreement.data)
        return cls(federation.sites, federation.ledger, federation.trust.traffic, told, size)

    def per_site(self, weight: Callable[[int, int], int]) -> list[float]:
        """Return the sum of ``weight(down, up)``, of a message's bytes and its reply's, over each site's messages."""
        totals = dict.fromkeys(self.sites, 0)
        for entry in self.ledger.entries:
            for site, down, up in entry.messages():
                totals[site] += weight(down, up)
        return [float(total) for total in totals.values()]

    def messages(self) -> list[float]:
        """Return the number of messages to each site."""
        return self.per_site(lambda down, up: 1)

    def sent(self) -> list[int]:
        """Return the size of each message in bytes."""
        return [down for entry in self.ledger.entries for _, down, _ in entry.messages()]

    def begun(self) -> list[float]:
        """Return the number of messages to each site that the run's agreement goes beside: those of its first step."""
        first: dict[str, tuple[int, set[str]]] = {}
        for entry in self.ledger.entries:
            for site in () if entry.paid_by else entry.sites:
                step, asked = first.setdefault(site, (entry.step, set()))
                if entry.step == step:
                    asked.add(entry.question)
        return [float(len(first[site][1])) if site in first else 0.0 for site in self.sites]

    def charged(self) -> list[dict[Group, Counter[float]]]:
        """Return how often each site was charged each price, by group; prices that differ by rounding are one."""
        found: dict[str, dict[Group, Counter[float]]] = {site: {} for site in self.sites}
        for entry in self.ledger.entries:
            group = entry.verb, entry.kind, kind_of(entry.release)
            price = float(f"{self.ledger.budget.price(entry.cost):.10g}")
            for site in () if entry.paid_by else entry.sites:
                found[site].setdefault(group, Counter())[price] += 1
        return list(found.values())


# ---------------------------------------------------------------------------------------------------------------------
# Forecasts


@dataclass(frozen=True)
class ForecastRange:
    """The lowest, typical and highest value of a figure over the dry runs of a forecast.

    In a :class:`Forecast`, but for its noise, ``typical`` is the mean over the dry runs on :func:`steep_rows`. ``low``
    and ``high`` include a margin if the dry runs cannot show all cases: if the method's questions differ from one dry
    run to another, or if it samples sites.
    """

    low: float
    typical: float
    high: float

    def plus(self, other: ForecastRange, times: float) -> ForecastRange:
        """Return the range of this figure and ``times`` the ``other`` one together."""
        return ForecastRange(
            self.low + times * other.low, self.typical + times * other.typical, self.high + times * other.high
        )

    @property
    def settled(self) -> bool:
        """Whether the dry runs agree (``high`` at most 5 % above ``low``), so that ``typical`` alone may be shown."""
        return self.high <= self.low * SETTLED


@dataclass(frozen=True)
class NoiseForecast:
    """Noise of all answers to one ``kind`` of query by one ``verb`` in a forecast.

    The run releases ``times`` such answers, with ``cells`` cells in total. ``std`` is the noise's standard deviation in
    a cell, in the unit of the ledger (:attr:`Entry.std <fedsynth.privacy.ledger.Entry.std>`): its lowest, median and
    highest value over these answers of one dry run.
    """

    verb: str
    kind: str
    times: int
    cells: int
    std: ForecastRange


@dataclass(frozen=True)
class Forecast:
    """Forecast of a run, from dry runs of its method on random rows.

    ``plan`` is for the sites to approve; ``rows`` is the number of rows at all sites together and ``dry_runs`` the
    number of runs behind the figures. ``exchanges`` counts how often the server sends messages to several sites and
    waits for the replies. For each site, ``messages`` is the number of messages to it, and ``down`` and ``up`` are the
    bytes sent to it and by it. ``epsilon`` bounds the cost to one person, at the budget's delta. ``largest`` is the
    size of the largest message to a site, in bytes. ``stored`` is the most bytes that a site stores until the run is
    closed, for rows that are counted or streamed; a site with a copy of its rows does not store answers of more than 64
    KiB that are not trained. ``servers`` is the number of bytes that three compute servers send in total, and
    ``servers_seconds`` the CPU seconds that each of them needs for private selections, estimated from their numbers of
    candidates; both are 0 under other trust models.

    ``chosen`` says whether the dry runs released different statistics, since the method's queries depend on the data or
    on its own random draws; ``noise``, that of the first dry run, is then only an example. ``resolution`` says, also of
    the first dry run, which groups and relations stand out from the noise if the sites have ``rows`` rows.
    """

    plan: Agreement
    rows: int
    dry_runs: int
    exchanges: ForecastRange
    messages: ForecastRange
    down: ForecastRange
    up: ForecastRange
    epsilon: ForecastRange
    noise: tuple[NoiseForecast, ...]
    resolution: Resolution
    chosen: bool
    largest: int
    stored: ForecastRange
    servers: ForecastRange
    servers_seconds: ForecastRange

    def to_json(self) -> dict[str, Any]:
        """Return the forecast as JSON values, with the plan's digest and the (epsilon, delta) that it guarantees."""
        content = dataclasses.asdict(self)
        guarantee = dataclasses.asdict(self.plan.guarantee)
        return {
            **content,
            "plan": msgspec.to_builtins(self.plan),
            "plan_digest": self.plan.digest,
            "guarantee": guarantee,
        }


def forecast(
    name: str,
    method: FittableMethod,
    terms: Terms,
    *,
    sites: int,
    rows: int,
    queries: Sequence[type[AnyQuery]] = (),
    repeats: int = 3,
    headroom: float = 2.0,
    limits: Extent,
    apportions: bool = False,
    declared: Mapping[str, Any] | None = None,
    asked: Extent | None = None,
    progress: Progress = ignore_progress,
) -> Forecast:
    """Forecast a run of ``method`` (called ``name``) over ``sites`` sites of equal size with ``rows`` rows in total.

    ``terms`` and ``queries`` are those of :func:`dry_run`. The method runs ``repeats`` times on a random table of each
    kind in ``TABLES`` (:func:`even_rows`, :func:`steep_rows` and others), each time with other noise, cohorts and
    random queries; ``progress`` is called after each of these runs. If the method samples sites, it runs once more on
    each table with every site in every cohort, so that each takes part in as many rounds as one site can. Fits are
    shortened, since they only affect which queries are chosen, and the rows are random anyway.

    The forecast's plan consists of slots (:class:`~fedsynth.federation.agreement.PlannedQuestion`). Slots on which all
    dry runs agree are in the plan as they are. Others, which depend on the data or on the samples of sites, allow up to
    ``headroom`` times the largest number and price seen; so do all slots of a method that ``apportions`` its budget by
    released numbers. Slots for tables also have the largest ones of the method's questions: ``limits``, which the
    method declares (:meth:`Registration.limits <fedsynth.methods.registry.Registration.limits>`), since dry runs do not
    bound what a method that looks at answers may ask. ``declared`` are the run's declared questions, for the plan's
    readers, and ``asked`` the largest tables of these.

    Raises :class:`InvalidParameter` if ``rows``, ``sites``, ``repeats`` or ``headroom`` is below 1, and
    :class:`Unsupported` for a budget without limit: a run without noise has no finite price to approve.
    """
    if min(rows, sites, repeats) < 1 or not headroom >= 1:
        raise InvalidParameter("rows, sites, repeats and headroom must all be at least 1")
    if terms.budget.exact:
        raise Unsupported("a run without noise cannot be planned: sites approve prices; give --epsilon a number")
    tables = {kind: make(terms.schema, rows, np.random.default_rng(0)) for kind, make in TABLES.items()}
    short = shortened(method)
    everybody = _changed(short, _of_everybody)
    # Each seed is used once: a method's own random draws, such as random pairs, depend on the seed, not on the table.
    seeds = itertools.count()

    def run(tried: FittableMethod, table: Table) -> DryRun:
        seed = next(seeds)
        federation, _ = dry_run(tried, terms, dealt(table, sites, seed), seed=seed, queries=queries)
        return DryRun.of(federation, rows)

    usual: list[DryRun] = []
    for table, _ in itertools.product(tables.values(), range(repeats)):
        usual.append(run(short, table))
        progress(f"dry runs of {name}", len(usual), len(tables) * repeats)
    most = [] if everybody is short else [run(everybody, table) for table in tables.values()]

    figures = _Figures(usual, usual[:repeats], most)
    sums = trust_named(terms.trust, terms.trust_options).sums
    turns = sums.turns if sums else 1
    beside = -(-(STORED_BESIDE + (STORED_OF_MEMBER * sites if turns > 1 else 0)) // turns)  # of each message
    largest = dict.fromkeys(TABLE_KINDS, limits) | ({} if asked is None else {WeightedCounts.kind: asked})
    slots = tuple(_slots(usual, most, terms.budget, headroom, largest, apportions))
    of_method = getattr(method, "method", method) if declared else method
    plan = Agreement.of(terms, sites, name, of_method, slots=slots, answers=declared)
    more = len(plan.data) - usual[0].agreement  # bytes beside each message of a site's first step
    return Forecast(
        plan=plan,
        rows=rows,
        dry_runs=len(usual) + len(most),
        exchanges=figures.count(lambda notes: [notes.ledger.exchanges]),
        messages=figures.count(DryRun.messages),
        down=figures.bytes(lambda down, up: down).plus(figures.range(DryRun.begun), more),
        up=figures.bytes(lambda down, up: up),
        epsilon=figures.range(lambda notes: [notes.ledger.epsilon]),
        noise=tuple(_noise(usual[0].ledger.entries)),
        resolution=usual[0].resolution,
        chosen=figures.chosen,
        largest=more + max(down for one in (*usual, *most) for down in one.sent()),
        stored=figures.bytes(lambda down, up: up + beside).plus(ForecastRange(1, 1, 1), len(plan.data)),
        servers=figures.range(lambda notes: [notes.servers.sent]),
        servers_seconds=figures.range(lambda notes: [notes.servers.draw_seconds]),
    )


def job_forecast(
    job: Job, schema: Schema, *, rows: int, repeats: int, headroom: float, progress: Progress = ignore_progress
) -> Forecast:
    """Forecast the run of a ``job`` under ``schema``, whose method declares its queries and the limits of its slots.

    ``rows``, ``repeats`` and ``headroom`` are those of :func:`forecast`, which raises further errors. Raises
    :class:`Unsupported` for an unknown method, and for one that does not run under the job's trust model.
    """
    declared, method = find_method(job.method), job.build_method(schema)
    declared.check_trust(job.trust)
    return forecast(
        job.method,
        job.fitting(method),
        job.terms(schema),
        sites=job.sites,
        rows=rows,
        queries=declared.queries,
        repeats=repeats,
        headroom=headroom,
        limits=declared.limits(method, schema),
        apportions=declared.apportions,
        declared=job.declared,
        asked=job.largest_questions(schema),
        progress=progress,
    )


@dataclass(frozen=True, eq=False)
class _Figures:
    """Summary figures of the ``usual`` dry runs, the ``first`` of them typical, and of those with all sites (``most``).

    The dry runs show the extreme effects of rows on sizes, and the largest number of rounds for a site. Of the method's
    adaptive choices, its random draws and the samples of sites they are only a sample, hence a margin is added. No site
    can be in more rounds than all; for the runs with all sites, the margin covers only the differences among them.
    """

    usual: Sequence[DryRun]
    first: Sequence[DryRun]
    most: Sequence[DryRun]

    @property
    def chosen(self) -> bool:
        """Whether what is released differs from dry run to dry run."""
        return any(_statistics(notes) != _statistics(self.usual[0]) for notes in self.usual)

    def range(self, figure: Callable[[DryRun], Sequence[float]]) -> ForecastRange:
        seen = [value for notes in [*self.usual, *self.most] for value in figure(notes)]
        bounding = [value for notes in self.most or self.usual for value in figure(notes)]
        margin = MARGIN if self.chosen or self.most else 0.0
        below, above = (margin * (max(values) - min(values)) for values in (seen, bounding))
        typical = float(np.mean([value for notes in self.first for value in figure(notes)]))
        return ForecastRange(max(0.0, min(seen) - below), typical, max(seen) + above)

    def count(self, figure: Callable[[DryRun], Sequence[float]]) -> ForecastRange:
        of = self.range(figure)
        return ForecastRange(math.floor(of.low), of.typical, math.ceil(of.high))

    def bytes(self, weight: Callable[[int, int], int]) -> ForecastRange:
        of = self.range(lambda notes: notes.per_site(weight))
        messages = self.count(DryRun.messages)
        if self.most or not self.chosen or messages.settled:
            return of
        # Extrapolated numbers of messages are multiplied by the largest and the smallest mean size of a message.
        mean = [
            total / count
            for notes in self.usual
            for total, count in zip(notes.per_site(weight), notes.messages(), strict=True)
            if count
        ]
        return ForecastRange(min(of.low, messages.low * min(mean)), of.typical, max(of.high, messages.high * max(mean)))


def shortened(method: FittableMethod) -> Any:
    """Return the method with few steps in the fits of its models: they take time, and send no queries."""
    return _changed(method, lambda option, value: min(value, _STEPS) if option.name in _FITTING else value)


def _of_everybody(option: dataclasses.Field[Any], value: Any) -> Any:
    return 1.0 if option.metadata.get(_COHORT_RATE) else value


def _changed(value: Any, change: Callable[[dataclasses.Field[Any], Any], Any]) -> Any:
    """Return a method with ``change`` applied to its options, recursively."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    changed = {}
    for one in dataclasses.fields(value):
        option = getattr(value, one.name)
        new = change(one, _changed(option, change))
        if one.init and new is not option and new != option:
            changed[one.name] = new
    return dataclasses.replace(value, **changed) if changed else value


def _statistics(notes: DryRun) -> list[tuple[str, str, int]]:
    return sorted((entry.verb, entry.kind, entry.cells) for entry in notes.ledger.entries)


def _slots(
    usual: Sequence[DryRun],
    most: Sequence[DryRun],
    budget: Budget,
    headroom: float,
    limits: Mapping[str, Extent],
    apportions: bool,
) -> Iterator[PlannedQuestion]:
    """Yield the slots of each group of questions; where all sites agree, exactly theirs, else with ``headroom``.

    There is always headroom if the method divides its budget by released numbers (``apportions``): a run on another
    number of rows then has other prices.

    With samples of sites, only sites in all rounds get all questions. Prices then rise as the most charged site joins
    fewer rounds, but the largest number of questions to a site may still be fixed.
    """
    whole = budget.amount
    seen = [charged for notes in [*usual, *most] for charged in notes.charged()]
    bounding = [charged for notes in most or usual for charged in notes.charged()]
    ledgers = [notes.ledger for notes in (*usual, *most)]
    for group in sorted({group for site in seen for group in site}):
        agreed = bounding[0].get(group, Counter())
        tables: Sequence[int] = limits.get(group[1], ())
        same = all(site.get(group, Counter()) == agreed for site in bounding)
        if same and not apportions and all(site.get(group, Counter()) <= agreed for site in seen):
            for price, count in sorted(agreed.items()):
                yield PlannedQuestion(*group, price, count, *tables, **_weakest(group, ledgers))
        else:
            dearest = max(max(site[group]) for site in seen if group in site)
            most_asked = max(site[group].total() for site in seen if group in site)
            settled = not apportions and all(site.get(group, Counter()).total() == most_asked for site in bounding)
            count = most_asked if settled else math.ceil(headroom * most_asked)
            limits_of = _weakest(group, ledgers, headroom)
            yield PlannedQuestion(*group, min(whole, headroom * dearest), count, *tables, **limits_of)


def _weakest(group: Group, ledgers: Sequence[Ledger], headroom: float = 1.0) -> dict[str, Any]:
    """Return the limits of a slot for releases on sampled rows: the weakest of those in ``ledgers`` (none for others).

    With ``headroom`` its noise may be that many times smaller, so that the price is the limit.
    """
    releases = [
        entry.release
        for ledger in ledgers
        for entry in ledger.entries
        if isinstance(entry.release, SampledGaussian) and (entry.verb, entry.kind) == group[:2]
    ]
    if not releases or group[2] != "sampled":
        return {}
    most = reduce(SampledGaussian.weakest, releases)
    noise = max(SMALLEST_MULTIPLIER, most.multiplier / headroom)
    return {"rate": most.rate, "multiplier": noise, "steps": most.steps}


def _noise(entries: Sequence[Entry]) -> Iterator[NoiseForecast]:
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        if not math.isnan(entry.std):
            groups.setdefault((entry.verb, entry.kind), []).append(entry)
    for (verb, kind), some in sorted(groups.items()):
        deviations = [entry.std for entry in some]
        std = ForecastRange(min(deviations), float(np.median(deviations)), max(deviations))
        yield NoiseForecast(verb, kind, len(some), sum(entry.cells for entry in some), std)
