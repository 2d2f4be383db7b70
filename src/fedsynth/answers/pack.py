"""The answers and released tables of a run as files, for a pack and for ``fedsynth answers --tables``."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedsynth.answers.commands import run_answers
from fedsynth.answers.released import ReleasedTable, released_tables
from fedsynth.data.spreadsheet import spreadsheet_safe
from fedsynth.privacy.cost import to_json

if TYPE_CHECKING:
    from fedsynth.runs.folder import RunFolder

_MOST_LINES = 10_000  # cells of a table as text; a larger one is written as Parquet


def files(run: RunFolder) -> Mapping[str, bytes]:
    """Return what a run answered, by the names of files: answers with their intervals, and all released tables.

    Everything is a function of released answers, of the synthetic rows and of public facts.
    """
    found: dict[str, bytes] = {}
    if "answers" in run.synthesizer().info:
        facts = run_answers(run.path)
        found["answers.json"] = json.dumps(to_json(facts.to_json()), indent=1).encode()
        found["answers.csv"] = spreadsheet_safe(facts.frame).to_csv(index=False, lineterminator="\n").encode()
    return found | {f"tables/{name}": data for name, data in table_files(run.path).items()}


def table_files(folder: Path) -> dict[str, bytes]:
    """Return every contingency table that a run released as a file by name, and an index of them.

    A table has a line for each cell, with its noisy count and the standard deviation of the noise.
    """
    import pandas as pd

    from fedsynth.runs.folder import RunFolder

    found: dict[str, bytes] = {}
    index = []
    for number, table in enumerate(released_tables(RunFolder(folder))):
        name, data = _written(number, table)
        found[name] = data
        cells = " x ".join(map(str, table.shape))
        index.append({"file": name, "step": table.step, "columns": " x ".join(table.columns), "cells": cells})
    if not found:
        return {}
    lines = spreadsheet_safe(pd.DataFrame(index)).to_csv(index=False, lineterminator="\n")
    return found | {"index.csv": lines.encode()}


def _written(number: int, table: ReleasedTable) -> tuple[str, bytes]:
    frame = table.frame
    if len(frame) <= _MOST_LINES:
        return f"{number:04d}.csv", spreadsheet_safe(frame).to_csv(index=False, lineterminator="\n").encode()
    written = io.BytesIO()
    frame.to_parquet(written, index=False)
    return f"{number:04d}.parquet", written.getvalue()
