"""Requests and replies as files: their names.

Rule 1: a file holds the bytes of a request or of a reply, as they travel over any carrier
    (:mod:`~fedsynth.federation.wire`). Tools that carry files may copy them piece by piece: a file whose signature,
    lengths and digests do not hold yet is incomplete or foreign, left alone, and read again later.
Rule 2: a name is used once. A message that is sent again after it was refused or given up gets another ``attempt``, so
    no request is ever overwritten. A site replaces only replies in the folder that are incomplete or not its own.
Rule 3: that a run has ended is told in the file RUN.end among the requests, and acknowledged in RUN.ended among the
    replies (:mod:`~fedsynth.federation.ending`). Both carry signatures, which show that they are complete.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from fedsynth.federation.transport import Message
from fedsynth.federation.wire import Received

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NAME = re.compile(
    r"(?P<run>[A-Za-z0-9][A-Za-z0-9._-]{0,63})\.(?P<step>[0-9]{6,10})\.(?P<turn>[0-9]{1,4})"
    r"\.(?P<digest>[0-9a-f]{32})\.(?P<attempt>[0-9a-f]{16})"
)


@dataclass(frozen=True)
class MessageName:
    """The name of a request or reply file without its ending: which message of which run it holds.

    ``digest`` is the first half of the message's digest (32 hex digits). ``attempt`` (16 hex digits) is the request's,
    so that a message that is sent again gets another file name; it is empty in a name for all files of a message.
    """

    run: str
    step: int
    turn: int
    digest: str
    attempt: str = ""

    @classmethod
    def of(cls, message: Message) -> MessageName:
        """Return the name of the file that this sending of a message is put into."""
        request = message.request
        return cls(request.head.run, request.head.step, request.turn, request.digest[:32], message.attempt.hex())

    @classmethod
    def received(cls, found: Received) -> MessageName:
        """Return the name of the file that a request was put into, as its signed head tells."""
        head = found.head
        return cls(head.run, head.step, head.turn, found.message[:32], head.attempt.hex())

    @classmethod
    def parse(cls, stem: str) -> MessageName | None:
        """Return the name that ``stem`` spells, a file's name without its ending; ``None`` for any other text."""
        found = _NAME.fullmatch(stem)
        if found is None:
            return None
        name = cls(found["run"], int(found["step"]), int(found["turn"]), found["digest"], found["attempt"])
        return name if str(name) == stem else None

    def __str__(self) -> str:
        """Return the stem; it has at most 136 characters, which every file system allows."""
        return f"{self.run}.{self.step:06d}.{self.turn}.{self.digest}.{self.attempt}"

    @property
    def request(self) -> str:
        """File name of the request: this name and ``.request``."""
        return f"{self}.request"

    @property
    def reply(self) -> str:
        """File name of the reply: this name and ``.reply``."""
        return f"{self}.reply"

    @property
    def without_attempt(self) -> MessageName:
        """The same name with an empty ``attempt``."""
        return replace(self, attempt="")

    @property
    def said(self) -> str:
        """The message as words for logs, such as ``run r1, step 3, turn 0``."""
        return f"run {self.run}, step {self.step}, turn {self.turn}"


def named(file: str) -> MessageName | None:
    """Return the parts of the name of a request or reply file; ``None`` if ``file`` is the name of any other file."""
    stem, _, kind = file.rpartition(".")
    return MessageName.parse(stem) if kind in ("request", "reply") else None


def run_of(file: str) -> str:
    """Return the run whose end a file among the requests tells, by its name; empty for any other name."""
    run, _, kind = file.rpartition(".")
    return run if kind == "end" and _RUN.fullmatch(run) else ""
