"""The server's executor: it makes the runs that are started at Flower's server (SuperLink).

It takes the place of Flower's ``flower-superexec``, which installs and runs the app that whoever started a run has
sent along, beside the coordinator's key. The executor takes the SuperLink's tasks with the same secret. Of a task it
uses the number alone: each task is one attempt at the run that the federation's own ``job.toml`` describes, made by the
installed fedsynth.

Rule 1: nothing that came with a task is unpacked, imported or read. Rule 2: each attempt runs in a process of its own,
one at a time. Rule 3: who reaches the SuperLink's control API can start and stop attempts, and nothing else. Rule 4: a
run that was interrupted (:mod:`fedsynth.deploy.status`) is started again at the SuperLink, like any other, with a
limit of tries; one that ended with an error, or that somebody stopped, is not. If a person starts it at the same time,
one attempt follows the other, and the second finds the run complete.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fedsynth.deploy.flower.control import FlowerControl, purge_after
from fedsynth.deploy.run_events import (
    AttemptResumed,
    EventLog,
    EventReader,
    Tell,
    events_file,
    note_complete,
    note_stop,
    run_watched,
)
from fedsynth.deploy.status import PAUSES, RunView, last_attempt
from fedsynth.errors import FedsynthError, Refused, explained, from_extra, number_of
from fedsynth.keys import SecretBytes
from fedsynth.platforms import is_exposed
from fedsynth.runs.folder import RunFolder
from fedsynth.runs.job import Job

with from_extra("flower", "messages over Flower need flwr"):
    import httpx
    from flwr.common.constant import SubStatus
    from flwr.common.serde import run_from_proto
    from flwr.proto.runtime_pb2 import (
        AcquireTaskRequest,
        PullTaskInputRequest,
        PushTaskOutputRequest,
        SendTaskHeartbeatRequest,
    )
    from flwr.serverapp import Grid
    from flwr.supercore.constant import TaskType
    from flwr.supercore.heartbeat import HeartbeatSender
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor,
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.protobuf.client import ProtobufClientInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supercore.task_identity import TaskIdentity

    from fedsynth.deploy.flower.grid import FlowerGrid
    from fedsynth.deploy.flower.server import FlowerTransport

POLL = 0.5  # s between two polls for a task
PAUSE = 2.0  # s until the next attempt after the SuperLink could not be reached
LOOK = 60.0  # s between two searches for an interrupted run, without a reason to look sooner
_log = logging.getLogger("fedsynth.server")


class FlowerExecutor:
    """Makes the run of the federation in ``folder`` whenever it is started at Flower's server (SuperLink).

    ``superlink`` is its HOST:PORT, ``certificates`` (PEM) vouch for it, and ``secret`` is the content of the file that
    it was given as ``--superexec-auth-secret-file``. From its ``database`` the messages are deleted once a run is
    complete that the executor has taken up.
    """

    def __init__(self, folder: Path, superlink: str, certificates: bytes, secret: bytes, database: Path) -> None:
        """Connect to nothing yet."""
        self._folder = folder
        self._superlink = superlink
        self._certificates = certificates
        self._secret = secret
        self._database = database
        self._stopped = threading.Event()
        self._reached = True
        self._look_at = 0.0  # time of the next search for an interrupted run, by the monotonic clock
        self._told = ""
        self._tidied: set[str] = set()

    def stop(self) -> None:
        """Make :meth:`serve` return, and end the attempt that is going on; for another thread or a signal."""
        self._stopped.set()

    def serve(self) -> None:
        """Make the runs that are started, in order, until :meth:`stop`; raises :class:`Refused` for a wrong secret.

        A SuperLink that cannot be reached is tried again until it can.
        """
        acquire = SuperExecAuthHttpInterceptor(
            master_secret=self._secret, protected_methods=frozenset({"/flwr.proto.Runtime/AcquireTask"})
        )
        with connected(self._superlink, self._certificates, acquire) as client:
            while not self._stopped.is_set():
                if token := self._next(client):
                    self._make(token)
                    self._look_at = 0.0
                elif not (self._reached and self._resume()):
                    self._stopped.wait(POLL if self._reached else PAUSE)

    def _next(self, client: RuntimeHttpClient) -> str:
        """Return the token of the SuperLink's oldest task; empty if there is none, or no SuperLink."""
        try:
            found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
        except (httpx.HTTPError, ValueError) as error:  # the second for a reply that is no message of Flower's
            if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (401, 403):
                raise Refused(
                    f"the SuperLink at {self._superlink} does not accept this secret; give both the same file"
                ) from error
            if self._reached:
                _log.warning("no SuperLink answers at %s (%s); trying again", self._superlink, _line(error))
            self._reached = False
            return ""
        if not self._reached:
            _log.info("the SuperLink at %s is reachable again", self._superlink)
            self._look_at = 0.0
        self._reached = True
        return found.token if found.HasField("task") else ""

    def _make(self, token: str) -> None:
        """Make one attempt at the run, in a process that has what is loaded here, and wait for its end."""
        process = multiprocessing.get_context("fork").Process(
            target=attempt, args=(self._folder, self._superlink, self._certificates, token)
        )
        process.start()
        while process.is_alive() and not self._stopped.is_set():
            process.join(POLL)
        if process.is_alive():
            process.terminate()
        process.join()
        if process.exitcode:
            _log.warning("the process of the run ended with status %d", process.exitcode)

    def _resume(self) -> bool:
        """Start the run again if it was interrupted and its next try is due; return whether it was started."""
        if time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + LOOK
        try:
            job = Job.load(self._folder / "job.toml")
            run = job.deployed.run
            file = events_file(self._folder, run)
            view = last_attempt(file)
            if view is None or EventReader(file).alive():
                return False
            if RunFolder(self._folder / "runs" / run).is_run:
                self._tidy(job, view)
                return False
            return view.interrupted and self._take_up(run, file, view)
        except (FedsynthError, OSError) as error:
            said = explained(error) if isinstance(error, OSError) else str(error)
            self._tell(f"whether a run was interrupted cannot be seen, or it cannot be started: {said}")
            return False

    def _take_up(self, run: str, file: Path, view: RunView) -> bool:
        """Start an interrupted run unless somebody stopped it, its tries are used up, or the next is not due yet."""
        if view.resumable_at is None:
            made = number_of(view.tries, "time")
            self._tell(f"the run {run} was taken up {made} without finishing a round; `fedsynth deploy run` resumes it")
            return False
        if (wait := view.resumable_at - time.time()) > 0:
            self._look_at = time.monotonic() + min(wait, LOOK)  # not longer: the clock may be wrong
            return False
        with self._control() as control:
            if _status(control, view.attempt) == "finished:stopped":
                note_stop(file, view.attempt)
                return False
            attempt = control.start()
        with EventLog(file, view.attempt) as log:
            log.add(AttemptResumed, by=attempt, tries=view.tries + 1, finished=view.furthest)
        self._told = ""
        of = f"try {view.tries + 1} of {len(PAUSES)}, Flower's run {attempt}"
        _log.warning("the run %s was interrupted and is taken up: %s", run, of)
        return True

    def _tidy(self, job: Job, view: RunView) -> None:
        """Record that a run is complete whose process did not come to it, and delete the messages of one taken up."""
        if view.ended is None:
            note_complete(job, self._folder, view.attempt)
        if view.resumes is not None and view.attempt not in self._tidied:  # nobody else waits for its end
            self._tidied.add(view.attempt)
            multiprocessing.get_context("fork").Process(target=self._purge, args=(view.attempt,), daemon=True).start()

    def _purge(self, attempt: str) -> None:
        try:
            with self._control() as control:
                purge_after(control, attempt, self._database)
            _log.info("the messages of the complete run have been deleted from %s", self._database)
        except FedsynthError as error:
            _log.warning("the SuperLink still holds the run's messages: %s", error)

    @contextmanager
    def _control(self) -> Iterator[FlowerControl]:
        """Yield the control of the SuperLink that this process serves, whatever FLWR_HOME holds."""
        with tempfile.TemporaryDirectory(prefix="fedsynth-") as name:
            home = Path(name)
            (home / "ca.crt").write_bytes(self._certificates)
            yield FlowerControl.at(self._superlink, home / "ca.crt", self._folder, home)

    def _tell(self, sentence: str) -> None:
        """Log a sentence, once until another one."""
        if sentence != self._told:
            _log.warning("%s", sentence)
        self._told = sentence


