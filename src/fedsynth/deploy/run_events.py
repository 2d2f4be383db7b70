"""Events that a deployed run appends to a file as it goes on, and their reader.

Rule 1: an event holds names, steps, sizes in bytes, times and codes, and the last one the result's headline and
warnings or the error's message, but no counts, statistics or parts of answers. Rule 2: readers use the file alone, so
that a run started elsewhere or by hand is shown like any other (:mod:`fedsynth.deploy.status`). Rule 3: a transport
adds only what it alone knows: that a site is connected, away, busy with another run, or has answered.
"""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

import fedsynth
from fedsynth.errors import FedsynthError, exit_code, explained, said
from fedsynth.federation.transport import Message, Transport
from fedsynth.federation.wire import Reply
from fedsynth.files import private_folder, writing
from fedsynth.locks import is_shared, shared
from fedsynth.methods import find_method
from fedsynth.progress import Progress, ignore_progress
from fedsynth.runs.folder import RunFolder
from fedsynth.runs.job import Job
from fedsynth.runs.run import RunResult, run_deployed
from fedsynth.schema import Schema

FILE = "events.jsonl"  # in a run's state folder
_LOCK = ".lock"  # suffix of the lock beside it
STOPPED = "stopped by the operator; run the same command again to resume"
FILES = "files-"  # prefix of the id of an attempt over files; over Flower, the attempt has Flower's id
_ROWS = 2000  # random rows of a dry run that only counts rounds
_SITES = 5  # sites of a dry run that only counts rounds, unless min_honest needs more: the number stays the same
SiteState = Literal["connected", "away", "busy", "answered"]
Tell = Callable[[str, SiteState], None]
"""Callback by which a transport reports a site (its name first): connected, away, busy with another run, answered."""


def ignore_report(site: str, state: SiteState) -> None:
    """Ignore a transport's report of a site, for a run that nobody watches."""


# ---------------------------------------------------------------------------------------------------------------------
# Events


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Common fields of events: the Unix time, and the attempt at the run."""

    time: float
    attempt: str


class AttemptBegun(_Event, frozen=True, kw_only=True, tag="begun"):
    """Event: an attempt has begun. At least ``least`` sites must answer every round, each in ``deadline`` seconds."""

    run: str
    method: str
    trust: str
    sites: tuple[str, ...]
    least: int
    deadline: float
    fedsynth: str


class AttemptResumed(_Event, frozen=True, kw_only=True, tag="resumed"):
    """Event: ``deploy serve`` takes up this attempt, which was interrupted, by another one of the id ``by``.

    It is the try of the number ``tries`` (from 1) since the last round was finished; ``finished`` is that round's
    number, 0 for none.
    """

    by: str
    tries: int
    finished: int


class RoundsExpected(_Event, frozen=True, kw_only=True, tag="expected"):
    """Event: a dry run has estimated how many ``rounds`` of messages the run will take."""

    rounds: int


class SiteReported(_Event, frozen=True, kw_only=True, tag="site"):
    """Event: the transport, which carries the messages, reports a site's state."""

    site: str
    state: SiteState


class RoundStarted(_Event, frozen=True, kw_only=True, tag="asked"):
    """Event: a round (from 1) has started; ``bytes`` is the size of the messages of its question by site."""

    round: int
    step: int
    turn: int
    verb: str
    kind: str
    bytes: dict[str, int]


class SiteReplied(_Event, frozen=True, kw_only=True, tag="replied"):
    """Event: a site's last reply in a round has come, or it is lost; ``code`` is a key of
    :data:`~fedsynth.deploy.status.WORDS`.
    """

    round: int
    site: str
    code: str
    bytes: int
    seconds: float


class WorkAdvanced(_Event, frozen=True, kw_only=True, tag="advanced"):
    """Event: the method reports that ``done`` of ``total`` parts of the work ``what`` at the server are done."""

    what: str
    done: int
    total: int


class AttemptEnded(_Event, frozen=True, kw_only=True, tag="ended"):
    """Event: an attempt has ended, with a result or with an error.

    After success, ``exit_code`` is 0, ``headline`` is that of the privacy statement, ``warnings`` are those of the
    result, and ``lost`` names sites that missed a round. After an error, ``exit_code`` is that of the command line, and
    ``error`` the name of its class ("Fault" for a bug, "Stopped" if the operator stopped it).
    """

    exit_code: int
    error: str = ""
    message: str = ""
    folder: str = ""
    headline: str = ""
    warnings: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


