"""A SuperLink, a server and four sites as real processes: TLS, registered keys, and what goes wrong.

One world serves all tests of this file, in their order; the last one breaks it.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.deploy.flower_world import RUN, FlowerWorld, connected_world, lay_out, product, spent
from tests.deploy.recomputing import keep_salts, recomputed
from tests.public_data import FOLDER

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from fedsynth.data.partition import Quantity, split
from fedsynth.datasets import rand_hie, rand_hie_schema
from fedsynth.deploy.certificates import Authority
from fedsynth.deploy.flower.local import wait_for
from fedsynth.deploy.host.state import make_node_key
from fedsynth.encoding import encode
from fedsynth.federation.transport import InProcess, Message, recorded_requests, records
from fedsynth.federation.wire import Reply
from fedsynth.privacy.cost import Budget
from fedsynth.publish.pack import publish_run
from fedsynth.publish.verify import verify
from fedsynth.rows import Table
from fedsynth.runs.state import load_coordinator
from fedsynth.schema import Categorical, Schema
from fedsynth.secure.session import MASKED

BUDGET = Budget(1.0, 1e-6)
DECLARED: dict[str, Any] = {
    "question": [
        {"kind": "share", "name": "women over 2", "of": "sex=0", "among": "race=0|1"},
        {"kind": "sites", "name": "sites", "columns": ["sex"]},
    ],
    "criterion": [
        {"kind": "cross", "name": "sexes", "columns": ["sex"], "tolerance": 0.2},
        {"kind": "auc", "name": "scorer", "of": "sex=0", "tolerance": 0.5},
    ],
}
SITES = ("north", "south", "east", "west")
OPTIONS: dict[str, dict[str, Any]] = {
    "oneshot": {},
    "augflaim": {"rounds": 2, "rate": 1.0},
    "adafedprivsyn": {"bound": 0.03, "batch": 5},
}
TRUSTS: dict[str, dict[str, Any]] = {"local": {}, "trusted": {}, "secure": {"min_honest": 3}}  # one of four may collude

pytestmark = pytest.mark.deployment


@pytest.fixture(scope="module")
def adult() -> Mapping[str, Table]:
    """Adult in four parts of unequal sizes, under the public description of its columns; elsewhere the demo's table."""
    if (FOLDER / "adult_discrete.parquet").exists():
        sizes = json.loads((FOLDER / "adult_discrete.domain.json").read_text())
        schema = Schema(tuple(Categorical(column, tuple(range(size))) for column, size in sizes.items()))
        table = encode(schema, pq.read_table(FOLDER / "adult_discrete.parquet").to_pandas())
    else:
        found = rand_hie_schema()
        sizes = zip(found.names, found.sizes, strict=True)
        schema = Schema(tuple(Categorical(column, tuple(range(size))) for column, size in sizes))
        table = Table(schema, encode(found, rand_hie()).codes)
    return dict(zip(SITES, split(table, len(SITES), Quantity(2.0), np.random.default_rng(0)), strict=True))


world = connected_world(SITES)


def begin(world: FlowerWorld, root: Path, tables: Mapping[str, Table], trust: str, method: str, **options: Any) -> str:
    """Lay a federation out, let the nodes answer from it, and start its job."""
    schema = next(iter(tables.values())).schema
    options = {"budget": BUDGET, "options": OPTIONS[method], "trust_options": TRUSTS[trust], **options}
    lay_out(root, tables, schema, trust, method, **options)
    keep_salts(root)
    world.use(root)
    return world.submit_job(root)


def lost(root: Path) -> list[str]:
    sites: list[str] = tomllib.loads((root / "runs" / RUN / "run.toml").read_text())["made"]["lost_sites"]
    return sites


def answers(root: Path) -> bool:
    """Whether any site's ledger has been charged for a run."""
    return any(spent(root).values())


@pytest.mark.parametrize(
    ("method", "trust"),
    [
        ("oneshot", "secure"),
        pytest.param("oneshot", "trusted", marks=pytest.mark.chaos),
        pytest.param("augflaim", "secure", marks=pytest.mark.chaos),
        pytest.param("adafedprivsyn", "secure", marks=pytest.mark.chaos),
    ],
)
def test_a_deployed_run_has_the_bits_of_the_simulated_one(tmp_path, world, adult, method, trust):
    root = tmp_path / "federation"
    asked = DECLARED if "sex" in adult[SITES[0]].schema.names else {}
    run_id = begin(world, root, adult, trust, method, declared=asked)
    assert world.finish(run_id) == "finished:completed"
    assert product(root / "runs" / RUN) == recomputed(root, tmp_path / "again")
    assert lost(root) == []
    assert max(spent(root).values()) <= BUDGET.rho * (1 + 1e-9)
    # It ends with answers, criteria and a pack, for which no site sends anything but its replies.
    told = {"title": "Adult, synthetic", "publisher": "Four offices", "licence": "CC0-1.0"}
    pack = publish_run(root / "runs" / RUN, tmp_path / "pack", told).pack
    found = verify(pack, identities={"coordinator": load_coordinator(root).identity})
    assert (found.problems, list(found.signed)) == ((), ["coordinator"])
    assert found.sheet is not None
    assert found.sheet.basis == "as told by the server"
    if asked:
        facts = json.loads((pack / "answers" / "answers.json").read_text())
        assert {answer["question"] for answer in facts["answers"]} == {"women over 2", "sites", "sexes", "scorer"}
        assert {one["criterion"]: one["verdict"] for one in facts["criteria"]} == {"sexes": "met", "scorer": "met"}


