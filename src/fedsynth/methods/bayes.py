"""FedChowLiu: a Bayesian network from noisy pairwise tables, with an exact instead of a genetic structure search.

The FedBN thesis searches structures with a genetic algorithm that reads every site's exact dependences (see
:mod:`fedsynth.methods.migration`). Corrected: one noisy sum of all pairwise tables, from which the best structure is
found by post-processing; adaptive bins of numeric columns; every release accounted for; tables projected onto the
simplex instead of clipped. Trees: Chow & Liu (doi 10.1109/TIT.1968.1054142).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from fedsynth.cliques import all_marginals, maximal
from fedsynth.errors import InvalidParameter, whole
from fedsynth.methods.domain import Domain
from fedsynth.methods.measure import measure, share_left, shares
from fedsynth.methods.registry import method
from fedsynth.methods.survey import CLEAR, noise_of, one_way, survey
from fedsynth.privacy.cost import ROUNDING

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation, Share
    from fedsynth.models.cells import Cells
    from fedsynth.models.estimate import Measurement
    from fedsynth.models.structure import Array, Structure
    from fedsynth.models.synthesizer import Synthesizer

MOST = 64  # groups of a categorical column, at most
USEFUL = 2.0  # a table is used only if its mean cell holds this many standard deviations of the noise

# ---------------------------------------------------------------------------------------------------------------------
# Steps that the methods with Bayesian networks share


def grouped(columns: Sequence[Cells], std: float, total: float, cells: int) -> list[Cells]:
    """Group surveyed columns so that 2-way tables with noise of ``std`` per cell, in records, are informative.

    Each group stands out from the noise, and so does the mean cell of a pair of columns, of ``total`` records. Numeric
    columns, whose neighbouring cells are similar, have at most ``cells`` groups. ``columns`` and the result have one
    entry for each stored column.
    """
    most = max(2, math.floor(min(MOST, math.sqrt(total / (USEFUL * std)) if std else MOST)))
    return [one.grouped(CLEAR * std, min(cells, most) if one.grid is not None else most) for one in columns]


class Pairs(NamedTuple):
    """Input of a Bayesian network's structure search, from :func:`measure_pairs`: all 2-way tables and dependences.

    ``columns`` are the grouped columns, over which the noisy ``tables`` of all pairs were counted. ``dependences`` is
    the symmetric matrix of estimated mutual information, in nats, shape ``(columns, columns)``. ``total`` is the number
    of records, and ``left`` the part of the run's budget left for the structure's tables, 0 if the shares spent add up
    to 1.
    """

    columns: list[Cells]
    tables: list[Measurement]
    dependences: Array
    total: float
    left: Share

    @property
    def sizes(self) -> list[int]:
        """Number of groups of each column, in order."""
        return [cells.size for cells in self.columns]


def measure_pairs(federation: Federation, survey_share: float, pair_share: float, cells: int) -> Pairs:
    """Survey the columns, then measure all 2-way tables in one sum, over groups large enough for the noise.

    The survey (noisy counts of single columns, which give adaptive bins) costs ``survey_share`` of the budget and the
    sum ``pair_share``. A numeric column has at most ``cells`` groups. Raises :class:`SiteLost` if too few sites answer.
    """
    from fedsynth.models.structure import dependences

    pairs = all_marginals(len(federation.schema.stored), 2)
    columns, total, _ = survey(federation, survey_share)
    if not pairs:
        pair_share = 0.0
    left = share_left(survey_share, pair_share)
    columns = grouped(columns, noise_of(federation, pair_share or left, len(pairs)), total, cells)
    domain = Domain(federation.schema, tuple(columns))
    tables = measure(federation, pairs, pair_share, domain=domain) if pairs else []
    return Pairs(columns, tables, dependences(one_way(columns), tables, total, federation.rng), total, left)


def worth_cells(federation: Federation, pairs: Pairs, most: float) -> float:
    """Return the largest number of cells at which a table of the structure still stands out from the noise.

    A structure has one table for each column with its parents. A table of that size has ``USEFUL`` (2) standard
    deviations of the noise in its mean cell, if the budget left (``pairs.left``) is split over all columns but one. The
    result is at most ``most``, and equal to it without such a budget or without noise.
    """
    if not pairs.left:
        return most
    std = noise_of(federation, pairs.left, len(pairs.columns) - 1)
    return min(most, pairs.total / (USEFUL * std)) if std else most


def finished(federation: Federation, pairs: Pairs, structure: Structure, info: Mapping[str, Any]) -> Synthesizer:
    """Measure the tables of a network's ``structure`` with the budget left, if any, and return its synthesizer.

    They are averaged with the earlier tables in ``pairs`` (2-way, and of single columns) before the network's
    conditional distributions are computed. ``info`` holds JSON values for the synthesizer; its cliques and parents are
    added.
    """
    from fedsynth.models.bayes_net import BayesianNetwork
    from fedsynth.models.gum import consistent

    cliques, domain = maximal(structure.cliques), Domain(federation.schema, tuple(pairs.columns))
    measured = [*one_way(pairs.columns), *pairs.tables]
    if pairs.left:
        measured += measure(federation, cliques, pairs.left, domain=domain)
    tables = consistent(measured, pairs.total, zeros=domain.zeros)
    held = {clique: table for clique, table in tables.items() if len(clique) == 1 or clique in cliques}
    network = BayesianNetwork.of_tables(structure, held, pairs.total, zeros=domain.zeros)
    parents = [list(one) for one in structure.parents]
    details = {**info, "cliques": [list(clique) for clique in cliques], "parents": parents}
    return domain.synthesizer(network, details)


# ---------------------------------------------------------------------------------------------------------------------
# The method


@method("fedchowliu", adaptive=True)
@dataclass(frozen=True)
class FedChowLiu:
    """A Bayesian network of at most ``degree`` parents per column, optimal for the noisy pairwise tables.

    It takes three rounds of one noisy sum over sites each: a survey of single columns, which gives adaptive bins, all
    pairs, and the tables that the structure needs. Grouping, structure search and consistency are post-processing. The
    search is exact for up to 20 columns, and for ``degree = 1`` with any number
    (:func:`~fedsynth.models.structure.best_structure`). A budget with delta = 0 pays for Laplace noise; it is larger,
    since a vector of m tables moves by m in L1. Without noise the sums are those of the pooled rows; degree = 4 and
    cells = 20 are then worth their time. Options out of range raise :class:`InvalidParameter`.

    Parameters
    ----------
    degree
        Largest number of parents of a column. A table is used only if its mean cell stands out from the noise, so a
        small budget gives small tables, down to a tree.
    cells
        Largest number of groups of a numeric column in any table.
    survey_share, pair_share
        Shares of the budget for the survey and for the pairs. If they add up to 1 (but for rounding), there is no third
        round: the tables of the pairs also give the parameters, and the degree must be 1.
    max_cells
        Largest number of cells of a table, however large the budget.
    """

    degree: int = 3
    cells: int = 16
    survey_share: float = 0.25
    pair_share: float = 0.4
    max_cells: int = 500_000

    def __post_init__(self) -> None:
        """Reject invalid options."""
        whole(degree=self.degree, cells=self.cells, max_cells=self.max_cells)
        shares(survey_share=self.survey_share, pair_share=self.pair_share)
        if self.survey_share + self.pair_share > ROUNDING:
            raise InvalidParameter(
                f"survey_share = {self.survey_share} and pair_share = {self.pair_share} exceed the budget; they must "
                "add up to 1 or less"
            )
        if self.degree != 1 and not share_left(self.survey_share, self.pair_share):
            raise InvalidParameter(
                f"survey_share = {self.survey_share} and pair_share = {self.pair_share} leave nothing for tables of "
                f"{self.degree + 1} columns; lower one of them, or set degree = 1"
            )

    def fit(self, federation: Federation) -> Synthesizer:
        """Spend the budget of ``federation`` at its sites and return the fitted generator of synthetic rows.

        The result's ``info`` has each column's number of ``groups`` and its ``parents`` (column positions). Raises what
        :meth:`Method.fit <fedsynth.methods.registry.Method.fit>` lists.
        """
        from fedsynth.models.structure import best_structure

        pairs = measure_pairs(federation, self.survey_share, self.pair_share, self.cells)
        # The best structure whose tables stand out from the noise.
        most = worth_cells(federation, pairs, self.max_cells)
        structure = best_structure(pairs.dependences, self.degree, pairs.sizes, most)
        return finished(federation, pairs, structure, {"method": "fedchowliu", "groups": pairs.sizes})
