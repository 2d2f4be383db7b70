"""What declared questions would cost and how wide their intervals would be, from runs over random rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from fedsynth.answers.asking import ask, parts_of
from fedsynth.answers.declared import Declared, read_declared
from fedsynth.answers.questions import Answer, AnyQuestion, Sites
from fedsynth.answers.results import Answers
from fedsynth.errors import InvalidParameter
from fedsynth.runs.dry_run import TABLES, dealt, dry_run

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.runs.job import Job
    from fedsynth.schema import Schema


class ExpectedAnswer(msgspec.Struct, frozen=True):
    """A declared question in ``words`` with its ``price``, and the half-widths of its widest interval that to expect.

    ``half_width`` is that of the interval and ``noise`` that by the noise alone, the median over random tables;
    ``None`` where most of these refuse an answer, since groups are too small there. ``price`` is a part of the budget.
    """

    question: str
    words: str
    price: float
    half_width: float | None
    noise: float | None


@dataclass(frozen=True)
class _Asking:
    """A method that asks the declared questions, and fits nothing."""

    declared: Declared

    def fit(self, federation: Federation) -> Answers:
        return ask(self.declared, federation)[1]


def expected_answers(job: Job, schema: Schema, rows: int) -> list[ExpectedAnswer]:
    """Return what to expect of a job's declared questions in a run over ``rows`` rows, without reading any.

    Raises :class:`~fedsynth.errors.InvalidParameter` for a question whose interval would be wider than it says
    (``within``) on every one of the random tables, and for a criterion with a tolerance below twice its half-width by
    the noise, which could hardly be met.
    """
    if not job.declared:
        return []
    declared: Declared = read_declared(job.declared)
    tried: list[Answers] = []
    for seed, make in enumerate(make for shape, make in TABLES.items() if shape != "equal"):
        table = make(schema, rows, np.random.default_rng(seed))
        tried.append(dry_run(_Asking(declared), job.terms(schema), dealt(table, job.sites, seed), seed=seed)[1])
    _, *parts = parts_of(declared, bool(declared.looked_at(schema)))
    whole = sum(asked.weight * (1 + isinstance(asked, Sites)) for asked in declared.all)
    each = declared.answer_share * sum(parts) / whole
    forecasts = []
    for asked in declared.all:
        answers = [of.by_question[asked.name] for of in tried]
        half = [max(answer.half_width for answer in some) for some in answers]
        noise = [max(_noise(answer) for answer in some) for some in answers]
        _check(asked, min(half), min(noise))
        price = each * asked.weight * (1 + isinstance(asked, Sites))  # whose tables are asked for first
        forecasts.append(ExpectedAnswer(asked.name, asked.words, price, _typical(half), _typical(noise)))
    return forecasts


def _noise(answer: Answer) -> float:
    return math.inf if answer.noise is None else answer.noise


def _typical(widths: Sequence[float]) -> float | None:
    typical = statistics.median_low(widths)
    return typical if math.isfinite(typical) else None


def _check(asked: AnyQuestion, half: float, noise: float) -> None:
    """Refuse a question that could not be met on any of the random tables; ``inf``: all of them refuse an answer."""
    remedy = "ask fewer questions, raise answer_share or epsilon, or name a larger group"
    if asked.within is not None and asked.within < half < math.inf:
        raise InvalidParameter(
            f"the question {asked.name!r} wants a half-width of {asked.within:g}, and at least {half:.3g} is to be "
            f"expected; {remedy}"
        )
    if asked.tolerance is not None and asked.tolerance < 2 * noise < math.inf:
        raise InvalidParameter(
            f"the criterion {asked.name!r} has a tolerance of {asked.tolerance:g}, below twice the half-width to be "
            f"expected by the noise ({noise:.3g}), so that it could hardly be met; raise it to {2 * noise:.2g}, or "
            f"{remedy}"
        )


def expected_text(expected: Sequence[ExpectedAnswer], share: float) -> str:
    """Return what to expect of declared questions as text for people."""
    lines = [f"Declared questions, for {share:.0%} of the budget (half-widths over random rows, which are not yours):"]
    for answer in expected:
        width = "half-width not known from random rows"
        if answer.half_width is not None and answer.noise is not None:
            width = f"half-width {answer.half_width:.3g}, by noise alone {answer.noise:.3g}"
        lines.append(f"  {answer.question}: {answer.words}; {answer.price:.2%} of the budget; {width}")
    return "\n".join(lines)
