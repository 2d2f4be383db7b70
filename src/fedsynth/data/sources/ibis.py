"""Contingency tables counted by a database: expressions of ibis, compiled to the SQL of its dialect.

ibis compiles and does not connect: statements run where the rules of a source are kept
(:mod:`fedsynth.data.sources.postgres`, :mod:`fedsynth.data.sources.duck`).

Rule 1: everything that :class:`CountedRows` says of the rows it says of one snapshot, which later changes do not reach.
Rule 2: a row's place on an axis is the one that it has in a :class:`~fedsynth.rows.Table`, to the last edge, and the
    rows left out are the same: those with a place that is NULL. Values are compared with literals, by bisection:
    functions of the database that bin by themselves round.
Rule 3: all tables of a question come from one scan, which finds each value's place once. Tables over few cells are
    added up from those of the blocks of axes that they lie in, so that a scan feeds tens of groupings, not hundreds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import Unsupported
from fedsynth.rows import NoSingleRows
from fedsynth.schema import Schema
from fedsynth.schema.bins import Axis
from fedsynth.schema.columns import LARGEST_INTEGER, Boolean, Categorical, Column, Datetime, Numeric
from fedsynth.schema.derive import TINY, WHOLE, Link

_SECOND = 10**6  # microseconds
_BLOCK = 1 << 16  # cells of a table that is counted for the sake of several smaller ones


class Counting(Protocol):
    """A database that counts: ``types[j]`` is the type of ibis that asked column ``j`` has in the table ``rows``.

    A column that is stored by its relation to another one is counted from both their values.
    """

    @property
    def dialect(self) -> str:
        """The dialect's name in ibis."""

    @property
    def fence(self) -> str:
        """SQL that ends a subquery whose values are to be computed once."""

    @property
    def types(self) -> Mapping[int, str]:
        """The types; a column without one is placed before the database sees it."""

    @property
    def orders_text(self) -> bool:
        """Whether the database orders text as Python does."""

    def ask(
        self, columns: Sequence[int], places: Mapping[int, Axis], coded: str, counts: Sequence[str]
    ) -> Iterator[Any]:
        """Yield replies (Arrow tables) to the ``counts``, statements about ``coded``; those of equal cells add up.

        ``coded`` is ``WITH rows AS (...), {coded}``, where ``rows`` has the values ``v{j}`` of the ``columns``, and
        ``p{i}``, placed on the axes ``places[i]``. It is computed once.
        """

    def rows_read(self) -> int:
        """Return the number of rows of the snapshot, those that are left out included."""


