"""Runs a job: as a simulation over sites in this process, or deployed over any transport.

Both build a federation, fit the job's method to it, and write the same directory.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedsynth.errors import FedsynthError, Unsupported
from fedsynth.federation.agreement import Agreement
from fedsynth.federation.federation import Federation, begun
from fedsynth.federation.noise_record import NoiseRecord, say_nothing
from fedsynth.federation.simulate import secret_file
from fedsynth.federation.transport import Recorded, Transport, conclude
from fedsynth.federation.trust import roster_digest
from fedsynth.files import sync
from fedsynth.keys import SecretBytes
from fedsynth.methods import Method, find_method
from fedsynth.models.synthesizer import Synthesizer
from fedsynth.persons import require_one_row
from fedsynth.privacy.ledger import Ledger
from fedsynth.progress import Progress, ignore_progress
from fedsynth.runs.dry_run import dealt, dry_run, steep_rows
from fedsynth.runs.ending import note_end, tell_ends
from fedsynth.runs.folder import RunFolder, new_folder, refuse_existing
from fedsynth.runs.job import Job
from fedsynth.runs.resolution import resolution
from fedsynth.runs.simulation import fitted, simulated
from fedsynth.runs.split import Split, load_rows
from fedsynth.runs.state import WitnessTransport, begin, claimed, load_coordinator
from fedsynth.schema import Schema
from fedsynth.statement import Statement
from fedsynth.terms import Terms

_log = logging.getLogger(__name__)

_TRIED = 2000  # random rows of a dry run, whose noise is that of any rows


@dataclass(frozen=True, eq=False)
class RunResult:
    """The results of a run, and the directory that holds them.

    ``synthetic`` are the rows drawn from the ``synthesizer``, as published, whose limitations say what noise hides.
    ``lost`` names the sites that missed a round.
    """

    folder: Path
    synthesizer: Synthesizer
    synthetic: pd.DataFrame
    ledger: Ledger
    statement: Statement
    lost: tuple[str, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences on why the guarantee is weak, and on lost columns, by name."""
        limits = self.synthesizer.limitations
        return (*self.statement.warnings, *([limits.alarm] if limits and limits.alarm else []))


@dataclass(frozen=True, eq=False)
class SimulatedRun(RunResult):
    """The results of a simulated run, with the real ``rows`` of its sites and its hold-out, for the evaluation."""

    rows: Split


def run_simulated(job: Job, out: Path, *, force: bool = False, progress: Progress = ignore_progress) -> SimulatedRun:
    """Run a job over sites that are simulated in this process, and write the directory ``out``, whole or not at all.

    With ``force``, a directory that an earlier run wrote is replaced. Raises :class:`~fedsynth.errors.FedsynthError` if
    ``out`` exists and may not be replaced, :class:`~fedsynth.errors.Unsupported` for the job of a deployment and for a
    target without a hold-out, :class:`~fedsynth.errors.InvalidParameter` for a limit on the rows of persons whom no
    column tells apart, and any error of the run itself; then nothing is written.
    """
    refuse_existing(out, force=force)
    if not job.person:
        require_one_row(job.rows_per_person, job.sites_per_person)
    if job.deployment is not None:
        raise Unsupported("the job is one of a deployment; simulate its method, budget and trust with --data instead")
    if job.target and not job.holdout:
        raise Unsupported("--target needs held-out rows to score the classifiers on; add --holdout 0.1")
    find_method(job.method).check_trust(job.trust)
    job.build_method()  # reports invalid options before rows are read
    trust = job.build_trust()
    split_seed = secrets.randbits(63) if job.seed is None else job.seed
    rows_key = _rows_key(job)
    with new_folder(out, force=force) as folder:
        whole = folder.transcript.with_name(f"{folder.transcript.name}.whole")
        rows = load_rows(job, split_seed, rows_key)
        method = job.build_method(rows.schema)
        federation = simulated(
            job,
            method,
            rows.schema,
            dict(zip(job.site, rows.sites, strict=True)) if job.site else rows.sites,
            trust,
            sources=[job.data, *job.site.values()],
            transcript=whole,
            progress=progress,
        )
        federation = replace(
            federation,
            looks_at_other_rows=rows.looks_at_other_rows,
            rfc4180=rows.rfc4180,
            noise=_forewarned(job, method, rows),
        )
        outcome = _completed(job, method, federation, out)
        # The secret would let anyone remove the noise, and a complete run does not need it.
        secret_file(whole).unlink(missing_ok=True)
        conclude(whole, folder.transcript, trust)
        whole.unlink()
        made: dict[str, Any] = {
            "split": _SPLITS[rows.looks_at_other_rows, job.public_sizes],
            "split_seed": split_seed,  # of hold-out and partition only, never of the noise
            "rows_digest": folder.write_rows_key(rows_key, rows),
        }
        if roster := getattr(federation.trust, "roster", None):  # the noise depends on its size
            made["identities"] = {name: key.hex() for name, key in roster.items()}
        folder.write(job, federation, outcome.synthesizer, outcome.synthetic, out, made)
    return SimulatedRun(**vars(outcome), rows=rows)


