"""``fedsynth plan`` and ``site check`` as their users meet them: real files, sockets and certificates."""

from __future__ import annotations

import datetime
import importlib.metadata
import ipaddress
import json
import os
import re
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests import command
from tests.contract.world import SCHEMA

from fedsynth.cli.plan import _plan_text
from fedsynth.deploy.host import checks as doctor
from fedsynth.deploy.host.checks import PreflightCheck
from fedsynth.errors import InvalidParameter
from fedsynth.federation.agreement import Agreement, PlannedQuestion
from fedsynth.federation.names import parse_address
from fedsynth.federation.policy_file import policy_from_toml
from fedsynth.keys import PUBLIC_BYTES
from fedsynth.privacy.cost import Budget, Unit

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
TLS_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "SSLKEYLOGFILE")


def fedsynth(*arguments: object) -> subprocess.CompletedProcess[str]:
    unset = {*TLS_VARIABLES, *PROXIES, *(name.upper() for name in PROXIES)}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"OMP_NUM_THREADS": "1", "COLUMNS": ""}
    return command.fedsynth(*arguments, environment=environment)


def answer(*arguments: object, code: int = 0) -> Any:
    done = fedsynth(*arguments, "--json")
    assert done.returncode == code, done.stderr + done.stdout
    return json.loads(done.stdout)


# ---------------------------------------------------------------------------------------------------------------------
# fedsynth plan


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("schema") / "agreed.toml"
    SCHEMA.save(path)
    return path


def asked(schema: Path, **changes: str) -> list[str]:
    options = {"rows": "600", "sites": "3", "epsilon": "1", "delta": "1e-6", **changes}
    return [
        "plan",
        "--schema",
        str(schema),
        *(part for name, value in options.items() for part in (f"--{name}", value)),
    ]


def test_a_plan_is_made_read_approved_and_kept_to(schema, tmp_path):
    out = tmp_path / "plan.toml"
    made = answer(*asked(schema, method="oneshot", trust="secure"), "--trust-set", "min_honest=2", "--out", out)
    (told,) = made["forecasts"]
    plan = Agreement.load(out)
    assert told["plan_digest"] == plan.digest
    assert told["plan"] == msgspec.json.decode(msgspec.json.encode(plan))
    assert (plan.method, plan.sites, plan.trust, plan.trust_options) == ("oneshot", 3, "secure", {"min_honest": 2})
    assert plan.schema == SCHEMA.digest
    assert told["exchanges"]["typical"] == 5  # one sum of five turns
    assert told["epsilon"]["typical"] == pytest.approx(1.0)
    (noise,) = told["noise"]
    assert (noise["verb"], noise["kind"], noise["times"], noise["cells"]) == ("sum", "counts", 1, 14 + 71)

    shown = fedsynth("plan", "--show", out)
    assert f"plan {plan.digest}" in shown.stdout
    assert "1 x sum counts (gaussian)" in shown.stdout
    assert shown.stdout.count(" in all\n") == 1
    assert "together rho 0.02436, 100.0% of the budget" in shown.stdout
    assert answer("plan", "--show", out)["digest"] == plan.digest
    policy = policy_from_toml(
        {
            "budget": {"epsilon": 1.0, "delta": 1e-6},
            "trusts": {"secure": {"min_honest": 2}},
            "plans": {plan.digest: "plan.toml"},
        },
        tmp_path,
    )
    assert policy.plans[plan.digest] == plan
    again = fedsynth(*asked(schema, method="oneshot"), "--out", out)
    assert (again.returncode, "may have been approved" in again.stderr) == (8, True)


def planned(*slots: tuple[float, int]) -> str:
    """Return the text of a plan with questions of these prices, as parts of the budget, and numbers."""
    budget = Budget(1.0, 1e-6)
    made = tuple(
        PlannedQuestion("each", f"size-{at}", "gaussian", share * budget.rho, times)
        for at, (share, times) in enumerate(slots)
    )
    return _plan_text(Agreement("", "local", {}, 3, False, budget, Unit(), "mine", {}, "", made))


