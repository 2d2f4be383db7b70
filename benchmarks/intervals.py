"""Coverage and width of 95 % intervals: of declared questions, and of conditions that nobody declared.

``python -m benchmarks.intervals`` prints the tables of docs/answers.md: ``--declared RUNS`` asks declared questions
without a table, ``--undeclared RUNS`` fits whole tables and asks their released tables. Three simulated hospitals have
200,000 patients each, whose values are the truth; every run draws 4,000 patients of each, at epsilon 1, delta 1e-6.
Numbers and totals are those of the drawn patients.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from fedsynth import Budget, federate
from fedsynth.answers.asking import ask
from fedsynth.answers.declared import read_declared
from fedsynth.answers.questions import Answer
from fedsynth.answers.released import estimate, released_tables
from fedsynth.datasets import patients, patients_schema
from fedsynth.encoding import encode
from fedsynth.errors import Unsupported
from fedsynth.rows import Table, concatenate
from fedsynth.runs.folder import RunFolder
from fedsynth.runs.job import Job
from fedsynth.runs.run import run_simulated

SCHEMA, BUDGET, DRAWN = patients_schema(), Budget(epsilon=1, delta=1e-6), 4_000
DECLARED = read_declared(
    {
        "question": [
            {"kind": "share", "name": "readmitted", "of": "readmitted=yes"},
            {"kind": "share", "name": "readmitted in cardiology", "of": "readmitted=yes", "among": "ward=cardiology"},
            {"kind": "share", "name": "over 90 (1 %)", "of": "age>90"},
            {"kind": "count", "name": "number over 70", "among": "age>70"},
            {"kind": "mean", "name": "nights of those over 70", "column": "nights", "among": "age>70"},
            {"kind": "total", "name": "total of bills", "column": "bill"},
            {"kind": "quantile", "name": "median bill", "column": "bill"},
            {"kind": "correlation", "name": "nights and bill", "columns": ["nights", "bill"]},
            {
                "kind": "regression",
                "name": "risk by age and sex",
                "outcome": "readmitted=yes",
                "covariates": ["age", "sex"],
            },
            {"kind": "survival", "name": "in hospital", "time": "nights", "event": "readmitted=yes", "at": [10]},
        ],
        "cuts": {"age": [40, 60, 75]},
        "clips": {"nights": [0, 15], "bill": [0, 12_000]},
    }
)
FINITE = ("number over 70", "total of bills")
CONDITIONS = (
    "readmitted=yes",
    "readmitted=yes & ward=cardiology",
    "sex=f & ward=medicine",
    "readmitted=yes & sex=f",
    "age>=70",
    "age>=70 & sex=f",
    "ward=surgery & age>=50",
    "nights>=10",
    "bill>=5000",
    "nights=0 & ward=surgery",
)


def hospitals() -> list[Table]:
    """Return the patients of each hospital, encoded."""
    return [encode(SCHEMA, patients(200_000, number)) for number in range(3)]


def drawn(population: list[Table], seed: int) -> list[Table]:
    """Return the patients that a run draws of each hospital."""
    rng = np.random.default_rng(seed)
    return [rows.take(rng.choice(len(rows), DRAWN, replace=False)) for rows in population]


def labelled(answers: Iterator[Answer] | list[Answer]) -> dict[tuple[str, str], Answer]:
    """Return answers by question and label."""
    return {(answer.question, answer.label): answer for answer in answers}


def declared(population: list[Table], trust: str, runs: int) -> None:
    """Print coverage, refusals and half-widths of the declared questions."""
    everybody = concatenate(population)
    held: Mapping[tuple[str, str], list[bool]] = defaultdict(list)
    widths: Mapping[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
    refused: dict[tuple[str, str], int] = defaultdict(int)
    truth: dict[tuple[str, str], Answer] = {}
    bills = everybody.numbers[SCHEMA.index("bill")]
    for seed in range(runs):
        rows = drawn(population, seed)
        _, answers = ask(DECLARED, federate(rows, SCHEMA, BUDGET, trust=trust, seed=seed))
        truth = truth or labelled(answers.exact(everybody))
        own = labelled(answers.exact(concatenate(rows)))
        for key, answer in labelled(list(answers.answers)).items():
            if answer.low is None or answer.high is None:
                refused[key] += 1
                continue
            true = (own if key[0] in FINITE else truth)[key].value
            true = float(np.median(bills)) if key[0] == "median bill" else true
            assert true is not None
            assert answer.noise is not None
            assert answer.sampling is not None
            held[key].append(answer.low <= true <= answer.high)
            widths[key].append((answer.half_width, answer.noise, answer.sampling))
    print(
        f"\n{trust}, {runs} runs\n\n"
        "| question | covered | refused | half-width | noise and sampling | real rows |\n|---|---|---|---|---|---|"
    )
    for key in truth:
        half, noise, sampling = np.median(np.array(widths[key]), axis=0)
        print(
            f"| {' '.join(filter(None, key))} | {np.mean(held[key]):.1%} | {refused[key] / runs:.1%} | {half:.3g} "
            f"| {np.hypot(noise, sampling):.3g} | {sampling:.3g} |"
        )


def undeclared(population: list[Table], trust: str, runs: int) -> None:
    """Print coverage and refusals of conditions that nobody declared, from the released tables of whole runs."""
    held: Mapping[str, list[bool]] = defaultdict(list)
    refused: dict[str, int] = defaultdict(int)
    frames = [patients(200_000, number) for number in range(3)]
    everybody = concatenate(population)
    from fedsynth.answers.condition import read_condition

    def true_share(condition: str) -> float:
        axes = read_condition(SCHEMA, condition).axes
        inside = np.ones(len(everybody), dtype=bool)
        for axis in axes:
            inside &= axis.places(everybody.codes[axis.column], everybody.numbers.get(axis.column)) == 1
        return float(inside.mean())

    truth = {condition: true_share(condition) for condition in CONDITIONS}
    for seed in range(runs):
        with tempfile.TemporaryDirectory() as home:
            site = {}
            for at, frame in enumerate(frames):
                place = Path(home) / f"{at}.parquet"
                frame.sample(DRAWN, random_state=1_000 * seed + at).to_parquet(place, index=False)
                site[f"site-{at}"] = str(place)
            schema = Path(home) / "schema.toml"
            SCHEMA.save(schema)
            job = Job("auto", 1.0, 1e-6, site=site, schema=str(schema), trust=trust)
            tables = released_tables(RunFolder(run_simulated(job, Path(home) / "run").folder))
        for condition in CONDITIONS:
            try:
                answer = estimate(tables, SCHEMA, condition)[0]
            except Unsupported:
                refused[condition] += 1
                continue
            if answer.low is None or answer.high is None:
                refused[condition] += 1
                continue
            held[condition].append(answer.low <= truth[condition] <= answer.high)
    print(f"\n{trust}, {runs} runs with a fitted table\n\n| condition | covered | answered |\n|---|---|---|")
    for condition in CONDITIONS:
        shown = f"{np.mean(held[condition]):.1%}" if held[condition] else "-"
        print(f"| {condition} | {shown} | {1 - refused[condition] / runs:.0%} |")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--declared", type=int, default=2_000)
    parser.add_argument("--undeclared", type=int, default=200)
    parser.add_argument("--trust", nargs="*", default=["trusted", "secure"])
    options = parser.parse_args()
    population = hospitals()
    for trust in options.trust:
        if options.declared:
            declared(population, trust, options.declared)
    if options.undeclared:
        undeclared(population, options.trust[0], options.undeclared)


if __name__ == "__main__":
    main()
