"""Specifications of benchmarks: TOML that is expanded into cells, each one run with one seed."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from fedsynth.bench.floors import FLOORS
from fedsynth.bench.metrics import find_metric
from fedsynth.data.partition import parse_partition
from fedsynth.errors import FedsynthError, InvalidParameter, Unsupported, nearest
from fedsynth.evaluation.suites import find_suite
from fedsynth.federation.policy_file import trust_named
from fedsynth.federation.trust import Trust
from fedsynth.files import Records, parse_toml
from fedsynth.methods import find_method, method_names
from fedsynth.methods.registry import read_options
from fedsynth.plugins import named
from fedsynth.runs.job import DEMO_DATA, parse_option
from fedsynth.schema import Schema
from fedsynth.trusts import default_trust

AXES = ("dataset", "method", "epsilon", "delta", "trust", "partition", "sites", "arm", "seed")

ARMS = ("federated", "pooled", "local", "first")  # and site:1, site:2, ...

Words = tuple[int | Literal["dataset", "method", "partition", "sites", "arm", "seed"], ...]
Texts = str | tuple[str, ...]
Numbers = float | tuple[float, ...]
Wholes = int | tuple[int, ...]


# ---------------------------------------------------------------------------------------------------------------------
# The specification


class SpecEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of the parts of a specification (TOML) of ``fedsynth bench``; unknown keys are refused."""


class SchemaRules(SpecEntry, frozen=True):
    """Rules to make a schema from the whole data file, as in published experiments; no guarantee covers such a schema.

    A column of numbers gets ``bins`` bins of equal width between its smallest and its largest value; with ``cap_bins``,
    no more than it has distinct values. If it has at most ``categories`` distinct values it is a category instead, and
    so are the target if ``target_is_category``, the columns in ``codes``, and all columns of text, where missing text
    is the category "?". ``integers`` marks columns of whole numbers as such; ``decimals`` rounds the others to so many
    digits after the point. The bins of the columns in ``doubling`` end at powers of two. Columns of one value are
    dropped unless ``constants`` is true.

    ``missing_values`` are texts that mean a missing value. ``domain`` takes the place of the rules above: it names a
    JSON file with the number of values of each column; the data file must then hold integer codes, from 0 on.
    """

    bins: int = 32
    cap_bins: bool = False
    categories: int = 2
    target_is_category: bool = True
    integers: bool = True
    decimals: int | None = None
    doubling: tuple[str, ...] = ()
    domain: str = ""
    missing_values: tuple[str, ...] = ()
    codes: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET  # unset, they are in no cell's digest
    constants: bool | msgspec.UnsetType = msgspec.UNSET


class SplitEntry(SpecEntry, frozen=True):
    """The split of a data set into training and test rows: a share of its rows, or a number of them, is for testing.

    Only one of ``test_share``, ``test_rows`` and ``train_share`` may be given; without any there are no test rows. The
    draw depends on ``seed``, or on the seed of the run if that is ``None``. ``train_share`` draws the training rows
    with pandas' generator, as the published code of FLAIM does, and needs a ``seed``.
    """

    test_share: float | None = None
    test_rows: int | None = None
    train_share: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if sum(one is not None for one in (self.test_share, self.test_rows, self.train_share)) > 1:
            raise ValueError("a split has only one of test_share, test_rows and train_share; delete the others")
        if self.train_share is not None and self.seed is None:
            raise ValueError("train_share draws by a seed of its own; add seed = 0 to the split")


class SampleEntry(SpecEntry, frozen=True):
    """A random ``share`` (0 to 1) of the rows of a data file, drawn with pandas' generator from ``seed``."""

    share: float
    seed: int


