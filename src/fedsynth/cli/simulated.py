"""The result of a simulated run with its scores, for ``fedsynth simulate`` and ``demo``, and its text for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsynth import errors
from fedsynth.cli.options import redrawn_text, score_table
from fedsynth.models.card import certainty_text
from fedsynth.plugins import named
from fedsynth.privacy.cost import to_json
from fedsynth.progress import Progress
from fedsynth.runs.job import Job
from fedsynth.runs.run import SimulatedRun, run_simulated

if TYPE_CHECKING:
    from fedsynth.evaluation.score import Score


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """The results of a simulated run of a ``job``, with its ``scores`` beside those of real rows.

    ``unmeasured`` says which scores are missing, and why; ``files`` are the names of the files in the run's folder, and
    ``page`` is its report; ``None`` without one. ``answers`` are those to declared questions
    (:class:`~fedsynth.answers.commands.RunAnswers`); ``None`` without any.
    """

    job: Job
    run: SimulatedRun
    scores: tuple[Score, ...]
    unmeasured: str
    files: tuple[str, ...]
    page: Path | None
    answers: Any = None

    @property
    def redrawn(self) -> float:
        """The share of the synthetic rows that were drawn again since they broke a rule."""
        return float(self.run.synthetic.attrs.get("redrawn", 0.0))

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values, as ``--json`` prints it."""
        run = self.run
        return {
            "out": str(run.folder),
            "rows": len(run.synthetic),
            "columns": list(run.synthetic.columns),
            "schema_drafted_from_data": run.rows.schema.drafted,
            "rows_left_out": run.rows.left_out,
            "rows_redrawn": self.redrawn,
            "scores": [score.to_json() for score in self.scores],
            "not_measured": self.unmeasured,
            "lost_sites": run.lost,
            "ledger": run.ledger.to_json(),
            "statement": run.statement.to_json(),
            "warnings": run.statement.warnings,
            "limitations": to_json(run.synthesizer.limitations),
            "report": None if self.page is None else str(self.page),
            **({} if self.answers is None else self.answers.to_json()),
        }


def simulated(job: Job, out: Path, *, force: bool, progress: Progress, report: bool = False) -> SimulationResult:
    """Run a job over simulated sites, and score its result; with ``report``, write its scores and its report as well.

    Raises the errors of :func:`~fedsynth.runs.run.run_simulated`. Rows that cannot be scored are no error without
    ``report``, since the run is complete.
    """
    run = run_simulated(job, out, force=force, progress=progress)
    page, evaluation, unmeasured = None, None, ""
    if report:
        page, evaluation = named("fedsynth.evaluation.run_files:report_run")(out, progress)
    else:
        try:
            evaluation = named("fedsynth.evaluation.run_files:first_look")(run, job.target, progress)
            unmeasured = " ".join(note for note in evaluation.notes if note.startswith("Utility was not measured by"))
        except errors.Unsupported as error:
            unmeasured = str(error)
    scores = () if evaluation is None else tuple(evaluation.scores)
    files = tuple(sorted(path.name for path in out.iterdir()))
    answers = named("fedsynth.answers.commands:run_answers")(out) if job.declared else None
    return SimulationResult(job, run, scores, unmeasured, files, page, answers)


def result_text(result: SimulationResult) -> str:
    """Return the result of a simulated run as text: the run, its scores, its files, and what to do next."""
    out = result.run.folder
    lines = ["\n\n".join(filter(None, _paragraphs(result)))]
    if result.scores:
        alarms = "".join(f"\nALARM: {score.name}: {score.says}" for score in result.scores if score.verdict == "alarm")
        lines.append(
            f"\n{score_table(list(result.scores))}{alarms}\n{result.unmeasured}".rstrip()
            + "\n(computed on real rows, which only a simulation has: "
            "these scores are not private, do not publish them)"
        )
    else:
        lines.append(f"\nNo scores were computed: {result.unmeasured}")
    lines.append(f"\nIn {out}/: {', '.join(result.files)}")
    lines.append(f"Open {result.page}" if result.page is not None else f"Next: fedsynth report {out}")
    return "\n".join(lines)


def _paragraphs(result: SimulationResult) -> Iterator[str]:
    """Yield the summary of a simulated run in paragraphs, without its scores; what is lost comes first."""
    run, job = result.run, result.job
    limits = run.synthesizer.limitations
    if run.rows.schema.drafted:
        yield (
            "WARNING: the schema is a draft derived from the data. The guarantee below does NOT cover its bounds and "
            "categories. For anything but a trial, edit the schema, delete its line draft = true, and pass --schema."
        )
    if run.rows.left_out:
        yield f"rows that do not fit the schema and were left out: {run.rows.left_out}; see `fedsynth schema check`"
    if limits is not None:
        yield "\n".join(limits.loud)
    rows, columns = run.synthetic.shape
    sites = ", ".join(job.site) or job.partition
    yield "\n".join(
        filter(
            None,
            [
                f"{errors.number_of(rows, 'synthetic row')} of {errors.number_of(columns, 'column')}",
                redrawn_text(result.redrawn),
                f"by {job.method} over {errors.number_of(job.sites, 'site')} ({sites}), trust: {job.trust}",
                f"sites that dropped out: {', '.join(run.lost)}" if run.lost else "",
            ],
        )
    )
    yield str(run.ledger)
    card = run.synthesizer.card
    proved = [] if card.guarantee is None else [certainty_text(card.certainty, card.unknown)]
    yield "\n".join([*proved, run.statement.text])
    if limits is not None:
        yield "\n".join(limits.quiet)
    if result.answers is not None:
        yield result.answers.text
