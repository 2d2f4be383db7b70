"""Junction trees over the columns of a table, and exact marginals by message passing.

Used by :mod:`fedsynth.models.mrf` and :mod:`fedsynth.models.estimate`. Columns are integers, and a clique is a sorted
tuple of columns. Sets of columns are bit masks inside this module, because AIM asks for the size of about 160 junction
trees per round. Source: Koller and Friedman, Probabilistic Graphical Models (2009), chapters 9 (elimination) and 10
(clique trees).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from string import ascii_letters
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Clique = tuple[int, ...]
Floats = NDArray[np.float64]
Scalar = TypeVar("Scalar", bound=np.generic)


def maximal(cliques: Iterable[Sequence[int]]) -> tuple[Clique, ...]:
    """Return the cliques (sets of columns) that are contained in no other, as sorted tuples in sorted order."""
    kept: list[Clique] = []
    holders: defaultdict[int, list[int]] = defaultdict(list)  # by column, the masks of the kept cliques that contain it
    for clique in sorted({tuple(sorted(clique)) for clique in cliques}, key=lambda c: (-len(c), c)):
        mask = _mask(clique)
        if clique and not any(mask & other == mask for other in holders[clique[0]]):
            kept.append(clique)
            for column in clique:
                holders[column].append(mask)
    return tuple(sorted(kept))


def junction_tree_cells(sizes: Sequence[int], cliques: Iterable[Sequence[int]]) -> int:
    """Return the number of cells of the junction tree that a graphical model with these ``cliques`` needs.

    The result counts the cells of all maximal cliques of the triangulated graph; a column in no clique is a clique by
    itself. A cell takes 8 bytes: AIM's limit on the model's size is in these terms.
    """
    sizes = tuple(sizes)
    return _cells(sizes, _triangulate(sizes, _neighbours(len(sizes), map(_mask, cliques))))


class GrownTree:
    """Sizes of the junction trees of fixed ``cliques`` plus one more clique, for many candidates in turn.

    Two columns are neighbours if a clique contains both; a column is simplicial if its neighbours are neighbours of
    each other. Columns that are simplicial in the fixed cliques are eliminated only once. In the elimination tree, the
    parent of a column is the first of its neighbours to be eliminated after it. An additional clique affects only the
    elimination of its own columns and of their ancestors in this tree; only these remain and are triangulated anew, as
    in :func:`junction_tree_cells`, so the numbers are the same. Proof: a column outside the clique that is simplicial
    without the clique stays simplicial with it; the set of columns that simplicial elimination removes does not depend
    on their order, and neither do the cliques that they leave.
    """

    def __init__(self, sizes: Sequence[int], cliques: Iterable[Sequence[int]]) -> None:
        """Eliminate all simplicial columns of the fixed cliques."""
        self._sizes, masks = tuple(sizes), frozenset(map(_mask, cliques))
        self._holders: list[list[int]] = [[] for _ in self._sizes]
        for mask in masks:
            for column in _columns(mask):
                self._holders[column].append(mask)
        self._neighbours = _neighbours(len(self._sizes), masks)
        rest = dict(self._neighbours)
        easy = _eliminate_simplicial(rest, list(rest))
        self._rest = sum(1 << column for column in rest)
        rank = {column: at for at, column in enumerate(easy)}
        self._above: dict[int, int] = dict.fromkeys(rest, 0)  # for each column, itself and its ancestors as a mask
        for column in reversed(easy):
            others = [other for other in _columns(easy[column]) if other != column and other in rank]
            above = self._above[min(others, key=rank.__getitem__)] if others else 0
            self._above[column] = above | 1 << column
        largest = set(_without_subsets(list(easy.values())))
        self._easy = [(1 << column, mask) for column, mask in easy.items() if mask in largest]
        self._cells = {column: _cells(self._sizes, [mask]) for column, mask in easy.items() if mask in largest}
        self._all_cells = sum(self._cells.values())

    def holds(self, clique: Sequence[int]) -> bool:
        """Return whether one of the fixed cliques contains all columns of ``clique``."""
        mask = _mask(clique)
        return any(mask & other == mask for other in self._holders[clique[0]])

    def cells(self, clique: Sequence[int]) -> int:
        """Return the number of cells (8 bytes each) of the junction tree of the fixed cliques and ``clique``."""
        mask, uneliminated = _mask(clique), self._rest
        for column in clique:
            uneliminated |= self._above[column]
        columns = _columns(uneliminated)
        neighbours = {column: self._neighbours[column] & uneliminated for column in columns}
        for column in clique:
            neighbours[column] |= mask & ~(1 << column)
        known = {easy & uneliminated for column, easy in self._easy if not column & uneliminated}
        cells = self._all_cells - sum([self._cells.get(column, 0) for column in columns])
        return cells + _cells(self._sizes, _triangulate(self._sizes, neighbours, known))


def _mask(clique: Iterable[int]) -> int:
    mask = 0
    for column in clique:
        mask |= 1 << column
    return mask


def _columns(mask: int) -> Clique:
    columns = []
    while mask:
        low = mask & -mask
        columns.append(low.bit_length() - 1)
        mask ^= low
    return tuple(columns)


def _cells(sizes: Sequence[int], masks: Iterable[int]) -> int:
    return sum(math.prod([sizes[column] for column in _columns(mask)]) for mask in masks)


def _neighbours(columns: int, masks: Iterable[int]) -> dict[int, int]:
    """Return each column's neighbours, as a mask, in the graph whose edges join the columns of every clique."""
    neighbours = dict.fromkeys(range(columns), 0)
    for mask in masks:
        for column in _columns(mask):
            neighbours[column] |= mask
    return {column: around & ~(1 << column) for column, around in neighbours.items()}


