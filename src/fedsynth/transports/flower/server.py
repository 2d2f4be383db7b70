"""Flower's server, which runs a job: the component that a Flower app names, and the transport to its nodes.

Rule 1: bytes go to a site and bytes come back; what they say is between Federation and Site. Rule 2: a node is who it
was registered as, by its key; what it says about itself is only checked against that. Rule 3: whatever keeps a node
from answering makes its site a lost one, never the run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
from flwr.app import ConfigRecord, Context
from flwr.app import Message as FlowerMessage
from flwr.app.exception import AppExitException
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid, ServerApp

import fedsynth
from fedsynth.errors import FedsynthError, Refused, SiteLost
from fedsynth.federation.transport import Message
from fedsynth.federation.wire import Reply
from fedsynth.runs.job import Job
from fedsynth.runs.progress import Tell, run_watched, unheard
from fedsynth.transports.flower.records import ASK, pack, unpack

LARGEST_BATCH = 1 << 26  # bytes of requests that travel together; Flower cuts arrays into objects of 5 MiB itself
POLL = 0.5  # s between two looks for replies
LOOKS = 4  # looks for replies to one for nodes
GRACE = 30.0  # s that a site has which missed a deadline and is connected again
# What Flower says of a node that it does not hear, of a message that it lost, of an answerer that died: none is final.
NOT_YET = {
    ErrorCode.MESSAGE_UNAVAILABLE: "Flower lost the message",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "Flower lost the reply",
    ErrorCode.NODE_UNAVAILABLE: "its node is not connected",
    ErrorCode.CLIENT_APP_CRASHED: "its `fedsynth site serve` ended",
}
_log = logging.getLogger("flwr.fedsynth")  # Flower's own log: `flwr log` shows it

server = ServerApp()


@dataclass
class _Batch:
    """Messages of one exchange to one site that travel as one of Flower's.

    ``positions`` are theirs among the messages of the exchange. ``sent`` is Flower's id, empty while nothing is on its
    way. ``connected`` says since when the node had been connected then, ``why`` what kept the last one, and ``away``
    whether the transport has told that the site is away. It is not sent again before ``due``, and each time ``pause``
    doubles: a node that comes and goes for ever would fill the SuperLink's disk with copies.
    """

    site: str
    positions: list[int]
    end: float
    pause: float
    due: float = 0.0
    sent: str = ""
    connected: str = ""
    why: str = "not connected"
    away: bool = False


@dataclass
class _Exchange:
    """An exchange that is going on: what was asked, the replies so far by position, and what is waited for."""

    asked: Sequence[Message]
    batches: list[_Batch]
    replies: dict[int, Reply] = field(default_factory=dict)
    looks: int = 0


class FlowerTransport:
    """Requests to registered SuperNodes as messages, all of one exchange to one node in one message.

    ``sites`` is the agreed roster; a node is the site of the name that it was registered under
    (``flwr supernode register KEY --name NAME``). A site that fails or answers nonsense is answered for by a reply with
    the code ``lost``. One that is not connected, goes away or is slow is waited for until ``deadline`` seconds are
    over, and is sent its messages again when it is back: it sends the replies that it stored, and charges nothing. A
    site that has missed a deadline is waited for no more until it is connected, and then for ``GRACE`` seconds
    until it has answered once: one that stays away costs one deadline in a run.

    ``tell(site, state)`` hears of a site that is ``connected``, ``away`` or has ``answered``, as it happens.
    """

    def __init__(
        self, grid: Grid, sites: Sequence[str], deadline: float, poll: float = POLL, tell: Tell = unheard
    ) -> None:
        """Take Flower's grid, the roster and the deadline of an exchange."""
        self._grid = grid
        self._sites = tuple(sites)
        self._deadline = deadline
        self._poll = poll
        self._tell = tell
        self._late: set[str] = set()

    @property
    def sites(self) -> Sequence[str]:
        """Names of the sites of the roster."""
        return self._sites

    def nodes(self) -> dict[str, NodeInfo]:
        """Return the connected nodes of the roster by name; raises :class:`Refused` if two have one name."""
        found: dict[str, NodeInfo] = {}
        with _reached():
            nodes = list(self._grid.get_nodes())
        for node in nodes:
            if node.name not in self._sites:
                continue
            if node.name in found:
                raise Refused(
                    f"two nodes are registered as {node.name!r} ({found[node.name].node_id} and {node.node_id}); "
                    "unregister the one that is not that site's (`flwr supernode list`)"
                )
            found[node.name] = node
        return found

    def wait(self, least: int) -> tuple[str, ...]:
        """Wait for all sites, at most until the deadline, and return those that are connected.

        Raises :class:`SiteLost` if they are fewer than ``least``.
        """
        end = time.monotonic() + self._deadline
        connected: dict[str, NodeInfo] = {}
        while True:
            before, connected = connected, self.nodes()
            for name in connected.keys() - before.keys():
                self._tell(name, "connected")
            if len(connected) == len(self._sites) or time.monotonic() >= end:
                break
            time.sleep(self._poll)
        missing = [name for name in self._sites if name not in connected]
        if len(connected) < least:
            raise SiteLost(
                f"{len(connected)} sites are connected and {least} are required; missing: {', '.join(missing)}. Start "
                "their SuperNodes, restart those that are up, and run the same command again"
            )
        if missing:
            _log.warning("not connected, and left out until they are: %s", missing)
        self._late.update(missing)
        return tuple(name for name in self._sites if name in connected)

    def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
        """Yield one reply per message, in their order, each as soon as it is there."""
        asked = list(messages)
        if not asked:
            return
        going_on = _Exchange(asked, list(self._batched(asked)))
        for position in range(len(asked)):
            while position not in going_on.replies:
                self._step(going_on)
                if position not in going_on.replies:
                    time.sleep(self._poll)
            yield going_on.replies.pop(position)

    def _batched(self, asked: Sequence[Message]) -> Iterator[_Batch]:
        """Yield the messages as they travel, with the time until which each site has to answer."""
        now = time.monotonic()
        for name in dict.fromkeys(message.site for message in asked):
            positions = [at for at, message in enumerate(asked) if message.site == name]
            patience = min(GRACE, self._deadline) if name in self._late else self._deadline
            for batch in _batches(positions, [len(asked[at].data) for at in positions]):
                yield _Batch(name, batch, now + patience, self._poll * LOOKS)

    def _step(self, exchange: _Exchange) -> None:
        """Send what is to be sent, take what has arrived, and give up what is overdue."""
        if exchange.looks % LOOKS == 0:
            nodes = self.nodes()
            if exchange.looks == 0:
                self._pass_over(exchange, nodes)
            self._push(exchange, nodes)
        exchange.looks += 1
        self._receive(exchange)
        now = time.monotonic()
        for batch in [batch for batch in exchange.batches if batch.end <= now]:
            self._late.add(batch.site)
            waited = "" if batch.sent else f" ({batch.why})"
            self._lose(exchange, batch, f"no answer within its time{waited}")

    def _pass_over(self, exchange: _Exchange, nodes: Mapping[str, NodeInfo]) -> None:
        """Give up the sites that missed a deadline and are still away."""
        for batch in list(exchange.batches):
            if batch.site not in nodes:
                self._told_away(batch)
                if batch.site in self._late:
                    self._lose(exchange, batch, "not connected since it missed a deadline")

    def _push(self, exchange: _Exchange, nodes: Mapping[str, NodeInfo]) -> None:
        """Send what has not been sent to a node since it connected."""
        pushed, batches, now = [], [], time.monotonic()
        for batch in exchange.batches:
            node = nodes.get(batch.site)
            if node is None or (batch.sent and batch.connected == node.last_activated_at) or now < batch.due:
                continue
            batch.due, batch.pause = now + batch.pause, 2 * batch.pause
            if batch.connected:
                _log.info("site %s is sent its message again: %s", batch.site, batch.why)
            if batch.connected or batch.away:
                self._tell(batch.site, "connected")
                batch.away = False
            batch.connected = node.last_activated_at
            content = pack("requests", [exchange.asked[at].data for at in batch.positions])
            content["head"] = ConfigRecord({"fedsynth": fedsynth.__version__, "site": batch.site})
            group = str(exchange.asked[batch.positions[0]].request.head.step)
            ttl = max(batch.end - now, self._poll)
            pushed.append(FlowerMessage(content, node.node_id, ASK, ttl=ttl, group_id=group))
            batches.append(batch)
        if not pushed:
            return
        with _reached():
            ids = list(self._grid.push_messages(pushed))  # empty if it takes none
        for batch, sent in zip(batches, [*ids, *[""] * (len(batches) - len(ids))], strict=True):
            batch.sent = sent or ""
            batch.why = "its node connected anew" if sent else "Flower did not take the message"

    def _receive(self, exchange: _Exchange) -> None:
        """Take the replies that have arrived."""
        waiting = {batch.sent: batch for batch in exchange.batches if batch.sent}
        if not waiting:
            return
        with _reached():
            messages = list(self._grid.pull_messages(list(waiting)))
        for message in messages:
            batch = waiting.pop(message.metadata.reply_to_message_id, None)
            if batch is None:
                continue
            if message.has_error() and message.error.code in NOT_YET:
                batch.sent, batch.why = "", NOT_YET[message.error.code]
                self._told_away(batch)
            elif message.has_error():
                self._lose(exchange, batch, f"Flower's error {message.error.code}")
            else:
                self._take(exchange, batch, message)

    def _told_away(self, batch: _Batch) -> None:
        batch.away = True
        self._tell(batch.site, "away")

    def _take(self, exchange: _Exchange, batch: _Batch, message: FlowerMessage) -> None:
        """Take a site's replies out of its message, which may hold anything at all."""
        try:
            parts = list(unpack("replies", message.content))
            if len(parts) != len(batch.positions):
                raise FedsynthError(f"{len(parts)} replies to {len(batch.positions)} messages")
        except Exception as error:
            self._lose(exchange, batch, f"its reply cannot be read ({type(error).__name__}: {error})")
            return
        exchange.batches.remove(batch)
        self._late.discard(batch.site)
        self._tell(batch.site, "answered")
        for at, part in zip(batch.positions, parts, strict=True):
            exchange.replies[at] = reply = exchange.asked[at].reply(part)
            if reply.code == "lost":
                self._note_loss(exchange.asked[at], reply.lost)

    def _lose(self, exchange: _Exchange, batch: _Batch, why: str) -> None:
        exchange.batches.remove(batch)
        self._note_loss(exchange.asked[batch.positions[0]], why)
        for at in batch.positions:
            exchange.replies[at] = exchange.asked[at].lost(why)

    def _note_loss(self, message: Message, why: str) -> None:
        _log.warning("lost site %s in step %d: %s", message.site, message.request.head.step, why)


