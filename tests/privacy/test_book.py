"""A site's account: charged once, stored once, within limits, on the disk before anything leaves, and verifiable."""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedsynth.errors import BudgetExceeded, FedsynthError, InvalidParameter, Refused
from fedsynth.privacy.book import LARGEST_KEPT, Book
from fedsynth.privacy.book_file import START, verify_export
from fedsynth.privacy.charge import BegunRun, Charge
from fedsynth.privacy.cost import Budget, Cost, Norms, ProtectedChange
from fedsynth.privacy.release import SampledGaussian

LIMIT = Budget(1.0, 1e-6)
RHO = 0.001
ONE = ProtectedChange()
Opens = Callable[[], Book]


def key(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def charge(number: int = 0, **changes: Any) -> Charge:
    question = Charge(
        key=key(number),
        run="run",
        step=number,
        verb="sum",
        kind="counts",
        release=f'{{"type": "gaussian", "rho": {RHO}}}',
        trust="local",
        cost=Cost(math.inf, RHO),
        terms="gaussian sigma 3, unit 1 1, add-remove, local, 2",
        rows="digest of the rows",
        total=LIMIT,
        per_run=LIMIT,
        change=ONE,
        least=ONE,
    )
    return replace(question, **changes)


def never(agreement: bytes) -> bool:
    """Say that no run has had releases on samples."""
    return False


class Clock:
    """Time that stands still until it is told."""

    def __init__(self) -> None:
        self.moment = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.moment


def pass_days(account: Book, clock: Clock, days: int) -> None:
    """Let days pass, in which the account is looked at once a day, as by a site that waits."""
    for _ in range(days):
        clock.moment += timedelta(days=1)
        account.expire(math.inf)


def rows(account: Book) -> list[dict[str, Any]]:
    return [json.loads(line) for line in account.export()]


def sound(account: Book) -> bool:
    return not account.verify().wrong


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "account.sqlite"


@pytest.fixture(params=["memory", "file"])
def account(request: pytest.FixtureRequest, path: Path) -> Book:
    return Book() if request.param == "memory" else Book(path)


# Transactions


def test_a_question_is_charged_once_and_has_one_salt(account):
    first = account.begin(charge())
    again = account.begin(charge())
    assert first == again
    assert first.charged
    assert len(first.salt) == 32
    assert first.salt != account.begin(charge(1)).salt
    assert account.spent() == Cost(math.inf, 2 * RHO)
    assert account.head()[0] == 2
    assert account.holds(first.row, first.chain)


def test_the_first_reply_is_the_reply(account):
    account.begin(charge())
    assert account.stored(key(0), 0) is None
    assert account.store(key(0), 0, b"first") == b"first"
    assert account.store(key(0), 0, b"second") == b"first"
    assert account.store(key(0), 1, b"another turn") == b"another turn"
    assert account.stored(key(0), 0) == b"first"
    assert account.stored(key(0), 0) == b"first"
    assert account.charges()[0]["replays"] == 2
    assert sound(account)


def test_of_a_large_reply_that_can_be_made_again_a_hash_is_stored_and_no_other_is_sent(path):
    account = Book(path)
    account.begin(charge())
    reply = b"r" * (LARGEST_KEPT + 1)
    for _ in range(3):
        assert account.store(key(0), 0, reply, again=True) == reply
    assert account.stored(key(0), 0) is None
    assert account.charges()[0]["replays"] == 2
    with pytest.raises(FedsynthError, match="cannot be made again"):
        account.store(key(0), 0, b"s" * len(reply), again=True)
    assert account.hashed(key(0), 0) == hashlib.sha256(reply).digest()
    assert account.hashed(key(0), 1) is None
    assert path.stat().st_size < len(reply)
    account.close("run")
    with pytest.raises(Refused, match="ended"):
        account.store(key(0), 0, reply, again=True)


def test_what_a_run_may_make_the_site_store_is_bounded(account):
    limits = {"stored": 40, "most_stored": 100}
    account.begin(charge(0, **limits))
    account.begin(charge(0, **limits))  # again, so nothing more
    account.begin(charge(1, **limits), pay=False)
    account.begin(charge(1, **limits))
    with pytest.raises(Refused, match="may make the site store 120 bytes, and largest_stored"):
        account.begin(charge(2, **limits))
    for number in range(19):
        account.begin(charge(100 + number, run=f"run {number}", stored=80, most_stored=100, cost=Cost(math.inf, 1e-6)))
    with pytest.raises(Refused, match="all open runs together"):
        account.begin(charge(3, run="one more", **limits))
    account.close("run 0")
    account.begin(charge(3, run="one more", **limits))
    assert sound(account)


def test_a_reply_needs_a_question_that_began(account):
    with pytest.raises(Refused, match="ended"):
        account.store(key(0), 0, b"reply")
    with pytest.raises(Refused, match="ended"):
        account.first(key(0), "roster", b"value")


def test_everything_outlives_the_process(path):
    opened = Book(path).begin(charge())
    Book(path).store(key(0), 0, b"reply")
    later = Book(path)
    assert later.begin(charge()) == opened
    assert later.stored(key(0), 0) == b"reply"
    assert later.spent("run").rho == RHO
    assert later.pinned("run") == "digest of the rows"
    assert sound(later)


def test_the_file_is_its_owners(path):
    Book(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)  # as a backup may come back
    Book(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_salts_of_a_seeded_simulation_are_a_function_of_the_question():
    def entropy(key: str) -> bytes:
        return hashlib.sha256(f"seed {key}".encode()).digest()

    assert Book(entropy=entropy).begin(charge()).salt == Book(entropy=entropy).begin(charge()).salt


def test_a_secret_is_stored_once(path):
    assert Book(path).said("", "noise") is None
    assert Book(path).first("", "noise", b"fresh") == b"fresh"
    assert Book(path).first("", "noise", b"other") == b"fresh"
    assert Book(path).said("", "noise") == b"fresh"
    assert Book(path).first("", "identity", b"other") == b"other"


def test_other_terms_are_refused_and_cost_nothing(account):
    account.begin(charge())
    with pytest.raises(Refused, match="other terms"):
        account.begin(charge(terms="gaussian sigma 2, unit 1 1, add-remove, local, 2"))
    with pytest.raises(Refused, match="other terms"):
        account.begin(charge(run="another run"))
    assert account.head()[0] == 1


def test_a_run_reads_the_rows_that_it_began_with(account):
    assert account.pinned("run") is None
    account.begin(charge())
    for number in (0, 1):
        with pytest.raises(Refused, match=r"the rows of run .* have changed"):
            account.begin(charge(number, rows="digest of other rows"))
    account.begin(charge(2, run="another run", rows="digest of other rows"))
    assert account.pinned("another run") == "digest of other rows"
    assert account.spent().rho == 2 * RHO


# Limits


def test_limits_in_total_and_of_a_run(account):
    part = Cost(math.inf, 0.4 * LIMIT.rho)
    half = Budget(0.6, 1e-6)
    account.begin(charge(0, cost=part, per_run=LIMIT))
    with pytest.raises(BudgetExceeded, match="in this run"):
        account.begin(charge(1, cost=part, per_run=half))
    account.begin(charge(1, run="run 2", cost=part))
    with pytest.raises(BudgetExceeded, match="in total"):
        account.begin(charge(2, run="run 3", cost=part))
    assert account.spent().rho == pytest.approx(0.8 * LIMIT.rho)
    assert account.spent("run").rho == pytest.approx(0.4 * LIMIT.rho)
    assert account.spent("run 3") == Cost()
    assert account.head()[0] == 2


def test_an_exactly_spent_budget_is_not_refused_for_rounding(account):
    for number in range(10):
        account.begin(charge(number, cost=Cost(math.inf, LIMIT.rho / 10)))
    with pytest.raises(BudgetExceeded):
        account.begin(charge(10, cost=Cost(math.inf, 1e-6)))
    account.begin(charge(11, cost=Cost()))  # what is public costs nothing
    assert sound(account)


def test_a_pure_limit_is_kept_in_epsilon(account):
    pure = Budget(1.0, 0.0)
    account.begin(charge(0, cost=Cost(0.6, 0.01), total=pure, per_run=pure))
    with pytest.raises(BudgetExceeded, match=r"epsilon = 0\.6 of 1 is spent in total"):
        account.begin(charge(1, cost=Cost(0.6, 0.01), total=pure, per_run=pure))
    with pytest.raises(BudgetExceeded, match="epsilon"):
        account.begin(charge(1, cost=Cost(math.inf, 1e-6), total=pure, per_run=pure))
    account.begin(charge(2, cost=Cost(0.4, 0.01), total=pure, per_run=pure))
    assert account.spent() == Cost(1.0, 0.02)


def test_an_exact_release_makes_the_account_infinite(account):
    exact = Cost(math.inf, math.inf)
    with pytest.raises(BudgetExceeded):
        account.begin(charge(0, cost=exact))
    with pytest.raises(BudgetExceeded, match="in total"):
        account.begin(charge(0, cost=exact, per_run=Budget.none()))
    assert account.exact == 0
    account.begin(charge(0, cost=exact, total=Budget.none(), per_run=Budget.none()))
    assert account.spent() == exact
    assert account.exact == 1
    with pytest.raises(BudgetExceeded):  # no later limit holds for these rows
        account.begin(charge(1, run="run 2"))
    assert sound(account)


def test_a_cost_is_zero_or_more():
    for cost in (Cost(-1.0, 0.1), Cost(0.1, -1.0), Cost(math.nan, 0.1), Cost(0.1, math.nan)):
        with pytest.raises(InvalidParameter):
            charge(cost=cost)


def test_a_plan_is_a_list_of_slots(account):
    slots = ((0.001, 2), (0.004, 1))

    def ask(number: int, rho: float, **changes: Any) -> float:
        question = charge(number, cost=Cost(math.inf, rho), group="sum counts gaussian", slots=slots, **changes)
        row = account.begin(question).row
        return float(rows(account)[row - 1]["slot"])

    assert ask(0, 0.0009) == 0.001
    assert ask(0, 0.0009) == 0.001  # a repetition uses no slot
    assert ask(1, 0.001) == 0.001
    assert ask(2, 0.001) == 0.004  # the cheap ones are used up
    with pytest.raises(Refused, match="used 3 of 3"):
        ask(3, 0.0001)
    assert ask(3, 0.0001, run="run 2") == 0.001
    with pytest.raises(Refused, match="no free slot"):
        ask(4, 0.005, run="run 2")
    with pytest.raises(Refused, match="no free slot"):
        account.begin(charge(4, group="each counts gaussian", slots=()))
    assert account.head()[0] == 4


def test_slots_used_under_one_plan_count_under_the_next(account):
    cost = Cost(math.inf, 0.0015)
    account.begin(charge(0, cost=cost, group="g", slots=((0.002, 1),)))
    wider = ((0.001, 5), (0.003, 2))
    account.begin(charge(1, cost=cost, group="g", slots=wider))
    with pytest.raises(Refused):
        account.begin(charge(2, cost=cost, group="g", slots=wider))
    account.begin(charge(2, group="g", slots=wider))


def test_slots_of_a_pure_run_are_priced_in_epsilon(account):
    pure = {"total": Budget(1.0, 0.0), "per_run": Budget(1.0, 0.0), "group": "g", "slots": ((0.1, 1),)}
    with pytest.raises(Refused, match="no free slot"):
        account.begin(charge(0, cost=Cost(0.2, 0.0001), **pure))
    assert account.begin(charge(0, cost=Cost(0.1, 0.2), **pure)).charged


# Releases on samples of rows, whose cost has a curve

TRAINING = SampledGaussian(0.05, 4.0, 10)


def test_charges_with_curves_persist_and_add_up(path):
    cost = TRAINING.cost(Norms(1, 1))
    account = Book(path)
    for number in range(3):
        account.begin(charge(number, cost=cost))
        account = Book(path)
    account.begin(charge(3))
    account.begin(charge(4, cost=cost, run="run 2"))
    total = cost + cost + cost + Cost(math.inf, RHO)
    assert Book(path).spent("run") == total
    assert Book(path).spent() == total + cost
    assert Book(path).spent("run 2") == cost
    assert sound(Book(path))
    charged = [msgspec.convert(one["cost"], Cost) for one in account.charges()]
    assert charged == [cost, cost, cost, Cost(math.inf, RHO), cost]
    file = path.with_name("audit.jsonl")
    file.write_text("".join(f"{line}\n" for line in account.export()))
    assert verify_export(file) == account.verify()


def test_a_curve_that_was_changed_is_found(path):
    account = Book(path)
    account.begin(charge(cost=TRAINING.cost(Norms(1, 1))))
    with sqlite3.connect(path) as connection:
        (spent,) = connection.execute("SELECT spent FROM runs").fetchone()
        assert b"curve" in spent
        connection.execute("UPDATE runs SET spent = ?", (spent[:-1] + bytes([spent[-1] ^ 1]),))
    assert "checksum" in account.verify().wrong
    with pytest.raises(FedsynthError, match="checksum"):
        account.begin(charge(1))


def test_samples_are_charged_up_to_the_very_limit(account):
    cost = TRAINING.cost(Norms(1, 1))
    price = LIMIT.price(cost)
    times = int(LIMIT.rho / price)
    for number in range(times):
        account.begin(charge(number, cost=cost))
    with pytest.raises(
        BudgetExceeded, match=rf"costs rho = {price:.6g}, and rho = {times * price:.6g} of {LIMIT.rho:.6g}"
    ):
        account.begin(charge(times, cost=cost))
    rest = LIMIT.rho - LIMIT.price(account.spent())
    with pytest.raises(BudgetExceeded):
        account.begin(charge(times, cost=Cost(math.inf, rest * (1 + 1e-6))))
    account.begin(charge(times, cost=Cost(math.inf, rest)))
    with pytest.raises(BudgetExceeded):
        account.begin(charge(times + 1, cost=Cost(math.inf, 1e-6)))
    assert LIMIT.covers(account.spent())
    assert sound(account)


def test_samples_are_no_pure_privacy_and_are_never_free():
    account = Book()
    account.free_an_hour = 0
    pure = Budget(100.0, 0.0)
    with pytest.raises(BudgetExceeded):
        account.begin(charge(cost=TRAINING.cost(Norms(1, 1)), total=pure, per_run=pure))
    curve_alone = TRAINING.cost(Norms(1, 1))
    assert curve_alone.rho == 0
    assert account.begin(charge(cost=curve_alone)).charged  # not one of those that cost nothing
    with pytest.raises(Refused, match="without cost"):
        account.begin(charge(1, cost=Cost()))


def test_slots_of_samples_are_priced_at_the_order_of_the_plan(account):
    plan = Budget(0.5, 1e-6)
    cost = TRAINING.cost(Norms(1, 1))
    price = plan.price(cost)
    assert price > LIMIT.price(cost) * 1.01  # at the limit of the site it is another number
    slots = {"per_run": plan, "group": "sum gradients sampled", "slots": ((price, 2),)}
    assert account.begin(charge(0, cost=cost, **slots)).charged
    dearer = SampledGaussian(0.05, 3.99, 10).cost(Norms(1, 1))
    with pytest.raises(Refused, match="no free slot"):
        account.begin(charge(1, cost=dearer, **slots))
    assert account.begin(charge(1, cost=cost, **slots)).charged
    with pytest.raises(Refused, match="used 2 of 2"):
        account.begin(charge(2, cost=cost, **slots))
    with pytest.raises(Refused, match=r"rho at order .* but this plan's prices are in rho at order"):
        account.begin(charge(2, cost=cost, **{**slots, "per_run": LIMIT}))


@pytest.mark.parametrize("limit", [LIMIT, Budget(0.5, 1e-6)])
def test_a_restored_backup_of_a_training_run_is_written_off_to_its_limit(path, limit):
    cost = TRAINING.cost(Norms(1, 1))
    account = Book(path)
    account.begin(charge(0, cost=cost, per_run=limit))
    backup = path.read_bytes()
    account.begin(charge(1, cost=cost, per_run=limit))
    seen = account.begin(charge(2, cost=cost, per_run=limit))
    lost = account.spent()
    path.write_bytes(backup)
    account = Book(path)
    account.restored(seen.row)
    assert limit.price(account.spent("run")) >= limit.rho
    assert LIMIT.price(account.spent()) >= LIMIT.price(lost)
    assert sound(account)


@pytest.mark.parametrize("site", [Budget(20.0, 1e-6), Budget(3.0, 1e-6), Budget(1.0, 1e-6), Budget(0.5, 1e-6)])
def test_training_that_a_backup_knows_nothing_of_is_written_off_at_the_order_of_the_site(path, site):
    """The dearest training within a run's limit, all of it after the backup; nothing is known above the run's order."""
    run = Budget(1.0, 1e-6)
    account = Book(path)
    account.begin(charge(0, cost=Cost(), per_run=run))
    backup = path.read_bytes()
    cost = TRAINING.cost(Norms(1, 1))
    for number in range(1, 1 + int(run.rho / run.price(cost))):
        seen = account.begin(charge(number, cost=cost, per_run=run, total=Budget(99.0, 1e-6)))
    lost = account.spent()
    assert run.price(lost) > 0.8 * run.rho
    path.write_bytes(backup)
    account = Book(path)
    account.restored(seen.row)
    assert site.price(account.spent()) >= site.price(lost)
    assert account.spent().at(1e-6) >= lost.at(1e-6)
    assert (site.price(account.spent()) < 1e6) == (site.order < run.order)


QUIET, TRAINED = b"a plan without training", b"a plan with training"


def among_plans(agreement: bytes) -> bool:
    return agreement != QUIET


@pytest.mark.parametrize("site", [Budget(1000.0, 1e-6), Budget(5.0, 1e-6), Budget(2.0, 1e-6), Budget(1.0, 1e-9)])
@pytest.mark.parametrize("seed", range(12))
def test_a_restored_backup_is_charged_no_less_than_what_any_runs_have_spent_since(path, seed, site):
    """Runs under plans with training and without, and under none, known to the backup or not; all asked at random.

    The server asks what it likes, a run under another plan than its own included, and shows a row that it saw.
    """
    rng = random.Random(seed)
    agreements = {"quiet": QUIET, "trained": TRAINED, "free": b"", "quiet later": QUIET, "trained later": TRAINED}
    limits = {name: Budget(rng.choice([0.5, 1.0, 2.0]), 1e-6) for name in agreements}
    wide: dict[str, Any] = {"total": Budget(1e6, 1e-6)}
    training = [SampledGaussian(0.05, 4.0, 10).cost(Norms(1, 1)), SampledGaussian(0.3, 9.0, 3).cost(Norms(1, 1))]
    account = Book(path)
    seen, number = account.begin(charge(cost=Cost(), run="first", **wide)), 0

    def ask(names: list[str]) -> None:
        nonlocal seen, number
        for turn in range(60):
            name, cost = names[turn % len(names)], Cost(math.inf, 1e-5)
            under = agreements[name]
            if turn >= len(names):
                name = rng.choice(names)
                under = rng.choice([agreements[name], *agreements.values()])
                cost = rng.choice([Cost(math.inf, rng.uniform(0.0, 0.02)), *([] if under == QUIET else training)])
            number += 1
            try:  # the policy admits no training under a plan without
                asked = charge(number, run=name, agreement=under, per_run=limits[name], cost=cost, **wide)
                seen = account.begin(asked)
            except (BudgetExceeded, Refused):
                continue

    ask([name for name in agreements if "later" not in name])
    backup = path.read_bytes()
    ask(list(agreements))
    lost = account.spent()
    spent = {name: account.spent(name) for name in agreements}
    path.write_bytes(backup)
    account = Book(path)
    later = {name: BegunRun(limits[name], agreements[name]) for name in agreements if "later" in name}
    account.restored(seen.row, later, samples=among_plans)
    assert site.price(account.spent()) >= site.price(lost) * (1 - 1e-9)
    assert account.spent().at(1e-6) >= lost.at(1e-6) * (1 - 1e-9)
    for name, before in spent.items():
        assert site.price(account.spent(name)) >= site.price(before) * (1 - 1e-9), name
    for name in ("quiet", "quiet later"):  # no more than its limit, whatever the site's
        if account.spent(name) != Cost():
            assert account.spent(name).rho == pytest.approx(limits[name].rho)
            assert account.spent(name).curve == ()
    assert sound(account)


def test_a_book_for_replaced_rows_has_lost_no_training(account):
    """None can be charged there, so a run of which nothing is known is charged its limit and no curve."""
    replaced: dict[str, Any] = {"change": replace_rows(), "least": replace_rows()}
    account.begin(charge(**replaced))
    with pytest.raises(Refused):
        account.begin(charge(1, run="another", cost=TRAINING.cost(Norms(1, 1)), least=replace_rows()))
    account.restored(9, {"later": BegunRun(LIMIT)})
    assert account.spent().rho == pytest.approx(2 * LIMIT.rho)
    assert account.spent().curve == ()


def replace_rows() -> ProtectedChange:
    return ProtectedChange(neighbours="replace")


# Sessions of secure sums


def test_a_session_is_charged_when_it_is_paid_for(account):
    opened = account.begin(charge(), pay=False)
    assert not opened.charged
    assert account.spent() == Cost()
    assert account.begin(charge(), pay=False) == opened
    with pytest.raises(Refused, match="other terms"):
        account.begin(charge(terms="other"))
    account.store(key(0), 0, b"advert")
    assert account.first(key(0), "roster", b"one") == b"one"
    assert account.first(key(0), "roster", b"two") == b"one"
    assert account.said(key(0), "roster") == b"one"
    assert account.said(key(0), "survivors") is None
    paid = account.begin(charge())
    assert paid.charged
    assert paid.salt == opened.salt
    assert paid.row == 2
    assert account.begin(charge(), pay=False) == account.begin(charge()) == paid
    assert account.stored(key(0), 0) == b"advert"
    assert account.spent().rho == RHO
    assert [row["outcome"] for row in rows(account)] == ["opened", "charged"]
    assert sound(account)


def test_a_session_opens_only_where_its_charge_would_fit(account):
    with pytest.raises(BudgetExceeded):
        account.begin(charge(cost=Cost(math.inf, 2 * LIMIT.rho)), pay=False)
    with pytest.raises(Refused, match="no free slot"):
        account.begin(charge(slots=()), pay=False)
    assert account.head() == (0, START)
    assert account.pinned("run") is None


def test_no_more_than_64_sessions_are_open_uncharged():
    account = Book()
    salts = [account.begin(charge(0)).salt]  # charged: never forgotten
    for number in range(1, 66):
        salts.append(account.begin(charge(number), pay=False).salt)
        account.first(key(number), "roster", b"value")
        account.store(key(number), 0, b"advert")
    assert account.said(key(1), "roster") is None
    assert account.stored(key(1), 0) is None
    with pytest.raises(Refused, match="ended"):
        account.first(key(1), "roster", b"value")
    assert account.said(key(2), "roster") == b"value"
    assert account.begin(charge(0)).salt == salts[0]
    assert account.begin(charge(2), pay=False).salt == salts[2]
    assert account.begin(charge(1), pay=False).salt != salts[1]
    assert sound(account)


# Audit


def test_a_charge_is_a_row_of_what_was_asked_and_what_it_costs():
    clock = Clock()
    account = Book(clock=clock)
    account.begin(charge())
    (row,) = rows(account)
    assert len(bytes.fromhex(row["nonce"])) == 16  # so that a chain value tells nothing of a row
    assert {name: value for name, value in row.items() if name != "nonce"} == {
        "row": 1,
        "time": "2026-03-01T12:30:00.000+00:00",
        "outcome": "charged",
        "key": key(0),
        "run": "run",
        "step": 0,
        "verb": "sum",
        "kind": "counts",
        "trust": "local",
        "method": "",
        "agreement": "",
        "terms": "gaussian sigma 3, unit 1 1, add-remove, local, 2",
        "release": {"type": "gaussian", "rho": RHO},
        "cost": {"epsilon": None, "rho": RHO},
        "slot": None,
        "run_total": {"epsilon": None, "rho": RHO},
        "total": {"epsilon": None, "rho": RHO},
        "exact": 0,
        "unit": {"rows": 1, "sites": 1},
        "neighbours": "add-remove",
        "previous": START.hex(),
    }
    assert account.charges() == [{**row, "replays": 0}]


def test_rows_follow_from_one_another(account):
    for number in range(3):
        account.begin(charge(number))
    lines = list(account.export())
    chain = START
    for line in lines:
        assert json.loads(line)["previous"] == chain.hex()
        chain = hashlib.sha256(line.encode()).digest()
    assert account.head() == (3, chain)
    assert account.verify().rows == 3
    assert account.verify().head == chain.hex()
    assert account.verify(json.loads(lines[2])["previous"]).noted_at == 2
    assert account.verify("00" * 32).noted_at == 0


def test_a_rejected_message_is_a_row_for_the_steward(account):
    account.begin(charge())
    long, odd = "x" * 500, "\x1b[2J\ud800"
    head = account.note("refused", run="run", step=3, kind=odd, reason=long, digest=2**70)
    assert head == account.head()
    row = rows(account)[1]
    assert (row["outcome"], row["step"], row["run"]) == ("refused", 3, "run")
    assert row["reason"] == "x" * 200 + "... (500 characters)"
    assert row["digest"] == str(2**70)
    assert row["total"] == {"epsilon": None, "rho": RHO}
    assert "\x1b" not in list(account.export())[1]
    assert sound(account)


def test_a_thousand_rejected_messages_an_hour_get_a_row_each(path):
    """Of an account on disk: in memory, where they fill none, each gets one."""
    clock = Clock()
    account = Book(clock=clock)
    assert account.free_an_hour > 1e9
    assert Book(path).free_an_hour == 1000
    account.free_an_hour = 1000
    for number in range(1003):
        head = account.note("refused", request=key(number), step=number)
    assert head == account.head()
    assert head[0] == 1000
    account.begin(charge())
    clock.moment += timedelta(hours=1)
    account.begin(charge(1))
    assert [row["outcome"] for row in rows(account)[999:]] == ["refused", "charged", "rejected", "charged"]
    summary = rows(account)[1001]
    assert (summary["hour"], summary["count"]) == ("2026-03-01T12:00+00:00", 3)
    assert len(summary["digest"]) == 64
    account.note("failed", step=0)
    assert rows(account)[-1]["outcome"] == "failed"
    assert sound(account)


def test_a_message_that_is_rejected_again_and_again_takes_one_row_an_hour():
    """It once took one each time, and with them the hour's questions without cost."""
    clock = Clock()
    account = Book(clock=clock)
    account.free_an_hour = 3
    for hour in range(2):
        for _ in range(5):
            account.note("refused", request=key(7), reason="closed")
        for number in range(3):
            account.note("refused", request=key(number))
        assert len(rows(account)) == 3 + 5 * hour  # the fourth message has no row of its own
        clock.moment += timedelta(hours=1)
        account.begin(charge(hour, cost=Cost()))  # writes the shared row of the hour before
        assert [row["count"] for row in rows(account) if row["outcome"] == "rejected"] == [5] * (hour + 1)
    assert sound(account)


def test_questions_without_cost_are_counted_once_each_and_by_themselves():
    """Neither what is refused nor the same session opened again keeps another question from being answered."""
    account = Book(clock=Clock())
    account.free_an_hour = 100
    for number in range(1000):
        account.note("refused", request=key(number))
    before = account.head()[0]
    for _ in range(3):
        for number in range(70):  # more than are kept at a time, so that each is opened anew
            opened = account.begin(charge(number), pay=False)
            assert (opened.row, opened.charged) == (before + 1 + number, False)
    assert account.head()[0] == before + 70
    assert account.begin(charge(70), pay=False).row == before + 71
    assert account.begin(charge(70), resume=True).charged
    for number in range(71, 100):
        account.begin(charge(number), pay=False)
    with pytest.raises(Refused, match="without cost"):
        account.begin(charge(100), pay=False)
    account.begin(charge(99), pay=False)
    assert sound(account)


def test_an_export_is_verified_by_itself(account, tmp_path):
    for number in range(4):
        account.begin(charge(number))
        account.note("refused", step=number)
    lines = list(account.export())
    noted = json.loads(lines[5])["previous"]
    file = tmp_path / "audit.jsonl"

    def verify(changed: list[str]) -> tuple[int, int]:
        file.write_text("".join(f"{line}\n" for line in changed))
        found = verify_export(file, noted)
        assert bool(found.wrong) == bool(found.broken)
        return found.broken, found.noted_at

    assert verify(lines) == (0, 5)
    assert verify_export(file) == account.verify()
    assert verify(lines[:4]) == (0, 0)  # cut off at its end: only who noted a head can tell
    assert verify(lines[1:])[0] == 1
    assert verify([*lines[:2], *lines[3:]])[0] == 3
    assert verify([*lines[:2], lines[3], lines[2], *lines[4:]])[0] == 3
    assert verify([*lines[:2], lines[2].replace("0.001", "0.0001"), *lines[3:]])[0] == 3
    assert verify([lines[0].replace('"step":0', '"step":7'), *lines[1:]])[0] == 2
    assert verify([*lines[:2], "{}", *lines[3:]])[0] == 3
    assert verify([*lines[:2], "nonsense", *lines[3:]])[0] == 3


def test_a_row_whose_totals_are_wrong_is_found_though_the_chain_is_right(account, tmp_path):
    account.begin(charge(0))
    line = next(iter(account.export()))
    file = tmp_path / "audit.jsonl"
    for old, new in (
        ('"total":{"epsilon":null,"rho":0.001},"exact"', '"total":{"epsilon":null,"rho":0.0},"exact"'),
        ('"run_total":{"epsilon":null,"rho":0.001}', '"run_total":{"epsilon":null,"rho":0.0}'),
        ('"exact":0', '"exact":1'),
        ('"row":1', '"row":2'),
    ):
        assert old in line
        file.write_text(line.replace(old, new) + "\n")
        assert verify_export(file).broken == 1


# Runs


def test_the_salt_of_a_run_is_drawn_once_and_gone_when_the_run_is_closed(path):
    account = Book(path)
    with pytest.raises(Refused, match="not open"):
        account.run_salt("run")
    account.begin(charge(0), pay=False)
    account.begin(charge(1, run="run 2"))
    salt = account.run_salt("run")
    assert len(salt) == 32
    assert Book(path).run_salt("run") == account.run_salt("run") == salt
    assert account.run_salt("run 2") != salt
    assert sound(account)
    account.close("run")
    with pytest.raises(Refused, match="not open"):
        account.run_salt("run")
    assert salt not in Path(path).read_bytes()
    assert sound(account)


def test_a_closed_run_answers_nothing_more(account):
    account.begin(charge(0))
    account.store(key(0), 0, b"reply")
    account.begin(charge(1), pay=False)
    account.begin(charge(2, run="run 2"))
    assert account.close("run") == 2
    assert account.close("run") == 0
    assert account.stored(key(0), 0) is None
    for number in (0, 1, 3):
        with pytest.raises(Refused, match="closed"):
            account.begin(charge(number))
    with pytest.raises(Refused, match="ended"):
        account.store(key(0), 0, b"reply")
    assert account.spent("run").rho == RHO
    assert account.begin(charge(2, run="run 2")).charged
    assert [run for run, _ in account.open_runs()] == ["run 2"]
    assert rows(account)[-1]["outcome"] == "closed"
    assert sound(account)
    with pytest.raises(InvalidParameter, match="no run"):
        account.close("nothing")


def test_closing_leaves_no_salt_and_no_reply_in_the_file(path):
    account = Book(path)
    order = list(range(250))
    random.Random(0).shuffle(order)
    gone = []
    for number in order:  # enough for pages to be split and merged
        salt = account.begin(charge(number, cost=Cost(math.inf, 1e-6)), pay=bool(number % 20)).salt
        account.store(key(number), 0, b"reply" + salt[::-1])
        account.first(key(number), "roster", b"roster" + salt)
        gone += [salt, salt[::-1]]
    kept = account.begin(charge(1000, run="run 2")).salt
    account.first("", "noise", b"the site's own secret")
    held = path.read_bytes()
    assert sum(value in held for value in gone) > 400
    account.close("run")
    held = path.read_bytes()
    assert not any(value in held for value in gone)
    assert kept in held
    assert b"the site's own secret" in held
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name]
    assert sound(account)


def test_runs_that_nobody_uses_expire(caplog):
    clock = Clock()
    account = Book(clock=clock)
    account.begin(charge(0))
    account.store(key(0), 0, b"reply")
    account.begin(charge(1, run="run 2"))
    pass_days(account, clock, 20)
    account.stored(key(0), 0)  # a repetition is use
    assert account.open_runs() == [("run 2", 20.0), ("run", 0.0)]
    pass_days(account, clock, 20)
    assert account.expire(30) == ["run 2"]
    assert account.expire(30) == []
    assert account.open_runs() == [("run", 20.0)]
    assert caplog.text == ""


@pytest.mark.parametrize("days", [400, -400])
def test_a_clock_that_is_wrong_for_a_while_closes_no_run(path, days, caplog):
    """While it was held to be the time, each of the four uses below closed the run, at once or when it was right again.

    The account grows older by one day for each forward jump, whoever reads the clock; it goes back for none.
    """
    clock = Clock()
    Book(path, clock=clock).begin(charge(0))
    Book(path, clock=clock).store(key(0), 0, b"reply")
    uses: list[Callable[[Book], object]] = [
        lambda account: account.expire(14),
        lambda account: account.stored(key(0), 0),
        lambda account: account.begin(charge(account.head()[0], cost=Cost(math.inf, 1e-6))),
        lambda account: account.begin(charge(account.head()[0], run="other", cost=Cost(math.inf, 1e-6))),
    ]
    for use in uses:
        for shift in (timedelta(days=days), -timedelta(days=days)):
            clock.moment += shift
            clock.moment += timedelta(minutes=1)
            use(Book(path, clock=clock))
            assert Book(path, clock=clock).expire(14, keep="other") == []
            assert "run" in dict(Book(path, clock=clock).open_runs())
    idle = dict(Book(path, clock=clock).open_runs())["run"]
    assert idle <= 2
    assert sum("400.0 days ahead of" in record.message for record in caplog.records) == len(uses)
    assert sum("400.0 days behind" in record.message for record in caplog.records) == len(uses)
    assert sound(Book(path))


def test_a_clock_that_is_set_right_by_seconds_is_not_worth_a_warning(caplog):
    clock = Clock()
    account = Book(clock=clock)
    account.begin(charge(0))
    clock.moment -= timedelta(seconds=30)
    account.begin(charge(1))
    clock.moment += timedelta(days=1)
    assert account.expire(0.5) == ["run"]
    assert caplog.text == ""


# Backups


def test_a_restored_backup_is_noticed_and_written_off(path):
    account = Book(path)
    account.begin(charge(0))
    account.begin(charge(1, run="run 2", per_run=Budget(0.5, 0.0), cost=Cost(0.1, 0.005)))
    account.begin(charge(2, run="closed"))
    account.close("closed")
    backup = path.read_bytes()
    seen = account.begin(charge(3))
    account.begin(charge(4, run="began later"))
    assert account.holds(seen.row, seen.chain)
    path.write_bytes(backup)

    account = Book(path)
    assert not account.holds(seen.row, seen.chain)
    assert account.holds(0, START)
    last = seen.row + 1
    account.restored(last, {"began later": BegunRun(LIMIT)}, samples=never)
    assert account.holds(seen.row, seen.chain)
    assert not account.holds(last + 100, seen.chain)
    assert account.head()[0] > last
    assert account.spent("run").rho == pytest.approx(LIMIT.rho)
    assert account.spent("run 2").epsilon == pytest.approx(0.5)
    assert account.spent("began later").rho == pytest.approx(LIMIT.rho)
    assert account.spent("closed").rho == RHO
    assert account.open_runs() == []
    for number, run in ((0, "run"), (3, "run"), (4, "began later")):
        with pytest.raises(Refused, match="closed"):
            account.begin(charge(number, run=run))
    later = account.begin(charge(5, run="run 3", total=Budget(9.0, 1e-6)))
    assert later.row > last
    assert account.holds(later.row, later.chain)
    assert not account.holds(later.row, seen.chain)
    assert sound(account)
    file = path.with_name("audit.jsonl")
    file.write_text("".join(f"{line}\n" for line in account.export()))
    assert verify_export(file) == account.verify()


def test_an_account_that_went_on_from_a_backup_is_noticed_too(path):
    account = Book(path)
    account.begin(charge(0))
    backup = path.read_bytes()
    seen = account.begin(charge(1))
    path.write_bytes(backup)
    account = Book(path)
    account.begin(charge(2))
    account.begin(charge(3))
    assert account.head()[0] > seen.row
    assert not account.holds(seen.row, seen.chain)
    account.restored(seen.row)
    assert account.holds(seen.row, seen.chain)
    assert sound(account)


@pytest.mark.parametrize("row", [1, 3, 4, 50])
def test_a_restored_account_with_refusals_of_a_past_hour_is_written_off(row):
    clock = Clock()
    account = Book(clock=clock)
    account.free_an_hour = 2
    account.begin(charge())
    for number in range(5):
        account.note("refused", request=key(number))
    assert account.head()[0] == 3
    clock.moment += timedelta(hours=2)
    account.restored(row)
    assert [one["outcome"] for one in rows(account)[3:]] == ["rejected", "restored", "written off", "closed"]
    assert rows(account)[4]["row"] == max(row, 4) + 1
    assert account.holds(row, b"x" * 32)
    assert sound(account)


@pytest.mark.parametrize("readings", [1, 2])
def test_an_hour_that_ends_while_a_backup_is_written_off_takes_no_row_of_it(readings):
    """The row of the past hour once got the number chosen for the next one: nothing was written off."""
    moments = [Clock().moment]
    account = Book(clock=lambda: moments.pop(0) if len(moments) > 1 else moments[0])
    account.free_an_hour = 2
    account.begin(charge())
    for number in range(5):
        account.note("refused", request=key(number))
    moments[:] = [*moments * readings, moments[0] + timedelta(hours=1)]
    account.restored(1)
    assert sorted(one["outcome"] for one in rows(account)[3:]) == ["closed", "rejected", "restored", "written off"]
    assert sound(account)


def test_a_row_that_cannot_be_is_not_held(account):
    account.begin(charge())
    for row in (-1, 0, 2, 2**62, 2**80):
        assert not account.holds(row, b"x" * 32)
    for row in (-1, 0, 2**53):
        with pytest.raises(InvalidParameter):
            account.restored(row)


# Damage


def contents(path: Path) -> list[Any]:
    with sqlite3.connect(path) as connection:
        tables = ("audit", "runs", "questions", "parts", "rejected")
        found = [connection.execute(f"SELECT * FROM {table}").fetchall() for table in tables]
    connection.close()
    return found


@pytest.mark.parametrize("closed", [False, True])
def test_a_run_whose_name_was_flipped_does_not_begin_anew(path, closed):
    """Its row is never read under the other name, so its hash shows nothing: the run could spend its limit anew."""
    account = Book(path)
    account.begin(charge(0))
    account.store(key(0), 0, b"reply")
    run = charge(0).run
    if closed:
        account.close(run)
    with sqlite3.connect(path) as connection:
        assert connection.execute("UPDATE runs SET run = 'rum' WHERE run = ?", [run]).rowcount == 1
    connection.close()
    with pytest.raises(FedsynthError, match=f"the record of the run {run} is missing"):
        Book(path).begin(charge(1))


def test_flipped_bits_are_found(path):
    account = Book(path)
    for number in range(12):
        account.begin(charge(number, group="g", slots=((0.001, 20),)), pay=number < 8)
        account.store(key(number), 0, b"reply" * 50)
        account.first(key(number), "roster", b"roster")
    account.note("refused", step=1)
    account.first("", "noise", b"secret" * 6)
    account.restored(30)
    account.begin(charge(20, run="run 2", total=Budget(9.0, 1e-6)))
    account.store(key(20), 0, b"reply")
    assert sound(account)
    whole, before = path.read_bytes(), contents(path)
    found, generator = 0, random.Random(1)
    for _ in range(250):
        bit = generator.randrange(8 * len(whole))
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            wrong = Book(path).verify().wrong
            Book(path).charges()
            Book(path).begin(charge(21, run="run 2", total=Budget(9.0, 1e-6)))
        except FedsynthError as error:  # nothing else, whatever the damage
            wrong = str(error)
        path.write_bytes(flipped)
        if wrong:
            found += 1
        else:  # the bit is in no use
            assert contents(path) == before, bit
    assert found > 50


def test_damage_is_an_error_that_says_what_to_do(path):
    Book(path).begin(charge())
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FedsynthError, match="backup"):
        Book(path).begin(charge(1))
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(FedsynthError, match="backup"):
        Book(path)
    path.write_bytes(whole.replace(b'"step":0', b'"step":7'))
    with pytest.raises(FedsynthError, match="does not match its hash"):
        Book(path).begin(charge(1))
    assert "audit row" in Book(path).verify().wrong or Book(path).verify().broken == 1


