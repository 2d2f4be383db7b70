"""Files in and out: types, zeros, quotes, delimiters, chunks, and what is no table."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.public_data import public_data

from fedsynth import encoding
from fedsynth.data.draft import draft_schema, guess_types, parse_text
from fedsynth.data.read import (
    PersonLimit,
    check_table,
    column_names,
    read_frame,
    read_table,
    read_typed,
    write_frame,
)
from fedsynth.data.sources import csv_file, open_source
from fedsynth.data.sources.arrow import encode_column
from fedsynth.data.sources.arrow import frame_of as arrow_frame
from fedsynth.encoding import decode, encode
from fedsynth.errors import InvalidParameter, SchemaError
from fedsynth.persons import identify
from fedsynth.schema import (
    Boolean,
    Categorical,
    Computed,
    Datetime,
    Identifier,
    Numeric,
    Rule,
    Schema,
    Stored,
)

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
    return decode(SCHEMA, codes, rng)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.csv"


@pytest.mark.parametrize(("suffix", "kind"), [(".csv", "rfc4180"), (".parquet", None)])
def test_a_written_frame_reads_back_to_the_same_codes_and_dtypes(tmp_path, suffix, kind):
    written = frame()
    write_frame(written, tmp_path / f"t{suffix}")
    whole = encode(SCHEMA, written)
    for chunk_rows in (7, 50, 10_000):
        read = read_table(tmp_path / f"t{suffix}", SCHEMA, records=kind, chunk_rows=chunk_rows)
        for first, second in zip(whole.codes, read.codes, strict=True):
            np.testing.assert_array_equal(first, second)
        np.testing.assert_array_equal(whole.numbers[1], read.numbers[1])
    pd.testing.assert_frame_equal(read_typed(tmp_path / f"t{suffix}", SCHEMA, records=kind), written)
    assert [path.name for path in tmp_path.iterdir()] == [f"t{suffix}"]  # nothing half-written stays


def test_missing_values_among_the_categories_of_a_parquet_file_are_missing(tmp_path):
    held = pd.DataFrame(
        {"sex": pd.Categorical(["f", "?", "m"]), "ward": ["a", "?", "b"], "n": pd.Categorical([1, 2, 3])}
    )
    held.to_parquet(tmp_path / "t.parquet")
    read = guess_types(read_frame(tmp_path / "t.parquet"))
    assert read.isna().to_numpy().tolist() == [[False] * 3, [True, True, False], [False] * 3]
    assert list(read["sex"].cat.categories) == ["f", "m"]


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_usual_delimiters(path, mark):
    path.write_text(mark.join(["zip", "age"]) + "\n" + mark.join(["007", "41"]) + "\n")
    assert column_names(path) == ["zip", "age"]
    assert read_frame(path)["zip"].tolist() == ["007"]
    assert read_frame(path)["age"].tolist() == ["41"]


def test_types_of_text_are_read_as_a_person_would():
    def kind(*texts: str) -> str:
        return str(parse_text(pd.Series(texts, dtype=object)).dtype)

    assert kind("1", "2") == "int64"
    assert kind("1.5", "2", ".5", "1e3") == "float64"
    assert kind("true", "False") == "bool"
    assert kind("2020-01-31", "2020-02-01T10:00:00").startswith("datetime64")
    for texts in (("007", "1"), ("1", "a"), ("123456789012345678901",), ("2020-13-45",), ("yes", "no")):
        assert kind(*texts) in ("object", "str"), texts


def test_a_row_that_does_not_fit_is_left_out_and_named_wherever_its_chunk_begins(path):
    path.write_text("zip,age,member,seen\n" + "007,30,true,2020-05-05\n" * 20 + "008,300,true,2020-05-05\n")
    for chunk_rows in (1, 8, 100):
        table = read_table(path, SCHEMA, chunk_rows=chunk_rows)
        assert (len(table), table.left_out, table.rows_read) == (20, 1, 21)
    report = check_table(path, SCHEMA, chunk_rows=8)
    assert (report.ok, report.rows, report.left_out) == (False, 21, 1)
    assert "'zip', row 20: '008' is not listed: row left out" in report.problems[0]
    assert "'age', row 20: '300' lies outside [0, 120]: clipped" in report.problems[1]


def test_values_that_are_clipped_are_told_and_the_file_fits(path):
    path.write_text("zip,age,member,seen\n007,300,true,1066-10-14\n")
    report = check_table(path, SCHEMA)
    assert (report.ok, report.rows, report.left_out) == (True, 1, 0)
    assert ["clipped" in problem for problem in report.problems] == [True, True]
    table = read_table(path, SCHEMA)
    assert [int(codes[0]) for codes in table.codes] == [0, 31, 1, 0]


def test_a_cell_of_broken_text_stops_no_other_row(path):
    good = b"007,30,true,2020-05-05\n"
    path.write_bytes(b"zip,age,member,seen\n" + good + b"Z\xfcrich,30,true,\n" + good)
    table = read_table(path, SCHEMA)
    assert (len(table), table.left_out) == (2, 1)
    report = check_table(path, SCHEMA)
    assert (report.ok, report.rows, report.left_out) == (False, 3, 1)
    assert "row 1: 'Z\ufffdrich' is not listed: row left out" in report.problems[0]
    assert read_frame(path)["zip"].tolist() == ["007", "Z\ufffdrich", "007"]
    with pytest.raises(SchemaError, match="UTF-8"):  # a draft is made from what can be read only
        read_frame(path, strict=True)


SINGLE = Schema((Categorical("zip", ("007", "0123", 'say, "hi"', '6"'), missing=True), *SCHEMA.columns[1:]))
LINES = {
    b"007,30": "has 2 cells, not 4",
    b"007,30,true,2020-05-05,,": "has 6 cells, not 4",
    b"007,30,true,2020-05-05,x": "has 5 cells, not 4",
    b'"007,30",true': "has 2 cells, not 4",
    b'007,"30,true,2020-05-05': "opens a quote that is not closed",
    b'007,30,true,"': "opens a quote that is not closed",
    b'007,"30"0,true,2020-05-05': "has text after a closing quote",
    b"007,30,true,2020-05-05\r007,30,true,2020-05-05": "has a carriage return (CR) without a line feed (LF)",
    b"zip,age,member,seen": "repeats the header",
    b"007," + b"3" * (csv_file._BLOCK + 1) + b",true,2020-05-05": "is longer than 4 MiB",
}


@pytest.mark.parametrize("line", LINES, ids=lambda line: str(line[:30]))
@pytest.mark.parametrize("at", [0, 10, 20])
def test_a_line_that_is_no_row_is_left_out_by_itself_and_named(path, caplog, line, at):
    """Wherever it stands: in front, between rows whose own quotes are as they should be, and at the end of the file."""
    rows = [b"007,30,true,2020-05-05", b'"007",,"false",2020-05-05\r', b'"say, ""hi""",5,true,', b'6",5,true,'] * 5
    whole = read_table(written(path, rows), SINGLE)
    found = read_table(written(path, [*rows[:at], line, *rows[at:]]), SINGLE)
    assert (len(whole), whole.left_out) == (20, 0)
    assert (len(found), found.left_out, found.rows_read) == (20, 1, 21)
    for expected, codes in zip(whole.codes, found.codes, strict=True):
        np.testing.assert_array_equal(codes, expected)
    said = f"left out: 1 (line {2 + at} {LINES[line]})"
    assert said in caplog.text
    report = check_table(path, SINGLE)
    assert (report.ok, report.rows, report.left_out) == (False, 21, 1)
    assert [said in problem for problem in report.problems] == [True]
    assert "007" not in caplog.text


