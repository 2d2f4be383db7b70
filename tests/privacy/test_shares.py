"""Shares of noise: what one site adds, and what the sum of the honest sites' shares amounts to."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

from fedsynth.errors import Unsupported
from fedsynth.federation.trust.noise_shares import add_share, gaussian_cost, gaussian_share, share_std
from fedsynth.privacy.cost import Norms
from fedsynth.privacy.inversion import Polya, cumulative_bounds
from fedsynth.privacy.noise import KeyedBits, discrete_laplace, polya_difference
from fedsynth.privacy.release import Exact, Exponential, Gaussian, Laplace, Public

DRAWS = 200_000


def keyed(context: str) -> KeyedBits:
    return KeyedBits(b"a fixed key for the tests of shares", context.encode())


def gaussian_pmf(sigma: float, reach: int) -> NDArray[np.float64]:
    weights: NDArray[np.float64] = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    return weights / math.fsum(weights)


def power(pmf: NDArray[np.float64], times: int) -> NDArray[np.float64]:
    """The law of a sum of independent draws; convolution of positive numbers loses no relative accuracy."""
    result = pmf
    for _ in range(times - 1):
        result = np.convolve(result, pmf)
    return result


def polya_pmf(scale: float, parts: int, cells: int) -> NDArray[np.float64]:
    k = np.arange(cells)
    logs = special.gammaln(k + 1 / parts) - special.gammaln(k + 1) - special.gammaln(1 / parts)
    return np.exp(logs - k / scale + math.log(-math.expm1(-1 / scale)) / parts)


def p_value(draws: NDArray[np.int64], pmf: NDArray[np.float64]) -> float:
    """Chi-square against a pmf on -reach..reach; cells of fewer than 20 expected draws are taken together."""
    reach = pmf.size // 2
    assert np.abs(draws).max() <= reach
    observed, expected = np.bincount(draws + reach, minlength=pmf.size), pmf * draws.size
    inside = expected >= 20
    observed = np.append(observed[inside], observed[~inside].sum())
    expected = np.append(expected[inside], expected[~inside].sum())
    if expected[-1] < 20:
        observed = np.append(observed[:-2], observed[-2:].sum())
        expected = np.append(expected[:-2], expected[-2:].sum())
    return float(stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue)


def renyi(pmf: NDArray[np.float64], shift: int, order: float) -> float:
    """Renyi divergence of a law shifted by ``shift`` from itself, summed where both are far above underflow."""
    shifted = np.zeros_like(pmf)
    shifted[shift:] = pmf[:-shift]
    both = (pmf > 1e-250) & (shifted > 1e-250)
    logs = order * np.log(shifted[both]) + (1 - order) * np.log(pmf[both])
    assert logs[[0, -1]].max() < logs.max() - 30  # what is left out is nothing
    return float(special.logsumexp(logs)) / (order - 1)


# ---------------------------------------------------------------------------------------------------------- Laplace


@pytest.mark.parametrize(("scale", "parts"), [(0.2, 3), (1.0, 2), (17.3, 4), (40.0, 26), (2.0, 1)])
def test_a_polya_share_has_its_law(scale, parts):
    one_side = polya_pmf(scale, parts, math.ceil(40 * scale) + 20)
    law = np.convolve(one_side, one_side[::-1])
    assert law.sum() == pytest.approx(1, abs=1e-9)
    assert p_value(polya_difference(scale, parts, DRAWS, keyed(f"{scale} {parts}")), law) > 1e-4


@pytest.mark.parametrize(("scale", "parts"), [(0.3, 2), (3.0, 5), (25.0, 4)])
def test_the_sum_of_all_parts_is_discrete_laplace(scale, parts):
    total = sum(
        (polya_difference(scale, parts, DRAWS, keyed(f"part {part}")) for part in range(parts)), start=np.int64(0)
    )
    reach = math.ceil(40 * scale) + 5
    law = np.exp(-np.abs(np.arange(-reach, reach + 1)) / scale)
    assert p_value(np.asarray(total), law / law.sum()) > 1e-4
    # and the pmf itself: the parts-fold convolution of the exact one-sided law is the geometric law
    whole = power(polya_pmf(scale, parts, reach), parts)[:reach]
    np.testing.assert_allclose(whole, -math.expm1(-1 / scale) * np.exp(-np.arange(reach) / scale), rtol=1e-9)


def test_one_part_is_the_whole_and_impossible_parts_are_refused():
    law = np.exp(-np.abs(np.arange(-300, 301)) / 5.0)
    for draws in (polya_difference(5.0, 1, DRAWS, keyed("one")), discrete_laplace(5.0, DRAWS, keyed("one"))):
        assert p_value(draws, law / law.sum()) > 1e-4
    with pytest.raises(ValueError, match="1 source or more"):
        polya_difference(5.0, 0, 1, keyed("none"))
    with pytest.raises(ValueError, match="at most 4096"):
        polya_difference(5000.0, 2, 1, keyed("wide"))


@pytest.mark.parametrize(("scale", "parts"), [(2.0, 3), (9.0, 2), (0.4, 7)])
def test_the_bounds_hold_however_short_the_table_is(scale, parts):
    class Short(Polya):
        def cells(self, length: int) -> int:
            return 6

    low, high = cumulative_bounds(Short(scale, parts), 40)
    exact = np.cumsum(polya_pmf(scale, parts, 6)) * 2.0**40  # off by some 10^-15 of it: far less than a unit in 10^3
    assert (np.array(low) <= exact + 1e-2).all()
    assert (np.array(high[:-1]) >= exact[:-1] - 1e-2).all()
    assert high[-1] == 2**40


@pytest.mark.parametrize("law", [Polya(0.7, 3), Polya(12.5, 2), Polya(300.0, 50)])
def test_the_tables_of_a_share_enclose_the_exact_law(law):
    for length in (62, 126):
        low, high = cumulative_bounds(law, length)
        assert low == sorted(low)
        assert high == sorted(high)
        assert max(h - b for b, h in zip(low[:-1], high[:-1], strict=True)) <= 1 << 8
        assert (1 << length) - low[-1] < 1 << 8  # the tail beyond the table
        exact = np.cumsum(polya_pmf(law.scale, law.parts, len(low)))
        np.testing.assert_allclose([b / 2**length for b in low], exact, atol=1e-9)


# --------------------------------------------------------------------------------------------------------- Gaussian


@pytest.mark.parametrize(("sigma", "honest"), [(0.5, 2), (0.6, 4), (0.8, 3), (1.0, 2), (1.0, 8), (1.3, 26), (2.0, 4)])
def test_the_published_bound_holds_for_one_and_two_cells_at_every_order(sigma, honest):
    law = power(gaussian_pmf(sigma, math.ceil(34 * sigma) + 4), honest)
    for order in (1.01, 1.5, 2.0, 3.7, 5.5):
        moved = {shift: renyi(law, shift, order) for shift in (1, 2, 3)}
        for shift, divergence in moved.items():
            assert divergence <= order * gaussian_cost(sigma, shift, shift, honest) * (1 + 1e-9)
        for first, second in ((1, 1), (1, 3), (2, 3)):  # cells are independent: divergences add up
            cost = gaussian_cost(sigma, first + second, math.hypot(first, second), honest)
            assert moved[first] + moved[second] <= order * cost * (1 + 1e-9)


@pytest.mark.parametrize("honest", [1, 2, 3, 10, 100])
@pytest.mark.parametrize(("l1", "l2"), [(1.0, 1.0), (105.0, math.sqrt(105)), (500.0, 50.0)])
def test_a_share_costs_what_the_release_says(l1, l2, honest):
    norms = Norms(l1, l2)
    for rho in (1e-6, 1e-3, 0.05, 0.3, 1.0, 4.0, 50.0, 1e6):
        release = Gaussian(rho)
        share, whole = gaussian_share(release, norms, honest), release.sigma(norms.l2)
        assert whole / math.sqrt(honest) <= share <= whole
        if share < whole:
            assert share >= 0.5
            assert gaussian_cost(share, l1, l2, honest) <= rho
            # and no smaller share would do: noise is not wasted
            thrifty = share * (1 - 1e-6)
            assert thrifty < max(0.5, whole / math.sqrt(honest)) or gaussian_cost(thrifty, l1, l2, honest) > rho
        if whole / math.sqrt(honest) > 2:
            assert share == pytest.approx(whole / math.sqrt(honest), rel=1e-12)


@pytest.mark.parametrize(("rho", "honest"), [(0.3, 3), (0.02, 10)])
def test_the_sum_of_gaussian_shares_has_its_law_and_its_price(rho, honest):
    release, norms = Gaussian(rho), Norms(1, 1)
    zeros = np.zeros(DRAWS, dtype=np.int64)
    total = sum(
        (add_share(zeros, release, norms, honest, keyed(f"site {k}")) for k in range(honest)), start=np.int64(0)
    )
    share = gaussian_share(release, norms, honest)
    law = power(gaussian_pmf(share, math.ceil(12 * share)), honest)
    assert p_value(np.asarray(total), law) > 1e-4
    wide = power(gaussian_pmf(share, math.ceil(34 * share)), honest)
    for order in (1.1, 2.0, 6.0):
        assert 0.9 * order * rho < renyi(wide, 1, order) <= order * rho * (1 + 1e-9)


def test_where_noise_is_tiny_each_site_adds_all_of_it():
    release, norms = Gaussian(2.0), Norms(1, 1)  # sigma 1/2: two honest shares would need more
    assert gaussian_share(release, norms, 4) == release.sigma(norms.l2)


def test_what_nobody_can_move_gets_no_noise():
    exact = np.arange(5)
    for release in (Gaussian(0.05), Laplace(0.4)):
        for honest in (1, 3):
            assert add_share(exact, release, Norms(0, 0), honest, keyed("none")) is exact
            assert share_std(release, Norms(0, 0), honest) == 0


# ------------------------------------------------------------------------------------------------------ neighbours


def test_neighbouring_sums_stay_within_epsilon_and_within_rho():
    """Counts 0 and 1 of one record, the noise of the honest minimum alone, and odds of every output."""
    epsilon, honest = 0.5, 3
    share = polya_pmf(1 / epsilon, honest, 2000)
    law = power(np.convolve(share, share[::-1]), honest)
    centre = law.size // 2
    inside = slice(centre - 40, centre + 41)
    odds = np.abs(np.log(law[inside]) - np.log(law[centre - 41 : centre + 40]))
    assert odds.max() == pytest.approx(epsilon, rel=1e-6)


def test_every_release_has_its_noise_and_its_deviation():
    exact, norms = np.arange(DRAWS), Norms(2, math.sqrt(2))
    for release in (Gaussian(0.05), Laplace(0.4)):
        for honest in (1, 4):
            added = add_share(exact, release, norms, honest, keyed(f"{release} {honest}")) - exact
            square = added.astype(np.float64) ** 2
            bound = share_std(release, norms, honest) ** 2
            assert abs(square.mean() - bound) < 5 * square.std() / math.sqrt(DRAWS) + 0.03 * bound
    for noiseless in (Exact(), Public()):
        assert add_share(exact, noiseless, norms, 3, keyed("none")) is exact
        assert share_std(noiseless, norms, 3) == 0
    with pytest.raises(Unsupported, match="use Gaussian or Laplace"):
        add_share(exact, Exponential(1.0), norms, 2, keyed("none"))
    five = Norms(5, 5)
    for honest in (1, 2):  # beyond the tables of shares every site adds all of it
        wide = add_share(exact, Laplace(1e-3), five, honest, keyed("alone")) - exact
        assert np.abs(wide).mean() == pytest.approx(5e3, rel=0.05)
        assert share_std(Laplace(1e-3), five, honest) == pytest.approx(5e3 * math.sqrt(2))
