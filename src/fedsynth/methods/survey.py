"""The survey: adaptive bins of every column, found from noisy counts alone.

A numeric column of many values is counted over coarse cells of its range, over their parts and over the parts of these,
in one sum; the server replaces a cell by its parts where its count stands out from the noise. Tables of several columns
are counted over groups of the resulting cells. The default method, the Bayesian networks and the methods that train
networks begin with a survey; so do others, unless no column needs one or their option ``bins_share`` is 0.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedsynth.federation.query import Counts, Extent
from fedsynth.methods.code_lists import at_least, is_code_list, kept_codes
from fedsynth.methods.domain import Domain
from fedsynth.methods.measure import (
    EXACT_STD,
    averages,
    measurements,
    optional_shares,
    table_shares,
    total_records,
    weights_for,
)
from fedsynth.methods.surveyed_column import column_bins
from fedsynth.privacy.release import Exact
from fedsynth.schema.bins import Floats
from fedsynth.schema.columns import Categorical

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation, Share
    from fedsynth.models.adaptive_bins import AdaptiveBins
    from fedsynth.models.estimate import Measurement
    from fedsynth.schema import Schema

_log = logging.getLogger(__name__)

SURVEY = 0.2  # share of the budget for a survey by default, of methods that can do without
CLEAR = 8.0  # groups below this many standard deviations of the noise are merged with others
MOST = 24  # groups of a numeric column, at most
WIDEST = 64  # groups of a numeric column in the tables of any method, at most, besides one for missing values
HELD = 3.0  # mean count of a table of two numeric columns, in standard deviations of the noise, at least
_LARGEST = 2**22  # cells of a survey; beyond it, the widest numeric columns lose their finest level
_VALUES = 2**20  # cells of all fourth levels that have one for each value; and values of all others
_NEAREST = 2**17  # values of a column, those nearest to zero, of which a fourth level has a cell each if not of all
_OF_ALL_SITES = 2**23  # _VALUES times the number of sites, at most: bounds bytes and time of a sum over many sites
_MOST_CELLS = 2**32  # no answer has more
_FINER = (1.0, 4 / 9, 1 / 9, 1 / 9)  # price of each level, relative to the first


class Survey(NamedTuple):
    """Result of :func:`survey`: ``columns`` are the adaptive bins of every stored column, with estimated counts.

    Each is fine cells of values with their estimated numbers of records. ``sites`` are the names of the sites that
    answered, and ``total`` is the (public or estimated) number of their records.
    """

    columns: list[AdaptiveBins]
    total: float
    sites: tuple[str, ...]


def largest_tables(schema: Schema, order: int) -> Extent:
    """Return the largest tables of one question of a method whose tables have at most ``order`` columns, for plans.

    The number of cells is that of a survey (every level of every stored column) or, if larger, of one table for each
    set of up to ``order`` columns. A column then has as many groups as the schema gives it or, if it is a number and
    adaptive bins are finer, :data:`WIDEST` and one for missing values.
    """
    levels = [[len(level.groups) for level in of] for of in _levels(schema)]
    sums = [1] + [0] * min(order, len(levels))  # sums[k]: cells of the tables of all sets of k columns so far
    for size, of in zip(schema.sizes, levels, strict=True):
        width = max(size, min(WIDEST + 1, of[-1]))
        for k in range(len(sums) - 1, 0, -1):
            sums[k] += width * sums[k - 1]
    cells = max(sum(map(sum, levels)), sum(sums[1:]))
    return Extent(len(levels), len(sums) - 1, min(cells, _MOST_CELLS))


def noise_of(federation: Federation, share: Share, tables: int) -> float:
    """Return the noise's standard deviation per cell, in records, if ``tables`` tables divide ``share`` equally."""
    return federation.std(Counts.of(1, [(0,)] * max(1, tables)), share)


