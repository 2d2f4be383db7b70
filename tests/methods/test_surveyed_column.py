"""A column's bins from noisy counts alone: generous bounds, tails that noise invents, few rows beside a heap."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from fedsynth.errors import InvalidParameter
from fedsynth.methods.survey import _levels
from fedsynth.methods.surveyed_column import column_bins
from fedsynth.models.adaptive_bins import FACTOR, AdaptiveBins
from fedsynth.models.conditions import Between
from fedsynth.models.estimate import Measurement
from fedsynth.schema import Categorical, Datetime, Numeric, Schema
from fedsynth.schema.columns import Column

ROWS = 20_000
NOISE = 30.7  # rows, in the first level's cells, of a survey at epsilon 1
STEPS = (1.0, 1.5, 3.0, 3.0)  # the same of each level, relative to the first


def surveyed(
    column: Column, values: np.ndarray, std: float, rng: np.random.Generator, total: float | None = None
) -> AdaptiveBins:
    """Return the bins from noisy counts of ``values``: numbers (NaN: missing), or codes of a category."""
    levels = _levels(Schema((column,)))[0]
    tables = []
    for level, step in zip(levels, STEPS, strict=False):
        codes = np.zeros(len(values), np.int64) if column.is_number else values.astype(np.int64)
        places = level.axis(0).places(codes, values.astype(np.float64))
        counts = np.bincount(places, minlength=len(level.groups)) + rng.normal(0, step * std, len(level.groups))
        tables.append(Measurement((0,), counts, step * std))
    return column_bins(column, levels, tables, float(len(values) if total is None else total), 0.0)


def drawn(cells: AdaptiveBins, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Return so many values (codes of a category) drawn from the estimated counts."""
    held = np.bincount(cells.groups, weights=cells.counts)
    return cells.drawn(np.repeat(np.arange(cells.size), rng.multinomial(rows, held / held.sum())), rng)


# ---------------------------------------------------------------------------------------------------------------------
# Bounds far above all rows


def amounts(rng: np.random.Generator) -> np.ndarray:
    """Return lognormal amounts (10, 50, 99 %: 4.3, 19.9, 324), but 6 % of them exactly 100."""
    return np.where(rng.random(ROWS) < 0.06, 100.0, np.exp(rng.normal(np.log(19.9), 1.2, ROWS)))


KINDS: dict[str, Callable[[float], Numeric]] = {
    "decimals": lambda bound: Numeric("x", 0.0, bound, decimals=2),
    "integers": lambda bound: Numeric("x", 0, int(bound), integer=True),
    "floats": lambda bound: Numeric("x", 0.0, bound),
    "negatives": lambda bound: Numeric("x", -bound, bound, decimals=2),
    "above zero": lambda bound: Numeric("x", 0.5, bound, decimals=2),
}


@pytest.mark.parametrize("bound", [1e5, 1e6, 1e7, 1e9, 1e12])
@pytest.mark.parametrize("kind", KINDS)
def test_a_generous_bound_does_not_destroy_a_number(kind, bound):
    """Medians of 5 seeds. Where a bound was 10,000 times the median, all rows got one value, 1,000 times too large."""
    column, found = KINDS[kind](bound), []
    for seed in range(5):
        rng = np.random.default_rng([seed, int(np.log10(bound))])
        real = np.maximum(np.round(amounts(rng), 0 if kind == "integers" else 2), column.low)
        if kind == "negatives":
            real *= rng.choice([-1.0, 1.0], ROWS)
        made = drawn(surveyed(column, real, NOISE, rng), ROWS, rng)
        size = [np.abs(values) for values in (made, real)]
        if kind == "integers":  # between 4 and 5, one row decides
            size = [values + rng.uniform(-0.5, 0.5, ROWS) for values in size]
        ratios = [np.quantile(size[0], q) / np.quantile(size[1], q) for q in (0.1, 0.5, 0.9, 0.99)]
        found.append([*ratios, (np.abs(made) == 100.0).mean(), (made < 0).mean() - (real < 0).mean()])
    *middle, high, heap, negative = np.median(found, axis=0)
    assert middle == pytest.approx([1, 1, 1], abs=0.1)
    assert high == pytest.approx(1, abs=0.25)
    assert heap == pytest.approx(0.06, abs=0.015)
    assert negative == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_cells_are_divided_by_magnitude_next_to_zero_alone(kind):
    column = KINDS[kind](1e9)
    levels = AdaptiveBins.levels(column)
    grid = levels[0].grid
    assert grid is not None
    width, low = grid.upper - grid.lower, max(column.low, -1e9)
    wide = (column.high - low) / 32
    assert width.max() == pytest.approx(wide, rel=1e-6)
    assert (np.isclose(width, wide, rtol=1e-6)).sum() >= 30  # all but those next to zero
    inner = np.log(width[(width > 1000) & (width < 0.6 * wide) & (grid.lower > 0)])
    assert np.diff(inner) == pytest.approx(np.full(len(inner) - 1, np.log(FACTOR)), abs=0.01)
    assert len(grid) <= 120
    assert 25_000 < len(levels[2].groups) < 33_000


