"""A pilot: every pair of columns counted over coarse groups of a survey's cells, to tell which pairs depend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedsynth.cliques import Clique
from fedsynth.methods.domain import Domain
from fedsynth.methods.measure import margins_of, measure, pair_weights
from fedsynth.methods.survey import groups_for, noise_of
from fedsynth.schema.bins import Axis, Floats, Integers

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.models.estimate import Measurement


@dataclass(frozen=True, eq=False)
class CoarseTable:
    """A pair's noisy table over unions of groups."""

    measured: Measurement

    def distance(self, table: Floats) -> float:
        """Return an unbiased estimate of the squared distance of the pair's table to a known one; may be negative."""
        values, std = self.measured.values, self.measured.std
        return float(((values - table) ** 2).sum()) - std**2 * values.size


@dataclass(frozen=True, eq=False)
class Pilot:
    """Every pair's coarse table over ``axes``, and what the tables say of the pairs.

    ``unions`` holds the union of each group, by column; ``strengths`` are estimated distances (L2, in rows) from
    independent columns, ``correlations`` those of normal scores, 0 where there is no clear one.
    """

    axes: tuple[Axis, ...]
    unions: dict[int, Integers]
    tables: dict[Clique, CoarseTable]
    strengths: dict[Clique, float]
    correlations: dict[Clique, float]

    def worked_into(
        self, ones: Sequence[Measurement], pairs: Sequence[Measurement]
    ) -> tuple[list[Measurement], list[Measurement]]:
        """Return tables of columns and of pairs over the groups, averaged with what the pilot says of them.

        A pair that is not among ``pairs`` is worked into its columns' tables.
        """
        from fedsynth.models.pair_tables import averaged

        columns, held = list(ones), {table.clique for table in pairs}
        for clique, table in self.tables.items():
            if clique not in held:
                for at in clique:
                    columns[at] = averaged(columns[at], table.measured.onto((at,)), self.unions)
        return columns, [averaged(table, self.tables[table.clique].measured, self.unions) for table in pairs]


def pilot(
    federation: Federation,
    domain: Domain,
    pairs: Sequence[Clique],
    share: float,
    columns: Sequence[Measurement],
    total: float,
) -> Pilot:
    """Count ``pairs`` over unions of a domain's groups, all of them for ``share`` of the budget, in one sum.

    The mean cell of two unions of a number holds the noise. ``columns`` are the 1-way tables over the groups, of
    ``total`` records. A pair's strength is at least that of the Gaussian copula of a correlation that is clear.
    """
    from fedsynth.models.pair_tables import Margin, dependence

    noise = noise_of(federation, share, len(pairs))
    unions = {at: cells.unions(noise, groups_for(total, noise)) for at, cells in enumerate(domain.held)}
    coarse = Domain(
        domain.schema,
        tuple(replace(cells, groups=unions[at][cells.groups]) for at, cells in enumerate(domain.held)),
    )
    measured = measure(federation, pairs, share, pair_weights(coarse, pairs, federation.budget), coarse)
    margins = {
        at: Margin(
            np.bincount(unions[at], weights=fine.shares).astype(np.float64),
            coarse.held[at].ordered(domain.schema.stored[at]),
        )
        for at, fine in margins_of(domain, columns, total).items()
    }
    found = {}
    for table in measured:
        first, second = (margins[at] for at in table.clique)
        found[table.clique] = dependence(table.values, table.std, first, second, total)
    return Pilot(
        coarse.axes,
        unions,
        {table.clique: CoarseTable(table) for table in measured},
        {pair: strength for pair, (strength, _) in found.items()},
        {pair: correlation for pair, (_, correlation) in found.items()},
    )
