"""The cryptography of a secure sum: shares, masks, boxes, signatures."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from fedsynth.errors import FedsynthError, Refused
from fedsynth.federation.trust.secure import masking
from fedsynth.federation.trust.secure.shamir import (
    NO_SHARE,
    PRIME,
    from_bytes,
    recover,
    split,
    to_bytes,
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


def coefficients(count: int, seed: int = 0) -> list[int]:
    rng = np.random.default_rng(seed)
    return [int.from_bytes(rng.bytes(48)) % PRIME for _ in range(count)]


def combine(shares: Mapping[int, int]) -> bytes:
    """Return the secret that all shares together give."""
    found = recover(shares, len(shares), lambda secret: True)
    assert found is not None
    return found[0]


def test_the_prime_is_prime_and_the_least_above_2_to_the_256():
    def probably_prime(n: int) -> bool:
        odd, twos = n - 1, 0
        while odd % 2 == 0:
            odd, twos = odd // 2, twos + 1
        for base in range(2, 42):  # 40 rounds of Miller-Rabin
            power = pow(base, odd, n)
            if power in (1, n - 1):
                continue
            if not any((power := power * power % n) == n - 1 for _ in range(twos - 1)):
                return False
        return True

    assert probably_prime(PRIME)
    assert not any(probably_prime(n) for n in range(2**256 + 1, PRIME, 2))


def test_every_threshold_of_shares_opens_the_secret_and_one_less_does_not():
    shares = split(SECRET, 5, coefficients(2))
    for points in itertools.combinations(range(1, 6), 3):
        assert combine({at: shares[at - 1] for at in points}) == SECRET
    assert combine({at: shares[at - 1] for at in range(1, 6)}) == SECRET
    for pair in itertools.combinations(range(1, 6), 2):
        values = [shares[at - 1] for at in pair]
        opened = sum(w * v for w, v in zip(weights_at_zero(pair), values, strict=True)) % PRIME
        assert opened != int.from_bytes(SECRET)


def test_shares_below_the_threshold_fit_every_secret():
    """Perfect secrecy: for t - 1 shares and any secret at all there is a polynomial that gives both."""
    shares = split(SECRET, 5, coefficients(2))
    held = {2: shares[1], 5: shares[4]}
    for other in (bytes(32), b"\xff" * 32, bytes(reversed(SECRET))):
        # the value at 1 of the one polynomial of degree 2 through (0, other) and both shares
        known_at = {0: int.from_bytes(other), **held}
        value = 0
        for point, known in known_at.items():
            factor = 1
            for rest in known_at:
                if rest != point:
                    factor = factor * (1 - rest) * pow(point - rest, -1, PRIME) % PRIME
            value = (value + known * factor) % PRIME
        assert combine({**held, 1: value}) == other


def test_one_share_is_the_secret_where_one_is_enough():
    assert split(SECRET, 3, []) == [int.from_bytes(SECRET)] * 3
    assert combine({2: int.from_bytes(SECRET)}) == SECRET


@pytest.mark.parametrize("points", [[1, 1], [0, 1], [1, PRIME], [-1]])
def test_repeated_and_impossible_points_are_refused(points):
    with pytest.raises(FedsynthError, match="repeated or belong to nobody"):
        weights_at_zero(points)


def test_malformed_shares_and_misfits_are_refused():
    assert from_bytes(to_bytes(PRIME - 1)) == PRIME - 1
    for data in (PRIME.to_bytes(33), NO_SHARE, bytes(32), bytes(34)):
        assert from_bytes(data) is None
    assert recover({1: PRIME - 1}, 1, lambda secret: True) is None  # above 2^256: no secret
    with pytest.raises(ValueError, match="32 bytes"):
        split(b"short", 3, [1])
    with pytest.raises(ValueError, match="cannot have a threshold of 4"):
        split(SECRET, 3, [1, 2, 3])


@pytest.mark.parametrize(("number", "threshold"), [(2, 1), (5, 4), (8, 5), (9, 3)])
def test_a_secret_is_recovered_as_long_as_a_threshold_of_shares_is_right(number, threshold):
    shares = dict(enumerate(split(SECRET, number, coefficients(threshold - 1)), start=1))
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


def test_the_search_for_wrong_shares_ends(monkeypatch):
    monkeypatch.setattr("fedsynth.federation.trust.secure.shamir.MOST_TRIES", 7)
    shares = dict(enumerate(split(SECRET, 12, coefficients(5)), start=1))
    tried: list[bytes] = []

    def never(secret: bytes) -> bool:
        tried.append(secret)
        return False

    assert recover(shares, 6, never) is None
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
    a, b, eve = (masking.derive(SECRET, name) for name in "abe")
    shared = masking.agree(a, masking.public_key(b), "mask", b"session")
    assert shared == masking.agree(b, masking.public_key(a), "mask", b"session")
    others = {
        masking.agree(eve, masking.public_key(b), "mask", b"session"),
        masking.agree(a, masking.public_key(b), "mask", b"another session"),
        masking.agree(a, masking.public_key(b), "box", b"session"),
    }
    assert len({shared, *others}) == 4
    assert masking.usable(masking.public_key(a))
    for low in LOW_ORDER:  # the result would be known to all
        assert not masking.usable(low)
        with pytest.raises(Refused, match="unusable"):
            masking.agree(a, low, "mask")


def test_contexts_cannot_run_into_each_other():
    assert masking.derive(SECRET, "a", "bc") != masking.derive(SECRET, "ab", "c")
    assert masking.derive(SECRET, "a") != masking.derive(SECRET, "a", "")


def test_a_box_opens_only_whole_and_where_it_is_meant_for():
    key = masking.derive(SECRET, "box")
    box = masking.seal(key, b"share", "session", "alice", "bob")
    assert len(box) == 5 + masking.TAG_BYTES
    assert masking.unseal(key, box, "session", "alice", "bob") == b"share"
    wrong = [
        (key, box, ("session", "bob", "alice")),
        (key, box, ("another session", "alice", "bob")),
        (masking.derive(SECRET, "other"), box, ("session", "alice", "bob")),
        (key, bytes([box[0] ^ 1]) + box[1:], ("session", "alice", "bob")),
        (key, box[:-1], ("session", "alice", "bob")),
    ]
    for opener, sealed, context in wrong:
        with pytest.raises(Refused, match="changed on its way"):
            masking.unseal(opener, sealed, *context)


def test_signatures_bind_signer_and_message():
    seed = masking.identity_seed(SECRET)
    public = masking.identity(SECRET)
    signature = masking.sign(seed, "keys", b"question", "alice")
    assert masking.verified(public, signature, "keys", b"question", "alice")
    assert not masking.verified(public, signature, "keys", b"question", "bob")
    assert not masking.verified(public, signature, "keys", b"questiona", "lice")
    assert not masking.verified(masking.identity(bytes(32)), signature, "keys", b"question", "alice")
    assert not masking.verified(public, bytes(64), "keys", b"question", "alice")
    assert not masking.verified(b"no key", signature, "keys", b"question", "alice")
    assert public != masking.identity(bytes(32))
    assert seed not in (SECRET, public)
