"""Federations on disk and as processes: what the tests of the Flower deployment share.

:func:`lay_out` writes a job and one folder per site with the secrets of a seeded simulation, so that a deployed run
and ``federate(..., seed=SEED)`` must give the same bits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from msgspec.structs import replace
from tests.world import of_strangers

from fedsynth import __version__
from fedsynth.archive import pack, unpack
from fedsynth.deploy.certificates import Authority
from fedsynth.deploy.files.server import over_files
from fedsynth.deploy.flower.files import toml_file
from fedsynth.deploy.flower.local import SERVER_SECRET, LocalFlower
from fedsynth.deploy.host import state as site_state
from fedsynth.deploy.host.config import load_site_config
from fedsynth.deploy.host.state import SECRET, make_node_key
from fedsynth.deploy.roster import Member, Roster, to_text
from fedsynth.encoding import decode
from fedsynth.federation.agreement import Agreement
from fedsynth.federation.policy_file import trust_named
from fedsynth.federation.simulate import _secret, _seeded, federate
from fedsynth.federation.site import Site
from fedsynth.federation.transport import InProcess, Transport
from fedsynth.federation.trust import Trust
from fedsynth.files import write_private
from fedsynth.keys import Keys
from fedsynth.methods import Method, all_methods
from fedsynth.privacy.book import Book
from fedsynth.privacy.cost import ONE_ROW, Budget, Unit
from fedsynth.rows import Table
from fedsynth.runs.job import Deployment, Job
from fedsynth.runs.limitations import with_limitations
from fedsynth.runs.run import RunResult, run_deployed
from fedsynth.runs.state import COORDINATOR
from fedsynth.schema import Categorical, Schema
from fedsynth.secure.site import SecureSum

SEED = 3
RUN = f"simulation-{SEED}"


def run_over_files(root: Path, exchange: Path, **options: Any) -> RunResult:
    """Make the run of a federation over files, as the command does; options are those of the transport."""
    job = Job.load(root / "job.toml")
    with over_files(job, root, exchange, **options) as transport:
        return run_deployed(job, root, transport)


def lay_out(
    root: Path,
    tables: Mapping[str, Table],
    schema: Schema,
    trust: str,
    method: str,
    *,
    budget: Budget,
    site_budget: Budget | None = None,
    options: Mapping[str, Any] | None = None,
    trust_options: Mapping[str, Any] | None = None,
    public_sizes: bool = False,
    unit: Unit = ONE_ROW,
    deadline: float = 60.0,
    min_sites: int | None = None,
    answer_every: float = 0.0,
    declared: Mapping[str, Any] | None = None,
    **policy: Any,
) -> Job:
    """Write the server's folder and the sites'; return the job, whose file is ``root/job.toml``.

    Salts of accounts are random, so that the bits of a run are those of the simulation only under
    :func:`seeded_salts`. Without ``min_sites``, one site is enough, or the fewest that a secure sum can end with.
    ``declared`` are the job's questions, and ``policy`` other entries of each site's policy.
    """
    coordinator = Keys(_secret(SEED, "coordinator"))
    homes = {name: root / "sites" / name for name in tables}
    for home in homes.values():
        home.mkdir(parents=True)
    members = [
        Member(name, Keys(_secret(SEED, name)).identity.hex(), make_node_key(homes[name] / "node-key"))
        for name in sorted(tables)
    ]
    peers = {one.name: one.identity for one in members}
    roster = to_text(Roster("0" * 64, tuple(members)).signed(coordinator))
    if min_sites is None:
        of_run = trust_named(trust, trust_options or {})
        keys = {name: name.encode() for name in tables}
        min_sites = of_run.with_roster(keys).threshold(len(tables)) if isinstance(of_run, SecureSum) else 1
    job = Job(
        method,
        budget.epsilon,
        budget.delta,
        schema="schema.toml",
        trust=trust,
        rows=500,
        public_sizes=public_sizes,
        rows_per_person=unit.rows,
        sites_per_person=unit.sites,
        options=dict(options or {}),
        trust_options=dict(trust_options or {}),
        deployment=Deployment(RUN, tuple(tables), min_sites=min_sites, deadline=deadline, peers=peers),
        **(declared or {}),
    )
    schema.save(root / "schema.toml")
    (root / "job.toml").write_text(job.to_toml())
    (root / COORDINATOR).write_text(coordinator.secret.hex())
    (root / COORDINATOR).chmod(0o600)
    begin(root, job, schema)
    limit = site_budget or budget
    for name, table in tables.items():
        home = homes[name]
        schema.save(home / "schema.toml")
        decode(schema, table, np.random.default_rng(0)).to_csv(home / "rows.csv", index=False)
        content = {
            "site": {"name": name},
            "source": {"data": "rows.csv", "schema": "schema.toml", "rows_are_persons": True},
            "coordinator": {"key": coordinator.public.hex()},
            "policy": {
                "budget": {"epsilon": limit.epsilon, "delta": limit.delta},
                "per_run": {"epsilon": limit.epsilon, "delta": limit.delta},
                "trusts": {trust: dict(trust_options or {})},
                "coordinator_sees_exact_counts": trust == "trusted",
                "verbs": ["sum", "each", "choose", "deposit"],
                "unit": {"rows": unit.rows, "sites": unit.sites},
                "size_is_public": public_sizes,
                "plans": "any",
                "answer_every": answer_every,
                **policy,
            },
            "flower": {"superlink": "127.0.0.1:1"},
        }
        (home / "site.toml").write_text(tomli_w.dumps(content))
        (home / "roster.toml").write_text(roster)
        (home / "state").mkdir(mode=0o700)
        Book(load_site_config(home).account).first("", SECRET, _secret(SEED, name))
    return Job.load(root / "job.toml")


def of(job: Job, **changed: Any) -> Deployment:
    """Return a job's deployment, with these entries changed."""
    assert job.deployment is not None
    return replace(job.deployment, **changed)


