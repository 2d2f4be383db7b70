"""Progress of a deployed run for its operator: events that the run appends to a file, and the readers' view of them.

Rule 1: an event holds names, steps, sizes in bytes, times and codes, but no counts, statistics or parts of answers.
Rule 2: readers use the file alone, so that a run started elsewhere or by hand is shown like any other. Rule 3: a
transport adds only what it alone knows: that a site is connected, away, or has answered.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

import fedsynth
from fedsynth.errors import FedsynthError, Unsupported, exit_code
from fedsynth.federation.policy_file import trust_named
from fedsynth.federation.transport import Message, Transport
from fedsynth.federation.wire import Reply
from fedsynth.files import private_folder
from fedsynth.methods import find_method
from fedsynth.runs.job import Job
from fedsynth.runs.run import Outcome, run_deployed
from fedsynth.schema import Schema

FILE = "events.jsonl"  # in a run's state folder
MOST_SITES = 5  # sites of a dry run that only counts rounds, at most: more sites do not change the number
_KINDS = {"counts": "contingency tables", "size": "numbers of rows", "flaim-scores": "scores of marginals"}
_VERBS = {
    "sum": "the sum over sites of {}",
    "average": "the average over sites of {}",
    "each": "each site's own {}, with noise",
    "choose": "each site's private choice by {}",
    "deposit": "{} for the vault",
}
WORDS = {
    "answered": "answered",
    "refused": "refused",
    "spent": "has no budget left",
    "failed": "failed",
    "lost": "is lost",
}

SiteState = Literal["connected", "away", "answered"]
Tell = Callable[[str, SiteState], None]
"""Callback by which a transport reports a site's name and new state."""


def unheard(site: str, state: SiteState) -> None:
    """Ignore the report."""


# ---------------------------------------------------------------------------------------------------------------------
# Events


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Common fields of events: the Unix time, and the attempt at the run."""

    time: float
    attempt: str


class Begun(_Event, frozen=True, kw_only=True, tag="begun"):
    """An attempt at a run has started and waits for its sites."""

    run: str
    method: str
    trust: str
    sites: tuple[str, ...]
    least: int
    deadline: float
    fedsynth: str


class Expected(_Event, frozen=True, kw_only=True, tag="expected"):
    """Number of message rounds that the run is expected to take, from a dry run."""

    rounds: int


class Told(_Event, frozen=True, kw_only=True, tag="site"):
    """A site is connected, is away, or has answered, as reported by the transport."""

    site: str
    state: SiteState


class Asked(_Event, frozen=True, kw_only=True, tag="asked"):
    """A round has started: the kind of question, and the bytes sent to each site."""

    round: int
    step: int
    turn: int
    verb: str
    kind: str
    bytes: dict[str, int]


class Replied(_Event, frozen=True, kw_only=True, tag="replied"):
    """A site's reply has been received, or the site has been lost."""

    round: int
    site: str
    code: str
    bytes: int
    seconds: float


class Advanced(_Event, frozen=True, kw_only=True, tag="advanced"):
    """Progress reported by the method."""

    what: str
    done: int
    total: int


class Ended(_Event, frozen=True, kw_only=True, tag="ended"):
    """The end of an attempt: exit code 0 and the folder of the result, or an error message."""

    exit_code: int
    error: str = ""
    message: str = ""
    folder: str = ""
    headline: str = ""
    warnings: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


Event = Begun | Expected | Told | Asked | Replied | Advanced | Ended


def events_file(folder: Path, run: str) -> Path:
    """Return the event file of a run of the federation in ``folder``."""
    return folder / "state" / run / FILE


class EventLog:
    """Appends an attempt's events to a file (mode 0600), one JSON object per line.

    Writers hold a shared lock, by which readers distinguish a live run from one that died.
    """

    def __init__(self, file: Path, attempt: str) -> None:
        """Open the file, creating it and its folder if needed."""
        private_folder(file.parent)
        self._attempt = attempt
        self._descriptor = os.open(file, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o600)
        os.fchmod(self._descriptor, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)
        size = os.fstat(self._descriptor).st_size
        if (
            size and os.pread(self._descriptor, 1, size - 1) != b"\n"
        ):  # a power cut or a full disk left the last line incomplete
            os.write(self._descriptor, b"\n")

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def add(self, kind: type[Event], /, **fields: Any) -> None:
        """Append an event that happens now."""
        event = kind(time=time.time(), attempt=self._attempt, **fields)
        os.write(
            self._descriptor, msgspec.json.encode(event) + b"\n"
        )  # one write, so that lines of several writers do not mix

    def tell(self, site: str, state: SiteState) -> None:
        """Append a transport's report on a site."""
        self.add(Told, site=site, state=state)

    def progress(self, what: str, done: int, total: int) -> None:
        """Append a method's progress."""
        self.add(Advanced, what=what, done=done, total=total)


