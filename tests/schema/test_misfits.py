"""No row, value or column of a table is lost in silence: what encoding leaves out or changes is counted and said."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.command import fedsynth as run_command

import fedsynth
from fedsynth import Budget, Categorical, Numeric, Rule, Schema, encoding, federate
from fedsynth.cli.app import _warnings_to_log
from fedsynth.data.draft import draft_schema
from fedsynth.data.read import PersonLimit, check_table, read_table
from fedsynth.encoding import encode
from fedsynth.errors import DataWarning, SchemaError
from fedsynth.evaluation.evaluate import evaluate
from fedsynth.evaluation.score import EvaluationTables
from fedsynth.evaluation.settings import EvaluationSettings
from fedsynth.federation.federation import Federation
from fedsynth.federation.trusted import TrustedServer
from fedsynth.rows import concatenate
from fedsynth.runs.job import Job
from fedsynth.runs.run import run_simulated
from fedsynth.schema import (
    Stored,
)
from fedsynth.schema.misfits import Misfits

SCHEMA = Schema(
    (
        Categorical("sex", ("m", "f")),
        Numeric("age", 0, 120, integer=True),
        Categorical("job", ("cook", "nurse"), unknown="other"),
    )
)
BUDGET = ("--epsilon", 1, "--delta", 1e-6)
SECRET = "Quetzalcoatl"  # a value of a real row
HEAD = "500 of the 1000 rows do not fit the schema and are left out"
SEX = (
    "column 'sex', row 0: 'M' is not listed: row left out (500 rows); add it to values, or set unknown = 'other', "
    "which counts all unlisted values as 'other'"
)
AGE = "column 'age', row 1: '130' lies outside [0, 120]: clipped (3 rows, also '-5'); widen low and high if such"
JOB = f"column 'job', row 9: '{SECRET}' is not listed: counted as 'other' (3 rows, also 'pilot', 'poet'); add it to"
COLUMNS = "2 columns are not in the schema and ignored: 'note', 'id'"


def rows() -> pd.DataFrame:
    """1,000 rows: half have a sex that is not listed, three an age out of bounds, three a job that is not listed."""
    frame = pd.DataFrame({"sex": ["M", "f"] * 500, "age": "40", "job": "cook", "note": "text", "id": np.arange(1000)})
    frame.loc[[1, 3, 998], "age"] = ["130", "-5", "130"]
    frame.loc[[9, 11, 12], "job"] = [SECRET, "pilot", "poet"]
    return frame


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder with the table as CSV and Parquet, and its schema."""
    rows().to_csv(tmp_path / "rows.csv", index=False)
    rows().to_parquet(tmp_path / "rows.parquet", index=False)
    SCHEMA.save(tmp_path / "schema.toml")
    return tmp_path


def said(findings: list[str]) -> None:
    assert (findings[0], findings[1], findings[4]) == (HEAD, SEX, COLUMNS)
    assert findings[2].startswith(AGE)
    assert findings[3].startswith(JOB)
    assert len(findings) == 5


def federated(tables: object, schema: Schema = SCHEMA) -> Federation:
    return federate(tables, schema, Budget(1.0, 1e-6), trust=TrustedServer(), seed=0)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------------------
# The record


@pytest.mark.parametrize("chunk_rows", [1, 7, 64, 2000])
@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet"])
def test_frames_and_files_of_any_batches_have_the_same_record(files, caplog, name, chunk_rows):
    encoded = encode(SCHEMA, rows())
    assert not caplog.records  # encoding is silent
    said(encoded.findings())
    read = read_table(files / name, SCHEMA, chunk_rows=chunk_rows)
    assert read.findings() == encoded.findings()
    assert [record.getMessage() for record in caplog.records] == [f"{name}: {one}" for one in read.findings()]
    report = check_table(files / name, SCHEMA, chunk_rows=chunk_rows)
    assert (report.rows, report.left_out, report.problems) == (1000, 500, encoded.findings()[1:])
    assert encoding.problems(SCHEMA, rows()) == encoded.findings()[1:-1]


def test_each_reason_is_counted_by_itself_and_missing_values_are_one():
    schema = Schema((Categorical("a", ("x",), missing=True, unknown="missing"), Numeric("b", 0, 9, integer=True)))
    frame = pd.DataFrame({"a": ["y", None, "x", "y", "x"], "b": ["1.5", "many", "", None, "NA"]})
    found = {
        (one.column, one.wrong): (one.rows, one.handled, one.examples) for one in encode(schema, frame).misfits.found
    }
    assert found == {
        ("a", "is not listed"): (2, "counted as missing", ((0, "'y'"),)),
        ("b", "is not an integer"): (1, "row left out", ((0, "'1.5'"),)),
        ("b", "is not a number"): (1, "row left out", ((1, "'many'"),)),
        ("b", "is missing"): (3, "row left out", found["b", "is missing"][2]),
    }
    assert [row for row, _ in found["b", "is missing"][2]] == [2, 3, 4]


