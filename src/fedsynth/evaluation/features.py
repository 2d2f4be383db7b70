"""Feature encodings of tables, for classifiers, distances and attacks.

Encodings are fitted on real rows, except :func:`ordinal`, :func:`integer_codes` and :func:`public_features`, which
depend on the schema alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import Unsupported, from_extra
from fedsynth.rows import Table

Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]
Features = NDArray[np.float64]
Encode = Callable[[Table], Features]
Fit = Callable[[Table, Sequence[int]], Encode]  # of real training rows and the columns to encode

_MOST = 100  # one-hot features of a column, at most: more would take memory for little


def is_numeric(table: Table, column: int) -> bool:
    """Return whether the table has the numbers or times of the column at this position, and not only codes."""
    return column in table.numbers


def ordinal(table: Table, columns: list[int] | None = None) -> Matrix:
    """Return one feature per column, for decision trees: the number, or a category's code.

    The result is float64, shape ``(rows, columns)``. A code is the integer that numbers a column's categories, from 0.
    ``columns`` are positions (default: all). A missing number becomes the column's lowest bin edge minus 1.
    """
    chosen = range(len(table.codes)) if columns is None else columns
    parts = []
    for column in chosen:
        if is_numeric(table, column):
            edges = table.schema.stored[column].bin_edges  # type: ignore[union-attr]
            parts.append(np.nan_to_num(table.numbers[column], nan=edges[0] - 1.0))
        else:
            parts.append(table.codes[column].astype(np.float64))
    return np.stack(parts, axis=1)


def integer_codes(real: Table, columns: Sequence[int]) -> Encode:
    """Return an encoding with one feature per column: its code. ``real`` is not used.

    An encoding maps a table to float64 features, shape ``(rows, features)``; ``columns`` are positions in the schema.
    """
    return lambda table: np.stack([table.codes[column] for column in columns], axis=1).astype(np.float64)


def standardised(real: Table, columns: Sequence[int]) -> Encode:
    """Return an encoding that standardises numbers by the real rows' mean and standard deviation; categories are codes.

    A missing number becomes the mean. :func:`integer_codes` says what an encoding is.
    """
    scale: dict[int, tuple[float, float]] = {}
    for column in columns:
        if is_numeric(real, column):
            known = real.numbers[column][~np.isnan(real.numbers[column])]
            # Rounding can make the deviation of equal numbers tiny instead of 0; dividing by it would blow up others.
            # The deviation of very small numbers can underflow to 0.
            spread = len(known) > 0 and float(np.ptp(known)) > 0
            scale[column] = (float(known.mean()) if len(known) else 0.0, (float(known.std()) or 1.0) if spread else 1.0)

    def encode(table: Table) -> Features:
        parts = []
        for column in columns:
            if column in scale:
                mean, deviation = scale[column]
                parts.append(np.nan_to_num((table.numbers[column] - mean) / deviation))
            else:
                parts.append(table.codes[column].astype(np.float64))
        return np.stack(parts, axis=1)

    return encode


def one_hot(real: Table, columns: Sequence[int]) -> Encode:
    """Return an encoding with categories one-hot and numbers standardised, as by :func:`standardised`.

    A column's one-hot categories are the 100 commonest of the real rows; any other category has only zeros. A column of
    numbers that may be missing has a second feature, its missing indicator.
    """
    scaled = standardised(real, columns)
    known = _known_categories(real, columns)

    def encode(table: Table) -> Features:
        return _with_categories(table, columns, scaled(table), known)

    return encode


def quantiles_and_one_hot(real: Table, columns: Sequence[int]) -> Encode:
    """Return an encoding that maps numbers to normal scores by quantile; the rest is encoded as by :func:`one_hot`.

    As in SynMeter (arXiv 2402.06806): the map is fitted to the real rows, with one quantile for every 30 rows, at least
    10 and at most 1,000, but no more than there are known values. A missing number becomes 0, with an indicator.
    """
    with from_extra("evaluate", "normal scores by quantile need scikit-learn"):
        from sklearn.preprocessing import QuantileTransformer
    categories = _known_categories(real, columns)
    maps: dict[int, Any] = {}
    for column in columns:
        known = real.numbers[column][~np.isnan(real.numbers[column])] if is_numeric(real, column) else np.empty(0)
        if len(known):
            many = min(int(np.clip(len(real) // 30, 10, 1000)), len(known))
            maps[column] = QuantileTransformer(
                n_quantiles=many, output_distribution="normal", subsample=None, random_state=0
            ).fit(known[:, None])

    def encode(table: Table) -> Features:
        parts = np.zeros((len(table), len(columns)))
        for at, column in enumerate(columns):
            if column in maps:
                known = ~np.isnan(table.numbers[column])
                if known.any():
                    parts[known, at] = maps[column].transform(table.numbers[column][known, None])[:, 0]
        return _with_categories(table, columns, parts, categories)

    return encode


def _known_categories(real: Table, columns: Sequence[int]) -> dict[int, NDArray[np.int64]]:
    """Return, for each categorical column, the codes with a one-hot feature, in ascending order."""
    known = {}
    for column in columns:
        if not is_numeric(real, column):
            counts = np.bincount(real.codes[column], minlength=real.schema.sizes[column])
            commonest = np.argsort(-counts, kind="stable")[:_MOST]
            known[column] = np.sort(commonest[counts[commonest] > 0])
    return known


def _with_categories(
    table: Table, columns: Sequence[int], numbers: Features, known: Mapping[int, NDArray[np.int64]]
) -> Features:
    """Return the features of numbers, with a missing indicator where needed, and the one-hot features of categories."""
    parts: list[Features] = []
    for at, column in enumerate(columns):
        if is_numeric(table, column):
            parts.append(numbers[:, at : at + 1])
            if table.schema.stored[column].missing:
                parts.append(np.isnan(table.numbers[column]).astype(np.float64)[:, None])
        else:
            parts.append((table.codes[column][:, None] == known[column]).astype(np.float64))
    return np.concatenate(parts, axis=1)


def public_features(table: Table, target: str) -> NDArray[np.float32]:
    """Return features for a classifier of ``target``, equal at all sites, float32, shape ``(rows, features)``.

    Nothing is fitted to rows. A number becomes its position among the schema's public bin edges, scaled to mean 0 and
    variance 1 for a column that is uniform over its bins. A missing number is 0, with an indicator feature; a category
    is one-hot.

    Raises :class:`Unsupported` for rows that hold only bins of a numeric column and not its numbers, and for a table
    without other columns; :class:`SchemaError` for an unknown target.
    """
    schema, label = table.schema, table.schema.index(target)
    parts: list[NDArray[np.floating]] = []
    for at, column in enumerate(schema.stored):
        if at == label:
            continue
        if column.is_number:
            if at not in table.numbers:
                raise Unsupported(
                    f"the rows hold no numbers of {column.name!r}, only codes; encode the rows of synthesizer.sample"
                )
            numbers, edges = table.numbers[at], np.unique(column.bin_edges)  # the last edge of integers is repeated
            place = np.interp(numbers, edges, np.linspace(0, 1, len(edges))) if len(edges) > 1 else numbers * 0.0
            parts.append(np.nan_to_num((place - 0.5) * np.sqrt(12))[:, None])
            if column.missing:
                parts.append(np.isnan(numbers)[:, None].astype(np.float32))
        else:
            parts.append((table.codes[at][:, None] == np.arange(column.size)).astype(np.float32))
    if not parts:
        raise Unsupported(f"{target!r} is the only column of the table; a classifier needs at least one other")
    return np.concatenate(parts, axis=1).astype(np.float32)


def labels(table: Table, target: str) -> NDArray[np.int64]:
    """Return the class of each row: the number of its category in the column ``target``, int64, shape ``(rows,)``.

    Raises :class:`Unsupported` for a numeric target, and :class:`SchemaError` for an unknown one.
    """
    at = table.schema.index(target)
    if table.schema.stored[at].is_number:
        raise Unsupported(f"{target!r} is numeric; a classifier needs a categorical target")
    return table.codes[at].astype(np.int64)


@dataclass(frozen=True, eq=False)
class MixedSpace:
    """A Euclidean embedding of rows with mixed columns, scaled so that columns contribute alike to a distance.

    A number is scaled by the range of the real rows, a category is one-hot over ``sqrt(2)``. So the squared distance is
    the sum of the squared difference as a fraction of the range, for each number, and of 1 for each differing category.
    Two missing numbers do not differ; a missing and a known number within the real range differ by 1 to 1.25 (squared).
    A number outside the real range can contribute more than 1. ``low`` and ``width`` map the positions of numbers to
    the minimum and the width of their range (1 if all real values are equal or missing).
    """

    columns: tuple[int, ...]
    low: dict[int, float]
    width: dict[int, float]

    @classmethod
    def of(cls, real: Table, columns: tuple[int, ...] | None = None) -> MixedSpace:
        """Fit the embedding to the ranges of the real rows; ``columns`` are the positions to embed (default: all)."""
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
        """Return the rows' coordinates in the embedding, float32, shape ``(rows, dimensions)``."""
        parts: list[NDArray[np.float32]] = []
        half = np.float32(np.sqrt(0.5))
        for column in self.columns:
            if column in self.low:
                scaled = (table.numbers[column] - self.low[column]) / self.width[column]
                gone = np.isnan(scaled)
                parts.append(np.where(gone, 0.5, scaled).astype(np.float32)[:, None])
                if table.schema.stored[column].missing:
                    parts.append(gone.astype(np.float32)[:, None])
            else:
                levels = np.arange(table.schema.sizes[column])
                parts.append((table.codes[column][:, None] == levels) * half)
        return np.concatenate(parts, axis=1).astype(np.float32, copy=False)
