"""A whole run over Flower's own processes, and a plan of faults that a seed determines.

Targets are the SuperLink (``superlink``), the server's resident process (``server``), the attempt at the run that it
forks (``app``), the command ``deploy run`` (``deploy``) and the sites (``node-SITE``). They are killed and paused,
their disks are full, a site's clock is off by 400 days, and the network between sites and SuperLink drops, delays and
cuts connections, or carries nothing for a while. Each fault passes after a time of its own. What a fault has killed is
started again, and so is what ended by itself, as systemd would; a site's process that ends by itself is noted as a
finding. No other process is restarted. ``deploy run`` is given again and again until the run is complete.
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

from tests.attacks.world import answer_in
from tests.chaos.world import Fault, Outcome, Plan, Setup, needles_of
from tests.deploy.flower_world import RUN, FlowerWorld, children
from tests.deploy.recomputing import keep_salts

from fedsynth.deploy.flower.control import TABLES
from fedsynth.federation.transport import recorded_answer, records
from fedsynth.federation.wire import MessageParts
from fedsynth.keys import Keys
from fedsynth.runs.state import COORDINATOR

DEADLINE = 20.0  # s of a round, shorter than many faults
BOUND = 300.0  # s within which `deploy run` has to end, and the run to be complete once all faults have passed
AGAIN = 2.0  # s after which what ended by itself is started again, and `deploy run` is given again
DAYS = 400  # by which a clock is off: longer than a site keeps an idle run
SERVER = ("superlink", "server", "app", "deploy")
KNOWN = (0, 2, 4, 5, 7, 8)  # exit codes of `deploy run` that docs/cli.md gives a meaning
GOING_ON = ("is going on", "is in progress in another process")
# Flower forgets an attempt at the run whose process was killed after twice the time between its heartbeats; Flower's is
# 30 s, and 10 s the least that it takes.
HEARTBEATS = """
import os
if "CHAOS_SERVER" in os.environ:
    from flwr.common import constant
    constant.HEARTBEAT_DEFAULT_INTERVAL = 10
"""
# A process's clock is off by the days that the file CHAOS_CLOCK holds, if it exists: for Python, OpenSSL and SQLite.
CLOCK = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long shift(void) {
    char text[16] = {0};
    const char *name = getenv("CHAOS_CLOCK");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return 0;
    if (read(file, text, sizeof text - 1) < 0) text[0] = 0;
    close(file);
    return atol(text) * 86400;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    if (!result && clock == CLOCK_REALTIME) now->tv_sec += shift();
    return result;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int result = syscall(SYS_gettimeofday, now, zone);
    if (!result && now) now->tv_sec += shift();
    return result;
}
time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}
"""

# ---------------------------------------------------------------------------------------------------------------------
# What a seed determines


