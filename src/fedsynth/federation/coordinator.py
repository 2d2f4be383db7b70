"""The coordinator's keys: sites answer only requests signed by it, and seal confidential answers for it.

Requests carry an Ed25519 signature, confidential answers are sealed for an X25519 key; sites pin both public keys in
their own files. A relay can neither forge the coordinator's requests nor read a confidential answer.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedsynth.errors import FedsynthError

KEY = 32
PUBLIC = 2 * KEY
_CONTEXT = b"fedsynth request 2"


@dataclass(frozen=True)
class Coordinator:
    """The coordinator's own secret (32 random bytes), from which both of its keys are derived."""

    secret: bytes

    @cached_property
    def public(self) -> bytes:
        """Both public keys (64 bytes), which sites pin."""
        return self._signing.public_key().public_bytes_raw() + self._opening.public_key().public_bytes_raw()

    def sign(self, body: bytes, purpose: bytes = _CONTEXT) -> bytes:
        """Return the signature (64 bytes) of a request's body, or of other bytes under another ``purpose``."""
        return self._signing.sign(_signed(body, purpose))

    def unseal(self, box: bytes | memoryview, site: str, digest: str) -> bytes:
        """Decrypt a site's sealed answer to the message of that digest; raise :class:`FedsynthError` if that fails."""
        try:
            sender, sealed = bytes(box[:KEY]), memoryview(box)[KEY:]
            shared = self._opening.exchange(X25519PublicKey.from_public_bytes(sender))
            context = _box_context(site, digest)
            return ChaCha20Poly1305(_box_key(shared, sender, context)).decrypt(bytes(12), sealed, context)
        except (InvalidTag, ValueError) as error:  # ValueError: an invalid key, or a point of low order
            raise FedsynthError(
                "a confidential answer was changed on its way, or encrypted for another key; compare the "
                "coordinator's key with [coordinator] key at the site"
            ) from error

    @cached_property
    def _signing(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(_derive(self.secret, b"signing key"))

    @cached_property
    def _opening(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(_derive(self.secret, b"sealing key"))


def signed_by(public: bytes, signature: bytes, body: bytes, purpose: bytes = _CONTEXT) -> bool:
    """Whether the coordinator of these public keys signed the body for this purpose."""
    return _verified(public[:KEY], signature, _signed(body, purpose))


def _signed(body: bytes, purpose: bytes) -> bytes:
    return purpose + hashlib.sha256(body).digest()


@lru_cache(maxsize=256)  # many simulated sites check the same message
def _verified(public: bytes, signature: bytes, signed: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, signed)
    except (InvalidSignature, ValueError):  # ValueError: an invalid key
        return False
    return True


def seal(public: bytes, seed: bytes, plain: bytes, site: str, digest: str) -> tuple[bytes, bytes]:
    """Encrypt ``plain`` for the coordinator; return the parts of the box, together 48 bytes longer.

    ``seed`` (32 secret bytes) must serve this box alone. The parts are not joined, to avoid copying a large answer.
    """
    private = X25519PrivateKey.from_private_bytes(seed)
    sender = private.public_key().public_bytes_raw()
    shared = private.exchange(X25519PublicKey.from_public_bytes(public[KEY:]))
    context = _box_context(site, digest)
    return sender, ChaCha20Poly1305(_box_key(shared, sender, context)).encrypt(bytes(12), plain, context)


def _box_context(site: str, digest: str) -> bytes:
    return f"{digest} {site}".encode()


def _box_key(shared: bytes, sender: bytes, context: bytes) -> bytes:
    return _derive(shared, b"box" + sender + context)


def _derive(key: bytes, purpose: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=KEY, salt=_CONTEXT, info=purpose).derive(key)