def test_a_changed_total_is_found_and_not_used(path):
    account = Book(path)
    account.begin(charge())
    connection = sqlite3.connect(path)
    connection.execute("UPDATE runs SET spent = ?", (msgspec.msgpack.encode(Cost()),))
    connection.commit()
    connection.close()
    with pytest.raises(FedsynthError, match="checksum"):
        account.begin(charge(1))
    assert "checksum" in account.verify().wrong


def test_a_charge_that_was_taken_out_is_found(path):
    account = Book(path)
    account.begin(charge(0))
    account.begin(charge(1))
    for statement, why in (
        (f"DELETE FROM questions WHERE key = '{key(1)}'", "not in the account"),
        ("DELETE FROM runs", "is not in the account"),
        ("DELETE FROM audit WHERE row = 1", "does not follow"),
        ("DELETE FROM audit WHERE row = 2", "is not the charge"),
    ):
        whole = path.read_bytes()
        connection = sqlite3.connect(path)
        connection.execute(statement)
        connection.commit()
        connection.close()
        assert why in account.verify().wrong
        path.write_bytes(whole)


def test_a_file_of_another_version_is_left_alone(path):
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE charges (question TEXT)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(FedsynthError, match="not an account of this version"):
        Book(path)
    assert path.read_bytes() == before


