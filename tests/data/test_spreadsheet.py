"""Cells that begin like formulas: named where a schema is checked, quoted in the copy for spreadsheets."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
from tests.command import fedsynth

from fedsynth.data.read import write_frame
from fedsynth.data.spreadsheet import formula_warnings, is_formula, spreadsheet_safe
from fedsynth.encoding import decode
from fedsynth.models.mrf import MarkovRandomField
from fedsynth.models.synthesizer import Synthesizer, own_bins
from fedsynth.runs.folder import RunFolder
from fedsynth.runs.job import Job
from fedsynth.runs.run import run_simulated
from fedsynth.schema import Boolean, Categorical, Computed, Identifier, Numeric, Schema

RUN = '=HYPERLINK("http://example.org",A1)'
SCHEMA = Schema(
    (
        Categorical(
            "diagnosis", ("a", RUN, "-5", "@x", "\tb", "+", "-1+cmd|' /C calc'!A0"), missing=True, ordered=True
        ),
        Categorical("=sum", ("x", "y")),
        Categorical(
            "group", ("no", "+1", "-1 to 3"), computed=Computed(lookup="=sum", table={"x": "+1", "y": "-1 to 3"})
        ),
        Numeric("n", -10, 10),
        Boolean("b"),
        Identifier("id", "-A##########"),
    )
)


@pytest.mark.parametrize(
    "text", ["=1", "+a", "-a", "@a", "\ta", "\ra", "  =1", "-1+1", "-1-1", "＝1", "-2020-01-01", "--1"]
)
def test_text_that_begins_like_a_formula_is_one(text):
    assert is_formula(text)


@pytest.mark.parametrize(
    "text", ["", "a", "-5", "+5", "-.5", "-5.", "-1e-3", " -5 ", "-", "+", "--", "@", "'=1", "1-2", "a=b"]
)
def test_numbers_and_other_text_are_none(text):
    assert not is_formula(text)


def test_names_and_categories_that_would_run_are_warned_of():
    """Before, 392 of 1,500 rows of a made table held such cells, and nothing said so."""
    found = formula_warnings(SCHEMA)
    assert len(found) == 4
    assert found[0].startswith("4 values of column 'diagnosis' (")
    assert found[1].startswith("the name of column '=sum' would run as formulas")
    assert "'-1 to 3'" in found[2]
    assert "'-A##########'" in found[3]
    assert all("--spreadsheet-safe" in sentence for sentence in found)
    assert formula_warnings(Schema((Categorical("a", (-1, 1)), Numeric("b", -1, 1)))) == []


def cells(file: Path) -> list[str]:
    held = pd.read_csv(file, dtype=str, keep_default_na=False)
    return [*held.columns, *held.to_numpy().ravel()]


def test_in_the_copy_no_cell_runs_and_nothing_else_changes(tmp_path):
    rng = np.random.default_rng(0)
    frame = decode(SCHEMA, [rng.integers(0, size, 200) for size in SCHEMA.sizes], rng)
    before = frame.copy()
    write_frame(frame, tmp_path / "a.csv")
    write_frame(spreadsheet_safe(frame), tmp_path / "b.csv")
    pd.testing.assert_frame_equal(frame, before)
    plain, safe = cells(tmp_path / "a.csv"), cells(tmp_path / "b.csv")
    assert sum(map(is_formula, plain)) > 200
    assert not any(map(is_formula, safe))
    assert [f"'{text}" if is_formula(text) else text for text in plain] == safe


def test_sample_and_schema_check_on_the_command_line(tmp_path):
    schema = Schema(SCHEMA.columns[:1])
    model = MarkovRandomField(schema.sizes, 50.0, [(0,)], [np.zeros(schema.sizes)])
    Synthesizer(schema, own_bins(schema), model).save(tmp_path / "m.fedsynth")
    schema.save(tmp_path / "s.toml")
    drawn = ("sample", tmp_path / "m.fedsynth", "--rows", 50, "--seed", 1)
    for name, flags in (("plain.csv", ()), ("safe.csv", ("--spreadsheet-safe",))):
        assert fedsynth(*drawn, "--out", tmp_path / name, *flags).returncode == 0
    plain, safe = cells(tmp_path / "plain.csv"), cells(tmp_path / "safe.csv")
    assert any(map(is_formula, plain))
    assert not any(map(is_formula, safe))
    refused = fedsynth(*drawn, "--out", tmp_path / "x.parquet", "--spreadsheet-safe")
    assert (refused.returncode, "is for CSV files" in refused.stderr) == (2, True)
    checked = fedsynth("schema", "check", tmp_path / "plain.csv", "--schema", tmp_path / "s.toml")
    assert "- WARNING: 4 values of column 'diagnosis'" in checked.stdout
    said = fedsynth("schema", "check", tmp_path / "plain.csv", "--schema", tmp_path / "s.toml", "--json")
    assert json.loads(said.stdout)["warnings"] == formula_warnings(schema)


@pytest.mark.parametrize("format_", ["csv", "parquet"])
def test_a_run_writes_the_copy_beside_its_table(tmp_path, format_):
    rng = np.random.default_rng(0)
    schema = Schema((Categorical("a", ("x", "=1+1")), Boolean("b")))
    schema.save(tmp_path / "s.toml")
    rows = decode(schema, [rng.integers(0, size, 100) for size in schema.sizes], rng)
    rows.to_csv(tmp_path / "rows.csv", index=False)
    job = Job("oneshot", 5.0, 1e-6, data=str(tmp_path / "rows.csv"), schema=str(tmp_path / "s.toml"), sites=1)
    run_simulated(job, tmp_path / "plain")
    assert not (tmp_path / "plain" / "synthetic-spreadsheet.csv").exists()
    safe = msgspec.structs.replace(job, format=format_, spreadsheet_safe=True)
    run_simulated(safe, tmp_path / "run")
    copy = cells(tmp_path / "run" / "synthetic-spreadsheet.csv")
    assert "'=1+1" in copy
    assert "=1+1" not in copy
    assert RunFolder(tmp_path / "run").job.spreadsheet_safe
    assert "=1+1" in set(decode(schema, RunFolder(tmp_path / "run").synthetic(), rng)["a"])  # the table is as it was
