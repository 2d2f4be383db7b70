"""What an evaluation hands over: figures with their noise bands, each beside what real rows score in its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from fedsynth.errors import Unsupported
from fedsynth.rows import Table, concatenate
from fedsynth.schema import Schema

Family = Literal["fidelity", "utility", "privacy"]
Verdict = Literal["", "good", "review", "alarm"]
_BAND = 1.959964  # 95 % of a normal law


@dataclass(frozen=True)
class Measured:
    """A figure and its 95 % noise band: where it would lie with other rows from the same source."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @classmethod
    def over(cls, draws: Sequence[float]) -> Measured:
        """Return the mean of repeated draws; the band is 1.96 standard deviations of one draw to each side."""
        mean = float(np.mean(draws))
        if len(draws) < 2:
            return cls(mean)
        reach = _BAND * float(np.std(draws, ddof=1))
        return cls(mean, mean - reach, mean + reach)


@dataclass(frozen=True)
class Score:
    """One figure of a synthetic table and its ``reference``: what real rows that nobody trained on score instead.

    ``best`` is the value of a perfect table (None where there is none), ``reference_is`` says which rows the
    reference is computed from, ``note`` which rows, pairs or marginals were sampled. ``details`` gives
    synthetic and reference value by column, pair, classifier or rule; where they are there, ``synthetic.value`` is
    their mean (of rules: the share of rows that break any). ``verdict`` and ``says`` tell a reader what the figure
    means. ``metric`` is the name by which the figure is asked for, "" where it is not an evaluation's. Of an attack,
    ``bound`` is what the formal guarantee leaves to any attack of its kind, and ``p_value`` how often chance alone
    would take some figure of the evaluation as far (adjusted for their number); both are nan where there is none.
    """

    family: Family
    name: str
    synthetic: Measured
    reference: Measured
    reference_is: str
    best: float | None = None
    note: str = ""
    details: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    verdict: Verdict = ""
    says: str = ""
    metric: str = ""
    bound: float = math.nan
    p_value: float = math.nan

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready values; what is not a number is None."""
        return {
            **{name: getattr(self, name) for name in ("family", "metric", "name", "reference_is", "best", "note")},
            **{side: _triple(getattr(self, side)) for side in ("synthetic", "reference")},
            "details": {name: [_finite(one) for one in both] for name, both in self.details.items()},
            "verdict": self.verdict,
            "says": self.says,
            "bound": _finite(self.bound),
            "p_value": _finite(self.p_value),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Score:
        """Return the score that :meth:`to_json` described."""
        fields = dict(content)
        for side in ("synthetic", "reference"):
            fields[side] = Measured(*(_number(fields[side][part]) for part in ("value", "low", "high")))
        fields["details"] = {
            name: (_number(both[0]), _number(both[1])) for name, both in content.get("details", {}).items()
        }
        fields |= {name: _number(fields[name]) for name in ("bound", "p_value")}
        return cls(**fields)


def _triple(one: Measured) -> dict[str, float | None]:
    return {"value": _finite(one.value), "low": _finite(one.low), "high": _finite(one.high)}


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.nan if value is None else value


@dataclass(frozen=True, eq=False)
class Evidence:
    """The rows to judge by: those that the synthesizer was made from, rows that it never saw, and its own.

    All three under one schema, that of published values (:meth:`~fedsynth.schema.Schema.plain`): what is compared is
    what people get, whatever models held of it. ``agreed`` is the schema that was agreed on, whose rules and derived
    columns rows are held against. Without a ``holdout``, halves of the real rows stand in for it where that is
    sound, and what needs rows that the synthesizer never saw is not computed.
    """

    real: Table
    synthetic: Table
    holdout: Table | None = None
    agreed: Schema | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse what cannot be compared."""
        for name, table in (("real", self.real), ("synthetic", self.synthetic), ("hold-out", self.holdout)):
            if table is not None and len(table) < 2:
                raise Unsupported(f"the {name} table has {len(table)} rows; an evaluation needs at least 2")
            if table is not None and table.schema.digest != self.real.schema.digest:
                raise Unsupported(f"the {name} table has another schema than the real one; encode all with one")

    def sample(self, table: Table, rows: int, seed: int) -> Table:
        """Return at most ``rows`` rows of a table, drawn without replacement."""
        if len(table) <= rows:
            return table
        return table.take(np.random.default_rng(seed).choice(len(table), rows, replace=False, shuffle=False))

    @cached_property
    def reference_is(self) -> str:
        """What the reference of a fidelity score is, in words."""
        if self.holdout is None:
            return "one half of the real rows against the other"
        return "other real rows, as many"

    def trials(self, repeats: int, max_rows: int, seed: int = 0) -> Iterator[Trial]:
        """Yield ``repeats`` random comparisons on equal terms.

        The real rows (with the hold-out, if there is one) are shuffled and cut in two: one part is what
        both others are compared with, the second is the reference, as many rows as the synthetic sample.
        So the reference is what a perfect synthesizer would score, and its spread is the noise of the score.
        No side has more than ``max_rows`` rows.
        """
        pool = self.real if self.holdout is None else concatenate([self.real, self.holdout])
        held = len(self.real) // 2 if self.holdout is None else len(self.holdout)
        size = min(held, len(self.synthetic), max_rows)
        kept = min(len(pool) - held, max_rows)
        for repeat in range(repeats):
            rng = np.random.default_rng([seed, repeat])
            order = rng.permutation(len(pool))
            drawn = rng.permutation(len(self.synthetic))[:size]
            yield Trial(
                real=pool.take(order[held : held + kept]),
                reference=pool.take(order[:size]),
                synthetic=self.synthetic.take(drawn),
            )


