"""Privacy figures of a synthetic table, each with a verdict for the person who decides on its publication.

A figure is one number with its 95 % interval (its band), such as the AUC of an attack. Its reference is what a table
that leaks nothing would have: the same figure of other real rows, or that of guessing. (Only the disclosure advantage,
which such a table has at 0, stands beside that of attackers who hold the training rows.) DCR is a row's distance to the
closest real row, and NNDR is that distance divided by the distance to the second closest. A figure that is
significantly worse than its reference gets one of two verdicts ("band above" means that the whole band lies above):

======================  =================================================  ====================================
figure                  review                                             alarm
======================  =================================================  ====================================
exact matches           more than the reference                            and (value - reference) /
                                                                           (1 - reference) above 0.01
median DCR, NNDR        below the reference                                and value below half the reference
share nearer to         above 0.5                                          band above the score of a table
training rows                                                              with a tenth of its rows copied
attribute disclosure    above the reference                                band above the reference's band
disclosure advantage    above 0                                            band above 0.05
membership AUC          above 0.5                                          band above 0.55
membership TPR          above the reference                                band above 0.02
======================  =================================================  ====================================

Anything else is good. Significance is corrected for multiple testing: the one-sided p-values, computed from the 95 %
bands, are adjusted for their number (Holm 1979) at a family-wise level of 5 %. So if nothing leaks, at most one report
in twenty has a verdict other than good, however the figures depend on each other.
An attack that exceeds the bound that the formal guarantee sets for replacing a row, even with its band doubled, is
always an alarm: such an excess has a p-value below 0.0001. There is no verdict on the minimum DCR, with fewer than 20
rows of any kind (for the median DCR and NNDR, of synthetic or unseen rows), or if even a complete copy would not be
significant.

If the persons of rows are known, membership attacks are on persons, real rows are split by person, bands allow for rows
of one person that resemble each other, and the 20 are persons.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import Unsupported
from fedsynth.evaluation.attacks import (
    AttackTargets,
    attribute_disclosure,
    calibrated_gan_leaks,
    domias,
    formal_advantage_bound,
    formal_auc_bound,
    formal_tpr_bound,
    gan_leaks,
    replacement_guarantee,
    tpr_at,
)
from fedsynth.evaluation.classifier_scores import auc_with_band
from fedsynth.evaluation.distances import (
    NeighbourIndex,
    closeness,
    holdout_share,
    keys_by_code,
    keys_by_value,
    matches,
    share,
    share_of,
)
from fedsynth.evaluation.features import MixedSpace, is_numeric
from fedsynth.evaluation.metric import Metric
from fedsynth.evaluation.persons import count_persons, numbered_persons, rows_per_person, take_persons
from fedsynth.evaluation.score import Estimate, EvaluationTables, Family, Findings, Score, Verdict, holm
from fedsynth.evaluation.settings import FIRST_REPORT, EvaluationSettings
from fedsynth.privacy.cost import ONE_ROW, Budget, Neighbours, Unit
from fedsynth.progress import Progress, ignore_progress
from fedsynth.rows import Table

_FEW = 20  # rows; with fewer, the large-sample bands are not reliable
_FPR = 0.01
# What a verdict other than good means, for readers who do not know the metric.
_COPIED = "Too many synthetic rows equal rows that were used"
_TOO_NEAR = "Synthetic rows lie too near to rows that were used"
_LEARNT = "An attacker learns a sensitive value of people whose rows were used"
_RECOGNISED = "An attack recognises rows that were used"
_NO_HOLDOUT = "it needs hold-out rows that the synthesizer never saw; hold some out"
_LEVEL = 0.05  # family-wise: probability that chance gives any figure a verdict other than good
_Z = 1.959964  # 95 % of a normal law
_HALF = Estimate(0.5)
Bound = Callable[[float, float], float]  # of epsilon and delta
Columns = tuple[int, tuple[int, ...]]  # the sensitive column and the known ones


@dataclass(frozen=True)
class RowLimits:
    """The largest numbers of rows that :func:`privacy` uses; larger tables are sampled.

    Nearest neighbours of ``queries`` rows (twice as many for the share nearer to training rows) are sought among
    ``points`` rows of another table. Membership inference attacks ``targets`` training rows and as many hold-out rows
    (or persons with about so many rows); in attribute disclosure, attackers train on, and are tested on, ``attacked``
    rows.
    """

    queries: int = 5_000
    points: int = 100_000
    targets: int = 5_000
    attacked: int = 3_000


@dataclass(frozen=True)
class UncorrectedScore:
    """One privacy figure before the correction for multiple testing.

    - ``score``: the figure with its uncorrected p-value. Its verdict is the one for a significant figure, or "" if it
      gets none in any case. ``otherwise``: the verdict if it is not significant.
    - ``excess``, ``calm``: a sentence added to the explanation if the figure is significant (``excess``) or not
      (``calm``).
    - ``bound``: maps epsilon and delta to the largest value of any attack of this kind; None if there is no limit.
    - ``contradicted_beyond``: the same with an allowance for the noise of the attack's threshold; if given, a value
      contradicts the guarantee only beyond this bound.
    """

    score: Score
    bound: Bound | None = None
    contradicted_beyond: Bound | None = None
    otherwise: Verdict = "good"
    excess: str = ""
    calm: str = ""


@dataclass(frozen=True)
class PrivacyStudy:
    """What the figures of one evaluation are computed from.

    ``columns`` are the sensitive column and the known ones, or why there are none, in words. Figures add to
    ``missing`` what they do not compute, with the reason.
    """

    evidence: EvaluationTables
    space: MixedSpace
    caps: RowLimits
    columns: Columns | str
    missing: list[str]

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many training, synthetic and hold-out rows there are (of real ones: persons); 0 without a hold-out."""
        real, holdout = self.evidence.real, self.evidence.holdout
        return count_persons(real), len(self.evidence.synthetic), 0 if holdout is None else count_persons(holdout)

    @property
    def of_persons(self) -> str:
        """What follows a number of rows of each kind in a sentence."""
        return ", the real ones of as many persons" if self.evidence.by_person else ""


