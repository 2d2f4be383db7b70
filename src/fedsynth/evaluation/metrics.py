"""Metrics of ``fedsynth bench``: functions of one finished run, looked up by their names in its specifications.

A metric takes a :class:`FinishedRun` and its options as keywords, and returns a number, or a mapping from names to
numbers. Other packages add metrics under the entry-point group ``fedsynth.metrics``; a specification may also name any
function as ``package.module:function``.
"""

from __future__ import annotations

import importlib
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from fedsynth import rows
from fedsynth.cliques import Workload, random_workload
from fedsynth.errors import InvalidParameter, Unsupported, nearest
from fedsynth.evaluation import dependence, detection, fidelity, privacy, similarity
from fedsynth.evaluation.augmentation.rows import append_rows
from fedsynth.evaluation.augmentation.scores import ClassifierScores, TrainingCurve, majority
from fedsynth.evaluation.evaluate import evaluate
from fedsynth.evaluation.references import cached
from fedsynth.evaluation.score import EvaluationTables, Score
from fedsynth.evaluation.utility import scores_by_learner, train_synthetic_test_real
from fedsynth.plugins import installed, load, named
from fedsynth.rows import Table, concatenate

if TYPE_CHECKING:
    from fedsynth.models.synthesizer import Synthesizer
    from fedsynth.privacy.ledger import Ledger

Metric = Callable[..., float | Mapping[str, float]]
_SCORES = tuple(one.name for one in fields(ClassifierScores))
_TRAINED = ("together", "alone", "pooled")  # how sites train in `federated_training`


@dataclass(frozen=True, eq=False)
class FinishedRun(EvaluationTables):
    """One finished run of a benchmark: the input of every metric.

    - ``real``: all training rows of the data set, including those of sites that took no part and those that sites held
      out; ``holdout``: the test rows, if any. For the floor "other half", ``real`` is every second training row, and
      ``synthetic`` the others.
    - ``synthetic``: the synthetic rows; ``fresh``: a random sample of them, as many as there are test rows or, if they
      are fewer, all; None without test rows.
    - ``sites``: for each site that took part, the rows that it trained on; ``held``: for each site of the partition,
      also those that took no part, the rows that it held out; empty if none did.
    - ``target``: the column to predict; ``workload``: the marginals of interest, each given by its column positions;
      ``seed``: that of the run.
    - ``synthesizer``, ``ledger``: the fitted model, and the privacy cost of its releases. The run of a floor (rows that
      no method generated, see :func:`uniform_rows`) has neither.
    - ``among_servers``: under the trust model "three-servers", the bytes that these servers sent each other and the
      coordinator, else 0.
    - ``seconds``: CPU time of fitting and sampling; ``megabytes``: peak memory of the process meanwhile, in MiB.

    Unlike in other evaluations, all tables are encoded as sites store their rows, and ``agreed``, the schema whose
    rules an evaluation checks (:class:`~fedsynth.evaluation.score.EvaluationTables`), is None.
    """

    fresh: Table | None = None
    sites: tuple[Table, ...] = ()
    held: tuple[Table, ...] = ()
    target: str = ""
    workload: Workload = ()
    seed: int = 0
    synthesizer: Synthesizer | None = None
    ledger: Ledger | None = None
    among_servers: float = 0.0
    seconds: float = math.nan
    megabytes: float = math.nan

    @property
    def test(self) -> Table:
        """The test rows; raises :class:`Unsupported` if there are none."""
        if self.holdout is None:
            raise Unsupported("this metric needs test rows; give the data set a split")
        return self.holdout

    @property
    def label(self) -> int:
        """Position of the target column in the schema; raises :class:`Unsupported` if none is named."""
        if not self.target:
            raise Unsupported("this metric needs a column to predict; give the data set a target")
        return self.real.schema.index(self.target)

    def shuffled(self, rows: int) -> tuple[Table, Table]:
        """Return (training rows, synthetic rows), equally many, at most ``rows``, drawn at random by the run's seed."""
        few = min(rows, len(self.real), len(self.synthetic))
        rng = np.random.default_rng(self.seed)
        real, synthetic = (table.take(rng.permutation(len(table))[:few]) for table in (self.real, self.synthetic))
        return real, synthetic


