"""A compute server's keys for signatures, encryption and secrets shared with another server, all from one secret.

A public key has 64 bytes: an Ed25519 key and an X25519 key. Sites and servers have all three public keys in their own
files, and accept no others. The cryptographic functions are those of secure sums
(:mod:`~fedsynth.secure.masking`). The Ed25519 key is derived from the secret as a site's identity key
is from the site's, and signs under a name of its own; all other keys are derived under names that secure sums do not
use.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from fedsynth.errors import InvalidParameter
from fedsynth.secure import masking

SERVERS = 3
PUBLIC = 2 * masking.KEY_BYTES
SECRETS = 2 * masking.KEY_BYTES
BOX = masking.KEY_BYTES + SECRETS + masking.TAG_BYTES
"""Length of a box in bytes: the sender's public key for this box, and two sealed secrets of 32 bytes."""
_PURPOSE = "three servers 1"


@dataclass(frozen=True)
class ServerKeys:
    """The keys of one compute server, all of which are derived from its own ``secret`` (at least 32 random bytes)."""

    secret: bytes

    def __post_init__(self) -> None:
        """Raise :class:`InvalidParameter` for a secret of fewer than 32 bytes."""
        if len(self.secret) < masking.KEY_BYTES:
            raise InvalidParameter("a server's secret needs 32 random bytes; take them from os.urandom(32)")

    @cached_property
    def public(self) -> bytes:
        """Both public keys (64 bytes): Ed25519 for identity, X25519 to encrypt for this server.

        Sites and other servers store them, and accept no others for this server.
        """
        return masking.identity(self.secret) + masking.public_key(self._private)

    def sign(self, *message: str | bytes) -> bytes:
        """Return the server's signature (Ed25519, 64 bytes) of ``message``, in any number of parts."""
        return masking.sign(masking.identity_seed(self.secret), _PURPOSE, *message)

    def shared(self, other: bytes, *context: str | bytes) -> bytes:
        """Return 32 bytes that only this server and the one with the public keys ``other`` (64 bytes) know.

        ``context`` names their use: another context gives independent bytes.
        """
        return masking.agree(self._private, other[masking.KEY_BYTES :], _PURPOSE, *context)

    def own(self, *context: str | bytes) -> bytes:
        """Return 32 secret bytes that only this server knows, for the one use that ``context`` names."""
        return masking.derive(self.secret, _PURPOSE, *context)

    def unseal(self, box: bytes, *context: str | bytes) -> tuple[bytes, bytes]:
        """Return the two secrets (32 bytes each) in a box that :func:`seal` made for this server with this ``context``.

        Raises :class:`~fedsynth.errors.Refused` if the box was changed, or made for another server or context.
        """
        sender, sealed = box[: masking.KEY_BYTES], box[masking.KEY_BYTES :]
        key = masking.agree(self._private, sender, _PURPOSE, "box", sender, *context)
        plain = masking.unseal(key, sealed, _PURPOSE, *context)
        return plain[: masking.KEY_BYTES], plain[masking.KEY_BYTES :]

    @cached_property
    def _private(self) -> bytes:
        return masking.derive(self.secret, _PURPOSE, "agreement")


def seal(public: bytes, seed: bytes, first: bytes, second: bytes, *context: str | bytes) -> bytes:
    """Return a box (:data:`BOX` bytes) with two secrets, which only the server of the public keys ``public`` can open.

    ``first`` and ``second`` are the secrets, 32 bytes each. ``seed`` (32 secret bytes) must be used for this box alone;
    the same ``context`` must be given to open it.
    """
    sender = masking.public_key(seed)
    key = masking.agree(seed, public[masking.KEY_BYTES :], _PURPOSE, "box", sender, *context)
    return sender + masking.seal(key, first + second, _PURPOSE, *context)


def signed_by(public: bytes, signature: bytes, *message: str | bytes) -> bool:
    """Whether the server with the public keys ``public`` (64 bytes) signed ``message`` (:meth:`ServerKeys.sign`)."""
    return masking.verified(public[: masking.KEY_BYTES], signature, _PURPOSE, *message)


def check_publics(publics: tuple[bytes, ...]) -> None:
    """Raise :class:`InvalidParameter` unless ``publics`` are the keys of three different servers, 64 bytes each."""
    if len(publics) != SERVERS or any(len(public) != PUBLIC for public in publics):
        raise InvalidParameter(f"three public keys of {PUBLIC} bytes are needed; pin the cards of all three servers")
    if len(set(publics)) < SERVERS:
        raise InvalidParameter(
            "two of the three servers have the same key, so that one of them could read everything; pin three "
            "different servers"
        )