def _triangulate(sizes: tuple[int, ...], neighbours: dict[int, int], known: Iterable[int] = ()) -> list[int]:
    """Return the maximal cliques (masks) of a triangulation with few cells, except those inside a ``known`` clique.

    Simplicial columns, whose neighbours are pairwise adjacent, are eliminated first (this loses no optimal
    triangulation). The rest is eliminated greedily in two ways, by clique cells and by added edges, and the smaller
    result is returned. Modifies ``neighbours``.
    """
    easy = list(_eliminate_simplicial(neighbours, list(neighbours)).values())
    if not neighbours:
        return _without_subsets(easy, known)
    choices = [_eliminate(sizes, dict(neighbours), by_fill) for by_fill in (False, True)]
    return min((_without_subsets(easy + hard, known) for hard in choices), key=lambda masks: _cells(sizes, masks))


def _without_subsets(masks: list[int], known: Iterable[int] = ()) -> list[int]:
    """Drop masks inside a ``known`` or earlier mask (elimination makes no clique that contains an earlier one)."""
    kept: list[int] = []
    others = list(known)
    for mask in masks:
        if not any(mask & other == mask for other in others):
            kept.append(mask)
            others.append(mask)
    return kept


def _eliminate_simplicial(neighbours: dict[int, int], suspects: Iterable[int]) -> dict[int, int]:
    """Eliminate simplicial columns until there are none; return the cliques that they leave, by column.

    All columns that are simplicial at the same time are eliminated in one pass, which keeps elimination trees shallow:
    a path is eliminated from both ends.
    """
    cliques = {}
    while suspects:
        ready = []
        for column in sorted(suspects):
            around = neighbours[column]
            if not any(around & ~(neighbours[other] | 1 << other) for other in _columns(around)):
                ready.append(column)
        touched = 0
        for column in ready:  # each stays simplicial after the others have been eliminated
            around = neighbours.pop(column)
            cliques[column] = around | 1 << column
            for other in _columns(around):
                neighbours[other] &= ~(1 << column)
            touched |= around
        suspects = [column for column in _columns(touched) if column in neighbours]
    return cliques