@contextmanager
def _reached() -> Iterator[None]:
    """Raise :class:`FedsynthError` where the SuperLink cannot be reached, or has been told to stop the run."""
    try:
        yield
    except httpx.HTTPError as error:
        raise FedsynthError(
            f"Flower's SuperLink does not serve this run any more ({type(error).__name__}): it ended, or the run was "
            "stopped; start the run again to resume it"
        ) from error


def _batches(positions: Sequence[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    """Yield the positions in runs of at most ``LARGEST_BATCH`` bytes; a larger request goes alone."""
    batch: list[int] = []
    used = 0
    for position, size in zip(positions, sizes, strict=True):
        if batch and used + size > LARGEST_BATCH:
            yield batch
            batch, used = [], 0
        batch.append(position)
        used += size
    yield batch


class RunEnded(AppExitException):
    """The expected end of a run without a result: Flower marks the run as failed with this sentence."""

    exit_code = 0  # of Flower's process; it prints a page of help for any other


@server.main()
def _serve(grid: Grid, context: Context) -> None:
    """Run the job whose file the run configuration names; everything that it makes lies beside that file."""
    try:
        outcome = run_watched(Path(str(context.run_config["job"])), str(context.run_id), partial(_connected, grid))
    except FedsynthError as error:
        _log.error("the run ended without a result: %s", error)
        logging.getLogger("flwr").addFilter(_without_traceback)
        raise RunEnded(str(error)) from None
    _log.info("the table is in %s; %s", outcome.folder, outcome.statement.headline)
    for warning in outcome.statement.warnings():
        _log.warning("%s", warning)
    _log.info("sites that missed a round: %s", ", ".join(outcome.lost) or "none")


@contextmanager
def _connected(grid: Grid, job: Job, tell: Tell) -> Iterator[FlowerTransport]:
    """Give the transport to a job's sites, once enough of them are there."""
    assert job.deployment is not None
    transport = FlowerTransport(grid, job.deployment.sites, job.deployment.deadline, tell=tell)
    transport.wait(job.deployment.least)
    yield transport


def _without_traceback(record: logging.LogRecord) -> bool:
    """Leave Flower's own line about a :class:`RunEnded` out of its log, which has the sentence already."""
    return not (record.exc_info and isinstance(record.exc_info[1], RunEnded))
