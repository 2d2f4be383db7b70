"""The verbs of a federation over real sites: what comes out, what it costs at both ends, and who is in it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.world import (
    AGE,
    BUDGET,
    REGION,
    SCHEMA,
    SEX,
    TRUSTS,
    Faulty,
    contingency,
    counts,
    exact,
    losing,
    scores,
    silent,
    start,
    table,
    tables,
)

from fedsynth.errors import BudgetExceeded, DataWarning, InvalidParameter, Refused, SchemaError, SiteLost, Unsupported
from fedsynth.federation.events import PlainAnswer
from fedsynth.federation.federation import EXACT, Federation
from fedsynth.federation.local import LocalNoise
from fedsynth.federation.query import Counts, RecordCount
from fedsynth.federation.simulate import federate
from fedsynth.federation.site import Site
from fedsynth.federation.transport import InProcess
from fedsynth.federation.trusted import TrustedServer
from fedsynth.federation.vault import CandidateScores
from fedsynth.federation.wire import encode
from fedsynth.keys import Keys
from fedsynth.privacy.cost import Budget, Unit
from fedsynth.schema import Categorical, Schema
from fedsynth.schema.bins import Axis
from fedsynth.secure.session import AGREE, KEYS, MASKED, SHARES, UNMASK
from fedsynth.secure.site import SecureSum

NONE = Budget.none()
PURE = Budget(2.0, 0.0)
QUERY = counts((SEX,), (REGION, AGE))
each_trust = pytest.mark.parametrize("trust", TRUSTS.values(), ids=TRUSTS)
each_budget = pytest.mark.parametrize("budget", [BUDGET, PURE], ids=["gaussian", "pure"])


def noise_of(values: np.ndarray[Any, Any], query: Any, held: Any) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = values - exact(query, held)
    return found


@pytest.fixture
def network() -> Faulty:
    return Faulty()


# ---------------------------------------------------------------------------------------------------------------------
# Sums


@each_trust
def test_without_noise_a_sum_is_the_pooled_table(trust):
    found = start(trust=trust, budget=NONE).sum(QUERY, 1.0)
    assert (found.values == exact(QUERY, tables(5))).all()
    assert (found.std, found.noise) == (0, "exact")
    assert [part.shape for part in found.tables] == [(2,), (4, 10)]
    assert found.sites == tuple(f"site-{k:03d}" for k in range(5))


@each_trust
@each_budget
def test_the_noise_of_a_sum_has_the_stated_standard_deviation(trust, budget):
    query = counts(*[(AGE,)] * 300)  # 3,000 cells, of which one row moves 300
    network = Faulty()
    federation = start(network, trust=trust, budget=budget)
    found = federation.sum(query, 1.0)
    noise = noise_of(found.values, query, tables(5))
    assert found.std == pytest.approx(federation.std(query, 1.0))
    assert found.std == pytest.approx(noise.std(), rel=0.12)
    assert abs(noise.mean()) < 5 * found.std / math.sqrt(noise.size)
    assert found.stds == [found.std] * 300
    assert found.noise == ("laplace" if budget.pure else "gaussian")
    assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 5 / math.sqrt(noise.size)  # independent from cell to cell
    spent = network.epsilon if budget.pure else network.rho
    assert list(spent.values()) == pytest.approx([budget.epsilon if budget.pure else budget.rho] * 5)


def test_weights_divide_the_noise_of_their_tables():
    query = counts((SEX,), (AGE,), weights=(1, 4))
    found = start(budget=NONE).sum(query, 1.0)
    assert found.tables[1].sum() == sum(len(rows) for rows in tables(5))
    noisy = start().sum(query, 1.0)
    assert noisy.stds == [noisy.std, noisy.std / 4]


@each_trust
def test_distinct_queries_over_different_sites_are_summed_in_one_exchange_a_turn(trust):
    held = tables(5)
    whole, even, odd = counts((SEX,)), counts((AGE,)), counts((REGION,))
    per_site = {f"site-{k:03d}": [whole, odd if k % 2 else even] for k in range(5)}
    network = Faulty()
    found = start(network, trust=trust, budget=NONE).sums(per_site, 0.5)
    assert network.exchanges == trust.turns
    assert [(encode(one.query), one.sites) for one in found] == [
        (encode(whole), tuple(per_site)),
        (encode(even), ("site-000", "site-002", "site-004")),
        (encode(odd), ("site-001", "site-003")),
    ]
    assert (found[0].values == exact(whole, held)).all()
    assert (found[1].values == exact(even, held[::2])).all()
    assert (found[2].values == exact(odd, held[1::2])).all()


def test_a_sum_over_a_site_of_another_federation_is_refused_and_free(network):
    federation = start(network)
    with pytest.raises(InvalidParameter, match="has no sites elsewhere; its sites are site-000"):
        federation.sums({"site-000": [counts((SEX,))], "elsewhere": [counts((SEX,))]}, 0.5)
    assert not network.exchanges
    assert federation.ledger.share_spent == 0


@each_trust
@each_budget
def test_a_site_with_two_queries_pays_twice(trust, budget):
    whole, some = counts((SEX,)), counts((AGE,))
    per_site = {f"site-{k:03d}": [whole, some] if k < 3 else [whole] for k in range(5)}
    network = Faulty()
    federation = start(network, trust=trust, budget=budget)
    federation.sums(per_site, 0.25)
    total = budget.epsilon if budget.pure else budget.rho
    spent = network.epsilon if budget.pure else network.rho
    assert spent == pytest.approx({site: 0.25 * total * len(asked) for site, asked in per_site.items()})
    assert federation.ledger.share_spent == pytest.approx(0.5)


def test_a_site_that_is_given_one_question_twice_is_in_its_sum_once(network):
    federation = start(network, budget=BUDGET)
    (found,) = federation.sums({"site-000": [counts((SEX,)), counts((SEX,))]}, 0.1)
    assert found.sites == ("site-000",)
    assert found.std == federation.std(counts((SEX,)), 0.1, 1)
    assert federation.ledger.per_site["site-000"].rho == pytest.approx(network.rho["site-000"])


@each_trust
def test_the_same_seed_gives_the_same_bits_and_another_one_other_noise(trust):
    first, again, other = (start(trust=trust, seed=seed).sum(QUERY, 0.5).values for seed in (3, 3, 4))
    assert (first == again).all()
    assert (first != other).any()


# ---------------------------------------------------------------------------------------------------------------------
# Every site's own answers


@each_trust
def test_each_site_answers_with_its_own_noise_in_full(trust):
    held = tables(5)
    query = counts(*[(AGE,)] * 100)
    network = Faulty()
    federation = start(network, trust=trust)
    found = federation.each(query, 0.5)
    assert list(found) == list(network.doors)
    for (site, one), rows in zip(found.items(), held, strict=True):
        noise = noise_of(one.values, query, [rows])
        assert (one.sites, one.noise) == ((site,), "gaussian")
        assert one.std == pytest.approx(LocalNoise().std(federation.ledger.entries[0].release, _norms(100), 1))
        assert noise.std() == pytest.approx(one.std, rel=0.15)
    # The noise is in the message already, whoever reads it.
    for reply in network.replies:
        assert not reply.sealed
        assert isinstance(reply.answer, PlainAnswer)
        assert (reply.answer.values == found[reply.site].values).all()
    assert list(network.rho.values()) == pytest.approx([0.5 * BUDGET.rho] * 5)


def _norms(tables: int) -> Any:
    from fedsynth.privacy.cost import Norms

    return Norms(tables, math.sqrt(tables))


@each_trust
@each_budget
@pytest.mark.parametrize("steps", [1, 3])
def test_each_site_draws_on_its_own_rows(network, trust, budget, steps):
    federation = start(network, trust=trust, budget=budget)
    picks = federation.choose(scores(steps), 0.4)
    assert list(picks) == list(network.doors)
    assert all(len(drawn) == steps and all(0 <= index < 6 for index in drawn) for drawn in picks.values())
    spent = network.epsilon if budget.pure else network.rho
    total = budget.epsilon if budget.pure else budget.rho
    assert list(spent.values()) == pytest.approx([0.4 * total] * 5)
    assert federation.ledger.share_spent == pytest.approx(0.4)


def test_without_noise_a_site_draws_what_scores_best_on_its_rows():
    held = tables(3, rows=200)
    selections = {f"site-{k:03d}": scores(records=len(rows)) for k, rows in enumerate(held)}
    picks = start(held=held, budget=NONE).choose(selections, 1.0)
    best = [int(one.utilities(rows, []).argmax()) for one, rows in zip(selections.values(), held, strict=True)]
    assert [drawn for (drawn,) in picks.values()] == best


def test_a_generous_draw_finds_the_best_candidate():
    held = [table(2000, 3)]
    selection = scores(records=2000)
    picks = start(held=held, budget=Budget(10.0, 1e-6)).choose(selection, 1.0)
    ((drawn,),) = picks.values()
    best = selection.candidates[int(selection.utilities(held[0], []).argmax())]
    assert best == (REGION,)
    assert REGION in selection.candidates[drawn]  # its pairs are about as far from uniform


def test_after_a_look_a_site_draws_against_what_it_saw():
    """Without noise, the second draw is the best candidate once the first one's table is fitted."""
    held = [table(2000, 3)]
    (first, second, third) = start(held=held, budget=NONE).choose(scores(3, 2000), 1.0)["site-000"]
    assert first == int(scores(3, 2000).utilities(held[0], []).argmax())
    assert len({first, second, third}) == 3


