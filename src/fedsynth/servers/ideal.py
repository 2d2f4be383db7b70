"""Three servers in one process (the ideal functionality of the protocol), for tests and simulations.

Every call is answered by a real server (:class:`~fedsynth.servers.server.ComputeParty`): shares, statements, noise and
Gumbel numbers are identical, bit by bit. Only in a draw, the shares of the candidates' squared distances are added up
here, and the rest is exact integer arithmetic (:func:`drawn`). Given the same secrets, three real servers open the same
tables and draw the same indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsynth.federation.wire import encode
from fedsynth.schema.bins import Integers
from fedsynth.servers.calls import Agree
from fedsynth.servers.draw import Drawn
from fedsynth.servers.questions import GRAIN, SelectTable
from fedsynth.servers.server import ComputeParty
from fedsynth.servers.shares import Wide, roots

DRAW_BYTES = 97_000
"""Bytes that a server sends to the two others for one candidate of a draw among three parties, as measured."""


@dataclass(eq=False)
class IdealServers:
    """Three compute servers in one process, by number: a :data:`~fedsynth.servers.vault.SendAll`."""

    parties: tuple[ComputeParty, ComputeParty, ComputeParty]
    _last: tuple[bytes, Drawn] | None = None

    def __call__(self, frames: Sequence[bytes]) -> list[bytes]:
        """Return each server's reply to its frame."""
        return [encode(party.answer(frame, self._draw)) for party, frame in zip(self.parties, frames, strict=True)]

    def _draw(self, question: SelectTable, call: Agree) -> Drawn:
        """Draw for all three servers at once; as between processes, none gives its shares before it has agreed."""
        stated = call.statements[0].statement.body
        if self._last is None or self._last[0] != stated:
            for party in self.parties:
                party.agree(call.statements)
            shares, gumbels = [party.scores() for party in self.parties], [party.gumbels() for party in self.parties]
            self._last = stated, Drawn(drawn(shares, question, gumbels), DRAW_BYTES * len(question.cliques))
        return self._last[1]


def utilities(distances: Integers, question: SelectTable) -> Integers:
    """Return the utilities of a draw's candidates, before noise, in units of 1 / ``GRAIN`` weighted record.

    ``distances`` are the L2 distances of the candidates' tables from their expected counts, in whole records. Both the
    argument and the result are int64 of shape (candidates,).
    """
    weights, penalties = question.weights.astype(np.int64), question.penalties.astype(np.int64)
    found: Integers = GRAIN * weights * (distances - penalties)
    return found


def drawn(shares: Sequence[Wide], question: SelectTable, gumbels: Sequence[NDArray[np.int64] | None]) -> int:
    """Return the index of the largest utility after adding Gumbel noise; the first one if several are equal.

    This is exactly what the draw among three parties computes. ``shares`` are the three additive shares (modulo 2^128,
    shape (2, candidates)) of the squared distances. ``gumbels`` has one entry for each server: its noise for each
    candidate, in units of 1 / ``GRAIN`` weighted record, or ``None`` if it adds none.
    """
    noisy = utilities(roots(*shares), question)
    for numbers in gumbels:
        if numbers is not None:
            noisy = noisy + numbers
    return int(noisy.argmax())
