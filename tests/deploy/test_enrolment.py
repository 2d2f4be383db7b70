"""Enrolment by the real commands: three sites join, certificates verify, and every file that was changed is refused."""

from __future__ import annotations

import datetime
import ipaddress
import json
import shutil
import stat
import subprocess
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from tests.command import fedsynth, invoke
from tests.contract.world import SCHEMA

from fedsynth.cli import app as cli
from fedsynth.deploy.certificates import DAYS, Authority
from fedsynth.deploy.enrolment import AUTHORITY, Enrolment
from fedsynth.deploy.host.config import load_site_config
from fedsynth.deploy.host.state import site_secret
from fedsynth.deploy.roster import (
    Admission,
    Invitation,
    JoinRequest,
    Member,
    Roster,
    SignedRoster,
    fingerprint,
    load,
    to_text,
)
from fedsynth.errors import FedsynthError
from fedsynth.keys import Keys
from fedsynth.runs.job import Job
from fedsynth.runs.state import load_coordinator

SITES = ("north", "south", "east")
OTHER = Keys(b"o" * 32)


def run(*arguments: object, answers: str = "") -> tuple[int, str]:
    """Return exit code and output of a command whose questions get these answers."""
    done = invoke(arguments, answers)
    assert done.exit_code != 1, done.output
    return done.exit_code, done.output


def told(*arguments: object) -> dict[str, Any]:
    """Return what a command says as JSON."""
    code, output = run(*arguments, "--json")
    assert code == 0, output
    found: dict[str, Any] = json.loads(output)
    return found


@dataclass(frozen=True)
class Federation:
    """A federation on one machine: the coordinator's folder, the sites' folders, and the fingerprints told by phone."""

    place: Path
    terms: str

    @property
    def root(self) -> Path:
        """The coordinator's folder."""
        return self.place / "federation"

    def home(self, name: str) -> Path:
        """A site's folder."""
        return self.place / name

    def invitation(self, name: str) -> Path:
        """What the coordinator sends first."""
        return self.root / "invitations" / f"{name}.toml"

    def admission(self, name: str) -> Path:
        """What the coordinator sends when all are in."""
        return self.root / "admissions" / f"{name}.toml"

    def request(self, name: str) -> Path:
        """What a site sends."""
        return self.home(name) / f"{name}.request"

    def join(self, name: str) -> dict[str, Any]:
        """Let a site take its invitation."""
        return told("site", "join", self.invitation(name), self.home(name), "--fingerprint", self.terms)

    def admit(self, *names: str) -> dict[str, Any]:
        """Let the coordinator take the requests of these sites, which joined."""
        files = [self.request(name) for name in names]
        heard = [part for file in files for part in ("--fingerprint", load(file, JoinRequest).fingerprint)]
        return told("deploy", "admit", self.root, *files, *heard)


def found(place: Path) -> Federation:
    """Write a federation of three sites."""
    SCHEMA.save(place / "agreed.toml")
    terms = ("--method", "oneshot", "--epsilon", 1, "--delta", 1e-6, "--trust", "secure")
    agreed = ("--schema", place / "agreed.toml", "--sites", ",".join(SITES), "--superlink", "fed.example.org:443")
    return Federation(place, told("deploy", "init", place / "federation", *agreed, *terms)["fingerprint"])


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """Three sites that were enrolled by the commands, the fingerprints given as options."""
    federation = found(tmp_path_factory.mktemp("complete"))
    for name in SITES:
        federation.join(name)
    roster = federation.admit(*SITES)["roster"]
    for name in SITES:
        told("site", "join", federation.admission(name), federation.home(name), "--fingerprint", roster)
    signed = [federation.home(name) / f"{name}.signed" for name in SITES]
    assert told("deploy", "admit", federation.root, *signed)["lacking"] == []
    for name in SITES:
        again = told("site", "join", federation.admission(name), federation.home(name))  # the same: nothing to compare
        assert (again["roster"], again["lacking"]) == (roster, [])
    return federation


@pytest.fixture
def copy(complete: Federation, tmp_path: Path) -> Federation:
    """The same, to be spoiled."""
    shutil.copytree(complete.place, tmp_path / "copy")
    return Federation(tmp_path / "copy", complete.terms)


# ---------------------------------------------------------------------------------------------------------------------
# What is made


