"""The texts by which users find their way: help, its examples, and the answers to mistakes."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.cli.golden.make import FOLDER, MISTAKES, answer, answers, call, commands, examples, helps, world
from tests.command import run

import fedsynth
from fedsynth.cli import commands as cli
from fedsynth.cli.adapter import help_of
from fedsynth.cli.app import app
from fedsynth.cli.layout import Command
from fedsynth.errors import InvalidParameter, SchemaError, nearest, number_of
from fedsynth.methods.generators import GUM, PGM
from fedsynth.runs.job import Job, parse_option
from fedsynth.schema import Categorical, Numeric, Schema

FEATURES = ("bench", "deploy", "evaluation", "proof", "publish", "servers")
ABSENT = [name for name in FEATURES if not find_spec(f"fedsynth.{name}")]
pytestmark = pytest.mark.skipif(bool(ABSENT), reason="the texts are those of a command line with every feature")
SCHEMA = Schema((Numeric("age", 0, 99), Categorical("income", ("low", "high")), Categorical("2020", ("a", "b"))))
BUDGET = ["--epsilon", "1", "--delta", "1e-6"]
SIMULATE = ["simulate", "--data", "DATA", *BUDGET]
EVALUATE = ["evaluate", "DATA", "DATA", "--schema", "s.toml", "--out", "o"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "people.csv"
    path.write_text("age,income\n" + "30,low\n41,high\n52,low\n" * 20)
    return path


def test_help_is_as_it_was():
    """Where a change is meant, ``python -m tests.cli.golden.make`` writes the files anew."""
    written = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.txt")}
    assert sorted(written) == sorted(helps())
    for name, text in helps().items():
        assert text == written[name], name


def test_every_command_has_its_summary_and_no_command_is_missing():
    """The list has the summaries, so that help need not import the commands."""
    found = commands()
    leaves = {path: one for path, one in found.items() if isinstance(one.default_command, Command)}
    for path, one in leaves.items():
        assert isinstance(one.default_command, Command)
        assert help_of(one.default_command.function).partition("\n")[0] == one.help, path
    assert len(list(FOLDER.glob("*.txt"))) == len(found) + 1  # simulate has two
    assert 25 < len(leaves) <= 36


def test_the_main_job_comes_first_and_no_summary_is_cut_off():
    groups = {path: one for path, one in commands().items() if not isinstance(one.default_command, Command)}
    assert len(groups) == 5
    texts = helps()
    for path in groups:
        text = texts[f"{path.replace(' ', '-')}.txt"]
        assert not re.search(r"\.\.\.$", text.partition("\n")[2], re.MULTILINE), path
        assert max(map(len, text.splitlines())) <= 78
    root = texts["fedsynth.txt"]
    assert re.findall(r"^  ([a-z-]+)  ", root, re.MULTILINE)[:3] == ["simulate", "demo", "example"]
    headings = re.findall(r"^(\w[^:\n]*):$", root.partition("--out run")[2], re.MULTILINE)
    assert [heading.split()[0] for heading in headings] == [
        *("Make", "Judge", "Use", "Decide", "Federate", "Check", "Research", "Options")
    ]


def test_simulate_shows_the_options_that_matter_and_the_others_on_request(capsys):
    assert run("simulate", "--help") == 0
    short = capsys.readouterr().out
    assert run("simulate", "--help-all") == 0
    full = capsys.readouterr().out
    shown, every = (re.findall(r"^  (--[a-z-]+)", text.partition("Options:")[2], re.M) for text in (short, full))
    assert len(shown) <= 16
    assert {"--data", "--epsilon", "--delta", "--out"} <= set(shown) < set(every)
    assert f"{len(every) - len(shown)} more options: fedsynth simulate --help-all" in short


@pytest.mark.parametrize("arguments", [["--help"], ["simulate", "--help"], ["simulate", "--data", "nowhere.csv"]])
def test_a_process_prints_no_escapes_where_there_is_no_terminal(arguments):
    command = [sys.executable, "-c", "from fedsynth.cli.app import main; main()", *arguments]
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm-256color"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == (0 if "--help" in arguments else 2)
    assert "\x1b" not in done.stdout + done.stderr
    if "--help" in arguments:
        name = "-".join(["fedsynth", *arguments[:-1]])
        assert done.stdout == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    world(folder)
    return folder


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_as_it_was(place, mistake):
    """Where a change is meant, ``python -m tests.cli.golden.make`` writes the file anew."""
    before = sorted(place.iterdir())
    said = answer(place, mistake)
    assert said == answers().get(mistake)
    assert not re.search(r"\x1b|Traceback|Errno|\w(Error|Exception)\b", said)
    assert re.search(r"exit code [2-9]\n$", said)
    assert sorted(one for one in place.iterdir() if one.name != "__pycache__") == [
        one for one in before if one.name != "__pycache__"
    ]


def test_all_mistakes_are_in_the_golden_file():
    assert list(answers()) == list(MISTAKES)
    assert len(MISTAKES) >= 30


def test_every_command_has_examples_that_its_own_parser_takes():
    found, shown = commands(), examples()
    assert sorted(shown) == sorted(found)
    for path, lines in shown.items():
        leaf = isinstance(found[path].default_command, Command)
        assert lines or not leaf, path
        for line in lines:
            words = shlex.split(line.partition(" > ")[0])[1:]
            _, bound, _ = app.parse_args(words, print_error=False, exit_on_error=False)
            named = " ".join(["fedsynth", *app.parse_commands(words)[0]])
            assert named == path or not leaf, line
            assert isinstance(found[named].default_command, Command), line
            assert bound.arguments or f"fedsynth {' '.join(words)}" == named, line


QUESTIONS = '[[question]]\nkind = "share"\nname = "readmitted"\nof = "readmitted=yes"\n'


def test_examples_run_as_they_stand(tmp_path):
    """What they read is written by the examples of ``fedsynth example``, but for declared questions."""
    (tmp_path / "asked.toml").write_text(QUESTIONS)
    quick = [line for line in examples()["fedsynth simulate"] if "augflaim" not in line and "fedprivsyn" not in line]
    ran = [*examples()["fedsynth example"], examples()["fedsynth schema draft"][0], *quick]
    ran += [*examples()["fedsynth sample"], *examples()["fedsynth methods"], *examples()["fedsynth schema check"]]
    for line in ran:
        code, _, complaints = call(tmp_path, line.removeprefix("fedsynth "))
        assert code == 0, f"{line}: {complaints}"
    assert len(ran) == 12


@pytest.mark.slow
def test_all_examples_of_the_main_commands_run_as_they_stand(tmp_path):
    (tmp_path / "asked.toml").write_text(QUESTIONS)
    for files in ("patients.csv --schema agreed.toml", "train.csv test.csv synthetic.csv", "north.csv south.csv"):
        assert call(tmp_path, f"example {files} --rows 1200")[0] == 0
    paths = ["simulate", "report", "compare", "plan", "advise"]
    for line in [line for path in paths for line in examples()[f"fedsynth {path}"]]:
        code, _, complaints = call(tmp_path, line.removeprefix("fedsynth "))
        assert code == 0, f"{line}: {complaints}"
    for name in ("train.csv", "test.csv"):  # the example of several rows a person has a column that tells them apart
        rows = pd.read_csv(tmp_path / name)
        rows.assign(patient=[f"{name} {at // 2}" for at in rows.index]).to_csv(tmp_path / name, index=False)
    for line in examples()["fedsynth evaluate"]:
        code, _, complaints = call(tmp_path, f"{line.removeprefix('fedsynth ')} --force")
        assert code == 0, f"{line}: {complaints}"


def test_an_option_of_several_commands_has_one_help_text():
    found: dict[str, set[str]] = {}
    for command in commands().values():
        for one in command.default_command.options if isinstance(command.default_command, Command) else ():
            if not one.positional:
                found.setdefault(one.spelled, set()).add(one.text)
    several = {option for option, texts in found.items() if len(texts) > 1}
    # These differ in meaning: sites by number or by name, a hold-out by share or by file, rows to draw or to expect,
    # repeats of splits or of dry runs, a run's name or files, one JSON object or one to a line, keys or files in the
    # place of others, an output that is a file, a folder, or a folder whose results grow, a seed of a run, of scores or
    # of rows, a column to predict or one to split by, a database to purge at once or at the end, a whole output or some
    # of its files to replace, a title and an owner that are new or may have been given before, a table for spreadsheets
    # in place of the table or beside it, questions to declare or how many there may be, tables to make or to write.
    meanings = {"--sites", "--holdout", "--rows", "--repeats", "--extract", "--json", "--replace", "--out", "--seed"}
    meanings |= {"--target", "--database", "--superlink", "--root-certificates", "--public-sizes", "--force"}
    meanings |= {"--title", "--owner", "--spreadsheet-safe", "--questions", "--tables"}
    # These differ in what may be given, and in what happens without them.
    needs = {"--schema", "--epsilon", "--delta", "--method", "--data"}
    # A unit that limits rows, or one for which a guarantee is stated.
    needs |= {"--person", "--rows-per-person", "--sites-per-person"}
    assert several == meanings | needs
    assert all(text for texts in found.values() for text in texts)


def test_the_version_is_printed(capsys):
    assert run("--version") == 0
    assert capsys.readouterr().out == f"fedsynth {fedsynth.__version__}\n"


SLIPS: list[tuple[list[str], str]] = [
    (["simulat"], 'Did you mean "simulate"?'),
    (["schema", "chek"], 'Did you mean "check"?'),
    (["simulate", "--methd", "x"], "Did you mean --method?"),
    ([*SIMULATE, "--method", "OneShoot"], "did you mean 'oneshot'?"),
    ([*SIMULATE, "--trust", "secured"], "did you mean 'secure'?"),
    ([*SIMULATE, "--set", "pilot_shre=0.5"], "did you mean 'pilot_share'?"),
    ([*SIMULATE, "--trust", "secure", "--trust-set", "min_honset=2"], "'min_honest'?"),
    ([*SIMULATE, "--partition", "lable-skew:1"], "did you mean 'label-skew'?"),
    ([*SIMULATE, "--partition", "column:incme"], "did you mean 'income'?"),
    ([*SIMULATE, "--target", "incme", "--holdout", "0.1"], "did you mean 'income'?"),
    ([*SIMULATE, "--method", "tda", "--set", "target=incme"], "did you mean 'income'?"),
    ([*SIMULATE, "--method", "fedprivsyn", "--set", "generator=pmg"], "did you mean 'pgm'?"),
    ([*SIMULATE, "--format", "parqet"], "did you mean 'parquet'?"),
    (["compare", "--data", "DATA", *BUDGET, "--method", "oneshoot"], "did you mean 'oneshot'?"),
    (["compare", "--data", "DATA", *BUDGET, "--test", "welsh"], "did you mean 'welch'?"),
    ([*SIMULATE, "--method", "aim", "--trust", "local"], "add --trust trusted"),
    (["compare", "--data", "DATA", *BUDGET, "--trust", "secured"], "did you mean 'secure'?"),
    (["compare", "--data", "DATA", *BUDGET, "--set", "speed=1"], "auto has no option speed"),
    (["compare", "--data", "DATA", *BUDGET, "--holdout", "0"], "--holdout above 0 and below 1"),
    (["compare", "--data", "DATA", *BUDGET, "--seed", "4294967295"], "--seed 4294967295: too large for 5 repeats"),
    ([*SIMULATE, "--seed", "-1"], "--seed: expected a whole number of at least 0, not -1"),
    ([*SIMULATE, "--method", "flaim", "--workload", "1:1:-1"], "is not of the form ORDER"),
    (["compare", "--data", "nowhere.csv", *BUDGET], "nowhere.csv: no such file or directory"),
    (["compare", "--data", "DATA", "--epsilon", "0", "--delta", "0"], "epsilon must be"),
    ([*EVALUATE, "--suites", "thesiss"], "did you mean 'thesis'?"),
    ([*EVALUATE, "--target", "incme"], "did you mean 'income'?"),
    ([*EVALUATE, "--known", "age,incme"], "did you mean 'income'?"),
    (["plan", "--schema", "s.toml", "--rows", "9", "--sites", "2", *BUDGET, "--method", "amm"], "did you mean 'aim'?"),
]


@pytest.mark.parametrize(("arguments", "says"), SLIPS)
def test_a_slip_of_the_pen_is_answered_by_what_was_meant(data, tmp_path, monkeypatch, capsys, arguments, says):
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(Schema(SCHEMA.columns[:2]).to_toml())
    before = sorted(tmp_path.iterdir())
    assert run(*[data if one == "DATA" else one for one in arguments]) in (2, 3, 6)
    said = capsys.readouterr().err
    assert says in said
    assert not re.search(r"\w(Error|Exception)\b|Errno|Unsupported|InvalidParameter", said)
    assert sorted(tmp_path.iterdir()) == before


def test_many_names_are_not_all_listed_and_counts_have_their_nouns():
    names = [f"column {k}" for k in range(1000)]
    assert nearest("Column 7", names) == "did you mean 'column 7'?"
    said = nearest("age", names)
    assert "column 39" in said
    assert said.endswith("(960 more)")
    assert nearest("age", []) == "there are none"
    assert [number_of(one, "site") for one in (0, 1, 2)] == ["0 sites", "1 site", "2 sites"]
    assert number_of(2, "entry", "entries") == "2 entries"


def test_options_of_a_method_are_written_by_name():
    def built(method: str, *texts: str) -> Any:
        return Job(method, 1.0, 1e-6, options=dict(parse_option(text) for text in texts)).build_method(SCHEMA)

    assert built("tda", "target=income").target == "income"
    assert built("tda", 'target="2020"').target == "2020"
    assert built("tda").target == ""
    assert built("fedprivsyn", "generator=pgm").generator == PGM()
    assert built("fedprivsyn", "generator=gum", "width=5").generator == GUM()
    assert built("aim", "rounds=none").rounds is None
    assert built("aim", "rounds=3").rounds == 3
    for method, text in (
        ("aim", "rounds=2.5"),
        ("aim", "rounds=true"),
        ("aim", "rounds=many"),
        ("oneshot", "iterations=none"),
        ("fedprivsyn", "generator=3"),
        ("fedprivsyn", "generator=other"),
    ):
        with pytest.raises(InvalidParameter, match=text.partition("=")[0]):
            built(method, text)
    with pytest.raises(SchemaError, match="'outcome'"):
        built("tda", "target=outcome")
    for text in ("rounds", "=3", "rounds="):
        with pytest.raises(InvalidParameter, match="NAME=VALUE"):
            parse_option(text)


def test_a_run_with_a_named_option_is_repeated_by_its_file(data, tmp_path):
    first, again = tmp_path / "first", tmp_path / "again"
    named = ["--method", "tda", "--set", "target=income", "--sites", "2", "--seed", "1"]
    assert run("simulate", "--data", data, *BUDGET, *named, "--out", first) == 0
    assert 'target = "income"' in (first / "run.toml").read_text()
    assert run("simulate", "--config", first / "run.toml", "--out", again) == 0
    assert (first / "synthetic.csv").read_bytes() == (again / "synthetic.csv").read_bytes()


def test_the_log_goes_to_a_file_of_its_owner_alone(data, tmp_path, capsys):
    log = tmp_path / "fedsynth.log"
    log.touch(mode=0o644)
    data.write_text(data.read_text() + "30\n")
    assert run("--log-file", log, "simulate", "--data", data, *BUDGET, "--sites", 2, "--out", tmp_path / "run") == 0
    assert "line 62 has 1 cells, not 2" in capsys.readouterr().err
    assert log.stat().st_mode & 0o777 == 0o600
    assert "line 62 has 1 cells, not 2" in log.read_text()
    assert run("--log-file", log, "simulate", "--data", "nowhere.csv", *BUDGET) == 2
    assert "exit code 2: nowhere.csv" in log.read_text()
    assert logging.getLogger("fedsynth").handlers == []
    assert run("--log-file", tmp_path / "no" / "log", "methods") == 2


def test_a_bug_is_said_to_be_one(tmp_path, monkeypatch, capsys):
    log, model = tmp_path / "fedsynth.log", _model(tmp_path)
    capsys.readouterr()
    monkeypatch.setattr(cli, "say", lambda *_: 1 / 0)  # what no user can cause
    assert run("--log-file", log, "sample", model, "--rows", 3, "--out", tmp_path / "a.csv") == 1
    said = capsys.readouterr().err
    bug = "this is a bug in fedsynth, or in a method, metric or source of your own; please report one in fedsynth"
    assert said == f"fedsynth: {bug} with the traceback in {log}\n"
    assert "ZeroDivisionError" in log.read_text()
    assert run("sample", model, "--rows", 3, "--out", tmp_path / "b.csv", "--json") == 1
    shown = capsys.readouterr()
    assert "ZeroDivisionError" in shown.err
    assert json.loads(shown.out)["exit_code"] == 1


def _model(folder: Path) -> Path:
    data = folder / "d.csv"
    if not data.exists():
        data.write_text("age,income\n" + "30,low\n41,high\n52,low\n" * 20)
        assert run("simulate", "--data", data, *BUDGET, "--sites", 2, "--out", folder / "r") == 0
    return folder / "r" / "model.fedsynth"


def test_a_reader_that_has_enough_ends_a_command_without_a_word():
    command = f"{sys.executable} -c 'from fedsynth.cli.app import main; main()' simulate --help-all"
    script = f"{command} | true; echo ${{PIPESTATUS[@]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("141 0\n", "")
