"""Declared questions in plans: what sites approve is all that they answer, and what a plan expects of answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from tests.answers.world import CONTENT, SCHEMA, rows
from tests.world import asked, last_reason

from fedsynth.answers.asking import LOOK
from fedsynth.answers.declared import compiled, look_query, read_declared
from fedsynth.answers.forecast import expected_answers, expected_text
from fedsynth.answers.questions import Scope
from fedsynth.answers.ranges import Range
from fedsynth.encoding import encode
from fedsynth.errors import InvalidParameter, Refused
from fedsynth.federation.agreement import Agreement
from fedsynth.federation.policy import Policy
from fedsynth.federation.simulate import federate
from fedsynth.federation.site import Site
from fedsynth.federation.transport import InProcess
from fedsynth.federation.trusted import TrustedServer
from fedsynth.federation.weighted import WeightedCounts
from fedsynth.federation.wire import Reply
from fedsynth.keys import Keys
from fedsynth.privacy.book import Book
from fedsynth.privacy.cost import Budget
from fedsynth.privacy.release import Gaussian
from fedsynth.runs.dry_run import job_forecast
from fedsynth.runs.job import Job
from fedsynth.runs.simulation import fitted

COORDINATOR = Keys(bytes(32))
BUDGET = Budget(1.0, 1e-6)
ASKED: dict[str, Any] = {
    "question": [
        {"kind": "share", "name": "share", "of": "readmitted=yes", "among": "ward=cardiology", "within": 0.5},
        {"kind": "mean", "name": "mean", "column": "nights"},
    ],
    "criterion": [{"kind": "cross", "name": "wards", "columns": ["ward"], "tolerance": 0.2}],
    "answer_share": 0.25,
}
JOB = Job("oneshot", 1.0, 1e-6, trust="trusted", sites=3, **ASKED)
PLAN = job_forecast(JOB, SCHEMA, rows=2000, repeats=1, headroom=2.0).plan


def question(extent_of: str = "asked") -> WeightedCounts:
    """Return the questions after the first look, or some that are larger in one way."""
    declared = replaced() if extent_of == "asked" else replaced(question=[{**CONTENT["question"][3]}])
    ranges = {at: Range.of(column.low, column.high) for at, column in declared.looked_at(SCHEMA).items()}
    return compiled(declared.all, Scope(SCHEMA, declared.cuts, ranges))


def replaced(**more: Any) -> Any:
    return read_declared({**ASKED, "cuts": CONTENT["cuts"], **more})


def site() -> Site:
    policy = Policy(BUDGET, {"trusted": TrustedServer()}, coordinator_sees_exact_counts=True, plans={PLAN.digest: PLAN})
    return Site("a", encode(SCHEMA, rows(500)), policy, Book(), bytes(32), COORDINATOR.public)


def ask(of: Site, query: WeightedCounts, rho: float, **changes: Any) -> Reply:
    fields = {"run": "run", "step": 0, "verb": "sum", "release": Gaussian(rho), "plan": PLAN, **changes}
    return asked(of, COORDINATOR, query, **fields)


LOOK_PRICE, PRICE = (share * 0.25 * BUDGET.rho for share in (LOOK, 1 - LOOK))


def test_a_plan_has_a_slot_for_the_look_and_one_for_the_questions():
    slots = [slot for slot in PLAN.slots if slot.kind == "weighted-counts"]
    assert sorted(slot.price for slot in slots) == pytest.approx([LOOK_PRICE, PRICE], rel=1e-6)
    assert all(slot.times == 1 for slot in slots)
    assert PLAN.answers
    assert PLAN.answers["question"][0]["name"] == "share"
    assert PLAN.answers["answer_share"] == 0.25
    assert (PLAN.method, "method" in PLAN.options) == ("oneshot", False)
    assert "pair_share" in PLAN.options
    assert Agreement.from_toml(PLAN.to_toml()).digest == PLAN.digest


def test_a_site_answers_what_was_planned_and_nothing_larger_dearer_or_more():
    door = site()
    look = look_query(replaced().looked_at(SCHEMA))
    assert ask(door, look, LOOK_PRICE * 0.999).code == "answered"
    assert ask(door, question(), PRICE * 0.999, step=1).code == "answered"
    assert ask(door, question(), PRICE * 0.5, step=2).code == "refused"  # there is no third
    assert "no free slot for 'sum weighted-counts gaussian'" in last_reason(door)
    assert door.account.spent().rho == pytest.approx(0.25 * BUDGET.rho, rel=2e-3)


@pytest.mark.parametrize(
    ("query", "rho", "says"),
    [
        (question(), PRICE * 1.01, "no free slot"),
        (question("larger"), PRICE * 0.9, "weighted-counts"),
    ],
)
def test_what_exceeds_its_slot_is_refused_and_costs_nothing(query, rho, says):
    door = site()
    assert ask(door, query, rho).code == "refused"
    assert says in last_reason(door)
    assert door.account.spent().rho == 0


def test_a_run_with_other_questions_is_another_agreement():
    terms = JOB.terms(SCHEMA)
    made = [Agreement.of(terms, 3, "oneshot", JOB.build_method(SCHEMA), answers=answers) for answers in (None, ASKED)]
    other = structs.replace(made[1], answers={**ASKED, "answer_share": 0.5})
    assert len({one.digest for one in (*made, other)}) == 3
    assert Agreement.of(terms, 3, "oneshot", JOB.build_method(SCHEMA), answers={}).digest == made[0].digest
    unasked = job_forecast(
        structs.replace(JOB, question=(), criterion=()), SCHEMA, rows=2000, repeats=1, headroom=2.0
    ).plan
    assert unasked.digest != PLAN.digest
    assert not unasked.answers
    assert not any(slot.kind == "weighted-counts" for slot in unasked.slots)
    door = site()
    assert ask(door, question(), PRICE * 0.9, plan=structs.replace(PLAN, answers={})).code == "refused"
    assert "not approved here" in last_reason(door)


@pytest.mark.parametrize("further", [0, 1])
def test_a_run_keeps_to_its_plan_and_one_that_asks_more_is_refused(further):
    """With real rows, which the dry runs did not see."""

    def approved(members: Any) -> InProcess:
        return InProcess(
            [replace(of, policy=replace(of.policy, plans={PLAN.digest: PLAN}, any_plan=False)) for of in members]
        )

    held = [encode(SCHEMA, rows(count, seed)) for seed, count in enumerate((900, 700, 400))]
    federation = federate(held, SCHEMA, BUDGET, trust="trusted", seed=0, transport=approved)
    federation = replace(federation, agreed=PLAN)
    job = (
        JOB
        if not further
        else structs.replace(JOB, question=(*JOB.question, dict(CONTENT["question"][3])), cuts=CONTENT["cuts"])
    )
    if further:
        with pytest.raises(Refused, match="step 1"):
            fitted(job, job.build_method(SCHEMA), federation)
        return
    synthesizer = fitted(job, job.build_method(SCHEMA), federation)
    assert federation.ledger.epsilon <= 1.0
    assert synthesizer.info["answers"]["declared"]["answer_share"] == 0.25


# ---------------------------------------------------------------------------------------------------------------------
# What to expect of answers


def test_what_to_expect_of_answers_needs_no_rows():
    expected = {of.question: of for of in expected_answers(JOB, SCHEMA, 20_000)}
    assert list(expected) == ["share", "mean", "wards"]
    assert sum(of.price for of in expected.values()) == pytest.approx(0.25 * (1 - LOOK))
    share, wards = expected["share"], expected["wards"]
    assert share.half_width is not None
    assert share.noise is not None
    assert 0 < share.noise <= share.half_width < 0.5
    assert wards.noise is not None
    assert wards.noise < 0.05
    text = expected_text(list(expected.values()), 0.25)
    assert text.startswith("Declared questions, for 25% of the budget")
    assert "  share: share of rows with readmitted=yes among rows with ward=cardiology; " in text


def test_the_noise_of_a_run_is_as_expected():
    expected = {of.question: of for of in expected_answers(JOB, SCHEMA, 6_000)}
    held = [encode(SCHEMA, rows(2000, seed)) for seed in range(3)]
    made = fitted(JOB, JOB.build_method(SCHEMA), federate(held, SCHEMA, BUDGET, trust="trusted", seed=0))
    noise = [of["noise"] for of in made.info["answers"]["answers"] if of["question"] == "wards"]
    assert max(noise) == pytest.approx(expected["wards"].noise, rel=0.3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"question": ({**ASKED["question"][0], "within": 0.001},)}, "wants a half-width of 0.001, and at least 0.0"),
        ({"criterion": ({**ASKED["criterion"][0], "tolerance": 0.001},)}, "could hardly be met; raise it to 0.0"),
    ],
)
def test_a_plan_refuses_questions_that_cannot_be_answered_as_they_ask(change, says):
    with pytest.raises(InvalidParameter, match=says):
        expected_answers(structs.replace(JOB, **change), SCHEMA, 20_000)


def test_a_job_without_questions_expects_no_answers():
    assert expected_answers(structs.replace(JOB, question=(), criterion=()), SCHEMA, 100) == []
