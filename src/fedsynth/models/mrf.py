"""Discrete graphical models (Markov random fields) with exact marginals, sampling and likelihoods.

Fitted by :func:`fedsynth.models.estimate.estimate`. Source: McKenna, Sheldon and Miklau (2019), Graphical-model based
estimation and inference for differential privacy, arXiv 1901.09136.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.cliques import related
from fedsynth.errors import FedsynthError, InvalidParameter
from fedsynth.models.evidence import IMPOSSIBLE, LEAST, Evidence
from fedsynth.models.junction_tree import (
    Clique,
    Floats,
    JunctionTree,
    Messages,
    Node,
    junction_tree,
    junction_tree_cells,
    maximal,
    pass_messages,
    reduce,
    spread,
)
from fedsynth.models.saved import DrawnColumn, SavedColumns, Total, check_positions, read_floats, read_head
from fedsynth.models.stratified import STRATA, even_places, strata_of
from fedsynth.schema.bins import MOST_CELLS, MOST_COLUMNS

__all__ = ["Clique", "MarkovRandomField", "junction_tree_cells"]

_MEMO_BYTES = 64 << 20  # size of the cache of marginals
_CHUNK = 1 << 20  # rows sampled at a time: bounds the working memory to about 50 MB
_MOST_LOADED = 1 << 26  # largest junction tree of a saved model, in cells: half a gigabyte
_GATHER = 1 << 16  # rows whose likelihood is computed at a time: their cell numbers fit into the cache


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON values of a saved model."""

    sizes: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=1, le=MOST_CELLS)], ...],
        msgspec.Meta(min_length=1, max_length=MOST_COLUMNS),
    ]
    total: Total
    factors: tuple[SavedColumns, ...]


