"""Keys: one secret, and what is derived from it to sign, to open sealed boxes and to share secrets with others.

Each site, the coordinator and each compute server has a secret of its own (:class:`Keys`), and the public keys of those
that it deals with in its own files: whoever carries the messages can neither forge them nor read sealed ones.

Rule 1: primitives come from the `cryptography` package: X25519, Ed25519, HKDF-SHA256, ChaCha20-Poly1305.
Rule 2: every derived key, signature and box is bound to a context that names its purpose; parts of a context are
    prefixed by their lengths, so that no two contexts share their bytes.
Rule 3: a derived key serves one box or one mask only, so nonces and counters start at zero.
Rule 4: a secret that two parties agree on never leaves them: every use is derived from it for one purpose (rule 2), so
    that what is opened for one purpose says nothing of another.
Rule 5: a signature in a file is of its content in one canonical form (:func:`canonical`), not of its bytes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import msgspec
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec.structs import replace

from fedsynth.errors import InvalidParameter, Refused

KEY_BYTES = 32
PUBLIC_BYTES = 2 * KEY_BYTES
SIGNATURE_BYTES = 64
TAG_BYTES = 16
_SALT = b"fedsynth keys 1"
_NONCE = bytes(12)
# Cache of agreed secrets: keys last for a run, so a pair agrees once for all sums of the run. Both ends of a pair share
# an entry, and only the owner of one of the private keys looks it up.
_shared: dict[tuple[bytes, bytes], bytes] = {}
_MOST_SHARED = 2**18
# Signatures, as (public key, signature, message), that hold, since this process made or verified them: in a simulation
# all parties are in one process, and several sites may verify the same signature.
_valid: set[tuple[bytes, bytes, bytes]] = set()
_MOST_VALID = 2**14


class SecretBytes(bytes):
    """Secret bytes that no text shows: printed, or as the value of a variable in a traceback, they say their number."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{len(self)} secret bytes>"

    __str__ = __repr__


# ---------------------------------------------------------------------------------------------------------------------
# One party's keys


@dataclass(frozen=True)
class Keys:
    """One party's keys, all derived from its own ``secret``: at least 32 random bytes, which never leave it."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "secret", SecretBytes(self.secret))
        if len(self.secret) < KEY_BYTES:
            raise InvalidParameter("a party's secret needs 32 random bytes; take them from os.urandom(32)")

    @cached_property
    def seed(self) -> bytes:
        """Seed (32 bytes) of the Ed25519 key that the party signs with, for :func:`sign`."""
        return derive(self.secret, "identity")

    @cached_property
    def identity(self) -> bytes:
        """Public key (Ed25519, 32 bytes) with which others verify the party's signatures."""
        return _signing(self.seed)[1]

    @cached_property
    def public(self) -> bytes:
        """Both public keys (64 bytes): :attr:`identity`, and an X25519 key to seal boxes for the party."""
        return self.identity + public_key(self._private)

    def sign(self, *message: str | bytes) -> bytes:
        """Return the party's signature (64 bytes) of ``message``, in any number of parts.

        The first part names what is signed: a signature for one purpose is not valid for another.
        """
        return sign(self.seed, *message)

    def sign_content(self, purpose: str | bytes, content: msgspec.Struct | str) -> str:
        """Return the party's signature (hexadecimal) of a file's content, to be kept in the file or beside it.

        Signed is the canonical form of ``content``, without the signature in a field ``signature`` of its own; a text
        is signed as it is, such as the digest of a content that others sign too.
        """
        return self.sign(purpose, _signed_form(content)).hex()

    def shared(self, public: bytes, *use: str | bytes) -> bytes:
        """Return 32 bytes that only this party and the one with the keys ``public`` (64 bytes) know, for one ``use``.

        Raises :class:`Refused` for a key with which everybody would know them.
        """
        return agree(self._private, public[KEY_BYTES:], *use)

    def own(self, *use: str | bytes) -> bytes:
        """Return 32 bytes that only this party knows, for the one ``use`` that is named."""
        return derive(self.secret, *use)

    def unseal(self, box: bytes | memoryview, *context: str | bytes) -> bytes:
        """Return the content of a ``box`` that :func:`seal` made for this party and ``context``.

        Raises :class:`Refused` for any other box.
        """
        sender, sealed = bytes(box[:KEY_BYTES]), memoryview(box)[KEY_BYTES:]
        try:
            between = SecretBytes(_private(self._private)[0].exchange(X25519PublicKey.from_public_bytes(sender)))
        except ValueError as error:  # an invalid key, or a point of low order
            raise _not_ours() from error
        return decrypted(derive(between, "box", sender, *context), sealed, *context)

    @cached_property
    def _private(self) -> bytes:
        return derive(self.secret, "agreement")


def verified(public: bytes, signature: bytes, *message: str | bytes) -> bool:
    """Whether ``signature`` is that of the same parts of ``message`` by the owner of the keys ``public``.

    ``public`` is a party's :attr:`Keys.public` or :attr:`Keys.identity`; a malformed key or signature gives false.
    """
    claimed = (public[:KEY_BYTES], signature, _SALT + _join(message))
    if claimed in _valid:
        return True
    try:
        Ed25519PublicKey.from_public_bytes(claimed[0]).verify(signature, claimed[2])
    except (InvalidSignature, ValueError):  # ValueError: the bytes are not a key
        return False
    _remember(claimed)
    return True


