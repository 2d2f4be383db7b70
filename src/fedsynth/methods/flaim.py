"""FLAIM: AIM in rounds over samples of sites, in which each site selects privately the marginals to measure.

Source: Maddock, Cormode & Maple, KDD 2024 (arXiv 2310.06447), with these corrections: scores in records against a
public scale (one record then moves a norm by one, whatever the site's size); local steps are paid for (2s - 1
measurements, not s); sums are normalised by the sites' public or noisily released sizes, never by a noisy sum's own
total; the proxy, an estimate of all sites' 1-way marginals, is the model's own, fitted to the noisy ones of all rounds
so far; the cohorts (samples of sites) of all rounds are drawn first, and the noise is calibrated to the largest number
of rounds that any site was drawn for, not to all rounds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from fedsynth.cliques import Clique, Workload, all_marginals, downward_closure, integer_weights, weights
from fedsynth.errors import InvalidParameter, positive, whole
from fedsynth.federation.query import MOST_ROWS, Counts
from fedsynth.methods.flaim_scores import (
    GRID,
    MOST_ITERATIONS,
    MOST_PENALTY,
    FLAIMSelection,
    MeasuredTables,
    flat_tables,
    model_shares,
)
from fedsynth.methods.measure import (
    NOISE_L1,
    fit_noisy,
    fits,
    measurements,
    shares,
    site_records,
    table_of,
    workload_order,
)
from fedsynth.methods.registry import COHORT_RATE, Promise, method
from fedsynth.privacy.release import MOST_DRAWS
from fedsynth.schema.bins import Integers

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation, Sum
    from fedsynth.models.estimate import Measurement, Zeros
    from fedsynth.models.mrf import MarkovRandomField
    from fedsynth.models.synthesizer import Synthesizer

# ---------------------------------------------------------------------------------------------------------------------
# The steps of a round


@dataclass(frozen=True)
class FLAIMOptions:
    """Options of all FLAIM variants: rounds over samples of sites, in which each site selects marginals privately.

    All tables are over the schema's own bins, since the sites' scores support no others.

    Parameters
    ----------
    workload
        Marginals that the synthetic rows should reproduce, as tuples of column positions (from 0, in
        ``schema.stored``); ``None``: all pairs of columns. The candidates for selection are these and their subsets.
    rounds, rate
        Number of rounds T, and probability with which a site takes part in a round (in its cohort).
    steps
        Local steps s: number of marginals that a site selects per round, at most 64.
    cap
        R: largest number of rounds that a site may join (``None``: all T). A cap lowers the noise, but later rounds
        have fewer sites.
    annealing
        Whether the noise falls as in AIM, where ``rounds`` is then the largest number of rounds: once at least half of
        a round's tables move the model by less than their expected noise, a quarter of the rounds that are left, as
        then planned, share what is left of the budget, so that the standard deviation about halves. The published
        threshold lacks the scaling of a cohort's tables to all records, so that it is hardly ever passed.
    measure_share, size_share
        ``size_share`` of the budget pays for noisy numbers of records of the sites, unless these are public. Of the
        rest, about ``measure_share`` is for measuring, and what remains for selection (:meth:`FLAIMState.prices`).
    max_megabytes
        Largest size of the graphical model's tables, in MiB (8 bytes per cell). The limit rises linearly over the
        rounds to this number.
    iterations, final_iterations
        Upper bounds on the steps of each round's fit and of the final fit after all rounds. The server's fits end
        after 10 steps at the latest, since the rounds' cohorts disagree (:func:`~fedsynth.methods.measure.fit_noisy`).
        With more than one local step, sites fit as well, and ``iterations`` is at most 1000.
    """

    workload: Workload | None = None
    rounds: int = 10
    rate: float = field(default=0.1, metadata=COHORT_RATE)
    steps: int = 1
    cap: int | None = None
    annealing: bool = False
    measure_share: float = 0.9
    size_share: float = 0.01
    max_megabytes: float = 80.0
    iterations: int = 50
    final_iterations: int = 500

    def __post_init__(self) -> None:
        shares(measure_share=self.measure_share, size_share=self.size_share)
        whole(rounds=self.rounds, cap=self.cap, iterations=self.iterations, final_iterations=self.final_iterations)
        whole(1, MOST_DRAWS, steps=self.steps)
        positive(max_megabytes=self.max_megabytes)
        if not 0 < self.rate <= 1:
            raise InvalidParameter(f"rate must lie in (0, 1], not {self.rate}; 0.1 asks a tenth of the sites")
        if self.steps > 1 and self.iterations > MOST_ITERATIONS:
            raise InvalidParameter(
                f"sites that take steps = {self.steps} fit in between, in at most {MOST_ITERATIONS} iterations, not "
                f"{self.iterations}; lower iterations, or set steps = 1"
            )


class Round(NamedTuple):
    """A round: its ``cohort``, the limit on the model's size in MiB, and what a table and a draw cost in it.

    ``share_measure`` and ``share_pick`` are shares of the budget.
    """

    cohort: Federation
    megabytes: float
    share_measure: float
    share_pick: float


@dataclass
class FLAIMState:
    """The server's state of a FLAIM run: the cohorts, all measurements so far, and the model fitted to them.

    Its methods are the steps from which the FLAIM variants are built. ``federation`` holds the sites whose numbers of
    records (``records``) are known. ``share`` is the part of the budget that is left for the rounds, and ``rounds`` the
    cohort of each, a federation of the sites drawn for it; there are fewer than in the settings if the cap leaves no
    site for more. ``measured`` are the noisy tables so far, scaled to records of the whole federation, and ``fitted``
    is the model, ``None`` before the first fit. ``selected`` are those of ``measured`` that sites selected in this
    round, and ``before`` is the model that they were selected by.
    """

    federation: Federation
    settings: FLAIMOptions
    records: dict[str, float]
    share: float
    rounds: list[Federation]
    measured: list[Measurement] = field(default_factory=list)
    fitted: MarkovRandomField | None = None
    selected: list[Measurement] = field(default_factory=list)
    before: MarkovRandomField | None = None

    @classmethod
    def start(cls, federation: Federation, settings: FLAIMOptions) -> FLAIMState:
        """Draw all cohorts and learn the sites' numbers of records, for ``size_share`` of the budget unless public.

        Sites that do not answer are left out of the run. Raises :class:`Unsupported`, before anything is spent, under a
        trust model without noisy sums over sites.
        """
        from fedsynth.federation.trust import sums_of  # loads cryptography, which the module of a question must not

        sums_of(federation.trust)
        records, spent = site_records(federation, settings.size_share)
        federation = replace(federation, sites=tuple(site for site in federation.sites if site in records))
        rounds = federation.cohorts(settings.rate, settings.rounds, settings.cap)
        return cls(federation, settings, records, 1 - spent, rounds)

    @cached_property
    def total(self) -> float:
        """Estimated number of records of all sites together, including sites that are in no cohort."""
        return sum(self.records.values())

    @cached_property
    def ones(self) -> Workload:
        """The 1-way marginals of all stored columns."""
        return all_marginals(len(self.federation.schema.stored), 1)

    @cached_property
    def workload(self) -> Workload:
        """The option ``workload``, or all pairs."""
        columns = len(self.ones)
        return self.settings.workload or all_marginals(columns, min(2, columns))

    @property
    def model(self) -> MarkovRandomField:
        """The graphical model of the last fit, which must exist."""
        assert self.fitted is not None
        return self.fitted

    def cohorts(self, label: str, tables: int, draws: int, first: int = 0) -> Iterator[Round]:
        """Yield the rounds one after another, with prices that use up the budget (:class:`Round`, :meth:`prices`).

        The limit on the model's size rises linearly over the rounds to ``max_megabytes``. With ``annealing``, only a
        quarter of the rounds that are left follows on a round whose tables had no more to tell than noise, and prices
        are computed anew from what the sites have left. Which rounds follow, and at which price, depends on releases
        alone, and no site is ever asked for more than it has left, whatever the releases are. A sum of costs of
        adaptively chosen mechanisms that never exceeds the budget is a guarantee under zCDP and pure DP (privacy
        filters: Feldman & Zrnic, arXiv 2008.11193).
        """
        planned, remaining = list(self.rounds), dict.fromkeys(self.federation.sites, self.share)
        done, count = 0, self.settings.rounds
        table, draw = self.prices(tables, draws, first)
        while planned:
            cohort = planned.pop(0)
            self.selected = []
            yield Round(cohort, self.settings.max_megabytes * ((done + 1) / count), table, draw)
            for site in cohort.sites:
                remaining[site] -= (tables + first * (not done)) * table + draws * draw
            done += 1
            if self.settings.annealing and planned and self._noise_only():
                planned = planned[: math.ceil(len(planned) / 4)]
                count = done + len(planned)
                table, draw = self._prices(planned, remaining, tables, draws, 0)
            self.federation.progress(label, done, count)

    def _noise_only(self) -> bool:
        """Whether half of the tables that were selected in this round, or more, moved the model by less than noise."""
        if not self.selected:
            return False
        assert self.before is not None
        self.refit(self.settings.iterations)
        cliques = [m.clique for m in self.selected]
        after, earlier = self.model.marginals(cliques), self.before.marginals(cliques)
        small = [
            np.abs(after[m.clique] - earlier[m.clique]).sum() <= NOISE_L1 * m.std * m.values.size for m in self.selected
        ]
        return 2 * int(np.sum(small)) >= len(small)

    def prices(self, tables: int, draws: int, first: int = 0) -> tuple[float, float]:
        """Return the privacy costs of a table and of a draw, as shares of the budget, that use up the budget left.

        A draw is a private selection by a site. A site is charged for ``tables`` tables and ``draws`` draws in every
        round that it is drawn for, and for ``first`` more tables if it is drawn for the first round. Let site i be
        drawn for n_i rounds, and let f_i be 1 if the first round is among them and 0 if not. With p for one table and d
        for one draw, the site spends

            p (tables n_i + first f_i) + d draws n_i.

        The site that spends most then spends exactly the run's ``share``. To find p and d, the first term is set to
        ``measure_share`` and the second to the rest, each at the site where it is largest; then both p and d are
        multiplied by one factor, so that the largest sum equals ``share``. The cohorts are drawn beforehand and depend
        on no data, and a site that is lost in a round spends no more than if it had answered: no site exceeds its
        budget, whichever sites answer.
        """
        return self._prices(self.rounds, dict.fromkeys(self.federation.sites, self.share), tables, draws, first)

    def _prices(
        self, rounds: Sequence[Federation], remaining: Mapping[str, float], tables: int, draws: int, first: int
    ) -> tuple[float, float]:
        """Return :meth:`prices` for these ``rounds``, in which one site or more uses up its ``remaining`` share."""
        joined = Counter(site for cohort in rounds for site in cohort.sites)
        begins = set(rounds[0].sites)
        measured = {site: tables * n + first * (site in begins) for site, n in joined.items()}
        measure_share = self.settings.measure_share if draws else 1.0
        table = measure_share / max(measured.values())
        draw = (1 - measure_share) / (draws * max(joined.values())) if draws else 0.0
        factor = min(remaining[site] / (table * measured[site] + draw * draws * n) for site, n in joined.items())
        return table * factor, draw * factor

    def measure(self, cohort: Federation, per_site: Mapping[str, Sequence[Clique]], share_each: float) -> None:
        """Add a noisy table of each clique, summed over the sites of ``cohort`` that selected it, to the measurements.

        ``per_site`` holds the selected cliques by site; each distinct one costs its sites ``share_each`` of the budget.
        """
        queries = {q: table_of(q) for picked in per_site.values() for q in picked}
        asked = {site: [queries[q] for q in dict.fromkeys(picked)] for site, picked in per_site.items() if picked}
        known, self.before = len(self.measured), self.fitted
        if asked:
            self._remember(cohort.sums(asked, share_each))
        self.selected = self.measured[known:]

    def measure_together(self, cohort: Federation, cliques: Sequence[Clique], share: float) -> None:
        """Add noisy tables of all ``cliques`` over ``cohort``, from one query, for ``share`` of the budget in total."""
        self._remember([cohort.sum(Counts.of(len(self.ones), cliques), share)])

    def refit(self, iterations: int, zeros: Zeros | None = None) -> None:
        """Refit the model to all measurements, from the last fit; without ``zeros``, rules are ignored."""
        sizes, before = self.federation.schema.sizes, self.fitted
        self.fitted = fit_noisy(sizes, self.measured, self.total, iterations, before, one_cohort=False, zeros=zeros)

    def start_model(self, cohort: Federation, share_each: float) -> None:
        """In the first round only, measure all 1-way marginals, each for ``share_each``, and fit the model."""
        if not self.measured:
            self.measure_together(cohort, self.ones, share_each * len(self.ones))
            self.refit(self.settings.iterations)

    def candidates(self, smallest: int, megabytes: float) -> list[Clique]:
        """Return the cliques that a site may select next.

        These are the workload's cliques and all their subsets of at least ``smallest`` columns, as far as the model
        together with the clique needs at most ``megabytes`` (MiB).
        """
        closure = [q for q in downward_closure(self.workload) if len(q) >= smallest]
        return [q for q in closure if fits(self.model.sizes, self.model.cliques, q, megabytes)]

    def pick(
        self,
        cohort: Federation,
        candidates: Sequence[Clique],
        share_pick: float,
        share_look: float,
        *,
        by_column: Integers | None = None,
        by_candidate: Integers | None = None,
    ) -> dict[str, list[Clique]]:
        """Let every site of ``cohort`` privately select ``settings.steps`` of the ``candidates`` by its own rows.

        A site draws one candidate after another by the exponential mechanism, and each draw costs it ``share_pick`` of
        the budget. After each draw but the last, the site measures the drawn candidate's table for itself, which costs
        ``share_look``, and refits the model to it. Candidates are scored by
        :class:`~fedsynth.methods.flaim_scores.FLAIMSelection`, to which ``by_column`` and ``by_candidate`` (at most one
        of them) belong. Returns the selected cliques by site, in the order of the draws; sites that do not answer are
        missing.
        """
        schema, steps = self.federation.schema, self.settings.steps
        share_looks = (steps - 1) * share_look
        share = steps * share_pick + share_looks
        # The noise is added once to the sum over all sites that select the same candidate. Their number is unknown
        # beforehand: from one to the expected cohort. The noise per site is the whole noise divided by the geometric
        # mean of the two.
        std = cohort.std(table_of(candidates[0]), share_look, 1)
        crowd = max(1.0, self.settings.rate * len(self.federation.sites)) ** 0.5
        noise = NOISE_L1 * std / crowd * np.array([math.prod(schema.shape(q)) for q in candidates])
        weight = integer_weights(weights(candidates, self.workload))
        shared = FLAIMSelection(
            steps=steps,
            look_share=share_looks / share,
            records=1,
            candidates=tuple(candidates),
            weights=weight,
            penalties=np.rint(np.minimum(GRID * weight * noise, MOST_PENALTY / 2)).astype(np.int64),
            factors=self.model.factors,
            potentials=flat_tables(self.model.potentials),
            by_column=by_column,
            by_candidate=by_candidate,
            measured=None if steps == 1 else MeasuredTables.of(self.measured, self.total, self.settings.iterations),
        )
        of_records: dict[int, FLAIMSelection] = {}
        asked = {}
        for site in cohort.sites:
            records = min(round(self.records[site]), MOST_ROWS)
            asked[site] = of_records.setdefault(records, msgspec.structs.replace(shared, records=records))
        picks = cohort.choose(asked, share)
        return {site: [candidates[index] for index in indices] for site, indices in picks.items()}

    def together(self, picks: Mapping[str, list[Clique]]) -> dict[str, list[Clique]]:
        """Return the selected cliques by site (``picks``), without those that would make one model of all too large.

        Cliques are added to the model of the last fit in descending order of the number of sites that selected them, as
        far as ``max_megabytes`` allows. Each site's own selection fits, but the union of all may form cycles, and thus
        a model of any size.
        """
        votes = Counter(q for chosen in picks.values() for q in set(chosen))
        cliques = list(self.model.cliques)
        for q, _ in votes.most_common():
            if fits(self.model.sizes, cliques, q, self.settings.max_megabytes):
                cliques.append(q)
        return {site: [q for q in chosen if q in cliques] for site, chosen in picks.items()}

    def result(self, name: str) -> Synthesizer:
        """Return the synthesizer of a final fit to all measurements, with the schema's forbidden cells set to 0.

        ``name`` and the measured cliques of two or more columns go into its ``info``. Earlier fits ignore the schema's
        rules, since sites can only evaluate models whose factors are all measured tables.
        """
        from fedsynth.models.synthesizer import Synthesizer, own_bins

        self.refit(self.settings.final_iterations, self.federation.schema.forbidden_cells())
        cliques = [list(m.clique) for m in self.measured if len(m.clique) > 1]
        info = {"method": name, "cap": self.settings.cap, "cliques": cliques}
        return Synthesizer(self.federation.schema, own_bins(self.federation.schema), self.model, info)

    def _remember(self, sums: Sequence[Sum]) -> None:
        """Scale each sum and its noise from its sites' records to all records, so that the fit weights it correctly."""
        for released in sums:
            assert isinstance(released.query, Counts)
            factor = self.total / sum(self.records[site] for site in released.sites)
            self.measured += measurements(released.query.cliques, released.tables, released.stds, factor)


