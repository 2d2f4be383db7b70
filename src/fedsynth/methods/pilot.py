"""The pilot: a noisy table of every pair of columns over coarse groups, to find the dependent pairs."""

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
    """Noisy table of a pair over unions of groups."""

    measured: Measurement

    def distance(self, table: Floats) -> float:
        """Return an unbiased estimate of the squared distance of the pair's table to a known one; may be negative."""
        values, std = self.measured.values, self.measured.std
        return float(((values - table) ** 2).sum()) - std**2 * values.size


@dataclass(frozen=True, eq=False)
class Pilot:
    """Every pair's coarse table over ``axes``, with the strength of its dependence and its correlation.

    ``unions`` holds, for each column, the union that each group belongs to. ``strengths`` are estimated distances (L2,
    in rows) from independent columns. ``correlations`` are those of normal scores, 0 where noise hides them.
    """

    axes: tuple[Axis, ...]
    unions: dict[int, Integers]
    tables: dict[Clique, CoarseTable]
    strengths: dict[Clique, float]
    correlations: dict[Clique, float]

    def worked_into(
        self, ones: Sequence[Measurement], pairs: Sequence[Measurement]
    ) -> tuple[list[Measurement], list[Measurement]]:
        """Return the tables ``ones`` and ``pairs`` over the groups, averaged with the pilot's tables.

        The pilot's table of a pair that is not among ``pairs`` is averaged into its columns' tables.
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
    """Count all ``pairs`` over unions of a domain's groups in one sum, for ``share`` of the budget.

    Unions are so large that the mean cell of two numeric columns holds as many rows as one standard deviation of the
    noise. ``columns`` are the 1-way tables over the groups, of ``total`` records. If a pair's correlation stands out
    from the noise, its strength is at least that of the Gaussian copula with this correlation.
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
