"""Structures against exhaustive search, rows against their tables, and columns cut where their rows are."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedsynth.errors import InvalidParameter
from fedsynth.models import structure as module
from fedsynth.models.adaptive_bins import PARTS, START, AdaptiveBins
from fedsynth.models.bayes_net import BayesianNetwork
from fedsynth.models.estimate import Measurement
from fedsynth.models.mrf import MarkovRandomField
from fedsynth.models.stratified import _BLOCK, even_places, stratified_uniforms
from fedsynth.models.structure import ParentSets, Structure, best_structure, dependences, mutual_information
from fedsynth.schema import Boolean, Categorical, Datetime, Numeric


def symmetric(count: int, seed: int) -> np.ndarray:
    weights = np.random.default_rng(seed).gamma(0.4, size=(count, count))
    return weights + weights.T


def worth(structure: Structure, weights: np.ndarray) -> float:
    return sum(float(weights[column, parent]) for column, own in enumerate(structure.parents) for parent in own)


def exhaustive(weights: np.ndarray, most: int, sizes: list[int], max_cells: float) -> float:
    """The best of all orders, and of all sets of parents in each."""
    best = 0.0
    for order in itertools.permutations(range(len(weights))):
        total = 0.0
        for position, column in enumerate(order):
            sets = [s for k in range(most + 1) for s in itertools.combinations(order[:position], k)]
            total += max(
                sum(weights[column, j] for j in one)
                for one in sets
                if not one or math.prod([sizes[column], *(sizes[j] for j in one)]) <= max_cells
            )
        best = max(best, total)
    return best


# ---------------------------------------------------------------------------------------------------------------------
# Structure


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("most", [0, 1, 2, 3])
@pytest.mark.parametrize("max_cells", [math.inf, 40.0, 15.0])
def test_the_structure_is_the_best_of_all(count, most, max_cells):
    weights, sizes = symmetric(count, count), [2, 3, 4, 2, 5, 3][:count]
    found = best_structure(weights, most, sizes, max_cells)
    assert worth(found, weights) == pytest.approx(exhaustive(weights, most, sizes, max_cells), rel=1e-9)
    assert all(len(own) <= most for own in found.parents)
    assert all(math.prod(sizes[j] for j in clique) <= max_cells for clique in found.cliques if len(clique) > 1)


@pytest.mark.parametrize("count", [2, 7, 30, 60])
def test_one_parent_each_is_a_maximum_spanning_tree(count):
    weights = symmetric(count, count)
    group = list(range(count))
    tree = set()
    for one, two in sorted(itertools.combinations(range(count), 2), key=lambda edge: -weights[edge]):  # Kruskal
        if group[one] != group[two]:
            tree.add((one, two))
            group = [group[two] if held == group[one] else held for held in group]
    found = best_structure(weights, 1, [2] * count)
    edges = {tuple(sorted((column, own[0]))) for column, own in enumerate(found.parents) if own}
    assert edges == tree


def test_columns_without_dependence_have_no_parents():
    weights = np.zeros((5, 5))
    weights[0, 1] = weights[1, 0] = 0.2
    weights[2, 3] = weights[3, 2] = -0.1
    for most in (1, 2):
        found = best_structure(weights, most, [3] * 5)
        assert sorted(len(own) for own in found.parents) == [0, 0, 0, 0, 1]


def test_beyond_exact_the_search_is_greedy_and_nearly_as_good(monkeypatch):
    ratios = []
    for seed in range(10):
        weights = symmetric(12, seed)
        best = worth(best_structure(weights, 2, [4] * 12), weights)
        with monkeypatch.context() as patch:
            patch.setattr(module, "EXACT", 11)
            ratios.append(worth(best_structure(weights, 2, [4] * 12), weights) / best)
    assert max(ratios) <= 1 + 1e-9
    assert min(ratios) > 0.95
    assert np.mean(ratios) > 0.98


def greedy_by_definition(choices: ParentSets) -> list[int]:
    """The greedy order, every gain looked up anew after every column."""
    count, found = len(choices.by_column), []
    for root in range(count):
        order, total = [root], 0.0
        while len(order) < count:
            before = sum(1 << column for column in order)
            gain = {c: choices.best(c, before)[0] for c in range(count) if c not in order}
            column = max(gain, key=lambda one: (gain[one], -one))
            total += gain[column]
            order.append(column)
        found.append((total, order))
    return max(found, key=lambda one: one[0])[1]


def moved_by_definition(choices: ParentSets, order: list[int]) -> list[int]:
    """The order after moves, the worth of every order added up anew."""
    best = choices.best_weight(order)
    for _ in range(10):
        before = best
        for column in list(order):
            rest = [one for one in order if one != column]
            tried = [[*rest[:at], column, *rest[at:]] for at in range(len(order))]
            moved = max(tried, key=choices.best_weight)
            if choices.best_weight(moved) > best * (1 + 1e-12):
                best, order = choices.best_weight(moved), moved
        if best <= before:
            break
    return order


@given(st.integers(2, 9), st.integers(2, 3), st.integers(0, 10_000), st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_search_finds_the_orders_that_its_definition_says(count, most, seed, ties):
    weights = symmetric(count, seed) - 0.2
    choices = ParentSets.of(np.round(weights, 1) if ties else weights, most, [3, 2, 5] * 3, 30)
    order = module._greedy_order(choices)
    assert order == greedy_by_definition(choices)
    for start in (order, np.random.default_rng(seed).permutation(count).tolist()):
        assert module._improved(choices, start) == moved_by_definition(choices, start)


def test_moves_never_lose():
    for seed in range(5):
        choices = ParentSets.of(symmetric(9, seed), 2, [3] * 9, math.inf)
        start = list(np.random.default_rng(seed).permutation(9).tolist())
        assert choices.best_weight(module._improved(choices, start)) >= choices.best_weight(start)


@given(st.integers(1, 8), st.integers(1, 3), st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_every_structure_is_a_network_over_all_columns(count, most, seed):
    rng = np.random.default_rng(seed)
    weights = np.where(rng.random((count, count)) < 0.5, symmetric(count, seed), 0.0)
    found = best_structure(np.minimum(weights, weights.T), most, [3] * count, 30)
    assert sorted(found.order) == list(range(count))  # that parents come first is checked by Structure itself


def test_what_is_no_network_is_refused():
    with pytest.raises(InvalidParameter, match="before its parents"):
        Structure((0, 1), ((1,), ()))
    with pytest.raises(InvalidParameter, match="permutation"):
        Structure((0, 0), ((), ()))
    with pytest.raises(InvalidParameter, match="parents"):
        best_structure(symmetric(3, 0), -1, [2, 2, 2])


def test_mutual_information_is_that_of_the_entropies():
    joint = np.random.default_rng(0).dirichlet(np.ones(12)).reshape(3, 4)
    expected = stats.entropy(joint.sum(axis=1)) + stats.entropy(joint.sum(axis=0)) - stats.entropy(joint.ravel())
    assert mutual_information(joint * 1234) == pytest.approx(expected, rel=1e-12)
    assert mutual_information(np.zeros((3, 4))) == 0
    assert mutual_information(np.outer([1.0, 2.0], [3.0, 1.0])) == pytest.approx(0, abs=1e-15)


def test_noise_alone_is_worth_nothing_and_dependence_is_what_it_is_without_noise():
    rng = np.random.default_rng(0)
    total, std = 20_000.0, 60.0
    share = [rng.dirichlet(np.full(n, 5.0)) for n in (8, 8, 8)]
    tables = {pair: total * np.outer(share[pair[0]], share[pair[1]]) for pair in itertools.combinations(range(3), 2)}
    tables[0, 1] = 0.7 * tables[0, 1] + 0.3 * total * np.diag(share[0])
    ones = [Measurement((j,), total * one, std) for j, one in enumerate(share)]
    exact = mutual_information(tables[0, 1])
    found = []
    for _ in range(30):
        noisy = [Measurement(pair, t + rng.normal(0, std, t.shape), std) for pair, t in tables.items()]
        weights = dependences(ones, noisy, total, rng)
        raw = mutual_information(np.maximum(noisy[1].values, 0.0))  # what clipping alone takes for dependence
        found.append((weights[0, 1], weights[0, 2], raw))
    dependent, independent, clipped = np.mean(found, axis=0)
    assert dependent == pytest.approx(exact, rel=0.25)  # noise that is taken off is that of no dependence
    assert abs(independent) < 0.2 * clipped


# ---------------------------------------------------------------------------------------------------------------------
# Rows


def random_network(sizes: list[int], parents: list[tuple[int, ...]], seed: int) -> BayesianNetwork:
    rng = np.random.default_rng(seed)
    conditionals = []
    for column, own in enumerate(parents):
        shape = (*(sizes[parent] for parent in own), sizes[column])
        table = rng.gamma(0.7, size=shape)
        table[rng.random(shape) < 0.2] = 0.0
        table[..., -1] += 1e-3
        conditionals.append(table / table.sum(axis=-1, keepdims=True))
    return BayesianNetwork(Structure(tuple(range(len(sizes))), tuple(parents)), tuple(conditionals), 100.0)


def joint_of(network: BayesianNetwork) -> np.ndarray:
    """The distribution of all columns, cell by cell, straight from the definition."""
    cells = np.indices(network.sizes).reshape(len(network.sizes), -1)
    share = np.ones(cells.shape[1])
    for column, own in enumerate(network.structure.parents):
        share *= network.conditionals[column][(*(cells[parent] for parent in own), cells[column])]
    return share


def test_rows_follow_the_tables():
    network = random_network([3, 4, 2, 5], [(), (0,), (0, 1), (1, 2)], 0)
    rows = 200_000
    drawn = network.sample(rows, np.random.default_rng(1))
    seen = np.bincount(np.ravel_multi_index(tuple(drawn), network.sizes), minlength=math.prod(network.sizes))
    expected = rows * joint_of(network)
    assert expected.sum() == pytest.approx(rows)
    assert seen[expected == 0].sum() == 0
    enough = expected >= 5
    merged = np.append(seen[enough], seen[~enough].sum()), np.append(expected[enough], expected[~enough].sum())
    assert stats.chisquare(*merged).pvalue > 1e-3


def test_log_likelihood_is_that_of_the_joint_distribution():
    network = random_network([3, 2, 4], [(), (0,), (0, 1)], 3)
    cells = np.indices(network.sizes).reshape(3, -1)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(network.log_likelihood(list(cells)), np.log(joint_of(network)), rtol=1e-12)


def test_tables_of_a_network_give_the_network_back():
    network = random_network([3, 4, 2], [(), (0,), (0, 1)], 1)
    joint = joint_of(network).reshape(network.sizes) * 5000
    again = BayesianNetwork.of_tables(network.structure, {(0, 1, 2): joint}, 5000.0)
    for one, two, own in zip(network.conditionals, again.conditionals, network.structure.parents, strict=True):
        seen = joint.sum(axis=tuple(at for at in range(3) if at not in own)) > 0 if own else np.array(True)
        np.testing.assert_allclose(np.where(seen[..., None], one, 0), np.where(seen[..., None], two, 0), atol=1e-4)


def test_parents_that_never_occur_lead_to_the_columns_own_distribution():
    table = np.array([[30.0, 10.0, 60.0], [0.0, 0.0, 0.0]])
    network = BayesianNetwork.of_tables(Structure((0, 1), ((), (0,))), {(0, 1): table}, 100.0)
    np.testing.assert_allclose(network.conditionals[1][1], [0.3, 0.1, 0.6])


def test_states_of_parents_that_never_occur_lead_to_what_the_stronger_parent_says():
    of_first = np.array([[0.9, 0.1], [0.2, 0.8]])  # the second parent says nothing
    table = 100 * of_first[:, None, :] * np.array([[0.3, 0.7], [1.0, 0.0]])[:, :, None]
    network = BayesianNetwork.of_tables(Structure((0, 1, 2), ((), (), (0, 1))), {(0, 1, 2): table}, table.sum())
    np.testing.assert_allclose(network.conditionals[2], np.stack([of_first, of_first], axis=1), atol=1e-6)


def test_rows_deviate_from_the_tables_by_far_less_than_chance():
    network = random_network([3, 4, 2, 5], [(), (0,), (0, 1), (1, 2)], 0)
    rows, joint = 50_000, joint_of(network)
    chi2 = []
    for seed in range(20):
        drawn = network.sample(rows, np.random.default_rng(seed))
        for column, own in enumerate(network.structure.parents):
            axes = [*own, column]
            table = joint.reshape(network.sizes).sum(axis=tuple(at for at in range(4) if at not in axes))
            seen = np.zeros([network.sizes[at] for at in sorted(axes)])
            np.add.at(seen, tuple(drawn[at] for at in sorted(axes)), 1)
            expected = rows * table[table > 0]
            chi2.append(float(((seen[table > 0] - expected) ** 2 / expected).sum() / (len(expected) - 1)))
    assert np.mean(chi2) < 0.1  # of independent draws: 1


def test_draws_are_uniform_each_and_independent_of_other_columns():
    groups = np.array([0, 1, 0, 2, 1, 0])
    first = np.array([stratified_uniforms(groups, np.random.default_rng(seed)) for seed in range(4000)])
    for entry in first.T:
        assert stats.kstest(entry, "uniform").pvalue > 1e-4
    rng = np.random.default_rng(0)
    one, two = (
        stratified_uniforms(np.zeros(60_000, dtype=int), rng),
        stratified_uniforms(np.zeros(60_000, dtype=int), rng),
    )
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.02
    table, _, _ = np.histogram2d(one, two, bins=20, range=[[0, 1], [0, 1]])
    assert stats.chisquare(table.ravel(), np.full(400, 150.0)).pvalue > 1e-4
    many = stratified_uniforms(np.arange(_BLOCK + 5) % 3, rng)
    assert len(many) == _BLOCK + 5
    assert many.min() >= 0
    assert many.max() < 1


def test_each_row_of_a_group_takes_each_place_equally_often():
    sizes = np.array([1, 2, 7, 12, 1, 30])
    drawn = np.array([even_places(sizes, np.random.default_rng(seed)) for seed in range(3000)])
    first = 0
    for size in sizes:
        own = drawn[:, first : first + size] - first
        assert (np.sort(own) == np.arange(size)).all()  # a permutation of the group
        for places in own.T:
            assert stats.chisquare(np.bincount(places, minlength=size)).pvalue > 1e-5 or size == 1
        first += size


@pytest.mark.parametrize("kind", ["Markov random field", "Bayesian network"])
def test_columns_without_a_common_table_follow_the_model_closely(kind):
    """Rows' own columns are drawn evenly over all values of those drawn before, not at random (before: chi2 of 1)."""
    rng, rows = np.random.default_rng(0), 30_000
    cause, left, right = (rng.dirichlet(np.full(size, 5.0)) for size in (4, 3, 5))
    tables = {(0, 1): np.outer(cause, left) * rng.uniform(0.5, 2, (4, 3)), (0, 2): np.outer(cause, right)}
    tables = {pair: table / table.sum(1, keepdims=True) * cause[:, None] for pair, table in tables.items()}
    expected = np.einsum("ab,ac->bc", tables[0, 1], tables[0, 2] / cause[:, None])
    model: MarkovRandomField | BayesianNetwork
    if kind == "Markov random field":
        potentials = [np.log(tables[0, 1]), np.log(tables[0, 2] / cause[:, None])]
        model = MarkovRandomField((4, 3, 5), rows, [(0, 1), (0, 2)], potentials)
    else:
        counts: dict[tuple[int, ...], Any] = {pair: rows * table for pair, table in tables.items()}
        counts |= {(0,): rows * cause, (1,): counts[0, 1].sum(0), (2,): counts[0, 2].sum(0)}
        model = BayesianNetwork.of_tables(Structure((0, 1, 2), ((), (0,), (0,))), counts, float(rows))
    chi2 = []
    for seed in range(20):
        _, one, two = model.sample(rows, np.random.default_rng(seed))
        seen = np.bincount(one.astype(int) * 5 + two, minlength=15)
        chi2.append(((seen - rows * expected.ravel()) ** 2 / (rows * expected.ravel())).sum() / 8)
    assert np.mean(chi2) < 0.1  # of independent draws: 1


