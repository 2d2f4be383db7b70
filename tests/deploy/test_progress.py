"""What an operator sees of a run: the events of real sites in this process, and the views made of them."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.command import invoke
from tests.contract.world import SCHEMA, random_table
from tests.deploy.flower_world import RUN, lay_out, of

from fedsynth.deploy import run as deploy_run
from fedsynth.deploy.commands.operate import _follow
from fedsynth.deploy.flower.control import FlowerControl
from fedsynth.deploy.host.config import load_site_config
from fedsynth.deploy.host.state import open_site
from fedsynth.deploy.run_events import (
    AttemptBegun,
    AttemptEnded,
    AttemptResumed,
    Event,
    EventLog,
    EventReader,
    RoundsExpected,
    RoundStarted,
    SiteReplied,
    SiteReported,
    Tell,
    ending,
    estimate,
    events_file,
    note_complete,
    run_watched,
)
from fedsynth.deploy.status import PAUSES, RunView, attempts, last_attempt, line_of, lines_of
from fedsynth.deploy.watch import WatchPage
from fedsynth.errors import BudgetExceeded, FedsynthError, Incomplete, Interrupted, Refused, SiteLost
from fedsynth.federation.transport import InProcess, Message, Transport
from fedsynth.federation.wire import Reply
from fedsynth.privacy.cost import Budget
from fedsynth.progress import ignore_progress
from fedsynth.runs.job import Job

NAMES = ("north", "south", "east")
TABLES = {name: random_table(rows, at) for at, (name, rows) in enumerate(zip(NAMES, (400, 150, 7), strict=True))}
BUDGET = Budget(2.0, 1e-6)


def laid_out(root: Path, trust: str = "local", **options: Any) -> Job:
    trust_options = {"min_honest": 2} if trust == "secure" else {}
    return lay_out(root, TABLES, SCHEMA, trust, "oneshot", budget=BUDGET, trust_options=trust_options, **options)


class Losing(InProcess):
    """Sites of which some say nothing."""

    silent: frozenset[str] = frozenset()

    def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
        """Yield each site's reply, none from those that are silent."""
        for message in messages:
            silent = message.site in self.silent
            yield message.lost("gone") if silent else message.reply(self._sites[message.site].answer(message.data).data)


def sites_of(root: Path, silent: Iterable[str] = ()) -> Losing:
    found = Losing([open_site(load_site_config(root / "sites" / name)) for name in NAMES])
    found.silent = frozenset(silent)
    return found


def run(root: Path, attempt: str = "1", transport: Transport | None = None) -> Path:
    def connect(job: Job, tell: Tell) -> AbstractContextManager[Transport]:
        for name in of(job).sites:
            tell(name, "connected")
        return nullcontext(sites_of(root) if transport is None else transport)

    return run_watched(Job.load(root / "job.toml"), root, attempt, connect).folder


def lines(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in events_file(root, RUN).read_text().splitlines()]


@pytest.mark.parametrize(("trust", "turns"), [("local", 1), ("secure", 5)])
def test_a_run_leaves_events_of_names_steps_bytes_times_and_codes_alone(tmp_path, trust, turns):
    root = tmp_path / "federation"
    laid_out(root, trust)
    out = run(root)
    told = lines(root)
    kinds = [one["event"] for one in told]
    assert kinds == ["begun", *["site"] * 3, *["asked", *["replied"] * 3] * turns, "ended"]
    known = {
        name
        for kind in (AttemptBegun, SiteReported, RoundStarted, SiteReplied, AttemptEnded)
        for name in kind.__struct_fields__
    }
    assert {key for one in told for key in one} <= known | {"event"}
    numbers = {key for one in told for key, value in one.items() if isinstance(value, int | float)}
    assert numbers == {"time", "least", "deadline", "round", "step", "turn", "bytes", "seconds", "exit_code"}
    assert told[-1]["folder"] == str(out)
    assert told[-1]["headline"].startswith("(2")
    asked = [one for one in told if one["event"] == "asked"]
    assert [(one["round"], one["turn"]) for one in asked] == [(turn + 1, turn) for turn in range(turns)]
    assert all(set(one["bytes"]) == set(NAMES) and min(one["bytes"].values()) > 100 for one in asked)
    file = events_file(root, RUN)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    view = last_attempt(file)
    assert view is not None
    status = view.status(alive=False)
    assert (status.state, status.round, status.left) == ("complete", turns, None)
    assert status.bytes_sent == sum(sum(one["bytes"].values()) for one in asked)
    assert status.bytes_received == sum(one["bytes"] for one in told if one["event"] == "replied")
    assert [site.state for site in status.sites] == ["answered"] * 3