def test_times_are_divided_evenly():
    for column in (Datetime("t", "1950-01-01", "2030-01-01"), Datetime("t", "1990-01-01", "2030-01-01", unit="D")):
        grid = AdaptiveBins.of(column).grid
        assert grid is not None
        assert len(grid) <= 36
        width = (grid.upper - grid.lower)[~grid.points]
        assert width[:-1].max() < 1.1 * np.sort(width)[len(width) // 2]


def test_rows_of_many_values_in_a_cell_that_no_level_divides_are_no_heap():
    """Real numbers below 2^-40 of their bound: one cell has them all, and got its roundest number, 0."""
    rng = np.random.default_rng(0)
    column = Numeric("x", 0.0, 1e14)
    made = drawn(surveyed(column, rng.uniform(10, 80, ROWS), NOISE, rng), ROWS, rng)
    assert len(np.unique(made)) > ROWS / 2


# ---------------------------------------------------------------------------------------------------------------------
# Tails

SHAPES: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "lognormal, sigma 1": lambda rng: np.exp(rng.normal(3, 1, ROWS)),
    "lognormal, sigma 1.5": lambda rng: np.exp(rng.normal(3, 1.5, ROWS)),
    "gamma": lambda rng: rng.gamma(2, 50, ROWS),
    "half zeros": lambda rng: np.where(rng.random(ROWS) < 0.5, 0.0, np.exp(rng.normal(5, 1, ROWS))),
    "normal": lambda rng: np.abs(rng.normal(100, 15, ROWS)),
}
BOUNDS = (4, 10, 30, 100)  # times the largest value


def faults(std: float, seeds: int) -> tuple[float, float]:
    """Return the shares of surveys with a mean off by more than 20 %, and with rows above twice the largest value."""
    off, above = [], []
    for (name, draw), bound, seed in itertools.product(SHAPES.items(), BOUNDS, range(seeds)):
        rng = np.random.default_rng([seed, bound, len(name)])
        real = np.round(draw(rng), 2)
        column = Numeric("x", 0.0, float(np.ceil(bound * real.max())), decimals=2)
        made = drawn(surveyed(column, real, std, rng), ROWS, rng)
        off.append(abs(made.mean() / real.mean() - 1) > 0.2)
        above.append(made.max() > 2 * real.max())
    return float(np.mean(off)), float(np.mean(above))


@pytest.mark.parametrize(("noise", "most"), [(1.0, 0.02), (3.0, 0.08)])
def test_noise_invents_no_tails(noise, most):
    """Of 40 surveys. Every third had rows far above all real ones, and a mean that was off."""
    off, above = faults(noise * NOISE, 2)
    assert off <= most
    assert above <= 0.025


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "most"), [(1.0, 0.02), (3.0, 0.06)])
def test_noise_invents_no_tails_in_two_hundred_surveys(noise, most):
    off, above = faults(noise * NOISE, 10)
    assert off <= most
    assert above <= 0.01


