"""Benchmarks: a grid of methods, budgets, trust models, partitions, sites, data sets and seeds, from one TOML file.

A specification is expanded into cells; a cell is one run with one seed, measured by the specification's metrics.
Results are appended to a table as cells finish, so that an interrupted benchmark can be resumed. Nothing here is
private: data sets are split, schemas made and figures computed from real rows, and all noise is seeded.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import math
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd

from fedsynth.bench.floors import FLOORS
from fedsynth.bench.metrics import FinishedRun, find_metric
from fedsynth.bench.results import (
    RESULTS,
    CellRecord,
    ResultLine,
    append,
    by_key,
    code,
    figures_of,
    kernel,
    open_results,
    pin,
    read_records,
    recorded,
    unmeasured,
)
from fedsynth.bench.spec import (
    Case,
    Cell,
    Dataset,
    SchemaRules,
    Spec,
    SplitEntry,
    Words,
    data_file,
    entry_named,
    is_function,
    method_options,
    parse_trust,
)
from fedsynth.data.draft import draft_schema, guess_types, without_missing
from fedsynth.data.partition import parse_partition, split
from fedsynth.data.read import log_findings, read_fitting, read_frame
from fedsynth.data.sources.files import is_csv
from fedsynth.datasets import rand_hie
from fedsynth.encoding import encode
from fedsynth.errors import FedsynthError, Unsupported
from fedsynth.evaluation.augmentation.rows import hold_out
from fedsynth.federation.simulate import federate
from fedsynth.files import load_object
from fedsynth.methods import find_method
from fedsynth.plugins import named
from fedsynth.privacy.cost import Budget
from fedsynth.progress import Progress, ignore_progress
from fedsynth.rows import Table
from fedsynth.runs.job import DEMO_DATA, parse_workload
from fedsynth.schema import Boolean, Categorical, Column, Numeric, Schema

_SHARED = 6  # splits kept in the memory of a process

# ---------------------------------------------------------------------------------------------------------------------
# Data sets


def source_digest(dataset: Dataset, folder: Path) -> str:
    """Return the digest (16 hex digits) of what a data set's rows and schema are read from or made of.

    That is its file, or the frame that its function makes, and its schema file or domain. Raises
    :class:`~fedsynth.errors.FedsynthError` for a missing file.
    """
    described = dataset.schema if isinstance(dataset.schema, str) else dataset.schema.domain
    return _source_digest(dataset.file if dataset.made else data_file(dataset, folder), described, folder)


@cache
def _source_digest(source: str | Path, described: str, folder: Path) -> str:
    found = hashlib.sha256()
    if isinstance(source, str):
        frame = _made_frame(source)
        found.update(f"{[(str(name), str(kind)) for name, kind in frame.dtypes.items()]}".encode())
        found.update(frame.to_csv(index=False).encode())
    else:
        found.update(source.read_bytes())
    found.update((folder / described).read_bytes() if described else b"")
    return found.hexdigest()[:16]


@cache
def _made_frame(file: str) -> pd.DataFrame:
    made: pd.DataFrame = rand_hie() if file == DEMO_DATA else named(file)()
    return made


@cache
def _loaded(description: bytes, folder: Path) -> tuple[Table, np.random.Generator]:
    """Return a data set's rows, and the generator that has drawn them."""
    dataset = msgspec.json.decode(description, type=Dataset)
    source = data_file(dataset, folder)
    kind = None if isinstance(dataset.records, msgspec.UnsetType) else dataset.records
    rng = np.random.default_rng(dataset.split.seed or 0)
    if isinstance(dataset.schema, str) and dataset.schema:
        return read_fitting(source, Schema.load(folder / dataset.schema), records=kind), rng
    if dataset.made:
        frame = _made_frame(dataset.file)
    else:
        frame = read_frame(source, records=kind, strict=True)
        if is_csv(source):
            frame = guess_types(frame)
        else:  # types of its own
            frame = pd.DataFrame({name: without_missing(frame[name]) for name in frame})
    frame = frame.drop(columns=list(dataset.drop))
    if dataset.labels is not None:
        frame = frame[frame[dataset.target].isin(frame[dataset.target].value_counts().index[: dataset.labels])]
    if dataset.sample is not None:
        frame = frame.sample(frac=dataset.sample.share, random_state=dataset.sample.seed)
    if dataset.rows is not None:
        frame = frame.iloc[rng.permutation(len(frame))[: dataset.rows]]
    if isinstance(dataset.schema, str):
        table = encode(draft_schema(frame, rare=1).schema, frame)  # the tables are public
        log_findings(dataset.file, table)
        return table, rng
    if not (dataset.schema.constants or dataset.schema.domain):
        frame = frame[[column for column in frame if frame[column].nunique(dropna=False) > 1]]
    frame = frame.reset_index(drop=True)
    table = encode(_made_schema(frame, dataset.target, dataset.schema, folder), frame)
    log_findings(dataset.file, table)
    return table, rng


