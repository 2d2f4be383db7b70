"""A file gives the same types, draft, codes and synthetic file under every version of pandas that is admitted."""

from __future__ import annotations

import hashlib

import numpy as np
import pandas as pd

from fedsynth.data.draft import draft_schema, guess_types
from fedsynth.data.read import read_frame, read_table, write_frame
from fedsynth.encoding import decode, encode
from fedsynth.persons import keep_rows
from fedsynth.schema import Categorical, Schema
from fedsynth.schema.columns import distinct_values

ROWS = 400
COLUMNS = {  # values on whose reading versions of pandas have differed, or may
    "text": ("a", "a\0x", "a\0y", " a", "é", "007", "NA", ""),
    "flag": ("true", "False", "TRUE", ""),
    "whole": ("1", "-2", "+3", "40", ""),
    "large": ("9007199254740993", "123456789012345678", "1"),
    "number": ("0.1", "1e23", "-0.0", "3", ".5", "5.", "8.4e-45", ""),
    "infinite": ("1e999", "-inf", "2", "3.5", "1e300"),
    "foreign_digits": ("1٣", "2", "4"),
    "ties": ("0", "100", "250.5", "3.25", "7.125", "9"),
    "day": ("2020-02-29", "1999-12-31", ""),
    "time": ("2020-01-01T12:30", "1969-12-31T23:59:59.9999999", "2020-01-01 12:30:15.123456789", ""),
    "far": ("0001-01-01", "9999-12-31", "1500-06-01T01:02:03.5"),
    "farther": ("2020-01-01T00:00Z", "9999-12-31T23:59-12:00"),
    "zone": ("2020-07-01T12:30:00+02:00", "1800-01-01T00:00+0100", "2020-01-01T12:30Z", ""),
    "no_time": ("2020-02-30", "2020-01-01"),
}


def _sha(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _file(tmp_path):
    rng = np.random.default_rng(0)
    columns = [[values[at] for at in rng.integers(0, len(values), ROWS)] for values in COLUMNS.values()]
    many = [f"v{at // 3}" for at in range(ROWS)]  # equally common: which are listed must not depend on their order
    lines = [(*COLUMNS, "many"), *zip(*columns, many, strict=True)]
    path = tmp_path / "rows.csv"
    path.write_text("".join(",".join(line) + "\n" for line in lines), encoding="utf-8")
    return path


def _type(values):
    return "text" if values.dtype == object or isinstance(values.dtype, pd.StringDtype) else str(values.dtype)


def test_a_file_is_read_drafted_encoded_and_written_alike(tmp_path):
    path = _file(tmp_path)
    frame = guess_types(read_frame(path))
    assert {name: _type(frame[name]) for name in frame} == {
        "text": "text",
        "flag": "boolean",
        "whole": "Int64",
        "large": "int64",
        "number": "float64",
        "infinite": "float64",
        "foreign_digits": "text",
        "ties": "float64",
        "day": "datetime64[us]",
        "time": "datetime64[us]",
        "far": "datetime64[us]",
        "farther": "text",
        "zone": "datetime64[us, UTC]",
        "no_time": "text",
        "many": "text",
    }
    draft = draft_schema(read_frame(path), max_categories=30)
    table = read_table(path, draft.schema)
    parts = [np.ascontiguousarray(one).tobytes() for one in (*table.codes, *table.numbers.values())]
    write_frame(decode(draft.schema, table, np.random.default_rng(0)), tmp_path / "synthetic.csv")
    assert len(table) == ROWS
    assert _sha(draft.to_toml().encode()) == "60aac834ff7f6c82"
    assert _sha(*parts) == "47297088f5902edc"
    assert _sha((tmp_path / "synthetic.csv").read_bytes()) == "d3fce5966092f521"


def test_text_is_told_apart_behind_a_nul_whatever_its_type():
    """pandas before 3 takes such texts for equal in most types of text, when it makes codes of them."""
    texts = ["a\0x", "a\0y", "a", None, "NA"] * 2
    schema = Schema((Categorical("a", ("a", "a\0x", "a\0y"), missing=True),))
    for dtype in (object, "string[python]", "string[pyarrow]", None):
        values = pd.Series(texts, name="a", dtype=dtype)
        assert encode(schema, values.to_frame()).codes[0].tolist() == [1, 2, 0, 3, 3] * 2
        kept = keep_rows(values, 1, bytes(32)).tolist()
        assert [sum(kept[at::5]) for at in range(5)] == [1, 1, 1, 0, 1]


def test_many_texts_are_told_apart_as_few_are():
    """Arrow tells them apart where there are many, but for half a surrogate pair, which it cannot hold."""
    texts = ["a\0x", "a\0y", "a", None, "NA", "\u00e9"]
    few = distinct_values(pd.Series(texts, dtype=object))
    assert few[0].tolist() == [0, 1, 2, -1, 3, 4]
    for dtype in (object, "string[python]", "string[pyarrow]", None):
        column = pd.Series(texts * 1000, dtype=dtype)
        for many in (pd.concat([column, column], ignore_index=True), pd.concat([column] * 3)):
            which, found = distinct_values(many)
            assert found == few[1]
            assert which.tolist() == few[0].tolist() * (len(many) // 6)
    which, found = distinct_values(pd.Series([*texts * 2000, "\ud800"], dtype=object))
    assert found == [*few[1], "\ud800"]
    assert which[-1] == 5


def test_the_type_of_a_text_column_does_not_depend_on_its_rows():
    """All rows missing, or one value alone: the type is that of a column with every value."""
    schema = Schema((Categorical("a", ("x", "y"), missing=True),))
    default = pd.Series(["x"]).dtype
    for codes in ([0, 1, 2], [2, 2], [0], []):
        decoded = decode(schema, [np.array(codes, dtype=np.int64)], np.random.default_rng(0))["a"]
        assert decoded.dtype == default
        assert decoded.isna().tolist() == [code == 2 for code in codes]
        assert decoded.index.tolist() == list(range(len(codes)))
