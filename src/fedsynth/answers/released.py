"""The noisy tables that a run released, read from its transcript, and what they say of questions that nobody declared.

Only released tables have intervals that hold: a fitted model, and rows drawn from it, also assume the independences
that the model does not hold. So a condition is answered only if one released table has all of its columns and no cell
of it mixes rows that meet it with others.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.answers import intervals
from fedsynth.answers.condition import Condition, read_condition
from fedsynth.answers.questions import Answer
from fedsynth.answers.ranges import cell_ends, cell_labels, levels, shown
from fedsynth.errors import Unsupported
from fedsynth.federation.agreement import Agreement
from fedsynth.federation.query import Counts
from fedsynth.federation.transport import records
from fedsynth.federation.trust import Released
from fedsynth.federation.weighted import WeightedCounts
from fedsynth.federation.wire import DIGEST, Request, agreed_in, decode
from fedsynth.methods.interactions import Interactions, basis
from fedsynth.runs.folder import RunFolder
from fedsynth.schema import Schema
from fedsynth.schema.bins import Axis, Floats
from fedsynth.schema.columns import Column

if TYPE_CHECKING:
    import pandas as pd

_SMALLEST = 4.0  # noise deviations that a table's rows must have
_MOST_NOISE = 0.1  # of the rows, as the noise's deviation in a number that is told
_NAMED = 2  # conditions that could be answered, named in a message


@dataclass(frozen=True, eq=False)
class ReleasedTable:
    """A noisy contingency table as a run released it, in records; its noise is independent from release to release.

    ``step`` is the number of its question in the run, and ``declared`` says whether it answers a declared question.
    ``axes`` are those of its cells. Its cells are the sum of its ``parts``.
    """

    schema: Schema
    step: int
    declared: bool
    axes: tuple[Axis, ...]
    parts: tuple[_Part, ...]

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of the axes."""
        return tuple(self.schema.stored[axis.column].name for axis in self.axes)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Number of cells of each axis."""
        columns = [self.schema.stored[axis.column] for axis in self.axes]
        return tuple(axis.size(column.size, column.missing) for axis, column in zip(self.axes, columns, strict=True))

    def summed(self, cells: Floats) -> tuple[float, float]:
        """Return the sum over the cells of a mask (or of any weights) of the table's shape, and its variance."""
        found = [part.summed(cells) for part in self.parts]
        return math.fsum(value for value, _ in found), math.fsum(variance for _, variance in found)

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each cell: its values or intervals by column, the noisy ``count``, and its noise's ``std``."""
        import pandas as pd

        labels = [cell_labels(self.schema.stored[axis.column], axis) for axis in self.axes]
        places = np.indices(self.shape).reshape(len(labels), -1)
        cells = {name: [of[at] for at in place] for name, of, place in zip(self.columns, labels, places, strict=True)}
        counts, variances = (sum(part.cells()[side] for part in self.parts) for side in (0, 1))
        return pd.DataFrame({**cells, "count": np.ravel(counts), "std": np.sqrt(np.ravel(variances))})


@dataclass(frozen=True, eq=False)
class _Part:
    """A released part of a table: ``values`` with noise of ``std``, along orthonormal vectors of each axis.

    ``bases`` holds, for each axis, the vectors as columns, ``(cells, vectors)``, or ``None`` for the cells themselves.
    The constant vector makes what an axis has on average, and :func:`~fedsynth.methods.interactions.basis` the rest.
    Parts of several tables that have the same ``source`` are the same released numbers, up to a factor.
    """

    source: tuple[Any, ...]
    bases: tuple[Floats | None, ...]
    values: Floats
    std: float

    def along(self, cells: Floats) -> Floats:
        """Return by how much each of the values counts in the sum over cells with weights."""
        for side, vectors in enumerate(self.bases):
            if vectors is not None:
                cells = np.moveaxis(np.tensordot(cells, vectors, axes=(side, 0)), -1, side)
        return cells

    def summed(self, cells: Floats) -> tuple[float, float]:
        """Return the part's share in the sum over cells with weights, and its variance."""
        along = self.along(cells)
        return float((along * self.values).sum()), self.std**2 * float((along**2).sum())

    def cells(self) -> tuple[Floats, Floats]:
        """Return the part's share in each cell, and its variance there, each of the table's shape."""
        values, squares = self.values, np.full(self.values.shape, self.std**2)
        for side, vectors in enumerate(self.bases):
            if vectors is not None:
                values = np.moveaxis(np.tensordot(values, vectors, axes=(side, 1)), -1, side)
                squares = np.moveaxis(np.tensordot(squares, vectors**2, axes=(side, 1)), -1, side)
        return values, squares


