"""Steps that the marginal-based methods share: measuring tables, fitting a model to them, counting records.

Every share is a fraction of the budget that a run started with; the shares of a whole fit add up to at most 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from fedsynth.cliques import Clique
from fedsynth.errors import InvalidParameter
from fedsynth.federation.query import Counts, Size
from fedsynth.methods.domain import Domain
from fedsynth.schema.bins import Axis, Floats

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation, Share
    from fedsynth.federation.vault import Vault
    from fedsynth.models.estimate import Measurement, Zeros
    from fedsynth.models.junction_tree import GrownTree
    from fedsynth.models.mrf import MarkovRandomField
    from fedsynth.models.pair_tables import Margin, PairTable
    from fedsynth.privacy.cost import Budget

# Expected absolute value of normal noise of standard deviation 1. That of Laplace noise is smaller (0.71), and that of
# its sums over sites lies between: scores corrected by this constant then favour smaller tables.
NOISE_L1 = math.sqrt(2 / math.pi)

# Standard deviation, in records, assumed for tables without noise, since a fit needs a scale.
EXACT_STD = 0.01

# A fit stops when its loss falls below this multiple of the loss expected of the true distribution. It is below 1,
# since a fit absorbs some of the noise.
NOISE_STOP = 0.9

# The same for a fit to denoised tables, and the number of blocks of steps without improvement after which it ends.
CLEAN_STOP, CLEAN_QUIET = 0.05, 3

_MEGABYTE = 2**20
_MOST_WEIGHT = 64
_WEIGHT_ERROR = 0.05  # relative error of a share; larger weights come closer, but the noise is then of larger integers


def fit_noisy(
    sizes: Sequence[int],
    measured: Sequence[Measurement],
    total: float,
    iterations: int,
    warm_start: MarkovRandomField | None = None,
    *,
    one_cohort: bool = True,
    zeros: Zeros | None = None,
) -> MarkovRandomField:
    """Fit a model to noisy tables, stopping before it fits their noise.

    If the tables come from several cohorts of sites (not ``one_cohort``), they disagree by more than their noise, and
    no model reaches the noise level: the fit then ends as soon as it slows. ``zeros`` are cells that the schema's rules
    forbid (:func:`fedsynth.schema.derive.forbidden_cells`).
    """
    from fedsynth.models.estimate import estimate

    return estimate(
        sizes,
        measured,
        total,
        iterations=iterations,
        warm_start=warm_start,
        noise_stop=NOISE_STOP,
        quiet_blocks=5 if one_cohort else 1,
        zeros=zeros,
    )


def fit_over(
    domain: Domain,
    measured: Sequence[Measurement],
    total: float,
    iterations: int,
    warm_start: MarkovRandomField | None = None,
    *,
    one_cohort: bool = True,
) -> MarkovRandomField:
    """Fit a model of ``domain`` to noisy tables, which are denoised first (:func:`without_noise`) after a survey."""
    if domain.columns is None:
        return fit_noisy(
            domain.sizes, measured, total, iterations, warm_start, one_cohort=one_cohort, zeros=domain.zeros
        )
    return fit_clean(domain, without_noise(domain, measured, total), total, iterations, warm_start)


def fit_clean(
    domain: Domain,
    measured: Sequence[Measurement],
    total: float,
    iterations: int,
    warm_start: MarkovRandomField | None = None,
) -> MarkovRandomField:
    """Fit a model to denoised tables, which allow a closer fit than noisy ones."""
    from fedsynth.models.estimate import estimate

    return estimate(
        domain.sizes,
        measured,
        total,
        iterations=iterations,
        warm_start=warm_start,
        noise_stop=CLEAN_STOP,
        quiet_blocks=CLEAN_QUIET,
        zeros=domain.zeros,
    )


def without_noise(domain: Domain, measured: Sequence[Measurement], total: float) -> list[Measurement]:
    """Return tables over a survey's groups, those of pairs denoised.

    Tables of the same clique are averaged. The 1-way tables, which must include every column, are averaged with the
    sums of the pairs' tables. Without a survey, all tables are returned as they are, and so are always those of three
    or more columns.
    """
    if domain.columns is None:
        return list(measured)
    from fedsynth.models.estimate import Measurement, merged

    found = [Measurement(clique, values, math.sqrt(v)) for clique, (values, v) in merged(measured).items()]
    pairs = [table for table in found if len(table.clique) == 2]
    ones = with_sums_of([table for table in found if len(table.clique) == 1], pairs)
    clean = clean_pairs(domain, ones, pairs, total)
    return ones + [
        clean[table.clique].measurement(table.clique, table.std) if table.clique in clean else table
        for table in found
        if len(table.clique) > 1
    ]


def clean_pairs(
    domain: Domain, ones: Sequence[Measurement], pairs: Sequence[Measurement], total: float
) -> dict[Clique, PairTable]:
    """Return each pair's denoised table of ``total`` records, given the 1-way tables of its columns."""
    from fedsynth.models.pair_tables import denoised

    margins = margins_of(domain, ones, total)
    found = {}
    for table in pairs:
        first, second = (margins[at] for at in table.clique)
        found[table.clique] = denoised(table.values, table.std, first, second, total)
    return found


