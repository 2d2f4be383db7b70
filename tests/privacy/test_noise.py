"""The noise has the laws it states, and the exponential mechanism the epsilon it states."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy import stats

from fedsynth.privacy import noise
from fedsynth.privacy.inversion import decide
from fedsynth.privacy.noise import (
    KeyedBits,
    discrete_gaussian,
    discrete_gumbel,
    discrete_laplace,
    exponential_mechanism,
    gumbel_scale,
)

DRAWS = 300_000


def keyed(context: str) -> KeyedBits:
    return KeyedBits(b"a fixed key for the tests of noise", context.encode())


class Script:
    """Words handed out in order; more than there are is an error."""

    def __init__(self, *words: int) -> None:
        self.left = list(words)

    def words(self, n: int) -> NDArray[np.uint64]:
        taken, self.left = self.left[:n], self.left[n:]
        assert len(taken) == n
        return np.array(taken, dtype=np.uint64)


def normalised(log_weights: NDArray[np.float64]) -> NDArray[np.float64]:
    weights: NDArray[np.float64] = np.exp(log_weights - log_weights.max())
    return weights / math.fsum(weights)


def gaussian_pmf(sigma: float, reach: int) -> NDArray[np.float64]:
    return normalised(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)


def laplace_pmf(scale: float, reach: int) -> NDArray[np.float64]:
    return normalised(-np.abs(np.arange(-reach, reach + 1)) / scale)


def p_value(draws: NDArray[np.int64], pmf: NDArray[np.float64], width: int = 1) -> float:
    """Chi-square of draws against a pmf on -reach..reach, in bins of `width` values with >= 20 expected."""
    reach = pmf.size // 2
    assert np.abs(draws).max() <= reach
    bins = np.arange(pmf.size) // width
    observed = np.bincount(bins[draws + reach], minlength=bins[-1] + 1)
    expected = np.bincount(bins, weights=pmf) * draws.size
    inside = expected >= 20
    observed = np.append(observed[inside], observed[~inside].sum())
    expected = np.append(expected[inside], expected[~inside].sum())
    if expected[-1] < 20:  # too few outside the bins to be a bin: join the neighbour
        observed = np.append(observed[:-2], observed[-2:].sum())
        expected = np.append(expected[:-2], expected[-2:].sum())
    return float(stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue)


@pytest.mark.parametrize(("sigma", "width"), [(0.3, 1), (1.0, 1), (20.9, 1), (500.0, 5), (1024.5, 20), (5e4, 1000)])
def test_discrete_gaussian_has_its_law(sigma, width):
    draws = discrete_gaussian(sigma, DRAWS, keyed("gaussian"))
    assert draws.dtype == np.int64
    assert p_value(draws, gaussian_pmf(sigma, math.ceil(9 * sigma) + 3), width) > 1e-4


@pytest.mark.parametrize(("scale", "width"), [(0.2, 1), (1.0, 1), (17.3, 1), (400.0, 10), (1e5, 2000)])
def test_discrete_laplace_has_its_law(scale, width):
    draws = discrete_laplace(scale, DRAWS, keyed("laplace"))
    assert p_value(draws, laplace_pmf(scale, math.ceil(40 * scale) + 3), width) > 1e-4


@pytest.mark.parametrize("sampler", [discrete_gaussian, discrete_laplace], ids=lambda f: f.__name__)
def test_low_digits_of_large_noise_are_uniform(sampler):
    # At scale 10^6 the law is flat over 1,024 neighbours to 10^-3: too little to see with 100 draws a bin.
    digits = np.bincount(sampler(1e6, 100_000, keyed("digits")) % 1024, minlength=1024)
    assert stats.chisquare(digits).pvalue > 1e-4


@pytest.mark.parametrize("sigma", [0.7, 3.0, 20.9, 500.0, 4000.0])
def test_gaussian_moments(sigma):
    draws = discrete_gaussian(sigma, DRAWS, keyed("moments")).astype(np.float64)
    reach = math.ceil(9 * sigma) + 3
    variance = float(np.arange(-reach, reach + 1) ** 2 @ gaussian_pmf(sigma, reach))
    assert abs(draws.mean()) < 4 * math.sqrt(variance / DRAWS)
    assert abs((draws**2).mean() - variance) < 4 * math.sqrt((draws**4).mean() / DRAWS)
    signs = np.sign(draws)  # symmetric: as many above 0 as below, within 4 standard errors
    assert abs(signs.sum()) < 4 * math.sqrt(np.abs(signs).sum())


def test_laplace_variance():
    p = math.exp(-1 / 300)  # two digits to a draw
    draws = discrete_laplace(300.0, DRAWS, keyed("variance")).astype(np.float64)
    assert abs((draws**2).mean() - 2 * p / (1 - p) ** 2) < 4 * math.sqrt((draws**4).mean() / DRAWS)


def test_two_samples_agree_with_opendp():
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    # OpenDP draws from system entropy, so this test is not seeded: hence 10^-9, a false alarm in 10^9 runs.
    vector = dp.vector_domain(dp.atom_domain(T="i64"))
    gaussian = dp.m.make_gaussian(vector, dp.l2_distance(T="f64"), scale=4.3)
    laplace = dp.m.make_laplace(vector, dp.l1_distance(T="i64"), scale=2.6)
    for theirs, ours in (
        (gaussian([0] * 20_000), discrete_gaussian(4.3, DRAWS, keyed("opendp"))),
        (laplace([0] * 20_000), discrete_laplace(2.6, DRAWS, keyed("opendp"))),
    ):
        counts = np.array([np.bincount(np.clip(x, -12, 12) + 12, minlength=25) for x in (theirs, ours)])
        assert stats.chi2_contingency(counts).pvalue > 1e-9


def test_low_bits_leak_nothing_beyond_the_law():
    """A count of 0 and a count of 1 give every output with the odds that the discrete Gaussian promises."""
    sigma, size = 3.0, 500_000
    zero = 0 + discrete_gaussian(sigma, size, keyed("count 0"))
    one = 1 + discrete_gaussian(sigma, size, keyed("count 1"))
    assert zero.dtype == one.dtype == np.int64
    outputs = np.arange(-9, 11)
    seen_zero = (zero[:, None] == outputs).sum(axis=0)
    seen_one = (one[:, None] == outputs).sum(axis=0)
    assert min(seen_zero.min(), seen_one.min()) > 100
    error = np.sqrt(1 / seen_zero + 1 / seen_one)
    assert (np.abs(np.log(seen_one / seen_zero) - (2 * outputs - 1) / (2 * sigma**2)) < 4 * error).all()


@pytest.mark.parametrize("sigma", [0.6, 1.3, 2.9])
def test_rejection_has_the_law_where_errors_would_show(sigma, monkeypatch):
    monkeypatch.setattr(noise, "TABLE_SIGMA", 0.0)
    draws = discrete_gaussian(sigma, DRAWS, keyed("rejection"))
    assert p_value(draws, gaussian_pmf(sigma, math.ceil(9 * sigma) + 3)) > 1e-4


def test_geometric_digits_have_the_law_where_errors_would_show(monkeypatch):
    monkeypatch.setattr(noise, "GEOMETRIC_SCALE", 0.5)
    monkeypatch.setattr(noise, "GEOMETRIC_BASE", 3)
    draws = discrete_laplace(7.7, DRAWS, keyed("base 3"))
    assert p_value(draws, laplace_pmf(7.7, 310)) > 1e-4


@pytest.mark.parametrize("sigma", [2.9, 3e4])
def test_rejection_by_doubles_is_rejection_by_exact_integers(sigma, monkeypatch):
    monkeypatch.setattr(noise, "TABLE_SIGMA", 0.0)
    by_doubles = discrete_gaussian(sigma, 3000, keyed("margin"))
    exact, refined = noise._below_exp_minus, []

    def refine(gamma: Fraction, word: int, bits: KeyedBits) -> bool:
        refined.append(gamma)
        return exact(gamma, word, bits)

    monkeypatch.setattr(noise, "EXP_MARGIN", math.inf)  # every comparison in doubt
    monkeypatch.setattr(noise, "_below_exp_minus", refine)
    assert (discrete_gaussian(sigma, 3000, keyed("margin")) == by_doubles).all()
    assert len(refined) > 3000


def test_rejection_threshold_is_refined():
    with localcontext() as context:
        context.prec = 80
        digits = int((-Decimal(7) / 5).exp() * 2**126)
    word, following = digits >> 64, digits & (2**64 - 1)
    assert noise._below_exp_minus(Fraction(7, 5), word, Script(following - 4))
    assert not noise._below_exp_minus(Fraction(7, 5), word, Script(following + 4))


def test_exp_is_as_good_as_trusted():
    points = np.random.default_rng(1).uniform(0, 700, 2000)
    with localcontext() as context:
        context.prec = 30
        errors = [
            abs(Decimal(float(y)) / (-Decimal(float(x))).exp() - 1)
            for x, y in zip(points, np.exp(-points), strict=True)
        ]
    assert max(errors) < 2**-49


def test_extreme_words_give_the_tail_and_its_sign():
    ones, half = 2**64 - 1, 2**63
    up = discrete_gaussian(1.0, 1, Script(ones - 1, half))
    down = discrete_gaussian(1.0, 1, Script(ones, half))
    assert up == -down
    assert up[0] >= 9  # P(|k| > 8) = 1.4e-17 is less than the 2^-63 that are left
    assert discrete_gaussian(1.0, 2, Script(0, 1)).tolist() == [0, 0]


@pytest.mark.parametrize("smallest", [1e-300, 5e-324])
def test_vanishing_noise_is_zero(smallest):
    for sampler in (discrete_gaussian, discrete_laplace):
        assert not sampler(smallest, 1000, keyed("tiny")).any()


def test_size_and_largest_scale():
    assert discrete_gaussian(3.0, 0, keyed("none")).shape == (0,)
    assert discrete_gaussian(3.0, 70_000, keyed("blocks")).shape == (70_000,)
    assert np.abs(discrete_gaussian(2.0**40, 100, keyed("large"))).max() > 2**38


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, 1e300])
@pytest.mark.parametrize("sampler", [discrete_gaussian, discrete_laplace], ids=lambda f: f.__name__)
def test_impossible_parameters_are_refused(sampler, value):
    with pytest.raises(ValueError, match="positive and at most"):
        sampler(value, 1, keyed("refused"))


def test_negative_size_is_refused():
    with pytest.raises(ValueError, match="pass 0 or more"):
        discrete_gaussian(1.0, -1, keyed("refused"))


def test_keyed_bits_are_one_stream_per_key_and_context():
    words = keyed("a").words(1000)
    stream = keyed("a")
    assert (np.concatenate([stream.words(3), stream.words(0), stream.words(997)]) == words).all()
    others = [keyed("b").words(1000), KeyedBits(b"another key of sixteen bytes", b"a").words(1000)]
    for other in others:
        assert not (other == words).any()
    assert (discrete_gaussian(5.0, 99, keyed("a")) == discrete_gaussian(5.0, 99, keyed("a"))).all()
    # A fixed value: noise must not change under a site that upgrades.
    assert int(KeyedBits(bytes(32), b"fedsynth").words(1)[0]) == 9462812385307218367
    with pytest.raises(ValueError, match="at least 16"):
        KeyedBits(b"short", b"a")


def test_exponential_mechanism_has_the_softmax_law():
    utilities, sensitivity, epsilon = np.array([0, 12, -160, 12, 18, 5]), 6, 1.2
    stream = keyed("choice")
    chosen = [exponential_mechanism(utilities, sensitivity, epsilon, stream) for _ in range(30_000)]
    softmax = normalised(epsilon * utilities / (2 * sensitivity))
    observed = np.bincount(chosen, minlength=6)
    assert observed[2] == 0  # has probability 10^-9
    others = [0, 1, 3, 4, 5]
    assert stats.chisquare(observed[others], softmax[others] / softmax[others].sum() * 30_000).pvalue > 1e-4


@pytest.mark.parametrize("magnitude", [2.0, 2.0**21, 2.0**58], ids=["2^1", "2^21", "2^58"])
def test_choice_by_doubles_is_the_exact_choice(magnitude):
    utilities = np.floor(np.random.default_rng(2).normal(size=50) * magnitude).astype(np.int64)
    steps = (utilities.max() - utilities).astype(np.uint64)
    rate = Fraction(0.7) / int(magnitude)
    for i in range(40):
        word = int(keyed(f"exact {i}").words(1)[0]) >> 2
        exact = decide(word, lambda length: noise._choice_bounds(steps, rate, length), Script().words)
        assert noise._choose(steps, rate, keyed(f"exact {i}")) == exact


def test_doubles_of_the_choice_stay_within_half_the_margin():
    rng = np.random.default_rng(4)
    for magnitude, candidates in ((30, 1000), (2**40, 300), (2**62, 300)):
        utilities = rng.integers(-magnitude, magnitude, candidates)
        steps = utilities.max().view(np.uint64) - utilities.view(np.uint64)
        rate = Fraction(float(rng.uniform(5, 700))) / (2 * magnitude)
        weights = np.cumsum(np.exp(steps.astype(np.float64) * -float(rate)))
        low, high = noise._choice_bounds(steps, rate, 62)
        error = max(abs(x - y * 2.0**-62) for x, y in zip(weights / weights[-1], low, strict=True))
        assert error < (2.0**-36 + candidates * 2.0**-50) / 2
        assert max(y - x for x, y in zip(low, high, strict=True)) < 2**10


@pytest.mark.parametrize("scale", [4.0, 37.5, 1e5])
def test_discrete_gumbel_has_its_law(scale):
    """P(X <= k) = exp(-exp(-(k + 1) / scale)).

    The empirical distribution of 20,000 draws is further away than .0225 with probability 2 exp(-2 * 20,000 * .0225^2)
    < 4e-9 (Dvoretzky, Kiefer, Wolfowitz, Massart).
    """
    draws = discrete_gumbel(scale, 20_000, keyed("gumbel"))
    places = np.unique(np.quantile(draws, np.linspace(0, 1, 500)).round())
    law = np.exp(-np.exp(-(places + 1) / scale))
    below = np.searchsorted(np.sort(draws), places, side="right") / draws.size
    assert np.abs(below - law).max() < 0.0225


def winners(utilities: NDArray[np.int64], scale: float) -> NDArray[np.float64]:
    """The probability of each candidate to have the largest utility plus discrete Gumbel noise, the first of equals."""
    reach = np.arange(math.floor(-4 * scale) + utilities.min(), math.ceil(45 * scale) + utilities.max())
    at_most = np.exp(-np.exp(-(reach[:, None] - utilities + 1) / scale))  # P(u_i + X_i <= k), by k and i
    below = np.vstack([np.zeros(utilities.size), at_most[:-1]])
    found = []
    for i in range(utilities.size):
        others = np.hstack([below[:, :i], at_most[:, i + 1 :]])
        found.append(float(((at_most[:, i] - below[:, i]) * others.prod(1)).sum()))
    return np.array(found)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("moved", [1, 3, 50])
def test_gumbel_noise_of_its_scale_has_bounded_range(moved, epsilon):
    """Exact probabilities of draws over neighbouring utilities: all log-ratios lie within an interval of epsilon.

    Most of it is used where the constant term of the scale is small beside twice the sensitivity.
    """
    scale, rng = gumbel_scale(moved, epsilon), np.random.default_rng(moved)
    assert scale >= max(4.0, (2 * moved + 6) / epsilon)
    ranges = []
    for candidates in (2, 2, 2, 3, 3, 6):
        utilities = rng.integers(0, max(2, math.ceil(2 * scale)), candidates)
        change = rng.choice([-moved, moved], candidates)
        change[:2] = moved, -moved
        before, after = winners(utilities, scale), winners(utilities + change, scale)
        assert before.sum() == pytest.approx(1, abs=1e-9)
        assert after.sum() == pytest.approx(1, abs=1e-9)
        ratios = np.log(after / before)
        ranges.append(ratios.max() - ratios.min())
    assert max(ranges) <= epsilon
    assert max(ranges) >= 0.99 * 2 * moved / scale


def test_impossible_gumbel_scales_are_refused():
    for moved, epsilon in ((0, 1.0), (1, 0.0), (1, math.inf), (1, math.nan), (2**50, 1.0)):
        with pytest.raises(ValueError, match=r"must be a positive integer|positive and"):
            gumbel_scale(moved, epsilon)


def test_choice_on_the_threshold_is_refined():
    tie = np.array([5, 5])
    assert exponential_mechanism(tie, 1, 1.0, Script(2**63, 2**40)) == 1
    assert exponential_mechanism(tie, 1, 1.0, Script(2**63 - 1, 2**64 - 2**40)) == 0
    assert exponential_mechanism(tie, 1, 1.0, Script(2**63, 0, 2**40)) == 1  # in doubt twice


def test_choice_among_one_and_among_extremes():
    largest, smallest = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    assert exponential_mechanism(np.array([-7]), 1, 0.1, keyed("one")) == 0
    assert exponential_mechanism(np.array([smallest, 0, largest]), 1, 1e300, keyed("sure")) == 2
    assert exponential_mechanism(np.array([largest, smallest]), 1, 5e-324, Script(0)) == 0
    assert exponential_mechanism(np.array([largest, smallest]), 1, 5e-324, Script(2**64 - 1)) == 1  # as good as a tie
    assert exponential_mechanism(np.array([0, 1]), 2**80, 1e308, Script(2**62)) == 1  # Δ may be beyond 64 bits


@given(
    hnp.arrays(np.int64, st.integers(1, 30), elements=st.integers(-(2**63), 2**63 - 1)),
    st.integers(1, 2**70),
    st.floats(5e-324, 1e308),
    st.binary(min_size=16, max_size=16),
)
@settings(deadline=None)
def test_a_choice_never_fails(utilities, sensitivity, epsilon, key):
    assert 0 <= exponential_mechanism(utilities, sensitivity, epsilon, KeyedBits(key, b"any")) < utilities.size


@given(
    hnp.arrays(np.int64, 8, elements=st.integers(-(2**62), 2**62 - 1)),
    st.integers(-(2**62), 2**62),
    st.integers(1, 2**62),
    st.floats(1e-3, 1e3),
)
@settings(deadline=None)
def test_a_choice_depends_on_differences_alone(utilities, shift, sensitivity, epsilon):
    choices = {exponential_mechanism(u, sensitivity, epsilon, keyed("shift")) for u in (utilities, utilities + shift)}
    assert len(choices) == 1


def steps_and_rate(
    utilities: NDArray[np.int64], sensitivity: int, epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> tuple[NDArray[np.uint64], Fraction]:
    """What the mechanism really samples from: P(i) ∝ exp(-rate steps[i])."""
    seen = []

    def look(steps: NDArray[np.uint64], rate: Fraction, _: Script) -> int:
        seen.append((steps, rate))
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(noise, "_choose", look)
        exponential_mechanism(utilities, sensitivity, epsilon, Script())
    return seen[0]


@pytest.mark.parametrize("magnitude", [1.0, 1e4, 2.0**62], ids=str)
@pytest.mark.parametrize("largest_sensitivity", [3, 3000, 2**60])
def test_neighbours_stay_within_epsilon(magnitude, largest_sensitivity, monkeypatch):
    rng = np.random.default_rng(8)
    worst = Decimal(0)
    for _ in range(30):
        sensitivity, epsilon = int(rng.integers(1, largest_sensitivity + 1)), float(rng.uniform(0.1, 4.0))
        bound = int(min(magnitude * sensitivity, 2.0**62 - 1))
        utilities = rng.integers(-bound, bound, 12, endpoint=True)
        neighbours = utilities + np.where(np.arange(12) == rng.integers(12), sensitivity, -sensitivity)
        laws = [steps_and_rate(u, sensitivity, epsilon, monkeypatch) for u in (utilities, neighbours)]
        with localcontext() as context:
            context.prec = 60
            both = []
            for steps, rate in laws:
                assert rate == Fraction(epsilon) / (2 * sensitivity)
                exponents = [-rate * int(step) for step in steps]
                assert max(exponents) == 0
                weights = [(Decimal(x.numerator) / Decimal(x.denominator)).exp() for x in exponents]
                both.append([weight / sum(weights) for weight in weights])
            logs = [(p / q).ln() for p, q in zip(*both, strict=True) if p and q]
            rounding = Decimal(epsilon) * (1 + Decimal(10) ** -40)
            assert max(map(abs, logs)) <= rounding
            assert max(logs) - min(logs) <= rounding  # bounded range, on which the zCDP price rests
            worst = max(worst, max(map(abs, logs)) / Decimal(epsilon))
    assert worst > Decimal("0.8") or magnitude > 1  # the bound is used, not merely kept


@pytest.mark.parametrize(
    ("utilities", "sensitivity", "epsilon", "message"),
    [
        (np.array([], dtype=np.int64), 1, 1.0, "candidates"),
        (np.array([[1]]), 1, 1.0, "candidates"),
        (np.array([0.0, 1.0]), 1, 1.0, "int64"),
        (np.array([0, 1], dtype=np.int32), 1, 1.0, "int64"),
        (np.array([0]), 0, 1.0, "sensitivity is 0"),
        (np.array([0]), -1, 1.0, "sensitivity is -1"),
        (np.array([0]), 1.5, 1.0, "sensitivity is 1.5"),
        (np.array([0]), math.inf, 1.0, "sensitivity is inf"),
        (np.array([0]), 1, 0.0, "epsilon is 0.0"),
        (np.array([0]), 1, math.inf, "epsilon is inf"),
        (np.array([0]), 1, math.nan, "epsilon is nan"),
    ],
)
def test_impossible_choices_are_refused(utilities, sensitivity, epsilon, message):
    with pytest.raises(ValueError, match=message):
        exponential_mechanism(utilities, sensitivity, epsilon, keyed("refused"))
