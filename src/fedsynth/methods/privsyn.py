"""FedPrivSyn and AdaFedPrivSyn: sketches of all pairs, then full tables of the dependent pairs; and central PrivSyn.

Source: HeteroFedSyn, after PrivSyn (Zhang et al., USENIX Security 2021, arXiv 2012.15128). Corrected: one public
projection for all sites, counts with sensitivity 1, the budget split and composed in zCDP, each pair released once, and
no clipping before the tables are made consistent.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from typing_extensions import override

from fedsynth.cliques import Clique, all_marginals
from fedsynth.errors import InvalidParameter, whole
from fedsynth.methods.domain import Domain
from fedsynth.methods.generators import GENERATORS, GUM, RowGenerator
from fedsynth.methods.measure import (
    check_shares,
    free_numbers,
    measure,
    measure_in_vault,
    noise_weight,
    share_left,
    shares,
    table_of,
    total_records,
)
from fedsynth.methods.pilot import CoarseTable, pilot
from fedsynth.methods.registry import method, name_of
from fedsynth.methods.sketch import LARGEST_SEED, LARGEST_WIDTH, Sketch, dependence, sketch
from fedsynth.methods.survey import SurveyOption, with_survey
from fedsynth.schema.bins import Axis

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.models.estimate import Measurement
    from fedsynth.models.synthesizer import Synthesizer

PLANNED = 1 / 3  # share of all pairs that the survey's groups are planned for, unless the bound is lower


def pairs_worth_releasing(
    strengths: Mapping[Clique, float], weight: Mapping[Clique, float], std: float, most: int, *, pure: bool = False
) -> list[Clique]:
    """Return the pairs of columns to release, chosen greedily while the expected error falls; at most ``most`` of them.

    The error of an omitted pair is its dependence, ``strengths`` (not squared, in records). The error of a released
    pair is the norm of its noise: ``std * sqrt(t) * weight`` where ``t`` pairs share a budget that would give one pair
    noise of ``std`` per cell (``std * t * weight`` under a ``pure`` budget, one with delta = 0), so that each further
    pair makes all of them noisier. ``strengths`` and ``weight`` (the noise's norm in units of a cell's standard
    deviation) have the same pairs as keys and must use the same norm. This is PrivSyn's objective with both errors in
    the same norm.
    """
    chosen: list[Clique] = []
    pairs = sorted(strengths)
    gains, noises = np.array([strengths[pair] for pair in pairs]), np.array([weight[pair] for pair in pairs])
    left_out, weights = sum(strengths.values()), 0.0
    error = left_out
    for count in range(1, min(most, len(pairs)) + 1):
        noise = std * (count if pure else math.sqrt(count))
        at = int(np.argmax(gains - noise * noises))
        best, gains[at] = pairs[at], -np.inf
        left_out, weights = left_out - strengths[best], weights + weight[best]
        if noise * weights + left_out >= error:
            break
        error = noise * weights + left_out
        chosen.append(best)
    return chosen


# ---------------------------------------------------------------------------------------------------------------------
# The methods


@dataclass(frozen=True)
class PrivSynOptions(SurveyOption):
    """Options and first step that :class:`FedPrivSyn` and :class:`AdaFedPrivSyn` share.

    Parameters
    ----------
    one_share, sketch_share
        Shares of the budget for the 1-way tables and for the sketches (random projections of all pairs' tables,
        :func:`~fedsynth.methods.sketch.project`); the released pairs get the rest.
    width
        Length of a sketch, at most 65,536. From 10,000 on, tables of up to 100 x 100 cells are sent whole instead of
        projected.
    seed
        Seed of the public projection, from 0 to 2^63 - 1.
    bound
        Largest number of released pairs, as a share of all pairs of columns; one pair in any case.
    generator
        How the released tables become rows: :class:`~fedsynth.methods.generators.GUM` or
        :class:`~fedsynth.methods.generators.PGM` ("gum" or "pgm" on the command line).
    bins_share
        As in :class:`~fedsynth.methods.survey.SurveyOption`. With a survey, noisy tables of all pairs over coarse
        groups replace the sketches, at ``sketch_share``, since they reveal a correlation under more noise.
    """

    one_share: float = 0.1
    sketch_share: float = 0.1
    width: int = 25
    seed: int = 0
    bound: float = 1 / 3
    generator: RowGenerator = field(default_factory=GUM, metadata=GENERATORS)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self.bound, one_share=self.one_share, sketch_share=self.sketch_share)
        whole(1, LARGEST_WIDTH, width=self.width)
        whole(0, LARGEST_SEED, seed=self.seed)

    @property
    def pair_share(self) -> float:
        """Share for the released pairs' tables of the budget left after the survey: what the two other shares leave."""
        return share_left(self.one_share, self.sketch_share)

    def estimated(self, federation: Federation) -> PairEstimates:
        """Measure 1-way tables, and estimate each pair's dependence from sketches or, after a survey, coarse tables.

        What is then left of the budget is for the tables of the released pairs.
        """
        columns, remaining = len(federation.schema.stored), self.share_after_survey(federation)
        pairs = all_marginals(columns, 2)
        pair_share = self.pair_share * remaining
        domain = self.surveyed(federation, _most(pairs, self.bound), pair_share)
        ones = all_marginals(columns, 1)
        one_way = with_survey(domain, measure(federation, ones, self.one_share * remaining, domain=domain))
        total = total_records(federation, one_way)
        if not pairs:
            return PairEstimates(domain, one_way, total, {}, {}, domain.axes, pair_share)
        if domain.columns:
            coarse = pilot(federation, domain, pairs, self.sketch_share * remaining, one_way, total)
            return PairEstimates(
                domain, one_way, total, coarse.strengths, coarse.tables, coarse.domain.axes, pair_share
            )
        sketched = {
            of_pair.pair: of_pair for of_pair in sketch(federation, pairs, self.sketch_share, self.width, self.seed)
        }
        strengths: dict[Clique, float] = {
            (a, b): math.sqrt(max(0.0, dependence(sketched[a, b], one_way[a], one_way[b], total))) for a, b in pairs
        }
        return PairEstimates(domain, one_way, total, strengths, sketched, domain.axes, pair_share)


