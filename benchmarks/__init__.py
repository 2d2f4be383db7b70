"""Specifications of published tables, which ``fedsynth bench`` runs, and programs that measure speed."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("FEDSYNTH_DATA", ROOT.parent / "shared" / "data"))
PAGE = ROOT / "docs" / "benchmarks.md"
