"""Queries of Fed-TDA: the sums of the pooled rows, and the distance that one record moves them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.bench.e_step import e_step
from tests.contract.tda_strategies import mixture_sums, moments, products
from tests.methods.tda_world import (
    SCHEMA,
    encodings,
    exact,
    histograms,
    of_replicas,
    partitions,
    rows,
    scores_of,
    with_mixture,
)

from fedsynth.bench.published.tda import exact_covariance, fitted_mixtures
from fedsynth.bench.published.tda_sums import (
    EVIDENCE,
    FIXED,
    MixtureEncoding,
    MixtureSums,
    MomentSums,
    responsibilities,
    scaling,
)
from fedsynth.errors import FedsynthError, InvalidParameter
from fedsynth.federation.query import MOST_ROWS, Query, query_class
from fedsynth.federation.wire import decode, encode
from fedsynth.methods.tda import integer_scores, length_bound, longest_row
from fedsynth.methods.tda_sums import GRAIN, LARGEST_BOUND, LONGEST, Encoding, ProductSums, encoded, shortened
from fedsynth.models.normal_scores import NormalScores
from fedsynth.privacy.cost import Norms
from fedsynth.rows import Table
from fedsynth.schema import Boolean, Numeric, Schema

# ---------------------------------------------------------------------------------------------------------------------
# Sums


@pytest.mark.parametrize("how", ["empty and one row", "one town each"])
def test_mixtures_of_sites_are_those_of_the_pooled_rows(how):
    table = rows(700, 0)
    counts = histograms(table, 4096)
    fits = [
        fitted_mixtures(exact(sites), counts, 6, 25) for sites in (partitions(table)["pooled"], partitions(table)[how])
    ]
    assert set(fits[0]) == {1, 3, 4}
    for at in fits[0]:
        for name in ("weights", "means", "deviations"):
            assert (getattr(fits[1][at], name) == getattr(fits[0][at], name)).all()


def test_an_e_step_over_sites_is_that_of_the_pooled_numbers():
    table = rows(900, 1)
    rng = np.random.default_rng(0)
    coefficients = np.stack([rng.normal(size=(2, 5)), rng.normal(size=(2, 5)), -rng.random((2, 5))])
    query = MixtureSums((1, 3), coefficients)
    whole = query.answer(table)
    for sites in partitions(table).values():
        assert (np.sum([query.answer(site) for site in sites], axis=0) == whole).all()
    counts, first, second, evidence = query.split(SCHEMA, whole)
    for at, column in enumerate((1, 3)):
        described = SCHEMA.columns[column]
        assert isinstance(described, Numeric)
        centre, half = scaling(described.bin_edges)
        x = table.numbers[column][~np.isnan(table.numbers[column])]
        pooled = e_step((x - centre) / half, np.ones(len(x)), coefficients[:, at])
        assert counts[at] == pytest.approx(pooled.counts, abs=1e-6)
        assert first[at] == pytest.approx(pooled.first, abs=1e-6)
        assert second[at] == pytest.approx(pooled.second, abs=1e-6)
        assert evidence[at] == pytest.approx(float(pooled.evidence), abs=1e-2)
        assert counts[at].sum() == len(x)


@pytest.mark.parametrize("method", ["cells", "mixtures"])
def test_the_covariance_over_sites_is_that_of_the_pooled_encoded_rows(method):
    table = rows(800, 2)
    columns = of_replicas(encodings(scores_of(table)))
    if method == "mixtures":
        columns = with_mixture(columns, 1, [-800, 500, 900], [[0.3, 0.7], [10.0, 40.0], [3.0, 12.0]])
    (pooled,) = encoded(table, columns, LARGEST_BOUND)
    for sites in partitions(table).values():
        found = exact_covariance(exact(sites), columns)
        assert found == pytest.approx(np.cov(pooled.T / GRAIN, ddof=0), rel=1e-12, abs=1e-12)


def test_products_are_bit_for_bit_those_of_the_pooled_rows():
    table = rows(800, 3)
    query = ProductSums(encodings(scores_of(table)), 4 * GRAIN**2)
    pooled = query.answer(table)
    for sites in partitions(table).values():
        assert (np.sum([query.answer(site) for site in sites], axis=0) == pooled).all()


def test_chunks_of_rows_do_not_show(monkeypatch):
    table = rows(300, 5)
    queries = [
        MomentSums(of_replicas(encodings(scores_of(table))), 4 * GRAIN**2),
        MixtureSums((1, 4), np.random.default_rng(0).normal(size=(3, 2, 4))),
    ]
    whole = [query.answer(table) for query in queries]
    monkeypatch.setattr("fedsynth.methods.tda_sums._CELLS", 40)
    monkeypatch.setattr("fedsynth.bench.published.tda_sums._SHARES", 40)
    for query, expected in zip(queries, whole, strict=True):
        assert (query.answer(table) == expected).all()


# ---------------------------------------------------------------------------------------------------------------------
# Sensitivity


@given(query=products(SCHEMA) | moments(SCHEMA) | mixture_sums(SCHEMA), seed=st.integers(0, 2**32))
@settings(deadline=None)
def test_single_rows_and_pairs_of_them_stay_within_the_declaration(query, seed):
    query.check(SCHEMA)
    declared = query.sensitivity(SCHEMA)
    low, high = query.row_range(SCHEMA)
    table = rows(12, seed)
    single = [query.answer(table.take(np.array([row]))) for row in range(len(table))]
    assert (query.answer(table) == np.sum(single, axis=0)).all()
    for one in single:
        assert one.dtype == np.int64
        assert one.size == query.cells(SCHEMA)
        assert low <= one.min()
        assert one.max() <= high
        assert within(one, declared.of("add-remove"))
    for one, other in itertools.pairwise(single):
        assert within(one - other, declared.of("replace"))


def norms(change: np.ndarray) -> tuple[float, float]:
    """Return the exact L1 norm of integers, and their L2 norm."""
    values = change.tolist()
    return float(sum(map(abs, values))), math.sqrt(sum(value**2 for value in values))


def within(change: np.ndarray, declared: Norms) -> bool:
    """Say whether both norms are at most the declared ones, but for a few units in the last place."""
    return all(norm <= bound * (1 + 1e-12) for norm, bound in zip(norms(change), declared[:2], strict=True))


def worst(query: Query, seeds: int = 60) -> tuple[float, float]:
    """Return which part of the declared L1 and L2 norms single rows reach."""
    declared = query.sensitivity(SCHEMA).of("add-remove")
    found = [norms(query.answer(rows(1, seed))) for seed in range(seeds)]
    return max(one[0] for one in found) / declared[0], max(one[1] for one in found) / declared[1]


@pytest.mark.parametrize("share", [0.05, 0.5, 1.0, 4.0])
def test_products_come_near_their_declaration_however_short_rows_are_cut(share):
    axes = scores_of(rows(500, 99))
    one, two = worst(ProductSums(encodings(axes), int(share * length_bound(axes))))
    assert max(one, two) <= 1
    assert two > 0.2 / max(share, 1.0)


def test_products_of_equal_numbers_reach_the_declaration():
    columns = tuple(Encoding(np.full(len(one.scores), 777), one.cuts) for one in encodings(scores_of(rows(50, 0))))
    for bound in (6 * 777**2, 6 * 777**2 // 4):
        found = worst(ProductSums(columns, bound), seeds=5)
        assert max(found) <= 1
        assert found == pytest.approx((1, 1), rel=5e-3)


def test_replacing_a_row_by_one_of_half_the_signs_reaches_the_declaration():
    schema = Schema(tuple(Boolean(f"b{k}") for k in range(4)))
    scores = (np.array([700, 700]), np.array([700, -700]))
    query = ProductSums(tuple(Encoding(scores[k // 2]) for k in range(4)), 4 * 700**2)
    first, second = (Table(schema, (np.array([code], dtype=np.uint8),) * 4) for code in (0, 1))
    change = query.answer(first) - query.answer(second)
    declared = query.sensitivity(schema).of("replace")
    assert within(change, declared)
    assert norms(change)[1] == declared[1]


def test_an_e_step_reaches_its_declaration_and_rows_without_a_value_count_for_nothing():
    far = np.array([[[700.0, 0.0]], [[0.0, 0.0]], [[0.0, 0.0]]])
    query = MixtureSums((1,), far * 1e3)
    gone = rows(200, 0)
    missing = np.isnan(gone.numbers[1])
    assert not query.answer(gone.take(missing)).any()
    at_zero = gone.take(np.flatnonzero(gone.numbers[1] == 0)[:1])  # u = -1
    declared = query.sensitivity(SCHEMA)
    assert norms(query.answer(at_zero)) == (declared.l1, declared.l2)


@pytest.mark.parametrize("value", [2.0**99, -(2.0**99), 0.0, 2.0**100])
def test_tied_coefficients_share_one_row_out(value):
    # All log densities are equal, and so large that their differences are lost.
    query = MixtureSums((1, 3, 4), np.full((3, 3, 25), value))
    query.check(SCHEMA)
    for seed in range(20):
        counts, first, second, evidence = query.split(SCHEMA, query.answer(rows(1, seed)))
        assert set(counts.sum(axis=1)) <= {0.0, 1.0}
        assert (counts >= 0).all()
        assert (np.abs(first) <= counts).all()
        assert (np.abs(second) <= counts).all()
        assert (np.abs(evidence) <= EVIDENCE).all()


def test_no_sum_of_the_largest_number_of_rows_leaves_64_bits():
    for largest in (FIXED, LONGEST**2, LONGEST):
        assert largest * MOST_ROWS < 2**62


def test_responsibilities_are_those_of_the_densities():
    rng = np.random.default_rng(0)
    u, coefficients = rng.uniform(-1, 1, 500), rng.normal(size=(3, 6))
    log_rho = coefficients[0] + u[:, None] * coefficients[1] + u[:, None] ** 2 * coefficients[2]
    expected = np.exp(log_rho) / np.exp(log_rho).sum(axis=1, keepdims=True)
    found = responsibilities(u, coefficients)
    assert pytest.approx(expected, abs=2 / FIXED) == found[:6].T / FIXED
    assert (found[:6].sum(axis=0) == FIXED).all()
    assert found[-1] / FIXED * EVIDENCE == pytest.approx(np.log(np.exp(log_rho).sum(axis=1)), abs=EVIDENCE / FIXED)


def test_no_row_is_longer_than_its_bound():
    rng = np.random.default_rng(0)
    for bound in (1, 5, 1000, 3 * GRAIN**2, 200 * GRAIN**2):
        short = shortened(np.rint(rng.normal(0, 2000, (4000, 9))), bound)
        assert ((short**2).sum(axis=1) <= bound).all()
        assert (short == np.rint(short)).all()


# ---------------------------------------------------------------------------------------------------------------------
# Parameters


def some_encodings(at: int, **changed: Any) -> tuple[MixtureEncoding, ...]:
    columns = of_replicas(encodings(scores_of(rows(50, 0))))
    return (*columns[:at], msgspec.structs.replace(columns[at], **changed), *columns[at + 1 :])


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        (lambda: encodings(scores_of(rows(50, 0)))[1:], "5 encodings"),
        (lambda: some_encodings(0, scores=np.zeros(4, dtype=np.int64)), "5 cells"),
        (lambda: some_encodings(0, scores=np.array([0, 0, 0, 0, LONGEST + 1])), "within"),
        (lambda: some_encodings(0, scores=np.array([0, 0, 0, 0, -(2**63)])), "within"),
        (lambda: some_encodings(0, cuts=np.array([1.0])), "no numbers to apply cut points to"),
        (lambda: some_encodings(1, cuts=np.array([2.0, 1.0])), "strictly increasing"),
        (lambda: some_encodings(1, mixture=np.ones((3, 2))), "one of them"),
        (lambda: some_encodings(0, mixture=np.ones((3, 4))), "is not numeric, as a mixture needs"),
        (lambda: some_encodings(1, cuts=None, mixture=np.ones((2, 2))), "shape"),
        (lambda: some_encodings(1, cuts=None, mixture=np.array([[1.0], [0.0], [0.0]])), "out of range"),
        (lambda: some_encodings(1, cuts=None, mixture=np.array([[1.0], [np.nan], [1.0]])), "out of range"),
        (lambda: some_encodings(1, cuts=None, mixture=np.array([[1e300], [0.0], [1.0]])), "out of range"),
    ],
)
@pytest.mark.parametrize("kind", [ProductSums, MomentSums])
def test_encodings_that_do_not_fit_the_schema_are_refused(kind, columns, match):
    with pytest.raises(InvalidParameter, match=match):
        kind(columns(), GRAIN**2).check(SCHEMA)


@pytest.mark.parametrize(
    ("columns", "coefficients", "match"),
    [
        ((0,), np.zeros((3, 1, 2)), "is not numeric"),
        ((6,), np.zeros((3, 1, 2)), "is not numeric"),
        ((1,), np.zeros((3, 2, 2)), "shape"),
        ((1,), np.zeros((3, 1, 0)), "shape"),
        ((1,), np.zeros((3, 1, 257)), "shape"),
        ((1,), np.zeros((3, 1)), "shape"),
        ((1,), np.full((3, 1, 2), np.nan), "too large"),
        ((1,), np.full((3, 1, 2), 2.0**101), "too large"),
    ],
)
def test_e_steps_that_do_not_fit_the_schema_are_refused(columns, coefficients, match):
    with pytest.raises(InvalidParameter, match=match):
        MixtureSums(columns, coefficients).check(SCHEMA)


def test_a_column_whose_bounds_are_beyond_all_numbers_has_no_e_step():
    wide = Schema((Numeric("x", -1.7e308, 1.7e308, edges=(-1.7e308, 0.0, 1.7e308)),))
    with pytest.raises(InvalidParameter, match="too far apart"):
        MixtureSums((0,), np.zeros((3, 1, 2))).check(wide)


@pytest.mark.parametrize("bound", [0, -1, LARGEST_BOUND + 1, 2**63])
def test_a_bound_out_of_range_does_not_travel(bound):
    query = ProductSums(encodings(scores_of(rows(50, 0))), bound)
    with pytest.raises(FedsynthError):
        decode(encode(query), ProductSums)


@given(query=products(SCHEMA) | moments(SCHEMA) | mixture_sums(SCHEMA))
@settings(deadline=None)
def test_queries_travel_as_they_are(query: Query):
    assert query_class(query.kind, None) is type(query)
    again = decode(encode(query), type(query))
    again.check(SCHEMA)
    table = rows(5, 0)
    assert (again.answer(table) == query.answer(table)).all()


def test_the_bound_of_rows_depends_on_shares_and_cuts_few_rows():
    table = rows(4000, 0)
    axes = scores_of(table)
    bound = length_bound(axes)
    (plain,) = encoded(table, encodings(axes), LARGEST_BOUND)
    lengths = (plain**2).sum(axis=1)
    assert (lengths > bound).mean() < 0.05
    assert lengths.max() <= longest_row(axes)
    assert bound < longest_row(axes) < len(axes) * LONGEST**2
    flat = [NormalScores.of(np.ones(2))] * 3
    assert length_bound(flat) == longest_row(flat) == 3 * integer_scores(flat[0]).max() ** 2  # no row is longer


def test_an_answer_takes_the_same_steps_whatever_the_numbers_are(monkeypatch):
    calls: list[tuple[int, ...]] = []

    def counted(u: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        calls.append(u.shape)
        return responsibilities(u, coefficients)

    monkeypatch.setattr("fedsynth.bench.published.tda_sums.responsibilities", counted)
    query = MixtureSums((1,), np.zeros((3, 1, 3)))
    table = rows(500, 0)
    for numbers in (table.numbers[1], np.full(500, 7.0), np.full(500, np.nan)):
        query.answer(Table(SCHEMA, table.codes, {**table.numbers, 1: numbers}))
    assert len(set(calls)) == 1
