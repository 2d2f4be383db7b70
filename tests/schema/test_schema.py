"""Schemas, columns and tables: what goes in comes back, and what does not fit is named."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import uuid
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.world import contingency

from fedsynth.encoding import decode, encode, problems
from fedsynth.errors import SchemaError
from fedsynth.rows import Table, concatenate
from fedsynth.schema import Boolean, Categorical, Datetime, Numeric, Schema
from fedsynth.schema.bins import Grid

MIXED = Schema(
    (
        Categorical("zip", ("007", "0123", "99999"), missing=True),
        Categorical("stage", ("low", "mid", "high"), ordered=True),
        Categorical("code", (1, 5, 9), missing=True),
        Boolean("insured", missing=True),
        Numeric("visits", 0, 9, integer=True, missing=True),
        Numeric("income", 0.0, 100.0, bins=7, missing=True),
        Numeric("price", 0.0, 10.0, bins=5, decimals=2),
        Datetime("seen", "2020-01-01", "2021-01-01", bins=12, unit="D", missing=True),
        Datetime("at", "2020-01-01", "2020-01-08", bins=7, unit="s", timezone="Europe/Berlin"),
    )
)


def mixed_frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "zip": ["007", None, "99999", "0123"],
            "stage": pd.Categorical(["low", "high", "mid", "low"], ["low", "mid", "high"], ordered=True),
            "code": pd.array([9, None, 1, 5], dtype="Int64"),
            "insured": pd.array([True, False, None, True], dtype="boolean"),
            "visits": pd.array([0, 9, None, 3], dtype="Int64"),
            "income": [0.0, np.nan, 100.0, 55.5],
            "price": [0.0, 9.99, 10.0, 0.01],
            "seen": pd.to_datetime(["2020-01-01", "2020-12-31", "NaT", "2020-02-29"]),
            "at": pd.to_datetime(
                ["2020-01-01T00:00:00", "2020-01-07T23:59:59", "2020-01-03T12:00:00", "2020-01-08T00:00:00"]
            ).tz_localize("Europe/Berlin"),
        }
    )


def test_values_and_dtypes_come_back():
    frame = mixed_frame()
    table = encode(MIXED, frame)
    back = decode(MIXED, table, np.random.default_rng(0))
    assert list(back.columns) == list(frame.columns)
    # Columns of single values come back exactly, missing ones as missing.
    for name in ("zip", "stage", "code", "insured", "visits"):
        pd.testing.assert_series_equal(
            back[name].astype(object).where(back[name].notna(), None),
            frame[name].astype(object).where(frame[name].notna(), None),
            check_names=False,
        )
    assert back["code"].dtype == "Int64"
    assert back["insured"].dtype == "boolean"
    assert back["visits"].dtype == "Int64"
    assert back["income"].dtype == "float64"
    assert back["stage"].cat.ordered
    assert list(back["stage"].cat.categories) == ["low", "mid", "high"]
    assert str(back["seen"].dtype).startswith("datetime64")
    assert str(back["at"].dt.tz) == "Europe/Berlin"
    assert (back["seen"].dropna() == back["seen"].dropna().dt.normalize()).all()
    # Binned ones come back within their bin: encoding them again says the same.
    again = encode(MIXED, back)
    for first, second in zip(table.codes, again.codes, strict=True):
        np.testing.assert_array_equal(first, second)
    assert (back["price"] == back["price"].round(2)).all()
    for name in ("zip", "code", "insured", "visits", "income", "seen"):
        assert (back[name].isna() == frame[name].isna()).all(), name


def test_text_as_a_csv_holds_it_reads_the_same():
    frame = mixed_frame()
    text = pd.DataFrame(
        {
            "zip": ["007", "", "99999", "0123"],
            "stage": ["low", "high", "mid", "low"],
            "code": ["9", "NA", "1", "5.0"],
            "insured": ["True", "no", "?", "1"],
            "visits": ["0", "9", "", "3"],
            "income": ["0", "", "1e2", "55.5"],
            "price": ["0", "9.99", "10", "0.01"],
            "seen": ["2020-01-01", "2020-12-31", "", "2020-02-29"],
            "at": ["2019-12-31T23:00:00Z", "2020-01-07T22:59:59Z", "2020-01-03T11:00:00Z", "2020-01-07T23:00:00Z"],
        }
    )
    for first, second in zip(encode(MIXED, frame).codes, encode(MIXED, text).codes, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("kind", [object, "string"])
def test_long_decimals_in_text_are_the_nearest_doubles(kind):
    numbers = np.random.default_rng(0).random(5000) * 1000
    text = pd.DataFrame({"a": pd.Series([*(repr(float(one)) for one in numbers), None], dtype=kind)})
    found = encode(Schema((Numeric("a", 0, 1000, bins=10, missing=True),)), text).numbers[0]
    np.testing.assert_array_equal(found, [*numbers, np.nan])


@given(
    low=st.integers(-50, 50),
    width=st.integers(1, 300),
    bins=st.integers(1, 40),
    integer=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
@example(low=0, width=75, bins=33, integer=True, seed=0)  # an edge of 25 but for rounding
@settings(max_examples=60, deadline=None)
def test_every_code_of_a_number_decodes_into_its_own_bin(low, width, bins, integer, seed):
    column = Numeric("x", low, low + width, bins=bins, integer=integer, missing=True)
    schema = Schema((column,))
    codes = np.arange(schema.sizes[0])
    values = decode(schema, [codes], np.random.default_rng(seed))
    np.testing.assert_array_equal(encode(schema, values).codes[0], codes)
    inside = values["x"].dropna()
    assert inside.between(low, low + width).all()


@pytest.mark.parametrize("decimals", [0, 1, 2])
def test_values_of_few_decimals_decode_into_their_own_bin_too(decimals):
    for high in range(1, 60):
        for bins in {min(some, high * 10**decimals) for some in (3, 7, 30, 33)}:
            column = Numeric("x", 0, high, bins=bins, decimals=decimals)
            cells, half = column.bins_as_cells, 0.5 / 10**decimals
            first, last = (np.round(one, decimals) for one in (cells.lower + half, cells.upper - half))
            held = np.flatnonzero(first <= last)
            encoded = encode(Schema((column,)), pd.DataFrame({"x": np.append(first[held], last[held])})).codes[0]
            np.testing.assert_array_equal(encoded, np.append(held, held))


@given(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=8, unique=True), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_text_is_a_category_and_survives_toml(values, missing, ordered):
    schema = Schema((Categorical("c", tuple(values), missing=missing, ordered=ordered),))
    again = Schema.from_toml(schema.to_toml())
    assert again == schema
    assert again.digest == schema.digest
    codes = np.arange(schema.sizes[0])
    np.testing.assert_array_equal(encode(schema, decode(schema, [codes], np.random.default_rng(0))).codes[0], codes)


def test_toml_round_trip_of_every_kind(tmp_path):
    MIXED.save(tmp_path / "schema.toml")
    again = Schema.load(tmp_path / "schema.toml")
    assert again == MIXED
    assert again.digest == MIXED.digest


def test_the_digest_sees_what_changes_codes_and_not_the_layout():
    text = MIXED.to_toml()
    assert Schema.from_toml("# a remark\n\n" + text).digest == MIXED.digest
    assert Schema.from_toml(text.replace("bins = 7", "bins = 8")).digest != MIXED.digest
    assert Schema(MIXED.stored[::-1]).digest != MIXED.digest


def test_a_draft_stays_a_draft_until_a_person_deletes_the_line():
    draft = dataclasses.replace(MIXED, drafted=True)
    text = draft.to_toml()
    assert Schema.from_toml(text) == draft
    assert draft.digest == MIXED.digest
    assert Schema.from_toml(text.replace("draft = true\n", "")) == MIXED
    assert "draft" not in MIXED.to_toml()


def test_bounds_are_instants():
    def bounds(low: str, high: str, timezone: str | None = None) -> Any:
        return Datetime("t", low, high, bins=1, timezone=timezone).bin_edges

    assert bounds("1970-01-01", "1970-01-02T00:00:01.9").tolist() == [0, 86401]
    assert bounds("1970", "1970-02").tolist() == [0, 31 * 86400]
    assert bounds("1970-01-01T01:00", "1970-01-01T02:00Z", "Europe/Berlin").tolist() == [0, 7200]
    assert bounds("1969-12-31 23:59:59.5", "1970-01-01").tolist() == [-1, 0]


def test_importing_the_schema_imports_no_pandas():
    code = "import sys, fedsynth.schema, fedsynth.rows; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "numpy" in loaded
    assert not loaded & {"pandas", "scipy", "pyarrow", "dateutil", "pytz"}


YEAR = Datetime("d", "2020-01-01", "2021-01-01")


@pytest.mark.parametrize(
    ("column", "values", "named"),
    [
        (Categorical("c", ("a", "b")), ["a", "z"], ["'z'", "not listed: row left out", "unknown = 'other'"]),
        (Categorical("c", ("a",)), ["a", None], ["missing: row left out", "missing = true"]),
        (Categorical("c", ("a",)), ["a", ["a"]], ["['a']", "not listed: row left out"]),
        (Categorical("c", (1, 2)), [1, 10**400], ["not listed: row left out; add it to values"]),
        (Numeric("n", 0, 9, outside="drop"), [3, 12], ["12", "[0.0, 9.0]: row left out", "outside = 'clip'"]),
        (Numeric("n", 0, 9, outside="drop"), [1.0, np.inf], ["inf", "row left out"]),
        (Numeric("n", 0, 9), [3, np.nan], ["is missing: row left out", "missing = true"]),
        (Numeric("n", 0, 9, integer=True), [3, 4.5], ["4.5", "not an integer: row left out"]),
        (Numeric("n", 0, 9, integer=True), [3, 99.5], ["99.5", "not an integer: row left out"]),
        (Numeric("n", 0, 9), ["3", "many"], ["'many'", "not a number: row left out"]),
        (Numeric("n", 0, 9), ["3", "1_0"], ["'1_0'", "not a number: row left out"]),
        (Numeric("n", 0, 9, missing=True), [3, pd.Timestamp("2020-01-01")], ["not a number: row left out"]),
        (Numeric("n", 0, 9), [3, {}], ["{}", "not a number: row left out"]),
        (Boolean("b"), ["yes", "maybe"], ["'maybe'", "row left out"]),
        (YEAR, ["2020-05-05", "yesterday"], ["'yesterday'", "not a time: row left out", "ISO 8601"]),
        (YEAR, ["2020-05-05", "2020-02-30"], ["not a time: row left out"]),
        (YEAR, ["2020-05-05", 7], ["not a time: row left out"]),
        (YEAR, ["2020-05-05", "2020-05-05T00:00:00Z"], ["has a time zone: row left out", "set timezone"]),
        (YEAR, ["2020-05-05", pd.Timestamp("2020-05-05", tz="UTC")], ["has a time zone: row left out"]),
        (Datetime("d", "2020", "2021", outside="drop"), ["2020-05-05", "1066-10-14"], ["1066", "row left out"]),
    ],
)
def test_a_row_that_does_not_fit_is_left_out_and_named_with_column_row_value_and_mend(column, values, named):
    schema, frame = Schema((column,)), pd.DataFrame({column.name: pd.Series(values, dtype=object)})
    table = encode(schema, frame)
    assert (len(table), table.left_out, table.rows_read) == (1, 1, 2)
    assert all(len(numbers) == 1 for numbers in table.numbers.values())
    (said,) = problems(schema, frame)
    for part in (repr(column.name), "row 1", *named):
        assert part in said, said
    assert encode(schema, frame[::-1]).codes[0].tolist() == table.codes[0].tolist()


@pytest.mark.parametrize(
    ("column", "values", "codes", "handled"),
    [
        (Categorical("c", ("a", "b"), unknown="other"), ["b", "z", "a", "other"], [1, 2, 0, 2], "counted as 'other'"),
        (Categorical("c", ("a",), missing=True, unknown="missing"), ["a", "z", None], [0, 1, 1], "counted as missing"),
        (Categorical("c", (3, 5), missing=True, unknown="missing"), [5, 4.5, None], [1, 2, 2], "counted as missing"),
        (Numeric("n", 0, 9, bins=3), [-5, 4, 1e9, np.inf, -np.inf], [0, 1, 2, 2, 0], "clipped"),
        (Numeric("n", 0, 9, bins=3), pd.Series([10**400, -(10**5000)], dtype=object), [2, 0], "clipped"),
        (Numeric("n", 0, 9, integer=True), ["-5", "4", "1e400", "-inf"], [0, 4, 9, 0], "clipped"),
        (YEAR, ["2020-01-01", "0001-01-01", "9999-12-31"], [0, 0, 31], "clipped"),
        (YEAR, np.array(["2020-01-01", "-200000-01-01", "290000-01-01"], "datetime64[s]"), [0, 0, 31], "clipped"),
    ],
)
def test_a_value_that_does_not_fit_is_clipped_or_counted_as_the_column_says(column, values, codes, handled):
    schema, frame = Schema((column,)), pd.DataFrame({column.name: pd.Series(values)})
    table = encode(schema, frame)
    assert table.codes[0].tolist() == codes
    assert table.left_out == 0
    said = problems(schema, frame)
    assert said
    assert all(handled in one for one in said)
    for numbers in table.numbers.values():
        assert schema.stored[0].low is not None  # type: ignore[union-attr]
        assert numbers.min() >= column.bin_edges[0]
        assert numbers.max() <= column.bin_edges[-1]


@pytest.mark.parametrize(
    ("column", "values", "named"),
    [
        (YEAR, [1.0, 2.0], ["is not a time", "ISO 8601"]),
        (YEAR, pd.to_datetime(["2020-05-05"]).tz_localize("UTC"), ["time zone", "set timezone"]),
        (YEAR, pd.to_timedelta([1], "D"), ["is not a time"]),
        (Numeric("n", 0, 9), pd.to_datetime(["2020-05-05"]), ["is not a number"]),
        (Numeric("n", 0, 9), pd.Categorical(pd.to_datetime(["2020-05-05"])), ["is not a number"]),
        (Numeric("n", 0, 9), [1j], ["is not a number"]),
        (Numeric("n", 0, 9), pd.period_range("2020", periods=2, freq="D"), ["is not a number"]),
        (Boolean("b"), pd.to_datetime(["2020-05-05"]), ["neither true nor false"]),
        (Categorical("c", (1, 2)), pd.to_datetime(["2020-05-05"]), ["is not listed"]),
    ],
)
def test_values_of_a_type_that_a_column_cannot_read_are_left_out_one_by_one(column, values, named):
    """The type of a column of missing values follows from any one more value, which must not stop the others."""
    schema = Schema((column,))
    frame = pd.DataFrame({column.name: values})
    table = encode(schema, frame)
    assert (len(table), table.left_out) == (0, len(frame))
    said = problems(schema, frame)
    assert len(said) == 1
    assert len(frame) == 1 or f"({len(frame)} rows" in said[0]
    for part in (repr(column.name), "row left out", *named):
        assert part in said[0]
    assert (len(encode(schema, frame[:0])), problems(schema, frame[:0])) == (0, [])


anything = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.decimals()
    | st.fractions()
    | st.complex_numbers()
    | st.text(max_size=5)
    | st.binary(max_size=3)
    | st.dates()
    | st.datetimes(timezones=st.none() | st.timezones())
    | st.timedeltas()
    | st.lists(st.integers(), max_size=2)
    | st.sampled_from(
        ["007", "low", "1", "1.0", "-0.0", "nan", "inf", "1e999", "2020-03-01", "2020-03-01T00:00Z", "NA"]
    )
    | st.sampled_from([10**400, -(10**5000), uuid.UUID(int=1), np.zeros(2), frozenset(), object])
    | st.sampled_from([pd.NaT, pd.NA, np.datetime64("NaT"), np.float32(-0.0), pd.Timestamp("2020-03-01", tz="UTC")])
)
WIDE = Schema(
    (
        *(msgspec.structs.replace(column, missing=True) for column in MIXED.stored),
        Categorical("text", ("1", "1.0", "True", "0.0", "-0.0"), missing=True),
        Categorical("other", ("1", "True"), unknown="other"),
        Categorical("gone", (1, 2), missing=True, unknown="missing"),
        Numeric("dropped", -5, 5, missing=True, outside="drop"),
    )
)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_what_becomes_of_a_row_depends_on_that_row_alone(data):
    rows = data.draw(st.lists(st.tuples(*[anything] * len(WIDE.stored)), min_size=1, max_size=4))
    frame = pd.DataFrame({name: pd.Series([row[j] for row in rows], dtype=object) for j, name in enumerate(WIDE.names)})
    together = encode(WIDE, frame)
    alone = [encode(WIDE, frame[row : row + 1]) for row in range(len(rows))]
    assert together.digest == concatenate(alone).digest
    assert together.rows_read == len(rows)
    for column, size in zip(together.codes, WIDE.sizes, strict=True):
        assert (column < size).all()
    # One column at a time, since a row of such values is seldom kept whole.
    for column_ in WIDE.stored:
        one = Schema((column_,))
        assert (
            encode(one, frame).digest == concatenate([encode(one, frame[k : k + 1]) for k in range(len(rows))]).digest
        )


def test_a_missing_column_is_named_and_what_there_is():
    with pytest.raises(SchemaError, match=r"column 'b' is missing.*it has|the table has a"):
        encode(Schema((Categorical("a", ("x",)), Categorical("b", ("x",)))), pd.DataFrame({"a": ["x"]}))


def test_problems_lists_every_column_not_only_the_first():
    schema = Schema((Categorical("a", ("x",)), Numeric("b", 0, 1), Numeric("c", 0, 1)))
    found = problems(schema, pd.DataFrame({"a": ["x", "q"], "b": [0.5, 7]}))
    assert len(found) == 3
    assert any("'c' is missing" in one for one in found)
    assert any("'q'" in one for one in found)
    assert any("7" in one and "clipped" in one for one in found)


@pytest.mark.parametrize(
    "column",
    [Categorical("c", ("a", "7"), missing=True), Numeric("c", 0, 9, integer=True, missing=True, outside="drop")],
)
def test_spellings_of_missing_values_are_missing_in_pandas_categories_too(column):
    texts = pd.Series(["7", "NA", "", "7"])
    schema = Schema((column,))
    plain, categories = (encode(schema, pd.DataFrame({"c": values})) for values in (texts, texts.astype("category")))
    assert plain.left_out == categories.left_out == 0
    np.testing.assert_array_equal(plain.codes[0], categories.codes[0])


@pytest.mark.parametrize(
    "cells", [lambda c: Grid.fine(c.bin_edges, 10, 16), lambda c: Grid.coarse(c.bin_edges, 10, 16, 128)]
)
def test_cells_hold_no_value_outside_of_bounds_that_are_not_rounded_themselves(cells):
    grid = cells(Numeric("a", 0.25, 9.87, decimals=1, bins=8))
    ends = np.array([0, len(grid) - 1])
    assert grid.values(ends, np.array([0.0, 1.0])).tolist() == [0.3, 9.8]
    np.testing.assert_allclose(grid.lower[1:], grid.upper[:-1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Schema(()), "no columns"),
        (lambda: Schema((Boolean("a"), Boolean("a"))), "duplicate column 'a'"),
        (lambda: Numeric("a", 0, 1, decimals=0.5), "0 to 12"),  # type: ignore[arg-type]
        (lambda: Categorical("a", "fm"), "list them"),  # type: ignore[arg-type]
        (lambda: Categorical("a", ()), "'a'"),
        (lambda: Categorical("a", ("x", "x")), "twice"),
        (lambda: Categorical("a", (1, 2), unknown="other"), "other"),
        (lambda: Categorical("a", ("x",), unknown="missing"), "missing = true"),
        (lambda: Datetime("a", "2020", "2021", timezone="Nowhere/Else"), "IANA"),
        (lambda: Datetime("a", "2020-01-01T00:00Z", "2021-01-01T00:00Z", timezone="Nowhere/Else"), "IANA"),
        (lambda: Datetime("a", "2020-01-01T00:00Z", "2021"), "with a time zone"),
        (lambda: Numeric("a", 5, 1), "'a'"),
        (lambda: Numeric("a", 0, np.inf), "finite"),
        (lambda: Numeric("a", 0, 10, edges=(0, 5)), "edges"),
        (lambda: Numeric("a", 0, 10, edges=(0, 7, 5, 10)), "increase"),
        (lambda: Numeric("a", 0, 10, edges=(0, np.nan, 10)), "increase"),
        (lambda: Numeric("a", 5, 5, edges=(5, 7, 5)), "increase"),
        (lambda: Numeric("a", 0, 1, bins=0), "bins"),
        (lambda: Numeric("a", 0, 1, bins=32, decimals=1), "no value between"),
        (lambda: Numeric("a", 0, 1, integer=True, decimals=1), "decimals"),
        (lambda: Numeric("a", 0, 10, edges=(0, 0.2, 0.7, 10), integer=True), "no value between"),
        (lambda: Datetime("a", "soon", "2020-01-01"), "'soon'"),
        (lambda: Datetime("a", "2020-01-01", "2021-01-01", unit="year"), "unit"),
    ],
)
def test_a_schema_that_cannot_work_is_refused(make, message):
    with pytest.raises(SchemaError, match=message):
        make()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not = [toml", "not TOML"),
        ("x = 1", "fedsynth_schema"),
        ("fedsynth_schema = 1\nmystery = 2", "mystery"),
        ('fedsynth_schema = 1\n[[column]]\nname = "a"\ntype = "fancy"', "fancy"),
        ('fedsynth_schema = 1\n[[column]]\nname = "a"\ntype = { x = 1 }', "type = {'x': 1}"),
        ('fedsynth_schema = 1\n[[column]]\nname = "a"\ntype = "boolean"\nlow = 3', "low"),
        ('fedsynth_schema = 1\n[[column]]\ntype = "boolean"', "name"),
        ('fedsynth_schema = 1\ndraft = "no"\n[[column]]\nname = "a"\ntype = "boolean"', "draft"),
    ],
)
def test_a_file_that_is_no_schema_is_refused(text, message):
    with pytest.raises(SchemaError, match=message):
        Schema.from_toml(text)


@pytest.mark.parametrize(
    ("column", "known"),
    [
        ('type = "categorical"\nvalues = ["x"]\nunknown = "error"', "drop, other, missing"),
        ('type = "numeric"\nlow = 0\nhigh = 1\noutside = "error"', "clip, drop"),
        ('type = "datetime"\nlow = "2020"\nhigh = "2021"\noutside = "error"', "clip, drop"),
    ],
)
def test_no_value_is_an_error_any_more(column, known):
    with pytest.raises(SchemaError, match=f"'a': .*: 'error' is unknown; choose one of {known}"):
        Schema.from_toml(f'fedsynth_schema = 1\n[[column]]\nname = "a"\n{column}')


def test_a_column_of_one_value_and_a_table_of_no_rows():
    schema = Schema((Numeric("n", 4, 4), Categorical("c", ("only",))))
    table = encode(schema, pd.DataFrame({"n": [4.0, 4.0], "c": ["only", "only"]}))
    assert contingency(table, (0, 1)).tolist() == [[2]]
    assert decode(schema, table, np.random.default_rng(0))["n"].tolist() == [4.0, 4.0]
    empty = encode(schema, pd.DataFrame({"n": [], "c": []}))
    assert len(empty) == 0
    assert contingency(empty, (0,)).tolist() == [0]


@given(st.integers(0, 400), st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_counts_are_pandas_counts(rows, seed):
    rng = np.random.default_rng(seed)
    schema = Schema((Categorical("a", ("p", "q")), Categorical("b", (1, 2, 3)), Categorical("c", ("x",))))
    frame = pd.DataFrame(
        {"a": rng.choice(["p", "q"], rows), "b": rng.choice([1, 2, 3], rows), "c": np.repeat("x", rows)}
    )
    table = encode(schema, frame)
    counts = contingency(table, (0, 1, 2))
    assert counts.sum() == rows
    for i, a in enumerate(["p", "q"]):
        for j, b in enumerate([1, 2, 3]):
            assert counts[i, j, 0] == ((frame.a == a) & (frame.b == b)).sum()
    halves = concatenate([table.take(np.arange(rows) % 2 == 0), table.take(np.arange(rows) % 2 == 1)])
    np.testing.assert_array_equal(contingency(halves, (0, 1, 2)), counts)


def test_rows_of_values_are_those_that_encoding_the_values_gives():
    schema = Schema(
        (
            Numeric("x", -1.0, 1.0, edges=(-1.0, 0.0, 0.3, 1.0), decimals=1, missing=True),
            Numeric("n", 0, 3, integer=True),
            Datetime("day", "1970-01-01", "1970-01-09", bins=4, unit="D", missing=True),
            Categorical("c", ("a", "b")),
        )
    )
    x, n, day = [-0.0, 0.3, 1.0, -7.0, np.nan], [0.0, 1.0, 3.0, -1.0, 4.0], [8.0, 2.0, np.nan, 1.0, 400.0]
    table = Table.of(schema, [np.array(x), np.array(n), np.array(day), np.array([0, 1, 1, 0, 1])])
    times = pd.to_datetime(pd.Series(day), unit="D")
    encoded = encode(schema, pd.DataFrame({"x": x, "n": n, "day": times, "c": list("abbab")}))
    assert table.digest == encoded.digest
    assert [column.tolist() for column in table.codes[:3]] == [[1, 2, 2, 0, 3], [0, 1, 3, 0, 3], [3, 1, 4, 0, 3]]
    assert not np.signbit(table.numbers[0][0])  # -0.0 and 0.0 are one value


def test_a_table_never_shows_a_row_and_its_digest_binds_rows():
    table = encode(MIXED, mixed_frame())
    assert "007" not in repr(table)
    assert repr(table) == "<Table of 9 columns>"
    assert table.digest == encode(MIXED, mixed_frame()).digest
    assert table.take(np.array([1, 0, 2, 3])).digest != table.digest
    assert isinstance(table, Table)
    lost = mixed_frame()
    lost.loc[0, "stage"] = None
    left = encode(MIXED, lost)
    assert (len(left), left.left_out) == (3, 1)
    assert left.digest != table.take(np.array([1, 2, 3])).digest  # a row that was read, and one that was not
    assert concatenate([left, left]).rows_read == 8
