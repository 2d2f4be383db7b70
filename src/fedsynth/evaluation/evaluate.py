"""The complete evaluation of a synthetic table in one call: fidelity, utility, privacy and plot data."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsynth.cliques import random_workload
from fedsynth.errors import DataWarning, InvalidParameter, Unsupported, nearest
from fedsynth.evaluation import dependence, detection, fidelity, privacy, similarity
from fedsynth.evaluation.persons import count_persons, standard_error, take_persons
from fedsynth.evaluation.plot_data import PlotData, plot_data
from fedsynth.evaluation.references import cached
from fedsynth.evaluation.score import (
    Details,
    Estimate,
    EvaluationTables,
    Measured,
    Resample,
    Score,
    of_references,
    over_trials,
)
from fedsynth.evaluation.suites import SUITES
from fedsynth.evaluation.utility import utility
from fedsynth.evaluation.verdicts import with_verdict
from fedsynth.federation.federation import Progress, ignore_progress
from fedsynth.privacy.cost import ONE_ROW, Budget, Neighbours, Unit
from fedsynth.rows import Table, workload_error
from fedsynth.schema.misfits import with_lines

_PAIRS = 300  # pairs of columns in a pair score
_PLANES = 30  # pairs of numbers with an exact transport distance
_COLUMNS = 40  # columns of an association matrix
_MARGINALS = 64
_DRAWS = 3  # draws of training rows, at most: training one learner takes longer than all fidelity scores
_POINTS = 500  # rows of a transport distance: its time grows with their cube

# Names of the fidelity metrics, and the titles of their scores.
FIDELITY: Mapping[str, str] = {
    "column-similarity": "column similarity",
    "pair-similarity": "pair similarity",
    "pair-similarity-deciles": "pair similarity (numbers cut at deciles)",
    "coverage": "coverage",
    "missing-values-similarity": "missing values similarity",
    "associations-kept": "strong associations kept",
    "correlations-kept": "strong correlations kept",
    "heaps": "heaps kept",
    "quantiles": "quantile error",
    "association-difference": "association difference",
    "correlation-difference": "pairwise correlation difference",
    "propensity": "propensity MSE",
    "log-cluster": "log-cluster (20 clusters)",
    "hellinger": "Hellinger distance (20 bins)",
    "hellinger-100": "Hellinger distance (100 bins)",
    "jensen-shannon": "Jensen-Shannon divergence",
    "jensen-shannon-distance": "Jensen-Shannon distance",
    "wasserstein": "Wasserstein distance",
    "wasserstein-2d": "2-way Wasserstein distance",
    "workload-error": "workload error",
    "range-queries": "range queries, 2-way",
}
# All metric names. A metric that benchmarks compute as well has the same name there (metrics.METRICS).
METRICS = (*FIDELITY, "validity", "likelihood", "learning", *privacy.METRICS)

Item = TypeVar("Item")
LogLikelihood = Callable[[Table], NDArray[np.float64]]
Metric = Callable[[Table, Table], Measured]


@dataclass(frozen=True)
class ReportTitle:
    """Title block of a report: its title, the owner and name of the data, and the date of the measurement.

    ``date`` is in ISO 8601; an unknown field is empty.
    """

    title: str = ""
    owner: str = ""
    data: str = ""
    date: str = ""


@dataclass(frozen=True)
class Evaluation:
    """The result of :func:`evaluate`: scores, data for plots, row counts, and notes for the reader.

    ``scores`` come in the order of a report; ``plot_data`` is the data of its plots. ``rows`` maps "real", "synthetic"
    and "holdout" to numbers of rows, and ``persons`` maps "real" and "holdout" to numbers of persons; it is empty if
    nothing says which rows are of one person. ``target`` names the column to predict ("" for none). ``notes`` are
    sentences on how rows were drawn for fidelity, and on the scores of utility and privacy that were left out, with the
    reason. ``attacked`` says what the formal bounds of attacks are about
    (:attr:`~fedsynth.evaluation.privacy.AttackBounds.attacked`). ``about`` is the title block of the report. None of it
    is differentially private: it is computed from real rows without noise.
    """

    scores: tuple[Score, ...]
    plot_data: PlotData
    rows: Mapping[str, int]
    target: str = ""
    notes: tuple[str, ...] = ()
    about: ReportTitle = ReportTitle()
    persons: Mapping[str, int] = field(default_factory=dict)
    attacked: str = "the presence of one row"

    def to_json(self) -> dict[str, Any]:
        """Return the evaluation as JSON values, for ``scores.json`` in the output folder of ``fedsynth evaluate``.

        :meth:`from_json` reads them.
        """
        return {
            "about": asdict(self.about),
            "rows": dict(self.rows),
            "persons": dict(self.persons),
            "target": self.target,
            "notes": list(self.notes),
            "attacked": self.attacked,
            "scores": [score.to_json() for score in self.scores],
            "plot_data": self.plot_data.to_json(),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Evaluation:
        """Return the evaluation from the output of :meth:`to_json`."""
        return cls(
            tuple(Score.from_json(one) for one in content["scores"]),
            PlotData.from_json(content["plot_data"]),
            content["rows"],
            content["target"],
            tuple(content["notes"]),
            ReportTitle(**content["about"]),
            content["persons"],
            content["attacked"],
        )


def evaluate(
    evidence: EvaluationTables,
    *,
    metrics: Sequence[str] | None = None,
    target: str = "",
    sensitive: str = "",
    known: Sequence[str] = (),
    guarantee: Budget | None = None,
    unit: Unit = ONE_ROW,
    neighbours: Neighbours = "add-remove",
    log_likelihood: LogLikelihood | None = None,
    fitted: Table | None = None,
    suites: Sequence[str] = ("default",),
    repeats: int = 5,
    max_rows: int = 20_000,
    seed: int = 0,
    progress: Progress = ignore_progress,
) -> Evaluation:
    """Measure fidelity, utility and privacy of a synthetic table, each score beside a reference from real rows.

    ``evidence`` holds the real, the synthetic and, if there are any, the hold-out rows (real rows that the synthesizer
    never saw).

    - ``metrics``: names from :data:`METRICS <fedsynth.evaluation.evaluate.METRICS>`, such as "column-similarity",
      "learning" (utility) or "membership-inference"; None measures everything that the tables allow, and the notes say
      what of utility and privacy was left out.
    - ``target``: the column that classifiers (or regressors) learn to predict; without it, utility is not measured.
      They are tested on the hold-out rows or, without these, on a fifth of the real rows, which they do not train on
      (but the synthesizer did).
    - ``sensitive``, ``known``: in attribute disclosure, an attacker who knows the columns ``known`` infers the column
      ``sensitive`` (defaults: see :func:`~fedsynth.evaluation.privacy.privacy`).
    - ``guarantee``: the (epsilon, delta) that the table was made under, if any; attacks are compared with the bounds
      that follow from it. ``unit`` is what it protects: one row (the default), or a person with several rows.
      ``neighbours`` says whether it is for adding or removing the unit, or for replacing it (public sizes).
    - ``log_likelihood``: if the model has one, a function that returns each row's log-likelihood in nats, shape
      ``(rows,)``, for a table.
    - ``fitted``: the real rows that the synthesizer was fitted to, if these are not all real rows: privacy figures, and
      the reference of the likelihood, are about them alone.
    - ``suites``: names of sets of learners for utility, from :data:`fedsynth.evaluation.suites.SUITES`.
    - ``repeats``, ``max_rows``: a fidelity score is the mean of ``repeats`` (at least 1) random comparisons of at most
      ``max_rows`` rows of each table; a utility score is the mean of ``repeats``, but at most three, draws of at most
      ``max_rows`` training rows. Validity is measured once, on all rows, and likelihood on at most ``max_rows``.
    - ``seed``: determines every random draw.
    - ``progress``: is called with the current task, the number of steps done, and the number of all steps.

    A :class:`DataWarning` says if rows of a table were left out when it was encoded: scores are those of the others.

    If the real and the hold-out table have persons (:attr:`Table.persons <fedsynth.rows.Table.persons>`), no person
    counts as unseen of whom the synthesizer, or the other side of a comparison, has rows: real rows are split by
    person, membership attacks are on persons, and bands allow for rows of one person that resemble each other.

    A score does not depend on the other metrics measured, but verdicts on privacy are corrected for the number of
    privacy figures measured (multiple testing). Raises :class:`Unsupported` for a metric that was named and cannot be
    computed, for known columns that include the sensitive one or the target, and without scikit-learn (the extra
    ``evaluate``); :class:`InvalidParameter` for an unknown metric or suite, and for less than one repeat;
    :class:`SchemaError` for unknown columns. A suite that cannot be used, for example because its package is missing,
    becomes a note; if "learning" was named and no suite can be used, :class:`Unsupported` is raised.
    """
    schema = evidence.real.schema
    for name, table in (("real", evidence.real), ("synthetic", evidence.synthetic), ("hold-out", evidence.holdout)):
        if table is not None and table.left_out:
            head = f"the scores are those of {len(table)} of the {table.rows_read} {name} rows:"
            warnings.warn(with_lines(head, table.findings()), DataWarning, stacklevel=2)
    for name in filter(None, (target, sensitive, *known)):
        schema.index(name)
    metrics = (metrics,) if isinstance(metrics, str) else metrics
    wanted = METRICS if metrics is None else tuple(metrics)
    for name in wanted:
        if name not in METRICS:
            raise InvalidParameter(f"no metric named {name!r}; {nearest(name, METRICS)}")
    for suite in suites:
        if suite not in SUITES:
            raise InvalidParameter(f"no suite of learners named {suite!r}; {nearest(suite, SUITES)}")
    if repeats < 1:
        raise InvalidParameter(f"{repeats} repeats: pass at least 1 comparison")
    seen = evidence if fitted is None else replace(evidence, real=fitted)
    scores: list[Score] = _validity(evidence) if "validity" in wanted else []
    said: list[str] = []
    if FIDELITY.keys() & set(wanted):
        trials = list(evidence.trials(repeats, max_rows, seed))
        said.append(_comparison(evidence, trials))
        chosen = list(_fidelity(evidence.sample(evidence.real, max_rows, seed), seed, wanted))
        for done, one in enumerate(chosen):
            progress("fidelity", done, len(chosen))
            references = cached(
                (evidence.real, evidence.holdout),
                (one.title, repeats, max_rows, seed, *(len(trial.reference) for trial in trials)),
                partial(of_references, trials, one.metric),
            )
            score = over_trials(
                one.title,
                trials,
                one.metric,
                best=one.best,
                reference_is=evidence.reference_is,
                note=one.note,
                references=references,
            )
            scores.append(with_verdict(replace(score, metric=one.name), len(trials[0].synthetic)))
        progress("fidelity", len(chosen), len(chosen))
    if "likelihood" in wanted and log_likelihood is not None and evidence.holdout is not None:
        scores.append(_likelihood_score(seen, log_likelihood, max_rows, seed))
    epsilon, delta = (None, None) if guarantee is None else (guarantee.epsilon, guarantee.delta)
    bounds = privacy.AttackBounds.of(epsilon, delta, unit, neighbours)
    attacks = [name for name in wanted if name in privacy.METRICS]
    if attacks:
        said += bounds.notes(seen)
    missing: list[str] = []
    if "learning" in wanted and not target:
        missing.append("Utility was not measured: name the column to predict with --target.")
    elif "learning" in wanted:
        real, test = _learned_and_tested(evidence, max_rows, seed, said)
        for suite in suites:
            try:
                found = utility(
                    real,
                    evidence.synthetic,
                    test,
                    target,
                    suite=suite,
                    seed=seed,
                    repeats=min(repeats, _DRAWS),
                    max_rows=max_rows,
                    progress=progress,
                )
            except Unsupported as error:
                missing.append(f"Utility was not measured by the suite {suite}: {error}.")
            else:
                scores += [replace(score, metric="learning") for score in found]
    if attacks:
        findings = privacy.privacy(
            seen,
            target=target,
            sensitive=sensitive,
            known=known,
            epsilon=epsilon,
            delta=delta,
            unit=unit,
            neighbours=neighbours,
            seed=seed,
            progress=progress,
            metrics=attacks,
        )
        scores += findings.scores
        missing += findings.notes
    if metrics is not None:
        _refuse_unmeasured(metrics, scores, missing)
    return Evaluation(
        tuple(scores),
        plot_data(evidence.real, evidence.synthetic),
        {
            "real": len(evidence.real),
            "synthetic": len(evidence.synthetic),
            "holdout": 0 if evidence.holdout is None else len(evidence.holdout),
        },
        target,
        (*said, *missing),
        persons={
            name: count_persons(table)
            for name, table in (("real", evidence.real), ("holdout", evidence.holdout))
            if table is not None and evidence.by_person
        },
        attacked=bounds.attacked,
    )


def _refuse_unmeasured(metrics: Sequence[str], scores: Sequence[Score], reasons: Sequence[str]) -> None:
    """Raise :class:`Unsupported`, with the reasons, if a metric that was named has no score."""
    unmeasured = [name for name in metrics if name not in {score.metric for score in scores}]
    if not unmeasured:
        return
    why = [reason.rstrip(".") for reason in reasons]
    if "likelihood" in unmeasured:
        why.append("a likelihood needs hold-out rows and a model that has a likelihood")
    if "validity" in unmeasured:
        why.append("the schema has no rule, and the tables no derived column, so there is nothing to check")
    if FIDELITY.keys() & set(unmeasured):
        why.append(
            "they have too few columns of the type that the metric compares, no strongly associated pair, or no value "
            "that many rows share"
        )
    raise Unsupported(f"{', '.join(unmeasured)} cannot be measured on these tables: {'; '.join(why)}")


def _validity(evidence: EvaluationTables) -> list[Score]:
    """Return the share of rows that violate a rule, or a bound of a derived column, if these rows have any to check."""
    agreed = evidence.agreed
    if agreed is None or not (agreed.rules or agreed.derives):
        return []
    synthetic, real = (agreed.broken(table) for table in (evidence.synthetic, evidence.real))
    if not synthetic:  # the only derived columns are computed ones that the tables lack
        return []
    shares = [float(np.logical_or.reduce(list(masks.values())).mean()) for masks in (synthetic, real)]
    details = {said: (float(mask.mean()), float(real[said].mean())) for said, mask in synthetic.items()}
    return [
        Score(
            "fidelity",
            "rows that break a rule",
            Estimate(shares[0]),
            Estimate(shares[1]),
            "the real rows",
            0.0,
            "share of rows that violate a rule of the schema or a bound of a derived column",
            details,
            metric="validity",
        )
    ]


def _comparison(evidence: EvaluationTables, trials: Sequence[Resample]) -> str:
    """Return a note on the rows of the fidelity comparisons: how many, and where they come from."""
    one = trials[0]
    pool = "the real rows" if evidence.holdout is None else "the real and the hold-out rows together"
    about = ""
    if evidence.by_person:
        pool, about = f"{pool} by person", "about "
    return (
        f"Fidelity scores are means of {len(trials)} comparisons. Each shuffled and split {pool}: "
        f"{about}{len(one.real):,} rows to compare with, {len(one.reference):,} others as the reference. "
        f"{len(one.synthetic):,} synthetic rows were drawn, as many as the reference has. "
        "Bands: 1.96 standard deviations of one comparison."
    )


@dataclass(frozen=True)
class _Fidelity:
    """One fidelity score: its name (a key of ``FIDELITY``), best value, metric of (real, other), and a note."""

    name: str
    best: float | None
    metric: Metric
    note: str = ""
    part: str = ""  # suffix of the title, for a metric with several scores

    @property
    def title(self) -> str:
        return FIDELITY[self.name] + self.part


def _fidelity(real: Table, seed: int, wanted: Container[str] = tuple(FIDELITY)) -> Iterator[_Fidelity]:
    """Yield those of the ``wanted`` fidelity scores that apply to the schema and to the real rows."""
    if "associations-kept" in wanted:
        note = "pairs of columns that are so strongly associated in the real rows; half of it is kept, with its sign"
        for name, pairs in dependence.strong_associations(real).items():
            metric = partial(dependence.associations_kept, pairs=pairs)
            yield _Fidelity("associations-kept", 1.0, metric, note, f", {name}")
    if "correlations-kept" in wanted:
        note = "pairs of numbers whose correlation is at least 0.5 in the real rows; within 0.1 of it is kept"
        for name, pairs in dependence.strong_correlations(real).items():
            metric = partial(dependence.correlations_kept, pairs=pairs, how=dependence.CORRELATIONS[name])
            yield _Fidelity("correlations-kept", 1.0, metric, note, f", {name}")
    if "heaps" in wanted and (heaps := fidelity.heaps_of(real)):
        note = (
            "values that at least 1 % of the real rows have exactly; within 1 percentage point of their share is kept"
        )
        yield _Fidelity("heaps", 1.0, partial(fidelity.heaps_kept, heaps=heaps), note)
    if "quantiles" in wanted and (ranges := fidelity.quantile_ranges(real)):
        note = "1, 50, 90 and 99 % quantiles of numeric columns, as a fraction of the range from 5 to 95 %"
        yield _Fidelity("quantiles", 0.0, partial(fidelity.quantile_errors, ranges=ranges), note)
    yield from (one for one in _of_schema(real, seed) if one.name in wanted)


def _of_schema(real: Table, seed: int) -> Iterator[_Fidelity]:
    """Yield the fidelity scores that apply to the schema."""
    columns = range(len(real.codes))
    pairs, of_pairs = _some(list(itertools.combinations(columns, 2)), _PAIRS, "pairs of columns", seed)
    planes, of_planes = _some(list(itertools.combinations(sorted(real.numbers), 2)), _PLANES, "pairs", seed)
    chosen, of_columns = _some(list(columns), _COLUMNS, "columns", seed)
    yield _Fidelity("column-similarity", 1.0, similarity.column_similarity)
    if pairs:
        yield _Fidelity("pair-similarity", 1.0, partial(similarity.pair_similarity, pairs=pairs), of_pairs)
    if pairs and 0 < len(real.numbers) < len(real.codes):
        by_deciles = partial(similarity.pair_similarity_by_deciles, pairs=pairs)
        yield _Fidelity("pair-similarity-deciles", 1.0, by_deciles, of_pairs)
    yield _Fidelity("coverage", 1.0, similarity.coverage)
    if any(column.missing for column in real.schema.stored):
        yield _Fidelity("missing-values-similarity", 1.0, similarity.missing_similarity)
    if pairs:
        differences = partial(dependence.association_differences, pairs=pairs)
        yield _Fidelity("association-difference", 0.0, differences, of_pairs)
        difference = partial(_correlation_difference, columns=chosen)
        yield _Fidelity("correlation-difference", 0.0, difference, of_columns)
    yield _Fidelity("propensity", 0.0, partial(detection.propensity_mse, seed=seed), "between 0 and 0.25")
    yield _Fidelity("log-cluster", None, partial(detection.log_cluster, seed=seed), "lower is better")
    yield _Fidelity("hellinger", 0.0, fidelity.hellinger)
    yield _Fidelity("hellinger-100", 0.0, partial(fidelity.hellinger, bins=100))
    if len(real.numbers) < len(real.codes):
        yield _Fidelity("jensen-shannon", 0.0, fidelity.jensen_shannon, "categorical columns, in bits")
        distance = fidelity.jensen_shannon_distance
        yield _Fidelity("jensen-shannon-distance", 0.0, distance, "the divergence's square root")
    if real.numbers:
        note = "numeric columns, as a fraction of the real range"
        yield _Fidelity("wasserstein", 0.0, fidelity.wasserstein, note)
    if planes:
        metric = partial(fidelity.wasserstein_2d, pairs=planes, rows=_POINTS, seed=seed)
        note = "; ".join(filter(None, (of_planes, f"{_POINTS} rows a side")))
        yield _Fidelity("wasserstein-2d", 0.0, metric, note)
    for order in range(1, min(3, len(real.codes)) + 1):
        workload = random_workload(len(real.codes), order, _MARGINALS, seed)
        error = partial(_workload_error, workload=workload)
        note = f"{len(workload)} marginals, L1 distance (0 to 2)"
        yield _Fidelity("workload-error", 0.0, error, note, f", {order}-way")
    yield _Fidelity("range-queries", 0.0, partial(fidelity.range_query_error, seed=seed), "1000 random queries")


def _some(items: list[Item], most: int, what: str, seed: int) -> tuple[list[Item], str]:
    """Return at most ``most`` of the items, drawn with the seed, and a note if any were left out."""
    if len(items) <= most:
        return items, ""
    kept = np.sort(np.random.default_rng(seed).choice(len(items), most, replace=False))
    return [items[at] for at in kept], f"{most} random {what} of {len(items):,}"


def _correlation_difference(real: Table, other: Table, columns: Sequence[int]) -> float:
    matrices = (dependence.association_matrix(table, columns) for table in (real, other))
    return dependence.pairwise_correlation_difference(*matrices)


def _workload_error(real: Table, other: Table, workload: Sequence[tuple[int, ...]]) -> Details:
    errors = workload_error(real, other, tuple(workload)).per_clique
    return {" × ".join(real.schema.names[column] for column in clique): error for clique, error in errors.items()}


def _likelihood_score(evidence: EvaluationTables, log_likelihood: LogLikelihood, max_rows: int, seed: int) -> Score:
    assert evidence.holdout is not None
    sampled = [evidence.sample(table, max_rows, seed) for table in (evidence.holdout, evidence.real)]
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
        "negative log-likelihood of a held-out row",
        held,
        fitted,
        "the rows that the model was fitted to",
        None,
        f"nats, {len(heard):,} rows; lower is better",
        metric="likelihood",
    )


def _learned_and_tested(evidence: EvaluationTables, max_rows: int, seed: int, notes: list[str]) -> tuple[Table, Table]:
    """Return the real rows that learners may train on and those that test them: hold-out rows if there are any.

    Without a hold-out, a fifth of the real rows (or persons) is set aside, which is said in ``notes``.
    """
    real, test = evidence.real, evidence.holdout
    if test is None:
        order = np.random.default_rng(seed).permutation(count_persons(real))
        fifth = max(1, len(order) // 5)
        real, test = take_persons(real, order[fifth:]), take_persons(real, order[:fifth])
        tested = "the rows of a fifth of the persons" if evidence.by_person else "a fifth of the real rows"
        notes.append(
            f"There was no hold-out, so utility is tested on {tested}: the synthesizer has seen them, the classifiers "
            "have not."
        )
    return real, evidence.sample(test, max_rows, seed)
