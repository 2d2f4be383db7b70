"""The rows of a simulated run: reads a table, holds a part out, and splits the rest over the sites.

Everything that determines the split is published with the run, except the key of a permutation where sizes are public:
:mod:`fedsynth.data.placement` says why the guarantee holds all the same.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedsynth.data.draft import draft_schema
from fedsynth.data.partition import IID, Partition, Quantity, SynthFS, parse_partition, split, synthfs
from fedsynth.data.placement import dealt, held_out, looks_at_other_rows, placed
from fedsynth.data.read import PersonLimit, read_fitting, read_frame
from fedsynth.data.sources import open_source
from fedsynth.datasets import rand_hie, rand_hie_schema
from fedsynth.encoding import encode
from fedsynth.errors import InvalidParameter, Unsupported
from fedsynth.files import Records
from fedsynth.keys import SecretBytes
from fedsynth.rows import Table, concatenate
from fedsynth.runs.job import DEMO_DATA, Job
from fedsynth.schema import Schema

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Split:
    """The data of a simulated run after it was split: one table per site, and the hold-out, which no site has.

    All tables are encoded under ``schema``. ``digest`` identifies all rows that fit (and their persons, if they are
    known), before the split; ``left_out`` counts those that did not fit the schema. ``looks_at_other_rows`` says
    whether the place of a row depends on other rows, so that the guarantee does not hold for readers who know how the
    rows were split; ``rfc4180`` says whether a file was valid as a whole, which is not protected.
    """

    schema: Schema
    sites: tuple[Table, ...]
    holdout: Table | None
    digest: str
    left_out: int = 0
    looks_at_other_rows: bool = False
    rfc4180: bool = False


def load_rows(job: Job, split_seed: int, key: bytes) -> Split:
    """Read a job's table, keep the job's share of rows back as hold-out, and split the others over its sites.

    ``split_seed``, which may be published, fixes both, and the choice among the rows of one person; with public sizes
    the secret ``key`` (32 bytes) deals the rows. If the job names a column of persons, all rows of a person are held
    out together, and its random numbers are the person's. The demo's table and generated rows (``synthfs``) have a
    schema of their own; for any other table, one is drafted if the job has none. Rows that do not fit are left
    out, and the log says which.

    Raises :class:`~fedsynth.errors.InvalidParameter` for a job without data and a hold-out share outside [0, 1),
    :class:`~fedsynth.errors.Unsupported` for a partition that does not fit the table, and
    :class:`~fedsynth.errors.SchemaError` for a table of which no row fits, or that lacks a column of the schema or of
    the job, or has one that cannot be read, and for a file that is declared ``rfc4180`` and not valid.
    """
    if not 0 <= job.holdout < 1:
        raise InvalidParameter(f"holdout must lie in [0, 1), not {job.holdout}; 0.1 keeps a tenth of the rows back")
    if job.partition.startswith("synthfs:"):
        return _generated_rows(job, np.random.default_rng(split_seed))
    if job.site:
        return _named_sites(job, split_seed)
    if not job.data:
        raise InvalidParameter("no table given; pass --data FILE, postgresql://...?table=NAME, or --site NAME=FILE")
    if job.data == DEMO_DATA and (job.person or job.records):
        raise InvalidParameter(
            "the demo table is no CSV file and has no column of persons; leave --records and --person out"
        )
    table = read_rows(job.data, Path(job.schema) if job.schema else None, job.records, _persons(job, split_seed))
    schema = table.schema
    if job.target:
        schema.plain().index(job.target)
    if table.rows_read < job.sites:  # with those left out, which a public number of rows counts, too
        raise Unsupported(f"{table.rows_read} rows are too few for {job.sites} sites; ask for fewer sites")
    how = parse_partition(job.partition, schema, job.target)
    if isinstance(how, SynthFS):
        raise InvalidParameter("synthfs generates its own rows and cannot split a table; leave out --data")
    sites, holdout = _divided(table, job, how, split_seed, key)
    looks = looks_at_other_rows(how, public_sizes=job.public_sizes)
    whole = job.records == "rfc4180" or (job.data != DEMO_DATA and _whole(job.data))
    return Split(schema, tuple(sites), holdout, _digest(table), table.left_out, looks, whole)


def _named_sites(job: Job, split_seed: int) -> Split:
    """Read the rows of each site from its own place, and hold the job's share of each back."""
    if not job.schema:
        raise InvalidParameter(
            "--site needs --schema, the one that the sites agree on; draft it from one of them: fedsynth schema draft"
        )
    persons = _persons(job, split_seed)
    tables = [read_rows(place, Path(job.schema), persons=persons) for place in job.site.values()]
    if job.public_sizes and job.holdout:
        raise Unsupported("--public-sizes with --site are the sizes of whole tables; leave --holdout out")
    if job.target:
        tables[0].schema.plain().index(job.target)
    sites, holdout = tables, None
    if job.holdout:
        held = [held_out(table, job.holdout, split_seed) for table in tables]
        sites = [table.take(~out) for table, out in zip(tables, held, strict=True)]
        holdout = concatenate([table.take(out) for table, out in zip(tables, held, strict=True)])
    digest = hashlib.sha256(" ".join(map(_digest, tables)).encode()).hexdigest()
    left_out = sum(table.left_out for table in tables)
    return Split(tables[0].schema, tuple(sites), holdout, digest, left_out, False, any(map(_whole, job.site.values())))


