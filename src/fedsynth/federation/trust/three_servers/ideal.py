"""The ideal functionality: three servers in one process, for tests and simulations.

Every step is that of a real server (:class:`~fedsynth.federation.trust.three_servers.server.Server`), in the same order
and from the same secrets: shares, rosters, noise and Gumbel numbers are the same bits. Only the draw is not computed
among three parties: the scores' shares are added up here, and what is left is integer arithmetic that both do exactly
(:func:`drawn`). So for the same secrets both open the same tables and draw the same indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import Refused, SiteLost
from fedsynth.federation.events import Dealt
from fedsynth.federation.trust.three_servers.keys import SERVERS
from fedsynth.federation.trust.three_servers.questions import GRAIN, Draw, Open, Question
from fedsynth.federation.trust.three_servers.server import Server, part_for
from fedsynth.federation.trust.three_servers.shares import Words, roots, total
from fedsynth.federation.wire import encode
from fedsynth.schema.bins import Integers

DRAW_BYTES = 80e3
"""Bytes that a server sends to the two others for one candidate of a draw among three parties, as measured."""
DRAW_SECONDS = 2.7 / 161
"""CPU seconds that it takes a server, measured for 161 candidates."""


@dataclass
class Traffic:
    """Bytes that the real servers would have moved: from the coordinator to all three, back, and among each other.

    ``draw_seconds`` are CPU seconds of one server's part in the draws, as measured.
    """

    down: int = 0
    up: int = 0
    among: int = 0
    draw_seconds: float = 0.0

    @property
    def sent(self) -> int:
        """Bytes that the servers sent, all three together."""
        return self.up + self.among


@dataclass(eq=False)
class Ideal:
    """Three servers in one process; ``dead`` are the numbers (0, 1, 2) of those that do not answer, for tests."""

    servers: tuple[Server, Server, Server]
    dead: frozenset[int] = frozenset()
    traffic: Traffic = field(default_factory=Traffic)

    def begin(self, vault: str, body: bytes, signature: bytes) -> None:
        """Begin a vault, or let more sites into it: the deposit's question as the coordinator signed it."""
        self._require()
        self.traffic.down += SERVERS * (len(vault) + len(body) + len(signature))
        for server in self.servers:
            server.begin(vault, body, signature)

    def take(self, vault: str, site: str, dealt: Dealt) -> bool:
        """Hand on what a site dealt; whether all three hold the same shares of it. Otherwise it is out everywhere."""
        self._require()
        confirmations: list[tuple[bytes, bytes]] = []
        refused = False
        for number, server in enumerate(self.servers):
            part = part_for(dealt, number)
            self.traffic.down += len(encode(part)) + len(site)
            try:
                confirmations.append(server.take(vault, site, part))
            except Refused:
                refused = True
                confirmations.append((b"", b""))
        self.traffic.among += 2 * SERVERS * 32
        agreed = [
            server.confirm(vault, site, confirmations[number - 1][1], confirmations[(number + 1) % SERVERS][0])
            for number, server in enumerate(self.servers)
        ]
        if all(agreed) and not refused:
            return True
        for server in self.servers:
            server.drop(vault, site)
        return False

    def keep(self, vault: str, sites: Sequence[str]) -> None:
        """Let the sites in that were taken."""
        self._require()
        for server in self.servers:
            server.keep(vault, sites)

    def open(self, question: Open) -> Integers:
        """Return the tables of a question, flat, with the noise of all three."""
        if self._agreed(question):
            shares = [server.answered(server.share().tobytes()) for server in self.servers]
        else:
            shares = self._replies(question)
        self.traffic.up += sum(map(len, shares))
        return total([np.frombuffer(share, dtype=np.uint64) for share in shares])

    def draw(self, question: Draw) -> int:
        """Return the index that was drawn."""
        if self._agreed(question):
            candidates = len(question.cliques)
            self.traffic.among += round(SERVERS * DRAW_BYTES * candidates)
            self.traffic.draw_seconds += DRAW_SECONDS * candidates
            shares = [server.scores() for server in self.servers]
            index = drawn(shares, question, [server.gumbels() for server in self.servers])
            replies = [server.answered(index.to_bytes(4)) for server in self.servers]
        else:
            replies = self._replies(question)
        self.traffic.up += sum(map(len, replies))
        if len(set(replies)) > 1:
            raise Refused("the three servers drew different candidates; nothing is opened")
        return int.from_bytes(replies[0])

    def _agreed(self, question: Question) -> bool:
        """Let the servers agree to a question; not if it was answered before."""
        self._require()
        self.traffic.down += SERVERS * len(encode(question))
        if all(server.replied(question) is not None for server in self.servers):
            return False
        rosters = [server.ask(question) for server in self.servers]
        self.traffic.among += sum((SERVERS - 1) * len(msgspec.msgpack.encode(roster)) for roster in rosters)
        for server in self.servers:
            server.agree(rosters)
        return True

    def _replies(self, question: Question) -> list[bytes]:
        replies = [server.replied(question) for server in self.servers]
        return [reply for reply in replies if reply is not None]

    def _require(self) -> None:
        if self.dead:
            names = ", ".join(f"server {number + 1}" for number in sorted(self.dead))
            raise SiteLost(
                f"{names} of the three is silent, and without it nothing is opened or charged; restart it and run the "
                "same command again: what was answered is not charged again"
            )


def traffic_of(trust: object) -> Traffic:
    """Return what three servers in this process have moved so far: nothing under a trust without them."""
    servers = getattr(trust, "servers", None)
    return servers.traffic if isinstance(servers, Ideal) else Traffic()


def utilities(distances: Integers, question: Draw) -> Integers:
    """Return the utilities, given the integer square roots of all sums of squares, in parts of 1 / ``GRAIN``."""
    weights, penalties = question.weights.astype(np.int64), question.penalties.astype(np.int64)
    found: Integers = GRAIN * weights * (distances - penalties)
    return found


def drawn(shares: Sequence[Words], question: Draw, gumbels: Sequence[NDArray[np.int64] | None]) -> int:
    """Return the index of the largest utility with its Gumbel numbers; of equal ones the first.

    ``shares`` are the three additive shares of the candidates' sums of squares, which are below 2^50 (2^64 in general,
    where sites hold more than they may: the sum wraps at 2^64). What the draw among three parties computes, exactly.
    """
    noisy = utilities(roots(*shares), question)
    for numbers in gumbels:
        if numbers is not None:
            noisy = noisy + numbers
    return int(noisy.argmax())
