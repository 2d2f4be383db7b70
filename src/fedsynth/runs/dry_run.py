"""Dry runs on random rows, to forecast a run's exchanges, bytes, epsilon and noise, and to make its plan.

A plan lists the questions that a run may ask and their highest privacy costs, for sites to approve. In a dry run the
real method sends its real queries to real sites that hold random rows. The forecast depends on public facts alone:
schema, budget, trust model, number of sites and an assumed number of rows. An adaptive method adapts to random rows
here, so it runs on several very different tables; figures that differ between them are given as a range.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import DataWarning, InvalidParameter, Unsupported
from fedsynth.federation.federation import Federation, Progress, ignore_progress
from fedsynth.federation.plan import Plan, PlannedQuestion, options_of, settings_of
from fedsynth.federation.query import TABLE_KINDS, AnyQuery, Extent
from fedsynth.federation.resolution import NoiseRecord, Resolution, resolution, say_nothing
from fedsynth.federation.simulate import federate
from fedsynth.federation.site import STORED_BESIDE, STORED_OF_MEMBER, Site
from fedsynth.federation.transport import InProcess, Message
from fedsynth.federation.trust import Assisted, Traffic, Trust
from fedsynth.federation.wire import Reply
from fedsynth.privacy.cost import ONE_ROW, Budget, Cost, Unit
from fedsynth.privacy.ledger import Entry
from fedsynth.rows import Table
from fedsynth.schema import Schema

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

    In each row, every column has a level, a number between 0 and 1. Column k (numbered from 0) copies the level of
    column k - 1 with probability 1 / (k + 1), and otherwise draws a uniform one of its own. The first pairs thus depend
    on each other strongly, the last ones hardly. The square of the level times the column's number of values or bins,
    rounded down, is the place of the row's one among them: low ones are the most frequent.
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
    """Return a table of ``rows`` rows; in each, one uniform random number determines the values or bins of all columns.

    Each column is uniform over its values or bins, and every pair of columns is as dependent as possible. Numbers are
    drawn at random within their bins.
    """
    hidden = rng.random(rows)
    return _table(schema, [np.floor(hidden * size).astype(np.int64) for size in schema.sizes], rng)


def equal_rows(schema: Schema, rows: int, rng: np.random.Generator) -> Table:
    """Return a table whose ``rows`` rows have the first value or bin of each column: one cell has all rows.

    Numbers are drawn at random within their bins.
    """
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
    return dataclasses.replace(stored.encode(stored.decode(list(codes), rng)), schema=schema)


# ---------------------------------------------------------------------------------------------------------------------
# One dry run


@dataclass(frozen=True)
class ExchangeSize:
    """Sizes of one exchange with one ``site``: ``down`` is the message to it, ``up`` its reply, in bytes.

    Both are the encoded sizes, without the transport's overhead.
    """

    site: str
    down: int
    up: int


@dataclass(frozen=True)
class ChargedQuestion:
    """One question that a site was charged for in a dry run.

    ``group`` is the question's verb (the federation's method that asks it, such as ``sum``), the kind of its query
    (such as ``counts``) and the kind of its release (such as ``gaussian``). ``price`` is its privacy cost to one
    person, as one number: epsilon if the budget's delta is 0, otherwise rho of zCDP (:meth:`Budget.price
    <fedsynth.privacy.cost.Budget.price>`).
    """

    group: tuple[str, str, str]
    price: float


@dataclass
class DryRunRecord:
    """Observations of one dry run: the sizes of all messages, what each site was charged, and the releases.

    ``sent`` holds the sizes. ``exchanges`` is the number of exchanges: in each, the server sends messages to several
    sites and waits for the replies. ``asked`` are the questions that each site was charged for, by the site's name.
    They include the ``repeated`` ones, of training steps that were counted but not computed (:meth:`repeat`).
    ``entries`` are the releases in the server's ledger and ``epsilon`` is their total cost, at the budget's delta;
    ``resolution`` says what stands out from their noise.
    ``servers`` is the traffic of the compute servers under the trust model of three servers
    (:class:`~fedsynth.federation.trust.Traffic`), zero under others. :meth:`close` sets ``asked``,
    ``entries``, ``epsilon`` and ``servers``, :func:`dry_run` the resolution.
    """

    sent: list[ExchangeSize] = field(default_factory=list)
    exchanges: int = 0
    asked: dict[str, list[ChargedQuestion]] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    epsilon: float = 0.0
    repeated: dict[str, list[ChargedQuestion]] = field(default_factory=dict)
    servers: Traffic = field(default_factory=Traffic)
    resolution: Resolution = field(default_factory=Resolution)

    def repeat(self, times: int, federation: Federation, sites: Sequence[Site]) -> Iterator[int]:
        """Yield 0, the only computed one of ``times`` training steps; then count its bytes and charges for all of them.

        In a dry run the ``federation`` has this method as its ``loop``, which gives a method the numbers of its
        training steps (:class:`~fedsynth.federation.federation.Federation`); ``sites`` are the federation's sites. The
        steps differ only in a network's weights, on which neither privacy costs nor bytes depend, so the other steps
        need not be computed.
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

    def _charged(self, federation: Federation, sites: Sequence[Site]) -> dict[str, list[ChargedQuestion]]:
        """Return the questions that each site was charged for, including the steps that were not computed."""
        return {site.name: [*_charges(site, federation.budget), *self.repeated.get(site.name, ())] for site in sites}

    def close(self, federation: Federation, sites: Sequence[Site]) -> None:
        """Record, at the end of a run, what each of the ``sites`` was charged and the ``federation`` released."""
        self.asked = self._charged(federation, sites)
        self.entries = federation.ledger.entries
        self.epsilon = federation.ledger.epsilon
        self.servers = federation.trust.traffic if isinstance(federation.trust, Assisted) else Traffic()

    def per_site(self, weight: Callable[[ExchangeSize], int]) -> list[float]:
        """Return, for each site in the order of ``asked``, the sum of ``weight`` over its messages.

        ``weight`` gives a number for each message, such as its size in bytes. Call it after :meth:`close`.
        """
        totals = dict.fromkeys(self.asked, 0)
        for message in self.sent:
            totals[message.site] += weight(message)
        return [float(total) for total in totals.values()]

    def messages(self) -> list[float]:
        """Return the number of messages sent to each site, those of the ``repeated`` questions included.

        The numbers are whole, in the order of the sites in ``asked``. Call it after :meth:`close`.
        """
        return self.per_site(lambda message: 1)


class MeasuringTransport(InProcess):
    """A transport to ``sites`` in this process that measures encoded messages, for dry runs.

    It adds the sizes of each message and its reply to ``notes`` (:class:`DryRunRecord`), and counts there how often
    messages are sent to several sites and their replies awaited (exchanges). The attribute ``members`` holds the sites.
    """

    def __init__(self, sites: Sequence[Site], notes: DryRunRecord) -> None:
        """Record the sizes of the messages of ``sites`` in ``notes``."""
        super().__init__(sites)
        self._notes = notes
        self.members = tuple(sites)

    def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
        """Yield each site's reply, in the order of ``messages``, and record its size and that of its message."""
        asked = list(messages)
        self._notes.exchanges += bool(asked)
        for message, reply in zip(asked, super().exchange(asked), strict=True):
            self._notes.sent.append(ExchangeSize(message.site, message.size, len(reply.data)))
            yield reply


def dry_run(
    method: FittableMethod,
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
    rows: int | None = None,
) -> DryRunRecord:
    """Run ``method`` on the rows of ``table``, dealt at random and evenly to ``sites`` sites; return what it costs.

    ``schema``, ``budget``, ``trust``, ``unit``, ``public_sizes`` and ``queries`` are the run's terms, as in
    :func:`~fedsynth.federation.simulate.federate`. ``seed`` fixes the dealing, the noise and the method's own random
    choices. ``rows`` is the number of real rows that the warnings of the record's ``resolution`` are about, by default
    that of ``table``. Networks are not trained: sites answer training questions with zeros, at the same privacy cost.
    Raises the errors of the run, such as :class:`Unsupported`.
    """
    dealt = np.random.default_rng(seed).permutation(len(table))
    parts = [table.take(part) for part in np.array_split(dealt, sites)]
    notes = DryRunRecord()

    def weighing(members: Sequence[Site]) -> MeasuringTransport:
        # Without training, which could take hours: neither the size of replies nor any question depends on weights.
        return MeasuringTransport([dataclasses.replace(site, trains=False) for site in members], notes)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # made-up rows may be fewer than sites
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
    assert isinstance(federation.transport, MeasuringTransport)
    members = federation.transport.members
    federation = dataclasses.replace(
        federation,
        # A planned run names its plan in every request. The plan does not exist yet, but all digests have one size.
        plan=hashlib.sha256(b"dry run").hexdigest(),
        loop=partial(notes.repeat, federation=federation, sites=members),
        noise=NoiseRecord(tell=say_nothing),  # the record has the sentences
    )
    if public_sizes:
        federation.public_sizes()  # a deployed run asks for them
    method.fit(federation)
    notes.close(federation, members)
    notes.resolution = resolution(federation, rows or len(table))
    return notes


def expected_exchanges(
    method: FittableMethod,
    schema: Schema,
    budget: Budget,
    *,
    trust: Trust,
    sites: int,
    public_sizes: bool = False,
    queries: Sequence[type[AnyQuery]] = (),
    rows: int = 2000,
) -> int:
    """Estimate the number of exchanges of a run, for its progress bar, by one dry run on random rows.

    An exchange sends messages to several sites and waits for the replies. ``sites`` is the number of sites, and
    ``rows`` that of the random rows at all sites together; fits of models are shortened. The other arguments are the
    run's terms, as in :func:`~fedsynth.federation.simulate.federate`. Raises the errors of the run.
    """
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


def _charges(site: Site, budget: Budget) -> Iterator[ChargedQuestion]:
    for charge in site.account.charges():
        release = charge["release"]["type"]
        price = budget.price(msgspec.convert(charge["cost"], Cost))
        yield ChargedQuestion((charge["verb"], charge["kind"], release), price)


# ---------------------------------------------------------------------------------------------------------------------
# Forecasts


@dataclass(frozen=True)
class ForecastRange:
    """The lowest, typical and highest value of a figure over the dry runs of a forecast.

    In a :class:`Forecast`, but for its noise, ``typical`` is the mean over the dry runs on one of the random tables
    (:func:`steep_rows`). ``low`` and ``high`` include a margin if the dry runs cannot show all cases: if the method's
    questions differ from one dry run to another, or if it samples sites.
    """

    low: float
    typical: float
    high: float

    @property
    def settled(self) -> bool:
        """Whether the dry runs agree (``high`` at most 5 % above ``low``), so that ``typical`` alone may be shown."""
        return self.high <= self.low * SETTLED


@dataclass(frozen=True)
class NoiseForecast:
    """Noise of one kind of released answer in a forecast: of all answers to one ``kind`` of query by one ``verb``.

    ``kind`` names the query (such as ``counts``), and ``verb`` the way in which sites are asked (such as ``sum``). The
    run releases ``times`` such answers, with ``cells`` cells in total. ``std`` is the noise's standard deviation in a
    cell, in the unit of the ledger (:attr:`Entry.std <fedsynth.privacy.ledger.Entry.std>`): its lowest,
    median and highest value over these answers of one dry run.
    """

    verb: str
    kind: str
    times: int
    cells: int
    std: ForecastRange


@dataclass(frozen=True)
class Forecast:
    """Forecast of a run, from dry runs of its method on random rows.

    ``plan`` lists the questions and their highest costs, for the sites to approve; ``rows`` is the number of rows at
    all sites together and ``dry_runs`` the number of runs behind the figures. ``exchanges`` counts how often the server
    sends messages to several sites and waits for the replies. For each site, ``messages`` is the number of messages to
    it, and ``down`` and ``up`` are the bytes sent to it and by it. ``epsilon`` bounds the cost to one person, at the
    budget's delta. ``largest`` is the size of the largest message to a site, in bytes. ``stored`` is the most bytes
    that a site stores until the run is closed, for rows that are counted or streamed; a site with a copy of its rows
    does not store answers of more than 64 KiB that are not trained. ``servers`` is the number of bytes that three
    compute servers send in total, and ``servers_seconds`` the CPU seconds that each of them needs for private
    selections, estimated from their numbers of candidates; both are 0 under other trust models than three servers.

    ``chosen`` says whether the dry runs released different statistics, since the method's queries depend on the data or
    on its own random draws; ``noise``, that of the first dry run, is then only an example. ``resolution`` says, also of
    the first dry run, which groups and relations stand out from the noise if the sites have ``rows`` rows.
    """

    plan: Plan
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
        return {**content, "plan": self.plan.to_json(), "plan_digest": self.plan.digest, "guarantee": guarantee}


def forecast(
    name: str,
    method: FittableMethod,
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
    limits: Extent,
    apportions: bool = False,
    progress: Progress = ignore_progress,
) -> Forecast:
    """Forecast a run of ``method`` (called ``name``) over ``sites`` sites of equal size with ``rows`` rows in total.

    ``schema``, ``budget``, ``trust``, ``unit``, ``public_sizes`` and ``queries`` are the run's terms, as in
    :func:`~fedsynth.federation.simulate.federate`.

    The method runs ``repeats`` times on a random table of each kind in ``TABLES`` (:func:`even_rows`,
    :func:`steep_rows` and others), each time with other noise, other cohorts (samples of sites) and other random
    queries; ``progress`` is called after each of these runs. If the method samples sites, it runs once more on each
    table with every site in every cohort, so that each takes part in as many rounds as one site can. Fits are
    shortened, since they only affect which queries are chosen, and the rows are random anyway.

    The forecast's plan consists of slots; a slot permits a number of questions of one kind, at a highest price (privacy
    cost) each (:class:`~fedsynth.federation.plan.PlannedQuestion`). Slots on which all dry runs agree are in the plan
    as they are. Others, which depend on the data or on the samples of sites, allow up to ``headroom`` times the largest
    number and price seen; so do all slots of a method that ``apportions`` its budget by released numbers. Slots for
    tables also have the largest ones of the method's questions: ``limits``, which
    the method declares (:meth:`Registration.limits <fedsynth.methods.registry.Registration.limits>`), since dry runs do
    not bound what a method that looks at answers may ask.

    Raises :class:`InvalidParameter` if ``rows``, ``sites``, ``repeats`` or ``headroom`` is below 1, and
    :class:`Unsupported` for a budget without limit: a run without noise has no finite price to approve.
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

    # Each seed is used once: a method's own random draws, such as random pairs, depend on the seed, not on the table.
    seeds = itertools.count()
    usual: list[DryRunRecord] = []
    for table, _ in itertools.product(tables.values(), range(repeats)):
        usual.append(run(short, table=table, seed=next(seeds)))
        progress(f"dry runs of {name}", len(usual), len(tables) * repeats)
    most = [] if everybody is short else [run(everybody, table=table, seed=next(seeds)) for table in tables.values()]

    figures = _Figures(usual, usual[:repeats], most)
    turns = max(1, trust.turns)
    beside = -(-(STORED_BESIDE + (STORED_OF_MEMBER * sites if turns > 1 else 0)) // turns)  # of each message
    options = {key: value for key, value in options_of(method).items() if key != "is"}
    slots = tuple(_slots(usual, most, budget, headroom, limits, apportions))
    return Forecast(
        plan=Plan(name, options, schema.digest, trust.name, settings_of(trust), sites, budget, unit, slots),
        rows=rows,
        dry_runs=len(usual) + len(most),
        exchanges=figures.count(lambda notes: [notes.exchanges]),
        messages=figures.count(DryRunRecord.messages),
        down=figures.bytes(lambda message: message.down),
        up=figures.bytes(lambda message: message.up),
        epsilon=figures.range(lambda notes: [notes.epsilon]),
        noise=tuple(_noise(usual[0].entries)),
        resolution=usual[0].resolution,
        chosen=figures.chosen,
        largest=max(message.down for notes in (*usual, *most) for message in notes.sent),
        stored=figures.bytes(lambda message: message.up + beside),
        servers=figures.range(lambda notes: [notes.servers.sent]),
        servers_seconds=figures.range(lambda notes: [notes.servers.draw_seconds]),
    )


@dataclass(frozen=True, eq=False)
class _Figures:
    """Summary figures of the ``usual`` dry runs, whose ``first`` ones are typical, and of those with all sites
    (``most``).

    The dry runs show the extreme effects of rows on sizes, and the largest number of rounds for a site. Of the method's
    adaptive choices, its random draws and the samples of sites they are only a sample, hence a margin is added. No site
    can be in more rounds than all; for the runs with all sites, the margin covers only the differences among them.
    """

    usual: Sequence[DryRunRecord]
    first: Sequence[DryRunRecord]
    most: Sequence[DryRunRecord]

    @property
    def chosen(self) -> bool:
        """Whether what is released differs from dry run to dry run."""
        return any(_statistics(notes) != _statistics(self.usual[0]) for notes in self.usual)

    def range(self, figure: Callable[[DryRunRecord], Sequence[float]]) -> ForecastRange:
        seen = [value for notes in [*self.usual, *self.most] for value in figure(notes)]
        bounding = [value for notes in self.most or self.usual for value in figure(notes)]
        margin = MARGIN if self.chosen or self.most else 0.0
        below, above = (margin * (max(values) - min(values)) for values in (seen, bounding))
        typical = float(np.mean([value for notes in self.first for value in figure(notes)]))
        return ForecastRange(max(0.0, min(seen) - below), typical, max(seen) + above)

    def count(self, figure: Callable[[DryRunRecord], Sequence[float]]) -> ForecastRange:
        of = self.range(figure)
        return ForecastRange(math.floor(of.low), of.typical, math.ceil(of.high))

    def bytes(self, weight: Callable[[ExchangeSize], int]) -> ForecastRange:
        of = self.range(lambda notes: notes.per_site(weight))
        messages = self.count(DryRunRecord.messages)
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


def _few_fitting_steps(option: dataclasses.Field[Any], value: Any) -> Any:
    return min(value, _STEPS) if option.name in _FITTING else value


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


def _statistics(notes: DryRunRecord) -> list[tuple[str, str, int]]:
    return sorted((entry.verb, entry.kind, entry.cells) for entry in notes.entries)


def _slots(
    usual: Sequence[DryRunRecord],
    most: Sequence[DryRunRecord],
    budget: Budget,
    headroom: float,
    limits: Extent,
    apportions: bool,
) -> Iterator[PlannedQuestion]:
    """Yield the slots of each group of questions; where all sites agree, exactly theirs, else with ``headroom``.

    There is always headroom if the method divides its budget by released numbers (``apportions``): a run on another
    number of rows then has other prices.

    With samples of sites, only sites in all rounds get all questions. Prices then rise as the most charged site joins
    fewer rounds, but the largest number of questions to a site may still be fixed.
    """
    whole = budget.epsilon if budget.pure else budget.rho
    seen = [_by_group(asked) for notes in [*usual, *most] for asked in notes.asked.values()]
    bounding = [_by_group(asked) for notes in most or usual for asked in notes.asked.values()]
    for group in sorted({group for site in seen for group in site}):
        agreed = bounding[0].get(group, Counter())
        tables: Sequence[int] = limits if group[1] in TABLE_KINDS else ()
        same = all(site.get(group, Counter()) == agreed for site in bounding)
        if same and not apportions and all(site.get(group, Counter()) <= agreed for site in seen):
            for price, count in sorted(agreed.items()):
                yield PlannedQuestion(*group, price, count, *tables)
        else:
            dearest = max(max(site[group]) for site in seen if group in site)
            most_asked = max(site[group].total() for site in seen if group in site)
            settled = not apportions and all(site.get(group, Counter()).total() == most_asked for site in bounding)
            count = most_asked if settled else math.ceil(headroom * most_asked)
            yield PlannedQuestion(*group, min(whole, headroom * dearest), count, *tables)


def _by_group(asked: Sequence[ChargedQuestion]) -> dict[tuple[str, str, str], Counter[float]]:
    """Return how often a site was asked at each price, by group; prices that differ by rounding alone are merged.

    Rounding changes a price by less than an account's tolerance (:data:`fedsynth.privacy.cost.ROUNDING`).
    """
    groups: dict[tuple[str, str, str], Counter[float]] = {}
    for question in asked:
        prices = groups.setdefault(question.group, Counter())
        prices[float(f"{question.price:.10g}")] += 1
    return groups


def _noise(entries: Sequence[Entry]) -> Iterator[NoiseForecast]:
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        if not math.isnan(entry.std):
            groups.setdefault((entry.verb, entry.kind), []).append(entry)
    for (verb, kind), some in sorted(groups.items()):
        deviations = [entry.std for entry in some]
        std = ForecastRange(min(deviations), float(np.median(deviations)), max(deviations))
        yield NoiseForecast(verb, kind, len(some), sum(entry.cells for entry in some), std)
