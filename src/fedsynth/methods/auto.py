"""The default: columns surveyed, all pairs looked at over coarse groups, those worth their noise measured again."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from fedsynth.cliques import Clique, Workload, all_marginals, kruskal
from fedsynth.errors import InvalidParameter, positive
from fedsynth.methods.domain import Domain
from fedsynth.methods.measure import (
    clean_pairs,
    clean_slices,
    fit_clean,
    fitting,
    margins_of,
    measure,
    pair_weights,
    shares,
    sums_of_pairs,
    table_of,
    with_sums_of,
)
from fedsynth.methods.pilot import pilot
from fedsynth.methods.privsyn import worth_releasing
from fedsynth.methods.registry import COLUMN, method
from fedsynth.methods.survey import noise_groups, noise_of, one_way, survey

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.models.mrf import MarkovRandomField
    from fedsynth.models.synthesizer import Model, Synthesizer
    from fedsynth.privacy.cost import Budget

_log = logging.getLogger(__name__)

PLANNED = 0.3  # of all pairs: how many the second measurement is planned for, before anything is known of them
DROWNED = 0.1  # of the rows: a pilot with more noise than that in a cell shows nothing
FEW = 4  # values of a column for each of which pairs of others may be counted
LARGEST = 2**16  # cells of a table of three columns
ROOM = (1 / 256, 1 / 64, 1 / 16, 1 / 4, 1)  # parts of the model's size that are filled one after the other


@method("auto", adaptive=True)
@dataclass(frozen=True)
class Auto:
    """The default: surveys columns, looks at all pairs, measures those worth it again, and averages all it paid for.

    Three rounds of one plain sum each, under any trust. (1) Every column is cut where its rows are, in groups so large
    that a pair of them stands above the noise. (2) A pilot counts all pairs over unions of these groups. (3) A spanning
    tree of the strongest pairs, and all others that lower the expected error, are counted over the groups themselves;
    a spanning tree of those that depend on a target of few values, for each of its values.
    Everything released is averaged by inverse variance, sums of pairs' tables into those of the columns. Most of the
    noise is then taken out of each pair's table, and a graphical model is fitted to the result. Within their groups,
    numbers that correlate are ordered by a normal law of the strongest correlations (:mod:`fedsynth.models.ranked`).

    Where the pilot's noise would drown what it looks for, it is skipped, and all pairs are counted once.

    Source: the structure by PrivSyn's objective (arXiv 2012.15128), the fit Private-PGM (arXiv 1901.09136); tables
    without their noise: :mod:`fedsynth.models.pair_tables`.

    Parameters
    ----------
    target
        Column that is to be predicted from the others. Without one, the column of few values that the others depend on
        most has its part in tables of three columns.
    workload
        Marginals that matter. Their pairs, and those with the target, have at least ``purpose_share`` of what the last
        round costs, and are modelled first. ``None``: all alike.
    survey_share, pilot_share
        Shares of the budget for the first two rounds; the third gets the rest.
    purpose_share
        See ``workload``.
    max_megabytes
        Largest model; more of it holds more pairs, and takes longer.
    iterations
        Upper bound on the steps of the fit.
    """

    target: int | None = field(default=None, metadata=COLUMN)
    workload: Workload | None = None
    survey_share: float = 0.35
    pilot_share: float = 0.1
    purpose_share: float = 0.4
    max_megabytes: float = 8.0
    iterations: int = 500

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        shares(survey_share=self.survey_share, pilot_share=self.pilot_share, purpose_share=self.purpose_share)
        shares(both=self.survey_share + self.pilot_share)
        positive(max_megabytes=self.max_megabytes, iterations=self.iterations)

    def fit(self, federation: Federation) -> Synthesizer:
        """Spend the federation's budget, and return the generator."""
        schema, budget = federation.schema, federation.budget
        pairs = all_marginals(len(schema.stored), 2)
        if self.target is not None and not 0 <= self.target < len(schema.stored):
            raise InvalidParameter(f"target = {self.target} is no position of a column; give a column's name")

        # 1. The columns by themselves.
        found = survey(federation, self.survey_share if pairs else 1.0)
        left, total = 1 - self.survey_share, found.total
        looks = bool(pairs) and noise_of(federation, self.pilot_share, len(pairs)) <= DROWNED * total
        if looks:
            left -= self.pilot_share
        elif pairs:
            _log.warning(
                "for so few rows the noise of a pilot would exceed a tenth of them: it was skipped, and all pairs were "
                "counted once; a larger epsilon, or fewer columns, would tell dependence better"
            )
        planned = math.ceil(PLANNED * len(pairs)) if looks else len(pairs)
        domain = Domain(schema, noise_groups(schema, found, noise_of(federation, left, planned)))
        ones, measured = one_way(domain.held), []

        # 2. All pairs over coarse groups.
        chosen, look = list(pairs), None
        if looks:
            look = pilot(federation, domain, pairs, self.pilot_share, ones, total)
            chosen = self._chosen(domain, look.strengths, federation.std(table_of((0,)), left), budget)

        # 3. The pairs that are worth it, some of them for each value of a third column, and everything averaged.
        column, triples = self._triples(domain, look.strengths, chosen) if look is not None else (0, [])
        if pairs:
            within = {pair for triple in triples for pair in combinations(triple, 2)}
            asked = [pair for pair in chosen if pair not in within] + triples
            weights = pair_weights(domain, asked, budget, self._purpose(asked), self.purpose_share)
            measured = measure(federation, asked, left, weights, domain)
        split = [table for table in measured if len(table.clique) == 3]
        apart = [table for table in measured if len(table.clique) == 2]
        if look is not None:
            ones, measured = look.worked_into(ones, [*apart, *sums_of_pairs(split)])
            apart = measured[: len(apart)]
        ones = with_sums_of(ones, [*apart, *split])

        clean = clean_pairs(domain, ones, measured, total)
        tree, others = kruskal(sorted(clean, key=lambda pair: -clean[pair].strength))
        kept = self._held(domain, tree, [pair for pair in others if clean[pair].clear])
        stds = {table.clique: table.std for table in measured}
        fitted = [clean[pair].measurement(pair, stds[pair]) for pair in kept]
        held = fitting(domain.sizes, kept, triples, self.max_megabytes, domain.zeros)[len(kept) :]
        margins = margins_of(domain, ones, total)
        fitted += [clean_slices(table, column, clean, margins, total) for table in split if table.clique in held]
        model = fit_clean(domain, [*ones, *fitted], total, self.iterations)
        info = {"method": "auto", "cliques": [list(clique) for clique in (*kept, *held)], "pilot": looks}
        correlations = {pair: one.correlation for pair, one in clean.items()}
        if look is not None:
            correlations = look.correlations | correlations
        return domain.synthesizer(with_places(model, domain, correlations), info)

    def _purpose(self, pairs: Sequence[Clique]) -> list[bool]:
        """Say which pairs are declared to matter."""
        return [self.target in pair or any(set(pair) <= set(one) for one in self.workload or ()) for pair in pairs]

    def _chosen(self, domain: Domain, strengths: Mapping[Clique, float], std: float, budget: Budget) -> list[Clique]:
        """Return the pairs to measure again, of those that a model can hold together: a spanning tree first."""
        # Noise that is left in a table without most of it: that of two singular vectors on each side.
        shapes = {pair: domain.shape(pair) for pair in strengths}
        weight = {pair: math.sqrt(min(math.prod(shape), 2 * sum(shape))) for pair, shape in shapes.items()}
        worth = set(worth_releasing(strengths, weight, std, len(strengths), pure=budget.pure))
        tree, others = kruskal(sorted(strengths, key=lambda pair: -strengths[pair]))
        declared = zip(others, self._purpose(others), strict=True)
        rest = [pair for pair, matters in declared if pair in worth or (matters and strengths[pair] > 0)]
        return self._held(domain, tree, rest)

    def _triples(
        self, domain: Domain, strengths: Mapping[Clique, float], chosen: Sequence[Clique]
    ) -> tuple[int, list[Clique]]:
        """Return a column of few values, and the tables of three columns that count pairs of others for each of them.

        The column is the target; without one, that on which the ``chosen`` pairs depend most. How two columns depend on
        each other may differ between its values, where all three pairs are chosen: of these, a spanning tree.
        """
        few = [at for at, cells in enumerate(domain.held) if len(cells.groups) <= FEW and self.target in (at, None)]
        if not few:
            return 0, []
        column = max(few, key=lambda at: sum(strengths[pair] for pair in chosen if at in pair))
        joined = {at for pair in chosen if column in pair for at in pair}
        apart = [
            pair
            for pair in sorted(chosen, key=lambda pair: -strengths[pair])
            if column not in pair and joined.issuperset(pair) and math.prod(domain.shape((*pair, column))) <= LARGEST
        ]
        return column, [tuple(sorted((*pair, column))) for pair in kruskal(apart)[0]]

    def _held(self, domain: Domain, tree: Sequence[Clique], others: Sequence[Clique]) -> list[Clique]:
        """Return a spanning tree, and those of the ``others``, strongest first, that a model can hold with it.

        Pairs that matter come first. Of these, and of the rest, those that a small model can hold come before others:
        one pair of two numbers may take the room of ten pairs of categories.
        """
        kept = list(tree)
        purpose = dict(zip(others, self._purpose(others), strict=True))
        for matters in (True, False):
            more = [pair for pair in others if purpose[pair] is matters]
            kept = fitting(domain.sizes, kept, more, self.max_megabytes, domain.zeros, ROOM)
        return kept


def with_places(model: MarkovRandomField, domain: Domain, correlations: Mapping[Clique, float]) -> Model:
    """Return the model with an order of numbers within their groups that follows their ``correlations``, if any.

    Only the spanning tree of the strongest ones is used; the correlation of two other numbers is the product along the
    path between them. Such a matrix is positive definite for any correlations below 1 on the tree, so that noise in
    them cannot spoil it.
    """
    from fedsynth.models.ranked import RankedGroups

    held = domain.held
    found = {
        pair: value for pair, value in correlations.items() if value and all(held[at].grid is not None for at in pair)
    }
    columns = sorted({at for pair in found for at in pair})
    if not columns:
        return model
    matrix = np.eye(len(columns))
    for pair in kruskal(sorted(found, key=lambda pair: -abs(found[pair])))[0]:
        one, two = (columns.index(at) for at in pair)
        between = found[pair] * np.outer(matrix[one], matrix[two])  # 0 but between the columns that the pair joins
        matrix += between + between.T
    ordered = tuple(held[at].ordered(domain.schema.stored[at]) for at in columns)
    return RankedGroups(model, tuple(columns), ordered, matrix)
