from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedsynth.errors import FedsynthError
from fedsynth.models.mrf import MarkovRandomField

SIZES = (2, 3, 1, 4, 3)
cliques_of_five = st.lists(
    st.sets(st.integers(0, 4), min_size=1, max_size=3).map(lambda c: tuple(sorted(c))), max_size=6
)


def random_model(
    cliques: Any, seed: int, sizes: Any = SIZES, total: float = 100.0, scale: float = 2.0
) -> tuple[MarkovRandomField, list[Any]]:
    rng = np.random.default_rng(seed)
    potentials = [rng.normal(0, scale, [sizes[c] for c in clique]) for clique in cliques]
    return MarkovRandomField(sizes, total, cliques, potentials), potentials


def joint_of(sizes: Any, cliques: Any, potentials: Any) -> tuple[Any, float]:
    """The whole table and the log normaliser, by enumeration."""
    log_joint = np.zeros(sizes)
    for clique, potential in zip(cliques, potentials, strict=True):
        shape = [sizes[c] if c in clique else 1 for c in range(len(sizes))]
        log_joint = log_joint + potential.reshape(shape)
    log_z = float(np.logaddexp.reduce(log_joint.ravel()))
    return np.exp(log_joint - log_z), log_z


@given(cliques_of_five, st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_marginals_and_likelihood_equal_enumeration(cliques, seed):
    model, potentials = random_model(cliques, seed)
    joint, log_z = joint_of(SIZES, cliques, potentials)
    assert model.log_partition == pytest.approx(log_z, rel=1e-12, abs=1e-12)
    subsets = [c for k in range(6) for c in itertools.combinations(range(5), k)]
    found = model.marginals(subsets)
    for clique in subsets:
        others = tuple(c for c in range(5) if c not in clique)
        np.testing.assert_allclose(found[clique], 100 * joint.sum(axis=others), rtol=1e-12, atol=1e-12)
    codes = list(np.indices(SIZES).reshape(5, -1))
    np.testing.assert_allclose(model.log_likelihood(codes), np.log(joint.ravel()), rtol=1e-12, atol=1e-12)


def test_long_paths_and_branches_equal_enumeration():
    cliques = [(0, 1), (1, 2), (2, 3), (3, 4), (2, 5), (5, 6)]
    sizes = (2, 3, 2, 3, 2, 3, 2)
    model, potentials = random_model(cliques, 1, sizes)
    joint, _ = joint_of(sizes, cliques, potentials)
    for clique in [(0, 6), (0, 4, 6), (4, 0), (6, 0, 4, 1), (1, 3, 5), (6, 5, 4, 3, 2, 1, 0)]:
        others = tuple(c for c in range(7) if c not in clique)
        kept = sorted(clique)
        expected = 100 * joint.sum(axis=others).transpose([kept.index(c) for c in clique])
        np.testing.assert_allclose(model.marginal(clique), expected, rtol=1e-12)


def test_a_marginal_asked_twice_is_the_same_read_only_array():
    model, _ = random_model([(0, 1), (1, 3)], 0)
    first = model.marginal((0, 3))
    assert model.marginal((0, 3)).base is first.base
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0] = 1.0


def test_remembered_marginals_stay_below_64_megabytes():
    model = MarkovRandomField((200, 200, 200, 200), 10.0, [], [])
    for pair in itertools.permutations(range(4), 3):
        model.marginal(pair)  # 64 MB each
    assert sum(table.nbytes for table in model._memo.values()) <= 64 << 20


def test_potentials_that_span_thousands_stay_finite():
    sizes = (2, 2, 2)
    wild = [np.array([[0.0, -3000.0], [2000.0, -1000.0]]), np.array([[-5000.0, 4000.0], [0.0, 0.0]])]
    model = MarkovRandomField(sizes, 1.0, [(0, 1), (1, 2)], wild)
    joint, log_z = joint_of(sizes, [(0, 1), (1, 2)], wild)
    assert model.log_partition == pytest.approx(log_z, rel=1e-14)
    np.testing.assert_allclose(model.marginal((0, 1, 2)), joint, atol=1e-12)
    assert np.isfinite(model.log_likelihood(list(np.indices(sizes).reshape(3, -1)))).all()


