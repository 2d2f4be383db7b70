"""The server's account: every release is charged to every site asked, and none without noise is hidden."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.errors import BudgetExceeded
from fedsynth.privacy.cost import Budget, Cost, Norms
from fedsynth.privacy.ledger import Entry, Ledger, LedgerFile, Turn
from fedsynth.privacy.release import AdaptiveSelection, Deposit, Exact, Exponential, Gaussian, Laplace, Public, Release

NOISY, PURE = Budget(1.0, 1e-5), Budget(1.0, 0)


def entry(release: Release, *sites: str, times: float = 1, **fields: Any) -> Entry:
    values = {"step": 0, "verb": "sum", "kind": "counts", "cells": 5, "std": 2.5, **fields}
    return Entry(release=release, sites=sites, cost=release.cost(Norms(1, 1)) * times, **values)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(NOISY)


def test_the_most_charged_site_is_what_was_spent(ledger):
    ledger.record(entry(Gaussian(0.01), "a", "b"))
    ledger.record(entry(Exponential(0.005), "b", verb="choose", kind="flaim-scores", cells=1))
    assert ledger.per_site["a"].rho == pytest.approx(0.01)
    assert ledger.per_site["b"].rho == ledger.spent.rho == pytest.approx(0.015)
    assert ledger.share_spent == pytest.approx(0.015 / NOISY.rho)
    assert ledger.epsilon == Cost(math.inf, 0.015).at(1e-5)
    assert 0 < ledger.epsilon < 1
    assert ledger.exact_releases == 0


def test_what_was_spent_bounds_every_site():
    ledger = Ledger(Budget(10.0, 1e-5))
    ledger.record(entry(Laplace(0.5), "a"))
    ledger.record(entry(Exponential(0.2), "b"))
    assert ledger.spent.epsilon >= max(cost.epsilon for cost in ledger.per_site.values())
    assert ledger.spent.rho >= max(cost.rho for cost in ledger.per_site.values())
    assert all(ledger.epsilon >= cost.at(1e-5) for cost in ledger.per_site.values())


def test_a_pure_budget_is_spent_in_epsilon():
    ledger = Ledger(PURE)
    ledger.record(entry(Laplace(0.25), "a"))
    assert ledger.epsilon == ledger.share_spent == pytest.approx(0.25)
    with pytest.raises(BudgetExceeded, match=r"site a has spent 25\.0000% .* costs 80\.0000% more"):
        ledger.check(["b", "a"], Laplace(0.8).cost(Norms(1, 1)))
    with pytest.raises(BudgetExceeded, match="delta = 0"):
        ledger.record(entry(Gaussian(1e-6), "a"))


def test_a_person_at_several_sites_is_charged_for_all():
    ledger = Ledger(PURE)
    ledger.record(entry(Laplace(0.25), "a", "b", times=3))
    assert ledger.epsilon == pytest.approx(0.75)


def test_an_entry_that_one_site_cannot_pay_charges_none(ledger):
    ledger.record(entry(Gaussian(0.03), "b"))
    with pytest.raises(BudgetExceeded, match="for smaller shares"):
        ledger.record(entry(Gaussian(0.01), "a", "b"))
    assert "a" not in ledger.per_site
    assert len(ledger.entries) == 1
    ledger.record(entry(Gaussian(0.03), "a"))


@given(st.integers(1, 300))
@settings(deadline=None)
def test_an_exactly_spent_budget_is_not_refused_for_rounding(rounds):
    for budget, release in ((NOISY, Gaussian(NOISY.rho / rounds)), (PURE, Laplace(1.0 / rounds))):
        ledger = Ledger(budget)
        for _ in range(rounds):
            ledger.record(entry(release, "a"))
        assert ledger.share_spent == pytest.approx(1)
        with pytest.raises(BudgetExceeded):
            ledger.record(entry(Exponential(1e-6), "a"))


@pytest.mark.parametrize("release", [Exact(), Deposit(), AdaptiveSelection(Exponential(0.01), Exact(), 2)], ids=str)
@pytest.mark.parametrize("budget", [NOISY, PURE, Budget.none()], ids=["zCDP", "pure", "none"])
def test_a_release_without_noise_is_never_hidden(budget, release):
    ledger = Ledger(budget)
    ledger.record(entry(release, "a", std=0.0))
    assert ledger.exact_releases == 1
    assert ledger.spent == Cost(math.inf, math.inf)
    assert ledger.epsilon == math.inf
    assert "NOT PRIVATE: no noise in 1 of 1 releases" in str(ledger)
    said = json.loads(json.dumps(ledger.to_json(), allow_nan=False))
    assert said["entries"][0]["cost"] == {"epsilon": None, "rho": None}
    assert said["spent"]["epsilon_at_delta"] is None
    assert said["exact_releases"] == 1


def test_a_vault_pays_once_for_all_that_it_releases(ledger):
    ledger.record(entry(Deposit(rho=0.02), "a", "b", verb="deposit", std=math.nan))
    before = ledger.spent
    ledger.note(entry(Gaussian(0.015), "a", "b", verb="open", kind="vault", paid_by="deposit 3"))
    ledger.note(entry(Exponential(0.005), "a", "b", verb="select", kind="vault", paid_by="deposit 3", std=math.nan))
    assert ledger.spent == before
    assert len(ledger.entries) == 3
    assert str(ledger).count("paid by deposit 3") == 2
    ledger.note(entry(Exact(), "a", "b", verb="open", kind="vault", paid_by="deposit 3"))
    assert ledger.exact_releases == 1


def test_public_facts_cost_nothing(ledger):
    ledger.record(entry(Public(), "a", kind="size"))
    assert ledger.spent == Cost()
    assert ledger.epsilon == ledger.share_spent == ledger.exact_releases == 0


def test_the_table_says_what_was_asked_and_what_it_cost(ledger):
    for step in range(3):
        ledger.record(entry(Gaussian(NOISY.rho / 10), "a", "b", step=step, std=4.0 + step, cells=100))
    ledger.record(entry(Exponential(NOISY.rho / 5), "b", verb="choose", kind="flaim-scores", cells=1, std=math.nan))
    header, counts, choice, total = str(ledger).splitlines()
    assert header.split() == ["question", "release", "times", "sites", "cells", "noise", "std", "budget"]
    assert counts.split() == ["sum", "counts", "gaussian", "3", "2", "300", "4-6", "30.00%"]
    assert choice.split() == ["choose", "flaim-scores", "exponential", "1", "1", "1", "-", "20.00%"]
    assert total.startswith("spent: epsilon = 0.")
    assert total.endswith("of 1 at delta = 1e-05; 50.0% of the budget")


def test_an_unlimited_budget_with_noise_all_the_same():
    ledger = Ledger(Budget.none())
    ledger.record(entry(Laplace(3.0), "a"))
    assert str(ledger).endswith("spent: epsilon = 3, without a limit")
    assert ledger.share_spent == 0


def test_json_is_the_whole_account(ledger):
    ledger.record(entry(Gaussian(0.01), "b", "a", std=math.nan))
    said = json.loads(json.dumps(ledger.to_json(), allow_nan=False))
    assert said["budget"] == {"epsilon": 1.0, "delta": 1e-5}
    assert said["spent"] == {"epsilon": None, "rho": 0.01, "epsilon_at_delta": ledger.epsilon}
    assert said["share_spent"] == ledger.share_spent
    assert said["per_site"] == {"a": {"epsilon": None, "rho": 0.01}, "b": {"epsilon": None, "rho": 0.01}}
    assert said["entries"] == [
        {
            "step": 0,
            "verb": "sum",
            "kind": "counts",
            "release": {"type": "gaussian", "rho": 0.01},
            "sites": ["b", "a"],
            "cells": 5,
            "cost": {"epsilon": None, "rho": 0.01},
            "std": None,
            "paid_by": "",
            "question": "",
            "turns": [],
        }
    ]


def test_each_turn_has_the_sizes_of_its_messages_for_every_site(ledger, tmp_path):
    ledger.record(entry(Gaussian(0.01), "b", "a", question="1" * 64))
    ledger.record(entry(Gaussian(0.01), "b", question="2" * 64))  # of the same step: it shares the exchanges
    ledger.record(entry(Gaussian(0.01), "a", step=1, question="3" * 64))
    ledger.note(entry(Gaussian(0.01), "a", step=1, question="3" * 64, paid_by="deposit 1"))
    for turn, site, down, up in [(0, "b", 100, 20), (0, "a", 100, 21), (1, "a", 300, 0)]:
        ledger.count("1" * 64, turn, site, down, up)
    ledger.count("2" * 64, 0, "b", 90, 9)
    ledger.count("3" * 64, 0, "a", 80, 8)
    assert [list(one.messages()) for one in ledger.entries] == [
        [("b", 100, 20), ("a", 100, 21), ("a", 300, 0)],
        [("b", 90, 9)],
        [("a", 80, 8)],
        [],
    ]
    assert ledger.exchanges == 3
    path = tmp_path / "ledger.json"
    path.write_text(json.dumps(ledger.to_json()))
    assert json.loads(path.read_text())["entries"][0]["turns"] == [
        {"down": [100], "up": [20, 21]},
        {"down": [0, 300], "up": [0]},
    ]
    assert LedgerFile.read(path).entries == tuple(ledger.entries)


def test_the_ledger_of_a_thousand_sites_stays_readable():
    """A hundred questions of five turns: the sizes add a tenth to what the names of the sites take."""
    sites = [f"site-{k:03d}" for k in range(1000)]
    ledger = Ledger(NOISY)
    for step in range(100):
        ledger.record(entry(Gaussian(1e-6), *sites, step=step, question=f"{step:064x}"))
    before = len(json.dumps(ledger.to_json()))
    for step in range(100):
        for turn in range(5):
            ledger.count(f"{step:064x}", turn, sites[0], 1000, 500)
            ledger.entries[step].turns[turn] = Turn([1000] * 1000, [500] * 1000)
    assert len(json.dumps(ledger.to_json())) < 1.1 * before < 2_000_000
