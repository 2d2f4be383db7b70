"""docs/compute-servers.md, followed to the letter by three servers, three sites and a coordinator on one machine.

Every command is taken from the page, in order; enrolment is that of docs/deploy.md. What is replaced is what the page
leaves to its readers: host names, folders and ports.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
pytest.importorskip("mpyc", reason="the extra 'mpc' is not installed")

from tests.deploy.test_guide import Federation, Place, commands, complete
from tests.ports import kept_ports

from fedsynth.datasets import rand_hie, rand_hie_schema
from fedsynth.deploy.flower.local import listens, wait_for

SITES = ("north", "south", "east")
SERVERS = ("one", "two", "three")
PAGE = "compute-servers.md"

pytestmark = [pytest.mark.deployment, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Federation, dict[str, Place]]]:
    ports = dict(zip(SERVERS, kept_ports(3), strict=True))
    places = {}
    for name in ("coordinator", *SITES, *SERVERS):
        home = tmp_path / name
        (home / "here").mkdir(parents=True)
        words = {"/mnt/exchange": str(tmp_path / "exchange"), "/etc/fedsynth-compute": str(home / "here" / "compute")}
        words |= {"/etc/fedsynth": str(home / "here" / "etc")}
        if name in SERVERS:
            words["one.example.org:9500"] = f"127.0.0.1:{ports[name]}"
        if name in SITES:
            words["north.toml"] = f"{name}.toml"
        places[name] = Place(home, home / "here", words)
    (tmp_path / "exchange").mkdir()
    rand_hie_schema().save(places["coordinator"].folder / "agreed.toml")
    made = Federation(places["coordinator"], {name: places[name] for name in SITES}, "aim")
    try:
        yield made, {name: places[name] for name in SERVERS}
    finally:
        for place in places.values():
            place.end()


def fingerprints(said: str) -> list[str]:
    return re.findall(r"^    ([\d ]{35})$", said, re.MULTILINE)


def test_the_page(machines: tuple[Federation, dict[str, Place]], tmp_path: Path) -> None:
    federation, servers = machines
    coordinator = federation.server
    (init,) = commands("1. ", PAGE)
    shown = [fingerprints(place.give(init)) for place in servers.values()]
    (job,) = commands("2. ", PAGE)
    old, new = (
        "--method oneshot --epsilon 1 --delta 1e-6 --trust local",
        job[job.index("--method") : job.index(" --superlink")],
    )
    coordinator.words = {**coordinator.words, old: new}
    federation.enrol()
    assert 'trust = "three-servers"' in (coordinator.folder / "federation" / "job.toml").read_text()
    rows = rand_hie()
    for at, place in enumerate(federation.sites.values()):
        rows.iloc[at :: len(SITES)].to_csv(place.folder / "etc" / "rows.csv", index=False)

    rows.to_csv(coordinator.folder / "test.csv", index=False)  # a rehearsal has no compute servers, and says so
    coordinator.give("fedsynth deploy try federation --data test.csv --out rehearsal", expected=6)

    for place in (coordinator, *federation.sites.values(), *servers.values()):
        for name, server in servers.items():
            shutil.copy(server.folder / "compute" / "card.toml", place.folder / f"{name}.toml")
    at_server, at_site, at_coordinator = commands("3. ", PAGE)
    for name, site in federation.sites.items():
        site.give(f"fedsynth site check {site.folder / 'etc'}", expected=8)  # before the servers are pinned
        assert [fingerprints(site.give(at_site, answer="y\ny\ny\n"))] == [[one for (one,) in shown]], name
    for place, command in ((coordinator, at_coordinator), *((place, at_server) for place in servers.values())):
        assert fingerprints(place.give(command, answer="y\ny\ny\n")) == [one for (one,) in shown]
    federation.check()

    agree, serve = commands("4. ", PAGE)
    root = coordinator.folder / "federation"
    for place in servers.values():
        shutil.copy(root / "invitations" / "north.toml", place.folder)
        shutil.copy(root / "roster.toml", place.folder)
        place.give(agree, answer="y\ny\n")
        place.give(serve)
    for server in servers.values():
        port = int(server.words["one.example.org:9500"].rpartition(":")[2])
        wait_for("a compute server", partial(listens, port), 60)

    (run,) = commands("5. ", PAGE)
    text = (Path(__file__).parents[2] / "docs" / PAGE).read_text()
    (at_each_site,) = re.findall(r"sites run `(.*?)`", text)
    for site in federation.sites.values():
        site.give(at_each_site)
    assert "the table is in" in coordinator.give(run)
    complete(root)

    (ledger,) = commands("6. ", PAGE)
    for place in servers.values():
        assert "7 questions" in place.give(ledger)