def test_people_are_asked_and_a_no_writes_nothing(tmp_path):
    federation = found(tmp_path)
    code, said = run("site", "join", federation.invitation("north"), federation.home("north"), answers="n\n")
    assert (code, "nothing was written" in said) == (8, True)
    assert not federation.home("north").exists()
    code, said = run("site", "join", federation.invitation("north"), federation.home("north"), answers="y\n")
    assert code == 0
    assert federation.terms in said
    assert "epsilon 1, delta 1e-06, trust secure" in said
    request = load(federation.request("north"), JoinRequest)
    assert request.fingerprint in said
    code, said = run("deploy", "admit", federation.root, federation.request("north"), answers="n\n")
    assert (code, "nothing was written" in said) == (8, True)
    assert Enrolment.load(federation.root).admitted == {}
    code, said = run("deploy", "admit", federation.root, federation.request("north"), answers="y\n")
    assert code == 0
    assert request.fingerprint in said
    assert "missing: south, east" in said
    assert not (federation.root / "admissions").exists()
    assert run("deploy", "admit", federation.root)[1] == "admitted: north; missing: south, east\n"
    code, _ = run("site", "join", federation.invitation("south"), federation.home("south"), "--json")
    assert code == 2  # --json asks nothing, and compares nothing
    wrong = " ".join(["00000"] * 6)
    code, said = run("site", "join", federation.invitation("south"), federation.home("south"), "--fingerprint", wrong)
    assert (code, federation.terms in said) == (8, True)
    assert not federation.home("south").exists()


def test_all_sites_have_one_roster_which_all_have_signed(complete):
    job = Job.load(complete.root / "job.toml")
    assert job.deployment is not None
    configs = [load_site_config(complete.home(name)) for name in SITES]
    for config in configs:
        assert {name: key.hex() for name, key in config.peers.items()} == job.deployment.peers
        assert config.roster is not None
        assert config.roster.unsigned == ()
        code, said = run("site", "check", config.folder)
        assert f"fingerprint {config.roster.roster.fingerprint}; signed by all" in said
        assert "failure  policy: no plan" in said
        assert code == 8
    register = told("deploy", "admit", complete.root)["register"]
    assert len(register) == 3
    assert register[0].startswith("flwr supernode register ")
    assert register[0].endswith("admitted/north.pub federation --name north")
    pub = (complete.root / "admitted" / "north.pub").read_text()
    assert pub == (complete.home("north") / "node-key.pub").read_text()


def test_a_check_says_whether_the_policy_refuses_the_run_of_the_invitation(copy):
    home = copy.home("north")
    run_named = load(home / "invitation.toml", Invitation).terms
    assert f"ok       intended run: the invitation names {run_named.method}" in run("site", "check", home)[1]
    text = (home / "site.toml").read_text()
    for entry, mine, says in (
        ("methods", '["mst"]', "methods are mst"),
        ("per_run", "{ epsilon = 0.01, delta = 1e-6 }", "per_run is epsilon 0.01 at delta 1e-06"),
        ("unit", "{ rows = 7, sites = 1 }", "unit is rows = 7, sites = 1"),
    ):
        lines = [line for line in text.splitlines() if not line.startswith(f"{entry} = ")]
        at = lines.index("[policy]")
        (home / "site.toml").write_text("\n".join([*lines[: at + 1], f"{entry} = {mine}", *lines[at + 1 :]]) + "\n")
        said = run("site", "check", home)[1]
        assert "warning  intended run" in said
        assert f"and [policy] refuses it: {says}" in said


