"""Whole runs over files under one fault at a time, at the server or at a site: each completes, and pays once.

Server and sites are the processes that docs/deploy.md names. They are killed and paused, their disks are full, and
their files are lost or come late. What ended is started again; in the end nothing of the run is left in the folder.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.chaos.world import Outcome, Plan, Setup, exact_counts_in_files, faults_of_accounts
from tests.deploy.flower_world import RUN, product
from tests.deploy.recomputing import drop_triggers, keep_salts, recomputed

FEDSYNTH = [sys.executable, "-c", "from fedsynth.cli.app import main; main()"]
LASTS = 4.0  # s
BOUND = 180.0  # s until the run has to be complete
SITE = "site-1"

pytestmark = [pytest.mark.chaos, pytest.mark.deployment]


class FilesWorld:
    """A server and its sites as processes that exchange files in one folder."""

    def __init__(self, folder: Path, setup: Setup) -> None:
        """Lay the federation out; start nothing."""
        self.root, self.exchange, self.hidden = folder / "root", folder / "exchange", folder / "hidden"
        self.setup = setup
        for place in (self.exchange, self.hidden):
            place.mkdir(parents=True)
        setup.lay_out(self.root, deadline=BOUND)
        keep_salts(self.root)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.logs: list[subprocess.Popen[bytes]] = []
        self.codes: list[int] = []

    def start(self, name: str) -> None:
        command = ["deploy", "run", str(self.root)]
        if name != "server":
            command = ["site", "serve", str(self.root / "sites" / name)]
        command = [*FEDSYNTH, *command, "--exchange", str(self.exchange)]
        # Through a pipe: a full disk must not cut what is said of it.
        log = subprocess.Popen(
            ["tee", "-a", str(self.root / f"{name}.log")], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        self.running[name] = subprocess.Popen(command, stdout=log.stdin, stderr=log.stdin)
        assert log.stdin is not None
        log.stdin.close()
        self.logs.append(log)

    def log(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text()

    def close(self) -> None:
        """End every process."""
        for process in self.running.values():
            process.kill()
            process.wait(60)
        for log in self.logs:
            log.wait(60)

    def until_done(self, done, seconds: float = BOUND) -> None:
        """Wait; meanwhile start the server again where it ended without a result. A site has no reason to end."""
        end = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < end, self.log("server")
            server = self.running["server"]
            if server.poll() is not None and not (self.root / "runs" / RUN).is_dir():
                self.codes.append(server.returncode)
                self.start("server")
            for name in self.setup.names:
                assert self.running[name].poll() is None, self.log(name)
            time.sleep(0.02)

    # Faults

    def kill(self, name: str) -> None:
        """End a process as a power cut would, and start it again."""
        self.running[name].kill()
        self.running[name].wait(60)
        if name == "server":
            self.codes.append(-9)
        time.sleep(0.5)
        self.start(name)

    def pause(self, name: str) -> None:
        """Stop a process for a while."""
        self.running[name].send_signal(signal.SIGSTOP)
        time.sleep(LASTS)
        self.running[name].send_signal(signal.SIGCONT)

    def fill(self, name: str) -> None:
        """Let the disk of a process be full for a while: no file grows beyond the largest."""
        folder = self.root / "state" if name == "server" else self.root / "sites" / name / "state"
        largest = max((path.stat().st_size for path in folder.rglob("*") if path.is_file()), default=0)
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(self.running[name].pid, resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
        pid, over = self.running[name].pid, time.monotonic() + LASTS
        self.until_done(lambda: time.monotonic() > over)
        if self.running[name].pid == pid and self.running[name].poll() is None:
            unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)

    def lose(self, name: str) -> None:
        """Remove what the process has written, at the first moment when there is something."""
        for path in self._written(name):
            path.unlink(missing_ok=True)
        if name == "server":  # a request that nobody has seen is written again by the same command
            self.kill("server")

    def delay(self, name: str) -> None:
        """Take away what the process has written, and bring it back later."""
        taken = []
        for path in self._written(name):
            with contextlib.suppress(FileNotFoundError):
                taken.append((Path(shutil.move(path, self.hidden / path.name)), path))
        over = time.monotonic() + LASTS
        self.until_done(lambda: time.monotonic() > over)
        for hidden, path in taken:
            os.replace(hidden, path)

    def _written(self, name: str) -> list[Path]:
        part = "*/requests/*.request" if name == "server" else f"{name}/replies/*.reply"
        found: list[Path] = []

        def some() -> bool:
            found.extend(self.exchange.glob(part))
            return bool(found)

        self.until_done(some)
        return found


@pytest.mark.parametrize("method", ["oneshot", "auto"])
@pytest.mark.parametrize("target", ["server", SITE])
@pytest.mark.parametrize("kind", ["kill", "pause", "fill", "lose", "delay"])
def test_one_fault_ends_nothing_for_good(kind, target, method, tmp_path):
    setup = Setup(method, "secure", 3, 3, seeded=False)
    rng = random.Random(f"{kind} {target} {method}")
    world = FilesWorld(tmp_path / "world", setup)
    outcome = Outcome(world.root, Plan(setup, (), 0.0, "", 0, {}), notes=tmp_path / "none")
    try:
        for name in (*setup.names, "server"):
            world.start(name)
        events = world.root / "state" / RUN / "events.jsonl"
        world.until_done(lambda: events.exists() and b'"asked"' in events.read_bytes())
        moment = time.monotonic() + rng.uniform(0.0, 3.0 if method == "oneshot" else 10.0)
        world.until_done(lambda: time.monotonic() > moment)
        assert not outcome.completed
        getattr(world, kind)(target)
        world.until_done(lambda: outcome.completed and world.running["server"].poll() is not None)
    finally:
        world.close()
    assert set(world.codes) <= {-9, 2, 7, 8}, world.log("server")
    assert len(world.codes) <= (3 if kind == "fill" else 1)
    assert "Traceback" not in "".join(world.log(name) for name in ("server", *setup.names))
    full = kind == "fill" and target == SITE  # a site that cannot store an answer gives none, and is passed over
    assert outcome.lost in ([], [SITE] if full else [])
    drop_triggers(world.root)
    assert faults_of_accounts(outcome) == []
    assert exact_counts_in_files(outcome) == []
    left = {path.suffix for path in world.exchange.rglob("*") if path.is_file()}
    assert left <= {".end", ".ended"}  # the end of the run and its acknowledgements: the next run takes them away
    if not outcome.lost:
        assert product(world.root / "runs" / RUN) == recomputed(world.root, tmp_path / "again")
