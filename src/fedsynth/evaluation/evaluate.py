"""The complete evaluation of a synthetic table in one call: fidelity, utility, privacy and plot data."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedsynth.errors import DataWarning, Unsupported, number_of
from fedsynth.evaluation import fidelity, privacy
from fedsynth.evaluation.metric import Metric
from fedsynth.evaluation.metrics import METRICS, metric_named
from fedsynth.evaluation.persons import count_persons, standard_error, take_persons
from fedsynth.evaluation.plot_data import plot_data
from fedsynth.evaluation.references import cached
from fedsynth.evaluation.report import Evaluation
from fedsynth.evaluation.score import (
    Estimate,
    EvaluationTables,
    Findings,
    Resample,
    Score,
    of_references,
    over_trials,
)
from fedsynth.evaluation.settings import FIRST_REPORT, EvaluationSettings
from fedsynth.evaluation.suites import find_suite, one_thread
from fedsynth.evaluation.utility import utility
from fedsynth.privacy.cost import ProtectedChange
from fedsynth.progress import Progress, ignore_progress
from fedsynth.rows import Table
from fedsynth.schema.misfits import with_lines

_FIRST_ONLY = (
    "This is a first report. Attacks on privacy, detection by classifiers, further distances, and further learners and "
    "draws of their training rows were not measured: add --full (in Python: full=True)."
)
_NO_CHANCE = 20  # hold-out rows among the real rows beyond those expected: fewer may be chance
_DRAWS = 3  # draws of training rows, at most: training one learner takes longer than all fidelity scores

LogLikelihood = Callable[[Table], NDArray[np.float64]]


@one_thread()
def evaluate(
    evidence: EvaluationTables,
    settings: EvaluationSettings = FIRST_REPORT,
    *,
    log_likelihood: LogLikelihood | None = None,
    fitted: Table | None = None,
    progress: Progress = ignore_progress,
) -> Evaluation:
    """Measure fidelity and utility of a synthetic table, and privacy if ``full``, beside references from real rows.

    - ``settings``: what is measured, and how. ``metrics`` are names from
      :data:`~fedsynth.evaluation.metrics.METRICS` or metrics of other packages
      (:func:`~fedsynth.evaluation.metrics.metric_named`). A first report has attribute disclosure if ``sensitive`` or
      ``known`` is given. The notes say what was left out. Its ``person`` is for those who read the tables.
    - ``log_likelihood``: if the model has one, each row's log-likelihood in nats, shape ``(rows,)``, of a table.
    - ``fitted``: the real rows that the synthesizer was fitted to, if these are not all: attacks, and the reference of
      the likelihood, are about them alone.

    Learners are tested on the hold-out rows or, without these, on a fifth of the real rows. Validity is measured once,
    on all rows. All of it runs on one thread.

    If real and hold-out rows have persons (:attr:`Table.persons <fedsynth.rows.Table.persons>`), real rows are split by
    person, and membership attacks are on persons. A score does not depend on the other metrics measured; verdicts on
    privacy are corrected for the number of privacy figures. A :class:`DataWarning` says if rows were left out when a
    table was encoded, or hold-out rows are rows that the synthesizer was fitted to.

    Raises :class:`Unsupported` for a named metric that cannot be computed, for known columns that include the sensitive
    one or the target, and without scikit-learn (the extra ``evaluate``); :class:`InvalidParameter` for an unknown
    metric or suite; :class:`SchemaError` for unknown columns. A suite that cannot be used becomes a note.
    """
    _warn_of_rows_left_out(evidence)
    for name in filter(None, (settings.target, settings.sensitive, *settings.known)):
        evidence.real.schema.index(name)
    metrics = _wanted(settings)
    for suite in settings.suites:
        find_suite(suite)
    seen = evidence if fitted is None else replace(evidence, real=fitted)
    _warn_of_seen_rows(seen)
    fidelity_part = _fidelity(evidence, settings, metrics, progress)
    if METRICS["likelihood"] in metrics and log_likelihood is not None and evidence.holdout is not None:
        fidelity_part.scores.append(_likelihood_score(seen, log_likelihood, settings))
    utility_part = _utility(evidence, settings, progress) if METRICS["learning"] in metrics else Findings()
    attacks = [metric for metric in metrics if isinstance(metric, privacy.PrivacyMetric)]
    privacy_part = privacy.privacy(seen, settings, metrics=attacks, progress=progress) if attacks else Findings()
    scores = (*fidelity_part.scores, *utility_part.scores, *privacy_part.scores)
    missing = (*utility_part.missing, *privacy_part.missing)
    if settings.metrics is not None:
        _refuse_unmeasured(metrics, scores, missing)
    bounds = privacy.AttackBounds.of(settings)
    real, synthetic, holdout = evidence.real, evidence.synthetic, evidence.holdout
    return Evaluation(
        scores,
        plot_data(real, synthetic),
        {"real": len(real), "synthetic": len(synthetic), "holdout": 0 if holdout is None else len(holdout)},
        settings.target,
        (
            *fidelity_part.notes,
            *privacy_part.notes,
            *utility_part.notes,
            *missing,
            *([_FIRST_ONLY] if settings.first else []),
        ),
        persons={
            name: count_persons(table)
            for name, table in (("real", real), ("holdout", holdout))
            if table is not None and evidence.by_person
        },
        attacked=bounds.attacked,
        unknown=ProtectedChange(settings.unit, settings.neighbours).unknown,
        guarantee=None if bounds.guarantee is None else (bounds.guarantee.epsilon, bounds.guarantee.delta),
        first=settings.first,
    )


def forecast(evidence: EvaluationTables, settings: EvaluationSettings = FIRST_REPORT) -> float:
    """Return about how many seconds of one core :func:`evaluate` takes for a first or a full report.

    The constants are CPU seconds (AMD EPYC, 2026) for the table Adult: 26,048 real and as many synthetic rows, 6,513
    hold-out rows, 15 columns. They are scaled by the numbers of rows, columns and pairs that are compared.
    """
    many = len(evidence.real.codes)
    rows = min(max(len(evidence.real), len(evidence.synthetic)), settings.max_rows) / 20_000
    columns, pairs = rows * many / 15, rows * min(math.comb(many, 2), 300) / 105
    learner = (0.8 * min(1, 10 * rows) + 3.8 * min(columns, 4 * rows)) if settings.target else 0.0
    if not settings.full:
        return 1 + (columns + pairs) / 2 + learner
    targets, searched = min(len(evidence.real), 5_000) / 5_000, min(len(evidence.synthetic), 100_000) / 26_048
    return 2 + 5.5 * columns + pairs / 2 + 12 * targets * many / 15 * (0.3 + 0.7 * searched) + 7 * learner


def _wanted(settings: EvaluationSettings) -> list[Metric]:
    """Return the metrics to measure in the order of a report, those of other packages last."""
    if settings.metrics is not None:
        named = {metric.name: metric for metric in map(metric_named, settings.metrics)}
        return [named[name] for name in dict.fromkeys((*METRICS, *named)) if name in named]
    asked = {"attribute-disclosure"} if settings.sensitive or settings.known else set()
    return [one for one in METRICS.values() if settings.full or one.first or one.name in asked]


def _refuse_unmeasured(metrics: Sequence[Metric], scores: Sequence[Score], reasons: Sequence[str]) -> None:
    """Raise :class:`Unsupported`, with the reasons, if a metric that was named has no score."""
    measured = {score.metric for score in scores}
    if unmeasured := [metric for metric in metrics if metric.name not in measured]:
        why = [*(reason.rstrip(".") for reason in reasons), *dict.fromkeys(metric.needs for metric in unmeasured)]
        names = ", ".join(metric.name for metric in unmeasured)
        raise Unsupported(f"{names} cannot be measured on these tables: {'; '.join(filter(None, why))}")


def _warn_of_rows_left_out(evidence: EvaluationTables) -> None:
    for name, table in (("real", evidence.real), ("synthetic", evidence.synthetic), ("hold-out", evidence.holdout)):
        if table is not None and table.left_out:
            head = f"the scores are those of {len(table)} of the {table.rows_read} {name} rows:"
            warnings.warn(with_lines(head, table.findings()), DataWarning, stacklevel=4)


def _warn_of_seen_rows(evidence: EvaluationTables) -> None:
    """Warn if hold-out rows are among the real ones, more than can be chance.

    If both are draws of one law, a hold-out row occurs among the real rows as often as a real row among the others.
    """
    if evidence.holdout is None:
        return
    keys, held = _row_keys(evidence.real), _row_keys(evidence.holdout)
    _, which, counts = np.unique(keys, return_inverse=True, return_counts=True)
    by_chance, found = float((counts[which] > 1).mean()), np.isin(held, keys)
    excess = float(found.mean()) - by_chance
    if excess > (1 - by_chance) / 2 and excess * len(held) >= _NO_CHANCE:
        warnings.warn(
            f"{int(found.sum()):,} of the {len(held):,} hold-out rows are among the real rows that the synthesizer was "
            f"fitted to, and about {by_chance * len(held):,.0f} would be by chance: scores that need unseen rows "
            "mislead. Hold rows out before the fit (fs.split, --holdout)",
            DataWarning,
            stacklevel=5,
        )


def _row_keys(table: Table) -> NDArray[np.uint64]:
    """Return a hash of each row's values, shape ``(rows,)``."""
    columns = [table.numbers.get(at, codes) for at, codes in enumerate(table.codes)]
    hashes = pd.util.hash_pandas_object(pd.DataFrame(dict(enumerate(columns))), index=False)
    return np.asarray(hashes, dtype=np.uint64)


