"""A site's file, its state on disk, and what `fedsynth deploy init`, `site init` and `site check` say about them."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.contract.world import SCHEMA, random_table

from fedsynth.deploy import site_config, site_rows
from fedsynth.deploy.deploying import DeployedJob
from fedsynth.deploy.site_config import create_state, load_site_config, open_site, site_secret
from fedsynth.deploy.site_rows import load_rows
from fedsynth.errors import FedsynthError, InvalidParameter, SchemaError, Unsupported
from fedsynth.federation.site import Site
from fedsynth.federation.trust.masking import identity
from fedsynth.federation.wire import Request
from fedsynth.privacy.ledger import SiteLedger
from fedsynth.privacy.release import Budget, Gaussian
from fedsynth.schema import Schema

TEMPLATES = Path(site_config.__file__).parent / "templates"
CONTENT: dict[str, dict[str, Any]] = {
    "site": {"name": "north"},
    "source": {"data": "rows.csv", "schema": "schema.toml"},
    "policy": {"budget": {"epsilon": 1, "delta": 1e-6}, "trusts": {"local": {}}},
    "flower": {"superlink": "127.0.0.1:9"},
}


def write(home: Path, **sections: dict[str, Any]) -> Path:
    """Write a complete site whose file has the given sections in place of the usual ones."""
    home.mkdir(exist_ok=True)
    SCHEMA.save(home / "schema.toml")
    rows(home, 50)
    (home / "site.toml").write_text(tomli_w.dumps({**CONTENT, **sections}))
    return home


def opened(config: site_config.SiteConfig) -> Site:
    """Return the site of a file source, which needs nothing to stay open."""
    with open_site(config) as site:
        return site


def rows(home: Path, count: int, seed: int = 0) -> None:
    SCHEMA.decode(random_table(count, seed), np.random.default_rng(0)).to_csv(home / "rows.csv", index=False)


def certificate(path: Path, days: int, begins: int = -1) -> None:
    """Write a certificate that is valid for some days."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ca")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now + datetime.timedelta(days=min(begins, days - 1)))
        .not_valid_after(now + datetime.timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))


