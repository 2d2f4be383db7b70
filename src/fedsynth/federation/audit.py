"""A site's audit log: who asked what, and whether it was answered; one line a request, each chained to the last.

Rule 1: no value, no row and no text of an unexpected error is ever written: a line is made of the request, and of the
reply its size and outcome. Rule 2: a line is on the disk before its reply leaves. Rule 3: nothing is ever
changed or repaired in passing; a file that is not as it was left stops the site until its steward has looked.

Each line carries the SHA-256 of the line before it, so a line that is edited, taken out or moved breaks the chain
behind it. What no chain can show by itself: the last line edited, lines cut off the end, a file written anew from
the start. Against all three, note the head (the last line's digest) somewhere else, and pass it to :func:`verify`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from fedsynth.errors import FedsynthError, Unsupported
from fedsynth.federation.wire import Reply, Request
from fedsynth.privacy.release import release_to_json

START = "0" * 64  # what the first line carries in place of a predecessor's digest
_LONGEST = 200  # characters of a text that a server chose: it must not fill the site's disk with one request
_REFUSALS = ("Refused", "BudgetExceeded", "Unsupported")
_TAIL = 1 << 16


def now() -> datetime:
    """Return the time, in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Findings:
    """What reading a log showed: ``lines`` whole lines, the digest of the last one (``head``), and what is wrong.

    ``broken`` is the number of the first line (from 1) that does not follow from its predecessor, 0 if there is
    none, and ``wrong`` says why. ``torn`` counts the bytes of an unfinished last line; ``noted_at`` is the line
    whose digest was noted elsewhere, 0 if the log has none such.
    """

    lines: int
    head: str
    broken: int = 0
    wrong: str = ""
    torn: int = 0
    noted_at: int = 0


@dataclass
class AuditLog:
    """The log at ``path``, to be given to a site: ``Site(..., audit=AuditLog(path))``.

    Threads and processes may share a file: each line is written under a lock on it. Raises :class:`FedsynthError`,
    so that the reply does not leave, where the file ends in a torn line or has lost lines that this object
    has seen.
    """

    path: Path
    clock: Callable[[], datetime] = now
    _seen: int = 0

    def __call__(self, request: Request, reply: Reply) -> None:
        """Write one line about a request and the reply that is about to leave, durably."""
        self._append(_line(request, reply))

    def _append(self, content: dict[str, Any]) -> None:
        with _locked(self.path) as file:
            end = file.seek(0, os.SEEK_END)
            if end < self._seen:
                raise FedsynthError(
                    f"{self.path} was {self._seen} bytes long and is {end}: lines were taken out of the audit log; "
                    "find out by whom, and move the file away to start another"
                )
            last = _last_line(file, end)
            if last and not last.endswith(b"\n"):
                raise FedsynthError(
                    f"{self.path} ends in a torn line, as a crash leaves it; its reply never left. "
                    f"Look at it, then: fedsynth audit {self.path} --repair"
                )
            time = self.clock().isoformat(timespec="milliseconds")
            head = {"time": time, **content, "previous": _digest(last) if last else START}
            file.write(json.dumps(head, allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            self._seen = file.tell()


def verify(path: Path, noted: str = "") -> Findings:
    """Read a log from the start and say where it first breaks, if it does; changes nothing.

    ``noted`` is a head that was written down elsewhere: a log that has no such line was cut or written anew.
    """
    previous, number, noted_at = START, 0, 0
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return Findings(number, previous, torn=len(line), noted_at=noted_at)
            wrong = _wrong(line, previous)
            if wrong:
                return Findings(number, previous, number + 1, wrong, noted_at=noted_at)
            previous, number = _digest(line), number + 1
            if previous == noted:
                noted_at = number
    return Findings(number, previous, noted_at=noted_at)


def repair(path: Path, clock: Callable[[], datetime] = now) -> int:
    """Cut a torn last line off, and write a line that says so; return the bytes cut, 0 where nothing is torn.

    What was cut is kept beside the log, in a file whose name ends in ``.torn`` and a number. Raises
    :class:`FedsynthError` where more than the last line is wrong: that is no crash, and not for a program to mend.
    """
    found = verify(path)
    if found.broken:
        raise FedsynthError(f"line {found.broken} of {path} {found.wrong}; a crash does not do that: keep the file")
    if not found.torn:
        return 0
    with _locked(path) as file:
        end = file.seek(0, os.SEEK_END)
        fragment = _last_line(file, end)
        if fragment.endswith(b"\n"):
            return 0
        number = sum(1 for _ in path.parent.glob(f"{path.name}.torn*"))
        kept = path.with_name(f"{path.name}.torn{number}")
        with kept.open("xb") as beside:
            beside.write(fragment)
            beside.flush()
            os.fsync(beside.fileno())
        file.truncate(end - len(fragment))
        os.fsync(file.fileno())
    AuditLog(path, clock)._append({"outcome": "repaired", "cut_bytes": len(fragment), "cut_sha256": _digest(fragment)})
    return len(fragment)


def _line(request: Request, reply: Reply) -> dict[str, Any]:
    refused = reply.error in _REFUSALS
    return {
        "run": _short(request.run),
        "step": _number(request.step),
        "attempt": _number(request.attempt),
        "turn": _number(request.turn),
        "verb": _short(request.verb),
        "task": _short(request.task),
        "release": release_to_json(request.release),
        "trust": _short(request.trust),
        "plan": _short(request.plan),
        "request": request.digest,
        "outcome": "refused" if refused else "failed" if reply.error else "answered",
        "error": _short(reply.error),
        "reason": _short(reply.reason) if refused else "",
        "cells": 0 if reply.values is None else int(reply.values.size),
    }


def _short(text: Any) -> str:
    """Return a text as it may stand in a log; JSON escapes what is left of control characters."""
    whole = str(text)
    return whole if len(whole) <= _LONGEST else f"{whole[:_LONGEST]}... ({len(whole)} characters)"


def _number(value: Any) -> int | str:
    return value if type(value) is int and abs(value) < 2**63 else _short(value)


def _wrong(line: bytes, previous: str) -> str:
    """Say what keeps a line from being the successor of the one with the digest ``previous``; empty if nothing does."""
    try:
        content = json.loads(line)
    except ValueError:
        return "is not JSON"
    if not isinstance(content, dict) or not isinstance(content.get("previous"), str):
        return "is no line of an audit log"
    if content["previous"] != previous:
        return "does not follow from the line before it: one of the two was changed, or lines are missing or moved"
    return ""


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _last_line(file: IO[bytes], end: int) -> bytes:
    """Return the last line of a file of ``end`` bytes, torn or whole, reading no more than it takes."""
    held = b""
    start = end
    while start and b"\n" not in held[:-1]:
        step = min(_TAIL, start)
        start -= step
        file.seek(start)
        held = file.read(step) + held
    file.seek(end)
    return held[held[:-1].rfind(b"\n") + 1 :]


@contextmanager
def _locked(path: Path) -> Iterator[IO[bytes]]:
    """Open the log, creating it for its owner's eyes only, while no other thread or process has it."""
    try:
        import fcntl
    except ModuleNotFoundError as error:
        raise Unsupported("an audit log needs POSIX file locks; run the site on Linux or macOS") from error
    new = not path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if new:
            _sync_folder(path.parent)
        yield file


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