# ---------------------------------------------------------------------------------------------------------------------
# Vaults


def expected(*cliques: tuple[int, ...]) -> CandidateScores:
    """Return scores against uniform tables."""
    shapes = [tuple(SCHEMA.sizes[column] for column in clique) for clique in cliques]
    tables_of = tuple(np.full(shape, 200 / math.prod(shape)) for shape in shapes)
    return CandidateScores(cliques, tables_of, np.ones(len(cliques)), np.zeros(len(cliques)))


@each_budget
def test_a_vault_releases_what_was_deposited_and_not_more(network, budget):
    federation = start(network, trust=TrustedServer(), budget=budget)
    vault = federation.deposit(counts((SEX, REGION), (AGE,)), 0.8)
    spent = network.epsilon if budget.pure else network.rho
    total = budget.epsilon if budget.pure else budget.rho
    assert list(spent.values()) == pytest.approx([0.8 * total] * 5)

    (opened,), (std,) = vault.open(counts((SEX,)), 0.3)
    assert std == pytest.approx(vault.std(0.3))
    assert std == pytest.approx(TrustedServer().std(federation.ledger.entries[-1].release, _norms(1), 5))
    assert np.abs(opened - exact(counts((SEX,)), tables(5))).max() < 12 * std
    assert 0 <= vault.select(expected((SEX,), (REGION,), (AGE,)), 0.2) < 3
    noisy, _ = vault.scores(expected((SEX,), (AGE,)), 0.1)
    assert noisy.shape == (2,)
    assert vault.left == pytest.approx(0.2)
    with pytest.raises(BudgetExceeded, match="deposit a larger share"):
        vault.open(counts((SEX,)), 0.21)
    vault.open(counts((SEX,)), 0.2)
    assert vault.left == pytest.approx(0, abs=1e-12)

    assert spent == (network.epsilon if budget.pure else network.rho)  # all of it was paid with the deposit
    assert [entry.paid_by for entry in federation.ledger.entries] == ["", *["deposit of step 0"] * 4]
    assert federation.ledger.share_spent == pytest.approx(0.8)


