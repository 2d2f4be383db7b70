"""Charges of a site's privacy account, and the rules by which it refuses them.

The rules depend on the charge and the account alone, hence on what the site was asked, and never on its rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from fedsynth.errors import BudgetExceeded, InvalidParameter, Refused, Unsupported
from fedsynth.privacy.account_file import QuestionRecord, RunRecord
from fedsynth.privacy.audit import AuditHead
from fedsynth.privacy.cost import ROUNDING, Budget, Cost, ProtectedChange

read_change = msgspec.json.Decoder(ProtectedChange).decode
"""Parses :attr:`RunRecord.change <fedsynth.privacy.account_file.RunRecord>`, which is JSON."""


@dataclass(frozen=True, kw_only=True)
class Charge:
    """A question to be charged at a site: the run and query, the cost to one person, and the limits that apply.

    A question is one request of a run to one site, charged once, however often its messages are repeated. ``key`` (hex)
    identifies it: a hash of the question and of the public key of the server that asks. ``step`` is its number in the
    run. ``verb`` ("sum", ...), ``kind`` (the query's class, such as "counts"), ``release`` (the noise and its privacy
    cost, as JSON), ``trust`` (name of the trust model) and ``plan`` (digest of the approved
    :class:`~fedsynth.federation.plan.Plan`, which lists what the run may ask, or empty) are written to the audit.
    ``terms`` is everything on which the answer depends besides the query and the rows: the release, the sensitivity,
    the unit of protection, the neighbouring relation, the trust model's settings and the version of fedsynth. ``rows``
    is the keyed digest (a hash under the site's secret) of the encoded rows that the run reads; it is empty if
    :meth:`Account.pin <fedsynth.privacy.account.Account.pin>` stores it only after the first charge.

    ``cost`` is to one person of the request's unit under its neighbour relation, ``change``, and the site's policy
    demands at least ``least``. The account charges at least this cost: if it counts for more (:attr:`Account.change
    <fedsynth.privacy.account.Account.change>`), as much as its own persons may pay.

    ``total`` limits everything ever spent at the site. ``per_run`` limits the run: it is the budget of an approved plan
    if there is one, and then ``own`` is the site's own limit for a run. Both are checked, because limits with different
    orders (:attr:`Budget.order <fedsynth.privacy.cost.Budget.order>`) need not imply each other.

    ``slots`` are the questions that an approved plan grants the run in this ``group`` (those of one verb, kind and
    class of release): pairs of a privacy cost and the number of questions that may cost up to that much. It is ``None``
    if no plan is needed. These costs are in the measure of ``per_run``: epsilon if that budget is pure, otherwise rho
    at its order, and to the persons of ``change``. A run keeps to one measure. A charge uses up the
    cheapest of the remaining slots that cover its cost. ``stored`` is the most bytes that the account will store for
    the question, from public facts alone, and ``most_stored`` how many it may store for the run's questions. Raises
    :class:`InvalidParameter` for a negative or undefined cost.
    """

    key: str
    run: str
    step: int
    verb: str
    release: str
    cost: Cost
    terms: str
    total: Budget
    per_run: Budget
    change: ProtectedChange
    least: ProtectedChange
    kind: str = ""
    trust: str = ""
    plan: str = ""
    rows: str = ""
    own: Budget | None = None
    group: str = ""
    slots: tuple[tuple[float, int], ...] | None = None
    stored: int = 0
    most_stored: float = math.inf

    def __post_init__(self) -> None:
        """Raise :class:`InvalidParameter` for negative or undefined costs."""
        if not (self.cost.epsilon >= 0 and self.cost.rho >= 0):
            raise InvalidParameter(f"a question cannot cost {self.cost}; costs must be zero or more")

    @property
    def facts(self) -> dict[str, object]:
        """What an audit row says of the question, beside its cost."""
        names = ("key", "run", "step", "verb", "kind", "trust", "plan", "terms")
        return {name: getattr(self, name) for name in names} | {"release": msgspec.json.decode(self.release)}

    @property
    def price(self) -> float:
        """The question's cost in the measure of ``slots``: epsilon if ``per_run`` is pure, else rho at its order."""
        return self.per_run.price(self.cost)


@dataclass(frozen=True)
class OpenedQuestion:
    """A question's entry in the site's privacy account: the question may now be answered.

    It comes from :meth:`Account.begin <fedsynth.privacy.account.Account.begin>`.

    ``salt`` is 32 random bytes, one source of the question's noise; ``row`` and ``chain`` (32 bytes) are the number and
    the hash of its audit row, the account's record of the charge (before it: of the opening). ``charged`` says whether
    the question has been charged. It is false at the start of a secure sum, which takes several messages: the message
    that makes the site read its rows charges it.
    """

    salt: bytes
    row: int
    chain: bytes
    charged: bool


class LostRun(NamedTuple):
    """A run whose last charges a restored backup may lack: its name, its limit, its cost so far, and the rest of it.

    ``limit`` is the most that the run may cost one person, ``spent`` what the backup knows of, and ``rest`` what
    :meth:`Account.restored <fedsynth.privacy.account.Account.restored>` charges.
    """

    run: str
    limit: Budget
    spent: Cost
    rest: Cost

    @property
    def limit_rest(self) -> Cost:
        """What is left of the limit, if nothing of it is spent on random samples of rows."""
        pure, left = self.limit.pure, self.limit.price(self.spent)
        rest = max(0.0, (self.limit.epsilon if pure else self.limit.rho) - left)
        return Cost(rest, rest**2 / 2) if pure else Cost(math.inf, rest)


@dataclass(frozen=True)
class LostCharges:
    """What is charged for all that a restored backup lacks: for each run, the rest of its limit.

    :meth:`Account.restored <fedsynth.privacy.account.Account.restored>` charges it.

    ``before`` is the site's total as the backup knows it, ``after`` the total once the rest of every run is charged.
    """

    runs: tuple[LostRun, ...]
    before: Cost

    @property
    def after(self) -> Cost:
        """The site's total after :meth:`Account.restored <fedsynth.privacy.account.Account.restored>`."""
        return sum((lost.rest for lost in self.runs), self.before)


def refuse_other_rows(run: RunRecord, charge: Charge) -> None:
    """Raise :class:`Refused` for a charge to a closed run, or over other rows than those that the run reads."""
    if run.closed:
        raise Refused(f"run {charge.run} is closed at this site; start another run")
    if charge.rows and run.rows and charge.rows != run.rows:
        raise Refused(f"the rows of run {charge.run} have changed since it began; start another run for the new rows")


def refuse_other_currency(run: RunRecord, charge: Charge) -> None:
    """Raise :class:`Refused` for a plan whose prices are in another currency than the run's.

    Slots of one run are counted by their prices: in epsilon if the run's limit is pure, otherwise in rho. For sampled
    releases, prices in rho refer to one order, that of the limit.
    """
    limit = run.limit
    pure = limit.pure
    if charge.slots is not None and (
        pure != charge.per_run.pure or (run.curve and limit.order != charge.per_run.order)
    ):
        before, now = ("epsilon", "rho") if pure else ("rho", "epsilon")
        if pure == charge.per_run.pure:
            before, now = (f"rho at order {order:.4g}" for order in (limit.order, charge.per_run.order))
        raise Refused(
            f"run {charge.run} was charged in {before} but this plan's prices are in {now}; a run keeps to one "
            "currency: continue under the plan that it began with, or start another run"
        )


def refuse_other_change(run: RunRecord, change: ProtectedChange) -> None:
    """Raise :class:`Refused` for a run that began when the account counted for other persons than ``change``."""
    began = read_change(run.change)
    if began != change:
        raise Refused(
            f"start another run: {run.run} began when this account counted for {began}, and now it counts for {change}"
        )


def repriced(head: AuditHead, least: ProtectedChange) -> AuditHead:
    """Return the end of an audit with its total for the account's unit and relation and for ``least`` as well.

    Raises :class:`Refused` if the total has no bound for them.
    """
    change = head.change.covering(least)
    try:
        return head.repriced(change)
    except Unsupported as error:
        raise Refused(
            "undo the change of unit or size_is_public in [policy]: this account has training on random samples of "
            f"rows, whose cost is proved for {head.change} and has no bound for {change}"
        ) from error


def cost_for(charge: Charge, change: ProtectedChange) -> Cost:
    """Return the cost of a charge to the persons for whom the account counts, ``change``.

    Raises :class:`Refused` if the charge follows a plan for a smaller unit, or has no bound for these persons.
    """
    steps = charge.change.steps_to(change)
    if steps > 1 and charge.slots is not None:
        raise Refused(
            "plan again with --rows-per-person and --sites-per-person as in `fedsynth site account`, and have the plan "
            f"approved: it is for {charge.change}, and this account counts for {change}"
        )
    try:
        return charge.cost.grouped(steps)
    except Unsupported as error:
        raise Refused(
            "run with --rows-per-person and --sites-per-person as in `fedsynth site account`, or a method that samples "
            f"no rows: noise on samples is proved for {charge.change}, and this account counts for {change}"
        ) from error


def wider(one: Budget, other: Budget) -> Budget:
    """Return that of two limits which admits more; one with delta above 0 admits releases that pure ones do not."""
    return max(other, one, key=lambda limit: (not limit.pure, limit.epsilon if limit.pure else limit.rho))


def refuse_other_terms(known: QuestionRecord, charge: Charge) -> None:
    """Raise :class:`Refused` if a question is asked again by another run, or under other terms."""
    if (known.run, known.terms) != (charge.run, charge.terms):
        raise Refused(
            f"this question of run {charge.run} was asked under other terms ({known.terms}; now {charge.terms}); undo "
            "the change of policy or version, or let the run ask a new question"
        )


def refuse_overdraft(charge: Charge, cost: Cost, total: Cost, in_run: Cost) -> None:
    """Raise :class:`BudgetExceeded` if a charge's ``cost``, on top of what is spent, is beyond one of its limits.

    ``total`` is spent in all at the site, ``in_run`` in the charge's run. Without a cost, nothing is raised.
    """
    if cost == Cost():
        return  # public facts cost nothing, and are answered even if the budget is used up
    limits = [("in total", charge.total, total), ("in this run", charge.per_run, in_run)]
    if charge.own is not None:
        limits.append(("in this run, by this site's own limit", charge.own, in_run))
    for scope, limit, before in limits:
        if not limit.covers(before + cost):
            unit = "epsilon" if limit.pure else "rho"
            raise BudgetExceeded(
                f"the question costs {unit} = {limit.price(cost):.6g}, and {unit} = {limit.price(before):.6g} "
                f"of {getattr(limit, unit):.6g} is spent {scope}; ask a cheaper question, or ask the site's data "
                "steward to raise the limit"
            )


def free_slot(slots: Iterable[tuple[float, int]], used: Iterable[tuple[float, int]], price: float) -> float | None:
    """Return the price of the cheapest slot that covers ``price`` after ``used`` ones are taken; ``None`` if none does.

    Taking the cheapest covering slot is optimal: of two slots that cover a charge, the dearer one covers everything
    that the cheaper one covers. Used slots are reassigned each time, so a run may continue under a plan with other
    prices.
    """
    free: Counter[float] = Counter()
    for slot, times in slots:
        free[slot] += times
    place: float | None = None
    for taken, times in [*used, (price, 1)]:
        for place in sorted(slot for slot, left in free.items() if left and slot * ROUNDING >= taken):
            here = min(times, free[place])
            free[place] -= here
            times -= here
            if not times:
                break
        if times:
            return None
    return place