def test_certificates_verify_and_say_who_may_do_what(complete):
    server = complete.root / "server"
    authority = x509.load_pem_x509_certificate((server / "ca.crt").read_bytes())
    store = x509.verification.Store([authority])
    builder = x509.verification.PolicyBuilder().store(store)
    made = {path.stem: x509.load_pem_x509_certificate(path.read_bytes()) for path in server.glob("*.pem")}
    for host in ("fed.example.org", "localhost"):
        assert builder.build_server_verifier(x509.DNSName(host)).verify(made["server"], [])
    for name in SITES:
        made[name] = x509.load_pem_x509_certificate((complete.home(name) / f"{name}.pem").read_bytes())
        assert builder.build_client_verifier().verify(made[name], [])
    roles = {name: one.subject.rfc4514_string() for name, one in made.items()}
    assert roles == {
        "server": "CN=server,OU=server",
        "admin": "CN=admin,OU=admin",
        **{name: f"CN={name},OU=site" for name in SITES},
    }
    assert f'"{roles["admin"]}" 1;' in (server / "nginx.conf").read_text()  # as nginx writes a subject, too
    now = datetime.datetime.now(datetime.UTC)
    for one in made.values():
        assert one.not_valid_before_utc < now
        assert (one.not_valid_after_utc - now).days in (DAYS - 1, DAYS)
        assert not one.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    uses = {
        name: len(one.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) for name, one in made.items()
    }
    assert uses == {"server": 1, "admin": 2, "north": 2, "south": 2, "east": 2}  # a server's is of no use to a client


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl verifies the certificates")
def test_openssl_accepts_the_certificates(complete):
    files = [complete.root / "server" / "server.pem", *(complete.home(name) / f"{name}.pem" for name in SITES)]
    command = [
        "openssl",
        "verify",
        "-x509_strict",
        "-CAfile",
        str(complete.root / "server" / "ca.crt"),
        *map(str, files),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.count(": OK") == 4, done.stderr


def test_a_server_without_a_name_gets_a_certificate_for_its_address(tmp_path):
    authority = Authority.create()
    server, _ = authority.issue_with_key("server", "server", "10.0.0.7")
    store = x509.verification.Store([authority.certificate])
    address = x509.IPAddress(ipaddress.ip_address("10.0.0.7"))
    verifier = x509.verification.PolicyBuilder().store(store).build_server_verifier(address)
    assert verifier.verify(x509.load_pem_x509_certificate(server.encode()), [])


def test_secrets_are_their_owners_alone_and_none_is_in_a_file_that_travels(complete):
    homes = [complete.home(name) for name in SITES]
    secret = [
        complete.root / "coordinator.key",
        complete.root / "authority" / "ca.key",
        *(complete.root / "server" / name for name in ("server.key", "admin.key", "superexec.secret")),
        *(home / name for home in homes for name in (f"{home.name}.key", "node-key", "roster.toml")),
    ]
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (complete.root, *homes)} == {0o700}
    at_server = [path for path in complete.root.rglob("*") if path.is_file()]
    private = [path.name for path in at_server if b"PRIVATE KEY" in path.read_bytes()]
    assert sorted(private) == ["admin.key", "ca.key", "server.key"]  # and no site's
    travels = [
        path for place in ("invitations", "admissions", "admitted") for path in (complete.root / place).iterdir()
    ]
    travels += [home / f"{home.name}.{kind}" for home in homes for kind in ("request", "signed")]
    hidden = [load_coordinator(complete.root).secret.hex().encode()]
    hidden += [site_secret(load_site_config(home)).hex().encode() for home in homes]
    hidden.append((complete.root / "server" / "superexec.secret").read_bytes())
    assert len(travels) == 3 + 3 + 9 + 6
    for path in travels:
        content = path.read_bytes()
        assert b"PRIVATE" not in content
        assert not [one for one in hidden if one in content], path


def test_joining_again_changes_no_key(copy):
    home = copy.home("north")
    keep = (
        "north.key",
        "node-key",
        "site.toml",
        "roster.toml",
        "north.pem",
        "state/account.sqlite",
    )
    (home / "site.toml").write_text((home / "site.toml").read_text() + "# edited\n")
    before = {name: (home / name).read_bytes() for name in keep}
    first = load(copy.request("north"), JoinRequest)
    again = told("site", "join", copy.invitation("north"), home)  # known: nothing to compare
    assert {name: (home / name).read_bytes() for name in keep} == before
    assert again["fingerprint"] == first.fingerprint
    (home / "state" / "account.sqlite").unlink()
    assert "restore it from the backup" in run("site", "join", copy.invitation("north"), home)[1]
    assert not (home / "state" / "account.sqlite").exists()


def test_a_certificate_is_renewed_for_the_same_key_without_a_question(copy):
    before = (copy.home("north") / "north.pem").read_bytes()
    told("site", "join", copy.invitation("north"), copy.home("north"))
    told("deploy", "admit", copy.root, copy.request("north"))  # known keys: nothing to compare
    done = told("site", "join", copy.admission("north"), copy.home("north"))
    assert done["lacking"] == []
    assert (copy.home("north") / "north.pem").read_bytes() != before