def _whole(place: str) -> bool:
    """Return whether a source file declares that its files are valid as a whole."""
    return place.lower().endswith(".toml") and getattr(open_source(place), "records", "") == "rfc4180"


def read_rows(
    data: str, schema: Path | None = None, records: Records | None = None, persons: PersonLimit | None = None
) -> Table:
    """Return the rows of a table that fit its schema; the log says which do not.

    ``data`` is a file, a database's address, or ``demo:rand-hie`` for the demo's table, which has a schema of its own.
    Without a ``schema`` file, a schema is drafted. Raises :class:`~fedsynth.errors.InvalidParameter` for ``records`` of
    the demo's table, and the errors of :func:`~fedsynth.data.read.read_fitting`.
    """
    if data == DEMO_DATA:
        if records:
            raise InvalidParameter("--records is the kind of a CSV file, and the demo table is none; leave it out")
        return encode(rand_hie_schema(), rand_hie())
    source = open_source(data, records=records)
    if schema:
        return read_fitting(source, Schema.load(schema), persons=persons)
    draft = draft_schema(read_frame(source, strict=True))
    if draft.source:
        _log.warning(
            "%s: some of its cells have a form of their own, and are left out or counted as other values: "
            "`fedsynth schema draft` says which, with the entries of a source file that reads them",
            source.name,
        )
    return read_fitting(source, draft.schema, persons=persons)


def _divided(table: Table, job: Job, how: Partition, split_seed: int, key: bytes) -> tuple[list[Table], Table | None]:
    if job.public_sizes and isinstance(how, IID | Quantity):
        secret = SecretBytes(hmac.digest(key, b"permutation of rows", "sha256"))
        place = dealt(table, job.holdout, job.sites, how, split_seed, secret)
        fits, misfits = place[: len(table)], place[len(table) :]
        # A public size counts the rows left out, too, so that it does not tell whether a row fits.
        counts = np.bincount(misfits[misfits >= 0], minlength=job.sites)
        sites = [replace(table.take(fits == site), left_out=int(counts[site])) for site in range(job.sites)]
        return sites, table.take(fits < 0) if job.holdout else None
    held = held_out(table, job.holdout, split_seed)
    kept = table.take(~held)
    if looks_at_other_rows(how, public_sizes=job.public_sizes):
        sites = split(kept, job.sites, how, np.random.default_rng(split_seed))
    else:
        place = placed(kept, job.sites, how, split_seed)
        sites = [kept.take(place == site) for site in range(job.sites)]
    return sites, table.take(held) if job.holdout else None


def _digest(table: Table) -> str:
    """Return the SHA-256 (hex) of all that decides how the rows are split, apart from the job."""
    persons = b"" if table.persons is None else table.persons.tobytes()
    return hashlib.sha256(table.digest.encode() + persons).hexdigest()


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
    if job.data or job.records or job.schema or job.person:
        raise InvalidParameter(
            "synthfs generates its own rows; leave --data, --records, --schema and --person out, or choose another"
        )
    schema, tables = synthfs(job.sites, how.beta, rng)
    parts = []
    for table in tables:
        held = rng.permutation(len(table)) < round(job.holdout * len(table))
        parts.append((table.take(~held), table.take(held)))
    holdout = concatenate([rest for _, rest in parts]) if job.holdout else None
    return Split(schema, tuple(kept for kept, _ in parts), holdout, concatenate(tables).digest)