INVALID = {
    b"007,30": "has 2 cells, not 4",
    b'007,"30,true,2020-05-05': "opens a quote that is not closed",
    b'007,"30"0,true,2020-05-05': "has text after a closing quote",
    b'6",30,true,2020-05-05': "has a quote in a cell without quotes",
    b"007,30,true,2020-05-05\r007,30,true,2020-05-05": "has a carriage return (CR) without a line feed (LF)",
    b"007," + b"3" * (csv_file._BLOCK + 1) + b",true,2020-05-05": "is longer than 4 MiB",
}


@pytest.mark.parametrize("line", INVALID, ids=lambda line: str(line[:30]))
@pytest.mark.parametrize("at", [0, 10, 20])
def test_a_file_declared_rfc4180_is_read_as_a_whole_or_not_at_all(path, line, at):
    rows = [b"007,30,true,2020-05-05", b'"007",,"false",2020-05-05\r', b'"say, ""hi""\nthere",5,true,', b""] * 5
    whole = read_table(written(path, rows), SCHEMA, records="rfc4180")
    assert (len(whole), whole.left_out) == (15, 0)
    written(path, [*rows[:at], line, *rows[at:]])
    number = 2 + at + sum(row.count(b"\n") for row in rows[:at])
    said = f"t.csv is not valid RFC 4180, so none of it is read: line {number} {INVALID[line]}; correct that, or"
    for read in (
        lambda: read_table(path, SCHEMA, records="rfc4180"),
        lambda: read_table(path, SCHEMA, records="rfc4180", persons=PersonLimit("age", 1, bytes(32))),
        lambda: read_frame(path, records="rfc4180"),
    ):
        with pytest.raises(SchemaError) as error:
            read()
        assert str(error.value).startswith(said)
        assert "--records lines" in str(error.value)
    report = check_table(path, SCHEMA, records="rfc4180")
    assert not report.ok
    assert any(problem.startswith(said) for problem in report.problems)