def test_another_folder_another_federation_or_an_open_one_is_refused(copy, tmp_path):
    other = found(tmp_path)
    says = run("site", "join", other.invitation("north"), copy.home("north"), "--fingerprint", other.terms)[1]
    assert "is the site north of the federation" in says
    says = run("site", "join", copy.invitation("south"), copy.home("north"), "--fingerprint", copy.terms)[1]
    assert "choose another folder" in says
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").write_text("x")
    says = run("site", "join", copy.invitation("south"), tmp_path / "full", "--fingerprint", copy.terms)[1]
    assert "is not empty" in says
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    says = run("site", "join", copy.invitation("south"), tmp_path / "open", "--fingerprint", copy.terms)[1]
    assert "chmod go-rwx" in says
    assert list((tmp_path / "open").iterdir()) == []


def test_a_site_joins_anew_with_the_account_that_it_has(copy, tmp_path):
    """What was spent on the rows is not forgotten where a federation is set up again; docs/deploy.md has the steps."""
    other = found(tmp_path)
    first = other.join("north")
    shutil.rmtree(other.home("north") / "state")
    shutil.move(copy.home("north") / "state", other.home("north"))
    again = other.join("north")
    assert again["identity_key"] == load(copy.request("north"), JoinRequest).identity != first["identity_key"]
    assert other.admit("north")["admitted"] == ["north"]


# ---------------------------------------------------------------------------------------------------------------------
# What is changed on its way


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change what a file says, as somebody who carries it could."""
    content = tomllib.loads(path.read_text())
    change(content)
    path.write_text(tomli_w.dumps(content))
    return path


def sent(copy: Federation, place: Path) -> Path:
    """Return north's invitation as it is on its way."""
    return Path(shutil.copy(copy.invitation("north"), place))


@pytest.mark.parametrize(
    "change",
    [
        {"superlink": "fed.example.com:443"},
        {"coordinator": OTHER.public.hex()},
        {"authority": Authority.create().text},
        {"trust": "trusted"},
        {"kinds": {"x": "os:path"}},
    ],
)
def test_an_invitation_that_was_changed_has_another_fingerprint(copy, tmp_path, change):
    path = changed(sent(copy, tmp_path), lambda content: content["terms"].update(change))
    code, says = run("site", "join", path, tmp_path / "new", "--fingerprint", copy.terms)
    assert (code, "may have changed the file" in says) == (8, True)
    assert not (tmp_path / "new").exists()
    other = load(path, Invitation).terms.fingerprint
    asked: tuple[object, ...] = (
        "site",
        "join",
        path,
        tmp_path / "new",
        "--fingerprint",
        other,
    )  # one who does not compare
    if "trust" in change:  # nor sees what the trust means
        code, says = run(*asked)
        assert (code, "--coordinator-sees-exact-counts" in says, (tmp_path / "new").exists()) == (2, True, False)
        asked = (*asked, "--coordinator-sees-exact-counts")
    joined = told(*asked)
    says = run("deploy", "admit", copy.root, joined["request"], "--fingerprint", joined["fingerprint"])[1]
    assert "terms that were changed on their way" in says


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"site": "../north"}, "is not a valid site name"),
        ({"site": "north\x1b[2K"}, "is not a valid site name"),
        ({"kind": "admission"}, "not an admission"),
        ({"kind": "letter"}, "neither an invitation nor an admission"),
        ({"kind": "request"}, "it is a request. A site's request to join. At the coordinator: fedsynth deploy admit"),
        ({"more": 1}, "unknown field"),
    ],
)
def test_a_file_that_is_none_is_refused(copy, tmp_path, change, says):
    path = changed(sent(copy, tmp_path), lambda content: content.update(change))
    code, said = run("site", "join", path, tmp_path / "new", "--fingerprint", copy.terms)
    assert (code, says in said) == (8, True), said
    assert not (tmp_path / "new").exists()


def test_terms_that_no_site_can_agree_to_make_no_folder(copy, tmp_path):
    wrong: dict[str, tuple[int, str, Any]] = {
        "no trust model named": (6, "trust", "nobody"),
        "positive": (2, "epsilon", -1.0),
        "TOML": (3, "schema", "x"),
        "certificate": (8, "authority", "x"),
    }
    for says, (wanted, entry, value) in wrong.items():
        content = tomllib.loads(copy.invitation("north").read_text())
        content["terms"][entry] = value
        path = tmp_path / "north.toml"
        path.write_text(tomli_w.dumps(content))
        code, said = run("site", "join", path, tmp_path / "new", answers="y\n")
        assert (code, says in said) == (wanted, True), said
        assert not (tmp_path / "new").exists()


