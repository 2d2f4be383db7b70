"""The metrics of benchmarks: functions of a finished run, by name.

A metric is a function of a :class:`FinishedRun`, with options as keywords, and returns a number, or a mapping from
names to numbers. Other packages add theirs under the entry-point group ``fedsynth.metrics``; a specification may also
name any function as ``package.module:function``.
"""

from __future__ import annotations

import importlib
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from fedsynth import rows
from fedsynth.cliques import Workload, random_workload
from fedsynth.errors import InvalidParameter, Unsupported, nearest
from fedsynth.evaluation import dependence, detection, fidelity, privacy, similarity
from fedsynth.evaluation.evaluate import evaluate
from fedsynth.evaluation.metric import Comparisons, Metric
from fedsynth.evaluation.metrics import METRICS, difference_of_matrices
from fedsynth.evaluation.references import cached
from fedsynth.evaluation.score import EvaluationTables, Score, value_of
from fedsynth.evaluation.settings import EvaluationSettings
from fedsynth.evaluation.utility import scores_by_learner, train_synthetic_test_real
from fedsynth.plugins import installed, load, named
from fedsynth.rows import Table, concatenate

if TYPE_CHECKING:
    from fedsynth.evaluation.augmentation.scores import TrainingCurve
    from fedsynth.models.synthesizer import Synthesizer
    from fedsynth.privacy.ledger import Ledger

Measure = Callable[..., float | Mapping[str, float]]
_TRAINED = ("together", "alone", "pooled")  # how sites train in `federated_training`


