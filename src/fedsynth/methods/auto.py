"""The default: columns surveyed, all pairs looked at over coarse groups, those worth their noise measured again."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from fedsynth.cliques import Clique, Workload, all_marginals
from fedsynth.errors import InvalidParameter, positive
from fedsynth.methods.domain import Domain
from fedsynth.methods.measure import fitting, measure, shares, table_of, table_shares, weights_for
from fedsynth.methods.privsyn import worth_releasing
from fedsynth.methods.registry import COLUMN, method
from fedsynth.methods.survey import groups_for, noise_groups, noise_of, one_way, survey
from fedsynth.schema.bins import Integers

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.models.cells import Cells
    from fedsynth.models.estimate import Measurement
    from fedsynth.models.mrf import MarkovRandomField
    from fedsynth.models.pair_tables import Margin
    from fedsynth.models.synthesizer import Model, Synthesizer
    from fedsynth.privacy.cost import Budget

_log = logging.getLogger(__name__)

PLANNED = 0.3  # of all pairs: how many the second measurement is planned for, before anything is known of them
HELD = 3.0  # times the noise that the mean cell of a pair of numbers is to hold
DROWNED = 0.1  # of the rows: a pilot with more noise than that in a cell shows nothing
KEPT = 0.9  # of correlations between places in groups: nearly dependent columns would make too much of their noise
STOP, QUIET = 0.05, 3  # share of the loss expected of raw tables, and blocks without a gain, at which the fit ends


@method("auto", adaptive=True)
@dataclass(frozen=True)
class Auto:
    """The default: surveys columns, looks at all pairs, measures those worth it again, and averages all it paid for.

    Three rounds of one plain sum each, under any trust. (1) Every column is cut where its rows are, in groups so large
    that a pair of them stands above the noise. (2) A pilot counts all pairs over unions of these groups. (3) A spanning
    tree of the strongest pairs, and all others that lower the expected error, are counted over the groups themselves.
    Everything released is averaged by inverse variance, pairs that are not modelled into the columns' own tables; most
    of the noise is taken out of each pair's table, and a graphical model is fitted to the result.

    Where the pilot's noise would drown what it looks for, it is skipped, and all pairs are counted once.

    Source: the structure by PrivSyn's objective (arXiv 2012.15128), the fit Private-PGM (arXiv 1901.09136); tables
    without their noise: :mod:`fedsynth.models.pair_tables`.

    Parameters
    ----------
    target
        Column that is to be predicted from the others.
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

        found = survey(federation, self.survey_share if pairs else 1.0)
        left, total = 1 - self.survey_share, found.total
        noise = noise_of(federation, self.pilot_share, len(pairs))
        pilot = noise <= DROWNED * total
        if pilot:
            left -= self.pilot_share
        expected = noise_of(federation, left, math.ceil(PLANNED * len(pairs)) if pilot else len(pairs))
        domain = Domain(schema, noise_groups(schema, found, expected, HELD))
        tables = Tables(domain, one_way(domain.held), total)

        chosen = list(pairs)
        if pilot and pairs:
            unions = [cells.unions(noise, groups_for(total, noise)) for cells in domain.held]
            coarse = Domain(schema, tuple(map(united, domain.held, unions)))
            tables.look(unions, measure(federation, pairs, self.pilot_share, _weights(coarse, pairs, budget), coarse))
            chosen = self._chosen(tables, pairs, federation.std(table_of((0,)), left), budget)
        if pairs:
            weights = _weights(domain, chosen, budget, self._purpose(chosen), self.purpose_share)
            tables.add(measure(federation, chosen, left, weights, domain))
        return self._fitted(tables, pilot)

    def _purpose(self, pairs: Sequence[Clique]) -> list[bool]:
        """Say which pairs are declared to matter."""
        return [self.target in pair or any(set(pair) <= set(one) for one in self.workload or ()) for pair in pairs]

    def _chosen(self, tables: Tables, pairs: Sequence[Clique], std: float, budget: Budget) -> list[Clique]:
        """Return the pairs to measure again, of those that a model can hold together: a spanning tree first."""
        strengths = tables.strengths(pairs)
        # Noise that is left in a table without most of it: that of two singular vectors on each side.
        shapes = {pair: tables.domain.shape(pair) for pair in pairs}
        weight = {pair: math.sqrt(min(math.prod(shape), 2 * sum(shape))) for pair, shape in shapes.items()}
        worth = set(worth_releasing(strengths, weight, std, len(pairs), pure=budget.pure))
        tree, others = self._ranked(strengths)
        purpose = dict(zip(others, self._purpose(others), strict=True))
        rest = [pair for pair in others if pair in worth or (purpose[pair] and strengths[pair] > 0)]
        return fitting(tables.domain.sizes, tree, rest, self.max_megabytes, tables.domain.zeros)

    def _ranked(self, strengths: Mapping[Clique, float]) -> tuple[list[Clique], list[Clique]]:
        """Return the spanning tree of greatest strength, and all other pairs, those that matter first (Kruskal)."""
        root = {column: column for pair in strengths for column in pair}
        tree, others = [], []
        for pair in sorted(strengths, key=lambda one: -strengths[one]):
            first, second = (root[column] for column in pair)
            if first == second:
                others.append(pair)
                continue
            tree.append(pair)
            root = {column: second if head == first else head for column, head in root.items()}
        purpose = dict(zip(others, self._purpose(others), strict=True))
        return tree, sorted(others, key=lambda pair: not purpose[pair])

    def _fitted(self, tables: Tables, pilot: bool) -> Synthesizer:
        """Return the generator of the model fitted to all tables without most of their noise."""
        from fedsynth.models.estimate import estimate
        from fedsynth.models.pair_tables import denoised

        domain, total = tables.domain, tables.total
        ones = tables.columns()
        margins = tables.margins(ones)
        clean = {
            pair: denoised(table.values, table.std, margins[pair[0]], margins[pair[1]], total)
            for pair, table in tables.pairs.items()
        }
        tree, others = self._ranked({pair: one.strength for pair, one in clean.items()})
        kept = fitting(domain.sizes, tree, [p for p in others if clean[p].clear], self.max_megabytes, domain.zeros)
        fitted = [clean[pair].measurement(pair, tables.pairs[pair].std) for pair in kept]
        model = estimate(
            domain.sizes,
            [*ones, *fitted],
            total,
            iterations=self.iterations,
            noise_stop=STOP,
            quiet_blocks=QUIET,
            zeros=domain.zeros,
        )
        if not pilot:
            _log.info("the pilot was skipped: its noise would drown what it looks for; all pairs were counted once")
        info = {"method": "auto", "cliques": [list(pair) for pair in kept], "pilot": pilot}
        correlations = {pair: one.correlation for pair, one in clean.items()} | tables.correlations()
        return domain.synthesizer(with_places(model, domain, correlations), info)


