"""The units and compose files that `deploy init` and `site join` write run the very commands of docs/deploy.md."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.attacks.world import SCHEMA

from fedsynth.cli.app import main
from fedsynth.deploy.enrolment import join
from fedsynth.deploy.flower.files import server_services, site_files, site_services
from fedsynth.deploy.roster import Invitation, load

ROOT = Path(__file__).parents[2]
BIN = "/opt/fedsynth/bin/"
UNITS = {
    "server": ("flower-superlink.service", "fedsynth-server.service"),
    "site": ("fedsynth-site.service",),
}
COMMANDS = ("flower-superlink", "fedsynth deploy serve", "fedsynth site serve")
HARDENING = {
    "UMask": "0077",
    "Restart": "on-failure",
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "PrivateTmp": "yes",
    "CapabilityBoundingSet": "",
    "IPAddressDeny": "any",
    "IPAddressAllow": "localhost",
}


def joined(text: str) -> list[str]:
    """Return the lines of a text, those that go on after a backslash as one."""
    return re.sub(r"\\\n\s*", "", text).splitlines()


def documented() -> list[list[str]]:
    """Return the words of each command of docs/deploy.md that a supervisor is to keep running."""
    lines = [line.strip() for line in joined((ROOT / "docs" / "deploy.md").read_text()) if line.startswith("    ")]
    return [shlex.split(line) for line in lines if line.startswith(COMMANDS) and "--exchange" not in line]


def settings(unit: str) -> dict[str, list[str]]:
    """Return the values of a unit's entries."""
    found: dict[str, list[str]] = {}
    for line in joined(unit):
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def units() -> dict[str, dict[str, list[str]]]:
    """Return all units, those of the site that the page sets up."""
    texts = {**server_services(Path("/srv/federation"), 443), **site_services("north", "/etc/fedsynth")}
    return {name: settings(texts[name]) for names in UNITS.values() for name in names}


def test_every_command_of_the_page_has_a_unit_and_a_service_that_run_it():
    commands = documented()
    assert len(commands) == 3
    assert [shlex.split(unit["ExecStart"][0].removeprefix(BIN)) for unit in units().values()] == commands
    files = (server_services(Path("/srv/federation"), 443), site_services("north", "/etc/fedsynth"))
    composed = [words for texts in files for words in services_of(texts["compose.yaml"])]
    assert composed == commands


def services_of(compose: str) -> list[list[str]]:
    """Return the words of a compose file's commands."""
    folded = re.sub(r">-\n((?: {6}.*\n)+)", lambda text: " ".join(text[1].split()) + "\n", compose)
    return [shlex.split(line) for line in re.findall(r"^    command: (.*)$", folded, re.MULTILINE)]


def test_units_shut_out_what_a_process_does_not_need():
    exported = (ROOT / "docs" / "deploy.md").read_text()
    for name, unit in units().items():
        for entry, value in HARDENING.items():
            expected = [value, "0007"] if (entry, name) == ("UMask", "flower-superlink.service") else [value]
            assert unit[entry] == expected, (name, entry)
        environment = dict(word.split("=", 1) for line in unit["Environment"] for word in line.split())
        assert environment.pop("FLWR_HOME") == f"%S/{unit['StateDirectory'][0]}"
        environment.pop("PATH", None)
        assert environment == {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        assert all(f"{key}={value}" in exported for key, value in environment.items())
        assert unit["StartLimitIntervalSec"] == ["0"]
    homes = [unit["StateDirectory"][0] for unit in units().values()]
    assert len(set(homes)) == len(homes)
    assert "/srv/federation/coordinator.key" in units()["flower-superlink.service"]["InaccessiblePaths"][0]
    assert units()["flower-superlink.service"]["User"] != units()["fedsynth-server.service"]["User"]


def test_init_and_join_write_them(tmp_path):
    SCHEMA.save(tmp_path / "agreed.toml")
    options = ["--schema", tmp_path / "agreed.toml", "--sites", "north,south", "--epsilon", 1, "--delta", 1e-6]
    with pytest.raises(SystemExit) as stopped:
        main(["deploy", "init", *map(str, [tmp_path / "fed", *options, "--superlink", "fed.example.org:8443"])])
    assert stopped.value.code == 0
    root = tmp_path / "fed"
    invitation = load(root / "invitations" / "north.toml", Invitation)
    place = tmp_path / "north"
    join(invitation, place, site_files(invitation, place))
    expected = {root / "server": server_services(root, 8443), place: site_services("north", str(place))}
    for folder, texts in expected.items():
        assert set(texts) >= {"compose.yaml", "Dockerfile"}
        for name, text in texts.items():
            assert (folder / name).read_text() == text
            assert not re.search("@[A-Z]+@", text)
    assert '"8443:8443"' in expected[root / "server"]["compose.yaml"]


@pytest.mark.parametrize("folder", ["/srv/a b", "/srv/%n", "/srv/a\nUser=root", "/srv/$(id)", "/srv/a:b"])
def test_a_path_that_systemd_would_read_otherwise_gets_no_units(folder):
    assert server_services(Path(folder), 443) == {}
    assert site_services("north", folder) == {}


def test_who_gets_no_units_is_told_so(tmp_path, capsys):
    SCHEMA.save(tmp_path / "agreed.toml")
    options = ["--schema", tmp_path / "agreed.toml", "--sites", "north", "--epsilon", 1, "--delta", 1e-6]
    for folder, told in (("a b", True), ("ab", False)):
        with pytest.raises(SystemExit):
            main(["deploy", "init", *map(str, [tmp_path / folder, *options])])
        assert ("No systemd units" in capsys.readouterr().out) == told


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path):
    """The programs are not at their place here, so that units name others which are."""
    texts = {**server_services(tmp_path / "fed", 443), **site_services("north", str(tmp_path / "north"))}
    paths = []
    for names in UNITS.values():
        for name in names:
            program = texts[name].partition(f"ExecStart={BIN}")[2].split()[0]
            (tmp_path / program).write_text("#!/bin/sh\n")
            (tmp_path / program).chmod(0o755)
            (tmp_path / name).write_text(texts[name].replace(BIN, f"{tmp_path}/"))
            paths.append(str(tmp_path / name))
    command = ["systemd-analyze", "verify", "--man=no", *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if str(tmp_path) in line]) == (0, [])
    for path in paths:
        command = ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20", path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout  # an exposure of at most 2.0 of 10


@pytest.mark.skipif(not shutil.which("docker-compose"), reason="docker-compose is not installed")
def test_compose_reads_the_files(tmp_path):
    for texts in (server_services(Path("/srv/federation"), 443), site_services("north", "/etc/fedsynth")):
        (tmp_path / "compose.yaml").write_text(texts["compose.yaml"])
        command = ["docker-compose", "-f", str(tmp_path / "compose.yaml"), "config"]
        environment = {"PATH": "/usr/bin:/bin", "OWNER": "1000:1001", "LINK": "1001:1001"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert "network_mode: service:nginx" in done.stdout