def find_metric(name: str) -> Metric:
    """Return the metric that a benchmark's specification names: a function of a :class:`FinishedRun` and options.

    ``name`` is a key of :data:`METRICS <fedsynth.evaluation.metrics.METRICS>`, an entry point of another package in the
    group ``fedsynth.metrics``, or ``package.module:function``. Raises :class:`Unsupported` for an unknown name, and for
    a function that cannot be imported.
    """
    if ":" in name:
        return cast(Metric, named(name))
    other = installed("fedsynth.metrics", METRICS, name)
    if name in METRICS:
        return METRICS[name]
    if name in other:
        return cast(Metric, load(other[name]))
    raise Unsupported(f"no metric named {name!r}; {nearest(name, METRICS)}, or name package.module:function")


# ---------------------------------------------------------------------------------------------------------------------
# Floors and ceilings: rows that no method generated, as baselines. Each returns the real rows and the rows to score.

Floor = Callable[[Table, Table, np.random.Generator], tuple[Table, Table]]


def uniform_rows(train: Table, test: Table, rng: np.random.Generator) -> tuple[Table, Table]:
    """Return (training rows, as many random rows): a baseline that uses no data.

    Every category or bin of a column is equally likely, and columns are independent; numbers are uniform in their bin.
    ``rng`` draws the rows. Like every baseline of a benchmark, the function returns the real rows and the rows to score
    in place of synthetic ones, and takes the test rows; it does not use ``test``.
    """
    codes = tuple(rng.integers(0, size, len(train)).astype(np.min_scalar_type(size - 1)) for size in train.schema.sizes)
    return train, train.schema.encode(train.schema.decode(codes, rng))


def one_value(train: Table, test: Table, rng: np.random.Generator) -> tuple[Table, Table]:
    """Return (training rows, as many copies of one row): a baseline without any variation.

    The row has each categorical column's commonest category and each numeric column's mean; where bins are compared, a
    number counts by its column's commonest bin. Like every baseline of a benchmark, the function returns the real rows
    and the rows to score in place of synthetic ones, and takes the test rows and a generator; it uses neither ``test``
    nor ``rng``.
    """
    codes = [np.full_like(column, np.bincount(column).argmax()) for column in train.codes]
    numbers = {at: np.full_like(values, np.nanmean(values)) for at, values in train.numbers.items()}
    return train, Table(train.schema, tuple(codes), numbers)


FLOORS: dict[str, Floor] = {
    "real rows": lambda train, test, rng: (train, train),
    "test rows": lambda train, test, rng: (train, test),
    "other half": lambda train, test, rng: (
        train.take(np.arange(0, len(train), 2)),
        train.take(np.arange(1, len(train), 2)),
    ),
    "uniform rows": uniform_rows,
    "one value": one_value,
}


# ---------------------------------------------------------------------------------------------------------------------
# Fidelity


def _by_column(distance: Callable[[Table, Table], Mapping[str, float]]) -> Metric:
    """Return the metric that averages a distance over columns: to the training rows, or with ``test`` the test rows."""

    def metric(run: FinishedRun, test: bool = False) -> float:
        return _mean(distance(run.test if test else run.real, run.synthetic))

    return metric


def workload_error(run: FinishedRun, order: int | None = None, count: int = 64) -> float:
    """Return the mean L1 distance of a run's synthetic marginals to those of the training rows, 0 to 2.

    The marginals are those of ``run.workload``; with an ``order``, at most ``count`` random marginals of that many
    columns replace them. See :func:`fedsynth.rows.workload_error`.
    """
    workload = run.workload if order is None else random_workload(len(run.real.schema.sizes), order, count, 123)
    return rows.workload_error(run.real, run.synthetic, workload).mean


def likelihood(run: FinishedRun, floor: float = 1e-30) -> Mapping[str, float]:
    """Return the mean negative log-likelihood of a test row under the run's model in nats, under the key "NLL".

    Under the key "floored", each row has at least the probability ``floor``. Raises :class:`Unsupported` if the model
    has no likelihood, or if there are no test rows.
    """
    log_likelihood = None if run.synthesizer is None else run.synthesizer.log_likelihood
    if log_likelihood is None:
        raise Unsupported("only graphical models have a likelihood; leave this metric out for other methods")
    heard = log_likelihood(run.test)
    return {"NLL": float(-heard.mean()), "floored": float(-np.maximum(heard, math.log(floor)).mean())}


