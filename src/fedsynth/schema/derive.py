"""Derived columns, and rules between columns: public knowledge, which costs no privacy budget.

Values such as a length of stay, a total or an age depend on other columns more tightly than noisy tables can express. A
column may be *stored* as its difference from, or ratio to, another column. It may be *computed* from other columns, and
then sites are never queried about it. Both are called *forms* of a column, and such columns *derived*. A *rule*
declares combinations of values that no row has. *Published* values are those of the synthetic table: columns with a
stored form are recovered, and computed columns computed.

Rule 1: stored forms and rules leave out no row during encoding. A row's stored codes are a function of that row and the
    schema alone, so one row of a site is one row of the table that it stores, for any values. Adding or removing a
    row therefore changes one cell of every contingency table by one, exactly as without derived columns, and every
    sensitivity proved for tables of plain columns also holds for tables of stored columns. Encoding ignores rules: a
    row that breaks a rule is counted like any other. Forbidden cells are removed from *released* tables only, which is
    post-processing.
Rule 2: encoding never fails. A stored number is missing only where its column is; values outside the form's bounds are
    clipped. Where the other column is missing, or a divisor is zero (below 1e-200 in absolute value), the column's own
    value is stored in its place, on the same axis behind the form's bounds (:attr:`ColumnLink.top`). A computed value
    is missing where an operand is, so that its column must admit missing values.
Rule 3: forms consist of subtractions and divisions of doubles whose bounds exclude overflow, so that a database
    computes the same numbers (:mod:`fedsynth.data.sources.ibis`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np
from msgspec.structs import force_setattr
from numpy.typing import NDArray

from fedsynth.cliques import Clique
from fedsynth.errors import SchemaError, nearest
from fedsynth.schema.bins import MOST_CELLS, Floats, Integers
from fedsynth.schema.coarse import coarse_column
from fedsynth.schema.columns import (
    LARGEST,
    Categorical,
    Column,
    Datetime,
    Encoded,
    Numeric,
    binned,
    code_of,
    sound_bounds,
)
from fedsynth.schema.forms import (
    ComputedForm,
    Copy,
    Declared,
    Difference,
    Identifier,
    Lookup,
    Part,
    StoredDifference,
    StoredForm,
    StoredRatio,
    microseconds_of,
)

Mask = NDArray[np.bool_]
Values = Mapping[str, NDArray[Any]]
"""Published values of rows by column name: floats are numbers (NaN: missing), integers are codes of a category."""

TINY = 1e-200  # operands of a ratio that are smaller in absolute value count as zero
WHOLE = 2.0**53  # from here on all doubles are whole numbers
NEAR = 1e-12  # tolerated relative rounding error of computed numbers
PLAIN = 1024.0  # length of the part of an axis on which a column's own values are stored
_PLAIN_BINS = 16


# ---------------------------------------------------------------------------------------------------------------------
# Rules


class Rule(Declared, frozen=True):
    """A combination of values of two or three categorical columns that no row has.

    ``Rule(never={"internet": ["no"], "streaming": ["yes", "no"]})`` forbids both values of streaming where internet is
    "no". A spelling of missing values, such as "", stands for a missing value. Raises :class:`SchemaError` unless the
    rule lists values of two or three columns.
    """

    never: Mapping[str, Sequence[str | int | bool]]

    def __post_init__(self) -> None:
        lists = isinstance(self.never, Mapping) and all(
            isinstance(values, list | tuple) and values for values in self.never.values()
        )
        if not lists or not 2 <= len(self.never) <= 3:
            raise SchemaError(
                f"a rule has never = {self.never!r}; list values of two or three columns, as in "
                'never = { internet = ["no"], streaming = ["yes", "no"] }'
            )
        force_setattr(self, "never", {name: tuple(values) for name, values in self.never.items()})

    def __hash__(self) -> int:
        return hash(frozenset(self.never))

    def __str__(self) -> str:
        return "never " + " with ".join(
            f"{name} = {', '.join(map(str, values))}" for name, values in self.never.items()
        )

    def members(self, stored: Sequence[Column], missing_values: Sequence[str]) -> dict[int, Mask]:
        """Return, for each column of the rule, a mask of the codes that the rule lists: bool, shape ``(codes,)``.

        The key is the column's position in ``stored`` (:attr:`Schema.stored <fedsynth.schema.schema.Schema.stored>`),
        which must have all columns of the rule; ``missing_values`` are the schema's. A row breaks the rule if, in all
        columns of the rule, the mask is true at the row's code. Raises :class:`SchemaError` for a column that is
        neither categorical nor boolean, and for a value that the column does not list.
        """
        positions = {column.name: at for at, column in enumerate(stored)}
        found = {}
        for name, values in self.never.items():
            at = positions[name]
            column = stored[at]
            if column.is_number:
                raise SchemaError(
                    f"the rule {self} names {name!r}, which is not categorical; name only categorical columns"
                )
            found[at] = np.zeros(column.size, dtype=bool)
            for value in values:
                code = code_of(column, value, missing_values)
                if code is None:
                    labels = map(str, column.labels) if isinstance(column, Categorical) else ("false", "true")
                    raise SchemaError(
                        f"the rule {self} names {name} = {value!r}, which is not a value of the column; "
                        + nearest(str(value), labels, "it has")
                    )
                found[at][code] = True
        return found


class Grouped(Protocol):
    """An axis of a model's tables over a categorical column, on which several codes may share one position."""

    @property
    def groups(self) -> Integers | None:
        """The group (from 0) of each code, shape ``(codes,)``; ``None`` if each code is its own group."""


