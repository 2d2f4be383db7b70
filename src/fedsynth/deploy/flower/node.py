"""A site's Flower node: one process that fetches the server's messages and answers them.

It takes the place of Flower's own node, ``flower-supernode``, and of the process that Flower starts beside it for each
message, in which code runs that the server sent. Of Flower it uses the client library for the SuperLink's Fleet API.

Rule 1: of a message, only the requests in it are read; the app that Flower distributes is not even fetched. Rule 2: a
site that cannot answer is a lost site; the run goes on. Rule 3: nothing outlives a message. If a run ends while its
message is fetched, answered or sent back, that message is dropped; if anything else fails, the node reports itself to
the SuperLink anew, so that the server sends its messages again. Rule 4: replies leave at whole multiples of
``answer_every`` seconds (from the site's policy), so that the time of an answer, which may depend on the rows, shows
only in such steps. Replies to questions for which a site trains a model leave at multiples of a longer time, which
follows from the question and the policy. Rule 5: how often it polls follows from the roster and from when it last had
a message (:mod:`fedsynth.deploy.pace`); the server is not asked.
"""

from __future__ import annotations

import contextlib
import logging
import math
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_all
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from cryptography import x509

from fedsynth.deploy.host.config import SiteConfig, load_site_config
from fedsynth.deploy.host.state import IdleRuns, answer, load_node_key, wait_until_due
from fedsynth.deploy.pace import Pace, uneven
from fedsynth.errors import FedsynthError, from_extra, is_fault, reason_of, said
from fedsynth.files import private_folder
from fedsynth.locks import exclusive

with from_extra("flower", "messages over Flower need flwr"):
    import httpx
    from flwr.app import ConfigRecord, Error, Message, RecordDict
    from flwr.app.message.message import remove_content_from_message
    from flwr.common.constant import HEARTBEAT_PATIENCE
    from flwr.common.serde import message_from_proto, message_to_proto
    from flwr.proto.fleet_pb2 import (
        ActivateNodeRequest,
        DeactivateNodeRequest,
        PullMessagesRequest,
        PullMessagesResponse,
        PushMessagesRequest,
    )
    from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
    from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest, PushObjectResponse
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.error import ApiErrorCode, FlowerError
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        no_object_id_recompute,
    )
    from flwr.supercore.inflatable.inflatable_protobuf_utils import (
        make_confirm_message_received_fn_protobuf,
        make_pull_object_fn_protobuf,
        make_push_object_fn_protobuf,
    )
    from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supercore.protobuf.client import ProtobufCall, ProtobufClientInterceptor, ProtobufRequestContext
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    from fedsynth.deploy.flower.records import BUSY, pack, unpack

POLL = 0.5  # s between two attempts to pull a part that is not there yet
KEPT = 4.0  # s for which a connection may idle; the SuperLink closes it after 5, even while a request is on its way
PAUSE = 2.0  # s until the next attempt after the SuperLink could not be reached
PATIENCE = 120.0  # s for which a message's parts, or the delivery of its reply, are tried again
_Found = TypeVar("_Found")
_log = logging.getLogger("fedsynth.site")


class RunEnded(Exception):
    """The run of a message has ended at the server, so that nobody waits for its reply."""


class _Closing:
    """Closes the connection after each poll and heartbeat while ``seldom()``, before it can idle for too long."""

    def __init__(self, seldom: Callable[[], bool]) -> None:
        self._seldom = seldom

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        if isinstance(context.message, (PullMessagesRequest, SendNodeHeartbeatRequest)) and self._seldom():
            context.request.headers["Connection"] = "close"
        return call_next(context)


@contextlib.contextmanager
def _opened(config: SiteConfig, *others: ProtobufClientInterceptor) -> Iterator[FleetHttpClient]:
    """Give a client for the SuperLink's Fleet API; raise :class:`FedsynthError` for files that do not fit."""
    unfit = "the node's key or certificates cannot be used ({error}); `fedsynth site check` names the file"
    with said(unfit, OSError, TypeError, ValueError):
        private = load_node_key(config.key.read_bytes())
        context = ssl.create_default_context(cafile=config.root_certificates)
        if config.certificate.exists() and config.certificate_key.exists():  # a proxy may ask for it
            context.load_cert_chain(config.certificate, config.certificate_key)
    signed = NodeAuthHttpInterceptor(private, private.public_key())
    version: ProtobufClientInterceptor = RuntimeVersionHttpInterceptor(component_name="fedsynth")
    interceptors = (version, signed, *others)
    with FleetHttpClient(f"https://{config.superlink}", interceptors=interceptors, verify=context) as client:
        yield client