def test_a_table_that_fits_has_nothing_to_say(caplog, files):
    frame = pd.DataFrame({"sex": ["m"], "age": [3], "job": ["cook"]})
    frame.to_csv(files / "good.csv", index=False)
    assert encode(SCHEMA, frame).findings() == []
    assert read_table(files / "good.csv", SCHEMA).findings() == []
    assert encode(SCHEMA, frame[:0]).findings() == []
    assert not caplog.records
    assert federated([frame]).sites == ("site-000",)


def test_broken_rules_and_bounds_of_stored_columns_are_counted():
    stored = Numeric("end", 0, 200, stored=Stored(difference=("end", "start"), lower=0, upper=50))
    pair = (Categorical("a", ("x", "y")), Categorical("b", ("x", "y")))
    schema = Schema((Numeric("start", 0, 100), stored, *pair), rules=(Rule(never={"a": ["x"], "b": ["y"]}),))
    frame = pd.DataFrame({"start": [1, 2, 3, 4], "end": [2, 99, 9, 99], "a": list("xxyq"), "b": list("yxyx")})
    _, value, *broken = encode(schema, frame).findings()
    assert "'q'" in value
    assert [one.partition(";")[0] for one in broken] == [
        "rows that break 'never a = x with b = y': 1",
        "rows that break 'difference end and start from 0 to 50': 1",  # that of row 3 is left out
    ]


def test_long_values_and_many_findings_are_cut():
    schema = Schema(tuple(Numeric(f"c{k}", 0, 1) for k in range(30)))
    frame = pd.DataFrame({f"c{k}": ["z" * 5000] for k in range(30)})
    table = encode(schema, frame)
    head, *shown, more = table.findings()
    assert head.startswith("1 of the 1 rows")
    assert len(shown) == 20
    assert max(map(len, shown)) < 200
    assert more == "and 10 more such findings; fedsynth schema check lists all of them"
    assert len(table.misfits.sentences()) == len(encoding.problems(schema, frame)) == 30


def test_selections_have_no_record_and_concatenated_tables_the_sum():
    table = encode(SCHEMA, rows())
    assert table.take(np.arange(3)).findings() == []
    twice = concatenate([table, table])
    assert twice.left_out == 1000
    assert [one.rows for one in twice.misfits.found] == [1000, 6, 6]


def test_rows_beyond_a_persons_limit_are_counted_and_others_keep_their_numbers(tmp_path, caplog):
    frame = pd.DataFrame({"who": ["a", "b", "b", "b", None, "c"], "sex": ["m", "f", "f", "f", "x", "M"]})
    frame.assign(age=30, job="cook").to_csv(tmp_path / "t.csv", index=False)
    limit = PersonLimit("who", 1, bytes(32))
    table = read_table(tmp_path / "t.csv", SCHEMA, persons=limit)
    expected = [
        SEX.replace("row 0", "row 5").replace(" (500 rows)", ""),
        "3 of the 6 rows are not used: at most 1 of each 'who' are, and none without one",
    ]
    assert table.findings() == ["1 of the 3 rows do not fit the schema and are left out", *expected]
    assert check_table(tmp_path / "t.csv", SCHEMA, persons=limit).problems == expected
    assert "ignored" not in caplog.text  # the column of persons is used


# ---------------------------------------------------------------------------------------------------------------------
# What does not know of it


def test_the_record_is_part_of_no_digest_and_no_repr():
    table = encode(SCHEMA, rows())
    assert table.digest == replace(table, misfits=Misfits()).digest
    for shown in (repr(table), repr(table.misfits), repr(table.misfits.found), str(table.misfits)):
        assert SECRET not in shown
        assert "500" not in shown


def test_the_record_is_in_no_file_of_a_run(files):
    run_simulated(
        Job(
            "oneshot", 1.0, 1e-6, data=str(files / "rows.csv"), schema=str(files / "schema.toml"), sites=2, holdout=0.1
        ),
        files / "run",
    )
    done = run_command("report", files / "run")
    assert SECRET in done.stderr
    assert done.returncode == 0, done.stderr
    written = [path for path in (files / "run").rglob("*") if path.is_file()]
    assert len(written) > 5
    for path in written:
        content = path.read_bytes()
        assert SECRET.encode() not in content, path
        assert b"pilot" not in content, path


# ---------------------------------------------------------------------------------------------------------------------
# Python