def forbidden_cells(
    rules: Sequence[Rule],
    stored: Sequence[Column],
    missing_values: Sequence[str],
    axes: Sequence[Grouped] | None = None,
) -> dict[Clique, Mask]:
    """Return the cells of contingency tables that the ``rules`` of a schema forbid, for methods that fit tables.

    Each key is a clique, a tuple of ascending positions in the schema's ``stored`` columns; its value is a mask with
    the shape of the clique's table, true for a forbidden cell. Cliques without such a cell are left out. ``axes`` are
    the axes of a model's tables, one for each stored column (default: a position for each code). If axes group codes, a
    cell is forbidden only if all combinations of codes in it are forbidden. ``missing_values`` are the schema's. Raises
    :class:`SchemaError` if all cells of a table are forbidden, or a rule does not fit the columns.
    """
    found: dict[Clique, Mask] = {}
    fine: dict[Clique, Mask] = {}
    sizes = {column.name: column.size for column in stored}
    several = {tuple(sorted(rule.never)) for rule in rules}
    if (many := sum(math.prod(sizes[name] for name in names) for names in several)) > MOST_CELLS:
        raise SchemaError(
            f"the rules are about {many} combinations of values, more than {MOST_CELLS}; name columns with fewer values"
        )
    for rule in rules:
        members = rule.members(stored, missing_values)
        clique = tuple(sorted(members))
        cells = np.ones((), dtype=bool)
        for at in clique:
            cells = np.logical_and.outer(cells, members[at])
        fine[clique] = fine[clique] | cells if clique in fine else cells
    for clique, cells in fine.items():
        own = [None if axes is None else axes[at].groups for at in clique]
        groups = [np.arange(stored[at].size) if of is None else of for at, of in zip(clique, own, strict=True)]
        allowed = np.zeros([int(of.max()) + 1 for of in groups], dtype=bool)
        np.logical_or.at(allowed, np.ix_(*groups), ~cells)
        if not allowed.any():
            raise SchemaError(
                f"the rules forbid every combination of {[stored[at].name for at in clique]}; delete or correct one "
                "of them"
            )
        if not allowed.all():
            found[clique] = ~allowed
    return found


# ---------------------------------------------------------------------------------------------------------------------
# StoredForm forms


