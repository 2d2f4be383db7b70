"""Enrolment: the files that a coordinator and a site exchange before the first run, over any channel.

The coordinator sends an :class:`Invitation`, the site answers with a :class:`JoinRequest`; the coordinator sends an
:class:`Admission` with the roster (the list of all sites and their public keys), the site answers with the
:class:`SignedRoster`, its own signature under it.

Rule 1: no file holds a secret. Rule 2: an invitation and a request are authentic only if sender and receiver, who read
it out by phone, have the same fingerprint: 30 digits made from the content. A roster is signed by the coordinator,
whose key was in the invitation; all sites compare its fingerprint with each other, since the coordinator could replace
a site's key by one of its own. Rule 3: a fingerprint is, like a signature (:mod:`fedsynth.keys`), of a file's content
in one canonical form, not of its bytes.
"""

from __future__ import annotations

import hashlib
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import tomli_w
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from fedsynth.errors import FedsynthError, said
from fedsynth.federation.names import check_site_name, parse_address
from fedsynth.files import load_toml
from fedsynth.keys import Keys, canonical, content_verified

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

_ROSTER = b"fedsynth roster 1"  # purpose of the coordinator's signature of a roster
_DIGITS = 30
_CURVES = ("secp256r1", "secp384r1")
_Key = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
_Pair = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{128}\Z")]
_Word = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.:+-]{1,200}\Z")]  # shown on a terminal, so no escapes
_Node = Annotated[str, msgspec.Meta(pattern=r"\Aecdsa-sha2-nistp\d{3} [A-Za-z0-9+/=]+\Z")]
_Form = TypeVar("_Form", "Invitation", "JoinRequest", "Admission", "SignedRoster")
_Other = TypeVar("_Other", "Admission", "SignedRoster")


@lru_cache(maxsize=64)
def fingerprint(purpose: str, content: bytes) -> str:
    """Return 30 digits in six groups that identify ``content``, to be read out and compared by phone.

    ``purpose`` says what the content is: equal content has another fingerprint for another purpose. The computation
    takes a third of a second and 128 MiB. An attacker who chooses both of two contents needs about 2^50 candidates to
    find two with equal fingerprints, each of which takes as long (scrypt, RFC 7914): millions of core years in all.
    """
    made = Scrypt(salt=f"fedsynth {purpose} 1".encode(), length=32, n=2**17, r=8, p=1).derive(content)
    digits = f"{int.from_bytes(made) % 10**_DIGITS:0{_DIGITS}d}"
    return " ".join(digits[start : start + 5] for start in range(0, _DIGITS, 5))


class InvitedTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """Terms that a site accepts when it joins, the same for all sites: the coordinator, the network, the intended run.

    ``superlink`` is the address HOST:PORT of the Flower server that sites connect to, ``coordinator`` both public keys
    (hexadecimal, :attr:`Keys.public <fedsynth.keys.Keys.public>`), ``authority`` the certificate (PEM) of the authority
    that signs all other certificates, and ``schema`` the agreed schema (TOML). From the others, a site's policy is
    drafted; ``kinds`` maps each kind of query that another package's method defines to the class that a site would
    import for it. Raises :class:`InvalidParameter` for an address in another form than HOST:PORT.
    """

    superlink: str
    coordinator: _Pair
    authority: str
    schema: str
    method: _Word
    epsilon: float
    delta: float
    trust: _Word
    rows_per_person: int
    sites_per_person: int
    kinds: dict[_Word, _Word] = {}

    def __post_init__(self) -> None:
        """Refuse an invalid address, which would go into configuration files."""
        parse_address(self.superlink)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the terms."""
        return hashlib.sha256(canonical(self)).hexdigest()

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the terms, which a site compares with the coordinator by phone."""
        return fingerprint("terms", self.digest.encode())


