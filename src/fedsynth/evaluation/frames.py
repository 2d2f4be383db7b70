"""Evaluation of pandas data frames: `fedsynth.evaluate`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd

from fedsynth.errors import DataWarning, SchemaError
from fedsynth.evaluation.evaluate import evaluate as measure
from fedsynth.evaluation.score import EvaluationTables
from fedsynth.schema.misfits import with_lines

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
    """Return the scores of a synthetic table, each beside a reference from real rows, as ``fedsynth evaluate`` does.

    ``real`` are the rows that the synthesizer was fitted to, ``holdout`` rows that it never saw, ``schema`` the schema
    that the sites agreed on. Without a hold-out, references come from the real rows alone, and scores that need
    unseen rows are left out. ``target`` is the column that classifiers (or regressors) learn to predict. In attribute
    disclosure, an attacker who knows the columns ``known`` infers the column ``sensitive``. ``guarantee`` is the
    (epsilon, delta) for adding or removing one row that the table was made under, if any; attacks are compared with it.
    ``metrics`` names the metrics to compute, as in ``["column-similarity", "wasserstein", "membership-inference"]``;
    None computes all that the tables allow. The other options, and all names of metrics, are those of
    :func:`fedsynth.evaluation.evaluate.evaluate`.

    The frame has the columns ``metric``, ``score`` (its title; some metrics have several), ``column``, ``value`` and
    ``reference``. The first line of a score has the column ""; one line follows for each of its details (columns,
    pairs, rules, learners or attackers), if it has any. ``frame.attrs["notes"]`` says how rows were drawn for fidelity,
    and which scores of utility and privacy were not measured and why. The scores are computed from real rows without
    noise: they are not private.

    All columns but identifiers are compared by the values in the frames (clipped to the schema's bounds), also those
    that the schema computes from others, or that models store as a difference or ratio to another column. A computed
    column that ``real`` lacks is left out. A :class:`DataWarning` says which values are clipped or counted as other or
    missing, and which columns are ignored.
    ``log_likelihood`` is a function such as :attr:`Synthesizer.log_likelihood
    <fedsynth.models.synthesizer.Synthesizer.log_likelihood>`: it maps an encoded table to each row's log-likelihood in
    nats.

    Raises :class:`SchemaError` for rows that do not fit the schema and for unknown columns, :class:`InvalidParameter`
    for an unknown metric or suite and for less than one repeat, and :class:`Unsupported` for a metric that was named
    and cannot be computed on these tables, for a table with fewer than two rows, for known columns that include the
    sensitive one or the target, and without scikit-learn (the extra ``evaluate``).
    """
    plain = schema.plain(map(str, real.columns))
    evidence = EvaluationTables(
        _encoded("real", real, plain, schema),
        _encoded("synthetic", synthetic, plain, schema),
        None if holdout is None else _encoded("hold-out", holdout, plain, schema),
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


def _encoded(name: str, frame: pd.DataFrame, schema: Schema, agreed: Schema) -> Table:
    table = schema.encode(frame)
    table = replace(table, misfits=replace(table.misfits, ignored=agreed.ignored(table.misfits.ignored)))
    if table.left_out:
        head = (
            f"{table.left_out} of the {len(frame)} {name} rows do not fit the schema, and scores without them would "
            "mislead; correct or remove them (schema.problems(frame) lists them)"
        )
        raise SchemaError(with_lines(head, table.findings()[1:]))
    if found := table.findings():
        warnings.warn(with_lines(f"the {name} rows:", found), DataWarning, stacklevel=3)
    return table
