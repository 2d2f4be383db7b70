"""Exact matches, nearest neighbours and hold-out shares against libraries and cases worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import binomtest

from fedsynth.errors import Unsupported
from fedsynth.evaluation.distances import (
    NeighbourIndex,
    closeness,
    holdout_share,
    keys_by_code,
    keys_by_value,
    matches,
    median,
    nearest,
    share,
)
from fedsynth.evaluation.features import MixedSpace
from fedsynth.evaluation.score import EvaluationTables
from fedsynth.rows import Table
from fedsynth.schema import Categorical, Numeric, Schema

MIXED = Schema((Categorical("a", ("x", "y", "z")), Numeric("n", 0, 10, bins=5, missing=True)))
LINE = Schema((Numeric("n", -9, 9, bins=6),))


def mixed(letters: list[int], numbers: list[float]) -> Table:
    values = np.array(numbers)
    codes = np.where(np.isnan(values), 5, np.minimum(np.nan_to_num(values) // 2, 4)).astype(np.uint8)
    return Table(MIXED, (np.array(letters, dtype=np.uint8), codes), {1: values})


def line(numbers: np.ndarray | list[float]) -> Table:
    values = np.asarray(numbers, dtype=float)
    return Table(LINE, (np.clip((values + 9) // 3, 0, 5).astype(np.uint8),), {0: values})


def gaussian(rows: int, rng: np.random.Generator, columns: int = 3) -> Table:
    values = np.clip(rng.standard_normal((rows, columns)), -9, 9)
    schema = Schema(tuple(Numeric(f"n{j}", -9, 9, bins=6) for j in range(columns)))
    codes = tuple(np.clip((one + 9) // 3, 0, 5).astype(np.uint8) for one in values.T)
    return Table(schema, codes, dict(enumerate(values.T.copy())))


def dice(rows: int, rng: np.random.Generator, columns: int, levels: int) -> Table:
    schema = Schema(tuple(Categorical(f"c{j}", tuple(range(levels))) for j in range(columns)))
    return Table(schema, tuple(rng.integers(0, levels, (columns, rows)).astype(np.uint8)))


def test_rows_match_by_code_or_by_value():
    real = mixed([0, 0, 1, 2], [1.0, 1.5, np.nan, 4.0])
    synthetic = mixed([0, 1, 2, 2, 1], [1.5, np.nan, 4.5, np.nan, 4.0])
    by_code = matches(*keys_by_code([synthetic, real]))
    by_value = matches(*keys_by_value([synthetic, real]))
    assert by_code.tolist() == [2, 1, 1, 0, 0]  # 1.0 and 1.5 share a bin, so do 4.0 and 4.5
    assert by_value.tolist() == [1, 1, 0, 0, 0]  # missing equals missing


def test_row_numbers_are_exact_where_mixed_radix_would_overflow():
    rng = np.random.default_rng(0)
    base = dice(400, rng, 30, 200)  # 200^30 cells
    for column in base.codes[1:]:
        column[200:] = column[:200]  # rows that differ in the first column only
    table = base.take(rng.integers(0, 400, 3000))
    (found,) = keys_by_code([table])
    _, expected = np.unique(np.stack(table.codes, axis=1), axis=0, return_inverse=True)
    pairs = np.unique(np.stack([found, expected.ravel()], axis=1), axis=0)
    assert len(pairs) == found.max() + 1 == expected.max() + 1 <= 400


def test_share_has_the_exact_binomial_band():
    for hits, of in ((0, 12), (3, 40), (40, 40)):
        found = share(hits, of)
        exact = binomtest(hits, of).proportion_ci(method="exact")
        assert (found.value, found.low, found.high) == pytest.approx((hits / of, exact.low, exact.high))


def test_nearest_agrees_with_scipy_and_survives_cancellation():
    rng = np.random.default_rng(1)
    points = rng.random((400, 7)).astype(np.float32)
    queries = np.concatenate([rng.random((200, 7)).astype(np.float32), points[:50]])
    found, which = nearest(queries, points, 3)
    exact = cdist(queries.astype(float), points.astype(float))
    assert found == pytest.approx(np.sort(exact, axis=1)[:, :3], abs=1e-12)
    assert np.take_along_axis(exact, which, axis=1) == pytest.approx(found)
    assert (found[200:, 0] == 0).all()
    far = points * np.float32(1e-3) + np.float32(100)  # |x|^2 - 2xy + |y|^2 keeps few digits of these distances
    shifted = far.copy()
    shifted[:, 0] += np.float32(2**-14)
    assert (nearest(shifted, far)[0][:, 0] <= 2**-14 + 1e-12).all()


def test_a_sampled_crowd_still_knows_every_exact_match():
    real = line([*np.linspace(-9, 9, 500).tolist(), 2.0, 2.0])
    index = NeighbourIndex.of(real, MixedSpace.of(real), np.random.default_rng(0), 20)
    assert len(index.points) == 20
    assert (index.distances(real)[:, 0] == 0).all()
    twice = index.distances(line([2.0, 2.01]), 2)
    assert twice[0].tolist() == [0.0, 0.0]
    assert twice[1, 0] > 0
    full = NeighbourIndex.of(real, MixedSpace.of(real), np.random.default_rng(0), 1000)
    assert full.distances(line([2.0, 2.9]), 2)[:, 0] == pytest.approx(
        [0, np.abs(2.9 - real.numbers[0]).min() / 18], abs=1e-7
    )


def test_closeness_by_hand():
    real = line([0.0, 1.0, 4.0, 8.0])  # a range of 8
    index = NeighbourIndex.of(real, MixedSpace.of(real), np.random.default_rng(0), 100)
    found = closeness(line([0.0, 3.0, 6.5]), index)
    assert found.median.value == pytest.approx(1 / 8)  # 0, 1 and 1.5 eighths
    assert found.minimum == 0
    assert found.ratio.value == pytest.approx(0.5)  # 0/1, 1/2, 1.5/2.5
    double = line([0.0, 0.0])
    assert (
        closeness(double, NeighbourIndex.of(double, MixedSpace.of(double), np.random.default_rng(0), 9)).ratio.value
        == 1
    )
    # Of 10 values the second and the ninth enclose the median with 98 %, the third and the eighth with 89 %.
    assert (median(np.arange(10.0)).low, median(np.arange(10.0)).high) == (1.0, 8.0)


@pytest.mark.parametrize(("train", "held"), [(200, 200), (600, 100), (100, 400)])
def test_rows_made_without_looking_are_nearer_to_either_side_equally_often(train: int, held: int):
    shares, covered = [], 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        evidence = EvaluationTables(gaussian(train, rng), gaussian(300, rng), gaussian(held, rng))
        found = holdout_share(evidence, MixedSpace.of(evidence.real), rng, draws=5)
        assert found.side == min(train, held)
        shares.append(found.value.value)
        covered += found.value.low <= 0.5 <= found.value.high
    assert np.mean(shares) == pytest.approx(0.5, abs=3.5 * np.std(shares) / np.sqrt(60))
    assert covered >= 52  # a 95 % band covers fewer than 52 of 60 in one of 300 cases


def test_a_copy_is_nearer_to_training_rows():
    rng = np.random.default_rng(0)
    real, held = gaussian(500, rng), gaussian(500, rng)
    space = MixedSpace.of(real)
    found = holdout_share(EvaluationTables(real, real, held), space, rng)
    assert found.value.value == found.of_a_copy == 1.0
    small = held.take(np.arange(250))
    found = holdout_share(EvaluationTables(real, real, small), space, rng)
    assert found.of_a_copy == 0.75
    assert found.value.low < 0.75 < found.value.high
    assert found.value.low > 0.5
    capped = holdout_share(EvaluationTables(real, real, held), space, rng, max_points=50, max_queries=100)
    assert (capped.side, capped.queries, capped.of_a_copy) == (50, 100, 0.55)


def test_where_all_tie_the_share_is_one_half_and_a_copy_scores_no_more():
    rng = np.random.default_rng(0)
    evidence = EvaluationTables(dice(900, rng, 2, 2), dice(300, rng, 2, 2), dice(900, rng, 2, 2))
    found = holdout_share(evidence, MixedSpace.of(evidence.real), rng)
    assert found.value.value == found.of_a_copy == 0.5
    assert found.tied == 1
    with pytest.raises(Unsupported, match="never saw"):
        holdout_share(EvaluationTables(evidence.real, evidence.synthetic), MixedSpace.of(evidence.real), rng)
