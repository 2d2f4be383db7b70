"""FLAIM: AIM where every round asks a few sites, and each site picks privately what to measure.

Source: Maddock, Cormode & Maple, KDD 2024 (arXiv 2310.06447), with these corrections: scores in records
against a public scale (one record then moves a norm by one, whatever the site's size); local steps are paid
for (2s - 1 measurements, not s); sums are normalised by the sites' public or bought sizes, never by a noisy
sum's own total; proxies are averaged over all rounds; a site may be capped to R rounds, and the noise is
sized for R.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedsynth.federation.federation import Federation, Sum, split_marginals
from fedsynth.federation.task import marginals
from fedsynth.methods.flaim_scores import Shares, flaim_scores, shares_of
from fedsynth.methods.marginals import NOISE_L1, fit_noisy, fits, positive, shares, site_records
from fedsynth.models.estimate import Measurement
from fedsynth.models.mrf import MarkovRandomField
from fedsynth.models.synthesizer import GraphicalSynthesizer
from fedsynth.privacy.release import Exact, Exponential, Gaussian, Steered
from fedsynth.workload import Clique, Workload, all_marginals, downward_closure, weights


@dataclass
class Rounds:
    """The server's side of a run: what is measured so far, in records of the whole federation, and the model of it."""

    federation: Federation
    records: dict[str, float]
    total: float
    measured: list[Measurement] = field(default_factory=list)
    model: MarkovRandomField | None = None

    def measure(self, cohort: Federation, per_site: Mapping[str, Sequence[Clique]], rho_each: float) -> None:
        """Sum each clique over the sites of ``cohort`` that picked it; one noisy table per distinct clique."""
        asked = {site: [{"cliques": [q]} for q in dict.fromkeys(picked)] for site, picked in per_site.items() if picked}
        if asked:
            self._remember(cohort.sums(marginals, Gaussian(rho_each), asked))

    def measure_together(self, cohort: Federation, cliques: Sequence[Clique], rho_each: float) -> None:
        """Sum all ``cliques`` over the whole cohort in one question."""
        self._remember([cohort.sum(marginals, Gaussian(rho_each * len(cliques)), cliques=cliques)])

    def refit(self, iterations: int) -> MarkovRandomField:
        """Fit the model to everything measured so far, starting from the last one."""
        sizes = self.federation.schema.sizes
        self.model = fit_noisy(sizes, self.measured, self.total, iterations, self.model, one_cohort=False)
        return self.model

    def _remember(self, sums: Sequence[Sum]) -> None:
        """Scale each sum, and its noise, from its sites' records to all records, so that the fit weighs it rightly."""
        for one in sums:
            factor = self.total / sum(self.records[site] for site in one.sites)
            cliques = [tuple(q) for q in one.params["cliques"]]
            for q, table in zip(cliques, split_marginals(self.federation.schema, cliques, one.values), strict=True):
                self.measured.append(Measurement(q, table * factor, one.std * factor))


@dataclass(frozen=True)
class Settings:
    """What all FLAIM variants share.

    Parameters
    ----------
    workload
        Marginals that matter; ``None``: all pairs of columns.
    rounds, rate
        T rounds, in each of which a site takes part with probability ``rate``.
    steps
        Local steps s: marginals that a site picks per round.
    cap
        R: rounds that a site may join at most (``None``: all T). Noise is sized for R rounds instead of T.
    measure_share, size_share
        Shares of the budget for measuring (selection gets the rest), and for sites' sizes where they are not
        public.
    max_megabytes, iterations, final_iterations
        As for AIM.
    """

    workload: Workload | None = None
    rounds: int = 10
    rate: float = 0.1
    steps: int = 1
    cap: int | None = None
    measure_share: float = 0.9
    size_share: float = 0.01
    max_megabytes: float = 80.0
    iterations: int = 50
    final_iterations: int = 500

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        shares(measure_share=self.measure_share, size_share=self.size_share)
        positive(
            rounds=self.rounds,
            rate=self.rate,
            steps=self.steps,
            cap=self.cap,
            max_megabytes=self.max_megabytes,
            iterations=self.iterations,
            final_iterations=self.final_iterations,
        )

    @property
    def joined(self) -> int:
        """Rounds that the worst-placed record is charged for."""
        return self.rounds if self.cap is None else min(self.cap, self.rounds)


def _start(federation: Federation, settings: Settings) -> tuple[Rounds, float]:
    """Return the empty run and the rho that it may spend at each site."""
    rho = federation.rho
    records, spent = site_records(federation, settings.size_share * rho)
    return Rounds(federation, records, sum(records.values())), rho - spent


