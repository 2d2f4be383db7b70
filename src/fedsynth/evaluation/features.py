"""Tables as matrices of numbers, for classifiers and distances; what is fitted is fitted on real rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsynth.rows import Table

Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]


def is_numeric(table: Table, column: int) -> bool:
    """Say whether a column holds numbers or times."""
    return column in table.numbers


def ordinal(table: Table, columns: list[int] | None = None) -> Matrix:
    """Return one feature per column, shape ``(rows, columns)``: the number itself, or the code of a category.

    For trees: a missing number becomes one below the column's lowest bin edge.
    """
    chosen = range(len(table.codes)) if columns is None else columns
    parts = []
    for column in chosen:
        if is_numeric(table, column):
            edges = table.schema.columns[column].bin_edges  # type: ignore[union-attr]
            parts.append(np.nan_to_num(table.numbers[column], nan=edges[0] - 1.0))
        else:
            parts.append(table.codes[column].astype(np.float64))
    return np.stack(parts, axis=1)


@dataclass(frozen=True, eq=False)
class MixedSpace:
    """A Euclidean space for rows of mixed columns in which every column can differ by at most about one.

    A number is scaled by the range of the real rows, a category is one-hot over ``sqrt(2)``, so that squared
    distance adds a squared share of the range per number and one per differing category (a squared Gower
    distance without its weights). A missing number equals a missing one and differs from any other by one and a little.
    """

    columns: tuple[int, ...]
    low: dict[int, float]
    width: dict[int, float]

    @classmethod
    def of(cls, real: Table, columns: tuple[int, ...] | None = None) -> MixedSpace:
        """Return the space that the real rows span; ``columns`` restricts it."""
        chosen = tuple(range(len(real.codes))) if columns is None else tuple(columns)
        low, width = {}, {}
        for column in chosen:
            if is_numeric(real, column):
                values = real.numbers[column]
                known = values[~np.isnan(values)]
                low[column] = float(known.min()) if len(known) else 0.0
                width[column] = (float(known.max()) - low[column] or 1.0) if len(known) else 1.0
        return cls(chosen, low, width)

    def coordinates(self, table: Table) -> NDArray[np.float32]:
        """Return the rows' coordinates, shape ``(rows, dimensions)``, single precision."""
        parts: list[NDArray[np.float32]] = []
        half = np.float32(np.sqrt(0.5))
        for column in self.columns:
            if column in self.low:
                scaled = (table.numbers[column] - self.low[column]) / self.width[column]
                gone = np.isnan(scaled)
                parts.append(np.where(gone, 0.5, scaled).astype(np.float32)[:, None])
                if table.schema.columns[column].missing:
                    parts.append(gone.astype(np.float32)[:, None])
            else:
                levels = np.arange(table.schema.sizes[column])
                parts.append((table.codes[column][:, None] == levels) * half)
        return np.concatenate(parts, axis=1).astype(np.float32, copy=False)
