"""A graphical model over groups of cells, in which numbers are also correlated within their groups.

Two correlated numbers are correlated within their groups as well, most of all in a last group that contains a tail. The
graphical model determines the groups of a row's numbers; given these, the numbers' places within their groups follow a
tree of the strongest correlations. The distribution of each number within its group is unchanged: the tree only decides
which row gets which of the values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.cliques import related
from fedsynth.errors import InvalidParameter
from fedsynth.models.evidence import Drawn, Evidence, PlacedEvidence, Sampler, keep
from fedsynth.models.mrf import MarkovRandomField
from fedsynth.models.saved import DrawnColumn, SavedColumns, check_positions, read_floats, read_head

Array = NDArray[np.float64]
Single = NDArray[np.float32]
Integers = NDArray[np.integer[Any]]

SLOTS = 16  # parts of a group among which the tree chooses
_FALL = 2 / 3  # rows of a slot of a tail, relative to those of the slot before it
TAIL = 0.4  # tail dependence above which numbers keep the same order in their tails
_FARTHEST = 1e-12  # smallest tail probability at which a slot begins or ends
_FLOOR = 1e-6  # least share of a pair of slots, relative to independent ones
_LAST = 1 - 2.0**-40  # largest place
_MOST_PLACED = 1 << 13  # groups of a column with places: group + _LAST stays below the next group in float64
_CHUNK = 1 << 14  # rows whose slots are drawn at a time: their tables fit into the cache
_CURVES = 1 << 17  # rows from which places are estimated as a function of slots
_ROWS = 1 << 14  # rows drawn for the bound of rejection weights
_NARROW = 1e-9  # share of a group: a smaller part that is not admitted is ignored, a smaller admitted one widened
_FEWEST = 1 / 256  # share of rows that are kept at least; if there would be fewer, the largest weights are cut
_LEAST = 1 << 10  # fewest rows drawn at a time if some are rejected


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON values of a saved model."""

    groups: dict[str, Any]
    columns: SavedColumns
    ordered: SavedColumns
    parents: tuple[Annotated[int, msgspec.Meta(ge=-1)], ...]


