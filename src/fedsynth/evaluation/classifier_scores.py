"""Scores of classifiers: area under the ROC curve and F1, for all parts of an evaluation."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.evaluation.score import Estimate

Values = NDArray[np.floating[Any]]
Integers = NDArray[np.int64]
_Z = 1.959964  # 95 % of a normal law


def ranks(values: Values) -> NDArray[np.float64]:
    """Return each value's rank from 1 (the smallest), shape ``(values,)``; equal values get the mean of their ranks."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[which]
    return middle


def auc(positive: Values, negative: Values) -> float:
    """Return the area under the ROC curve, given the scores of positive and of negative cases, at least one of each.

    It is the share of pairs in which the positive has the higher score; ties count one half (Mann-Whitney). Each array
    has one score per case, shape ``(cases,)``.
    """
    many = len(positive)
    found = ranks(np.concatenate([positive, negative]))[:many].sum()
    return float((found - many * (many + 1) / 2) / (many * len(negative)))


def auc_with_band(positive: Values, negative: Values) -> Estimate:
    """Return :func:`auc` with its 95 % interval (DeLong, DeLong and Clarke-Pearson 1988, doi 10.2307/2531595).

    It is computed from mid-ranks (Sun and Xu 2014, doi 10.1109/LSP.2014.2337313) and cut to [0, 1], and all of that if
    either array has a single case; an empty array raises ``ZeroDivisionError``.
    """
    m, n = len(positive), len(negative)
    together = ranks(np.concatenate([positive, negative]))
    beaten = (together[:m] - ranks(positive)) / n  # share of negatives below each positive
    beating = 1.0 - (together[m:] - ranks(negative)) / m
    area = float(beaten.mean())
    reach = _Z * math.sqrt(float(beaten.var(ddof=1)) / m + float(beating.var(ddof=1)) / n)
    return Estimate(area, max(0.0, area - reach), min(1.0, area + reach))


def auc_one_vs_one(labels: Integers, classes: NDArray[Any], probability: Values) -> float:
    """Return the ROC AUC of predicted class probabilities; for more than two classes, the mean over pairs of classes.

    ``labels`` are the rows' true classes, shape ``(rows,)``, at least two different ones. ``classes[k]`` is the class
    whose probability is column ``k`` of ``probability``, shape ``(rows, classes)``. Each ordered pair of classes is
    scored on the rows of those two, by the probability of the first (Hand and Till 2001, doi 10.1023/A:1010920819831).

    A class of ``labels`` that ``classes`` lacks gets probability 0. Probability of a class that ``labels`` lacks is
    dropped, and the rest rescaled; a row with nothing left gets equal probabilities.
    """
    held = np.unique(labels)
    scores = np.zeros((len(labels), len(held)))
    known = np.isin(classes, held)
    scores[:, np.searchsorted(held, classes[known])] = probability[:, known]
    if not known.all():  # else rows already sum to 1, and rounding in the division would change ties
        scores[scores.sum(axis=1) == 0] = 1.0
        scores /= scores.sum(axis=1, keepdims=True)
    rows = [labels == one for one in held]
    if len(held) == 2:
        return auc(scores[rows[1], 1], scores[rows[0], 1])
    pairs = itertools.permutations(range(len(held)), 2)
    return float(np.mean([auc(scores[rows[one], one], scores[rows[other], one]) for one, other in pairs]))


def auc_one_vs_rest(labels: Integers, probability: Values) -> float:
    """Return the ROC AUC of predicted class probabilities; for more than two classes, the one-vs-rest mean.

    ``labels`` has shape ``(rows,)``; column ``k`` of ``probability``, shape ``(rows, classes)``, is the probability of
    class ``k``. Only classes that occur in ``labels`` count, at least two.
    """
    held = np.unique(labels)
    areas = [auc(probability[labels == one, one], probability[labels != one, one]) for one in held]
    return areas[-1] if len(held) == 2 else float(np.mean(areas))


def f1(labels: Integers, guesses: Integers, classes: Integers) -> NDArray[np.float64]:
    """Return the F1 score of each class in ``classes``, all of which occur in ``labels``; shape ``(classes,)``.

    ``labels`` are the true classes and ``guesses`` the predicted ones, non-negative integers of shape ``(rows,)``.
    """
    size = int(max(labels.max(), guesses.max())) + 1
    right = np.bincount(labels[guesses == labels], minlength=size)
    found: NDArray[np.float64] = (
        2 * right / np.maximum(np.bincount(labels, minlength=size) + np.bincount(guesses, minlength=size), 1)
    )[classes]
    return found
