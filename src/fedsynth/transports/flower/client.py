"""A site's resident answerer: it stands beside Flower's SuperNode, in the place of ``flower-superexec``.

That program starts a process for each message, which unpacks the app that the server sent and runs what it names: who
reaches the server's control API runs code at every site. The answerer takes the same messages from the SuperNode's
Runtime API and answers them with the installed fedsynth. Of what comes with a message it reads the requests alone: the
app stays bytes that are dropped.

Rule 1: a site that cannot answer is a lost site; the run goes on. Rule 2: replies leave at whole multiples of the
policy's ``answer_every``, so that their time tells neither how many rows there are nor what they hold. Those to
questions that train leave at multiples of a longer time, which follows from the question and the policy.
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
from fedsynth.errors import FedsynthError, Refused
from fedsynth.host.config import SiteConfig, load_site_config
from fedsynth.host.state import Answers, answer, wait_until_due

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
        f"flwr {version('flwr')} has not what a site needs of it ({error}); install 'fedsynth[flower]' of this version"
    ) from error

POLL = 0.1  # s between two questions whether there is a message
TRIES = 5  # to take a message or to hand in its reply
PAUSE = 2.0  # s until the next try after the SuperNode could not be reached
_log = logging.getLogger("fedsynth.site")

client = ClientApp()  # a Flower app has to name one; it answers nothing


class Answerer:
    """Takes a SuperNode's messages, one after the other, and answers them for the site of a folder's ``site.toml``.

    Parameters
    ----------
    folder
        Folder of ``site.toml``, which is read anew for each message.
    address
        Host and port of the SuperNode's Runtime API.
    certificates
        The certificates (PEM) that vouch for the SuperNode's; ``None``: a connection without TLS.
    secret
        What the SuperNode was given as ``--superexec-auth-secret-file``.
    """

    def __init__(self, folder: Path, address: str, certificates: bytes | None, secret: bytes) -> None:
        """Connect to nothing yet."""
        self._folder = folder
        self._address = address
        self._certificates = certificates
        self._secret = secret
        self._stopped = threading.Event()
        self._reached = True

    def stop(self) -> None:
        """Return from :meth:`serve` once the message at hand is answered."""
        self._stopped.set()

    def serve(self) -> None:
        """Answer until :meth:`stop`; raises :class:`Refused` where the SuperNode does not take the secret."""
        acquire = SuperExecAuthHttpInterceptor(
            master_secret=self._secret, protected_methods=frozenset({"/flwr.proto.Runtime/AcquireTask"})
        )
        with self._connected(acquire) as node:
            while not self._stopped.is_set():
                if token := self._next(node):
                    self._answer(token)
                else:
                    self._stopped.wait(POLL if self._reached else PAUSE)

    def _next(self, node: RuntimeHttpClient) -> str:
        """Return what the SuperNode knows its oldest message by, empty where there is none or no SuperNode."""
        try:
            found = node.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        except httpx.HTTPError as error:
            if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (401, 403):
                raise Refused(
                    f"the SuperNode at {self._address} does not take this secret; give both the same file"
                ) from error
            if self._reached:
                _log.warning("no SuperNode answers at %s (%s); trying again", self._address, error)
            self._reached = False
            return ""
        if not self._reached:
            _log.info("the SuperNode at %s is there again", self._address)
        self._reached = True
        return found.token if found.HasField("task") else ""

    @contextlib.contextmanager
    def _connected(self, interceptor: Any, retry: RetryInvoker | None = None) -> Iterator[RuntimeHttpClient]:
        client = RuntimeHttpClient.from_server_address(
            server_address=self._address,
            insecure=self._certificates is None,
            root_certificates=self._certificates,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="fedsynth"), interceptor],
            retry_invoker=retry,  # Flower's own would end the process where it is not let in
        )
        try:
            yield client
        finally:
            client.close()

    def _answer(self, token: str) -> None:
        """Take the message that the token stands for, and send its reply; a failure concerns that message alone."""
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
    """Return the reply to one message for the site of a folder, at the time when it is due; never raises."""
    began = time.monotonic()
    every, seconds = 1.0, 0.0
    try:
        config = load_site_config(folder)
        every = config.policy.answer_every
        replies, seconds = _replies(config, message.content)
        content = pack("replies", replies)
    except Exception:
        _log.exception("this site could not answer")  # in the site's own log; the server learns nothing of it
        content = RecordDict({"failed": ConfigRecord({})})
    found = Message(content, reply_to=message)
    wait_until_due(began, every, seconds=seconds)
    return found


def _beat(node: RuntimeHttpClient) -> bool:
    """Tell the SuperNode that its message is being answered; return whether it has heard."""
    try:
        node.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    except httpx.HTTPError:
        return False
    return True


def _replies(config: SiteConfig, content: RecordDict) -> Answers:
    server, addressed = (str(content.config_records["head"][key])[:64] for key in ("fedsynth", "site"))
    why = ""
    if server != fedsynth.__version__:
        why = f"it runs fedsynth {fedsynth.__version__} and the server {server!r}; upgrade both together"
    elif addressed != config.name:
        why = f"its site.toml says {config.name!r}; register its key under that name, or correct the file"
    return answer(config, list(unpack("requests", content)), why)
