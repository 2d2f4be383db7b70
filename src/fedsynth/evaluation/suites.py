"""Sets of learners by which papers judge synthetic tables: how rows become features, who learns, what is scored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import Unsupported
from fedsynth.evaluation.features import is_numeric
from fedsynth.table import Table

Features = NDArray[np.float64]
Encode = Callable[[Table], Features]
Fit = Callable[[Table, Sequence[int]], Encode]  # on real training rows, for some columns
Learner = Callable[[int], Any]  # of a seed; what scikit-learn calls an estimator


@dataclass(frozen=True)
class Suite:
    """``fit`` turns rows into features, ``classifiers`` and ``regressors`` learn by name, ``scores`` name figures."""

    source: str
    fit: Fit
    classifiers: Mapping[str, Learner]
    scores: tuple[str, ...]
    regressors: Mapping[str, Learner]


# ---------------------------------------------------------------------------------------------------------------------
# Features


def integer_codes(real: Table, columns: Sequence[int]) -> Encode:
    """Take each column's code as a number."""
    return lambda table: np.stack([table.codes[column] for column in columns], axis=1).astype(np.float64)


def standardised(real: Table, columns: Sequence[int]) -> Encode:
    """Scale numbers by the real rows' mean and deviation (a missing one becomes the mean); take codes of categories."""
    scale: dict[int, tuple[float, float]] = {}
    for column in columns:
        if is_numeric(real, column):
            known = real.numbers[column][~np.isnan(real.numbers[column])]
            scale[column] = (float(known.mean()), float(known.std()) or 1.0) if len(known) else (0.0, 1.0)

    def encode(table: Table) -> Features:
        parts = []
        for column in columns:
            if column in scale:
                mean, deviation = scale[column]
                parts.append(np.nan_to_num((table.numbers[column] - mean) / deviation))
            else:
                parts.append(table.codes[column].astype(np.float64))
        return np.stack(parts, axis=1)

    return encode


def one_hot(real: Table, columns: Sequence[int]) -> Encode:
    """Scale numbers as :func:`standardised` does, with a mark for missing ones; one feature for each category."""
    scaled = standardised(real, columns)

    def encode(table: Table) -> Features:
        return _with_categories(table, columns, scaled(table))

    return encode