def _made_schema(frame: pd.DataFrame, target: str, rules: SchemaRules, folder: Path) -> Schema:
    """Return a schema with the bounds and categories of the whole file; missing text in ``frame`` becomes "?"."""
    if rules.domain:
        sizes = load_object(folder / rules.domain, "a domain: sizes by column")
        if not all(type(size) is int for size in sizes.values()):
            raise FedsynthError(f"{rules.domain}: give each column its number of values")
        columns: list[Column] = [Categorical(name, tuple(range(size))) for name, size in sizes.items()]
        return Schema(tuple(columns), rules.missing_values)
    columns = []
    for column in frame:
        name, values = str(column), frame[column]
        distinct = values.nunique()
        code = (name == target and rules.target_is_category) or name in (rules.codes or ())
        if pd.api.types.is_bool_dtype(values):
            columns.append(Boolean(name))
        elif pd.api.types.is_numeric_dtype(values) and not code and distinct > rules.categories:
            low, high, known = float(values.min()), float(values.max()), values.dropna()
            inner = (2.0**power for power in range(64) if low < 2**power < high)
            whole = rules.integers and bool((known == known.round()).all())
            columns.append(
                Numeric(
                    name,
                    low,
                    high,
                    edges=(low, *inner, high) if name in rules.doubling else None,
                    bins=int(min(rules.bins, distinct)) if rules.cap_bins else rules.bins,
                    integer=whole,
                    decimals=None if whole else rules.decimals,
                    missing=bool(values.isna().any()),
                )
            )
        else:
            if not pd.api.types.is_numeric_dtype(values):
                frame[column] = values = values.fillna("?")
            columns.append(
                Categorical(name, tuple(sorted(values.dropna().unique().tolist())), missing=bool(values.isna().any()))
            )
    return Schema(tuple(columns), rules.missing_values)


def training_and_test(spec: Spec, dataset: str, folder: Path, seed: int = 0) -> tuple[Table, Table | None]:
    """Return the training rows and the test rows (``None`` without a split) of the data set named ``dataset``.

    ``seed`` draws the split unless the data set fixes a seed of its own; with ``train_rows``, the draw with replacement
    is another one than the cell's. Raises :class:`~fedsynth.errors.FedsynthError` for an unknown name or a missing
    file.
    """
    described = msgspec.structs.replace(entry_named("data set", dataset, spec.datasets), metrics={}, note="")
    own = seed if described.split.seed is None else None
    rows = _cut(msgspec.json.encode(described), folder, own, "", 1, 0.0, (seed,))
    return rows.train, rows.test


class CellRows(NamedTuple):
    """The rows of a cell, which other cells may share.

    ``train`` are the training rows of all sites together. ``sites`` holds each site's rows, and ``held`` those that
    each site keeps from the method (empty without a hold-out). ``rng`` has drawn the partition; the cell draws its
    synthetic rows from it next, unless the specification gives a ``rows_seed``.
    """

    train: Table
    test: Table | None
    sites: list[Table]
    held: list[Table]
    rng: np.random.Generator


def _shared(case: Case, folder: Path | Table) -> CellRows:
    """Return a cell's rows, with a generator of its own."""
    found = _cut(
        msgspec.json.encode(case.dataset),
        folder,
        case.cell.seed if case.dataset.split.seed is None else None,
        case.partition.how,
        case.cell.sites,
        case.hold_out,
        _entropy(case.partition.seed, case.cell),
    )
    return found._replace(rng=copy.deepcopy(found.rng))


@lru_cache(_SHARED)
def _cut(
    description: bytes,
    folder: Path | Table,
    seed: int | None,
    how: str,
    sites: int,
    share: float,
    entropy: tuple[int, ...],
) -> CellRows:
    dataset = msgspec.json.decode(description, type=Dataset)
    if isinstance(folder, Table):
        table, drawn = folder, np.random.default_rng(dataset.split.seed or 0)
    else:
        table, drawn = _loaded(description, folder)
    if dataset.target:
        table.schema.index(dataset.target)  # metrics would find a misspelt one only after the fit
    train, test = _split(table, dataset.split, copy.deepcopy(drawn) if seed is None else np.random.default_rng(seed))
    rng = np.random.default_rng(entropy)
    if dataset.train_rows is not None:
        train = train.take(rng.integers(0, len(train), dataset.train_rows))
    parts = [train]
    if is_function(how):
        parts = list(named(how)(train, sites, rng))
    elif how:
        parts = split(train, sites, parse_partition(how, train.schema, dataset.target), rng)
    kept, held = hold_out(parts, share, rng) if share else (parts, [])
    return CellRows(train, test, kept, held, rng)


