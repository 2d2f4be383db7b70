"""Floors and ceilings of benchmarks: rows to score that no method generated."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedsynth.encoding import decode, encode
from fedsynth.rows import Table

Floor = Callable[[Table, Table, np.random.Generator], tuple[Table, Table]]
"""Maps training rows, test rows and a generator to the real rows and the rows to score."""


def uniform_rows(train: Table, test: Table, rng: np.random.Generator) -> tuple[Table, Table]:
    """Return (training rows, as many random rows): a baseline that uses no data.

    Every category or bin of a column is equally likely, and columns are independent; numbers are uniform in their bin.
    """
    codes = [rng.integers(0, size, len(train)) for size in train.schema.sizes]
    return train, encode(train.schema, decode(train.schema, codes, rng))


def one_value(train: Table, test: Table, rng: np.random.Generator) -> tuple[Table, Table]:
    """Return (training rows, as many copies of one row): a baseline without any variation.

    The row has each categorical column's commonest category and each numeric column's mean; where bins are compared, a
    number counts by its column's commonest bin.
    """
    codes = [np.full_like(column, np.bincount(column).argmax()) for column in train.codes]
    numbers = {at: np.full_like(values, np.nanmean(values)) for at, values in train.numbers.items()}
    return train, Table(train.schema, tuple(codes), numbers)


FLOORS: dict[str, Floor] = {
    "real rows": lambda train, test, rng: (train, train),
    "test rows": lambda train, test, rng: (train, test),
    "other half": lambda train, test, rng: (
        train.take(np.arange(0, len(train), 2)),
        train.take(np.arange(1, len(train), 2)),
    ),
    "uniform rows": uniform_rows,
    "one value": one_value,
}