def fedsynth(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from fedsynth.deploy.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


# ---------------------------------------------------------------------------------------------------------------------
# site.toml


def test_a_file_says_what_a_site_is(tmp_path):
    policy = {
        "budget": {"epsilon": 3.0, "delta": 1e-6},
        "per_run": {"epsilon": 1, "delta": 1e-7},
        "trusts": {"local": {}, "trusted": {}},
        "size_is_public": True,
    }
    config = load_site_config(write(tmp_path / "site", policy=policy, peers={"south": "ab" * 32}))
    assert (config.name, config.superlink) == ("north", "127.0.0.1:9")
    assert config.data == tmp_path / "site" / "rows.csv"
    assert config.state == tmp_path / "site" / "state"
    assert config.policy.budget == Budget(3.0, 1e-6)
    assert config.policy.per_run == Budget(1.0, 1e-7)
    assert set(config.policy.trusts) == {"local", "trusted"}
    assert config.policy.size_is_public
    assert not config.policy.exact
    assert config.peers == {"south": bytes.fromhex("ab" * 32)}
    assert load_site_config(tmp_path / "site" / "site.toml") == config


@pytest.mark.parametrize(
    ("section", "content", "error", "says"),
    [
        ("sight", {}, FedsynthError, r"unknown entries \['sight'\]; known are \['flower', 'peers', 'policy'"),
        ("site", {"name": "north", "nane": "x"}, FedsynthError, r"unknown entries \['nane'\]; known are \['name'"),
        ("site", {}, FedsynthError, r"\[site\] lacks \['name'\]"),
        ("site", {"name": 7}, FedsynthError, "text in quotes"),
        ("site", {"name": "no/rth"}, FedsynthError, "no site's name"),
        ("site", {"name": "admin"}, InvalidParameter, r"site.toml: \[site\] name: 'admin' is no site's name"),
        ("site", {"name": "north\n"}, InvalidParameter, "no site's name"),
        ("flower", {"superlink": "x; } evil { :443"}, InvalidParameter, r"\[flower\] superlink: .* is no HOST:PORT"),
        ("flower", {"superlink": "fed.example.org"}, InvalidParameter, "HOST:PORT"),
        ("peers", {"ca": "ab" * 32}, InvalidParameter, r"\[peers\]: 'ca' is no site's name"),
        ("peers", {"../x": "ab" * 32}, InvalidParameter, "no site's name"),
        ("source", {"data": "rows.csv"}, FedsynthError, r"lacks \['schema'\]"),
        ("source", {"data": "mysql://h/d", "schema": "s"}, Unsupported, "no source of rows"),
        ("source", {"data": "postgresql://u:pass@h/d?table=t", "schema": "s"}, FedsynthError, "password"),
        ("policy", {"budget": {"epsilon": 1.0, "delta": 1e-6}}, InvalidParameter, "trusts"),
        ("policy", {**CONTENT["policy"], "exact": True}, InvalidParameter, "exact"),
        ("policy", {**CONTENT["policy"], "trusts": {"nobody": {}}}, Unsupported, "nobody"),
        ("policy", {**CONTENT["policy"], "trusts": {"trusted": {"confidential": False}}}, InvalidParameter, "confid"),
        ("policy", {**CONTENT["policy"], "budget": {"epsilon": -1.0, "delta": 1e-6}}, InvalidParameter, "positive"),
        ("peers", {"south": "no hex"}, FedsynthError, "hexadecimal"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path, section, content, error, says):
    home = write(tmp_path / "site", **{section: content})
    with pytest.raises(error, match=says) as raised:
        load_site_config(home)
    assert "pass@" not in str(raised.value)


def test_no_file_and_no_toml(tmp_path):
    with pytest.raises(FedsynthError, match="deploy init"):
        load_site_config(tmp_path)
    (tmp_path / "site.toml").write_text("name = ")
    with pytest.raises(FedsynthError, match="not TOML"):
        load_site_config(tmp_path)


# ---------------------------------------------------------------------------------------------------------------------
# State


def test_state_is_created_once_and_is_the_owners_alone(tmp_path):
    config = load_site_config(write(tmp_path / "site"))
    previous = os.umask(0)
    try:
        assert create_state(config)
        opened(config)
    finally:
        os.umask(previous)
    secret = site_secret(config)
    assert len(secret) == 32
    modes = {path.name: path.stat().st_mode & 0o777 for path in config.state.iterdir()}
    assert modes == {"ledger.sqlite": 0o600, "table.fedsynth": 0o600}
    assert config.state.stat().st_mode & 0o777 == 0o700
    assert not create_state(config)
    assert site_secret(config) == secret
    other = load_site_config(write(tmp_path / "other"))
    create_state(other)
    assert site_secret(other) != secret


def test_a_ledger_that_is_gone_or_open_to_others_or_not_ours_is_an_error(tmp_path):
    config = load_site_config(write(tmp_path / "site"))
    with pytest.raises(FedsynthError, match="restore it from the backup"):
        opened(config)
    assert not config.ledger.exists()
    create_state(config)
    config.ledger.chmod(0o640)
    with pytest.raises(FedsynthError, match="chmod"):
        opened(config)
    config.ledger.unlink()
    SiteLedger(config.ledger)
    config.ledger.chmod(0o600)
    for _ in range(2):  # and stays one: no secret is made up on the way
        with pytest.raises(FedsynthError, match="holds no secret"):
            opened(config)


def test_spending_outlives_the_process_and_the_same_question_is_free(tmp_path):
    config = load_site_config(write(tmp_path / "site"))
    create_state(config)
    ask = Request("run", 0, "sum", "size", Gaussian(0.001), "local", SCHEMA.digest)
    first, second = (opened(config).answer(ask) for _ in range(2))
    assert first.values is not None
    assert second.values is not None
    assert first.values.tolist() == second.values.tolist()
    assert SiteLedger(config.ledger).spent() == pytest.approx(0.001)


def test_a_roster_with_another_key_of_this_very_site_is_refused(tmp_path):
    config = load_site_config(write(tmp_path / "site"))
    create_state(config)
    own = identity(site_secret(config)).hex()
    opened(load_site_config(write(tmp_path / "site", peers={"north": own, "south": "ab" * 32})))
    with pytest.raises(FedsynthError, match="not this site's own"):
        opened(load_site_config(write(tmp_path / "site", peers={"north": "ab" * 32})))


# ---------------------------------------------------------------------------------------------------------------------
# The encoded copy of the rows


def test_rows_are_read_again_exactly_when_they_changed(tmp_path, monkeypatch):
    home = write(tmp_path / "site")
    config = load_site_config(home)
    create_state(config)
    reads = []
    read = site_rows._read

    def counted(*of: Any) -> Any:
        reads.append(of)
        return read(*of)

    monkeypatch.setattr(site_rows, "_read", counted)
    first = load_rows(config, SCHEMA)
    assert first.digest == random_table(50, 0).digest
    load_rows(config, SCHEMA)  # young: known by its content
    os.utime(home / "rows.csv", ns=(1, 1))
    load_rows(config, SCHEMA)  # touched: likewise
    assert len(reads) == 1
    rows(home, 50, seed=1)
    os.utime(home / "rows.csv", ns=(1, 1))  # same size and time, other rows
    assert load_rows(config, SCHEMA).digest == random_table(50, 1).digest
    assert len(reads) == 2
    config.cache.write_bytes(b"damaged")
    assert load_rows(config, SCHEMA).digest == random_table(50, 1).digest
    other = Schema(SCHEMA.columns, missing_values=("-",))
    assert load_rows(config, other).schema.digest == other.digest
    assert len(reads) == 4


def test_a_file_at_rest_is_not_even_hashed(tmp_path, monkeypatch):
    config = load_site_config(write(tmp_path / "site"))
    create_state(config)
    monkeypatch.setattr(site_rows, "_REST", 10**7)
    time.sleep(0.05)
    expected = load_rows(config, SCHEMA).digest
    monkeypatch.setattr("hashlib.file_digest", lambda *_: pytest.fail("hashed"))
    assert load_rows(config, SCHEMA).digest == expected


def test_numbers_survive_the_copy(tmp_path):
    from fedsynth.schema import Categorical, Numeric

    schema = Schema((Categorical("a", ("x", "y")), Numeric("b", 0, 10, bins=4, missing=True)))
    config = load_site_config(write(tmp_path / "site"))
    create_state(config)
    (config.folder / "rows.csv").write_text("a,b\nx,1.25\ny,\nx,9\n")
    first, second = (load_rows(config, schema) for _ in range(2))
    assert first.digest == second.digest
    np.testing.assert_array_equal(second.numbers[1], [1.25, np.nan, 9.0])


def test_rows_that_do_not_fit_or_are_not_there(tmp_path):
    home = write(tmp_path / "site")
    config = load_site_config(home)
    create_state(config)
    (home / "rows.csv").write_text("c0,c1,c2,c3\nv0,v0,v0,zzz\nv0,v0,v0,v0\n")
    read, copy = load_rows(config, SCHEMA), load_rows(config, SCHEMA)
    assert (len(copy), copy.left_out, copy.digest) == (1, 1, read.digest)
    config.cache.unlink()
    (home / "rows.csv").write_text("c0,c1,c2\nv0,v0,v0\n")
    with pytest.raises(SchemaError, match="c3"):
        load_rows(config, SCHEMA)
    assert not config.cache.exists()
    (home / "rows.csv").unlink()
    with pytest.raises(FedsynthError, match="is not there"):
        load_rows(config, SCHEMA)


def test_a_file_that_is_being_written_is_not_taken(tmp_path, monkeypatch):
    home = write(tmp_path / "site")
    config = load_site_config(home)
    create_state(config)
    read = site_rows._read

    def slowly(*of: Any) -> Any:
        table = read(*of)
        with (home / "rows.csv").open("a") as file:
            file.write("v0,v0,v0,v0\n")
        return table

    monkeypatch.setattr(site_rows, "_read", slowly)
    with pytest.raises(FedsynthError, match="changed while it was read"):
        load_rows(config, SCHEMA)


# ---------------------------------------------------------------------------------------------------------------------
# Commands


def check(home: Path) -> tuple[int, dict[str, Any]]:
    done = fedsynth("site", "check", home, "--json")
    found = json.loads(done.stdout)
    return done.returncode, {one["what"]: (one["code"], one["says"]) for one in found["findings"]}


def test_a_site_from_nothing_to_ready_and_what_is_wrong_on_the_way(tmp_path):
    SCHEMA.save(tmp_path / "agreed.toml")
    budget = ("--epsilon", "1", "--delta", "1e-6")
    folder = tmp_path / "federation"
    done = fedsynth("deploy", "init", folder, "--schema", tmp_path / "agreed.toml", "--sites", "north,south", *budget)
    assert done.returncode == 0, done.stderr
    job = DeployedJob.load(folder / "job.toml")
    assert (job.sites, job.method, job.trust, job.epsilon) == (("north", "south"), "oneshot", "local", 1.0)
    app = tomllib.loads((folder / "app" / "pyproject.toml").read_text())
    assert app["project"]["dependencies"] == []
    assert app["tool"]["flwr"]["app"]["config"]["job"] == str(folder / "job.toml")
    assert {path.name for path in (folder / "app").iterdir()} == {"pyproject.toml"}  # all that travels to the sites
    written = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in written if re.search("@[A-Z]+@", path.read_text())]

    home = folder / "sites" / "north"
    code, found = check(home)
    assert code == 8
    assert {what for what, (wrong, _) in found.items() if wrong} == {"rows", "ledger", "certificate", "node key"}
    rows(home, 50)
    certificate(home / "ca.crt", days=100)
    first, second = (fedsynth("site", "init", home, "--json") for _ in range(2))
    assert first.returncode == 0, first.stderr
    told, again = json.loads(first.stdout), json.loads(second.stdout)
    assert (told.pop("created"), again.pop("created")) == (True, False)
    assert told == again
    assert told["schema_digest"] == SCHEMA.digest
    assert told["identity_key"] == identity(site_secret(load_site_config(home))).hex()
    assert (home / "node-key.pub").read_text() == told["node_public_key"] + "\n"
    assert (home / "node-key").stat().st_mode & 0o777 == 0o600
    code, found = check(home)
    assert (code, found["ledger"][1][:19]) == (0, "spent epsilon = 0 o"), found
    assert "is ready" in fedsynth("site", "check", home).stdout
    assert fedsynth("deploy", "init", folder, "--schema", "x", "--sites", "a", *budget).returncode == 8


def init(folder: Path, agreed: Path, *options: str) -> subprocess.CompletedProcess[str]:
    given = ("--schema", agreed, "--epsilon", "1", "--delta", "1e-6", *options)
    return fedsynth("deploy", "init", folder, *given)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--sites", "north", "--superlink", "x; } evil { :443"), "no HOST:PORT"),
        (("--sites", "north", "--superlink", "fed.example.org:443;"), "no HOST:PORT"),
        (("--sites", "north", "--superlink", "fed.example.org:0"), "no HOST:PORT"),
        (("--sites", "north", "--superlink", "fed.example\norg:443"), "no HOST:PORT"),
        (("--sites", "north", "--superlink", "[::1]:443"), "host name"),
        (("--sites", "north,admin"), "'admin' is no site's name"),
        (("--sites", "ca,north"), "'ca' is no site's name"),
        (("--sites", "north,../x"), "'../x' is no site's name"),
        (("--sites", "north,a\nb"), "'a\\nb' is no site's name"),
        (("--sites", "north\n"), "'north\\n' is no site's name"),
        (("--sites", "north,$(id)"), "no site's name"),
        (("--sites", "north", "--trust", 'local"]'), "trust"),
    ],
)
def test_what_would_reach_into_a_file_is_refused_and_nothing_is_written(tmp_path, options, says):
    SCHEMA.save(tmp_path / "agreed.toml")
    done = init(tmp_path / "new" / "federation", tmp_path / "agreed.toml", *options)
    assert done.returncode in (2, 6), done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["agreed.toml"]


