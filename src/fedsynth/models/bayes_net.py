"""A Bayesian network of discrete columns, and rows from it: what FedBN and PrivBayes fit.

Tables of counts come in, noisy or not; conditional probabilities and rows come out. Source of parameters and sampling:
PrivBayes (Zhang et al., TODS 2017, doi 10.1145/3134428). Corrected: tables are projected on the simplex in place of
clipped, which adds mass to every empty cell; states of the parents that never occur lead to what fewer parents say in
place of the uniform distribution; and rows are drawn evenly: see :func:`fedsynth.models.cells.evenly`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter
from fedsynth.models.cells import evenly
from fedsynth.models.estimate import Zeros, forbidden, without
from fedsynth.models.evidence import IMPOSSIBLE, Evidence, Kept
from fedsynth.models.gum import simplex
from fedsynth.models.mrf import MarkovRandomField, junction_tree_cells, log_potential
from fedsynth.models.structure import Parents, Structure, mutual_information

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
_BACKING = 1e-6  # rows that what fewer parents say counts for: it only decides where there are none
_CHUNK = 1 << 16  # rows at a time: they are drawn evenly, and their working memory stays in the cache
_MOST_CELLS = 1 << 23  # of a junction tree that conditions are worked out on: 64 MB
_RAKES = 10  # turns over a table's axes
_MOST_ROWS = 1 << 20  # of one table of conditional probabilities; see `evenly`


@dataclass(frozen=True, eq=False)
class BayesianNetwork:
    """Columns given their parents: ``conditionals[j]`` has an axis for each parent, sorted, and last the column's own.

    Every row of a conditional table sums to one. ``total`` is the estimated number of records.
    """

    structure: Structure
    conditionals: tuple[Array, ...]
    total: float
    kind: ClassVar[str] = "bayes"

    def __post_init__(self) -> None:
        """Refuse tables that do not fit the structure, or that are too large to draw from exactly."""
        for column, (table, parents) in enumerate(zip(self.conditionals, self.structure.parents, strict=True)):
            if table.shape[:-1] != tuple(self.sizes[parent] for parent in parents):
                raise InvalidParameter(
                    f"column {column}: a table of shape {table.shape} does not fit parents {parents}"
                )
            if table.size > _MOST_ROWS * table.shape[-1]:
                raise InvalidParameter(f"column {column}: its parents have over {_MOST_ROWS} states; allow fewer cells")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of codes of each column."""
        return tuple(one.shape[-1] for one in self.conditionals)

    @classmethod
    def of_tables(
        cls, structure: Structure, tables: Mapping[Parents, Array], total: float, *, zeros: Zeros | None = None
    ) -> BayesianNetwork:
        """Return the network with the conditional probabilities of ``tables``, counts by sorted clique.

        Each column needs a table that holds it and its parents; the smallest one is used. Entries may be negative:
        tables are projected on the non-negative ones of sum ``total`` first, and then scaled until the columns' counts
        are those of their own tables, where such are given: noise that projection leaves in rare cells adds up there.
        Cells that ``zeros`` name get no rows, where a column and its parents hold their clique.
        """
        zeros = zeros or {}
        held = {clique: simplex(without(table, clique, zeros), total) for clique, table in tables.items()}
        known = {clique[0]: table for clique, table in held.items() if len(clique) == 1}
        held = {clique: without(table, clique, zeros) for clique, table in held.items()}
        held = {clique: _raked(table, [known.get(column) for column in clique]) for clique, table in held.items()}
        conditionals = []
        for column, parents in enumerate(structure.parents):
            own = sorted((column, *parents))
            able = [clique for clique in held if set(own) <= set(clique)]
            if not able:
                raise InvalidParameter(f"no table holds the columns {own} together; pass one for each clique")
            source = min(able, key=lambda clique: (held[clique].size, clique))
            joint = held[source].sum(axis=tuple(at for at, one in enumerate(source) if one not in own))
            given = _given(np.moveaxis(joint, own.index(column), -1))
            mask = forbidden(zeros, tuple(own), joint.shape)
            conditionals.append(given if mask is None else _possible(given, np.moveaxis(mask, own.index(column), -1)))
        return cls(structure, tuple(conditionals), total)

    def sample(self, rows: int, rng: np.random.Generator) -> list[NDArray[Any]]:
        """Return each column's codes, shape ``(rows,)``, in the narrowest unsigned integers; parents come first."""
        return self.completed({}, rows, rng)

    def given(self, evidence: Mapping[int, Evidence]) -> GivenNetwork | Kept | None:
        """Return the network's rows with this evidence; ``None`` if it has no such rows.

        Evidence on a column says something of its ancestors alone: these are a graphical model with the evidence as
        further factors, and all other columns are drawn as ever. Where its junction tree would be too large, rows are
        drawn and kept.
        """
        above = set(evidence)
        for column in reversed(self.structure.order):
            above |= set(self.structure.parents[column]) if column in above else set()
        columns = tuple(sorted(above))
        factors, tables = [], []
        for column in columns:
            axes = (*self.structure.parents[column], column)
            order = np.argsort(axes)
            factors.append(tuple(columns.index(axes[at]) for at in order))
            tables.append(self.conditionals[column].transpose(order))
        for column, one in evidence.items():
            factors.append((columns.index(column),))
            tables.append(one.likelihood(np.arange(self.sizes[column])))
        sizes = [self.sizes[column] for column in columns]
        if junction_tree_cells(sizes, factors) > _MOST_CELLS:
            return Kept(self, evidence)
        known = MarkovRandomField(sizes, self.total, factors, [log_potential(table) for table in tables])
        return GivenNetwork(self, columns, known) if known.log_partition > IMPOSSIBLE else None

    def completed(self, known: Mapping[int, NDArray[Any]], rows: int, rng: np.random.Generator) -> list[NDArray[Any]]:
        """Return rows whose ``known`` columns are given; the ancestors of these must be known too."""
        result = [
            known[column] if column in known else np.empty(rows, dtype=np.min_scalar_type(size - 1))
            for column, size in enumerate(self.sizes)
        ]
        sizes, drawn = self.sizes, [column for column in self.structure.order if column not in known]
        for start in range(0, rows, _CHUNK):
            part = slice(start, min(rows, start + _CHUNK))
            for column in drawn:
                row = self._row(column, [one[part] for one in result])
                place = evenly(row, rng)
                place += row
                found = np.searchsorted(self._cumulative[column], place, side="right")
                row *= sizes[column]
                result[column][part] = found - row
        return result

    def log_likelihood(self, codes: Sequence[NDArray[Any]]) -> Array:
        """Return each row's log probability in nats, shape ``(rows,)``; -inf where the network rules it out."""
        result = np.zeros(len(codes[0]))
        with np.errstate(divide="ignore"):
            for column, table in enumerate(self.conditionals):
                cell = self._row(column, codes) * table.shape[-1] + codes[column]
                result += np.log(table.ravel()[cell])
        return result

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the network as JSON values and arrays; the inverse of :meth:`from_arrays`."""
        parents = [list(one) for one in self.structure.parents]
        meta = {"order": list(self.structure.order), "parents": parents, "total": self.total}
        return meta, {f"conditional{column}": table for column, table in enumerate(self.conditionals)}

    @classmethod
    def from_arrays(cls, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> BayesianNetwork:
        """Return the network that :meth:`to_arrays` described."""
        structure = Structure(tuple(meta["order"]), tuple(tuple(one) for one in meta["parents"]))
        tables = tuple(arrays[f"conditional{column}"] for column in range(len(structure.parents)))
        return cls(structure, tables, float(meta["total"]))

    def _row(self, column: int, codes: Sequence[NDArray[Any]]) -> Integers:
        """Return the row of the column's (flattened) table that each record's parents point at."""
        row = np.zeros(len(codes[0]), dtype=np.int64)
        for parent in self.structure.parents[column]:
            row *= self.sizes[parent]
            row += codes[parent]
        return row

    @cached_property
    def _cumulative(self) -> tuple[Array, ...]:
        """One ascending array a column: the cumulated rows of its table, each moved up by its number.

        A draw is then one binary search for all rows at once, whatever their parents.
        """
        found = []
        for table in self.conditionals:
            rows = np.cumsum(table.reshape(-1, table.shape[-1]), axis=1)
            rows /= rows[:, -1:]
            found.append((rows + np.arange(len(rows))[:, None]).ravel())
        return tuple(found)


@dataclass(frozen=True, eq=False)
class GivenNetwork:
    """Rows of a ``network`` given evidence: ``columns``, with all their ancestors, by the model ``above`` of them."""

    network: BayesianNetwork
    columns: tuple[int, ...]
    above: MarkovRandomField

    def sample(self, rows: int, rng: np.random.Generator) -> list[NDArray[Any]]:
        """Return each column's codes, shape ``(rows,)``."""
        return self.network.completed(dict(zip(self.columns, self.above.sample(rows, rng), strict=True)), rows, rng)


