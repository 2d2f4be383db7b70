"""A site's policy: the requests that it answers, decided by its data steward and enforced at the site.

A policy is checked before anything is computed or charged; its decision depends on request, schema and policy alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fedsynth.errors import InvalidParameter, Refused
from fedsynth.federation.plan import Plan
from fedsynth.federation.query import BUILT_IN, AnyQuery, Kinds, Query, Training, check_cells
from fedsynth.federation.trust import NO_SUMS, Trust, settings_of
from fedsynth.federation.wire import QuestionHead, Request
from fedsynth.privacy.cost import ONE_ROW, ORDERS, ROUNDING, Budget, Neighbours, ProtectedChange, Unit
from fedsynth.privacy.losses import LEAST_STEP
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
"""Kinds of release that each verb allows."""


@dataclass(frozen=True)
class Policy:
    """The requests that a site answers, decided by its data steward.

    A request carries a question: a query with its verb (such as ``sum``), price and terms. No server can change a
    policy.

    Parameters
    ----------
    budget, per_run
        Limits on the privacy cost to one person: of everything that the site ever answers, and of what it answers to
        one run (``None``: no limit of its own).
    trusts
        The accepted trust models, by name, with this site's settings of them.
    coordinator_sees_exact_counts
        The steward's yes to what the trust ``trusted`` means, required where it is accepted: the coordinator sees exact
        counts over any columns, before it adds noise. No plan limits what it can read from them.
    verbs
        The accepted verbs, among :data:`VERBS`; each is a method of
        :class:`~fedsynth.federation.federation.Federation`.
    schemas
        Digests of schemas, among which that of the site's rows must be (empty: any). Requests under another schema than
        that of the rows are always refused.
    kinds
        Kinds of questions that other packages define, by name: a class each, or the text ``package.module:Class``.
        For a message, the site imports these classes and those of fedsynth, and nothing else.
    unit
        Smallest unit of protection that a request may state: how many rows at a site, and how many sites, one person
        may have.
    exact
        Allow releases without noise, which gives up every guarantee; ``budget`` and ``per_run`` then limit nothing.
    size_is_public
        Declare the number of rows public. Neighbouring tables then differ by replaced rows, since adding or removing
        rows would change a public number.
    plans, any_plan
        Approved plans (:class:`~fedsynth.federation.plan.Plan`: what a run may ask, at which price) by digest, one of
        which every request must follow; if there are none, ``any_plan`` allows requests under any plan or none. Without
        either, the site answers nothing.
    methods, min_cohort
        Only plans for these methods (empty: any), and for at least so many sites, may be approved. Requests name
        neither the method nor the number of sites, so only plans are checked for them.
    largest_message, largest_answer
        Largest message that is read, in bytes, and largest number of cells of an answer.
    largest_stored
        Most bytes that the questions of one run may make the site store, known before anything is charged: answers of
        at most 64 KiB each, larger ones only if they are trained or the rows are counted or streamed, and about 6 KiB
        beside. All open runs together may store 16 times as much.
    answer_every, timed_rows
        A deployed site sends its replies at whole multiples of ``answer_every`` seconds after a message came (0: at
        once, training too). Replies to training leave at whole multiples of a longer time: the first multiple of
        ``answer_every`` by which a slow machine has trained on ``timed_rows`` rows, a public bound on the number of
        rows at the site.
    keep_runs_days
        Days after which a deployed site closes a run that asked nothing more, and deletes its stored answers and salts
        and the copy of the rows, unless another open run uses the same copy: at another run's next question, and within
        an hour while ``fedsynth site serve`` waits.

    Raises :class:`InvalidParameter` for the trust ``trusted`` without that yes, for unknown verbs, for kinds that
    fedsynth defines itself, for ``methods`` or ``min_cohort`` without plans, and for an approved plan that contradicts
    the rest.
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
    largest_stored: int = 2**30
    answer_every: float = 1.0
    timed_rows: int = 2**17
    keep_runs_days: float = 14.0
    coordinator_sees_exact_counts: bool = False

    def __post_init__(self) -> None:
        """Refuse an approval that contradicts the rest of the policy, before any request does."""
        if (self.methods or self.min_cohort > 1) and not self.plans:
            raise InvalidParameter(
                "methods and min_cohort restrict approved plans, and there are none; approve a plan (fedsynth plan "
                "--out plan.toml), or leave them out"
            )
        if unknown := sorted(set(self.verbs) - set(VERBS)):
            raise InvalidParameter(
                f"[policy] verbs has unknown entries {', '.join(unknown)}; choose among {', '.join(VERBS)}"
            )
        if "trusted" in self.trusts and not self.coordinator_sees_exact_counts:
            raise InvalidParameter(
                "the trust 'trusted' sends this site's exact counts, over any columns, to the coordinator, which adds "
                "the noise: it can rebuild single rows from them, whatever plan is approved. If the site agrees, write "
                "coordinator_sees_exact_counts = true into [policy] (fedsynth site join "
                "--coordinator-sees-exact-counts writes it); otherwise take trusted out of [policy.trusts] and "
                "accept secure, local or three-servers"
            )
        if self.keep_runs_days < 1:
            raise InvalidParameter("[policy] keep_runs_days must be at least 1: an idle run is closed for good")
        if taken := sorted(set(self.kinds) & set(BUILT_IN)):
            raise InvalidParameter(f"kinds {', '.join(taken)} come with fedsynth; another package cannot define them")
        for digest, plan in self.plans.items():
            for wrong in self._contradictions(digest, plan):
                raise InvalidParameter(f"plan {digest[:12]} was approved, but {wrong}; change the policy or the plan")

    @property
    def samples(self) -> bool:
        """Whether noise on random samples of rows (training) may be admitted: never where a replaced row is hidden."""
        admitted = any("sampled" in RELEASES[verb] for verb in self.verbs)
        return admitted and self.neighbours == "add-remove" and self.budget.order <= ORDERS[-1]

    @property
    def neighbours(self) -> Neighbours:
        """Which tables are neighbours at this site: ``replace`` if its number of rows is public, else ``add-remove``.

        Neighbouring tables, which the guarantee makes hard to tell apart, differ in one person's rows: these are
        replaced by others, or are added or removed.
        """
        return "replace" if self.size_is_public else "add-remove"

    @property
    def change(self) -> ProtectedChange:
        """The change of a table that every answer must hide: :attr:`unit` and :attr:`neighbours`."""
        return ProtectedChange(self.unit, self.neighbours)

    def check(self, request: Request, schema: Schema) -> None:
        """Raise an error for a request that this policy does not allow; a site checks it before it charges anything.

        ``schema`` is that of the site's rows. The decision depends on request, schema and policy alone. Raises
        :class:`Refused`, or :class:`InvalidParameter` for a query whose parameters do not fit the schema.
        """
        head, query, turn = request.head, request.query, request.turn
        if head.schema != schema.digest or (self.schemas and schema.digest not in self.schemas):
            raise Refused("the request was made under another schema; agree on one schema file and compare digests")
        if head.verb not in self.verbs:
            raise Refused(f"this site does not answer {head.verb!r}; add it to verbs in [policy]")
        if isinstance(query, Query) == (head.verb == "choose"):
            raise Refused(
                f"the verb {head.verb!r} does not apply to questions of the kind {head.kind!r}; install the same "
                "fedsynth everywhere"
            )
        if head.trust not in self.trusts:
            raise Refused(f"this site does not accept the trust {head.trust!r}; it accepts {sorted(self.trusts)}")
        trust = self.trusts[head.trust]
        turns = 1
        if head.verb in ("sum", "average"):
            if trust.sums is None:
                raise Refused(NO_SUMS)
            turns = trust.sums.turns
        if not 0 <= turn < turns:
            raise Refused(f"a {head.verb!r} under the trust {head.trust!r} has no turn {turn}")
        if (request.event is None) != (turn == 0):
            raise Refused("the first message of a question must have no event, and every later one must have one")
        self._check_release(head, trust)
        paid = head.release.steps if isinstance(head.release, AdaptiveSelection) else 1
        if not isinstance(query, Query) and query.steps != paid:
            raise Refused(f"the release pays for {paid} draws, but the selection makes {query.steps}; make both equal")
        _check_sampling(head, query)
        if head.unit.rows < self.unit.rows or head.unit.sites < self.unit.sites:
            raise Refused(
                f"this site protects persons with up to {self.unit.rows} rows at {self.unit.sites} sites; run with at "
                "least these --rows-per-person and --sites-per-person"
            )
        if head.neighbours != self.neighbours:
            raise Refused(
                f"neighbouring tables are {head.neighbours!r} for the request, but {self.neighbours!r} for this site; "
                "set public sizes alike at the server (--public-sizes) and at every site (size_is_public)"
            )
        if self.plans or not self.any_plan:
            self._plan(head).check(head)
        query.check(schema)
        if isinstance(query, Query):
            check_cells(query, schema, self.largest_answer)
            if self.plans or not self.any_plan:
                self._plan(head).check_extent(head, query.extent(schema))
                _check_step(head, query, schema)

    def limits(self, head: QuestionHead) -> tuple[Budget, Budget, tuple[tuple[float, int], ...] | None]:
        """Return the limits for a question with this ``head``: the site's budget, its run's, and its plan's slots.

        ``head`` has the question's price and terms (:class:`~fedsynth.federation.wire.QuestionHead`). If the policy has
        approved plans, the run's budget is that of the plan named in ``head``, and the slots
        (:class:`~fedsynth.federation.plan.PlannedQuestion`) are those of this plan that permit such a question, each as
        (highest price, number of times). Otherwise, the run's budget is ``per_run`` (or the site's budget if that is
        ``None``), and the last value is ``None``. If ``exact`` is true, neither the site's budget nor ``per_run``
        limits anything. Raises :class:`Refused` for a plan that is not approved.
        """
        total = Budget.none() if self.exact else self.budget
        per_run = total if self.per_run is None or self.exact else self.per_run
        if not self.plans:
            return total, per_run, None
        plan = self._plan(head)
        return total, plan.budget, plan.slots_for(head)

    def _check_release(self, head: QuestionHead, trust: Trust) -> None:
        release = head.release
        if kind_of(release) not in RELEASES[head.verb]:
            raise Refused(
                f"a {head.verb!r} cannot be released as {kind_of(release)}; use one of {sorted(RELEASES[head.verb])}"
            )
        parts = (release.pick, release.look) if isinstance(release, AdaptiveSelection) else (release,)
        endless = isinstance(release, Deposit) and not release.rho and not release.epsilon
        if (endless or any(isinstance(part, Exact) for part in parts)) and not self.exact:
            raise Refused("this site releases nothing without noise; use a private method")
        if isinstance(release, SampledGaussian) and head.neighbours != "add-remove":
            raise Refused(
                "the cost of noise on sampled rows is proved only if rows are added or removed; it is not available "
                "with size_is_public"
            )
        if kind_of(release) == "public" and not (head.kind == "size" and self.size_is_public):
            raise Refused(f"this site does not declare {head.kind!r} public; ask for it with noise")
        if isinstance(release, Deposit) and trust.vault is None:
            raise Refused(f"no vault exists under the trust {head.trust!r}; use a method without deposits")

    def _plan(self, head: QuestionHead) -> Plan:
        if head.plan not in self.plans:
            said = f"plan {head.plan[:12]} is not approved here" if head.plan else "the request names no plan"
            raise Refused(
                f"{said}; this site answers approved plans only: send the plan's file to its data steward, or write "
                'plans = "any" into [policy]'
            )
        return self.plans[head.plan]

    def _contradictions(self, digest: str, plan: Plan) -> Iterator[str]:
        """Yield the parts of an approved plan that this policy would always refuse."""
        if plan.digest != digest:
            yield f"its digest is {plan.digest}"
        if self.methods and plan.method not in self.methods:
            yield f"its method {plan.method!r} is not one of {sorted(self.methods)}"
        if plan.sites < self.min_cohort:
            yield f"it is for {plan.sites} sites, and min_cohort is {self.min_cohort}"
        if plan.trust not in self.trusts:
            yield f"its trust {plan.trust!r} is not one of {sorted(self.trusts)}"
        elif dict(plan.trust_options) != settings_of(self.trusts[plan.trust]):
            yield (
                f"it runs under {plan.trust!r} with {dict(plan.trust_options)}, and this site accepts "
                f"{settings_of(self.trusts[plan.trust])}"
            )
        if self.schemas and plan.schema not in self.schemas:
            yield "its schema is not one of the accepted schemas"
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


