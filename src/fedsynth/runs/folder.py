"""A run's directory: the only module that writes it (completely or not at all) and reads it."""

from __future__ import annotations

import hmac
import json
import logging
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w
from msgspec.structs import replace

import fedsynth
from fedsynth.data.sources.files import is_csv
from fedsynth.errors import FedsynthError, SchemaError, said
from fedsynth.federation.trust import Trust
from fedsynth.files import folder_made_whole, load_toml, private_folder, write_private, write_whole
from fedsynth.keys import SecretBytes
from fedsynth.privacy.ledger import LedgerFile
from fedsynth.runs.job import DEMO_DATA, Job
from fedsynth.schema import Schema

if TYPE_CHECKING:
    import pandas as pd

    from fedsynth.federation.federation import Federation
    from fedsynth.files import Records
    from fedsynth.models.card import ModelCard
    from fedsynth.models.synthesizer import Synthesizer
    from fedsynth.rows import Table
    from fedsynth.runs.split import Split

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunFolder:
    """The directory that a run or an evaluation wrote, with a path and a reader for each of its files.

    ``path`` is the directory. A run writes ``run.toml`` (the job and, under ``[made]``, versions and digests),
    ``schema.toml``, the rows in ``synthetic.csv`` (or ``.parquet``), the model's card in ``about.md``, the fitted model
    in ``model.fedsynth``, the server's ledger with the privacy statement in ``ledger.json``, and in ``transcript``
    every question with the answers (of exact counts for a trusted server only that the site answered, and the released
    sum; of masked answers of secure sums, digests). With ``spreadsheet_safe`` in the job,
    ``synthetic-spreadsheet.csv`` is a copy of the rows to look at in a spreadsheet.

    What must not be published lies in ``private``, which only its owner can read: of a simulated run ``rows.key``, the
    key of the digest of its rows (anyone who has it can confirm a guess at a row) and, where sizes are public, of the
    permutation that dealt them; and what an evaluation writes, ``scores.json``, ``scores.csv`` and ``report.html``. A
    directory may hold these alone. ``publication`` has what a pack holds beside the run's own files
    (:mod:`fedsynth.publish`): ``details.toml``, and the sites' extracts and signatures.
    """

    path: Path

    @property
    def run_file(self) -> Path:
        """``run.toml``: the job, with versions and digests."""
        return self.path / "run.toml"

    @property
    def schema_file(self) -> Path:
        """``schema.toml``: the public schema."""
        return self.path / "schema.toml"

    @property
    def ledger_file(self) -> Path:
        """``ledger.json``: every released answer with its noise and cost, and the privacy statement."""
        return self.path / "ledger.json"

    @property
    def model_file(self) -> Path:
        """``model.fedsynth``: the fitted synthesizer."""
        return self.path / "model.fedsynth"

    @property
    def about_file(self) -> Path:
        """``about.md``: what is lost, proved and hidden, from releases and public facts alone, to publish."""
        return self.path / "about.md"

    @property
    def transcript(self) -> Path:
        """``transcript``: every question, and every answer except a site's exact counts."""
        return self.path / "transcript"

    @property
    def private(self) -> Path:
        """``private``: the folder of all files that must not be published."""
        return self.path / "private"

    @property
    def rows_key(self) -> Path:
        """``private/rows.key``: the key of a simulated run's rows."""
        return self.private / "rows.key"

    @property
    def scores_file(self) -> Path:
        """``private/scores.json`` of an evaluation."""
        return self.private / "scores.json"

    @property
    def scores_table(self) -> Path:
        """``private/scores.csv`` of an evaluation."""
        return self.private / "scores.csv"

    @property
    def page(self) -> Path:
        """``private/report.html`` of an evaluation."""
        return self.private / "report.html"

    @property
    def details_file(self) -> Path:
        """``publication/details.toml``: title, licence and date of the pack made of this run."""
        return self.path / "publication" / "details.toml"

    @property
    def extracts(self) -> Path:
        """``publication/extracts``: the sites' signed account extracts, one file for each site."""
        return self.path / "publication" / "extracts"

    @property
    def signatures(self) -> Path:
        """``publication/signatures``: signatures of the pack made of this run, one file for each party."""
        return self.path / "publication" / "signatures"

    @property
    def table_file(self) -> Path:
        """The synthetic rows; raises :class:`~fedsynth.errors.FedsynthError` if ``run.toml`` is missing."""
        return self.path / f"synthetic.{self.job.format}"

    @property
    def is_run(self) -> bool:
        """Whether a run wrote this directory, and not an evaluation alone."""
        return self.run_file.is_file()

    # -----------------------------------------------------------------------------------------------------------------
    # Reading

    def require(self, *files: Path) -> None:
        """Raise :class:`~fedsynth.errors.FedsynthError`, naming the first that is missing, unless these files exist."""
        for file in files:
            if not file.is_file():
                raise FedsynthError(f"{self.path} holds no {file.name}; give the directory that a complete run wrote")

    @cached_property
    def job(self) -> Job:
        """The job in ``run.toml``; raises :class:`~fedsynth.errors.FedsynthError` if there is none."""
        self.require(self.run_file)
        return Job.load(self.run_file)

    @cached_property
    def made(self) -> Mapping[str, Any]:
        """The section ``[made]`` of ``run.toml``: versions, digests, sites that missed a round; empty if absent."""
        made = load_toml(self.run_file).get("made")
        return made if isinstance(made, dict) else {}

    @cached_property
    def schema(self) -> Schema:
        """The public schema of the run; raises :class:`~fedsynth.errors.SchemaError` for an invalid file."""
        return Schema.load(self.schema_file)

    @cached_property
    def ledger(self) -> LedgerFile:
        """The server's ledger; raises :class:`~fedsynth.errors.FedsynthError` for one without a statement, or none."""
        ledger = LedgerFile.read(self.ledger_file)
        if ledger.statement is None or not {"private", "seeded", "simulated"} <= set(ledger.statement):
            raise FedsynthError(f"{self.ledger_file} has no statement of the guarantee; run the job again")
        if "split_seed" in self.made and "split" not in self.made:
            _log.warning(
                "%s was written by an earlier version, whose split of the rows, published as split_seed, depends on "
                "all rows: its stated guarantee does not hold for readers of that seed. Run the job again before you "
                "publish anything",
                self.path,
            )
        return ledger

    @property
    def trust(self) -> Trust:
        """The run's trust model, with the sites' public identity keys where it needs them.

        Raises :class:`~fedsynth.errors.FedsynthError` if ``run.toml`` lacks keys on which the noise depends.
        """
        trust = self.job.build_trust()
        odd = f"{self.run_file} names identity keys in another form ({{error}}); restore the file as the run wrote it"
        with said(odd, ValueError, TypeError, AttributeError):
            roster = {name: bytes.fromhex(key) for name, key in self.made.get("identities", {}).items()}
        if self.job.deployment is not None and self.job.deployment.peers:
            return trust
        if trust.sums and trust.sums.turns > 1 and not roster:
            raise FedsynthError(
                f"{self.run_file} names no identity keys, on which the noise of the trust {trust.name!r} depends; "
                "restore the file as the run wrote it"
            )
        return trust.with_roster(roster)

    def card(self) -> ModelCard | None:
        """Return the card of the run's model: what is lost, proved and hidden; ``None`` if there is no model here."""
        return self.synthesizer().card if self.model_file.is_file() else None

    def rows(self) -> Split:
        """Read the data of a simulated run again, and return it split exactly as its sites had it.

        Raises :class:`~fedsynth.errors.FedsynthError` if the data file is missing or has changed, if ``rows.key`` is
        missing, or if real sites held the rows.
        """
        from fedsynth.data.sources import open_source
        from fedsynth.runs.split import load_rows

        job = self.job
        if job.deployment is not None:
            raise FedsynthError(
                f"{self.path} is a run of real sites, whose rows are not here; only simulations can be evaluated"
            )
        if not {"split", "split_seed"} <= set(self.made):
            raise FedsynthError(
                f"{self.run_file} does not say how the rows were split (split, split_seed), as that of an earlier "
                "version; run the job again"
            )
        for place in filter(None, [job.data, *job.site.values()]):
            source = None if place == DEMO_DATA else open_source(place)
            if source is not None and source.file is not None and not source.file.is_file():
                raise FedsynthError(
                    f"the run's data file {source.file} is gone; restore it, since a report compares with its rows"
                )
        read = job.data or ", ".join(job.site.values())
        try:
            key = SecretBytes.fromhex(self.rows_key.read_text(encoding="ascii"))
        except (OSError, ValueError) as error:
            raise FedsynthError(
                f"{self.rows_key} is missing or damaged, so it cannot be checked whether {read} still holds the "
                "rows of the run; restore it, or run the job again"
            ) from error
        found = load_rows(job, self.made["split_seed"], key)
        if not hmac.compare_digest(_keyed(key, found), str(self.made.get("rows_digest"))):
            raise FedsynthError(
                f"{read} no longer holds the rows that the run read; restore those rows, or run the job again"
            )
        return found

    def synthetic(self) -> Table:
        """Return the published synthetic rows, encoded under ``schema.plain()``.

        Raises :class:`~fedsynth.errors.SchemaError` if a row does not fit it, as after a change by hand.
        """
        return read_whole(self.table_file, self.schema.plain(), self.schema, written_kind(self.table_file))

    def synthesizer(self) -> Synthesizer:
        """Load the fitted synthesizer from ``model.fedsynth``, to draw more rows or to ask for likelihoods."""
        from fedsynth.models.synthesizer import load

        return load(self.model_file)

    # -----------------------------------------------------------------------------------------------------------------
    # Writing

    def write(
        self,
        job: Job,
        federation: Federation,
        synthesizer: Synthesizer,
        synthetic: pd.DataFrame,
        target: Path,
        made: Mapping[str, Any],
    ) -> None:
        """Write the files of a complete run except its transcript.

        ``synthetic`` holds the rows to publish. ``target`` is the path that this directory will have in the end:
        relative paths in ``run.toml`` start there. ``made`` are further entries of its section ``[made]``.
        """
        from fedsynth.data.read import write_frame
        from fedsynth.data.spreadsheet import spreadsheet_safe
        from fedsynth.models.card import card_markdown

        write_frame(synthetic, table := self.path / f"synthetic.{job.format}")
        open_to = [column.name for column in federation.schema.columns if getattr(column, "missing", False)]
        missing = {name: float(synthetic[name].isna().mean()) for name in open_to}
        write_whole(self.about_file, card_markdown(synthesizer.card, len(synthetic), table.name, missing))
        if job.spreadsheet_safe:
            write_frame(spreadsheet_safe(synthetic), self.path / "synthetic-spreadsheet.csv")
        synthesizer.save(self.model_file)
        federation.schema.save(self.schema_file)
        stated = synthesizer.statement or federation.statement
        account = {**federation.ledger.to_json(), "statement": stated.to_json()}
        write_whole(self.ledger_file, json.dumps(account, indent=1))
        by = {
            "fedsynth": fedsynth.__version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "pandas")},
            "schema_digest": federation.schema.digest,
            "lost_sites": sorted(set(federation.lost)),
            **made,
        }
        said = job.relative_to(target)
        if job.data or job.deployment is not None:  # generated rows have their own schema
            said = replace(said, schema=self.schema_file.name)
        write_whole(self.run_file, said.to_file() + "\n" + tomli_w.dumps({"made": by}))

    def write_rows_key(self, key: bytes, rows: Split) -> str:
        """Write ``private/rows.key``, for its owner only; return the digest of the rows under it (hex, HMAC-SHA-256).

        ``run.toml`` records this digest, by which :meth:`rows` later finds out whether the data have changed. ``key``
        are 32 bytes. The digest covers all ``rows``, as before the split.
        """
        private_folder(self.private)
        write_private(self.rows_key, key.hex())
        return _keyed(key, rows)


