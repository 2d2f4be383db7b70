"""Utility of a synthetic table: scores on real rows of learners trained on it, beside learners trained on real rows."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import Unsupported, lacking, number_of
from fedsynth.evaluation.classifier_scores import auc_one_vs_one, f1
from fedsynth.evaluation.features import Features, integer_codes, is_numeric
from fedsynth.evaluation.references import cached
from fedsynth.evaluation.score import Estimate, Score, Verdict
from fedsynth.evaluation.suites import SUITES, Suite, find_suite, quiet
from fedsynth.progress import Progress, ignore_progress
from fedsynth.rows import Table

_MAX_ROWS = 50_000
Predict = Callable[[Features], tuple[Any, Features]]
"""A trained learner: from features to the classes and their probabilities, or to ``None`` and predicted values."""


@dataclass(frozen=True)
class Utility:
    """The result of :func:`train_synthetic_test_real`: ``auc``, the area under the ROC curve on real test rows.

    With more than two classes, ``auc`` is the one-vs-one macro average. ``trained_on`` is the number of training rows.
    ``note`` says if the training table could not train a classifier, so that ``auc`` is 0.5.
    """

    auc: float
    trained_on: int
    note: str = ""


def train_synthetic_test_real(train: Table, test: Table, target: int, seed: int, max_rows: int = _MAX_ROWS) -> Utility:
    """Train gradient boosting (100 trees of depth 4) on ``train`` and return its AUC on ``test``.

    ``target`` is the position of the column to predict, by class; a negative position counts from the end. As in FLAIM
    (arXiv 2310.06447), the features are the integers that number categories and bins. Of more than ``max_rows``
    training rows, a random sample is used. A training table with a single class scores 0.5; classes of ``test`` that it
    lacks get probability 0. Raises :class:`Unsupported` if ``test`` has a single class, or without scikit-learn.
    """
    rng = np.random.default_rng(seed)
    if len(train) > max_rows:
        train = train.take(rng.permutation(len(train))[:max_rows])
    target %= len(train.codes)
    encode = integer_codes(train, [column for column in range(len(train.codes)) if column != target])
    labels, tested = (table.codes[target].astype(np.int64) for table in (train, test))
    if len(np.unique(tested)) < 2:
        raise Unsupported(
            "the test rows hold one class only, so AUC is undefined; hold out more rows, or choose another target"
        )
    model = SUITES["flaim"].classifiers["gradient boosting"](seed)
    if len(np.unique(labels)) < 2:
        return Utility(0.5, len(train), "the training table holds one class only")
    model.fit(encode(train), labels)
    return Utility(auc_one_vs_one(tested, model.classes_, model.predict_proba(encode(test))), len(train))


_MAX_CLASSES = 50
_MAX_COLUMNS = 60  # features of a learner; boosting many classes with hundreds of columns takes many minutes
_KEPT, _LOST = 0.9, 0.05  # shares of the gain over the floor that training on real rows gives


def utility(
    real: Table,
    synthetic: Table,
    test: Table,
    target: str,
    *,
    suite: str | Suite = "default",
    seed: int = 0,
    repeats: int = 3,
    max_rows: int = 20_000,
    progress: Progress = ignore_progress,
) -> list[Score]:
    """Return how well learners trained on synthetic rows predict ``target`` in the real rows of ``test``.

    The result has one score for each score of the suite ("ROC AUC", "R2", ...), a mean over its learners; the reference
    is the same learner trained on ``real``. With a ROC AUC, "ROC AUC relative to real rows" is added, the gain over
    guessing divided by that of real rows, if these give a clear gain. Numbers and times are predicted by regression,
    and rows that lack one are left out; missing categories are a class. The learners train on equally many rows, at
    most ``max_rows``, drawn ``repeats`` times; ``test`` should not contain rows that a learner or the synthesizer was
    trained on. Intervals show the variation over draws and learners' seeds, not over test rows.

    The verdict compares two gains over a floor, which is the score of always guessing the commonest class of the real
    rows (or their mean): that of training on synthetic rows and that of training on real rows. It is "alarm" if the
    first gain is less than 5 % of the second; else "good" if it is at least 90 % of the second, or the score is not
    worse than the reference's interval; else "review". There is no verdict if the reference's interval reaches the
    floor, and none instead of "review" if the half-widths of both intervals, as a root sum of squares, reach the second
    gain.

    Raises :class:`SchemaError` for an unknown target, and :class:`Unsupported` for a constant target in the test rows,
    more than 50 classes, no column to learn from, or too few rows, and without a package of the suite.
    """
    column = real.schema.index(target)
    train_real, train_synthetic, test = (_known(table, column) for table in (real, synthetic, test))
    _refuse_unknown(target, train_real, train_synthetic, test)
    chosen = find_suite(suite)
    job = _task(chosen, column, train_real, test)
    rows = min(len(train_real), len(train_synthetic), max_rows)
    sides = (train_synthetic, train_real)

    @cache
    def learnt(at: int, name: str, repeat: int) -> dict[str, float]:
        """Return the scores of a learner that was trained on a draw of one side's rows."""
        rng = np.random.default_rng([seed, repeat])
        drawn = [rng.permutation(len(side))[:rows] for side in sides]
        return job.scores(name, sides[at].take(drawn[at]), seed + repeat)

    def reference(name: str, repeat: int) -> dict[str, float]:
        if not isinstance(suite, str):  # a tuned suite has the name of the one that it was made from
            return learnt(1, name, repeat)
        settings = (chosen.name, name, column, seed, repeat, rows, len(train_synthetic))
        return cached((train_real, test), settings, lambda: learnt(1, name, repeat))

    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for repeat in range(repeats):
        for number, name in enumerate(job.learners):
            progress(f"utility, {chosen.name}", repeat * len(job.learners) + number, repeats * len(job.learners))
            # A deterministic learner gives the same result for the same rows in any order.
            draws = [0 if name in chosen.fixed and len(side) == rows else repeat for side in sides]
            synthetic_scores, real_scores = learnt(0, name, draws[0]), reference(name, draws[1])
            for score, value in synthetic_scores.items():
                found.setdefault(score, {}).setdefault(name, []).append((value, real_scores[score]))
    progress(f"utility, {chosen.name}", 1, 1)
    note = (
        f"{rows:,} training rows a side, {len(test):,} test rows, {number_of(repeats, 'draw')}; "
        f"{chosen.name}: {chosen.source}; {chosen.features}"
    )
    if len(real.codes) - 1 > _MAX_COLUMNS:
        note += f"; {_MAX_COLUMNS} random columns of {len(real.codes) - 1} to learn from"
    lacks = job.lacks(train_synthetic)
    scores = [_score(target, score, values, job.floor[score], note, lacks) for score, values in found.items()]
    if "ROC AUC" in found:
        floor = job.floor["ROC AUC"]
        scores += _relative(next(one for one in scores if one.name == "ROC AUC"), found["ROC AUC"], floor)
    return scores


