"""A made birth registry of ten hospitals, published under criteria that are fixed beforehand.

``python -m benchmarks.births [--seeds N] [--keep FOLDER]`` prints how each criterion comes out. The table is made:
165,915 births by six columns, whose relations are as in public statistics of births. The criteria are like those of a
national registry's release (arXiv 2405.00267): every number that users look up first lies within a stated distance of
the real rows, at epsilon 1 and delta 1e-9, under secure sums.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedsynth.answers.commands import run_answers
from fedsynth.answers.results import judged_text
from fedsynth.runs.job import Job
from fedsynth.runs.run import run_simulated

ROWS, HOSPITALS = 165_915, 10
SCHEMA = """\
fedsynth_schema = 1

[[column]]
name = "month"
type = "categorical"
values = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]

[[column]]
name = "sex"
type = "categorical"
values = ["f", "m"]

[[column]]
name = "gestation"
type = "numeric"
low = 22
high = 44
integer = true

[[column]]
name = "weight"
type = "numeric"
low = 300
high = 6500
integer = true

[[column]]
name = "age"
type = "numeric"
low = 12
high = 60
integer = true

[[column]]
name = "parity"
type = "categorical"
values = [0, 1, 2, 3]
ordered = true
"""
SINGLE = {"month": 1.9, "sex": 0.6, "gestation": 1.8, "weight": 1.7, "age": 1.2, "parity": 1}  # weights of questions
PAIRS = (
    ("gestation", "weight"),
    ("sex", "weight"),
    ("age", "parity"),
    ("sex", "gestation"),
    ("parity", "weight"),
)
PARTS = {"pair": 1.2, "key": 2.7, "light": 2.1, "fourth": 0.4, "early": 3.8, "weights": 3.2}
PARTS |= {"with": 6, "auc": 12, "week": 11}
"""How the questions' share is divided: what is hard to tell gets more."""
DECLARED: dict[str, Any] = {
    "criterion": [
        *({"kind": "cross", "name": name, "columns": [name], "weight": weight} for name, weight in SINGLE.items()),
        *({"kind": "cross", "name": " x ".join(pair), "columns": pair, "weight": PARTS["pair"]} for pair in PAIRS[1:]),
        {"kind": "cross", "name": " x ".join(PAIRS[0]), "columns": PAIRS[0], "weight": PARTS["key"]},
        *(
            {"kind": "share", "name": f"light {sex}", "of": "weight<2500", "among": f"sex={sex}"}
            | {"weight": PARTS["light"]}
            for sex in "fm"
        ),
        {"kind": "mean", "name": "weight, fourth child", "column": "weight", "among": "parity=3"}
        | {"weight": PARTS["fourth"]},
        {"kind": "mean", "name": "weight, early", "column": "weight", "among": "gestation<37"}
        | {"weight": PARTS["early"]},
        {"kind": "cross", "name": "light by week", "columns": ["gestation"], "among": "weight<2500"}
        | {"weight": PARTS["week"]},
        {"kind": "quantile", "name": "weights", "column": "weight", "at": [0.1, 0.5, 0.9], "weight": PARTS["weights"]},
        {"kind": "correlation", "name": "weight, gestation", "columns": ["weight", "gestation"]}
        | {"weight": PARTS["with"]},
        {"kind": "auc", "name": "light by all else", "of": "weight<2500", "bins": 8, "weight": PARTS["auc"]},
        {"kind": "count", "name": "births", "weight": 0.15},
    ],
    "cuts": {
        "gestation": [28, 30, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41],
        "weight": [1500, 2000, 2500, 3000, 3500, 4000, 4500],
        "age": [20, 25, 30, 35, 40],
    },
    "clips": {"gestation": [33, 43], "weight": [1500, 5000]},
}
TOLERANCES = {**dict.fromkeys(SINGLE, 0.004), **{" x ".join(pair): 0.005 for pair in PAIRS}}
TOLERANCES |= {"light f": 0.004, "light m": 0.004, "weight, fourth child": 80, "weight, early": 80, "weights": 30}
TOLERANCES |= {"light by week": 0.03, "weight, gestation": 0.03, "light by all else": 0.02, "births": 0.01 * ROWS}
for criterion in DECLARED["criterion"]:
    criterion["tolerance"] = TOLERANCES[criterion["name"]]


def births(rows: int = ROWS, seed: int = 1) -> pd.DataFrame:
    """Return made births: weight depends on gestation, sex and parity, parity on the mother's age."""
    rng = np.random.default_rng(seed)
    early = rng.random(rows) < 0.08
    weeks = np.where(early, 37 - rng.gamma(1.4, 2.0, rows), 39.4 + 1.2 * rng.standard_normal(rows))
    weeks = np.clip(weeks, 22, 44).round().astype(int)
    sex = np.where(rng.random(rows) < 0.486, "f", "m")
    age = np.clip(rng.normal(31, 5.6, rows), 14, 52).round().astype(int)
    parity = np.minimum(rng.poisson(np.clip((age - 19) / 9, 0.05, None)), 3)
    usual = 3400 + np.where(weeks < 39.5, 150, 60) * (weeks - 39.5) + np.where(sex == "f", -70, 70) + 40 * parity
    weight = np.clip(usual + 400 * rng.standard_normal(rows), 350, 6400)
    return pd.DataFrame(
        {
            "month": rng.choice(12, rows, p=np.array([8, 7.6, 8.3, 8, 8.4, 8.3, 8.9, 8.9, 8.7, 8.5, 8.1, 8.3]) / 100)
            + 1,
            "sex": sex,
            "gestation": weeks,
            "weight": (weight / 10).round().astype(int) * 10,
            "age": age,
            "parity": parity,
        }
    )


def main() -> None:
    """Print each seed's verdicts, and how often each criterion was met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="folder in which the runs stay")
    options = parser.parse_args()
    rows = births()
    site_of = np.random.default_rng(2).choice(HOSPITALS, len(rows), p=np.arange(1, HOSPITALS + 1) / 55)
    met: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as home:
        folder = options.keep or Path(home)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "births.toml").write_text(SCHEMA)
        site = {}
        for at in range(HOSPITALS):
            site[f"hospital-{at}"] = str(folder / f"hospital-{at}.parquet")
            rows[site_of == at].to_parquet(site[f"hospital-{at}"], index=False)
        for seed in range(options.seeds):
            job = Job(
                "auto", 1.0, 1e-9, trust="secure", site=site, schema=str(folder / "births.toml"), seed=seed, **DECLARED
            )
            judged = run_answers(run_simulated(job, folder / f"run-{seed}").folder).judged
            print(f"\nseed {seed}\n{judged_text(judged)}", flush=True)
            met.update(one.criterion for one in judged if one.verdict == "met")
    print("\n| criterion | met |\n|---|---|")
    for asked in DECLARED["criterion"]:
        print(f"| {asked['name']} (within {asked['tolerance']:g}) | {met[asked['name']]} of {options.seeds} |")


if __name__ == "__main__":
    main()
