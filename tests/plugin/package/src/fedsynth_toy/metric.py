"""Two toy metrics: one of evaluations and benchmarks, one of benchmarks alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from fedsynth.bench.metrics import FinishedRun
from fedsynth.evaluation.metric import Comparison, Metric
from fedsynth.rows import Table


def means(real: Table, other: Table) -> dict[str, float]:
    """Return how far the mean code of each column lies from the real one's."""
    pairs = zip(real.schema.names, real.codes, other.codes, strict=True)
    return {name: abs(float(np.mean(a)) - float(np.mean(b))) for name, a, b in pairs}


def comparisons(real: Table, seed: int) -> Iterator[Comparison]:
    """Yield the only score."""
    yield Comparison(means)


MEANS = Metric("toy-means", "means of codes", 0.0, comparisons)


def mean_difference(run: FinishedRun) -> Mapping[str, float]:
    """Return :func:`means` of the rows that a run was given, and of those that it made."""
    return means(run.real, run.synthetic)
