"""Metrics of a benchmark: functions of one finished run, by the names that a specification gives them.

A metric takes a :class:`Run` and its options as keywords, and returns a number, or a mapping of numbers by what they
are. Other packages add theirs under the entry-point group ``fedsynth.metrics``; a specification may also name any
function as ``package.module:function``.
"""

from __future__ import annotations

import importlib
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from fedsynth.cliques import Workload, random_workload
from fedsynth.errors import Unsupported, nearest
from fedsynth.evaluation import dependence, detection, fidelity, privacy, similarity
from fedsynth.evaluation.augmentation.rows import append_rows
from fedsynth.evaluation.augmentation.scores import Course, majority
from fedsynth.evaluation.evaluate import evaluate
from fedsynth.evaluation.score import Evidence, Score
from fedsynth.evaluation.utility import taught, train_synthetic_test_real
from fedsynth.plugins import installed, load, named
from fedsynth.rows import Table, concatenate

if TYPE_CHECKING:
    from fedsynth.models.synthesizer import Synthesizer
    from fedsynth.privacy.ledger import Ledger

Metric = Callable[..., float | Mapping[str, float]]


@dataclass(frozen=True, eq=False)
class Run(Evidence):
    """One finished run of a benchmark, and all that it can be judged by.

    ``real`` are all training rows, ``holdout`` the test rows. ``fresh`` are as many of the synthetic rows as there are
    test rows. ``sites`` hold what each site was asked about, ``held`` the rows that each kept back. A floor has no
    ``synthesizer`` and no ``ledger``. ``uploaded`` counts bytes, ``among_servers`` those that three servers
    send each other and the coordinator, ``seconds`` is CPU time of fit and rows, ``megabytes`` the process's peak while
    they were made.
    """

    fresh: Table | None = None
    sites: tuple[Table, ...] = ()
    held: tuple[Table, ...] = ()
    target: str = ""
    workload: Workload = ()
    seed: int = 0
    synthesizer: Synthesizer | None = None
    ledger: Ledger | None = None
    uploaded: float = math.nan
    among_servers: float = 0.0
    seconds: float = math.nan
    megabytes: float = math.nan

    @property
    def test(self) -> Table:
        """The test rows; raises :class:`Unsupported` where there are none."""
        if self.holdout is None:
            raise Unsupported("this metric needs rows that nobody trained on; give the data set a split")
        return self.holdout

    @property
    def label(self) -> int:
        """Position of the target; raises :class:`Unsupported` where none is named."""
        if not self.target:
            raise Unsupported("this metric needs a column to predict; give the data set a target")
        return self.real.schema.index(self.target)

    def shuffled(self, rows: int) -> tuple[Table, Table]:
        """Return equally many real and synthetic rows in random order, at most ``rows`` of each."""
        few = min(rows, len(self.real), len(self.synthetic))
        rng = np.random.default_rng(self.seed)
        real, synthetic = (table.take(rng.permutation(len(table))[:few]) for table in (self.real, self.synthetic))
        return real, synthetic


def find_metric(name: str) -> Metric:
    """Return a metric: one of ``METRICS``, an entry point of another package, or ``package.module:function``."""
    if ":" in name:
        return cast(Metric, named(name))
    other = installed("fedsynth.metrics", METRICS, name)
    if name in METRICS:
        return METRICS[name]
    if name in other:
        return cast(Metric, load(other[name]))
    raise Unsupported(f"no metric named {name!r}; {nearest(name, METRICS)}, or name package.module:function")


# ---------------------------------------------------------------------------------------------------------------------
# Floors: rows that no method made, to see what a figure is worth. Each returns the real rows and those beside them.

Floor = Callable[[Table, Table, np.random.Generator], tuple[Table, Table]]


def uniform_rows(train: Table, test: Table, rng: np.random.Generator) -> tuple[Table, Table]:
    """Every code of every column equally often: what is known without any data."""
    codes = tuple(rng.integers(0, size, len(train)).astype(np.min_scalar_type(size - 1)) for size in train.schema.sizes)
    return train, train.schema.encode(train.schema.decode(codes, rng))


def one_value(train: Table, test: Table, rng: np.random.Generator) -> tuple[Table, Table]:
    """One row over and over: each column's commonest category, or its mean."""
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
    """Return the metric that averages a distance over columns, to the training rows or to the ``test`` rows."""

    def metric(run: Run, test: bool = False) -> float:
        return _mean(distance(run.test if test else run.real, run.synthetic))

    return metric


def workload_error(run: Run, order: int | None = None, count: int = 64) -> float:
    """Return the mean L1 distance of the workload's marginals on the training rows, 0 to 2.

    With an ``order``, it is that of so many random marginals of that order in place of the workload's.
    """
    workload = run.workload if order is None else random_workload(len(run.real.schema.sizes), order, count, 123)
    return fidelity.workload_error(run.real, run.synthetic, workload).mean


