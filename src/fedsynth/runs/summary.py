"""Reads a run directory for its report."""

from __future__ import annotations

import tomllib
from pathlib import Path

from fedsynth.data.source import column_names, read_frame
from fedsynth.errors import FedsynthError
from fedsynth.evaluation.summary import RunSummary
from fedsynth.privacy.ledger import LedgerFile


def read_summary(folder: Path) -> RunSummary:
    """Return what ``fedsynth simulate`` wrote into a directory; raises :class:`FedsynthError` if it is none."""
    try:
        text = (folder / "run.toml").read_text(encoding="utf-8")
        job = tomllib.loads(text)
        ledger = LedgerFile.read(folder / "ledger.json")
    except (OSError, ValueError) as error:
        raise FedsynthError(f"{folder} is no complete run directory: {error}; run `fedsynth simulate`") from error
    if ledger.statement is None:
        raise FedsynthError(f"{folder / 'ledger.json'} has no statement of the guarantee; run the job again")
    made = job.pop("made", {})
    table = folder / f"synthetic.{job.get('format', 'csv')}"
    if not table.is_file():
        raise FedsynthError(f"{table} is missing; put it back, or run the job again")
    rows = len(read_frame(table, column_names(table)[:1]))
    return RunSummary(folder.resolve().name, job, made, ledger, rows, text)
