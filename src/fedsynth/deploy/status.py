"""The state of a deployed run, made from its events, and its words: terminal, ``deploy status`` and page show the same.

An attempt is a start of a run, or a resumption; its id is in each of its events. An attempt is interrupted if it has no
end and its process is gone, or if the SuperLink was. ``deploy serve`` takes it up by itself, but not for ever: after as
many tries as there are :data:`PAUSES`, in which no further round was finished, a person has to look.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fedsynth.deploy.pace import Pace
from fedsynth.deploy.run_events import (
    FILE,
    FILES,
    AttemptBegun,
    AttemptEnded,
    AttemptResumed,
    Event,
    EventReader,
    RoundsExpected,
    RoundStarted,
    SiteReplied,
    SiteReported,
    SiteState,
    WorkAdvanced,
)
from fedsynth.errors import FedsynthError, Interrupted, number_of
from fedsynth.runs.job import Job

PAUSES = (0.0, 10.0, 60.0, 300.0, 900.0)
"""Seconds after an interruption before each try to take the run up by itself; as many as there are tries."""
POLL = 0.5  # s between two reads of the events
UNHEARD = 20.0  # s without a first event until the run's carrier is asked what became of it
ASKED = 10.0  # s between two such requests
SLACK = 10.0  # s beyond twice the time of the slowest other site before a site is called late
MOST_SITES = 20  # of more sites, only those that have not answered are listed
_KINDS = {
    "counts": "contingency tables",
    "interactions": "interactions of columns",
    "size": "numbers of rows",
    "flaim-scores": "scores of marginals",
}
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
    "spent": "has too little budget",
    "failed": "could not answer",
    "void": "failed for good",
    "lost": "is lost",
}

_SERVE = "`fedsynth site serve` must run there; its log says what is wrong"
TO_DO = {
    "away": _SERVE,
    "not connected": _SERVE,
    "busy": "with a message of another run; it answers this one afterwards, nothing to do",
    "late": "connected, and slower than the others; the log of its `fedsynth site serve` says what it does",
}
"""What the operator can do about a site in one of these states."""


class SiteStatus(msgspec.Struct, frozen=True):
    """A site's state in a run and what to do about it, its seconds in the current round, and those left to it."""

    name: str
    state: str
    to_do: str
    seconds: float
    gives_up_in: float | None
    lost: int


class Tries(msgspec.Struct, frozen=True):
    """How often an interrupted run was taken up by itself without finishing a round, ``of`` how many times at most.

    ``goes_on`` says whether it will be taken up, or a person has to look.
    """

    made: int
    of: int
    goes_on: bool


class WorkDone(msgspec.Struct, frozen=True):
    """How far the method's work at the server is: ``done`` of ``total`` parts of ``what``."""

    what: str
    done: int
    total: int


class RunStatus(msgspec.Struct, frozen=True):
    """The state of an attempt at a run, as ``fedsynth deploy status`` and the live page show it.

    ``state`` is a key of :data:`STATES`, and ``words`` say what is waited for or how the run ended. ``began`` is a Unix
    time; ``elapsed`` and ``left`` are in seconds, sizes in bytes. ``left`` and ``rounds``, the estimates of the time
    left and of the number of rounds, are ``None`` if unknown.
    """

    run: str
    attempt: str
    method: str
    trust: str
    state: str
    words: str
    tries: Tries
    round: int
    rounds: int | None
    question: str
    sites: tuple[SiteStatus, ...]
    bytes_sent: int
    bytes_received: int
    began: float
    elapsed: float
    left: float | None
    progress: WorkDone | None
    end: AttemptEnded | None


@dataclass
class SiteView:
    """What the events say about one site: its state in the current round, and how often it was ``lost``.

    ``heard`` is what the transport reported last. ``asked`` says whether the current round asks the site, ``code`` how
    it ended there (a key of :data:`WORDS`, empty while the round waits for it), ``seconds`` how long that took.
    """

    name: str
    heard: SiteState | None = None
    asked: bool = False
    code: str = ""
    seconds: float = 0.0
    lost: int = 0


