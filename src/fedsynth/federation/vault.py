"""A sum that nobody may read, but that can be selected from, and opened in part with noise.

Central methods are written against a vault: with a trusted server it is an array in that server's memory; other trusts
may hold it as secret shares.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from fedsynth.cliques import integer_weights
from fedsynth.errors import BudgetExceeded, Unsupported
from fedsynth.federation.query import Clique, Counts, Span
from fedsynth.federation.trust import add_noise, noise_std
from fedsynth.privacy.cost import ROUNDING, Budget, Neighbours, Norms, Sensitivity, Unit, protect
from fedsynth.privacy.ledger import Entry
from fedsynth.privacy.noise import RandomBits, exponential_mechanism
from fedsynth.privacy.release import Exact, Release, draw_for, noise_for
from fedsynth.schema import Schema
from fedsynth.schema.bins import Floats, Integers

GRAIN = 1024  # parts of a record in which scores are counted


@dataclass(frozen=True, eq=False)
class WeightedL1:
    """Score ``weight * (|| counts - expected ||_1 - penalty)`` of each candidate.

    Everything a score is made of becomes an integer before a count is looked at: expected counts and penalties in
    parts of 1 / ``GRAIN`` record, weights as :func:`~fedsynth.cliques.integer_weights` has them. A record moves one
    cell of each table by ``GRAIN``, so that a score moves by at most ``GRAIN`` times the largest weight, exactly.
    ``expected[i]`` has the shape of candidate ``i``'s table.
    """

    candidates: tuple[Clique, ...]
    expected: tuple[Floats, ...]
    weights: Floats
    penalties: Floats

    @property
    def integer_weights(self) -> Integers:
        """The weights as integers."""
        return integer_weights(self.weights)

    @property
    def span(self) -> Span:
        """How far one record moves any one score."""
        largest = GRAIN * int(self.integer_weights.max())
        return Span(largest, 2 * largest)

    def utilities(self, marginal: Callable[[Clique], Integers]) -> Integers:
        """Return the score of each candidate, given its exact table."""
        distances = [
            int(np.abs(GRAIN * marginal(clique) - np.rint(GRAIN * expected).astype(np.int64)).sum())
            for clique, expected in zip(self.candidates, self.expected, strict=True)
        ]
        penalties = np.rint(GRAIN * self.penalties).astype(np.int64)
        return self.integer_weights * (np.array(distances, dtype=np.int64) - penalties)


class Vault(Protocol):
    """Sums of all sites' tables that can be drawn from and opened in part, and not read otherwise.

    All shares are of the run's budget; together they come to no more than what the sites were charged for the deposit.
    """

    @property
    def left(self) -> float:
        """Share of the run's budget that may still be released."""

    def add(self, site: str, values: Integers) -> None:
        """Take in one site's answer to the deposited query."""

    def select(self, scores: WeightedL1, share: float) -> int:
        """Return the index of one candidate, drawn by the exponential mechanism."""

    def scores(self, scores: WeightedL1, share: float) -> tuple[Floats, float]:
        """Return every candidate's score with noise, in records, and the noise's standard deviation."""

    def open(self, query: Counts, share: float) -> tuple[list[Floats], list[float]]:
        """Return noisy tables, in records, and the noise's standard deviation in each."""

    def std(self, share: float) -> float:
        """Return the noise's standard deviation in a cell of one table that is opened for that share."""


@dataclass(frozen=True, eq=False)
class VaultTerms:
    """What a vault is opened under: what is deposited, at what price, for whom, and who keeps account of it."""

    schema: Schema
    query: Counts
    budget: Budget
    share: float
    unit: Unit
    neighbours: Neighbours
    step: int
    bits: Callable[[str], RandomBits]
    note: Callable[[Entry], None]


