"""A site's policy: the requests that it answers, decided by its data steward and enforced at the site.

A policy is checked before anything is computed or charged; its decision depends on request, schema and policy alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from fedsynth.errors import InvalidParameter, Refused
from fedsynth.federation.agreement import Agreement
from fedsynth.federation.query import BUILT_IN, AnyQuery, Kinds, Query, Training, check_cells
from fedsynth.federation.question import QuestionHead
from fedsynth.federation.trust import NO_SUMS, Trust, roster_digest, settings_of
from fedsynth.federation.wire import Request
from fedsynth.privacy.cost import ONE_ROW, ORDERS, ROUNDING, Budget, ProtectedChange, Unit, in_full
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
SAMPLED = "sampled"
"""Kind of the releases on random samples of rows (:class:`~fedsynth.privacy.release.SampledGaussian`)."""
_PUBLIC = {True: "public", False: "not public"}


@dataclass(frozen=True)
class Policy:
    """The requests that a site answers, decided by its data steward; no server can change it.

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
        Smallest unit of protection that a request may state.
    exact
        Allow releases without noise, which gives up every guarantee; ``budget`` and ``per_run`` then limit nothing.
    size_is_public
        Declare the number of rows public. Neighbouring tables then differ by replaced rows, since adding or removing
        rows would change a public number.
    plans, any_plan
        Approved plans (:class:`~fedsynth.federation.agreement.Agreement`) by digest, one of which every request must
        follow; if there are none, ``any_plan`` allows runs under any plan, to which they are held, or none. Without
        either, the site answers nothing.
    methods, min_cohort
        Only runs agreed to be of these methods (empty: any), and of at least so many sites, are answered. The method
        states the purpose of the questions; what they may ask is limited by verbs and approved plans alone.
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
    fedsynth defines itself, and for an approved plan that contradicts the rest.
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
    plans: Mapping[str, Agreement] = field(default_factory=dict)
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
            for wrong in (*self._contradictions(plan), *self._beyond(digest, plan)):
                raise InvalidParameter(f"plan {digest[:12]} was approved, but {wrong}; change the policy or the plan")

    def samples(self, agreement: bytes) -> bool:
        """Whether a run under an agreement may have had releases on random samples of rows at this site, as training.

        ``agreement`` is its data as the site's book holds it, or that of a plan; empty if unknown. A run of a plan is
        held to it at every site and under every policy (:meth:`check`), and to one plan for good
        (:meth:`Book.begin <fedsynth.privacy.book.Book.begin>`): without a slot for such releases it has had none. So it
        does not matter which plans the policy approves now, or approved meanwhile. Of any other run only what no policy
        admits is known: samples where rows are replaced, and where the budget's order is above those of curves.
        """
        if self.budget.order > ORDERS[-1]:
            return False
        if not agreement:
            return True
        known = Agreement.read(agreement)
        return not known.public_sizes and (not known.slots or any(slot.release == SAMPLED for slot in known.slots))

    @cached_property
    def change(self) -> ProtectedChange:
        """The change of a table that every answer must hide."""
        return ProtectedChange(self.unit, "replace" if self.size_is_public else "add-remove")

    def check(self, request: Request, schema: Schema) -> None:
        """Raise :class:`Refused` or :class:`InvalidParameter` for a request that this policy does not allow.

        ``schema`` is that of the site's rows. The decision depends on request, schema and policy alone.
        """
        head, query, turn, agreement = request.head, request.query, request.turn, request.agreement
        if agreement.schema != schema.digest or (self.schemas and schema.digest not in self.schemas):
            raise Refused("the request was made under another schema; agree on one schema file and compare digests")
        if head.verb not in self.verbs:
            raise Refused(f"this site does not answer {head.verb!r}; add it to verbs in [policy]")
        if isinstance(query, Query) == (head.verb == "choose"):
            raise Refused(
                f"the verb {head.verb!r} does not apply to questions of the kind {head.kind!r}; install the same "
                "fedsynth everywhere"
            )
        trust = self._trust(agreement)
        turns = 1
        if head.verb in ("sum", "average"):
            if trust.sums is None:
                raise Refused(NO_SUMS)
            turns = trust.sums.turns
        if not 0 <= turn < turns:
            raise Refused(f"a {head.verb!r} under the trust {trust.name!r} has no turn {turn}")
        if (request.event is None) != (turn == 0):
            raise Refused("the first message of a question must have no event, and every later one must have one")
        self._check_release(head, trust, agreement)
        paid = head.release.steps if isinstance(head.release, AdaptiveSelection) else 1
        if not isinstance(query, Query) and query.steps != paid:
            raise Refused(f"the release pays for {paid} draws, but the selection makes {query.steps}; make both equal")
        _check_sampling(head, query)
        if agreement.unit.rows < self.unit.rows or agreement.unit.sites < self.unit.sites:
            raise Refused(
                f"this site protects persons with up to {self.unit.rows} rows at {self.unit.sites} sites; give the "
                "job at least these rows_per_person and sites_per_person"
            )
        if agreement.public_sizes != self.size_is_public:
            raise Refused(
                f"numbers of rows are {_PUBLIC[agreement.public_sizes]} for the run, but "
                f"{_PUBLIC[self.size_is_public]} at this site; set public sizes alike in the job (public_sizes) "
                "and at every site (size_is_public)"
            )
        for wrong in self._contradictions(agreement):
            raise Refused(
                f"this site does not accept what was agreed: {wrong}; change the job, or this site's [policy]"
            )
        planned = self._planned(agreement)
        if planned:
            agreement.check(head)
        query.check(schema)
        if isinstance(query, Query):
            check_cells(query, schema, self.largest_answer)
            if planned:
                agreement.check_extent(head, query.extent(schema))
                _check_step(head, query, schema)

    def limits(self, request: Request) -> tuple[Budget, Budget, tuple[tuple[float, int], ...] | None]:
        """Return the limits for the question of a ``request``: the site's budget, its run's, and its plan's slots.

        If the run has a plan, its budget is that of the plan, which may exceed ``per_run``: the charge names that limit
        too (``own`` of :class:`~fedsynth.privacy.charge.Charge`). The slots are those that permit such a question,
        each as (highest price, number of times). Otherwise, the run's budget is ``per_run`` (or the site's budget if
        that is ``None``), and the last value is ``None``. Raises :class:`Refused` for a plan that is not approved.
        """
        total = Budget.none() if self.exact else self.budget
        per_run = total if self.per_run is None or self.exact else self.per_run
        if not self._planned(request.agreement):
            return total, per_run, None
        return total, request.agreement.budget, request.agreement.slots_for(request.head)

    def _check_release(self, head: QuestionHead, trust: Trust, agreement: Agreement) -> None:
        release = head.release
        if kind_of(release) not in RELEASES[head.verb]:
            raise Refused(
                f"a {head.verb!r} cannot be released as {kind_of(release)}; use one of {sorted(RELEASES[head.verb])}"
            )
        parts = (release.pick, release.look) if isinstance(release, AdaptiveSelection) else (release,)
        endless = isinstance(release, Deposit) and not release.rho and not release.epsilon
        if (endless or any(isinstance(part, Exact) for part in parts)) and not self.exact:
            raise Refused("this site releases nothing without noise; use a private method")
        if isinstance(release, SampledGaussian) and agreement.public_sizes:
            raise Refused(
                "the cost of noise on sampled rows is proved only if rows are added or removed; it is not available "
                "with size_is_public"
            )
        if kind_of(release) == "public" and not (head.kind == "size" and self.size_is_public):
            raise Refused(f"this site does not declare {head.kind!r} public; ask for it with noise")
        if isinstance(release, Deposit) and trust.vault is None:
            raise Refused(f"no vault exists under the trust {trust.name!r}; use a method without deposits")

    def _trust(self, agreement: Agreement) -> Trust:
        if agreement.trust not in self.trusts:
            raise Refused(
                f"this site does not accept the trust {agreement.trust!r} but {', '.join(sorted(self.trusts))}; change "
                "the trust of the job, or [policy.trusts] of this site"
            )
        return self.trusts[agreement.trust]

    def _planned(self, agreement: Agreement) -> bool:
        """Whether a run is limited by its plan; one whose plan is not approved is refused.

        A run with a plan is held to it even where any plan may come: what is stated of its guarantee rests on that.
        """
        if agreement.digest in self.plans or (self.any_plan and not self.plans):
            return bool(agreement.slots)
        said = f"plan {agreement.digest[:12]} is not approved here" if agreement.slots else "the run has no plan"
        raise Refused(
            f"{said}; name a plan in the job and have this site's steward approve it ([policy.plans]), or write "
            'plans = "any" into [policy]'
        )

    def _contradictions(self, run: Agreement) -> Iterator[str]:
        """Yield what this policy refuses of an agreement, whatever is asked."""
        if self.methods and run.method not in self.methods:
            yield f"its method {run.method!r} is not {' or '.join(sorted(self.methods))}"
        if run.sites < self.min_cohort:
            yield f"it is for {run.sites} sites, and min_cohort is {self.min_cohort}"
        if run.trust in self.trusts:
            trust = self.trusts[run.trust]
            if dict(run.trust_options) != (accepted := settings_of(trust)):
                yield f"it runs under {run.trust!r} with {dict(run.trust_options)}, and this site accepts {accepted}"
            roster: Mapping[str, bytes] = getattr(trust, "roster", {})
            if run.roster and roster and run.roster != roster_digest(roster):
                yield "its roster has other sites or keys than this site's"

    def _beyond(self, digest: str, plan: Agreement) -> Iterator[str]:
        """Yield why no run could follow an approved plan at this site."""
        if plan.digest != digest:
            yield f"its digest is {plan.digest}"
        if not plan.slots:
            yield "it lists no questions"
        if plan.trust not in self.trusts:
            yield f"its trust {plan.trust!r} is not one of {sorted(self.trusts)}"
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
                yield f"its delta is {in_full(plan.budget.delta)}, and {scope} allows pure differential privacy only"
            elif plan.budget.rho > bound.rho * ROUNDING:
                yield f"it may cost rho={plan.budget.rho:.6g}, and {scope} allows {bound.rho:.6g}"
            elif bound.pure and plan.budget.epsilon > bound.epsilon * ROUNDING:
                yield f"it may cost epsilon={in_full(plan.budget.epsilon)}, and {scope} allows {in_full(bound.epsilon)}"


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
