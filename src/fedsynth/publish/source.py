"""What a pack is made of: the folder of a run, what a person said of it, its proof, and the extracts of its sites."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from fedsynth.data.read import read_frame, read_typed, write_frame
from fedsynth.data.spreadsheet import spreadsheet_safe
from fedsynth.errors import FedsynthError
from fedsynth.federation.agreement import Agreement
from fedsynth.federation.transport import records
from fedsynth.models.card import ModelCard
from fedsynth.models.synthesizer import Synthesizer
from fedsynth.proof.extract import AccountExtract
from fedsynth.proof.sheet import ProofSheet
from fedsynth.publish.details import PackDetails
from fedsynth.runs.folder import RunFolder
from fedsynth.schema.columns import Column
from fedsynth.schema.forms import Identifier
from fedsynth.statement import Statement

MEDIA_TYPES = {"synthetic.csv": "text/csv", "synthetic.parquet": "application/vnd.apache.parquet"}


@dataclass(frozen=True)
class PackSource:
    """What a pack is made of: a run's folder, what a person said of it, its proof, and the extracts of its sites."""

    run: RunFolder
    details: PackDetails
    sheet: ProofSheet
    extracts: tuple[AccountExtract, ...] = ()

    @cached_property
    def synthesizer(self) -> Synthesizer:
        """The run's fitted model."""
        return self.run.synthesizer()

    @cached_property
    def card(self) -> ModelCard:
        """What the run's releases say about its model."""
        return self.synthesizer.card

    @cached_property
    def statement(self) -> Statement:
        """The run's privacy statement, which the model has as data and the proved ledger as text.

        Raises :class:`FedsynthError` if the two differ.
        """
        stated, in_ledger = self.synthesizer.statement, self.run.ledger.statement
        if stated is None or in_ledger is None or stated.to_json()["sentence"] != in_ledger.get("sentence"):
            raise FedsynthError(
                f"{self.run.model_file} and {self.run.ledger_file} state different guarantees; restore both as the run "
                "wrote them, or run the job again"
            )
        return stated

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The synthetic rows, with the types of the schema."""
        file = self.run.table_file
        if file.suffix == ".parquet":
            return pd.read_parquet(file)
        return read_typed(file, self.run.schema, records="rfc4180")

    @cached_property
    def table(self) -> dict[str, bytes]:
        """The synthetic rows as ``synthetic.csv``, with cells that are safe in spreadsheets, and ``.parquet``.

        The file that the run wrote is taken as it is, unless a text in it would run as a formula.
        """
        file = self.run.table_file
        with tempfile.TemporaryDirectory() as scratch:
            csv, parquet = (Path(scratch) / f"synthetic.{kind}" for kind in ("csv", "parquet"))
            if file.suffix == ".parquet":
                parquet.write_bytes(file.read_bytes())
                write_frame(spreadsheet_safe(self.frame), csv)
            else:
                write_frame(self.frame, parquet)
                cells = read_frame(file, records="rfc4180")
                if len(cells) != len(self.frame):
                    raise FedsynthError(
                        f"{len(cells) - len(self.frame)} rows of {file} do not fit the run's schema; restore the file "
                        "as the run wrote it, or run the job again"
                    )
                safe = spreadsheet_safe(cells)
                if safe.equals(cells):
                    csv.write_bytes(file.read_bytes())
                else:
                    write_frame(safe, csv)
            return {path.name: path.read_bytes() for path in (csv, parquet)}

    @property
    def description(self) -> str:
        """What the table is about, and its guarantee, in a few sentences."""
        return f"{self.details.about.rstrip('.')}. {self.statement.sentence}"

    @property
    def rows(self) -> int:
        """Number of synthetic rows."""
        return len(self.frame)

    @property
    def columns(self) -> tuple[Column | Identifier, ...]:
        """The columns of the synthetic table, in its order."""
        described = {column.name: column for column in self.run.schema.columns}
        return tuple(described[name] for name in self.frame.columns)

    @cached_property
    def agreement(self) -> Agreement | None:
        """What the run was agreed to be, as its questions name it; ``None`` for a run that asked nothing."""
        agreements = (Agreement.read(data) for kind, data in records(self.run.transcript) if kind == "agreement")
        return next(agreements, None)

    @cached_property
    def roster(self) -> dict[str, str]:
        """The public identity key (hex) of each site, where the run's record has them."""
        deployment = self.run.job.deployment
        keys = self.run.made.get("identities", {}) if deployment is None else deployment.peers
        return {name: keys[name] for name in sorted(keys)}

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites that were asked."""
        return tuple(sorted(self.sheet.per_site))

    def digest(self, name: str) -> str:
        """Return the SHA-256 (hex) of a file of :attr:`table`."""
        return hashlib.sha256(self.table[name]).hexdigest()
