"""A person's rows are looked for in published folders, from the file on: whatever they look like, within the budget.

The neighbouring files differ by one person's rows, some of them hostile: a quote that is never closed, a missing value
or a fraction that changes the type of a column, forty rows where four may be used. Each run starts with the file and
ends with the published folder. The attacker knows both files, reads the run's schema, split, transcript and noise, and
adds up what each released number says about which of the files was there. Over many runs its two sums are at most
sqrt(2 rho) standard deviations apart (``test_canaries`` says why); with half the noise they are further apart.

The audit in one run (Steinke, Nasr and Jagielski 2023, arXiv 2305.08846) puts many canaries into one file, each with
probability one half, and bounds epsilon from below by how many of them are guessed from the table that is released.

Seeds are fixed, so that a test fails for a change and not by chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import beta
from tests.attacks.test_split import answer_of, released

from fedsynth.privacy import noise
from fedsynth.privacy.cost import Budget
from fedsynth.runs.folder import RunFolder
from fedsynth.runs.job import Job
from fedsynth.runs.run import run_simulated
from fedsynth.runs.split import load_rows
from fedsynth.schema import Categorical, Numeric, Schema
from fedsynth.secure import noise_shares

RUNS, FIRST = 70, 1000
SURE = 3.09  # standard errors: 99.9 %, one-sided
BUDGET = Budget(50.0, 1e-6)
BOUND = math.sqrt(2 * BUDGET.rho)
ROWS = 16  # of the person
KINDS = tuple(range(8))
SCHEMA = Schema(
    (
        Categorical("kind", tuple(map(str, KINDS)), missing=True),
        Categorical("region", ("north", "south", "target")),
        Numeric("age", 0, 100, bins=10),
    )
)


# ---------------------------------------------------------------------------------------------------------------------
# Files


def people(rows: int = 60) -> pd.DataFrame:
    """Rows of other persons, none of them in the target's region."""
    rng = np.random.default_rng(3)
    return pd.DataFrame(
        {
            "kind": rng.choice(KINDS, rows),
            "region": rng.choice(["north", "south"], rows),
            "age": rng.integers(0, 90, rows),
            "person": [f"p{at}" for at in range(rows)],
            "note": "",
        }
    )


def target(rows: int = ROWS) -> pd.DataFrame:
    return pd.DataFrame({"kind": 7, "region": "target", "age": 97, "person": "target", "note": ""}, index=range(rows))


def open_quotes(folder: Path, there: bool) -> tuple[Path, dict[str, Any]]:
    """A CSV file; the person's first line opens a quote, and a later line of another person ends in one."""
    lines = people().to_csv(index=False).splitlines()
    lines[-1] += 'bandage 6"'
    if there:
        body = target().to_csv(index=False, header=False).splitlines()
        body[0] += '"open'
        lines[5:5] = body
    file = folder / "rows.csv"
    file.write_text("\n".join(lines) + "\n")
    return file, {"rows_per_person": ROWS, "person": "person"}


def missing_values(folder: Path, there: bool) -> tuple[Path, dict[str, Any]]:
    """A Parquet file of integers, which one missing value of the person turns into floats."""
    rows = target()
    rows["kind"] = [np.nan, *[7.0] * (ROWS - 1)]
    return parquet(folder, rows, there), {"rows_per_person": ROWS, "person": "person"}


def other_types(folder: Path, there: bool) -> tuple[Path, dict[str, Any]]:
    """A Parquet file of integers, which one fraction of the person turns into floats; the row with it does not fit."""
    rows = target()
    rows["kind"] = [2.5, *[7.0] * (ROWS - 1)]
    return parquet(folder, rows, there), {"rows_per_person": ROWS, "person": "person"}


def repeated_persons(folder: Path, there: bool) -> tuple[Path, dict[str, Any]]:
    """A CSV file in which the person has ten times as many rows as may be used."""
    rows = pd.concat([people(), target(10 * ROWS)] if there else [people()])
    file = folder / "rows.csv"
    rows.to_csv(file, index=False)
    return file, {"rows_per_person": ROWS, "person": "person"}