def test_terms_cannot_write_on_the_terminal(copy, tmp_path):
    path = changed(sent(copy, tmp_path), lambda content: content["terms"].update(method="x\x1b[2K00000"))
    code, said = run("site", "join", path, tmp_path / "new")
    assert (code, "not an invitation" in said, "\x1b" in said) == (8, True, False)


@pytest.mark.parametrize("kind", ["3", "[]", "{ x = 1 }", '"None"', "2026-01-01"])
def test_a_file_of_an_odd_kind_is_refused(tmp_path, kind):
    path = tmp_path / "north.toml"
    path.write_text(f"kind = {kind}\n")
    code, said = run("site", "join", path, tmp_path / "new")
    assert (code, "is neither an invitation nor an admission" in said) == (8, True), said


def test_errors_cannot_write_on_the_terminal(tmp_path, capsys):
    path = tmp_path / "north.toml"
    path.write_text('kind = "invitation"\n"\\u001b[2K\\u202eEVIL" = 1\n')
    with pytest.raises(SystemExit):
        cli.main(["site", "join", str(path), str(tmp_path / "new")])
    said = capsys.readouterr().err
    assert "\\x1b[2K\\u202eEVIL" in said
    assert said.strip("\n").isprintable()


def test_a_certificate_is_installed_without_what_a_relay_put_beside_it(copy):
    file = copy.admission("north")
    clean = load(file, Admission)
    more = f"-----BEGIN TRUSTED CERTIFICATE-----\nMAA=\n-----END TRUSTED CERTIFICATE-----\n{clean.certificate}"
    file.write_text(to_text(msgspec.structs.replace(clean, certificate=more)))
    assert run("site", "join", file, copy.home("north"))[0] == 0
    assert (copy.home("north") / "north.pem").read_text() == clean.certificate


def test_a_wrong_folder_is_said_to_be_one(tmp_path):
    assert "give the folder that `fedsynth deploy init` wrote" in run("deploy", "admit", tmp_path)[1]


def resigned(request: JoinRequest, home: Path, **change: Any) -> JoinRequest:
    """Return a request with other entries, signed by the site that owns the folder."""
    return msgspec.structs.replace(request, **change).sign(site_secret(load_site_config(home)))


def test_requests_that_are_not_what_the_site_sent_are_refused(tmp_path):
    federation = found(tmp_path)
    for name in SITES:
        federation.join(name)
    federation.admit("south")
    north, south = (load(federation.request(name), JoinRequest) for name in ("north", "south"))
    home = federation.home("north")
    spoiled = north.csr.replace(north.csr.splitlines()[2][:8], "AAAAAAAA")
    wrong: dict[str, tuple[JoinRequest, str]] = {
        "another name": (msgspec.structs.replace(south, site="north"), "not signed by its own identity key"),
        "another identity": (msgspec.structs.replace(north, identity=south.identity), "not signed by its own identity"),
        "another TLS key": (msgspec.structs.replace(north, csr=south.csr), "not signed by its own identity key"),
        "an unsigned one": (msgspec.structs.replace(north, signature=""), "not signed by its own identity key"),
        "a name of nobody": (resigned(north, home, site="west"), "is not a site of this federation"),
        "a broken signing request": (resigned(north, home, csr=spoiled), "signing request of north"),
        "other terms": (resigned(north, home, terms="0" * 64), "another federation"),
        "another version": (resigned(north, home, fedsynth="9.9"), "install the same version"),
        "the node key of another": (resigned(north, home, node_key=south.node_key), "has a key of south"),
        "the node key of another, padded": (
            resigned(north, home, node_key=south.node_key + "="),
            "is not in fedsynth's format",
        ),
        "a node key that is none": (resigned(north, home, node_key="ecdsa-sha2-nistp384 AAAA"), "cannot be read"),
        "the TLS key of another": (resigned(north, home, csr=south.csr), "has a key of south"),
    }
    for what, (request, says) in wrong.items():
        file = tmp_path / "file.request"
        file.write_text(to_text(request))
        code, said = run("deploy", "admit", federation.root, file, answers="y\n" * 3)
        assert (code, says in said) == (8, True), (what, said)
        assert list(Enrolment.load(federation.root).admitted) == ["south"], what
    assert run("deploy", "admit", federation.root, federation.request("south"))[0] == 0  # once more is no fault


