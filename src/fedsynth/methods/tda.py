"""Fed-TDA: one Gaussian copula of all columns, from sums over sites.

Source: Fed-TDA (Duan et al., arXiv 2211.13116). Corrected: each column is one axis in place of two, categories give
the mean of their interval in place of a random point of it, and the correlations that cutting into intervals takes away
are given back; noise is fitted to what one record moves. The published encoding remains as :class:`FedTDAPaper`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsynth.column import Categorical, Datetime, Numeric
from fedsynth.errors import InvalidParameter
from fedsynth.federation.federation import Federation, Sum, split_marginals
from fedsynth.federation.task import marginals, size
from fedsynth.methods.marginals import positive, shares
from fedsynth.methods.tda_sums import (
    GRAIN,
    histograms,
    products,
)
from fedsynth.models.axis import Array, Axis, Grid, Integers, cell_count, correspondence_order
from fedsynth.models.copula import Cellwise, Copula, latent_correlation, nearest_correlation, shrunk
from fedsynth.models.gum import simplex
from fedsynth.models.synthesizer import CopulaSynthesizer
from fedsynth.privacy.release import Gaussian, Release
from fedsynth.schema import Schema
from fedsynth.workload import Clique

REACH = 3.0  # standard deviations of a row's squared length, beyond which it is shortened
_FEWEST = 8  # bins of a number, however noisy
_COARSE = 0.5  # bins per two-thirds power of records per noise, see bins_worth


@dataclass(frozen=True)
class FedTDA:
    """A Gaussian copula from two noisy sums: histograms of all columns, then products of the encoded columns.

    Nothing is iterated under noise: the histograms serve as the columns' distributions themselves. Of a number
    missing values are a cell of their own, at the upper end of its axis; whether a value is missing may depend on
    other columns, and that is kept.

    Parameters
    ----------
    histogram_share
        Share of the budget for the histograms. Products get what the others leave.
    order_share
        Share for tables of the categories with more than two unordered values, against the other categories: values
        with like company come to lie side by side on an axis. Nothing is spent where there are none.
    count_share
        Share for the number of records, where sizes are not public; it says how many bins are worth their noise.
    bins
        Most bins of a number, between its public bounds.
    target
        Position of a category (the label) by which alone the other categories' values are ordered; -1: by all.
    """

    histogram_share: float = 0.3
    order_share: float = 0.1
    count_share: float = 0.02
    bins: int = 256
    target: int = -1

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        shares(histogram_share=self.histogram_share, order_share=self.order_share, count_share=self.count_share)
        if self.histogram_share + self.order_share + self.count_share >= 1:
            raise InvalidParameter("the shares leave nothing for the products; let them add up to less than 1")
        positive(bins=self.bins)

    def fit(self, federation: Federation) -> CopulaSynthesizer:
        """Spend what the federation's budget has left, and return the generator."""
        schema, rho = federation.schema, federation.rho
        pairs = nominal_pairs(schema, self.target)
        total, count_std = _records(federation, self.count_share * rho)

        # Release A: histograms. Nothing else is worth having of a single column.
        release = Gaussian(self.histogram_share * rho if len(schema.columns) > 1 else federation.rho)
        std = federation.std(histograms, release, len(federation.sites), bins=self.bins)
        bins = bins_worth(total / std, self.bins)
        released = federation.sum(histograms, release, bins=bins)
        total = _refined(federation, total, count_std, split_cells(schema, bins, released.values), released)
        counts = [simplex(part.astype(np.float64), total) for part in split_cells(schema, bins, released.values)]

        orders = level_orders(federation, pairs, counts, Gaussian(self.order_share * rho))
        axes = [Axis.of(count, orders.get(at)) for at, count in enumerate(counts)]
        columns = [{"scores": integer_scores(axis)} for axis in axes]
        correlation = np.eye(len(axes))
        if len(axes) > 1:
            # Release B: products of rows no longer than rows of independent columns would be.
            bound = length_bound(axes)
            found = federation.sum(products, Gaussian(federation.rho), bins=bins, columns=columns, bound=bound)
            scale = GRAIN**2 * _present(federation, found, released, total)
            correlation = fitted_correlation(axes, found.values / scale, found.std / scale)
        margins = margins_of(schema, axes, bins)
        info = {"method": "tda", "bins": bins, "orders": {schema.names[at]: o.tolist() for at, o in orders.items()}}
        return CopulaSynthesizer(schema, Copula(margins, correlation, total, bins), info)


# ---------------------------------------------------------------------------------------------------------------------
# Steps


def bins_worth(records_per_noise: float, most: int) -> int:
    """Return how many bins of a number are worth their noise: a power of two, 8 to ``most``.

    The error of b bins is of order 1 / b (within a bin) plus sqrt(b) times the noise's share of the records (between
    bins), least where b is proportional to the two-thirds power of records over noise. The factor was measured.
    """
    asked = _COARSE * max(records_per_noise, 1.0) ** (2 / 3)
    return int(min(most, max(_FEWEST, 2 ** round(math.log2(asked)))))


