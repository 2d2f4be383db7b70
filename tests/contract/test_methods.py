"""What every method promises, over every trust and every kind of budget.

Each case is fitted once, and all tests look at that fit. What is the same for all methods that ask by the same verbs
(bits that repeat, runs that resume) is tested with one method a verb.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import get_args

import numpy as np
import pandas as pd
import pytest
from tests.contract.world import DECLARED, METHODS, SCHEMA, TRUSTS, VARIANTS, random_table, tables
from tests.world import Ask, Faulty, contingency, losing, silent, warned_of_empty

from fedsynth.errors import BudgetExceeded, Refused, SiteLost, Unsupported
from fedsynth.federation.events import PlainAnswer
from fedsynth.federation.federation import Federation
from fedsynth.federation.query import RecordCount
from fedsynth.federation.simulate import federate
from fedsynth.federation.site import Site
from fedsynth.federation.transport import Message, records
from fedsynth.federation.wire import Reply
from fedsynth.methods.registry import COHORT_RATE, Promise
from fedsynth.models.mrf import MarkovRandomField
from fedsynth.models.synthesizer import Synthesizer
from fedsynth.privacy.cost import Budget
from fedsynth.privacy.release import Exact, Gaussian, Laplace, SampledGaussian
from fedsynth.rows import concatenate

BUDGETS = {"zcdp": Budget(2.0, 1e-6), "pure": Budget(2.0, 0.0), "none": Budget.none()}
BUDGET = BUDGETS["zcdp"]
CENTRAL = [name for name, one in DECLARED.items() if one.needs_vault]
# A survey is a sum over all sites, which three servers do not give.
SURVEYED = [name for name, method in METHODS.items() if getattr(method, "bins_share", 0)]
RUNS = [
    (m, t)
    for m in METHODS
    for t in TRUSTS
    if DECLARED[m].runs_under(t) and not (t == "three-servers" and m in SURVEYED)
]
ANY_TRUST = [name for name, one in DECLARED.items() if not one.needs_vault and "any trust" not in one.exempt]
NO_PURE = [name for name, one in DECLARED.items() if "pure budget" in one.exempt]
NO_PUBLIC_SIZES = [name for name, one in DECLARED.items() if "public sizes" in one.exempt]
CASES = [(m, t, b) for m, t in RUNS for b in BUDGETS if b != "pure" or m not in NO_PURE]
# One method for each verb: sum, each and choose (with and without looks), deposit, sums and averages of training.
BY_VERB = ("oneshot", "augflaim", "flaim-steps", "aim", "aim-cohorts", "fedctgan", "fedtabdiff-local")
REPEATED = [(m, t) for m, t in RUNS if m in BY_VERB]
PICKING = [name for name, one in DECLARED.items() if "whole budget" in one.exempt]
ONE_SUM = [name for name, one in DECLARED.items() if "any split" not in one.exempt]


def world(name: str, trust: str, **options) -> Federation:
    options = {"seed": 3, "exact": not DECLARED[name].private, "queries": DECLARED[name].queries, **options}
    data = options.pop("data", None) or tables()
    with warned_of_empty(data):
        return federate(data, SCHEMA, options.pop("budget", BUDGET), trust=TRUSTS[trust], **options)


def bits(synthesizer: Synthesizer) -> bytes:
    _, arrays = synthesizer.model.to_arrays()
    rows = synthesizer.sample_table(200, 0)
    return b"".join(arrays[name].tobytes() for name in sorted(arrays)) + b"".join(c.tobytes() for c in rows.codes)


@dataclass(frozen=True, eq=False)
class Fit:
    """One fit of a method: what came out, the federation after it, and its sites."""

    synthesizer: Synthesizer
    federation: Federation
    sites: list[Site]


@cache
def fit(name: str, trust: str, budget: str) -> Fit:
    link = Faulty()
    federation = world(name, trust, budget=BUDGETS[budget], transport=link)
    return Fit(METHODS[name].fit(federation), federation, list(link.doors.values()))


def always(name: str):
    """Return a method whose cohorts are everybody."""
    method = METHODS[name]
    options = {one.name: one.metadata for one in dataclasses.fields(method)}  # type: ignore[arg-type]
    cohorts = COHORT_RATE.items() <= options.get("rate", {}).items()
    return dataclasses.replace(method, rate=1.0) if cohorts else method  # type: ignore[type-var]


def test_exemptions_are_of_known_promises_and_have_reasons():
    for one in DECLARED.values():
        assert set(one.exempt) <= set(get_args(Promise))
        assert all(len(reason.split()) > 3 for reason in one.exempt.values())
    assert set(VARIANTS) <= {one.name for one in DECLARED.values()}


@pytest.mark.parametrize("name", [name for name, one in DECLARED.items() if not one.adaptive])
def test_a_method_that_is_not_adaptive_asks_the_same_whatever_the_rows_hold(name):
    asked = []
    for seed in (0, 10, 20):
        link = Faulty()
        data = [random_table(rows, seed + at) for at, rows in enumerate((90, 40))]
        METHODS[name].fit(world(name, "trusted", data=data, transport=link))
        asked.append([(message.site, message.request.question) for message in link.sent])
    assert asked[0]
    assert asked[0] == asked[1] == asked[2]


@pytest.mark.parametrize(("name", "trust", "budget"), CASES)
def test_the_budget_is_kept_and_the_two_accounts_agree(name, trust, budget):
    found = fit(name, trust, budget)
    ledger = found.federation.ledger
    assert len(found.synthesizer.sample(50, 0)) == 50
    releases = [entry.release for entry in ledger.entries if entry.verb in ("sum", "each", "open", "scores")]
    laws: dict[str, set[type]] = {"zcdp": {Gaussian, SampledGaussian}, "pure": {Laplace}, "none": set()}
    assert {type(release) for release in releases} <= laws[budget] | {Exact}
    if budget == "none" or not DECLARED[name].private:
        assert ledger.exact_releases
        assert not found.federation.statement.private
        return
    assert ledger.exact_releases == 0
    assert ledger.budget.covers(ledger.spent)
    assert ledger.epsilon <= BUDGETS[budget].epsilon * (1 + 1e-6)
    for site in found.sites:
        spent, told = site.account.spent(), ledger.per_site.get(site.name)
        assert spent.rho == pytest.approx(told.rho if told else 0.0)
        assert math.isinf(spent.epsilon) or spent.epsilon == pytest.approx(told.epsilon if told else 0.0)
    # The most charged site has spent everything, but for picks that were left out.
    assert ledger.share_spent > 0.9
    if name not in PICKING:  # the noise of samples is found to one part in 10,000
        assert ledger.share_spent == pytest.approx(1, rel=1e-3 if DECLARED[name].trains else 1e-6)


@pytest.mark.parametrize("name", PICKING)
@pytest.mark.parametrize("budget", ["zcdp", "pure"])
def test_a_site_of_every_round_spends_the_whole_budget_and_no_more(name, budget):
    federation = world(name, "trusted", budget=BUDGETS[budget])
    always(name).fit(federation)
    costs = federation.ledger.per_site.values()
    most = max(federation.budget.share_of(cost) for cost in costs)
    if name == "flaim-steps":  # a table that a site picks twice in a round is measured once
        assert 0.9 < most <= 1 + 1e-6
    else:
        assert most == pytest.approx(1)
    assert all(federation.budget.covers(cost) for cost in costs)


@pytest.mark.parametrize("name", ANY_TRUST)
def test_without_noise_every_trust_releases_the_same_bits(name):
    first, *others = [bits(fit(name, trust, "none").synthesizer) for trust in TRUSTS if (name, trust) in RUNS]
    assert all(other == first for other in others)


@pytest.mark.parametrize("name", ONE_SUM)
def test_a_trusted_server_equals_the_pooled_rows_bit_for_bit(name):
    """Under the same agreement, on whose digest the noise depends."""
    spread = fit(name, "trusted", "zcdp")
    whole = world(name, "trusted", data=[concatenate(tables())])
    pooled = METHODS[name].fit(replace(whole, agreed=spread.federation.agreement))
    assert bits(spread.synthesizer) == bits(pooled)


@pytest.mark.parametrize(("name", "trust"), REPEATED)
def test_same_seed_same_bits(name, trust):
    first = bits(fit(name, trust, "zcdp").synthesizer)
    assert bits(METHODS[name].fit(world(name, trust))) == first
    assert bits(METHODS[name].fit(world(name, trust, seed=4))) != first
    unseeded = [bits(METHODS[name].fit(world(name, trust, seed=None))) for _ in range(2)]
    assert len({first, *unseeded}) == 3


@pytest.mark.parametrize(("name", "trust"), REPEATED)
def test_an_interrupted_run_resumes_to_the_same_bits_and_pays_once(name, trust, tmp_path):
    whole = fit(name, trust, "zcdp")
    expected = bits(whole.synthesizer)
    exchanges = len({entry.step for entry in whole.federation.ledger.entries if not entry.paid_by})

    def attempt(link: Faulty) -> Synthesizer:
        return METHODS[name].fit(world(name, trust, transport=link, transcript=tmp_path / f"{name}-{trust}"))

    def dies(message: Message, ask: Ask) -> Reply:
        if first.exchanges >= max(1, exchanges - 1):
            raise ConnectionError("the server's process ended here")
        return ask(message)

    first = Faulty(dies)
    with pytest.raises(ConnectionError):
        attempt(first)
    link = first.back()
    assert bits(attempt(link)) == expected
    for site in link.doors.values():  # the same accounts saw both attempts
        told = whole.federation.ledger.per_site.get(site.name)
        assert site.account.spent().rho == pytest.approx(told.rho if told else 0.0)
    if trust == "local":
        assert all(message.request.head.step >= exchanges - 2 for message in link.sent)


@pytest.mark.parametrize(("name", "trust"), REPEATED)
def test_the_size_of_replies_does_not_depend_on_rows(name, trust):
    sizes = []
    for factor in (1, 7):
        link = Faulty()
        data = [random_table(rows * factor, seed) for seed, rows in enumerate((40, 9, 0))]
        always(name).fit(world(name, trust, data=data, transport=link))
        steps = [message.request.head.step for message in link.sent]
        sizes.append([(step, reply.site, len(reply.data)) for step, reply in zip(steps, link.replies, strict=True)])
    if not DECLARED[name].adaptive:
        assert sizes[0] == sizes[1]
    else:
        # Later cliques are private picks, and networks as large as released columns; what is asked before is equal.
        last = 0 if DECLARED[name].trains else 2
        first = [reply for reply in sizes[0] if reply[0] <= last]
        assert first == [reply for reply in sizes[1] if reply[0] <= last]


@pytest.mark.parametrize("name", METHODS)
def test_a_lost_site_does_not_stop_the_round_and_a_lost_majority_does(name):
    trust = "trusted" if name in CENTRAL else "local"
    link = Faulty(silent({0: {"site-001"}}))
    federation = world(name, trust, transport=link, public_sizes=name not in NO_PUBLIC_SIZES)
    result = METHODS[name].fit(federation)
    assert len(result.sample(10, 0)) == 10
    assert set(federation.lost) <= {"site-001"}

    dead = world(name, trust, transport=Faulty(losing(lambda message: True)))
    with pytest.raises(SiteLost, match="resumes"):
        METHODS[name].fit(dead)


def _numbers(reply: Reply, change: Callable[[np.ndarray], np.ndarray]) -> Reply:
    if not isinstance(reply.answer, PlainAnswer):
        return replace(reply, answer=None)
    return replace(reply, answer=PlainAnswer(change(reply.answer.values)))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda reply: _numbers(reply, lambda values: values[:-1]),
        lambda reply: _numbers(reply, lambda values: np.full_like(values, 2**62)),
        lambda reply: _numbers(reply, lambda values: np.full_like(values, -(2**62))),
        lambda reply: replace(reply, answer=None),
    ],
    ids=["size", "huge", "negative", "nothing"],
)
@pytest.mark.parametrize(("name", "trust"), [("oneshot", "trusted"), ("oneshot", "local"), ("aim", "trusted")])
def test_a_malformed_reply_counts_as_a_dropout(name, trust, spoil):
    garbled = Faulty(lambda message, ask: spoil(ask(message)) if message.site == "site-001" else ask(message))
    federation = world(name, trust, transport=garbled, public_sizes=True)
    without = world(name, trust, transport=Faulty(silent({0: {"site-001"}})), public_sizes=True)
    found, expected = METHODS[name].fit(federation), METHODS[name].fit(without)
    assert set(without.lost) == {"site-001"}
    assert set(federation.lost) <= {"site-001"}
    pd.testing.assert_frame_equal(found.sample(20, 0), expected.sample(20, 0))


@pytest.mark.parametrize("name", ["oneshot", "aim"])
def test_error_vanishes_as_the_budget_grows(name):
    pooled = concatenate(tables())
    errors = []
    for budget in (Budget(0.5, 1e-6), Budget(5, 1e-6), Budget(5000, 1e-6), Budget.none()):
        fitted = METHODS[name].fit(world(name, "trusted", budget=budget))
        model = fitted.model
        assert isinstance(model, MarkovRandomField)
        errors.append(max(np.abs(model.marginal((j,)) - contingency(pooled, (j,))).max() for j in range(4)))
    assert errors[2] < 1 < errors[0]  # of 591 records
    assert errors[2] < errors[1]
    assert errors[3] < 0.2


@pytest.mark.parametrize(
    ("name", "budget"), [(m, b) for m in METHODS for b in BUDGETS if b != "pure" or m not in NO_PURE]
)
def test_degenerate_federations(name, budget):
    trust = "trusted" if name in CENTRAL else "local"
    for data in ([random_table(1, 0)], [random_table(0, 0)], [random_table(0, 0), random_table(1, 1)]):
        result = METHODS[name].fit(world(name, trust, data=data, budget=BUDGETS[budget]))
        assert len(result.sample(5, 0)) == 5


@pytest.mark.parametrize("name", NO_PURE)
def test_a_method_that_needs_a_delta_says_so_before_anything_is_spent(name):
    federation = world(name, "local", budget=BUDGETS["pure"])
    with pytest.raises(Unsupported, match="--delta"):
        METHODS[name].fit(federation)
    assert not federation.ledger.entries


@pytest.mark.parametrize("name", NO_PUBLIC_SIZES)
def test_a_method_that_needs_sizes_to_be_secret_says_so_before_anything_is_spent(name):
    federation = world(name, "local", public_sizes=True)
    with pytest.raises(Unsupported, match="--public-sizes"):
        METHODS[name].fit(federation)
    assert not federation.ledger.entries


@pytest.mark.parametrize("name", CENTRAL)
def test_a_method_without_a_vault_says_what_to_use_instead(name):
    federation = world(name, "local")
    with pytest.raises(Unsupported, match="use oneshot or flaim"):
        METHODS[name].fit(federation)
    assert not federation.ledger.entries


@pytest.mark.parametrize("name", [name for name, one in DECLARED.items() if not one.private])
def test_a_method_that_is_not_private_needs_a_policy_that_allows_exact_releases_and_says_so(name):
    with pytest.raises(Refused, match="fedsynth account"):
        METHODS[name].fit(world(name, "trusted", exact=False))
    federation = world(name, "trusted")
    METHODS[name].fit(federation)
    assert not federation.statement.private
    assert any(isinstance(entry.release, Exact) for entry in federation.ledger.entries)


def test_a_site_is_capped():
    joined: dict[str, int] = {}
    for entry in fit("augflaim-capped", "trusted", "zcdp").federation.ledger.entries:
        if entry.verb == "choose":
            for site in entry.sites:
                joined[site] = joined.get(site, 0) + 1
    assert max(joined.values()) <= 2


def test_a_site_stops_at_its_own_limit_whatever_the_server_believes():
    link = Faulty()
    federation = world("oneshot", "local", transport=link)
    members = link.doors.values()
    greedy = world("oneshot", "local", budget=Budget(50.0, 1e-6), transport=link)
    share = BUDGET.rho / greedy.budget.rho
    greedy.sum(RecordCount(), 0.9 * share)
    before = [site.account.spent() for site in members]
    with pytest.raises(BudgetExceeded, match="steward"):
        greedy.sum(RecordCount(), 0.2 * share)
    assert [site.account.spent() for site in members] == before
    assert federation.ledger.spent.rho == 0


def test_a_transcript_holds_no_confidential_answer(tmp_path):
    METHODS["oneshot"].fit(world("oneshot", "trusted", transcript=tmp_path / "t"))
    assert "answer" not in {kind for kind, _ in records(tmp_path / "t")}
    METHODS["oneshot"].fit(world("oneshot", "local", transcript=tmp_path / "l"))
    assert [kind for kind, _ in records(tmp_path / "l")].count("answer") == 5
