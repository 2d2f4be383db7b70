"""A deployed run: its job, and the running of it over any transport."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

import fedsynth
from fedsynth import errors
from fedsynth.errors import FedsynthError
from fedsynth.federation.coordinator import Coordinator
from fedsynth.federation.federation import Federation
from fedsynth.federation.names import check_site_name
from fedsynth.federation.transport import Message, Recorded, Transport
from fedsynth.federation.trust import Trust
from fedsynth.federation.wire import Reply, Seen
from fedsynth.files import load_toml, private_folder, write_private
from fedsynth.methods import Method, find_method
from fedsynth.models.synthesizer import Synthesizer
from fedsynth.privacy.cost import Budget, Unit
from fedsynth.privacy.ledger import Ledger
from fedsynth.schema import Schema

COORDINATOR = "coordinator.key"  # beside the job: the secret that signs requests and opens confidential answers
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_log = logging.getLogger("flwr.fedsynth")  # Flower's own log: `flwr log` shows it


@dataclass(frozen=True)
class DeployedJob:
    """Everything that determines a deployed run but the rows and the noise; ``job.toml`` holds exactly this.

    ``run`` names the run in every request: a run that was interrupted resumes under its name. ``sites`` is the
    roster, of which ``min_sites`` (all, if unset) must answer in every round; ``deadline`` bounds a round in
    seconds; ``schema`` is a file beside the job's. ``trust_options`` are numbers of the trust, ``peers`` the sites'
    public identity keys (hexadecimal), ``plan`` the digest of the plan that the sites approved. The rest is as for
    :class:`fedsynth.runs.job.Job`.
    """

    run: str
    method: str
    epsilon: float
    delta: float
    trust: str
    sites: tuple[str, ...]
    min_sites: int | None = None
    deadline: float = 600.0
    schema: str = "schema.toml"
    plan: str = ""
    rows: int | None = None
    workload: str = ""
    public_sizes: bool = False
    rows_per_person: int = 1
    sites_per_person: int = 1
    format: str = "csv"
    options: Mapping[str, Any] = field(default_factory=dict)
    trust_options: Mapping[str, Any] = field(default_factory=dict)
    peers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what cannot be run, before any site is asked."""
        if isinstance(self.sites, str):
            raise errors.FedsynthError(f'sites = "{self.sites}" is no list; write sites = ["{self.sites}", ...]')
        object.__setattr__(self, "sites", tuple(self.sites))
        if not _RUN.fullmatch(self.run):
            raise errors.FedsynthError(f"{self.run!r} names no run; use up to 63 letters, digits, '.', '_' and '-'")
        for name in (*self.sites, *self.peers):
            check_site_name(name)
        if not self.sites or len(set(self.sites)) < len(self.sites):
            raise errors.FedsynthError(f"sites = {list(self.sites)}: name each site, once")
        if not 1 <= self.least <= len(self.sites) or not self.deadline > 0:
            raise errors.FedsynthError(f"min_sites must lie in 1 ... {len(self.sites)}, and deadline be positive")
        if min(self.rows_per_person, self.sites_per_person) < 1:
            raise errors.FedsynthError("rows_per_person and sites_per_person must be at least 1")
        if self.format not in ("csv", "parquet"):
            raise errors.FedsynthError(f"format = {self.format!r}: choose csv or parquet")

    @property
    def budget(self) -> Budget:
        """What all releases about one person may cost together; epsilon = inf is no limit and no noise."""
        from fedsynth.runs.job import budget_of

        return budget_of(self.epsilon, self.delta)

    @property
    def unit(self) -> Unit:
        """Who is protected."""
        from fedsynth.privacy.cost import Unit

        return Unit(self.rows_per_person, self.sites_per_person)

    @property
    def least(self) -> int:
        """Number of sites that must answer in every round."""
        return len(self.sites) if self.min_sites is None else self.min_sites

    @classmethod
    def load(cls, path: Path) -> DeployedJob:
        """Return the job of a file; raises :class:`FedsynthError` for entries that are unknown or missing."""
        content = load_toml(path)
        fields = dataclasses.fields(cls)
        if unknown := sorted(set(content) - {one.name for one in fields}):
            raise errors.FedsynthError(f"{path}: unknown entries {unknown}; known are {[one.name for one in fields]}")
        needed = {one.name for one in fields if one.default is MISSING and one.default_factory is MISSING}
        if lacking := sorted(needed - set(content)):
            raise errors.FedsynthError(f"{path} lacks {lacking}; add them")
        return cls(**content)

    def to_toml(self) -> str:
        """Return the job as TOML; what is unset is left out."""
        return tomli_w.dumps({name: value for name, value in asdict(self).items() if value not in (None, "", {})})

    def digest(self, schema: Schema) -> str:
        """SHA-256 (hex) of job and schema: what a run that resumes must have in common with its beginning."""
        return hashlib.sha256(f"{self.to_toml()} {schema.digest}".encode()).hexdigest()

    def build(self, schema: Schema) -> Method:
        """Return the method with its options and its workload."""
        from fedsynth.runs.job import Job, build_method, parse_workload

        method = build_method(Job(self.method, self.epsilon, self.delta, options=self.options), schema)
        if not self.workload:
            return method
        if not any(one.name == "workload" for one in dataclasses.fields(method)):  # type: ignore[arg-type]
            raise errors.Unsupported(f"{self.method} measures a fixed set of marginals; leave workload out")
        workload = parse_workload(self.workload, len(schema.sizes))
        return dataclasses.replace(method, workload=workload)  # type: ignore[type-var]

    def build_trust(self) -> Trust:
        """Return the trust, with its numbers and its roster."""
        from fedsynth.federation.policy_file import trust_named

        trust = trust_named(self.trust, self.trust_options)
        return trust.among({name: bytes.fromhex(key) for name, key in self.peers.items()}) if self.peers else trust