def test_a_vault_without_noise_holds_the_pooled_tables():
    vault = start(trust=TrustedServer(), budget=NONE).deposit(counts((SEX, REGION), (AGE,)), 1.0)
    (both, ages), _ = vault.open(counts((REGION,), (AGE,)), 1.0)
    assert (np.concatenate([both, ages]) == exact(counts((REGION,), (AGE,)), tables(5))).all()
    with pytest.raises(Unsupported, match="not deposited together"):
        vault.open(counts((SEX, AGE)), 1.0)


def test_sites_do_not_deposit_into_a_vault_of_another_run():
    vault = start(trust=TrustedServer()).deposit(counts((SEX,)), 0.5)
    network = Faulty()
    other = start(network, trust=TrustedServer(), budget=Budget(0.1, 1e-6))
    with pytest.raises(InvalidParameter, match="another run"):
        other.deposit_into(vault)
    assert not network.sent


@pytest.mark.parametrize("name", ["local", "secure"])
def test_who_may_not_see_exact_sums_has_no_vault(network, name):
    federation = start(network, trust=TRUSTS[name])
    with pytest.raises(Unsupported, match=rf"--trust three-servers\); with --trust {name} use oneshot or flaim"):
        federation.deposit(counts((SEX,)), 0.5)
    assert not network.sent
    assert federation.ledger.share_spent == 0


