"""B6: costs for different units and neighbour relations in one account.

A steward raises the unit of protection, or declares sizes public, after questions were answered under smaller terms.
The account's total must bound what everything together costs one person of the unit that the site claims to protect.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import sqlite3
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import Any, Literal

import pytest
from tests.attacks.world import ask, deployed, frame, question, sealed, site
from tests.command import fedsynth
from tests.world import agreed

from fedsynth.deploy.host.state import answer, open_account
from fedsynth.errors import InvalidParameter, Refused
from fedsynth.federation.agreement import PlannedQuestion
from fedsynth.federation.site import Site
from fedsynth.federation.wire import Reply
from fedsynth.privacy.book import Book
from fedsynth.privacy.book_file import verify_export
from fedsynth.privacy.charge import BegunRun, Charge
from fedsynth.privacy.cost import (
    Budget,
    Cost,
    Neighbours,
    Norms,
    ProtectedChange,
    Sensitivity,
    Unit,
    epsilon_of,
    protect,
    times_charged,
)
from fedsynth.privacy.release import Gaussian, Laplace, Release, SampledGaussian
from fedsynth.proof.extract import extract

DELTA = 1e-6
RUN = Budget(1.0, DELTA)
"""What a run may cost: rho .0211."""
HALF = RUN.rho / 2
WIDE = Budget(20.0, DELTA)
PURE = Budget(20.0, 0.0)
FORK = get_context("fork")
SAMPLED = SampledGaussian(0.05, 2.0, 3)


def under(of: Site, **policy: Any) -> Site:
    """Return the site after its steward has changed the policy."""
    return replace(of, policy=replace(of.policy, **policy))


def put(of: Site, run: str, release: Release, unit: Unit | None = None, step: int = 0, **fields: Any) -> Reply:
    """Put a question to a site, under its policy's own unit and neighbour relation unless told otherwise."""
    terms = {"unit": unit or of.policy.unit, "neighbours": of.policy.change.neighbours, **fields}
    return ask(of, question(run=run, release=release, step=step, **terms))


def epsilon(of: Site) -> float:
    """Return the epsilon that a site's account states."""
    return of.account.spent().at(of.policy.budget.delta)


# ---------------------------------------------------------------------------------------------------------------------
# What was seen


def test_a_larger_unit_prices_earlier_questions_anew():
    """Half of epsilon 1 to one row, then half to five rows: a person of five rows has paid 12.5 + .5 halves of rho."""
    of = site(budget=WIDE)
    assert put(of, "first", Gaussian(HALF)).code == "answered"
    assert epsilon(of) == pytest.approx(epsilon_of(HALF, DELTA))
    of = under(of, unit=Unit(5))
    assert put(of, "second", Gaussian(HALF)).code == "answered"
    truly = epsilon_of(13 * RUN.rho, DELTA)
    assert truly == pytest.approx(4.04, abs=0.005)
    assert truly <= epsilon(of) <= truly * (1 + 1e-9)
    assert of.account.change == ProtectedChange(Unit(5))
    assert of.account.verify().wrong == ""


@pytest.mark.parametrize(
    ("unit", "public", "factor"),
    [(Unit(5), False, 5), (Unit(1), True, 2), (Unit(3), True, 6), (Unit(1, 3), False, 3), (Unit(2, 2), True, 8)],
)
def test_a_changed_policy_prices_anew(unit, public, factor):
    """Rho grows with the square of the steps, and a pure epsilon with the steps; a replaced row is two steps."""
    price = 1e-4
    of = site(budget=WIDE)
    put(of, "first", Gaussian(price))
    of = under(of, unit=unit, size_is_public=public)
    assert put(of, "second", Gaussian(price)).code == "answered"
    assert of.account.spent().rho == pytest.approx(price * (factor**2 + unit.sites))
    of = site(budget=PURE)
    put(of, "first", Laplace(0.25))
    of = under(of, unit=unit, size_is_public=public)
    assert put(of, "second", Laplace(0.25)).code == "answered"
    assert of.account.spent().epsilon == pytest.approx(0.25 * (factor + unit.sites))