def test_the_prices_of_a_plan_add_up_to_what_it_costs():
    """Shares of the budget were printed for each question, 170 % under one epsilon where prices have headroom."""
    text = planned((0.3, 2), (0.4, 1))
    parts = [float(one) for one in re.findall(r"([\d.]+) in all", text)]
    (total,) = re.findall(r"^together rho ([\d.]+), 100\.0% of the budget$", text, re.M)
    assert sum(parts) == pytest.approx(float(total), rel=1e-3)
    assert text.count("%") == 1
    assert "together rho 0.007307, 30.0% of the budget" in planned((0.3, 1))
    loose = planned((0.85, 1), (0.425, 2))
    assert "%" not in loose
    assert re.search(r"not spent together: they add up to rho 0\.04141, and each site ends a run at 0\.02436$", loose)


def test_a_plan_says_what_exact_accounting_gives(schema, tmp_path):
    cases = asked(schema, method="oneshot", trust="local")
    (told,) = answer(*cases, "--repeats", 1)["forecasts"]
    assert told["plan"]["budget"]["epsilon"] == 1.0
    assert told["guarantee"] == {"epsilon": pytest.approx(0.935, abs=0.002), "delta": 1e-6}
    out = tmp_path / "plan.toml"
    assert fedsynth(*cases, "--repeats", 1, "--out", out).returncode == 0
    shown = fedsynth("plan", "--show", out).stdout
    assert "exact accounting gives epsilon = 0.93" in shown
    (secure,) = answer(*asked(schema, method="oneshot", trust="secure"), "--repeats", 1)["forecasts"]
    assert secure["guarantee"]["epsilon"] == 1.0


def test_a_plan_is_for_a_unit_and_public_sizes(schema):
    options = {"method": "oneshot", "rows-per-person": "3", "sites-per-person": "2", "delta": "0"}
    (told,) = answer(*asked(schema, **options), "--public-sizes", "--repeats", 1)["forecasts"]
    plan = told["plan"]
    assert plan["unit"] == {"rows": 3, "sites": 2}
    slots = {(slot["verb"], slot["kind"], slot["release"]): slot for slot in plan["slot"]}
    assert slots["each", "size", "public"]["times"] == 1
    assert slots["sum", "counts", "laplace"]["times"] == 1
    assert slots["sum", "counts", "laplace"]["price"] == pytest.approx(1.0)  # of epsilon, for both sites of a person


def test_methods_sites_and_budgets_are_compared_in_one_table(schema):
    cases = asked(schema, method="oneshot,augflaim", sites="3,6", epsilon="0.5,2", trust="local")
    told = answer(*cases, "--repeats", 1)["forecasts"]
    assert len(told) == 8
    by = {(one["plan"]["method"], one["plan"]["sites"], one["plan"]["budget"]["epsilon"]): one for one in told}
    sd = {case: one["noise"][0]["std"]["typical"] for case, one in by.items() if one["noise"]}
    assert sd["oneshot", 6, 0.5] == pytest.approx(sd["oneshot", 3, 0.5] * 2**0.5)  # each site adds its own
    assert sd["oneshot", 3, 2.0] < sd["oneshot", 3, 0.5]
    assert not by["oneshot", 3, 2.0]["chosen"]
    rounds = by["augflaim", 3, 2.0]["messages"]
    assert 10 <= rounds["high"] <= 40  # ten rounds of a few questions, for a site in all of them
    few = asked(schema, method="oneshot,fedprivsyn", sites="3", epsilon="2", trust="local")
    shown = fedsynth(*few, "--repeats", 1).stdout
    assert "Standard deviation of the noise" in shown
    assert "fedprivsyn" in shown


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"method": "nothing"}, 6, "no method named 'nothing'"),
        ({"method": "augflaim-oracle"}, 2, "is NOT PRIVATE"),
        ({"method": "augflaim-oracle", "set": "not_private=true"}, 5, "site-000 refused"),
        ({"method": "aim", "trust": "local"}, 6, "--trust trusted"),
        ({"epsilon": "inf"}, 6, "a run without noise cannot be planned"),
        ({"trust": "blind"}, 6, "no trust model named 'blind'"),
        ({"trust": "local", "trust-set": "min_honest=3"}, 2, "has no setting min_honest"),
        ({"set": "width=3"}, 6, "no option width"),
        ({"workload": "2", "method": "fednaivebayes"}, 6, "leave --workload out"),
        ({"sites": "2.5"}, 2, "whole number"),
        ({"epsilon": "much"}, 2, "expected a number"),
        ({"epsilon": "0"}, 2, "positive"),
        ({"headroom": "0.5"}, 2, "headroom"),
        ({"sites": "3,4", "out": "plan.toml"}, 2, "writes one plan"),
    ],
)
def test_what_cannot_be_planned_says_why(schema, changes, code, says):
    done = fedsynth(*asked(schema, **changes))
    assert done.returncode == code
    assert says in " ".join(done.stderr.replace("│", " ").split())