def scores_by_learner(
    real: Table, train: Table, test: Table, target: str, suite: str | Suite, seed: int
) -> dict[str, dict[str, float]]:
    """Return, by score and learner, the score on ``test`` after training once on all of ``train``.

    Features are fitted on ``real``, so that encodings do not depend on ``train``. The result looks like ``{"accuracy":
    {"random forest": 0.8}}``. Raises the errors of :func:`utility`.
    """
    return scores_by_test(real, train, {"": test}, target, suite, seed)[""]


def scores_by_test(
    real: Table, train: Table, tests: Mapping[str, Table], target: str, suite: str | Suite, seed: int
) -> dict[str, dict[str, dict[str, float]]]:
    """Return the scores of :func:`scores_by_learner` on each of ``tests``, of the same trained learners."""
    column = real.schema.index(target)
    real, train = (_known(table, column) for table in (real, train))
    known = {name: _known(test, column) for name, test in tests.items()}
    _refuse_unknown(target, real, train, *known.values())
    jobs = {name: _task(find_suite(suite), column, real, test) for name, test in known.items()}
    first = next(iter(jobs.values()))
    fitted = {learner: first.fit(learner, train, seed) for learner in first.learners}
    found = {
        name: {learner: job.scores_of(predict) for learner, predict in fitted.items()} for name, job in jobs.items()
    }
    return {
        name: {score: {learner: scores[score] for learner, scores in found[name].items()} for score in job.floor}
        for name, job in jobs.items()
    }


def _task(suite: Suite, column: int, real: Table, test: Table) -> _Classification | _Regression:
    if importlib.util.find_spec("sklearn") is None:
        raise lacking("evaluate", "utility needs scikit-learn")
    if len(real.codes) < 2:
        raise Unsupported("the table has no other column to learn the target from; utility needs at least 2 columns")
    kind = _Regression if is_numeric(real, column) else _Classification
    return kind(suite, column, real, test)


