"""Fed-TDA's fidelity and traffic with several seeds, ours beside the published figures and beside a floor.

    python -m benchmarks.fedtda [--datasets clinical,body] [--jobs 2]

The real data sets are read from the folder that FEDSYNTH_DATA names (default: ../shared/data beside the repository).
"""

from __future__ import annotations

import argparse
import itertools
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.run import DATA, PAGE, ROOT, write_section
from fedsynth.data.partition import parse_partition, split
from fedsynth.data.source import read_frame
from fedsynth.evaluation.dependence import association_matrix
from fedsynth.evaluation.features import is_numeric
from fedsynth.evaluation.fidelity import (
    jensen_shannon,
    jensen_shannon_distance,
    wasserstein,
    wasserstein_on_own_scales,
)
from fedsynth.federation.simulation import federate
from fedsynth.federation.site import Site
from fedsynth.federation.transport import InProcess, Message
from fedsynth.federation.trust.trusted import TrustedServer
from fedsynth.federation.wire import Reply
from fedsynth.methods import FedTDA, FedTDAMixture, FedTDAPaper, Method
from fedsynth.privacy.cost import Budget
from fedsynth.schema import Categorical, Column, Numeric, Schema
from fedsynth.table import Table

SPEC = ROOT / "benchmarks" / "fedtda_tables.toml"
FLOOR = "real training rows"
EXACT = "tda without noise"
METHODS: dict[str, Method] = {
    "tdapaper": FedTDAPaper(),
    "tdamixture": FedTDAMixture(),
    EXACT: FedTDA(),
    "tda": FedTDA(),
}


@dataclass(frozen=True)
class Figures:
    """What one run measured, means over columns; slopes are over pairs of categories, of numbers, of one each."""

    dataset: str
    method: str
    epsilon: float
    seed: int
    jsd: float
    divergence: float
    wd: float
    wd_real: float
    slope_categories: float
    slope_numbers: float
    slope_mixed: float
    rounds: float
    megabytes: float
    cpu_seconds: float


@dataclass
class Metered(InProcess):
    """Sites in this process, every reply weighed as it would travel."""

    members: Sequence[Site]
    uploaded: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Reach the members."""
        super().__init__(self.members)

    def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
        """Yield the replies, adding up their bytes by site."""
        for reply in super().exchange(messages):
            self.uploaded[reply.site] = self.uploaded.get(reply.site, 0) + len(reply.data)
            yield reply


@cache
def spec() -> dict[str, Any]:
    """Return the description of the tables."""
    return tomllib.loads(SPEC.read_text())


@cache
def load(name: str) -> tuple[Table, Table]:
    """Return training and test rows; the schema's bounds and categories are those of the file, as published."""
    described, setting = spec()["datasets"][name], spec()["setting"]
    frame = read_frame(DATA / described["file"])
    rng = np.random.default_rng(setting["split_seed"])
    if "labels" in described:
        common = frame[described["target"]].value_counts().index[: described["labels"]]
        frame = frame[frame[described["target"]].isin(common)]
    if "rows" in described:
        frame = frame.iloc[rng.permutation(len(frame))[: described["rows"]]]
    frame = frame[[column for column in frame if frame[column].nunique() > 1]].reset_index(drop=True)
    columns: list[Column] = []
    for column in frame:
        values = frame[column]
        if (
            pd.api.types.is_numeric_dtype(values)
            and column != described["target"]
            and values.nunique() > described["numbers"]
        ):
            whole = bool((values == values.round()).all())
            columns.append(
                Numeric(str(column), float(values.min()), float(values.max()), bins=setting["bins"], integer=whole)
            )
        else:
            columns.append(Categorical(str(column), tuple(sorted(values.unique().tolist()))))
    table = Schema(tuple(columns), missing_values=()).encode(frame)
    order = rng.permutation(len(table))
    return table.take(order[described["test_rows"] :]), table.take(order[: described["test_rows"]])


def measure(dataset: str, method: str, epsilon: float, seed: int) -> Figures:
    """Run one method with one seed, and measure as many rows as were trained on."""
    train, test = load(dataset)
    described, setting = spec()["datasets"][dataset], spec()["setting"]
    rounds, megabytes, began = float("nan"), float("nan"), time.process_time()
    if method == FLOOR:
        synthetic = train
    else:
        how = parse_partition(f"label-skew:{described['skew']}", train.schema, described["target"])
        sites = split(train, setting["sites"], how, np.random.default_rng(seed))
        links: list[Metered] = []

        def metered(members: Sequence[Site]) -> Metered:
            links.append(Metered(members))
            return links[-1]

        budget = Budget(epsilon, setting["delta"]) if method == "tda" else Budget.none()
        federation = federate(sites, train.schema, budget, trust=TrustedServer(), seed=seed, transport=metered)
        synthetic = METHODS[method].fit(federation).sample_table(len(train), seed)
        rounds = float(len({entry.step for entry in federation.ledger.entries}))
        megabytes = sum(links[0].uploaded.values()) / 2**20
    cpu_seconds = time.process_time() - began
    kept = slopes(train, synthetic)
    return Figures(
        dataset,
        method,
        epsilon,
        seed,
        _mean(jensen_shannon_distance(test, synthetic)),
        _mean(jensen_shannon(test, synthetic)),
        _mean(wasserstein_on_own_scales(test, synthetic)),
        _mean(wasserstein(test, synthetic)),
        *kept,
        rounds,
        megabytes,
        cpu_seconds,
    )


