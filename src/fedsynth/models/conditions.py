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
from fedsynth.schema.columns import Column

_LISTED = 20  # most values of a category listed in an error


@dataclass(frozen=True)
class Is:
    """Condition on a categorical or boolean column: the value has this ``code``.

    The code is the value's position in the column's list of values, or the last code for a missing value.
    """

    code: int

    def impose(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return an array like ``values``, a column's codes in drawn rows, in which every entry is ``code``."""
        return np.full_like(values, self.code)


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

    ``asked`` maps a column's name to what its values must be: a category's value; a number or time; an interval ``(low,
    high)`` of these, both ends included; or ``None`` for a missing value. Values are spelled as in a table. An end of
    an interval beyond the column's bounds is moved to the bound. Raises :class:`SchemaError` for an unknown column, a
    value that the column does not have, an empty interval, and a column that is stored as a difference from or ratio to
    another column, since models represent only that.
    """
    conditions: dict[int, Condition] = {}
    for name, value in asked.items():
        at = _position(schema, name)
        column = schema.stored[at]
        conditions[at] = _number(schema, column, value) if column.is_number else _category(schema, column, value)
    for one in schema.coarse:  # what a fine value implies
        given, at = conditions.get(schema.index(one.finer.name)), schema.index(one.column.name)
        if one.leads is not None and isinstance(given, Is):
            implied = Is(int(one.leads[given.code]))
            if conditions.setdefault(at, implied) != implied:
                raise SchemaError(
                    f"no row has these values of {one.finer.name!r} and {one.column.name!r}; drop one condition"
                )
    return conditions


def parse_conditions(schema: Schema, texts: Sequence[str]) -> dict[str, Any]:
    """Parse the ``--where`` options of the command line, for :func:`read_conditions` or ``Synthesizer.sample``.

    Each of ``texts`` is ``column=value``, or ``column=low..high`` for a numeric or datetime column; an end left out is
    the column's bound. Values are not checked here. Raises :class:`InvalidParameter` for a text without ``=`` and for a
    repeated column, and :class:`SchemaError` as :func:`read_conditions` does for the column.
    """
    conditions: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidParameter(f"--where {text!r} has no '='; write column=value or column=low..high")
        if name in conditions:
            raise InvalidParameter(f"--where names {name!r} twice; give one value or one interval low..high")
        column = schema.stored[_position(schema, name)]
        low, dots, high = value.partition("..")
        conditions[name] = value
        if dots and column.is_number:
            first, last = column.low, column.high
            if column.is_time and column.timezone is not None:
                # as times, since text without a zone is in the column's zone in bounds, but in UTC in values
                first, last = column.series(column.bin_edges[[0, -1]])
            conditions[name] = (low or first, high or last)
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
    if isinstance(value, tuple | list | set | dict):
        wrong = ["is not a single value"]
    else:
        code, _, wrong = _read(schema, column, value)
    if wrong:
        listed = ", ".join(map(str, column.labels[:_LISTED])) + (", ..." if len(column.labels) > _LISTED else "")
        known = listed + (" or missing (None)" if column.missing else "")
        raise SchemaError(
            f"the condition on {column.name!r} cannot be met: {value!r} {wrong[0]}; the column has {known}"
        )
    return Is(code)


def _number(schema: Schema, column: Column, value: Any) -> Between | Missing:
    assert column.is_number
    known = f"the column has values from {column.low} to {column.high}" + (
        " and missing values (None)" * column.missing
    )
    ends = value if isinstance(value, tuple | list) else (value, value)
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