@dataclass(frozen=True, eq=False)
class FinishedRun(EvaluationTables):
    """One finished run of a benchmark: the input of every metric.

    - ``real``: all training rows of the data set, also those of sites that took no part or held them out; ``holdout``:
      the test rows, if any. For the floor "other half", ``real`` is every second training row, ``synthetic`` the
      others.
    - ``fresh``: a random sample of the synthetic rows, as many as there are test rows (at most all); None without
      these.
    - ``sites``: the rows that each site trained on; ``held``: for each site of the partition, the rows that it held
      out; empty if none did.
    - ``workload``: the marginals of interest, each given by its column positions; ``seed``: that of the run.
    - ``synthesizer``, ``ledger``: the fitted model, and the privacy cost of its releases. A floor (rows that no method
      generated, :mod:`fedsynth.bench.floors`) has neither.
    - ``among_servers``: under the trust "three-servers", the bytes between these servers and the coordinator, else 0.
    - ``seconds``: CPU time of fitting and sampling; ``megabytes``: peak memory of the process meanwhile, in MiB.

    All tables are encoded as sites store their rows, and ``agreed`` is None.
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


def find_metric(name: str) -> Measure:
    """Return the metric that a specification names: a function of a :class:`FinishedRun`, and options as keywords.

    ``name`` is a key of :data:`MEASURES`, a metric of evaluations (:data:`~fedsynth.evaluation.metrics.METRICS`), an
    entry point in the group ``fedsynth.metrics``, or ``package.module:function``. A metric of evaluations (also of
    another package) is the mean of its comparison of the run's training rows (with the option ``test``, its test rows)
    with the synthetic rows, or else the scores of an evaluation. Raises :class:`Unsupported` for another name, and for
    a function that cannot be imported.
    """
    if ":" in name:
        return _measure(named(name), name)
    known = {**METRICS, **MEASURES}
    other = installed("fedsynth.metrics", known, name)
    if name in known:
        return MEASURES.get(name) or _measure(METRICS[name], name)
    if name in other:
        return _measure(load(other[name]), name)
    raise Unsupported(
        f"no metric named {name!r}; for one of your own write package.module:function; {nearest(name, known)}"
    )


def _measure(found: Any, name: str) -> Measure:
    """Return the measure of a metric of evaluations, or a function as it is."""
    if not isinstance(found, Metric):
        return cast(Measure, found)
    return partial(evaluation, metrics=[name]) if found.comparisons is None else partial(_compared, found.comparisons)


def _compared(comparisons: Comparisons, run: FinishedRun, test: bool = False) -> float | Mapping[str, float]:
    real = run.test if test else run.real
    found = {one.part: value_of(one.compare(real, run.synthetic)) for one in comparisons(real, run.seed)}
    return found.get("", found)


# ---------------------------------------------------------------------------------------------------------------------
# Fidelity


def workload_error(run: FinishedRun, order: int | None = None, count: int = 64) -> float:
    """Return the mean L1 distance (0 to 2) of the synthetic marginals of ``run.workload`` to those of training rows.

    With an ``order``, at most ``count`` random marginals of that many columns replace the workload.
    """
    workload = run.workload if order is None else random_workload(len(run.real.schema.sizes), order, count, 123)
    return rows.workload_error(run.real, run.synthetic, workload).mean


def likelihood(run: FinishedRun, floor: float = 1e-30) -> Mapping[str, float]:
    """Return the mean negative log-likelihood of a test row under the run's model in nats, under the key "NLL".

    Under the key "floored", each row has at least the probability ``floor``. Raises :class:`Unsupported` without a
    likelihood or test rows.
    """
    log_likelihood = None if run.synthesizer is None else run.synthesizer.log_likelihood
    if log_likelihood is None:
        raise Unsupported(
            "only graphical models of the schema's own bins have a likelihood: "
            "take bins_share = 0 with a method that has it, or leave this metric out"
        )
    heard = log_likelihood(run.test)
    return {"NLL": float(-heard.mean()), "floored": float(-np.maximum(heard, math.log(floor)).mean())}


def range_queries(run: FinishedRun, queries: int = 1000, order: int = 2) -> float:
    """Return the :func:`~fedsynth.evaluation.fidelity.range_query_error` of synthetic rows against test rows."""
    return fidelity.range_query_error(run.test, _fresh(run), order, queries, run.seed)


def wasserstein_2d(run: FinishedRun, rows: int | None = None) -> float:
    """Return the mean of :func:`fedsynth.evaluation.fidelity.wasserstein_2d` over all pairs of numeric columns.

    At most ``rows`` test and as many synthetic rows are compared (default: all test rows); time grows with their cube.
    """
    pairs = list(itertools.combinations(sorted(run.test.numbers), 2))
    return _mean(fidelity.wasserstein_2d(run.test, _fresh(run), pairs, rows or len(run.test), run.seed))


def wasserstein_on_own_scales(run: FinishedRun, test: bool = False) -> float | Mapping[str, float]:
    """Return the Wasserstein distance of numbers, each table in shares of its own range; nothing without numbers."""
    real = run.test if test else run.real
    return value_of(fidelity.wasserstein_on_own_scales(real, run.synthetic)) if real.numbers else {}


def association_slopes(run: FinishedRun) -> Mapping[str, float]:
    """Return the slopes of :func:`fedsynth.evaluation.dependence.association_slopes`, by kind of column pair."""
    return dependence.association_slopes(run.real, run.synthetic)


def quantiles(run: FinishedRun) -> Mapping[str, float]:
    """Return the :func:`~fedsynth.evaluation.fidelity.quantile_errors` of the synthetic numbers.

    Under "1 %", "50 %", "90 %" and "99 %" it is the mean over columns of numbers, under "" the mean of all, and under
    "50 % within 0.05" (and so on) the share of columns whose error is at most 0.05. Empty without numbers.
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
    """Return :func:`fedsynth.evaluation.detection.propensity_mse` of at most ``rows`` training and synthetic rows."""
    return detection.propensity_mse(*run.shuffled(rows), run.seed)


def log_cluster(run: FinishedRun, rows: int = 30_000, clusters: int = 20) -> float:
    """Return :func:`fedsynth.evaluation.detection.log_cluster` of at most ``rows`` training and synthetic rows."""
    return detection.log_cluster(*run.shuffled(rows), run.seed, clusters)


