"""A SuperLink and four SuperNodes as real processes: TLS, registered keys, process isolation, and what goes wrong.

One world serves all tests of this file, in their order; the last one breaks it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.deploy.flower_world import RUN, FlowerWorld, free_port, lay_out, product, simulated, spent, wait_for

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from fedsynth.federation.trust.roster import MASKED

from fedsynth.data.partition import Quantity, split
from fedsynth.data.public import rand_hie, rand_hie_schema
from fedsynth.deploy.deploying import make_node_key
from fedsynth.deploy.site_config import load_site_config
from fedsynth.federation.policy_file import trust_named
from fedsynth.federation.site import Site
from fedsynth.federation.transport import Addressed, InProcess, Transport
from fedsynth.federation.wire import Reply
from fedsynth.methods import METHODS
from fedsynth.privacy.release import Budget
from fedsynth.schema import Categorical, Schema
from fedsynth.table import Table

DATA = Path(__file__).parents[2].parent / "shared" / "data"
BUDGET = Budget(1.0, 1e-6)
SITES = ("north", "south", "east", "west")
OPTIONS: dict[str, dict[str, Any]] = {
    "oneshot": {},
    "augflaim": {"rounds": 2, "rate": 1.0},
    "adafedprivsyn": {"bound": 0.03, "batch": 5},
}
TRUSTS: dict[str, dict[str, Any]] = {"local": {}, "trusted": {}, "secure": {"min_honest": 3}}  # one of four may collude

pytestmark = [
    pytest.mark.deployment,
    pytest.mark.skipif(not (shutil.which("openssl")), reason="openssl makes the certificates"),
]


@pytest.fixture(scope="module")
def adult() -> Mapping[str, Table]:
    """Adult in four parts of unequal sizes, under the public description of its columns; elsewhere the demo's table."""
    if DATA.is_dir():
        sizes = json.loads((DATA / "adult_discrete.domain.json").read_text())
        schema = Schema(tuple(Categorical(column, tuple(range(size))) for column, size in sizes.items()))
        table = schema.encode(pq.read_table(DATA / "adult_discrete.parquet").to_pandas())
    else:
        found = rand_hie_schema()
        sizes = zip(found.names, found.sizes, strict=True)
        schema = Schema(tuple(Categorical(column, tuple(range(size))) for column, size in sizes))
        table = Table(schema, found.encode(rand_hie()).codes)
    return dict(zip(SITES, split(table, len(SITES), Quantity(2.0), np.random.default_rng(0)), strict=True))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlowerWorld]:
    """Four connected nodes."""
    world = FlowerWorld(tmp_path_factory.mktemp("flower"), SITES)
    try:
        world.start()
        yield world
    finally:
        world.stop()


def begin(world: FlowerWorld, root: Path, tables: Mapping[str, Table], trust: str, method: str, **options: Any) -> str:
    """Lay a federation out, let the nodes answer from it, and start its job."""
    schema = next(iter(tables.values())).schema
    options = {"budget": BUDGET, "options": OPTIONS[method], "trust_options": TRUSTS[trust], **options}
    lay_out(root, tables, schema, trust, method, **options)
    world.use(root)
    return world.submit(root)


def in_one_process(
    folder: Path,
    tables: Mapping[str, Table],
    trust: str,
    method: str,
    transport: Callable[[Sequence[Site]], Transport] = InProcess,
) -> tuple[bytes, bytes]:
    """Return what the deployed run must produce."""
    schema = next(iter(tables.values())).schema
    found = trust_named(trust, TRUSTS[trust]), METHODS[method](**OPTIONS[method])
    return simulated(folder, tables, schema, *found, budget=BUDGET, transport=transport)


def lost(root: Path) -> list[str]:
    sites: list[str] = tomllib.loads((root / "runs" / RUN / "run.toml").read_text())["made"]["lost_sites"]
    return sites


def answers(root: Path) -> bool:
    """Whether any site's ledger has been charged for a run."""
    return any(spent(root).values())