def _eliminate(sizes: tuple[int, ...], neighbours: dict[int, int], by_fill: bool) -> list[int]:
    """Eliminate every column greedily (ties: lowest column), by its clique's cells or (``by_fill``) added edges.

    An added edge costs the number of codes of both its columns.
    """
    cliques: list[int] = []
    costs: dict[int, int] = {}
    changed = _mask(neighbours)
    while neighbours:
        for column in _columns(changed):
            around = neighbours[column]
            others = _columns(around)
            if by_fill:
                costs[column] = sum([sizes[o] * (around & ~neighbours[o] & ~(1 << o)).bit_count() for o in others])
            else:
                costs[column] = math.prod([sizes[other] for other in others]) * sizes[column]
        column = min(costs, key=lambda candidate: (costs[candidate], candidate))
        around = neighbours.pop(column)
        others = _columns(around)
        for other in others:
            neighbours[other] = (neighbours[other] | around) & ~(1 << column | 1 << other)
        gone = {column: around | 1 << column, **_eliminate_simplicial(neighbours, others)}
        cliques += gone.values()
        changed = 0
        for eliminated, mask in gone.items():
            changed |= mask
            del costs[eliminated]
        if by_fill:  # a column's added edges depend on the edges between its neighbours
            for other in _columns(changed):
                changed |= neighbours.get(other, 0)
        changed &= _mask(neighbours)
    return cliques


@dataclass(frozen=True)
class Node:
    """One clique of a junction tree, its place in the tree, and the memory layout of its table.

    ``parent`` and ``children`` are indices of nodes (:attr:`JunctionTree.nodes`); the root has parent -1. ``axes`` are
    the columns in memory order, and ``shape`` their numbers of codes. They form two parts: the ``separator``, which are
    the columns shared with the parent (it comes first if ``separator_first``), and the rest. The part with more cells
    comes last, so that inner loops are long; within each part, columns are sorted by their number of codes, ascending.
    """

    clique: Clique
    parent: int
    axes: Clique
    shape: tuple[int, ...]
    separator: Clique  # in memory order
    separator_first: bool
    children: tuple[int, ...]
    factors: tuple[int, ...]  # the factors assigned to this node, whose marginals are read from it

    @property
    def block(self) -> tuple[int, int]:
        """Shape of the table as a matrix: (separator, rest) if ``separator_first``, otherwise (rest, separator)."""
        split = len(self.separator) if self.separator_first else len(self.axes) - len(self.separator)
        return math.prod(self.shape[:split]), math.prod(self.shape[split:])

    @property
    def rest_axis(self) -> int:
        """Axis (0 or 1) of the rest in the table as a matrix (:attr:`block`)."""
        return 1 if self.separator_first else 0


@dataclass(frozen=True)
class JunctionTree:
    """The plan of message passing for a graphical model; made by :func:`junction_tree`, used by :func:`pass_messages`.

    ``factors`` are the model's maximal cliques in sorted order; ``nodes`` are the cliques of the tree, parents before
    their children.
    """

    sizes: tuple[int, ...]
    factors: tuple[Clique, ...]
    nodes: tuple[Node, ...]

    @property
    def cells(self) -> int:
        """Number of cells of all node tables, 8 bytes each."""
        return sum(math.prod(node.shape) for node in self.nodes)

    def shape(self, clique: Sequence[int]) -> tuple[int, ...]:
        """Return the numbers of codes of the columns of ``clique``."""
        return tuple(self.sizes[column] for column in clique)


