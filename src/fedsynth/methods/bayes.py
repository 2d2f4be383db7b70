"""FedBN without its search: a Bayesian network from noisy pairwise tables, its structure found exactly and for free.

The thesis searches structures with a genetic algorithm that reads every site's exact dependences (see
:mod:`fedsynth.methods.migration`). Corrected: one noisy sum of all pairwise tables, of which the best structure is
post-processing; numbers cut where their rows are; every release accounted for from end to end; tables projected on the
simplex in place of clipped. Trees: Chow & Liu (doi 10.1109/TIT.1968.1054142).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter, Unsupported
from fedsynth.federation.federation import Federation, Sum
from fedsynth.federation.task import finite, query
from fedsynth.methods.marginals import positive, total_records
from fedsynth.models.bayes_net import BayesianNetwork
from fedsynth.models.cells import Cells
from fedsynth.models.estimate import Measurement
from fedsynth.models.gum import consistent
from fedsynth.models.structure import Structure, best_structure, dependences
from fedsynth.models.synthesizer import BayesSynthesizer
from fedsynth.privacy.release import Exact, Gaussian, Laplace, Release, Sensitivity
from fedsynth.schema import Schema
from fedsynth.table import Table
from fedsynth.workload import Clique, maximal

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Noise = Callable[[float], Release]  # the release that costs so much zCDP
EXCHANGES = 3  # of a survey: a range of a million values is cut into single ones by 32, 32 and 32 parts
FINEST = 256.0  # rows in one of which a fine cell holds no more where it can be cut
CLEAR = 8.0  # standard deviations of noise that a cell holds, or it is not cut, and joins its neighbour
MOST = 64  # groups of a category
USEFUL = 2.0  # standard deviations of noise that the mean cell of a table holds, or the table is not used
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


def laplace(rho: float) -> Laplace:
    """Return the discrete Laplace release that costs ``rho`` in zCDP: pure DP at epsilon = sqrt(2 rho)."""
    return Laplace(math.sqrt(2 * rho))


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


def survey(federation: Federation, noise: Noise, rho: float) -> tuple[list[Cells], float]:
    """Return every column cut where its rows are, with estimated counts, and the number of records.

    The first of up to ``EXCHANGES`` sums counts all public cells, the others the cells of numbers that were cut since:
    those that hold more than one row in ``FINEST``, and ``CLEAR`` times more than the noise. Each has a share of
    ``rho`` by its columns, for about equal noise; less is spent where nothing is left to cut.
    """
    columns = [Cells.of(column) for column in federation.schema.columns]
    numbers = sum(one.grid is not None for one in columns)
    each = rho / (len(columns) + (EXCHANGES - 1) * numbers)
    asked, total = list(range(len(columns))), 0.0
    for exchange in range(EXCHANGES):
        found = measure_groups(
            federation, columns, [(column,) for column in asked], noise(each * (numbers if exchange else len(columns)))
        )
        total = total or total_records(federation, found)
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
    return columns, total


def one_way(columns: Sequence[Cells]) -> list[Measurement]:
    """Return what a survey says of each column's groups, as measured tables."""
    found = []
    for column, cells in enumerate(columns):
        counts: Array = np.bincount(cells.groups, weights=cells.counts).astype(np.float64)
        variance = float(np.bincount(cells.groups, weights=cells.variances).mean())
        found.append(Measurement((column,), counts, max(math.sqrt(variance), _EXACT_STD)))
    return found


def grouped(columns: Sequence[Cells], std: float, total: float, cells: int) -> list[Cells]:
    """Return columns in groups that pairs of them with noise of ``std`` a cell can be told by.

    A group stands out from the noise, and so does the mean cell of a pair of columns; numbers, whose neighbours are
    alike, have at most ``cells`` groups.
    """
    most = max(2, math.floor(min(MOST, math.sqrt(total / (USEFUL * std)) if std else MOST)))
    return [one.grouped(CLEAR * std, min(cells, most) if one.grid is not None else most) for one in columns]


def worth_cells(federation: Federation, release: Release, total: float, most: float) -> float:
    """Return how many cells a table may have so that its mean cell holds ``USEFUL`` times more than the noise."""
    std = noise_of(federation, release, len(federation.schema.columns) - 1)
    return min(most, total / (USEFUL * std)) if std else most


def finished(
    federation: Federation,
    columns: Sequence[Cells],
    known: Sequence[Measurement],
    structure: Structure,
    release: Release | None,
    total: float,
    info: Mapping[str, Any],
) -> BayesSynthesizer:
    """Ask for the tables of a structure (unless there is no ``release``), and return the synthesizer.

    What is ``known`` of pairs is averaged in: of the same tables, and of the columns by themselves.
    """
    cliques = maximal(structure.cliques)
    measured = [*one_way(columns), *known]
    if release is not None:
        measured += measure_groups(federation, columns, cliques, release)
    held = {
        clique: table for clique, table in consistent(measured, total).items() if len(clique) == 1 or clique in cliques
    }
    network = BayesianNetwork.of_tables(structure, held, total)
    parents = [list(one) for one in structure.parents]
    details = {**info, "cliques": [list(clique) for clique in cliques], "parents": parents}
    return BayesSynthesizer(federation.schema, tuple(columns), network, details)


