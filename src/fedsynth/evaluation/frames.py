"""The evaluation of data frames, as `fedsynth.evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from fedsynth.errors import SchemaError
from fedsynth.evaluation.evaluate import evaluate as measure
from fedsynth.evaluation.score import Evidence

if TYPE_CHECKING:
    from fedsynth.evaluation.evaluate import LogLikelihood
    from fedsynth.privacy.cost import Budget
    from fedsynth.rows import Table
    from fedsynth.schema import Schema


def evaluate(
    real: pd.DataFrame,
    synthetic: pd.DataFrame,
    schema: Schema,
    *,
    metrics: Sequence[str] | None = None,
    holdout: pd.DataFrame | None = None,
    target: str = "",
    sensitive: str = "",
    known: Sequence[str] = (),
    guarantee: Budget | None = None,
    log_likelihood: LogLikelihood | None = None,
    suites: Sequence[str] = ("default",),
    repeats: int = 5,
    max_rows: int = 20_000,
    seed: int = 0,
) -> pd.DataFrame:
    """Return what a synthetic table scores beside what real rows score in its place, as ``fedsynth evaluate`` does.

    ``real`` are the rows that the synthesizer was made from, ``holdout`` rows that it never saw: without them halves of
    the real rows stand in where that is sound. ``target`` is the column that classifiers learn to predict. ``metrics``
    names what to measure, as in ``["column-similarity", "wasserstein", "membership-inference"]``; None is everything
    that the tables allow. The other options are those of :func:`fedsynth.evaluation.evaluate.evaluate`.

    The frame has the columns ``metric``, ``score`` (its title; some metrics have several), ``column``, ``value`` and
    ``reference``. A score's first line has "" for its column; where it is a mean over columns, pairs or learners, a
    line for each of them follows. ``frame.attrs["notes"]`` says what was sampled, and what was not measured and why.
    The scores are computed from real rows without noise: they are not private.

    Values are compared as they are published, those of derived columns too; what models held in their place plays no
    part. A computed column that ``real`` lacks is left out. ``log_likelihood`` is that of what is stored of a row.

    Raises :class:`SchemaError` for rows that do not fit the schema, :class:`InvalidParameter` for an unknown metric,
    and :class:`Unsupported` for a metric that was named and cannot be measured on these tables.
    """
    plain = schema.plain(map(str, real.columns))
    evidence = Evidence(
        _encoded("real", real, plain),
        _encoded("synthetic", synthetic, plain),
        None if holdout is None else _encoded("hold-out", holdout, plain),
        agreed=schema,
    )
    found = measure(
        evidence,
        metrics=metrics,
        target=target,
        sensitive=sensitive,
        known=known,
        guarantee=guarantee,
        log_likelihood=log_likelihood,
        suites=suites,
        repeats=repeats,
        max_rows=max_rows,
        seed=seed,
    )
    lines = [
        (score.metric, score.name, column, value, reference)
        for score in found.scores
        for column, (value, reference) in {
            "": (score.synthetic.value, score.reference.value),
            **score.details,
        }.items()
    ]
    frame = pd.DataFrame(lines, columns=["metric", "score", "column", "value", "reference"])
    frame.attrs["notes"] = list(found.notes)
    return frame


def _encoded(name: str, frame: pd.DataFrame, schema: Schema) -> Table:
    table = schema.encode(frame)
    if table.left_out:
        raise SchemaError(
            f"{table.left_out} of the {len(frame)} {name} rows do not fit the schema, and scores without them mislead; "
            "schema.problems(frame) names them"
        )
    return table
