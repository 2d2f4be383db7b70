"""A whole deployed run of real processes, and a plan of faults that a seed determines.

Each site and the server is a process of its own; messages travel over Unix sockets. Processes are killed and paused at
any moment, disks are full, clocks are off, and messages are lost, doubled, late or out of order. Then everything is
mended and the run is started again until it ends. Nothing of fedsynth is replaced: processes are slowed down around
what they write, so that a moment which takes a microsecond is hit as often as any other.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import logging
import multiprocessing
import os
import random
import resource
import shutil
import signal
import socket
import struct
import subprocess
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tests.attacks.world import SCHEMA, answer_in, table
from tests.deploy.flower_world import RUN, SEED, lay_out, product, simulated
from tests.world import contingency

from fedsynth.deploy.host import state as site_state
from fedsynth.deploy.host.config import load_site_config
from fedsynth.deploy.host.state import answer
from fedsynth.encoding import decode, encode
from fedsynth.errors import FedsynthError, SiteLost
from fedsynth.federation.simulate import _secret, _seeded
from fedsynth.federation.transport import Message, Recorded
from fedsynth.federation.wire import AuditPosition, Reply
from fedsynth.privacy.book import Book, now
from fedsynth.privacy.cost import Budget
from fedsynth.rows import Table, concatenate
from fedsynth.runs.folder import RunFolder
from fedsynth.runs.job import Job
from fedsynth.runs.run import run_deployed

FORK = multiprocessing.get_context("fork")
BUDGET = Budget(1.0, 1e-6)
DEADLINE = 0.8  # s of a round
DAY = timedelta(days=1)
METHODS: dict[str, dict[str, Any]] = {"oneshot": {}, "auto": {}, "fedprivsyn": {}}
TRUSTS: dict[str, dict[str, Any]] = {"trusted": {}, "local": {}, "secure": {"min_honest": 3}}
KINDS = ("kill site", "kill site", "kill server", "kill server", "pause site", "pause server", "full disk", "clock")
_LENGTH = struct.Struct(">I")


# ---------------------------------------------------------------------------------------------------------------------
# What a seed determines


@dataclass(frozen=True)
class Setup:
    """A run: ``min_sites`` of ``sites`` must answer; salts are the simulation's if ``seeded``, else the system's."""

    method: str
    trust: str
    sites: int
    min_sites: int
    seeded: bool

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"site-{k}" for k in range(self.sites))

    @property
    def trust_options(self) -> dict[str, Any]:
        if self.trust != "secure":
            return {}
        missing = self.sites - self.min_sites
        return {"min_honest": self.sites - missing, **({"dropouts": missing} if missing else {})}

    def tables(self) -> dict[str, Table]:
        """Return each site's rows."""
        return {name: table(80 + 13 * k, k) for k, name in enumerate(self.names)}

    def lay_out(self, root: Path, **options: Any) -> None:
        """Lay a deployment of the setup out in a folder; start nothing."""
        options = {"options": METHODS[self.method], "trust_options": self.trust_options, **options}
        lay_out(
            root, self.tables(), SCHEMA, self.trust, self.method, budget=BUDGET, min_sites=self.min_sites, **options
        )


@dataclass(frozen=True)
class Fault:
    """What happens ``at`` seconds after the server's start, or after that event: to whom, and for how long."""

    kind: str
    at: float
    target: str
    lasts: float
    after: str = "start"


@dataclass(frozen=True)
class Plan:
    """The faults of a run: of each start of the server, how lossy messages are, and whose disk is small."""

    setup: Setup
    starts: tuple[tuple[Fault, ...], ...]
    loss: float
    disk: str  # name of the site, or "server", whose disk has ``room`` bytes to spare; empty for none
    room: int
    clocks: Mapping[str, int]  # days by which the clocks of sites are off, from their second start on