class MarkovRandomField:
    """A discrete graphical model of rows: exact marginals, sampling and likelihoods by junction tree; immutable.

    The probability of a row is proportional to exp(sum of log potentials). ``sizes`` holds each column's number of
    codes (values or bins); ``total`` is the estimated number of records, by which marginals are multiplied.
    ``potentials[i]``, float64, is a table over the columns ``factors[i]`` (a sorted tuple of positions). The attributes
    ``factors`` and ``potentials`` hold the model's maximal factors: factors contained in others are merged into them,
    and a column in no factor is uniform. Raises :class:`FedsynthError` for invalid sizes or total, potentials that do
    not fit their factors, and potentials that are not finite (use -1e3 for the log of zero).
    """

    kind: ClassVar[str] = "graphical"
    sizes: tuple[int, ...]
    total: float
    factors: tuple[Clique, ...]
    potentials: tuple[Floats, ...]

    def __init__(
        self, sizes: Sequence[int], total: float, factors: Sequence[Clique], potentials: Sequence[Floats]
    ) -> None:
        """Merge the ``potentials`` of ``factors`` into maximal factors."""
        if not sizes or min(sizes) < 1 or not (math.isfinite(total) and total > 0):
            raise FedsynthError(
                f"sizes {tuple(sizes)}, total {total}: pass column sizes of at least 1 and a positive total"
            )
        self.sizes = tuple(int(size) for size in sizes)
        self.total = float(total)
        self.factors = maximal([*factors, *((column,) for column in range(len(sizes)))])
        self.potentials = fold(self.sizes, self.factors, factors, potentials)
        for potential in self.potentials:
            if not np.isfinite(potential).all():
                raise FedsynthError("a log potential is not finite; pass finite values (-1e3 serves as log of zero)")
            potential.flags.writeable = False
        self._memo: OrderedDict[Clique, Floats] = OrderedDict()
        self._memo_bytes = 0

    def __repr__(self) -> str:
        return f"<MarkovRandomField of {len(self.sizes)} columns, {self.cells} cells, total {self.total:g}>"

    @cached_property
    def cliques(self) -> tuple[Clique, ...]:
        """The maximal cliques of the junction tree."""
        return tuple(node.clique for node in self._tree.nodes)

    @property
    def cells(self) -> int:
        """Number of cells of the junction tree's tables, 8 bytes each: what the model costs in memory and time."""
        return self._tree.cells

    @cached_property
    def _tree(self) -> JunctionTree:
        return junction_tree(self.sizes, self.factors)

    @cached_property
    def _messages(self) -> Messages:
        return pass_messages(self._tree, self.potentials, self.total)[0]

    @property
    def log_partition(self) -> float:
        """The log of the sum of exp(sum of log potentials) over all possible rows, in nats."""
        return self._messages.log_partition

    @cached_property
    def _below(self) -> tuple[frozenset[int], ...]:
        """For each node, the columns that occur in its subtree but not in its separator."""
        below = [set(node.clique) - set(node.separator) for node in self._tree.nodes]
        for index in range(len(below) - 1, 0, -1):
            below[self._tree.nodes[index].parent] |= below[index]
        return tuple(frozenset(columns) for columns in below)

    @cached_property
    def _within(self) -> tuple[frozenset[int], ...]:
        """For each node, the columns that occur in its subtree."""
        return tuple(below.union(node.clique) for below, node in zip(self._below, self._tree.nodes, strict=True))

    # ---------------------------------------------------------------------------------------------- marginals

    def marginal(self, clique: Sequence[int]) -> Floats:
        """Return the table of expected counts of the columns of ``clique``, in its order, of sum ``total``.

        Repeated or unknown columns raise :class:`FedsynthError`. The array is read-only, because the most recently used
        64 MB of results are cached and returned again.
        """
        return self.marginals([clique])[tuple(clique)]

    def marginals(self, cliques: Iterable[Sequence[int]]) -> dict[Clique, Floats]:
        """Return the expected counts (:meth:`marginal`) of many ``cliques``, by clique; shared work is done once."""
        asked = [tuple(int(column) for column in clique) for clique in cliques]
        known: dict[Clique, Floats] = {}
        missing = []
        for clique in {tuple(sorted(clique)): None for clique in asked}:
            if len(set(clique)) < len(clique) or any(not 0 <= c < len(self.sizes) for c in clique):
                raise FedsynthError(f"clique {clique}: pass distinct columns below {len(self.sizes)}")
            if clique in self._memo:
                self._memo.move_to_end(clique)
                known[clique] = self._memo[clique]
            else:
                missing.append((self._query_root(clique), clique))
        lifted: dict[tuple[int, Clique], tuple[Floats, Clique]] = {}
        belief, root = None, -1
        for index, clique in sorted(missing):
            if index != root:
                belief, root = self._messages.belief(index), index
            assert belief is not None
            known[clique] = self._query(index, belief, clique, lifted)
        for _, clique in missing:
            self._remember(clique, known[clique])
        result = {}
        for clique in asked:
            ordered = tuple(sorted(clique))
            result[clique] = known[ordered].transpose([ordered.index(column) for column in clique])
        return result

    def _remember(self, clique: Clique, table: Floats) -> None:
        table.flags.writeable = False
        self._memo[clique] = table
        self._memo_bytes += table.nbytes
        while self._memo_bytes > _MEMO_BYTES:
            self._memo_bytes -= self._memo.popitem(last=False)[1].nbytes

    def _query_root(self, clique: Clique) -> int:
        """Return the lowest node whose subtree contains every column of ``clique``."""
        index, nodes, wanted = 0, self._tree.nodes, frozenset(clique)
        while True:
            down = next((c for c in nodes[index].children if wanted <= self._within[c]), None)
            if down is None:
                return index
            index = down

    def _query(
        self,
        index: int,
        belief: Floats,
        clique: Clique,
        lifted: dict[tuple[int, Clique], tuple[Floats, Clique]],
    ) -> Floats:
        node = self._tree.nodes[index]
        terms = self._lifted_children(node, clique, lifted)
        table, axes = _product(belief, node.axes, terms, set(clique))
        return reduce(table, axes, clique)

    def _lifted_children(
        self, node: Node, wanted: Clique, lifted: dict[tuple[int, Clique], tuple[Floats, Clique]]
    ) -> list[tuple[Floats, Clique]]:
        terms = []
        for child in node.children:
            if not self._below[child].isdisjoint(wanted):
                part = tuple(c for c in wanted if c in self._below[child])
                if (child, part) not in lifted:
                    lifted[child, part] = self._lift(child, part, lifted)
                terms.append(lifted[child, part])
        return terms

    def _lift(
        self, index: int, wanted: Clique, lifted: dict[tuple[int, Clique], tuple[Floats, Clique]]
    ) -> tuple[Floats, Clique]:
        """Return the distribution of ``wanted`` (columns in the subtree) given the separator of node ``index``."""
        node = self._tree.nodes[index]
        terms = self._lifted_children(node, wanted, lifted)
        needed = {*node.separator, *wanted}.union(*(axes for _, axes in terms))
        axes = tuple(column for column in node.axes if column in needed)
        table = reduce(self._messages.tables[index].reshape(node.shape), node.axes, axes)
        scale = self._messages.scales[index].reshape(self._tree.shape(node.separator))
        table *= spread(scale, node.separator, axes)
        return _product(table, axes, terms, {*node.separator, *wanted})

    # ------------------------------------------------------------------------------------------------- rows

    def sample(self, rows: int, rng: np.random.Generator) -> tuple[NDArray[Any], ...]:
        """Draw ``rows`` rows; return an array of codes per column, shape ``(rows,)``, of the narrowest unsigned type.

        Rows are drawn clique by clique, from the root of the junction tree. Among the rows with equal values in the
        columns that a clique shares with its parent, each combination of values of its other columns occurs its
        expected number of times, rounded up or down at random without bias (systematic sampling), spread evenly
        over the values of columns drawn before (:func:`~fedsynth.models.stratified.even_places`). Counts, of columns
        without a common clique too, thus follow their expectation more closely than with independent draws. This holds
        within chunks of a million rows. Rows come in random order.
        """
        columns = tuple(np.empty(rows, dtype=np.min_scalar_type(size - 1)) for size in self.sizes)
        conditionals = [self._conditional(index) for index in range(len(self._tree.nodes))]
        for start in range(0, rows, _CHUNK):
            chunk = [column[start : start + _CHUNK] for column in columns]
            drawn: set[int] = set()
            for node, conditional in zip(self._tree.nodes, conditionals, strict=True):
                strata = strata_of(drawn.difference(node.separator), self.sizes, chunk, rng)
                self._sample_node(node, conditional, chunk, strata, rng)
                drawn.update(node.axes)
        return columns

    def _conditional(self, index: int) -> Floats:
        """Return the distribution of the rest (axis 1) given the separator (axis 0) of a node."""
        node = self._tree.nodes[index]
        table = self._messages.conditional(index).reshape(node.block)
        return table if node.separator_first else table.T

    def _sample_node(
        self,
        node: Node,
        conditional: Floats,
        chunk: list[NDArray[Any]],
        strata: NDArray[np.int64],
        rng: np.random.Generator,
    ) -> None:
        """Draw the columns of ``node`` outside its separator for one chunk of rows, in place."""
        groups = np.zeros(len(chunk[0]), dtype=np.int64)
        for position, column in enumerate(node.separator):
            if position:
                groups *= self.sizes[column]
            groups += chunk[column]
        sizes = np.bincount(groups, minlength=len(conditional))
        present = np.flatnonzero(sizes)
        expected = np.cumsum(conditional[present], axis=1)
        # the last entry is set to the group's size exactly, whatever the rounding of the sum
        expected *= (sizes[present] / expected[:, -1])[:, None]
        expected[:, -1] = sizes[present]
        expected += rng.random((len(present), 1))
        steps = np.floor(expected, out=expected).astype(np.int64)
        counts = np.diff(steps, axis=1, prepend=0).ravel()
        drawn = np.flatnonzero(counts)
        order = _random_order(groups, len(conditional), strata, rng)
        places = even_places(sizes[present], rng)
        cells = drawn % conditional.shape[1]
        for column in reversed([c for c in node.axes if c not in node.separator]):
            cells, codes = np.divmod(cells, self.sizes[column])
            chunk[column][order] = np.repeat(codes.astype(chunk[column].dtype), counts[drawn])[places]

    def log_likelihood(self, codes: Sequence[NDArray[Any]]) -> Floats:
        """Return the log probability of each row, in nats, shape ``(rows,)``, from the codes of every column."""
        if len(codes) != len(self.sizes):
            raise FedsynthError(f"{len(codes)} columns of codes for {len(self.sizes)}; pass every column")
        result = np.full(len(codes[0]), -self.log_partition)
        for start in range(0, len(result), _GATHER):
            part = result[start : start + _GATHER]
            for factor, potential in zip(self.factors, self.potentials, strict=True):
                index = tuple(codes[column][start : start + _GATHER] for column in factor)
                part += potential[index]
        return result

    def given(self, evidence: Mapping[int, Evidence]) -> MarkovRandomField | None:
        """Return the model with ``evidence``, exactly, as more factors; ``None`` if no row can meet it."""
        factors, potentials = list(self.factors), list(self.potentials)
        for column, known in evidence.items():
            factors.append((column,))
            potentials.append(log_potential(known.likelihood(np.arange(self.sizes[column]))))
        found = MarkovRandomField(self.sizes, self.total, factors, potentials)
        return found if found.log_partition - self.log_partition > IMPOSSIBLE else None

    # --------------------------------------------------------------------------------------------- on disk

    @property
    def related(self) -> NDArray[np.bool_]:
        """Columns that share a factor."""
        return related(len(self.sizes), self.factors)

    @property
    def drawn_columns(self) -> tuple[DrawnColumn, ...]:
        """Integer codes."""
        return tuple(DrawnColumn(size) for size in self.sizes)

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Floats]]:
        """Return the model as JSON values and named arrays."""
        meta = {
            "sizes": list(self.sizes),
            "total": self.total,
            "factors": [list(factor) for factor in self.factors],
        }
        return meta, {f"potential_{i}": potential for i, potential in enumerate(self.potentials)}

    @classmethod
    def from_arrays(cls, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> MarkovRandomField:
        """Restore the model; raises :class:`FedsynthError` for anything else.

        A junction tree of more than 2^26 cells is refused too: few small factors can ask for one that fills any memory.
        """
        saved = read_head(meta, _Saved)
        for factor in saved.factors:
            check_positions(factor, len(saved.sizes))
        potentials = [
            read_floats(arrays, f"potential_{at}", [saved.sizes[column] for column in factor])
            for at, factor in enumerate(saved.factors)
        ]
        if (cells := junction_tree_cells(saved.sizes, saved.factors)) > _MOST_LOADED:
            raise InvalidParameter(f"its junction tree has {cells} cells; at most {_MOST_LOADED} are read from a file")
        return cls(saved.sizes, saved.total, saved.factors, potentials)


def log_potential(probability: Floats) -> Floats:
    """Return natural logarithms of probabilities, at least -1000: potentials must be finite."""
    with np.errstate(divide="ignore"):
        return np.maximum(np.log(probability), LEAST)


def fold(
    sizes: Sequence[int], factors: tuple[Clique, ...], cliques: Sequence[Clique], potentials: Sequence[Floats]
) -> tuple[Floats, ...]:
    """Express log potentials over ``cliques`` as potentials of the given ``factors``, for the same distribution.

    Each of ``potentials`` is added to the first factor that contains its clique. Raises :class:`FedsynthError` if no
    factor contains a clique, or a potential's shape does not fit.
    """
    folded = tuple(np.zeros([sizes[column] for column in factor]) for factor in factors)
    for clique, potential in zip(cliques, potentials, strict=True):
        home = next((i for i, factor in enumerate(factors) if set(clique) <= set(factor)), None)
        if home is None:
            raise FedsynthError(f"no factor contains the clique {clique}; pass cliques that cover the start model")
        if potential.shape != tuple(sizes[column] for column in clique):
            raise FedsynthError(f"clique {clique}: shape {potential.shape} does not fit; pass one axis per column")
        np.add(folded[home], spread(potential, clique, factors[home]), out=folded[home])
    return folded


def _product(
    table: Floats, axes: Clique, terms: Sequence[tuple[Floats, Clique]], wanted: set[int]
) -> tuple[Floats, Clique]:
    """Multiply ``terms`` into ``table`` one by one, and sum out each column as soon as possible."""
    for position, (term, term_axes) in enumerate(terms):
        later = wanted.union(*(columns for _, columns in terms[position + 1 :]))
        table, axes = _contract(table, axes, term, term_axes, later)
    kept = tuple(column for column in axes if column in wanted)
    return (table, axes) if kept == axes else (reduce(table, axes, kept), kept)


def _contract(left: Floats, a: Clique, right: Floats, b: Clique, kept: set[int]) -> tuple[Floats, Clique]:
    """Return the product of two tables summed to the columns ``kept``, by one (batched) matrix product."""
    batch = tuple(column for column in a if column in b and column in kept)
    summed = tuple(column for column in a if column in b and column not in kept)
    rows = tuple(column for column in a if column not in b and column in kept)
    columns = tuple(column for column in b if column not in a and column in kept)
    first, second = reduce(left, a, batch + rows + summed), reduce(right, b, batch + summed + columns)
    shape = first.shape[: len(batch + rows)] + second.shape[len(batch + summed) :]
    n = math.prod(first.shape[: len(batch)])
    k = math.prod(second.shape[len(batch) : len(batch + summed)])
    product = first.reshape(n, -1, k) @ second.reshape(n, k, -1)
    return product.reshape(shape), batch + rows + columns


def _random_order(
    groups: NDArray[np.int64], n_groups: int, strata: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return row numbers sorted by group and, within each group, by stratum; in random order within each stratum.

    One sort of words (group, stratum, random bits, row number), because NumPy sorts 64-bit words three times faster
    than it computes their order. With at most 2^20 rows and a million groups, 11 random bits remain.
    """
    row_bits, group_bits = (len(groups) - 1).bit_length(), (n_groups - 1).bit_length()
    stratum = 63 - group_bits - STRATA.bit_length() + 1  # its lowest bit
    words = rng.integers(0, 1 << stratum, size=len(groups), dtype=np.int64)
    words &= -1 << row_bits
    words |= np.arange(len(groups))
    words |= strata << stratum
    if group_bits:
        words |= groups << (63 - group_bits)
    words.sort()
    words &= (1 << row_bits) - 1
    return words
