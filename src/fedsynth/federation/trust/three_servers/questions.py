"""What three servers are asked: tables opened with noise, and draws by public numbers that no sum can wrap under.

Rule 1: a question names its vault and its number there. A server answers number n once, from n - 1 answered ones, and
    gives what it stored when it is asked again.
Rule 2: expected counts are integers of which a table has at most :data:`MOST_RECORDS`, weights from 1 to
    :data:`MOST_WEIGHT`, penalties from 0 to :data:`MOST_PENALTY`. Sites hold no more records together than a table may.
    A sum of squares is then below 2^50 and a utility below 2^43: nothing wraps, so that a draw tells of no cell whether
    it is above a threshold.
Rule 3: everything that the answer depends on is in the :class:`Roster`, which all three servers sign.
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
from fedsynth.federation.trust.noise_shares import Part, share_of
from fedsynth.federation.wire import HexDigest, Number, encode
from fedsynth.privacy.cost import Neighbours, Norms, Unit, protect
from fedsynth.privacy.noise import gumbel_scale
from fedsynth.privacy.release import Deposit, Exact, Exponential, Gaussian, Laplace, Release
from fedsynth.schema import Schema
from fedsynth.schema.bins import Integers

MOST_RECORDS = 2**24
"""Records that a table has at most, summed over sites: N_max."""
MOST_WEIGHT = 2**16
MOST_PENALTY = 2**25
GRAIN = 2**10
"""Parts of a weighted record in which utilities and their Gumbel numbers are counted."""
HONEST = 2
"""Servers whose noise alone must be what a release promises."""

Sites = Annotated[tuple[Annotated[str, msgspec.Meta(max_length=64)], ...], msgspec.Meta(max_length=2**14)]
Signature = Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]


class Open(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="open", eq=False):
    """Tables of deposited columns with noise, table i times ``weights[i]``, all for one ``release``."""

    vault: HexDigest
    number: Number
    cliques: Annotated[Cliques, msgspec.Meta(min_length=1)]
    release: Gaussian | Laplace | Exact
    weights: Annotated[tuple[Annotated[int, msgspec.Meta(ge=1, le=64)], ...], msgspec.Meta(max_length=2**16)] = ()

    @property
    def times(self) -> tuple[int, ...]:
        """How often each table is counted."""
        return self.weights or (1,) * len(self.cliques)

    def check(self) -> None:
        """Raise :class:`Refused` for weights of other tables."""
        if len(self.times) != len(self.cliques):
            raise Refused(f"{len(self.weights)} weights are given for {len(self.cliques)} tables")

    def norms(self, schema: Schema, unit: Unit, neighbours: Neighbours) -> Norms:
        """Return how far one person moves the tables."""
        query = Counts.of(len(schema.stored), self.cliques, self.weights)  # a record moves as much over any axes
        return protect(query.sensitivity(schema), unit, neighbours, pooled=True)


class Draw(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="draw", eq=False):
    """One of several candidates, drawn by how far its table x lies from the expected one.

    The utility of candidate i is weights[i] * (isqrt(sum (x - expected)^2) - penalties[i]), an integer in records times
    weight. ``expected`` holds all tables one after the other, each flat in C order with the columns in the order of
    its clique.
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
        """How often each table is counted: once."""
        return (1,) * len(self.cliques)

    def check(self) -> None:
        """Raise :class:`Refused` for numbers that are not one a candidate, or beyond their bounds (rule 2).

        What is bounded per table is checked where the tables' sizes are known: :meth:`tables`.
        """
        for name, numbers, low, high in (
            ("weights", self.weights, 1, MOST_WEIGHT),
            ("penalties", self.penalties, 0, MOST_PENALTY),
        ):
            if numbers.shape != (len(self.cliques),):
                raise Refused(f"{numbers.size} {name} are given for {len(self.cliques)} candidates")
            if not low <= int(numbers.min()) <= int(numbers.max()) <= high:
                raise Refused(f"{name} must lie between {low} and {high}, so that no sum can wrap")

    def tables(self, cells: Sequence[int]) -> list[Integers]:
        """Return the expected tables, given the candidates' numbers of cells; raises :class:`Refused` (rule 2)."""
        if self.expected.shape != (sum(cells),):
            raise Refused(f"{self.expected.size} expected counts are given for {sum(cells)} cells")
        found = [table.astype(np.int64) for table in np.split(self.expected, np.cumsum(cells)[:-1])]
        if int(self.expected.min()) < 0 or max(int(table.sum()) for table in found) > MOST_RECORDS:
            raise Refused(f"expected counts must be 0 or more, at most {MOST_RECORDS} a table, so that no sum can wrap")
        return found

    def moved(self, unit: Unit, neighbours: Neighbours) -> int:
        """Return how far one person moves any one utility, in parts of 1 / :data:`GRAIN`.

        The k rows of a person (at all sites) added or removed move a table by at most k in L2, by the triangle
        inequality; replaced, by at most sqrt(2) k, since each moves two cells by 1. The distance from a fixed table
        moves by no more, and where a number moves by d its floor, isqrt, moves by at most the ceiling of d. Weights
        are public, so that a utility moves by at most that times the largest weight.
        """
        rows = unit.rows * unit.sites
        distance = rows if neighbours == "add-remove" else math.isqrt(2 * rows**2 - 1) + 1
        return GRAIN * distance * int(self.weights.max())

    def scale(self, unit: Unit, neighbours: Neighbours) -> float | None:
        """Return the scale of each server's Gumbel numbers; ``None`` for a draw without noise."""
        if isinstance(self.release, Exact):
            return None
        try:
            return gumbel_scale(self.moved(unit, neighbours), self.release.epsilon)
        except ValueError as error:
            raise Refused(f"this draw has too much noise to be drawn exactly ({error}); pay more for it") from error