_SPLITS = {  # by (looks at other rows, public sizes): how run.toml names the way rows were split
    (False, False): "row by row",
    (False, True): "secret permutation",
    (True, False): "by other rows",
    (True, True): "by other rows",
}


def watch_nothing(transport: Transport) -> Transport:
    """Return the transport unchanged: the default of ``watch`` in :func:`run_deployed`."""
    return transport


def run_deployed(
    job: Job,
    folder: Path,
    transport: Transport,
    *,
    progress: Progress = ignore_progress,
    watch: Callable[[Transport], Transport] = watch_nothing,
) -> RunResult:
    """Run a job of real sites over a transport; an interrupted run is resumed.

    ``folder`` is the server's, with the coordinator's secret and, if the job names one, the plan that the sites
    approved, as ``plan.toml``: the privacy statement then gives the epsilon of that plan by exact accounting, if it is
    smaller than the budget's. ``folder/state/RUN`` keeps what resuming needs: the server's secret, and until the run is
    complete its transcript. ``folder/runs/RUN`` appears when the run is complete. The sites are then told that the run
    has ended (:mod:`~fedsynth.runs.ending`). ``watch`` may wrap the transport, and then sees only messages that are
    really sent, none that a resumed run takes from the transcript.

    Raises :class:`~fedsynth.errors.Unsupported` for a job without ``[deployment]``,
    :class:`~fedsynth.errors.FedsynthError` for a run that is complete or in progress elsewhere and for a job without
    the identity key of a site, and any error of the run itself, after which it can be resumed.
    """
    deployment = job.deployed
    out, state = folder / "runs" / deployment.run, folder / "state" / deployment.run
    if out.exists():
        raise FedsynthError(
            f"the run {deployment.run!r} is complete, in {out}; to run the job anew, set another run = ... under "
            "[deployment] in job.toml"
        )
    schema, coordinator, identities = Schema.load(Path(job.schema)), load_coordinator(folder), deployment.identities
    tell_ends(folder, transport, coordinator, identities)
    method, trust, terms = job.build_method(schema), job.build_trust(), job.terms(schema)
    agreed = _agreement(folder / "plan.toml", job, method, terms)
    with claimed(state), trust.connected(folder, coordinator) as trust:
        seed, secret = begin(state, job.digest(schema))
        witness = WitnessTransport(transport, folder / "state" / "seen.json")
        federation = begun(
            terms,
            trust,
            Recorded(watch(witness), state / "transcript"),
            run=deployment.run,
            rng=np.random.default_rng(seed),
            secret=secret,
            coordinator=coordinator,
            identities=identities,
            simulated=False,
        )
        federation = replace(
            federation,
            min_sites=deployment.least,
            unproved=job.unproved,
            agreed=agreed,
            rfc4180=True,
            seen=witness.seen,
            progress=progress,
        )
        if job.public_sizes:
            sizes = federation.public_sizes()
            federation = replace(federation, sites=tuple(sizes), sizes=sizes)
        outcome = _completed(job, method, federation, out)
        note_end(folder, deployment.run, deployment.sites)
        with new_folder(out, mode=0o700) as complete:
            conclude(state / "transcript", complete.transcript, trust)
            complete.write(job, federation, outcome.synthesizer, outcome.synthetic, out, {})
        for path in (*out.rglob("*"), out, out.parent):
            sync(path)  # the sites can repeat nothing afterwards
        _drop_transcripts(folder)
        tell_ends(folder, transport, coordinator, identities)
    return outcome