class FlowerNode:
    """Fetches a site's messages from Flower's server (SuperLink), answers them one by one, and sends the replies.

    ``site.toml`` in ``folder`` is read anew for each message. While one message is answered, messages of the same run
    wait, and the server is told that the site is busy if one of another run comes.
    """

    def __init__(self, folder: Path, config: SiteConfig) -> None:
        """Connect to nothing yet."""
        self._folder = folder
        self._config = config  # for the connection alone
        self._pace = Pace(len(config.peers))
        self._last_activity = -math.inf  # when it connected, took a message or replied
        self._fastest = math.inf  # s that the SuperLink took at least to answer a poll
        self._lag = 0.0  # s by which the last one took longer
        self._stopped = threading.Event()
        self._idle = IdleRuns(folder)
        self._node: Node | None = None  # as the SuperLink knows it
        self._active = False  # whether the SuperLink takes it for connected
        self._trouble = ""
        self._waiting: dict[Future[None], int] = {}  # messages that are answered, and their runs

    def stop(self) -> None:
        """Make :meth:`serve` return once the current message is answered; for another thread or a signal."""
        self._stopped.set()

    def serve(self) -> None:
        """Answer the site's messages until :meth:`stop`; while the SuperLink cannot be reached, try again and again.

        While no message is there, idle runs are closed, at once and then every hour. Raises :class:`FedsynthError` if
        key or certificates cannot be used, or if another process answers with this node's key.
        """
        with (
            _opened(self._config, _Closing(lambda: self._pause > KEPT)) as client,
            _alone(self._config),
            self._beating(client),
            ThreadPoolExecutor(1, "answer") as worker,
        ):
            try:
                while not self._stopped.is_set():
                    if not self._look(client, worker):
                        self._idle.close()
                    self._rest()
            finally:
                worker.shutdown()
                self._deactivate(client)

    def _rest(self) -> None:
        """Wait until the next poll; while a message is answered, none is due but those of other runs."""
        if not wait_for_all(self._waiting, self._pace.idle).not_done:
            self._stopped.wait(uneven(self._pause))

    @property
    def _pause(self) -> float:
        if self._trouble:
            return max(PAUSE, self._pace.due)
        return self._pace.pause(time.monotonic() - self._last_activity, self._lag)

    def _look(self, client: FleetHttpClient, worker: ThreadPoolExecutor) -> bool:
        try:
            node = self._node if self._node and self._active else self._activate(client)
            found = self._poll(client, node)
            pulled = [message_from_proto(one) for one in found.messages_list[:1]]
            taken = list(zip(pulled, found.message_object_trees[:1], strict=True))
        except Exception as error:  # a SuperLink may answer anything at all; it must not end the site's process
            self._tell(error)
            if not isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
                self._active = False  # it may have given out a message, and gives it again to a node activated anew
            return False
        if self._trouble:
            _log.info("the SuperLink at %s accepts this node", self._config.superlink)
            self._trouble, self._last_activity = "", time.monotonic()
            self._send_heartbeat(client, node)  # after an outage, the SuperLink has this node as away until the next
        if not taken:
            return False
        self._last_activity = time.monotonic()
        ((message, tree),) = taken
        self._waiting = {at: run for at, run in self._waiting.items() if not at.done()}
        run = message.metadata.run_id
        if other := next((busy for busy in self._waiting.values() if busy != run), None):
            _log.info("run %s has to wait: a message of run %s is being answered", run, other)
            self._guarded(lambda: self._turn_away(client, node, message), run)
        else:
            self._waiting[worker.submit(self._guarded, lambda: self._answer(client, node, message, tree), run)] = run
        return True

    def _poll(self, client: FleetHttpClient, node: Node) -> PullMessagesResponse:
        began = time.monotonic()
        found = client.PullMessages(PullMessagesRequest(node=node))
        seconds = time.monotonic() - began
        self._fastest = min(self._fastest, seconds)
        self._lag = seconds - self._fastest
        return found

    def _guarded(self, work: Callable[[], None], run: int) -> None:
        """Do the work for a message of Flower's ``run``; a failure affects this message alone."""
        try:
            work()
        except RunEnded:
            _log.info("run %s has ended at the server; its message is dropped", run)
        except Exception as error:
            known = isinstance(error, httpx.HTTPError)
            why = f" ({_reason(error, self._config, self._pace.away)})" if known else ""
            _log.warning(
                "a message could not be fetched or its reply not delivered%s; the server sends it again",
                why,
                exc_info=not known,
            )
            self._active = False  # to be activated anew, which the server notices
        finally:
            self._last_activity = time.monotonic()

    def _answer(self, client: FleetHttpClient, node: Node, message: Message, tree: ObjectTree) -> None:
        run = message.metadata.run_id
        pull = make_pull_object_fn_protobuf(_patiently(client.PullObject), node, run)
        confirm = make_confirm_message_received_fn_protobuf(_patiently(client.ConfirmMessageReceived), node, run)
        whole = pull_and_inflate_object_from_tree(
            tree, pull, confirm, return_type=Message, max_time=PATIENCE, initial_backoff=POLL, backoff_cap=PAUSE
        )
        whole.metadata.__dict__["_message_id"] = message.metadata.message_id
        began = time.monotonic()
        _send(client, node, reply(self._folder, whole), time.monotonic() - began)

    def _turn_away(self, client: FleetHttpClient, node: Node, message: Message) -> None:
        """Tell the server that this site is busy with a message of another run, and let Flower forget the message."""
        run, number = message.metadata.run_id, message.metadata.message_id
        make_confirm_message_received_fn_protobuf(_patiently(client.ConfirmMessageReceived), node, run)(number)
        _send(client, node, Message(Error(BUSY, "busy"), reply_to=message), 0.0)

    # The node's state at the SuperLink

    @property
    def _interval(self) -> float:
        """What Flower calls the time between heartbeats (s): half of that after which a node is away."""
        return self._pace.away / HEARTBEAT_PATIENCE

    def _activate(self, client: FleetHttpClient) -> Node:
        self._deactivate(client)
        self._follow_roster()
        public = public_key_to_bytes(load_node_key(self._config.key.read_bytes()).public_key())
        asked = ActivateNodeRequest(public_key=public, heartbeat_interval=self._interval)
        self._node, self._active = Node(node_id=client.ActivateNode(asked).node_id), True
        self._last_activity = time.monotonic()
        return self._node

    def _follow_roster(self) -> None:
        """Take the pace of the roster that is there now: this process may be older than the site's admission."""
        with contextlib.suppress(FedsynthError):  # `answer` says what is wrong with the files
            self._pace = Pace(len(load_site_config(self._folder).peers))

    def _deactivate(self, client: FleetHttpClient) -> None:
        """Tell the SuperLink that this node is away; it then admits the node again at once."""
        self._active = False
        if self._node is not None:
            try:
                client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
            except (httpx.HTTPError, ValueError) as error:  # the second for a reply that is none of Flower's
                _log.debug("the SuperLink was not told that this node is away: %s", error)

    @contextlib.contextmanager
    def _beating(self, client: FleetHttpClient) -> Iterator[None]:
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(uneven(self._pace.heartbeat)):
                if self._node is not None and self._active:
                    self._send_heartbeat(client, self._node)

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _send_heartbeat(self, client: FleetHttpClient, node: Node) -> None:
        try:
            client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=node, heartbeat_interval=self._interval))
        except (httpx.HTTPError, ValueError) as error:  # the next poll for messages meets the same, and says so
            _log.debug("no heartbeat: %s", error)

    def _tell(self, error: Exception) -> None:
        """Log why the SuperLink cannot be used, once for each reason: what stands before the details in brackets."""
        reason = _reason(error, self._config, self._pace.away)
        trouble = reason.partition(" (")[0]
        if trouble != self._trouble:
            _log.warning("%s; trying again", reason)
        self._trouble = trouble


