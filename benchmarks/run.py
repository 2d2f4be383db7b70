"""Run a published table with several seeds and write ours beside it into docs/benchmarks.md.

    python -m benchmarks.run benchmarks/flaim_table2.toml [--datasets adult,magic] [--jobs 2]

The real data sets are read from the folder that FEDSYNTH_DATA names (default: ../shared/data beside the
repository).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from fedsynth.data.partition import parse_partition, split
from fedsynth.deploy.job import Job, build_method, find_trust, parse_workload
from fedsynth.evaluation.fidelity import workload_error
from fedsynth.evaluation.utility import train_synthetic_test_real
from fedsynth.federation.simulation import federate
from fedsynth.methods import NOT_PRIVATE
from fedsynth.models.synthesizer import GraphicalSynthesizer
from fedsynth.privacy.cost import Budget
from fedsynth.schema import Categorical, Numeric, Schema
from fedsynth.table import Table

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("FEDSYNTH_DATA", ROOT.parent / "shared" / "data"))
PAGE = ROOT / "docs" / "benchmarks.md"
FLOOR = 1e-30  # smallest probability of a row in the floored likelihood


@dataclass(frozen=True)
class Figures:
    """What one run of one method with one seed measured."""

    dataset: str
    method: str
    seed: int
    error: float
    nll: float
    nll_floored: float
    auc: float
    epsilon: float
    cpu_seconds: float
    peak_megabytes: float


@cache
def load(spec: str, name: str) -> tuple[Schema, tuple[Table, ...], Table, Table]:
    """Return schema, one table per site, all training rows and the test rows of a data set."""
    table = tomllib.loads(Path(spec).read_text())
    setting, dataset = table["setting"], table["datasets"][name]
    frame = pq.read_table(DATA / dataset["file"]).to_pandas()
    if "sample" in dataset:
        frame = frame.sample(frac=dataset["sample"], random_state=dataset["sample_seed"])
    frame = frame[[column for column in frame if frame[column].nunique() > 1]]
    schema = _schema(frame, dataset)
    train = frame.sample(frac=setting["train_share"], random_state=setting["split_seed"])
    test = frame.drop(train.index)
    encoded = schema.encode(train)
    sites = split(encoded, setting["sites"], parse_partition(setting["partition"], schema), np.random.default_rng(0))
    return schema, tuple(sites), encoded, schema.encode(test)


def _schema(frame: pd.DataFrame, dataset: dict[str, Any]) -> Schema:
    """Return the schema of the experiments: sizes from a public file, or bounds and categories of the whole file.

    The second is how the published figures were made; it is no way to make a schema for private data.
    """
    if "domain" in dataset:
        sizes = json.loads((DATA / dataset["domain"]).read_text())
        return Schema(tuple(Categorical(column, tuple(range(size))) for column, size in sizes.items()))
    columns: list[Categorical | Numeric] = []
    for name in frame:
        values = frame[name]
        if pd.api.types.is_numeric_dtype(values) and name != dataset["target"] and values.nunique() > 2:
            columns.append(Numeric(str(name), float(values.min()), float(values.max()), bins=dataset["bins"]))
        else:
            columns.append(Categorical(str(name), tuple(sorted(values.unique().tolist()))))
    return Schema(tuple(columns))


def measure(spec: str, dataset: str, method: str, seed: int) -> Figures:
    """Run one method with one seed."""
    table = tomllib.loads(Path(spec).read_text())
    setting, entry = table["setting"], table["methods"][method]
    schema, sites, train, test = load(spec, dataset)
    fitted = build_method(Job(entry["method"], setting["epsilon"], setting["delta"], options=entry["options"]))
    workload = parse_workload(setting["workload"], len(schema.sizes))
    if hasattr(fitted, "workload"):
        fitted = type(fitted)(**{**vars(fitted), "workload": workload})
    began = time.process_time()
    federation = federate(
        sites,
        schema,
        Budget(setting["epsilon"], setting["delta"]),
        trust=find_trust(setting["trust"]),
        seed=seed,
        exact=entry["method"] in NOT_PRIVATE,
    )
    synthesizer = fitted.fit(federation)
    synthetic = synthesizer.sample_table(len(train), seed)
    cpu_seconds = time.process_time() - began
    assert isinstance(synthesizer, GraphicalSynthesizer)
    likelihood = synthesizer.model.log_likelihood(test.codes)
    floored = synthesizer.model.log_likelihood(test.codes, floor=FLOOR)
    target = schema.index(table["datasets"][dataset]["target"])
    return Figures(
        dataset,
        method,
        seed,
        workload_error(train, synthetic, workload).mean,
        float(-likelihood.mean()),
        float(-floored.mean()),
        _auc(synthetic, test, target, seed, table["datasets"][dataset].get("auc_rows")),
        federation.ledger.epsilon,
        cpu_seconds,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def _auc(synthetic: Table, test: Table, target: int, seed: int, rows: int | None) -> float:
    """Return the AUC of a classifier trained on (at most ``rows`` of) the synthetic rows."""
    limit = {} if rows is None else {"max_rows": rows}
    return train_synthetic_test_real(synthetic, test, target, seed, **limit).auc


def report(spec: dict[str, Any], figures: list[Figures]) -> str:
    """Return the results as Markdown: mean and standard deviation over the seeds beside the published figure."""
    setting = spec["setting"]
    lines = [
        f"K = {setting['sites']} sites by {setting['partition']}, epsilon = {setting['epsilon']:g}, delta = "
        f"{setting['delta']:g}, trust: {setting['trust']}, {setting['seeds']} seeds; sites' sizes are bought, for "
        "1 % of the budget (public ones would ask for sqrt(2) times the noise). Error: mean "
        "L1 distance of the workload's 3-way marginals (0 to 2) on the training rows; NLL: nats per held-out row, and "
        f"with each row's probability floored at {FLOOR:g}; AUC: gradient boosting trained on synthetic rows, tested "
        "on held-out real ones. Mean ± standard deviation over seeds.",
        "",
        "| data | method | error | published | NLL | NLL floored | published | AUC | epsilon | CPU s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for dataset in dict.fromkeys(one.dataset for one in figures):
        for method in spec["methods"]:
            runs = [one for one in figures if one.dataset == dataset and one.method == method]
            if not runs:
                continue
            published = spec["published"].get(dataset, {}).get(method, ["", ""])
            private = "not private" if method == "augflaim-oracle" else f"{max(one.epsilon for one in runs):.3f}"
            lines.append(
                f"| {dataset} | {method} | {_spread(runs, 'error', 3)} | {published[0]} | {_spread(runs, 'nll', 2)} | "
                f"{_spread(runs, 'nll_floored', 2)} | {published[1]} | {_spread(runs, 'auc', 3)} | {private} | "
                f"{_spread(runs, 'cpu_seconds', 1)} |"
            )
    notes = [f"- {name}: {spec['datasets'][name]['note']}." for name in dict.fromkeys(one.dataset for one in figures)]
    return "\n".join([*lines, "", *notes])


def _spread(runs: list[Figures], what: str, digits: int) -> str:
    values = np.array([getattr(one, what) for one in runs])
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1) if len(values) > 1 else 0:.{digits}f}"


def write_section(path: Path, section: str, title: str, text: str) -> None:
    """Replace (or append) the part of a Markdown file between a section's markers."""
    begin, end = f"<!-- begin {section} -->", f"<!-- end {section} -->"
    block = f"{begin}\n## {title}\n\n{text}\n{end}"
    page = path.read_text() if path.exists() else "# Benchmarks\n"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    path.write_text(pattern.sub(lambda _: block, page) if pattern.search(page) else f"{page.rstrip()}\n\n{block}\n")


