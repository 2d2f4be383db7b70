"""A deployment's processes on this machine: Flower's server (SuperLink), the server's own, and the sites', over TLS.

Rule 1: every process leads a session of its own, has its own FLWR_HOME, and is ended by its id. Rule 2: what a process
prints goes to a file, never to this process's output.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from fedsynth import errors
from fedsynth.deploy.flower.control import QUIET, FlowerControl, connected, finished, program
from fedsynth.deploy.host.checks import folder_with_spaces

SERVER_SECRET = "superexec.secret"  # by which the SuperLink recognises the server's own process
_Found = TypeVar("_Found")


class LocalFlower:
    """A deployment's processes on this machine, to try a run: Flower's server (SuperLink), the server's, the sites'.

    The SuperLink listens on the loopback interface at ``port``. ``processes`` are those that were started, by the names
    ``superlink``, ``server`` and ``node-SITE``; logs, Flower's home folders and the SuperLink's ``database`` go to
    ``folder``. ``root`` is the federation's folder, ``server`` that of ``ca.crt``, ``server.pem``, ``server.key`` and
    ``superexec.secret``, and ``sites`` maps each site's name to its folder.
    """

    def __init__(self, folder: Path, root: Path, server: Path, sites: Mapping[str, Path]) -> None:
        """Start nothing yet."""
        self.folder = folder
        self.root = root
        self.server = server
        self.sites = dict(sites)
        self.database = folder / "state.db"
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        home = folder / "home-cli"
        home.mkdir()
        self.control = FlowerControl.at(f"127.0.0.1:{self.port}", server / "ca.crt", root, home)

    def start(self) -> None:
        """Start all processes, register the sites' nodes by name, and wait until they are connected.

        Raises ``TimeoutError`` if they are not within two minutes, and what :meth:`start_superlink` raises.
        """
        self.start_superlink()
        self.start_server()
        for name, home in self.sites.items():
            self.control.register(name, home / "node-key.pub")
        for name in self.sites:
            self.start_node(name)
        wait_for("the nodes' connection", lambda: self.online() == len(self.sites), 120)

    def start_superlink(self) -> None:
        """Start Flower's server (SuperLink) on its old database, if there is one.

        Raises ``TimeoutError`` if it does not listen within a minute, and :class:`~fedsynth.errors.Unsupported` where
        Flower's server cannot work (:func:`~fedsynth.deploy.host.checks.folder_with_spaces`).
        """
        if folder := folder_with_spaces():
            raise errors.Unsupported(
                f"Flower's server does not work in a folder with a space in its path ({folder}); install fedsynth in "
                "an environment elsewhere, for example python3 -m venv ~/fed"
            )
        self.spawn(
            "superlink",
            *("flower-superlink", "--host", "127.0.0.1", "--port", str(self.port), *_tls(self.server, "server")),
            *("--isolation", "process", "--superexec-auth-secret-file", str(self.server / SERVER_SECRET)),
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
            *("--database", str(self.database)),
        )
        wait_for("the SuperLink's start", lambda: listens(self.port), 60)

    def start_server(self) -> None:
        """Start the process that makes the federation's runs when they are started at the SuperLink."""
        self.spawn("server", *self.server_command())

    def server_command(self) -> list[str]:
        """Return the command, as words, that makes the federation's runs."""
        options = ["--superlink", f"127.0.0.1:{self.port}", "--root-certificates", str(self.server / "ca.crt")]
        options += ["--database", str(self.database), "--secret", str(self.server / SERVER_SECRET)]
        return ["fedsynth", "deploy", "serve", str(self.root), *options]

    def start_node(self, name: str) -> None:
        """Start the process that fetches and answers the messages of the site ``name``."""
        self.spawn(f"node-{name}", *self.serve(name))

    def serve(self, name: str) -> list[str]:
        """Return the command, as words, that answers for the site ``name``."""
        return ["fedsynth", "site", "serve", str(self.sites[name]), "--superlink", f"127.0.0.1:{self.port}"]

    def spawn(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a process from the words of its ``command``; what it prints is added to ``NAME.log``."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [program(command[0]), *command[1:]],
                cwd=self.folder,
                env={**os.environ, **QUIET, "FLWR_HOME": str(self.folder / f"home-{name}")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=0o077,
            )
        self.processes[name] = process
        return process

    def kill(self, *names: str) -> None:
        """End the processes with these names and their children at once, as a power failure would."""
        for name in names:
            process = self.processes.pop(name)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)

    def stop(self) -> None:
        """End all processes that were started."""
        self.kill(*list(self.processes))

    def log(self, name: str) -> str:
        """Return what the process of this name has printed so far."""
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def online(self) -> int:
        """Return the number of connected nodes; Flower's own command would take more than a second of CPU time."""
        return connected(self.database)

    def finish(self, run_id: str, seconds: float = 1200.0, pause: float = 10.0) -> str:
        """Wait for the end of a run, by Flower's id, and return its final status, such as ``finished:completed``.

        The SuperLink is asked once its database says that the run has ended, and every ``pause`` seconds, since it
        learns only then of a run whose process was killed. Raises ``TimeoutError`` after ``seconds``.
        """
        due = time.monotonic() + pause

        def ended() -> str:
            nonlocal due
            if time.monotonic() < due and not finished(self.database, run_id):
                return ""
            due = time.monotonic() + pause
            status, _ = self.control.status(run_id)
            return status if "finished" in status else ""

        return wait_for("the end of the run", ended, seconds)


def free_port() -> int:
    """Return the number of a TCP port of the loopback interface that nothing listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Whether something accepts connections on TCP ``port`` of the loopback interface."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_for(what: str, condition: Callable[[], _Found], seconds: float = 60.0, pause: float = 0.2) -> _Found:
    """Return the value of ``condition()`` once it is true; raise ``TimeoutError``, which names ``what``, if late."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not happen within {seconds:g} s")
        time.sleep(pause)
    return found


def _tls(folder: Path, name: str) -> list[str]:
    files = {"ca-certfile": "ca.crt", "certfile": f"{name}.pem", "keyfile": f"{name}.key"}
    return [part for option, file in files.items() for part in (f"--ssl-{option}", str(folder / file))]