def parquet(folder: Path, rows: pd.DataFrame, there: bool) -> Path:
    file = folder / "rows.parquet"
    whole = pd.concat([rows, people()]) if there else people()
    assert whole["kind"].dtype == (np.float64 if there else np.int64)
    whole.to_parquet(file, index=False)
    return file


FILES: dict[str, Callable[[Path, bool], tuple[Path, dict[str, Any]]]] = {
    "open quotes": open_quotes,
    "missing values": missing_values,
    "other types": other_types,
    "repeated persons": repeated_persons,
}
METHODS: dict[str, dict[str, Any]] = {"oneshot": {"iterations": 1}, "fedchowliu": {"cells": 4}, "auto": {}}
TRUSTS: dict[str, dict[str, Any]] = {"trusted": {}, "secure": {"min_honest": 2, "dropouts": 0}}


# ---------------------------------------------------------------------------------------------------------------------
# Runs


def scores(folder: Path, file: str, method: str, trust: str, runs: int) -> tuple[list[float], list[float]]:
    """Return what the attacker adds up over runs without the person and with it."""
    files: list[Path] = []
    settings: dict[str, Any] = {}
    for person in (False, True):
        place = folder / f"{person}"
        place.mkdir()
        path, settings = FILES[file](place, person)
        files.append(path)
    SCHEMA.save(folder / "schema.toml")
    found: tuple[list[float], list[float]] = [], []
    for run in range(runs):
        there = run % 2
        jobs = [
            Job(
                method,
                BUDGET.epsilon,
                BUDGET.delta,
                data=str(path),
                schema=str(folder / "schema.toml"),
                sites=2,
                trust=trust,
                trust_options=TRUSTS[trust],
                options=METHODS[method],
                seed=FIRST + run,
                rows=10,
                **settings,
            )
            for path in files
        ]
        run_simulated(jobs[there], folder / "run", force=True)
        found[there].append(suspicion(RunFolder(folder / "run"), jobs))
    return found


def suspicion(folder: RunFolder, jobs: list[Job]) -> float:
    """Return how much better the released sums fit the second file than the first, in standard deviations."""
    seed = folder.made["split_seed"]
    first, second = (load_rows(job, seed, bytes(32)) for job in jobs)
    fit = weight = 0.0
    for query, sites, values, std in released(folder):
        at = [int(site.removeprefix("site-")) for site in sites]
        one, two = (answer_of(query, split, at) for split in (first, second))
        apart = two - one
        fit += float((values - one) @ apart) / std**2
        weight += float(apart @ apart) / std**2
    return fit / math.sqrt(weight)


def distance(folder: Path, file: str, method: str, trust: str, runs: int) -> tuple[float, float]:
    """Return how many standard deviations runs with and without the person are apart, and its standard error."""
    without, there = (np.array(one) for one in scores(folder, file, method, trust, runs))
    spread = math.sqrt((without.var(ddof=1) + there.var(ddof=1)) / 2)
    apart = float(there.mean() - without.mean()) / spread
    half = runs // 2
    return apart, math.sqrt(2 / half + apart**2 / (4 * half))


def halve(patch: pytest.MonkeyPatch, trust: str) -> None:
    """Let the noise be half of what it says: the server's, or every site's share of it."""
    if trust == "secure":
        share = noise_shares.NoiseShare.add_to

        def added(self: noise_shares.NoiseShare, answer: Any, seeds: Any) -> Any:
            return answer + np.rint((share(self, answer, seeds) - answer) / 2).astype(np.int64)

        patch.setattr(noise_shares.NoiseShare, "add_to", added)
        return
    for name in ("discrete_gaussian", "discrete_laplace"):
        whole = getattr(noise, name)
        patch.setattr(noise, name, lambda scale, size, bits, whole=whole: whole(scale / 2, size, bits))


# What fits a minute is run every time: each kind of file once, each method and each trust.
EVERY_TIME = {
    ("open quotes", "oneshot", "trusted"),
    ("missing values", "oneshot", "secure"),
    ("other types", "fedchowliu", "trusted"),
    ("repeated persons", "oneshot", "trusted"),
}
CASES = [
    pytest.param(file, method, trust, marks=[] if (file, method, trust) in EVERY_TIME else [pytest.mark.slow])
    for file in FILES
    for method in METHODS
    for trust in TRUSTS
]