class Watched:
    """A transport wrapper that logs each round's question and each site's outcome as events."""

    def __init__(self, transport: Transport, log: EventLog) -> None:
        """Watch ``transport``."""
        self._transport = transport
        self._log = log
        self._round = 0

    @property
    def sites(self) -> Sequence[str]:
        """Names of the sites that can be reached."""
        return self._transport.sites

    def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
        """Yield each reply. A round without messages, whose replies are all recorded, counts as well."""
        self._round += 1
        return self._watched(self._round, list(messages))

    def _watched(self, number: int, asked: Sequence[Message]) -> Iterator[Reply]:
        if not asked:
            return
        sent, left = Counter[str](), Counter(message.site for message in asked)
        for message in asked:
            sent[message.site] += len(message.data)
        request = asked[0].request
        head = request.head
        self._log.add(
            Asked, round=number, step=head.step, turn=request.turn, verb=head.verb, kind=head.kind, bytes=dict(sent)
        )
        began = time.monotonic()
        received, codes = Counter[str](), dict.fromkeys(left, "answered")
        for message, reply in zip(asked, self._transport.exchange(asked), strict=True):
            site = message.site
            left[site] -= 1
            received[site] += len(reply.data)
            if reply.code != "answered":
                codes[site] = reply.code
            if not left[site]:
                self._log.add(
                    Replied,
                    round=number,
                    site=site,
                    code=codes[site],
                    bytes=received[site],
                    seconds=round(time.monotonic() - began, 3),
                )
            yield reply


Connect = Callable[[Job, Tell], AbstractContextManager[Transport]]
"""Opens a job's transport for its run, given the callback for its reports on sites."""


def run_watched(path: Path, attempt: str, connect: Connect) -> Outcome:
    """Run the job of a file over the transport from ``connect``, and log its events beside the job.

    ``attempt`` identifies this attempt. Errors of the run are logged as the last event, and raised.
    """
    job = Job.load(path)
    deployment = job.deployment
    if deployment is None:
        raise Unsupported(f"{path} has no [deployment], so it names no sites; `fedsynth deploy init` writes one")
    with EventLog(events_file(path.parent, deployment.run), attempt) as log:
        log.add(
            Begun,
            run=deployment.run,
            method=job.method,
            trust=job.trust,
            sites=deployment.sites,
            least=deployment.least,
            deadline=deployment.deadline,
            fedsynth=fedsynth.__version__,
        )
        try:
            with connect(job, log.tell) as transport:
                outcome = run_deployed(
                    job, path.parent, transport, progress=log.progress, watch=lambda inner: Watched(inner, log)
                )
        except Exception as error:
            log.add(Ended, **ending(error))
            raise
        log.add(
            Ended,
            exit_code=0,
            folder=str(outcome.folder),
            headline=outcome.statement.headline,
            warnings=outcome.statement.warnings(),
            lost=outcome.lost,
        )
    return outcome


def ending(error: Exception) -> dict[str, Any]:
    """Return exit code, class name and message of the error that ended a run."""
    if isinstance(error, FedsynthError):
        return {"exit_code": exit_code(error), "error": type(error).__name__, "message": str(error)}
    if isinstance(error, OSError):
        return {"exit_code": 2, "error": "OSError", "message": str(error)}
    fault = "this is a bug in fedsynth; please report it with the traceback in the server's log"
    return {"exit_code": 1, "error": "Fault", "message": f"{fault} ({type(error).__name__})"}


def estimate(job: Job, schema: Schema, file: Path, attempt: str) -> None:
    """Append an estimate of a job's rounds to a run's events, by a dry run of seconds to minutes on one core."""
    from fedsynth.federation.dry_run import expected_exchanges

    assert job.deployment is not None
    sites = len(job.deployment.sites)
    trust = trust_named(job.trust, job.trust_options)
    rounds = expected_exchanges(
        job.build_method(schema),
        schema,
        job.budget,
        trust=trust,
        sites=min(sites, max(MOST_SITES, int(job.trust_options.get("min_honest", 0)) + 1)),
        public_sizes=job.public_sizes,
        queries=find_method(job.method).queries,
    )
    with EventLog(file, attempt) as log:
        log.add(Expected, rounds=rounds)


