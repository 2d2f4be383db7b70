"""A roster of sites for the tests of secure sums, a server to play by hand, and a transport that loses sites."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.contract.world import SCHEMA, random_table

from fedsynth.errors import Refused
from fedsynth.federation.federation import Federation
from fedsynth.federation.policy import Policy
from fedsynth.federation.site import Site, _Desk
from fedsynth.federation.task import marginals
from fedsynth.federation.transport import Addressed, InProcess
from fedsynth.federation.trust import masking
from fedsynth.federation.trust.roster import UNMASK
from fedsynth.federation.trust.secure_session import SecureSession
from fedsynth.federation.trust.secure_sum import SecureSum
from fedsynth.federation.trust.shares import add_share
from fedsynth.federation.wire import Reply, Request
from fedsynth.privacy.ledger import Ledger, SiteLedger
from fedsynth.privacy.release import Budget, Gaussian, Release, Sensitivity

BUDGET = Budget(4.0, 1e-6)
PAIR: dict[str, Any] = {"cliques": [[0, 1], [2, 3]]}
CELLS = 2 * 3 + 4 * 5
MOVED = Sensitivity(2, math.sqrt(2))
RELEASE = Gaussian(0.01)


def members(number: int, trust: SecureSum | None = None, *, folder: Path | None = None, **policy: Any) -> list[Site]:
    """Return sites with the policy that their stewards would write: a roster of each other's public keys."""
    secrets = {f"site-{k:03d}": bytes([k]) * 32 for k in range(number)}
    agreed = (trust or SecureSum()).among({name: masking.identity(secret) for name, secret in secrets.items()})
    rules = Policy(policy.pop("budget", BUDGET), {"secure": agreed}, exact=True, **policy)
    return [
        Site(
            name,
            random_table(20 + 7 * k, k),
            rules,
            SiteLedger() if folder is None else SiteLedger(folder / f"{name}.sqlite"),
            secret,
        )
        for k, (name, secret) in enumerate(secrets.items())
    ]


def trust_of(site: Site) -> SecureSum:
    trust = site.policy.trusts["secure"]
    assert isinstance(trust, SecureSum)
    return trust


def ask(release: Release = RELEASE, **change: Any) -> Request:
    return Request("run", 0, "sum", "marginals", release, "secure", SCHEMA.digest, {**PAIR, **change})


def exact(sites: Iterable[Site]) -> NDArray[np.int64]:
    total: NDArray[np.int64] = np.sum([marginals.answer(site.table, **PAIR) for site in sites], axis=0)
    return total


class Failing(InProcess):
    """Loses the sites of ``lost[turn]`` from that turn on; dies at message number ``dies_at``."""

    def __init__(self, sites: Sequence[Site], lost: Mapping[int, Collection[str]], dies_at: int | None = None) -> None:
        super().__init__(sites)
        self.lost, self.dies_at, self.sent, self.seen = lost, dies_at, 0, list[tuple[str, int]]()

    def exchange(self, requests: Iterable[Addressed]) -> Iterator[Reply]:
        for name, request in requests:
            self.sent += 1
            if self.dies_at == self.sent:
                raise ConnectionError("the server's process ended here")
            self.seen.append((name, request.turn))
            if any(name in sites for turn, sites in self.lost.items() if request.turn >= turn):
                yield Reply(name, request.digest, error="TimeoutError")
            else:
                yield from super().exchange([(name, request)])


def federation(sites: Sequence[Site], transport: Any = None, **options: Any) -> Federation:
    return Federation(
        SCHEMA,
        Ledger(BUDGET),
        trust_of(sites[0]),
        transport or InProcess(sites),
        tuple(site.name for site in sites),
        np.random.default_rng(0),
        "run",
        bytes(32),
        **options,
    )


def converse(
    sites: Sequence[Site],
    request: Request | None = None,
    until: int = UNMASK,
    change: Callable[[int, str, Request], Request] = lambda turn, name, message: message,
) -> tuple[SecureSession, list[dict[str, tuple[Request, Reply]]]]:
    """Play the server by hand; every reply must be an answer. Returns the session and each turn's messages."""
    asked = request or ask()
    trust = trust_of(sites[0])
    session = trust.session(asked, [site.name for site in sites], MOVED, lambda exact: pytest.fail("no server noise"))
    doors = {site.name: site for site in sites}
    turns = []
    while (messages := session.ask()) and session.turn <= until:
        turn = {}
        for name, message in messages.items():
            reply = doors[name].answer(change(session.turn, name, message))
            if reply.error == "Refused":
                raise Refused(reply.reason)
            assert not reply.error, reply
            turn[name] = message, reply
            session.hear(reply)
        turns.append(turn)
    return session, turns


def noise_of(site: Site, request: Request, honest: int, cells: int = CELLS) -> NDArray[np.int64]:
    """Return the share of noise that a site adds, as only it can know it."""
    sensitivity = marginals.sensitivity(SCHEMA, **request.params)
    bits = _Desk(site, request).bits("share")
    return add_share(np.zeros(cells, dtype=np.int64), request.release, sensitivity, honest, bits)
