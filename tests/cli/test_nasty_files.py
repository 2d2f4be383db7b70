"""Files that nobody prepared: each just works, or ends in one clear sentence, and nothing half-written stays."""

from __future__ import annotations

import datetime
import decimal
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.command import run

BUDGET = ("--method", "oneshot", "--epsilon", "1", "--delta", "1e-6", "--sites", "2", "--seed", "0")
AGREED = """fedsynth_schema = 1
[[column]]
name = "age"
type = "numeric"
low = 0
high = 120
[[column]]
name = "g"
type = "categorical"
values = ["a", "b"]
"""


def csv(header: str, rows: Sequence[str]) -> bytes:
    return (header + "\n" + "".join(f"{row}\n" for row in rows)).encode()


def column(*values: object, name: str = "x") -> bytes:
    """A file with two ordinary columns and one whose values repeat."""
    texts = [str(values[row % len(values)]) for row in range(40)]
    return csv(f"age,g,{name}", [f"{20 + row % 50},{'ab'[row % 2]},{text}" for row, text in enumerate(texts)])


def arrow(**columns: Any) -> pa.Table:
    return pa.table({"age": [30, 31] * 20, **columns})


GOOD = column(*np.arange(40) / 8)
WIDE = np.random.default_rng(0).integers(0, 3, (40, 1000))
LONG = 10 << 20

WORKS: dict[str, bytes | pa.Table] = {
    "infinities": column("inf", "-inf", 1.5, 2.5),
    "infinite throughout": column("inf"),
    "1e999": column("1e999", 1.0),
    "1e300": column("1e300", "-1e300", 0.5, 7),
    "1e308": column("1.7e308", "-1.7e308", 0.5, 7),
    "1e-320": column("1e-320", "2e-320", "7e-310"),
    "1e-300 among others": column("1e-300", 2, 3, 4),
    "integers beyond 2^53": column(*(2**53 + 1 + 2 * row for row in range(5))),
    "integers beyond 2^64": column(*(2**70 + row for row in range(5))),
    "integers of 6000 digits": column("9" * 6000, "1"),
    "one row": csv("age,g", ["30,a"]),
    "all missing": column("", "?"),
    "one value": column(7),
    "one float": column(7.25),
    "keywords": csv("name,type,class,None,draft,count,row", ["u,1,2,3,a,4,5", "v,2,3,4,b,5,6"] * 20),
    "odd names": csv(
        '"say ""hi""","a,b","two\nlines",\N{GRINNING FACE},=1+1,[x],"tab\there",back\\slash,</script>, ,g\0h',
        ["30,a,b,1,2,q,r,s,t,u,1", "31,b,a,2,1,r,q,t,s,v,2"] * 20,
    ),
    "no name": csv("age,,x", ["30,a,1", "31,b,2"] * 20),
    "a name of 5000 letters": column("a", "b", name="n" * 5000),
    "odd values": csv("age,g", ['30,"say ""hi"""', '31,"a,b"', "32,\N{GRINNING FACE}", '33,"two\nlines"', "34,=1"] * 8),
    "control characters": column("\x1b[31mred", "\x07", "\x7f"),
    "byte order mark": b"\xef\xbb\xbf" + GOOD,
    "CR LF": GOOD.replace(b"\n", b"\r\n"),
    "dates of year 9999": column("9999-12-31", "2024-01-01"),
    "times of year 9999": column("9999-12-31T23:59:59", "2024-01-01T00:00:00"),
    "zones of year 9999": column("9999-12-31T23:59:59-11:00", "2024-01-01T00:00:00+01:00"),
    "dates of year 1": column("0001-01-01", "2024-01-01"),
    "dates of year 0": column("0000-01-01", "2024-01-01"),
    "some offsets": column("2024-01-01T00:00:00", "2024-01-01T00:00:00Z"),
    "two kinds of dates": column("2024-01-01", "01.02.2024"),
    "a day that never was": column("2024-02-30", "2024-01-01"),
    "mixed types": column(1, "x", 2.5, "true", "2024-01-01", "", "1e5", "-"),
    "duplicate rows": csv("age,g,x", ["30,a,1.5"] * 40),
    "NUL bytes": csv("age,g", ["30,a\0b", "31,b", "32,\0"] * 14),
    "nested": arrow(s=[{"a": 1}, {"a": 2}] * 20, l=[[1, 2], [3]] * 20),
    "map": arrow(m=pa.array([[("a", 1)], [("b", 2)]] * 20, pa.map_(pa.string(), pa.int64()))),
    "bytes": arrow(b=[b"\xff\x00", b"x"] * 20),
    "decimals": arrow(d=[decimal.Decimal("1.50"), decimal.Decimal("99999999999999999999.25")] * 20),
    "clock and durations": arrow(t=[datetime.time(1), datetime.time(2)] * 20, d=[datetime.timedelta(1)] * 40),
    "years beyond 9999": arrow(d=pa.array([2**31 - 1, 0] * 20, pa.int32()).cast(pa.date32())),
    "seconds beyond all years": arrow(d=pa.array([2**53, 0] * 20, pa.int64()).cast(pa.timestamp("s"))),
    "unsigned": arrow(u=pa.array([2**64 - 1, 0] * 20, pa.uint64())),
    "NaN and infinity": arrow(f=[float("nan"), float("inf"), 1.0, 2.0] * 10),
    "nulls": arrow(n=pa.nulls(40)),
    "half floats": arrow(h=pa.array(np.array([1.5, 2.5] * 20, dtype=np.float16))),
}
SCORED = (
    "infinities", "1e300", "all missing", "one value", "odd names", "times of year 9999", "some offsets",
    "duplicate rows", "NUL bytes", "nested", "years beyond 9999", "unsigned",
)  # fmt: skip

