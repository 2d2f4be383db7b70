"""Suites of learners as publications use them, to measure utility as they do."""

from __future__ import annotations

from typing import Any

from fedsynth.errors import Unsupported
from fedsynth.evaluation.features import one_hot, quantiles_and_one_hot, standardised
from fedsynth.evaluation.suites import ONE_HOT, Learner, Suite, sklearn_learner


def _xgboost(name: str) -> Learner:
    """Return a factory of an XGBoost estimator; XGBoost is a separate package."""

    def make(seed: int, **changed: Any) -> Any:
        try:
            import xgboost
        except ImportError as error:
            raise Unsupported("this suite needs XGBoost; pip install xgboost-cpu, or choose another suite") from error
        return getattr(xgboost, name)(**{"random_state": seed, "n_jobs": 1, **changed})

    return make


_FOREST = sklearn_learner("ensemble", "RandomForestClassifier")
_BAYES = sklearn_learner("naive_bayes", "GaussianNB")
_TREES = sklearn_learner("ensemble", "RandomForestRegressor")

THESIS = Suite(
    "thesis",
    "the FedBN and FedVAE thesis, whose ROC AUC is that of hard labels",
    "numbers standardised (missing: the mean), codes of categories as numbers",
    standardised,
    {
        "random forest": _FOREST,
        "naive Bayes": _BAYES,
        "5 neighbours": sklearn_learner("neighbors", "KNeighborsClassifier"),
    },
    ("ROC AUC", "ROC AUC of hard labels (as published)"),
    {"random forest": _TREES, "5 neighbours": sklearn_learner("neighbors", "KNeighborsRegressor")},
    least_rows=5,
)
FEDTABDIFF = Suite(
    "fedtabdiff",
    "FedTabDiff, arXiv 2401.06263, which reports accuracy only",
    ONE_HOT,
    one_hot,
    {
        "random forest": _FOREST,
        "decision tree": sklearn_learner("tree", "DecisionTreeClassifier"),
        "logistic regression": sklearn_learner("linear_model", "LogisticRegression", max_iter=2000),
        "AdaBoost": sklearn_learner("ensemble", "AdaBoostClassifier"),
        "naive Bayes": _BAYES,
    },
    ("accuracy", "macro F1", "ROC AUC"),
    {
        "random forest": _TREES,
        "decision tree": sklearn_learner("tree", "DecisionTreeRegressor"),
        "linear regression": sklearn_learner("linear_model", "LinearRegression"),
        "AdaBoost": sklearn_learner("ensemble", "AdaBoostRegressor"),
    },
)
# HeteroFedSyn tunes its learners for each data set: use :meth:`Suite.tuned`. Its published code renumbers the labels of
# each split, even for regression. The resulting errors of ranks are not comparable, so they are not offered.
HETEROFEDSYN = Suite(
    "heterofedsyn",
    "HeteroFedSyn and SynMeter, arXiv 2402.06806; not tuned, at most 60 epochs of the MLP (200 in regression)",
    "numbers mapped to normal scores (missing: 0, with an indicator), categories one-hot",
    quantiles_and_one_hot,
    {
        "random forest": _FOREST,
        "MLP": sklearn_learner("neural_network", "MLPClassifier", max_iter=60),
        "XGBoost": _xgboost("XGBClassifier"),
    },
    ("weighted F1",),
    {
        "random forest": _TREES,
        "MLP": sklearn_learner("neural_network", "MLPRegressor", max_iter=200),
        "XGBoost": _xgboost("XGBRegressor"),
    },
)
