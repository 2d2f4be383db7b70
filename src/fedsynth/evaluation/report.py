"""One page about a synthetic table: it opens offline, needs no script, prints, and reads on a phone."""

from __future__ import annotations

import math
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fedsynth.errors import Unsupported
from fedsynth.evaluation import plots
from fedsynth.evaluation.pictures import ColumnPicture, Pictures
from fedsynth.evaluation.plots import Chart
from fedsynth.evaluation.score import Family, Score, Verdict
from fedsynth.evaluation.summary import RunSummary
from fedsynth.evaluation.verdicts import LOST, STRONG, worst

if TYPE_CHECKING:
    from fedsynth.evaluation.evaluate import About, Evaluation

_OPEN = 24  # columns drawn in the open; the rest of a wide table waits behind a line to click
_WORST = 10  # details shown of a score
_GROUPS = 6  # of sites that were charged alike; all sites are listed behind a line to click
_LINES = 500  # of the ledger; all are in ledger.json
# What stands for a family in the summary: the first of these that was measured, else its first score.
_HEADLINES: Mapping[Family, tuple[str, ...]] = {
    "fidelity": ("strong associations kept", "pair similarity", "column similarity"),
    "utility": ("ROC AUC", "R2", "accuracy"),
    "privacy": ("membership AUC, DOMIAS", "membership", "share nearer", "DCR"),
}
# What to do about a verdict, and about the gravest verdict of a family.
MEANINGS: Mapping[Verdict, str] = {
    "good": "nothing to do",
    "review": "read the finding and decide whether it matters for what the table is for",
    "alarm": "do not release or use the table until the cause is known",
}
_ACTIONS: Mapping[tuple[Family, Verdict], str] = {
    ("fidelity", "review"): "Check that no analysis rests on what differs.",
    ("fidelity", "alarm"): "Do not analyse this table: use another method, a larger budget or fewer columns.",
    ("utility", "review"): "Check whether models of this quality are good enough.",
    ("utility", "alarm"): "Do not train models on this table.",
    ("privacy", "review"): "Find the cause of the figures named here before the table is released.",
    ("privacy", "alarm"): "Do not release this table until the cause is found and removed.",
}
_LOST_SHOWN, _LOST_LISTED = 3, 20  # associations in the summary, and in their own section


@dataclass(frozen=True)
class Headline:
    """A family in the summary: the score that stands for it, that score's picture, and where it stands.

    ``verdict`` is the gravest of the family, ``action`` what to do about it, ``named`` the scores that are not good.
    """

    score: Score
    ruler: Chart | None
    standing: str
    verdict: Verdict
    action: str
    named: tuple[str, ...]


@dataclass(frozen=True)
class ColumnView:
    """A column's plot, the share of rows that sit in another bar, and its similarity (synthetic, reference).

    ``facts`` are a name with the real and the synthetic figure: shares of atoms and missing values, and quantiles.
    """

    name: str
    chart: Chart
    moved: float
    similarity: tuple[float, float] | None
    facts: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class AttackGroup:
    """Attacks under one of the three words of European law, what they ask, and what the guarantee leaves to any."""

    name: str
    question: str
    bound: str
    scores: tuple[Score, ...]


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
    columns = sorted(_columns(evaluation), key=_similarity)
    groups, distances = attack_groups(scores["privacy"])
    return environment.get_template("report.html.jinja").render(
        evaluation=evaluation,
        run=run,
        title=title_of(evaluation.about),
        groups=groups,
        distances=distances,
        corrected=sum(math.isfinite(one.p_value) for one in scores["privacy"]),
        meanings=MEANINGS,
        lost=lost_associations(evaluation.pictures),
        lost_shown=_LOST_SHOWN,
        most_lost=_LOST_LISTED,
        commonest=lambda some: Counter(one.reference_is for one in some).most_common(1)[0][0],
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
        chance=_chance,
        most=_WORST,
        most_lines=_LINES,
        most_groups=_GROUPS,
        utility_charts=[(one, _utility_chart(one)) for one in scores["utility"]],
        versions={"fedsynth": version("fedsynth"), "Python": platform.python_version()},
    )


def title_of(about: About) -> str:
    """Return a report's title: the one that was given, else one that names the data, if they have a name."""
    named = f"Report on the synthetic version of {about.data}" if about.data else "Report on a synthetic table"
    return about.title or named


