"""What tests of several folders ask of a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedsynth.rows import Rows
from fedsynth.schema.bins import Axis


def contingencies(rows: Rows, cliques: Sequence[Sequence[int]]) -> list[NDArray[np.int64]]:
    """Return the contingency tables of columns, by the schema's own bins."""
    axes = [Axis(column) for column in range(len(rows.schema.columns))]
    return rows.tables(axes, [tuple(clique) for clique in cliques])


def contingency(rows: Rows, clique: Sequence[int]) -> NDArray[np.int64]:
    """Return the contingency table of some columns, by the schema's own bins."""
    (table,) = contingencies(rows, [clique])
    return table