class PairEstimates(NamedTuple):
    """What FedPrivSyn knows before it releases a pair: noisy 1-way tables, and estimates of all pairs' dependences.

    ``one_way`` are the 1-way tables over the bins of ``domain``, in order, of ``total`` records. By pair of column
    positions, ``strengths`` are the estimated L2 distances, in records, of the pairs' tables from those of independent
    columns, and ``pairs`` the sketches or coarse tables (none for a column with a single coarse bin); ``axes`` are the
    bins of tables that can be compared with these, one axis per column. ``left`` is the share of the budget that is
    left for the tables of the released pairs.
    """

    domain: Domain
    one_way: list[Measurement]
    total: float
    strengths: dict[Clique, float]
    pairs: Mapping[Clique, Sketch | CoarseTable]
    axes: tuple[Axis, ...]
    left: float


@method("fedprivsyn", adaptive=True, order=2)
@dataclass(frozen=True)
class FedPrivSyn(PrivSynOptions):
    """Sketches every pair, then releases the tables of the dependent pairs and generates rows from them.

    After a survey, if a column needs one, there are three noisy sums over sites: of the 1-way tables, of the sketches
    (:func:`~fedsynth.methods.sketch.project`), and of the tables of the released pairs. Pairs are released as long as
    this lowers the expected error (:func:`pairs_worth_releasing`). Source: HeteroFedSyn, algorithms 1 and 2. The
    options are those of :class:`PrivSynOptions`.
    """

    def fit(self, federation: Federation) -> Synthesizer:
        """Run the method; the result's ``info["cliques"]`` are the released pairs."""
        domain, one_way, total, strengths, _, _, pair_share = self.estimated(federation)
        weight, std = _noise(federation, domain, strengths, pair_share)
        most = _most(strengths, self.bound)
        chosen = pairs_worth_releasing(strengths, weight, std, most, pure=federation.budget.pure)
        # Where no pair is worth its noise, the 1-way tables get the rest of the budget.
        asked = chosen or [table.clique for table in one_way]
        released = measure(federation, asked, pair_share, domain=domain)
        info = {"method": "fedprivsyn", "cliques": [list(clique) for clique in chosen]}
        return self.generator.generate(domain, one_way + released, total, info)