@dataclass(frozen=True, kw_only=True)
class PrivacyMetric(Metric):
    """A metric of privacy: ``figures`` are computed from a study unless it is ``impossible``, for a reason in words."""

    figures: Callable[[PrivacyStudy, np.random.Generator], Iterator[UncorrectedScore]]
    impossible: Callable[[PrivacyStudy], str] = lambda study: ""
    needs: str = ""
    family: Family = "privacy"


def privacy(
    evidence: EvaluationTables,
    settings: EvaluationSettings = FIRST_REPORT,
    *,
    progress: Progress = ignore_progress,
    caps: RowLimits = RowLimits(),
    metrics: Sequence[PrivacyMetric] | None = None,
) -> Findings:
    """Return the figures of some ``metrics`` (default: all), with verdicts, as far as the ``evidence`` allows them.

    - ``settings``: the target, the sensitive column (default: the target, else the last categorical column), the known
      columns (default: the first four others, never the target), the guarantee with its unit and neighbours, and the
      seed. Its ``metrics`` and the rest do not count.
    - ``caps``: the largest numbers of rows used, except for exact matches.

    A figure does not depend on the other metrics measured; its p-value and its verdict are adjusted for the number of
    figures. Raises :class:`SchemaError` for an unknown column, and :class:`Unsupported` if the known columns include
    the sensitive one or the target, or without scikit-learn.
    """
    bounds = AttackBounds.of(settings)
    limits = bounds.for_tables(evidence)
    findings = Findings(notes=bounds.notes(evidence))
    columns = _columns(evidence, settings)
    study = PrivacyStudy(evidence, MixedSpace.of(evidence.real), caps, columns, findings.missing)
    seeded = [name for name in _SEEDED if not METRICS[name].impossible(study)]
    measured: list[PrivacyMetric] = []
    for metric in METRICS.values() if metrics is None else metrics:
        if why := metric.impossible(study):
            findings.missing.append(f"{metric.title}: not computed, {why}")
        else:
            measured.append(metric)
    attempts: list[UncorrectedScore] = []
    for done, metric in enumerate(measured):
        progress(metric.title, done, len(measured))
        number = seeded.index(metric.name) if metric.name in seeded else len(METRICS)  # whichever others are measured
        found = metric.figures(study, np.random.default_rng([settings.seed, number]))
        attempts += [replace(one, score=replace(one.score, metric=metric.name)) for one in found]
    findings.scores.extend(limits.with_bound(attempt) for attempt in _adjusted(attempts))
    progress("privacy", len(measured), len(measured))
    return findings


