"""Cells of a survey: public levels that nest, values that fall where they should, and groups and unions of cells."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fedsynth.encoding import encode
from fedsynth.models.adaptive_bins import LEVELS, START, AdaptiveBins, rare_together
from fedsynth.models.conditions import Between, Missing
from fedsynth.models.evidence import PlacedEvidence
from fedsynth.schema import Boolean, Categorical, Datetime, Numeric, Schema
from fedsynth.schema.bins import Grid
from fedsynth.schema.columns import Column

NUMBERS: dict[str, Numeric | Datetime] = {
    "integer": Numeric("x", 0, 99_999, integer=True),
    "few integers": Numeric("x", -3, 90, integer=True),
    "decimals": Numeric("x", 0.0, 50.0, decimals=2),
    "crossing": Numeric("x", -100, 100, integer=True),
    "crossing reals": Numeric("x", -100.0, 100.0),
    "crossing decimals": Numeric("x", -30_000.0, 70_000.0, decimals=1),
    "real": Numeric("x", 0.0, 1e6),
    "tiny": Numeric("x", 1e-9, 2e-9),
    "large": Numeric("x", -1e30, 1e30),
    "missing": Numeric("x", 0.0, 1.0, missing=True),
    "own edges": Numeric("x", 0.0, 10.0, edges=(0.0, 0.1, 1.0, 10.0)),
    "many bins": Numeric("x", 0.0, 1000.0, bins=1000),
    "constant": Numeric("x", 5, 5, integer=True),
    "two values": Numeric("x", 0, 1, integer=True),
    "days": Datetime("x", "2000-01-01", "2030-01-01", unit="D"),
    "microseconds": Datetime("x", "1990-01-01", "2030-01-01", unit="us", missing=True),
}


def some_values(column: Numeric | Datetime, seed: int = 0) -> np.ndarray:
    """Return values that the column admits: both bounds, zero, random ones, and every cut of every level with both
    of its neighbours.
    """
    grids = [one.grid for one in AdaptiveBins.levels(column)]
    low, high = float(column.bin_edges[0]), float(column.bin_edges[-1])
    rng = np.random.default_rng(seed)
    cuts = np.concatenate([grid.upper[:: max(1, len(grid) // 500)] for grid in grids if grid is not None])
    near = [cuts, np.nextafter(cuts, -np.inf), np.nextafter(cuts, np.inf)]
    values = np.concatenate([[low, high, 0.0], rng.uniform(low, high, 2000), *near])
    values = np.clip(values, low, high)
    return np.unique(np.rint(values * column.per_unit) / column.per_unit if column.per_unit else values)


@pytest.mark.parametrize("name", NUMBERS)
def test_levels_nest_and_are_small(name):
    column = NUMBERS[name]
    levels = AdaptiveBins.levels(column)
    assert 1 <= len(levels) <= LEVELS
    cells = [len(one.groups) for one in levels]
    assert sum(cells) <= 33_840 + 3 * (START + 5) * START
    assert cells == sorted(set(cells))
    for coarse, fine in itertools.pairwise(levels):
        assert coarse.grid is not None
        assert fine.grid is not None
        assert np.isin(coarse.grid.upper, fine.grid.upper).all()
        assert np.isin(coarse.grid.lower, fine.grid.lower).all()
    for one in levels:
        assert one.grid is not None
        one.axis(0).check(column.size, column.missing, is_number=True)
        assert np.array_equal(one.groups, np.arange(len(one.grid) + column.missing))


@pytest.mark.parametrize("name", NUMBERS)
def test_every_value_falls_into_the_one_cell_that_holds_it(name):
    column = NUMBERS[name]
    values = some_values(column)
    before = np.zeros(len(values), dtype=np.int64)
    for level, cells in enumerate(AdaptiveBins.levels(column)):
        grid = cells.grid
        assert grid is not None
        place = cells.axis(0).places(np.zeros(len(values), dtype=np.int64), values)
        assert (values <= grid.upper[place]).all()
        assert (values >= grid.lower[place]).all()
        inner = place > 0
        assert (values[inner] > grid.upper[place[inner] - 1]).all()
        if level:
            coarser = AdaptiveBins.levels(column)[level - 1].grid
            assert coarser is not None
            assert np.array_equal(np.searchsorted(coarser.upper, grid.upper[place]), before)
        before = place


@pytest.mark.parametrize("name", NUMBERS)
def test_bounds_and_zero_are_atoms(name):
    column = NUMBERS[name]
    cells = AdaptiveBins.of(column)
    grid, half = cells.grid, 0.5 / column.per_unit if column.per_unit else 0.0
    assert grid is not None
    low, high = float(column.bin_edges[0]), float(column.bin_edges[-1])
    for atom in {low, high, *([0.0] if low < 0 < high else [])}:
        at = int(cells.axis(0).places(np.zeros(1, dtype=np.int64), np.array([atom]))[0])
        drawn = grid.values(np.full(50, at), np.linspace(0, 1, 52)[1:-1])
        assert set(drawn.tolist()) == {atom}
        assert grid.upper[at] - grid.lower[at] <= 2 * half * (1 + 1e-9) + 1e-300 + np.spacing(abs(atom))


@pytest.mark.parametrize("low", [-100, -100.0])
def test_no_other_value_is_in_the_cell_of_zero(low):
    column = NUMBERS["crossing" if isinstance(low, int) else "crossing reals"]
    axis = AdaptiveBins.of(column).axis(0)
    others = np.array([-100.0, -1.0, 1.0, 100.0])
    if isinstance(low, float):
        others = np.append(others, [-5e-324, 5e-324, -1e-9, 1e-9])
    places = axis.places(np.zeros(len(others) + 1, dtype=np.int64), np.append(others, 0.0))
    assert places[-1] not in places[:-1]
    assert np.array_equal(
        axis.places(np.zeros(2, dtype=np.int64), np.array([0.0, -0.0])), np.repeat(places[-1], 2)
    )  # a zero with a sign


@pytest.mark.parametrize("name", ["missing", "microseconds"])
def test_missing_values_have_the_last_cell(name):
    column = NUMBERS[name]
    for cells in AdaptiveBins.levels(column):
        values = np.append(some_values(column)[:5], np.nan)
        places = cells.axis(0).places(np.zeros(6, dtype=np.int64), values)
        assert places[-1] == len(cells.groups) - 1
        assert (places[:-1] < len(cells.groups) - 1).all()
        drawn = cells.drawn(places, np.random.default_rng(0))
        assert np.isnan(drawn[-1])
        assert not np.isnan(drawn[:-1]).any()


def test_a_level_of_values_one_by_one_is_the_last():
    assert len(AdaptiveBins.levels(NUMBERS["few integers"])) == 1
    assert len(AdaptiveBins.levels(NUMBERS["two values"])) == 1
    assert len(AdaptiveBins.levels(Boolean("b"))) == len(AdaptiveBins.levels(Categorical("c", ("a", "b", "c")))) == 1
    finest = AdaptiveBins.levels(NUMBERS["integer"])[-1].grid
    assert finest is not None
    assert (finest.upper - finest.lower).max() <= 5  # 100,000 values in 28,000 cells


# ---------------------------------------------------------------------------------------------------------------------
# What is told


@pytest.mark.parametrize("name", ["real", "decimals", "crossing reals", "missing", "days"])
def test_sums_of_a_level_are_those_of_the_finer_one(name):
    column = NUMBERS[name]
    levels = AdaptiveBins.levels(column)
    values = some_values(column, 3)
    if column.missing:
        values = np.append(values, [np.nan, np.nan])
    counts = [
        np.bincount(one.axis(0).places(np.zeros(len(values), dtype=np.int64), values), minlength=one.size).astype(float)
        for one in levels
    ]
    for coarse, of, fine, held in zip(levels, counts, levels[1:], counts[1:], strict=False):
        assert fine.grid is not None
        assert np.array_equal(coarse.sums_of(fine.grid, held), of)
        cut = coarse.updated(of, 0.0, len(values)).cut(fine.grid, len(values) / 20)
        sums = cut.sums_of(fine.grid, held)
        wanted = cut.axis(0).places(np.zeros(len(values), dtype=np.int64), values)
        assert np.array_equal(sums, np.bincount(wanted, minlength=cut.size))


def test_exact_counts_are_believed_to_the_last_row():
    column = Numeric("x", 0.0, 1e6, missing=True)
    cells = AdaptiveBins.of(column)
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 50, cells.size).astype(float)
    for even in (False, True):
        found = cells.updated(counts, 0.0, counts.sum(), even=even)
        assert np.allclose(found.counts, counts)


def test_even_counts_are_closer_and_keep_the_total_and_the_missing():
    column = Numeric("x", 0.0, 1e6, missing=True)
    cells = AdaptiveBins.of(column)
    truth = np.zeros(cells.size)
    truth[0], truth[1:12], truth[-1] = 3000.0, 250.0, 400.0
    rng = np.random.default_rng(1)
    errors = []
    for _ in range(40):
        noisy = truth + rng.normal(0, 30, cells.size)
        found = [cells.updated(noisy, 900.0, truth.sum(), even=even).counts for even in (False, True)]
        assert all(one.min() >= 0 and one.sum() == pytest.approx(truth.sum()) for one in found)
        assert abs(found[1][-1] - truth[-1]) < 150
        errors.append([np.abs(one - truth).sum() for one in found])
    plain, even = np.mean(errors, axis=0)
    assert even < 0.5 * plain


def test_cells_that_noise_alone_fills_get_no_rows_from_finer_levels():
    """Most rows far from all others were noise of finer counts, or shares of what a projection distributes."""
    column = Numeric("x", 0.0, 1e6)
    first, second = AdaptiveBins.levels(column)[:2]
    assert second.grid is not None
    rng = np.random.default_rng(3)
    truth = np.where(second.grid.upper <= 1e5, 10_000 / (second.grid.upper <= 1e5).sum(), 0.0)
    emptied = []
    for _ in range(20):
        counts = first.sums_of(second.grid, truth)
        cells = first.updated(counts + rng.normal(0, 30, first.size), 900.0, 10_000.0, even=True)
        empty = cells.counts == 0
        emptied.append(empty.sum())
        cut = cells.cut(second.grid, 100.0)
        noisy = cut.sums_of(second.grid, truth + rng.normal(0, 45, second.size))
        many = cut.sums_of(second.grid, np.ones(second.size))
        found = cut.updated(noisy, many * 45.0**2, 10_000.0, even=True)
        assert found.counts.sum() == pytest.approx(10_000)
        assert found.counts[np.isin(cut.whole, np.flatnonzero(empty))].sum() == 0
    assert np.mean(emptied) > 20  # of 29 beyond all rows


def test_a_group_is_heaped_if_one_value_has_most_of_its_rows():
    cells = AdaptiveBins.of(Numeric("x", 0.0, 100.0))
    counts = np.ones(cells.size)
    counts[0] = 50.0
    groups = np.minimum(np.arange(cells.size) // 8, 3)
    assert replace(cells, counts=counts, groups=groups).heaped.tolist() == [True, False, False, False]


def test_rows_that_noise_hides_are_spread_over_the_range_more_than_as_counted():
    cells = AdaptiveBins.of(Numeric("x", 0.0, 100.0))
    rng = np.random.default_rng(2)
    highest = []
    for _ in range(100):
        noisy = rng.normal(1, 20, cells.size)
        both = [cells.updated(noisy, 400.0, 34.0, even=even).counts for even in (False, True)]
        assert all(one.sum() == pytest.approx(34) for one in both)
        highest.append([one.max() for one in both])
    plain, even = np.mean(highest, axis=0)
    assert even < 0.75 * plain


def test_cells_are_cut_where_they_hold_the_rows_and_even_pieces_within():
    column = Numeric("x", 0.0, 1024.0)
    cells = AdaptiveBins.of(column)
    counts = np.zeros(cells.size)
    at = int(cells.axis(0).places(np.zeros(1, dtype=np.int64), np.array([100.0]))[0])
    counts[at] = 1000.0
    finer = AdaptiveBins.levels(column)[1].grid
    assert finer is not None
    cut = cells.updated(counts, 1.0, 1000.0, even=True).cut(finer, 10.0)
    assert len(cut.groups) == len(cells.groups) + 17
    rng = np.random.default_rng(3)
    inside = np.flatnonzero(cut.whole == at)
    noisy = rng.normal(0, 20, len(cut.groups))
    noisy[inside] += cut.counts[inside]
    found = cut.updated(noisy, 400.0, 1000.0, even=True)
    assert found.counts[inside].sum() == pytest.approx(1000, rel=0.05)
    assert (found.counts - cut.counts)[inside].std() < 10  # of 20 as counted


# ---------------------------------------------------------------------------------------------------------------------
# Groups and unions


def grouped(column: Column, counts: np.ndarray, least: float, most: int) -> AdaptiveBins:
    return AdaptiveBins.of(column).updated(counts, 0.0, counts.sum()).grouped(least, most)


@pytest.mark.parametrize("missing", [False, True])
def test_unions_hold_whole_groups_in_order(missing):
    column = Numeric("x", 0.0, 100.0, missing=missing)
    rng = np.random.default_rng(4)
    cells = grouped(column, rng.gamma(0.4, 60, AdaptiveBins.of(column).size), 40.0, 20)
    rows = np.bincount(cells.groups, weights=cells.counts)
    for least, most in ((0.0, 100), (100.0, 100), (0.0, 5), (1e9, 3)):
        unions = cells.unions(least, most)
        held = np.bincount(unions, weights=rows)
        free = cells.size - missing
        assert len(unions) == cells.size
        assert (np.diff(unions[:free]) >= 0).all()
        assert np.diff(unions[:free]).max(initial=0) <= 1
        numbers = held[: len(held) - missing]
        assert len(numbers) <= most
        assert len(numbers) == 1 or numbers.min() >= least
        if missing:
            assert unions[-1] == len(held) - 1
            assert (unions[:-1] < unions[-1]).all()
    assert np.array_equal(cells.unions(0.0, 100), np.arange(cells.size))


def test_rare_values_are_one_union_and_a_single_one_stays():
    rows = np.array([50.0, 3.0, 70.0, 2.0, 60.0])
    assert rare_together(rows, 10.0).tolist() == [0, 3, 1, 3, 2]
    assert rare_together(rows, 3.0).tolist() == [0, 1, 2, 3, 4]
    assert rare_together(rows, 0.0).tolist() == [0, 1, 2, 3, 4]
    assert rare_together(rows, 1e9).tolist() == [0] * 5
    column = Categorical("c", tuple("abcde"))
    cells = AdaptiveBins.of(column).updated(rows, 0.0, rows.sum())
    assert cells.unions(10.0, 2).tolist() == [0, 3, 1, 3, 2]


@pytest.mark.parametrize(
    ("column", "groups", "ordered"),
    [
        (Categorical("c", (1, 2, 3, 5)), [0, 1, 2, 3], 4),
        (Categorical("c", (3, 2, 1)), [0, 1, 2], 0),
        (Categorical("c", ("low", "mid", "high"), ordered=True), [0, 1, 2], 3),
        (Categorical("c", ("low", "mid", "high")), [0, 1, 2], 0),
        (Categorical("c", ("no", "yes")), [0, 1], 2),
        (Categorical("c", (0, 1, 2, 3, 4)), [0, 1, 2, 3, 3], 4),  # rare ones, the highest
        (Categorical("c", (0, 1, 2, 3, 4)), [0, 3, 1, 2, 3], 3),  # rare ones here and there
        (Categorical("c", (0, 1, 2, 3), missing=True), [0, 1, 2, 3, 4], 4),
        (Categorical("c", (0, 1, 2, 3), missing=True), [0, 1, 3, 3, 2], 2),
        (Categorical("c", (0, 1, 2, 3), missing=True), [0, 1, 2, 3, 3], 3),  # missing ones among the rare
        (Boolean("b"), [0, 1], 2),
        (Boolean("b", missing=True), [0, 1, 2], 0),
    ],
)
def test_groups_of_categories_lie_in_an_order_if_their_values_do(column, groups, ordered):
    cells = AdaptiveBins.of(column)
    held = AdaptiveBins(np.array(groups), cells.whole, cells.counts, cells.variances)
    assert held.ordered(column) == ordered


def test_groups_of_numbers_lie_in_an_order_but_for_the_missing():
    for missing in (False, True):
        column = Numeric("x", 0.0, 1.0, missing=missing)
        assert AdaptiveBins.of(column).ordered(column) == AdaptiveBins.of(column).size - missing


def test_encoded_values_come_back_from_the_cell_that_they_were_counted_in():
    rng = np.random.default_rng(5)
    column = Numeric("x", 0.0, 50.0, decimals=2, missing=True)
    schema = Schema((column,))
    values = np.where(rng.random(500) < 0.1, np.nan, np.round(rng.gamma(2, 5, 500), 2).clip(0, 50))
    table = encode(schema, pd.DataFrame({"x": values}))
    for cells in AdaptiveBins.levels(column):
        places = cells.axis(0).places(table.codes[0], table.numbers[0])
        drawn = cells.drawn(places, rng)
        width = (cells.grid.upper - cells.grid.lower).max() if cells.grid is not None else math.inf
        assert np.array_equal(np.isnan(drawn), np.isnan(values))
        assert np.nanmax(np.abs(drawn - values)) <= width


@pytest.mark.parametrize(("low", "high"), [(0.0, 1e-312), (-1e-320, 1e-320), (0.0, 5e-324), (0.0, 1e-290)])
def test_ranges_near_the_least_number_have_cells(low, high):
    grid = AdaptiveBins.of(Numeric("x", low, high)).grid
    assert grid is not None
    assert grid.lower[0] == low
    assert grid.upper[-1] == high


@pytest.mark.parametrize("bins", [1, 7, 32, 34, 128, 400])
def test_coarse_cells_follow_the_bins_of_the_schema(bins):
    column = Numeric("x", 0.0, 320.0, bins=bins)
    grid = Grid.coarse(column.bin_edges, 0, START, 128)
    assert 28 <= len(grid) <= max(2 * START, bins if bins <= 128 else 0) + 2
    if bins <= 128:
        assert np.isin(column.bin_edges, grid.lower).all()


@pytest.mark.parametrize(
    "column",
    [
        Numeric("x", 0.0, 0.2),
        Numeric("x", -0.2, 0.2),
        Numeric("x", 1.5, 1.5),
        Numeric("x", 1.0, 3.0, edges=tuple(sorted({*np.linspace(1, 3, 33).tolist(), 2.9000001}))),
        Numeric("x", 1.0, 3.0, edges=tuple(sorted({*np.linspace(1, 3, 33).tolist(), 1.000001, 2.000001})), decimals=6),
        Numeric("x", 0, 300, edges=tuple(sorted({*np.linspace(0, 300, 33).round(), 150, 151, 160, 161})), integer=True),
    ],
    ids=["share", "both signs", "one number", "own edges", "decimals", "integers"],
)
def test_numbers_on_an_edge_are_counted_and_drawn_in_the_bin_that_begins_there(column):
    edges = np.asarray(column.bin_edges[:-1])
    schema = Schema((column,))
    bins = encode(schema, pd.DataFrame({"x": edges})).codes[0]
    assert np.array_equal(bins, np.arange(len(edges)))
    rng = np.random.default_rng(6)
    for cells in AdaptiveBins.levels(column):
        places = cells.axis(0).places(bins, edges)
        assert len(np.unique(places)) == len(edges)
        for _ in range(20):
            drawn = cells.drawn(places, rng)
            assert np.array_equal(encode(schema, pd.DataFrame({"x": drawn})).codes[0], bins)


def test_each_level_has_about_as_many_cells_as_promised():
    for column in NUMBERS.values():
        for level, cells in enumerate(AdaptiveBins.levels(column)):
            assert len(cells.groups) <= 1.1 * START ** (level + 1) or level == 0
    assert [len(cells.groups) for cells in AdaptiveBins.levels(Numeric("x", 0.0, 1.0))] == [56, 974, 29432]
    atoms = Numeric("x", 1.0, 3.0, edges=tuple(sorted({*np.linspace(1, 3, 33).tolist(), 1.5, 1.5000001})))
    sizes = [len(cells.groups) for cells in AdaptiveBins.levels(atoms)]
    assert sizes[0] == 57
    assert sizes[1] < 1100
    assert sizes[2] < 34_000


def test_values_in_order_are_evened_out_like_numbers_and_others_are_not():
    counts = np.array([3000.0, 900, 300, 120, 40, 0, 0, 35, 0, 0, 0, 40, 0, 0, 0, 0])
    found = []
    for values in (tuple(range(16)), tuple("ponmlkjihgfedcba")):
        cells = AdaptiveBins.of(Categorical("x", values)).updated(counts, 30.0**2, counts.sum(), even=True)
        found.append(cells.counts)
    assert np.ptp(found[0][5:]) < 5 < np.ptp(found[1][5:])
    assert found[0][:3] == pytest.approx(counts[:3], abs=60)


@pytest.mark.parametrize("name", ["integer", "few integers", "decimals", "crossing reals", "missing"])
@pytest.mark.parametrize("most", [1, 5])
def test_evidence_on_places_says_which_values_meet_it_and_they_stay_the_same(name, most):
    column, rng = NUMBERS[name], np.random.default_rng(3)
    cells = AdaptiveBins.of(column)
    cells = replace(cells, counts=rng.gamma(0.5, 100, len(cells.groups)) * (rng.random(len(cells.groups)) < 0.8))
    cells = cells.grouped(0, most)
    codes = rng.random(20_000) * cells.size
    values = cells.drawn(codes, rng)
    low, high = np.nanquantile(values, [0.3, 0.6])
    for condition in (Between(low, high), Between(low, low), Missing()):
        if isinstance(condition, Missing) and not column.missing:
            continue
        evidence, axis = cells.given(column, condition)
        assert isinstance(evidence, PlacedEvidence)
        kept = evidence.likelihood(codes) > 0
        meets = (
            np.isnan(values)
            if isinstance(condition, Missing)
            else (values >= condition.low) & (values <= condition.high)
        )
        if isinstance(condition, Missing) or condition.low < condition.high:
            assert (kept != meets).mean() < 1e-3  # of reals, one at the very end may go either way
        np.testing.assert_allclose(axis.drawn(evidence.moved(codes[kept]), rng), values[kept], rtol=1e-9, atol=1e-9)
        # groups, as ever: the share of each that meets it
        shares = np.bincount(codes.astype(int), weights=kept, minlength=cells.size) / np.bincount(codes.astype(int))
        np.testing.assert_allclose(evidence.likelihood(np.arange(cells.size)), shares, atol=0.04)
