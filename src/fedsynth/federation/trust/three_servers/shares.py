"""Share arithmetic among three servers, modulo 2^64: sharing a table, sums, squared distances, and shares of zero.

A vector x of integers is x1 + x2 + x3 modulo 2^64, where x1 and x2 are streams of a cipher under two secrets and x3 is
the rest, encrypted under a third. Servers 0, 1, 2 hold (x1, x2), (x2, x3), (x3, x1): any two together know x, each
alone has two numbers that are uniform and independent of x, whatever x is. NumPy's unsigned integers wrap as the
arithmetic does. Sums of shares are shares of sums, so each server adds up the sites, and sums tables to smaller ones,
by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import Refused
from fedsynth.federation.trust.secure import masking
from fedsynth.federation.trust.three_servers.keys import SERVERS, ServerKeys
from fedsynth.privacy.noise import KeyedBits
from fedsynth.schema.bins import Integers

Words = NDArray[np.uint64]
"""Integers modulo 2^64."""
_SHARE = b"a share for three servers"
_ZERO = b"a share of zero"


def expand(secret: bytes, cells: int) -> Words:
    """Return the share (uint64, ``cells`` integers) that a 32-byte ``secret`` stands for: a cipher's stream.

    The secret must be used for nothing else.
    """
    return KeyedBits(secret, _SHARE).words(cells)


def last_share(values: Integers, first: bytes, second: bytes) -> Words:
    """Return the share x3 = x - x1 - x2 (uint64, modulo 2^64) of a site's table x, given as ``values``.

    The secrets ``first`` and ``second`` (32 bytes each) give x1 and x2 by :func:`expand`.
    """
    share: Words = values.astype(np.int64).view(np.uint64) - expand(first, values.size) - expand(second, values.size)
    return share


def seal_share(key: bytes, share: Words, *context: str | bytes) -> bytes:
    """Return the third secret share of a table (:func:`last_share`), encrypted for the servers that know ``key``.

    ``key`` (32 secret bytes) must be used for this share alone. ``context`` names question, site and terms; it is
    authenticated and must be given again to :func:`open_share`.
    """
    return masking.seal(key, share.astype("<u8").tobytes(), "third share", *context)


def open_share(key: bytes, body: bytes, cells: int, *context: str | bytes) -> Words:
    """Decrypt the third secret share of a table, sealed by :func:`seal_share` with this ``key`` and ``context``.

    Raises :class:`Refused` if ``body`` was changed or does not have ``cells`` cells.
    """
    plain = masking.unseal(key, body, "third share", *context)
    if len(plain) != 8 * cells:
        raise Refused(
            f"the site dealt a share of {len(plain) // 8} cells, not {cells}; install the same fedsynth everywhere"
        )
    return np.frombuffer(plain, dtype="<u8").astype(np.uint64, copy=False)


def held(shares: Sequence[Words], server: int) -> tuple[Words, Words]:
    """Return the two of the three ``shares`` of a table that a server holds: its own one and the next one.

    For server number ``server`` (0, 1 or 2) these are ``shares[server]`` and ``shares[(server + 1) % 3]``.
    """
    return shares[server], shares[(server + 1) % SERVERS]


def score(own: Words, following: Words, expected: Integers, server: int) -> int:
    """Return a server's additive share of the sum of (x - expected)^2 over all cells of a table x, modulo 2^64.

    ``own`` and ``following`` are the two shares of x that server number ``server`` holds (:func:`held`). With y the
    shares of x - expected, the nine products y_i y_j are divided into three parts y_i^2 + 2 y_i y_(i+1), one for each
    server. The public table ``expected`` (flat, in records) is subtracted from the first share, which servers 0 (as
    ``own``) and 2 (as ``following``) hold.
    """
    if server == 0:
        own = own - expected.astype(np.int64).view(np.uint64)
    elif server == SERVERS - 1:
        following = following - expected.astype(np.int64).view(np.uint64)
    return int(np.dot(own, own + following + following))


def zero_share(keys: ServerKeys, publics: Sequence[bytes], server: int, cells: int, context: bytes) -> Words:
    """Return a server's share of zero: the three shares for one context add up to 0, and any two of them are uniform.

    Added to what a server sends, it hides everything but the sum over servers. Each pair of servers has one
    pseudo-random stream, from a secret that only these two share: one of them adds it and the other subtracts it.
    ``keys`` are the server's own, ``publics`` all three public keys, and ``server`` is its number (0, 1 or 2). The
    result is uint64 of ``cells`` integers; ``context`` must be used for one vector only.
    """
    after, before = publics[(server + 1) % SERVERS], publics[(server - 1) % SERVERS]
    added = KeyedBits(keys.shared(after, _ZERO, str(server)), context).words(cells)
    taken = KeyedBits(keys.shared(before, _ZERO, str((server - 1) % SERVERS)), context).words(cells)
    share: Words = added - taken
    return share


def total(shares: Iterable[Words]) -> Integers:
    """Return the sum of additive ``shares`` modulo 2^64, as integers (int64) from -2^63 to 2^63 - 1."""
    first, *others = shares
    found = first.copy()
    for share in others:
        found += share
    return found.view(np.int64)


def roots(first: Words, second: Words, third: Words) -> Integers:
    """Return the integer square roots (int64) of numbers that are given as three vectors of additive shares.

    Each number is the sum of its three shares modulo 2^64. A draw among three servers computes the same without anyone
    seeing the roots.
    """
    return np.array([math.isqrt(int(number)) for number in first + second + third], dtype=np.int64)
