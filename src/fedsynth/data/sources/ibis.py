"""Contingency tables counted by a database: ibis expressions, compiled to the database's SQL dialect.

The modules that implement a source's safety rules run the statements (:mod:`fedsynth.data.sources.postgres`,
:mod:`fedsynth.data.sources.engine`).

Rule 1: all results of one :class:`CountedRows` refer to the same snapshot: later changes do not affect it.
Rule 2: a row's cell on an axis is the same as in a :class:`~fedsynth.rows.Table`, even on bin edges, and the same rows
    are left out: those for which some cell is NULL. Values are compared with literals, by bisection, because a
    database's own binning functions round. Doubles are written as quotients of integers and numbers are rounded by
    ``floor``, because databases read decimals, and round halves, in different ways.
Rule 3: all tables of a query come from one scan, which computes each value's cell once. Small tables are marginals of
    larger tables over blocks of axes, so that a scan needs tens of groupings instead of hundreds.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import Unsupported
from fedsynth.rows import NoSingleRows, PairBlock, count_pairs, pairs_of
from fedsynth.schema import Schema
from fedsynth.schema.bins import Axis
from fedsynth.schema.canonical import DECIMAL, POWER, TIME, TRUTH_VALUES, spells_value
from fedsynth.schema.columns import (
    LARGEST_INTEGER,
    Boolean,
    Categorical,
    Column,
    Datetime,
    Numeric,
    codes_of_texts,
)
from fedsynth.schema.derive import PLAIN, TINY, WHOLE, ColumnLink

ROWS = "fedsynth_rows"
"""Name of the relation from which counting statements read; those of the others begin likewise."""
NO_TIME = -(2**63)
"""Stands for a value that is no time where times are microseconds since 1970."""
_ZEROS = 1100  # more than any power of ten in a text, and all its digits
_SECOND = 10**6  # microseconds
_PAIRS = 1 << 12  # pairs of axes counted in one scan for their products, to bound the tables held in memory
_BLOCK = 1 << 16  # largest number of cells of a table that is counted to derive several smaller tables from it


class Counting(Protocol):
    """A database that counts rows for :class:`CountedRows`; statements read them from a relation called :data:`ROWS`.

    Positions of columns are those in :attr:`Schema.asked <fedsynth.schema.schema.Schema.asked>`. A column with a stored
    form is counted from the values of both columns.
    """

    @property
    def types(self) -> Mapping[int, str]:
        """ibis types (such as "int64") of the values of all columns, by position.

        A time of the type "int64" is microseconds since 1970, or :data:`NO_TIME` for a value that is no time.
        """

    @property
    def orders_text(self) -> bool:
        """Whether the database orders text in the same way as Python."""

    def sql(self, expression: Any) -> str:
        """Return an ibis expression in the database's SQL dialect."""

    def ask(self, columns: Sequence[int], steps: Mapping[str, str], counts: Sequence[str]) -> Iterator[Any]:
        """Run the counting statements ``counts`` (SQL), and yield their replies as Arrow tables.

        A reply has three columns: the number of the statement, the cell of its contingency table (the position in C
        order), and the number of rows in that cell. If several replies have the same statement and cell, their numbers
        of rows add up. The statements read the last relation, the rows' positions on axes, which is computed only
        once. It is the last of ``steps``, the SQL of relations by name, each of which reads the one before it, and the
        first :data:`ROWS`, which is provided here: it has the values of each column j of ``columns`` in a
        column ``v{j}``.
        """

    def rows_read(self) -> int:
        """Return the number of rows of the snapshot, including those that do not fit the schema."""