def survey(federation: Federation, share: Share) -> Survey:
    """Find adaptive bins for every stored column by one noisy sum over sites, for ``share`` of the budget.

    A categorical column is counted in one table. A numeric one is counted in up to three: about 32 cells, those next to
    zero cut by magnitude (or one per value, up to 128 values), about 1,000 parts of these, and about 30,000 of those;
    where these hold several integers, decimals or times, a fourth table may have a cell for each, or for each near
    zero. A record is in one cell of every table, so neither a table's cost nor its sensitivity depends on its cells.
    Finer tables get a smaller share, since they only have to show what stands out. Values that many rows share (atoms)
    are found first, in all tables (:mod:`fedsynth.models.atoms`). Of the other rows, a cell with at least one in
    ``FINEST`` (256) of all rows, and at least ``CUT`` (4) standard deviations of the noise, is cut. They are spread
    evenly over neighbouring cells unless the counts differ by more than the noise (:mod:`fedsynth.models.piecewise`).
    Of code lists, the codes that stand out stay (:mod:`fedsynth.methods.code_lists`).
    A site that fails is left out of both the counts and the total. Rows whose values noise hides are logged as a
    warning.
    """
    from fedsynth.models.adaptive_bins import START

    levels = _levels(federation.schema, len(federation.sites))
    asked = [(at, level) for at, of in enumerate(levels) for level in range(len(of))]
    axes = tuple(levels[at][level].axis(at) for at, level in asked)
    first = table_shares([min(START, len(levels[at][0].groups)) for at, _ in asked], federation.budget)
    prices = [price * _FINER[level] for price, (_, level) in zip(first, asked, strict=True)]
    if not isinstance(share, Exact):
        lists = [place for place, (at, _) in enumerate(asked) if is_code_list(federation.schema.stored[at])]
        prices = at_least(prices, lists, share)
    query = Counts(axes, tuple((place,) for place in range(len(axes))), weights_for(prices, federation.budget))
    released = federation.sum(query, share)
    tables = measurements([(at,) for at, _ in asked], released.tables, released.stds)
    total = total_records(federation, tables, released.sites)
    by_level = dict(zip(asked, tables, strict=True))

    doubt = 0.0 if federation.sizes is not None else 1 / sum(1 / (table.std**2 * table.values.size) for table in tables)
    columns = [
        column_bins(column, of, [by_level[at, level] for level in range(len(of))], total, doubt)
        for at, (column, of) in enumerate(zip(federation.schema.stored, levels, strict=True))
    ]
    for at, column in enumerate(federation.schema.stored):
        if isinstance(column, Categorical) and is_code_list(column):
            table = by_level[at, 0]
            columns[at] = kept_codes(column, columns[at], table.values, table.std, total)
            _log.warning(
                "column %r: %d of its %d listed codes stand out from the noise; the rows of all others, about %.0f of "
                "them, become 'other' if no shorter code of the list takes them",
                *(column.name, np.count_nonzero(columns[at].counts), len(column.values)),
                columns[at].counts[column.labels.index("other")],
            )
    for column, cells in zip(federation.schema.stored, columns, strict=True):
        if cells.unplaced:
            _log.warning(
                "column %r: noise hides which values about %.0f of its rows have; "
                "a larger epsilon, more rows or fewer columns show more",
                *(column.name, cells.unplaced),
            )
    return Survey(columns, total, released.sites)