def test_a_lock_that_is_not_released_is_no_damage(path, monkeypatch):
    account = Book(path)
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, **options: connect(path, **{**options, "timeout": 0.01}))
    other = connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(FedsynthError, match="try again"):
        account.begin(charge())
    other.close()
    assert account.begin(charge()).charged


# Threads, processes, and their ends


def test_threads_never_pass_a_limit(path):
    Book(path)
    cost = Cost(math.inf, LIMIT.rho / 10)

    def attempt(number: int) -> bool:
        try:
            return Book(path).begin(charge(number, cost=cost)).charged
        except BudgetExceeded:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(30))) == 10
    assert Book(path).spent().rho == pytest.approx(LIMIT.rho)
    assert sound(Book(path))


def test_threads_share_an_account_in_memory():
    account = Book()
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(lambda number: account.begin(charge(number % 10)), range(100)))
    assert len({one.salt for one in opened}) == 10
    assert account.head()[0] == 10
    assert sound(account)


def _ask(path: Path, number: int) -> tuple[bytes, bytes]:
    account = Book(path)
    salt = account.begin(charge(number)).salt
    return salt, account.store(key(number), 0, salt + os.urandom(8))


def test_processes_that_ask_at_once_hear_the_same(path):
    """The very first open is theirs too: they race for the tables."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        asked = [pool.submit(_ask, path, number) for number in range(15) for _ in range(2)]
        heard = [one.result() for one in asked]
    assert heard[::2] == heard[1::2]
    assert len(set(heard)) == 15
    assert Book(path).head()[0] == 15
    assert sound(Book(path))


DIES = """
    import os, signal, sqlite3, sys
    from fedsynth.privacy.book import LARGEST_KEPT, Book
    from tests.privacy.test_book import charge, key

    commits, when = int(sys.argv[2]), sys.argv[3]

    class Dying(sqlite3.Connection):
        def execute(self, statement, *values):
            global commits
            commits -= statement == "COMMIT"
            if commits == 0 and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = super().execute(statement, *values)
            if commits == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

    account = Book(sys.argv[1])
    connect = sqlite3.connect
    sqlite3.connect = lambda path, **options: connect(path, factory=Dying, **options)
    account.begin(charge())
    account.store(key(0), 0, b"left before the crash")
