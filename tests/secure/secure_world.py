"""Sites in memory and a server's loop, to test secure sums by themselves: the real trust over the real frames."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.contract.world import SCHEMA

from fedsynth import keys
from fedsynth.errors import FedsynthError, SiteLost
from fedsynth.federation.events import Answer, Event, ShareKeys
from fedsynth.federation.trust import Released
from fedsynth.federation.wire import decode, encode
from fedsynth.privacy.cost import Norms
from fedsynth.privacy.noise import KeyedBits
from fedsynth.privacy.release import Gaussian, Release
from fedsynth.schema import Schema
from fedsynth.secure.server import Aggregator
from fedsynth.secure.session import UNMASK, Session
from fedsynth.secure.site import SecureSum, _seeds

CELLS = 26
NORMS = Norms(2, 2**0.5)
RELEASE = Gaussian(0.002)
QUESTION = keys.digest("a question").hex()


@dataclass
class Asked:
    """One site asked one question, in memory: what a trust may use of a site."""

    name: str
    secret: bytes
    trust: SecureSum
    exact: NDArray[np.int64]
    schema: Schema = SCHEMA
    digest: str = QUESTION
    release: Release = RELEASE
    salt: bytes = b"salt"
    run: bytes = b"run"
    events: dict[str, bytes] = field(default_factory=dict)
    computed: int = 0

    @property
    def identity(self) -> bytes:
        return keys.Keys(self.secret).seed

    @property
    def norms(self) -> Norms:
        return NORMS

    def statistic(self) -> NDArray[np.int64]:
        self.computed += 1
        return self.exact

    def bits(self, purpose: str) -> KeyedBits:
        return KeyedBits(self.secret, f"{self.name} {self.digest} {self.salt!r} {purpose}".encode())

    def key(self, purpose: str) -> bytes:
        return keys.derive(self.secret, "site key", self.name, self.digest, self.salt, purpose)

    def run_key(self, purpose: str) -> bytes:
        return keys.derive(self.secret, "run key", self.name, self.run, purpose)

    def first(self, part: str, value: bytes) -> bytes:
        return self.events.setdefault(part, value)

    def said(self, part: str) -> bytes | None:
        return self.events.get(part)

    def answer(self, turn: int, event: Event | None) -> Answer:
        """Answer an event that came over the wire, over the wire."""
        sent = None if event is None else decode(encode(event), Event)
        answer: Answer = decode(encode(self.trust.answer(self, turn, sent)), Answer)
        return answer

    def noise(self, parts: int | None = None) -> NDArray[np.int64]:
        """Return the noise that the site adds (its first parts alone), as only it can know it."""
        session = decode(self.events["members or keys"], ShareKeys)
        share = self.trust.share(self.release, NORMS, len(session.members))
        opened = Session.read(session, self.digest, self.trust.terms, self.trust.layout)
        seeds = _seeds(self, opened, range(len(share.parts)))
        first = replace(share, parts=share.parts[:parts])
        return first.add_to(np.zeros(self.exact.size, dtype=np.int64), seeds[:parts])


def members(number: int, trust: SecureSum | None = None, *, cells: int = CELLS, **of_each: Any) -> list[Asked]:
    """Return sites with the trust that their stewards would agree on: a roster of each other's public keys."""
    secrets = {f"site-{k:03d}": bytes([k]) * 32 for k in range(number)}
    agreed = (trust or SecureSum()).with_roster({name: keys.Keys(secret).identity for name, secret in secrets.items()})
    rng = np.random.default_rng(number)
    return [Asked(name, secret, agreed, rng.integers(0, 40, cells), **of_each) for name, secret in secrets.items()]


def anew(sites: Sequence[Asked], **change: Any) -> list[Asked]:
    """Return the same sites, asked another question."""
    return [replace(site, events={}, computed=0, **change) for site in sites]


def exact(sites: Iterable[Asked]) -> NDArray[np.int64]:
    total: NDArray[np.int64] = np.sum([site.exact for site in sites], axis=0)
    return total


def aggregator(sites: Sequence[Asked], trust: SecureSum | None = None) -> Aggregator:
    first = sites[0]
    return (trust or first.trust).aggregation(
        first.digest, first.release, NORMS, [site.name for site in sites], lambda exact: pytest.fail("no server noise")
    )


Turns = list[dict[str, tuple[Any, Any]]]


def converse(
    sites: Sequence[Asked],
    until: int = UNMASK,
    *,
    event: Callable[[int, str, Any], Any] = lambda turn, name, event: event,
    answer: Callable[[int, str, Any], Any] = lambda turn, name, answer: answer,
    lost: Mapping[int, Collection[str]] | None = None,
    server: Aggregator | None = None,
) -> tuple[Aggregator, Turns]:
    """Play the server up to a turn. Returns its end of the sum and each turn's events and answers by site.

    ``event`` and ``answer`` change what travels; sites in ``lost[turn]`` are silent from that turn on. An answer that
    the server does not take is a loss too, and the error names the site.
    """
    server = server or aggregator(sites)
    doors = {site.name: site for site in sites}
    turns: Turns = []
    while server.turn < until and (events := server.ask()):
        turn = {}
        for name, asked in events.items():
            if any(name in gone for at, gone in (lost or {}).items() if server.turn >= at):
                continue
            sent = event(server.turn, name, asked)
            said = answer(server.turn, name, doors[name].answer(server.turn, sent))
            try:
                server.receive(name, said)
            except FedsynthError as error:
                if name not in str(error):
                    raise
            else:
                turn[name] = sent, said
        turns.append(turn)
    if until == UNMASK and server.turn == UNMASK:
        assert not server.ask()
    return server, turns


def released(sites: Sequence[Asked], **options: Any) -> Released:
    """Return the sum over the sites; raises :class:`SiteLost` where it fails."""
    server, _ = converse(sites, **options)
    result = server.result()
    if result is None:
        raise SiteLost("nobody answered")
    return result
