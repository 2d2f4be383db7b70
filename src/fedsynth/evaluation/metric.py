"""What a metric of evaluations is: one object with its scores, the verdicts on them, and what these mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, replace

from fedsynth.evaluation.score import EvaluationTables, Family, Measured, Score, Verdict
from fedsynth.rows import Table

_COLUMNS = (
    "they have too few columns of the type that the metric compares, no strongly associated pair, or no value that "
    "many rows share"
)
FEW_ROWS = 100  # synthetic rows; no rule applies to a comparison of fewer


@dataclass(frozen=True)
class Comparison:
    """One score of an evaluation: ``compare`` maps real rows and others to what it has :data:`Measured`.

    ``part`` tells it from other scores of the same metric ("" if it is the only one); ``note`` says what it compares.
    """

    compare: Callable[[Table, Table], Measured]
    note: str = ""
    part: str = ""


Comparisons = Callable[[Table, int], Iterator[Comparison]]


@dataclass(frozen=True)
class Rule:
    """Verdicts on the scores of a metric: ``judge`` maps a score to its verdict and the explanation.

    ``problem`` is what a verdict other than good means, for readers who do not know the metric.
    """

    problem: str
    judge: Callable[[Score], tuple[Verdict, str]]


@dataclass(frozen=True)
class Metric:
    """A metric of synthetic rows: fedsynth's own are in :data:`fedsynth.evaluation.metrics.METRICS`.

    - ``name``: what users write; ``title``: that of its scores; ``best``: the value of a perfect table, None if there
      is none.
    - ``comparisons``: maps real rows and a seed to the scores that apply to them, each a mean over random comparisons;
      ``rule``: their verdicts, None for none.
    - ``of_all``: maps the tables to one score of all rows, with its verdict; None if none applies. A metric without
      this and comparisons is computed by the evaluation itself.
    - ``needs``: why tables may have no score, in words.
    - ``first``: whether a first report has it.
    """

    name: str
    title: str
    best: float | None = None
    comparisons: Comparisons | None = None
    rule: Rule | None = None
    _: KW_ONLY
    of_all: Callable[[EvaluationTables], Score | None] | None = None
    needs: str = _COLUMNS
    first: bool = False
    family: Family = "fidelity"

    def judged(self, score: Score, rows: int) -> Score:
        """Return a score of this metric with its verdict, after a comparison of so many synthetic rows."""
        if self.rule is None or rows < FEW_ROWS:
            return score
        verdict, says = self.rule.judge(score)
        return replace(score, verdict=verdict, says=says.rstrip(), problem=self.rule.problem)
