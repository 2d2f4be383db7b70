"""The default method: three sums under any trust, the whole budget, prices by purpose, and tables of all sizes."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.world import TRUSTS, Faulty, contingency, losing, warned_of_empty

from fedsynth.encoding import encode, problems
from fedsynth.errors import InvalidParameter, SchemaError
from fedsynth.federation.federation import Federation
from fedsynth.federation.query import Counts
from fedsynth.federation.simulate import federate
from fedsynth.federation.trusted import TrustedServer
from fedsynth.methods.auto import COARSE, FINE, Auto, Plan, room_for
from fedsynth.methods.domain import Domain
from fedsynth.methods.interactions import Interactions
from fedsynth.models.adaptive_bins import AdaptiveBins
from fedsynth.models.synthesizer import Synthesizer, load
from fedsynth.privacy.cost import Budget
from fedsynth.rows import Table, pairs_of
from fedsynth.schema import Categorical, Numeric, Rule, Schema

BUDGET = Budget(1.0, 1e-6)
COLUMNS = 7
SCHEMA = Schema(tuple(Categorical(f"c{k}", tuple(f"v{v}" for v in range(4 + k % 3))) for k in range(COLUMNS)))


def chained(count: int, seed: int = 0, schema: Schema = SCHEMA) -> Table:
    """Return rows in which each column mostly follows the one before."""
    rng = np.random.default_rng(seed)
    columns = [rng.integers(0, schema.sizes[0], count)]
    for size in schema.sizes[1:]:
        columns.append(np.where(rng.random(count) < 0.6, columns[-1] % size, rng.integers(0, size, count)))
    return Table(schema, tuple(column.astype(np.uint16) for column in columns))


def fitted(
    method: Auto,
    tables: Sequence[Table],
    trust: str = "trusted",
    budget: Budget = BUDGET,
    loses: int | None = None,
    seed: int = 0,
) -> tuple[Synthesizer, list[Any], Federation]:
    """Return what a method fits, the tables that it asked for, and the federation; the first site may be lost."""
    link = Faulty(losing(lambda m: loses is not None and link.exchanges > loses and m.site == "site-000"))
    federation = federate(tables, tables[0].schema, budget, trust=TRUSTS[trust], seed=seed, transport=link)
    synthesizer = method.fit(federation)
    asked = [message.request.query for message in link.sent if isinstance(message.request.query, Counts | Interactions)]
    return synthesizer, [query for query, _ in itertools.groupby(asked)], federation


@pytest.mark.parametrize("trust", TRUSTS)
def test_it_is_three_sums_that_spend_the_whole_budget(trust):
    federation = federate([chained(1200, k) for k in range(4)], SCHEMA, BUDGET, trust=TRUSTS[trust], seed=0)
    synthesizer = Auto().fit(federation)
    assert len(federation.ledger.entries) == 3
    assert federation.ledger.share_spent == pytest.approx(1.0)
    assert synthesizer.info["method"] == "auto"
    assert synthesizer.info["pilot"] == "tables"
    assert len(synthesizer.info["cliques"]) >= COLUMNS - 1
    assert problems(SCHEMA, synthesizer.sample(500, 0)) == []


@pytest.mark.parametrize("pure", [False, True])
def test_every_share_is_what_it_was_declared_to_be(pure):
    budget = Budget(1.0, 0.0) if pure else BUDGET
    federation = federate([chained(6000)], SCHEMA, budget, trust=TrustedServer(), seed=0)
    method = Auto(survey_share=0.2, pilot_share=0.3)
    method.fit(federation)
    spent = [entry.cost for entry in federation.ledger.entries]
    assert len(spent) == 3
    assert federation.ledger.share_spent == pytest.approx(1.0)


def test_dependence_is_found_under_a_trusted_server():
    table = chained(20_000)
    synthesizer = Auto().fit(federate([table], SCHEMA, BUDGET, trust=TrustedServer(), seed=0))
    drawn = synthesizer.sample_table(20_000, 0)
    for first in range(COLUMNS - 1):
        pair = (first, first + 1)
        error = np.abs(contingency(table, pair) - contingency(drawn, pair)).sum() / 20_000
        assert error < 0.06


def price_of(query: Counts | Interactions, tables: Sequence[bool]) -> float:
    """Return the part of a query's cost that some of its tables have."""
    if isinstance(query, Counts):  # under Laplace noise
        prices = np.array(query.weights, dtype=float)
    else:
        whole = [query.axes[at].column for at in query.whole]
        moved = [
            math.prod(1 - 1 / SCHEMA.sizes[query.axes[at].column] for at in table if at not in whole)
            for table in query.tables
        ]
        prices = np.array(query.weights, dtype=float) ** 2 * moved
    return float(prices[np.array(tables)].sum() / prices.sum())