def test_a_unit_that_is_no_multiple_counts_as_the_next_one():
    """Three rows become seven: three groups of up to three rows."""
    of = site(budget=WIDE, unit=Unit(3))
    put(of, "first", Gaussian(1e-4))
    of = under(of, unit=Unit(7))
    put(of, "second", Gaussian(1e-4))
    assert of.account.spent().rho == pytest.approx(10e-4)


def test_a_total_above_the_limit_after_a_change_ends_the_answers():
    """12.5 times the limit is spent: nothing more is answered, and the steward reads why; the old unit goes on."""
    of = site(budget=RUN)
    put(of, "first", Gaussian(HALF))
    raised = under(of, unit=Unit(5))
    assert put(raised, "second", Gaussian(1e-4)).code == "spent"
    last = json.loads(list(of.account.export())[-1])
    assert last["outcome"] == "spent"
    assert f"rho = {12.5 * RUN.rho:.6g} of {RUN.rho:.6g} is spent in total" in last["reason"]
    assert of.account.spent_under(raised.policy.change).rho == pytest.approx(12.5 * RUN.rho)
    assert put(of, "first", Gaussian(1e-4), step=1).code == "answered"
    assert of.account.spent().rho == pytest.approx(HALF + 1e-4)


# ---------------------------------------------------------------------------------------------------------------------
# Which unit a total is for


def test_a_smaller_unit_lowers_nothing():
    """The account keeps the largest unit that was demanded, and prices questions for smaller ones at it."""
    of = under(site(budget=WIDE, unit=Unit(5)), unit=Unit(5))
    put(of, "first", Gaussian(1e-4))
    of = under(of, unit=Unit(1))
    assert put(of, "second", Gaussian(1e-4)).code == "answered"
    assert of.account.spent().rho == pytest.approx(26e-4)
    assert of.account.change == ProtectedChange(Unit(5))
    (first, second) = of.account.charges()
    assert "quoted" not in first
    assert second["quoted"]["rho"] == 1e-4
    assert second["cost"]["rho"] == pytest.approx(25e-4)
    of = under(of, unit=Unit(2, 3))
    put(of, "third", Gaussian(1e-4))  # (2, 3) to (5, 3): three steps, and three sites; (5, 1) to (5, 3): three steps
    assert of.account.change == ProtectedChange(Unit(5, 3))
    assert of.account.spent().rho == pytest.approx(9 * 26e-4 + 9 * 3e-4)


def test_sizes_that_were_public_once_are_counted_as_public():
    """A cost under replaced rows bounds none under added ones, so the account stays with replaced rows."""
    of = site(budget=WIDE, size_is_public=True)
    put(of, "first", Gaussian(1e-4))
    of = under(of, size_is_public=False)
    assert put(of, "second", Gaussian(1e-4)).code == "answered"
    assert of.account.change == ProtectedChange(Unit(), "replace")
    assert of.account.spent().rho == pytest.approx(5e-4)


def test_a_request_for_a_larger_unit_changes_no_account():
    """No server can raise the unit: what costs a person of more rows costs one of fewer rows no more."""
    of = site(budget=WIDE)
    assert put(of, "first", Gaussian(1e-4), Unit(2**20)).code == "answered"
    assert put(of, "second", Gaussian(1e-4)).code == "answered"
    assert of.account.change == ProtectedChange()
    assert of.account.spent().rho == pytest.approx(2e-4)


def test_a_run_keeps_to_one_unit():
    """Totals and slots of one run are for one unit: it is refused after a change, and another run is answered."""
    of = site(budget=WIDE)
    put(of, "first", Gaussian(1e-4))
    of = under(of, unit=Unit(5))
    put(of, "second", Gaussian(1e-4))
    assert put(of, "first", Gaussian(1e-4), step=1).code == "refused"
    assert "start another run" in json.loads(list(of.account.export())[-1])["reason"]
    assert of.account.spent("first").rho == 1e-4
    assert of.account.change_of("first") == ProtectedChange()
    assert of.account.change_of("second") == ProtectedChange(Unit(5))