def _score(
    target: str, name: str, by_learner: Mapping[str, list[tuple[float, float]]], floor: float, note: str, lacks: str
) -> Score:
    values = np.array(list(by_learner.values()))  # (learners, repeats, 2): synthetic, real
    synthetic, reference = (Estimate.over(values[:, :, side].mean(axis=0).tolist()) for side in (0, 1))
    means = values.mean(axis=1)
    details = {learner: (float(means[at, 0]), float(means[at, 1])) for at, learner in enumerate(by_learner)}
    error = name == "RMSE"  # lower is better
    sign = -1 if error else 1
    teaches = sign * (reference.value - floor)
    kept = sign * (synthetic.value - floor) / teaches if teaches > 0 else math.nan
    reach = reference.high - reference.value  # nan after one draw: then all comparisons with it are false
    verdict: Verdict
    says = f"Synthetic rows keep {kept:.0%} of the gain over guessing {target} ({floor:.3f}) that real rows give."
    if not teaches > 0 or reach >= teaches:
        verdict, says = "", f"Training on real rows does not beat guessing ({floor:.3f}): there is no verdict."
    elif kept < _LOST:
        verdict, says = "alarm", f"Training on synthetic rows does not beat guessing {target} ({floor:.3f})."
    elif kept >= _KEPT or sign * (reference.value - synthetic.value) <= reach:
        verdict = "good"
    elif math.hypot(synthetic.high - synthetic.value, reach) >= teaches:
        verdict, says = "", f"{says} The draws vary by as much: there is no verdict."
    else:
        verdict = "review"
    says = f"{says} {lacks}".rstrip()
    reference_is = "the same learners trained on the real rows"
    best = 0.0 if error else 1.0
    problem = "Predictions are worse than those learnt from real rows"
    return Score(
        "utility", name, synthetic, reference, reference_is, best, note, details, verdict, says, problem=problem
    )


def _relative(score: Score, by_learner: Mapping[str, list[tuple[float, float]]], floor: float) -> list[Score]:
    """Return the AUC's gain over guessing relative to that of real rows; nothing if these give no clear gain."""
    gain = score.reference.value - floor
    if not gain > 0 or score.reference.high - score.reference.value >= gain:
        return []
    shares = (np.array(list(by_learner.values())).mean(axis=0) - floor) / gain  # (repeats, 2): synthetic, real
    synthetic, reference = (Estimate.over(shares[:, side].tolist()) for side in (0, 1))
    name = "ROC AUC relative to real rows"
    relative = replace(score, name=name, synthetic=synthetic, reference=reference, details={}, verdict="")
    return [relative]


def _known(table: Table, column: int) -> Table:
    """Return the rows with a known target, if it is numeric; otherwise all rows."""
    if not is_numeric(table, column):
        return table
    return table.take(~np.isnan(table.numbers[column]))


def predictors(real: Table, target: int) -> list[int]:
    """Return the positions of the columns to learn from: all but ``target``, at most 60.

    Of more, it is the same random choice for every table with as many columns and this target.
    """
    others = [column for column in range(len(real.codes)) if column != target]
    if len(others) <= _MAX_COLUMNS:
        return others
    return sorted(np.random.default_rng(0).choice(others, _MAX_COLUMNS, replace=False).tolist())


