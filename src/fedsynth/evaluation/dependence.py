"""Association measures between columns of any type, and measures of how two association matrices differ."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from fedsynth.evaluation.features import is_numeric
from fedsynth.evaluation.score import Summary
from fedsynth.rows import Table
from fedsynth.schema.bins import Axis


def association_matrix(table: Table, columns: Sequence[int] | None = None) -> NDArray[np.float64]:
    """Return the association of every pair of columns, shape ``(columns, columns)``, symmetric, ones on the diagonal.

    ``columns`` are positions in the schema (default: all columns). Two numbers: Pearson's correlation (-1 to 1) over
    the rows where both are known. Two categories: Cramér's V (0 to 1), bias-corrected (Bergsma 2013, doi
    10.1016/j.jkss.2012.10.002). A number and a category: the correlation ratio (0 to 1) over the rows where the number
    is known. A missing category counts as a category. An undefined association (a constant) is 0. Times count as
    numbers.
    """
    chosen = list(range(len(table.codes))) if columns is None else list(columns)
    matrix = np.eye(len(chosen))
    for i, one in enumerate(chosen):
        for j in range(i):
            matrix[i, j] = matrix[j, i] = association(table, one, chosen[j])
    return matrix


# Cache: an evaluation needs the same pairs of the same tables several times. Entries go when their table does.
_known: WeakKeyDictionary[Table, dict[tuple[int, int], float]] = WeakKeyDictionary()


def association(table: Table, one: int, other: int) -> float:
    """Return the association of two columns, given by position; :func:`association_matrix` defines it."""
    found = _known.setdefault(table, {})
    if (one, other) not in found:
        found[one, other] = found[other, one] = _association(table, one, other)
    return found[one, other]


def _association(table: Table, one: int, other: int) -> float:
    if is_numeric(table, one) and is_numeric(table, other):
        return _pearson(table.numbers[one], table.numbers[other])
    if is_numeric(table, one):
        return _correlation_ratio(table.codes[other], table.numbers[one])
    if is_numeric(table, other):
        return _correlation_ratio(table.codes[one], table.numbers[other])
    return _cramers_v(table.tables([Axis(one), Axis(other)], [(0, 1)])[0])


def association_differences(real: Table, other: Table, pairs: Sequence[tuple[int, int]]) -> dict[str, float]:
    """Return the absolute difference of the two tables' associations by "first name × second name": 0 (equal) to 2."""
    return {
        f"{real.schema.names[one]} × {real.schema.names[two]}": abs(
            association(real, one, two) - association(other, one, two)
        )
        for one, two in pairs
    }


def spearman(table: Table, one: int, other: int) -> float:
    """Return Spearman's correlation of two columns of numbers, given by position: Pearson's correlation of their ranks.

    Ranks are among the column's known values, equal values share their mean rank, and rows where either number is
    missing are left out. It is 0 if a column is constant.
    """
    return _pearson(_ranks(table, one), _ranks(table, other))


# Cache: a column is in as many pairs as the table has other columns.
_ranked: WeakKeyDictionary[Table, dict[int, NDArray[np.float64]]] = WeakKeyDictionary()


def _ranks(table: Table, column: int) -> NDArray[np.float64]:
    found = _ranked.setdefault(table, {})
    if column not in found:
        values = table.numbers[column]
        _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
        found[column] = np.where(np.isnan(values), np.nan, (np.cumsum(counts) - (counts - 1) / 2)[which])
    return found[column]


Association = Callable[[Table, int, int], float]
Pairs = Sequence[tuple[int, int]]

STRONG = (0.3, 0.5)  # least absolute values of a strong association in the real rows
_CORRELATED = 0.5  # least absolute value of a strong correlation of two numbers
_KEPT = 0.5  # least share of an association that is kept
_NEAR = 0.1  # largest difference of a correlation that is kept


def strong_associations(real: Table) -> dict[str, Pairs]:
    """Return the strongly associated pairs of columns, as positions, under "above 0.3" and, among these, "above 0.5".

    The limits are for the absolute association in ``real``, which :func:`association_matrix` defines. All pairs of
    columns are examined. A limit that no pair reaches is left out.
    """
    pairs = list(itertools.combinations(range(len(real.codes)), 2))
    return _nonempty({f"above {least}": strong_pairs(real, pairs, least) for least in STRONG})


def strong_correlations(real: Table) -> dict[str, Pairs]:
    """Return the strongly correlated pairs of columns of numbers, as positions, by "Pearson" and by "Spearman".

    The correlation in ``real`` is at least 0.5 in absolute value. A correlation that is strong for no pair is left out.
    """
    pairs = list(itertools.combinations(sorted(real.numbers), 2))
    return _nonempty({name: strong_pairs(real, pairs, _CORRELATED, how) for name, how in CORRELATIONS.items()})


CORRELATIONS: Mapping[str, Association] = {"Pearson": association, "Spearman": spearman}


def _nonempty(found: dict[str, Pairs]) -> dict[str, Pairs]:
    return {name: pairs for name, pairs in found.items() if pairs}


