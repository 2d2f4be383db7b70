"""The coordinator's commands during a run: ``deploy serve|run|status|stop``, on top of the run's event log."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from fedsynth import errors
from fedsynth.cli.options import log_to_stderr, say, serve_until_stopped
from fedsynth.cli.output import harmless, tell
from fedsynth.platforms import require_posix

if TYPE_CHECKING:
    from fedsynth.deploy.flower.control import FlowerControl
    from fedsynth.deploy.run_events import Event, EventReader
    from fedsynth.deploy.status import RunView
    from fedsynth.runs.job import Job
    from fedsynth.schema import Schema

_NEW = "the authority itself ends: set up a new federation, and take the accounts along"
SECRET = "superexec.secret"  # in the folder server, named as Flower names its kind


def deploy_serve(
    folder: Path,
    /,
    *,
    superlink: str = "127.0.0.1:9443",
    secret: Path | None = None,
    root_certificates: Path | None = None,
    database: Path | None = None,
    json_: bool = False,
) -> None:
    """Make the run whenever `deploy run` starts it, and take it up by itself after an interruption.

    It goes on until it is stopped. A run that was interrupted (this machine was restarted, a process was killed, or the
    SuperLink stood still) is taken up when both are up again: at most five times without finishing another round, with
    growing pauses; `deploy status` shows which try it is. A run that ended with an error, or that was stopped, waits
    for `deploy run`. Run the command at the server under a supervisor such as systemd, beside Flower's server
    (SuperLink), as the user who owns the folder; the SuperLink should belong to another one, who cannot read the
    coordinator's key. Whatever was sent to the SuperLink to start a run is ignored: the run is the one in
    FOLDER/job.toml, made by the installed fedsynth.

    Exit codes: 0 stopped by a signal, 5 the SuperLink rejects the secret; docs/cli.md lists the others.

    Example:

      fedsynth deploy serve federation

    Parameters
    ----------
    superlink
        HOST:PORT of Flower's server (SuperLink) on this machine.
    secret
        File with the secret by which the SuperLink recognises this command: the one that it was started with as
        --superexec-auth-secret-file. Default: FOLDER/server/superexec.secret.
    root_certificates
        Certificate (PEM file) of the authority that vouches for the SuperLink's. Default: FOLDER/server/ca.crt.
    database
        Database file of the SuperLink, from which the messages of a run are deleted that was taken up and is complete.
        Default: FOLDER/server/superlink.db.
    json_
        Write the log, which goes to standard error, as JSON, one object to a line. Without it: text for people.
    """
    require_posix("`fedsynth deploy serve`")
    from fedsynth.deploy.flower.executor import FlowerExecutor, server_secret

    _require_federation(folder)
    log_to_stderr(json_)
    home = Path(os.path.abspath(folder))
    server = home / "server"
    _warn_of_certificates(server)
    certificates = (root_certificates or server / "ca.crt").read_bytes()
    shared, file = server_secret(secret or server / SECRET), database or server / "superlink.db"
    executor = FlowerExecutor(home, superlink, certificates, shared, Path(os.path.abspath(file)))
    serve_until_stopped(executor.serve, executor.stop)


def _warn_of_certificates(server: Path) -> None:
    """Log which certificates of the server have ended or end within a month: no site can connect then."""
    import logging

    from fedsynth.deploy.host.checks import check_roots

    mend = "`fedsynth deploy admit` renews it with the authority's key; then restart nginx and the SuperLink"
    for name in ("server.pem", "ca.crt"):
        if (server / name).is_file():
            found = check_roots(server / name, name=f"server/{name}", mend=mend if name == "server.pem" else _NEW)
            if found.state != "ok":
                logging.getLogger("fedsynth.server").warning("%s: %s; %s", found.name, found.found, found.mend)


def deploy_run(
    folder: Path,
    /,
    *,
    connection: str = "federation",
    database: Path | None = None,
    exchange: Path | None = None,
    once: bool = False,
    without: tuple[str, ...] = (),
    json_: bool = False,
) -> int:
    """Start or resume the run, and show its progress.

    The run is the one that job.toml describes. By default, Flower (a separate program) carries the messages, and the
    run goes on at the server: Ctrl-C ends only the view. `deploy status` shows the run again, and `deploy stop`
    stops it. When it has ended, its messages are deleted from the database of the SuperLink, Flower's
    server program. With --exchange, the run goes on in this process: Ctrl-C interrupts it, and the same command resumes
    it.

    Exit codes: 0 complete, 4 over budget, 5 refused by a site, 7 too few sites, 9 paused until files are carried
    (--exchange), 130 ended by Ctrl-C or `deploy stop`; docs/cli.md lists the others.

    Examples:

      fedsynth deploy run federation

      fedsynth deploy run federation --json > run.jsonl

      fedsynth deploy run federation --exchange /media/stick --once

    Parameters
    ----------
    database
        Database file of the SuperLink, Flower's server program, from which this command deletes the messages: the one
        that the SuperLink was started with as --database. Default: FOLDER/server/superlink.db.
    without
        With --exchange: name of a site that cannot answer, to go on without it, as long as min_sites (in job.toml)
        sites are left; repeat it for several. Default: all sites are waited for, without --once up to the deadline in
        job.toml.
    json_
        Report each event as a JSON object on a line of its own. Without it: text for people.
    """
    require_posix("`fedsynth deploy run`")
    from fedsynth.deploy.run_events import EventReader, events_file
    from fedsynth.deploy.status import attempts

    if exchange is None and (once or without):
        raise errors.InvalidParameter("--once and --without need --exchange FOLDER")
    job, schema = _ready(folder)
    file = events_file(folder, job.deployed.run)
    reader = EventReader(file)
    if any(view.ended is None for view in attempts(reader.new()).values()) and reader.alive():
        raise errors.FedsynthError(
            f"the run {job.deployed.run!r} is going on; `fedsynth deploy status {folder}` shows it, `fedsynth deploy "
            f"stop {folder}` stops it"
        )
    if exchange is not None:
        view = _over_files(job, folder, exchange, reader, wait=not once, without=without, json_=json_)
    else:
        view = _over_flower(folder, connection, database, job, schema, reader, json_=json_)
    return _report(view, json_)


def _over_flower(
    folder: Path,
    connection: str,
    database: Path | None,
    job: Job,
    schema: Schema,
    reader: EventReader,
    *,
    json_: bool,
) -> RunView:
    from fedsynth.deploy.flower.control import FlowerControl
    from fedsynth.deploy.run_events import estimate

    control = FlowerControl(folder, connection)

    def unheard() -> None:
        if said := control.require_begun(attempt):
            print(said, file=sys.stderr)

    try:
        attempt = control.start()
        if not json_:
            print(f"the SuperLink has taken on the run {job.deployed.run} (Flower's run {attempt})")
        # In a process: a thread that computes while the interpreter ends can crash it.
        aside = multiprocessing.get_context("fork").Process(
            target=_uninterrupted, args=(estimate, job, schema, reader.file, attempt), daemon=True
        )
        aside.start()
        view = _follow(reader, attempt, json_, unheard)
    except KeyboardInterrupt:
        print(
            f"\nthe run goes on at the server if it was taken on; `fedsynth deploy status {folder}` shows it again, "
            f"`fedsynth deploy stop {folder}` stops it",
            file=sys.stderr,
        )
        raise SystemExit(130) from None
    _clear(control, attempt, database or folder / "server" / "superlink.db", json_)
    return view


def _over_files(
    job: Job, folder: Path, exchange: Path, reader: EventReader, *, wait: bool, without: Sequence[str], json_: bool
) -> RunView:
    from fedsynth.deploy.files.server import over_files
    from fedsynth.deploy.run_events import FILES, run_watched

    attempt = f"{FILES}{secrets.token_hex(4)}"
    run = partial(
        run_watched,
        job,
        folder,
        attempt,
        lambda job, tell: over_files(job, folder, exchange, wait=wait, without=without),
    )
    work = threading.Thread(target=_quietly(run), daemon=True)
    work.start()

    def unheard() -> None:
        if not work.is_alive():
            raise errors.FedsynthError(
                f"the run could not begin; check that {reader.file.parent} is writable and its disk not full"
            )

    try:
        return _follow(reader, attempt, json_, unheard)
    except KeyboardInterrupt:
        print("\ninterrupted; the same command resumes the run", file=sys.stderr)
        raise SystemExit(130) from None


def _ready(folder: Path) -> tuple[Job, Schema]:
    from fedsynth.runs.job import Job
    from fedsynth.runs.state import load_coordinator
    from fedsynth.schema import Schema

    _require_federation(folder)
    file = folder / "job.toml"
    job = Job.load(file)
    run = job.deployed.run
    schema = Schema.load(Path(job.schema))
    job.build_method(schema)
    job.build_trust()
    load_coordinator(folder)
    out = folder / "runs" / run
    if out.exists():
        raise errors.FedsynthError(
            f"the run {run!r} is complete, in {out}; for a new run, change the run name in [deployment] of {file}"
        )
    return job, schema


def _require_federation(folder: Path) -> None:
    if not (folder / "job.toml").is_file():
        raise errors.FedsynthError(f"{folder} holds no job.toml; give the folder written by `fedsynth deploy init`")


def _quietly(work: Callable[..., object]) -> Callable[..., None]:
    """Return ``work`` for a thread, without its errors: a run's end is an event, and an estimate is optional."""

    def run(*arguments: Any) -> None:
        with contextlib.suppress(errors.FedsynthError, OSError):
            work(*arguments)

    return run


