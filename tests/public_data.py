"""Public data sets that are not in the repository: where tests look for them, and what a test says without."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("FEDSYNTH_DATA") or Path(__file__).parents[2] / "shared" / "data")
ABSENT = "public data set not found: "


def public_data(name: str) -> Path:
    """Return the path of a data set's file, or skip the test that needs it; the run counts such tests at its end."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"{ABSENT}{name}")
    return path