@pytest.mark.parametrize("pure", [False, True])
@pytest.mark.parametrize(
    "method",
    [
        Auto(target=SCHEMA.names[6], purpose_share=0.7),
        Auto(workload=((1, 3), (0, 5)), purpose_share=0.5),
        Auto(workload=((0, 2, 4),), purpose_share=0.6),
        Auto(target=SCHEMA.names[0], workload=((2, 5),)),
    ],
    ids=["target", "pairs", "triple", "both"],
)
def test_what_matters_has_its_share_of_the_last_rounds_price(method, pure):
    budget = Budget(20.0, 0.0) if pure else BUDGET
    _, heard, _ = fitted(method, [chained(9000)], budget=budget)
    last = heard[-1]
    target = None if method.target is None else SCHEMA.index(method.target)
    named = [
        len(clique) > 1 and (target in clique or any(set(clique) <= set(one) for one in method.workload or ()))
        for clique in last.cliques
    ]
    assert any(named)
    share = price_of(last, named)
    assert share >= 0.93 * method.purpose_share or all(named)  # weights are integers


def test_a_purpose_that_has_more_than_its_share_is_left_alone():
    plain, more = (fitted(Auto(target=t, purpose_share=s), [chained(9000)])[1] for t, s in (("c2", 0.01), (None, 0.4)))
    assert plain[0].weights == more[0].weights


def test_pairs_of_the_target_are_measured_even_where_they_hang_together_little():
    rng = np.random.default_rng(0)
    columns = [rng.integers(0, size, 9000).astype(np.uint16) for size in SCHEMA.sizes]
    for other in (0, 1):
        columns[6] = np.where(rng.random(9000) < 0.3, columns[other] % SCHEMA.sizes[6], columns[6]).astype(np.uint16)
    table = Table(SCHEMA, tuple(columns))
    measured = [
        sum(
            6 in clique
            for seed in range(4)
            for clique in fitted(Auto(target=target), [table], seed=seed)[1][-1].cliques
        )
        for target in (None, "c6")
    ]
    assert measured[1] > measured[0]


