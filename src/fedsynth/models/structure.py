"""Structure learning: the best directed network with at most k parents per column.

Scores are sums over columns of ``score(column, parents)``. Given an order of the columns, each column can therefore
choose its best parents among the columns before it. The best order is found exactly by dynamic programming over sets of
columns (Silander & Myllymäki, UAI 2006, arXiv 1206.6875) for up to 20 columns (``EXACT``), and greedily with local
moves for more. With one parent per column and symmetric scores the result is a maximum spanning tree (Chow & Liu, doi
10.1109/TIT.1968.1054142).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter
from fedsynth.models.estimate import Measurement
from fedsynth.models.gum import consistent

Array = NDArray[np.float64]
Parents = tuple[int, ...]
EXACT = 20  # most columns of exact search; 2^20 sets take about 4 CPU seconds and 170 MB
_TIE = 1 + 1e-12  # rounding tolerance for orders of equal weight, of which the first one wins
_SWEEPS = 10  # of local moves, if the search is not exact


@dataclass(frozen=True)
class Structure:
    """The directed graph of a Bayesian network over columns 0, 1, ...: each column's parents, and an order of sampling.

    ``order`` lists all columns such that parents come first. ``parents[j]`` is the sorted tuple of the parents of
    column j (not of the column at place j of the order). Raises :class:`InvalidParameter` for an order that is no
    permutation of the columns or has a column before one of its parents.
    """

    order: tuple[int, ...]
    parents: tuple[Parents, ...]

    def __post_init__(self) -> None:
        if sorted(self.order) != list(range(len(self.parents))):
            raise InvalidParameter(f"order {self.order} is not a permutation of the {len(self.parents)} columns")
        seen: set[int] = set()
        for column in self.order:
            if not seen.issuperset(self.parents[column]):
                raise InvalidParameter(f"column {column} comes before its parents {self.parents[column]}")
            seen.add(column)

    @property
    def cliques(self) -> tuple[Parents, ...]:
        """Each column together with its parents, as a sorted tuple, in the order of sampling."""
        return tuple(tuple(sorted((column, *self.parents[column]))) for column in self.order)


def mutual_information(table: Array) -> float:
    """Return the mutual information, in nats, of a table's first axis and all others together; 0 for an empty table."""
    flat = table.reshape(len(table), -1)
    total = flat.sum()
    if not total > 0:
        return 0.0
    joint = flat / total
    rows, columns = np.nonzero(joint)
    held = joint[rows, columns]
    independent = joint.sum(axis=1)[rows] * joint.sum(axis=0)[columns]
    return max(0.0, float((held * np.log(held / independent)).sum()))


def dependences(
    one_way: Sequence[Measurement], pairs: Sequence[Measurement], total: float, rng: np.random.Generator
) -> Array:
    """Return the estimated mutual information, in nats, of every pair of columns, corrected for the bias due to noise.

    The matrix, shape ``(columns, columns)``, is symmetric with zeros on the diagonal and for pairs without a table;
    entries may be negative. The noisy tables of about ``total`` rows are first made non-negative with equal counts of
    each column, which removes more noise than clipping or projecting each table by itself. The remaining noise looks
    like dependence, and more so for pairs with more cells. The same computation is therefore done on tables of
    independent columns with noise drawn from ``rng``, and its result subtracted.
    """
    known = consistent([*one_way, *pairs], total)
    share = {table.clique[0]: known[table.clique] / total for table in one_way}
    independent = [
        Measurement(pair.clique, total * _outer(share, pair) + rng.normal(0.0, pair.std, pair.values.shape), pair.std)
        for pair in pairs
    ]
    noise = consistent([*one_way, *independent], total)
    weights = np.zeros((len(one_way), len(one_way)))
    for pair in pairs:
        found = mutual_information(known[pair.clique]) - mutual_information(noise[pair.clique])
        weights[pair.clique] = weights[pair.clique[::-1]] = found
    return weights


def _outer(share: Mapping[int, Array], pair: Measurement) -> Array:
    first, second = pair.clique
    return np.outer(share[first], share[second])


