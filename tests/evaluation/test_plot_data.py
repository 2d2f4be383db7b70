"""The data of a report's plots: atoms and tails keep bars of their own, and every row is counted once."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from fedsynth.evaluation.plot_data import ColumnPlotData, PlotData, plot_data
from fedsynth.evaluation.score import to_json
from fedsynth.rows import Table
from fedsynth.schema import Datetime, Numeric, Schema
from fedsynth.schema.columns import Column

Values = NDArray[np.float64]


def drawn(column: Column, real: Values, synthetic: Values) -> ColumnPlotData:
    """Return the picture of one column; codes play no part in it."""
    schema = Schema((column,))
    tables = [Table(schema, (np.zeros(len(side), dtype=np.uint8),), {0: side}) for side in (real, synthetic)]
    found = plot_data(*tables)
    assert msgspec.convert(to_json(found), PlotData) == found
    picture = found.columns[0]
    for side in (picture.real, picture.synthetic):
        assert sum(side) == pytest.approx(1)
        assert len(side) == len(picture.labels) == len(picture.roles)
    assert picture.roles.count("bin") == max(0, len(picture.edges) - 1)
    return picture


def test_zeros_have_a_bar_of_their_own_whoever_lost_them():
    rng = np.random.default_rng(0)
    real = np.where(rng.random(4000) < 0.78, 0.0, rng.lognormal(2, 1, 4000))
    synthetic = rng.uniform(0, real.max(), 4000)
    picture = drawn(Numeric("x", 0, 1e6), real, synthetic)
    assert picture.roles[:2] == ("value", "bin")
    assert picture.labels[0] == "0"
    assert picture.real[0] == pytest.approx((real == 0).mean())
    assert picture.synthetic[0] == 0
    swapped = drawn(Numeric("x", 0, 1e6), synthetic, real)
    assert (swapped.labels[0], swapped.real[0]) == ("0", 0)
    assert {name: one for name, one, _ in picture.quantiles}["median"] == "0"


def test_the_highest_of_a_smooth_column_is_no_atom_and_heaps_are():
    rng = np.random.default_rng(1)
    smooth = np.minimum(rng.poisson(30, 5000), 99).astype(float)
    assert "value" not in drawn(Numeric("x", 0, 99, integer=True), smooth, smooth).roles
    heaped = np.where(rng.random(5000) < 0.3, 40.0, rng.integers(1, 99, 5000))
    picture = drawn(Numeric("x", 0, 99, integer=True), heaped, smooth)
    assert [label for label, role in zip(picture.labels, picture.roles, strict=True) if role == "value"] == ["40"]


def test_a_heavy_tail_is_drawn_on_a_logarithmic_axis_and_outliers_in_one_bar():
    rng = np.random.default_rng(2)
    real = rng.lognormal(3, 2, 5000)
    assert drawn(Numeric("x", 0, 1e9), real, real).logarithmic
    normal = rng.normal(50, 5, 5000)
    assert not drawn(Numeric("x", -1e9, 1e9), normal, normal).logarithmic
    wild = normal.copy()
    wild[:20] = 1e6
    wild[20:30] = -1e6
    picture = drawn(Numeric("x", -1e9, 1e9), normal, wild)
    assert (picture.roles[0], picture.roles[-1]) == ("below", "above")
    assert 0.002 <= picture.synthetic[0] < 0.02
    assert 0.004 <= picture.synthetic[-1] < 0.02
    assert "up to 1,000,000" in picture.labels[-1]
    assert "down to -1,000,000" in picture.labels[0]
    assert 30 < float(picture.edges[0]) < float(picture.edges[-1]) < 70


def test_bins_of_whole_numbers_hold_equally_many_of_them():
    values = np.repeat(np.arange(27.0), 10)
    picture = drawn(Numeric("x", 0, 26, integer=True), values, values)
    widths = np.diff(np.asarray(picture.edges, dtype=float))
    assert set(widths) == {2.0}
    assert picture.labels[:2] == ("0 to 1", "2 to 3")
    assert set(np.round(picture.real[:-1], 6)) == {round(20 / 270, 6)}  # the last holds 26 alone


def test_few_values_have_a_bar_each_and_no_axis():
    picture = drawn(Numeric("x", 0, 5), np.array([0.5, 1.0, 1.0, 4.0]), np.array([1.0, 1.0, 2.0]))
    assert picture.edges == ()
    assert picture.labels == ("0.5", "1", "2", "4")
    assert picture.real == (0.25, 0.5, 0, 0.25)
    assert picture.synthetic == pytest.approx((0, 2 / 3, 1 / 3, 0))


@pytest.mark.parametrize("seed", range(30))
def test_every_row_is_counted_once_whatever_the_column(seed):
    rng = np.random.default_rng(seed)
    kinds = [
        lambda n: rng.normal(0, 10.0 ** rng.integers(-6, 6), n),
        lambda n: np.round(rng.standard_cauchy(n), int(rng.integers(0, 3))),
        lambda n: np.where(rng.random(n) < 0.5, 0.0, rng.pareto(0.7, n)),
        lambda n: np.full(n, 3.25),
        lambda n: np.concatenate([np.full(n - 1, 7.0), [8.0]]),
        lambda n: np.where(rng.random(n) < 0.9, np.nan, rng.random(n)),
        lambda n: np.full(n, np.nan),
    ]
    real, synthetic = (kinds[rng.integers(len(kinds))](int(rng.integers(2, 400))) for _ in range(2))
    drawn(Numeric("x", -1e30, 1e30, missing=True), real, synthetic)
    whole = [np.floor(np.clip(side, -1e6, 1e6)) for side in (real, synthetic)]
    drawn(Numeric("x", -(10**6), 10**6, integer=True, missing=True), *whole)
    drawn(
        Datetime("x", "1900-01-01", "2100-01-01", unit="D", missing=True),
        *(np.clip(side, -9000, 9000) for side in whole),
    )
