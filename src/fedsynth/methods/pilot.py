"""A look at every pair over coarse groups of a survey's cells: which pairs depend is told by that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedsynth.cliques import Clique
from fedsynth.methods.domain import Domain
from fedsynth.methods.measure import measure
from fedsynth.methods.survey import groups_for, noise_of
from fedsynth.schema.bins import Axis, Floats

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


class Pilot(NamedTuple):
    """Every pair's coarse table over ``axes``, and its estimated distance (L2, in rows) from independent columns."""

    axes: tuple[Axis, ...]
    tables: dict[Clique, CoarseTable]
    strengths: dict[Clique, float]


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
    from fedsynth.models.gum import simplex
    from fedsynth.models.pair_tables import Margin, strength

    noise = noise_of(federation, share, len(pairs))
    unions = [cells.unions(noise, groups_for(total, noise)) for cells in domain.held]
    united = tuple(replace(cells, groups=of[cells.groups]) for cells, of in zip(domain.held, unions, strict=True))
    coarse = Domain(domain.schema, united)
    measured = measure(federation, pairs, share, domain=coarse)
    margins = [
        Margin(np.bincount(of, weights=simplex(one.values, total)) / total, cells.ordered(column))
        for of, one, cells, column in zip(unions, columns, united, domain.schema.stored, strict=True)
    ]
    strengths: dict[Clique, float] = {}
    for table in measured:
        first, second = (margins[at] for at in table.clique)
        strengths[table.clique] = strength(table.values, table.std, first, second, total)
    return Pilot(coarse.axes, {table.clique: CoarseTable(table) for table in measured}, strengths)
