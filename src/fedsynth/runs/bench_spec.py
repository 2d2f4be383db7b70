"""Specifications of benchmarks: TOML that is expanded into cells, each one run with one seed."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from fedsynth.errors import FedsynthError, InvalidParameter, nearest
from fedsynth.evaluation.metrics import FLOORS
from fedsynth.files import parse_toml
from fedsynth.methods import find_method, method_names
from fedsynth.runs.job import DEMO_DATA

AXES = ("dataset", "method", "epsilon", "delta", "trust", "partition", "sites", "arm", "seed")

ARMS = ("federated", "pooled", "local", "first")  # and site:1, site:2, ...

Words = tuple[int | Literal["dataset", "method", "partition", "sites", "arm", "seed"], ...]
Texts = str | tuple[str, ...]
Numbers = float | tuple[float, ...]
Wholes = int | tuple[int, ...]


# ---------------------------------------------------------------------------------------------------------------------
# The specification


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Part of a specification; unknown keys are refused."""


class Rules(Entry, frozen=True):
    """Rules to make a public schema from the whole file, as in published experiments; not for private data.

    Numbers have ``bins`` equal bins between their smallest and their largest value, with ``cap_bins`` no more than they
    have distinct values. A column of numbers with at most ``categories`` distinct values is a category, and so is the
    target if ``target_is_category``; missing text is the category "?". ``codes`` are categories whatever number of
    values they have, and ``constants`` keeps columns of one value, which are dropped else. ``integers`` tells whole
    numbers apart;
    ``decimals`` rounds the others. The bins of ``doubling`` columns end at powers of two. ``domain`` is a JSON file of
    sizes, for columns of integer codes.
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


class Split(Entry, frozen=True):
    """The test split: a share or a number of all rows, drawn by a fixed ``seed`` or by the run's.

    ``train_share`` draws the training rows with pandas' generator instead, as the published code of FLAIM does.
    """

    test_share: float | None = None
    test_rows: int | None = None
    train_share: float | None = None
    seed: int | None = None


class Sample(Entry, frozen=True):
    """A random share of the file's rows, drawn with pandas' generator."""

    share: float
    seed: int


class Dataset(Entry, frozen=True):
    """A data file and its preprocessing: columns to drop, rows to draw, a schema, a split.

    ``schema`` is a schema file, "" for a drafted one, or the rules to make one of the whole file. Of the file's rows,
    those of the ``labels`` commonest values of the target stay, then ``sample``, then ``rows`` of them at random.
    ``train_rows`` are drawn from the training rows with replacement, for measuring costs. Synthetic rows are
    ``synthetic_share`` times the training rows. ``metrics`` holds options of metrics, by their names or by those of
    their functions, for this data set alone.
    """

    file: str
    target: str = ""
    drop: tuple[str, ...] = ()
    labels: int | None = None
    sample: Sample | None = None
    rows: int | None = None
    schema: Rules | str = Rules()
    split: Split = Split(test_share=0.2)
    train_rows: int | None = None
    synthetic_share: float = 1.0
    metrics: dict[str, dict[str, Any]] = {}
    note: str = ""


class MethodEntry(Entry, frozen=True):
    """A method: a registered name, a floor (``real rows``, ``uniform rows``, ...) or ``package.module:Class``.

    The option ``target = "target"`` becomes the position of the target, an option ``package.module:Class`` an instance
    of it. ``exact`` lets sites release without noise: NOT PRIVATE. It runs under ``trusts`` alone, if they are given.
    ``balanced`` draws as many rows of each class of the target.
    """

    method: str = ""
    options: dict[str, Any] = {}
    exact: bool = False
    trusts: tuple[str, ...] = ()
    balanced: bool = False


class PartitionEntry(Entry, frozen=True):
    """A partition as ``fedsynth simulate`` knows it, or ``package.module:function`` of (table, sites, generator).

    ``seed`` lists the seeds of its generator: numbers, and names of a cell's parts.
    """

    how: str
    seed: Words = ("seed", "sites")


class MetricEntry(Entry, frozen=True):
    """A metric with its options, whether less or more of it is ``better``, and how many digits a page shows."""

    metric: str = ""
    options: dict[str, Any] = {}
    better: Literal["", "lower", "higher"] = ""
    digits: int = 3


class Grid(Entry, frozen=True):
    """Lists of which all combinations are run. Entries that are left out are taken from ``[defaults]``.

    An ``arm`` selects the rows that a method sees: those of all sites (``federated``), of all in one place
    (``pooled``), or of a site alone: each in turn, averaged (``local``), the ``first`` with rows, or the one of a
    number (``site:2``). Every arm is evaluated on the rows of all sites.
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


class Published(Entry, frozen=True):
    """Published figures: nested tables keyed by ``axes`` that end in lists of numbers, one for each of ``values``.

    A value may have several names. The figures stand beside cells that ``where`` admits.
    """

    axes: tuple[str, ...]
    values: tuple[Texts, ...]
    figures: dict[str, Any]
    where: dict[str, Any] = {}


class TableEntry(Entry, frozen=True):
    """A table of the page: the cells that ``where`` admits, grouped by ``rows`` and ``columns``, all else averaged.

    Both name parts of a cell, or ``value`` (a metric with its part), ``metric`` and ``part``. ``values`` chooses some.
    With ``reached``, it is the share of cells at or better than the published figure, by these parts of a cell;
    ``reference`` names the methods whose own reaching counts beside it.
    """

    text: str = ""
    where: dict[str, Any] = {}
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ("value",)
    values: tuple[str, ...] = ()
    reached: tuple[str, ...] = ()
    reference: tuple[str, ...] = ()