Question = Open | Draw


class Roster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a server says it was asked, before anything of its shares leaves; the three must say the same.

    ``question`` is the digest (hex) of the whole question, ``inputs`` of its public integers alone, ``held`` of what
    the ``sites`` dealt, as they signed it. ``spent`` is the price of what this vault has
    released so far: rho, or epsilon where delta is 0.
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
        """The bytes that are signed: one content has one encoding."""
        return encode(self)


class SignedRoster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A roster with the signature of the server that made it."""

    roster: Roster
    signature: Signature


def digest_of(question: Question) -> str:
    """Return the SHA-256 (hex) of a question."""
    return hashlib.sha256(encode(question)).hexdigest()


def inputs_of(question: Question) -> str:
    """Return the SHA-256 (hex) of the public integers of a question: all that a score is made of beside the shares."""
    found = hashlib.sha256()
    if isinstance(question, Draw):
        for numbers in (question.expected, question.weights, question.penalties):
            found.update(len(numbers).to_bytes(8) + numbers.astype("<i4").tobytes())
    return found.hexdigest()


def noise_part(release: Release, norms: Norms) -> Part | None:
    """Return the noise of one server of three, of which any two have the noise that the release promises.

    The rule is that of shares of noise (:mod:`~fedsynth.federation.trust.noise_shares`): half the variance each where
    the noise is large. ``None`` for a release without noise.
    """
    parts = share_of(release, norms, HONEST, HONEST).parts
    return parts[0] if parts else None


def opened_std(release: Release, norms: Norms) -> float:
    """Return the standard deviation of the noise in what three servers open: sqrt(1.5) times the release's own."""
    part = noise_part(release, norms)
    return 0.0 if part is None else part.std * math.sqrt(3)


def price_of(release: Release, deposit: Deposit) -> float:
    """Return what a release costs of a deposit: epsilon or rho, as it was made; infinite where it has no such price."""
    if not deposit.rho and not deposit.epsilon:
        return 0.0
    cost = release.cost(Norms(1.0, 1.0))
    return cost.epsilon if deposit.epsilon else cost.rho


def check_deposit(query: object) -> Counts:
    """Return a deposited query; raises :class:`InvalidParameter` for one that a record could move too far.

    Tables with weights count a record more than once. Of a column over two axes there are tables of the same columns
    and other cells: one that is asked for by its columns would be read across several (:class:`Layout`).
    """
    if not isinstance(query, Counts) or query.weights:
        raise InvalidParameter("three servers hold tables, each counted once; deposit them without weights")
    if len({axis.column for axis in query.axes}) < len(query.axes):
        raise InvalidParameter("three servers hold each column over one axis; deposit one for each")
    return query


class Layout:
    """Where the tables of a deposit lie in a vector, and how tables of fewer columns are summed from it."""

    def __init__(self, query: Counts, schema: Schema) -> None:
        """Lay out the tables of ``query``, one after the other, each flat in C order."""
        self.cliques = tuple(query.cliques)
        self.shapes = tuple(query.shapes(schema))
        sizes = [math.prod(shape) for shape in self.shapes]
        self._start = [sum(sizes[:at]) for at in range(len(sizes))]
        self.cells = sum(sizes)

    def shape(self, clique: Clique) -> tuple[int, ...]:
        """Return the shape of the table of some columns of a deposited clique."""
        source, shape = self._source(clique)
        return tuple(shape[source.index(column)] for column in clique)

    def table(self, vector: NDArray[np.uint64], clique: Clique) -> NDArray[np.uint64]:
        """Return a table of a vector of shares, flat; raises :class:`Refused` for columns not deposited together."""
        source, shape = self._source(clique)
        start = self._start[self.cliques.index(source)]
        table = vector[start : start + math.prod(shape)].reshape(shape)
        axes = tuple(axis for axis, column in enumerate(source) if column not in clique)
        kept = [column for column in source if column in clique]
        summed = table.sum(axis=axes, dtype=np.uint64) if axes else table
        return summed.transpose([kept.index(column) for column in clique]).ravel()

    def _source(self, clique: Clique) -> tuple[Clique, tuple[int, ...]]:
        if len(set(clique)) == len(clique):
            for source, shape in self._of.items():
                if set(clique) <= set(source):
                    return source, shape
        raise Refused(f"columns {clique} were not deposited together; deposit a clique that contains them")

    @cached_property
    def _of(self) -> Mapping[Clique, tuple[int, ...]]:
        return dict(zip(self.cliques, self.shapes, strict=True))
