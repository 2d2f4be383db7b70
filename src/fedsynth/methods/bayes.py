"""FedChowLiu: a Bayesian network from noisy pairwise tables, with an exact instead of a genetic structure search.

The FedBN thesis searches structures with a genetic algorithm that reads every site's exact dependences (see
:mod:`fedsynth.methods.migration`). Corrected: one noisy sum of all pairwise tables, from which the best structure is
found by post-processing; adaptive bins of numeric columns; every release accounted for; tables projected onto the
simplex instead of clipped. Trees: Chow & Liu (doi 10.1109/TIT.1968.1054142).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedsynth.cliques import all_marginals, maximal
from fedsynth.errors import InvalidParameter, whole
from fedsynth.methods.domain import Domain
from fedsynth.methods.measure import averages, measure, measurements, network_order, share_left, shares
from fedsynth.methods.registry import method
from fedsynth.methods.survey import CLEAR, WIDEST, noise_of, one_way, survey
from fedsynth.privacy.cost import ROUNDING

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation, Share
    from fedsynth.models.adaptive_bins import AdaptiveBins
    from fedsynth.models.estimate import Measurement
    from fedsynth.models.structure import Array, Structure
    from fedsynth.models.synthesizer import Synthesizer

MOST = WIDEST  # groups of any column, at most
USEFUL = 2.0  # a table is used only if its mean cell holds this many standard deviations of the noise

# ---------------------------------------------------------------------------------------------------------------------
# Steps that the methods with Bayesian networks share


def grouped(columns: Sequence[AdaptiveBins], std: float, total: float, cells: int) -> list[AdaptiveBins]:
    """Merge the values of each surveyed column into groups that are coarse enough for 2-way tables with noise.

    The tables will hold ``total`` records, with noise of standard deviation ``std`` (records) per cell. Every group
    holds at least 8 ``std`` records, and the mean cell of a table of two columns at least 2 ``std``, as far as the
    records suffice. A numeric column has at most ``cells`` groups, besides one for missing values.
    """
    most = max(2, math.floor(min(MOST, math.sqrt(total / (USEFUL * std)) if std else MOST)))
    return [one.grouped(CLEAR * std, min(cells, most) if one.grid is not None else most) for one in columns]


class MeasuredPairs(NamedTuple):
    """Input of a Bayesian network's structure search, from :func:`measure_pairs`: all 2-way tables and dependences.

    ``columns`` are the columns' groups, and ``tables`` the noisy tables of all pairs over them. ``dependences`` is the
    symmetric matrix of estimated mutual information, in nats, shape ``(columns, columns)``. ``total`` is the number of
    records of all sites, and ``left`` the part of the budget that is left for the tables of a network (each column with
    its parents).
    """

    columns: list[AdaptiveBins]
    tables: list[Measurement]
    dependences: Array
    total: float
    left: Share

    @property
    def sizes(self) -> list[int]:
        """Number of groups of each column, in order."""
        return [cells.size for cells in self.columns]


def measure_pairs(federation: Federation, survey_share: float, pair_share: float, cells: int) -> MeasuredPairs:
    """Survey the columns, then measure all 2-way tables in one noisy sum over sites, and return both.

    The survey costs ``survey_share`` of the budget. It gives a numeric column at most ``cells`` groups besides missing
    values, large enough for the noise of the 2-way tables, which cost ``pair_share`` of the budget together.
    """
    from fedsynth.models.structure import dependences

    pairs = all_marginals(len(federation.schema.stored), 2)
    columns, total, _ = survey(federation, survey_share)
    if not pairs:
        pair_share = 0.0
    remaining = share_left(survey_share, pair_share)
    columns = grouped(columns, noise_of(federation, pair_share or remaining, len(pairs)), total, cells)
    domain = Domain(federation.schema, tuple(columns))
    tables = measure(federation, pairs, pair_share, domain=domain) if pairs else []
    dependent = dependences(one_way(columns), tables, total, federation.rng)
    return MeasuredPairs(columns, tables, dependent, total, remaining)


def measure_pairs_by_site(
    federation: Federation, survey_share: float, pair_share: float, cells: int
) -> tuple[MeasuredPairs, list[Array]]:
    """Return :func:`measure_pairs`, but from noisy tables of every site by itself, and each site's own dependences.

    Every site adds the full noise of ``pair_share`` to its own tables, under any trust model; a sum over K sites then
    has K times the variance of one site's. The dependences are those of ``MeasuredPairs``, one matrix for each site
    that answers, estimated from its tables alone. Groups are large enough for the noise of a site of average size.
    """
    from fedsynth.models.estimate import Measurement
    from fedsynth.models.structure import dependences

    pairs = all_marginals(len(federation.schema.stored), 2)
    columns, total, _ = survey(federation, survey_share)
    alone = replace(federation, sites=federation.sites[:1])
    noise = noise_of(alone, pair_share, len(pairs)) * len(federation.sites)
    columns = grouped(columns, noise, total, cells)
    domain = Domain(federation.schema, tuple(columns))
    by_site = [
        measurements(pairs, released.tables, released.stds)
        for released in (federation.each(domain.counts(pairs), pair_share).values() if pairs else ())
    ]
    local = []
    for own in by_site:
        ones = averages([table.onto((column,)) for table in own for column in table.clique])
        local.append(dependences(ones, own, max(1.0, float(ones[0].values.sum())), federation.rng))
    tables = [
        Measurement(pair, np.sum([one.values for one in own], axis=0), math.hypot(*(one.std for one in own)))
        for pair, own in zip(pairs, zip(*by_site, strict=True), strict=True)
    ]
    together = dependences(one_way(columns), tables, total, federation.rng)
    return MeasuredPairs(columns, tables, together, total, share_left(survey_share, pair_share)), local


def worth_cells(federation: Federation, pairs: MeasuredPairs, most: float) -> float:
    """Return the largest number of cells that a table of a column and its parents may have under the noise.

    The mean cell of such a table holds ``USEFUL`` (2) standard deviations of the noise if ``pairs.left`` is divided
    equally between the tables of all columns but the network's first, which has no parents. The result is at most
    ``most``, and ``most`` itself if no budget is left or there is no noise.
    """
    if not pairs.left:
        return most
    std = noise_of(federation, pairs.left, len(pairs.columns) - 1)
    return min(most, pairs.total / (USEFUL * std)) if std else most


def measure_network(
    federation: Federation, pairs: MeasuredPairs, structure: Structure, info: Mapping[str, Any]
) -> Synthesizer:
    """Measure the tables of a Bayesian network with this ``structure`` with ``pairs.left``; return its synthesizer.

    They are averaged with the noisy 2-way tables and counts of single columns in ``pairs``; if nothing is left, these
    alone are used. ``info`` is extended by ``cliques`` (the tables) and ``parents``, both as column positions.
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


