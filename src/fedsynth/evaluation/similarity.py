"""Similarity of columns and pairs of columns as defined by SDMetrics: 1 is equal, 0 has nothing in common.

The formulas are those of SDMetrics 0.32 (docs.sdv.dev/sdmetrics, MIT licence), which is not imported; a test compares
them with values computed by SDMetrics. Categories are compared as codes, so the spelling of a value has no effect. If
SDMetrics leaves a score undefined (a constant column has no correlation), the association counts as 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.evaluation.dependence import association
from fedsynth.evaluation.features import is_numeric
from fedsynth.rows import Table, l1_distance

Pairs = Sequence[tuple[int, int]]
_BINS = 10  # of a number beside a category, as in SDMetrics
_DECIMALS = 14  # to which SDMetrics rounds numbers before it compares two columns
_ABSENT = 1e-6  # real count that SDMetrics assigns to a category that only the synthetic column has


def ks_complement(real: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return SDMetrics' KSComplement: ``1 - max |F - G|`` of the distribution functions of two samples of numbers.

    Each sample, shape ``(values,)``, has at least one value and none that is missing; 1 means equal, 0 that the ranges
    are disjoint.
    """
    one, two = np.sort(_rounded(real)), np.sort(_rounded(other))
    steps = np.concatenate([one, two])
    gaps = np.searchsorted(one, steps, side="right") / len(one) - np.searchsorted(two, steps, side="right") / len(two)
    return float(1 - np.abs(gaps).max())


def _rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values rounded as in SDMetrics; large ones have no decimals, and rounding them could overflow."""
    large = np.abs(values) > 2.0**53
    return np.where(large, values, np.round(np.where(large, 0.0, values), _DECIMALS))


def tv_complement(real: NDArray[np.integer[Any]], other: NDArray[np.integer[Any]]) -> float:
    """Return SDMetrics' TVComplement: ``1 - sum |p - q| / 2`` over the categories of two samples of codes.

    A code is the integer that numbers a category, from 0. Each sample, shape ``(values,)``, has at least one code; 1
    means equal shares, and a value near 0 no category in common.
    """
    size = int(max(real.max(), other.max())) + 1
    p, q = (np.bincount(codes, minlength=size).astype(np.float64) for codes in (real, other))
    p[(p == 0) & (q > 0)] = _ABSENT
    return float(1 - np.abs(p / p.sum() - q / q.sum()).sum() / 2)


def range_coverage(real: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return SDMetrics' RangeCoverage: the share of the real range inside the other range, 0 to 1.

    Each sample, shape ``(values,)``, has at least one value and none that is missing; ``real`` must not be constant.
    """
    low, width = real.min(), np.ptp(real)
    return float(max(1 - max((other.min() - low) / width, 0) - max((low + width - other.max()) / width, 0), 0))


def category_coverage(real: NDArray[Any], other: NDArray[Any]) -> float:
    """Return SDMetrics' CategoryCoverage: the share (0 to 1) of distinct real values that occur in the other sample."""
    return float(np.isin(np.unique(real), other).mean())


def contingency_similarity(real: NDArray[np.integer[Any]], other: NDArray[np.integer[Any]], cells: int) -> float:
    """Return SDMetrics' ContingencySimilarity: 1 - half the L1 distance of the frequencies over ``cells`` cells.

    ``real`` and ``other`` hold each row's cell (0 to ``cells - 1``), shape ``(rows,)``.
    """
    return 1 - l1_distance(real, other, cells) / 2


def column_similarity(real: Table, other: Table) -> dict[str, float]:
    """Return SDMetrics' "column shapes" by column name: TVComplement of categories, KSComplement of numbers and times.

    1 is equal, 0 has nothing in common (:func:`tv_complement`, :func:`ks_complement`). Missing values are left out on
    both sides; :func:`missing_similarity` compares their shares.
    """

    def score(column: int) -> float:
        one, two = _known(real, column), _known(other, column)
        if not len(one) or not len(two):
            return float(len(one) == len(two))
        return ks_complement(one, two) if is_numeric(real, column) else tv_complement(one, two)

    return _by_column(real, score)


def missing_similarity(real: Table, other: Table) -> dict[str, float]:
    """Return SDMetrics' MissingValueSimilarity of each column that may have missing values, by name; empty if none has.

    It is 1 minus the absolute difference of the shares of missing values, 0 to 1.
    """
    shares = [
        {
            column: float((table.codes[column] == size - 1).mean())
            for column, size in enumerate(table.schema.sizes)
            if table.schema.stored[column].missing
        }
        for table in (real, other)
    ]
    return {real.schema.names[column]: 1 - abs(share - shares[1][column]) for column, share in shares[0].items()}


