"""The keys of three servers: one secret each, from which its identity, its boxes' key and its pairwise secrets come.

A public key is 64 bytes, an Ed25519 and an X25519 key: sites and servers pin the three of them in their own files. The
primitives are those of secure sums (:mod:`~fedsynth.federation.trust.secure.masking`), under contexts of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from fedsynth.errors import InvalidParameter
from fedsynth.federation.trust.secure import masking

SERVERS = 3
PUBLIC = 2 * masking.KEY_BYTES
SECRETS = 2 * masking.KEY_BYTES
BOX = masking.KEY_BYTES + SECRETS + masking.TAG_BYTES
"""Bytes of a box: the sender's key of this box, and two sealed secrets of 32 bytes."""
_PURPOSE = "three servers 1"


@dataclass(frozen=True)
class ServerKeys:
    """A server's own secret (32 random bytes), from which all of its keys are derived."""

    secret: bytes

    def __post_init__(self) -> None:
        """Refuse a secret that could be guessed."""
        if len(self.secret) < masking.KEY_BYTES:
            raise InvalidParameter("a server's secret needs 32 random bytes; take them from os.urandom(32)")

    @cached_property
    def public(self) -> bytes:
        """Both public keys (64 bytes): what sites and the other servers pin."""
        return masking.identity(self.secret) + masking.public_key(self._private)

    def sign(self, *message: str | bytes) -> bytes:
        """Return the server's signature (64 bytes) under a message."""
        return masking.sign(masking.identity_seed(self.secret), _PURPOSE, *message)

    def shared(self, other: bytes, *context: str | bytes) -> bytes:
        """Return 32 secret bytes that this server and one with the public key ``other`` have, for one context."""
        return masking.agree(self._private, other[masking.KEY_BYTES :], _PURPOSE, *context)

    def own(self, *context: str | bytes) -> bytes:
        """Return 32 bytes that nobody else has, for one context."""
        return masking.derive(self.secret, _PURPOSE, *context)

    def unseal(self, box: bytes, *context: str | bytes) -> tuple[bytes, bytes]:
        """Return the two secrets of a box; raises :class:`~fedsynth.errors.Refused` for a box of something else."""
        sender, sealed = box[: masking.KEY_BYTES], box[masking.KEY_BYTES :]
        key = masking.agree(self._private, sender, _PURPOSE, "box", sender, *context)
        plain = masking.unseal(key, sealed, _PURPOSE, *context)
        return plain[: masking.KEY_BYTES], plain[masking.KEY_BYTES :]

    @cached_property
    def _private(self) -> bytes:
        return masking.derive(self.secret, _PURPOSE, "agreement")


def seal(public: bytes, seed: bytes, first: bytes, second: bytes, *context: str | bytes) -> bytes:
    """Return a box (:data:`BOX` bytes) that only one server opens; ``seed`` (32 secret bytes) serves it alone."""
    sender = masking.public_key(seed)
    key = masking.agree(seed, public[masking.KEY_BYTES :], _PURPOSE, "box", sender, *context)
    return sender + masking.seal(key, first + second, _PURPOSE, *context)


def signed_by(public: bytes, signature: bytes, *message: str | bytes) -> bool:
    """Whether the server of this public key signed the message."""
    return masking.verified(public[: masking.KEY_BYTES], signature, _PURPOSE, *message)


def check_publics(publics: tuple[bytes, ...]) -> None:
    """Raise :class:`InvalidParameter` unless these are the public keys of three different servers."""
    if len(publics) != SERVERS or any(len(public) != PUBLIC for public in publics):
        raise InvalidParameter(f"three servers have three public keys of {PUBLIC} bytes each; pin all of them")
    if len(set(publics)) < SERVERS:
        raise InvalidParameter("two of the three servers have the same key, so that one could open everything")