WHOLE = ("odd names", "odd values")  # of the kind rfc4180: their cells hold newlines

FAILS: dict[str, tuple[bytes | pa.Table, str]] = {
    "empty": (b"", "it is empty"),
    "CR": (GOOD.replace(b"\n", b"\r"), "its header has a carriage return (CR) without a line feed (LF)"),
    "empty lines": (b"\n\n\r\n", "it is empty"),
    "header only": (b"age,g,x\n", "a header but no rows"),
    "header without end": (b"age,g,x", "a header but no rows"),
    "repeated names": (csv("a,a,b", ["1,2,3"] * 40), "two columns named ['a']"),
    "only missing": (csv("x,y", ["NA,?"] * 40), "no column of the file can be modelled"),
    "only identifiers": (csv("id,name", [f"{row},n{row}" for row in range(200)]), "no column of the file"),
    "random bytes": (np.random.default_rng(0).bytes(5000), "not UTF-8"),
    "NUL only": (b"\0" * 1000, "a header but no rows"),
    "header of 10 MB": (b"age," + b"z" * LONG + b"\n1,2\n", "too long"),
    "nested only": (pa.table({"s": [{"a": 1}] * 40}), "no column of the file can be modelled"),
    "no rows": (pa.table({"age": pa.array([], pa.int64())}), "a header but no rows"),
    "same names": (pa.Table.from_arrays([pa.array([1]), pa.array([1])], names=["a", "a"]), "two columns named ['a']"),
    "text.parquet": (b"PAR1 hello", "is not a Parquet file"),
    "empty.parquet": (b"", "is not a Parquet file"),
}

ENCODED: dict[str, tuple[bytes, str, str]] = {
    "UTF-16": (GOOD.decode().encode("utf-16"), "header is not UTF-8", "utf-16"),
    "Latin-1 names": ("age,café\n".encode("latin-1") + b"30,a\n31,b\n" * 20, "header is not UTF-8", "cp1252"),
    "Latin-1 values": (b"age,g\n" + "30,café\n31,thé\n".encode("latin-1") * 20, "text that is not UTF-8", "cp1252"),
    "lone surrogates": (b"age,g\n30,\xed\xa0\x80\n" + b"31,b\n" * 20, "text that is not UTF-8", "cp1252"),
}


def put(folder: Path, name: str, content: bytes | pa.Table) -> Path:
    if isinstance(content, bytes):
        path = folder / (name if name.endswith(".parquet") else "file.csv")
        path.write_bytes(content)
    else:
        path = folder / "file.parquet"
        pq.write_table(content, path)
    return path


