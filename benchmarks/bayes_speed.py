"""CPU time of fitting and sampling Bayesian networks: fedsynth beside DataSynthesizer 0.1.13, in one run.

    python -m benchmarks.bayes_speed [--evaluations 10] [--rows 48842]

Needs DataSynthesizer 0.1.13. The data are Adult with all columns categorical, as DataSynthesizer treats them.
DataSynthesizer's structure search takes more than twenty minutes. It is therefore extrapolated: a few evaluations of
mutual information are timed, and the time is multiplied by the number that its greedy search makes.
"""

from __future__ import annotations

import argparse
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from benchmarks import DATA, PAGE
from fedsynth.bench.page import write_section
from fedsynth.cliques import all_marginals, maximal
from fedsynth.data.draft import guess_types
from fedsynth.data.read import read_frame
from fedsynth.encoding import encode
from fedsynth.errors import Unsupported
from fedsynth.methods.domain import Domain
from fedsynth.models.adaptive_bins import AdaptiveBins
from fedsynth.models.bayes_net import BayesianNetwork
from fedsynth.models.estimate import Measurement
from fedsynth.models.structure import Structure, best_structure, dependences
from fedsynth.rows import Table
from fedsynth.schema import Categorical, Schema
from fedsynth.schema.bins import Axis

T = TypeVar("T")
DEGREE = 2
BINS = 20
LARGE = 1_000_000


def timed(action: Callable[[], T]) -> tuple[T, float]:
    """Return the result of an action, and its CPU seconds."""
    began = time.process_time()
    result = action()
    return result, time.process_time() - began


def adult(rows: int) -> Table:
    """Return ``rows`` rows drawn with replacement from Adult (without fnlwgt), numbers in ``BINS`` equal bins."""
    frame = guess_types(read_frame(DATA / "adult.csv")).fillna("?")
    drawn = frame.iloc[np.random.default_rng(0).integers(0, len(frame), rows)].reset_index(drop=True)
    columns = []
    for name in drawn:
        values = drawn[name]
        if pd.api.types.is_numeric_dtype(values) and values.nunique() > BINS:
            drawn[name] = pd.cut(values, BINS, labels=False)
        columns.append(Categorical(str(name), tuple(sorted(str(one) for one in drawn[name].unique()))))
    drawn = drawn.drop(columns="fnlwgt").astype(str)
    return encode(Schema(tuple(one for one in columns if one.name != "fnlwgt"), missing_values=()), drawn)


def structure(table: Table) -> Structure:
    """Return the best structure: counts all pairs, estimates their dependence, and searches exactly."""
    columns = [AdaptiveBins.of(column) for column in table.schema.stored]
    pairs = all_marginals(len(columns), 2)
    query = Domain(table.schema, tuple(columns)).counts(pairs)
    tables = query.split(table.schema, query.answer(table))
    two_way = [Measurement(pair, counts, 1e-6) for pair, counts in zip(pairs, tables, strict=True)]
    ones = [Measurement((j,), counts.astype(np.float64), 1e-6) for j, counts in enumerate(one_way(table))]
    weights = dependences(ones, two_way, float(len(table)), np.random.default_rng(0))
    return best_structure(weights, DEGREE, table.schema.sizes)


def one_way(table: Table) -> list[Any]:
    """Return the counts of each column."""
    columns = range(len(table.codes))
    return table.tables([Axis(column) for column in columns], [(column,) for column in columns])


def network(table: Table, found: Structure) -> BayesianNetwork:
    """Return the fitted network of a structure: counts its tables and computes the conditional probabilities."""
    cliques = maximal(found.cliques)
    counted = table.tables([Axis(column) for column in range(len(table.codes))], cliques)
    tables = {clique: counts.astype(np.float64) for clique, counts in zip(cliques, counted, strict=True)}
    return BayesianNetwork.of_tables(found, tables, float(len(table)))


