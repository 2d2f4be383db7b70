"""Metrics exactly as single papers compute them, flaws included: only to reproduce their tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedsynth.bench.metrics import FinishedRun
from fedsynth.evaluation.attacks import attribute_disclosure
from fedsynth.evaluation.distances import drawn, nearest
from fedsynth.evaluation.features import labels, ordinal
from fedsynth.evaluation.similarity import sdmetrics_fidelity
from fedsynth.evaluation.utility import scores_by_test
from fedsynth.rows import concatenate, workload_error
from fedsynth.schema.columns import Categorical

CLUSTERS = range(2, 21)
ATTACKERS = {
    "random forest": "RF",
    "support vector machine": "SVM",
    "naive Bayes": "NB",
    "nearest neighbours": "KNN",
    "logistic regression": "LR",
    "majority": "ENS",
}
"""The thesis's abbreviations of attackers."""


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


def distances_to_rows(run: FinishedRun, rows: int = 10_000, draws: int = 3) -> dict[str, float]:
    """Return the distances of synthetic rows to the nearest training and hold-out row, as the FedBN thesis has them.

    Features are numbers and codes of categories, each scaled by its mean and standard deviation in the training rows.
    The thesis does not state its scale. On this one, the mean distance between two parts of Adult's real rows is .75,
    where its tables have .70 to .72 for a Bayesian network without noise; without scaled codes it is .97, with one-hot
    categories .90, and scaled to the range .14 to .39. Of the synthetic rows, ``rows`` are taken at random, where the
    thesis takes all; of the training rows as many as there are hold-out rows, anew in each of ``draws`` draws (thesis:
    ten), without replacement.

    The keys are "min", the smallest distance to a training row; "training" and "hold-out", the mean distances; and
    "share", that of synthetic rows closer to a training row than to a hold-out row (0.5 at best; ties count half).
    """
    rng = np.random.default_rng(run.seed)
    training = ordinal(run.real)
    mean, scale = training.mean(axis=0), training.std(axis=0)
    scale[scale == 0] = 1.0

    def points(features: NDArray[np.float64]) -> NDArray[np.float32]:
        scaled: NDArray[np.float32] = ((features - mean) / scale).astype(np.float32)
        return scaled

    synthetic = points(ordinal(drawn(run.synthetic, rows, rng)))
    held = nearest(synthetic, points(ordinal(run.test)))[0][:, 0]
    real = points(training)
    of_draws = []
    for _ in range(draws):
        chosen = rng.permutation(len(real))[: len(run.test)]
        near = nearest(synthetic, real[chosen])[0][:, 0]
        closer = (near < held).mean() + (near == held).mean() / 2
        of_draws.append((near.min(), near.mean(), held.mean(), closer))
    return dict(zip(("min", "training", "hold-out", "share"), np.mean(of_draws, axis=0).tolist(), strict=True))


def disclosure(run: FinishedRun, sensitive: str, known: Sequence[str], size: int = 3) -> dict[str, float]:
    """Return how often attackers trained on synthetic rows infer a training row's ``sensitive`` column, by attacker.

    They know ``size`` of the ``known`` columns, each subset in turn, as in the FedBN thesis and
    :func:`~fedsynth.evaluation.attacks.attribute_disclosure`; "DUM" always guesses the commonest value, "RMEAN" is the
    mean of all others. Attackers train on 3,000 rows and are tested on 3,000, where the thesis takes all.
    """
    index = run.real.schema.index
    rng = np.random.default_rng(run.seed)
    found = attribute_disclosure(run, index(sensitive), [index(name) for name in known], rng, size=size)
    accuracies = {ATTACKERS[name]: members for name, (members, _) in found.by_attacker.items()}
    return {**accuracies, "DUM": found.floor, "RMEAN": float(np.mean(list(accuracies.values())))}


def traffic(run: FinishedRun) -> dict[str, float]:
    """Return the megabytes (10^6 bytes) that sites "sent" and "received" in all, and the means "... by a site".

    Messages have their headers, and count once even if they were sent again. Floors have none.
    """
    sizes = [size for entry in run.ledger.entries for _, *size in entry.messages()] if run.ledger else []
    received, sent = np.sum(sizes, axis=0) / 1e6 if sizes else (math.nan, math.nan)
    sites = len(run.sites)
    return {
        "sent": float(sent),
        "received": float(received),
        "sent by a site": float(sent / sites),
        "received by a site": float(received / sites),
    }


def kernel_likelihood(run: FinishedRun, rows: int = 10_000) -> float:
    """Return the negative mean log-density (nats) of test rows under a Gaussian kernel estimate, as FLAIM has for GANs.

    The estimate is SciPy's (Scott's rule), of the codes of at most ``rows`` synthetic rows; columns of one value are
    left out of both. It is no likelihood of codes, which are discrete, so it compares with nothing but itself.
    """
    from scipy.stats import gaussian_kde

    codes = np.stack(run.synthetic.codes, axis=1).astype(np.float64)
    varies = np.ptp(codes, axis=0) > 0
    drawn_rows = np.random.default_rng(run.seed).permutation(len(codes))[:rows]
    estimate = gaussian_kde(codes[drawn_rows][:, varies].T)
    return float(-estimate.logpdf(np.stack(run.test.codes, axis=1).astype(np.float64)[:, varies].T).mean())


def fidelity_by_class(run: FinishedRun) -> dict[str, float]:
    """Return the fidelity of the synthetic rows to the training rows of each class, as FedTabDiff's Figure 2 has it.

    Each of the paper's sites has the rows of one class. Keys are the names of the target's values.
    """
    column, classes = run.real.schema.stored[run.real.schema.index(run.target)], labels(run.real, run.target)
    names = column.labels if isinstance(column, Categorical) else (False, True)
    return {
        str(names[value]): sdmetrics_fidelity(run.real.take(classes == value), run.synthetic)[""]
        for value in np.unique(classes)
    }


def heterogeneity(run: FinishedRun) -> dict[str, float]:
    """Return how different sites are: the mean over sites of the L1 distance of their marginals from those of all rows.

    The mean is over the marginals of the workload as well; each sums to 1, so that it lies between 0 and 2. "weighted"
    weights sites by their rows. FLAIM's Table 5 states the total variation, half of this, over all sets of up to three
    columns.
    """
    distances = [workload_error(run.real, site, run.workload).mean for site in run.sites]
    return {
        "mean": float(np.mean(distances)),
        "weighted": float(np.average(distances, weights=[len(site) for site in run.sites])),
    }


def site_augmentation(run: FinishedRun, suite: str = "boosting") -> dict[str, float]:
    """Return the scores on test rows of learners that each site trains on its own rows, and with the synthetic ones.

    They are means over sites and learners; "own rows" and "with synthetic rows" stand before the name of each score.
    Sites with rows of one class guess it.
    """
    found: dict[str, list[float]] = {}
    for number, site in enumerate(run.sites):
        known = concatenate([site, run.synthetic])
        for name, train in {"own rows": site, "with synthetic rows": known}.items():
            tests = {"": run.test}
            for score, by in scores_by_test(known, train, tests, run.target, suite, run.seed + number)[""].items():
                found.setdefault(f"{name}, {score}", []).append(float(np.mean(list(by.values()))))
    return {name: float(np.mean(values)) for name, values in found.items()}
