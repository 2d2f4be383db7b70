"""The page of a run that goes on, in a real browser: every state, phone and desk, light and dark, by axe's rules.

Needs what the look at the report's page needs; skipped where one of them is absent.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.browser.test_report_page import CHROMIUM, HERE, NODE, SOME, VIEWS
from tests.browser.test_report_page import pytestmark as needs_a_browser

from fedsynth.deploy.run_events import (
    AttemptBegun,
    AttemptEnded,
    RoundsExpected,
    RoundStarted,
    SiteReplied,
    SiteReported,
    WorkAdvanced,
)
from fedsynth.deploy.status import RunView, attempts, lines_of
from fedsynth.deploy.watch import WatchPage

pytestmark = needs_a_browser
SITES = ("north", "south", "east", "a-site-with-a-name-of-31-letters", "west")
LONG = "/srv/federations/health-insurance-2026/" + "a-folder-without-any-space-in-its-name/" * 4


def events(number: int) -> Iterator[Any]:
    """Yield what a run has told when it has come so far."""
    common: dict[str, Any] = {"attempt": "1"}
    terms: dict[str, Any] = {"method": "auto", "trust": "secure", "least": 3, "deadline": 600, "fedsynth": "1"}
    yield AttemptBegun(time=0, run="2026-11-22-9f31c0", sites=SITES, **terms, **common)
    yield from (SiteReported(time=1, site=site, state="connected", **common) for site in SITES[: 3 + number])
    if number == 0:
        return
    yield RoundsExpected(time=2, rounds=15, **common)
    yield WorkAdvanced(time=2, what="pairs released", done=12, total=40, **common)
    for turn in range(2):
        began = 10.0 + 20 * turn
        sizes = dict.fromkeys(SITES, 4_812)
        yield RoundStarted(
            time=began, round=turn + 1, step=0, turn=turn, verb="sum", kind="counts", bytes=sizes, **common
        )
        told = [("north", "answered"), ("south", "lost"), ("east", "answered")]
        for at, (site, code) in enumerate(told if turn else [(site, "answered") for site in SITES]):
            of: dict[str, Any] = {"time": began + 1.5 + at, "seconds": 1.5 + at, "bytes": 81_234}
            yield SiteReplied(round=turn + 1, site=site, code=code, **of, **common)
    yield SiteReported(time=40, site=SITES[3], state="away", **common)
    if number == 2:
        sentence = "site west refused step 3 (sum counts); its steward reads the reason in the site's audit log"
        yield AttemptEnded(time=95, exit_code=5, error="Refused", message=sentence, **common)
    if number == 3:
        warning = "epsilon = 30 is above 20: the guarantee excludes hardly any attack; usual values are 0.1 to 10"
        made: dict[str, Any] = {"headline": "(30, 1e-06)-differentially private", "warnings": (warning,)}
        yield AttemptEnded(time=95, exit_code=0, folder=LONG, lost=("south",), **made, **common)


STATES = {"connecting": 0, "asking": 1, "ended": 2, "complete": 3}


def view(number: int) -> RunView:
    (found,) = attempts(events(number)).values()
    return found


@contextmanager
def served(number: int) -> Iterator[WatchPage]:
    status = view(number).status(alive=True, now=95.0)
    with WatchPage(lambda: {**msgspec.to_builtins(status), "lines": lines_of(status)}) as page:
        thread = threading.Thread(target=page.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield page
        finally:
            page.shutdown()
            thread.join(10)


# The page is looked at in two states in every run of the tests, in the others by `make test-slow`.
@pytest.mark.parametrize(
    "state", [one if one in ("asking", "complete") else pytest.param(one, marks=pytest.mark.slow) for one in STATES]
)
def test_the_page_of_a_run_in_every_state(tmp_path: Path, state: str) -> None:
    assert view(STATES[state]).status(alive=True, now=95.0).state == state
    with served(STATES[state]) as page:
        chosen = VIEWS if state == "asking" else SOME
        done = subprocess.run(
            [str(NODE), str(HERE / "look.mjs"), page.url, str(tmp_path / "seen"), str(CHROMIUM), ",".join(chosen)],
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr
    views = json.loads(done.stdout)
    assert set(views) == set(chosen)
    for name, seen in views.items():
        assert (seen["requests"], seen["console"]) == ([], []), name
        assert seen["heading"] == ("A run of a federation" if name == "no-script" else "Run 2026-11-22-9f31c0"), name
        assert (tmp_path / "seen" / f"{name}.png").stat().st_size > 5_000
    for name in views.keys() - {"print", "no-script"}:
        assert (views[name]["overflow"], views[name]["axe"]) == (0, []), name