"""


def _run(script: str, *arguments: object) -> subprocess.Popen[bytes]:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}"}
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)


@pytest.mark.parametrize(
    ("commits", "when", "charged", "reply"),
    [
        (1, "before", 0, b"computed again"),
        (1, "after", 1, b"computed again"),
        (2, "before", 1, b"computed again"),
        (2, "after", 1, b"left before the crash"),
    ],
)
def test_a_process_that_is_killed_at_a_transaction(path, commits, when, charged, reply):
    with _run(DIES, path, commits, when) as process:
        process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    account = Book(path)
    assert account.head()[0] == charged
    assert account.spent().rho == charged * RHO
    assert sound(account)
    salts = {account.begin(charge()).salt for _ in range(2)}
    assert len(salts) == 1
    assert account.head()[0] == 1
    assert account.store(key(0), 0, b"computed again") == reply
    assert account.stored(key(0), 0) == reply


ASKS = """
    import sys
    from fedsynth.privacy.book import LARGEST_KEPT, Book
    from tests.privacy.test_book import charge, key
    from fedsynth.privacy.cost import Cost

    account = Book(sys.argv[1])
    number = account.head()[0]
    while True:
        opened = account.begin(charge(number, cost=Cost(float("inf"), 1e-6)))
        print(number, opened.salt.hex(), opened.row, opened.chain.hex(), flush=True)
        print(number, account.store(key(number), 0, opened.salt * 40).hex(), flush=True)
        number += 1
"""


def test_whatever_left_a_process_that_was_killed_is_in_the_account(path):
    """Killed at a random moment, four times: each charge and each reply that was seen outside is there."""
    generator = random.Random(2)
    for _ in range(4):
        with _run(ASKS, path) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(generator.randrange(8, 16))]
            time.sleep(generator.uniform(0, 0.02))
            process.kill()
            lines += process.stdout.read().split(b"\n")[:-1]
        account = Book(path)
        assert sound(account)
        for line in lines:
            number, *values = line.decode().split()
            if len(values) == 3:
                salt, row, chain = values
                opened = account.begin(charge(int(number)))
                assert (opened.salt.hex(), opened.row, opened.chain.hex()) == (salt, int(row), chain)
            else:
                reply = account.stored(key(int(number)), 0)
                assert reply is not None
                assert reply.hex() == values[0]
