"""What attacks find in a synthetic table, each figure with a verdict for whoever signs its publication.

The verdicts follow from the 95 % bands alone:

======================  =================================================  ====================================
figure                  look                                               alarm
======================  =================================================  ====================================
exact matches           band above the reference's band                    and more than 1 % of the rows that
                                                                           need not match do
median DCR, NNDR        band below the reference's band                    and value below half the reference
share nearer to         band above 0.5                                     band above what a table scores of
training rows                                                              which a tenth is copied
attribute disclosure    band of the difference to the reference above 0    band above the reference's band
disclosure advantage    band above 0                                       band above 0.05
membership AUC          band above 0.5                                     band above 0.55
membership TPR          band above the reference's band                    band above 0.02, too
======================  =================================================  ====================================

Anything else is good. An attack that finds more than the formal guarantee allows, by more than twice its band,
is always an alarm. There is no verdict where fewer than 20 rows of a kind are there, or where even a copy would
not stand out. A band misses in one case of forty on its side: of a dozen figures, a single look may be chance.
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
from fedsynth.evaluation.score import Evidence, Measured, Score, Verdict
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
    """The scores, ``notes`` on what was not computed and why, and the formal ``bounds`` by the name of the score."""

    scores: list[Score] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bounds: dict[str, float] = field(default_factory=dict)


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
    every attack stands beside what the guarantee leaves to any attack. Raises :class:`InvalidParameter` for a
    guarantee that cannot be, :class:`Unsupported` for known columns that give the sensitive one or the target.
    """
    limits = Limits.of(epsilon, delta)
    findings = Findings()
    undisclosed: list[str] = []
    columns = _columns(evidence, target, sensitive, known, undisclosed)
    if "attribute-disclosure" in metrics:
        findings.notes.extend(undisclosed)
    space = MixedSpace.of(evidence.real)
    parts: dict[str, Callable[[np.random.Generator], Iterator[Score]]] = {
        "exact-matches": lambda rng: _exact(evidence),
        "distance-to-real": lambda rng: _close(evidence, space, caps, rng, findings.notes),
        "nearer-to-training": lambda rng: _nearer(evidence, space, caps, rng),
        "attribute-disclosure": lambda rng: _disclosure(evidence, columns, caps, rng, limits, findings),
        "membership-inference": lambda rng: _membership(evidence, space, caps, rng, limits, findings),
    }
    for skipped, why in _impossible(evidence, columns).items():
        del parts[skipped]
        if why and skipped in metrics:
            findings.notes.append(f"{METRICS[skipped]}: not computed, {why}")
    numbers = {name: number for number, name in enumerate(parts)}  # of seeds: the same for any order and any choice
    for done, name in enumerate(name for name in METRICS if name in parts):
        if name in metrics:
            progress(METRICS[name], done, len(parts))
            scores = parts[name](np.random.default_rng([seed, numbers[name]]))
            findings.scores.extend(replace(score, metric=name) for score in scores)
    progress("privacy", len(parts), len(parts))
    return findings


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

    def beside(
        self, score: Score, bound: Bound, findings: Findings, *, contradicted_beyond: Bound | None = None
    ) -> Score:
        """Return the score with its limit noted; twice the band above what even a swapped row allows is an alarm.

        Members are compared with strangers in a table of the same size, so two rows differ.
        ``contradicted_beyond`` is the bound at the far end of the attack's own noise, where it has some.
        """
        says = score.says
        if score.verdict in ("", "good"):
            says += " An attack that fails proves nothing: a better one may succeed."
        if self.guarantee is None:
            return replace(score, says=says)
        findings.bounds[score.name] = limit = bound(*self.guarantee)
        note = f"{score.note}; the formal guarantee holds every attack on one row's presence to {limit:.3f}"
        if 2 * score.synthetic.low - score.synthetic.value <= (contradicted_beyond or bound)(*swapped(*self.guarantee)):
            return replace(score, note=note, says=f"{says} The formal guarantee holds any attack to {limit:.3f}.")
        says = (
            f"{score.says} That is more than the formal guarantee allows any attack: it does not hold for these rows."
        )
        return replace(score, note=note, verdict="alarm", says=says)


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


def _verdict(rows: int, look: bool, alarm: bool) -> Verdict:
    if rows < _FEW:
        return ""
    return "alarm" if look and alarm else "look" if look else "good"


def _exact(evidence: Evidence) -> Iterator[Score]:
    for what, number in (("codes", keys_by_code), ("values", keys_by_value)):
        tables = [evidence.real, evidence.synthetic, *([] if evidence.holdout is None else [evidence.holdout])]
        real, synthetic, *held = number(tables)
        found = share(int((matches(synthetic, real) > 0).sum()), len(synthetic))
        if held:
            usual = share(int((matches(held[0], real) > 0).sum()), len(held[0]))
        else:
            usual = share(int((matches(real, real) > 1).sum()), len(real))
        excess = (found.value - usual.value) / max(1 - usual.value, 1e-12)
        verdict = _verdict(min(map(len, tables)), found.low > usual.high, excess > 0.01)
        alike = "category and bin" if what == "codes" else "category and number"
        yield Score(
            "privacy",
            f"exact matches by {what}",
            found,
            usual,
            "hold-out rows that equal a training row" if held else "training rows that equal another training row",
            note="all rows",
            verdict=verdict,
            says=f"{found.value:.2%} of the synthetic rows equal a training row in every {alike}; of real rows that "
            f"nobody copied, {usual.value:.2%} do. Only more than that speaks of copying: common rows recur by chance.",
        )


