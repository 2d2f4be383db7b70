"""Steps that the marginal-based methods share: measuring tables, fitting a model to them, counting records.

Every share is a fraction of the budget that a run started with; the shares of a whole fit add up to at most 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsynth.cliques import Clique
from fedsynth.errors import InvalidParameter
from fedsynth.federation.query import Counts, RecordCount
from fedsynth.methods.domain import Domain
from fedsynth.privacy.cost import ROUNDING
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

# The most steps of a fit to tables of several cohorts of sites.
COHORT_STEPS = 10

_MEGABYTE = 2**20
_DUST = ROUNDING - 1  # what shares leave below this is a rounding error, which the ledger tolerates too
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
    """Fit a graphical model to noisy tables (Private-PGM), for methods; the fit stops before it fits the noise.

    The arguments are those of :func:`~fedsynth.models.estimate.estimate`. If the tables come from several cohorts of
    sites (not ``one_cohort``), they disagree by more than their noise, and no model reaches the noise level: the fit
    then ends as soon as it slows, or after ``COHORT_STEPS`` (10) steps. More would fit what only these cohorts have in
    common, and give combinations of values that others hold a probability of almost zero.
    """
    from fedsynth.models.estimate import estimate

    return estimate(
        sizes,
        measured,
        total,
        iterations=iterations if one_cohort else min(iterations, COHORT_STEPS),
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
    """Fit a graphical model: by :func:`fit_noisy`, or over a survey's bins to denoised tables by :func:`fit_clean`."""
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
    """Fit a graphical model over ``domain`` to tables denoised by :func:`without_noise` or :func:`clean_pairs`.

    The fit does not stop at the noise level but goes on until its loss is a small part (``CLEAN_STOP``, 0.05) of that
    level or falls no further.
    """
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
    """Return noisy tables with the 2-way ones denoised, if they are over a survey's bins; else ``measured`` unchanged.

    ``measured`` are tables of ``total`` records, the 1-way table of every column among them. Tables of the same columns
    are averaged by inverse variance; 1-way tables are also averaged with sums over the 2-way tables; 2-way tables are
    denoised by :func:`clean_pairs`, and tables of three or more columns are left as measured.
    """
    if domain.columns is None:
        return list(measured)
    tables = averages(measured)
    pairs = [table for table in tables if len(table.clique) == 2]
    ones = with_sums_of([table for table in tables if len(table.clique) == 1], pairs)
    clean = clean_pairs(domain, ones, pairs, total)
    return ones + [
        clean[table.clique].measurement(table.clique, table.std) if table.clique in clean else table
        for table in tables
        if len(table.clique) > 1
    ]


def clean_pairs(
    domain: Domain, ones: Sequence[Measurement], pairs: Sequence[Measurement], total: float
) -> dict[Clique, PairTable]:
    """Return the noisy 2-way tables ``pairs`` with less noise (:mod:`fedsynth.models.pair_tables`), by their columns.

    Their margins are those of ``ones``, the noisy 1-way tables of the same columns; ``total`` is the estimated number
    of rows, to which every table of the result adds up but for noise.
    """
    from fedsynth.models.pair_tables import denoised

    margins = margins_of(domain, ones, total)
    clean = {}
    for table in pairs:
        first, second = (margins[at] for at in table.clique)
        clean[table.clique] = denoised(table.values, table.std, first, second, total)
    return clean


def margins_of(domain: Domain, ones: Sequence[Measurement], total: float) -> dict[int, Margin]:
    """Return, by column position, each column's distribution over its groups, from the noisy 1-way tables ``ones``."""
    from fedsynth.models.gum import simplex
    from fedsynth.models.pair_tables import Margin

    ordered = [cells.ordered(column) for cells, column in zip(domain.held, domain.schema.stored, strict=True)]
    return {at: Margin(simplex(one.values, total) / total, ordered[at]) for one in ones for at in one.clique}


def free_numbers(domain: Domain, clique: Clique) -> int:
    """Return how many degrees of freedom the noise in a measured table still has after :func:`without_noise`.

    For a 2-way table over a survey's bins this is the sum of the lengths of its two sides (at most its number of
    cells), since what denoising keeps is taken to have rank one. For any other table it is the number of its cells.
    """
    shape = domain.shape(clique)
    cells = math.prod(shape)
    return cells if domain.columns is None or len(shape) != 2 else min(cells, sum(shape))


def noise_norm(domain: Domain, clique: Clique) -> float:
    """Return the L2 norm of the noise left in a table after denoising, in units of one cell's std before it."""
    return math.sqrt(free_numbers(domain, clique))


