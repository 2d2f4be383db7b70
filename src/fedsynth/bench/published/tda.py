"""Fed-TDA with Gaussian mixtures, NOT PRIVATE: the method as published, and with its mixtures alone.

The private method is :class:`~fedsynth.methods.tda.FedTDA`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsynth.bench.published import require_not_private
from fedsynth.bench.published.tda_sums import MOST_COMPONENTS, MixtureEncoding, MixtureSums, MomentSums, scaling
from fedsynth.cliques import all_marginals
from fedsynth.errors import whole
from fedsynth.federation.query import Counts
from fedsynth.methods.registry import COLUMN, category, method
from fedsynth.methods.tda import (
    encoding,
    integer_scores,
    level_orders,
    margins_of,
    nominal_pairs,
)
from fedsynth.methods.tda_sums import GRAIN, LONGEST, latent_count
from fedsynth.schema import Schema
from fedsynth.schema.bins import Axis, Grid
from fedsynth.schema.columns import fine_cells

if TYPE_CHECKING:
    from fedsynth.bench.published.mixture import Mixture, TwoAxes
    from fedsynth.federation.federation import Federation
    from fedsynth.models.copula import OneAxis
    from fedsynth.models.normal_scores import Array, NormalScores
    from fedsynth.models.synthesizer import Synthesizer

_FINEST = 4096  # cells of a numeric column whose distribution is a mixture


@dataclass(frozen=True)
class MixtureOptions:
    """Options of the Gaussian mixtures of numeric columns in :class:`FedTDAMixture` and :class:`FedTDAPaper`.

    Parameters
    ----------
    components
        Largest number of components of a mixture, at most 256; the fit drops those that it does not need.
    rounds
        Largest number of rounds of the fit, each of which is one exact sum over sites.
    not_private
        Must be true: it says that the rows are not protected.
    """

    components: int = 10
    rounds: int = 50
    not_private: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        require_not_private(self, self.not_private)
        whole(1, MOST_COMPONENTS, components=self.components)
        whole(rounds=self.rounds)


@method("tdamixture", adaptive=True, private=False, order=2, queries=(MomentSums, MixtureSums))
@dataclass(frozen=True)
class FedTDAMixture(MixtureOptions):
    """NOT PRIVATE: the copula of FedTDA with the paper's mixtures for numbers, fitted in rounds of exact sums.

    The distribution of each numeric column is a Gaussian mixture, fitted by variational Bayes; the fit is the same as
    one on the pooled rows. The further options are those of :class:`MixtureOptions`.

    Parameters
    ----------
    target
        Name of a categorical column (the label) by whose tables alone the values of unordered columns are ordered;
        "": by those of all.
    """

    target: str = field(default="", metadata=COLUMN)

    def fit(self, federation: Federation) -> Synthesizer:
        """Run the method with exact sums: NOT PRIVATE."""
        from fedsynth.federation.federation import EXACT

        schema = federation.schema
        pairs = nominal_pairs(schema, category(schema, self.target))
        counts = _exact_histograms(federation)
        total = max(1.0, float(counts[0].sum()))
        orders = level_orders(federation, pairs, counts, EXACT)
        grids = _grids(schema)
        for at, mixture in fitted_mixtures(federation, counts, self.components, self.rounds).items():
            grid = grids[at]
            known = counts[at][: len(grid)].sum()
            reached = np.concatenate([[0.0], mixture.cdf(grid.upper[:-1]), [1.0]])
            counts[at][: len(grid)] = np.diff(reached) * known
        margins = margins_of(counts, [grids.get(at) for at in range(len(counts))], orders)
        return _exact_copula(federation, margins, total, {"method": "tdamixture"})


@method("tdapaper", adaptive=True, private=False, order=2, queries=(MomentSums, MixtureSums))
@dataclass(frozen=True)
class FedTDAPaper(MixtureOptions):
    """NOT PRIVATE: Fed-TDA with its published encoding, to reproduce its figures. It loses most dependence.

    Each number becomes two latent variables: its position within the likeliest component of the column's mixture, and
    one whose interval stands for that component. Each category becomes one latent variable, whose intervals stand for
    the values in ascending order of frequency (the paper's ICDM). Where the paper encodes a category by a random point
    of its interval, the covariance is computed from the mean of the interval, which leaves the expectation of every
    entry unchanged. Source: Duan et al., arXiv 2211.13116. The options are those of :class:`MixtureOptions`.
    """

    def fit(self, federation: Federation) -> Synthesizer:
        """Run the method with exact sums: NOT PRIVATE."""
        from fedsynth.bench.published.mixture import TwoAxes
        from fedsynth.models.copula import Copula, OneAxis, nearest_correlation
        from fedsynth.models.synthesizer import Synthesizer

        schema = federation.schema
        counts = _exact_histograms(federation)
        total = max(1.0, float(counts[0].sum()))
        grids, mixtures = _grids(schema), fitted_mixtures(federation, counts, self.components, self.rounds)
        margins: list[OneAxis | TwoAxes] = []
        columns: list[MixtureEncoding] = []
        jittered: list[bool] = []
        for at, count in enumerate(counts):
            if at not in mixtures:
                margins.append(OneAxis(_ascending(count), None))
                columns.append(MixtureEncoding(integer_scores(margins[-1].axis)))
                jittered += [True]
                continue
            grid, mixture = grids[at], mixtures[at]
            missing = count[len(grid) :].sum() / max(1.0, count.sum())
            axis = _ascending(np.append(mixture.weights * (1 - missing), missing))
            margins.append(TwoAxes(mixture, axis, grid))
            described = np.stack([mixture.weights, mixture.means + 0.0, mixture.deviations])
            columns.append(MixtureEncoding(integer_scores(axis), mixture=described))
            jittered += [False, True]
        covariance = exact_covariance(federation, columns)
        # A random point of an interval is standard normal over all intervals: variance 1, not that of the means.
        variance = np.where(jittered, 1.0, np.diag(covariance))
        scale = np.sqrt(np.where(variance > 0, variance, 1.0))
        correlation = covariance / np.outer(scale, scale)
        np.fill_diagonal(correlation, 1.0)
        model = Copula.of(margins, nearest_correlation(correlation), total)
        return Synthesizer(schema, tuple(margins), model, {"method": "tdapaper"})


# ---------------------------------------------------------------------------------------------------------------------
# Steps


def _exact_histograms(federation: Federation) -> list[Array]:
    from fedsynth.federation.federation import EXACT

    columns, grids = len(federation.schema.stored), _grids(federation.schema)
    axes = tuple(Axis(at, grids[at].cuts if at in grids else None) for at in range(columns))
    return federation.sum(Counts(axes, all_marginals(columns, 1)), EXACT).tables


def exact_covariance(federation: Federation, columns: Sequence[MixtureEncoding]) -> Array:
    """Return the exact covariance of all encoded rows, ``(l, l)``, in latent deviations squared: NOT PRIVATE."""
    from fedsynth.federation.federation import EXACT

    latents = latent_count(columns)
    bound = latents * LONGEST**2  # no row exceeds it, so none is shortened
    count, first, products = federation.sum(MomentSums(tuple(columns), bound), EXACT).tables
    records = max(1.0, float(count[0]))
    mean, second = first / records, np.zeros((latents, latents))
    second[np.tril_indices(latents)] = products / records
    covariance: Array = second + np.tril(second, -1).T - np.outer(mean, mean)
    return covariance


def _exact_copula(
    federation: Federation, margins: Sequence[OneAxis], total: float, info: Mapping[str, Any]
) -> Synthesizer:
    """Return the copula whose normal scores have the correlations of the encoded rows of all sites."""
    from fedsynth.models.copula import Copula, fitted_correlation
    from fedsynth.models.synthesizer import Synthesizer

    axes, plain = [margin.axis for margin in margins], [encoding(margin) for margin in margins]
    columns = [MixtureEncoding(column.scores, column.cuts) for column in plain]
    scores = [column.scores / GRAIN for column in columns]
    covariance = exact_covariance(federation, columns)
    # Correlations instead of products: they do not depend on how well a column's mixture fits its variance.
    actual = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    model = np.sqrt([float(axis.shares @ score**2) for axis, score in zip(axes, scores, strict=True)])
    mean = covariance / np.outer(actual, actual) * np.outer(model, model)
    correlation = fitted_correlation(axes, scores, mean[np.tril_indices(len(axes), -1)], 0.0)
    return Synthesizer(federation.schema, tuple(margins), Copula.of(margins, correlation, total), info)


def fitted_mixtures(
    federation: Federation, counts: Sequence[Array], components: int, rounds: int
) -> dict[int, Mixture]:
    """Return a Gaussian mixture for each numeric column, by its position, fitted in rounds of exact sums over sites.

    NOT PRIVATE. A mixture is in the column's own units. All columns are fitted at the same time, by variational Bayes.
    The fit starts from the exact histograms ``counts`` of all columns, those of numeric columns over about 4096 fine
    bins, and ends when no column's variational lower bound rises by more than 1e-6 nats per record.
    """
    from fedsynth.bench.published.mixture import SufficientStatistics, lower_bound, m_step, started
    from fedsynth.federation.federation import EXACT

    grids = _grids(federation.schema)
    if not grids:
        return {}
    scales = {at: scaling(column.bin_edges) for at, column in enumerate(federation.schema.stored) if column.is_number}
    held = [counts[at][: len(grid)] for at, grid in grids.items()]
    middles = [np.clip((grid.centres - scales[at][0]) / scales[at][1], -1, 1) for at, grid in grids.items()]
    start, prior = started(middles, held, components)
    records = max(1.0, *(float(count.sum()) for count in held))
    posterior, last = m_step(start, prior), np.full(len(grids), -np.inf)
    for done in range(rounds):
        federation.progress("mixtures", done, rounds)
        # The E step's sums over all sites: all columns in one query.
        sums = SufficientStatistics(
            *federation.sum(MixtureSums(tuple(grids), posterior.coefficients() + 0.0), EXACT).tables
        )
        bound = lower_bound(sums.evidence, posterior, prior)
        posterior = m_step(sums, prior)
        if (bound - last <= 1e-6 * records).all():
            break
        last = bound
    return {at: one.scaled(*scales[at]) for at, one in zip(grids, posterior.mixture(), strict=True)}


def _ascending(count: Array) -> NormalScores:
    from fedsynth.models.normal_scores import NormalScores

    return NormalScores.of(count, np.argsort(count, kind="stable"))


def _grids(schema: Schema) -> dict[int, Grid]:
    return {at: fine_cells(column, _FINEST) for at, column in enumerate(schema.stored) if column.is_number}
