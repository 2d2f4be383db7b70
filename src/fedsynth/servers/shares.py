"""Share arithmetic among three servers, modulo 2^128: sharing a table, sums, squared distances, and shares of zero.

A vector x of integers is x1 + x2 + x3 modulo 2^128, where x1 and x2 are streams of a cipher under two secrets and x3 is
the rest, encrypted under a third. Servers 0, 1, 2 hold (x1, x2), (x2, x3), (x3, x1): any two together know x, each
alone has two numbers that are uniform and independent of x, whatever x is. Sums of shares are shares of sums, so each
server adds up the sites, and sums tables to smaller ones, by itself.

A number modulo 2^128 is a column of two words (:data:`Wide`), which NumPy adds and multiplies modulo 2^64; carries are
added here. Sums of squares need both words. The low words alone are shares modulo 2^64 of the same table, since what
is equal modulo 2^128 is equal modulo 2^64: tables are opened from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter, Refused
from fedsynth.keys import PUBLIC_BYTES, Keys, decrypted, encrypted
from fedsynth.privacy.noise import KeyedBits
from fedsynth.schema.bins import Integers

SERVERS = 3
Words = NDArray[np.uint64]
"""Integers modulo 2^64."""
Wide = NDArray[np.uint64]
"""Integers modulo 2^128, shape (2, cells): their low words (modulo 2^64) and their high words."""
MODULUS = 2**128
_HALF = np.uint64(32)
_LOW_HALF = np.uint64(2**32 - 1)
LARGEST_SQUARE = 2**51 - 1
"""Squared distances of a draw above this number count as this number."""
_SHARE = b"a share for three servers"
_ZERO = b"a share of zero"


def check_publics(publics: tuple[bytes, ...]) -> None:
    """Raise :class:`InvalidParameter` unless ``publics`` are the keys of three different servers, 64 bytes each."""
    if len(publics) != SERVERS or any(len(public) != PUBLIC_BYTES for public in publics):
        raise InvalidParameter(f"three public keys of {PUBLIC_BYTES} bytes are needed; pin all three servers' cards")
    if len(set(publics)) < SERVERS:
        raise InvalidParameter(
            "two of the three servers have the same key, so that one of them could read everything; pin three "
            "different servers"
        )


def widened(values: Integers) -> Wide:
    """Return integers (int64, flat) modulo 2^128."""
    signed = values.astype(np.int64)
    return np.stack((signed, signed >> 63)).view(np.uint64)


def added(first: Wide, second: Wide) -> Wide:
    """Return the sum of two vectors modulo 2^128. A low word that wraps is smaller than what it was added to."""
    low = first[0] + second[0]
    return np.stack((low, first[1] + second[1] + (low < first[0])))


def subtracted(first: Wide, second: Wide) -> Wide:
    """Return ``first`` less ``second``, modulo 2^128."""
    return np.stack((first[0] - second[0], first[1] - second[1] - (first[0] < second[0])))


def summed(table: Wide, axes: tuple[int, ...]) -> Wide:
    """Return ``table`` (its cells in any shape after the first axis) summed over ``axes``, modulo 2^128.

    Halves of low words are added up, which stay below 2^64 for fewer than 2^32 numbers; what they exceed 2^64 by
    together is carried.
    """
    lower = (table[0] & _LOW_HALF).sum(axis=axes, dtype=np.uint64)
    upper = (table[0] >> _HALF).sum(axis=axes, dtype=np.uint64) + (lower >> _HALF)
    high = table[1].sum(axis=axes, dtype=np.uint64) + (upper >> _HALF)
    return np.stack(((upper << _HALF) + (lower & _LOW_HALF), high))


def product(first: Wide, second: Wide) -> int:
    """Return the sum of the products of two vectors, modulo 2^128 (0 to 2^128 - 1), for fewer than 2^32 cells.

    Of the four products of words of a cell, that of the high words is 0 modulo 2^128 and those of a high and a low
    word count modulo 2^64. That of the low words is exact: of their halves, each product is below 2^64 and is added up
    in two halves again.
    """
    found = (int(np.dot(first[0], second[1])) + int(np.dot(first[1], second[0]))) << 64
    halves = [(vector[0] & _LOW_HALF, vector[0] >> _HALF) for vector in (first, second)]
    for one, left in enumerate(halves[0]):
        for other, right in enumerate(halves[1]):
            each = left * right
            exact = (int((each >> _HALF).sum()) << 32) + int((each & _LOW_HALF).sum())
            found += exact << (32 * (one + other))
    return found % MODULUS


def words_of(numbers: Sequence[int]) -> Wide:
    """Return integers from 0 to 2^128 - 1 as :data:`Wide`; :func:`numbers_of` is the inverse."""
    return np.array([[number % 2**64 for number in numbers], [number >> 64 for number in numbers]], dtype=np.uint64)


def numbers_of(vector: Wide) -> list[int]:
    """Return the integers that ``vector`` holds."""
    return [low + (high << 64) for low, high in zip(*vector.tolist(), strict=True)]


def expand(secret: bytes, cells: int) -> Wide:
    """Return the share (uint64, shape (2, ``cells``)) that a 32-byte ``secret`` stands for: a cipher's stream.

    The secret must be used for nothing else.
    """
    return KeyedBits(secret, _SHARE).words(2 * cells).reshape(2, cells)


def last_share(values: Integers, first: bytes, second: bytes) -> Wide:
    """Return the share x3 = x - x1 - x2 (uint64, modulo 2^128, shape (2, cells)) of a table x (``values``).

    :func:`expand` gives x1 and x2 of the secrets.
    """
    return subtracted(subtracted(widened(values), expand(first, values.size)), expand(second, values.size))


def seal_share(key: bytes, share: Wide, *context: str | bytes) -> bytes:
    """Return the third share of a table, encrypted for the servers that know ``key``.

    ``key`` (32 secret bytes) must be used for this share alone. ``context`` names question, site and terms; it is
    authenticated and must be given again to :func:`open_share`.
    """
    return encrypted(key, share.astype("<u8").tobytes(), "third share", *context)


def open_share(key: bytes, body: bytes, cells: int, *context: str | bytes) -> Wide:
    """Decrypt what :func:`seal_share` sealed; raises :class:`Refused` if it was changed or has not ``cells`` cells."""
    plain = decrypted(key, body, "third share", *context)
    if len(plain) != 16 * cells:
        raise Refused(
            f"the site dealt a share of {len(plain) // 16} cells, not {cells}; install the same fedsynth everywhere"
        )
    return np.frombuffer(plain, dtype="<u8").astype(np.uint64, copy=False).reshape(2, cells)


def held(shares: Sequence[Wide], server: int) -> tuple[Wide, Wide]:
    """Return the two of the three ``shares`` of a table that a ``server`` holds."""
    return shares[server], shares[(server + 1) % SERVERS]


def score(own: Wide, following: Wide, expected: Integers, server: int) -> int:
    """Return a server's additive share of the sum of (x - expected)^2 over all cells of a table x, modulo 2^128.

    ``own`` and ``following`` are the two shares of x that the server holds (:func:`held`). With y the shares of x -
    expected, the nine products y_i y_j are divided into three parts y_i^2 + 2 y_i y_(i+1), one for each server. The
    public table ``expected`` (flat, in records) is subtracted from the first share, which servers 0 (as ``own``) and 2
    (as ``following``) hold.
    """
    if server == 0:
        own = subtracted(own, widened(expected))
    elif server == SERVERS - 1:
        following = subtracted(following, widened(expected))
    return product(own, added(own, added(following, following)))


def zero_share(keys: Keys, publics: Sequence[bytes], server: int, cells: int, context: bytes) -> Words:
    """Return a server's share of zero: the three shares for one context add up to 0, and any two of them are uniform.

    Added to what a server sends, it hides everything but the sum over servers. Each pair of servers has one
    pseudo-random stream, from a secret that only these two share: one of them adds it and the other subtracts it.
    ``context`` must be used for one vector only.
    """
    after, before = publics[(server + 1) % SERVERS], publics[(server - 1) % SERVERS]
    added = KeyedBits(keys.shared(after, _ZERO, str(server)), context).words(cells)
    taken = KeyedBits(keys.shared(before, _ZERO, str((server - 1) % SERVERS)), context).words(cells)
    share: Words = added - taken
    return share


def total(shares: Iterable[Words]) -> Integers:
    """Return the sum of additive ``shares`` modulo 2^64 as signed integers (int64)."""
    first, *others = shares
    found = first.copy()
    for share in others:
        found += share
    return found.view(np.int64)


def roots(first: Wide, second: Wide, third: Wide) -> Integers:
    """Return the integer square roots (int64) of numbers that are given as three vectors of additive shares.

    A number above ``LARGEST_SQUARE`` counts as that: a distance of 2^25.5 records. The smaller of a distance and a
    constant moves by no more than the distance. A draw among three servers computes the same without anyone seeing the
    roots.
    """
    found = numbers_of(added(added(first, second), third))
    return np.array([math.isqrt(min(number, LARGEST_SQUARE)) for number in found], dtype=np.int64)