@dataclass(frozen=True, eq=False)
class ColumnLink:
    """A column with a stored form, with the arithmetic in both directions.

    ``own`` and ``other`` are the positions of both columns in :attr:`Schema.asked
    <fedsynth.schema.schema.Schema.asked>`, ``column`` is the column as it is published, and ``held`` the column that is
    stored in its place. A stored difference is ``sign`` (1 or -1) times (the value minus the other value), divided by
    ``step``: the length of the form's unit of time in the columns' own unit (86,400 for days between times in seconds),
    1 for numbers. From ``top`` on (infinite if the other column is always known and, in a ratio, never zero), the axis
    of the stored numbers holds the column's own values instead, from its lowest to its highest over a length of
    :data:`PLAIN`: those of rows that have no difference or ratio.
    """

    own: int
    other: int
    column: Numeric | Datetime
    form: StoredForm
    held: Numeric
    sign: int
    step: float
    top: float = math.inf

    @property
    def is_ratio(self) -> bool:
        """Whether the ratio of the two columns is stored, and not their difference."""
        return isinstance(self.form, StoredRatio)

    @property
    def scale(self) -> int:
        """Differences are rounded to multiples of ``1 / scale`` (0.3 - 0.1 is then 0.2); 0 means no rounding."""
        return self.held.per_unit if self.held.per_unit > 1 else 0

    def __str__(self) -> str:
        form = self.form
        unit = f" {form.unit}" if isinstance(form, StoredDifference) and form.unit else ""
        return f"{form.kind} {' and '.join(form.operands)} from {form.lower:g} to {form.upper:g}{unit}"

    def undefined(self, other: Floats) -> Mask:
        """Return a mask of the rows without a difference or ratio: the other value is missing, or a divisor of zero."""
        gone: Mask = np.isnan(other) | ((np.abs(other) < TINY) if self.is_ratio else False)
        return gone

    def held_numbers(self, own: Floats, other: Floats) -> Floats:
        """Return the numbers to be stored, as float64: differences or ratios, clipped to the form's bounds.

        Where they are :meth:`undefined`, the numbers from ``top`` on stand for the column's own values. Missing values
        are NaN.
        """
        if self.is_ratio:
            divisor = np.where(np.abs(other) < TINY, np.nan, other)
            found = np.where(np.abs(own) < TINY, 0.0, own) / divisor
        else:
            found = (own - other if self.sign > 0 else other - own) / self.step
        if self.scale:
            scaled = found * self.scale
            found = np.where(np.abs(scaled) < WHOLE, np.rint(scaled) / self.scale, found)
        found = np.clip(found, self.form.lower, self.form.upper)
        if self.top == math.inf:
            return found
        lowest, width = self.plain_range
        share = (own - lowest) / width * PLAIN
        return np.where(self.undefined(other), self.top + (np.floor(share) if self.held.per_unit else share), found)

    @property
    def plain_range(self) -> tuple[float, float]:
        """The column's lowest value, and the distance to its highest (1 if it has only one)."""
        edges = self.column.bin_edges
        return float(edges[0]), float(edges[-1] - edges[0]) or 1.0

    def encoded(self, own: Encoded, other: Encoded) -> Encoded:
        """Return what is stored for this column; a row is left out (code -1) only where ``own`` leaves it out."""
        assert own.numbers is not None
        assert other.numbers is not None
        codes, numbers = binned(self.held, self.held_numbers(own.numbers, other.numbers))
        return Encoded(np.where(own.codes < 0, -1, codes), numbers, own.faults)

    def published_numbers(self, held: Floats, other: Floats) -> Floats:
        """Return the column's published values, given the stored differences or ratios and the other column's values.

        They are float64 values that the column admits, within the bounds of its form. If the column admits no such
        value, the result lies outside these bounds (see :meth:`breaks`). ``held`` must be consistent with ``other``
        (:meth:`consistent`).
        """
        low, high = self._limits(other)
        raw = held * other if self.is_ratio else other + self.sign * self.step * held
        if self.top < math.inf:
            lowest, width = self.plain_range
            share = np.minimum(held - self.top + (0.5 if self.held.per_unit else 0.0), PLAIN) / PLAIN
            raw = np.where(held >= self.top, lowest + share * width, raw)
        cells, each = self.column.bins_as_cells, self.column.per_unit
        if each:
            low, high = low * each, high * each
            near = NEAR * np.maximum(1.0, np.maximum(np.abs(low), np.abs(high)))
            low, high = np.ceil(low - near) / each, np.floor(high + near) / each
            raw = np.where(low <= high, np.clip(np.rint(raw * each) / each, low, high), raw)
        return cells.admitted(raw)

    def consistent(self, held: Floats, other: Floats) -> Floats:
        """Return the stored numbers ``held`` of rows, moved between rows so that each fits the ``other`` value.

        A model may relate the two columns only roughly, and draw a difference for a row without the other value. Such
        rows exchange their numbers with rows in the opposite case; those left over take numbers of consistent rows of
        their own case (or clip, if there are none). All numbers of encoded rows are consistent and stay.
        """
        if self.top == math.inf:
            return held
        plain, undefined, known = held >= self.top, self.undefined(other), ~np.isnan(held)
        wrong = [np.flatnonzero(known & (plain != undefined) & (undefined == case)) for case in (False, True)]
        if not any(map(len, wrong)):
            return held
        found, few = held.copy(), min(map(len, wrong))
        first, second = (rows[_spread(few, len(rows))] for rows in wrong)
        found[first], found[second] = held[second], held[first]
        for case, rows, swapped in zip((False, True), wrong, (first, second), strict=True):
            left = np.setdiff1d(rows, swapped)
            donors = np.flatnonzero(known & (plain == case) & (undefined == case))
            if len(donors):
                found[left] = held[donors[_spread(len(left), len(donors))]]
            elif case:
                found[left] = self.top + np.floor(PLAIN * (np.arange(len(left)) + 0.5) / max(1, len(left)))
            else:
                found[left] = self.form.upper
        return found

    def breaks(self, values: Floats, other: Floats) -> Mask:
        """Return a mask of the rows whose difference or ratio lies outside the form's bounds by more than rounding.

        ``values`` and ``other`` are the published values of both columns; missing values (NaN) break nothing.
        """
        low, high = self._limits(other)
        near = NEAR * np.maximum(1.0, np.maximum(np.abs(values), np.abs(other)))
        if self.column.is_time:  # whole units, which doubles represent exactly
            near = np.zeros_like(values)
        elif self.is_ratio and self.column.per_unit:
            near = near + 0.5 / self.column.per_unit
        broken: Mask = (values < low - near) | (values > high + near)
        return broken

    def _limits(self, other: Floats) -> tuple[Floats, Floats]:
        """Return the lowest and the highest value that the form admits, given ``other``; NaN where undefined."""
        ends = (self.form.lower, self.form.upper)
        other = np.where(self.undefined(other), np.nan, other)
        first, last = (end * other if self.is_ratio else other + self.sign * self.step * end for end in ends)
        return np.minimum(first, last), np.maximum(first, last)


