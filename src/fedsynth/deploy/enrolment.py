"""Enrolment: what a site does with an invitation and an admission, and the coordinator with requests and signatures.

The files that they exchange are those of :mod:`fedsynth.deploy.roster`. The site's folder is made from the invitation;
the federation's folder holds what was admitted: ``admitted/NAME.request`` with the certificate ``NAME.pem`` and the
public key ``NAME.pub`` of the site's node (Flower's program there) beside it, ``roster.toml``, and
``admissions/NAME.toml``, which goes to the site.

Rule 1: a site's private keys are made there, stay there and are never replaced. Rule 2: a received file is not used
before a person compared its fingerprint; the caller asks for that. A request's signatures prove that the sender has the
keys, and not whose they are. Rule 3: a site's folder belongs to one site of one federation, by the invitation that it
was made from. Rule 4: other keys for an admitted site, and another roster at a site, must be requested explicitly,
since they change on whom one relies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path

import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

import fedsynth
from fedsynth.deploy.certificates import Authority, Role, pem, private_bytes
from fedsynth.deploy.host.config import INVITATION, ROSTER, SiteConfig, load_site_config
from fedsynth.deploy.host.state import create_state, make_node_key, public_part, site_secret
from fedsynth.deploy.roster import (
    Admission,
    Invitation,
    InvitedTerms,
    JoinRequest,
    Member,
    Roster,
    SignedRoster,
    load,
    to_text,
)
from fedsynth.errors import FedsynthError, said
from fedsynth.federation.names import parse_address
from fedsynth.federation.policy_file import policy_from_toml
from fedsynth.files import parse_toml, private_folder, read_text, write_private, write_whole
from fedsynth.keys import Keys
from fedsynth.platforms import is_exposed
from fedsynth.runs.job import Job
from fedsynth.runs.state import load_coordinator
from fedsynth.schema import Schema

AUTHORITY = "authority/ca.key"  # the private key of the certificate authority, to be kept offline
_SOON = timedelta(days=60)  # before its end, in which a certificate of the server is renewed
_PEERS = re.compile(r"^\[deployment\.peers\]\n(?:(?!\[).*(?:\n|\Z))*", re.MULTILINE)

# ---------------------------------------------------------------------------------------------------------------------
# At the site


def check_folder(invitation: Invitation, folder: Path) -> bool:
    """Return whether a site's folder was made by :func:`join` from this invitation, or is yet to be made.

    Raises :class:`~fedsynth.errors.FedsynthError` for a folder made from another invitation, one that holds other
    files, and a path that is no folder.
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

    ``files`` maps names to the texts of the configuration files to write, ``site.toml`` among them. Existing files but
    the request, keys above all, are left unchanged, so that the call can be repeated. Raises
    :class:`~fedsynth.errors.FedsynthError` for a folder of another site or federation, one that others can enter, one
    whose account is lost, and an invalid schema, policy or certificate in the invitation.
    """
    terms = invitation.terms
    known = check_folder(invitation, folder)
    Schema.from_toml(terms.schema)  # these raise before anything is created
    _certificate(terms.authority)
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

    The second value is ``None`` unless the site has accepted a different roster before; replacing that one needs
    ``replace``. Nothing is written. Raises :class:`~fedsynth.errors.FedsynthError` unless the admission is for this
    site, its roster is signed by the coordinator and holds this site's own keys, and its certificate is valid, for this
    site's TLS key and from the federation's authority.
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


def accept(admission: Admission, config: SiteConfig) -> tuple[SignedRoster, Path]:
    """Install an admission that :func:`check_admission` passed; return the roster that the site signed, and its file.

    Certificate and roster are written into the site's folder, and the roster also to ``NAME.signed``, the file to send
    back. The caller had the roster's fingerprint compared by phone before.
    """
    members = admission.members.accept(config.name, site_secret(config))
    if config.roster and config.roster.roster.digest == members.roster.digest:
        members = members.merged(config.roster)  # has signatures that an older admission lacks
    certificate = _certificate(admission.certificate)  # encoded anew, so that no other bytes reach nginx
    write_private(config.certificate, pem(certificate))
    write_private(config.folder / ROSTER, to_text(members))
    file = config.folder / f"{config.name}.signed"
    write_whole(file, to_text(members))
    return members, file


def difference(old: Roster, new: Roster) -> str:
    """Return in words how a new roster differs from the old one, by sites."""
    before, after = ({one.name: one for one in roster.members} for roster in (old, new))
    parts = {
        "new": [name for name in after if name not in before],
        "gone": [name for name in before if name not in after],
        "with another key": [name for name in after if name in before and after[name] != before[name]],
    }
    told = [f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} {what}" for what, names in parts.items() if names]
    return "; ".join(told) or "the terms are others"


def _signing_request(config: SiteConfig) -> str:
    """Return a signing request (PEM) for the site's TLS key; creates the key (P-256) if there is none."""
    file = config.certificate_key
    if not file.exists():
        write_private(file, private_bytes(ec.generate_private_key(ec.SECP256R1())))
    key = serialization.load_pem_private_key(file.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FedsynthError(f"{file} is not a key that fedsynth made; move it away, and join again")
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, config.name)])
    made = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM).decode()