class Dataset(SpecEntry, frozen=True):
    """A data set of a specification: a file, the rows and columns used of it, a schema and a split.

    ``file`` is a CSV or Parquet file in the folder of the data, ``demo:rand-hie`` (the table of the demo extra), or a
    function ``package.module:function`` that returns a pandas frame. ``records`` is the kind of a CSV file
    (:data:`~fedsynth.files.Records`; unset: ``lines``), and ``target`` the column to predict. The columns in ``drop``
    are left out. Of the rows, those with the ``labels`` commonest values of the target are kept, of these those of
    ``sample``, and of these ``rows`` at random; with ``None``, all. ``schema`` is the name of a schema file, ``""`` to
    draft one, or :class:`SchemaRules` to make one from the whole file. A schema file allows no ``drop``, ``labels``,
    ``sample`` or ``rows``. ``split`` separates the test rows.

    With ``train_rows``, the method gets so many rows, drawn from the training rows with replacement, to measure running
    times at any size. Synthetic rows are ``synthetic_share`` times as many as the sites have together. ``metrics``
    gives options of metrics for this data set alone; its keys are the metrics' names in the specification, or the
    functions that these stand for. ``note`` is a remark for the page of results.
    """

    file: str
    records: Records | msgspec.UnsetType = msgspec.UNSET
    target: str = ""
    drop: tuple[str, ...] = ()
    labels: int | None = None
    sample: SampleEntry | None = None
    rows: int | None = None
    schema: SchemaRules | str = SchemaRules()
    split: SplitEntry = SplitEntry(test_share=0.2)
    train_rows: int | None = None
    synthetic_share: float = 1.0
    metrics: dict[str, dict[str, Any]] = {}
    note: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.schema, str) and self.schema and (self.drop or self.labels or self.sample or self.rows):
            raise ValueError(
                "a data set with a schema file has no drop, labels, sample or rows; delete them, or the schema"
            )
        if self.made and self.records:
            raise ValueError(f"{self.file} is no CSV file, so it has no records; delete that")

    @property
    def made(self) -> bool:
        """Whether ``file`` is no file: the demo table, or a function that returns a frame."""
        return self.file == DEMO_DATA or re.fullmatch(r"[\w.]+:\w+", self.file) is not None


class MethodEntry(SpecEntry, frozen=True):
    """A method of a specification and how it is run.

    ``method`` is a registered name, ``package.module:Class``, or a baseline; if it is empty, the entry's own name is
    meant. A baseline scores other rows in place of synthetic ones: ``real rows`` (the training rows), ``test rows``,
    ``other half`` (every second training row, scored against the others), ``uniform rows`` or ``one value`` (copies of
    one row). ``options`` are the method's options: ``target = "target"`` stands for the data set's target, and a value
    ``package.module:Class`` for an instance of that class. ``exact`` lets sites release without noise: NOT PRIVATE. If
    ``trusts`` is given, the method runs only under these trust models. ``balanced`` draws equally many synthetic rows
    of each class of the target. ``role`` says what the method is beside a publication's: a ``replica`` of its
    algorithm, or a method of ``ours`` with the same purpose.
    """

    method: str = ""
    options: dict[str, Any] = {}
    exact: bool = False
    trusts: tuple[str, ...] = ()
    balanced: bool = False
    role: Literal["replica", "ours"] | msgspec.UnsetType = msgspec.UNSET  # in no cell's digest


class PartitionEntry(SpecEntry, frozen=True):
    """A partition of a specification: how rows are split over sites, and the seeds of that draw.

    ``how`` is a partition as in ``fedsynth simulate --partition``, or a function ``package.module:function`` that takes
    (table, number of sites, generator) and returns a table per site. The generator is seeded with all items of
    ``seed``: numbers, and settings of the run by their names (such as "sites").
    """

    how: str
    seed: Words = ("seed", "sites")


class MetricEntry(SpecEntry, frozen=True):
    """A metric of a specification, a function that scores each run, and how its figures are shown.

    ``metric`` is a name that fedsynth knows or ``package.module:function``; if it is empty, the entry's own name is
    meant. ``options`` are passed to the function by name. ``better`` says whether lower or higher figures are better
    ("": neither), ``digits`` how many decimals a page shows.
    """

    metric: str = ""
    options: dict[str, Any] = {}
    better: Literal["", "lower", "higher"] = ""
    digits: int = 3

    @property
    def digest(self) -> str:
        """The digest (8 hex digits) of the function and its options."""
        return _digest([self.metric, self.options])[:8]


