"""The front door of evaluation: data frames and synthesizers (:func:`fedsynth.evaluate`)."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

import msgspec
import pandas as pd

from fedsynth.data.frames import as_frame
from fedsynth.encoding import encode
from fedsynth.errors import DataWarning, InvalidParameter, SchemaError
from fedsynth.evaluation.evaluate import evaluate as measure
from fedsynth.evaluation.report import Evaluation, ReportTitle
from fedsynth.evaluation.score import EvaluationTables
from fedsynth.evaluation.settings import EvaluationOptions, EvaluationSettings
from fedsynth.models.synthesizer import Synthesizer
from fedsynth.persons import identify
from fedsynth.progress import Progress, shown
from fedsynth.schema.misfits import with_lines
from fedsynth.settings import with_keywords

if TYPE_CHECKING:
    from fedsynth.evaluation.evaluate import LogLikelihood
    from fedsynth.rows import Table
    from fedsynth.schema import Schema


@with_keywords(EvaluationSettings)
def evaluate(
    synthetic: Synthesizer | pd.DataFrame,
    *,
    train: pd.DataFrame | Mapping[str, pd.DataFrame],
    holdout: pd.DataFrame | None = None,
    schema: Schema | None = None,
    log_likelihood: LogLikelihood | None = None,
    progress: bool | Progress = False,
    **options: Unpack[EvaluationOptions],
) -> Evaluation:
    """Measure how good synthetic rows are: a first report, or with ``full`` everything, attacks on privacy included.

    ``synthetic`` is a synthesizer, of which as many rows are drawn as it was fitted to (by ``seed``), or a frame of
    synthetic rows, which needs the ``schema`` that the sites agreed on. ``train`` are the rows that it was fitted to
    (of several sites by name), ``holdout`` rows that it never saw; without them, scores that need unseen rows are left
    out. ``person`` names the column of both that identifies the person of a row, which need not be in the schema: real
    rows are then split, and attacked, by person. A synthesizer brings its guarantee with it; of a frame, ``guarantee``
    is the (epsilon, delta) that it was made under, if any, for ``unit`` and ``neighbours``. ``metrics`` names what to
    compute instead, as in ``["column-similarity", "membership-inference"]``. All ``options`` are those of
    :class:`~fedsynth.evaluation.settings.EvaluationSettings`; ``log_likelihood``, and the names of metrics, are those
    of :func:`fedsynth.evaluation.evaluate.evaluate`.

    :attr:`Evaluation.frame <fedsynth.evaluation.evaluate.Evaluation.frame>` holds the scores,
    :meth:`~fedsynth.evaluation.evaluate.Evaluation.to_html` writes the report, and ``notes`` say what was not measured.
    The scores are computed from real rows without noise: they are not private.

    All columns but identifiers are compared by the values in the frames (clipped to the schema's bounds), derived
    columns included; a computed column that ``train`` lacks is left out. A :class:`DataWarning` says which values are
    clipped or counted as other or missing, and which columns are ignored.

    Raises the errors of that function, :class:`SchemaError` for rows that do not fit the schema,
    :class:`InvalidParameter` for a frame without a schema, and :class:`Unsupported` for a person with rows in both
    ``train`` and ``holdout``, for a row without a person, and for a table with fewer than two rows.
    """
    sites = list(train.values()) if isinstance(train, Mapping) else [train]
    if any(holdout is rows for rows in sites):
        raise InvalidParameter("holdout is the frame that was fitted to; pass rows held out before (fs.split)")
    frames = [as_frame(rows, "train") for rows in sites]
    real = pd.concat(frames, ignore_index=True) if isinstance(train, Mapping) else frames[0]
    holdout = None if holdout is None else as_frame(holdout, "holdout")
    settings, card = EvaluationSettings(**options), None
    if isinstance(synthetic, Synthesizer):
        schema, stated = synthetic.schema, synthetic.statement
        log_likelihood = log_likelihood or synthetic.log_likelihood
        if stated is not None and settings.guarantee is None:
            terms, proved = stated.terms, stated.private and not stated.seeded
            guarantee = replace(stated.limit, epsilon=stated.epsilon) if proved else None
            settings = msgspec.structs.replace(
                settings, guarantee=guarantee, unit=terms.unit, neighbours=terms.neighbours
            )
        card = synthetic.card
        synthetic = synthetic.sample(len(real), settings.seed)
    else:
        synthetic = as_frame(synthetic, "synthetic")
    if schema is None:
        raise InvalidParameter("a frame of synthetic rows needs the schema that the sites agreed on: pass schema=...")
    plain = schema.plain(map(str, real.columns))
    evidence = EvaluationTables(
        _encoded("real", real, plain, schema, settings.person),
        _encoded("synthetic", synthetic, plain, schema),
        None if holdout is None else _encoded("hold-out", holdout, plain, schema, settings.person),
        agreed=schema,
    )
    with shown(progress) as report:
        found = measure(evidence, settings, log_likelihood=log_likelihood, progress=report)
    return replace(found, about=ReportTitle(date=datetime.date.today().isoformat()), card=card)


def _encoded(name: str, frame: pd.DataFrame, schema: Schema, agreed: Schema, person: str = "") -> Table:
    table = encode(schema, frame)
    ignored = tuple(column for column in agreed.ignored(table.misfits.ignored) if column != person)
    table = replace(table, misfits=replace(table.misfits, ignored=ignored))
    if person and person not in frame:
        raise SchemaError(f"the {name} rows lack the column {person!r}, which identifies the person of each row")
    if table.left_out:
        head = (
            f"{table.left_out} of the {len(frame)} {name} rows do not fit the schema, and scores without them would "
            "mislead; correct or remove them (fedsynth.encoding.problems(schema, frame) lists them)"
        )
        raise SchemaError(with_lines(head, table.findings()[1:]))
    if found := table.findings():
        warnings.warn(with_lines(f"the {name} rows:", found), DataWarning, stacklevel=3)
    return replace(table, persons=identify(frame[person])) if person else table
