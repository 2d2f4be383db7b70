"""Shamir's secret sharing: any ``threshold`` shares give a 32-byte secret back, fewer say nothing about it.

Shamir, "How to share a secret", CACM 1979 (doi 10.1145/359168.359176). A secret is :data:`WORDS` words of 30 bits, each
shared by a polynomial of its own over the integers modulo :data:`PRIME`, so that numpy does the work of all words and
shares at once. Running time does not depend on secrets, but for the inverses and the search for wrong shares, which
are the server's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, combinations, islice
from math import prod

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import FedsynthError
from fedsynth.privacy.noise import RandomBits

Words = NDArray[np.uint64]

PRIME = 2**31 - 1
"""A Mersenne prime above every word of 30 bits, whose products fit into 64 bits."""

WORD_BITS = 30
WORDS = 9
"""Words of a secret of 256 bits, the least significant first."""

SHARE_BYTES = 4 * WORDS

NO_SHARE = b"\xff" * SHARE_BYTES
"""In place of a share that a site does not have: no elements of the field."""

MOST_TRIES = 10_000
"""Sets of wrong shares that are tried: every single one of 9,998 shares, every pair of 140, every three of 39; wrong
shares that are at most half of those beyond the threshold are found without a search."""


def split(secret: bytes, points: Sequence[int], coefficients: Words) -> Words:
    """Return the shares of a 32-byte ``secret`` at ``points``, uint64 of shape (points, 9): one row for each holder.

    ``points`` are different integers from 1 to :data:`PRIME` - 1 (else :class:`FedsynthError`). ``coefficients``,
    uint64 of shape (threshold - 1, 9), are those of the polynomials above degree 0; they must be independent, uniform
    modulo :data:`PRIME` (:func:`uniform`), and used for this secret alone. Raises ``ValueError`` for a secret of
    another length or a threshold above the number of points.
    """
    if len(secret) != 32:
        raise ValueError(f"a secret has 32 bytes, not {len(secret)}")
    if not len(coefficients) < len(points):
        raise ValueError(f"{len(points)} shares cannot have a threshold of {len(coefficients) + 1}")
    return (_product(_powers(tuple(_checked(points)), len(coefficients)), coefficients) + _words(secret)) % PRIME


def uniform(bits: RandomBits, count: int) -> Words:
    """Return ``count`` rows of nine integers (uint64), independent and exactly uniform modulo :data:`PRIME`."""
    found = np.empty(0, dtype=np.uint64)
    while found.size < count * WORDS:
        drawn = bits.words((count * WORDS - found.size + 1) // 2)
        halves = np.concatenate([drawn >> 33, drawn & PRIME])
        found = np.concatenate([found, halves[halves < PRIME]])  # 2^31 - 1 itself would be a second zero
    return found[: count * WORDS].reshape(count, WORDS)


def weights_at_zero(points: Sequence[int]) -> Words:
    """Return the Lagrange weights w_i (uint64, modulo :data:`PRIME`): a polynomial's value at 0 is sum_i w_i f(x_i).

    ``points`` are the x_i, as in :func:`split`. The polynomial's degree must be less than their number.
    """
    at = np.array(_checked(points), dtype=np.uint64)
    below = (at[None, :] + PRIME - at[:, None]) % PRIME  # row i: x_j - x_i
    above = np.broadcast_to(at, below.shape).copy()
    np.fill_diagonal(below, 1)
    np.fill_diagonal(above, 1)
    pairs = zip(_row_products(above), _row_products(below), strict=True)
    return np.array([int(a) * pow(int(b), -1, PRIME) % PRIME for a, b in pairs], dtype=np.uint64)


def recover(
    shares: Mapping[int, Words], threshold: int, fits: Callable[[bytes], bool]
) -> tuple[bytes, tuple[int, ...]] | None:
    """Return the secret (32 bytes) that ``shares`` give, and the points of wrong shares; ``None`` if no secret fits.

    ``shares`` holds nine words (a row of :func:`split`) for each point; ``fits(secret)`` says whether a candidate is
    the right one. First the shares are left out that a Reed-Solomon decoder finds to be wrong (:func:`_misfits`). If
    that does not help, sets of shares to leave out are tried, the smallest first, as long as ``threshold`` shares are
    left, and at most :data:`MOST_TRIES` sets. Without the points R the value at 0 is

        sum_i w_i y_i prod_{r in R} (r - i) / prod_{r in R} r,

    with the Lagrange weights w_i of all points, so that a try takes 9 len(shares) len(R) products.
    """
    points = sorted(shares)
    if not points:
        return None
    at = np.array(points, dtype=np.uint64)[:, None]
    terms = weights_at_zero(points)[:, None] * np.stack([shares[point] for point in points]) % PRIME
    spare = len(points) - threshold
    if spare < 0:
        return None
    sets = chain.from_iterable(combinations(points, count) for count in range(spare + 1))
    for wrong in islice(chain([_misfits(points, terms, spare)], sets), MOST_TRIES):
        left = terms
        for out in wrong:
            left = left * ((out + PRIME - at) % PRIME) % PRIME
        value = left.sum(axis=0) % PRIME * np.uint64(pow(prod(wrong), -1, PRIME)) % PRIME
        secret = _secret(value)
        if secret is not None and fits(secret):
            return secret, wrong
    return None


def _misfits(points: Sequence[int], terms: Words, spare: int) -> tuple[int, ...]:
    """Return the points of the wrong shares if these are at most half of the ``spare`` ones; else any points, or none.

    Shares are a Reed-Solomon code. With ``terms`` w_i y_i as in :func:`recover`, sum_i w_i y_i i^k is zero for k = 1
    ... ``spare`` where all shares are right, since the weights are, but for a factor, those of the dual code over i. So
    wrong shares alone remain of these sums, and their points are the roots of the shortest recurrence that the sums
    obey (Massey, "Shift-register synthesis and BCH decoding", 1969, doi 10.1109/TIT.1969.1054260). Each of the nine
    words has its own.
    """
    at = np.array(points, dtype=np.uint64)
    wrong = np.zeros(len(points), dtype=bool)
    for sums in _product(_powers(tuple(points), spare).T, terms).T.tolist() if spare else []:
        values = np.zeros(len(points), dtype=np.uint64)
        for coefficient in _recurrence(sums):
            values = (values * at + np.uint64(coefficient)) % PRIME
        wrong |= values == 0
    return tuple(point for point, out in zip(points, wrong, strict=True) if out) if wrong.sum() <= spare else ()


def _recurrence(sums: Sequence[int]) -> list[int]:
    """Return c_0 = 1, c_1, ..., c_n, of least n, with sum_j c_j sums[k - j] = 0 modulo :data:`PRIME` for all k >= n."""
    found, before = [1], [1]
    length, gap, last = 0, 1, 1
    for k, newest in enumerate(sums):
        misfit = (newest + sum(found[j] * sums[k - j] for j in range(1, min(len(found), k + 1)))) % PRIME
        if not misfit:
            gap += 1
            continue
        factor = misfit * pow(last, -1, PRIME) % PRIME
        longer = found + [0] * (len(before) + gap - len(found))
        for j, coefficient in enumerate(before, gap):
            longer[j] = (longer[j] - factor * coefficient) % PRIME
        if 2 * length <= k:
            length, before, last, gap = k + 1 - length, found, misfit, 1
        else:
            gap += 1
        found = longer
    return found + [0] * (length + 1 - len(found))


def to_bytes(share: Words) -> bytes:
    """Return one share as :data:`SHARE_BYTES` bytes."""
    return share.astype("<u4").tobytes()


def from_bytes(data: bytes) -> Words | None:
    """Return the share that :func:`to_bytes` wrote; ``None`` for bytes that are no share."""
    if len(data) != SHARE_BYTES:
        return None
    share = np.frombuffer(data, dtype="<u4").astype(np.uint64)
    return share if bool((share < PRIME).all()) else None


def _checked(points: Sequence[int]) -> Sequence[int]:
    if len(set(points)) != len(points) or not all(0 < point < PRIME for point in points):
        raise FedsynthError("shares are repeated or belong to nobody; ask each site for its own share, once")
    return points


@lru_cache(maxsize=2)  # a site splits two secrets among the same sites
def _powers(points: tuple[int, ...], count: int) -> Words:
    """Return the powers 1, 2, ..., ``count`` of points, shape (points, count)."""
    at = np.array(points, dtype=np.uint64)[:, None]
    powers = at
    while powers.shape[1] < count:
        powers = np.hstack([powers, powers * powers[:, -1:] % PRIME])
    return powers[:, :count]


def _words(secret: bytes) -> Words:
    number = int.from_bytes(secret)
    return np.array([number >> WORD_BITS * at & (1 << WORD_BITS) - 1 for at in range(WORDS)], dtype=np.uint64)


def _secret(words: Words) -> bytes | None:
    """Return the 32 bytes of nine words, ``None`` if they are not a secret."""
    number = sum(int(word) << WORD_BITS * at for at, word in enumerate(words))
    return number.to_bytes(32) if int(words.max()) >> WORD_BITS == 0 and number >> 256 == 0 else None


def _product(left: Words, right: Words) -> Words:
    """Return the matrix product modulo :data:`PRIME`, by exact floats.

    With words in halves of 15 and 16 bits each sum of n products is below n 2^33, and n is below 2^20.
    """
    (a1, a0), (b1, b0) = (((m >> 16).astype(np.float64), (m & 0xFFFF).astype(np.float64)) for m in (left, right))
    high, middle, low = (part.astype(np.uint64) for part in (a1 @ b1, a1 @ b0 + a0 @ b1, a0 @ b0))
    result: Words = (high % PRIME * 2 + (middle % PRIME << 16) + low) % PRIME  # 2^32 is 2 modulo the prime
    return result


def _row_products(matrix: Words) -> Words:
    while matrix.shape[1] > 1:
        if matrix.shape[1] % 2:
            matrix = np.hstack([matrix, np.ones((len(matrix), 1), dtype=np.uint64)])
        half = matrix.shape[1] // 2
        matrix = matrix[:, :half] * matrix[:, half:] % PRIME
    return matrix[:, 0]
