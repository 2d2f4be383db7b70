"""Schemas, columns and tables: what goes in comes back, and what does not fit is named."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedsynth.bins import grid
from fedsynth.errors import SchemaError
from fedsynth.schema import Boolean, Categorical, Datetime, Numeric, Schema
from fedsynth.table import Table, concatenate

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
    table = MIXED.encode(frame)
    back = MIXED.decode(table, np.random.default_rng(0))
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
    again = MIXED.encode(back)
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
    for first, second in zip(MIXED.encode(frame).codes, MIXED.encode(text).codes, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("kind", [object, "string"])
def test_long_decimals_in_text_are_the_nearest_doubles(kind):
    numbers = np.random.default_rng(0).random(5000) * 1000
    text = pd.DataFrame({"a": pd.Series([*(repr(float(one)) for one in numbers), None], dtype=kind)})
    found = Schema((Numeric("a", 0, 1000, bins=10, missing=True),)).encode(text).numbers[0]
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
    values = schema.decode([codes], np.random.default_rng(seed))
    np.testing.assert_array_equal(schema.encode(values).codes[0], codes)
    inside = values["x"].dropna()
    assert inside.between(low, low + width).all()


@pytest.mark.parametrize("decimals", [0, 1, 2])
def test_values_of_few_decimals_decode_into_their_own_bin_too(decimals):
    for high in range(1, 60):
        for bins in {min(some, high * 10**decimals) for some in (3, 7, 30, 33)}:
            column = Numeric("x", 0, high, bins=bins, decimals=decimals)
            first, last = (one / 10**decimals for one in grid(column.bin_edges, 10**decimals))
            held = np.flatnonzero(first <= last)
            encoded = Schema((column,)).encode(pd.DataFrame({"x": np.append(first[held], last[held])})).codes[0]
            np.testing.assert_array_equal(encoded, np.append(held, held))


@given(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=8, unique=True), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_text_is_a_category_and_survives_toml(values, missing, ordered):
    schema = Schema((Categorical("c", tuple(values), missing=missing, ordered=ordered),))
    again = Schema.from_toml(schema.to_toml())
    assert again == schema
    assert again.digest == schema.digest
    codes = np.arange(schema.sizes[0])
    np.testing.assert_array_equal(schema.encode(schema.decode([codes], np.random.default_rng(0))).codes[0], codes)


def test_toml_round_trip_of_every_kind(tmp_path):
    MIXED.save(tmp_path / "schema.toml")
    again = Schema.load(tmp_path / "schema.toml")
    assert again == MIXED
    assert again.digest == MIXED.digest


def test_the_digest_sees_what_changes_codes_and_not_the_layout():
    text = MIXED.to_toml()
    assert Schema.from_toml("# a remark\n\n" + text).digest == MIXED.digest
    assert Schema.from_toml(text.replace("bins = 7", "bins = 8")).digest != MIXED.digest
    assert Schema(MIXED.columns[::-1]).digest != MIXED.digest


@pytest.mark.parametrize(
    ("column", "values", "named"),
    [
        (Categorical("c", ("a", "b")), ["a", "z"], ["'c'", "row 1", "'z'", "unknown = 'other'"]),
        (Categorical("c", ("a",)), ["a", None], ["'c'", "row 1", "missing", "missing = true"]),
        (Numeric("n", 0, 9), [3, 12], ["'n'", "row 1", "12", "[0.0, 9.0]", "outside = 'clip'"]),
        (Numeric("n", 0, 9), [3, np.nan], ["'n'", "row 1", "is missing", "missing = true"]),
        (Numeric("n", 0, 9, integer=True), [3, 4.5], ["'n'", "row 1", "4.5", "not an integer"]),
        (Numeric("n", 0, 9), ["3", "many"], ["'n'", "row 1", "'many'", "not a number"]),
        (Numeric("n", 0, 9), [1.0, np.inf], ["'n'", "row 1", "inf"]),
        (Boolean("b"), ["yes", "maybe"], ["'b'", "row 1", "'maybe'"]),
        (Datetime("d", "2020-01-01", "2021-01-01"), ["2020-05-05", "yesterday"], ["'d'", "row 1", "'yesterday'"]),
        (Datetime("d", "2020-01-01", "2021-01-01"), ["2020-05-05", "1999-01-01"], ["'d'", "row 1", "1999"]),
        (Datetime("d", "2020-01-01", "2021-01-01"), [1.0, 2.0], ["'d'", "row 0", "ISO 8601"]),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_column_row_value_and_mend(column, values, named):
    with pytest.raises(SchemaError) as caught:
        Schema((column,)).encode(pd.DataFrame({column.name: values}))
    for part in named:
        assert part in str(caught.value), str(caught.value)


def test_policies_clip_and_other():
    schema = Schema((Categorical("c", ("a", "b"), unknown="other"), Numeric("n", 0, 9, bins=3, outside="clip")))
    table = schema.encode(pd.DataFrame({"c": ["b", "z", "a"], "n": [-5, 4, 1e9]}))
    np.testing.assert_array_equal(table.codes[0], [1, 2, 0])
    np.testing.assert_array_equal(table.codes[1], [0, 1, 2])
    assert schema.decode(table, np.random.default_rng(0))["c"].tolist() == ["b", "other", "a"]


def test_a_missing_column_is_named_and_what_there_is():
    with pytest.raises(SchemaError, match=r"column 'b' is missing.*it has|the table has a"):
        Schema((Categorical("a", ("x",)), Categorical("b", ("x",)))).encode(pd.DataFrame({"a": ["x"]}))


def test_problems_lists_every_column_not_only_the_first():
    schema = Schema((Categorical("a", ("x",)), Numeric("b", 0, 1), Numeric("c", 0, 1)))
    found = schema.problems(pd.DataFrame({"a": ["x", "q"], "b": [0.5, 7]}))
    assert len(found) == 3
    assert any("'c' is missing" in one for one in found)
    assert any("'q'" in one for one in found)
    assert any("7" in one for one in found)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Schema(()), "no columns"),
        (lambda: Schema((Boolean("a"), Boolean("a"))), "twice"),
        (lambda: Categorical("a", ()), "'a'"),
        (lambda: Categorical("a", ("x", "x")), "twice"),
        (lambda: Categorical("a", (1, 2), unknown="other"), "other"),
        (lambda: Numeric("a", 5, 1), "'a'"),
        (lambda: Numeric("a", 0, np.inf), "finite"),
        (lambda: Numeric("a", 0, 10, edges=(0, 5)), "edges"),
        (lambda: Numeric("a", 0, 10, edges=(0, 7, 5, 10)), "increase"),
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
        ('fedsynth_schema = 1\n[[column]]\nname = "a"\ntype = "boolean"\nlow = 3', "low"),
        ('fedsynth_schema = 1\n[[column]]\ntype = "boolean"', "name"),
    ],
)
def test_a_file_that_is_no_schema_is_refused(text, message):
    with pytest.raises(SchemaError, match=message):
        Schema.from_toml(text)


def test_a_column_of_one_value_and_a_table_of_no_rows():
    schema = Schema((Numeric("n", 4, 4), Categorical("c", ("only",))))
    table = schema.encode(pd.DataFrame({"n": [4.0, 4.0], "c": ["only", "only"]}))
    assert table.counts((0, 1)).tolist() == [[2]]
    assert schema.decode(table, np.random.default_rng(0))["n"].tolist() == [4.0, 4.0]
    empty = schema.encode(pd.DataFrame({"n": [], "c": []}))
    assert len(empty) == 0
    assert empty.counts((0,)).tolist() == [0]


@given(st.integers(0, 400), st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_counts_are_pandas_counts(rows, seed):
    rng = np.random.default_rng(seed)
    schema = Schema((Categorical("a", ("p", "q")), Categorical("b", (1, 2, 3)), Categorical("c", ("x",))))
    frame = pd.DataFrame(
        {"a": rng.choice(["p", "q"], rows), "b": rng.choice([1, 2, 3], rows), "c": np.repeat("x", rows)}
    )
    table = schema.encode(frame)
    counts = table.counts((0, 1, 2))
    assert counts.sum() == rows
    for i, a in enumerate(["p", "q"]):
        for j, b in enumerate([1, 2, 3]):
            assert counts[i, j, 0] == ((frame.a == a) & (frame.b == b)).sum()
    halves = concatenate([table.take(np.arange(rows) % 2 == 0), table.take(np.arange(rows) % 2 == 1)])
    np.testing.assert_array_equal(halves.counts((0, 1, 2)), counts)


def test_a_table_never_shows_a_row_and_its_digest_binds_rows():
    table = MIXED.encode(mixed_frame())
    assert "007" not in repr(table)
    assert repr(table) == "<Table of 9 columns>"
    assert table.digest == MIXED.encode(mixed_frame()).digest
    assert table.take(np.array([1, 0, 2, 3])).digest != table.digest
    assert isinstance(table, Table)
