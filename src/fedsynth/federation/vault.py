"""Vaults: exact sums of all sites' tables from which only noisy selections, scores and tables are released.

Methods that were made for one pooled table run on a vault. With a trusted server it is an array in the server's memory;
three compute servers hold it as secret shares.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from typing_extensions import override

from fedsynth.cliques import integer_weights
from fedsynth.errors import BudgetExceeded, Unsupported
from fedsynth.federation.events import Answer, values_of
from fedsynth.federation.query import Clique, Counts, UtilityBound
from fedsynth.federation.wire import Request
from fedsynth.privacy.cost import ROUNDING, Norms, Sensitivity, protect
from fedsynth.privacy.ledger import Entry, Ledger
from fedsynth.privacy.noise import RandomBits, add_noise, exponential_mechanism, noise_std
from fedsynth.privacy.release import Exact, Release, draw_for, noise_for
from fedsynth.schema.bins import Floats, Integers
from fedsynth.terms import Terms

GRAIN = 1024  # scores are integers in units of 1 / GRAIN record
NOISE_L1 = math.sqrt(2 / math.pi)
"""E|Z| of a standard normal. Equal Gaussian noise in n cells has an L1 norm of about NOISE_L1 sqrt(n) times its L2."""


@dataclass(frozen=True, eq=False)
class CandidateScores:
    """The scores of candidates for a vault's selection: how far each candidate's table is from an expected one.

    ``candidates`` are cliques (positions of columns). ``expected[i]`` is the table that the method expects for
    candidate ``i``: an array of the table's shape, in records. The score of candidate ``i`` is ``weights[i]`` times a
    difference: the distance of its exact table from ``expected[i]``, less the size of the noise that measuring the
    table would add. ``weights`` are positive, shape ``(candidates,)``, and ``noise[i]`` is the L2 norm of that noise
    over the whole table, in records. The vault chooses the norm of the distance: L1 if one party holds the table, L2 if
    it is secret-shared. For equal Gaussian noise, the L1 norm follows from the L2 norm by :data:`NOISE_L1`.
    """

    candidates: tuple[Clique, ...]
    expected: tuple[Floats, ...]
    weights: Floats
    noise: Floats

    @property
    def l1(self) -> WeightedL1:
        """The same scores with the L1 norm as the distance."""
        roots = np.sqrt([table.size for table in self.expected])
        return WeightedL1(self.candidates, self.expected, self.weights, NOISE_L1 * roots * self.noise)


@dataclass(frozen=True, eq=False)
class WeightedL1:
    """Score ``weight * (|| counts - expected ||_1 - penalty)`` of each candidate, by which a trusted server selects.

    Fields are as in :class:`CandidateScores`; ``penalties`` (in records: the L1 norm of the noise that measuring the
    table would add) have shape ``(candidates,)``.

    All inputs of a score are rounded to integers before a count is read: expected counts and penalties in units of 1 /
    ``GRAIN`` (1 / 1024) record, weights by :func:`~fedsynth.cliques.integer_weights`. Adding or removing a record moves
    one cell of each table by ``GRAIN``, so that a score moves by at most ``GRAIN`` times the largest weight, exactly;
    replacing a record moves it by at most twice that.
    """

    candidates: tuple[Clique, ...]
    expected: tuple[Floats, ...]
    weights: Floats
    penalties: Floats

    @property
    def integer_weights(self) -> Integers:
        """The weights as integers from 1 to 255, shape ``(candidates,)``."""
        return integer_weights(self.weights)

    @property
    def span(self) -> UtilityBound:
        """Bound on how far one record moves a score of :meth:`utilities`."""
        largest = GRAIN * int(self.integer_weights.max())
        return UtilityBound(largest, 2 * largest)

    def utilities(self, marginal: Callable[[Clique], Integers]) -> Integers:
        """Return the score of each candidate, int64, from the exact tables that ``marginal(clique)`` gives.

        A score is the integer weight (1 to 255) times (distance - penalty), both in units of 1 / ``GRAIN`` record.
        """
        distances = [
            int(np.abs(GRAIN * marginal(clique) - np.rint(GRAIN * expected).astype(np.int64)).sum())
            for clique, expected in zip(self.candidates, self.expected, strict=True)
        ]
        penalties = np.rint(GRAIN * self.penalties).astype(np.int64)
        return self.integer_weights * (np.array(distances, dtype=np.int64) - penalties)


@dataclass(frozen=True, eq=False)
class VaultQuestion:
    """The question by which a vault began, and what its releases need.

    ``query`` are the deposited tables, and ``share`` is the most that all releases may cost, a fraction of the
    ``part`` that the run's first questions have left of its budget. ``ledger`` is the run's. ``step`` is the question's
    number in the run, and ``digest`` its SHA-256 (hex). ``bits(purpose)`` gives secret random bits for the vault's
    noise, and ``note(entry, tables)`` records a release, with its tables if it has any, in the server's ledger without
    a further charge.
    """

    query: Counts
    ledger: Ledger
    share: float
    part: float
    step: int
    digest: str
    bits: Callable[[str], RandomBits]
    note: Callable[[Entry, Counts | None], None]


@dataclass(eq=False)
class Vault(ABC):
    """Exact sums of all sites' tables, from which only noisy selections, scores and tables are released.

    :meth:`Federation.deposit <fedsynth.federation.federation.Federation.deposit>` makes one. Amounts of budget
    (``share``, ``left``) are fractions of what first questions left of the run's budget; all releases together cost at
    most the ``share`` that sites were charged for the deposit. Sites may deposit at different times
    (:meth:`Federation.deposit_into <fedsynth.federation.federation.Federation.deposit_into>`), and their tables stay.

    A method calls :meth:`select`, :meth:`scores`, :meth:`open` and :meth:`std`, and reads :attr:`left` and ``sites``,
    the names of the sites whose tables the vault holds. The first three raise :class:`BudgetExceeded` for a ``share``
    above :attr:`left`, and :class:`Unsupported` for tables that were not deposited together or are binned differently.
    The rest is the federation's: ``terms``, the ``question``, the sites that it ``asked`` so far, and :meth:`begin`,
    :meth:`take` for each answer, and :meth:`keep`. ``spent`` is what the releases have cost so far.
    """

    terms: Terms
    question: VaultQuestion
    sites: tuple[str, ...] = ()
    asked: set[str] = field(default_factory=set)
    spent: float = 0.0

    @property
    def left(self) -> float:
        """What the deposit still pays for."""
        return self.question.share - self.spent

    @abstractmethod
    def select(self, distances: CandidateScores, share: float) -> int:
        """Return the index of one candidate, drawn by the exponential mechanism: higher scores are likelier."""

    @abstractmethod
    def scores(self, distances: CandidateScores, share: float) -> tuple[Floats, float]:
        """Return every candidate's noisy score, shape ``(candidates,)``, and the noise's standard deviation.

        They are divided by the largest weight, so that the score of a candidate with this weight is in records. All
        together cost ``share``. Raises :class:`Unsupported` if the vault cannot release scores
        (:meth:`Federation.require_vault <fedsynth.federation.federation.Federation.require_vault>` says so before
        anything is charged).
        """

    @abstractmethod
    def open(self, query: Counts, share: float) -> tuple[list[Floats], list[float]]:
        """Return the noisy tables of ``query`` for one ``share``, in records, and the noise's std in a cell of each."""

    @abstractmethod
    def std(self, share: float) -> float:
        """Return the noise's standard deviation, in records, in a cell of a single table opened for ``share``."""

    @abstractmethod
    def begin(self, request: Request) -> None:
        """Prepare for answers to ``request``, the signed question for tables; discard answers that were not kept."""

    @abstractmethod
    def take(self, site: str, answer: Answer) -> None:
        """Take in the answer of a site; raises :class:`FedsynthError` for an invalid one."""

    @abstractmethod
    def keep(self) -> None:
        """Add the tables of the sites whose answers were taken since :meth:`begin` to the vault."""

    def charge(
        self, verb: str, release: Release, share: float, cells: int, std: float, tables: Counts | None = None
    ) -> None:
        """Charge a release against the deposit and note it in the server's ledger.

        Raises :class:`BudgetExceeded` if the deposit does not cover it, unless the budget has no limit. ``verb`` names
        the release in the ledger ("select", "scores" or "open"). ``cells`` is the number of cells, scores or
        candidates, and ``std`` the noise's standard deviation (NaN for a selection); ``tables`` are those opened.
        """
        if not self.terms.budget.exact and self.spent + share > self.question.share * ROUNDING:
            raise BudgetExceeded(
                f"the vault has released {self.spent:.6g} of the {self.question.share:.6g} of the budget that was "
                f"deposited, and this costs {share:.6g} more; deposit a larger share"
            )
        self.spent += share
        paid = f"deposit of step {self.question.step}"
        cost = release.cost(Norms(1.0, 1.0))
        step, digest = self.question.step, self.question.digest
        entry = Entry(step, verb, "vault", release, self.sites, cells, cost, std, digest, paid)
        self.question.note(entry, tables)

    def check_axes(self, query: Counts) -> None:
        """Raise :class:`Unsupported` for tables that bin a column in another way than the deposited tables do."""
        query.check(self.terms.schema)
        held = {axis.column: axis for axis in self.question.query.axes}
        asked = {at: query.axes[at] for table in query.tables for at in table}
        if not all(axis.column in held and axis.same(held[axis.column]) for axis in asked.values()):
            raise Unsupported("a vault holds tables over the axes that were deposited; open those")