# ---------------------------------------------------------------------------------------------------------------------
# Sites that are lost


@pytest.mark.parametrize("trust", ["trusted", "local"])
def test_a_sum_goes_on_without_a_silent_site_and_says_so(trust):
    network = Faulty(silent({0: {"site-002"}}))
    federation = start(network, trust=TRUSTS[trust], budget=NONE)
    held = tables(5)
    found = federation.sum(QUERY, 1.0)
    assert (found.values == exact(QUERY, [*held[:2], *held[3:]])).all()
    assert found.sites == ("site-000", "site-001", "site-003", "site-004")
    assert federation.lost == ["site-002"]


@pytest.mark.parametrize("trust", ["trusted", "local", "secure"])
def test_the_ledger_has_the_size_of_every_message(trust):
    """Of lost ones, too, and of each question of a step that several share."""
    network = Faulty(silent({0: {"site-002"}}))
    federation = start(network, tables(7), TRUSTS[trust])
    federation.sum(QUERY, 0.2)
    one, two = counts((SEX,)), counts((REGION,))
    names = federation.sites
    federation.sums({name: [one, two] if at else [one] for at, name in enumerate(names)}, 0.1)
    federation.each(QUERY, 0.1)
    federation.choose(scores(), 0.1)
    if trust == "trusted":
        vault = federation.deposit(QUERY, 0.2)
        vault.open(QUERY, 0.2)
        assert federation.ledger.entries[-1].question == federation.ledger.entries[-2].question
        assert not federation.ledger.entries[-1].turns
    found = Counter[str]()
    replied = 0
    for entry in federation.ledger.entries:
        assert entry.paid_by or len(entry.question) == 64
        for site, down, up in entry.messages():
            found[site] += down
            replied += up
    sent = Counter[str]()
    for message in network.sent:
        sent[message.site] += len(message.data)
    assert found == sent
    assert replied == sum(len(reply.data) for reply in network.replies)
    assert federation.ledger.exchanges == network.exchanges


@each_trust
def test_sizes_of_messages_tell_nothing_of_rows(trust):
    """The ledger is published: one row or a thousand, the same messages."""
    found = []
    for rows in (1, 1000):
        federation = start(Faulty(), tables(4, rows), trust, NONE)
        federation.sum(QUERY, 1.0)
        federation.each(RecordCount(), 1.0)
        found.append([entry["turns"] for entry in federation.ledger.to_json()["entries"]])
    assert found[0] == found[1] != []


@pytest.mark.parametrize("turn", [KEYS, SHARES, MASKED, AGREE, UNMASK])
def test_a_secure_sum_is_that_of_the_sites_that_stayed(turn):
    gone = {"site-002", "site-007"}
    held = tables(10)  # 4 may collude, 8 must stay
    network = Faulty(silent({turn: gone}))
    federation = start(network, held, SecureSum(), NONE)
    found = federation.sum(QUERY, 1.0)
    inside = [k for k in range(10) if turn > MASKED or f"site-{k:03d}" not in gone]
    assert found.sites == tuple(f"site-{k:03d}" for k in inside)
    assert (found.values == exact(QUERY, [held[k] for k in inside])).all()
    assert set(federation.lost) == gone
    charged = {name for name, site in network.doors.items() if site.account.charges()}
    assert charged == {site for site in network.doors if turn > MASKED or site not in gone}