def nominal_pairs(schema: Schema, target: int) -> list[Clique]:
    """Return the pairs of categories that say in which order an unordered one's values may lie on an axis."""
    categories = [at for at, column in enumerate(schema.columns) if not isinstance(column, Numeric | Datetime)]
    if target != -1 and target not in categories:
        raise InvalidParameter(f"target = {target} is no position of a category; categories are at {categories}")
    nominal = {at for at in categories if _is_nominal(schema, at)}
    partners = categories if target == -1 else [target]
    return sorted({(min(a, b), max(a, b)) for a in nominal for b in partners if a != b})


def _is_nominal(schema: Schema, at: int) -> bool:
    column = schema.columns[at]
    return isinstance(column, Categorical) and not column.ordered and column.size > 2


def level_orders(
    federation: Federation, pairs: Sequence[Clique], counts: Sequence[Array], release: Release
) -> dict[int, Integers]:
    """Return the order of the values of each nominal column, by tables of ``pairs``; by frequency without any."""
    schema = federation.schema
    nominal = [at for at in range(len(counts)) if _is_nominal(schema, at)]
    orders = {at: np.argsort(counts[at], kind="stable") for at in nominal}
    if not pairs:
        return orders
    released = federation.sum(marginals, release, cliques=pairs)
    tables = dict(zip(pairs, split_marginals(schema, pairs, released.values), strict=True))
    for at in nominal:
        held = [(a if b == at else b, t if a == at else t.T) for (a, b), t in tables.items() if at in (a, b)]
        if held:
            company = np.concatenate([counts[other] for other, _ in held])
            beside = np.concatenate([table for _, table in held], axis=1).astype(np.float64)
            orders[at] = correspondence_order(beside, counts[at], company, released.std)
    return orders


def integer_scores(axis: Axis) -> Integers:
    """Return the scores of an axis's cells in parts of 1 / GRAIN."""
    return np.rint(axis.scores() * GRAIN).astype(np.int64)


def length_bound(axes: Sequence[Axis]) -> int:
    """Return the squared length, in parts of 1 / GRAIN^2, beyond which few rows of independent columns are.

    A function of released shares alone: the mean and ``REACH`` standard deviations, or what no row can pass.
    """
    squares = [(axis.shares, integer_scores(axis).astype(np.float64) ** 2) for axis in axes]
    mean = [float(p @ s) for p, s in squares]
    variance = [float(p @ s**2) - m**2 for (p, s), m in zip(squares, mean, strict=True)]
    return max(1, math.ceil(min(sum(mean) + REACH * math.sqrt(sum(variance)), sum(float(s.max()) for _, s in squares))))


def split_cells(schema: Schema, bins: int, flat: Integers) -> list[Integers]:
    """Return the histograms that :data:`histograms` laid end to end."""
    ends = np.cumsum([cell_count(column, bins) for column in schema.columns])
    return np.split(flat, ends[:-1])


def margins_of(schema: Schema, axes: Sequence[Axis], bins: int) -> tuple[Cellwise, ...]:
    """Return each column on its axis, numbers on their grid."""
    return tuple(
        Cellwise(axis, Grid.of(column, bins) if isinstance(column, Numeric | Datetime) else None)
        for axis, column in zip(axes, schema.columns, strict=True)
    )


# ---------------------------------------------------------------------------------------------------------------------
# Steps with noise


def _records(federation: Federation, rho: float) -> tuple[float, float]:
    """Return the number of records and its noise: exact where sizes are public, else bought for ``rho``."""
    if federation.sizes is not None:
        return float(max(1, sum(federation.sizes[site] for site in federation.sites))), 0.0
    counted = federation.sum(size, Gaussian(rho))
    return max(1.0, float(counted.values[0])), counted.std


def _refined(federation: Federation, total: float, std: float, histogram: Sequence[Integers], released: Sum) -> float:
    """Return the number of records by the count and all histograms' sums, weighted by their noise."""
    if federation.sizes is not None:
        return float(max(1, sum(federation.sizes[site] for site in released.sites)))
    precision = [1 / std**2, *(1 / (released.std**2 * len(part)) for part in histogram)]
    return max(1.0, float(np.average([total, *(float(part.sum()) for part in histogram)], weights=precision)))


def _present(federation: Federation, found: Sum, first: Sum, total: float) -> float:
    """Return the number of records of the sites in ``found``, given the ``total`` of those in ``first``."""
    if federation.sizes is not None:
        return float(max(1, sum(federation.sizes[site] for site in found.sites)))
    return total * len(found.sites) / len(first.sites)  # a lost site of unknown size counts as an average one


def fitted_correlation(axes: Sequence[Axis], mean: Array, std: float) -> Array:
    """Return the correlation of the axes by noisy mean products (lower triangle) with noise ``std``."""
    scores = [integer_scores(axis) / GRAIN for axis in axes]
    deviation = np.sqrt([float(axis.shares @ score**2) for axis, score in zip(axes, scores, strict=True)])
    matrix = np.zeros((len(axes), len(axes)))
    matrix[np.tril_indices(len(axes), -1)] = mean
    found = latent_correlation(axes, scores, matrix + matrix.T)
    # To first order, noise in a mean product is noise over both deviations in the correlation.
    spread = np.outer(deviation, deviation)
    noise = np.divide(std, spread, out=np.zeros_like(spread), where=spread > 0)
    return nearest_correlation(shrunk(found, noise))
