"""A site's answering process, which runs beside Flower's SuperNode in place of ``flower-superexec``.

``flower-superexec`` starts a process for each message that unpacks and runs the app sent by the server, so that anyone
with access to the server's control API runs code at every site. The answerer takes the same messages from the
SuperNode's Runtime API and answers them with the installed fedsynth. It reads only the requests of a message, and drops
the app unread.

Rule 1: a site that cannot answer is a lost site; the run goes on. Rule 2: replies leave at whole multiples of
``answer_every`` seconds (from the site's policy), so that the time of an answer, which may depend on the rows, shows
only in such steps. Replies to questions for which a site trains a model leave at multiples of a longer time, which
follows from the question and the policy.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fedsynth
from fedsynth.errors import FedsynthError, Refused, is_fault, reason_of
from fedsynth.host.config import SiteConfig, load_site_config
from fedsynth.host.state import IdleRuns, TimedReplies, answer, wait_until_due

try:
    import httpx
    from flwr.app import ConfigRecord, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.common.constant import SubStatus
    from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.heartbeat import HeartbeatSender
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor,
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.retry import RetryInvoker, exponential
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

    from fedsynth.transports.flower.records import pack, unpack
except ImportError as error:
    from importlib.metadata import version

    raise FedsynthError(
        f"flwr {version('flwr')} does not fit this fedsynth ({error}); install 'fedsynth[flower]' of this version"
    ) from error

POLL = 0.1  # s between two polls for a message
TRIES = 5  # attempts to fetch a message or to deliver its reply
PAUSE = 2.0  # s until the next attempt after the SuperNode could not be reached
_log = logging.getLogger("fedsynth.site")

client = ClientApp()  # a Flower app has to name a client app; this one answers nothing


class FlowerAnswerer:
    """Fetches a site's messages one by one from its Flower node (SuperNode), answers them, and hands the replies back.

    It takes the place of Flower's own process for this, ``flower-superexec``.

    Parameters
    ----------
    folder
        Folder of the site's configuration, ``site.toml``, which is read anew for each message.
    address
        Host and port of the SuperNode's Runtime API, by which it hands out messages.
    certificates
        The certificates (PEM) that vouch for the SuperNode's; ``None``: a connection without TLS.
    secret
        Content of the file that the SuperNode was given as ``--superexec-auth-secret-file``.
    """

    def __init__(self, folder: Path, address: str, certificates: bytes | None, secret: bytes) -> None:
        """Connect to nothing yet."""
        self._folder = folder
        self._address = address
        self._certificates = certificates
        self._secret = secret
        self._stopped = threading.Event()
        self._idle = IdleRuns(folder)
        self._reached = True

    def stop(self) -> None:
        """Make :meth:`serve` return once the current message is answered; called from another thread."""
        self._stopped.set()

    def serve(self) -> None:
        """Answer the site's messages until :meth:`stop`; while Flower's node cannot be reached, try again and again.

        While no message is there, idle runs are closed, at once and then every hour.
        Raises :class:`Refused` if the node does not accept the secret.
        """
        acquire = SuperExecAuthHttpInterceptor(
            master_secret=self._secret, protected_methods=frozenset({"/flwr.proto.Runtime/AcquireTask"})
        )
        with self._connected(acquire) as node:
            while not self._stopped.is_set():
                if token := self._next(node):
                    self._answer(token)
                else:
                    self._idle.close()
                    self._stopped.wait(POLL if self._reached else PAUSE)

    def _next(self, node: RuntimeHttpClient) -> str:
        """Return the token of the SuperNode's oldest message; empty if there is none, or no SuperNode."""
        try:
            found = node.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        except httpx.HTTPError as error:
            if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (401, 403):
                raise Refused(
                    f"the SuperNode at {self._address} does not accept this secret; give both the same file"
                ) from error
            if self._reached:
                _log.warning("no SuperNode answers at %s (%s); trying again", self._address, error)
            self._reached = False
            return ""
        if not self._reached:
            _log.info("the SuperNode at %s is reachable again", self._address)
        self._reached = True
        return found.token if found.HasField("task") else ""

    @contextlib.contextmanager
    def _connected(self, interceptor: Any, retry: RetryInvoker | None = None) -> Iterator[RuntimeHttpClient]:
        client = RuntimeHttpClient.from_server_address(
            server_address=self._address,
            insecure=self._certificates is None,
            root_certificates=self._certificates,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="fedsynth"), interceptor],
            retry_invoker=retry,  # Flower's own would end the process if access is denied
        )
        try:
            yield client
        finally:
            client.close()

    def _answer(self, token: str) -> None:
        """Fetch the message of a token and send its reply; a failure affects this message alone."""
        retry = RetryInvoker(lambda: exponential(max_delay=5), httpx.TransportError, max_tries=TRIES, max_time=None)
        with self._connected(RuntimeTokenHttpInterceptor(token), retry) as node:
            heartbeat = HeartbeatSender(lambda: _beat(node))
            heartbeat.start()
            context = None
            try:
                message, context, _, _ = pull_task_input(node)
                push_message(node, reply(self._folder, message), context)
                push_task_output(node, context, SubStatus.COMPLETED, "")
            except Exception:  # a message that cannot be read, a run that was stopped, a SuperNode that went away
                _log.exception("a message could not be taken or its reply not handed in")
                push_task_output(node, context, SubStatus.FAILED, "")
            finally:
                if heartbeat.is_running:
                    heartbeat.stop()


def reply(folder: Path, message: Message) -> Message:
    """Return a site's reply to one message of the server, not before the reply is due; never raises.

    ``folder`` holds the site's configuration, ``site.toml``. A reply is due at a whole multiple of ``answer_every``
    seconds (in the site's policy) after this call, or of a longer time if the message asks for training. Any failure
    gives a reply without answers; the reason goes to the site's own log.
    """
    began = time.monotonic()
    every, seconds = 1.0, 0.0
    try:
        config = load_site_config(folder)
        every = config.policy.answer_every
        replies, seconds = _replies(config, message.content)
        content = pack("replies", replies)
    except Exception as error:  # in the site's own log; the server learns nothing of it
        _log.error("this site could not answer: %s", reason_of(error), exc_info=is_fault(error))
        content = RecordDict({"failed": ConfigRecord({})})
    found = Message(content, reply_to=message)
    wait_until_due(began, every, seconds=seconds)
    return found


def _beat(node: RuntimeHttpClient) -> bool:
    """Send the SuperNode a heartbeat for its message; return whether it was received."""
    try:
        node.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    except httpx.HTTPError:
        return False
    return True


def _replies(config: SiteConfig, content: RecordDict) -> TimedReplies:
    server, addressed = (str(content.config_records["head"][key])[:64] for key in ("fedsynth", "site"))
    why = ""
    if server != fedsynth.__version__:
        why = f"it runs fedsynth {fedsynth.__version__} and the server {server!r}; upgrade both together"
    elif addressed != config.name:
        why = f"its site.toml says {config.name!r}; register its key under that name, or correct the file"
    return answer(config, list(unpack("requests", content)), why)