@method("adafedprivsyn", adaptive=True, order=2)
@dataclass(frozen=True)
class AdaFedPrivSyn(PrivSynOptions):
    """Adaptive FedPrivSyn: after each batch, remaining pairs are re-scored against the rows generated so far.

    The first pairs are those whose estimated dependence exceeds the noise of their table by most; pairs whose
    dependence is below the noise are not released. After each batch, rows are generated, and the dependence of a
    remaining pair that shares a column with a released one is lowered to the estimated distance of its table from these
    rows, if that is smaller. Every pair's table costs the same part of the budget, so that the pairs that ``bound``
    allows would use it up. If fewer are released, the rest pays for measuring all released tables once more (without
    any, the 1-way tables). Source: HeteroFedSyn, algorithms 4 and 5.

    Parameters
    ----------
    batch
        Largest number of pairs released in one round.
    one_share, sketch_share, width, seed, bound, generator, bins_share
        As in :class:`FedPrivSyn`.
    """

    batch: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        whole(batch=self.batch)

    def fit(self, federation: Federation) -> Synthesizer:
        """Run the method; the result's ``info["cliques"]`` are the released pairs."""
        domain, one_way, total, strengths, estimates, axes, remaining = self.estimated(federation)
        most = _most(strengths, self.bound)
        share_each = remaining / max(1, most)
        weight, std = _noise(federation, domain, strengths, share_each)
        pairs: list[Measurement] = []
        while strengths and len(pairs) < most:
            gain = {pair: strength - std * weight[pair] for pair, strength in strengths.items()}
            worth = [pair for pair in sorted(gain, key=lambda pair: -gain[pair]) if gain[pair] > 0]
            chosen = worth[: min(self.batch, most - len(pairs))]
            if not chosen:
                break
            pairs += measure(federation, chosen, share_each * len(chosen), domain=domain)
            remaining -= share_each * len(chosen)
            strengths = {pair: strength for pair, strength in strengths.items() if pair not in chosen}
            rows = self.generator.generate(domain, one_way + pairs, total, {}).sample_table(
                round(total), federation.rng
            )
            shown = {column for table in pairs for column in table.clique}
            for pair in strengths:
                if shown & set(pair) and pair in estimates:  # a column of a single group has no pair
                    unseen = estimates[pair].distance(rows.tables(axes, [pair])[0].astype(np.float64))
                    strengths[pair] = min(strengths[pair], math.sqrt(max(unseen, 0.0)))
            federation.progress("pairs released", len(pairs), most)
        again = [table.clique for table in pairs or one_way]
        rest = measure(federation, again, remaining, domain=domain) if remaining > share_each / 2 else []
        info = {"method": "adafedprivsyn", "cliques": [list(table.clique) for table in pairs]}
        return self.generator.generate(domain, one_way + pairs + rest, total, info)


@method("privsyn", needs_vault=True, needs_scores=True, adaptive=True, order=2)
@dataclass(frozen=True)
class PrivSyn(SurveyOption):
    """Central PrivSyn: noisy dependence scores of the exact tables in a vault take the place of sketches.

    A pair's dependence is the L1 distance of its table from the product of the *released* 1-way tables, so that one
    record moves it by 1 (by 4 against the product of exact ones, as published). Pairs are released as long as this
    lowers the expected error (:func:`pairs_worth_releasing`). The method needs noisy scores of all pairs, and therefore
    a trusted server. Source: Zhang et al., arXiv 2012.15128.

    Parameters
    ----------
    one_share, score_share
        Shares of the budget for the 1-way tables and for the dependence scores; the released pairs get the rest.
    bound
        Largest number of released pairs, as a share of all pairs of columns; one pair in any case.
    generator
        As in :class:`PrivSynOptions`.
    bins_share
        As in :class:`~fedsynth.methods.survey.SurveyOption`.
    """

    one_share: float = 0.1
    score_share: float = 0.1
    bound: float = 1.0
    generator: RowGenerator = field(default_factory=GUM, metadata=GENERATORS)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self.bound, one_share=self.one_share, score_share=self.score_share)

    def fit(self, federation: Federation) -> Synthesizer:
        """Run the method; the result's ``info["cliques"]`` are the released pairs."""
        from fedsynth.federation.vault import CandidateScores

        federation.require_vault(scores=True)
        ones, pairs = (all_marginals(len(federation.schema.stored), order) for order in (1, 2))
        remaining = self.share_after_survey(federation)
        planned = _most(pairs, min(self.bound, PLANNED))
        domain = self.surveyed(federation, planned, share_left(self.one_share, self.score_share) * remaining)
        vault = federation.deposit(domain.counts([*ones, *pairs]), remaining)

        one_share = self.one_share * remaining if pairs else remaining
        one_way = with_survey(domain, measure_in_vault(vault, domain, ones, one_share))
        total = total_records(federation, one_way)
        if not pairs:
            return self.generator.generate(domain, one_way, total, {"method": "privsyn", "cliques": []})
        product = tuple(np.outer(one_way[a].values, one_way[b].values) / total for a, b in pairs)
        distances = CandidateScores(pairs, product, np.ones(len(pairs)), np.zeros(len(pairs)))
        noisy, _ = vault.scores(distances, self.score_share * remaining)
        pair_share = vault.left
        # The L1 norm of the noise, since the strengths are L1 distances.
        weight = {pair: noise_weight(domain, pair) for pair in pairs}
        strengths = dict(zip(pairs, noisy.tolist(), strict=True))
        most = _most(strengths, self.bound)
        chosen = pairs_worth_releasing(strengths, weight, vault.std(pair_share), most, pure=federation.budget.pure)
        released = measure_in_vault(vault, domain, chosen or ones, pair_share)
        info = {"method": "privsyn", "cliques": [list(clique) for clique in chosen]}
        return self.generator.generate(domain, one_way + released, total, info)


