"""The rules by which a site's privacy account refuses a charge; none of them changes anything.

They depend on the charge and the account alone, hence on what the site was asked, and never on its rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from fedsynth.errors import BudgetExceeded, Refused, Unsupported
from fedsynth.privacy.account_file import QuestionRecord, RunRecord
from fedsynth.privacy.audit import AuditHead
from fedsynth.privacy.cost import ROUNDING, Budget, Cost, ProtectedChange

if TYPE_CHECKING:
    from fedsynth.privacy.account import Charge

read_change = msgspec.json.Decoder(ProtectedChange).decode
"""Parses :attr:`RunRecord.change <fedsynth.privacy.account_file.RunRecord>`, which is JSON."""


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