def best_structure(weights: Array, most: int, sizes: Sequence[int], max_cells: float = math.inf) -> Structure:
    """Return the network of largest total weight in which each column has at most ``most`` parents.

    ``weights[i, j]`` is the value of parent j for column i (the diagonal is ignored); the values of parents add up, and
    parents of value 0 or less are left out. ``sizes`` holds each column's number of codes; a column and its parents
    together have at most ``max_cells`` combinations of codes. The objective is that of the FedBN thesis. The optimum is
    exact for up to 20 columns, and for one parent with any number of columns; otherwise the search is heuristic. Raises
    :class:`InvalidParameter` for a negative ``most``.
    """
    if most < 0:
        raise InvalidParameter(f"a column cannot have {most} parents; give 0 or more")
    choices = ParentSets.of(weights, most, sizes, max_cells)
    if most <= 1:
        return choices.structure(_tree_order(choices))
    if len(weights) <= EXACT:
        return choices.structure(_exact_order(choices))
    return choices.structure(_improved(choices, _greedy_order(choices)))


@dataclass(frozen=True, eq=False)
class ParentSets:
    """Each column's possible sets of parents, best first: what the search for the best network looks up.

    ``by_column[j]`` lists, for column j, tuples of the set's value (the sum of its parents' weights), the set as a bit
    mask (bit i for column i), and the set as a sorted tuple.
    """

    by_column: tuple[tuple[tuple[float, int, Parents], ...], ...]

    @classmethod
    def of(cls, weights: Array, most: int, sizes: Sequence[int], max_cells: float) -> ParentSets:
        """List each column's possible sets of parents; sets of two or more are of its 20 heaviest candidates."""
        candidates = []
        for column, row in enumerate(weights):
            able = [j for j in range(len(row)) if j != column and row[j] > 0 and sizes[column] * sizes[j] <= max_cells]
            able.sort(key=lambda j: (-row[j], j))
            sets: list[Parents] = [(j,) for j in able] if most else []
            for size in range(2, most + 1):
                sets += [
                    tuple(sorted(group))
                    for group in itertools.combinations(able[:EXACT], size)
                    if math.prod(sizes[j] for j in group) * sizes[column] <= max_cells
                ]
            entries = [(math.fsum(row[j] for j in group), sum(1 << j for j in group), group) for group in sets]
            candidates.append(tuple(sorted(entries, key=lambda entry: (-entry[0], entry[2]))))
        return cls(tuple(candidates))

    def best(self, column: int, before: int) -> tuple[float, int, Parents]:
        """Return the entry of the best set of parents among the columns ``before`` (a bit mask), or of no parents."""
        return next((entry for entry in self.by_column[column] if not entry[1] & ~before), (0.0, 0, ()))

    def structure(self, order: Sequence[int]) -> Structure:
        """Return the heaviest network in which parents precede their children in ``order``."""
        parents: list[Parents] = [()] * len(order)
        before = 0
        for column in order:
            parents[column] = self.best(column, before)[2]
            before |= 1 << column
        return Structure(tuple(order), tuple(parents))

    def best_weight(self, order: Sequence[int]) -> float:
        """Return the total weight of the network that :meth:`structure` returns."""
        total, before = 0.0, 0
        for column in order:
            total += self.best(column, before)[0]
            before |= 1 << column
        return total


def _tree_order(choices: ParentSets) -> list[int]:
    """Return an order of a maximum spanning forest: each tree starts with its heaviest column."""
    from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

    count = len(choices.by_column)
    weight = np.zeros((count, count))
    for column, sets in enumerate(choices.by_column):
        for worth, _, (parent,) in sets:
            weight[column, parent] = worth
    # A sparse graph drops edges of weight 0, so the heaviest edge gets cost 1.
    costs = np.where(weight > 0, weight.max(initial=0.0) - weight + 1.0, 0.0)
    tree = minimum_spanning_tree(costs)
    order: list[int] = []
    for root in np.argsort(-weight.sum(axis=1), kind="stable").tolist():
        if root not in order:
            order += breadth_first_order(tree, root, directed=False, return_predecessors=False).tolist()
    return order