def likeness(run: FinishedRun, rows: int = 10_000) -> Mapping[str, float]:
    """Return five fidelity metrics by title, after a thesis on federated Bayesian networks and autoencoders.

    They compare at most ``rows`` training rows with equally many synthetic rows. Unlike the thesis, the Hellinger
    distance uses 20 bins instead of single values, and the log-cluster 20 clusters instead of the minimum over 2 to 20.
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
    """Return :func:`fedsynth.evaluation.similarity.sdmetrics_fidelity` against the training or ``test`` rows."""
    return similarity.sdmetrics_fidelity(run.test if test else run.real, run.synthetic)


def evaluation(
    run: FinishedRun, metrics: Sequence[str] | None = None, suites: Sequence[str] = ("default",), repeats: int = 5
) -> Mapping[str, float]:
    """Return the scores of a full ``fedsynth evaluate`` by title, and the references as "title, real rows".

    Attacks look only for the training rows of the sites that took part (``run.sites``); hold-out rows are the test
    rows. Runs on the same rows share the references, which are cached in the process.
    """
    log_likelihood = None if run.synthesizer is None else run.synthesizer.log_likelihood
    found = evaluate(
        run,
        EvaluationSettings(
            metrics=metrics, full=True, target=run.target, suites=suites, repeats=repeats, seed=run.seed
        ),
        log_likelihood=log_likelihood,
        fitted=concatenate(run.sites) if 0 < sum(map(len, run.sites)) < len(run.real) else None,
    )
    synthetic = {score.name: score.synthetic.value for score in found.scores}
    return synthetic | {f"{score.name}, real rows": score.reference.value for score in found.scores}


# ---------------------------------------------------------------------------------------------------------------------
# Utility


def gradient_boosting(run: FinishedRun, rows: int = 50_000) -> float:
    """Return the AUC of :func:`fedsynth.evaluation.utility.train_synthetic_test_real` on test rows.

    Raises :class:`Unsupported` without test rows or a target, and if the test rows have a single class.
    """
    return _boosted(run, run.synthetic, rows, run.seed)


def relative_auc(run: FinishedRun, rows: int = 50_000) -> float:
    """Return the AUC's gain over guessing from synthetic rows, relative to that from real rows: 1 is as good as real.

    That is (synthetic - 0.5) / (real - 0.5) of :func:`gradient_boosting`; nan if training rows teach it nothing. Runs
    on the same rows share the AUC of the training rows, which is cached in the process.
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

    Keys are "score, learner". The learners see at most ``rows`` synthetic rows (default: all). Raises
    :class:`Unsupported` without test rows or a target, and the errors of :func:`fedsynth.evaluation.utility.utility`.
    """
    scores = _taught(run, suite, rows)
    return {f"{score}, {learner}": value for score, by in scores.items() for learner, value in by.items()}


def mean_learning(
    run: FinishedRun, score: str = "", suite: str = "default", rows: int | None = None
) -> float | Mapping[str, float]:
    """Return the mean over a suite's learners of the score named ``score``; of every score, by name, if it is empty.

    The rest is as in :func:`learning`. Raises ``KeyError`` for a score that the suite does not have.
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
    from fedsynth.evaluation.augmentation.rows import append_rows
    from fedsynth.evaluation.augmentation.scores import ClassifierScores

    importlib.import_module("torch").set_num_threads(1)  # after the import above, whose error names the extra
    learners: Mapping[str, Any] = {"sane": training.SaneMLP, "published": training.PublishedMLP}
    algorithms = {one.name: one for one in (training.fedavg(), training.fedprox(), training.fedmix())}
    names = [one.name for one in fields(ClassifierScores)]
    for given, known in ((learner, learners), (algorithm, algorithms), (score, names), (sites, _TRAINED)):
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

    "last" and "maximum" are equal, "selected" and "selected macro F1" nan.
    """
    from fedsynth.evaluation.augmentation.scores import TrainingCurve, majority

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

    Keys are as in "AUC, DOMIAS" and "TPR at FPR 1 %, DOMIAS". At most ``rows`` training rows and as many test rows are
    attacked, with at most ``points`` synthetic rows. The members are the rows of ``run.sites``. If sites differ in a
    column, name it as ``alike``: only test rows with a value of that column that occurs among the members then take
    part; else the attack would tell sites apart instead of members from non-members. Raises :class:`Unsupported`
    without test rows, or with too few rows.
    """
    members = concatenate(run.sites)
    nonmembers = run.test
    if alike:
        column = run.real.schema.index(alike)
        nonmembers = nonmembers.take(np.isin(nonmembers.codes[column], members.codes[column]))
    found = _attacked(replace(run, real=members, holdout=nonmembers), "membership-inference", rows, points)
    return {score.name.removeprefix("membership "): score.synthetic.value for score in found}