def _adjusted(attempts: Sequence[UncorrectedScore]) -> Iterator[UncorrectedScore]:
    """Yield every attempt with its adjusted p-value and the verdict that follows from it."""
    judged = iter(holm([one.score.p_value for one in attempts if one.score.verdict]))
    for one in attempts:
        p_value = next(judged) if one.score.verdict else math.nan
        chance = not p_value <= _LEVEL
        verdict = one.otherwise if chance and one.score.verdict else one.score.verdict
        says = " ".join(filter(None, (one.score.says, one.calm if chance else one.excess)))
        yield replace(one, score=replace(one.score, verdict=verdict, says=says, p_value=p_value))


def _chance(gap: float, *reaches: float) -> float:
    """Return the one-sided p-value of a gap between two figures, under the hypothesis that they are equal.

    ``reaches`` are the half-widths of their 95 % bands on the sides that face each other. Their root sum of squares is
    the half-width of the gap's band (Zou and Donner 2008, doi 10.1002/sim.3095); the gap is taken to be normal.
    """
    if not gap > 0:
        return 1.0
    reach = math.hypot(*reaches)
    return math.erfc(_Z * gap / reach / math.sqrt(2)) / 2 if reach > 0 else 0.0


@dataclass(frozen=True)
class AttackBounds:
    """Formal bounds on attacks under a differential privacy guarantee.

    ``guarantee`` is None without one. ``unit`` is what it protects; ``neighbours`` says whether it holds for adding or
    removing the unit, or for replacing it by another.
    """

    guarantee: Budget | None
    unit: Unit = ONE_ROW
    neighbours: Neighbours = "add-remove"

    @classmethod
    def of(cls, settings: EvaluationSettings) -> AttackBounds:
        """Return the bounds of the guarantee that the settings of an evaluation state."""
        return cls(settings.guarantee, settings.unit, settings.neighbours)

    @property
    def protects(self) -> str:
        """The unit of protection in words: "one row", or such as "one person with up to 3 rows"."""
        if self.unit == ONE_ROW:
            return "one row"
        rows = "1 row" if self.unit.rows == 1 else f"up to {self.unit.rows} rows"
        return f"one person with {rows}" + (f" at each of up to {self.unit.sites} sites" if self.unit.sites > 1 else "")

    @property
    def attacked(self) -> str:
        """What the bounds are about, in words: "the presence of one row", or such as "which of two rows was used"."""
        if self.neighbours == "add-remove":
            return f"the presence of {self.protects}"
        two = "rows" if self.unit == ONE_ROW else self.protects.replace("one person", "persons", 1)
        return f"which of two {two} was used"

    def for_tables(self, evidence: EvaluationTables) -> AttackBounds:
        """Return these bounds if they hold for attacks on the real rows of ``evidence``; else, those of no guarantee.

        An attack on a person is bounded only if the guarantee covers all of the person's rows.
        """
        return replace(self, guarantee=None) if self.persons_beyond(evidence) else self

    def persons_beyond(self, evidence: EvaluationTables) -> int:
        """Return how many persons have more real rows than the unit of protection; 0 if persons are not known."""
        if not evidence.by_person:
            return 0
        return int((rows_per_person(evidence.real) > self.unit.rows * self.unit.sites).sum())

    def notes(self, evidence: EvaluationTables) -> list[str]:
        """Return sentences on what attacks are compared with, and on rows of which the persons are not known."""
        found = []
        most = self.unit.rows * self.unit.sites
        if self.guarantee is not None and (beyond := self.persons_beyond(evidence)):
            found.append(
                f"The guarantee stated for the table bounds no attack here: {beyond} persons have more real rows than "
                f"the {most} that it covers. Give the rows that were used, or state the unit of protection "
                "(--rows-per-person, --sites-per-person)."
            )
        elif self.guarantee is not None:
            found.append(
                "Attacks are compared with the (epsilon, delta) guarantee stated for the table: "
                f"({self.guarantee.epsilon:g}, {self.guarantee.delta:g}) for {self.protects}."
            )
        if most > 1 and not evidence.by_person:
            found.append(
                f"The unit of protection is {self.protects}, but nothing says which rows are of one person: hold-out, "
                "attacks and bands are by row, so a person may have rows on both sides. Name the column of persons "
                "(--person)."
            )
        return found

    def with_bound(self, attempt: UncorrectedScore) -> Score:
        """Return the score of ``attempt`` with its formal bound, and an alarm if the score contradicts the guarantee.

        It does if the lower end of its interval, with the interval doubled, exceeds the bound for replacing the unit of
        protection. That bound is the right one because an attack compares members with non-members at the same table
        size, so two rows (or persons) differ. A guarantee for replacing is itself that bound.
        """
        score, bound = attempt.score, attempt.bound
        if bound is None:
            return score
        if self.guarantee is None:
            return score
        stated = self.guarantee.epsilon, self.guarantee.delta
        limit = bound(*stated)
        beyond = attempt.contradicted_beyond or bound
        replaced = stated if self.neighbours == "replace" else replacement_guarantee(*stated)
        if 2 * score.synthetic.low - score.synthetic.value <= beyond(*replaced):
            return replace(
                score,
                bound=limit,
                says=f"{score.says} Under the formal guarantee, no attack on {self.attacked} exceeds {limit:.3f}.",
            )
        says = (
            f"{score.says} Under the formal guarantee no attack exceeds {limit:.3f}, and this one does: the guarantee "
            "does not hold for these rows."
        )
        return replace(score, bound=limit, verdict="alarm", says=says)


