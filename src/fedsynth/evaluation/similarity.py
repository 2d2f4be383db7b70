"""Similarity of columns and pairs of columns as SDMetrics defines it: 1 is perfect, 0 is nothing in common.

Categories enter as codes, so that a score does not depend on how a value is spelt. Where SDMetrics leaves a score
undefined (a constant column has no correlation), the association counts as 0.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedsynth.errors import Unsupported
from fedsynth.evaluation.dependence import association
from fedsynth.evaluation.features import is_numeric
from fedsynth.table import Table

Pairs = Sequence[tuple[int, int]]
_BINS = 10  # of a number beside a category, as in SDMetrics


def column_similarity(real: Table, other: Table) -> dict[str, float]:
    """Return SDMetrics' "column shapes" by column: TVComplement of categories, KSComplement of numbers and times.

    Missing values are left out on both sides; :func:`missing_similarity` compares how many there are.
    """
    metrics = _sdmetrics().single_column

    def score(column: int) -> float:
        one, two = _known(real, column), _known(other, column)
        if not len(one) or not len(two):
            return float(len(one) == len(two))
        kind = metrics.KSComplement if is_numeric(real, column) else metrics.TVComplement
        with warnings.catch_warnings():
            # SDMetrics lets SciPy compute a p-value that nobody reads; SciPy warns where it has to approximate it.
            warnings.filterwarnings("ignore", "ks_2samp: Exact calculation unsuccessful", RuntimeWarning)
            return float(kind.compute(one, two))

    return _by_column(real, score)


def missing_similarity(real: Table, other: Table) -> dict[str, float]:
    """Return SDMetrics' MissingValueSimilarity of each column that admits missing values; may be empty."""
    shares = [
        {
            column: float((table.codes[column] == size - 1).mean())
            for column, size in enumerate(table.schema.sizes)
            if table.schema.columns[column].missing
        }
        for table in (real, other)
    ]
    return {real.schema.names[column]: 1 - abs(share - shares[1][column]) for column, share in shares[0].items()}


def coverage(real: Table, other: Table) -> dict[str, float]:
    """Return SDMetrics' CategoryCoverage, and RangeCoverage of numbers and times, by column.

    It rewards extreme values, which privacy must lose: compare it with the reference, not with 1.
    """
    metrics = _sdmetrics().single_column

    def score(column: int) -> float:
        one, two = _known(real, column), _known(other, column)
        if not len(one) or not len(two):
            return float(len(one) == len(two))
        if is_numeric(real, column) and one.nunique() > 1:
            return float(metrics.RangeCoverage.compute(one, two))
        return float(metrics.CategoryCoverage.compute(one, two))

    return _by_column(real, score)


def pair_similarity(real: Table, other: Table, pairs: Pairs) -> dict[str, float]:
    """Return SDMetrics' "column pair trends" by pair: correlation similarity of numbers, contingency similarity else.

    A number beside a category is cut into ten equal bins over the *real* range, as ContingencySimilarity does. (The
    report of SDMetrics 0.32 cuts each table over its own range, which hides errors of location and scale, and
    averages over pairs of notable real association only; here all pairs count.)
    """
    return _pairs(real, other, pairs, _equal_edges)


def pair_similarity_by_deciles(real: Table, other: Table, pairs: Pairs) -> dict[str, float]:
    """Return :func:`pair_similarity` with a number beside a category cut at the real deciles.

    On a heavy tail nearly all rows fall into one of ten equal bins, and equal bins see nothing.
    """
    return _pairs(real, other, pairs, _decile_edges)


def _pairs(
    real: Table, other: Table, pairs: Pairs, edges_of: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> dict[str, float]:
    metrics = _sdmetrics().column_pairs
    mixed = {column for pair in pairs for column in pair if is_numeric(real, column)}
    edges = {column: edges_of(_known(real, column).to_numpy()) for column in mixed}
    frames = [_discrete(table, edges) for table in (real, other)]
    scores = {}
    for one, two in pairs:
        name = f"{real.schema.names[one]} × {real.schema.names[two]}"
        if is_numeric(real, one) and is_numeric(real, two):
            # CorrelationSimilarity is this formula; it warns of constants and answers NaN.
            scores[name] = 1 - abs(association(real, one, two) - association(other, one, two)) / 2
        else:
            scores[name] = float(metrics.ContingencySimilarity.compute(*(frame[[one, two]] for frame in frames)))
    return scores


def _discrete(table: Table, edges: dict[int, NDArray[np.float64]]) -> pd.DataFrame:
    """Return codes of every column; numbers by bins between ``edges``, a missing one in a bin of its own."""
    columns: dict[int, NDArray[Any]] = {}
    for column in range(len(table.codes)):
        if column in edges:
            values = table.numbers[column]
            columns[column] = np.where(np.isnan(values), -1, np.searchsorted(edges[column], values, side="right"))
        elif not is_numeric(table, column):
            columns[column] = table.codes[column]
    return pd.DataFrame(columns)


def _equal_edges(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the inner edges of ten equal bins."""
    if not len(values):
        return np.empty(0)
    return np.linspace(values.min(), values.max(), _BINS + 1)[1:-1]


def _decile_edges(values: NDArray[np.float64]) -> NDArray[np.float64]:
    if not len(values):
        return np.empty(0)
    return np.unique(np.quantile(values, np.linspace(0, 1, _BINS + 1)[1:-1]))


def _known(table: Table, column: int) -> pd.Series[Any]:
    if is_numeric(table, column):
        values = table.numbers[column]
        return pd.Series(values[~np.isnan(values)])
    codes = table.codes[column]
    if table.schema.columns[column].missing:
        codes = codes[codes != table.schema.sizes[column] - 1]
    return pd.Series(codes)


def _by_column(real: Table, score: Callable[[int], float]) -> dict[str, float]:
    return {name: score(column) for column, name in enumerate(real.schema.names)}


def _sdmetrics() -> Any:
    try:
        import sdmetrics.column_pairs
        import sdmetrics.single_column
    except ImportError as error:
        raise Unsupported("similarity needs SDMetrics; pip install 'fedsynth[evaluate]'") from error
    return sdmetrics