def noise_weight(domain: Domain, clique: Clique) -> float:
    """Return the L1 norm of the noise left in a table after denoising, in units of one cell's std before it.

    Noise with k degrees of freedom (:func:`free_numbers`) has the L2 norm sqrt(k); spread over n cells, it has the L1
    norm ``NOISE_L1`` sqrt(n k).
    """
    return NOISE_L1 * math.sqrt(math.prod(domain.shape(clique)) * free_numbers(domain, clique))


def total_records(federation: Federation, measured: Sequence[Measurement], sites: Sequence[str] | None = None) -> float:
    """Return the number of records of ``sites`` (default: all): public, or estimated from noisy tables.

    Without public numbers, the estimate is the inverse-variance mean of the sums of all tables in ``measured``, each of
    which counts every record once, and at least 1; it costs no further privacy. The federation, once it knows the
    number, warns of questions that noise would drown.
    """
    if federation.sizes is not None:
        total = float(max(1, sum(federation.sizes[site] for site in sites or federation.sites)))
    else:
        from fedsynth.models.estimate import inverse_variance_mean

        sums, variances = [m.values.sum() for m in measured], [m.std**2 * m.values.size for m in measured]
        total = max(1.0, float(inverse_variance_mean(sums, variances)[0]))
    federation.noise.rows = federation.noise.rows or total
    return total


def with_sums_of(ones: Sequence[Measurement], tables: Sequence[Measurement]) -> list[Measurement]:
    """Return the noisy 1-way tables ``ones``, each averaged with the sums over larger ``tables`` of the same column.

    ``tables`` are noisy tables of two or more columns. The average is by inverse variance, and has no further privacy
    cost; the noise of all tables must be independent.
    """
    from fedsynth.models.estimate import Measurement, inverse_variance_mean

    averaged = []
    for own in ones:
        (column,) = own.clique
        counted = [own, *(table.onto(own.clique) for table in tables if column in table.clique)]
        mean, variance = inverse_variance_mean([each.values for each in counted], [each.std**2 for each in counted])
        averaged.append(Measurement(own.clique, mean, math.sqrt(variance)))
    return averaged


def averages(tables: Sequence[Measurement]) -> list[Measurement]:
    """Return one table for each clique: the average of all ``tables`` with the clique, by inverse variance."""
    from fedsynth.models.estimate import Measurement, merged

    return [Measurement(clique, values, math.sqrt(variance)) for clique, (values, variance) in merged(tables).items()]


def site_records(federation: Federation, share: float) -> tuple[dict[str, float], float]:
    """Return each site's number of records, at least 1, and the share of the budget spent (0 if sizes are public).

    Unless the numbers are public, every site adds its own noise to its number, for ``share`` of the budget; sites that
    do not answer are missing from the result.
    """
    if federation.sizes is not None:
        return {site: max(1.0, float(n)) for site, n in federation.sizes.items()}, 0.0
    noisy = federation.each(RecordCount(), share)
    return {site: max(1.0, float(found.values[0])) for site, found in noisy.items()}, share


def measure(
    federation: Federation,
    cliques: Sequence[Clique],
    share: Share,
    weights: Sequence[int] = (),
    domain: Domain | None = None,
) -> list[Measurement]:
    """Return noisy contingency tables of ``cliques``, in records, from one sum over sites.

    ``share`` is the part of the budget for all tables together, or ``EXACT`` for no noise; ``weights`` divide it
    between them (:class:`~fedsynth.federation.query.Counts`, :func:`weights_for`). The tables are over the bins of
    ``domain``, by default the schema's own.
    """
    query = (domain or Domain(federation.schema)).counts(cliques, weights)
    released = federation.sum(query, share)
    return measurements(cliques, released.tables, released.stds)


def workload_order(method: Any) -> int:
    """Return the largest number of columns of a marginal in the option ``workload`` of a method; 2 without one."""
    return max(map(len, method.workload or ((0, 1),)))


def network_order(method: Any) -> int:
    """Return the number of columns of the largest table of a network: a column with ``degree`` parents; at least 2."""
    return max(2, int(method.degree) + 1)


def table_of(clique: Clique) -> Counts:
    """Return the query for one table of ``clique`` over the schema's bins, which describes these columns only."""
    return Counts(tuple(Axis(column) for column in clique), (tuple(range(len(clique))),))


