"""Contingency tables counted by the database itself, for a site whose rows should not leave it.

A :class:`DatabaseTable` answers what counting queries ask of a :class:`~fedsynth.rows.Table`, and nothing else.

Rule 1: everything it says of the rows it says of one snapshot, which later changes of the table do not reach.
Rule 2: a row's codes are those that :meth:`Schema.encode` gives it, to the last edge, and the rows left out are the
    same: those with a code that is NULL.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from fedsynth.data.sql import (
    PostgresTable,
    as_double,
    bounded_time,
    quote_name,
    quote_text,
    role_of,
    run,
    session,
    types_of,
    unfit,
)
from fedsynth.errors import SchemaError, Unsupported
from fedsynth.schema import Schema
from fedsynth.schema.bins import Axis
from fedsynth.schema.columns import Boolean, Categorical, Column, Datetime, Numeric

_MOST_COLUMNS = 62  # of one scan: a bit each says which columns a row of the reply is for
_LARGEST = 2**53  # beyond it, doubles skip integers
_DOUBLES = {"integer", "numeric", "float"}
# Families of types whose encoding SQL can say; text that stands for numbers or times is for Python to read.
_COUNTED = {
    "label": {"text", "integer", "numeric"},
    "number": _DOUBLES,
    "boolean": {"bool", "integer"},
    "time": {"date", "timestamp"},
    "aware time": {"date", "timestamp", "timestamptz"},
}


@dataclass(frozen=True, eq=False)
class DatabaseTable:
    """One snapshot of a database table under a schema: its size and its contingency tables.

    ``encodings[j]`` is the SQL of column ``j``'s code. ``left_out`` counts the rows that do not fit, of which a column
    among ``gaps`` has no code; ``rows`` counts the others. Made by :func:`count_in_database`, and good while that block
    lasts.
    """

    schema: Schema
    source: PostgresTable
    cursor: Any
    encodings: tuple[str, ...]
    rows: int
    left_out: int = 0
    gaps: tuple[int, ...] = ()

    def __len__(self) -> int:
        return self.rows

    @property
    def holds_rows(self) -> bool:
        """Whether single rows are at hand: they stay in the database."""
        return False

    @property
    def rows_read(self) -> int:
        """Number of rows of the snapshot, those that are left out included."""
        return self.rows + self.left_out

    def __repr__(self) -> str:
        """Never shows a row, nor how many there are."""
        return f"<DatabaseTable of {len(self.encodings)} columns>"

    def tables(self, axes: Sequence[Axis], cliques: Sequence[Sequence[int]]) -> list[NDArray[np.int64]]:
        """Return one contingency table for each clique, whose members are positions in ``axes``.

        One scan for every 62 columns, by several of the database's workers where a single set of columns is asked for
        and it has them. One record changes one cell of each table by one: the L2 (and L1) sensitivity of a table under
        add/remove adjacency is 1. Groups of the schema's own codes are added up here; raises :class:`Unsupported` for
        cut points, which would need the numbers themselves.
        """
        if any(axis.cuts is not None for axis in axes):
            raise Unsupported(
                "this site counts in its database, by the schema's own bins only; let it read its rows, or use a "
                "method that does not adapt bins"
            )
        counted = self._counts([[axes[at].column for at in clique] for clique in cliques])
        found = []
        for table, clique in zip(counted, cliques, strict=True):
            for place, at in enumerate(clique):
                groups = axes[at].groups
                if groups is not None:
                    summed = np.zeros((int(groups.max()) + 1, *np.delete(table.shape, place)), dtype=np.int64)
                    np.add.at(summed, groups, np.moveaxis(table, place, 0))
                    table = np.moveaxis(summed, 0, place)
            found.append(table)
        return found

    @property
    def codes(self) -> NoReturn:
        """Rows stay in the database: :class:`Unsupported`."""
        _refuse_rows()

    @property
    def numbers(self) -> NoReturn:
        """Rows stay in the database: :class:`Unsupported`."""
        _refuse_rows()

    def _counts(self, cliques: Sequence[Sequence[int]]) -> list[NDArray[np.int64]]:
        """Return the contingency tables of columns, in one scan for every 62 columns, which encodes values once."""
        first = _within(cliques, _MOST_COLUMNS)
        if first < len(cliques):
            return self._counts(cliques[:first]) + self._counts(cliques[first:])
        groups = sorted({tuple(sorted(set(clique))) for clique in cliques})
        if not groups:
            return []
        columns = sorted({column for group in groups for column in group})
        names = ", ".join(f"c{column}" for column in columns)
        coded = _coded(self.source, self.encodings, columns, self.gaps)
        # Sets keep the database's workers out, and OFFSET 0 the planner from computing a code anew for each of them.
        sets = ", ".join(f"({', '.join(f'c{column}' for column in group)})" for group in groups)
        grouping = names if len(groups) == 1 else f"GROUPING SETS ({sets})"
        sql = f"SELECT {names}, count(*) FROM ({coded} OFFSET 0) AS coded GROUP BY {grouping}"
        found = run(self.source, self.cursor, sql)
        codes = {  # NULL where the group leaves the column out
            column: np.asarray(found.column(place).fill_null(-1), dtype=np.int64)
            for place, column in enumerate(columns)
        }
        count = np.asarray(found.column(len(columns)), dtype=np.int64)
        grouped = sum((held >= 0).astype(np.int64) << place for place, held in enumerate(codes.values()))
        tables = []
        for clique in cliques:
            rows = grouped == sum(1 << place for place, column in enumerate(columns) if column in clique)
            table = np.zeros(self.schema.shape(clique), dtype=np.int64)
            table[tuple(codes[column][rows] for column in clique)] = count[rows]
            tables.append(table)
        return tables


@contextmanager
def count_in_database(source: PostgresTable, schema: Schema) -> Iterator[DatabaseTable]:
    """Give one snapshot of a database table, to be counted where it is while the block lasts.

    For rows that must not leave the database, or do not fit into memory; reading them
    (:func:`fedsynth.data.source.read_table`) costs less as soon as several pairs are asked for. A snapshot keeps
    the database from cleaning up behind later changes: open one for each message, not one for a run. Raises
    :class:`SchemaError` where table, columns or types do not fit, and :class:`Unsupported` for text
    that stands for numbers or times, which only reading understands.
    """
    with session(source) as cursor:
        found = types_of(source, cursor)
        if absent := [name for name in schema.names if name not in found]:
            raise SchemaError(
                f"{source.name} lacks the columns {absent}; add them there, or take them out of the schema"
            )
        encodings = tuple(encoding(column, *found[column.name], schema.missing_values) for column in schema.columns)
        yield _snapshot(source, cursor, schema, encodings)


def _snapshot(source: PostgresTable, cursor: Any, schema: Schema, encodings: tuple[str, ...]) -> DatabaseTable:
    """Return the table with its numbers of rows, found in one scan."""
    every = range(len(encodings))
    names = [f"c{column}" for column in every]
    present = ", ".join(f"count({name})" for name in names)
    found = run(
        source,
        cursor,
        f"SELECT count(*), count(*) FILTER (WHERE ({', '.join(names)}) IS NOT NULL), {present} "
        f"FROM ({_coded(source, encodings, every)} OFFSET 0) AS coded",
    )
    read, rows, *whole = (column[0].as_py() for column in found.columns)
    gaps = tuple(column for column in every if whole[column] < read)
    return DatabaseTable(schema, source, cursor, encodings, rows, read - rows, gaps)


def _within(cliques: Sequence[Sequence[int]], most: int) -> int:
    """Return how many of the first ``cliques`` have at most ``most`` columns together, at least one."""
    columns: set[int] = set()
    for at, clique in enumerate(cliques):
        columns |= set(clique)
        if at and len(columns) > most:
            return at
    return len(cliques)


def _refuse_rows() -> NoReturn:
    raise Unsupported(
        "this site counts in its database and cannot hand its rows to a task; let it read them (read_table), or use a "
        "method that asks for marginals only"
    )


def _coded(source: PostgresTable, encodings: Sequence[str], columns: Sequence[int], gaps: Sequence[int] = ()) -> str:
    """Return the SQL of the codes of ``columns``, of the rows that have a code in each of ``gaps``."""
    codes = ", ".join(f"{encodings[column]} AS c{column}" for column in sorted({*columns, *gaps}))
    coded = f"SELECT {codes} FROM {source.quoted} AS t"
    if not gaps:
        return coded
    names = ", ".join(f"c{column}" for column in columns)
    return f"SELECT {names} FROM ({coded} OFFSET 0) AS every WHERE ({', '.join(f'c{gap}' for gap in gaps)}) IS NOT NULL"


def encoding(column: Column, family: str, typed: str, missing_values: Sequence[str]) -> str:
    """Return the SQL of a column's code, for a value of a type of ``family`` (written ``typed``).

    It equals ``column.encode`` for every value: NULL where that leaves the row out.
    """
    role = role_of(column)
    if family not in _COUNTED[role]:
        if family == "text":
            raise Unsupported(
                f"column {column.name!r} holds text where the schema wants a {column.kind} column; let the site read "
                "its rows, or cast the column in a view"
            )
        raise unfit(column.name, typed, column)
    value = f"t.{quote_name(column.name)}"
    gone = str(column.size - 1) if column.missing else "NULL"
    match column:
        case Categorical() if role == "label":
            return _label(column, f'({value}::text COLLATE "C")', gone, missing_values)
        case Categorical():
            # A label that no double equals is out of reach: values are compared as doubles, as Schema.encode does.
            known = [(float(label), code) for code, label in enumerate(column.labels) if float(label) == label]
            branches = " ".join(f"WHEN {_double(number)} THEN {code}" for number, code in known)
            unknown = str(column.size - 1) if column.unknown == "missing" else "NULL"
            lookup = f"CASE {as_double(value, family)} {branches} ELSE {unknown} END" if known else f"{unknown}::int"
            return f"CASE WHEN {_no_number(value, family)} THEN {gone} ELSE {lookup} END"
        case Boolean():
            true, false = (value, f"NOT {value}") if family == "bool" else (f"{value} = 1", f"{value} = 0")
            return f"CASE WHEN {value} IS NULL THEN {gone} WHEN {true} THEN 1 WHEN {false} THEN 0 END"
        case Numeric():
            return _binned_number(column, value, family, gone)
        case Datetime():
            return _binned_time(column, value, family, gone)


def _label(column: Categorical, value: str, gone: str, missing_values: Sequence[str]) -> str:
    spelled = [quote_text(text) for text in missing_values if text not in column.values and "\0" not in text]
    missing = f"{value} IS NULL" + (f" OR {value} IN ({', '.join(spelled)})" if spelled else "")
    known = json.dumps({label: code for code, label in enumerate(column.labels) if "\0" not in str(label)})
    unknown = {"drop": "NULL", "missing": str(column.size - 1)}.get(column.unknown) or str(column.labels.index("other"))
    # A JSON object is searched by bisection, and compares bytes whatever the collation of the column.
    return f"CASE WHEN {missing} THEN {gone} ELSE coalesce(({quote_text(known)}::jsonb -> {value})::int, {unknown}) END"


def _binned_number(column: Numeric, value: str, family: str, gone: str) -> str:
    edges = column.bin_edges
    number, last = as_double(value, family), len(edges) - 2
    broken = f"WHEN {number} <> floor({number}) THEN NULL " if column.integer and family != "integer" else ""
    below, above = ("0", str(last)) if column.outside == "clip" else ("NULL", "NULL")
    array = ", ".join(repr(float(edge)) for edge in edges)
    return (
        f"CASE WHEN {_no_number(value, family)} THEN {gone} {broken}"
        f"WHEN {number} < {_double(edges[0])} THEN {below} WHEN {number} > {_double(edges[-1])} THEN {above} "
        f"ELSE least(width_bucket({number}, '{{{array}}}'::float8[]) - 1, {last}) END"
    )


def _binned_time(column: Datetime, value: str, family: str, gone: str) -> str:
    """Compare instants with the first microsecond of each bin: a whole unit is at or past an edge just when it is."""
    edges = column.bin_edges
    if max(abs(edges[0]), abs(edges[-1])) >= _LARGEST:
        raise Unsupported(
            f"column {column.name!r} is too fine for its bounds to be counted; let the site read its rows"
        )
    firsts = [math.ceil(edge) * column.microseconds for edge in edges.tolist()]
    past = (math.floor(edges[-1]) + 1) * column.microseconds
    # A timestamp cannot be as far off as a date.
    time = f"({bounded_time(value, family)})::timestamp" if family == "date" else value
    if family == "timestamptz":
        time = f"({value} AT TIME ZONE 'UTC')"
    last = len(edges) - 2
    below, above = ("0", str(last)) if column.outside == "clip" else ("NULL", "NULL")
    array = ", ".join(_instant(first) for first in firsts)
    return (
        f"CASE WHEN {value} IS NULL THEN {gone} "
        f"WHEN {time} < {_instant(firsts[0])} THEN {below} WHEN {time} >= {_instant(past)} THEN {above} "
        f"ELSE least(width_bucket({time}, ARRAY[{array}]) - 1, {last}) END"
    )


def _no_number(value: str, family: str) -> str:
    return f"{value} IS NULL" + ("" if family == "integer" else f" OR {value} = 'NaN'")


def _instant(microseconds: int) -> str:
    return f"timestamp '{np.datetime64(microseconds, 'us')}'"


def _double(number: float) -> str:
    return f"'{float(number)!r}'::float8"
