"""What declared questions cost the table, and how well its rows agree with the answers: five data sets.

    python -m benchmarks.answers [--tables adult bank ...] [--seeds 5]

Each data set is drafted to a schema and dealt to three sites; ``auto`` runs under ``secure`` at epsilon 1, delta 1e-6,
with ten declared questions for 20 % of the budget and without. Questions are made from the schema alone: shares, means,
quantiles, a correlation and cross tables of the first columns of each kind. Printed are, as means and standard
deviations over seeds: the 3-way error and the strong associations kept, and the AUC of a classifier of the target, with
and without; the share of answers in whose interval the rows lie; and the root mean squared error of ten statistics that
nobody declared, of tilted rows relative to the same model's plain rows.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import DATA
from fedsynth import Schema, split
from fedsynth.answers.asking import Questioned
from fedsynth.answers.declared import read_declared
from fedsynth.cliques import random_workload
from fedsynth.encoding import encode
from fedsynth.evaluation.evaluate import evaluate
from fedsynth.evaluation.score import EvaluationTables
from fedsynth.evaluation.settings import EvaluationSettings
from fedsynth.federation.simulate import federate
from fedsynth.methods.auto import Auto
from fedsynth.models.synthesizer import Synthesizer
from fedsynth.privacy.cost import Budget
from fedsynth.rows import workload_error
from fedsynth.secure.site import SecureSum

TARGETS = {"adult": "income", "bank": "y", "cardio": "cardio", "magic": "label", "shoppers": "label"}
SITES, BUDGET = 3, Budget(1, 1e-6)


def read(name: str) -> pd.DataFrame:
    """Return a data set's rows."""
    path = DATA / f"{name}.parquet"
    return pd.read_parquet(path) if path.exists() else pd.read_csv(DATA / f"{name}.csv", skipinitialspace=True)


def questions(schema: Schema) -> dict[str, Any]:
    """Return ten questions made from a schema alone."""
    numbers = [column.name for column in schema.stored if column.is_number and not column.is_time and column.size > 8]
    groups = [column for column in schema.stored if not column.is_number]
    asked: list[dict[str, Any]] = [
        {"kind": "share", "of": f'{column.name}="{column.labels[0]}"'}
        for column in groups[:3]
        if len(column.labels) > 1
    ]
    asked += [{"kind": "mean", "column": name} for name in numbers[:3]]
    asked += [{"kind": "quantile", "column": name, "at": [0.5]} for name in numbers[:2]]
    asked += [{"kind": "correlation", "columns": numbers[:2]}] if len(numbers) > 1 else []
    small = [column.name for column in groups if column.size <= 8]
    asked += [{"kind": "cross", "columns": small[at : at + 2]} for at in range(min(2, len(small) - 1))]
    return {"question": [{"name": f"q{at}", **of} for at, of in enumerate(asked[:10])]}


def statistics(frame: pd.DataFrame, schema: Schema) -> list[tuple[float, float]]:
    """Return ten statistics that no question is about, each with the size by which its error is measured."""
    numbers = [column.name for column in schema.stored if column.is_number and not column.is_time and column.size > 8]
    groups = [column for column in schema.stored if not column.is_number]
    found: list[tuple[float, float]] = []
    for name in numbers[:4]:
        values = frame[name].astype(float)
        found += [
            (float(values.quantile(0.9)), float(values.std()) + 1e-9),
            (float(values.std()), float(values.std()) + 1e-9),
        ]
    for column in groups[:4]:
        for name in numbers[-2:]:
            among = frame.loc[frame[column.name].astype(str) == str(column.labels[-1]), name].astype(float)
            found.append(
                (float(among.mean()) if len(among) else math.nan, float(frame[name].astype(float).std()) + 1e-9)
            )
    return found[:10]


def errors(rows: pd.DataFrame, real: list[tuple[float, float]], schema: Schema) -> np.ndarray[Any, Any]:
    """Return the error of each undeclared statistic in standard deviations of its column."""
    return np.array(
        [(value - true) / size for (value, _), (true, size) in zip(statistics(rows, schema), real, strict=True)]
    )


def scored(made: Synthesizer, train: Any, held: Any, target: str, seed: int) -> tuple[float, float, float]:
    """Return the 3-way error, the share of strong associations kept, and the AUC of a classifier of the target."""
    table = made.sample_table(len(train), seed)
    workload = random_workload(len(train.codes), min(3, len(train.codes)), 64, 0)
    settings = EvaluationSettings(metrics=("associations-kept", "learning"), target=target, max_rows=20_000, repeats=1)
    scores = evaluate(EvaluationTables(train, table, held), settings).scores
    kept = next((of.synthetic.value for of in scores if of.metric == "associations-kept"), math.nan)
    auc = next((of.synthetic.value for of in scores if of.name.startswith("ROC AUC")), math.nan)
    return workload_error(train, table, workload).mean, kept, auc


def main() -> None:
    """Print a line for each data set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="*", default=list(TARGETS))
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    print("| table | 3-way error | with | associations kept | with | AUC | with | rows in intervals | undeclared |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in options.tables:
        frame = read(name)
        schema = replace(Schema.draft(frame), drafted=False)
        declared = read_declared(questions(schema))
        lines, inside, ratios = [], [], []
        for seed in range(options.seeds):
            train, held = split(frame, 0.1, seed=seed)
            rows, tested = encode(schema, train), encode(schema, held)
            site = np.random.default_rng(seed).integers(0, SITES, len(rows))
            parts = [rows.take(np.flatnonzero(site == at)) for at in range(SITES)]
            made: dict[str, Synthesizer] = {}
            fits: dict[str, Callable[[Any], Synthesizer]] = {
                "plain": Auto().fit,
                "asked": Questioned(declared, Auto()).fit,
            }
            for label, fit in fits.items():
                made[label] = fit(federate(parts, schema, BUDGET, trust=SecureSum(), seed=seed))
            lines.append(
                [
                    *scored(made["plain"], rows, tested, TARGETS[name], seed),
                    *scored(made["asked"], rows, tested, TARGETS[name], seed),
                ]
            )
            answers, table = made["asked"].answers, made["asked"].sample_table(len(rows), seed)
            for answer, of_rows in zip(answers.answers, answers.exact(table), strict=True):
                if answer.low is not None and of_rows.value is not None:
                    inside.append(answer.low <= of_rows.value <= answer.high)
            real, rng = statistics(train, schema), np.random.default_rng(seed)
            tilted, plain = (of.sample(len(rows), rng) for of in (made["asked"], replace(made["asked"], tilt=None)))
            ratios.append((errors(tilted, real, schema), errors(plain, real, schema)))
        one, other = (np.sqrt(np.nanmean(np.square([pair[side] for pair in ratios]), axis=0)) for side in (0, 1))
        each = one / np.maximum(other, 1e-3)
        mean, std = np.nanmean(lines, axis=0), np.nanstd(lines, axis=0, ddof=1) if options.seeds > 1 else np.zeros(6)
        shown = [f"{mean[at]:.4f} ± {std[at]:.4f}" for at in (0, 3, 1, 4, 2, 5)]
        print(
            f"| {name} | {' | '.join(shown)} | {np.mean(inside):.1%} of {len(inside)} "
            f"| {np.nanmean(one) / np.nanmean(other):.2f} "
            f"(largest {np.nanmax(each):.2f}, {np.sum(each > 1.25)} above 1.25) |",
            flush=True,
        )


if __name__ == "__main__":
    main()
