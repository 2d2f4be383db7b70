"""Tables of other libraries, and what is no table, at every entrance."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import fedsynth as fs
from fedsynth.errors import SchemaError

polars = pytest.importorskip("polars")
duckdb = pytest.importorskip("duckdb")

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "age": RNG.integers(20, 80, 400),
        "ward": RNG.choice(["north", "south", "east"], 400),
        "cost": pd.Series(RNG.normal(100, 9, 400).round(1)).mask(RNG.random(400) < 0.1),
        "seen": pd.Timestamp("2024-01-01") + pd.to_timedelta(RNG.integers(0, 300, 400), unit="D"),
    }
)
SCHEMA = fs.Schema(
    (
        fs.Numeric("age", 0, 100, integer=True),
        fs.Categorical("ward", ("north", "south", "east")),
        fs.Numeric("cost", 0, 200, decimals=1, missing=True),
        fs.Datetime("seen", "2024-01-01", "2024-12-31", unit="D"),
    )
)


def _of(kind: str):
    if kind == "polars":
        return polars.from_pandas(FRAME)
    if kind == "duckdb":
        seen = FRAME
        return duckdb.sql("select * from seen") if len(seen) else None
    return pa.Table.from_pandas(FRAME) if kind == "arrow" else FRAME


@pytest.mark.parametrize("kind", ["polars", "duckdb", "arrow"])
def test_a_table_of_another_library_is_the_same_table(kind):
    rows = _of(kind)
    assert fs.Schema.draft(rows).digest == fs.Schema.draft(FRAME).digest
    train, held = fs.split(rows, 0.2, seed=1)
    assert (len(train), len(train) + len(held)) == (len(fs.split(FRAME, 0.2, seed=1)[0]), 400)
    made = [fs.fit(one, SCHEMA, method="oneshot", epsilon=math.inf, delta=0, seed=1) for one in (rows, FRAME)]
    frames = [one.sample(50, 0) for one in made]
    pd.testing.assert_frame_equal(frames[0], frames[1])
    scores = [fs.evaluate(frames[0], train=one, schema=SCHEMA).frame for one in (rows, FRAME)]
    pd.testing.assert_frame_equal(scores[0], scores[1])


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ({"a": [1, 2]}, r"type builtins.dict; pass a data frame .* or the path"),
        (pd.Series([1, 2]), r"type pandas.Series"),
        ([[1, 2]], "type builtins.list"),
        (None, "type builtins.NoneType"),
        (polars.LazyFrame({"a": [1]}), r"is a polars.LazyFrame, whose rows are not there yet; .* collect\(\)"),
        (polars.Series([1, 2]), "is a polars.Series, which is no table"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_table_is_named_with_the_remedy_at_every_entrance(rows: Any, says: str):
    entrances: list[Callable[[Any], object]] = [
        fs.Schema.draft,
        fs.split,
        lambda given: fs.evaluate(given, train=FRAME, schema=SCHEMA),
        lambda given: fs.fit({"a": given}, SCHEMA, epsilon=1, delta=1e-6),
    ]
    for enter in entrances:
        with pytest.raises(SchemaError, match=says):
            enter(rows)


def test_paths_are_read_as_text(tmp_path):
    FRAME.to_csv(tmp_path / "rows.csv", index=False)
    assert fs.Schema.draft(tmp_path / "rows.csv").names == ("age", "ward", "cost", "seen")
    train, _ = fs.split(str(tmp_path / "rows.csv"))
    assert {type(cell) for cell in train["age"]} == {str}