def theirs(table: Table, found: Structure, evaluations: int) -> dict[str, float]:
    """Return DataSynthesizer's CPU seconds for its structure search, tables and rows.

    The structure search is extrapolated from ``evaluations`` evaluations; tables and rows use the structure ``found``.
    """
    try:
        from DataSynthesizer.DataGenerator import DataGenerator
        from DataSynthesizer.lib.PrivBayes import construct_noisy_conditional_distributions
        from DataSynthesizer.lib.utils import mutual_information
    except ImportError as error:
        raise Unsupported("this benchmark times DataSynthesizer; pip install DataSynthesizer==0.1.13") from error
    names = [str(name) for name in table.schema.names]
    codes = pd.DataFrame({name: one.astype(np.int64) for name, one in zip(names, table.codes, strict=True)})

    # The greedy search scores every remaining column with every pair of placed parents (one parent at first).
    count = len(names)
    needed = count - 1 + sum((count - placed) * math.comb(placed, DEGREE) for placed in range(DEGREE, count))
    rng = np.random.default_rng(0)
    tried = [rng.choice(count, DEGREE + 1, replace=False).tolist() for _ in range(evaluations)]
    text = codes.astype(str)

    def score() -> None:
        for child, *parents in tried:
            mutual_information(text[names[child]], text[[names[parent] for parent in parents]])

    _, seconds = timed(score)
    found_seconds = {"structure": seconds / evaluations * needed}

    edges = [(names[column], [names[parent] for parent in found.parents[column]]) for column in found.order[1:]]
    conditionals, found_seconds["tables"] = timed(lambda: construct_noisy_conditional_distributions(edges, codes, 0))
    # With numpy 2 its keys are "[np.int64(0)]", which its own generator cannot evaluate.
    for child, by_parents in conditionals.items():
        if isinstance(by_parents, dict):
            plain = {re.sub(r"np\.int64\((\d+)\)", r"\1", key): share for key, share in by_parents.items()}
            conditionals[child] = plain
    described: dict[str, Any] = {
        "meta": {"all_attributes": names, "num_tuples": len(table)},
        "bayesian_network": edges,
        "conditional_probabilities": conditionals,
        "attribute_description": {
            name: {"distribution_probabilities": (counts / len(table)).tolist()}
            for name, counts in zip(names, one_way(table), strict=True)
        },
    }
    _, found_seconds["rows"] = timed(lambda: DataGenerator.generate_encoded_dataset(len(table), described))
    return found_seconds


def report(rows: int, evaluations: int) -> str:
    """Return the table as Markdown."""
    table = adult(rows)
    found, of_structure = timed(lambda: structure(table))
    fitted, of_tables = timed(lambda: network(table, found))
    _, of_rows = timed(lambda: fitted.sample(rows, np.random.default_rng(0)))
    _, of_large = timed(lambda: fitted.sample(LARGE, np.random.default_rng(0)))
    other = theirs(table, found, evaluations)
    lines = [
        f"{rows:,} rows of Adult, {len(table.codes)} columns, {DEGREE} parents, both without noise; CPU seconds of one "
        f"run. DataSynthesizer's structure search is extrapolated from {evaluations} evaluations of mutual information "
        "to the number that the search makes. Ours finds the optimal structure for sums of pairwise information, "
        "theirs a greedy one for joint information. DataSynthesizer's tables and rows use our structure.",
        "",
        "| step | ours | DataSynthesizer 0.1.13 | ratio |",
        "|---|---|---|---|",
    ]
    steps = {
        "structure": (of_structure, other["structure"]),
        "tables": (of_tables, other["tables"]),
        "rows": (of_rows, other["rows"]),
        "tables and rows": (of_tables + of_rows, other["tables"] + other["rows"]),
    }
    lines += [f"| {name} | {a:.3f} | {b:.1f} | {b / a:,.0f} |" for name, (a, b) in steps.items()]
    return "\n".join([*lines, f"| {LARGE:,} rows | {of_large:.2f} | | |"])


def main() -> None:
    """Time both, and write the section of the benchmark page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=48_842, help="rows to fit and to draw")
    parser.add_argument("--evaluations", type=int, default=10, help="timed evaluations of mutual information")
    parser.add_argument("--out", type=Path, default=PAGE, help="page to write into")
    arguments = parser.parse_args()
    write_section(
        arguments.out, "bayes-speed", "Bayesian networks, speed", report(arguments.rows, arguments.evaluations)
    )


if __name__ == "__main__":
    main()
