"""Is federation worth it? The same method over sites, on pooled rows, and at each site alone, on the same splits.

The comparison of the FedBN and FedVAE thesis, for any method: pooled rows are the upper bound that privacy forbids,
a site alone is what each has without the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from fedsynth.data.partition import Partition, split
from fedsynth.errors import InvalidParameter
from fedsynth.evaluation import detection, fidelity, similarity
from fedsynth.evaluation.dependence import association_matrix, pairwise_correlation_difference
from fedsynth.evaluation.score import Evidence, Trial
from fedsynth.evaluation.utility import taught
from fedsynth.federation.federation import Progress, silent
from fedsynth.federation.simulation import federate
from fedsynth.federation.trust import Trust
from fedsynth.federation.trust.trusted import TrustedServer
from fedsynth.methods import Method
from fedsynth.privacy.cost import Budget
from fedsynth.table import Table, concatenate

ARMS = ("federated", "pooled", "local")
Values = Mapping[str, float]
Judge = Callable[[Evidence, int], Values]
Test = Callable[[Sequence[float], Sequence[float]], float]


def student(one: Sequence[float], two: Sequence[float]) -> float:
    """Return the p-value of the two-sided t-test with equal variances, as in the thesis."""
    return _p(one, two, lambda: stats.ttest_ind(one, two, equal_var=True).pvalue)


def welch(one: Sequence[float], two: Sequence[float]) -> float:
    """Return the p-value of the two-sided t-test with unequal variances."""
    return _p(one, two, lambda: stats.ttest_ind(one, two, equal_var=False).pvalue)


def paired(one: Sequence[float], two: Sequence[float]) -> float:
    """Return the p-value of the two-sided paired t-test: both arms of a repeat share their split."""
    return _p(np.subtract(one, two).tolist(), [0.0], lambda: stats.ttest_rel(one, two).pvalue)


TESTS: dict[str, Test] = {"student": student, "welch": welch, "paired": paired}


def _p(one: Sequence[float], two: Sequence[float], test: Callable[[], Any]) -> float:
    """Return the test's p-value; values without any spread are equal (1) or are not (0)."""
    if not np.ptp(one) and not np.ptp(two):
        return float(one[0] == two[0])
    return float(test())


@dataclass(frozen=True)
class Line:
    """One metric: each arm's values by repeat, what real rows score in their place, and how sure a difference is.

    ``reference`` is a real hold-out's score, or that of classifiers trained on the real rows.
    ``p`` maps "pooled" and "local" to Holm-adjusted p-values over all lines of its comparison.
    """

    metric: str
    values: Mapping[str, tuple[float, ...]]
    reference: tuple[float, ...]
    p: Mapping[str, float]