def measure_in_vault(
    vault: Vault, domain: Domain, cliques: Sequence[Clique], share: float, factor: float = 1.0
) -> list[Measurement]:
    """Release one noisy table for each of ``cliques`` from a vault, for ``share`` of the run's budget in total.

    Tables and noise are in records times ``factor``, the ratio of the records of all sites to those of the sites in the
    vault. Raises :class:`BudgetExceeded` if less than ``share`` is left of what the sites were charged at their
    deposits, and :class:`Unsupported` for tables that were not deposited.
    """
    return measurements(cliques, *vault.open(domain.counts(cliques), share), factor)


def measurements(
    cliques: Sequence[Clique],
    tables: Sequence[Floats],
    stds: Sequence[float],
    factor: float = 1.0,
    least_std: float = EXACT_STD,
) -> list[Measurement]:
    """Return released ``tables`` of ``cliques`` as measurements, the input of a fit, with the noise ``stds`` in a cell.

    A standard deviation below ``least_std`` is raised to it, since a fit divides by it. Tables and standard deviations
    are multiplied by ``factor``: the ratio of all records to those counted, for tables of some sites only.
    """
    from fedsynth.models.estimate import Measurement

    return [
        Measurement(clique, table * factor, max(std, least_std) * factor)
        for clique, table, std in zip(cliques, tables, stds, strict=True)
    ]


def weights_for(shares: Sequence[float], budget: Budget) -> tuple[int, ...]:
    """Return integer weights, 1 to 64, by which a query divides its privacy cost between its tables as ``shares`` say.

    Only the ratios of the shares matter. Table i causes a part of the cost in proportion to ``w[i] ** 2`` under
    Gaussian noise, to ``w[i]`` under Laplace noise (a ``budget`` with delta = 0). The result is the smallest weights
    that come within a twentieth of every share, or else those that come closest. Raises :class:`InvalidParameter` for a
    negative share.
    """
    if min(shares) < 0:
        raise InvalidParameter(f"a table's share of the cost is {min(shares):g}; shares must not be negative")
    power = 1 if budget.pure else 2
    wanted = np.asarray(shares, dtype=np.float64) / np.sum(shares)
    ideal = (wanted / wanted.max()) ** (1 / power)
    best, least = np.ones(len(wanted)), math.inf
    for largest in range(1, _MOST_WEIGHT + 1):
        weights = np.maximum(np.rint(largest * ideal), 1.0)
        spent = weights**power / (weights**power).sum()
        error = float(np.abs(spent / wanted - 1).max())
        if error < least:
            best, least = weights, error
        if error <= _WEIGHT_ERROR:
            break
    return tuple(int(weight) for weight in best)


def table_shares(cells: Sequence[float], budget: Budget) -> list[float]:
    """Return how to divide a privacy cost between tables of given numbers of ``cells`` for the least total L1 error.

    A table's L1 error is proportional to its cells times the standard deviation of its noise. The variance is the
    inverse of the table's cost (Gaussian noise) or of its square (Laplace noise, delta = 0), so that the least error
    has costs proportional to cells^(2/3) or cells^(1/2), respectively.
    """
    prices = np.asarray(cells, dtype=np.float64) ** (1 / 2 if budget.pure else 2 / 3)
    return list(prices / prices.sum())


def interaction_share(domain: Domain, clique: Clique, budget: Budget, whole: int | None = None) -> float:
    """Return the squared length of what a row adds to the interactions of a clique, as released for this ``budget``.

    It is the product of 1 - 1 / groups over the columns of ``clique``, without the one at the position ``whole`` in a
    clique of three; 1 for whole tables, which are released under Laplace noise
    (:func:`~fedsynth.methods.interactions.measure_interactions`).
    """
    if budget.pure:
        return 1.0
    return math.prod(1 - 1 / domain.sizes[at] for at in clique if len(clique) < 3 or at != whole)


def pair_weights(
    domain: Domain,
    pairs: Sequence[Clique],
    budget: Budget,
    favoured: Sequence[bool] = (),
    share: float = 0.0,
    whole: int | None = None,
    columns: float = 0.0,
) -> tuple[int, ...]:
    """Return the weights (:func:`weights_for`) that divide a privacy cost between the interactions of ``pairs``.

    The division minimises the total L1 error (:func:`table_shares`). If the pairs marked in ``favoured`` would get less
    than the part ``share`` of the cost together, they get about this part (:func:`favoured_shares`). ``pairs`` may
    contain cliques of three columns, one of them ``whole``, and cliques of one, which get the part ``columns`` together
    in addition to their share of the rest.
    """
    moved = [interaction_share(domain, pair, budget, whole) for pair in pairs]
    # An error in a column's distribution is an error in each of its tables as well.
    tables = Counter(at for pair in pairs for at in pair)
    times = [tables[pair[0]] if len(pair) == 1 else 1 for pair in pairs]
    sizes = [math.prod(domain.shape(pair)) * math.sqrt(one) for pair, one in zip(pairs, moved, strict=True)]
    cells = [size * many for size, many in zip(sizes, times, strict=True)]
    prices = favoured_shares(table_shares(cells, budget), favoured, share)
    alone = np.where([len(pair) == 1 for pair in pairs], prices, 0.0)
    if columns and alone.any():
        prices = list((1 - columns) * np.array(prices) + columns * alone / alone.sum())
    return weights_for([price / one for price, one in zip(prices, moved, strict=True)], budget)


