"""Fed-TGAN, a baseline of Fed-TDA, NOT PRIVATE: GANs averaged by the similarity of sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from fedsynth.bench.published import require_not_private
from fedsynth.cliques import all_marginals
from fedsynth.deep.fedavggan import FedAvgGAN
from fedsynth.deep.training import EXEMPT
from fedsynth.errors import whole
from fedsynth.methods.domain import Domain
from fedsynth.methods.registry import method

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.models.synthesizer import Synthesizer
    from fedsynth.schema.bins import Floats

_SCALE = 1 << 20  # weights of sites are integers


@method("fedtgan", adaptive=True, private=False, trains=True, exempt=EXEMPT, order=1)
@dataclass(frozen=True)
class FedTGAN(FedAvgGAN):
    """NOT PRIVATE: Fed-TGAN, GANs that sites train on batches, averaged by how similar a site is to all of them.

    Source: Zhao et al. (arXiv 2108.07927), a baseline of Fed-TDA (arXiv 2211.13116). Sites send exact 1-way tables. A
    site weighs more the more rows it has, and the closer its columns are to those of all (:func:`similarity_weights`).
    Differences: the networks are those of :class:`~fedsynth.deep.fedavggan.FedAvgGAN`, with binary cross-entropy on
    single rows in place of a gradient penalty on ten; the groups of numbers are of exact histograms, not of Gaussian
    mixtures; and every site takes as many steps as the site of mean size. The further options are those of that method;
    ``updates``, ``epochs``, ``rate``, ``clip``, ``survey_share`` and ``size_share`` are not used.

    Parameters
    ----------
    passes
        Passes over the rows of a site of mean size in each round.
    not_private
        Must be true: it says that the rows are not protected.
    """

    batch: int = 500
    width: int = 256
    passes: int = 3
    not_private: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        require_not_private(self, self.not_private)
        super().__post_init__()
        whole(passes=self.passes)

    def fit(self, federation: Federation) -> Synthesizer:
        """Run the method with exact tables and without noise: NOT PRIVATE."""
        from fedsynth.federation.federation import EXACT

        found, columns, task = self.prepared(federation, EXACT)
        ones = all_marginals(len(columns), 1)
        tables = federation.each(Domain(federation.schema, tuple(found.columns)).counts(ones), EXACT)
        numbers = [column.is_number for column in federation.schema.stored]
        weights = similarity_weights([one.tables for one in tables.values()], numbers)
        sizes = tuple(
            (site, max(1, round(_SCALE * weight))) for site, weight in sorted(zip(tables, weights, strict=True))
        )
        updates = max(1, round(self.passes * found.total / len(tables) / self.batch))
        start = task.network.initial(task.layout, federation.rng)
        trained = replace(self, updates=updates).averaged(federation, task, start, EXACT, sizes)
        return self.synthesizer(federation, "fedtgan", columns, task, trained)


def similarity_weights(tables: Sequence[Sequence[Floats]], numbers: Sequence[bool]) -> Floats:
    """Return the weight of each site in an average of networks, shape ``(sites,)``; they add up to 1.

    ``tables`` are the sites' 1-way tables, and ``numbers`` says which columns are numbers, whose cells are in order. A
    site's distance to all rows in a column is the square root of the Jensen-Shannon divergence of its shares (base 2)
    or, for numbers, the mean difference of the cumulative shares of cells. Distances are divided by the column's sum
    over sites and added up over columns, to s_k. Weights are the softmax of n_k / n (1 - s_k / (s_1 + ... + s_K)).
    """
    from scipy.spatial.distance import jensenshannon

    rows = np.array([max(0.0, float(own[0].sum())) for own in tables])
    apart = np.zeros((len(tables), len(numbers)))
    for at, number in enumerate(numbers):
        counts = np.stack([own[at] for own in tables])
        known, every = counts.sum(axis=1, keepdims=True), counts.sum(axis=0)
        if not every.any():
            continue
        pooled = every / every.sum()
        shares = np.where(known > 0, counts / np.maximum(known, 1.0), pooled)
        if number:
            apart[:, at] = np.abs(np.cumsum(shares - pooled, axis=1)).mean(axis=1)
        else:
            apart[:, at] = np.nan_to_num(jensenshannon(shares, np.broadcast_to(pooled, shares.shape), 2, axis=1))
    total = apart.sum(axis=0)
    scores = (apart / np.where(total > 0, total, 1.0)).sum(axis=1)
    grown = np.exp(rows / max(1.0, rows.sum()) * (1 - scores / max(1e-300, scores.sum())))
    weights: Floats = grown / grown.sum()
    return weights