def test_a_federation_is_its_owners_alone_and_written_in_each_files_own_language(tmp_path):
    SCHEMA.save(tmp_path / "agreed.toml")
    folder = tmp_path / 'a "quoted\\" folder\n[x]'
    previous = os.umask(0)
    try:
        done = init(folder, tmp_path / "agreed.toml", "--sites", "north,south", "--superlink", "10.0.0.7:444")
    finally:
        os.umask(previous)
    assert done.returncode == 0, done.stderr
    assert "sh certificates.sh 10.0.0.7 north south" in done.stdout
    private = [folder, folder / "server", folder / "sites" / "north", *(one for one in folder.rglob("*.*"))]
    assert {path.stat().st_mode & 0o077 for path in private} == {0}
    app = tomllib.loads((folder / "app" / "pyproject.toml").read_text())
    assert app["tool"]["flwr"]["app"]["config"] == {"job": str(folder / "job.toml")}
    connection = tomllib.loads((folder / "server" / "config.toml").read_text())["superlink"]["federation"]
    assert connection["root-certificates"] == str(folder / "server" / "ca.crt")
    site = tomllib.loads((folder / "sites" / "north" / "site.toml").read_text())
    assert site["policy"]["budget"] == {"epsilon": 1.0, "delta": 1e-6}
    assert site["policy"]["trusts"] == {"local": {}}
    assert load_site_config(folder / "sites" / "south").superlink == "10.0.0.7:444"
    assert "listen 444 ssl;" in (folder / "server" / "nginx.conf").read_text()
    forwarder = (folder / "sites" / "north" / "nginx.conf").read_text()
    assert "proxy_pass https://10.0.0.7:444;" in forwarder
    assert "ssl_certificate_key north.key;" in forwarder


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    home = write(tmp_path / "site")
    certificate(home / "ca.crt", days=100)
    assert fedsynth("site", "init", home).returncode == 0
    return home


