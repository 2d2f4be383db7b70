"""Shamir's secret sharing: any ``threshold`` shares give a 32-byte secret back, fewer say nothing about it.

Shamir, "How to share a secret", CACM 1979 (doi 10.1145/359168.359176). Python integers modulo a prime: a session
shares two secrets per site, so there is nothing to speed up. Running time depends on the secrets: the caller is a
site with its own secrets, which lets nobody time single operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedsynth.errors import FedsynthError

PRIME = 2**256 + 297
"""The least prime above 2^256, so that every 32-byte secret is an element of the field."""

SHARE_BYTES = 33
COEFFICIENT_BYTES = 48
"""Of a uniform coefficient: reduced modulo the prime, 384 random bits are uniform to 2^-127."""


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


def combine(shares: Mapping[int, int]) -> bytes:
    """Return the secret from at least a threshold of shares, by point.

    Raises :class:`FedsynthError` where no 32-byte secret has such shares. Wrong shares mostly give a wrong secret
    instead: whoever holds a commitment to it must compare.
    """
    points = sorted(shares)
    return weighted(weights_at_zero(points), [shares[point] for point in points])


def weighted(weights: Sequence[int], values: Sequence[int]) -> bytes:
    """Return the secret from values at the points that ``weights`` are for."""
    secret = sum(weight * value for weight, value in zip(weights, values, strict=True)) % PRIME
    if secret >> 256:
        raise FedsynthError("shares do not fit together: a site has sent a wrong one; start another run without it")
    return secret.to_bytes(32)


def to_bytes(share: int) -> bytes:
    """Return a share as :data:`SHARE_BYTES` bytes."""
    return share.to_bytes(SHARE_BYTES)


def from_bytes(data: bytes) -> int:
    """Return the share that :func:`to_bytes` wrote; raise :class:`FedsynthError` for anything else."""
    share = int.from_bytes(data)
    if len(data) != SHARE_BYTES or share >= PRIME:
        raise FedsynthError("that is no share; install the same fedsynth version at server and sites")
    return share