def _check_certificate(config: SiteConfig, text: str) -> None:
    """Raise :class:`FedsynthError` unless a certificate is valid, this site's own, and by the federation's CA."""
    found = _certificate(text)
    key = serialization.load_pem_private_key(config.certificate_key.read_bytes(), None)
    if found.public_key() != key.public_key():
        raise FedsynthError("the certificate is not for this site's TLS key, so that nobody can use it here")
    if found.subject.rfc4514_string() != f"CN={config.name},OU=site":
        raise FedsynthError(
            f"the certificate is for {found.subject.rfc4514_string()}, and this site's is CN={config.name},OU=site"
        )
    store = Store(x509.load_pem_x509_certificates(config.root_certificates.read_bytes()))
    verifier = PolicyBuilder().store(store).time(datetime.now(UTC)).build_client_verifier()
    by = f"the certificate is not by the authority of {config.root_certificates.name}, or is not valid now "
    with said(by + "({error}); ask the coordinator for the admission again", VerificationError):
        verifier.verify(found, [])


def _certificate(text: str) -> x509.Certificate:
    with said("a certificate cannot be read ({error}); ask the coordinator for the file again", ValueError):
        found = x509.load_pem_x509_certificates(text.encode())
    if len(found) != 1:
        many = f"the file holds {len(found)} certificates instead of one"
        raise FedsynthError(f"{many}; ask the coordinator for it again")
    return found[0]


# ---------------------------------------------------------------------------------------------------------------------
# At the coordinator


