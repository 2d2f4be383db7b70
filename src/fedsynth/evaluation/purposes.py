"""What a synthetic table can be used for: a verdict and the number behind it, for each of eight purposes.

======================  ====================================  ================  ====================
purpose                 number                                yes               no
======================  ====================================  ================  ====================
count of a group        smallest trustworthy group, share     at most 2 %       above 10 %
                        of rows
cross table of two      pair similarity, below its reference  at most .05       above .15
mean of a subgroup      numeric columns whose mean is kept    all               an alarm
regression              strong correlations kept              90 % of the       50 % of the
                                                              reference         reference
classifier              ROC AUC (or R2), of the reference     95 %              85 %
rare events             smallest trustworthy count of a       at most .5 %      above 2 %
                        value, share of rows
time                    similarity of columns of times,       at most .05       above .15
                        below its reference
outliers                none: they are what the guarantee hides                 always
======================  ====================================  ================  ====================

Anything between is "with care", and so is what was not measured. ``reference`` is that of the score: other real rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from fedsynth.evaluation.plot_data import PlotData
from fedsynth.evaluation.score import Score
from fedsynth.models.card import RELIABLE, ModelCard

Answer = Literal["yes", "with care", "no"]


class Purpose(NamedTuple):
    """A purpose of a table: whether it can be used for it, and why, with the number behind that."""

    name: str
    answer: Answer
    says: str


def purposes(scores: Sequence[Score], card: ModelCard | None, plotted: PlotData) -> list[Purpose]:
    """Return whether a table can be used for each purpose, from its scores, its card, and its columns."""
    by_metric: dict[str, list[Score]] = {}
    for score in scores:
        by_metric.setdefault(score.metric, []).append(score)
    return [
        *_groups(card),
        _gap("cross table of two columns", _first(by_metric, "pair-similarity"), "similarity of pairs"),
        _means(_first(by_metric, "means")),
        _regression([score for score in by_metric.get("correlations-kept", ()) if "Pearson" in score.name]),
        _classifier([score for score in scores if score.family == "utility"]),
        _rare(card),
        _times(_first(by_metric, "column-similarity"), plotted),
        Purpose("outliers", "no", "single extreme rows are what the guarantee hides: none can be trusted"),
    ]


def _first(by_metric: dict[str, list[Score]], metric: str) -> Score | None:
    return next(iter(by_metric.get(metric, ())), None)


def _graded(value: float, yes: float, no: float) -> Answer:
    """Return the answer for a number of which less is better."""
    return "yes" if value <= yes else "no" if value > no else "with care"


def _smallest(card: ModelCard | None, crossing: bool) -> tuple[float, float] | None:
    """Return the smallest trustworthy group in rows, and as a share of all rows; ``None`` if it is not known."""
    limits = None if card is None else card.limitations
    if card is None or limits is None:
        return None
    rows = (limits.crossing or limits.value) if crossing else limits.value
    return None if rows is None else (RELIABLE * rows, RELIABLE * rows / max(card.records, 1.0))


def _groups(card: ModelCard | None) -> Iterator[Purpose]:
    known = _smallest(card, crossing=True)
    if known is None:
        yield Purpose("count of a group", "with care", "the run does not say how large its noise is")
        return
    rows, share = known
    says = f"trustworthy from about {rows:,.0f} rows on ({share:.1%} of all)"
    yield Purpose("count of a group", _graded(share, 0.02, 0.10), says)


def _rare(card: ModelCard | None) -> Purpose:
    known = _smallest(card, crossing=False)
    if known is None:
        return Purpose("rare events", "with care", "the run does not say how large its noise is")
    rows, share = known
    return Purpose("rare events", _graded(share, 0.005, 0.02), f"values of fewer than about {rows:,.0f} rows are noise")


def _gap(name: str, score: Score | None, what: str) -> Purpose:
    if score is None or math.isnan(score.synthetic.value):
        return Purpose(name, "with care", "not measured")
    reference = 1.0 if math.isnan(score.reference.value) else score.reference.value
    says = f"{what} {score.synthetic.value:.3f}, of other real rows {reference:.3f}"
    return Purpose(name, _graded(reference - score.synthetic.value, 0.05, 0.15), says)


def _means(score: Score | None) -> Purpose:
    if score is None:
        return Purpose("mean of a subgroup", "with care", "the table has no column of numbers")
    off = f"; off: {', '.join(score.off[:3])}" if score.off else ""
    answer: Answer = "no" if score.verdict == "alarm" else "yes" if score.synthetic.value == 1 else "with care"
    return Purpose("mean of a subgroup", answer, f"means kept in {score.synthetic.value:.0%} of the columns{off}")


def _ratio(name: str, score: Score, what: str, yes: float, no: float) -> Purpose:
    reference = score.reference.value
    if math.isnan(score.synthetic.value) or math.isnan(reference) or reference <= 0:
        return Purpose(name, "with care", f"{what} could not be compared")
    ratio = score.synthetic.value / reference
    answer: Answer = "yes" if ratio >= yes else "no" if ratio < no else "with care"
    return Purpose(name, answer, f"{what} {score.synthetic.value:.3f}, of real rows {reference:.3f}")


def _regression(scores: Sequence[Score]) -> Purpose:
    if not scores:
        return Purpose("regression", "with care", "the real rows have no strong correlation to judge by")
    return _ratio("regression", scores[0], "strong correlations kept:", 0.9, 0.5)


def _classifier(scores: Sequence[Score]) -> Purpose:
    named = [score for score in scores if score.name.startswith(("ROC AUC", "R2"))]
    if not named:
        return Purpose("classifier", "with care", "not measured: name a column to predict (--target)")
    return _ratio("classifier", named[0], f"{named[0].name}", 0.95, 0.85)


def _times(score: Score | None, plotted: PlotData) -> Purpose:
    times = [column.name for column in plotted.columns if column.kind == "datetime"]
    if not times:
        return Purpose("time", "with care", "the table has no column of times")
    known = [score.details[name] for name in times if score is not None and name in score.details]
    if not known:
        return Purpose("time", "with care", "not measured")
    synthetic, reference = min(known, key=lambda both: both[0] - (1.0 if math.isnan(both[1]) else both[1]))
    reference = 1.0 if math.isnan(reference) else reference
    says = f"similarity of the worst column of times {synthetic:.3f}, of other real rows {reference:.3f}"
    return Purpose("time", _graded(reference - synthetic, 0.05, 0.15), says)