@contextmanager
def new_folder(out: Path, *, force: bool = False, mode: int = 0o755) -> Iterator[RunFolder]:
    """A context manager that yields an empty directory, to be filled with the files of a run.

    It becomes ``out``, with the permissions ``mode``, when the block ends, and is deleted if the block raises an error.
    An existing ``out`` is replaced only as :func:`refuse_existing` allows, and only once the new one is complete.
    """
    refuse_existing(out, force=force)
    with folder_made_whole(out, mode) as partial:
        yield RunFolder(partial)


def refuse_existing(out: Path, *, force: bool) -> None:
    """Raise :class:`~fedsynth.errors.FedsynthError` if ``out`` exists and a run must not replace it.

    A directory that a run wrote may be replaced with ``force``; anything else that exists, never.
    """
    if out.exists() and not force:
        raise FedsynthError(f"{out} exists; choose another --out, or pass --force to replace it")
    if out.exists() and not RunFolder(out).is_run:
        raise FedsynthError(
            f"{out} exists and is not a run directory, so --force will not replace it; choose another --out"
        )


def read_whole(file: Path, schema: Schema, agreed: Schema, records: Records | None = None, person: str = "") -> Table:
    """Return the table in a file if every row fits the schema; scores of only a part of the rows would mislead.

    ``records`` is the kind of a CSV file. If ``person`` names a column, which need not be in the schema, the table has
    the persons of its rows. The log says which values are changed, and which columns of the file are ignored because
    the ``agreed`` schema, whose plain form ``schema`` is, does not name them. Raises
    :class:`~fedsynth.errors.SchemaError` if some rows do not fit (the message says how many), and if a column is
    missing or unreadable.
    """
    from fedsynth.data.read import PersonLimit, read_table

    persons = PersonLimit(person) if person else None
    unused = [column.name for column in agreed.columns]
    table = read_table(file, schema, records=records, persons=persons, unused=unused)
    if table.left_out:
        raise SchemaError(
            f"{table.left_out} of the {table.rows_read} rows of {file.name} do not fit the schema, and scores without "
            f"them would mislead; `fedsynth schema check {file} --schema FILE` lists them and says how to fix each"
        )
    return table


def written_kind(file: Path) -> Records | None:
    """Return the kind of a CSV file of synthetic rows, whose cells may hold newlines; ``None`` for another file."""
    return "rfc4180" if is_csv(file) else None


def _keyed(key: bytes, rows: Split) -> str:
    return hmac.digest(key, rows.digest.encode(), "sha256").hex()