def plan_of(seed: int) -> Plan:
    """Return the setup and the faults of a seed, each some seconds after the start, the beginning or a question."""
    rng = random.Random(1000 + seed)
    trust = ("trusted", "local", "secure")[seed % 3]
    method = ("oneshot", "auto")[seed // 3 % 2]
    setup = Setup(method, trust, 3, 3 if trust == "secure" else rng.choice([2, 3]), seeded=False)
    targets = [*SERVER, *(f"node-{name}" for name in setup.names)]
    starts, clocks = [], {}
    for _ in range(rng.choice([1, 2, 2])):
        faults = []
        for _ in range(rng.choice([1, 2, 3])):
            after = rng.choice(["start", "begun", "asked", "asked"])
            at = rng.uniform(0, 8 if after == "start" else 3)
            kind = rng.choice(["kill", "kill", "pause"])
            lasts = rng.choice([rng.uniform(0.5, 5), rng.uniform(5, 25)])
            faults.append(Fault(kind, at, rng.choice(targets), lasts, after))
        starts.append(faults)
    moment = rng.choice(["start", "begun", "asked"])
    if rng.random() < 0.6:
        target = rng.choice(["superlink", "server", f"node-{rng.choice(setup.names)}"])
        starts[0].append(Fault("fill", rng.uniform(0, 3), target, rng.uniform(5, 25), moment))
    if rng.random() < 0.25:
        name = rng.choice(setup.names)
        clocks[name] = rng.choice([-DAYS, DAYS])
        kind = rng.choice(["clock", "reboot"])
        starts[0].append(Fault(kind, rng.uniform(0, 3), f"node-{name}", rng.uniform(10, 40), moment))
    if rng.random() < 0.25:
        starts[-1].append(Fault("part", rng.uniform(0, 3), rng.choice(targets), rng.uniform(10, 40), "asked"))
    loss = rng.choice([0.0, 0.05, 0.2])
    return Plan(setup, tuple(map(tuple, starts)), loss, "", rng.randrange(0, 8) * 4096, clocks)


LASTS = {"kill": 5.0, "pause": 60.0, "fill": 30.0, "part": 40.0, "clock": 40.0, "reboot": 40.0}  # s, in the matrix
# To whom each fault happens, one at a time. A partition at the server is one of all sites.
MATRIX = [
    *((kind, target) for kind in ("kill", "pause", "fill") for target in (*SERVER, "node-site-1")),
    *(("part", target) for target in ("superlink", "node-site-1")),
    *((kind, "node-site-1") for kind in ("clock", "reboot")),
]


def cell_of(kind: str, target: str, method: str) -> Plan:
    """Return the plan of one fault at a moment after the first question that its names determine."""
    rng = random.Random(f"{kind} {target} {method}")
    fault = Fault(kind, rng.uniform(0, 3 if method == "oneshot" else 12), target, LASTS[kind], "asked")
    clocks = {"clock": {"site-1": rng.choice([-DAYS, DAYS])}, "reboot": {"site-1": DAYS}}.get(kind, {})
    return Plan(Setup(method, "secure", 3, 3, seeded=False), ((fault,),), 0.0, "", 0, clocks)


# ---------------------------------------------------------------------------------------------------------------------
# A lossy network


class Relay:
    """A TCP relay that drops, delays and cuts connections at random while ``loss`` is not 0.

    While it is ``parted``, it carries nothing: connections stay open in silence, and of new ones half are closed.
    """

    def __init__(self, to: int) -> None:
        """Listen at a free port of the loopback interface, for the port ``to`` there."""
        self.loss = 0.0
        self.parted = False
        self.rng = random.Random(0)
        self._to = to
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept nothing more."""
        self.parted = False
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()

    def _accept(self) -> None:
        while True:
            try:
                inner, _ = self._door.accept()
            except OSError:
                return
            if self.rng.random() < (0.5 if self.parted else self.loss):
                inner.close()
            else:
                threading.Thread(target=self._carry, args=(inner,), daemon=True).start()

    def _carry(self, inner: socket.socket) -> None:
        with inner, contextlib.suppress(OSError):
            if self._silent():
                return
            with socket.create_connection(("127.0.0.1", self._to), 5) as outer:
                other = {inner: outer, outer: inner}
                while True:
                    for one in select.select([inner, outer], [], [], 0.5)[0]:
                        if self._silent():
                            return
                        part = one.recv(1 << 16)
                        if not part or self.rng.random() < self.loss / 10:
                            return
                        if self.rng.random() < self.loss:
                            time.sleep(self.rng.expovariate(1.0))
                        other[one].sendall(part)

    def _silent(self) -> bool:
        """Wait while nothing is carried; return whether that was so."""
        parted = self.parted
        while self.parted:
            time.sleep(0.1)
        return parted


# ---------------------------------------------------------------------------------------------------------------------
# The processes


@dataclass
class Deployed(Outcome):
    """How a run over Flower ended.

    ``exposed`` are the files that held an exact count at any time, ``ended`` the sites' processes that ended by
    themselves, with the last line of their log. ``left`` counts rows of messages in the SuperLink's database after the
    end, and ``warned`` is whether a command said that there are some.
    """

    exposed: set[str] = field(default_factory=set)
    ended: list[str] = field(default_factory=list)
    left: int = 0
    warned: bool = False
    seconds: float = 0.0


class DeployedWorld(FlowerWorld):
    """The processes of one run after another, each in a folder of its own, in which the processes' logs go on."""

    def __init__(self, folder: Path, sites: Sequence[str]) -> None:
        """Start the processes of these ``sites``, of the server and of the SuperLink."""
        super().__init__(folder, sites)
        self.boot = folder / "boot"
        self.boot.mkdir()
        (self.boot / "sitecustomize.py").write_text(HEARTBEATS)
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(self.boot / "clock.so")]
        subprocess.run(command, input=CLOCK, text=True, check=True, capture_output=True)
        self.relays = {name: Relay(self.port) for name in sites}
        self._due: dict[str, float] = {}  # when what ended is started again, by name
        self._passing: list[tuple[float, Callable[[], None]]] = []  # when a fault passes, and what ends it
        self._full: dict[str, int] = {}  # the bytes to which files may grow, by target
        self._orphans: list[int] = []  # attempts whose parent was killed
        self._command: subprocess.Popen[str] | None = None
        self.start()

    def begin(self, folder: Path, plan: Plan, deadline: float) -> Deployed:
        """Lay out the federation of a plan, with the ``deadline`` of a round in seconds; start nothing."""
        folder.mkdir()
        self.plan = plan
        self.home = folder / "root"
        plan.setup.lay_out(self.home, deadline=deadline, answer_every=1.0)
        keep_salts(self.home)
        self.use(self.home)
        for name, relay in self.relays.items():
            relay.rng = random.Random(f"{name} {plan}")
        self.outcome = Deployed(self.home, plan, notes=folder / "replies")
        self._needles = {needle: what for needle, what in needles_of(plan.setup).items() if len(needle) >= 10}
        self._printed = {name: len(self.log(name)) for name in self.processes}
        return self.outcome

    # What is different from undisturbed processes

    def spawn(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a process whose clock may come to be off, or which sends and misses heartbeats sooner."""
        site = name.partition("-")[2]
        path = f"PYTHONPATH={self.boot}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        clock = [f"CHAOS_CLOCK={self.boot / site}", f"LD_PRELOAD={self.boot / 'clock.so'}"]
        return super().spawn(name, "env", *(clock if site else ["CHAOS_SERVER=1", path]), *command)

    def serve(self, name: str) -> list[str]:
        """Return the command that answers for a site, which reaches the SuperLink through its relay."""
        return [*super().serve(name)[:-1], f"127.0.0.1:{self.relays[name].port}"]

    def printed(self, name: str) -> list[str]:
        """Return the lines that a process has printed since the run was laid out."""
        return self.log(name)[self._printed[name] :].splitlines()

    # The supervisor

    def _start(self, name: str) -> None:
        kind, _, site = name.partition("-")
        if kind == "superlink":
            self.start_superlink()
        elif kind == "server":
            self.start_server()
        else:
            self.start_node(site)

    def tend(self) -> None:
        """Start what has ended again once it is time, and end the faults whose time is over."""
        moment = time.monotonic()
        for entry in [entry for entry in self._passing if entry[0] <= moment]:
            self._passing.remove(entry)
            entry[1]()
        for target, limit in self._full.items():
            self._limit(target, limit)
        for name, process in list(self.processes.items()):
            if process.poll() is None:
                continue
            if name not in self._due:
                self._due[name] = moment + AGAIN
                if name.startswith("node-"):
                    last = (self.printed(name) or [""])[-1]
                    self.outcome.ended.append(f"{name} ended with {process.returncode}: {last}")
            if moment >= self._due[name]:
                del self._due[name]
                self._start(name)

    def _pids(self, target: str) -> list[int]:
        """Return the processes of a fault's target: none where it does not run at the moment."""
        if target == "deploy":
            alive = self._command is not None and self._command.poll() is None
            return [self._command.pid] if alive and self._command is not None else []
        if target == "app":
            return children(self.processes["server"].pid)
        process = self.processes[target]
        return [] if process.poll() is not None else [process.pid]

    def _inflict(self, fault: Fault) -> bool:
        """Let a fault happen; return whether its target was there."""
        pids = self._pids(fault.target)
        if not pids:
            return False
        self.outcome.hit.append(f"{fault.kind} {fault.target} {fault.lasts:.0f} s")
        over, site = time.monotonic() + fault.lasts, fault.target.partition("-")[2]
        if fault.kind == "pause":
            for pid in pids:
                _signal(pid, signal.SIGSTOP)
                self._passing.append((over, lambda pid=pid: _signal(pid, signal.SIGCONT)))  # type: ignore[misc]
        elif fault.kind == "fill":
            self._full[fault.target] = self._largest(fault.target) + self.plan.room
            self._passing.append((over, lambda: self._empty(fault.target)))
        elif fault.kind == "part":
            for name in [site] if site else self.relays:
                self.relays[name].parted = True
                self._passing.append((over, lambda name=name: self._heal(name)))  # type: ignore[misc]
        elif fault.kind == "clock":
            self._set_clock(site, over)
        else:
            self._kill(fault.target, pids, 1.0 if fault.kind == "reboot" else fault.lasts)
            if fault.kind == "reboot":
                self._set_clock(site, over)
        return True

    def _kill(self, target: str, pids: Sequence[int], lasts: float) -> None:
        if target == "server":  # an attempt goes on without it
            self._orphans += children(pids[0])
        for pid in pids:
            _signal(pid, signal.SIGKILL)
        if target in self.processes:
            self.processes[target].wait(10)
            self._due[target] = time.monotonic() + lasts

    def _heal(self, name: str) -> None:
        self.relays[name].parted = False

    def _set_clock(self, site: str, over: float) -> None:
        """Let a site's clock be off until then."""
        (self.boot / site).write_text(str(self.plan.clocks[site]))
        self._passing.append((over, (self.boot / site).unlink))

    def _largest(self, target: str) -> int:
        """Return the size of the largest file where a target writes: no file there grows beyond it and some room."""
        site = target.partition("-")[2]
        folder = self.home / "sites" / site / "state" if site else self.home / "state"
        folder = self.folder if target == "superlink" else folder
        return max((path.stat().st_size for path in _files(folder)), default=0)

    def _limit(self, target: str, limit: int) -> None:
        """Let the files of a target's processes grow to ``limit`` bytes, or without end."""
        pids = [*self._pids(target), *(self._pids("app") if target == "server" else ())]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def _empty(self, target: str) -> None:
        """Let a disk have room again."""
        del self._full[target]
        self._limit(target, resource.RLIM_INFINITY)

    # The run

    def _happened(self, since: int) -> set[str]:
        file = self.home / "state" / RUN / "events.jsonl"
        if not file.exists():
            return set()
        found = set()
        for line in file.read_bytes()[since:].rpartition(b"\n")[0].splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # a full disk leaves incomplete lines
                found.add(json.loads(line)["event"])
        return found

    def _deploy(self, faults: Sequence[Fault]) -> int:
        """Give ``deploy run``, with faults while it runs; return its exit code."""
        file = self.home / "state" / RUN / "events.jsonl"
        since = file.stat().st_size if file.exists() else 0
        self._command = command = self.deploy_run(self.home)
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
                raise TimeoutError(f"{self.outcome.hit}: `deploy run` did not end within {BOUND:g} s")
            time.sleep(0.1)
        _, said = command.communicate()
        self.look(_files(self.folder))
        self.outcome.said.append(said.strip())
        self.outcome.codes.append(command.returncode)
        self.outcome.warned |= "the SuperLink still holds" in said
        return command.returncode

    def _until_done(self, seconds: float, done: Callable[[], object]) -> None:
        end = time.monotonic() + seconds
        while not done():
            self.tend()
            if time.monotonic() > end:
                raise TimeoutError(f"{self.outcome.hit}: not over within {seconds:g} s: {self.outcome.said}")
            time.sleep(0.2)

    def run(self) -> Deployed:
        """Run under faults, and on once all have passed, until the run is complete or keeps saying why it cannot be."""
        began = time.monotonic()
        for relay in self.relays.values():
            relay.loss = self.plan.loss
        for faults in self.plan.starts:
            self._deploy(faults)
            if self.outcome.completed:
                break
        for relay in self.relays.values():
            relay.loss = 0.0
        over = max((end for end, _ in self._passing), default=0.0)
        end, last = max(time.monotonic(), over) + BOUND, 0
        while not self.outcome.completed and time.monotonic() < end and last < 4:
            pause = time.monotonic() + AGAIN
            self._until_done(BOUND, lambda pause=pause: time.monotonic() > pause)  # type: ignore[misc]
            passed = not self._passing
            self._deploy(())
            last += passed and not any(text in self.outcome.said[-1] for text in GOING_ON)
        self._until_done(BOUND, lambda: not self._passing)
        if self.outcome.codes[-1] or self.outcome.warned:
            self._purge()
        self.outcome.left = self._messages()
        self.look(_files(self.folder))
        self.look(path for path in _files(self.home) if not path.is_relative_to(self.home / "sites"))
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    def _purge(self) -> None:
        """Delete the messages as docs/deploy.md says where no ``deploy run`` saw the end, or could not delete them."""

        def purged() -> bool:
            process = self.deploy("stop", self.home, "--purge", "--database", str(self.folder / "state.db"))
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
        self.stop()
        for pid in self._orphans:
            if "fedsynth" in _command_line(pid):
                _signal(pid, signal.SIGKILL)
        for relay in self.relays.values():
            relay.close()


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def note_replies(outcome: Outcome) -> None:
    """Write down the replies that the server's transcript holds, as the accounts' verdict reads them."""
    places = (outcome.root / "runs" / RUN / "transcript", outcome.root / "state" / RUN / "transcript")
    transcript = next((place for place in places if place.exists()), None)
    if transcript is None:
        return
    coordinator = Keys(bytes.fromhex((outcome.root / COORDINATOR).read_text()))
    asked: dict[str, MessageParts] = {}
    lines = []
    for kind, data in records(transcript):
        if kind in ("question", "message"):
            parts = MessageParts.of(data) if kind == "question" else MessageParts.read(data)
            asked[parts.digest.hex()] = parts
        elif kind in ("answer", "signed"):
            site, digest, reply = recorded_answer(data)
            parts = asked[digest]
            key = hashlib.sha256(coordinator.public + parts.question).hexdigest()
            turn = int.from_bytes(parts.turn, "little")
            lines.append(json.dumps([site, key, turn, "answered", hashlib.sha256(answer_in(reply)).hexdigest()]))
    outcome.notes.write_text("\n".join(lines))
