"""Cells, axes, correlations given back, and rows drawn from a copula."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chisquare, multivariate_normal, norm

from fedsynth.bench.published.mixture import Mixture, TwoAxes
from fedsynth.encoding import encode, problems
from fedsynth.errors import InvalidParameter
from fedsynth.models.copula import Copula, OneAxis, latent_correlation, nearest_correlation, shrunk
from fedsynth.models.normal_scores import FARTHEST, NormalScores, correspondence_order
from fedsynth.models.synthesizer import Synthesizer, load
from fedsynth.schema import Boolean, Categorical, Datetime, Numeric, Schema
from fedsynth.schema.bins import Axis, Grid
from fedsynth.schema.columns import fine_cells

COLUMNS: dict[str, Numeric | Datetime] = {
    "real": Numeric("x", -1.5, 4.0, bins=20),
    "money": Numeric("x", 0.0, 99.99, decimals=2, bins=10),
    "integer": Numeric("x", 0, 100_000, integer=True),
    "few integers": Numeric("x", 3, 9, integer=True),
    "own edges": Numeric("x", 0.0, 10.0, edges=(0.0, 1.0, 10.0)),
    "missing": Numeric("x", 0.0, 1.0, missing=True),
    "constant": Numeric("x", 2.0, 2.0),
    "constant integer": Numeric("x", 2, 2, integer=True),
    "time": Datetime("x", "2024-01-01", "2025-01-01", unit="h"),
}


# ---------------------------------------------------------------------------------------------------------------------
# Cells


def cells_of(grid: Grid, numbers: np.ndarray) -> np.ndarray:
    """Return each number's cell; a missing one's is one past the last."""
    return Axis(0, grid.cuts).places(np.empty(0), numbers)


def numbers_of(column: Numeric | Datetime, rows: int = 2000) -> np.ndarray:
    """Return numbers that the column admits, both bounds among them."""
    rng = np.random.default_rng(0)
    low, high = column.bin_edges[0], column.bin_edges[-1]
    x = np.concatenate([[low, high], low + (high - low) * rng.random(rows) ** 3])
    per = 1 if isinstance(column, Datetime) or column.integer else 10 ** (column.decimals or 0)
    whole = isinstance(column, Datetime) or column.integer or column.decimals is not None
    x = np.rint(x * per) / per if whole else x
    return np.where(rng.random(len(x)) < 0.2, np.nan, x) if column.missing else x


@pytest.mark.parametrize("bins", [8, 64, 256])
@pytest.mark.parametrize("name", COLUMNS)
def test_a_number_and_what_its_cell_decodes_to_share_the_cell(name, bins):
    column = COLUMNS[name]
    grid, x = fine_cells(column, bins), numbers_of(column)
    cells = cells_of(grid, x)
    assert cells.min() >= 0
    assert cells.max() < len(grid) + column.missing
    assert (np.diff(grid.upper) > 0).all()
    back = grid.values(cells, np.random.default_rng(1).random(len(x)))
    assert (np.isnan(back) == np.isnan(x)).all()
    assert (cells_of(grid, back) == cells).all()
    known = back[~np.isnan(back)]
    assert known.min() >= column.bin_edges[0]
    assert known.max() <= column.bin_edges[-1]


def test_bounds_are_atoms_and_values_near_the_lower_one_are_told_apart():
    grid = fine_cells(Numeric("x", 0.0, 1e6), 256)
    assert grid.values(cells_of(grid, np.array([0.0, 1e6])), np.array([0.3, 0.7])).tolist() == [0.0, 1e6]
    assert len(set(cells_of(grid, np.array([0.0, 1.0, 10.0, 100.0, 1000.0, 1e5])))) >= 5
    whole = fine_cells(Numeric("x", 0, 100_000, integer=True), 256)
    assert cells_of(whole, np.array([0.0])) != cells_of(whole, np.array([1.0]))
    assert len(fine_cells(Numeric("x", 0, 20, integer=True), 256)) == 21  # one each


def test_the_cells_of_integers_decode_evenly():
    grid = fine_cells(Numeric("x", 0, 999, integer=True), 8)
    cells = np.full(20_000, len(grid) - 1)
    drawn = grid.values(cells, np.random.default_rng(0).random(20_000)).astype(int)
    counts = np.bincount(drawn - drawn.min())
    assert drawn.max() == 999
    assert chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("name", COLUMNS)
def test_numbers_become_the_codes_and_dtypes_of_the_schema(name):
    column = COLUMNS[name]
    x = numbers_of(column)
    series = column.series(x)
    bins = np.clip(np.searchsorted(column.bin_edges, x, side="right") - 1, 0, len(column.bin_edges) - 2)
    codes = np.where(np.isnan(x), len(column.bin_edges) - 1, bins)
    again = encode(Schema((column,)), pd.DataFrame({"x": series}))
    assert (again.codes[0] == codes).all()
    decoded = column.decode(codes, np.random.default_rng(0))
    assert series.dtype == decoded.dtype
    assert (series.isna() == decoded.isna()).all()


def test_a_time_with_a_zone_keeps_it():
    column = Datetime("x", "2024-01-01", "2024-02-01", timezone="Europe/Berlin", missing=True)
    frame = pd.DataFrame({"x": ["2024-01-03T05:00:00+01:00", None]})
    table = encode(Schema((column,)), frame)
    series = column.series(table.numbers[0])
    assert str(series.dtype) == "datetime64[us, Europe/Berlin]"
    assert series.iloc[0] == pd.Timestamp("2024-01-03T05:00:00+01:00")
    assert series.isna().tolist() == [False, True]


# ---------------------------------------------------------------------------------------------------------------------
# Axes


@pytest.mark.parametrize("shares", [[0.1, 0.2, 0.7], [0.0, 0.5, 0.5, 0.0], [1.0], [1e-9, 1 - 1e-9], [0, 0, 3, 0, 1]])
def test_the_interval_encoding_and_its_decoding_are_inverse(shares):
    axis = NormalScores.of(np.array(shares), np.argsort(shares, kind="stable"))
    cells = np.random.default_rng(0).choice(len(shares), 5000, p=axis.shares)
    assert (axis.cells(axis.within(cells, np.random.default_rng(1)))[0] == cells).all()


def test_points_within_intervals_are_standard_normal_and_decode_to_the_shares():
    axis = NormalScores.of(np.array([5.0, 3.0, 1.0, 1.0]), np.array([2, 3, 1, 0]))
    rng = np.random.default_rng(0)
    z = axis.within(rng.choice(4, 50_000, p=axis.shares), rng)
    counts = np.histogram(norm.cdf(z), 50, (0, 1))[0]
    assert chisquare(counts).pvalue > 1e-3
    cells, share = axis.cells(rng.standard_normal(50_000))
    assert chisquare(np.bincount(cells, minlength=4), 50_000 * axis.shares).pvalue > 1e-3
    assert share.min() >= 0
    assert share.max() <= 1


def test_scores_are_the_means_of_a_normal_over_the_intervals():
    axis = NormalScores.of(np.array([0.2, 0.0, 0.5, 0.3]), np.array([3, 1, 0, 2]))
    z = np.random.default_rng(0).standard_normal(400_000)
    cells, _ = axis.cells(z)
    for cell in (0, 2, 3):
        assert axis.scores()[cell] == pytest.approx(z[cells == cell].mean(), abs=0.01)
    assert axis.scores() @ axis.shares == pytest.approx(0, abs=1e-12)
    assert axis.scores()[3] < axis.scores()[1] < axis.scores()[0] < axis.scores()[2]


def test_scores_are_finite_whatever_the_shares():
    for shares in ([0, 0, 1], [1e-300, 1], [0, 1e-20, 1 - 1e-20, 0], [0, 0], [1]):
        scores = NormalScores.of(np.array(shares, dtype=float)).scores()
        assert (np.abs(scores) <= FARTHEST).all()
        assert (np.diff(scores) >= 0).all()


# ---------------------------------------------------------------------------------------------------------------------
# Correlations


def mean_product(axes: list[NormalScores], r: float) -> float:
    """Return the mean product of scores under a latent correlation, by bivariate normal probabilities of rectangles."""
    ends = [np.concatenate([[-9.0], np.clip(axis.thresholds, -9, 9), [9.0]]) for axis in axes]
    joint = multivariate_normal([0, 0], [[1, r], [r, 1]])
    grid = np.array([[float(joint.cdf([x, y])) for y in ends[1]] for x in ends[0]])
    mass = np.diff(np.diff(grid, axis=0), axis=1)
    first, second = (axis.scores()[axis.order] for axis in axes)
    return float(first @ mass @ second)


@pytest.mark.parametrize("r", [-0.9, -0.3, 0.0, 0.2, 0.6, 0.95])
@pytest.mark.parametrize("shares", [([1, 1], [1, 1]), ([9, 1], [1, 3, 6]), ([1] * 12, [1, 50])])
def test_the_latent_correlation_that_was_put_in_comes_out(r, shares):
    axes = [NormalScores.of(np.array(one, dtype=float)) for one in shares]
    products = np.full((2, 2), mean_product(axes, r))
    found = latent_correlation(axes, [axis.scores() for axis in axes], products)
    assert found[0, 1] == pytest.approx(r, abs=2e-3)


@pytest.mark.parametrize("phi", [0.3, 0.5, 0.8])
def test_two_balanced_binaries_keep_their_phi_and_the_published_way_shrinks_it(phi):
    axis = NormalScores.of(np.array([1.0, 1.0]))
    score = axis.scores()[1]
    assert score == pytest.approx(math.sqrt(2 / math.pi))
    product = np.full((2, 2), phi * score**2)

    def drawn_phi(correlation: np.ndarray) -> float:
        points = Copula(correlation, 1.0, (1, 1)).sample(200_000, np.random.default_rng(0))
        one, other = (axis.cells(z[:, 0])[0] for z in points)
        return float(((one - one.mean()) * (other - other.mean())).mean() / (one.std() * other.std()))

    corrected = nearest_correlation(latent_correlation([axis, axis], [axis.scores()] * 2, product))
    assert drawn_phi(corrected) == pytest.approx(phi, abs=0.01)
    # Jittered latents have a correlation of 2 phi / pi, and cutting them again takes away once more.
    jittered = np.array([[1, product[0, 1]], [product[0, 1], 1]])
    assert drawn_phi(jittered) == pytest.approx(2 / math.pi * math.asin(2 / math.pi * phi), abs=0.01)


def test_the_nearest_correlation_is_one_and_changes_none_that_is():
    rng = np.random.default_rng(0)
    noisy = np.eye(8)
    below = np.tril_indices(8, -1)
    noisy[below] = rng.uniform(-1, 1, len(below[0]))
    noisy = noisy + np.tril(noisy, -1).T
    assert np.linalg.eigvalsh(noisy)[0] < 0
    repaired = nearest_correlation(noisy)
    np.linalg.cholesky(repaired)
    assert np.diag(repaired) == pytest.approx(np.ones(8))
    floored, vectors = np.linalg.eigh(noisy)
    naive = (vectors * np.maximum(floored, 1e-6)) @ vectors.T
    naive /= np.sqrt(np.outer(np.diag(naive), np.diag(naive)))
    assert np.linalg.norm(repaired - noisy) < np.linalg.norm(naive - noisy)
    assert nearest_correlation(repaired) == pytest.approx(repaired, abs=1e-5)


def test_pure_noise_is_drawn_to_nothing_and_clear_dependence_is_left_alone():
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.1, (30, 30))
    noise = np.tril(noise, -1) + np.tril(noise, -1).T + np.eye(30)
    std = np.full((30, 30), 0.1)
    assert np.abs(shrunk(noise, std) - np.eye(30)).max() < 0.1
    assert shrunk(noise, std / 100) == pytest.approx(noise, abs=1e-3)
    assert (shrunk(np.eye(3), std[:3, :3]) == np.eye(3)).all()


def test_levels_are_ordered_by_their_company():
    rng = np.random.default_rng(0)
    place = rng.permutation(10)
    ratio = (place + 1) / 12
    rows = rng.integers(200, 900, 10).astype(float)
    table = np.stack([rows * ratio, rows * (1 - ratio)], axis=1)
    order = correspondence_order(table, rows, table.sum(axis=0), 0.0)
    assert order.tolist() in (np.argsort(place).tolist(), np.argsort(-place).tolist())
    noisy = correspondence_order(table + rng.normal(0, 10, table.shape), rows, table.sum(axis=0), 10.0)
    assert abs(np.corrcoef(np.argsort(noisy), place)[0, 1]) > 0.95
    assert len(correspondence_order(np.zeros((4, 2)), np.zeros(4), np.zeros(2), 0.0)) == 4


# ---------------------------------------------------------------------------------------------------------------------
# Rows

SCHEMA = Schema(
    (
        Categorical("grade", ("a", "b", "c")),
        Numeric("x", 0.0, 10.0, missing=True),
        Boolean("flag", missing=True),
        Datetime("when", "2024-01-01", "2024-12-31", unit="D"),
        Numeric("count", 0, 50, integer=True, missing=True),
    )
)


def synthesizer(paper: bool = False) -> Synthesizer:
    rng = np.random.default_rng(0)
    margins: list[OneAxis | TwoAxes] = []
    for column in SCHEMA.stored:
        grid = fine_cells(column, 64) if isinstance(column, Numeric | Datetime) else None
        cells = column.size if grid is None else len(grid) + column.missing
        margins.append(OneAxis(NormalScores.of(rng.random(cells)), grid))
    if paper:
        mixture = Mixture(np.array([0.4, 0.6]), np.array([2.0, 7.0]), np.array([0.5, 1.0]))
        grid = margins[1].grid
        assert grid is not None
        margins[1] = TwoAxes(mixture, NormalScores.of(np.array([0.3, 0.5, 0.2])), grid)
    latents = sum(one.latents for one in margins)
    root = rng.normal(size=(latents, latents))
    covariance = root @ root.T
    correlation = covariance / np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    return Synthesizer(SCHEMA, tuple(margins), Copula.of(margins, correlation, 321.4), {"method": "test"})


def margins_of(made: Synthesizer) -> list[OneAxis]:
    return [axis for axis in made.axes if isinstance(axis, OneAxis)]


@pytest.mark.parametrize("paper", [False, True])
def test_rows_fit_the_schema_and_survive_saving(paper, tmp_path):
    made = synthesizer(paper)
    frame = made.sample(seed=0)
    assert len(frame) == 321
    assert not problems(SCHEMA, frame)
    table = encode(SCHEMA, frame)
    for ours, encoded in zip(made.sample_table(seed=0).codes, table.codes, strict=True):
        assert (ours == encoded).all()
    for at, numbers in made.sample_table(seed=0).numbers.items():
        assert numbers == pytest.approx(table.numbers[at], nan_ok=True)
    made.save(tmp_path / "m")
    again = load(tmp_path / "m")
    assert isinstance(again.model, Copula)
    pd.testing.assert_frame_equal(again.sample(50, 3), made.sample(50, 3))
    assert again.info == made.info
    assert again.model.total == made.model.total


def test_cells_have_their_shares_in_the_rows():
    made = synthesizer()
    table = made.sample_table(40_000, 0)
    for at, margin in enumerate(margins_of(made)):
        expected = margin.axis.shares * 40_000
        axis = Axis(at, None if margin.grid is None else margin.grid.cuts)
        counts = np.bincount(axis.places(table.codes[at], table.numbers.get(at)), minlength=len(expected))
        assert chisquare(counts, expected).pvalue > 1e-4


@pytest.mark.parametrize("paper", [False, True])
def test_rows_given_a_value_are_those_that_have_it_among_all_rows(paper):
    made = synthesizer(paper)
    everything = made.sample(150_000, 0)
    for value in ("a", "c"):
        given = made.sample(20_000, 1, {"grade": value})
        assert (given["grade"] == value).all()
        among = everything[everything["grade"] == value]
        for column in ("x", "count"):
            spread = among[column].std() / math.sqrt(20_000) + among[column].std() / math.sqrt(len(among))
            assert given[column].mean() == pytest.approx(among[column].mean(), abs=4 * spread)
            assert given[column].std() == pytest.approx(among[column].std(), rel=0.05)
        assert given["flag"].isna().mean() == pytest.approx(among["flag"].isna().mean(), abs=0.02)


def test_balanced_rows_have_every_value_equally_often():
    made = synthesizer()
    counts = made.sample_balanced("grade", 100, 0)["grade"].value_counts()
    assert sorted(counts.tolist()) == [33, 33, 34]
    assert len(made.sample_balanced("flag", 90, 0)["flag"].unique()) == 3  # missing is a value
    with pytest.raises(InvalidParameter, match="category"):
        made.sample_balanced("x", 10)
    with pytest.raises(InvalidParameter, match="rows"):
        made.sample(0)


def test_values_without_a_share_are_never_drawn_and_not_balanced():
    axis = NormalScores.of(np.array([0.0, 2.0, 0.0, 1.0]))
    schema = Schema((Categorical("a", ("p", "q", "r", "s")),))
    made = Synthesizer(schema, (OneAxis(axis, None),), Copula(np.eye(1), 10.0, (1,)))
    assert set(made.sample(10_000, 0)["a"]) == {"q", "s"}
    assert set(made.sample_balanced("a", 10, 0)["a"]) == {"q", "s"}
