"""A toy metric."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedsynth.bench.metrics import FinishedRun


def mean_difference(run: FinishedRun) -> Mapping[str, float]:
    """Return how far the mean code of each column lies from the real one's."""
    names = run.real.schema.names
    pairs = zip(run.real.codes, run.synthetic.codes, strict=True)
    return {name: abs(float(np.mean(a)) - float(np.mean(b))) for name, (a, b) in zip(names, pairs, strict=True)}