@dataclass
class RunView:
    """The state of one attempt, built from its events.

    ``begun``, ``ended``, ``asked`` (the current round) and ``advanced`` are the last events of their classes.
    ``resumes`` is the event by which the attempt before this one was taken up, if that was not done by a person, and
    ``resumed`` the last one by which this attempt was. ``expected`` is the estimated number of rounds, 0 if unknown;
    ``sent`` and ``received`` are total bytes to and from sites, ``rounds`` the seconds that each finished round took,
    ``finished`` the number of the last one, and ``last`` the Unix time of the last event of the attempt's own.
    """

    attempt: str
    resumes: AttemptResumed | None = None
    resumed: AttemptResumed | None = None
    begun: AttemptBegun | None = None
    ended: AttemptEnded | None = None
    asked: RoundStarted | None = None
    advanced: WorkAdvanced | None = None
    expected: int = 0
    sites: dict[str, SiteView] = field(default_factory=dict)
    sent: int = 0
    received: int = 0
    rounds: list[float] = field(default_factory=list)
    finished: int = 0
    last: float = 0.0

    def receive(self, event: Event) -> None:
        """Update the view with an event. The first end counts, unless it is an interruption, or a success follows."""
        if isinstance(event, AttemptResumed):
            self.resumed = event
            return
        self.last = event.time
        if isinstance(event, AttemptBegun):
            self.begun, self.sites = event, {name: SiteView(name) for name in event.sites}
        elif isinstance(event, RoundsExpected):
            self.expected = event.rounds
        elif isinstance(event, SiteReported):
            site = self.site(event.site)
            site.heard = event.state
            if event.state == "answered" and self.asked is not None:
                site.code, site.seconds = "answered", event.time - self.asked.time
        elif isinstance(event, RoundStarted):
            self.asked = event
            self.sent += sum(event.bytes.values())
            for site in self.sites.values():
                site.asked, site.code, site.seconds = site.name in event.bytes, "", 0.0
        elif isinstance(event, SiteReplied):
            self._take(self.site(event.site), event)
        elif isinstance(event, WorkAdvanced):
            self.advanced = event
        elif self.ended is None or not event.exit_code or self.ended.error == Interrupted.__name__:
            self.ended = event

    def site(self, name: str) -> SiteView:
        """Return the view of the site of this name; a new one if no event has named it yet."""
        return self.sites.setdefault(name, SiteView(name))

    def _take(self, site: SiteView, event: SiteReplied) -> None:
        self.received += event.bytes
        site.seconds = site.seconds if site.code else event.seconds
        site.code = event.code
        if event.code == "lost":
            site.lost += 1
        else:
            site.heard = "answered"
        if self.asked is not None and not self.missing:
            if self.finished == self.asked.round:  # replies of sites that the transport had reported before
                self.rounds.pop()
            self.rounds.append(event.time - self.asked.time)
            self.finished = self.asked.round

    @property
    def missing(self) -> list[SiteView]:
        """The sites that the current round has asked and that have neither answered nor been given up as lost."""
        return [site for site in self.sites.values() if site.asked and not site.code]

    @property
    def interrupted(self) -> bool:
        """Whether the attempt, once its process is gone, is one that ``deploy serve`` takes up by itself."""
        broke_off = self.ended is None or self.ended.error == Interrupted.__name__
        return broke_off and not self.attempt.startswith(FILES)

    @property
    def furthest(self) -> int:
        """Number of the last round that this attempt, or one of those that it goes on with, has finished."""
        return max(self.finished, self.resumes.finished if self.resumes else 0)

    @property
    def tries(self) -> int:
        """Number of times that the run was taken up by itself since it finished a round that it had not before."""
        if self.resumed is not None:
            return self.resumed.tries
        return 0 if self.resumes is None or self.finished > self.resumes.finished else self.resumes.tries

    @property
    def resumable_at(self) -> float | None:
        """Unix time from which the attempt, if interrupted, is taken up; ``None`` after the last try."""
        if self.tries >= len(PAUSES):
            return None
        return (self.last if self.resumed is None else self.resumed.time) + PAUSES[self.tries]

    def state(self, alive: bool) -> str:
        """Return the run's key of :data:`STATES`; without end or living process (``alive``), it is interrupted."""
        if self.ended is not None:
            return "ended" if self.ended.exit_code else "complete"
        if not alive:
            return "interrupted"
        if self.asked is None:
            return "connecting"
        return "asking" if self.missing else "computing"

    def left(self, now: float) -> float | None:
        """Return the estimated seconds for the remaining rounds, at the mean of the finished; ``None`` if unknown."""
        if not self.expected or not self.rounds or self.asked is None:
            return None
        each = sum(self.rounds) / len(self.rounds)
        current = max(each - (now - self.asked.time), 0.0) if self.missing else 0.0
        return current + max(self.expected - self.asked.round, 0) * each

    def status(self, alive: bool, now: float | None = None, *, current: bool = True) -> RunStatus:
        """Return the state of the run at the Unix time ``now`` (default: the clock's).

        Without end or living process (``alive``) the attempt is interrupted. It is taken up by itself only if its run
        is the ``current`` one of its federation.
        """
        now = time.time() if now is None else now
        state, begun, ended = self.state(alive), self.begun, self.ended
        until = now if state in ("connecting", "asking", "computing") else self.last
        unheard = [site for site in self.sites.values() if site.heard in (None, "away")]
        awaited = ", ".join(site.name for site in (self.missing if state == "asking" else unheard))
        round_ = self.asked.round if self.asked else 0
        done = self.advanced
        return RunStatus(
            run=begun.run if begun else "",
            attempt=self.attempt,
            method=begun.method if begun else "",
            trust=begun.trust if begun else "",
            state=state,
            words=ended.message if ended and ended.exit_code else STATES[state].format(awaited or "all sites"),
            tries=Tries(self.tries, len(PAUSES), current and not alive and self.interrupted),
            round=round_,
            rounds=max(self.expected, round_) if self.expected else None,
            question=_question(self.asked),
            sites=tuple(self._site_status(site, state, now) for site in self.sites.values()),
            bytes_sent=self.sent,
            bytes_received=self.received,
            began=begun.time if begun else self.last,
            elapsed=until - begun.time if begun else 0.0,
            left=self.left(now) if state in ("asking", "computing") else None,
            progress=WorkDone(done.what, done.done, done.total) if done else None,
            end=ended,
        )

    def _site_status(self, site: SiteView, state: str, now: float) -> SiteStatus:
        assert self.begun is not None
        seconds, gives_up = site.seconds, None
        if site.code:
            word = WORDS.get(site.code, site.code)
        elif state == "asking" and site.asked and self.asked is not None:
            seconds = now - self.asked.time
            gives_up = max(self.begun.deadline - seconds, 0.0)
            others = [one.seconds for one in self.sites.values() if one.asked and one.code == "answered"]
            late = bool(others) and seconds > 2 * max(others) + max(SLACK, Pace(len(self.sites)).idle)
            word = "answering" if site.heard else "waiting"  # nobody reports where files are carried
            word = site.heard if site.heard in ("away", "busy") else "late" if late else word
        elif self.asked is not None:
            word = "not asked" if not site.asked else "no answer"
        else:
            word = "not connected" if site.heard in (None, "away") else "connected"
        to_do = TO_DO.get(word, "") if state in ("connecting", "asking") else ""
        return SiteStatus(site.name, word, to_do, seconds, gives_up, site.lost)