def _constant(size: int) -> Floats:
    return np.full((size, 1), size**-0.5)


def released_tables(run: RunFolder) -> list[ReleasedTable]:
    """Return all contingency tables that a run released, in the order of its questions.

    A table of interactions is completed by the released margins of its columns and the number of rows.
    """
    schema, found, later = run.schema, list[ReleasedTable](), list[tuple[int, Interactions, Released]]()
    for request, released in _released(run):
        query, step = request.query, request.head.step
        if isinstance(query, Interactions):
            later.append((step, query, released))
        elif isinstance(query, Counts | WeightedCounts):
            found += _counted(schema, step, query, released)
    total = records_of(found)
    for step, query, released in later:
        found += _completed(schema, step, query, released, total, found)
    return found


def records_of(tables: Sequence[ReleasedTable]) -> tuple[float, float]:
    """Return the number of records by all tables together, and its variance; it is infinite without any table."""
    return _combined([table.summed(np.ones(table.shape)) for table in tables if len(table.parts) == 1])


def _released(run: RunFolder) -> Iterator[tuple[Request, Released]]:
    """Yield the questions of a run's transcript whose sums over sites were released, and these."""
    known: dict[str, Agreement] = {}
    asked: dict[bytes, Request] = {}
    for kind, data in records(run.transcript):
        if kind == "agreement":
            known[hashlib.sha256(data).hexdigest()] = Agreement.read(data)
        elif kind == "question":
            request = Request.read(data, agreed_in(known), None)
            asked.setdefault(bytes.fromhex(request.question), request)
        elif kind == "released" and data[:DIGEST] in asked and asked[data[:DIGEST]].head.verb == "sum":
            yield asked[data[:DIGEST]], decode(data[DIGEST:], Released)


def _counted(schema: Schema, step: int, query: Counts | WeightedCounts, released: Released) -> Iterator[ReleasedTable]:
    parts = zip(query.tables, query.split(schema, released.values), query.stds(released.std), strict=True)
    for places, values, std in parts:
        if isinstance(query, Counts) or all(query.weights[at] is None for at in places):
            part = _Part((step, "table", places), (None,) * values.ndim, values, std)
            axes = tuple(query.axes[at] for at in places)
            yield ReleasedTable(schema, step, isinstance(query, WeightedCounts), axes, (part,))


def _completed(
    schema: Schema,
    step: int,
    query: Interactions,
    released: Released,
    total: tuple[float, float],
    counted: Sequence[ReleasedTable],
) -> Iterator[ReleasedTable]:
    """Yield the tables of one and two columns of a question for interactions, completed by margins and total."""
    values, stds = query.split(schema, released.values), query.stds(released.std)
    answers = list(zip(query.tables, values, stds, strict=False))
    columns = [schema.stored[axis.column] for axis in query.axes]
    sizes = [axis.size(column.size, column.missing) for axis, column in zip(query.axes, columns, strict=True)]
    margins = {
        places[0]: ((step, "interactions", places), basis(sizes[places[0]]), of, std)
        for places, of, std in answers
        if len(places) == 1 and places[0] not in query.whole
    }
    for at in {at for places, _, _ in answers for at in places} - margins.keys():
        same = [table for table in counted if len(table.axes) == 1 and table.axes[0].same(query.axes[at])]
        if same:
            (part,) = same[-1].parts
            vectors = basis(sizes[at])
            margins[at] = (part.source, np.asarray(vectors @ vectors.T), part.values, part.std)
    for places, of, std in answers:
        coded = [at for at in places if at not in query.whole]
        if len(coded) not in (1, 2) or not all(at in margins for at in coded):
            continue
        summed = tuple(side for side, at in enumerate(places) if at in query.whole)
        added = math.sqrt(math.prod(sizes[places[side]] for side in summed))
        constants = [_constant(sizes[at]) for at in coded]
        scale = math.sqrt(math.prod(sizes[at] for at in coded))
        number, std_of_number = np.full((1,) * len(coded), total[0] / scale), math.sqrt(total[1]) / scale
        parts = [_Part(("number of records",), tuple(constants), number, std_of_number)]
        for side, at in enumerate(coded if len(coded) == 2 else ()):
            source, vectors, margin, margin_std = margins[at]
            bases = (vectors, constants[1]) if side == 0 else (constants[0], vectors)
            other = math.sqrt(sizes[coded[1 - side]])
            parts.append(_Part(source, bases, np.expand_dims(margin, 1 - side) / other, margin_std / other))
        own = tuple(basis(sizes[at]) for at in coded)
        parts.append(_Part((step, "interactions", places), own, of.sum(axis=summed), std * added))
        yield ReleasedTable(schema, step, False, tuple(query.axes[at] for at in coded), tuple(parts))


