"""What synthetic rows are worth to a classifier that sites train together: features, rules for adding rows, scores.

An evaluation in a simulation, and NOT a private release: the classifier learns from the sites' own rows without noise,
hold-outs and class counts are read as they are, and nothing is guaranteed for any of it. The synthetic rows alone
carry the guarantee of the ledger that they were fitted under. Training itself is in ``federated_training``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from fedsynth.errors import InvalidParameter, SchemaError, Unsupported
from fedsynth.rows import Table, concatenate
from fedsynth.schema.columns import Datetime, Numeric

Features = NDArray[np.float32]
Integers = NDArray[np.int64]
Probabilities = NDArray[np.float64]


# ---------------------------------------------------------------------------------------------------------------------
# Features


def features(table: Table, target: str) -> Features:
    """Return the rows as a classifier sees them, shape ``(rows, features)``: all columns but the target.

    Nothing is fitted to rows, not to a site's and not to pooled ones. A number is its place among the schema's public
    bin edges, scaled to mean 0 and variance 1 for a column that is uniform on its bins: with equal bins, the
    number itself between its public bounds. A missing number is 0, with a mark of its own; a category is one-hot.

    Raises :class:`Unsupported` for rows that have codes only.
    """
    schema, label = table.schema, table.schema.index(target)
    parts: list[NDArray[np.floating]] = []
    for at, column in enumerate(schema.columns):
        if at == label:
            continue
        if isinstance(column, Numeric | Datetime):
            if at not in table.numbers:
                raise Unsupported(
                    f"the rows hold no numbers of {column.name!r}, only codes; "
                    "pass schema.encode(synthesizer.sample(rows, rng))"
                )
            numbers, edges = table.numbers[at], np.unique(column.bin_edges)  # integers end on an edge held twice
            place = np.interp(numbers, edges, np.linspace(0, 1, len(edges))) if len(edges) > 1 else numbers * 0.0
            parts.append(np.nan_to_num((place - 0.5) * np.sqrt(12))[:, None])
            if column.missing:
                parts.append(np.isnan(numbers)[:, None].astype(np.float32))
        else:
            parts.append((table.codes[at][:, None] == np.arange(column.size)).astype(np.float32))
    if not parts:
        raise Unsupported(f"the table has no column but {target!r}; there is nothing to learn it from")
    return np.concatenate(parts, axis=1).astype(np.float32)


def labels(table: Table, target: str) -> Integers:
    """Return each row's class, shape ``(rows,)``: the codes of a category; raises :class:`Unsupported` for numbers."""
    at = table.schema.index(target)
    if isinstance(table.schema.columns[at], Numeric | Datetime):
        raise Unsupported(f"{target!r} holds numbers; a classifier needs a category for its target")
    return table.codes[at].astype(np.int64)


# ---------------------------------------------------------------------------------------------------------------------
# Rows that each site trains on


def hold_out(sites: Sequence[Table], share: float, rng: np.random.Generator) -> tuple[list[Table], list[Table]]:
    """Return what each site trains on, and the random ``share`` of its rows that it keeps to choose a round by.

    Fit the synthesizer on the first alone: rows held out must not come back as synthetic ones.
    """
    if not 0 < share < 1:
        raise InvalidParameter(f"share must lie between 0 and 1, not {share}")
    kept, held = [], []
    for site in sites:
        order = rng.permutation(len(site))
        many = round(share * len(site))
        kept.append(site.take(order[many:]))
        held.append(site.take(order[:many]))
    return kept, held


def append_rows(sites: Sequence[Table], synthetic: Table) -> list[Table]:
    """Return each site's rows with all synthetic rows below them, as in Fed-TDA (arXiv 2211.13116).

    The paper does not say how many; its code draws twice as many as all sites' rows together.
    """
    _same_schema(sites, synthetic)
    return [concatenate([site, synthetic]) for site in sites]


def append_sufficient_classes(sites: Sequence[Table], synthetic: Table, target: str) -> list[Table]:
    """Return each site's rows with the synthetic rows of some classes, by the rule of Fed-TDA's published notebook.

    A site gets all synthetic rows of each class that has at least as many of them as the site lacks: rows of that class
    at all sites, less its own. The rule reads exact counts of classes over all sites, which a federation would have to
    pay for.
    """
    _same_schema(sites, synthetic)
    at = synthetic.schema.index(target)
    classes = synthetic.schema.sizes[at]
    held = np.stack([np.bincount(labels(site, target), minlength=classes) for site in sites])
    drawn = labels(synthetic, target)
    enough = np.bincount(drawn, minlength=classes) >= held.sum(axis=0) - held
    return [concatenate([site, synthetic.take(fits[drawn])]) for site, fits in zip(sites, enough, strict=True)]


def _same_schema(sites: Sequence[Table], synthetic: Table) -> None:
    for site in sites:
        if site.schema.digest != synthetic.schema.digest:
            raise SchemaError("the synthetic rows have another schema than a site; encode them with the site's")
        if lacking := [site.schema.names[at] for at in site.numbers if at not in synthetic.numbers]:
            raise Unsupported(
                f"the synthetic rows hold only codes of {lacking}; pass schema.encode(synthesizer.sample(rows, rng))"
            )


# ---------------------------------------------------------------------------------------------------------------------
# Scores


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
    right = np.bincount(truth[guess == truth], minlength=len(counts))
    f1 = 2 * right[held] / (counts + np.bincount(guess, minlength=len(counts)))[held]
    # The Mann-Whitney form: ranks, ties halved, of each class's own rows among all.
    ranks = rankdata(probability[:, held], axis=0)
    own = np.array([ranks[truth == one, place].sum() for place, one in enumerate(held)])
    many = counts[held]
    area = (own - many * (many + 1) / 2) / (many * (len(truth) - many))
    return Scores(
        float(right.sum() / len(truth)),
        float(f1.mean()),
        float(np.average(f1, weights=many)),
        float(area[-1] if len(held) == 2 else area.mean()),
    )


def majority(sites: Sequence[Table], test: Table, target: str) -> Scores:
    """Return the floor: what always answering with the commonest class of the sites' rows scores."""
    truth = labels(test, target)
    probability = np.zeros((len(truth), test.schema.sizes[test.schema.index(target)]))
    probability[:, np.bincount(np.concatenate([labels(site, target) for site in sites])).argmax()] = 1.0
    return score(truth, probability)
