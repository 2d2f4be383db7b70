"""Golden files of the command line: all help texts, and the answers to mistakes that users make.

``python -m tests.cli.golden.make`` writes them anew.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path
from typing import cast
from unittest import mock

from cyclopts import App

from fedsynth.cli.app import app, main
from fedsynth.cli.layout import Commands, help_text

FOLDER = Path(__file__).parent / "help"
ERRORS = Path(__file__).parent / "errors.txt"


# ---------------------------------------------------------------------------------------------------------------------
# Help


def commands() -> dict[str, Commands]:
    """Return every command and group of commands by what users write, the outermost first."""
    found: dict[str, Commands] = {}

    def walk(path: str, one: App) -> None:
        found[path] = cast(Commands, one)
        for name in one:
            if not name.startswith("-"):
                walk(f"{path} {name}", one[name])

    walk("fedsynth", app)
    return found


def helps() -> dict[str, str]:
    """Return each command's help text by the name of its golden file."""
    with mock.patch.dict(os.environ, {"COLUMNS": "80"}):
        found = {f"{path.replace(' ', '-')}.txt": help_text(path, one) + "\n" for path, one in commands().items()}
        short = help_text("fedsynth simulate", app["simulate"], everything=False) + "\n"
    return {**found, "fedsynth-simulate-help-all.txt": found["fedsynth-simulate.txt"], "fedsynth-simulate.txt": short}


# ---------------------------------------------------------------------------------------------------------------------
# Errors

_SIMULATE = "simulate --data people.csv --epsilon 1 --delta 1e-6"
_EVALUATE = "evaluate people.csv people.csv --schema people.toml --out scores"
_PLAN = "plan --schema people.toml --rows 300 --sites 3 --epsilon 1 --delta 1e-6"

MISTAKES: dict[str, str] = {
    "a command that does not exist": "simulat --data people.csv",
    "an option that does not exist": "simulate --dat people.csv",
    "a value that is no number": "simulate --data people.csv --epsilon one --delta 1e-6",
    "no epsilon and no delta": "simulate --data people.csv",
    "no delta": "simulate --data people.csv --epsilon 1",
    "an epsilon of zero": "simulate --data people.csv --epsilon 0 --delta 1e-6",
    "a delta of one": "simulate --data people.csv --epsilon 1 --delta 1",
    "no table": "simulate --epsilon 1 --delta 1e-6",
    "two tables": f"{_SIMULATE} --data people.csv",
    "a table that is not there": "simulate --data nowhere.csv --epsilon 1 --delta 1e-6",
    "a table of an unknown format": "simulate --data people.xlsx --epsilon 1 --delta 1e-6",
    "a table with a header and no rows": "simulate --data empty.csv --epsilon 1 --delta 1e-6",
    "a table with one header twice": "simulate --data twice.csv --epsilon 1 --delta 1e-6",
    "a table that lacks a column of the schema": f"{_SIMULATE} --schema taller.toml",
    "values that do not fit the schema": "evaluate odd.csv people.csv --schema people.toml --out scores",
    "a check of a table that does not fit": "schema check odd.csv --schema people.toml",
    "a schema with a column twice": f"{_SIMULATE} --schema twice.toml",
    "a schema that is not TOML": f"{_SIMULATE} --schema broken.toml",
    "a schema with a misspelt key": f"{_SIMULATE} --schema misspelt.toml",
    "a draft over an edited schema": "schema draft people.csv --out people.toml",
    "a method that does not exist": f"{_SIMULATE} --method oneshoot",
    "a method under a trust model that it cannot use": f"{_SIMULATE} --method aim --trust local",
    "an option that the method does not have": f"{_SIMULATE} --method flaim --set roundz=5",
    "an option without a value": f"{_SIMULATE} --method flaim --set rounds",
    "a trust model that does not exist": f"{_SIMULATE} --trust four-servers",
    "a parameter that the trust model does not have": f"{_SIMULATE} --trust secure --trust-set min_honset=2",
    "more honest sites than sites": f"{_SIMULATE} --sites 3 --trust secure --trust-set min_honest=5",
    "a target without held-out rows": f"{_SIMULATE} --target region",
    "a target that is not in the table": f"{_SIMULATE} --holdout 0.1 --target regoin",
    "a partition that does not exist": f"{_SIMULATE} --partition label-scew:1",
    "more sites than rows": f"{_SIMULATE} --sites 1000",
    "a workload that cannot be read": f"{_SIMULATE} --method flaim --workload pairs",
    "a budget exceeded by a method of one's own": f"{_SIMULATE} --method greedy:Greedy",
    "an extra that is not installed": "demo",
    "a folder that exists": f"{_SIMULATE} --out run",
    "a folder that is no run": f"{_SIMULATE} --out photos --force",
    "an option beside --config": "simulate --config run/run.toml --epsilon 2 --out again",
    "a run that does not exist": "report nowhere",
    "a model that is none": "sample people.csv --rows 5 --out more.csv",
    "a condition on an unknown column": "sample run/model.fedsynth --rows 5 --out more.csv --where regoin=north",
    "a condition on an unknown value": "sample run/model.fedsynth --rows 5 --out more.csv --where region=moon",
    "an evaluation of a run's folder": "evaluate run",
    "an evaluation of a folder that is no run": "evaluate photos people.csv",
    "half a guarantee": f"{_EVALUATE} --epsilon 1",
    "a suite that does not exist": f"{_EVALUATE} --suites thesiss",
    "a comparison at one site": "compare --data people.csv --epsilon 1 --delta 1e-6 --sites 1",
    "a plan without its options": "plan --schema people.toml",
    "several plans in one file": f"{_PLAN} --method oneshot,tda --out plan.toml",
    "a deployment that does not exist": "deploy status federation",
    "a site that does not exist": "site check /nowhere",
    "an invitation that is not one": "site join people.toml site",
    "an account of nothing": "account",
}
"""What each mistake is, and a command that makes it in the folder that :func:`world` fills."""