def test_a_far_heap_of_eight_deviations_is_kept():
    kept = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        real = np.round(np.exp(rng.normal(3, 1, ROWS)), 2)
        heap = round(8 * NOISE)
        real[:heap] = 80_000.0
        cells = surveyed(Numeric("x", 0.0, 100_000.0, decimals=2), real, NOISE, rng)
        assert cells.grid is not None
        kept.append(cells.counts[: len(cells.grid)][cells.grid.lower > 70_000].sum() / heap)
    assert np.mean(np.array(kept) > 0.5) > 0.9
    assert np.median(kept) == pytest.approx(1, abs=0.2)


def spread(values: np.ndarray) -> float:
    return float(np.log(values.std()))


def test_rows_that_noise_hides_in_a_tail_are_expected_where_its_density_leads(monkeypatch):
    errors: dict[str, list[float]] = {"with": [], "without": []}
    for name in errors:
        if name == "without":
            monkeypatch.setattr(AdaptiveBins, "with_tails", lambda self, *args: self)
        for seed in range(30):
            rng = np.random.default_rng(seed)
            real = np.minimum(np.exp(rng.normal(1, 0.8, 10_000)), 100.0)
            made = drawn(surveyed(Numeric("x", 0.0, 100.0), real, 60.0, rng), 10_000, rng)
            errors[name].append(abs(spread(made) - spread(real)))
    assert np.mean(errors["with"]) < 0.9 * np.mean(errors["without"])


@pytest.mark.parametrize("side", [1, -1])
def test_a_sharp_end_gets_next_to_no_tail(side):
    beyond = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        made = drawn(
            surveyed(Numeric("x", 0.0, 100.0), 50 + side * rng.uniform(-45, 12.5, 10_000), 60.0, rng), 10_000, rng
        )
        beyond.append((side * (made - 50) > 12.5).sum())
    assert np.mean(beyond) < 100


def test_without_noise_every_row_stays_where_it_is():
    rng = np.random.default_rng(0)
    column = Numeric("x", 0.0, 1e9, decimals=2, missing=True)
    real = np.round(np.where(rng.random(3000) < 0.4, 0.0, np.exp(rng.normal(5, 2, 3000))), 2)
    real[:50] = np.nan
    cells = surveyed(column, real, 1e-9, rng)
    places = cells.axis(0).places(np.zeros(3000, dtype=np.int64), real.astype(np.float64))
    exact = np.bincount(places, minlength=cells.size)
    assert np.bincount(cells.groups, weights=cells.counts) == pytest.approx(exact, abs=0.01)
    assert cells.unplaced == 0


# ---------------------------------------------------------------------------------------------------------------------
# Few rows beside a heap

FEW, ALL = 566, 16_152
VALUES: dict[str, tuple[Numeric, Callable[[np.random.Generator], np.ndarray]]] = {
    "lognormal": (Numeric("x", 0.0, 1e5, decimals=2), lambda rng: np.exp(rng.normal(5, 1, FEW))),
    "wide": (Numeric("x", 0.0, 1e6, decimals=2), lambda rng: np.exp(rng.normal(5, 1.5, FEW))),
    "floats": (Numeric("x", 0.0, 1e7), lambda rng: np.exp(rng.normal(5, 1, FEW))),
    "uniform": (Numeric("x", -1e5, 1e5, decimals=2), lambda rng: rng.uniform(100, 1000, FEW)),
    "counts": (Numeric("x", 0, 1000, integer=True), lambda rng: rng.geometric(0.2, FEW).astype(float)),
    "few counts": (Numeric("x", 0, 90, integer=True), lambda rng: rng.geometric(0.2, FEW).astype(float)),
}


def few_beside_zeros(name: str, deviations: float, seed: int) -> tuple[np.ndarray, np.ndarray, AdaptiveBins]:
    """Return 16,152 rows of which 566 (so many ``deviations`` of the noise) are not zero, synthetic ones, and bins."""
    column, draw = VALUES[name]
    rng = np.random.default_rng([seed, int(deviations)])
    real = np.zeros(ALL)
    real[:FEW] = np.round(draw(rng), 2)
    cells = surveyed(column, real, FEW / deviations, rng)
    return real, drawn(cells, ALL, rng), cells


