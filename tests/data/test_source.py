"""Files in and out: types, zeros, quotes, delimiters, chunks, and what is no table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedsynth.data.source import check_table, column_names, read_frame, read_table, write_frame
from fedsynth.errors import SchemaError, Unsupported
from fedsynth.schema import Boolean, Categorical, Datetime, Numeric, Schema

SCHEMA = Schema(
    (
        Categorical("zip", ("007", "0123", 'say, "hi"\nthere'), missing=True),
        Numeric("age", 0, 120, integer=True, missing=True),
        Boolean("member", missing=True),
        Datetime("seen", "2020-01-01", "2021-01-01", unit="D", missing=True),
    )
)


def frame(rows: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    codes = [rng.integers(0, size, rows) for size in SCHEMA.sizes]
    return SCHEMA.decode(codes, rng)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_written_frame_reads_back_to_the_same_codes_and_dtypes(tmp_path, suffix):
    written = frame()
    write_frame(written, tmp_path / f"t{suffix}")
    whole = SCHEMA.encode(written)
    for chunk_rows in (7, 50, 10_000):
        read = read_table(tmp_path / f"t{suffix}", SCHEMA, chunk_rows=chunk_rows)
        for first, second in zip(whole.codes, read.codes, strict=True):
            np.testing.assert_array_equal(first, second)
        np.testing.assert_array_equal(whole.numbers[1], read.numbers[1])
    again = read_frame(tmp_path / f"t{suffix}")
    assert again["age"].dtype == "Int64"
    assert again["member"].dtype == "boolean"
    assert again["zip"].dropna().isin(["007", "0123", 'say, "hi"\nthere']).all()
    assert str(again["seen"].dtype).startswith("datetime64")
    assert [path.name for path in tmp_path.iterdir()] == [f"t{suffix}"]  # nothing half-written stays


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_usual_delimiters(tmp_path, mark):
    path = tmp_path / "t.csv"
    path.write_text(mark.join(["zip", "age"]) + "\n" + mark.join(["007", "41"]) + "\n")
    assert column_names(path) == ["zip", "age"]
    assert read_frame(path)["zip"].tolist() == ["007"]
    assert read_frame(path)["age"].tolist() == [41]


def test_types_of_text_are_read_as_a_person_would():
    from fedsynth.data.source import parse_text

    def kind(*texts: str) -> str:
        return str(parse_text(pd.Series(texts, dtype=object)).dtype)

    assert kind("1", "2") == "int64"
    assert kind("1.5", "2", ".5", "1e3") == "float64"
    assert kind("true", "False") == "bool"
    assert kind("2020-01-31", "2020-02-01T10:00:00").startswith("datetime64")
    for texts in (("007", "1"), ("1", "a"), ("123456789012345678901",), ("2020-13-45",), ("yes", "no")):
        assert kind(*texts) in ("object", "str"), texts


def test_a_row_that_does_not_fit_is_left_out_and_named_wherever_its_chunk_begins(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("zip,age,member,seen\n" + "007,30,true,2020-05-05\n" * 20 + "008,300,true,2020-05-05\n")
    for chunk_rows in (1, 8, 100):
        table = read_table(path, SCHEMA, chunk_rows=chunk_rows)
        assert (len(table), table.left_out, table.rows_read) == (20, 1, 21)
    report = check_table(path, SCHEMA, chunk_rows=8)
    assert (report.ok, report.rows, report.left_out) == (False, 21, 1)
    assert "'zip', row 20: '008' is not listed: row left out" in report.problems[0]
    assert "'age', row 20: '300' lies outside [0, 120]: clipped" in report.problems[1]


def test_values_that_are_clipped_are_told_and_the_file_fits(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("zip,age,member,seen\n007,300,true,1066-10-14\n")
    report = check_table(path, SCHEMA)
    assert (report.ok, report.rows, report.left_out) == (True, 1, 0)
    assert ["clipped" in problem for problem in report.problems] == [True, True]
    table = read_table(path, SCHEMA)
    assert [int(codes[0]) for codes in table.codes] == [0, 31, 1, 0]


def test_a_cell_of_broken_text_stops_no_other_row(tmp_path):
    path = tmp_path / "t.csv"
    good = b"007,30,true,2020-05-05\n"
    path.write_bytes(b"zip,age,member,seen\n" + good + b"Z\xfcrich,30,true,\n" + good)
    table = read_table(path, SCHEMA)
    assert (len(table), table.left_out) == (2, 1)
    report = check_table(path, SCHEMA)
    assert (report.ok, report.rows, report.left_out) == (False, 3, 1)
    assert "row 1: 'Z\ufffdrich' is not listed: row left out" in report.problems[0]
    with pytest.raises(SchemaError, match="UTF-8"):  # a draft is made from what can be read only
        read_frame(path)


def test_a_file_of_ragged_rows_is_no_table(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("zip,age,member,seen\n007,30,true,2020-05-05\n007,30\n")
    for read in (read_table, check_table):
        with pytest.raises(SchemaError, match="as many cells in every row"):
            read(path, SCHEMA)


def test_a_parquet_column_of_the_wrong_type_is_named_beside_the_values(tmp_path):
    path = tmp_path / "t.parquet"
    rows = frame(9).assign(age=pd.Timestamp("2020-05-05"), member="perhaps")
    rows.to_parquet(path, index=False)
    with pytest.raises(SchemaError, match="'age' holds times"):
        read_table(path, SCHEMA)
    report = check_table(path, SCHEMA, chunk_rows=2)
    assert (report.ok, report.rows, report.left_out) == (False, 9, 9)
    assert ["'age' holds times" in one for one in report.problems].count(True) == 1
    assert any("'perhaps' is neither true nor false: row left out" in one for one in report.problems)


def test_a_file_without_a_column_and_one_with_more(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("zip,extra\n007,1\n")
    with pytest.raises(SchemaError, match=r"age.*member.*seen"):
        read_table(path, SCHEMA)
    report = check_table(path, SCHEMA)
    assert not report.ok
    assert any("age" in problem for problem in report.problems)
    assert any("extra" in problem and "left out" in problem for problem in report.problems)


def test_a_file_of_a_header_only_is_an_empty_site(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("zip,age,member,seen\n")
    assert len(read_table(path, SCHEMA)) == 0


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("t.csv", "a,a\n1,2\n", SchemaError),
        ("t.csv", "a,b\n1,2\n3\n", SchemaError),
        ("t.csv", "", SchemaError),
        ("t.parquet", "not parquet", SchemaError),
        ("t.xlsx", "PK", Unsupported),
    ],
)
def test_what_is_no_table_is_refused(tmp_path, name, content, error):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(error, match=r"t\.|xlsx"):
        read_frame(path)


def test_reading_takes_less_memory_than_the_file_as_objects(tmp_path):
    import pyarrow as pa

    rows = 200_000
    path = tmp_path / "t.csv"
    with path.open("w") as file:
        file.write("zip\n")
        file.write("a rather long category of text\n" * rows)
    schema = Schema((Categorical("zip", ("a rather long category of text",)),))
    pool = pa.default_memory_pool()
    table = read_table(path, schema, chunk_rows=10_000)
    assert len(table) == rows
    assert sum(column.nbytes for column in table.codes) == rows
    assert pool.max_memory() < 40 * rows * 4  # the text itself is 6 MB; four copies of it are not held


def test_real_adult_in_both_formats_gives_one_table(tmp_path):
    path = Path(__file__).parents[2].parent / "shared" / "data" / "adult.csv"
    if not path.exists():
        pytest.skip("the shared data sets are not beside the repository")
    from fedsynth.data.draft import draft_schema

    adult = read_frame(path)
    schema = draft_schema(adult).schema
    assert check_table(path, schema).ok
    adult.to_parquet(tmp_path / "adult.parquet", index=False)
    first, second = read_table(path, schema), read_table(tmp_path / "adult.parquet", schema)
    for one, other in zip(first.codes, second.codes, strict=True):
        np.testing.assert_array_equal(one, other)