def seeded_salts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let deployed sites in this process draw the salts of the seeded simulation, so that their bits are its bits."""

    def seeded(path: Path) -> Book:
        return Book(path, entropy=_seeded(_secret(SEED, path.parents[1].name)))

    monkeypatch.setattr(site_state, "Book", seeded)


def begin(root: Path, job: Job, schema: Schema) -> None:
    """Begin the server's run with the seed and the secret of the simulation."""
    state = root / "state" / RUN
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = {"format": 1, "job": job.digest(schema), "seed": SEED, "secret": _secret(SEED, "server").hex()}
    (state / "run.json").write_text(json.dumps(fresh))


def simulated(
    folder: Path,
    tables: Mapping[str, Table],
    schema: Schema,
    trust: Trust,
    method: Method,
    *,
    budget: Budget,
    public_sizes: bool = False,
    unit: Unit = ONE_ROW,
    transport: Callable[[Sequence[Site]], Transport] = InProcess,
) -> tuple[bytes, bytes]:
    """Return model and rows of the same run in one process."""
    if unit != ONE_ROW:
        tables = of_strangers(tables)
    federation = federate(
        tables, schema, budget, trust=trust, unit=unit, seed=SEED, public_sizes=public_sizes, transport=transport
    )
    name = next(known.name for known in all_methods() if type(method) is known.kind)
    agreed = Agreement.of(federation.terms, len(tables), name, method, federation.agreement.roster)
    federation = dataclasses.replace(federation, agreed=agreed)
    if public_sizes:
        federation.public_sizes()  # a deployed server has to ask for them
    synthesizer = method.fit(federation)
    rows = synthesizer.sample(500, federation.rng)
    synthesizer = with_limitations(synthesizer, federation)
    folder.mkdir(parents=True, exist_ok=True)
    synthesizer.save(folder / "model.fedsynth")
    rows.to_csv(folder / "synthetic.csv", index=False)
    return product(folder)