def test_federate_warns_of_each_site_and_once_of_ignored_columns():
    with pytest.warns(DataWarning) as caught:
        federation = federated({"north": rows(), "south": rows()[1::2], "east": encode(SCHEMA, rows()[:2])})
    assert {Path(one.filename).name for one in caught} == {"test_misfits.py"}  # it points at the call
    north, south, east, columns = (str(one.message) for one in caught)
    first, *lines = north.split("\n- ")
    assert first == "site 'north':"
    said([*lines, COLUMNS])
    assert south.startswith("site 'south':\n- column 'age', row 0: '130' lies outside [0, 120]: clipped (2 rows, also")
    assert east.startswith("site 'east':\n- 1 of the 2 rows do not fit")
    assert columns == f"all 3 sites: {COLUMNS}"
    assert federation.sites == ("north", "south", "east")


def test_federate_names_the_sites_whose_columns_are_ignored():
    good = pd.DataFrame({"sex": ["m"], "age": [3], "job": ["cook"]})
    with pytest.warns(DataWarning) as caught:
        federated({"north": good, "south": good.assign(x=1), "east": good.assign(x=2), "west": good.assign(y=2)})
    assert [str(one.message) for one in caught] == [
        "sites south, east: 1 column is not in the schema and ignored: 'x'",
        "site west: 1 column is not in the schema and ignored: 'y'",
    ]


@pytest.mark.parametrize("encoded", [False, True])
def test_a_site_that_loses_every_row_is_an_error_with_the_reasons(encoded):
    lost = rows()[::2]
    tables = {"north": rows()[1::2], "south": encode(SCHEMA, lost) if encoded else lost}
    with pytest.raises(SchemaError) as caught:
        federated(tables)
    first, reason = str(caught.value).split("\n- ")  # what was clipped or ignored is no reason
    assert first.startswith("site 'south': none of the 500 rows fits the schema; correct the rows or the schema")
    assert reason == SEX


def test_empty_sites_are_counted_and_named():
    some = pd.DataFrame({"sex": ["m"], "age": [3], "job": ["cook"]})
    with pytest.warns(DataWarning, match=r"^2 of 4 sites have no rows \(site-001, site-003\)$"):
        federated([some, some[:0], some.assign(age=4), some[:0]])
    with pytest.warns(DataWarning, match=r"^1 of 2 sites has no rows \(site-001\)$"):
        federated([some, some[:0]])


def test_evaluations_of_frames_warn_of_changed_values_and_ignored_columns():
    real = rows()[1::2].reset_index(drop=True)
    made = real[["sex", "age", "job"]].assign(age="40", job="cook")
    with pytest.warns(DataWarning) as caught:
        fedsynth.evaluate(made, train=real, schema=SCHEMA, metrics=["column-similarity"])
    (message,) = (str(one.message) for one in caught)
    assert message.startswith("the real rows:\n- column 'age', row 0: '130' lies outside [0, 120]: clipped (2 rows")
    assert COLUMNS in message
    with pytest.raises(SchemaError, match=r"500 of the 1000 real rows do not fit .*\n- column 'sex', row 0: 'M'"):
        fedsynth.evaluate(made, train=rows(), schema=SCHEMA, metrics=["column-similarity"])


def test_evaluations_of_encoded_tables_warn_of_rows_that_were_left_out():
    whole = encode(SCHEMA, rows()[1::2])
    with pytest.warns(DataWarning) as caught:
        evaluate(EvaluationTables(encode(SCHEMA, rows()), whole), EvaluationSettings(metrics=["column-similarity"]))
    (message,) = (str(one.message) for one in caught)
    assert message.startswith(f"the scores are those of 500 of the 1000 real rows:\n- {HEAD}\n- {SEX}")
    evaluate(EvaluationTables(whole, whole), EvaluationSettings(metrics=["column-similarity"]))


def test_a_draft_names_the_columns_that_it_leaves_out():
    frame = pd.DataFrame({"age": range(3), "note": [None] * 3})
    draft = draft_schema(frame)
    assert draft.left_out == {"note": ["has no values"]}


# ---------------------------------------------------------------------------------------------------------------------
# The command line


def lines_of(text: str, name: str) -> list[str]:
    """Return what standard error says of a file, and that it says nothing else."""
    lines = text.splitlines()
    assert all(line.startswith(f"{name}: ") for line in lines), text
    return [line.removeprefix(f"{name}: ") for line in lines]


