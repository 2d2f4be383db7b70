"""Share arithmetic among three servers: dealing, sums over cells, scores and zero shares, modulo 2^64.

A vector x of integers is x1 + x2 + x3 modulo 2^64, where x1 and x2 are streams of a cipher under two secrets and x3 is
the rest, encrypted under a third. Servers 0, 1, 2 hold (x1, x2), (x2, x3), (x3, x1): any two together know x, each
alone has two numbers that are uniform and independent of x, whatever x is. NumPy's unsigned integers wrap as the
arithmetic does. Sums of shares are shares of sums, so that sites add up and tables are summed to smaller ones locally.
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
    """Return the share that a secret stands for: a cipher's stream, which serves nothing else."""
    return KeyedBits(secret, _SHARE).words(cells)


def last_share(values: Integers, first: bytes, second: bytes) -> Words:
    """Return x3 = x - x1 - x2 for the secrets of x1 and x2."""
    share: Words = values.astype(np.int64).view(np.uint64) - expand(first, values.size) - expand(second, values.size)
    return share


def seal_share(key: bytes, share: Words, *context: str | bytes) -> bytes:
    """Return the third share, encrypted under a key that serves it alone."""
    return masking.seal(key, share.astype("<u8").tobytes(), "third share", *context)


def open_share(key: bytes, body: bytes, cells: int, *context: str | bytes) -> Words:
    """Return the third share of so many cells; raises :class:`Refused` for another number, or what was changed."""
    plain = masking.unseal(key, body, "third share", *context)
    if len(plain) != 8 * cells:
        raise Refused(f"a share of {len(plain) // 8} cells was dealt in place of {cells}")
    return np.frombuffer(plain, dtype="<u8").astype(np.uint64, copy=False)


def held(shares: Sequence[Words], server: int) -> tuple[Words, Words]:
    """Return the two of three shares that a server (0, 1, 2) holds."""
    return shares[server], shares[(server + 1) % SERVERS]


def score(own: Words, following: Words, expected: Integers, server: int) -> int:
    """Return a server's additive share of sum (x - expected)^2 over cells, modulo 2^64.

    With y the shares of x - expected, the nine products y_i y_j fall into three local parts, y_i^2 + 2 y_i y_(i+1).
    The public table is taken off the first share, which servers 0 (as its own) and 2 (as the following one) hold.
    """
    if server == 0:
        own = own - expected.astype(np.int64).view(np.uint64)
    elif server == SERVERS - 1:
        following = following - expected.astype(np.int64).view(np.uint64)
    return int(np.dot(own, own + following + following))


def zero_share(keys: ServerKeys, publics: Sequence[bytes], server: int, cells: int, context: bytes) -> Words:
    """Return a server's share of zero: the three for one context add up to 0, any two of them are uniform otherwise.

    Each pair of neighbours has one stream, which the first adds and the second subtracts (a pseudo-random function of a
    secret that only the two share). ``context`` must serve one vector alone.
    """
    after, before = publics[(server + 1) % SERVERS], publics[(server - 1) % SERVERS]
    added = KeyedBits(keys.shared(after, _ZERO, str(server)), context).words(cells)
    taken = KeyedBits(keys.shared(before, _ZERO, str((server - 1) % SERVERS)), context).words(cells)
    share: Words = added - taken
    return share


def total(shares: Iterable[Words]) -> Integers:
    """Return the integers, between -2^63 and 2^63, that additive shares add up to."""
    first, *others = shares
    found = first.copy()
    for share in others:
        found += share
    return found.view(np.int64)


def roots(first: Words, second: Words, third: Words) -> Integers:
    """Return the integer square roots of sums below 2^64 whose additive shares these are: what the draw computes."""
    return np.array([math.isqrt(int(number)) for number in first + second + third], dtype=np.int64)