def _spread(few: int, many: int) -> Integers:
    """Return ``few`` positions among ``many``, evenly spread."""
    spread: Integers = (np.arange(few) * many) // max(1, few)
    return spread


def links_of(columns: Sequence[Column | Identifier], asked: Sequence[Column]) -> dict[int, ColumnLink]:
    """Return a :class:`ColumnLink` for each column with a stored form, by its position in ``asked``.

    Raises :class:`SchemaError` for a form that does not fit its columns: for example, the other column does not exist,
    has a stored form itself and comes later, or cannot be subtracted or divided.
    """
    found: dict[int, ColumnLink] = {}
    positions = {column.name: at for at, column in enumerate(asked)}
    for own, column in enumerate(asked):
        if not column.is_number or (form := column.stored) is None:
            continue
        if column.name not in form.operands:
            raise _wrong(column, f"stored names {list(form.operands)}; one operand must be the column itself")
        (name,) = (operand for operand in form.operands if operand != column.name)
        if name not in positions:
            raise _wrong(column, _unknown(name, columns, positions))
        other = asked[positions[name]]
        if not other.is_number:
            raise _wrong(column, f"operand {name!r} is neither numeric nor datetime")
        if other.stored is not None and positions[name] not in found:
            raise _wrong(column, f"operand {name!r} is derived itself and must come earlier; move it up")
        if isinstance(form, StoredRatio) and form.operands[0] != column.name:
            raise _wrong(
                column, f"the column must be the numerator of its ratio; write ratio = ['{column.name}', '{name}']"
            )
        found[own] = _linked(own, positions[name], column, other, form)
    return found