_ABSENT = {"an extra that is not installed": "statsmodels.datasets"}
"""Modules that are not installed where a mistake is made."""

_GREEDY = '''
from dataclasses import dataclass

from fedsynth.federation.query import Counts
from fedsynth.methods import method


@method("greedy")
@dataclass(frozen=True)
class Greedy:
    """Asks for more than the budget."""

    def fit(self, federation):
        for _ in range(2):
            federation.sum(Counts.of(2, [(0,), (1,)]), 0.8)
'''


def world(folder: Path) -> None:
    """Fill a folder with tables, schemas, a method and a run."""
    rows = [f"{18 + k % 60},{'north' if k % 3 else 'south'}" for k in range(300)]
    table = "\n".join(["age,region", *rows]) + "\n"
    age = '[[column]]\nname = "age"\ntype = "numeric"\nlow = 0\nhigh = 99\nbins = 10\ninteger = true\n'
    region = '[[column]]\nname = "region"\ntype = "categorical"\nvalues = ["north", "south"]\n'
    schema = f"fedsynth_schema = 1\n\n{age}\n{region}"
    for name, text in {
        "people.csv": table,
        "people.xlsx": table,
        "people.toml": schema,
        "empty.csv": "age,region\n",
        "twice.csv": table.replace("region", "age", 1),
        "odd.csv": table.replace("18,south", "18,moon", 1),
        "twice.toml": schema + age,
        "taller.toml": schema + age.replace('"age"', '"height"'),
        "broken.toml": schema.replace('"numeric"', "numeric"),
        "misspelt.toml": schema.replace("high", "hihg"),
        "greedy.py": _GREEDY,
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "photos").mkdir()
    (folder / "photos" / "cat.jpg").touch()
    simulate = f"{_SIMULATE} --schema people.toml --method oneshot --sites 2 --seed 1 --out run"
    code, _, complaints = call(folder, simulate)
    assert code == 0, complaints


def call(folder: Path, command: str, absent: str = "") -> tuple[int, str, str]:
    """Run a command in a folder; return its exit code, standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    hidden = mock.patch.dict(sys.modules, {absent: None}) if absent else contextlib.nullcontext()
    with (
        contextlib.chdir(folder),
        mock.patch.dict(os.environ, {"COLUMNS": "10000"}),  # whole lines
        hidden,
        mock.patch.object(sys, "path", [*sys.path, str(folder)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main(shlex.split(command))
        except SystemExit as stopped:
            return int(stopped.code or 0), out.getvalue(), err.getvalue()
    raise AssertionError("main() always exits")


def answer(folder: Path, mistake: str) -> str:
    """Return a mistake's command, text and exit code, made in a folder that :func:`world` filled."""
    command = MISTAKES[mistake]
    with mock.patch.object(logging.root, "handlers", []):  # those of pytest would take the warnings from the terminal
        code, out, err = call(folder, command, _ABSENT.get(mistake, ""))
    return f"# {mistake}\n$ fedsynth {command}\n{out}{err}exit code {code}\n"


def answers() -> dict[str, str]:
    """Return the answers in the golden file by their mistakes."""
    parts = re.split(r"(?m)^(?=# )", ERRORS.read_text(encoding="utf-8"))
    return {part.partition("\n")[0].removeprefix("# "): part.rstrip("\n") + "\n" for part in parts if part}


# ---------------------------------------------------------------------------------------------------------------------
# Examples


def examples() -> dict[str, list[str]]:
    """Return the examples in the help of each command, by the command's path."""
    found = {}
    for path, one in commands().items():
        text = help_text(path, one).partition("\nOptions:\n")[0].replace("\\\n", "")
        lines = (" ".join(line.split()) for line in text.splitlines() if line.startswith("  "))
        found[path] = [line for line in lines if line.startswith("fedsynth ")]
    return found


if __name__ == "__main__":
    for old in FOLDER.glob("*.txt"):
        old.unlink()
    for file, text in helps().items():
        (FOLDER / file).write_text(text, encoding="utf-8")
    with tempfile.TemporaryDirectory() as place:
        world(Path(place))
        ERRORS.write_text("\n".join(answer(Path(place), mistake) for mistake in MISTAKES), encoding="utf-8")
