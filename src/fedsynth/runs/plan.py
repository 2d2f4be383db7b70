"""Advice before a run: the expected error of each method, the smallest reliable count, and the epsilon needed.

No real row is read. Every method runs in a simulation over random tables made from the schema; its error on them
estimates its error on real rows, as far as the tables resemble these.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsynth.cliques import random_workload
from fedsynth.data.partition import Partition, SynthFS, parse_partition, split
from fedsynth.errors import FedsynthError, InvalidParameter, Unsupported
from fedsynth.methods import Method
from fedsynth.methods.registry import Registration, declared
from fedsynth.privacy.cost import Budget, epsilon_of
from fedsynth.privacy.ledger import Ledger
from fedsynth.progress import Progress, ignore_progress
from fedsynth.rows import Table, workload_error
from fedsynth.runs.dry_run import MARGIN, ForecastRange, dry_run, likely_rows
from fedsynth.runs.resolution import Resolution, resolution
from fedsynth.terms import Terms

if TYPE_CHECKING:
    import pandas as pd

# Share of each column's variance explained by hidden factors in a random table; most real tables resemble the first.
SHAPES: Mapping[str, tuple[float, float]] = {"typical": (0.0, 0.6), "strong": (0.6, 0.98), "independent": (0.0, 0.0)}
EPSILONS = tuple(2.0**power for power in range(-5, 7))  # grid of a search, which interpolates between two neighbours
NOISE = 0.8  # a table is called noise if its error is at least this part of that of uniform rows
USELESS = 0.97  # dependence is called lost if the error is at least this part of that of independent columns
_PAIRS = 64  # pairs of columns whose error is computed, as in an evaluation
_VALUES = 1_000_000  # rows times columns of a random table, at most
_FEWEST = 5_000  # rows of a random table, at least, unless fewer are planned
_QUARTER = 4  # the second run, which measures the effect of the number of rows, has so many times fewer


@dataclass(frozen=True)
class PlannedRun:
    """The public facts of a planned run, for advice on it: schema, sizes, budget and privacy terms, but no rows.

    ``rows`` is the number of rows of all sites together. ``partition`` says how rows are spread over sites, as
    ``--partition`` of ``fedsynth simulate`` does. Raises :class:`~fedsynth.errors.InvalidParameter` for fewer rows than
    sites, :class:`~fedsynth.errors.Unsupported` for a budget without limit and a partition that cannot split a table,
    and :class:`~fedsynth.errors.SchemaError` for one that names an unknown column.
    """

    terms: Terms
    rows: int
    sites: int
    partition: str = "iid"

    def __post_init__(self) -> None:
        if min(self.rows, self.sites) < 1:
            raise InvalidParameter("--rows and --sites must both be at least 1")
        if self.rows < self.sites:
            raise InvalidParameter(
                f"{self.rows} rows are too few for {self.sites} sites; give fewer --sites, or more --rows"
            )
        if self.terms.budget.exact:
            raise Unsupported("a run without noise needs no advice: give --epsilon a finite number")
        self.dealing()

    @property
    def made_rows(self) -> int:
        """Rows of each random table: as planned, at most the largest of 10^6 / columns, 5,000 and 50 per site."""
        return min(self.rows, max(_FEWEST, 50 * self.sites, _VALUES // len(self.terms.schema.sizes)))

    def dealing(self) -> Partition:
        """Return the partition that splits a random table over the sites; raises errors for one that cannot."""
        found = parse_partition(self.partition, self.terms.schema)
        if isinstance(found, SynthFS):
            raise Unsupported(f"--partition {self.partition} cannot split a table; use iid, quantity:A or label-skew:A")
        return found

    def admitting(self, method: Registration) -> PlannedRun:
        """Return the run itself if ``method`` runs under its trust model, else the same run with a trusted server."""
        if method.runs_under(self.terms.trust):
            return self
        return replace(self, terms=replace(self.terms, trust="trusted", trust_options={}))

    def at(self, rows: int) -> Terms:
        """Return the terms under which a run over ``rows`` rows has the same noise relative to its rows as planned.

        Gaussian noise is proportional to 1 / sqrt(rho), Laplace noise to 1 / epsilon. So rho is multiplied by the
        square of planned rows / ``rows``, epsilon by that ratio itself. The exponential mechanism compares scores in
        rows, so its probabilities stay the same as well.
        """
        factor, budget = self.rows / rows, self.terms.budget
        if factor == 1:
            return self.terms
        epsilon = budget.epsilon * factor if budget.pure else epsilon_of(budget.rho * factor**2, budget.delta)
        return replace(self.terms, budget=Budget(epsilon, budget.delta))


@dataclass(frozen=True)
class PlannedTrial:
    """Result of one simulated run over a random table: its errors and its noise.

    All errors are mean L1 distances (0 to 2) between the marginals (shares of rows with each value or pair of values)
    of the random table and those of other rows: ``one_way`` and ``two_way`` for the synthetic rows, over single columns
    and pairs. For comparison, ``uniform`` is the error over pairs of uniform random rows, and ``single`` that of the
    synthetic rows with each column shuffled, which removes all dependence. ``shape`` is a key of :data:`SHAPES`.
    ``resolution`` says what stands out from the noise, in rows of the planned run.
    """

    shape: str
    one_way: float
    two_way: float
    uniform: float
    single: float
    resolution: Resolution


@dataclass(frozen=True)
class Advice:
    """Expected results of one method in a planned run, estimated on ``tables`` random tables.

    ``trust`` names the trust model: the planned one, or "trusted" if the method does not run under that.
    ``one_way`` and ``two_way`` are the expected errors of single columns and of pairs (:class:`PlannedTrial`).
    ``resolution`` has the smallest groups that stand out from the noise, and warnings, from a run on the first table.
    ``epsilon`` is that needed for a wanted error; ``None`` if none was wanted or found. ``verdict`` and ``search`` say
    in words how good the results are and how that search ended. If the method could not run, there are no errors, and
    ``verdict`` gives the reason.
    """

    method: str
    trust: str
    tables: int
    verdict: str
    one_way: ForecastRange | None = None
    two_way: ForecastRange | None = None
    resolution: Resolution | None = None
    epsilon: float | None = None
    search: str = ""


@dataclass(frozen=True)
class AdviceTable:
    """Advice on every method for a planned run, the method with the smallest error of pairs first.

    ``rows`` is the planned number of rows, ``made_rows`` that of each of the random ``tables``. ``complete`` is
    ``False`` if time ran out before every method ran on all of them.
    """

    rows: int
    made_rows: int
    tables: int
    complete: bool
    methods: tuple[Advice, ...]

    @property
    def frame(self) -> pd.DataFrame:
        """The advice as a data frame: a row a method, with its typical errors and their ranges, and its verdict."""
        import pandas as pd

        def figures(of: ForecastRange | None, title: str) -> dict[str, float]:
            low, typical, high = (math.nan,) * 3 if of is None else (of.low, of.typical, of.high)
            return {title: typical, f"{title}, least": low, f"{title}, most": high}

        lines = [
            {
                "method": one.method,
                "trust": one.trust,
                **figures(one.one_way, "1-way error"),
                **figures(one.two_way, "2-way error"),
                "smallest cell": (one.resolution and (one.resolution.crossing or one.resolution.value)) or math.nan,
                "verdict": one.verdict,
            }
            for one in self.methods
        ]
        return pd.DataFrame(lines)

    def __str__(self) -> str:
        return str(self.frame.to_string(index=False))

    def _repr_html_(self) -> str:
        return str(self.frame.to_html(index=False))

    def to_json(self) -> dict[str, Any]:
        """Return the advice as JSON values."""
        return dataclasses.asdict(self)


def advise(
    planned: PlannedRun,
    methods: Mapping[str, Method],
    *,
    wanted: float | None = None,
    tables: int = 3,
    seconds: float = 120.0,
    progress: Progress = ignore_progress,
) -> AdviceTable:
    """Estimate the errors of ``methods`` (by name) in a planned run on random tables, without reading a row.

    Every method runs in a simulation over ``tables`` random tables of each kind in :data:`SHAPES`. After ``seconds`` no
    further run is started; every method runs on the first table anyway. ``wanted`` is an error of pairs of columns
    (above 0 and below 2) for which the needed epsilon is searched (:func:`epsilon_for`). A method that does not run
    under the planned trust model runs under "trusted"; one that cannot run is listed with the reason. Raises
    :class:`~fedsynth.errors.InvalidParameter` for numbers out of range.

    If more rows are planned than a random table has, the noise relative to the rows is kept as planned
    (:meth:`PlannedRun.at`). Fewer rows also have a larger sampling error, which falls with 1 / sqrt(rows): a second run
    over a quarter of the rows measures it, and the excess is subtracted.
    """
    if min(tables, seconds) <= 0 or (wanted is not None and not 0 < wanted < 2):
        raise InvalidParameter("--tables and --seconds must be positive, and --wanted above 0 and below 2")
    deadline = time.monotonic() + seconds
    runs = {name: _Runs(planned.admitting(declared(type(method), name)), method) for name, method in methods.items()}
    made = [(shape, seed) for seed in range(tables) for shape in SHAPES]
    total = len(made) * len(runs)
    found = []
    with _unwarned():
        for at, (table, of_method) in enumerate(itertools.product(made, runs.values())):
            if table is made[0] or time.monotonic() < deadline:
                of_method.add(*table)
            progress("random tables", at + 1, total)
        for at, (name, of_method) in enumerate(runs.items()):
            trust = of_method.planned.terms.trust
            advice = _advice(name, trust, of_method.trials, planned.rows) if of_method.trials else None
            if advice is None:
                advice = Advice(name, trust, 0, of_method.refused)
            elif wanted is not None:
                epsilon, search = _needed(of_method, wanted, range(tables), deadline)
                advice = replace(advice, epsilon=epsilon, search=search)
                progress("epsilons", at + 1, len(runs))
            found.append(advice)
    found.sort(key=lambda one: math.inf if one.two_way is None else one.two_way.typical)
    complete = all(one.refused or len(one.trials) == len(made) for one in runs.values())
    return AdviceTable(planned.rows, planned.made_rows, len(made), complete, tuple(found))


def epsilon_for(error: Callable[[float], float], wanted: float) -> tuple[float | None, str]:
    """Return the smallest epsilon at which an error is at most ``wanted``, and the result in words.

    The search bisects :data:`EPSILONS` (1/32 to 64), assuming that ``error(epsilon)`` does not grow, and interpolates
    the logarithm of epsilon between the two neighbours around the wanted error: a smaller wanted error never gets a
    smaller epsilon. The epsilon is ``None`` if even the largest one does not suffice.
    """
    known: dict[int, float] = {}

    def at(index: int) -> float:
        if index not in known:
            known[index] = error(EPSILONS[index])
        return known[index]

    low, high = 0, len(EPSILONS) - 1
    if at(high) > wanted:
        return None, f"not by epsilon {EPSILONS[high]:g}, where it is {at(high):.2f}: the method's own"
    if at(low) <= wanted:
        return EPSILONS[low], f"epsilon {EPSILONS[low]:g} or less"
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if at(middle) <= wanted else (middle, high)
    part = (at(low) - wanted) / (at(low) - at(high))
    found = EPSILONS[low] * (EPSILONS[high] / EPSILONS[low]) ** part
    return found, f"epsilon {found:.2g}"


# ---------------------------------------------------------------------------------------------------------------------
# Runs over random tables


@contextmanager
def _unwarned() -> Iterator[None]:
    """Hide warnings: they would name neither method nor table, and what they warn of is in the errors of the advice."""
    logger = logging.getLogger("fedsynth")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@dataclass
class _Runs:
    """The runs of one method: the ``trials`` so far, or the reason why it was ``refused``."""

    planned: PlannedRun
    method: Method
    trials: list[PlannedTrial] = field(default_factory=list)
    refused: str = ""

    def add(self, shape: str, seed: int) -> None:
        """Run over one more random table, unless the method was refused before."""
        if self.refused:
            return
        try:
            self.trials.append(trial(self.planned, self.method, shape, seed))
        except FedsynthError as error:
            self.refused = str(error)
            self.trials.clear()


def trial(planned: PlannedRun, method: Method, shape: str, seed: int) -> PlannedTrial:
    """Run a method over one random table of a ``shape`` in :data:`SHAPES`; return its errors and its noise."""
    table = likely_rows(planned.terms.schema, planned.made_rows, SHAPES[shape], np.random.default_rng(seed))
    found = _simulated(planned, method, table, shape, seed)
    few = len(table) // _QUARTER
    if len(table) == planned.rows or few < planned.sites:
        return found
    fewer = _simulated(planned, method, table.take(np.arange(few)), shape, seed)
    kept = len(table) / planned.rows
    return replace(
        found,
        one_way=_at_all_rows(found.one_way, fewer.one_way, kept),
        two_way=_at_all_rows(found.two_way, fewer.two_way, kept),
        single=_at_all_rows(found.single, fewer.single, kept),
    )


def _at_all_rows(error: float, of_quarter: float, kept: float) -> float:
    """Extrapolate an error to all rows, of which the random table had the share ``kept``.

    ``of_quarter`` is the error with a quarter of the table's rows. The error from noise and model, and that from
    sampling rows, are independent: error^2 = a^2 + b^2 / rows, so a quarter of the rows adds three times b^2 / rows.
    """
    of_draws = min(error**2, max(0.0, of_quarter**2 - error**2) / (_QUARTER - 1))
    return math.sqrt(error**2 - (1 - kept) * of_draws)


def _simulated(planned: PlannedRun, method: Method, table: Table, shape: str, seed: int) -> PlannedTrial:
    rng = np.random.default_rng(seed)
    federation, synthesizer = dry_run(
        method,
        planned.at(len(table)),
        split(table, planned.sites, planned.dealing(), rng),
        seed=seed,
        queries=declared(type(method), type(method).__name__).queries,
        trains=True,
    )
    synthetic = synthesizer.sample_table(len(table), rng)
    columns = len(table.codes)
    ones, pairs = (random_workload(columns, min(order, columns), _PAIRS, 0) for order in (1, 2))
    uniform = [rng.integers(0, size, len(table)) for size in planned.terms.schema.sizes]
    single = [rng.permutation(codes) for codes in synthetic.codes]
    noise = federation.noise.times(planned.rows / len(table))
    federation = replace(federation, terms=planned.terms, ledger=Ledger(planned.terms.budget), noise=noise)
    return PlannedTrial(
        shape,
        workload_error(table, synthetic, ones).mean,
        workload_error(table, synthetic, pairs).mean,
        workload_error(table, Table(planned.terms.schema, tuple(uniform)), pairs).mean,
        workload_error(table, Table(planned.terms.schema, tuple(single)), pairs).mean,
        resolution(federation, planned.rows),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Results of the runs


def _range(values: Sequence[float]) -> ForecastRange:
    """Return the median of errors, and their range with a margin, since random tables are only a sample.

    The margin at either end is ``MARGIN`` times the range or the median, whichever is larger.
    """
    low, typical, high = min(values), statistics.median(values), max(values)
    more = MARGIN * max(high - low, typical)
    return ForecastRange(max(0.0, low - more), typical, min(2.0, high + more))


def _advice(name: str, trust: str, trials: Sequence[PlannedTrial], rows: int) -> Advice:
    found = trials[0].resolution
    return Advice(
        name,
        trust,
        len(trials),
        _verdict(trials, rows, found.crossing or found.value),
        _range([one.one_way for one in trials]),
        _range([one.two_way for one in trials]),
        found,
    )


def _verdict(trials: Sequence[PlannedTrial], rows: int, cell: float | None) -> str:
    if cell is not None and cell >= rows:
        return f"the table would be noise: a cell of all {rows:,} rows is not twice its noise"
    if statistics.median(one.two_way / max(one.uniform, 1e-9) for one in trials) >= NOISE:
        return "the table would be noise: rows that are drawn without any data are about as good"
    dependent = [one.two_way / max(one.single, 1e-9) for one in trials if one.shape != "independent"]
    if statistics.median(dependent) >= USELESS:
        return "columns by themselves hold; dependence between them is lost"
    return "columns and their dependence hold"


def _needed(runs: _Runs, wanted: float, seeds: Iterable[int], deadline: float) -> tuple[float | None, str]:
    """Return the epsilon at which the median error on tables of the first shape is as wanted, also in words."""
    shape = next(iter(SHAPES))
    over = "the time was over before the search"

    def error(epsilon: float) -> float:
        if time.monotonic() >= deadline:
            raise TimeoutError
        terms = runs.planned.terms
        planned = replace(runs.planned, terms=replace(terms, budget=Budget(epsilon, terms.budget.delta)))
        return statistics.median(trial(planned, runs.method, shape, seed).two_way for seed in seeds)

    try:
        return epsilon_for(error, wanted)
    except TimeoutError:
        return None, over