def _linked(own: int, at: int, column: Numeric | Datetime, other: Numeric | Datetime, form: StoredForm) -> ColumnLink:
    step, integer, decimals = _step(column, form, column, other), False, None
    if isinstance(form, StoredDifference):
        integer = step == 1 and column.per_unit == other.per_unit == 1
        both = min(column.per_unit, other.per_unit) > 0 and step == 1
        decimals = round(math.log10(max(column.per_unit, other.per_unit))) if both and not integer else None
    for operand in (column, other):
        if max(abs(operand.bin_edges[0]), abs(operand.bin_edges[-1])) > LARGEST:
            raise _wrong(column, f"operand {operand.name!r} has bounds beyond {LARGEST:g}; give it in another unit")
    if not sound_bounds(form.lower, form.upper):
        raise _wrong(column, f"stored has bounds beyond {LARGEST:g} or too close together; give another unit")
    if integer and not (float(form.lower).is_integer() and float(form.upper).is_integer()):
        raise _wrong(column, "lower and upper must be whole numbers because the differences are")
    held = Numeric(
        column.name,
        form.lower,
        form.upper,
        bins=column.bins,
        integer=integer,
        decimals=decimals,
        missing=column.missing,
    )
    sign = 1 if form.operands[0] == column.name else -1
    zero = isinstance(form, StoredRatio) and other.bin_edges[0] < TINY and other.bin_edges[-1] > -TINY
    if not (zero or other.missing):
        return ColumnLink(own, at, column, form, held, sign, step)
    top = form.upper + 1 / held.per_unit if held.per_unit else float(np.nextafter(form.upper, math.inf))
    edges = np.unique(held.bin_edges)
    below = edges if held.bin_edges[-1] in held.bin_edges[:-1] else edges[:-1]  # a last bin of one value keeps it
    ends = (*below.tolist(), *(top + np.linspace(0.0, PLAIN, _PLAIN_BINS + 1)).tolist())
    held = msgspec.structs.replace(held, high=ends[-1], edges=ends)
    return ColumnLink(own, at, column, form, held, sign, step, top)


def _step(column: Column, form: StoredForm | ComputedForm, first: Column, second: Column) -> float:
    """Check that the form can combine two operands; return its unit in units of the operands (1 for numbers)."""
    times = [operand for operand in (first, second) if isinstance(operand, Datetime)]
    if not isinstance(form, Difference | StoredDifference):
        if times:
            raise _wrong(column, f"operand {times[0].name!r} holds times, which can only be subtracted")
        return 1.0
    if not times:
        if form.unit is not None:
            raise _wrong(column, "a unit applies only to differences of times; leave it out")
        return 1.0
    if len(times) < 2:
        raise _wrong(column, f"the difference of {first.name!r} and {second.name!r} mixes numbers and times")
    start, end = times
    if start.unit != end.unit or (start.timezone is None) != (end.timezone is None):
        raise _wrong(
            column,
            f"operands {start.name!r} and {end.name!r} cannot be subtracted; give both the same unit, and both or "
            "neither a timezone",
        )
    if form.unit is None:
        raise _wrong(column, "a difference of times needs a unit: day, hour, minute or second")
    try:
        length = microseconds_of(form.unit)
    except SchemaError as error:
        raise _wrong(column, str(error)) from error
    if length < start.microseconds:
        raise _wrong(
            column, f"the unit {form.unit} is finer than the times' own unit, {start.unit}; use a coarser unit"
        )
    return length / start.microseconds


def _unknown(name: str, columns: Sequence[Column | Identifier], known: Iterable[str]) -> str:
    if name in [column.name for column in columns]:
        return f"operand {name!r} is not stored at the sites (it is computed or an identifier); name a stored column"
    return f"operand {name!r} is not a column; {nearest(name, known, 'choose one of')}"


def _wrong(column: Column, why: str) -> SchemaError:
    return SchemaError(f"column {column.name!r}: {why}")


# ---------------------------------------------------------------------------------------------------------------------
# ComputedForm forms


