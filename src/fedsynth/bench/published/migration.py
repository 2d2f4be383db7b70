"""The FedBN thesis's structure search as published, NOT PRIVATE; private: :mod:`fedsynth.methods.migration`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fedsynth.bench.published import require_not_private
from fedsynth.cliques import all_marginals
from fedsynth.errors import whole
from fedsynth.methods.bayes import MeasuredPairs, measure_network
from fedsynth.methods.domain import Domain
from fedsynth.methods.measure import measure, network_order
from fedsynth.methods.migration import MigrationOptions
from fedsynth.methods.registry import method

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.models.synthesizer import Synthesizer


@method(
    "fedmigrationpaper",
    adaptive=True,
    private=False,
    order=network_order,
    exempt={"any split": "every site searches over its own dependences"},
)
@dataclass(frozen=True)
class FedMigrationPaper(MigrationOptions):
    """NOT PRIVATE: the FedBN thesis as published: the exact dependences of every site, over the schema's own bins.

    Each site has an island, on whose own dependences fitness is computed. The server runs all islands, for which sites
    send it their exact tables. The result is the same as if sites ran them, and no less private than in the thesis,
    where sites send fitness values and best individuals without noise. The thesis's clients average their conditional
    tables to agree on parameters; here the parameters are those of all rows.

    The thesis gives 100 to 200 individuals, 5 to 15 of which breed, and 5 to 25 generations between migrations, but
    neither the degree nor the number of rounds. The further options are those of
    :class:`~fedsynth.methods.migration.MigrationOptions`.

    Parameters
    ----------
    max_cells
        Largest number of cells of a table.
    not_private
        Must be true: it says that the rows are not protected.
    """

    rounds: int = 20
    max_cells: int = 5_000_000
    not_private: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        require_not_private(self, self.not_private)
        super().__post_init__()
        whole(max_cells=self.max_cells)

    def fit(self, federation: Federation) -> Synthesizer:
        """Run the method with exact tables: NOT PRIVATE."""
        from fedsynth.federation.federation import EXACT
        from fedsynth.models.adaptive_bins import AdaptiveBins
        from fedsynth.models.evolution import structure_of
        from fedsynth.models.structure import mutual_information

        columns = [AdaptiveBins.of_bins(column) for column in federation.schema.stored]
        domain = Domain(federation.schema, tuple(columns))
        ones = measure(federation, all_marginals(len(columns), 1), EXACT, domain=domain)
        total = max(1.0, float(ones[0].values.sum()))
        columns = [cells.updated(table.values, 0.0, total) for cells, table in zip(columns, ones, strict=True)]
        pairs = all_marginals(len(columns), 2)
        by_site = federation.each(domain.counts(pairs), EXACT) if pairs else {}
        local = [np.zeros((len(columns), len(columns))) for _ in by_site or federation.sites]
        for weights, released in zip(local, by_site.values(), strict=False):
            for pair, table in zip(pairs, released.tables, strict=True):
                weights[pair] = weights[pair[::-1]] = mutual_information(table)
        best = self.best(local, federation.rng)
        found = MeasuredPairs(columns, [], np.mean(local, axis=0), total, EXACT)
        structure = structure_of(best, found.dependences, found.sizes, self.max_cells)
        return measure_network(federation, found, structure, {"method": "fedmigrationpaper"})
