"""One simulated run from a file to a run directory: what ``fedsynth simulate`` and ``fedsynth demo`` do."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import math
import os
import platform
import secrets
import shutil
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import tomli_w

import fedsynth
from fedsynth.cliques import Workload, all_marginals, random_workload
from fedsynth.data.draft import draft_schema
from fedsynth.data.partition import SynthFS, parse_partition, split, synthfs
from fedsynth.data.public import rand_hie, rand_hie_schema
from fedsynth.data.source import Persons, open_source, read_frame, read_table, write_frame
from fedsynth.errors import FedsynthError, InvalidParameter, Unsupported
from fedsynth.federation.federation import Federation, Progress, silent
from fedsynth.federation.policy_file import trust_named
from fedsynth.federation.simulate import federate, secret_file
from fedsynth.federation.trust import Trust
from fedsynth.files import load_toml, parse_toml, read_text, write_private
from fedsynth.methods import Method, find_method
from fedsynth.methods.registry import read_options
from fedsynth.models.synthesizer import Synthesizer
from fedsynth.privacy.cost import Budget, Unit
from fedsynth.privacy.ledger import Ledger
from fedsynth.privacy.statement import Statement
from fedsynth.rows import Table, concatenate
from fedsynth.schema import Schema

DEMO_DATA = "demo:rand-hie"
ROWS_KEY = "rows.key"
"""File of a run directory with the key of the digest of its rows: whoever has it can confirm a guess at a row."""


@dataclass(frozen=True)
class Job:
    """Everything that determines a simulated run; ``run.toml`` holds exactly this.

    ``data`` is a file, or ``demo:rand-hie`` for the table that comes with the demo extra. ``seed`` fixes the
    partition, the sampling and the noise; without one the noise comes from the operating system and a run
    cannot be repeated bit for bit. ``epsilon = inf`` releases everything without noise: NOT PRIVATE. Protected is a
    person with at most ``rows_per_person`` rows at each of ``sites_per_person`` sites; where a column names the
    ``person``, no more than ``rows_per_person`` rows of each are dealt out at all. ``holdout`` is the share of rows
    that no site gets, kept for judging. ``options`` are fields of the method, ``trust_options`` of the trust.
    """

    method: str
    epsilon: float
    delta: float
    data: str = ""
    schema: str = ""
    sites: int = 10
    partition: str = "iid"
    trust: str = "trusted"
    seed: int | None = None
    rows: int | None = None
    workload: str = ""
    public_sizes: bool = False
    rows_per_person: int = 1
    sites_per_person: int = 1
    person: str = ""
    holdout: float = 0.0
    target: str = ""
    format: str = "csv"
    options: Mapping[str, Any] = field(default_factory=dict)
    trust_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def budget(self) -> Budget:
        """What all releases about one person may cost together."""
        return budget_of(self.epsilon, self.delta)

    @property
    def unit(self) -> Unit:
        """Who is protected."""
        return Unit(self.rows_per_person, self.sites_per_person)

    def to_toml(self) -> str:
        """Return the job as TOML; what is unset is left out."""
        fields = {name: value for name, value in asdict(self).items() if value is not None and value not in ("", {})}
        return tomli_w.dumps(fields)

    @classmethod
    def from_toml(cls, text: str) -> Job:
        """Return the job that a ``run.toml`` describes; the ``made`` section is a record, not an input."""
        fields = parse_toml(text, "the run file")
        fields.pop("made", None)
        known = {one.name for one in dataclasses.fields(cls)}
        if unknown := sorted(set(fields) - known):
            raise FedsynthError(f"unknown entries {unknown} in the run file; known are {sorted(known)}")
        try:
            return msgspec.convert(fields, cls)
        except msgspec.ValidationError as error:
            raise FedsynthError(f"the run file does not describe a run: {error}") from error

    @classmethod
    def load(cls, path: Path) -> Job:
        """Return the job of a ``run.toml``; raises :class:`FedsynthError` for a file that is none."""
        return cls.from_toml(read_text(path))


@dataclass(frozen=True, eq=False)
class Split:
    """What a job's data became: a schema, one table per site, and the rows that no site has.

    ``digest`` is that of all rows, before they were cut; ``left_out`` counts those that did not fit the schema.
    """

    schema: Schema
    sites: tuple[Table, ...]
    holdout: Table | None
    digest: str
    left_out: int = 0


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a run produced, and the rows to judge it by, which only a simulation has."""

    synthesizer: Synthesizer
    synthetic: pd.DataFrame
    ledger: Ledger
    statement: Statement
    rows: Split
    lost: tuple[str, ...]


