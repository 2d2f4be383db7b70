"""Suites of learners: feature encoding, learners and scores.

They measure utility: how well learners that were trained on synthetic rows predict a column of real rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fedsynth.errors import InvalidParameter, Unsupported, nearest
from fedsynth.evaluation.features import Fit, integer_codes, one_hot
from fedsynth.plugins import named

Learner = Callable[..., Any]  # takes a seed and options by name, returns a scikit-learn estimator


@dataclass(frozen=True)
class Suite:
    """A suite of learners that measures the utility of synthetic rows: feature encoding, learners and scores.

    - ``name``: what :func:`find_suite` knows it by; ``source``: its origin, and ``features``:
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


def sklearn_learner(module: str, name: str, **options: Any) -> Learner:
    """Return a factory of a scikit-learn estimator; it passes the seed to estimators with a ``random_state``.

    ``module`` is that of ``sklearn``, ``name`` the class and ``options`` its keyword arguments. The factory takes a
    seed, and keyword arguments that replace ``options``; it raises :class:`Unsupported` without scikit-learn.
    """

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


ONE_HOT = "numbers standardised (missing: the mean, with an indicator), categories one-hot"

# Early stopping is off in the default suite: it holds rows out by class, and fails on a class with one row.
SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite(
            "default",
            "three kinds of learners, fast enough to repeat",
            ONE_HOT,
            one_hot,
            {
                "gradient boosting": sklearn_learner(
                    "ensemble", "HistGradientBoostingClassifier", early_stopping=False
                ),
                "random forest": sklearn_learner("ensemble", "RandomForestClassifier", min_samples_leaf=2),
                "logistic regression": sklearn_learner("linear_model", "LogisticRegression", max_iter=2000),
            },
            ("ROC AUC", "macro F1"),
            {
                "gradient boosting": sklearn_learner("ensemble", "HistGradientBoostingRegressor", early_stopping=False),
                "random forest": sklearn_learner("ensemble", "RandomForestRegressor", min_samples_leaf=2),
                "ridge regression": sklearn_learner("linear_model", "Ridge"),
            },
            fixed=frozenset({"gradient boosting", "logistic regression", "ridge regression"}),
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
    """Return the suite of learners with this name (a :class:`Suite` is returned as it is).

    Raises :class:`InvalidParameter` for an unknown name.
    """
    if isinstance(suite, Suite):
        return suite
    if suite not in SUITE_NAMES:
        raise InvalidParameter(f"--suites {suite}: unknown suite of learners; {nearest(suite, SUITE_NAMES)}")
    found: Suite = SUITES[suite] if suite in SUITES else named(_PUBLISHED[suite])
    return found


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
