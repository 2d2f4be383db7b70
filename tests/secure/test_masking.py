"""The cryptography of a secure sum: shares, masks, boxes, signatures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from fedsynth import keys
from fedsynth.errors import FedsynthError, Refused
from fedsynth.privacy.noise import KeyedBits
from fedsynth.secure import masking
from fedsynth.secure.shamir import (
    NO_SHARE,
    PRIME,
    SHARE_BYTES,
    WORD_BITS,
    WORDS,
    from_bytes,
    recover,
    split,
    to_bytes,
    uniform,
    weights_at_zero,
)

SECRET = bytes(range(32))
# Points of order 1, 2 and 8 (https://cr.yp.to/ecdh.html), little endian.
LOW_ORDER = [
    bytes(32),
    bytes([1]) + bytes(31),
    (325606250916557431795983626356110631294008115727848805560023387167927233504).to_bytes(32, "little"),
    (39382357235489614581723060781553021112529911719440698176882885853963445705823).to_bytes(32, "little"),
    (2**255 - 20).to_bytes(32, "little"),
]


def coefficients(count: int, seed: int = 0) -> NDArray[np.uint64]:
    return uniform(KeyedBits(seed.to_bytes(32), b"coefficients"), count)


def split_among(secret: bytes, number: int, others: NDArray[np.uint64]) -> dict[int, NDArray[np.uint64]]:
    points = range(1, number + 1)
    return dict(zip(points, split(secret, points, others), strict=True))


def combine(shares: Mapping[int, NDArray[np.uint64]]) -> bytes:
    found = recover(shares, len(shares), lambda secret: True)
    assert found is not None
    return found[0]


def test_the_prime_is_prime():
    assert all(PRIME % n for n in range(2, math.isqrt(PRIME) + 1))
    assert PRIME > 2**WORD_BITS
    assert WORDS * WORD_BITS >= 256


def test_shares_are_the_values_of_polynomials():
    points = [1, 7, 1000, 2**14]
    drawn = coefficients(3)
    for point, share in zip(points, split(SECRET, points, drawn), strict=True):
        for at in range(WORDS):
            value = 0
            for row in reversed(drawn.tolist()):
                value = (value + row[at]) * point % PRIME
            assert int(share[at]) == (value + (int.from_bytes(SECRET) >> WORD_BITS * at) % 2**WORD_BITS) % PRIME


def test_coefficients_are_uniform_whatever_is_drawn():
    """All but one of 2^31 draws are taken as they are; the one that would be a second zero is drawn again."""

    class Bad:
        def __init__(self) -> None:
            self.calls = 0

        def words(self, n: int) -> NDArray[np.uint64]:
            self.calls += 1
            return np.full(n, 2**64 - 1 if self.calls == 1 else 5 << 33 | 3, dtype=np.uint64)

    bits = Bad()
    assert set(uniform(bits, 4).ravel().tolist()) == {3, 5}
    assert bits.calls == 2
    drawn = coefficients(4000)
    assert drawn.shape == (4000, WORDS)
    assert int(drawn.max()) < PRIME
    assert stats.kstest(drawn.ravel() / PRIME, "uniform").pvalue > 1e-5
    assert uniform(KeyedBits(bytes(32), b"none"), 0).shape == (0, WORDS)


def test_every_threshold_of_shares_opens_the_secret_and_one_less_does_not():
    shares = split_among(SECRET, 5, coefficients(2))
    for points in itertools.combinations(range(1, 6), 3):
        assert combine({at: shares[at] for at in points}) == SECRET
    assert combine(shares) == SECRET
    for pair in itertools.combinations(range(1, 6), 2):
        assert recover({at: shares[at] for at in pair}, 2, SECRET.__eq__) is None


def test_shares_below_the_threshold_fit_every_secret():
    """Perfect secrecy: for t - 1 shares and any secret at all there is a polynomial that gives both, word by word."""
    shares = split_among(SECRET, 5, coefficients(2))
    held = {2: shares[2], 5: shares[5]}
    for other in (bytes(32), b"\xff" * 32, bytes(reversed(SECRET))):
        # the value at 1 of the one polynomial of degree 2 through (0, other) and both shares
        number = int.from_bytes(other)
        value = []
        for at in range(WORDS):
            known_at = {0: number >> WORD_BITS * at & 2**WORD_BITS - 1, **{p: int(held[p][at]) for p in held}}
            total = 0
            for point, known in known_at.items():
                factor = 1
                for rest in known_at:
                    if rest != point:
                        factor = factor * (1 - rest) * pow(point - rest, -1, PRIME) % PRIME
                total = (total + known * factor) % PRIME
            value.append(total)
        assert combine({**held, 1: np.array(value, dtype=np.uint64)}) == other


def test_one_share_is_the_secret_where_one_is_enough():
    shares = split_among(SECRET, 3, coefficients(0))
    assert all(combine({point: share}) == SECRET for point, share in shares.items())


@pytest.mark.parametrize("points", [[1, 1], [0, 1], [1, PRIME], [-1]])
def test_repeated_and_impossible_points_are_refused(points):
    with pytest.raises(FedsynthError, match="repeated or belong to nobody"):
        weights_at_zero(points)
    with pytest.raises(FedsynthError, match="repeated or belong to nobody"):
        split(SECRET, points, coefficients(0))


def test_malformed_shares_and_misfits_are_refused():
    largest = np.full(WORDS, PRIME - 1, dtype=np.uint64)
    opened = from_bytes(to_bytes(largest))
    assert opened is not None
    assert (opened == largest).all()
    one_too_large = to_bytes(largest)[:-4] + PRIME.to_bytes(4, "little")
    for data in (one_too_large, NO_SHARE, bytes(SHARE_BYTES - 1), bytes(SHARE_BYTES + 1)):
        assert from_bytes(data) is None
    assert recover({1: largest}, 1, lambda secret: True) is None  # words above 2^30
    above = np.array([0] * 8 + [2**16], dtype=np.uint64)  # 2^256
    assert recover({1: above}, 1, lambda secret: True) is None
    with pytest.raises(ValueError, match="32 bytes"):
        split(b"short", range(1, 4), coefficients(1))
    with pytest.raises(ValueError, match="cannot have a threshold of 4"):
        split(SECRET, range(1, 4), coefficients(3))


@pytest.mark.parametrize(("number", "threshold"), [(2, 1), (5, 4), (8, 5), (9, 3)])
def test_a_secret_is_recovered_as_long_as_a_threshold_of_shares_is_right(number, threshold):
    shares = split_among(SECRET, number, coefficients(threshold - 1))
    errors = dict(enumerate(coefficients(number, 1), start=1))
    fits = SECRET.__eq__
    for count in range(number + 1):
        for wrong in itertools.combinations(shares, count):
            given = {point: errors[point] if point in wrong else share for point, share in shares.items()}
            found = recover(given, threshold, fits)
            assert found == (None if number - count < threshold else (SECRET, wrong))
            del given[number]  # and one share that nobody has
            if number - 1 - sum(point < number for point in wrong) >= threshold:
                assert recover(given, threshold, fits) == (SECRET, tuple(point for point in wrong if point < number))
    assert recover({}, 1, fits) is None


def test_hundreds_of_shares_open_a_secret_and_wrong_ones_are_found():
    points = [int(point) + 1 for point in np.random.default_rng(0).choice(2**14, 423, replace=False)]
    shares = dict(zip(points, split(SECRET, points, coefficients(377)), strict=True))
    shares[points[5]] = shares[points[6]]
    assert recover(shares, 378, SECRET.__eq__) == (SECRET, (points[5],))
    for count in (2, 22):  # half of the 45 that are left; searched for, most pairs alone would take too many tries
        wrong = sorted(points[200 : 200 + count])
        given = dict(zip(points, split(SECRET, points, coefficients(377)), strict=True))
        for point in wrong:
            given[point] = (given[point] + np.eye(WORDS, dtype=np.uint64)[point % WORDS]) % PRIME
        assert recover(given, 378, SECRET.__eq__) == (SECRET, tuple(wrong))


def test_the_search_for_wrong_shares_ends(monkeypatch):
    monkeypatch.setattr("fedsynth.secure.shamir.MOST_TRIES", 7)
    tried: list[bytes] = []

    def never(secret: bytes) -> bool:
        tried.append(secret)
        return False

    assert recover(split_among(SECRET, 12, coefficients(5)), 6, never) is None
    assert 0 < len(tried) <= 7


def words(size: int, key: bytes = bytes(32)) -> NDArray[np.uint64]:
    total = np.zeros(size, dtype=np.uint64)
    masking.mask(total, key, add=True)
    return total


@pytest.mark.parametrize("size", [0, 1, 16_383, 16_384, 16_385, 50_001])
def test_a_mask_comes_off_exactly_and_does_not_depend_on_the_length(size):
    numbers = np.random.default_rng(1).integers(-(2**62), 2**62, size)
    total = numbers.view(np.uint64).copy()
    masking.mask(total, SECRET, add=True)
    assert (total == numbers.view(np.uint64) + words(60_000, SECRET)[:size]).all()
    assert size < 2 or (total.view(np.int64) != numbers).all()
    masking.mask(total, SECRET, add=False)
    assert (total.view(np.int64) == numbers).all()


def test_masks_are_uniform_and_independent_between_keys():
    one, other = words(40_000), words(40_000, SECRET)
    for stream in (one, other, one - other, one ^ np.roll(one, 1)):
        counts = np.bincount(stream.view(np.uint8), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-5
    assert np.unique(one).size == one.size


def test_the_mask_is_the_published_cipher():
    """The stream of AES-256-CTR for the zero key starts with the encryption of the zero block (NIST SP 800-38A)."""
    assert words(2).tobytes().hex() == "dc95c078a2408989ad48a21492842087"


def test_two_agree_and_a_third_does_not():
    a, b, eve = (keys.derive(SECRET, name) for name in "abe")
    shared = keys.agree(a, keys.public_key(b), "mask", b"session")
    assert shared == keys.agree(b, keys.public_key(a), "mask", b"session")
    others = {
        keys.agree(eve, keys.public_key(b), "mask", b"session"),
        keys.agree(a, keys.public_key(b), "mask", b"another session"),
        keys.agree(a, keys.public_key(b), "box", b"session"),
    }
    assert len({shared, *others}) == 4
    assert keys.usable(keys.public_key(a))
    for low in LOW_ORDER:  # the result would be known to all
        assert not keys.usable(low)
        with pytest.raises(Refused, match="is invalid"):
            keys.agree(a, low, "mask")


def test_contexts_cannot_run_into_each_other():
    assert keys.derive(SECRET, "a", "bc") != keys.derive(SECRET, "ab", "c")
    assert keys.derive(SECRET, "a") != keys.derive(SECRET, "a", "")


def test_a_box_opens_only_whole_and_where_it_is_meant_for():
    key = keys.derive(SECRET, "box")
    box = keys.encrypted(key, b"share", "session", "alice", "bob")
    assert len(box) == 5 + keys.TAG_BYTES
    assert keys.decrypted(key, box, "session", "alice", "bob") == b"share"
    wrong = [
        (key, box, ("session", "bob", "alice")),
        (key, box, ("another session", "alice", "bob")),
        (keys.derive(SECRET, "other"), box, ("session", "alice", "bob")),
        (key, bytes([box[0] ^ 1]) + box[1:], ("session", "alice", "bob")),
        (key, box[:-1], ("session", "alice", "bob")),
    ]
    for opener, sealed, context in wrong:
        with pytest.raises(Refused, match="changed on its way"):
            keys.decrypted(opener, sealed, *context)


def test_signatures_bind_signer_and_message():
    seed = keys.Keys(SECRET).seed
    public = keys.Keys(SECRET).identity
    signature = keys.sign(seed, "keys", b"question", "alice")
    assert keys.verified(public, signature, "keys", b"question", "alice")
    assert not keys.verified(public, signature, "keys", b"question", "bob")
    assert not keys.verified(public, signature, "keys", b"questiona", "lice")
    assert not keys.verified(keys.Keys(bytes(32)).identity, signature, "keys", b"question", "alice")
    assert not keys.verified(public, bytes(64), "keys", b"question", "alice")
    assert not keys.verified(b"no key", signature, "keys", b"question", "alice")
    assert public != keys.Keys(bytes(32)).identity
    assert seed not in (SECRET, public)


def test_a_signature_is_remembered_for_its_key_and_message_alone(monkeypatch):
    """A process need not verify what it signed; all else is verified, also once much has been forgotten."""
    owner, other = (keys.Keys(secret * 32) for secret in (b"a", b"b"))
    signature = owner.sign("purpose", b"message")
    assert keys.verified(owner.public, signature, "purpose", b"message")
    assert not keys.verified(owner.public, signature, "purpose", b"another message")
    assert not keys.verified(owner.public, signature, "another purpose", b"message")
    assert not keys.verified(other.public, signature, "purpose", b"message")
    assert not keys.verified(owner.public, bytes(64), "purpose", b"message")
    monkeypatch.setattr(keys, "_MOST_VALID", 1)
    other.sign("purpose", b"message")
    assert len(keys._valid) == 1
    assert keys.verified(owner.public, signature, "purpose", b"message")
    assert not keys.verified(owner.public, signature, "purpose", b"another message")