def range_queries(run: FinishedRun, queries: int = 1000, order: int = 2) -> float:
    """Return the mean absolute error of ``queries`` random range queries on synthetic rows, compared with test rows.

    :func:`~fedsynth.evaluation.fidelity.range_query_error` defines a query; each restricts ``order`` columns. Raises
    :class:`Unsupported` without test rows.
    """
    return fidelity.range_query_error(run.test, _fresh(run), order, queries, run.seed)


def wasserstein_2d(run: FinishedRun, rows: int | None = None) -> float:
    """Return the exact 1-Wasserstein distance of test and synthetic rows, as a mean over all pairs of numeric columns.

    At most ``rows`` rows of each are compared (default: as many as there are test rows); the time grows with their
    cube. See :func:`fedsynth.evaluation.fidelity.wasserstein_2d`. Raises :class:`Unsupported` without test rows.
    """
    pairs = list(itertools.combinations(sorted(run.test.numbers), 2))
    return _mean(fidelity.wasserstein_2d(run.test, _fresh(run), pairs, rows or len(run.test), run.seed))


def association_slopes(run: FinishedRun) -> Mapping[str, float]:
    """Return the slope of a least-squares line from training to synthetic associations, by kind of column pair.

    A slope of 1 means that associations are kept, 0 that they are lost. The keys are "categories", "numbers" and
    "mixed": see :func:`fedsynth.evaluation.dependence.association_slopes`.
    """
    return dependence.association_slopes(run.real, run.synthetic)


def correlation_difference(run: FinishedRun) -> float:
    """Return the Frobenius norm of the difference of the association matrices of training and synthetic rows.

    :func:`~fedsynth.evaluation.dependence.association_matrix` defines them.
    """
    matrices = (dependence.association_matrix(table) for table in (run.real, run.synthetic))
    return dependence.pairwise_correlation_difference(*matrices)


def associations_kept(run: FinishedRun) -> Mapping[str, float]:
    """Return the share of the training rows' strongly associated pairs of columns that the synthetic rows keep: 0 to 1.

    The keys are "above 0.3" and "above 0.5", the limits of a strong association; a limit that no pair reaches is left
    out. Half of an association is kept, with the same sign
    (:func:`fedsynth.evaluation.dependence.associations_kept`).
    """
    return {
        name: dependence.associations_kept(run.real, run.synthetic, pairs).value
        for name, pairs in dependence.strong_associations(run.real).items()
    }


def correlations_kept(run: FinishedRun) -> Mapping[str, float]:
    """Return the share of the training rows' strong correlations of numbers that synthetic rows have within 0.1.

    The keys are "Pearson" and "Spearman"; a correlation is strong from 0.5 on, and one that is strong for no pair is
    left out. See :func:`fedsynth.evaluation.dependence.correlations_kept`.
    """
    return {
        name: dependence.correlations_kept(run.real, run.synthetic, pairs, dependence.CORRELATIONS[name]).value
        for name, pairs in dependence.strong_correlations(run.real).items()
    }


def heaps(run: FinishedRun) -> float:
    """Return the share of the training rows' heaps that equally many synthetic rows have, 0 to 1; nan without heaps.

    A heap is a number that at least 1 % of the rows have exactly; see
    :func:`fedsynth.evaluation.fidelity.heaps_kept`.
    """
    found = fidelity.heaps_of(run.real)
    return fidelity.heaps_kept(run.real, run.synthetic, found).value if found else math.nan


def quantiles(run: FinishedRun) -> Mapping[str, float]:
    """Return the errors of quantiles of the synthetic numbers, relative to the range from the 5 to the 95 % quantile.

    Under "1 %", "50 %", "90 %" and "99 %" it is the mean over columns of numbers, under "" the mean of all, and under
    "50 % within 0.05" (and so on) the share of columns whose error is at most 0.05. The result is empty without
    columns of numbers. See :func:`fedsynth.evaluation.fidelity.quantile_errors`.
    """
    errors = fidelity.quantile_errors(run.real, run.synthetic, fidelity.quantile_ranges(run.real))
    if not errors:
        return {}
    found = {"": _mean(errors)}
    for quantile in ("1 %", "50 %", "90 %", "99 %"):
        some = np.array([error for name, error in errors.items() if name.endswith(f", {quantile}")])
        found |= {quantile: float(some.mean()), f"{quantile} within 0.05": float((some <= 0.05).mean())}
    return found


