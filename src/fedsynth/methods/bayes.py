"""FedBN without its search: a Bayesian network from noisy pairwise tables, its structure found exactly and for free.

The thesis searches structures with a genetic algorithm that reads every site's exact dependences (see
:mod:`fedsynth.methods.migration`). Corrected: one noisy sum of all pairwise tables, of which the best structure is
post-processing; numbers cut where their rows are; every release accounted for from end to end; tables projected on the
simplex in place of clipped. Trees: Chow & Liu (doi 10.1109/TIT.1968.1054142).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from fedsynth.cliques import all_marginals, maximal
from fedsynth.errors import InvalidParameter, positive
from fedsynth.methods.domain import Domain
from fedsynth.methods.measure import measure
from fedsynth.methods.registry import method
from fedsynth.methods.survey import CLEAR, noise_of, one_way, survey

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation, Share
    from fedsynth.models.cells import Cells
    from fedsynth.models.estimate import Measurement
    from fedsynth.models.structure import Array, Structure
    from fedsynth.models.synthesizer import Synthesizer

MOST = 64  # groups of a category
USEFUL = 2.0  # standard deviations of noise that the mean cell of a table holds, or the table is not used

# ---------------------------------------------------------------------------------------------------------------------
# Steps that network methods share


def grouped(columns: Sequence[Cells], std: float, total: float, cells: int) -> list[Cells]:
    """Return columns in groups that pairs of them with noise of ``std`` a cell can be told by.

    A group stands out from the noise, and so does the mean cell of a pair of columns; numbers, whose neighbours are
    alike, have at most ``cells`` groups.
    """
    most = max(2, math.floor(min(MOST, math.sqrt(total / (USEFUL * std)) if std else MOST)))
    return [one.grouped(CLEAR * std, min(cells, most) if one.grid is not None else most) for one in columns]


class Pairs(NamedTuple):
    """What a structure is chosen from: columns in groups, ``tables`` of all pairs of them, and each pair's dependence.

    ``total`` is the number of records, ``left`` the share of the budget that is left for the structure's tables.
    """

    columns: list[Cells]
    tables: list[Measurement]
    dependences: Array
    total: float
    left: Share

    @property
    def sizes(self) -> list[int]:
        """Number of groups of each column."""
        return [cells.size for cells in self.columns]


def measure_pairs(federation: Federation, survey_share: float, pair_share: float, cells: int) -> Pairs:
    """Survey the columns, and measure all pairs of groups that noise would not drown, in one sum.

    A number has at most ``cells`` groups.
    """
    from fedsynth.models.structure import dependences

    pairs = all_marginals(len(federation.schema.stored), 2)
    columns, total, _ = survey(federation, survey_share)
    if not pairs:
        pair_share = 0.0
    left = 1 - survey_share - pair_share
    columns = grouped(columns, noise_of(federation, pair_share or left, len(pairs)), total, cells)
    domain = Domain(federation.schema, tuple(columns))
    tables = measure(federation, pairs, pair_share, domain=domain) if pairs else []
    return Pairs(columns, tables, dependences(one_way(columns), tables, total, federation.rng), total, left)


def worth_cells(federation: Federation, pairs: Pairs, most: float) -> float:
    """Return how many cells a table may have so that its mean cell holds ``USEFUL`` times more than the noise."""
    if not pairs.left:
        return most
    std = noise_of(federation, pairs.left, len(pairs.columns) - 1)
    return min(most, pairs.total / (USEFUL * std)) if std else most


def finished(federation: Federation, pairs: Pairs, structure: Structure, info: Mapping[str, Any]) -> Synthesizer:
    """Ask for the tables of a structure with what is left of the budget, if any, and return the synthesizer.

    What is known of pairs is averaged in: of the same tables, and of the columns by themselves.
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
    """A Bayesian network of at most ``degree`` parents a column, its structure the best of noisy pairwise tables.

    Three exchanges of one plain sum each: the survey of the columns, all pairs, and the tables that the structure
    needs. Grouping, structure and consistency are post-processing. A budget with delta = 0
    is spent on Laplace noise, and a vector of m tables moves by m in L1: that is noisier. Without noise the sums are
    those of the pooled rows; degree = 4 and cells = 20 are then worth their time.

    Parameters
    ----------
    degree
        Most parents of a column. A table is only used where its mean cell stands out from the noise, so that a small
        budget gives a tree by itself.
    cells
        Most groups of cells that a number has in any table.
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
        both = self.survey_share + self.pair_share
        positive(
            degree=self.degree,
            cells=self.cells,
            survey_share=self.survey_share,
            pair_share=self.pair_share,
            max_cells=self.max_cells,
        )
        if both > 1:
            raise InvalidParameter(
                f"shares of {self.survey_share} and {self.pair_share} exceed the budget; let them add up to 1 or less"
            )
        if both == 1 and self.degree != 1:
            raise InvalidParameter(
                f"nothing is left for tables of {self.degree + 1} columns; lower a share, or set degree = 1"
            )

    def fit(self, federation: Federation) -> Synthesizer:
        """Spend the federation's budget, and return the generator."""
        from fedsynth.models.structure import best_structure

        pairs = measure_pairs(federation, self.survey_share, self.pair_share, self.cells)
        # The best structure of tables that are worth their noise.
        most = worth_cells(federation, pairs, self.max_cells)
        structure = best_structure(pairs.dependences, self.degree, pairs.sizes, most)
        return finished(federation, pairs, structure, {"method": "fedchowliu", "groups": pairs.sizes})
