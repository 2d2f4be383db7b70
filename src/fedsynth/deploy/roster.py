"""Enrolment: the files that a coordinator and a site exchange before the first run, over any channel.

The coordinator sends an :class:`Invitation`, the site answers with a :class:`JoinRequest`; the coordinator sends an
:class:`Admission` with the roster (the list of all sites and their public keys), the site answers with an
:class:`Acceptance`.

Rule 1: no file holds a secret. Rule 2: an invitation and a request are authentic only if sender and receiver, who read
it out by phone, have the same fingerprint: 30 digits made from the content. A roster is signed by the coordinator,
whose key was in the invitation; all sites compare its fingerprint with each other, since the coordinator could replace
a site's key by one of its own. Rule 3: fingerprints and signatures are of a file's content in one canonical form, not
of its bytes. Rule 4: a signature is bound to its purpose (:mod:`fedsynth.keys`), so that it
is not valid for another file.
"""

from __future__ import annotations

import hashlib
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import tomli_w
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from fedsynth.errors import FedsynthError
from fedsynth.federation.names import check_site_name, parse_address
from fedsynth.files import load_toml
from fedsynth.keys import Keys, sign, verified

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

_ROSTER = b"fedsynth roster 1"  # purpose of the coordinator's signature of a roster
_DIGITS = 30
_CURVES = ("secp256r1", "secp384r1")
_Key = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
_Pair = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{128}\Z")]
_Word = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.:+-]{1,200}\Z")]  # shown on a terminal, so no escapes
_Node = Annotated[str, msgspec.Meta(pattern=r"\Aecdsa-sha2-nistp\d{3} [A-Za-z0-9+/=]+\Z")]
_Form = TypeVar("_Form", "Invitation", "JoinRequest", "Admission", "Acceptance", "SignedRoster")
_Other = TypeVar("_Other", "Admission", "Acceptance")


@lru_cache(maxsize=64)
def fingerprint(purpose: str, content: bytes) -> str:
    """Return 30 digits in six groups that identify ``content``, to be read out and compared by phone.

    ``purpose`` says what the content is ("terms", "join request" or "roster"): equal content has another fingerprint
    for another purpose. The computation takes a third of a second and 128 MiB.

    An attacker who chooses both of two contents needs about 2^50 candidates to find two with equal fingerprints. The
    fingerprint of each candidate takes as long as any other (scrypt, RFC 7914): millions of core years in all.
    """
    made = Scrypt(salt=f"fedsynth {purpose} 1".encode(), length=32, n=2**17, r=8, p=1).derive(content)
    digits = f"{int.from_bytes(made) % 10**_DIGITS:0{_DIGITS}d}"
    return " ".join(digits[start : start + 5] for start in range(0, _DIGITS, 5))


class InvitedTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """Terms that a site accepts when it joins, the same for all sites: the coordinator, the network, the intended run.

    ``superlink`` is the address HOST:PORT of the Flower server that sites connect to, ``coordinator`` both public keys
    (hexadecimal, :attr:`Keys.public <fedsynth.keys.Keys.public>`), ``authority`` the certificate (PEM) of the authority
    that signs all other certificates, and ``schema`` the agreed schema (TOML).

    The others describe the intended run, and a site's policy is drafted from them: the name of the ``method``, the
    budget (``epsilon``, ``delta``), the name of the ``trust`` model, and who is protected: a person with up to
    ``rows_per_person`` rows at each of up to ``sites_per_person`` sites. If the method belongs to another package,
    ``kinds`` maps the name of each kind of query that this package defines to the class that a site would import for
    it. Raises :class:`InvalidParameter` for an address in another form than HOST:PORT.
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
        """Raise :class:`FedsynthError` for an invalid address, which would go into configuration files."""
        parse_address(self.superlink)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the terms, by which join requests and rosters refer to them."""
        return hashlib.sha256(_canonical(self)).hexdigest()

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the terms (:func:`fingerprint`), which a site compares with the coordinator by phone."""
        return fingerprint("terms", self.digest.encode())


class _OfSite(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """A file of one site: ``site`` is its name.

    Raises :class:`InvalidParameter` for a name that no site may have, since files are named after it.
    """

    site: str

    def __post_init__(self) -> None:
        check_site_name(self.site)


class Invitation(_OfSite, frozen=True, tag="invitation"):
    """The coordinator's invitation to the site named ``site`` to join a federation under these ``terms``."""

    terms: InvitedTerms


