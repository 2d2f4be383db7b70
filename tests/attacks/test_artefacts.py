"""What the files of a run give away to whoever reads them, and what they promise beside it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
from tests.attacks.world import DIAGNOSES, SCHEMA, frame

from fedsynth.encoding import encode
from fedsynth.rows import concatenate
from fedsynth.runs.folder import RunFolder
from fedsynth.runs.job import Job
from fedsynth.runs.run import run_simulated


def run(folder: Path, rows: pd.DataFrame, *, schema: bool) -> Path:
    """Return the folder of a small run over rows in a file, under the agreed schema or under none."""
    rows.to_csv(folder / "rows.csv", index=False)
    SCHEMA.save(folder / "schema.toml")
    agreed = str(folder / "schema.toml") if schema else ""
    job = Job("oneshot", 1.0, 1e-6, data=str(folder / "rows.csv"), schema=agreed, sites=2, trust="local")
    run_simulated(job, folder / "run")
    return folder / "run"


def test_a10_no_file_confirms_a_guess_about_a_row(tmp_path):
    """Somebody who knows all rows but one cannot find the last one by trying: no digest of rows is without a key."""
    folder = run(tmp_path, frame(30, target=True), schema=True)
    made = "".join(path.read_text() for path in folder.iterdir() if path.suffix in (".toml", ".json"))
    guesses = pd.DataFrame(itertools.product("fm", DIAGNOSES, map(float, range(100))), columns=list(SCHEMA.names))
    known, tried = encode(SCHEMA, frame(30)), encode(SCHEMA, guesses)
    found = [at for at in range(len(guesses)) if concatenate([known, tried.take(np.array([at]))]).digest in made]
    assert [guesses.iloc[at].to_dict() for at in found] == []


def test_a10_the_key_of_the_digest_is_its_owners(tmp_path):
    """The key with which a guess could be confirmed lies in a file of its own, readable by its owner only."""
    folder = run(tmp_path, frame(30), schema=True)
    key = RunFolder(folder).rows_key
    assert key.stat().st_mode & 0o077 == 0
    others = [path for path in folder.iterdir() if path.is_file() and path != key]
    assert [path.name for path in others if key.read_bytes().strip() in path.read_bytes()] == []


def test_a11_a_run_whose_schema_shows_rows_does_not_claim_to_hide_them(tmp_path):
    """A guarantee is stated only where nothing published was read off the rows; a drafted schema is named beside it."""
    rows = frame(200, target=True)
    rows.loc[rows["diagnosis"] == "rare", "diagnosis"] = "Foo-Bar syndrome"
    folder = run(tmp_path, rows, schema=False)
    assert "draft = true" in (folder / "schema.toml").read_text()
    statement = json.dumps(json.loads((folder / "ledger.json").read_text())["statement"])
    assert "draft" in statement.lower()
    assert "schema" in statement.lower()
    assert "private" not in (folder / "run.toml").read_text().lower()  # the statement alone makes the claim
