"""HTML report on a synthetic table: one self-contained page without scripts, for screens, phones and print."""

from __future__ import annotations

import math
import platform
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fedsynth.errors import from_extra
from fedsynth.evaluation import plots
from fedsynth.evaluation.plot_data import ColumnPlotData, PlotData
from fedsynth.evaluation.plots import Chart
from fedsynth.evaluation.score import Family, Score, Verdict
from fedsynth.evaluation.summary import RunSummary
from fedsynth.evaluation.verdicts import lost_associations, worst
from fedsynth.privacy.cost import in_full, rounded_up

if TYPE_CHECKING:
    from fedsynth.evaluation.evaluate import Evaluation, ReportTitle

_OPEN = 24  # columns shown at once; the others of a wide table are in a collapsed section
_WORST = 10  # details shown for each score
_GROUPS = 6  # groups of equally charged sites shown; a collapsed section lists all sites
_LINES = 500  # lines of the ledger shown; all are in ledger.json
# The headline score of a family without an alarm: the first of these that was measured, else its first score.
_HEADLINES: Mapping[Family, tuple[str, ...]] = {
    "fidelity": ("strong associations kept", "pair similarity", "column similarity"),
    "utility": ("ROC AUC relative", "ROC AUC", "R2", "accuracy"),
    "privacy": ("membership AUC, DOMIAS", "membership", "share nearer", "median DCR"),
}
# Actions: for a verdict, and for the gravest verdict of a family.
MEANINGS: Mapping[Verdict, str] = {
    "good": "nothing to do",
    "review": "read the finding and decide whether it matters for what the table is for",
    "alarm": "do not release or use the table until the cause is known",
}
_ACTIONS: Mapping[tuple[Family, Verdict], str] = {
    ("fidelity", "review"): "Check that no analysis depends on the columns or associations that differ.",
    ("fidelity", "alarm"): "Do not analyse this table: use another method, a larger budget or fewer columns.",
    ("utility", "review"): "Check whether models of this quality are good enough.",
    ("utility", "alarm"): "Do not train models on this table.",
    ("privacy", "review"): "Find the cause of the figures named here before the table is released.",
    ("privacy", "alarm"): "Do not release this table until the cause is found and removed.",
}
_LOST = 20  # lost associations listed in their section


@dataclass(frozen=True)
class Headline:
    """The summary of one family of scores (fidelity, utility or privacy) at the top of a report.

    ``ruler`` is a plot of the score, None if its value is not finite; ``standing`` is :func:`standing`. ``verdict`` is
    the gravest verdict on any score of the family, "" if there is none, ``action`` what to do about it, and ``named``
    the titles of the family's scores with the verdict "review" or "alarm".
    """

    score: Score
    ruler: Chart | None
    standing: str
    verdict: Verdict
    action: str
    named: tuple[str, ...]


@dataclass(frozen=True)
class ColumnView:
    """One column in a report: its plot, and the figures beside it.

    ``moved`` is the share of rows (0 to 1) that synthetic and real bars differ by. ``similarity`` is that of (synthetic
    rows, other real rows), 0 to 1; None if it was not measured. ``facts`` holds (name, real, synthetic) as text.
    """

    name: str
    chart: Chart
    moved: float
    similarity: tuple[float, float] | None
    facts: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class AttackGroup:
    """Attacks of one of the three risks of European data protection: singling out, linkability or inference.

    ``question`` is what the attacks test, ``bound`` what the formal guarantee allows, in words; "" without one.
    """

    name: str
    question: str
    bound: str
    scores: tuple[Score, ...]


@dataclass(frozen=True)
class AssociatedPair:
    """A pair of columns ("first name × second name"), and its association in real and in synthetic rows, -1 to 1."""

    name: str
    real: float
    synthetic: float


