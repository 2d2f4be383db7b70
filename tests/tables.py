"""What tests of several folders ask of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedsynth.errors import DataWarning
from fedsynth.rows import Rows, Table
from fedsynth.schema.bins import Axis


def warned_of_empty(tables: Sequence[Table] | Mapping[str, Table]) -> AbstractContextManager[Any]:
    """Return a context in which ``federate`` must warn of sites without rows if there are any, else of nothing."""
    held = tables.values() if isinstance(tables, Mapping) else tables
    return nullcontext() if all(map(len, held)) else pytest.warns(DataWarning, match="no rows")


def contingencies(rows: Rows, cliques: Sequence[Sequence[int]]) -> list[NDArray[np.int64]]:
    """Return the contingency tables of columns, by the schema's own bins."""
    axes = [Axis(column) for column in range(len(rows.schema.columns))]
    return rows.tables(axes, [tuple(clique) for clique in cliques])


def contingency(rows: Rows, clique: Sequence[int]) -> NDArray[np.int64]:
    """Return the contingency table of some columns, by the schema's own bins."""
    (table,) = contingencies(rows, [clique])
    return table
