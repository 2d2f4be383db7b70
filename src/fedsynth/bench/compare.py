"""Compares methods, budgets and ways of training on one table: each with several seeds, scored on rows held out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fedsynth.bench import grid, spec
from fedsynth.encoding import encode
from fedsynth.errors import InvalidParameter, Unsupported
from fedsynth.evaluation.comparison import ARMS, NOT_COVERED
from fedsynth.methods import find_method
from fedsynth.progress import Progress, shown
from fedsynth.rows import Table
from fedsynth.runs.job import Job, budget_of
from fedsynth.schema import Schema
from fedsynth.trusts import default_trust

_SCORES = ["metric", "method", "trust", "epsilon", "arm"]


@dataclass(frozen=True, repr=False)
class MethodComparison:
    """Scores of methods on rows held out, of which none is private: they are computed from real rows.

    ``frame`` has a line for each figure, with the columns ``method``, ``trust``, ``epsilon``, ``arm`` (the rows that
    the method had), ``seed``, ``metric`` and ``value``. Lines of the methods "test rows" and "real rows" have the
    figures that real rows reach in place of synthetic ones.
    """

    frame: pd.DataFrame

    @property
    def means(self) -> pd.DataFrame:
        """Mean and standard deviation over the seeds: a row a metric, method, trust, epsilon and arm."""
        return self.frame.groupby(_SCORES, sort=False)["value"].agg(["mean", "std"])

    def __str__(self) -> str:
        return f"{self.means.round(3).to_string()}\n{NOT_COVERED}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"{self.means.round(3).to_html()}<p>{NOT_COVERED}</p>"


def compare(
    rows: pd.DataFrame | Table,
    schema: Schema,
    *,
    methods: Sequence[str] | Mapping[str, Mapping[str, Any]] = ("auto",),
    epsilon: float | Sequence[float],
    delta: float = 1e-6,
    seeds: int | Sequence[int] = 5,
    target: str = "",
    holdout: float = 0.2,
    sites: int = 1,
    partition: str = "iid",
    trust: str = "",
    trust_options: Mapping[str, Any] | None = None,
    arms: Sequence[str] = ("federated",),
    progress: bool | Progress = False,
) -> MethodComparison:
    """Run methods under several budgets and seeds, and score the synthetic rows on rows that were held out.

    Parameters
    ----------
    rows, schema
        The table, a data frame or encoded, and its public description.
    methods
        Names of methods, or a mapping from names to their options.
    epsilon, delta
        The limits; an epsilon of infinity runs without noise.
    seeds
        How many seeds, or which; each draws another hold-out, split and noise.
    target
        Column that classifiers learn to predict from the synthetic rows; without it there are no scores of learning.
    holdout
        Share of rows that no method gets.
    sites, partition, trust, trust_options
        The simulated federation: how many sites, how rows are split over them, and who adds the noise (default:
        :func:`~fedsynth.trusts.default_trust` of ``sites``). A method that does not run under this trust
        model runs under "trusted", as the frame says.
    arms
        The rows that the methods get: "federated" (those of all sites, over the sites), "pooled" (the same at one site)
        and "local" (those of each site alone, as a mean over the sites); the last two run with the trust "trusted".
    progress
        Whether to show progress bars, in a terminal or a notebook; or a callback.

    Rows are held out and split one by one: if a person has several, the scores are of persons who are known in part.
    Raises :class:`Unsupported` and :class:`InvalidParameter` for settings that cannot run, before any run.
    """
    named = methods if isinstance(methods, Mapping) else {method: {} for method in methods}
    limits = [epsilon] if isinstance(epsilon, int | float) else list(epsilon)
    drawn = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    settings = trust_options or {}
    if not 0 < holdout < 1:
        raise InvalidParameter("a comparison needs held-out rows: give a --holdout above 0 and below 1")
    if not drawn or max(drawn) >= 2**32:
        raise InvalidParameter("a comparison needs seeds below 4294967296, the largest that the learners take")
    if partition.startswith("synthfs"):
        raise Unsupported("--partition synthfs generates its own rows; choose one that splits --data")
    trust = trust or default_trust(sites)
    # Checked here, since the grid would report a run that it cannot make in terms of a specification.
    under: dict[str, list[str]] = {}
    for method, options in named.items():
        job = Job(method, limits[0], delta, weak_delta=True, trust=trust, options=options, trust_options=settings)
        job.build_method()
        job.build_trust()
        under.setdefault(trust if find_method(method).runs_under(trust) else "trusted", []).append(method)
    for limit in limits:
        budget_of(limit, delta)
    numbers = ",".join(f"{name}={value}" for name, value in settings.items())
    described = spec.Spec(
        datasets={"data": spec.Dataset(file="", target=target, split=spec.SplitEntry(test_share=holdout))},
        methods={method: spec.MethodEntry(options=dict(options)) for method, options in named.items()},
        metrics={
            "likeness": spec.MetricEntry(),
            **({"learning": spec.MetricEntry(options={"suite": "thesis", "rows": 10_000})} if target else {}),
        },
        seeds=drawn,
        noise_seed=("seed", "arm"),
        defaults=spec.GridEntry(
            epsilon=tuple("none" if limit == math.inf else limit for limit in limits),
            delta=delta,
            partition=partition,
            sites=sites,
        ),
        grid=(
            *(
                spec.GridEntry(
                    methods=tuple(methods),
                    trust=":".join(filter(None, (name, numbers if name == trust else ""))),
                    arm=tuple(arms),
                )
                for name, methods in under.items()
            ),
            spec.GridEntry(methods="test rows", sites=1, metrics="likeness"),
            *([spec.GridEntry(methods="real rows", sites=1, metrics="learning")] if target else []),
        ),
    )
    table = rows if isinstance(rows, Table) else encode(schema, rows)
    table.require_rows("the table")
    return _measured(described, table, progress)


def _measured(described: spec.Spec, table: Table, progress: bool | Progress) -> MethodComparison:
    """Run every cell of a grid on the rows of a table, and return its scores."""
    lines = []
    cases = spec.cases(described)
    with shown(progress) as report:
        for number, case in enumerate(cases):
            cell = case.cell
            for name, value in grid.measure(case, table).items():
                if metric := name.partition(": ")[2]:
                    lines.append((cell.method, cell.trust, cell.epsilon, cell.arm, cell.seed, metric, value))
            report("runs", number + 1, len(cases))
    return MethodComparison(
        pd.DataFrame(lines, columns=["method", "trust", "epsilon", "arm", "seed", "metric", "value"])
    )


def values_by_arm(found: MethodComparison) -> dict[str, list[dict[str, float]]]:
    """Return the figures of one method and budget: for each arm, and "" for real rows, a mapping of metrics a seed."""
    frame = found.frame
    return {
        arm: [
            dict(zip(lines["metric"], lines["value"], strict=True))
            for _, lines in frame[frame["arm"] == arm].groupby("seed")
        ]
        for arm in ("", *ARMS)
    }
