"""Columns cut where their rows are, by noisy counts alone: the first step of Bayesian networks and of copulas.

A number is surveyed in a few sums of ever finer cells; see :mod:`fedsynth.models.cells`. Tables of several columns are
counted over groups of those cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter, Unsupported
from fedsynth.federation.federation import Federation, Sum
from fedsynth.federation.task import finite, query
from fedsynth.methods.marginals import total_records
from fedsynth.models.cells import Cells
from fedsynth.models.estimate import Measurement
from fedsynth.privacy.release import Exact, Release, Sensitivity
from fedsynth.schema import Schema
from fedsynth.table import Table
from fedsynth.workload import Clique

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Noise = Callable[[float], Release]  # the release that costs so much zCDP
EXCHANGES = 3  # of a survey: a range of a million values is cut into single ones by 32, 32 and 32 parts
FINEST = 256.0  # rows in one of which a fine cell holds no more where it can be cut
CLEAR = 8.0  # standard deviations of noise that a cell holds, or it is not cut, and joins its neighbour
_CHUNK = 1 << 15  # rows that are counted at a time: all their codes stay in the cache
_EXACT_STD = 1e-6  # stands for the noise of exact tables, by whose variance nothing could be weighted

# ---------------------------------------------------------------------------------------------------------------------
# What a site computes


def grouped_counts_sensitivity(
    schema: Schema, columns: Sequence[Mapping[str, Any]], cliques: Sequence[Sequence[int]], label: str = ""
) -> Sensitivity:
    """One record moves one cell of each of the m tables by one: m in L1, sqrt(m) in L2."""
    return Sensitivity(l1=len(cliques), l2=math.sqrt(len(cliques)))


def grouped_counts_cells(
    schema: Schema, columns: Sequence[Mapping[str, Any]], cliques: Sequence[Sequence[int]], label: str = ""
) -> int:
    """Cells of all the tables together."""
    sizes = [Cells.of_params(one).size for one in columns]
    return sum(math.prod(sizes[column] for column in clique) for clique in cliques)


@query(sensitivity=grouped_counts_sensitivity, cells=grouped_counts_cells)
def grouped_counts(
    table: Table, columns: Sequence[Mapping[str, Any]], cliques: Sequence[Sequence[int]], label: str = ""
) -> Integers:
    """Contingency tables of ``cliques`` over groups of cells, each flattened in C order, one after the other.

    ``columns`` describes every column's cells and their groups (public): see
    :attr:`fedsynth.models.cells.Cells.params`. ``label`` tells sums apart that are of one site each.
    """
    if not all(len(clique) for clique in cliques):
        raise InvalidParameter("a table needs at least one column; start the run again")
    codes: dict[int, Integers] = {}
    sizes: dict[int, int] = {}
    for column in sorted({column for clique in cliques for column in clique}):
        cells, described = Cells.of_params(columns[column]), table.schema.columns[column]
        fine = described.size if cells.grid is None else len(cells.grid) + described.missing
        finite(cells.groups, (fine,), f"groups of the cells of column {column}")
        if cells.groups.min() < 0:
            raise InvalidParameter(f"groups of column {column} must not be negative; start the run again")
        if cells.grid is not None and column not in table.numbers:
            raise Unsupported("the rows hold no numbers; encode them with Schema.encode")
        codes[column], sizes[column] = cells.codes(table.codes[column], table.numbers.get(column)), cells.size
    counted = [np.zeros(math.prod(sizes[column] for column in clique), dtype=np.int64) for clique in cliques]
    for start in range(0, len(table), _CHUNK):
        part = {column: one[start : start + _CHUNK] for column, one in codes.items()}
        for clique, counts in zip(cliques, counted, strict=True):
            flat = part[clique[0]]
            for column in clique[1:]:
                flat = flat * sizes[column] + part[column]
            counts += np.bincount(flat, minlength=len(counts))
    return np.concatenate(counted)


# ---------------------------------------------------------------------------------------------------------------------
# Steps that the methods share


def exact(rho: float) -> Exact:
    """Return the release without noise, whatever it was to cost."""
    return Exact()


def measure_groups(
    federation: Federation, columns: Sequence[Cells], cliques: Sequence[Clique], release: Release
) -> list[Measurement]:
    """Return tables of ``cliques`` over the columns' groups; ``release`` pays for all of them together."""
    params = {"columns": [one.params for one in columns], "cliques": list(cliques)}
    return tables_of(columns, cliques, federation.sum(grouped_counts, release, **params))


def tables_of(columns: Sequence[Cells], cliques: Sequence[Clique], released: Sum) -> list[Measurement]:
    """Return the tables that :func:`grouped_counts` laid end to end."""
    shapes = [tuple(columns[column].size for column in clique) for clique in cliques]
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    parts = np.split(released.values.astype(np.float64), ends[:-1])
    std = max(released.std, _EXACT_STD)
    return [Measurement(c, part.reshape(shape), std) for c, part, shape in zip(cliques, parts, shapes, strict=True)]


def noise_of(federation: Federation, release: Release, tables: int) -> float:
    """Return the noise's standard deviation in each cell of so many tables that ``release`` pays for together."""
    sites = len(federation.sites)
    return federation.std(grouped_counts, release, sites, columns=[], cliques=[(0,)] * max(1, tables))


def survey(federation: Federation, noise: Noise, rho: float) -> tuple[list[Cells], float, tuple[str, ...]]:
    """Return every column cut where its rows are, with estimated counts; the number of records; and whose they are.

    A site that is lost has no part in counts and number: else counts that are projected on a larger number would be
    filled up evenly.

    The first of up to ``EXCHANGES`` sums counts all public cells, the others the cells of numbers that were cut since:
    those that hold more than one row in ``FINEST``, and ``CLEAR`` times more than the noise. Each has a share of
    ``rho`` by its columns, for about equal noise; less is spent where nothing is left to cut.
    """
    columns = [Cells.of(column) for column in federation.schema.columns]
    numbers = sum(one.grid is not None for one in columns)
    each = rho / (len(columns) + (EXCHANGES - 1) * numbers)
    asked, total, sites = list(range(len(columns))), 0.0, federation.sites
    for exchange in range(EXCHANGES):
        cliques, release = [(column,) for column in asked], noise(each * (numbers if exchange else len(columns)))
        released = federation.sum(grouped_counts, release, columns=[one.params for one in columns], cliques=cliques)
        found = tables_of(columns, cliques, released)
        if not exchange:
            total, sites = total_records(federation, found, released.sites), released.sites
        for one in found:
            (column,) = one.clique
            columns[column] = columns[column].told(one.values, one.std**2, total)
        if exchange == EXCHANGES - 1:
            break
        least = max(total / FINEST, CLEAR * found[0].std)
        cut = {column: columns[column].cut(least) for column in asked}
        asked = [column for column, finer in cut.items() if len(finer.groups) > len(columns[column].groups)]
        if not asked:
            break
        for column in asked:
            columns[column] = cut[column]
    return columns, total, sites


def one_way(columns: Sequence[Cells]) -> list[Measurement]:
    """Return what a survey says of each column's groups, as measured tables."""
    found = []
    for column, cells in enumerate(columns):
        counts: Array = np.bincount(cells.groups, weights=cells.counts).astype(np.float64)
        variance = float(np.bincount(cells.groups, weights=cells.variances).mean())
        found.append(Measurement((column,), counts, max(math.sqrt(variance), _EXACT_STD)))
    return found