class _OfSite(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """A file of one site; raises :class:`InvalidParameter` for a name that none may have: files are named after it."""

    site: str

    def __post_init__(self) -> None:
        check_site_name(self.site)


class Invitation(_OfSite, frozen=True, tag="invitation"):
    """The coordinator's invitation to the site to join a federation under these ``terms``."""

    terms: InvitedTerms


class JoinRequest(_OfSite, frozen=True, tag="request"):
    """A request to join: the site's public keys, signed with its identity key.

    ``terms`` is the digest of the terms in the invitation, ``identity`` the key (hexadecimal, Ed25519) by which other
    sites know this one, ``node_key`` the public key (OpenSSH) of its Flower node, and ``csr`` a certificate signing
    request (PEM) for its TLS key, from which only the key is used. ``signature`` is empty before :meth:`sign`.
    """

    terms: _Key
    fedsynth: _Word
    identity: _Key
    node_key: _Node
    csr: str
    signature: Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{128})?\Z")] = ""

    def sign(self, secret: bytes) -> JoinRequest:
        """Return a copy signed with the identity key of ``secret`` (32 bytes)."""
        return msgspec.structs.replace(self, signature=Keys(secret).sign_content("join request", self))

    @property
    def signed(self) -> bool:
        """Whether the request is signed with the key in ``identity``."""
        return content_verified(bytes.fromhex(self.identity), self.signature, "join request", self)

    @property
    def tls_key(self) -> ec.EllipticCurvePublicKey:
        """The site's public TLS key (P-256 or P-384), from its certificate signing request.

        Raises :class:`FedsynthError` for an unreadable request, another kind of key, and one that its owner did not
        sign.
        """
        from cryptography import x509
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric import ec

        unreadable = f"the signing request of {self.site} cannot be read ({{error}}); let the site join again"
        with said(unreadable, ValueError, UnsupportedAlgorithm):
            csr = x509.load_pem_x509_csr(self.csr.encode())
            key = csr.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in _CURVES:
            raise FedsynthError(
                f"the TLS key of {self.site} must be of the kind {' or '.join(_CURVES)}; let the site join again"
            )
        if not csr.is_signature_valid:
            raise FedsynthError(
                f"the signing request of {self.site} is not signed by its own key, or was changed; let the site join "
                "again"
            )
        return key

    @property
    def keys(self) -> tuple[str, str, str]:
        """The site's three public keys: identity (hexadecimal), node key (OpenSSH) and TLS key (hexadecimal DER).

        Raises :class:`FedsynthError` for a key that cannot be read, or a node key in another format than fedsynth
        writes.
        """
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization

        node = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        unreadable = f"the node key of {self.site} cannot be read ({{error}}); let the site join again"
        with said(unreadable, ValueError, UnsupportedAlgorithm):
            # canonical text: with padding or a comment added, another site's key would look new
            text = serialization.load_ssh_public_key(self.node_key.encode()).public_bytes(*node).decode()
        if text != self.node_key:
            raise FedsynthError(f"the node key of {self.site} is not in fedsynth's format; let the site join again")
        form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        return self.identity, self.node_key, self.tls_key.public_bytes(*form).hex()

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the request: of site, terms and keys, without the random signatures."""
        return fingerprint("join request", " ".join((self.terms, self.site, *self.keys)).encode())


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A site of a :class:`Roster`, with two keys of its :class:`JoinRequest`."""

    name: str
    identity: _Key
    node_key: _Node


class Roster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All sites of a federation with their public keys, for all sites to sign; ``terms`` is the digest of the terms.

    Raises :class:`FedsynthError` for names that are repeated or not in alphabetical order, and for two sites with one
    key.
    """

    terms: _Key
    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        """Refuse duplicate names or keys, and names out of order."""
        names = [check_site_name(one.name) for one in self.members]
        if not names or names != sorted(set(names)):
            raise FedsynthError(
                "a roster must list different site names in alphabetical order; ask the coordinator for it again"
            )
        for what, keys in (("identity", self.identities.values()), ("node", [one.node_key for one in self.members])):
            if len(set(keys)) < len(names):
                raise FedsynthError(f"two sites of the roster have the same {what} key; each site needs its own")

    @property
    def identities(self) -> dict[str, bytes]:
        """Public identity keys (Ed25519, 32 bytes each) by the site's name."""
        return {one.name: bytes.fromhex(one.identity) for one in self.members}

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of terms, names and keys: what coordinator and sites sign."""
        return hashlib.sha256(canonical(self)).hexdigest()

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the roster, which all sites compare with each other."""
        return fingerprint("roster", self.digest.encode())

    def signed(self, coordinator: Keys) -> SignedRoster:
        """Return the roster with the signature of ``coordinator``; no site has signed it yet."""
        return SignedRoster(self, coordinator.sign_content(_ROSTER, self.digest))