def _fidelity(
    evidence: EvaluationTables, settings: EvaluationSettings, metrics: Sequence[Metric], progress: Progress
) -> Findings:
    """Return the scores of those metrics that are measured once, or that compare rows."""
    of_all = [(metric, metric.of_all(evidence)) for metric in metrics if metric.of_all is not None]
    findings = Findings([replace(score, metric=metric.name) for metric, score in of_all if score is not None])
    if not any(metric.comparisons for metric in metrics):
        return findings
    trials = list(evidence.trials(settings.repeats, settings.max_rows, settings.seed))
    findings.notes.append(_comparison(evidence, trials))
    real = evidence.sample(evidence.real, settings.max_rows, settings.seed)
    chosen = [
        (metric, comparison)
        for metric in metrics
        if metric.comparisons is not None
        for comparison in metric.comparisons(real, settings.seed)
    ]
    for done, (metric, comparison) in enumerate(chosen):
        progress("fidelity", done, len(chosen))
        title = ", ".join(filter(None, (metric.title, comparison.part)))
        sizes = (len(trial.reference) for trial in trials)
        references = cached(
            (evidence.real, evidence.holdout),
            (title, settings.repeats, settings.max_rows, settings.seed, *sizes),
            partial(of_references, trials, comparison.compare),
        )
        score = over_trials(
            title,
            trials,
            comparison.compare,
            best=metric.best,
            reference_is=evidence.reference_is,
            note=comparison.note,
            references=references,
        )
        findings.scores.append(metric.judged(replace(score, metric=metric.name), len(trials[0].synthetic)))
    progress("fidelity", len(chosen), len(chosen))
    return findings