@method("fedchowliu", adaptive=True, order=network_order)
@dataclass(frozen=True)
class FedChowLiu:
    """A Bayesian network of at most ``degree`` parents per column, optimal for the noisy pairwise tables.

    It takes three rounds (or two, see ``pair_share``) of one noisy sum over sites each: a survey of single columns,
    which gives adaptive bins, all pairs of columns, and each column with its parents. The network is the one with the
    largest sum of the mutual information of each column with each of its parents, estimated from the noisy tables of
    pairs. The search is exact for up to 20 columns, and for ``degree = 1`` with any number
    (:func:`~fedsynth.models.structure.best_structure`). Under pure DP (delta = 0) the noise is larger: one record moves
    a vector of m tables by m in L1, but by sqrt(m) in L2. Without noise the sums are those of the pooled rows, and more
    detail (degree = 4, cells = 20) pays off.

    Parameters
    ----------
    degree
        Largest number of parents of a column. A table is used only if its mean cell stands out from the noise, so a
        small budget gives small tables, down to a tree.
    cells
        Largest number of groups of a numeric column in any table, besides one for missing values.
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
        """Run the method; the result's ``info`` has each column's number of ``groups`` and its ``parents``."""
        from fedsynth.models.structure import best_structure

        pairs = measure_pairs(federation, self.survey_share, self.pair_share, self.cells)
        # The best structure whose tables stand out from the noise.
        most = worth_cells(federation, pairs, self.max_cells)
        structure = best_structure(pairs.dependences, self.degree, pairs.sizes, most)
        return measure_network(federation, pairs, structure, {"method": "fedchowliu", "groups": pairs.sizes})