@lru_cache(maxsize=64)
def junction_tree(sizes: tuple[int, ...], factors: tuple[Clique, ...]) -> JunctionTree:
    """Plan the junction tree of ``factors`` (sorted tuples, none inside another) over all columns; cached.

    The tree is a maximum spanning tree by separator size, grown from the clique with most cells; components of the
    graph are joined by empty separators, so that there is one tree.
    """
    graph = _neighbours(len(sizes), map(_mask, factors))
    masks = sorted(_triangulate(sizes, graph), key=lambda m: (-_cells(sizes, [m]), _columns(m)))
    order, parents = [masks[0]], [-1]
    waiting = {mask: ((mask & masks[0]).bit_count(), 0) for mask in masks[1:]}
    while waiting:
        mask = max(waiting, key=lambda m: (waiting[m][0], -waiting[m][1], -m))
        parents.append(waiting.pop(mask)[1])
        for other, (overlap, _) in waiting.items():
            if (other & mask).bit_count() > overlap:
                waiting[other] = ((other & mask).bit_count(), len(order))
        order.append(mask)
    homes = [_home(sizes, order, factor) for factor in factors]
    nodes = []
    for index, (mask, parent) in enumerate(zip(order, parents, strict=True)):
        separator = mask & order[parent] if parent >= 0 else 0
        children = tuple(i for i, p in enumerate(parents) if p == index)
        own = tuple(i for i, home in enumerate(homes) if home == index)
        nodes.append(_node(sizes, mask, parent, separator, children, own))
    return JunctionTree(sizes, factors, tuple(nodes))


def _home(sizes: tuple[int, ...], masks: list[int], clique: Clique) -> int:
    wanted = _mask(clique)
    inside = [i for i, mask in enumerate(masks) if mask & wanted == wanted]
    return min(inside, key=lambda i: (_cells(sizes, [masks[i]]), i))


def _node(
    sizes: tuple[int, ...],
    mask: int,
    parent: int,
    separator: int,
    children: tuple[int, ...],
    factors: tuple[int, ...],
) -> Node:
    def ascending(part: int) -> Clique:
        return tuple(sorted(_columns(part), key=lambda column: (sizes[column], column)))

    inner, rest = ascending(separator), ascending(mask & ~separator)
    first = math.prod(sizes[c] for c in inner) <= math.prod(sizes[c] for c in rest)
    axes = inner + rest if first else rest + inner
    shape = tuple(sizes[column] for column in axes)
    return Node(_columns(mask), parent, axes, shape, inner, first, children, factors)


def spread(array: NDArray[Scalar], columns: Sequence[int], axes: Sequence[int]) -> NDArray[Scalar]:
    """Return a view of ``array`` over ``columns`` that broadcasts over a table over ``axes``, which include these."""
    positions = [columns.index(column) for column in axes if column in columns]
    index = tuple(slice(None) if column in columns else None for column in axes)
    return array.transpose(positions)[index]


def reduce(table: Floats, axes: Sequence[int], columns: Sequence[int]) -> Floats:
    """Sum ``table`` over all its ``axes`` but ``columns``; return a new array with these, in C order."""
    if len(columns) == len(axes):
        return np.array(table.transpose([axes.index(column) for column in columns]), order="C")
    # einsum, since its loops over short inner axes are 4 times faster than those of add.reduce
    label = dict(zip(axes, ascii_letters, strict=False))
    kept = [column for column in axes if column in columns]
    summed = np.einsum("".join(label.values()) + "->" + "".join(label[column] for column in kept), table)
    return np.asarray(summed.transpose([kept.index(column) for column in columns]), order="C")