def propensity(run: FinishedRun, rows: int = 30_000) -> float:
    """Return how well a classification tree tells training from synthetic rows: 0 (cannot tell) to 0.25.

    At most ``rows`` rows of each are used. See :func:`fedsynth.evaluation.detection.propensity_mse`.
    """
    return detection.propensity_mse(*run.shuffled(rows), run.seed)


def log_cluster(run: FinishedRun, rows: int = 30_000, clusters: int = 20) -> float:
    """Return the log-cluster metric of training and synthetic rows for a fixed number of ``clusters``; lower is better.

    At most ``rows`` rows of each are used. See :func:`fedsynth.evaluation.detection.log_cluster`.
    """
    return detection.log_cluster(*run.shuffled(rows), run.seed, clusters)


def likeness(run: FinishedRun, rows: int = 10_000) -> Mapping[str, float]:
    """Return five fidelity metrics by title, after a thesis on federated Bayesian networks and autoencoders.

    They compare at most ``rows`` training rows with equally many synthetic rows: mean column similarity (1 is best),
    mean Hellinger distance, pairwise correlation difference, propensity MSE and log-cluster (for the last four, lower
    is better). Unlike the thesis, the Hellinger distance uses 20 bins instead of single values, and the log-cluster 20
    clusters instead of the minimum over 2 to 20.
    """
    size = min(rows, len(run.real), len(run.synthetic))
    real, synthetic = (run.sample(table, size, run.seed) for table in (run.real, run.synthetic))
    matrices = (dependence.association_matrix(table) for table in (real, synthetic))
    return {
        "column similarity": _mean(similarity.column_similarity(real, synthetic)),
        "Hellinger distance (20 bins)": _mean(fidelity.hellinger(real, synthetic)),
        "pairwise correlation difference": dependence.pairwise_correlation_difference(*matrices),
        "propensity MSE": detection.propensity_mse(real, synthetic, run.seed),
        "log-cluster (20 clusters)": detection.log_cluster(real, synthetic, run.seed),
    }


def sdmetrics_fidelity(run: FinishedRun, test: bool = False) -> Mapping[str, float]:
    """Return FedTabDiff's fidelity and its parts: against the training rows, or with ``test`` against the test rows.

    The fidelity is the mean of column similarity and pair similarity, 0 to 1 (equal);
    :func:`fedsynth.evaluation.similarity.sdmetrics_fidelity` defines the keys. Raises :class:`Unsupported` with
    ``test`` if there are no test rows.
    """
    return similarity.sdmetrics_fidelity(run.test if test else run.real, run.synthetic)


def evaluation(
    run: FinishedRun, metrics: Sequence[str] | None = None, suites: Sequence[str] = ("default",), repeats: int = 5
) -> Mapping[str, float]:
    """Return the scores of ``fedsynth evaluate`` by title, and the references from real rows as "title, real rows".

    ``metrics``, ``suites`` and ``repeats`` are options of :func:`fedsynth.evaluation.evaluate.evaluate`; ``metrics`` is
    by default all that the rows allow. Training rows are ``run.real``, of which attacks look only for those of the
    sites that took part (``run.sites``); hold-out rows are the test rows. Runs of several methods on the same rows
    share the references of fidelity, utility and attribute disclosure, which are cached in the process.
    """
    log_likelihood = None if run.synthesizer is None else run.synthesizer.log_likelihood
    found = evaluate(
        run,
        metrics=metrics,
        target=run.target,
        log_likelihood=log_likelihood,
        fitted=concatenate(run.sites) if 0 < sum(map(len, run.sites)) < len(run.real) else None,
        suites=suites,
        repeats=repeats,
        seed=run.seed,
    )
    synthetic = {score.name: score.synthetic.value for score in found.scores}
    return synthetic | {f"{score.name}, real rows": score.reference.value for score in found.scores}


# ---------------------------------------------------------------------------------------------------------------------
# Utility


