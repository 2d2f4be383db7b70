"""Fed-TDA with mixtures, NOT PRIVATE: the published method, and the copula of :class:`FedTDA` with its mixtures.

Sites refuse these unless their policy allows exact releases, and the statement says that nothing is guaranteed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsynth.axes import Axis
from fedsynth.column import Datetime, Numeric
from fedsynth.federation.federation import EXACT, Federation
from fedsynth.federation.query import Counts
from fedsynth.methods.measure import positive
from fedsynth.methods.tda import (
    encoding,
    fitted_correlation,
    integer_scores,
    level_orders,
    margins_of,
    nominal_pairs,
)
from fedsynth.methods.tda_sums import GRAIN, LONGEST, Encoding, MixtureSums, Moments, latent_count, scaling
from fedsynth.models.copula import Cellwise, Componentwise, Copula, nearest_correlation
from fedsynth.models.mixture import Mixture, Posterior, Prior, Sums, lower_bound, m_step, quantile_start
from fedsynth.models.normal_scores import Array, Grid, NormalScores
from fedsynth.models.synthesizer import CopulaSynthesizer
from fedsynth.schema import Schema

_FINEST = 4096  # cells of a number whose distribution is a formula


@dataclass(frozen=True)
class FedTDAMixture:
    """NOT PRIVATE: the copula of FedTDA with the paper's mixtures for numbers, fitted in rounds of exact sums.

    Each number is a Gaussian mixture of ``components``, fitted by variational Bayes as if on the pooled rows.
    """

    components: int = 10
    rounds: int = 50
    target: int = -1

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        positive(components=self.components, rounds=self.rounds)

    def fit(self, federation: Federation) -> CopulaSynthesizer:
        """Ask for exact sums, and return the generator."""
        schema = federation.schema
        counts = _exact_histograms(federation)
        total = max(1.0, float(counts[0].sum()))
        orders = level_orders(federation, nominal_pairs(schema, self.target), counts, EXACT)
        for at, mixture in fitted_mixtures(federation, counts, self.components, self.rounds).items():
            grid = _grid(schema, at)
            known = counts[at][: len(grid)].sum()
            reached = np.concatenate([[0.0], mixture.cdf(grid.upper[:-1]), [1.0]])
            counts[at][: len(grid)] = np.diff(reached) * known
        grids = [_grid(schema, at) if column.is_number else None for at, column in enumerate(schema.columns)]
        return _exact_copula(federation, margins_of(counts, grids, orders), total, {"method": "tdamixture"})


@dataclass(frozen=True)
class FedTDAPaper:
    """NOT PRIVATE: the published encoding, to reproduce its figures: it loses most dependence.

    Each number becomes a place within the likeliest component of its mixture and a latent for which component; each
    category a latent in an interval, in ascending order of frequency (ICDM). Random points of intervals are
    replaced by their expectation in the covariance, which changes no expected entry of it.
    """

    components: int = 10
    rounds: int = 50

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        positive(components=self.components, rounds=self.rounds)

    def fit(self, federation: Federation) -> CopulaSynthesizer:
        """Ask for exact sums, and return the generator."""
        schema = federation.schema
        counts = _exact_histograms(federation)
        total = max(1.0, float(counts[0].sum()))
        mixtures = fitted_mixtures(federation, counts, self.components, self.rounds)
        margins: list[Cellwise | Componentwise] = []
        columns: list[Encoding] = []
        jittered: list[bool] = []
        for at, count in enumerate(counts):
            if at not in mixtures:
                margins.append(Cellwise(_ascending(count), None))
                columns.append(Encoding(integer_scores(margins[-1].axis)))
                jittered += [True]
                continue
            grid, mixture = _grid(schema, at), mixtures[at]
            missing = count[len(grid) :].sum() / max(1.0, count.sum())
            axis = _ascending(np.append(mixture.weights * (1 - missing), missing))
            margins.append(Componentwise(mixture, axis, grid))
            described = np.stack([mixture.weights, mixture.means + 0.0, mixture.deviations])
            columns.append(Encoding(integer_scores(axis), mixture=described))
            jittered += [False, True]
        covariance = exact_covariance(federation, columns)
        # A random point of its interval has the variance of a standard normal, whatever the interval's mean has.
        variance = np.where(jittered, 1.0, np.diag(covariance))
        scale = np.sqrt(np.where(variance > 0, variance, 1.0))
        correlation = covariance / np.outer(scale, scale)
        np.fill_diagonal(correlation, 1.0)
        model = Copula(tuple(margins), nearest_correlation(correlation), total)
        return CopulaSynthesizer(schema, model, {"method": "tdapaper"})


# ---------------------------------------------------------------------------------------------------------------------
# Steps


def _exact_histograms(federation: Federation) -> list[Array]:
    schema = federation.schema
    axes = [Axis(at, _grid(schema, at).cuts if one.is_number else None) for at, one in enumerate(schema.columns)]
    return federation.sum(Counts(tuple(axes), tuple((at,) for at in range(len(axes)))), EXACT).tables


def exact_covariance(federation: Federation, columns: Sequence[Encoding]) -> Array:
    """Return the exact covariance of the encoded rows of all sites, shape ``(l, l)``: that of the pooled rows."""
    latents = latent_count(columns)
    bound = latents * LONGEST**2  # no row is longer: none is shortened
    count, first, products = federation.sum(Moments(tuple(columns), bound), EXACT).tables
    records = max(1.0, float(count[0]))
    mean, second = first / records, np.zeros((latents, latents))
    second[np.tril_indices(latents)] = products / records
    covariance: Array = second + np.tril(second, -1).T - np.outer(mean, mean)
    return covariance


def _exact_copula(
    federation: Federation, margins: Sequence[Cellwise], total: float, info: Mapping[str, Any]
) -> CopulaSynthesizer:
    """Return the copula whose axes have the correlations of the encoded rows of all sites."""
    axes, columns = [margin.axis for margin in margins], [encoding(margin) for margin in margins]
    covariance = exact_covariance(federation, columns)
    # Correlations, not products: what a formula for a column's distribution leaves unexplained has no say in them.
    actual = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    model = np.sqrt([float(a.shares @ (c.scores / GRAIN) ** 2) for a, c in zip(axes, columns, strict=True)])
    mean = covariance / np.outer(actual, actual) * np.outer(model, model)
    correlation = fitted_correlation(axes, mean[np.tril_indices(len(axes), -1)], 0.0)
    return CopulaSynthesizer(federation.schema, Copula(tuple(margins), correlation, total), info)


def fitted_mixtures(
    federation: Federation, counts: Sequence[Array], components: int, rounds: int
) -> dict[int, Mixture]:
    """Return a Gaussian mixture of each number by position, fitted in at most ``rounds`` exchanges for all together.

    The start is a hard assignment to quantiles of the histograms ``counts`` (of the finest grid); the prior, as
    scikit-learn's, the mean and the variance of the column. It ends where no bound rises by 1e-6 a record.
    """
    schema = federation.schema
    numeric = [at for at, column in enumerate(schema.columns) if column.is_number]
    if not numeric:
        return {}
    starts, prior, records = _start(schema, numeric, counts, components)
    posterior, last = m_step(starts, prior), np.full(len(numeric), -np.inf)
    for done in range(rounds):
        federation.progress("mixtures", done, rounds)
        sums = _e_step(federation, numeric, posterior)
        bound = lower_bound(sums.evidence, posterior, prior)
        posterior = m_step(sums, prior)
        if (bound - last <= 1e-6 * records).all():
            break
        last = bound
    found = {}
    for at, one in zip(numeric, posterior.mixture(), strict=True):
        column = schema.columns[at]
        assert isinstance(column, Numeric | Datetime)
        centre, half = scaling(column)
        found[at] = Mixture(one.weights, centre + half * one.means, half * one.deviations)
    return found


def _e_step(federation: Federation, numeric: Sequence[int], posterior: Posterior) -> Sums:
    """Return the E step's sums over all sites, all columns in one exchange."""
    query = MixtureSums(tuple(numeric), posterior.coefficients() + 0.0)
    return Sums(*federation.sum(query, EXACT).tables)