def strong_pairs(real: Table, pairs: Iterable[tuple[int, int]], least: float, how: Association = association) -> Pairs:
    """Return the ``pairs`` whose association (by ``how``) in ``real`` is at least ``least`` in absolute value."""
    return [(one, two) for one, two in pairs if abs(how(real, one, two)) >= least]


def associations_kept(real: Table, other: Table, pairs: Pairs) -> Summary:
    """Return the share of ``pairs`` (at least one) whose association in ``real`` is kept in ``other``: 0 to 1.

    It is kept if that of ``other`` has the same sign and is at least half as strong. The details are the associations
    in ``other``, by "first name × second name".
    """
    return _share(real, other, pairs, association, is_kept)


def correlations_kept(real: Table, other: Table, pairs: Pairs, how: Association = association) -> Summary:
    """Return the share of ``pairs`` of columns of numbers whose correlation in ``other`` is within 0.1 of ``real``.

    ``how`` is a value of :data:`CORRELATIONS`. The details are the correlations in ``other``.
    """
    return _share(real, other, pairs, how, is_near)


def is_kept(real: float, other: float) -> bool:
    """Return whether ``other`` has at least half of the association ``real``, with the same sign."""
    return math.copysign(1.0, real) * other >= _KEPT * abs(real)


def is_near(real: float, other: float) -> bool:
    """Return whether the correlation ``other`` is within 0.1 of ``real``."""
    return abs(other - real) <= _NEAR


def _share(
    real: Table, other: Table, pairs: Pairs, how: Association, passes: Callable[[float, float], bool]
) -> Summary:
    names = real.schema.names
    found = {(one, two): how(other, one, two) for one, two in pairs}
    return Summary(
        float(np.mean([passes(how(real, one, two), value) for (one, two), value in found.items()])),
        {f"{names[one]} × {names[two]}": value for (one, two), value in found.items()},
    )


def pairwise_correlation_difference(real: NDArray[np.float64], synthetic: NDArray[np.float64]) -> float:
    """Return the Frobenius norm of the difference of two matrices of association, each pair counted twice.

    Both matrices are results of :func:`association_matrix` for the same columns. The "PCD" of the synthetic-data
    literature (Goncalves et al. 2020, doi 10.1186/s12874-020-00977-1). It grows with the number of columns and with
    sampling noise: compare it only with the PCD of a real hold-out.
    """
    return float(np.linalg.norm(real - synthetic))


def association_slopes(real: Table, synthetic: Table) -> dict[str, float]:
    """Return the slope of a least-squares line from real to synthetic association over the pairs of columns.

    1 means that all dependence is kept, 0 that none is. Keys are "categories" (two categories), "numbers" (two numbers)
    and "mixed" (one of each); with fewer than three pairs of a kind, its slope is nan.
    """
    one, two = association_matrix(real), association_matrix(synthetic)
    found: dict[str, list[tuple[float, float]]] = {"categories": [], "numbers": [], "mixed": []}
    for i, j in itertools.combinations(range(len(real.codes)), 2):
        numbers = is_numeric(real, i) + is_numeric(real, j)
        found[("categories", "mixed", "numbers")[numbers]].append((one[i, j], two[i, j]))
    return {kind: _slope(pairs) for kind, pairs in found.items()}


def _slope(pairs: list[tuple[float, float]]) -> float:
    if len(pairs) < 3:
        return math.nan
    x, y = np.array(pairs).T
    return float(np.polyfit(x, y, 1)[0])


def _pearson(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    known = ~(np.isnan(x) | np.isnan(y))
    x, y = x[known], y[known]
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    return float(np.corrcoef(_unit(x), _unit(y))[0, 1])


def _unit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return non-constant values scaled to [0, 1], so that their squares neither overflow nor underflow."""
    moved: NDArray[np.float64] = values / np.abs(values).max()
    moved -= moved.min()
    moved /= moved.max()
    return moved


def _cramers_v(counts: NDArray[np.int64]) -> float:
    counts = counts[counts.any(axis=1)][:, counts.any(axis=0)]
    n, (r, c) = int(counts.sum()), counts.shape
    if n < 2 or min(r, c) < 2:
        return 0.0
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / n
    phi2 = float(((counts - expected) ** 2 / expected).sum()) / n
    phi2 = max(0.0, phi2 - (r - 1) * (c - 1) / (n - 1))
    smaller = min(r - (r - 1) ** 2 / (n - 1), c - (c - 1) ** 2 / (n - 1)) - 1
    return float(np.sqrt(min(1.0, phi2 / smaller))) if smaller > 0 else 0.0


def _correlation_ratio(groups: NDArray[np.integer], values: NDArray[np.float64]) -> float:
    known = ~np.isnan(values)
    groups, values = groups[known], values[known]
    if len(values) < 2 or np.ptp(values) == 0:
        return 0.0
    values = _unit(values)
    deviations = values - values.mean()
    many = np.bincount(groups)
    sums = np.bincount(groups, weights=deviations)
    between = float((sums**2 / np.maximum(many, 1)).sum())
    return float(np.sqrt(min(1.0, between / float((deviations**2).sum()))))
