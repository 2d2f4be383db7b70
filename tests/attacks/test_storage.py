"""What a coordinator can make a site store, and what the site sends again of what it does not store."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.attacks.world import (
    answer_in,
    ask,
    ask_deployed,
    converse,
    deployed,
    question,
    reply_of,
    sealed,
    secure_sites,
    site,
    table,
)
from tests.world import Faulty

from fedsynth.deploy.host.config import SiteConfig, load_site_config
from fedsynth.deploy.host.state import answer, open_account
from fedsynth.federation.local import LocalNoise
from fedsynth.federation.query import Counts
from fedsynth.federation.simulate import federate
from fedsynth.federation.trusted import TrustedServer
from fedsynth.federation.wire import Request
from fedsynth.methods import find_method
from fedsynth.privacy.book import LARGEST_KEPT, Book
from fedsynth.privacy.book_file import RunRecord
from fedsynth.privacy.cost import Budget
from fedsynth.privacy.release import Deposit, Gaussian
from fedsynth.runs.dry_run import even_rows, forecast
from fedsynth.schema import Numeric, Schema
from fedsynth.secure.site import SecureSum
from fedsynth.terms import Terms

WIDE = Schema((Numeric("age", 0, 100, bins=200), Numeric("dose", 0, 1, bins=100)))
BYTES = 8 * 200 * 100
"""Size of an answer about both columns of ``WIDE``."""


def wide_site(folder: Path, source: str = "", **policy: Any) -> SiteConfig:
    """Return a deployed site with two columns of many bins; ``source`` is a line of its ``[source]``."""
    config = deployed(folder, pd.DataFrame({"age": np.arange(50.0), "dose": np.linspace(0, 1, 50)}), **policy)
    WIDE.save(config.schema)
    file = folder / "site.toml"
    file.write_text(file.read_text().replace("[source]", f"[source]\n{source}"))
    return load_site_config(folder)


def wide(step: int = 0, **fields: Any) -> Request:
    """Return a question of rho 1e-6 for 20,000 cells."""
    told = {"schema": WIDE.digest, "release": Gaussian(1e-6), "step": step, **fields}
    return question(Counts.of(2, ((0, 1),)), **told)


def used(config: SiteConfig) -> int:
    """Return the size of a site's account, in bytes."""
    return config.account.stat().st_size


def test_b11_a_large_answer_that_can_be_made_again_is_not_stored(tmp_path):
    """Twelve questions of rho 1e-6; before, each left 160 kB in the account, or 130 MB where the axis was larger."""
    assert BYTES > LARGEST_KEPT
    config = wide_site(tmp_path / "north")
    for step in range(12):
        assert ask_deployed(config, wide(step)).code == "answered"
    assert used(config) < BYTES
    assert open_account(config).verify().wrong == ""