def plan_of(seed: int) -> Plan:
    rng = random.Random(seed)
    methods, trusts = list(METHODS), list(TRUSTS)
    # All nine pairs come round in turn; what else differs is drawn.
    method, trust = methods[seed % 3], trusts[seed // 3 % 3]
    sites = rng.choice([3, 4, 5])
    missing = rng.choice([0, 0, 1]) if sites > 3 else 0
    setup = Setup(method, trust, sites, sites - missing, seeded=rng.random() < 0.75)
    starts = []
    disk, room, clocks = "", 0, {}
    for _ in range(rng.choice([1, 2, 3])):
        faults = []
        for _ in range(rng.choice([1, 2, 3])):
            kind = rng.choice(KINDS)
            name = rng.choice(setup.names)
            if kind == "full disk":
                disk = disk or rng.choice(["server", rng.choice(setup.names)])
                room = rng.randrange(0, 8 if disk == "server" else 16) * 4096
            elif kind == "clock":
                clocks[name] = rng.choice([-1, 1])
            else:
                target = "server" if kind.endswith("server") else name
                faults.append(Fault(kind.split()[0], rng.uniform(0.05, 2.0), target, rng.uniform(0.05, 1.5)))
        starts.append(tuple(sorted(faults, key=lambda fault: fault.at)))
    loss = rng.choice([0.0, 0.0, 0.1, 0.3])
    return Plan(setup, tuple(starts), loss, disk, room, clocks)


# ---------------------------------------------------------------------------------------------------------------------
# A site's process


def serve(home: Path, listener: str, seeded: bool, days: int, slow: bool, room: int | None) -> None:
    """Answer a site's messages, one after the other, until the process is killed."""
    logging.getLogger("fedsynth").setLevel(logging.CRITICAL)
    rng = random.Random(os.getpid())
    shift = days * DAY
    if room is not None:
        _limit_files(home / "state", room)
    if slow:
        for name in ("begin", "store", "_append", "pin"):
            _slow(Book, name, rng)
    if days:
        seconds, nanoseconds = time.time, time.time_ns
        time.time = lambda: seconds() + shift.total_seconds()
        time.time_ns = lambda: nanoseconds() + int(shift.total_seconds()) * 10**9

    def clock() -> datetime:
        return now() + shift

    def opened(path: Path) -> Book:
        entropy = _seeded(_secret(SEED, path.parents[1].name)) if seeded else None
        return Book(path, entropy=entropy, clock=clock)

    setattr(site_state, "Book", opened)  # noqa: B010 - the salts of the simulation and the clock are parameters of it
    with socket.socket(socket.AF_UNIX) as door:
        Path(listener).unlink(missing_ok=True)
        door.bind(listener)
        door.listen(64)
        while True:
            connection, _ = door.accept()
            with connection, contextlib.suppress(OSError):
                (reply,) = answer(load_site_config(home), [_receive(connection)]).replies
                connection.sendall(_LENGTH.pack(len(reply)) + reply)


def _slow(kind: type, name: str, rng: random.Random) -> None:
    """Let a method take a while before and after it does what it does."""
    whole = getattr(kind, name)

    @functools.wraps(whole)
    def slowed(*args: Any, **options: Any) -> Any:
        time.sleep(rng.uniform(0, 0.03))
        found = whole(*args, **options)
        time.sleep(rng.uniform(0, 0.03))
        return found

    setattr(kind, name, slowed)


def _limit_files(folder: Path, room: int) -> None:
    """Let no file grow by more than ``room`` bytes: a full disk for those who may not mount one."""
    largest = max((path.stat().st_size for path in folder.rglob("*") if path.is_file()), default=0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest + room, resource.RLIM_INFINITY))


