"""Rehearsal: a trial of a federation's run on test tables, with throw-away keys and all processes on this machine."""

from __future__ import annotations

import shutil
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import tomli_w
from msgspec.structs import replace

from fedsynth import errors
from fedsynth.data.read import write_frame
from fedsynth.deploy.certificates import Authority
from fedsynth.deploy.enrolment import AUTHORITY, Enrolment, accept, check_admission, join
from fedsynth.deploy.flower.files import site_files
from fedsynth.deploy.flower.local import LocalFlower
from fedsynth.deploy.flower.setup import write_federation
from fedsynth.deploy.roster import Admission, Invitation, JoinRequest, load
from fedsynth.deploy.run_events import events_file
from fedsynth.deploy.status import last_attempt
from fedsynth.encoding import decode
from fedsynth.errors import FedsynthError, Unsupported
from fedsynth.federation.policy import VERBS
from fedsynth.federation.transport import recorded_turns
from fedsynth.rows import Table
from fedsynth.runs.folder import new_folder
from fedsynth.runs.job import Job
from fedsynth.schema import Schema

RUN = "rehearsal"
PLAN = "plan.toml"  # beside the job: the plan that the sites approved


def rehearse(
    folder: Path, tables: Mapping[str, Table], place: Path, out: Path, *, force: bool, tell: Callable[[str], None]
) -> tuple[float, int]:
    """Make a federation's run over test tables, with real servers and sites as processes of this machine.

    Returns the run's seconds and the number of its exchanges. ``tables`` holds a test table for each site, by its name;
    ``place`` is an empty folder for keys, logs and databases; ``out`` becomes the folder of the result. All started
    processes are ended, also on errors. Raises :class:`FedsynthError` with the reason if the run fails,
    :class:`Unsupported` for a run without sites or with three servers, and ``TimeoutError`` if a process does not start
    or the run does not end in time.
    """
    job = Job.load(folder / "job.toml")
    if job.trust == "three-servers":
        raise Unsupported(
            'a rehearsal starts no compute servers; rehearse the job with trust = "trusted", which asks the same'
        )
    schema = Schema.load(job.schema)
    rehearsed = replace(job, schema="schema.toml", deployment=replace(job.deployed, run=RUN, peers={}))
    root = place / "federation"
    write_federation(root, rehearsed, schema, "localhost:443")  # the proxies are left out, and so is their port
    if job.deployed.plan and (folder / PLAN).is_file():
        shutil.copy(folder / PLAN, root / PLAN)
    homes = {name: _site(root, name, rehearsed, table, place / name) for name, table in tables.items()}
    _enrol(root, homes)
    tell(f"{len(homes)} sites with throw-away keys are enrolled, in {place}.")
    processes = place / "processes"
    processes.mkdir()
    local = LocalFlower(processes, root, root / "server", homes)
    try:
        began = time.monotonic()
        local.start()
        tell(f"The server and {len(homes)} nodes are connected on the loopback interface, {_since(began)}.")
        began = time.monotonic()
        run_id = local.control.start()
        tell(f"The run has started: {job.method}, trust {job.trust}.")
        ended = local.finish(run_id)
        seconds = time.monotonic() - began
        if ended != "finished:completed":
            raise _failure(root, local.log("server"))
    finally:
        local.stop()
    result = root / "runs" / RUN
    exchanges = len(recorded_turns(result / "transcript"))
    with new_folder(out, force=force) as run:
        shutil.copytree(result, run.path, dirs_exist_ok=True)
    return seconds, exchanges


def _site(root: Path, name: str, job: Job, table: Table, home: Path) -> Path:
    """Let a site join from its invitation, with a policy that agrees to the job, and rows of the table."""
    invitation = load(root / "invitations" / f"{name}.toml", Invitation)
    files = site_files(invitation, home, sees_counts=job.trust == "trusted")  # the rows are random
    content = tomllib.loads(files["site.toml"])
    content["source"]["rows_are_persons"] = True
    content["source"]["records"] = "rfc4180"  # categories may hold newlines
    content["policy"] |= {
        "trusts": {job.trust: dict(job.trust_options)},
        "verbs": list(VERBS),
        "size_is_public": job.public_sizes,
        "plans": "any",
    }
    if (root / PLAN).is_file():
        content["policy"]["plans"] = {job.deployed.plan: str(root / PLAN)}
    join(invitation, home, {**files, "site.toml": tomli_w.dumps(content)})
    write_frame(decode(table.schema, table, np.random.default_rng()), home / "rows.csv")
    return home


def _enrol(root: Path, homes: Mapping[str, Path]) -> None:
    """Admit sites that have joined, and let them accept the roster; nobody compares fingerprints on one machine."""
    authority = Authority.load(root / AUTHORITY, root / "server" / "ca.crt")
    enrolment = Enrolment.load(root)
    for name, home in homes.items():
        request = load(home / f"{name}.request", JoinRequest)
        enrolment.check(request)
        enrolment = enrolment.admit(request, authority)
    enrolment.publish()
    signed = []
    for name, home in homes.items():
        admission = load(root / "admissions" / f"{name}.toml", Admission)
        config, _ = check_admission(admission, home)
        signed.append(accept(admission, config)[0])
    enrolment.publish(signed)


def _failure(root: Path, log: str) -> FedsynthError:
    """Return the error that the run's events end with; without any, that of a run that did not begin."""
    view = last_attempt(events_file(root, RUN))
    if view is None or view.ended is None:
        return FedsynthError(f"the run did not begin: {log[-2000:]}")
    kind = getattr(errors, view.ended.error, FedsynthError)
    return kind(view.ended.message) if issubclass(kind, FedsynthError) else FedsynthError(view.ended.message)


def _since(began: float) -> str:
    return f"after {time.monotonic() - began:.0f} s"