def gradient_boosting(run: FinishedRun, rows: int = 50_000) -> float:
    """Return the AUC on test rows of gradient boosting that learned the target from at most ``rows`` synthetic rows.

    See :func:`fedsynth.evaluation.utility.train_synthetic_test_real`. Raises :class:`Unsupported` without test rows or
    a target, and if the test rows have a single class.
    """
    return _boosted(run, run.synthetic, rows, run.seed)


def relative_auc(run: FinishedRun, rows: int = 50_000) -> float:
    """Return the AUC's gain over guessing from synthetic rows, relative to that from real rows: 1 is as good as real.

    That is (synthetic - 0.5) / (real - 0.5), where the learner of :func:`gradient_boosting` has learned the target from
    at most ``rows`` synthetic or training rows; nan if training rows teach it nothing. Runs on the same rows share the
    AUC of the training rows, which is cached in the process. Raises the errors of :func:`gradient_boosting`.
    """
    gains = [_boosted(run, table, rows, seed) - 0.5 for table, seed in ((run.synthetic, run.seed), (run.real, 0))]
    return gains[0] / gains[1] if gains[1] > 0 else math.nan


def _boosted(run: FinishedRun, table: Table, rows: int, seed: int) -> float:
    return cached(
        (table, run.test),
        ("gradient boosting", run.label, rows, seed),
        lambda: train_synthetic_test_real(table, run.test, run.label, seed, rows).auc,
    )


def learning(run: FinishedRun, suite: str = "default", rows: int | None = None) -> Mapping[str, float]:
    """Return each score of each learner of a suite on the test rows, after training on synthetic rows.

    Keys are "score, learner". ``suite`` names a set of learners of :data:`fedsynth.evaluation.suites.SUITES`; they
    learn the target from at most ``rows`` synthetic rows (default: all). Raises :class:`Unsupported` without test rows
    or a target, and the errors of :func:`fedsynth.evaluation.utility.utility`.
    """
    scores = _taught(run, suite, rows)
    return {f"{score}, {learner}": value for score, by in scores.items() for learner, value in by.items()}


def mean_learning(
    run: FinishedRun, score: str = "", suite: str = "default", rows: int | None = None
) -> float | Mapping[str, float]:
    """Return the mean over a suite's learners of the score named ``score``; of every score, by name, if it is empty.

    The learners are trained on synthetic rows and scored on test rows; ``suite``, ``rows`` and errors are those of
    :func:`learning`. Raises ``KeyError`` for a score that the suite does not have.
    """
    found = {name: _mean(by_learner) for name, by_learner in _taught(run, suite, rows).items()}
    return found[score] if score else found


def _taught(run: FinishedRun, suite: str, rows: int | None) -> Mapping[str, Mapping[str, float]]:
    train = run.synthetic
    if rows is not None:
        train = train.take(np.random.default_rng(run.seed).permutation(len(train))[:rows])
    return scores_by_learner(run.real, train, run.test, run.real.schema.names[run.label], suite, run.seed)


def federated_training(
    run: FinishedRun,
    algorithm: str = "FedAvg",
    learner: str = "sane",
    score: str = "accuracy",
    sites: str = "together",
    **options: int,
) -> Mapping[str, float]:
    """Return the scores of a classifier that sites train federatedly on their own rows plus the synthetic rows.

    - ``algorithm``: "FedAvg", "FedProx" or "FedMix". ``learner``: "sane" or "published", with its fields as ``options``
      (:class:`~fedsynth.evaluation.augmentation.training.SaneMLP`,
      :class:`~fedsynth.evaluation.augmentation.training.PublishedMLP`).
    - ``score``: the score to report, a field of :class:`~fedsynth.evaluation.augmentation.scores.ClassifierScores`.
    - ``sites``: how sites train: "together", "alone" (the mean over the sites) or "pooled" (one site with all rows; a
      learner with fixed steps per round takes as many as all sites take). For a floor (rows that no method generated),
      nothing is appended to the sites' rows.

    Keys of the result: "last" is the test score after the last round, "selected" that after the round with the largest
    score on the sites' held-out rows, "maximum" the largest test score of any round: as published, but biased upwards.
    "selected macro F1" is the macro F1 on test rows after the round with the largest macro F1 on held-out rows. Both
    selected scores are nan without held-out rows, and if sites train alone. "CPU s" is the CPU time of training in
    seconds. Raises :class:`Unsupported` without PyTorch (the extra ``deep``) or test rows, :class:`InvalidParameter`
    for an unknown algorithm, learner, score or value of ``sites``, and the errors of
    :func:`~fedsynth.evaluation.augmentation.training.train`.
    """
    from fedsynth.evaluation.augmentation import training

    importlib.import_module("torch").set_num_threads(1)  # after the import above, whose error names the extra
    learners: Mapping[str, Any] = {"sane": training.SaneMLP, "published": training.PublishedMLP}
    algorithms = {one.name: one for one in (training.fedavg(), training.fedprox(), training.fedmix())}
    for given, known in ((learner, learners), (algorithm, algorithms), (score, _SCORES), (sites, _TRAINED)):
        if given not in known:
            raise InvalidParameter(f"federated-training: no {given!r}; {nearest(given, known)}")
    network, how = learners[learner](**options), algorithms[algorithm]
    tables = list(run.sites) if run.synthesizer is None else append_rows(run.sites, run.synthetic)
    groups, held = [tables], run.held
    if sites == "alone":
        groups, held = [[table] for table in tables], ()
    elif sites == "pooled":
        groups = [[concatenate(tables)]]
        if isinstance(network, training.SaneMLP):
            network = replace(network, steps=network.steps * len(tables))
    began = time.process_time()
    courses = [
        training.train(group, run.test, run.target, algorithm=how, learner=network, seed=run.seed, held=held)
        for group in groups
    ]
    return {**_courses(courses, score), "CPU s": time.process_time() - began}