def test_simulate_and_report_say_what_schema_check_says(files):
    given = ("--schema", files / "schema.toml", "--method", "oneshot", "--sites", 2, *BUDGET)
    done = run_command("simulate", "--data", files / "rows.csv", *given, "--out", files / "run")
    assert done.returncode == 0, done.stderr
    said(lines_of(done.stderr, "rows.csv"))
    assert "rows that do not fit the schema and were left out: 500" in done.stdout
    done = run_command("report", files / "run", "--json")
    said(lines_of(done.stderr, "rows.csv"))
    assert SECRET not in done.stdout
    done = run_command("schema", "check", files / "rows.csv", "--schema", files / "schema.toml")
    assert done.returncode == 3
    *problems, verdict = done.stdout.splitlines()
    said([HEAD, *(one.removeprefix("- ") for one in problems)])
    assert verdict.startswith("1000 rows, 500 of them left out; the file does not fit")


def test_compare_and_evaluate_say_what_is_clipped_left_out_and_ignored(files):
    rows()[1::2].to_csv(files / "whole.csv", index=False)
    schema = ("--schema", files / "schema.toml")
    done = run_command(
        *("compare", "--data", files / "rows.csv", *schema, "--method", "oneshot"),
        *("--sites", 2, "--repeats", 2, *BUDGET),
    )
    assert done.returncode == 0, done.stderr
    said(lines_of(done.stderr, "rows.csv"))
    done = run_command("evaluate", files / "whole.csv", files / "whole.csv", *schema, "--out", files / "scores")
    assert done.returncode == 0, done.stderr
    clipped, recoded, columns = lines_of(done.stderr, "whole.csv")[:3]
    assert clipped.startswith("column 'age', row 0: '130' lies outside [0, 120]: clipped (2 rows, also '-5')")
    assert recoded.startswith(
        f"column 'job', row 4: '{SECRET}' is not listed: counted as 'other' (2 rows, also 'pilot')"
    )
    assert columns == COLUMNS
    done = run_command("evaluate", files / "rows.csv", files / "whole.csv", *schema, "--out", files / "none")
    assert done.returncode == 3
    assert "500 of the 1000 rows of rows.csv do not fit the schema, and scores without them" in done.stderr
    assert SEX in done.stderr


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_a_table_that_loses_every_row_is_an_error_with_the_reasons(files, command):
    rows()[::2].to_csv(files / "lost.csv", index=False)
    given = ("--data", files / "lost.csv", "--schema", files / "schema.toml", *BUDGET)
    done = run_command(command, *given, *(("--out", files / "run") if command == "simulate" else ()))
    assert done.returncode == 3
    assert not (files / "run").exists()
    first, *reasons = done.stderr.removeprefix("fedsynth: ").strip().split("\n- ")
    assert first.startswith("lost.csv: none of the 500 rows fits the schema; correct the rows or the schema")
    assert reasons == [SEX]


def test_a_drafted_schema_says_which_columns_it_leaves_out(files):
    frame = rows().assign(note=[f"note {k} of {k * k}" for k in range(1000)])
    frame.to_csv(files / "notes.csv", index=False)
    given = ("--method", "oneshot", "--sites", 2, *BUDGET, "--out", files / "run")
    done = run_command("simulate", "--data", files / "notes.csv", *given)
    assert COLUMNS in lines_of(done.stderr, "notes.csv")
    done = run_command("schema", "draft", files / "notes.csv", "--out", files / "draft.toml")
    assert "left out: note: looks like an identifier or free text" in done.stdout
    assert "left out: id: looks like a row number" in done.stdout
    assert "3 columns in" in done.stdout
    assert ", 2 left out: note, id." in done.stdout
    found = json.loads(run_command("schema", "draft", files / "notes.csv", "--json").stdout)
    assert found["left_out"] == ["note", "id"]


def test_a_file_without_any_column_of_the_schema(files):
    rows()[["note", "id"]].to_csv(files / "other.csv", index=False)
    says = (
        "other.csv has none of the 3 columns of the schema (sex, age, job), and cannot be used; give the file that "
        "the schema describes, or the schema of this file (it has note, id)"
    )
    done = run_command("schema", "check", files / "other.csv", "--schema", files / "schema.toml")
    assert done.returncode == 3
    first, columns, verdict = done.stdout.splitlines()
    assert (first, columns) == (f"- {says}", f"- {COLUMNS}")
    assert verdict.startswith("1000 rows, none of which can be used: a column is missing or cannot be read; the file")
    given = ("--schema", files / "schema.toml", *BUDGET, "--out", files / "run")
    done = run_command("simulate", "--data", files / "other.csv", *given)
    assert (done.returncode, done.stderr) == (3, f"fedsynth: {says}\n")


def test_warnings_become_lines_of_the_log_without_source_code(caplog, capsys):
    with warnings.catch_warnings():
        _warnings_to_log()
        warnings.warn("1 of 2 sites has no rows (site-001)", DataWarning, stacklevel=2)
    assert [one.getMessage() for one in caplog.records] == ["1 of 2 sites has no rows (site-001)"]
    assert "DataWarning" not in capsys.readouterr().err
