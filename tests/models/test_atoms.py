"""Values that many rows share: found in noisy counts, given the roundest number, kept by files and conditions."""

from __future__ import annotations

import numpy as np
import pytest

from fedsynth.models.adaptive_bins import AdaptiveBins
from fedsynth.models.atoms import Atoms, Level, roundest, separate
from fedsynth.models.conditions import Between
from fedsynth.schema import Datetime, Numeric

STDS = (30.0, 45.0, 90.0)  # of a survey's levels, as far as their prices go: 1, 1.5 and 3
ROWS = 10_000
LEAST = ROWS / 256


@pytest.mark.parametrize(
    ("low", "high", "per_unit", "expected"),
    [
        (999.91, 1000.2, 100, 1000.0),
        (449.98, 450.03, 100, 450.0),
        (0.19998, 0.20001, 0, 0.2),
        (3.333251953125, 3.33355712890625, 0, 3.3335),  # a five at the end, else the middle
        (3.31, 3.34, 0, 3.32),
        (-0.61, -0.59, 0, -0.6),
        (-1250.0, -1180.0, 1, -1200.0),
        (9.98, 9.99, 100, 9.98),
        (473.68, 473.68, 100, 473.68),
        (-2.0, 3.0, 1, 0.0),
        (2.1e-9, 2.9e-9, 0, 2.5e-9),
        (1.9e29, 2.1e29, 0, 2e29),
    ],
)
def test_the_roundest_number_has_the_fewest_digits(low, high, per_unit, expected):
    assert roundest(low, high, per_unit) == expected


def test_neighbouring_doubles_have_no_rounder_number_between_them():
    low = 1 / 3
    assert roundest(low, low, 0) == low
    assert low <= roundest(low, np.nextafter(low, 1), 0) <= np.nextafter(low, 1)


def test_a_round_time_is_midnight():
    seconds = Datetime("t", "2000-01-01", "2030-01-01", unit="s")
    day = 19_000 * 86_400
    assert seconds.round_steps == (86_400, 3600, 60)
    assert roundest(day - 5000, day + 9000, 1, seconds.round_steps) == day
    assert roundest(day + 5000, day + 9000, 1, seconds.round_steps) == day + 7200
    assert Datetime("t", "2000-01-01", "2030-01-01", unit="D").round_steps == ()
    assert Datetime("t", "2000-01-01", "2030-01-01", timezone="Asia/Tokyo").round_steps == (3600, 60)


def counted(column: Numeric, numbers: np.ndarray, seed: int, stds: tuple[float, ...] = STDS) -> list[Level]:
    """Return noisy counts of ``numbers`` at the levels of a survey."""
    rng, found = np.random.default_rng(seed), []
    for level, std in zip(AdaptiveBins.levels(column), stds, strict=False):
        assert level.grid is not None
        places = level.axis(0).places(np.zeros(len(numbers), dtype=np.int64), numbers)
        exact = np.bincount(places, minlength=len(level.grid))
        found.append(Level(level.grid, exact + rng.normal(0, std, len(exact)), std))
    return found


def found_in(column: Numeric, numbers: np.ndarray, seed: int) -> tuple[Atoms, list[np.ndarray]]:
    return separate(counted(column, numbers, seed), LEAST)


REAL, CENTS = Numeric("x", 0.0, 10.0), Numeric("x", 0.0, 5000.0, decimals=2)


@pytest.mark.parametrize("seed", range(5))
def test_a_column_of_few_values_has_no_others(seed):
    """The mean of three counts of an atom is more precise than the second level's count alone."""
    values, shares = (0.125, 0.25, 0.5, 1.0, 3.5), (0.1, 0.3, 0.35, 0.2, 0.05)
    rng = np.random.default_rng(seed)
    numbers = rng.choice(values, ROWS, p=shares)
    atoms, _ = found_in(REAL, numbers, seed)
    assert atoms.values.tolist() == list(values)
    exact = [(numbers == value).sum() for value in values]
    assert np.sqrt(atoms.variances.max()) < STDS[1]
    assert (np.abs(atoms.counts - exact) < 5 * np.sqrt(atoms.variances)).all()


@pytest.mark.parametrize("seed", range(5))
def test_heaps_rise_above_the_rows_around_them(seed):
    rng = np.random.default_rng(seed)
    smooth = np.round(rng.gamma(2, 400, ROWS).clip(0, 5000), 2)
    pick = rng.random(ROWS)
    numbers = np.where(pick < 0.17, 1000.0, np.where(pick < 0.27, 450.0, np.where(pick < 0.33, 3000.0, smooth)))
    atoms, rest = found_in(CENTS, numbers, seed)
    for value in (450.0, 1000.0, 3000.0):
        (at,) = np.flatnonzero(atoms.values == value)
        assert abs(atoms.counts[at] - (numbers == value).sum()) < 5 * np.sqrt(atoms.variances[at])
    assert rest[0].sum() == pytest.approx(ROWS - atoms.counts.sum(), abs=5 * STDS[0] * np.sqrt(len(rest[0])))


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: rng.normal(5, 1, ROWS),
        lambda rng: np.exp(rng.normal(0, 1, ROWS)),
        lambda rng: rng.normal(5, 0.002, ROWS),  # hardly wider than the finest cells, of 0.0003
        lambda rng: rng.exponential(0.001, ROWS),
        lambda rng: rng.uniform(0, 10, ROWS),
        lambda rng: np.zeros(0),
    ],
    ids=["normal", "lognormal", "narrow", "steep", "flat", "no rows"],
)
def test_a_smooth_distribution_has_none(draw):
    """One of 33,000 cells exceeds 4 deviations by noise alone, and 2 coarser counts must then agree: fewer than .05."""
    many = [
        len(found_in(REAL, np.clip(draw(np.random.default_rng(seed)), 0, 10), seed)[0].values) for seed in range(10)
    ]
    assert sum(many) <= 2


