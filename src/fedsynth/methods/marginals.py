"""Steps that the marginal-based methods share, and the simplest of them: one round, everything at once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsynth.errors import InvalidParameter
from fedsynth.federation.federation import Federation, split_marginals
from fedsynth.federation.task import marginals, size
from fedsynth.models.estimate import Measurement, estimate
from fedsynth.models.gum import simplex
from fedsynth.models.junction_tree import junction_tree_cells
from fedsynth.models.mrf import MarkovRandomField
from fedsynth.models.synthesizer import GraphicalSynthesizer
from fedsynth.privacy.release import Gaussian
from fedsynth.workload import Clique

# E|Z| of a standard normal: what one cell's noise adds to an L1 distance, per unit of sigma.
NOISE_L1 = math.sqrt(2 / math.pi)

# Standard deviations of the noise's own L1 norm beyond which a dependence is no accident of noise.
CLEAR = 5.0

# Share of the loss expected of the truth at which a fit is content: below 1, since a fit absorbs some of
# the noise.
NOISE_STOP = 0.9

_MEGABYTE = 2**20


def fit_noisy(
    sizes: Sequence[int],
    measured: Sequence[Measurement],
    total: float,
    iterations: int,
    warm_start: MarkovRandomField | None = None,
    *,
    one_cohort: bool = True,
) -> MarkovRandomField:
    """Fit a model to noisy tables, stopping before it fits their noise.

    Tables of more than ``one_cohort`` of sites disagree by more than their noise, so that no model comes down
    to it: the fit then ends as soon as it slows.
    """
    return estimate(
        sizes,
        measured,
        total,
        iterations=iterations,
        warm_start=warm_start,
        noise_stop=NOISE_STOP,
        quiet_blocks=5 if one_cohort else 1,
    )


def total_records(federation: Federation, measured: Sequence[Measurement], sites: Sequence[str] | None = None) -> float:
    """Return the number of records of ``sites`` (default: all): public where sizes are, else what ``measured`` says.

    Every table sums to the total; the inverse-variance mean of their sums costs nothing beyond the tables.
    """
    if federation.sizes is not None:
        return float(max(1, sum(federation.sizes[site] for site in sites or federation.sites)))
    precision = [1 / (m.std**2 * m.values.size) for m in measured]
    return max(1.0, float(np.average([m.values.sum() for m in measured], weights=precision)))


def site_records(federation: Federation, rho: float) -> tuple[dict[str, float], float]:
    """Return each site's number of records, at least one, and what that cost each site: nothing where public."""
    if federation.sizes is not None:
        return {site: max(1.0, float(n)) for site, n in federation.sizes.items()}, 0.0
    noisy = federation.sums(size, Gaussian(rho), {site: [{"label": site}] for site in federation.sites})
    return {one.params["label"]: max(1.0, float(one.values[0])) for one in noisy}, rho


def measure(federation: Federation, cliques: Sequence[Clique], rho_each: float) -> list[Measurement]:
    """Return noisy contingency tables of ``cliques``, in records, each at ``rho_each``."""
    released = federation.sum(marginals, Gaussian(rho_each * len(cliques)), cliques=cliques)
    tables = split_marginals(federation.schema, cliques, released.values)
    return [Measurement(c, table.astype(np.float64), released.std) for c, table in zip(cliques, tables, strict=True)]