def _split(table: Table, how: SplitEntry, rng: np.random.Generator) -> tuple[Table, Table | None]:
    if how.train_share is not None:
        rows = pd.Series(range(len(table)))
        train = rows.sample(frac=how.train_share, random_state=how.seed)
        return table.take(train.to_numpy()), table.take(rows.drop(train.index).to_numpy())
    tested = how.test_rows if how.test_rows is not None else round((how.test_share or 0.0) * len(table))
    order = rng.permutation(len(table))
    return table.take(order[tested:]), table.take(order[:tested]) if tested else None


def _entropy(words: Words, cell: Cell) -> tuple[int, ...]:
    """Return what a generator is seeded with: numbers as they are, parts of the cell as numbers."""
    parts = [getattr(cell, word) if isinstance(word, str) else word for word in words]
    return tuple(part if isinstance(part, int) else zlib.crc32(part.encode()) for part in parts)


# ---------------------------------------------------------------------------------------------------------------------
# One cell


def measure(case: Case, folder: Path | Table) -> dict[str, float]:
    """Run one cell of a grid in this process, and return its figures by name.

    ``folder`` holds the data files, or is the data set's table itself. A figure is named after its metric, or "metric:
    part" if the metric returns several numbers. For the arm "local", figures are means over the sites that have rows.
    """
    found: list[dict[str, float]] = []
    for run in _runs(case, folder):
        values: dict[str, float] = {}
        for name, entry in case.metrics.items():
            value = find_metric(entry.metric)(run, **entry.options)
            parts = value.items() if isinstance(value, Mapping) else (("", value),)
            values |= {f"{name}: {part}" if part else name: float(one) for part, one in parts}
        found.append(values)
    return {name: float(np.mean([values[name] for values in found])) for name in found[0]}


def _runs(case: Case, folder: Path | Table) -> Iterator[FinishedRun]:
    """Yield the cell's run, or that of each site alone."""
    cell, rows = case.cell, _shared(case, folder)
    groups = [rows.sites]
    if cell.arm in ("local", "first"):
        alone = [[part] for part in rows.sites if len(part)]
        groups = alone[:1] if cell.arm == "first" else alone
    elif cell.arm.startswith("site:"):
        groups = [[rows.sites[int(cell.arm[5:]) - 1]]]
    seeds = _entropy(case.noise_seed, cell)
    seed = seeds[0] if len(seeds) == 1 else int(np.random.default_rng(seeds).integers(2**63))
    rng = np.random.default_rng(_entropy(case.rows_seed, cell)) if case.rows_seed else rows.rng
    for number, sites in enumerate(groups):
        run_seed = seed if not number else int(np.random.default_rng([seed, number]).integers(2**63))
        yield _run(case, rows, sites, run_seed, rng)


def _run(case: Case, rows: CellRows, sites: list[Table], seed: int, rng: np.random.Generator) -> FinishedRun:
    cell, schema = case.cell, rows.train.schema
    workload = parse_workload(case.workload or "2", len(schema.sizes))
    about: dict[str, Any] = {
        "sites": tuple(sites),
        "held": tuple(rows.held),
        "target": case.dataset.target,
        "workload": workload,
        "seed": cell.seed,
    }
    _reset_peak()
    began = time.process_time()
    if case.method.method in FLOORS:
        if rows.test is None and case.method.method == "test rows":
            raise Unsupported("there are no test rows; give the data set a split")
        real, synthetic = FLOORS[case.method.method](rows.train, rows.test or rows.train, rng)
    else:
        real = rows.train
        declared = find_method(case.method.method)
        options = method_options(case.method, case.method.method, case.dataset.target, schema)
        if case.workload and any(one.name == "workload" for one in dataclasses.fields(declared.kind)):
            options["workload"] = workload
        federation = federate(
            sites,
            schema,
            Budget.none() if cell.epsilon == "none" else Budget(float(cell.epsilon), float(cell.delta)),
            trust=parse_trust(cell.trust),
            seed=seed,
            exact=case.method.exact or not declared.private,
            queries=declared.queries,
            weak_delta=True,  # scores of real rows, which nothing protects
        )
        synthesizer = declared.kind(**options).fit(federation)
        count = round(case.dataset.synthetic_share * sum(len(part) for part in rows.sites))
        if case.method.balanced:
            frame = synthesizer.sample_balanced(case.dataset.target, count, rng)
        else:
            frame = synthesizer.sample(count, rng)
        synthetic = encode(schema, frame)
        about |= {"synthesizer": synthesizer, "ledger": federation.ledger}
        about["among_servers"] = federation.trust.traffic.sent
    about["seconds"] = time.process_time() - began
    about["megabytes"] = _peak()
    fresh = None
    if rows.test is not None:
        fresh = synthetic.take(rng.permutation(len(synthetic))[: len(rows.test)])
    return FinishedRun(real, synthetic, rows.test, fresh, **about)


