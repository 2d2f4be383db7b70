"""A site's door: what it refuses, what that costs, and what its answers and errors give away."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.contract.world import SCHEMA, random_table

from fedsynth.errors import BudgetExceeded, FedsynthError, Refused, SchemaError, Unsupported
from fedsynth.federation.policy import Policy
from fedsynth.federation.simulation import federate
from fedsynth.federation.site import Site
from fedsynth.federation.task import marginals, size
from fedsynth.federation.transport import InProcess, Recorded
from fedsynth.federation.trust.local import LocalNoise
from fedsynth.federation.trust.trusted import TrustedServer
from fedsynth.federation.wire import Reply, Request
from fedsynth.privacy.ledger import SiteLedger
from fedsynth.privacy.noise import SystemBits
from fedsynth.privacy.release import (
    Budget,
    Exact,
    Exponential,
    Gaussian,
    Laplace,
    Public,
    Reserved,
    Sensitivity,
)
from fedsynth.schema import Categorical, Numeric, Schema
from fedsynth.table import Table

BUDGET = Budget(1.0, 1e-6)
ASK = Request("run", 0, "sum", "size", Gaussian(0.001), "local", SCHEMA.digest)


def site(table: Table | None = None, ledger: SiteLedger | None = None, **policy: Any) -> Site:
    rules = Policy(BUDGET, {"local": LocalNoise()}, **policy)
    return Site("a", random_table(200, 0) if table is None else table, rules, ledger or SiteLedger(), bytes(32))


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"schema_digest": "0" * 64}, "Refused", "another schema"),
        ({"trust": "trusted"}, "Refused", "does not accept the trust 'trusted'"),
        ({"release": Exact()}, "Refused", "nothing without noise"),
        ({"release": Public()}, "Refused", "public"),
        ({"release": Exponential(0.1)}, "Refused", "can be released"),
        ({"verb": "deposit", "release": Reserved(0.001)}, "Refused", "no vault"),
        ({"verb": "dump"}, "Refused", "'dump'"),
        ({"release": Gaussian(1.0)}, "BudgetExceeded", "data steward"),
    ],
)
def test_what_the_policy_does_not_allow_is_refused_with_a_reason_and_costs_nothing(change, error, says):
    asked = site()
    reply = asked.answer(replace(ASK, _memo={}, **change))
    assert (reply.error, reply.values) == (error, None)
    assert says in reply.reason
    assert asked.ledger.spent() == 0


def test_public_sizes_are_public_only_where_the_site_says_so():
    reply = site(size_is_public=True).answer(replace(ASK, _memo={}, release=Public()))
    assert reply.values is not None
    assert reply.values.tolist() == [200]
    counts = replace(ASK, _memo={}, release=Public(), task="marginals", params={"cliques": [(0,)]})
    assert site(size_is_public=True).answer(counts).error == "Refused"


def test_a_task_that_nobody_registered_is_unsupported():
    reply = site().answer(replace(ASK, _memo={}, task="__import__('os').system"))
    assert reply.error == "Unsupported"
    assert "no task named" in reply.reason


def test_an_error_of_the_code_says_nothing_about_rows():
    reply = site().answer(replace(ASK, _memo={}, task="marginals", params={"cliques": [(99,)]}))
    assert reply.error == "IndexError"
    assert reply.reason == ""


def test_the_same_question_has_the_same_answer_and_other_rows_have_other_noise():
    def noise(of: Site, request: Request) -> int:
        reply = of.answer(request)
        assert reply.values is not None
        return int(reply.values[0]) - len(of.table)

    one = site()
    assert noise(one, ASK) == noise(one, ASK)
    assert one.ledger.spent() == pytest.approx(0.001)
    neighbours = [site(random_table(200, 0).take(np.arange(200) != gone)) for gone in range(6)]
    assert len({noise(other, ASK) for other in [one, *neighbours]}) > 1
    assert len({noise(one, replace(ASK, _memo={}, step=step)) for step in range(1, 9)}) > 1


def test_concurrent_questions_never_pass_the_budget(tmp_path):
    asked = site(ledger=SiteLedger(tmp_path / "ledger.sqlite"))
    each = BUDGET.rho / 10
    requests = [replace(ASK, _memo={}, step=step, release=Gaussian(each)) for step in range(30)]
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(asked.answer, requests))
    assert sum(reply.values is not None for reply in replies) == 10
    assert {reply.error for reply in replies if reply.values is None} == {"BudgetExceeded"}
    assert asked.ledger.spent() == pytest.approx(BUDGET.rho)


def test_a_released_count_of_0_and_of_1_cannot_be_told_apart_beyond_epsilon():
    """The float-noise attack looks at low digits; here every event has odds within exp(epsilon)."""
    epsilon, draws = 0.5, 400_000
    release, one_record = Laplace(epsilon), Sensitivity(1, 1)
    answers = {
        count: LocalNoise().contribute(np.full(draws, count, dtype=np.int64), release, one_record, SystemBits())
        for count in (0, 1)
    }
    assert all(values.dtype == np.int64 for values in answers.values())
    numbers = (answers[0], answers[1])
    events = {f"= {k}": [x == k for x in numbers] for k in range(-9, 11)}
    events |= {f"mod {m} = {r}": [x % m == r for x in numbers] for m in (2, 3, 4, 8) for r in range(m)}
    # the published attack: the double-precision image of the output has telltale last bits
    events |= {f"bit {b} of x / 3": [(x / 3).view(np.int64) >> b & 1 == 1 for x in numbers] for b in range(0, 52, 5)}
    events["positive"] = [x > 0 for x in numbers]
    for name, (of_zero, of_one) in events.items():
        zero, one = int(of_zero.sum()), int(of_one.sum())
        error = 5 * np.sqrt(1 / zero + 1 / one)
        assert abs(np.log(one / zero)) <= epsilon + error, name


def test_a_gaussian_count_moves_no_event_beyond_its_promise():
    draws, release = 400_000, Gaussian(BUDGET.rho)
    zero, one = (
        LocalNoise().contribute(np.full(draws, count, dtype=np.int64), release, Sensitivity(1, 1), SystemBits())
        for count in (0, 1)
    )
    outputs = np.arange(min(zero.min(), one.min()), max(zero.max(), one.max()) + 1)
    shares = [np.bincount(x - outputs[0], minlength=len(outputs)) / draws for x in (zero, one)]
    for first, second in (shares, shares[::-1]):
        excess = np.maximum(first - np.exp(BUDGET.epsilon) * second, 0).sum()
        # each cell's own sampling error pushes the sum upwards; delta is far below it
        assert excess <= BUDGET.delta + 5 * np.sqrt(len(outputs) / draws)


def test_outside_a_release_nothing_follows_from_one_sites_categories_or_ranges():
    """Rows without a category, without large values, or none at all: the requests and sizes are the same."""
    schema = Schema((Categorical("c", ("a", "b", "c", "d")), Numeric("x", 0, 100, bins=8)))
    rng = np.random.default_rng(0)
    everything = pd.DataFrame({"c": rng.choice(list("abcd"), 90), "x": rng.uniform(0, 100, 90)})
    poor = pd.DataFrame({"c": ["a"] * 90, "x": [1.0] * 90})

    def seen(frame: pd.DataFrame) -> list[tuple[str, int, int]]:
        noted: list[tuple[str, int, int]] = []

        class Noting(InProcess):
            def exchange(self, requests):
                for name, request in requests:
                    (reply,) = super().exchange([(name, request)])
                    noted.append((name, len(request.to_bytes()), -1 if reply.values is None else reply.values.size))
                    yield reply

        federation = federate([frame, everything], schema, BUDGET, trust=LocalNoise(), seed=0, transport=Noting)
        federation.sum(marginals, Gaussian(0.001), cliques=[(0,), (0, 1)])
        federation.sum(size, Gaussian(0.001))
        return noted

    assert seen(everything) == seen(poor) == seen(poor.head(0))


def test_a_federation_under_another_schema_than_the_sites_is_refused():
    other = Schema((Categorical("z", ("a", "b")),))
    federation = federate([random_table(30, 1)], SCHEMA, BUDGET, trust=TrustedServer(), seed=0, public_sizes=True)
    with pytest.raises(Refused, match="compare digests"):
        replace(federation, schema=other).sum(size, Gaussian(0.001))
    with pytest.raises(SchemaError, match="under another schema"):
        federate([random_table(30, 1)], other, BUDGET, trust=TrustedServer())


def test_requests_and_replies_survive_the_wire_and_hold_no_code():
    params = {"cliques": [(0, 1), (2,)], "weight": np.array([1.5, -2.0]), "text": "ä", "none": None}
    request = Request("r", 3, "choose", "t", Exponential(0.25), "local", "d", params, {"scale": 4.0})
    again = Request.from_bytes(request.to_bytes())
    assert again.digest == request.digest
    assert again.params["cliques"] == [[0, 1], [2]]
    np.testing.assert_array_equal(again.params["weight"], params["weight"])
    for change in ({"step": 4}, {"run": "s"}, {"release": Exponential(0.26)}, {"own": {"scale": 5.0}}):
        assert replace(request, _memo={}, **change).digest != request.digest
    reply = Reply("a", request.digest, values=np.array([1, -2, 3]))
    np.testing.assert_array_equal(Reply.from_bytes(reply.to_bytes()).values, [1, -2, 3])
    with pytest.raises(TypeError, match="does not travel"):
        Request("r", 0, "sum", "t", Gaussian(1), "local", "d", {"f": print})


def test_the_length_of_a_confidential_reply_says_nothing_about_rows():
    params = {"cliques": [[0, 1, 2]]}
    request = Request("r", 0, "sum", "marginals", Gaussian(0.01), "trusted", SCHEMA.digest, params)
    lengths, compressed = set(), set()
    for rows in (0, 1, 500):
        policy = Policy(BUDGET, {"trusted": TrustedServer()})
        reply = Site("a", random_table(rows, 0), policy, SiteLedger(), b"s" * 32).answer(request)
        lengths.add(len(reply.to_bytes()))
        compressed.add(len(replace(reply, confidential=False).to_bytes()))
    assert len(lengths) == 1
    assert len(compressed) == 3  # what it would say otherwise


def test_a_transcript_cut_off_by_a_crash_resumes_and_a_foreign_file_is_refused(tmp_path):
    path = tmp_path / "transcript"

    def ask(last: int) -> list[int]:
        federation = federate(
            [random_table(50, 0), random_table(20, 1)], SCHEMA, BUDGET, trust=LocalNoise(), seed=1, transcript=path
        )
        return [int(federation.sum(size, Gaussian(0.0005), label=str(k)).values[0]) for k in range(last)]

    whole = ask(4)
    kept = path.read_bytes()
    for cut in (1, 40, len(kept) // 2, len(kept) - 3):
        path.write_bytes(kept[:cut])
        assert ask(4) == whole
        assert path.read_bytes() == kept
    foreign = tmp_path / "foreign"
    foreign.write_text("somebody's only copy of their notes")
    with pytest.raises(FedsynthError, match="not a transcript"):
        Recorded(InProcess([]), foreign)
    assert foreign.read_text() == "somebody's only copy of their notes"


def test_a_site_needs_a_real_secret_and_a_federation_a_site():
    with pytest.raises(ValueError, match="32 random bytes"):
        replace(site(), secret=b"short")
    with pytest.raises(Unsupported, match="at least one site"):
        federate([], SCHEMA, BUDGET, trust=LocalNoise())
    with pytest.raises(ValueError, match="share a name"):
        InProcess([site(), site()])


def test_over_budget_is_said_before_anything_is_asked():
    federation = federate([random_table(30, 1)], SCHEMA, BUDGET, trust=LocalNoise(), seed=0)
    with pytest.raises(BudgetExceeded, match="fewer rounds or the run a larger epsilon"):
        federation.sum(size, Gaussian(BUDGET.rho * 1.01))
    assert federation.ledger.rho == 0
