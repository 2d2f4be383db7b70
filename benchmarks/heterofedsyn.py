"""HeteroFedSyn's Table 4 with several seeds, ours beside the published figures and beside floors.

    python -m benchmarks.heterofedsyn [--datasets adult,insurance] [--jobs 2] [--keep figures.jsonl]

The real data sets are read from the folder that FEDSYNTH_DATA names (default: ../shared/data beside the repository).
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.as_published import published_fedprivsyn
from benchmarks.run import DATA, PAGE, ROOT, write_section
from fedsynth.data.source import read_frame
from fedsynth.deploy.job import find_trust
from fedsynth.evaluation.fidelity import range_query_error, wasserstein_2d
from fedsynth.evaluation.utility import taught
from fedsynth.federation.simulation import federate
from fedsynth.methods import AdaFedPrivSyn, AllMarginals, FedPrivSyn, Method, OneShot, PrivSyn, RandomMarginals
from fedsynth.methods.generators import PGM
from fedsynth.privacy.cost import Budget
from fedsynth.schema import Boolean, Categorical, Column, Numeric, Schema
from fedsynth.table import Table

SPEC = ROOT / "benchmarks" / "heterofedsyn_table4.toml"
METHODS: dict[str, Callable[[], Method]] = {
    "fedprivsyn": FedPrivSyn,
    "fedprivsyn, PGM": lambda: FedPrivSyn(generator=PGM()),
    "fedprivsyn, k = 5": lambda: FedPrivSyn(width=5),
    "fedprivsyn, k = 10": lambda: FedPrivSyn(width=10),
    "fedprivsyn, k = 50": lambda: FedPrivSyn(width=50),
    "without projection": lambda: FedPrivSyn(width=10_000),
    "adafedprivsyn": AdaFedPrivSyn,
    "privsyn": PrivSyn,
    "allmarginals": AllMarginals,
    "randommarginals": RandomMarginals,
    "oneshot": OneShot,
}
REPLICA = "published pipeline (not private)"
FULL = ("fedprivsyn", "adafedprivsyn")  # measured by more than range queries; learners take the first only
CENTRAL = ("privsyn", REPLICA)
FLOORS = ("real rows", "uniform rows", "one value")


Job = tuple[str, float, float, str, str, int]


@dataclass(frozen=True)
class Figures:
    """What one run measured; nan where it was not."""

    dataset: str
    epsilon: float
    delta: float
    trust: str
    method: str
    seed: int
    query: float
    plane: float
    learning: float
    pairs: float
    cpu_seconds: float

    @property
    def job(self) -> Job:
        """What was run."""
        return self.dataset, self.epsilon, self.delta, self.trust, self.method, self.seed


@cache
def spec() -> dict[str, Any]:
    """Return the description of the table."""
    return tomllib.loads(SPEC.read_text())


@cache
def load(name: str) -> tuple[Table, Table]:
    """Return training and test rows; the schema's bounds and categories are those of the file, as published."""
    setting = spec()["setting"]
    frame = read_frame(DATA / spec()["datasets"][name]["file"])
    columns: list[Column] = []
    for column in frame:
        values = frame[column]
        if pd.api.types.is_bool_dtype(values):
            columns.append(Boolean(str(column)))
        elif pd.api.types.is_numeric_dtype(values):
            whole = pd.api.types.is_integer_dtype(values)
            bins = min(setting["bins"], values.nunique())
            columns.append(Numeric(str(column), float(values.min()), float(values.max()), bins=bins, integer=whole))
        else:
            frame[column] = values.fillna("?")
            columns.append(Categorical(str(column), tuple(sorted(frame[column].unique()))))
    table = Schema(tuple(columns), missing_values=()).encode(frame)
    order = np.random.default_rng(setting["split_seed"]).permutation(len(table))
    tested = round(setting["test_share"] * len(table))
    return table.take(order[tested:]), table.take(order[:tested])


def measure(dataset: str, epsilon: float, delta: float, trust: str, method: str, seed: int) -> Figures:
    """Run one method with one seed, and measure its rows."""
    train, test = load(dataset)
    schema = train.schema
    rng = np.random.default_rng(seed)
    began = time.process_time()
    pairs = float("nan")
    if method == "one value":
        known = float("nan")
        return Figures(dataset, epsilon, delta, trust, method, seed, known, known, _ignorant(dataset), known, known)
    if method == "real rows":
        synthetic = train
    elif method == "uniform rows":
        codes = tuple(rng.integers(0, size, len(train)).astype(np.uint8) for size in schema.sizes)
        synthetic = schema.encode(schema.decode(codes, rng))
    elif method == REPLICA:
        synthetic, released = published_fedprivsyn(_sites(train, rng), epsilon, spec()["setting"]["deltas"][1], seed)
        pairs = float(released)
    else:
        budget = Budget(epsilon, delta)
        federation = federate(_sites(train, rng), schema, budget, trust=find_trust(trust), seed=seed)
        synthesizer = METHODS[method]().fit(federation)
        synthetic = schema.encode(synthesizer.sample(len(train), rng))
        pairs = float(len(synthesizer.info["cliques"]))
    cpu_seconds = time.process_time() - began
    fresh = synthetic.take(rng.permutation(len(synthetic))[: len(test)])
    full = (method in FULL and delta == spec()["setting"]["deltas"][0]) or method in FLOORS
    learns = full and method in ("fedprivsyn", *FLOORS)
    return Figures(
        dataset,
        epsilon,
        delta,
        trust,
        method,
        seed,
        range_query_error(test, fresh, 2, spec()["setting"]["queries"], seed),
        _plane(dataset, test, fresh, seed) if full else float("nan"),
        _learning(dataset, train, synthetic, test, seed) if learns else float("nan"),
        pairs,
        cpu_seconds,
    )


