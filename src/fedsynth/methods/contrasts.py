"""Contrasts: one signed number for each pair of columns, which finds dependent pairs where tables drown in noise.

Each column is halved, and its values are encoded as -1 and +1. The sum over rows of the product of two columns'
signs is the contrast of their 2 x 2 table (a Walsh-Hadamard coefficient, as in Barak et al. 2007, doi
10.1145/1265530.1265569). The margins of that table are known from the survey, so the contrast is all that the table
would add; measured directly it has half the noise of the table's own contrast, at the same privacy cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.cliques import Clique
from fedsynth.errors import InvalidParameter
from fedsynth.federation.query import Position, Query
from fedsynth.methods.measure import EXACT_STD, favoured_weights
from fedsynth.privacy.cost import Sensitivity
from fedsynth.rows import Rows
from fedsynth.schema.bins import MOST_COLUMNS, Axis, Floats, Integers

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.methods.survey import Survey
    from fedsynth.models.adaptive_bins import AdaptiveBins
    from fedsynth.schema import Schema
    from fedsynth.schema.columns import Column

_LARGEST_WEIGHT = 64

# ---------------------------------------------------------------------------------------------------------------------
# At the site


class Contrasts(Query, frozen=True):
    """Query for contrasts of pairs of halved columns: sums over rows of the product of two signs.

    Each of ``axes`` divides a column into two groups; a row's sign is -1 in group 0 and +1 in group 1. For the pair
    ``(i, j)`` of positions in ``axes``, the answer has the sum over rows of the product of their signs on axes i and j,
    which is n00 + n11 - n01 - n10 for the 2 x 2 table n of counts. The sums of pair k are multiplied by ``weights[k]``
    (an integer, 1 to 64; default: 1 each) before noise is added, and divided by it afterwards.
    """

    kind: ClassVar[str] = "contrasts"

    axes: Annotated[tuple[Axis, ...], msgspec.Meta(min_length=2, max_length=MOST_COLUMNS)]
    pairs: Annotated[tuple[tuple[Position, Position], ...], msgspec.Meta(min_length=1, max_length=2**18)]
    weights: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=1, le=_LARGEST_WEIGHT)], ...], msgspec.Meta(max_length=2**18)
    ] = ()

    def check(self, schema: Schema) -> None:
        """Refuse axes that do not halve their column, and pairs of axes that do not exist or occur twice.

        Raises :class:`InvalidParameter`, also for a wrong number of weights. Server and site call it before any privacy
        cost is charged.
        """
        for axis in self.axes:
            if axis.column >= len(schema.stored):
                raise InvalidParameter(
                    f"there is no column {axis.column}; the schema has columns 0 to {len(schema.stored) - 1}"
                )
            column = schema.stored[axis.column]
            axis.check(column.size, column.missing, column.is_number)
            if axis.size(column.size, column.missing) != 2:
                raise InvalidParameter(f"an axis of column {axis.column} must have two groups, to be halved")
        for first, second in self.pairs:
            if not first < second < len(self.axes):
                raise InvalidParameter(
                    f"invalid pair of axes ({first}, {second}): give two of the {len(self.axes)}, in ascending order"
                )
        if len(set(self.pairs)) < len(self.pairs):
            raise InvalidParameter("a pair of axes occurs twice; name each once, with a larger weight")
        if self.weights and len(self.weights) != len(self.pairs):
            raise InvalidParameter(f"{len(self.weights)} weights for {len(self.pairs)} pairs; give one each, or none")

    def sensitivity(self, schema: Schema) -> Sensitivity:
        """Return a bound on how far one record moves the answer, in L1 and L2.

        Adding or removing a record adds or removes one product of signs, -1 or +1, for each pair k, times its weight
        w_k: sum w_k in L1, and sqrt(sum w_k^2) in L2.

        Replacing a record by another one flips the signs of the axes in some set F. The product of a pair changes, by 2
        w_k, only if exactly one of its two axes is in F. No two pairs are equal, so at most f (m - f) of them have one
        axis in F, where m is the number of axes in any pair and f how many of these are in F: at most floor(m^2 / 4)
        pairs, of whatever weights. With c the smaller of this and the number of pairs, and S the sum of the c largest
        w_k (or w_k^2), the change is at most 2 S in L1, and 2 sqrt(S) in L2. A record outside the schema counts in no
        pair; replacing it moves each by w_k, which is less: there are at most m (m - 1) / 2 <= 2 c pairs, so that all
        w_k (or w_k^2) add up to at most 2 S (or 2 S <= 4 S).
        """
        weights = np.sort(np.array(self.weights or (1,) * len(self.pairs), dtype=np.float64))[::-1]
        axes = len({at for pair in self.pairs for at in pair})
        changed = weights[: axes * axes // 4]
        return Sensitivity(
            l1=float(weights.sum()),
            l2=math.sqrt((weights**2).sum()),
            replace_l1=2 * float(changed.sum()),
            replace_l2=2 * math.sqrt((changed**2).sum()),
        )

    def cells(self, schema: Schema) -> int:
        """Return the number of integers in a site's answer: one for each pair."""
        return len(self.pairs)

    def row_range(self, schema: Schema) -> tuple[int, int]:
        """Return minus and plus the largest weight: one record moves a sum by its pair's weight, up or down."""
        most = max(self.weights, default=1)
        return -most, most

    def answer(self, rows: Rows) -> Integers:
        """Return a site's exact sums, each times its weight, in the order of ``pairs``, int64."""
        sums = np.array([_contrast(table) for table in rows.tables(self.axes, self.pairs)], dtype=np.int64)
        return sums * np.array(self.weights, dtype=np.int64) if self.weights else sums

    def split(self, schema: Schema, flat: NDArray[Any]) -> list[Floats]:
        """Return one array in a list: the sum of each pair divided by its weight, so in records, shape ``(pairs,)``."""
        return [flat / np.array(self.weights or (1,), dtype=np.float64)]

    def stds(self, std: float) -> list[float]:
        """Return a list with the largest standard deviation of the noise in the sums of :meth:`split`, in records.

        ``std`` is the noise's standard deviation in each number of the flat answer; that of a sum is ``std`` divided by
        its pair's weight.
        """
        return [std / min(self.weights, default=1)]