def test_a_plan_for_a_smaller_unit_than_the_accounts_is_refused():
    """Or the run would be spent after a part of its plan; its slots are priced for the plan's own unit."""
    schema = question().agreement.schema
    slots = (PlannedQuestion("sum", "counts", "gaussian", 1e-4, 3, 3, 2, 1000),)
    plan = agreed(method="oneshot", schema=schema, sites=2, budget=RUN, slots=slots)
    of = site(budget=WIDE, unit=Unit(5))
    put(of, "first", Gaussian(1e-4))
    approved = under(of, unit=Unit(1), any_plan=False, plans={plan.digest: plan})
    assert put(approved, "second", Gaussian(1e-4), plan=plan).code == "refused"
    assert "plan again with --rows-per-person" in json.loads(list(of.account.export())[-1])["reason"]
    assert len(of.account.charges()) == 1
    alone = site(budget=WIDE, any_plan=False, plans={plan.digest: plan})
    assert put(alone, "second", Gaussian(1e-4), plan=plan).code == "answered"


# ---------------------------------------------------------------------------------------------------------------------
# Random samples of rows


def charge(number: int, change: ProtectedChange, least: ProtectedChange, cost: Cost, **fields: Any) -> Charge:
    """Return a question to charge: its cost, whom it is for, and whom the policy protects."""
    usual = {"run": f"run {number}", "total": WIDE, "per_run": WIDE}
    facts = {"verb": "sum", "kind": "counts", "release": "{}", "trust": "local", "terms": "", "rows": ""}
    every: dict[str, Any] = {**usual, **facts, **fields}
    return Charge(key=f"{number:064x}", step=number, cost=cost, change=change, least=least, **every)


@pytest.mark.parametrize(
    "change", [ProtectedChange(Unit(2)), ProtectedChange(Unit(1, 2)), ProtectedChange(Unit(), "replace")]
)
def test_a_total_with_samples_is_priced_for_no_larger_unit(change):
    """At the one order of a limit, samples have no bound for groups: nothing is answered until the change is undone."""
    account, one = Book(), ProtectedChange()
    sampled = SAMPLED.cost(Norms(1, 1))
    account.begin(charge(0, one, one, sampled))
    for late in (charge(1, change, change, Cost(math.inf, 1e-4)), charge(2, change, change, Cost())):
        for pay in (True, False):
            with pytest.raises(Refused, match=r"undo the change .* random samples .* no bound for"):
                account.begin(late, pay=pay)
    with pytest.raises(Refused, match="undo the change"):
        account.spent_under(change)
    assert account.spent() == sampled
    assert account.head()[0] == 1
    account.begin(charge(3, one, one, Cost(math.inf, 1e-4)))
    assert account.spent() == sampled + Cost(math.inf, 1e-4)


def test_samples_for_a_smaller_unit_than_the_accounts_are_refused():
    """What a smaller unit would cost the larger one is not known; samples for the larger one are charged."""
    account, one, five = Book(), ProtectedChange(), ProtectedChange(Unit(5))
    account.begin(charge(0, five, five, Cost(math.inf, 1e-4)))
    with pytest.raises(Refused, match="a method that samples no rows"):
        account.begin(charge(1, one, one, SAMPLED.cost(Norms(1, 1))))
    account.begin(charge(2, five, one, SAMPLED.cost(Norms(5, 5, 5))))
    assert account.spent() == Cost(math.inf, 1e-4) + SAMPLED.cost(Norms(5, 5, 5))


# ---------------------------------------------------------------------------------------------------------------------
# Transactions