def test_check_names_each_fault_with_its_mend_and_code(ready):
    assert check(ready)[0] == 0

    def finds(what: str, code: int, says: str) -> None:
        exit_code, found = check(ready)
        assert exit_code == code
        assert found[what][0] == code
        assert says in found[what][1]

    certificate(ready / "ca.crt", -1)
    finds("certificate", 8, "ended on")
    certificate(ready / "ca.crt", 9, begins=5)
    finds("certificate", 8, "clock")
    (ready / "ca.crt").write_text("no certificate")
    finds("certificate", 8, "no PEM")
    certificate(ready / "ca.crt", days=9)
    assert "SOON" in check(ready)[1]["certificate"][1]

    (ready / "node-key").chmod(0o644)
    finds("node key", 8, "chmod 600")
    (ready / "node-key").chmod(0o600)
    key = (ready / "node-key").read_bytes()
    (ready / "node-key").write_text("no key")
    finds("node key", 8, "no key that Flower takes")
    (ready / "node-key").write_bytes(key)

    (ready / "rows.csv").write_text("c0,c1,c2,c3\nv0,v0,v0,zzz\n")
    finds("rows", 3, "zzz")
    rows(ready, 50)

    config = load_site_config(ready)
    rho = config.policy.budget.rho
    SiteLedger(config.ledger).charge("question", "run", "size", Gaussian(rho), rho, rho)
    finds("ledger", 4, "nothing is left")
    assert "spent epsilon = 1 of 1" in check(ready)[1]["ledger"][1]


