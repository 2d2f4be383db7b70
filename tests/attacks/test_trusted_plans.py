"""B7: what an approved plan bounds, and what it does not bound where the coordinator sees exact counts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import fields, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from tests.attacks.world import (
    AGE,
    DIAGNOSES,
    DIAGNOSIS,
    SCHEMA,
    SEX,
    ask,
    counts,
    frame,
    question,
    rows_of,
    site,
    values,
)
from tests.world import Faulty, agreed

from fedsynth.encoding import encode
from fedsynth.errors import InvalidParameter, Unsupported
from fedsynth.federation.agreement import Agreement, PlannedQuestion
from fedsynth.federation.policy import Policy
from fedsynth.federation.policy_file import policy_from_toml, trust_named
from fedsynth.federation.query import Counts, Extent, Query
from fedsynth.federation.simulate import federate
from fedsynth.federation.site import Site
from fedsynth.federation.trusted import TrustedServer
from fedsynth.federation.wire import Request
from fedsynth.methods import all_methods, find_method
from fedsynth.privacy.cost import Budget
from fedsynth.privacy.release import Gaussian
from fedsynth.rows import Table
from fedsynth.runs import dry_run
from fedsynth.schema import Categorical, Numeric, Schema
from fedsynth.schema.bins import Axis

BUDGET = Budget(1.0, 1e-6)
LIMITS = {"budget": {"epsilon": 1.0, "delta": 1e-6}, "trusts": {"trusted": {}}}


# ---------------------------------------------------------------------------------------------------------------------
# A yes by name


def test_b07_the_trust_trusted_needs_a_yes_by_name_in_the_policy():
    for refused in (LIMITS, {**LIMITS, "coordinator_sees_exact_counts": False}):
        with pytest.raises(InvalidParameter, match="coordinator_sees_exact_counts = true") as said:
            policy_from_toml(refused)
        assert "secure, local or three-servers" in str(said.value)
    with pytest.raises(InvalidParameter, match="exact counts, over any columns, to the coordinator"):
        Policy(BUDGET, {"trusted": TrustedServer()})
    with pytest.raises(InvalidParameter, match="expected true or false, not 'yes'"):
        policy_from_toml({**LIMITS, "coordinator_sees_exact_counts": "yes"})
    assert policy_from_toml({**LIMITS, "coordinator_sees_exact_counts": True}).coordinator_sees_exact_counts
    for other in ("local", "secure", "three-servers"):
        assert not policy_from_toml({**LIMITS, "trusts": {other: {}}}).coordinator_sees_exact_counts


# ---------------------------------------------------------------------------------------------------------------------
# Caps of plans


def planned(most: Extent, trust: str = "trusted", times: int = 1, price: float = 1e-6) -> Agreement:
    slot = PlannedQuestion("sum", "counts", "gaussian", price, times, *most)
    return agreed(method="oneshot", schema=SCHEMA.digest, trust=trust, budget=BUDGET, slots=(slot,))


def approving(plan: Agreement, rows: Table | None = None) -> Site:
    trust = trust_named(plan.trust, {})
    return site(rows, trust=trust, any_plan=False, plans={plan.digest: plan}, verbs=("sum",))


def asked(plan: Agreement, query: Counts, step: int = 0) -> Request:
    """Return a question under a plan."""
    return question(query, plan=plan, release=Gaussian(1e-6), step=step)


@pytest.mark.parametrize("trust", ["trusted", "local"])
@pytest.mark.parametrize(
    ("most", "query"),
    [
        (Extent(3, 3, 19), counts((SEX, DIAGNOSIS), (AGE,))),  # 10 + 10 cells
        (Extent(3, 1, 20), counts((SEX, DIAGNOSIS), (AGE,))),
        (Extent(2, 2, 20), counts((SEX, DIAGNOSIS), (AGE,))),
        (Extent(1, 1, 3), Counts((Axis(AGE, cuts=np.arange(100.0)),), ((0,),))),
        (Extent(1, 1, 100), Counts((Axis(SEX), Axis(SEX)), ((0, 1),))),  # two axes of one column
    ],
)
def test_b07_a_question_beyond_a_cap_is_refused_before_any_charge(most, query, trust):
    plan = planned(most, trust)
    of = approving(plan)
    reply = ask(of, asked(plan, query))
    assert reply.code == "refused"
    assert of.account.spent().rho == 0
    assert not list(of.account.charges())
    wide = planned(Extent(3, 3, 100), trust)
    assert ask(approving(wide), asked(wide, query)).code == "answered"


def test_b07_slots_for_counts_say_how_large_tables_may_be_and_agree_on_it():
    for given in ((), (3, 2), (0, 2, 9), (3, 2, 0), (3.0, 2, 9), (True, 2, 9)):
        with pytest.raises(InvalidParameter, match="columns, order and cells"):
            PlannedQuestion("sum", "counts", "gaussian", 1e-6, 1, *given)
    with pytest.raises(InvalidParameter, match="columns, order and cells"):
        PlannedQuestion("sum", "size", "gaussian", 1e-6, 1, 3, 2, 9)
    one = planned(Extent(3, 2, 20))
    other = structs.replace(one.slots[0], cells=21)
    with pytest.raises(InvalidParameter, match="differ in columns, order or cells"):
        structs.replace(one, slots=(*one.slots, other))
    assert Agreement.from_toml(one.to_toml()) == one
    assert structs.replace(one, slots=(other,)).digest != one.digest


# ---------------------------------------------------------------------------------------------------------------------
# What no plan bounds under the trust `trusted`


def test_b07_residual_under_trusted_a_cheap_table_over_all_columns_is_every_record():
    """What the yes in the policy means: one question at rho 1e-6, inside the plan, reads 40 of 40 records."""
    rows = encode(SCHEMA, frame(40))
    plan = planned(Extent(3, 3, 2**20))
    of = approving(plan, rows)
    cuts = np.arange(100.0)
    axes = (Axis(SEX), Axis(DIAGNOSIS), Axis(AGE, cuts=cuts))
    reply = ask(of, asked(plan, Counts(axes, ((0, 1, 2),))))
    read = values(reply).reshape(2, 5, -1)
    ages = frame(40)["age"].to_numpy(dtype=np.int64)  # a cell holds one age
    truth = np.zeros_like(read)
    sexes = [("f", "m").index(one) for one in frame(40)["sex"]]
    diagnoses = [DIAGNOSES.index(one) for one in frame(40)["diagnosis"]]
    np.add.at(truth, (np.array(sexes), np.array(diagnoses), ages), 1)
    assert (read == truth).all()
    assert int(read[read > 0].sum()) == 40


def test_b07_residual_small_tables_within_the_caps_are_exact_too():
    """Caps are no bound on reading: pairs at rho 1e-6 each come exactly, and together they rebuild rows."""
    plan = planned(Extent(3, 2, 120), times=3)
    of = approving(plan)
    table = rows_of(of)
    for step, pair in enumerate(itertools.combinations(range(3), 2)):
        query = counts(pair)
        assert (values(ask(of, asked(plan, query, step))) == query.answer(table)).all()


def test_b07_under_local_the_same_question_shows_noise():
    """The same plan under ``local``: the table's noise has a standard deviation of 700 records."""
    plan = planned(Extent(3, 3, 2**20), "local")
    of = approving(plan)
    query = counts((SEX, DIAGNOSIS, AGE))
    read = values(ask(of, asked(plan, query)))
    assert 500 < np.std(read - query.answer(rows_of(of))) < 900


