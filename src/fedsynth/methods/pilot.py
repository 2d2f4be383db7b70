"""The pilot: a noisy table of every pair of columns over coarse groups, to find the dependent pairs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedsynth.cliques import Clique
from fedsynth.methods.domain import Domain
from fedsynth.methods.interactions import measure_interactions
from fedsynth.methods.measure import clean_pairs, fit_clean, margins_of, pair_weights
from fedsynth.methods.survey import HELD, groups_for, noise_of
from fedsynth.schema.bins import Floats, Integers

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.models.estimate import Measurement
    from fedsynth.models.mrf import MarkovRandomField

_ITERATIONS = 30  # of a fit to coarse tables, which need not be exact


@dataclass(frozen=True, eq=False)
class CoarseTable:
    """A noisy table of two columns over coarse bins, each a union of finer groups, as counted by :func:`pilot`."""

    measured: Measurement

    def distance(self, table: Floats) -> float:
        """Return an unbiased estimate of the squared L2 distance (records^2) to ``table``; it may be negative."""
        values, std = self.measured.values, self.measured.std
        rows, columns = values.shape
        return float(((values - table) ** 2).sum() - std**2 * (rows - 1) * (columns - 1))


@dataclass(frozen=True, eq=False)
class Pilot:
    """Result of :func:`pilot`: a coarse noisy table of every pair of columns, with estimates of the pair's dependence.

    ``domain`` has the coarse bins, and ``unions[column][group]`` is the number of the bin that contains a finer group.
    ``ones`` are the noisy 1-way tables over the bins, in order, of ``total`` records. By pair of column positions,
    ``strengths`` are the estimated L2 distances, in records, of the pairs' tables from those of independent columns,
    and ``correlations`` the correlations of normal scores, 0 where noise hides them.
    """

    domain: Domain
    ones: list[Measurement]
    total: float
    unions: dict[int, Integers]
    tables: dict[Clique, CoarseTable]
    strengths: dict[Clique, float]
    correlations: dict[Clique, float]

    def fitted(self, pairs: Sequence[Clique], start: MarkovRandomField | None = None) -> MarkovRandomField:
        """Return a graphical model of the denoised tables of ``pairs``, fitted from ``start``, of some of them."""
        tables = [self.tables[pair].measured for pair in pairs if pair in self.tables]
        clean = clean_pairs(self.domain, self.ones, tables, self.total)
        without = [clean[table.clique].measurement(table.clique, table.std) for table in tables]
        return fit_clean(self.domain, [*self.ones, *without], self.total, _ITERATIONS, start)

    def unexplained(self, model: MarkovRandomField, pairs: Iterable[Clique]) -> dict[Clique, float]:
        """Return how far the coarse tables of ``pairs`` are from those of a model: L2 distances, in records.

        They are those of the exact tables (:meth:`CoarseTable.distance`), at least 0. A pair with a column of one bin
        is left out.
        """
        asked = [pair for pair in pairs if pair in self.tables]
        expected = model.marginals(asked)
        return {pair: math.sqrt(max(self.tables[pair].distance(expected[pair]), 0.0)) for pair in asked}

    def worked_into(self, pairs: Sequence[Measurement]) -> list[Measurement]:
        """Return finer noisy tables of ``pairs``, averaged by their noise with the pilot's coarse ones."""
        from fedsynth.models.pair_tables import averaged

        return [
            averaged(table, self.tables[table.clique].measured, self.unions) if table.clique in self.tables else table
            for table in pairs
        ]


def pilot(
    federation: Federation,
    domain: Domain,
    pairs: Sequence[Clique],
    share: float,
    columns: Sequence[Measurement],
    total: float,
) -> Pilot:
    """Count all ``pairs`` of columns over coarse unions of groups in one noisy sum, to find the dependent pairs.

    The sum costs ``share`` of the budget. The groups of ``domain`` are united into bins so large that the mean cell of
    a table of two numeric columns holds about ``HELD`` (3) standard deviations of the noise or more, as far as two bins
    per column allow. ``columns`` are the noisy 1-way tables over the groups, in order, of ``total`` records. If a
    pair's dependence stands out from the noise, its estimated distance from independence is at least that of the table
    expected of it (:func:`~fedsynth.models.pair_tables.expected`).
    """
    from fedsynth.models.estimate import Measurement
    from fedsynth.models.pair_tables import Margin, dependence

    noise = noise_of(federation, share, len(pairs))
    unions = {at: cells.unions(noise, groups_for(total, HELD * noise)) for at, cells in enumerate(domain.held)}
    coarse = Domain(
        domain.schema,
        tuple(replace(cells, groups=unions[at][cells.groups]) for at, cells in enumerate(domain.held)),
    )
    margins = {
        at: Margin(
            np.bincount(unions[at], weights=fine.shares).astype(np.float64),
            coarse.held[at].ordered(domain.schema.stored[at]),
        )
        for at, fine in margins_of(domain, columns, total).items()
    }
    ones = [
        Measurement(
            counts.clique,
            np.bincount(unions[at], weights=counts.values).astype(np.float64),
            counts.std * math.sqrt(len(unions[at]) / coarse.sizes[at]),
        )
        for at, counts in enumerate(columns)
    ]
    dividing = [pair for pair in pairs if min(coarse.shape(pair)) > 1]
    if not dividing:
        return Pilot(coarse, ones, total, unions, {}, dict.fromkeys(pairs, 0.0), {})
    weights = pair_weights(coarse, dividing, federation.budget)
    released = measure_interactions(federation, coarse, dividing, share, weights)
    measured = [interaction.table(margins, total) for interaction in released]
    dependences = {}
    for table in measured:
        first, second = (margins[at] for at in table.clique)
        dependences[table.clique] = dependence(table.values, table.std, first, second, total)
    return Pilot(
        coarse,
        ones,
        total,
        unions,
        {table.clique: CoarseTable(table) for table in measured},
        dict.fromkeys(pairs, 0.0) | {pair: strength for pair, (strength, _) in dependences.items()},
        {pair: correlation for pair, (_, correlation) in dependences.items()},
    )