def over_budget(root: Path) -> None:
    job = laid_out(root, site_budget=Budget(0.5, 1e-6))
    assert job.epsilon == 2.0


def refused(root: Path) -> None:
    laid_out(root)
    other = replace(Job.load(root / "job.toml"), trust="trusted")
    (root / "job.toml").write_text(replace(other, schema="schema.toml").to_toml())
    (root / "state" / RUN / "run.json").unlink()


def another_run(root: Path) -> None:
    laid_out(root)
    (root / "job.toml").write_text(replace(Job.load(root / "job.toml"), schema="schema.toml", epsilon=3.0).to_toml())


def too_few(root: Path) -> None:
    laid_out(root, min_sites=3)


def no_key(root: Path) -> None:
    laid_out(root)
    (root / "coordinator.key").unlink()


ENDS: dict[str, tuple[Callable[[Path], None], type[FedsynthError], int, str]] = {
    "over budget": (over_budget, BudgetExceeded, 4, "has too little budget"),
    "refused": (refused, Refused, 5, "refused step 0"),
    "too few sites": (too_few, SiteLost, 7, "2 sites answered and 3 are required"),
    "another run's transcript": (another_run, FedsynthError, 8, "set another run"),
    "no key": (no_key, FedsynthError, 8, "restore it from the backup"),
}


@pytest.mark.parametrize("end", ENDS)
def test_an_expected_end_is_one_sentence_with_the_exit_code_of_the_command_line(tmp_path, end):
    prepare, kind, code, says = ENDS[end]
    root = tmp_path / "federation"
    prepare(root)
    with pytest.raises(kind, match=says):
        run(root, transport=sites_of(root, ["east"] if end == "too few sites" else []))
    last = lines(root)[-1]
    assert (last["event"], last["exit_code"], last["error"]) == ("ended", code, kind.__name__)
    assert says in last["message"]
    assert "\n" not in last["message"]
    shown = invoke(["deploy", "status", str(root)])
    assert shown.exit_code == 0
    assert last["message"] in shown.output


def test_a_fault_is_said_to_be_one_and_its_text_stays_in_the_servers_log(tmp_path):
    root = tmp_path / "federation"
    laid_out(root)

    class Broken(Losing):
        def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
            raise ZeroDivisionError("row 17 is secret")

    with pytest.raises(ZeroDivisionError):
        run(root, transport=Broken([]))
    last = lines(root)[-1]
    assert (last["exit_code"], last["error"]) == (1, "Fault")
    assert "secret" not in json.dumps(last)


def test_a_run_that_resumes_is_another_attempt_and_counts_recorded_rounds(tmp_path):
    root = tmp_path / "federation"
    laid_out(root, "secure")

    class Dying(Losing):
        left = 2

        def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
            self.left -= 1
            if self.left < 0:
                raise SiteLost("the network is down")
            return super().exchange(messages)

    sites = Dying([open_site(load_site_config(root / "sites" / name)) for name in NAMES])
    with pytest.raises(SiteLost):
        run(root, "1", sites)
    run(root, "2", sites_of(root))
    views = attempts(EventReader(events_file(root, RUN)).new())
    assert list(views) == ["1", "2"]
    assert [view.status(alive=False).state for view in views.values()] == ["ended", "complete"]
    first = next(one for one in lines(root) if one["attempt"] == "2" and one["event"] == "asked")
    assert (first["round"], first["turn"]) == (3, 2)


