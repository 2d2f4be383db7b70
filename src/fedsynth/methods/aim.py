"""AIM: the adaptive and iterative mechanism for synthetic data, on a vault.

Source: McKenna, Mullins, Sheldon & Miklau, VLDB 2022 (arXiv 2201.12677); the fixed number of rounds and the sampling of
sites by round follow FLAIM (arXiv 2310.06447).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from typing_extensions import override

from fedsynth.cliques import Clique, Workload, all_marginals, downward_closure, maximal, weights
from fedsynth.errors import InvalidParameter, positive, whole
from fedsynth.methods.domain import Domain
from fedsynth.methods.measure import (
    fit_over,
    fits,
    measure_in_vault,
    noise_norm,
    noise_weight,
    shares,
    site_records,
    total_records,
    workload_order,
)
from fedsynth.methods.registry import COHORT_RATE, method
from fedsynth.methods.survey import SurveyOption, with_survey

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.federation.vault import CandidateScores, Vault
    from fedsynth.models.mrf import MarkovRandomField
    from fedsynth.models.synthesizer import Synthesizer


@method("aim", needs_vault=True, adaptive=True, order=workload_order)
@dataclass(frozen=True)
class AIM(SurveyOption):
    """Repeatedly measures the marginal that the current model fits worst, on a vault of exact tables.

    With a trusted server it equals central AIM, which runs on the pooled rows, bit for bit. With three servers, to
    which the sites sampled for a round send secret shares, it is DistAIM (Maddock, Cormode & Maple, arXiv 2310.06447),
    with two changes: scores are L2 distances, and the tables of the first sample of sites stay in the vault
    (:class:`~fedsynth.federation.vault.Vault`) unless ``keep_first`` is False. A ``rate`` below 1 needs ``rounds`` and
    excludes ``bins_share``.

    Parameters
    ----------
    workload
        Marginals that the synthetic rows should reproduce, as tuples of column positions (from 0, in
        ``schema.stored``); ``None``: all pairs of columns. AIM selects from these and all their subsets.
    rounds
        Number of selected marginals. ``None``: as many as the budget allows, with annealing as in the original AIM: the
        first round gets 1 / (16 d) of the budget for d columns, or 1 / (4 d) under pure DP, where noise grows with the
        number of rounds and not with its square root.
    rate
        Probability with which a site is in a sample. Below 1, one sample of sites deposits its tables before the first
        marginals are measured, and another one in each of the ``rounds``, which must then be given. Deposited tables
        stay in the vault. 1: all sites deposit before the first round.
    keep_first
        Whether the tables of the first sample stay in the vault. ``False``, as published: the first sample deposits
        single columns only, in a vault of their own, and its sites deposit again once a round samples them. A site's
        privacy cost is no higher: the two deposits together cost what a single one costs otherwise.
    measure_share, size_share
        With a ``rate`` below 1, ``size_share`` of the budget pays for a noisy number of records of each site, unless
        these numbers are public: they scale the tables of a sample of sites to all sites. Of what is left after this
        and ``bins_share``, the part ``measure_share`` is for measuring, and the rest for selection (without ``rounds``,
        of each round's part; the 1-way tables that precede the first round need no selection).
    max_megabytes
        Largest size of the graphical model's tables, in MiB (8 bytes per cell). The limit in a round is this number
        times the share of the budget that will have been spent at its end.
    iterations, final_iterations
        Upper bounds on the steps of each round's fit and of the last one. With a ``rate`` below 1 each ends after 10
        steps at the latest, since samples of sites disagree (:func:`~fedsynth.methods.measure.fit_noisy`).
    bins_share
        As in :class:`~fedsynth.methods.survey.SurveyOption`; ``None`` is also 0 with a ``rate`` below 1.
    """

    workload: Workload | None = None
    rounds: int | None = None
    rate: float = field(default=1.0, metadata=COHORT_RATE)
    keep_first: bool = True
    measure_share: float = 0.9
    size_share: float = 0.01
    max_megabytes: float = 80.0
    iterations: int = 50
    final_iterations: int = 500

    def __post_init__(self) -> None:
        shares(measure_share=self.measure_share, size_share=self.size_share)
        super().__post_init__()
        whole(rounds=self.rounds, iterations=self.iterations, final_iterations=self.final_iterations)
        positive(max_megabytes=self.max_megabytes)
        if not 0 < self.rate <= 1:
            raise InvalidParameter(f"rate must lie in (0, 1], not {self.rate}; 1 asks all sites at once")
        if self.rate < 1 and self.rounds is None:
            raise InvalidParameter("a rate below 1 needs a fixed number of rounds: give one, such as rounds = 10")
        if self.rate < 1 and self.bins_share:
            raise InvalidParameter("a survey asks all sites at once: set bins_share = 0, or rate = 1")

    @override
    def share_for_survey(self, federation: Federation) -> float:
        return 0.0 if self.rate < 1 else super().share_for_survey(federation)

    def fit(self, federation: Federation) -> Synthesizer:
        """Run the method; the result's ``info`` has the number of ``rounds`` and, as ``cliques``, the marginals."""
        federation.require_vault()
        columns = len(federation.schema.stored)
        workload = self.workload or all_marginals(columns, min(2, columns))
        candidates = downward_closure(workload)
        ones = all_marginals(columns, 1)
        entering = _Entering.all_at_once(federation)
        if self.rate < 1:
            entering = _Entering.drawn(federation, self.rate, self.rounds or 1, self.size_share)
        pure, share = federation.budget.pure, self.share_after_survey(federation) - entering.spent

        planned = self.rounds or (4 if pure else 16) * len(ones)
        price = _Price.of(share, self.measure_share, planned + len(ones) if self.rounds else planned, planned)
        ones_share = price.measure * len(ones)
        domain = self.surveyed(federation, columns, self.measure_share * share)
        kept = domain.counts(maximal([*(tuple(sorted(clique)) for clique in workload), *ones]))
        if self.keep_first:
            vault = opened = entering.first.deposit(kept, share)
        else:
            opened = entering.first.deposit(domain.counts(ones), ones_share)
            second = entering.later[0] if entering.later else entering.first
            vault = second.deposit(kept, share - ones_share)

        one_way = measure_in_vault(opened, domain, ones, ones_share, entering.factor(opened))
        measured = with_survey(domain, one_way)
        total = entering.total or total_records(federation, measured)
        model = fit_over(domain, measured, total, self.iterations, one_cohort=entering.at_once)
        done, last = 0, False
        while not last:
            remaining = vault.left
            if last := remaining < 2 * (price.measure + price.select) * (1 - 1e-9):
                price = _Price.of(remaining, self.measure_share)
            if done < len(entering.later):
                entering.later[done].deposit_into(vault)
            limit = self.max_megabytes * (1 - (remaining - price.measure - price.select) / share)
            viable = [clique for clique in candidates if fits(domain.sizes, model.cliques, clique, limit)]
            std, factor = vault.std(price.measure), entering.factor(vault)
            chosen = viable[vault.select(_distances(domain, model, viable, workload, std, factor), price.select)]
            measured += measure_in_vault(vault, domain, [chosen], price.measure, factor)
            before, steps = model, self.final_iterations if last else self.iterations
            model = fit_over(domain, measured, total, steps, before, one_cohort=entering.at_once)
            done += 1
            federation.progress("AIM rounds", done, max(done, planned if self.rounds else done + 1))
            moved = np.abs(model.marginal(chosen) - before.marginal(chosen)).sum()
            if self.rounds is None and moved <= std * noise_weight(domain, chosen):
                price = price.times(2 if pure else 4)  # halves the noise and doubles the draw's epsilon
        info = {"method": "aim", "rounds": done, "cliques": [list(table.clique) for table in measured]}
        return domain.synthesizer(model, info)


def _distances(
    domain: Domain,
    model: MarkovRandomField,
    candidates: Sequence[Clique],
    workload: Workload,
    std: float,
    factor: float,
) -> CandidateScores:
    """Return scores: distances of the ``candidates``' exact tables from a model's, less that expected of noise.

    They are weighted by what of the ``workload`` a candidate covers. The model is of ``factor`` times the records in
    the vault, and noise has the standard deviation ``std`` per cell there.
    """
    from fedsynth.federation.vault import CandidateScores

    answers = model.marginals(candidates)
    return CandidateScores(
        tuple(candidates),
        tuple(answers[clique] if factor == 1 else answers[clique] / factor for clique in candidates),
        np.array(weights(candidates, workload)),
        std * np.array([noise_norm(domain, clique) for clique in candidates]),
    )


class _Price(NamedTuple):
    """What a round costs, as shares of the budget: to ``select`` a marginal, and to ``measure`` it."""

    measure: float
    select: float

    @classmethod
    def of(cls, share: float, measure_share: float, tables: int = 1, draws: int = 1) -> _Price:
        """Return the prices that divide a ``share`` between so many tables, for a part of it, and so many draws."""
        return cls(share * measure_share / tables, share * (1 - measure_share) / draws)

    def times(self, factor: float) -> _Price:
        return _Price(factor * self.measure, factor * self.select)


@dataclass(frozen=True)
class _Entering:
    """The sites that deposit in the vault: those of ``first`` before round one, then one cohort of ``later`` per round.

    ``records`` holds each site's number of records, for which the share ``spent`` of the budget was paid; it is
    ``None`` if all sites deposit at once, since the tables then give the total.
    """

    first: Federation
    later: tuple[Federation, ...] = ()
    records: Mapping[str, float] | None = None
    spent: float = 0.0

    @classmethod
    def all_at_once(cls, federation: Federation) -> _Entering:
        return cls(federation)

    @classmethod
    def drawn(cls, federation: Federation, rate: float, rounds: int, size_share: float) -> _Entering:
        """Return a schedule with a sample of sites before the first round and one in each round."""
        records, spent = site_records(federation, size_share)
        known = replace(federation, sites=tuple(site for site in federation.sites if site in records))
        first, *later = known.cohorts(rate, rounds + 1)
        return cls(first, tuple(later), records, spent)

    @property
    def at_once(self) -> bool:
        return self.records is None

    @property
    def total(self) -> float | None:
        """Number of records of all sites, including those never sampled; ``None`` if the tables give it."""
        return None if self.records is None else max(1.0, sum(self.records.values()))

    def factor(self, vault: Vault) -> float:
        """Return the ratio of the records of all sites to those of the sites in the vault."""
        if self.records is None:
            return 1.0
        return sum(self.records.values()) / sum(self.records[site] for site in vault.sites)
