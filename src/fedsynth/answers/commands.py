"""``fedsynth answers``: the answers of a run with their intervals, and what its released tables say besides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fedsynth.cli.options import say
from fedsynth.errors import FedsynthError, InvalidParameter, Unsupported

if TYPE_CHECKING:
    from fedsynth.answers.results import Answers, Judged


def answers(run: Path, condition: str = "", /, *, tables: Path | None = None, json_: bool = False) -> None:
    r"""Show a run's answers to declared questions, each with its interval.

    Questions are declared in a run's settings ([[question]] and [[criterion]] of job.toml). Each answer has an interval
    for 95 %, and the half-widths by the noise alone and by the sampling of the rows alone. A criterion is met, not met,
    or cannot be told. With a condition, the share and the number of rows that meet it are estimated from the noisy
    tables that the run released, if one of them holds it. Nothing here spends any budget.

    Examples:

      fedsynth answers run

      fedsynth answers run "readmitted=yes & age>=70"

      fedsynth answers run --tables tables

    Parameters
    ----------
    run
        Folder of a finished run: that of `fedsynth simulate`, or runs/NAME in the folder of a federation.
    condition
        Condition on rows: terms such as age>=70, sex=f, ward=a|b or bill=100..200, joined by &.
    tables
        Folder to write, with every contingency table that the run released as a CSV file: a line for each cell, with
        its noisy count and the standard deviation of the noise.
    """
    from fedsynth.answers.results import answers_text
    from fedsynth.runs.folder import RunFolder

    folder = RunFolder(run)
    folder.require(folder.run_file, folder.model_file, folder.schema_file, folder.transcript)
    if tables is not None and condition:
        raise InvalidParameter(f"--tables writes all tables: leave out {condition!r}, or --tables")
    if tables is not None:
        written = write_tables(folder, tables)
        say(json_, {"tables": [str(path) for path in written]}, f"{len(written)} tables in {tables}/")
        return
    if condition:
        from fedsynth.answers.released import estimate, released_tables

        found = estimate(released_tables(folder), folder.schema, condition)
        say(json_, {"answers": [msgspec.to_builtins(answer) for answer in found]}, answers_text(found))
        return
    facts = run_answers(run)
    say(json_, facts.to_json(), facts.text)


@dataclass(frozen=True, eq=False)
class RunAnswers:
    """The answers of a run, and how its synthetic table meets the criteria."""

    answers: Answers
    judged: Sequence[Judged]

    def to_json(self) -> dict[str, Any]:
        """Return answers and verdicts as JSON values."""
        return {
            "answers": [msgspec.to_builtins(answer) for answer in self.answers.answers],
            "criteria": [msgspec.to_builtins(one) for one in self.judged],
        }

    @property
    def text(self) -> str:
        """Answers and verdicts for people."""
        from fedsynth.answers.results import answers_text, judged_text

        explained = (
            "95 % intervals, with half-widths by the run's noise and by the sampling of the rows. Numbers of rows and "
            "totals at the sites have no sampling error."
        )
        parts = [answers_text(self.answers.answers), explained, judged_text(self.judged)]
        return "\n\n".join(filter(None, parts))


def run_answers(run: Path) -> RunAnswers:
    """Return the answers of a finished run in a folder; raises :class:`Unsupported` if it declared no questions."""
    from fedsynth.answers.results import Answers
    from fedsynth.encoding import store
    from fedsynth.runs.folder import RunFolder

    folder = RunFolder(run)
    folder.require(folder.run_file, folder.model_file, folder.schema_file, folder.table_file)
    content = folder.synthesizer().info.get("answers")
    if content is None:
        raise Unsupported(
            f"{run} declared no questions; add [[question]] to its settings and run it anew, or ask for a condition: "
            f'fedsynth answers {run} "age>=70"'
        )
    answers = Answers.from_json(content, folder.schema)
    judged = answers.judged(store(folder.schema, folder.synthetic())) if answers.declared.criterion else []
    return RunAnswers(answers, judged)


def write_tables(folder: Any, out: Path) -> list[Path]:
    """Write every contingency table that a run released as a CSV file into a new folder, and return the files."""
    from fedsynth.answers.released import released_tables
    from fedsynth.files import write_whole

    found = released_tables(folder)
    if not found:
        raise Unsupported(f"{folder.path} released no contingency tables; its method releases other statistics")
    if out.exists():
        raise FedsynthError(f"{out} exists; choose another folder for the tables")
    out.mkdir(parents=True)
    written = []
    for number, table in enumerate(found):
        path = out / f"{number:04d}-step-{table.step}.csv"
        write_whole(path, table.frame.to_csv(index=False))
        written.append(path)
    return written
