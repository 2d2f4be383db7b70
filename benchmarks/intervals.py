"""Coverage of 95 % intervals from synthetic rows: by repeating the run on them, and by treating them as real rows.

``python -m benchmarks.intervals`` prints the table of docs/analyst.md. Three simulated hospitals have 200,000 patients
each, whose values are the truth; every run draws 4,000 patients of each, with ``auto`` and a trusted server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from fedsynth import Budget, Synthesizer, federate
from fedsynth.datasets import patients, patients_schema
from fedsynth.federation.trusted import TrustedServer
from fedsynth.methods.auto import Auto

RUNS, REPEATS, DRAWN = 25, 12, 12_000
WIDTH = 2.2  # half-width in standard errors: Student's t with 11 degrees of freedom, 95 %
SCHEMA = patients_schema()
QUESTIONS: Mapping[str, Callable[[pd.DataFrame], float]] = {
    "share that is readmitted": lambda rows: float((rows["readmitted"] == "yes").mean()),
    "the same in cardiology": lambda rows: float(
        (rows.loc[rows["ward"] == "cardiology", "readmitted"] == "yes").mean()
    ),
    "median bill": lambda rows: float(rows["bill"].median()),
    "mean nights of those over 70": lambda rows: float(rows.loc[rows["age"] > 70, "nights"].mean()),
    "correlation of nights and bill": lambda rows: float(rows["nights"].corr(rows["bill"])),
}


def run(tables: list[pd.DataFrame], seed: int) -> Synthesizer:
    """Return the synthesizer of one run over the tables of these sites."""
    federation = federate(tables, SCHEMA, Budget(epsilon=1, delta=1e-6), trust=TrustedServer(), seed=seed)
    return Auto().fit(federation)


def main() -> None:
    """Print, for each question, the share of runs whose interval contains the truth."""
    hospitals = [patients(200_000, number) for number in range(3)]
    truth = {name: question(pd.concat(hospitals)) for name, question in QUESTIONS.items()}
    held = {name: np.zeros((RUNS, 2), dtype=bool) for name in QUESTIONS}
    for number in range(RUNS):
        sites = [rows.sample(4_000, random_state=1_000 * number + at) for at, rows in enumerate(hospitals)]
        synthesizer = run(sites, number)
        synthetic = synthesizer.sample(DRAWN, np.random.default_rng(number))
        again = []
        for repeat in range(REPEATS):
            seed = 100 * number + repeat
            rows = synthesizer.sample(DRAWN, np.random.default_rng(10_000 + seed))
            rows = rows.sample(frac=1, replace=True, random_state=repeat)
            other = run([rows.iloc[at::3] for at in range(3)], 5_000 + seed)
            again.append(other.sample(DRAWN, np.random.default_rng(repeat)))
        resampled = [synthetic.sample(frac=1, replace=True, random_state=repeat) for repeat in range(30)]
        for name, question in QUESTIONS.items():
            miss = abs(question(synthetic) - truth[name])
            repeated = float(np.std([question(rows) for rows in again], ddof=1))
            naive = float(np.std([question(rows) for rows in resampled], ddof=1))
            held[name][number] = miss < WIDTH * repeated, miss < 1.96 * naive
    print("| question | run repeated on synthetic rows | synthetic rows taken for real |\n|---|---|---|")
    for name, found in held.items():
        by_repeating, by_taking = found.mean(axis=0)
        print(f"| {name} | {by_repeating:.0%} | {by_taking:.0%} |")


if __name__ == "__main__":
    main()