@pytest.mark.parametrize("name", WORKS)
def test_an_odd_file_just_works(tmp_path, capsys, name):
    file, out = put(tmp_path, name, WORKS[name]), tmp_path / "run"
    kind = ("--records", "rfc4180") if name in WHOLE else ()
    assert run("schema", "draft", file, *kind, "--out", tmp_path / "drafted.toml") == 0
    assert run("schema", "check", file, *kind, "--schema", tmp_path / "drafted.toml") == 0
    assert "0 of them left out" in capsys.readouterr().out
    if name == "one row":
        assert run("simulate", "--data", file, *BUDGET, "--out", out) == 6
        assert "ask for fewer sites" in capsys.readouterr().err
        assert not out.exists()
        return
    assert run("simulate", "--data", file, *kind, *BUDGET, "--rows", 60, "--out", out) == 0
    assert run("schema", "check", out / "synthetic.csv", "--records", "rfc4180", "--schema", out / "schema.toml") == 0
    assert "60 rows, 0 of them left out" in capsys.readouterr().out
    if name in SCORED:
        real, synthetic, schema = file, out / "synthetic.csv", out / "schema.toml"
        assert run("evaluate", real, synthetic, *kind, "--schema", schema, "--out", tmp_path / "scores") == 0
        assert (tmp_path / "scores" / "private" / "report.html").stat().st_size > 10_000
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", FAILS)
def test_an_impossible_file_ends_in_one_sentence_and_leaves_nothing(tmp_path, capsys, name):
    content, says = FAILS[name]
    file, agreed, out = put(tmp_path, name, content), tmp_path / "agreed.toml", tmp_path / "out"
    agreed.write_text(AGREED)
    for command in (["schema", "draft", file, "--out", out], ["simulate", "--data", file, *BUDGET, "--out", out]):
        assert run(*command) == 3
        said = capsys.readouterr().err
        assert says in said
        assert said.startswith("fedsynth: ")
        assert said.count("\n") == 1
    assert run("schema", "check", file, "--schema", agreed) in (0, 3)  # a file without rows fits
    assert run("evaluate", file, file, "--schema", agreed, "--out", out) in (3, 6)
    assert capsys.readouterr().err.count("\n") <= 2
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([file.name, agreed.name])


@pytest.mark.parametrize("name", ENCODED)
def test_another_encoding_is_drafted_with_its_declaration_and_never_read_for_a_run(tmp_path, capsys, name):
    content, says, encoding = ENCODED[name]
    file, out = put(tmp_path, name, content), tmp_path / "out"
    assert run("schema", "draft", file) == 0
    assert f'csv = {{ encoding = "{encoding}"' in capsys.readouterr().out
    assert run("simulate", "--data", file, *BUDGET, "--out", out) == 3
    assert says in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ([b"31," + b"z" * LONG], "longer than 4 MiB"),
        ([b'31,"' + b"z" * LONG + b'"'], "longer than 4 MiB"),
        ([b"1", b"1,2,3", b'"open,2'], "has 1 cells, not 2"),
        ([b"age,g"], "repeats the header"),
    ],
)
def test_lines_that_are_no_rows_are_left_out_and_named(tmp_path, capsys, caplog, lines, wrong):
    file = tmp_path / "file.csv"
    file.write_bytes(b"\n".join([b"age,g", b"30,a", *lines, *[b"33,a", b"34,b"] * 20, b""]))
    drafted, out = tmp_path / "drafted.toml", tmp_path / "run"
    assert run("schema", "draft", file, "--out", drafted) == 0
    assert run("schema", "check", file, "--schema", drafted) == 3
    said = capsys.readouterr().out
    assert wrong in said
    assert f"{41 + len(lines)} rows, {len(lines)} of them left out" in said
    assert run("simulate", "--data", file, "--schema", drafted, *BUDGET, "--out", out) == 0
    assert wrong in caplog.text
    assert run("evaluate", file, out / "synthetic.csv", "--schema", drafted, "--out", tmp_path / "scores") == 3
    assert not (tmp_path / "scores").exists()


def test_an_invalid_file_declared_rfc4180_is_named_everywhere_and_leaves_nothing(tmp_path, capsys):
    file, agreed, out = tmp_path / "file.csv", tmp_path / "agreed.toml", tmp_path / "out"
    agreed.write_text(AGREED)
    file.write_bytes(csv("age,g", ["30,a", '31,"b', "32,a"] * 20))
    kind = ("--records", "rfc4180")
    for command in (
        ["schema", "draft", file, *kind, "--out", out],
        ["simulate", "--data", file, *kind, *BUDGET, "--out", out],
        ["evaluate", file, file, *kind, "--schema", agreed, "--out", out],
        ["compare", "--data", file, *kind, "--schema", agreed, "--epsilon", 1, "--delta", 1e-6, "--repeats", 2],
    ):
        assert run(*command) == 3
        assert "is not valid RFC 4180, so none of it is read: line 3 opens a quote that" in capsys.readouterr().err
    assert run("schema", "check", file, *kind, "--schema", agreed) == 3
    assert "as a file of lines, 40 records fit the header and 20 lines are malformed" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["agreed.toml", "file.csv"]


