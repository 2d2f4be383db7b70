"""A PostgreSQL server of a test's own: a fresh cluster in a temporary folder, on a free port, stopped by its pid."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

OWNER = "owner"  # superuser of the cluster
PASSWORD = "correct horse:battery\\staple"  # a colon and a backslash, which a password file must escape


@dataclass(frozen=True)
class Server:
    """A database of a running server; every role has a password, and ``passfile`` holds them."""

    port: int
    passfile: Path
    binaries: Path
    pid: int
    database: str = "postgres"

    def uri(self, query: str, role: str = OWNER) -> str:
        """Return the address of the database as a site's configuration would give it."""
        return f"postgresql://{role}@127.0.0.1:{self.port}/{self.database}?{query}"

    def run(self, sql: str, role: str = OWNER, *, rows: Path | None = None) -> str:
        """Run SQL with psql, ``rows`` as its standard input, and return what it prints."""
        command = [str(self.binaries / "psql"), "-XqAt", "-v", "ON_ERROR_STOP=1", "-c", sql, self.uri("", role)[:-1]]
        with contextlib.ExitStack() as files:
            given = files.enter_context(rows.open("rb")) if rows else subprocess.DEVNULL
            done = subprocess.run(command, stdin=given, capture_output=True, text=True, env=self.environment)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout.strip()

    def sessions_left(self) -> int:
        """Return how many sessions fedsynth has left open: a backend ends a moment after its client has closed."""
        deadline = time.monotonic() + 60
        while left := int(self.run("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fedsynth'")):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        return left

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process that may connect."""
        return {**os.environ, "PGPASSFILE": str(self.passfile)}


def binaries() -> Path | None:
    """Return the folder of the server's programs, of the newest version that is installed; none if none is."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    if found:
        return max(found, key=lambda path: int(path.parent.name))
    program = shutil.which("postgres")
    return None if program is None else Path(program).resolve().parent


@contextlib.contextmanager
def server(folder: Path | None = None, **settings: str) -> Iterator[Server]:
    """Run a server while the block lasts, with its files in a temporary folder (within ``folder``)."""
    programs = binaries()
    assert programs is not None, "no PostgreSQL server is installed here"
    with tempfile.TemporaryDirectory(prefix="fedsynth-postgres-", dir=folder) as name:
        home = Path(name)
        user = _unprivileged()
        secret = home / "password"
        secret.write_text(PASSWORD)
        if user is not None:
            for path in (home, secret):
                os.chown(path, user.pw_uid, user.pw_gid)
        initialise = ["-D", str(home / "data"), "-U", OWNER, "--auth=scram-sha-256", f"--pwfile={secret}", "-E", "UTF8"]
        log = (home / "log").open("wb")
        with log, _process(programs / "initdb", [*initialise, "--locale=C.UTF-8", "-N"], user, log, home) as process:
            assert process.wait() == 0, (home / "log").read_text()
        options = {"listen_addresses": "127.0.0.1", "unix_socket_directories": name, **settings}
        arguments = ["-D", str(home / "data"), *(f"--{key}={value}" for key, value in options.items())]
        # The password file is ours, not the server's: libpq ignores one that others can read.
        with tempfile.NamedTemporaryFile("w", prefix="pgpass-") as passfile, (home / "log").open("ab") as log:
            escaped = PASSWORD.replace("\\", "\\\\").replace(":", "\\:")
            passfile.write(f"127.0.0.1:*:*:*:{escaped}\n")
            passfile.flush()
            for attempt in range(5):
                port = _free_port()
                process = _process(programs / "postgres", [*arguments, f"--port={port}"], user, log, home)
                try:
                    running = Server(port, Path(passfile.name), programs, process.pid)
                    if not _ready(running, process):
                        # Between the look for a free port and the server's own, another process may have taken it.
                        said = (home / "log").read_text()
                        assert attempt < 4, said
                        assert "Address already in use" in said, said
                        continue
                    yield running
                    return
                finally:
                    process.send_signal(2)  # SIGINT: a fast shutdown, which ends every session
                    process.wait(timeout=120)


def _process(
    program: Path, arguments: list[str], user: pwd.struct_passwd | None, log: IO[bytes], folder: Path
) -> subprocess.Popen[bytes]:
    command = [str(program), *arguments]
    if user is None:
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    return subprocess.Popen(
        command, stdout=log, stderr=log, cwd=folder, user=user.pw_uid, group=user.pw_gid, extra_groups=[]
    )


def _unprivileged() -> pwd.struct_passwd | None:
    """Return the user that the server runs as where we are root, whom PostgreSQL refuses."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def _ready(running: Server, process: subprocess.Popen[bytes]) -> bool:
    """Wait until the server answers, and return whether it does: it may also have ended."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        ready = [str(running.binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(running.port)]
        answers = subprocess.run(ready).returncode == 0
        if process.poll() is not None:
            return False  # and who answered was another
        if answers:
            return True
        time.sleep(0.05)
    raise TimeoutError(f"no answer on port {running.port} in 120 s")