def test_check_warns_of_a_delta_that_promises_nothing(ready):
    content = {**CONTENT, "policy": {"budget": {"epsilon": 1.0, "delta": 0.1}, "trusts": {"local": {}}}}
    (ready / "site.toml").write_text(tomli_w.dumps(content))
    code, found = check(ready)
    assert code == 8
    assert "one over the 50 rows" in found["rows"][1]


def test_check_sends_and_charges_nothing(ready):
    before = SiteLedger(load_site_config(ready).ledger).charges()
    check(ready)
    assert SiteLedger(load_site_config(ready).ledger).charges() == before == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sites": ["a", "a"]}, "once"),
        ({"sites": ["server"]}, "server"),
        ({"sites": ["admin", "b"]}, "role or a file"),
        ({"sites": ["a", "../b"]}, "no site's name"),
        ({"sites": ["a", 7]}, "no site's name"),
        ({"peers": {"a\nb": "ab" * 32}}, "no site's name"),
        ({"run": "a/b"}, "names no run"),
        ({"min_sites": 3}, "min_sites"),
        ({"deadline": 0}, "deadline"),
        ({"format": "xls"}, "csv or parquet"),
        ({"epsilonn": 1}, "unknown entries"),
        ({"method": None}, "lacks"),
        ({"sites": "north"}, "list"),
    ],
)
def test_a_job_that_cannot_be_is_refused(tmp_path, change, says):
    job = {"run": "r", "method": "oneshot", "epsilon": 1.0, "delta": 1e-6, "trust": "local", "sites": ["a", "b"]}
    content = {name: value for name, value in {**job, **change}.items() if value is not None}
    (tmp_path / "job.toml").write_text(tomli_w.dumps(content))
    with pytest.raises(FedsynthError, match=says):
        DeployedJob.load(tmp_path / "job.toml")