@pytest.mark.parametrize("deviations", [7, 10, 16])
@pytest.mark.parametrize("name", VALUES)
def test_few_rows_that_are_not_zero_do_not_vanish(name, deviations):
    """Each of their cells has fewer rows than noise hides, but the zeros are counted: the others are the rest."""
    near, inside = [], []
    for seed in range(20):
        real, made, cells = few_beside_zeros(name, deviations, seed)
        near.append(abs((made != 0).sum() - FEW) <= 3 * FEW / deviations)
        inside.append(np.abs(made).max() <= 4 * real.max())
        assert cells.unplaced == 0 or cells.unplaced == pytest.approx((made != 0).sum(), abs=5 * np.sqrt(FEW))
    assert sum(near) >= 19
    assert sum(inside) >= 19


def test_a_model_says_of_how_many_rows_the_place_is_unknown():
    for seed in range(5):
        _, made, cells = few_beside_zeros("wide", 5, seed)
        assert cells.unplaced == pytest.approx(FEW, abs=3 * FEW / 5)
        assert np.abs(made).max() < 1
        assert AdaptiveBins.from_arrays(cells.to_arrays()).unplaced == cells.unplaced
        assert cells.grouped(50.0, 5).unplaced == cells.unplaced
        assert cells.given(VALUES["wide"][0], Between(0.0, 10.0))[1].unplaced == cells.unplaced
    _, _, cells = few_beside_zeros("lognormal", 60, 0)
    assert cells.unplaced == 0
    hostile = cells.to_arrays() | {"unplaced": np.array(-1.0)}
    with pytest.raises(InvalidParameter, match="unplaced"):
        AdaptiveBins.from_arrays(hostile)


@pytest.mark.parametrize("heap", [99.0, np.nan], ids=["a price", "missing"])
def test_few_rows_beside_another_heap_do_not_vanish(heap):
    """Rows in the same first cell as a price are partly counted as its own."""
    column = Numeric("x", 0.0, 1e5, decimals=2, missing=True)
    found = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        real = np.full(ALL, heap)
        real[:FEW] = np.round(np.exp(rng.normal(5, 1, FEW)), 2)
        made = drawn(surveyed(column, real, FEW / 8, rng), ALL, rng)
        found.append((~(np.isnan(made) if np.isnan(heap) else made == heap)).sum())
    assert sum(abs(np.array(found) - FEW) <= 3 * FEW / 8) >= 16
    assert sum(np.array(found) == 0) <= 1


def test_few_rows_of_an_ordered_category_do_not_vanish():
    column = Categorical("x", tuple(range(30)), missing=True)
    near = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        real = np.zeros(ALL)
        real[:FEW] = np.minimum(rng.geometric(0.1, FEW), 29)
        made = drawn(surveyed(column, real, FEW / 7, rng), ALL, rng)
        near.append(abs((made != 0).sum() - FEW) <= 3 * FEW / 7)
    assert sum(near) >= 19


def test_no_rows_are_invented_beside_a_heap():
    column, others = Numeric("x", 0.0, 1e5, decimals=2), []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        others.append((drawn(surveyed(column, np.zeros(ALL), 80.0, rng), ALL, rng) != 0).sum())
    assert sum(other > 0 for other in others) <= 1


def test_where_noise_hides_everything_all_rows_are_unplaced():
    rng = np.random.default_rng(0)
    cells = surveyed(Numeric("x", 0.0, 1e5), rng.uniform(0, 1e5, 300), 500.0, rng)
    assert cells.unplaced == pytest.approx(300)
    assert cells.counts.sum() == pytest.approx(300)


def test_a_doubtful_total_proves_no_rows():
    """The total of the table's own counts has their noise: what it leaves beside the zeros may be that alone."""
    column, rng = VALUES["lognormal"][0], np.random.default_rng(1)
    levels = _levels(Schema((column,)))[0]
    places = [level.axis(0).places(np.zeros(ALL, dtype=np.int64), np.zeros(ALL)) for level in levels]
    tables = [
        Measurement((0,), np.bincount(at, minlength=len(one.groups)) + rng.normal(0, 80, len(one.groups)), 80.0)
        for at, one in zip(places, levels, strict=True)
    ]
    for doubt, few in ((0.0, True), (300.0**2, False)):
        cells = column_bins(column, levels, tables, ALL + 600.0, doubt)
        assert (cells.unplaced > 0) == few
