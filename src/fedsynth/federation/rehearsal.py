"""A run before the run: the real method and the real messages over rows that are nobody's, to see what it will cost.

Everything here follows from public facts: schema, budget, trust, number of sites and a stated number of rows. A
method that chooses by the data chooses by random rows here, so it is rehearsed on several very different
tables; what differs between them is given as a range.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from fedsynth.federation.federation import Federation, Sum
from fedsynth.federation.simulation import federate
from fedsynth.federation.site import Site
from fedsynth.federation.task import Query, marginals
from fedsynth.federation.transport import Addressed, InProcess
from fedsynth.federation.trust import Trust
from fedsynth.federation.vault import Clique, Vault, WeightedL1
from fedsynth.federation.wire import Reply
from fedsynth.privacy.release import Budget, Gaussian, Release
from fedsynth.schema import Schema
from fedsynth.table import Table

NOISE_L1 = math.sqrt(2 / math.pi)  # E|Z| of a standard normal
SETTLED = 1.05  # a range this narrow is a number


class Fits(Protocol):
    """A method: anything that can be fitted to a federation."""

    def fit(self, federation: Federation) -> Any:
        """Spend what the federation's budget has left."""


# ---------------------------------------------------------------------------------------------------------------------
# Rows that are nobody's


def even_rows(schema: Schema, rows: int, rng: np.random.Generator) -> Table:
    """Return rows of independent, uniform columns: nothing depends on anything."""
    return _table(schema, [rng.integers(0, size, rows) for size in schema.sizes], rng)


def steep_rows(schema: Schema, rows: int, rng: np.random.Generator) -> Table:
    """Return rows whose every column follows one hidden number and has few frequent values, as real columns do."""
    hidden = rng.normal(size=rows)
    columns = []
    for size in schema.sizes:
        level = ndtr(math.sqrt(0.7) * hidden + math.sqrt(0.3) * rng.normal(size=rows))
        weight = 1 / np.arange(1, size + 1) ** 2
        columns.append(np.minimum(np.searchsorted(np.cumsum(weight) / weight.sum(), level), size - 1))
    return _table(schema, columns, rng)


def chain_rows(schema: Schema, rows: int, rng: np.random.Generator) -> Table:
    """Return rows whose every column follows the one before it, each next pair less: some pairs depend, most hardly."""
    level = rng.random(rows)
    columns = []
    for column, size in enumerate(schema.sizes):
        level = np.where(rng.random(rows) < 1 / (1 + column), level, rng.random(rows))
        columns.append(np.minimum(level**2 * size, size - 1).astype(np.int64))
    return _table(schema, columns, rng)


def tied_rows(schema: Schema, rows: int, rng: np.random.Generator) -> Table:
    """Return rows of uniform columns that all follow one number exactly: every pair depends as much as it can."""
    hidden = rng.random(rows)
    return _table(schema, [np.floor(hidden * size).astype(np.int64) for size in schema.sizes], rng)


def equal_rows(schema: Schema, rows: int, rng: np.random.Generator) -> Table:
    """Return copies of one row: exact tables are as sparse, and pack as small, as they can."""
    return _table(schema, [np.zeros(rows, dtype=np.int64) for _ in schema.sizes], rng)


# The first is the one that typical figures are taken from.
TABLES: dict[str, Callable[[Schema, int, np.random.Generator], Table]] = {
    "steep": steep_rows,
    "chain": chain_rows,
    "even": even_rows,
    "tied": tied_rows,
    "equal": equal_rows,
}


def _table(schema: Schema, codes: Sequence[NDArray[Any]], rng: np.random.Generator) -> Table:
    return schema.encode(schema.decode(list(codes), rng))


# ---------------------------------------------------------------------------------------------------------------------
# What one rehearsal writes down


@dataclass(frozen=True)
class Sent:
    """One message to a site and its answer: bytes as fedsynth packs them, before the transport's own wrapping."""

    site: str
    verb: str
    task: str
    release: Release
    turn: int
    down: int
    up: int


@dataclass(frozen=True)
class Released:
    """A released statistic: the noise's standard deviation ``std`` in each of ``cells``, over ``sites`` sites.

    ``columns`` are a marginal's (empty for anything else); its ``l1`` is the expected L1 distance between the noisy
    table and the exact one, as a share of the rows of those sites: of the noise only, whatever a method makes
    of it.
    """

    task: str
    columns: Clique
    cells: int
    std: float
    sites: int
    l1: float | None