# ---------------------------------------------------------------------------------------------------------------------
# Cells


def _inside(column: Column, axis: Axis, wanted: Axis) -> NDArray[np.bool_] | None:
    """Return which cells of an axis meet a term of a condition; ``None`` if a cell has values of both kinds."""
    assert wanted.groups is not None
    if column.is_number:
        level, places = (levels(column, cell_ends(column, of)) for of in (axis, wanted))
        at = np.searchsorted(level, places)
        if any(place >= len(level) or level[place] != of for place, of in zip(at, places, strict=True)):
            return None
        fine = np.searchsorted(at, np.arange(len(level) + 1), side="left")
        inside = wanted.groups[[*fine, *([len(places) + 1] * column.missing)]] == 1
    else:
        inside = wanted.groups == 1
    if axis.groups is None:
        return np.asarray(inside, dtype=bool)
    groups = int(axis.groups.max()) + 1
    part, whole = np.bincount(axis.groups, inside, groups), np.bincount(axis.groups, minlength=groups)
    return None if ((part > 0) & (part < whole)).any() else part > 0


# ---------------------------------------------------------------------------------------------------------------------
# Estimates


def estimate(tables: Sequence[ReleasedTable], schema: Schema, text: str) -> list[Answer]:
    """Return the share and the number of rows that meet a condition, from released tables alone.

    Of the tables that hold the condition, those of the last question count, and those of declared questions, since what
    a method asks later may depend on the noise of what it asked before. They are combined by generalised least squares.
    Raises :class:`Unsupported` where no released table holds the condition, or where noise hides all of it; the message
    names what could be answered.
    """
    condition = read_condition(schema, text)
    if not condition.axes:
        raise Unsupported("name a condition, such as readmitted=yes")
    records, records_variance = records_of(tables)
    holding = [(table, cells) for table in tables if (cells := _cells(table, condition)) is not None]
    holding = [(table, cells) for table, cells in holding if math.sqrt(table.summed(cells)[1]) < _MOST_NOISE * records]
    if not holding:
        raise Unsupported(_not_held(tables, schema, condition))
    last = max(table.step for table, _ in holding)
    inside, variance = _least_squares([one for one in holding if one[0].declared or one[0].step == last])
    number = _numbers(intervals.normal(inside, math.sqrt(variance)))
    counted = Answer(text, "rows", f"number of rows with {text} at the sites", *number)
    if records < _SMALLEST * math.sqrt(records_variance):
        why = f"the tables have about {max(0.0, records):.0f} rows, below {_SMALLEST:g} deviations of their noise"
        return [Answer(text, "share", f"share of rows with {text}", refused=why), counted]
    share = min(max(inside / records, 0.0), 1.0)
    found = intervals.ratio(inside, math.sqrt(variance), records, math.sqrt(records_variance), share * (1 - share))
    return [Answer(text, "share", f"share of rows with {text}", *_numbers(found)), counted]


