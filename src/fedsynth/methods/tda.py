"""Fed-TDA: a Gaussian copula of all columns, fitted to noisy sums over sites.

Source: Fed-TDA (Duan et al., arXiv 2211.13116). Corrected: each column is one latent variable instead of two,
categories give the mean of their interval instead of a random point in it, and the correlation lost by discretising is
restored; noise is calibrated to the change that one record makes. The published encoding remains as
:class:`~fedsynth.bench.published.tda.FedTDAPaper`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from fedsynth.cliques import Clique
from fedsynth.federation.query import Counts
from fedsynth.methods.measure import check_shares, share_left, shares
from fedsynth.methods.registry import COLUMN, category, method
from fedsynth.methods.survey import survey
from fedsynth.methods.tda_sums import GRAIN, Encoding, ProductSums
from fedsynth.schema import Schema
from fedsynth.schema.bins import Grid

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation, Share, Sum
    from fedsynth.models.copula import OneAxis
    from fedsynth.models.normal_scores import Array, Integers, NormalScores
    from fedsynth.models.synthesizer import Synthesizer

REACH = 3.0  # a row is shortened if its squared length is this many standard deviations above the mean


@method("tda", adaptive=True, order=2)
@dataclass(frozen=True)
class FedTDA:
    """A Gaussian copula from noisy sums: histograms of the columns, then products of the encoded columns.

    The histograms, a survey with adaptive bins, serve directly as the columns' distributions. They also map each value
    to a normal score; a row is encoded by its scores, and the sums of their products over rows give the correlations. A
    numeric column's missing values are a bin of their own, above all numbers, so that dependence of missingness on
    other columns is kept. Under noise, encoded rows with an L2 norm above a bound are scaled down to it, which limits
    the sensitivity; without noise the products are exact. Source: Fed-TDA (Duan et al., arXiv 2211.13116).

    Parameters
    ----------
    survey_share
        Share of the budget for the histograms of single columns. The products get what this and ``order_share`` leave.
    order_share
        Share of the budget for ordering the values of categorical columns that have more than two values (missing ones
        count as one) and are not declared ordered: values are neighbours if they have similar conditional distributions
        in the column's noisy 2-way tables with the other categorical columns. Nothing is spent without such a column,
        or without another categorical one.
    target
        Name of a categorical column (the label) by whose tables alone the other columns' values are ordered; "": by
        those of all.
    """

    survey_share: float = 0.3
    order_share: float = 0.1
    target: str = field(default="", metadata=COLUMN)

    def __post_init__(self) -> None:
        shares(survey_share=self.survey_share, order_share=self.order_share)
        check_shares("the products", survey_share=self.survey_share, order_share=self.order_share)

    def fit(self, federation: Federation) -> Synthesizer:
        """Run the method; ``info["orders"]`` maps each unordered column to its values' codes in the order found."""
        from fedsynth.models.copula import Copula, fitted_correlation
        from fedsynth.models.synthesizer import Synthesizer

        schema = federation.schema
        pairs = nominal_pairs(schema, category(schema, self.target))

        # Adaptive bins of each column. A single column needs nothing else.
        survey_share = self.survey_share if len(schema.stored) > 1 else 1.0
        columns, total, sites = survey(federation, survey_share)
        counts = [column.counts for column in columns]
        order_share = self.order_share if pairs else 0.0
        orders = level_orders(federation, pairs, counts, order_share)
        found = margins_of(counts, [column.grid for column in columns], orders)
        margins = tuple(replace(margin, unplaced=of.unplaced) for margin, of in zip(found, columns, strict=True))
        axes = [margin.axis for margin in margins]
        correlation = np.eye(len(axes))
        if len(axes) > 1:
            # Rows are shortened to a length that rows of independent columns rarely exceed.
            bound = longest_row(axes) if federation.budget.exact else length_bound(axes)
            query = ProductSums(tuple(encoding(margin) for margin in margins), bound)
            released = federation.sum(query, share_left(survey_share, order_share))
            (products,), (std,) = released.tables, released.stds
            records = _present(federation, released, total, sites)
            scores = [integer_scores(axis) / GRAIN for axis in axes]
            correlation = fitted_correlation(axes, scores, products / records, std / records)
        info = {"method": "tda", "orders": {schema.names[at]: order.tolist() for at, order in orders.items()}}
        return Synthesizer(schema, margins, Copula.of(margins, correlation, total), info)


# ---------------------------------------------------------------------------------------------------------------------
# Steps