def _columns(evidence: EvaluationTables, settings: EvaluationSettings) -> Columns | str:
    """Return the sensitive column and the known ones, or why there are none."""
    schema = evidence.real.schema
    categories = [j for j in range(len(schema.names)) if not is_numeric(evidence.real, j)]
    name = settings.sensitive or settings.target
    if not name and not categories:
        return "no column is categorical; name a sensitive column"
    inferred = schema.index(name) if name else categories[-1]
    hidden = {inferred, *([schema.index(settings.target)] if settings.target else [])}
    if not settings.known:
        chosen = [j for j in range(len(schema.names)) if j not in hidden][:4]
    else:
        chosen = [schema.index(one) for one in settings.known]
        if hidden & set(chosen):
            told = ", ".join(schema.names[j] for j in sorted(hidden & set(chosen)))
            raise Unsupported(f"known columns include the sensitive column or the target: {told}; name others")
    if not chosen:
        return "the table has no other column that an attacker could know"
    values = [table.codes[inferred] for table in (evidence.real, evidence.holdout) if table is not None]
    if all((one == values[0][0]).all() for one in values):
        return f"{schema.names[inferred]} has one value in all real rows"
    return inferred, tuple(chosen)


def _verdict(rows: int, alarm: bool) -> Verdict:
    """Return the verdict on a significant figure; "" with too few rows."""
    if rows < _FEW:
        return ""
    return "alarm" if alarm else "review"


def _figure(
    name: str, value: Estimate, reference: Estimate, reference_is: str, says: str, note: str, **facts: str | float
) -> Score:
    """Return a figure; ``says`` is its explanation, in which value and reference are filled in, and the ``facts``."""
    text = says.format(value=value.value, reference=reference.value, **facts)
    return Score("privacy", name, value, reference, reference_is, note=note, says=text)


def _judged(score: Score, rows: int, alarm: bool, problem: str, usual: Estimate | None = None) -> Score:
    """Return a score with the verdict and the problem if it is significantly above ``usual`` (its reference)."""
    value, usual = score.synthetic, usual or score.reference
    reach = 0.0 if math.isnan(usual.high) else usual.high - usual.value
    p_value = _chance(value.value - usual.value, value.value - value.low, reach)
    return replace(score, verdict=_verdict(rows, alarm), p_value=p_value, problem=problem)


_EQUAL = (
    "{value:.2%} of the synthetic rows equal a training row in every {alike}; of real rows that nobody copied, "
    "{reference:.2%} do, since common rows recur by chance. Only a higher share suggests copying."
)