@dataclass(frozen=True, eq=False)
class RankedGroups:
    """A graphical model of groups (bins) in which numbers are also correlated within their groups.

    ``groups`` draws the group of every column. For the numeric columns at the positions ``columns``, a row also gets a
    place within its group: from 0 to below 1, the share of the group's rows with a smaller value. The first
    ``ordered[i]`` groups of ``columns[i]`` are intervals of its values in ascending order; the others, such as missing
    values, have no meaningful places.

    The columns form a tree (or several): ``parents[i]``, less than i, is the index of the parent of ``columns[i]``, and
    ``correlation[i]`` the correlation of their normal scores; -1 and 0 for a column without a parent. Each group is
    divided into ``SLOTS`` slots (:func:`slot_shares`). Given the groups of all columns, the slots of a row form a
    Markov tree: those of a column and its parent, given both groups, are distributed as in a Gaussian copula with their
    correlation. One pair of groups is different: that of both upper tails (or of an upper and a lower one, if the
    correlation is negative), and that of the opposite tails. If the graphical model has a tail dependence above
    ``TAIL`` there (:func:`tail_dependence`), both columns have the same (or opposite) order in this pair of groups,
    since dependence then goes on into the tail, while that of a Gaussian copula fades. Within a slot, the place is
    uniform.
    """

    groups: MarkovRandomField
    columns: tuple[int, ...]
    ordered: tuple[int, ...]
    parents: tuple[int, ...]
    correlation: Array
    kind: ClassVar[str] = "ranked"

    @property
    def total(self) -> float:
        """The estimated number of records."""
        return self.groups.total

    @cached_property
    def _slots(self) -> list[Array]:
        """For each of the columns, each slot's share of its group's rows, shape ``(groups, SLOTS)``."""
        return [
            slot_shares(self.groups.sizes[column], many)
            for column, many in zip(self.columns, self.ordered, strict=True)
        ]

    @cached_property
    def _pairs(self) -> list[Single]:
        """For each of the columns, shares of pairs of slots given the groups: its parent's and its own.

        Shape ``(parent's groups, groups, SLOTS of the parent, SLOTS)``; empty for a column without a parent.
        """
        edges = [(self.columns[parent], column) for parent, column in zip(self.parents, self.columns, strict=True)]
        tables = self.groups.marginals([edge for edge, parent in zip(edges, self.parents, strict=True) if parent >= 0])
        by_column = []
        for at, parent in enumerate(self.parents):
            if parent < 0:
                by_column.append(np.empty((0, 0, SLOTS, SLOTS), np.float32))
                continue
            first, second = self._slots[parent], self._slots[at]
            pairs = first[:, None, :, None] * second[None, :, None, :]
            many = self.ordered[parent], self.ordered[at]
            table = tables[edges[at]][: many[0], : many[1]]
            pairs[: many[0], : many[1]] = _ordered_pairs(
                table, first[: many[0]], second[: many[1]], self.correlation[at]
            )
            by_column.append(pairs.astype(np.float32))
        return by_column

    @cached_property
    def _ratios(self) -> list[Single]:
        """:attr:`_pairs` relative to the shares of the parent's slots, in the same shape."""
        slots = [self._slots[max(parent, 0)].astype(np.float32) for parent in self.parents]
        return [
            pairs / own[:, None, :, None] if len(pairs) else pairs
            for pairs, own in zip(self._pairs, slots, strict=True)
        ]

    @cached_property
    def _sums(self) -> list[Single]:
        """:attr:`_ratios` summed over the slots of the column, shape ``(parent's groups, groups, SLOTS)``."""
        return [ratios.sum(axis=-1) for ratios in self._ratios]

    def sample(self, rows: int, rng: np.random.Generator) -> Sequence[NDArray[Any]]:
        """Draw rows: each column's groups, and group + place for ``columns``, with evenly spread places."""
        drawn: list[NDArray[Any]] = list(self.groups.sample(rows, rng))
        slots = self._slots_of(drawn, {}, rng)
        for at, column in enumerate(self.columns):
            drawn[column] = drawn[column] + _places(drawn[column], slots[at], rng)
        return drawn

    def _slots_of(self, drawn: Drawn, admitted: Mapping[int, Array], rng: np.random.Generator) -> NDArray[np.uint8]:
        """Draw the slots, shape ``(len(columns), rows)``, given the groups and conditions (:meth:`_weights`)."""
        slots = np.empty((len(self.columns), len(drawn[0])), dtype=np.uint8)
        for start in range(0, len(drawn[0]), _CHUNK):
            groups = [drawn[column][start : start + _CHUNK] for column in self.columns]
            chunk = slots[:, start : start + _CHUNK]
            weights, _ = self._weights(groups, admitted)
            for at, (parent, weight) in enumerate(zip(self.parents, weights, strict=True)):  # from the roots
                own = groups[at]
                shares = self._slots[at][own] if parent < 0 else self._pairs[at][groups[parent], own, chunk[parent]]
                below = np.cumsum(shares if weight is None else shares * weight, axis=1)
                chunk[at] = (below[:, :-1] < (rng.random(len(own)) * below[:, -1])[:, None]).sum(axis=1)
        return slots

    def _weights(
        self, groups: Sequence[Integers], admitted: Mapping[int, Array]
    ) -> tuple[list[NDArray[np.floating[Any]] | None], Array]:
        """Pass messages from the leaves to the roots, for rows with these ``groups`` (one array for each column).

        ``admitted`` holds, by index of a column, the share of each slot that conditions admit, shape ``(groups,
        SLOTS)``. Returns, for each column, the probability that the columns below it have their groups and meet their
        conditions, relative to that without this column's slot and up to a factor for each row: shape ``(rows,
        SLOTS)``, or ``None`` if it is the same for all slots. Also returns the log probability, shape ``(rows,)``, that
        all conditions are met, plus a number that depends on the groups only.
        """
        weights: list[NDArray[np.floating[Any]] | None] = [None] * len(self.columns)
        log = np.zeros(len(groups[0]))
        for at, shares in admitted.items():
            weights[at] = shares[groups[at]]
        for at in range(len(self.columns) - 1, -1, -1):
            parent, own = self.parents[at], weights[at]
            if own is not None:
                largest = np.maximum(own.max(axis=1), np.finfo(np.float32).tiny)
                own /= largest[:, None]
                log += np.log(largest)
            if parent >= 0:
                given = groups[parent], groups[at]
                if own is None:
                    message = self._sums[at][given]
                else:
                    message = np.einsum("rkl,rl->rk", self._ratios[at][given], own)
                former = weights[parent]
                weights[parent] = message if former is None else former * message
            elif own is not None:
                log += np.log(np.maximum((self._slots[at][groups[at]] * own).sum(axis=1), np.finfo(float).tiny))
        return weights, log

    def given(self, evidence: Mapping[int, Evidence]) -> Sampler | None:
        """Return a sampler given ``evidence``, which may admit parts of groups (:class:`GivenGroups`), or ``None``."""
        groups = self.groups.given(evidence)
        if groups is None:
            return None
        parts = {}
        for at, column in enumerate(self.columns):
            known = evidence.get(column)
            if isinstance(known, PlacedEvidence):
                begin, end = known.places
                begin = np.where(begin < _NARROW, 0.0, np.minimum(begin, 1 - _NARROW))
                end = np.where(end > 1 - _NARROW, 1.0, np.maximum(end, begin + _NARROW))
                some = (known.values > 0) & (end - begin < 1)
                if some.any():
                    parts[at] = np.array([np.where(some, begin, 0.0), np.where(some, end, 1.0)])
        return GivenGroups(self, groups, parts)

    @cached_property
    def _curves(self) -> list[Array]:
        """For each of the columns, the places at which the slots begin and end, shape ``(groups, SLOTS + 1)``.

        They are the cumulated shares of the slots among drawn rows of the group, always the same ones.
        """
        rng = np.random.default_rng(0)
        counts = [slots.copy() for slots in self._slots]  # one row, where there are no others
        drawn = self.groups.sample(_CURVES, rng)
        for column, histogram, own in zip(self.columns, counts, self._slots_of(drawn, {}, rng), strict=True):
            cells = drawn[column].astype(np.int64) * SLOTS + own
            histogram += np.bincount(cells, minlength=histogram.size).reshape(histogram.shape)
        curves = []
        for histogram in counts:
            below = np.cumsum(histogram, axis=1) / histogram.sum(axis=1, keepdims=True)
            below[:, -1] = 1.0
            curves.append(np.insert(below, 0, 0.0, axis=1))
        return curves

    @property
    def related(self) -> NDArray[np.bool_]:
        """Columns related by their groups, or by their numbers within groups."""
        edges = [(self.columns[parent], column) for parent, column in zip(self.parents, self.columns, strict=True)]
        within = [edge for edge, parent in zip(edges, self.parents, strict=True) if parent >= 0]
        return self.groups.related | related(len(self.groups.sizes), within)

    @property
    def drawn_columns(self) -> tuple[DrawnColumn, ...]:
        """Groups, and places in those of ``columns``."""
        placed = set(self.columns)
        return tuple(DrawnColumn(size, at in placed) for at, size in enumerate(self.groups.sizes))

    def to_arrays(self) -> tuple[dict[str, Any], Mapping[str, NDArray[Any]]]:
        """Return the model as JSON values and named arrays."""
        meta, arrays = self.groups.to_arrays()
        lists = {"columns": self.columns, "ordered": self.ordered, "parents": self.parents}
        head = {"groups": meta, **{name: list(values) for name, values in lists.items()}}
        return head, {"correlation": self.correlation, **arrays}

    @classmethod
    def from_arrays(cls, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> RankedGroups:
        """Restore the model exactly; raises :class:`FedsynthError` for anything else."""
        saved = read_head(meta, _Saved)
        groups = MarkovRandomField.from_arrays(saved.groups, arrays)
        check_positions(sorted(saved.columns), len(groups.sizes))
        if not len(saved.columns) == len(saved.ordered) == len(saved.parents):
            raise InvalidParameter("its lists of columns, of ordered groups and of parents have different lengths")
        for column, many in zip(saved.columns, saved.ordered, strict=True):
            if not 1 <= many <= groups.sizes[column] <= _MOST_PLACED:
                raise InvalidParameter(f"column {column} has {many} ordered groups of {groups.sizes[column]}")
        if any(parent >= at for at, parent in enumerate(saved.parents)):
            raise InvalidParameter("a column comes before its parent")
        correlation = read_floats(arrays, "correlation", [len(saved.columns)])
        if not (np.abs(correlation) < 1).all():
            raise InvalidParameter("a correlation is not strictly between -1 and 1")
        return cls(groups, saved.columns, saved.ordered, saved.parents, correlation)


@dataclass(frozen=True, eq=False)
class GivenGroups:
    """Draws the rows of ``model`` that meet conditions on columns, for :meth:`RankedGroups.given`.

    ``groups`` is the model's graphical model of groups, given the conditions. ``parts`` describes the conditions that
    admit only a part of some group: by index in ``model.columns``, an array of shape ``(2, groups)`` with the places
    where the admitted part of each group begins and ends (0 and 1 for groups that are admitted whole or not at all).

    In the model, a row has the groups G with probability P(G), and meets the conditions on places with a probability
    W(G), which messages along the tree of slots give exactly. The graphical model given the conditions draws G with
    probability proportional to P(G) times all lengths of the admitted parts; the row is kept with a probability
    proportional to W(G) divided by these lengths (rejection sampling). Then its slots are drawn given G and the
    conditions, and its places within the slots uniformly.

    Two things are approximate. The places where slots begin are estimated from drawn rows. And if fewer than one row in
    256 would be kept, the largest weights are cut: other columns then follow the conditions too little. This concerns
    parts of groups that hardly ever occur together.
    """

    model: RankedGroups
    groups: MarkovRandomField
    parts: Mapping[int, Array]

    def sample(self, rows: int, rng: np.random.Generator) -> Drawn:
        """Draw as :meth:`RankedGroups.sample`, with places among the rows of admitted parts.

        Raises :class:`InvalidParameter` for parts of groups that practically exclude each other.
        """

        def draw(many: int) -> tuple[Drawn, NDArray[np.bool_]]:
            columns = self.groups.sample(many, rng)
            return columns, rng.random(many) * self._bound < self._kept(columns)

        drawn = keep(rows, draw, _LEAST) if self.parts else list(self.groups.sample(rows, rng))
        slots = self.model._slots_of(drawn, self._admitted, rng)
        for at, column in enumerate(self.model.columns):
            drawn[column] = drawn[column] + self._places(at, drawn[column], slots[at], rng)
        return drawn

    def _kept(self, drawn: Drawn) -> Array:
        """Return how likely drawn rows meet the conditions given their groups, relative to the parts' lengths."""
        model, probabilities = self.model, []
        for start in range(0, len(drawn[0]), _CHUNK):
            part = [drawn[column][start : start + _CHUNK] for column in model.columns]
            log = model._weights(part, self._admitted)[1] - model._weights(part, {})[1]
            lengths = [(end - begin)[part[at]] for at, (begin, end) in self.parts.items()]
            probabilities.append(np.exp(log - np.log(lengths).sum(axis=0)))
        return np.concatenate(probabilities)

    @cached_property
    def _bound(self) -> float:
        """The weight from which on rows are kept: the largest of ``_ROWS`` rows, always the same, or a smaller one."""
        weights = self._kept(self.groups.sample(_ROWS, np.random.default_rng(0)))
        largest = float(weights.max())
        if weights.mean() >= _FEWEST * largest:
            return largest
        return max(float(np.quantile(weights, 1 - _FEWEST)), np.finfo(float).tiny)

    @cached_property
    def _ends(self) -> dict[int, Array]:
        """For each of the ``parts``, where its share of each slot begins and ends, shape ``(2, groups, SLOTS)``."""
        ends = {}
        for at, (begin, end) in self.parts.items():
            curve = self.model._curves[at]
            low, high = np.maximum(curve[:, :-1], begin[:, None]), np.minimum(curve[:, 1:], end[:, None])
            ends[at] = np.array([low, np.maximum(low, high)])
        return ends

    @cached_property
    def _admitted(self) -> dict[int, Array]:
        """For each of the ``parts``, the share of each slot that the condition admits, shape ``(groups, SLOTS)``."""
        admitted = {}
        for at, (low, high) in self._ends.items():
            width = np.diff(self.model._curves[at], axis=1)
            admitted[at] = np.divide(high - low, width, out=np.zeros_like(width), where=width > 0)
        return admitted

    def _places(self, at: int, groups: Integers, slots: NDArray[np.uint8], rng: np.random.Generator) -> Array:
        """Draw places (0 to below 1) within slots: among those of the group, or of its admitted part."""
        share = rng.random(len(groups))
        if at in self.parts:
            begin, end = self.parts[at][:, groups]
            low, high = self._ends[at][:, groups, slots]
            places = (low + share * (high - low) - begin) / (end - begin)
        else:
            low, high = self.model._curves[at][groups, slots], self.model._curves[at][groups, slots + 1]
            places = low + share * (high - low)
        found: Array = np.clip(places, 0.0, _LAST)
        return found


def slot_shares(groups: int, ordered: int) -> Array:
    """Return the share of each slot in its group's rows, shape ``(groups, SLOTS)``, of sum 1 for each group.

    They are equal, except in the first and the last of the ``ordered`` groups, which contain the tails: there each slot
    has two thirds of the rows of the one before it, towards the end of the tail.
    """
    shares = np.full((groups, SLOTS), 1 / SLOTS)
    falling = _FALL ** np.arange(SLOTS)
    falling /= falling.sum()
    shares[0] = falling[::-1]
    shares[ordered - 1] = falling
    return shares


def tail_dependence(table: Array, first: int, second: int) -> float:
    """Return how far two tails occur together, from 0 (independent) to 1 (the smaller is contained in the larger).

    ``table`` holds the rows of pairs of groups; the tails are its row ``first`` and its column ``second``. For tails of
    equal size, it is the coefficient chi of Coles, Heffernan and Tawn (1999, doi 10.1023/A:1009963131610), relative to
    independent tails; it may be negative.
    """
    total = max(float(table.sum()), np.finfo(float).tiny)
    both, one, other = table[first, second] / total, table[first].sum() / total, table[:, second].sum() / total
    larger = max(one, other)
    return float((both / max(min(one, other), _FARTHEST) - larger) / max(1 - larger, _FARTHEST))


def _ordered_pairs(table: Array, first: Array, second: Array, correlation: float) -> Array:
    """Return the shares of pairs of slots of two columns given their groups, all of them in a meaningful order.

    The shape is ``(groups of first, groups of second, SLOTS, SLOTS)``; each pair of groups has the sum 1.
    """
    from scipy.special import ndtr, ndtri

    sides = []
    for slots, rows in ((first, table.sum(axis=1)), (second, table.sum(axis=0))):
        rows = np.maximum(rows, _FARTHEST * max(rows.sum(), 1.0))
        sides.append((slots * (rows / rows.sum())[:, None]).ravel())
    middles = ndtri(np.clip(np.cumsum(sides[0]) - sides[0] / 2, _FARTHEST, 1 - _FARTHEST))
    cuts = ndtri(np.clip(np.cumsum(sides[1])[:-1], _FARTHEST, 1 - _FARTHEST))
    below = ndtr((cuts - correlation * middles[:, None]) / np.sqrt(1 - correlation**2))
    copula = sides[0][:, None] * np.diff(below, axis=1, prepend=0.0, append=1.0)
    joint = copula.reshape(*first.shape, *second.shape).transpose(0, 2, 1, 3)
    joint = joint / np.maximum(joint.sum(axis=(2, 3), keepdims=True), np.finfo(float).tiny)
    sign = 1 if correlation >= 0 else -1
    last = len(first) - 1, len(second) - 1
    for ends in ((last[0], last[1] if sign > 0 else 0), (0, 0 if sign > 0 else last[1])):
        if tail_dependence(table, *ends) > TAIL:
            joint[ends] = _same_order(joint[ends].sum(axis=1), joint[ends].sum(axis=0)[::sign])[:, ::sign]
    joint = joint + _FLOOR * first[:, None, :, None] * second[None, :, None, :]
    shares: Array = joint / joint.sum(axis=(2, 3), keepdims=True)
    return shares


def _same_order(first: Array, second: Array) -> Array:
    """Return the table with these margins of two variables that have the same order: as correlated as can be."""
    one, two = (np.append(0.0, np.cumsum(shares) / shares.sum()) for shares in (first, second))
    ends = np.minimum(one[1:, None], two[None, 1:])
    found: Array = np.maximum(ends - np.maximum(one[:-1, None], two[None, :-1]), 0.0)
    return found


def _places(groups: Integers, slots: NDArray[np.uint8], rng: np.random.Generator) -> Array:
    """Return a place (0 to below 1) for each row, evenly spread over each group, in the order of ``slots``."""
    cells = groups.astype(np.int64) * SLOTS + slots
    order = np.argsort(cells + rng.random(len(cells)))
    counts = np.bincount(groups)
    starts = np.cumsum(counts) - counts
    places = np.empty(len(groups))
    held = groups[order]
    places[order] = (np.arange(len(groups)) - starts[held] + rng.random(len(groups))) / counts[held]
    return np.minimum(places, _LAST)
