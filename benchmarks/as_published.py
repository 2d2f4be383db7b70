"""Port of HeteroFedSyn's published code, faults included. NOT private as it claims: only to reproduce its table.

The faults kept are: every site draws its own projection, and the server uses that of the last site; negative noisy
values are clipped at once, in sketches too; epsilon is split, and each part is converted to zCDP separately; the noise
of released tables is drawn once, on pooled rows, at the epsilon divided by c, the number of sites; the selection of
pairs ends with the first that gains at most 0.1 (included if it gains anything).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.clusters import kept
from fedsynth.errors import Unsupported
from fedsynth.federation.federation import EXACT, Federation
from fedsynth.federation.query import Counts
from fedsynth.models.estimate import Measurement
from fedsynth.models.evidence import Evidence, RejectionSampler
from fedsynth.models.gum import GradualUpdate, consistent
from fedsynth.models.saved import DrawnColumn
from fedsynth.models.synthesizer import Synthesizer, own_bins
from fedsynth.rows import Table

SHARES = (0.1, 0.1, 0.8)
WIDTH = 10
STOP = 0.1
Pair = tuple[int, int]


def classic_rho(epsilon: float, delta: float) -> float:
    """Return rho by the classic conversion of (epsilon, delta) to zCDP (arXiv 1605.02065, proposition 1.3)."""
    return (math.sqrt(math.log(1 / delta) + epsilon) - math.sqrt(math.log(1 / delta))) ** 2


def kept_clusters(table: Table, sites: int, rng: np.random.Generator) -> list[Table]:
    """Return each site's rows by the clusters of FLAIM's partition that are kept of these rows; ``rng`` is not used."""
    clusters = kept(table, sites)
    return [table.take(clusters == site) for site in range(sites)]


def equal_parts(table: Table, sites: int, rng: np.random.Generator) -> list[Table]:
    """Return the rows in random order, in parts whose sizes differ by at most one."""
    return [table.take(rows) for rows in np.array_split(rng.permutation(len(table)), sites)]


@dataclass(frozen=True, eq=False)
class PublishedRows:
    """A model that holds the rows generated during the fit: their ``codes``, shape ``(columns, rows)``."""

    codes: NDArray[Any]
    kind: ClassVar[str] = "published rows"

    @property
    def total(self) -> float:
        """The number of rows."""
        return float(self.codes.shape[1])

    def sample(self, rows: int, rng: np.random.Generator) -> list[NDArray[Any]]:
        """Return the first ``rows`` rows; ``rng`` is not used. Raises :class:`Unsupported` if there are fewer."""
        if rows > self.total:
            raise Unsupported(f"the published code generates as many rows as it reads, {self.total:.0f}, not {rows}")
        return list(self.codes[:, :rows])

    def given(self, evidence: Mapping[int, Evidence]) -> RejectionSampler:
        """Raise :class:`Unsupported`: the published code cannot sample rows under conditions."""
        raise Unsupported("the published code cannot sample rows under conditions")

    @property
    def related(self) -> None:
        """Not known: these are rows, and no model."""

    @property
    def drawn_columns(self) -> tuple[DrawnColumn, ...]:
        """What the rows hold for each column: codes."""
        return tuple(DrawnColumn(int(column.max()) + 1) for column in self.codes)

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Raise :class:`Unsupported`: there is no model to save."""
        raise Unsupported("the published code produces rows but no model")

    @classmethod
    def from_arrays(cls, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> PublishedRows:
        """Raise :class:`Unsupported`, as :meth:`to_arrays` does."""
        raise Unsupported("the published code produces rows but no model")


@dataclass(frozen=True)
class PublishedFedPrivSyn:
    """NOT PRIVATE: reads exact counts, and adds the published code's noise for the budget that the code claims."""

    def fit(self, federation: Federation) -> Synthesizer:
        """Return a synthesizer with the rows of the published FedPrivSyn; ``cliques`` are the pairs released."""
        schema, rng = federation.schema, federation.rng
        epsilon, delta, sizes = federation.budget.epsilon, federation.budget.delta, schema.sizes
        pairs = list(itertools.combinations(range(len(sizes)), 2))
        cliques = [*((column,) for column in range(len(sizes))), *pairs]
        asked = federation.each(Counts.of(len(sizes), cliques), EXACT)
        sites = [dict(zip(cliques, answer.tables, strict=True)) for answer in asked.values()]
        pooled = {clique: sum(site[clique] for site in sites) for clique in cliques}
        n, c = round(float(np.sum(pooled[0,]))), len(sites)
        rho = [classic_rho(share * epsilon, delta) for share in SHARES]
        sigma_one = math.sqrt(len(sizes) / (2 * rho[0]))
        sigma_sketch = math.sqrt(len(pairs) / (2 * rho[1]))

        ones = [np.zeros(size) for size in sizes]
        sketches: dict[Pair, NDArray[np.float64]] = {pair: np.zeros(WIDTH) for pair in pairs}
        last: dict[Pair, NDArray[np.float64]] = {}
        for site in sites:
            for column, size in enumerate(sizes):
                ones[column] += np.maximum(site[column,] + rng.normal(0, sigma_one, size), 0) / n
            for pair in pairs:
                counts = site[pair].ravel()
                last[pair] = rng.normal(0, 1 / math.sqrt(WIDTH), (counts.size, WIDTH))
                noisy = counts @ last[pair] + rng.normal(0, sigma_sketch, WIDTH)
                sketches[pair] += np.maximum(noisy, 0) / n

        def strength(pair: Pair) -> float:
            a, b = (ones[column] for column in pair)
            u1, u2 = (sigma_one / n) ** 2, (sigma_sketch / n) ** 2
            squared = float(((sketches[pair] - np.outer(a, b).ravel() @ last[pair]) ** 2).sum())
            of_ones = u1 * (b.size * float((a**2).sum()) + a.size * float((b**2).sum()))
            return math.sqrt(max(0.0, squared - (WIDTH * u2 + of_ones - a.size * b.size * u1**2)))

        rho_release = classic_rho(SHARES[2] * epsilon / c, delta)
        sigma_all = math.sqrt(len(pairs) / (2 * rho_release))
        gain = {pair: strength(pair) - sigma_all * math.sqrt(sizes[pair[0]]) / n for pair in pairs}
        chosen: list[Pair] = []
        for pair in sorted(pairs, key=lambda one: -gain[one]):
            if gain[pair] <= 0:
                break
            chosen.append(pair)
            if gain[pair] <= STOP:
                break
        sigma = math.sqrt(max(1, len(chosen)) / (2 * rho_release))
        measured = [Measurement((j,), one * n, sigma_one) for j, one in enumerate(ones)]
        for pair in chosen:
            noisy = np.maximum(pooled[pair] + rng.normal(0, sigma, schema.shape(pair)), 0)
            measured.append(Measurement(pair, noisy * (n / noisy.sum()), sigma))
        start = np.stack([rng.integers(0, size, n) for size in sizes]).astype(np.uint8)
        rows = GradualUpdate(sizes, consistent(measured, n)).rows(start, rng)
        info = {"method": "published fedprivsyn", "cliques": [list(pair) for pair in chosen]}
        return Synthesizer(schema, own_bins(schema), PublishedRows(rows), info)