def _exact(study: PrivacyStudy, rng: np.random.Generator) -> Iterator[UncorrectedScore]:
    evidence = study.evidence
    for what, alike, number in (
        ("codes", "category and bin", keys_by_code),
        ("values", "category and number", keys_by_value),
    ):
        tables = [evidence.real, evidence.synthetic, *([] if evidence.holdout is None else [evidence.holdout])]
        real, synthetic, *held = number(tables)
        found = share(int((matches(synthetic, real) > 0).sum()), len(synthetic))
        if evidence.holdout is not None:
            usual = share_of(matches(held[0], real) > 0, evidence.holdout)
            origin = "hold-out rows that equal a training row"
        else:
            usual = share_of(matches(real, real) > _own_matches(real, evidence.real), evidence.real)
            origin = "training rows that equal another training row"
        origin += ", of another person" if evidence.by_person else ""
        excess = (found.value - usual.value) / max(1 - usual.value, 1e-12)
        score = _figure(f"exact matches by {what}", found, usual, origin, _EQUAL, "all rows", alike=alike)
        yield UncorrectedScore(_judged(score, min(map(count_persons, tables)), excess > 0.01, _COPIED))


def _own_matches(keys: NDArray[np.int64], table: Table) -> NDArray[np.int64]:
    """Return, for each row, how many rows of the same person (itself included) have its key."""
    of = numbered_persons(table)
    _, which, counts = np.unique(keys * (of.max() + 1) + of, return_inverse=True, return_counts=True)
    found: NDArray[np.int64] = counts[which]
    return found


_DISTANCE = (
    "The median distance of a synthetic row to the nearest real row is {value:.3f} (a differing category counts 1); "
    "for unseen real rows it is {reference:.3f}. A larger distance is not better: rows of pure noise lie farthest."
)
_SMALLEST = (
    "The smallest distance of a synthetic row to a real row is {value:.3f}; for unseen real rows it is "
    "{reference:.3f}. A single row determines this figure, so it has no verdict: see the exact matches."
)
_RATIO = (
    "The nearest real row of a synthetic row is {value:.2f} times as far away as the second nearest (median); for "
    "unseen real rows the ratio is {reference:.2f}. A much lower ratio means that synthetic rows lie close to single "
    "real rows."
)


