"""HTML report on a synthetic table: one self-contained page without scripts, for screens, phones and print."""

from __future__ import annotations

import math
import platform
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from fedsynth.errors import from_extra, number_of
from fedsynth.evaluation import plots
from fedsynth.evaluation.plot_data import ColumnPlotData, PlotData
from fedsynth.evaluation.plots import Chart
from fedsynth.evaluation.purposes import purposes
from fedsynth.evaluation.score import Family, Score, Verdict, to_json
from fedsynth.evaluation.summary import RunSummary
from fedsynth.evaluation.verdicts import lost_associations, worst
from fedsynth.files import write_whole
from fedsynth.models.card import ModelCard, card_sections, certainty_text, percent_up
from fedsynth.privacy.cost import best_guess, in_full, rounded_up

_OPEN = 24  # columns shown at once; the others of a wide table are in a collapsed section
_WORST = 10  # details shown for each score
_GROUPS = 6  # groups of equally charged sites shown; a collapsed section lists all sites
_LINES = 500  # lines of the ledger shown; all are in ledger.json
# The headline score of a family: the first of these among the scores with its gravest verdict, else their first.
_HEADLINES: Mapping[Family, tuple[str, ...]] = {
    "fidelity": ("strong associations kept", "pair similarity", "column similarity"),
    "utility": ("ROC AUC relative", "ROC AUC", "R2", "accuracy"),
    "privacy": ("membership AUC, DOMIAS", "membership"),
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
_WEAK = 0.99  # certainty from which a guarantee excludes hardly any attack: epsilon is then 4.6
_LOST = 20  # lost associations listed in their section
_ELSEWHERE = ("What is lost", "What is proved")  # sections of a card that a report has in other places
_NOTHING = "Nothing is proved: an attacker may be certain."
_GAP = "The guarantee does not cover all that is published: its conditions, below, say what."
_CONSTANT = 0.99  # share of the real rows with one value from which a column counts as constant
_DO_NOT_USE = (
    "Do not use this column. Look at its distribution below: narrower public bounds in the schema, a larger epsilon or "
    "more rows may help."
)


@dataclass(frozen=True)
class ReportTitle:
    """Title block of a report; ``date`` (of the measurement) is in ISO 8601, and an unknown field is empty."""

    title: str = ""
    owner: str = ""
    data: str = ""
    date: str = ""


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation: scores in the order of a report, data for its plots, and notes for the reader.

    ``rows`` maps "real", "synthetic" and "holdout" to numbers of rows, and ``persons`` "real" and "holdout" to numbers
    of persons (empty if nothing says which rows are of one person). ``target`` is "" for none; ``first`` says that only
    a first report was measured. ``notes`` are sentences on how rows were drawn, and on what was not measured and why.
    ``attacked`` is :attr:`~fedsynth.evaluation.privacy.AttackBounds.attacked`, ``unknown`` what the table's guarantee
    hides, in words, ``guarantee`` the (epsilon, delta) that was stated for the table, and ``card`` that of the
    synthesizer that drew the rows; ``None`` without one.

    All of it is plain data, and all but the scores may be left out. ``released`` says that it was made from released
    answers alone. Otherwise none of it but the card is differentially private: it is computed from real rows without
    noise.
    """

    scores: tuple[Score, ...]
    plot_data: PlotData = field(default_factory=PlotData)
    rows: Mapping[str, int] = field(default_factory=dict)
    target: str = ""
    notes: tuple[str, ...] = ()
    about: ReportTitle = ReportTitle()
    persons: Mapping[str, int] = field(default_factory=dict)
    attacked: str = "the presence of one row"
    unknown: str = "whether any one row is in the data"
    guarantee: tuple[float, float] | None = None
    card: ModelCard | None = None
    first: bool = False
    released: bool = False

    @property
    def frame(self) -> pd.DataFrame:
        """The scores as a data frame with the columns ``metric``, ``score``, ``column``, ``value`` and ``reference``.

        The first line of a score has the column ""; one line follows for each of its details, if it has any. The notes
        are in ``frame.attrs``.
        """
        lines = [
            (score.metric, score.name, column, value, reference)
            for score in self.scores
            for column, (value, reference) in {
                "": (score.synthetic.value, score.reference.value),
                **score.details,
            }.items()
        ]
        frame = pd.DataFrame(lines, columns=["metric", "score", "column", "value", "reference"])
        frame.attrs["notes"] = list(self.notes)
        return frame

    def plot(self, column: str) -> plots.Plot:
        """Return the plot of a column, real and synthetic rows together; it is not private, unless ``released``."""
        return plots.column_plot(column, self.plot_data.columns)

    def to_html(self, path: Path | str) -> None:
        """Write the report as one HTML page that needs no network; it is not private, unless ``released``."""
        write_whole(Path(path), render_report(self, None))

    def __str__(self) -> str:
        """Return the scores as a table of text, without their details."""
        return str(self._headlines.to_string(index=False))

    @property
    def _headlines(self) -> pd.DataFrame:
        frame = self.frame
        return frame[frame["column"] == ""].drop(columns="column")

    def _repr_html_(self) -> str:
        return str(self._headlines.to_html(index=False))

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``scores.json``; infinite numbers and nan become None. :meth:`from_json` reads it."""
        content: dict[str, Any] = to_json(self)
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Evaluation:
        """Return the evaluation from the output of :meth:`to_json`; raises ``msgspec.ValidationError`` for another."""
        return msgspec.convert(content, cls)


@dataclass(frozen=True)
class Headline:
    """One score at the top of a report, which stands for its family (fidelity, utility or attacks on privacy).

    Its verdict is the gravest of the family. ``gauge`` is a plot of that, None without one; ``standing`` is
    :func:`standing`, and ``action`` what to do.
    """

    score: Score
    gauge: Chart | None
    standing: str
    action: str


@dataclass(frozen=True)
class Proof:
    """What is proved about privacy, at the top of a report: at most how often any attacker is right (1/2 to 1).

    ``verdict`` is "alarm" if nothing is proved, "review" if something weakens the guarantee, else "". ``says`` are
    sentences, and ``scale`` is a plot of the certainty.
    """

    certainty: float
    verdict: Verdict
    says: tuple[str, ...]
    scale: Chart


@dataclass(frozen=True)
class Finding:
    """What a report says first: a ``title`` in plain words, and sentences, of which some are about one column each.

    ``items`` are (column, sentences); the column is "" for all others. ``verdict`` is "alarm" or "review".
    """

    verdict: Verdict
    title: str
    items: tuple[tuple[str, str], ...]


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
    """Return the report as one self-contained HTML text, for the holder of the real rows unless it is ``released``.

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
    environment.filters |= {
        "figure": plots.figure,
        "percent": plots.percent,
        "clip": plots.clip,
        "sentence": _sentence,
        "bound": percent_up,
        "rounded_up": rounded_up,
        "in_full": in_full,
    }
    scores = {family: [one for one in evaluation.scores if one.family == family] for family in _HEADLINES}
    columns = sorted(_columns(evaluation), key=_similarity)
    groups, distances = attack_groups(evaluation)
    card = run.card if run is not None else evaluation.card
    page = environment.get_template("report.html.jinja").render(
        evaluation=evaluation,
        rows={"real": 0, "synthetic": 0, "holdout": 0, **evaluation.rows},
        run=run,
        card=card,
        proof=proof(evaluation, run),
        sections=[one for one in card_sections(card) if one.title not in _ELSEWHERE] if card else [],
        title=title_of(evaluation.about),
        groups=groups,
        distances=distances,
        footnote=[one for one in distances if one.verdict in ("alarm", "review") or one.metric == "exact-matches"],
        corrected=sum(math.isfinite(one.p_value) for one in scores["privacy"]),
        meanings=MEANINGS,
        lost=_lost(evaluation.scores),
        most_lost=_LOST,
        commonest=lambda some: Counter(one.reference_is for one in some).most_common(1)[0][0],
        scores=scores,
        headlines={family: headline(evaluation, family) for family in _HEADLINES},
        findings=findings(evaluation, card),
        purposes=purposes(evaluation.scores, card, evaluation.plot_data),
        verdicts=Counter(one.verdict for group in groups for one in group.scores if one.verdict),
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


def headline(evaluation: Evaluation, family: Family) -> Headline | None:
    """Return the score that a report's summary shows for a family; None if none of its scores was measured.

    It is one with the family's gravest verdict: the first of those named in ``_HEADLINES``, else the first. A score
    that is nan or infinite is taken only if there is no other. For privacy, only attacks count.
    """
    known = [one for one in evaluation.scores if one.family == family]
    if family == "privacy":
        known = [one for group in attack_groups(evaluation)[0] for one in group.scores]
    verdict = worst([one.verdict for one in known])
    grave = [one for one in known if one.verdict == verdict]
    sound = [one for one in grave if math.isfinite(one.synthetic.value)] or grave
    wanted = [one for name in _HEADLINES[family] for one in sound if one.name.startswith(name)]
    found = next(iter([*wanted, *sound]), None)
    if found is None:
        return None
    gauge = plots.gauge(verdict) if verdict else None
    action = _ACTIONS.get((family, verdict), "")
    if verdict == "alarm" and all(one.metric == "means" for one in grave):
        action = "Do not use the columns that are lost."
    return Headline(found, gauge, standing(found), action)


def proof(evaluation: Evaluation, run: RunSummary | None) -> Proof | None:
    """Return what is proved about the privacy of a table; None if nothing says whether anything is.

    It is that of the ``run``, else of the synthesizer's card, else what was stated when two tables were compared.
    """
    if run is not None:
        return _proof(run.certainty, run.unknown, run.statement["sentence"], run.statement["publishable"])
    if evaluation.card is not None and evaluation.card.headline:
        card = evaluation.card
        return _proof(card.certainty, card.unknown, card.sentence, card.publishable)
    if evaluation.guarantee is None:
        return None
    stated = "This guarantee was stated for the table; this page did not check it."
    return _proof(best_guess(*evaluation.guarantee), evaluation.unknown, stated, True)


def findings(evaluation: Evaluation, card: ModelCard | None) -> list[Finding]:
    """Return what is lost or leaks, in plain words, alarms first: columns, then scores in the order of the report.

    Columns are those whose mean is lost, and those that the ``card`` calls lost, unless the real rows show that nothing
    is: they have one value too, or the mean is kept.
    """
    lost = {one.column: one for one in (card.limitations.lost if card and card.limitations else ())}
    means = next((one for one in evaluation.scores if one.metric == "means"), None)
    off = [] if means is None else list(means.off)
    constant = {one.name for one in evaluation.plot_data.columns if max(one.real, default=0.0) >= _CONSTANT}
    gone = [name for name, one in lost.items() if one.kind == "one value" and name not in constant and name not in off]
    items = []
    for name in (*off, *gone):
        says = [_mean_says(means.details[name])] if means is not None and name in off else []
        says += [lost[name].says, lost[name].advice] if name in lost else [_DO_NOT_USE]
        items.append((name, " ".join(says)))
    columns = len(evaluation.plot_data.columns)
    title = f"{len(items)} of {number_of(columns, 'column')} {'is' if len(items) == 1 else 'are'} lost"
    found = (
        [
            Finding(
                "alarm", f"{title}: what is computed from {'it' if len(items) == 1 else 'them'} is wrong", tuple(items)
            )
        ]
        if items
        else []
    )
    for verdict in ("alarm", "review"):
        if verdict == "review":
            wide = [name for name, one in lost.items() if one.kind != "one value" and name not in off]
            coarse = tuple((name, lost[name].says) for name in wide)
            found += [Finding("review", "Where values lie within a column is lost", coarse)] if coarse else []
        found += [
            Finding(verdict, f"{one.problem or one.name} ({one.name})", (("", one.says),))
            for one in evaluation.scores
            if one.verdict == verdict and one is not means
        ]
    return found


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


def _proof(certainty: float, unknown: str, sentence: str, publishable: bool) -> Proof:
    verdict: Verdict = "alarm" if certainty == 1 else "review" if certainty > _WEAK or not publishable else ""
    says = f"{_NOTHING} {sentence}" if certainty == 1 else certainty_text(certainty, unknown)
    gaps = [] if publishable or certainty == 1 else [_GAP]
    return Proof(certainty, verdict, (says, *gaps), plots.certainty_scale(certainty, verdict))


def _mean_says(both: tuple[float, float]) -> str:
    made, real = both
    if not math.isfinite(made):
        return "No synthetic row has a value."
    ratio = made / real if real else 0.0
    times = f", {ratio:,.0f} times as much" if ratio >= 2 else ""
    return f"The mean is {plots.figure(made)} in the synthetic rows and {plots.figure(real)} in the real ones{times}."


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
