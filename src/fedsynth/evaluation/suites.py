"""Suites of learners: feature encoding, learners and scores.

They measure utility: how well learners that were trained on synthetic rows predict a column of real rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

from fedsynth.errors import InvalidParameter, from_extra, nearest
from fedsynth.evaluation.features import Fit, integer_codes, one_hot
from fedsynth.plugins import named

Learner = Callable[..., Any]  # takes a seed and options by name, returns a scikit-learn estimator


@dataclass(frozen=True)
class Suite:
    """A suite of learners that measures the utility of synthetic rows: feature encoding, learners and scores.

    - ``source``: its origin, and ``features``: the encoding of numbers, missing numbers and categories; in words, for
      reports.
    - ``fit``: maps a real table and column positions to a function from tables to features, ``(rows, features)``.
    - ``classifiers``, ``regressors``: map names to functions of a seed, and hyperparameters by keyword, that return an
      unfitted scikit-learn estimator.
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
        """Return the suite with other hyperparameters of some learners, which then no longer count as deterministic.

        ``parameters`` maps names of learners to keyword arguments of their estimators. Raises :class:`InvalidParameter`
        for an unknown learner.
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


def sklearn_learner(module: str, name: str, **options: Any) -> Learner:
    """Return a factory of the estimator ``sklearn.module.name``: it takes a seed, and keywords to replace ``options``.

    It raises :class:`Unsupported` without scikit-learn.
    """

    def make(seed: int, **changed: Any) -> Any:
        import inspect

        with from_extra("evaluate", "utility needs scikit-learn"):
            kind = getattr(import_module(f"sklearn.{module}"), name)
        seeded = {"random_state": seed} if "random_state" in inspect.signature(kind).parameters else {}
        return kind(**{**options, **seeded, **changed})

    return make


ONE_HOT = "numbers standardised (missing: the mean, with an indicator), categories one-hot"

# Early stopping is off in the default suite: it holds rows out by class, and fails on a class with one row.
_BOOSTING = {
    kind: {"gradient boosting": sklearn_learner("ensemble", f"HistGradientBoosting{kind}", early_stopping=False)}
    for kind in ("Classifier", "Regressor")
}
SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite(
            "default",
            "three kinds of learners, fast enough to repeat",
            ONE_HOT,
            one_hot,
            {
                **_BOOSTING["Classifier"],
                "random forest": sklearn_learner("ensemble", "RandomForestClassifier", min_samples_leaf=2),
                "logistic regression": sklearn_learner("linear_model", "LogisticRegression", max_iter=2000),
            },
            ("ROC AUC", "macro F1"),
            {
                **_BOOSTING["Regressor"],
                "random forest": sklearn_learner("ensemble", "RandomForestRegressor", min_samples_leaf=2),
                "ridge regression": sklearn_learner("linear_model", "Ridge"),
            },
            fixed=frozenset({"gradient boosting", "logistic regression", "ridge regression"}),
        ),
        Suite(
            "boosting",
            "one learner of the default suite",
            ONE_HOT,
            one_hot,
            _BOOSTING["Classifier"],
            ("ROC AUC", "macro F1"),
            _BOOSTING["Regressor"],
            fixed=frozenset(_BOOSTING["Classifier"]),
        ),
        Suite(
            "flaim",
            "FLAIM, arXiv 2310.06447",
            "codes as numbers, missing values included",
            integer_codes,
            {
                "gradient boosting": sklearn_learner(
                    "ensemble", "GradientBoostingClassifier", n_estimators=100, max_depth=4
                )
            },
            ("ROC AUC",),
            {
                "gradient boosting": sklearn_learner(
                    "ensemble", "GradientBoostingRegressor", n_estimators=100, max_depth=4
                )
            },
        ),
    )
}
"""The suites of fedsynth itself."""
_PUBLISHED = {
    name: f"fedsynth.bench.published.suites:{name.upper()}" for name in ("thesis", "fedtabdiff", "heterofedsyn")
}
SUITE_NAMES = (*SUITES, *_PUBLISHED)
"""The names of all suites: fedsynth's own, then those of publications, which are imported when one is used."""


def find_suite(suite: str | Suite) -> Suite:
    """Return the suite with this name (a :class:`Suite` as it is); :class:`InvalidParameter` for an unknown name."""
    if isinstance(suite, Suite):
        return suite
    if suite not in SUITE_NAMES:
        raise InvalidParameter(f"--suites {suite}: unknown suite of learners; {nearest(suite, SUITE_NAMES)}")
    found: Suite = SUITES[suite] if suite in SUITES else named(_PUBLISHED[suite])
    return found


@contextmanager
def quiet() -> Iterator[None]:
    """A context manager that suppresses two warnings of scikit-learn: no convergence, and many classes for the rows."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", "The number of unique classes is greater than 50%", UserWarning)
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """A context manager and decorator that bounds the pools of BLAS and OpenMP (scikit-learn) to one thread.

    The threads of these pools wait for each other by spinning: on a machine whose cores are busy, two of them take many
    times the CPU time of one.
    """
    try:
        import_module("sklearn")  # a limit applies to the libraries that are loaded
        limits = import_module("threadpoolctl").threadpool_limits(1)
    except ImportError:
        limits = nullcontext()
    with limits:
        yield