STATES = {
    "connecting": "waiting for {} to connect",
    "asking": "waiting for {}",
    "computing": "the server computes",
    "complete": "complete",
    "ended": "ended",
    "interrupted": "interrupted: its process is gone",
}


def attempts(events: Iterable[Event]) -> dict[str, RunView]:
    """Return the view of each attempt at a run by its id, in the order in which they began."""
    found: dict[str, RunView] = {}
    resumed: dict[str, AttemptResumed] = {}
    for event in events:
        if isinstance(event, AttemptResumed):
            resumed[event.by] = event
        found.setdefault(event.attempt, RunView(event.attempt, resumed.get(event.attempt))).receive(event)
    return found


def last_attempt(file: Path) -> RunView | None:
    """Return the view of the attempt in progress in an event file, or else of the last one; ``None`` without events."""
    views = list(attempts(EventReader(file).new()).values())
    going_on = [view for view in views if view.ended is None] if EventReader(file).alive() else []
    found = going_on or views
    return found[-1] if found else None


def all_runs(folder: Path) -> list[Path]:
    """Return the event files of all runs of the federation in ``folder``, the one written last at the end."""
    return sorted(folder.glob(f"state/*/{FILE}"), key=lambda file: file.stat().st_mtime)


def run_statuses(folder: Path) -> list[RunStatus]:
    """Return the state of each run of the federation in ``folder``, the one written last at the end.

    It is that of the run's attempt in progress, or else of its last one. Raises :class:`FedsynthError` if the folder
    holds no job, or events of another version.
    """
    current = Job.load(folder / "job.toml").deployed.run  # `deploy serve` takes up no other run
    found = []
    for file in all_runs(folder):
        view = last_attempt(file)
        if view is not None and view.begun is not None:
            found.append(view.status(EventReader(file).alive(), current=file.parent.name == current))
    return found