@pytest.mark.parametrize(
    ("method", "trust"),
    [("oneshot", "secure"), ("augflaim", "secure"), ("adafedprivsyn", "secure"), ("oneshot", "trusted")],
)
def test_a_deployed_run_has_the_bits_of_the_simulated_one(tmp_path, world, adult, method, trust):
    root = tmp_path / "federation"
    run_id = begin(world, root, adult, trust, method)
    expected = in_one_process(tmp_path / "simulated", adult, trust, method)
    assert world.finish(run_id) == "finished:completed"
    assert product(root / "runs" / RUN) == expected
    assert lost(root) == []
    assert max(spent(root).values()) <= BUDGET.rho * (1 + 1e-9)


def test_strangers_are_refused(tmp_path, world):
    """A node without a key, one whose key is not registered, and one that does not trust this server's CA."""
    make_node_key(world.folder / "key-stranger")
    other = tmp_path / "ca.crt"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=other", "-out", str(other)]
    subprocess.run([*made, "-keyout", str(tmp_path / "ca.key")], check=True, capture_output=True, timeout=60)
    before = world.online()
    strangers = {
        "no-key": ("ca.crt", None, "2001"),
        "unknown-key": ("ca.crt", world.folder / "key-stranger", "2004"),
        "wrong-ca": (str(other), world.folder / "key-north", "certificate"),
    }
    for name, (ca, key, _) in strangers.items():
        world.spawn(name, *world.supernode("north", ca, key), "--port", str(free_port()))
    for name, (_, _, says) in strangers.items():
        process = world.processes[name]
        assert process.wait(60) != 0
        assert says.lower() in world.log(name).lower(), world.log(name)
        world.kill(name)
    assert world.online() == before


def test_a_killed_server_resumes_and_sites_are_charged_once(tmp_path, world, adult):
    root = tmp_path / "federation"
    begin(world, root, adult, "local", "oneshot")
    wait_for("the first answers", lambda: answers(root), 120)
    world.kill("superlink", "superlink-exec")
    kept = (root / "state" / RUN / "transcript").read_bytes()
    assert not (root / "runs").exists()

    world.start_superlink()
    wait_for("the nodes' return", lambda: world.online() == len(SITES), 120, pause=2)
    run_id = world.submit(root)
    expected = in_one_process(tmp_path / "simulated", adult, "local", "oneshot")
    assert world.finish(run_id) == "finished:completed"
    assert product(root / "runs" / RUN) == expected
    assert (root / "runs" / RUN / "transcript").read_bytes().startswith(kept)
    ledger = json.loads((root / "runs" / RUN / "ledger.json").read_text())
    assert spent(root) == pytest.approx(ledger["per_site_rho"])  # what one run costs, though two were started


class SilentAfterMasking(InProcess):
    """Sites of which ``east`` says nothing any more once the first sum's masked answers are in."""

    gone = False

    def exchange(self, requests: Iterable[Addressed]) -> Iterator[Reply]:
        """Yield each site's reply, from ``east`` an error."""
        asked = list(requests)
        self.gone = self.gone or any(request.turn > MASKED for _, request in asked)
        for name, request in asked:
            silent = self.gone and name == "east"
            yield Reply(name, request.digest, error="SiteLost") if silent else self._sites[name].answer(request)


def test_a_node_killed_between_masking_and_unmasking_stays_in_that_sum_and_in_no_later_one(tmp_path, world, adult):
    root = tmp_path / "federation"
    run_id = begin(world, root, adult, "secure", "oneshot", deadline=45.0)
    # A first answer of the turn after: the server holds everybody's masked answer, and cannot read the sum yet.
    wait_for("the masked answers", lambda: turns(root) > MASKED, 240, pause=0.05)
    world.kill("node-east", "exec-east")
    expected = in_one_process(tmp_path / "simulated", adult, "secure", "oneshot", SilentAfterMasking)
    everybody = in_one_process(tmp_path / "everybody", adult, "secure", "oneshot")
    assert world.finish(run_id) == "finished:completed"
    assert product(root / "runs" / RUN) == expected != everybody
    assert lost(root) == ["east"]
    left = spent(root)
    assert 0 < left["east"] < min(left[name] for name in SITES if name != "east")
    assert "lost site east" in world.flwr("log", run_id, "world", "--show")


def turns(root: Path) -> int:
    """Return the latest turn of a secure sum that any site has answered, by its audit log."""
    logs = [load_site_config(home).state / "audit.jsonl" for home in (root / "sites").iterdir()]
    lines = [json.loads(line) for log in logs if log.exists() for line in log.read_text().splitlines() if line]
    return max((int(line["turn"]) for line in lines), default=-1)
