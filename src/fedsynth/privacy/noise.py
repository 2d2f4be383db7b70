"""Exact integer noise and the exact exponential mechanism, vectorised.

Rule 1: noise is generated only in this file; its arithmetic is in `inversion`, which no other module uses.
Rule 2: no rounded number decides a draw. A double or a 62-digit word decides only if an interval that
    provably contains the true threshold leaves no doubt. Otherwise (less than once in 2^34 draws of Gaussian or
    Laplace noise) it is computed at a higher precision, if need be with more bits. Given ideal bits, draws have exactly
    the stated law.
Rule 3: parameters are the exact rational values of the doubles; noise is added to integers, never to floats.
Rule 4: bits come from a secret key, never from a statistical generator. The context of a `KeyedBits` identifies one
    request: two requests under one key and context share their noise.
Rule 5: this module never sees a table. Running time depends on the draws: no adversary may time single draws.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal
from fractions import Fraction
from itertools import accumulate
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedsynth.errors import Unsupported
from fedsynth.keys import SecretBytes
from fedsynth.privacy.cost import Norms
from fedsynth.privacy.inversion import (
    DIGITS,
    Bounds,
    GaussianMagnitude,
    Geometric,
    Polya,
    decide,
    exp_minus,
    normalised_bounds,
    table,
)
from fedsynth.privacy.release import Exact, Gaussian, Laplace, Public, Release

BLOCK = 1 << 15  # draws per pass: words, cells and guide fit into the second-level cache
LARGEST_SCALE = 2.0**40  # a draw leaves int64 beyond 2^23 scales, with probability exp(-2^23)
TABLE_SIGMA = 1024.0  # largest sigma with a table, which takes 14 ms; rejection needs none but draws 4 times slower
GEOMETRIC_SCALE = 256.0  # largest scale of one geometric table: 43 cells per unit of scale
GEOMETRIC_BASE = 1 << 10
POLYA_SCALE = 4096.0  # largest scale of its table: 43 cells per unit of scale, 0.4 s
EXP_MARGIN = 2.0**-36  # relative; derived in _accept_gaussian
GUMBEL_SCALE = 2.0**50  # a draw leaves int64 (halved three times) beyond 1024 scales, with probability exp(-1024)


class RandomBits(Protocol):
    """A source of independent uniform 64-bit words for the samplers of this module (:class:`KeyedBits`)."""

    def words(self, n: int) -> NDArray[np.uint64]:
        """Return the next ``n`` words as uint64, shape ``(n,)``; no word is returned twice."""


class KeyedBits:
    """Random words that a secret key and a context determine, so that a repeated question gets the same noise again.

    ``key`` is the secret, at least 16 bytes (else ``ValueError``) from a cryptographic generator. ``context`` states
    the one purpose of the words, such as the digest of the whole request; it may have any length.

    The words are the stream of AES-256-CTR under the key HKDF-SHA256(key, info=context) (RFC 5869). The counter starts
    at 0, which is secure because a derived key serves only one stream. The words do not depend on how many are
    requested at a time.
    """

    def __init__(self, key: bytes, context: bytes) -> None:
        """Derive the stream of words."""
        if len(key) < 16:
            raise ValueError(f"the key has {len(key)} bytes; use at least 16, such as os.urandom(32)")
        derived = SecretBytes(HKDF(algorithm=SHA256(), length=32, salt=None, info=context).derive(key))
        self._stream = Cipher(algorithms.AES(derived), modes.CTR(bytes(16))).encryptor()

    def words(self, n: int) -> NDArray[np.uint64]:
        """Return the next ``n`` words of the stream as uint64, shape ``(n,)``."""
        return np.frombuffer(self._stream.update(bytes(8 * n)), dtype="<u8").astype(np.uint64, copy=False)


def discrete_gaussian(sigma: float, size: int, bits: RandomBits) -> NDArray[np.int64]:
    """Return ``size`` independent discrete Gaussian integers, noise for counts under zCDP: int64, shape ``(size,)``.

    P(k) ∝ exp(-k²/(2σ²)) over all integers k, where ``sigma`` is σ, in units of the integers to which the noise is
    added, up to 2^40. Up to σ = 1024 by inversion, above by rejection from the discrete Laplace law (Canonne, Kamath
    and Steinke 2020, arXiv 2004.00010, algorithm 3). Raises ``ValueError`` for an invalid ``sigma`` or ``size``.
    """
    _check("sigma", sigma, LARGEST_SCALE, size)
    if sigma <= TABLE_SIGMA:
        return _symmetric(GaussianMagnitude(float(sigma)), size, bits)
    draws = np.empty(size, dtype=np.int64)
    filled = 0
    while filled < size:
        # 0.76 of the proposals are accepted for large sigma; surplus ones are discarded unseen.
        proposals = _laplace(math.floor(sigma) + 1.0, min(BLOCK, 32 + (size - filled) * 7 // 5), bits)
        kept = proposals[_accept_gaussian(float(sigma), proposals, bits)][: size - filled]
        draws[filled : filled + kept.size] = kept
        filled += kept.size
    return draws


def discrete_laplace(scale: float, size: int, bits: RandomBits) -> NDArray[np.int64]:
    """Return ``size`` independent discrete Laplace integers, noise for counts under pure DP: int64, shape ``(size,)``.

    P(k) ∝ exp(-|k|/scale) over all integers k; ``scale`` is in units of the integers to which the noise is added, up to
    2^40. Raises ``ValueError`` for an invalid ``scale`` or ``size``.
    """
    _check("scale", scale, LARGEST_SCALE, size)
    return _laplace(float(scale), size, bits)


def polya_difference(scale: float, shape: Fraction, size: int, bits: RandomBits) -> NDArray[np.int64]:
    """Return one party's part of discrete Laplace noise that several parties add together: int64, shape ``(size,)``.

    The sum over parties whose ``shape`` values add up to 1 has the law of :func:`discrete_laplace` with this ``scale``
    (up to 4096), in each entry. ``shape`` is this party's part of the noise, above 0 and at most 1, and ``bits`` its
    own randomness. Raises ``ValueError`` for invalid numbers.

    An entry is the difference of two Polya (negative binomial) variables. A geometric variable is the sum of negative
    binomial ones whose shapes add up to 1 (their generating function is ((1 - p)/(1 - pz))^shape), and a discrete
    Laplace variable is the difference of two geometric ones.
    """
    _check("scale", scale, POLYA_SCALE, size)
    if not 0 < shape <= 1:
        raise ValueError(f"shape is {shape}; a source's share of the noise must be above 0 and at most 1")
    lookup = table(Polya(float(scale), shape))
    draws = np.empty(size, dtype=np.int64)
    for start in range(0, size, BLOCK):
        count = min(BLOCK, size - start)
        up = lookup.cells(_leading_digits(bits.words(count)), bits.words)
        down = lookup.cells(_leading_digits(bits.words(count)), bits.words)
        draws[start : start + count] = up - down
    return draws


def discrete_gumbel(scale: float, size: int, bits: RandomBits) -> NDArray[np.int64]:
    """Return ``size`` independent Gumbel variables, rounded down to integers: int64, shape ``(size,)``.

    P(X <= k) = exp(-exp(-(k + 1)/scale)). With them, several parties select one of some candidates together: each party
    adds such variables, made from its own secret, to the candidates' integer utilities, and the candidate with the
    largest total is selected. :func:`gumbel_scale` gives the ``scale`` (up to 2^50) for an epsilon, in units of the
    utilities. Raises ``ValueError`` for an invalid ``scale`` or ``size``.
    """
    _check("scale", scale, GUMBEL_SCALE, size)
    draws = np.empty(size, dtype=np.int64)
    for start in range(0, size, BLOCK):
        digits = _leading_digits(bits.words(min(BLOCK, size - start)))
        low, high = _gumbel_bounds(scale, digits)
        part = draws[start : start + BLOCK]
        sure = low == high
        part[sure] = low[sure].astype(np.int64)
        for i in np.flatnonzero(~sure):
            part[i] = _gumbel_cell(scale, int(digits[i]), bits)
    return draws


def gumbel_scale(moved: int, epsilon: float) -> float:
    """Return the :func:`discrete_gumbel` scale at which the argmax of utilities plus noise is ε-DP and ε²/8-zCDP.

    ``moved`` is the largest change D of any one utility between neighbouring tables; ``epsilon`` is ε. The scale is B =
    (2D + 6)/ε, rounded up, and at least 4, in units of the utilities.

    Proof. Let Y_i = u_i + G_i with continuous Gumbel variables of scale B. Since u_i is an integer, u_i + floor(G_i) is
    floor(Y_i). The largest Y_i is that of i with probability p_i ∝ exp(u_i/B), and T = sum_j exp((u_j - max Y)/B) is an
    exponential variable of mean 1, independent of the index of the maximum. Put λ_i = exp(u_i/B) / sum_j exp(u_j/B),
    the share of i in T, and let k = floor(max Y): with q = exp(-1/B), T lies between two grid points t q < T <= t.
    Given T and i, all other floors are below k with probability exp(-(1 - λ_i)(t - T)), and not above k with exp((1 -
    λ_i)(T - t q)) times the probability of the continuous draw; and t - T <= T (1/q - 1), T - t q <= T (1 - q). So
    whatever rule breaks ties, i wins with a probability P_i between

        p_i E[exp(-T (1/q - 1))] >= p_i (2 - 1/q)   and   p_i E[exp(T (1 - q))] = p_i / q.

    Between neighbouring tables the log of p_i changes by d_i/B plus a constant that is common to all i, |d_i| <= D; so
    the logs of the ratios of all P_i lie within an interval of length 2D/B + 2 (x - log(2 - exp(x))), x = 1/B <= 1/4.
    The bracket is convex and 0 at x = 0, hence at most 3x: the interval has length at most (2D + 6)/B = ε. The draw has
    bounded range ε, so it is ε-DP and ε²/8-zCDP (arXiv 2004.07223). Further noise that does not depend on the table,
    known to the adversary or not, preserves both: given that noise, the utilities are other integers with the same
    sensitivity, and noise that is independent of the table only mixes these draws.

    Raises ``ValueError`` unless moved >= 1, epsilon is positive and finite, and the scale is at most 2^50.
    """
    if moved < 1:
        raise ValueError(f"the sensitivity of the utilities is {moved}; it must be a positive integer")
    _check("epsilon", epsilon, math.inf, 0)
    scale = max(4.0, (2 * int(moved) + 6) / epsilon * (1 + 2.0**-48))
    _check("scale", scale, GUMBEL_SCALE, 0)
    return scale


def exponential_mechanism(utilities: NDArray[np.int64], sensitivity: int, epsilon: float, bits: RandomBits) -> int:
    """Return the index (from 0) of one candidate, drawn with P(i) ∝ exp(ε u_i / (2Δ)): ε-DP and ε²/8-zCDP.

    Utilities and Δ are integers, ε is the exact value of the double, and the draw has exactly this law, so the stated ε
    holds for the computed mechanism and not only for an idealised one. Proof: between neighbouring tables every u_i
    changes by d_i with |d_i| <= Δ. The weight of i changes by exp(ε d_i / (2Δ)), the sum of weights by a factor c
    within exp(±ε/2), and so P(i) by exp(ε d_i / (2Δ)) / c, which is within exp(±ε). Over all i these factors differ by
    a factor of at most exp(ε), because c is common to all: the draw has bounded range ε, so it is ε²/8-zCDP (Cesar and
    Rogers 2020, arXiv 2004.07223). Monotone utilities are not treated specially.

    Every vector of int64 is valid, including extreme values: a failure that depends on utilities would itself be an
    answer about them.

    ``utilities`` are the scores u_i, higher is better: int64, shape ``(candidates,)``. ``sensitivity`` is Δ, the
    largest change of any one utility between neighbouring tables. A release of ρ-zCDP has ``epsilon`` = sqrt(8ρ).
    Raises ``ValueError`` without a candidate, for other utilities, and for numbers that are not positive and finite.
    """
    if utilities.ndim != 1 or utilities.size == 0 or utilities.dtype != np.int64:
        raise ValueError(
            f"utilities are {utilities.dtype} of shape {utilities.shape}; pass an int64 vector of candidates"
        )
    if not isinstance(sensitivity, int | np.integer) or sensitivity < 1:
        raise ValueError(f"sensitivity is {sensitivity}; it must be a positive integer, in the units of the utilities")
    _check("epsilon", epsilon, math.inf, 0)
    # The differences are below 2^64, so wrapping subtraction in uint64 gives them exactly.
    steps = utilities.max().view(np.uint64) - utilities.view(np.uint64)
    return _choose(steps, Fraction(epsilon) / (2 * int(sensitivity)), bits)


def _choose(steps: NDArray[np.uint64], rate: Fraction, bits: RandomBits) -> int:
    """An index with P(i) ∝ exp(-rate steps[i]), the least step being 0: by doubles if they suffice, otherwise exactly.

    Error bound. The exponent of a weight whose double is not 0 is at most 746. It has three relative rounding errors,
    of the step, of the rate and of their product (2^-41 in all; if the rate underflows, less than 2^-1000 more). np.exp
    has an error below 2^-40 (see _accept_gaussian), so a weight has an error of 2^-39, and weights that vanish of less
    than 2^-1000. The largest weight is 1, so numerator and sum have an error of 2^-39, too; n additions and the
    division add (n + 1) 2^-53 each, and the uniform number 2^-53. The margin is more than twice the total.
    """
    with np.errstate(over="ignore", under="ignore"):  # exp(-inf) = 0 is the intended result
        cumulative = np.cumsum(np.exp(steps.astype(np.float64) * -float(rate)))
    cumulative /= cumulative[-1]
    cumulative[-1] = math.inf
    margin = 2.0**-36 + steps.size * 2.0**-50
    word = int(bits.words(1)[0]) >> 2
    uniform = word * 2.0**-DIGITS
    sure = int(np.searchsorted(cumulative, uniform - margin, side="right"))
    if sure == int(np.searchsorted(cumulative, uniform + margin, side="right")):
        return sure
    return decide(word, lambda length: _choice_bounds(steps, rate, length), bits.words)


def _choice_bounds(steps: NDArray[np.uint64], rate: Fraction, length: int) -> Bounds:
    """Bounds of the cumulative probabilities ∝ exp(-rate steps[i]), times 2^length; the least step is 0."""
    width = 2 * length + 64
    distinct, index = np.unique(steps, return_inverse=True)
    weights = [exp_minus(rate * int(step), width) for step in distinct]
    lows = list(accumulate(weights[i][0] for i in index))
    highs = list(accumulate(weights[i][1] for i in index))
    return normalised_bounds(lows, highs, 0, length)


def _gumbel_bounds(scale: float, digits: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The least and the largest floor of -scale log(-log(u)) over the uniform numbers u that start with these digits.

    Computed in doubles: a digit string below 2^61 has a relative error of 2^-53, and so has the distance of a larger
    one from 2^62; np.log and np.log1p are trusted to a relative error of 2^-48. So -log(u) has a relative error of
    2^-47, its log an error of 2^-47 plus a relative 2^-48, and the product a further relative 2^-52: the margin is more
    than twice the total.
    """
    with np.errstate(divide="ignore"):

        def place(edges: NDArray[np.int64]) -> NDArray[np.float64]:
            below = -np.log(edges * 2.0**-DIGITS)
            above = -np.log1p(((1 << DIGITS) - edges) * -(2.0**-DIGITS))
            rate: NDArray[np.float64] = np.where(edges < 1 << (DIGITS - 1), below, above)
            found: NDArray[np.float64] = -np.log(rate)
            return found

        low, high = place(digits), place(digits + 1)
    margin = 2.0**-45
    least = np.floor(scale * (low - margin * (1 + np.abs(low))))
    most = np.floor(scale * (high + margin * (1 + np.abs(high))))
    return least, most


