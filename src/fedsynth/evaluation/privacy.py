"""What attacks find in a synthetic table, each figure with a verdict for whoever signs its publication.

A figure that exceeds what chance explains gets one of two verdicts:

======================  =================================================  ====================================
figure                  review                                             alarm
======================  =================================================  ====================================
exact matches           more than the reference                            and more than 1 % of the rows that
                                                                           need not match do
median DCR, NNDR        below the reference                                and value below half the reference
share nearer to         above 0.5                                          band above what a table scores of
training rows                                                              which a tenth is copied
attribute disclosure    above the reference                                band above the reference's band
disclosure advantage    above 0                                            band above 0.05
membership AUC          above 0.5                                          band above 0.55
membership TPR          above the reference                                band above 0.02, too
======================  =================================================  ====================================

Anything else is good. Chance is judged over all figures together: the p-values, one-sided and taken from the 95 %
bands, are adjusted for their number (Holm 1979), and 5 % is the level of the whole. So where
nothing leaks, at most one report in twenty has any verdict but good, whatever the figures have to do with one another.
An attack that finds more than the formal guarantee allows, by more than twice its band, is always an alarm: such an
excess has a p-value below 0.0001. There is no verdict where fewer than 20 rows of a kind are there, or where even a
copy would not stand out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from fedsynth.errors import InvalidParameter, Unsupported
from fedsynth.evaluation.attacks import (
    Suspects,
    attribute_disclosure,
    calibrated,
    domias,
    formal_advantage_bound,
    formal_auc_bound,
    formal_tpr_bound,
    gan_leaks,
    swapped,
    tpr_at,
)
from fedsynth.evaluation.classifier_scores import auc_with_band
from fedsynth.evaluation.distances import Crowd, closeness, holdout_share, keys_by_code, keys_by_value, matches, share
from fedsynth.evaluation.features import MixedSpace, is_numeric
from fedsynth.evaluation.score import Evidence, Measured, Score, Verdict, holm
from fedsynth.federation.federation import Progress, silent

# What can be asked for by name, and what the progress and the notes call it, in the order of a report: attacks come
# before distances, which show no privacy.
METRICS: Mapping[str, str] = {
    "membership-inference": "membership inference",
    "attribute-disclosure": "attribute disclosure",
    "nearer-to-training": "nearer to training or hold-out rows",
    "exact-matches": "exact matches",
    "distance-to-real": "distances to real rows",
}
_FEW = 20  # rows; below, bands by large-sample formulas are not to be trusted
_FPR = 0.01
_LEVEL = 0.05  # of all figures together: how often chance may give any of them a verdict other than good
_Z = 1.959964  # 95 % of a normal law
Bound = Callable[[float, float], float]  # of epsilon and delta
Columns = tuple[int, tuple[int, ...]] | None  # the sensitive column and the known ones


@dataclass(frozen=True)
class Caps:
    """How many rows take part at most.

    ``queries`` (twice as many for the share nearer to training rows) ask for neighbours among ``points``;
    membership has ``suspects`` a side; attribute disclosure trains on, and asks about, ``attacked``.
    """

    queries: int = 5_000
    points: int = 100_000
    suspects: int = 5_000
    attacked: int = 3_000


@dataclass(frozen=True)
class Findings:
    """The scores, and ``notes`` on what was not computed and why."""

    scores: list[Score] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Attempt:
    """One figure before it is known whether chance explains it.

    The verdict of ``score`` is the one that it gets if chance does not ("" for none), its p-value is not yet adjusted.
    ``otherwise`` is the verdict if chance does. What the score says ends with ``excess`` or with ``calm``, in that
    order. ``bound`` is what the formal guarantee leaves to any attack of this kind, ``contradicted_beyond`` the same at
    the far end of the attack's own noise, where it has some.
    """

    score: Score
    bound: Bound | None = None
    contradicted_beyond: Bound | None = None
    otherwise: Verdict = "good"
    excess: str = ""
    calm: str = ""


def privacy(
    evidence: Evidence,
    *,
    target: str = "",
    sensitive: str = "",
    known: Sequence[str] = (),
    epsilon: float | None = None,
    delta: float | None = None,
    seed: int = 0,
    progress: Progress = silent,
    caps: Caps = Caps(),
    metrics: Collection[str] = tuple(METRICS),
) -> Findings:
    """Return every privacy figure of ``metrics``, some of ``METRICS``, that the evidence allows.

    ``sensitive`` is the column that an attacker infers (default: the target, else the last column that holds
    no numbers), ``known`` what he knows (default: the first four other columns of the schema, never the
    target). ``epsilon`` and ``delta`` are of the formal guarantee for adding or removing one row; with them
    every attack stands beside what the guarantee leaves to any attack. A figure is the same whatever else is measured;
    its p-value and its verdict are adjusted for the number of figures. Raises :class:`InvalidParameter` for a
    guarantee that cannot be, :class:`Unsupported` for known columns that give the sensitive one or the target.
    """
    limits = Limits.of(epsilon, delta)
    findings = Findings()
    undisclosed: list[str] = []
    columns = _columns(evidence, target, sensitive, known, undisclosed)
    if "attribute-disclosure" in metrics:
        findings.notes.extend(undisclosed)
    space = MixedSpace.of(evidence.real)
    parts: dict[str, Callable[[np.random.Generator], Iterator[Attempt]]] = {
        "exact-matches": lambda rng: _exact(evidence),
        "distance-to-real": lambda rng: _close(evidence, space, caps, rng, findings.notes),
        "nearer-to-training": lambda rng: _nearer(evidence, space, caps, rng),
        "attribute-disclosure": lambda rng: _disclosure(evidence, columns, caps, rng, findings.notes),
        "membership-inference": lambda rng: _membership(evidence, space, caps, rng),
    }
    for skipped, why in _impossible(evidence, columns).items():
        del parts[skipped]
        if why and skipped in metrics:
            findings.notes.append(f"{METRICS[skipped]}: not computed, {why}")
    numbers = {name: number for number, name in enumerate(parts)}  # of seeds: the same for any order and any choice
    attempts: list[Attempt] = []
    for done, name in enumerate(name for name in METRICS if name in parts):
        if name in metrics:
            progress(METRICS[name], done, len(parts))
            found = parts[name](np.random.default_rng([seed, numbers[name]]))
            attempts += [replace(one, score=replace(one.score, metric=name)) for one in found]
    findings.scores.extend(limits.beside(attempt) for attempt in _adjusted(attempts))
    progress("privacy", len(parts), len(parts))
    return findings


def _adjusted(attempts: Sequence[Attempt]) -> Iterator[Attempt]:
    """Yield every attempt with the p-value and the verdict that it has among all of them."""
    judged = iter(holm([one.score.p_value for one in attempts if one.score.verdict]))
    for one in attempts:
        p_value = next(judged) if one.score.verdict else math.nan
        chance = not p_value <= _LEVEL
        verdict = one.otherwise if chance and one.score.verdict else one.score.verdict
        says = " ".join(filter(None, (one.score.says, one.calm if chance else one.excess)))
        yield replace(one, score=replace(one.score, verdict=verdict, says=says, p_value=p_value))


def _chance(gap: float, *reaches: float) -> float:
    """Return the one-sided p-value of a gap between two figures that do not differ.

    ``reaches`` are the parts of their 95 % bands that face each other. Their root sum of squares is that of the gap
    (Zou and Donner 2008, doi 10.1002/sim.3095), and the gap is judged by the normal law.
    """
    if not gap > 0:
        return 1.0
    reach = math.hypot(*reaches)
    return math.erfc(_Z * gap / reach / math.sqrt(2)) / 2 if reach > 0 else 0.0


@dataclass(frozen=True)
class Limits:
    """What the formal guarantee for adding or removing one row, if there is one, leaves to an attack."""

    guarantee: tuple[float, float] | None

    @classmethod
    def of(cls, epsilon: float | None, delta: float | None) -> Limits:
        """Return the limits of a guarantee; no delta is a delta of 0."""
        if epsilon is None:
            if delta is not None:
                raise InvalidParameter(f"delta = {delta} without epsilon bounds nothing; give both or none")
            return cls(None)
        formal_auc_bound(epsilon, delta or 0.0)  # refuses what no guarantee can be
        return cls((epsilon, delta or 0.0))

    def beside(self, attempt: Attempt) -> Score:
        """Return the attempt's score with its limit; twice the band above what even a swapped row allows is an alarm.

        Members are compared with strangers in a table of the same size, so two rows differ.
        """
        score, bound = attempt.score, attempt.bound
        if bound is None:
            return score
        if self.guarantee is None:
            return score
        limit = bound(*self.guarantee)
        beyond = attempt.contradicted_beyond or bound
        if 2 * score.synthetic.low - score.synthetic.value <= beyond(*swapped(*self.guarantee)):
            return replace(
                score, bound=limit, says=f"{score.says} The formal guarantee holds any attack to {limit:.3f}."
            )
        says = (
            f"{score.says} The formal guarantee allows any attack at most {limit:.3f}, and this is more: it does not "
            "hold for these rows."
        )
        return replace(score, bound=limit, verdict="alarm", says=says)


def _columns(evidence: Evidence, target: str, sensitive: str, known: Sequence[str], notes: list[str]) -> Columns:
    """Return the sensitive column and the known ones, or None with a note where there are none."""
    schema = evidence.real.schema
    categories = [j for j in range(len(schema.names)) if not is_numeric(evidence.real, j)]
    name = sensitive or target
    if not name and not categories:
        notes.append("attribute disclosure: not computed, no column is categorical; name a sensitive one")
        return None
    inferred = schema.index(name) if name else categories[-1]
    hidden = {inferred, *([schema.index(target)] if target else [])}
    if not known:
        chosen = [j for j in range(len(schema.names)) if j not in hidden][:4]
    else:
        chosen = [schema.index(one) for one in known]
        if hidden & set(chosen):
            told = ", ".join(schema.names[j] for j in sorted(hidden & set(chosen)))
            raise Unsupported(f"the attacker cannot know {told}, sensitive column or target; name other known columns")
    if not chosen:
        notes.append("attribute disclosure: not computed, no other column is there to know")
        return None
    values = [table.codes[inferred] for table in (evidence.real, evidence.holdout) if table is not None]
    if all((one == values[0][0]).all() for one in values):
        notes.append(f"attribute disclosure: not computed, {schema.names[inferred]} has one value in all real rows")
        return None
    return inferred, tuple(chosen)


def _impossible(evidence: Evidence, columns: Columns) -> Mapping[str, str]:
    """Return which parts cannot be computed, and why (empty where a note says so already)."""
    found: dict[str, str] = {}
    real, held = len(evidence.real), evidence.holdout
    if held is None:
        without = "it needs hold-out rows that the synthesizer never saw; keep some back"
        found |= {"nearer-to-training": without, "membership-inference": without}
        if real < 4:
            found["distance-to-real"] = f"{real} real rows are too few to keep half of them back"
    else:
        if min(real, len(evidence.synthetic), len(held)) < _FEW:
            found["nearer-to-training"] = f"it needs {_FEW} rows of each kind"
        if min(real, len(evidence.synthetic), len(held) // 2) < _FEW:
            found["membership-inference"] = f"it needs {_FEW} training and synthetic and {2 * _FEW} hold-out rows"
    if columns is None:
        found["attribute-disclosure"] = ""
    elif min(real // 2 if held is None else min(real, len(held)), len(evidence.synthetic)) < _FEW:
        found["attribute-disclosure"] = f"it needs {_FEW} rows of each kind ({2 * _FEW} real ones without a hold-out)"
    return found


def _verdict(rows: int, alarm: bool) -> Verdict:
    """Return the verdict on a figure that chance does not explain."""
    if rows < _FEW:
        return ""
    return "alarm" if alarm else "review"


def _exact(evidence: Evidence) -> Iterator[Attempt]:
    for what, number in (("codes", keys_by_code), ("values", keys_by_value)):
        tables = [evidence.real, evidence.synthetic, *([] if evidence.holdout is None else [evidence.holdout])]
        real, synthetic, *held = number(tables)
        found = share(int((matches(synthetic, real) > 0).sum()), len(synthetic))
        if held:
            usual = share(int((matches(held[0], real) > 0).sum()), len(held[0]))
        else:
            usual = share(int((matches(real, real) > 1).sum()), len(real))
        excess = (found.value - usual.value) / max(1 - usual.value, 1e-12)
        alike = "category and bin" if what == "codes" else "category and number"
        yield Attempt(
            Score(
                "privacy",
                f"exact matches by {what}",
                found,
                usual,
                "hold-out rows that equal a training row" if held else "training rows that equal another training row",
                note="all rows",
                verdict=_verdict(min(map(len, tables)), excess > 0.01),
                says=f"{found.value:.2%} of the synthetic rows equal a training row in every {alike}; of real rows "
                f"that nobody copied, {usual.value:.2%} do. Only more than that suggests copying: common rows recur by "
                "chance.",
                p_value=_chance(found.value - usual.value, found.value - found.low, usual.high - usual.value),
            )
        )


def _close(
    evidence: Evidence, space: MixedSpace, caps: Caps, rng: np.random.Generator, notes: list[str]
) -> Iterator[Attempt]:
    real, fresh, origin = evidence.real, evidence.holdout, "hold-out rows"
    if fresh is None:
        order = rng.permutation(len(real))
        fresh, real = real.take(order[: len(order) // 2]), real.take(order[len(order) // 2 :])
        origin = "one half of the real rows, against the other"
    size = min(len(fresh), len(evidence.synthetic), caps.queries)
    crowd = Crowd.of(real, space, rng, caps.points)
    synthetic, usual = (
        closeness(table.take(rng.permutation(len(table))[:size]), crowd) for table in (evidence.synthetic, fresh)
    )
    note = f"{size} rows of each, against {len(crowd.points)} real rows (and exact matches among {len(real)})"

    def score(name: str, one: Measured, two: Measured, says: str) -> Score:
        return Score("privacy", name, one, two, origin, note=note, says=says)

    def below(name: str, one: Measured, two: Measured, says: str) -> Attempt:
        p_value = _chance(two.value - one.value, one.high - one.value, two.value - two.low)
        verdict = _verdict(size, one.value < two.value / 2)
        return Attempt(replace(score(name, one, two, says), verdict=verdict, p_value=p_value))

    says = (
        f"Half of the synthetic rows lie within {synthetic.median.value:.3f} of a real row (a differing category "
        f"counts 1); fresh real rows lie within {usual.median.value:.3f}. Far is not better: "
        "rows of pure noise lie farthest."
    )
    yield below("median DCR", synthetic.median, usual.median, says)
    says = (
        f"The nearest synthetic row lies {synthetic.minimum:.3f} from a real row, the nearest fresh real row "
        f"{usual.minimum:.3f}. One row decides this figure, so it carries no verdict: see the exact matches."
    )
    yield Attempt(score("minimum DCR", Measured(synthetic.minimum), Measured(usual.minimum), says))
    if math.isnan(synthetic.ratio.value):
        notes.append("median NNDR: not computed, there is no second real row")
        return
    says = (
        f"A synthetic row's nearest real row is {synthetic.ratio.value:.2f} times as far as the second (median); for "
        f"fresh real rows {usual.ratio.value:.2f}. Well below that, synthetic rows cling to single real rows."
    )
    yield below("median NNDR", synthetic.ratio, usual.ratio, says)


def _nearer(evidence: Evidence, space: MixedSpace, caps: Caps, rng: np.random.Generator) -> Iterator[Attempt]:
    found = holdout_share(evidence, space, rng, max_queries=2 * caps.queries, max_points=caps.points)
    low, high = found.value.low, found.value.high
    otherwise: Verdict = "good"
    calm = "50% is what a table scores that copies nobody" + (
        ", and less is no better." if high < 0.5 else "; it does not rule out that rare rows were copied."
    )
    if high >= found.of_a_copy:
        otherwise, calm = "", "Too few rows take part, or too many tie, to tell this from a copy."
    score = Score(
        "privacy",
        "share nearer to training rows",
        found.value,
        Measured(0.5),
        "by symmetry, rows that were made without looking",
        0.5,
        f"{found.queries} synthetic rows, {found.side} training and hold-out rows in each of 10 draws; ties "
        f"({found.tied:.1%}) count 1/2; a complete copy would score about {found.of_a_copy:.3f}",
        verdict=_verdict(_FEW, low > 0.5 + 0.1 * (found.of_a_copy - 0.5)),
        says=f"Of synthetic rows, {found.value.value:.1%} lie nearer to a training row than to an unseen one.",
        p_value=_chance(found.value.value - 0.5, found.value.value - low),
    )
    excess = "That is more than chance explains: the synthesizer remembers rows that it was trained on."
    yield Attempt(score, otherwise=otherwise, excess=excess, calm=calm)


def _disclosure(
    evidence: Evidence, columns: Columns, caps: Caps, rng: np.random.Generator, notes: list[str]
) -> Iterator[Attempt]:
    assert columns is not None
    sensitive, known = columns
    found = attribute_disclosure(evidence, sensitive, known, rng, max_rows=caps.attacked)
    names = evidence.real.schema.names
    name = names[sensitive]
    others = ", ".join(names[j] for j in known)
    note = (
        f"to infer {name} from {found.subsets} choices of {found.size} out of {others}; at most {caps.attacked} rows "
        f"train, {found.rows} or more are asked about; always guessing the commonest value: {found.floor:.3f}; "
        f"attackers who hold the training rows themselves: {found.ceiling:.3f}"
    )
    one, usual = found.members, found.population
    yield Attempt(
        Score(
            "privacy",
            "attribute disclosure",
            one,
            usual,
            "attackers trained on real rows, asked about others",
            note=note,
            details=found.by_attacker,
            verdict=_verdict(found.rows, one.low > usual.high),
            says=f"Who knows {found.size} columns of a person guesses {name} right in {one.value:.1%} of cases with "
            f"the synthetic table; knowing the population gives {usual.value:.1%}. Up to there it is what statistics "
            "are for, and holds for people outside the table as well.",
            p_value=_chance(one.value - usual.value, one.value - one.low, usual.high - usual.value),
        )
    )
    if found.advantage is None or found.advantage_real is None:
        notes.append("disclosure advantage: not computed, it needs hold-out rows; keep some back")
        return
    one = found.advantage
    says = (
        f"The synthetic table gives away {name} of people in the training rows {100 * one.value:+.1f} points more "
        "often than of people outside it; a table that remembers nobody has 0."
    )
    score = Score(
        "privacy",
        "disclosure advantage over strangers",
        one,
        found.advantage_real,
        "attackers trained on the training rows themselves",
        0.0,
        note,
        verdict=_verdict(found.rows, one.low > 0.05),
        says=says,
        p_value=_chance(one.value, one.value - one.low),
    )
    yield Attempt(score, formal_advantage_bound)


def _membership(evidence: Evidence, space: MixedSpace, caps: Caps, rng: np.random.Generator) -> Iterator[Attempt]:
    suspects = Suspects.of(evidence, rng, caps.suspects)
    crowd = Crowd.of(evidence.synthetic, space, rng, caps.points)
    many = len(suspects.strangers)
    guessing = share(_FPR * many, many)
    guessing = Measured(_FPR, guessing.low, guessing.high)
    note = (
        f"{many} training rows against {many} hold-out rows; {len(crowd.points)} synthetic rows searched; "
        f"{len(suspects.reference)} other hold-out rows as what an attacker knows of the population"
    )
    plain = gan_leaks(suspects, crowd)
    attacks = {"GAN-Leaks": plain, "GAN-Leaks calibrated": calibrated(plain, suspects, space)}
    for name, scores in {**attacks, "DOMIAS": domias(suspects, crowd)}.items():
        area, caught = auc_with_band(*scores), tpr_at(_FPR, *scores)
        says = (
            f"Shown a training row and an unseen one, this attack picks the training row in {area.value:.1%} of cases; "
            "50% is guessing."
        )
        score = Score("privacy", f"membership AUC, {name}", area, Measured(0.5), "guessing", 0.5, note, says=says)
        p_value = _chance(area.value - 0.5, area.value - area.low)
        yield Attempt(replace(score, verdict=_verdict(many, area.low > 0.55), p_value=p_value), formal_auc_bound)
        says = (
            f"When it may wrongly accuse 1 in 100 outsiders, this attack recognises {caught.value:.1%} of the training "
            "rows; guessing recognises 1%."
        )
        score = Score(
            "privacy", f"membership TPR at FPR 1 %, {name}", caught, guessing, "guessing", _FPR, note, says=says
        )
        p_value = _chance(caught.value - _FPR, caught.value - caught.low, guessing.high - _FPR)
        yield Attempt(
            replace(score, verdict=_verdict(many, caught.low > 2 * _FPR), p_value=p_value),
            partial(formal_tpr_bound, _FPR),
            contradicted_beyond=partial(formal_tpr_bound, guessing.high),
        )