@pytest.mark.parametrize(("file", "method", "trust"), CASES)
def test_a_person_is_found_no_more_surely_than_the_budget_says_from_the_file_on(tmp_path, file, method, trust):
    apart, error = distance(tmp_path, file, method, trust, RUNS)
    assert apart - SURE * error < BOUND, (apart, error)
    assert apart > 0.5 * BOUND, (apart, error)  # somebody has looked


@pytest.mark.parametrize(("file", "method", "trust"), CASES)
def test_a_person_is_found_from_the_file_on_where_noise_is_missing(tmp_path, monkeypatch, file, method, trust):
    halve(monkeypatch, trust)
    apart, error = distance(tmp_path, file, method, trust, RUNS)
    assert apart - SURE * error > BOUND, (apart, error)


# ---------------------------------------------------------------------------------------------------------------------
# Many canaries in one run

EPSILON = 1.0  # pure: the audit is tight for Laplace noise
SIDE = 30  # values of each of two columns: a canary is a cell of their table
CANARIES = 800
PAIR = Schema(tuple(Categorical(name, tuple(map(str, range(SIDE)))) for name in ("one", "two")))
AUDITED: dict[str, dict[str, Any]] = {"oneshot": {"iterations": 1}, "randommarginals": {}, "allmarginals": {}}


def canaries(folder: Path, included: np.ndarray) -> Path:
    """Write those canaries that are included, in spellings of their own, among lines that are none."""
    cells = np.random.default_rng(4).permutation(SIDE**2)[:CANARIES]
    lines = ["one,two,note"]
    for at, cell in enumerate(cells):
        one, two = divmod(int(cell), SIDE)
        if included[at]:
            lines.append([f"{one},{two},", f'"{one}","{two}",6"', f'{one}.0,{two}.0,"say ""no"""'][at % 3])
        if at % 50 == 0:
            lines.append(f'{one},{two},"never closed')
    file = folder / "canaries.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def guesses(folder: Path, method: str, trust: str) -> tuple[int, int]:
    """Return how many canaries the attacker guesses from one published folder, and how many of these rightly."""
    included = np.random.default_rng(5).random(CANARIES) < 0.5
    PAIR.save(folder / "schema.toml")
    job = Job(
        method,
        EPSILON,
        0.0,
        data=str(canaries(folder, included)),
        schema=str(folder / "schema.toml"),
        sites=2,
        trust=trust,
        trust_options=TRUSTS[trust],
        options=AUDITED[method],
        seed=FIRST,
        rows=10,
    )
    run_simulated(job, folder / "run", force=True)
    tables = [
        table
        for query, _, values, _ in released(RunFolder(folder / "run"))
        for table in query.split(PAIR, values)
        if table.shape == (SIDE, SIDE)
    ]
    assert len(tables) == 1
    counts = tables[0].ravel()[np.random.default_rng(4).permutation(SIDE**2)[:CANARIES]]
    sure = (counts >= 1) | (counts <= 0)  # between them, a count says less
    return int(sure.sum()), int(((counts >= 1) == included)[sure].sum())


def epsilon_at_least(guessed: int, right: int) -> float:
    """Return the 99.9 % lower bound on epsilon: how surely so many right guesses exclude a smaller one.

    Under pure epsilon-DP the number of right guesses is at most binomial, with a probability of e^eps / (1 + e^eps)
    each (theorem 5.2 of the paper, for delta = 0).
    """
    low = float(beta.ppf(0.001, right, guessed - right + 1))
    return math.log(low / (1 - low))


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("method", AUDITED)
def test_one_run_over_many_canaries_bounds_epsilon_below_what_is_stated(tmp_path, monkeypatch, method, trust):
    """The bound is below the stated epsilon, and above it with half the noise; with none, all guesses are right."""
    assert 0.3 < epsilon_at_least(*guesses(tmp_path, method, trust)) < EPSILON
    halve(monkeypatch, trust)
    assert epsilon_at_least(*guesses(tmp_path, method, trust)) > EPSILON