def _reset_peak() -> None:
    """Reset the process's peak memory if the system allows; otherwise the peak includes earlier cells."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_bytes(b"5")


def _peak() -> float:
    """Return the process's peak memory in MiB since the last reset; NaN on Windows, which does not say it."""
    with suppress(OSError):
        if found := re.search(rb"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_bytes()):
            return int(found.group(1)) / 2**10
    try:
        import resource
    except ImportError:
        return math.nan
    unit = 1 if sys.platform == "darwin" else 2**10  # bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


# ---------------------------------------------------------------------------------------------------------------------
# Many cells


class Outcome(NamedTuple):
    """What became of a cell: its figures, CPU seconds and kernel of linear algebra, or else why it failed."""

    figures: Mapping[str, float]
    seconds: float = 0.0
    kernel: str = ""
    error: str = ""


def run_cases(todo: Sequence[Case], folder: Path, jobs: int = 1) -> Iterator[tuple[Case, Outcome]]:
    """Run cells, and yield each with its outcome as it finishes.

    ``jobs`` processes run the cells, never this one, whose libraries may have another kernel (:func:`~fedsynth.bench.
    results.pin`). A cell that fails does not stop the others, nor does a process that dies, as for want of memory.
    """
    pin()
    waiting = deque(todo)
    while waiting:
        running: dict[Future[Outcome], Case] = {}
        with _pool(jobs) as pool, suppress(BrokenProcessPool):  # then a new pool goes on with the others
            while running or waiting:
                while waiting and len(running) < jobs:
                    running[pool.submit(_outcome, waiting[0], folder)] = waiting[0]
                    waiting.popleft()
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    outcome = future.result()
                    yield running.pop(future), outcome
        died = Outcome({}, error="its process, or one beside it, died: out of memory?")
        yield from ((case, died) for case in running.values())


@contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a process pool whose processes end with this one, however that ends; it alone handles Ctrl-C."""
    context = multiprocessing.get_context("spawn")
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_start)
    try:
        yield pool
    except BaseException:
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


def _outcome(case: Case, folder: Path) -> Outcome:
    began = time.process_time()
    try:
        figures = measure(case, folder)
    except Exception as error:  # any error of a method or a metric is the outcome of its cell
        return Outcome({}, error=" ".join(f"{type(error).__name__}: {error}".split()))
    return Outcome(figures, time.process_time() - began, kernel())


def run_grid(
    todo: Sequence[Case], folder: Path, out: Path, jobs: int, progress: Progress = ignore_progress
) -> tuple[int, dict[Cell, str]]:
    """Run what has no results yet of cells (:func:`run_cases`), and append it to the results in ``out``.

    A cell that lacks some of its metrics is run again for these alone. Returns how many of the cells were finished
    before, and the error text of each failed cell.
    """
    with open_results(out) as (file, kept):
        fresh = remaining(todo, folder, kept)
        held, failed = len(todo) - len(fresh), {}
        progress("cells", held, len(todo))
        for number, (case, outcome) in enumerate(run_cases(fresh, folder, jobs)):
            if outcome.error:
                failed[case.cell] = outcome.error
            metrics = {} if outcome.error else {name: metric.digest for name, metric in case.metrics.items()}
            record = CellRecord(
                key=case.key,
                data=source_digest(case.dataset, folder),
                cell=case.cell,
                figures=recorded(outcome.figures),
                metrics=metrics,
                seconds=round(outcome.seconds, 2),
                code=code(),
                kernel=outcome.kernel,
                error=outcome.error,
            )
            append(file, record)
            progress("cells", held + number + 1, len(todo))
    return held, failed


def remaining(todo: Sequence[Case], folder: Path, kept: Sequence[CellRecord]) -> list[Case]:
    """Return what is left to run of cells, each with the metrics that the records ``kept`` do not have of it."""
    records = by_key(kept)
    left = (unmeasured(case, source_digest(case.dataset, folder), records.get(case.key, ())) for case in todo)
    return [case for case in left if case is not None]


def read_results(every: Iterable[Case], folder: Path, out: Path) -> list[ResultLine]:
    """Return the figures that the results in ``out`` hold of cells.

    Cells whose data in ``folder`` are missing or have changed since they ran are left out.
    """
    records = by_key(read_records(out / RESULTS))
    found: list[ResultLine] = []
    for case in every:
        if not case.dataset.made and not (folder / case.dataset.file).is_file():
            continue
        data = source_digest(case.dataset, folder)
        found += figures_of(case, (record for record in records.get(case.key, ()) if record.data == data))
    return found