def _uninterrupted(work: Callable[..., None], *arguments: Any) -> None:
    """Do ``work`` in a process that Ctrl-C, meant for its parent, does not end with a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _quietly(work)(*arguments)


def _follow(reader: EventReader, attempt: str, json_: bool, unheard: Callable[[], object]) -> RunView:
    from fedsynth.deploy.status import RunView, follow

    view = RunView(attempt)
    with _screen(view, reader, json_) as shown:
        for event in follow(reader, view, unheard):
            shown(event)
    return view


@contextlib.contextmanager
def _screen(view: RunView, reader: EventReader, json_: bool) -> Iterator[Callable[[Event], None]]:
    import msgspec
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from fedsynth.deploy.status import line_of, lines_of

    def line(event: Event) -> None:
        if json_:
            print(msgspec.json.encode(event).decode(), flush=True)
        elif text := line_of(view, event):
            print(f"{time.strftime('%H:%M:%S', time.localtime(event.time))} {text}", flush=True)

    console = Console()
    if json_ or not console.is_terminal:
        yield line
        return

    def picture() -> Text:
        return Text("\n".join(lines_of(view.status(reader.alive()))))

    with Live(get_renderable=picture, console=console, refresh_per_second=2):
        yield lambda event: None


def _clear(control: FlowerControl, attempt: str, database: Path, json_: bool) -> None:
    """Delete the messages of a run that has ended from the SuperLink's database; a failure is a warning."""
    from fedsynth.deploy.flower.control import purge_after

    try:
        purge_after(control, attempt, database)
    except errors.FedsynthError as error:
        print(f"WARNING: the SuperLink still holds the run's messages: {error}", file=sys.stderr)
        return
    if not json_:
        print(f"the run's messages have been deleted from {database}")