def chow_liu(
    federation: Federation,
    noise: Noise,
    degree: int,
    cells: int,
    survey_share: float,
    pair_share: float,
    max_cells: float,
    name: str,
) -> BayesSynthesizer:
    """Fit a network of at most ``degree`` parents a column: survey, one sum of all pairs, one sum of the chosen tables.

    ``noise`` turns a cost into a release. Structure, grouping and consistency are post-processing.
    """
    rho = federation.rho
    pairs = list(itertools.combinations(range(len(federation.schema.columns)), 2))
    columns, total = survey(federation, noise, survey_share * rho)

    # Groups that noise would not drown, and the tables of all pairs of them, in one sum.
    alone = survey_share + pair_share == 1 or not pairs
    rho_pairs = federation.rho if alone else pair_share * rho
    std = noise_of(federation, noise(rho_pairs), len(pairs))
    columns = grouped(columns, std, total, cells)
    two_way = measure_groups(federation, columns, pairs, noise(rho_pairs)) if pairs else []

    # The best structure of tables that are worth their noise.
    last = None if alone and pairs else noise(federation.rho)
    most = max_cells if last is None else worth_cells(federation, last, total, max_cells)
    weights = dependences(one_way(columns), two_way, total, federation.rng)
    structure = best_structure(weights, degree, [one.size for one in columns], most)
    info = {"method": name, "groups": [one.size for one in columns]}
    return finished(federation, columns, two_way, structure, last, total, info)


# ---------------------------------------------------------------------------------------------------------------------
# The methods


@dataclass(frozen=True)
class FedChowLiu:
    """A Bayesian network of best structure from noisy pairwise tables, under Gaussian noise.

    At most five exchanges of one plain sum each: up to three that survey the columns, one of all pairs, one of the
    tables that the structure needs.

    Parameters
    ----------
    degree
        Most parents of a column. A table is only used where its mean cell stands out from the noise, so that a small
        budget gives a tree by itself.
    cells
        Most groups of cells that a column has in any table.
    survey_share, pair_share
        Shares of the budget for the survey and for the pairs. Where they add up to 1, nothing else is asked, and the
        tables of the pairs give the parameters too: then the degree must be 1.
    max_cells
        Largest table, however large the budget.
    """

    degree: int = 3
    cells: int = 16
    survey_share: float = 0.25
    pair_share: float = 0.4
    max_cells: int = 500_000

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        _check(self.degree, self.cells, self.survey_share, self.pair_share, self.max_cells)

    def fit(self, federation: Federation) -> BayesSynthesizer:
        """Spend what the federation's budget has left, and return the generator."""
        return chow_liu(federation, Gaussian, **vars(self), name="fedchowliu")


@dataclass(frozen=True)
class FedChowLiuLaplace:
    """The same under discrete Laplace noise; parameters as for :class:`FedChowLiu`.

    Pure differential privacy at the epsilon that ``info`` names, which is the sum over releases; the budget is spent in
    zCDP like any other. A vector of m tables has L1 sensitivity m, so that this is noisier than Gaussian noise.
    """

    degree: int = 3
    cells: int = 16
    survey_share: float = 0.25
    pair_share: float = 0.4
    max_cells: int = 500_000

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        _check(self.degree, self.cells, self.survey_share, self.pair_share, self.max_cells)

    def fit(self, federation: Federation) -> BayesSynthesizer:
        """Spend what the federation's budget has left, and return the generator."""
        before = len(federation.ledger.entries)
        fitted = chow_liu(federation, laplace, **vars(self), name="fedchowliulaplace")
        spent = [entry.release for entry in federation.ledger.entries[before:]]
        pure = sum(release.epsilon for release in spent if isinstance(release, Laplace))
        return replace(fitted, info={**fitted.info, "pure_epsilon": pure})


@dataclass(frozen=True)
class FedChowLiuExact:
    """NOT PRIVATE: the same from exact sums: what it comes to as noise vanishes; parameters as above."""

    degree: int = 4
    cells: int = 20
    max_cells: int = 500_000

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        _check(self.degree, self.cells, 0.5, 0.25, self.max_cells)

    def fit(self, federation: Federation) -> BayesSynthesizer:
        """Ask for exact sums, and return the generator."""
        # Shares of nothing: they only say that something is asked after the pairs.
        return chow_liu(federation, exact, **vars(self), survey_share=0.5, pair_share=0.25, name="fedchowliuexact")


def _check(degree: int, cells: int, survey_share: float, pair_share: float, max_cells: float) -> None:
    positive(degree=degree, cells=cells, survey_share=survey_share, pair_share=pair_share, max_cells=max_cells)
    if survey_share + pair_share > 1:
        raise InvalidParameter(f"shares of {survey_share} and {pair_share} exceed the budget; let them add up to 1")
    if survey_share + pair_share == 1 and degree != 1:
        raise InvalidParameter(f"nothing is left for tables of {degree + 1} columns; lower a share, or set degree = 1")
