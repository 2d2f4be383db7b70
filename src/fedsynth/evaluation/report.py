"""One page about a synthetic table: it opens offline, needs no script, prints, and reads on a phone."""

from __future__ import annotations

import math
import platform
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fedsynth.errors import Unsupported
from fedsynth.evaluation import plots
from fedsynth.evaluation.pictures import Pictures
from fedsynth.evaluation.plots import Chart
from fedsynth.evaluation.score import Family, Score
from fedsynth.evaluation.summary import RunSummary

if TYPE_CHECKING:
    from fedsynth.evaluation.evaluate import Evaluation

_OPEN = 24  # columns drawn in the open; the rest of a wide table waits behind a line to click
_WORST = 10  # details shown of a score
_GROUPS = 6  # of sites that were charged alike; all sites are listed behind a line to click
_LINES = 500  # of the ledger; all are in ledger.json
# What stands for a family in the summary: the first of these that was measured, else its first score.
_HEADLINES: Mapping[Family, tuple[str, ...]] = {
    "fidelity": ("pair similarity", "column similarity"),
    "utility": ("ROC AUC", "R2", "accuracy"),
    "privacy": ("membership AUC, DOMIAS", "membership", "share nearer", "DCR"),
}


@dataclass(frozen=True)
class Headline:
    """A family's figure in the summary: its score, its picture, and where it stands to its reference."""

    score: Score
    ruler: Chart | None
    standing: str


@dataclass(frozen=True)
class ColumnView:
    """A column's plot, the share of rows that sit in another bar, and its similarity (synthetic, reference)."""

    name: str
    chart: Chart
    moved: float
    similarity: tuple[float, float] | None


@dataclass(frozen=True)
class Pair:
    """A pair of columns and its association in both tables."""

    names: tuple[str, str]
    real: float
    synthetic: float


def render_report(evaluation: Evaluation, run: RunSummary | None) -> str:
    """Return the report as one HTML text without outside resources, for whoever holds the real rows.

    ``run`` says how the table was made; without it the page has no ledger and states no guarantee. Needs the
    extra ``evaluate``.
    """
    try:
        import jinja2
        from markupsafe import Markup
    except ImportError as error:
        raise Unsupported("a report needs Jinja2; pip install 'fedsynth[evaluate]'") from error
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fedsynth", "evaluation"),
        autoescape=True,  # names and categories come from files of users
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["draw"] = lambda chart, fixed=False: Markup(plots.svg(chart, fixed=fixed))
    environment.filters |= {"figure": plots.figure, "percent": plots.percent, "clip": plots.clip, "sentence": _sentence}
    scores = {family: [one for one in evaluation.scores if one.family == family] for family in _HEADLINES}
    columns = sorted(_columns(evaluation), key=lambda view: -view.moved)
    return environment.get_template("report.html.jinja").render(
        evaluation=evaluation,
        run=run,
        scores=scores,
        headlines={family: _headline(evaluation.scores, family) for family in _HEADLINES},
        verdicts=Counter(one.verdict for one in scores["privacy"] if one.verdict),
        alarms=[one for one in evaluation.scores if one.verdict == "alarm"],
        columns=columns[:_OPEN],
        more_columns=columns[_OPEN:],
        matrices=_matrices(evaluation.pictures),
        pairs=_worst_pairs(evaluation.pictures),
        levels=range(1, plots.LEVELS + 1),
        ruler=plots.ruler,
        standing=standing,
        worst=worst_details,
        most=_WORST,
        most_lines=_LINES,
        most_groups=_GROUPS,
        utility_charts=[(one, _utility_chart(one)) for one in scores["utility"]],
        versions={"fedsynth": version("fedsynth"), "Python": platform.python_version()},
    )


def headline(scores: tuple[Score, ...], family: Family) -> Score | None:
    """Return the score that stands for a family in the summary; None if nothing of it was measured.

    An alarm goes first. Then come the names that are wanted most, then the first score of the family; one
    whose value is not a number stands only if there is no other.
    """
    known = [one for one in scores if one.family == family]
    sound = [one for one in known if math.isfinite(one.synthetic.value)] or known
    wanted = [one for name in _HEADLINES[family] for one in sound if one.name.startswith(name)]
    alarms = [one for one in sound if one.verdict == "alarm"]
    return next(iter([*alarms, *wanted, *sound]), None)


