"""How requests reach sites: one seam, ``exchange``.

Replies come one by one, so that a sum over many sites needs the memory of two.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from fedsynth.errors import FedsynthError
from fedsynth.federation.site import Site
from fedsynth.federation.wire import Reply, Request

Addressed = tuple[str, Request]


class Transport(Protocol):
    """Carries requests to sites and replies back."""

    @property
    def sites(self) -> Sequence[str]:
        """Names of the sites that can be reached."""

    def exchange(self, requests: Iterable[Addressed]) -> Iterator[Reply]:
        """Yield one reply per request, in the order of the requests."""


class InProcess:
    """Sites that live in this process: simulation, tests, and one organisation on its own."""

    def __init__(self, sites: Sequence[Site]) -> None:
        """Take the sites; their names must differ."""
        self._sites = {site.name: site for site in sites}
        if len(self._sites) != len(sites):
            raise ValueError("two sites share a name; give each its own")

    @property
    def sites(self) -> Sequence[str]:
        """Names of the sites, in the order given."""
        return tuple(self._sites)

    def exchange(self, requests: Iterable[Addressed]) -> Iterator[Reply]:
        """Yield each site's reply."""
        for name, request in requests:
            yield self._sites[name].answer(request)


class Recorded:
    """A transport with a memory on disk: checkpoint, audit trail and replay in one.

    Every question and answer is appended to ``path`` and synced before it is handed on. A run that starts
    again with the same path gets the recorded answers, so only live rounds reach a site. Confidential answers
    (a trusted server's exact counts) are recorded by digest alone and asked again; the site knows the
    question and charges nothing.

    Where a question takes several turns, each is recorded before it is sent. A site without a recorded answer to a
    turn that the run has since gone past has dropped out of that question: it is not asked again, since
    the others have already been told that it is out.
    """

    _MAGIC = b"fedsynth transcript 1\n"
    _LENGTH = struct.Struct(">BQ")
    _QUESTION, _ANSWER, _WITHHELD = 1, 2, 3

    def __init__(self, transport: Transport, path: Path) -> None:
        """Read what ``path`` holds, if it exists, and append to it from now on."""
        self._transport = transport
        self._path = path
        self._known: dict[tuple[str, str], bytes] = {}
        self._questions: set[str] = set()
        self._reached: dict[str, int] = {}  # turn, by question
        self._resume()

    @property
    def sites(self) -> Sequence[str]:
        """Names of the sites that can be reached."""
        return self._transport.sites

    def exchange(self, requests: Iterable[Addressed]) -> Iterator[Reply]:
        """Yield recorded replies where there are any, and live ones, which are recorded, where not."""
        asked = list(requests)
        for _, request in asked:
            if request.turn:
                self._ask(request)
        live = self._transport.exchange(
            [one for one in asked if (one[0], one[1].digest) not in self._known and not self._past(one[1])]
        )
        for name, request in asked:
            recorded = self._known.get((name, request.digest))
            if recorded is not None:
                yield Reply.from_bytes(recorded)
            elif self._past(request):
                yield Reply(name, request.digest, error="SiteLost")
            else:
                reply = next(live)
                self._record(request, reply)
                yield reply

    def _past(self, request: Request) -> bool:
        return self._reached.get(request.question, 0) > request.turn

    def _ask(self, request: Request) -> None:
        if request.digest not in self._questions:
            self._append(self._QUESTION, request.to_bytes())
            self._note(request)

    def _note(self, request: Request) -> None:
        self._questions.add(request.digest)
        self._reached[request.question] = max(request.turn, self._reached.get(request.question, 0))

    def _record(self, request: Request, reply: Reply) -> None:
        self._ask(request)
        if reply.error:
            return  # an error is not an answer: the next attempt asks again
        if reply.confidential:
            self._append(self._WITHHELD, f"{reply.site} {reply.digest}".encode())
        else:
            self._append(self._ANSWER, reply.to_bytes())

    def _append(self, kind: int, data: bytes) -> None:
        with self._path.open("ab") as file:
            file.write(self._LENGTH.pack(kind, len(data)) + data)
            file.flush()
            os.fsync(file.fileno())

    def _resume(self) -> None:
        """Read every whole record, and cut off what a crash left half-written."""
        self._path.touch()
        with self._path.open("r+b") as file:
            begun = file.read(len(self._MAGIC))
            if not self._MAGIC.startswith(begun):
                raise FedsynthError(f"{self._path} is not a transcript; give the run another path")
            if begun != self._MAGIC:
                file.seek(0)
                file.write(self._MAGIC)
            good = file.tell()
            while len(head := file.read(self._LENGTH.size)) == self._LENGTH.size:
                kind, length = self._LENGTH.unpack(head)
                data = file.read(length)
                if len(data) < length:
                    break
                self._remember(kind, data)
                good = file.tell()
            file.truncate(good)

    def _remember(self, kind: int, data: bytes) -> None:
        if kind == self._QUESTION:
            self._note(Request.from_bytes(data))
        elif kind == self._ANSWER:
            reply = Reply.from_bytes(data)
            self._known[reply.site, reply.digest] = data
        elif kind != self._WITHHELD:
            raise FedsynthError(f"{self._path} is damaged; give the run another path, or remove it and pay again")
