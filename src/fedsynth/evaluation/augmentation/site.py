"""Augmentation of a classifier at one site: whether synthetic rows of all sites beside its own make it better.

Source of the idea: Fed-TDA (Duan et al., arXiv 2211.13116), whose sites train one classifier together
(:mod:`~fedsynth.evaluation.augmentation.training`); here, a site trains one by itself. The figures are computed from
its rows without noise: they stay there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter, SchemaError, Unsupported, number_of
from fedsynth.evaluation.features import is_numeric
from fedsynth.evaluation.persons import count_persons, take_persons
from fedsynth.evaluation.utility import scores_by_test
from fedsynth.progress import Progress, ignore_progress
from fedsynth.rows import Table, concatenate

Judge = Literal["own", "all"]
TESTED_ON: Mapping[str, str] = {
    "own": "this site's rows",
    "all": "synthetic rows of all sites",
    "holdout": "the hold-out rows",
}
"""The rows that a learner is tested on, in words; it was trained on none of them."""

_TRAIN, _CHOOSE = 0.6, 0.2  # of a site's rows; the rest is for testing
_SYNTHETIC_HELD = 0.2  # of the synthetic rows, half to choose by, half for testing
_MOST_TESTED = 5_000  # synthetic rows in either half
_MULTIPLES = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)  # of the training rows, as numbers of synthetic rows
_CLEAR = 2.0  # standard errors


@dataclass(frozen=True)
class Augmentation:
    """How well learners predict ``target`` after training on a site's rows with ever more synthetic rows beside them.

    - ``score``: its name, where more is better. ``own_rows``: rows of the site in each training.
    - ``amounts``: numbers of synthetic rows beside them, from 0 up.
    - ``tested``: the score on rows that were in no training, by the rows of :data:`TESTED_ON`: one list for each
      repeat, with a score for each amount. ``by``: the rows by which an amount was chosen, "own" or "all".
    - ``chosen``: the position of the amount that is best on the rows set apart for this choice, for each repeat.
    - ``best``: the position of the amount that is best there in the mean over repeats.
    """

    target: str
    score: str
    own_rows: int
    amounts: tuple[int, ...]
    tested: Mapping[str, tuple[tuple[float, ...], ...]]
    by: Judge
    chosen: tuple[int, ...]
    best: int

    def gain(self, rows: str) -> tuple[float, float]:
        """Return what the chosen amounts add to the score on some rows (:data:`TESTED_ON`), and the standard error.

        The rows that an amount is chosen by are no rows that it is tested on, so the gain is not biased by the choice.
        The repeats draw from the same rows: the error is the corrected one of Nadeau and Bengio (2003, doi
        10.1023/A:1024068626366), sd sqrt(1 / repeats + test rows / training rows).
        """
        scores = np.array(self.tested[rows])
        gains = scores[np.arange(len(scores)), self.chosen] - scores[:, 0]
        if len(gains) < 2:
            return float(gains.mean()), math.nan
        share = (1 - _TRAIN - _CHOOSE) / _TRAIN
        return float(gains.mean()), float(gains.std(ddof=1) * math.sqrt(1 / len(gains) + share))

    @property
    def helps(self) -> bool:
        """Whether synthetic rows make the learner clearly better, by two standard errors, on the rows of ``by``."""
        gain, error = self.gain(self.by)
        return self.best > 0 and gain > _CLEAR * error

    def __str__(self) -> str:
        """Return in one sentence what to do."""
        gain, error = self.gain(self.by)
        what = f"{self.score} on {TESTED_ON[self.by]}: {gain:+.3f}, standard error {error:.3f}"
        if self.helps:
            share = self.amounts[self.best] / self.own_rows
            return f"Train on the site's rows and {share:.2g} times as many synthetic rows ({what})."
        return f"Synthetic rows are no clear gain here: train on the site's rows alone ({what})."


def augment(
    own: Table,
    synthetic: Table,
    target: str,
    *,
    by: Judge | None = None,
    holdout: Table | None = None,
    suite: str = "boosting",
    repeats: int = 5,
    seed: int = 0,
    progress: Progress = ignore_progress,
) -> Augmentation:
    """Train learners on a site's ``own`` rows with ever more ``synthetic`` rows beside them, and test each honestly.

    In each of ``repeats`` draws, 60 % of the site's rows are for training, 20 % to choose the number of synthetic rows
    by, and 20 % for testing; rows of one person (:attr:`Table.persons <fedsynth.rows.Table.persons>`) stay together. A
    fifth of the synthetic rows is set apart as well: it stands for the rows of all sites, which the site does not have,
    half of it to choose by and half for testing. ``by`` says which of the two decides: "own" for a learner that is used
    on rows such as the site's, "all" for one that is used everywhere; ``None`` is "own" unless the site's rows hold one
    class only. ``holdout`` are further real rows to test on. The score is the first one of the ``suite``, a mean over
    its learners.

    The site's rows are among those that the synthetic rows were made from, so that a gain on them may be due to that
    as well, within what the guarantee of the synthetic rows allows; rows of ``holdout``, which no site contributed, are
    free of it.

    Raises :class:`InvalidParameter` if ``by`` is "own" and the site's rows hold one class, or for no repeats,
    :class:`SchemaError` for tables of different schemas, and the errors of
    :func:`~fedsynth.evaluation.utility.utility`.
    """
    if repeats < 1:
        raise InvalidParameter(f"repeats must be at least 1, not {repeats}")
    for table in (synthetic, *([] if holdout is None else [holdout])):
        if table.schema.digest != own.schema.digest:
            raise SchemaError("the site's rows and the others have different schemas; encode all with the same")
    draws = [_draw(own, synthetic, np.random.default_rng([seed, repeat])) for repeat in range(repeats)]
    lacking = not all(_varies(part, target) for draw in draws for part in (draw.own_choose, draw.own_test))
    if lacking and by == "own":
        raise InvalidParameter(
            f"a part of the site's rows holds one value of {target!r} only, so no learner can be judged by them; "
            "judge by all sites' rows: --judge all"
        )
    by = by or ("all" if lacking else "own")
    own_rows = len(draws[0].own)
    amounts = _amounts(own_rows, min(len(draw.pool) for draw in draws))

    score, judged = "", np.zeros((repeats, len(amounts)))
    tested: dict[str, NDArray[np.float64]] = {}
    for repeat, draw in enumerate(draws):
        known = concatenate([draw.own, draw.pool])
        parts = {"choose": draw.own_choose if by == "own" else draw.all_choose}
        parts |= {} if lacking else {"own": draw.own_test}
        parts |= {"all": draw.all_test} | ({} if holdout is None else {"holdout": holdout})
        for place, amount in enumerate(amounts):
            progress("augmentation", repeat * len(amounts) + place, repeats * len(amounts))
            train = concatenate([draw.own, draw.pool.take(np.arange(amount))])
            for rows, scores in scores_by_test(known, train, parts, target, suite, seed + repeat).items():
                score, by_learner = next(iter(scores.items()))
                of = judged if rows == "choose" else tested.setdefault(rows, np.zeros_like(judged))
                of[repeat, place] = np.mean(list(by_learner.values()))
    progress("augmentation", 1, 1)
    return Augmentation(
        target,
        score,
        own_rows,
        amounts,
        {rows: tuple(map(tuple, scores.tolist())) for rows, scores in tested.items()},
        by,
        tuple(judged.argmax(axis=1).tolist()),
        int(judged.mean(axis=0).argmax()),
    )


class _Draw(NamedTuple):
    """One draw of the rows that learners train on (``own``, ``pool``), and of those to choose by and to test on."""

    own: Table
    own_choose: Table
    own_test: Table
    pool: Table
    all_choose: Table
    all_test: Table


def _draw(own: Table, synthetic: Table, rng: np.random.Generator) -> _Draw:
    train, choose, test = _cut(rng.permutation(count_persons(own)), _TRAIN, _CHOOSE)
    held = min(_SYNTHETIC_HELD / 2, _MOST_TESTED / max(1, len(synthetic)))
    all_choose, all_test, pool = _cut(rng.permutation(len(synthetic)), held, held)
    if not all(map(len, (train, choose, test, all_choose, all_test, pool))):
        few = f"{number_of(len(own), 'row')} of the site and {number_of(len(synthetic), 'synthetic row')}"
        raise Unsupported(f"{few} are too few to set some apart for testing")
    of_site = (take_persons(own, part) for part in (train, choose, test))
    return _Draw(*of_site, *(synthetic.take(part) for part in (pool, all_choose, all_test)))


def _cut(order: NDArray[np.int64], *shares: float) -> list[NDArray[np.int64]]:
    """Return parts of an array with these shares of it, and the rest."""
    return np.split(order, np.cumsum([round(share * len(order)) for share in shares]))


def _amounts(own_rows: int, pool: int) -> tuple[int, ...]:
    """Return the numbers of synthetic rows to try beside so many rows of the site, at most ``pool``."""
    return tuple(dict.fromkeys(min(pool, round(multiple * own_rows)) for multiple in _MULTIPLES))


def _varies(rows: Table, target: str) -> bool:
    at = rows.schema.index(target)
    values = rows.numbers[at] if is_numeric(rows, at) else rows.codes[at]
    return len(np.unique(values)) > 1