def follow(reader: EventReader, view: RunView, unheard: Callable[[], object]) -> Iterator[Event]:
    """Yield the events of the attempt of ``view`` until it ends; the view has each of them already.

    ``unheard()`` is called from time to time before the attempt has begun, and may raise. Raises
    :class:`Interrupted` if the run's process is gone.
    """
    patience = time.monotonic() + UNHEARD
    while view.ended is None:
        begun, alive = view.begun is not None, reader.alive()  # in this order: a run may begin between the two
        for event in reader.new():
            if event.attempt == view.attempt:
                view.receive(event)
                yield event
        if begun and not alive and view.ended is None:
            if (complete := reader.file.parents[2] / "runs" / reader.file.parent.name).is_dir():
                raise FedsynthError(
                    f"the run is complete, in {complete}; its process at the server ended before it could say so. "
                    "Messages that are left there are deleted by `fedsynth deploy stop --purge`"
                )
            raise Interrupted(
                "the run's process at the server has disappeared: the SuperLink or `fedsynth deploy serve` ended, "
                "the run was stopped, or the disk is full (the log of `fedsynth deploy serve` says which). Unless it "
                "was stopped, `fedsynth deploy serve` takes it up by itself once both are up again (`fedsynth deploy "
                "status` shows it); only unanswered rounds are charged"
            )
        if view.begun is None and view.ended is None and time.monotonic() > patience:
            unheard()
            patience = time.monotonic() + ASKED
        time.sleep(POLL)


# ---------------------------------------------------------------------------------------------------------------------
# Words


def line_of(view: RunView, event: Event) -> str:
    """Return one line of text for an event that ``view`` contains already; empty if it is not to be shown."""
    if isinstance(event, AttemptBegun):
        return f"{number_of(len(event.sites), 'site')}; a round waits for them up to {_time(event.deadline)}"
    if isinstance(event, RoundsExpected):
        return f"about {number_of(event.rounds, 'round')} in all"
    if isinstance(event, SiteReported):
        return "" if event.state == "answered" else f"{event.site} is {event.state}"
    if isinstance(event, RoundStarted):
        expected = max(view.expected, event.round) if view.expected else None
        return f"{_round(event.round, expected, _question(event))}, to {number_of(len(event.bytes), 'site')}"
    if isinstance(event, SiteReplied):
        return f"{event.site} {WORDS[event.code]} after {view.site(event.site).seconds:.1f} s"
    if isinstance(event, WorkAdvanced):
        return f"{event.what}: {event.done} of {event.total}"
    if isinstance(event, AttemptResumed):
        return f"it was interrupted, and is taken up: try {event.tries} of {len(PAUSES)}"
    if event.error == "Incomplete":
        return "the run pauses: files have to be carried"
    return "the run is complete" if not event.exit_code else "the run has ended"


