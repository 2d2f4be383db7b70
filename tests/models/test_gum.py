"""Consistent tables, and rows moved until they match them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedsynth.errors import InvalidParameter
from fedsynth.models import gum
from fedsynth.models.estimate import Measurement, Zeros
from fedsynth.models.gum import GradualRows, GradualUpdate, _ranges, _spread, consistent

SIZES = (3, 4, 5, 2)


def joint(seed=0, rows=4000):
    """Return a dependent table of counts over all columns."""
    rng = np.random.default_rng(seed)
    share = rng.dirichlet(np.full(int(np.prod(SIZES)), 0.3))
    return rng.multinomial(rows, share).reshape(SIZES).astype(float)


def marginal(table, clique):
    return table.sum(axis=tuple(axis for axis in range(table.ndim) if axis not in clique))


def counted(rows, clique):
    shape = tuple(SIZES[column] for column in clique)
    codes = np.ravel_multi_index(tuple(rows[column] for column in clique), shape)
    return np.bincount(codes, minlength=int(np.prod(shape))).reshape(shape)


CLIQUES = [(0,), (1,), (2,), (3,), (0, 1), (1, 2), (0, 2), (2, 3)]


def noisy(table, std, seed=1):
    rng = np.random.default_rng(seed)
    exact = {clique: marginal(table, clique) for clique in CLIQUES}
    return [Measurement(clique, m + rng.normal(0, std, m.shape), std) for clique, m in exact.items()]


def test_exact_tables_stay_as_they_are():
    table = joint()
    for clique, found in consistent(noisy(table, 1e-9), table.sum()).items():
        assert found == pytest.approx(marginal(table, clique), abs=1e-5)


def test_noisy_tables_come_out_non_negative_of_one_total_and_agree():
    table = joint()
    found = consistent(noisy(table, 25.0), 4000.0, rounds=200)
    for clique, one in found.items():
        assert one.min() >= 0
        assert one.sum() == pytest.approx(4000)
        for column in clique:
            assert marginal(one, (clique.index(column),)) == pytest.approx(found[(column,)], abs=0.5)


def test_consistency_brings_tables_nearer_to_the_truth_than_clipping_does():
    table = joint(rows=1500)
    ours, clipped = [], []
    for seed in range(10):
        measured = noisy(table, 15.0, seed)
        found = consistent(measured, table.sum())
        for one in measured:
            truth = marginal(table, one.clique)
            cut = np.maximum(one.values, 0)
            clipped.append(np.abs(cut * truth.sum() / cut.sum() - truth).sum())
            ours.append(np.abs(found[one.clique] - truth).sum())
    assert np.mean(ours) < 0.9 * np.mean(clipped)


def test_tables_weigh_by_the_inverse_of_their_variance():
    exact, vague = np.array([10.0, 30.0]), np.array([20.0, 20.0])
    found = consistent([Measurement((0,), exact, 1.0), Measurement((0,), vague, 3.0)], 40.0)
    assert found[(0,)] == pytest.approx(0.9 * exact + 0.1 * vague)


def test_a_projection_of_many_cells_weighs_less():
    # A 2 x 3 table's row sums have three times the variance of a 1-way cell.
    one = Measurement((0,), np.array([10.0, 50.0]), 2.0)
    two = Measurement((0, 1), np.full((2, 3), 10.0), 2.0)
    found = consistent([one, two], 60.0, rounds=1)
    assert found[(0,)] == pytest.approx(0.75 * one.values + 0.25 * np.array([30.0, 30.0]))


def start(rows, seed):
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, size, rows) for size in SIZES]).astype(np.uint8)


def test_rows_come_to_match_their_targets():
    table = joint()
    targets = {clique: marginal(table, clique) for clique in CLIQUES}
    rows = GradualUpdate(SIZES, targets, sweeps=40).rows(start(4000, 2), np.random.default_rng(3))
    for clique, wanted in targets.items():
        shape = tuple(SIZES[column] for column in clique)
        counts = np.bincount(np.ravel_multi_index([rows[c] for c in clique], shape), minlength=wanted.size)
        assert np.abs(counts - wanted.ravel()).sum() / 4000 < 0.02, clique
    assert rows.shape == (4, 4000)


def test_what_no_target_names_is_carried_along_with_its_row():
    # Column 3 copies column 0; only a target on (0, 1) is set: copied rows keep the dependence alive.
    rng = np.random.default_rng(0)
    first = rng.integers(0, 2, 3000)
    rows = np.stack([first, rng.integers(0, 4, 3000), rng.integers(0, 5, 3000), first]).astype(np.uint8)
    target = np.outer([0.3, 0.7], [0.4, 0.3, 0.2, 0.1]) * 3000
    moved = GradualUpdate((2, 4, 5, 2), {(0, 1): target}, sweeps=10).rows(rows, rng)
    assert np.mean(moved[0] == 1) == pytest.approx(0.7, abs=0.02)
    assert np.corrcoef(moved[0], moved[3])[0, 1] > 0.5


def test_start_is_not_changed_and_the_seed_fixes_the_rows():
    table = joint()
    update = GradualUpdate(SIZES, {(0, 1): marginal(table, (0, 1))}, sweeps=5)
    begin = start(500, 0)
    before = begin.copy()
    one, two = (update.rows(begin, np.random.default_rng(7)) for _ in range(2))
    assert (one == two).all()
    assert (begin == before).all()
    assert (one != update.rows(begin, np.random.default_rng(8))).any()


def test_cells_that_should_hold_part_of_a_row_do_on_average():
    wanted = np.array([99.7, 0.3])
    update = GradualUpdate((2,), {(0,): wanted}, sweeps=1)
    found = [update.rows(np.zeros((1, 100), np.uint8), np.random.default_rng(s))[0].sum() for s in range(400)]
    assert np.mean(found) == pytest.approx(0.3, abs=4 * np.sqrt(0.21 / 400))


def test_a_hundred_by_a_hundred_by_ten_values_do_not_overflow_the_codes():
    sizes = (100, 100, 10)
    rng = np.random.default_rng(0)
    rows = np.stack([rng.integers(0, size, 2000) for size in sizes]).astype(np.uint8)
    codes = GradualUpdate(sizes, {}, 1)._codes(rows.T, (0, 1, 2))
    assert (codes == np.ravel_multi_index(tuple(rows.astype(int)), sizes)).all()


def test_sweeps_must_be_positive():
    with pytest.raises(InvalidParameter, match="sweeps"):
        GradualUpdate((2,), {}, 0)


def test_freed_rows_are_the_smallest_share_that_is_enough():
    rng = np.random.default_rng(0)
    for _ in range(200):
        counts = rng.integers(1, 50, 12)
        excess = np.maximum(0.0, rng.normal(0, 10, 12)).clip(max=counts)
        wanted = rng.uniform(0, 1.2) * excess.sum()
        freed = _spread(excess, counts, wanted)
        assert freed.sum() == pytest.approx(min(wanted, excess.sum()))
        assert (freed <= excess + 1e-12).all()
        share = np.where(excess > 0, freed / counts, 0)
        held_back = freed < excess - 1e-9
        if held_back.any():  # all of these give the same share of their rows, and nobody gives a larger one
            assert share[held_back] == pytest.approx(share.max())


def test_ranges_by_hand():
    assert _ranges(np.array([5, 0, 9]), np.array([2, 0, 3])).tolist() == [5, 6, 9, 10, 11]


def test_more_sweeps_do_not_hurt():
    table = joint(3)
    pairs: list[tuple[int, ...]] = list(itertools.combinations(range(4), 2))
    targets = {clique: marginal(table, clique) for clique in pairs}
    errors = []
    for sweeps in (1, 5, 40):
        update = GradualUpdate(SIZES, targets, sweeps)
        rows = update.rows(start(4000, 5), np.random.default_rng(0))
        errors.append(sum(float(np.abs(counted(rows, clique) - wanted).sum()) for clique, wanted in targets.items()))
    assert errors[0] > errors[1] > errors[2]


def test_many_rows_are_moved_within_windows_and_match_all_the_same(monkeypatch):
    table = joint(3)
    pairs: list[tuple[int, ...]] = list(itertools.combinations(range(4), 2))
    targets = {clique: marginal(table, clique) for clique in pairs}
    rows = GradualUpdate(SIZES, targets, 40).rows(start(20_000, 5), np.random.default_rng(0))
    monkeypatch.setattr(gum, "_WINDOW", 256)  # as 20,000 rows are to it, so are 2.5 million to the real one
    windowed = GradualUpdate(SIZES, targets, 40).rows(start(20_000, 5), np.random.default_rng(0))
    assert not np.array_equal(rows, windowed)
    for clique, wanted in targets.items():
        share = wanted / wanted.sum()
        error = float(np.abs(counted(windowed, clique) / 20_000 - share).sum())
        assert error < 0.02, clique


ZEROS: Zeros = {(0, 1): np.array([[True, False, False], [False, True, True]])}


def test_forbidden_cells_take_no_part_in_consistency():
    table = np.random.default_rng(0).multinomial(4000, np.full(24, 1 / 24)).reshape(2, 3, 4).astype(float)
    table[ZEROS[0, 1]] = 0.0
    rng = np.random.default_rng(1)
    cliques = [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)]
    exact = {clique: table.sum(axis=tuple(at for at in range(3) if at not in clique)) for clique in cliques}
    measured = [Measurement(clique, one + rng.normal(0, 20, one.shape), 20.0) for clique, one in exact.items()]
    total = float(table.sum())
    free, held = consistent(measured, total, 200), consistent(measured, total, 200, zeros=ZEROS)
    assert (held[0, 1][ZEROS[0, 1]] == 0).all()
    assert (held[0, 1, 2][ZEROS[0, 1]] == 0).all()
    assert free[0, 1][ZEROS[0, 1]].sum() > 0
    for clique, found in held.items():
        assert found.sum() == pytest.approx(total)
        assert found.min() >= 0
        for column in clique:
            others = tuple(at for at, one in enumerate(clique) if one != column)
            np.testing.assert_allclose(found.sum(axis=others), held[column,], atol=0.5)
    assert np.abs(held[0, 1] - exact[0, 1]).sum() < np.abs(free[0, 1] - exact[0, 1]).sum()


def test_a_rule_between_columns_that_were_not_measured_together_gets_a_table():
    ones = [Measurement((column,), np.full(size, 120.0 / size), 1.0) for column, size in enumerate((2, 3, 4))]
    pair = Measurement((1, 2), np.diag([30.0, 30.0, 30.0, 30.0])[:3] + np.full((3, 4), 2.5), 1.0)
    mask = np.zeros((2, 3, 4), dtype=bool)
    mask[0, 0, :] = True
    found = consistent([*ones, pair], 120.0, zeros={(0, 1, 2): mask})
    table = found[0, 1, 2]
    assert (table[mask] == 0).all()
    np.testing.assert_allclose(table.sum(axis=0), found[1, 2], atol=1e-6)
    np.testing.assert_allclose(table.sum(axis=(1, 2)), found[0,], atol=1e-6)
    update = GradualUpdate((2, 3, 4), found, 20)
    rows = np.array(GradualRows(update, 2000.0).sample(2000, np.random.default_rng(0)))
    assert ((rows[0] == 0) & (rows[1] == 0)).mean() < 0.01
