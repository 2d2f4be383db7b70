"""Partitions: every row goes to one site, and the skew is the one that was asked for."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.world import contingency

from fedsynth.data.partition import (
    IID,
    ByColumn,
    ByValue,
    CappedLabelSkew,
    Cluster,
    LabelSkew,
    Quantity,
    SynthFS,
    parse_partition,
    split,
    synthfs,
)
from fedsynth.errors import FedsynthError, Unsupported
from fedsynth.rows import Table
from fedsynth.schema import Categorical, Schema

SCHEMA = Schema((Categorical("row", tuple(range(600))), Categorical("label", tuple("abcde"))))


def table(rows: int, seed: int = 0) -> Table:
    """Rows that can be told apart, and a label of unequal classes."""
    label = np.random.default_rng(seed).choice(5, rows, p=[0.5, 0.3, 0.15, 0.04, 0.01])
    return Table(SCHEMA, (np.arange(rows, dtype=np.uint16), label.astype(np.uint8)))


@given(
    rows=st.integers(1, 500),
    sites=st.integers(1, 40),
    how=st.sampled_from([IID(), Quantity(0.1), Quantity(10.0), LabelSkew(0.01), LabelSkew(0.5), LabelSkew(100.0)]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=120, deadline=None)
def test_every_row_goes_to_exactly_one_site_and_no_site_is_empty(rows, sites, how, seed):
    whole = table(rows, seed)
    if rows < sites:
        with pytest.raises(FedsynthError, match="rows"):
            split(whole, sites, how, np.random.default_rng(seed))
        return
    parts = split(whole, sites, how, np.random.default_rng(seed))
    assert len(parts) == sites
    assert sorted(np.concatenate([part.codes[0] for part in parts])) == list(range(rows))
    assert min(len(part) for part in parts) >= 1
    again = split(whole, sites, how, np.random.default_rng(seed))
    assert [part.digest for part in parts] == [part.digest for part in again]


@pytest.mark.parametrize("beta", [0.01, 0.1, 100.0])
def test_a_capped_label_skew_keeps_its_cap_and_its_minimum(beta):
    rows = table(600)
    counts = []
    for seed in range(5 if beta < 0.1 else 20):
        site = CappedLabelSkew(beta).assign(rows, 5, np.random.default_rng(seed))
        shared = np.stack([np.bincount(site[rows.codes[1] == one], minlength=5) for one in range(5)])
        counts.append(shared)
        assert shared.sum() == 600
        assert shared.sum(axis=0).min() >= 10
        for before, after in pairwise(np.cumsum(shared, axis=0)):
            full = before >= 600 / 5
            assert np.array_equal(before[full], after[full])
    # Small beta: nearly every class lies at few sites; large beta: everywhere alike.
    largest = np.mean([(one.max(axis=1) / one.sum(axis=1)).mean() for one in counts])
    assert largest > 0.6 if beta < 1 else largest < 0.4
    one, two = (CappedLabelSkew(beta).assign(rows, 5, np.random.default_rng(0)) for _ in range(2))
    assert np.array_equal(one, two)


def test_a_capped_label_skew_that_cannot_be_is_refused():
    with pytest.raises(Unsupported, match="rows"):
        CappedLabelSkew(0.5, minimum=200).assign(table(600), 5, np.random.default_rng(0))


def skew(parts: list[Table]) -> float:
    """Mean L1 distance of the sites' label shares from those of all."""
    counts = np.array([contingency(part, (1,)) for part in parts], dtype=float)
    shares = counts / counts.sum(axis=1, keepdims=True)
    return float(np.abs(shares - counts.sum(axis=0) / counts.sum()).sum(axis=1).mean())


def test_label_skew_grows_as_beta_falls_and_sizes_as_alpha_falls():
    whole = table(600)
    skews = [skew(split(whole, 10, LabelSkew(beta), np.random.default_rng(0))) for beta in (0.05, 1.0, 1000.0)]
    assert skews[0] > skews[1] > skews[2]
    sizes = [
        np.std([len(part) for part in split(whole, 10, Quantity(alpha), np.random.default_rng(0))])
        for alpha in (0.1, 1.0, 1000.0)
    ]
    assert sizes[0] > sizes[1] > sizes[2]