def margins_of(domain: Domain, ones: Sequence[Measurement], total: float) -> dict[int, Margin]:
    """Return the shares of each column's groups, from noisy tables, and the number of its ordered groups."""
    from fedsynth.models.gum import simplex
    from fedsynth.models.pair_tables import Margin

    ordered = [cells.ordered(column) for cells, column in zip(domain.held, domain.schema.stored, strict=True)]
    return {at: Margin(simplex(one.values, total) / total, ordered[at]) for one in ones for at in one.clique}


def free_numbers(domain: Domain, clique: Clique) -> int:
    """Return the degrees of freedom of a released table's noise that :func:`without_noise` leaves.

    They are its cells; for a pair over a survey's groups, its rows plus columns, as of a remainder of rank one.
    """
    shape = domain.shape(clique)
    cells = math.prod(shape)
    return cells if domain.columns is None or len(shape) != 2 else min(cells, sum(shape))


def noise_norm(domain: Domain, clique: Clique) -> float:
    """Return the L2 norm of a released table's noise after denoising, in units of the noise's std per cell."""
    return math.sqrt(free_numbers(domain, clique))


def noise_weight(domain: Domain, clique: Clique) -> float:
    """Return the L1 norm of a released table's noise after denoising, in units of the noise's std per cell.

    Noise with k degrees of freedom has the L2 norm sqrt(k); spread over n cells, it has the L1 norm ``NOISE_L1`` sqrt(n
    k).
    """
    return NOISE_L1 * math.sqrt(math.prod(domain.shape(clique)) * free_numbers(domain, clique))


def total_records(federation: Federation, measured: Sequence[Measurement], sites: Sequence[str] | None = None) -> float:
    """Return the number of records of ``sites`` (default: all), public or estimated from the tables ``measured``.

    Every table sums to the total; the estimate is the inverse-variance mean of the sums, at no further privacy cost.
    """
    if federation.sizes is not None:
        return float(max(1, sum(federation.sizes[site] for site in sites or federation.sites)))
    from fedsynth.models.estimate import inverse_variance_mean

    sums, variances = [m.values.sum() for m in measured], [m.std**2 * m.values.size for m in measured]
    return max(1.0, float(inverse_variance_mean(sums, variances)[0]))


def with_sums_of(ones: Sequence[Measurement], tables: Sequence[Measurement]) -> list[Measurement]:
    """Return 1-way tables averaged, by inverse variance, with the sums of the ``tables`` that hold their columns.

    The sums improve the 1-way tables at no further privacy cost. The noise of all tables must be independent.
    """
    from fedsynth.models.estimate import Measurement, inverse_variance_mean

    found = []
    for one in ones:
        (column,) = one.clique
        said = [one, *(table.onto(one.clique) for table in tables if column in table.clique)]
        mean, variance = inverse_variance_mean([each.values for each in said], [each.std**2 for each in said])
        found.append(Measurement(one.clique, mean, math.sqrt(variance)))
    return found


def sums_of_pairs(tables: Sequence[Measurement]) -> list[Measurement]:
    """Return the pairs' tables that are sums of tables of three columns; several for one pair are averaged."""
    from fedsynth.models.estimate import Measurement, merged

    sums = [table.onto(pair) for table in tables for pair in combinations(table.clique, 2)]
    return [Measurement(pair, values, math.sqrt(variance)) for pair, (values, variance) in merged(sums).items()]


