"""Conditions in one line of text: which rows meet them, as pandas says, and which texts are refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from fedsynth.answers.condition import read_condition
from fedsynth.encoding import encode
from fedsynth.errors import InvalidParameter, SchemaError
from fedsynth.rows import Table
from fedsynth.schema import Boolean, Categorical, Datetime, Numeric, Schema

WARDS = ("a & b", "c|d", "e..f", "plain")
SCHEMA = Schema(
    (
        Categorical("ward", WARDS, missing=True),
        Categorical("ward two", ("missing", "x"), missing=True),
        Categorical("grade", (1, 2, 3, 30)),
        Boolean("smoker", missing=True),
        Numeric("age", 0, 110, integer=True, missing=True),
        Numeric("bill", 0, 1000, decimals=2),
        Numeric("height", 0.5, 2.5, missing=True),
        Datetime("seen", "2024-01-01", "2024-12-31", unit="D", missing=True),
        Datetime("hour", "2024-01-01", "2024-12-31"),
    )
)


def rows(count: int = 3000) -> pd.DataFrame:
    """Return rows of every kind of column, with missing values, and values at and beside the bounds in the tests."""
    rng = np.random.default_rng(0)
    missing = rng.random((count, 5)) < 0.1
    age = pd.Series(
        np.where(rng.random(count) < 0.2, rng.choice([0, 69, 70, 71, 110], count), rng.integers(0, 111, count))
    )
    bill = np.where(rng.random(count) < 0.3, rng.choice([0, 9.99, 10, 10.01, 1000], count), rng.uniform(0, 1000, count))
    height = np.where(rng.random(count) < 0.3, rng.choice([0.5, 1.5, 2.5], count), rng.uniform(0.5, 2.5, count))
    day = pd.Series(pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 366, count), "D"))
    second = pd.Series(pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 365 * 86_400, count), "s"))
    return pd.DataFrame(
        {
            "ward": pd.Series(rng.choice(WARDS, count)).mask(missing[:, 0]),
            "ward two": pd.Series(rng.choice(["missing", "x"], count)).mask(missing[:, 1]),
            "grade": rng.choice([1, 2, 3, 30], count),
            "smoker": pd.Series(rng.random(count) < 0.3).astype("boolean").mask(missing[:, 2]),
            "age": age.astype("Int64").mask(missing[:, 3]),
            "bill": bill.round(2),
            "height": pd.Series(height).mask(missing[:, 4]),
            "seen": day.mask(missing[:, 0]),
            "hour": second,
        }
    )


FRAME = rows()
TABLE = encode(SCHEMA, FRAME)


def met(text: str, table: Table = TABLE) -> np.ndarray:
    """Return which rows of a table meet a condition."""
    inside = np.ones(len(table), dtype=bool)
    for axis in read_condition(table.schema, text).axes:
        inside &= axis.places(table.codes[axis.column], table.numbers.get(axis.column)) == 1
    return inside


CONDITIONS: list[tuple[str, Callable[[pd.DataFrame], pd.Series]]] = [
    ("", lambda of: of.bill >= 0),
    ("  ", lambda of: of.bill >= 0),
    ("ward=plain", lambda of: of.ward == "plain"),
    (" ward =  plain ", lambda of: of.ward == "plain"),
    ('ward="a & b"', lambda of: of.ward == "a & b"),
    ('ward="a & b"|"c|d" & age>70', lambda of: of.ward.isin(["a & b", "c|d"]) & (of.age > 70)),
    ("ward=e..f", lambda of: of.ward == "e..f"),
    ("ward=e..f|plain", lambda of: of.ward.isin(["e..f", "plain"])),
    ('ward="c|d" | plain', lambda of: of.ward.isin(["c|d", "plain"])),
    ('ward=plain|"a & b" & age>70', lambda of: of.ward.isin(["a & b", "plain"]) & (of.age > 70)),
    ('age>"70"', lambda of: of.age > 70),
    ("ward!=plain", lambda of: of.ward.notna() & (of.ward != "plain")),
    ("ward!=plain|e..f", lambda of: of.ward.isin(["a & b", "c|d"])),
    ("ward!=plain & ward!=e..f", lambda of: of.ward.isin(["a & b", "c|d"])),
    ("ward=missing", lambda of: of.ward.isna()),
    ("ward!=missing", lambda of: of.ward.notna()),
    ("ward=plain|missing", lambda of: of.ward.isna() | (of.ward == "plain")),
    ("ward=plain|missing & ward!=e..f", lambda of: of.ward == "plain"),
    ("ward two=missing", lambda of: of["ward two"] == "missing"),
    ("ward two!=x & ward=plain", lambda of: (of["ward two"] == "missing") & (of.ward == "plain")),
    ("grade=2..3", lambda of: of.grade.between(2, 3)),
    ("grade=..3", lambda of: of.grade <= 3),
    ("grade>=3", lambda of: of.grade >= 3),
    ("grade<=2", lambda of: of.grade <= 2),
    ("grade=1|30", lambda of: of.grade.isin([1, 30])),
    ("grade!=30", lambda of: of.grade != 30),
    ("smoker=true", lambda of: of.smoker),
    ("smoker!=true", lambda of: ~of.smoker),
    ("smoker=missing", lambda of: of.smoker.isna()),
    ("age>70", lambda of: of.age > 70),
    ("age>=70", lambda of: of.age >= 70),
    ("age<70", lambda of: of.age < 70),
    ("age<=70", lambda of: of.age <= 70),
    ("age=70", lambda of: of.age == 70),
    ("age=40..69", lambda of: of.age.between(40, 69)),
    ("age=..69", lambda of: of.age <= 69),
    ("age=69..", lambda of: of.age >= 69),
    ("age>40 & age<=71 & age<71", lambda of: (of.age > 40) & (of.age < 71)),
    ("age=missing", lambda of: of.age.isna()),
    ("age>=0", lambda of: of.age.notna()),
    ("age<110", lambda of: of.age < 110),
    ("age>0", lambda of: of.age > 0),
    ("bill<10", lambda of: of.bill < 10),
    ("bill<=10", lambda of: of.bill <= 10),
    ("bill>10", lambda of: of.bill > 10),
    ("bill>10.005", lambda of: of.bill > 10.005),
    ("bill=9.99..10.01", lambda of: of.bill.between(9.99, 10.01)),
    ("bill=1000", lambda of: of.bill == 1000),
    ("height<1.5", lambda of: of.height < 1.5),
    ("height<=1.5", lambda of: of.height <= 1.5),
    ("height>1.5", lambda of: of.height > 1.5),
    ("height=1.5", lambda of: of.height == 1.5),
    ("height=0.5..1.5", lambda of: of.height.between(0.5, 1.5)),
    ("height>0.5 & height<2.5", lambda of: (of.height > 0.5) & (of.height < 2.5)),
    ("seen<2024-03-05", lambda of: of.seen < "2024-03-05"),
    ("seen>2024-03-05", lambda of: of.seen > "2024-03-05"),
    ("seen=2024-03-05..2024-08-20", lambda of: of.seen.between("2024-03-05", "2024-08-20")),
    ("seen=missing", lambda of: of.seen.isna()),
    ("hour>=2024-06-01 12:00:00", lambda of: of.hour >= "2024-06-01 12:00:00"),
    ("hour<2024-06-01 12:00:00", lambda of: of.hour < "2024-06-01 12:00:00"),
    ("smoker=false & grade=1 & seen>=2024-06-01", lambda of: ~of.smoker & (of.grade == 1) & (of.seen >= "2024-06-01")),
]


@pytest.mark.parametrize(("text", "mask"), CONDITIONS)
def test_rows_meet_a_condition_as_pandas_says(text, mask):
    expected = mask(FRAME).fillna(False).to_numpy(dtype=bool)
    if text.strip():
        assert 0 < expected.sum() < len(FRAME)
    np.testing.assert_array_equal(met(text), expected)


def test_a_column_whose_name_begins_another_is_not_taken_for_it():
    assert read_condition(SCHEMA, "ward two=x").columns == (1,)
    assert read_condition(SCHEMA, "ward=plain & ward two=x & age>5").columns == (0, 1, 4)
    names = (Categorical("a", ("1", "2")), Categorical("a=b", ("1", "2")))
    assert read_condition(Schema(names), "a=b=1").columns == (1,)
    assert read_condition(Schema(names), "a=1").columns == (0,)


def test_a_condition_on_a_boolean_that_no_row_lacks_has_two_groups():
    schema = Schema((Boolean("ill"), Numeric("age", 0, 9, integer=True)))
    frame = pd.DataFrame({"ill": [True, False, True], "age": [1, 2, 3]})
    np.testing.assert_array_equal(met("ill=true & age>1", encode(schema, frame)), [False, False, True])


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("wards=plain", InvalidParameter, "no column and comparison at 'wards=plain'"),
        ("age", InvalidParameter, "no column and comparison"),
        ("age ~ 7", InvalidParameter, "no column and comparison"),
        ("age>70 sex", SchemaError, "age"),
        ("age>70 &", InvalidParameter, "ends in '&'"),
        ("age>70 & ", InvalidParameter, "ends in '&'"),
        ("& age>70", InvalidParameter, "no column and comparison"),
        ("age>70 && age<80", InvalidParameter, "no column and comparison"),
        ("age>", InvalidParameter, "names no value for 'age'"),
        ("ward=", InvalidParameter, "names no value for 'ward'"),
        ("ward=plain|", InvalidParameter, "names no value for 'ward'"),
        ('ward="plain"|moon', SchemaError, "cannot be met: 'moon'"),
        ('ward="plain"moon', SchemaError, "cannot be met"),
        ("grade>=1|2", InvalidParameter, "'grade' >= takes one value"),
        ("age>60|70", InvalidParameter, r"give an interval low\.\.high"),
        ("age<200", SchemaError, r"lies outside \[0, 110\]"),
        ("age>-5", SchemaError, r"lies outside \[0, 110\]"),
        ("age<30.5", SchemaError, "is not an integer"),
        ("ward=moon", SchemaError, "cannot be met: 'moon'"),
        ("ward=plain|moon", SchemaError, "cannot be met: 'moon'"),
        ("ward=a..b", SchemaError, "is no interval of values"),
        ("ward<plain", InvalidParameter, "'ward' lists its values"),
        ("age=60|70", InvalidParameter, r"give an interval low\.\.high"),
        ("age!=70", InvalidParameter, "write < or > in place of !="),
        ("age=120", SchemaError, "lies outside"),
        ("age>110", SchemaError, "no value of 'age' is > 110"),
        ("age>200", SchemaError, "no value of 'age' is > 200"),
        ("age<0", SchemaError, "no value of 'age' is < 0"),
        ("age=80..70", SchemaError, "put the lower end first"),
        ("age>70 & age<60", SchemaError, "no value of 'age' meets"),
        ("age=missing & age>3", SchemaError, "no value of 'age' meets"),
        ("ward=plain & ward=e..f", SchemaError, "met by no values"),
        ("ward!=plain & ward=missing", SchemaError, "met by no values"),
        ("ward=missing & ward!=plain", SchemaError, "met by no values"),
        ("grade=1..30", SchemaError, "met by all values"),
        ("bill>=0", SchemaError, "met by all values"),
        ("bill=missing", SchemaError, "bill"),
        ("age=old", SchemaError, "age"),
    ],
)
def test_a_text_that_is_no_condition_is_refused_with_what_to_do(text, error, says):
    with pytest.raises(error, match=says):
        read_condition(SCHEMA, text)


def test_a_column_that_is_stored_as_a_difference_has_no_conditions():
    schema = Schema.from_toml(
        """
        fedsynth_schema = 1
        [[column]]
        name = "low"
        type = "numeric"
        low = 0
        high = 10
        integer = true
        [[column]]
        name = "high"
        type = "numeric"
        low = 0
        high = 30
        integer = true
        stored = { difference = ["high", "low"], lower = 0, upper = 20 }
        """
    )
    with pytest.raises(SchemaError, match="conditions on 'high' are not supported"):
        read_condition(schema, "high>3")