class GridEntry(SpecEntry, frozen=True):
    """An entry of a specification's grid: lists of settings, of which all combinations are run.

    Each field takes one value or several. ``None`` takes that of ``[defaults]`` or, if it has none either, all data
    sets and metrics, no noise, random equal parts (iid), 5 sites, and ``federated``; the trust model is that of the
    number of sites (:func:`~fedsynth.trusts.default_trust`), or trusted for a method that does not run under
    it. ``data``,
    ``methods``, ``partition`` and ``metrics`` are names of entries of the specification (partitions also as on the
    command line). ``epsilon`` and ``delta`` are the budget, with the epsilon "none" for no noise; ``trust`` is a trust
    model, with parameters after a colon ("secure:min_honest=9"); ``sites`` is the number of sites. ``seeds`` is the
    number of seeds (0, 1, ...), or a list of them.

    An ``arm`` selects the rows that a method sees: those of all sites (``federated``), of all in one place
    (``pooled``), or of a site alone: each in turn, averaged (``local``), the ``first`` with rows, or the one with a
    number, counted from 1 (``site:2``). Arms other than ``federated`` run with trust ``trusted``, whatever ``trust``
    says. Every arm is evaluated on the rows of all sites.
    """

    data: Texts | None = None
    methods: Texts | None = None
    epsilon: float | str | tuple[float | str, ...] | None = None
    delta: Numbers | None = None
    trust: Texts | None = None
    partition: Texts | None = None
    sites: Wholes | None = None
    arm: Texts | None = None
    seeds: Wholes | None = None
    metrics: Texts | None = None


class Published(SpecEntry, frozen=True):
    """Figures of one method from a table or plot of a publication, to be shown beside ours.

    ``table`` is the publication's name of the table and ``system`` that of the method: a ``baseline`` if it is not the
    publication's subject. ``by`` names the methods of this specification that stand beside it; of those with results,
    the first is the one whose verdict counts. ``axes`` names settings of a run, ``values`` names figures; a tuple in
    ``values`` holds several names of one figure. ``figures`` are nested tables with one level for each setting in
    ``axes``, keyed by its values; the innermost is a list of numbers, one for each item of ``values`` (nan: not
    published). With ``axes = ("dataset", "epsilon")`` and ``values = ("AUC",)``, they could be
    ``{"adult": {"1": [0.85]}}``. All belong only to runs whose settings have the values in ``where``.

    A ``standing`` counts the figures apart, for a ``reason`` that the page gives: they measure something else or in
    another way (``other footing``), on other rows (``other sample``), on rows that are not to be had (``not
    obtainable``), or would cost too much (``not run``).
    """

    axes: tuple[str, ...]
    values: tuple[Texts, ...]
    figures: dict[str, Any]
    table: str = ""
    system: str = ""
    by: tuple[str, ...] = ()
    where: dict[str, Any] = {}
    baseline: bool = False
    standing: Literal["", "other footing", "other sample", "not obtainable", "not run"] = ""
    reason: str = ""

    def __post_init__(self) -> None:
        for axis, home in {"method": "by", "metric": "values"}.items():
            if axis in self.axes or axis in self.where:
                raise ValueError(f"published figures name their {axis} in `{home}`, not as an axis or in `where`")
        if bool(self.standing) is not bool(self.reason):
            raise ValueError("a standing needs a reason, and only a standing does")
        if not self.by and self.standing not in ("not obtainable", "not run"):
            raise ValueError("published figures need `by`, the methods that stand beside them")


class Claim(SpecEntry, frozen=True):
    """A sentence of a publication, ``text`` in our words, that results bear out or not.

    It holds of a figure ``value`` for a combination of the settings in ``over`` if its mean over runs with the settings
    ``better`` is better than over those with the settings ``worse``.
    """

    text: str
    value: str
    better: dict[str, Any]
    worse: dict[str, Any]
    over: tuple[str, ...] = ()