def _jobs(path: str, spec: dict[str, Any], datasets: list[str]) -> Iterator[tuple[str, str, str, int]]:
    for dataset in datasets:
        for method in spec["methods"]:
            for seed in range(spec["setting"]["seeds"]):
                yield path, dataset, method, seed


def _measure(job: tuple[str, str, str, int]) -> Figures:
    return measure(*job)


def main() -> None:
    """Run the tables named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", help="TOML files that describe a published table")
    parser.add_argument("--datasets", default="", help="only these data sets, by comma")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--out", type=Path, default=PAGE, help="page to write into")
    arguments = parser.parse_args()
    for path in arguments.tables:
        spec = tomllib.loads(Path(path).read_text())
        datasets = arguments.datasets.split(",") if arguments.datasets else list(spec["datasets"])
        figures = []
        with ProcessPoolExecutor(arguments.jobs) as pool:
            for one in pool.map(_measure, _jobs(path, spec, datasets)):
                figures.append(one)
                print(
                    f"{one.dataset:10} {one.method:16} seed {one.seed}: error {one.error:.3f}, NLL {one.nll:.2f}, "
                    f"AUC {one.auc:.3f}, {one.cpu_seconds:.1f} CPU s, {one.peak_megabytes:.0f} MB",
                    flush=True,
                )
        write_section(arguments.out, spec["section"], spec["title"], report(spec, figures))


if __name__ == "__main__":
    main()
