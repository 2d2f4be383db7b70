"""One-shot synthesis: all 1-way and 2-way marginals in one round, and a graphical model of those above the noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsynth.cliques import Clique, all_marginals, kruskal
from fedsynth.errors import positive, whole
from fedsynth.methods.measure import (
    NOISE_L1,
    fit_over,
    measure,
    select_fitting,
    shares,
    total_records,
    weights_for,
    with_sums_of,
)
from fedsynth.methods.registry import method
from fedsynth.methods.survey import SurveyOption, with_survey

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.models.estimate import Measurement
    from fedsynth.models.synthesizer import Synthesizer

# A dependence is significant if it exceeds this many standard deviations of the noise's L1 norm.
CLEAR = 5.0


@method("oneshot", adaptive=True, order=2)
@dataclass(frozen=True)
class OneShot(SurveyOption):
    """Measures all 1-way and 2-way marginals in one round and models the pairs of columns that stand out from noise.

    The model has a spanning tree of the most dependent pairs, and other significant pairs while it stays small
    (:func:`strongest_pairs`). This choice is post-processing of released tables and costs no privacy, so that the
    tables get the whole budget. Pairs that are not modelled still improve the estimates of their columns. Every
    multi-round method has to beat this baseline.

    Source: a baseline to which FLAIM (arXiv 2310.06447) is compared; the tree follows Chow & Liu (doi
    10.1109/TIT.1968.1054142); the fit is Private-PGM (arXiv 1901.09136).

    Parameters
    ----------
    pair_share
        Share of the budget for the 2-way tables together; the 1-way tables get the rest. The weights that divide the
        budget between tables are whole numbers, so that the share spent can differ from ``pair_share``, usually by at
        most 5 %.
    max_megabytes
        Largest size of the graphical model's tables, in MiB (8 bytes per cell). A larger one holds more pairs and takes
        longer to fit.
    iterations
        Upper bound on the steps of the final fit.
    bins_share
        As in :class:`~fedsynth.methods.survey.SurveyOption`.
    """

    pair_share: float = 0.8
    max_megabytes: float = 8.0
    iterations: int = 500

    def __post_init__(self) -> None:
        shares(pair_share=self.pair_share)
        super().__post_init__()
        positive(max_megabytes=self.max_megabytes)
        whole(iterations=self.iterations)

    def fit(self, federation: Federation) -> Synthesizer:
        """Run the method; the result's ``info["cliques"]`` are the modelled pairs."""
        ones, pairs = (all_marginals(len(federation.schema.stored), order) for order in (1, 2))
        pair_share, remaining = self.pair_share if pairs else 0.0, self.share_after_survey(federation)
        domain = self.surveyed(federation, len(pairs), pair_share * remaining or remaining)
        split = [(1 - pair_share) / len(ones)] * len(ones) + [pair_share / max(1, len(pairs))] * len(pairs)
        measured = measure(federation, [*ones, *pairs], remaining, weights_for(split, federation.budget), domain)
        one_way, two_way = with_survey(domain, measured[: len(ones)]), measured[len(ones) :]

        total = total_records(federation, one_way)
        pairs_in = strongest_pairs(domain.sizes, one_way, two_way, total, self.max_megabytes, domain.zeros)
        chosen = {pair.clique for pair in pairs_in}
        columns = with_sums_of(one_way, [pair for pair in two_way if pair.clique not in chosen])
        model = fit_over(domain, columns + pairs_in, total, self.iterations)
        return domain.synthesizer(model, {"method": "oneshot", "cliques": [list(m.clique) for m in pairs_in]})


def strongest_pairs(
    sizes: Sequence[int],
    one_way: Sequence[Measurement],
    two_way: Sequence[Measurement],
    total: float,
    megabytes: float,
    cliques: Iterable[Clique] = (),
) -> list[Measurement]:
    """Return the measured pairs to model: a maximum spanning tree, and other significant pairs up to a size limit.

    The tree has the largest sum of dependences. A pair's dependence is the L1 distance, in records, between its noisy
    table and the product of its columns' tables, minus the distance expected from noise alone. It is significant above
    ``CLEAR`` (5) standard deviations of that distance under noise alone. Of the pairs outside the tree, the most
    dependent first, each is added unless the tables of the graphical model would then need more than ``megabytes``
    (MiB, 8 bytes per cell).

    ``one_way`` is in the order of columns, whose numbers of bins are ``sizes``; all tables are of ``total`` records.
    ``cliques`` are columns that a rule of the schema names together, which the model contains as well.
    """
    from fedsynth.models.gum import simplex

    share = {m.clique[0]: simplex(m.values, total) / total for m in one_way}

    def dependence(pair: Measurement) -> float:
        first, second = pair.clique
        independent = total * np.outer(share[first], share[second])
        return float(np.abs(pair.values - independent).sum() - NOISE_L1 * pair.std * pair.values.size)

    by_clique = {pair.clique: pair for pair in sorted(two_way, key=dependence, reverse=True)}
    tree, others = kruskal(list(by_clique))

    def clear(pair: Measurement) -> bool:
        return dependence(pair) > CLEAR * pair.std * math.sqrt((1 - 2 / math.pi) * pair.values.size)

    spare = [clique for clique in others if clear(by_clique[clique])]
    return [by_clique[clique] for clique in select_fitting(sizes, tree, spare, megabytes, cliques)]
