"""The answers to declared questions as a run keeps them, and how far its synthetic table is from each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np

from fedsynth.answers.declared import Declared, compiled, read_declared
from fedsynth.answers.questions import AUC, Answer, AnyQuestion, NoisyTable, Scope
from fedsynth.answers.ranges import Range
from fedsynth.answers.scorer import Scorer
from fedsynth.errors import FedsynthError
from fedsynth.rows import Table
from fedsynth.schema import Schema
from fedsynth.schema.columns import Numeric

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal["met", "not met", "cannot be told"]


class _SavedRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    column: Annotated[int, msgspec.Meta(ge=0)]
    low: float
    high: float
    centre: float
    edges: list[float]
    cumulated: list[float]

    def range(self, schema: Schema) -> Range:
        """Return the range; raises :class:`FedsynthError` for one that is none of its column's."""
        if self.column >= len(schema.stored) or not isinstance(column := schema.stored[self.column], Numeric):
            raise _damaged(f"column {self.column} is none of numbers")
        edges, cumulated = np.array(self.edges), np.array(self.cumulated)
        fits = column.low <= self.low <= self.centre <= self.high <= column.high
        if len(edges) < 2 or edges.shape != cumulated.shape or not np.isfinite([*edges, *cumulated]).all():
            fits = False
        if not fits or (np.diff(edges) < 0).any() or (np.diff(cumulated) < 0).any():
            raise _damaged(f"the range of {column.name!r} is none")
        return Range(self.low, self.high, self.centre, edges, cumulated)


class _SavedTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    values: list[float]
    std: Annotated[float, msgspec.Meta(ge=0)]


class _SavedLater(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    values: list[float]
    std: Annotated[float, msgspec.Meta(ge=0)]


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Answers in a model's file."""

    declared: dict[str, Any]
    ranges: tuple[_SavedRange, ...]
    tables: tuple[_SavedTable, ...]
    answers: tuple[Answer, ...]
    later: dict[str, _SavedLater] = {}
    scorers: dict[str, Scorer] = {}


class Judged(msgspec.Struct, frozen=True):
    """How a ``criterion`` is met: the synthetic table's largest distance from the answers, and what it may be.

    The real rows' distance lies between ``low`` and ``high`` with 95 % confidence, over all answers of the criterion
    together; ``None`` where an answer is refused.
    """

    criterion: str
    estimand: str
    tolerance: float
    verdict: Verdict
    distance: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, eq=False)
