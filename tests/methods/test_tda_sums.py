"""What sites add up for Fed-TDA: the sums of the pooled rows, and what one record moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fedsynth.federation.task import Query
from fedsynth.models.axis import Axis, cell_count, cells_of
from tests.methods.tda_world import SCHEMA, axes_of, encodings, exact, partitions, rows

from fedsynth.errors import InvalidParameter
from fedsynth.methods.tda import integer_scores, length_bound
from fedsynth.methods.tda_exact import exact_covariance, fitted_mixtures
from fedsynth.methods.tda_sums import (
    FIXED,
    GRAIN,
    LONGEST,
    clipped,
    encoded,
    histograms,
    mixture_sums,
    moments,
    products,
    scaling,
)
from fedsynth.models.mixture import e_step
from fedsynth.schema import Numeric

# ---------------------------------------------------------------------------------------------------------------------
# Sums


@pytest.mark.parametrize("how", ["empty and one row", "one town each"])
def test_mixtures_of_sites_are_those_of_the_pooled_rows(how):
    table = rows(700, 0)
    counts = [
        np.bincount(cells_of(table, at, 4096), minlength=cell_count(c, 4096)).astype(float)
        for at, c in enumerate(SCHEMA.columns)
    ]
    fits = [
        fitted_mixtures(exact(sites), counts, 6, 25) for sites in (partitions(table)["pooled"], partitions(table)[how])
    ]
    assert set(fits[0]) == {1, 3, 4}
    for at in fits[0]:
        for name in ("weights", "means", "deviations"):
            assert getattr(fits[1][at], name) == pytest.approx(getattr(fits[0][at], name), rel=1e-9, abs=1e-10)


def test_an_e_step_over_sites_is_that_of_the_pooled_numbers():
    table = rows(900, 1)
    rng = np.random.default_rng(0)
    coefficients = np.stack([rng.normal(size=(2, 5)), rng.normal(size=(2, 5)), -rng.random((2, 5))])
    for sites in partitions(table).values():
        parts = [mixture_sums.answer(site, columns=[1, 3], coefficients=coefficients) for site in sites]
        answers = np.sum(parts, axis=0)
        for at, column in enumerate((1, 3)):
            described = SCHEMA.columns[column]
            assert isinstance(described, Numeric)
            centre, half = scaling(described)
            x = table.numbers[column][~np.isnan(table.numbers[column])]
            pooled = e_step((x - centre) / half, np.ones(len(x)), coefficients[:, at])
            flat = answers[at * 16 : (at + 1) * 16] / FIXED
            expected = np.concatenate([pooled.counts, pooled.first, pooled.second])
            assert flat[:15] == pytest.approx(expected, rel=1e-12, abs=5e-10)
            assert flat[15] * 2**20 == pytest.approx(float(pooled.evidence), abs=1e-3)


@pytest.mark.parametrize("method", ["cells", "mixtures"])
def test_the_covariance_over_sites_is_that_of_the_pooled_encoded_rows(method):
    table = rows(800, 2)
    columns = encodings(axes_of(table))
    if method == "mixtures":
        mixture = np.stack([[0.3, 0.7], [10.0, 40.0], [3.0, 12.0]])
        columns[1] = {"scores": np.array([-800, 500, 900]), "mixture": mixture}
    pooled = encoded(table, columns, 0, len(table)) / GRAIN
    for sites in partitions(table).values():
        found = exact_covariance(exact(sites), columns)
        assert found == pytest.approx(np.cov(pooled.T, ddof=0), rel=1e-12, abs=1e-12)


def test_products_are_bit_for_bit_those_of_the_pooled_rows():
    table = rows(800, 3)
    params = {"columns": encodings(axes_of(table)), "bound": 4 * GRAIN**2}
    pooled = products.answer(table, **params)
    for sites in partitions(table).values():
        assert (np.sum([products.answer(site, **params) for site in sites], axis=0) == pooled).all()


# ---------------------------------------------------------------------------------------------------------------------
# Sensitivity


def moved(query: Query, params: dict[str, Any], seeds: int = 150) -> tuple[float, float]:
    """Return by what factors the worst of neighbouring tables pass the declared L1 and L2 sensitivities."""
    declared = query.sensitivity(SCHEMA, **params)
    worst = np.zeros(2)
    for seed in range(seeds):
        table = rows(1 + seed % 30, seed)
        without = table.take(np.arange(len(table)) != seed % len(table))
        change = (query.answer(table, **params) - query.answer(without, **params)).astype(np.float64)
        worst = np.maximum(worst, [np.abs(change).sum() / declared.l1, np.linalg.norm(change) / declared.l2])
    return float(worst[0]), float(worst[1])


def test_histograms_move_exactly_as_declared():
    assert moved(histograms, {"bins": 16}) == pytest.approx((1, 1))


@pytest.mark.parametrize("share", [0.05, 0.5, 1.0, 4.0])
def test_products_move_no_further_than_declared_however_short_rows_are_cut(share):
    axes = axes_of(rows(500, 99))
    params = {"columns": encodings(axes), "bound": int(share * length_bound(axes))}
    one, two = moved(products, params)
    assert max(one, two) <= 1
    assert two > 0.2 / max(share, 1.0)


def test_products_of_equal_numbers_reach_the_declaration():
    plain = encodings(axes_of(rows(50, 0)))
    columns = [{**one, "scores": np.full(len(one["scores"]), 777)} for one in plain]
    for bound in (6 * 777**2, 6 * 777**2 // 4):
        one, two = moved(products, {"columns": columns, "bound": bound}, seeds=5)
        assert max(one, two) <= 1
        assert two == pytest.approx(1, rel=5e-3)


def test_no_row_is_longer_than_its_bound():
    rng = np.random.default_rng(0)
    for bound in (1, 5, 1000, 3 * GRAIN**2, 200 * GRAIN**2):
        short = clipped(np.rint(rng.normal(0, 2000, (4000, 9))), bound)
        assert ((short**2).sum(axis=1) <= bound).all()
        assert (short == np.rint(short)).all()


def test_moments_and_e_steps_move_no_further_than_declared():
    columns = encodings(axes_of(rows(500, 99)))
    assert max(moved(moments, {"columns": columns, "bound": 8 * GRAIN**2})) <= 1
    rng = np.random.default_rng(0)
    for scale in (1.0, 1e4):
        coefficients = scale * np.stack([rng.normal(size=(3, 4)), rng.normal(size=(3, 4)), -rng.random((3, 4))])
        one, two = moved(mixture_sums, {"columns": [1, 3, 4], "coefficients": coefficients}, seeds=60)
        assert max(one, two) <= 1
        assert two > 0.4


def test_a_request_cannot_make_a_row_count_for_more_than_declared():
    plain = encodings(axes_of(rows(50, 0)))
    wild = [{**one, "scores": np.full(len(one["scores"]), 1e300)} for one in plain]
    wild[1] = {"scores": np.array([1e308, -1e300, -1e12]), "mixture": np.array([[0.5, 0.5], [0, 1], [1e-300, 1]])}
    with np.errstate(all="ignore"):
        one, two = moved(products, {"columns": wild, "bound": 9 * GRAIN**2}, seeds=40)
    assert max(one, two) <= 1
    narrow = [{**one, "scores": np.full(len(one["scores"]), 0.4)} for one in plain]
    assert not products.answer(rows(50, 0), columns=narrow, bound=9).any()  # fractions are rounded away
    with pytest.raises(InvalidParameter, match="out of range"):
        products.sensitivity(SCHEMA, columns=narrow, bound=2**40)
    with pytest.raises(InvalidParameter, match="finite"):
        mixture_sums.sensitivity(SCHEMA, columns=[1], coefficients=np.full((3, 1, 2), np.nan))


def test_the_bound_of_rows_depends_on_shares_and_cuts_few_rows():
    table = rows(4000, 0)
    axes = axes_of(table)
    bound = length_bound(axes)
    lengths = (encoded(table, encodings(axes), 0, len(table)) ** 2).sum(axis=1)
    assert (lengths > bound).mean() < 0.05
    assert bound < len(axes) * LONGEST**2 / 20
    flat = [Axis.of(np.ones(2))] * 3
    assert length_bound(flat) == 3 * integer_scores(flat[0]).max() ** 2  # no row is longer
