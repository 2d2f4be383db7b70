"""Scaling of methods with columns and values: CPU time and peak memory of fit and sampling, into benchmarks/tables.md.

    python -m benchmarks.growth [--methods oneshot tda] [--columns 25 50 100] [--values 1000]

CPU seconds depend on the load of the machine. They are therefore also given in units of the time that numpy takes to
sort ``UNIT`` random numbers in the same process.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import PAGE
from fedsynth.bench.page import write_section
from fedsynth.errors import InvalidParameter
from fedsynth.federation.simulate import federate
from fedsynth.federation.trusted import TrustedServer
from fedsynth.methods import find_method
from fedsynth.privacy.cost import Budget
from fedsynth.rows import Table
from fedsynth.schema import Categorical, Column, Numeric, Schema

ROWS, SITES, FACTORS = 10_000, 10, 5
METHODS = ("oneshot", "fedprivsyn", "fedchowliu", "augflaim", "tda")
WIDE = (25, 50, 100)  # columns
LONG = 14  # columns of many values each
UNIT = 1 << 22


class Figures(NamedTuple):
    """Cost of one run: CPU seconds of fit, sampling and the unit of work, and the peak memory of the process in MB."""

    fit: float
    rows: float
    unit: float
    megabytes: float


def mixed(columns: int, rows: int = ROWS) -> Table:
    """Return a table of alternating numbers (32 bins) and categories (2 to 20 values), dependent by latent factors."""
    scores, rng = _scores(columns, rows)
    kinds: list[Column] = []
    for at in range(columns):
        if at % 2:
            kinds.append(Categorical(f"category{at}", tuple(range(2 + at * 7 % 19))))
        else:
            kinds.append(Numeric(f"number{at}", -4.0, 4.0))
    codes, numbers = [], {}
    for at, (kind, score) in enumerate(zip(kinds, scores, strict=True)):
        if isinstance(kind, Numeric):
            numbers[at] = np.clip(score, kind.low, kind.high)
            place = np.searchsorted(kind.bin_edges, numbers[at], side="right") - 1
            codes.append(np.minimum(place, kind.size - 1).astype(np.uint8))
        else:
            codes.append(_cut(score, rng.dirichlet(np.ones(kind.size))))
    return Table(Schema(tuple(kinds)), tuple(codes), numbers)


def many_values(values: int, columns: int = LONG, rows: int = ROWS) -> Table:
    """Return a table of categories with many values of frequency 1 / rank, dependent by latent factors."""
    scores, _ = _scores(columns, rows)
    kinds = [Categorical(f"category{at}", tuple(range(values))) for at in range(columns)]
    share = 1 / np.arange(1, values + 1)
    return Table(Schema(tuple(kinds)), tuple(_cut(score, share / share.sum()) for score in scores))


def _scores(columns: int, rows: int) -> tuple[list[np.ndarray], np.random.Generator]:
    """Return standard normal columns: half of the variance from two of ``FACTORS`` factors, half independent."""
    rng = np.random.default_rng(0)
    factors = rng.standard_normal((FACTORS, rows))
    pairs = list(itertools.combinations(range(FACTORS), 2))
    scores = []
    for at in range(columns):
        first, second = pairs[at % len(pairs)]
        shared = (factors[first] - factors[second]) / 2
        scores.append(shared + np.sqrt(0.5) * rng.standard_normal(rows))
    return scores, rng


def _cut(scores: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Return the codes of normal scores, binned so that code i has about the share ``share[i]`` of the rows."""
    rank = np.argsort(np.argsort(scores)) / len(scores)
    code = np.searchsorted(np.cumsum(share)[:-1], rank, side="right")
    return code.astype(np.min_scalar_type(len(share) - 1))


def measure(method: str, columns: int, values: int) -> Figures:
    """Fit a method and sample as many rows as the table has, in this process; ``values`` 0 means the mixed table."""
    table = many_values(values, columns) if values else mixed(columns)
    units = []
    for seed in range(3):
        numbers = np.random.default_rng(seed).random(UNIT)
        began = time.process_time()
        numbers.sort()
        units.append(time.process_time() - began)
    sites = [table.take(part) for part in np.array_split(np.arange(len(table)), SITES)]
    federation = federate(sites, table.schema, Budget(1.0, 1e-6), trust=TrustedServer(), seed=0)
    began = time.process_time()
    synthesizer = find_method(method).kind().fit(federation)
    fitted = time.process_time()
    synthesizer.sample_table(len(table), np.random.default_rng(0))
    drawn = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Figures(fitted - began, drawn - fitted, statistics.median(units), peak)


def report(methods: Sequence[str], wide: Sequence[int], values: int) -> str:
    """Return the table as Markdown; each fit runs in its own process."""
    lines = [
        f"{ROWS:,} rows at {SITES} sites, trusted server, epsilon 1; numbers of 32 bins and categories of 2 to 20 "
        f"values by turns, and {LONG} columns of {values:,} values each. CPU seconds on one core; a unit is what "
        f"numpy takes to sort {UNIT:,} numbers in the same process. Memory: the peak of the process, sites included.",
        "",
        "| method | columns | values | fit, s | rows, s | both, units | peak MB |",
        "|---|---|---|---|---|---|---|",
    ]
    tables = [(columns, 0) for columns in wide] + ([(LONG, values)] if values else [])
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for method, (columns, many) in itertools.product(methods, tables):
            line = f"| {method} | {columns} | {f'{many:,}' if many else '2 to 32'} |"
            try:
                found = pool.submit(measure, method, columns, many).result()
                units = (found.fit + found.rows) / found.unit
                line += f" {found.fit:.1f} | {found.rows:.1f} | {units:.0f} | {found.megabytes:.0f} |"
            except InvalidParameter as error:
                line += f" refused: {error} | | | |"
            lines.append(line)
            print(line, flush=True)
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write the section of the benchmark page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--columns", nargs="*", type=int, default=WIDE, help="numbers of columns of the mixed tables")
    parser.add_argument("--values", type=int, default=1000, help=f"values of each of {LONG} columns; 0: skip")
    parser.add_argument("--out", type=Path, default=PAGE, help="page to write into")
    given = parser.parse_args()
    text = report(given.methods, given.columns, given.values)
    if set(given.methods) == set(METHODS) and given.values and set(given.columns) >= set(WIDE):
        write_section(given.out, "growth", "Growth with columns and values", text)


if __name__ == "__main__":
    main()