@dataclass(frozen=True)
class Enrolment:
    """The state of a federation's enrolment, in the coordinator's ``folder``; ``admitted`` has a certificate."""

    folder: Path
    terms: InvitedTerms
    sites: tuple[str, ...]
    admitted: dict[str, JoinRequest] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> Enrolment:
        """Read the enrolment from the folder of a federation; raises :class:`FedsynthError` for another one."""
        if not (folder / "job.toml").is_file():
            raise FedsynthError(f"{folder} holds no job.toml; give the folder that `fedsynth deploy init` wrote")
        sites = Job.load(folder / "job.toml").deployed.sites
        invited = [file for name in sites if (file := folder / "invitations" / f"{name}.toml").is_file()]
        if not invited:
            raise FedsynthError(
                f"{folder / 'invitations'} holds no invitation of a site of job.toml; restore one from the backup"
            )
        terms = load(invited[0], Invitation).terms
        files = {name: folder / "admitted" / f"{name}.request" for name in sites}
        admitted = {name: load(file, JoinRequest) for name, file in files.items() if file.exists()}
        return cls(folder, terms, sites, admitted)

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the sites of the job that are not admitted yet."""
        return tuple(name for name in self.sites if name not in self.admitted)

    @cached_property
    def members(self) -> SignedRoster | None:
        """The roster as last written by :meth:`publish`; ``None`` before, and after a site got other keys."""
        file = self.folder / "roster.toml"
        if self.missing or not file.exists():
            return None
        found = load(file, SignedRoster)
        return found if found.roster.digest == self.roster.digest else None

    @property
    def roster(self) -> Roster:
        """The roster, made now; raises ``KeyError`` before all sites are admitted."""
        found = [self.admitted[name] for name in sorted(self.sites)]
        return Roster(self.terms.digest, tuple(Member(one.site, one.identity, one.node_key) for one in found))

    def check(self, request: JoinRequest, *, replace: bool = False) -> bool:
        """Check a site's request to join; return whether its keys are new, so that a person must compare fingerprints.

        Raises :class:`~fedsynth.errors.FedsynthError` for a request not signed by its own keys, from an unknown site,
        for other terms, from another version of fedsynth, with another site's key or, without ``replace``, with other
        keys than before.
        """
        name = request.site
        if name not in self.sites:
            raise FedsynthError(f"{name} is not a site of this federation; its sites are {', '.join(self.sites)}")
        if not request.signed:
            raise FedsynthError(f"the request of {name} is not signed by its own identity key, or was changed")
        keys = request.keys
        if request.terms != self.terms.digest:
            raise FedsynthError(
                f"the request of {name} is for another federation, or for terms that were changed on their way; "
                f"compare the invitation's fingerprint with {name} by phone: {self.terms.fingerprint}"
            )
        if request.fedsynth != fedsynth.__version__:
            raise FedsynthError(
                f"{name} has fedsynth {request.fedsynth} and this host {fedsynth.__version__}; install the same "
                "version everywhere, then let the site join again"
            )
        for other, found in self.admitted.items():
            if other != name and set(keys) & set(found.keys):
                raise FedsynthError(f"the request of {name} has a key of {other}; each site needs its own")
        known = self.admitted.get(name)
        if known is None:
            return True
        if known.keys != keys and not replace:
            raise FedsynthError(
                f"{name} is admitted with other keys. Another key for {name} changes who can read what is meant for "
                f"it: ask {name} why, by phone, then give --replace"
            )
        return known.keys != keys

    def admit(self, request: JoinRequest, authority: Authority) -> Enrolment:
        """Issue the certificate for a request that :meth:`check` passed; return the enrolment with this site admitted.

        Certificate, request and node key are written to ``admitted/``. Only the public key is taken from the request;
        name and role (OU) of the certificate are set here.
        """
        home = private_folder(self.folder / "admitted")
        write_whole(home / f"{request.site}.pem", authority.issue(request.tls_key, request.site, "site"))
        write_whole(home / f"{request.site}.pub", request.node_key + "\n")
        write_whole(home / f"{request.site}.request", to_text(request))
        return Enrolment(self.folder, self.terms, self.sites, {**self.admitted, request.site: request})

    def publish(self, signed: Sequence[SignedRoster] = ()) -> SignedRoster | None:
        """Write the roster, an admission for each site, and the sites' keys into the job; return the signed roster.

        ``signed`` are the rosters that sites sent back; their signatures are kept, and earlier ones too. Until all
        sites are admitted, nothing is written and ``None`` is returned. Raises :class:`~fedsynth.errors.FedsynthError`
        for one that comes before the roster, is another, or is not signed by the site's own key.
        """
        if self.missing:
            if signed:
                missing = f"missing: {self.missing}"
                raise FedsynthError(f"there is no roster to accept before all sites are admitted; {missing}")
            return None
        members = self.members or self.roster.signed(load_coordinator(self.folder))
        for other in signed:
            members = members.merged(other)
        self._write_peers(members.roster)
        private_folder(self.folder / "admissions")
        for name in self.sites:
            certificate = read_text(self.folder / "admitted" / f"{name}.pem")
            write_whole(self.folder / "admissions" / f"{name}.toml", to_text(Admission(name, certificate, members)))
        write_private(self.folder / "roster.toml", to_text(members))
        return members

    def renew(self, authority: Authority) -> list[Path]:
        """Renew the certificates of the server and the administrator that end soon, for the same keys.

        Returns their files, whose mode becomes 0644: they hold no secret, and the SuperLink may be another user.
        """
        renewed = []
        hosts: dict[Role, str] = {"server": parse_address(self.terms.superlink)[0], "admin": ""}
        for role, host in hosts.items():
            file = self.folder / "server" / f"{role}.pem"
            if not file.is_file():
                continue
            found = _certificate(read_text(file))
            public = found.public_key()
            if found.not_valid_after_utc < datetime.now(UTC) + _SOON and isinstance(public, ec.EllipticCurvePublicKey):
                write_whole(file, authority.issue(public, role, role, host))
                file.chmod(0o644)
                renewed.append(file)
        return renewed

    def _write_peers(self, roster: Roster) -> None:
        file = self.folder / "job.toml"
        text = read_text(file)
        peers = tomli_w.dumps({"deployment": {"peers": {one.name: one.identity for one in roster.members}}})
        changed = f"{_PEERS.sub('', text).rstrip()}\n\n{peers}"
        if changed != text:
            Job.from_toml(changed, str(file))  # raises if the job's peers are written elsewhere
            write_private(file, changed)