@dataclass(frozen=True)
class Messages:
    """The result of message passing on a junction tree: one product gives the marginal of any of its nodes.

    All tuples have one entry for each node of ``tree``. ``tables[v]``, shape ``nodes[v].block``, is the unnormalised
    distribution of the rest given the separator, with maximum 1 for each cell of the separator. ``scales[v]`` holds the
    inverse of its sum for each cell of the separator, and ``separators[v]`` the separator's marginal, in rows; both are
    flat. ``log_partition`` is the natural log of the model's normaliser.
    """

    tree: JunctionTree
    tables: tuple[Floats, ...]
    scales: tuple[Floats, ...]
    separators: tuple[Floats, ...]
    log_partition: float

    def belief(self, index: int, out: Floats | None = None) -> Floats:
        """Return the marginal of node ``index``, in rows, with the node's ``axes``; written to ``out`` if given."""
        node = self.tree.nodes[index]
        weights = self.separators[index] * self.scales[index]
        weights = weights[:, None] if node.separator_first else weights
        return np.multiply(self.tables[index], weights, out=out).reshape(node.shape)

    def conditional(self, index: int) -> Floats:
        """Return the distribution of a node's rest given its separator, with the node's ``axes``."""
        node = self.tree.nodes[index]
        scales = self.scales[index]
        table = self.tables[index] * (scales[:, None] if node.separator_first else scales)
        return table.reshape(node.shape)


def workspace(tree: JunctionTree) -> tuple[list[Floats], Floats]:
    """Allocate memory of :func:`pass_messages`: a table of :attr:`Node.block` per node, a flat scratch table."""
    flat = np.empty(tree.cells)
    tables, start = [], 0
    for node in tree.nodes:
        stop = start + math.prod(node.shape)
        tables.append(flat[start:stop].reshape(node.block))
        start = stop
    return tables, np.empty(max(math.prod(node.shape) for node in tree.nodes))


def pass_messages(
    tree: JunctionTree,
    factors: Sequence[Floats],
    total: float,
    buffers: tuple[list[Floats], Floats] | None = None,
) -> tuple[Messages, list[Floats]]:
    """Pass messages on a model's junction tree; return them, and the marginals of all the model's factors.

    ``factors`` holds the model's log potentials: one finite table for each of ``tree.factors``. The marginals have the
    same order and shapes and sum to ``total`` (rows) each. The computation is in log space with a maximum per separator
    cell, so potentials may span any finite range. The returned messages lie in ``buffers`` (:func:`workspace`) and
    become invalid when these are passed again.
    """
    tables, scratch = workspace(tree) if buffers is None else buffers
    scales: list[Any] = [None] * len(tree.nodes)
    upward: list[Any] = [None] * len(tree.nodes)
    for index in range(len(tree.nodes) - 1, -1, -1):
        node, block = tree.nodes[index], tables[index]
        terms = [spread(factors[i], tree.factors[i], node.axes) for i in node.factors]
        terms += [spread(upward[i], tree.nodes[i].separator, node.axes) for i in node.children]
        _add_up(terms, block.reshape(node.shape))
        axis = node.rest_axis
        peak = block.max(axis=axis, keepdims=True)
        np.subtract(block, peak, out=block)
        np.exp(block, out=block)
        mass = np.einsum("ij->i" if axis else "ij->j", block)
        scales[index] = 1.0 / mass
        upward[index] = (np.log(mass) + peak.ravel()).reshape(tree.shape(node.separator))
    separators: list[Any] = [None] * len(tree.nodes)
    separators[0] = np.full(1, total)
    marginals: list[Any] = [None] * len(tree.factors)
    for index, node in enumerate(tree.nodes):
        if not node.children and not node.factors:
            continue
        weights = separators[index] * scales[index]
        out = scratch[: tables[index].size].reshape(node.block)
        np.multiply(tables[index], weights[:, None] if node.separator_first else weights, out=out)
        belief = out.reshape(node.shape)
        for child in node.children:
            separators[child] = reduce(belief, node.axes, tree.nodes[child].separator).ravel()
        for factor in node.factors:
            marginals[factor] = reduce(belief, node.axes, tree.factors[factor])
    return Messages(tree, tuple(tables), tuple(scales), tuple(separators), float(upward[0])), marginals


def _add_up(terms: list[Floats], out: Floats) -> None:
    if not terms:
        out[...] = 0.0
    elif len(terms) == 1:
        out[...] = terms[0]
    else:
        np.add(terms[0], terms[1], out=out)
        for term in terms[2:]:
            np.add(out, term, out=out)