# ---------------------------------------------------------------------------------------------------------------------
# No method is refused by its own plan


def schemas() -> Sequence[Schema]:
    """Return small schemas: one column to twelve, few values and many, constants, missing values, wide numbers."""
    few, many = Categorical("few", ("a", "b")), Categorical("many", tuple(f"v{k}" for k in range(90)))
    alone, gaps = Categorical("alone", ("only",)), Categorical("gaps", ("x", "y", "z"), missing=True)
    ordered = Categorical("ordered", tuple(range(7)), ordered=True)
    wide, flat = Numeric("wide", 0, 1e6, bins=8), Numeric("flat", 0, 1, bins=2)
    whole, holes = Numeric("whole", 0, 9, bins=10, decimals=0), Numeric("holes", -5, 5, bins=80, missing=True)
    groups: list[tuple[Categorical | Numeric, ...]] = [
        (few,),
        (wide,),
        (alone, few),
        (few, gaps),
        (wide, flat),
        (many, wide),
        (many, gaps, ordered),
        (few, whole, holes),
        (wide, flat, holes),
        (alone, many, wide, few),
        (gaps, ordered, whole, holes),
        (few, gaps, ordered, wide, flat),
    ]
    found = [Schema(tuple(columns)) for columns in groups]
    for number, (size, kinds) in enumerate([(6, 2), (8, 3), (12, 2), (5, 20), (7, 5), (10, 4), (4, 60), (9, 3)]):
        rng = np.random.default_rng(number)
        columns = [
            Numeric(f"c{at}", 0, 10.0 ** int(rng.integers(0, 5)), bins=int(rng.integers(1, 30)))
            if rng.random() < 0.4
            else Categorical(f"c{at}", tuple(f"v{k}" for k in range(int(rng.integers(1, kinds + 1)))))
            for at in range(size)
        ]
        found.append(Schema(tuple(columns)))
    return found