def _sites(train: Table, rng: np.random.Generator) -> list[Table]:
    return [train.take(rows) for rows in np.array_split(rng.permutation(len(train)), spec()["setting"]["sites"])]


def _plane(dataset: str, test: Table, synthetic: Table, seed: int) -> float:
    rows = spec()["datasets"][dataset].get("plane_rows", len(test))
    pairs = list(itertools.combinations(sorted(test.numbers), 2))
    return float(np.mean(list(wasserstein_2d(test, synthetic, pairs, rows, seed).values())))


def _learning(dataset: str, train: Table, synthetic: Table, test: Table, seed: int) -> float:
    """Return the mean weighted F1 (or root mean squared error) of the three learners, as published trained once."""
    described = spec()["datasets"][dataset]
    scores = taught(train, synthetic, test, described["target"], "heterofedsyn", seed)
    return float(np.mean(list(scores[described["score"]].values())))


def _ignorant(dataset: str) -> float:
    """Return the learning score of who answers every row with the most frequent class (RMSE: with the mean)."""
    from sklearn.dummy import DummyClassifier, DummyRegressor
    from sklearn.metrics import f1_score, root_mean_squared_error

    train, test = load(dataset)
    described = spec()["datasets"][dataset]
    column = train.schema.index(described["target"])
    rows = [np.zeros((len(table), 1)) for table in (train, test)]
    if described["score"] == "RMSE":
        mean = DummyRegressor().fit(rows[0], train.numbers[column])
        return float(root_mean_squared_error(test.numbers[column], mean.predict(rows[1])))
    most = DummyClassifier(strategy="most_frequent").fit(rows[0], train.codes[column])
    return float(f1_score(test.codes[column], most.predict(rows[1]), average="weighted"))