def attack_groups(scores: Sequence[Score]) -> tuple[list[AttackGroup], list[Score]]:
    """Return attacks under the words of European law that they come nearest to, and what is no attack.

    The words are those of the Article 29 Working Party's opinion 05/2014 on anonymisation: singling out, linkability
    and inference. Groups without a score are left out.
    """
    members = [one for one in scores if one.metric == "membership-inference"]
    single = [one for one in members if one.name.startswith("membership TPR")]
    linked = [one for one in members if one not in single]
    inferred = [one for one in scores if one.metric == "attribute-disclosure"]
    groups: list[tuple[str, str, Callable[[float], str], list[Score]]] = [
        (
            "Singling out",
            "Can somebody tell, almost without error, that one particular row was among the training rows?",
            lambda bound: f"whoever may wrongly accuse 1 in 100 outsiders recognises at most {bound:.1%} of the rows.",
            single,
        ),
        (
            "Linkability",
            "Can a record that somebody holds be linked to the training rows, that is, told from the record of a "
            "stranger? (Linking two partial records of one person is not tried here.)",
            lambda bound: f"no attack on one row's presence has an AUC above {bound:.3f}; 0.5 is guessing.",
            linked,
        ),
        (
            "Inference",
            "Does the table give away a sensitive value of people in the training rows, beyond what it teaches about "
            "everybody?",
            lambda bound: (
                f"no guess gains more than {100 * bound:.1f} percentage points by one row's presence. What the "
                "population teaches has no bound."
            ),
            inferred,
        ),
    ]
    found = [
        AttackGroup(name, asks, next((says(one.bound) for one in own if math.isfinite(one.bound)), ""), tuple(own))
        for name, asks, says, own in groups
        if own
    ]
    grouped = [one for group in found for one in group.scores]
    return found, [one for one in scores if one not in grouped]


def lost_associations(pictures: Pictures) -> list[Pair]:
    """Return the strong associations of which less than half is left, strongest first."""
    pairs = [pair for pair in _pairs(pictures) if abs(pair.real) >= STRONG and pair.synthetic / pair.real < LOST]
    return sorted(pairs, key=lambda pair: -abs(pair.real))


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
    if found is None:
        return None
    verdict = worst([one.verdict for one in scores if one.family == family])
    named = tuple(one.name for one in scores if one.family == family and one.verdict in ("review", "alarm"))
    action = _ACTIONS.get((family, verdict), "")
    return Headline(found, plots.ruler(found), standing(found), verdict, action, named)


def _columns(evaluation: Evaluation) -> Iterator[ColumnView]:
    similarity = next((one.details for one in evaluation.scores if one.name == "column similarity"), {})
    for picture in evaluation.pictures.columns:
        yield ColumnView(
            picture.name,
            plots.distribution(picture),
            plots.moved(picture),
            similarity.get(picture.name),
            tuple(_facts(picture)),
        )


def _similarity(view: ColumnView) -> float:
    """Return by what columns are sorted: similarity or, where it was not measured, the share of rows that agree."""
    return view.similarity[0] if view.similarity else 1 - view.moved


def _facts(picture: ColumnPicture) -> Iterator[tuple[str, str, str]]:
    """Yield what a histogram alone does not tell: shares of atoms and of missing values, and quantiles."""
    if not picture.edges:
        return
    for role, name, one, two in zip(picture.roles, picture.labels, picture.real, picture.synthetic, strict=True):
        if role in ("value", "missing"):
            yield f"= {name}" if role == "value" else name, plots.percent(one), plots.percent(two)
    yield from picture.quantiles


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
    return sorted(_pairs(pictures), key=lambda pair: -abs(pair.synthetic - pair.real))[:_WORST]


def _pairs(pictures: Pictures) -> list[Pair]:
    matrices = pictures.associations
    return [
        Pair((matrices.names[one], matrices.names[two]), matrices.real[one][two], matrices.synthetic[one][two])
        for one in range(len(matrices.names))
        for two in range(one + 1, len(matrices.names))
        if math.isfinite(matrices.real[one][two]) and math.isfinite(matrices.synthetic[one][two])
    ]


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


def _chance(score: Score) -> str:
    """Say how often chance alone would take some figure of the report as far, if that is known."""
    if not math.isfinite(score.p_value):
        return ""
    if score.p_value < 0.001:
        return "Corrected p-value: below 0.001."
    return f"Corrected p-value: {score.p_value:.3g}."


def _sentence(text: str) -> str:
    """Return a remark as a sentence, whoever wrote it."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '!', '?')) else '.'}" if text else ""
