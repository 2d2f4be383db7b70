"""A site: its rows, its policy, its ledger, and the one door through which answers leave.

Rule 1: nothing but this file reads a site's table on behalf of a server. Rule 2: nothing leaves before policy
and ledger said yes, in that order; a refusal costs nothing. Rule 3: noise is a function of the site's own
secret, the whole request and the very rows asked about: the same question about the same rows gets the same
answer and is charged once, anything else gets fresh noise and is charged. A question that takes several
messages is one question: it is charged when the statistic is computed, and the ledger holds the site to the first
message of every turn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import BudgetExceeded, Refused, Unsupported
from fedsynth.federation.policy import Policy
from fedsynth.federation.task import find_choice, find_query
from fedsynth.federation.trust import Arrays, add_noise
from fedsynth.federation.trust.masking import derive, identity_seed
from fedsynth.federation.wire import Reply, Request
from fedsynth.privacy.ledger import SiteLedger
from fedsynth.privacy.noise import KeyedBits, exponential_mechanism
from fedsynth.privacy.release import Exponential, Gaussian, Sensitivity, Steered
from fedsynth.table import Table

Audit = Callable[[Request, Reply], None]


def unrecorded(request: Request, reply: Reply) -> None:
    """Write nothing down: for simulations."""


@dataclass(frozen=True, eq=False)
class Site:
    """One organisation's end of the federation. ``secret`` is at least 32 random bytes that never leave.

    ``audit(request, reply)`` is called once for every request, before its reply leaves; a reply that cannot be
    written down does not leave.
    """

    name: str
    table: Table
    policy: Policy
    ledger: SiteLedger
    secret: bytes
    audit: Audit = unrecorded

    def __post_init__(self) -> None:
        """Refuse a secret that could be guessed."""
        if len(self.secret) < 32:
            raise ValueError("a site's secret needs 32 random bytes; take them from os.urandom(32)")

    def answer(self, request: Request) -> Reply:
        """Answer one request, or say by which kind of error it cannot be answered; never raises for a bad request."""
        reply = self._reply(request)
        self.audit(request, reply)
        return reply

    def _reply(self, request: Request) -> Reply:
        try:
            arrays = self._answer(request)
        except (Refused, BudgetExceeded, Unsupported) as error:
            # Their texts are made of policy, ledger and request alone, so they may leave.
            return Reply(self.name, request.digest, error=type(error).__name__, reason=str(error))
        except Exception as error:
            return Reply(self.name, request.digest, error=type(error).__name__)
        confidential = request.verb != "choose" and self.policy.trusts[request.trust].confidential
        parts = {name: array for name, array in arrays.items() if name != "values"}
        return Reply(self.name, request.digest, values=arrays.get("values"), parts=parts, confidential=confidential)

    def _answer(self, request: Request) -> Arrays:
        self.policy.check(request, self.table.schema.digest)
        match request.verb:
            case "sum":
                return self.policy.trusts[request.trust].answer(request, _Desk(self, request))
            case "deposit":
                self._charge(request)
                return {"values": find_query(request.task).answer(self.table, **request.params)}
            case _:
                self._charge(request)
                return {"values": self._choose(request)}

    def _charge(self, request: Request) -> None:
        limit = self.policy.budget.rho
        run_limit, quota = self.policy.limits(request)
        self.ledger.charge(self._question(request), request.run, request.task, request.release, limit, run_limit, quota)

    def _statistic(self, request: Request) -> tuple[NDArray[np.int64], Sensitivity]:
        """Charge the question, and return its exact answer and sensitivity, for a trust to make something of."""
        find_query(request.task)  # an unknown task costs nothing
        self._charge(request)
        return self._contribute(request)

    def _contribute(self, request: Request) -> tuple[NDArray[np.int64], Sensitivity]:
        query = find_query(request.task)
        answer = query.answer(self.table, **request.params)
        return answer, query.sensitivity(self.table.schema, **request.params)

    def _choose(self, request: Request) -> NDArray[np.int64]:
        choice = find_choice(request.task)
        release = request.release
        steps = release.steps if isinstance(release, Steered) else 1
        pick = Exponential(release.pick) if isinstance(release, Steered) else release
        assert isinstance(pick, Exponential)
        prepared = request.prepared(choice.prepare, self.table.schema)
        sensitivity = choice.sensitivity(self.table.schema, **request.params)
        taken: list[tuple[int, NDArray[np.int64]]] = []
        picks = []
        for step in range(steps):
            utilities = choice.utilities(self.table, prepared, taken, **request.params, **request.own)
            index = exponential_mechanism(utilities, sensitivity, pick.epsilon, self._bits(request, f"pick {step}"))
            picks.append(index)
            if isinstance(release, Steered) and step < steps - 1:
                taken.append((index, self._look(request, index, Gaussian(release.look), step)))
        return np.array(picks, dtype=np.int64)

    def _look(self, request: Request, index: int, release: Gaussian, step: int) -> NDArray[np.int64]:
        """Return a noisy look at what was just picked; it steers later picks and stays here."""
        choice = find_choice(request.task)
        if choice.look is None or choice.look_params is None:
            raise Unsupported(f"the choice {choice.name!r} takes one step only")
        params = choice.look_params(index, dict(request.params))
        sensitivity: Sensitivity = choice.look.sensitivity(self.table.schema, **params)
        return add_noise(
            choice.look.answer(self.table, **params),
            release,
            sensitivity,
            self._bits(request, f"look {step}"),
        )

    def _question(self, request: Request) -> str:
        return hashlib.sha256(f"{request.question} {self.table.digest}".encode()).hexdigest()

    def _bits(self, request: Request, purpose: str) -> KeyedBits:
        return KeyedBits(self.secret, f"{self.name} {self._question(request)} {purpose}".encode())


@dataclass(frozen=True, eq=False)
class _Desk:
    """What a trust may use of a site, for one question; all of it is bound to the question and the very rows."""

    site: Site
    request: Request

    @property
    def name(self) -> str:
        return self.site.name

    @property
    def identity(self) -> bytes:
        return identity_seed(self.site.secret)

    def statistic(self) -> tuple[NDArray[np.int64], Sensitivity]:
        return self.site._statistic(self.request)

    def bits(self, purpose: str) -> KeyedBits:
        return self.site._bits(self.request, purpose)

    def key(self, purpose: str) -> bytes:
        return derive(self.site.secret, "site key", self.site.name, self.site._question(self.request), purpose)

    def first(self, part: str, value: bytes) -> bytes:
        return self.site.ledger.first(self.site._question(self.request), part, value)

    def said(self, part: str) -> bytes | None:
        return self.site.ledger.said(self.site._question(self.request), part)
