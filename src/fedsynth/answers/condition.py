"""Conditions on rows in one line of text, such as ``readmitted=yes & age>70``, as axes of contingency tables.

A condition is a conjunction of terms, joined by ``&``. A term is a column's name, one of ``=``, ``!=``, ``<``, ``<=``,
``>``, ``>=``, and a value; ``=`` also takes an interval ``low..high``, both ends included and either may be left out,
and alternatives ``a|b``. ``missing`` stands for a missing value where the column lists no such value. A value in double
quotes may hold ``&`` and ``|``. A row with a missing value meets only a term that names it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter, SchemaError
from fedsynth.models.conditions import Between, Is, Missing, read_conditions
from fedsynth.models.conditions import Condition as OneCondition
from fedsynth.schema import Schema
from fedsynth.schema.bins import Axis, Floats, Integers
from fedsynth.schema.columns import Column

_TERM = re.compile(r"\s*(<=|>=|!=|=|<|>)\s*((?:\"[^\"]*\"|[^&])*?)\s*(?:&|\Z)")
_BAR = re.compile(r"\|(?=(?:[^\"]*\"[^\"]*\")*[^\"]*\Z)")  # outside quotes


@dataclass(frozen=True, eq=False)
class Condition:
    """A condition: its ``text``, and an axis for each of its columns, with the group of rows that meet it as group 1.

    Without any axis, it is met by all rows.
    """

    text: str
    axes: tuple[Axis, ...] = ()

    @property
    def columns(self) -> tuple[int, ...]:
        """Positions of the condition's columns, in the order of its terms."""
        return tuple(axis.column for axis in self.axes)


INSIDE: Integers = np.array([0, 1])
"""Weights that count the rows that meet a condition."""


def read_condition(schema: Schema, text: str) -> Condition:
    """Return the condition that a text describes; an empty text is one that all rows meet.

    Raises :class:`InvalidParameter` for a text of another form, and :class:`SchemaError` for a column or value that
    does not exist, as :func:`~fedsynth.models.conditions.read_conditions` does.
    """
    masks: dict[int, list[OneCondition | tuple[Is]]] = {}
    rest = text.strip()
    while rest:
        name = _column(schema, rest, text)
        term = _TERM.match(rest, len(name))
        assert term is not None
        at, read = _read(schema, name, term[1], term[2], text)
        masks.setdefault(at, []).append(read)
        rest = rest[term.end() :].strip()
        if not rest and term[0].rstrip().endswith("&"):
            raise InvalidParameter(f"the condition {text!r} ends in '&'; add a term, or leave the '&' out")
    return Condition(text, tuple(_axis(schema, at, terms, text) for at, terms in masks.items()))


def _column(schema: Schema, rest: str, text: str) -> str:
    """Return the longest column name with which a term begins, before one of the operators."""
    names = [name for name in schema.names if rest.startswith(name) and _TERM.match(rest, len(name))]
    if not names:
        raise InvalidParameter(
            f"the condition {text!r} has no column and comparison at {rest[:40]!r}; write terms such as age>70, "
            'sex=f or ward="a & b", joined by &'
        )
    return max(names, key=len)


def _read(schema: Schema, name: str, operator: str, value: str, text: str) -> tuple[int, OneCondition | tuple[Is]]:
    """Return a term's column and what its values must be; a tuple of one for values that must not be."""
    at = schema.index(name)
    column = schema.stored[at]
    values = [part.strip() for part in _BAR.split(value)]
    if not all(values):
        raise InvalidParameter(
            f"the condition {text!r} names no value for {name!r}; write one after each {operator} and |"
        )
    if len(values) > 1 and column.is_number:
        raise InvalidParameter(f"{name!r} is a number or time: give an interval low..high in place of {value!r}")
    if len(values) > 1 and operator not in ("=", "!="):
        raise InvalidParameter(f"{name!r} {operator} takes one value, not {value!r}; write {name}=a|b for several")
    if operator in ("<", ">"):
        return at, _strictly(schema, name, operator, _unquoted(value))
    if operator in ("<=", ">="):
        end = _unquoted(value)
        return at, read_conditions(schema, {name: (end, None) if operator == ">=" else (None, end)})[at]
    low, dots, high = value.partition("..")
    interval = bool(dots) and len(values) == 1 and '"' not in value and (column.is_number or column.code(value) < 0)
    given: Any = [_value(column, part) for part in values]
    if interval:
        given = (low.strip() or None, high.strip() or None)
    elif column.is_number:
        (given,) = given
    read = read_conditions(schema, {name: given})[at]
    if operator == "=":
        return at, read
    if not isinstance(read, Is):
        raise InvalidParameter(f"{name!r} is a number or time: write < or > in place of !=")
    return at, (read,)