def _raked(table: Array, margins: Sequence[Array | None]) -> Array:
    """Return a non-negative table scaled along its axes, in turn, until each sums to its margin, where there is one.

    Iterative proportional fitting (Deming & Stephan 1940, doi 10.1214/aoms/1177731829). A part of the table that is
    empty stays empty.
    """
    for _ in range(_RAKES):
        for axis, margin in enumerate(margins):
            if margin is not None and table.ndim > 1:
                sums = table.sum(axis=tuple(at for at in range(table.ndim) if at != axis))
                factor = np.where(sums > 0, margin / np.where(sums > 0, sums, 1.0), 1.0)
                table = table * factor.reshape([-1 if at == axis else 1 for at in range(table.ndim)])
    return table


def _possible(given: Array, mask: NDArray[np.bool_]) -> Array:
    """Return conditional probabilities without the cells of ``mask``, where that leaves parents' states a value."""
    found = np.where(mask, 0.0, given)
    sums = found.sum(axis=-1, keepdims=True)
    return np.where(sums > 0, found / np.where(sums > 0, sums, 1.0), given)


def _given(joint: Array) -> Array:
    """Return the distribution of the last axis given the others: backed off, where they have no mass, to fewer.

    The distribution without the weakest of the others counts like ``_BACKING`` rows (a Dirichlet prior; MacKay & Peto
    1995, doi 10.1017/S1351324900000218), and so on down to the last axis by itself. States of the parents that no row
    has are drawn all the same, wherever the parents are not all of one table.
    """
    if joint.ndim == 1:
        return joint / joint.sum() if joint.sum() > 0 else np.full(len(joint), 1 / len(joint))
    parents = range(joint.ndim - 1)
    pairs = [joint.sum(axis=tuple(other for other in parents if other != one)) for one in parents]
    weakest = min(parents, key=lambda one: mutual_information(pairs[one]))
    prior = np.expand_dims(_given(joint.sum(axis=weakest)), weakest)
    given: Array = (joint + _BACKING * prior) / (joint.sum(axis=-1, keepdims=True) + _BACKING)
    return given
