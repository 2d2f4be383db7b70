"""Privacy attacks on a published synthetic table, and the formal bounds on the success of any attack.

Membership inference asks which rows were training rows (or which persons, if the persons of rows are known); attribute
disclosure infers a person's sensitive column from other columns. An attack that fails proves nothing: a better one may
succeed. The formal bounds hold for every attack.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter, Unsupported, from_extra
from fedsynth.evaluation.distances import NeighbourIndex, drawn, nearest, share
from fedsynth.evaluation.features import MixedSpace, integer_codes
from fedsynth.evaluation.persons import (
    count_persons,
    drawn_persons,
    mean_by_person,
    persons_with,
    standard_error,
    take_persons,
)
from fedsynth.evaluation.references import cached
from fedsynth.evaluation.score import Estimate, EvaluationTables
from fedsynth.evaluation.suites import quiet
from fedsynth.rows import Table, concatenate

Scores = NDArray[np.float64]
_Z = 1.959964  # 95 % of a normal law
_CHUNK = 256  # query rows at a time
_WIDE = 1000  # with more dimensions, the principal components are approximate
_NEEDS = "attacks need scikit-learn"


def formal_tpr_bound(fpr: float, epsilon: float, delta: float) -> float:
    """Return the highest true-positive rate that any membership test of false-positive rate ``fpr`` can have.

    It holds if the release is (epsilon, delta)-DP for tables that differ by the row tested (Kairouz, Oh and Viswanath
    2015, arXiv 1311.0776, theorem 2.1). The definition of DP, applied to the test and to its complement, gives
    ``TPR <= e^eps FPR + delta`` and ``1 - FPR <= e^eps (1 - TPR) + delta``. Raises :class:`InvalidParameter` for a
    negative epsilon, or a delta outside [0, 1].
    """
    _check(epsilon, delta)
    # exp(eps) overflows above 709; the first bound exceeds 1 long before, unless the false-positive rate is 0.
    first = math.exp(epsilon) * fpr + delta if epsilon < 700 else (1.0 if fpr else delta)
    return min(1.0, first, 1.0 - math.exp(-epsilon) * max(0.0, 1.0 - delta - fpr))


def formal_auc_bound(epsilon: float, delta: float) -> float:
    """Return the highest area under the ROC curve of any membership attack on an (epsilon, delta)-DP release.

    Derivation: the two lines of :func:`formal_tpr_bound` cross where ``e^eps x + delta = 1 - x`` (they mirror each
    other in the line TPR = 1 - FPR), that is at ``x = (1 - delta) / (1 + e^eps)``. Every ROC curve lies below the path
    through the points (FPR, TPR) = (0, delta), (x, 1 - x), (1 - delta, 1) and (1, 1). The part of the unit square above
    that path is a kite; the line from (0, 1) to (x, 1 - x) cuts the kite into two mirrored triangles of base
    ``1 - delta`` and height ``x``. So the area below the path is
    ``1 - (1 - delta) x = 1 - (1 - delta)^2 / (1 + e^eps)``: 1/2 for epsilon = delta = 0, and 1 in the limit of infinite
    epsilon.

    The bound compares one table with and without a row. An experiment that replaces a member by a non-member changes
    two rows: under a guarantee for adding or removing one row, pass the parameters that :func:`replacement_guarantee`
    returns. A guarantee for a person with several rows bounds attacks on that person in the same way. Raises
    :class:`InvalidParameter` for a negative epsilon, or a delta outside [0, 1].
    """
    _check(epsilon, delta)
    return 1.0 - (1.0 - delta) ** 2 * math.exp(-epsilon) / (1.0 + math.exp(-epsilon))


def formal_advantage_bound(epsilon: float, delta: float) -> float:
    """Return the highest TPR - FPR of any membership attack on an (epsilon, delta)-DP release.

    The bound is ``(e^eps - 1 + 2 delta) / (e^eps + 1)``, the total variation distance that (epsilon, delta)-DP allows.
    It follows from the two lines of :func:`formal_tpr_bound`, at the point where they cross. Raises its errors.
    """
    _check(epsilon, delta)
    return 1.0 - 2.0 * (1.0 - delta) * math.exp(-epsilon) / (1.0 + math.exp(-epsilon))


def replacement_guarantee(epsilon: float, delta: float) -> tuple[float, float]:
    """Return the (epsilon, delta) for replacing one row, given the (epsilon, delta) for adding or removing one.

    A replacement is a removal and an addition, so the probabilities ``P`` and ``P'`` of any outcome before and after it
    satisfy ``P <= e^eps (e^eps P' + delta) + delta``. The result is ``(2 eps, (1 + e^eps) delta)``, with a delta of at
    most 1. Raises :class:`InvalidParameter` for a negative epsilon, or a delta outside [0, 1].
    """
    _check(epsilon, delta)
    return 2 * epsilon, min(1.0, delta + delta * math.exp(min(epsilon, 700.0)))


def _check(epsilon: float, delta: float) -> None:
    if not (epsilon >= 0 and 0 <= delta <= 1):
        raise InvalidParameter(f"epsilon = {epsilon}, delta = {delta}; give epsilon >= 0 and delta from 0 to 1")


def tpr_at(fpr: float, members: Scores, nonmembers: Scores) -> Estimate:
    """Return the true-positive rate of a membership attack at the false-positive rate ``fpr``, with its 95 % interval.

    ``members`` and ``nonmembers`` hold the attack's score of each training row and of each unseen row, shape
    ``(rows,)``; rows with a high score are called members. The threshold is the score above which a share ``fpr`` of
    the non-members lies. Rows whose score equals it are counted as if ties were broken at random (in expectation), so
    that the rate ``fpr`` is met exactly.

    The interval (exact binomial, Clopper-Pearson) covers the sampling of ``members`` only. The threshold is noisy too:
    to judge an excess over ``fpr``, compare the interval with that of ``fpr * n`` hits among ``n`` non-members
    (:func:`~fedsynth.evaluation.distances.share`).
    """
    levels, counts = np.unique(nonmembers, return_counts=True)
    above = len(nonmembers) - np.cumsum(counts)  # non-members strictly above each level
    quota = fpr * len(nonmembers)
    at = int(np.argmax(above <= quota))
    lot = min(1.0, (quota - above[at]) / counts[at])
    hits = float((members > levels[at]).sum() + lot * (members == levels[at]).sum())
    return share(hits, len(members))


@dataclass(frozen=True, eq=False)
class AttackTargets:
    """The rows on which membership attacks are tested: equally many ``members`` and ``nonmembers``.

    Members are training rows, non-members hold-out rows. The ``reference`` rows are other hold-out rows, which stand
    for the attacker's knowledge of the population. If rows have persons, the tables hold all rows of equally many
    persons, and the reference rows are of other persons.
    """

    members: Table
    nonmembers: Table
    reference: Table

    @classmethod
    def of(cls, evidence: EvaluationTables, rng: np.random.Generator, max_rows: int) -> AttackTargets:
        """Draw the rows of an attack, by ``rng``, from the tables of an evaluation.

        Non-members, as many as members, use at most half of the hold-out rows; the reference rows are drawn from the
        others. Each of the three parts has at most ``max_rows`` rows. If rows have persons, these are drawn, each with
        all rows: as many as have about ``max_rows`` rows, but at least 100 if there are so many. Raises
        :class:`Unsupported` without hold-out rows.
        """
        if evidence.holdout is None:
            raise Unsupported(
                "membership inference needs rows that the synthesizer never saw; keep some back (--holdout)"
            )
        real, holdout = evidence.real, evidence.holdout
        unseen, most = count_persons(holdout), persons_with(holdout, max_rows)
        size = min(count_persons(real), unseen // 2, persons_with(real, max_rows), most)
        order = rng.permutation(unseen)
        return cls(
            drawn_persons(real, size, rng),
            take_persons(holdout, order[:size]),
            take_persons(holdout, order[size : size + most]),
        )

    def by_person(self, scores: tuple[Scores, Scores]) -> tuple[Scores, Scores]:
        """Return the scores of persons, given those of the rows of members and of non-members, in the same order.

        A person's score is the mean of the scores of all of this person's rows, as in user inference (Kandpal et al.
        2024, arXiv 2310.09266), where the mean is over log-likelihood ratios: it grows with every row that was
        memorised, and does not depend on how many rows a person has. (A maximum would be higher for persons with more
        rows; it would notice a single copied row better.) Rows without persons keep their own scores.
        """
        members, nonmembers = scores
        return mean_by_person(members, self.members), mean_by_person(nonmembers, self.nonmembers)

    def scores(self, score: Scores) -> tuple[Scores, Scores]:
        """Split a flat array of scores, first of all members, then of all non-members, into these two parts."""
        return score[: len(self.members)], score[len(self.members) :]


def gan_leaks(targets: AttackTargets, index: NeighbourIndex) -> tuple[Scores, Scores]:
    """Return the attack scores (of members, of non-members): minus the distance to the nearest synthetic row.

    The black-box attack of GAN-Leaks (Chen et al. 2020, arXiv 1909.03935): the higher a row's score, the likelier it
    was a training row. ``index`` is of the synthetic rows. Each array has shape ``(rows,)``, in the order of
    ``targets``. Raises :class:`Unsupported` without scikit-learn (the extra ``evaluate``).
    """
    return -index.distances(targets.members)[:, 0], -index.distances(targets.nonmembers)[:, 0]


def calibrated_gan_leaks(
    scores: tuple[Scores, Scores], targets: AttackTargets, space: MixedSpace
) -> tuple[Scores, Scores]:
    """Return the scores of :func:`gan_leaks`, calibrated: plus the distance to the nearest reference row.

    ``space`` is the embedding in which the distances of ``scores`` were measured. The calibration corrects for rows in
    dense regions, which are near to any sample; the reference rows take the place of a reference generator.
    """
    known = space.coordinates(targets.reference)
    members, nonmembers = (
        score + nearest(space.coordinates(side), known)[0][:, 0]
        for score, side in zip(scores, (targets.members, targets.nonmembers), strict=True)
    )
    return members, nonmembers


def domias(
    targets: AttackTargets, index: NeighbourIndex, *, components: int = 10, max_kernels: int = 30_000
) -> tuple[Scores, Scores]:
    """Return attack scores: a row's log density among synthetic rows minus that among reference rows.

    DOMIAS (van Breugel et al. 2023, arXiv 2302.12580) with Gaussian kernels (Scott's bandwidth), on at most
    ``components`` principal components of the synthetic and the reference rows together, scaled to unit variance.
    Kernels stand on at most ``max_kernels`` points of ``index``, drawn by a fixed seed. The result is as in
    :func:`gan_leaks`, in nats; if all rows are identical, every score is 0. The attack detects local overfitting; it
    hardly detects a single copied row of a large table, since the density is smoothed.
    """
    with from_extra("evaluate", _NEEDS):
        from sklearn.decomposition import PCA
    points = index.points
    if len(points) > max_kernels:  # the rows may be sorted
        points = points[np.random.default_rng(0).choice(len(points), max_kernels, replace=False)]
    synthetic = points.astype(np.float64)
    reference = index.space.coordinates(targets.reference).astype(np.float64)
    pooled = np.concatenate([synthetic, reference])
    asked = np.concatenate([index.space.coordinates(side) for side in (targets.members, targets.nonmembers)])
    if not np.ptp(pooled, axis=0).any():
        return targets.scores(np.zeros(len(asked)))
    # Thousands of categories give as many dimensions; a full decomposition would then take minutes.
    how = {"svd_solver": "full"} if pooled.shape[1] <= _WIDE else {"svd_solver": "randomized", "random_state": 0}
    found = PCA(min(components, *pooled.shape), **how).fit(pooled)
    kept = found.explained_variance_ > 1e-9 * found.explained_variance_[0]
    scale = np.sqrt(found.explained_variance_[kept])

    queries = found.transform(asked.astype(np.float64))[:, kept] / scale

    def log_density(rows: NDArray[np.float64]) -> Scores:
        """Return the Gaussian kernel density of ``rows`` at every query: its logarithm, up to a constant."""
        bandwidth = len(rows) ** (-1 / (kept.sum() + 4))
        centres = found.transform(rows)[:, kept] / scale / bandwidth
        norms = (centres**2).sum(axis=1) / 2
        densities = []
        for start in range(0, len(queries), _CHUNK):
            part = queries[start : start + _CHUNK] / bandwidth
            heights = part @ centres.T - norms - (part**2).sum(axis=1)[:, None] / 2
            top = heights.max(axis=1)
            np.exp(np.subtract(heights, top[:, None], out=heights), out=heights)
            densities.append(top + np.log(heights.sum(axis=1)))
        found_densities: Scores = np.concatenate(densities)
        return found_densities - math.log(len(rows)) - float(kept.sum()) * math.log(bandwidth)

    return targets.scores(log_density(synthetic) - log_density(reference))


@dataclass(frozen=True)
class Disclosure:
    """How accurately attackers infer one column from others: the result of :func:`attribute_disclosure`.

    Each accuracy is the share of correct guesses, averaged over attackers, subsets of the known columns and test rows.

    - ``members``: accuracy of attackers trained on synthetic rows, tested on training rows of the synthesizer.
    - ``population``: that of attackers trained on these training rows, tested on other real rows.
    - ``floor``: accuracy, on the training rows, of always guessing the commonest value of the synthetic rows.
      ``ceiling``: that of attackers trained on the training rows and tested on the same rows.
    - ``advantage``: accuracy on training rows minus accuracy on hold-out rows, both of attackers trained on synthetic
      rows; None without a hold-out. ``advantage_real``: the same of attackers trained on the training rows.
    - ``by_attacker``: maps each attacker's name to its own (``members``, ``population``).
    - ``rows``: the smaller number of rows that attackers are tested on; ``persons``: that of persons (or rows).
      ``subsets``: number of subsets of known columns, of ``size`` columns each.
    """

    members: Estimate
    population: Estimate
    floor: float
    ceiling: float
    advantage: Estimate | None
    advantage_real: Estimate | None
    by_attacker: dict[str, tuple[float, float]]
    rows: int
    persons: int
    subsets: int
    size: int


def attribute_disclosure(
    evidence: EvaluationTables,
    sensitive: int,
    known: Sequence[int],
    rng: np.random.Generator,
    *,
    size: int = 3,
    max_rows: int = 3000,
) -> Disclosure:
    """Return how accurately attackers infer the ``sensitive`` column from every subset of ``size`` ``known`` columns.

    Columns are given by their position; if fewer than ``size`` are known, all of them are one subset. Attackers train
    on at most ``max_rows`` rows and are tested on at most as many training rows and hold-out rows. Without a hold-out,
    the real rows (or persons) are split at random: one half stands for the training rows, the other for people outside
    the table. Intervals are 1.96 standard errors (:func:`~fedsynth.evaluation.persons.standard_error`).

    After Hittmeir, Mayer and Ekelhart 2020, doi 10.1145/3374664.3375722, here with six attackers: random forest,
    support vector machine, naive Bayes, 5 nearest neighbours, logistic regression, and their majority vote (ties go to
    the lowest code). Numbers are scaled to their range, categories one-hot (naive Bayes takes codes); a numeric
    sensitive column is inferred as its bin.

    Raises :class:`Unsupported` if no column is known, if the sensitive column is, or without scikit-learn.
    """
    if sensitive in known or not known:
        raise Unsupported("known columns must not be empty nor include the sensitive one; name others")
    asked = members, nonmembers = _two_sides(evidence, rng, max_rows)
    train = drawn(evidence.synthetic, max_rows, rng)
    subsets = list(itertools.combinations(known, min(size, len(known))))
    seed = int(rng.integers(2**31))
    by_synthetic = _correct(train, asked, sensitive, subsets, seed)
    by_real = cached(
        asked,
        ("attribute disclosure", sensitive, tuple(subsets), seed),
        lambda: _correct(members, asked, sensitive, subsets, seed),
    )
    commonest = np.bincount(train.codes[sensitive]).argmax()
    names = list(by_synthetic)
    synthetic = [np.mean([by_synthetic[name][side] for name in names], axis=0) for side in (0, 1)]
    real = [np.mean([by_real[name][side] for name in names], axis=0) for side in (0, 1)]
    held = evidence.holdout is not None
    return Disclosure(
        members=_mean(synthetic[0], members),
        population=_mean(real[1], nonmembers),
        floor=float((members.codes[sensitive] == commonest).mean()),
        ceiling=float(real[0].mean()),
        advantage=_difference(synthetic, asked) if held else None,
        advantage_real=_difference(real, asked) if held else None,
        by_attacker={n: (float(by_synthetic[n][0].mean()), float(by_real[n][1].mean())) for n in names},
        rows=min(len(members), len(nonmembers)),
        persons=min(count_persons(members), count_persons(nonmembers)),
        subsets=len(subsets),
        size=len(subsets[0]),
    )


def _correct(
    train: Table, asked: Sequence[Table], sensitive: int, subsets: Sequence[tuple[int, ...]], seed: int
) -> dict[str, list[Scores]]:
    """Return, for each attacker and each table of ``asked``, in which share of the subsets it guesses a row right."""
    found: dict[str, list[Scores]] = {}
    for subset in subsets:
        for name, guessed in _guesses(train, asked, sensitive, subset, seed).items():
            sums = found.setdefault(name, [np.zeros(len(table)) for table in asked])
            for total, guess, table in zip(sums, guessed, asked, strict=True):
                total += (guess == table.codes[sensitive]) / len(subsets)
    return found


def _guesses(
    train: Table, asked: Sequence[Table], sensitive: int, subset: tuple[int, ...], seed: int
) -> dict[str, list[NDArray[np.int64]]]:
    with from_extra("evaluate", _NEEDS):
        from sklearn.ensemble import RandomForestClassifier
        from sklearn.linear_model import LogisticRegression
        from sklearn.naive_bayes import CategoricalNB
        from sklearn.neighbors import KNeighborsClassifier
        from sklearn.svm import SVC
    labels = train.codes[sensitive]
    space, codes = MixedSpace.of(train, subset), integer_codes(train, subset)
    points = space.coordinates(train)
    cases, classes, weights = _distinct(points, labels)
    # Distinct rows weighted by their counts have the same optimum, and training is faster. The kernel's width is
    # scikit-learn's default for all rows.
    width = 1 / (points.shape[1] * float(points.var()) or 1.0)
    attackers: dict[str, Callable[[], Any]] = {
        "random forest": lambda: RandomForestClassifier(random_state=seed).fit(points, labels),
        "support vector machine": lambda: SVC(gamma=width).fit(cases, classes, weights),
        "naive Bayes": lambda: CategoricalNB(min_categories=list(train.schema.shape(subset))).fit(codes(train), labels),
        "nearest neighbours": lambda: KNeighborsClassifier(min(5, len(labels))).fit(points, labels),
        "logistic regression": lambda: LogisticRegression(max_iter=1000).fit(cases, classes, weights),
    }
    together, ends = concatenate(asked), np.cumsum([len(table) for table in asked])[:-1]
    mixed, coded = (np.unique(encode(together), axis=0, return_inverse=True) for encode in (space.coordinates, codes))
    guesses: dict[str, list[NDArray[np.int64]]] = {}
    for name, trained in attackers.items():
        if (labels == labels[0]).all():  # nothing to learn, and some learners refuse a single class
            guesses[name] = [np.full(len(table), labels[0], dtype=np.int64) for table in asked]
            continue
        rows, which = coded if name == "naive Bayes" else mixed
        with quiet():
            guesses[name] = np.split(trained().predict(rows)[which].astype(np.int64), ends)
    guesses["majority"] = [_majority(votes) for votes in zip(*guesses.values(), strict=True)]
    return guesses


def _distinct(
    points: NDArray[np.float32], labels: NDArray[Any]
) -> tuple[NDArray[np.float32], NDArray[Any], NDArray[np.int64]]:
    """Return the distinct rows of features and label: their features, their labels, and how often each occurs."""
    _, codes = np.unique(labels, return_inverse=True)  # codes fit into single precision, labels may not
    _, at, many = np.unique(np.column_stack([points, codes]), axis=0, return_index=True, return_counts=True)
    return points[at], labels[at], many


def _majority(votes: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return each row's commonest vote; of equally common ones, the lowest."""
    stacked = np.sort(np.stack(votes), axis=0)
    support = (stacked[:, None, :] == stacked[None, :, :]).sum(axis=1)
    winners: NDArray[np.int64] = np.take_along_axis(stacked, support.argmax(axis=0)[None], axis=0)[0]
    return winners


def _two_sides(evidence: EvaluationTables, rng: np.random.Generator, max_rows: int) -> tuple[Table, Table]:
    """Return training rows, and unseen rows of the same source: hold-out rows, or the other half of the real rows.

    If rows have persons, the other half is of the other persons.
    """
    if evidence.holdout is not None:
        return drawn(evidence.real, max_rows, rng), drawn(evidence.holdout, max_rows, rng)
    order = rng.permutation(count_persons(evidence.real))[: 2 * persons_with(evidence.real, max_rows)]
    half = len(order) // 2
    return take_persons(evidence.real, order[:half]), take_persons(evidence.real, order[half:])


def _mean(values: Scores, table: Table) -> Estimate:
    mean, reach = float(values.mean()), _Z * standard_error(values, table)
    return Estimate(mean, mean - reach, mean + reach)


def _difference(values: Sequence[Scores], tables: Sequence[Table]) -> Estimate:
    one, two = values
    gap = float(one.mean() - two.mean())
    reach = _Z * math.hypot(*map(standard_error, values, tables))
    return Estimate(gap, gap - reach, gap + reach)