@dataclass(frozen=True)
class OneShot:
    """Every noisy 1-way and 2-way table, summed once; the structure is then chosen for free.

    One round and one plain sum: whoever can add up can run it. Every record is used once, so the budget is
    split over the tables alone; which pairs to model is post-processing of what was released. The baseline
    that every multi-round method has to beat.

    Source: the measured baseline beside FLAIM (arXiv 2310.06447); the tree follows Chow & Liu (doi
    10.1109/TIT.1968.1054142), joined by further pairs while the
    model stays small; the fit Private-PGM (arXiv 1901.09136).

    Parameters
    ----------
    pair_share
        Share of the budget for the 2-way tables together; the 1-way tables get the rest.
    max_megabytes
        Largest model; more of it holds more pairs, and takes longer.
    iterations
        Upper bound on the steps of the final fit.
    """

    pair_share: float = 0.8
    max_megabytes: float = 8.0
    iterations: int = 500

    def __post_init__(self) -> None:
        """Refuse options that cannot be."""
        shares(pair_share=self.pair_share)
        positive(max_megabytes=self.max_megabytes, iterations=self.iterations)

    def fit(self, federation: Federation) -> GraphicalSynthesizer:
        """Spend what the federation's budget has left, and return the generator."""
        schema = federation.schema
        rho = federation.rho
        ones = [(j,) for j in range(len(schema.sizes))]
        pairs = list(itertools.combinations(range(len(schema.sizes)), 2))

        pair_share = self.pair_share if pairs else 0.0
        one_way = measure(federation, ones, (1 - pair_share) * rho / len(ones))
        two_way = measure(federation, pairs, pair_share * rho / len(pairs)) if pairs else []

        total = total_records(federation, one_way)
        pairs_in = strongest_pairs(schema.sizes, one_way, two_way, total, self.max_megabytes)
        model = fit_noisy(schema.sizes, one_way + pairs_in, total, self.iterations)
        return GraphicalSynthesizer(schema, model, {"method": "oneshot", "cliques": [list(m.clique) for m in pairs_in]})


def strongest_pairs(
    sizes: Sequence[int], one_way: Sequence[Measurement], two_way: Sequence[Measurement], total: float, megabytes: float
) -> list[Measurement]:
    """Return the pairs of the spanning tree of largest total dependence, and every other clear one that fits.

    Dependence is the L1 distance, in records, between a pair's noisy table and the product of its columns'
    tables, less what noise alone would make of it. Clear is what noise alone would not reach by chance.
    """
    share = {m.clique[0]: simplex(m.values, total) / total for m in one_way}

    def dependence(pair: Measurement) -> float:
        first, second = pair.clique
        independent = total * np.outer(share[first], share[second])
        return float(np.abs(pair.values - independent).sum() - NOISE_L1 * pair.std * pair.values.size)

    # Kruskal: strongest first, and what closes a cycle only where it is clear.
    root = {column: column for column in share}
    chosen: list[Measurement] = []
    spare = []
    for pair in sorted(two_way, key=dependence, reverse=True):
        first, second = root[pair.clique[0]], root[pair.clique[1]]
        if first != second:
            root = {column: second if head == first else head for column, head in root.items()}
            chosen.append(pair)
        elif dependence(pair) > CLEAR * pair.std * math.sqrt((1 - 2 / math.pi) * pair.values.size):
            spare.append(pair)
    for pair in spare:
        if fits(sizes, [m.clique for m in chosen], pair.clique, megabytes):
            chosen.append(pair)
    return chosen


def positive(**numbers: float | None) -> None:
    """Raise :class:`InvalidParameter` for a number that is not positive; ``None`` stands for a default."""
    for name, number in numbers.items():
        if number is not None and not number > 0:
            raise InvalidParameter(f"{name} must be positive, not {number}")


def shares(**numbers: float) -> None:
    """Raise :class:`InvalidParameter` for a share that does not lie strictly between 0 and 1."""
    for name, number in numbers.items():
        if not 0 < number < 1:
            raise InvalidParameter(f"{name} must lie strictly between 0 and 1, not {number}")


def fits(sizes: Sequence[int], cliques: Sequence[Clique], candidate: Clique, megabytes: float) -> bool:
    """Whether a model with ``candidate`` added stays within ``megabytes`` (8 bytes a cell), or holds it already."""
    if any(set(candidate) <= set(clique) for clique in cliques):
        return True
    return junction_tree_cells(sizes, [*cliques, candidate]) * 8 <= megabytes * _MEGABYTE
