"""Evaluations of runs: measures a finished simulation, and writes and reads scores and report in its directory."""

from __future__ import annotations

import contextlib
import csv
import datetime
import io
import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import msgspec

from fedsynth.data.read import column_names, read_frame
from fedsynth.encoding import encode, publish
from fedsynth.errors import FedsynthError
from fedsynth.evaluation.evaluate import evaluate
from fedsynth.evaluation.report import Evaluation, ReportTitle, render_report
from fedsynth.evaluation.score import EvaluationTables
from fedsynth.evaluation.settings import FIRST_REPORT, EvaluationSettings
from fedsynth.evaluation.summary import RunSummary
from fedsynth.files import load_object, private_folder, read_text, refuse_format, write_whole
from fedsynth.privacy.cost import Unit
from fedsynth.progress import Progress, ignore_progress
from fedsynth.rows import Table, concatenate
from fedsynth.runs.folder import RunFolder, written_kind
from fedsynth.runs.job import DEMO_DATA

if TYPE_CHECKING:
    from fedsynth.runs.run import SimulatedRun
    from fedsynth.runs.split import Split

SCORES_FORMAT = 1


def run_summary(run: RunFolder) -> RunSummary:
    """Return what a report says about the run itself; raises :class:`FedsynthError` if a file of it is missing."""
    run.require(run.run_file, run.ledger_file, run.table_file)
    ledger, said = run.ledger, tomllib.loads(run.job.to_toml())
    kind = written_kind(run.table_file)
    rows = len(read_frame(run.table_file, column_names(run.table_file, records=kind)[:1], records=kind))
    return RunSummary(run.path.resolve().name, said, run.made, ledger, rows, read_text(run.run_file), run.card())


def read_scores(run: RunFolder) -> Evaluation:
    """Return the evaluation in ``scores.json``.

    Raises :class:`~fedsynth.errors.FedsynthError` for other content, ``OSError`` if the file is missing.
    """
    mend = "measure again with `fedsynth report --fresh`, or `fedsynth evaluate --force` if it has no run.toml"
    try:
        content = load_object(run.scores_file, "scores of fedsynth")
        refuse_format(content.pop("format", None), SCORES_FORMAT, str(run.scores_file), mend)
        return Evaluation.from_json(content)
    except (msgspec.MsgspecError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise FedsynthError(f"{run.scores_file} holds no scores of this version; {mend}") from error


def write_scores(run: RunFolder, evaluation: Evaluation) -> None:
    """Write ``scores.json`` (everything) and ``scores.csv`` (a line per score); make the directories if needed."""
    run.path.mkdir(parents=True, exist_ok=True)
    private_folder(run.private)
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
    write_whole(run.scores_table, text.getvalue())


def write_report(run: RunFolder, evaluation: Evaluation) -> Path:
    """Write ``report.html`` from an evaluation, with the run's costs if a run wrote the directory; return its path.

    Raises :class:`~fedsynth.errors.FedsynthError` if the run's ledger or its synthetic rows are missing or damaged.
    """
    private_folder(run.private)
    write_whole(run.page, render_report(evaluation, run_summary(run) if run.is_run else None))
    return run.page


# ---------------------------------------------------------------------------------------------------------------------
# Measuring a run


def today() -> str:
    """Return the date of today in ISO 8601, for the title block of a report."""
    return datetime.date.today().isoformat()


def run_evidence(run: RunFolder) -> EvaluationTables:
    """Return the rows that the sites of a finished simulated run had, and its synthetic ones.

    Raises :class:`~fedsynth.errors.FedsynthError` if the data file is missing or has changed, or if real sites held the
    rows.
    """
    return _evidence(run.rows(), run.synthetic())


def measure_run(
    run: RunFolder,
    evidence: EvaluationTables,
    settings: EvaluationSettings = FIRST_REPORT,
    progress: Progress = ignore_progress,
) -> Evaluation:
    """Evaluate a finished simulated run under its own guarantee; ``evidence`` is its :func:`run_evidence`.

    The target is by default the job's own. Raises :class:`~fedsynth.errors.FedsynthError` if a file of the run is
    missing.
    """
    summary = run_summary(run)
    asked = msgspec.structs.replace(
        settings,
        target=settings.target or run.job.target,
        guarantee=summary.guarantee,
        unit=Unit(**summary.statement["unit"]),
        neighbours=summary.statement["neighbours"],
    )
    found = evaluate(evidence, asked, log_likelihood=run.synthesizer().log_likelihood, progress=progress)
    return replace(found, about=ReportTitle(data=data_name(run.job.data), date=today()))


def title_of(run: RunFolder) -> ReportTitle:
    """Return the title block of the scores in a folder; an empty one if there are none that this version can read."""
    with contextlib.suppress(FileNotFoundError, FedsynthError):
        return read_scores(run).about
    return ReportTitle()


def data_name(data: str) -> str:
    """Return what a report calls the data of a job: a file's name, or a database table's, never its address."""
    if data == DEMO_DATA:
        return "the RAND Health Insurance Experiment"
    if "://" in data:
        return parse_qs(urlsplit(data).query).get("table", [""])[0]
    return Path(data).name


def _evidence(rows: Split, synthetic: Table) -> EvaluationTables:
    """Return the rows of a simulation as they are published, beside the published synthetic ones."""
    schema = rows.schema
    holdout = None if rows.holdout is None else publish(schema, rows.holdout)
    return EvaluationTables(publish(schema, concatenate(rows.sites)), synthetic, holdout, agreed=schema)


def report_run(folder: Path, progress: Progress) -> tuple[Path, Evaluation]:
    """Measure a finished simulated run, and write its scores and its report; return the report's path and the scores.

    Raises the errors of :func:`run_evidence` and :func:`measure_run`.
    """
    run = RunFolder(folder)
    evaluation = measure_run(run, run_evidence(run), progress=progress)
    write_scores(run, evaluation)
    return write_report(run, evaluation), evaluation


def first_look(outcome: SimulatedRun, target: str, progress: Progress) -> Evaluation:
    """Compute the scores that `fedsynth simulate` shows at its end: those of a first report, from one comparison.

    Raises :class:`~fedsynth.errors.Unsupported` for tables of fewer than 2 rows.
    """
    rows = outcome.rows
    return evaluate(
        _evidence(rows, encode(rows.schema.plain(), outcome.synthetic)),
        EvaluationSettings(target=target, repeats=1),
        log_likelihood=outcome.synthesizer.log_likelihood,
        progress=progress,
    )