def _check_step(head: QuestionHead, query: Query, schema: Schema) -> None:
    """Refuse a planned release on sampled rows in so few integers that exact accounting does not hold for its noise."""
    least = LEAST_STEP * math.sqrt(query.cells(schema))
    if isinstance(head.release, SampledGaussian) and (found := query.sensitivity(schema).l2) < least:
        raise Refused(
            f"one row moves the answer of {head.kind!r} by {found:.4g} integers, and noise on sampled rows needs at "
            f"least {least:.4g}; let the question count in finer units"
        )


def _check_sampling(head: QuestionHead, query: AnyQuery) -> None:
    """Refuse training whose release does not pay for its steps, and sampled releases of other questions."""
    release = head.release
    if not isinstance(query, Training):
        if isinstance(release, SampledGaussian) or head.verb == "average":
            raise Refused(f"{head.kind!r} samples no rows; it can be neither averaged nor released as sampled")
        return
    if query.verb != head.verb:
        raise Refused(f"{head.kind!r} needs the verb {query.verb!r}, not {head.verb!r}")
    if not isinstance(release, SampledGaussian | Exact):
        raise Refused(f"{head.kind!r} samples rows and must be released as sampled, not as {kind_of(release)}")
    if isinstance(release, SampledGaussian):
        if (release.rate, release.steps) != (query.rate, query.steps):
            raise Refused(
                f"the release pays for {release.steps} steps at rate {release.rate:g}, but the question takes "
                f"{query.steps} at {query.rate:g}; make both equal"
            )
        if not query.clipped:
            raise Refused(f"{head.kind!r} has no clip norm, so its sensitivity is unbounded; give one")
