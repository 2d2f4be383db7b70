"""Metrics of single papers, quirks included, for their tables only."""

from __future__ import annotations

import math

import numpy as np

from fedsynth.evaluation.features import ordinal
from fedsynth.evaluation.metrics import Run

CLUSTERS = range(2, 21)


def hellinger_of_values(run: Run) -> float:
    """Return the mean Hellinger distance of columns over their single values: what the FedBN thesis's M-HD comes to.

    Finer than any bins, so that near-unique columns score about 0.2 on real rows against real rows.
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


def luckiest_log_cluster(run: Run, rows: int = 30_000) -> float:
    """Return the FedBN thesis's log-cluster metric as published: its minimum over 2 to 20 clusters, in bits.

    That is mostly the luck of two clusters: real rows against real rows differ by many units between draws. The thesis
    names no base; its figures tell of 2. Two clusters, one of them without any real row, have a mean square of 1/8:
    -3 in bits, as its nine figures for Adult at epsilon 0.5 (-3.02 to -3.04), but -2.1 in nats. And its figures
    without noise, -18 to -20 on average, are those of a second sample of real rows in bits, out of its reach in nats.
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
