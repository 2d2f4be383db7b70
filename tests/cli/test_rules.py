"""From a CSV file with impossible rows to a published table without any, by the commands that people type."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from tests import telco
from tests.command import invoke


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    data, schema = telco.write(tmp_path, 1500, 0)
    frame = pd.read_csv(data)
    frame.loc[:9, "end"] = "2018-01-01"
    frame.loc[20:22, ["internet", "tv"]] = ["no", "yes"]
    frame.to_csv(data, index=False)
    return data, schema


def run(*arguments: object) -> str:
    result = invoke(arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_impossible_rows_do_not_reach_the_published_table(files, tmp_path):
    data, schema = files
    said = run("schema", "check", data, "--schema", schema)
    assert "rows that break 'difference end and begin from 0 to 365 day': 10" in said
    assert "rows that break 'never internet = no with tv = no, yes': 3" in said
    assert "1500 rows, 0 of them left out; the file fits" in said

    out = tmp_path / "run"
    job = ["--data", data, "--schema", schema, "--sites", 3, "--epsilon", 1, "--delta", 1e-6, "--seed", 1]
    job += ["--target", "online", "--holdout", 0.2]
    found = json.loads(run("simulate", *job, "--out", out, "--json"))
    (score,) = (one for one in found["scores"] if one["metric"] == "validity")
    assert score["synthetic"]["value"] == 0
    assert 0 < score["reference"]["value"] <= 3 / 1200  # what is stored is clipped: the ten rows break nothing
    assert {"learning", "workload-error"} <= {one["metric"] for one in found["scores"]}
    assert 0 <= found["rows_redrawn"] < 0.2
    published = pd.read_csv(out / "synthetic.csv")
    assert list(published.columns) == [column.name for column in telco.SCHEMA.columns]
    assert telco.broken(published) == {}

    assert "rows that break a rule" in run("report", out)
    assert "rows that break a rule" in (out / "private" / "report.html").read_text()
    run("evaluate", data, out / "synthetic.csv", "--schema", schema, "--out", tmp_path / "scores")
    scores = json.loads((tmp_path / "scores" / "private" / "scores.json").read_text())["scores"]
    (score,) = (one for one in scores if one["metric"] == "validity")
    assert score["reference"]["value"] == pytest.approx(13 / 1500, abs=2e-3)
    assert score["details"]["never internet = no with tv = no, yes"] == [0.0, pytest.approx(3 / 1500, abs=1e-3)]


def test_more_rows_and_conditions(files, tmp_path):
    data, schema = files
    out, more = tmp_path / "run", tmp_path / "more.parquet"
    job = ["--data", data, "--schema", schema, "--sites", 2, "--epsilon", 1, "--delta", 1e-6, "--seed", 0]
    run("simulate", *job, "--method", "fedchowliu", "--rows", 50, "--out", out)
    found = json.loads(
        run("sample", out / "model.fedsynth", "--rows", 400, "--where", "internet=no", "--out", more, "--json")
    )
    assert set(found) == {"rows", "file", "redrawn"}
    assert telco.broken(pd.read_parquet(more)) == {}
    arguments = ["sample", out / "model.fedsynth", "--rows", 9, "--where", "total=1..2", "--out", more]
    refused = invoke(arguments)
    assert refused.exit_code == 3
    assert "the model represents the ratio of total and tenure" in refused.output