def _receive(connection: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return _exactly(connection, length)


def _exactly(connection: socket.socket, length: int) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        if not (part := connection.recv(length - len(parts))):
            raise ConnectionError("the connection ended")
        parts += part
    return bytes(parts)


# ---------------------------------------------------------------------------------------------------------------------
# The server's process


@dataclass
class Sockets:
    """A transport over Unix sockets that loses, doubles, delays and repeats messages; ``notes`` get every reply."""

    doors: Mapping[str, str]
    notes: Path
    loss: float
    rng: random.Random
    deadline: float
    old: list[Message] = field(default_factory=list)

    @property
    def sites(self) -> Sequence[str]:
        return tuple(self.doors)

    def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
        for message in messages:
            yield self._asked(message)
            self.old.append(message)

    def _asked(self, message: Message) -> Reply:
        end = time.monotonic() + self.deadline
        if self.old and self.rng.random() < self.loss:  # an old message arrives after newer ones, or once more
            self._sent(self.rng.choice(self.old), end)
        while time.monotonic() < end:
            if self.rng.random() < self.loss / 3:
                time.sleep(self.rng.uniform(0, 0.3))
            if self.rng.random() < self.loss / 3:  # lost on its way
                continue
            data = self._sent(message, end)
            if data is not None and self.rng.random() < self.loss / 3:
                data = None  # the reply is lost
            if data is not None and self.rng.random() < self.loss / 3:
                data = self._sent(message, end) or data  # it arrives twice
            if data is not None:
                return message.reply(data)
            time.sleep(0.02)
        return message.lost(f"no answer within {self.deadline:g} s")

    def _sent(self, message: Message, end: float) -> bytes | None:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(max(0.05, end - time.monotonic()))
                connection.connect(self.doors[message.site])
                connection.sendall(_LENGTH.pack(len(message.data)) + message.data)
                data = _receive(connection)
        except OSError:
            return None
        self._note(message, data)
        return data

    def _note(self, message: Message, data: bytes) -> None:
        request = message.request
        asked = hashlib.sha256(message.coordinator.public + bytes.fromhex(request.question)).hexdigest()
        code = message.reply(data).code
        stored = answer_in(data) if code == "answered" else b""
        line = [message.site, asked, request.turn, code, hashlib.sha256(stored).hexdigest()]
        with self.notes.open("a") as file:
            file.write(json.dumps(line) + "\n")


def run_server(root: Path, transport: Sockets, result: Path, slow: bool, room: int | None) -> None:
    """Run the job to its end, and write down how it ended: an exit code of the command line, and what is said."""
    logging.getLogger("fedsynth").setLevel(logging.CRITICAL)
    if room is not None:
        _limit_files(root / "state", room)
    if slow:
        for name in ("_record", "_ask", "released"):
            _slow(Recorded, name, random.Random(os.getpid()))
    said: tuple[int, str] = (0, "")
    try:
        run_deployed(Job.load(root / "job.toml"), root, transport)
    except SiteLost as error:
        said = (7, str(error))
    except FedsynthError as error:
        said = (8, f"{type(error).__name__}: {error}")
    except OSError as error:
        said = (2, f"{type(error).__name__}: {error}")
    except Exception:
        said = (1, traceback.format_exc())
    partial = result.with_suffix(".partial")
    partial.write_text(json.dumps(said))
    os.replace(partial, result)


# ---------------------------------------------------------------------------------------------------------------------
# The whole run


@dataclass
class Outcome:
    """How a run ended: every start of the server (``codes``; -9 where it was killed), and what was said last."""

    root: Path
    plan: Plan
    codes: list[int] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    hit: list[str] = field(default_factory=list)
    notes: Path = Path()

    @property
    def completed(self) -> bool:
        return (self.root / "runs" / RUN).is_dir()

    @property
    def lost(self) -> list[str]:
        """Sites that missed a round of the run that completed."""
        return list(RunFolder(self.root / "runs" / RUN).made["lost_sites"])


class World:
    """The processes and the disks of one run, in a folder of its own."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        """Lay the federation out; start nothing."""
        self.folder, self.plan = folder, plan
        self.root = folder / "root"
        plan.setup.lay_out(self.root, deadline=DEADLINE)
        self.sites: dict[str, Any] = {}
        self.server: Any = None
        self.starts: Counter[str] = Counter()
        self.mounted: list[Path] = []
        self.outcome = Outcome(self.root, plan, notes=folder / "replies")
        self.limited = bool(plan.disk) and not self._mount()

    # Disks

    def _mount(self) -> bool:
        """Put a small disk under what one of them writes; return whether this process may."""
        place = self.root / "state" if self.plan.disk == "server" else self._home(self.plan.disk) / "state"
        held = self.folder / "held"
        used = sum(path.stat().st_size + 8192 for path in place.rglob("*"))
        shutil.copytree(place, held)
        size = (used // 4096 + 2) * 4096 + self.plan.room
        command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(place)]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
            return False
        self.mounted.append(place)
        shutil.copytree(held, place, dirs_exist_ok=True)
        shutil.rmtree(held)
        return True

    def close(self) -> None:
        """End every process that was started, and take the disks away."""
        for process in [self.server, *self.sites.values()]:
            self._kill(process)
        for place in self.mounted:
            subprocess.run(["umount", str(place)], check=True, capture_output=True)

    # Processes

    def _home(self, name: str) -> Path:
        return self.root / "sites" / name

    def _door(self, name: str) -> str:
        return str(self.folder / f"{name[-1]}.sock")

    def _start_site(self, name: str, faulty: bool) -> None:
        days = self.plan.clocks.get(name, 0) if faulty and self.starts[name] else 0
        self.starts[name] += 1
        room = self.plan.room if faulty and self.limited and self.plan.disk == name else None
        args = (self._home(name), self._door(name), self.plan.setup.seeded, days, faulty, room)
        self.sites[name] = FORK.Process(target=serve, args=args, daemon=True)
        self.sites[name].start()

    def _start_server(self, faulty: bool) -> None:
        number = len(self.outcome.codes)
        doors = {name: self._door(name) for name in self.plan.setup.names}
        loss = self.plan.loss if faulty else 0.0
        deadline = DEADLINE if faulty else 30.0
        transport = Sockets(doors, self.outcome.notes, loss, random.Random(number), deadline)
        room = self.plan.room if faulty and self.limited and self.plan.disk == "server" else None
        self.server = FORK.Process(
            target=run_server, args=(self.root, transport, self._result, faulty, room), daemon=True
        )
        self.server.start()

    @property
    def _result(self) -> Path:
        return self.folder / "result"

    def _kill(self, process: Any) -> None:
        if process is not None and process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
        if process is not None:
            process.join(10)

    def _inflict(self, fault: Fault, due: list[tuple[float, Callable[[], None]]], began: float) -> None:
        process = self.server if fault.target == "server" else self.sites[fault.target]
        if not process.is_alive():
            return
        self.outcome.hit.append(fault.kind)
        if fault.kind == "pause":
            os.kill(process.pid, signal.SIGSTOP)
            due.append((began + fault.at + fault.lasts, lambda: _go_on(process)))
            return
        self._kill(process)
        if fault.target != "server":
            due.append((began + fault.at + fault.lasts, lambda: self._start_site(fault.target, faulty=True)))

    def _watch(self, faults: Sequence[Fault], seconds: float = 120.0) -> int:
        """Let the server run to its end while faults happen; return the exit code."""
        began = time.monotonic()
        due: list[tuple[float, Callable[[], None]]] = []
        pending = list(faults)
        while self.server.is_alive():
            moment = time.monotonic()
            while pending and moment - began >= pending[0].at:
                self._inflict(pending.pop(0), due, began)
            for entry in [entry for entry in due if entry[0] <= moment]:
                due.remove(entry)
                entry[1]()
            if moment - began > seconds:
                raise TimeoutError(f"the server did not end within {seconds:g} s")
            time.sleep(0.005)
        for _, act in due:
            act()
        self.server.join(10)
        if not self._result.exists():
            return -9
        code, said = json.loads(self._result.read_text())
        self._result.unlink()
        self.outcome.said.append(said)
        return int(code)

    def run(self) -> Outcome:
        """Run under faults, mend everything, and run on until the run is complete or keeps saying the same."""
        for faults in self.plan.starts:
            for name in self.plan.setup.names:
                if name not in self.sites or not self.sites[name].is_alive():
                    self._start_site(name, faulty=True)
            self._start_server(faulty=True)
            self.outcome.codes.append(self._watch(faults))
            if self.outcome.completed:
                break
        for name in self.plan.setup.names:  # everything is mended
            self._kill(self.sites.get(name))
        for place in self.mounted:
            subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True, capture_output=True)
        for name in self.plan.setup.names:
            self._start_site(name, faulty=False)
        for _ in range(3):
            if self.outcome.completed:
                break
            self._start_server(faulty=False)
            self.outcome.codes.append(self._watch(()))
        return self.outcome


def _go_on(process: Any) -> None:
    if process.is_alive():
        os.kill(process.pid, signal.SIGCONT)


@functools.cache
def undisturbed(setup: Setup, folder: Path) -> tuple[bytes, bytes]:
    """Return model and rows of the same run without faults: those of the seeded simulation."""
    job = Job(setup.method, BUDGET.epsilon, BUDGET.delta, trust=setup.trust, trust_options=setup.trust_options)
    job = msgspec.structs.replace(job, options=METHODS[setup.method])
    home = folder / f"undisturbed-{setup.method}-{setup.trust}-{setup.sites}-{setup.min_sites}"
    # The sites read their rows from files, whose numbers were drawn from the bins of these.
    tables = {name: encode(SCHEMA, decode(SCHEMA, of, np.random.default_rng(0))) for name, of in setup.tables().items()}
    return simulated(home, tables, SCHEMA, job.build_trust(), job.build_method(SCHEMA), budget=BUDGET)


# ---------------------------------------------------------------------------------------------------------------------
# Verdicts


def account_of(outcome: Outcome, name: str) -> Book:
    return Book(load_site_config(outcome.root / "sites" / name).account)


def faults_of_accounts(outcome: Outcome) -> list[str]:
    """Return what is wrong with charges and replies of each site: charged twice, not at all, or answered twice."""
    wrong = []
    noted: dict[tuple[str, str, int], set[str]] = {}
    for line in outcome.notes.read_text().splitlines() if outcome.notes.exists() else []:
        site, asked, turn, code, digest = json.loads(line)
        if code == "answered":
            noted.setdefault((site, asked, turn), set()).add(digest)
    wrong += [f"{key} was answered in {len(digests)} ways" for key, digests in noted.items() if len(digests) > 1]
    seen = outcome.root / "state" / "seen.json"
    known = json.loads(seen.read_text())["seen"] if seen.exists() else {}
    for name in outcome.plan.setup.names:
        account = account_of(outcome, name)
        if fault := account.verify().wrong:
            wrong.append(f"{name}: {fault}")
        charges = account.charges()
        keys = Counter(charge["key"] for charge in charges)
        wrong += [f"{name}: {key} was charged {times} times" for key, times in keys.items() if times > 1]
        going_on, absent = [run for run, *_ in account.open_runs()], list[str]()  # a run's end deletes its replies
        for (site, asked, turn), digests in noted.items() if going_on else ():
            if site != name:
                continue
            stored = account.stored(asked, turn)
            kept = account.hashed(asked, turn) if stored is None else hashlib.sha256(stored).digest()
            if kept is None or kept.hex() not in digests:
                absent.append(f"{name}: the reply to turn {turn} of {asked} is not the stored one")
        if [run for run, *_ in account.open_runs()] == going_on:  # else the site ended it meanwhile
            wrong += absent
        head = AuditPosition.parse(known[name]) if name in known else AuditPosition()
        if not account.holds(head.row, head.chain):
            wrong.append(f"{name}: the server saw row {head.row}, which the account does not have")
        if not BUDGET.covers(account.spent()):
            wrong.append(f"{name}: more than its limit was spent")
        if outcome.completed:
            wrong += _against_the_ledger(outcome, name, charges)
    return wrong


def _against_the_ledger(outcome: Outcome, name: str, charges: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return in what the coordinator's ledger and a site's charges differ."""
    entries = RunFolder(outcome.root / "runs" / RUN).ledger.entries
    counted = Counter((one.step, one.verb, one.kind, round(one.cost.rho, 12)) for one in entries if name in one.sites)
    charged = Counter((one["step"], one["verb"], one["kind"], round(float(one["cost"]["rho"]), 12)) for one in charges)
    # The ledger counts whom it asked: of a site that was lost, the question may not have come to be charged.
    wrong = [f"{name}: {key} was charged and is not in the ledger" for key in charged - counted]
    if name not in outcome.lost:
        wrong += [f"{name}: the ledger has {key}, which was not charged" for key in counted - charged]
    return wrong


def exact_counts_in_files(outcome: Outcome) -> list[str]:
    """Return the files of the server that hold the exact table of some columns, of one site or of all, in any form."""
    needles = needles_of(outcome.plan.setup)
    found = []
    for path in sorted(outcome.root.rglob("*")):
        if path.is_file() and not path.is_relative_to(outcome.root / "sites"):
            content = _opened(path.read_bytes())
            found += [f"{path.name} holds {what}" for needle, what in needles.items() if needle in content]
    return found


def needles_of(setup: Setup) -> dict[bytes, str]:
    """Return each encoding of the exact table of some columns, of one site or of all, and what it is."""
    tables = setup.tables()
    rows = {**tables, "all sites": concatenate(list(tables.values()))}
    needles: dict[bytes, str] = {}
    for owner, of in rows.items():
        for clique in ((1,), (2,), (0, 1), (0, 2), (1, 2)):
            counts = contingency(of, list(clique))
            for form in (counts, np.ascontiguousarray(counts.reshape([len(counts), -1]).T)):
                for needle in _encodings(form):
                    needles[needle] = f"the counts of {clique} of {owner}"
    return needles


def _encodings(counts: Any) -> Iterator[bytes]:
    flat = counts.ravel()
    for kind in ("<i8", ">i8", "<i4", "<u2", "<u1", "<f8", "<f4"):
        if flat.max() < 256 or kind != "<u1":
            yield flat.astype(kind).tobytes()
    for mark in (",", ", ", " ", "\n"):
        for text in (map(str, flat.tolist()), map(str, flat.astype(float).tolist())):
            yield mark.join(text).encode()


def _opened(content: bytes) -> bytes:
    """Return a file's bytes, and those of the members of a zip."""
    if not content.startswith(b"PK"):
        return content
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return b"".join([content, *(archive.read(name) for name in archive.namelist())])


def same_result(outcome: Outcome, folder: Path) -> bool:
    """Whether the result is that of the run without faults, bit for bit."""
    return product(outcome.root / "runs" / RUN) == undisturbed(outcome.plan.setup, folder)
