"""The script of a pack that reads it in R: the types and values of the table, as Python reads them from Parquet."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from tests.publish.world import DETAILS, simulate

from fedsynth.publish.pack import publish_run

RSCRIPT = shutil.which("Rscript")
pytestmark = pytest.mark.skipif(RSCRIPT is None, reason="R is not installed; make r does it (Debian, as root)")
SCRIPT = """
source("read.R")
table <- read_pack()
text <- as.data.frame(lapply(table, function(column) {
  if (inherits(column, "POSIXct")) format(column, "%Y-%m-%d %H:%M:%S", tz = "UTC") else as.character(column)
}), check.names = FALSE)
kinds <- lapply(table, function(column) class(column))
cat(jsonlite::toJSON(list(
  kinds = kinds, columns = text, levels = lapply(table, levels), names = names(table), book = codebook(table)
), dataframe = "columns", na = "null", digits = NA))
"""


def in_r(pack: Path, script: str) -> subprocess.CompletedProcess[str]:
    assert RSCRIPT is not None
    return subprocess.run(
        [RSCRIPT, "--vanilla", "-e", script], cwd=pack, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reader")
    return publish_run(simulate(folder), folder / "pack", DETAILS).pack


def test_r_reads_the_table_with_its_types(pack):
    done = in_r(pack, SCRIPT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    expected = pd.read_parquet(pack / "data" / "synthetic.parquet")
    assert found["names"] == list(expected.columns)
    assert found["kinds"]["ward"] == ["ordered", "factor"]
    assert found["kinds"]["=plan"] == ["factor"]
    assert found["levels"]["=plan"] == ["=1+1", "basic", "-none-", "other"]
    assert found["kinds"]["came"] == found["kinds"]["seen"] == ["POSIXct", "POSIXt"]
    assert found["kinds"]["age"] == found["kinds"]["bill"] == ["numeric"]
    assert found["kinds"]["alive"] == ["logical"]
    columns = {name: pd.Series(values) for name, values in found["columns"].items()}
    for name in ("id", "sex", "=plan", "ward"):
        assert columns[name].tolist() == expected[name].astype(str).tolist(), name
    for name in ("age", "bill"):
        assert pd.to_numeric(columns[name]).equals(expected[name].astype(float)), name
    alive = expected["alive"].astype(object).map({True: "TRUE", False: "FALSE"}).fillna("")
    assert columns["alive"].fillna("").tolist() == alive.tolist()
    for name in ("came", "seen"):
        read, told = (pd.to_datetime(one[name], utc=True) for one in (columns, expected))
        assert read.equals(told.astype(read.dtype)), name
    assert found["book"]["column"] == found["names"]


def test_r_says_that_a_table_does_not_fit_its_codebook(pack, tmp_path):
    copy = tmp_path / "pack"
    shutil.copytree(pack, copy)
    lines = (copy / "data" / "synthetic.csv").read_text().splitlines()
    (copy / "data" / "synthetic.csv").write_text("\n".join(lines[:-1]) + "\n")
    done = in_r(copy, 'source("read.R"); read_pack()')
    assert done.returncode != 0
    assert "does not fit data/codebook.json" in done.stderr