@dataclass(frozen=True)
class MarginalBaseline(SurveyOption):
    """Releases the tables of pairs that are chosen before any query: what the baselines of HeteroFedSyn share.

    Parameters
    ----------
    one_share
        Share of the budget for the 1-way tables; the pairs get the rest.
    generator
        As in :class:`PrivSynOptions`.
    bins_share
        As in :class:`~fedsynth.methods.survey.SurveyOption`.
    """

    one_share: float = 0.1
    generator: RowGenerator = field(default_factory=GUM, metadata=GENERATORS)

    def __post_init__(self) -> None:
        shares(one_share=self.one_share)
        super().__post_init__()

    def chosen(self, pairs: Sequence[Clique], rng: np.random.Generator) -> Sequence[Clique]:
        """Return those of all ``pairs`` of columns that are released: all of them."""
        return pairs

    def fit(self, federation: Federation) -> Synthesizer:
        """Run the method; the result's ``info["cliques"]`` are the released pairs."""
        ones, every = (all_marginals(len(federation.schema.stored), order) for order in (1, 2))
        pairs, remaining = self.chosen(every, federation.rng), self.share_after_survey(federation)
        one_share, pair_share = remaining, 0.0
        if pairs:
            one_share, pair_share = self.one_share * remaining, (1 - self.one_share) * remaining
        domain = self.surveyed(federation, len(pairs), pair_share or remaining)
        one_way = with_survey(domain, measure(federation, ones, one_share, domain=domain))
        two_way = measure(federation, pairs, pair_share, domain=domain) if pairs else []
        info = {"method": name_of(self), "cliques": [list(pair) for pair in pairs]}
        return self.generator.generate(domain, one_way + two_way, total_records(federation, one_way), info)


@method("allmarginals", adaptive=True, order=2)
@dataclass(frozen=True)
class AllMarginals(MarginalBaseline):
    """Releases every pair's table and selects nothing: a baseline of HeteroFedSyn.

    The options are those of :class:`MarginalBaseline`.
    """


@method("randommarginals", adaptive=True, order=2)
@dataclass(frozen=True)
class RandomMarginals(MarginalBaseline):
    """Releases the tables of randomly chosen pairs, drawn before any query: a baseline of HeteroFedSyn.

    Parameters
    ----------
    share
        Share of all pairs that is released, above 0 and at most 1, but at least one pair; not a share of the budget.
    one_share, generator, bins_share
        As in :class:`MarginalBaseline`.
    """

    share: float = 1 / 3

    def __post_init__(self) -> None:
        super().__post_init__()
        _part_of_pairs("share", self.share)

    @override
    def chosen(self, pairs: Sequence[Clique], rng: np.random.Generator) -> Sequence[Clique]:
        drawn = rng.permutation(len(pairs))[: max(1, round(self.share * len(pairs)))]
        return [pairs[at] for at in sorted(drawn.tolist())]


def _noise(
    federation: Federation, domain: Domain, pairs: Iterable[Clique], share: float
) -> tuple[dict[Clique, float], float]:
    """Return the L2 norm of each pair's noise in units of a cell's std, and that std if one pair gets ``share``."""
    weight = {pair: math.sqrt(free_numbers(domain, pair)) for pair in pairs}
    return weight, federation.std(table_of((0,)), share)


def _most(strengths: Collection[Clique], bound: float) -> int:
    return min(len(strengths), max(1, math.floor(bound * len(strengths))))


def _check(bound: float, **before_pairs: float) -> None:
    shares(**before_pairs)
    check_shares("the pairs", **before_pairs)
    _part_of_pairs("bound", bound)


def _part_of_pairs(name: str, part: float) -> None:
    if not 0 < part <= 1:
        raise InvalidParameter(f"{name} must lie in (0, 1], not {part}; 0.5 stands for half of all pairs")
