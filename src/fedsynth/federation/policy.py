"""What a site agrees to: decided by its data steward, enforced at the site, and by nobody else.

A policy is checked before anything is computed or charged; whether it refuses depends on request and policy alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fedsynth.errors import InvalidParameter, Refused
from fedsynth.federation.plan import Plan, settings_of
from fedsynth.federation.query import BUILT_IN, AnyQuery, Kinds, Query, Training, check_cells
from fedsynth.federation.trust import Trust
from fedsynth.federation.wire import Head, Request
from fedsynth.privacy.cost import ONE_ROW, ROUNDING, Budget, Neighbours, Unit
from fedsynth.privacy.release import AdaptiveSelection, Deposit, Exact, SampledGaussian, kind_of
from fedsynth.schema import Schema
from fedsynth.schema.bins import MOST_CELLS

VERBS = ("sum", "average", "each", "choose", "deposit")
RELEASES = {
    "sum": ("gaussian", "sampled", "laplace", "exact"),
    "average": ("sampled", "exact"),
    "each": ("gaussian", "laplace", "exact", "public"),
    "choose": ("exponential", "adaptive", "exact"),
    "deposit": ("deposit",),
}
"""What a verb may be released as."""


@dataclass(frozen=True)
class Policy:
    """What a site agrees to, decided by its data steward and by nobody else.

    ``budget`` bounds everything that the site ever spends on these rows, ``per_run`` (if given) one run. ``trusts`` are
    the trust models that it accepts, ``verbs`` what it can be asked beside sums, ``schemas`` the digests of schemas
    (empty: its rows' own only), ``kinds`` where the kinds of questions of other packages are defined, as
    ``package.module:Class``: nothing else is imported for a message. ``unit`` is the least that a request must protect.
    ``exact`` allows releases without noise and thereby gives up every guarantee.
    ``size_is_public`` says that the number of rows is no secret: tables then are neighbours when rows are replaced.

    ``plans`` are approved plans by digest, of which a request must keep to one; ``any_plan`` answers requests without
    one. ``methods`` (empty: any) and ``min_cohort`` bound what may be approved: they are read off plans, since a
    request says neither its method nor who else is asked. Answers have at most ``largest_answer`` cells, messages
    ``largest_message`` bytes. A deployed site sends its replies at whole multiples of ``answer_every`` seconds after a
    message came, and forgets what it answered to a run that asked nothing more for ``keep_runs_days``. A question that
    trains takes longer: its replies leave at whole multiples of the time that training on ``timed_rows`` rows, a public
    bound on the site's own, takes a slow machine.
    """

    budget: Budget
    trusts: Mapping[str, Trust] = field(default_factory=dict)
    per_run: Budget | None = None
    verbs: tuple[str, ...] = ("sum", "deposit")
    schemas: frozenset[str] = frozenset()
    kinds: Kinds = field(default_factory=dict)
    unit: Unit = ONE_ROW
    exact: bool = False
    size_is_public: bool = False
    plans: Mapping[str, Plan] = field(default_factory=dict)
    any_plan: bool = False
    methods: frozenset[str] = frozenset()
    min_cohort: int = 1
    largest_message: int = 2**24
    largest_answer: int = MOST_CELLS
    answer_every: float = 1.0
    timed_rows: int = 2**17
    keep_runs_days: float = 90.0

    def __post_init__(self) -> None:
        """Refuse an approval that contradicts the rest of the policy, before any request does."""
        if (self.methods or self.min_cohort > 1) and not self.plans:
            raise InvalidParameter(
                "methods and min_cohort are read off approved plans, and there are none: a request says neither; "
                "approve a plan (fedsynth plan --out plan.toml), or leave them out"
            )
        if unknown := sorted(set(self.verbs) - set(VERBS)):
            raise InvalidParameter(f"unknown verbs {', '.join(unknown)}; choose among {', '.join(VERBS)}")
        if taken := sorted(set(self.kinds) & set(BUILT_IN)):
            raise InvalidParameter(f"kinds {', '.join(taken)} come with fedsynth; another package cannot define them")
        for digest, plan in self.plans.items():
            for wrong in self._contradictions(digest, plan):
                raise InvalidParameter(f"plan {digest[:12]} was approved, but {wrong}; change the policy or the plan")

    @property
    def neighbours(self) -> Neighbours:
        """Which tables the site's guarantee makes indistinguishable."""
        return "replace" if self.size_is_public else "add-remove"

    def check(self, request: Request, schema: Schema) -> None:
        """Raise :class:`Refused` (or :class:`InvalidParameter`) if a request is not what this site agreed to."""
        head, query, turn = request.head, request.query, request.turn
        if head.schema != schema.digest or (self.schemas and schema.digest not in self.schemas):
            raise Refused("the request was made under another schema; agree on one schema file and compare digests")
        if head.verb not in self.verbs:
            raise Refused(f"this site does not answer {head.verb!r}; add it to verbs in [policy]")
        if isinstance(query, Query) == (head.verb == "choose"):
            raise Refused(f"a {head.verb!r} cannot be asked of {head.kind!r}")
        if head.trust not in self.trusts:
            raise Refused(f"this site does not accept the trust {head.trust!r}; it accepts {sorted(self.trusts)}")
        trust = self.trusts[head.trust]
        if not 0 <= turn < (trust.turns if head.verb in ("sum", "average") else 1):
            raise Refused(f"a {head.verb!r} under the trust {head.trust!r} has no turn {turn}")
        if (request.event is None) != (turn == 0):
            raise Refused("the first message of a question has no event, and every later one has")
        self._check_release(head, trust)
        paid = head.release.steps if isinstance(head.release, AdaptiveSelection) else 1
        if not isinstance(query, Query) and query.steps != paid:
            raise Refused(f"the release pays for {paid} draws and the selection makes {query.steps}")
        _check_sampling(head, query)
        if head.unit.rows < self.unit.rows or head.unit.sites < self.unit.sites:
            raise Refused(
                f"this site protects persons with {self.unit.rows} rows at {self.unit.sites} sites, not fewer"
            )
        if head.neighbours != self.neighbours:
            raise Refused(
                f"the request's neighbouring tables are {head.neighbours!r} and this site's {self.neighbours!r}: "
                "size_is_public must be the same at the server and at every site"
            )
        if self.plans or not self.any_plan:
            self._plan(head).check(head)
        query.check(schema)
        if isinstance(query, Query):
            check_cells(query, schema, self.largest_answer)

    def limits(self, head: Head) -> tuple[Budget, Budget, tuple[tuple[float, int], ...] | None]:
        """Return what may be spent in all and in the request's run, and the slots that its plan has for it."""
        total = Budget.none() if self.exact else self.budget
        per_run = total if self.per_run is None or self.exact else self.per_run
        if not self.plans:
            return total, per_run, None
        plan = self._plan(head)
        return total, plan.budget, plan.slots_for(head)

    def _check_release(self, head: Head, trust: Trust) -> None:
        release = head.release
        if kind_of(release) not in RELEASES[head.verb]:
            raise Refused(f"no {head.verb!r} can be released as {kind_of(release)}")
        parts = (release.pick, release.look) if isinstance(release, AdaptiveSelection) else (release,)
        endless = isinstance(release, Deposit) and not release.rho and not release.epsilon
        if (endless or any(isinstance(part, Exact) for part in parts)) and not self.exact:
            raise Refused("this site releases nothing without noise; use a private method")
        if isinstance(release, SampledGaussian) and head.neighbours != "add-remove":
            raise Refused(
                "the cost of noise on samples of rows is proved only where rows are added or removed; it cannot be "
                "asked for with size_is_public"
            )
        if kind_of(release) == "public" and not (head.kind == "size" and self.size_is_public):
            raise Refused(f"this site does not declare {head.kind!r} public; ask for it with noise")
        if isinstance(release, Deposit) and not trust.confidential:
            raise Refused(f"no vault exists under the trust {head.trust!r}; use a method without deposits")

    def _plan(self, head: Head) -> Plan:
        if head.plan not in self.plans:
            said = f"plan {head.plan[:12]} is not approved here" if head.plan else "the request names no plan"
            raise Refused(
                f"{said}; this site answers approved plans only: send the plan's file to its data steward, or write "
                'plans = "any" into [policy]'
            )
        return self.plans[head.plan]

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
        elif dict(plan.trust_options) != settings_of(self.trusts[plan.trust]):
            yield (
                f"it runs under {plan.trust!r} with {dict(plan.trust_options)}, and this site accepts "
                f"{settings_of(self.trusts[plan.trust])}"
            )
        if self.schemas and plan.schema not in self.schemas:
            yield "its schema is none of the accepted ones"
        if asked := sorted({slot.verb for slot in plan.slots} - set(self.verbs)):
            yield f"it asks for {', '.join(asked)}, and verbs are {', '.join(self.verbs)}"
        if plan.unit.rows < self.unit.rows or plan.unit.sites < self.unit.sites:
            yield f"it protects {plan.unit}, and this site asks for {self.unit}"
        for scope, bound in (("budget", self.budget), ("per_run", self.per_run)):
            if bound is None:
                continue
            if bound.pure and not plan.budget.pure:
                yield f"its delta is {plan.budget.delta:g}, and {scope} allows pure differential privacy only"
            elif plan.budget.rho > bound.rho * ROUNDING:
                yield f"it may cost rho={plan.budget.rho:.6g}, and {scope} allows {bound.rho:.6g}"
            elif bound.pure and plan.budget.epsilon > bound.epsilon * ROUNDING:
                yield f"it may cost epsilon={plan.budget.epsilon:.6g}, and {scope} allows {bound.epsilon:.6g}"


def _check_sampling(head: Head, query: AnyQuery) -> None:
    """Refuse training whose release does not pay for its steps, and any other question that claims to be sampled."""
    release = head.release
    if not isinstance(query, Training):
        if isinstance(release, SampledGaussian) or head.verb == "average":
            raise Refused(f"{head.kind!r} samples no rows, so that it is neither averaged nor released as sampled")
        return
    if query.verb != head.verb:
        raise Refused(f"{head.kind!r} is asked for by {query.verb!r}, not by {head.verb!r}")
    if not isinstance(release, SampledGaussian | Exact):
        raise Refused(f"{head.kind!r} samples rows, and is released as sampled, not as {kind_of(release)}")
    if isinstance(release, SampledGaussian):
        if (release.rate, release.steps) != (query.rate, query.steps):
            raise Refused(
                f"the release pays for {release.steps} steps at rate {release.rate:g}, and the question takes "
                f"{query.steps} at {query.rate:g}"
            )
        if not query.clipped:
            raise Refused(f"{head.kind!r} has no clip norm, so that no noise would be enough; give one")
