"""The transport to a federation's sites over Flower's server (SuperLink).

Rule 1: the transport carries bytes; only Federation and Site interpret them. Rule 2: a node is identified by the key
that it was registered with; its own claims are only checked against that. Rule 3: a node that fails for any reason
loses its site, never the run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
from flwr.app import Message as FlowerMessage
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError
from flwr.supercore.run import RunNotRunningException

from fedsynth.deploy.batches import in_batches
from fedsynth.deploy.flower.control import FULL
from fedsynth.deploy.flower.records import ASK, BUSY, pack, unpack
from fedsynth.deploy.pace import Pace
from fedsynth.deploy.run_events import SiteState, Tell, ignore_report
from fedsynth.errors import FedsynthError, Interrupted, Refused, SiteLost
from fedsynth.federation.transport import Message
from fedsynth.federation.wire import Reply
from fedsynth.runs.ending import EndNotice

POLL = 0.5  # s between two polls for replies
LOOKS = 4  # polls for replies per poll for nodes
GRACE = 30.0  # s that a reconnected site has, once it looks for messages, after it missed a deadline
TOGETHER = 8  # messages in one call: a site that fetches one of many would ask for parts that are not sent yet
LONGEST_PAUSE = 8.0  # s between two attempts at a site that is busy
# Errors for an unreachable node, a lost message and a busy site: none is final.
NOT_YET = {
    ErrorCode.MESSAGE_UNAVAILABLE: "Flower lost the message",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "Flower lost the reply",
    ErrorCode.NODE_UNAVAILABLE: "its node is not connected",
    BUSY: "it answers a message of another run",
}
_log = logging.getLogger("fedsynth.server")


@dataclass
class _Batch:
    """Messages of one exchange to one site that are sent as one Flower message.

    ``positions`` are their indices in the exchange; ``sent`` is Flower's message id, empty while none is in transit;
    ``connected`` is the node's connection time when it was sent, ``told`` what was reported of the site since. It is
    not sent again before ``due``, and ``pause`` doubles each time: a node that reconnects forever would otherwise fill
    the SuperLink's disk with copies.
    """

    site: str
    positions: list[int]
    end: float
    pause: float
    due: float = 0.0
    sent: str = ""
    connected: str = ""
    why: str = "not connected"
    told: SiteState | None = None


@dataclass
class _Exchange:
    asked: Sequence[Message]
    batches: list[_Batch]
    replies: dict[int, Reply] = field(default_factory=dict)
    looks: int = 0


@dataclass(eq=False)
class FlowerTransport:
    """Transport over Flower: sends requests to the sites' nodes and yields the sites' replies.

    It is a :class:`~fedsynth.federation.transport.Transport`; all messages of one call of :meth:`exchange` to one node
    go in one Flower message, or in several beyond 64 MiB. A node is the site of the name that it was registered under.
    For a site without a valid reply in time, a reply with the code ``lost`` is yielded. A site that is not connected,
    disconnects or is slow is waited for up to ``deadline`` seconds. When it is back, it gets its messages again; to
    those that it has already answered it sends its stored replies, which costs it no privacy budget. A site that has
    missed a deadline is passed over while it is not connected. When it is back, it has :data:`GRACE` seconds to answer,
    and those until it looks for messages; once it has answered, the deadline applies again. A site that stays away
    therefore delays a run by one deadline. A site that answers a message of another run says so, and is asked again
    every few seconds.

    ``enrolled`` is the number of sites in the roster, by which each paces its polls, if it is larger than that of the
    run's ``sites``. ``poll`` is the time in seconds between two looks for replies. ``report(site, state)`` is called
    when a site is ``connected``, ``away``, ``busy`` or has ``answered``.
    """

    grid: Grid
    sites: Sequence[str]
    deadline: float
    enrolled: int = 0
    poll: float = POLL
    report: Tell = ignore_report
    _late: set[str] = field(default_factory=set, init=False)

    @property
    def _longest_poll(self) -> float:
        """Seconds within which each connected site looks for messages, however long it had none."""
        return Pace(max(self.enrolled, len(self.sites))).idle

    def nodes(self) -> dict[str, NodeInfo]:
        """Return the connected Flower nodes of the federation's sites, by site name; nodes of other names are left out.

        Raises :class:`Refused` if two nodes share a site's name, and :class:`Interrupted` if Flower cannot be reached.
        """
        found: dict[str, NodeInfo] = {}
        with _reached():
            nodes = list(self.grid.get_nodes())
        for node in nodes:
            if node.name not in self.sites:
                continue
            if node.name in found:
                raise Refused(
                    f"two nodes are registered as {node.name!r} ({found[node.name].node_id} and {node.node_id}); "
                    "unregister the one that is not that site's (`flwr supernode list`)"
                )
            found[node.name] = node
        return found

    def wait(self, least: int) -> tuple[str, ...]:
        """Wait until all sites are connected, at most for the deadline; return the names of those that are.

        Raises :class:`SiteLost` if they are fewer than ``least``, and what :meth:`nodes` raises.
        """
        if self.deadline < self._longest_poll:
            _log.warning(
                "deadline = %g is too short: a site may look for messages after %.0f s only, and is lost; raise it "
                "under [deployment] in job.toml",
                *(self.deadline, self._longest_poll),
            )
        end = time.monotonic() + self.deadline
        connected: dict[str, NodeInfo] = {}
        while True:
            before, connected = connected, self.nodes()
            for name in connected.keys() - before.keys():
                self.report(name, "connected")
            if len(connected) == len(self.sites) or time.monotonic() >= end:
                break
            time.sleep(self.poll)
        missing = [name for name in self.sites if name not in connected]
        if len(connected) < least:
            raise SiteLost(
                f"{len(connected)} sites are connected and {least} are required; missing: {', '.join(missing)}. "
                "`fedsynth site serve` must run there, whose log says what is wrong; then run the same command again"
            )
        if missing:
            _log.warning("not connected, and left out until they are: %s", missing)
        self._late.update(missing)
        return tuple(name for name in self.sites if name in connected)

    def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
        """Send requests, each to one site, and yield one reply per message, in their order, as soon as it has arrived.

        Raises :class:`Interrupted` if Flower's server ended, or the run was stopped.
        """
        asked = list(messages)
        if not asked:
            return
        going_on = _Exchange(asked, list(self._batched(asked)))
        for position in range(len(asked)):
            while position not in going_on.replies:
                self._step(going_on)
                if position not in going_on.replies:
                    time.sleep(self.poll)
            yield going_on.replies.pop(position)

    def _batched(self, asked: Sequence[Message]) -> Iterator[_Batch]:
        now = time.monotonic()
        for name in dict.fromkeys(message.site for message in asked):
            positions = [at for at, message in enumerate(asked) if message.site == name]
            patience = min(GRACE + self._longest_poll, self.deadline) if name in self._late else self.deadline
            for batch in in_batches(positions, lambda at: asked[at].size):
                yield _Batch(name, batch, now + patience, self.poll * LOOKS)

    def tell(self, notices: Sequence[EndNotice], accept: Callable[[EndNotice, bytes], bool], patience: float) -> None:
        """Send notices to the sites that are connected, and pass their replies to ``accept``.

        They are waited for ``patience`` seconds after each connected site has looked for messages.
        """
        patience += self._longest_poll
        nodes = self.nodes()
        by_site = [[notice for notice in notices if notice.site == site] for site in self.sites if site in nodes]
        groups = [group for group in by_site if group]
        messages = [
            FlowerMessage(
                pack("requests", [notice.data for notice in group]),
                nodes[group[0].site].node_id,
                ASK,
                ttl=patience + self.deadline,  # the last one may be sent long after the first
                group_id="end",
            )
            for group in groups
        ]
        sent = {number: group for number, group in zip(self._sent(messages), groups, strict=True) if number}
        end = time.monotonic() + patience
        while sent and time.monotonic() < end:
            time.sleep(self.poll)
            with _reached():
                replies = list(self.grid.pull_messages(list(sent)))
            for reply in replies:
                group = sent.pop(reply.metadata.reply_to_message_id, [])
                try:
                    for notice, part in zip(group, unpack("replies", reply.content), strict=True):
                        accept(notice, part)
                except Exception as error:  # a reply may hold anything, or an error in place of content
                    _log.warning("a site's acknowledgement cannot be read: %s", error)

    def _step(self, exchange: _Exchange) -> None:
        if exchange.looks % LOOKS == 0:
            nodes = self.nodes()
            if exchange.looks == 0:
                self._pass_over(exchange, nodes)
            self._push(exchange, nodes)
        exchange.looks += 1
        self._receive(exchange)
        now = time.monotonic()
        for batch in exchange.batches:
            if batch.told == "busy" and batch.sent and now >= batch.due:  # this time it was not turned away
                self._report(batch, "connected")
        for batch in [batch for batch in exchange.batches if batch.end <= now]:
            self._late.add(batch.site)
            waited = "" if batch.sent else f" ({batch.why})"
            self._lose(exchange, batch, f"no answer within its time{waited}")

    def _pass_over(self, exchange: _Exchange, nodes: Mapping[str, NodeInfo]) -> None:
        """Give up the sites that missed a deadline and are still away."""
        for batch in list(exchange.batches):
            if batch.site not in nodes:
                self._report(batch, "away")
                if batch.site in self._late:
                    self._lose(exchange, batch, "not connected since it missed a deadline")

    def _push(self, exchange: _Exchange, nodes: Mapping[str, NodeInfo]) -> None:
        """Send the messages that were not sent to a node since it connected."""
        pushed, batches, now = [], [], time.monotonic()
        for batch in exchange.batches:
            node = nodes.get(batch.site)
            if node is None or (batch.sent and batch.connected == node.last_activated_at) or now < batch.due:
                continue
            batch.due, batch.pause = now + batch.pause, 2 * batch.pause
            if batch.connected:
                _log.info("site %s is sent its message again: %s", batch.site, batch.why)
            if batch.told != "busy" and (batch.connected or batch.told):
                self._report(batch, "connected")
            batch.connected = node.last_activated_at
            content = pack("requests", [exchange.asked[at].data for at in batch.positions])
            group = str(exchange.asked[batch.positions[0]].request.head.step)
            ttl = max(batch.end - now, self.poll)
            pushed.append(FlowerMessage(content, node.node_id, ASK, ttl=ttl, group_id=group))
            batches.append(batch)
        for batch, sent in zip(batches, self._sent(pushed), strict=True):
            batch.sent = sent
            batch.why = "its node connected anew" if sent else "Flower did not take the message"

    def _sent(self, messages: Sequence[FlowerMessage]) -> Iterator[str]:
        """Send messages, some at a time; yield Flower's id of each, empty if Flower did not take it."""
        for start in range(0, len(messages), TOGETHER):
            group = messages[start : start + TOGETHER]
            with _reached():
                try:
                    ids = [sent or "" for sent in self.grid.push_messages(group)]  # empty if it takes none
                except ObjectPushError as error:  # if the run has ended, the next call says so
                    _log.info("%s", error)
                    ids = []
            yield from [*ids, *[""] * (len(group) - len(ids))]

    def _receive(self, exchange: _Exchange) -> None:
        waiting = {batch.sent: batch for batch in exchange.batches if batch.sent}
        if not waiting:
            return
        with _reached():
            messages = list(self.grid.pull_messages(list(waiting)))
        for message in messages:
            batch = waiting.pop(message.metadata.reply_to_message_id, None)
            if batch is None:
                continue
            if message.has_error() and message.error.code in NOT_YET:
                batch.sent, batch.why = "", NOT_YET[message.error.code]
                busy = message.error.code == BUSY
                batch.pause = min(batch.pause, LONGEST_PAUSE) if busy else batch.pause
                self._report(batch, "busy" if busy else "away")
            elif message.has_error():
                self._lose(exchange, batch, f"Flower's error {message.error.code}")
            else:
                self._take(exchange, batch, message)

    def _report(self, batch: _Batch, state: SiteState) -> None:
        if state != batch.told:
            batch.told = state
            self.report(batch.site, state)

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
        self.report(batch.site, "answered")
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
    try:
        yield
    except (httpx.HTTPError, ObjectPullError, RunNotRunningException) as error:
        why = (
            f"does not serve this run any more ({type(error).__name__}): it ended, stood still, or the run was stopped"
        )
        if isinstance(error, httpx.HTTPStatusError) and error.response.is_server_error:
            why = f"answers with HTTP status {error.response.status_code}: its own log says why, {FULL}"
        raise Interrupted(
            f"Flower's SuperLink {why}. Unless it was stopped, `fedsynth deploy serve` takes the run up by itself once "
            "the SuperLink serves it"
        ) from error