SCHEMAS = tuple(schemas())
METHODS = [one.name for one in all_methods() if one.private and (not one.trains or find_spec("torch"))]
QUICK = {"iterations": 10, "final_iterations": 10, "population": 12, "selection": 3, "interval": 2, "rounds": 3}


def variants(name: str, columns: int) -> Sequence[Any]:
    """Return a method with short fits: with its usual options, and with those that make its tables largest."""
    kind = find_method(name).kind
    options = {one.name for one in fields(kind)}
    quick = {option: number for option, number in QUICK.items() if option in options}
    if "steps" in options and name in {"fedctgan", "fedavggan", "fedvae", "fedtabdiff"}:
        quick |= {"steps": 2}
        quick.pop("rounds", None)
    found = [kind(**quick)]
    larger: dict[str, Any] = {}
    if "workload" in options:
        larger["workload"] = tuple(itertools.combinations(range(columns), min(3, columns)))[:6]
    if "degree" in options:
        larger["degree"] = 4
    if "cells" in options:
        larger["cells"] = 64
    if "bins_share" in options:
        larger["bins_share"] = 0.3
    return [*found, kind(**{**quick, **larger})] if larger else found


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("chosen", [range(4), pytest.param(range(4, 20), marks=pytest.mark.slow)], ids=["4", "16"])
def test_b07_no_method_asks_for_more_than_it_declares(name, chosen):
    """Twenty schemas with little and with much budget: what is asked lies within the limits of the method's own plan.

    A schema that a method does not support is refused by the server, before anything is asked about it.
    """
    ran = 0
    for number in chosen:
        schema = SCHEMAS[number]
        table = dry_run.TABLES[("steep", "tied", "even", "chain")[number % 4]](
            schema, 200, np.random.default_rng(number)
        )
        for method in variants(name, len(schema.stored)):
            most = find_method(name).limits(method, schema)
            budget = Budget((0.5, 1e6)[number % 2], 1e-6)
            parts = [table.take(part) for part in np.array_split(np.arange(len(table)), 2)]
            link = Faulty()
            federation = federate(parts, schema, budget, trust=TrustedServer(), seed=number, transport=link)
            link.doors = {door: replace(one, trains=False) for door, one in link.doors.items()}
            try:
                method.fit(federation)
            except (InvalidParameter, Unsupported):
                continue
            finally:
                asked = {message.request.query: None for message in link.sent}
                extents = [query.extent(schema) for query in asked if isinstance(query, Query)]
                assert all(
                    extent <= limit for seen in extents if seen for extent, limit in zip(seen, most, strict=True)
                )
            ran += 1
    assert ran >= len(chosen) // 2


def test_b07_declared_orders_are_those_of_the_papers_and_follow_the_options():
    """A plan that allowed more than a method needs would still be approved: what is declared stays small."""
    orders = {name: find_method(name).limits(find_method(name).kind(), SCHEMAS[-1]).order for name in METHODS}
    assert {name for name, order in orders.items() if order > 2} == {"auto", "fedchowliu", "fedmigration", "privbayes"}
    triples = find_method("aim").kind(workload=((0, 1, 2), (3,)))
    assert find_method("aim").limits(triples, SCHEMAS[-1]).order == 3
    assert find_method("oneshot").limits(find_method("oneshot").kind(), SCHEMAS[0]) == Extent(1, 1, 2)