def _utility(evidence: EvaluationTables, settings: EvaluationSettings, progress: Progress) -> Findings:
    """Return the scores of learners of the target column, by each suite that can be used."""
    if not settings.target:
        return Findings(missing=["Utility was not measured: name the column to predict with --target."])
    findings = Findings()
    real, test = _learned_and_tested(evidence, settings, findings.notes)
    for suite in settings.suites or ("boosting" if settings.first else "default",):
        try:
            scores = utility(
                real,
                evidence.synthetic,
                test,
                settings.target,
                suite=suite,
                seed=settings.seed,
                repeats=min(settings.repeats, 1 if settings.first and not settings.suites else _DRAWS),
                max_rows=settings.max_rows,
                progress=progress,
            )
        except Unsupported as error:
            findings.missing.append(f"Utility was not measured by the suite {suite}: {error}.")
        else:
            findings.scores.extend(replace(score, metric="learning") for score in scores)
    return findings


def _comparison(evidence: EvaluationTables, trials: Sequence[Resample]) -> str:
    """Return a note on the rows of the fidelity comparisons: how many, and where they come from."""
    one = trials[0]
    pool = "the real rows" if evidence.holdout is None else "the real and the hold-out rows together"
    about = ""
    if evidence.by_person:
        pool, about = f"{pool} by person", "about "
    return (
        f"Fidelity scores are means of {number_of(len(trials), 'comparison')}. Each shuffled and split {pool}: "
        f"{about}{len(one.real):,} rows to compare with, {len(one.reference):,} others as the reference. "
        f"{len(one.synthetic):,} synthetic rows were drawn, as many as the reference has. "
        "Bands: 1.96 standard deviations of one comparison."
    )


def _likelihood_score(evidence: EvaluationTables, log_likelihood: LogLikelihood, settings: EvaluationSettings) -> Score:
    assert evidence.holdout is not None
    sampled = [evidence.sample(table, settings.max_rows, settings.seed) for table in (evidence.holdout, evidence.real)]
    heard, seen = map(log_likelihood, sampled)
    held, fitted = (
        Estimate(
            fidelity.likelihood(rows).nll,
            *(float(-rows.mean() + sign * 1.959964 * standard_error(rows, table)) for sign in (-1, 1)),
        )
        for rows, table in zip((heard, seen), sampled, strict=True)
    )
    return Score(
        "fidelity",
        METRICS["likelihood"].title,
        held,
        fitted,
        "the rows that the model was fitted to",
        None,
        f"nats, {len(heard):,} rows; lower is better",
        metric="likelihood",
    )


def _learned_and_tested(
    evidence: EvaluationTables, settings: EvaluationSettings, notes: list[str]
) -> tuple[Table, Table]:
    """Return the real rows that learners may train on and those that test them: hold-out rows if there are any.

    Without a hold-out, a fifth of the real rows (or persons) is set aside, which is said in ``notes``.
    """
    real, test = evidence.real, evidence.holdout
    if test is None:
        order = np.random.default_rng(settings.seed).permutation(count_persons(real))
        fifth = max(1, len(order) // 5)
        real, test = take_persons(real, order[fifth:]), take_persons(real, order[:fifth])
        tested = "the rows of a fifth of the persons" if evidence.by_person else "a fifth of the real rows"
        notes.append(
            f"There was no hold-out, so utility is tested on {tested}: the synthesizer has seen them, the classifiers "
            "have not."
        )
    return real, evidence.sample(test, settings.max_rows, settings.seed)