@dataclass(eq=False)
class TrustedVault(Vault):
    """A vault in a trusted server's memory. Candidates are scored by L1 distances."""

    _total: Integers | None = None
    _staged: tuple[list[str], Integers | None] = field(default_factory=lambda: ([], None))
    _tables: dict[Clique, Integers] = field(default_factory=dict)

    @override
    def begin(self, request: Request) -> None:
        self._staged = [], None

    @override
    def take(self, site: str, answer: Answer) -> None:
        values = values_of(site, answer)
        sites, staged = self._staged  # added up apart: memory holds two vectors and the total, for any number of sites
        staged = values.copy() if staged is None else np.add(staged, values, out=staged)
        self._staged = [*sites, site], staged

    @override
    def keep(self) -> None:
        sites, staged = self._staged
        if staged is not None:
            self._total = staged if self._total is None else np.add(self._total, staged, out=self._total)
        self.sites += tuple(sites)
        self._staged = [], None
        self._tables = {}

    @override
    def select(self, distances: CandidateScores, share: float) -> int:
        scores = distances.l1
        release = draw_for(self.terms.budget, share * self.question.part, at_site=False)
        self.charge("select", release, share, len(scores.candidates), math.nan)
        utilities = scores.utilities(self._marginal)
        if isinstance(release, Exact):
            return int(utilities.argmax())
        bits = self._bits(f"select {scores.candidates}", release, utilities)
        return exponential_mechanism(utilities, self._moved(scores), release.epsilon, bits)

    @override
    def scores(self, distances: CandidateScores, share: float) -> tuple[Floats, float]:
        scores = distances.l1
        release = noise_for(self.terms.budget, share * self.question.part, at_site=False)
        exact, moved = scores.utilities(self._marginal), self._moved(scores)
        norms = Norms(float(moved * exact.size), moved * math.sqrt(exact.size))
        unit = GRAIN * int(scores.integer_weights.max())
        std = noise_std(release, norms) / unit
        self.charge("scores", release, share, exact.size, std)
        bits = self._bits(f"scores {scores.candidates}", release, exact)
        return add_noise(exact, release, norms, bits) / unit, std

    @override
    def open(self, query: Counts, share: float) -> tuple[list[Floats], list[float]]:
        release = noise_for(self.terms.budget, share * self.question.part, at_site=False)
        self.check_axes(query)
        tables = [self._marginal(clique).ravel() for clique in query.cliques]
        weights = query.weights or (1,) * len(tables)
        exact = np.concatenate([table * weight for table, weight in zip(tables, weights, strict=True)])
        norms = self._norms(query.sensitivity(self.terms.schema))
        std = noise_std(release, norms)
        self.charge("open", release, share, exact.size, std, query)
        noisy = add_noise(exact, release, norms, self._bits(f"open {query.tables} {query.weights}", release, exact))
        return query.split(self.terms.schema, noisy), query.stds(std)

    @override
    def std(self, share: float) -> float:
        return noise_std(
            noise_for(self.terms.budget, share * self.question.part, at_site=False),
            self._norms(Sensitivity(1, 1, 2, math.sqrt(2))),
        )

    def _norms(self, sensitivity: Sensitivity) -> Norms:
        return protect(sensitivity, self.terms.change, pooled=True)

    def _bits(self, what: str, release: Release, exact: Integers) -> RandomBits:
        """Return random bits for one release, bound to the exact numbers that its noise hides."""
        return self.question.bits(f"{what} {release} {self.spent!r} {hashlib.sha256(exact.tobytes()).hexdigest()}")

    def _moved(self, scores: WeightedL1) -> int:
        unit = self.terms.unit
        return scores.span.of(self.terms.neighbours) * unit.rows * unit.sites

    def _marginal(self, clique: Clique) -> Integers:
        """Return the exact table of a deposited clique, or of a subset of one, with its columns in their order."""
        if not self._tables:
            assert self._total is not None
            tables = self.question.query.split(self.terms.schema, self._total)
            self._tables = {
                held: table.astype(np.int64) for held, table in zip(self.question.query.cliques, tables, strict=True)
            }
        if clique not in self._tables:
            source = next((held for held in self.question.query.cliques if set(clique) <= set(held)), None)
            if source is None:
                raise Unsupported(f"columns {clique} were not deposited together; deposit a clique that contains them")
            axes = tuple(axis for axis, column in enumerate(source) if column not in clique)
            kept = [column for column in source if column in clique]
            summed = self._tables[source].sum(axis=axes)
            self._tables[clique] = summed.transpose([kept.index(column) for column in clique])
        return self._tables[clique]