def favoured_shares(prices: Sequence[float], favoured: Sequence[bool], share: float) -> list[float]:
    """Return ``prices`` as parts of their sum, raised for favoured ones to the part ``share`` of it together.

    Nothing is raised if ``favoured`` is empty or all True, or if those marked True have this part already.
    """
    parts = np.array(prices, dtype=np.float64) / np.sum(prices)
    raised = np.array(favoured, dtype=bool) if any(favoured) else np.zeros(len(parts), dtype=bool)
    if 0 < parts[raised].sum() < share and not raised.all():
        parts[raised] *= share / parts[raised].sum()
        parts[~raised] *= (1 - share) / parts[~raised].sum()
    return list(parts)


def shares(**numbers: float) -> None:
    """Raise :class:`InvalidParameter` unless every number lies strictly between 0 and 1; keywords name the options."""
    for name, number in numbers.items():
        if not (number > 0 and share_left(number)):
            raise InvalidParameter(f"{name} must lie strictly between 0 and 1, not {number}")


def optional_shares(**numbers: float | None) -> None:
    """Raise :class:`InvalidParameter` unless every number is ``None``, 0 or lies strictly between 0 and 1."""
    for name, number in numbers.items():
        if number is not None and not (number >= 0 and share_left(number)):
            raise InvalidParameter(f"{name} must be 0 or lie strictly between 0 and 1, not {number}")


def share_left(*spent: float) -> float:
    """Return the part of the budget that the shares ``spent`` leave, or 0 if they add up to 1 or more.

    Rounding counts as 0: shares of 0.7 and 0.3 leave 6e-17 in floating point, too little to pay for anything.
    """
    rest = 1.0
    for share in spent:
        rest -= share
    return rest if rest > _DUST else 0.0


def check_shares(purpose: str, **spent: float) -> None:
    """Raise :class:`InvalidParameter` unless the shares ``spent`` leave a part of the budget for ``purpose``."""
    if not share_left(*spent.values()):
        values = " and ".join(f"{name} = {share}" for name, share in spent.items())
        raise InvalidParameter(f"{values} leave nothing for {purpose}; lower one of them")


def select_fitting(
    sizes: Sequence[int],
    cliques: Sequence[Clique],
    more: Sequence[Clique],
    megabytes: float,
    rules: Iterable[Clique] = (),
) -> list[Clique]:
    """Return ``cliques``, then those of ``more`` that can be added to a model of at most ``megabytes``.

    Cliques are tried in order. ``sizes`` are all columns' numbers of bins. The size is that of the tables of a
    graphical model of all cliques, in MiB at 8 bytes per cell; the cliques of ``rules`` count as parts of the model,
    but are not returned.
    """
    kept, ruled = list(cliques), list(rules)
    for clique in more:
        if megabytes_with(sizes, [*ruled, *kept], clique) <= megabytes:
            kept.append(clique)
    return kept


def fits(sizes: Sequence[int], cliques: Sequence[Clique], candidate: Clique, megabytes: float) -> bool:
    """Return whether a model of ``cliques`` and ``candidate`` needs at most ``megabytes``: :func:`megabytes_with`."""
    return megabytes_with(sizes, cliques, candidate) <= megabytes


def megabytes_with(sizes: Sequence[int], cliques: Sequence[Clique], candidate: Clique) -> float:
    """Return the MiB, at 8 bytes per cell, of a model's tables with ``candidate``; 0 if it contains it already."""
    tree = _grown_tree(tuple(sizes), tuple(cliques))
    return 0.0 if tree.holds(candidate) else tree.cells(candidate) * 8 / _MEGABYTE


@lru_cache(maxsize=4)
def _grown_tree(sizes: tuple[int, ...], cliques: tuple[Clique, ...]) -> GrownTree:
    """Return the junction tree that all candidates for one model extend; cached, since they come in sequence."""
    from fedsynth.models.junction_tree import GrownTree

    return GrownTree(sizes, cliques)
