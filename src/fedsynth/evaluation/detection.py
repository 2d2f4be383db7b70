"""Detection metrics: how well a classifier or a clustering tells synthetic rows from real ones."""

from __future__ import annotations

import math
import warnings

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import from_extra
from fedsynth.evaluation.features import MixedSpace, ordinal
from fedsynth.rows import Table, concatenate

_LEAF = 50  # rows; smaller leaves fit noise: an unpruned tree scores 0.23 on real against real


def propensity_mse(real: Table, other: Table, seed: int) -> float:
    """Return the propensity mean squared error of a classification tree, between 0 (cannot tell) and 0.25.

    The mean of (p - 1/2)^2 over equally many rows of both tables, with p the tree's probability that a row is from
    ``other``, out of sample from cross-validation with five folds (fewer with fewer rows; Snoke et al. 2018, doi
    10.1111/rssa.12358, compute p in sample and therefore need a null distribution). If a table has a single row, the
    result is 0. Leaves have at least 50 rows, or a tenth of the smaller table's rows if that is fewer. Raises
    :class:`Unsupported` without scikit-learn (the extra ``evaluate``).
    """
    with from_extra("evaluate", "propensity needs scikit-learn"):
        from sklearn.model_selection import StratifiedKFold, cross_val_predict
        from sklearn.tree import DecisionTreeClassifier
    one, two = _equally_many(real, other, seed)
    features = np.concatenate([ordinal(one), ordinal(two)])
    labels = np.repeat([0, 1], len(one))
    if len(one) < 2:
        return 0.0  # cross-validation needs two rows of each
    leaf = max(1, min(_LEAF, len(one) // 10))
    folds = StratifiedKFold(min(5, len(one)), shuffle=True, random_state=seed)
    tree = DecisionTreeClassifier(min_samples_leaf=leaf, random_state=seed)
    propensity = cross_val_predict(tree, features, labels, cv=folds, method="predict_proba")[:, 1]
    return float(((propensity - 0.5) ** 2).mean())


def log_cluster(real: Table, other: Table, seed: int, clusters: int = 20) -> float:
    """Return the log-cluster metric for a fixed number of ``clusters``; lower is better.

    The natural logarithm of the mean over clusters of (share of real rows - 1/2)^2, with equally many rows of both
    tables clustered together by k-means on the principal components that hold 85 % of the variance (Goncalves et al.
    2020, doi 10.1186/s12874-020-00977-1). ``seed`` draws the rows of the larger table and the initial clusters. Others
    publish the minimum over numbers of clusters, which selects noise: real against real then varies by several units.
    Raises :class:`Unsupported` without scikit-learn (the extra ``evaluate``).
    """
    with from_extra("evaluate", "log-cluster needs scikit-learn"):
        from sklearn.cluster import KMeans
        from sklearn.decomposition import PCA
        from sklearn.exceptions import ConvergenceWarning
    one, two = _equally_many(real, other, seed)
    space = MixedSpace.of(real).coordinates(concatenate([one, two]))
    if not np.ptp(space, axis=0).any():
        return _log_deviation(np.array([0.5]), len(one))
    projected = PCA(0.85, svd_solver="covariance_eigh" if space.shape[0] > space.shape[1] else "full").fit_transform(
        space
    )
    few = len(np.unique(space[: 50 * clusters], axis=0))  # mostly enough, and sorting all rows takes as long as k-means
    many = clusters if few >= clusters else min(clusters, len(np.unique(space, axis=0)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # equal rows after projection: fewer clusters
        found = KMeans(many, n_init=1, random_state=seed).fit_predict(projected)
    sizes = np.bincount(found, minlength=many)
    real_share = np.bincount(found[: len(one)], minlength=many)[sizes > 0] / sizes[sizes > 0]
    return _log_deviation(real_share, len(one))


def _log_deviation(shares: NDArray[np.float64], rows: int) -> float:
    """Return the log of the mean squared deviation of shares from 1/2; at least that of half a row, to avoid log 0."""
    return math.log(max(float(((shares - 0.5) ** 2).mean()), (0.25 / rows) ** 2))


def _equally_many(real: Table, other: Table, seed: int) -> tuple[Table, Table]:
    size = min(len(real), len(other))
    rng = np.random.default_rng(seed)
    one, two = (
        table if len(table) == size else table.take(rng.permutation(len(table))[:size]) for table in (real, other)
    )
    return one, two
