"""Shares of noise: what one site adds, and what the sum of the honest sites' shares amounts to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special
from tests.privacy.test_noise import gaussian_pmf, p_value

from fedsynth.errors import Unsupported
from fedsynth.privacy.cost import Norms
from fedsynth.privacy.inversion import Polya, cumulative_bounds
from fedsynth.privacy.noise import KeyedBits, discrete_laplace, polya_difference
from fedsynth.privacy.release import Exact, Exponential, Gaussian, Laplace, Public
from fedsynth.secure.noise_shares import NoiseShare, gaussian_cost, share_of

DRAWS = 200_000


def keyed(context: str) -> KeyedBits:
    return KeyedBits(b"a fixed key for the tests of shares", context.encode())


def power(pmf: NDArray[np.float64], times: int) -> NDArray[np.float64]:
    """The law of a sum of independent draws; convolution of positive numbers loses no relative accuracy."""
    result = pmf
    for _ in range(times - 1):
        result = np.convolve(result, pmf)
    return result


def polya_pmf(scale: float, shape: float, cells: int) -> NDArray[np.float64]:
    k = np.arange(cells)
    logs = special.gammaln(k + shape) - special.gammaln(k + 1) - special.gammaln(shape)
    return np.exp(logs - k / scale + math.log(-math.expm1(-1 / scale)) * shape)


def renyi(pmf: NDArray[np.float64], shift: int, order: float) -> float:
    """Renyi divergence of a law shifted by ``shift`` from itself, summed where both are far above underflow."""
    shifted = np.zeros_like(pmf)
    shifted[shift:] = pmf[:-shift]
    both = (pmf > 1e-250) & (shifted > 1e-250)
    logs = order * np.log(shifted[both]) + (1 - order) * np.log(pmf[both])
    assert logs[[0, -1]].max() < logs.max() - 30  # what is left out is nothing
    return float(special.logsumexp(logs)) / (order - 1)


# ---------------------------------------------------------------------------------------------------------- Laplace


@pytest.mark.parametrize(
    ("scale", "shape"), [(0.2, "1/3"), (1.0, "1/2"), (17.3, "1/4"), (40.0, "1/26"), (2.0, "1"), (9.0, "2/15")]
)
def test_a_polya_share_has_its_law(scale, shape):
    one_side = polya_pmf(scale, float(Fraction(shape)), math.ceil(40 * scale) + 20)
    law = np.convolve(one_side, one_side[::-1])
    assert law.sum() == pytest.approx(1, abs=1e-9)
    assert p_value(polya_difference(scale, Fraction(shape), DRAWS, keyed(f"{scale} {shape}")), law) > 1e-4


@pytest.mark.parametrize(
    ("scale", "shapes"), [(0.3, "1/2 1/2"), (3.0, "1/5 1/5 1/5 1/5 1/5"), (25.0, "1/6 1/12 1/6 1/12 1/6 1/12 1/4")]
)
def test_the_sum_of_all_parts_is_discrete_laplace(scale, shapes):
    parts = [Fraction(shape) for shape in shapes.split()]
    assert sum(parts) == 1
    total = sum(
        (polya_difference(scale, shape, DRAWS, keyed(f"part {part}")) for part, shape in enumerate(parts)),
        start=np.int64(0),
    )
    reach = math.ceil(40 * scale) + 5
    law = np.exp(-np.abs(np.arange(-reach, reach + 1)) / scale)
    assert p_value(np.asarray(total), law / law.sum()) > 1e-4
    # and the pmf itself: the convolution of the exact one-sided laws is the geometric law
    whole = polya_pmf(scale, float(parts[0]), reach)
    for shape in parts[1:]:
        whole = np.convolve(whole, polya_pmf(scale, float(shape), reach))[:reach]
    np.testing.assert_allclose(whole, -math.expm1(-1 / scale) * np.exp(-np.arange(reach) / scale), rtol=1e-9)


def test_one_part_is_the_whole_and_impossible_parts_are_refused():
    law = np.exp(-np.abs(np.arange(-300, 301)) / 5.0)
    for draws in (polya_difference(5.0, Fraction(1), DRAWS, keyed("one")), discrete_laplace(5.0, DRAWS, keyed("one"))):
        assert p_value(draws, law / law.sum()) > 1e-4
    for shape in (Fraction(0), Fraction(-1, 2), Fraction(3, 2)):
        with pytest.raises(ValueError, match="must be above 0 and at most 1"):
            polya_difference(5.0, shape, 1, keyed("none"))
    with pytest.raises(ValueError, match="at most 4096"):
        polya_difference(5000.0, Fraction(1, 2), 1, keyed("wide"))


@pytest.mark.parametrize(("scale", "shape"), [(2.0, "1/3"), (9.0, "2/3"), (0.4, "1/7")])
def test_the_bounds_hold_however_short_the_table_is(scale, shape):
    class Short(Polya):
        def cells(self, length: int) -> int:
            return 6

    low, high = cumulative_bounds(Short(scale, Fraction(shape)), 40)
    exact = np.cumsum(polya_pmf(scale, float(Fraction(shape)), 6)) * 2.0**40  # off by 10^-15 of it: a unit in 10^3
    assert (np.array(low) <= exact + 1e-2).all()
    assert (np.array(high[:-1]) >= exact[:-1] - 1e-2).all()
    assert high[-1] == 2**40


@pytest.mark.parametrize(("scale", "shape"), [(0.7, "1/3"), (12.5, "3/7"), (300.0, "1/50")])
def test_the_tables_of_a_share_enclose_the_exact_law(scale, shape):
    law = Polya(scale, Fraction(shape))
    for length in (62, 126):
        low, high = cumulative_bounds(law, length)
        assert low == sorted(low)
        assert high == sorted(high)
        assert max(h - b for b, h in zip(low[:-1], high[:-1], strict=True)) <= 1 << 8
        assert (1 << length) - low[-1] < 1 << 8  # the tail beyond the table
        exact = np.cumsum(polya_pmf(law.scale, float(law.shape), len(low)))
        np.testing.assert_allclose([b / 2**length for b in low], exact, atol=1e-9)


# --------------------------------------------------------------------------------------------------------- Gaussian


def sum_law(sigmas: Sequence[float], honest: int, reach: float) -> NDArray[np.float64]:
    result = np.ones(1)
    for sigma in sigmas:
        result = np.convolve(result, power(gaussian_pmf(sigma, math.ceil(reach * sigma) + 4), honest))
    return result


@pytest.mark.parametrize("first", [0.5, 0.6, 0.8, 1.0, 1.5])
@pytest.mark.parametrize("second", [0.5, 0.7, 1.0, 1.2, 2.0])
def test_the_sum_of_two_discrete_gaussians_is_within_the_stated_odds_of_one(first, second):
    law = np.convolve(gaussian_pmf(first, 40), gaussian_pmf(second, 40))
    one = gaussian_pmf(math.hypot(first, second), 80)
    inside = slice(80 - 12, 80 + 13)
    odds = np.abs(np.log(law[inside] / one[inside])).max()
    assert odds <= 5 * math.exp(-2 * math.pi**2 / (first**-2 + second**-2)) + 1e-12


@pytest.mark.parametrize(
    ("sigmas", "honest"),
    [
        *[((0.5,), 2), ((0.6,), 4), ((0.8,), 3), ((1.0,), 2), ((1.0,), 8), ((1.3,), 26), ((2.0,), 4)],
        *[((0.5, 0.5), 2), ((0.8, 0.5), 3), ((1.0, 0.6, 0.7), 2), ((2.0, 0.5), 4), ((0.5, 2.0), 2), ((2.1, 2.0), 5)],
    ],
)
def test_the_published_bound_holds_for_one_and_two_cells_at_every_order(sigmas, honest):
    law = sum_law(sigmas, honest, 34)
    for order in (1.01, 1.5, 2.0, 3.7, 5.5):
        moved = {shift: renyi(law, shift, order) for shift in (1, 2, 3)}
        for shift, divergence in moved.items():
            assert divergence <= order * gaussian_cost(sigmas, shift, shift, honest) * (1 + 1e-9)
        for first, second in ((1, 1), (1, 3), (2, 3)):  # cells are independent: divergences add up
            cost = gaussian_cost(sigmas, first + second, math.hypot(first, second), honest)
            assert moved[first] + moved[second] <= order * cost * (1 + 1e-9)


RANGES = [(1, 1), (1, 2), (2, 2), (2, 3), (4, 6), (10, 10), (26, 51)]


def deviations(share: NoiseShare, parts: int) -> tuple[float, ...]:
    return tuple(part.std for part in share.parts[:parts])


@pytest.mark.parametrize(("least", "most"), RANGES)
@pytest.mark.parametrize(("l1", "l2"), [(1.0, 1.0), (105.0, math.sqrt(105)), (500.0, 50.0)])
def test_a_share_costs_what_the_release_says_among_however_many_honest_sites(l1, l2, least, most):
    norms = Norms(l1, l2)
    for rho in (1e-6, 1e-3, 0.05, 0.3, 1.0, 4.0, 50.0, 1e6):
        release = Gaussian(rho)
        share, whole = share_of(release, norms, least, most), release.sigma(norms.l2)
        for honest in range(least, most + 1):
            kept = share.kept(honest)
            # So many of them pay for it; the shares of the others only add noise.
            floor = next(number for number in share.honest if number <= honest)
            if share.parts[0].std < whole:
                assert gaussian_cost(deviations(share, kept), l1, l2, floor) <= rho
                assert min(deviations(share, kept)) >= 0.5
            assert whole / math.sqrt(honest) <= share.std(kept) <= whole * (1 + 1e-12)
            if len(share.parts) > 1:
                assert share.std(kept) == pytest.approx(whole / math.sqrt(floor))
        if whole > 500:  # as exact as can be when nobody is lost, or nearly nobody
            assert share.std(share.kept(most)) == pytest.approx(whole / math.sqrt(most))
            assert share.std(share.kept(max(least, most - 1))) <= whole / math.sqrt(max(least, most - 2)) * (1 + 1e-9)


@pytest.mark.parametrize("honest", [1, 2, 3, 10, 100])
@pytest.mark.parametrize(("l1", "l2"), [(1.0, 1.0), (105.0, math.sqrt(105)), (500.0, 50.0)])
def test_a_share_in_one_part_wastes_no_noise(l1, l2, honest):
    norms = Norms(l1, l2)
    for rho in (1e-6, 1e-3, 0.05, 0.3, 1.0, 4.0, 50.0, 1e6):
        release = Gaussian(rho)
        (sigma,), whole = deviations(share_of(release, norms, honest, honest), 1), release.sigma(norms.l2)
        if sigma < whole:
            thrifty = sigma * (1 - 1e-6)
            assert thrifty < max(0.5, whole / math.sqrt(honest)) or gaussian_cost((thrifty,), l1, l2, honest) > rho
        if whole / math.sqrt(honest) > 2:
            assert sigma == pytest.approx(whole / math.sqrt(honest), rel=1e-12)


def draws(share: NoiseShare, parts: int, site: int, release: object) -> NDArray[np.int64]:
    seeds = [f"{release} {site} {at}".encode().ljust(32)[-32:] for at in range(parts)]
    return NoiseShare(share.parts[:parts], ()).add_to(np.zeros(DRAWS, dtype=np.int64), seeds)


@pytest.mark.parametrize(("rho", "least", "most"), [(0.3, 3, 3), (0.02, 10, 10), (0.001, 2, 3), (0.001, 4, 6)])
def test_the_sum_of_gaussian_shares_has_its_law_and_its_price(rho, least, most):
    release, norms = Gaussian(rho), Norms(1, 1)
    share = share_of(release, norms, least, most)
    for honest in {least, most}:
        kept = share.kept(honest)
        sigmas = deviations(share, kept)
        total = sum((draws(share, kept, site, rho) for site in range(honest)), start=np.int64(0))
        assert p_value(np.asarray(total), sum_law(sigmas, honest, 12)) > 1e-4
        wide = sum_law(sigmas, honest, 34)
        for order in (1.1, 2.0, 6.0):
            assert 0.8 * order * rho < renyi(wide, 1, order) <= order * rho * (1 + 1e-9)


@pytest.mark.parametrize(("least", "most"), [(1, 1), (2, 3), (4, 6), (26, 51)])
def test_laplace_shares_add_up_exactly_among_however_many_honest_sites(least, most):
    share = share_of(Laplace(0.1), Norms(1, 1), least, most)
    for honest in share.honest:
        kept = share.kept(honest)
        assert share.std(kept) == pytest.approx(10 * math.sqrt(2 / honest))
    honest, one = share.honest[-1], NoiseShare(share.parts, ())
    total = sum((draws(one, len(share.parts), site, "laplace") for site in range(honest)), start=np.int64(0))
    law = np.exp(-np.abs(np.arange(-500, 501)) / 10)
    assert p_value(np.asarray(total), law / law.sum()) > 1e-4


def test_where_noise_is_tiny_each_site_adds_all_of_it():
    release, norms = Gaussian(2.0), Norms(1, 1)  # sigma 1/2: two honest shares would need more
    for most in (4, 6):
        assert deviations(share_of(release, norms, 4, most), 1) == (release.sigma(norms.l2),)


def test_what_nobody_can_move_gets_no_noise():
    exact = np.arange(5)
    for release in (Gaussian(0.05), Laplace(0.4), Exact(), Public()):
        norms = Norms(2, 2) if isinstance(release, Exact | Public) else Norms(0, 0)
        share = share_of(release, norms, 1, 3)
        assert (share.add_to(exact, []) == exact).all()
        assert share.std(share.kept(2)) == share.kept(2) == 0


# ------------------------------------------------------------------------------------------------------ neighbours


def test_neighbouring_sums_stay_within_epsilon_and_within_rho():
    """Counts 0 and 1 of one record, the noise of the honest minimum alone, and odds of every output."""
    epsilon, honest = 0.5, 3
    share = polya_pmf(1 / epsilon, 1 / honest, 2000)
    law = power(np.convolve(share, share[::-1]), honest)
    centre = law.size // 2
    inside = slice(centre - 40, centre + 41)
    odds = np.abs(np.log(law[inside]) - np.log(law[centre - 41 : centre + 40]))
    assert odds.max() == pytest.approx(epsilon, rel=1e-6)


def test_every_release_has_its_noise_and_its_deviation():
    norms = Norms(2, math.sqrt(2))
    for release in (Gaussian(0.005), Laplace(0.4)):
        for least, most in ((1, 1), (4, 4), (2, 3)):
            share = share_of(release, norms, least, most)
            for kept in range(1, len(share.parts) + 1):
                square = draws(share, kept, 0, f"{release}{least}").astype(np.float64) ** 2
                bound = share.std(kept) ** 2
                assert abs(square.mean() - bound) < 5 * square.std() / math.sqrt(DRAWS) + 0.03 * bound
    with pytest.raises(Unsupported, match="use Gaussian or Laplace"):
        share_of(Exponential(1.0), norms, 2, 2)
    five = Norms(5, 5)
    for most in (1, 2):  # beyond the tables of shares every site adds all of it
        share = share_of(Laplace(1e-3), five, 1, most)
        assert np.abs(draws(share, 1, 0, "wide")).mean() == pytest.approx(5e3, rel=0.05)
        assert share.std(share.kept(most)) == pytest.approx(5e3 * math.sqrt(2))
