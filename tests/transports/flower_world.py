"""Federations on disk and as processes: what the tests of the Flower deployment share.

:func:`lay_out` writes a job and one folder per site with the secrets of a seeded simulation, so that a deployed run
and ``federate(..., seed=SEED)`` must give the same bits.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from fedsynth import __version__
from fedsynth.federation.coordinator import Coordinator
from fedsynth.federation.simulate import _secret, _seeded, federate
from fedsynth.federation.site import Site
from fedsynth.federation.transport import InProcess, Transport
from fedsynth.federation.trust import Trust
from fedsynth.federation.trust.secure.masking import identity
from fedsynth.host import state as site_state
from fedsynth.host.config import load_site_config
from fedsynth.host.state import SECRET, make_node_key
from fedsynth.methods import Method
from fedsynth.privacy.account import Account
from fedsynth.privacy.cost import ONE_ROW, Budget, Unit
from fedsynth.rows import Table
from fedsynth.runs.job import Deployment, Job
from fedsynth.runs.state import COORDINATOR
from fedsynth.schema import Schema

SEED = 3
RUN = f"simulation-{SEED}"


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
    min_sites: int = 1,
    answer_every: float = 0.0,
    **policy: Any,
) -> Job:
    """Write the server's folder and the sites'; return the job, whose file is ``root/job.toml``.

    Salts of accounts are random, so that the bits of a run are those of the simulation only under
    :func:`seeded_salts`. ``policy`` are other entries of each site's policy.
    """
    peers = {name: identity(_secret(SEED, name)).hex() for name in tables}
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
    )
    root.mkdir(parents=True)
    schema.save(root / "schema.toml")
    (root / "job.toml").write_text(job.to_toml())
    (root / COORDINATOR).write_text(_secret(SEED, "coordinator").hex())
    (root / COORDINATOR).chmod(0o600)
    begin(root, job, schema)
    limit = site_budget or budget
    for name, table in tables.items():
        home = root / "sites" / name
        home.mkdir(parents=True)
        schema.save(home / "schema.toml")
        schema.decode(table, np.random.default_rng(0)).to_csv(home / "rows.csv", index=False)
        content = {
            "site": {"name": name},
            "source": {"data": "rows.csv", "schema": "schema.toml"},
            "coordinator": {"key": Coordinator(_secret(SEED, "coordinator")).public.hex()},
            "policy": {
                "budget": {"epsilon": limit.epsilon, "delta": limit.delta},
                "trusts": {trust: dict(trust_options or {})},
                "verbs": ["sum", "each", "choose", "deposit"],
                "unit": {"rows": unit.rows, "sites": unit.sites},
                "size_is_public": public_sizes,
                "plans": "any",
                "answer_every": answer_every,
                **policy,
            },
            "flower": {"superlink": "127.0.0.1:1"},
            "peers": peers,
        }
        (home / "site.toml").write_text(tomli_w.dumps(content))
        (home / "state").mkdir(mode=0o700)
        Account(load_site_config(home).account).secret(SECRET, _secret(SEED, name))
    return Job.load(root / "job.toml")


def of(job: Job, **changed: Any) -> Deployment:
    """Return a job's deployment, with these entries changed."""
    assert job.deployment is not None
    return replace(job.deployment, **changed)


def seeded_salts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let deployed sites in this process draw the salts of the seeded simulation, so that their bits are its bits."""

    def seeded(path: Path) -> Account:
        return Account(path, entropy=_seeded(_secret(SEED, path.parents[1].name)))

    monkeypatch.setattr(site_state, "Account", seeded)


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
    federation = federate(
        tables, schema, budget, trust=trust, unit=unit, seed=SEED, public_sizes=public_sizes, transport=transport
    )
    if public_sizes:
        federation.public_sizes()  # a deployed server has to ask for them
    synthesizer = method.fit(federation)
    rows = synthesizer.sample(500, federation.rng)
    folder.mkdir(parents=True, exist_ok=True)
    synthesizer.save(folder / "model.fedsynth")
    rows.to_csv(folder / "synthetic.csv", index=False)
    return product(folder)


def product(folder: Path) -> tuple[bytes, bytes]:
    """Return the bytes of a run directory's model and rows."""
    return (folder / "model.fedsynth").read_bytes(), (folder / "synthetic.csv").read_bytes()