def test_two_processes_of_two_policies_agree_on_one_unit(tmp_path):
    """While a process of the old policy still answers, each charge counts for the larger unit from the first one on."""
    path = tmp_path / "account.sqlite"
    Book(path)
    barrier = FORK.Barrier(2)

    def run(rows: int) -> None:
        of = site(budget=WIDE, unit=Unit(rows), account=Book(path))
        barrier.wait(60)
        for step in range(8):
            put(of, f"{rows}-{step}", Gaussian(1e-4))

    processes = [FORK.Process(target=run, args=(rows,)) for rows in (1, 5)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    account = Book(path)
    assert account.verify().wrong == ""
    assert len(account.charges()) == 16
    assert account.change == ProtectedChange(Unit(5))
    assert account.spent().rho == pytest.approx(8e-4 * 25 + 8e-4)  # in whichever order they came


@pytest.mark.parametrize("when", ["re-priced", "charged", "committed"])
def test_a_site_that_is_killed_while_it_prices_anew(tmp_path, when):
    """The new total and the charge that needed it are on the disk together, or neither is."""
    path = tmp_path / "account.sqlite"
    put(site(budget=WIDE, account=Book(path)), "first", Gaussian(1e-4))

    def die() -> None:
        connect: Any = sqlite3.connect

        class Dying(sqlite3.Connection):
            charging = False

            def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
                written = values[0][1] if statement.startswith("INSERT INTO audit") else b""
                result = super().execute(statement, *values)
                done = Dying.charging and statement == "COMMIT" if when == "committed" else when.encode() in written
                Dying.charging = Dying.charging or b'"charged"' in written
                if done:
                    os.kill(os.getpid(), signal.SIGKILL)
                return result

        setattr(sqlite3, "connect", partial(connect, factory=Dying))  # noqa: B010 - a function of another type
        put(site(budget=WIDE, unit=Unit(5), account=Book(path)), "second", Gaussian(1e-4))

    process = FORK.Process(target=die)
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    account = Book(path)
    assert account.verify().wrong == ""
    done = when == "committed"
    assert account.spent().rho == pytest.approx(26e-4 if done else 1e-4)
    assert account.change == ProtectedChange(Unit(5 if done else 1))
    put(site(budget=WIDE, unit=Unit(5), account=account), "second", Gaussian(1e-4))
    assert account.spent().rho == pytest.approx(26e-4)


def test_a_backup_from_before_a_change_is_priced_anew_with_what_it_lost(tmp_path):
    """A restored account counts for the backup's unit; the next charge prices its write-offs for the policy's."""
    path, limit = tmp_path / "account.sqlite", Budget(0.1, DELTA)
    of = site(budget=WIDE, per_run=limit, account=Book(path))
    put(of, "open", Gaussian(1e-4))
    shutil.copy(path, tmp_path / "backup")
    raised = under(of, unit=Unit(5))
    seen = put(raised, "later", Gaussian(1e-4)).seen
    shutil.copy(tmp_path / "backup", path)
    account = Book(path)
    account.restored(seen.row, {"later": BegunRun(limit)}, samples=lambda agreement: False)
    assert account.spent().rho == pytest.approx(2 * limit.rho)
    assert account.change == ProtectedChange()
    put(replace(raised, account=account), "new", Gaussian(1e-4))
    assert account.spent().rho == pytest.approx(50 * limit.rho + 1e-4)
    assert account.verify().wrong == ""


def test_a_backup_from_after_a_change_writes_off_no_run_from_before(tmp_path):
    """Such a run was refused since: it has no lost charges, and is closed."""
    path, limit = tmp_path / "account.sqlite", Budget(0.1, DELTA)
    of = site(budget=WIDE, per_run=limit, account=Book(path))
    put(of, "before", Gaussian(1e-4))
    of = under(of, unit=Unit(5))
    put(of, "after", Gaussian(1e-4))
    of.account.restored(99, samples=lambda agreement: False)
    assert of.account.spent().rho == pytest.approx(25e-4 + limit.rho)
    assert of.account.open_runs() == []
    assert of.account.verify().wrong == ""


# ---------------------------------------------------------------------------------------------------------------------
# Audit and commands


def test_the_audit_shows_a_change_and_checks_its_total(tmp_path):
    """A row "re-priced" says from what; any other row that changes unit or total breaks the audit."""
    of = site(budget=WIDE)
    put(of, "first", Gaussian(1e-4))
    of = under(of, unit=Unit(5), size_is_public=True)
    put(of, "second", Gaussian(1e-4))
    rows = [json.loads(line) for line in of.account.export()]
    assert [row["outcome"] for row in rows] == ["charged", "re-priced", "charged"]
    assert (rows[1]["steps"], rows[1]["before"]["rho"]) == (10, 1e-4)
    assert rows[1]["total"]["rho"] == pytest.approx(1e-2)
    assert (rows[1]["unit"], rows[1]["neighbours"]) == ({"rows": 5, "sites": 1}, "replace")
    file = tmp_path / "audit.jsonl"

    def broken(number: int, **changes: Any) -> str:
        changed = [dict(row) for row in rows[: number + 1]]
        changed[number] |= changes
        file.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in changed))
        return verify_export(file).wrong

    assert broken(2) == ""
    assert "another total" in broken(1, total={"epsilon": None, "rho": 1e-4})
    assert "for other persons" in broken(1, outcome="opened")
    assert "for other persons" in broken(2, unit={"rows": 1, "sites": 1})
    assert "for other persons" in broken(2, neighbours="add-remove")
    assert "another total" in broken(1, unit={"rows": 6, "sites": 1})


