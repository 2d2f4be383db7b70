"""Three servers in one process (the ideal functionality of the protocol), for tests and simulations.

Every step is that of a real server (:class:`~fedsynth.servers.server.ComputeParty`), in the same
order and with the same secrets: shares, the servers' statements of a question, noise and Gumbel numbers are
identical, bit by bit. Only the draw (the private selection of a candidate) differs: the shares of the candidates'
squared distances are added up here, and the rest is exact integer arithmetic (:func:`drawn`). Given the same secrets,
three real servers open the same tables and draw the same indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import Refused, SiteLost
from fedsynth.federation.events import DealtShares
from fedsynth.federation.trust import Traffic
from fedsynth.federation.wire import encode
from fedsynth.schema.bins import Integers
from fedsynth.servers.questions import GRAIN, OpenTables, Question, SelectTable
from fedsynth.servers.server import ComputeParty, part_for
from fedsynth.servers.shares import SERVERS, Wide, roots, total

DRAW_BYTES = 97e3
"""Bytes that a server sends to the two others for one candidate of a draw among three parties, as measured."""
DRAW_SECONDS = 3.1 / 161
"""CPU seconds that a server needs for one candidate of a draw, measured with 161 candidates."""


@dataclass(eq=False)
class IdealServers:
    """Three compute servers in one process, for tests and simulations: the real servers without a network.

    A vault is the sum of the sites' tables, which the three servers hold in secret shares. This class has the methods
    of :class:`~fedsynth.servers.vault.Servers`. ``servers`` are numbers 0, 1, 2; those whose
    number is in ``dead`` do not answer, for tests. ``traffic`` counts the bytes that three machines would have sent.
    Every method raises :class:`SiteLost` if a server does not answer, and :class:`Refused` or :class:`BudgetExceeded`
    if one refuses, except for what one refuses of a site (:meth:`take`).
    """

    servers: tuple[ComputeParty, ComputeParty, ComputeParty]
    dead: frozenset[int] = frozenset()
    traffic: Traffic = field(default_factory=Traffic)

    def begin(self, vault: str, body: bytes, signature: bytes) -> None:
        """Begin a vault, or let more sites join it, at all three servers.

        The vault's name ``vault`` is the digest (hex) of the question that it began with. ``body`` holds the bytes of
        the question that sites are asked now, and ``signature`` is the coordinator's signature of them. Raises
        :class:`SiteLost` if a server does not answer, and what :meth:`ComputeParty.begin
        <fedsynth.servers.server.ComputeParty.begin>` raises.
        """
        self._require()
        self.traffic.down += SERVERS * (len(vault) + len(body) + len(signature))
        for server in self.servers:
            server.begin(vault, body, signature)

    def take(self, vault: str, site: str, dealt: DealtShares) -> bool:
        """Pass one site's sealed shares to all three servers; return whether they accept them.

        They do if each server can open its two shares, and the two servers that have a share in common hold the same.
        Otherwise, all three leave the site out. ``vault`` is the vault's name (a digest, hex). ``site`` is the site's
        name, and ``dealt`` holds its shares (:class:`~fedsynth.federation.events.DealtShares`). Raises
        :class:`SiteLost` if a server does not answer.
        """
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
        """Let into the vault all ``sites``, which are those whose shares were accepted, in the order of :meth:`take`.

        ``vault`` is the vault's name (a digest, hex). Errors are those of :class:`IdealServers`.
        """
        self._require()
        for server in self.servers:
            server.keep(vault, sites)

    def open(self, question: OpenTables) -> Integers:
        """Return the noisy tables that ``question`` asks for, one after the other, int64 and flat.

        They have the noise of all three servers. A repeated question gets the same answer and is not charged again.
        Errors are those of :class:`IdealServers`.
        """
        if self._agreed(question):
            shares = [server.answered(server.share().tobytes()) for server in self.servers]
        else:
            shares = self._replies(question)
        self.traffic.up += sum(map(len, shares))
        return total([np.frombuffer(share, dtype=np.uint64) for share in shares])

    def draw(self, question: SelectTable) -> int:
        """Return the index of the candidate (a table) of ``question`` that the three servers drew together, privately.

        A repeated question gets the same answer and is not charged again. Errors are those of :class:`IdealServers`.
        """
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
            raise Refused(
                "the servers drew different candidates, so nothing is opened; install the same fedsynth on all"
            )
        return int.from_bytes(replies[0])

    def _agreed(self, question: Question) -> bool:
        """Let the servers agree to a question; return False if they have answered it already."""
        self._require()
        self.traffic.down += SERVERS * len(encode(question))
        if all(server.replied(question) is not None for server in self.servers):
            return False
        statements = [server.ask(question) for server in self.servers]
        self.traffic.among += sum((SERVERS - 1) * len(msgspec.msgpack.encode(statement)) for statement in statements)
        for server in self.servers:
            server.agree(statements)
        return True

    def _replies(self, question: Question) -> list[bytes]:
        replies = [server.replied(question) for server in self.servers]
        return [reply for reply in replies if reply is not None]

    def _require(self) -> None:
        if self.dead:
            names = ", ".join(f"server {number + 1}" for number in sorted(self.dead))
            raise SiteLost(
                f"{names} of three does not answer, and without it nothing is opened or charged; restart it and run "
                "the same command again: questions that were answered are not charged again"
            )


def utilities(distances: Integers, question: SelectTable) -> Integers:
    """Return the utilities (scores) of a draw's candidates, before noise, in units of 1 / ``GRAIN`` weighted record.

    ``GRAIN`` is 1024, and a weighted record is a record times the candidate's weight. ``distances`` are the L2
    distances of the candidates' tables from their expected counts, in whole records; ``question`` has the weights and
    penalties (:class:`~fedsynth.servers.questions.SelectTable`). Both the argument and the
    result are int64 of shape (candidates,).
    """
    weights, penalties = question.weights.astype(np.int64), question.penalties.astype(np.int64)
    found: Integers = GRAIN * weights * (distances - penalties)
    return found


def drawn(shares: Sequence[Wide], question: SelectTable, gumbels: Sequence[NDArray[np.int64] | None]) -> int:
    """Return the index of the largest utility (score) after adding Gumbel noise; the first one if several are equal.

    This is exactly what the draw among three parties computes. ``shares`` are the three additive shares (modulo 2^128,
    shape (2, candidates)) of the squared L2 distances of the candidates' tables from their expected counts; larger ones
    count as 2^51 - 1 (:func:`~fedsynth.servers.shares.roots`). ``question`` has the expected
    counts, weights and penalties. ``gumbels`` has one entry for each server: its noise for each candidate, in units of
    1 / ``GRAIN`` (1/1024) weighted record, or ``None`` if it adds none.
    """
    noisy = utilities(roots(*shares), question)
    for numbers in gumbels:
        if numbers is not None:
            noisy = noisy + numbers
    return int(noisy.argmax())
