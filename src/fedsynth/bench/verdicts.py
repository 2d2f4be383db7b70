"""Published figures beside ours, each with a verdict, and sentences of publications with how often they hold."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fedsynth.bench.page import Parts, RunFigure, fits, grouped, spread
from fedsynth.bench.spec import Claim, Published, Spec, several
from fedsynth.evaluation.comparison import student

_DIGITS = 3  # of published figures: a mean that agrees with one to these is equal
_DEVIATIONS = 2.0  # standard deviations of ours over seeds
_SIGNIFICANT = 0.05

VERDICTS = {
    "better": "▲",
    "met": "=",
    "below": "▼",
    "agrees": "≈",
    "differs": "≠",
    "other footing": "○",
    "other sample": "◇",
    "not obtainable": "✗",
    "not run": "·",
}
"""Every verdict and its mark.

A figure of the publication's subject is better, met or below; one of its baselines, or one that is neither good nor
bad, agrees or differs: by more than two standard deviations of ours over seeds.
"""


class JudgedFigure(NamedTuple):
    """A published ``number`` and its verdict.

    ``names`` are our names of the figure and ``settings`` the axes of its ``entry`` with their values. ``method`` is
    ours that stands beside it, and ``mean``, ``deviation`` and ``seeds`` those of its runs; "" and NaN without any.
    ``counts`` is false for further methods beside a figure that is counted.
    """

    entry: Published
    settings: Parts
    names: tuple[str, ...]
    number: float
    verdict: str
    method: str = ""
    mean: float = math.nan
    deviation: float = math.nan
    seeds: int = 0
    counts: bool = True


class JudgedClaim(NamedTuple):
    """A sentence with the numbers of combinations of settings for which it ``holds``, and of all.

    ``significant`` is how many of those that hold have a p-value of Student's t-test below .05 without correction, as
    in the FedBN thesis.
    """

    claim: Claim
    holds: int
    of: int
    significant: int

    def __str__(self) -> str:
        """Return it in words."""
        if not self.of:
            return "not run"
        word = "holds" if self.holds == self.of else "does not hold" if not self.holds else "holds in part"
        return f"{word}: {self.holds} of {self.of}, {self.significant} of them significantly"


def published_figures(entry: Published) -> Iterator[tuple[Parts, tuple[str, ...], float]]:
    """Yield the settings, our names and the number of each figure of an entry that was published."""

    def lists(found: Any, axes: Sequence[str], settings: Parts) -> Iterator[tuple[Parts, Sequence[float]]]:
        if not axes:
            yield settings, found
            return
        for value, inside in found.items():
            yield from lists(inside, axes[1:], {**settings, axes[0]: str(value)})

    for settings, numbers in lists(entry.figures, entry.axes, {}):
        for names, number in zip(entry.values, numbers, strict=True):
            if not math.isnan(number):
                yield settings, several(names, ()), float(number)


def judge(spec: Spec, figures: Sequence[RunFigure]) -> list[JudgedFigure]:
    """Return every published figure of a specification with its verdict, and further methods that stand beside it."""
    runs = grouped(figures, ("method", "value"))
    found = []
    for entry in spec.published:
        own: dict[tuple[str, str], list[RunFigure]] = {}  # of one method and name, on this entry's settings
        for settings, names, number in published_figures(entry):
            beside: list[tuple[str, list[RunFigure]]] = []
            for method, name in itertools.product(entry.by, names):
                if (key := (method, name)) not in own:
                    own[key] = [run for run in runs.get(key, []) if fits(run.parts, entry.where)]
                alike = [run for run in own[key] if all(run.parts[axis] == value for axis, value in settings.items())]
                if alike and entry.standing not in ("not obtainable", "not run"):
                    beside.append((method, alike))
            missing = "not obtainable" if entry.standing == "not obtainable" else "not run"
            judged = JudgedFigure(entry, settings, names, number, missing)
            for place, (method, alike) in enumerate(beside):
                mean, deviation = spread(alike)
                better = "" if entry.baseline else spec.metrics[alike[0].parts["metric"]].better
                found.append(
                    judged._replace(
                        verdict=entry.standing or _verdict(mean, deviation, number, better),
                        method=method,
                        mean=mean,
                        deviation=deviation,
                        seeds=len({run.parts["seed"] for run in alike}),
                        counts=not place,
                    )
                )
            if not beside:
                found.append(judged)
    return found


def _verdict(mean: float, deviation: float, number: float, better: str) -> str:
    further = round(mean, _DIGITS) - number
    if abs(further) <= max(_DEVIATIONS * deviation, 10.0**-_DIGITS / 2):
        return "met" if better else "agrees"
    if not better:
        return "differs"
    return "better" if (further < 0) is (better == "lower") else "below"


def judge_claim(spec: Spec, claim: Claim, figures: Sequence[RunFigure]) -> JudgedClaim:
    """Return for how many combinations of settings a sentence holds."""
    lower = spec.metrics[claim.value.partition(": ")[0]].better == "lower"
    own = [figure for figure in figures if figure.parts["value"] == claim.value]
    better, worse = (
        grouped([figure for figure in own if fits(figure.parts, where)], claim.over)
        for where in (claim.better, claim.worse)
    )
    holds = significant = of = 0
    for key in better.keys() & worse.keys():
        one, other = ([figure.number for figure in side[key]] for side in (better, worse))
        of += 1
        if (spread(better[key])[0] < spread(worse[key])[0]) is lower:
            holds += 1
            significant += min(len(one), len(other)) > 1 and student(one, other) < _SIGNIFICANT
    return JudgedClaim(claim, holds, of, significant)


def counted(judged: Sequence[JudgedFigure]) -> Mapping[str, int]:
    """Return how many published figures have each verdict; each is counted once."""
    return {verdict: sum(figure.verdict == verdict for figure in judged if figure.counts) for verdict in VERDICTS}