def check_computed(columns: Sequence[Column | Identifier]) -> None:
    """Raise :class:`SchemaError` unless all computed columns among a schema's ``columns`` can be computed.

    The columns that a computation uses must be read from the sites' rows, or be computed themselves and come earlier. A
    lookup needs categorical or boolean columns, a sum or product numbers, and a difference two numbers or two times.
    """
    ready = {column.name: column for column in columns if isinstance(column, Column) and not computed_form(column)}
    for column in columns:
        form = computed_form(column)
        if form is None:
            continue
        assert isinstance(column, Column)
        for name in form.operands:
            if name not in ready and any(isinstance(known, Column) and known.name == name for known in columns):
                raise _wrong(column, f"operand {name!r} is computed itself and must come earlier; move it up")
            if name not in ready:
                raise _wrong(column, _unknown(name, columns, ready))
        operands = [ready[name] for name in form.operands]
        if isinstance(form, Lookup | Part):
            coarse_column(column, operands[0], form)
        elif isinstance(form, Copy):
            _check_copy(column, operands[0])
        elif not isinstance(column, Numeric):
            raise _wrong(column, "only a numeric column can be computed from numbers")
        elif wrong := [operand.name for operand in operands if not operand.is_number]:
            raise _wrong(column, f"operand {wrong[0]!r} is neither numeric nor datetime")
        elif column.stored is not None:
            raise _wrong(column, "it is both stored and computed; give only one of the two")
        elif isinstance(form, Difference):
            _step(column, form, *operands)
        else:
            for operand in operands:
                _step(column, form, operand, operand)
        given = isinstance(form, Lookup | Part)
        if any(operand.missing for operand in operands) and not given and not column.missing:
            raise _wrong(column, "an operand may be missing, which makes the value missing; set missing = true")
        ready[column.name] = column


def _check_copy(column: Column, source: Column) -> None:
    if column.is_number != source.is_number or (column.is_number and column.is_time) != isinstance(source, Datetime):
        raise _wrong(column, f"operand {source.name!r} is a column of another type; a copy needs the same")
    if column.is_number and column.stored is not None:
        raise _wrong(column, "it is both stored and computed; give only one of the two")
    if isinstance(column, Datetime) and isinstance(source, Datetime):
        zones = column.timezone != source.timezone or (source.timezone is not None and column.unit != source.unit)
        if zones or column.microseconds < source.microseconds:
            raise _wrong(
                column, f"give it the time zone and the unit of {source.name!r}, or without a zone a longer unit"
            )
    if not column.is_number and not source.is_number:
        for label in source.labels:
            if code_of(column, label, ()) is None:
                raise _wrong(column, f"it does not list {label!r}, a value of {source.name!r}; add it to values")


def computed_form(column: Column | Identifier) -> ComputedForm | None:
    """Return the computed form of a column; ``None`` if it has none, or one to be learned: sites read that column."""
    form = None if isinstance(column, Identifier) else column.computed
    return None if isinstance(form, Lookup) and form.learned is not None else form


def computed_values(column: Column, form: ComputedForm, values: Values, columns: Mapping[str, Column]) -> NDArray[Any]:
    """Return a computed column's values, rounded as the column declares but not clipped, or a coarse column's codes."""
    if isinstance(form, Lookup | Part):
        return coarse_column(column, columns[form.operands[0]], form).codes(values[form.operands[0]])
    operands = [values[name] for name in form.operands]
    found: NDArray[Any]
    if isinstance(form, Copy):
        return _copied(column, columns[form.copy], operands[0])
    if isinstance(form, Difference):
        found = (operands[0] - operands[1]) / _step(column, form, *(columns[name] for name in form.operands))
    else:
        found = form.combine.reduce(operands, axis=0)
    assert isinstance(column, Numeric)
    return np.rint(found * column.per_unit) / column.per_unit + 0.0 if column.per_unit else found


def _copied(column: Column, source: Column, values: NDArray[Any]) -> NDArray[Any]:
    if isinstance(column, Datetime) and isinstance(source, Datetime):
        times: Floats = np.floor(values * (source.microseconds / column.microseconds))
        return times
    if column.is_number:
        numbers: Floats = np.rint(values * column.per_unit) / column.per_unit + 0.0 if column.per_unit else values
        return numbers
    assert not source.is_number
    codes = [code_of(column, label, ()) for label in source.labels]
    found: Integers = np.array([*codes, column.size - 1], dtype=np.int64)[values]
    return found