def quantiles_and_one_hot(real: Table, columns: Sequence[int]) -> Encode:
    """Map numbers to a normal law by the real rows' quantiles (a missing one to its middle); one-hot categories."""
    from sklearn.preprocessing import QuantileTransformer

    maps: dict[int, Any] = {}
    for column in columns:
        known = real.numbers[column][~np.isnan(real.numbers[column])] if is_numeric(real, column) else np.empty(0)
        if len(known):
            many = min(int(np.clip(len(real) // 30, 10, 1000)), len(known))
            maps[column] = QuantileTransformer(
                n_quantiles=many, output_distribution="normal", subsample=None, random_state=0
            ).fit(known[:, None])

    def encode(table: Table) -> Features:
        parts = np.zeros((len(table), len(columns)))
        for at, column in enumerate(columns):
            if column in maps:
                known = ~np.isnan(table.numbers[column])
                if known.any():
                    parts[known, at] = maps[column].transform(table.numbers[column][known, None])[:, 0]
        return _with_categories(table, columns, parts)

    return encode


def _with_categories(table: Table, columns: Sequence[int], numbers: Features) -> Features:
    """Return the features of numbers (with a mark where one is missing), and one feature for each category."""
    parts: list[Features] = []
    for at, column in enumerate(columns):
        if is_numeric(table, column):
            parts.append(numbers[:, at : at + 1])
            if table.schema.columns[column].missing:
                parts.append(np.isnan(table.numbers[column]).astype(np.float64)[:, None])
        else:
            parts.append((table.codes[column][:, None] == np.arange(table.schema.sizes[column])).astype(np.float64))
    return np.concatenate(parts, axis=1)


# ---------------------------------------------------------------------------------------------------------------------
# Learners


def _sklearn(module: str, name: str, **options: Any) -> Learner:
    """Return a factory of a scikit-learn estimator; what takes a seed gets it."""

    def make(seed: int) -> Any:
        import importlib
        import inspect

        try:
            kind = getattr(importlib.import_module(f"sklearn.{module}"), name)
        except ImportError as error:
            raise Unsupported("utility needs scikit-learn; pip install 'fedsynth[evaluate]'") from error
        seeded = {"random_state": seed} if "random_state" in inspect.signature(kind).parameters else {}
        return kind(**options, **seeded)

    return make


def _xgboost(name: str, **options: Any) -> Learner:
    def make(seed: int) -> Any:
        try:
            import xgboost
        except ImportError as error:
            raise Unsupported("this suite needs XGBoost; pip install xgboost-cpu, or choose another suite") from error
        return getattr(xgboost, name)(random_state=seed, n_jobs=1, **options)

    return make


_FOREST = _sklearn("ensemble", "RandomForestClassifier")
_BAYES = _sklearn("naive_bayes", "GaussianNB")
_TREES = _sklearn("ensemble", "RandomForestRegressor")

SUITES: dict[str, Suite] = {
    "default": Suite(
        "three families of learners with different strengths, fast enough to repeat",
        one_hot,
        {
            "gradient boosting": _sklearn("ensemble", "HistGradientBoostingClassifier"),
            "random forest": _sklearn("ensemble", "RandomForestClassifier", min_samples_leaf=2),
            "logistic regression": _sklearn("linear_model", "LogisticRegression", max_iter=2000),
        },
        ("ROC AUC", "macro F1"),
        {
            "gradient boosting": _sklearn("ensemble", "HistGradientBoostingRegressor"),
            "random forest": _sklearn("ensemble", "RandomForestRegressor", min_samples_leaf=2),
            "ridge regression": _sklearn("linear_model", "Ridge"),
        },
    ),
    "flaim": Suite(
        "FLAIM, arXiv 2310.06447",
        integer_codes,
        {"gradient boosting": _sklearn("ensemble", "GradientBoostingClassifier", n_estimators=100, max_depth=4)},
        ("ROC AUC",),
        {"gradient boosting": _sklearn("ensemble", "GradientBoostingRegressor", n_estimators=100, max_depth=4)},
    ),
    "thesis": Suite(
        "the thesis of FedBN and FedVAE, whose ROC AUC is that of hard labels",
        standardised,
        {
            "random forest": _FOREST,
            "naive Bayes": _BAYES,
            "5 neighbours": _sklearn("neighbors", "KNeighborsClassifier"),
        },
        ("ROC AUC", "ROC AUC of hard labels (as published)"),
        {"random forest": _TREES, "5 neighbours": _sklearn("neighbors", "KNeighborsRegressor")},
    ),
    "fedtabdiff": Suite(
        "FedTabDiff, arXiv 2401.06263, which reports accuracy alone",
        one_hot,
        {
            "random forest": _FOREST,
            "decision tree": _sklearn("tree", "DecisionTreeClassifier"),
            "logistic regression": _sklearn("linear_model", "LogisticRegression", max_iter=2000),
            "AdaBoost": _sklearn("ensemble", "AdaBoostClassifier"),
            "naive Bayes": _BAYES,
        },
        ("accuracy", "macro F1", "ROC AUC"),
        {
            "random forest": _TREES,
            "decision tree": _sklearn("tree", "DecisionTreeRegressor"),
            "linear regression": _sklearn("linear_model", "LinearRegression"),
            "AdaBoost": _sklearn("ensemble", "AdaBoostRegressor"),
        },
    ),
    "heterofedsyn": Suite(
        "HeteroFedSyn and SynMeter, arXiv 2402.06806, with the libraries' own settings",
        quantiles_and_one_hot,
        {
            "random forest": _FOREST,
            "MLP": _sklearn("neural_network", "MLPClassifier", max_iter=60),
            "XGBoost": _xgboost("XGBClassifier"),
        },
        ("weighted F1",),
        {
            "random forest": _TREES,
            "MLP": _sklearn("neural_network", "MLPRegressor", max_iter=200),
            "XGBoost": _xgboost("XGBRegressor"),
        },
    ),
}
