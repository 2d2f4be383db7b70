"""docs/deploy.md, followed to the letter by three sites on one machine: over Flower behind nginx, and over files.

Every command is taken from the page, in order. What is replaced is what the page leaves to its readers: host names,
folders, and ports, since on one machine three sites cannot listen on the same ones.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from fedsynth.datasets import rand_hie, rand_hie_schema
from fedsynth.deploy.flower.local import free_port, listens, wait_for

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SITES = ("north", "south", "east")
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
LONG = (  # go on until ended
    *("nginx", "flower-superlink"),
    *("fedsynth deploy serve", "fedsynth site serve", "fedsynth compute-server serve"),
)

pytestmark = [pytest.mark.deployment, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def commands(section: str, page: str = "deploy.md") -> list[str]:
    """Return the commands of a section of a page, those that go on after a backslash as one line."""
    text = (ROOT / "docs" / page).read_text()
    start = text.index(f"\n## {section}")
    end = text.find("\n## ", start + 4)
    lines = re.sub(r"\\\n\s*", "", text[start:end]).splitlines()
    shown = [line.strip() for line in lines if line.startswith("    ")]
    return [line for line in shown if not line.startswith(("#", "EXCHANGE"))]


@dataclass
class Place:
    """Somebody's machine: a home, a folder that commands are given in, and what the page's words stand for there."""

    home: Path
    folder: Path
    words: Mapping[str, str] = field(default_factory=dict)
    exported: list[str] = field(default_factory=list)
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def give(self, command: str, *, answer: str = "", expected: int = 0) -> str:
        """Give a command of the page, with the answer to what it asks; return what it prints."""
        for word, meaning in self.words.items():
            command = command.replace(word, meaning)
        if command.startswith(("umask", "export")):
            stays, _, once = command.partition(" && ")
            self.exported.append(stays)
            if not once:
                return ""
            command = once
        script = "\n".join([*self.exported, command])
        environment = {**os.environ, "HOME": str(self.home), "PATH": f"{BIN}:{os.environ['PATH']}:/usr/sbin"}
        environment |= {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
        if command.startswith(LONG) and "--once" not in command:
            with (self.home / "log").open("ab") as log:
                process = subprocess.Popen(
                    ["bash", "-ec", script],
                    cwd=self.folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            self.running.append(process)
            return ""
        done = subprocess.run(
            ["bash", "-ec", script],
            cwd=self.folder,
            env=environment,
            input=answer,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == expected, (command, done.stdout, done.stderr, self.log())
        return done.stdout

    def log(self) -> str:
        """Return what the programs that go on have printed."""
        path = self.home / "log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def end(self) -> None:
        """End what was started: programs by their groups, proxies by their pid files."""
        for file in self.folder.rglob("nginx.pid"):
            os.kill(int(file.read_text()), signal.SIGTERM)
        for process in self.running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


@dataclass
class Federation:
    """The coordinator's machine, and one for each site."""

    server: Place
    sites: dict[str, Place]
    method: str

    def enrol(self) -> None:
        """Follow section 1."""
        page = iter(commands("1. "))
        init, rehearse, invited, admit, admitted, signed = (next(page) for _ in range(6))
        assert next(page, None) is None
        assert rehearse.startswith("fedsynth deploy try")  # tests/deploy/test_rehearsal.py
        self.server.give(init)
        root = self.server.folder / "federation"
        read_out = {}
        for name, site in self.sites.items():
            shutil.copy(root / "invitations" / f"{name}.toml", site.folder)
            said = site.give(invited, answer="y\n")
            read_out[name] = re.findall(r"^    ([\d ]+)$", said, re.MULTILINE)
            shutil.copy(site.folder / "etc" / f"{name}.request", self.server.folder)
        assert len({shown[0] for shown in read_out.values()}) == 1  # the invitation's, at all sites
        said = self.server.give(admit, answer="y\n" * len(self.sites))
        assert [shown[1] for shown in read_out.values()] == re.findall(r"^    ([\d ]+)$", said, re.MULTILINE)[:3]
        rosters = set()
        for name, site in self.sites.items():
            shutil.copy(root / "admissions" / f"{name}.toml", site.folder / "admission.toml")
            rosters |= set(re.findall(r"^    ([\d ]+)$", site.give(admitted, answer="y\n"), re.MULTILINE))
            shutil.copy(site.folder / "etc" / f"{name}.signed", self.server.folder)
        assert len(rosters) == 1
        self.server.give(signed)
        for name, site in self.sites.items():
            shutil.copy(root / "admissions" / f"{name}.toml", site.folder / "admission.toml")
            site.give(admitted)

    def check(self) -> None:
        """Follow section 2."""
        (check,) = commands("2. ")
        for site in self.sites.values():
            text = (site.folder / "etc" / "site.toml").read_text()
            (site.folder / "etc" / "site.toml").write_text(
                text.replace('# plans = "any"', 'plans = "any"').replace("# rows_are_persons", "rows_are_persons")
            )
            assert "ready" in site.give(f"cd etc && {check}")