def _drop_transcripts(folder: Path) -> None:
    """Delete the transcripts of complete runs from the state of a federation: what counts of them is in their results.

    One may be left by a process that ended in between.
    """
    for file in folder.glob("state/*/transcript"):
        if RunFolder(folder / "runs" / file.parent.name).is_run:
            file.unlink(missing_ok=True)


def _agreement(path: Path, job: Job, method: Method, terms: Terms) -> Agreement:
    """Return the approved plan that the job names, read from ``path``, or an agreement without listed questions."""
    deployment = job.deployed
    who = (len(deployment.sites), job.method, method, roster_digest(deployment.identities))
    own = Agreement.of(terms, *who, answers=job.declared)
    if not deployment.plan:
        return own
    if not path.is_file():
        raise FedsynthError(
            f"the job runs under the plan {deployment.plan[:12]}, and {path} is missing; put the approved plan there"
        )
    plan = Agreement.load(path)
    if plan.digest != deployment.plan:
        raise FedsynthError(
            f"{path} is the plan {plan.digest[:12]}, and the job runs under {deployment.plan[:12]}; put the approved "
            "plan there"
        )
    for name in ("schema", "trust", "trust_options", "unit", "public_sizes", "method", "answers"):
        if getattr(plan, name) != getattr(own, name):
            raise FedsynthError(
                f"the approved plan {path} has {name} = {getattr(plan, name)}, and the job {getattr(own, name)}; run "
                "the job as it was planned, or plan again and have the plan approved"
            )
    return plan


def _forewarned(job: Job, method: Method, rows: Split) -> NoiseRecord:
    """Return the record of a simulation's noise, which warns at once of a training that its noise would drown.

    It knows the number of rows, which a deployed run learns from its first release: nothing that is written has it.
    """
    declared, count = find_method(job.method), sum(map(len, rows.sites))
    if not declared.trains or job.budget.exact:
        return NoiseRecord(count)
    tried, _ = dry_run(
        method,
        job.terms(rows.schema),
        dealt(steep_rows(rows.schema, _TRIED, np.random.default_rng(0)), len(rows.sites), 0),
        seed=0,
        queries=declared.queries,
    )
    for warning in resolution(tried, count).warnings:
        _log.warning(warning)
    return NoiseRecord(count, say_nothing)


def _completed(job: Job, method: Method, federation: Federation, out: Path) -> RunResult:
    synthesizer = fitted(job, method, federation)
    synthetic = synthesizer.sample(job.rows, federation.rng)
    lost = tuple(sorted(set(federation.lost)))
    assert synthesizer.statement is not None
    return RunResult(out, synthesizer, synthetic, federation.ledger, synthesizer.statement, lost)


def _rows_key(job: Job) -> bytes:
    """Return the key of the digest of the rows, and of the permutation that deals them where sizes are public.

    With it, anyone who knows all rows but one could find that one by trial. With a seed, the key is derived from it:
    such a run is not private anyway, and all its files are reproducible.
    """
    if job.seed is None:
        return SecretBytes(secrets.token_bytes(32))
    return SecretBytes(hashlib.sha256(f"rows of seed {job.seed}".encode()).digest())