def test_a_run_keeps_the_kind_of_its_file_and_its_statement_says_what_is_not_protected(tmp_path, capsys):
    file, out = tmp_path / "file.csv", tmp_path / "run"
    file.write_bytes(csv("age,g", ['30,"two\nlines"', "31,b"] * 40))
    assert run("simulate", "--data", file, "--records", "rfc4180", *BUDGET, "--out", out) == 0
    assert tomllib.loads((out / "run.toml").read_text())["records"] == "rfc4180"
    assert json.loads((out / "ledger.json").read_text())["statement"]["rfc4180"] is True
    assert "whether that file is valid as a whole is not protected" in capsys.readouterr().out
    assert run("simulate", "--config", out / "run.toml", "--out", tmp_path / "again") == 0
    assert run("report", out) == 0
    assert "two\nlines" in (out / "synthetic.csv").read_text()


def test_the_kind_of_a_csv_file_is_refused_for_other_tables(tmp_path, capsys):
    file, agreed, kind = tmp_path / "file.parquet", tmp_path / "agreed.toml", ("--records", "lines")
    pq.write_table(arrow(g=["a", "b"] * 20), file)
    agreed.write_text(AGREED)
    for command in (
        ["schema", "draft", file, *kind],
        ["schema", "check", file, *kind, "--schema", agreed],
        ["simulate", "--data", file, *kind, *BUDGET, "--out", tmp_path / "run"],
        ["evaluate", file, file, *kind, "--schema", agreed, "--out", tmp_path / "run"],
        ["compare", "--data", file, *kind, "--epsilon", 1, "--delta", 1e-6],
        ["simulate", "--data", "demo:rand-hie", *kind, *BUDGET, "--out", tmp_path / "run"],
        ["simulate", "--partition", "synthfs:1", *kind, *BUDGET, "--out", tmp_path / "run"],
        ["compare", "--data", "demo:rand-hie", *kind, "--epsilon", 1, "--delta", 1e-6],
    ):
        assert run(*command) == 2
        assert "--records" in capsys.readouterr().err


def test_a_damaged_parquet_file_is_named(tmp_path, capsys):
    file = tmp_path / "file.parquet"
    pq.write_table(arrow(g=["a", "b"] * 20), file)
    content = bytearray(file.read_bytes())
    content[4:60] = b"\xff" * 56
    file.write_bytes(content)
    assert run("schema", "draft", file) == 3
    said = capsys.readouterr().err
    assert "file.parquet is not a Parquet file or is damaged" in said
    assert said.strip().isprintable()


def test_a_folder_or_a_file_that_is_not_there_is_named_in_words(tmp_path, capsys):
    (tmp_path / "folder.csv").mkdir()
    for name, says in (("folder.csv", "is a directory"), ("nowhere.csv", "no such file or directory; check the path")):
        assert run("simulate", "--data", tmp_path / name, *BUDGET, "--out", tmp_path / "run") == 2
        assert capsys.readouterr().err == f"fedsynth: {tmp_path / name}: {says}\n"


def test_a_thousand_columns(tmp_path, capsys):
    file, drafted = tmp_path / "file.csv", tmp_path / "drafted.toml"
    file.write_bytes(csv(",".join(f"c{k}" for k in range(1000)), [",".join(map(str, row)) for row in WIDE]))
    assert run("schema", "draft", file, "--out", drafted) == 0
    assert run("schema", "check", file, "--schema", drafted) == 0
    assert run("simulate", "--data", file, "--schema", drafted, *BUDGET, "--out", tmp_path / "run") == 2
    assert "leave columns out of the schema" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["drafted.toml", "file.csv"]


# ---------------------------------------------------------------------------------------------------------------------
# Files that should be JSON or TOML