def _close(study: PrivacyStudy, rng: np.random.Generator) -> Iterator[UncorrectedScore]:
    evidence, origin = study.evidence, "hold-out rows"
    real, fresh = evidence.real, evidence.holdout
    if fresh is None:
        order = rng.permutation(count_persons(real))
        fresh, real = (take_persons(real, half) for half in np.split(order, [len(order) // 2]))
        origin = f"one half of the {'persons' if evidence.by_person else 'real rows'}, against the other"
    size, persons = min(len(fresh), len(evidence.synthetic), study.caps.queries), count_persons(fresh)
    index = NeighbourIndex.of(real, study.space, rng, study.caps.points)
    synthetic, usual = (
        closeness(table.take(rng.permutation(len(table))[:size]), index) for table in (evidence.synthetic, fresh)
    )
    note = f"{size} rows of each, against {len(index.points)} real rows (and exact matches among {len(real)})"

    def below(name: str, one: Estimate, two: Estimate, says: str) -> UncorrectedScore:
        score = _figure(name, one, two, origin, says, note)
        p_value = _chance(two.value - one.value, one.high - one.value, two.value - two.low)
        verdict = _verdict(min(size, persons), one.value < two.value / 2)
        return UncorrectedScore(replace(score, verdict=verdict, p_value=p_value, problem=_TOO_NEAR))

    yield below("median DCR", synthetic.median, usual.median, _DISTANCE)
    smallest = Estimate(synthetic.minimum), Estimate(usual.minimum)
    yield UncorrectedScore(_figure("minimum DCR", *smallest, origin, _SMALLEST, note))
    if math.isnan(synthetic.ratio.value):
        study.missing.append("median NNDR: not computed, there is no second real row")
        return
    yield below("median NNDR", synthetic.ratio, usual.ratio, _RATIO)


_NEARER = "{value:.1%} of the synthetic rows lie nearer to a training row than to an unseen real row."
_MEMORISED = "That is more than chance explains: the synthesizer has memorised training rows."


def _nearer(study: PrivacyStudy, rng: np.random.Generator) -> Iterator[UncorrectedScore]:
    found = holdout_share(
        study.evidence, study.space, rng, max_queries=2 * study.caps.queries, max_points=study.caps.points
    )
    low, high = found.value.low, found.value.high
    otherwise: Verdict = "good"
    calm = "A table without copies scores 50%" + (
        ", and a lower share is not better." if high < 0.5 else "; this does not rule out that rare rows were copied."
    )
    if high >= found.of_a_copy:
        otherwise, calm = "", "There are too few rows, or too many ties, to tell this from a complete copy."
    note = (
        f"{found.queries} synthetic rows, {found.side} training and hold-out "
        f"{'persons' if study.evidence.by_person else 'rows'} in each of 10 draws; ties "
        f"({found.tied:.1%}) count 1/2; a complete copy would score about {found.of_a_copy:.3f}"
    )
    origin = "rows independent of the training rows, by symmetry"
    score = replace(_figure("share nearer to training rows", found.value, _HALF, origin, _NEARER, note), best=0.5)
    score = _judged(score, _FEW, low > 0.5 + 0.1 * (found.of_a_copy - 0.5), _TOO_NEAR)
    yield UncorrectedScore(score, otherwise=otherwise, excess=_MEMORISED, calm=calm)


_INFERRED = (
    "With the synthetic table, an attacker who knows {size} columns of a person guesses {column} correctly in "
    "{value:.1%} of cases; knowing the population gives {reference:.1%}. Up to that, it is statistical knowledge, "
    "which applies equally to people outside the table."
)
_ADVANTAGE = (
    "Attackers guess {column} correctly for people in the training rows {points:+.1f} percentage points more often "
    "than for other people; a table that memorised nobody has 0."
)


def _disclosure(study: PrivacyStudy, rng: np.random.Generator) -> Iterator[UncorrectedScore]:
    assert not isinstance(study.columns, str)
    sensitive, known = study.columns
    found = attribute_disclosure(study.evidence, sensitive, known, rng, max_rows=study.caps.attacked)
    names = study.evidence.real.schema.names
    name = names[sensitive]
    others = ", ".join(names[j] for j in known)
    note = (
        f"accuracy of inferring {name} from {found.subsets} subsets of {found.size} of the columns {others}; at most "
        f"{study.caps.attacked} training rows, at least {found.rows} test rows; always guessing the commonest value: "
        f"{found.floor:.3f}; attackers who hold the training rows themselves: {found.ceiling:.3f}"
    )
    one, usual, origin = found.members, found.population, "attackers trained on real rows, tested on other real rows"
    score = _figure("attribute disclosure", one, usual, origin, _INFERRED, note, size=found.size, column=name)
    score = replace(score, details=found.by_attacker)
    yield UncorrectedScore(_judged(score, found.persons, one.low > usual.high, _LEARNT))
    if found.advantage is None or found.advantage_real is None:
        study.missing.append("disclosure advantage: not computed, it needs hold-out rows; hold some out")
        return
    one, usual, origin = found.advantage, found.advantage_real, "attackers trained on the training rows themselves"
    title, points = "disclosure advantage over non-members", 100 * one.value
    score = _figure(title, one, usual, origin, _ADVANTAGE, note, column=name, points=points)
    score = _judged(replace(score, best=0.0), found.persons, one.low > 0.05, _LEARNT, Estimate(0.0))
    yield UncorrectedScore(score, formal_advantage_bound)


_TOLD_APART = "Given {pair}, this attack identifies the {member} in {value:.1%} of cases; 50% is guessing."
_CAUGHT = (
    "At a false-positive rate of 1% (1 in 100 outsiders wrongly named), this attack recognises {value:.1%} of the "
    "{rows}; guessing recognises 1%."
)


def _membership(study: PrivacyStudy, rng: np.random.Generator) -> Iterator[UncorrectedScore]:
    evidence = study.evidence
    targets = AttackTargets.of(evidence, rng, study.caps.targets)
    index = NeighbourIndex.of(evidence.synthetic, study.space, rng, study.caps.points)
    many = count_persons(targets.nonmembers)
    guessing = share(_FPR * many, many)
    guessing = Estimate(_FPR, guessing.low, guessing.high)
    facts = {"pair": "a training row and an unseen row", "member": "training row", "rows": "training rows"}
    sides = f"{many} training rows against {many} hold-out rows"
    if evidence.by_person:
        pair = "all rows of a person in the training rows and of one who is not"
        facts = {"pair": pair, "member": "former", "rows": "persons in the training rows"}
        sides = (  # the mean: AttackTargets.by_person
            f"{many} persons with {len(targets.members)} training rows against {many} with {len(targets.nonmembers)} "
            "hold-out rows, each by the mean score of all rows of the person"
        )
    note = (
        f"{sides}; {len(index.points)} synthetic rows searched; {len(targets.reference)} other hold-out rows"
        f"{' of other persons' if evidence.by_person else ''} as the attacker's knowledge of the population"
    )
    plain = gan_leaks(targets, index)
    attacks = {"GAN-Leaks": plain, "GAN-Leaks calibrated": calibrated_gan_leaks(plain, targets, study.space)}
    for name, by_row in {**attacks, "DOMIAS": domias(targets, index)}.items():
        scores = targets.by_person(by_row)
        area, caught = auc_with_band(*scores), tpr_at(_FPR, *scores)
        score = _figure(f"membership AUC, {name}", area, _HALF, "guessing", _TOLD_APART, note, **facts)
        score = _judged(replace(score, best=0.5), many, area.low > 0.55, _RECOGNISED)
        yield UncorrectedScore(score, formal_auc_bound)
        title = f"membership TPR at FPR 1 %, {name}"
        score = _figure(title, caught, guessing, "guessing", _CAUGHT, note, **facts)
        score = _judged(replace(score, best=_FPR), many, caught.low > 2 * _FPR, _RECOGNISED)
        yield UncorrectedScore(
            score,
            partial(formal_tpr_bound, _FPR),
            contradicted_beyond=partial(formal_tpr_bound, guessing.high),
        )


# ---------------------------------------------------------------------------------------------------------------------
# All metrics


def _no_membership(study: PrivacyStudy) -> str:
    real, synthetic, unseen = study.counts
    if study.evidence.holdout is None:
        return _NO_HOLDOUT
    if min(real, synthetic, unseen // 2) >= _FEW:
        return ""
    return f"it needs {_FEW} training and synthetic and {2 * _FEW} hold-out rows{study.of_persons}"


def _no_disclosure(study: PrivacyStudy) -> str:
    real, synthetic, unseen = study.counts
    if isinstance(study.columns, str):
        return study.columns
    if min(real // 2 if study.evidence.holdout is None else min(real, unseen), synthetic) >= _FEW:
        return ""
    return f"it needs {_FEW} rows of each kind ({2 * _FEW} real ones without a hold-out){study.of_persons}"


def _no_nearer(study: PrivacyStudy) -> str:
    if study.evidence.holdout is None:
        return _NO_HOLDOUT
    return "" if min(study.counts) >= _FEW else f"it needs {_FEW} rows of each kind{study.of_persons}"


def _no_distances(study: PrivacyStudy) -> str:
    real, _, _ = study.counts
    if study.evidence.holdout is not None or real >= 4:
        return ""
    return f"{real} real {'persons' if study.evidence.by_person else 'rows'} are too few to hold out half of them"


METRICS: Mapping[str, PrivacyMetric] = {
    metric.name: metric
    for metric in (
        PrivacyMetric("membership-inference", "membership inference", figures=_membership, impossible=_no_membership),
        PrivacyMetric("attribute-disclosure", "attribute disclosure", figures=_disclosure, impossible=_no_disclosure),
        PrivacyMetric(
            "nearer-to-training", "nearer to training or hold-out rows", figures=_nearer, impossible=_no_nearer
        ),
        PrivacyMetric("exact-matches", "exact matches", figures=_exact, first=True),
        PrivacyMetric("distance-to-real", "distances to real rows", figures=_close, impossible=_no_distances),
    )
}
"""The metrics of privacy by name, in the order of a report: attacks before distances, which do not measure privacy."""
# Generators of random numbers are numbered in this order, by those metrics that are possible.
_SEEDED = ("exact-matches", "distance-to-real", "nearer-to-training", "attribute-disclosure", "membership-inference")
