"""Contrasts: one signed number for each pair of columns, which finds dependence where tables drown in noise.

Each column is halved. The interaction of two halved columns (:mod:`fedsynth.methods.interactions`) is one number: half
the sum over rows of the product of two signs. It has half the noise of a 2 x 2 table, and a fraction of that of a finer
one, of which noise hides the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsynth.cliques import Clique
from fedsynth.methods.interactions import Interactions
from fedsynth.methods.measure import EXACT_STD, favoured_shares, weights_for
from fedsynth.schema.bins import Axis

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.methods.survey import Survey
    from fedsynth.models.adaptive_bins import AdaptiveBins
    from fedsynth.schema.columns import Column

CLEAR = 3.0  # standard deviations of the noise from which on a contrast shows dependence


@dataclass(frozen=True, eq=False)
class PairContrasts:
    """Result of :func:`contrasts`: how strongly the columns of each pair depend on each other, by one to three numbers.

    By pair of column positions, ``strengths`` holds the L2 distance, in records, of the 2 x 2 table of halved columns
    from that of independent ones: half the covariance of their signs times the number of rows, the largest over the
    pair's halvings. ``clear`` are the pairs in which it exceeds ``CLEAR`` standard deviations of its noise, strongest
    first.
    """

    strengths: dict[Clique, float]
    clear: tuple[Clique, ...]


@dataclass(frozen=True, eq=False)
class Halving:
    """A division of a column into two groups: its ``axis``, and the estimated ``mean`` of its signs (-1 to 1)."""

    axis: Axis
    mean: float


def halvings(at: int, column: Column, cells: AdaptiveBins) -> list[Halving]:
    """Return one or three divisions of a column's values into halves, or none for a column of a single value.

    Values are divided where their cumulated estimated rows come closest to half of all: in their order (of numbers, or
    as a category lists them; missing values come first). Those of a category are also divided in the order of their
    frequency, and with every other one of that order first: of several values about equally common, one division may
    have those on one side between which another column differs. Equal divisions are the same object. ``cells`` are the
    fine cells of ``column``, at the position ``at``.
    """
    size = len(cells.groups)
    if size < 2:
        return []
    orders = [np.roll(np.arange(size), int(column.missing))]
    if cells.grid is None:
        common = np.argsort(-cells.counts, kind="stable")
        orders += [common, np.concatenate([common[::2], common[1::2]])]
    made: dict[bytes, Halving] = {}
    found = []
    total = float(cells.counts.sum()) or 1.0
    for order in orders:
        below = np.cumsum(cells.counts[order])[:-1]
        cut = int(np.abs(below - total / 2).argmin())
        groups = np.ones(size, dtype=np.int64)
        groups[order[: cut + 1]] = 0
        division = (groups ^ groups[0]).tobytes()  # the same for both of its halves
        halving = Halving(Axis(at, cells.axis(at).cuts, groups), 1 - 2 * float(below[cut]) / total)
        found.append(made.setdefault(division, halving))
    return found


def contrasts(
    federation: Federation,
    found: Survey,
    pairs: Sequence[Clique],
    share: float,
    favoured: Sequence[bool],
    favoured_share: float,
) -> PairContrasts:
    """Release the contrasts of all ``pairs`` of columns in one noisy sum, for ``share`` of the budget.

    Columns are halved by the counts of the survey ``found`` (:func:`halvings`), each at its noisy median. A pair with a
    category has up to three contrasts, one for each halving. ``favoured`` marks pairs whose contrasts get about the
    part ``favoured_share`` of the cost together, if they would get less.
    """
    columns = zip(federation.schema.stored, found.columns, strict=True)
    ways = [halvings(at, column, cells) for at, (column, cells) in enumerate(columns)]
    strengths = dict.fromkeys(pairs, 0.0)
    scores = dict.fromkeys(pairs, 0.0)
    every = list(dict.fromkeys(one for of in ways for one in of))
    place = {one: at for at, one in enumerate(every)}
    asked: list[Clique] = []
    of: list[Clique] = []
    for pair in pairs:
        first, second = (ways[at] for at in pair)
        many = max(len(first), len(second)) if first and second else 0
        both = dict.fromkeys((place[first[k % len(first)]], place[second[k % len(second)]]) for k in range(many))
        asked += both
        of += [pair] * len(both)
    if asked:
        marks = dict(zip(pairs, favoured, strict=True))
        even = [1.0] * len(asked)
        prices = favoured_shares(even, [marks[pair] for pair in of], favoured_share)
        query = Interactions.over([one.axis for one in every], asked, weights=weights_for(prices, federation.budget))
        released = federation.sum(query, share)
        for pair, (i, j), value, std in zip(of, asked, released.tables, released.stds, strict=True):
            distance = abs(float(value[0, 0]) - found.total * every[i].mean * every[j].mean / 2)
            strengths[pair] = max(strengths[pair], distance)
            scores[pair] = max(scores[pair], distance / max(std, EXACT_STD))
    clear = sorted((pair for pair in pairs if scores[pair] > CLEAR), key=lambda pair: -strengths[pair])
    return PairContrasts(strengths, tuple(clear))