def lines_of(status: RunStatus) -> list[str]:
    """Return the state of a run as lines of text: round, sites, bytes, times and its result."""
    begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(status.began))
    sites = number_of(len(status.sites), "site")
    lines = [f"run {status.run} ({begun}): {status.method} over {sites}, trust {status.trust}"]
    if status.round:
        lines.append(_round(status.round, status.rounds, status.question))
    if status.progress and not status.end:
        lines.append(f"{status.progress.what}: {status.progress.done} of {status.progress.total}")
    left = f", about {_time(status.left)} left" if status.left is not None else ""
    sent, received = _bytes(status.bytes_sent), _bytes(status.bytes_received)
    spent = f"sent {sent}, received {received}; {_time(status.elapsed)} so far{left}"
    return [*lines, *_site_lines(status.sites), spent, status.words, *_tries(status), *end_lines(status.end)]


def _tries(status: RunStatus) -> Iterator[str]:
    made, limit = status.tries.made, status.tries.of
    if status.tries.goes_on and made >= limit:
        yield (
            f"it was taken up {number_of(made, 'time')} without finishing a round, and is not any more: see the log "
            "of `fedsynth deploy serve`, then resume it with `fedsynth deploy run`"
        )
    elif status.tries.goes_on:
        of = f"try {made + 1} of {limit}; `fedsynth deploy stop` stops it"
        yield f"`fedsynth deploy serve` takes it up by itself, {of}"
    elif status.state == "interrupted":
        yield "the same command resumes it"
    elif made and not status.end:
        yield f"it was interrupted, and `fedsynth deploy serve` has taken it up: try {made} of {limit}"


def end_lines(end: AttemptEnded | None) -> list[str]:
    """Return the result of a complete run and its warnings as lines of text."""
    if end is None or end.exit_code:
        return []
    lost = [f"sites that missed a round: {', '.join(end.lost)}"] if end.lost else []
    warnings = [f"WARNING: {warning}" for warning in end.warnings]
    return [f"the table is in {end.folder}", end.headline, *warnings, *lost]


def _round(number: int, rounds: int | None, question: str) -> str:
    return f"round {number}{f' of about {rounds}' if rounds else ''}: {question}"


def _question(asked: RoundStarted | None) -> str:
    if asked is None:
        return ""
    of = _VERBS.get(asked.verb, asked.verb + " of {}").format(_KINDS.get(asked.kind, asked.kind))
    return f"{of}, message {asked.turn + 1}" if asked.turn else of


def _site_lines(sites: Sequence[SiteStatus]) -> Iterator[str]:
    """Yield a line for each site; of more than ``MOST_SITES``, only for those that have not answered."""
    shown = sites if len(sites) <= MOST_SITES else [site for site in sites if site.state != "answered"]
    width = max((len(site.name) for site in shown), default=0)
    for site in shown[:MOST_SITES]:
        seconds = f"{site.seconds:8.1f} s" if site.seconds else ""
        until = f"   given up in {_time(site.gives_up_in)}" if site.gives_up_in is not None else ""
        lost = f"   lost in {site.lost} rounds" if site.lost > 1 else ""
        yield f"  {site.name:{width}}  {site.state:13} {seconds}{until}{lost}".rstrip()
        if site.to_do:
            yield f"  {'':{width}}  {site.to_do}"
    if len(shown) > MOST_SITES:
        yield f"  and {len(shown) - MOST_SITES} more that have not answered"
    if len(shown) < len(sites):
        yield f"  {number_of(len(sites) - len(shown), 'site')} answered"


def _time(seconds: float) -> str:
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if whole < 3600:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