def test_a_process_that_dies_leaves_a_run_that_is_interrupted(tmp_path):
    file = tmp_path / "state" / "r" / "events.jsonl"
    begun = "run='r', method='m', trust='t', sites=('a',), least=1, deadline=9.0, fedsynth='1'"
    code = (
        "import sys, pathlib\nfrom fedsynth.deploy.run_events import AttemptBegun, EventLog\n"
        f"log = EventLog(pathlib.Path(sys.argv[1]), '1')\nlog.add(AttemptBegun, {begun})\n"
        "print('there', flush=True)\ninput()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    reader = EventReader(file)
    view = last_attempt(file)
    assert view is not None
    assert reader.alive()
    assert view.state(reader.alive()) == "connecting"
    process.kill()
    process.communicate(timeout=120)
    assert not reader.alive()
    assert view.state(reader.alive()) == "interrupted"
    *_, words, next_step = lines_of(view.status(alive=False))
    assert "interrupted" in words
    assert f"takes it up by itself, try 1 of {len(PAUSES)}" in next_step


def test_a_run_is_taken_up_a_limited_number_of_times_unless_it_finishes_further_rounds():
    """Each attempt dies; those of which ``ends`` says so have finished a further round before."""

    def taken_up(ends: Iterable[bool]) -> RunView:
        events: list[Event] = [begun(attempt="0")]
        finished = 0
        for number, further in enumerate(ends):
            if further:
                finished += 1
                round_: dict[str, Any] = {"round": finished, "step": 0, "turn": 0, "verb": "sum", "kind": "counts"}
                events.append(RoundStarted(time=2.0, attempt=str(number), bytes={"a": 1}, **round_))
                told: dict[str, Any] = {"round": finished, "site": "a", "code": "answered", "bytes": 1, "seconds": 1.0}
                events.append(SiteReplied(time=3.0, attempt=str(number), **told))
            view = list(attempts(events).values())[-1]
            if view.resumable_at is None:
                return view
            assert view.resumable_at == view.last + PAUSES[view.tries]
            by: dict[str, Any] = {"by": str(number + 1), "tries": view.tries + 1, "finished": finished}
            events += [AttemptResumed(time=4.0, attempt=str(number), **by), begun(attempt=str(number + 1))]
        return list(attempts(events).values())[-1]

    limit = len(PAUSES)
    assert [taken_up([False] * number).tries for number in range(limit + 3)] == [*range(limit), limit, limit, limit]
    assert taken_up([False] * limit).resumable_at is None
    assert taken_up([True] * 20).tries == 1
    assert taken_up([True, False, False, True, False]).tries == 2
    stuck = taken_up([True, *[False] * limit])
    assert stuck.interrupted
    said = lines_of(stuck.status(alive=False))[-1]
    assert said.startswith(f"it was taken up {limit} times without finishing a round, and is not any more")


@pytest.mark.parametrize(
    ("error", "goes_on"),
    [("Interrupted", True), ("Stopped", False), ("SiteLost", False), ("RunLost", False), ("Refused", False)],
)
def test_only_a_run_that_was_interrupted_is_taken_up(error, goes_on):
    view = RunView("1")
    for event in (begun(), AttemptEnded(time=2.0, attempt="1", exit_code=8, error=error, message="why")):
        view.receive(event)
    assert view.status(alive=False).tries.goes_on == goes_on
    assert ("takes it up by itself" in "\n".join(lines_of(view.status(alive=False)))) == goes_on
    over_files = RunView("files-1")
    over_files.receive(begun(attempt="files-1"))
    assert not over_files.interrupted
    assert lines_of(over_files.status(alive=False))[-1] == "the same command resumes it"


def test_an_attempt_after_another_one_completed_the_run_ends_as_it_did(tmp_path):
    root = tmp_path / "federation"
    job = laid_out(root)
    assert not note_complete(job, root, "0")
    run(root)
    assert note_complete(job, root, "2")
    first, second = attempts(EventReader(events_file(root, RUN)).new()).values()
    assert first.ended is not None
    assert second.ended is not None
    assert replace(second.ended, time=0.0, attempt="") == replace(first.ended, time=0.0, attempt="")


def test_an_interrupted_run_can_be_stopped_before_it_is_taken_up(tmp_path):
    root = tmp_path / "federation"
    laid_out(root)
    with EventLog(events_file(root, RUN), "1") as log:
        log.begin(Job.load(root / "job.toml"))
    assert "takes it up by itself" in invoke(["deploy", "status", str(root)]).output
    text = (root / "job.toml").read_text()
    (root / "job.toml").write_text(text.replace(RUN, "another"))
    assert "takes it up by itself" not in invoke(["deploy", "status", str(root)]).output
    assert "no run" in invoke(["deploy", "stop", str(root)]).output
    (root / "job.toml").write_text(text)
    assert invoke(["deploy", "stop", str(root)]).exit_code == 0
    view = last_attempt(events_file(root, RUN))
    assert view is not None
    assert not view.interrupted
    assert "no run" in invoke(["deploy", "stop", str(root)]).output


def test_a_view_of_a_run_whose_process_is_gone_ends_with_what_to_do(tmp_path, capsys):
    file = tmp_path / "events.jsonl"
    fields = {
        name: getattr(begun(), name) for name in AttemptBegun.__struct_fields__ if name not in ("time", "attempt")
    }
    with EventLog(file, "1") as log:
        log.add(AttemptBegun, **fields)
    with pytest.raises(Interrupted, match="takes it up by itself"):
        _follow(EventReader(file), "1", False, lambda: None)
    assert "2 sites; a round waits for them" in capsys.readouterr().out


def test_a_run_that_begins_while_it_is_looked_for_has_not_disappeared(tmp_path, monkeypatch):
    """Its process took the lock, and wrote its first event, after the reader had found nobody alive."""
    file, logs, alive = tmp_path / "events.jsonl", list[EventLog](), EventReader.alive

    def late(reader: EventReader) -> bool:
        before = alive(reader)
        if logs:
            logs[0].add(AttemptEnded, exit_code=0)
        else:
            logs.append(EventLog(file, "1"))
            logs[0].begin(laid_out(tmp_path / "federation"))
        return before

    monkeypatch.setattr(EventReader, "alive", late)
    view = _follow(EventReader(file), "1", True, lambda: None)
    logs[0].__exit__()
    assert view.ended is not None


def test_a_run_that_goes_on_is_not_started_a_second_time(tmp_path):
    root = tmp_path / "federation"
    laid_out(root)
    fields = {
        name: getattr(begun(), name) for name in AttemptBegun.__struct_fields__ if name not in ("time", "attempt")
    }
    with EventLog(events_file(root, RUN), "1") as log:
        log.add(AttemptBegun, **fields)
        again = invoke(["deploy", "run", str(root)])
    assert "is going on" in again.output


def test_a_run_over_files_is_stopped_where_it_runs(tmp_path):
    root = tmp_path / "federation"
    laid_out(root)
    fields = {
        name: getattr(begun(), name) for name in AttemptBegun.__struct_fields__ if name not in ("time", "attempt")
    }
    with EventLog(events_file(root, RUN), "files-1") as log:
        log.add(AttemptBegun, **fields)
        stopped = invoke(["deploy", "stop", str(root)])
    assert "goes on over files" in stopped.output
    view = last_attempt(events_file(root, RUN))
    assert view is not None
    assert view.ended is None


def test_a_run_that_is_stopped_never_looks_as_if_it_had_disappeared(tmp_path, monkeypatch):
    """Its process may end at once, before the end that the operator wanted stands in the events."""
    root = tmp_path / "federation"
    laid_out(root)
    file = events_file(root, RUN)
    fields = {
        name: getattr(begun(), name) for name in AttemptBegun.__struct_fields__ if name not in ("time", "attempt")
    }
    log = EventLog(file, "1")
    log.add(AttemptBegun, **fields)
    seen = []

    def stop(*_: object) -> None:
        log.__exit__()
        seen.append(EventReader(file).alive())

    monkeypatch.setattr("fedsynth.deploy.flower.control.FlowerControl.__init__", lambda *_: None)
    monkeypatch.setattr("fedsynth.deploy.flower.control.FlowerControl.stop", stop)
    assert invoke(["deploy", "stop", str(root)]).exit_code == 0
    assert seen == [True]
    view = last_attempt(file)
    assert view is not None
    assert view.ended is not None
    assert view.ended.exit_code == 130


def test_a_run_over_files_that_cannot_write_its_events_ends_with_a_sentence(tmp_path, monkeypatch):
    root = tmp_path / "federation"
    laid_out(root)
    monkeypatch.setattr("fedsynth.deploy.status.UNHEARD", 1.0)
    shutil.rmtree(events_file(root, RUN).parent)
    events_file(root, RUN).parent.write_text("a file where the state should be")
    ended = invoke(["deploy", "run", str(root), "--exchange", str(tmp_path)])
    assert "could not begin" in ended.output


def test_what_would_end_a_run_at_once_is_said_before_flower_is_asked(tmp_path):
    root = tmp_path / "federation"
    laid_out(root)
    run(root)
    again = invoke(["deploy", "run", str(root)])
    assert "is complete" in again.output
    nowhere = invoke(["deploy", "run", str(tmp_path / "nowhere")])
    assert "holds no job.toml" in nowhere.output
    for options in ([], ["--watch"]):
        assert "holds no job.toml" in invoke(["deploy", "status", tmp_path, *options]).output


def test_a_line_that_is_being_written_is_read_when_it_is_whole_and_other_content_is_an_error(tmp_path):
    file = tmp_path / "events.jsonl"
    reader = EventReader(file)
    assert reader.new() == []
    line = msgspec.json.encode(RoundsExpected(time=1.0, attempt="1", rounds=5)) + b"\n"
    file.write_bytes(line + line[:20])
    assert len(reader.new()) == 1
    with file.open("ab") as more:
        more.write(line[20:])
    assert [event.time for event in reader.new()] == [1.0]
    file.write_text('{"event": "another"}\n')
    with pytest.raises(FedsynthError, match="no events of this version"):
        EventReader(file).new()


def test_a_line_that_a_power_cut_tore_costs_that_event_alone(tmp_path):
    file = tmp_path / "run" / "events.jsonl"
    with EventLog(file, "1") as log:
        log.add(RoundsExpected, rounds=5)
    with file.open("ab") as torn:
        torn.write(b'{"event":"expec')
    with EventLog(file, "2") as log:
        log.add(RoundsExpected, rounds=6)
    with file.open("ab") as torn:
        torn.write(bytes(20) + b"\n")
    assert [event.attempt for event in EventReader(file).new()] == ["1", "2"]


def view_at(*events: Any) -> RunView:
    (view,) = attempts(events).values()
    return view


def begun(**fields: Any) -> AttemptBegun:
    given: dict[str, Any] = {"time": 0.0, "attempt": "1", "run": "r", "method": "m", "trust": "t", "sites": ("a", "b")}
    return AttemptBegun(**{**given, "least": 1, "deadline": 100.0, "fedsynth": "1", **fields})


def asked(time: float, number: int) -> RoundStarted:
    return RoundStarted(
        time=time, attempt="1", round=number, step=0, turn=0, verb="sum", kind="counts", bytes={"a": 10, "b": 10}
    )


def replied(time: float, number: int, site: str, code: str = "answered") -> SiteReplied:
    return SiteReplied(time=time, attempt="1", round=number, site=site, code=code, bytes=5, seconds=time)


def told(time: float, site: str, state: Any) -> SiteReported:
    return SiteReported(time=time, attempt="1", site=site, state=state)


def test_a_site_is_waited_for_then_late_then_away_and_the_view_counts_down_to_the_deadline():
    connected = [told(0.0, "a", "connected"), told(0.0, "b", "connected")]
    view = view_at(begun(), *connected, asked(10.0, 1), told(12.0, "a", "answered"))

    def b(now: float) -> tuple[str, float, float | None]:
        of_b = view.status(alive=True, now=now).sites[1]
        return of_b.state, of_b.seconds, of_b.gives_up_in

    assert view.status(alive=True, now=13.0).sites[0].state == "answered"
    assert b(13.0) == ("answering", 3.0, 97.0)
    assert b(40.0) == ("late", 30.0, 70.0)
    view.receive(told(70.0, "b", "away"))
    assert b(80.0) == ("away", 70.0, 30.0)
    assert view.status(alive=True, now=80.0).words == "waiting for b"
    view.receive(told(85.0, "b", "connected"))
    assert b(90.0) == ("late", 80.0, 20.0)
    view.receive(replied(110.0, 1, "b", "lost"))
    status = view.status(alive=True, now=111.0)
    assert (status.state, status.sites[1].state, status.sites[1].lost) == ("computing", "is lost", 1)


@pytest.mark.parametrize(("sites", "late"), [(3, 14.0), (30, 14.0), (100, 4.0 + 100 / 3.5), (1000, 64.0)])
def test_a_site_of_many_is_late_only_after_each_has_looked_for_messages(sites, late):
    """One of a hundred looks each 29 s, and was called late after 14 while it had nothing to answer yet."""
    names = tuple(f"site-{at:03d}" for at in range(sites))
    connected = [told(0.0, name, "connected") for name in names]
    asked_all = replace(asked(10.0, 1), bytes=dict.fromkeys(names, 10))
    view = view_at(begun(sites=names), *connected, asked_all, told(12.0, names[0], "answered"))
    states = [view.status(alive=True, now=10.0 + late + more).sites[-1].state for more in (-0.1, 0.1)]
    assert states == ["answering", "late"]


def test_the_time_left_follows_from_the_rounds_so_far():
    view = view_at(begun(), asked(10.0, 1), replied(15.0, 1, "a"), replied(20.0, 1, "b"))
    assert view.left(20.0) is None  # nobody knows how many rounds there are
    view.receive(RoundsExpected(time=0.0, attempt="1", rounds=4))
    assert view.left(20.0) == 30.0
    view.receive(asked(20.0, 2))
    assert view.left(24.0) == 6.0 + 20.0
    assert view.status(alive=True, now=24.0).rounds == 4
    view.receive(asked(30.0, 7))
    assert view.status(alive=True, now=31.0).rounds == 7  # an estimate that was too low


def test_a_round_is_timed_once_also_if_the_transport_reports_all_sites_before_their_replies():
    view = view_at(begun(), asked(10.0, 1), told(14.0, "a", "answered"), told(14.0, "b", "answered"))
    view.receive(replied(15.0, 1, "a"))
    view.receive(replied(16.0, 1, "b"))
    assert view.rounds == [6.0]
    view.receive(asked(20.0, 2))
    view.receive(replied(21.0, 2, "a"))
    view.receive(replied(22.0, 2, "b"))
    assert view.rounds == [6.0, 2.0]


def test_the_first_end_counts_unless_a_later_one_is_success():
    def end(code: int) -> AttemptEnded:
        return AttemptEnded(time=1.0, attempt="1", exit_code=code, message=f"end {code}")

    assert view_at(begun(), end(130), end(1)).status(alive=False).words == "end 130"
    assert view_at(begun(), end(130), end(0)).status(alive=False).state == "complete"


def test_every_event_has_its_line_and_the_last_attempt_that_goes_on_is_shown(tmp_path):
    view = view_at(begun(), asked(1.0, 1))
    codes: list[dict[str, Any]] = [{"exit_code": 0}, ending(Refused("")), ending(Incomplete(""))]
    ends = [AttemptEnded(time=3.0, attempt="1", **code) for code in codes]
    events: list[Event] = [begun(), asked(1.0, 1), replied(2.0, 1, "a", "spent"), *ends]
    said = [line_of(view, event) for event in events]
    assert said == [
        "2 sites; a round waits for them up to 1 min 40 s",
        "round 1: the sum over sites of contingency tables, to 2 sites",
        "a has too little budget after 0.0 s",
        "the run is complete",
        "the run has ended",
        "the run pauses: files have to be carried",
    ]
    file = tmp_path / "events.jsonl"
    fields = {
        name: getattr(begun(), name) for name in AttemptBegun.__struct_fields__ if name not in ("time", "attempt")
    }
    with EventLog(file, "1") as going_on:
        going_on.add(AttemptBegun, **fields)
        with EventLog(file, "2") as second:
            second.add(AttemptBegun, **fields)
            second.add(AttemptEnded, exit_code=8, message="it is going on in another process")
        found = last_attempt(file)
        assert found is not None
        assert found.attempt == "1"
    after = last_attempt(file)
    assert after is not None
    assert after.attempt == "2"


def test_of_many_sites_those_that_have_not_answered_are_listed():
    names = tuple(f"s{at}" for at in range(60))
    to_all = msgspec.structs.replace(asked(1.0, 1), bytes=dict.fromkeys(names, 1))
    view = view_at(begun(sites=names), to_all)
    for name in names[:30]:
        view.receive(replied(2.0, 1, name))
    shown = lines_of(view.status(alive=True, now=3.0))
    assert sum("waiting" in line for line in shown[:-1]) == 20
    assert shown[-4:-2] == ["  and 10 more that have not answered", "  30 sites answered"]


@pytest.mark.parametrize(("trust", "rounds"), [("local", 1), ("secure", 5)])
def test_the_number_of_rounds_is_estimated_by_a_dry_run(tmp_path, trust, rounds):
    root = tmp_path / "federation"
    job = laid_out(root, trust)
    estimate(job, SCHEMA, events_file(root, RUN), "1")
    (event,) = EventReader(events_file(root, RUN)).new()
    assert isinstance(event, RoundsExpected)
    assert event.rounds == rounds


def test_status_shows_all_runs_as_text_and_json_and_says_where_there_is_none(tmp_path):
    root = tmp_path / "federation"
    laid_out(root)
    nothing = invoke(["deploy", "status", str(root)])
    assert "no run of" in nothing.output
    run(root)
    other = replace(Job.load(root / "job.toml"), schema="schema.toml")
    (root / "job.toml").write_text(replace(other, deployment=of(other, run="other")).to_toml())
    with pytest.raises(BudgetExceeded):
        run(root)
    shown = json.loads(invoke(["deploy", "status", str(root), "--all", "--json"]).output)
    assert [(one["run"], one["state"]) for one in shown["runs"]] == [(RUN, "complete"), ("other", "ended")]
    text = invoke(["deploy", "status", str(root)]).output
    assert text.startswith("run other (")
    assert "trust local" in text


def test_the_page_is_shown_to_who_knows_its_path_and_to_nobody_else():
    facts = {"run": "r<script>", "state": "asking"}
    with WatchPage(lambda: facts) as page:
        thread = threading.Thread(target=page.serve_forever, args=(0.05,), daemon=True)
        thread.start()

        def get(path: str, host: str | None = None) -> tuple[int, str, str]:
            link = http.client.HTTPConnection("127.0.0.1", page.server_port, timeout=60)
            link.request("GET", path, headers={"Host": host} if host else {})
            answer = link.getresponse()
            policy = answer.headers.get("Content-Security-Policy", "")
            return answer.status, answer.read().decode(), policy

        root = f"/{page.token}/"
        status, html, policy = get(root)
        assert status == 200
        assert f'nonce="{page.nonce}"' in html
        assert "@NONCE@" not in html
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert json.loads(get(f"{root}state.json")[1]) == facts
        assert page.url == f"http://127.0.0.1:{page.server_port}{root}"
        for path in ("/", "/state.json", f"{root[:-2]}/", f"{root}job.toml", f"{root}../coordinator.key"):
            assert get(path)[0] == 404, path
        assert get(root, "evil.example:80")[0] == 421
        page.shutdown()
        thread.join(60)


def test_a_program_follows_the_run_that_flower_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hears the method's progress and the end of its own attempt, and Flower's word where the run never began."""
    monkeypatch.setattr("fedsynth.deploy.status.UNHEARD", 0.0)
    monkeypatch.setattr("fedsynth.deploy.status.POLL", 0.01)
    status = ("running", "")
    monkeypatch.setattr(FlowerControl, "status", lambda *_: status)
    control = FlowerControl(tmp_path)
    file = events_file(tmp_path, "r")
    with EventLog(file, "earlier") as log:
        log.add(AttemptEnded, exit_code=7, message="too few sites")
    with EventLog(file, "mine") as log:
        log.progress("rounds", 1, 2)
        log.add(AttemptEnded, exit_code=0, folder="there")
    told: list[tuple[str, int, int]] = []
    reader = EventReader(file)
    ended = deploy_run._follow(reader, "mine", lambda: None, lambda what, done, total: told.append((what, done, total)))
    assert ended.folder == "there"
    assert told == [("rounds", 1, 2)]
    assert control.require_begun("other") == ""
    status = ("pending", "")
    assert "no process has taken on the run" in control.require_begun("other")
    status = ("finished:failed", "no app")
    with pytest.raises(FedsynthError, match=r"Flower ended the run before it began \(finished:failed: no app\)"):
        deploy_run._follow(reader, "other", lambda: control.require_begun("other"), ignore_progress)


@pytest.mark.parametrize("status", ["finished:failed", "running"])
def test_a_run_that_flower_has_ended_meanwhile_counts_as_stopped(tmp_path, monkeypatch, status):
    """A process that stands still is given up by Flower before its own end stands in the events."""

    def command(_: FlowerControl, verb: str, *words: str) -> dict[str, Any]:
        if verb == "stop":
            raise FedsynthError("[code: 18] Run is already finished")
        return {"runs": [{"status": status}]}

    monkeypatch.setattr(FlowerControl, "_json", command)
    with nullcontext() if status != "running" else pytest.raises(FedsynthError, match="already finished"):
        FlowerControl(tmp_path).stop("1")


def test_the_message_of_a_runs_end_commands_no_terminal(capsys):
    from fedsynth.deploy.commands.operate import _report

    view = RunView("a")
    view.receive(AttemptEnded(time=0.0, attempt="a", exit_code=8, error="FedsynthError", message="a\x1b[2Jb"))
    assert _report(view, json_=False) == 8
    assert capsys.readouterr().err == "fedsynth: a\\x1b[2Jb\n"
