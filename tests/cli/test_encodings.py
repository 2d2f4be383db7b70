"""What commands write: UTF-8 into files and pipes, whatever the system's encoding is, and to a screen what it shows."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

LANGUAGES = {
    "cp1252": {"PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"},
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}
_MAIN = "from fedsynth.cli.app import main; main()"
NAME = "ηλικία"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = "".join(f"{20 + at % 60},{'ναι' if at % 3 else 'όχι'}\n" for at in range(300))
    (tmp_path / "t.csv").write_text(f"{NAME},x\n{rows}", encoding="utf-8")
    return tmp_path


def command(folder: Path, language: dict[str, str], *words: object) -> subprocess.CompletedProcess[bytes]:
    program = [sys.executable, "-c", _MAIN, *map(str, words)]
    return subprocess.run(program, cwd=folder, env={**os.environ, **language}, capture_output=True, timeout=300)


@pytest.mark.parametrize("language", LANGUAGES.values(), ids=LANGUAGES)
def test_a_draft_that_goes_into_a_file_can_be_checked(folder, language):
    drafted = command(folder, language, "schema", "draft", "t.csv")
    assert drafted.returncode == 0, drafted.stderr
    assert NAME in drafted.stdout.decode("utf-8")
    (folder / "d.toml").write_bytes(drafted.stdout)
    checked = command(folder, language, "schema", "check", "t.csv", "--schema", "d.toml")
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("language", LANGUAGES.values(), ids=LANGUAGES)
def test_notes_and_complaints_in_pipes_are_utf_8(folder, language):
    drafted = command(folder, language, "schema", "draft", "t.csv", "--out", "d.toml")
    assert drafted.returncode == 0, drafted.stderr
    (folder / "bad.csv").write_text(f"{NAME},x\n30,ίσως\n", encoding="utf-8")
    checked = command(folder, language, "schema", "check", "bad.csv", "--schema", "d.toml")
    assert checked.returncode in (0, 3)
    assert "ίσως" in checked.stdout.decode("utf-8")
    failed = command(folder, language, "schema", "check", "t.csv", "--schema", "d.toml", "--πρόσεχε")
    assert failed.returncode == 2
    assert "Traceback" not in failed.stderr.decode("utf-8")


@pytest.mark.parametrize("language", LANGUAGES.values(), ids=LANGUAGES)
def test_a_screen_shows_a_mark_for_what_it_cannot_show(folder, language):
    """Never an error: that was "a bug in fedsynth" before."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    program = [sys.executable, "-c", _MAIN, "schema", "draft", "t.csv"]
    environment = {**os.environ, **language, "TERM": "dumb"}
    with subprocess.Popen(
        program, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True
    ) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # EIO at the end, on Linux
            while block := os.read(ours, 4096):
                shown += block
    os.close(ours)
    assert process.returncode == 0, shown
    assert b"??????" in shown
    assert b"draft = true" in shown


def test_a_screen_that_can_show_a_character_shows_it(folder):
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    program = [sys.executable, "-c", _MAIN, "schema", "draft", "t.csv"]
    environment = {**os.environ, "PYTHONIOENCODING": "iso8859-7"}
    with subprocess.Popen(program, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):
            while block := os.read(ours, 4096):
                shown += block
    os.close(ours)
    assert process.returncode == 0, shown
    assert NAME.encode("iso8859-7") in shown


def test_a_table_for_a_folder_that_is_missing_is_named(folder):
    """It said "[errno none] none: 'nowhere/x.csv' -> none"."""
    made = command(folder, {}, "example", "patients.csv")
    assert made.returncode == 0, made.stderr
    for name in ("x.csv", "x.parquet"):
        failed = command(folder, {}, "example", Path("nowhere") / name)
        assert failed.returncode == 2
        assert failed.stderr.decode("utf-8").strip() == (
            f"fedsynth: {Path('nowhere') / name}: no such file or directory; check the path"
        )
