"""FedBN without its search: a Bayesian network from noisy pairwise tables, its structure found exactly and for free.

The thesis searches structures with a genetic algorithm that reads every site's exact dependences (see
:mod:`fedsynth.methods.migration`). Corrected: one noisy sum of all pairwise tables, of which the best structure is
post-processing; numbers cut where their rows are; every release accounted for from end to end; tables projected on the
simplex in place of clipped. Trees: Chow & Liu (doi 10.1109/TIT.1968.1054142).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsynth.errors import InvalidParameter
from fedsynth.federation.federation import Federation, Share
from fedsynth.methods.measure import positive
from fedsynth.methods.survey import CLEAR, measure_groups, noise_of, one_way, survey
from fedsynth.models.bayes_net import BayesianNetwork
from fedsynth.models.cells import Cells
from fedsynth.models.estimate import Measurement
from fedsynth.models.gum import consistent
from fedsynth.models.structure import Structure, best_structure, dependences
from fedsynth.models.synthesizer import BayesSynthesizer
from fedsynth.workload import maximal

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


def worth_cells(federation: Federation, share: float, total: float, most: float) -> float:
    """Return how many cells a table may have so that its mean cell holds ``USEFUL`` times more than the noise."""
    std = noise_of(federation, share, len(federation.schema.columns) - 1)
    return min(most, total / (USEFUL * std)) if std else most


def finished(
    federation: Federation,
    columns: Sequence[Cells],
    known: Sequence[Measurement],
    structure: Structure,
    share: Share,
    total: float,
    info: Mapping[str, Any],
) -> BayesSynthesizer:
    """Ask for the tables of a structure for ``share`` of the budget (nothing for 0), and return the synthesizer.

    What is ``known`` of pairs is averaged in: of the same tables, and of the columns by themselves.
    """
    cliques = maximal(structure.cliques)
    measured = [*one_way(columns), *known]
    if share:
        measured += measure_groups(federation, columns, cliques, share)
    held = {
        clique: table for clique, table in consistent(measured, total).items() if len(clique) == 1 or clique in cliques
    }
    network = BayesianNetwork.of_tables(structure, held, total)
    parents = [list(one) for one in structure.parents]
    details = {**info, "cliques": [list(clique) for clique in cliques], "parents": parents}
    return BayesSynthesizer(federation.schema, tuple(columns), network, details)


# ---------------------------------------------------------------------------------------------------------------------
# The method


@dataclass(frozen=True)
class FedChowLiu:
    """A Bayesian network of at most ``degree`` parents a column, its structure the best of noisy pairwise tables.

    At most five exchanges of one plain sum each: up to three that survey the columns, one of all pairs, one of the
    tables that the structure needs. Grouping, structure and consistency are post-processing. A budget with delta = 0
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

    def fit(self, federation: Federation) -> BayesSynthesizer:
        """Spend the federation's budget, and return the generator."""
        count = len(federation.schema.columns)
        pairs = list(itertools.combinations(range(count), 2))
        columns, total, _, spent = survey(federation, self.survey_share)

        # Groups that noise would not drown, and the tables of all pairs of them, in one sum.
        pairs_last = bool(pairs) and self.survey_share + self.pair_share == 1
        pair_share = 1 - spent if pairs_last else self.pair_share if pairs else 0.0
        last = 0.0 if pairs_last else 1 - spent - pair_share
        columns = grouped(columns, noise_of(federation, pair_share or last, len(pairs)), total, self.cells)
        two_way = measure_groups(federation, columns, pairs, pair_share) if pairs else []

        # The best structure of tables that are worth their noise.
        most = worth_cells(federation, last, total, self.max_cells) if last else self.max_cells
        weights = dependences(one_way(columns), two_way, total, federation.rng)
        structure = best_structure(weights, self.degree, [one.size for one in columns], most)
        info = {"method": "fedchowliu", "groups": [one.size for one in columns]}
        return finished(federation, columns, two_way, structure, last, total, info)