class JoinRequest(_OfSite, frozen=True, tag="request"):
    """A request to join, sent by a site to the coordinator: the site's public keys, signed with its identity key.

    ``terms`` is the digest of the terms in the invitation and ``fedsynth`` the version of fedsynth at the site.
    ``identity`` is the public key (hexadecimal, Ed25519) by which other sites know this one, ``node_key`` the public
    key (OpenSSH) of its Flower node, and ``csr`` a certificate signing request (PEM) for its TLS key, from which only
    the key is used. ``signature`` (hexadecimal) is empty before :meth:`sign`.
    """

    terms: _Key
    fedsynth: _Word
    identity: _Key
    node_key: _Node
    csr: str
    signature: Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{128})?\Z")] = ""

    def sign(self, secret: bytes) -> JoinRequest:
        """Return a copy signed with the identity key made from the site's ``secret`` (32 bytes)."""
        return msgspec.structs.replace(self, signature=sign(Keys(secret).seed, "join request", self._body).hex())

    @property
    def signed(self) -> bool:
        """Whether the request is signed with the key in ``identity``."""
        return verified(bytes.fromhex(self.identity), bytes.fromhex(self.signature), "join request", self._body)

    @property
    def tls_key(self) -> ec.EllipticCurvePublicKey:
        """The site's public TLS key (P-256 or P-384), from its certificate signing request.

        Raises :class:`FedsynthError` for an unreadable request, a key of another kind, and a request that is not signed
        by the owner of the key.
        """
        from cryptography import x509
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric import ec

        try:
            csr = x509.load_pem_x509_csr(self.csr.encode())
            key = csr.public_key()
        except (ValueError, UnsupportedAlgorithm) as error:
            raise FedsynthError(
                f"the signing request of {self.site} cannot be read ({error}); let the site join again"
            ) from error
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
        """The three public keys by which a federation identifies the site: identity, node key and TLS key.

        They are texts: hexadecimal, OpenSSH, and hexadecimal DER. Raises :class:`FedsynthError` for a key that cannot
        be read, or a node key in another format than fedsynth writes.
        """
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization

        node = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        try:  # canonical text: with padding or a comment added, another site's key would look new
            text = serialization.load_ssh_public_key(self.node_key.encode()).public_bytes(*node).decode()
        except (ValueError, UnsupportedAlgorithm) as error:
            raise FedsynthError(
                f"the node key of {self.site} cannot be read ({error}); let the site join again"
            ) from error
        if text != self.node_key:
            raise FedsynthError(f"the node key of {self.site} is not in fedsynth's format; let the site join again")
        form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        return self.identity, self.node_key, self.tls_key.public_bytes(*form).hex()

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the request (:func:`fingerprint`), which the coordinator compares with the site by phone.

        It covers site, terms and keys, and does not depend on the random signatures in the request.
        """
        return fingerprint("join request", " ".join((self.terms, self.site, *self.keys)).encode())

    @property
    def _body(self) -> bytes:
        return _canonical(msgspec.structs.replace(self, signature=""))


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A site of a :class:`Roster`: its ``name`` and two of its public keys.

    By ``identity`` (hexadecimal, Ed25519) the other sites know it; ``node_key`` (OpenSSH) is that of its Flower node.
    """

    name: str
    identity: _Key
    node_key: _Node


class Roster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All sites of a federation (``members``, sorted by name) with their public keys, for all sites to sign.

    ``terms`` is the digest of the :class:`InvitedTerms` that they accepted. Raises :class:`FedsynthError` for names
    that are repeated or not in alphabetical order, and for two sites with one key.
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
        return hashlib.sha256(_canonical(self)).hexdigest()

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the roster (:func:`fingerprint`), which all sites compare with each other."""
        return fingerprint("roster", self.digest.encode())

    def signed(self, coordinator: Keys) -> SignedRoster:
        """Return the roster with the signature of ``coordinator``; no site has signed it yet."""
        return SignedRoster(self, coordinator.sign(_ROSTER, self.digest).hex())


class SignedRoster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A :class:`Roster` (the list of all sites and their keys) with the signatures of the coordinator and of sites.

    ``signature`` is the coordinator's; ``accepted`` holds, by name, those of the sites that accepted the roster. All
    are in hexadecimal.
    """

    roster: Roster
    signature: _Pair
    accepted: dict[str, _Pair] = {}

    def check(self, coordinator: bytes) -> None:
        """Raise :class:`FedsynthError` unless the coordinator and all sites in ``accepted`` signed this roster.

        ``coordinator`` are its public keys (64 bytes), which the caller knows from the invitation.
        """
        if not verified(coordinator, bytes.fromhex(self.signature), _ROSTER, self.roster.digest):
            raise FedsynthError(
                "the roster is not signed by the coordinator of this federation, or was changed; ask the coordinator "
                "for it again, and compare fingerprints"
            )
        for name, signature in self.accepted.items():
            self._check(name, signature)

    def with_acceptance(self, acceptance: Acceptance) -> SignedRoster:
        """Return the roster with one more site's signature, from the ``acceptance`` that the site sent.

        Raises :class:`FedsynthError` if the site signed another roster, is not listed in this one, or signed with
        another key than the one listed for it.
        """
        if acceptance.roster != self.roster.digest:
            raise FedsynthError(
                f"{acceptance.site} accepted another roster than this one; send it the present admission, and compare "
                "fingerprints"
            )
        self._check(acceptance.site, acceptance.signature)
        accepted = {**self.accepted, acceptance.site: acceptance.signature}
        return msgspec.structs.replace(self, accepted=dict(sorted(accepted.items())))

    @property
    def unsigned(self) -> tuple[str, ...]:
        """Names of the sites that have not signed yet."""
        return tuple(one.name for one in self.roster.members if one.name not in self.accepted)

    def _check(self, name: str, signature: str) -> None:
        keys = self.roster.identities
        digest = self.roster.digest
        if name not in keys or not verified(keys[name], bytes.fromhex(signature), "roster", digest):
            raise FedsynthError(f"the signature of {name!r} is not by its key in this roster; ask {name} for it again")


