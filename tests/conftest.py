"""What every test begins with, and what a run of them ends with."""

from __future__ import annotations

import os
import signal

import pytest
from tests.record import pytest_addoption, pytest_sessionstart, pytest_terminal_summary

__all__ = ["pytest_addoption", "pytest_sessionstart", "pytest_terminal_summary"]

# Variables of the environment that make the command line write as to a terminal.
for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):  # Rich's; machines that run tests for others set the first
    os.environ.pop(name, None)

# A shell that runs tests in the background lets them, and every process that they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands print sentences on one line each, so that tests can look for them."""
    monkeypatch.setenv("COLUMNS", "10000")
