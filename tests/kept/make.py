"""Writes the files that later versions must read, with the commands of the version that is released now.

``python -m tests.kept.make tests/kept/VERSION`` runs once, for a release, into a folder that does not exist yet: what
lies there is never written again. Of a federation of two throw-away sites, whose one run is carried as files, it keeps
the pack, a site's account, extract, keys and roster, and the coordinator's secret; beside them a simulated run's pack
and a model of each kind. Models come from seeds; keys, certificates and the noise of runs are random.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from tests.command import invoke

import fedsynth
from fedsynth.runs.state import COORDINATOR
from fedsynth.schema import Categorical, Numeric, Schema

SITES = ("north", "south")
SCHEMA = Schema(
    (
        Categorical("sex", ("f", "m")),
        Numeric("nights", 0, 40, bins=8, integer=True, missing=True),
        Numeric("bill", 0, 60_000, bins=8, decimals=2),
    )
)
QUESTIONS = """
[[question]]
kind = "share"
name = "women"
of = "sex=f"

[[question]]
kind = "mean"
name = "nights"
column = "nights"
"""
BUDGET = ("--epsilon", 1, "--delta", "1e-6", "--method", "oneshot", "--set", "bins_share=0")
DETAILS = ("--title", "Stays", "--publisher", "Health Office", "--licence", "CC-BY-4.0")
METHODS: dict[str, dict[str, object]] = {
    "oneshot": {},
    "auto": {"survey_share": 0.02},
    "privsyn": {},
    "tda": {},
    "privbayes": {},
    "fedvae": {"width": 8, "depth": 1, "latent": 2, "rounds": 1, "modes": 2},
    "fedctgan": {"width": 8, "depth": 1, "noise": 2, "steps": 3, "modes": 2},
    "fedtabdiff": {"width": 8, "depth": 1, "rounds": 1, "times": 10},
}
"""A method for each kind of model, with the options that keep its file small."""


def rows(number: int, seed: int) -> pd.DataFrame:
    """Return made-up rows of the schema; a bill depends on the nights."""
    rng = np.random.default_rng(seed)
    nights = np.minimum(rng.geometric(0.1, number), 40)
    bill = (nights * 100 * rng.lognormal(0, 0.3, number)).round(2)
    shown = np.where(rng.random(number) < 0.05, "", nights.astype(str))
    return pd.DataFrame({"sex": rng.choice(["f", "m"], number), "nights": shown, "bill": bill.astype(str)})


def command(*words: object, answers: str = "", codes: Sequence[int] = (0,)) -> str:
    """Return what a command prints; any exit code but ``codes`` is an error."""
    done = invoke(words, answers)
    if done.exit_code not in codes:
        raise RuntimeError(f"fedsynth {' '.join(map(str, words))}: exit code {done.exit_code}\n{done.output}")
    return done.output


def enrol(root: Path) -> Path:
    """Let two sites join a federation that asks declared questions, and give them rows; return its folder."""
    federation, yes = root / "federation", "y\n" * 9
    terms = ("--schema", root / "schema.toml", "--sites", ",".join(SITES), "--trust", "local", *BUDGET)
    command("deploy", "init", federation, *terms)
    job = federation / "job.toml"
    job.write_text(job.read_text().replace("question = []\n", "", 1) + QUESTIONS)
    for sent, answer in (("invitations", "request"), ("admissions", "signed")):
        for name in SITES:
            command("site", "join", federation / sent / f"{name}.toml", root / name, answers=yes)
        command("deploy", "admit", federation, *(root / name / f"{name}.{answer}" for name in SITES), answers=yes)
    for at, name in enumerate(SITES):
        command("site", "join", federation / "admissions" / f"{name}.toml", root / name)
        rows(150, at).to_csv(root / name / "rows.csv", index=False)
        settings = root / name / "site.toml"
        text = settings.read_text()
        settings.write_text(text.replace('# plans = "any"', 'plans = "any"').replace("# rows_are", "rows_are"))
    return federation


def make_run(root: Path, federation: Path) -> Path:
    """Make the federation's run, carried as files; return the run's folder."""
    (root / "carried").mkdir()
    words = ("--exchange", root / "carried", "--once")
    while command("deploy", "run", federation, *words, codes=(0, 9)) and not (federation / "runs").is_dir():
        for name in SITES:
            command("site", "serve", root / name, *words)
    (folder,) = (federation / "runs").iterdir()
    return folder


def keep_federation(root: Path, to: Path) -> None:
    """Keep the pack of a federation's run, a site's account, extract, keys and roster, and the model with its tilt."""
    federation = enrol(root)
    folder, site = make_run(root, federation), root / SITES[0]
    (to / "extract.json").write_text(command("account", site, "--extract", folder.name))
    command("publish", folder, "--to", to / "pack", "--extract", to / "extract.json", *DETAILS)
    command("account", site, "--sign", to / "pack")
    (to / "site").mkdir()
    for file in ("roster.toml", "node-key", f"{site.name}.key", f"{site.name}.pem", "state/account.sqlite"):
        shutil.copy(site / file, to / "site")
    shutil.copy(federation / COORDINATOR, to)
    shutil.copy(folder / "model.fedsynth", to / "models" / "tilted.fedsynth")


def keep_simulation(root: Path, to: Path) -> None:
    """Keep the pack of a simulated run of the same questions."""
    rows(300, 2).to_csv(root / "rows.csv", index=False)
    (root / "asked.toml").write_text(QUESTIONS)
    words = ("--data", root / "rows.csv", "--schema", root / "schema.toml", "--questions", root / "asked.toml")
    command("simulate", *words, "--sites", 2, *BUDGET, "--out", root / "simulated")
    command("publish", root / "simulated", "--to", to / "simulated-pack", *DETAILS)


def keep_models(to: Path) -> None:
    """Keep a model of each kind."""
    train = rows(1000, 2)
    for method, options in METHODS.items():
        model = fedsynth.fit(
            train, SCHEMA, method=method, options=options, epsilon=10, delta=1e-6, trust="trusted", seed=1
        )
        model.save(to / f"{model.model.kind}.fedsynth")


def main(to: Path) -> None:
    """Write all files into a new folder."""
    (to / "models").mkdir(parents=True)
    keep_models(to / "models")
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        SCHEMA.save(root / "schema.toml")
        keep_simulation(root, to)
        keep_federation(root, to)


if __name__ == "__main__":
    os.umask(0o077)
    main(Path(sys.argv[1]))