def standing(score: Score) -> str:
    """Say where a score lies to its reference, as far as there is a band of either to say it by."""
    value, reference = score.synthetic.value, score.reference
    if math.isfinite(reference.low) and math.isfinite(reference.high):
        inside, than = reference.low <= value <= reference.high, "the reference's band"
    elif math.isfinite(score.synthetic.low) and math.isfinite(score.synthetic.high):
        inside, than = score.synthetic.low <= reference.value <= score.synthetic.high, "the reference"
    else:
        return ""
    if inside:
        return "inside the reference's band" if than.endswith("band") else "its band holds the reference"
    if not (math.isfinite(value) and math.isfinite(reference.value)):
        return ""
    if score.best is None:
        return f"{'below' if value < reference.value else 'above'} {than}"
    nearer = abs(value - score.best) < abs(reference.value - score.best)
    return f"{'better' if nearer else 'worse'} than {than}"


def worst_details(score: Score) -> list[tuple[str, tuple[float, float]]]:
    """Return a score's worst details: farthest from the best value, or from the reference where there is none."""

    def badness(item: tuple[str, tuple[float, float]]) -> float:
        synthetic, reference = item[1]
        gap = abs(synthetic - (reference if score.best is None else score.best))
        return gap if math.isfinite(gap) else -1.0

    return sorted(score.details.items(), key=badness, reverse=True)[:_WORST]


def _headline(scores: tuple[Score, ...], family: Family) -> Headline | None:
    found = headline(scores, family)
    return None if found is None else Headline(found, plots.ruler(found), standing(found))


def _columns(evaluation: Evaluation) -> Iterator[ColumnView]:
    similarity = next((one.details for one in evaluation.scores if one.name == "column similarity"), {})
    for picture in evaluation.pictures.columns:
        yield ColumnView(picture.name, plots.distribution(picture), plots.moved(picture), similarity.get(picture.name))


def _matrices(pictures: Pictures) -> dict[str, Any] | None:
    """Return the three heat maps and the end of their colours; None where there is no pair of columns."""
    matrices = pictures.associations
    if len(matrices.names) < 2:
        return None
    limit = plots.colour_limit(matrices)
    sides = {
        "Real": matrices.real,
        "Synthetic": matrices.synthetic,
        "Difference (synthetic − real)": plots.difference(matrices),
    }
    return {
        "limit": limit,
        "charts": {name: plots.heat_map(matrices.names, values, limit, name) for name, values in sides.items()},
        "columns": len(matrices.names),
        "of": len(pictures.columns),
    }


def _worst_pairs(pictures: Pictures) -> list[Pair]:
    matrices = pictures.associations
    pairs = [
        Pair((matrices.names[one], matrices.names[two]), matrices.real[one][two], matrices.synthetic[one][two])
        for one in range(len(matrices.names))
        for two in range(one + 1, len(matrices.names))
        if math.isfinite(matrices.real[one][two]) and math.isfinite(matrices.synthetic[one][two])
    ]
    return sorted(pairs, key=lambda pair: -abs(pair.synthetic - pair.real))[:_WORST]


def _utility_chart(score: Score) -> Chart:
    details = score.details or {score.name: (score.synthetic.value, score.reference.value)}
    gist = "; ".join(
        f"{name}: trained on synthetic rows {plots.figure(one)}, on real rows {plots.figure(two)}"
        for name, (one, two) in details.items()
    )
    return plots.lying_bars(
        tuple(details),
        [both[1] for both in details.values()],
        [both[0] for both in details.values()],
        f"{score.name}. {gist}",
        plots.figure,
        values=True,
        top=max([1.0, *(value for both in details.values() for value in both if math.isfinite(value))]),
    )


def _sentence(text: str) -> str:
    """Return a remark as a sentence, whoever wrote it."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '!', '?')) else '.'}" if text else ""
