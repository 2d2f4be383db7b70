"""Questions to three servers about tables that sites shared among them: to open some with noise, or select one.

Rule 1: a question names its vault (the sum of the sites' tables, held in secret shares) and its number in that vault. A
    server answers question n after it has charged questions 0 to n - 1, and once: asked again, it gives the same
    answer.
Rule 2: expected counts m are integers from 0 to 2^31 - 1; weights lie in 1 to :data:`MOST_WEIGHT`, penalties in 0 to
    :data:`MOST_PENALTY`. Sites deal counts of which each is capped (:func:`largest_count`), so that the total of a
    table x over all sites is at most :data:`MOST_RECORDS` = 2^56, for any rows. With fewer than 2^32 cells, sum
    (x - m)^2 <= sum x^2 + sum m^2 < 2^112 + 2^94 < 2^126, and shares are modulo 2^128. A distance counts up to 2^25.5
    records, so that a utility is below 2^52. No number can wrap, so a draw cannot be used to compare a cell with a
    threshold; and nothing is refused, or fails, for a number of rows.
Rule 3: everything that the answer depends on is in the :class:`ServerStatement`, which all three servers sign.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.cliques import Clique
from fedsynth.errors import InvalidParameter, Refused
from fedsynth.federation.query import Cliques, Counts
from fedsynth.federation.question import HexDigest, Number
from fedsynth.federation.wire import encode
from fedsynth.privacy.cost import Norms, ProtectedChange, protect
from fedsynth.privacy.noise import gumbel_scale
from fedsynth.privacy.release import Deposit, Exact, Exponential, Gaussian, Laplace, Release
from fedsynth.schema import Schema
from fedsynth.schema.bins import Integers
from fedsynth.secure.noise_shares import NoisePart, share_of
from fedsynth.servers.shares import Wide, summed

MOST_RECORDS = 2**56
"""Largest total of a table, summed over all sites, of counts as sites deal them (:func:`largest_count`)."""
MOST_CANDIDATES = 2**14
"""Largest number of candidates in a draw."""
MOST_WEIGHT = 2**16
MOST_PENALTY = 2**25
GRAIN = 2**10
"""Utilities and Gumbel numbers are integers in units of 1 / ``GRAIN`` weighted record (a record times a weight)."""
HONEST = 2
"""Number of servers whose noise together must suffice for a release: all but one curious server."""

Sites = Annotated[tuple[Annotated[str, msgspec.Meta(max_length=64)], ...], msgspec.Meta(max_length=2**14)]
Signature = Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]


class OpenTables(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="open", eq=False):
    """A question to three servers: open tables of a vault with noise, all for one ``release``.

    ``number`` is the question's number in the vault from 0. Each of the ``cliques`` is a tuple of column positions in
    the schema, whose joint table is opened. ``weights`` (empty: all 1) multiply the counts of the tables before the
    noise is added, so that one release can measure some more precisely.
    """

    vault: HexDigest
    number: Number
    cliques: Annotated[Cliques, msgspec.Meta(min_length=1)]
    release: Gaussian | Laplace | Exact
    weights: Annotated[tuple[Annotated[int, msgspec.Meta(ge=1, le=64)], ...], msgspec.Meta(max_length=2**16)] = ()

    @property
    def times(self) -> tuple[int, ...]:
        """The weight of each table."""
        return self.weights or (1,) * len(self.cliques)

    def check(self) -> None:
        """Raise :class:`Refused` unless ``weights`` is empty or has one weight for each table."""
        if len(self.times) != len(self.cliques):
            raise Refused(
                f"{len(self.weights)} weights are given for {len(self.cliques)} tables; give one for each table, or "
                "none"
            )

    def norms(self, schema: Schema, change: ProtectedChange) -> Norms:
        """Return how far one person can move the vector of all weighted tables."""
        query = Counts.of(len(schema.stored), self.cliques, self.weights)  # a record moves as much over any axes
        return protect(query.sensitivity(schema), change, pooled=True)


class SelectTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="draw", eq=False):
    """A question to three servers: select privately a table far from its expected counts.

    Candidate i is the table x of ``cliques[i]``, a tuple of column positions in the schema. Its utility is weights[i] *
    (isqrt(sum (x - expected)^2) - penalties[i]), an integer number of weighted records (records times a weight); tables
    with higher utilities are likelier to be drawn. ``expected`` (int32) holds all expected tables, one after the other,
    each flat in C order, with the columns in the order of its clique; ``weights`` and ``penalties`` (int32) have one
    number for each candidate. ``number`` is the question's number in the vault from 0. With the release
    :class:`~fedsynth.privacy.release.Exact`, the table of the highest utility is taken, without noise.
    """

    vault: HexDigest
    number: Number
    cliques: Annotated[Cliques, msgspec.Meta(min_length=1)]
    expected: NDArray[np.int32]
    weights: NDArray[np.int32]
    penalties: NDArray[np.int32]
    release: Exponential | Exact

    @property
    def times(self) -> tuple[int, ...]:
        """Always 1: counts are compared as they are (:attr:`OpenTables.times`)."""
        return (1,) * len(self.cliques)

    def check(self) -> None:
        """Raise :class:`Refused` for too many candidates, and for weights or penalties with which a number could wrap.

        The expected counts are checked by :meth:`tables`, where the sizes of the tables are known.
        """
        if len(self.cliques) > MOST_CANDIDATES:
            raise Refused(f"a draw has {len(self.cliques)} candidates; give at most {MOST_CANDIDATES}")
        for name, numbers, low, high in (
            ("weights", self.weights, 1, MOST_WEIGHT),
            ("penalties", self.penalties, 0, MOST_PENALTY),
        ):
            if numbers.shape != (len(self.cliques),):
                raise Refused(f"{numbers.size} {name} are given for {len(self.cliques)} candidates; give one for each")
            if not low <= int(numbers.min()) <= int(numbers.max()) <= high:
                raise Refused(f"{name} must lie between {low} and {high}, so that no sum can wrap")

    def tables(self, cells: Sequence[int]) -> list[Integers]:
        """Return the expected table of each candidate, int64 and flat.

        ``cells`` has the number of cells of each. Raises :class:`Refused` for another number of expected counts, or a
        negative one.
        """
        if self.expected.shape != (sum(cells),):
            raise Refused(f"{self.expected.size} expected counts are given for {sum(cells)} cells; give one for each")
        if int(self.expected.min()) < 0:
            raise Refused("expected counts must be at least 0, so that no sum can wrap")
        return [table.astype(np.int64) for table in np.split(self.expected, np.cumsum(cells)[:-1])]

    def moved(self, change: ProtectedChange) -> int:
        """Return how far one person can move any single utility, in units of 1 / :data:`GRAIN` weighted record.

        Adding or removing the k rows of a person (at all sites) moves a table by at most k in the L2 norm, by the
        triangle inequality. Replacing them moves it by at most sqrt(2) k, since each row moves two cells by 1. The
        distance from a fixed table moves by no more. If a number moves by d, its floor (isqrt) moves by at most the
        ceiling of d. Weights are public, so a utility moves by at most this ceiling times the largest weight.
        """
        rows = change.unit.rows * change.unit.sites
        distance = rows if change.neighbours == "add-remove" else math.isqrt(2 * rows**2 - 1) + 1
        return GRAIN * distance * int(self.weights.max())

    def scale(self, change: ProtectedChange) -> float | None:
        """Return the scale of the Gumbel noise that servers 0 and 1 each add, in 1 / ``GRAIN`` weighted record.

        It is ``None`` for a draw without noise. Raises :class:`Refused` if the noise would be too large to be drawn
        exactly.
        """
        if isinstance(self.release, Exact):
            return None
        try:
            return gumbel_scale(self.moved(change), self.release.epsilon)
        except ValueError as error:
            raise Refused(
                f"this draw needs more noise than can be drawn exactly ({error}); spend more budget on it"
            ) from error


Question = OpenTables | SelectTable


class ServerStatement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One compute server's statement of a question and of its state; no share leaves a server unless all three agree.

    ``question`` is the digest (hex) of the whole question, and ``inputs`` that of a draw's expected counts, weights and
    penalties alone (:func:`inputs_of`). ``sites`` are those whose tables are in the vault, and ``held`` is the digest
    of the signed shares that these sites sent. ``spent`` is the total cost of the vault's earlier questions: rho, or
    epsilon if delta is 0.
    """

    vault: HexDigest
    number: Number
    question: HexDigest
    inputs: HexDigest
    sites: Sites
    held: HexDigest
    spent: float

    @property
    def body(self) -> bytes:
        """The encoded statement, which servers sign; equal statements have equal bytes."""
        return encode(self)


