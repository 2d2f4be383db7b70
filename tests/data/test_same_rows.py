"""One row more moves one row: encode(D + x) without x is encode(D), whatever x makes of the types of D's columns.

D is a column of values of one type, as an exporter holds them; x is any value. Both tables, D and D + x, go the same way
to the encoding: as a frame, or through Arrow into a Parquet file, or into a CSV file, or into a database. On each way the
column of D + x gets the type that holds all its values, as pandas, Arrow or SQL chooses it.

What the values were before the frame is not looked at: an integer beyond 2^53 beside a missing value has lost its last
digits, and "007" may have been read as 7.
"""

from __future__ import annotations

import csv
import datetime as dt
import tempfile
import warnings
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedsynth.data.draft import draft_schema
from fedsynth.data.read import read_table
from fedsynth.data.sources.files import CsvRows
from fedsynth.errors import SchemaError
from fedsynth.rows import Source, Table
from fedsynth.schema import MISSING, Boolean, Categorical, Column, Datetime, Numeric, Schema
from fedsynth.schema.canonical import canonical_text, canonical_texts

DAY, NOON = "2020-01-02", "2020-01-02 12:30:00"
LISTS = (
    ("1", "2", "30"), ("0", "1"), ("1.0", "2.0"), ("1.5", "2.50", "-3"), ("007", "7", "1e5", " 1"), ("1", "1.0", "2"),
    ("False", "True"), ("false", "true"), ("no", "TRUE", "1.50"), ("2020-01-01", DAY, NOON), (f"{DAY} 00:00:00", "2020"),
    ("10000000000000000", "0.00001"), ("other", "a", "NA"), (f"{DAY} 12:30:00+00:00", "-9"),
)  # fmt: skip
COLUMNS: list[Column] = [
    *(Categorical("a", listed, missing) for listed in LISTS for missing in (False, True)),
    *(Categorical("a", listed, True, unknown="missing") for listed in LISTS[:2]),
    *(Categorical("a", listed, unknown="other") for listed in LISTS[:2]),
    Categorical("a", (0, 1, 2, 30)),
    Categorical("a", (-9, 1, 2), missing=True),
    Boolean("a"),
    Boolean("a", missing=True),
    Numeric("a", -10, 50, bins=7),
    Numeric("a", 0, 50, bins=7, missing=True, outside="drop"),
    Numeric("a", -10, 50, integer=True, missing=True),
    Datetime("a", "2019-01-01", "2021-01-01", bins=9),
    Datetime("a", "2019-01-01", "2021-01-01", bins=9, unit="D", missing=True, outside="drop"),
    Datetime("a", "2019-01-01", "2021-01-01", bins=9, timezone="Europe/Zurich", missing=True),
]
SPELLINGS = (MISSING, ("", "-9", "2", "1.50"), ("", DAY, "true", "30.0"))
"""Spellings of missing values: the default, and numbers, days and booleans that stand for missing ones."""

# The values of D, by their type, and the types that a column of them may have in a frame.
VALUES: dict[str, list[Any]] = {
    "integers": [0, 1, 2, 30, 7, -9, -3, 99, 2020, 10**16, 2**53, -(2**53)],
    "doubles": [0.0, -0.0, 1.0, 2.0, 1.5, 2.5, -9.0, 0.1, 1e-5, 1e16, 2020.0, 33.3, float("inf"), 1e300],
    "decimals": [Decimal(text) for text in ("1", "1.0", "1.5", "2.50", "0E-8", "-9.00", "1E+3", "30", "0.1")],
    "booleans": [True, False],
    "days": [dt.date(2020, 1, 1), dt.date(2020, 1, 2), dt.date(1066, 10, 14)],
    "times": [pd.Timestamp(text) for text in ("2020-01-01", DAY, NOON, "2020-01-02 12:30:00.5", "1999-12-31")],
    "zoned": [pd.Timestamp(text, tz="UTC") for text in ("2020-01-01", DAY, NOON, "2020-06-01 00:30")],
    "text": ["1", "1.0", "1.50", "007", "1e5", "1e+16", " 1", "a", "other", "NA", "", "-9", "-9.0", "yes", "true", "False",
             "2020", DAY, NOON, "2020-01-02T00:00:00.000", f"{DAY} 12:30:00Z", "many", "1e999", "-0"],
    "nothing": [None],
}  # fmt: skip
DTYPES: dict[str, list[Any]] = {
    "integers": [None, "int64", "Int64", "float64", object, "category"],
    "doubles": [None, "float64", "Float64", object, "category"],
    "decimals": [object],
    "booleans": [None, "bool", "boolean", "int8", object, "category"],
    "days": [object, "datetime64[s]"],
    "times": [None, "datetime64[us]", "datetime64[ns]", object],
    "zoned": [None, "datetime64[us, UTC]", object],
    "text": [None, object, "string", "category"],
    "nothing": [None, object, "float64"],
}
ONE_MORE = [*(value for held in VALUES.values() for value in held), 2.25, 1e-7, 10**30, 2**63, -(2**63), float("nan"), 3.5]


