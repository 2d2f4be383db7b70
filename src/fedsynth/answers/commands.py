"""``fedsynth answers``: the answers of a run with their intervals, and what its released tables say besides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from fedsynth.cli.options import say
from fedsynth.errors import FedsynthError, InvalidParameter, Unsupported

if TYPE_CHECKING:
    import pandas as pd

    from fedsynth.answers.questions import Answer
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
        Folder to write, with every contingency table that the run released as a CSV file (Parquet above 10,000 cells):
        a line for each cell, with its noisy count and the standard deviation of the noise.
    """
    from fedsynth.answers.results import answers_text
    from fedsynth.runs.folder import RunFolder

    folder = RunFolder(run)
    folder.require(folder.run_file, folder.model_file, folder.schema_file, folder.transcript)
    if tables is not None and condition:
        raise InvalidParameter(f"--tables writes all tables: leave out {condition!r}, or --tables")
    if tables is not None:
        written = write_tables(run, tables)
        many = f"{len(written) - 1} tables and index.csv, which lists them, in {tables}/"
        say(json_, {"tables": [str(path) for path in written]}, many)
        return
    if condition:
        found = run_estimate(run, condition)
        say(json_, {"answers": [msgspec.to_builtins(answer) for answer in found]}, answers_text(found))
        return
    facts = run_answers(run)
    say(json_, facts.to_json(), facts.text)


@dataclass(frozen=True, eq=False)
class RunAnswers:
    """The answers of a run, what its synthetic ``rows`` say in their place, and how these meet the criteria.

    ``rows`` has an entry for each answer: the synthetic table's own value, ``None`` where it has none.
    """

    answers: Answers
    rows: Sequence[float | None]
    judged: Sequence[Judged]

    @property
    def outside(self) -> list[tuple[Answer, float]]:
        """The answers whose interval does not hold the value of the synthetic rows, with that value."""
        pairs = zip(self.answers.answers, self.rows, strict=True)
        return [
            (answer, value)
            for answer, value in pairs
            if value is not None and answer.low is not None and answer.high is not None
            if not answer.low <= value <= answer.high
        ]

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each answer, as :attr:`Answers.frame`, with what the synthetic rows say: ``in_rows``."""
        return self.answers.frame.assign(in_rows=np.array(self.rows, dtype=np.float64))

    def to_json(self) -> dict[str, Any]:
        """Return answers and verdicts as JSON values."""
        pairs = zip(self.answers.answers, self.rows, strict=True)
        return {
            "answers": [{**msgspec.to_builtins(answer), "in_rows": value} for answer, value in pairs],
            "criteria": [msgspec.to_builtins(one) for one in self.judged],
        }

    @property
    def text(self) -> str:
        """Answers and verdicts for people."""
        from fedsynth.answers.results import agreement_text, answers_text, judged_text

        explained = (
            "95 % intervals, with half-widths by the run's noise and by the sampling of the rows. Numbers of rows and "
            "totals at the sites have no sampling error."
        )
        told = sum(answer.low is not None for answer in self.answers.answers)
        agreed = agreement_text(told, self.outside)
        parts = [answers_text(self.answers.answers), explained, agreed, judged_text(self.judged)]
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
    table = store(folder.schema, folder.synthetic())
    return RunAnswers(answers, [answer.value for answer in answers.exact(table)], answers.judged(table))


def run_estimate(run: Path, condition: str) -> list[Answer]:
    """Return the share and the number of rows that meet a condition, from the tables that a finished run released.

    Raises :class:`Unsupported` where no released table holds the condition.
    """
    from fedsynth.answers.released import estimate, released_tables
    from fedsynth.runs.folder import RunFolder

    folder = RunFolder(run)
    folder.require(folder.run_file, folder.schema_file, folder.transcript)
    return estimate(released_tables(folder), folder.schema, condition)


def write_tables(run: Path, out: Path) -> list[Path]:
    """Write every contingency table that a run released into a new folder, and return the files.

    Raises :class:`Unsupported` for a run that released none.
    """
    from fedsynth.answers.pack import table_files
    from fedsynth.files import write_whole

    found = table_files(run)
    if not found:
        raise Unsupported(f"{run} released no contingency tables; its method releases other statistics")
    if out.exists():
        raise FedsynthError(f"{out} exists; choose another folder for the tables")
    out.mkdir(parents=True)
    for name, data in found.items():
        write_whole(out / name, data)
    return [out / name for name in found]
