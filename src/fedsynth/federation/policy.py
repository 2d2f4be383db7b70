"""What a site agrees to: decided by its data steward, enforced at the site, and by nobody else.

Rule 1: a policy is checked before anything is computed. Rule 2: a refusal is made of the policy and the request
alone, so its reason may leave; it costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fedsynth.errors import InvalidParameter, Refused
from fedsynth.federation.plan import Plan, numbers_of
from fedsynth.federation.trust import Trust
from fedsynth.federation.wire import Request
from fedsynth.privacy.ledger import Quota
from fedsynth.privacy.release import Budget, Exact, Public, Reserved

# What a verb may be released as.
RELEASES = {
    "sum": ("Gaussian", "Laplace", "Public", "Exact"),
    "choose": ("Exponential", "Steered"),
    "deposit": ("Reserved",),
}


@dataclass(frozen=True)
class Policy:
    """What a site agrees to, decided by its data steward and by nobody else.

    ``budget`` bounds everything that the site ever spends on these rows, ``per_run`` (if given) one run.
    ``trusts`` are the trust models that it accepts, ``schemas`` the digests of schemas (empty: the table's
    own only). ``exact`` allows releases without noise and thereby gives up every guarantee: for experiments
    only. ``size_is_public`` says that the number of rows is no secret.

    ``plans`` are approved plans by digest; if there are any, a request must name one and keep to it. ``methods``
    (empty: any) and ``min_cohort`` bound what may be approved: they are read off plans, since a request says
    neither its method nor who else is asked.
    """

    budget: Budget
    trusts: Mapping[str, Trust] = field(default_factory=dict)
    per_run: Budget | None = None
    schemas: frozenset[str] = frozenset()
    exact: bool = False
    size_is_public: bool = False
    plans: Mapping[str, Plan] = field(default_factory=dict)
    methods: frozenset[str] = frozenset()
    min_cohort: int = 1

    def __post_init__(self) -> None:
        """Refuse an approval that contradicts the rest of the policy, before any request does."""
        if (self.methods or self.min_cohort > 1) and not self.plans:
            raise InvalidParameter(
                "methods and min_cohort are read off approved plans, and there are none: a request says neither; "
                "approve a plan (fedsynth plan --out plan.toml), or leave them out"
            )
        for digest, plan in self.plans.items():
            for wrong in self._contradictions(digest, plan):
                raise InvalidParameter(f"plan {digest[:12]} was approved, but {wrong}; change the policy or the plan")

    def check(self, request: Request, schema_digest: str) -> None:
        """Raise :class:`Refused` if the request is not what this site agreed to; ``schema_digest`` is its table's."""
        if request.schema_digest not in (self.schemas or {schema_digest}):
            raise Refused("the request was made under another schema; agree on one schema file and compare digests")
        if request.trust not in self.trusts:
            raise Refused(f"this site does not accept the trust {request.trust!r}; it accepts {sorted(self.trusts)}")
        if self.plans:
            self._plan(request).allow(request)
        turns = self.trusts[request.trust].turns if request.verb == "sum" else 1
        if type(request.turn) is not int or not 0 <= request.turn < turns:
            raise Refused(f"a {request.verb!r} under the trust {request.trust!r} has turns 0 to {turns - 1} only")
        if type(request.release).__name__ not in RELEASES.get(request.verb, ()):
            raise Refused(
                f"no {request.verb!r} can be released as {request.release}; this site knows {sorted(RELEASES)}"
            )
        if isinstance(request.release, Exact) and not self.exact:
            raise Refused("this site releases nothing without noise; use a private method")
        if isinstance(request.release, Public) and not (request.task == "size" and self.size_is_public):
            raise Refused(f"this site does not declare {request.task!r} public; ask for it with noise")
        if isinstance(request.release, Reserved) and not self.trusts[request.trust].confidential:
            raise Refused(f"no vault exists under the trust {request.trust!r}; use a method without deposits")

    def limits(self, request: Request) -> tuple[float, Quota | None]:
        """Return the rho that this request's run may spend here, and what its plan allows of such questions."""
        limit = (self.per_run or self.budget).rho
        if not self.plans:
            return limit, None
        plan = self._plan(request)
        ask = plan.allow(request)
        return min(limit, plan.budget.rho), Quota(ask.release, ask.times, ask.rho_total)

    def _plan(self, request: Request) -> Plan:
        if request.plan not in self.plans:
            said = f"plan {request.plan[:64]!r} is not approved here" if request.plan else "the request names no plan"
            raise Refused(f"{said}; this site answers approved plans only: send the plan's file to its data steward")
        return self.plans[request.plan]

    def _contradictions(self, digest: str, plan: Plan) -> Iterator[str]:
        """Yield what of an approved plan this policy could never let happen."""
        if plan.digest != digest:
            yield f"its digest is {plan.digest}"
        if self.methods and plan.method not in self.methods:
            yield f"its method {plan.method!r} is none of {sorted(self.methods)}"
        if plan.sites < self.min_cohort:
            yield f"it is for {plan.sites} sites, and min_cohort is {self.min_cohort}"
        if plan.trust not in self.trusts:
            yield f"its trust {plan.trust!r} is none of {sorted(self.trusts)}"
        elif dict(plan.trust_numbers) != numbers_of(self.trusts[plan.trust]):
            yield (
                f"it runs under {plan.trust!r} with {dict(plan.trust_numbers)}, and this site accepts "
                f"{numbers_of(self.trusts[plan.trust])}"
            )
        if self.schemas and plan.schema_digest not in self.schemas:
            yield "its schema is none of the accepted ones"
        for scope, bound in (("budget", self.budget), ("per_run", self.per_run)):
            if bound is not None and plan.budget.rho > bound.rho * (1 + 1e-9):
                yield f"it may cost rho={plan.budget.rho:.6g}, and {scope} allows {bound.rho:.6g}"
