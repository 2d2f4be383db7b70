"""Similarity beside SDMetrics' own values, associations, and scores of sameness by hand."""

import itertools
import json
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist, jensenshannon
from scipy.stats import ks_2samp, wasserstein_distance
from tests.public_data import public_data

from fedsynth.data.draft import draft_schema
from fedsynth.data.read import read_frame
from fedsynth.encoding import encode
from fedsynth.evaluation import detection, fidelity, similarity
from fedsynth.evaluation.dependence import (
    association,
    association_differences,
    association_matrix,
    pairwise_correlation_difference,
)
from fedsynth.rows import Table
from fedsynth.schema import Boolean, Categorical, Column, Datetime, Numeric, Schema

GOLDEN = json.loads((Path(__file__).parent / "golden" / "sdmetrics.json").read_text(encoding="utf-8"))


def mixed_schema():
    return Schema(
        (
            Numeric("age", 0, 100, integer=True),
            Numeric("pay", 0, 1000, missing=True),
            Categorical("job", ("cook", "nurse", "clerk"), missing=True),
            Boolean("well"),
        )
    )


def mixed_frame(rows, seed, slope=4.0):
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 90, rows)
    pay = np.where(rng.random(rows) < 0.1, np.nan, np.clip(slope * age + rng.normal(0, 80, rows), 0, 1000))
    job = np.where(rng.random(rows) < 0.05, None, np.array(["cook", "nurse", "clerk"])[(age // 30) % 3])
    return pd.DataFrame({"age": age, "pay": pay, "job": job, "well": rng.random(rows) < 0.3 + age / 200})


@pytest.fixture(scope="module")
def two():
    schema = mixed_schema()
    return schema, encode(schema, mixed_frame(900, 0)), encode(schema, mixed_frame(700, 1, slope=1.0))


def golden_tables(case):
    """Return a golden case's real and synthetic rows under the smallest schema that admits them all."""
    frames = [pd.DataFrame(case[side]) for side in ("real", "synthetic")]
    columns: list[Column] = []
    for name, kind in GOLDEN["columns"].items():
        values = [value for frame in frames for value in frame[name].dropna()]
        if kind == "number":
            columns.append(Numeric(name, float(min(values)), float(max(values)), missing=True))
        elif kind == "boolean":
            columns.append(Boolean(name, missing=True))
        else:
            columns.append(Categorical(name, tuple(sorted(set(values))), missing=True))
    schema = Schema(tuple(columns))
    return [encode(schema, frame) for frame in frames]


@pytest.mark.parametrize("name", GOLDEN["cases"])
def test_scores_are_those_that_sdmetrics_computed(name):
    case = GOLDEN["cases"][name]
    real, other = golden_tables(case)
    pairs = list(itertools.combinations(range(len(real.codes)), 2))
    got = {
        "similarity": similarity.column_similarity(real, other),
        "coverage": similarity.coverage(real, other),
        "missing": similarity.missing_similarity(real, other),
        "pairs": similarity.pair_similarity(real, other, pairs),
    }
    for what, expected in case["scores"].items():
        assert len(expected) > 5
        # What SDMetrics leaves undefined is not in the file, and has a score nevertheless.
        assert {key: got[what][key] for key in expected} == pytest.approx(expected, abs=1e-9), what
        assert np.isfinite(list(got[what].values())).all()


def test_numbers_that_differ_by_rounding_alone_are_equal():
    # SDMetrics compares 14 decimals: 0.1 + 0.2 is 0.3.
    assert similarity.ks_complement(np.array([0.3]), np.array([0.1 + 0.2])) == 1.0


def test_a_table_is_like_itself(two):
    _, real, _ = two
    pairs = list(itertools.combinations(range(4), 2))
    for scores in (
        similarity.column_similarity(real, real),
        similarity.missing_similarity(real, real),
        similarity.coverage(real, real),
        similarity.pair_similarity(real, real, pairs),
        similarity.pair_similarity_by_deciles(real, real, pairs),
    ):
        assert list(scores.values()) == pytest.approx([1.0] * len(scores))


def test_missing_and_coverage_by_hand():
    schema = Schema((Categorical("a", ("x", "y", "z"), missing=True), Numeric("n", 0, 10)))
    real = encode(schema, pd.DataFrame({"a": ["x", "y", "z", None], "n": [0.0, 2.0, 4.0, 10.0]}))
    other = encode(schema, pd.DataFrame({"a": ["x", "x", None, None], "n": [2.0, 3.0, 4.0, 8.0]}))
    assert similarity.missing_similarity(real, other) == {"a": pytest.approx(1 - abs(0.25 - 0.5))}
    assert similarity.coverage(real, other) == {"a": pytest.approx(1 / 3), "n": pytest.approx(1 - 0.2 - 0.2)}


def test_deciles_see_what_equal_bins_do_not():
    schema = Schema((Numeric("n", 0, 1e6), Boolean("b")))
    rng = np.random.default_rng(0)
    tail = rng.lognormal(0, 3, 4000)
    real = encode(schema, pd.DataFrame({"n": tail, "b": tail > np.median(tail)}))
    other = encode(schema, pd.DataFrame({"n": tail, "b": rng.permutation(tail > np.median(tail))}))
    (equal,) = similarity.pair_similarity(real, other, [(0, 1)]).values()
    (deciles,) = similarity.pair_similarity_by_deciles(real, other, [(0, 1)]).values()
    assert equal > 0.98
    assert deciles < 0.6


def plain_fidelity(real, other, cut):
    """FedTabDiff's fidelity as a formula, row by row; missing values are left out of columns, a value of pairs."""

    def frequencies(values):
        counts = Counter(values)
        return {value: count / counts.total() for value, count in counts.items()}

    def variation(one, two):
        p, q = frequencies(one), frequencies(two)
        return sum(abs(p.get(value, 0) - q.get(value, 0)) for value in p.keys() | q.keys()) / 2

    def discrete(frame, name):
        if not pd.api.types.is_numeric_dtype(real[name]) or real[name].dtype == bool:
            return ["missing" if pd.isna(value) else value for value in frame[name]]
        edges = cut(real[name].dropna().to_numpy())
        return ["missing" if np.isnan(value) else sum(value >= edge for edge in edges) for value in frame[name]]

    def numeric(name):
        return pd.api.types.is_numeric_dtype(real[name]) and real[name].dtype != bool

    columns, pairs = [], []
    for name in real:
        one, two = real[name].dropna().to_numpy(), other[name].dropna().to_numpy()
        columns.append(1 - (ks_2samp(one, two).statistic if numeric(name) else variation(one, two)))
    for left, right in itertools.combinations(real, 2):
        if numeric(left) and numeric(right):
            rho, sigma = (frame[[left, right]].corr().iloc[0, 1] for frame in (real, other))
            pairs.append(1 - abs(rho - sigma) / 2)
        else:
            cells = [zip(discrete(frame, left), discrete(frame, right), strict=True) for frame in (real, other)]
            pairs.append(1 - variation(*cells))
    return np.mean(columns), np.mean(pairs)


def test_the_fidelity_of_fedtabdiff_is_its_formula(two):
    frame, other = mixed_frame(900, 0), mixed_frame(700, 1, slope=1.0)
    found = similarity.sdmetrics_fidelity(two[1], two[2])
    equal = plain_fidelity(frame, other, lambda values: np.linspace(values.min(), values.max(), 11)[1:-1])
    deciles = plain_fidelity(frame, other, lambda values: np.unique(np.quantile(values, np.arange(1, 10) / 10)))
    assert (found["columns"], found["pairs"]) == pytest.approx(equal)
    assert (found["columns"], found["pairs, deciles"]) == pytest.approx(deciles)
    assert equal[1] != pytest.approx(deciles[1], abs=1e-3)
    assert found[""] == pytest.approx(np.mean(equal))
    assert found["deciles"] == pytest.approx(np.mean(deciles))


def test_the_fidelity_of_one_column_is_that_of_the_column():
    schema = Schema((Categorical("a", ("x", "y")),))
    real, other = (encode(schema, pd.DataFrame({"a": list(text)})) for text in ("xxxy", "xxyy"))
    assert set(similarity.sdmetrics_fidelity(real, other).values()) == {0.75}


def test_thousands_of_values_are_counted_by_what_occurs():
    # Two columns of 3,709 and 1,911 values have seven million cells, and a hundred rows.
    schema = Schema((Categorical("vendor", tuple(range(3709))), Categorical("contract", tuple(range(1911)))))
    rng = np.random.default_rng(0)
    frames = [pd.DataFrame({"vendor": rng.integers(0, 40, 100), "contract": rng.integers(0, 3, 100)}) for _ in range(2)]
    frames[1].loc[:9] = [3708, 1910]
    real, other = (encode(schema, frame) for frame in frames)
    found = similarity.sdmetrics_fidelity(real, other)
    tracemalloc.start()
    (pair,) = similarity.pair_similarity(real, other, [(0, 1)]).values()
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    columns, pairs = plain_fidelity(frames[0].astype(str), frames[1].astype(str), None)
    assert (found["columns"], found["pairs"]) == pytest.approx((columns, pairs), abs=1e-5)
    assert pair == found["pairs"]


def test_constant_and_empty_columns_have_scores():
    schema = Schema((Numeric("n", 0, 1, missing=True), Numeric("c", 5, 5), Categorical("k", ("only",))))
    real = encode(schema, pd.DataFrame({"n": [None, None, None], "c": [5.0] * 3, "k": ["only"] * 3}))
    other = encode(schema, pd.DataFrame({"n": [0.5, None, None], "c": [5.0] * 3, "k": ["only"] * 3}))
    assert similarity.column_similarity(real, other) == {"n": 0.0, "c": 1.0, "k": 1.0}
    assert similarity.coverage(real, real) == {"n": 1.0, "c": 1.0, "k": 1.0}
    assert all(np.isfinite(v) for v in similarity.pair_similarity(real, other, [(0, 1), (0, 2), (1, 2)]).values())
    assert fidelity.wasserstein(real, other) == {"n": 1.0, "c": 0.0}
    assert all(np.isfinite(v) for v in fidelity.hellinger(real, other).values())
    assert np.isfinite(detection.log_cluster(real, other, 0))
    assert (association_matrix(real) == np.eye(3)).all()


# ---------------------------------------------------------------------------------------------------------------------
# Associations


def test_pearson_leaves_out_missing_pairs(two):
    _, real, _ = two
    frame = mixed_frame(900, 0)
    assert association(real, 0, 1) == pytest.approx(frame["age"].corr(frame["pay"]))


def test_cramers_v_is_bias_corrected():
    # 2 x 2 table [[8, 2], [2, 8]]: phi^2 = 0.36, minus 1/19, over (2 - 1/19) - 1.
    schema = Schema((Boolean("a"), Boolean("b")))
    cells = [(0, 0)] * 8 + [(0, 1)] * 2 + [(1, 0)] * 2 + [(1, 1)] * 8
    table = Table(schema, tuple(np.array(column) for column in zip(*cells, strict=True)))
    assert association(table, 0, 1) == pytest.approx(np.sqrt((0.36 - 1 / 19) / (18 / 19)))
    independent = [(a, b) for a in (0, 1) for b in (0, 1)] * 5
    assert association(Table(schema, tuple(np.array(c) for c in zip(*independent, strict=True))), 0, 1) == 0.0


def test_correlation_ratio_by_hand():
    # Groups {1, 3} and {5, 7}: between 2 * (2 - 4)^2 * 2 = 16, in all 20.
    schema = Schema((Boolean("g"), Numeric("x", 0, 10)))
    table = encode(schema, pd.DataFrame({"g": [False, False, True, True], "x": [1.0, 3.0, 5.0, 7.0]}))
    assert association(table, 0, 1) == association(table, 1, 0) == pytest.approx(np.sqrt(16 / 20))


def test_correlation_difference_counts_each_pair_twice(two):
    _, real, other = two
    pairs = list(itertools.combinations(range(4), 2))
    differences = association_differences(real, other, pairs)
    norm = pairwise_correlation_difference(association_matrix(real), association_matrix(other))
    assert norm == pytest.approx(np.sqrt(2 * sum(one**2 for one in differences.values())))


# ---------------------------------------------------------------------------------------------------------------------
# Distances of distributions


def two_booleans(real_share, other_share, rows=100):
    schema = Schema((Boolean("b"),))
    return [Table(schema, ((np.arange(rows) < share * rows).astype(np.uint8),)) for share in (real_share, other_share)]


def test_hellinger_and_jensen_shannon_by_hand():
    real, other = two_booleans(0.5, 0.9)
    assert fidelity.hellinger(real, other)["b"] == pytest.approx(np.sqrt(1 - np.sqrt(0.5 * 0.9) - np.sqrt(0.5 * 0.1)))

    def entropy(p):
        return -p * np.log2(p) - (1 - p) * np.log2(1 - p)

    divergence = entropy(0.7) - (entropy(0.5) + entropy(0.9)) / 2
    assert fidelity.jensen_shannon(real, other)["b"] == pytest.approx(divergence)
    assert fidelity.jensen_shannon_distance(real, other)["b"] == pytest.approx(np.sqrt(divergence))
    assert fidelity.jensen_shannon_distance(real, real) == {"b": 0.0}
    assert fidelity.hellinger(*two_booleans(0.0, 1.0)) == {"b": 1.0}


def test_heaps_are_numbers_that_many_rows_have_exactly():
    day = Datetime("day", "2020-01-01", "2030-01-01", unit="D", missing=True)
    schema = Schema((Numeric("pay", 0, 10_000), day, Boolean("b")))

    def table(thousands: int, days: int) -> Table:
        pay = np.concatenate([np.full(thousands, 1000.0), np.full(20, 0.5), np.linspace(1, 900, 980 - thousands)])
        day = np.concatenate([np.full(days, "2024-02-29"), np.full(1000 - days, None)])
        return encode(schema, pd.DataFrame({"pay": pay, "day": day, "b": True}))

    real = table(170, 10)
    heaps = fidelity.heaps_of(real)
    assert list(heaps) == ["pay = 0.5", "pay = 1,000", "day = 2024-02-29"]
    found = fidelity.heaps_kept(real, table(7, 5), heaps)
    assert found.details == {"pay = 0.5": 0.02, "pay = 1,000": 0.007, "day = 2024-02-29": 0.005}
    assert found.value == pytest.approx(2 / 3)
    # Three standard errors of 17 % in 1,000 rows are 3.6 points, and more in fewer rows.
    assert fidelity.heaps_kept(real, table(205, 10), heaps).value == 1
    assert fidelity.heaps_kept(real, table(207, 10), heaps).value == pytest.approx(2 / 3)
    assert fidelity.heaps_kept(real, table(207, 10).take(np.arange(0, 1000, 2)), heaps).value == 1
    assert fidelity.heaps_of(table(9, 0)).keys() == {"pay = 0.5"}  # 9 rows of 1,000 are no heap


def test_small_tables_have_no_heaps():
    schema = Schema((Numeric("x", 0, 100),))
    values = np.concatenate([np.full(9, 1.0), np.arange(10, 30)])
    assert fidelity.heaps_of(encode(schema, pd.DataFrame({"x": values}))) == {}


def test_quantile_errors_by_hand():
    schema = Schema((Numeric("x", 0, 1000), Numeric("zeros", 0, 1000), Numeric("same", 0, 1000, missing=True)))

    def table(scale: float) -> Table:
        tail = np.concatenate([np.zeros(970), np.full(30, 8 * scale)])
        return encode(schema, pd.DataFrame({"x": np.arange(1, 1001) * scale / 2, "zeros": tail, "same": 5.0}))

    real = table(2.0)
    ranges = fidelity.quantile_ranges(real)
    # Of the numbers 1 to 1,000 the quantiles are 50 and 950; of zeros with 3 % sixteens both are 0.
    assert ranges == {0: 900.0, 1: 16.0}
    errors = fidelity.quantile_errors(real, table(1.0), ranges)
    assert errors == pytest.approx(
        {
            "x, 1 %": 5 / 900,
            "x, 50 %": 250 / 900,
            "x, 90 %": 450 / 900,
            "x, 99 %": 495 / 900,
            "zeros, 1 %": 0,
            "zeros, 50 %": 0,
            "zeros, 90 %": 0,
            "zeros, 99 %": 8 / 16,
        }
    )
    assert set(fidelity.quantile_errors(real, real, ranges).values()) == {0.0}


def test_hellinger_counts_values_beyond_the_real_range_with_the_outer_bins():
    schema = Schema((Numeric("x", 0, 100),))
    real = encode(schema, pd.DataFrame({"x": np.linspace(40, 60, 200)}))
    beyond = encode(schema, pd.DataFrame({"x": np.full(50, 99.0)}))
    assert fidelity.hellinger(real, beyond)["x"] == pytest.approx(np.sqrt(1 - np.sqrt(10 / 200)))


def test_wasserstein_in_shares_of_the_real_range():
    schema = Schema((Numeric("x", 0, 100),))
    real = encode(schema, pd.DataFrame({"x": [10.0, 20.0, 30.0]}))
    moved = encode(schema, pd.DataFrame({"x": [15.0, 25.0, 35.0]}))
    assert fidelity.wasserstein(real, moved) == {"x": pytest.approx(5 / 20)}
    assert fidelity.wasserstein_on_own_scales(real, moved) == {"x": pytest.approx(0.0)}


def test_plane_wasserstein_is_the_cheapest_matching():
    schema = Schema((Numeric("x", 0, 1), Numeric("y", 0, 1)))
    rng = np.random.default_rng(1)
    one, two_ = rng.random((6, 2)), rng.random((6, 2))
    real, other = (encode(schema, pd.DataFrame(points, columns=["x", "y"])) for points in (one, two_))
    both = np.concatenate([one, two_])
    scaled = (both - both.min(axis=0)) / np.ptp(both, axis=0)
    cost = np.abs(scaled[:6, None] - scaled[None, 6:]).sum(axis=2)
    cheapest = min(np.mean([cost[i, j] for i, j in enumerate(p)]) for p in itertools.permutations(range(6)))
    assert fidelity.wasserstein_2d(real, other, [(0, 1)], rows=6, seed=0) == {"x × y": pytest.approx(cheapest)}


@pytest.mark.parametrize(("shift", "decimals"), [(0.0, 9), (0.3, 9), (2.0, 9), (0.0, 0), (0.3, 1)])
def test_reduced_costs_have_the_same_cheapest_partners(shift, decimals):
    """With few decimals, many rows are in both tables, some of them several times."""
    rng = np.random.default_rng(4)
    schema = Schema((Numeric("x", -9, 9), Numeric("y", -9, 9)))
    one, two = np.round(rng.normal(0, 1, (80, 2)), min(decimals, 1)), np.round(rng.normal(shift, 1, (80, 2)), decimals)
    real, other = (encode(schema, pd.DataFrame(points, columns=["x", "y"])) for points in (one, two))
    both = np.concatenate([one, two])
    one, two = ((points - both.min(axis=0)) / np.ptp(both, axis=0) for points in (one, two))
    cost = cdist(one, two, "cityblock")
    expected = cost[linear_sum_assignment(cost)].mean()
    assert fidelity.wasserstein_2d(real, other, [(0, 1)], rows=80, seed=0) == {"x × y": pytest.approx(expected)}


def test_one_way_distances_are_those_of_scipy():
    rng = np.random.default_rng(5)
    schema = Schema((Numeric("x", 0, 1), Categorical("c", tuple("abcde"))))
    real, other = (
        encode(schema, pd.DataFrame({"x": np.round(rng.beta(2, b, rows), 2), "c": rng.choice(list("abcd")[:b], rows)}))
        for rows, b in ((70, 3), (90, 4))
    )
    x, z = real.numbers[0], other.numbers[0]
    scale = np.ptp(x)
    assert fidelity.wasserstein(real, other)["x"] == pytest.approx(wasserstein_distance(x, z) / scale)
    p, q = (np.bincount(table.codes[1], minlength=5) for table in (real, other))
    assert fidelity.jensen_shannon_distance(real, other)["c"] == pytest.approx(jensenshannon(p, q, base=2))


def test_range_queries_by_hand():
    # Of one boolean column, every query asks for one value: the answer is off by the difference of shares.
    real, other = two_booleans(0.5, 0.8)
    assert fidelity.range_query_error(real, other, order=1, queries=50) == pytest.approx(0.3)
    # Of a number at 1/4 against 3/4: P(lo <= a <= hi) = a - (1 - a)(-log(1 - a))... by simulation instead.
    schema = Schema((Numeric("x", 0, 1),))
    real, other = (encode(schema, pd.DataFrame({"x": [at, at]})) for at in (0.25, 0.75))
    rng = np.random.default_rng(5)
    low = rng.random(400_000)
    high = low + (1 - low) * rng.random(400_000)
    truth = np.mean(((low <= 0.25) & (high >= 0.25)) != ((low <= 0.75) & (high >= 0.75)))
    error = fidelity.range_query_error(real, other, order=1, queries=20_000, seed=3)
    assert error == pytest.approx(truth, abs=4 * np.sqrt(truth * (1 - truth) / 20_000))


# ---------------------------------------------------------------------------------------------------------------------
# Detection


def test_propensity_knows_the_same_from_the_other():
    schema = Schema((Numeric("x", -10, 10), Numeric("y", -10, 10)))

    def normal(mean, seed):
        return encode(
            schema,
            pd.DataFrame(np.clip(np.random.default_rng(seed).normal(mean, 1, (2000, 2)), -10, 10), columns=["x", "y"]),
        )

    assert detection.propensity_mse(normal(0, 0), normal(0, 1), seed=0) < 0.02
    assert detection.propensity_mse(normal(-5, 0), normal(5, 1), seed=0) == pytest.approx(0.25, abs=1e-6)


def test_log_cluster_by_hand():
    # Two far groups, one of real rows only, the other of synthetic ones: shares 1 and 0, each 1/2 off.
    schema = Schema((Categorical("k", ("a", "b")),))
    real, other = Table(schema, (np.zeros(50, np.uint8),)), Table(schema, (np.ones(50, np.uint8),))
    assert detection.log_cluster(real, other, seed=0) == pytest.approx(np.log(0.25))
    assert detection.log_cluster(real, real, seed=0) == pytest.approx(2 * np.log(0.25 / 50))


def test_shuffled_columns_keep_column_scores_and_lose_pair_scores():
    frame = read_frame(public_data("adult.csv")).iloc[:12_000]
    schema = draft_schema(frame).schema
    table = encode(schema, frame)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(table))
    real, fresh = table.take(order[:6000]), table.take(order[6000:])
    ways = [rng.permutation(len(fresh)) for _ in fresh.codes]
    shuffled = Table(
        schema,
        tuple(column[way] for column, way in zip(fresh.codes, ways, strict=True)),
        {column: values[ways[column]] for column, values in fresh.numbers.items()},
    )
    pairs = list(itertools.combinations(range(len(schema.names)), 2))

    def mean(scores):
        return np.mean(list(scores.values()))

    assert mean(similarity.column_similarity(real, fresh)) > 0.98
    assert mean(similarity.column_similarity(real, shuffled)) == pytest.approx(
        mean(similarity.column_similarity(real, fresh))
    )
    assert mean(similarity.pair_similarity(real, fresh, pairs)) > 0.96
    assert mean(similarity.pair_similarity(real, shuffled, pairs)) < 0.93
    assert detection.propensity_mse(real, fresh, 0) < 0.02
    assert detection.propensity_mse(real, shuffled, 0) > 0.06
    assert mean(association_differences(real, shuffled, pairs)) > 5 * mean(association_differences(real, fresh, pairs))
