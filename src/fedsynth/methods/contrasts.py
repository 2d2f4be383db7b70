"""Contrasts: one signed number for each pair of columns, which finds dependence where tables drown in noise.

Each column is halved. The interaction of two halved columns (:mod:`fedsynth.methods.interactions`) is one number: half
the sum over rows of the product of two signs. It has half the noise of a 2 x 2 table, and a fraction of that of a finer
one, of which noise hides the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsynth.cliques import Clique, all_marginals
from fedsynth.methods.interactions import MOST_CONTRASTS, Contrasts, Interactions
from fedsynth.methods.measure import EXACT_STD, weights_for
from fedsynth.rows import pairs_of
from fedsynth.schema.bins import MOST_COLUMNS, Axis, Floats, Integers

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.methods.survey import Survey
    from fedsynth.models.adaptive_bins import AdaptiveBins
    from fedsynth.privacy.cost import Budget
    from fedsynth.schema.columns import Column

CLEAR = 2.5  # standard deviations of the noise from which on a contrast shows dependence


@dataclass(frozen=True, eq=False)
class PairContrasts:
    """Result of :func:`contrasts`: how strongly the columns of each pair depend on each other, by one to three numbers.

    By pair of column positions, ``strengths`` holds the L2 distance, in records, of the 2 x 2 table of halved columns
    from that of independent ones: half the covariance of their signs times the number of rows, the largest over the
    pair's halvings. ``clear`` are the pairs in which it exceeds ``CLEAR`` standard deviations of its noise, strongest
    first. The noise in the columns' own distributions counts: that of a skewed column looks like dependence.
    """

    strengths: dict[Clique, float]
    clear: tuple[Clique, ...]


@dataclass(frozen=True, eq=False)
class Halving:
    """A division of a column into two groups: its ``axis``, and the estimated ``mean`` of its signs (-1 to 1).

    ``variance`` is that of the noise in the estimated number of records of either group.
    """

    axis: Axis
    mean: float
    variance: float


def halvings(at: int, column: Column, cells: AdaptiveBins, most: int) -> list[Halving]:
    """Return one division of a column's values into halves, ``most`` of a category, or none of a single value.

    Values are divided where their cumulated estimated rows come closest to half of all: in their order (of numbers, or
    as a category lists them; missing values come first). Those of a category that is not declared ordered are also
    divided in the order of their frequency, and with every other one of that order first: of several values about
    equally common, one division may have those on one side between which another column differs. If one value has more
    than half of the rows, all these would only tell it from the others, and the first, second and third commonest value
    are each divided from all others instead. Equal divisions are the same object. ``cells`` are the fine cells of
    ``column``, at the position ``at``.
    """
    from fedsynth.models.adaptive_bins import START

    size = len(cells.groups)
    if size < 2:
        return []
    total = float(cells.counts.sum()) or 1.0
    parts = [_first_half(np.roll(np.arange(size), int(column.missing)), cells.counts)]
    if column.is_nominal:
        common = np.argsort(-cells.counts, kind="stable")
        parts += [_first_half(order, cells.counts) for order in (common, np.concatenate([common[::2], common[1::2]]))]
        if cells.counts[common[0]] > total / 2:
            parts = [common[:1], common[1:2], common[min(2, size - 1) :][:1]]
    different: dict[bytes, Halving] = {}
    halved = []
    for part in parts[:most]:
        groups = np.ones(size, dtype=np.int64)
        groups[part] = 0
        division = (groups ^ groups[0]).tobytes()  # the same for both of its halves
        # The counts of n cells were made to add up to the known total; of a number, those of the first level are meant.
        n = min(size, START)
        many = min(len(part), size - len(part), n / 2)
        variance = float(cells.variances.mean()) * many * (n - many) / n
        halving = Halving(_axis(at, cells, groups), 1 - 2 * float(cells.counts[part].sum()) / total, variance)
        halved.append(different.setdefault(division, halving))
    return halved


def _first_half(order: Integers, counts: Floats) -> Integers:
    """Return the first of the cells in ``order`` whose ``counts`` together come closest to half of all."""
    below = np.cumsum(counts[order])
    return order[: int(np.abs(below[:-1] - below[-1] / 2).argmin()) + 1]


def _axis(at: int, cells: AdaptiveBins, groups: Integers) -> Axis:
    """Return the axis on which fine cells are in ``groups``, with as few cut points as these need."""
    if cells.grid is None:
        return Axis(at, None, groups)
    size = len(cells.grid)
    last = np.append(np.flatnonzero(np.diff(groups[:size])), size - 1)
    return Axis(at, cells.grid.cuts[last], np.concatenate([groups[last], groups[size:]]))


def contrasts(
    federation: Federation,
    surveyed: Survey,
    most: int,
    share: float,
    favoured: Sequence[Clique],
    favoured_share: float,
) -> PairContrasts:
    """Release the contrasts of all pairs of columns in one noisy sum, for ``share`` of the budget.

    Columns are halved by their counts as ``surveyed`` (:func:`halvings`), each at its noisy median. A pair with a
    category has up to ``most`` contrasts, one for each halving. The pairs ``favoured`` are counted once more, if need
    be, so that their contrasts get about the part ``favoured_share`` of the cost together. Nothing is asked, and no
    pair is known, if fewer than two columns have two values.
    """
    columns = zip(federation.schema.stored, surveyed.columns, strict=True)
    halved = [halvings(at, column, cells, most) for at, (column, cells) in enumerate(columns)]
    different = list(dict.fromkeys(halving for column in halved for halving in column))
    position = {halving: at for at, halving in enumerate(different)}
    places = {at: [position[halving] for halving in column] for at, column in enumerate(halved) if column}
    blocks = _favouring(list(_blocks(places)), places, favoured, favoured_share, federation.budget)
    if not blocks:
        return PairContrasts({}, ())
    query = Interactions(tuple(halving.axis for halving in different), contrasts=tuple(blocks))
    released = federation.sum(query, share)
    pairs, values, stds = _averages(blocks, released.tables, released.stds)
    (first, second), column = pairs.T, np.array([halving.axis.column for halving in different])
    mean, variance = (np.array([getattr(halving, name) for halving in different]) for name in ("mean", "variance"))
    distances = np.abs(values - surveyed.total * mean[first] * mean[second] / 2)
    noise = np.sqrt(stds**2 + mean[first] ** 2 * variance[second] + mean[second] ** 2 * variance[first])
    largest, scores = np.zeros((2, len(halved), len(halved)))
    cell = tuple(np.sort(column[pairs], axis=1).T)
    np.maximum.at(largest, cell, distances)
    np.maximum.at(scores, cell, distances / noise)
    strengths = {pair: float(largest[pair]) for pair in all_marginals(len(halved), 2)}
    dependent = [pair for pair in strengths if scores[pair] > CLEAR]
    return PairContrasts(strengths, tuple(sorted(dependent, key=lambda pair: -strengths[pair])))


def most_halvings(columns: int, favoured: int) -> int:
    """Return how many halvings of each of so many columns one question has room for; 0 if it has not for all pairs.

    ``favoured`` is the number of pairs whose contrasts may be counted once more.
    """
    contrasted = columns * (columns - 1) // 2 + favoured
    return min(MOST_COLUMNS // max(columns, 1), MOST_CONTRASTS // max(contrasted, 1))


def _blocks(places: Mapping[int, Sequence[int]], first: int | None = None) -> Iterator[Contrasts]:
    """Yield the contrasts of all pairs of columns or, with ``first``, of this column with each of the others.

    ``places`` are the positions of each column's halvings. The k-th halvings of two columns are compared, unless both
    were before; a column of fewer begins again with its first one. There are none of fewer than two columns.
    """
    if len(places) < 2:
        return
    for k in range(max(map(len, places.values()))):
        axis = {at: halved[k % len(halved)] for at, halved in places.items()}
        new = {at for at, halved in places.items() if k < len(halved) and halved[k] not in halved[:k]}
        if not new:
            continue
        if first is not None:
            others = [at for at in places if at != first and new.intersection((first, at))]
            yield Contrasts((axis[first],), tuple(axis[at] for at in others))
        else:
            before = [at for at in places if at not in new]
            yield Contrasts(tuple(axis[at] for at in places if at in new), tuple(axis[at] for at in before))


def _favouring(
    blocks: Sequence[Contrasts],
    places: Mapping[int, Sequence[int]],
    favoured: Sequence[Clique],
    share: float,
    budget: Budget,
) -> list[Contrasts]:
    """Return ``blocks``, and more for the pairs ``favoured``, with weights that give these the part ``share``.

    If a contrast is counted twice, both times together have the price of one that is counted once with less noise.
    """
    partners: dict[int, set[int]] = {}
    for one, other in favoured:
        if one in places and other in places:
            partners.setdefault(one, set()).add(other)
    again = [
        block
        for at, others in partners.items()
        for block in _blocks({column: places[column] for column in (at, *sorted(others))}, at)
    ]
    many, every = (sum(block.cells for block in counted) for counted in (again, blocks))
    # With a price of 1 for each contrast and p for one counted again, those of the favoured cost (1 + p) many of the
    # every + p many that all cost.
    if not many or (price := (share * every / many - 1) / (1 - share)) <= 0:
        return list(blocks)
    weights = weights_for([1.0, price], budget)
    weighted = [(block, weights[0]) for block in blocks] + [(block, weights[1]) for block in again]
    return [Contrasts(block.first, block.second, weight) for block, weight in weighted]


def _averages(
    blocks: Sequence[Contrasts], values: Sequence[Floats], stds: Sequence[float]
) -> tuple[Integers, Floats, Floats]:
    """Return the pairs of halvings in ``blocks``, each once, and their released values, averaged by inverse variance.

    Shapes ``(pairs, 2)``, ``(pairs,)`` and, for the standard deviation of the noise, ``(pairs,)``.
    """
    pairs = np.sort(np.concatenate([pairs_of((block.first, block.second)) for block in blocks]), axis=1)
    precision = np.repeat([max(std, EXACT_STD) ** -2 for std in stds], [block.cells for block in blocks])
    different, number = np.unique(pairs, axis=0, return_inverse=True)
    sums = np.bincount(number.ravel(), weights=precision)
    means = np.bincount(number.ravel(), weights=precision * np.concatenate(values)) / sums
    return different, means, 1 / np.sqrt(sums)