# ---------------------------------------------------------------------------------------------------------------------
# The methods

_DRAWN: dict[Promise, str] = {
    "any split": "each round asks a sample of sites, and sites select by their own rows",
}
PICKED: dict[Promise, str] = {
    **_DRAWN,
    "whole budget": "selected cliques that do not fit into one model are neither measured nor charged",
}
"""Promises that methods in which sites select do not keep, with the reasons."""


@method("flaim", adaptive=True, exempt=PICKED, order=workload_order)
@dataclass(frozen=True)
class FLAIM(FLAIMOptions):
    """FLAIM in its basic form: every site scores candidates by the model's error on its own rows alone.

    In each round a random sample of sites selects marginals privately, and noisy sums of these over the sites refine
    one model. Source: Maddock, Cormode & Maple (arXiv 2310.06447). The options are those of :class:`FLAIMOptions`.
    """

    def fit(self, federation: Federation) -> Synthesizer:
        """Run the method; the result's ``info["cliques"]`` are the measured marginals of two or more columns."""
        run = FLAIMState.start(federation, self)
        rounds = run.cohorts("FLAIM rounds", 2 * self.steps - 1, self.steps, first=len(run.ones))
        for cohort, megabytes, share_measure, share_pick in rounds:
            run.start_model(cohort, share_measure)
            picks = run.pick(cohort, run.candidates(1, megabytes), share_pick, share_measure)
            run.measure(cohort, run.together(picks), share_measure)
            run.refit(self.iterations)
        return run.result("flaim")