def test_the_kind_of_a_csv_file_is_declared_for_csv_files_alone(tmp_path):
    written(tmp_path / "t.csv", [b"007,30,true,"])
    with pytest.raises(InvalidParameter, match="--records"):
        read_table(frame_in(tmp_path / "t.parquet"), SCHEMA, records="rfc4180")
    with pytest.raises(InvalidParameter, match="lines"):
        open_source(str(tmp_path / "t.csv"), records="line")  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="open_source"):
        read_table(open_source(str(tmp_path / "t.csv")), SCHEMA, records="lines")


def frame_in(path: Path) -> Path:
    write_frame(frame(), path)
    return path


def test_categories_with_any_end_of_line_are_written_and_read_back(tmp_path):
    """Python before 3.13 writes a carriage return without quotes if lines end in LF."""
    for texts in (["a\rb", "a\nb", "a\r\nb", 'a"b', "a,b", " a "], ["a\nb", "c", "d", "e", "f", "g"]):
        path = tmp_path / "t.csv"
        write_frame(pd.DataFrame({"text": texts, "n\n": range(6)}), path)
        assert read_frame(path, records="rfc4180")["text"].tolist() == texts


def written(path: Path, lines: list[bytes], end: bytes = b"\n") -> Path:
    """Write a CSV file of the schema's columns; without an end of its last line."""
    path.write_bytes(end.join([b"zip,age,member,seen", *lines]))
    return path


def test_a_draft_is_made_of_the_rows_and_the_log_names_what_is_none(tmp_path, caplog):
    path = written(tmp_path / "t.csv", [b"007,30,true,2020-05-05", b"1,2,3", b'"', b"9", b"", b"8,9", b"007,31,true,"])
    assert read_frame(path)["age"].tolist() == ["30", "31"]
    assert "t.csv: malformed lines, which are left out: 4 (line 3 has 3 cells, not 4; line 4 opens" in caplog.text
    assert "line 5 has 1 cells, not 4; and 1 more); write as many cells" in caplog.text


def test_lines_that_are_no_rows_do_not_tell_how_many_there_are_where_persons_are_protected(tmp_path):
    """They name no person, and one person could have any number of them."""
    path = written(tmp_path / "t.csv", [b"007,30,true,2020-05-05", b"1", b'"', b"2"])
    table = read_table(path, SCHEMA, persons=PersonLimit("age", 1, bytes(32)))
    assert (len(table), table.rows_read) == (1, 1)