@dataclass(frozen=True, eq=False)
class Trial:
    """One comparison: ``synthetic`` and ``reference`` have the same number of rows, ``real`` judges both."""

    real: Table
    reference: Table
    synthetic: Table


Details = Mapping[str, float]


def of_references(trials: Sequence[Trial], metric: Callable[[Table, Table], float | Details]) -> list[float | Details]:
    """Return a metric of (real, reference) by trial."""
    return [metric(trial.real, trial.reference) for trial in trials]


def over_trials(
    name: str,
    trials: Sequence[Trial],
    metric: Callable[[Table, Table], float | Details],
    *,
    family: Family = "fidelity",
    best: float | None = None,
    reference_is: str = "",
    note: str = "",
    references: Sequence[float | Details] | None = None,
) -> Score:
    """Return a metric of (real, synthetic) beside the same metric of (real, reference), repeated over trials.

    A metric that returns details, by column or pair, has their mean as its headline. ``references`` are its values of
    (real, reference) by trial, for whoever has them.
    """
    if references is None:
        references = of_references(trials, metric)
    both = list(zip([metric(trial.real, trial.synthetic) for trial in trials], references, strict=True))
    values = np.array([[_mean(one) for one in pair] for pair in both])
    details: dict[str, tuple[float, float]] = {}
    first = both[0][0]
    if isinstance(first, Mapping):
        details = {
            key: (float(np.mean([s[key] for s, _ in both])), float(np.mean([r[key] for _, r in both])))  # type: ignore[index]
            for key in first
        }
    return Score(
        family,
        name,
        Measured.over(values[:, 0].tolist()),
        Measured.over(values[:, 1].tolist()),
        reference_is,
        best,
        note,
        details,
    )


def _mean(value: float | Details) -> float:
    return float(np.mean(list(value.values()))) if isinstance(value, Mapping) else float(value)


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number, in their order (Holm 1979)."""
    order = np.argsort(p, kind="stable")
    scaled = np.maximum.accumulate(np.array(p)[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(scaled, 1.0)
    return [float(one) for one in adjusted]