def product(folder: Path) -> tuple[bytes, bytes]:
    """Return the bytes of a run directory's model, without its statement, and rows.

    A simulated run with a seed states other conditions than a deployed one with the same noise.
    """
    head, arrays = unpack((folder / "model.fedsynth").read_bytes())
    return pack({**head, "statement": None}, arrays), (folder / "synthetic.csv").read_bytes()


def accounts(root: Path) -> dict[str, Book]:
    """Return each site's own account."""
    homes = sorted((root / "sites").iterdir())
    return {home.name: Book(load_site_config(home).account) for home in homes}


def spent(root: Path) -> dict[str, float]:
    """Return what each site's own account has charged, in rho."""
    return {name: account.spent().rho for name, account in accounts(root).items()}


# ---------------------------------------------------------------------------------------------------------------------
# Processes


class FlowerWorld(LocalFlower):
    """SuperLink, server and sites as real processes on the loopback interface, which serve one federation or another.

    All of them read the folder ``current``: :meth:`use` makes it one laid-out federation or another.
    """

    def __init__(self, folder: Path, sites: Sequence[str]) -> None:
        """Make certificates and keys, and a federation that is not complete; start nothing yet."""
        authority = Authority.create()
        server = folder / "server"
        self.keys = {name: folder / "nodes" / name for name in sites}
        for name, home in {"server": server, **self.keys}.items():
            home.mkdir(parents=True)
            certificate, key = authority.issue_with_key(name, "site" if name in sites else "server", "localhost")
            (home / "ca.crt").write_text(authority.text)
            (home / f"{name}.pem").write_text(certificate)
            write_private(home / f"{name}.key", key)
        write_private(server / SERVER_SECRET, os.urandom(32))
        for home in self.keys.values():
            make_node_key(home / "node-key")
        root = folder / "current"
        super().__init__(folder, root, server, {name: root / "sites" / name for name in sites})
        none = folder / "none"
        row = Table(Schema((Categorical("none", ("a", "b")),)), (np.zeros(1, dtype=np.uint8),))
        lay_out(none, dict.fromkeys(sites, row), row.schema, "local", "oneshot", budget=Budget(1.0, 1e-6))
        self.use(none)

    def use(self, root: Path) -> None:
        """Let server and sites work for a laid-out federation, whose sites get this world's keys and certificates."""
        for name, home in self.keys.items():
            if (root / "sites" / name).is_dir():
                shutil.copytree(home, root / "sites" / name, dirs_exist_ok=True)
        link = self.folder / "current"
        link.unlink(missing_ok=True)
        link.symlink_to(root)

    def submit_job(self, root: Path) -> str:
        """Start the job of a laid-out federation; return Flower's id of the run."""
        self.use(root)
        return self.control.start(self._app(root))

    def _app(self, folder: Path) -> Path:
        app = folder / "app"
        if not app.exists():
            app.mkdir()
            (app / "pyproject.toml").write_text(toml_file("app.toml", version=__version__))
        return app

    def deploy(self, command: str, root: Path, *options: str) -> subprocess.Popen[str]:
        """Start ``fedsynth deploy COMMAND`` for a laid-out federation; its output can be read."""
        self._app(root)
        return subprocess.Popen(
            [sys.executable, "-c", "from fedsynth.cli.app import main; main()", "deploy", command, str(root), *options],
            env={**os.environ, "FLWR_HOME": str(self.folder / "home-cli")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def deploy_run(self, root: Path, *options: str) -> subprocess.Popen[str]:
        """Start ``fedsynth deploy run`` for a laid-out federation."""
        return self.deploy("run", root, "--database", str(self.folder / "state.db"), *options)


def connected_world(sites: Sequence[str]) -> Any:
    """Return the fixture ``world`` of a file of tests, for all of them: a world whose sites are connected."""

    @pytest.fixture(scope="module", name="world")
    def connected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlowerWorld]:
        world = FlowerWorld(tmp_path_factory.mktemp("flower"), sites)
        try:
            world.start()
            yield world
        finally:
            world.stop()

    return connected


def children(parent: int) -> list[int]:
    """Return the processes that a process started and that run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent and fields[0] != "Z":
                found.append(int(stat.parent.name))
    return found
