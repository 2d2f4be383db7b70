"""Names and addresses that a consortium puts into certificates and configuration files."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from tests.attacks.world import SCHEMA
from tests.command import invoke

from fedsynth.deploy.certificates import Authority
from fedsynth.errors import FedsynthError
from fedsynth.runs.job import Deployment


def init(folder: Path, sites: str, *options: str) -> int:
    """Lay out a federation of these sites, and return the exit code of the command."""
    words = ["deploy", "init", folder / "federation", "--schema", folder / "agreed.toml", "--sites", sites]
    done = invoke([*words, "--epsilon", "1", "--delta", "1e-6", *options])
    assert done.exit_code != 1, done.output
    return done.exit_code


@pytest.mark.parametrize("name", ["admin", "ca"])
def test_a13_no_site_gets_the_certificate_of_a_role_or_overwrites_the_authority(tmp_path, name):
    """The certificate that opens the control API goes to the administrator, whatever the sites are called."""
    SCHEMA.save(tmp_path / "agreed.toml")
    home = tmp_path / "federation"
    if init(tmp_path, f"north,{name}") != 0:
        assert not home.exists()
        return
    authority = x509.load_pem_x509_certificate((home / "server" / "ca.crt").read_bytes())
    key = load_pem_private_key((home / "authority" / "ca.key").read_bytes(), None)
    assert key.public_key() == authority.public_key()
    assert not (home / "invitations" / f"{name}.toml").exists()


def test_a13_a_site_certificate_says_site_whatever_was_asked_for():
    """The name in a signing request is never taken: the certificate says OU=site and the name that was admitted."""
    authority, key = Authority.create(), ec.generate_private_key(ec.SECP256R1())
    made = x509.load_pem_x509_certificate(authority.issue(key.public_key(), "north", "site").encode())
    assert made.subject.rfc4514_string() == "CN=north,OU=site"


@pytest.mark.parametrize("name", ["admin", "ca", "Admin", "a.b"])
def test_a13_a_job_takes_no_reserved_name(name):
    """A site is called by small letters, digits and hyphens, and by no name that the deployment uses itself."""
    try:
        job = Deployment("run", ("north", name))
    except FedsynthError:
        return
    assert name not in job.sites


@pytest.mark.parametrize("superlink", ["x; } evil { :443", "x\n:443", 'fed.example.org" evil = "1:443', "@PORT@:443"])
def test_a13_an_address_stays_an_address_in_every_file(tmp_path, superlink):
    """What a command line puts into a template is an address and nothing more: no file takes a directive from it."""
    SCHEMA.save(tmp_path / "agreed.toml")
    home = tmp_path / "federation"
    if init(tmp_path, "north,south", "--superlink", superlink) != 0:
        return
    host = superlink.rpartition(":")[0]
    written = [path for path in home.rglob("*") if path.is_file()]
    assert [path.name for path in written if host.encode() in path.read_bytes()] == []