@pytest.mark.parametrize("rows", [0, 1, 7, 5000])
def test_sampled_counts_are_within_one_of_expected_in_every_group(rows):
    cliques = [(0, 1), (1, 3), (3, 4)]
    model, _ = random_model(cliques, 2)
    codes = model.sample(rows, np.random.default_rng(0))
    assert [c.dtype for c in codes] == [np.uint8] * 5
    assert all(len(c) == rows and (rows == 0 or c.max() < s) for c, s in zip(codes, SIZES, strict=True))
    for node in model._tree.nodes:
        separator, rest = node.separator, [c for c in node.axes if c not in node.separator]
        columns = [*separator, *rest]
        shape = [SIZES[c] for c in columns]
        counts = np.zeros(shape)
        np.add.at(counts, tuple(codes[c] for c in columns), 1)
        table = model.marginal(columns)
        axes = tuple(range(len(separator), len(columns)))
        group = counts.sum(axis=axes, keepdims=True)
        expected = group * table / table.sum(axis=axes, keepdims=True)
        assert np.abs(counts - expected).max() < 1.0 + 1e-9


def test_columns_that_are_conditionally_independent_come_out_independent():
    # 1, 2 and 3 are independent given 0: had their order inside a group a pattern, they would not be
    sizes = (2, 4, 4, 4)
    model, _ = random_model([(0, 1), (0, 2), (0, 3)], 4, sizes, scale=0.5)
    codes = model.sample(40_000, np.random.default_rng(1))
    for group in range(2):
        inside = codes[0] == group
        for a, b in [(1, 2), (1, 3), (2, 3)]:
            table = np.zeros((4, 4))
            np.add.at(table, (codes[a][inside], codes[b][inside]), 1)
            assert stats.chi2_contingency(table).pvalue > 1e-4
    # and rows come in random order
    first, second = np.bincount(codes[1][:20_000], minlength=4), np.bincount(codes[1][20_000:], minlength=4)
    assert stats.chi2_contingency(np.stack([first, second])).pvalue > 1e-4


def test_single_rows_follow_the_joint_distribution():
    sizes = (2, 3, 2)
    cliques = [(0, 1), (1, 2)]
    model, potentials = random_model(cliques, 5, sizes, scale=1.0)
    joint, _ = joint_of(sizes, cliques, potentials)
    rng = np.random.default_rng(2)
    flat = [np.ravel_multi_index([int(c[0]) for c in model.sample(1, rng)], sizes) for _ in range(3000)]
    counts = np.bincount(flat, minlength=12)
    assert stats.chisquare(counts, 3000 * joint.ravel()).pvalue > 1e-4


def test_the_same_seed_gives_the_same_rows():
    model, _ = random_model([(0, 1), (1, 3, 4)], 6)
    a, b = (model.sample(1000, np.random.default_rng(9)) for _ in range(2))
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


def test_round_trip_restores_every_bit():
    model, _ = random_model([(0, 1), (1, 3), (2,)], 7, total=1 / 3)
    meta, arrays = model.to_arrays()
    again = MarkovRandomField.from_arrays(json.loads(json.dumps(meta)), arrays)
    assert (again.sizes, again.total, again.cliques) == (model.sizes, model.total, model.cliques)
    for ours, theirs in zip(model.potentials, again.potentials, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(model.marginal((0, 4)), again.marginal((0, 4)))


def test_one_row_one_column_one_value():
    model = MarkovRandomField((1,), 1.0, [], [])
    assert model.marginal((0,)).tolist() == [1.0]
    assert model.marginal(()).item() == 1.0
    assert model.sample(3, np.random.default_rng(0))[0].tolist() == [0, 0, 0]
    assert model.log_likelihood([np.zeros(2, np.uint8)]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "act",
    [
        lambda m: m.marginal((0, 0)),
        lambda m: m.marginal((0, 5)),
        lambda m: m.log_likelihood([np.zeros(1, np.uint8)]),
        lambda m: MarkovRandomField((2,), 0.0, [], []),
        lambda m: MarkovRandomField((), 1.0, [], []),
        lambda m: MarkovRandomField((2,), 1.0, [(0,)], [np.array([0.0, -np.inf])]),
        lambda m: MarkovRandomField((2,), 1.0, [(0,)], [np.zeros(3)]),
    ],
)
def test_wrong_arguments_say_what_to_pass(act):
    model, _ = random_model([(0, 1)], 0)
    with pytest.raises(FedsynthError, match="pass"):
        act(model)
