"""What commands print in a terminal of 80 columns: no line is wider, and none is broken inside a word."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.command import Invoked, invoke

from fedsynth.schema import Categorical, Numeric, Schema

WIDTH = 80
BUDGET = ("--epsilon", 1, "--delta", "1e-6")
SCHEMA = Schema(
    (
        Numeric("amount of the bill of the year", 0, 1e9, decimals=2),
        Categorical("sex", ("f", "m")),
        Categorical("readmitted", ("no", "yes")),
    )
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("layout")
    rng = np.random.default_rng(0)
    for name, rows in (("rows.csv", 1500), ("other.csv", 300)):
        sex = rng.choice(["f", "m"], rows)
        frame = pd.DataFrame(
            {
                SCHEMA.names[0]: rng.lognormal(3, 1, rows).round(2),
                "sex": sex,
                "readmitted": np.where(rng.random(rows) < 0.3, "yes", "no"),
            }
        )
        frame.to_csv(place / name, index=False)
    frame.loc[:20, "sex"] = "a value that the schema does not list, and that is long"
    frame.to_csv(place / "bad.csv", index=False)
    SCHEMA.save(place / "agreed.toml")
    return place


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    simulated = ("simulate", "--data", folder / "rows.csv", "--schema", folder / "agreed.toml", *BUDGET)
    assert invoke([*simulated, "--sites", 3, "--holdout", 0.2, "--out", folder / "run"]).exit_code == 0
    return folder / "run"


COMMANDS = {
    "methods": ("methods",),
    "simulate": (
        *("simulate", "--data", "rows.csv", "--schema", "agreed.toml", "--method", "oneshot", "--set", "bins_share=0"),
        *(*BUDGET, "--sites", 3, "--out", "again"),
    ),
    "evaluate": (
        *("evaluate", "rows.csv", "other.csv", "--schema", "agreed.toml", "--holdout", "other.csv"),
        *("--target", "readmitted", "--out", "scores"),
    ),
    "report": ("report", "run", "--title", "A"),
    "check": ("schema", "check", "rows.csv", "--schema", "agreed.toml"),
    "check of bad rows": ("schema", "check", "bad.csv", "--schema", "agreed.toml"),
    "plan": (
        *("plan", "--schema", "agreed.toml", "--rows", 900, "--sites", 3, *BUDGET, "--repeats", 1),
        *("--method", "oneshot,randommarginals", "--trust", "trusted"),
    ),
    "verify": ("verify", "run"),
    "a mistake": ("simulate", "--data", "rows.csv", "--config", "run/run.toml", "--epsilon", "2"),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_no_line_is_wider_than_the_terminal(command, run, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.delenv("COLUMNS", raising=False)
    whole = invoke([*command, "--force"] if "--out" in command else command)
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    narrow = invoke([*command, "--force"] if "--out" in command else command)
    assert narrow.exit_code == whole.exit_code
    wide = [line for line in narrow.output.splitlines() if len(line) > WIDTH]
    assert [line for line in wide if " " in line.strip()] == []  # a path or a digest is one word
    known = words(whole)
    assert "…" not in narrow.output
    if command[0] not in ("simulate", "plan"):  # whose numbers are others each time
        assert words(narrow) == known


def words(found: Invoked) -> list[str]:
    return found.output.split()


def test_a_statement_is_broken_between_words(run, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    said = invoke([*COMMANDS["simulate"], "--force"]).output
    assert "LOST: amount of the bill of the year: " in said
    assert "ALARM: means kept: " in said
    assert said.index("LOST: ") < said.index("synthetic rows of 3 columns") < said.index("how good it is")
    flat = " ".join(said.split())
    assert "Choosing a run, a method or a setting by scores computed on real rows is not covered." in flat
    assert "Nobody who guesses whether any one row is in the data" in flat
    assert "the smallest trustworthy groups" in flat
    assert flat.count("smallest groups that stand out from the noise") == 1
