"""The cryptographic operations of a secure sum: keys, signatures, sealed boxes and masks.

Rule 1: primitives come from the `cryptography` package: X25519, Ed25519, HKDF-SHA256, ChaCha20-Poly1305, AES-256-CTR.
Rule 2: every derived key, signature and box is bound to a context that names its purpose; parts of a context are
    prefixed by their lengths, so that no two contexts share their bytes.
Rule 3: a derived key serves one box or one mask only, so nonces and counters start at zero.
Rule 4: the keys by which two sites agree on a secret last for a run, and that secret never leaves them: every use is
    derived from them for one sum and purpose (rule 2), so that what is opened in one sum says nothing of another.
Rule 5: masks are full 64-bit words of a cipher stream, added modulo 2^64: a masked number is uniform.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedsynth.errors import Refused

KEY_BYTES = 32
SIGNATURE_BYTES = 64
TAG_BYTES = 16
_SALT = b"fedsynth secure sum 3"
_NONCE = bytes(12)
_CHUNK = 1 << 14  # words: stream and sum stay in the second-level cache
_ZEROS = bytes(8 * _CHUNK)
# Cache of agreed secrets: keys last for a run, so a pair agrees once for all sums of the run. Both ends of a pair share
# an entry, and only the owner of one of the private keys looks it up.
_shared: dict[tuple[bytes, bytes], bytes] = {}
_MOST_SHARED = 2**18


def derive(key: bytes, *context: str | bytes, keys: int = 1) -> bytes:
    """Return 32 bytes (times ``keys``) derived from the secret ``key`` for one use (HKDF-SHA256, RFC 5869).

    ``context`` names the use in any number of parts, such as a purpose and the digest of a secure sum: another context
    gives independent bytes.
    """
    return HKDF(algorithm=SHA256(), length=keys * KEY_BYTES, salt=_SALT, info=_join(context)).derive(key)


def digest(*context: str | bytes) -> bytes:
    """Return the SHA-256 (32 bytes) of the parts of ``context``, each prefixed by its length so that none can merge."""
    return hashlib.sha256(_SALT + _join(context)).digest()


def identity_seed(secret: bytes) -> bytes:
    """Return the seed (32 bytes) of a site's Ed25519 signing key, derived from the site's own ``secret``."""
    return derive(secret, "identity")


def identity(secret: bytes) -> bytes:
    """Return a site's public identity key (Ed25519, 32 bytes), derived from its own ``secret``.

    It is to be sent to the other sites over a trusted channel: they verify the site's signatures with it.
    """
    return Ed25519PrivateKey.from_private_bytes(identity_seed(secret)).public_key().public_bytes_raw()


def sign(seed: bytes, *message: str | bytes) -> bytes:
    """Return the Ed25519 signature (64 bytes) of ``message``, in any number of parts, by the owner of ``seed``.

    ``seed`` is that of a signing key (:func:`identity_seed`).
    """
    return _signing(seed).sign(_SALT + _join(message))


_signing = lru_cache(maxsize=2**11)(Ed25519PrivateKey.from_private_bytes)


def verified(public: bytes, signature: bytes, *message: str | bytes) -> bool:
    """Whether ``signature`` is that of the same parts of ``message`` by the owner of the key ``public`` (:func:`sign`).

    ``public`` is an identity key (:func:`identity`); a malformed key or signature gives false.
    """
    return _verified(public, signature, _SALT + _join(message))


def _verify(public: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):  # ValueError: the bytes are not a key
        return False
    return True


_verified: Callable[[bytes, bytes, bytes], bool] = lru_cache(maxsize=2**12)(_verify)  # once for all sites of a process


def public_key(private: bytes) -> bytes:
    """Return the public key (X25519, 32 bytes) of the key pair whose 32 secret bytes are ``private``."""
    return _private(private)[1]


def agree(private: bytes, public: bytes, *context: str | bytes, keys: int = 1) -> bytes:
    """Return 32 bytes (times ``keys``) that only the owners of two key pairs can compute (X25519, then :func:`derive`).

    ``private`` is the secret key of one owner and ``public`` the public key of the other, 32 bytes each. ``context``
    names the use, as in :func:`derive`. Raises :class:`Refused` for a public key with which everybody would know the
    result.
    """
    opened, own = _private(private)
    pair = (own, public) if own < public else (public, own)
    shared = _shared.get(pair)
    if shared is None:
        try:
            shared = opened.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:  # a point of low order: everybody would know what is shared
            raise Refused("the public key of another site is invalid; start the run again without that site") from error
        if len(_shared) >= _MOST_SHARED:
            _shared.clear()
        _shared[pair] = shared
    return derive(shared, *context, keys=keys)


@lru_cache(maxsize=2**11)
def _private(private: bytes) -> tuple[X25519PrivateKey, bytes]:
    opened = X25519PrivateKey.from_private_bytes(private)
    return opened, opened.public_key().public_bytes_raw()


@lru_cache(maxsize=2**14)
def usable(public: bytes) -> bool:
    """Whether a public key (X25519) works in :func:`agree`; a point of low order works with no private key."""
    try:
        X25519PrivateKey.from_private_bytes(bytes(KEY_BYTES)).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return False
    return True


def seal(key: bytes, plain: bytes, *context: str | bytes) -> bytes:
    """Encrypt and authenticate ``plain`` (ChaCha20-Poly1305); the result, a box, is :data:`TAG_BYTES` bytes longer.

    ``key`` (32 bytes) must serve this box alone. ``context`` is authenticated with it and must be given again to open
    it.
    """
    return ChaCha20Poly1305(key).encrypt(_NONCE, plain, _join(context))


def unseal(key: bytes, box: bytes, *context: str | bytes) -> bytes:
    """Return the content of a box made by :func:`seal` with the same ``key`` and ``context``.

    Raises :class:`Refused` for a box that was changed, or made with another key or context.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, box, _join(context))
    except InvalidTag as error:
        raise Refused("a share was changed on its way or belongs to another session; start another run") from error


def mask(total: NDArray[np.uint64], key: bytes, *, add: bool) -> None:
    """Add the mask of ``key`` to ``total`` in place, modulo 2^64; with ``add`` false, subtract it.

    The mask is the AES-256-CTR stream of ``key`` (32 secret bytes), one 64-bit word for each element of ``total``.
    """
    operation = np.add if add else np.subtract
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    buffer = bytearray(8 * _CHUNK + 15)  # update_into asks for a block more than it fills
    words = np.frombuffer(buffer, dtype="<u8", count=_CHUNK)
    zeros = memoryview(_ZEROS)
    for start in range(0, total.size, _CHUNK):
        part = total[start : start + _CHUNK]
        stream.update_into(zeros[: 8 * part.size], buffer)
        operation(part, words[: part.size], out=part)


def _join(context: tuple[str | bytes, ...]) -> bytes:
    parts: list[bytes] = []
    for part in context:
        data = part.encode() if isinstance(part, str) else part
        parts += (len(data).to_bytes(8), data)
    return b"".join(parts)
