"""MST: the tree that it draws, the values that it merges, and what becomes of them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import minimum_spanning_tree
from tests.contract.world import SCHEMA, random_table
from tests.world import contingency

from fedsynth import Budget, Categorical, Numeric, Schema, federate
from fedsynth.encoding import decode, encode
from fedsynth.errors import InvalidParameter
from fedsynth.federation.trusted import TrustedServer
from fedsynth.methods.domain import Domain
from fedsynth.methods.mst import MST, merged_columns
from fedsynth.models.estimate import Measurement
from fedsynth.rows import Table


def test_without_noise_the_tree_is_the_one_of_largest_distance_from_independence():
    table = random_table(4000, 3)
    federation = federate(
        [table.take(np.arange(0, 4000, 2)), table.take(np.arange(1, 4000, 2))],
        SCHEMA,
        Budget.none(),
        trust=TrustedServer(),
        seed=0,
    )
    tree = MST().fit(federation).info["cliques"]
    size = len(SCHEMA.columns)
    distance = np.zeros((size, size))
    for a in range(size):
        for b in range(a + 1, size):
            pair = contingency(table, (a, b))
            distance[a, b] = np.abs(pair - np.outer(pair.sum(axis=1), pair.sum(axis=0)) / len(table)).sum()
    largest = -minimum_spanning_tree(csr_array(-distance)).sum()
    assert len(tree) == size - 1
    assert sum(distance[a, b] for a, b in tree) == pytest.approx(largest, rel=1e-3)


def test_values_that_are_lost_in_the_noise_are_one_group_and_drawn_evenly():
    schema = Schema((Categorical("x", tuple("abcdef")),))
    released = [Measurement((0,), np.array([500.0, 20.0, 400.0, -3.0, 10.0, 73.0]), 10.0)]
    (cells,) = merged_columns(Domain(schema), released, 1000.0, 3.0).held
    assert cells.groups.tolist() == [0, 3, 1, 3, 3, 2]
    drawn = np.bincount(cells.drawn(np.full(30_000, 3), np.random.default_rng(0)), minlength=6)
    assert drawn[[0, 2, 5]].tolist() == [0, 0, 0]
    np.testing.assert_allclose(drawn[[1, 3, 4]], 10_000, rtol=0.02)
    (alone,) = merged_columns(Domain(schema), released, 1000.0, 0.5).held
    assert alone.groups.tolist() == list(range(6)), "one rare value has none to be merged with"


def test_the_likelihood_of_rows_is_that_of_their_groups_and_of_the_value_within():
    """Each value of the model's table is as likely as rows show it, merged or not."""
    schema = Schema((Categorical("x", tuple("abcdef")), Numeric("y", 0.0, 4.0, bins=4)))
    rng = np.random.default_rng(0)
    x, y = rng.choice(6, 2000, p=[0.5, 0.44, 0.03, 0.01, 0.01, 0.01]), rng.integers(0, 4, 2000)
    table = encode(schema, decode(schema, [x, y], rng))
    fitted = MST(rare=6.0, bins_share=0.0).fit(
        federate([table], schema, Budget(1.0, 1e-6), trust=TrustedServer(), seed=0)
    )
    assert fitted.axes[0].groups.tolist() != list(range(6))  # type: ignore[attr-defined]
    every = encode(schema, decode(schema, [np.repeat(np.arange(6), 4), np.tile(np.arange(4), 6)], rng))
    assert fitted.log_likelihood is not None
    likely = np.exp(fitted.log_likelihood(every))
    assert likely.sum() == pytest.approx(1.0)
    drawn = contingency(fitted.sample_table(100_000, 0), (0, 1)).ravel() / 100_000
    np.testing.assert_allclose(drawn, likely, atol=0.01)


def test_it_finds_what_depends_on_what():
    """x decides y, z is apart: rows keep the first and are free in the second."""
    rng = np.random.default_rng(0)
    schema = Schema(tuple(Categorical(name, tuple("abcd")) for name in "xyz"))
    x = rng.integers(0, 4, 6000)
    table = Table(
        schema, (x.astype(np.uint8), ((x + 1) % 4).astype(np.uint8), rng.integers(0, 4, 6000).astype(np.uint8))
    )
    federation = federate([table], schema, Budget(1.0, 1e-6), trust=TrustedServer(), seed=1)
    rows = MST().fit(federation).sample_table(4000, 0)
    assert np.mean((rows.codes[0] + 1) % 4 == rows.codes[1]) > 0.95
    assert abs(np.corrcoef(rows.codes[0], rows.codes[2])[0, 1]) < 0.1


def test_a_single_column_needs_no_tree():
    schema = Schema((Categorical("x", tuple("ab")),))
    table = Table(schema, (np.array([0, 0, 1], dtype=np.uint8),))
    fitted = MST().fit(federate([table], schema, Budget(50.0, 1e-6), trust=TrustedServer(), seed=0))
    assert fitted.info["cliques"] == []
    assert len(fitted.sample(7, 0)) == 7


@pytest.mark.parametrize("options", [{"rare": 0.0}, {"iterations": 0}])
def test_options_that_cannot_be_are_refused(options):
    with pytest.raises(InvalidParameter):
        MST(**options)