def _strictly(schema: Schema, name: str, operator: str, value: str) -> Between:
    """Return what is strictly below or above a value: the rest of what is at least, or at most, the value."""
    at = schema.index(name)
    column = schema.stored[at]
    if not column.is_number:
        raise InvalidParameter(f"{name!r} lists its values: write {operator}= or name them, as in {name}=a|b")
    other = read_conditions(schema, {name: (value, None) if operator == "<" else (None, value)})[at]
    assert isinstance(other, Between)
    low, high = (float(end) for end in column.bin_edges[[0, -1]])
    if operator == "<":
        high = other.low - 1 / column.per_unit if column.per_unit else float(np.nextafter(other.low, -np.inf))
    else:
        low = other.high + 1 / column.per_unit if column.per_unit else float(np.nextafter(other.high, np.inf))
    if low > high:
        raise SchemaError(f"no value of {name!r} is {operator} {value}; correct the condition")
    return Between(low, high)


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value


def _value(column: Column, part: str) -> str | None:
    text = _unquoted(part)
    listed = not column.is_number and column.code(text) >= 0
    return None if part == "missing" and column.missing and not listed else text


def _axis(schema: Schema, at: int, terms: list[OneCondition | tuple[Is]], text: str) -> Axis:
    """Return the axis of a column with two groups: rows that fail a term, and rows that meet all."""
    column = schema.stored[at]
    if not column.is_number:
        inside = np.ones(column.size, dtype=bool)
        for term in terms:
            listed = term[0] if isinstance(term, tuple) else term
            assert isinstance(listed, Is)
            among = np.isin(np.arange(column.size), listed.codes)
            inside &= ~among if isinstance(term, tuple) else among
        if column.missing and any(isinstance(term, tuple) for term in terms):
            inside[-1] = False  # a missing value is not known to be another
        return _grouped(at, None, inside, text)
    if any(isinstance(term, Missing) for term in terms):
        if len(terms) > 1:
            raise SchemaError(f"no value of {column.name!r} meets {text!r}")
        return _grouped(at, column.bin_edges[-1:], [False, True], text)
    low = max(term.low for term in terms if isinstance(term, Between))
    high = min(term.high for term in terms if isinstance(term, Between))
    if low > high:
        raise SchemaError(f"no value of {column.name!r} meets {text!r}")
    first, last = (float(end) for end in column.bin_edges[[0, -1]])
    half = 0.5 / column.per_unit if column.per_unit else 0.0  # cuts lie between two values, where there are multiples
    cuts, inside_cells = [high + half], [True]
    if low > first:
        cuts.insert(0, low - half if half else float(np.nextafter(low, -np.inf)))
        inside_cells.insert(0, False)
    if high < last:
        cuts.append(last + 2 * half)
        inside_cells.append(False)
    return _grouped(at, np.array(cuts) + 0.0, inside_cells + [False] * column.missing, text)


def _grouped(at: int, cuts: Floats | None, inside: Sequence[bool] | NDArray[np.bool_], text: str) -> Axis:
    groups = np.asarray(inside, dtype=np.int64)
    if groups.min() == groups.max():
        which = "all" if groups.max() else "no"
        raise SchemaError(f"a term of {text!r} is met by {which} values of its column; leave it out or correct it")
    return Axis(at, cuts, groups)
