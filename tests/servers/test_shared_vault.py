"""A vault in shares, as methods and the federation see it: prices, noise, cohorts, what is refused and when."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.contract.world import SCHEMA, random_table, tables
from tests.federation.test_site import ask, site
from tests.servers.three_servers_world import Silent
from tests.world import Faulty, contingency, of_strangers, silent, warned_of_empty

from fedsynth.errors import BudgetExceeded, InvalidParameter, SiteLost, Unsupported
from fedsynth.federation.federation import Federation
from fedsynth.federation.query import Counts
from fedsynth.federation.simulate import federate
from fedsynth.federation.trusted import TrustedServer
from fedsynth.federation.vault import CandidateScores, Vault
from fedsynth.methods import find_method
from fedsynth.methods.aim import AIM
from fedsynth.methods.auto import Auto
from fedsynth.methods.flaim import FLAIM, AugFLAIM
from fedsynth.methods.mst import MST
from fedsynth.methods.oneshot import OneShot
from fedsynth.methods.privsyn import PrivSyn
from fedsynth.privacy.cost import Budget, Unit
from fedsynth.rows import concatenate
from fedsynth.runs.dry_run import forecast
from fedsynth.servers.ideal import DRAW_BYTES, IdealServers
from fedsynth.servers.trust import ThreeServers
from fedsynth.servers.vault import DRAW_SECONDS, Servers, SharedVault
from fedsynth.terms import Terms

BUDGET = Budget(2.0, 1e-6)
QUERY = Counts.of(4, [(0, 1), (1, 2, 3)])


def start(**options) -> Federation:
    budget = options.pop("budget", BUDGET)
    trust = options.pop("trust", ThreeServers())
    data = options.pop("data", None) or tables()
    if "unit" in options:
        data = of_strangers(data)
    with warned_of_empty(data):
        return federate(data, SCHEMA, budget, trust=trust, **{"seed": 1, **options})


def distances(*cliques: tuple[int, ...]) -> CandidateScores:
    expected = tuple(np.zeros([SCHEMA.sizes[column] for column in clique]) for clique in cliques)
    return CandidateScores(cliques, expected, np.ones(len(cliques)), np.zeros(len(cliques)))


def ideal(federation: Federation) -> Servers:
    assert isinstance(federation.trust, ThreeServers)
    assert isinstance(federation.trust.servers, Servers)
    return federation.trust.servers


@pytest.mark.parametrize(
    ("options", "moved"), [({}, 1.0), ({"unit": Unit(3, 2)}, 6.0), ({"public_sizes": True}, math.sqrt(2))]
)
def test_noise_has_one_and_a_half_times_the_variance_of_a_trusted_server(options, moved):
    shared, trusted = (start(trust=trust, **options).deposit(QUERY, 0.8) for trust in (ThreeServers(), TrustedServer()))
    assert shared.std(0.3) == pytest.approx(math.sqrt(1.5) * trusted.std(0.3))
    assert shared.std(0.3) == pytest.approx(math.sqrt(1.5) * moved / math.sqrt(2 * 0.3 * BUDGET.rho))
    (opened,), (std,) = shared.open(Counts.of(4, [(2, 1)]), 0.3)
    assert std == pytest.approx(shared.std(0.3))
    assert np.abs(opened - contingency(concatenate(tables()), (1, 2)).T).max() < 8 * std
    assert shared.left == pytest.approx(0.5)


def test_pure_budgets_are_spent_on_laplace_noise_in_shares():
    shared = start(budget=Budget(2.0, 0.0)).deposit(QUERY, 0.8)
    trusted = start(budget=Budget(2.0, 0.0), trust=TrustedServer()).deposit(QUERY, 0.8)
    assert shared.std(0.3) == pytest.approx(math.sqrt(1.5) * trusted.std(0.3))
    shared.open(Counts.of(4, [(0,)]), 0.3)
    assert shared.select(distances((0,), (1,), (2, 3)), 0.5) in range(3)
    with pytest.raises(BudgetExceeded, match="deposit a larger share"):
        shared.select(distances((0,), (1,)), 0.01)


def test_a_draw_follows_l2_distances():
    federation = start(budget=Budget(200.0, 1e-6))
    vault = federation.deposit(QUERY, 1.0)
    pooled = concatenate(tables())
    apart = [float(np.sqrt((contingency(pooled, clique) ** 2).sum())) for clique in ((0, 1), (3,), (2,))]
    assert vault.select(distances((0, 1), (3,), (2,)), 0.5) == int(np.argmax(apart))


def test_every_release_is_written_down_and_paid_by_the_deposit():
    federation = start()
    vault = federation.deposit(QUERY, 0.8)
    vault.open(Counts.of(4, [(0,)]), 0.3)
    vault.select(distances((0,), (1,)), 0.2)
    entries = federation.ledger.entries
    assert [entry.verb for entry in entries] == ["deposit", "open", "select"]
    assert [entry.paid_by for entry in entries] == ["", *["deposit of step 0"] * 2]
    assert entries[1].std == pytest.approx(vault.std(0.3))
    assert federation.ledger.share_spent == pytest.approx(0.8)
    moved = federation.trust.traffic
    assert moved.sent > 0
    assert moved.draw_seconds == pytest.approx(2 * DRAW_SECONDS)
    merged = replace_axes(QUERY)
    with pytest.raises(Unsupported, match="axes that were deposited"):
        vault.open(merged, 0.1)
    with pytest.raises(Unsupported, match="not deposited together"):
        vault.open(Counts.of(4, [(0, 3)]), 0.1)
    with pytest.raises(Unsupported, match="not deposited together"):
        vault.select(distances((0,), (0, 3)), 0.1)
    assert vault.left == pytest.approx(0.3)


def replace_axes(query: Counts) -> Counts:
    from fedsynth.schema.bins import Axis

    return Counts((Axis(0, None, np.zeros(2, dtype=np.int32)), *query.axes[1:]), ((0,),))


def test_sites_enter_by_cohorts_and_are_charged_once():
    federation = start()
    first, second = (replace(federation, sites=federation.sites[part]) for part in (slice(0, 2), slice(1, 4)))
    vault = first.deposit(QUERY, 0.8)
    assert vault.sites == first.sites
    second.deposit_into(vault)
    assert vault.sites == federation.sites[:4]
    first.deposit_into(vault)  # everybody is in
    spent = {site: cost.rho for site, cost in federation.ledger.per_site.items()}
    assert spent == pytest.approx(dict.fromkeys(federation.sites[:4], 0.8 * BUDGET.rho))
    (opened,), (std,) = vault.open(Counts.of(4, [(1, 2)]), 0.8)
    assert np.abs(opened - contingency(concatenate(tables()[:4]), (1, 2))).max() < 8 * std
    assert [entry.verb for entry in federation.ledger.entries] == ["deposit", "deposit", "open"]
    assert federation.ledger.entries[-1].sites == federation.sites[:4]


@pytest.mark.parametrize("trust", [ThreeServers(), TrustedServer()], ids=lambda trust: trust.name)
def test_without_noise_cohorts_are_the_pooled_tables_of_those_that_entered(trust):
    federation = start(trust=trust, budget=Budget.none())
    first, second = (replace(federation, sites=federation.sites[part]) for part in (slice(0, 1), slice(1, 3)))
    vault: Vault = first.deposit(QUERY, 1.0)
    (before,), _ = vault.open(Counts.of(4, [(0, 1)]), 1.0)
    second.deposit_into(vault)
    (after,), _ = vault.open(Counts.of(4, [(0, 1)]), 1.0)
    assert (before == contingency(tables()[0], (0, 1))).all()
    assert (after == contingency(concatenate(tables()[:3]), (0, 1))).all()


def test_a_lost_site_is_not_asked_again_and_stays_out():
    link = Faulty(silent({0: {"site-001"}}))
    federation = start(transport=link)
    first, second = (replace(federation, sites=federation.sites[part]) for part in (slice(0, 2), slice(1, 3)))
    vault = first.deposit(QUERY, 0.8)
    second.deposit_into(vault)
    assert vault.sites == ("site-000", "site-002")
    assert sum(message.site == "site-001" for message in link.sent) == 1


def test_methods_that_cannot_run_say_so_before_anything_is_charged():
    for method, says in (
        (PrivSyn(), "noisy scores"),
        (OneShot(), "--trust secure"),
        (Auto(), "--trust secure"),
        (FLAIM(rounds=2, rate=0.5), "--trust secure"),
        (AugFLAIM(rounds=2, rate=0.5), "--trust secure"),
        (AIM(rounds=2, bins_share=0.2), "--trust secure"),
        (MST(bins_share=0.2), "--trust secure"),
    ):
        federation = start()
        with pytest.raises(Unsupported, match=says):
            method.fit(federation)
        assert not federation.ledger.entries


def test_a_site_refuses_sums_where_only_vaults_are_before_anything_is_charged():
    asked = site(trusts={"three-servers": ThreeServers()})
    reply = ask(asked, trust="three-servers")
    assert (reply.code, reply.answer) == ("refused", None)
    assert "for plain sums use --trust secure" in list(asked.account.export())[-1]
    assert asked.account.spent().rho == 0
    assert ask(asked, trust="three-servers", verb="each").code == "answered"


def test_scores_are_never_opened():
    vault = start().deposit(QUERY, 0.5)
    assert isinstance(vault, SharedVault)
    assert not start().require_vault().opens_scores
    with pytest.raises(Unsupported, match="never open"):
        vault.scores(distances((0,)), 0.1)


def test_a_deposit_with_weights_is_refused():
    with pytest.raises(InvalidParameter, match="without weights"):
        start().deposit(Counts.of(4, [(0, 1)], [2]), 0.5)


def test_a_dead_server_is_named_and_the_run_goes_on_when_it_is_back(tmp_path):
    def attempt(dead: bool) -> tuple[Federation, list[np.ndarray], int]:
        federation = start(transcript=tmp_path / "run")
        servers = ideal(federation)
        vault = federation.deposit(QUERY, 0.8)
        if dead:
            assert isinstance(servers.send, IdealServers)
            servers.send = Silent(servers.send.parties)
        tables_, _ = vault.open(Counts.of(4, [(0, 1)]), 0.4)
        return federation, tables_, vault.select(distances((0,), (1,), (2,)), 0.4)

    with pytest.raises(SiteLost, match="no answer from server 2"):
        attempt(True)
    federation, resumed, index = attempt(False)
    whole = start()
    vault = whole.deposit(QUERY, 0.8)
    expected, _ = vault.open(Counts.of(4, [(0, 1)]), 0.4)
    assert (resumed[0] == expected[0]).all()
    assert index == vault.select(distances((0,), (1,), (2,)), 0.4)
    assert federation.ledger.per_site == whole.ledger.per_site


def test_the_statement_says_whom_it_holds_against_and_at_what_price():
    federation = start()
    federation.deposit(QUERY, 0.5)
    said = str(federation.statement)
    assert "no two collude" in said
    assert "1.5 times the variance" in said
    assert "two Gumbel numbers" in said
    assert "one of three servers" in said


def test_distaim_scales_tables_of_samples_to_all_records():
    data = [random_table(300, seed) for seed in range(20)]
    federation = start(data=data, budget=Budget(5000.0, 1e-6))
    model = AIM(rounds=4, rate=0.3, size_share=0.01).fit(federation).model
    assert model.total == pytest.approx(6000, rel=0.01)
    pooled = concatenate(data)
    for column in range(4):
        found = model.marginal((column,)) / model.total  # type: ignore[attr-defined]
        assert np.abs(found - contingency(pooled, (column,)) / 6000).sum() < 0.1
    deposits = [entry for entry in federation.ledger.entries if entry.verb == "deposit"]
    assert 1 < len(deposits) <= 5
    names = [site for entry in deposits for site in entry.sites]
    assert len(names) == len(set(names)) < 20
    assert federation.ledger.share_spent == pytest.approx(1)


@pytest.mark.parametrize("trust", [ThreeServers(), TrustedServer()], ids=["three-servers", "trusted"])
def test_a_first_sample_that_is_not_kept_gives_single_columns_for_the_price_of_one_deposit(trust):
    data = [random_table(300, seed) for seed in range(20)]

    def deposits(keep_first: bool) -> tuple[Federation, list[tuple[frozenset[str], int]]]:
        federation = start(data=data, trust=trust)
        AIM(rounds=3, rate=0.3, keep_first=keep_first).fit(federation)
        entries = [entry for entry in federation.ledger.entries if entry.verb == "deposit"]
        return federation, [(frozenset(entry.sites), entry.cells) for entry in entries]

    _, (first, *_) = deposits(True)
    federation, (ones, *entered) = deposits(False)
    assert ones == (first[0], sum(SCHEMA.sizes))  # the same sample
    assert {cells for _, cells in entered} == {first[1]}
    again = ones[0] & frozenset().union(*(sites for sites, _ in entered))
    assert again  # sites of the first sample that a round drew, too
    assert ones[0] - again
    assert federation.ledger.share_spent == pytest.approx(1)
    for name, spent in federation.ledger.per_site.items():
        assert spent.rho == pytest.approx(BUDGET.rho) if name in again else spent.rho < 0.95 * BUDGET.rho


def test_options_of_entering_by_samples():
    with pytest.raises(InvalidParameter, match="fixed number of rounds"):
        AIM(rate=0.5)
    for rate in (0.0, 1.5):
        with pytest.raises(InvalidParameter, match="rate"):
            AIM(rate=rate, rounds=2)
    with pytest.raises(InvalidParameter, match="all sites at once"):
        AIM(rate=0.5, rounds=2, bins_share=0.1)
    assert AIM(rounds=3).rate == 1.0


def test_a_forecast_says_what_three_servers_send_and_compute():
    limits = find_method("aim").limits(AIM(), SCHEMA)
    told, other = (
        forecast("aim", AIM(rounds=2), Terms(SCHEMA, BUDGET, trust), sites=3, rows=200, repeats=1, limits=limits)
        for trust in ("three-servers", "trusted")
    )
    candidates = 10 + 4  # pairs of four columns, and the columns, but for pairs that the model has no room for
    assert 0 < told.servers_seconds.high <= 2 * candidates * DRAW_SECONDS * 1.3
    assert told.servers.high >= told.servers_seconds.high / DRAW_SECONDS * 3 * DRAW_BYTES / 1.3
    assert told.up.high > 16 * QUERY.cells(SCHEMA)
    assert {entry.verb for entry in told.noise} == {"open"}
    assert (other.servers.high, other.servers_seconds.high) == (0, 0)


@pytest.mark.parametrize("trust", ["three-servers", "trusted"])
def test_a_plan_without_the_first_sample_covers_a_site_of_both_deposits(trust):
    told = forecast(
        "aim",
        AIM(rounds=2, rate=0.4, keep_first=False),
        Terms(SCHEMA, BUDGET, trust),
        sites=6,
        rows=600,
        repeats=2,
        limits=find_method("aim").limits(AIM(), SCHEMA),
    )
    deposits = [slot for slot in told.plan.slots if slot.verb == "deposit"]
    assert sum(slot.times for slot in deposits) >= 2
    assert told.epsilon.high <= BUDGET.epsilon * (1 + 1e-6)