@dataclass(eq=False)
class TrustedVault:
    """The exact tables in a trusted server's memory; every release is charged against what sites deposited."""

    terms: VaultTerms
    sites: list[str] = field(default_factory=list)
    spent: float = 0.0
    _total: Integers | None = None
    _tables: dict[Clique, Integers] = field(default_factory=dict)

    @property
    def left(self) -> float:
        """Share of the run's budget that may still be released."""
        return self.terms.share - self.spent

    def add(self, site: str, values: Integers) -> None:
        """Add one site's tables."""
        self._total = values.copy() if self._total is None else np.add(self._total, values, out=self._total)
        self.sites.append(site)

    def select(self, scores: WeightedL1, share: float) -> int:
        """Return the index of one candidate, drawn by the exponential mechanism."""
        release = draw_for(self.terms.budget, share, at_site=False)
        self._charge("select", release, share, len(scores.candidates), math.nan)
        utilities = scores.utilities(self._marginal)
        if isinstance(release, Exact):
            return int(utilities.argmax())
        bits = self._bits(f"select {scores.candidates}", release, utilities)
        return exponential_mechanism(utilities, self._moved(scores), release.epsilon, bits)

    def scores(self, scores: WeightedL1, share: float) -> tuple[Floats, float]:
        """Return every candidate's score with noise, in records of the heaviest, and the noise's standard deviation."""
        release = noise_for(self.terms.budget, share, at_site=False)
        exact, moved = scores.utilities(self._marginal), self._moved(scores)
        norms = Norms(float(moved * exact.size), moved * math.sqrt(exact.size))
        unit = GRAIN * int(scores.integer_weights.max())
        std = noise_std(release, norms) / unit
        self._charge("scores", release, share, exact.size, std)
        bits = self._bits(f"scores {scores.candidates}", release, exact)
        return add_noise(exact, release, norms, bits) / unit, std

    def open(self, query: Counts, share: float) -> tuple[list[Floats], list[float]]:
        """Return noisy tables, in records, and the noise's standard deviation in each."""
        release = noise_for(self.terms.budget, share, at_site=False)
        query.check(self.terms.schema)
        held = {axis.column: axis for axis in self.terms.query.axes}
        asked = {at: query.axes[at] for table in query.tables for at in table}
        if not all(axis.column in held and axis.same(held[axis.column]) for axis in asked.values()):
            raise Unsupported("a vault holds tables over the axes that were deposited; open those")
        tables = [self._marginal(clique).ravel() for clique in query.cliques]
        weights = query.weights or (1,) * len(tables)
        exact = np.concatenate([table * weight for table, weight in zip(tables, weights, strict=True)])
        norms = self._norms(query.sensitivity(self.terms.schema))
        std = noise_std(release, norms)
        self._charge("open", release, share, exact.size, std)
        noisy = add_noise(exact, release, norms, self._bits(f"open {query.tables} {query.weights}", release, exact))
        return query.split(self.terms.schema, noisy), query.stds(std)

    def std(self, share: float) -> float:
        """Return the noise's standard deviation in a cell of one table that is opened for that share."""
        return noise_std(
            noise_for(self.terms.budget, share, at_site=False), self._norms(Sensitivity(1, 1, 2, math.sqrt(2)))
        )

    def _norms(self, sensitivity: Sensitivity) -> Norms:
        return protect(sensitivity, self.terms.unit, self.terms.neighbours, pooled=True)

    def _bits(self, what: str, release: Release, exact: Integers) -> RandomBits:
        """Return random bits for one release, bound to the very numbers that it hides."""
        return self.terms.bits(f"{what} {release} {self.spent!r} {hashlib.sha256(exact.tobytes()).hexdigest()}")

    def _moved(self, scores: WeightedL1) -> int:
        unit = self.terms.unit
        return scores.span.of(self.terms.neighbours) * unit.rows * unit.sites

    def _marginal(self, clique: Clique) -> Integers:
        """Return the exact table of a deposited clique, or of a subset of one, with its columns in their order."""
        if not self._tables:
            assert self._total is not None
            tables = self.terms.query.split(self.terms.schema, self._total)
            self._tables = {
                held: table.astype(np.int64) for held, table in zip(self.terms.query.cliques, tables, strict=True)
            }
        if clique not in self._tables:
            source = next((held for held in self.terms.query.cliques if set(clique) <= set(held)), None)
            if source is None:
                raise Unsupported(f"columns {clique} were not deposited together; deposit a clique that contains them")
            axes = tuple(axis for axis, column in enumerate(source) if column not in clique)
            kept = [column for column in source if column in clique]
            summed = self._tables[source].sum(axis=axes)
            self._tables[clique] = summed.transpose([kept.index(column) for column in clique])
        return self._tables[clique]

    def _charge(self, verb: str, release: Release, share: float, cells: int, std: float) -> None:
        if not self.terms.budget.exact and self.spent + share > self.terms.share * ROUNDING:
            raise BudgetExceeded(
                f"the vault has released {self.spent:.6g} of the {self.terms.share:.6g} of the budget that was "
                f"deposited, and this costs {share:.6g} more; deposit a larger share"
            )
        self.spent += share
        cost = release.cost(Norms(1.0, 1.0))
        paid = f"deposit of step {self.terms.step}"
        self.terms.note(
            Entry(self.terms.step, verb, "vault", release, tuple(self.sites), cells, cost, std, paid_by=paid)
        )
