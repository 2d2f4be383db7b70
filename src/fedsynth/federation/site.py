"""A site: its rows, its policy, its ledger, and the one door through which answers leave.

Rule 1: nothing but this file reads a site's table on behalf of a server. Rule 2: nothing leaves before policy
and ledger said yes, in that order; a refusal costs nothing. Rule 3: noise is a function of the site's own
secret, the whole request and the very rows asked about: the same question about the same rows gets the same
answer and is charged once, anything else gets fresh noise and is charged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import BudgetExceeded, Refused, Unsupported
from fedsynth.federation.task import find_choice, find_query
from fedsynth.federation.trust import Trust, add_noise
from fedsynth.federation.wire import Reply, Request
from fedsynth.privacy.ledger import SiteLedger
from fedsynth.privacy.noise import KeyedBits, exponential_mechanism
from fedsynth.privacy.release import (
    Budget,
    Exact,
    Exponential,
    Gaussian,
    Public,
    Reserved,
    Sensitivity,
    Steered,
)
from fedsynth.table import Table


@dataclass(frozen=True)
class Policy:
    """What a site agrees to, decided by its data steward and by nobody else.

    ``budget`` bounds everything that the site ever spends on these rows, ``per_run`` (if given) one run.
    ``trusts`` are the trust models that it accepts, ``schemas`` the digests of schemas (empty: the table's
    own only). ``exact`` allows releases without noise and thereby gives up every guarantee: for experiments
    only. ``size_is_public`` says that the number of rows is no secret.
    """

    budget: Budget
    trusts: Mapping[str, Trust] = field(default_factory=dict)
    per_run: Budget | None = None
    schemas: frozenset[str] = frozenset()
    exact: bool = False
    size_is_public: bool = False


@dataclass(frozen=True, eq=False)
class Site:
    """One organisation's end of the federation. ``secret`` is at least 32 random bytes that never leave."""

    name: str
    table: Table
    policy: Policy
    ledger: SiteLedger
    secret: bytes

    def __post_init__(self) -> None:
        """Refuse a secret that could be guessed."""
        if len(self.secret) < 32:
            raise ValueError("a site's secret needs 32 random bytes; take them from os.urandom(32)")

    def answer(self, request: Request) -> Reply:
        """Answer one request, or say by which kind of error it cannot be answered; never raises for a bad request."""
        try:
            values = self._answer(request)
        except (Refused, BudgetExceeded, Unsupported) as error:
            # Their texts are made of policy, ledger and request alone, so they may leave.
            return Reply(self.name, request.digest, error=type(error).__name__, reason=str(error))
        except Exception as error:
            return Reply(self.name, request.digest, error=type(error).__name__)
        confidential = request.verb != "choose" and self.policy.trusts[request.trust].confidential
        return Reply(self.name, request.digest, values=values, confidential=confidential)

    def _answer(self, request: Request) -> NDArray[np.int64]:
        self._check_policy(request)
        self._charge(request)
        match request.verb:
            case "sum":
                return self._contribute(request)
            case "deposit":
                return find_query(request.task).answer(self.table, **request.params)
            case _:
                return self._choose(request)

    def _check_policy(self, request: Request) -> None:
        if request.schema_digest not in (self.policy.schemas or {self.table.schema.digest}):
            raise Refused("the request was made under another schema; agree on one schema file and compare digests")
        if request.trust not in self.policy.trusts:
            raise Refused(
                f"this site does not accept the trust {request.trust!r}; it accepts {sorted(self.policy.trusts)}"
            )
        allowed = {
            "sum": ("Gaussian", "Laplace", "Public", "Exact"),
            "choose": ("Exponential", "Steered"),
            "deposit": ("Reserved",),
        }
        if type(request.release).__name__ not in allowed.get(request.verb, ()):
            raise Refused(
                f"no {request.verb!r} can be released as {request.release}; this site knows {sorted(allowed)}"
            )
        if isinstance(request.release, Exact) and not self.policy.exact:
            raise Refused("this site releases nothing without noise; use a private method")
        if isinstance(request.release, Public) and not (request.task == "size" and self.policy.size_is_public):
            raise Refused(f"this site does not declare {request.task!r} public; ask for it with noise")
        if isinstance(request.release, Reserved) and not self.policy.trusts[request.trust].confidential:
            raise Refused(f"no vault exists under the trust {request.trust!r}; use a method without deposits")

    def _charge(self, request: Request) -> None:
        limit = self.policy.budget.rho
        run_limit = limit if self.policy.per_run is None else self.policy.per_run.rho
        self.ledger.charge(self._question(request), request.run, request.task, request.release, limit, run_limit)

    def _contribute(self, request: Request) -> NDArray[np.int64]:
        query = find_query(request.task)
        answer = query.answer(self.table, **request.params)
        sensitivity = query.sensitivity(self.table.schema, **request.params)
        trust = self.policy.trusts[request.trust]
        return trust.contribute(answer, request.release, sensitivity, self._bits(request, "contribute"))

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
        return hashlib.sha256(f"{request.digest} {self.table.digest}".encode()).hexdigest()

    def _bits(self, request: Request, purpose: str) -> KeyedBits:
        return KeyedBits(self.secret, f"{self.name} {self._question(request)} {purpose}".encode())
