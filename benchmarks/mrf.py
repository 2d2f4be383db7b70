"""Speed of the graphical-model engine beside mbi: ``python -m benchmarks.mrf [--mbi]``, with OMP_NUM_THREADS=1.

Writes its table into benchmarks/tables.md.

Times are CPU seconds, medians of five runs; ratios are measured in one process. Without ``--mbi``, mbi is not imported,
so the peak resident set size is that of fedsynth.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import PAGE
from fedsynth.bench.page import write_section
from fedsynth.models.estimate import Measurement, estimate, loss
from fedsynth.models.mrf import Clique, MarkovRandomField

ITERATIONS = 50
# Chains of columns of equal size, in cliques of two or three columns: name -> (size, clique width).
MODELS = {"1e3": (9, 2), "1e4": (28, 2), "1e5": (20, 3), "1e6": (43, 3), "1e7": (94, 3)}
COLUMNS = 14


def _problem(size: int, width: int) -> tuple[tuple[int, ...], list[Measurement]]:
    """Return column sizes and noisy marginals of a random product distribution: 50,000 rows, noise of std 40."""
    rng, sizes = np.random.default_rng(0), (size,) * COLUMNS
    columns = [rng.dirichlet(np.full(size, 0.3)) for _ in sizes]
    result = []
    for start in range(COLUMNS - width + 1):
        clique: Clique = tuple(range(start, start + width))
        table = np.array(50_000.0)
        for column in clique:
            table = np.multiply.outer(table, columns[column])
        result.append(Measurement(clique, table + rng.normal(0, 40.0, table.shape), 40.0))
    return sizes, result


def _cpu(act: Callable[[], Any], repeats: int = 5) -> float:
    times = []
    for _ in range(repeats):
        start = time.process_time()
        act()
        times.append(time.process_time() - start)
    return statistics.median(times)


def _mbi_fit(sizes: tuple[int, ...], measurements: list[Measurement]) -> Callable[[], float]:
    """Return a function that fits with mbi's mirror descent and returns the loss."""
    import jax
    import mbi
    from mbi.estimation import MirrorDescent

    jax.config.update("jax_enable_x64", True)
    domain = mbi.Domain([str(column) for column in range(len(sizes))], sizes)
    named = [mbi.LinearMeasurement(m.values.ravel(), tuple(str(c) for c in m.clique), m.std) for m in measurements]

    def fit() -> float:
        model = MirrorDescent().estimate(domain, named, known_total=50_000.0, iters=ITERATIONS)
        error = 0.0
        for m in measurements:
            table = np.asarray(model.project(tuple(str(c) for c in m.clique)).datavector())
            error += float((((table - m.values.ravel()) / m.std) ** 2).sum()) / 2
        return error

    return fit


def _peak_gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def _row(name: str, with_mbi: bool) -> str:
    sizes, measurements = _problem(*MODELS[name])
    model: list[MarkovRandomField] = []

    def fit() -> None:
        model[:] = [estimate(sizes, measurements, 50_000.0, iterations=ITERATIONS, tolerance=0.0)]

    ours = _cpu(fit, 1 if name == "1e7" else 5) / ITERATIONS * 1e3
    rows = 1 << 20
    sampling = _cpu(lambda: model[0].sample(rows, np.random.default_rng(0)), 3)
    line = f"| {model[0].cells:,} | {ours:.2f} | {rows / sampling / 1e6:.2f} | {_peak_gigabytes():.2f} |"
    if with_mbi:
        fit_mbi = _mbi_fit(sizes, measurements)
        start = time.process_time()
        theirs_loss = fit_mbi()
        cold = time.process_time() - start
        theirs = _cpu(fit_mbi, 3) / ITERATIONS * 1e3
        line += f" {theirs:.2f} | {theirs / ours:.1f} | {cold:.1f} | {loss(model[0], measurements):.4g} |"
        line += f" {theirs_loss:.4g} |"
    print(line, flush=True)
    return line


def main() -> None:
    """Measure, print, and write one row for each model size into the benchmark page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mbi", action="store_true", help="measure mbi 2.0 beside it (compiles for minutes)")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[name for name in MODELS if name != "1e7"])
    arguments = parser.parse_args()
    header = "| cells | ms per step | million rows sampled/s | peak GB |"
    if arguments.mbi:
        header += " mbi, ms per step (warm) | ratio | mbi, first fit s | our loss | mbi's loss |"
    lines = [header, "|---" * (header.count("|") - 1) + "|"]
    lines += [_row(name, arguments.mbi) for name in arguments.models]
    text = (
        f"Fitting chains of {COLUMNS} columns to noisy tables, {ITERATIONS} steps; CPU time on one core, the median of "
        "five fits. mbi 2.0 runs in the same process; its first fit compiles.\n\n" + "\n".join(lines)
    )
    write_section(PAGE, "mrf", "Graphical model", text)


if __name__ == "__main__":
    main()