def _numbers(of: intervals.Interval) -> tuple[float, float, float, float, float]:
    return of.value, of.low, of.high, of.noise, of.sampling


def _cells(table: ReleasedTable, condition: Condition) -> Floats | None:
    """Return which cells of a table meet a condition, as 1 and 0; ``None`` if the table does not hold it."""
    by_column = {axis.column: side for side, axis in enumerate(table.axes)}
    found = np.ones(table.shape, dtype=np.float64)
    for wanted in condition.axes:
        if (side := by_column.get(wanted.column)) is None:
            return None
        inside = _inside(table.schema.stored[wanted.column], table.axes[side], wanted)
        if inside is None:
            return None
        shape = [1] * found.ndim
        shape[side] = -1
        found *= inside.reshape(shape)
    return found


def _least_squares(tables: Sequence[tuple[ReleasedTable, Floats]]) -> tuple[float, float]:
    """Return the generalised least squares estimate of a sum over cells of each of some tables, and its variance.

    Tables that are completed by the same margins share their noise.
    """
    noise = [{part.source: part.std * part.along(cells).ravel() for part in table.parts} for table, cells in tables]
    covariance = np.array(
        [[math.fsum(float(a[of] @ b[of]) for of in a.keys() & b.keys()) for b in noise] for a in noise]
    )
    inverse = np.linalg.pinv(covariance + 1e-12 * np.eye(len(noise)), rcond=1e-9, hermitian=True)
    weights = inverse.sum(axis=0)
    values = np.array([table.summed(cells)[0] for table, cells in tables])
    return float(weights @ values / weights.sum()), float(1 / weights.sum())


def _combined(estimates: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the weighted mean of independent estimates with these variances, and its variance."""
    if not estimates:
        return 0.0, math.inf
    weights = [1 / max(variance, 1e-12) for _, variance in estimates]
    whole = math.fsum(weights)
    return math.fsum(weight * value for weight, (value, _) in zip(weights, estimates, strict=True)) / whole, 1 / whole


def _not_held(tables: Sequence[ReleasedTable], schema: Schema, condition: Condition) -> str:
    """Return why no table holds a condition, and the two nearest conditions that one holds."""
    names = [schema.stored[at].name for at in condition.columns]
    both = [table for table in tables if set(names) <= set(table.columns)]
    if not both:
        most = sorted({tuple(n for n in names if n in table.columns) for table in tables}, key=len, reverse=True)
        near = [" & ".join(part) for part in most if part][:_NAMED]
        could = f"; conditions on {' or on '.join(near)} alone can be" if near else ""
        return f"no released table has {' and '.join(names)}, so this cannot be said from what was released{could}"
    table = max(both, key=lambda of: (of.step, -len(of.axes)))
    said = []
    for wanted in condition.axes:
        column, axis = schema.stored[wanted.column], table.axes[table.columns.index(schema.stored[wanted.column].name)]
        if _inside(column, axis, wanted) is None:
            near = _nearest(column, axis, wanted)
            said.append(f"{column.name} was released in groups that do not end there; {' or '.join(near)} can be said")
    hidden = "the noise of the released tables hides it"
    return f"this cannot be said from what was released: {'; '.join(said) or hidden}"


def _nearest(column: Column, axis: Axis, wanted: Axis) -> list[str]:
    """Return the two terms nearest to one that an axis does not hold."""
    labels = cell_labels(column, axis)
    if not column.is_number:
        assert wanted.groups is not None
        assert axis.groups is not None
        part = np.bincount(axis.groups, wanted.groups == 1)
        return [f"{column.name}={labels[at].replace(' | ', '|')}" for at in np.argsort(-part, kind="stable")[:_NAMED]]
    ends = cell_ends(column, axis)
    if axis.groups is not None:
        ends = ends[np.flatnonzero(np.diff(axis.groups[: len(ends) + 1]))]
    (point, *_) = cell_ends(column, wanted)
    near = np.sort(ends[np.argsort(np.abs(ends - point), kind="stable")[:_NAMED]])
    first = (levels(column, near) + 1) / column.per_unit if column.per_unit else np.nextafter(near, np.inf)
    return [f"{column.name}>={begin}" for begin in shown(column, first)]