def _close(
    evidence: Evidence, space: MixedSpace, caps: Caps, rng: np.random.Generator, notes: list[str]
) -> Iterator[Score]:
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

    def score(name: str, one: Measured, two: Measured, verdict: Verdict, says: str) -> Score:
        return Score("privacy", name, one, two, origin, note=note, verdict=verdict, says=says)

    says = (
        f"Half of the synthetic rows lie within {synthetic.median.value:.3f} of a real row (a differing category "
        f"counts 1); fresh real rows lie within {usual.median.value:.3f}. Far is not better: "
        "rows of pure noise lie farthest."
    )
    yield score("median DCR", synthetic.median, usual.median, _below(size, synthetic.median, usual.median), says)
    says = (
        f"The nearest synthetic row lies {synthetic.minimum:.3f} from a real row, the nearest fresh real row "
        f"{usual.minimum:.3f}. One row decides this figure, so it carries no verdict: see the exact matches."
    )
    yield score("minimum DCR", Measured(synthetic.minimum), Measured(usual.minimum), "", says)
    if math.isnan(synthetic.ratio.value):
        notes.append("median NNDR: not computed, there is no second real row")
        return
    says = (
        f"A synthetic row's nearest real row is {synthetic.ratio.value:.2f} times as far as the second (median); for "
        f"fresh real rows {usual.ratio.value:.2f}. Well below that, synthetic rows cling to single real rows."
    )
    yield score("median NNDR", synthetic.ratio, usual.ratio, _below(size, synthetic.ratio, usual.ratio), says)


def _below(rows: int, found: Measured, usual: Measured) -> Verdict:
    return _verdict(rows, found.high < usual.low, found.value < usual.value / 2)


def _nearer(evidence: Evidence, space: MixedSpace, caps: Caps, rng: np.random.Generator) -> Iterator[Score]:
    found = holdout_share(evidence, space, rng, max_queries=2 * caps.queries, max_points=caps.points)
    low, high = found.value.low, found.value.high
    verdict = _verdict(_FEW, low > 0.5, low > 0.5 + 0.1 * (found.of_a_copy - 0.5))
    what = f"Of synthetic rows, {found.value.value:.1%} lie nearer to a training row than to an unseen one; "
    if verdict == "good" and high >= found.of_a_copy:
        verdict, says = "", "too few rows take part, or too many tie, to tell this from a copy."
    elif verdict == "good":
        says = "50% is what a table scores that copies nobody" + (
            ", and less is no better." if high < 0.5 else "; it does not rule out that rare rows were copied."
        )
    else:
        says = "above 50%, the synthesizer remembers rows that it was trained on."
    yield Score(
        "privacy",
        "share nearer to training rows",
        found.value,
        Measured(0.5),
        "by symmetry, rows that were made without looking",
        0.5,
        f"{found.queries} synthetic rows, {found.side} training and hold-out rows in each of 10 draws; ties "
        f"({found.tied:.1%}) count 1/2; a complete copy would score about {found.of_a_copy:.3f}",
        verdict=verdict,
        says=what + says,
    )


def _disclosure(
    evidence: Evidence, columns: Columns, caps: Caps, rng: np.random.Generator, limits: Limits, findings: Findings
) -> Iterator[Score]:
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
    noise = math.hypot(one.value - one.low, usual.value - usual.low)
    yield Score(
        "privacy",
        "attribute disclosure",
        one,
        usual,
        "attackers trained on real rows, asked about others",
        note=note,
        details=found.by_attacker,
        verdict=_verdict(found.rows, one.value - usual.value > noise, one.low > usual.high),
        says=f"Who knows {found.size} columns of a person guesses {name} right in {one.value:.1%} of cases with the "
        f"synthetic table; knowing the population gives {usual.value:.1%}. Up to there it is what statistics are for, "
        "and holds for people outside the table as well.",
    )
    if found.advantage is None or found.advantage_real is None:
        findings.notes.append("disclosure advantage: not computed, it needs hold-out rows; keep some back")
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
        verdict=_verdict(found.rows, one.low > 0, one.low > 0.05),
        says=says,
    )
    yield limits.beside(score, formal_advantage_bound, findings)


def _membership(
    evidence: Evidence, space: MixedSpace, caps: Caps, rng: np.random.Generator, limits: Limits, findings: Findings
) -> Iterator[Score]:
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
        verdict = _verdict(many, area.low > 0.5, area.low > 0.55)
        says = (
            f"Shown a training row and an unseen one, this attack picks the training row in {area.value:.1%} of cases; "
            "50% is guessing."
        )
        score = Score("privacy", f"membership AUC, {name}", area, Measured(0.5), "guessing", 0.5, note)
        yield limits.beside(replace(score, verdict=verdict, says=says), formal_auc_bound, findings)
        verdict = _verdict(many, caught.low > guessing.high, caught.low > 2 * _FPR)
        says = (
            f"When it may wrongly accuse 1 in 100 outsiders, this attack recognises {caught.value:.1%} of the training "
            "rows; guessing recognises 1%."
        )
        score = Score("privacy", f"membership TPR at FPR 1 %, {name}", caught, guessing, "guessing", _FPR, note)
        yield limits.beside(
            replace(score, verdict=verdict, says=says),
            partial(formal_tpr_bound, _FPR),
            findings,
            contradicted_beyond=partial(formal_tpr_bound, guessing.high),
        )
