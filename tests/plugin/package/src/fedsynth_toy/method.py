"""A toy method: every column by itself, and nothing of how columns hang together."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedsynth.errors import InvalidParameter
from fedsynth.federation.query import Position, Query
from fedsynth.methods import COLUMN, method
from fedsynth.privacy.cost import Sensitivity
from fedsynth.rows import Rows
from fedsynth.schema.bins import Axis, Integers

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.models.synthesizer import Synthesizer
    from fedsynth.schema import Schema


class ColumnCounts(Query, frozen=True):
    """How often each value of ``column`` occurs, shape ``(values,)``."""

    kind: ClassVar[str] = "toy-column"

    column: Position

    def check(self, schema: Schema) -> None:
        """Refuse a column that is not there."""
        if self.column >= len(schema.stored):
            raise InvalidParameter(f"there is no column {self.column} in a schema of {len(schema.stored)}")

    def sensitivity(self, schema: Schema) -> Sensitivity:
        """Add a record: one count moves by 1. Replace it: two do."""
        return Sensitivity(1, 1, 2, math.sqrt(2))

    def cells(self, schema: Schema) -> int:
        """One count for each value."""
        return schema.stored[self.column].size

    def answer(self, rows: Rows) -> Integers:
        """Count the rows."""
        counted: Integers = rows.tables([Axis(self.column)], [(0,)])[0].astype(np.int64)
        return counted


@method("toy", queries=(ColumnCounts,))
@dataclass(frozen=True)
class Toy:
    """Every column by itself, by a query of its own; ``favourite`` names a column that gets ``more`` of the budget."""

    favourite: str = field(default="", metadata=COLUMN)
    more: float = 2.0

    def fit(self, federation: Federation) -> Synthesizer:
        """Spend the federation's budget, and return the generator."""
        from fedsynth.methods.measure import fit_noisy, measurements
        from fedsynth.models.synthesizer import Synthesizer, own_bins

        schema = federation.schema
        parts = [self.more if name == self.favourite else 1.0 for name in schema.names]
        measured = []
        for at, part in enumerate(parts):
            found = federation.sum(ColumnCounts(at), part / sum(parts))
            measured += measurements([(at,)], found.tables, found.stds)
        total = max(1.0, float(np.mean([table.values.sum() for table in measured])))
        model = fit_noisy(schema.sizes, measured, total, 50)
        return Synthesizer(schema, own_bins(schema), model, {"method": "toy", "cliques": []})
