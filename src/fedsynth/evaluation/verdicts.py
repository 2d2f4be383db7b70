"""Verdicts on fidelity scores: strong associations, columns, heaps, and how well rows are told apart.

Each score is judged beside its reference, the same score of other real rows.

======================  =======================================  ====================================================
score                   review                                   alarm
======================  =======================================  ====================================================
means kept              never                                    a column's mean is off by a fifth of the mean size
                                                                 of its real values, and by 3 standard errors
strong associations     below 90 % of the reference, or one of   below half of the reference
kept                    them is lost
strong correlations     below 90 % of the reference              never
kept
heaps kept              below 90 % of the reference              never
quantile error          above the reference's band and 0.05      never
column similarity       more than 0.05 below the reference on    more than 0.25 below the reference on average
                        average, or 0.15 in any column
propensity MSE          above the reference's band and 0.05      never: a tree may use a negligible trait
======================  =======================================  ====================================================

Anything else is good. There is no verdict if fewer than 100 synthetic rows were compared.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import number_of
from fedsynth.evaluation.dependence import is_kept, is_near
from fedsynth.evaluation.metric import FEW_ROWS, Rule
from fedsynth.evaluation.persons import standard_error
from fedsynth.evaluation.score import Estimate, Score, Verdict
from fedsynth.rows import Table

_KEPT, _LOST = 0.9, 0.5  # shares of what other real rows keep
_MEAN_GAP, _LARGE_MEAN_GAP, _GAP = 0.05, 0.25, 0.15  # of similarities to their references
_TOLD_APART = 0.05  # propensity MSE; a tree that is always right with probability 1 has 0.25
_MOVED = 0.05  # of quantiles, on average
_NAMED = 3  # columns, pairs or heaps in a sentence
_FAR, _ERRORS = 0.2, 3.0  # of a mean: share of the mean size of real values, and standard errors


def worst(verdicts: list[Verdict]) -> Verdict:
    """Return the gravest of the verdicts, "alarm" before "review" before "good"; "" if there is none."""
    return next((one for one in _GRAVEST_FIRST if one in verdicts), "")


_GRAVEST_FIRST: tuple[Verdict, ...] = ("alarm", "review", "good")


def means(real: Table, synthetic: Table) -> Score | None:
    """Return the share of the numeric columns whose mean is kept, with a verdict; ``None`` if there is no such column.

    A mean is lost if it is off by more than a fifth of the mean absolute value of the real rows, and by more than three
    standard errors: those of the mean of as many real rows as there are synthetic ones, if these are fewer. If all real
    values are the same, the spread of the synthetic ones takes the place of theirs. Columns without a known value in
    the real rows are left out; one without any in the synthetic rows is lost.
    """
    found: dict[str, tuple[float, float]] = {}
    off: list[str] = []
    for at, numbers in real.numbers.items():
        column, rows = real.schema.stored[at], np.flatnonzero(~np.isnan(numbers))
        if column.is_time or not len(rows):
            continue
        known, made = numbers[rows], synthetic.numbers[at]
        made = made[~np.isnan(made)]
        found[column.name] = float(made.mean()) if len(made) else math.nan, float(known.mean())
        spread = standard_error(known, real.take(rows)) if len(rows) > 1 else 0.0
        error = spread * math.sqrt(max(1.0, len(rows) / max(1, len(made)))) or _spread(made)
        gap = abs(found[column.name][0] - found[column.name][1])
        if not len(made) or gap > max(_FAR * float(np.abs(known).mean()), _ERRORS * error):
            off.append(column.name)
    if not found:
        return None
    kept = 1 - len(off) / len(found)
    wrong = [f"{name}: {found[name][1]:,.4g} → {found[name][0]:,.4g}" for name in off]
    few = len(synthetic) < FEW_ROWS
    return Score(
        "fidelity",
        "means kept",
        Estimate(kept),
        Estimate(1.0),
        "the real rows",
        1.0,
        "numeric columns, all rows; within a fifth of the mean size of the real values, or 3 standard errors",
        found,
        "" if few else "alarm" if off else "good",
        f"Of {number_of(len(found), 'numeric column')}, {kept:.0%} keep their mean. "
        f"{_listed('Off (real → synthetic)', wrong)}".rstrip(),
        () if few else tuple(off),
        problem="Means of columns are wrong",
    )


def _spread(values: NDArray[np.float64]) -> float:
    """Return the standard error of the mean of independent values; 0 for fewer than two."""
    return float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def lost_associations(score: Score) -> list[tuple[str, float, float]]:
    """Return the lost pairs of a score of "associations-kept", strongest first: (name, real, synthetic).

    A pair is lost if the synthetic rows have less than half of its association, or the opposite sign.
    """
    lost = [(name, real, one) for name, (one, real) in score.details.items() if not is_kept(real, one)]
    return sorted(lost, key=lambda pair: -abs(pair[1]))


def _associations(score: Score) -> tuple[Verdict, str]:
    kept, usual = score.synthetic.value, score.reference.value
    lost = [f"{name}: {real:.2f} → {one:.2f}" for name, real, one in lost_associations(score)]
    says = (
        f"Of {number_of(len(score.details), 'pair')} of strongly associated columns, the synthetic rows keep "
        f"{kept:.0%}, other real rows {usual:.0%}. {_listed('Lost (real → synthetic)', lost)}"
    )
    if kept < _LOST * usual:
        return "alarm", says
    return "review" if lost or kept < _KEPT * usual else "good", says


def _correlations(score: Score) -> tuple[Verdict, str]:
    kept, usual = score.synthetic.value, score.reference.value
    far = sorted(((abs(one - real), name, real, one) for name, (one, real) in score.details.items()), reverse=True)
    named = [f"{name}: {real:.2f} → {one:.2f}" for _, name, real, one in far if not is_near(real, one)]
    says = (
        f"Of {number_of(len(score.details), 'strong correlation')}, {kept:.0%} are within 0.1 in the synthetic rows, "
        f"{usual:.0%} in other real rows. {_listed('Farthest off (real → synthetic)', named)}"
    )
    return "review" if kept < _KEPT * usual else "good", says


def _heaps(score: Score) -> tuple[Verdict, str]:
    kept, usual = score.synthetic.value, score.reference.value
    far = sorted(((abs(one - real), name, real, one) for name, (one, real) in score.details.items()), reverse=True)
    named = [f"{name}: {real:.1%} → {one:.1%}" for gap, name, real, one in far if gap > 0.01]
    says = (
        f"Of {number_of(len(score.details), 'value')} that at least 1 % of the real rows have exactly, {kept:.0%} are "
        f"as frequent in the synthetic rows, {usual:.0%} in other real rows. "
        f"{_listed('Farthest off (real → synthetic)', named)}"
    )
    return "review" if kept < _KEPT * usual else "good", says


def _quantiles(score: Score) -> tuple[Verdict, str]:
    value = score.synthetic.value
    far = sorted(((one - real, name, one) for name, (one, real) in score.details.items()), reverse=True)
    named = [f"{name} by {f'{one:.0%}' if one < 1 else f'{one:,.0f} ranges'}" for gap, name, one in far if gap > _MOVED]
    much = f"{value:.1%} of" if value < 1 else f"{value:,.0f} times"
    says = f"Quantiles are off by {much} their column's range on average. {_listed('Farthest off', named)}"
    return "good" if value <= max(_MOVED, score.reference.high) else "review", says


def _columns(score: Score) -> tuple[Verdict, str]:
    gaps = {name: reference - one for name, (one, reference) in score.details.items()}
    mean = score.reference.value - score.synthetic.value
    wrong = sorted((name for name, gap in gaps.items() if gap > _GAP), key=lambda name: -gaps[name])
    of = f"{len(wrong) or 'None'} of {number_of(len(gaps), 'column')} {'are' if len(wrong) > 1 else 'is'}"
    says = f"{of} more than {_GAP} below the reference"
    says = _listed(says, wrong) or f"{says}."
    if mean > _LARGE_MEAN_GAP:
        return "alarm", says
    return "review" if wrong or mean > _MEAN_GAP else "good", says


def _listed(what: str, names: list[str]) -> str:
    """Return a sentence that lists the first names after a colon; "" for no names."""
    rest = len(names) - _NAMED
    more = f" and {rest} {'others' if rest > 1 else 'other'}" if rest > 0 else ""
    return f"{what}: {'; '.join(names[:_NAMED])}{more}." if names else ""


def _propensity(score: Score) -> tuple[Verdict, str]:
    value = score.synthetic.value
    says = "How well a decision tree tells synthetic rows from real ones: 0 is guessing, 0.25 is always right."
    return "good" if value <= max(_TOLD_APART, score.reference.high) else "review", says


ASSOCIATIONS = Rule("Relations between columns are lost", _associations)
CORRELATIONS = Rule("Correlations of numbers are off", _correlations)
HEAPS = Rule("Values that many rows share are too rare or too frequent", _heaps)
QUANTILES = Rule("Low, middle or high values of columns are off", _quantiles)
COLUMNS = Rule("Distributions of columns differ", _columns)
PROPENSITY = Rule("Synthetic rows can be told from real ones", _propensity)
