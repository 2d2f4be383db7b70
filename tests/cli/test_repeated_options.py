"""An option that takes one value is refused if it is given twice, whatever the command."""

from __future__ import annotations

import json

import pytest
from tests.cli.golden.make import commands

from fedsynth.cli.app import main
from fedsynth.cli.layout import Command

SINGLE = [
    (path.split()[1:], one.spelled)
    for path, command in commands().items()
    if isinstance(command.default_command, Command)
    for one in command.default_command.options
    if not (one.positional or one.several or one.base is bool)
]
SINGLE.append(([], "--log-file"))


def answer(capsys, *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr()
    return int(ended.value.code or 0), " ".join((said.err + said.out).split())


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Commands that should be refused and are not write here."""
    monkeypatch.chdir(tmp_path)


def test_there_are_such_options():
    assert len(SINGLE) > 100
    assert ([], "--log-file") in SINGLE
    assert (["deploy", "init"], "--schema") in SINGLE


@pytest.mark.parametrize(("command", "option"), SINGLE, ids=lambda one: one if isinstance(one, str) else " ".join(one))
def test_an_option_of_one_value_given_twice_is_wrong_usage(capsys, command, option):
    for words in ([option, "1", option, "1"], [option, "1", f"{option}=2", option, "3"]):
        code, said = answer(capsys, *command, *words)
        assert code == 2
        assert f"{option} is given more than once and takes one value" in said


def test_two_tables_for_a_simulation_are_an_error_that_says_what_to_do(capsys, tmp_path):
    words = ("--epsilon", "1", "--delta", "1e-6", "--out", str(tmp_path / "run"))
    code, said = answer(capsys, "simulate", "--data", "a.csv", "--data", "b.csv", *words)
    assert code == 2
    assert "one table is split over the simulated sites. Join the files into one, or, if each site has its" in said
    assert "pass them to federate({...}) in Python or run a real federation (fedsynth deploy)" in said
    code, said = answer(capsys, "simulate", "--data", "a.csv", "--data", "b.csv", *words, "--json")
    assert code == 2
    assert json.loads(said)["error"] == "UsageError"


def test_lists_and_flags_may_be_repeated_and_help_is_shown(capsys):
    code, said = answer(capsys, "sample", "none", "--rows", "1", "--out", "x.csv", "--where", "a=1", "--where", "b=1")
    assert code != 0
    assert "times" not in said
    code, said = answer(capsys, "methods", "--json", "--json")
    assert code == 0
    code, said = answer(capsys, "report", "--title", "a", "--title", "b", "--help")
    assert code == 0
    assert said.startswith("Usage: fedsynth report")


def test_an_option_that_does_not_exist_is_named(capsys):
    code, said = answer(capsys, "simulate", "--dat", "a.csv", "--epsilon", "1")
    assert code == 2
    assert "unknown option: --dat. Did you mean --data?" in said
