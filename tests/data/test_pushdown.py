"""Codes computed by PostgreSQL equal those of the schema, for every kind of column, at every edge and beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from tests.data import postgres

from fedsynth.data.sources.ibis import CountedRows, _compared, canonical, place
from fedsynth.data.sources.postgres import counted_value, parse_address, quote_text, run, session
from fedsynth.encoding import encode_column
from fedsynth.errors import SchemaError, Unsupported
from fedsynth.schema import MISSING, Schema
from fedsynth.schema.bins import Axis
from fedsynth.schema.canonical import DECIMAL, POWER, TIME, TRUTH_VALUES, canonical_text
from fedsynth.schema.columns import Boolean, Categorical, Column, Datetime, Numeric, codes_of_texts

ibis = pytest.importorskip("ibis", reason="the extra [sql] is not installed")
pytest.importorskip("adbc_driver_postgresql", reason="the driver of the extra [sql] is not installed")
pytestmark = pytest.mark.skipif(postgres.binaries() is None, reason="no PostgreSQL server is installed here")

Ask = Any
Policy = Literal["clip", "drop"]
thorough = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """A function from SQL to Arrow columns, on one session of a server of its own."""
    with pytest.MonkeyPatch.context() as patch, postgres.server(fsync="off") as server:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        source = parse_address(server.uri("table=none"))
        with session(source) as cursor:
            yield lambda sql: run(source, cursor, sql)


def by_schema(column: Column, values: pd.Series[Any], missing_values: tuple[str, ...]) -> list[int]:
    """Codes of the schema, -1 where the row is left out."""
    codes: list[int] = encode_column(
        Schema((column,), missing_values), column, pd.DataFrame({column.name: values})
    ).codes.tolist()
    return codes


def by_database(
    ask: Ask, column: Column, family: str, literals: Sequence[str], missing_values: tuple[str, ...]
) -> list[int]:
    rows = ", ".join(f"({number}, {literal})" for number, literal in enumerate(literals))
    found = ask(coded(column, family, f'(VALUES {rows}) AS t(number, "{column.name}")', missing_values))
    return [-1 if one is None else one for one in found.column(0).to_pylist()]


def coded(column: Column, family: str, relation: str, missing_values: Sequence[str] = ()) -> str:
    """The SQL of a column's codes, of a relation that numbers its rows."""
    value, kind = counted_value(column, family, family, missing_values)
    rows = ibis.table({"number": "int64", "v": kind}, name="rows")
    if isinstance(column, Categorical) and kind == "string":
        rows = rows.mutate(v=_compared(rows.v, codes_of_texts(column, missing_values)))
    codes = rows.select("number", code=place(column, Axis(0), rows.v, missing_values).cast("int32"))
    sql = ibis.to_sql(codes.order_by("number").select("code"), dialect="postgres")
    return f"WITH rows AS (SELECT number, {value} AS v FROM {relation} OFFSET 0) {sql}"


def assert_equal(
    ask: Ask,
    column: Column,
    family: str,
    literals: Sequence[str],
    values: pd.Series[Any],
    missing_values: tuple[str, ...] = MISSING,
) -> None:
    expected = by_schema(column, values, missing_values)
    got = by_database(ask, column, family, literals, missing_values)
    assert got == expected, list(zip(literals, got, expected, strict=True))


finite = st.floats(-1e9, 1e9) | st.integers(-100, 100).map(float) | st.floats(-1e300, 1e300)


@st.composite
def numeric_columns(draw: st.DrawFn) -> Numeric:
    integer, missing = draw(st.booleans()), draw(st.booleans())
    outside: Policy = draw(st.sampled_from(["clip", "drop"]))
    number = st.integers(-(2**53), 2**53) | st.integers(-50, 50) if integer else finite
    edges = sorted(draw(st.sets(number, min_size=1, max_size=12)))
    try:
        if draw(st.booleans()) and len(edges) > 1:
            return Numeric("x", edges[0], edges[-1], tuple(edges), 32, integer, None, missing, outside)
        return Numeric("x", edges[0], edges[-1], None, draw(st.integers(1, 40)), integer, None, missing, outside)
    except SchemaError:
        reject()


def near(edges: np.ndarray[Any, Any]) -> list[float]:
    with np.errstate(over="ignore"):
        beside = np.concatenate([edges, np.nextafter(edges, np.inf), np.nextafter(edges, -np.inf), edges + 0.5])
    return [*beside.tolist(), 0.0, -0.0, float("inf"), float("-inf"), 1e300, -1e300, 5e-324]


@thorough
@given(column=numeric_columns(), more=st.lists(finite, max_size=20))
def test_numbers(ask, column, more):
    numbers = [*near(column.bin_edges), *more]
    literals = [f"'{number!r}'::float8" for number in numbers]
    values = pd.Series([*numbers, np.nan, np.nan])
    assert_equal(ask, column, "float", [*literals, "'NaN'", "NULL"], values)
    # A numeric is read as the double that is nearest; it knows no negative zero, and neither do bins.
    decimals = [f"'{number!r}'::numeric" for number in numbers]
    assert_equal(ask, column, "numeric", [*decimals, "'NaN'", "NULL"], values)
    far = ["1e400", "-1e400", "1.7976931348623159e308", "1e-400", "-1e-400", "2.4e-324", "-4e-324"]
    nearest = pd.Series([float(one) for one in far])
    assert_equal(ask, column, "numeric", [f"'{one}'::numeric" for one in far], nearest)