def test_a_secure_sum_that_lost_sites_says_how_noisy_it_is():
    trust = SecureSum(min_honest=10)
    network = Faulty(silent({MASKED: {"site-002", "site-007"}}))
    federation = start(network, tables(10), trust)
    query = counts(*[(AGE,)] * 200)
    found = federation.sum(query, 1.0)
    inside = [rows for k, rows in enumerate(tables(10)) if k not in (2, 7)]
    # All are honest: eight need an eighth of the noise from each, as ten need a tenth.
    assert found.std == pytest.approx(federation.std(query, 1.0))
    assert noise_of(found.values, query, inside).std() == pytest.approx(found.std, rel=0.1)


@pytest.mark.parametrize("turn", [SHARES, MASKED, AGREE, UNMASK])
def test_a_secure_sum_that_loses_too_many_sites_fails(turn):
    network = Faulty(silent({turn: {"site-000", "site-004", "site-009"}}))
    with pytest.raises(SiteLost, match=r"7 of 10 sites sent a valid answer.* 8 are required: 1 are missing"):
        start(network, tables(10), SecureSum()).sum(QUERY, 1.0)


@each_trust
def test_nobody_at_all_is_too_few(trust):
    network = Faulty(losing(lambda message: True))
    for ask in (
        lambda federation: federation.sum(QUERY, 0.1),
        lambda federation: federation.each(QUERY, 0.1),
        lambda federation: federation.choose(scores(), 0.1),
    ):
        with pytest.raises(SiteLost, match="0 sites answered and 1 are required"):
            ask(start(network, trust=trust))


@each_trust
def test_a_round_needs_min_sites(trust):
    gone = {"site-001"}
    for least, enough in ((4, True), (5, False)):
        federation = replace(start(Faulty(silent({0: gone})), trust=trust), min_sites=least, lost=[])
        for ask in (federation.sum, federation.each):
            if enough:
                ask(QUERY, 0.1)
            else:
                with pytest.raises(SiteLost, match=r"4 sites answered and 5 are required; site-001: .*restart"):
                    ask(QUERY, 0.1)


def test_a_vault_needs_min_sites():
    federation = replace(start(Faulty(silent({0: {"site-001"}})), trust=TrustedServer()), min_sites=5)
    with pytest.raises(SiteLost, match="4 sites answered"):
        federation.deposit(QUERY, 0.1)


# ---------------------------------------------------------------------------------------------------------------------
# Prices


UNIT = Unit(rows=3, sites=2)


@each_trust
@each_budget
def test_noise_and_charges_are_those_of_a_persons_rows_at_all_sites(network, trust, budget):
    federation = start(network, trust=trust, budget=budget, unit=UNIT)
    alone = start(trust=trust, budget=budget)
    # Where noise is pooled, rows at two sites are in one sum. Where each site adds noise of its own, the price of a
    # release is split between the sites that the person is at: half the epsilon, or half the rho.
    factor = 3 * (2 if trust.pooled or budget.pure else math.sqrt(2))
    assert federation.std(QUERY, 0.5) == pytest.approx(factor * alone.std(QUERY, 0.5), rel=1e-6)
    assert federation.sum(QUERY, 0.25).std == pytest.approx(factor * alone.sum(QUERY, 0.25).std, rel=1e-6)
    own = 3 * (2 if budget.pure else math.sqrt(2))
    of_each, one_each = federation.each(QUERY, 0.25), alone.each(QUERY, 0.25)
    assert of_each["site-000"].std == pytest.approx(own * one_each["site-000"].std)
    federation.choose(scores(), 0.25)
    spent = network.epsilon if budget.pure else network.rho
    total = budget.epsilon if budget.pure else budget.rho
    assert list(spent.values()) == pytest.approx([0.75 * total] * 5)
    assert federation.ledger.share_spent == pytest.approx(0.75)


def under(federation: Federation, **terms: Any) -> Federation:
    """Return the federation under terms that differ in some points."""
    return replace(federation, terms=replace(federation.terms, **terms))