class CountedRows(NoSingleRows):
    """One snapshot of rows under a schema that a database counts: their number and their contingency tables."""

    def __init__(self, schema: Schema, database: Counting) -> None:
        """Ask nothing yet, but refuse what the database could not compare; good while its snapshot lasts."""
        self.schema = schema
        self._database = database
        self._kept: int | None = None
        for position, column in enumerate(schema.asked):
            if position in database.types and not can_place(column):
                raise Unsupported(
                    f"column {column.name!r} is too fine for its bounds to be counted; let the site read its rows"
                )
        for position, link in schema.links.items():
            if position in database.types and isinstance(link.column, Datetime) and link.column.microseconds < _SECOND:
                raise Unsupported(
                    f"column {link.column.name!r} is a difference of times finer than seconds, which cannot be "
                    "counted; let the site read its rows"
                )

    def __len__(self) -> int:
        if self._kept is None:
            self._ask([], [[]])
        assert self._kept is not None
        return self._kept

    @property
    def rows_read(self) -> int:
        """Number of rows of the snapshot, those that are left out included."""
        return self._database.rows_read()

    def tables(self, axes: Sequence[Axis], cliques: Sequence[Sequence[int]]) -> list[NDArray[np.int64]]:
        """Return one contingency table for each clique, whose members are positions in ``axes``.

        One scan. One record changes one cell of each table by one: the L2 (and L1) sensitivity of a table under
        add/remove adjacency is 1.
        """
        sizes = [self._size(axis) for axis in axes]
        blocks = _blocks(cliques, sizes)
        members = list(dict.fromkeys(blocks))
        if not members:
            return []
        counted = dict(zip(members, self._ask(axes, members), strict=True))
        found = []
        for clique, block in zip(cliques, blocks, strict=True):
            table = counted[block].sum(axis=tuple(k for k, at in enumerate(block) if at not in clique))
            held = [at for at in block if at in clique]
            if len(set(clique)) == len(clique):
                found.append(table.transpose([held.index(at) for at in clique]))
                continue
            whole = np.zeros([sizes[at] for at in clique], dtype=np.int64)  # an axis twice: counts on the diagonal
            cells = np.indices(table.shape).reshape(table.ndim, -1)
            whole[tuple(cells[held.index(at)] for at in clique)] = table.ravel()
            found.append(whole)
        return found

    def _size(self, axis: Axis) -> int:
        column = self.schema.stored[axis.column]
        return axis.size(column.size, column.missing)

    def _ask(self, axes: Sequence[Axis], blocks: Sequence[Sequence[int]]) -> list[NDArray[np.int64]]:
        """Return the table of each block of axes, found in one scan, and note the number of rows in passing."""
        database, schema = self._database, self.schema
        used = {at: axes[at] for block in blocks for at in block}
        # Values that SQL does not compare may be text that stands for nothing.
        gaps = [k for k, column in enumerate(schema.asked) if k not in database.types or _leaves_out(column)]
        shown = {axis.column for axis in used.values()}
        placed = used | {len(axes) + column: Axis(column) for column in gaps if column not in shown}
        ready = {at: axis for at, axis in placed.items() if axis.column not in database.types}
        shown = {axis.column for at, axis in placed.items() if at not in ready}
        columns = sorted(shown | {link.other for at, link in schema.links.items() if at in shown})
        on_gaps = [at for at, axis in placed.items() if axis.column in gaps]
        coded, kinds = self._coded(columns, placed, ready, on_gaps, used)

        shapes = [[self._size(used[at]) for at in block] for block in blocks]
        counts = [
            self._compiled(_grouped(kinds, number, block, shape))
            for number, (block, shape) in enumerate(zip(blocks, shapes, strict=True))
        ]
        first = np.cumsum([0, *map(math.prod, shapes)])
        cells = np.zeros(first[-1], dtype=np.int64)
        for reply in database.ask(columns, ready, coded, counts):
            block, cell, rows = (np.asarray(reply.column(k), dtype=np.int64) for k in range(3))
            cells[first[block] + cell] += rows  # each cell is in a reply once
        parts = np.split(cells, first[1:-1])
        self._kept = int(parts[0].sum())
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def _coded(
        self,
        columns: Sequence[int],
        placed: Mapping[int, Axis],
        ready: Collection[int],
        gaps: Sequence[int],
        used: Iterable[int],
    ) -> tuple[str, Any]:
        """Return the SQL of ``coded``, the places ``used`` of the rows that have one on all ``gaps``, and its types."""
        import ibis

        database, schema = self._database, self.schema
        values = {f"v{column}": database.types[column] for column in columns}
        rows = ibis.table(values | {f"p{at}": "int32" for at in ready} or {"nothing": "int64"}, name="rows")

        def placing(axis: Axis) -> Any:
            column, value = schema.asked[axis.column], rows[f"v{axis.column}"]
            ordered = database.orders_text
            if axis.column not in schema.links:
                return place(column, axis, value, schema.missing_values, orders_text=ordered).cast("int32")
            link = schema.links[axis.column]
            fits = place(column, Axis(axis.column), value).notnull()
            found = place(link.held, axis, held_value(link, schema, value, rows[f"v{link.other}"]))
            return ibis.ifelse(fits, found, ibis.null("int64")).cast("int32")

        named = {f"p{at}": rows[f"p{at}"] if at in ready else placing(axis) for at, axis in placed.items()}
        places = rows.select(nothing=ibis.literal(1, "int16"), **named)  # nothing: where no place is asked for
        found = ibis.table(places.schema(), name="places")
        fits = [found[f"p{at}"].notnull() for at in gaps]
        kept = (found.filter(fits) if fits else found).select("nothing", *(f"p{at}" for at in used))
        return f"places AS ({self._compiled(places)}{database.fence}) {self._compiled(kept)}", kept.schema()

    def _compiled(self, expression: Any) -> str:
        import ibis

        return str(ibis.to_sql(expression, dialect=self._database.dialect))


def _grouped(kinds: Any, number: int, block: Sequence[int], shape: Sequence[int]) -> Any:
    """Return the counting of one block of ``coded``: its number, a cell in C order, and the rows in it."""
    import ibis

    coded = ibis.table(kinds, name="coded")
    cell = ibis.literal(0, "int64")
    for at, size in zip(block, shape, strict=True):
        cell = cell * size + coded[f"p{at}"]
    counts = coded.group_by(cell=cell).agg(rows=coded.count()) if block else coded.agg(cell=cell, rows=coded.count())
    return counts.select(block=ibis.literal(number, "int64"), cell="cell", rows="rows")


