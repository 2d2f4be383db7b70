"""Metrics exactly as single papers compute them, flaws included: only to reproduce their tables."""

from __future__ import annotations

import math

import numpy as np

from fedsynth.evaluation.features import ordinal
from fedsynth.evaluation.metrics import FinishedRun

CLUSTERS = range(2, 21)


def hellinger_of_values(run: FinishedRun) -> float:
    """Return the mean Hellinger distance of columns over single values, which is the M-HD of the FedBN thesis.

    Single values are finer than any bins, so near-unique columns score about 0.2 on real rows against real rows.
    """
    distances = []
    for column in range(len(run.real.codes)):
        one, two = (t.numbers[column] if column in t.numbers else t.codes[column] for t in (run.real, run.synthetic))
        _, which = np.unique(np.concatenate([one, two]), return_inverse=True)
        p, q = np.bincount(which[: len(one)]), np.bincount(which[len(one) :])
        size = min(len(p), len(q))
        affinity = np.sqrt(p[:size] / len(one) * (q[:size] / len(two))).sum()
        distances.append(math.sqrt(max(0.0, 1 - float(affinity))))
    return float(np.mean(distances))


def luckiest_log_cluster(run: FinishedRun, rows: int = 30_000) -> float:
    """Return the FedBN thesis's log-cluster metric as published: its minimum over 2 to 20 clusters, in bits.

    The minimum is mostly noise: real rows against real rows differ by many units between draws, often at two clusters.
    The thesis does not state the base of the logarithm; its figures imply base 2. Two clusters, one of them without a
    real row, have a mean square of 1/8: that is -3 in bits, as the nine figures for Adult at epsilon 0.5 (-3.02 to
    -3.04), but -2.1 in nats. Its figures without noise, -18 to -20 on average, are those of a second sample of real
    rows in bits; in nats such a sample does not reach them.
    """
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import StandardScaler

    real, synthetic = run.shuffled(rows)
    points = StandardScaler().fit_transform(np.concatenate([ordinal(real), ordinal(synthetic)]))
    space = PCA(0.85, svd_solver="full").fit_transform(points)
    found = []
    for clusters in CLUSTERS:
        where = KMeans(clusters, n_init=1, random_state=run.seed).fit_predict(space)
        share = np.bincount(where[: len(real)], minlength=clusters) / np.bincount(where, minlength=clusters)
        found.append(float(((share - 0.5) ** 2).mean()))
    return math.log2(max(min(found), (0.25 / len(real)) ** 2))