def _report(view: RunView, json_: bool) -> int:
    from fedsynth.deploy.status import end_lines
    from fedsynth.runs.folder import RunFolder

    assert view.ended is not None
    if not json_ and not view.ended.exit_code:
        card = RunFolder(Path(view.ended.folder)).card()  # None if the folder is on another machine
        limits = card.limitations if card else None
        tell("\n".join([*end_lines(view.ended), *(limits.loud + limits.quiet if limits else [])]))
    elif not json_:
        print(f"fedsynth: {harmless(view.ended.message)}", file=sys.stderr)
    return view.ended.exit_code


def deploy_status(
    folder: Path,
    /,
    *,
    all_: bool = False,
    watch: bool = False,
    port: Annotated[int, Meta(ge=0, le=65535)] = 0,
    json_: bool = False,
) -> None:
    """Show the state of the last run, of all runs, or live on a web page.

    The state is the current round and its question, each site's answer, bytes sent and received, elapsed time and, once
    the run has ended, its result. Sites that have not acknowledged the end of a complete run are named; they are told
    again when a run starts. With --watch, a page shows it live: this machine serves it at 127.0.0.1 until Ctrl-C, under
    a random path, so that only who knows the printed address can open it.

    Examples:

      fedsynth deploy status federation

      fedsynth deploy status federation --all --json

      fedsynth deploy status federation --watch

    Parameters
    ----------
    all_
        Show all runs of the federation. Without it: only the last one.
    watch
        Serve a live web page of the last run. Without it: the state is printed once.
    port
        With --watch: port of this machine at which the page is served; 0: any free port.
    """
    import msgspec

    from fedsynth.deploy.status import lines_of, run_statuses
    from fedsynth.runs.ending import unacknowledged

    if watch and (all_ or json_):
        raise errors.InvalidParameter("--watch serves a page of the last run; leave --all and --json out")
    if watch:
        _watch(folder, port)
        return
    _require_federation(folder)
    runs = run_statuses(folder)
    if not runs:
        raise errors.FedsynthError(f"no run of {folder} has begun; `fedsynth deploy run {folder}` starts one")
    shown = runs if all_ else runs[-1:]
    untold = unacknowledged(folder)
    lines = ["\n".join(lines_of(status)) for status in shown]
    lines += [f"not told yet that {run} has ended: {', '.join(sites)}" for run, sites in untold.items()]
    say(json_, {"runs": msgspec.to_builtins(shown), "not_told": untold}, "\n\n".join(lines))


