"""Scores with 95 % intervals, each beside the same score of real rows; and the tables that an evaluation compares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import msgspec
import numpy as np

from fedsynth.errors import Unsupported, number_of
from fedsynth.evaluation.persons import count_persons, take_persons
from fedsynth.persons import UNKNOWN
from fedsynth.privacy.cost import Number
from fedsynth.rows import Table, concatenate
from fedsynth.schema import Schema

Family = Literal["fidelity", "utility", "privacy"]
Verdict = Literal["", "good", "review", "alarm"]
_BAND = 1.959964  # 95 % of a normal law


def _number(value: float | None) -> float:
    return math.nan if value is None else value


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval from ``low`` to ``high``, called its band in reports; both are nan if unknown."""

    value: Number
    low: Number = math.nan
    high: Number = math.nan

    def __post_init__(self) -> None:
        """Read ``null`` in a file as nan."""
        for name in ("value", "low", "high"):
            object.__setattr__(self, name, _number(getattr(self, name)))

    @classmethod
    def over(cls, draws: Sequence[float]) -> Estimate:
        """Return the mean of repeated measurements (``draws``) of one figure, with a band of how much one varies.

        The band is 1.96 sample standard deviations on each side: that of five independent normal draws holds a sixth in
        85 % of cases. It is unknown (nan) for a single measurement.
        """
        mean = float(np.mean(draws))
        if len(draws) < 2:
            return cls(mean)
        reach = _BAND * float(np.std(draws, ddof=1))
        return cls(mean, mean - reach, mean + reach)


@dataclass(frozen=True)
class Score:
    """One score of a synthetic table, and its ``reference``: the same score of real rows instead of synthetic ones.

    Scores are plain data: they can be made of any numbers, such as released answers, without a table of rows.

    - ``name``: its title; ``metric``: its name in :data:`fedsynth.evaluation.metrics.METRICS`.
    - ``reference_is``: the rows that the reference is computed from, in words, "" without one; ``best``: the value of a
      perfect table, None if there is none; ``note``: the rows, pairs or marginals that were sampled.
    - ``details``: maps each column, set of columns, value of a column, learner, attacker or rule to its (synthetic,
      reference) value; ``synthetic.value`` is their mean or, if they are tested, a :class:`Summary`.
    - ``verdict``: "good", "review" (somebody should look at it), "alarm", or "" for none; ``says``: its explanation.
    - ``problem``: what a verdict other than good means, for readers who do not know the metric.
    - ``off``: the details that an alarm is about, by name.
    - ``bound``: for an attack, the largest value that the formal guarantee allows any attack of its kind; ``p_value``:
      the one-sided p-value of being worse than the reference, adjusted for the number of privacy figures. nan for none.
    """

    family: Family
    name: str
    synthetic: Estimate
    reference: Estimate = Estimate(math.nan)
    reference_is: str = ""
    best: float | None = None
    note: str = ""
    details: Mapping[str, tuple[Number, Number]] = field(default_factory=dict)
    verdict: Verdict = ""
    says: str = ""
    off: tuple[str, ...] = ()
    metric: str = ""
    bound: Number = math.nan
    p_value: Number = math.nan
    problem: str = ""

    def __post_init__(self) -> None:
        """Read ``null`` in a file as nan."""
        details = {name: (_number(both[0]), _number(both[1])) for name, both in self.details.items()}
        for name, value in (("details", details), ("bound", _number(self.bound)), ("p_value", _number(self.p_value))):
            object.__setattr__(self, name, value)

    def to_json(self) -> dict[str, Any]:
        """Return the score as JSON values (:func:`to_json`)."""
        content: dict[str, Any] = to_json(self)
        return content


def to_json(value: Any) -> Any:
    """Return what dataclasses of an evaluation hold as JSON values; nan and infinity become None."""
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=float))