def series(held: Sequence[Any], dtype: Any) -> pd.Series[Any]:
    """Return values as a column of ``dtype``, or of that which pandas chooses if it cannot hold them."""
    try:
        return pd.Series(list(held), dtype=dtype)
    except (TypeError, ValueError, OverflowError):
        return pd.Series(list(held), dtype=object)


# ---------------------------------------------------------------------------------------------------------------------
# How the type of D + x comes about: D's column first, then that of both


def joined(held: Sequence[Any], dtype: Any, more: Sequence[Any], first: bool) -> pd.Series[Any]:
    """Two frames one below the other, as pandas joins them."""
    parts = [series(held, dtype), series(more, None)] if more else [series(held, dtype)]
    return pd.concat(parts[::-1] if first else parts, ignore_index=True)


def listed(held: Sequence[Any], dtype: Any, more: Sequence[Any], first: bool) -> pd.Series[Any]:
    """One list of all values, of which pandas finds the type."""
    return series([*more, *held] if first else [*held, *more], None if more else dtype)


def unified(held: Sequence[Any], dtype: Any, more: Sequence[Any], first: bool) -> pa.ChunkedArray:
    """Two Arrow columns one below the other, in a type for both, which is text where there is no other."""
    whole = [[Decimal(value) if value == 10**30 else value for value in part] for part in (held, more)]
    parts = [pa.array(part, from_pandas=True) for part in whole if part or not more]
    parts = parts[::-1] if first else parts
    try:
        return pa.concat_tables([pa.table({"a": part}) for part in parts], promote_options="permissive")["a"]
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.chunked_array([part.cast(pa.string()) for part in parts], pa.string())


def arrow(column: pd.Series[Any] | pa.ChunkedArray) -> pa.ChunkedArray:
    """An Arrow column, of text if it would hold values of several types (of a day and a number, Arrow makes days)."""
    if isinstance(column, pa.ChunkedArray):
        return column
    gone = column.isna()
    if column.dtype != object or (column[~gone].map(type).nunique() <= 1 and 10**30 not in column[~gone].tolist()):
        return pa.chunked_array([pa.array(column, from_pandas=True)])
    return pa.chunked_array([pa.array(column.astype(object).map(str).mask(gone, None), pa.string())])


JOINS = {"concat": joined, "list": listed, "arrow": unified}

# ---------------------------------------------------------------------------------------------------------------------
# The ways to the encoding


def through_frame(folder: Path, column: Any, schema: Schema, numbers: list[int]) -> Table:
    held = column.to_pandas() if isinstance(column, pa.ChunkedArray) else column
    return schema.encode(pd.DataFrame({"row": numbers, "a": held}))


def through_parquet(folder: Path, column: Any, schema: Schema, numbers: list[int]) -> Table:
    pq.write_table(pa.table({"row": pa.array(numbers, pa.int64()), "a": arrow(column)}), folder / "rows.parquet")
    return read_table(folder / "rows.parquet", schema)


