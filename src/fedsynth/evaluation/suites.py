"""Suites of learners, as used in papers: feature encoding, learners and scores.

They measure utility: how well learners that were trained on synthetic rows predict a column of real rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fedsynth.errors import InvalidParameter, Unsupported
from fedsynth.evaluation.features import Fit, integer_codes, one_hot, quantiles_and_one_hot, standardised

Learner = Callable[..., Any]  # takes a seed and options by name, returns a scikit-learn estimator


@dataclass(frozen=True)
class Suite:
    """A suite of learners that measures the utility of synthetic rows: feature encoding, learners and scores.

    - ``name``: its key in :data:`SUITES <fedsynth.evaluation.suites.SUITES>`; ``source``: its origin, and ``features``:
      the encoding of numbers, missing numbers and categories; both in words, for reports.
    - ``fit``: maps a real table and column positions to a function that encodes tables as features, shape
      ``(rows, features)``.
    - ``classifiers``, ``regressors``: map names to functions that take a seed, and hyperparameters by keyword, and
      return an unfitted scikit-learn estimator.
    - ``scores``: names of the scores of classifiers. Regressors have R2 and RMSE.
    - ``least_rows``: the fewest training rows that every learner of the suite can be trained on.
    - ``fixed``: names of deterministic learners: trained on the same rows in any order, they are equal up to rounding.
    """

    name: str
    source: str
    features: str
    fit: Fit
    classifiers: Mapping[str, Learner]
    scores: tuple[str, ...]
    regressors: Mapping[str, Learner]
    least_rows: int = 2
    fixed: frozenset[str] = frozenset()

    def tuned(self, parameters: Mapping[str, Mapping[str, Any]]) -> Suite:
        """Return the suite with other hyperparameters of some learners.

        ``parameters`` maps names of learners to keyword arguments of their estimators. Learners that it does not name
        keep their hyperparameters; those that it names no longer count as deterministic. Raises
        :class:`InvalidParameter` for an unknown learner.
        """
        for learner in parameters:
            if learner not in {*self.classifiers, *self.regressors}:
                known = ", ".join(dict.fromkeys((*self.classifiers, *self.regressors)))
                raise InvalidParameter(f"suite {self.name!r} has no learner {learner!r}; choose among {known}")
        classifiers, regressors = (
            {name: partial(make, **parameters.get(name, {})) for name, make in learners.items()}
            for learners in (self.classifiers, self.regressors)
        )
        return replace(self, classifiers=classifiers, regressors=regressors, fixed=self.fixed - frozenset(parameters))


# ---------------------------------------------------------------------------------------------------------------------
# Learners


def _sklearn(module: str, name: str, **options: Any) -> Learner:
    """Return a factory of a scikit-learn estimator; it passes the seed to estimators with a ``random_state``."""

    def make(seed: int, **changed: Any) -> Any:
        import importlib
        import inspect

        try:
            kind = getattr(importlib.import_module(f"sklearn.{module}"), name)
        except ImportError as error:
            raise Unsupported("utility needs scikit-learn; pip install 'fedsynth[evaluate]'") from error
        seeded = {"random_state": seed} if "random_state" in inspect.signature(kind).parameters else {}
        return kind(**{**options, **seeded, **changed})

    return make


def _xgboost(name: str) -> Learner:
    """Return a factory of an XGBoost estimator; XGBoost is a separate package."""

    def make(seed: int, **changed: Any) -> Any:
        try:
            import xgboost
        except ImportError as error:
            raise Unsupported("this suite needs XGBoost; pip install xgboost-cpu, or choose another suite") from error
        return getattr(xgboost, name)(**{"random_state": seed, "n_jobs": 1, **changed})

    return make


_FOREST = _sklearn("ensemble", "RandomForestClassifier")
_BAYES = _sklearn("naive_bayes", "GaussianNB")
_TREES = _sklearn("ensemble", "RandomForestRegressor")

_ONE_HOT = "numbers standardised (missing: the mean, with an indicator), categories one-hot"

# Early stopping is off in the default suite: it holds rows out by class, and fails on a class with one row.
# HeteroFedSyn tunes its learners for each data set: use :meth:`Suite.tuned`. Its published code renumbers the labels of
# each split, even for regression. The resulting errors of ranks are not comparable, so they are not offered.
_ALL = (
    Suite(
        "default",
        "three kinds of learners, fast enough to repeat",
        _ONE_HOT,
        one_hot,
        {
            "gradient boosting": _sklearn("ensemble", "HistGradientBoostingClassifier", early_stopping=False),
            "random forest": _sklearn("ensemble", "RandomForestClassifier", min_samples_leaf=2),
            "logistic regression": _sklearn("linear_model", "LogisticRegression", max_iter=2000),
        },
        ("ROC AUC", "macro F1"),
        {
            "gradient boosting": _sklearn("ensemble", "HistGradientBoostingRegressor", early_stopping=False),
            "random forest": _sklearn("ensemble", "RandomForestRegressor", min_samples_leaf=2),
            "ridge regression": _sklearn("linear_model", "Ridge"),
        },
        fixed=frozenset({"gradient boosting", "logistic regression", "ridge regression"}),
    ),
    Suite(
        "flaim",
        "FLAIM, arXiv 2310.06447",
        "codes as numbers, missing values included",
        integer_codes,
        {"gradient boosting": _sklearn("ensemble", "GradientBoostingClassifier", n_estimators=100, max_depth=4)},
        ("ROC AUC",),
        {"gradient boosting": _sklearn("ensemble", "GradientBoostingRegressor", n_estimators=100, max_depth=4)},
    ),
    Suite(
        "thesis",
        "the FedBN and FedVAE thesis, whose ROC AUC is that of hard labels",
        "numbers standardised (missing: the mean), codes of categories as numbers",
        standardised,
        {
            "random forest": _FOREST,
            "naive Bayes": _BAYES,
            "5 neighbours": _sklearn("neighbors", "KNeighborsClassifier"),
        },
        ("ROC AUC", "ROC AUC of hard labels (as published)"),
        {"random forest": _TREES, "5 neighbours": _sklearn("neighbors", "KNeighborsRegressor")},
        least_rows=5,
    ),
    Suite(
        "fedtabdiff",
        "FedTabDiff, arXiv 2401.06263, which reports accuracy only",
        _ONE_HOT,
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
    Suite(
        "heterofedsyn",
        "HeteroFedSyn and SynMeter, arXiv 2402.06806; not tuned, at most 60 epochs of the MLP (200 in regression)",
        "numbers mapped to normal scores (missing: 0, with an indicator), categories one-hot",
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
)

SUITES: dict[str, Suite] = {suite.name: suite for suite in _ALL}


@contextmanager
def quiet() -> Iterator[None]:
    """A context manager (for a ``with`` block) that suppresses two warnings of scikit-learn and yields nothing.

    The warnings say that a learner has not converged, and that there are many classes for the number of rows.
    """
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", "The number of unique classes is greater than 50%", UserWarning)
        yield
