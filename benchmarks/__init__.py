"""Specifications of published tables for ``fedsynth bench``, and programs that measure speed and size."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("FEDSYNTH_DATA", ROOT.parent / "shared" / "data"))
PAGE = ROOT / "benchmarks" / "tables.md"


def specifications() -> list[Path]:
    """Return the files of all specifications: those of papers' tables, then further comparisons."""
    return [*sorted((ROOT / "benchmarks" / "papers").glob("*.toml")), *sorted((ROOT / "benchmarks").glob("*.toml"))]
