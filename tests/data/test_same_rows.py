"""One row more moves one row: encode(D + x) without x is encode(D), whatever x makes of the types of D's columns.

D is a column of values of one type, as an exporter holds them; x is any value. Both tables, D and D + x, go the same
way to the encoding: as a frame, or through Arrow into a Parquet file, or into a CSV file, or into a database. On each
way the column of D + x gets the type that holds all its values, as pandas, Arrow or SQL chooses it.

What the values were before the frame is not looked at: an integer beyond 2^53 beside a missing value has lost its last
digits, and "007" may have been read as 7.
"""

from __future__ import annotations

import contextlib
import csv
import datetime as dt
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.data import postgres
from tests.world import contingencies, contingency

from fedsynth import encoding
from fedsynth.data.draft import draft_schema
from fedsynth.data.read import read_table
from fedsynth.data.sources import open_source
from fedsynth.data.sources.arrow import encode
from fedsynth.encoding import encode_column
from fedsynth.errors import SchemaError, Unsupported
from fedsynth.files import Records
from fedsynth.rows import Table
from fedsynth.schema import MISSING, Boolean, Categorical, Column, Datetime, Numeric, Schema
from fedsynth.schema.canonical import canonical_text, canonical_texts

DAY, NOON = "2020-01-02", "2020-01-02 12:30:00"
LISTS = (
    ("1", "2", "30"), ("0", "1"), ("1.0", "2.0"), ("1.5", "2.50", "-3"), ("007", "7", "1e5", " 1"),
    ("False", "True"), ("false", "true"), ("no", "TRUE", "1.50"), ("2020-01-01", DAY, NOON),
    (f"{DAY} 00:00:00", "2020"), ("10000000000000000", "0.00001"), ("other", "a", "NA"),
    (f"{DAY} 12:30:00+00:00", "-9"),
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
TWO_SPELLINGS = [Categorical("a", listed) for listed in (("1", "1.0", "2"), ("True", "1", "true"))]
"""Lists of two spellings of one value, which is then that of the text: only text keeps apart what they keep apart."""
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
    "text": ["1", "1.0", "1.50", "007", "1e5", "1e+16", " 1", "+1", "1.", "-.5", "2E0", "a", "other", "NA", "", "-9",
             "-9.0", "yes", "true", "False", "2020", DAY, NOON, "2020-01-02T00:00:00.000", f"{DAY} 12:30:00Z", "many",
             "1e999", "-0"],
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
ONE_MORE = [
    *(value for held in VALUES.values() for value in held),
    2.25,
    1e-7,
    10**30,
    2**63,
    -(2**63),
    float("nan"),
    3.5,
]


def series(held: Sequence[Any], dtype: Any) -> pd.Series[Any]:
    """Return values as a column of ``dtype``, or of that which pandas chooses if it cannot hold them."""
    if dtype == "bool" and None in held:
        dtype = object  # pandas would read None as False
    try:
        return pd.Series(list(held), dtype=dtype)  # type: ignore[no-any-return]
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
    whole = [[Decimal(value) if is_long(value) else value for value in part] for part in (held, more)]
    parts = [pa.array(part, from_pandas=True) for part in whole if part or not more]
    parts = parts[::-1] if first else parts
    try:
        return pa.concat_tables([pa.table({"a": part}) for part in parts], promote_options="permissive")["a"]
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.chunked_array([part.cast(pa.string()) for part in parts], pa.string())


def is_long(value: Any) -> bool:
    """Whether a value is an integer that Arrow's integers cannot hold."""
    return isinstance(value, int) and not -(2**63) <= value < 2**63


def arrow(column: pd.Series[Any] | pa.ChunkedArray) -> pa.ChunkedArray:
    """An Arrow column, of text if it would hold values of several types.

    Of a day and a number, Arrow would make days, and of times with and without a zone, times without one.
    """
    if isinstance(column, pa.ChunkedArray):
        return column
    gone = column.isna()
    kinds = {(type(value), getattr(value, "tzinfo", None) is None) for value in column[~gone]}
    if column.dtype != object or (len(kinds) <= 1 and not any(map(is_long, column[~gone]))):
        return pa.chunked_array([pa.array(column, from_pandas=True)])
    return pa.chunked_array([pa.array(column.astype(object).map(str).mask(gone, None), pa.string())])


JOINS = {"concat": joined, "list": listed, "arrow": unified}

# ---------------------------------------------------------------------------------------------------------------------
# The ways to the encoding


def through_frame(folder: Path, column: Any, schema: Schema, numbers: list[int]) -> Table:
    held = column.to_pandas() if isinstance(column, pa.ChunkedArray) else column
    return encoding.encode(schema, pd.DataFrame({"row": numbers, "a": held}))


def through_parquet(folder: Path, column: Any, schema: Schema, numbers: list[int]) -> Table:
    pq.write_table(pa.table({"row": pa.array(numbers, pa.int64()), "a": arrow(column)}), folder / "rows.parquet")
    return read_table(folder / "rows.parquet", schema)


def through_arrow(folder: Path, column: Any, schema: Schema, numbers: list[int]) -> Table:
    return encode(schema, pa.table({"row": pa.array(numbers, pa.int64()), "a": arrow(column)}))


DIALECTS = [
    (mark, quoting, end, start)
    for mark, end, start in ((",", "\n", ""), (";", "\r\n", ""), ("\t", "\n", ""), ("|", "\n", "\ufeff"),
                             (",", "\r\n", "\ufeff"), (";", "\n", "\ufeff"))
    for quoting in (csv.QUOTE_ALL, csv.QUOTE_MINIMAL)
]  # fmt: skip


def through_csv(dialect: int, kind: Records) -> Callable[[Path, Any, Schema, list[int]], Table]:
    mark, quoting, end, start = DIALECTS[dialect]

    def way(folder: Path, column: Any, schema: Schema, numbers: list[int]) -> Table:
        held = column.to_pandas(date_as_object=True) if isinstance(column, pa.ChunkedArray) else column
        frame = pd.DataFrame({"row": numbers, "a": held})
        text = frame.to_csv(index=False, sep=mark, quoting=quoting, lineterminator=end)  # type: ignore[call-overload]
        (folder / "rows.csv").write_bytes((start + text).encode())
        return read_table(folder / "rows.csv", schema, records=kind)

    return way


WAYS = {
    "frame": through_frame,
    "arrow": through_arrow,
    "parquet": through_parquet,
    **{f"csv {kind} {k}": through_csv(k, kind) for kind in get_args(Records) for k in range(len(DIALECTS))},
}
ways = st.one_of(
    *map(st.just, ("frame", "arrow", "parquet")), st.sampled_from([name for name in WAYS if name.startswith("csv")])
)


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
    kind = draw(st.sampled_from(sorted(VALUES)))
    column = draw(st.sampled_from([*COLUMNS, *TWO_SPELLINGS] if kind == "text" else COLUMNS))
    spelled = draw(st.sampled_from([MISSING, *SPELLINGS]))
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


# ---------------------------------------------------------------------------------------------------------------------
# Databases: SQL casts, read and counted

# For each SQL type of D: values, and the types that one more row may make of it, each with values of that row.
CASTS: dict[str, tuple[list[str], dict[str, list[str]]]] = {
    "int8": (["0", "1", "2", "30", "-9", "2020", "10000000000000000"],
             {"int8": ["5"], "numeric(30, 2)": ["2.25"], "float8": ["1e300", "NaN"], "text": ["x", "1.0"]}),
    "numeric(20, 1)": (["1", "1.5", "2.5", "-9", "30"],
                       {"numeric(30, 4)": ["2.25", "NaN"], "float8": ["1e-7"], "text": ["1.50"]}),
    "float8": (["1", "1.5", "0.1", "0.00001", "1e16", "-0"], {"float8": ["Infinity"], "text": ["many"]}),
    "bool": (["true", "false"], {"bool": ["true"], "text": ["perhaps"]}),
    "date": (["2020-01-01", "2020-01-02", "1066-10-14"], {"timestamp": [NOON, "infinity"], "text": ["later"]}),
    "timestamp": (["2020-01-01", NOON, "2020-01-02 12:30:00.5"], {"timestamp": ["2020-03-03"], "text": ["later"]}),
    "timestamptz": (["2020-01-01 00:00+00", "2020-01-02 12:30+00"], {"timestamptz": [NOON], "text": ["later"]}),
    "text": (["1", "1.0", "007", "true", "a", NOON, "2020-01-02T00:00:00.000", "+1", "+30.", "-0", "-.0", ".00001",
              "1e5", "2E0", "+1E-5", "1e999"], {"text": ["x"]}),
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    with pytest.MonkeyPatch.context() as patch, postgres.server(fsync="off", timezone="UTC") as running:
        for name, value in running.environment.items():
            patch.setenv(name, value)
        yield running


@st.composite
def casts(draw: st.DrawFn) -> tuple[Schema, str, list[str | None], str, str | None]:
    kind = draw(st.sampled_from(sorted(CASTS)))
    column = draw(st.sampled_from([*COLUMNS, *TWO_SPELLINGS] if kind == "text" else COLUMNS))
    spelled = draw(st.sampled_from([MISSING, *SPELLINGS]))
    values, wider = CASTS[kind]
    held = draw(st.lists(st.sampled_from(values) | st.none(), min_size=1, max_size=MOST))
    cast = draw(st.sampled_from(sorted(wider)))
    schema = Schema((Categorical("row", tuple(range(MOST + 1))), column), spelled)
    return schema, kind, held, cast, draw(st.none() | st.sampled_from(wider[cast]))


@pytest.mark.skipif(postgres.binaries() is None, reason="no PostgreSQL server is installed here")
@searched(25)
@given(case=casts())
def test_one_row_more_moves_one_row_of_a_database(server, case):
    """As read and as counted: the database counts the same rows as a reader reads, before and after a cast."""
    schema, kind, held, cast, more = case
    literals = ["NULL" if value is None else f"'{value}'" for value in [*held, more]]
    rows = ", ".join(f"({row}, {literal}::{kind})" for row, literal in enumerate(literals[:-1]))
    server.run(
        "DROP TABLE IF EXISTS without, with_more; "
        f"CREATE TABLE without AS SELECT * FROM (VALUES {rows}) AS t(row, a); "
        f"CREATE TABLE with_more AS SELECT row, a::{cast} FROM without; "
        f"INSERT INTO with_more VALUES ({MOST}, {literals[-1]})"
    )
    sources = [open_source(server.uri(f"table={name}")) for name in ("without", "with_more")]
    if sources[0].unfit(schema.asked):
        return  # a column declared with another type, which is refused before a row is read
    read = [read_table(source, schema) for source in sources]
    assert sorted(content(read[1], MOST)) == sorted(content(read[0]))
    for source, table in zip(sources, read, strict=True):
        with contextlib.suppress(Unsupported), source.counted(schema) as counted:
            np.testing.assert_array_equal(contingencies(counted, [(0, 1)])[0], contingency(table, (0, 1)))


# ---------------------------------------------------------------------------------------------------------------------
# Several spellings of one value, and drafts


@pytest.mark.parametrize(
    ("listed", "cells", "codes"),
    [
        (("1", "1.0"), ["1", "1.0", "1.00", 1, 1.0, Decimal("1.0"), True], [0, 1, 0, 0, 0, 0, 0]),
        (("1.00", "1.0"), ["1", "1.0", "1.00", 1, 1.0], [0, 1, 0, 0, 0]),
        (("true", "True"), ["true", "True", "TRUE", True, 1], [0, 1, 1, 1, 1]),
        (("true", "TRUE"), ["true", "TRUE", "True", True, 1.0], [0, 1, 0, 0, 0]),
        (("True", "1", "False", "0"), [True, 1, 1.0, "true", "1.0", False, 0], [0, 1, 1, 0, 1, 2, 3]),
        (("1", "0"), [True, False, "True", 0.0, "false"], [0, 1, 0, 1, 1]),
        (("7", "007"), ["7", "007", "07", 7, "7.0"], [0, 1, -1, 0, 0]),
        (("1",), ["01", "+1", "1.", " 1", "1e0", "1e+0", "1E-0"], [-1, 0, 0, -1, 0, 0, 0]),
        (("100000", "1e5"), ["100000", "1e5", "1e+05", 1e5, "1E5"], [0, 1, 0, 0, 0]),
        (("+1", "0", "-1"), ["+1", 1, "1", "1.0", True, "0", -1.0, "-1", "01"], [0, 0, 0, 0, 0, 1, 2, 2, -1]),
        (("1", "+1"), ["1", "+1", 1, "+1.0"], [0, 1, 0, 0]),
        ((".5", "1.", "2E3"), [0.5, "0.50", "+.5", 1, "+1", 2000, "2e+03", "-.5"], [0, 0, 0, 1, 1, 2, 2, -1]),
        (("0",), ["-0", "+0", "0.", ".0", "-.0", "-0e9", 0.0, "."], [0, 0, 0, 0, 0, 0, 0, -1]),
        (("007", "1_0", "0x1", "1,5", "1e", "e1"), [7, 10, 1, 1.5, "7"], [-1] * 5),
        (("0.1",), [0.1, np.float32(0.1), float(np.float32(0.1)), "0.10", Decimal("0.1")], [0, 0, 0, 0, 0]),
        (("yes", "no"), [True, 1, "yes"], [-1, -1, 0]),
        ((DAY, f"{DAY} 00:00:00"), [DAY, f"{DAY} 00:00:00", f"{DAY}T00:00", dt.date(2020, 1, 2)], [0, 1, 0, 0]),
        ((f"{DAY} 00:00",), [pd.Timestamp(DAY), np.datetime64(DAY), DAY, pd.Timestamp(DAY, tz="UTC")], [0, 0, 0, -1]),
        (("2020-01-01 23:00:00+00:00",), [pd.Timestamp(DAY, tz="Europe/Zurich")], [0]),
    ],
)
def test_which_of_several_spellings_a_cell_is(listed, cells, codes):
    column = Categorical("a", listed)
    assert [column.code(cell) for cell in cells] == codes
    frame = pd.DataFrame({"a": pd.Series(cells, dtype=object)})
    assert encode_column(Schema((column,), ()), column, frame).codes.tolist() == codes


@pytest.mark.parametrize("dtype", [float, object])
def test_zero_has_no_sign_whichever_row_comes_first(dtype):
    """A column of objects lists 0.0 and -0.0 once, so the sign of one zero would be that of the first."""
    frame = pd.DataFrame({"a": pd.Series([-0.0, 0.0, -0.0], dtype=dtype)})
    (numbers,) = encoding.encode(Schema((Numeric("a", -10, 50),)), frame).numbers.values()
    assert not np.signbit(numbers).any()


@pytest.mark.parametrize("column", COLUMNS, ids=str)
def test_a_value_that_stands_for_a_missing_one_does_so_in_every_type(column):
    schema = Schema((column,), ("-99",))
    for held in (pd.Series([-99]), pd.Series([-99.0]), pd.Series(["-99.0"]), pd.Series([Decimal("-99.00")])):
        codes = encode_column(schema, column, pd.DataFrame({"a": held})).codes
        assert codes.tolist() == [column.size - 1 if column.missing else -1]


@searched(100)
@given(
    held=st.lists(st.sampled_from(ONE_MORE), min_size=1, max_size=12),
    kind=st.sampled_from(sorted(VALUES)),
    mixed=st.booleans(),
)
def test_the_draft_of_a_column_reads_its_values(held, kind, mixed):
    values = held if mixed else [value for value in held if value in VALUES[kind]]
    column = pd.Series(values, dtype=object if mixed else None)
    frame = pd.DataFrame({"a": column, "b": ["x"] * len(values)})
    try:
        draft = draft_schema(frame)
    except SchemaError:
        return
    schema = draft.schema
    if "a" in schema.names and "a" not in draft.source:  # cells of another form are read by a source file
        assert encoding.encode(schema, frame).left_out == 0, (values, schema.columns)


@given(value=st.integers(-(2**53), 2**53), digits=st.integers(0, 9))
def test_a_number_has_one_canonical_text_in_every_type(value, digits):
    number = Decimal(value).scaleb(-digits)
    text = canonical_texts(number)[0]
    assert Decimal(text) == number
    assert "e" not in text.lower()
    spellings = [str(number), f"{number:f}", f"{number:f}" + ("0" if "." in f"{number:f}" else ".0"), f"{number:.20e}"]
    assert {canonical_text(spelled) for spelled in spellings} == {text}
    if number == value:
        assert canonical_texts(float(value)) == canonical_texts(value) == (text,)