def commonest_class(run: FinishedRun, score: str = "accuracy") -> Mapping[str, float]:
    """Return the floor of :func:`federated_training`: the scores of always guessing the sites' commonest class.

    ``score`` is a field of :class:`~fedsynth.evaluation.augmentation.scores.ClassifierScores`. The keys are "last",
    "selected", "maximum" and "selected macro F1"; the first and third are equal, the others nan.
    """
    return _courses([TrainingCurve((majority(run.sites, run.test, run.target),))], score)


def _courses(courses: list[TrainingCurve], score: str) -> dict[str, float]:
    chosen = [course.selected for course in courses if course.validation]
    ways = {
        "last": [course.last for course in courses],
        "selected": chosen,
        "maximum": [course.published_maximum_over_test_rounds for course in courses],
    }
    found = {way: _average([asdict(one)[score] for one in scores]) for way, scores in ways.items()}
    return {**found, "selected macro F1": _average([one.macro_f1 for one in chosen])}


# ---------------------------------------------------------------------------------------------------------------------
# Privacy


def membership_inference(
    run: FinishedRun, rows: int = 2_000, points: int = 20_000, alike: str = ""
) -> Mapping[str, float]:
    """Return the success of each membership attack of ``fedsynth evaluate``: training rows against test rows.

    Each attack has two keys, as in "AUC, DOMIAS" and "TPR at FPR 1 %, DOMIAS": its AUC (0.5 is guessing) and its
    true-positive rate at a false-positive rate of 1 %. At most ``rows`` training rows and as many test rows are
    attacked, with at most ``points`` synthetic rows. The members are the rows of ``run.sites``: of one site only, if
    the method saw only that. If sites differ in a column, name it as ``alike``: only test rows with a value of that
    column that occurs among the members then take part. Otherwise the attack would tell sites apart instead of members
    from non-members. Raises :class:`Unsupported` without test rows, or with too few rows.
    """
    members = concatenate(run.sites)
    nonmembers = run.test
    if alike:
        column = run.real.schema.index(alike)
        nonmembers = nonmembers.take(np.isin(nonmembers.codes[column], members.codes[column]))
    found = _attacked(replace(run, real=members, holdout=nonmembers), "membership-inference", rows, points)
    return {score.name.removeprefix("membership "): score.synthetic.value for score in found}


def distance_to_real(run: FinishedRun, rows: int = 2_000, points: int = 20_000) -> Mapping[str, float]:
    """Return the median distance of synthetic rows to the closest training row (DCR), and that of test rows.

    The keys are "" (synthetic rows) and "real rows" (test rows), the latter as the reference. At most ``rows`` rows of
    each kind are compared with at most ``points`` training rows (exact matches are sought among all). A differing
    category counts 1, a number counts its difference as a fraction of the range. Without test rows, one half of the
    training rows takes their place, and distances are to the other half. The median does not measure privacy: rows of
    pure noise lie farthest away, and a table in which a tenth of the rows are copies can keep its median.
    """
    found = {score.name: score for score in _attacked(run, "distance-to-real", rows, points)}
    return {"": found["median DCR"].synthetic.value, "real rows": found["median DCR"].reference.value}