class SignedStatement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A server's statement with its signature of it."""

    statement: ServerStatement
    signature: Signature


def digest_of(question: Question) -> str:
    """Return the SHA-256 (hex) that names a question to three servers."""
    return hashlib.sha256(encode(question)).hexdigest()


def inputs_of(question: Question) -> str:
    """Return the SHA-256 (hex) of a draw's expected counts, weights and penalties; of no bytes for opened tables."""
    found = hashlib.sha256()
    if isinstance(question, SelectTable):
        for numbers in (question.expected, question.weights, question.penalties):
            found.update(len(numbers).to_bytes(8) + numbers.astype("<i4").tobytes())
    return found.hexdigest()


def noise_part(release: Release, norms: Norms) -> NoisePart | None:
    """Return the noise that each of three servers adds to tables that they open; ``None`` for a release without noise.

    The noise of any two servers together is what the release promises (:mod:`~fedsynth.secure.noise_shares`): each
    server adds half of the promised variance, or more in the cases that :func:`opened_std` names. Raises
    :class:`~fedsynth.errors.Unsupported` for a release that is not a noisy sum.
    """
    parts = share_of(release, norms, HONEST, HONEST).parts
    return parts[0] if parts else None


def opened_std(release: Release, norms: Norms) -> float:
    """Return the standard deviation of the noise in each cell of tables that three servers open, each adding noise.

    It is sqrt(1.5) times that of the release alone, or more for Gaussian noise of a sigma below 3 and Laplace noise of
    a scale above 4096.
    """
    part = noise_part(release, norms)
    return 0.0 if part is None else part.std * math.sqrt(3)


