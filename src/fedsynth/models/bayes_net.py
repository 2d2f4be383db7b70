"""Bayesian networks of discrete columns, fitted to tables of counts and sampled: the model of FedBN and PrivBayes.

The counts may be noisy. Parameters and sampling follow PrivBayes (Zhang et al., TODS 2017, doi 10.1145/3134428) with
three corrections. Tables are projected on the simplex (made non-negative, of a fixed sum) instead of clipped, since
clipping adds mass to every empty cell. For combinations of the parents' values that never occur, the distribution backs
off to fewer parents instead of the uniform distribution. The random numbers behind the rows are evenly spread instead
of independent (:func:`fedsynth.models.stratified.stratified_uniforms`).
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
from fedsynth.models.estimate import Zeros, forbidden, without
from fedsynth.models.evidence import IMPOSSIBLE, Evidence, RejectionSampler
from fedsynth.models.gum import simplex
from fedsynth.models.mrf import MarkovRandomField, junction_tree_cells, log_potential
from fedsynth.models.saved import (
    DrawnColumn,
    Position,
    SavedColumns,
    Total,
    check_positions,
    check_shares,
    read_floats,
    read_head,
)
from fedsynth.models.stratified import strata_of, stratified_uniforms
from fedsynth.models.structure import Parents, Structure, mutual_information
from fedsynth.schema.bins import MOST_COLUMNS

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
_BACKING = 1e-6  # prior weight, in rows, of the back-off distribution: it matters only where there are no rows
_CHUNK = 1 << 16  # rows sampled at a time: within a chunk draws are even, and the working memory fits into the cache
_MOST_CELLS = 1 << 23  # largest junction tree for exact conditioning: 64 MB
_RAKES = 10  # rounds of iterative proportional fitting
_MOST_ROWS = 1 << 20  # most states of the parents in one conditional table; see `evenly`


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON values of a saved network."""

    order: SavedColumns
    parents: Annotated[tuple[tuple[Position, ...], ...], msgspec.Meta(min_length=1, max_length=MOST_COLUMNS)]
    total: Total


