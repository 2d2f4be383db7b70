"""A whole run over Flower's own processes, and a plan of faults that a seed determines.

SuperLink, superexec, the server's process, SuperNodes, `site serve` and `deploy run` are killed and paused, disks are
full, clocks are off by a day, and the network between nodes and SuperLink drops, delays and cuts connections. What has
ended is started again after a while, as systemd would. Then everything is mended, and `deploy run` is given until the
run has ended. Flower's heartbeats come every 10 s, so that it forgets a dead node and a dead run sooner.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import resource
import select
import signal
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from tests.attacks.world import SCHEMA
from tests.chaos.world import BUDGET, METHODS, Fault, Outcome, Plan, Setup, needles_of
from tests.transports.flower_world import RUN, FlowerWorld, children, lay_out
from tests.transports.recomputing import keep_salts

from fedsynth.errors import FedsynthError
from fedsynth.federation.coordinator import Coordinator
from fedsynth.federation.transport import recorded_answer, records
from fedsynth.federation.wire import Request
from fedsynth.runs.state import COORDINATOR
from fedsynth.transports.flower.control import TABLES

DEADLINE = 20.0  # s of a round
BOUND = 300.0  # s within which `deploy run` has to end, whatever happens
AGAIN = 2.0  # s after which what ended by itself is started again
SERVER = ("superlink", "superexec", "app", "deploy")
SITE = ("node", "serve")
KNOWN = (0, 2, 4, 5, 7, 8)  # exit codes of `deploy run` that docs/cli.md gives a meaning
GOING_ON = ("is going on", "a run is going on")
SHIFTED = """
import datetime, faulthandler, os, signal, time
faulthandler.register(signal.SIGUSR1, all_threads=True)
from flwr.common import constant
constant.HEARTBEAT_DEFAULT_INTERVAL = 10
days = int(os.environ.get("CHAOS_DAYS", "0"))
if days:
    print("the clock is off by", days, "days", flush=True)
    whole, seconds, nanoseconds, shift = datetime.datetime, time.time, time.time_ns, datetime.timedelta(days=days)
    class Shifted(whole):
        @classmethod
        def now(cls, tz=None):
            return whole.now(tz) + shift
    datetime.datetime = Shifted
    time.time = lambda: seconds() + shift.total_seconds()
    time.time_ns = lambda: nanoseconds() + days * 86400 * 10**9
"""


# ---------------------------------------------------------------------------------------------------------------------
# What a seed determines


def plan_of(seed: int) -> Plan:
    """Return the setup and the faults of a seed, each some seconds after the start, the beginning or a question."""
    rng = random.Random(1000 + seed)
    trust = ("trusted", "local", "secure")[seed % 3]
    method = ("oneshot", "auto")[seed // 3 % 2]
    setup = Setup(method, trust, 3, 3 if trust == "secure" else rng.choice([2, 3]), seeded=False)
    starts, clocks = [], {}
    targets = [*SERVER, *(f"{kind}-{name}" for kind in SITE for name in (rng.choice(setup.names),) * 2)]
    for _ in range(rng.choice([1, 2, 2])):
        faults = []
        for _ in range(rng.choice([1, 2, 3])):
            after = rng.choice(["start", "begun", "asked", "asked"])
            at = rng.uniform(0, 8 if after == "start" else 3)
            kind = rng.choice(["kill", "kill", "pause"])
            lasts = rng.choice([rng.uniform(0.5, 5), rng.uniform(5, 25)])
            faults.append(Fault(kind, at, rng.choice(targets), lasts, after))
        starts.append(tuple(faults))
    disk = rng.choice(["", "", "server", "superlink", rng.choice(setup.names)])
    if rng.random() < 0.25:
        clocks[rng.choice(setup.names)] = rng.choice([-1, 1])
    loss = rng.choice([0.0, 0.05, 0.2])
    if disk:
        starts[0] = (*starts[0], Fault("fill", rng.uniform(0, 3), disk, 0.0, rng.choice(["start", "begun", "asked"])))
    return Plan(setup, tuple(starts), loss, disk, rng.randrange(0, 8) * 4096, clocks)


# ---------------------------------------------------------------------------------------------------------------------
# A lossy network


class Relay:
    """A TCP relay that drops, delays and cuts connections at random while ``loss`` is not 0."""

    def __init__(self, to: int, loss: float, rng: random.Random) -> None:
        """Listen at a free port of the loopback interface, for the port ``to`` there."""
        self.loss = loss
        self._to = to
        self._rng = rng
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept nothing more."""
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()

    def _accept(self) -> None:
        while True:
            try:
                inner, _ = self._door.accept()
            except OSError:
                return
            if self._rng.random() < self.loss:
                inner.close()
            else:
                threading.Thread(target=self._carry, args=(inner,), daemon=True).start()

    def _carry(self, inner: socket.socket) -> None:
        with inner, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._to), 5) as outer:
            other = {inner: outer, outer: inner}
            while True:
                for one in select.select([inner, outer], [], [])[0]:
                    part = one.recv(1 << 16)
                    if not part or self._rng.random() < self.loss / 10:
                        return
                    if self._rng.random() < self.loss:
                        time.sleep(self._rng.expovariate(1.0))
                    other[one].sendall(part)