def clean_slices(
    table: Measurement, column: int, pairs: Mapping[Clique, PairTable], margins: Mapping[int, Margin], total: float
) -> Measurement:
    """Return a denoised table of three columns: for each value of ``column``, the pair of the others is denoised.

    ``pairs`` holds the denoised tables of the other two columns with ``column`` (in rows), which give their
    distribution for each value, and ``margins`` the shares of single columns. The result has the table's shape, in
    rows; its ``std`` is that of the noise left in a cell. A value with less than one of the ``total`` rows gets zeros.
    """
    from fedsynth.models.estimate import Measurement
    from fedsynth.models.gum import simplex
    from fedsynth.models.pair_tables import Margin, denoised

    axis = table.clique.index(column)
    held = {
        at: pairs[at, column].table.T if at < column else pairs[column, at].table for at in table.clique if at != column
    }
    slices = np.moveaxis(table.values, axis, 0)
    found, numbers = np.zeros(slices.shape), 0.0
    for value, share in enumerate(margins[column].shares):
        rows = total * share
        if rows >= 1:
            first, second = (Margin(simplex(of[value], rows) / rows, margins[at].ordered) for at, of in held.items())
            clean = denoised(slices[value], table.std, first, second, rows)
            found[value], numbers = clean.table, numbers + clean.numbers
    std = table.std * math.sqrt(min(1.0, max(numbers, 1.0) / found.size))
    return Measurement(table.clique, np.moveaxis(found, 0, axis), std)


def site_records(federation: Federation, share: float) -> tuple[dict[str, float], float]:
    """Return each site's number of records, at least 1, and the share of the budget spent: 0 if sizes are public."""
    if federation.sizes is not None:
        return {site: max(1.0, float(n)) for site, n in federation.sizes.items()}, 0.0
    noisy = federation.each(Size(), share)
    return {site: max(1.0, float(found.values[0])) for site, found in noisy.items()}, share


def measure(
    federation: Federation,
    cliques: Sequence[Clique],
    share: Share,
    weights: Sequence[int] = (),
    domain: Domain | None = None,
) -> list[Measurement]:
    """Return noisy contingency tables of ``cliques``, in records, for ``share`` of the budget in total.

    They are over the groups of ``domain``, by default the schema's own bins.
    """
    query = (domain or Domain(federation.schema)).counts(cliques, weights)
    released = federation.sum(query, share)
    return measurements(cliques, released.tables, released.stds)


def table_of(clique: Clique) -> Counts:
    """Return the query for one contingency table, with axes for its own columns only."""
    return Counts(tuple(Axis(column) for column in clique), (tuple(range(len(clique))),))


def measure_in_vault(
    vault: Vault, domain: Domain, cliques: Sequence[Clique], share: float, factor: float = 1.0
) -> list[Measurement]:
    """Return noisy tables of ``cliques`` that a vault opens, times ``factor``, for ``share`` of the budget in total."""
    return measurements(cliques, *vault.open(domain.counts(cliques), share), factor)


def measurements(
    cliques: Sequence[Clique],
    tables: Sequence[Floats],
    stds: Sequence[float],
    factor: float = 1.0,
    least_std: float = EXACT_STD,
) -> list[Measurement]:
    """Return noisy ``tables`` of ``cliques`` and their noise, of at least ``least_std``, both times ``factor``."""
    from fedsynth.models.estimate import Measurement

    return [
        Measurement(clique, table * factor, max(std, least_std) * factor)
        for clique, table, std in zip(cliques, tables, stds, strict=True)
    ]


def weights_for(shares: Sequence[float], budget: Budget) -> tuple[int, ...]:
    """Return the weights (integers 1 to 64) with which :class:`Counts` spends ``shares`` of its price on its tables.

    Table i costs in proportion to ``w[i] ** 2`` under Gaussian noise, to ``w[i]`` under Laplace noise. The result is
    the smallest weights that come within a twentieth of every share, or else those that come closest.
    """
    power = 1 if budget.pure else 2
    wanted = np.asarray(shares, dtype=np.float64) / np.sum(shares)
    ideal = (wanted / wanted.max()) ** (1 / power)
    found, least = np.ones(len(wanted)), math.inf
    for largest in range(1, _MOST_WEIGHT + 1):
        weights = np.maximum(np.rint(largest * ideal), 1.0)
        spent = weights**power / (weights**power).sum()
        error = float(np.abs(spent / wanted - 1).max())
        if error < least:
            found, least = weights, error
        if error <= _WEIGHT_ERROR:
            break
    return tuple(int(weight) for weight in found)