class Admission(_OfSite, frozen=True, tag="admission"):
    """The coordinator's answer to a site, once all sites have asked to join: its certificate and the signed roster.

    ``certificate`` is the site's TLS certificate (PEM), and ``members`` the roster, the list of all sites and their
    public keys, with the coordinator's signature.
    """

    certificate: str
    members: SignedRoster


class Acceptance(_OfSite, frozen=True, tag="acceptance"):
    """A site's answer to its :class:`Admission`: its signature of the roster, the list of all sites and their keys.

    ``roster`` is the roster's digest, and ``signature`` the site's signature of that digest. Both are in hexadecimal.
    """

    roster: _Key
    signature: _Pair

    @classmethod
    def of(cls, site: str, roster: Roster, secret: bytes) -> Acceptance:
        """Return the acceptance of ``roster`` by the site named ``site``, signed with the key made from its ``secret``.

        Raises :class:`FedsynthError` if the roster lists another identity key for the site.
        """
        if roster.identities.get(site) != Keys(secret).identity:
            raise FedsynthError(f"the key of {site} in the roster is not this site's own; ask the coordinator why")
        return cls(site, roster.digest, sign(Keys(secret).seed, "roster", roster.digest).hex())


_KINDS = {
    Invitation: ("an invitation", "Invites a site to a federation. At the site: fedsynth site join FILE FOLDER"),
    JoinRequest: ("a request", "A site's request to join. At the coordinator: fedsynth deploy admit FOLDER FILE"),
    Admission: ("an admission", "Admits a site to a federation. At the site: fedsynth site join FILE FOLDER"),
    Acceptance: ("an acceptance", "A site accepts the roster. At the coordinator: fedsynth deploy admit FOLDER FILE"),
    SignedRoster: ("a roster", "All sites of the federation, their keys and signatures; written by fedsynth."),
}


def to_text(content: Invitation | JoinRequest | Admission | Acceptance | SignedRoster) -> str:
    """Return ``content`` as the text (TOML) of an enrolment file, which coordinator and site send to each other.

    The first line is a comment that tells the reader what to do with the file. It holds no secret. :func:`load` reads
    it.
    """
    said = _KINDS[type(content)][1]
    return f"# {said}\n{tomli_w.dumps(msgspec.to_builtins(content), multiline_strings=True)}"


def load(path: Path, kind: type[_Form]) -> _Form:
    """Read an enrolment file of this ``kind`` (a class, such as :class:`Invitation`), and return its content.

    Such a file has the text that :func:`to_text` makes. Raises :class:`FedsynthError` for any other file, and for
    content that the class refuses.
    """
    try:
        return msgspec.convert(load_toml(path), kind)
    except msgspec.ValidationError as error:
        raise FedsynthError(f"{path} is not {_KINDS[kind][0]} of this version ({error}); have it sent again") from error
    except FedsynthError as error:
        raise FedsynthError(str(error) if str(path) in str(error) else f"{path}: {error}") from error


def load_either(path: Path, kind: type[_Form], other: type[_Other]) -> _Form | _Other:
    """Read an enrolment file (:func:`to_text`) of one of two classes, ``kind`` and ``other``, and return its content.

    Raises :class:`FedsynthError` for any other file. For an enrolment file of another class, the message says what it
    is and which command reads it.
    """
    known = {kind.__struct_config__.tag: kind, other.__struct_config__.tag: other}
    tag = load_toml(path).get("kind")
    if tag not in known:
        found = next((_KINDS[one] for one in _KINDS if tag and one.__struct_config__.tag == tag), None)
        said = f"it is {found[0]}. {found[1]}" if found else "pass the file that was sent to you, unchanged"
        raise FedsynthError(f"{path} is neither {_KINDS[kind][0]} nor {_KINDS[other][0]}: {said}")
    return load(path, kind) if known[tag] is kind else load(path, other)


def _canonical(content: msgspec.Struct) -> bytes:
    return msgspec.json.encode(content, order="deterministic")