def test_a_label_skew_keeps_its_minimum():
    parts = split(table(600), 20, LabelSkew(0.01, minimum=12), np.random.default_rng(3))
    assert min(len(part) for part in parts) >= 12


def test_by_column_never_splits_a_value():
    whole = table(600)
    parts = split(whole, 3, ByColumn(1), np.random.default_rng(0))
    seen = [set(part.codes[1].tolist()) for part in parts]
    assert set().union(*seen) == set(range(5))
    assert sum(map(len, seen)) == 5
    with pytest.raises(Unsupported, match="'label' has 5 values"):
        split(whole, 6, ByColumn(1), np.random.default_rng(0))


def test_the_commonest_values_are_a_site_each_in_order_and_the_others_are_dropped():
    whole = table(600)
    counts = np.bincount(whole.codes[1])
    parts = split(whole, 3, ByValue(1), np.random.default_rng(0))
    assert [part.codes[1].tolist() for part in parts] == [[value] * counts[value] for value in range(3)]
    turned = Table(SCHEMA, (whole.codes[0], (4 - whole.codes[1]).astype(np.uint8)))
    parts = split(turned, 3, ByValue(1), np.random.default_rng(0))
    assert [(len(part), set(part.codes[1].tolist())) for part in parts] == [
        (counts[2], {2}),
        (counts[1], {3}),
        (counts[0], {4}),
    ]
    with pytest.raises(Unsupported, match="'label' has 5 values"):
        split(whole, 6, ByValue(1), np.random.default_rng(0))


@pytest.mark.slow  # most of the time is Numba's compilation
@pytest.mark.filterwarnings("ignore")
def test_clusters_are_similar_rows():
    pytest.importorskip("umap")
    rng = np.random.default_rng(0)
    schema = Schema(tuple(Categorical(f"c{j}", tuple(range(40))) for j in range(4)))
    centre = rng.integers(0, 4, 800)
    columns = tuple((centre * 9 + rng.integers(0, 3, 800)).astype(np.uint8) for _ in range(4))
    parts = split(Table(schema, columns), 4, Cluster(), np.random.default_rng(1))
    assert sum(len(part) for part in parts) == 800
    assert all(len(set((part.codes[0] // 9).tolist())) == 1 for part in parts)


def test_synthfs_differs_by_site_and_less_for_a_large_beta():
    def apart(beta: float) -> float:
        schema, tables = synthfs(12, beta, np.random.default_rng(0))
        assert [len(one) for one in tables] == [500] * 12
        assert schema.sizes == (41,) * 10
        means = np.array([[one.numbers[j].mean() for j in range(10)] for one in tables])
        assert means.min() >= 0
        assert means.max() <= 40
        return float(means.std(axis=0).mean())

    assert apart(1.0) > apart(3.0) > apart(5.0)


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ("iid", IID()),
        ("quantity:0.5", Quantity(0.5)),
        ("label-skew:0.1", LabelSkew(0.1)),
        ("capped-label-skew:0.1", CappedLabelSkew(0.1)),
        ("column:label", ByColumn(1)),
        ("values:label", ByValue(1)),
        ("cluster", Cluster()),
        ("synthfs:3", SynthFS(3.0)),
    ],
)
def test_every_form_is_understood(text, how):
    assert parse_partition(text, SCHEMA) == how


def test_the_label_of_a_label_skew_can_be_named():
    assert parse_partition("label-skew:2", SCHEMA, "row") == LabelSkew(2.0, 0)
    assert parse_partition("capped-label-skew:2", SCHEMA, "row") == CappedLabelSkew(2.0, 0)


@pytest.mark.parametrize("text", ["", "random", "iid:3", "quantity", "quantity:-1", "quantity:nan", "label-skew:x"])
def test_anything_else_is_refused_with_the_forms(text):
    with pytest.raises(Unsupported, match="label-skew:A"):
        parse_partition(text, SCHEMA)


def test_a_column_that_is_not_there_is_named():
    with pytest.raises(FedsynthError, match="'nowhere'"):
        parse_partition("column:nowhere", SCHEMA)
