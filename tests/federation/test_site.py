"""A site's door: what it refuses, what that costs, and what its answers and errors give away."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.contract.world import SCHEMA, random_table
from tests.world import Faulty, asked, request_of

from fedsynth.errors import BudgetExceeded, DataWarning, FedsynthError, Refused, SchemaError, Unsupported
from fedsynth.federation.events import PlainAnswer
from fedsynth.federation.local import LocalNoise
from fedsynth.federation.policy import VERBS, Policy
from fedsynth.federation.query import Counts, Query, RecordCount
from fedsynth.federation.simulate import federate
from fedsynth.federation.site import Site
from fedsynth.federation.transport import InProcess, Message, Recorded
from fedsynth.federation.trusted import TrustedServer
from fedsynth.federation.wire import AuditPosition, Reply
from fedsynth.keys import Keys
from fedsynth.privacy.book import Book
from fedsynth.privacy.cost import Budget, Cost, Norms, Unit
from fedsynth.privacy.noise import KeyedBits, add_noise
from fedsynth.privacy.release import Deposit, Exact, Exponential, Gaussian, Laplace, Public, SampledGaussian
from fedsynth.rows import Table
from fedsynth.schema import Categorical, Numeric, Schema

BUDGET = Budget(1.0, 1e-6)
COORDINATOR = Keys(bytes(32))
ONE = Norms(1.0, 1.0)
FIELDS: dict[str, Any] = {"run": "run", "step": 0, "verb": "sum", "release": Gaussian(0.001), "schema": SCHEMA.digest}
PAIR: Query = Counts.of(len(SCHEMA.columns), [(0, 1)])


def site(table: Table | None = None, account: Book | None = None, **policy: Any) -> Site:
    trusts = {"local": LocalNoise()}
    rules = Policy(**{"budget": BUDGET, "trusts": trusts, "any_plan": True, "verbs": VERBS, **policy})
    rows = random_table(200, 0) if table is None else table
    return Site("a", rows, rules, account or Book(), bytes(32), COORDINATOR.public)


def ask(of: Site, query: Query | None = None, **changes: Any) -> Reply:
    """Put a question to a site and return its reply; by default its size with much noise."""
    return asked(of, COORDINATOR, query or RecordCount(), **{**FIELDS, **changes})


def fresh() -> KeyedBits:
    return KeyedBits(os.urandom(32), b"fresh")


def numbers(reply: Reply) -> list[int]:
    assert isinstance(reply.answer, PlainAnswer), reply
    return [int(value) for value in reply.answer.values]


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({"schema": "0" * 64}, "refused", "another schema"),
        ({"trust": "trusted"}, "refused", "does not accept the trust 'trusted'"),
        ({"release": Exact()}, "refused", "nothing without noise"),
        ({"release": Public(), "verb": "each"}, "refused", "does not declare 'size' public"),
        ({"release": Public()}, "refused", "cannot be released as public"),
        ({"release": Exponential(0.1)}, "refused", "cannot be released"),
        ({"verb": "deposit", "release": Deposit(0.001)}, "refused", "no vault"),
        ({"verb": "choose", "release": Exponential(0.1)}, "refused", "does not apply to questions of the kind 'size'"),
        ({"neighbours": "replace"}, "refused", "numbers of rows are public for the run"),
        ({"release": Gaussian(1.0)}, "spent", "have that limit raised"),
    ],
)
def test_what_the_policy_does_not_allow_is_turned_down_by_a_code_and_costs_nothing(change, code, says):
    asked = site()
    reply = ask(asked, **change)
    assert (reply.code, reply.answer) == (code, None)
    assert says in list(asked.account.export())[-1]  # for the steward
    assert says.encode() not in reply.data
    assert asked.account.spent().rho == 0


def test_a_site_that_protects_more_than_a_row_takes_no_less():
    asked = site(unit=Unit(rows=3, sites=2))
    assert ask(asked).code == ask(asked, unit=Unit(rows=3)).code == "refused"
    assert ask(asked, unit=Unit(rows=4, sites=2)).code == "answered"
    assert asked.account.spent().rho == pytest.approx(0.002)  # a person at two sites pays both


def test_public_sizes_are_public_only_where_the_site_says_so():
    told: dict[str, Any] = {"release": Public(), "verb": "each", "neighbours": "replace"}
    assert numbers(ask(site(size_is_public=True), **told)) == [200]
    assert ask(site(size_is_public=True), PAIR, **told).code == "refused"
    assert ask(site(), **{**told, "neighbours": "add-remove"}).code == "refused"


def test_samples_are_priced_only_where_rows_are_added_or_removed():
    asked = site(size_is_public=True)
    sampled = SampledGaussian(0.1, 2.0, 1)
    for verb in ("sum", "average"):
        assert ask(asked, release=sampled, verb=verb, neighbours="replace").code == "refused"
        assert "size_is_public" in list(asked.account.export())[-1]
    for verb in ("each", "choose", "deposit"):
        assert ask(site(), release=sampled, verb=verb).code == "refused"
    assert asked.account.spent() == Cost()


def test_a_public_size_counts_the_rows_that_do_not_fit_too():
    table = replace(random_table(50, 0), left_out=7)
    told: dict[str, Any] = {"release": Public(), "verb": "each", "neighbours": "replace"}
    assert numbers(ask(site(table, size_is_public=True), **told)) == [57]


def test_questions_that_cannot_be_are_refused_and_not_read():
    asked = site()
    assert ask(asked, Counts.of(9, [(8,)])).code == "refused"
    request, other = request_of(RecordCount(), **FIELDS), Keys(bytes(31) + b"1")
    stranger = Message.of("a", Keys(asked.secret).identity, request, other, AuditPosition())
    reply = stranger.reply(asked.answer(stranger.data).data)
    assert (reply.code, "its coordinator did not sign" in reply.lost) == ("lost", True)
    assert asked.account.head()[0] == 1  # strangers leave no row
    for data in (b"", b"garbage", stranger.data[:50], bytes(10**4)):
        asked.answer(data)
    assert asked.account.spent().rho == 0


def test_the_same_question_has_the_same_answer_and_every_other_one_other_noise():
    one = site()
    first = ask(one)
    assert numbers(ask(one)) == numbers(first)
    assert one.account.spent().rho == pytest.approx(0.001)
    noise = {numbers(ask(one, step=step))[0] for step in range(8)}
    assert len(noise) > 1
    assert len({numbers(ask(site()))[0] for _ in range(8)}) > 1  # another account, another salt


def test_concurrent_questions_never_pass_the_budget(tmp_path):
    asked = site(account=Book(tmp_path / "account.sqlite"))
    each = Gaussian(BUDGET.rho / 10)
    with ThreadPoolExecutor(8) as pool:
        codes = [reply.code for reply in pool.map(lambda step: ask(asked, step=step, release=each), range(30))]
    assert (codes.count("answered"), codes.count("spent")) == (10, 20)
    assert asked.account.spent().rho == pytest.approx(BUDGET.rho)


def test_a_released_count_of_0_and_of_1_cannot_be_told_apart_beyond_epsilon():
    """The float-noise attack looks at low digits; here every event has odds within exp(epsilon).

    Twenty of the events have odds of exp(epsilon) exactly: one of them is six standard errors off once in 10^7 times.
    """
    epsilon, draws = 0.5, 400_000
    release = Laplace(epsilon)
    answers = {count: add_noise(np.full(draws, count, dtype=np.int64), release, ONE, fresh()) for count in (0, 1)}
    assert all(values.dtype == np.int64 for values in answers.values())
    numbers = (answers[0], answers[1])
    events = {f"= {k}": [x == k for x in numbers] for k in range(-9, 11)}
    events |= {f"mod {m} = {r}": [x % m == r for x in numbers] for m in (2, 3, 4, 8) for r in range(m)}
    # the published attack: the double-precision image of the output has telltale last bits
    events |= {f"bit {b} of x / 3": [(x / 3).view(np.int64) >> b & 1 == 1 for x in numbers] for b in range(0, 52, 5)}
    events["positive"] = [x > 0 for x in numbers]
    for name, (of_zero, of_one) in events.items():
        zero, one = int(of_zero.sum()), int(of_one.sum())
        error = 6 * np.sqrt(1 / zero + 1 / one)
        assert abs(np.log(one / zero)) <= epsilon + error, name


def test_a_gaussian_count_moves_no_event_beyond_its_promise():
    draws, release = 400_000, Gaussian(BUDGET.rho)
    zero, one = (add_noise(np.full(draws, count, dtype=np.int64), release, ONE, fresh()) for count in (0, 1))
    outputs = np.arange(min(zero.min(), one.min()), max(zero.max(), one.max()) + 1)
    shares = [np.bincount(x - outputs[0], minlength=len(outputs)) / draws for x in (zero, one)]
    for first, second in (shares, shares[::-1]):
        excess = np.maximum(first - np.exp(BUDGET.epsilon) * second, 0).sum()
        # each cell's own sampling error pushes the sum upwards; delta is far below it
        assert excess <= BUDGET.delta + 5 * np.sqrt(len(outputs) / draws)


def test_outside_a_release_nothing_follows_from_one_sites_categories_or_ranges():
    """Rows without a category, without large values, or none at all: the messages and replies are as long."""
    schema = Schema((Categorical("c", ("a", "b", "c", "d")), Numeric("x", 0, 100, bins=8)))
    rng = np.random.default_rng(0)
    everything = pd.DataFrame({"c": rng.choice(list("abcd"), 90), "x": rng.uniform(0, 100, 90)})
    poor = pd.DataFrame({"c": ["a"] * 90, "x": [1.0] * 90})

    def seen(frame: pd.DataFrame) -> list[tuple[str, int, int]]:
        link = Faulty()
        with pytest.warns(DataWarning, match="no rows") if frame.empty else nullcontext():
            federation = federate([frame, everything[::-1]], schema, BUDGET, trust=LocalNoise(), seed=0, transport=link)
        federation.sum(Counts.of(2, [(0,), (0, 1)]), 0.1)
        federation.sum(RecordCount(), 0.1)
        return link.sizes

    assert seen(everything) == seen(poor) == seen(poor.head(0))


def test_a_federation_under_another_schema_than_the_sites_is_refused():
    other = Schema((Categorical("z", ("a", "b")),))
    federation = federate([random_table(30, 1)], SCHEMA, BUDGET, trust=TrustedServer(), seed=0)
    with pytest.raises(Refused, match="refused step 0"):
        replace(federation, terms=replace(federation.terms, schema=other)).sum(RecordCount(), 0.1)
    with pytest.raises(SchemaError, match="under another schema"):
        federate([random_table(30, 1)], other, BUDGET, trust=TrustedServer())


def test_the_length_of_a_confidential_reply_says_nothing_about_rows():
    lengths = set()
    for rows in (0, 1, 500):
        asked = site(random_table(rows, 0), trusts={"trusted": TrustedServer()}, coordinator_sees_exact_counts=True)
        reply = ask(asked, Counts.of(len(SCHEMA.columns), [(0, 1, 2)]), trust="trusted")
        assert reply.sealed
        lengths.add(len(reply.data))
    assert len(lengths) == 1


def test_a_transcript_cut_off_by_a_crash_resumes_and_a_foreign_file_is_refused(tmp_path):
    path = tmp_path / "transcript"

    def ask_all(last: int) -> list[int]:
        federation = federate(
            [random_table(50, 0), random_table(20, 1)], SCHEMA, BUDGET, trust=LocalNoise(), seed=1, transcript=path
        )
        return [int(federation.sum(RecordCount(), 0.01).values[0]) for _ in range(last)]

    whole = ask_all(4)
    kept = path.read_bytes()
    for cut in (1, 40, len(kept) // 2, len(kept) - 3):
        path.write_bytes(kept[:cut])
        assert ask_all(4) == whole
        assert len(path.read_bytes()) == len(kept)  # a fresh account numbers its rows anew
    foreign = tmp_path / "foreign"
    foreign.write_text("somebody's only copy of their notes")
    with pytest.raises(FedsynthError, match="not a transcript"):
        Recorded(InProcess([]), foreign)
    assert foreign.read_text() == "somebody's only copy of their notes"


def test_a_site_needs_a_real_secret_and_a_federation_a_site():
    with pytest.raises(FedsynthError, match="32 random bytes"):
        replace(site(), secret=b"short")
    with pytest.raises(Unsupported, match="at least one site"):
        federate([], SCHEMA, BUDGET, trust=LocalNoise())
    with pytest.raises(FedsynthError, match="share a name"):
        InProcess([site(), site()])


def test_over_budget_is_said_before_anything_is_asked():
    federation = federate([random_table(30, 1)], SCHEMA, BUDGET, trust=LocalNoise(), seed=0)
    with pytest.raises(BudgetExceeded, match="ask less often or for smaller shares"):
        federation.sum(RecordCount(), 1.01)
    assert federation.ledger.spent.rho == 0