def test_a_job_builds_its_method_and_trust(tmp_path):
    job = DeployedJob("r", "augflaim", 1.0, 1e-6, "local", ("a",), workload="2:3", options={"rounds": 4})
    method: Any = job.build(SCHEMA)
    assert (method.rounds, len(method.workload)) == (4, 3)
    assert job.build_trust().name == "local"
    (tmp_path / "job.toml").write_text(job.to_toml())
    assert DeployedJob.load(tmp_path / "job.toml") == job
    with pytest.raises(Unsupported, match="workload"):
        DeployedJob("r", "oneshot", 1.0, 1e-6, "local", ("a",), workload="2:3").build(SCHEMA)


def certificates(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", str(TEMPLATES / "certificates.sh"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_the_script_makes_certificates_that_verify(tmp_path):
    """The script makes a CA, and certificates that Python's own strict verification accepts for the names asked for."""
    done = certificates(tmp_path, "fed.example.org", "north")
    assert done.returncode == 0, done.stderr
    authority = x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    store = x509.verification.Store([authority])
    server = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    for host in ("fed.example.org", "localhost"):
        verifier = x509.verification.PolicyBuilder().store(store).build_server_verifier(x509.DNSName(host))
        assert verifier.verify(server, [])
    north = x509.load_pem_x509_certificate((tmp_path / "north.pem").read_bytes())
    assert x509.verification.PolicyBuilder().store(store).build_client_verifier().verify(north, [])
    for secret in tmp_path.glob("*.key"):
        assert secret.stat().st_mode & 0o777 == 0o600
    issued = {path.stem: x509.load_pem_x509_certificate(path.read_bytes()) for path in tmp_path.glob("*.pem")}
    roles = {name: one.subject.rfc4514_string() for name, one in issued.items()}
    assert roles == {"server": "CN=server,OU=server", "north": "CN=north,OU=site", "admin": "CN=admin,OU=admin"}
    assert f'"{roles["admin"]}" 1;' in (TEMPLATES / "nginx.conf").read_text()  # as nginx writes a subject, too


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_a_server_without_a_name_gets_a_certificate_for_its_address(tmp_path):
    assert certificates(tmp_path, "10.0.0.7", "north").returncode == 0
    store = x509.verification.Store([x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())])
    server = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    address = x509.IPAddress(ipaddress.ip_address("10.0.0.7"))
    assert x509.verification.PolicyBuilder().store(store).build_server_verifier(address).verify(server, [])


@pytest.mark.parametrize(
    "arguments",
    [
        ("fed.example.org",),
        ("fed.example.org", "north", "admin"),
        ("fed.example.org", "ca"),
        ("fed.example.org", "server"),
        ("fed.example.org", "../x"),
        ("fed.example.org", "north/OU=admin"),
        ("fed.example.org", "north\n"),
        ("fed.example.org", "a\nb"),
        ("fed.example.org", ""),
        ("fed.example.org", "North"),
        ("fed.example.org", "-x"),
        ("fed.example.org", "n" * 32),
        ("x,DNS:other", "north"),
        ("x\nextendedKeyUsage=clientAuth", "north"),
    ],
)
def test_the_script_makes_nothing_for_names_that_reach_further(tmp_path, arguments):
    done = certificates(tmp_path, *arguments)
    assert done.returncode == 2
    assert "nothing was made" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_site_that_accepts_secure_sums_needs_the_others_keys(tmp_path):
    policy = {"budget": {"epsilon": 1, "delta": 1e-6}, "trusts": {"secure": {}}}
    config = load_site_config(write(tmp_path / "alone", policy=policy))
    create_state(config)
    found = {one.what: one for one in site_config.inspect_site(config)}
    assert found["policy"].code
    assert "[peers]" in found["policy"].says
    peers = {name: identity(name.encode() * 32).hex() for name in ("south", "east")}
    config = load_site_config(write(tmp_path / "three", policy=policy, peers=peers))
    create_state(config)
    found = {one.what: one for one in site_config.inspect_site(config)}
    assert not found["policy"].code
    assert "at least 2 of the 3 sites are honest" in found["policy"].says