def _reason(error: Exception, config: SiteConfig, away: float) -> str:
    superlink, fault = config.superlink, _certificate_fault(error)
    status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else 0
    if (fault or status == httpx.codes.BAD_REQUEST or _of_tls(error)) and (own := _own_fault(config)):
        return own
    if fault:
        return (
            f"the certificate of the SuperLink at {superlink} is not accepted ({fault}): ca.crt is not that server's, "
            "or the clock of this host or of the server is wrong (`fedsynth site check` compares them)"
        )
    if isinstance(error, httpx.HTTPStatusError):
        known = FlowerError.from_json(error.response.text)
        if status == httpx.codes.UNAUTHORIZED:
            return (
                f"the SuperLink at {superlink} does not accept this node: its key is not registered, or the clock of "
                "this host or of the server is wrong (`fedsynth site check` compares them)"
            )
        if known is not None and known.code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED:
            return (
                f"the SuperLink at {superlink} has this node as connected already: after a crash it takes the node "
                f"back within {away:.0f} s; longer, and another machine uses this node's key, or the key is not "
                "registered"
            )
        told = "; ask the coordinator: its own log says why, and a full disk is one reason" if status >= 500 else ""
        return f"the SuperLink at {superlink} answers with HTTP status {status}{told}"
    return f"no SuperLink answers at {superlink} ({error or type(error).__name__})"