def footprint(rows: int | None, method: str) -> tuple[float, float]:
    """Return the CPU seconds of one run on Adult, with ``rows`` rows drawn from it if given, and its peak gigabytes.

    Fit and rows, epsilon 1, five sites that add their own noise. Meant for a process of its own.
    """
    train, _ = load("adult")
    rng = np.random.default_rng(0)
    table = train if rows is None else train.take(rng.integers(0, len(train), rows))
    sites = _sites(table, rng)
    began = time.process_time()
    federation = federate(sites, table.schema, Budget(1.0, 1e-5), trust=find_trust("local"), seed=0)
    METHODS[method]().fit(federation).sample(len(table), rng)
    return time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def report(figures: list[Figures], footprints: dict[tuple[int | None, str], tuple[float, float]]) -> str:
    """Return the results as Markdown: mean and standard deviation over the seeds beside the published figure."""
    setting = spec()["setting"]
    lines = [
        f"c = {setting['sites']} sites at random, delta = {setting['deltas'][0]:g} (the replica: the published code's "
        f"{setting['deltas'][1]:g}), {setting['seeds']} seeds (one for the floors). Queries: mean absolute error of "
        "1,000 random 2-way range queries on the test rows. Fidelity: mean exact 2-way Wasserstein distance of the "
        "pairs of numbers (of 1,000 test rows of Adult, 500 of Shoppers, all elsewhere). Learning: weighted "
        "F1 (abalone, insurance: root mean squared error in label units) of "
        "random forest, MLP and XGBoost on the test rows. Published: the better of FedPrivSyn and AdaFedPrivSyn; "
        "its errors of labels are errors of ranks and not comparable (-). Floors: the real training rows, uniform "
        "rows, and learners that answer with one value (the most frequent class, the mean). CPU: fit and rows.",
        "",
        "| data | epsilon | method | trust | queries | published | fidelity | published | learning | published | pairs "
        "| CPU s |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    usual = [one for one in figures if one.delta == setting["deltas"][0]]
    keys = dict.fromkeys((one.dataset, one.epsilon, one.method, one.trust) for one in usual)
    for dataset, epsilon, method, trust in keys:
        runs = [
            one
            for one in usual
            if (one.dataset, one.epsilon, one.method, one.trust) == (dataset, epsilon, method, trust)
        ]
        published = spec()["datasets"][dataset]["published"][f"{epsilon:g}"] if method in FULL else ["", "", ""]
        lines.append(
            f"| {dataset} | {epsilon:g} | {method} | {trust} | {_spread(runs, 'query', 4)} | {published[0]} | "
            f"{_spread(runs, 'plane', 3)} | {published[1]} | {_spread(runs, 'learning', 3)} | {published[2]} | "
            f"{_spread(runs, 'pairs', 0)} | {_spread(runs, 'cpu_seconds', 1)} |"
        )
    lines += ["", *_strict(figures), "", *_footprints(footprints)]
    return "\n".join(lines)


def _strict(figures: list[Figures]) -> list[str]:
    """Return the query errors at the delta of the published code."""
    delta = spec()["setting"]["deltas"][1]
    strict = [one for one in figures if one.delta == delta]
    columns = list(dict.fromkeys((one.method, one.trust) for one in strict))
    lines = [
        f"Query errors at delta = {delta:g}, the published code's:",
        "",
        "| data | epsilon | " + " | ".join(f"{method}, {trust}" for method, trust in columns) + " |",
        "|---|---|" + "---|" * len(columns),
    ]
    for dataset, epsilon in dict.fromkeys((one.dataset, one.epsilon) for one in strict):
        runs = [
            [one for one in strict if (one.dataset, one.epsilon, one.method, one.trust) == (dataset, epsilon, *column)]
            for column in columns
        ]
        lines.append(f"| {dataset} | {epsilon:g} | " + " | ".join(_spread(run, "query", 4) for run in runs) + " |")
    return lines


def _footprints(footprints: dict[tuple[int | None, str], tuple[float, float]]) -> list[str]:
    lines = [
        "One run in a process of its own: Adult's training rows, and rows drawn from them (fit and as many rows; peak "
        "memory with the interpreter and the table):",
        "",
        "| rows x 15 columns | method | CPU s | peak GB |",
        "|---|---|---|---|",
    ]
    for (rows, method), (seconds, gigabytes) in footprints.items():
        count = len(load("adult")[0]) if rows is None else rows
        lines.append(f"| {count:,} | {method} | {seconds:.1f} | {gigabytes:.2f} |")
    return lines


def _spread(runs: list[Figures], what: str, digits: int) -> str:
    values = np.array([getattr(one, what) for one in runs])
    if not len(values) or np.isnan(values).all():
        return ""
    if len(values) < 2:
        return f"{values[0]:.{digits}f}"
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1):.{digits}f}"


def jobs(datasets: list[str]) -> Iterator[Job]:
    """Yield every run of the table: all budgets for the methods proper, epsilon 1 for the variants."""
    setting = spec()["setting"]
    delta, strict = setting["deltas"]
    for dataset in datasets:
        for floor in FLOORS:
            yield dataset, 1.0, delta, "", floor, 0
        for epsilon, method, trust in itertools.product(setting["epsilons"], (*METHODS, REPLICA), setting["trusts"]):
            if (epsilon != 1.0 and method not in (*FULL, "oneshot")) or (method in CENTRAL and trust != "trusted"):
                continue
            for seed in range(setting["seeds"]):
                yield dataset, epsilon, delta, trust, method, seed
        for epsilon, method, trust in itertools.product(setting["epsilons"], FULL, setting["trusts"]):
            for seed in range(setting["seeds"]):
                yield dataset, epsilon, strict, trust, method, seed


def _measure(job: Job) -> Figures:
    return measure(*job)


def _kept(file: Path | None) -> dict[Job, Figures]:
    """Return what an interrupted run has measured already."""
    if file is None or not file.exists():
        return {}
    found = [Figures(**json.loads(line)) for line in file.read_text().splitlines()]
    return {one.job: one for one in found}


def _footprint(key: tuple[int | None, str]) -> tuple[float, float]:
    return footprint(*key)


def main() -> None:
    """Run the table, and its query errors again at the delta of the published code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default="", help="only these data sets, by comma")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--out", type=Path, default=PAGE, help="page to write into")
    parser.add_argument("--keep", type=Path, help="file of finished runs, which are not done again")
    arguments = parser.parse_args()
    datasets = arguments.datasets.split(",") if arguments.datasets else list(spec()["datasets"])
    kept = _kept(arguments.keep)
    wanted = list(jobs(datasets))
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for one in pool.map(_measure, [job for job in wanted if job not in kept]):
            kept[one.job] = one
            print(one, flush=True)
            if arguments.keep:
                with arguments.keep.open("a") as file:
                    file.write(json.dumps(asdict(one)) + "\n")
    figures = [kept[job] for job in wanted]
    alone = [(rows, method) for rows in (None, 1_000_000) for method in FULL]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        footprints = dict(zip(alone, pool.map(_footprint, alone), strict=True))
    write_section(arguments.out, spec()["section"], spec()["title"], report(figures, footprints))


if __name__ == "__main__":
    main()