def likelihood(run: Run, floor: float = 1e-30) -> Mapping[str, float]:
    """Return the negative log-likelihood of a test row in nats, and the same with each row's probability floored."""
    log_likelihood = None if run.synthesizer is None else run.synthesizer.log_likelihood
    if log_likelihood is None:
        raise Unsupported("only a graphical model gives rows a likelihood; leave this metric out for other methods")
    heard = log_likelihood(run.test)
    return {"NLL": float(-heard.mean()), "floored": float(-np.maximum(heard, math.log(floor)).mean())}


def range_queries(run: Run, queries: int = 1000, order: int = 2) -> float:
    """Return the mean absolute error of random range queries on the test rows."""
    return fidelity.range_query_error(run.test, _fresh(run), order, queries, run.seed)


def wasserstein_2d(run: Run, rows: int | None = None) -> float:
    """Return the mean exact Wasserstein distance of pairs of numbers, over at most ``rows`` test rows."""
    pairs = list(itertools.combinations(sorted(run.test.numbers), 2))
    return _mean(fidelity.wasserstein_2d(run.test, _fresh(run), pairs, rows or len(run.test), run.seed))


def association_slopes(run: Run) -> Mapping[str, float]:
    """Return the slopes of synthetic on real association; 1 keeps all of it."""
    return dependence.association_slopes(run.real, run.synthetic)


def correlation_difference(run: Run) -> float:
    """Return the Frobenius norm of the difference of the associations."""
    matrices = (dependence.association_matrix(table) for table in (run.real, run.synthetic))
    return dependence.pairwise_correlation_difference(*matrices)


def propensity(run: Run, rows: int = 30_000) -> float:
    """Return the propensity mean squared error of trees that see at most ``rows`` rows a side."""
    return detection.propensity_mse(*run.shuffled(rows), run.seed)


def log_cluster(run: Run, rows: int = 30_000, clusters: int = 20) -> float:
    """Return the log-cluster metric for a fixed number of clusters, over at most ``rows`` rows a side."""
    return detection.log_cluster(*run.shuffled(rows), run.seed, clusters)


def likeness(run: Run, rows: int = 10_000) -> Mapping[str, float]:
    """Return the metrics of likeness of the FedBN and FedVAE thesis, the sound form of each."""
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


def sdmetrics_fidelity(run: Run, test: bool = False) -> Mapping[str, float]:
    """Return FedTabDiff's fidelity and its parts, on the training rows or on the ``test`` rows."""
    return similarity.sdmetrics_fidelity(run.test if test else run.real, run.synthetic)


def evaluation(
    run: Run, metrics: Sequence[str] | None = None, suites: Sequence[str] = ("default",), repeats: int = 5
) -> Mapping[str, float]:
    """Return the scores of ``fedsynth evaluate``, and what real rows score in place of the synthetic ones.

    ``metrics`` are those of :func:`fedsynth.evaluation.evaluate.evaluate`, by default all that the rows allow. Runs of
    several methods on the same rows share the references, which are computed once in a process.
    """
    log_likelihood = None if run.synthesizer is None else run.synthesizer.log_likelihood
    found = evaluate(
        run,
        metrics=metrics,
        target=run.target,
        log_likelihood=log_likelihood,
        suites=suites,
        repeats=repeats,
        seed=run.seed,
    )
    synthetic = {score.name: score.synthetic.value for score in found.scores}
    return synthetic | {f"{score.name}, real rows": score.reference.value for score in found.scores}


# ---------------------------------------------------------------------------------------------------------------------
# Utility


def gradient_boosting(run: Run, rows: int = 50_000) -> float:
    """Return the AUC on test rows of gradient boosting, trained on at most ``rows`` synthetic rows."""
    return train_synthetic_test_real(run.synthetic, run.test, run.label, run.seed, rows).auc


def learning(run: Run, suite: str = "default", rows: int | None = None) -> Mapping[str, float]:
    """Return each score of each learner of a suite on the test rows, trained on at most ``rows`` synthetic rows."""
    scores = _taught(run, suite, rows)
    return {f"{score}, {learner}": value for score, by in scores.items() for learner, value in by.items()}


def mean_learning(
    run: Run, score: str = "", suite: str = "default", rows: int | None = None
) -> float | Mapping[str, float]:
    """Return one score of a suite, or without ``score`` each of them: the mean over its learners."""
    found = {name: _mean(by_learner) for name, by_learner in _taught(run, suite, rows).items()}
    return found[score] if score else found


def _taught(run: Run, suite: str, rows: int | None) -> Mapping[str, Mapping[str, float]]:
    train = run.synthetic
    if rows is not None:
        train = train.take(np.random.default_rng(run.seed).permutation(len(train))[:rows])
    return taught(run.real, train, run.test, run.real.schema.names[run.label], suite, run.seed)