def coverage(real: Table, other: Table) -> dict[str, float]:
    """Return SDMetrics' CategoryCoverage, and RangeCoverage of numbers and times, by column name, 0 to 1.

    The coverage of a column is the share of its real categories, or of its real range, that the other table covers;
    missing values are left out. It rewards extreme values, which a private method cannot keep: compare it with the
    coverage that other real rows reach, not with 1.
    """

    def score(column: int) -> float:
        one, two = _known(real, column), _known(other, column)
        if not len(one) or not len(two):
            return float(len(one) == len(two))
        if is_numeric(real, column) and np.ptp(one) > 0:
            return range_coverage(one, two)
        return category_coverage(one, two)

    return _by_column(real, score)


def pair_similarity(real: Table, other: Table, pairs: Pairs) -> dict[str, float]:
    """Return SDMetrics' "column pair trends" by pair: CorrelationSimilarity of two numbers, else ContingencySimilarity.

    Keys are "first name × second name"; 1 is equal. CorrelationSimilarity is 1 minus half the difference of the tables'
    Pearson correlations. In a pair with a category, a number is binned into ten equal bins over the *real* range. (The
    report of SDMetrics 0.32 bins each table over its own range, which hides errors of location and scale, and averages
    only over pairs with a notable real association.)
    """
    return _pairs(real, other, pairs, _equal_edges)


def pair_similarity_by_deciles(real: Table, other: Table, pairs: Pairs) -> dict[str, float]:
    """Return :func:`pair_similarity` with other bins: numbers that are paired with a category are cut at real deciles.

    With a heavy tail, nearly all rows fall into one of ten equal bins, which then show no differences.
    """
    return _pairs(real, other, pairs, _decile_edges)


def sdmetrics_fidelity(real: Table, other: Table) -> dict[str, float]:
    """Return the fidelity of FedTabDiff (arXiv 2401.06263): the mean of the mean column and the mean pair similarity.

    The key "" has ten equal bins for numbers in pairs with a category (the paper does not state its binning), "deciles"
    :func:`pair_similarity_by_deciles`. The parts are "columns", "pairs" and "pairs, deciles". Without pairs, the column
    similarity takes their place.
    """
    every = list(itertools.combinations(range(len(real.codes)), 2))
    columns = _mean(column_similarity(real, other))
    pairs, deciles = (
        _mean(score(real, other, every)) if every else columns
        for score in (pair_similarity, pair_similarity_by_deciles)
    )
    return {
        "": (columns + pairs) / 2,
        "deciles": (columns + deciles) / 2,
        "columns": columns,
        "pairs": pairs,
        "pairs, deciles": deciles,
    }


def _mean(scores: Mapping[str, float]) -> float:
    return float(np.mean(list(scores.values())))


def _pairs(
    real: Table, other: Table, pairs: Pairs, edges_of: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> dict[str, float]:
    numeric = {column for pair in pairs for column in pair if is_numeric(real, column)}
    edges = {column: edges_of(_known(real, column)) for column in numeric}
    sides = [_discrete(table, edges) for table in (real, other)]
    sizes = [len(edges[column]) + 2 if column in edges else size for column, size in enumerate(real.schema.sizes)]
    scores = {}
    for one, two in pairs:
        name = f"{real.schema.names[one]} × {real.schema.names[two]}"
        if one in numeric and two in numeric:
            # SDMetrics' CorrelationSimilarity; it is undefined for constants, whose association is 0 here.
            scores[name] = 1 - abs(association(real, one, two) - association(other, one, two)) / 2
        else:
            cells = [codes[one] * sizes[two] + codes[two] for codes in sides]
            scores[name] = contingency_similarity(cells[0], cells[1], sizes[one] * sizes[two])
    return scores


def _discrete(table: Table, edges: dict[int, NDArray[np.float64]]) -> list[NDArray[np.int64]]:
    """Return the codes of every column; numbers are binned at the inner ``edges``, missing ones get the last bin."""
    found = []
    for column, codes in enumerate(table.codes):
        if column in edges:
            values, inner = table.numbers[column], edges[column]
            codes = np.where(np.isnan(values), len(inner) + 1, np.searchsorted(inner, values, side="right"))
        found.append(codes.astype(np.int64))
    return found


def _equal_edges(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the inner edges of ten equal bins, as in SDMetrics' ``discretize_column``."""
    if not len(values):
        return np.empty(0)
    return np.histogram_bin_edges(values, _BINS)[1:-1]


def _decile_edges(values: NDArray[np.float64]) -> NDArray[np.float64]:
    if not len(values):
        return np.empty(0)
    return np.unique(np.quantile(values, np.linspace(0, 1, _BINS + 1)[1:-1]))


def _known(table: Table, column: int) -> NDArray[Any]:
    """Return a column's known values: its numbers, or the codes of its categories."""
    if is_numeric(table, column):
        values = table.numbers[column]
        return values[~np.isnan(values)]
    codes = table.codes[column]
    if table.schema.stored[column].missing:
        codes = codes[codes != table.schema.sizes[column] - 1]
    return codes


def _by_column(real: Table, score: Callable[[int], float]) -> dict[str, float]:
    return {name: score(column) for column, name in enumerate(real.schema.names)}