def run_job(job: Job, out: Path, *, force: bool = False, progress: Progress = silent) -> Outcome:
    """Run the job and write its run directory, whole or not at all.

    Raises :class:`FedsynthError` if ``out`` exists and ``force`` is not given, and whatever the run itself
    raises; then nothing is left behind.
    """
    if out.exists() and not force:
        raise FedsynthError(f"{out} exists; choose another --out, or pass --force to replace it")
    if out.exists() and not (out / "run.toml").is_file():
        raise FedsynthError(
            f"{out} exists and is no run directory, so --force will not replace it; choose another --out"
        )
    if job.target and not job.holdout:
        raise Unsupported("a target is judged on rows that no site has; add --holdout 0.1")
    declared = find_method(job.method)
    build_method(job)  # so that a slip of the pen is said before rows are read
    trust = find_trust(job.trust, job.trust_options)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    split_seed = secrets.randbits(63) if job.seed is None else job.seed
    try:
        rows = load_rows(job, split_seed)
        method = _with_workload(build_method(job, rows.schema), job, rows.schema)
        federation = federate(
            rows.sites,
            rows.schema,
            job.budget,
            trust=trust,
            unit=job.unit,
            seed=job.seed,
            public_sizes=job.public_sizes,
            exact=not declared.private,
            queries=declared.queries,
            transcript=partial / "transcript",
            progress=progress,
        )
        synthesizer = method.fit(federation)
        # With it anybody could remove the noise, and a run that is complete does not need it any more.
        secret_file(partial / "transcript").unlink(missing_ok=True)
        synthetic = synthesizer.sample(job.rows, federation.rng)
        _write(partial, job, split_seed, rows, synthesizer, synthetic, federation)
        _replace(partial, out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    lost = tuple(sorted(set(federation.lost)))
    return Outcome(synthesizer, synthetic, federation.ledger, federation.statement, rows, lost)


def load_rows(job: Job, split_seed: int) -> Split:
    """Read the job's table, keep the hold-out back, and split the rest over the sites; the seed fixes both cuts."""
    rng = np.random.default_rng(split_seed)
    if job.partition.startswith("synthfs:"):
        return _generated_rows(job, rng)
    if not job.data:
        raise Unsupported("no table given; pass --data FILE.csv, FILE.parquet or postgresql://...?table=NAME")
    if job.data == DEMO_DATA:
        if job.person:
            raise Unsupported("rows of the demo's table name no person; leave --person out")
        schema = rand_hie_schema()
        table = schema.encode(rand_hie())
    else:
        source = open_source(job.data)
        schema = Schema.load(Path(job.schema)) if job.schema else draft_schema(read_frame(source)).schema
        table = read_table(source, schema, persons=_persons(job, split_seed))
    if job.target:
        schema.index(job.target)
    digest, left_out = table.digest, table.left_out
    table, holdout = _hold_out(table, job.holdout, rng)
    how = parse_partition(job.partition, schema, job.target)
    return Split(schema, tuple(split(table, job.sites, how, rng)), holdout, digest, left_out)


def _persons(job: Job, split_seed: int) -> Persons | None:
    """Return the limit on a person's rows; it holds over all sites together, and so for any number of them.

    A person with k_i rows at site i, at most k in all, moves each site's answer by k_i / k of what its noise is made
    for: the costs of the sites add up to at most one site's, whether they grow with (k_i / k)^2 or with k_i / k.
    """
    if not job.person:
        return None
    key = hashlib.sha256(f"persons {split_seed}".encode()).digest()
    return Persons(job.person, job.rows_per_person, key)


def _generated_rows(job: Job, rng: np.random.Generator) -> Split:
    how = parse_partition(job.partition, None)
    assert isinstance(how, SynthFS)
    if job.data or job.schema or job.person:
        raise Unsupported("synthfs generates its own rows; leave --data, --schema and --person out, or choose another")
    schema, tables = synthfs(job.sites, how.beta, rng)
    digest = concatenate(tables).digest
    parts = [_hold_out(table, job.holdout, rng) for table in tables]
    held = [rest for _, rest in parts if rest is not None]
    return Split(schema, tuple(kept for kept, _ in parts), concatenate(held) if held else None, digest)


def rows_of_run(folder: Path) -> tuple[Job, Split]:
    """Return a finished run's job and the very rows that its sites had, read and cut again.

    Raises :class:`FedsynthError` if the folder is no run, or if its data file is gone or no longer the same.
    """
    file = folder / "run.toml"
    if not file.is_file():
        raise FedsynthError(f"{folder} holds no run.toml; give the directory that `fedsynth simulate` wrote")
    job = Job.load(file)
    made = load_toml(file).get("made", {})
    if "split_seed" not in made:
        raise FedsynthError(f"{file} does not say how the rows were cut (split_seed); run the job again")
    if job.data and job.data != DEMO_DATA:
        source = open_source(job.data)
        if isinstance(source, Path) and not source.is_file():
            raise FedsynthError(f"the run's data file {source} is gone; put it back: a report compares with its rows")
        job = dataclasses.replace(job, schema=str(folder / "schema.toml"))
    rows = load_rows(job, made["split_seed"])
    try:
        key = bytes.fromhex((folder / ROWS_KEY).read_text())
    except (OSError, ValueError) as error:
        raise FedsynthError(
            f"{folder / ROWS_KEY} is missing or damaged, so that nobody can tell whether {job.data} still holds the "
            "rows of the run; put it back, or run the job again"
        ) from error
    if not hmac.compare_digest(_keyed(key, rows), str(made.get("rows_digest"))):
        raise FedsynthError(f"{job.data} no longer holds the rows that the run read; put those back, or run it again")
    return job, rows


def _hold_out(table: Table, share: float, rng: np.random.Generator) -> tuple[Table, Table | None]:
    if not 0 <= share < 1:
        raise Unsupported(f"holdout must lie in [0, 1), not {share}; 0.1 keeps a tenth of the rows back")
    if share == 0:
        return table, None
    held = rng.permutation(len(table)) < round(share * len(table))
    return table.take(~held), table.take(held)


def budget_of(epsilon: float, delta: float) -> Budget:
    """Return the budget of these numbers; an infinite epsilon is no limit and no noise, whatever delta is."""
    return Budget.none() if math.isinf(epsilon) and epsilon > 0 else Budget(epsilon, delta)


def find_trust(name: str, numbers: Mapping[str, Any] | None = None) -> Trust:
    """Return the trust of that name with its numbers set, or say which there are."""
    return trust_named(name, numbers or {})


def build_method(job: Job, schema: Schema | None = None) -> Method:
    """Return the job's method with its options set; without a schema, those that name a column are left as they were.

    Raises :class:`Unsupported` for a method or an option that is not there, and :class:`InvalidParameter` for a value
    that the option cannot have.
    """
    kind: type[Method] = find_method(job.method).kind
    return kind(**read_options(job.method, kind, job.options, schema))


def parse_workload(text: str, columns: int) -> Workload:
    """Return the workload that ``ORDER``, ``ORDER:COUNT`` or ``ORDER:COUNT:SEED`` stands for."""
    try:
        order, count, seed = ([int(part) for part in text.split(":")] + [0, 0])[:3]
        if order < 1 or count < 0 or text.count(":") > 2:
            raise ValueError
    except ValueError as error:
        raise Unsupported(f"workload {text!r} is not ORDER[:COUNT[:SEED]]; 3:64 draws 64 3-way marginals") from error
    order = min(order, columns)
    return random_workload(columns, order, count, seed) if count else all_marginals(columns, order)


def parse_option(text: str) -> tuple[str, Any]:
    """Return the name and value of ``name=value``: a number, true or false, text in quotes (TOML), or a bare word."""
    name, mark, value = text.partition("=")
    if not mark or not name.strip() or not value.strip():
        raise InvalidParameter(f"option {text!r} is not NAME=VALUE; for example rounds=5")
    try:
        found = tomllib.loads(f"value = {value}")
    except ValueError:
        return name.strip(), value.strip()
    plain = len(found) == 1 and isinstance(found["value"], str | int | float)
    return name.strip(), found["value"] if plain else value.strip()


def _with_workload(method: Method, job: Job, schema: Schema) -> Method:
    if not job.workload:
        return method
    if not any(one.name == "workload" for one in dataclasses.fields(method)):  # type: ignore[arg-type]
        raise Unsupported(f"{job.method} measures a fixed set of marginals; leave --workload out")
    return dataclasses.replace(method, workload=parse_workload(job.workload, len(schema.sizes)))  # type: ignore[type-var]


def _write(
    folder: Path,
    job: Job,
    split_seed: int,
    rows: Split,
    synthesizer: Synthesizer,
    synthetic: pd.DataFrame,
    federation: Federation,
) -> None:
    write_frame(synthetic, folder / f"synthetic.{job.format}")
    synthesizer.save(folder / "model.fedsynth")
    rows.schema.save(folder / "schema.toml")
    account = {**federation.ledger.to_json(), "statement": federation.statement.to_json()}
    (folder / "ledger.json").write_text(json.dumps(account, indent=1))
    # Without a key, whoever knows all rows but one could find that one by trying; a seeded run hides nothing anyway.
    key = secrets.token_bytes(32) if job.seed is None else hashlib.sha256(f"rows of seed {job.seed}".encode()).digest()
    write_private(folder / ROWS_KEY, key.hex())
    made: dict[str, Any] = {
        "fedsynth": fedsynth.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "pandas": pd.__version__,
        "schema_digest": rows.schema.digest,
        "split_seed": split_seed,  # of hold-out and partition only, never of the noise
        "rows_digest": _keyed(key, rows),
    }
    if roster := getattr(federation.trust, "roster", None):  # on whose size the noise depends
        made["identities"] = {name: key.hex() for name, key in roster.items()}
    (folder / "run.toml").write_text(job.to_toml() + "\n" + tomli_w.dumps({"made": made}))


def _keyed(key: bytes, rows: Split) -> str:
    return hmac.digest(key, rows.digest.encode(), "sha256").hex()


def _replace(partial: Path, out: Path) -> None:
    """Move the finished directory into place; an old one goes only after the new one is complete."""
    os.chmod(partial, 0o755)
    if out.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{out.name}.old.", dir=out.parent))
        os.replace(out, old / "run")
        os.replace(partial, out)
        shutil.rmtree(old)
    else:
        os.replace(partial, out)