def accounts(root: Path) -> dict[str, Account]:
    """Return each site's own account."""
    homes = sorted((root / "sites").iterdir())
    return {home.name: Account(load_site_config(home).account) for home in homes}


def spent(root: Path) -> dict[str, float]:
    """Return what each site's own account has charged, in rho."""
    return {name: account.spent().rho for name, account in accounts(root).items()}


# ---------------------------------------------------------------------------------------------------------------------
# Processes

BIN = Path(sys.executable).parent
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
    "OMP_NUM_THREADS": "1",
    "NO_COLOR": "1",
}


def free_port() -> int:
    """Return a port of the loopback interface that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(what: str, condition: Callable[[], Any], seconds: float = 60.0, pause: float = 0.2) -> Any:
    """Return what ``condition`` gives as soon as it is true; raise :class:`TimeoutError` naming ``what``."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not happen within {seconds:g} s")
        time.sleep(pause)
    return found


class FlowerWorld:
    """One SuperLink and SuperNodes as real processes on the loopback interface: TLS, node keys, process isolation.

    A node reads ``current/sites/NAME/site.toml``: :meth:`use` makes ``current`` one laid-out federation or another.
    Every process is the leader of its own session, has its own FLWR_HOME, and is stopped by its id.
    """

    def __init__(self, folder: Path, sites: Sequence[str]) -> None:
        """Make certificates and keys; start nothing yet."""
        self.folder = folder
        self.sites = tuple(sites)
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ports: dict[str, int] = {}
        self.tls = folder / "tls"
        self.tls.mkdir()
        script = files("fedsynth.transports.flower") / "templates" / "certificates.sh"
        command = ["sh", str(script), "localhost", *self.sites]
        subprocess.run(command, cwd=self.tls, check=True, capture_output=True, timeout=60)
        (folder / "secret").write_bytes(os.urandom(32))
        (folder / "secret").chmod(0o600)
        for name in self.sites:
            make_node_key(folder / f"key-{name}")
        home = folder / "home-cli"
        home.mkdir()
        connection = {"address": f"127.0.0.1:{self.port}", "root-certificates": str(self.tls / "ca.crt")}
        (home / "config.toml").write_text(tomli_w.dumps({"superlink": {"default": "world", "world": connection}}))

    def start(self) -> None:
        """Start the SuperLink, register the nodes by name, start them, wait until all are there."""
        self.start_superlink()
        for name in self.sites:
            self.flwr("supernode", "register", str(self.folder / f"key-{name}.pub"), "world", "--name", name)
        for name in self.sites:
            self.start_node(name)
        wait_for("the nodes' connection", lambda: self.online() == len(self.sites), 120, pause=2)

    def start_superlink(self) -> None:
        """Start the SuperLink and its SuperExec, on the database of the last one if there was one."""
        tls = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
        isolation = ["--isolation", "process", "--superexec-auth-secret-file", str(self.folder / "secret")]
        self.spawn(
            "superlink",
            *("flower-superlink", "--host", "127.0.0.1", "--port", str(self.port), *tls, *isolation),
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
            *("--database", str(self.folder / "state.db")),
        )
        self.spawn("superlink-exec", *self.superexec(self.port))
        wait_for("the SuperLink's start", lambda: listens(self.port), 60)

    def start_node(self, name: str) -> None:
        """Start the SuperNode of a site, and what answers for it."""
        port = self.ports[name] = free_port()
        tls = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", f"{name}.pem", "--ssl-keyfile", f"{name}.key"]
        self.spawn(
            f"node-{name}",
            *self.supernode(name, "ca.crt", self.folder / f"key-{name}"),
            *("--port", str(port), *tls, "--isolation", "process"),
            *("--superexec-auth-secret-file", str(self.folder / "secret")),
        )
        self.spawn(f"serve-{name}", *self.serve(name, self.folder / "secret"))

    def serve(self, name: str, secret: Path) -> list[str]:
        """Return the command that answers for a site whose SuperNode has been started."""
        site = self.folder / "current" / "sites" / name
        options = ["--supernode", f"127.0.0.1:{self.ports[name]}", "--root-certificates", str(self.tls / "ca.crt")]
        return ["fedsynth", "site", "serve", str(site), *options, "--secret", str(secret)]

    def supernode(self, name: str, ca: str, key: Path | None) -> list[str]:
        """Return the beginning of a SuperNode's command."""
        auth = [] if key is None else ["--auth-supernode-private-key", str(key)]
        server = ["--superlink", f"127.0.0.1:{self.port}", "--root-certificates", ca]
        return ["flower-supernode", *server, *auth, "--host", "127.0.0.1"]

    def superexec(self, port: int) -> list[str]:
        """Return the command of the process that starts the apps' processes for whoever listens on a port."""
        address = ["--runtime-api-address", f"127.0.0.1:{port}", "--root-certificates", str(self.tls / "ca.crt")]
        return ["flower-superexec", *address, "--superexec-auth-secret-file", str(self.folder / "secret")]

    def spawn(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a process in the folder of the certificates; what it prints is added to ``NAME.log``."""
        home = self.folder / f"home-{name}"
        environment = {**os.environ, **QUIET, "PATH": f"{BIN}:{os.environ['PATH']}", "FLWR_HOME": str(home)}
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                cwd=self.tls,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=0o077,
            )
        self.processes[name] = process
        return process

    def kill(self, *names: str) -> None:
        """End processes and what they started, as a power failure would."""
        for name in names:
            process = self.processes.pop(name)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)

    def stop(self) -> None:
        """End everything that was started."""
        self.kill(*list(self.processes))

    def log(self, name: str) -> str:
        """Return what a process printed."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def flwr(self, *arguments: str) -> str:
        """Run the ``flwr`` command and return what it prints."""
        home = self.folder / "home-cli"
        environment = {**os.environ, **QUIET, "PATH": f"{BIN}:{os.environ['PATH']}", "FLWR_HOME": str(home)}
        command = [str(BIN / "flwr"), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise RuntimeError(f"flwr {' '.join(arguments)}: {done.stdout}\n{done.stderr}")
        return done.stdout

    def online(self) -> int:
        """Return how many nodes are connected, as far as the SuperLink knows."""
        listed = json.loads(self.flwr("supernode", "list", "world", "--format", "json"))
        return sum(one["status"] == "online" for one in listed["nodes"])

    def use(self, root: Path) -> None:
        """Let the nodes answer from the sites of a laid-out federation."""
        link = self.folder / "current"
        link.unlink(missing_ok=True)
        link.symlink_to(root)

    def submit(self, root: Path) -> str:
        """Start the job of a laid-out federation; return Flower's id of the run."""
        app = self.folder / "app"
        if not app.exists():
            app.mkdir()
            template = files("fedsynth.transports.flower") / "templates" / "app.toml"
            (app / "pyproject.toml").write_text(template.read_text().replace("@VERSION@", __version__))
        job = f'job="{root / "job.toml"}"'
        printed = self.flwr("run", str(app), "world", "--format", "json", "--run-config", job)
        return str(json.loads(printed)["run-id"])

    def status(self, run_id: str) -> str:
        """Return how a run stands, such as ``running`` or ``finished:completed``."""
        listed = json.loads(self.flwr("list", "world", "--run-id", run_id, "--format", "json"))
        return str(listed["runs"][0]["status"])

    def finish(self, run_id: str, seconds: float = 1200.0) -> str:
        """Wait for the end of a run and return how it ended."""
        wait_for("the end of the run", lambda: "finished" in self.status(run_id), seconds, pause=4)
        return self.status(run_id)


def listens(port: int) -> bool:
    """Whether something accepts connections on a port of the loopback interface."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