# ---------------------------------------------------------------------------------------------------------------------
# What is known of the columns and pairs


@dataclass
class Tables:
    """Everything released so far over the groups of ``domain``: ``ones`` of columns, ``pairs``, and ``looks`` at pairs.

    ``looks`` are over ``unions`` of the groups.
    """

    domain: Domain
    ones: list[Measurement]
    total: float
    pairs: dict[Clique, Measurement] = field(default_factory=dict)
    looks: dict[Clique, Measurement] = field(default_factory=dict)
    unions: Sequence[Integers] = ()

    def look(self, unions: Sequence[Integers], found: Sequence[Measurement]) -> None:
        """Take in pairs over unions of the groups."""
        self.unions, self.looks = unions, {table.clique: table for table in found}

    def add(self, found: Sequence[Measurement]) -> None:
        """Take in pairs over the groups themselves, averaged with the looks at them."""
        from fedsynth.models.pair_tables import averaged

        for table in found:
            look = self.looks.pop(table.clique, None)
            self.pairs[table.clique] = table if look is None else averaged(table, look, dict(enumerate(self.unions)))

    def strengths(self, pairs: Sequence[Clique]) -> dict[Clique, float]:
        """Return each pair's estimated distance (L2, in rows) from independent columns, by the looks."""
        from fedsynth.models.pair_tables import strength

        margins = self._coarse_margins()
        found: dict[Clique, float] = {}
        for first, second in pairs:
            look = self.looks[first, second]
            found[first, second] = strength(look.values, look.std, margins[first], margins[second], self.total)
        return found

    def correlations(self) -> dict[Clique, float]:
        """Return the correlation, 0 where it is not clear, of each pair that was only looked at."""
        from fedsynth.models.pair_tables import expected

        margins = self._coarse_margins() if self.looks else []
        return {
            pair: expected(look.values, look.std, margins[pair[0]], margins[pair[1]], self.total)[1]
            for pair, look in self.looks.items()
        }

    def _coarse_margins(self) -> list[Margin]:
        from fedsynth.models.pair_tables import Margin

        margins = []
        of = zip(self.margins(self.ones), self.domain.held, self.unions, self.domain.schema.stored, strict=True)
        for one, cells, union, column in of:
            shares = np.bincount(union, weights=one.shares).astype(np.float64)
            margins.append(Margin(shares, united(cells, union).ordered(column)))
        return margins

    def columns(self) -> list[Measurement]:
        """Return the columns' own tables, averaged with what all pairs, measured or looked at, say of them."""
        from fedsynth.models.pair_tables import averaged, sums_along

        found = []
        for at, one in enumerate(self.ones):
            own = {at: np.arange(one.values.size)}
            for held, unions in ((self.pairs, own), (self.looks, dict(enumerate(self.unions)))):
                for pair in held.values():
                    if at in pair.clique:
                        one = averaged(one, sums_along(pair, pair.clique.index(at)), unions)
            found.append(one)
        return found

    def margins(self, ones: Sequence[Measurement]) -> list[Margin]:
        """Return each column's shares, and how many of its groups lie in an order."""
        from fedsynth.models.gum import simplex
        from fedsynth.models.pair_tables import Margin

        return [
            Margin(simplex(one.values, self.total) / self.total, cells.ordered(column))
            for one, cells, column in zip(ones, self.domain.held, self.domain.schema.stored, strict=True)
        ]