def _start(
    schema: Schema, numeric: Sequence[int], counts: Sequence[Array], components: int
) -> tuple[Sums, Prior, float]:
    sums, means, variances, records = [], [], [], 1.0
    for at in numeric:
        column = schema.columns[at]
        assert isinstance(column, Numeric | Datetime)
        grid, (centre, half) = Grid.of(column, _FINEST), scaling(column)
        middles = np.clip((grid.centres - centre) / half, -1, 1)
        held = counts[at][: len(grid)]
        n = max(1.0, float(held.sum()))
        mean = float(held @ middles) / n
        means.append(mean)
        variances.append(max(float(held @ (middles - mean) ** 2) / n, 1e-12))
        sums.append(quantile_start(middles, held, components))
        records = max(records, n)
    start = Sums(
        *(np.stack([getattr(one, name) for one in sums]) for name in ("counts", "first", "second", "evidence"))
    )
    variance = np.array(variances)
    return start, Prior(np.array(means), variance, 1e-6 * variance), records


def _ascending(count: Array) -> NormalScores:
    return NormalScores.of(count, np.argsort(count, kind="stable"))


def _grid(schema: Schema, at: int) -> Grid:
    column = schema.columns[at]
    assert isinstance(column, Numeric | Datetime)
    return Grid.of(column, _FINEST)