class CountedRows(NoSingleRows):
    """One snapshot of rows that a database counts under a ``schema``; no statement is sent on creation."""

    def __init__(self, schema: Schema, database: Counting) -> None:
        """Raise :class:`Unsupported` for parts of times, and for units too fine to be counted exactly in SQL."""
        self.schema = schema
        self._database = database
        self._kept: int | None = None
        for column in schema.asked:
            if not can_place(column):
                raise Unsupported(
                    f"column {column.name!r} has too fine a unit for its bounds to be counted in the database; let the "
                    "site read its rows"
                )
        for coarse in schema.coarse:
            if coarse.leads is None:
                raise Unsupported(
                    f"column {coarse.column.name!r} is a part of a time, which the database cannot count; let the site "
                    "read its rows"
                )
        for link in schema.links.values():
            if isinstance(link.column, Datetime) and link.column.microseconds < _SECOND:
                raise Unsupported(
                    f"column {link.column.name!r} is a difference of times in units finer than seconds, which the "
                    "database cannot count; let the site read its rows"
                )

    def __len__(self) -> int:
        if self._kept is None:
            self._ask([], [[]])
        assert self._kept is not None
        return self._kept

    @property
    def rows_read(self) -> int:
        """Number of rows of the snapshot, including those that do not fit the schema."""
        return self._database.rows_read()

    def tables(self, axes: Sequence[Axis], cliques: Sequence[Sequence[int]]) -> list[NDArray[np.int64]]:
        """Return the tables of :meth:`Rows.tables <fedsynth.rows.Rows.tables>`, all from one scan of the rows."""
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
            whole = np.zeros([sizes[at] for at in clique], dtype=np.int64)  # repeated axis: counts on the diagonal
            cells = np.indices(table.shape).reshape(table.ndim, -1)
            whole[tuple(cells[held.index(at)] for at in clique)] = table.ravel()
            found.append(whole)
        return found

    def products(self, axes: Sequence[Axis], blocks: Sequence[PairBlock]) -> list[NDArray[np.int64]]:
        """Return the sums of :meth:`Rows.products <fedsynth.rows.Rows.products>`, one scan for 4,096 pairs each."""
        pairs = np.concatenate([np.empty((0, 2), dtype=np.int64), *map(pairs_of, blocks)])
        sums = np.zeros(len(pairs), dtype=np.int64)
        for start in range(0, len(pairs), _PAIRS):
            tables = self.tables(axes, pairs[start : start + _PAIRS].tolist())
            sums[start : start + _PAIRS] = [2 * table.trace() - table.sum() for table in tables]
        return np.split(sums, np.cumsum([count_pairs(block) for block in blocks], dtype=np.int64))[:-1]

    def _size(self, axis: Axis) -> int:
        column = self.schema.stored[axis.column]
        return axis.size(column.size, column.missing)

    def _over_read(self, axis: Axis) -> Axis:
        """Return the axis, over a column that is read: that of a coarse column over the finer one, in its groups."""
        schema = self.schema
        name, groups = schema.names[axis.column], axis.groups
        coarse = {one.column.name: one for one in schema.coarse}
        while name in coarse:
            leads = coarse[name].leads
            assert leads is not None
            name, groups = coarse[name].finer.name, leads if groups is None else groups[leads]
        return Axis(schema.index(name), axis.cuts, groups)

    def _ask(self, axes: Sequence[Axis], blocks: Sequence[Sequence[int]]) -> list[NDArray[np.int64]]:
        """Return the table of each block of axes from one scan; also record the number of rows."""
        database, schema = self._database, self.schema
        sizes = [self._size(axis) for axis in axes]
        axes = [self._over_read(axis) for axis in axes]
        used = {at: axes[at] for block in blocks for at in block}
        gaps = [k for k, column in enumerate(schema.asked) if _leaves_out(column, database.types[k])]
        shown = {axis.column for axis in used.values()}
        placed = used | {len(axes) + column: Axis(column) for column in gaps if column not in shown}
        shown |= {*gaps}
        columns = sorted(shown | {link.other for at, link in schema.links.items() if at in shown})
        on_gaps = [at for at, axis in placed.items() if axis.column in gaps]
        steps, kinds = self._steps(columns, placed, on_gaps, used)

        shapes = [[sizes[at] for at in block] for block in blocks]
        counts = [
            database.sql(_grouped(kinds, number, block, shape))
            for number, (block, shape) in enumerate(zip(blocks, shapes, strict=True))
        ]
        first = np.cumsum([0, *map(math.prod, shapes)])
        cells = np.zeros(first[-1], dtype=np.int64)
        for reply in database.ask(columns, steps, counts):
            block, cell, rows = (np.asarray(reply.column(k), dtype=np.int64) for k in range(3))
            cells[first[block] + cell] += rows  # no index occurs twice within a reply
        parts = np.split(cells, first[1:-1])
        self._kept = int(parts[0].sum())
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def _steps(
        self, columns: Sequence[int], placed: Mapping[int, Axis], gaps: Sequence[int], used: Iterable[int]
    ) -> tuple[dict[str, str], Any]:
        """Return the SQL of all relations but :data:`ROWS`, and the types of the last one, of the rows' cells.

        It has the cells ``used`` of the rows with a cell on all axes in ``gaps``.
        """
        import ibis

        database, schema = self._database, self.schema
        values = {f"v{column}": database.types[column] for column in columns}
        rows = ibis.table(values or {"nothing": "int64"}, name=ROWS)
        compared = {}
        for at in columns:
            column, value = schema.asked[at], rows[f"v{at}"]
            if isinstance(column, Categorical) and value.type().is_string():
                compared[f"v{at}"] = _compared(value, codes_of_texts(column, schema.missing_values))
        for at in sorted({axis.column for axis in placed.values()} & {*schema.links}):
            link = schema.links[at]
            compared[f"h{at}"] = held_value(link, schema, rows[f"v{at}"], rows[f"v{link.other}"])
        given = rows.mutate(**compared)
        read = ibis.table(given.schema(), name="fedsynth_read")

        def placing(axis: Axis) -> Any:
            column, value = schema.asked[axis.column], read[f"v{axis.column}"]
            ordered = database.orders_text
            if axis.column not in schema.links:
                return place(column, axis, value, schema.missing_values, orders_text=ordered).cast("int32")
            link = schema.links[axis.column]
            fits = place(column, Axis(axis.column), value).notnull()
            found = place(link.held, axis, read[f"h{axis.column}"])
            return ibis.ifelse(fits, found, ibis.null("int64")).cast("int32")

        named = {f"p{at}": placing(axis) for at, axis in placed.items()}
        places = read.select(nothing=ibis.literal(1, "int16"), **named)  # a dummy column, in case there is no other
        found = ibis.table(places.schema(), name="fedsynth_places")
        fits = [found[f"p{at}"].notnull() for at in gaps]
        kept = (found.filter(fits) if fits else found).select("nothing", *(f"p{at}" for at in used))
        steps = {"fedsynth_read": given, "fedsynth_places": places, "fedsynth_coded": kept}
        return {name: database.sql(step) for name, step in steps.items()}, kept.schema()