# ---------------------------------------------------------------------------------------------------------------------
# Reading


class EventReader:
    """Reads an event file as it grows; a missing file holds no events."""

    def __init__(self, file: Path) -> None:
        """Start at the beginning of the file."""
        self.file = file
        self._at = 0
        self._decode = msgspec.json.Decoder(Event).decode

    def new(self) -> list[Event]:
        """Return the events since the last call; an incomplete last line is left for the next call.

        Lines damaged by a power cut are skipped, since events are not the record of a run. Raises
        :class:`FedsynthError` for a file of another format.
        """
        if not self.file.exists():
            return []
        with self.file.open("rb") as file:
            file.seek(self._at)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._at += len(whole) + len(newline)
        return [event for line in whole.split(b"\n") if (event := self._read(line)) is not None]

    def _read(self, line: bytes) -> Event | None:
        try:
            event: Event = self._decode(line)
        except msgspec.ValidationError as error:
            raise FedsynthError(
                f"{self.file} holds no events of this version ({error}); move it away: it serves only to show progress"
            ) from error
        except msgspec.DecodeError:
            return None
        return event

    def alive(self) -> bool:
        """Whether a process is appending to the file."""
        if not self.file.exists():
            return False
        with self.file.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False


@dataclass
class SiteView:
    """The view of one site: its state in the current round, and the number of rounds in which it was lost.

    ``connected`` is ``None`` if the transport has reported nothing.
    """

    name: str
    connected: bool | None = None
    asked: bool = False
    code: str = ""
    seconds: float = 0.0
    lost: int = 0


