"""When a site's replies are due, noted where it waits: what a busy machine adds to that says nothing."""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

import pytest

from fedsynth.deploy.host.state import TimedReplies, answer, wait_until_due


def noted_waits(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[float]:
    """Return a list that gets an entry whenever a transport's module waits: how long after its message a reply is due.

    The module waits as before, for that long, and must count from a time before it began to answer.
    """
    found: list[float] = []
    asked: list[float] = []

    def answered(*messages: Any) -> TimedReplies:
        asked.append(time.monotonic())
        return answer(*messages)

    def wait(began: float, every: float, *, seconds: float = 0.0) -> None:
        assert all(began <= moment for moment in asked), "the time of an answer is waited for as well, and shows"
        asked.clear()
        now = [time.monotonic()]  # a clock that stands still while the time is found
        wait_until_due(began, every, lambda: now[0], lambda left: now.__setitem__(0, now[0] + left), seconds=seconds)
        found.append(now[0] - began)
        time.sleep(max(0.0, now[0] - time.monotonic()))

    monkeypatch.setattr(module, "answer", answered)
    monkeypatch.setattr(module, "wait_until_due", wait)
    return found


def whole(seconds: float, every: float) -> bool:
    """Whether a time is a whole multiple of another one, and at least that."""
    steps = seconds / every
    return round(steps) >= 1 and abs(steps - round(steps)) < 1e-6