def test_a_workload_and_options_shape_the_plan(schema):
    (told,) = answer(*asked(schema, method="flaim"), "--workload", "3", "--set", "rounds=2", "--repeats", 1)[
        "forecasts"
    ]
    assert told["plan"]["options"]["rounds"] == 2
    assert len(told["plan"]["options"]["workload"]) == 4
    choose = next(slot for slot in told["plan"]["slot"] if slot["verb"] == "choose")
    assert (choose["kind"], choose["release"], choose["times"]) == ("flaim-scores", "exponential", 2)


def test_required_options_are_named():
    done = fedsynth("plan", "--rows", 10)
    assert done.returncode == 2
    assert "--schema" in done.stderr


# ---------------------------------------------------------------------------------------------------------------------
# fedsynth advise


def test_advice_compares_methods_without_reading_a_row(schema):
    advise = ["advise", *asked(schema, method="oneshot,mst,tda", trust="trusted", rows="3000")[1:], "--tables", 1]
    told = answer(*advise, "--wanted", 0.3, "--seconds", 3600)  # by default 120, after which some tables are left out
    assert (told["rows"], told["made_rows"], told["tables"], told["complete"]) == (3000, 3000, 3, True)
    assert {one["method"] for one in told["methods"]} == {"oneshot", "mst", "tda"}
    for one in told["methods"]:
        assert 0 <= one["two_way"]["low"] <= one["two_way"]["typical"] <= one["two_way"]["high"] <= 2
        assert max(one["resolution"]["crossing"] or 0, one["resolution"]["value"]) > 0
        assert one["search"]
    shown = fedsynth(*advise).stdout
    assert "2-way error" in shown
    assert "made from the schema. No real row was read" in " ".join(shown.split())


def test_advice_is_given_on_every_method_under_a_trust_that_it_runs_under(schema):
    told = answer("advise", *asked(schema, trust="local")[1:], "--tables", 1, "--seconds", 0.01)
    trusts = {advice["method"]: advice["trust"] for advice in told["methods"]}
    central = {method for method, trust in trusts.items() if trust == "trusted"}
    assert {"oneshot", "fedprivsyn", "augflaim", "tda", "aim", "mst"} <= set(trusts)
    assert "augflaim-oracle" not in trusts
    assert central == {"aim", "mst", "privsyn", "privbayes"}
    assert {trusts[method] for method in set(trusts) - central} == {"local"}
    assert not told["complete"]


def test_the_trust_follows_from_the_number_of_sites_and_is_printed(schema):
    printed = fedsynth(*asked(schema, sites="1,2,3", method="oneshot"))
    lines = [line.split() for line in printed.stdout.splitlines() if line.split()[:1] == ["oneshot"]][:3]
    assert [line[1:3] for line in lines] == [["1", "trusted"], ["2", "local"], ["3", "secure"]]
    refused = fedsynth(*asked(schema, method="aim"))
    assert refused.returncode == 6
    assert "aim does not run under the trust secure; add --trust trusted or --trust three-servers" in refused.stderr


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"method": "nothing"}, 6, "no method named 'nothing'"),
        ({"epsilon": "inf"}, 6, "without noise"),
        ({"rows": "2"}, 2, "fewer --sites"),
        ({"wanted": "3"}, 2, "above 0 and below 2"),
        ({"partition": "synthfs:1"}, 6, "cannot split a table"),
    ],
)
def test_what_nobody_can_advise_on_says_why(schema, changes, code, says):
    done = fedsynth("advise", *asked(schema, **changes)[1:])
    assert done.returncode == code
    assert says in " ".join(done.stderr.split())


# ---------------------------------------------------------------------------------------------------------------------
# fedsynth site check: a TLS server with each kind of certificate