def test_a_site_refuses_to_protect_less_than_its_policy_says(network):
    federation = start(network, unit=UNIT)
    with pytest.raises(Refused):
        under(federation, unit=Unit(rows=2, sites=2)).sum(QUERY, 0.5)
    assert set(network.rho.values()) == {0}
    under(federation, unit=Unit(rows=4, sites=2)).sum(QUERY, 0.5)  # more is no less


@each_trust
@pytest.mark.parametrize(("budget", "factor"), [(BUDGET, math.sqrt(2)), (PURE, 2.0)], ids=["gaussian", "pure"])
def test_with_public_sizes_neighbours_replace_and_counts_are_noisier(network, trust, budget, factor):
    federation = start(network, trust=trust, budget=budget, public_sizes=True)
    assert federation.terms.neighbours == "replace"
    assert federation.sizes == {f"site-{k:03d}": 30 + 7 * k for k in range(5)}
    assert federation.public_sizes() == federation.sizes
    assert set(network.rho.values()) == {0}  # what is public is not released again
    secret = start(trust=trust, budget=budget)
    assert federation.sum(QUERY, 0.5).std == pytest.approx(factor * secret.sum(QUERY, 0.5).std, rel=1e-6)
    assert federation.each(RecordCount(), 0.1)["site-001"].values.tolist() == [
        37
    ]  # replacing a record does not move it
    assert "replace one row by another" in federation.statement.text


def test_sizes_that_are_not_public_are_not_told():
    federation = start()
    assert federation.sizes is None
    with pytest.raises(Refused):
        federation.public_sizes()


@each_trust
@each_budget
@pytest.mark.parametrize("unit", [Unit(), UNIT], ids=["one-row", "person"])
def test_the_two_accounts_agree(network, trust, budget, unit):
    federation = start(network, trust=trust, budget=budget, unit=unit)
    federation.sum(counts((SEX,)), 0.1)
    federation.sums({"site-001": [counts((AGE,)), counts((REGION,))], "site-003": [counts((AGE, SEX))]}, 0.1)
    federation.each(RecordCount(), 0.05)
    federation.choose(scores(2), 0.2)
    federation.choose({site: scores(records=7 + k) for k, site in enumerate(federation.sites)}, 0.1)
    if trust.confidential:
        federation.deposit(counts((SEX, AGE)), 0.25).open(counts((AGE,)), 0.2)
    for name, site in network.doors.items():
        spent, known = site.account.spent(), federation.ledger.per_site[name]
        assert (spent.epsilon, spent.rho) == pytest.approx((known.epsilon, known.rho))
    assert 0.44 < federation.ledger.share_spent <= 1
    assert federation.statement.limit == budget


def test_a_release_without_noise_voids_the_guarantee_at_both_ends(network):
    federation = start(network, exact=True)
    with pytest.raises(InvalidParameter, match="must be positive"):
        federation.sum(QUERY, math.inf)  # of a division by zero, say: no way to ask for no noise
    assert (federation.sum(QUERY, EXACT).values == exact(QUERY, tables(5))).all()
    assert all(math.isinf(rho) for rho in network.rho.values())
    assert math.isinf(federation.ledger.spent.rho)
    assert federation.statement.headline == "NOT PRIVATE"


@each_trust
def test_sites_refuse_releases_without_noise(network, trust):
    federation = start(network, trust=trust)
    for ask in (federation.sum, federation.each):
        with pytest.raises(Refused, match=r"site-000 refused step .*fedsynth account"):
            ask(QUERY, EXACT)
    with pytest.raises(Refused):
        federation.choose(scores(), EXACT)
    assert set(network.rho.values()) == {0}


@each_budget
def test_over_budget_is_said_before_anything_is_asked(network, budget):
    federation = start(network, budget=budget)
    federation.sum(QUERY, 0.6)
    sent = len(network.sent)
    for ask in (federation.sum, federation.each):
        with pytest.raises(BudgetExceeded, match="ask less often or for smaller shares"):
            ask(QUERY, 0.401)
    with pytest.raises(BudgetExceeded):
        federation.choose(scores(), 0.401)
    assert len(network.sent) == sent
    federation.sum(QUERY, 0.4)


