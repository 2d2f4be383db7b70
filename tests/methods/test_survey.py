"""The survey: one plain sum of three levels, whose price and sensitivity no cell changes, and what it finds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from tests.world import warned_of_empty

from fedsynth.encoding import encode
from fedsynth.federation.local import LocalNoise
from fedsynth.federation.query import Counts
from fedsynth.federation.simulate import federate
from fedsynth.federation.trust import Trust
from fedsynth.federation.trusted import TrustedServer
from fedsynth.methods import survey as module
from fedsynth.methods.survey import Survey, groups_for, noise_groups, one_way, survey
from fedsynth.methods.surveyed_column import FINEST
from fedsynth.models.adaptive_bins import AdaptiveBins
from fedsynth.privacy.cost import Budget
from fedsynth.privacy.release import Laplace
from fedsynth.rows import Table
from fedsynth.schema import Boolean, Categorical, Datetime, Numeric, Rule, Schema
from fedsynth.schema.bins import MOST_CELLS, Axis
from fedsynth.secure.site import SecureSum

BUDGET, NONE = Budget(1.0, 1e-6), Budget.none()
SCHEMA = Schema(
    (
        Numeric("gain", 0.0, 1e5),
        Numeric("cents", -100.0, 100.0, decimals=2, missing=True),
        Categorical("kind", tuple(f"k{k}" for k in range(40))),
        Datetime("day", "2000-01-01", "2030-01-01", unit="D"),
        Boolean("label"),
    )
)


def rows(count: int, seed: int = 0) -> Table:
    """Return rows with an atom, a price that half of all pay, rare kinds and a few years of thirty."""
    rng = np.random.default_rng(seed)
    start = pd.Timestamp("2015-01-01")
    frame = pd.DataFrame(
        {
            "gain": np.where(rng.random(count) < 0.7, 0.0, np.exp(rng.normal(5, 1, count))),
            "cents": np.where(rng.random(count) < 0.5, 9.99, np.round(rng.normal(0, 20, count), 2)).clip(-100, 100),
            "kind": [f"k{k}" for k in np.minimum(rng.geometric(0.25, count) - 1, 39)],
            "day": start + pd.to_timedelta(rng.integers(0, 1000, count), unit="D"),
            "label": rng.random(count) < 0.4,
        }
    )
    frame["cents"] = frame["cents"].mask(rng.random(count) < 0.1)
    return encode(SCHEMA, frame)


def asked(monkeypatch: pytest.MonkeyPatch) -> list[Counts]:
    """Return the list that every query of a survey is appended to."""
    found: list[Counts] = []

    def noted(axes: tuple[Axis, ...], tables: tuple[tuple[int, ...], ...], weights: tuple[int, ...]) -> Counts:
        found.append(Counts(axes, tables, weights))
        return found[-1]

    monkeypatch.setattr(module, "Counts", noted)
    return found


def wide(columns: int) -> tuple[Schema, Table]:
    schema = Schema(tuple(Numeric(f"x{k}", 0.0, 1e6) for k in range(columns)))
    rng = np.random.default_rng(0)
    return schema, encode(schema, pd.DataFrame({f"x{k}": rng.gamma(1, 5000, 40) for k in range(columns)}))


def test_the_cells_of_many_columns_stay_below_the_limit_of_a_sum(monkeypatch):
    queries = asked(monkeypatch)
    schema, table = wide(200)
    found = survey(federate([table], schema, BUDGET, trust=TrustedServer(), seed=0, public_sizes=True), 0.5)
    (query,) = queries
    assert 2**21 < query.cells(schema) <= 2**22
    levels = [sum(axis.column == column for axis in query.axes) for column in range(200)]
    assert set(levels) == {2, 3}  # the widest go without the finest
    assert len(found.columns) == 200
    assert found.total == 40


def test_a_level_that_was_left_out_is_not_cut_to(monkeypatch):
    """Ten thousand rows at one value: counts go down to a cell of level two where level three is not asked."""
    schema = Schema((Numeric("x", 0.0, 1e6), Numeric("y", 0.0, 1e6)))
    table = encode(schema, pd.DataFrame({"x": np.full(10_000, 1234.5), "y": np.full(10_000, 777_777.7)}))
    values, levels = (1234.5, 777_777.7), AdaptiveBins.levels(schema.stored[0])
    for largest, finest in ((2**22, (2, 2)), (36_000, (1, 2)), (100, (1, 1))):
        monkeypatch.setattr(module, "_LARGEST", largest)
        columns = survey(federate([table], schema, BUDGET, trust=TrustedServer(), seed=0), 1.0).columns
        assert all(one.counts.sum() == pytest.approx(10_000, rel=0.02) for one in columns)
        for one, value, level in zip(columns, values, finest, strict=True):
            grid, counted = levels[level].grid, np.flatnonzero(one.groups == one.groups[one.counts.argmax()])
            assert grid is not None
            assert one.grid is not None
            cell = np.searchsorted(grid.upper, value)  # where sites count the value
            assert one.grid.lower[counted[0]] == grid.lower[cell]
            assert one.grid.upper[counted[-1]] == grid.upper[cell]


def test_the_sensitivity_is_that_of_the_weights_whatever_the_cells(monkeypatch):
    queries = asked(monkeypatch)
    table = rows(400)
    survey(federate([table], SCHEMA, BUDGET, trust=TrustedServer(), seed=0), 0.5)
    (query,) = queries
    weights = query.weights
    declared = query.sensitivity(SCHEMA)
    assert declared.l1 == sum(weights)
    assert declared.l2 == pytest.approx(math.sqrt(sum(weight**2 for weight in weights)))
    for row in range(60):
        moved = query.answer(table.take(np.array([row])))
        assert np.abs(moved).sum() == declared.l1
        assert math.sqrt((moved.astype(float) ** 2).sum()) == pytest.approx(declared.l2)
    levels = [axis.column for axis in query.axes]
    assert levels == [0, 0, 0, 1, 1, 1, 2, 3, 3, 3, 4]
    prices = [weight**2 for weight in weights]
    assert prices[1] / prices[0] == pytest.approx(4 / 9, rel=0.1)
    assert prices[2] / prices[0] == pytest.approx(1 / 9, rel=0.1)


def test_a_pure_budget_pays_in_proportion_to_weights(monkeypatch):
    queries = asked(monkeypatch)
    federation = federate([rows(3000)], SCHEMA, Budget(1.0, 0.0), trust=TrustedServer(), seed=0)
    found = survey(federation, 0.5)
    (entry,) = federation.ledger.entries
    assert isinstance(entry.release, Laplace)
    assert federation.ledger.share_spent == pytest.approx(0.5)
    (query,) = queries
    assert query.weights[1] / query.weights[0] == pytest.approx(4 / 9, rel=0.1)
    assert found.columns[0].counts[0] == pytest.approx(2100, rel=0.15)
    assert found.total == pytest.approx(3000, rel=0.2)


@pytest.mark.parametrize("trust", [TrustedServer(), LocalNoise(), SecureSum()], ids=["trusted", "local", "secure"])
def test_a_survey_without_noise_has_exact_counts(trust: Trust):
    held = [rows(700, seed) for seed in range(3)]
    federation = federate(held, SCHEMA, NONE, trust=trust, seed=0)
    found = survey(federation, 1.0)
    assert found.total == pytest.approx(2100)
    for at, cells in enumerate(found.columns):
        axis = cells.axis(at)
        exact = sum(
            np.bincount(axis.places(table.codes[at], table.numbers.get(at)), minlength=cells.size) for table in held
        )
        assert np.allclose(np.bincount(cells.groups, weights=cells.counts), exact, atol=1e-6)
        if cells.grid is not None:
            heavy = (cells.counts > 2100 / FINEST)[: len(cells.grid)]
            width = (cells.grid.upper - cells.grid.lower)[heavy]
            finest = AdaptiveBins.levels(SCHEMA.stored[at])[-1].grid
            assert finest is not None
            assert width.max(initial=0.0) <= 1.3 * (finest.upper - finest.lower).max()


@pytest.mark.parametrize("trust", [TrustedServer(), LocalNoise(), SecureSum()], ids=["trusted", "local", "secure"])
def test_a_survey_is_one_sum_under_any_trust(trust: Trust):
    federation = federate([rows(900, seed) for seed in range(4)], SCHEMA, BUDGET, trust=trust, seed=1)
    found = survey(federation, 0.4)
    assert len(federation.ledger.entries) == 1
    assert federation.ledger.share_spent == pytest.approx(0.4)
    assert found.sites == federation.sites
    assert all(one.counts.min() >= 0 for one in found.columns)
    assert all(one.counts.sum() == pytest.approx(found.total) for one in found.columns)


def test_atoms_and_ranges_are_found_in_noisy_counts():
    share = []
    for seed in range(5):
        federation = federate([rows(6000, seed)], SCHEMA, BUDGET, trust=TrustedServer(), seed=seed)
        columns = survey(federation, 0.3).columns
        gain, cents, kind, day, _ = columns
        assert gain.grid is not None
        assert cents.grid is not None
        assert day.grid is not None
        assert gain.counts[0] == pytest.approx(4200, rel=0.05)
        price = int(np.searchsorted(cents.grid.upper, 9.99))
        assert cents.grid.upper[price] - cents.grid.lower[price] < 0.1
        assert cents.counts[price] == pytest.approx(2700, rel=0.1)
        assert cents.counts[-1] == pytest.approx(600, rel=0.25)
        assert kind.counts[0] == pytest.approx(1500, rel=0.1)
        within = (day.grid.upper >= 16_436) & (day.grid.lower <= 17_436 + 342)
        share.append(1 - day.counts[: len(within)][within].sum() / 6000)
    assert np.mean(share) < 0.03  # of the rows lie in years that nobody was seen in


PRICES = Schema(
    (
        Numeric("price", 0.0, 5000.0, edges=(0.0, 1.0, 500.0, 1000.0, 2500.0, 5000.0), decimals=2),
        Numeric("dose", 0.0, 10.0, missing=True),
        Boolean("label"),
    )
)


@pytest.mark.parametrize("trust", [TrustedServer(), LocalNoise(), SecureSum()], ids=["trusted", "local", "secure"])
@pytest.mark.parametrize("seed", range(3))
def test_values_that_many_rows_share_come_out_as_themselves(trust: Trust, seed: int):
    """Round values and others, with and without edges in the schema: within 5 deviations of noise and 3 of sampling."""
    rng = np.random.default_rng(seed)
    pick = rng.random(12_000)
    smooth = np.round(rng.gamma(2, 400, len(pick)).clip(0, 5000), 2)
    price = np.where(pick < 0.17, 1000.0, np.where(pick < 0.3, 473.68, np.where(pick < 0.38, 3000.0, smooth)))
    dose = rng.choice([0.125, 0.25, 0.5, 3.5, np.nan], len(pick), p=[0.1, 0.3, 0.35, 0.2, 0.05])
    frame = pd.DataFrame({"price": price, "dose": dose, "label": rng.random(len(pick)) < 0.4})
    table = encode(PRICES, frame)
    sites = [table.take(np.arange(k, len(table), 3)) for k in range(3)]
    federation = federate(sites, PRICES, BUDGET, trust=trust, seed=seed)
    columns = survey(federation, 0.5).columns
    for name, cells, values in (
        ("price", columns[0], (473.68, 1000.0, 3000.0)),
        ("dose", columns[1], (0.125, 0.25, 0.5, 3.5)),
    ):
        shares = np.bincount(cells.groups, weights=cells.counts)
        drawn = cells.drawn(rng.choice(len(shares), 100_000, p=shares / shares.sum()), rng)
        for value in values:
            assert cells.grid is not None
            (at,) = np.flatnonzero(cells.grid.single & np.isclose(cells.grid.centres, value, rtol=0, atol=1e-9))
            noise = math.sqrt(cells.variances[at]) / len(pick)
            assert (drawn == value).mean() == pytest.approx((frame[name] == value).mean(), abs=5 * noise + 0.005)
    assert np.isin(drawn[~np.isnan(drawn)], (0.125, 0.25, 0.5, 3.5)).mean() > 0.99


def test_a_fourth_level_has_a_cell_for_each_price_or_for_those_near_zero(monkeypatch):
    def fourth(schema: Schema, sites: int = 1) -> list[int]:
        """Return how many cells of single values the fourth level of each column has, 0 without one."""
        grids = [of[3].grid if len(of) == 4 else None for of in module._levels(schema, sites)]
        return [0 if grid is None else int(grid.single.sum()) for grid in grids]

    assert fourth(PRICES) == [500_001, 0, 0]
    monkeypatch.setattr(module, "_VALUES", 400_000)
    assert fourth(PRICES) == [pytest.approx(2**17, rel=0.01), 0, 0]
    kinds = (Numeric("x", 0, 1e9, integer=True), Numeric("y", 0, 1e9), Datetime("t", "1900-01-01", "2030-01-01"))
    prices = tuple(Numeric(f"p{k}", 0.0, 1e9, decimals=2) for k in range(4))
    assert fourth(Schema((*kinds, *prices))) == [
        pytest.approx(80_000, rel=0.01),
        0,
        0,
        *[pytest.approx(80_000, rel=0.01)] * 4,
    ]
    assert max(fourth(Schema(prices), 2**14)) == 0
    assert fourth(Schema((Numeric("small", 0.0, 300.0, decimals=2),))) == [pytest.approx(30_000, rel=0.01)]


@pytest.mark.parametrize("high", [300.0, 2e4, 1e6, 1e9])
@pytest.mark.parametrize("budget", [BUDGET, NONE], ids=["noise", "exact"])
def test_prices_that_are_not_round_stay_themselves_under_any_bound(high: float, budget: Budget):
    schema, rng = Schema((Numeric("price", 0.0, high, decimals=2), Boolean("label"))), np.random.default_rng(0)
    smooth = np.exp(rng.normal(3, 1, 10_000)).round(2).clip(0, high)
    price = np.where(rng.random(10_000) < 0.5, rng.choice([9.99, 19.99, 49.99, 99.95], 10_000), smooth)
    table = encode(schema, pd.DataFrame({"price": price, "label": smooth > 20}))
    (cells, _) = survey(federate([table], schema, budget, trust=TrustedServer(), seed=0), 0.5).columns
    shares = np.bincount(cells.groups, weights=cells.counts)
    drawn = cells.drawn(rng.choice(len(shares), 20_000, p=shares / shares.sum()), rng)
    for value in (9.99, 19.99, 49.99, 99.95):
        assert (drawn == value).mean() == pytest.approx(0.125, abs=0.015)


def test_groups_stand_above_the_noise_of_a_pair():
    federation = federate([rows(6000)], SCHEMA, BUDGET, trust=TrustedServer(), seed=0)
    found = survey(federation, 0.3)
    for std in (5.0, 40.0, 300.0):
        columns = noise_groups(SCHEMA, found, std)
        for column, cells in zip(SCHEMA.stored, columns, strict=True):
            held = np.bincount(cells.groups, weights=cells.counts)
            assert held.sum() == pytest.approx(found.total)
            if cells.grid is not None:
                numbers = held[: cells.size - column.missing]
                assert len(numbers) <= groups_for(found.total, std) <= 24
                assert numbers.min() >= std
    kind = noise_groups(SCHEMA, found, 300.0)[2]
    assert kind.size < 10
    rare = kind.groups == kind.size - 1
    assert np.ptp(kind.counts[rare]) == 0  # spread evenly


def test_equally_frequent_values_are_merged_too_until_all_pairs_fit_into_one_sum():
    schema = Schema(tuple(Categorical(name, tuple(f"v{value}" for value in range(5000))) for name in ("a", "b")))
    columns = [replace(AdaptiveBins.of(one), counts=np.full(5000, 2.0)) for one in schema.stored]
    grouped = noise_groups(schema, Survey(columns, 10_000.0, ("a",)), 0.0)
    assert 1000 < grouped[0].size < 2000
    Counts(tuple(one.axis(at) for at, one in enumerate(grouped)), ((0, 1),)).check(schema)
    assert math.prod(one.size for one in grouped) <= MOST_CELLS


def test_values_that_a_rule_speaks_of_stay_apart():
    rule = Rule({"kind": ["k39"], "label": ["true"]})
    ruled = Schema(SCHEMA.columns, rules=(rule,))
    found = survey(federate([rows(3000)], SCHEMA, BUDGET, trust=TrustedServer(), seed=0), 0.3)
    assert noise_groups(SCHEMA, found, 200.0)[2].size < 10
    assert noise_groups(ruled, found, 200.0)[2].size == 40


def test_groups_are_as_many_as_rows_and_noise_allow():
    assert groups_for(7000.0, 0.0) == 24
    assert groups_for(7000.0, 30.0) == 15
    assert groups_for(100.0, 50.0) == 2
    assert groups_for(1e9, 1.0) == 24


def test_one_way_tables_are_what_the_survey_says_of_groups():
    found = survey(federate([rows(3000)], SCHEMA, BUDGET, trust=TrustedServer(), seed=0), 0.3)
    columns = noise_groups(SCHEMA, found, 50.0)
    for at, (table, cells) in enumerate(zip(one_way(columns), columns, strict=True)):
        assert table.clique == (at,)
        assert table.values.shape == (cells.size,)
        assert table.values.sum() == pytest.approx(found.total)
        assert table.std > 0


def test_a_column_of_which_noise_hides_some_rows_is_named_in_a_warning(caplog):
    schema = Schema((Numeric("gain", 0.0, 1e6), Numeric("age", 0, 110, integer=True)))
    rng = np.random.default_rng(0)
    gain = np.where(np.arange(20_000) < 100, np.exp(rng.normal(5, 1.5, 20_000)), 0.0)
    table = encode(schema, pd.DataFrame({"gain": gain, "age": rng.integers(20, 70, 20_000)}))
    federation = federate([table], schema, BUDGET, trust=TrustedServer(), seed=0, public_sizes=True)
    assert survey(federation, 0.35).columns[0].unplaced > 0
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith("column 'gain': noise hides which values about ")


def test_no_rows_are_surveyed_too():
    empty = rows(5).take(np.arange(0))
    for budget in (BUDGET, NONE):
        with warned_of_empty([empty, empty]):
            found = survey(federate([empty, empty], SCHEMA, budget, trust=TrustedServer(), seed=0), 0.5)
        assert found.total >= 1
        assert all(np.isfinite(one.counts).all() for one in found.columns)
        assert all(one.size >= 1 for one in noise_groups(SCHEMA, found, 20.0))


def test_rare_values_in_order_keep_their_shares_and_others_share_evenly():
    rows = np.array([5000.0, 2000, 90, 70, 50, 30, 10, 0])
    for values, even in ((tuple(range(8)), False), (tuple("hgfedcba"), True)):
        schema = Schema((Categorical("x", values),))
        cells = replace(AdaptiveBins.of(schema.stored[0]), counts=rows)
        (grouped,) = noise_groups(schema, Survey([cells], rows.sum(), ("a",)), 200.0)
        assert grouped.groups.tolist() == [0, 1, 2, 2, 2, 2, 2, 2]
        assert np.allclose(grouped.counts[2:], rows[2:].mean() if even else rows[2:])
