"""Enrolment at a site: makes its folder and keys, and installs what the coordinator sends when it admits the site.

The invitation, the coordinator's first file, has the terms. The admission, its second, has the site's certificate and
the roster: the list of all sites with their keys.

Rule 1: private keys are made here, stay here and are never replaced. Rule 2: a received file is not used before a
person compared its fingerprint; the caller asks for that. Rule 3: a folder belongs to one site of one federation, by
the invitation that it was made from. Rule 4: replacing a roster must be requested explicitly, since it changes which
sites this site relies on.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import fedsynth
from fedsynth.deploy.host.config import ROSTER, SiteConfig, load_site_config
from fedsynth.deploy.host.rows import is_exposed
from fedsynth.deploy.host.state import (
    create_state,
    make_node_key,
    public_part,
    site_secret,
)
from fedsynth.deploy.roster import Acceptance, Admission, Invitation, JoinRequest, Roster, load, to_text
from fedsynth.errors import FedsynthError
from fedsynth.federation.policy_file import policy_from_toml
from fedsynth.files import parse_toml, private_folder, write_private, write_whole
from fedsynth.keys import Keys
from fedsynth.schema import Schema

if TYPE_CHECKING:
    from cryptography import x509

INVITATION = "invitation.toml"  # in the site's folder: the invitation that it was made from


def check_folder(invitation: Invitation, folder: Path) -> bool:
    """Return whether a site's folder exists and was made by :func:`join` from this invitation.

    ``invitation`` is the coordinator's, with the site's name and the federation's terms. ``False`` means that the
    folder is missing or empty, so that :func:`join` would make it. Raises :class:`~fedsynth.errors.FedsynthError` for a
    folder made from another invitation, one that holds other files, and a path that is no folder.
    """
    if not folder.is_dir():
        if folder.exists():
            raise FedsynthError(f"{folder} is not a folder; choose another one")
        return False
    file = folder / INVITATION
    if not file.exists():
        if any(folder.iterdir()):
            raise FedsynthError(
                f"{folder} is not empty and holds no {INVITATION}: it is not a site's folder, or its creation was "
                "interrupted; choose another one"
            )
        return False
    made = load(file, Invitation)
    if made.site != invitation.site or made.terms.digest != invitation.terms.digest:
        raise FedsynthError(
            f"{folder} is the site {made.site} of the federation {made.terms.fingerprint}, and the invitation is for "
            f"{invitation.site} of {invitation.terms.fingerprint}; choose another folder"
        )
    return True


def join(invitation: Invitation, folder: Path, files: Mapping[str, str]) -> tuple[JoinRequest, Path]:
    """Create a site's folder, account and keys from an invitation; return its request to join, and the request's file.

    The account is the site's record of spent budget. ``files`` maps names to the texts of the configuration files to
    write; it must contain ``site.toml``. Existing files but the request, keys above all, are left unchanged, so that
    the call can be repeated. The request holds public keys only; the coordinator answers it by an admission, a file
    with the site's certificate and the list of all sites. Raises :class:`~fedsynth.errors.FedsynthError` for a folder
    of another site or federation, one that others can enter, one whose account is lost, and an invalid schema, policy
    or certificate in the invitation.
    """
    terms = invitation.terms
    known = check_folder(invitation, folder)
    Schema.from_toml(terms.schema)  # these raise before anything is created
    _certificates(terms.authority)
    if not (folder / "site.toml").exists():
        policy_from_toml(parse_toml(files["site.toml"], "the policy of the invitation")["policy"])
    private_folder(folder)
    if is_exposed(folder):
        raise FedsynthError(
            f"{folder} can be entered by other users, and keys will lie in it; run chmod go-rwx {folder}"
        )
    for name, text in {**files, "schema.toml": terms.schema, "ca.crt": terms.authority}.items():
        if not (folder / name).exists():
            write_private(folder / name, text)
    config = load_site_config(folder)
    if not known:  # only once: a missing account was lost, and a new one would forget what was spent
        create_state(config)
    secret = site_secret(config)
    request = JoinRequest(
        invitation.site,
        terms.digest,
        fedsynth.__version__,
        Keys(secret).identity.hex(),
        make_node_key(config.key),
        _signing_request(config),
    ).sign(secret)
    file = folder / f"{invitation.site}.request"
    write_whole(file, to_text(request))
    if not known:
        write_private(folder / INVITATION, to_text(invitation))  # last: from here on the folder is complete
    return request, file


def check_admission(admission: Admission, folder: Path, *, replace: bool = False) -> tuple[SiteConfig, Roster | None]:
    """Check the admission that a site has received; return its configuration, and the roster to be replaced, if any.

    An admission holds the site's certificate and the roster, the list of all sites with their keys. The second value is
    ``None`` unless the site has accepted a different roster before; replacing that one needs ``replace``, since it
    changes which sites this site relies on. Nothing is written. Raises :class:`~fedsynth.errors.FedsynthError` unless
    the admission is for this site, its roster is signed by the coordinator and holds this site's own keys, and its
    certificate is valid, for this site's TLS key and from the federation's authority.
    """
    config = load_site_config(folder)
    invited = load(config.folder / INVITATION, Invitation)
    roster = admission.members.roster
    if admission.site != config.name:
        raise FedsynthError(f"the admission is for {admission.site}, and {folder} is the site {config.name}")
    admission.members.check(config.coordinator)
    if roster.terms != invited.terms.digest:
        raise FedsynthError(
            f"the admission is to a federation under other terms than those of {config.folder / INVITATION}; ask the "
            "coordinator"
        )
    own = next((one for one in roster.members if one.name == config.name), None)
    if own is None or own.identity != Keys(site_secret(config)).identity.hex():
        raise FedsynthError(
            f"the roster does not hold this site's own identity key under {config.name}: somebody put another one in "
            "its place, or admitted another request; call the coordinator, and use nothing of it"
        )
    if own.node_key != public_part(config.key.read_bytes()):
        raise FedsynthError(
            f"the roster does not hold the key of this site's own node under {config.name}; call the coordinator, and "
            "use nothing of it"
        )
    _check_certificate(config, admission.certificate)
    old = config.roster.roster if config.roster else None
    changed = old if old is not None and old.digest != roster.digest else None
    if changed is not None and not replace:
        raise FedsynthError(
            f"this site has accepted another roster: {difference(changed, roster)}. That changes on whom it relies; "
            "ask these sites, then give --replace"
        )
    return config, changed


def accept(admission: Admission, config: SiteConfig) -> tuple[Acceptance, Path]:
    """Install an admission that :func:`check_admission` passed; return the site's acceptance and the file to send back.

    The certificate and the roster of all sites are written into the folder of ``config``, and the acceptance, the
    site's signature under the roster, to ``NAME.signed``. The caller had the roster's fingerprint compared by phone
    before.
    """
    acceptance = Acceptance.of(config.name, admission.members.roster, site_secret(config))
    members = admission.members.with_acceptance(acceptance)
    if (
        config.roster and config.roster.roster.digest == members.roster.digest
    ):  # keep signatures that an older admission lacks
        members = msgspec.structs.replace(members, accepted={**config.roster.accepted, **members.accepted})
    (certificate,) = _certificates(admission.certificate)  # re-encoded, so that no other bytes reach nginx
    write_private(config.certificate, _pem(certificate))
    write_private(config.folder / ROSTER, to_text(members))
    file = config.folder / f"{config.name}.signed"
    write_whole(file, to_text(acceptance))
    return acceptance, file


def difference(old: Roster, new: Roster) -> str:
    """Return in words how a new roster (the list of all sites with their keys) differs from the old one, by sites."""
    before, after = ({one.name: one for one in roster.members} for roster in (old, new))
    parts = {
        "new": [name for name in after if name not in before],
        "gone": [name for name in before if name not in after],
        "with another key": [name for name in after if name in before and after[name] != before[name]],
    }
    said = [f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} {what}" for what, names in parts.items() if names]
    return "; ".join(said) or "the terms are others"


def _signing_request(config: SiteConfig) -> str:
    """Return a signing request (PEM) for the site's TLS key; creates the key (P-256) if there is none."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    file = config.certificate_key
    if not file.exists():
        fresh = ec.generate_private_key(ec.SECP256R1())
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        write_private(file, fresh.private_bytes(*form))
    key = serialization.load_pem_private_key(file.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FedsynthError(f"{file} is not a key that fedsynth made; move it away, and join again")
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, config.name)])
    made = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM).decode()