class SignedRoster(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="roster"):
    """A :class:`Roster` with the signatures (hexadecimal) of its digest by the coordinator and by sites.

    ``accepted`` holds, by name, those of the sites that accepted the roster.
    """

    roster: Roster
    signature: _Pair
    accepted: dict[str, _Pair] = {}

    def check(self, coordinator: bytes) -> None:
        """Raise :class:`FedsynthError` unless ``coordinator`` (64 bytes) and the accepting sites signed the roster."""
        if not content_verified(coordinator, self.signature, _ROSTER, self.roster.digest):
            raise FedsynthError(
                "the roster is not signed by the coordinator of this federation, or was changed; ask the coordinator "
                "for it again, and compare fingerprints"
            )
        for name, signature in self.accepted.items():
            self._check(name, signature)

    def merged(self, other: SignedRoster) -> SignedRoster:
        """Return the roster with the sites' signatures of both.

        Raises :class:`FedsynthError` if ``other`` is another roster, or one of its signatures is of a site that is not
        listed, or by another key than the one listed.
        """
        if other.roster.digest != self.roster.digest:
            raise FedsynthError(
                f"{', '.join(other.accepted) or 'a site'} accepted another roster than this one; send it the present "
                "admission, and compare fingerprints"
            )
        for name, signature in other.accepted.items():
            self._check(name, signature)
        return msgspec.structs.replace(self, accepted=dict(sorted({**self.accepted, **other.accepted}.items())))

    def accept(self, site: str, secret: bytes) -> SignedRoster:
        """Return the roster with the signature of ``site`` too, made with its ``secret``.

        Raises :class:`FedsynthError` if the roster lists another identity key for the site.
        """
        keys = Keys(secret)
        if self.roster.identities.get(site) != keys.identity:
            raise FedsynthError(f"the key of {site} in the roster is not this site's own; ask the coordinator why")
        signature = keys.sign_content("roster", self.roster.digest)
        return self.merged(msgspec.structs.replace(self, accepted={site: signature}))

    @property
    def unsigned(self) -> tuple[str, ...]:
        """Names of the sites that have not signed yet."""
        return tuple(one.name for one in self.roster.members if one.name not in self.accepted)

    def _check(self, name: str, signature: str) -> None:
        keys = self.roster.identities
        if name not in keys or not content_verified(keys[name], signature, "roster", self.roster.digest):
            raise FedsynthError(f"the signature of {name!r} is not by its key in this roster; ask {name} for it again")


class Admission(_OfSite, frozen=True, tag="admission"):
    """The coordinator's answer to a site, once all have asked to join: its TLS certificate (PEM) and the roster."""

    certificate: str
    members: SignedRoster


_KINDS = {
    Invitation: ("an invitation", "Invites a site to a federation. At the site: fedsynth site join FILE FOLDER"),
    JoinRequest: ("a request", "A site's request to join. At the coordinator: fedsynth deploy admit FOLDER FILE"),
    Admission: ("an admission", "Admits a site to a federation. At the site: fedsynth site join FILE FOLDER"),
    SignedRoster: (
        "a roster",
        "All sites of the federation, their keys and signatures. At the coordinator: fedsynth deploy admit FOLDER FILE",
    ),
}


def to_text(content: Invitation | JoinRequest | Admission | SignedRoster) -> str:
    """Return ``content`` as the text (TOML) of an enrolment file; its first line says what to do with the file."""
    return f"# {_KINDS[type(content)][1]}\n{tomli_w.dumps(msgspec.to_builtins(content), multiline_strings=True)}"


def load(path: Path, kind: type[_Form]) -> _Form:
    """Read an enrolment file (:func:`to_text`) of this ``kind``; raises :class:`FedsynthError` for any other."""
    unfit = f"{path} is not {_KINDS[kind][0]} of this version ({{error}}); have it sent again"
    try:
        with said(unfit, msgspec.ValidationError):
            return msgspec.convert(load_toml(path), kind)
    except FedsynthError as error:
        raise FedsynthError(str(error) if str(path) in str(error) else f"{path}: {error}") from error


def load_either(path: Path, kind: type[_Form], other: type[_Other]) -> _Form | _Other:
    """Read an enrolment file of one of two classes.

    Raises :class:`FedsynthError` for any other file. For an enrolment file of another class, the message says what it
    is and which command reads it.
    """
    known = {kind.__struct_config__.tag: kind, other.__struct_config__.tag: other}
    tag = str(load_toml(path).get("kind"))
    if tag not in known:
        found = next((_KINDS[one] for one in _KINDS if one.__struct_config__.tag == tag), None)
        what = f"it is {found[0]}. {found[1]}" if found else "pass the file that was sent to you, unchanged"
        raise FedsynthError(f"{path} is neither {_KINDS[kind][0]} nor {_KINDS[other][0]}: {what}")
    return load(path, kind) if known[tag] is kind else load(path, other)