@dataclass(frozen=True)
class Comparison:
    """The lines of a comparison, and its setting in words."""

    setting: str
    lines: tuple[Line, ...]

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        lines = [
            {
                "metric": line.metric,
                **{arm: list(line.values[arm]) for arm in ARMS},
                "real rows": list(line.reference),
                "p": dict(line.p),
            }
            for line in self.lines
        ]
        return {"setting": self.setting, "lines": lines}

    def __str__(self) -> str:
        """Return the table: mean ± standard deviation, with stars where an arm differs from the federated one."""
        rows: list[tuple[str, ...]] = [("metric", *ARMS, "real rows")]
        for line in self.lines:
            cells = [_cell(line.values[arm]) + _stars(line.p.get(arm, 1.0)) for arm in ARMS]
            rows.append((line.metric, *cells, _cell(line.reference)))
        widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
        table = "\n".join(
            "  ".join(f"{cell:{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows
        )
        return (
            f"{self.setting}\n{table}\n"
            "* p < 0.05, ** p < 0.01, *** p < 0.001 against federated, Holm-adjusted over the metrics. "
            "Repeats share rows:\nread the stars as a guide, not as a proof."
        )


def compare(
    table: Table,
    method: Method,
    budget: Budget,
    *,
    trust: Trust,
    sites: int,
    partition: Partition,
    judge: Judge,
    exact: bool = False,
    test: Test = welch,
    repeats: int = 5,
    holdout: float = 0.2,
    seed: int = 0,
    progress: Progress = silent,
) -> Comparison:
    """Run ``method`` federated, pooled and at each site alone, ``repeats`` times, and test the differences.

    Each repeat holds out a random share of the rows and splits the others over ``sites``. Every arm gets the same
    rows and the same budget, draws as many rows as all sites have together, and is judged on the same real rows; the
    value of "local" is the mean over the sites. Pooled rows and a site alone have nobody to hide from: they run under a
    trusted server, whatever ``trust`` the sites have. ``exact`` lets a method that is not private ask for exact sums.
    ``judge`` returns metrics by name. All noise is seeded.
    """
    if repeats < 2:
        raise InvalidParameter(f"repeats must be at least 2 to see a spread, not {repeats}")
    found: dict[str, list[list[Values]]] = {arm: [] for arm in ARMS}
    reference: list[Values] = []
    total, done = repeats * (sites + 2), 0
    for repeat in range(repeats):
        rng = np.random.default_rng([seed, repeat])
        held = rng.permutation(len(table)) < round(holdout * len(table))
        parts = split(table.take(~held), sites, partition, rng)
        train, rest = concatenate(parts), table.take(held)
        arms = {"federated": [parts], "pooled": [[train]], "local": [[part] for part in parts if len(part)]}
        for arm, runs in arms.items():
            values = []
            for number, tables in enumerate(runs):
                run_seed = int(rng.integers(2**31))
                chosen = trust if arm == "federated" else TrustedServer()
                federation = federate(tables, table.schema, budget, trust=chosen, seed=run_seed, exact=exact)
                frame = method.fit(federation).sample(len(train), rng)
                values.append(judge(Evidence(train, table.schema.encode(frame), rest), repeat))
                done += 1
                progress(f"comparing: {arm}", number + 1, len(runs))
                progress("all runs", done, total)
            found[arm].append(values)
        # What real rows score: the real classifiers' utility, and the hold-out's fidelity in place of the copy's.
        reference.append({**judge(Evidence(train, train, rest), repeat), **judge(Evidence(train, rest), repeat)})
    progress("all runs", total, total)
    cost = "NOT PRIVATE" if exact else f"epsilon {budget.epsilon:g}, delta {budget.delta:g}"
    setting = f"{type(method).__name__}, {sites} sites, {cost}, trust {trust.name}, {repeats} repeats"
    return Comparison(setting, _lines(found, reference, test))


def thesis_judge(target: str, max_rows: int = 10_000) -> Judge:
    """Return the metrics of the FedBN and FedVAE thesis, the sound form of each; utility only with a ``target``."""

    def judge(evidence: Evidence, repeat: int) -> Values:
        trial = _trial(evidence, max_rows, repeat)
        real, synthetic = trial.real, trial.synthetic
        values = {
            "column similarity": _mean(similarity.column_similarity(real, synthetic)),
            "Hellinger distance (20 bins)": _mean(fidelity.hellinger(real, synthetic)),
            "pairwise correlation difference": pairwise_correlation_difference(
                association_matrix(real), association_matrix(synthetic)
            ),
            "propensity MSE": detection.propensity_mse(real, synthetic, repeat),
            "log-cluster (20 clusters)": detection.log_cluster(real, synthetic, repeat),
        }
        if target and evidence.holdout is not None:
            scores = taught(real, synthetic, evidence.holdout, target, "thesis", repeat)
            values |= {f"{score}, {one}": value for score, by in scores.items() for one, value in by.items()}
        return values

    return judge


def _trial(evidence: Evidence, max_rows: int, seed: int) -> Trial:
    """Return the training rows and as many synthetic ones (at most ``max_rows``)."""
    size = min(max_rows, len(evidence.real), len(evidence.synthetic))
    real, synthetic = (evidence.sample(table, size, seed) for table in (evidence.real, evidence.synthetic))
    return Trial(real, real, synthetic)


def _lines(found: Mapping[str, list[list[Values]]], reference: list[Values], test: Test) -> tuple[Line, ...]:
    metrics = list(found["federated"][0][0])
    values = {
        metric: {arm: tuple(float(np.mean([one[metric] for one in repeat])) for repeat in found[arm]) for arm in ARMS}
        for metric in metrics
    }
    p = {
        arm: _holm([test(values[metric]["federated"], values[metric][arm]) for metric in metrics])
        for arm in ("pooled", "local")
    }
    return tuple(
        Line(
            metric,
            values[metric],
            tuple(one[metric] for one in reference),
            {arm: p[arm][at] for arm in p},
        )
        for at, metric in enumerate(metrics)
    )


def _holm(p: list[float]) -> list[float]:
    """Return p-values adjusted for their number (Holm 1979)."""
    order = np.argsort(p, kind="stable")
    scaled = np.maximum.accumulate(np.array(p)[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(scaled, 1.0)
    return [float(one) for one in adjusted]


def _cell(values: Sequence[float]) -> str:
    spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread}"


def _stars(p: float) -> str:
    return "***" if p < 0.001 else "**" if p < 0.01 else "*" if p < 0.05 else ""


def _mean(details: Values) -> float:
    return float(np.mean(list(details.values())))