class TableEntry(SpecEntry, frozen=True):
    """A table of the page of results: which cells (runs) it shows, and what its rows and columns are.

    ``text`` stands above it. It shows the cells whose settings have the values in ``where``, with a row for each
    combination of the settings in ``rows`` (empty: data set, method and each setting that differs between the cells)
    and a column for each of those in ``columns``; means are taken over everything else. Beside settings, "value" stands
    for a figure's name, "metric" and "part" for what stands before and after the colon in that name. ``values``
    restricts the table to these figures.
    """

    text: str = ""
    where: dict[str, Any] = {}
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ("value",)
    values: tuple[str, ...] = ()


class PlotEntry(SpecEntry, frozen=True, kw_only=True):
    """A plot of the page of results: the figure named ``value`` over numbers, a line for each setting in ``lines``.

    The numbers are the values of the setting ``x`` or, if ``at`` is given, those that it has for methods by their
    names; ``x`` is then what they mean, in words. ``where`` is that of a :class:`TableEntry`, and means are taken over
    everything else. ``text`` is the plot's title.
    """

    text: str
    value: str
    x: str = "epsilon"
    at: dict[str, float] = {}
    lines: tuple[str, ...] = ("method",)
    where: dict[str, Any] = {}


class Spec(SpecEntry, frozen=True, kw_only=True):
    """A specification of ``fedsynth bench``: ``grid`` lists the runs, the other entries define the names in it.

    ``datasets``, ``methods``, ``partitions`` and ``metrics`` describe these by name; ``defaults`` are settings for
    entries of the grid that leave them out. ``seeds`` is the number of seeds (0, 1, ...) that each combination is run
    with, or a list of them. ``workload``, the marginals to preserve (as ``--workload``), goes to methods that take one.
    ``hold_out`` is the share of its rows that each site keeps from the method. ``noise_seed`` seeds everything inside a
    run, ``rows_seed`` the drawing of synthetic rows; if ``rows_seed`` is empty, they are drawn with the generator that
    drew the partition. Both list numbers, and names of settings of the cell, whose values are used.

    ``title``, ``text``, ``tables``, ``plots`` and ``published`` make the page of results, and ``section`` is the marker
    of its place in another page (``--page``). ``paper`` names the publication whose figures these are, and ``claims``
    are sentences of it.
    """

    title: str = "Benchmark"
    section: str = ""
    paper: str = ""
    text: str = ""
    seeds: Wholes = 5
    workload: str = ""
    hold_out: float = 0.0
    rows_seed: Words = ()
    noise_seed: Words = ("seed",)
    datasets: dict[str, Dataset]
    methods: dict[str, MethodEntry] = {}
    partitions: dict[str, PartitionEntry] = {}
    metrics: dict[str, MetricEntry]
    defaults: GridEntry = GridEntry()
    grid: tuple[GridEntry, ...]
    published: tuple[Published, ...] = ()
    claims: tuple[Claim, ...] = ()
    tables: tuple[TableEntry, ...] = (TableEntry(),)
    plots: tuple[PlotEntry, ...] = ()


class Cell(SpecEntry, frozen=True):
    """One run of a benchmark, by its settings and its seed, as a line of the results names it.

    All are texts as in the specification, except the number of ``sites`` and the ``seed``; those that do not apply, as
    the epsilon of a baseline, are empty.
    """

    dataset: str
    method: str
    epsilon: str
    delta: str
    trust: str
    partition: str
    sites: int
    arm: str
    seed: int

    def __str__(self) -> str:
        """Return it as one line."""
        given = ((axis, getattr(self, axis)) for axis in AXES[2:])
        return f"{self.dataset} {self.method!r} " + " ".join(f"{axis}={value}" for axis, value in given if value != "")


class Case(SpecEntry, frozen=True):
    """One run of a benchmark with all of the specification that its figures depend on, but no content of files."""

    cell: Cell
    dataset: Dataset
    method: MethodEntry
    partition: PartitionEntry
    metrics: dict[str, MetricEntry]
    workload: str
    hold_out: float
    rows_seed: Words
    noise_seed: Words

    @property
    def key(self) -> str:
        """The digest (16 hex digits) of all settings but the metrics, by which the results name this run."""
        method = msgspec.structs.replace(self.method, role=msgspec.UNSET)
        return _digest(msgspec.structs.replace(self, metrics={}, method=method))


