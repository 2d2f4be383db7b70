"""Flower's server, which runs a job: the component that a Flower app names, and the transport to its nodes.

Rule 1: bytes go to a site and bytes come back; what they say is between Federation and Site. Rule 2: a node is who it
was registered as, by its key; what it says about itself is only checked against that. Rule 3: whatever keeps a node
from answering makes its site a lost one, never the run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from flwr.app import ConfigRecord, Context
from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid, ServerApp

import fedsynth
from fedsynth.errors import FedsynthError, Refused, SiteLost, Unsupported
from fedsynth.federation.transport import Message
from fedsynth.federation.wire import Reply
from fedsynth.runs.job import Job
from fedsynth.runs.run import run_deployed
from fedsynth.transports.flower.records import ASK, pack, unpack

LARGEST_BATCH = 1 << 26  # bytes of requests that travel together; Flower cuts arrays into objects of 5 MiB itself
POLL = 0.5  # s between two looks for replies
_log = logging.getLogger("flwr.fedsynth")  # Flower's own log: `flwr log` shows it

server = ServerApp()


class FlowerTransport:
    """Requests to registered SuperNodes as messages, all of one exchange to one node in one message.

    ``sites`` is the agreed roster; a node is the site of the name that it was registered under
    (``flwr supernode register KEY --name NAME``). A site that is not connected, fails, answers nonsense or takes
    longer than ``deadline`` seconds is answered for by a reply with the code ``lost``.
    """

    def __init__(self, grid: Grid, sites: Sequence[str], deadline: float, poll: float = POLL) -> None:
        """Take Flower's grid, the roster and the deadline of an exchange."""
        self._grid = grid
        self._sites = tuple(sites)
        self._deadline = deadline
        self._poll = poll

    @property
    def sites(self) -> Sequence[str]:
        """Names of the sites of the roster."""
        return self._sites

    def nodes(self) -> dict[str, int]:
        """Return the connected nodes of the roster by name; raises :class:`Refused` if two have one name."""
        found: dict[str, int] = {}
        for node in self._grid.get_nodes():
            if node.name not in self._sites:
                continue
            if node.name in found:
                raise Refused(
                    f"two nodes are registered as {node.name!r} ({found[node.name]} and {node.node_id}); unregister "
                    "the one that is not that site's (`flwr supernode list`)"
                )
            found[node.name] = node.node_id
        return found

    def wait(self, least: int) -> tuple[str, ...]:
        """Wait for all sites, at most until the deadline, and return those that are connected.

        Raises :class:`SiteLost` if they are fewer than ``least``.
        """
        end = time.monotonic() + self._deadline
        while len(connected := self.nodes()) < len(self._sites) and time.monotonic() < end:
            time.sleep(self._poll)
        missing = [name for name in self._sites if name not in connected]
        if len(connected) < least:
            raise SiteLost(f"{len(connected)} sites are connected and {least} are required; missing: {missing}")
        if missing:
            _log.warning("not connected, and left out until they are: %s", missing)
        return tuple(name for name in self._sites if name in connected)

    def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
        """Yield one reply per message, in their order, each as soon as it is there."""
        asked = list(messages)
        if not asked:
            return
        end = time.monotonic() + self._deadline
        replies: dict[int, Reply] = {}
        waiting = self._send(asked, replies)
        for position in range(len(asked)):
            while position not in replies:
                self._receive(asked, waiting, replies)
                if position not in replies and time.monotonic() >= end:
                    for batch in waiting.values():
                        self._lose(asked, batch, replies, f"no answer within {self._deadline:g} s")
                    waiting.clear()
                elif position not in replies:
                    time.sleep(self._poll)
            yield replies.pop(position)

    def _send(self, asked: Sequence[Message], replies: dict[int, Reply]) -> dict[str, list[int]]:
        """Push the messages; return the positions that each of Flower's carries, by its id."""
        nodes = self.nodes()
        pushed, batches = [], []
        for name in dict.fromkeys(message.site for message in asked):
            positions = [at for at, message in enumerate(asked) if message.site == name]
            if name not in nodes:
                self._lose(asked, positions, replies, "not connected")
                continue
            for batch in _batches(positions, [len(asked[at].data) for at in positions]):
                content = pack("requests", [asked[at].data for at in batch])
                content["head"] = ConfigRecord({"fedsynth": fedsynth.__version__, "site": name})
                group = str(asked[batch[0]].request.head.step)
                pushed.append(FlowerMessage(content, nodes[name], ASK, ttl=self._deadline, group_id=group))
                batches.append(batch)
        # Flower gives None for a message that it does not take, and nothing at all if it takes none.
        ids: list[str | None] = list(self._grid.push_messages(pushed)) if pushed else []
        waiting: dict[str, list[int]] = {}
        for at, batch in enumerate(batches):
            message_id = ids[at] if at < len(ids) else None
            if message_id is None:
                self._lose(asked, batch, replies, "Flower did not take the message")
            else:
                waiting[message_id] = batch
        return waiting

    def _receive(self, asked: Sequence[Message], waiting: dict[str, list[int]], replies: dict[int, Reply]) -> None:
        """Take the replies that have arrived."""
        for message in self._grid.pull_messages(list(waiting)):
            batch = waiting.pop(message.metadata.reply_to_message_id, [])
            if message.has_error():
                self._lose(asked, batch, replies, f"Flower's error {message.error.code}")
                continue
            try:
                parts = list(unpack("replies", message.content))
                if len(parts) != len(batch):
                    raise FedsynthError(f"{len(parts)} replies to {len(batch)} messages")
            except Exception as error:  # a site may send anything at all
                self._lose(asked, batch, replies, f"its reply cannot be read ({type(error).__name__}: {error})")
                continue
            for at, part in zip(batch, parts, strict=True):
                replies[at] = reply = asked[at].reply(part)
                if reply.code == "lost":
                    self._lose(asked, [at], replies, reply.lost)

    def _lose(self, asked: Sequence[Message], batch: list[int], replies: dict[int, Reply], why: str) -> None:
        if batch:
            _log.warning("lost site %s in step %d: %s", asked[batch[0]].site, asked[batch[0]].request.head.step, why)
        for at in batch:
            replies[at] = asked[at].lost(why)


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


@server.main()
def _serve(grid: Grid, context: Context) -> None:
    """Run the job whose file the run configuration names; everything that it makes lies beside that file."""
    path = Path(str(context.run_config["job"]))
    job = Job.load(path)
    if job.deployment is None:
        raise Unsupported(f"{path} has no [deployment], so it names no sites; `fedsynth deploy init` writes one")
    transport = FlowerTransport(grid, job.deployment.sites, job.deployment.deadline)
    transport.wait(job.deployment.least)
    outcome = run_deployed(job, path.parent, transport, progress=_tell)
    _log.info("%d rows in %s; %s", len(outcome.synthetic), outcome.folder, outcome.statement.headline)
    for warning in outcome.statement.warnings():
        _log.warning("%s", warning)
    _log.info("sites that missed a round: %s", outcome.lost or "none")


def _tell(what: str, done: int, total: int) -> None:
    _log.info("%s: %d of %d", what, done, total)