@method("augflaim", adaptive=True, exempt=PICKED, order=workload_order)
@dataclass(frozen=True)
class AugFLAIM(FLAIMOptions):
    """FLAIM with scores corrected for heterogeneity by a private proxy.

    Every round re-measures the 1-way marginals over its cohort, and the model is refitted to them and all earlier
    tables; the proxy, an estimate of the 1-way marginals of all sites, is that of this model. A candidate's score at a
    site, the error of the model on the site's rows, is reduced by the distance of the site's own 1-way marginals from
    the proxy. Source: Maddock, Cormode & Maple (arXiv 2310.06447). The further options are those of
    :class:`FLAIMOptions`. The two below each turn off one half of the method, as in the paper's ablation; without
    either, the method would be :class:`FLAIM`.

    Parameters
    ----------
    proxy
        Whether scores are reduced by a site's distance from the proxy.
    combine
        Whether the model is fitted to the 1-way marginals of all rounds, and these are no candidates ("filter and
        combine"). ``False``: only to those of the first round and to those that sites select; the proxy is fitted to
        the re-measured ones by itself.
    """

    proxy: bool = True
    combine: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.proxy or self.combine):
            raise InvalidParameter("augflaim with proxy = false and combine = false is flaim; choose --method flaim")

    def fit(self, federation: Federation) -> Synthesizer:
        """Run the method; the result's ``info["cliques"]`` are the measured marginals of two or more columns."""
        run = FLAIMState.start(federation, self)
        singles = run if self.combine else replace(run, measured=[])  # to which the 1-way marginals are fitted

        rounds = run.cohorts("AugFLAIM rounds", 2 * self.steps - 1 + len(run.ones), self.steps)
        for cohort, megabytes, share_measure, share_pick in rounds:
            singles.measure_together(cohort, run.ones, share_measure * len(run.ones))
            singles.refit(self.iterations)
            if run.fitted is None:
                run.measured, run.fitted = list(singles.measured), singles.fitted
            proxy = model_shares(singles.model, run.ones) if self.proxy else None
            candidates = run.candidates(2 if self.combine else 1, megabytes)
            if candidates:
                picks = run.pick(cohort, candidates, share_pick, share_measure, by_column=proxy)
                run.measure(cohort, run.together(picks), share_measure)
                if not self.combine:
                    run.refit(self.iterations)
        return run.result("augflaim")


