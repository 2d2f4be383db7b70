"""What an evaluation writes into a run's directory, and reads from it: scores and the report."""

from __future__ import annotations

import csv
import io
import json
import tomllib
from pathlib import Path

from fedsynth.data.read import column_names, read_frame
from fedsynth.errors import FedsynthError
from fedsynth.evaluation.evaluate import Evaluation
from fedsynth.evaluation.report import render_report
from fedsynth.evaluation.summary import RunSummary
from fedsynth.files import load_object, read_text, refuse_format, write_whole
from fedsynth.runs.folder import RunFolder, written_kind

SCORES_FORMAT = 1


def run_summary(run: RunFolder) -> RunSummary:
    """Return what a report says about the run itself: its job, its guarantee, its costs and its number of rows.

    Raises :class:`~fedsynth.errors.FedsynthError` if one of the files that it needs is missing.
    """
    run.require(run.run_file, run.ledger_file, run.table_file)
    ledger, said = run.ledger, tomllib.loads(run.job.to_toml())
    kind = written_kind(run.table_file)
    rows = len(read_frame(run.table_file, column_names(run.table_file, records=kind)[:1], records=kind))
    text, hidden = read_text(run.run_file), run.hidden()
    return RunSummary(run.path.resolve().name, said, run.made, ledger, rows, text, hidden)


def read_scores(run: RunFolder) -> Evaluation:
    """Return the evaluation in ``scores.json``.

    Raises :class:`~fedsynth.errors.FedsynthError` for a file of other content or of another version, and
    ``OSError`` if it is missing.
    """
    mend = "measure again with `fedsynth report --fresh`, or `fedsynth evaluate --force` if it has no run.toml"
    try:
        content = load_object(run.scores_file, "scores of fedsynth")
        refuse_format(content.pop("format", None), SCORES_FORMAT, str(run.scores_file), mend)
        return Evaluation.from_json(content)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FedsynthError(f"{run.scores_file} holds no scores of this version; {mend}") from error


def write_scores(run: RunFolder, evaluation: Evaluation) -> None:
    """Write ``scores.json`` (everything) and ``scores.csv`` (a line per score); make the directory if needed."""
    run.path.mkdir(parents=True, exist_ok=True)
    content = {"format": SCORES_FORMAT, **evaluation.to_json()}
    write_whole(run.scores_file, json.dumps(content, indent=1, allow_nan=False))
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    sides = ("synthetic", "reference")
    numbers = [f"{side}{part}" for side in sides for part in ("", "_low", "_high")]
    writer.writerow(["family", "name", *numbers, "best", "verdict", "bound", "p_value", "reference_is", "note"])
    for score in evaluation.scores:
        bands = [(side.value, side.low, side.high) for side in (score.synthetic, score.reference)]
        values = [value for band in bands for value in band]
        ends = [score.best, score.verdict, score.bound, score.p_value, score.reference_is, score.note]
        writer.writerow([score.family, score.name, *values, *ends])
    write_whole(run.path / "scores.csv", text.getvalue())


def write_report(run: RunFolder, evaluation: Evaluation) -> Path:
    """Write ``report.html`` from an evaluation, with the run's costs if a run wrote the directory; return its path.

    Raises :class:`~fedsynth.errors.FedsynthError` if a run wrote the directory and its ledger is missing or
    damaged, or its synthetic rows are missing; its other files are not needed.
    """
    write_whole(run.page, render_report(evaluation, run_summary(run) if run.is_run else None))
    return run.page