def test_an_extract_states_each_cost_as_asked_and_the_total_as_charged():
    """The coordinator's ledger has the former; the latter is for the persons of the account."""
    of = site(budget=WIDE, unit=Unit(5))
    put(of, "first", Gaussian(1e-4))
    of = under(of, unit=Unit(1))
    put(of, "second", Gaussian(1e-4))
    found = extract(of.account, of.secret, "north", "second", of.coordinator)
    assert found.signed
    assert [charge.cost.rho for charge in found.charges] == [1e-4]
    assert found.total.rho == pytest.approx(25e-4)
    assert (found.unit, found.neighbours) == (Unit(5), "add-remove")


def test_the_steward_is_told_whom_a_total_is_for(tmp_path):
    """`account` and `site check` price the total for the policy as it is now, before any question comes."""
    folder = tmp_path / "north"
    config = deployed(folder, frame(), budget={"epsilon": 1.0, "delta": DELTA}, answer_every=0.0)
    message = question(release=Gaussian(HALF))
    answer(config, [sealed(message)])
    assert open_account(config).spent().rho == HALF
    said = fedsynth("account", folder).stdout
    assert "for persons with up to 1 row at 1 site, rows added or removed" in said
    text = (folder / "site.toml").read_text()
    (folder / "site.toml").write_text(text.replace("[policy]\n", "[policy]\nunit = { rows = 5 }\n"))
    said = fedsynth("account", folder).stdout
    assert "for persons with up to 5 rows at 1 site, rows added or removed, as [policy] demands now" in said
    assert "it is epsilon = 3.95" in said
    shown = json.loads(fedsynth("account", folder, "--json").stdout)
    assert (shown["unit"], shown["neighbours"]) == ({"rows": 1, "sites": 1}, "add-remove")
    assert shown["repriced"]["rho"] == pytest.approx(12.5 * RUN.rho)
    found = json.loads(fedsynth("site", "check", folder, "--json").stdout)
    (account,) = [one for one in found["checks"] if one["name"] == "account"]
    assert account["code"] == 4


# ---------------------------------------------------------------------------------------------------------------------
# An independent oracle

LOCAL, POOLED = "local", "pooled"


def _paid(release: Gaussian | Laplace, terms: ProtectedChange, trust: str, person: ProtectedChange) -> Cost:
    """Return what a release costs a person, from the standard deviation of its noise alone."""
    pooled = trust == POOLED
    norms = protect(Sensitivity(1.0, 1.0), terms, pooled=pooled)
    rows = person.unit.rows * (2 if person.neighbours == "replace" else 1)  # one removed and one added
    distance = rows * (person.unit.sites if pooled else 1)
    answers = 1 if pooled else person.unit.sites  # of which each has noise of its own
    if isinstance(release, Gaussian):
        return Cost(math.inf, answers * (distance / release.sigma(norms.l2)) ** 2 / 2)
    ratio = distance / release.scale(norms.l1)
    return Cost(answers * ratio, answers * ratio**2 / 2)