@dataclass(frozen=True)
class Findings:
    """One part of an evaluation: ``scores``, ``notes`` on how they were made, and what is ``missing``, with reasons."""

    scores: list[Score] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class EvaluationTables:
    """The tables of an evaluation: ``real`` training rows, ``synthetic`` rows, and a ``holdout`` of other real rows.

    All three have the same schema, that of published values (:meth:`~fedsynth.schema.Schema.plain`). ``agreed`` is the
    schema agreed on by the sites, whose rules and bounds of derived columns are checked, and not at all if it is None.
    The synthesizer never saw the rows of ``holdout``. Without one, references of fidelity compare one half of the real
    rows with the other, and scores that need unseen rows are not computed. If real and hold-out rows have persons
    (:attr:`Table.persons <fedsynth.rows.Table.persons>`), real rows are drawn and split by person.

    Raises :class:`Unsupported` for a table with fewer than 2 rows (or persons) or with another schema, for persons in
    only one of the two tables, for a row without a person, and for a person with rows in both tables.
    """

    real: Table
    synthetic: Table
    holdout: Table | None = None
    agreed: Schema | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Raise :class:`Unsupported` for a table with fewer than 2 rows or with another schema."""
        for name, table in (("real", self.real), ("synthetic", self.synthetic), ("hold-out", self.holdout)):
            if table is not None and len(table) < 2:
                raise Unsupported(
                    f"the {name} table has {number_of(len(table), 'row')}; an evaluation needs at least 2"
                )
            if table is not None and table.schema.digest != self.real.schema.digest:
                raise Unsupported(f"the {name} and the real table have different schemas; encode all with the same")
        self._check_persons()

    def _check_persons(self) -> None:
        sides = {"real": self.real} if self.holdout is None else {"real": self.real, "hold-out": self.holdout}
        known = {name: table.persons[: len(table)] for name, table in sides.items() if table.persons is not None}
        if known and len(known) < len(sides):
            raise Unsupported("only one of the real and the hold-out table has persons; read both with their column")
        for name, persons in known.items():
            if nameless := int((persons == UNKNOWN).sum()):
                raise Unsupported(
                    f"rows of the {name} table without a person: {nameless}; fill in the column that identifies "
                    "persons, or remove these rows"
                )
            if (persons == persons[0]).all():
                raise Unsupported(f"the {name} table has the rows of one person; an evaluation needs at least 2")
        if self.holdout is not None and known and len(both := np.intersect1d(known["real"], known["hold-out"])):
            raise Unsupported(
                f"{len(both)} of the {len(np.unique(known['hold-out']))} persons in the hold-out table also have rows "
                "in the real table, so the synthesizer has seen them; hold out all rows of a person or none, as "
                "`fedsynth simulate --person COLUMN --holdout 0.2` does"
            )

    @property
    def by_person(self) -> bool:
        """Whether the persons of the real rows are known."""
        return self.real.persons is not None

    def sample(self, table: Table, rows: int, seed: int) -> Table:
        """Return at most ``rows`` rows of a table, drawn without replacement; the table itself if it has no more."""
        if len(table) <= rows:
            return table
        return table.take(np.random.default_rng(seed).choice(len(table), rows, replace=False, shuffle=False))

    @cached_property
    def reference_is(self) -> str:
        """The rows that the references of fidelity scores are computed from, in words for a report."""
        if self.holdout is None:
            return f"one half of the {'persons' if self.by_person else 'real rows'} against the other"
        return f"the same number of {'real rows of other persons' if self.by_person else 'other real rows'}"

    def trials(self, repeats: int, max_rows: int, seed: int = 0) -> Iterator[Resample]:
        """Yield ``repeats`` trials: random synthetic rows, and equally many real ones, to compare with other real rows.

        For each trial the real rows (with the hold-out, if there is one) are shuffled by ``seed`` and split in two, by
        person if rows have persons. The first part is what both are compared with; the second is the reference, cut to
        as many rows as the synthetic sample. So the reference has the score of a perfect synthesizer, and its spread is
        the noise of the score. No part has more than ``max_rows`` rows.
        """
        pool = self.real if self.holdout is None else concatenate([self.real, self.holdout])
        if self.by_person:
            yield from self._trials_by_person(pool, repeats, max_rows, seed)
            return
        held = len(self.real) // 2 if self.holdout is None else len(self.holdout)
        size = min(held, len(self.synthetic), max_rows)
        kept = min(len(pool) - held, max_rows)
        for repeat in range(repeats):
            rng = np.random.default_rng([seed, repeat])
            order = rng.permutation(len(pool))
            drawn = rng.permutation(len(self.synthetic))[:size]
            yield Resample(
                real=pool.take(order[held : held + kept]),
                reference=pool.take(order[:size]),
                synthetic=self.synthetic.take(drawn),
            )

    def _trials_by_person(self, pool: Table, repeats: int, max_rows: int, seed: int) -> Iterator[Resample]:
        persons = count_persons(pool)
        held = persons // 2 if self.holdout is None else count_persons(self.holdout)
        for repeat in range(repeats):
            rng = np.random.default_rng([seed, repeat])
            order = rng.permutation(persons)
            others, compared = (take_persons(pool, part) for part in (order[:held], order[held:]))
            size = min(len(others), len(self.synthetic), max_rows)
            yield Resample(
                real=compared.take(rng.permutation(len(compared))[:max_rows]),
                reference=others.take(rng.permutation(len(others))[:size]),
                synthetic=self.synthetic.take(rng.permutation(len(self.synthetic))[:size]),
            )


@dataclass(frozen=True, eq=False)
class Resample:
    """One comparison of an evaluation: ``synthetic`` and ``reference`` rows are both compared with ``real`` rows.

    ``synthetic`` and ``reference`` have equally many rows; the reference consists of real rows that are not in
    ``real``.
    """

    real: Table
    reference: Table
    synthetic: Table


Details = Mapping[str, float]


@dataclass(frozen=True)
class Summary:
    """A figure with details of which it is not the mean, such as the share of column pairs that pass a test."""

    value: float
    details: Details


Measured = float | Details | Summary
"""What a metric returns of two tables: a number, details of which the mean is meant, or a number with its details."""


def of_references(trials: Sequence[Resample], metric: Callable[[Table, Table], Measured]) -> list[Measured]:
    """Return the metric of the real and the reference rows of each :class:`Resample`, in order."""
    return [metric(trial.real, trial.reference) for trial in trials]


def over_trials(
    name: str,
    trials: Sequence[Resample],
    metric: Callable[[Table, Table], Measured],
    *,
    family: Family = "fidelity",
    best: float | None = None,
    reference_is: str = "",
    note: str = "",
    references: Sequence[Measured] | None = None,
) -> Score:
    """Return a score: a metric of real and synthetic rows, as a mean over trials, beside that of other real rows.

    ``metric`` maps two tables, real rows first, to what it has :data:`Measured`. ``references`` are its values of real
    and reference rows for each trial, if already computed (:func:`of_references`). There must be at least one trial.
    """
    if references is None:
        references = of_references(trials, metric)
    sides = [[metric(trial.real, trial.synthetic) for trial in trials], list(references)]
    synthetic, reference = (
        {key: float(np.mean([_details(one)[key] for one in side])) for key in _details(side[0])} for side in sides
    )
    return Score(
        family,
        name,
        Estimate.over([value_of(one) for one in sides[0]]),
        Estimate.over([value_of(one) for one in sides[1]]),
        reference_is,
        best,
        note,
        {key: (value, reference[key]) for key, value in synthetic.items()},
    )


def value_of(measured: Measured) -> float:
    """Return the one number of what a metric has :data:`Measured`: of details alone, their mean."""
    if isinstance(measured, Summary):
        return measured.value
    return float(np.mean(list(measured.values()))) if isinstance(measured, Mapping) else float(measured)


def _details(measured: Measured) -> Details:
    if isinstance(measured, Summary):
        return measured.details
    return measured if isinstance(measured, Mapping) else {}


def holm(p: Sequence[float]) -> list[float]:
    """Return the p-values of several tests of one family, adjusted by Holm's method (Holm 1979), in the given order."""
    order = np.argsort(p, kind="stable")
    scaled = np.maximum.accumulate(np.array(p)[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(scaled, 1.0)
    return [float(one) for one in adjusted]