def authority(name: str, days: int = 400) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - 800 * DAY)
        .not_valid_after(NOW + days * DAY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return made, key


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(not signs, False, False, False, False, signs, signs, False, False)


def server_files(
    folder: Path, signed_by: tuple[x509.Certificate, ec.EllipticCurvePrivateKey], host: str, start: int, end: int
) -> tuple[Path, Path]:
    """Write certificate and key of a server called ``host``, valid from ``start`` to ``end`` days from now."""
    top, top_key = signed_by
    key = ec.generate_private_key(ec.SECP256R1())
    name: x509.GeneralName = x509.DNSName(host)
    if host[0].isdigit():
        name = x509.IPAddress(ipaddress.ip_address(host))
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)]))
        .issuer_name(top.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW + start * DAY)
        .not_valid_after(NOW + end * DAY)
        .add_extension(x509.SubjectAlternativeName([name]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(top_key.public_key()), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(top_key, hashes.SHA256())
    )
    certificate, private = folder / "server.pem", folder / "server.key"
    certificate.write_bytes(pem(made))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate, private


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


class Server(HTTPServer):
    """Answers HEAD with a Date that is ``shift`` seconds off; without TLS where there are no files."""

    shift = 0.0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that does not like the certificate hangs up: that is what is tested."""


class Answers(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(404)
        self.end_headers()

    def date_time_string(self, timestamp: float | None = None) -> str:
        assert isinstance(self.server, Server)
        return super().date_time_string(time.time() + self.server.shift)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def serving(files: tuple[Path, Path] | None, shift: float = 0.0) -> Iterator[int]:
    with Server(("127.0.0.1", 0), Answers) as server:
        server.shift = shift
        if files is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*files)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def states(checks: list[PreflightCheck]) -> dict[str, str]:
    return {one.name: one.state for one in checks}


def mends(checks: list[PreflightCheck]) -> str:
    return " ".join(f"{one.found} {one.mend}" for one in checks if one.state != "ok")


@pytest.fixture(scope="module")
def federation_ca(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = authority("federation")
    path = tmp_path_factory.mktemp("ca") / "ca.crt"
    path.write_bytes(pem(made[0]))
    return made, path


@pytest.mark.parametrize(
    ("host", "start", "end", "other", "state", "says"),
    [
        ("localhost", -1, 90, False, "ok", ""),
        ("localhost", -1, 9, False, "warning", "the coordinator renews it"),
        ("localhost", -30, -1, False, "failure", "expired"),
        ("localhost", 1, 30, False, "failure", "not valid yet"),
        ("fed.example.org", -1, 90, False, "failure", "another host name"),
        ("localhost", -1, 90, True, "failure", "another authority"),
    ],
)
def test_every_kind_of_certificate(tmp_path, federation_ca, host, start, end, other, state, says):
    signer, roots = federation_ca
    files = server_files(tmp_path, authority("somebody else") if other else signer, host, start, end)
    with serving(files) as port:
        checks = doctor.check_superlink(f"localhost:{port}", roots)
    assert states(checks)["superlink"] == "ok"
    assert states(checks)["certificate"] == state
    assert says in mends(checks)
    assert ("clock" in states(checks)) == (state != "failure")


@pytest.mark.parametrize(("end", "code", "state"), [(90, 0, "ok"), (-1, 8, "failure"), (None, 0, "warning")])
def test_a_site_sees_the_servers_certificate_without_a_look_at_its_machine(
    tmp_path, federation_ca, monkeypatch, end, code, state
):
    """One that has ended is a failure; a server that cannot be reached may not run yet, or there is none."""
    from tests.deploy.test_site_config import ready_site

    signer, roots = federation_ca
    config = ready_site(tmp_path / "site")
    monkeypatch.setattr("fedsynth.deploy.host.checks.check_site", lambda config: iter(()))
    text = (config.folder / "site.toml").read_text().replace("[flower]", f'[flower]\nroot_certificates = "{roots}"')
    files = None if end is None else server_files(tmp_path, signer, "localhost", -30, end)
    with serving(files) if files else nullcontext(9) as port:
        (config.folder / "site.toml").write_text(text.replace("127.0.0.1:9", f"localhost:{port}"))
        done = command.invoke(["site", "check", str(config.folder), "--json"])
    states = {one["name"]: one["state"] for one in json.loads(done.output)["checks"]}
    assert (done.exit_code, states["superlink" if end is None else "certificate"]) == (code, state)


def test_an_address_in_place_of_a_name_and_a_self_signed_server(tmp_path, federation_ca):
    signer, roots = federation_ca
    with serving(server_files(tmp_path, signer, "127.0.0.1", -1, 90)) as port:
        assert states(doctor.check_superlink(f"127.0.0.1:{port}", roots))["certificate"] == "ok"
        wrong = doctor.check_superlink(f"localhost:{port}", roots)
    assert "another host name" in mends(wrong)
    with serving(server_files(tmp_path, signer, "localhost", -1, 90)) as port:
        assert "another address" in mends(doctor.check_superlink(f"127.0.0.1:{port}", roots))
        unknown = doctor.check_superlink(f"localhost:{port}", None)  # the system's authorities know no federation
    assert states(unknown)["certificate"] == "failure"


@pytest.mark.parametrize(
    ("shift", "state", "says"),
    [(0, "ok", ""), (-60, "failure", "ahead of"), (250, "warning", "behind"), (330, "failure", "behind")],
)
def test_the_clock_is_held_against_the_servers_as_flower_will(tmp_path, federation_ca, shift, state, says):
    signer, roots = federation_ca
    with serving(server_files(tmp_path, signer, "localhost", -1, 90), shift) as port:
        checks = doctor.check_superlink(f"localhost:{port}", roots)
    (clock,) = [one for one in checks if one.name == "clock"]
    assert clock.state == state
    assert says in clock.found


def test_a_server_that_is_not_there_or_speaks_no_tls(federation_ca):
    _, roots = federation_ca
    with serving(None) as port:
        assert "does it speak TLS" in mends(doctor.check_superlink(f"127.0.0.1:{port}", roots))
    checks = doctor.check_superlink(f"127.0.0.1:{port}", roots)
    assert states(checks) == {"superlink": "failure"}
    with pytest.raises(InvalidParameter, match="HOST:PORT"):
        parse_address("fed.example.org")
    assert parse_address("[::1]:443") == ("::1", 443)


def test_root_certificates_are_looked_at_by_themselves(tmp_path, federation_ca):
    _, roots = federation_ca
    assert doctor.check_roots(roots).state == "ok"
    for content, says in ((b"no certificate", "holds no certificate"), (pem(authority("old", days=-5)[0]), "ended on")):
        (tmp_path / "ca.crt").write_bytes(content)
        found = doctor.check_roots(tmp_path / "ca.crt")
        assert (found.state, says in found.found) == ("failure", True)
    early = NOW - 801 * DAY
    assert "not valid yet" in doctor.check_roots(roots, lambda: early).found
    assert doctor.check_roots(tmp_path / "none.crt").state == "failure"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, {"proxy": "ok"}),
        ({"HTTPS_PROXY": "http://proxy:3128"}, {"proxy": "failure"}),
        ({"https_proxy": "http://proxy:3128", "no_proxy": "localhost,127.0.0.1"}, {"proxy": "warning"}),
        ({"all_proxy": "socks5://p", "NO_PROXY": "localhost,127.0.0.1,.example.org"}, {"proxy": "ok"}),
        ({"https_proxy": "http://proxy:3128", "no_proxy": "*"}, {"proxy": "ok"}),
        ({"SSLKEYLOGFILE": "keys.log"}, {"proxy": "ok", "tls environment": "failure"}),
        ({"SSL_CERT_FILE": "ca.pem"}, {"proxy": "ok", "tls environment": "warning"}),
    ],
)
def test_environment_variables_that_break_connections(environment, expected):
    assert states(doctor.check_environment("fed.example.org", environment)) == expected


def test_private_files_state_folder_and_disk(tmp_path):
    secret = tmp_path / "ledger.sqlite"
    assert doctor.check_private("ledger", secret).state == "warning"
    secret.touch(0o600)
    assert doctor.check_private("ledger", secret).state == "ok"
    secret.chmod(0o640)
    found = doctor.check_private("ledger", secret)
    assert (found.state, found.mend) == ("failure", f"chmod go-rwx {secret}")
    assert states(doctor.check_state(tmp_path))["state"] == "ok"
    assert not [one for one in tmp_path.iterdir() if one != secret]  # nothing is left behind
    assert states(doctor.check_state(tmp_path / "none")) == {"state": "failure"}
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/a / ext4 rw 0 0\nhost:/b {tmp_path} nfs4 rw 0 0\n")
    assert states(doctor.check_state(tmp_path, mounts))["file system"] == "failure"
    mounts.write_text(f"host:/b / nfs4 rw 0 0\n/dev/a {tmp_path} ext4 rw 0 0\n")
    assert "file system" not in states(doctor.check_state(tmp_path, mounts))


def test_versions_must_agree_in_major_and_minor():
    def versions(flwr: str) -> Callable[[str], str]:
        return lambda name: flwr if name == "flwr" else importlib.metadata.version(name)

    wanted = doctor._required_minor()
    assert states(doctor.check_packages("", versions(f"{wanted}.7")))["flower"] == "ok"
    assert states(doctor.check_packages(f"{wanted}.0", versions(f"{wanted}.7")))["flower"] == "ok"
    assert states(doctor.check_packages("", versions("0.9.1")))["flower"] == "failure"
    assert states(doctor.check_packages("99.1.0", versions(f"{wanted}.7")))["flower"] == "failure"

    def none(name: str) -> str:
        if name == "flwr":
            raise importlib.metadata.PackageNotFoundError
        return importlib.metadata.version(name)

    assert states(doctor.check_packages("", none)) == {"packages": "ok", "flower": "warning"}


def test_a_flower_that_is_in_a_folder_with_a_space_is_found(tmp_path, monkeypatch):
    """As in an environment of a copy of the repository in "My projects"."""
    for name, expected in (("plain", ""), ("with spaces", str(tmp_path / "with spaces" / "flwr"))):
        package = tmp_path / name / "flwr"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        assert doctor.folder_with_spaces([str(tmp_path / name)]) == expected
    assert doctor.folder_with_spaces([str(tmp_path)]) == ""
    monkeypatch.syspath_prepend(tmp_path / "with spaces")
    (found,) = [one for one in doctor.check_packages() if one.name == "flower"]
    assert found.state == "warning"
    assert "install fedsynth in a folder without spaces" in found.mend


def test_a_port_is_free_or_not():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert doctor.check_bind(f"127.0.0.1:{port}").state == "failure"
    assert doctor.check_bind(f"127.0.0.1:{port}").state == "ok"


def test_the_command_says_what_to_mend_and_fails_only_on_failures(tmp_path, federation_ca):
    signer, roots = federation_ca
    state = tmp_path / "state"
    state.mkdir(0o700)
    with serving(server_files(tmp_path, signer, "localhost", -1, 90)) as port:
        link = ["--superlink", f"localhost:{port}", "--root-certificates", roots]
        fit = answer("site", "check", *link, "--state", state)
        assert fit["ready"]
        assert {one["name"]: one["state"] for one in fit["checks"]}["certificate"] == "ok"
        (tmp_path / "key").touch(0o644)
        bad = answer("site", "check", *link, "--private", tmp_path / "key", code=8)
    assert not bad["ready"]
    assert [one["name"] for one in bad["checks"] if one["state"] == "failure"] == ["private file key"]
    gone = fedsynth("site", "check", *link)
    assert gone.returncode == 8
    assert "-> is it running" in gone.stdout


def test_what_a_sites_own_file_names_is_what_is_checked(tmp_path, federation_ca):
    pytest.importorskip("fedsynth.deploy.host.config")
    signer, roots = federation_ca
    with serving(server_files(tmp_path, signer, "localhost", -1, 90)) as port:
        (tmp_path / "site.toml").write_text(
            f"""
            [site]
            name = "north"
            [source]
            data = "rows.csv"
            schema = "schema.toml"
            rows_are_persons = true
            [coordinator]
            key = "{bytes(PUBLIC_BYTES).hex()}"
            [flower]
            superlink = "localhost:{port}"
            root_certificates = "{roots}"
            [policy]
            budget = {{ epsilon = 1.0, delta = 1e-6 }}
            [policy.trusts.local]
            """
        )
        (tmp_path / "state").mkdir(0o755)
        told = answer("site", "check", tmp_path, "--machine", code=8)
    found = {one["name"]: one["state"] for one in told["checks"]}
    assert (found["certificate"], found["root certificates"], found["state folder"]) == ("ok", "ok", "failure")
    assert (found["account and secret"], found["node key"]) == ("warning", "warning")