def _status(control: FlowerControl, attempt: str) -> str:
    """Return Flower's status of a run; empty if its database does not know it, as after a restored backup."""
    try:
        return control.status(attempt)[0]
    except FedsynthError:
        return ""


def server_secret(path: Path) -> bytes:
    """Return the secret that SuperLink and executor share.

    Raises :class:`FedsynthError` for a file that is missing, empty, or readable by everybody.
    """
    if not path.is_file() or not path.stat().st_size:
        raise FedsynthError(f"{path} is missing or empty; `fedsynth deploy init` makes it: give the SuperLink the same")
    if is_exposed(path, stat.S_IRWXO):
        raise FedsynthError(f"{path} can be read by everybody; run chmod o-rwx {path}")
    return SecretBytes(path.read_bytes())


@contextmanager
def connected(
    superlink: str, certificates: bytes, interceptor: ProtobufClientInterceptor
) -> Iterator[RuntimeHttpClient]:
    """Give a client for the SuperLink's Runtime API."""
    client = RuntimeHttpClient.from_server_address(
        server_address=superlink,
        insecure=False,
        root_certificates=certificates,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="fedsynth"), interceptor],
    )
    try:
        yield client
    finally:
        client.close()


def attempt(folder: Path, superlink: str, certificates: bytes, token: str) -> None:
    """Make one attempt at the run, for the SuperLink's task of this ``token``; it is told how the attempt ended."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    grid = FlowerGrid(superlink, certificates, token)
    status, details = SubStatus.FAILED, "the attempt was interrupted"
    with connected(superlink, certificates, RuntimeTokenHttpInterceptor(token)) as client:
        try:
            task = client.PullTaskInput(PullTaskInputRequest())
        except httpx.HTTPError as error:
            _log.warning("the attempt could not begin: the SuperLink does not answer (%s)", _line(error))
            return
        TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
        TaskIdentity.node_id = task.context.node_id
        grid.set_run(run_from_proto(task.run))
        heartbeat = HeartbeatSender(partial(_beat, client))
        heartbeat.start()
        try:
            job = Job.load(folder / "job.toml")
            if note_complete(job, folder, str(task.run.run_id)):
                status, details = SubStatus.COMPLETED, "the run had been completed by another attempt"
                _log.info("run %s is complete: nothing is asked again", job.deployed.run)
                return
            outcome = run_watched(job, folder, str(task.run.run_id), partial(_transport, grid))
            status, details = SubStatus.COMPLETED, ""
            _log.info("the table is in %s; %s", outcome.folder, outcome.statement.headline)
            for warning in outcome.warnings:
                _log.warning("%s", warning)
            _log.info("sites that missed a round: %s", ", ".join(outcome.lost) or "none")
        except (FedsynthError, OSError) as error:
            details = explained(error) if isinstance(error, OSError) else str(error)
            _log.error("the run ended without a result: %s", details)
        except Exception as error:
            details = f"a fault of fedsynth ({type(error).__name__}); the log of `fedsynth deploy serve` has more"
            _log.exception("the run ended without a result")
        except KeyboardInterrupt:
            _log.warning("the run was stopped, or given up by the SuperLink")
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):  # what is left is short, and has to be done
                signal.signal(number, signal.SIG_IGN)
            heartbeat.stop()  # first: afterwards the SuperLink does not know the attempt any more
            try:
                client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
            except httpx.HTTPError as error:
                _log.info("the SuperLink was not told the end of the run (%s); it knows, or it ended", _line(error))
            grid.close()


def _line(error: Exception) -> str:
    """Return the first line of an error's text; further lines of HTTPX point to pages about HTTP."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _beat(client: RuntimeHttpClient) -> bool:
    """Send a heartbeat; return whether it arrived. If the SuperLink has ended the attempt, interrupt it."""
    try:
        found = client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    except httpx.HTTPStatusError as error:
        if error.response.status_code not in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            return False
    except (httpx.TransportError, ValueError):  # the second for a reply that is no message of Flower's
        return False
    else:
        if found.success:
            return True
    os.kill(os.getpid(), signal.SIGINT)  # which wakes the main thread, whatever it waits for
    return True


@contextmanager
def _transport(grid: Grid, job: Job, tell: Tell) -> Iterator[FlowerTransport]:
    deployed = job.deployed
    transport = FlowerTransport(grid, deployed.sites, deployed.deadline, enrolled=len(deployed.peers), report=tell)
    transport.wait(deployed.least)
    yield transport
