"""What a long run of tests records, in a small repository with a suite of its own."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUITE = """
import pytest
from tests.public_data import public_data

@pytest.mark.parametrize("number", range(4))
def test_passes(number):
    assert number >= 0

@pytest.mark.xfail(strict=True)
def test_fails_as_expected():
    assert False

def test_needs_a_data_set():
    public_data("planets.csv")

@pytest.mark.skip(reason="no PostgreSQL server is installed here")
def test_skips_for_another_reason():
    pass
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository with one commit: pytest's settings and a suite."""
    (tmp_path / "suite").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = suite\naddopts = -p no:cacheprovider\n")
    (tmp_path / ".gitignore").write_text("__pycache__\n")
    (tmp_path / "suite" / "test_suite.py").write_text(SUITE)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "suite")
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def run(repository: Path, *options: str) -> tuple[int, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "", "FEDSYNTH_DATA": str(repository / "none")}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # they take longer to load than the suite to run
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.record", *options]
    done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def rows(repository: Path) -> dict[str, list[str]]:
    place = repository / "tests" / "RECORD.md"
    lines = place.read_text().splitlines() if place.exists() else []
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {row[0]: row[1:] for row in cells if row[0] != "suite"}


@pytest.mark.parametrize("processes", [(), ("-p", "xdist", "-n", "2")])
def test_a_run_that_passed_is_recorded_with_its_commit_and_counts(repository, processes):
    code, said = run(repository, "--record", "slow", *processes)
    assert code == 0, said
    assert "recorded in tests/RECORD.md" in said
    when, commit, python, *counts, seconds = rows(repository)["slow"]
    assert abs((datetime.now(UTC) - datetime.fromisoformat(f"{when}+00:00")).total_seconds()) < 300
    assert git(repository, "rev-parse", "HEAD").startswith(commit)
    assert len(commit) == 12
    assert python == platform.python_version()
    assert counts == ["4", "1", "2", "1"]
    assert 0 <= int(seconds) < 120


def test_tests_without_their_data_are_counted_at_the_end_of_every_run(repository):
    _, said = run(repository)
    assert re.search(r"^1 tests skipped for want of public data sets \(planets\.csv\): put them into", said, re.M)
    assert not rows(repository)
    (repository / "none").mkdir()
    (repository / "none" / "planets.csv").write_text("")
    assert "for want of" not in run(repository)[1]


def test_a_suite_keeps_its_last_row_and_the_others_theirs(repository):
    run(repository, "--record", "slow")
    run(repository, "--record", "chaos")
    assert set(rows(repository)) == {"slow", "chaos"}
    clean = rows(repository)
    assert "with changes" not in clean["chaos"][1]  # the record of the first run is no change
    (repository / "suite" / "test_more.py").write_text("def test_more():\n    pass\n")
    run(repository, "--record", "slow")
    assert rows(repository)["slow"][1] == f"{clean['slow'][1]} with changes"
    assert rows(repository)["slow"][3] == "5"
    assert rows(repository)["chaos"] == clean["chaos"]


def test_a_commit_that_came_while_tests_ran_shows(repository):
    (repository / "suite" / "test_more.py").write_text(
        "from pathlib import Path\n\ndef test_more():\n    Path('suite/new.py').write_text('')\n"
    )
    git(repository, "add", ".")
    git(repository, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "more")
    run(repository, "--record", "slow")
    assert rows(repository)["slow"][1].endswith(" with changes")


def test_a_run_that_failed_or_was_partial_leaves_the_record_alone(repository):
    run(repository, "--record", "slow")
    before = (repository / "tests" / "RECORD.md").read_text()
    for options in (("-k", "passes"), ("suite/test_suite.py",)):
        code, said = run(repository, "--record", "slow", *options)
        assert "nothing recorded of the suite slow: only some of its tests were run" in said, options
    (repository / "suite" / "test_more.py").write_text("def test_more():\n    assert False\n")
    code, said = run(repository, "--record", "slow")
    assert code == 1
    assert "nothing recorded of the suite slow: not every test passed" in said
    assert (repository / "tests" / "RECORD.md").read_text() == before


def test_a_process_whose_own_tests_passed_records_nothing(repository):
    (repository / "suite" / "test_more.py").write_text("def test_more():\n    assert False\n")
    code, said = run(repository, "--record", "slow", "-p", "xdist", "-n", "3", "--dist", "loadfile")
    assert code == 1
    assert "nothing recorded of the suite slow: not every test passed" in said
    assert not rows(repository)


def test_the_long_suites_are_recorded():
    makefile = (ROOT / "Makefile").read_text()
    for target, marker in (("test-slow", "slow"), ("chaos", "chaos")):
        (recipe,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
        assert re.search(rf"-m {marker} --record {target}$", recipe, re.MULTILINE), recipe
    assert (ROOT / "tests" / "RECORD.md").exists()