def slopes(real: Table, synthetic: Table) -> tuple[float, float, float]:
    """Return the least-squares slope of synthetic on real association: categories, numbers, one of each."""
    one, two = association_matrix(real), association_matrix(synthetic)
    found: tuple[list[tuple[float, float]], ...] = ([], [], [])
    for i, j in itertools.combinations(range(len(real.codes)), 2):
        kind = {0: 0, 2: 1, 1: 2}[is_numeric(real, i) + is_numeric(real, j)]
        found[kind].append((one[i, j], two[i, j]))
    return _slope(found[0]), _slope(found[1]), _slope(found[2])


def _slope(pairs: list[tuple[float, float]]) -> float:
    if len(pairs) < 3:
        return float("nan")
    x, y = np.array(pairs).T
    return float(np.polyfit(x, y, 1)[0])


def _mean(by_column: dict[str, float]) -> float:
    return float(np.mean(list(by_column.values())))


def report(figures: list[Figures]) -> str:
    """Return the results as Markdown: mean and standard deviation over the seeds beside the published figure."""
    setting = spec()["setting"]
    lines = [
        f"K = {setting['sites']} sites by label skew, trust: trusted, delta = {setting['delta']:g}, "
        f"{setting['seeds']} seeds, as many synthetic rows as training rows. Distances to the *test* rows, as "
        "published, means over columns: JSD is the Jensen-Shannon distance (published under the divergence's name), "
        "own scales is WD as published (each table scaled by its own range), real range is WD in shares of the test "
        "rows' range. Real training rows are the floor: no honest generator is below it but by chance. Slopes of "
        "synthetic on real association (1 keeps all): Cramér's V, Pearson's correlation, correlation ratio. Upload: "
        "all sites together, int64 and headers included, beside Table 5 (100 rounds of float32). covtype15k is a "
        "balanced sample and not the published data.",
        "",
        "| data | method | epsilon | JSD | published | divergence | WD own scales | published | WD real range "
        "| slope categories | slope numbers | slope mixed | exchanges | upload MiB | published | CPU s |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for dataset, method, epsilon in dict.fromkeys((one.dataset, one.method, one.epsilon) for one in figures):
        runs = [one for one in figures if (one.dataset, one.method, one.epsilon) == (dataset, method, epsilon)]
        published = spec()["datasets"][dataset]["published"] if method != FLOOR else {}
        privacy = "" if method == FLOOR else f"{epsilon:g}" if method == "tda" else "not private"
        lines.append(
            f"| {dataset} | {method} | {privacy} | {_spread(runs, 'jsd', 3)} | {published.get('jsd', '')} | "
            f"{_spread(runs, 'divergence', 4)} | {_spread(runs, 'wd', 3)} | {published.get('wd', '')} | "
            f"{_spread(runs, 'wd_real', 3)} | {_spread(runs, 'slope_categories', 2)} | "
            f"{_spread(runs, 'slope_numbers', 2)} | {_spread(runs, 'slope_mixed', 2)} | {_spread(runs, 'rounds', 0)} | "
            f"{_spread(runs, 'megabytes', 3)} | {published.get('megabytes', '')} | {_spread(runs, 'cpu_seconds', 2)} |"
        )
    return "\n".join(lines)


def _spread(runs: list[Figures], what: str, digits: int) -> str:
    values = np.array([getattr(one, what) for one in runs])
    if np.isnan(values).all():
        return ""
    if len(values) < 2:
        return f"{values[0]:.{digits}f}"
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1):.{digits}f}"


Job = tuple[str, str, float, int]


def jobs(datasets: list[str]) -> Iterator[Job]:
    """Yield every run: the floor once, exact methods once a seed, the private one at every budget."""
    setting = spec()["setting"]
    for dataset in datasets:
        yield dataset, FLOOR, 0.0, 0
        for method in METHODS:
            for epsilon in setting["epsilons"] if method == "tda" else setting["epsilons"][:1]:
                for seed in range(setting["seeds"]):
                    yield dataset, method, epsilon, seed


def _measure(job: Job) -> Figures:
    return measure(*job)


def main() -> None:
    """Run the tables and write them into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default="", help="only these data sets, by comma")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--out", type=Path, default=PAGE, help="page to write into")
    arguments = parser.parse_args()
    datasets = arguments.datasets.split(",") if arguments.datasets else list(spec()["datasets"])
    figures = []
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for one in pool.map(_measure, jobs(datasets)):
            figures.append(one)
            print(one, flush=True)
    write_section(arguments.out, spec()["section"], spec()["title"], report(figures))


if __name__ == "__main__":
    main()
