"""FedMigration: the FedBN thesis's structure search, by genetic algorithms that exchange their best structures.

Source: the FedBN thesis, in which sites search; here the server does, for all of them
(:mod:`fedsynth.models.evolution`). The fitness of a structure is the sum, over all columns, of the mutual information
of a column with each of its parents. Kept for comparison: :class:`~fedsynth.methods.bayes.FedChowLiu` finds the best
structure of the same objective in a fraction of the time, exactly for up to 20 columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsynth.errors import InvalidParameter, whole
from fedsynth.methods.bayes import measure_network, measure_pairs, measure_pairs_by_site, worth_cells
from fedsynth.methods.measure import check_shares, network_order, shares
from fedsynth.methods.registry import method

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.models.evolution import Population
    from fedsynth.models.structure import Array
    from fedsynth.models.synthesizer import Synthesizer


@dataclass(frozen=True)
class MigrationOptions:
    """Options of the genetic structure search of :class:`FedMigration`: populations evolve on separate islands.

    An individual is an order of the columns with candidate parents for each.

    Parameters
    ----------
    degree
        Number of candidate parents of a column in an individual.
    rounds, interval
        Number of rounds, between which islands exchange their fittest individuals, and of generations in a round.
    population, selection
        Number of individuals (candidate structures) of an island, and number of the fittest, which breed the next
        generation.
    """

    degree: int = 3
    rounds: int = 5
    interval: int = 20
    population: int = 100
    selection: int = 10

    def __post_init__(self) -> None:
        whole(degree=self.degree, rounds=self.rounds, interval=self.interval)
        whole(population=self.population, selection=self.selection)
        if self.selection >= self.population:
            raise InvalidParameter(
                f"selection = {self.selection} of a population of {self.population} leaves no place for offspring; "
                "select fewer, or raise population"
            )

    def best(self, weights: Sequence[Array], rng: np.random.Generator) -> Population:
        """Search for the best network on islands, one for each matrix in ``weights``; return it as a population of one.

        ``weights`` are symmetric matrices, shape ``(columns, columns)``. On island k the fitness of an individual,
        which is to be maximised, is the sum of ``weights[k][i, j]`` over all columns i and their parents j. In the end,
        each island offers its fittest individual, and the one with the highest mean fitness over all islands is
        returned.
        """
        from fedsynth.models.evolution import migrate

        return migrate(
            weights,
            rng,
            degree=self.degree,
            rounds=self.rounds,
            interval=self.interval,
            population=self.population,
            selection=self.selection,
        )


@method(
    "fedmigration",
    adaptive=True,
    order=network_order,
    exempt={"any split": "as many islands search for the structure as there are sites"},
)
@dataclass(frozen=True)
class FedMigration(MigrationOptions):
    """The FedBN thesis's genetic structure search made private: it reads noisy pairwise tables of all sites.

    The server runs as many islands as there are sites, so that migration costs no privacy and no messages; mutual
    information is estimated from the noisy tables. All islands see the same pooled tables, unless ``own_rows`` says
    that each sees those of one site, as in the thesis. The rest is as in :class:`~fedsynth.methods.bayes.FedChowLiu`.
    The further options are those of :class:`MigrationOptions`.

    Parameters
    ----------
    cells
        Largest number of groups of a numeric column in any table, besides one for missing values.
    survey_share, pair_share
        Shares of the budget for the survey of single columns, which gives adaptive bins, and for the tables of all
        pairs; the tables of the structure get the rest, so that the two must add up to less than 1.
    max_cells
        Largest number of cells of a table, however large the budget.
    own_rows
        Whether each island searches by the dependences of one site alone, so that migration exchanges structures that
        fit different rows, and the structure with the highest mean fitness over sites is used. Every site then releases
        its own tables of pairs, with noise of its own: more than a sum over sites needs.
    """

    cells: int = 16
    survey_share: float = 0.25
    pair_share: float = 0.4
    max_cells: int = 500_000
    own_rows: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        shares(survey_share=self.survey_share, pair_share=self.pair_share)
        check_shares("the structure's tables", survey_share=self.survey_share, pair_share=self.pair_share)
        whole(cells=self.cells, max_cells=self.max_cells)

    def fit(self, federation: Federation) -> Synthesizer:
        """Run the method; the result's ``info["parents"]`` are each column's parents, as column positions."""
        from fedsynth.models.evolution import structure_of

        options = (self.survey_share, self.pair_share, self.cells)
        if self.own_rows and len(federation.schema.stored) > 1:
            pairs, islands = measure_pairs_by_site(federation, *options)
        else:
            pairs = measure_pairs(federation, *options)
            islands = [pairs.dependences] * len(federation.sites)
        best = self.best(islands, federation.rng)
        most = worth_cells(federation, pairs, self.max_cells)
        structure = structure_of(best, pairs.dependences, pairs.sizes, most)
        return measure_network(federation, pairs, structure, {"method": "fedmigration"})