@dataclass
class RunView:
    """The view of one attempt at a run, built from its events."""

    attempt: str
    begun: Begun | None = None
    ended: Ended | None = None
    asked: Asked | None = None
    advanced: Advanced | None = None
    expected: int = 0
    sites: dict[str, SiteView] = field(default_factory=dict)
    sent: int = 0
    received: int = 0
    rounds: list[float] = field(default_factory=list)
    last: float = 0.0

    def hear(self, event: Event) -> None:
        """Update the view with an event. Of several ends the first counts, unless a later one is a success."""
        self.last = event.time
        if isinstance(event, Begun):
            self.begun = event
            self.sites = {name: SiteView(name) for name in event.sites}
        elif isinstance(event, Expected):
            self.expected = event.rounds
        elif isinstance(event, Told):
            self._hear_of(self.site(event.site), event)
        elif isinstance(event, Asked):
            self.asked = event
            self.sent += sum(event.bytes.values())
            for site in self.sites.values():
                site.asked, site.code, site.seconds = site.name in event.bytes, "", 0.0
        elif isinstance(event, Replied):
            self._take(self.site(event.site), event)
        elif isinstance(event, Advanced):
            self.advanced = event
        elif self.ended is None or not event.exit_code:
            self.ended = event

    def site(self, name: str) -> SiteView:
        """Return the view of a site."""
        return self.sites.setdefault(name, SiteView(name))

    def _hear_of(self, site: SiteView, event: Told) -> None:
        site.connected = event.state != "away"
        if event.state == "answered" and self.asked is not None:
            site.code, site.seconds = "answered", event.time - self.asked.time

    def _take(self, site: SiteView, event: Replied) -> None:
        self.received += event.bytes
        site.seconds = site.seconds if site.code else event.seconds
        site.code = event.code
        if event.code == "lost":
            site.lost += 1
        else:
            site.connected = True
        if self.asked is not None and not self.missing:
            self.rounds.append(event.time - self.asked.time)

    @property
    def missing(self) -> list[SiteView]:
        """The sites that the current round waits for."""
        return [site for site in self.sites.values() if site.asked and not site.code]

    @property
    def question(self) -> str:
        """The current question, in words."""
        if self.asked is None:
            return ""
        of = _VERBS.get(self.asked.verb, self.asked.verb + " of {}").format(
            _KINDS.get(self.asked.kind, self.asked.kind)
        )
        return f"{of}, message {self.asked.turn + 1}" if self.asked.turn else of

    def state(self, alive: bool) -> str:
        """Return the state of the run: one of the keys of :data:`STATES`."""
        if self.ended is not None:
            return "ended" if self.ended.exit_code else "complete"
        if not alive:
            return "interrupted"
        if self.asked is None:
            return "connecting"
        return "asking" if self.missing else "computing"

    def left(self, now: float) -> float | None:
        """Return the estimated seconds for the remaining rounds; ``None`` if they cannot be estimated."""
        if not self.expected or not self.rounds or self.asked is None:
            return None
        each = sum(self.rounds) / len(self.rounds)
        current = max(each - (now - self.asked.time), 0.0) if self.missing else 0.0
        return current + max(self.expected - self.asked.round, 0) * each

    def facts(self, alive: bool, now: float | None = None) -> dict[str, Any]:
        """Return the content of the view, as JSON values."""
        now = time.time() if now is None else now
        state = self.state(alive)
        until = now if state in ("connecting", "asking", "computing") else self.last
        begun, asked, ended = self.begun, self.asked, self.ended
        return {
            "run": begun.run if begun else "",
            "attempt": self.attempt,
            "method": begun.method if begun else "",
            "trust": begun.trust if begun else "",
            "state": state,
            "words": self._words(state),
            "round": asked.round if asked else 0,
            "rounds": max(self.expected, asked.round if asked else 0) if self.expected else None,
            "question": self.question,
            "sites": [self._site_facts(site, state, now) for site in self.sites.values()],
            "bytes_sent": self.sent,
            "bytes_received": self.received,
            "began": begun.time if begun else self.last,
            "elapsed": until - begun.time if begun else 0.0,
            "left": self.left(now) if state in ("asking", "computing") else None,
            "progress": {"what": self.advanced.what, "done": self.advanced.done, "total": self.advanced.total}
            if self.advanced
            else None,
            "end": msgspec.to_builtins(ended) if ended else None,
        }

    def _words(self, state: str) -> str:
        if self.ended is not None and self.ended.exit_code:
            return self.ended.message
        names = ", ".join(site.name for site in (self.missing if state == "asking" else self._unconnected))
        return STATES[state].format(names or "all sites")

    @property
    def _unconnected(self) -> list[SiteView]:
        return [site for site in self.sites.values() if not site.connected]

    def _site_facts(self, site: SiteView, state: str, now: float) -> dict[str, Any]:
        """Return a site's state, the seconds that it took, and those until the run stops waiting for it."""
        assert self.begun is not None
        seconds, gives_up = site.seconds, None
        if site.code:
            word = WORDS.get(site.code, site.code)
        elif state == "asking" and site.asked and self.asked is not None:
            seconds = now - self.asked.time
            gives_up = max(self.begun.deadline - seconds, 0.0)
            others = [one.seconds for one in self.sites.values() if one.asked and one.code == "answered"]
            late = bool(others) and seconds > 2 * max(others) + 10
            word = "away" if site.connected is False else "late" if late else "waiting"
        elif self.asked is not None:
            word = "not asked" if not site.asked else "no answer"
        else:
            word = "connected" if site.connected else "not connected"
        return {"name": site.name, "state": word, "seconds": seconds, "gives_up_in": gives_up, "lost": site.lost}


STATES = {
    "connecting": "waiting for {} to connect",
    "asking": "waiting for {}",
    "computing": "the server computes",
    "complete": "complete",
    "ended": "ended",
    "interrupted": "interrupted: its process is gone; run it again to resume",
}


def attempts(events: Iterable[Event]) -> dict[str, RunView]:
    """Return the view of each attempt, in the order of their starts."""
    found: dict[str, RunView] = {}
    for event in events:
        found.setdefault(event.attempt, RunView(event.attempt)).hear(event)
    return found


def last_attempt(file: Path) -> RunView | None:
    """Return the running attempt of a file, or else the last one."""
    views = list(attempts(EventReader(file).new()).values())
    going_on = [view for view in views if view.ended is None] if EventReader(file).alive() else []
    found = going_on or views
    return found[-1] if found else None


def all_runs(folder: Path) -> list[Path]:
    """Return the event files of a federation's runs, ordered by their last write."""
    return sorted(folder.glob(f"state/*/{FILE}"), key=lambda file: file.stat().st_mtime)