class _Classification:
    """Classification of one column: scores of the suite's classifiers on the test rows."""

    def __init__(self, suite: Suite, column: int, real: Table, test: Table) -> None:
        """Fit the features on real rows, and compute the scores of guessing (``floor``)."""
        self.learners, self._suite, self._column = suite.classifiers, suite, column
        self._encode = suite.fit(real, predictors(real, column))
        self._features, self._labels = self._encode(test), test.codes[column].astype(np.int64)
        self._classes, self._counts = np.unique(self._labels, return_counts=True)
        if len(self._classes) < 2:
            raise Unsupported(
                "the test rows hold one class only, so no classifier can be scored; hold out more rows, or "
                "choose another target"
            )
        _refuse_many(self._classes)
        _refuse_many(np.unique(real.codes[column]))
        commonest = np.bincount(real.codes[column]).argmax()
        self.floor = self._judge(np.array([commonest]), np.ones((len(test), 1)))

    def scores(self, learner: str, train: Table, seed: int) -> dict[str, float]:
        """Return each score of a classifier trained on ``train``; with constant features it guesses by frequency."""
        return self.scores_of(self.fit(learner, train, seed))

    def scores_of(self, predict: Predict) -> dict[str, float]:
        """Return each score of what :meth:`fit` has returned, also for other test rows."""
        return self._judge(*predict(self._features))

    def fit(self, learner: str, train: Table, seed: int) -> Predict:
        """Return the function of a trained classifier from features to the classes and their probabilities."""
        _refuse_few(self._suite, train)
        # Some learners require the classes 0, 1, 2, ...
        classes, numbered, counts = np.unique(train.codes[self._column], return_inverse=True, return_counts=True)
        _refuse_many(classes)
        features = self._encode(train)

        def guess(features: Features) -> tuple[NDArray[Any], Features]:
            return classes, np.tile(counts / len(train), (len(features), 1))

        if len(classes) < 2 or not np.ptp(features, axis=0).any():
            return guess
        model = self.learners[learner](seed)
        with quiet():
            try:
                model.fit(features, numbered)
            except ValueError as error:
                if "worse than random" not in str(error):
                    raise
                return guess  # AdaBoost refuses features without information on the target

        def predict(features: Features) -> tuple[NDArray[Any], Features]:
            with quiet():
                return classes, np.asarray(model.predict_proba(features))

        return predict

    def lacks(self, train: Table) -> str:
        """Return a sentence on the classes that ``train`` lacks; "" if it has all."""
        held = np.unique(train.codes[self._column])
        lacking = len(np.setdiff1d(self._classes, held))
        if len(held) < 2:
            return "The synthetic rows hold one class only."
        if lacking:
            return f"The synthetic rows lack {lacking} of the {len(self._classes)} classes of the test rows."
        return ""

    def _judge(self, classes: NDArray[Any], probability: NDArray[np.floating[Any]]) -> dict[str, float]:
        guess = classes[probability.argmax(axis=1)]
        judges: dict[str, Callable[[], float]] = {
            "ROC AUC": lambda: auc_one_vs_one(self._labels, classes, probability),
            "ROC AUC of hard labels (as published)": lambda: float(
                np.mean([(guess[self._labels == one] == one).mean() for one in self._classes])
            ),
            "accuracy": lambda: float((guess == self._labels).mean()),
            "macro F1": lambda: float(f1(self._labels, guess, self._classes).mean()),
            "weighted F1": lambda: float(np.average(f1(self._labels, guess, self._classes), weights=self._counts)),
        }
        return {name: judges[name]() for name in self._suite.scores}


class _Regression:
    """Regression of one column of numbers or times: scores of the regressors on the test rows.

    RMSE is in the column's units.
    """

    def __init__(self, suite: Suite, column: int, real: Table, test: Table) -> None:
        """Fit the features on real rows, and compute the scores of guessing (``floor``)."""
        self.learners, self._suite, self._column = suite.regressors, suite, column
        self._encode = suite.fit(real, predictors(real, column))
        self._features, self._values = self._encode(test), test.numbers[column]
        if not np.ptp(self._values):
            raise Unsupported("the target is constant in the test rows; hold out more rows, or choose another target")
        self.floor = self._judge(np.full(len(test), real.numbers[column].mean()))

    def scores(self, learner: str, train: Table, seed: int) -> dict[str, float]:
        """Return each score of a regressor trained on ``train``; the target is standardised for training."""
        return self.scores_of(self.fit(learner, train, seed))

    def scores_of(self, predict: Predict) -> dict[str, float]:
        """Return each score of what :meth:`fit` has returned, also for other test rows."""
        return self._judge(predict(self._features)[1])

    def fit(self, learner: str, train: Table, seed: int) -> Predict:
        """Return the function of a trained regressor from features to predicted values."""
        _refuse_few(self._suite, train)
        values = train.numbers[self._column]
        mean, deviation = float(values.mean()), float(values.std())
        if not np.ptp(values):
            return lambda features: (None, np.full(len(features), mean))
        model = self.learners[learner](seed)
        with quiet():
            model.fit(self._encode(train), (values - mean) / deviation)
        return lambda features: (None, np.asarray(model.predict(features), dtype=np.float64) * deviation + mean)

    def lacks(self, train: Table) -> str:
        """Return a sentence if the target is constant in ``train``, else ""."""
        return "" if np.ptp(train.numbers[self._column]) else "The synthetic rows hold one value of the target only."

    def _judge(self, guess: NDArray[np.float64]) -> dict[str, float]:
        squared = float(((guess - self._values) ** 2).mean())
        return {"R2": 1 - squared / float(self._values.var()), "RMSE": math.sqrt(squared)}


def _refuse_unknown(target: str, *tables: Table) -> None:
    if min(map(len, tables)) < 2:
        raise Unsupported(f"{target!r} has a value in fewer than 2 rows of a table; choose another target")


def _refuse_many(classes: NDArray[Any]) -> None:
    if len(classes) > _MAX_CLASSES:
        raise Unsupported(f"the target has {len(classes)} classes, more than {_MAX_CLASSES}; choose one with fewer")


def _refuse_few(suite: Suite, train: Table) -> None:
    if len(train) < suite.least_rows:
        raise Unsupported(
            f"the suite {suite.name} needs {suite.least_rows} training rows, not {len(train)}; choose another suite"
        )