def load_coordinator(folder: Path) -> Coordinator:
    """Return the coordinator whose secret lies beside a job.

    It is never made anew here: sites answer nobody else than the coordinator whose key they pinned. Raises
    :class:`FedsynthError` where the secret is missing or can be read by others.
    """
    from fedsynth.federation.coordinator import KEY, Coordinator

    file = folder / COORDINATOR
    if not file.is_file():
        raise errors.FedsynthError(
            f"{file} is missing; put it back from the backup. If it is gone for good, set the federation up again: "
            "every site must then write the new coordinator's key into its site.toml"
        )
    if file.stat().st_mode & 0o077:
        raise errors.FedsynthError(f"{file} can be read by other users; run chmod go-rwx {file}")
    try:
        secret = bytes.fromhex(file.read_text(encoding="ascii"))
    except ValueError:
        secret = b""
    if len(secret) != KEY:
        raise errors.FedsynthError(f"{file} holds no coordinator's secret; put it back from the backup")
    return Coordinator(secret)


def run_deployed(job: DeployedJob, folder: Path, transport: Transport) -> Path:
    """Run the job over a transport, from where it stopped if it was begun; return the run directory.

    ``folder/state/RUN`` holds what resumes the run (transcript, server's secret) and ``folder/runs/RUN`` appears
    when the run is complete.
    """
    out, state = folder / "runs" / job.run, folder / "state" / job.run
    if out.exists():
        raise FedsynthError(f"the run {job.run!r} is complete, in {out}; give the job another run name to run it anew")
    schema, coordinator = Schema.load(folder / job.schema), load_coordinator(folder)
    method, trust = job.build(schema), job.build_trust()
    with _claimed(state):
        seed, secret = _begin(state, job.digest(schema))
        witness = Witness(transport, folder / "state" / "seen.json")
        kinds = {query.kind: query for query in find_method(job.method).queries}
        recorded = Recorded(witness, state / "transcript", kinds)
        federation = Federation(
            schema,
            Ledger(job.budget),
            trust,
            recorded,
            job.sites,
            np.random.default_rng(seed),
            job.run,
            secret,
            coordinator,
            unit=job.unit,
            neighbours="replace" if job.public_sizes else "add-remove",
            min_sites=job.least,
            plan=job.plan,
            seen=witness.seen,
            released=recorded.released,
            progress=lambda what, done, total: _log.info("%s: %d of %d", what, done, total),
        )
        if job.public_sizes:
            sizes = federation.public_sizes()
            federation = replace(federation, sites=tuple(sizes), sizes=sizes)
        synthesizer = method.fit(federation)
        synthetic = synthesizer.sample(job.rows, federation.rng)
        _write(out, job, federation, synthesizer, synthetic, state / "transcript")
    _log.info("%d rows in %s; %s", len(synthetic), out, federation.statement.headline)
    for warning in federation.statement.warnings():
        _log.warning("%s", warning)
    _log.info("sites that missed a round: %s", sorted(set(federation.lost)) or "none")
    return out


