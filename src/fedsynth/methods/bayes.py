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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter
from fedsynth.federation.federation import Federation
from fedsynth.methods.marginals import positive
from fedsynth.methods.survey import CLEAR, Noise, exact, measure_groups, noise_of, one_way, survey
from fedsynth.models.bayes_net import BayesianNetwork
from fedsynth.models.cells import Cells
from fedsynth.models.estimate import Measurement
from fedsynth.models.gum import consistent
from fedsynth.models.structure import Structure, best_structure, dependences
from fedsynth.models.synthesizer import BayesSynthesizer
from fedsynth.privacy.release import Gaussian, Laplace, Release
from fedsynth.workload import maximal

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
MOST = 64  # groups of a category
USEFUL = 2.0  # standard deviations of noise that the mean cell of a table holds, or the table is not used

# ---------------------------------------------------------------------------------------------------------------------
# Steps that the methods share


def laplace(rho: float) -> Laplace:
    """Return the discrete Laplace release that costs ``rho`` in zCDP: pure DP at epsilon = sqrt(2 rho)."""
    return Laplace(math.sqrt(2 * rho))


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
    columns, total, _ = survey(federation, noise, survey_share * rho)

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