def _pick(
    cohort: Federation,
    run: Rounds,
    settings: Settings,
    candidates: Sequence[Clique],
    rho_pick: float,
    rho_look: float,
    *,
    by_column: Sequence[Shares] = (),
    by_candidate: Sequence[Shares] = (),
) -> dict[str, list[Clique]]:
    """Let every site of the cohort pick ``settings.steps`` candidates on its own rows."""
    model = run.model
    assert model is not None
    workload = settings.workload or all_marginals(len(model.sizes), min(2, len(model.sizes)))
    steps = settings.steps
    release = Exponential(rho_pick) if steps == 1 else Steered(rho_pick, rho_look, steps)
    look_std = cohort.std(marginals, Gaussian(rho_look), 1, cliques=[candidates[0]])
    meta, arrays = model.to_arrays()
    steering = {
        "cliques": [m.clique for m in run.measured],
        "values": [m.values for m in run.measured],
        "stds": [m.std for m in run.measured],
        "look_std": look_std,
        "iterations": settings.iterations,
    }
    # The noise is added once to the sum over all sites that pick the same candidate: between one of them
    # and the whole expected cohort. Which is unknown beforehand; the geometric mean of both shares the
    # noise out.
    crowd = max(1.0, settings.rate * len(run.federation.sites)) ** 0.5
    penalty = [NOISE_L1 * look_std / crowd * float(np.prod([model.sizes[j] for j in q])) for q in candidates]
    picks = cohort.choose(
        flaim_scores,
        release,
        per_site={site: {"scale": run.records[site]} for site in cohort.sites},
        model={"meta": meta, "arrays": arrays},
        candidates=candidates,
        weight=weights(candidates, workload),
        penalty=penalty,
        by_column=list(by_column),
        by_candidate=list(by_candidate),
        steering=steering if steps > 1 else {},
    )
    return {site: [candidates[index] for index in indices] for site, indices in picks.items()}


def _candidates(run: Rounds, settings: Settings, smallest: int, done: float) -> list[Clique]:
    """Return the workload's closure from order ``smallest`` up, as far as the model may grow at ``done`` of 1."""
    model = run.model
    assert model is not None
    workload = settings.workload or all_marginals(len(model.sizes), min(2, len(model.sizes)))
    closure = [q for q in downward_closure(workload) if len(q) >= smallest]
    limit = settings.max_megabytes * done
    return [q for q in closure if fits(model.sizes, model.cliques, q, limit)]


def _together(run: Rounds, picks: Mapping[str, list[Clique]], megabytes: float) -> dict[str, list[Clique]]:
    """Return the picks that one model can hold: those of most sites first, each while all still fit.

    Every site picked what fits alone; together their cliques could close cycles of any size.
    """
    model = run.model
    assert model is not None
    votes = Counter(q for chosen in picks.values() for q in set(chosen))
    held = list(model.cliques)
    for q, _ in votes.most_common():
        if fits(model.sizes, held, q, megabytes):
            held.append(q)
    return {site: [q for q in chosen if q in held] for site, chosen in picks.items()}


def _ones(federation: Federation) -> list[Clique]:
    return [(j,) for j in range(len(federation.schema.sizes))]


def _result(run: Rounds, name: str, settings: Settings) -> GraphicalSynthesizer:
    model = run.refit(settings.final_iterations)
    cliques = [list(m.clique) for m in run.measured if len(m.clique) > 1]
    info = {"method": name, "cap": settings.cap, "cliques": cliques}
    return GraphicalSynthesizer(run.federation.schema, model, info)


# ---------------------------------------------------------------------------- the methods


@dataclass(frozen=True)
class FLAIM(Settings):
    """FLAIM as first stated: every site scores candidates by the model's error on its own rows alone."""

    def fit(self, federation: Federation) -> GraphicalSynthesizer:
        """Spend what the federation's budget has left, and return the generator."""
        ones = _ones(federation)
        run, rho = _start(federation, self)
        rho_measure = self.measure_share * rho / (self.joined * (2 * self.steps - 1) + len(ones))
        rho_pick = (1 - self.measure_share) * rho / (self.joined * self.steps)

        for t in range(self.rounds):
            if not federation.available(self.cap):
                break
            cohort = federation.cohort(self.rate, self.cap)
            if t == 0:
                run.measure_together(cohort, ones, rho_measure)
                run.refit(self.iterations)
            candidates = _candidates(run, self, 1, (t + 1) / self.rounds)
            picks = _pick(cohort, run, self, candidates, rho_pick, rho_measure)
            run.measure(cohort, _together(run, picks, self.max_megabytes), rho_measure)
            run.refit(self.iterations)
            federation.progress("FLAIM rounds", t + 1, self.rounds)
        return _result(run, "flaim", self)


