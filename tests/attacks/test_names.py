"""Names and addresses that a consortium puts into certificates and configuration files."""

from __future__ import annotations

import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest
import typer
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import NameOID
from tests.attacks.world import SCHEMA

from fedsynth.cli.deploy import deploy_init
from fedsynth.errors import FedsynthError
from fedsynth.runs.job import Deployment

needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificates")


def certificates(folder: Path, *names: str) -> bool:
    """Make the certificates of a federation of these sites; return whether the script took the names."""
    script = files("fedsynth.transports.flower") / "templates" / "certificates.sh"
    done = subprocess.run(["sh", str(script), "localhost", *names], cwd=folder, capture_output=True, timeout=60)
    return done.returncode == 0


@needs_openssl
def test_a13_no_site_gets_the_administrators_certificate(tmp_path):
    """The certificate that opens the control API goes to the administrator, whatever the sites are called."""
    if certificates(tmp_path, "north", "admin"):
        name = x509.load_pem_x509_certificate((tmp_path / "admin.pem").read_bytes()).subject
        assert name.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value != "admin"


@needs_openssl
def test_a13_no_site_overwrites_the_authoritys_key(tmp_path):
    """The key of the certificate authority stays what it is, whatever the sites are called."""
    certificates(tmp_path, "north", "ca")
    if (tmp_path / "ca.crt").exists():
        authority = x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes()).public_key()
        key = load_pem_private_key((tmp_path / "ca.key").read_bytes(), None).public_key()
        form = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        assert key.public_bytes(*form) == authority.public_bytes(*form)


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
    try:
        deploy_init(home, tmp_path / "agreed.toml", "north,south", 1.0, 1e-6, superlink=superlink)
    except (FedsynthError, typer.BadParameter):
        return
    host = superlink.rpartition(":")[0]
    written = [path for path in home.rglob("*") if path.is_file()]
    assert [path.name for path in written if host in path.read_text()] == []
