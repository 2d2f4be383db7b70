"""FLAIM at the sites: scores of candidates on a site's own rows, from which it selects privately.

Source: Maddock, Cormode & Maple, KDD 2024 (arXiv 2310.06447), section 4; see :mod:`fedsynth.methods.flaim`.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
import numpy as np

from fedsynth.cliques import MOST_WEIGHT, Clique, as_tables
from fedsynth.errors import InvalidParameter
from fedsynth.federation.query import MOST_ROWS, Cliques, Query, Selection, SiteMeasurement, UtilityBound
from fedsynth.methods.measure import fit_noisy, fits, measurements, table_of
from fedsynth.rows import Rows
from fedsynth.schema.bins import MOST_CELLS, Axis, Floats, Integers

if TYPE_CHECKING:
    from fedsynth.models.estimate import Measurement
    from fedsynth.models.mrf import MarkovRandomField
    from fedsynth.schema import Schema

GRID = 2**24
"""Scores are integers in units of 1 / GRID record, shares integers in units of 1 / GRID of all records."""
MOST_PENALTY = 2**59
MOST_ITERATIONS = 1000
"""Largest number of steps of a fit that a site makes between two draws."""
_MOST_POTENTIAL = 1e12
_MOST_RECORDS = 2.0**48
_BLOCK = 2**20  # cells, or rows times tables, held at once
_MOST_LOOKED_UP = 2**24  # cells of tables whose rows are looked up one by one


class MeasuredTables(msgspec.Struct, frozen=True, forbid_unknown_fields=True, eq=False):
    """The noisy tables of a FLAIM run so far, as sent to a site that selects more than one candidate in a round.

    After each selection but the last, the site refits the model to these tables and to its own noisy tables of the
    candidates it selected, in at most ``iterations`` steps. ``values`` holds the flattened tables of ``cliques`` one
    after another, in records of the whole federation, of which there are ``total``; ``stds`` is the standard deviation
    of each table's noise, in records.
    """

    cliques: Annotated[Cliques, msgspec.Meta(min_length=1)]
    values: Floats
    stds: Floats
    total: Annotated[float, msgspec.Meta(ge=1, le=_MOST_RECORDS)]
    iterations: Annotated[int, msgspec.Meta(ge=1, le=MOST_ITERATIONS)]

    @classmethod
    def of(cls, measured: Sequence[Measurement], total: float, iterations: int) -> MeasuredTables:
        """Return the noisy tables ``measured`` in the form in which they are sent to sites."""
        values = flat_tables([m.values for m in measured])
        stds = np.array([m.std for m in measured])
        return cls(tuple(m.clique for m in measured), values, stds, total, iterations)

    def check(self, sizes: Sequence[int]) -> None:
        """Raise :class:`InvalidParameter` for tables that do not fit columns of these ``sizes``."""
        _check_cliques(self.cliques, sizes)
        if self.values.shape != (sum(_cells(sizes, q) for q in self.cliques),) or len(self.stds) != len(self.cliques):
            raise InvalidParameter(
                "measured tables need one value for each cell and one standard deviation for each table; pass both"
            )
        if not (np.abs(self.values).max() <= _MOST_RECORDS and 1e-6 <= self.stds.min() <= self.stds.max() <= 1e12):
            raise InvalidParameter(
                "measured tables or their standard deviations are out of range; pass finite values in records"
            )

    def measurements(self, sizes: Sequence[int]) -> list[Measurement]:
        """Return the tables as input for a fit."""
        tables = as_tables(self.values, _shapes(sizes, self.cliques))
        return measurements(self.cliques, tables, self.stds.tolist(), least_std=0.0)


class FLAIMSelection(Selection, frozen=True, kw_only=True, dict=True):
    """Selection of FLAIM: a candidate's score at a site is the model's error on the site's rows, with two corrections.

    A candidate q is a clique. A site computes the scores u(q) of all ``candidates`` and selects by them
    (:class:`~fedsynth.federation.query.Selection`):

    u(q) = w_q D_q - penalty_q - tau_q, in parts of 1 / G record (G = 2^24).

    D_q is the sum over all cells of the candidate's table of | G count - n S_q |. Here count is the number of the
    site's rows in the cell, and S_q the model's share of all rows in it as an integer, rint(G share). ``records`` (n)
    is the site's number of records that is public or was released with noise, fixed whatever its rows. The integers
    ``weights`` (w_q) and ``penalties`` have one entry for each candidate; a penalty stands for the noise that measuring
    the candidate would add, in the unit of u(q). tau_q stands for the site's deviation from all sites. It is computed
    from the shares of all sites' rows, as integers in parts of 1 / G, which take the place of S: with ``by_column``
    (tables of all columns, one after another), tau_q is the sum over the candidate's columns j of v_q D_j, where v_q =
    max(1, w_q / |q| rounded) and |q| is the number of columns of q; with ``by_candidate`` (tables of all candidates),
    it is w_q D_q; without either it is zero. See arXiv 2310.06447, section 4.

    The model is the product of exp(``potentials``), one table for each clique of ``factors``, flattened and
    concatenated. With ``steps`` (selections in a round) above 1, ``measured`` holds the noisy tables that the model was
    fitted to.

    Sensitivity: the integers S, w, v and penalty are functions of parameters and schema alone, computed before a row is
    looked at. A record adds 1 to one cell of each table, so that | G count - n S | moves by at most G in that cell and
    not at all in the others: each D moves by at most G, exactly, and u(q) by at most G (w_q + |q| v_q) with
    ``by_column``, 2 G w_q with ``by_candidate``, G w_q without; by twice that where a record is replaced. This holds
    for every value of the parameters that passes :meth:`check`.

    Range: with at most 2^28 rows, n <= 2^28 and sum S <= 2^25, a D is at most G 2^28 + 2^28 2^25 = 3 * 2^52. Weights
    are at most 255, and |q| v_q at most 255 + |q| / 2 <= 287 for the 64 columns of a clique at most, so that w D and
    tau are both between 0 and 287 * 3 * 2^52 < 0.85 * 2^62. Penalties are below 2^59 = 2^62 / 8, so that every score
    stays within 2^62: nothing overflows, and a draw never fails.
    """

    kind: ClassVar[str] = "flaim-scores"
    needs_rows: ClassVar[bool] = True

    records: Annotated[int, msgspec.Meta(ge=1, le=MOST_ROWS)]
    candidates: Annotated[Cliques, msgspec.Meta(min_length=1)]
    weights: Integers
    penalties: Integers
    factors: Annotated[Cliques, msgspec.Meta(min_length=1)]
    potentials: Floats
    by_column: Integers | None = None
    by_candidate: Integers | None = None
    measured: MeasuredTables | None = None

    @property
    def candidate_count(self) -> int:
        """Number of ``candidates``."""
        return len(self.candidates)

    def check(self, schema: Schema) -> None:
        """Raise :class:`InvalidParameter` for parameters of wrong shape or range.

        The tables of all candidates together may have at most 2^24 cells, and so may those of the model.
        """
        self._prepared(schema)

    def span(self, schema: Schema) -> UtilityBound:
        """Return how far one record moves any score, in parts of 1 / ``GRID`` record (proof: see the class)."""
        moved = self.weights
        if self.by_column is not None:
            layout = self._prepared(schema).candidates
            moved = moved + layout.members.sum(axis=0) * self._column_weights(layout)
        if self.by_candidate is not None:
            moved = moved + self.weights
        largest = GRID * int(moved.max())
        return UtilityBound(largest, 2 * largest)

    def utilities(self, rows: Rows, looks: Sequence[SiteMeasurement]) -> Integers:
        """Return each candidate's score in parts of 1 / ``GRID`` record, int64, shape ``(candidates,)``.

        The model is first refitted to ``looks``, if there are any.
        """
        prepared = self._prepared(rows.schema)
        layout = prepared.candidates
        model = prepared.shares if not looks else model_shares(self._adapted(prepared.model, looks), self.candidates)
        expected = [model] if self.by_candidate is None else [model, self.by_candidate]
        wrong, *apart = layout.distances(rows, self.records, expected)
        scores = self.weights * wrong - self.penalties
        if apart:
            scores -= self.weights * apart[0]
        if self.by_column is not None:
            (by_column,) = prepared.columns.distances(rows, self.records, [self.by_column])
            scores -= self._column_weights(layout) * (by_column[layout.columns] * layout.members).sum(axis=0)
        return scores

    def look(self, candidate: int, schema: Schema) -> Query:
        """Return the query for the candidate's contingency table; its noisy answer does not leave the site."""
        return table_of(self.candidates[candidate])

    def _column_weights(self, layout: _Layout) -> Integers:
        """Return v_q: each candidate's weight divided by its number of columns, rounded, at least 1."""
        count = layout.members.sum(axis=0)
        found: Integers = np.maximum(1, (2 * self.weights + count) // (2 * count))
        return found

    @cached_property
    def _content(self) -> bytes:
        """SHA-256 of the parameters that all sites share: all but the number of records."""
        from fedsynth.federation.wire import encode

        return hashlib.sha256(encode(msgspec.structs.replace(self, records=1))).digest()

    def _prepared(self, schema: Schema) -> _Prepared:
        return _prepare(_Key(self._content, schema.digest, self, schema))

    def _checked(self, sizes: Sequence[int]) -> None:
        _check_cliques(self.candidates, sizes)
        _check_cliques(self.factors, sizes)
        count, cells = len(self.candidates), sum(_cells(sizes, q) for q in self.candidates)
        if cells > MOST_CELLS:
            raise InvalidParameter(f"candidates of {cells} cells are too large (at most {MOST_CELLS}); ask for fewer")
        for what, values, low, high in (
            ("weights", self.weights, 1, MOST_WEIGHT),
            ("penalties", self.penalties, 1 - MOST_PENALTY, MOST_PENALTY - 1),
        ):
            if values.shape != (count,) or not (low <= values.min() and values.max() <= high):
                raise InvalidParameter(f"{what} of {count} candidates must be {count} integers from {low} to {high}")
        if self.potentials.shape != (sum(_cells(sizes, q) for q in self.factors),):
            raise InvalidParameter("the model needs one potential for each cell of its factors")
        if np.abs(self.potentials).max() > _MOST_POTENTIAL:
            raise InvalidParameter(f"the model's potentials must be at most {_MOST_POTENTIAL:g} in absolute value")
        _check_model(sizes, self.factors)
        if self.by_column is not None and self.by_candidate is not None:
            raise InvalidParameter("give the shares of all sites by column or by candidate, not both")
        _check_shares(self.by_column, [(j,) for j in range(len(sizes))], sizes)
        _check_shares(self.by_candidate, self.candidates, sizes)
        if (self.steps > 1) != (self.measured is not None):
            raise InvalidParameter("scores need `measured` if steps is above 1, and only then; pass it or leave it out")
        if self.measured is not None:
            self.measured.check(sizes)
            held = [frozenset(q) for q in self.measured.cliques]
            if any(len(q) > 1 and not any(table.issuperset(q) for table in held) for q in self.factors):
                raise InvalidParameter("every factor of the model must lie in a measured table")
            _check_model(sizes, self.measured.cliques)

    def _adapted(self, model: MarkovRandomField, looks: Sequence[SiteMeasurement]) -> MarkovRandomField:
        """Return the model refitted to ``measured`` and to ``looks``, without those that make it too large."""
        from fedsynth.models.estimate import Measurement

        assert self.measured is not None
        tables = self.measured.measurements(model.sizes)
        factor = self.measured.total / self.records
        for look in looks:
            q = self.candidates[look.candidate]
            if fits(model.sizes, [m.clique for m in tables], q, 8 * MOST_CELLS / 2**20):
                values = look.values.reshape([model.sizes[j] for j in q]).astype(np.float64) * factor
                tables.append(Measurement(q, values, max(look.std, 1e-6) * factor))
        return fit_noisy(model.sizes, tables, self.measured.total, self.measured.iterations, model, one_cohort=False)


@dataclass(frozen=True)
class _Key:
    """Cache key of scores: sites that differ only in their number of records share one evaluation."""

    content: bytes
    schema_digest: str
    scores: FLAIMSelection = field(compare=False)
    schema: Schema = field(compare=False)


@dataclass(frozen=True, eq=False)
class _Prepared:
    """The checked model, and its share of each candidate's cells, candidate by candidate, in units of 1 / GRID."""

    model: MarkovRandomField
    shares: Integers
    candidates: _Layout
    columns: _Layout


@lru_cache(maxsize=2)
def _prepare(key: _Key) -> _Prepared:
    """Check the parameters and evaluate the model on every candidate, once per process for sites that share them."""
    from fedsynth.models.mrf import MarkovRandomField

    scores, sizes = key.scores, key.schema.sizes
    scores._checked(sizes)
    total = 1.0 if scores.measured is None else scores.measured.total
    model = MarkovRandomField(
        sizes, total, scores.factors, as_tables(scores.potentials, _shapes(sizes, scores.factors))
    )
    columns = [(j,) for j in range(len(sizes))]
    return _Prepared(
        model, model_shares(model, scores.candidates), _Layout.of(scores.candidates, sizes), _Layout.of(columns, sizes)
    )


@dataclass(frozen=True, eq=False)
class _Layout:
    """Tables concatenated in one array: ``sizes`` and ``starts``, shape ``(tables,)``, are their lengths and offsets.

    Table t is over the columns ``columns[:, t]`` where ``members[:, t]`` is 1 (it is 0 beyond the table's order), with
    the strides ``strides[:, t]``.
    """

    cliques: tuple[Clique, ...]
    sizes: Integers
    starts: Integers
    columns: Integers
    members: Integers
    strides: Integers

    @classmethod
    def of(cls, cliques: Sequence[Clique], sizes: Sequence[int]) -> _Layout:
        shape = max(map(len, cliques)), len(cliques)
        columns, members, strides = (np.zeros(shape, dtype=np.int64) for _ in range(3))
        for at, q in enumerate(cliques):
            columns[: len(q), at], members[: len(q), at] = q, 1
            strides[: len(q), at] = np.cumprod([1, *(sizes[j] for j in reversed(q))])[:-1][::-1]
        cells = np.array([_cells(sizes, q) for q in cliques])
        return cls(tuple(cliques), cells, np.cumsum(cells) - cells, columns, members, strides)

    def distances(self, rows: Rows, records: int, expected: Sequence[Integers]) -> list[Integers]:
        """Return the sum over cells of | GRID count - records S | of each table, for each S of ``expected``.

        Whether cells or rows are visited, and the running time, depend on the numbers of cells and rows alone.
        """
        cells, visits = int(self.sizes.sum()), len(rows) * len(self.cliques)
        if cells <= _MOST_LOOKED_UP and visits <= min(cells, _BLOCK):
            return self._by_row(rows, records, expected)
        return self._by_cell(rows, records, expected)

    def _by_cell(self, rows: Rows, records: int, expected: Sequence[Integers]) -> list[Integers]:
        axes = [Axis(column) for column in range(len(rows.schema.stored))]
        parts: list[list[Integers]] = [[] for _ in expected]
        first = 0
        while first < len(self.cliques):
            start = int(self.starts[first])
            last = max(first + 1, int(np.searchsorted(self.starts + self.sizes, start + _BLOCK, side="right")))
            counts = np.concatenate([table.ravel() for table in rows.tables(axes, self.cliques[first:last])])
            counts *= GRID
            for whole, distances in zip(expected, parts, strict=True):
                apart = whole[start : start + len(counts)] * records
                np.subtract(counts, apart, out=apart)
                np.abs(apart, out=apart)
                distances.append(np.add.reduceat(apart, self.starts[first:last] - start))
            first = last
        return [np.concatenate(distances) for distances in parts]

    def _by_row(self, rows: Any, records: int, expected: Sequence[Integers]) -> list[Integers]:
        """Visit only the cells that contain rows, each once, at its last row.

        An empty cell adds records S, so that a table's distance is records sum S plus the differences at the other
        cells.
        """
        codes = np.stack([column.astype(np.int64) for column in rows.codes])
        places = np.zeros((len(self.cliques), len(rows)), dtype=np.int64) + self.starts[:, None]
        for columns, strides in zip(self.columns, self.strides, strict=True):
            places += codes[columns] * strides[:, None]
        cells = int(self.sizes.sum())
        counts = GRID * np.bincount(places.ravel(), minlength=cells)[places]
        visit = np.arange(places.size).reshape(places.shape)
        last = np.empty(cells, dtype=np.int64)
        last[places] = visit
        occurs = last[places] == visit
        distances = []
        for whole in expected:
            apart = whole[places] * records
            changed = (np.abs(counts - apart) - apart) * occurs
            distances.append(records * np.add.reduceat(whole, self.starts) + changed.sum(axis=1))
        return distances


def model_shares(model: MarkovRandomField, cliques: Sequence[Clique]) -> Integers:
    """Return the model's share of the rows in each cell of the tables of ``cliques``, as :func:`on_grid` does."""
    answers = model.marginals(cliques)
    return on_grid([answers[q] / model.total for q in cliques])


def on_grid(shares: Sequence[Floats]) -> Integers:
    """Return tables of shares of the rows (0 to 1) as integers in units of 1 / ``GRID``, by :func:`flat_tables`."""
    return np.rint(np.clip(np.nan_to_num(flat_tables(shares)), 0.0, 1.0) * GRID).astype(np.int64)


def flat_tables(tables: Sequence[Floats]) -> Floats:
    """Return tables flattened in C order and concatenated, without negative zeros, as the wire format requires."""
    return np.concatenate([table.ravel() for table in tables]) + 0.0


def _shapes(sizes: Sequence[int], cliques: Sequence[Clique]) -> list[tuple[int, ...]]:
    return [tuple(sizes[j] for j in q) for q in cliques]


def _cells(sizes: Sequence[int], clique: Clique) -> int:
    return math.prod(sizes[j] for j in clique)


def _check_cliques(cliques: Sequence[Clique], sizes: Sequence[int]) -> None:
    for q in cliques:
        if q[-1] >= len(sizes) or any(a >= b for a, b in itertools.pairwise(q)):
            raise InvalidParameter(f"a clique is made of columns below {len(sizes)}, in increasing order; got {q}")


def _check_model(sizes: Sequence[int], factors: Sequence[Clique]) -> None:
    from fedsynth.models.junction_tree import junction_tree_cells

    cells = junction_tree_cells(sizes, factors)
    if cells > MOST_CELLS:
        raise InvalidParameter(f"a model of {cells} cells is too large (at most {MOST_CELLS}); use a smaller one")


def _check_shares(shares: Integers | None, cliques: Sequence[Clique], sizes: Sequence[int]) -> None:
    """Refuse shares that are not integers in units of 1 / GRID, or that add up to more than 2 in a table."""
    if shares is None:
        return
    cells = [_cells(sizes, q) for q in cliques]
    if shares.shape != (sum(cells),) or not (shares.min() >= 0 and shares.max() <= GRID):
        raise InvalidParameter(f"the shares of all sites must be one integer from 0 to {GRID} for each cell")
    if np.add.reduceat(shares, np.cumsum([0, *cells[:-1]])).max() > 2 * GRID:
        raise InvalidParameter("the shares of all sites in one table add up to more than 2, not to about 1")