class Answers:
    """The ``answers`` to the ``declared`` questions, with the released ``tables`` and the ``ranges`` of clipping.

    ``later`` has one more table for each question, by name, that was asked after those, and ``scorers`` what was fitted
    to the synthetic rows for some of them.
    """

    declared: Declared
    ranges: Mapping[int, Range]
    tables: tuple[NoisyTable, ...]
    answers: tuple[Answer, ...]
    later: Mapping[str, NoisyTable] = field(default_factory=dict)
    scorers: Mapping[str, Scorer] = field(default_factory=dict)

    @classmethod
    def of(
        cls, declared: Declared, schema: Schema, ranges: Mapping[int, Range], tables: Sequence[NoisyTable]
    ) -> Answers:
        """Return the answers that follow from released tables."""
        scope = Scope(schema, declared.cuts, ranges)
        return cls(declared, ranges, tuple(tables), tuple(_answered(declared.all, scope, tables, {})))

    def tables_of(self, schema: Schema) -> dict[str, Sequence[NoisyTable]]:
        """Return the released tables by question, those that were asked later at the end."""
        return _by_question(self.declared.all, self.scope(schema), self.tables, self.later)

    def with_later(self, schema: Schema, question: str, table: NoisyTable, scorer: Scorer | None = None) -> Answers:
        """Return these answers with one more released table of a question."""
        later = {**self.later, question: table}
        scorers = self.scorers if scorer is None else {**self.scorers, question: scorer}
        found = tuple(_answered(self.declared.all, self.scope(schema), self.tables, later))
        return Answers(self.declared, self.ranges, self.tables, found, later, scorers)

    def scope(self, schema: Schema) -> Scope:
        """Return what the questions refer to."""
        return Scope(schema, self.declared.cuts, self.ranges)

    @cached_property
    def by_question(self) -> dict[str, list[Answer]]:
        """The answers by the name of their question."""
        found: dict[str, list[Answer]] = {}
        for answer in self.answers:
            found.setdefault(answer.question, []).append(answer)
        return found

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each answer: question, label, value, interval, half-widths by noise and by sampling, estimand."""
        import pandas as pd

        return pd.DataFrame([msgspec.to_builtins(answer) for answer in self.answers])

    def _repr_html_(self) -> str:
        return str(self.frame.to_html(index=False))

    def exact(self, table: Table) -> list[Answer]:
        """Return what a ``table`` itself answers, without noise: the same estimands over its rows."""
        scope, schema = self.scope(table.schema), table.schema
        tables: list[NoisyTable] = []
        if self.tables:
            query = compiled(self.declared.all, scope)
            tables = [NoisyTable(of, 0.0) for of in query.split(schema, query.answer(table))]
        later: dict[str, NoisyTable] = {}
        for asked in self.declared.all:
            if isinstance(asked, AUC) and asked.name in self.scorers:
                scores = self.scorers[asked.name].query(schema, asked.of)
                (counts,) = scores.split(schema, scores.answer(table))
                later[asked.name] = NoisyTable(counts, 0.0)
        return _answered(self.declared.all, scope, tables, later)

    def judged(self, table: Table) -> list[Judged]:
        """Return how a synthetic ``table`` meets each criterion, compared with the real rows through their answers."""
        of_table: dict[str, list[float | None]] = {}
        for answer in self.exact(table):
            of_table.setdefault(answer.question, []).append(answer.value)
        scope, released = self.scope(table.schema), self.tables_of(table.schema)
        judged = []
        for asked in self.declared.criterion:
            answers = self.by_question[asked.name]
            z = NormalDist().inv_cdf(1 - 0.025 / len(answers))  # Bonferroni: all hold together with 95 %
            bounds = asked.bounds(answers, scope, released[asked.name], z)
            judged.append(_judged(asked, of_table[asked.name], answers, bounds))
        return judged

    def to_json(self) -> dict[str, Any]:
        """Return the answers as JSON values, as a model's file keeps them."""
        ranges = tuple(
            _SavedRange(at, of.low, of.high, of.centre, of.edges.tolist(), of.cumulated.tolist())
            for at, of in self.ranges.items()
        )
        tables = tuple(_SavedTable(table.values.ravel().tolist(), table.std) for table in self.tables)
        declared = {name: value for name, value in msgspec.to_builtins(self.declared).items() if value}
        later = {
            name: _SavedLater(of.values.shape, of.values.ravel().tolist(), of.std) for name, of in self.later.items()
        }
        saved = _Saved(declared, ranges, tables, self.answers, later, dict(self.scorers))
        found: dict[str, Any] = msgspec.to_builtins(saved, str_keys=True)
        return found

    @classmethod
    def from_json(cls, content: Any, schema: Schema) -> Answers:
        """Return the answers of :meth:`to_json`; raises :class:`~fedsynth.errors.FedsynthError` for other values."""
        try:
            saved = msgspec.convert(content, _Saved, str_keys=True)
        except msgspec.ValidationError as error:
            raise _damaged(str(error)) from error
        declared = read_declared(saved.declared)
        declared.check(schema)
        ranges = {of.column: of.range(schema) for of in saved.ranges}
        if declared.looked_at(schema).keys() != ranges.keys():
            raise _damaged("they have other ranges than questions")
        scope = Scope(schema, declared.cuts, ranges)
        some = any(asked.parts(scope) for asked in declared.all)
        shapes = compiled(declared.all, scope).shapes(schema) if some else []
        if [math.prod(shape) for shape in shapes] != [len(table.values) for table in saved.tables]:
            raise _damaged("they have other tables than questions")
        if any(math.prod(of.shape) != len(of.values) for of in saved.later.values()):
            raise _damaged("a later table has another shape")
        tables = tuple(
            NoisyTable(np.array(table.values).reshape(shape), table.std)
            for table, shape in zip(saved.tables, shapes, strict=True)
        )
        later = {name: NoisyTable(np.array(of.values).reshape(of.shape), of.std) for name, of in saved.later.items()}
        expected = _answered(declared.all, scope, [NoisyTable(np.zeros_like(of.values), 0.0) for of in tables], {})
        if [(of.question, of.label) for of in expected] != [(of.question, of.label) for of in saved.answers]:
            raise _damaged("they answer other questions")
        scored = {asked.name: asked for asked in declared.all if isinstance(asked, AUC)}
        for name, scorer in saved.scorers.items():
            if name not in scored:
                raise _damaged("a scorer belongs to no question")
            scorer.query(schema, scored[name].of).check(schema)
        return cls(declared, ranges, tables, saved.answers, later, saved.scorers)