def opposed(count: int, seed: int = 0, values: int = 2) -> Table:
    """Return two numbers that correlate positively for one half of a label's values and negatively for the others."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, values, count)
    first = rng.normal(0, 1, count)
    second = np.where(label % 2 == 0, 1, -1) * (0.9 * first + 0.3 * rng.normal(0, 1, count)) + 0.5 * label
    frame = pd.DataFrame({"one": first, "two": second, "label": [f"v{one}" for one in label]})
    numbers = [Numeric(name, float(frame[name].min()), float(frame[name].max())) for name in ("one", "two")]
    return encode(Schema((*numbers, Categorical("label", tuple(f"v{one}" for one in range(values))))), frame)


@pytest.mark.parametrize("target", ["label", None])
def test_numbers_may_depend_on_each_other_in_another_way_for_each_value_of_a_label(target):
    """Tables of pairs cannot tell: the correlation of all rows together is near zero.

    Without a target, noise in a pair that depends on nothing decides whether its label divides the numbers' table.
    """
    table = opposed(20_000)
    runs = [fitted(Auto(target=target), [table], seed=seed)[:2] for seed in range(4)]
    divided = [synthesizer for synthesizer, heard in runs if (0, 1, 2) in heard[-1].cliques]
    assert len(divided) >= (2 if target is None else 4)
    drawn = divided[0].sample(20_000, 0)
    for value, sign in (("v0", 1), ("v1", -1)):
        rows = drawn[drawn["label"] == value]
        assert sign * rows["one"].corr(rows["two"]) > 0.8


def test_zeros_that_occur_together_do_not_order_the_places_of_other_rows():
    rng = np.random.default_rng(0)
    some = rng.random(20_000) < 0.4
    frame = pd.DataFrame({name: np.where(some, rng.gamma(2.0, 50.0, len(some)), 0.0) for name in "xy"})
    schema = Schema((Numeric("x", 0.0, 1000.0), Numeric("y", 0.0, 1000.0)))
    synthesizer = Auto().fit(federate([encode(schema, frame)], schema, BUDGET, trust=TrustedServer(), seed=0))
    rows = synthesizer.sample(20_000, np.random.default_rng(0))
    assert ((rows["x"] > 0) == (rows["y"] > 0)).mean() > 0.98
    positive = rows[(rows["x"] > 0) & (rows["y"] > 0)]
    assert abs(positive["x"].corr(positive["y"])) < 0.1  # .84 is that of all rows


def test_tables_of_three_are_counted_for_columns_of_few_values_alone():
    for values, extra in ((4, (0, 1, 2)), (5, (0, 1))):
        _, heard, _ = fitted(Auto(target="label"), [opposed(20_000, values=values)])
        assert sorted(heard[-1].cliques) == sorted([(0,), (1,), (2,), (0, 2), (1, 2), extra])


def test_a_column_of_one_group_is_in_no_table_of_three():
    schema = opposed(10).schema
    cells = [AdaptiveBins.of(column) for column in schema.stored]
    pairs: list[tuple[int, ...]] = [(0, 1), (0, 2), (1, 2)]
    for size, expected in ((2, [(0, 1, 2)]), (1, [])):
        cells[1] = dataclasses.replace(cells[1], groups=np.arange(len(cells[1].groups)) % size)
        plan = Plan(Domain(schema, tuple(cells)), pairs, dict.fromkeys(pairs, 1.0))
        assert Auto()._triples(plan) == (2, expected)


def copied(rows: int, seed: int) -> Table:
    """Return rows with four copies of a column, nearly right, and two columns that depend on it and on each other."""
    rng = np.random.default_rng(seed)

    def noisy(column: np.ndarray, share: float) -> np.ndarray:
        return np.where(rng.random(rows) < share, column, rng.integers(0, 8, rows))

    kind = rng.integers(0, 8, rows)
    copies = [noisy(kind, 0.97) for _ in range(4)]
    first = noisy(kind, 0.6)
    second = np.where(rng.random(rows) < 0.5, noisy(first, 0.9), noisy(7 - kind, 0.9))
    columns = [kind, *copies, first, second]
    schema = Schema(tuple(Categorical(f"c{at}", tuple(f"v{v}" for v in range(8))) for at in range(len(columns))))
    return Table(schema, tuple(column.astype(np.uint16) for column in columns))


@pytest.mark.parametrize("seed", range(3))
def test_pairs_that_others_imply_leave_room_for_the_rest(seed):
    table = copied(20_000, seed)
    federation = federate([table], table.schema, BUDGET, trust=TrustedServer(), seed=seed)
    synthesizer = Auto(max_megabytes=0.012).fit(federation)
    found = encode(table.schema, synthesizer.sample(20_000, np.random.default_rng(0)))
    errors = [
        np.abs(contingency(found, pair) - contingency(table, pair)).sum() / 20_000 for pair in ((0, 5), (0, 6), (5, 6))
    ]
    assert max(errors) < 0.15


def test_a_model_may_be_larger_where_noise_is_small():
    assert [room_for(total, 10.0) for total in (0.0, 5e3, 2e4, 4e4, 1e6)] == [8, 8, 8, 16, 32]
    assert room_for(100.0, 0.0) == 32


def test_the_survey_gets_more_if_a_column_is_a_number():
    frame = pd.DataFrame({"a": ["x", "y"] * 100, "b": ["x", "x", "y", "y"] * 50, "n": range(200)})
    letters = [Categorical(name, ("x", "y")) for name in ("a", "b")]
    shares = []
    number = Numeric("n", 0, 1000, integer=True)
    for schema in (Schema(tuple(letters)), Schema((*letters, number))):
        table = encode(schema, frame[list(schema.names)])
        federation = federate([table], schema, BUDGET, trust=TrustedServer(), seed=0)
        Auto().fit(federation)
        shares.append(federation.ledger.entries[0].cost.rho / BUDGET.rho)
    assert shares == [pytest.approx(COARSE), pytest.approx(FINE)]


def test_columns_are_measured_alone_where_no_relation_would_stand_out(caplog):
    synthesizer, heard, federation = fitted(Auto(), [chained(60, k) for k in range(3)], "local")
    assert synthesizer.info == {"method": "auto", "cliques": [], "pilot": "none"}
    assert "no pilot" in caplog.text
    assert len(heard) == 2
    assert all(len(clique) == 1 for clique in heard[1].cliques)
    assert federation.ledger.share_spent == pytest.approx(1.0)
    assert len(synthesizer.sample(50, 0)) == 50


@pytest.mark.parametrize("method", [Auto(target=SCHEMA.names[2]), Auto(workload=((1, 3, 5),))])
def test_pairs_of_interest_are_measured_where_no_other_relation_would_stand_out(method):
    _, heard, _ = fitted(method, [chained(60, k) for k in range(3)], "local")
    pairs = {clique for clique in heard[1].cliques if len(clique) == 2}
    assert pairs
    assert all(2 in pair if method.target else {1, 3, 5}.issuperset(pair) for pair in pairs)


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("trust", TRUSTS)
def test_tables_of_one_and_two_columns(columns, trust):
    schema = Schema(SCHEMA.columns[:columns])
    federation = federate([chained(2000, k, schema) for k in range(3)], schema, BUDGET, trust=TRUSTS[trust], seed=0)
    synthesizer = Auto().fit(federation)
    assert federation.ledger.share_spent == pytest.approx(1.0)
    assert len(federation.ledger.entries) == (1 if columns == 1 else 3)
    drawn = synthesizer.sample_table(6000, 0)
    real = sum(contingency(chained(2000, k, schema), tuple(range(columns))) for k in range(3))
    assert np.abs(contingency(drawn, tuple(range(columns))) - real).sum() / 6000 < (0.1 if trust != "local" else 0.3)


@pytest.mark.parametrize("budget", [BUDGET, Budget.none()], ids=["private", "exact"])
def test_no_rows_at_all(budget):
    empty = chained(3).take(np.arange(0))
    for tables in ([empty], [empty, empty, empty]):
        with warned_of_empty(tables):
            federation = federate(tables, SCHEMA, budget, trust=TrustedServer(), seed=0)
        synthesizer = Auto().fit(federation)
        assert problems(SCHEMA, synthesizer.sample(20, 0)) == []


def test_exact_counts_give_exact_pairs():
    table = chained(3000)
    federation = federate([table], SCHEMA, Budget.none(), trust=TrustedServer(), seed=0)
    synthesizer = Auto(max_megabytes=200.0).fit(federation)
    tables = synthesizer.model.marginals([(0, 1), (1, 2)])  # type: ignore[attr-defined]
    for pair, found in tables.items():
        assert np.abs(found - contingency(table, pair)).sum() / 3000 < 0.03


@pytest.mark.parametrize(("trust", "turns"), [("trusted", 1), ("local", 1), ("secure", 5)])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_site_that_is_lost_midway_does_not_stop_the_run(trust, turns, after):
    tables = [chained(1500, k) for k in range(10)]
    synthesizer, _, federation = fitted(Auto(), tables, trust, loses=after * turns)
    assert federation.lost.count("site-000") >= 1
    assert synthesizer.model.total == pytest.approx(13_500 if after == 0 else 15_000, rel=0.1)
    drawn = synthesizer.sample_table(5000, 0)
    exact = np.sum([contingency(table, (0, 1)) for table in tables], axis=0)
    error = np.abs(contingency(drawn, (0, 1)) / 5000 - exact / exact.sum()).sum()
    assert error < (0.15 if trust != "local" else 0.6)


def test_many_columns_of_a_thousand_values_are_not_refused():
    schema = Schema(tuple(Categorical(f"c{k}", tuple(f"v{v}" for v in range(1000))) for k in range(14)))
    rng = np.random.default_rng(0)
    first = np.minimum(rng.geometric(0.05, 5000) - 1, 999)
    columns = [np.where(rng.random(5000) < 0.5, first, rng.integers(0, 1000, 5000)) for _ in range(14)]
    table = Table(schema, tuple(column.astype(np.uint16) for column in columns))
    synthesizer, heard, _ = fitted(Auto(), [table])
    assert all(query.cells(schema) <= 2**22 for query in heard)
    assert problems(schema, synthesizer.sample(200, 0)) == []


@pytest.mark.slow
def test_a_hundred_columns():
    kinds = [
        Numeric(f"x{k}", 0.0, 1e6) if k % 2 else Categorical(f"x{k}", tuple(f"v{v}" for v in range(6)))
        for k in range(100)
    ]
    schema = Schema(tuple(kinds))
    rng = np.random.default_rng(0)
    latent = rng.normal(size=(3000, 10))
    frame = pd.DataFrame(
        {
            f"x{k}": np.exp(latent[:, k % 10] + rng.normal(size=3000))
            if k % 2
            else [f"v{v}" for v in np.clip(np.rint(latent[:, k % 10] + 2.5), 0, 5).astype(int)]
            for k in range(100)
        }
    )
    synthesizer, heard, _ = fitted(Auto(), [encode(schema, frame)])
    assert all(query.cells(schema) <= 2**22 for query in heard)
    assert problems(schema, synthesizer.sample(200, 0)) == []
    assert len(synthesizer.info["cliques"]) >= 60


def test_a_fit_survives_a_trip_to_disk_and_repeats_itself(tmp_path):
    schema = Schema((*SCHEMA.columns[:3], Numeric("x", 0.0, 1e5), Numeric("y", -50, 50, integer=True, missing=True)))
    rng = np.random.default_rng(0)
    x = np.exp(rng.normal(4, 1, 3000))
    codes = chained(3000)
    frame = pd.DataFrame({f"c{k}": [f"v{v}" for v in codes.codes[k]] for k in range(3)})
    frame["x"], frame["y"] = x, np.clip(np.round(np.log(x) * 5 - 20), -50, 50)
    held = [encode(schema, frame)]
    one, two = (Auto(target="x").fit(federate(held, schema, BUDGET, trust=TrustedServer(), seed=4)) for _ in range(2))
    pd.testing.assert_frame_equal(one.sample(300, 1), two.sample(300, 1))
    one.save(tmp_path / "model.fsyn")
    pd.testing.assert_frame_equal(load(tmp_path / "model.fsyn").sample(300, 1), one.sample(300, 1))
    assert float(one.sample(3000, 2)[["x", "y"]].corr(method="spearman").to_numpy()[0, 1]) > 0.7


def test_options_that_cannot_be_are_refused():
    with pytest.raises(InvalidParameter, match="leave nothing for the last round"):
        Auto(survey_share=0.6, pilot_share=0.4)
    with pytest.raises(InvalidParameter, match="purpose_share"):
        Auto(purpose_share=1.0)
    with pytest.raises(InvalidParameter, match="max_megabytes"):
        Auto(max_megabytes=0)
    with pytest.raises(SchemaError, match="no column 'c7'"):
        Auto(target=f"c{COLUMNS}").fit(federate([chained(10)], SCHEMA, BUDGET, trust=TrustedServer(), seed=0))


def twins(rows: int, columns: int, seed: int = 0) -> Table:
    """Return independent columns of five values, of which every fourth is followed by a function of it."""
    schema = Schema(tuple(Categorical(f"c{k}", tuple("abcde")) for k in range(columns)))
    rng = np.random.default_rng(seed)
    drawn = [rng.choice(5, rows, p=[0.35, 0.25, 0.2, 0.12, 0.08]) for _ in range(columns)]
    for at in range(0, columns - 1, 4):
        drawn[at + 1] = (drawn[at] * 2 + 1) % 5
    return Table(schema, tuple(column.astype(np.uint8) for column in drawn))


def test_relations_of_many_columns_are_found_by_contrasts():
    table = twins(6000, 40)
    synthesizer, heard, federation = fitted(Auto(), [table])
    assert synthesizer.info["pilot"] == "contrasts"
    assert [query.kind for query in heard] == ["counts", "interactions", "interactions"]
    assert 40 * 39 // 2 <= heard[1].cells(table.schema) <= 3 * 40 * 39 // 2
    assert federation.ledger.share_spent == pytest.approx(1.0)
    related = [(at, at + 1) for at in range(0, 39, 4)]
    assert set(related) <= {tuple(clique) for clique in synthesizer.info["cliques"]}
    drawn = synthesizer.sample_table(6000, 0)
    for pair in related:
        assert np.abs(contingency(table, pair) - contingency(drawn, pair)).sum() / 6000 < 0.3


def prices_of(query: Interactions) -> dict[tuple[int, int], float]:
    """Return the cost of the contrasts of each pair of columns."""
    found: dict[tuple[int, int], float] = {}
    for block in query.contrasts:
        for pair in pairs_of((block.first, block.second)).tolist():
            one, two = sorted(query.axes[at].column for at in pair)
            found[one, two] = found.get((one, two), 0.0) + block.weight**2
    return found


def test_contrasts_are_those_of_all_pairs_and_none_is_asked_twice():
    table = twins(6000, 40)
    _, heard, _ = fitted(Auto(), [table])
    query = heard[1]
    assert isinstance(query, Interactions)
    assert set(prices_of(query)) == set(itertools.combinations(range(40), 2))
    every = np.concatenate([pairs_of((block.first, block.second)) for block in query.contrasts])
    assert len(np.unique(np.sort(every, axis=1), axis=0)) == len(every)


@pytest.mark.parametrize(
    ("method", "named"),
    [
        (Auto(target="c5"), {tuple(sorted((5, at))) for at in range(40) if at != 5}),
        (Auto(workload=((1, 3, 5), (3, 5, 8))), {(1, 3), (1, 5), (3, 5), (3, 8), (5, 8)}),
    ],
    ids=["target", "workload"],
)
def test_pairs_of_interest_get_a_quarter_of_the_contrasts(method, named):
    _, heard, _ = fitted(method, [twins(6000, 40)])
    query = heard[1]
    assert isinstance(query, Interactions)
    prices = prices_of(query)
    assert sum(prices[pair] for pair in named) / sum(prices.values()) == pytest.approx(0.25, abs=0.03)  # whole weights


def test_pairs_of_a_rule_are_measured_whatever_contrasts_show():
    table = twins(6000, 40)
    schema = dataclasses.replace(table.schema, rules=(Rule({"c2": ["a"], "c3": ["b"]}),))
    kept = ~((table.codes[2] == 0) & (table.codes[3] == 1))
    ruled = Table(schema, tuple(column[kept] for column in table.codes))
    synthesizer, heard, _ = fitted(Auto(), [ruled])
    assert synthesizer.info["pilot"] == "contrasts"
    assert (2, 3) in heard[2].cliques


def births(rows: int, seed: int) -> Table:
    """Return rows in which sex and weeks of gestation are independent, and weight depends on both."""
    rng = np.random.default_rng(seed)
    early = rng.random(rows) < 0.07
    weeks = np.where(early, 37 - rng.gamma(1.5, 2.2, rows), 39.4 + 1.2 * rng.standard_normal(rows))
    weeks = np.sort(np.clip(weeks, 27, 43).round().astype(int))
    girl = (np.arange(rows) * 0.618 + rng.random()) % 1 > 0.514  # of each week the same share
    weight = 3400 + np.where(weeks < 39.5, 150, 60) * (weeks - 39.5) + np.where(girl, -70, 70)
    class_of_weight = np.digitize(weight + 380 * rng.standard_normal(rows), np.arange(1500, 4501, 500))
    age = np.clip(rng.normal(31, 5.6, rows), 15, 50)
    parity = np.minimum(rng.poisson(np.clip((age - 19) / 9, 0.05, None)), 3)
    columns = {
        "month": (rng.integers(0, 12, rows), 12),
        "sex": (girl, 2),
        "gestation": (weeks - 27, 17),
        "weight": (class_of_weight, 8),
        "age": (np.digitize(age, [20, 25, 30, 35, 40]), 6),
        "parity": (parity, 4),
    }
    schema = Schema(tuple(Categorical(name, tuple(range(size))) for name, (_, size) in columns.items()))
    return Table(schema, tuple(codes.astype(np.uint8) for codes, _ in columns.values()))


@pytest.mark.parametrize("seed", range(3))
def test_two_independent_causes_of_a_third_column_stay_independent(seed):
    """Of a model of weight and either cause alone, the causes come out dependent: at fault by .5 % of all rows."""
    table = births(165_915, 1)
    synthesizer, _, _ = fitted(Auto(), [table], "secure", Budget(1.0, 1e-9), seed=seed)
    drawn = synthesizer.sample_table(len(table), seed)
    for clique in (*itertools.combinations(range(6), 1), *itertools.combinations(range(6), 2)):
        assert np.abs(contingency(table, clique) - contingency(drawn, clique)).max() / len(table) < 0.0016