CSV_KINDS: dict[str, Callable[[Path], Source]] = {"cells": CsvRows}
"""Declared kinds of CSV files, each with the reader of a file of this kind."""

DIALECTS = [
    (mark, quoting, end, start)
    for mark, end, start in ((",", "\n", ""), (";", "\r\n", ""), ("\t", "\r", ""), ("|", "\n", "\ufeff"),
                             (",", "\r", "\ufeff"), (";", "\r\n", "\ufeff"))
    for quoting in (csv.QUOTE_ALL, csv.QUOTE_MINIMAL)
]  # fmt: skip


def through_csv(dialect: int, kind: str) -> Callable[[Path, Any, Schema, list[int]], Table]:
    mark, quoting, end, start = DIALECTS[dialect]

    def way(folder: Path, column: Any, schema: Schema, numbers: list[int]) -> Table:
        held = column.to_pandas(date_as_object=True) if isinstance(column, pa.ChunkedArray) else column
        frame = pd.DataFrame({"row": numbers, "a": held})
        text = frame.to_csv(index=False, sep=mark, quoting=quoting, lineterminator=end)
        (folder / "rows.csv").write_bytes((start + text).encode())
        return read_table(CSV_KINDS[kind](folder / "rows.csv"), schema)

    return way


WAYS = {
    "frame": through_frame,
    "parquet": through_parquet,
    **{f"csv {kind} {k}": through_csv(k, kind) for kind in CSV_KINDS for k in range(len(DIALECTS))},
}
ways = st.one_of(st.just("frame"), st.just("parquet"), st.sampled_from([name for name in WAYS if name.startswith("csv")]))


def content(table: Table, without: int = -1) -> list[tuple[Any, ...]]:
    """Return the rows of a table, except the row of a number; the first column is the number of the row."""
    numbers = table.numbers.get(1)
    rows = zip(table.codes[0].tolist(), table.codes[1].tolist(),
               [0.0] * len(table) if numbers is None else numbers.tolist(), strict=True)  # fmt: skip
    return [(row, code, repr(number)) for row, code, number in rows if row != without]


MOST = 5


@st.composite
def cases(draw: st.DrawFn) -> tuple[Schema, str, list[Any], Any, Any]:
    """Draw a schema, the type of D's values, D, the type of its column, and x."""
    column, spelled = draw(st.sampled_from(COLUMNS)), draw(st.sampled_from([MISSING, *SPELLINGS]))
    kind = draw(st.sampled_from(sorted(VALUES)))
    value = st.sampled_from(VALUES[kind])
    held = draw(st.lists(value | st.none() if draw(st.booleans()) else value, max_size=MOST))
    schema = Schema((Categorical("row", tuple(range(MOST + 1))), column), spelled)
    return schema, kind, held, draw(st.sampled_from(DTYPES[kind])), draw(st.none() | st.sampled_from(ONE_MORE))


def check(case: tuple[Schema, str, list[Any], Any, Any], join: str, way: str, first: bool) -> None:
    schema, _, held, dtype, more = case
    numbers = list(range(len(held)))
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pandas, about types to come
        alone, both = JOINS[join](held, dtype, [], first), JOINS[join](held, dtype, [more], first)
        without = WAYS[way](Path(name), alone, schema, numbers)
        with_more = WAYS[way](Path(name), both, schema, [MOST, *numbers] if first else [*numbers, MOST])
    assert content(with_more, MOST) == content(without), (alone, both)
    assert without.rows_read + 1 == with_more.rows_read == len(held) + 1


def searched(examples: int) -> settings:
    return settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))


@searched(200)
@given(case=cases(), join=st.sampled_from(sorted(JOINS)), way=ways, first=st.booleans())
def test_one_row_more_moves_one_row(case, join, way, first):
    check(case, join, way, first)


@pytest.mark.slow
@searched(5000)
@given(case=cases(), join=st.sampled_from(sorted(JOINS)), way=ways, first=st.booleans())
def test_one_row_more_moves_one_row_in_5000_tables(case, join, way, first):
    check(case, join, way, first)
