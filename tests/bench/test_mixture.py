"""Mixtures from sums: those of scikit-learn on pooled rows, for whatever way the rows are split."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm
from tests.bench.e_step import e_step

from fedsynth.bench.published.mixture import (
    Mixture,
    Posterior,
    Prior,
    SufficientStatistics,
    lower_bound,
    m_step,
    quantile_start,
)

COMPONENTS = 6


def values(rows: int = 1500, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.normal(-0.5, 0.1, rows // 2), rng.normal(0.4, 0.2, rows // 3), np.full(rows // 6, 0.7)])
    mixed: np.ndarray = np.clip(rng.permutation(x), -1, 1)
    return mixed


def prior_of(x: np.ndarray, floor: float = 1e-6) -> Prior:
    return Prior(np.array([x.mean()]), np.array([x.var(ddof=1)]), np.array([floor]))


def added(parts: list[SufficientStatistics]) -> SufficientStatistics:
    return SufficientStatistics(*(np.sum([getattr(one, n) for one in parts], axis=0)[None] for n in vars(parts[0])))


def started(x: np.ndarray, components: int = COMPONENTS) -> SufficientStatistics:
    return added([quantile_start(np.sort(x), np.ones(len(x)), components)])


def fitted(
    parts: list[np.ndarray], start: SufficientStatistics, prior: Prior, rounds: int
) -> tuple[Posterior, list[float]]:
    posterior, bounds = m_step(start, prior), []
    for _ in range(rounds):
        coefficients = posterior.coefficients()[:, 0]
        pairs = [np.unique(part, return_counts=True) for part in parts]
        sums = added([e_step(x, n.astype(float), coefficients) for x, n in pairs])
        bounds.append(float(lower_bound(sums.evidence, posterior, prior)[0]))
        posterior = m_step(sums, prior)
        bounds.append(float(lower_bound(_evidence(parts, posterior), posterior, prior)[0]))
    return posterior, bounds


def _evidence(parts: list[np.ndarray], posterior: Posterior) -> np.ndarray:
    one = [e_step(part, np.ones(len(part)), posterior.coefficients()[:, 0]) for part in parts]
    return added(one).evidence


def split(x: np.ndarray, how: str) -> list[np.ndarray]:
    if how == "pooled":
        return [x]
    if how == "by value":  # each site has a component of its own
        return np.array_split(np.sort(x), 4)
    return [x[:1], x[1:40], np.empty(0), x[40:]]


@pytest.mark.parametrize("how", ["pooled", "by value", "one row, none, the rest"])
def test_it_is_scikit_learns_mixture_of_the_pooled_rows_for_any_partition(how):
    mixture = pytest.importorskip("sklearn.mixture")
    x = values()
    rounds = 60
    reference = mixture.BayesianGaussianMixture(
        n_components=COMPONENTS,
        weight_concentration_prior=0.001,
        mean_precision_prior=1.0,
        degrees_of_freedom_prior=1.0,
    )
    column = x[:, None]
    centres = np.quantile(x, (np.arange(COMPONENTS) + 0.5) / COMPONENTS, method="inverted_cdf")
    nearest = np.searchsorted((centres[1:] + centres[:-1]) / 2, x)
    # scikit-learn from the same hard assignment, step by step.
    reference._check_parameters(column)
    reference._initialize(column, np.eye(COMPONENTS)[nearest])
    for _ in range(rounds):
        _, log_responsibilities = reference._e_step(column)
        reference._m_step(column, log_responsibilities)
    posterior, _ = fitted(split(x, how), started(x), prior_of(x), rounds)
    assert posterior.mean[0] == pytest.approx(reference.means_[:, 0], rel=1e-10, abs=1e-10)
    assert (posterior.scale / posterior.degrees)[0] == pytest.approx(reference.covariances_[:, 0, 0], rel=1e-10)
    assert posterior.a[0] == pytest.approx(reference.weight_concentration_[0], rel=1e-10, abs=1e-9)
    assert posterior.b[0] == pytest.approx(reference.weight_concentration_[1], rel=1e-10, abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_no_step_lowers_the_bound(seed):
    x = values(400, seed)
    _, bounds = fitted([x], started(x), prior_of(x, floor=0.0), 150)
    assert (np.diff(bounds) > -1e-8).all()
    assert bounds[-1] - bounds[0] > 10  # and it does rise


def test_the_bound_is_scikit_learns_up_to_a_constant():
    mixture = pytest.importorskip("sklearn.mixture")
    x = values(600)
    reference = mixture.BayesianGaussianMixture(
        n_components=4,
        weight_concentration_prior=0.001,
        mean_precision_prior=1.0,
        degrees_of_freedom_prior=1.0,
        reg_covar=0.0,
    )
    column = x[:, None]
    reference._check_parameters(column)
    start = started(x, 4)
    centres = (start.first / start.counts)[0]
    nearest = np.searchsorted((centres[1:] + centres[:-1]) / 2, x)
    reference._initialize(column, np.eye(4)[nearest])
    hard = added([e_step(x[:0], np.ones(0), np.zeros((3, 4)))])
    for component in range(4):
        hard.counts[0, component] = (nearest == component).sum()
        hard.first[0, component] = x[nearest == component].sum()
        hard.second[0, component] = (x[nearest == component] ** 2).sum()
    prior = prior_of(x, 0.0)
    posterior, gaps = m_step(hard, prior), []
    for _ in range(25):
        log_norm, log_responsibilities = reference._e_step(column)
        reference._m_step(column, log_responsibilities)
        sums = added([e_step(x, np.ones(len(x)), posterior.coefficients()[:, 0])])
        posterior = m_step(sums, prior)
        # Theirs belongs to the responsibilities before the M step under the parameters after it.
        entropy = -float((np.exp(log_responsibilities) * log_responsibilities).sum())
        c = posterior.coefficients()[:, 0]
        energy = float((c[0] * sums.counts + c[1] * sums.first + c[2] * sums.second).sum())
        ours = float(lower_bound(np.array([energy + entropy]), posterior, prior)[0])
        gaps.append(ours - reference._compute_lower_bound(log_responsibilities, log_norm))
    assert np.ptp(gaps) < 1e-8


def test_columns_are_fitted_at_once_as_if_alone():
    columns = [values(300, seed) for seed in (1, 2)]
    priors = [prior_of(x) for x in columns]
    mean, scale, floor = (np.concatenate([getattr(p, n) for p in priors]) for n in ("mean", "scale", "floor"))
    both = Prior(mean, scale, floor)
    starts = [started(x) for x in columns]
    together = m_step(
        SufficientStatistics(*(np.concatenate([getattr(s, n) for s in starts]) for n in vars(starts[0]))), both
    )
    for at in range(2):
        alone = m_step(starts[at], priors[at])
        assert (together.coefficients()[:, at] == alone.coefficients()[:, 0]).all()


def test_a_fit_finds_the_components_and_drops_the_others():
    x = np.random.default_rng(0).permutation(
        np.concatenate([np.random.default_rng(1).normal(-0.4, 0.05, 3000), np.full(1000, 0.5)])
    )
    posterior, _ = fitted([x], started(x), prior_of(x), 200)
    (mixture,) = posterior.mixture()
    assert mixture.weights.sum() == pytest.approx(1)
    heavy = mixture.weights > 0.05
    assert mixture.weights[np.abs(mixture.means - 0.5) < 0.01].sum() == pytest.approx(0.25, abs=0.01)
    assert np.average(mixture.means[heavy & (mixture.means < 0)]) == pytest.approx(-0.4, abs=0.05)


def test_no_value_gives_sums_of_zero_and_a_posterior_all_the_same():
    empty = quantile_start(np.empty(0), np.empty(0), 3)
    assert not empty.counts.any()
    assert not e_step(np.empty(0), np.empty(0), np.zeros((3, 3))).counts.any()
    posterior = m_step(added([empty]), Prior(np.zeros(1), np.ones(1), np.zeros(1)))
    assert all(np.isfinite(one).all() for one in vars(posterior).values())


def test_the_start_counts_a_heavy_value_once():
    sums = quantile_start(np.array([0.0, 0.5, 1.0]), np.array([98.0, 1.0, 1.0]), 5)
    assert sums.counts.sum() == 100
    assert (sums.counts > 0).sum() == 1
    spread = quantile_start(np.linspace(0, 1, 101), np.ones(101), 5)
    assert (spread.counts > 15).all()


def test_the_cdf_is_that_of_normals():
    mixture = Mixture(np.array([0.3, 0.7]), np.array([0.0, 2.0]), np.array([1.0, 0.5]))
    x = np.linspace(-3, 4, 50)
    assert mixture.cdf(x) == pytest.approx(0.3 * norm.cdf(x) + 0.7 * norm.cdf(x, 2, 0.5))