def price_of(release: Release, deposit: Deposit) -> float:
    """Return the cost of a release from a vault, in the unit of ``deposit`` (rho or epsilon).

    It is 0 if the deposit states no cost (a run without noise), and infinite without a finite cost in that unit.
    """
    if not deposit.rho and not deposit.epsilon:
        return 0.0
    cost = release.cost(Norms(1.0, 1.0))
    return cost.epsilon if deposit.epsilon else cost.rho


def largest_count(cells: int, sites: int) -> int:
    """Return the largest count that a site deals in a table of ``cells`` cells; larger counts are dealt as this one.

    The number is public: it depends on the table's shape and the number of ``sites`` in the roster. Sites' tables of
    such counts add up to at most :data:`MOST_RECORDS`. A record changes one cell by 1, and the smaller of a count and a
    constant changes by 1 or 0: the cap keeps the sensitivity of the table, and of every table summed from it. No site
    reaches it: with 2^14 sites and tables of 2^24 cells it is 2^18, with 100 sites and 2^20 cells 2^29.
    """
    return MOST_RECORDS // (max(1, sites) * cells)


def check_deposit(query: object) -> Counts:
    """Return ``query`` if three servers can hold its tables; raises :class:`InvalidParameter` otherwise.

    Weighted tables would count a record more than once. If a column were divided into bins in two ways, several tables
    would have the same columns but different cells, and :class:`ShareLayout`, which finds a table by its columns, would
    mix them.
    """
    if not isinstance(query, Counts) or query.weights:
        raise InvalidParameter("three servers hold tables without weights; deposit the tables unweighted")
    if len({axis.column for axis in query.axes}) < len(query.axes):
        raise InvalidParameter(
            "three servers hold each column over one axis only; deposit a single axis for each column"
        )
    return query


class ShareLayout:
    """Where each table of a vault lies in a server's vector of shares; also sums tables to ones of fewer columns.

    The tables follow each other, each flat in C order. ``cliques`` are their columns (positions in the schema),
    ``shapes`` their shapes, and ``cells`` is the length of the vector.
    """

    def __init__(self, query: Counts, schema: Schema) -> None:
        """Place the tables of ``query``."""
        self.cliques = tuple(query.cliques)
        self.shapes = tuple(query.shapes(schema))
        sizes = [math.prod(shape) for shape in self.shapes]
        self._start = [sum(sizes[:at]) for at in range(len(sizes))]
        self.cells = sum(sizes)

    def shape(self, clique: Clique) -> tuple[int, ...]:
        """Return the shape of the table of ``clique``; raises :class:`Refused` if no table has all its columns."""
        source, shape = self._source(clique)
        return tuple(shape[source.index(column)] for column in clique)

    def table(self, vector: Wide, clique: Clique) -> Wide:
        """Return the shares of the table of ``clique`` from the ``vector`` of all shares.

        The table is flat in C order, its axes in the order of ``clique``. It is the vault's first table with all these
        columns, summed over its other columns. Raises :class:`Refused` if there is none.
        """
        source, shape = self._source(clique)
        start = self._start[self.cliques.index(source)]
        table = vector[:, start : start + math.prod(shape)].reshape(2, *shape)
        axes = tuple(axis for axis, column in enumerate(source) if column not in clique)
        kept = [column for column in source if column in clique]
        found = summed(table, axes) if axes else table
        return found.transpose([0, *(1 + kept.index(column) for column in clique)]).reshape(2, -1)

    def _source(self, clique: Clique) -> tuple[Clique, tuple[int, ...]]:
        if len(set(clique)) == len(clique):
            for source, shape in self._of.items():
                if set(clique) <= set(source):
                    return source, shape
        raise Refused(f"columns {clique} were not deposited together; deposit one table that contains all of them")

    @cached_property
    def _of(self) -> Mapping[Clique, tuple[int, ...]]:
        return dict(zip(self.cliques, self.shapes, strict=True))
