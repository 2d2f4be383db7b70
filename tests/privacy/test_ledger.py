from __future__ import annotations

import pytest

from fedsynth.errors import BudgetExceeded
from fedsynth.privacy.ledger import Entry, Ledger
from fedsynth.privacy.release import Budget, Exact, Exponential, Gaussian


def test_the_server_charges_the_most_charged_site():
    ledger = Ledger(Budget(1.0, 1e-5))
    ledger.record(Entry(0, "sum", "t", Gaussian(0.01), ("a", "b"), 5))
    ledger.record(Entry(1, "choose", "t", Exponential(0.005), ("b",), 1))
    assert ledger.rho == pytest.approx(0.015)
    assert ledger.per_site == pytest.approx({"a": 0.01, "b": 0.015})


def test_an_entry_that_one_site_cannot_pay_charges_none():
    ledger = Ledger(Budget(1.0, 1e-5))
    ledger.record(Entry(0, "sum", "t", Gaussian(0.03), ("b",), 5))
    with pytest.raises(BudgetExceeded, match="fewer rounds"):
        ledger.record(Entry(1, "sum", "t", Gaussian(0.01), ("a", "b"), 5))
    assert "a" not in ledger.per_site
    assert len(ledger.entries) == 1


def test_the_guarantee_says_what_it_is_worth():
    ledger = Ledger(Budget(1.0, 1e-5))
    ledger.record(Entry(0, "sum", "t", Gaussian(0.01), ("a",), 5))
    assert "(0.5" in ledger.guarantee
    assert "add or remove one record" in ledger.guarantee
    assert "Noise was seeded" in Ledger(Budget(1.0, 1e-5), seeded_noise=True).guarantee
    ledger.record(Entry(1, "sum", "t", Exact(), ("a",), 5))
    assert ledger.guarantee.startswith("NOT PRIVATE")
    assert ledger.to_json()["entries"][1]["rho"] is None
    assert "NOT PRIVATE" in str(ledger)
