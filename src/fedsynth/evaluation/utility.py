"""How useful a synthetic table is: a classifier trained on it, tested on real rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsynth.errors import Unsupported
from fedsynth.table import Table

_MAX_ROWS = 50_000


@dataclass(frozen=True)
class Utility:
    """Area under the ROC curve on real rows (multiclass: one-vs-one, macro), and what was done to get it.

    ``trained_on`` rows; ``note`` says when the training table could not train a classifier and 0.5 stands for
    it.
    """

    auc: float
    trained_on: int
    note: str = ""


def train_synthetic_test_real(train: Table, test: Table, target: int, seed: int, max_rows: int = _MAX_ROWS) -> Utility:
    """Train gradient boosting (100 trees of depth 4) on ``train`` and return its AUC on ``test``.

    As in FLAIM (arXiv 2310.06447): integer codes serve as numeric features. Of more than ``max_rows``
    training rows a random sample is used. A training table of one class knows nothing and scores 0.5; classes
    of ``test`` that it lacks get probability 0. Pass a real training table for the train-real baseline. Needs
    the extra ``evaluate``.
    """
    try:
        from sklearn.ensemble import GradientBoostingClassifier
        from sklearn.metrics import roc_auc_score
    except ImportError as error:
        raise Unsupported("utility needs scikit-learn; pip install 'fedsynth[evaluate]'") from error
    rng = np.random.default_rng(seed)
    if len(train) > max_rows:
        train = train.take(rng.permutation(len(train))[:max_rows])
    features, labels = _split(train, target)
    test_features, test_labels = _split(test, target)
    classes = np.unique(test_labels)
    if len(classes) < 2:
        raise Unsupported(
            "the test rows hold one class only, so no AUC exists; hold out more rows, or choose another target"
        )
    if len(np.unique(labels)) < 2:
        return Utility(0.5, len(train), "the training table holds one class only")
    model = GradientBoostingClassifier(n_estimators=100, max_depth=4, random_state=seed).fit(features, labels)
    scores = np.zeros((len(test_labels), len(classes)))
    known = np.isin(model.classes_, classes)
    scores[:, np.searchsorted(classes, model.classes_[known])] = model.predict_proba(test_features)[:, known]
    if len(classes) == 2:
        # With a class that only training rows hold, its mass must not count against the positive one.
        positive = scores[:, 1] / np.maximum(scores.sum(axis=1), 1e-300)
        return Utility(float(roc_auc_score(test_labels, positive)), len(train))
    scores += 1e-12  # rows must sum to one even where every known class has none
    scores /= scores.sum(axis=1, keepdims=True)
    auc = roc_auc_score(test_labels, scores, multi_class="ovo", average="macro", labels=classes)
    return Utility(float(auc), len(train))


def _split(
    table: Table, target: int
) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.float64]], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    target %= len(table.codes)
    features = [column for j, column in enumerate(table.codes) if j != target]
    return np.stack(features, axis=1).astype(np.float64), table.codes[target].astype(np.int64)