@contextmanager
def _claimed(state: Path) -> Iterator[None]:
    """Hold the run: two servers that asked under one name would each pay for questions of their own."""
    with (private_folder(state) / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FedsynthError(
                f"the run {state.name!r} is going on in another process; wait for it, or stop it (`flwr stop`)"
            ) from error
        yield


class Witness:
    """A transport that writes down the last audit row of each site that a reply shows, before the reply is used.

    A site whose account is an old backup does not have the row that the server saw, and refuses: also where the server
    lost its power since. ``seen`` is what this run and earlier ones saw. Runs share the file, and none takes back what
    another wrote.
    """

    def __init__(self, transport: Transport, file: Path) -> None:
        """Read what earlier runs saw."""
        self._transport = transport
        self._file = file
        self.seen = self._written()

    @property
    def sites(self) -> Sequence[str]:
        """Names of the sites that can be reached."""
        return self._transport.sites

    def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
        """Yield each reply, once what it shows is on the disk."""
        for reply in self._transport.exchange(messages):
            if reply.seen.row > self.seen.get(reply.site, Seen()).row:
                self.seen[reply.site] = reply.seen
                self._write()
            yield reply

    def _written(self) -> dict[str, Seen]:
        told = json.loads(self._file.read_text()) if self._file.exists() else {}
        return {site: Seen(row, bytes.fromhex(chain)) for site, (row, chain) in told.items()}

    def _write(self) -> None:
        with self._file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for site, known in self._written().items():
                self.seen[site] = max(known, self.seen.get(site, Seen()), key=lambda seen: seen.row)
            content = {site: [known.row, known.chain.hex()] for site, known in self.seen.items()}
            write_private(self._file, json.dumps(content))


def _begin(state: Path, digest: str) -> tuple[int, bytes]:
    """Return the seed of the run's public draws and the server's secret: drawn at its beginning, kept until its end.

    With another secret, a resumed run would hide the same sums under other noise: released twice, paid once.
    """
    file = state / "run.json"
    if not file.exists():
        fresh = {"job": digest, "seed": secrets.randbits(63), "secret": secrets.token_hex(32)}
        write_private(file, json.dumps(fresh))
    begun = json.loads(file.read_text())
    if begun["job"] != digest:
        raise FedsynthError(
            f"job.toml or the schema is not what the run {state.name!r} began with; put that back to resume, or give "
            "the job another run name"
        )
    return begun["seed"], bytes.fromhex(begun["secret"])


def _write(
    out: Path, job: DeployedJob, federation: Federation, synthesizer: Synthesizer, synthetic: Any, transcript: Path
) -> None:
    """Write the run directory, whole or not at all: the files that ``fedsynth simulate`` writes."""
    from fedsynth.data.source import write_frame

    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        write_frame(synthetic, partial / f"synthetic.{job.format}")
        synthesizer.save(partial / "model.fedsynth")
        federation.schema.save(partial / "schema.toml")
        account = {**federation.ledger.to_json(), "statement": federation.statement.to_json()}
        (partial / "ledger.json").write_text(json.dumps(account, indent=1))
        shutil.copyfile(transcript, partial / "transcript")
        made = {
            "fedsynth": fedsynth.__version__,
            "schema_digest": federation.schema.digest,
            "lost_sites": sorted(set(federation.lost)),
        }
        (partial / "run.toml").write_text(job.to_toml() + "\n" + tomli_w.dumps({"made": made}))
        os.replace(partial, out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
