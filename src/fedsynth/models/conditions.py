"""Conditions on sampled rows, checked against the schema: values of categories, intervals of numbers or times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedsynth.encoding import encode_column
from fedsynth.errors import InvalidParameter, SchemaError
from fedsynth.schema import Schema
from fedsynth.schema.columns import Boolean, Categorical, Column

_LISTED = 20  # most values of a category listed in an error


@dataclass(frozen=True)
class Is:
    """Condition on a categorical or boolean column: the value has one of these ``codes``, ascending.

    A code is the value's position in the column's list of values, or the last code for a missing value.
    """

    codes: tuple[int, ...]

    def impose(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return an array like ``values``, a column's codes in drawn rows, in which every entry is among ``codes``."""
        return np.where(np.isin(values, self.codes), values, self.codes[0])


@dataclass(frozen=True)
class Between:
    """Condition on a numeric or datetime column: the value lies from ``low`` to ``high``, both included.

    Both lie within the column's bounds, in its own unit; times count its time units since 1970 (UTC).
    """

    low: float
    high: float

    def impose(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return ``values`` clipped to the interval: rounding at the edge of a bin may have moved some out of it."""
        found: NDArray[Any] = np.clip(values, self.low, self.high)
        return found


@dataclass(frozen=True)
class Missing:
    """Condition on a numeric or datetime column: the value is missing."""

    def impose(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return an array like ``values`` in which every entry is NaN."""
        return np.full_like(values, np.nan)


Condition = Is | Between | Missing


def read_conditions(schema: Schema, asked: Mapping[str, Any]) -> dict[int, Condition]:
    """Check conditions on sampled rows against the schema, and return them by their columns' positions.

    ``asked`` maps a column's name to what its values must be: a category's value, or a list of such values; a number or
    time; an interval ``(low, high)`` of these or of listed integers, both ends included and ``None`` for an open end;
    or ``None`` for a missing value. Values are spelled as in a table. An end of an interval beyond the column's bounds
    is moved to the bound. Raises :class:`SchemaError` for an unknown column, a
    value that the column does not have, an empty interval, and a column that is stored as a difference from or ratio to
    another column, since models represent only that.
    """
    conditions: dict[int, Condition] = {}
    for name, value in asked.items():
        at = _position(schema, name)
        column = schema.stored[at]
        conditions[at] = _number(schema, column, value) if column.is_number else _category(schema, column, value)
    return with_implied(schema, conditions)


def with_implied(schema: Schema, conditions: Mapping[int, Condition]) -> dict[int, Condition]:
    """Return conditions by column position with those that a finer value implies for the columns that it determines.

    Raises :class:`SchemaError` for values that do not go together, and for a value whose result noise hides.
    """
    found = dict(conditions)
    learned = (lookup for lookup in schema.learned if lookup.leading.any())
    for lookup in (*schema.coarse, *learned):
        given, at = found.get(schema.index(lookup.finer.name)), schema.index(lookup.column.name)
        if lookup.leads is None or not isinstance(given, Is):
            continue
        codes = list(given.codes)
        if not (lookup.leading | lookup.free)[codes].all():
            raise SchemaError(
                f"noise hides which {lookup.column.name!r} one of these values of {lookup.finer.name!r} goes with, so "
                "that it is published as 'other'; name another"
            )
        if lookup.free[codes].any():
            continue
        implied, named = set(lookup.leads[codes].tolist()), found.get(at)
        both = implied & set(named.codes) if isinstance(named, Is) else implied
        found[at] = Is(tuple(sorted(both)))
        if len(both) < len(implied):
            raise SchemaError(
                f"not all these values of {lookup.finer.name!r} go with that of {lookup.column.name!r}; drop one"
            )
    return found


def parse_conditions(schema: Schema, texts: Sequence[str]) -> dict[str, Any]:
    """Parse the ``--where`` options of the command line, for :func:`read_conditions` or ``Synthesizer.sample``.

    Each of ``texts`` is ``column=value``, or ``column=low..high`` for numbers, times and listed integers; an end may be
    left out. A column's name may contain ``=``. Values are not checked here. Raises :class:`InvalidParameter` for a
    text without ``=`` and for a repeated column, and :class:`SchemaError` as :func:`read_conditions` does for the
    column.
    """
    conditions: dict[str, Any] = {}
    for text in texts:
        names = [text[:at] for at, letter in enumerate(text) if letter == "=" and text[:at] in schema.names]
        name = max(names, key=len, default=text.partition("=")[0])
        value = text[len(name) + 1 :]
        if "=" not in text:
            raise InvalidParameter(f"--where {text!r} has no '='; write column=value or column=low..high")
        if name in conditions:
            raise InvalidParameter(f"--where names {name!r} twice; give one value or one interval low..high")
        column = schema.stored[_position(schema, name)]
        low, dots, high = value.partition("..")
        listed = not column.is_number and column.code(value) >= 0
        conditions[name] = (low or None, high or None) if dots and not listed else value
    return conditions


def _position(schema: Schema, name: str) -> int:
    at = schema.index(name)
    if parts := [one.column.name for one in schema.coarse if one.leads is None and one.finer.name == name]:
        raise SchemaError(
            f"conditions on {name!r} are not supported, since its times are moved to the values of {', '.join(parts)}; "
            "name these, or draw more rows and keep those that meet the condition"
        )
    if at in schema.links:
        form = schema.links[at].form
        raise SchemaError(
            f"conditions on {name!r} are not supported: the model represents the "
            f"{form.kind} of {' and '.join(form.operands)} instead; draw more rows and "
            "keep those that meet the condition"
        )
    return at


def _read(schema: Schema, column: Column, value: Any) -> tuple[int, float, list[str]]:
    """Return a value's code, its number (NaN if it has none), and the faults found in it."""
    plain = schema.plain([column.name])
    alone = Schema((plain.stored[plain.index(column.name)],), schema.missing_values)
    encoded = encode_column(alone, column, pd.DataFrame({column.name: pd.Series([value], dtype=object)}))
    number = math.nan if encoded.numbers is None else float(encoded.numbers[0])
    return int(encoded.codes[0]), number, [fault.wrong for fault in encoded.faults]


def _category(schema: Schema, column: Column, value: Any) -> Is:
    assert not column.is_number
    if isinstance(value, tuple):
        return Is(_between(column, value))
    values = list(value) if isinstance(value, list | set | frozenset) else [value]
    found = [(value, *_read(schema, column, value)) for value in values]
    for value, _, _, wrong in found:
        if not wrong:
            continue
        listed = ", ".join(map(str, column.labels[:_LISTED])) + (", ..." if len(column.labels) > _LISTED else "")
        known = listed + (" or missing (None)" if column.missing else "")
        raise SchemaError(
            f"the condition on {column.name!r} cannot be met: {value!r} {wrong[0]}; the column has {known}"
        )
    if not found:
        raise SchemaError(f"the condition on {column.name!r} lists no value; give at least one")
    return Is(tuple(sorted({code for _, code, _, _ in found})))


def _between(column: Categorical | Boolean, ends: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the codes of the integers that a column lists within an interval."""
    labels = column.labels
    if len(ends) != 2 or not all(isinstance(label, int) and not isinstance(label, bool) for label in labels):
        raise SchemaError(
            f"the condition on {column.name!r} cannot be met: {ends!r} is no interval of values; only numbers, times "
            "and listed integers have intervals (low, high), for other values give a list"
        )
    try:
        low, high = (None if end is None else float(end) for end in ends)
    except (TypeError, ValueError) as error:
        raise SchemaError(f"the condition on {column.name!r} has an end that is no number: {ends!r}") from error
    codes = [
        code
        for code, label in enumerate(labels)
        if (low is None or low <= int(label)) and (high is None or int(label) <= high)
    ]
    if not codes:
        raise SchemaError(f"no value of {column.name!r} lies in {ends!r}; it lists {', '.join(map(str, labels))}")
    return tuple(codes)


def _number(schema: Schema, column: Column, value: Any) -> Between | Missing:
    assert column.is_number
    known = f"the column has values from {column.low} to {column.high}" + (
        " and missing values (None)" * column.missing
    )
    ends = value if isinstance(value, tuple | list) else (value, value)
    if isinstance(value, tuple | list) and len(ends) == 2:
        bounds = column.series(column.bin_edges[[0, -1]])  # as values: a time without a zone is in UTC there
        ends = tuple(bound if end is None else end for end, bound in zip(ends, bounds, strict=True))
    if len(ends) != 2:
        raise SchemaError(f"the condition on {column.name!r} must be a value or (low, high), not {value!r}; {known}")
    (_, low, wrong), (_, high, also) = (_read(schema, column, end) for end in ends)
    outside = [problem.startswith("lies outside") for problem in (*wrong, *also)]
    if not isinstance(value, tuple | list) and math.isnan(low) and not wrong:
        return Missing()
    # One end of an interval may lie beyond the column's bounds, but not both ends beyond the same bound.
    if not all(outside) or (any(outside) and low == high):
        problem = next(iter([*wrong, *also]))
        raise SchemaError(f"the condition on {column.name!r} cannot be met: {value!r} {problem}; {known}")
    if math.isnan(low) or math.isnan(high):
        raise SchemaError(f"the condition on {column.name!r} has a missing end, {value!r}; give both ends; {known}")
    per_unit = column.per_unit
    if per_unit:
        low = math.ceil(round(low * per_unit, 6)) / per_unit
        high = math.floor(round(high * per_unit, 6)) / per_unit
    if low > high:
        raise SchemaError(
            f"no value meets the condition on {column.name!r}, {value!r}; put the lower end first; {known}"
        )
    return Between(low, high)
