"""Three compute servers as processes of this machine, on loopback, beside the same three in this process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tests.ports import kept_ports

from fedsynth import Budget, Categorical, Schema, federate
from fedsynth.deploy.roster import InvitedTerms, Member, Roster
from fedsynth.federation.federation import Federation
from fedsynth.federation.simulate import _secret
from fedsynth.files import private_folder, write_private
from fedsynth.keys import Keys
from fedsynth.rows import Table
from fedsynth.servers.host import SECRET, AgreedTerms, agree, charged_questions, make, pin
from fedsynth.servers.links import ServerCard, card_of
from fedsynth.servers.remote import RemoteServers
from fedsynth.servers.trust import ThreeServers
from fedsynth.servers.vault import Servers
from fedsynth.terms import Terms

COMMAND = [sys.executable, "-c", "from fedsynth.cli.app import main; main()", "compute-server", "serve"]


@dataclass
class Processes:
    """Three servers' folders, and the processes that run in them."""

    home: Path
    cards: tuple[ServerCard, ...]
    running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def folder(self, number: int) -> Path:
        return self.home / f"server-{number}"

    def charged(self, number: int) -> list[tuple[str, int, float]]:
        """Return what a server's ledger says that it charged; raises an error where its audit is broken."""
        return [(row["vault"], row["number"], row["price"]) for row in charged_questions(self.folder(number))]

    def log(self, number: int) -> str:
        return (self.home / f"log-{number}").read_text()

    def start(self, *numbers: int) -> None:
        for number in numbers:
            with (self.home / f"log-{number}").open("ab") as log:
                self.running[number] = subprocess.Popen(
                    [*COMMAND, str(self.folder(number))],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
                )
        for number in numbers:
            self._wait(number)

    def kill(self, number: int, how: int = signal.SIGKILL) -> int:
        process = self.running.pop(number)
        process.send_signal(how)
        return process.wait(60)

    def stop(self) -> None:
        for process in self.running.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.running.values():
            process.wait(60)
        self.running.clear()

    def _wait(self, number: int) -> None:
        host, port = self.cards[number].address.split(":")
        until = time.monotonic() + 120
        while time.monotonic() < until:
            assert self.running[number].poll() is None, self.log(number)
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise AssertionError(f"server {number} does not listen: {self.log(number)}")


def set_up(home: Path, secrets: list[bytes], agreed: AgreedTerms) -> Processes:
    """Make the folders of three servers that have these secrets."""
    cards = []
    for number, (secret, port) in enumerate(zip(secrets, kept_ports(3), strict=True)):
        folder = private_folder(home / f"server-{number}")
        write_private(folder / SECRET, secret.hex())
        cards.append(make(folder, f"127.0.0.1:{port}"))
        assert cards[-1] == card_of(secret, cards[-1].address)
    for number in range(3):
        pin(home / f"server-{number}", cards)
        agree(home / f"server-{number}", agreed)
    return Processes(home, tuple(cards))


def agreement(
    coordinator: Keys, schema: Schema, sites: Mapping[str, bytes], budget: Budget, questions: int = 64
) -> AgreedTerms:
    terms = InvitedTerms(
        superlink="fed.example.org:443",
        coordinator=coordinator.public.hex(),
        authority="",
        schema=schema.to_toml(),
        method="aim",
        epsilon=budget.epsilon,
        delta=budget.delta,
        trust="three-servers",
        rows_per_person=1,
        sites_per_person=1,
    )
    members = tuple(Member(name, key.hex(), f"ecdsa-sha2-nistp384 {key.hex()}") for name, key in sorted(sites.items()))
    return AgreedTerms(questions, False, terms, Roster(terms.digest, members).signed(coordinator))


@dataclass(frozen=True, eq=False)
class Deployed(ThreeServers):
    """The trust whose three servers are processes: they are started when a federation is built with it."""

    start: Callable[[list[bytes], AgreedTerms], Processes] | None = field(default_factory=lambda: None)
    coordinator: Keys | None = field(default_factory=lambda: None)
    questions: int = field(default_factory=lambda: 64)

    def in_process(self, secret: Callable[[str], bytes], terms: Terms, coordinator: bytes) -> ThreeServers:
        assert self.start is not None
        assert self.coordinator is not None
        assert self.coordinator.public == coordinator
        secrets = [secret(f"server {number}") for number in range(3)]
        agreed = agreement(self.coordinator, terms.schema, self.roster, terms.budget, self.questions)
        processes = self.start(secrets, agreed)
        servers = Servers(RemoteServers(processes.cards, self.coordinator, timeout=120))
        return replace(self, publics=tuple(card.keys for card in processes.cards), servers=servers)


@contextmanager
def deployed(
    home: Path,
    tables: Mapping[str, pd.DataFrame | Table],
    schema: Schema,
    budget: Budget,
    *,
    seed: int = 1,
    questions: int = 64,
    **more: Any,
) -> Iterator[tuple[Callable[[], Federation], Processes]]:
    """Give what builds a federation over three servers that are processes, each time anew as a run that resumes does.

    The servers are started once, and ended afterwards.
    """
    made: list[Processes] = []
    connections: list[RemoteServers] = []

    def start(secrets: list[bytes], agreed: AgreedTerms) -> Processes:
        if not made:
            made.append(set_up(home, secrets, agreed))
            made[0].start(0, 1, 2)
        return made[0]

    def build() -> Federation:
        trust = Deployed(start=start, coordinator=Keys(_secret(seed, "coordinator")), questions=questions)
        federation = federate(tables, schema, budget, trust=trust, seed=seed, **more)
        connections.append(connections_of(federation))
        return federation

    build()
    try:
        yield build, made[0]
    finally:
        for connection in connections:
            connection.close()
        made[0].stop()


def servers_of(federation: Federation) -> Servers:
    """Return the coordinator's side of a federation's three servers."""
    trust = federation.trust
    assert isinstance(trust, ThreeServers)
    assert isinstance(trust.servers, Servers)
    return trust.servers


def connections_of(federation: Federation) -> RemoteServers:
    connections = servers_of(federation).send
    assert isinstance(connections, RemoteServers)
    return connections


def ideal(
    tables: Mapping[str, pd.DataFrame | Table], schema: Schema, budget: Budget, *, seed: int = 1, **more: Any
) -> Federation:
    """Return the same federation over the ideal functionality, with the same secrets."""
    return federate(tables, schema, budget, trust=ThreeServers(), seed=seed, **more)


def small_tables(sites: int = 3, rows: int = 400) -> tuple[dict[str, pd.DataFrame], Schema]:
    """Return tables of three columns, two of which go together."""

    rng = np.random.default_rng(7)
    schema = Schema((Categorical("a", tuple("xyz")), Categorical("b", tuple("xyz")), Categorical("c", tuple("uv"))))
    tables = {}
    for number in range(sites):
        a = rng.integers(0, 3, rows)
        b = np.where(rng.random(rows) < 0.8, a, rng.integers(0, 3, rows))
        c = rng.integers(0, 2, rows)
        columns = {"a": np.array(list("xyz"))[a], "b": np.array(list("xyz"))[b], "c": np.array(list("uv"))[c]}
        tables[f"site-{number}"] = pd.DataFrame(columns)
    return tables, schema
