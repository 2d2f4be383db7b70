"""Scores of a federatedly trained classifier, after each round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter, Unsupported
from fedsynth.evaluation.classifier_scores import Integers, auc_one_vs_rest, f1
from fedsynth.evaluation.features import labels
from fedsynth.rows import Table

Probabilities = NDArray[np.float64]


@dataclass(frozen=True)
class ClassifierScores:
    """Scores of a classifier on one set of rows, each from 0 to 1; :func:`score` defines them."""

    accuracy: float
    macro_f1: float
    weighted_f1: float
    auc: float


@dataclass(frozen=True)
class TrainingCurve:
    """Scores of a classifier after each round: on ``test`` rows, and on those that sites held out (``validation``)."""

    test: tuple[ClassifierScores, ...]
    validation: tuple[ClassifierScores, ...] = ()

    @property
    def last(self) -> ClassifierScores:
        """The test scores after the last round."""
        return self.test[-1]

    @property
    def selected(self) -> ClassifierScores:
        """The test scores after the round with the largest score on the held-out rows, for each score separately.

        Test rows do not influence the selection. Raises :class:`Unsupported` if the sites held out no rows.
        """
        if not self.validation:
            raise Unsupported("no rows were held out to select a round; pass held=hold_out(...)[1], or use last")
        rounds = np.argmax([astuple(scores) for scores in self.validation], axis=0)
        return ClassifierScores(*(astuple(self.test[at])[which] for which, at in enumerate(rounds)))

    @property
    def published_maximum_over_test_rounds(self) -> ClassifierScores:
        """The largest of each score over all rounds, selected on the TEST rows, as Fed-TDA's code reports it.

        It is biased upwards, the more so the more the rounds differ: use it only to compare with the published figures
        of Fed-TDA (arXiv 2211.13116).
        """
        return ClassifierScores(*np.max([astuple(scores) for scores in self.test], axis=0).tolist())


def score(truth: Integers, probability: Probabilities) -> ClassifierScores:
    """Return the scores of predicted class probabilities against the rows' true classes.

    ``truth`` holds the number of each row's class, shape ``(rows,)``; column ``k`` of ``probability``, shape ``(rows,
    classes)``, is the probability of class ``k``. ``weighted_f1`` weights classes by their true numbers of rows; F1 and
    AUC are over the classes that occur in ``truth``. ``auc`` is, for more than two classes, the one-vs-rest mean.
    (Fed-TDA ranks by the raw output of the second class alone, which is no function of the probability.)

    Raises :class:`Unsupported` for rows of a single class, and :class:`InvalidParameter` for probabilities that are not
    finite.
    """
    if not np.isfinite(probability).all():
        raise InvalidParameter("the class probabilities are not finite: training diverged; lower the learning rate")
    counts = np.bincount(truth, minlength=probability.shape[1])
    held = np.flatnonzero(counts)
    if len(held) < 2:
        raise Unsupported("the rows to score hold a single class, so AUC is undefined; hold out more rows")
    guess = probability.argmax(axis=1)
    by_class = f1(truth, guess, held)
    return ClassifierScores(
        float((guess == truth).mean()),
        float(by_class.mean()),
        float(np.average(by_class, weights=counts[held])),
        auc_one_vs_rest(truth, probability),
    )


def majority(sites: Sequence[Table], test: Table, target: str) -> ClassifierScores:
    """Return the scores on ``test`` of always guessing the commonest class of the sites' rows, a floor.

    Raises :class:`Unsupported` for a numeric target, and for test rows of a single class.
    """
    truth = labels(test, target)
    probability = np.zeros((len(truth), test.schema.sizes[test.schema.index(target)]))
    probability[:, np.bincount(np.concatenate([labels(site, target) for site in sites])).argmax()] = 1.0
    return score(truth, probability)
