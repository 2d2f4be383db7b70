from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.models.junction_tree import GrownTree, junction_tree, junction_tree_cells, maximal

COLUMNS = 6
cliques_of_six = st.lists(
    st.sets(st.integers(0, COLUMNS - 1), min_size=1, max_size=3).map(lambda c: tuple(sorted(c))), max_size=8
)
sizes_of_six = st.lists(st.integers(1, 5), min_size=COLUMNS, max_size=COLUMNS).map(tuple)


def cells_by_any_order(sizes: Any, cliques: Any) -> int:
    """The fewest cells over all elimination orders: what no heuristic can beat."""
    best = 0
    for order in itertools.permutations(range(len(sizes))):
        around = {c: {x for q in cliques if c in q for x in q} | {c} for c in range(len(sizes))}
        found = []
        for column in order:
            bag = around.pop(column)
            found.append(tuple(sorted(bag)))
            for other in bag - {column}:
                around[other] = (around[other] | bag) - {column}
        cells = sum(math.prod(sizes[c] for c in q) for q in maximal(found))
        best = min(best or cells, cells)
    return best


def test_maximal_drops_what_others_contain():
    assert maximal([(2, 1), (1,), (0, 3), (1, 2), ()]) == ((0, 3), (1, 2))


@given(cliques_of_six)
@settings(deadline=None)
def test_maximal_is_what_its_definition_says(cliques):
    distinct = {tuple(sorted(clique)) for clique in cliques}
    assert maximal(cliques) == tuple(sorted(c for c in distinct if not any(set(c) < set(other) for other in distinct)))


@given(sizes_of_six, cliques_of_six, cliques_of_six)
@settings(max_examples=200, deadline=None)
def test_a_grown_tree_is_as_large_as_one_that_is_built_anew(sizes, cliques, candidates):
    grown = GrownTree(sizes, cliques)
    for candidate in candidates:
        assert grown.cells(candidate) == junction_tree_cells(sizes, [*cliques, candidate])
        assert grown.holds(candidate) == any(set(candidate) <= set(clique) for clique in cliques)


@pytest.mark.parametrize("extra", [0, 3, 15])
def test_trees_of_many_columns_grow_as_they_are_built(extra):
    rng = np.random.default_rng(extra)
    sizes = tuple(rng.integers(1, 30, 40).tolist())
    cliques = [tuple(sorted((column, int(rng.integers(column))))) for column in range(1, 40)]
    cliques += [tuple(sorted(rng.choice(40, 3, replace=False).tolist())) for _ in range(extra)]
    grown = GrownTree(sizes, cliques)
    for _ in range(60):
        candidate = tuple(sorted(rng.choice(40, int(rng.integers(1, 4)), replace=False).tolist()))
        assert grown.cells(candidate) == junction_tree_cells(sizes, [*cliques, candidate])


@given(sizes_of_six, cliques_of_six)
@settings(max_examples=100, deadline=None)
def test_every_tree_has_the_running_intersection_property_and_a_home_per_factor(sizes, cliques):
    factors = maximal([*cliques, *((c,) for c in range(COLUMNS))])
    tree = junction_tree(sizes, factors)
    homes = sorted(factor for node in tree.nodes for factor in node.factors)
    assert homes == list(range(len(factors)))
    for node in tree.nodes:
        assert all(set(factors[i]) <= set(node.clique) for i in node.factors)
        assert sorted(node.axes) == list(node.clique)
    for column in range(COLUMNS):
        holders = [i for i, node in enumerate(tree.nodes) if column in node.clique]
        tops = [i for i in holders if tree.nodes[i].parent not in holders]
        assert len(tops) == 1, "the nodes that hold a column hang together"
    cliques_found = [node.clique for node in tree.nodes]
    assert sorted(maximal(cliques_found)) == sorted(cliques_found)
    assert tree.cells == junction_tree_cells(sizes, cliques)


@given(sizes_of_six.map(lambda s: tuple(max(size, 2) for size in s[:5])), cliques_of_six)
@settings(max_examples=12, deadline=None)
def test_tree_size_is_near_the_best_of_all_elimination_orders(sizes, cliques):
    cliques = [tuple(c for c in clique if c < 5) for clique in cliques]
    best = cells_by_any_order(sizes, cliques)
    # On five columns greedy elimination is optimal but for ties broken the wrong way; columns of a single value, which
    # can be merged into any table for nothing, it does not look for.
    assert best <= junction_tree_cells(sizes, cliques) <= 1.5 * best


def test_cells_of_known_graphs():
    sizes = (2, 3, 5, 7)
    assert junction_tree_cells(sizes, []) == 17
    assert junction_tree_cells(sizes, [(0, 1), (1, 2), (2, 3)]) == 6 + 15 + 35
    # a four-cycle needs one chord: 1-3 through 0 and 2, or 0-2 through 1 and 3
    assert junction_tree_cells(sizes, [(0, 1), (1, 2), (2, 3), (0, 3)]) == min(
        2 * 3 * 7 + 3 * 5 * 7, 2 * 3 * 5 + 2 * 5 * 7
    )


@pytest.mark.filterwarnings("ignore")
def test_cells_are_at_most_mbis():
    mbi = pytest.importorskip("mbi")
    from mbi.junction_tree import hypothetical_model_size

    rng = np.random.default_rng(5)
    sizes = tuple(int(s) for s in rng.integers(2, 40, 10))
    domain = mbi.Domain([str(c) for c in range(10)], sizes)
    ours, theirs = [], []
    for _ in range(60):
        k = int(rng.integers(1, 9))
        cliques = [tuple(sorted(rng.choice(10, int(rng.integers(2, 4)), replace=False).tolist())) for _ in range(k)]
        ours.append(junction_tree_cells(sizes, cliques))
        named = [tuple(str(c) for c in clique) for clique in cliques]
        theirs.append(round(hypothetical_model_size(domain, named) * 2**20 / 8))
    ratio = np.array(ours) / np.array(theirs)
    # both are greedy: equal where no edge is added, ours no larger elsewhere but for rare unlucky ties
    assert np.mean(ratio <= 1.0) >= 0.9
    assert np.exp(np.log(ratio).mean()) <= 1.0
