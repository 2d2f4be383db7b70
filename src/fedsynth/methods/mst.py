"""MST: a maximum spanning tree of the strongest pairs, over columns whose rare values are merged, against a vault.

Source: McKenna, Miklau & Sheldon, "Winning the NIST Contest", JPC 2021 (arXiv 2108.04978).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedsynth.cliques import Clique, all_marginals
from fedsynth.errors import positive
from fedsynth.federation.query import Counts
from fedsynth.methods.measure import fit_noisy, measure_in_vault, measurements, total_records
from fedsynth.methods.registry import method
from fedsynth.methods.survey import one_way
from fedsynth.schema.bins import Axis
from fedsynth.schema.derive import forbidden_cells

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedsynth.federation.federation import Federation
    from fedsynth.federation.vault import Vault
    from fedsynth.models.cells import Cells
    from fedsynth.models.estimate import Measurement
    from fedsynth.models.synthesizer import Synthesizer
    from fedsynth.schema import Schema


@method("mst", needs_vault=True, adaptive=True)
@dataclass(frozen=True)
class MST:
    """Measures the pairs of a spanning tree that is drawn edge by edge, by how far each is from independence.

    A third of the budget each pays for the 1-way tables, for the draws and for the tree's tables. Values of a column
    whose noisy count is lost in the noise are one group from then on, and rows of the group take each of them equally
    often.

    Source: McKenna, Miklau & Sheldon (arXiv 2108.04978). The published code fits with the variance of each group; here
    a column's groups share their mean variance, as in a survey.

    Parameters
    ----------
    rare
        Standard deviations of noise below which a value's count is lost in it.
    iterations
        Upper bound on the steps of the fit.
    """

    rare: float = 3.0
    iterations: int = 1000

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        positive(rare=self.rare, iterations=self.iterations)

    def fit(self, federation: Federation) -> Synthesizer:
        """Spend the federation's budget, and return the generator."""
        from fedsynth.models.synthesizer import Synthesizer

        schema = federation.schema
        ones, pairs = (all_marginals(len(schema.stored), order) for order in (1, 2))
        vault = federation.deposit(Counts.of(len(ones), ones), 1 / 3 if pairs else 1.0)
        released = measure_in_vault(vault, len(ones), ones, vault.left)
        total = total_records(federation, released)
        columns = merged_columns(schema, released, total, self.rare)
        measured = one_way(columns)
        tree: list[Clique] = []
        if pairs:
            axes = tuple(Axis(at, None, cells.groups) for at, cells in enumerate(columns))
            vault = federation.deposit(Counts(axes, pairs), 2 / 3)
            tree = spanning_tree(vault, pairs, measured, total, 1 / 3)
            measured += measurements(tree, *vault.open(Counts(axes, tuple(tree)), vault.left))
        zeros = forbidden_cells(schema, columns)
        model = fit_noisy(tuple(cells.size for cells in columns), measured, total, self.iterations, zeros=zeros)
        return Synthesizer(schema, tuple(columns), model, {"method": "mst", "cliques": [list(pair) for pair in tree]})


def merged_columns(schema: Schema, released: Sequence[Measurement], total: float, rare: float) -> list[Cells]:
    """Return each column's own bins and values with their counts, the ``rare`` ones in one group, the last."""
    from fedsynth.models.cells import Cells

    found = []
    for column, table in zip(schema.stored, released, strict=True):
        cells = Cells.of_bins(column).told(table.values, table.std**2, total)
        lost = table.values < rare * table.std
        if lost.sum() > 1:
            kept = len(lost) - int(lost.sum())
            groups = np.where(lost, kept, np.cumsum(~lost) - 1)
            counts = np.where(lost, cells.counts[lost].mean(), cells.counts)
            cells = replace(cells, groups=groups, counts=counts)
        found.append(cells)
    return found


def spanning_tree(
    vault: Vault, pairs: Sequence[Clique], measured: Sequence[Measurement], total: float, share: float
) -> list[Clique]:
    """Return the edges of a spanning tree, drawn one after the other by the exponential mechanism; together ``share``.

    An edge's score is the L1 distance between the pair's table and the product of its columns' tables ``measured``.
    """
    from fedsynth.federation.vault import WeightedL1

    independent = {pair: np.outer(measured[pair[0]].values, measured[pair[1]].values) / total for pair in pairs}
    root = list(range(len(measured)))
    tree: list[Clique] = []
    while free := [pair for pair in pairs if root[pair[0]] != root[pair[1]]]:
        expected = tuple(independent[pair] for pair in free)
        scores = WeightedL1(tuple(free), expected, np.ones(len(free)), np.zeros(len(free)))
        chosen = free[vault.select(scores, share / (len(measured) - 1))]
        tree.append(chosen)
        root = [root[chosen[1]] if head == root[chosen[0]] else head for head in root]
    return tree