@method("randomflaim", adaptive=True, exempt=_DRAWN, order=workload_order)
@dataclass(frozen=True)
class RandomFLAIM(FLAIMOptions):
    """FLAIM without selection: in each round the server draws one candidate uniformly for all sites of the cohort.

    The candidates are the marginals in ``workload`` and their subsets. The server's draw costs nothing, so measuring
    gets all of the budget but ``size_share``; ``steps`` and ``measure_share`` are not used. The other options are those
    of :class:`FLAIMOptions`.
    """

    def fit(self, federation: Federation) -> Synthesizer:
        """Run the method; the result's ``info["cliques"]`` are the measured marginals of two or more columns."""
        run = FLAIMState.start(federation, self)
        for cohort, megabytes, share_measure, _ in run.cohorts("RandomFLAIM rounds", 1, 0, first=len(run.ones)):
            run.start_model(cohort, share_measure)
            candidates = run.candidates(1, megabytes)
            drawn = candidates[int(federation.rng.integers(len(candidates)))]
            run.measure(cohort, {site: [drawn] for site in cohort.sites}, share_measure)
            run.refit(self.iterations)
        return run.result("randomflaim")


@method("fednaivebayes", exempt={"any split": "the marginals are those of the sites that were drawn"}, order=1)
@dataclass(frozen=True)
class FedNaiveBayes:
    """Measures only 1-way marginals, over one cohort of sites, and draws columns independently: a baseline.

    Columns depend on each other only where the schema's rules forbid a combination of values. A method that models
    dependence has to give better rows than this one. ``rate`` is the probability with which a site is in the cohort,
    and ``size_share`` the share of the budget for the sites' numbers of records, unless these are public.
    """

    rate: float = field(default=0.1, metadata=COHORT_RATE)
    size_share: float = 0.01

    def __post_init__(self) -> None:
        self._settings()

    def _settings(self) -> FLAIMOptions:
        return FLAIMOptions(rounds=1, rate=self.rate, size_share=self.size_share)

    def fit(self, federation: Federation) -> Synthesizer:
        """Run the method (:meth:`Method.fit <fedsynth.methods.registry.Method.fit>`)."""
        run = FLAIMState.start(federation, self._settings())
        run.measure_together(run.rounds[0], run.ones, run.share)
        return run.result("fednaivebayes")
