"""Verdicts on fidelity scores: strong associations, columns, and how well rows are told apart.

Each score is judged beside its reference, the same score of other real rows. An association between two columns is
strong if it is at least 0.3 in absolute value in the real rows; its score is the share of it that synthetic rows keep.

======================  =======================================  ====================================================
score                   review                                   alarm
======================  =======================================  ====================================================
strong associations     below 90 % of the reference, or an       below half of the reference
kept                    association of which under half is kept
column similarity       more than 0.05 below the reference on    more than 0.25 below the reference on average
                        average, or 0.15 in any column
propensity MSE          above the reference's band and 0.05      never: a tree may use a negligible trait
======================  =======================================  ====================================================

Anything else is good. There is no verdict if fewer than 100 synthetic rows were compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from fedsynth.evaluation.score import Score, Verdict

STRONG = 0.3  # least absolute value of a strong association in the real rows
LOST = 0.5  # an association is lost if a smaller share of it is kept
_FEW = 100  # rows
_KEPT = 0.9
_MEAN_GAP, _LARGE_MEAN_GAP, _GAP = 0.05, 0.25, 0.15  # of similarities to their references
_TOLD_APART = 0.05  # propensity MSE; a tree that is always right with probability 1 has 0.25
_NAMED = 3  # columns in a sentence


def with_verdict(score: Score, rows: int) -> Score:
    """Return a fidelity score with verdict and explanation, if its metric has a rule; otherwise the score as it is.

    Rules exist for the metrics "associations-kept", "column-similarity" and "propensity". ``rows`` is the number of
    synthetic rows that were compared; there is no verdict below 100.
    """
    rule = _RULES.get(score.metric)
    if rule is None or rows < _FEW:
        return score
    verdict, says = rule(score)
    return replace(score, verdict=verdict, says=says)


def worst(verdicts: list[Verdict]) -> Verdict:
    """Return the gravest of the verdicts, "alarm" before "review" before "good"; "" if there is none."""
    return next((one for one in _GRAVEST_FIRST if one in verdicts), "")


_GRAVEST_FIRST: tuple[Verdict, ...] = ("alarm", "review", "good")


def _associations(score: Score) -> tuple[Verdict, str]:
    kept, usual = score.synthetic.value, score.reference.value
    lost = [name for name, (one, _) in score.details.items() if one < LOST]
    says = (
        f"Of {len(score.details)} strong associations (at least {STRONG} in the real rows), synthetic rows keep "
        f"{kept:.0%} on average, other real rows keep {usual:.0%}. Under half is kept of {len(lost) or 'none'}."
    )
    if kept < LOST * usual:
        return "alarm", says
    return "review" if lost or kept < _KEPT * usual else "good", says


def _columns(score: Score) -> tuple[Verdict, str]:
    gaps = {name: reference - one for name, (one, reference) in score.details.items()}
    mean = score.reference.value - score.synthetic.value
    wrong = sorted((name for name, gap in gaps.items() if gap > _GAP), key=lambda name: -gaps[name])
    named = ", ".join(wrong[:_NAMED]) + (f" and {len(wrong) - _NAMED} others" if len(wrong) > _NAMED else "")
    says = f"{len(wrong) or 'No'} of {len(gaps)} columns are more than {_GAP} below their reference"
    says += f": {named}." if wrong else "."
    if mean > _LARGE_MEAN_GAP:
        return "alarm", says
    return "review" if wrong or mean > _MEAN_GAP else "good", says


def _propensity(score: Score) -> tuple[Verdict, str]:
    value = score.synthetic.value
    says = "How well a decision tree tells synthetic rows from real ones: 0 is guessing, 0.25 is always right."
    return "good" if value <= max(_TOLD_APART, score.reference.high) else "review", says


_RULES: Mapping[str, Callable[[Score], tuple[Verdict, str]]] = {
    "associations-kept": _associations,
    "column-similarity": _columns,
    "propensity": _propensity,
}