def test_tables_are_scaled_to_what_is_known_of_a_column():
    rng = np.random.default_rng(0)
    margins = [1000 * rng.dirichlet(np.ones(n)) for n in (4, 6)]
    noisy = np.outer(*margins) / 1000 + rng.normal(0, 20, (4, 6))
    tables = {(0,): margins[0], (1,): margins[1], (0, 1): noisy}
    network = BayesianNetwork.of_tables(Structure((0, 1), ((), (0,))), tables, 1000.0)
    np.testing.assert_allclose(network.conditionals[0] @ network.conditionals[1], margins[1] / 1000, atol=1e-3)


def test_a_table_that_is_lacking_or_too_large_is_refused():
    with pytest.raises(InvalidParameter, match="no table contains"):
        BayesianNetwork.of_tables(Structure((0, 1), ((), (0,))), {(0,): np.ones(2), (1,): np.ones(2)}, 2.0)
    with pytest.raises(InvalidParameter, match="does not fit"):
        BayesianNetwork(Structure((0, 1), ((), (0,))), (np.ones(2), np.ones((3, 2))), 2.0)
    big = np.ones(((1 << 20) + 1, 1))
    with pytest.raises(InvalidParameter, match="allow fewer cells"):
        BayesianNetwork(Structure((0, 1), ((), (0,))), (np.ones((1 << 20) + 1), big), 2.0)


