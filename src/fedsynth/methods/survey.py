"""Adaptive bins: columns are cut where their rows are, by noisy counts alone.

The first step of Bayesian networks and of copulas. A number is surveyed in a few sums of ever finer cells; see
:mod:`fedsynth.models.cells`. Tables of several columns are counted over groups of those cells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedsynth.cliques import Clique
from fedsynth.federation.query import Counts
from fedsynth.methods.measure import measurements, total_records
from fedsynth.schema.bins import Floats

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation, Share, Sum
    from fedsynth.models.cells import Cells
    from fedsynth.models.estimate import Measurement

EXCHANGES = 3  # of a survey: a range of a million values is cut into single ones by 32, 32 and 32 parts
FINEST = 256.0  # rows in one of which a fine cell holds no more where it can be cut
CLEAR = 8.0  # standard deviations of noise that a cell holds, or it is not cut, and joins its neighbour
_EXACT_STD = 1e-6  # stands for the noise of exact tables: so little that it decides nothing


class Survey(NamedTuple):
    """Columns cut where their rows are, with estimated counts: what a survey found, of whom, and what it took.

    ``total`` is the number of records of the ``sites`` that answered, ``share`` the part of the budget that was spent.
    """

    columns: list[Cells]
    total: float
    sites: tuple[str, ...]
    share: float


def group_counts(columns: Sequence[Cells], cliques: Sequence[Clique]) -> Counts:
    """Return the query of tables of ``cliques`` over the columns' groups."""
    return Counts(tuple(cells.axis(at) for at, cells in enumerate(columns)), tuple(cliques))


def measure_groups(
    federation: Federation, columns: Sequence[Cells], cliques: Sequence[Clique], share: Share
) -> list[Measurement]:
    """Return noisy tables of ``cliques`` over the columns' groups; ``share`` pays for all of them together."""
    return group_tables(cliques, federation.sum(group_counts(columns, cliques), share))


def group_tables(cliques: Sequence[Clique], released: Sum) -> list[Measurement]:
    """Return released tables of ``cliques`` over groups as measurements."""
    return measurements(cliques, released.tables, released.stds, least_std=_EXACT_STD)


def noise_of(federation: Federation, share: Share, tables: int) -> float:
    """Return the noise's standard deviation in each cell of so many tables that ``share`` pays for together."""
    return federation.std(Counts.of(1, [(0,)] * max(1, tables)), share)


def survey(federation: Federation, share: float) -> Survey:
    """Return every column cut where its rows are, for at most ``share`` of the budget.

    A site that is lost has no part in counts and number: else counts that are projected on a larger number would be
    filled up evenly.

    The first of up to ``EXCHANGES`` sums counts all public cells, the others the cells of numbers that were cut since:
    those that hold more than one row in ``FINEST``, and ``CLEAR`` times more than the noise. Each has a part of
    ``share`` by its columns, for about equal noise; less is spent where nothing is left to cut.
    """
    from fedsynth.models.cells import Cells

    columns = [Cells.of(column) for column in federation.schema.stored]
    numbers = sum(cells.grid is not None for cells in columns)
    each = share / (len(columns) + (EXCHANGES - 1) * numbers)
    asked, total, sites, spent = list(range(len(columns))), 0.0, federation.sites, 0.0
    found: list[Measurement] = []
    for exchange in range(EXCHANGES):
        if exchange:
            least = max(total / FINEST, CLEAR * found[0].std)
            cut = {column: columns[column].cut(least) for column in asked}
            asked = [column for column, finer in cut.items() if len(finer.groups) > len(columns[column].groups)]
            for column in asked:
                columns[column] = cut[column]
        if not asked:
            break
        cliques: list[Clique] = [(column,) for column in asked]
        part = each * (numbers if exchange else len(columns))
        released = federation.sum(group_counts(columns, cliques), part)
        found = group_tables(cliques, released)
        spent += part
        if not exchange:
            total, sites = total_records(federation, found, released.sites), released.sites
        for table in found:
            (column,) = table.clique
            columns[column] = columns[column].told(table.values, table.std**2, total)
    return Survey(columns, total, sites, spent)


def one_way(columns: Sequence[Cells]) -> list[Measurement]:
    """Return what a survey says of each column's groups, as measured tables."""
    from fedsynth.models.estimate import Measurement

    found = []
    for column, cells in enumerate(columns):
        counts: Floats = np.bincount(cells.groups, weights=cells.counts).astype(np.float64)
        variance = float(np.bincount(cells.groups, weights=cells.variances).mean())
        found.append(Measurement((column,), counts, max(math.sqrt(variance), _EXACT_STD)))
    return found