def content_verified(public: bytes, signature: str, purpose: str | bytes, content: msgspec.Struct | str) -> bool:
    """Whether ``signature`` is that of :meth:`Keys.sign_content` by the owner of the keys ``public``."""
    return verified(public, bytes.fromhex(signature), purpose, _signed_form(content))


def canonical(content: msgspec.Struct) -> bytes:
    """Return the one form (JSON) in which the content of a file is signed and hashed."""
    return msgspec.json.encode(content, order="deterministic")


def _signed_form(content: msgspec.Struct | str) -> str | bytes:
    if isinstance(content, str):
        return content
    return canonical(replace(content, signature="") if "signature" in content.__struct_fields__ else content)


def seal(public: bytes, seed: bytes, plain: bytes, *context: str | bytes) -> tuple[bytes, bytes]:
    """Encrypt ``plain`` for the party with the keys ``public`` (64 bytes) alone; return the two parts of a box.

    ``seed`` (32 secret bytes, used for this box alone) gives a one-time key pair. The parts are its public key (32
    bytes) and the encrypted content, :data:`TAG_BYTES` bytes longer than ``plain``; in this order they make up the box
    that :meth:`Keys.unseal` opens, with the same ``context``. They are not joined, to avoid copying a large content.
    """
    private, sender = _private(seed)
    between = SecretBytes(private.exchange(X25519PublicKey.from_public_bytes(public[KEY_BYTES:])))
    return sender, encrypted(derive(between, "box", sender, *context), plain, *context)


# ---------------------------------------------------------------------------------------------------------------------
# Single operations, for protocols with keys of one run


def derive(key: bytes, *context: str | bytes, keys: int = 1) -> SecretBytes:
    """Return 32 bytes (times ``keys``) derived from ``key`` for the use that ``context`` names (HKDF, RFC 5869)."""
    made = HKDF(algorithm=SHA256(), length=keys * KEY_BYTES, salt=_SALT, info=_join(context))
    return SecretBytes(made.derive(key))


def digest(*context: str | bytes) -> bytes:
    """Return the SHA-256 (32 bytes) of the parts of ``context``, each prefixed by its length so that none can merge."""
    return hashlib.sha256(_SALT + _join(context)).digest()


def sign(seed: bytes, *message: str | bytes) -> bytes:
    """Return the signature (64 bytes) of ``message``, in any number of parts, by the owner of :attr:`Keys.seed`."""
    private, public = _signing(seed)
    said = _SALT + _join(message)
    signature = private.sign(said)
    _remember((public, signature, said))
    return signature


def _remember(valid: tuple[bytes, bytes, bytes]) -> None:
    if len(_valid) >= _MOST_VALID:
        _valid.clear()
    _valid.add(valid)


@lru_cache(maxsize=2**11)
def _signing(seed: bytes) -> tuple[Ed25519PrivateKey, bytes]:
    private = Ed25519PrivateKey.from_private_bytes(seed)
    return private, private.public_key().public_bytes_raw()


def public_key(private: bytes) -> bytes:
    """Return the public key (X25519, 32 bytes) of the key pair whose 32 secret bytes are ``private``."""
    return _private(private)[1]


def agree(private: bytes, public: bytes, *context: str | bytes, keys: int = 1) -> bytes:
    """Return 32 bytes (times ``keys``) that only the owners of two key pairs can compute (X25519, then :func:`derive`).

    Raises :class:`Refused` for a public key with which everybody would know them.
    """
    opened, own = _private(private)
    pair = (own, public) if own < public else (public, own)
    shared = _shared.get(pair)
    if shared is None:
        try:
            shared = SecretBytes(opened.exchange(X25519PublicKey.from_public_bytes(public)))
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


def encrypted(key: bytes, plain: bytes, *context: str | bytes) -> bytes:
    """Encrypt and authenticate ``plain`` (ChaCha20-Poly1305); the result is :data:`TAG_BYTES` bytes longer.

    ``key`` (32 bytes) must serve this use alone. ``context`` is authenticated with it and must be given again to
    decrypt it.
    """
    return ChaCha20Poly1305(key).encrypt(_NONCE, plain, _join(context))


def decrypted(key: bytes, box: bytes | memoryview, *context: str | bytes) -> bytes:
    """Return what :func:`encrypted` was given, with the same ``key`` and ``context``, or raise :class:`Refused`."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, box, _join(context))
    except InvalidTag as error:
        raise _not_ours() from error


def _not_ours() -> Refused:
    return Refused(
        "a sealed message was changed on its way, or is for another key or run; compare the keys that both sides have "
        "on file (at a site: [coordinator] key, and the roster), and start another run"
    )


def _join(context: tuple[str | bytes, ...]) -> bytes:
    parts: list[bytes] = []
    for part in context:
        data = part.encode() if isinstance(part, str) else part
        parts += (len(data).to_bytes(8), data)
    return b"".join(parts)
