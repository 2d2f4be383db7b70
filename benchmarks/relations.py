r"""What workload error does not see: strong relations, correlations, heaps, quantiles and labels, by table and method.

``relations.toml`` specifies the grid, which ``fedsynth bench`` runs as well. This program selects from it, resumes
where it was stopped, prints a column for each table and method, and writes the figures of all runs as CSV, a line each:

    python -m benchmarks.relations --data-dir ../shared/data \
        --tables shoppers,made-wide --methods auto,oneshot,mst,aim --epsilon 1 --seeds 5 --out relations.csv

Finished runs are kept beside it, in the folder ``relations-runs``.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks import DATA, ROOT
from fedsynth.bench.grid import read_results, run_grid
from fedsynth.bench.metrics import FinishedRun
from fedsynth.bench.spec import AXES, Spec, cases, read_spec
from fedsynth.encoding import encode
from fedsynth.evaluation import dependence
from fedsynth.federation.simulate import federate
from fedsynth.methods.survey import noise_of
from fedsynth.privacy.cost import Budget
from fedsynth.rows import Table
from fedsynth.schema import Categorical, Schema
from fedsynth.secure.site import SecureSum

SPEC = ROOT / "benchmarks" / "relations.toml"
_SHARE = 0.1  # of the budget, for one number per pair of columns
_DEVIATIONS = 4  # of the noise that a findable pair's covariance exceeds

Pair = tuple[int, int]
Signs = NDArray[np.int8]


def findable(run: FinishedRun) -> Mapping[str, float]:
    """Return, of strong pairs of columns that a secure sum of one number per pair can show, the share that is kept.

    A pair is findable if the covariance of its columns, each halved into signs -1 and 1, is at least 4 standard
    deviations of the noise that a tenth of the run's budget leaves for one number per pair under secure sums over the
    run's sites, whatever its own trust model. Both columns are halved by order, or categories without an order by
    frequency, whichever shows more (:func:`halvings`).

    Keys are "above 0.3" and "above 0.5" (associations of which half is kept), "Pearson" and "Spearman" (correlations
    within 0.1). "count, above 0.3" and so on are the numbers of findable pairs, and "share, above 0.3" their share of
    the strong pairs. A key without a strong pair is left out, and without a findable one its share kept is nan.
    """
    assert run.ledger is not None
    budget = run.ledger.budget
    return findable_kept(run.real, run.synthetic, len(run.sites), budget.epsilon, budget.delta)


def findable_kept(real: Table, synthetic: Table, sites: int, epsilon: float, delta: float) -> Mapping[str, float]:
    """Return what :func:`findable` does, for rows that come from elsewhere, beside runs of this budget."""
    found: dict[str, float] = {}
    noise = _noise(len(real.codes), sites, epsilon, delta)
    halves = halvings(real)
    associations, correlations = dependence.strong_associations(real), dependence.strong_correlations(real)
    for name, pairs in (associations | correlations).items():
        some = [pair for pair in pairs if covariance(halves, pair) >= _DEVIATIONS * noise]
        found |= {name: math.nan, f"count, {name}": len(some), f"share, {name}": len(some) / len(pairs)}
        if some and name in associations:
            found[name] = dependence.associations_kept(real, synthetic, some).value
        elif some:
            how = dependence.CORRELATIONS[name]
            found[name] = dependence.correlations_kept(real, synthetic, some, how).value
    return found


def halvings(table: Table) -> tuple[list[Signs], list[Signs]]:
    """Return two ways to halve each column into signs -1 and 1, each shape ``(rows,)``.

    The first halves by order: 1 above the median of a number or of a category's code; missing values come last. The
    second halves categories without an order by frequency instead: -1 for the commonest, as long as they hold at most
    half of the rows, at least for one.
    """
    by_order, by_frequency = [], []
    for at, codes in enumerate(table.codes):
        values = np.nan_to_num(table.numbers[at], nan=np.inf) if at in table.numbers else codes
        by_order.append(_signs(values > np.quantile(values, 0.5, method="inverted_cdf")))
        described = table.schema.stored[at]
        if isinstance(described, Categorical) and not described.ordered:
            counts = np.bincount(codes, minlength=table.schema.sizes[at])
            order = np.argsort(-counts, kind="stable")
            many = max(1, int((np.cumsum(counts[order]) <= len(codes) / 2).sum()))
            by_frequency.append(_signs(~np.isin(codes, order[:many])))
        else:
            by_frequency.append(by_order[-1])
    return by_order, by_frequency


def _signs(above: NDArray[np.bool_]) -> Signs:
    return np.where(above, 1, -1).astype(np.int8)


def covariance(halves: tuple[list[Signs], list[Signs]], pair: Pair) -> float:
    """Return the larger of the two halvings' absolute covariances of a pair of columns, in rows.

    The covariance of signs s and t is ``sum(s * t) - sum(s) * sum(t) / rows``.
    """
    found = []
    for signs in halves:
        one, two = (signs[at].astype(np.int64) for at in pair)
        found.append(abs(float(one @ two) - float(one.sum()) * float(two.sum()) / len(one)))
    return max(found)


@cache
def _noise(columns: int, sites: int, epsilon: float, delta: float) -> float:
    """Return the standard deviation, in rows, of one number per pair of columns under secure sums.

    A row moves each number by at most 1, as it moves one count in a table per pair: the sensitivity is that of as many
    tables.
    """
    schema = Schema((Categorical("x", ("a", "b")),))
    tables = [encode(schema, pd.DataFrame({"x": ["a", "b"]})) for _ in range(sites)]
    federation = federate(tables, schema, Budget(epsilon, delta), trust=SecureSum(), seed=0)
    return noise_of(federation, _SHARE, columns * (columns - 1) // 2)


def selected(spec: Spec, tables: list[str], methods: list[str], trust: str, epsilons: list[float], seeds: int) -> Spec:
    """Return the specification with these tables, methods, budgets and this number of seeds alone.

    ``trust`` is the trust model of the methods that need no trusted server; AIM and MST see all rows at one.
    """
    grid = tuple(
        msgspec.structs.replace(
            entry,
            data=tuple(tables),
            methods=tuple(one for one in entry.methods or () if one in methods),
            epsilon=tuple(epsilons),
            trust="trusted" if entry.trust == "trusted" else trust,
        )
        for entry in spec.grid
    )
    return msgspec.structs.replace(spec, grid=tuple(entry for entry in grid if entry.methods), seeds=seeds)


def main() -> None:
    """Run what is missing, write the CSV file, and print the means over seeds."""
    spec = read_spec(SPEC.read_text(encoding="utf-8"))
    known = [str(one) for entry in spec.grid for one in entry.methods or ()]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=DATA, help="folder of the data files")
    parser.add_argument("--tables", default=",".join(spec.datasets), help="names, with commas between")
    parser.add_argument("--methods", default=",".join(known), help="names, with commas between")
    parser.add_argument("--trust", default="secure", help="trust model of methods that are not central")
    parser.add_argument("--epsilon", default="1", help="one or several, with commas between")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds: 0, 1, ...")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write")
    given = parser.parse_args()
    epsilons = [float(one) for one in given.epsilon.split(",")]
    chosen = selected(spec, given.tables.split(","), given.methods.split(","), given.trust, epsilons, given.seeds)
    runs, todo = given.out.with_name(f"{given.out.stem}-runs"), cases(chosen)
    _, failed = run_grid(todo, given.data_dir, runs, given.jobs, _say)
    lines = read_results(todo, given.data_dir, runs)
    rows = [{axis: getattr(line.cell, axis) for axis in AXES} | line._asdict() for line in lines]
    wide = pd.DataFrame(rows).pivot(index=list(AXES), columns="metric", values="value").reset_index()
    wide.to_csv(given.out, index=False)
    means = wide.groupby(["dataset", "epsilon", "method", "trust"]).mean(numeric_only=True)
    print(means.drop(columns=["sites", "seed"]).T.round(3).to_string())
    for cell, why in failed.items():
        print(f"failed: {cell}: {why}")


def _say(what: str, done: int, total: int) -> None:
    print(f"{what}: {done} of {total}", flush=True)


if __name__ == "__main__":
    main()