def table_shares(cells: Sequence[int], budget: Budget) -> list[float]:
    """Return the share of a price for each of several tables with these ``cells`` that minimises their total L1 error.

    A table's error is its cells times the noise, whose variance is the inverse of the price (Gaussian) or of its square
    (Laplace): the sum is smallest for prices proportional to cells^(2/3) and cells^(1/2), respectively.
    """
    prices = np.asarray(cells, dtype=np.float64) ** (1 / 2 if budget.pure else 2 / 3)
    return list(prices / prices.sum())


def pair_weights(
    domain: Domain, pairs: Sequence[Clique], budget: Budget, favoured: Sequence[bool] = (), share: float = 0.0
) -> tuple[int, ...]:
    """Return the weights of pairs' tables by their cells; ``favoured`` pairs get at least ``share`` of the price."""
    prices = np.array(table_shares([math.prod(domain.shape(pair)) for pair in pairs], budget))
    raised = np.array(favoured, dtype=bool) if any(favoured) else np.zeros(len(prices), dtype=bool)
    if 0 < prices[raised].sum() < share and not raised.all():
        prices[raised] *= share / prices[raised].sum()
        prices[~raised] *= (1 - share) / prices[~raised].sum()
    return weights_for(list(prices), budget)


def shares(**numbers: float) -> None:
    """Raise :class:`InvalidParameter` for a share that does not lie strictly between 0 and 1."""
    for name, number in numbers.items():
        if not 0 < number < 1:
            raise InvalidParameter(f"{name} must lie strictly between 0 and 1, not {number}")


def optional_shares(**numbers: float) -> None:
    """Raise :class:`InvalidParameter` for a share that is neither 0 nor strictly between 0 and 1."""
    for name, number in numbers.items():
        if not 0 <= number < 1:
            raise InvalidParameter(f"{name} must be 0 or lie strictly between 0 and 1, not {number}")


def fitting(
    sizes: Sequence[int],
    held: Sequence[Clique],
    more: Sequence[Clique],
    megabytes: float,
    rules: Iterable[Clique] = (),
    parts: Sequence[float] = (1.0,),
) -> list[Clique]:
    """Return the cliques ``held``, and those of ``more``, in order, that fit with them into a model of ``megabytes``.

    The model also has the cliques of ``rules``. With several ``parts``, increasing to 1, cliques that fit into the
    first part of the megabytes come first, then those that fit into the second, and so on.
    """
    kept, ruled, left = list(held), list(rules), list(more)
    needed = dict.fromkeys(left, 0.0)  # as of the last check: a lower bound, since a model only grows
    for part in parts:
        passed: list[Clique] = []
        for clique in left:
            if needed[clique] <= part * megabytes:
                needed[clique] = megabytes_with(sizes, [*ruled, *kept], clique)
            (kept if needed[clique] <= part * megabytes else passed).append(clique)
        left = passed
    return kept


def fits(sizes: Sequence[int], cliques: Sequence[Clique], candidate: Clique, megabytes: float) -> bool:
    """Whether a model with ``candidate`` added stays within ``megabytes``, or already holds it."""
    return megabytes_with(sizes, cliques, candidate) <= megabytes


def megabytes_with(sizes: Sequence[int], cliques: Sequence[Clique], candidate: Clique) -> float:
    """Return the megabytes of a model with ``candidate`` added (8 bytes per cell), or 0 if it already holds it."""
    tree = _grown_tree(tuple(sizes), tuple(cliques))
    return 0.0 if tree.holds(candidate) else tree.cells(candidate) * 8 / _MEGABYTE


@lru_cache(maxsize=4)
def _grown_tree(sizes: tuple[int, ...], cliques: tuple[Clique, ...]) -> GrownTree:
    """Return the junction tree that all candidates for one model extend; cached, since they come in sequence."""
    from fedsynth.models.junction_tree import GrownTree

    return GrownTree(sizes, cliques)
