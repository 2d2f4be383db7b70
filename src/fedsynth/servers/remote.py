"""The coordinator's connections to three servers that run as processes.

All three servers are called at the same time. If one of them cannot be reached or does not answer, the run stops with
an error that names it. The same command resumes the run and repeats the interrupted question: servers that had answered
it return the answers in their ledgers, and each charges it once.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from fedsynth.errors import BudgetExceeded, FedsynthError, Refused, SiteLost
from fedsynth.federation.events import DealtShares
from fedsynth.federation.wire import WireError, decode, encode
from fedsynth.keys import Keys
from fedsynth.schema.bins import Integers
from fedsynth.servers.calls import (
    Agree,
    Answered,
    AnyResult,
    Ask,
    Asked,
    Begin,
    Call,
    Confirm,
    Confirmations,
    Confirmed,
    Done,
    Drop,
    Failure,
    Keep,
    Recall,
    Take,
)
from fedsynth.servers.links import ServerCard, connect, receive, send
from fedsynth.servers.process import CHALLENGE, IDLE, PURPOSE
from fedsynth.servers.questions import OpenTables, Question, SelectTable
from fedsynth.servers.server import part_for
from fedsynth.servers.shares import SERVERS, total

_Result = TypeVar("_Result", bound=Call)


@dataclass
class BytesMoved:
    """Bytes of the messages moved for one compute server so far, for the costs of a run; those of TLS are left out.

    ``down`` were sent to it by the coordinator, ``up`` received from it, and ``among`` sent by it to the two others.
    """

    down: int = 0
    up: int = 0
    among: int = 0


@dataclass(eq=False)
class RemoteServers:
    """The coordinator's connections to three compute servers that run as processes at the addresses in their cards.

    A vault is the sum of the sites' tables, which the three servers hold in secret shares. This class has the methods
    of :class:`~fedsynth.servers.vault.Servers`. ``cards`` are the servers' addresses and public
    keys in the order of their numbers, and ``coordinator`` holds the keys that prove who calls. Each call must be
    answered within ``timeout`` seconds. ``traffic`` counts the bytes of each server. If a server does not answer, any
    method but :meth:`close` raises :class:`SiteLost`; if one refuses, :class:`Refused` or :class:`BudgetExceeded`,
    except what it refuses of one site (:meth:`take`); for any other failure, :class:`FedsynthError`.
    """

    cards: Sequence[ServerCard]
    coordinator: Keys
    timeout: float = 900.0
    traffic: tuple[BytesMoved, BytesMoved, BytesMoved] = field(
        default_factory=lambda: (BytesMoved(), BytesMoved(), BytesMoved())
    )
    _connections: dict[int, socket.socket] = field(default_factory=dict)
    _used: dict[int, float] = field(default_factory=dict)

    def begin(self, vault: str, body: bytes, signature: bytes) -> None:
        """Begin a vault, or let more sites join it by a further question, at all three servers.

        The vault's name ``vault`` is the digest (hex) of the question that it began with. ``body`` holds the bytes of
        the question that sites are asked now, and ``signature`` is the coordinator's signature of them. Errors are
        those of :class:`RemoteServers`.
        """
        self._same(Begin(vault, np.frombuffer(body, dtype=np.uint8), signature), Done)

    def take(self, vault: str, site: str, dealt: DealtShares) -> bool:
        """Pass one site's sealed shares to all three servers; return whether they accept them.

        They do if each server can open its two shares, and the two servers that have a share in common hold the same.
        Otherwise, all three leave the site out. ``vault`` is the vault's name (a digest, hex). ``site`` is the site's
        name, and ``dealt`` holds its shares (:class:`~fedsynth.federation.events.DealtShares`). Errors are those of
        :class:`RemoteServers`.
        """
        heard: list[Any] = self._call([Take(vault, site, part_for(dealt, number)) for number in range(SERVERS)])
        if all(isinstance(one, Confirmations) for one in heard):
            said = [one for one in heard if isinstance(one, Confirmations)]
            confirm = [
                Confirm(vault, site, said[number - 1].after, said[(number + 1) % SERVERS].before)
                for number in range(SERVERS)
            ]
            heard = self._call(confirm)
            if all(isinstance(one, Confirmed) and one.same for one in heard):
                return True
        for one in heard:  # what a server refuses of a site is the site's fault, anything else is not
            if isinstance(one, Failure) and one.code != "refused":
                self._raise(heard)
        self._same(Drop(vault, site), Done)
        return False

    def keep(self, vault: str, sites: Sequence[str]) -> None:
        """Let into the vault all ``sites``, which are those whose shares were accepted, in the order of :meth:`take`.

        ``vault`` is the vault's name (a digest, hex). Errors are those of :class:`RemoteServers`.
        """
        self._same(Keep(vault, tuple(sites)), Done)

    def open(self, question: OpenTables) -> Integers:
        """Return the noisy tables that ``question`` asks for, one after the other, int64 and flat.

        They have the noise of all three servers. A repeated question gets the same answer and is not charged again.
        Errors are those of :class:`RemoteServers`.
        """
        return total([reply.reply.view(np.uint64) for reply in self._answers(question)])

    def draw(self, question: SelectTable) -> int:
        """Return the index of the candidate (a table) of ``question`` that the three servers drew together, privately.

        A repeated question gets the same answer and is not charged again. Errors are those of :class:`RemoteServers`.
        """
        replies = {reply.reply.tobytes() for reply in self._answers(question)}
        if len(replies) > 1:
            raise Refused(
                "the servers drew different candidates, so nothing is opened; install the same fedsynth on all"
            )
        return int.from_bytes(replies.pop())

    def close(self) -> None:
        """Close the connections to all servers."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _answers(self, question: Question, tries: int = 2) -> list[Answered]:
        """Ask all three servers; once more if they lost each other but all answer, as after the restart of one."""
        asked = self._same(Ask(question), Asked)
        if all(one.answered for one in asked):
            return self._same(Recall(question), Answered)
        heard = self._call([Agree(tuple(one.statement for one in asked))] * SERVERS)
        if tries > 1 and any(isinstance(one, Failure) and one.code == "lost" for one in heard):
            return self._answers(question, tries - 1)
        found = self._of_kind(heard, Answered)
        for moved, one in zip(self.traffic, found, strict=True):
            moved.among += one.sent
        return found

    def _same(self, call: Call, kind: type[_Result]) -> list[_Result]:
        """Make the same call to all three servers, and return their results, which must all be of one kind."""
        return self._of_kind(self._call([call] * SERVERS), kind)

    def _of_kind(self, heard: list[Any], kind: type[_Result]) -> list[_Result]:
        if not all(isinstance(one, kind) for one in heard):
            self._raise(heard)
        return heard

    def _call(self, calls: Sequence[Call]) -> list[AnyResult]:
        """Make one call to each server, all at once; raises :class:`SiteLost` naming the servers that do not answer."""
        frames = {id(call): encode(call) for call in calls}
        with ThreadPoolExecutor(SERVERS) as pool:
            futures = [pool.submit(self._one, number, frames[id(call)]) for number, call in enumerate(calls)]
        heard, silent = [], []
        for number, future in enumerate(futures):
            try:
                heard.append(future.result())
            except (OSError, WireError) as error:
                silent.append(f"server {number + 1} at {self.cards[number].address} ({error})")
        if silent:
            raise _lost(f"no answer from {', '.join(silent)}")
        return heard

    def _one(self, number: int, frame: bytes) -> AnyResult:
        moved = self.traffic[number]
        if number in self._connections and time.monotonic() - self._used[number] > IDLE / 2:  # it may be ended by now
            self._connections.pop(number).close()
        try:
            connection = self._connections.get(number) or self._connected(number)
            send(connection, frame)
            moved.down += len(frame)
            data = receive(connection)
        except BaseException:
            if number in self._connections:  # what comes late must not answer the next call
                self._connections.pop(number).close()
            raise
        moved.up += len(data)
        self._used[number] = time.monotonic()
        result: AnyResult = decode(data, AnyResult)
        return result

    def _connected(self, number: int) -> socket.socket:
        card = self.cards[number]
        connection = connect(card, None, self.timeout)
        challenge = receive(connection, most=CHALLENGE)
        send(connection, self.coordinator.sign(PURPOSE, challenge + card.keys))
        self._connections[number], self._used[number] = connection, time.monotonic()
        return connection

    def _raise(self, heard: Sequence[AnyResult]) -> None:
        """Raise the error of a server that failed; a refusal goes first, since other failures may follow from it."""
        errors: dict[str, Callable[[str], FedsynthError]] = {
            "refused": Refused,
            "spent": BudgetExceeded,
            "lost": _lost,
            "failed": FedsynthError,
        }
        for code, kind in errors.items():
            for number, one in enumerate(heard):
                if isinstance(one, Failure) and one.code == code:
                    raise kind(f"server {number + 1}: {one.reason or 'it failed; its operator reads why in its log'}")
        raise FedsynthError("the servers' answers are not of the expected kind; install the same fedsynth everywhere")


def _lost(what: str) -> SiteLost:
    return SiteLost(
        f"{what}; without all three servers nothing is opened. Restart what is missing and run the same command again: "
        "questions that were answered are not charged again"
    )