def _check_certificate(config: SiteConfig, text: str) -> None:
    """Raise :class:`FedsynthError` unless a certificate is valid, this site's own, and by the federation's CA."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

    (found,) = _certificates(text)
    key = serialization.load_pem_private_key(config.certificate_key.read_bytes(), None)
    if found.public_key() != key.public_key():
        raise FedsynthError("the certificate is not for this site's TLS key, so that nobody can use it here")
    if found.subject.rfc4514_string() != f"CN={config.name},OU=site":
        raise FedsynthError(
            f"the certificate is for {found.subject.rfc4514_string()}, and this site's is CN={config.name},OU=site"
        )
    store = Store(x509.load_pem_x509_certificates(config.root_certificates.read_bytes()))
    verifier = PolicyBuilder().store(store).time(datetime.now(UTC)).build_client_verifier()
    try:
        verifier.verify(found, [])
    except VerificationError as error:
        raise FedsynthError(
            f"the certificate is not by the authority of {config.root_certificates.name}, or is not valid now "
            f"({error}); ask the coordinator for the admission again"
        ) from error


def _pem(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM).decode()


def _certificates(text: str) -> list[x509.Certificate]:
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificates(text.encode())
    except ValueError as error:
        raise FedsynthError(
            f"a certificate cannot be read ({error}); ask the coordinator for the file again"
        ) from error
    if len(found) != 1:
        raise FedsynthError(
            f"the file holds {len(found)} certificates instead of one; ask the coordinator for it again"
        )
    return found