def test_the_name_in_a_signing_request_is_not_taken(tmp_path):
    """A site that asks for the administrator's certificate gets a site's."""
    federation = found(tmp_path)
    for name in SITES:
        federation.join(name)
    home = federation.home("north")
    request = load(federation.request("north"), JoinRequest)
    asked = x509.Name.from_rfc4514_string("CN=admin,OU=admin")
    builder = x509.CertificateSigningRequestBuilder().subject_name(asked)
    csr = builder.sign(load_private(home / "north.key"), hashes.SHA256()).public_bytes(Encoding.PEM).decode()
    federation.request("north").write_text(to_text(resigned(request, home, csr=csr)))
    federation.admit("north")
    made = x509.load_pem_x509_certificate((federation.root / "admitted" / "north.pem").read_bytes())
    assert made.subject.rfc4514_string() == "CN=north,OU=site"


def load_private(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return a private key."""
    key = load_pem_private_key(path.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def test_another_key_of_an_admitted_site_is_an_explicit_act_everywhere(copy):
    before = Enrolment.load(copy.root).roster
    shutil.rmtree(copy.home("south"))
    copy.join("south")
    request = load(copy.request("south"), JoinRequest)
    heard = ("--fingerprint", request.fingerprint)
    code, said = run("deploy", "admit", copy.root, copy.request("south"), *heard)
    assert (code, "changes who can read" in said) == (8, True)
    assert Enrolment.load(copy.root).roster == before
    assert run("deploy", "admit", copy.root, copy.request("south"), "--replace", answers="n\n")[0] == 8
    done = told("deploy", "admit", copy.root, copy.request("south"), "--replace", *heard)
    assert done["roster"] != before.fingerprint
    assert done["lacking"] == ["east", "north", "south"]  # nobody has signed this one
    assert done["unregister"] == ["south"]  # the lost machine's node would answer for it
    assert [command.rpartition(" ")[2] for command in done["register"]] == ["south"]
    peers = tomllib.loads((copy.root / "job.toml").read_text())["deployment"]["peers"]
    assert peers["south"] == request.identity
    old = (copy.home("north") / "roster.toml").read_bytes()
    code, said = run("site", "join", copy.admission("north"), copy.home("north"), "--fingerprint", done["roster"])
    assert (code, "south is with another key" in said) == (8, True)
    assert (copy.home("north") / "roster.toml").read_bytes() == old
    told("site", "join", copy.admission("north"), copy.home("north"), "--replace", "--fingerprint", done["roster"])
    north = load_site_config(copy.home("north"))
    assert north.peers["south"].hex() == request.identity
    says = run("site", "check", copy.home("north"))[1]
    assert "NOT signed by all: east, south" in says


def test_a_renewal_registers_no_node_anew_and_renews_what_the_server_has(copy, monkeypatch):
    """Those of the server and the administrator were made on the same day, and nobody had a command for them."""
    server = copy.root / "server"
    copy.join("north")
    done = told("deploy", "admit", copy.root, copy.request("north"))
    assert (done["register"], done["renewed"]) == ([], [])
    assert "The nodes stay registered" in run("deploy", "admit", copy.root, copy.request("north"))[1]
    authority = Authority.load(copy.root / AUTHORITY, server / "ca.crt")
    with monkeypatch.context() as short:
        short.setattr("fedsynth.deploy.certificates.DAYS", 30)
        for name, host in (("server", "fed.example.org"), ("admin", "")):
            ending, key = authority.issue_with_key(name, "server" if host else "admin", host)
            (server / f"{name}.pem").write_text(ending)
            (server / f"{name}.key").write_bytes(key)
    done = told("deploy", "admit", copy.root, copy.request("north"))
    assert done["renewed"] == [str(server / name) for name in ("server.pem", "admin.pem")]
    for name in ("server", "admin"):
        (made,) = x509.load_pem_x509_certificates((server / f"{name}.pem").read_bytes())
        assert made.public_key() == load_private(server / f"{name}.key").public_key()
        assert made.not_valid_after_utc - datetime.datetime.now(datetime.UTC) > datetime.timedelta(days=300)
        assert made.subject.rfc4514_string() == f"CN={name},OU={name}"


def forged(copy: Federation, name: str, **identities: str) -> Admission:
    """Return a site's admission with other identity keys in the roster, under the old signature."""
    found = load(copy.admission(name), Admission)
    roster = found.members.roster
    members = tuple(
        msgspec.structs.replace(one, identity=identities.get(one.name, one.identity)) for one in roster.members
    )
    changed = msgspec.structs.replace(roster, members=members)
    return msgspec.structs.replace(found, members=msgspec.structs.replace(found.members, roster=changed))


def by_coordinator(copy: Federation, admission: Admission, **change: Any) -> Admission:
    """Return an admission whose roster the coordinator itself signs anew."""
    roster = msgspec.structs.replace(admission.members.roster, **change)
    return msgspec.structs.replace(admission, members=roster.signed(load_coordinator(copy.root)))


FORGED: Mapping[str, tuple[Callable[[Federation], Admission], str]] = {
    "a relay swaps another site's key": (
        lambda copy: forged(copy, "north", south="ab" * 32),
        "not signed by the coordinator",
    ),
    "a relay swaps the site's own key": (
        lambda copy: forged(copy, "north", north="ab" * 32),
        "not signed by the coordinator",
    ),
    "the coordinator swaps the site's own key": (
        lambda copy: by_coordinator(copy, forged(copy, "north", north="ab" * 32)),
        "does not hold this site's own identity key",
    ),
    "another coordinator signs": (
        lambda copy: msgspec.structs.replace(
            load(copy.admission("north"), Admission),
            members=load(copy.admission("north"), Admission).members.roster.signed(OTHER),
        ),
        "not signed by the coordinator",
    ),
    "other terms": (
        lambda copy: by_coordinator(copy, load(copy.admission("north"), Admission), terms="0" * 64),
        "under other terms",
    ),
    "the site is left out": (
        lambda copy: by_coordinator(
            copy,
            load(copy.admission("north"), Admission),
            members=load(copy.admission("north"), Admission).members.roster.members[:1],
        ),
        "does not hold this site's own identity key",
    ),
    "another site's admission": (lambda copy: load(copy.admission("south"), Admission), "the admission is for south"),
    "another site's certificate": (
        lambda copy: msgspec.structs.replace(
            load(copy.admission("north"), Admission), certificate=load(copy.admission("south"), Admission).certificate
        ),
        "not for this site's TLS key",
    ),
    "a certificate by another authority": (
        lambda copy: certified(copy, Authority.create(), "north", "site"),
        "not by the authority of ca.crt",
    ),
    "a certificate of another role": (
        lambda copy: certified(copy, authority(copy), "north", "admin"),
        "CN=north,OU=admin",
    ),
    "a certificate for another name": (
        lambda copy: certified(copy, authority(copy), "south", "site"),
        "CN=south,OU=site",
    ),
    "a signature of another site": (
        lambda copy: accepted(copy, south="north"),
        "signature of 'south' is not by its key",
    ),
    "a signature of nobody": (lambda copy: accepted(copy, west="north"), "signature of 'west' is not by its key"),
}


def authority(copy: Federation) -> Authority:
    """Return the federation's own certificate authority."""
    return Authority.load(copy.root / "authority" / "ca.key", copy.root / "server" / "ca.crt")


def certified(copy: Federation, by: Authority, name: str, role: Any) -> Admission:
    """Return an admission with a certificate for the site's own key, by some authority."""
    key = load_private(copy.home("north") / "north.key").public_key()
    return msgspec.structs.replace(load(copy.admission("north"), Admission), certificate=by.issue(key, name, role))


def accepted(copy: Federation, **signers: str) -> Admission:
    """Return an admission whose roster has signatures under names of other sites."""
    found = load(copy.admission("north"), Admission)
    signed = {name: found.members.accepted[signer] for name, signer in signers.items()}
    members = msgspec.structs.replace(found.members, accepted={**found.members.accepted, **signed})
    return msgspec.structs.replace(found, members=members)


@pytest.mark.parametrize("what", FORGED)
def test_an_admission_that_is_not_right_is_refused_and_changes_nothing(copy, what):
    make, says = FORGED[what]
    file = copy.place / "file.toml"
    file.write_text(to_text(make(copy)))
    home = copy.home("north")
    before = {path.name: path.read_bytes() for path in home.iterdir() if path.is_file()}
    code, said = run("site", "join", file, home, "--replace", answers="y\n")
    assert (code, says in said) == (8, True), said
    assert {path.name: path.read_bytes() for path in home.iterdir() if path.is_file()} == before


def test_a_key_that_the_coordinator_swaps_shows_in_the_fingerprint_alone(copy):
    """What a coordinator can do, and what the phone call is for: the roster is rightly signed, and another one."""
    file = copy.place / "file.toml"
    file.write_text(to_text(by_coordinator(copy, forged(copy, "north", south="ab" * 32))))
    true = Enrolment.load(copy.root).roster.fingerprint
    code, said = run("site", "join", file, copy.home("north"), "--replace", "--fingerprint", true)
    assert (code, "may have changed the file" in said) == (8, True)
    code, said = run("site", "join", file, copy.home("north"))
    assert (code, "south is with another key" in said) == (8, True)


def test_a_site_whose_roster_was_changed_on_disk_does_not_answer(copy):
    file = copy.home("north") / "roster.toml"
    changed(file, lambda content: content["roster"]["members"][0].update(identity="ab" * 32))
    with pytest.raises(FedsynthError, match="not signed by the coordinator"):
        load_site_config(copy.home("north"))


def test_an_acceptance_of_another_roster_or_by_another_is_refused(copy):
    north = load(copy.home("north") / "north.signed", SignedRoster)
    home = copy.home("north")
    other = Roster("0" * 64, Enrolment.load(copy.root).roster.members)
    by_another = msgspec.structs.replace(north, roster=other, accepted={})
    signature = north.accepted["north"]
    wrong = {
        "north accepted another roster": by_another.accept("north", site_secret(load_site_config(home))),
        "signature of 'south' is not": msgspec.structs.replace(north, accepted={"south": signature}),
        "signature of 'west' is not": msgspec.structs.replace(north, accepted={"west": signature}),
    }
    for says, acceptance in wrong.items():
        file = copy.place / "file.signed"
        file.write_text(to_text(acceptance))
        code, said = run("deploy", "admit", copy.root, file)
        assert (code, says in said) == (8, True), said


def test_an_authority_kept_elsewhere_is_named(copy, tmp_path):
    shutil.move(copy.root / "authority" / "ca.key", tmp_path / "stick.key")
    assert "--ca-key" in run("deploy", "admit", copy.root, copy.request("north"))[1]
    told("deploy", "admit", copy.root, copy.request("north"), "--ca-key", tmp_path / "stick.key")
    told("deploy", "admit", copy.root)  # signs nothing, so needs none
    (tmp_path / "other.key").write_bytes(Authority.create().key)
    (tmp_path / "other.key").chmod(0o600)
    says = run("deploy", "admit", copy.root, copy.request("north"), "--ca-key", tmp_path / "other.key")[1]
    assert "is not the key of" in says
    (tmp_path / "stick.key").chmod(0o644)
    says = run("deploy", "admit", copy.root, copy.request("north"), "--ca-key", tmp_path / "stick.key")[1]
    assert "chmod" in says


def test_a_site_that_never_answers_is_taken_out_of_the_job(tmp_path):
    federation = found(tmp_path)
    for name in ("north", "south"):
        federation.join(name)
    assert federation.admit("north", "south")["missing"] == ["east"]
    job = federation.root / "job.toml"
    job.write_text(job.read_text().replace('    "east",\n', "") + "# a comment\n")
    done = told("deploy", "admit", federation.root)
    assert (done["missing"], len(done["admissions"])) == ([], 2)
    assert "# a comment" in job.read_text()
    assert set(tomllib.loads(job.read_text())["deployment"]["peers"]) == {"north", "south"}


def test_a_roster_has_different_names_in_order_and_different_keys():
    keys = ["ecdsa-sha2-nistp384 AAAA", "ecdsa-sha2-nistp384 BBBB"]
    a, b = (Member(name, key * 32, node) for name, key, node in zip("ab", ("aa", "bb"), keys, strict=True))
    Roster("0" * 64, (a, b))
    for wrong in ((b, a), (a, a), (), (a, msgspec.structs.replace(b, identity=a.identity)),
                  (a, msgspec.structs.replace(b, node_key=a.node_key))):  # fmt: skip
        with pytest.raises(FedsynthError):
            Roster("0" * 64, wrong)


def test_fingerprints_are_of_purpose_and_content():
    found = fingerprint("roster", b"x")
    assert found == fingerprint("roster", b"x")
    assert len(found.split()) == 6
    assert all(len(group) == 5 and group.isdigit() for group in found.split())
    assert found not in (fingerprint("terms", b"x"), fingerprint("roster", b"y"))


def test_the_commands_end_in_one_sentence(complete):
    done = fedsynth("site", "join", complete.invitation("north"), complete.home("south"))
    assert done.returncode == 8
    assert len(done.stderr.splitlines()) == 1