def test_a_site_refuses_what_a_server_that_keeps_no_account_asks_for(network):
    federation = start(network)
    federation.sum(QUERY, 0.6)
    careless = replace(federation, ledger=replace(federation.ledger, entries=[], per_site={}))
    with pytest.raises(BudgetExceeded, match="ask its steward"):
        careless.sum(QUERY, 0.6)
    assert list(network.rho.values()) == pytest.approx([0.6 * BUDGET.rho] * 5)


@pytest.mark.parametrize("share", [0.0, -0.1, math.nan, 1e-9])
def test_a_share_that_buys_nothing_is_refused(network, share):
    with pytest.raises(InvalidParameter):
        start(network).sum(QUERY, share)
    assert not network.sent


# ---------------------------------------------------------------------------------------------------------------------
# Cohorts and constructors


def test_cohorts_are_drawn_first_without_looking_at_rows_and_capped(network):
    federation = start(network, tables(12))
    rounds = federation.cohorts(0.4, 100, cap=2)
    assert not network.sent
    joined = Counter(site for cohort in rounds for site in cohort.sites)
    assert all(cohort.sites for cohort in rounds)
    assert len(rounds) < 100  # the cap leaves nobody for more
    assert set(joined.values()) == {2}
    assert len(joined) == 12
    assert len(federation.cohorts(0.01, 7)) == 7
    other = start(Faulty(), [table(51, seed + 100) for seed in range(12)])  # other rows, the same draws
    assert [cohort.sites for cohort in other.cohorts(0.4, 100, cap=2)] == [cohort.sites for cohort in rounds]
    with pytest.raises(InvalidParameter, match="rate"):
        federation.cohorts(0.0)


def test_a_cohort_shares_its_runs_ledger_and_steps(network):
    federation = start(network)
    (few,) = federation.cohorts(0.5)
    few.sum(QUERY, 0.3)
    federation.sum(QUERY, 0.3)
    assert [entry.step for entry in federation.ledger.entries] == [0, 1]
    assert {site for site, rho in network.rho.items() if rho > 0.4 * BUDGET.rho} == set(few.sites)


def test_a_federation_under_another_schema_than_its_sites_is_refused():
    other = Schema((Categorical("z", ("a", "b")),))
    network = Faulty()
    federation = start(network)
    with pytest.raises(Refused):
        under(federation, schema=other).sum(RecordCount(), 0.1)
    with pytest.raises(SchemaError, match="under another schema"):
        federate([table(3)], other, BUDGET, trust=LocalNoise())


def test_a_federation_needs_a_site():
    with pytest.raises(Unsupported, match="at least one site"):
        federate([], SCHEMA, BUDGET, trust=LocalNoise())


@each_trust
def test_sites_answer_their_own_coordinator_and_nobody_else(network, trust):
    federation = start(network, trust=trust)
    with pytest.raises(SiteLost):
        replace(federation, coordinator=Keys(b"another".ljust(32))).sum(QUERY, 0.1)
    assert set(network.rho.values()) == {0}
    federation.sum(QUERY, 0.1)


@each_trust
def test_an_empty_site_and_a_site_of_one_row_answer_like_the_others(trust):
    held = [table(0), table(1), table(40)]
    found = start(held=held, trust=trust, budget=NONE).sum(QUERY, 1.0)
    assert (found.values == exact(QUERY, held)).all()
    assert len(start(held=held, trust=trust).each(RecordCount(), 0.2)) == 3


def test_a_cohort_may_be_smaller_than_what_a_round_of_all_sites_needs():
    federation = replace(federate(tables(4), SCHEMA, BUDGET, trust=LocalNoise(), seed=0), min_sites=4)
    cohort = replace(federation, sites=federation.sites[:1])
    assert cohort.sum(counts((SEX,)), 0.1).sites == federation.sites[:1]


def test_selections_of_strangers_are_an_error_of_whoever_asks():
    federation = federate(tables(2), SCHEMA, BUDGET, trust=LocalNoise(), seed=0)
    with pytest.raises(InvalidParameter, match="stranger"):
        federation.choose({"stranger": RecordCount()}, 0.1)  # type: ignore[dict-item]