def _watch(folder: Path, port: int) -> None:
    import msgspec

    from fedsynth.deploy.status import lines_of, run_statuses
    from fedsynth.deploy.watch import WatchPage

    def shown() -> dict[str, Any]:
        if not (runs := run_statuses(folder)):
            return {"run": ""}
        return {**msgspec.to_builtins(runs[-1]), "lines": lines_of(runs[-1])}

    _require_federation(folder)
    with WatchPage(shown, port) as page:
        print(f"open {page.url}  (Ctrl-C ends the page, not the run)", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            page.serve_forever()


def deploy_stop(
    folder: Path,
    /,
    *,
    purge: bool = False,
    connection: str = "federation",
    database: Path | None = None,
    json_: bool = False,
) -> None:
    """Stop the run; `fedsynth deploy run` resumes it.

    The run is stopped at the server. When it resumes, the sites' budgets are charged only for rounds that were not
    answered yet. With --purge, all messages are then deleted from the database of Flower's server, whose registrations
    of sites and list of runs stay. `deploy run` does this at the end of a run; use --purge after runs that were started
    by `flwr run`, that are not to be resumed, or whose `deploy run` was interrupted.

    Examples:

      fedsynth deploy stop federation

      fedsynth deploy stop federation --purge

    Parameters
    ----------
    purge
        Delete all messages from the database of Flower's server (SuperLink), also where no run goes on.
    database
        Database file of the SuperLink, Flower's server program, from which --purge deletes the messages: the one that
        the SuperLink was started with as --database. Default: FOLDER/server/superlink.db.
    """
    from fedsynth.deploy.flower.control import SETTLED, unfinished
    from fedsynth.deploy.flower.control import purge as delete_messages

    stopped = _stop(folder, connection)
    if stopped is None and not purge:
        raise errors.FedsynthError(
            f"no run of {folder} is going on; `fedsynth deploy status {folder} --all` lists them"
        )
    facts: dict[str, Any] = {} if stopped is None else dict(zip(("run", "attempt"), stopped, strict=True))
    lines = [] if stopped is None else [f"stopped {stopped[0]}; `fedsynth deploy run {folder}` resumes it"]
    if purge:
        file = database or folder / "server" / "superlink.db"
        end = time.monotonic() + SETTLED
        while stopped is not None and unfinished(file) and time.monotonic() < end:
            time.sleep(2)
        deleted = delete_messages(file)
        facts |= {"database": str(file), "deleted": dict(deleted)}
        lines.append(f"{errors.number_of(sum(deleted.values()), 'entry', 'entries')} deleted from {file}")
    say(json_, facts, "\n".join(lines))


def _stop(folder: Path, connection: str) -> tuple[str, str] | None:
    from fedsynth.deploy.flower.control import FlowerControl
    from fedsynth.deploy.run_events import FILES, EventLog, EventReader, events_file, note_stop
    from fedsynth.deploy.status import all_runs, last_attempt
    from fedsynth.runs.job import Job

    control = FlowerControl(folder, connection)
    for file in reversed(all_runs(folder)):
        view = last_attempt(file)
        if view is None or view.ended is not None or not EventReader(file).alive():
            continue
        if view.attempt.startswith(FILES):
            raise errors.FedsynthError(
                f"the run {file.parent.name} goes on over files, in the process of `fedsynth deploy run`; press Ctrl-C "
                "there"
            )
        with EventLog(file, view.attempt):  # open already: a run that has vanished without an end is an error
            control.stop(view.attempt)
            note_stop(file, view.attempt)
        return file.parent.name, view.attempt
    run = Job.load(folder / "job.toml").deployed.run
    view = last_attempt(file := events_file(folder, run))
    if view is None or not view.interrupted or (folder / "runs" / run).exists():
        return None
    note_stop(file, view.attempt)  # `deploy serve` takes it up no more
    if view.resumed is not None:
        with contextlib.suppress(errors.FedsynthError):  # it may have ended
            control.stop(view.resumed.by)
    return run, view.attempt
