"""Keys of the coordinator, the party that runs the server and asks the sites.

Sites answer only requests that it signed (Ed25519), and encrypt confidential answers for it (X25519). Each site keeps
both public keys in its own files, so whoever carries the messages can neither forge a request nor read a confidential
answer.
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
    """The keys of the coordinator, the party that asks the sites: it signs requests and opens confidential answers.

    ``secret`` holds 32 random bytes that never leave the coordinator; both private keys are derived from it.
    """

    secret: bytes

    @cached_property
    def public(self) -> bytes:
        """Both public keys (64 bytes): Ed25519 (32 bytes), then X25519. Every site keeps them in its own files."""
        return self._signing.public_key().public_bytes_raw() + self._opening.public_key().public_bytes_raw()

    def sign(self, body: bytes, purpose: bytes = _CONTEXT) -> bytes:
        """Return the Ed25519 signature (64 bytes) of the bytes ``body``, by default for a request.

        A request is signed over :attr:`Request.body <fedsynth.federation.wire.Request.body>`. ``purpose`` names, in
        bytes, what is signed: a signature for one purpose is not valid for another, and :func:`signed_by` needs the
        same purpose.
        """
        return self._signing.sign(_signed(body, purpose))

    def unseal(self, box: bytes | memoryview, site: str, digest: str) -> bytes:
        """Decrypt a site's confidential answer, which :func:`seal` encrypted, and return its bytes.

        ``box`` is a one-time public key of the site (32 bytes), followed by the ciphertext. ``site`` is the site's
        name, and ``digest`` the SHA-256 (hex) of the message that it answers (:attr:`Request.digest
        <fedsynth.federation.wire.Request.digest>`). Raises :class:`FedsynthError` if the box was changed, or was made
        for other keys, by another site or for another message.
        """
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
    """Return whether the owner of a coordinator's public keys signed ``body``, as a site checks it for every request.

    ``public`` are both keys (64 bytes, :attr:`Coordinator.public`). ``purpose`` must be that of
    :meth:`Coordinator.sign`.
    """
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
    """Encrypt a site's confidential answer ``plain`` for the coordinator; return the two parts of a box.

    ``public`` are the coordinator's public keys (64 bytes), ``site`` is the site's name, and ``digest`` the SHA-256
    (hex) of the message that is answered. ``seed`` (32 secret bytes, used for this answer alone) gives a one-time key
    pair. The parts are its public key (32 bytes) and the encrypted answer (16 bytes longer than ``plain``), which in
    this order make up the box that :meth:`Coordinator.unseal` opens. They are not joined, to avoid copying a large
    answer.
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
