from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedsynth.errors import BudgetExceeded
from fedsynth.privacy.ledger import Entry, Ledger, SiteLedger
from fedsynth.privacy.release import Budget, Exact, Exponential, Gaussian


def test_a_question_is_charged_once(tmp_path):
    ledger = SiteLedger(tmp_path / "ledger.sqlite")
    assert ledger.charge("q1", "run", "t", Gaussian(0.1), 1, 1)
    assert not ledger.charge("q1", "run", "t", Gaussian(0.1), 1, 1)
    assert ledger.charge("q2", "run", "t", Gaussian(0.1), 1, 1)
    assert SiteLedger(tmp_path / "ledger.sqlite").spent() == pytest.approx(0.2)


def test_limits_in_total_and_per_run():
    ledger = SiteLedger()
    ledger.charge("a", "run-1", "t", Gaussian(0.4), 1, 0.5)
    with pytest.raises(BudgetExceeded, match="in this run"):
        ledger.charge("b", "run-1", "t", Gaussian(0.4), 1, 0.5)
    ledger.charge("b", "run-2", "t", Gaussian(0.4), 1, 0.5)
    with pytest.raises(BudgetExceeded, match="in total"):
        ledger.charge("c", "run-3", "t", Gaussian(0.4), 1, 0.5)
    assert ledger.spent() == pytest.approx(0.8)
    assert ledger.spent("run-1") == pytest.approx(0.4)


def test_an_exactly_spent_budget_is_not_refused_for_rounding():
    ledger = SiteLedger()
    for k in range(10):
        ledger.charge(str(k), "r", "t", Gaussian(0.1), 1.0, 1.0)
    with pytest.raises(BudgetExceeded):
        ledger.charge("more", "r", "t", Gaussian(1e-6), 1.0, 1.0)


def test_concurrent_charges_never_pass_the_limit(tmp_path):
    path = tmp_path / "ledger.sqlite"
    SiteLedger(path)

    def attempt(k: int) -> bool:
        try:
            return SiteLedger(path).charge(f"q{k}", "run", "t", Gaussian(0.1), 1.0, 1.0)
        except BudgetExceeded:
            return False

    with ThreadPoolExecutor(8) as pool:
        granted = sum(pool.map(attempt, range(40)))
    assert granted == 10
    assert SiteLedger(path).spent() == pytest.approx(1.0)


def test_concurrent_equal_questions_are_charged_once(tmp_path):
    path = tmp_path / "ledger.sqlite"
    SiteLedger(path)
    with ThreadPoolExecutor(8) as pool:
        new = sum(pool.map(lambda _: SiteLedger(path).charge("q", "run", "t", Gaussian(0.1), 1.0, 1.0), range(20)))
    assert new == 1


CRASH = """
    import os, signal, sys
    from pathlib import Path
    from fedsynth.federation import site as door
    from tests.contract.world import SCHEMA, random_table
    from fedsynth.federation.policy import Policy
    from fedsynth.federation.site import Site
    from fedsynth.federation.task import size
    from fedsynth.federation.trust.local import LocalNoise
    from fedsynth.federation.wire import Request
    from fedsynth.privacy.ledger import SiteLedger
    from fedsynth.privacy.release import Budget, Gaussian

    ledger = SiteLedger(Path(sys.argv[1]))
    policy = Policy(Budget(1.0, 1e-6), {"local": LocalNoise()})
    site = Site("a", random_table(50, 0), policy, ledger, ledger.secret("noise", os.urandom(32)))
    request = Request("run", 0, "sum", "size", Gaussian(0.01), "local", SCHEMA.digest)
    if sys.argv[2] == "die":
        # The site's process dies after the charge and before the answer.
        Site._contribute = lambda self, request: os.kill(os.getpid(), signal.SIGKILL)
    reply = site.answer(request)
    print(reply.error or int(reply.values[0]), ledger.spent())
"""


def test_a_crash_between_charge_and_answer_is_charged_once(tmp_path):
    script = tmp_path / "crash.py"
    script.write_text(textwrap.dedent(CRASH))
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}"}

    def run(how: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(script), str(tmp_path / "ledger.sqlite"), how]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)

    died = run("die")
    assert died.returncode == -signal.SIGKILL
    assert died.stdout == ""
    assert SiteLedger(tmp_path / "ledger.sqlite").spent() == pytest.approx(0.01)  # durable before the answer left
    first, second = run("live"), run("live")
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout  # the same question has the same answer, noise included ...
    assert first.stdout.split()[1] == "0.01"  # ... and was paid for once


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