def _certificate_fault(error: BaseException | None) -> str:
    """Return what is wrong with the SuperLink's certificate, if that is the cause of an error; else an empty text."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return error.verify_message
        error = error.__cause__ or error.__context__
    return ""


def _of_tls(error: BaseException | None) -> bool:
    """Whether an error of the TLS connection, such as a refusal of this site's certificate, is the cause of another."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error is not None


def _own_fault(config: SiteConfig) -> str:
    """Return that the site's own certificate has ended, and how it is renewed; an empty text if it has not."""
    try:
        end = x509.load_pem_x509_certificate(config.certificate.read_bytes()).not_valid_after_utc
    except (OSError, ValueError):  # there is none, or `site check` says what is wrong with it
        return ""
    if end > (now := datetime.now(UTC)):
        return ""
    return (
        f"this site's own certificate, {config.certificate}, ended on {end:%Y-%m-%d}, and the clock of this host says "
        f"{now:%Y-%m-%d}: set the clock if it is wrong; else renew the certificate (`fedsynth site join` with the "
        "invitation, then with the new admission) and restart `fedsynth site serve`"
    )


@contextlib.contextmanager
def _alone(config: SiteConfig) -> Iterator[None]:
    """Hold the node's lock, which lies in the site's state; raise :class:`FedsynthError` if another process does."""
    busy = f"another `fedsynth site serve` answers with the key {config.key}; stop it first, or leave it running"
    with exclusive(private_folder(config.state) / "serve.lock", busy):
        yield


def _patiently(call: Callable[..., _Found]) -> Callable[..., _Found]:
    """Return ``call`` with repetitions while the SuperLink cannot be reached; it raises :class:`RunEnded` as well."""

    def tried(request: object) -> _Found:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return call(request)
            except httpx.HTTPStatusError as error:
                known = FlowerError.from_json(error.response.text)
                if known is not None and known.code == ApiErrorCode.FLEET_RUN_STATUS_NOT_ALLOWED:
                    raise RunEnded from error
                if error.response.status_code not in (502, 503, 504) or time.monotonic() > end:
                    raise
            except httpx.TransportError:
                if time.monotonic() > end:
                    raise
            time.sleep(PAUSE)

    return tried


def _send(client: FleetHttpClient, node: Node, found: Message, seconds: float) -> None:
    run = found.metadata.run_id
    with no_object_id_recompute():
        found.metadata.__dict__["_message_id"] = found.object_id
        bare = remove_content_from_message(found) if found.has_content() else found
        pushed = _patiently(client.PushMessages)(
            PushMessagesRequest(
                node=node,
                messages_list=[message_to_proto(bare)],
                message_object_trees=[get_object_tree(found)],
                clientapp_runtime_list=[seconds],
            )
        )
        push = make_push_object_fn_protobuf(_patiently(_pushed_once(client)), node, run, pushed.session_id)
        push_objects(get_all_nested_objects(found), push, object_ids_to_push=set(pushed.objects_to_push))


def _pushed_once(client: FleetHttpClient) -> Callable[[PushObjectRequest], PushObjectResponse]:
    """Return what pushes a part of a reply; a repetition that is turned down stands for an answer that was lost.

    The SuperLink stores each part once. Should it have none, it gives the reply up, and the server asks again.
    """
    tried: set[str] = set()

    def push(request: PushObjectRequest) -> PushObjectResponse:
        again = request.object_id in tried
        tried.add(request.object_id)
        found = client.PushObject(request)
        return PushObjectResponse(stored=True) if again else found

    return push


def reply(folder: Path, message: Message) -> Message:
    """Return a site's reply to one message of the server, not before it is due (:func:`wait_until_due`); never raises.

    Any failure gives a reply without answers; the reason goes to the site's own log.
    """
    began = time.monotonic()
    every, seconds = 1.0, 0.0
    try:
        config = load_site_config(folder)
        every = config.policy.answer_every
        replies, seconds = answer(config, list(unpack("requests", message.content)))
        content = pack("replies", replies)
    except Exception as error:  # in the site's own log; the server learns nothing of it
        _log.error("this site could not answer: %s", reason_of(error), exc_info=is_fault(error))
        content = RecordDict({"failed": ConfigRecord({})})
    found = Message(content, reply_to=message)
    wait_until_due(began, every, seconds=seconds)
    return found