@dataclass
class Notes:
    """What one rehearsal over ``sites`` sites of ``rows`` rows together wrote down."""

    rows: int
    sites: tuple[str, ...]
    sent: list[Sent] = field(default_factory=list)
    released: list[Released] = field(default_factory=list)
    exchanges: int = 0
    epsilon: float = 0.0
    drew_cohorts: bool = False

    def marginals(self, task: str, schema: Schema, cliques: Sequence[Clique], std: float, sites: int) -> None:
        """Write down marginals that were released together."""
        rows = self.rows * sites / len(self.sites)
        for clique in cliques:
            cells = math.prod(schema.shape(clique))
            self.released.append(Released(task, tuple(clique), cells, std, sites, cells * std * NOISE_L1 / rows))


class Counting(InProcess):
    """Sites in this process whose messages are weighed as they would travel."""

    def __init__(self, sites: Sequence[Site], notes: Notes) -> None:
        """Weigh the messages of ``sites`` into ``notes``."""
        super().__init__(sites)
        self._notes = notes

    def exchange(self, requests: Iterable[Addressed]) -> Iterator[Reply]:
        """Yield each site's reply, noting what it and its request weigh."""
        weights: dict[str, int] = {}
        asked = list(requests)
        self._notes.exchanges += bool(asked)
        for name, request in asked:
            if request.digest not in weights:
                weights[request.digest] = len(request.to_bytes())
            (reply,) = super().exchange([(name, request)])
            down, up = weights[request.digest], len(reply.to_bytes())
            self._notes.sent.append(Sent(name, request.verb, request.task, request.release, request.turn, down, up))
            yield reply


@dataclass(frozen=True, eq=False)
class Rehearsed(Federation):
    """A federation that writes down how noisy its sums are; with ``everybody``, all available sites are the cohort."""

    notes: Notes = field(default_factory=lambda: Notes(1, ()))
    everybody: bool = False

    def cohort(self, rate: float, cap: int | None = None) -> Federation:
        """Return the sites of one round."""
        self.notes.drew_cohorts |= rate < 1
        return super().cohort(1.0 if self.everybody else rate, cap)

    def sums(self, query: Query, release: Release, per_site: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Sum]:
        """Return the sums, after noting their noise."""
        results = super().sums(query, release, per_site)
        for one in results:
            if query is marginals:
                self.notes.marginals(query.name, self.schema, one.params["cliques"], one.std, len(one.sites))
            else:
                self.notes.released.append(Released(query.name, (), one.values.size, one.std, len(one.sites), None))
        return results

    def deposit(self, cliques: Sequence[Clique], rho: float) -> Vault:
        """Return a vault that notes what it opens."""
        vault = super().deposit(cliques, rho)
        fields = {one.name: getattr(vault, one.name) for one in dataclasses.fields(Vault)}
        return RehearsedVault(**fields, notes=self.notes)


@dataclass
class RehearsedVault(Vault):
    """A vault that writes down how noisy what it opens is."""

    notes: Notes = field(default_factory=lambda: Notes(1, ()))

    def open(self, cliques: Sequence[Clique], release: Gaussian) -> list[NDArray[np.int64]]:
        """Return noisy tables, after noting their noise."""
        self.notes.marginals("vault", self.schema, cliques, self.std(cliques, release), len(self.sites))
        return super().open(cliques, release)

    def scores(self, score: WeightedL1, release: Gaussian) -> tuple[NDArray[np.float64], float]:
        """Return noisy scores, after noting their noise."""
        noisy, std = super().scores(score, release)
        self.notes.released.append(Released("vault scores", (), noisy.size, std, len(self.sites), None))
        return noisy, std


def rehearse(
    method: Fits,
    schema: Schema,
    budget: Budget,
    *,
    trust: Trust,
    table: Table,
    sites: int,
    seed: int,
    public_sizes: bool = False,
    everybody: bool = False,
) -> Notes:
    """Run ``method`` over ``table``, dealt out to ``sites`` sites in equal parts, and return what was written down."""
    dealt = np.random.default_rng(seed).permutation(len(table))
    parts = [table.take(part) for part in np.array_split(dealt, sites)]
    notes = Notes(len(table), ())
    federation = federate(
        parts,
        schema,
        budget,
        trust=trust,
        seed=seed,
        public_sizes=public_sizes,
        transport=partial(Counting, notes=notes),
    )
    notes.sites = federation.sites
    fields = {one.name: getattr(federation, one.name) for one in dataclasses.fields(Federation)}
    # A planned run names its plan in every request; the plan is made after this, but all digests weigh the same.
    fields["plan"] = hashlib.sha256(b"rehearsal").hexdigest()
    rehearsed = Rehearsed(**fields, notes=notes, everybody=everybody)
    method.fit(rehearsed)
    notes.epsilon = rehearsed.ledger.epsilon
    return notes