def distance_to_real(run: FinishedRun, rows: int = 2_000, points: int = 20_000) -> Mapping[str, float]:
    """Return the median distance to the closest training row (DCR) under "", and that of test rows under "real rows".

    At most ``rows`` rows of each kind are compared with at most ``points`` training rows. Without test rows, one half
    of the training rows takes their place, and distances are to the other half. It does not measure privacy.
    """
    found = {score.name: score for score in _attacked(run, "distance-to-real", rows, points)}
    return {"": found["median DCR"].synthetic.value, "real rows": found["median DCR"].reference.value}


def _attacked(run: FinishedRun, metric: str, rows: int, points: int) -> list[Score]:
    """Return the scores of one privacy metric; raises :class:`Unsupported` with the reason if there are none."""
    caps = privacy.RowLimits(queries=rows, points=points, targets=rows)
    found = privacy.privacy(run, EvaluationSettings(seed=run.seed), caps=caps, metrics=[privacy.METRICS[metric]])
    if not found.scores:
        raise Unsupported("; ".join(found.missing) or f"{metric} cannot be measured on these tables")
    return found.scores


# ---------------------------------------------------------------------------------------------------------------------
# Costs


def cliques(run: FinishedRun) -> float:
    """Return the number of cliques that the synthesizer reports, nan for a floor; ``KeyError`` if it reports none."""
    return math.nan if run.synthesizer is None else float(len(run.synthesizer.info["cliques"]))


def rounds(run: FinishedRun) -> float:
    """Return the number of exchanges with the sites, the distinct steps in the run's ledger; nan for a floor."""
    return math.nan if run.ledger is None else float(len({entry.step for entry in run.ledger.entries}))


def uploaded(run: FinishedRun) -> float:
    """Return the bytes of the sites' replies, by the run's ledger; nan for a run without one: a floor."""
    if run.ledger is None:
        return math.nan
    return float(sum(up for entry in run.ledger.entries for _, _, up in entry.messages()))


def spent(run: FinishedRun) -> float:
    """Return the epsilon, at the run's delta, that bounds the privacy cost to any one person.

    Infinite if a release has no noise; nan for a floor.
    """
    return math.nan if run.ledger is None else run.ledger.epsilon


# ---------------------------------------------------------------------------------------------------------------------
# All metrics

MEASURES: dict[str, Measure] = {
    "quantiles": quantiles,
    "correlation-difference": lambda run: difference_of_matrices(run.real, run.synthetic),
    "propensity": propensity,
    "log-cluster": log_cluster,
    "wasserstein-2d": wasserstein_2d,
    "wasserstein-own-scales": wasserstein_on_own_scales,
    "workload-error": workload_error,
    "range-queries": range_queries,
    "likelihood": likelihood,
    "sdmetrics-fidelity": sdmetrics_fidelity,
    "association-slopes": association_slopes,
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
"""The metrics of benchmarks alone, and those of evaluations that a benchmark computes in another way."""


def _fresh(run: FinishedRun) -> Table:
    return run.synthetic if run.fresh is None else run.fresh


def _mean(details: Mapping[str, float]) -> float:
    return float(np.mean(list(details.values())))


def _average(values: list[float]) -> float:
    return float(np.mean(values)) if values else math.nan