@thorough
@given(column=numeric_columns(), more=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_integers(ask, column, more):
    held = [round(one) for one in near(column.bin_edges) if abs(one) < 2**62]
    integers = [one for two in held for one in (two - 1, two, two + 1)] + more
    values = pd.Series([*integers, None], dtype="Int64")
    assert_equal(ask, column, "integer", [*(f"'{one}'::int8" for one in integers), "NULL"], values)


UNITS = st.sampled_from(["us", "ms", "s", "min", "h", "D"])
times = st.datetimes(pd.Timestamp("1800-01-01").to_pydatetime(), pd.Timestamp("2200-01-01").to_pydatetime())


@st.composite
def datetime_columns(draw: st.DrawFn, timezone: str | None) -> Datetime:
    low, *between, high = sorted(draw(st.sets(times, min_size=2, max_size=8)))
    outside: Policy = draw(st.sampled_from(["clip", "drop"]))
    edges = tuple(time.isoformat() for time in (low, *between, high)) if draw(st.booleans()) else None
    bounds = low.isoformat(), high.isoformat()
    try:
        bins, unit, missing = draw(st.integers(1, 40)), draw(UNITS), draw(st.booleans())
        return Datetime("x", *bounds, edges, bins, unit, timezone, missing, outside)
    except SchemaError:
        reject()


def instants(column: Datetime, more: Sequence[Any]) -> list[np.datetime64]:
    """Instants at every edge and beside it, by a microsecond and by a unit."""
    unit = column.microseconds
    edges = [int(edge * unit) for edge in column.bin_edges] + [int(np.floor(e)) * unit for e in column.bin_edges]
    near = [edge + step for edge in edges for step in (-unit, -1, 0, 1, unit - 1, unit, 2 * unit)]
    held = [*(np.datetime64(one, "us") for one in near), *(np.datetime64(one, "us") for one in more)]
    return [one for one in held if np.datetime64("0001-01-02") < one < np.datetime64("9999-12-30")]


@thorough
@given(column=datetime_columns(None), more=st.lists(times, max_size=20))
def test_times(ask, column, more):
    held = instants(column, more)
    values = pd.Series(np.array([*held, np.datetime64("NaT")], dtype="datetime64[us]"))
    assert_equal(ask, column, "timestamp", [*(f"'{one}'::timestamp" for one in held), "NULL"], values)
    days = pd.Series(np.array([*held, np.datetime64("NaT")], dtype="datetime64[D]").astype("datetime64[s]"))
    assert_equal(ask, column, "date", [*(f"'{str(one)[:10]}'::date" for one in held), "NULL"], days)
    ends = pd.Series(np.array(["-290000-01-01", "290000-01-01"] * 2, dtype="datetime64[s]"))
    for kind, last in (("timestamp", "294276-12-31"), ("date", "5874897-12-31")):
        far = [f"'{one}'::{kind}" for one in ("4714-11-24 BC", last, "-infinity", "infinity")]
        assert_equal(ask, column, kind, far, ends)


@thorough
@given(column=datetime_columns("Europe/Zurich"), more=st.lists(times, max_size=20))
def test_times_of_a_zone(ask, column, more):
    held = instants(column, more)
    naive = pd.Series(np.array([*held, np.datetime64("NaT")], dtype="datetime64[us]"))
    zoned = [f"'{one}+00'::timestamptz" for one in held]
    assert_equal(ask, column, "timestamptz", [*zoned, "NULL"], naive.dt.tz_localize("UTC"))
    ends = pd.Series(np.array(["-290000-01-01", "290000-01-01"], dtype="datetime64[s]"))
    assert_equal(ask, column, "timestamptz", ["'-infinity'::timestamptz", "'infinity'::timestamptz"], ends)
    assert_equal(ask, column, "timestamp", [*(f"'{one}'::timestamp" for one in held), "NULL"], naive)


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
valued = st.one_of(
    *(st.from_regex(rf"\A(?:{form})\Z") for form in (DECIMAL, POWER, TIME)),
    st.from_regex(r"\A-?[0-9]{0,2}[.]?[0-9]{0,2}\Z"),
    st.sampled_from([*TRUTH_VALUES, "1", "1.0", "1.00", "0", "-0", "0E-8", "01", "1e5", "1e+5", "1.", "1\n",
                     "2020-01-02", "2020-01-02 00:00:00.000", "2020-01-02T00:00", "2020-01-02 00:00Z",
                     "2020-01-02 00:00:00.10+0000", "2020-01-02 12:30:00.100",
                     "2020-01-02 00:00:00+01", "2020-01-02 00:00\n", "10.10", "100"]),
)  # fmt: skip
"""Texts that spell a number, a boolean or a time, and some that nearly do."""
words = texts | st.sampled_from([*MISSING, "other", "a", "A", "é", "e\u0301", "'", '"', "\\", "{}", "a "])
spelled = words | valued.filter(lambda text: len(text) < 300)


@thorough
@given(held=st.lists(valued, min_size=1, max_size=30))
def test_canonical_texts(ask, held):
    rows = ", ".join(f"({number}, {quote_text(text)})" for number, text in enumerate(held))
    table = ibis.table({"number": "int64", "x": "string"}, name="t")
    sql = ibis.to_sql(table.order_by("number").select(canonical=canonical(table.x)), dialect="postgres")
    found = ask(f"WITH t(number, x) AS (VALUES {rows}) {sql}")
    assert found.column(0).to_pylist() == list(map(canonical_text, held))
    assert [canonical_text(canonical_text(text)) for text in held] == list(map(canonical_text, held))


@thorough
@given(
    labels=st.sets(spelled, min_size=1, max_size=10).map(tuple),
    missing=st.booleans(),
    unknown=st.sampled_from(["drop", "other", "missing"]),
    missing_values=st.sets(spelled, max_size=5).map(tuple),
    more=st.lists(spelled, max_size=20),
)
def test_labels(ask, labels, missing, unknown, missing_values, more):
    column = Categorical("x", labels, missing or unknown == "missing", unknown=unknown)
    held = [*labels, *missing_values, *more]
    values = pd.Series([*held, None], dtype=object)
    literals = [f"{quote_text(one)}::text" for one in held]
    assert_equal(ask, column, "text", [*literals, "NULL"], values, missing_values)


@thorough
@given(
    labels=st.sets(st.integers(-5, 5) | st.integers(-(2**60), 2**60), min_size=1, max_size=10).map(tuple),
    missing=st.booleans(),
    unknown=st.sampled_from(["drop", "missing"]),
    more=st.lists(st.integers(-(2**60), 2**60), max_size=10),
)
def test_labels_that_are_integers(ask, labels, missing, unknown, more):
    missing = missing or unknown == "missing"
    column = Categorical("x", labels, missing, unknown=unknown)
    held = [*labels, *(one + 1 for one in labels), *more]
    values = pd.Series([*held, None], dtype="Int64")
    assert_equal(ask, column, "integer", [*(f"'{one}'::int8" for one in held), "NULL"], values)
    doubles = [*map(float, held), 0.5, float("inf"), float("-inf"), -0.0]
    values = pd.Series([*doubles, np.nan, np.nan])
    for family, kind in (("float", "float8"), ("numeric", "numeric")):
        literals = [f"'{one!r}'::{kind}" for one in doubles]
        assert_equal(ask, column, family, [*literals, "'NaN'", "NULL"], values)
    as_text = Categorical("x", tuple(map(str, labels)), missing, unknown=unknown)
    values = pd.Series([*map(str, held), None], dtype=object)
    assert_equal(ask, as_text, "integer", [*(f"'{one}'::int8" for one in held), "NULL"], values)


@pytest.mark.parametrize("missing", [False, True])
def test_booleans(ask, missing):
    column = Boolean("x", missing)
    assert_equal(ask, column, "bool", ["true", "false", "NULL"], pd.Series([True, False, None], dtype="boolean"))
    integers = pd.Series([0, 1, 2, -1, None], dtype="Int64")
    assert_equal(ask, column, "integer", ["0", "1", "2", "-1", "NULL"], integers)


def test_a_label_is_compared_byte_by_byte_whatever_the_collation_of_the_column(ask):
    column = Categorical("x", ("a", "B"), unknown="other")
    texts = "SELECT number, x COLLATE \"und-x-icu\" AS x FROM unnest(ARRAY['a', 'A', 'b', 'B', 'a ']) WITH ORDINALITY"
    found = ask(coded(column, "text", f"({texts} AS t(x, number)) AS t"))
    assert found.column(0).to_pylist() == [0, 2, 2, 1, 2]


@dataclass
class Types:
    """What a database says of its columns, which is all that is looked at before a question is asked."""

    types: dict[int, str]


@pytest.mark.parametrize(
    ("column", "family", "error"),
    [
        (Numeric("x", 0, 1), "text", Unsupported),
        (Boolean("x"), "text", Unsupported),
        (Datetime("x", "2020-01-01", "2021-01-01"), "text", Unsupported),
        (Datetime("x", "1400-01-01", "2021-01-01", unit="us"), "timestamp", Unsupported),
        (Datetime("x", "2020-01-01", "2021-01-01"), "timestamptz", SchemaError),
        (Categorical("x", ("a",)), "", SchemaError),
        (Numeric("x", 0, 1), "", SchemaError),
    ],
)
def test_what_cannot_be_counted_is_refused(column, family, error):
    def counted() -> None:
        counted_value(column, family, family)
        CountedRows(Schema((column,)), Types({0: "timestamp"}))  # type: ignore[arg-type]

    with pytest.raises(error, match="'x'"):
        counted()