def test_without_noise_no_row_is_lost():
    rng = np.random.default_rng(0)
    numbers = np.where(rng.random(ROWS) < 0.2, 2.5, rng.uniform(0, 10, ROWS))
    levels = [level._replace(std=0.0) for level in counted(REAL, numbers, 0, (1e-9, 1e-9, 1e-9))]
    atoms, rest = separate(levels, LEAST)
    assert atoms.values.tolist() == [2.5]
    for left in rest:
        assert left.sum() + atoms.counts.sum() == pytest.approx(ROWS)


def with_heap(column: Numeric, low: float, high: float, value: float) -> AdaptiveBins:
    """Return cells of 1000 evenly spread rows and an atom of 500 more, counted from ``low`` to ``high``."""
    cells = AdaptiveBins.of(column)
    cells = cells.updated(np.ones(len(cells.groups)), 1.0, 1000.0)
    one = [np.array([number]) for number in (value, low, high, 500.0, 9.0)]
    return cells.with_atoms(Atoms(*one))


@pytest.mark.parametrize("column", [REAL, Numeric("x", 0.0, 10.0, decimals=3)], ids=["real", "decimals"])
def test_a_guess_does_not_matter_for_what_is_counted(column):
    half = 0.0005 if column.per_unit else 0.0
    cells = with_heap(column, 4.4 - half, 4.45 + half, 4.42)
    assert cells.grid is not None
    assert cells.counts.sum() == pytest.approx(1500)
    numbers = np.array([4.399, 4.4, 4.41, 4.42, 4.43, 4.45, 4.451])
    places = cells.axis(0).places(np.zeros(7, dtype=np.int64), numbers)
    assert len(set(places[1:6])) == 1
    assert len(set(places)) == 3
    (atom,) = np.flatnonzero(cells.grid.single & (cells.counts[: len(cells.grid)] >= 500))
    assert cells.grid.centres[atom] == pytest.approx(4.42, abs=1e-12)
    assert (np.diff(cells.grid.cuts) > 0).all()
    grouped = cells.grouped(20.0, 12)
    assert len(set(grouped.groups[np.isin(cells.groups, places[1:6])])) == 1


@pytest.mark.parametrize("column", [REAL, Numeric("x", 0.0, 10.0, decimals=3)], ids=["real", "decimals"])
@pytest.mark.parametrize("value", [4.4, 4.42, 4.45])
def test_rows_of_an_atom_are_that_value_also_from_a_file_and_under_conditions(column, value):
    half = 0.0005 if column.per_unit else 0.0
    cells = with_heap(column, 4.4 - half, 4.45 + half, value).grouped(20.0, 6)
    saved = AdaptiveBins.from_arrays(cells.to_arrays())
    rng = np.random.default_rng(0)
    groups = rng.choice(cells.size, 50_000, p=np.bincount(cells.groups, weights=cells.counts) / 1500)
    for one in (cells, saved):
        drawn = one.drawn(groups, np.random.default_rng(1))
        assert (drawn == value).mean() == pytest.approx(1 / 3, abs=0.01)
        inside = (drawn >= 4.3) & (drawn <= value)
        evidence, given = one.given(column, Between(4.3, value))
        assert evidence.likelihood(groups).mean() == pytest.approx(inside.mean(), abs=0.01)
        kept = groups[rng.random(len(groups)) < evidence.likelihood(groups)]
        under = given.drawn(kept, rng)
        assert under.min() >= 4.3
        assert under.max() <= value
        assert (under == value).mean() == pytest.approx((drawn == value).sum() / inside.sum(), abs=0.01)
        placed = groups + rng.random(len(groups))
        assert (one.drawn(placed, rng) == value).mean() == pytest.approx(1 / 3, abs=0.01)
        only, exactly = one.given(column, Between(value, value))
        at = one.groups[np.flatnonzero(one.counts >= 500)[0]]
        assert only.likelihood(np.array([at]))[0] > 0.5
        assert set(exactly.drawn(np.full(100, at), rng).tolist()) == {value}


def test_cells_are_split_into_single_values_next_to_zero_if_there_are_too_many():
    for high, missing in ((5000.0, True), (50_000.0, True), (1e9, False)):
        third = AdaptiveBins.levels(Numeric("x", 0.0, high, decimals=2, missing=missing))[-1]
        finer = third.to_values(2**19)
        assert third.grid is not None
        assert finer.grid is not None
        assert finer.grid.single.all() == (high == 5000)
        assert finer.axis(0).cells(0, missing) == len(finer.groups)
        assert np.isin(third.grid.upper, finer.grid.upper).all()
        first = min(high, finer.grid.upper[np.append(np.flatnonzero(~finer.grid.single), len(finer.grid) - 1)[0] - 1])
        assert first == pytest.approx(min(high, 2**19 / 100), rel=0.01)
        assert finer.grid.single.sum() == pytest.approx(min(100 * high, 2**19), rel=0.01)


@pytest.mark.parametrize(("low", "high"), [(-1e6, 1e6), (-1e9, 10.0), (500.0, 1e9), (-1e9, -500.0)])
def test_the_single_values_are_those_nearest_to_zero(low, high):
    third = AdaptiveBins.levels(Numeric("x", low, high, decimals=2))[-1].grid
    assert third is not None
    finer = third.to_values(2**16)
    nearest = min(max(0.0, low), high)
    values = np.arange(-20_000, 20_001) / 100 + nearest
    places = np.searchsorted(finer.upper, values[(values >= low) & (values <= high)])
    assert finer.single[places].all()
    assert len(np.unique(places)) == len(places)
    assert len(finer) <= len(third) + 2**16