def with_steps(steps: Mapping[str, str], counts: Sequence[str], fence: str, materialized: str) -> str:
    """Return one statement of all counting statements, after the relations that they read."""
    *before, last = (f"{name} AS ({sql}{fence})" for name, sql in steps.items())
    return f"WITH {', '.join([*before, last.replace(' AS (', f' AS{materialized} (', 1)])} {' UNION ALL '.join(counts)}"


def _grouped(kinds: Any, number: int, block: Sequence[int], shape: Sequence[int]) -> Any:
    """Return the query that counts one block of the rows' cells: block number, cell (in C order) and number of rows."""
    import ibis

    coded = ibis.table(kinds, name="fedsynth_coded")
    cell = ibis.literal(0, "int64")
    for at, size in zip(block, shape, strict=True):
        cell = cell * size + coded[f"p{at}"]
    counts = coded.group_by(cell=cell).agg(rows=coded.count()) if block else coded.agg(cell=cell, rows=coded.count())
    return counts.select(block=ibis.literal(number, "int64"), cell="cell", rows="rows")


def _blocks(cliques: Sequence[Sequence[int]], sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Return for each clique the axes (in order) of the table from which its table is derived; its own if it is large.

    Axes are put into groups of at most sqrt(_BLOCK) cells, smallest axes first. The block of a clique is the union of
    the groups that contain its axes.
    """
    used = sorted({at for clique in cliques for at in clique}, key=lambda at: sizes[at])
    groups: list[list[int]] = [[]]
    for at in used:
        if math.prod(sizes[member] for member in groups[-1]) * sizes[at] > math.isqrt(_BLOCK):
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
# Cells of values


def can_place(column: Column) -> bool:
    """Return whether a ``column``'s bounds can be written exactly as SQL literals; only those of times may not.

    They are doubles that count the column's unit from 1970 (UTC); from 2^53 on, these skip whole numbers.
    """
    return not isinstance(column, Datetime) or bool(np.abs(column.bin_edges[[0, -1]]).max() < LARGEST_INTEGER)


def _leaves_out(column: Column, kind: str) -> bool:
    """Return whether some value of the column, of an ibis type, may have no code."""
    match column:
        case Categorical():
            return not column.missing or column.unknown == "drop"
        case Boolean():
            return True
        case Numeric():
            return not column.missing or column.integer or column.outside == "drop"
        case Datetime():
            return not column.missing or column.outside == "drop" or kind == "int64"


def place(
    column: Column, axis: Axis, value: Any, missing_values: Sequence[str] = (), *, orders_text: bool = True
) -> Any:
    """Return the ibis expression of a value's position on an ``axis``, for a database that counts rows.

    The position equals :meth:`Axis.places <fedsynth.schema.bins.Axis.places>`, and is NULL where the ``column`` leaves
    the row out. ``value`` is the ibis expression of the column's value: a text, a number (never NaN), a boolean, or a
    time without a time zone (UTC) or in microseconds since 1970. A text is a label of the column, a spelling of a
    missing value, or else in canonical form (:mod:`fedsynth.schema.canonical`). ``orders_text`` says whether the
    database orders text as Python does.
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
        codes = codes_of_texts(column, missing_values)
        unknown = leaf(codes["other"]) if column.unknown == "other" else gone if column.unknown == "missing" else None
        # Text in a database contains no NUL character, so it never equals a text that contains one.
        keys = {text: None if code < 0 else leaf(code) for text, code in codes.items() if "\0" not in text}
        found = _looked_up(value, keys, unknown, ibis.literal, ordered=orders_text)
    else:
        whole = value.type().is_integer()
        if isinstance(column, Datetime):
            literal: Callable[[float], Any] = lambda edge: _instant(edge, column, whole)  # noqa: E731
        else:
            value, literal = value.cast("float64"), _double
        match column:
            case Categorical():
                # A label that no double equals can never match: values are compared as doubles, as in frames.
                labels = {float(label): leaf(code) for code, label in enumerate(column.labels) if float(label) == label}
                found = _looked_up(value, labels, gone if column.unknown == "missing" else None, literal)
            case Boolean():
                found = _looked_up(value, {0.0: leaf(0), 1.0: leaf(1)}, None, literal)
            case _:
                found = _binned(column, axis, value, leaf, literal)
                if isinstance(column, Numeric) and column.integer and not whole:
                    # ibis' floor is a 64-bit integer, which cannot hold larger doubles; those are whole numbers anyway.
                    near = (value >= _double(-LARGEST_INTEGER)) & (value <= _double(LARGEST_INTEGER))
                    broken = ibis.ifelse(near, value != value.floor().cast("float64"), False)
                    found = ibis.ifelse(broken, ibis.null("int64"), found)
                elif isinstance(column, Datetime) and whole:
                    found = ibis.ifelse(value == ibis.literal(NO_TIME, "int64"), ibis.null("int64"), found)
    return ibis.ifelse(missing, _cell(gone), found)


def held_value(link: ColumnLink, schema: Schema, own: Any, other: Any) -> Any:
    """Return the ibis expression of the difference or ratio of a ``link``, from those of both columns' values.

    It performs the same operations on doubles as :meth:`ColumnLink.held_numbers
    <fedsynth.schema.derive.ColumnLink.held_numbers>`, in the same order, and is NULL for a missing value.
    """
    import ibis

    first, second = _number(link.column, own), _number(schema.asked[link.other], other)
    if link.is_ratio:
        small = _double(TINY)
        second = ibis.ifelse(second.abs() < small, ibis.null("float64"), second)
        found = ibis.ifelse(first.abs() < small, _double(0.0), first) / second
    else:
        found = first - second if link.sign > 0 else second - first
        if link.step != 1:
            found = found / _double(link.step)
    if link.scale:
        scaled = found * _double(link.scale)
        near = ibis.ifelse(scaled.abs() < _double(WHOLE), scaled, _double(0.0))
        found = ibis.ifelse(scaled.abs() < _double(WHOLE), _rounded(near) / _double(link.scale), found)
    found = _clipped(found, link.form.lower, link.form.upper)
    if link.top == math.inf:
        return found
    lowest, width = link.plain_range
    share = (first - _double(lowest)) / _double(width) * _double(PLAIN)
    whole = share.floor().cast("float64") if link.held.per_unit else share
    return ibis.ifelse(second.isnull(), _double(link.top) + whole, found)


def _number(column: Column, value: Any) -> Any:
    """Return the expression of a number, or of a time in the column's units, clipped to its bounds; NULL if missing."""

    assert isinstance(column, Numeric | Datetime)
    low, high = float(column.bin_edges[0]), float(column.bin_edges[-1])
    if isinstance(column, Datetime):
        if value.type().is_integer():
            over = (value % _SECOND + _SECOND) % _SECOND
            seconds = _floor((value - over).cast("float64") / _double(_SECOND) + _double(0.5))
            value = _floor(seconds / _double(column.microseconds / _SECOND))
        else:
            unit = {_SECOND: "s", 60 * _SECOND: "m", 3600 * _SECOND: "h"}.get(column.microseconds, "D")
            seconds = value.truncate(unit).epoch_seconds().cast("float64")
            value = seconds / _double(column.microseconds / _SECOND)
    else:
        value = value.cast("float64")
    return _clipped(value, low, high)


def _rounded(value: Any) -> Any:
    """Return the whole number nearest to a double below 2^53 in absolute value, halves to the even one."""
    import ibis

    below = _floor(value)
    over, half = value - below, _double(0.5)
    odd = _floor(below * half) != below * half
    return ibis.ifelse((over > half) | ((over == half) & odd), below + _double(1.0), below)


def _floor(value: Any) -> Any:
    return value.floor().cast("float64")


def _clipped(value: Any, low: float, high: float) -> Any:
    import ibis

    return ibis.ifelse(value < _double(low), _double(low), ibis.ifelse(value > _double(high), _double(high), value))


def _binned(
    column: Numeric | Datetime, axis: Axis, value: Any, leaf: Callable[[int], int], literal: Callable[[float], Any]
) -> Any:
    """Return the cell of a non-missing number or time, clipped to the schema's range: the number of bounds it reaches.

    A bin includes its lower edge; a cut point belongs to the cell below it, so its bound is the next double.
    """
    import ibis

    edges = column.bin_edges
    low, high = edges[0], edges[-1]
    if axis.cuts is None:
        bounds, cells = edges[1:-1], list(range(len(edges) - 1))
    else:
        before = int((axis.cuts < low).sum())  # these cuts are below every clipped value
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
    """Return the cell of a value among ``keys``, by bisection if the database orders the keys as Python does."""
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
    """Return a finite double, exact to the last bit: its integer numerator, divided or multiplied by powers of two.

    A numeric literal would be a decimal in some databases, and not all round a decimal to the nearest double.
    """
    import ibis

    above, below = number.as_integer_ratio()
    shift = max(above.bit_length() - 53, 0)
    found = ibis.literal(above >> shift, "int64").cast("float64")
    for power, apply in ((below.bit_length() - 1, operator.truediv), (shift, operator.mul)):
        while power > 0:
            found, power = apply(found, ibis.literal(1 << min(power, 62), "int64").cast("float64")), power - 62
    return found


def _instant(units: float, column: Datetime, whole: bool) -> Any:
    """Return the first microsecond at or after ``units`` of the column, as a time or a ``whole`` number."""
    import ibis

    ticks = math.ceil(units) * column.microseconds
    if whole:
        return ibis.literal(ticks, "int64")
    return ibis.literal(str(np.datetime64(ticks, "us")).replace("T", " ")).cast("timestamp")


# ---------------------------------------------------------------------------------------------------------------------
# Texts


def _compared(value: Any, texts: Collection[str]) -> Any:
    """Return the expression of a text that is looked up among ``texts``: itself if it is one, or its canonical text.

    Texts that spell no number, boolean or time have no other form; among such texts, a text is looked up as it is.
    """
    import ibis

    held = sorted(text for text in texts if "\0" not in text)
    return ibis.ifelse(value.isin(held), value, canonical(value)) if any(map(spells_value, held)) else value


def canonical(value: Any) -> Any:
    """Return the expression of the canonical text (:func:`~fedsynth.schema.canonical.canonical_text`) of a text.

    Patterns are matched against the text with a bar at its end: in some databases, ``$`` matches before a newline.
    """
    import ibis

    def spells(pattern: str) -> Any:
        return (value + "|").re_search(f"^{pattern}[|]$")

    return ibis.cases(
        (spells(DECIMAL), _canonical_decimal(value)),
        (spells(POWER), _canonical_power(ibis.ifelse(spells(POWER), value, "0e0"))),
        (spells(TIME), _canonical_time(value)),
        *((value == word, truth) for word, truth in TRUTH_VALUES.items() if word != truth),
        else_=value,
    )


def _canonical_decimal(value: Any) -> Any:
    digits = value.re_replace("^[+-]", "")
    return _number_of(value, digits.re_replace("[.].*$", ""), digits.re_replace("^[^.]*[.]?", ""))


def _canonical_power(value: Any) -> Any:
    import ibis

    mantissa = value.re_replace("[eE].*$", "").re_replace("^[+-]", "")
    power = value.re_replace("^.*[eE][+]?", "").cast("int32")
    zeros = ibis.literal("0").repeat(_ZEROS)
    digits = zeros + mantissa.re_replace("[.]", "") + zeros
    # PostgreSQL cuts texts by 32-bit integers alone.
    point = (mantissa.re_replace("[.].*$", "").length() + power + _ZEROS).cast("int32")
    return _number_of(value, digits.left(point), digits.substr(point))


def _number_of(value: Any, whole: Any, fraction: Any) -> Any:
    """Return a number's canonical text from its digits before and behind the point, with the sign of ``value``."""
    import ibis

    sign = ibis.ifelse(value.startswith("-"), "-", "")
    digits = whole.re_replace("^0+", "").re_replace("^$", "0")
    return (sign + digits + (ibis.literal(".") + fraction).re_replace("[.]?0*$", "")).re_replace("^-0$", "0")


def _canonical_time(value: Any) -> Any:
    import ibis

    zoned = value.re_search("(Z|[+][0-9:]+)$")
    local = value.re_replace("(Z|[+][0-9:]+)$", "")
    day, clock = local.re_replace("[ T].*$", ""), local.re_replace("^.*[ T]", "")
    second, fraction = clock.re_replace("[.].*$", ""), clock.re_replace("^[^.]*[.]?", "").re_replace("0+$", "")
    second = ibis.ifelse(second.length() == 5, second + ":00", second)
    full = day + " " + second + ibis.ifelse(fraction == "", "", ibis.literal(".") + fraction)
    midnight = (second == "00:00:00") & (fraction == "")
    return ibis.ifelse(zoned, full + "+00:00", ibis.ifelse(midnight, day, full))
