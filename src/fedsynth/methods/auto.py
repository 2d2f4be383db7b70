"""The default method: survey the columns, estimate all pairs coarsely, and measure those worth it again."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedsynth.cliques import Clique, Workload, all_marginals, kruskal
from fedsynth.errors import positive, whole
from fedsynth.methods.contrasts import CLEAR, contrasts, most_halvings
from fedsynth.methods.domain import Domain
from fedsynth.methods.interactions import Interaction, clean_slices, measure_interactions
from fedsynth.methods.measure import (
    EXACT_STD,
    averages,
    check_shares,
    clean_pairs,
    fit_clean,
    fits,
    interaction_share,
    margins_of,
    pair_weights,
    select_fitting,
    share_left,
    shares,
    table_of,
)
from fedsynth.methods.pilot import Pilot, pilot
from fedsynth.methods.privsyn import pairs_worth_releasing
from fedsynth.methods.registry import COLUMN, method
from fedsynth.methods.survey import Survey, noise_groups, noise_of, one_way, survey

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.models.estimate import Measurement
    from fedsynth.models.mrf import MarkovRandomField
    from fedsynth.models.pair_tables import PairTable
    from fedsynth.models.synthesizer import Model, Synthesizer
    from fedsynth.privacy.cost import Budget
    from fedsynth.schema import Schema

_log = logging.getLogger(__name__)

PLANNED = 0.3  # share of all pairs that the last round is planned for, before their dependence is known
DROWNED = 0.05  # share of the rows: with more noise per cell, one number a pair shows more than a coarse table
TABLED = 2**15  # pairs of which one question may have tables, at most
WEAKEST = 0.3  # correlation of signs that contrasts should show, by four deviations
STRONGEST = 0.9  # correlation of signs that contrasts must show, for one number a pair
DEAREST = 0.3  # share for contrasts, at most, of the budget that the survey leaves
HOPELESS = 0.5  # share that contrasts would need from which on they show strong correlations alone
HALVINGS = 3, 2  # of a category: where contrasts show weak relations, and where noise hides these
RELATED = 3  # pairs for each column that contrasts choose, at most
TARGET = 0.25  # share of the contrasts' cost for pairs with the target
FEW = 4  # values that a column may have at most for tables of three columns with it
LARGEST = 2**16  # cells of a table of three columns, at most
STEPS = 16  # in which pairs are added to the model of a pilot, at most
ROOM = 8.0, 32.0  # MiB of the model, least and most
ROOMY = 2000.0  # rows for one standard deviation of noise in a cell, from which on a model may have more than the least
SIZE = 0.25  # without a pilot of tables, pairs enter the model by strength / (cells of their table) to this power
MOST_AGAIN = 0.9  # part of the last round that columns get, at most
COARSE, FINE = 0.1, 0.35  # share of the survey without columns of numbers, and with


class Rounds(NamedTuple):
    """What the three rounds spend, as shares of the budget: the survey, the pilot, and the last round with the rest.

    ``pilot`` says what the pilot consists of: "tables", "contrasts" (of up to ``halvings`` of a category) or "none".
    """

    survey_share: float
    pilot: str = "none"
    pilot_share: float = 0.0
    halvings: int = 0

    @property
    def last_share(self) -> float:
        """Share of the budget for the last round."""
        return share_left(self.survey_share, self.pilot_share)

    @property
    def column_part(self) -> float:
        """Part of the last round that single columns get at least: more where noise hides much of the pairs."""
        again = 0.0 if self.pilot == "tables" else max(FINE - self.survey_share, 0.0)
        return min(again / self.last_share, MOST_AGAIN)


class Plan(NamedTuple):
    """What the last round measures: the groups to count and the pairs ``chosen``, which fit into one model over them.

    ``strengths`` are the estimated L2 distances of pairs from independence, in records, of all pairs or, without a
    pilot, of none. ``coarse`` is a pilot of tables, if there was one.
    """

    domain: Domain
    chosen: list[Clique]
    strengths: Mapping[Clique, float] = {}
    coarse: Pilot | None = None


class Measured(NamedTuple):
    """The averages of all releases: tables of single columns and of ``pairs``, and those ``divided`` by a third column.

    All columns have a table in ``ones``. ``divided`` are the interactions of two columns for each value of the column
    at the position ``divisor``, whose sums are among the pairs.
    """

    ones: list[Measurement]
    pairs: list[Measurement]
    divided: list[Interaction]
    divisor: int


@method("auto", adaptive=True, order=3, apportions=True)
@dataclass(frozen=True)
class Auto:
    """The default: surveys columns, estimates all pairs coarsely, measures the best again and averages all releases.

    It takes three rounds of one noisy sum over sites each, under any trust model but "three-servers". (1) A survey
    counts single columns, and groups the values of each, the more coarsely the more noise the pairs' tables will have.
    (2) A pilot measures all pairs over unions of these groups. (3) A spanning tree of the strongest pairs, and others
    that lower the expected error, as far as one model holds them, are measured over the groups themselves, and so is
    each column. If the target has few values, a spanning tree of the pairs that depend on it is measured separately for
    each of its values. Of a pair's table, only what its margins do not tell is released
    (:mod:`fedsynth.methods.interactions`). Noisy tables that contain the same counts, if only as sums of their cells,
    are averaged by inverse variance. Each pair's table is then denoised, and a graphical model is fitted to the result.
    Within their groups, the values of numeric columns follow each other along a tree of the strongest of the estimated
    correlations (:mod:`fedsynth.models.ranked`).

    If the noise in a cell of the pilot would exceed a twentieth of the rows, as with many columns, the pilot halves
    each column and releases one to three numbers for each pair (:mod:`fedsynth.methods.contrasts`), and round (3)
    measures the pairs that stand out. If noise would hide even the strongest relations there, the pilot is skipped, and
    columns are measured alone, with no pairs but those of the target, the workload and the schema's rules.

    Source: the structure follows PrivSyn's objective (arXiv 2012.15128), the fit Private-PGM (arXiv 1901.09136); the
    denoising is in :mod:`fedsynth.models.pair_tables`.

    Parameters
    ----------
    target
        Name of the column to be predicted from the others. ``None``: in round (3), its place is taken by the column,
        among those with at most 4 values, on which the others depend most.
    workload
        Marginals of interest, as tuples of column positions; ``None``: none. Pairs of columns that lie in one of them,
        and pairs with the target, enter the model right after the spanning tree, before all others.
    survey_share
        Share of the budget for the first round. ``None``: 35 %, or 10 % if all columns are categories, which the last
        round counts once more. Of a number, the survey alone shows the values within a group.
    pilot_share
        Share of the budget for the second round; the third gets the rest. A pilot of contrasts may get a larger share,
        up to 30 % of what the survey leaves, if it needs this to show moderate dependence.
    purpose_share
        Share of the last round's budget that the pairs of interest (see ``workload``) get together, if they would get
        less otherwise; the share spent can differ by a few per cent, since tables have whole-number weights.
    max_megabytes
        Largest size of the graphical model's tables, in MiB (8 bytes per cell). A larger one holds more pairs and takes
        longer to fit. Default: 8, and up to 32 where noise is so small that missing pairs are the larger error.
    iterations
        Upper bound on the steps of the fit.
    """

    target: str | None = field(default=None, metadata=COLUMN)
    workload: Workload | None = None
    survey_share: float | None = None
    pilot_share: float = 0.1
    purpose_share: float = 0.4
    max_megabytes: float | None = None
    iterations: int = 1500

    def __post_init__(self) -> None:
        shares(pilot_share=self.pilot_share, purpose_share=self.purpose_share)
        if self.survey_share is not None:
            shares(survey_share=self.survey_share)
        check_shares("the last round", survey_share=self.survey_share or FINE, pilot_share=self.pilot_share)
        positive(max_megabytes=self.max_megabytes)
        whole(iterations=self.iterations)

    def fit(self, federation: Federation) -> Synthesizer:
        """Run the method; a skipped pilot is logged as a warning.

        The result's ``info`` has the ``cliques`` of the graphical model, and what the ``pilot`` consisted of: "tables",
        "contrasts" or "none".
        """
        schema, columns = federation.schema, len(federation.schema.stored)
        self._target(schema)  # an unknown one is refused before any question

        # Round 1, the survey: single columns.
        survey_share = self.survey_share or (FINE if any(column.is_number for column in schema.stored) else COARSE)
        surveyed = survey(federation, survey_share if columns > 1 else 1.0)
        noise = noise_of(federation, share_left(survey_share), 2 * columns)
        room = self.max_megabytes or room_for(surveyed.total, noise)

        # Round 2, the pilot: all pairs, to choose those worth measuring.
        rounds = self._rounds(federation, survey_share, surveyed.total)
        plan = self._plan(federation, surveyed, rounds, room)

        # Round 3: columns and chosen pairs, some of them for each value of a third column.
        measured = self._measured(federation, plan, rounds, surveyed.total)

        # A model of the pairs that depend on each other, or that would come out dependent without their tables.
        clean = clean_pairs(plan.domain, measured.ones, measured.pairs, surveyed.total)
        model, cliques = self._modelled(plan, measured, clean, surveyed.total, room)
        correlations = {pair: table.correlation for pair, table in clean.items()}
        if plan.coarse:
            correlations = plan.coarse.correlations | correlations
        mixed = {table.clique: table.std for table in measured.pairs if not clean[table.clique].apart}
        info = {"method": "auto", "cliques": [list(clique) for clique in cliques], "pilot": rounds.pilot}
        return plan.domain.synthesizer(with_places(model, plan.domain, correlations, mixed), info)

    def _rounds(self, federation: Federation, survey_share: float, total: float) -> Rounds:
        """Return what the rounds spend if a survey counted ``total`` records for ``survey_share`` of the budget.

        The pilot has tables over coarse groups or, where these would drown in noise, one to three numbers a pair.
        """
        schema, remaining = federation.schema, share_left(survey_share)
        pairs = all_marginals(len(schema.stored), 2)
        if not pairs:
            return Rounds(survey_share)
        if len(pairs) <= TABLED and noise_of(federation, self.pilot_share, len(pairs)) <= DROWNED * total:
            return Rounds(survey_share, "tables", self.pilot_share)
        weak = _share_to_show(WEAKEST, 4.0, federation, 2 * len(pairs), total)
        halvings = HALVINGS[0] if weak <= HOPELESS else HALVINGS[1]
        halvings = min(halvings, most_halvings(len(schema.stored), len(self._of_interest(schema, pairs))))
        if halvings and _share_to_show(STRONGEST, CLEAR, federation, len(pairs), total) <= DEAREST * remaining:
            return Rounds(survey_share, "contrasts", max(min(weak, DEAREST * remaining), self.pilot_share), halvings)
        _log.warning(
            "no pilot: noise would hide even the strongest relations in it, so columns are measured alone, and pairs "
            "with the target or within the workload; a larger epsilon, more rows or fewer columns show more"
        )
        return Rounds(survey_share)

    def _plan(self, federation: Federation, surveyed: Survey, rounds: Rounds, room: float) -> Plan:
        """Run the pilot of ``surveyed`` columns, and choose pairs for the last round and a model of ``room`` MiB."""
        schema, columns = federation.schema, len(federation.schema.stored)
        pairs, tied = all_marginals(columns, 2), _tied(schema)

        def groups(tables: int) -> Domain:
            std = noise_of(federation, rounds.last_share, tables) if tables else 0.0
            return Domain(schema, noise_groups(schema, surveyed, std))

        if rounds.pilot == "tables":
            domain = groups(math.ceil(PLANNED * len(pairs)))
            coarse = pilot(federation, domain, pairs, rounds.pilot_share, one_way(domain.held), surveyed.total)
            std = federation.std(table_of((0,)), rounds.last_share)
            chosen = self._worth_measuring(coarse, domain, std, federation.budget, room)
            return Plan(domain, chosen, coarse.strengths, coarse)
        favoured = self._of_interest(schema, pairs)
        if rounds.pilot == "contrasts":
            shown = contrasts(federation, surveyed, rounds.halvings, rounds.pilot_share, favoured, TARGET)
            strengths = shown.strengths | dict.fromkeys(tied, surveyed.total)
            related = list(dict.fromkeys([*tied, *shown.clear[: RELATED * columns]]))
            domain = groups(min(max(len(related), columns), 2 * columns))
            return Plan(domain, self._fitting(domain, *kruskal(related), strengths, room), strengths)
        related = list(dict.fromkeys([*tied, *favoured]))
        domain = groups(max(len(related), columns) if pairs else 0)
        return Plan(domain, self._fitting(domain, *kruskal(related), dict.fromkeys(related, surveyed.total), room))

    def _measured(self, federation: Federation, plan: Plan, rounds: Rounds, total: float) -> Measured:
        """Measure columns and the pairs of ``plan``, some of them with a third column, with what is left of the budget.

        Tables of ``total`` records that the survey or the pilot has counted before are averaged with theirs.
        """
        domain, ones = plan.domain, one_way(plan.domain.held)
        divisor, triples = self._triples(plan)
        within = {tuple(at for at in triple if at != divisor) for triple in triples}
        every = (*all_marginals(len(domain.held), 1), *plan.chosen)
        asked = [clique for clique in every if min(domain.shape(clique)) > 1 and clique not in within] + list(triples)
        released: list[Interaction] = []
        if len(domain.held) > 1 and asked:
            interest = set(self._of_interest(domain.schema, asked))
            favoured = [clique in interest for clique in asked]
            budget, part = federation.budget, rounds.column_part
            weights = pair_weights(domain, asked, budget, favoured, self.purpose_share, divisor, part)
            released = measure_interactions(federation, domain, asked, rounds.last_share, weights, divisor)
        margins = margins_of(domain, ones, total)
        singles, pairs, divided = ([item for item in released if len(item.clique) == order] for order in (1, 2, 3))
        ones = averages([*ones, *(single.table(margins, total) for single in singles)])
        margins = margins_of(domain, ones, total)
        summed = (triple.summed(divisor) for triple in divided)
        tables = [pair.table(margins, total) for pair in (*pairs, *summed)]
        return Measured(ones, plan.coarse.worked_into(tables) if plan.coarse else tables, divided, divisor)

    def _modelled(
        self, plan: Plan, measured: Measured, clean: Mapping[Clique, PairTable], total: float, room: float
    ) -> tuple[MarkovRandomField, list[Clique]]:
        """Return a model of ``total`` rows fitted to ``measured`` tables, those of pairs denoised, and its cliques.

        Denoised tables are in ``clean``. The model has the chosen pairs that are clear
        (:class:`~fedsynth.models.pair_tables.PairTable`), and those whose tables contradict a model without them: two
        causes of one effect are independent, but a model of both effects alone makes them depend on each other. Of the
        cliques of three columns, it has those for which there is ``room``.
        """
        from fedsynth.models.pair_tables import contradicts

        domain = plan.domain
        noisy = {table.clique: table for table in measured.pairs}
        margins = margins_of(domain, measured.ones, total)
        triples = [triple.clique for triple in measured.divided]

        def fitted(kept: Sequence[Clique]) -> tuple[MarkovRandomField, list[Clique]]:
            cliques = select_fitting(domain.sizes, kept, triples, room, domain.zeros)
            tables = [clean[pair].measurement(pair, noisy[pair].std) for pair in kept]
            kept_triples = [triple for triple in measured.divided if triple.clique in cliques]
            slices = [clean_slices(triple, measured.divisor, clean, margins, total) for triple in kept_triples]
            return fit_clean(domain, [*measured.ones, *tables, *slices], total, self.iterations), cliques

        kept = [pair for pair in plan.chosen if pair in clean and clean[pair].clear]
        model, cliques = fitted(kept)
        unclear = [pair for pair in plan.chosen if pair in clean and not clean[pair].clear]
        expected = model.marginals(unclear)
        wrong = [pair for pair in unclear if contradicts(noisy[pair].values, noisy[pair].std, expected[pair])]
        return fitted([*kept, *wrong]) if wrong else (model, cliques)

    def _target(self, schema: Schema) -> int | None:
        return schema.index(self.target) if self.target else None

    def _of_interest(self, schema: Schema, cliques: Sequence[Clique]) -> list[Clique]:
        """Return those of ``cliques`` of several columns that have the target or lie in a marginal of the workload."""
        target, marginals = self._target(schema), [set(marginal) for marginal in self.workload or ()]
        return [
            clique
            for clique in cliques
            if len(clique) > 1 and (target in clique or any(map(set(clique).issubset, marginals)))
        ]

    def _worth_measuring(self, coarse: Pilot, domain: Domain, std: float, budget: Budget, room: float) -> list[Clique]:
        """Return the pairs to measure again, which fit into one model: a spanning tree, and those worth their noise.

        Pairs are added in steps, those first that a model of the earlier ones explains worst.
        """
        # The noise that denoising leaves in a table: that of two singular vectors on each side.
        shapes = {pair: domain.shape(pair) for pair in coarse.strengths}
        weight = {
            pair: math.sqrt(min(math.prod(shape), 2 * sum(shape)) * interaction_share(domain, pair, budget))
            for pair, shape in shapes.items()
        }
        tree, others = kruskal(sorted(coarse.strengths, key=lambda pair: -coarse.strengths[pair]))
        wanted = [pair for pair in self._of_interest(domain.schema, others) if coarse.strengths[pair] > 0]
        chosen, model = self._fitting(domain, tree, wanted, coarse.strengths, room), None
        spare = set(coarse.strengths).difference(chosen)
        for _ in range(STEPS):
            model = coarse.fitted(chosen, model)
            unexplained = coarse.strengths | coarse.unexplained(model, spare)
            worth = pairs_worth_releasing(unexplained, weight, std, len(unexplained), pure=budget.pure)
            added = 0
            for pair in sorted(spare.intersection(worth), key=lambda pair: (-unexplained[pair], pair)):
                spare.remove(pair)  # a model only grows: what does not fit now will not fit later
                if fits(domain.sizes, [*domain.zeros, *chosen], pair, room):
                    chosen.append(pair)
                    added += 1
                if added == max(1, len(domain.held) // 4):
                    break
            if not added:
                break
        return chosen

    def _triples(self, plan: Plan) -> tuple[int, list[Clique]]:
        """Return a column of few values, and the cliques that join it with pairs of other columns.

        The column is the target or, without one, that on which the chosen pairs depend most. Dependence between two
        columns may differ between its values if all three pairs are chosen; the cliques are a spanning tree of such
        pairs.
        """
        domain, strengths, chosen = plan.domain, plan.strengths, plan.chosen
        target = self._target(domain.schema)
        few = [at for at, cells in enumerate(domain.held) if len(cells.groups) <= FEW and target in (at, None)]
        if not (few and strengths):
            return 0, []
        column = max(few, key=lambda at: sum(strengths[pair] for pair in chosen if at in pair))
        measurable = [pair for pair in chosen if min(domain.shape(pair)) > 1]
        joined = {at for pair in measurable if column in pair for at in pair}
        apart = [
            pair
            for pair in sorted(measurable, key=lambda pair: -strengths[pair])
            if column not in pair and joined.issuperset(pair) and math.prod(domain.shape((*pair, column))) <= LARGEST
        ]
        return column, [tuple(sorted((*pair, column))) for pair in kruskal(apart)[0]]

    def _fitting(
        self,
        domain: Domain,
        tree: Sequence[Clique],
        others: Sequence[Clique],
        strengths: Mapping[Clique, float],
        room: float,
    ) -> list[Clique]:
        """Return a spanning tree and those of the ``others`` that fit into a model of ``room`` MiB with it.

        Pairs of interest come first; otherwise those that are strong for the size of their tables: one pair of numeric
        columns may take as much memory as ten pairs of categorical ones.
        """
        interest = set(self._of_interest(domain.schema, others))
        worth = {pair: strengths[pair] / math.prod(domain.shape(pair)) ** SIZE for pair in others}
        ranked = sorted(others, key=lambda pair: (pair not in interest, -worth[pair]))
        return select_fitting(domain.sizes, tree, ranked, room, domain.zeros)


def _share_to_show(correlation: float, deviations: float, federation: Federation, many: int, total: float) -> float:
    """Return the share of the budget at which a ``correlation`` of signs stands out of the noise in a contrast.

    It does by so many standard ``deviations``, if ``many`` contrasts divide the share and ``total`` is the number of
    records. A contrast has half the noise of a table.
    """
    noise = noise_of(federation, 1.0, many) / 2
    faint = deviations * noise / (correlation * total / 2)
    return faint if federation.budget.pure else faint**2


def room_for(total: float, noise: float) -> float:
    """Return the largest size of a model of ``total`` rows in MiB, if two tables a column have this ``noise`` a cell.

    Where noise is small, the pairs for which a model of the least size has no room are the larger error.
    """
    least, most = ROOM
    return min(max(least, least * total / (ROOMY * max(noise, EXACT_STD))), most)


def _tied(schema: Schema) -> list[Clique]:
    """Return the pairs of columns that a rule of the schema names together: they depend on each other."""
    ruled = (sorted(map(schema.index, rule.never)) for rule in schema.rules)
    return sorted({pair for members in ruled for pair in combinations(members, 2)})


def with_places(
    model: MarkovRandomField, domain: Domain, correlations: Mapping[Clique, float], stds: Mapping[Clique, float]
) -> Model:
    """Return ``model``, which draws groups, extended to correlate numeric columns within their groups as well.

    ``correlations`` are the estimated correlations of normal scores, by pair of column positions (0: none known); if
    none of numeric columns is known, ``model`` itself is returned. The extension
    (:class:`~fedsynth.models.ranked.RankedGroups`) uses a spanning tree of the strongest: all of them together need not
    be a valid matrix. A correlation counts as the weaker the less its columns' groups say about their normal scores:
    two groups leave most of a correlation to extrapolation.

    A value that most rows of a group share has no places in it, but often decides the correlation. For pairs in
    ``stds``, the correlation of places is therefore that outside such groups, as far as the noise of the pair's table,
    ``stds`` in each cell, allows it (:func:`~fedsynth.models.pair_tables.correlation_outside`).
    """
    from fedsynth.models.pair_tables import Margin, correlation_outside
    from fedsynth.models.ranked import RankedGroups

    bins = domain.held
    estimated = {
        pair: value for pair, value in correlations.items() if value and all(bins[at].grid is not None for at in pair)
    }
    if not estimated:
        return model
    known = {}
    for at in {at for pair in estimated for at in pair}:
        rows = np.bincount(bins[at].groups, weights=bins[at].counts)
        margin = Margin(rows / rows.sum(), bins[at].ordered(domain.schema.stored[at]))
        known[at] = math.sqrt(margin.of_ordered @ margin.scores() ** 2)
    strength = {pair: abs(value) * known[pair[0]] * known[pair[1]] for pair, value in estimated.items()}
    tree = kruskal(sorted(estimated, key=lambda pair: -strength[pair]))[0]
    columns: list[int] = []
    parents: list[int] = []
    values: list[float] = []
    for root in dict.fromkeys(at for pair in tree for at in pair):
        reached = [(root, -1, 0.0)] if root not in columns else []
        for column, parent, value in reached:  # grows on the way
            columns.append(column)
            parents.append(parent)
            values.append(value)
            own = len(columns) - 1
            beside = [(at, pair) for pair in tree if column in pair for at in pair if at not in columns]
            reached += [(at, own, estimated[pair]) for at, pair in beside]
    ordered = tuple(bins[at].ordered(domain.schema.stored[at]) for at in columns)
    edges = {at: (columns[parent], columns[at]) for at, parent in enumerate(parents) if parent >= 0}
    tables = model.marginals(list(edges.values()))
    for at, pair in edges.items():
        std = stds.get((min(pair), max(pair)))
        if std is not None:
            many = ordered[parents[at]], ordered[at]
            heaps = [bins[end].heaped[:size] for end, size in zip(pair, many, strict=True)]
            values[at] = correlation_outside(tables[pair][: many[0], : many[1]], std, values[at], *heaps)
    return RankedGroups(model, tuple(columns), ordered, tuple(parents), np.array(values))
