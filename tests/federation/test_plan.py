"""Plans: what a site approves is what it answers, and what was forecast is what a run then takes."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
from tests.contract.world import SCHEMA, random_table

from fedsynth import methods
from fedsynth.data.draft import draft_schema
from fedsynth.errors import InvalidParameter, Unsupported
from fedsynth.federation.forecast import Forecast, forecast
from fedsynth.federation.plan import Ask, Plan, numbers_of, options_of
from fedsynth.federation.policy import Policy
from fedsynth.federation.policy_file import policy_from_toml, trust_named
from fedsynth.federation.rehearsal import Counting, Notes
from fedsynth.federation.simulation import federate
from fedsynth.federation.site import Site
from fedsynth.federation.trust.local import LocalNoise
from fedsynth.federation.trust.trusted import TrustedServer
from fedsynth.federation.wire import Request
from fedsynth.methods.generators import PGM
from fedsynth.privacy.ledger import SiteLedger
from fedsynth.privacy.release import Budget, Exponential, Gaussian, Laplace
from fedsynth.schema import Schema
from fedsynth.table import Table

BUDGET = Budget(1.0, 1e-6)
PLAN = Plan(
    method="oneshot",
    options={"pair_share": 0.8},
    schema_digest=SCHEMA.digest,
    trust="local",
    trust_numbers={},
    sites=3,
    budget=Budget(0.5, 1e-6),
    asks=(
        Ask("sum", "marginals", "gaussian", 2, 0.002, 0.003),
        Ask("sum", "size", "gaussian", 10, 0.0001, 0.001),
    ),
)
ASK = Request("run", 0, "sum", "size", Gaussian(0.0001), "local", SCHEMA.digest, plan=PLAN.digest)


def site(table: Table | None = None, ledger: SiteLedger | None = None, **policy: Any) -> Site:
    rules = Policy(BUDGET, {"local": LocalNoise(), "trusted": TrustedServer()}, plans={PLAN.digest: PLAN}, **policy)
    return Site("a", random_table(200, 0) if table is None else table, rules, ledger or SiteLedger(), bytes(32))


def ask(**changes: Any) -> Request:
    return replace(ASK, _memo={}, **changes)


def counts(rho: float, step: int) -> Request:
    return ask(task="marginals", params={"cliques": [(0, 1)]}, release=Gaussian(rho), step=step)


# ---------------------------------------------------------------------------------------------------------------------
# A plan is its content


def test_a_plan_survives_its_file_and_any_change_makes_another_plan(tmp_path):
    PLAN.save(tmp_path / "plan.toml")
    assert Plan.load(tmp_path / "plan.toml") == PLAN
    assert Plan.from_toml("# a comment\n" + PLAN.to_toml()).digest == PLAN.digest
    assert replace(PLAN, budget=Budget(0.5, 1e-6), sites=3).digest == PLAN.digest
    dearer = replace(PLAN.asks[0], rho_each=0.0020000001)
    changes: list[dict[str, Any]] = [
        {"method": "aim"},
        {"options": {}},
        {"schema_digest": "0" * 64},
        {"trust": "trusted"},
        {"trust_numbers": {"min_honest": 3}},
        {"sites": 4},
        {"budget": Budget(0.5, 1e-7)},
        {"asks": PLAN.asks[:1]},
        {"asks": (dearer, PLAN.asks[1])},
    ]
    digests = {replace(PLAN, **change).digest for change in changes}
    assert len(digests | {PLAN.digest}) == len(changes) + 1


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("fedsynth_plan = 1", "fedsynth_plan = 2", "plan of this version"),
        ('method = "oneshot"', 'method = "oneshot"\nrun = "me"', r"unknown entries \['run'\]"),
        ("sites = 3\n", "", "incomplete"),
        ("sites = 3", "sites = 0", "number of sites"),
        ("times = 2", "times = 0", "at least once"),
        ("times = 2", "times = true", "at least once"),
        ("rho_each = 0.002", "rho_each = inf", "without noise"),
        ("rho_each = 0.002", "rho_each = -1.0", "by a number"),
        ("rho_each = 0.002", 'rho_each = "much"', "incomplete"),
        ('task = "size"', 'task = "marginals"', "twice"),
        ("epsilon = 0.5", "epsilon = 0.0", "positive"),
        ("[budget]", "[budget", "not TOML"),
    ],
)
def test_a_plan_that_is_none_is_refused(old, new, says):
    assert PLAN.to_toml().count(old) == 1
    with pytest.raises(InvalidParameter, match=says):
        Plan.from_toml(PLAN.to_toml().replace(old, new))


def test_options_are_stated_as_values_and_trusts_by_their_own_numbers():
    stated = options_of(methods.FedPrivSyn(generator=PGM(iterations=7)))
    assert stated["width"] == 25
    assert stated["generator"] == {"is": "PGM", "iterations": 7, "max_megabytes": 80.0}
    assert "workload" not in options_of(methods.AIM())
    assert options_of(methods.AIM(workload=((0, 1),)))["workload"] == [[0, 1]]
    assert numbers_of(LocalNoise()) == {}
    assert numbers_of(trust_named("secure", {"min_honest": 3})) == {"min_honest": 3}


# ---------------------------------------------------------------------------------------------------------------------
# A site answers what was approved


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (ask(plan=""), "names no plan"),
        (ask(plan="0" * 64), "not approved here"),
        (ask(task="sketches"), "no 'sum' of 'sketches'"),
        (ask(release=Laplace(0.001)), "released as laplace"),
        (ask(verb="choose", task="flaim_scores", release=Exponential(0.0001)), "no 'choose' of 'flaim_scores'"),
        (ask(release=Gaussian(0.00011)), "at most rho=0.0001"),
        (ask(trust="trusted"), "runs under the trust 'local', not 'trusted'"),
        (ask(schema_digest="0" * 64), "another schema"),
        (counts(0.0021, 0), "at most rho=0.002"),
    ],
)
def test_what_the_plan_does_not_hold_is_refused_with_a_reason_and_costs_nothing(request_, says):
    asked = site(schemas=frozenset({SCHEMA.digest, "0" * 64}) if says == "another schema" else frozenset())
    reply = asked.answer(request_)
    assert (reply.error, reply.values) == ("Refused", None)
    assert says in reply.reason
    assert asked.ledger.spent() == 0


def test_questions_are_counted_by_run_and_a_question_sent_again_is_not():
    asked = site()
    assert [asked.answer(ask(step=step)).error for step in range(10)] == [""] * 10
    refused = asked.answer(ask(step=10))
    assert (refused.error, "has asked for 'size' 10 times" in refused.reason) == ("Refused", True)
    assert asked.answer(ask(step=3)).error == ""
    assert asked.ledger.spent() == pytest.approx(0.001)
    assert asked.answer(ask(run="another", step=10)).error == ""
    # another kind of question has a limit of its own
    assert asked.answer(counts(0.001, 11)).error == ""


def test_the_sum_of_prices_is_bounded_too():
    asked = site()
    assert asked.answer(counts(0.002, 0)).error == ""
    assert asked.answer(counts(0.0011, 1)).error == "Refused"
    assert asked.answer(counts(0.001, 2)).error == ""
    assert asked.answer(counts(0.0000001, 3)).error == "Refused"  # two questions were planned
    assert asked.ledger.spent() == pytest.approx(0.003)


def test_the_plans_budget_bounds_the_run_below_the_policys():
    generous = replace(PLAN, budget=Budget(0.02, 1e-6))
    asked = site()
    asked = replace(asked, policy=replace(asked.policy, plans={generous.digest: generous}))
    reply = asked.answer(replace(counts(0.002, 0), plan=generous.digest, _memo={}))
    assert reply.error == "BudgetExceeded"
    assert "in this run" in reply.reason


def test_threads_cannot_ask_more_than_was_planned(tmp_path):
    asked = site(ledger=SiteLedger(tmp_path / "ledger.sqlite"))
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(asked.answer, [ask(step=step) for step in range(30)]))
    assert sum(reply.values is not None for reply in replies) == 10
    assert {reply.error for reply in replies if reply.values is None} == {"Refused"}


def test_a_refusal_says_nothing_about_rows():
    told = []
    for rows in (0, 1, 200):
        asked = site(random_table(rows, rows))
        for step in range(10):
            asked.answer(ask(step=step))
        refused = (ask(step=99), ask(task="nothing"), counts(0.01, 1), ask(plan="x"))
        told.append([asked.answer(one).reason for one in refused])
    assert told[0] == told[1] == told[2]
    assert all(told[0])


def test_a_site_without_plans_answers_whoever_names_one():
    asked = site()
    asked = replace(asked, policy=replace(asked.policy, plans={}))
    assert asked.answer(ask(plan="0" * 64)).error == ""
    assert asked.answer(ask(plan="")).error == ""


def test_the_plan_is_part_of_the_question():
    assert ask(plan="").digest != ASK.digest
    assert Request.from_bytes(ASK.to_bytes()).digest == ASK.digest
    assert Request.from_bytes(ASK.to_bytes()).plan == PLAN.digest


# ---------------------------------------------------------------------------------------------------------------------
# A policy is a file


def section(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    PLAN.save(tmp_path / "approved.toml")
    content: dict[str, Any] = {
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "per_run": {"epsilon": 0.5, "delta": 1e-6},
        "trusts": {"local": {}, "secure": {"min_honest": 3}},
        "methods": ["oneshot"],
        "min_cohort": 3,
        "schemas": [SCHEMA.digest],
        "size_is_public": True,
        "plans": {PLAN.digest: "approved.toml"},
    }
    whole = {**content, **changes}
    return tomllib.loads(tomli_w.dumps({name: value for name, value in whole.items() if value is not None}))


def test_a_policy_is_what_the_file_says(tmp_path):
    policy = policy_from_toml(section(tmp_path), tmp_path)
    assert policy.budget == Budget(1.0, 1e-6)
    assert policy.per_run == Budget(0.5, 1e-6)
    assert {name: numbers_of(trust) for name, trust in policy.trusts.items()} == {
        "local": {},
        "secure": {"min_honest": 3},
    }
    assert (policy.schemas, policy.size_is_public, policy.min_cohort) == (frozenset({SCHEMA.digest}), True, 3)
    assert policy.plans == {PLAN.digest: PLAN}
    assert not policy.exact
    asked = Site("a", random_table(9, 0), policy, SiteLedger(), bytes(32))
    assert asked.answer(ASK).error == ""
    least = policy_from_toml({"budget": {"epsilon": 1, "delta": 1e-6}, "trusts": {"local": {}}})
    assert (least.per_run, least.schemas, least.plans, least.size_is_public) == (None, frozenset(), {}, False)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"budgets": 1}, "knows no budgets; it knows budget, per_run"),
        ({"exact": True}, "knows no exact"),
        ({"budget": None}, "has no budget"),
        ({"trusts": None}, "has no trusts"),
        ({"trusts": {}}, "accepts nothing"),
        ({"trusts": {"secure": {"honest": 3}}}, "knows no honest; it knows min_honest"),
        ({"trusts": {"local": {"turns": 3}}}, "knows no turns; it knows nothing"),
        ({"trusts": {"secure": {"min_honest": True}}}, "needs a number"),
        ({"trusts": {"local": 1}}, "must be a table"),
        ({"budget": {"epsilon": 1.0}}, "needs the number delta"),
        ({"budget": {"epsilon": True, "delta": 1e-6}}, "needs the number epsilon"),
        ({"budget": {"epsilon": 1.0, "delta": 1e-6, "rho": 1.0}}, "knows no rho"),
        ({"budget": {"epsilon": -1.0, "delta": 1e-6}}, "positive"),
        ({"methods": "oneshot"}, "list of texts"),
        ({"min_cohort": 2.0}, "whole number"),
        ({"schemas": ["abc"]}, "no digest"),
        ({"size_is_public": 1}, "true or false"),
        ({"methods": ["aim"]}, "its method 'oneshot' is none of"),
        ({"min_cohort": 4}, "it is for 3 sites"),
        ({"trusts": {"trusted": {}}}, "its trust 'local' is none of"),
        ({"schemas": ["0" * 64]}, "its schema is none"),
        ({"per_run": {"epsilon": 0.4, "delta": 1e-6}}, "per_run allows"),
        ({"budget": {"epsilon": 0.4, "delta": 1e-6}, "per_run": None}, "budget allows"),
        ({"plans": {"0" * 64: "approved.toml"}}, "not the plan that was approved"),
        ({"plans": None}, "read off approved plans"),
    ],
)
def test_a_policy_that_is_wrong_or_contradicts_itself_is_an_error_that_says_where(tmp_path, changes, says):
    with pytest.raises(InvalidParameter, match=says):
        policy_from_toml(section(tmp_path, **changes), tmp_path)


def test_a_plan_under_other_numbers_than_the_sites_own_is_no_approval(tmp_path):
    looser = replace(PLAN, trust="secure", trust_numbers={"min_honest": 2})
    looser.save(tmp_path / "looser.toml")
    with pytest.raises(InvalidParameter, match=r"with \{'min_honest': 2\}, and this site accepts \{'min_honest': 3\}"):
        policy_from_toml(section(tmp_path, plans={looser.digest: "looser.toml"}), tmp_path)
    with pytest.raises(Unsupported, match="no trust named 'blind'"):
        policy_from_toml(section(tmp_path, trusts={"blind": {}}), tmp_path)


# ---------------------------------------------------------------------------------------------------------------------
# What is forecast is what happens

DATA = Path(__file__).parents[2].parent / "shared" / "data"
EXACT = getattr(methods, "NEEDS_EXACT", frozenset({"augflaim-oracle"}))
PRIVATE = [name for name in methods.METHODS if name not in EXACT]
SITES = 5


@cache
def real(name: str) -> tuple[Schema, Table]:
    if name == "world":
        return SCHEMA, random_table(600, 0)
    path = DATA / name
    if not path.exists():
        pytest.skip(f"no {name} beside this repository")
    frame = pd.read_csv(path, skipinitialspace=True) if path.suffix == ".csv" else pd.read_parquet(path)
    schema = draft_schema(frame).schema
    return schema, schema.encode(frame)


def compare(data: str, name: str, trust: str) -> tuple[Forecast, Notes]:
    """Forecast a run, let sites approve its plan, run it on real rows, and return both accounts."""
    schema, table = real(data)
    method, terms = methods.METHODS[name](), trust_named(trust, {})
    told = forecast(name, method, schema, BUDGET, trust=terms, sites=SITES, rows=len(table))
    plan = told.plan
    of = np.random.default_rng(5).integers(0, SITES, len(table))  # by chance, so not quite equal parts
    notes = Notes(len(table), ())

    def approving(members: Sequence[Site]) -> Counting:
        return Counting([replace(one, policy=replace(one.policy, plans={plan.digest: plan})) for one in members], notes)

    federation = federate(
        [table.take(of == k) for k in range(SITES)], schema, BUDGET, trust=terms, seed=11, transport=approving
    )
    method.fit(replace(federation, plan=plan.digest))
    notes.sites, notes.epsilon = federation.sites, federation.ledger.epsilon
    return told, notes


def hold(told: Forecast, notes: Notes) -> None:
    """Hold a run to its forecast: bytes within 5 %, exchanges and epsilon exactly, where a figure and no range is."""
    slack = 1.05
    assert told.exchanges.low <= notes.exchanges <= told.exchanges.high
    if told.epsilon.settled:
        assert notes.epsilon == pytest.approx(told.epsilon.typical, rel=1e-9)
    assert notes.epsilon <= told.epsilon.high * (1 + 1e-9)
    for one in notes.sites:
        messages = [sent for sent in notes.sent if sent.site == one]
        assert told.messages.low <= len(messages) <= told.messages.high
        down, up = sum(sent.down for sent in messages), sum(sent.up for sent in messages)
        for figure, range_ in ((down, told.down), (up, told.up)):
            if range_.settled:
                assert figure == pytest.approx(range_.typical, rel=0.05)
            assert range_.low / slack <= figure <= range_.high * slack


def test_a_plan_for_two_attempts_lets_every_sum_be_asked_twice_within_the_budget():
    limits = []
    for attempts in (1, 2):
        told = forecast(
            "flaim",
            methods.FLAIM(rounds=2),
            SCHEMA,
            BUDGET,
            trust=LocalNoise(),
            sites=3,
            rows=300,
            repeats=1,
            attempts=attempts,
        )
        limits.append({one.task: one for one in told.plan.asks})
    once, twice = limits
    assert twice["size"].times == 2 * once["size"].times
    assert twice["size"].rho_total == pytest.approx(2 * once["size"].rho_total)
    assert twice["marginals"].rho_total == BUDGET.rho
    assert twice["flaim_scores"] == once["flaim_scores"]


# Beside the slow ones, so that every change is held to a few: each method once, and each data set.
QUICK = {("world", name, "trusted" if name in methods.NEEDS_VAULT else "local") for name in PRIVATE} | {
    ("world", "oneshot", "secure"),
    ("adult.csv", "oneshot", "local"),
    ("adult.csv", "fedprivsyn", "local"),
    ("obesity.parquet", "oneshot", "trusted"),
    ("obesity.parquet", "fednaivebayes", "trusted"),
}
CASES = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
    for data, trust in (
        ("world", "local"),
        ("world", "trusted"),
        ("world", "secure"),
        ("adult.csv", "local"),
        ("obesity.parquet", "trusted"),
    )
    for name in PRIVATE
    if (case := (data, name, trust)) and (trust == "trusted" or name not in methods.NEEDS_VAULT)
]


@pytest.mark.parametrize(("data", "name", "trust"), CASES)
def test_a_real_run_is_what_was_forecast_and_keeps_to_its_approved_plan(data, name, trust):
    hold(*compare(data, name, trust))