Event = (
    AttemptBegun
    | AttemptResumed
    | RoundsExpected
    | SiteReported
    | RoundStarted
    | SiteReplied
    | WorkAdvanced
    | AttemptEnded
)


def events_file(folder: Path, run: str) -> Path:
    """Return the path of the event file of a run, given its name and the folder of its federation."""
    return folder / "state" / run / FILE


class EventLog:
    """Appends the events of one attempt to a file (mode 0600), one JSON object per line; a context manager.

    While it is open it holds a shared lock beside the file, by which readers tell a live run from one that died.
    """

    def __init__(self, file: Path, attempt: str) -> None:
        """Open ``file``, creating it and its folder if needed."""
        private_folder(file.parent)
        self._file, self._attempt = file, attempt
        with ExitStack() as opened:
            self._descriptor = os.open(file, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o600)
            opened.callback(os.close, self._descriptor)
            os.fchmod(self._descriptor, 0o600)
            opened.enter_context(shared(file.with_suffix(_LOCK)))
            self._opened = opened.pop_all()
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":  # after a power cut, or on a full disk
            self._write(b"\n")

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def add(self, kind: type[Event], /, **fields: Any) -> None:
        """Append an event of the class ``kind`` that happens now; ``fields`` are its other fields by name."""
        event = kind(time=time.time(), attempt=self._attempt, **fields)
        self._write(msgspec.json.encode(event) + b"\n")

    def begin(self, job: Job) -> None:
        """Append the beginning of the attempt at the run of a ``job``."""
        deployment = job.deployed
        self.add(
            AttemptBegun,
            run=deployment.run,
            method=job.method,
            trust=job.trust,
            sites=deployment.sites,
            least=deployment.least,
            deadline=deployment.deadline,
            fedsynth=fedsynth.__version__,
        )

    def _write(self, line: bytes) -> None:
        """Append a line in one write, so that lines of several writers do not mix."""
        with writing(self._file):
            if os.write(self._descriptor, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def tell(self, site: str, state: SiteState) -> None:
        """Append a transport's report of a site."""
        self.add(SiteReported, site=site, state=state)

    def progress(self, what: str, done: int, total: int) -> None:
        """Append a method's report that ``done`` of ``total`` parts of the work ``what`` are done."""
        self.add(WorkAdvanced, what=what, done=done, total=total)


@dataclass(eq=False)
class WatchedTransport:
    """Wraps a run's ``transport``, and logs each round's question and each site's outcome as events."""

    transport: Transport
    log: EventLog
    round: int = 0

    @property
    def sites(self) -> Sequence[str]:
        """Names of the sites that can be reached."""
        return self.transport.sites

    def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
        """Send the messages of one round, yield the replies in their order, and log how the round went at each site.

        A round without messages, since a resumed run has recorded all of its replies, is counted as well.
        """
        self.round += 1
        return self._watched(self.round, list(messages))

    def _watched(self, number: int, asked: Sequence[Message]) -> Iterator[Reply]:
        if not asked:
            return
        sent, left = Counter[str](), Counter(message.site for message in asked)
        for message in asked:
            sent[message.site] += message.size
        request = asked[0].request
        of = {"step": request.head.step, "turn": request.turn, "verb": request.head.verb, "kind": request.head.kind}
        self.log.add(RoundStarted, round=number, bytes=dict(sent), **of)
        began = time.monotonic()
        received, codes = Counter[str](), dict.fromkeys(left, "answered")
        for message, reply in zip(asked, self.transport.exchange(asked), strict=True):
            site = message.site
            left[site] -= 1
            received[site] += len(reply.data)
            if reply.code != "answered":
                codes[site] = reply.code
            if not left[site]:
                took = round(time.monotonic() - began, 3)
                told = {"round": number, "site": site, "code": codes[site]}
                self.log.add(SiteReplied, bytes=received[site], seconds=took, **told)
            yield reply


Connect = Callable[[Job, Tell], AbstractContextManager[Transport]]
"""Opens a job's transport for its run, given the callback for its reports on sites."""


def run_watched(
    job: Job, folder: Path, attempt: str, connect: Connect, progress: Progress = ignore_progress
) -> RunResult:
    """Run ``job`` as a deployed run of the federation in ``folder``, and log its progress there as events.

    ``progress`` gets the method's reports as well. Raises :class:`~fedsynth.errors.Unsupported` for a job without
    ``[deployment]``, and the errors of :func:`~fedsynth.runs.run.run_deployed`, after logging them as the last event.
    """
    with EventLog(events_file(folder, job.deployed.run), attempt) as log:
        log.begin(job)

        def advanced(what: str, done: int, total: int) -> None:
            log.progress(what, done, total)
            progress(what, done, total)

        try:
            with connect(job, log.tell) as transport:
                outcome = run_deployed(
                    job, folder, transport, progress=advanced, watch=lambda inner: WatchedTransport(inner, log)
                )
        except Exception as error:
            log.add(AttemptEnded, **ending(error))
            raise
        log.add(
            AttemptEnded,
            exit_code=0,
            folder=str(outcome.folder),
            headline=outcome.statement.headline,
            warnings=outcome.warnings,
            lost=outcome.lost,
        )
    return outcome


def note_complete(job: Job, folder: Path, attempt: str) -> bool:
    """Log that an attempt has ended because the job's run is complete; return whether that is so.

    The attempt came after another one that completed the run, or its own process ended before it could say so.
    """
    out = RunFolder(folder / "runs" / job.deployed.run)
    if not out.is_run:
        return False
    statement = out.synthesizer().statement
    with EventLog(events_file(folder, job.deployed.run), attempt) as log:
        log.begin(job)
        log.add(
            AttemptEnded,
            exit_code=0,
            folder=str(out.path),
            headline=statement.headline if statement else "",
            warnings=statement.warnings if statement else (),
            lost=tuple(out.made.get("lost_sites", ())),
        )
    return True


def note_stop(file: Path, attempt: str) -> None:
    """Log in the event ``file`` of a run that a person has stopped it, while it went on or was interrupted."""
    with EventLog(file, attempt) as log:
        log.add(AttemptEnded, exit_code=130, error="Stopped", message=STOPPED)


def ending(error: Exception) -> dict[str, Any]:
    """Return the fields of :class:`AttemptEnded` for the error that ended a run: exit code, class name, message.

    An error that is no :class:`FedsynthError` or ``OSError`` is a bug: "Fault", with its class and the wish to report
    it.
    """
    if isinstance(error, FedsynthError):
        return {"exit_code": exit_code(error), "error": type(error).__name__, "message": str(error)}
    if isinstance(error, OSError):
        return {"exit_code": 2, "error": "OSError", "message": explained(error)}
    fault = "a bug in fedsynth, or in a method of your own: the server's log has the traceback; please report it"
    return {"exit_code": 1, "error": "Fault", "message": f"{fault} ({type(error).__name__})"}


def estimate(job: Job, schema: Schema, file: Path, attempt: str) -> None:
    """Estimate the rounds of a job's run by a dry run (seconds to minutes), and append them to its event file."""
    from fedsynth.runs.dry_run import dealt, dry_run, shortened, steep_rows

    sites = len(job.deployed.sites)
    count = min(sites, max(_SITES, int(job.trust_options.get("min_honest", 0)) + 1))
    federation, _ = dry_run(
        shortened(job.build_method(schema)),
        job.terms(schema),
        dealt(steep_rows(schema, _ROWS, np.random.default_rng(0)), count, 0),
        seed=0,
        queries=find_method(job.method).queries,
    )
    with EventLog(file, attempt) as log:
        log.add(RoundsExpected, rounds=federation.ledger.exchanges)


# ---------------------------------------------------------------------------------------------------------------------
# Reading


class EventReader:
    """Reads the event file of a run as it grows, for a display of the run; a missing file holds no events."""

    def __init__(self, file: Path) -> None:
        """Read ``file`` from its beginning; nothing is opened yet."""
        self.file = file
        self._at = 0
        self._decode = msgspec.json.Decoder(Event).decode

    def new(self) -> list[Event]:
        """Return the events that are whole and new; raises :class:`FedsynthError` for those of another version."""
        if not self.file.exists():
            return []
        with self.file.open("rb") as file:
            file.seek(self._at)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._at += len(whole) + len(newline)
        return [event for line in whole.split(b"\n") if (event := self._read(line)) is not None]

    def _read(self, line: bytes) -> Event | None:
        other = "holds no events of this version ({error}); move it away: it serves only to show progress"
        try:
            with said(f"{self.file} {other}", msgspec.ValidationError):
                event: Event = self._decode(line)
        except msgspec.DecodeError:
            return None
        return event

    def alive(self) -> bool:
        """Return whether a process is appending to the file, so that a run is in progress."""
        return is_shared(self.file.with_suffix(_LOCK))
