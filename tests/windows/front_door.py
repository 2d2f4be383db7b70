"""From a data frame to a report, in Python and by commands, with Greek names: a program for any system.

It works in the current folder. A file that fedsynth opens without saying its encoding ends the program.
"""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

import fedsynth as fs
from fedsynth.cli.app import main

AGE, SEX = "ηλικία", "φύλο"


def people(rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age = rng.integers(18, 90, rows)
    return pd.DataFrame({AGE: age, SEX: rng.choice(["γυναίκα", "άνδρας"], rows), "rich": rng.random(rows) < age / 90})


def in_python() -> None:
    train, held = fs.split(people(1500), holdout=0.2, seed=0)
    fs.Schema.draft(train).confirmed().save(Path("agreed.toml"))
    schema = fs.Schema.load(Path("agreed.toml"))
    made = fs.fit({"north": train[:600], "south": train[600:]}, schema, epsilon=2, delta=1e-6, method="oneshot")
    made.save("model.fedsynth")
    again = fs.load("model.fedsynth")
    assert again.statement == made.statement
    assert list(again.sample(20, where={SEX: "άνδρας"})[SEX].unique()) == ["άνδρας"]
    found = fs.evaluate(made, train=train, holdout=held, target="rich", metrics=["column-similarity"])
    found.to_html("python.html")
    assert AGE in Path("python.html").read_text(encoding="utf-8")
    assert fs.advise(schema, rows=900, sites=2, epsilon=1, delta=1e-6, methods=["oneshot"], tables=1).frame is not None


def command(*words: object) -> None:
    """Run a command; it has to end well."""
    code: object = None
    try:
        main([str(word) for word in words])
    except SystemExit as ended:
        code = ended.code
    assert not code, words


def by_commands() -> None:
    people(1500).to_csv("rows.csv", index=False, encoding="utf-8")
    command("schema", "check", "rows.csv", "--schema", "agreed.toml")
    command("schema", "draft", "rows.csv", "--out", "draft.toml")
    Path("runs").mkdir()
    table = ("--data", "rows.csv", "--schema", "agreed.toml", "--sites", 3, "--holdout", 0.1)
    run = ("simulate", *table, "--method", "oneshot", "--epsilon", 2, "--delta", 1e-6, "--out", Path("runs") / "first")
    command("--log-file", "log", *run)
    command(*run, "--force")
    command("report", Path("runs") / "first")
    command("verify", Path("runs") / "first")
    command("sample", Path("runs") / "first" / "model.fedsynth", "--rows", 50, "--out", "synthetic.parquet")
    command("evaluate", "rows.csv", "synthetic.parquet", "--schema", "agreed.toml", "--out", "evaluation")
    assert "simulate" in Path("log").read_text(encoding="utf-8")
    assert AGE in (Path("runs") / "first" / "private" / "report.html").read_text(encoding="utf-8")
    assert json.loads((Path("runs") / "first" / "ledger.json").read_text(encoding="utf-8"))
    assert list(pd.read_csv(Path("runs") / "first" / "synthetic.csv")) == [AGE, SEX, "rich"]


if __name__ == "__main__":
    warnings.filterwarnings("error", category=EncodingWarning, module="fedsynth")
    print("POSIX" if hasattr(os, "geteuid") else "no POSIX")
    in_python()
    by_commands()
    print("all done")
