"""What the coordinator makes of compute servers that lose each other; the servers' replies are written by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fedsynth.errors import SiteLost
from fedsynth.federation.events import DealtShares
from fedsynth.federation.wire import decode, encode
from fedsynth.privacy.release import Exact
from fedsynth.servers.calls import (
    Agree,
    Answered,
    AnyCall,
    AnyResult,
    Ask,
    Asked,
    Confirm,
    Confirmations,
    Confirmed,
    Done,
    Drop,
    Failure,
    Take,
)
from fedsynth.servers.questions import OpenTables, ServerStatement, SignedStatement
from fedsynth.servers.shares import SERVERS
from fedsynth.servers.vault import Servers

VAULT = "0" * 64
LOST = Failure("lost", "server 3 ended the connection")
DEALT = DealtShares(np.zeros((3, 1), np.uint8), bytes(32), bytes(64), np.zeros(8, np.uint8))
MACS = Confirmations(bytes(32), bytes(32))


class Scripted(Servers):
    """Three servers that answer each kind of call as written: one result for all, or one for each."""

    def __init__(self, **replies: list[AnyResult | tuple[AnyResult, ...]]) -> None:
        super().__init__(self._scripted)
        self.replies = replies
        self.called: list[str] = []
        self.attempts: list[bytes] = []

    def _scripted(self, frames: Sequence[bytes]) -> list[bytes]:
        call = decode(frames[0], AnyCall)
        name = type(call).__name__
        if isinstance(call, Agree):
            self.attempts.append(call.meeting)
        self.called.append(name)
        reply = self.replies[name].pop(0)
        return [encode(one) for one in (reply if isinstance(reply, tuple) else [reply] * SERVERS)]


def asked() -> Asked:
    roster = ServerStatement(VAULT, 0, VAULT, VAULT, ("a",), VAULT, 0.0)
    return Asked(SignedStatement(roster, bytes(64)), False)


def test_servers_that_lost_each_other_are_asked_once_more_and_not_again():
    question = OpenTables(VAULT, 0, ((0,),), Exact())
    share = Answered(np.ones(1, np.uint64).view(np.uint8))
    mended = Scripted(Ask=[asked(), asked()], Agree=[(share, share, LOST), share])
    assert mended.open(question).tolist() == [3]
    assert mended.called == [Ask.__name__, Agree.__name__] * 2
    broken = Scripted(Ask=[asked()] * 3, Agree=[(share, share, LOST)] * 3)
    with pytest.raises(SiteLost, match="server 3"):
        broken.open(question)
    assert broken.called == [Ask.__name__, Agree.__name__] * 2
    assert len({*mended.attempts, *broken.attempts}) == 4, "an attempt would meet connections of an earlier one"


def test_a_server_that_fails_while_shares_are_compared_is_not_the_sites_fault():
    good, differs = Confirmed(True), Confirmed(False)
    failing = Scripted(Take=[MACS], Confirm=[(good, good, LOST)], Drop=[Done()])
    with pytest.raises(SiteLost, match="server 3"):
        failing.take(VAULT, "a", DEALT)
    assert Drop.__name__ not in failing.called
    lying = Scripted(Take=[MACS], Confirm=[(good, differs, good)], Drop=[Done()])
    assert not lying.take(VAULT, "a", DEALT)
    assert lying.called == [Take.__name__, Confirm.__name__, Drop.__name__]
    honest = Scripted(Take=[MACS], Confirm=[good])
    assert honest.take(VAULT, "a", DEALT)