def _random_change(draw: random.Random, neighbours: Neighbours | None = None) -> ProtectedChange:
    both: tuple[Literal["add-remove"], Literal["replace"]] = ("add-remove", "replace")
    unit = Unit(draw.choice((1, 1, 2, 3, 5, 8)), draw.choice((1, 1, 2, 3)))
    return ProtectedChange(unit, neighbours or draw.choices(both, (4, 1))[0])


@pytest.mark.parametrize("seed", range(60))
def test_the_total_bounds_what_any_sequence_costs_a_person(seed):
    """For questions under random policies, units and relations, each of which may ask for more than the policy does."""
    draw = random.Random(seed)
    account = Book()
    endless, before = Budget(1e9, DELTA), ProtectedChange()
    made: list[tuple[Gaussian | Laplace, ProtectedChange, str]] = []
    for number in range(draw.randrange(1, 25)):
        least = _random_change(draw)
        more = _random_change(draw, least.neighbours)
        terms = ProtectedChange(least.covering(more).unit, least.neighbours) if draw.random() < 0.3 else least
        laws: list[Gaussian | Laplace] = [Gaussian(draw.uniform(1e-6, 1)), Laplace(draw.uniform(1e-3, 1))]
        release = draw.choice(laws)
        trust = draw.choice((LOCAL, POOLED))
        norms = protect(Sensitivity(1.0, 1.0), terms, pooled=trust == POOLED)
        cost = release.cost(norms) * times_charged(terms.unit, pooled=trust == POOLED)
        account.begin(charge(number, terms, least, cost, total=endless, per_run=endless))
        made.append((release, terms, trust))
        assert account.change.covering(before) == account.change
        assert account.change.covering(least) == account.change
        before, total, truly = account.change, account.spent(), Cost()
        for parts in made:
            truly += _paid(*parts, account.change)
        assert total.rho * (1 + 1e-9) >= truly.rho
        assert total.epsilon * (1 + 1e-9) >= truly.epsilon
    assert account.verify().wrong == ""


@pytest.mark.parametrize("seed", range(60))
def test_the_most_charged_site_bounds_what_a_person_at_several_sites_pays(seed):
    """Also if a person's sites take part in different questions, and a policy asks for more sites than before."""
    draw = random.Random(1000 + seed)
    accounts = [Book() for _ in range(4)]
    endless = Budget(1e9, DELTA)
    least = ProtectedChange()
    made: list[tuple[Gaussian, ProtectedChange, str, list[int]]] = []
    for number in range(draw.randrange(2, 20)):
        if draw.random() < 0.3:
            least = least.covering(_random_change(draw, "add-remove"))
        release, trust = Gaussian(draw.uniform(1e-6, 1)), draw.choice((LOCAL, POOLED))
        asked = sorted(draw.sample(range(4), draw.randrange(1, 5)))
        norms = protect(Sensitivity(1.0, 1.0), least, pooled=trust == POOLED)
        cost = release.cost(norms) * times_charged(least.unit, pooled=trust == POOLED)
        for at in asked:
            accounts[at].begin(charge(number, least, least, cost, total=endless, per_run=endless))
        made.append((release, least, trust, asked))
    for account in accounts:  # a site that was asked nothing since prices its total with its next question
        account.begin(charge(99, least, least, Cost(math.inf, 1e-6), total=endless, per_run=endless))
    here = sorted(draw.sample(range(4), min(4, least.unit.sites)))
    truly = 0.0
    for release, terms, trust, asked in made:
        among = len(set(here) & set(asked))
        norms = protect(Sensitivity(1.0, 1.0), terms, pooled=trust == POOLED)
        ratio = least.unit.rows / release.sigma(norms.l2)
        truly += (among * ratio) ** 2 / 2 if trust == POOLED else among * ratio**2 / 2
    assert max(accounts[at].spent().rho for at in here) * (1 + 1e-9) >= truly


def test_a_cost_for_replaced_rows_bounds_none_for_added_ones():
    """Sizes may have been published exactly under replaced rows: no factor makes that a cost for added rows."""
    with pytest.raises(InvalidParameter, match="bounds none for added"):
        ProtectedChange(Unit(), "replace").steps_to(ProtectedChange())