def render_report(evaluation: Evaluation, run: RunSummary | None) -> str:
    """Return the report as one self-contained HTML text, for the holder of the real rows.

    Without a ``run``, the page has no ledger of privacy costs and states no guarantee. Raises :class:`Unsupported`
    without Jinja2 (the extra ``evaluate``).
    """
    with from_extra("evaluate", "a report needs Jinja2"):
        import jinja2
        from markupsafe import Markup
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fedsynth", "evaluation"),
        autoescape=True,  # names and categories come from users' files
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["draw"] = lambda chart, fixed=False: Markup(plots.svg(chart, fixed=fixed))
    environment.filters |= {"figure": plots.figure, "percent": plots.percent, "clip": plots.clip, "sentence": _sentence}
    environment.filters |= {"rounded_up": rounded_up, "in_full": in_full}
    scores = {family: [one for one in evaluation.scores if one.family == family] for family in _HEADLINES}
    columns = sorted(_columns(evaluation), key=_similarity)
    groups, distances = attack_groups(evaluation)
    headlines = {family: _headline(evaluation, family) for family in _HEADLINES}
    shown = [one.score for one in headlines.values() if one is not None]
    page = environment.get_template("report.html.jinja").render(
        evaluation=evaluation,
        run=run,
        title=title_of(evaluation.about),
        groups=groups,
        distances=distances,
        corrected=sum(math.isfinite(one.p_value) for one in scores["privacy"]),
        meanings=MEANINGS,
        lost=_lost(evaluation.scores),
        most_lost=_LOST,
        commonest=lambda some: Counter(one.reference_is for one in some).most_common(1)[0][0],
        scores=scores,
        headlines=headlines,
        findings=[one for one in evaluation.scores if one.verdict == "review" and one not in shown],
        verdicts=Counter(one.verdict for one in scores["privacy"] if one.verdict),
        alarms=[one for one in evaluation.scores if one.verdict == "alarm"],
        columns=columns[:_OPEN],
        more_columns=columns[_OPEN:],
        matrices=_matrices(evaluation.plot_data),
        pairs=_worst_pairs(evaluation.plot_data),
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
    return "".join(map(_visible, page))


def _visible(letter: str) -> str:
    """Return a letter, or an escape in place of a control character, which names and labels of a schema may hold."""
    hidden = unicodedata.category(letter) in ("Cc", "Cf", "Cs") and letter not in "\t\n\u200c\u200d"
    return ascii(letter)[1:-1] if hidden else letter


def title_of(about: ReportTitle) -> str:
    """Return a report's title: ``about.title`` or, if that is empty, a default that contains ``about.data``."""
    named = f"Report on the synthetic version of {about.data}" if about.data else "Report on a synthetic table"
    return about.title or named


def attack_groups(evaluation: Evaluation) -> tuple[list[AttackGroup], list[Score]]:
    """Return the attacks grouped by the risk that each comes nearest to, and the privacy scores that are not attacks.

    The risks are those of the Article 29 Working Party's opinion 05/2014 on anonymisation: singling out (true-positive
    rates of membership attacks), linkability (their AUC) and inference (attribute disclosure). Groups without a score
    are left out.
    """
    scores = [one for one in evaluation.scores if one.family == "privacy"]
    row, rows, known, those = "row", "rows", "a known record", "the record"
    if evaluation.persons:
        row, rows, known, those = "person", "persons", "the known records of a person", "those"
    members = [one for one in scores if one.metric == "membership-inference"]
    single = [one for one in members if one.name.startswith("membership TPR")]
    linked = [one for one in members if one not in single]
    inferred = [one for one in scores if one.metric == "attribute-disclosure"]
    groups: list[tuple[str, str, Callable[[float], str], list[Score]]] = [
        (
            "Singling out",
            f"Can somebody tell, almost without error, that one particular {row} was among the training {rows}?",
            lambda bound: (
                f"at a false-positive rate of 1%, no attack on {evaluation.attacked} recognises more than {bound:.1%} "
                f"of the {rows}."
            ),
            single,
        ),
        (
            "Linkability",
            f"Can {known} be linked to the training rows, that is, distinguished from {those} of somebody who is not "
            "in them? (Linking two partial records of one person is not tested.)",
            lambda bound: f"no attack on {evaluation.attacked} has an AUC above {bound:.3f}; 0.5 is guessing.",
            linked,
        ),
        (
            "Inference",
            "Does the table disclose a sensitive value of people in the training rows, beyond what it reveals about "
            "the population?",
            lambda bound: (
                f"{evaluation.attacked} improves no guess by more than {100 * bound:.1f} percentage points. "
                "Inference from statistics of the population has no bound."
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


def headline(scores: tuple[Score, ...], family: Family) -> Score | None:
    """Return the score that a report's summary shows for a family; None if none of its scores was measured.

    It is the first with the verdict "alarm", else the first that was measured of those named in ``_HEADLINES``, else
    the family's first. A score that is nan or infinite is returned only if there is no other.
    """
    known = [one for one in scores if one.family == family]
    sound = [one for one in known if math.isfinite(one.synthetic.value)] or known
    wanted = [one for name in _HEADLINES[family] for one in sound if one.name.startswith(name)]
    alarms = [one for one in sound if one.verdict == "alarm"]
    return next(iter([*alarms, *wanted, *sound]), None)


def standing(score: Score) -> str:
    """Return the position of a score relative to its reference, as in "worse than the reference's band".

    It is "" if neither has a 95 % interval ("band"), or if a value is not finite.
    """
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
    """Return the up to ten details of a score whose values are farthest from their references, farthest first."""

    def badness(item: tuple[str, tuple[float, float]]) -> float:
        gap = abs(item[1][0] - item[1][1])
        return gap if math.isfinite(gap) else -1.0

    return sorted(score.details.items(), key=badness, reverse=True)[:_WORST]


def _headline(evaluation: Evaluation, family: Family) -> Headline | None:
    scores = evaluation.scores
    found = headline(scores, family)
    if found is None:
        return None
    verdict = worst([one.verdict for one in scores if one.family == family])
    if verdict == "good" and family == "privacy" and evaluation.first and not attack_groups(evaluation)[0]:
        verdict = ""  # nothing was attacked
    named = tuple(one.name for one in scores if one.family == family and one.verdict in ("review", "alarm"))
    action = _ACTIONS.get((family, verdict), "")
    return Headline(found, plots.ruler(found), standing(found), verdict, action, named)


def _columns(evaluation: Evaluation) -> Iterator[ColumnView]:
    similarity = next((one.details for one in evaluation.scores if one.name == "column similarity"), {})
    for plotted in evaluation.plot_data.columns:
        yield ColumnView(
            plotted.name,
            plots.distribution(plotted),
            plots.moved(plotted),
            similarity.get(plotted.name),
            tuple(_facts(plotted)),
        )


def _similarity(view: ColumnView) -> float:
    """Return the sort key of columns: the similarity or, if it was not measured, the share of rows that agree."""
    return view.similarity[0] if view.similarity else 1 - view.moved


def _facts(plotted: ColumnPlotData) -> Iterator[tuple[str, str, str]]:
    """Yield the table below a histogram: shares of atoms and of missing values, and quantiles."""
    if not plotted.edges:
        return
    for role, name, one, two in zip(plotted.roles, plotted.labels, plotted.real, plotted.synthetic, strict=True):
        if role in ("value", "missing"):
            yield f"= {name}" if role == "value" else name, plots.percent(one), plots.percent(two)
    yield from plotted.quantiles


def _matrices(plot_data: PlotData) -> dict[str, Any] | None:
    """Return the three heat maps and their colour limit; None for a single column."""
    matrices = plot_data.associations
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
        "of": len(plot_data.columns),
    }


def _lost(scores: tuple[Score, ...]) -> list[AssociatedPair]:
    """Return the lost associations, strongest first; nothing if they were not measured."""
    measured = [one for one in scores if one.metric == "associations-kept"][:1]  # the others are among its pairs
    return [AssociatedPair(*pair) for score in measured for pair in lost_associations(score)]


def _worst_pairs(plot_data: PlotData) -> list[AssociatedPair]:
    return sorted(_pairs(plot_data), key=lambda pair: -abs(pair.synthetic - pair.real))[:_WORST]


def _pairs(plot_data: PlotData) -> list[AssociatedPair]:
    matrices = plot_data.associations
    return [
        AssociatedPair(
            f"{matrices.names[one]} × {matrices.names[two]}", matrices.real[one][two], matrices.synthetic[one][two]
        )
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
    """Return the sentence on the adjusted p-value; "" if the score has none."""
    if not math.isfinite(score.p_value):
        return ""
    if score.p_value < 0.001:
        return "Corrected p-value: below 0.001."
    return f"Corrected p-value: {score.p_value:.3g}."


def _sentence(text: str) -> str:
    """Return a remark with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '!', '?')) else '.'}" if text else ""