def _exact_order(choices: ParentSets) -> list[int]:
    """Return the best order, by dynamic programming over sets of columns, smallest sets first."""
    count = len(choices.by_column)
    sets = np.arange(1 << count)
    worth = np.zeros((count, 1 << count))
    for column, entries in enumerate(choices.by_column):
        for value, bits, _ in reversed(entries):
            worth[column, bits] = value
        for other in range(count):  # the value of a set of parents is available in all larger sets of columns
            halves = worth[column].reshape(-1, 2, 1 << other)
            np.maximum(halves[:, 1], halves[:, 0], out=halves[:, 1])
    best = np.full(1 << count, -np.inf)
    last = np.zeros(1 << count, dtype=np.int8)
    best[0] = 0.0
    members = np.bitwise_count(sets)
    for size in range(count):
        layer = sets[members == size]
        for column in range(count):
            smaller = layer[(layer >> column & 1) == 0]
            larger = smaller | 1 << column
            value = best[smaller] + worth[column, smaller]
            better = value > best[larger] * _TIE
            best[larger[better]] = value[better]
            last[larger[better]] = column
    order, rest = [], (1 << count) - 1
    while rest:
        order.append(int(last[rest]))
        rest &= ~(1 << order[-1])
    return order[::-1]


def _greedy_order(choices: ParentSets) -> list[int]:
    """Return the best of the orders that start at each column in turn and continue with the largest gain.

    For every set of parents, the number of its members that are not placed yet is maintained; placing a column affects
    only the sets that contain it.
    """
    count = len(choices.by_column)
    owner = np.repeat(np.arange(count), [len(sets) for sets in choices.by_column])
    worth = np.array([value for sets in choices.by_column for value, _, _ in sets])
    sets = [members for of_column in choices.by_column for _, _, members in of_column]
    lengths = np.array([len(members) for members in sets], dtype=np.int64)
    members = np.array([column for group in sets for column in group], dtype=np.int64)
    by_member = np.argsort(members, kind="stable")
    holding = np.split(np.repeat(np.arange(len(sets)), lengths)[by_member], _ends(members, count))
    orders: list[tuple[float, list[int]]] = []
    for root in range(count):
        gain, missing = np.zeros(count), lengths.copy()
        order, total, column = [root], 0.0, root
        gain[root] = -np.inf
        for _ in range(count - 1):
            missing[holding[column]] -= 1
            complete = holding[column][missing[holding[column]] == 0]
            open_ = complete[gain[owner[complete]] > -np.inf]
            np.maximum.at(gain, owner[open_], worth[open_])
            column = int(np.argmax(gain))
            total += float(gain[column])
            gain[column] = -np.inf
            order.append(column)
        orders.append((total, order))
    return max(orders, key=lambda candidate: candidate[0])[1]


def _ends(members: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return the end of each run of 0, 1, ... in the sorted ``members``, except for the last run."""
    ends: NDArray[np.int64] = np.cumsum(np.bincount(members, minlength=count))[:-1]
    return ends


def _improved(choices: ParentSets, order: list[int]) -> list[int]:
    """Return the order after moving single columns to better places, until none improves or ``_SWEEPS`` are done.

    Moving a column changes the available parents only of the columns between its old and its new place. Each of these
    has one value with the moved column before it and one without.
    """
    best = choices.best_weight(order)
    places = np.arange(len(order))
    for _ in range(_SWEEPS):
        before = best
        for column in list(order):
            rest = [other for other in order if other != column]
            own, without, with_it, placed = [], [], [], 0
            for other in rest:
                own.append(choices.best(column, placed)[0])
                without.append(choices.best(other, placed)[0])
                with_it.append(choices.best(other, placed | 1 << column)[0])
                placed |= 1 << other
            own.append(choices.best(column, placed)[0])
            # Row t: the value of the column at each place if the moved column is at place t.
            worth = np.where(places[:, None] > places, np.array([*without, 0.0]), np.array([0.0, *with_it]))
            worth[places, places] = own
            totals = np.cumsum(worth, axis=1)[:, -1]
            at = int(np.argmax(totals))
            if totals[at] > best * _TIE:
                best, order = float(totals[at]), [*rest[:at], column, *rest[at:]]
        if best <= before:
            break
    return order