def _contrast(table: NDArray[np.int64]) -> int:
    return int(table[0, 0] + table[1, 1] - table[0, 1] - table[1, 0])


# ---------------------------------------------------------------------------------------------------------------------
# At the server

CLEAR = 3.0  # standard deviations of the noise from which on a contrast shows dependence


@dataclass(frozen=True, eq=False)
class PairContrasts:
    """Result of :func:`contrasts`: how strongly the columns of each pair depend on each other, from one or two numbers.

    By pair of column positions, ``strengths`` holds the absolute covariance of the columns' signs times the number of
    rows, in records, the largest over the pair's halvings. ``clear`` are the pairs in which it exceeds ``CLEAR``
    standard deviations of its noise, strongest first.
    """

    strengths: dict[Clique, float]
    clear: tuple[Clique, ...]


class Halving(NamedTuple):
    """A division of a column into two groups: its ``axis``, and the estimated ``mean`` of its signs (-1 to 1)."""

    axis: Axis
    mean: float


def halvings(at: int, column: Column, cells: AdaptiveBins) -> list[Halving]:
    """Return one or two divisions of a column's values into halves, or none for a column of a single value.

    Values are divided where their cumulated estimated rows come closest to half of all: in their order (of numbers, or
    as a category lists them; missing values come first), and those of a category also in the order of their frequency,
    if that gives another division. ``at`` is the position of ``column``, and ``cells`` are its fine cells with the
    survey's counts.
    """
    size = len(cells.groups)
    if size < 2:
        return []
    orders = [np.roll(np.arange(size), int(column.missing))]
    if cells.grid is None:
        orders.append(np.argsort(-cells.counts, kind="stable"))
    found: list[Halving] = []
    total = float(cells.counts.sum()) or 1.0
    for order in orders:
        below = np.cumsum(cells.counts[order])[:-1]
        cut = int(np.abs(below - total / 2).argmin())
        groups = np.ones(size, dtype=np.int64)
        groups[order[: cut + 1]] = 0
        same = [one for one in found if one.axis.groups is not None and len(np.unique(one.axis.groups ^ groups)) == 1]
        if not same:
            found.append(Halving(Axis(at, cells.axis(at).cuts, groups), 1 - 2 * float(below[cut]) / total))
    return found


def contrasts(
    federation: Federation,
    found: Survey,
    pairs: Sequence[Clique],
    share: float,
    favoured: Sequence[bool] = (),
    favoured_share: float = 0.0,
) -> PairContrasts:
    """Release the contrasts of all ``pairs`` of columns in one noisy sum, for ``share`` of the budget.

    ``found`` is the survey's result, from whose counts the columns are halved (:func:`halvings`), each at its noisy
    median. A pair with an unordered column has two contrasts, one for each halving. ``favoured`` marks pairs whose
    contrasts get about the part ``favoured_share`` of the cost together, if they would get less.
    """
    schema = federation.schema
    ways = [halvings(at, column, cells) for at, (column, cells) in enumerate(zip(schema.stored, found.columns))]
    first = np.cumsum([0, *map(len, ways)])
    every = [one for of in ways for one in of]
    asked: list[tuple[int, int]] = []
    of: list[Clique] = []
    for pair in pairs:
        one, two = (len(ways[at]) for at in pair)
        for way in range(max(one, two) if one and two else 0):
            asked.append((int(first[pair[0]]) + min(way, one - 1), int(first[pair[1]]) + min(way, two - 1)))
            of.append(pair)
    strengths, scores = dict.fromkeys(pairs, 0.0), dict.fromkeys(pairs, 0.0)
    if asked:
        marks = dict(zip(pairs, favoured, strict=True)) if favoured else {}
        weights = favoured_weights([1.0] * len(asked), [marks.get(pair, False) for pair in of], favoured_share, federation.budget)
        query = Contrasts(tuple(one.axis for one in every), tuple(asked), weights)
        released = federation.sum(query, share)
        for pair, (i, j), value, weight in zip(of, asked, released.tables[0], weights, strict=True):
            covariance = abs(float(value) - found.total * every[i].mean * every[j].mean)
            strengths[pair] = max(strengths[pair], covariance)
            scores[pair] = max(scores[pair], covariance * weight / max(released.std, EXACT_STD))
    clear = sorted((pair for pair in pairs if scores[pair] > CLEAR), key=lambda pair: -strengths[pair])
    return PairContrasts(strengths, tuple(clear))