def _damaged(why: str) -> FedsynthError:
    return FedsynthError(f"the model's answers are damaged or of another version ({why}); make the run again")


def _by_question(
    questions: Sequence[AnyQuestion], scope: Scope, tables: Sequence[NoisyTable], later: Mapping[str, NoisyTable]
) -> dict[str, Sequence[NoisyTable]]:
    found: dict[str, Sequence[NoisyTable]] = {}
    begin = 0
    for asked in questions:
        end = begin + len(asked.parts(scope))
        found[asked.name] = [*tables[begin:end], *([later[asked.name]] if asked.name in later else [])]
        begin = end
    return found


def _answered(
    questions: Sequence[AnyQuestion], scope: Scope, tables: Sequence[NoisyTable], later: Mapping[str, NoisyTable]
) -> list[Answer]:
    by_question = _by_question(questions, scope, tables, later)
    return [answer for asked in questions for answer in asked.answered(scope, by_question[asked.name])]


def _judged(
    asked: AnyQuestion,
    of_table: Sequence[float | None],
    answers: Sequence[Answer],
    bounds: Sequence[tuple[float, float]],
) -> Judged:
    """Compare what the synthetic table says with the answers, and with the ``bounds`` of the real rows' own values."""
    assert asked.tolerance is not None
    lows, highs, distances = [0.0], [0.0], [0.0]
    for value, answer, within in zip(of_table, answers, bounds, strict=True):
        if value is None or answer.value is None or not np.isfinite([value, *within]).all():
            return Judged(asked.name, asked.words, asked.tolerance, "cannot be told", None, None, None)
        least, most = within
        distances.append(abs(value - answer.value))
        lows.append(max(0.0, least - value, value - most))
        highs.append(max(value - least, most - value))
    low, high = max(lows), max(highs)
    verdict: Verdict = "met" if high <= asked.tolerance else "not met" if low > asked.tolerance else "cannot be told"
    return Judged(asked.name, asked.words, asked.tolerance, verdict, max(distances), low, high)


def answers_text(answers: Sequence[Answer]) -> str:
    """Return answers as a table for people: each with its interval, and half-widths by noise and by sampling."""
    lines = []
    for answer in answers:
        name = answer.question + (f": {answer.label}" if answer.label else "")
        if answer.value is None:
            lines.append((name, "refused", answer.refused))
        else:
            shown = [_shown(number, answer.half_width) for number in (answer.value, answer.low, answer.high)]
            parts = [_shown(number, answer.half_width) for number in (answer.noise, answer.sampling)]
            lines.append((name, shown[0], f"[{shown[1]}, {shown[2]}]  noise {parts[0]}, sampling {parts[1]}"))
    first, second = (max((len(line[side]) for line in lines), default=0) for side in (0, 1))
    return "\n".join(f"{name:<{first}}  {value:>{second}}  {rest}" for name, value, rest in lines)


def agreement_text(answered: int, outside: Sequence[tuple[Answer, float]]) -> str:
    """Return in how many of the ``answered`` intervals the synthetic rows lie, and each of the others."""
    lines = [f"The synthetic rows lie in {answered - len(outside)} of {answered} intervals."]
    for answer, value in outside:
        name = answer.question + (f": {answer.label}" if answer.label else "")
        lines.append(f"outside: {name}: {_shown(value, answer.half_width)} in the synthetic rows")
    return "\n".join(lines)


def judged_text(judged: Sequence[Judged]) -> str:
    """Return the verdicts on criteria as lines for people."""
    lines = []
    for judgement in judged:
        if judgement.distance is None or judgement.low is None or judgement.high is None:
            lines.append(f"{judgement.verdict}: {judgement.criterion}: an answer is refused, as said above")
            continue
        width = judgement.high - judgement.low
        shown = [_shown(number, width) for number in (judgement.distance, judgement.low, judgement.high)]
        lines.append(
            f"{judgement.verdict}: {judgement.criterion}: {shown[0]} apart, the real rows between {shown[1]} and "
            f"{shown[2]} (95 %); tolerance {judgement.tolerance:g}"
        )
    return "\n".join(lines)


def _shown(number: float | None, width: float) -> str:
    """Return a number with the digits that an interval of this half-width leaves meaningful."""
    assert number is not None
    digits = 0 if not 0 < width < math.inf else max(0, 1 - math.floor(math.log10(width)))
    return f"{number:,.{min(digits, 6)}f}"