def federated_training(
    run: Run,
    algorithm: str = "FedAvg",
    learner: str = "sane",
    score: str = "accuracy",
    sites: str = "together",
    **options: int,
) -> Mapping[str, float]:
    """Return how a classifier does that the sites train together on their own rows and the synthetic ones below them.

    A floor's rows are not appended. ``sites`` train "together", "alone" (the mean over the sites) or "pooled": then a
    pass is as many steps as all of them take. "last" is the score after the last round, "selected" in the round that
    the rows held out at the sites choose, "maximum" the largest test score of any round: as published, and no honest
    figure. ``options`` are those of the learner. Needs the extra ``deep``.
    """
    from fedsynth.evaluation.augmentation import training

    importlib.import_module("torch").set_num_threads(1)  # after the import that says which extra it comes with
    network: Any = {"sane": training.SaneMLP, "published": training.PublishedMLP}[learner](**options)
    how = {one.name: one for one in (training.fedavg(), training.fedprox(), training.fedmix())}[algorithm]
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


def commonest_class(run: Run, score: str = "accuracy") -> Mapping[str, float]:
    """Return the floor of a federated classifier: what always answering with the commonest class scores."""
    return _courses([Course((majority(run.sites, run.test, run.target),))], score)


def _courses(courses: list[Course], score: str) -> dict[str, float]:
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


def membership_inference(run: Run, rows: int = 2_000, points: int = 20_000, alike: str = "") -> Mapping[str, float]:
    """Return how well each attack of ``fedsynth evaluate`` tells rows that the method saw from test rows.

    The AUC of each, 0.5 for guessing, and the true positives at 1 % false ones. At most ``rows`` of either kind are
    asked about, among ``points`` synthetic rows. A method that saw one site is asked about that site's rows; where
    sites differ in a column, ``alike`` names it: then only those test rows take part that have one of its values at
    that site, since an attack would otherwise tell sites apart instead of members from strangers.
    """
    members = concatenate(run.sites)
    strangers = run.test
    if alike:
        column = run.real.schema.index(alike)
        strangers = strangers.take(np.isin(strangers.codes[column], members.codes[column]))
    found = _attacked(replace(run, real=members, holdout=strangers), "membership-inference", rows, points)
    return {score.name.removeprefix("membership "): score.synthetic.value for score in found}


def distance_to_real(run: Run, rows: int = 2_000, points: int = 20_000) -> Mapping[str, float]:
    """Return the median distance of synthetic rows to the closest training row, and that of test rows beside it.

    At most ``rows`` of either ask among ``points`` training rows of all sites; a category that differs counts 1, a
    number its share of the range. No sign of privacy: rows of pure noise are farthest of all, and a table may copy a
    tenth of the rows and keep its median.
    """
    found = {score.name: score for score in _attacked(run, "distance-to-real", rows, points)}
    return {"": found["median DCR"].synthetic.value, "real rows": found["median DCR"].reference.value}


def _attacked(run: Run, metric: str, rows: int, points: int) -> list[Score]:
    """Return the scores of one privacy metric; raises :class:`Unsupported` with the reason where there are none."""
    caps = privacy.Caps(queries=rows, points=points, suspects=rows)
    found = privacy.privacy(run, seed=run.seed, caps=caps, metrics=(metric,))
    if not found.scores:
        raise Unsupported("; ".join(found.notes) or f"{metric} cannot be measured on these tables")
    return found.scores


# ---------------------------------------------------------------------------------------------------------------------
# Costs


def cliques(run: Run) -> float:
    """Return how many tables of several columns the synthesizer was made of."""
    return math.nan if run.synthesizer is None else float(len(run.synthesizer.info["cliques"]))


def rounds(run: Run) -> float:
    """Return how often sites were asked."""
    return math.nan if run.ledger is None else float(len({entry.step for entry in run.ledger.entries}))


def spent(run: Run) -> float:
    """Return the epsilon of the site that was charged most; infinite where a release has no noise."""
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
    "association-slopes": association_slopes,
    "correlation-difference": correlation_difference,
    "propensity": propensity,
    "log-cluster": log_cluster,
    "likeness": likeness,
    "evaluation": evaluation,
    "gradient-boosting": gradient_boosting,
    "learning": learning,
    "mean-learning": mean_learning,
    "federated-training": federated_training,
    "commonest-class": commonest_class,
    "membership-inference": membership_inference,
    "distance-to-real": distance_to_real,
    "cliques": cliques,
    "rounds": rounds,
    "epsilon": spent,
    "upload-mib": lambda run: run.uploaded / 2**20,
    "site-upload-mib": lambda run: run.uploaded / 2**20 / len(run.sites),
    "servers-mib": lambda run: run.among_servers / 2**20,
    "cpu-seconds": lambda run: run.seconds,
    "peak-gb": lambda run: run.megabytes / 2**10,
}


def _fresh(run: Run) -> Table:
    return run.synthetic if run.fresh is None else run.fresh


def _mean(details: Mapping[str, float]) -> float:
    return float(np.mean(list(details.values())))


def _average(values: list[float]) -> float:
    return float(np.mean(values)) if values else math.nan
