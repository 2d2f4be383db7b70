"""What a long run of tests leaves: a line in tests/RECORD.md, and a count of tests that had no data.

``pytest --record SUITE`` writes, if every test passed, when that was, on which commit, with which Python, and how
many tests there were. A run of some tests of a suite is not recorded.
"""

from __future__ import annotations

import datetime
import platform
import subprocess
import time
from pathlib import Path

import pytest
from tests.public_data import ABSENT

HEAD = """# When the long suites of tests last passed

`make test-slow` and `make chaos` write their line when all of their tests have passed, and only then: commit it.
A commit "with changes" had files beside it that were not committed; tests "without data" lacked a public data set.

| suite | passed on (UTC) | commit | Python | passed | failed as expected | skipped | of these without data | seconds |
|---|---|---|---|---|---|---|---|---|
"""
_TREE = pytest.StashKey[str]()
_BEGAN = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", metavar="SUITE", help="Write into tests/RECORD.md that all tests of SUITE passed.")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Keep what is tested, and since when."""
    session.config.stash[_BEGAN] = time.monotonic()
    if session.config.getoption("record"):
        session.config.stash[_TREE] = tree(session.config.rootpath)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """Count the tests that had no data, and record the run if it was asked for."""
    skipped = terminalreporter.getreports("skipped")
    reasons = [str(report.longrepr[2]) for report in skipped if isinstance(report.longrepr, tuple)]
    absent = [reason.partition(ABSENT)[2] for reason in reasons if ABSENT in reason]
    if absent:
        terminalreporter.write_line(
            f"{len(absent)} tests skipped for want of public data sets ({', '.join(sorted(set(absent)))}): put them "
            "into ../shared/data, or name their folder in FEDSYNTH_DATA",
            yellow=True,
        )
    suite = config.getoption("record")
    if not suite or hasattr(config, "workerinput"):  # a process of xdist has seen some of the tests only
        return
    passed = len(terminalreporter.getreports("passed"))
    some = config.args_source is config.ArgsSource.ARGS or any(
        config.getoption(name) for name in ("keyword", "deselect", "ignore", "ignore_glob", "lf", "maxfail")
    )
    if some or exitstatus != pytest.ExitCode.OK or not passed:
        why = "only some of its tests were run" if some else "not every test passed"
        terminalreporter.write_line(f"nothing recorded of the suite {suite}: {why}", yellow=True)
        return
    before = config.stash[_TREE]
    row = (
        suite,
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M}",
        before if tree(config.rootpath) == before else f"{before.partition(' ')[0]} with changes",
        platform.python_version(),
        str(passed),
        str(len(terminalreporter.getreports("xfailed"))),
        str(len(skipped)),
        str(len(absent)),
        f"{time.monotonic() - config.stash[_BEGAN]:.0f}",
    )
    place = config.rootpath / "tests" / "RECORD.md"
    write(place, row)
    terminalreporter.write_line(f"recorded in {place.relative_to(config.rootpath)}: commit it")


def tree(root: Path) -> str:
    """Return the commit that is checked out, and whether files differ from it; the record itself does not count."""
    command = ["git", "-C", str(root)]
    try:
        commit = subprocess.check_output([*command, "rev-parse", "--short=12", "HEAD"], text=True).strip()
        changed = subprocess.check_output([*command, "status", "--porcelain", "--", ".", ":!tests/RECORD.md"])
    except (OSError, subprocess.CalledProcessError):
        return "no repository"
    return f"{commit} with changes" if changed.strip() else commit


def write(place: Path, row: tuple[str, ...]) -> None:
    """Put a suite's row into the record, in the place of its last one."""
    lines = place.read_text(encoding="utf-8").splitlines() if place.exists() else []
    rows = {line.split("|")[1].strip(): line for line in lines if line.startswith("| ")}
    rows.pop("suite", None)
    rows[row[0]] = f"| {' | '.join(row)} |"
    place.write_text(HEAD + "".join(f"{rows[name]}\n" for name in sorted(rows)), encoding="utf-8")