TYPED: dict[str, list[Any]] = {
    "text": ["007", "true", "", "\0", "9" * 9000],
    "integers": [0, 1, 2**63 - 1, -(2**63)],
    "unsigned": [0, 1, 2**64 - 1],
    "doubles": [0.0, 1.5, math.inf, -math.inf, math.nan, 1e308],
    "booleans": [True, False],
    "decimals": [Decimal("1.5"), Decimal("-99999999999999999999999999999999.9")],
    "days": [-(2**31), 0, 2**31 - 1],
    "seconds": [-(2**63) + 1, 0, 2**63 - 1],
    "nanoseconds": [-(2**63) + 1, 0, 2**63 - 1],
    "zoned": [-(2**63) + 1, 0, 2**63 - 1],
    "clock": [0, 86399],
    "durations": [0, 2**62],
    "bytes": [b"007", b"\xff"],
    "lists": [[1, 2], []],
    "records": [{"a": 1}, {"a": None}],
    "dictionary": ["007", "Z\u00fcrich"],
    "nothing": [],
}
ARROW = {
    "text": pa.string(),
    "integers": pa.int64(),
    "unsigned": pa.uint64(),
    "doubles": pa.float64(),
    "booleans": pa.bool_(),
    "decimals": pa.decimal128(38, 1),
    "days": pa.date32(),
    "seconds": pa.timestamp("ms"),
    "nanoseconds": pa.timestamp("ns"),
    "zoned": pa.timestamp("us", "Europe/Zurich"),
    "clock": pa.time32("s"),
    "durations": pa.duration("us"),
    "bytes": pa.binary(),
    "lists": pa.list_(pa.int64()),
    "records": pa.struct([("a", pa.int64())]),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
    "nothing": pa.null(),
}


@pytest.mark.parametrize("column", SCHEMA.columns, ids=lambda column: str(column.kind))
@pytest.mark.parametrize("kind", TYPED)
def test_a_parquet_column_of_any_type_is_read_value_by_value(tmp_path, kind, column):
    """A value that does not fit is left out alone, whatever type it gives the column."""
    path = tmp_path / "t.parquet"
    schema = Schema((column,))
    alone = 0
    for held in ([], [None], *([value] for value in TYPED[kind]), TYPED[kind], [*TYPED[kind], None]):
        pq.write_table(pa.table({column.name: pa.array(held, ARROW[kind])}), path)
        table = read_table(path, schema)
        assert table.rows_read == len(held)
        alone += len(table) * (len(held) == 1)
        if len(held) > 1:
            assert len(table) == alone - (column.missing and None not in held)


