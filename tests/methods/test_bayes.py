"""FedChowLiu, the thesis's search and PrivBayes: exact where nothing is noisy, and paid for where something is."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.public_data import public_data
from tests.world import Faulty, contingency, warned_of_empty

from fedsynth.bench.grid import training_and_test
from fedsynth.bench.published.migration import FedMigrationPaper
from fedsynth.bench.spec import read_spec
from fedsynth.encoding import decode, encode, problems
from fedsynth.errors import InvalidParameter, Refused, Unsupported
from fedsynth.evaluation.detection import propensity_mse
from fedsynth.federation.local import LocalNoise
from fedsynth.federation.simulate import federate
from fedsynth.federation.trust import Trust
from fedsynth.federation.trusted import TrustedServer
from fedsynth.methods import find_method
from fedsynth.methods.bayes import FedChowLiu
from fedsynth.methods.domain import Domain
from fedsynth.methods.migration import FedMigration
from fedsynth.methods.privbayes import PrivBayes, _deposited
from fedsynth.methods.survey import survey
from fedsynth.models.adaptive_bins import PARTS, AdaptiveBins
from fedsynth.models.bayes_net import BayesianNetwork
from fedsynth.models.synthesizer import Synthesizer, load
from fedsynth.privacy.cost import Budget
from fedsynth.privacy.release import Exact, Laplace
from fedsynth.rows import Table, concatenate
from fedsynth.schema import Boolean, Categorical, Datetime, Numeric, Schema
from fedsynth.schema.bins import Floats

TRUSTS: dict[str, Trust] = {"trusted": TrustedServer(), "local": LocalNoise()}
BUDGET = Budget(1.0, 1e-6)
NONE = Budget.none()
SCHEMA = Schema(
    (
        Categorical("job", tuple(f"j{k}" for k in range(70)), missing=True),
        Numeric("gain", 0, 99_999, integer=True),
        Numeric("price", 0.0, 50.0, decimals=2, missing=True),
        Datetime("since", "2020-01-01", "2024-01-01", unit="D", missing=True),
        Boolean("label"),
    )
)


def rows(count: int, seed: int) -> Table:
    """Return rows in which gains are rare, prices pile up at 9.99, and everything follows the label."""
    rng = np.random.default_rng(seed)
    label = rng.random(count) < 0.3
    gain = np.where(rng.random(count) < np.where(label, 0.4, 0.02), rng.integers(1, 100, count) * 1000, 0)
    price = np.where(rng.random(count) < 0.5, 9.99, np.round(rng.gamma(2.0, 4.0 + 4.0 * label), 2).clip(0, 50))
    days = rng.integers(0, 1460, count)
    frame = pd.DataFrame(
        {
            "job": [None if rng.random() < 0.1 else f"j{k}" for k in rng.geometric(0.1 + 0.1 * label).clip(1, 70) - 1],
            "gain": gain,
            "price": np.where(rng.random(count) < 0.1, np.nan, price),
            "since": pd.Series(pd.Timestamp("2020-01-01") + pd.to_timedelta(days, unit="D")).where(days > 100),
            "label": label,
        }
    )
    return encode(SCHEMA, frame)


def splits(table: Table) -> dict[str, list[Table]]:
    label = table.codes[-1]
    third = np.array_split(np.arange(len(table)), 3)
    return {
        "one site": [table],
        "thirds": [table.take(part) for part in third],
        "an empty site": [table.take(third[0]), table.take(np.arange(0)), table.take(np.concatenate(third[1:]))],
        "a site of one class": [table.take(label == 0), table.take(label == 1)],
        "a site of one row": [table.take(np.arange(1)), table.take(np.arange(1, len(table)))],
    }


def network_of(fitted: Synthesizer) -> BayesianNetwork:
    assert isinstance(fitted.model, BayesianNetwork)
    return fitted.model


def columns_of(fitted: Synthesizer) -> list[AdaptiveBins]:
    return [axis for axis in fitted.axes if isinstance(axis, AdaptiveBins)]


def same(one: Synthesizer, two: Synthesizer) -> bool:
    """Whether two fits are equal to the last bit."""
    networks = network_of(one), network_of(two)
    alike = networks[0].structure == networks[1].structure and networks[0].total == networks[1].total
    tables = zip(networks[0].conditionals, networks[1].conditionals, strict=True)
    cells = zip(columns_of(one), columns_of(two), strict=True)
    alike = alike and all(np.array_equal(a, b) for a, b in tables)
    return alike and all(np.array_equal(a.counts, b.counts) and np.array_equal(a.groups, b.groups) for a, b in cells)


# ---------------------------------------------------------------------------------------------------------------------
# What a site computes


def places(cells: AdaptiveBins, at: int, table: Table) -> np.ndarray:
    """Return the group of each row in column ``at``."""
    return cells.axis(at).places(table.codes[at], table.numbers.get(at))


def some_columns(seed: int) -> list[AdaptiveBins]:
    """Cells as a survey of some rows leaves them."""
    table = rows(2000, seed)
    cells = []
    for at, column in enumerate(SCHEMA.stored):
        one = AdaptiveBins.of(column)
        for _ in range(2):
            counts = np.bincount(places(one, at, table), minlength=one.size)
            one = one.updated(counts.astype(float), 0.0, len(table))
            if one.grid is not None:
                one = one.cut(one.grid.finer(10**6, PARTS), 30.0)
        cells.append(one.updated(np.ones(one.size), 1.0, len(table)).grouped(10.0, 9))
    return cells


@pytest.mark.parametrize("cliques", [[(0,)], [(0, 1), (2, 3)], [(1, 2, 3), (4,), (0, 4)], [(0, 1, 2, 3, 4)]])
def test_one_record_moves_the_answer_as_far_as_declared_and_no_further(cliques):
    query = Domain(SCHEMA, tuple(some_columns(0))).counts(cliques)
    query.check(SCHEMA)
    declared = query.sensitivity(SCHEMA)
    table = rows(50, 1)
    for row in range(len(table)):
        moved = query.answer(table.take(np.array([row])))
        assert np.abs(moved).sum() == declared.l1 == len(cliques)
        assert np.sqrt((moved**2).sum()) == pytest.approx(declared.l2)
    assert query.cells(SCHEMA) == query.answer(table.take(np.arange(0))).size


def test_counts_add_up_over_sites_and_are_those_of_the_groups():
    columns = some_columns(0)
    query = Domain(SCHEMA, tuple(columns)).counts([(1, 4), (0, 2, 3)])
    table = rows(1000, 2)
    whole = query.answer(table)
    for parts in splits(table).values():
        assert (whole == sum(query.answer(part) for part in parts)).all()
    expected = np.zeros((columns[1].size, columns[4].size), dtype=int)
    np.add.at(expected, (places(columns[1], 1, table), places(columns[4], 4, table)), 1)
    found: list[Floats] = query.split(SCHEMA, whole)
    assert (found[0] == expected).all()


def test_rows_without_numbers_are_refused():
    bare = Table(SCHEMA, rows(5, 0).codes)
    with pytest.raises(Unsupported, match="encode them"):
        Domain(SCHEMA, tuple(some_columns(0))).counts([(1,)]).answer(bare)


# ---------------------------------------------------------------------------------------------------------------------
# Without noise


@pytest.mark.parametrize("method", [FedChowLiu(degree=4, cells=20), FedChowLiu(degree=1, cells=8)])
@pytest.mark.parametrize("how", splits(rows(3, 0)))
def test_without_noise_sites_together_equal_the_pooled_rows_exactly(method, how):
    table = rows(1500, 0)
    pooled = method.fit(federate([table], SCHEMA, NONE, trust=TrustedServer(), seed=0))
    with warned_of_empty(splits(table)[how]):
        split = method.fit(federate(splits(table)[how], SCHEMA, NONE, trust=TrustedServer(), seed=0))
    assert same(pooled, split)


def test_without_noise_the_tables_of_the_structure_are_the_pooled_ones():
    table = rows(4000, 0)
    fitted = FedChowLiu(degree=2, cells=20).fit(
        federate(splits(table)["thirds"], SCHEMA, NONE, trust=TrustedServer(), seed=0)
    )
    codes = [places(one, at, table) for at, one in enumerate(columns_of(fitted))]
    for column, parents in enumerate(network_of(fitted).structure.parents):
        counts = np.zeros([columns_of(fitted)[j].size for j in (*parents, column)])
        np.add.at(counts, tuple(codes[j] for j in (*parents, column)), 1)
        mass = counts.sum(axis=-1, keepdims=True)
        expected = counts / np.where(mass > 0, mass, 1)
        found = np.where(mass > 0, network_of(fitted).conditionals[column], 0)
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_numbers_and_categories_come_out_as_they_went_in():
    table = rows(20_000, 0)
    federation = federate([table], SCHEMA, NONE, trust=TrustedServer(), seed=0)
    synthetic = FedChowLiu(degree=4, cells=20).fit(federation).sample_table(20_000, 1)
    for column in range(5):
        one, two = (t.numbers[column] if column in t.numbers else t.codes[column] for t in (table, synthetic))
        values, where = np.unique(np.concatenate([one, two]), return_inverse=True)
        shares = [np.bincount(part, minlength=len(values)) / 20_000 for part in np.split(where, 2)]
        common = shares[0] > 0.005  # values, missing among them, that no bin may smear out
        np.testing.assert_allclose(shares[1][common], shares[0][common], atol=0.012)
    assert propensity_mse(table, synthetic, 0) < 0.02


def test_a_tree_can_hardly_tell_rows_of_adult_from_real_ones():
    spec = read_spec((Path(__file__).parents[2] / "benchmarks" / "papers" / "fedbn_thesis.toml").read_text())
    train, _ = training_and_test(spec, "adult", public_data("adult.csv").parent)
    federation = federate([train], train.schema, NONE, trust=TrustedServer(), seed=0)
    synthetic = FedChowLiu(degree=4, cells=20).fit(federation).sample_table(len(train), 0)
    assert propensity_mse(train, synthetic, 0) < 0.05  # 0.249 as published
    private = federate([train], train.schema, Budget(1.6, 1e-6), trust=TrustedServer(), seed=0)
    assert propensity_mse(train, FedChowLiu().fit(private).sample_table(len(train), 0), 0) < 0.1


# ---------------------------------------------------------------------------------------------------------------------
# With noise


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("budget", [BUDGET, Budget(2.0, 0)])
@pytest.mark.parametrize(
    "method",
    [
        FedChowLiu(),
        FedChowLiu(degree=1, survey_share=0.4, pair_share=0.6),
        FedMigration(rounds=2, interval=2, population=10, selection=2),
        FedMigration(rounds=2, interval=2, population=10, selection=2, own_rows=True),
    ],
)
def test_every_site_spends_the_budget_and_no_more(method, budget, trust):
    link = Faulty()
    parts = splits(rows(1500, 0))["thirds"]
    federation = federate(parts, SCHEMA, budget, trust=TRUSTS[trust], seed=0, transport=link)
    method.fit(federation)
    for spent in (federation.ledger.spent, *(site.account.spent() for site in link.doors.values())):
        assert budget.share_of(spent) == pytest.approx(1, rel=1e-9)
        assert budget.covers(spent)
    assert {entry.kind for entry in federation.ledger.entries} == {"counts"}
    assert federation.ledger.exact_releases == 0


def test_a_tree_whose_pairs_are_its_parameters_asks_for_nothing_else():
    federation = federate([rows(1500, 0)], SCHEMA, BUDGET, trust=TrustedServer(), seed=0)
    fitted = FedChowLiu(degree=1, survey_share=0.25, pair_share=0.75).fit(federation)
    pairs = network_of(fitted).structure
    cells = sum(columns_of(fitted)[a].size * columns_of(fitted)[b].size for a, b in itertools.combinations(range(5), 2))
    assert federation.ledger.entries[-1].cells == cells
    assert all(len(own) <= 1 for own in pairs.parents)


def test_a_budget_without_delta_is_spent_on_laplace_noise():
    federation = federate([rows(1500, 0)], SCHEMA, Budget(2.0, 0), trust=TrustedServer(), seed=0)
    FedChowLiu().fit(federation)
    entries = federation.ledger.entries
    assert all(isinstance(entry.release, Laplace) for entry in entries)
    assert math.fsum(entry.cost.epsilon for entry in entries) == pytest.approx(2.0)


def test_the_same_seed_gives_the_same_rows_and_another_does_not():
    table = rows(1500, 0)
    pooled, spread, another = (
        federate(parts, SCHEMA, BUDGET, trust=TrustedServer(), seed=seed)
        for parts, seed in (([table], 0), (splits(table)["thirds"], 0), ([table], 1))
    )
    spread = replace(spread, agreed=pooled.agreement)  # on which noise depends
    one, two, other = (FedChowLiu().fit(federation) for federation in (pooled, spread, another))
    assert same(one, two)
    assert not same(one, other)
    pd.testing.assert_frame_equal(one.sample(200, 3), two.sample(200, 3))


def test_a_small_budget_keeps_tables_small_and_a_large_one_finds_the_dependence():
    parts = splits(rows(6000, 0))["thirds"]
    shown, largest = [], []
    for epsilon in (0.1, 1.0, 50.0):
        federation = federate(parts, SCHEMA, Budget(epsilon, 1e-6), trust=TrustedServer(), seed=0)
        fitted = FedChowLiu().fit(federation)
        largest.append(max(table.size for table in network_of(fitted).conditionals))
        synthetic = fitted.sample_table(6000, 0)
        gains = [np.mean(synthetic.numbers[1][synthetic.codes[4] == label] > 0) for label in (0, 1)]
        shown.append(gains[1] - gains[0])
    assert largest[0] < largest[1] < largest[2]
    assert shown[2] == pytest.approx(0.38, abs=0.05)
    assert shown[1] == pytest.approx(0.38, abs=0.15)


def test_a_survey_cuts_only_what_stands_out_of_the_noise():
    federation = federate([rows(4000, 0)], SCHEMA, Budget(1.0, 1e-6), trust=TrustedServer(), seed=0)
    columns, total, sites = survey(federation, 0.5)
    assert federation.ledger.share_spent == pytest.approx(0.5)
    assert len(federation.ledger.entries) == 1
    assert sites == federation.sites
    assert total == pytest.approx(4000, rel=0.05)
    public = [AdaptiveBins.of(column) for column in SCHEMA.stored]
    assert len(columns[2].groups) > len(public[2].groups)  # prices pile up at 9.99
    first, found = (one[1].grid for one in (public, columns))
    assert first is not None
    assert found is not None
    assert np.isin(first.upper, found.upper).all()
    gains = np.bincount(np.searchsorted(first.upper, found.upper), weights=columns[1].counts)
    assert gains.argmax() == 0  # most are zero, a cell of its own
    assert len(columns[0].groups) == 71
    clear = federate([rows(4000, 0)], SCHEMA, Budget(100.0, 1e-6), trust=TrustedServer(), seed=0)
    assert len(survey(clear, 0.5).columns[1].groups) > len(columns[1].groups)
    tiny = federate([rows(30, 0)], SCHEMA, Budget(1.0, 1e-6), trust=TrustedServer(), seed=0)
    assert [len(one.groups) for one in survey(tiny, 1.0).columns] == [len(one.groups) for one in public]


def test_rows_fit_the_schema_and_survive_a_trip_to_disk(tmp_path):
    federation = federate(splits(rows(1500, 0))["thirds"], SCHEMA, BUDGET, trust=TrustedServer(), seed=0)
    for method in (FedChowLiu(), FedMigration(rounds=1, interval=1, population=6, selection=2)):
        fitted = method.fit(federate(splits(rows(1500, 0))["thirds"], SCHEMA, BUDGET, trust=TrustedServer(), seed=0))
        frame = fitted.sample(3000, 1)
        assert problems(SCHEMA, frame) == []
        assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == {
            name: str(dtype) for name, dtype in decode(SCHEMA, rows(9, 0), np.random.default_rng(0)).dtypes.items()
        }
        table = fitted.sample_table(3000, 1)
        again = encode(SCHEMA, frame)
        assert all((a == b).all() for a, b in zip(table.codes, again.codes, strict=True))
        fitted.save(tmp_path / "m.fedsynth")
        loaded = load(tmp_path / "m.fedsynth")
        pd.testing.assert_frame_equal(loaded.sample(500, 3), fitted.sample(500, 3))
        assert loaded.info == fitted.info
        assert len(loaded.sample(seed=0)) == len(fitted.sample(seed=0))
    assert federation.ledger.spent.rho == 0


@pytest.mark.parametrize("method", [FedChowLiu(), FedMigration(rounds=1, interval=1), PrivBayes()])
def test_one_column_has_no_parents(method):
    schema = Schema((Categorical("a", ("x", "y", "z")),))
    table = encode(schema, pd.DataFrame({"a": ["x", "x", "y", "z"] * 100}))
    federation = federate([table], schema, BUDGET, trust=TrustedServer(), seed=0)
    shares = contingency(method.fit(federation).sample_table(4000, 0), (0,)) / 4000
    np.testing.assert_allclose(shares, [0.5, 0.25, 0.25], atol=0.08)
    assert federation.ledger.spent.rho == pytest.approx(BUDGET.rho)


@pytest.mark.parametrize(("survey_share", "pair_share"), [(0.7, 0.3), (0.9, 0.1), (0.25, 0.75)])
def test_shares_that_add_up_to_one_but_for_rounding_leave_no_third_round(survey_share, pair_share):
    """In floating point 0.7 and 0.3 leave 6e-17 of the budget, and 0.9 and 0.1 minus 3e-17."""
    federation = federate([rows(400, 0)], SCHEMA, BUDGET, trust=TrustedServer(), seed=0)
    FedChowLiu(degree=1, survey_share=survey_share, pair_share=pair_share).fit(federation)
    assert [entry.cost.rho for entry in federation.ledger.entries] == pytest.approx(
        [survey_share * BUDGET.rho, pair_share * BUDGET.rho]
    )


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (FedChowLiu, {"survey_share": 0.5, "pair_share": 0.6}),
        (FedChowLiu, {"survey_share": 0.7, "pair_share": 0.3}),
        (FedChowLiu, {"survey_share": 0.9, "pair_share": 0.1}),
        (FedChowLiu, {"survey_share": 0.5, "pair_share": 0.5}),
        (FedChowLiu, {"degree": 0}),
        (FedChowLiu, {"cells": 0}),
        (FedChowLiu, {"max_cells": 0}),
        (FedMigration, {"selection": 100}),
        (FedMigration, {"survey_share": 0.5, "pair_share": 0.5}),
        (FedMigrationPaper, {"rounds": 0, "not_private": True}),
        (PrivBayes, {"degree": 0}),
        (PrivBayes, {"one_share": 1.0}),
    ],
)
def test_options_that_cannot_be_are_refused(kind, options):
    with pytest.raises(InvalidParameter):
        kind(**options)


# ---------------------------------------------------------------------------------------------------------------------
# The thesis's search


def test_the_published_search_is_not_private_and_needs_a_policy_that_says_so():
    method = FedMigrationPaper(rounds=1, interval=2, population=9, selection=2, not_private=True)
    assert not find_method("fedmigrationpaper").private
    parts = splits(rows(600, 0))["thirds"]
    with pytest.raises(Refused):
        method.fit(federate(parts, SCHEMA, BUDGET, trust=TrustedServer(), seed=0))
    federation = federate(parts, SCHEMA, BUDGET, trust=TrustedServer(), seed=0, exact=True)
    assert problems(SCHEMA, method.fit(federation).sample(300, 0)) == []
    assert "NOT PRIVATE" in federation.statement.headline
    assert all(isinstance(entry.release, Exact) for entry in federation.ledger.entries)


def test_islands_that_see_their_own_rows_see_other_dependences(monkeypatch):
    """The first site's columns 0 and 1 are copies, the second's 1 and 2; pooled tables show half of each."""
    from fedsynth.methods import migration

    schema = Schema(tuple(Categorical(f"c{j}", ("a", "b", "c")) for j in range(3)))
    rng = np.random.default_rng(0)
    held = []
    for first, second in ((0, 1), (1, 2)):
        columns = [rng.integers(0, 3, 3000).astype(np.uint8) for _ in range(3)]
        columns[second] = columns[first]
        held.append(Table(schema, tuple(columns)))
    seen: list[list[np.ndarray]] = []
    best = migration.MigrationOptions.best

    def noted(self: migration.MigrationOptions, given: list[np.ndarray], rng: np.random.Generator) -> Any:
        seen.append(given)
        return best(self, given, rng)

    monkeypatch.setattr(migration.MigrationOptions, "best", noted)
    for own_rows in (False, True):
        federation = federate(held, schema, Budget(5.0, 1e-6), trust=TrustedServer(), seed=0)
        method = FedMigration(rounds=2, interval=5, population=20, selection=4, own_rows=own_rows)
        method.fit(federation)
        assert federation.ledger.share_spent == pytest.approx(1)
        assert [entry.verb for entry in federation.ledger.entries] == ["sum", "each" if own_rows else "sum", "sum"]
    pooled, own = seen
    np.testing.assert_array_equal(pooled[0], pooled[1])
    full = math.log(3)
    np.testing.assert_allclose([own[0][0, 1], own[1][1, 2]], full, atol=0.1)
    np.testing.assert_allclose([own[0][1, 2], own[1][0, 1]], 0.0, atol=0.02)
    assert 0.1 < pooled[0][0, 1] < 0.6 * full


# ---------------------------------------------------------------------------------------------------------------------
# PrivBayes


def chain(count: int, seed: int) -> Table:
    """Return five columns, each a noisy copy of the one before."""
    schema = Schema(tuple(Categorical(f"c{j}", ("a", "b", "c")) for j in range(5)))
    rng = np.random.default_rng(seed)
    columns = [rng.integers(0, 3, count)]
    for _ in range(4):
        columns.append(np.where(rng.random(count) < 0.8, columns[-1], rng.integers(0, 3, count)))
    return Table(schema, tuple(one.astype(np.uint8) for one in columns))


def test_privbayes_finds_a_chain_and_spends_what_it_has():
    table = chain(8000, 0)
    found = []
    for seed in range(5):
        federation = federate([table], table.schema, Budget(2.0, 1e-6), trust=TrustedServer(), seed=seed)
        fitted = PrivBayes(degree=1).fit(federation)
        assert federation.ledger.spent.rho == pytest.approx(Budget(2.0, 1e-6).rho)
        released = sum(entry.cost.rho for entry in federation.ledger.entries if entry.paid_by)
        assert released == pytest.approx(Budget(2.0, 1e-6).rho)
        found += [abs(column - own[0]) for column, own in enumerate(network_of(fitted).structure.parents) if own]
        synthetic = fitted.sample_table(8000, 0)
        for pair in ((0, 1), (2, 3)):
            assert np.abs(contingency(synthetic, pair) - contingency(table, pair)).sum() / 8000 < 0.2
    assert len(found) == 20
    assert np.mean(found) < 1.2


def test_privbayes_needs_a_vault_and_memory():
    table = chain(100, 0)
    assert find_method("privbayes").needs_vault
    with pytest.raises(Unsupported, match="--trust trusted"):
        PrivBayes().fit(federate([table], table.schema, BUDGET, trust=LocalNoise(), seed=0))
    wide = Schema(tuple(Categorical(f"c{j}", tuple(f"v{k}" for k in range(40))) for j in range(20)))
    with pytest.raises(Unsupported, match="degree = 1"):
        _deposited(Domain(wide), 2, 1e6)


@pytest.mark.parametrize("budget", [Budget(3.0, 0), NONE])
def test_privbayes_under_pure_budgets_and_without_noise(budget):
    table = chain(4000, 0)
    federation = federate([table], table.schema, budget, trust=TrustedServer(), seed=0)
    synthetic = PrivBayes(degree=1).fit(federation).sample_table(4000, 0)
    assert np.abs(contingency(synthetic, (0, 1)) - contingency(table, (0, 1))).sum() / 4000 < (
        0.05 if budget.exact else 0.2
    )
    assert budget.covers(federation.ledger.spent)


def test_deposits_hold_every_candidate_once():
    schema = Schema(tuple(Categorical(f"c{j}", tuple(f"v{k}" for k in range(n))) for j, n in enumerate((2, 3, 4, 9))))
    held = _deposited(Domain(schema), 2, 30.0)
    for size in (1, 2, 3):
        for clique in itertools.combinations(range(4), size):
            small = np.prod(schema.shape(clique)) <= 30 or size == 1
            assert any(set(clique) <= set(one) for one in held) == small
    assert not any(set(a) < set(b) for a, b in itertools.permutations(held, 2))


def test_pooled_rows_and_sites_give_privbayes_the_same():
    table = chain(900, 0)
    parts = [table.take(np.arange(300)), table.take(np.arange(300, 900))]
    pooled, spread = (
        federate(parts, table.schema, BUDGET, trust=TrustedServer(), seed=0) for parts in ([table], parts)
    )
    one, two = PrivBayes().fit(pooled), PrivBayes().fit(replace(spread, agreed=pooled.agreement))
    assert same(one, two)
    assert len(concatenate([one.sample_table(9, 0), two.sample_table(9, 0)])) == 18
