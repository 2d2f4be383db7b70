"""What a method returns: something that samples rows under the schema, and survives on disk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd

from fedsynth.archive import pack, unpack
from fedsynth.errors import FedsynthError, InvalidParameter
from fedsynth.models.mrf import MarkovRandomField
from fedsynth.schema import Schema
from fedsynth.table import Table

FORMAT = 1


class Synthesizer(Protocol):
    """A fitted generator of rows."""

    @property
    def schema(self) -> Schema:
        """The public schema of the rows."""

    def sample(self, rows: int | None = None, rng: np.random.Generator | int | None = None) -> pd.DataFrame:
        """Return ``rows`` synthetic rows as a data frame."""

    def save(self, path: Path | str) -> None:
        """Write the generator to one file."""


@dataclass(frozen=True, eq=False)
class GraphicalSynthesizer:
    """Rows from a Markov random field. ``info`` holds JSON values about how it was fitted."""

    schema: Schema
    model: MarkovRandomField
    info: Mapping[str, Any] = field(default_factory=dict)

    def sample(self, rows: int | None = None, rng: np.random.Generator | int | None = None) -> pd.DataFrame:
        """Return ``rows`` synthetic rows (by default as many as the model's estimate of the total).

        ``rng`` is a generator, a seed, or ``None`` for fresh entropy. Sampling costs no privacy.
        """
        generator = np.random.default_rng(rng)
        return self.schema.decode(self.sample_table(rows, generator), generator)

    def sample_table(self, rows: int | None = None, rng: np.random.Generator | int | None = None) -> Table:
        """Return synthetic rows still encoded: what metrics on codes need."""
        count = max(1, round(self.model.total)) if rows is None else rows
        if count < 1:
            raise InvalidParameter(f"rows must be at least 1, not {rows}")
        return Table(self.schema, tuple(self.model.sample(count, np.random.default_rng(rng))))

    def log_likelihood(self, table: Table) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return each row's log probability in nats, shape ``(rows,)``."""
        return self.model.log_likelihood(table.codes)

    def save(self, path: Path | str) -> None:
        """Write one zip of JSON and arrays, atomically; :func:`load` reads it."""
        meta, arrays = self.model.to_arrays()
        head = {
            "format": FORMAT,
            "kind": "graphical",
            "schema": self.schema.to_toml(),
            "model": meta,
            "info": dict(self.info),
        }
        target = Path(path)
        partial = target.with_name(target.name + ".partial")
        partial.write_bytes(pack(head, arrays))
        os.replace(partial, target)


def load(path: Path | str) -> GraphicalSynthesizer:
    """Return the generator that ``save`` wrote; executes nothing from the file."""
    head, arrays = unpack(Path(path).read_bytes())
    if head.get("format") != FORMAT or head.get("kind") != "graphical":
        raise FedsynthError(
            f"{path} holds format {head.get('format')} kind {head.get('kind')!r}, this version reads format {FORMAT} "
            "kind 'graphical'; install the fedsynth that wrote it"
        )
    model = MarkovRandomField.from_arrays(head["model"], arrays)
    return GraphicalSynthesizer(Schema.from_toml(head["schema"]), model, head["info"])