def _attacked(run: FinishedRun, metric: str, rows: int, points: int) -> list[Score]:
    """Return the scores of one privacy metric; raises :class:`Unsupported` with the reason if there are none."""
    caps = privacy.RowLimits(queries=rows, points=points, targets=rows)
    found = privacy.privacy(run, seed=run.seed, caps=caps, metrics=(metric,))
    if not found.scores:
        raise Unsupported("; ".join(found.notes) or f"{metric} cannot be measured on these tables")
    return found.scores


# ---------------------------------------------------------------------------------------------------------------------
# Costs


def cliques(run: FinishedRun) -> float:
    """Return the number of cliques that the synthesizer reports: sets of columns modelled together.

    nan for a floor, that is rows that no method generated. Raises ``KeyError`` for a synthesizer that reports no
    cliques.
    """
    return math.nan if run.synthesizer is None else float(len(run.synthesizer.info["cliques"]))


def rounds(run: FinishedRun) -> float:
    """Return the number of exchanges with the sites: the distinct steps in the run's ledger of privacy costs.

    nan for a run without a ledger: a floor, that is rows that no method generated.
    """
    return math.nan if run.ledger is None else float(len({entry.step for entry in run.ledger.entries}))


def uploaded(run: FinishedRun) -> float:
    """Return the bytes of the sites' replies, by the run's ledger; nan for a run without one: a floor."""
    if run.ledger is None:
        return math.nan
    return float(sum(up for entry in run.ledger.entries for _, _, up in entry.messages()))


def spent(run: FinishedRun) -> float:
    """Return the epsilon, at the run's delta, that bounds the privacy cost to any one person.

    Infinite if a release has no noise; nan for a run without a ledger of privacy costs: a floor, that is rows that no
    method generated.
    """
    return math.nan if run.ledger is None else run.ledger.epsilon


METRICS: dict[str, Metric] = {
    "workload-error": workload_error,
    "likelihood": likelihood,
    "range-queries": range_queries,
    "wasserstein": _by_column(fidelity.wasserstein),
    "wasserstein-own-scales": _by_column(fidelity.wasserstein_on_own_scales),
    "wasserstein-2d": wasserstein_2d,
    "hellinger": _by_column(fidelity.hellinger),
    "jensen-shannon": _by_column(fidelity.jensen_shannon),
    "jensen-shannon-distance": _by_column(fidelity.jensen_shannon_distance),
    "column-similarity": _by_column(similarity.column_similarity),
    "coverage": _by_column(similarity.coverage),
    "sdmetrics-fidelity": sdmetrics_fidelity,
    "associations-kept": associations_kept,
    "correlations-kept": correlations_kept,
    "heaps": heaps,
    "quantiles": quantiles,
    "association-slopes": association_slopes,
    "correlation-difference": correlation_difference,
    "propensity": propensity,
    "log-cluster": log_cluster,
    "likeness": likeness,
    "evaluation": evaluation,
    "gradient-boosting": gradient_boosting,
    "relative-auc": relative_auc,
    "learning": learning,
    "mean-learning": mean_learning,
    "federated-training": federated_training,
    "commonest-class": commonest_class,
    "membership-inference": membership_inference,
    "distance-to-real": distance_to_real,
    "cliques": cliques,
    "rounds": rounds,
    "epsilon": spent,
    "upload-mib": lambda run: uploaded(run) / 2**20,
    "site-upload-mib": lambda run: uploaded(run) / 2**20 / len(run.sites),
    "servers-mib": lambda run: run.among_servers / 2**20,
    "cpu-seconds": lambda run: run.seconds,
    "peak-gb": lambda run: run.megabytes / 2**10,
}


def _fresh(run: FinishedRun) -> Table:
    return run.synthetic if run.fresh is None else run.fresh


def _mean(details: Mapping[str, float]) -> float:
    return float(np.mean(list(details.values())))


def _average(values: list[float]) -> float:
    return float(np.mean(values)) if values else math.nan