def read_spec(text: str) -> Spec:
    """Parse a specification (TOML); raises :class:`~fedsynth.errors.FedsynthError`, which names the invalid entry."""
    try:
        return msgspec.convert(parse_toml(text, "the specification"), Spec)
    except msgspec.ValidationError as error:
        unknown = re.search("unknown field `(.*?)`", str(error))
        known = {field.name for kind in SpecEntry.__subclasses__() for field in msgspec.structs.fields(kind)}
        hint = f"; {nearest(unknown.group(1), known, 'known are')}" if unknown else ""
        raise FedsynthError(f"the specification: {error}{hint}") from error


def entry_named(what: str, name: str, known: Mapping[str, Any]) -> Any:
    """Return ``known[name]``; raises :class:`~fedsynth.errors.FedsynthError`, with the nearest name, without one."""
    if name not in known:
        raise FedsynthError(f"the specification has no {what} named {name!r}; {nearest(name, known, 'there are')}")
    return known[name]


# ---------------------------------------------------------------------------------------------------------------------
# Names


def check_names(spec: Spec) -> None:
    """Raise :class:`~fedsynth.errors.FedsynthError`, which names the entry, for a name that no run could use.

    The names are those of methods, metrics, partitions, trust models and their options; functions and classes of other
    modules are imported. Names of columns are checked when a cell reads its rows, before it fits.
    """
    for name, method in spec.methods.items():
        with _within(f"[methods.{name}]"):
            if (found := _method(spec, name).method) not in FLOORS:
                method_options(method, found, "target")
            for trust in method.trusts:
                parse_trust(trust)
    for name, partition in spec.partitions.items():
        with _within(f"[partitions.{name}]"):
            _check_partition(partition.how)
    for name, metric in spec.metrics.items():
        with _within(f"[metrics.{name}]"):
            _check_metric(metric.metric or name, metric.options)
    names = {*spec.metrics, *(metric.metric for metric in spec.metrics.values())} - {""}
    for name, dataset in spec.datasets.items():
        for about, options in dataset.metrics.items():
            with _within(f"[datasets.{name}.metrics.{about}]"):
                entry_named("metric", about, dict.fromkeys(names))
                _check_metric(spec.metrics.get(about, MetricEntry()).metric or about, options)
    for number, claim in enumerate(spec.claims, 1):
        with _within(f"[[claims]] {number}"):
            if not entry_named("metric", claim.value.partition(": ")[0], spec.metrics).better:
                raise FedsynthError(f"no figure of {claim.value!r} is better than another; set `better` for its metric")
    for number, entry in enumerate(spec.grid, 1):
        with _within(f"[[grid]] {number}"):
            filled = _filled(spec, entry)
            for trust in several(filled.trust, ()):
                parse_trust(trust)
            for how in several(filled.partition, ()):
                if how not in spec.partitions:
                    _check_partition(how, spec.partitions)


@contextmanager
def _within(place: str) -> Iterator[None]:
    try:
        yield
    except FedsynthError as error:
        raise FedsynthError(f"{place}: {error}") from error


def _check_option(name: str, known: Iterable[str]) -> None:
    if name not in (names := list(known)):
        raise Unsupported(f"no option named {name!r}; {nearest(name, names, 'there are')}")


def method_options(entry: MethodEntry, method: str, target: str, schema: Schema | None = None) -> dict[str, Any]:
    """Return the options of a method as arguments of its class; ``target`` is the column to predict.

    Raises the errors of :func:`~fedsynth.methods.registry.read_options`; columns are checked if there is a ``schema``.
    """
    kind = find_method(method).kind
    classes = {name: value for name, value in entry.options.items() if isinstance(value, str) and ":" in value}
    for name in classes:
        _check_option(name, (one.name for one in dataclasses.fields(kind)))
    plain = {
        name: target if (name, value) == ("target", "target") else value
        for name, value in entry.options.items()
        if name not in classes
    }
    return read_options(method, kind, plain, schema) | {name: named(place)() for name, place in classes.items()}