@dataclass(frozen=True, eq=False)
class BayesianNetwork:
    """A Bayesian network of discrete columns: each column's distribution given its parents, as tables.

    Columns hold integer codes from 0 (of values or bins). ``conditionals[j]`` is the table of column j, float64, with
    one axis for each of its parents (ascending) and column j's own axis last, along which it sums to one. ``total`` is
    the estimated number of records. Raises :class:`InvalidParameter` for tables that do not fit their parents, and for
    a column whose parents have more than 2^20 combinations of codes.
    """

    structure: Structure
    conditionals: tuple[Array, ...]
    total: float
    kind: ClassVar[str] = "bayes"

    def __post_init__(self) -> None:
        for column, (table, parents) in enumerate(zip(self.conditionals, self.structure.parents, strict=True)):
            if table.shape[:-1] != tuple(self.sizes[parent] for parent in parents):
                raise InvalidParameter(
                    f"column {column}: a table of shape {table.shape} does not fit its parents {parents}; fit it again"
                )
            if table.size > _MOST_ROWS * table.shape[-1]:
                raise InvalidParameter(
                    f"column {column}: its parents have more than {_MOST_ROWS} states; allow fewer cells"
                )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of codes of each column."""
        return tuple(table.shape[-1] for table in self.conditionals)

    @classmethod
    def of_tables(
        cls, structure: Structure, tables: Mapping[Parents, Array], total: float, *, zeros: Zeros | None = None
    ) -> BayesianNetwork:
        """Estimate a network of this ``structure`` from ``tables``: noisy counts of about ``total`` rows.

        The distribution of each column is read from the smallest table that contains the column and its parents. Tables
        are first projected on the simplex. The noise that this leaves in rare cells adds up in the counts of single
        columns; where ``tables`` holds the 1-way table of a column, larger tables are therefore scaled to its counts.
        Cells of ``zeros`` (:data:`~fedsynth.models.estimate.Zeros`) get probability 0 if their clique lies within a
        column and its parents, unless that would leave no value of the column for some codes of the parents. Raises
        :class:`InvalidParameter` if some column and its parents are not together in any table.
        """
        zeros = zeros or {}
        cleaned = {clique: simplex(without(table, clique, zeros), total) for clique, table in tables.items()}
        known = {clique[0]: table for clique, table in cleaned.items() if len(clique) == 1}
        cleaned = {clique: without(table, clique, zeros) for clique, table in cleaned.items()}
        cleaned = {clique: _raked(table, [known.get(column) for column in clique]) for clique, table in cleaned.items()}
        conditionals = []
        for column, parents in enumerate(structure.parents):
            own = sorted((column, *parents))
            able = [clique for clique in cleaned if set(own) <= set(clique)]
            if not able:
                raise InvalidParameter(f"no table contains the columns {own} together; pass one for each clique")
            source = min(able, key=lambda clique: (cleaned[clique].size, clique))
            joint = cleaned[source].sum(axis=tuple(at for at, member in enumerate(source) if member not in own))
            given = _given(np.moveaxis(joint, own.index(column), -1))
            mask = forbidden(zeros, tuple(own), joint.shape)
            conditionals.append(given if mask is None else _possible(given, np.moveaxis(mask, own.index(column), -1)))
        return cls(structure, tuple(conditionals), total)

    def sample(self, rows: int, rng: np.random.Generator) -> list[NDArray[Any]]:
        """Draw ``rows`` rows, parents before children: codes of the narrowest unsigned type, shape ``(rows,)`` each."""
        return self.completed({}, rows, rng)

    def given(self, evidence: Mapping[int, Evidence]) -> GivenNetwork | RejectionSampler | None:
        """Return a sampler of rows given ``evidence`` (by column number); ``None`` if such rows have probability 0.

        The columns with evidence and their ancestors form a graphical model, with the evidence as additional factors.
        The other columns are then sampled from the network: given the former, evidence does not change their
        distribution. If the junction tree of that model would have more than 2^23 cells, rejection sampling is used,
        whatever the probability.
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
        for column, known_column in evidence.items():
            factors.append((columns.index(column),))
            tables.append(known_column.likelihood(np.arange(self.sizes[column])))
        sizes = [self.sizes[column] for column in columns]
        if junction_tree_cells(sizes, factors) > _MOST_CELLS:
            return RejectionSampler(self, evidence)
        known = MarkovRandomField(sizes, self.total, factors, [log_potential(table) for table in tables])
        return GivenNetwork(self, columns, known) if known.log_partition > IMPOSSIBLE else None

    def completed(self, known: Mapping[int, NDArray[Any]], rows: int, rng: np.random.Generator) -> list[NDArray[Any]]:
        """Complete rows whose codes in some columns, with all their ancestors, are ``known``; return all columns."""
        result = [
            known[column] if column in known else np.empty(rows, dtype=np.min_scalar_type(size - 1))
            for column, size in enumerate(self.sizes)
        ]
        sizes, order = self.sizes, [column for column in self.structure.order if column not in known]
        for start in range(0, rows, _CHUNK):
            part = slice(start, min(rows, start + _CHUNK))
            drawn = set(known)
            for column in order:
                codes = [codes[part] for codes in result]
                row = self._row(column, codes)
                others = drawn.difference(self.structure.parents[column])
                place = stratified_uniforms(row, rng, strata_of(others, sizes, codes, rng))
                drawn.add(column)
                place += row
                found = np.searchsorted(self._cumulative[column], place, side="right")
                row *= sizes[column]
                result[column][part] = found - row
        return result

    def log_likelihood(self, codes: Sequence[NDArray[Any]]) -> Array:
        """Return each row's log probability in nats, shape ``(rows,)``; -inf for rows of probability 0."""
        result = np.zeros(len(codes[0]))
        with np.errstate(divide="ignore"):
            for column, table in enumerate(self.conditionals):
                cell = self._row(column, codes) * table.shape[-1] + codes[column]
                result += np.log(table.ravel()[cell])
        return result

    @property
    def related(self) -> NDArray[np.bool_]:
        """Each column and its parents; parents of one column only where one is the other's."""
        edges = [(column, parent) for column, parents in enumerate(self.structure.parents) for parent in parents]
        return related(len(self.sizes), edges)

    @property
    def drawn_columns(self) -> tuple[DrawnColumn, ...]:
        """Integer codes."""
        return tuple(DrawnColumn(size) for size in self.sizes)

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the network as JSON values and named arrays."""
        parents = [list(parents) for parents in self.structure.parents]
        meta = {"order": list(self.structure.order), "parents": parents, "total": self.total}
        return meta, {f"conditional{column}": table for column, table in enumerate(self.conditionals)}

    @classmethod
    def from_arrays(cls, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> BayesianNetwork:
        """Restore the network; raises :class:`InvalidParameter` for anything else, such as a graph with a cycle."""
        saved = read_head(meta, _Saved)
        for parents in saved.parents:
            check_positions(parents, len(saved.parents))
        structure = Structure(saved.order, saved.parents)
        tables = []
        for column, parents in enumerate(saved.parents):
            name = f"conditional{column}"
            tables.append(read_floats(arrays, name, [None] * (len(parents) + 1), 0))
            check_shares(name, tables[-1])
        return cls(structure, tuple(tables), saved.total)

    def _row(self, column: int, codes: Sequence[NDArray[Any]]) -> Integers:
        """Return, for each record, the row of the column's flattened table that its parents' states select."""
        row = np.zeros(len(codes[0]), dtype=np.int64)
        for parent in self.structure.parents[column]:
            row *= self.sizes[parent]
            row += codes[parent]
        return row

    @cached_property
    def _cumulative(self) -> tuple[Array, ...]:
        """Cumulated probabilities of each column's table, one ascending array per column: row i is shifted up by i.

        One binary search then draws for all states of the parents at once.
        """
        cumulative = []
        for table in self.conditionals:
            rows = np.cumsum(table.reshape(-1, table.shape[-1]), axis=1)
            rows /= rows[:, -1:]
            cumulative.append((rows + np.arange(len(rows))[:, None]).ravel())
        return tuple(cumulative)


@dataclass(frozen=True, eq=False)
class GivenNetwork:
    """Sampler of a network's rows given evidence, made by :meth:`BayesianNetwork.given`.

    ``columns`` are the columns with evidence and all their ancestors. They are drawn from ``above``, a graphical model
    of these columns, in this order, given the evidence; then the others are drawn from ``network`` given them.
    """

    network: BayesianNetwork
    columns: tuple[int, ...]
    above: MarkovRandomField

    def sample(self, rows: int, rng: np.random.Generator) -> list[NDArray[Any]]:
        """Draw ``rows`` rows that meet the evidence; one array of codes per column."""
        return self.network.completed(dict(zip(self.columns, self.above.sample(rows, rng), strict=True)), rows, rng)


def _raked(table: Array, margins: Sequence[Array | None]) -> Array:
    """Scale a non-negative table along its axes, in turn, towards the sums ``margins`` (``None``: not given).

    By iterative proportional fitting (Deming & Stephan 1940, doi 10.1214/aoms/1177731829), in 10 rounds. Parts of the
    table without mass stay empty; a 1-way table is returned as it is.
    """
    for _ in range(_RAKES):
        for axis, margin in enumerate(margins):
            if margin is not None and table.ndim > 1:
                sums = table.sum(axis=tuple(at for at in range(table.ndim) if at != axis))
                factor = np.where(sums > 0, margin / np.where(sums > 0, sums, 1.0), 1.0)
                table = table * factor.reshape([-1 if at == axis else 1 for at in range(table.ndim)])
    return table


def _possible(given: Array, mask: NDArray[np.bool_]) -> Array:
    """Set cells of ``mask`` to zero and renormalise, except where a state of the parents would keep no value."""
    found = np.where(mask, 0.0, given)
    sums = found.sum(axis=-1, keepdims=True)
    return np.where(sums > 0, found / np.where(sums > 0, sums, 1.0), given)


def _given(joint: Array) -> Array:
    """Return the conditional distribution of the last axis given all others, with back-off to fewer of them.

    The distribution given all but the weakest of the others is the prior, with the weight of ``_BACKING`` rows (a
    Dirichlet prior; MacKay & Peto 1995, doi 10.1017/S1351324900000218), and so on down to the last axis alone. Sampling
    can reach states of the parents without rows if no single table contains all parents.
    """
    if joint.ndim == 1:
        return joint / joint.sum() if joint.sum() > 0 else np.full(len(joint), 1 / len(joint))
    parents = range(joint.ndim - 1)
    pairs = [joint.sum(axis=tuple(other for other in parents if other != parent)) for parent in parents]
    weakest = min(parents, key=lambda parent: mutual_information(pairs[parent]))
    prior = np.expand_dims(_given(joint.sum(axis=weakest)), weakest)
    given: Array = (joint + _BACKING * prior) / (joint.sum(axis=-1, keepdims=True) + _BACKING)
    return given