# ---------------------------------------------------------------------------------------------------------------------
# The processes


@dataclass
class Deployed(Outcome):
    """How a run over Flower ended; ``exposed`` are the files that held an exact count at any time."""

    exposed: set[str] = field(default_factory=set)
    left: int = 0  # rows of messages in the SuperLink's database after the end
    seconds: float = 0.0


class DeployedWorld(FlowerWorld):
    """The processes of one run, in a folder of its own."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        """Lay the federation out; start nothing."""
        folder.mkdir(exist_ok=True)
        super().__init__(folder / "flower", plan.setup.names)
        self.plan, setup = plan, plan.setup
        self.root = folder / "root"
        lay_out(
            self.root,
            setup.tables(),
            SCHEMA,
            setup.trust,
            setup.method,
            budget=BUDGET,
            options=METHODS[setup.method],
            trust_options=setup.trust_options,
            min_sites=setup.min_sites,
            deadline=DEADLINE,
            answer_every=1.0,
        )
        keep_salts(self.root)
        self.use(self.root)
        (folder / "boot").mkdir()
        (folder / "boot" / "sitecustomize.py").write_text(SHIFTED)
        rng = random.Random(repr(plan))
        self.relays = {name: Relay(self.port, 0.0, random.Random(rng.random())) for name in setup.names}
        self.outcome = Deployed(self.root, plan, notes=folder / "replies")
        self.due: dict[str, float] = {}  # when what ended is started again, by name
        self.paused: dict[int, float] = {}  # when what is paused goes on, by process
        self.faulty = False
        self._needles = {needle: what for needle, what in needles_of(setup).items() if len(needle) >= 10}
        self._command: subprocess.Popen[str] | None = None

    # What is different from undisturbed processes

    def spawn(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a process whose clock may be off."""
        path = f"{self.root.parent / 'boot'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        days = self.plan.clocks.get(name.partition("-")[2], 0) if self.faulty else 0
        return super().spawn(name, "env", f"PYTHONPATH={path}", f"CHAOS_DAYS={days}", *command)

    def supernode(self, ca: Path, key: Path | None) -> list[str]:
        """Return the beginning of a SuperNode's command, which reaches the SuperLink through its relay."""
        assert key is not None
        command = super().supernode(ca, key)
        command[command.index("--superlink") + 1] = f"127.0.0.1:{self.relays[key.parent.name].port}"
        return command

    # The supervisor

    def _start(self, name: str) -> None:
        kind, _, site = name.partition("-")
        if name == "superlink-exec":
            self.start_superexec()
        elif kind == "superlink":
            self.start_superlink()
        elif kind == "node":
            self.start_supernode(site)
        else:
            self.spawn(name, *self.serve(site))

    def tend(self) -> None:
        """Start what has ended again once it is time, and let go on what has been paused long enough."""
        moment = time.monotonic()
        for pid in [pid for pid, end in self.paused.items() if end <= moment]:
            del self.paused[pid]
            _signal(pid, signal.SIGCONT)
        for name in list(self.processes):
            if self.processes[name].poll() is None:
                self.due.pop(name, None)
            elif moment >= self.due.setdefault(name, moment + AGAIN):
                del self.due[name]
                self._start(name)

    def _pids(self, target: str) -> list[int]:
        """Return the processes of a fault's target: none where it does not run at the moment."""
        if target == "deploy":
            alive = self._command is not None and self._command.poll() is None
            return [self._command.pid] if alive and self._command is not None else []
        if target == "app":
            return children(self.processes["superlink-exec"].pid)
        name = "superlink-exec" if target == "superexec" else target
        process = self.processes[name]
        return [] if process.poll() is not None else [process.pid]

    def _inflict(self, fault: Fault) -> None:
        if fault.kind == "fill":
            self.outcome.hit.append(f"full disk {fault.target}")
            self._fill(full=True)
            return
        for pid in self._pids(fault.target):
            self.outcome.hit.append(f"{fault.kind} {fault.target} {fault.lasts:.0f} s")
            if fault.kind == "pause":
                _signal(pid, signal.SIGSTOP)
                self.paused[pid] = time.monotonic() + fault.lasts
            else:
                _signal(pid, signal.SIGKILL)
                name = "superlink-exec" if fault.target == "superexec" else fault.target
                if name in self.processes:
                    self.processes[name].wait(10)
                    self.due[name] = time.monotonic() + fault.lasts

    def _fill(self, full: bool) -> None:
        """Let a disk be full, or have room again: no file there grows by more than ``room`` beyond the largest."""
        if self.plan.disk == "superlink":
            folder, pids = self.folder, self._pids("superlink")
        elif self.plan.disk == "server":
            folder, pids = self.root / "state", [*self._pids("superexec"), *self._pids("app")]
        else:
            folder, pids = self.root / "sites" / self.plan.disk / "state", self._pids(f"serve-{self.plan.disk}")
        largest = max((path.stat().st_size for path in _files(folder)), default=0)
        limit = largest + self.plan.room if full else resource.RLIM_INFINITY
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    # The run

    def _happened(self, since: int) -> set[str]:
        file = self.root / "state" / RUN / "events.jsonl"
        if not file.exists():
            return set()
        whole = file.read_bytes()[since:].rpartition(b"\n")[0]
        return {json.loads(line)["event"] for line in whole.splitlines()}

    def _deploy(self, faults: Sequence[Fault]) -> int:
        """Give ``deploy run``, with faults while it runs; return its exit code."""
        file = self.root / "state" / RUN / "events.jsonl"
        since = file.stat().st_size if file.exists() else 0
        self._command = command = self.deploy_run(self.root)
        began = time.monotonic()
        anchors = {"start": began}
        pending = list(faults)
        watched = 0.0
        while command.poll() is None:
            self.tend()
            moment = time.monotonic()
            for event in self._happened(since) - anchors.keys():
                anchors[event] = moment
            for fault in [one for one in pending if one.after in anchors and moment >= anchors[one.after] + one.at]:
                pending.remove(fault)
                self._inflict(fault)
            if moment - watched > 2:
                watched = moment
                self.look(self.folder.glob("state.db*"))
            if moment - began > BOUND:
                raise TimeoutError(f"`deploy run` did not end within {BOUND:g} s")
            time.sleep(0.1)
        _, said = command.communicate()
        self.look(_files(self.folder))
        self.outcome.said.append(said.strip())
        self.outcome.codes.append(command.returncode)
        return command.returncode

    def _until_done(self, seconds: float, done: Callable[[], object]) -> None:
        end = time.monotonic() + seconds
        while not done():
            self.tend()
            if time.monotonic() > end:
                raise TimeoutError(f"{self.outcome.hit}: not over within {seconds:g} s")
            time.sleep(1)

    def _all_up(self) -> bool:
        with contextlib.suppress(FedsynthError, subprocess.TimeoutExpired):
            ended = [name for name, process in self.processes.items() if process.poll() is not None]
            return not self.paused and not ended and self.online() == self.plan.setup.sites
        return False

    def run(self) -> Deployed:
        """Run under faults, mend everything, and run on until the run is complete or keeps saying why it cannot be."""
        self.start()
        began = time.monotonic()
        self.faulty = True
        for relay in self.relays.values():
            relay.loss = self.plan.loss
        for name in self._of_clocks():
            self.kill(name)
            self._start(name)
        for faults in self.plan.starts:
            self._deploy(faults)
            if self.outcome.completed:
                break
        self._mend()
        for _ in range(4):
            if self.outcome.completed:
                break
            code = self._deploy(())
            if code == 7:  # "restart the missing sites": where they are, their logs tell
                for process in self.processes.values():
                    _signal(process.pid, signal.SIGUSR1)
                time.sleep(1)
                self._restart([f"{kind}-{name}" for name in self.plan.setup.names for kind in SITE])
            if code == 8 and "is going on" in self.outcome.said[-1]:
                self._until_done(BOUND, lambda: not self._going_on())
        if self.outcome.codes[-1]:
            self._purge()
        self.outcome.left = self._messages()
        self.look(_files(self.folder))
        self.look(path for path in _files(self.root) if not path.is_relative_to(self.root / "sites"))
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    def _of_clocks(self) -> list[str]:
        return [f"{kind}-{name}" for name in self.plan.clocks for kind in SITE]

    def _mend(self) -> None:
        self.faulty = False
        for relay in self.relays.values():
            relay.loss = 0.0
        if self.plan.disk:
            self._fill(full=False)
        # A SuperLink that could not write ends a node's heartbeats for good, and a connection that is cut during its
        # TLS handshake the node's work, while its process runs on: docs/deploy.md says to restart it. (Behind the nginx
        # of a site's deployment a node sees a 502 instead.)
        stuck = self.plan.loss or self.plan.disk == "superlink"
        nodes = [f"node-{name}" for name in self.plan.setup.names] if stuck else []
        self._restart(sorted({*self._of_clocks(), *nodes}))
        self._until_done(BOUND, lambda: not self._going_on())

    def _restart(self, names: Sequence[str]) -> None:
        """Start some processes anew, and wait until all are up."""
        for name in names:
            self.kill(name)
            self._start(name)
        self._until_done(150, self._all_up)

    def _going_on(self) -> bool:
        """Whether a run that nobody looks at any more goes on at the server."""
        process = self.deploy("status", self.root, "--json")
        shown, _ = process.communicate(timeout=60)
        if process.returncode:
            return False  # none has begun
        return json.loads(shown)["runs"][-1]["state"] in ("connecting", "asking", "computing")

    def _purge(self) -> None:
        """Delete the messages as docs/deploy.md says where no ``deploy run`` saw the end."""

        def purged() -> bool:
            process = self.deploy("purge", self.root, "--database", str(self.folder / "state.db"))
            _, said = process.communicate(timeout=120)
            assert process.returncode == 0 or "a run is going on" in said, said
            return process.returncode == 0

        self._until_done(BOUND, purged)

    def _messages(self) -> int:
        with closing(sqlite3.connect(self.folder / "state.db")) as link:
            return sum(int(link.execute(f"SELECT count(*) FROM {table}").fetchone()[0]) for table in TABLES)

    def look(self, files: Iterator[Path]) -> None:
        """Note which files hold an exact count."""
        for path in files:
            with contextlib.suppress(FileNotFoundError):
                content = path.read_bytes()
                found = [what for needle, what in self._needles.items() if needle in content]
                self.outcome.exposed |= {f"{path.name} holds {what}" for what in found}

    def close(self) -> None:
        """End every process that was started."""
        if self._command is not None and self._command.poll() is None:
            self._command.kill()
            self._command.communicate()
        for process in self.processes.values():
            if process.poll() is None:
                for child in children(process.pid):
                    _signal(child, signal.SIGKILL)
        self.stop()
        for relay in self.relays.values():
            relay.close()


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def note_replies(outcome: Outcome) -> None:
    """Write down the replies that the server's transcript holds, as the accounts' verdict reads them."""
    transcript = outcome.root / "state" / RUN / "transcript"
    if not transcript.exists():
        return
    coordinator = Coordinator(bytes.fromhex((outcome.root / COORDINATOR).read_text()))
    held = list(records(transcript))
    asked = {request.digest: request for request in (Request.read(data) for kind, data in held if kind == "question")}
    lines = []
    for kind, data in held:
        if kind == "answer":
            site, digest, reply = recorded_answer(data)
            request = asked[digest]
            key = hashlib.sha256(coordinator.public + bytes.fromhex(request.question)).hexdigest()
            lines.append(json.dumps([site, key, request.turn, "answered", hashlib.sha256(reply).hexdigest()]))
    outcome.notes.write_text("\n".join(lines))
