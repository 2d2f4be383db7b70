"""The rows of a simulated run: reads a table, holds a part out, and splits the rest over the sites."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsynth.data.draft import draft_schema
from fedsynth.data.partition import SynthFS, parse_partition, split, synthfs
from fedsynth.data.public import rand_hie, rand_hie_schema
from fedsynth.data.read import PersonLimit, read_fitting, read_frame
from fedsynth.data.sources import open_source
from fedsynth.errors import Unsupported
from fedsynth.rows import Table, concatenate
from fedsynth.runs.job import DEMO_DATA, Job
from fedsynth.schema import Schema


@dataclass(frozen=True, eq=False)
class Split:
    """The data of a simulated run after it was split: one table per site, and the hold-out, which no site has.

    All tables are encoded under ``schema``. ``holdout`` is ``None`` if the job keeps no rows back. ``digest``
    identifies all rows that fit, before the split; ``left_out`` counts those that did not fit the schema.
    """

    schema: Schema
    sites: tuple[Table, ...]
    holdout: Table | None
    digest: str
    left_out: int = 0


def load_rows(job: Job, split_seed: int) -> Split:
    """Read a job's table, keep the job's share of rows back as hold-out, and split the others over its sites.

    ``split_seed`` fixes both draws, and the choice among the rows of one person. The demo's table and generated rows
    (``synthfs``) have a schema of their own; for any other table, one is drafted if the job has none. Raises
    :class:`~fedsynth.errors.Unsupported` for a job without data, a partition that does not fit it, and a hold-out share
    outside [0, 1), and :class:`~fedsynth.errors.SchemaError` for a table that lacks a column of the schema or of the
    job, or has one that cannot be read, and for one of which no row fits; other rows that do not fit are left out, and
    the log says which.
    """
    rng = np.random.default_rng(split_seed)
    if job.partition.startswith("synthfs:"):
        return _generated_rows(job, rng)
    if not job.data:
        raise Unsupported("no table given; pass --data FILE.csv, FILE.parquet or postgresql://...?table=NAME")
    if job.data == DEMO_DATA:
        if job.person:
            raise Unsupported("the demo table has no column of persons; leave --person out")
        schema = rand_hie_schema()
        table = schema.encode(rand_hie())
    else:
        source = open_source(job.data)
        schema = Schema.load(Path(job.schema)) if job.schema else draft_schema(read_frame(source)).schema
        table = read_fitting(source, schema, persons=_persons(job, split_seed))
    if job.target:
        schema.plain().index(job.target)
    digest, left_out = table.digest, table.left_out
    table, holdout = _hold_out(table, job.holdout, rng)
    how = parse_partition(job.partition, schema, job.target)
    return Split(schema, tuple(split(table, job.sites, how, rng)), holdout, digest, left_out)


def _persons(job: Job, split_seed: int) -> PersonLimit | None:
    """Return the limit on a person's rows over all sites together, which bounds the cost for any number of sites.

    A person with k_i rows at site i, at most k in total, moves that site's answer by k_i / k of its sensitivity: the
    costs of the sites add up to at most one site's, whether they grow with (k_i / k)^2 or with k_i / k.
    """
    if not job.person:
        return None
    key = hashlib.sha256(f"persons {split_seed}".encode()).digest()
    return PersonLimit(job.person, job.rows_per_person, key)


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


def _hold_out(table: Table, share: float, rng: np.random.Generator) -> tuple[Table, Table | None]:
    if not 0 <= share < 1:
        raise Unsupported(f"holdout must lie in [0, 1), not {share}; 0.1 keeps a tenth of the rows back")
    if share == 0:
        return table, None
    held = rng.permutation(len(table)) < round(share * len(table))
    return table.take(~held), table.take(held)