def test_text_of_a_parquet_file_that_is_not_utf8_stops_no_other_row(tmp_path):
    broken = pa.array([b"007", b"Z\xfcrich", None], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 3, broken.buffers(), null_count=1)
    pq.write_table(pa.table({"zip": text}), tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet", Schema(SCHEMA.columns[:1]))
    assert (table.codes[0].tolist(), table.left_out) == ([0, 3], 1)
    with pytest.raises(SchemaError, match="'zip' holds text that is not UTF-8"):
        read_frame(tmp_path / "t.parquet", strict=True)


def test_headers_that_cannot_be_read(tmp_path):
    for header, says in [
        (b"", "is empty"),
        (b"\xef\xbb\xbf\n\n", "is empty"),
        (b'a,"b\n1,2\n', "opens a quote that is not closed.*--records rfc4180"),
        (b"a,b\r1,2\r", "carriage return"),
        (b"a,\xff\n1,2\n", "UTF-8"),
        (b"a," * csv_file._BLOCK, "too long"),
    ]:
        (tmp_path / "t.csv").write_bytes(header)
        with pytest.raises(SchemaError, match=says):
            column_names(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_bytes(b'\xef\xbb\xbf\r\n"a;\n""b""",c\r\n1,2')
    assert column_names(tmp_path / "t.csv", records="rfc4180") == ['a;\n"b"', "c"]
    assert read_frame(tmp_path / "t.csv", records="rfc4180")["c"].tolist() == ["2"]
    with pytest.raises(SchemaError, match="opens a quote"):
        column_names(tmp_path / "t.csv")


def test_a_parquet_column_of_the_wrong_type_is_named_beside_the_values(tmp_path):
    path = tmp_path / "t.parquet"
    rows = frame(9).assign(age=pd.Timestamp("2020-05-05"), member="perhaps")
    rows.to_parquet(path, index=False)
    assert (len(read_table(path, SCHEMA)), read_table(path, SCHEMA).left_out) == (0, 9)
    report = check_table(path, SCHEMA, chunk_rows=2)
    assert (report.ok, report.rows, report.left_out) == (False, 9, 9)
    assert any("'age', row 0: Timestamp(" in one and "is not a number: row left out" in one for one in report.problems)
    assert any("'perhaps' is neither true nor false: row left out" in one for one in report.problems)


def test_a_file_without_a_column_and_one_with_more(path):
    path.write_text("zip,extra\n007,1\n")
    with pytest.raises(SchemaError, match=r"age.*member.*seen"):
        read_table(path, SCHEMA)
    report = check_table(path, SCHEMA)
    assert not report.ok
    assert any("age" in problem for problem in report.problems)
    assert any("extra" in problem and "ignored" in problem for problem in report.problems)


def test_a_file_of_a_header_only_is_an_empty_site(path):
    path.write_text("zip,age,member,seen\n")
    assert len(read_table(path, SCHEMA)) == 0


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("t.csv", "a,a\n1,2\n", SchemaError),
        ("t.csv", "", SchemaError),
        ("t.parquet", "not parquet", SchemaError),
        ("t.xlsx", "PK", SchemaError),
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
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)  # the maximum of the usual one is of all tests that ran before
    pa.set_memory_pool(pool)
    try:
        table = read_table(path, schema, chunk_rows=10_000)
    finally:
        pa.set_memory_pool(usual)
    assert len(table) == rows
    assert sum(column.nbytes for column in table.codes) == rows
    assert pool.max_memory() < 40 * rows * 4  # the text itself is 6 MB; four copies of it are not held


def test_real_adult_in_both_formats_gives_one_table(tmp_path):
    path = public_data("adult.csv")
    adult = read_frame(path)
    schema = draft_schema(adult).schema
    assert check_table(path, schema).ok
    read_typed(path, schema).to_parquet(tmp_path / "adult.parquet", index=False)
    first, second = read_table(path, schema), read_table(tmp_path / "adult.parquet", schema)
    for one, other in zip(first.codes, second.codes, strict=True):
        np.testing.assert_array_equal(one, other)


RELATED = Schema(
    (
        Identifier("id", "P-####"),
        Datetime("admitted", "2020-01-01", "2021-01-01", unit="D", timezone="Europe/Zurich"),
        Datetime(
            "discharged", "2020-01-01", "2021-01-01", unit="D", timezone="Europe/Zurich", missing=True,
            stored=Stored(difference=("discharged", "admitted"), unit="day", lower=0, upper=30),
        ),
        Categorical("ward", ("north", "south"), ordered=True, unknown="other"),
        Categorical("grade", (1, 2, 3), missing=True, unknown="missing"),
        Numeric("bill", 0, 100, decimals=2, outside="drop"),
        Numeric("paid", 0, 50),
        Numeric("rest", 0, 100, integer=True, computed=Computed(difference=("bill", "paid"))),
        Boolean("again"),
    ),
    rules=(Rule({"ward": ["south"], "again": [True]}),),
)  # fmt: skip


def test_a_frame_has_the_types_of_the_schema_row_by_row(path, caplog):
    """Clipped, other and missing as the schema says; rows that it leaves out are not there, nor malformed lines."""
    path.write_text(
        "note,id,again,rest,paid,bill,grade,ward,discharged,admitted,person\n"
        "a,7,yes,12,60,1e1,3.0,north,2020-01-09,2020-01-02T08:00:00+01:00,007\n"
        "b,,no,x,-0,.5,7,attic,?,2020-05-05,7\n"
        "c,,perhaps,1,1,1,1,north,,2020-05-05,8\n"  # neither true nor false
        "d,,no,1,1,101,1,north,,2020-05-05,8\n"  # beyond the bounds
        "e,,no\n"
        ",8,true,,50.0,2.25,,south,2022-02-02,2020-02-02,NA\n"
    )
    frame = read_typed(path, RELATED)
    assert list(frame) == column_names(path)
    assert frame["note"].tolist() == ["a", "b", ""]  # not in the schema: as it stands
    assert frame["id"].tolist() == ["7", "", "8"]
    assert frame["person"].tolist() == ["007", "7", "NA"]
    assert frame["again"].tolist() == [True, False, True]
    assert frame["bill"].tolist() == [10, 0.5, 2.25]
    assert frame["paid"].tolist() == [50, 0, 50]
    assert frame["rest"].dtype == "Int64"  # computed: a cell that does not fit leaves nothing out
    assert frame["rest"].isna().tolist() == [False, True, True]
    assert frame["grade"].tolist()[:1] == [3]
    assert frame["grade"].isna().tolist() == [False, True, True]
    assert frame["ward"].cat.ordered
    assert frame["ward"].tolist() == ["north", "other", "south"]
    assert [str(time) for time in frame["admitted"]] == [
        "2020-01-02 01:00:00+01:00", "2020-05-05 02:00:00+02:00", "2020-02-02 01:00:00+01:00"
    ]  # fmt: skip
    assert frame["discharged"].isna().tolist() == [False, True, False]
    assert frame.index.tolist() == [0, 1, 2]
    said = caplog.text
    assert "3 of the 6 rows do not fit the schema and are left out" in said
    assert "'perhaps' is neither true nor false: row left out" in said
    assert "'60' lies outside [0.0, 50.0]: clipped" in said
    assert "malformed lines, which are left out: 1 (line 6" in said
    file = read_table(path, RELATED)
    for rows in (encode(RELATED, frame), encode(RELATED, read_frame(path))):
        for one, other in zip(
            (*rows.codes, *rows.numbers.values()), (*file.codes, *file.numbers.values()), strict=True
        ):
            np.testing.assert_array_equal(one, other)
    assert read_typed(path, RELATED, ["person", "bill"]).to_dict("list") == frame[["person", "bill"]].to_dict("list")
    with pytest.raises(SchemaError, match="none of the 7 columns"):
        read_typed(written(path, []), RELATED)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_file_without_rows_has_the_types_of_the_schema(tmp_path, suffix):
    write_frame(frame(0), tmp_path / f"t{suffix}")
    read = read_typed(tmp_path / f"t{suffix}", SCHEMA)
    pd.testing.assert_series_equal(read.dtypes, frame(3).dtypes)
    assert list(read_frame(tmp_path / f"t{suffix}")) == list(SCHEMA.names)


BINARY = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int32(), pa.binary())]


