"""MST: a spanning tree of strongly dependent pairs of columns, on a vault.

Source: McKenna, Miklau & Sheldon, "Winning the NIST Contest", JPC 2021 (arXiv 2108.04978).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedsynth.cliques import Clique, all_marginals
from fedsynth.errors import positive, whole
from fedsynth.federation.query import Counts
from fedsynth.methods.domain import Domain
from fedsynth.methods.measure import fit_noisy, fit_over, measure_in_vault, measurements, total_records
from fedsynth.methods.registry import method
from fedsynth.methods.survey import SurveyOption, one_way, with_survey
from fedsynth.schema.bins import Axis, Floats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedsynth.federation.federation import Federation
    from fedsynth.federation.vault import Vault
    from fedsynth.models.adaptive_bins import AdaptiveBins
    from fedsynth.models.estimate import Measurement
    from fedsynth.models.synthesizer import Synthesizer


@method("mst", needs_vault=True, adaptive=True, order=2)
@dataclass(frozen=True)
class MST(SurveyOption):
    """Measures pairs of columns that form a spanning tree, drawn one by one and favouring dependent pairs.

    The 1-way tables, the draws and the tree's tables each get a third of the budget. Rare values of a column (``rare``)
    are merged into one group; without a survey (``bins_share``), generated rows of that group take its values equally
    often.

    Source: McKenna, Miklau & Sheldon (arXiv 2108.04978). In the fit, the published code weights each group of a column
    by the variance of its own noise; here all groups of a column get their mean variance.

    Parameters
    ----------
    rare
        Values with a noisy count below this many standard deviations of the noise are merged.
    iterations
        Upper bound on the steps of the fit.
    bins_share
        As in :class:`~fedsynth.methods.survey.SurveyOption`. With a survey, the thirds are thirds of what it leaves,
        and its groups are merged instead of values.
    """

    rare: float = 3.0
    iterations: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(rare=self.rare)
        whole(iterations=self.iterations)

    def fit(self, federation: Federation) -> Synthesizer:
        """Run the method; the result's ``info["cliques"]`` are the tree's pairs."""
        federation.require_vault()
        ones, pairs = (all_marginals(len(federation.schema.stored), order) for order in (1, 2))
        share = self.share_after_survey(federation)
        groups = self.surveyed(federation, len(ones) - 1, share / 3)
        vault = federation.deposit(groups.counts(ones), share / 3 if pairs else share)
        released = measure_in_vault(vault, groups, ones, vault.left)
        total = total_records(federation, with_survey(groups, released))
        domain = merged_columns(groups, released, total, self.rare)
        measured = one_way(domain.held)
        tree: list[Clique] = []
        if pairs:
            axes = tuple(Axis(at, groups.axes[at].cuts, cells.groups) for at, cells in enumerate(domain.held))
            vault = federation.deposit(Counts(axes, pairs), 2 * share / 3)
            tree = spanning_tree(vault, pairs, measured, total, share / 3)
            measured += measurements(tree, *vault.open(Counts(axes, tuple(tree)), vault.left))
        if groups.columns:
            model = fit_over(domain, measured, total, self.iterations)
        else:
            model = fit_noisy(domain.sizes, measured, total, self.iterations, zeros=domain.zeros)
        return domain.synthesizer(model, {"method": "mst", "cliques": [list(pair) for pair in tree]})


def merged_columns(domain: Domain, released: Sequence[Measurement], total: float, rare: float) -> Domain:
    """Return the bins over which the tree's 2-way tables are counted: those of ``domain`` with rare groups merged.

    A group is rare if its count in ``released`` (the 1-way tables over the groups of ``domain``, in order) is below
    ``rare`` standard deviations of the noise; two or more rare groups of a column become one. The result also holds the
    estimated count of each group, projected to sum to ``total`` records in every column.

    Over the schema's own bins, the estimates are the counts in ``released``, and merged values share their rows evenly.
    Over a survey's bins, they average the survey's counts with these; rows are spread within a group as the survey
    found them, and groups of a numeric column are not merged, since the survey has merged rare ones with their
    neighbours already.
    """
    columns = []
    for cells, table in zip(domain.held, released, strict=True):
        cells = _averaged(cells, table, total)
        rare_groups = table.values < rare * table.std
        if rare_groups.sum() > 1 and (domain.columns is None or cells.grid is None):
            if domain.columns is None:
                cells = replace(cells, counts=np.where(rare_groups, cells.counts[rare_groups].mean(), cells.counts))
            merged = np.where(rare_groups, np.count_nonzero(~rare_groups), np.cumsum(~rare_groups) - 1)
            cells = replace(cells, groups=merged[cells.groups])
        columns.append(cells)
    return Domain(domain.schema, tuple(columns))


def _averaged(cells: AdaptiveBins, table: Measurement, total: float) -> AdaptiveBins:
    """Return ``cells`` whose groups' estimated counts are averaged with those in ``table`` and sum to ``total``."""
    from fedsynth.models.adaptive_bins import AdaptiveBins

    groups = np.arange(cells.size)
    counts: Floats = np.bincount(cells.groups, weights=cells.counts).astype(np.float64)
    variances: Floats = np.bincount(cells.groups, weights=cells.variances).astype(np.float64)
    averaged = AdaptiveBins(groups, groups, counts, variances).updated(table.values, table.std**2, total)
    fine = np.bincount(cells.groups)[cells.groups]
    return replace(
        cells, counts=cells.shares * averaged.counts[cells.groups], variances=averaged.variances[cells.groups] / fine
    )


def spanning_tree(
    vault: Vault, pairs: Sequence[Clique], measured: Sequence[Measurement], total: float, share: float
) -> list[Clique]:
    """Return the edges of a spanning tree of columns, drawn one by one by the exponential mechanism.

    All draws together cost ``share`` of the budget. A pair's score is the distance between its exact table in the
    ``vault`` and that of independent columns, the product of the noisy 1-way tables ``measured``, of ``total`` records
    each; the distance is L1 with a trusted server, and L2 if the vault's tables are secret-shared.
    """
    from fedsynth.federation.vault import CandidateScores

    independent = {pair: np.outer(measured[pair[0]].values, measured[pair[1]].values) / total for pair in pairs}
    root = list(range(len(measured)))
    tree: list[Clique] = []
    while free := [pair for pair in pairs if root[pair[0]] != root[pair[1]]]:
        expected = tuple(independent[pair] for pair in free)
        distances = CandidateScores(tuple(free), expected, np.ones(len(free)), np.zeros(len(free)))
        chosen = free[vault.select(distances, share / (len(measured) - 1))]
        tree.append(chosen)
        root = [root[chosen[1]] if head == root[chosen[0]] else head for head in root]
    return tree