def parse_trust(text: str) -> Trust:
    """Return a trust model written as in a grid, such as "secure:min_honest=9"."""
    name, _, numbers = text.partition(":")
    return trust_named(name, dict(parse_option(one) for one in numbers.split(",") if one))


def is_function(partition: str) -> bool:
    """Return whether a partition is a function, written as ``package.module:function``."""
    return ":" in partition and "." in partition.partition(":")[0]


def _check_partition(how: str, entries: Mapping[str, Any] | None = None) -> None:
    if is_function(how):
        named(how)
    elif how.partition(":")[0] not in ("column", "values"):  # these need the columns of the data
        try:
            parse_partition(how, None)
        except Unsupported as error:
            hint = f"; of [partitions], {nearest(how, entries)}" if entries else ""
            raise Unsupported(f"{error}{hint}") from error


def _check_metric(name: str, options: Mapping[str, Any]) -> None:
    found = find_metric(name)
    of_run = inspect.signature(found)
    known = list(of_run.parameters.values())[1:]
    for option, value in options.items():
        if not any(one.kind is one.VAR_KEYWORD for one in known):
            _check_option(option, (one.name for one in known))
        if option in ("suite", "suites"):
            for suite in several(value, ()) if isinstance(value, str) else value:
                find_suite(suite)


# ---------------------------------------------------------------------------------------------------------------------
# Cells


def cases(spec: Spec, seeds: int | None = None) -> list[Case]:
    """Expand a specification into its runs, each once, ordered by seed.

    Of each entry of the grid, only the first ``seeds`` seeds are taken (``None``: all). Combinations that a method
    cannot run under are left out. Raises :class:`~fedsynth.errors.FedsynthError` for an unknown name, an epsilon
    without a delta, and an entry without methods.
    """
    found: dict[Cell, Case] = {}
    for number, entry in enumerate(spec.grid, 1):
        with _within(f"[[grid]] {number}"):
            for case in _multiplied(spec, _filled(spec, entry), seeds):
                found[case.cell] = case if case.cell not in found else _merged(found[case.cell], case)
    return sorted(found.values(), key=lambda case: case.cell.seed)


def _filled(spec: Spec, entry: GridEntry) -> GridEntry:
    """Return an entry of the grid with the specification's defaults in place of what it leaves out."""
    unset = [name for name in GridEntry.__struct_fields__ if getattr(entry, name) is None]
    return msgspec.structs.replace(entry, **{name: getattr(spec.defaults, name) for name in unset})


def _multiplied(spec: Spec, entry: GridEntry, seeds: int | None) -> Iterator[Case]:
    if entry.methods is None:
        raise FedsynthError("the entry names no methods; add methods = [...]")
    metrics = {name: entry_named("metric", name, spec.metrics) for name in several(entry.metrics, tuple(spec.metrics))}
    which = spec.seeds if entry.seeds is None else entry.seeds
    drawn = tuple(range(which)) if isinstance(which, int) else which
    epsilons = [_text(one) for one in several(entry.epsilon, ("none",))]
    deltas = [_text(one) for one in several(entry.delta, ("",))]
    # Once a method, not once a cell: installed packages are asked for theirs.
    methods = {name: _method(spec, name) for name in several(entry.methods, ())}
    admits = cache(lambda name, trust: _admits(methods[name], trust))
    for dataset, name, epsilon, delta, trust, partition, sites, arm, seed in itertools.product(
        several(entry.data, tuple(spec.datasets)),
        methods,
        epsilons,
        deltas,
        several(entry.trust, ("",)),
        several(entry.partition, ("iid",)),
        several(entry.sites, (5,)),
        several(entry.arm, ("federated",)),
        drawn[:seeds],
    ):
        described: Dataset = entry_named("data set", dataset, spec.datasets)
        method = methods[name]
        if not trust and method.method not in FLOORS:
            trust = usual if admits(name, usual := default_trust(sites)) else "trusted"
        cell = Cell(
            dataset=dataset,
            method=name,
            epsilon=epsilon,
            delta="" if epsilon == "none" else delta,
            trust=trust,
            partition=partition,
            sites=sites,
            arm=arm,
            seed=seed,
        )
        if method.method in FLOORS:
            cell = msgspec.structs.replace(cell, epsilon="", delta="", trust="", arm="")
        elif epsilon != "none" and not delta:
            raise FedsynthError(f"{name} has an epsilon and no delta, which is never assumed; add delta = 1e-6, or 0")
        elif arm != "federated":
            cell = msgspec.structs.replace(cell, trust="trusted")
        elif not admits(name, trust):
            continue
        if cell.arm and not _is_arm(cell.arm, sites):
            hint = nearest(arm, (*ARMS, f"site:1 to site:{sites}"))
            raise FedsynthError(f"no arm named {arm!r} over {sites} sites; {hint}")
        if cell.arm == "pooled" or sites == 1:
            cell = msgspec.structs.replace(cell, sites=1, partition="")
        placed = spec.partitions.get(partition, PartitionEntry(how=partition))
        yield Case(
            cell=cell,
            dataset=msgspec.structs.replace(described, metrics={}, note=""),
            method=method,
            partition=placed if cell.partition else msgspec.structs.replace(placed, how=""),
            metrics={one: _with_options(one, metrics[one], described) for one in metrics},
            workload=spec.workload,
            hold_out=spec.hold_out,
            rows_seed=spec.rows_seed,
            noise_seed=spec.noise_seed,
        )


