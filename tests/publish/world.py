"""Rows and details with texts that spreadsheets, HTML, YAML and Turtle would take for their own, and a run of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from tests.command import invoke

from fedsynth.schema import Boolean, Categorical, Datetime, Numeric, Schema
from fedsynth.schema.forms import Identifier

PLANTED = ("Zaphod Beeblebrox", "ZQ-99417", "31415926", "zaphods-folder")
DETAILS = {
    "title": 'Stays & "nights": a \\ table',
    "publisher": "Health <Office>",
    "licence": "CC-BY-4.0",
    "region": "Upper 'Austria'",
    "contact": "data@example.org",
    "purpose": "teaching # not decisions",
    "url": "https://example.org/stays",
}
SCHEMA = Schema(
    (
        Identifier("id", "P-#####"),
        Categorical("sex", ("f", "m")),
        Categorical("=plan", ("=1+1", "basic", "-none-"), unknown="other"),
        Numeric("age", 0, 110, integer=True, missing=True),
        Numeric("bill", 0, 5000, decimals=2),
        Datetime("came", "2024-01-01", "2025-01-01", unit="D"),
        Datetime("seen", "2024-01-01", "2025-01-01", unit="min", timezone="Europe/Vienna", missing=True),
        Categorical("ward", ("a", "b"), ordered=True),
        Boolean("alive", missing=True),
    )
)


def rows(number: int, seed: int = 0) -> pd.DataFrame:
    """Return rows that hold, in columns and values beyond the schema, what must never be seen."""
    rng = np.random.default_rng(seed)
    days = pd.to_timedelta(rng.integers(0, 366, number), "D")
    frame = pd.DataFrame(
        {
            "sex": rng.choice(["f", "m"], number),
            "=plan": rng.choice(["=1+1", "basic", "-none-"], number),
            "age": rng.integers(0, 100, number).astype(float),
            "bill": rng.uniform(0, 4000, number).round(2),
            "came": (pd.Timestamp("2024-01-01") + days).strftime("%Y-%m-%d"),
            "seen": (pd.Timestamp("2024-01-01T12:30Z") + days).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "ward": rng.choice(["a", "b"], number),
            "alive": rng.choice(["yes", "no", ""], number),
            "name": PLANTED[0],
        }
    )
    frame.loc[0, "=plan"] = PLANTED[1]
    frame.loc[1, "bill"] = float(PLANTED[2])
    frame.loc[2:40, "age"] = np.nan
    return frame


def simulate(folder: Path, *more: object) -> Path:
    """Simulate a run over the planted rows; return its folder."""
    home = folder / PLANTED[3]
    home.mkdir(parents=True)
    rows(900).to_csv(home / "rows.csv", index=False)
    SCHEMA.save(home / "agreed.toml")
    words = ("simulate", "--data", home / "rows.csv", "--schema", home / "agreed.toml", "--epsilon", 2)
    done = invoke([*words, "--delta", "1e-6", "--sites", 3, "--method", "oneshot", "--out", folder / "run", *more])
    assert done.exit_code == 0, done.output
    return folder / "run"


def content(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder by path."""
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
