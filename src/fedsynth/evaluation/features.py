"""Rows as features, for classifiers, distances and attacks: every way in which a table becomes a matrix of numbers.

What is fitted is fitted on real rows; :func:`public_features` fits nothing and follows from the schema alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import Unsupported
from fedsynth.rows import Table
from fedsynth.schema.columns import Datetime, Numeric

Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]
Features = NDArray[np.float64]
Encode = Callable[[Table], Features]
Fit = Callable[[Table, Sequence[int]], Encode]  # on real training rows, for some columns

_MOST = 100  # categories of a column with a feature each; more would only fill the memory


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
            edges = table.schema.stored[column].bin_edges  # type: ignore[union-attr]
            parts.append(np.nan_to_num(table.numbers[column], nan=edges[0] - 1.0))
        else:
            parts.append(table.codes[column].astype(np.float64))
    return np.stack(parts, axis=1)


def integer_codes(real: Table, columns: Sequence[int]) -> Encode:
    """Take each column's code as a number."""
    return lambda table: np.stack([table.codes[column] for column in columns], axis=1).astype(np.float64)


def standardised(real: Table, columns: Sequence[int]) -> Encode:
    """Scale numbers by the real rows' mean and deviation (a missing one becomes the mean); take codes of categories."""
    scale: dict[int, tuple[float, float]] = {}
    for column in columns:
        if is_numeric(real, column):
            known = real.numbers[column][~np.isnan(real.numbers[column])]
            # The deviation of equal numbers is not always exactly 0; divided by, it would blow up any other number.
            # That of very small ones is 0.
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
    """Scale numbers as :func:`standardised` does, with a mark for missing ones; one feature for each known category.

    Known are the categories of the real rows, of more than 100 the commonest; any other has none of the features.
    """
    scaled = standardised(real, columns)
    known = _known_categories(real, columns)

    def encode(table: Table) -> Features:
        return _with_categories(table, columns, scaled(table), known)

    return encode


def quantiles_and_one_hot(real: Table, columns: Sequence[int]) -> Encode:
    """Map numbers to a normal law by the real rows' quantiles (a missing one to its middle), else as :func:`one_hot`.

    As in SynMeter (arXiv 2402.06806): a quantile for every 30 rows, at least 10 and at most 1,000.
    """
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
    """Return the codes, in order, that get a feature of their own."""
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
    """Return the features of numbers (with a mark where one is missing), and one feature for each known category."""
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
    """Return the rows as a classifier of ``target`` sees them at every site, shape ``(rows, features)``.

    Nothing is fitted to rows, not to a site's and not to pooled ones. A number is its place among the schema's public
    bin edges, scaled to mean 0 and variance 1 for a column that is uniform on its bins: with equal bins, the
    number itself between its public bounds. A missing number is 0, with a mark of its own; a category is one-hot.

    Raises :class:`Unsupported` for rows that have codes only.
    """
    schema, label = table.schema, table.schema.index(target)
    parts: list[NDArray[np.floating]] = []
    for at, column in enumerate(schema.stored):
        if at == label:
            continue
        if isinstance(column, Numeric | Datetime):
            if at not in table.numbers:
                raise Unsupported(
                    f"the rows hold no numbers of {column.name!r}, only codes; "
                    "pass schema.encode(synthesizer.sample(rows, rng))"
                )
            numbers, edges = table.numbers[at], np.unique(column.bin_edges)  # integers end on an edge held twice
            place = np.interp(numbers, edges, np.linspace(0, 1, len(edges))) if len(edges) > 1 else numbers * 0.0
            parts.append(np.nan_to_num((place - 0.5) * np.sqrt(12))[:, None])
            if column.missing:
                parts.append(np.isnan(numbers)[:, None].astype(np.float32))
        else:
            parts.append((table.codes[at][:, None] == np.arange(column.size)).astype(np.float32))
    if not parts:
        raise Unsupported(f"the table has no column but {target!r}; there is nothing to learn it from")
    return np.concatenate(parts, axis=1).astype(np.float32)


def labels(table: Table, target: str) -> NDArray[np.int64]:
    """Return each row's class, shape ``(rows,)``: the codes of a category; raises :class:`Unsupported` for numbers."""
    at = table.schema.index(target)
    if isinstance(table.schema.stored[at], Numeric | Datetime):
        raise Unsupported(f"{target!r} holds numbers; a classifier needs a category for its target")
    return table.codes[at].astype(np.int64)


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
                if table.schema.stored[column].missing:
                    parts.append(gone.astype(np.float32)[:, None])
            else:
                levels = np.arange(table.schema.sizes[column])
                parts.append((table.codes[column][:, None] == levels) * half)
        return np.concatenate(parts, axis=1).astype(np.float32, copy=False)
