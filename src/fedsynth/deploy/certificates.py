"""A federation's certificate authority, which issues certificates to the server, the sites and the administrator.

The field OU (organizational unit) of a certificate defines its role (server, site or admin), and is set only here: from
a signing request, only the public key is used, never the name.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedsynth.errors import FedsynthError, said
from fedsynth.platforms import is_exposed

DAYS = 365  # validity of a certificate; the authority's own is valid five times as long
Role = Literal["server", "site", "admin"]
_CLOCKS = timedelta(hours=1)  # tolerance for a host's clock that is behind
_LOOPBACK: tuple[x509.GeneralName, ...] = (x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1")))


@dataclass(frozen=True)
class Authority:
    """A federation's own certificate authority: its private key and its certificate, which the sites trust."""

    private: ec.EllipticCurvePrivateKey = field(repr=False)
    certificate: x509.Certificate

    @classmethod
    def create(cls) -> Authority:
        """Return a new authority: a new key (P-384) and a self-signed certificate."""
        key = ec.generate_private_key(ec.SECP384R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedsynth federation CA")])
        made = (
            _builder(name, name, key.public_key(), 5 * DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(sign_certificates=True), critical=True)
            .sign(key, hashes.SHA384())
        )
        return cls(key, made)

    @classmethod
    def load(cls, key_file: Path, certificate_file: Path) -> Authority:
        """Load an authority from PEM files; raises :class:`FedsynthError` for an exposed, unreadable or foreign key."""
        if not key_file.is_file():
            raise FedsynthError(
                f"{key_file} is missing; if you keep the authority's key elsewhere, name it with --ca-key"
            )
        if is_exposed(key_file):
            raise FedsynthError(f"{key_file} can be read by other users; run chmod go-rwx {key_file}")
        unreadable = "holds no certificate that can be read ({error}); put the authority's ca.crt there"
        with said(f"{certificate_file} {unreadable}", OSError, ValueError):
            certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        with said(f"{key_file} holds no private key that can be read ({{error}})", TypeError, ValueError):
            key = serialization.load_pem_private_key(key_file.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise FedsynthError(f"{key_file} is not the key of {certificate_file}; put the federation's own there")
        return cls(key, certificate)

    @property
    def key(self) -> bytes:
        """The authority's private key (PEM, not encrypted), to be kept offline."""
        return private_bytes(self.private)

    @property
    def text(self) -> str:
        """The authority's certificate (PEM)."""
        return pem(self.certificate)

    def issue(self, public: ec.EllipticCurvePublicKey, name: str, role: Role, host: str = "") -> str:
        """Return a certificate (PEM, valid for a year) that binds a public key to a name and a role.

        ``role`` defines what its holder may reach through the proxy in front of the server. ``host`` is the host name
        or address of a server. All certificates are valid for the loopback interface too: sites and
        administrators may run nginx there, which shows their certificate to the server, as Flower's programs cannot.
        """
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role),
                x509.NameAttribute(NameOID.COMMON_NAME, name),
            ]
        )
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, *([] if role == "server" else [ExtendedKeyUsageOID.CLIENT_AUTH])]
        issuer = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        made = (
            _builder(subject, self.certificate.subject, public, DAYS)
            .add_extension(x509.SubjectAlternativeName(dict.fromkeys([*_host_names(host), *_LOOPBACK])), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(sign_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False)
            .sign(self.private, hashes.SHA384())
        )
        return pem(made)

    def issue_with_key(self, name: str, role: Role, host: str = "") -> tuple[str, bytes]:
        """Return a certificate and its new private key (both PEM), for the coordinator's own machines only."""
        key = ec.generate_private_key(ec.SECP256R1())
        return self.issue(key.public_key(), name, role, host), private_bytes(key)


def private_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as PEM, not encrypted."""
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return key.private_bytes(*form)


def pem(certificate: x509.Certificate) -> str:
    """Return a certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    never = dict.fromkeys((*others, "encipher_only", "decipher_only"), False)
    signs = dict.fromkeys(("key_cert_sign", "crl_sign"), sign_certificates)
    return x509.KeyUsage(digital_signature=not sign_certificates, **signs, **never)


def _host_names(host: str) -> list[x509.GeneralName]:
    """Return the subject names of a server's certificate; an address is also a DNS name, as nginx compares it so."""
    if not host:
        return []
    try:
        address: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address(host))]
    except ValueError:
        address = []
    return [*address, x509.DNSName(host)]