def _blocks(cliques: Sequence[Sequence[int]], sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Return for each clique the axes of the table that it is added up from, in their order; its own where that is big.

    Axes are put into groups of at most sqrt(_BLOCK) cells, smallest first; the groups that a clique meets make a block.
    """
    used = sorted({at for clique in cliques for at in clique}, key=lambda at: sizes[at])
    groups: list[list[int]] = [[]]
    for at in used:
        if math.prod(sizes[one] for one in groups[-1]) * sizes[at] > math.isqrt(_BLOCK):
            groups.append([])
        groups[-1].append(at)
    group_of = {at: group for group in groups for at in group}
    found = []
    for clique in cliques:
        met = {other for at in clique for other in group_of[at]}
        small = len(cliques) > 1 and math.prod(sizes[at] for at in met) <= _BLOCK
        found.append(tuple(sorted(met if small else set(clique))))
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Places


def can_place(column: Column) -> bool:
    """Whether the bounds of a column are literals of SQL; units past 2^53 are not told apart by doubles."""
    return not isinstance(column, Datetime) or bool(np.abs(column.bin_edges[[0, -1]]).max() < LARGEST_INTEGER)


def _leaves_out(column: Column) -> bool:
    """Whether some value of the column may have no code."""
    match column:
        case Categorical():
            return not column.missing or column.unknown == "drop"
        case Boolean():
            return True
        case Numeric():
            return not column.missing or column.integer or column.outside == "drop"
        case Datetime():
            return not column.missing or column.outside == "drop"


def place(
    column: Column, axis: Axis, value: Any, missing_values: Sequence[str] = (), *, orders_text: bool = True
) -> Any:
    """Return the expression of a value's cell along an axis: that of :meth:`Axis.places` for the schema's codes.

    It is NULL where the column leaves the row out. ``value`` is text for labels, a number, a boolean, or a time without
    a zone (UTC).
    """
    import ibis

    last = axis.cells(column.size, column.missing) - 1

    def leaf(cell: int) -> int:
        return cell if axis.groups is None else int(axis.groups[cell])

    gone = leaf(last) if column.missing else None
    missing = value.isnull()
    if isinstance(column, Boolean) and value.type().is_boolean():
        found = ibis.ifelse(value, leaf(1), leaf(0))
    elif value.type().is_string():
        assert isinstance(column, Categorical)
        known = {str(label): leaf(code) for code, label in enumerate(column.labels)}
        unknown = {"drop": None, "missing": gone}.get(column.unknown, known.get("other"))
        spelled: dict[str, int | None] = {text: gone for text in missing_values if text not in column.values}
        # A value of a database has no zero character, and so is none of the texts that have one.
        keys = {text: cell for text, cell in {**known, **spelled}.items() if "\0" not in text}
        found = _looked_up(value, keys, unknown, ibis.literal, ordered=orders_text)
    else:
        if isinstance(column, Datetime):
            literal: Callable[[float], Any] = lambda edge: _instant(edge, column)  # noqa: E731
        else:
            whole = value.type().is_integer()
            value, literal = value.cast("float64"), _double
            missing = missing if whole else missing | (value == _double(math.nan))
        match column:
            case Categorical():
                # A label that no double equals is out of reach: values are compared as doubles, as Schema.encode does.
                labels = {float(label): leaf(code) for code, label in enumerate(column.labels) if float(label) == label}
                found = _looked_up(value, labels, gone if column.unknown == "missing" else None, literal)
            case Boolean():
                found = _looked_up(value, {0.0: leaf(0), 1.0: leaf(1)}, None, literal)
            case _:
                found = _binned(column, axis, value, leaf, literal)
                if isinstance(column, Numeric) and column.integer and not whole:
                    # ibis' floor is an integer of 64 bits, which larger doubles do not fit; those are whole.
                    near = (value >= _double(-LARGEST_INTEGER)) & (value <= _double(LARGEST_INTEGER))
                    broken = ibis.ifelse(near, value != value.floor().cast("float64"), False)
                    found = ibis.ifelse(broken, ibis.null("int64"), found)
    return ibis.ifelse(missing, _cell(gone), found)


def held_value(link: Link, schema: Schema, own: Any, other: Any) -> Any:
    """Return the expression of what is stored of two values: :meth:`~fedsynth.schema.derive.Link.held_numbers`.

    It is NULL where that is missing. The same subtractions and divisions of doubles, in the same order.
    """
    import ibis

    first, second = _number(link.column, own), _number(schema.asked[link.other], other)
    if link.form.ratio is not None:
        small = _double(TINY)
        divisor = ibis.ifelse(second.abs() < small, ibis.null("float64"), second)
        return ibis.ifelse(first.abs() < small, _double(0.0), first) / divisor
    found = first - second if link.sign > 0 else second - first
    if link.step != 1:
        found = found / _double(link.step)
    if link.scale:
        scaled = found * _double(link.scale)
        rounded = scaled.round().cast("float64") / _double(link.scale)
        found = ibis.ifelse(scaled.abs() < _double(WHOLE), rounded, found)
    return found


def _number(column: Column, value: Any) -> Any:
    """Return the expression of a number, or of a time in the column's units, moved onto its bounds; NULL is missing."""
    import ibis

    assert isinstance(column, Numeric | Datetime)
    low, high = float(column.bin_edges[0]), float(column.bin_edges[-1])
    if isinstance(column, Datetime):
        unit = {_SECOND: "s", 60 * _SECOND: "m", 3600 * _SECOND: "h"}.get(column.microseconds, "D")
        seconds = value.truncate(unit).epoch_seconds().cast("float64")
        value = seconds / _double(column.microseconds / _SECOND)
    else:
        value = value.cast("float64")
        value = ibis.ifelse(value == _double(math.nan), ibis.null("float64"), value)
    return ibis.ifelse(value < _double(low), _double(low), ibis.ifelse(value > _double(high), _double(high), value))


def _binned(
    column: Numeric | Datetime, axis: Axis, value: Any, leaf: Callable[[int], int], literal: Callable[[float], Any]
) -> Any:
    """Return the cell of a number or time that is there: how many bounds it reaches, moved onto the schema's range.

    A value reaches an edge of the schema at the edge, and is past a cut point from the next double on.
    """
    import ibis

    edges = column.bin_edges
    low, high = edges[0], edges[-1]
    if axis.cuts is None:
        bounds, cells = edges[1:-1], list(range(len(edges) - 1))
    else:
        before = int((axis.cuts < low).sum())  # below every value, once it is moved
        bounds = np.nextafter(axis.cuts[(axis.cuts >= low) & (axis.cuts < high)], np.inf)
        cells = [min(before + k, len(axis.cuts) - 1) for k in range(len(bounds) + 1)]
    leaves = [leaf(cell) for cell in cells]

    def among(first: int, last: int) -> Any:
        if len(set(leaves[first : last + 1])) == 1:
            return _cell(leaves[first])
        middle = (first + last) // 2
        return ibis.ifelse(value >= literal(bounds[middle]), among(middle + 1, last), among(first, middle))

    found = among(0, len(bounds))
    if column.outside == "clip":
        return found
    outside = (value < literal(low)) | (value >= literal(np.nextafter(high, np.inf)))
    return ibis.ifelse(outside, ibis.null("int64"), found)


def _looked_up(
    value: Any,
    keys: Mapping[Any, int | None],
    unknown: int | None,
    literal: Callable[[Any], Any],
    *,
    ordered: bool = True,
) -> Any:
    """Return the cell of a value among ``keys``, by bisection where the database has their order."""
    import ibis

    held = sorted(keys)

    def among(first: int, last: int) -> Any:
        if last - first == 1:
            return ibis.ifelse(value == literal(held[first]), _cell(keys[held[first]]), _cell(unknown))
        middle = (first + last) // 2
        return ibis.ifelse(value >= literal(held[middle]), among(middle, last), among(first, middle))

    if not held:
        return _cell(unknown)
    if not ordered:
        return value.cases(*((literal(key), _cell(keys[key])) for key in held), else_=_cell(unknown))
    return among(0, len(held))


def _cell(cell: int | None) -> Any:
    import ibis

    return ibis.null("int64") if cell is None else ibis.literal(cell, "int64")


def _double(number: float) -> Any:
    """Return a double to the last bit: text that the database reads, since a literal would be a decimal."""
    import ibis

    return ibis.literal(repr(float(number))).cast("float64")


def _instant(units: float, column: Datetime) -> Any:
    """Return the first microsecond at or past a number of the column's units, which are whole."""
    import ibis

    instant = np.datetime64(math.ceil(units) * column.microseconds, "us")
    return ibis.literal(str(instant).replace("T", " ")).cast("timestamp")