@pytest.mark.parametrize("kind", BINARY, ids=str)
def test_bytes_are_text_cell_by_cell(tmp_path, kind):
    cells = [b"007", b"30", b"\xff", None, b"yes", b"2020-05-05"]
    expected = {"zip": [0, -1, -1, 3, -1, -1], "age": [1, 8, -1, 32, -1, -1], "member": [-1, -1, -1, 2, 1, -1],
                "seen": [-1, -1, -1, 32, -1, 10]}  # fmt: skip
    arrow = pa.chunked_array([pa.array(cells, kind.value_type if pa.types.is_dictionary(kind) else kind)])
    table = pa.table({"a": arrow.dictionary_encode() if pa.types.is_dictionary(kind) else arrow})
    frames = [
        arrow_frame(table),
        table.to_pandas(),
        *([] if kind == pa.binary_view() else [table.to_pandas(types_mapper=pd.ArrowDtype)]),  # pandas knows no views
        table.to_pandas().astype("category"),
        pd.DataFrame({"a": pd.Series([None if cell is None else bytearray(cell) for cell in cells], dtype=object)}),
    ]
    for name, codes in expected.items():
        column = msgspec.structs.replace(SCHEMA.asked[SCHEMA.index(name)], name="a")
        schema = Schema((column,))
        assert encode_column(schema, column, table).codes.tolist() == codes, name
        for held in frames:
            assert encoding.encode_column(schema, column, held).codes.tolist() == codes, (name, held.dtypes)
    known = identify(pd.Series(["007", "30", "\ufffd", None, "yes", "2020-05-05"]))
    for held in frames:
        assert identify(held["a"]).tolist() == known.tolist()


def test_a_draft_takes_bytes_for_text_and_leaves_out_what_is_none():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": [str(age).encode() for age in rng.integers(18, 97, 300)],
            "image": [rng.bytes(20) for _ in range(300)],
            "town": [b"Z\xfcrich", *[b"Bern"] * 299],
        }
    )
    draft = draft_schema(frame)
    assert isinstance(draft.schema.columns[0], Numeric)
    assert draft.notes["image"] == ["holds bytes that are no UTF-8 text; write numbers, text or times"]
    assert draft.notes["town"][0] == "1 value with U+FFFD in place of bytes that are not UTF-8: write UTF-8"