def united(cells: Cells, unions: Integers) -> Cells:
    """Return a column whose groups are unions of what they were."""
    return replace(cells, groups=unions[cells.groups])


def with_places(model: MarkovRandomField, domain: Domain, correlations: Mapping[Clique, float]) -> Model:
    """Return a model whose numbers, where they correlate, keep doing so within their groups."""
    from fedsynth.models.copula import nearest_correlation
    from fedsynth.models.ranked import RankedGroups

    held = domain.held
    found = {
        pair: value for pair, value in correlations.items() if value and all(held[at].grid is not None for at in pair)
    }
    columns = sorted({at for pair in found for at in pair})
    if not columns:
        return model
    matrix = np.eye(len(columns))
    for (first, second), value in found.items():
        one, two = columns.index(first), columns.index(second)
        matrix[one, two] = matrix[two, one] = value
    ordered = tuple(held[at].ordered(domain.schema.stored[at]) for at in columns)
    near = KEPT * nearest_correlation(matrix) + (1 - KEPT) * np.eye(len(columns))
    return RankedGroups(model, tuple(columns), ordered, near)


def _weights(
    domain: Domain, pairs: Sequence[Clique], budget: Budget, purpose: Sequence[bool] = (), share: float = 0.0
) -> tuple[int, ...]:
    """Return the weights of tables by their cells, those that matter raised to ``share`` of the price together."""
    prices = np.array(table_shares([math.prod(domain.shape(pair)) for pair in pairs], budget))
    favoured = np.array(purpose, dtype=bool) if any(purpose) else np.zeros(len(prices), dtype=bool)
    if 0 < prices[favoured].sum() < share and not favoured.all():
        prices[favoured] *= share / prices[favoured].sum()
        prices[~favoured] *= (1 - share) / prices[~favoured].sum()
    return weights_for(list(prices), budget)
