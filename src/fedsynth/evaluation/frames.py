"""The front door of evaluation: data frames and synthesizers (:func:`fedsynth.evaluate`)."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd

from fedsynth.errors import DataWarning, InvalidParameter, SchemaError
from fedsynth.evaluation.evaluate import Evaluation, ReportTitle
from fedsynth.evaluation.evaluate import evaluate as measure
from fedsynth.evaluation.score import EvaluationTables
from fedsynth.models.synthesizer import Synthesizer
from fedsynth.persons import identify
from fedsynth.privacy.cost import ONE_ROW
from fedsynth.progress import Progress, shown
from fedsynth.schema.misfits import with_lines

if TYPE_CHECKING:
    from fedsynth.evaluation.evaluate import LogLikelihood
    from fedsynth.privacy.cost import Budget, Neighbours, Unit
    from fedsynth.rows import Table
    from fedsynth.schema import Schema


def evaluate(
    synthetic: Synthesizer | pd.DataFrame,
    *,
    train: pd.DataFrame | Mapping[str, pd.DataFrame],
    holdout: pd.DataFrame | None = None,
    schema: Schema | None = None,
    metrics: Sequence[str] | None = None,
    target: str = "",
    sensitive: str = "",
    known: Sequence[str] = (),
    guarantee: Budget | None = None,
    person: str = "",
    unit: Unit = ONE_ROW,
    log_likelihood: LogLikelihood | None = None,
    suites: Sequence[str] = ("default",),
    repeats: int = 5,
    max_rows: int = 20_000,
    seed: int = 0,
    progress: bool | Progress = False,
) -> Evaluation:
    """Measure fidelity, utility and privacy of synthetic rows, each score beside a reference from real rows.

    ``synthetic`` is a synthesizer, of which as many rows are drawn as it was fitted to (by ``seed``), or a frame of
    synthetic rows, which needs the ``schema`` that the sites agreed on. ``train`` are the rows that the synthesizer was
    fitted to (of several sites by name), ``holdout`` rows that it never saw. Without a hold-out, references come from
    the real rows alone, and scores that need unseen rows are left out. ``target`` is the column that classifiers (or
    regressors) learn to predict. In attribute disclosure, an attacker who knows the columns ``known`` infers the column
    ``sensitive``. A synthesizer brings its guarantee with it; of a frame, ``guarantee`` is the (epsilon, delta) that it
    was made under, if any, for adding or removing a ``unit``: one row, or all rows of a person; attacks are compared
    with it. ``person`` names the column of ``train`` and ``holdout`` that identifies the person of a row, which need
    not be in the schema: real rows are then split, and attacked, by person. ``metrics`` names the metrics to compute,
    as in ``["column-similarity", "wasserstein", "membership-inference"]``; None computes all that the tables allow. The
    other options, and all names of metrics, are those of :func:`fedsynth.evaluation.evaluate.evaluate`.

    :attr:`Evaluation.frame <fedsynth.evaluation.evaluate.Evaluation.frame>` holds the scores,
    :meth:`~fedsynth.evaluation.evaluate.Evaluation.to_html` writes the report, and ``notes`` say how rows were drawn
    for fidelity, and which scores of utility and privacy were not measured and why. The scores are computed from real
    rows without noise: they are not private.

    All columns but identifiers are compared by the values in the frames (clipped to the schema's bounds), also those
    that the schema computes from others, or that models store as a difference or ratio to another column. A computed
    column that ``train`` lacks is left out. A :class:`DataWarning` says which values are clipped or counted as other or
    missing, and which columns are ignored.
    ``log_likelihood`` is a function such as :attr:`Synthesizer.log_likelihood
    <fedsynth.models.synthesizer.Synthesizer.log_likelihood>`: it maps an encoded table to each row's log-likelihood in
    nats; a synthesizer has its own.

    Raises :class:`SchemaError` for rows that do not fit the schema and for unknown columns, :class:`InvalidParameter`
    for an unknown metric or suite, for less than one repeat and for a frame without a schema, and :class:`Unsupported`
    for a metric that was named and cannot be computed on these tables, for a person with rows in both ``train`` and
    ``holdout`` and for a row without a person, for a table with fewer than two rows, for known columns that include the
    sensitive one or the target, and without scikit-learn (the extra ``evaluate``).
    """
    real = pd.concat(list(train.values()), ignore_index=True) if isinstance(train, Mapping) else train
    neighbours: Neighbours = "add-remove"
    if isinstance(synthetic, Synthesizer):
        schema, stated = synthetic.schema, synthetic.statement
        log_likelihood = log_likelihood or synthetic.log_likelihood
        if stated is not None and guarantee is None:
            unit, neighbours = stated.terms.unit, stated.terms.neighbours
            guarantee = stated.limit if stated.private and not stated.seeded else None
        synthetic = synthetic.sample(len(real), seed)
    if schema is None:
        raise InvalidParameter("a frame of synthetic rows needs the schema that the sites agreed on: pass schema=...")
    plain = schema.plain(map(str, real.columns))
    evidence = EvaluationTables(
        _encoded("real", real, plain, schema, person),
        _encoded("synthetic", synthetic, plain, schema),
        None if holdout is None else _encoded("hold-out", holdout, plain, schema, person),
        agreed=schema,
    )
    with shown(progress) as report:
        found = measure(
            evidence,
            metrics=metrics,
            target=target,
            sensitive=sensitive,
            known=known,
            guarantee=guarantee,
            unit=unit,
            neighbours=neighbours,
            log_likelihood=log_likelihood,
            suites=suites,
            repeats=repeats,
            max_rows=max_rows,
            seed=seed,
            progress=report,
        )
    return replace(found, about=ReportTitle(date=datetime.date.today().isoformat()))


def _encoded(name: str, frame: pd.DataFrame, schema: Schema, agreed: Schema, person: str = "") -> Table:
    table = schema.encode(frame)
    ignored = tuple(column for column in agreed.ignored(table.misfits.ignored) if column != person)
    table = replace(table, misfits=replace(table.misfits, ignored=ignored))
    if person and person not in frame:
        raise SchemaError(f"the {name} rows lack the column {person!r}, which identifies the person of each row")
    if table.left_out:
        head = (
            f"{table.left_out} of the {len(frame)} {name} rows do not fit the schema, and scores without them would "
            "mislead; correct or remove them (schema.problems(frame) lists them)"
        )
        raise SchemaError(with_lines(head, table.findings()[1:]))
    if found := table.findings():
        warnings.warn(with_lines(f"the {name} rows:", found), DataWarning, stacklevel=3)
    return replace(table, persons=identify(frame[person])) if person else table
