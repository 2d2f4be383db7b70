"""How a classifier did that sites trained together, after each round."""

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
class Scores:
    """How well classes are told apart, each from 0 to 1. ``auc``: see :func:`score`."""

    accuracy: float
    macro_f1: float
    weighted_f1: float
    auc: float


@dataclass(frozen=True)
class Course:
    """How the global model did after each round.

    ``test`` holds its scores on rows that nobody trained on, ``validation`` those on all rows that the sites held out
    together; empty where they held out none.
    """

    test: tuple[Scores, ...]
    validation: tuple[Scores, ...] = ()

    @property
    def last(self) -> Scores:
        """What the model scores that training ends with."""
        return self.test[-1]

    @property
    def selected(self) -> Scores:
        """Each score in the first round that has the largest such score on the rows held out; no test row chooses it.

        Raises :class:`Unsupported` where the sites held out no rows.
        """
        if not self.validation:
            raise Unsupported("no rows were held out to choose a round by; pass held=hold_out(...)[1], or use last")
        rounds = np.argmax([astuple(scores) for scores in self.validation], axis=0)
        return Scores(*(astuple(self.test[at])[which] for which, at in enumerate(rounds)))

    @property
    def published_maximum_over_test_rounds(self) -> Scores:
        """The largest of each score over all rounds, chosen by the TEST rows: what Fed-TDA's code reports.

        Too high by construction, the more so the more the rounds differ: for comparison with published figures only.
        """
        return Scores(*np.max([astuple(scores) for scores in self.test], axis=0).tolist())


def score(truth: Integers, probability: Probabilities) -> Scores:
    """Return the scores of class probabilities, shape ``(rows, classes)``, against the rows' true classes.

    F1 and AUC are those of the classes that the rows hold. AUC: area under the ROC curve of the probability itself, for
    more than two classes the mean of each against the rest. (The published one ranks by the second class's raw
    output, which the first class's shifts; it is left out.) Raises :class:`Unsupported` for rows of one class,
    :class:`InvalidParameter` for probabilities that are no numbers.
    """
    if not np.isfinite(probability).all():
        raise InvalidParameter("the classifier's probabilities are no numbers: it diverged; lower its learning rate")
    counts = np.bincount(truth, minlength=probability.shape[1])
    held = np.flatnonzero(counts)
    if len(held) < 2:
        raise Unsupported("the rows to be scored hold one class only, so no AUC exists; hold out more of them")
    guess = probability.argmax(axis=1)
    by_class = f1(truth, guess, held)
    return Scores(
        float((guess == truth).mean()),
        float(by_class.mean()),
        float(np.average(by_class, weights=counts[held])),
        auc_one_vs_rest(truth, probability),
    )


def majority(sites: Sequence[Table], test: Table, target: str) -> Scores:
    """Return the floor: what always answering with the commonest class of the sites' rows scores."""
    truth = labels(test, target)
    probability = np.zeros((len(truth), test.schema.sizes[test.schema.index(target)]))
    probability[:, np.bincount(np.concatenate([labels(site, target) for site in sites])).argmax()] = 1.0
    return score(truth, probability)