def nominal_pairs(schema: Schema, target: int) -> list[Clique]:
    """Return the pairs of categorical columns whose 2-way tables order the values of an unordered column.

    Unordered means categorical, not declared ordered, and with more than two values (missing ones count as one).
    ``target`` is the position of the one column that others are paired with, or -1: each unordered column is paired
    with all.
    """
    categories = [at for at, column in enumerate(schema.stored) if not column.is_number]
    nominal = {at for at in categories if _is_nominal(schema, at)}
    partners = categories if target == -1 else [target]
    return sorted({(min(a, b), max(a, b)) for a in nominal for b in partners if a != b})


def _is_nominal(schema: Schema, at: int) -> bool:
    column = schema.stored[at]
    return column.is_nominal and column.size > 2


def level_orders(
    federation: Federation, pairs: Sequence[Clique], counts: Sequence[Array], share: Share
) -> dict[int, Integers]:
    """Return, for each unordered column by its position, its values in an order in which similar ones are neighbours.

    An order is an array of codes, shape ``(values,)``. Values are similar if they have similar conditional
    distributions in the noisy 2-way tables of ``pairs`` (:func:`nominal_pairs`), which cost ``share`` of the budget. A
    column without pairs is ordered by ascending frequency of its ``counts``, one array for each column.
    """
    from fedsynth.models.normal_scores import correspondence_order

    schema = federation.schema
    nominal = [at for at in range(len(counts)) if _is_nominal(schema, at)]
    orders = {at: np.argsort(counts[at], kind="stable") for at in nominal}
    if not pairs:
        return orders
    released = federation.sum(Counts.of(len(schema.stored), pairs), share)
    tables = dict(zip(pairs, released.tables, strict=True))
    for at in nominal:
        partners = [(a if b == at else b, t if a == at else t.T) for (a, b), t in tables.items() if at in (a, b)]
        if partners:
            company = np.concatenate([counts[other] for other, _ in partners])
            beside = np.concatenate([table for _, table in partners], axis=1)
            orders[at] = correspondence_order(beside, counts[at], company, released.std)
    return orders


def integer_scores(axis: NormalScores) -> Integers:
    """Return the normal scores of a column's bins as integers in units of 1 / ``GRAIN`` (1/1024), shape ``(bins,)``."""
    return np.rint(axis.scores() * GRAIN).astype(np.int64)


def longest_row(axes: Sequence[NormalScores]) -> int:
    """Return the largest squared length that an encoded row can have, in units of ``1 / GRAIN^2``."""
    return max(1, sum(int((integer_scores(axis) ** 2).max()) for axis in axes))


def length_bound(axes: Sequence[NormalScores]) -> int:
    """Return a squared length that few encoded rows of independent columns exceed, in units of ``1 / GRAIN^2``.

    Rows with a larger squared length are scaled down to it, which bounds the sensitivity. The bound depends only on
    released numbers, the shares of the bins in ``axes``: it is the mean plus ``REACH`` (3) standard deviations of the
    squared length if columns are independent, or the largest possible squared length if that is smaller.
    """
    squares = [(axis.shares, integer_scores(axis).astype(np.float64) ** 2) for axis in axes]
    mean = [float(p @ s) for p, s in squares]
    variance = [float(p @ s**2) - m**2 for (p, s), m in zip(squares, mean, strict=True)]
    few = math.ceil(sum(mean) + REACH * math.sqrt(max(0.0, sum(variance))))
    return max(1, min(few, longest_row(axes)))


def margins_of(
    counts: Sequence[Array], grids: Sequence[Grid | None], orders: Mapping[int, Integers]
) -> tuple[OneAxis, ...]:
    """Return, for each column in order, how its bins lie on the axis of a latent standard normal variable.

    The estimated ``counts`` of each column's bins determine the widths of their intervals on the axis. ``grids`` has a
    numeric column's bins as intervals of its values, in ascending order already, and ``None`` for a categorical column.
    ``orders`` gives, by column position, the order of categories along the axis as an array of codes; other categories
    are in the order of their codes.
    """
    from fedsynth.models.copula import OneAxis
    from fedsynth.models.normal_scores import NormalScores

    columns = enumerate(zip(counts, grids, strict=True))
    return tuple(OneAxis(NormalScores.of(count, orders.get(at)), grid) for at, (count, grid) in columns)


def encoding(margin: OneAxis) -> Encoding:
    """Return a column's encoding for :class:`~fedsynth.methods.tda_sums.ProductSums`."""
    return Encoding(integer_scores(margin.axis), None if margin.grid is None else margin.grid.cuts)


# ---------------------------------------------------------------------------------------------------------------------
# Steps with noise


def _present(federation: Federation, released: Sum, total: float, sites: Sequence[str]) -> float:
    """Return the number of records of the sites in ``released``, given the ``total`` of ``sites``."""
    if federation.sizes is not None:
        return float(max(1, sum(federation.sizes[site] for site in released.sites)))
    return total * len(released.sites) / len(sites)  # a lost site of unknown size counts as an average one