def _gumbel_cell(scale: float, word: int, bits: RandomBits) -> int:
    """The floor of -scale log(-log(u)) for the uniform number u that starts with the 62 digits of `word`.

    Decimal's ln is correctly rounded, and the precision exceeds the known digits of u by 70: the quotient, and with it
    -log(u) >= 2^-length, has a relative error of 10^-68, its log an error of 10^-68 plus a relative 10^-70; the margin
    is 10^8 times that. Words of all zeros or all ones, and those whose bounds differ, get 64 more digits.
    """
    length = DIGITS
    while True:
        if 0 < word < (1 << length) - 1:
            context = Context(prec=length // 3 + 70)
            floors = []
            for edge, margin in ((word, -1), (word + 1, 1)):
                rate = -context.ln(context.divide(Decimal(edge), Decimal(1 << length)))
                place = context.multiply(-context.ln(rate), Decimal(scale))
                slack = context.multiply(Decimal(margin) / 10**60, Decimal(scale) + abs(place))
                floors.append(math.floor(context.add(place, slack)))
            if floors[0] == floors[1]:
                return floors[0]
        word = word << 64 | int(bits.words(1)[0])
        length += 64


def _leading_digits(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The leading 62 binary digits of each word: a uniform integer below 2^62."""
    return (words >> np.uint64(64 - DIGITS)).view(np.int64)


def _symmetric(law: GaussianMagnitude, size: int, bits: RandomBits) -> NDArray[np.int64]:
    """Draws of ±cell; the sign is the last bit of each word, which the look-up does not use; -0 is 0."""
    lookup = table(law)
    draws = np.empty(size, dtype=np.int64)
    for start in range(0, size, BLOCK):
        words = bits.words(min(BLOCK, size - start))
        cells = lookup.cells(_leading_digits(words), bits.words)
        sign = -(words & np.uint64(1)).view(np.int64)
        draws[start : start + BLOCK] = (cells ^ sign) - sign  # two's complement: negated where sign is -1
    return draws


def _geometric(scale: float, size: int, bits: RandomBits) -> NDArray[np.int64]:
    """Draws with P(k) ∝ exp(-k/scale), k >= 0.

    In any base, the digits of such a number are independent, since exp(-(a + b·base)/scale) is a product. So
    the low digits of a large scale are drawn from separate tables.
    """
    laws, step = [], 1
    while scale / step > GEOMETRIC_SCALE:
        laws.append(Geometric(scale, step, GEOMETRIC_BASE))
        step *= GEOMETRIC_BASE
    laws.append(Geometric(scale, step, None))
    draws = np.zeros(size, dtype=np.int64)
    for law in laws:
        lookup = table(law)
        for start in range(0, size, BLOCK):
            words = bits.words(min(BLOCK, size - start))
            draws[start : start + BLOCK] += law.step * lookup.cells(_leading_digits(words), bits.words)
    return draws


def _laplace(scale: float, size: int, bits: RandomBits) -> NDArray[np.int64]:
    """Discrete Laplace draws, as differences of two geometric ones: sum_j p^(j+|k|) p^j ∝ p^|k|."""
    return _geometric(scale, size, bits) - _geometric(scale, size, bits)


def _accept_gaussian(sigma: float, proposals: NDArray[np.int64], bits: RandomBits) -> NDArray[np.bool_]:
    """Which discrete Laplace proposals y of scale t = floor(σ) + 1 to accept: each with probability exp(-γ).

    γ = (|y| - σ²/t)²/(2σ²). In doubles, if |y| <= 64σ, the error of the difference is less than 2^-45.5 σ, so that of
    γ, which is at most 2048, is less than 64 · 2^-45.5 + 2048 · 2^-51 < 2^-38. np.exp is trusted to 2^-40, 8,000 units
    in the last place. If |y| > 64σ, exp(-γ) and its double are both far below 2^-60, which also covers the 62
    digits.
    """
    t = math.floor(sigma) + 1
    with np.errstate(under="ignore"):
        accept = np.exp(-((np.abs(proposals) - sigma * sigma / t) ** 2) / (2 * sigma * sigma))
    digits = _leading_digits(bits.words(proposals.size))
    uniform = digits * 2.0**-DIGITS
    kept = uniform < accept
    for i in np.flatnonzero(np.abs(uniform - accept) <= accept * EXP_MARGIN + 2.0**-60):
        excess = abs(int(proposals[i])) - Fraction(sigma) ** 2 / t
        kept[i] = _below_exp_minus(excess**2 / (2 * Fraction(sigma) ** 2), int(digits[i]), bits)
    return kept


def _below_exp_minus(gamma: Fraction, word: int, bits: RandomBits) -> bool:
    """Whether the uniform number that starts with the 62 digits of `word` is below exp(-gamma)."""

    def bounds(length: int) -> Bounds:
        low, high = exp_minus(gamma, length)
        return [low, 1 << length], [min(high, 1 << length), 1 << length]

    return decide(word, bounds, bits.words) == 0


def _check(name: str, value: float, largest: float, size: int) -> None:
    if not (0 < value <= largest and math.isfinite(value)):
        limit = "finite" if math.isinf(largest) else f"at most {largest:.0f}"
        raise ValueError(f"{name} is {value}; pass a number that is positive and {limit}")
    if size < 0:
        raise ValueError(f"size is {size}; pass 0 or more")


def add_noise(answer: NDArray[np.int64], release: Release, norms: Norms, bits: RandomBits) -> NDArray[np.int64]:
    """Return ``answer`` (integers, flat) plus one sample of the noise of ``release`` for each cell, in exact integers.

    ``norms`` are the sensitivity to one person, from which the scale of the noise follows. Without noise, and at zero
    sensitivity, ``answer`` itself is returned. Raises :class:`~fedsynth.errors.Unsupported` for a release that is not a
    noisy sum, such as a private selection.
    """
    match release:
        case Gaussian() if norms.l2 > 0:
            return answer + discrete_gaussian(release.sigma(norms.l2), answer.size, bits)
        case Laplace() if norms.l1 > 0:
            return answer + discrete_laplace(release.scale(norms.l1), answer.size, bits)
        case Exact() | Public() | Gaussian() | Laplace():  # zero sensitivity needs no noise
            return answer
        case _:
            raise Unsupported(f"a sum cannot be released as {release}; use Gaussian or Laplace")


def noise_std(release: Release, norms: Norms) -> float:
    """Return the standard deviation of the noise that :func:`add_noise` adds to each cell, never too small.

    It is that of continuous noise of the same scale, an upper bound for discrete noise; 0 without noise.
    """
    match release:
        case Gaussian():
            return release.sigma(norms.l2)  # the discrete law's deviation is never larger (arXiv 2004.00010, cor. 9)
        case Laplace():
            return math.sqrt(2.0) * release.scale(norms.l1)  # likewise: the discrete law's is smaller
        case Exact() | Public():
            return 0.0
        case _:
            raise Unsupported(f"a sum cannot be released as {release}; use Gaussian or Laplace")
