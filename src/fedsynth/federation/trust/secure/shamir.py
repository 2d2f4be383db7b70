"""Shamir's secret sharing: any ``threshold`` shares give a 32-byte secret back, fewer say nothing about it.

Shamir, "How to share a secret", CACM 1979 (doi 10.1145/359168.359176). Python integers modulo a prime: a session
shares two secrets per site, so there is nothing to speed up. Running time depends on the secrets: the caller is a
site with its own secrets, which lets nobody time single operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, combinations, islice
from math import prod

from fedsynth.errors import FedsynthError

PRIME = 2**256 + 297
"""The least prime above 2^256, so that every 32-byte secret is an element of the field."""

SHARE_BYTES = 33
COEFFICIENT_BYTES = 48
"""Of a uniform coefficient: reduced modulo the prime, 384 random bits are uniform to 2^-127."""

NO_SHARE = b"\xff" * SHARE_BYTES
"""In place of a share that a site does not have: no element of the field."""

MOST_TRIES = 10_000
"""Sets of wrong shares that are tried: every single one of 9,999 shares, every pair of 140, every three of 39."""


def split(secret: bytes, shares: int, coefficients: Sequence[int]) -> list[int]:
    """Return the shares at 1, 2, ..., ``shares``; the threshold is the number of coefficients plus one.

    ``coefficients`` must be independent, uniform modulo :data:`PRIME`, and used for this secret alone.
    """
    if len(secret) != 32:
        raise ValueError(f"a secret has 32 bytes, not {len(secret)}")
    if not len(coefficients) < shares < PRIME:
        raise ValueError(f"{shares} shares cannot have a threshold of {len(coefficients) + 1}")
    polynomial = [int.from_bytes(secret), *coefficients]
    result = []
    for point in range(1, shares + 1):
        value = 0
        for coefficient in reversed(polynomial):
            value = (value * point + coefficient) % PRIME
        result.append(value)
    return result


def weights_at_zero(points: Sequence[int]) -> list[int]:
    """Return the Lagrange weights that give a polynomial's value at 0 from its values at distinct ``points``."""
    if len(set(points)) != len(points) or not all(0 < point < PRIME for point in points):
        raise FedsynthError("shares are repeated or belong to nobody; ask each site for its own share, once")
    result = []
    for i, point in enumerate(points):
        above, below = 1, 1
        for j, other in enumerate(points):
            if i != j:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        result.append(above * pow(below, -1, PRIME) % PRIME)
    return result


def recover(
    shares: Mapping[int, int], threshold: int, fits: Callable[[bytes], bool]
) -> tuple[bytes, tuple[int, ...]] | None:
    """Return the secret that ``fits``, and the points whose shares are wrong; ``None`` where no secret is found.

    ``shares`` are by point. Sets of wrong shares are tried, the smallest first, as long as ``threshold`` shares are
    left, and at most :data:`MOST_TRIES` of them. Without the points R the value at 0 is

        sum_i w_i y_i prod_{r in R} (r - i) / prod_{r in R} r,

    with the Lagrange weights w_i of all points, so that a try takes len(shares) * len(R) products.
    """
    points = sorted(shares)
    terms = [weight * shares[point] % PRIME for weight, point in zip(weights_at_zero(points), points, strict=True)]
    spare = range(len(points) - threshold + 1)
    for wrong in islice(chain.from_iterable(combinations(points, count) for count in spare), MOST_TRIES):
        value = 0
        for point, term in zip(points, terms, strict=True):
            for left_out in wrong:
                term = term * (left_out - point) % PRIME
            value += term
        value = value * pow(prod(wrong), -1, PRIME) % PRIME
        if value >> 256 == 0 and fits(secret := value.to_bytes(32)):
            return secret, wrong
    return None


def to_bytes(share: int) -> bytes:
    """Return a share as :data:`SHARE_BYTES` bytes."""
    return share.to_bytes(SHARE_BYTES)


def from_bytes(data: bytes) -> int | None:
    """Return the share that :func:`to_bytes` wrote, ``None`` for bytes that are no element of the field."""
    share = int.from_bytes(data)
    return share if len(data) == SHARE_BYTES and share < PRIME else None