@dataclass(frozen=True)
class AugFLAIM(Settings):
    """FLAIM with heterogeneity taken out of the scores, by a private proxy.

    Every round re-measures the 1-way marginals over its cohort. A candidate's score is then reduced by how
    far the site's own 1-way marginals are from those of all.
    """

    def fit(self, federation: Federation) -> GraphicalSynthesizer:
        """Spend what the federation's budget has left, and return the generator."""
        ones = _ones(federation)
        run, rho = _start(federation, self)
        rho_measure = self.measure_share * rho / (self.joined * (2 * self.steps - 1 + len(ones)))
        rho_pick = (1 - self.measure_share) * rho / (self.joined * self.steps)

        for t in range(self.rounds):
            if not federation.available(self.cap):
                break
            cohort = federation.cohort(self.rate, self.cap)
            run.measure_together(cohort, ones, rho_measure)
            model = run.refit(self.iterations)
            # The model's own 1-ways are those of all rounds, combined by inverse variance and denoised by
            # the fit.
            proxy = shares_of(model, ones)
            candidates = _candidates(run, self, 2, (t + 1) / self.rounds)
            if candidates:
                picks = _pick(cohort, run, self, candidates, rho_pick, rho_measure, by_column=proxy)
                run.measure(cohort, _together(run, picks, self.max_megabytes), rho_measure)
            federation.progress("AugFLAIM rounds", t + 1, self.rounds)
        return _result(run, "augflaim", self)


@dataclass(frozen=True)
class AugFLAIMOracle(Settings):
    """NOT PRIVATE: FLAIM with heterogeneity taken out by the exact marginals of all sites, which nobody has.

    A yardstick for :class:`AugFLAIM`. Sites refuse it unless their policy allows exact releases, and the
    ledger says that nothing is guaranteed.
    """

    def fit(self, federation: Federation) -> GraphicalSynthesizer:
        """Spend what the federation's budget has left, and return the generator."""
        ones = _ones(federation)
        run, rho = _start(federation, self)
        rho_measure = self.measure_share * rho / (self.joined * (2 * self.steps - 1) + len(ones))
        rho_pick = (1 - self.measure_share) * rho / (self.joined * self.steps)
        workload = self.workload or all_marginals(len(ones), min(2, len(ones)))
        closure = downward_closure(workload)
        exact = federation.sum(marginals, Exact(), cliques=closure)
        truth = {
            q: table.ravel() / max(1, table.sum())
            for q, table in zip(closure, split_marginals(federation.schema, closure, exact.values), strict=True)
        }

        for t in range(self.rounds):
            if not federation.available(self.cap):
                break
            cohort = federation.cohort(self.rate, self.cap)
            if t == 0:
                run.measure_together(cohort, ones, rho_measure)
                run.refit(self.iterations)
            candidates = _candidates(run, self, 1, (t + 1) / self.rounds)
            proxy = [truth[q] for q in candidates]
            picks = _pick(cohort, run, self, candidates, rho_pick, rho_measure, by_candidate=proxy)
            run.measure(cohort, _together(run, picks, self.max_megabytes), rho_measure)
            run.refit(self.iterations)
            federation.progress("AugFLAIM (oracle) rounds", t + 1, self.rounds)
        return _result(run, "augflaim-oracle", self)


@dataclass(frozen=True)
class RandomFLAIM(Settings):
    """FLAIM without selection: the server draws one candidate a round, uniformly, for all sites of the cohort."""

    def fit(self, federation: Federation) -> GraphicalSynthesizer:
        """Spend what the federation's budget has left, and return the generator."""
        ones = _ones(federation)
        run, rho = _start(federation, self)
        rho_measure = rho / (self.joined + len(ones))

        for t in range(self.rounds):
            if not federation.available(self.cap):
                break
            cohort = federation.cohort(self.rate, self.cap)
            if t == 0:
                run.measure_together(cohort, ones, rho_measure)
                run.refit(self.iterations)
            candidates = _candidates(run, self, 1, (t + 1) / self.rounds)
            drawn = candidates[int(federation.rng.integers(len(candidates)))]
            run.measure_together(cohort, [drawn], rho_measure)
            run.refit(self.iterations)
            federation.progress("RandomFLAIM rounds", t + 1, self.rounds)
        return _result(run, "randomflaim", self)


@dataclass(frozen=True)
class FedNaiveBayes:
    """The 1-way marginals of one cohort and nothing else: columns become independent. The floor for all the others.

    ``rate`` is the probability with which a site takes part; ``size_share`` the share of the budget for
    sites' sizes.
    """

    rate: float = 0.1
    size_share: float = 0.01

    def fit(self, federation: Federation) -> GraphicalSynthesizer:
        """Spend what the federation's budget has left, and return the generator."""
        ones = _ones(federation)
        settings = Settings(rate=self.rate, size_share=self.size_share)
        run, rho = _start(federation, settings)
        run.measure_together(federation.cohort(self.rate), ones, rho / len(ones))
        return _result(run, "fednaivebayes", settings)