class Spec(Entry, frozen=True, kw_only=True):
    """A benchmark: ``grid`` lists the runs, the other entries define the names in it.

    ``seeds`` is how many, or which. ``hold_out`` is the share of rows that sites keep from the synthesizer.
    ``workload`` goes to methods that have one. ``rows_seed`` seeds the drawing of rows, which otherwise goes on with
    the partition's generator, and ``noise_seed`` everything inside the run. ``section`` marks the part of a page.
    """

    title: str = "Benchmark"
    section: str = ""
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
    defaults: Grid = Grid()
    grid: tuple[Grid, ...]
    published: tuple[Published, ...] = ()
    tables: tuple[TableEntry, ...] = (TableEntry(),)


class Cell(Entry, frozen=True):
    """One run with one seed, as named in a line of the results; parts that do not apply are empty."""

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


class Case(Entry, frozen=True):
    """A cell with everything that its figures depend on, except the file's content."""

    cell: Cell
    dataset: Dataset
    method: MethodEntry
    partition: PartitionEntry
    metrics: dict[str, MetricEntry]
    workload: str
    hold_out: float
    rows_seed: Words
    noise_seed: Words

    def digest(self, folder: Path) -> str:
        """Return the digest that identifies the cell's lines; it changes with the settings and with the file."""
        content = msgspec.json.encode(self, order="sorted")
        return hashlib.sha256(content + _file_digest(data_file(self.dataset, folder)).encode()).hexdigest()[:16]


def read_spec(text: str) -> Spec:
    """Parse a specification (TOML); raises :class:`FedsynthError` that names the invalid entry."""
    try:
        return msgspec.convert(parse_toml(text, "the specification"), Spec)
    except msgspec.ValidationError as error:
        unknown = re.search("unknown field `(.*?)`", str(error))
        known = {field.name for kind in Entry.__subclasses__() for field in msgspec.structs.fields(kind)}
        hint = f"; {nearest(unknown.group(1), known, 'known are')}" if unknown else ""
        raise FedsynthError(f"the specification: {error}{hint}") from error


def entry_named(what: str, name: str, known: Mapping[str, Any]) -> Any:
    """Return the entry of that name; raises :class:`FedsynthError`, with the nearest name, if there is none."""
    if name not in known:
        raise FedsynthError(f"the specification has no {what} named {name!r}; {nearest(name, known, 'there are')}")
    return known[name]


# ---------------------------------------------------------------------------------------------------------------------
# Cells


def cases(spec: Spec, seeds: int | None = None) -> list[Case]:
    """Return every cell of the grid once, seed by seed; with ``seeds``, at most the first so many of each entry.

    Combinations that a method cannot run under are left out. Raises :class:`FedsynthError` for an unknown name
    and for a budget without its delta.
    """
    found: dict[Cell, Case] = {}
    for entry in spec.grid:
        filled = msgspec.structs.replace(
            entry, **{name: getattr(spec.defaults, name) for name in Grid.__struct_fields__ if _unset(entry, name)}
        )
        for case in _multiplied(spec, filled, seeds):
            found[case.cell] = case if case.cell not in found else _merged(found[case.cell], case)
    return sorted(found.values(), key=lambda case: case.cell.seed)


def _unset(entry: Grid, name: str) -> bool:
    return getattr(entry, name) is None


def _multiplied(spec: Spec, entry: Grid, seeds: int | None) -> Iterator[Case]:
    if entry.methods is None:
        raise FedsynthError("an entry of [[grid]] names no methods; add methods = [...]")
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
        several(entry.trust, ("trusted",)),
        several(entry.partition, ("iid",)),
        several(entry.sites, (5,)),
        several(entry.arm, ("federated",)),
        drawn[:seeds],
    ):
        described: Dataset = entry_named("data set", dataset, spec.datasets)
        method = methods[name]
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
    """Return a value that may be one or a tuple as a tuple."""
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
    """Return a cell that two entries of the grid ask for, with the metrics of both."""
    return msgspec.structs.replace(one, metrics={**one.metrics, **two.metrics})


def parse_only(texts: Iterable[str]) -> dict[str, set[str]]:
    """Parse ``axis=value,axis=value`` to the admitted values by axis; an axis named twice admits both values."""
    found: dict[str, set[str]] = {}
    for text in texts:
        for part in re.split(r",(?=\w+=)", text):  # names of methods may hold commas
            axis, mark, value = part.partition("=")
            if not mark or axis not in AXES:
                raise InvalidParameter(f"--only {part!r} is not AXIS=VALUE; {nearest(axis, AXES)}")
            found.setdefault(axis, set()).add(value)
    return found


def admitted(cell: Cell, only: Mapping[str, set[str]]) -> bool:
    """Whether ``--only`` admits a cell."""
    return all(str(getattr(cell, axis)) in values for axis, values in only.items())


def data_file(dataset: Dataset, folder: Path) -> Path:
    """Return the path of a data set's file; raises :class:`FedsynthError` if it is missing."""
    file = folder / dataset.file
    if dataset.file != DEMO_DATA and not file.is_file():
        raise FedsynthError(f"{file} does not exist; name the data's folder with --data-dir or FEDSYNTH_DATA")
    return file


@cache
def _file_digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else file.name