def test_a_vault_knows_its_tables_by_their_columns():
    federation = federate(tables(3), SCHEMA, Budget.none(), trust=TrustedServer(), seed=0)
    pair = Counts((Axis(REGION), Axis(SEX)), ((0, 1),))
    vault = federation.deposit(pair, 1.0)
    (found,), _ = vault.open(counts((SEX, REGION)), 0.1)
    np.testing.assert_array_equal(found, sum(contingency(one, (SEX, REGION)) for one in tables(3)))
    grouped = Counts((Axis(SEX, groups=np.array([0, 0])),), ((0,),))
    with pytest.raises(Unsupported, match="axes that were deposited"):
        vault.open(grouped, 0.1)


def test_a_vault_holds_groups_that_were_deposited_and_one_axis_of_a_column():
    groups = Axis(SEX, groups=np.array([0, 0]))
    federation = federate(tables(3), SCHEMA, Budget.none(), trust=TrustedServer(), seed=0)
    vault = federation.deposit(Counts((Axis(REGION), groups), ((0, 1),)), 1.0)
    (found,), _ = vault.open(Counts((groups,), ((0,),)), 0.1)
    assert found.tolist() == [sum(len(one) for one in tables(3))]
    with pytest.raises(Unsupported, match="axes that were deposited"):
        vault.open(counts((SEX,)), 0.1)
    with pytest.raises(InvalidParameter, match="over one axis"):
        federation.deposit(Counts((Axis(SEX), groups), ((0,), (1,))), 1.0)


def test_whoever_is_not_the_coordinator_leaves_no_trace_in_an_account():
    sites: list[Site] = []

    def keep(members: Sequence[Site]) -> InProcess:
        sites.extend(members)
        return InProcess(members)

    federate(tables(1), SCHEMA, BUDGET, trust=LocalNoise(), seed=0, transport=keep)
    for data in (b"x", bytes(104), bytes(2000)):
        assert sites[0].answer(data).data
    assert sites[0].account.head()[0] == 0


def visits() -> dict[str, pd.DataFrame]:
    """Rows of persons: ann has five at the first site and two at each other one; the others have one row each."""
    north = pd.DataFrame({"patient": ["ann"] * 5 + list(map(str, range(20))), "sex": "f"})
    south, east = (
        pd.DataFrame({"patient": ["ann", "ann", None, *(f"{site}{k}" for k in range(20))], "sex": "m"})
        for site in ("south", "east")
    )
    return {"north": north, "south": south, "east": east}


def rows_of_persons(unit: Unit) -> list[int]:
    """Return how many rows each site has for its questions."""
    schema = Schema((Categorical("sex", ("f", "m")),))
    budget, trust = Budget(1.0, 1e-6), TrustedServer()
    with pytest.warns(DataWarning, match=r"rows are not used: at most \d of each 'patient' are") as said:
        federation = federate(visits(), schema, budget, trust=trust, unit=unit, person="patient", public_sizes=True)
    assert 2 <= len(said) <= 3  # the first site may lose none
    assert federation.sizes is not None
    return list(federation.sizes.values())


def test_a_person_has_no_more_rows_and_sites_than_the_unit_says():
    """A unit of protection bounds what is used of a person; without a column of persons it would bound nobody."""
    assert rows_of_persons(Unit(rows=9, sites=9)) == [25, 22, 22]  # rows without a person are left out
    assert rows_of_persons(Unit(rows=2, sites=3)) == [22, 22, 22]
    one, two = (rows_of_persons(Unit(rows=2, sites=sites)) for sites in (1, 2))
    assert sum(one) == 60 + 2
    assert sum(two) == 60 + 4
    assert rows_of_persons(Unit(rows=2, sites=1)) == one  # a resumed run uses the same rows


def test_a_column_of_persons_that_a_site_lacks_is_named():
    frames = visits()
    del frames["east"]["patient"]
    schema = Schema((Categorical("sex", ("f", "m")),))
    with pytest.raises(SchemaError, match="'east' has no column 'patient'"):
        federate(frames, schema, Budget(1.0, 1e-6), trust=TrustedServer(), person="patient")