def _levels(schema: Schema, sites: int = 1) -> list[list[AdaptiveBins]]:
    """Return, for each stored column, the cells of each of its levels, from coarse to fine.

    Where the third level of integers, decimals or times has cells of several values, a fourth has a cell for each.
    Columns of fewer values come first, as long as there is room (``_VALUES``, 2^20; less for more than eight
    ``sites``). The other numbers share as much room again equally: each has a cell for each of the values nearest to
    zero, ``_NEAREST`` (2^17) at most, and the cells of its third level beyond; more than about 50 of them have none.
    More sites never mean more cells. At their price, fourth levels add at most 4 % to the noise of a survey.
    """
    from fedsynth.models.adaptive_bins import LEVELS, AdaptiveBins

    levels = [AdaptiveBins.levels(column) for column in schema.stored]
    spare = _LARGEST - _VALUES - 2 * _cells(levels)  # fourth levels have all cells of the third ones once more
    room = unused = min(_VALUES, _OF_ALL_SITES // sites)
    wide = []
    for values, at in sorted((_values(of[-1]), at) for at, of in enumerate(levels) if len(of) == LEVELS):
        if values <= unused:
            unused -= _with_values(levels[at], unused)
        elif values < math.inf and not schema.stored[at].is_time:  # no time is nearest to zero
            wide.append(at)
    for at in wide:
        _with_values(levels[at], min(_NEAREST, min(room, spare) // len(wide)))
    while _cells(levels) > _LARGEST and max(map(len, levels)) >= LEVELS:
        widest = max(levels, key=lambda of: len(of[-1].groups) if len(of) >= LEVELS else 0)
        widest.pop()
    return levels


def _cells(levels: Sequence[Sequence[AdaptiveBins]]) -> int:
    return sum(len(cells.groups) for of in levels for cells in of)


def _with_values(levels: list[AdaptiveBins], most: int) -> int:
    """Add a level with a cell for each value, or for ``most`` values; return its cells, 0 if it would divide none."""
    finest = levels[-1].to_values(most)
    if len(finest.groups) == len(levels[-1].groups):
        return 0
    levels.append(finest)
    return len(finest.groups)


def _values(cells: AdaptiveBins) -> float:
    """Return how many values lie in the range of a number or time; infinity for a column of real numbers."""
    assert cells.grid is not None
    return float(cells.grid.upper[-1] - cells.grid.lower[0]) * (cells.grid.per_unit or math.inf)


def groups_for(total: float, std: float) -> int:
    """Return the largest number of groups per column, from 2 to ``MOST`` (24), for which a mean cell holds ``std``.

    That is the mean cell of a 2-way table of ``total`` records; ``std`` (records) is the noise, or a multiple of it.
    """
    return max(2, math.floor(min(MOST, math.sqrt(total / std) if std else MOST)))


def noise_groups(schema: Schema, surveyed: Survey, std: float) -> tuple[AdaptiveBins, ...]:
    """Merge a survey's bins into groups, for 2-way tables whose noise has the standard deviation ``std`` per cell.

    Groups of numeric columns are so large that the mean cell of a table of two such columns holds about ``HELD`` (3)
    times ``std`` or more, as far as two groups per column allow; finer detail would be lost in the noise. Values of a
    categorical column with fewer than ``std`` estimated rows are merged into one group, and share its rows evenly if
    they have no order and are no code list; more values are merged if all pairs' tables would not fit into one sum.
    Categorical columns in a rule of the ``schema`` keep all their values.
    """
    from fedsynth.models.adaptive_bins import rare_together

    ruled = {at for rule in schema.rules for at in map(schema.index, rule.never)}
    most = groups_for(surveyed.total, HELD * std)
    columns = [cells if cells.grid is None else cells.grouped(std, most) for cells in surveyed.columns]
    largest = _largest([cells.size for cells in columns])
    for at, cells in enumerate(columns):
        if cells.grid is None and at not in ruled:
            rows = np.bincount(cells.groups, weights=cells.counts).astype(np.float64)
            frequent = _of_most_frequent(rows, largest)
            rare = frequent < std
            if rare.sum() > 1:
                counts = cells.counts
                if not cells.in_order and not is_code_list(schema.stored[at]):
                    counts = np.where(rare, counts[rare].mean(), counts)
                columns[at] = replace(cells, groups=rare_together(frequent, std)[cells.groups], counts=counts)
    return tuple(columns)


def _of_most_frequent(counts: Floats, most: int) -> Floats:
    """Return ``counts`` with all but the ``most`` largest set to -1; of equal counts the first are the largest."""
    frequent = np.full(len(counts), -1.0)
    kept = np.argsort(-counts, kind="stable")[:most]
    frequent[kept] = counts[kept]
    return frequent


def _largest(sizes: Sequence[int]) -> int:
    """Return about the largest number of groups per column (at least 2) whose tables of all pairs fit into one sum."""
    largest = max(sizes)
    while sum(min(size, largest) for size in sizes) ** 2 > 2 * _LARGEST and largest > 2:
        largest = largest * 3 // 4
    return largest


@dataclass(frozen=True)
class SurveyOption:
    """The first step of methods that count tables: a survey for adaptive bins, unless no column needs one.

    Parameters
    ----------
    bins_share
        Share of the budget for the survey. A method's other shares are then shares of what is left, and 2-way tables
        over adaptive bins are denoised before a model is fitted. ``None``: 20 % if a number or time has too many values
        to give each a cell, or a category is a code list, else 0; also 0 with three servers, which allow no survey. 0:
        the schema's own bins, as in the papers.
    """

    bins_share: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        optional_shares(bins_share=self.bins_share)

    def share_for_survey(self, federation: Federation) -> float:
        """Return the share of the budget for the survey, 0 for none.

        Without a number or time of many values, or a code list, the schema's own bins or values serve as well. A bound
        of such a number that is far above most rows would put them into one bin of equal width.
        """
        from fedsynth.models.adaptive_bins import AdaptiveBins

        if self.bins_share is not None:
            return self.bins_share
        grids = [AdaptiveBins.of(column).grid for column in federation.schema.stored]
        many = any(grid is not None and not grid.single.all() for grid in grids)
        many = many or any(map(is_code_list, federation.schema.stored))
        return SURVEY if many and federation.trust.sums is not None else 0.0

    def share_after_survey(self, federation: Federation) -> float:
        """Return the share of the budget that the survey leaves for the method's own questions."""
        return 1 - self.share_for_survey(federation)

    def surveyed(self, federation: Federation, tables: int, table_share: float, larger: float = 1.0) -> Domain:
        """Return the bins for a method's tables: adaptive bins found by a survey, or the schema's own without one.

        The bins are chosen for the noise of the method's own ``tables``, which together cost ``table_share`` of the
        budget. ``larger`` is the number of cells of one of them, relative to a 2-way table.
        """
        share = self.share_for_survey(federation)
        if not share:
            return Domain(federation.schema)
        columns = survey(federation, share)
        std = larger * noise_of(federation, table_share, tables)
        return Domain(federation.schema, noise_groups(federation.schema, columns, std))


def one_way(columns: Sequence[AdaptiveBins]) -> list[Measurement]:
    """Return the counts of a survey as noisy 1-way tables, one for each column, at no further privacy cost."""
    from fedsynth.models.estimate import Measurement

    tables = []
    for column, cells in enumerate(columns):
        counts: Floats = np.bincount(cells.groups, weights=cells.counts).astype(np.float64)
        variance = float(np.bincount(cells.groups, weights=cells.variances).mean())
        tables.append(Measurement((column,), counts, max(math.sqrt(variance), EXACT_STD)))
    return tables


def with_survey(domain: Domain, columns: Sequence[Measurement]) -> list[Measurement]:
    """Return the 1-way tables ``columns``, averaged by inverse variance with the survey's counts, if any."""
    if domain.columns is None:
        return list(columns)
    return averages([*one_way(domain.columns), *columns])