def test_arrays_carry_a_network_exactly():
    network = random_network([3, 4, 2], [(), (0,), (0, 1)], 1)
    meta, arrays = network.to_arrays()
    again = BayesianNetwork.from_arrays(meta, arrays)
    one, two = (n.sample(1000, np.random.default_rng(0)) for n in (network, again))
    assert all((a == b).all() for a, b in zip(one, two, strict=True))


# ---------------------------------------------------------------------------------------------------------------------
# Cells

COLUMNS = [
    Numeric("whole", 0, 99_999, integer=True),
    Numeric("cents", -5.0, 5.0, decimals=2, missing=True),
    Numeric("real", 0.0, 1.0),
    Numeric("few", 0, 3, integer=True),
    Numeric("constant", 7, 7, integer=True),
    Datetime("when", "2020-01-01", "2024-01-01", unit="D", missing=True),
]


def values_of(column: Numeric | Datetime, rng: np.random.Generator, rows: int = 4000) -> np.ndarray:
    """Numbers within the column's bounds, half of them one value, both bounds, and missing ones where admitted."""
    codes = rng.integers(0, column.size, rows)
    low, high = column.bin_edges[0], column.bin_edges[-1]
    numbers = column.encode(column.decode(codes, rng), codes < 0).numbers
    if numbers is None or column.missing:
        held = column.decode(codes, rng)
        encoded = column.encode(held, held.isna().to_numpy(dtype=bool)).numbers
        assert encoded is not None
        numbers = encoded
    numbers[: rows // 2] = numbers[~np.isnan(numbers)][0]
    numbers[-2:] = low, high
    return numbers


def places(cells: AdaptiveBins, numbers: np.ndarray) -> np.ndarray:
    """Return the group of each number (NaN where missing)."""
    return cells.axis(0).places(np.empty(0), numbers)


def told(cells: AdaptiveBins, numbers: np.ndarray) -> AdaptiveBins:
    counts = np.bincount(places(cells, numbers), minlength=cells.size).astype(float)
    return cells.updated(counts, 0.0, float(len(numbers)))


def cut(cells: AdaptiveBins, least: float) -> AdaptiveBins:
    assert cells.grid is not None
    return cells.cut(cells.grid.finer(10**6, PARTS), least)


@pytest.mark.parametrize("column", COLUMNS, ids=lambda one: one.name)
def test_cells_cut_and_grouped_hold_every_row_once_and_draw_admitted_values(column):
    rng = np.random.default_rng(0)
    numbers = values_of(column, rng)
    cells = told(AdaptiveBins.of(column), numbers)
    for _ in range(4):
        finer = cut(cells, 40.0)
        finer.axis(0).check(column.size, column.missing, is_number=True)
        assert finer.counts.sum() == pytest.approx(len(numbers))
        old = places(cells, numbers)
        np.testing.assert_array_equal(finer.whole[places(finer, numbers)], old)  # cells lie within cells
        cells = told(finer, numbers)
        np.testing.assert_allclose(cells.counts, np.bincount(places(cells, numbers), minlength=cells.size), atol=1e-9)
    grouped = cells.grouped(100.0, 12)
    groups = places(grouped, numbers)
    assert grouped.size <= 12 + column.missing
    drawn = grouped.drawn(groups, rng)
    np.testing.assert_array_equal(places(grouped, drawn), groups)
    np.testing.assert_array_equal(np.isnan(drawn), np.isnan(numbers))
    known = drawn[~np.isnan(drawn)]
    assert known.min() >= column.bin_edges[0]
    assert known.max() <= column.bin_edges[-1]
    if isinstance(column, Numeric) and column.decimals is not None:
        np.testing.assert_allclose(known, known.round(column.decimals), atol=1e-9)
    common = numbers[0]
    if column.name in ("whole", "cents", "when", "few"):  # of real numbers no cell is a point
        assert (drawn == common).mean() == pytest.approx((numbers == common).mean(), abs=0.03)


def test_a_cell_of_one_value_is_not_cut():
    cells = told(AdaptiveBins.of(Numeric("few", 0, 3, integer=True)), np.array([0.0, 1.0, 1.0, 3.0] * 100))
    assert cut(cells, 1.0).size == cells.size
    empty = told(AdaptiveBins.of(Numeric("n", 0, 1000, integer=True)), np.full(100, 900.0))
    finer = cut(empty, 0.0)
    assert 0 < finer.size - empty.size < PARTS
    assert empty.size > START / 2


def test_groups_are_neighbours_and_leave_common_values_alone():
    numbers = np.concatenate([np.zeros(9000), np.random.default_rng(0).integers(1, 500, 1000)])
    cells = told(AdaptiveBins.of(Numeric("gain", 0, 500, integer=True)), numbers)
    cells = told(cut(cells, 40.0), numbers).grouped(300.0, 10)
    groups = cells.groups
    assert (np.diff(groups) >= 0).all()
    rows = np.bincount(places(cells, numbers))
    assert rows[0] == 9000
    assert rows.min() >= 300


def test_values_of_a_category_are_grouped_by_how_common_they_are():
    column = Categorical("c", tuple("abcdefgh"))
    counts = np.array([50.0, 2.0, 400.0, 1.0, 300.0, 3.0, 4.0, 240.0])
    cells = AdaptiveBins.of(column).updated(counts, 0.0, 1000.0).grouped(5.0, 8)
    held = [frozenset(np.flatnonzero(cells.groups == group)) for group in range(cells.size)]
    assert sorted(map(sorted, held)) == [[0], [1, 3, 5, 6], [2], [4], [7]]
    drawn = cells.drawn(np.full(10_000, cells.groups[3]), np.random.default_rng(0))
    np.testing.assert_allclose(np.bincount(drawn, minlength=7)[[1, 3, 5, 6]] / 10_000, [0.2, 0.1, 0.3, 0.4], atol=0.02)
    whole = AdaptiveBins.of(column).updated(counts, 0.0, 1000.0).grouped(0.0, 8)
    np.testing.assert_array_equal(whole.drawn(np.arange(8), np.random.default_rng(0)), np.arange(8))


def test_groups_of_which_nothing_is_known_draw_their_cells_evenly():
    cells = (
        AdaptiveBins.of(Categorical("c", ("a", "b", "c"))).updated(np.array([0.0, 0.0, 9.0]), 0.0, 9.0).grouped(1.0, 3)
    )
    drawn = cells.drawn(np.full(4000, cells.groups[0]), np.random.default_rng(0))
    if cells.groups[0] == cells.groups[1] != cells.groups[2]:
        assert (drawn == 0).mean() == pytest.approx(0.5, abs=0.05)
    assert cells.size <= 2


def test_two_noisy_looks_are_better_than_either():
    rng = np.random.default_rng(0)
    column = Categorical("c", tuple(f"v{j}" for j in range(40)))
    truth = 10_000 * rng.dirichlet(np.full(40, 0.5))
    errors = []
    for _ in range(50):
        looks = [truth + rng.normal(0, std, 40) for std in (60.0, 40.0)]
        first = AdaptiveBins.of(column).updated(looks[0], 60.0**2, 10_000.0)
        second = AdaptiveBins.of(column).updated(looks[1], 40.0**2, 10_000.0)
        both = first.updated(looks[1], 40.0**2, 10_000.0)
        errors.append([((one.counts - truth) ** 2).sum() for one in (first, second, both)])
        assert both.counts.min() >= 0
        assert both.counts.sum() == pytest.approx(10_000)
    mean = np.mean(errors, axis=0)
    assert mean[2] < mean[1] < mean[0]


@pytest.mark.parametrize("column", [*COLUMNS, Boolean("b"), Categorical("c", ("x", "y"))], ids=lambda one: one.name)
def test_the_schemas_own_bins_as_cells_hold_what_the_schema_says(column):
    rng = np.random.default_rng(0)
    cells = AdaptiveBins.of_bins(column)
    assert cells.size == column.size
    if isinstance(column, Numeric | Datetime):
        codes = rng.integers(0, column.size, 2000)
        values = column.decode(codes, rng)
        missing = values.isna().to_numpy(dtype=bool)
        numbers = column.encode(values, missing).numbers
        assert numbers is not None
        cells.axis(0).check(column.size, column.missing, is_number=True)
        expected = column.encode(values, missing).codes
        np.testing.assert_array_equal(places(cells, numbers)[~missing], expected[~missing])


def test_a_network_gives_forbidden_cells_no_rows():
    mask = np.array([[True, False, False], [False, False, True]])
    table = np.array([[40.0, 30.0, 30.0], [20.0, 50.0, 30.0]])
    tables = {(0, 1): table, (0,): table.sum(axis=1), (1,): table.sum(axis=0)}
    for structure in (Structure((0, 1), ((), (0,))), Structure((1, 0), ((1,), ()))):
        network = BayesianNetwork.of_tables(structure, tables, 200.0, zeros={(0, 1): mask})
        rows = network.sample(5000, np.random.default_rng(0))
        assert not mask[rows[0], rows[1]].any()
        free = BayesianNetwork.of_tables(structure, tables, 200.0).sample(5000, np.random.default_rng(0))
        assert mask[free[0], free[1]].any()


@pytest.mark.parametrize("kind", ["Markov random field", "Bayesian network"])
@pytest.mark.parametrize(("size", "columns"), [(2, 40), (4, 20), (16, 12)])
def test_independent_columns_stay_independent_however_many_were_drawn_before(kind, size, columns):
    """Few rows agree in many columns: drawn in one order of them, columns were functions of each other (V of .7)."""
    rows = 5_000
    model: MarkovRandomField | BayesianNetwork
    if kind == "Markov random field":
        alone = [(column,) for column in range(columns)]
        model = MarkovRandomField((size,) * columns, float(rows), alone, [np.zeros(size)] * columns)
    else:
        order = tuple(range(columns))
        counts: dict[tuple[int, ...], Any] = {(column,): np.full(size, rows / size) for column in order}
        model = BayesianNetwork.of_tables(Structure(order, ((),) * columns), counts, float(rows))
    drawn = model.sample(rows, np.random.default_rng(0))
    expected = rows / size**2
    chi2 = []
    for one, two in itertools.combinations(drawn, 2):
        seen = np.bincount(one.astype(int) * size + two, minlength=size**2)
        chi2.append(((seen - expected) ** 2 / expected).sum() / (size - 1) ** 2)
    worst = stats.chi2.isf(1e-4 / len(chi2), (size - 1) ** 2) / (size - 1) ** 2  # of independent draws
    assert max(chi2) < worst
    assert np.mean(chi2) < 1