GARBAGE = {
    "nothing": b"",
    "open brace": b"{",
    "list": b"[]",
    "null": b"null",
    "text": b"hello = 1",
    "Latin-1": "name = 'café'".encode("latin-1"),
    "NUL": b"\0" * 100,
    "UTF-16": "a = 1".encode("utf-16"),
    "deep JSON": b"[" * 100_000,
    "deep TOML": b"a = " + b"[" * 100_000,
    "deep object": b'{"a":' * 100_000,
    "a huge number": b"epsilon = " + b"9" * 5000,
}
READERS: dict[str, tuple[str, list[str]]] = {
    "a schema": ("s.toml", ["schema", "check", "GOOD", "--schema", "FILE"]),
    "SDV metadata": ("m.json", ["schema", "draft", "GOOD", "--sdv", "FILE"]),
    "a run to repeat": ("run.toml", ["simulate", "--config", "FILE", "--out", "OUT"]),
    "a plan": ("plan.toml", ["plan", "--show", "FILE"]),
    "a benchmark": ("b.toml", ["bench", "FILE", "--out", "OUT"]),
    "a model": ("model.fedsynth", ["sample", "FILE", "--rows", "3", "--out", "OUT.csv"]),
    "scores": ("private/scores.json", ["report", "FOLDER"]),
    "a run": ("run.toml", ["report", "FOLDER"]),
    "a site": ("site.toml", ["site", "check", "FOLDER"]),
    "audit rows": ("a.jsonl", ["account", "FILE", "--noted", "00"]),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_file_that_is_not_what_it_should_be_is_named(tmp_path, capsys, monkeypatch, reader, garbage):
    monkeypatch.chdir(tmp_path)
    name, command = READERS[reader]
    (tmp_path / "folder" / name).parent.mkdir(parents=True)
    (tmp_path / "folder" / name).write_bytes(GARBAGE[garbage])
    (tmp_path / "good.csv").write_bytes(GOOD)
    places = {"GOOD": "good.csv", "FILE": f"folder/{name}", "FOLDER": "folder", "OUT": "out", "OUT.csv": "out.csv"}
    assert run(*[places.get(one, one) for one in command]) in (2, 3, 8)
    said = capsys.readouterr()
    assert len(said.err + said.out) < 700
    assert "Error" not in said.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "good.csv"]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("low = 'a'\nhigh = 1", "low: expected a number, not 'a'"),
        ("low = nan\nhigh = 1", "finite"),
        ("low = 0\nhigh = inf", "finite"),
        ("low = 0\nhigh = 1e300", "another unit"),
        ("low = 0\nhigh = 1e-300", "another unit"),
        ("low = 0\nhigh = 1" + "0" * 400, "give a finite float"),
        ("low = 0\nhigh = 1\nbins = 0", "bins"),
        ("low = 0\nhigh = 1\nbins = 1e3", "bins: expected a whole number, not 1000.0"),
        ("low = 0\nhigh = 1\nbins = 1000000000000", "bins"),
        ("low = 0\nhigh = 1\nedges = ['a']", "edges: expected a number, not 'a'"),
        ("low = 0\nhigh = 1\nmissing = 1", "missing: expected true or false, not 1"),
        ("low = 0\nhigh = 1\nmissing = 'no'", "missing: expected true or false, not 'no'"),
        ("low = 1\nhigh = 0", "swap"),
    ],
)
def test_an_impossible_entry_of_a_schema_is_named(tmp_path, capsys, entry, says):
    (tmp_path / "good.csv").write_bytes(GOOD)
    (tmp_path / "s.toml").write_text(f'fedsynth_schema = 1\n[[column]]\nname = "age"\ntype = "numeric"\n{entry}\n')
    assert run("schema", "check", tmp_path / "good.csv", "--schema", tmp_path / "s.toml") == 3
    said = capsys.readouterr().err
    assert "'age'" in said
    assert says in said


@pytest.mark.parametrize(
    "metadata",
    [
        '{"columns": 1}', '{"columns": {"age": 1}}', '{"columns": {"age": {}}}', '{"tables": []}',
        '{"tables": {"a": 1}}', '{"tables": {}}', '{"columns": {}}', '{"columns": {"g": {"sdtype": "numerical"}}}',
        '{"columns": {"g": {"sdtype": "datetime"}}}', '{"columns": {"h": {"sdtype": "datetime"}}}',
        '{"columns": {"x": {"sdtype": "id"}}}',
    ],
)  # fmt: skip
def test_metadata_that_does_not_fit_is_named(tmp_path, capsys, metadata):
    (tmp_path / "good.csv").write_bytes(GOOD)
    (tmp_path / "m.json").write_text(metadata)
    assert run("schema", "draft", tmp_path / "good.csv", "--sdv", tmp_path / "m.json") == 3
    assert "metadata" in capsys.readouterr().err