@pytest.mark.parametrize("runs", ["one", "many"])
def test_b11_what_a_site_stores_is_bounded_before_anything_is_charged(tmp_path, runs):
    """Rows that are streamed may change, so that their answers are stored: for one run, and for all open ones."""
    config = wide_site(tmp_path / "north", "streamed = true", largest_stored=2**18)
    codes = []
    for step in range(40):
        codes.append(ask_deployed(config, wide(step, run=f"run-{step}" if runs == "many" else "run")).code)
    answered = codes.count("answered")
    assert codes == ["answered"] * answered + ["refused"] * (40 - answered)
    assert answered == (1 if runs == "one" else 16 * 2**18 // (BYTES + 6144))
    assert len(open_account(config).charges()) == answered
    assert used(config) < 2**18 * (1 if runs == "one" else 16) + 2**17
    reason = list(open_account(config).export())[-1]
    assert "largest_stored" in reason
    if runs == "many":  # a run that has ended makes room
        open_account(config).close("run-0")
        assert ask_deployed(config, wide(run="next")).code == "answered"


def test_b11_the_bound_depends_on_public_facts_alone(tmp_path):
    """Sites with other rows refuse the same questions: the size of an answer follows from query and schema."""
    codes = []
    for name, rows in (("one", table(3)), ("two", table(200, 7, target=True))):
        of = site(rows, name=name, largest_stored=4 * 6400)
        codes.append([ask(of, question(step=step)).code for step in range(6)])
    assert codes[0] == codes[1] == ["answered"] * 4 + ["refused"] * 2


@pytest.fixture
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sites store no answer that they can make again, however small."""
    monkeypatch.setattr("fedsynth.privacy.book.LARGEST_KEPT", 0)
    monkeypatch.setattr("fedsynth.federation.site.LARGEST_KEPT", 0)


@pytest.mark.usefixtures("nothing_kept")
@pytest.mark.parametrize(
    ("trust", "fields"),
    [
        (LocalNoise(), {}),
        (TrustedServer(), {"trust": "trusted"}),
        (LocalNoise(), {"verb": "each"}),
        (TrustedServer(), {"trust": "trusted", "verb": "deposit", "release": Deposit(1e-4)}),
    ],
)
def test_b11_an_answer_that_was_not_stored_is_the_same_bytes_again(tmp_path, trust, fields):
    of = site(trust=trust, account=Book(tmp_path / "account.sqlite"))
    data = sealed(question(**fields))
    first = of.answer(data).data
    assert ask(of, question(**fields)).code == "answered"
    assert of.answer(data).data == first
    assert len(of.account.charges()) == 1
    assert of.account.charges()[0]["replays"] == 2


@pytest.mark.usefixtures("nothing_kept")
def test_b11_each_turn_of_a_secure_sum_is_the_same_bytes_again(tmp_path):
    sites = secure_sites(4, SecureSum(min_honest=3), tmp_path)
    turns = converse(sites, question(trust=SecureSum(min_honest=3)), 5)
    assert len(turns) == 5
    for turn in turns:
        for of in sites:
            message, reply = turn[of.name]
            assert reply.code == "answered"
            assert reply_of(of, message) == reply.data
    assert all(len(of.account.charges()) == 1 for of in sites)


@pytest.mark.parametrize("stored", [True, False])
def test_b11_a_crash_before_the_reply_is_stored_changes_no_byte(tmp_path, monkeypatch, stored):
    """The second transaction does not happen: what would have left leaves later, for the one charge."""
    config = wide_site(tmp_path / "north", "streamed = true" if stored else "")
    made: list[bytes] = []

    def crash(self: Book, key: str, turn: int, reply: bytes, **_: Any) -> bytes:
        made.append(reply)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as crashing:
        crashing.setattr(Book, "store", crash)
        assert ask_deployed(config, wide()).code == "failed"
    replies = [answer_in(answer(config, [sealed(wide())]).replies[0]) for _ in range(2)]
    assert replies == [made[0], made[0]]
    assert len(made[0]) > BYTES
    (charge,) = open_account(config).charges()
    assert charge["replays"] == 1


def test_b11_rows_that_are_gone_for_a_while_fail_a_repetition_and_do_not_replace_the_answer(tmp_path):
    config = wide_site(tmp_path / "north")
    (first,) = answer(config, [sealed(wide())]).replies
    (copy,) = config.copies.glob("*.rows")
    copy.rename(tmp_path / "away")
    assert ask_deployed(config, wide()).code == "failed"
    (tmp_path / "away").rename(copy)
    assert answer(config, [sealed(wide())]).replies == [first]
    assert math.isclose(open_account(config).spent().rho, 1e-6, rel_tol=1e-6)


@pytest.mark.parametrize("trust", [LocalNoise(), SecureSum(min_honest=2)])
def test_b11_a_plan_says_how_much_a_run_makes_a_site_store(trust):
    """What sites count before each charge is within what ``fedsynth plan`` shows."""
    method, budget = find_method("oneshot").kind(), Budget(1.0, 1e-6)
    limits = find_method("oneshot").limits(method, WIDE)
    planned = forecast("oneshot", method, Terms(WIDE, budget, trust.name), sites=3, rows=300, repeats=1, limits=limits)
    link = Faulty()
    tables = {f"site-{k}": even_rows(WIDE, 100, np.random.default_rng(k)) for k in range(3)}
    method.fit(federate(tables, WIDE, budget, trust=trust, seed=1, transport=link))
    for of in link.doors.values():
        with of.account._file.open() as records:
            (run,) = records.all(RunRecord)
        assert 0 < run.stored <= planned.stored.high