def words(home: Path, ports: Mapping[str, int], name: str) -> dict[str, str]:
    """Return what the page's host names, folders and ports stand for on this machine."""
    found = {
        "/etc/fedsynth": str(home / "here" / "etc"),
        "fed.example.org:443": f"localhost:{ports['proxy']}",
        "127.0.0.1:8443": f"127.0.0.1:{ports[f'forwarder {name}']}" if name else "",
        "fedsynth deploy serve ..": f"fedsynth deploy serve .. --superlink 127.0.0.1:{ports['superlink']}",
        "9443": str(ports["superlink"]),
    }
    if name:
        found |= {"north": name}
    return {word: meaning for word, meaning in found.items() if meaning}


@pytest.fixture(params=["oneshot", pytest.param("auto", marks=pytest.mark.chaos)])
def federation(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Federation]:
    rows = rand_hie()
    names = ["proxy", "admin", "superlink", *(f"forwarder {name}" for name in SITES)]
    ports: dict[str, int] = {}
    for name in names:
        while (port := free_port()) in ports.values():
            pass
        ports[name] = port
    places = {}
    for name in ("", *SITES):
        home = tmp_path / (name or "server")
        (home / "here").mkdir(parents=True)
        places[name] = Place(home, home / "here", words(home, ports, name))
    server = places.pop("")
    rand_hie_schema().save(server.folder / "agreed.toml")
    server.words = {**server.words, "--method oneshot": f"--method {request.param}", "--trust local": "--trust secure"}
    made = Federation(server, places, request.param)
    try:
        made.enrol()
        for at, place in enumerate(places.values()):
            rows.iloc[at :: len(SITES)].to_csv(place.folder / "etc" / "rows.csv", index=False)
        made.check()
        # Ports that this page's readers choose: three sites and a server share one machine here.
        root = f"user {'root' if os.geteuid() == 0 else os.environ.get('USER', 'nobody')};\n"
        for place, (old, new) in [
            (server, ("9444", str(ports["admin"]))),
            *((place, ("8443", str(ports[f"forwarder {name}"]))) for name, place in places.items()),
        ]:
            for file in place.folder.rglob("nginx.conf"):
                text = file.read_text().replace(old, new).replace("127.0.0.1:9443", f"127.0.0.1:{ports['superlink']}")
                file.write_text((root if os.geteuid() == 0 else "") + text)
        for file in server.folder.rglob("config.toml"):
            file.write_text(file.read_text().replace("9443", str(ports["superlink"])))
        yield made
    finally:
        for place in (server, *places.values()):
            place.end()


def in_folder(place: Place, folder: str, lines: Sequence[str]) -> None:
    """Give commands in a folder of a place."""
    top, place.folder = place.folder, place.folder / folder
    try:
        for line in lines:
            place.give(line)
    finally:
        place.folder = top


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
def test_the_page_over_flower(federation: Federation, record_property: Callable[[str, object], None]) -> None:
    server, started = federation.server, commands("3. ")
    *start, register = started
    in_folder(server, "federation/server", start)
    wait_for("the SuperLink", lambda: listens(int(server.words["9443"])), 60)
    for name in SITES:
        in_folder(server, "federation/server", [register.partition("#")[0].replace("north", name)])
    for site in federation.sites.values():
        in_folder(site, "etc", commands("4. "))
    (run,) = commands("5. ")
    began = time.monotonic()
    said = server.give(run)
    seconds = time.monotonic() - began
    print(f"{federation.method}, trust secure, TLS, nginx at both ends: {seconds:.0f} s")
    record_property("seconds", seconds)
    assert "the table is in" in said
    assert "messages have been deleted" in said
    complete(server.folder / "federation")


def test_the_page_over_files(federation: Federation) -> None:
    """A person carries the folder: one at the server and one at each site, with nothing but copies between them."""
    page = commands("Without a network: files")
    by_hand = {command.split()[1]: command for command in page if "--once" in command}
    server = federation.server
    stick = server.folder / "stick"
    stick.mkdir()
    for place in (server, *federation.sites.values()):
        place.words = {**place.words, "/media/stick": str(stick)}
    carried = 0
    while carried < 30:
        missing = subprocess_code(server, by_hand["deploy"])
        if missing == 0:
            break
        assert missing == 9
        carried += 1
        for site in federation.sites.values():
            site.give(by_hand["site"])
    assert carried == {"oneshot": 10, "auto": 15}[federation.method]  # as the page says: with the survey of numbers
    complete(server.folder / "federation")
    assert not list(stick.rglob("*.request"))


def subprocess_code(place: Place, command: str) -> int:
    """Give a command that ends with 0 or 9, and return which."""
    return int(place.give(f"{command} > run.out && echo 0 || echo $?").split()[-1])


def complete(root: Path) -> None:
    """A run is there whole: rows of the schema, and a statement that every site's account agrees with."""
    (folder,) = (root / "runs").iterdir()
    rows = pd.read_csv(folder / "synthetic.csv")
    assert list(rows.columns) == list(rand_hie().columns)
    assert len(rows) > 0.9 * len(rand_hie())
    assert json.loads((folder / "ledger.json").read_text())["statement"]