def _is_arm(arm: str, sites: int) -> bool:
    return arm in ARMS or arm in {f"site:{number + 1}" for number in range(sites)}


def several(value: Any, otherwise: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return an optional setting of one value or a tuple of values as a tuple; ``otherwise`` if it is ``None``."""
    if value is None:
        return otherwise
    return value if isinstance(value, tuple) else (value,)


def _text(number: float | str) -> str:
    return number if isinstance(number, str) else f"{number:.12g}"


def _method(spec: Spec, name: str) -> MethodEntry:
    entry: MethodEntry = spec.methods.get(name, MethodEntry())
    entry = msgspec.structs.replace(entry, method=entry.method or name)
    if ":" not in entry.method:
        entry_named("method", entry.method, dict.fromkeys((*method_names(), *FLOORS)))
    return entry


def _admits(method: MethodEntry, trust: str) -> bool:
    name = trust.partition(":")[0]
    return name in method.trusts if method.trusts else find_method(method.method).runs_under(name)


def _with_options(name: str, entry: MetricEntry, dataset: Dataset) -> MetricEntry:
    function = entry.metric or name
    options = {**entry.options, **dataset.metrics.get(function, {}), **dataset.metrics.get(name, {})}
    return MetricEntry(metric=function, options=options)  # digits and the like change no figure


def _merged(one: Case, two: Case) -> Case:
    return msgspec.structs.replace(one, metrics={**one.metrics, **two.metrics})


def parse_only(texts: Iterable[str]) -> dict[str, set[str]]:
    """Parse the texts given by ``--only``, such as "dataset=adult,method=flaim", to the admitted values by setting.

    A setting that is named twice admits both values. Raises :class:`~fedsynth.errors.InvalidParameter` for another form
    and for an unknown setting.
    """
    found: dict[str, set[str]] = {}
    for text in texts:
        for part in re.split(r",(?=\w+=)", text):  # names of methods may hold commas
            axis, mark, value = part.partition("=")
            if not mark or axis not in AXES:
                raise InvalidParameter(f"--only {part!r} is not SETTING=VALUE; {nearest(axis, AXES)}")
            found.setdefault(axis, set()).add(value)
    return found


def admitted(cell: Cell, only: Mapping[str, set[str]]) -> bool:
    """Return whether a cell has one of the values in each setting that ``only`` (:func:`parse_only`) names."""
    return all(str(getattr(cell, axis)) in values for axis, values in only.items())


def data_file(dataset: Dataset, folder: Path) -> Path:
    """Return the path of a data set's file; raises :class:`~fedsynth.errors.FedsynthError` if it is missing."""
    file = folder / dataset.file
    if not dataset.made and not file.is_file():
        raise FedsynthError(f"{file} does not exist; name the data's folder with --data-dir or FEDSYNTH_DATA")
    return file


def _digest(content: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:16]