def complains(world: FlowerWorld, name: str, says: str) -> bool:
    return says in world.log(name).lower()


def test_strangers_are_told_why_and_get_no_message(tmp_path, world):
    """A node whose key is not registered, and one that does not trust this server's CA."""
    other = tmp_path / "ca.crt"
    other.write_text(Authority.create().text)
    before = world.online()
    strangers = {"unknown-key": ("node-key", "is not registered"), "wrong-ca": ("ca.crt", "certificate")}
    for name, (file, says) in strangers.items():
        home = tmp_path / name
        shutil.copytree(world.sites["north"], home)
        (home / file).unlink()
        if file == "node-key":
            make_node_key(home / file)
        else:
            shutil.copy(other, home / file)
        process = world.spawn(name, "fedsynth", "site", "serve", str(home), "--superlink", f"127.0.0.1:{world.port}")
        wait_for("a complaint", partial(complains, world, name, says), 60)
        assert process.poll() is None  # a key can be registered, a clock be set: it tries again
        process.terminate()
        assert process.wait(60) == 0
        world.kill(name)
    assert world.online() == before


def test_a_server_with_another_secret_gets_no_run_and_says_so(tmp_path, world):
    other = tmp_path / "other"
    other.write_bytes(b"0" * 32)
    other.chmod(0o600)
    process = world.spawn("other-secret", *world.server_command()[:-1], str(other))
    assert process.wait(60) == 5
    assert "does not accept this secret" in world.log("other-secret")
    world.kill("other-secret")


def test_a_site_outlives_the_superlink_and_ends_when_asked(world):
    world.kill("superlink")
    wait_for("a complaint", lambda: "no SuperLink answers" in world.log("node-west"), 60)
    process = world.processes["node-west"]
    assert process.poll() is None
    process.terminate()
    assert process.wait(60) == 0
    world.kill("node-west")
    world.start_superlink()
    world.start_node("west")
    wait_for("everybody's return", lambda: world.online() == len(SITES), 60)


@pytest.mark.chaos
def test_a_killed_server_resumes_and_sites_are_charged_once(tmp_path, world, adult):
    root = tmp_path / "federation"
    begin(world, root, adult, "local", "oneshot")
    wait_for("the first answers", lambda: answers(root), 120)
    world.kill("superlink", "server")
    kept = (root / "state" / RUN / "transcript").read_bytes()
    assert not (root / "runs").exists()

    world.start_superlink()
    world.start_server()
    wait_for("the end of the run", lambda: (root / "runs" / RUN).is_dir(), 240)
    assert product(root / "runs" / RUN) == recomputed(root, tmp_path / "again")
    assert (root / "runs" / RUN / "transcript").read_bytes().startswith(kept)
    per_site = json.loads((root / "runs" / RUN / "ledger.json").read_text())["per_site"]
    assert spent(root) == pytest.approx(
        {site: cost["rho"] for site, cost in per_site.items()}
    )  # though two were started


class SilentAfterMasking(InProcess):
    """Sites of which ``east`` says nothing any more once the first sum's masked answers are in."""

    gone = False

    def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
        """Yield each site's reply, from ``east`` none."""
        asked = list(messages)
        self.gone = self.gone or any(message.request.turn > MASKED for message in asked)
        for message in asked:
            silent = self.gone and message.site == "east"
            yield (
                message.lost("killed") if silent else message.reply(self._sites[message.site].answer(message.data).data)
            )


@pytest.mark.chaos
def test_a_node_killed_between_masking_and_unmasking_stays_in_that_sum_and_in_no_later_one(tmp_path, world, adult):
    root = tmp_path / "federation"
    run_id = begin(world, root, adult, "secure", "adafedprivsyn", deadline=45.0)
    # A first answer of the turn after: the server holds everybody's masked answer, and cannot read the sum yet.
    wait_for("the masked answers", lambda: turns(root) > MASKED, 240, pause=0.05)
    world.kill("node-east")
    assert world.finish(run_id) == "finished:completed"
    assert product(root / "runs" / RUN) == recomputed(root, tmp_path / "again", SilentAfterMasking)
    assert lost(root) == ["east"]
    left = spent(root)
    assert 0 < left["east"] < min(left[name] for name in SITES if name != "east")
    assert "lost site east" in world.log("server")


def turns(root: Path) -> int:
    """Return the latest turn of a secure sum that any site has answered, by the server's transcript."""
    transcript = root / "state" / RUN / "transcript"
    if not transcript.exists():
        return 0
    held = list(records(transcript))
    turn = {request.digest: request.turn for request in recorded_requests(transcript)}
    answered = [data.partition(b"\n")[0].decode().partition(" ")[2] for kind, data in held if kind == "answer"]
    return max((turn[digest] for digest in answered), default=0)
