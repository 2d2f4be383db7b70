"""The front door for users of pandas: read and split a table, fit a synthesizer to it, and forecast a run's errors.

``fedsynth`` itself exports these functions, and beside them ``evaluate``, ``compare`` and ``load_run`` of the features
that they belong to. The commands are thin views of the same functions.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsynth.errors import InvalidParameter, SchemaError
from fedsynth.methods import Method, all_methods, find_method
from fedsynth.methods.registry import declared, name_of, options_of
from fedsynth.privacy.cost import ONE_ROW, Unit
from fedsynth.progress import Progress, shown
from fedsynth.rows import Table
from fedsynth.runs.job import Job, budget_of, declared_in

if TYPE_CHECKING:
    import pandas as pd

    from fedsynth.data.frames import ArrowStream
    from fedsynth.federation.trust import Trust
    from fedsynth.files import Records
    from fedsynth.models.synthesizer import Synthesizer
    from fedsynth.runs.plan import AdviceTable
    from fedsynth.schema import Schema

    Rows = pd.DataFrame | ArrowStream | Table | Path | str
    """The rows of one site: a data frame of any library, an encoded table, a file's path, or a database's address."""


def read_table(
    place: Path | str,
    schema: Schema | None = None,
    *,
    columns: Sequence[str] | None = None,
    records: Records | None = None,
) -> pd.DataFrame:
    """Return a table, or some of its ``columns``, as a data frame: of text, or with the types of a ``schema``.

    ``place`` is a CSV or Parquet file or ``postgresql://USER@HOST/DB?table=NAME``. ``records`` is the kind of a CSV
    file: of ``lines`` (also if it is ``None``), or ``rfc4180`` if its cells may hold newlines.

    Without a schema, no type is guessed: all cells of a CSV file are text as it stands there, while other sources have
    types of their own, which stay. Such a frame is encoded as the source itself under every schema
    (:func:`~fedsynth.data.read.read_frame`), so draft schemas from it, split it, and fit to it.

    With a schema, each cell is read for its column, by the schema alone: numbers are numbers, clipped to the bounds,
    times are times, categories are labels of the schema, and what it counts as ``"other"`` or missing is so. A row
    that it leaves out is not in the frame (:func:`~fedsynth.data.read.read_typed`): where sizes are public, fit to the
    path, whose size counts the rows left out. Columns that the schema does not name stay as they are without one.

    One record more is one row more in the result, at most, and changes no other. Raises :class:`SchemaError` for an
    unknown or missing column, for a CSV file without a header, for an invalid file that is declared ``rfc4180``, and
    for a column of a database whose type cannot be read.
    """
    from fedsynth.data.read import read_frame, read_typed
    from fedsynth.schema import Schema

    if schema is None:
        return read_frame(place, columns, records=records)
    if not isinstance(schema, Schema):
        raise SchemaError(_no_schema(schema) + "; columns are selected by columns=[...]")
    return read_typed(place, schema, columns, records=records)


def split(
    frame: Rows, holdout: float = 0.1, *, person: str = "", seed: int | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Split a table at random into rows to fit and rows to test with, and return both, in the order of the table.

    Each row is held out with probability ``holdout``, decided by a hash of that row alone (and its number among equal
    rows): one row more moves no other, so that what a guarantee says of the first part holds for the whole table. If
    ``person`` names a column, all rows of a person fall on one side, decided by the person alone. ``seed`` repeats a
    split; the guarantee holds for readers who know it, too.

    Raises :class:`InvalidParameter` for a ``holdout`` that is not between 0 and 1 or that leaves a side without rows,
    and :class:`SchemaError` for an unknown ``person``.
    """
    from fedsynth.data.frames import as_frame
    from fedsynth.data.placement import held_out_of_frame

    frame = as_frame(frame, "the table to split")
    if not 0 < holdout < 1:
        raise InvalidParameter(f"holdout = {holdout} must lie between 0 and 1; 0.1 holds a tenth of the rows back")
    if person and person not in frame:
        raise SchemaError(f"the table has no column {person!r}, which tells persons apart")
    held = held_out_of_frame(frame, holdout, secrets.randbits(128) if seed is None else seed, person)
    if held.all() or not held.any():
        raise InvalidParameter(f"a side of the split of {len(frame)} rows has none; pass more rows or another holdout")
    return frame[~held], frame[held]


def fit(
    train: Rows | Mapping[str, Rows] | Sequence[Rows],
    schema: Schema,
    *,
    epsilon: float,
    delta: float,
    method: str | Method = "auto",
    trust: str | Trust = "",
    target: str = "",
    questions: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    trust_options: Mapping[str, Any] | None = None,
    rows_per_person: int = 1,
    sites_per_person: int = 1,
    person: str = "",
    public_sizes: bool = False,
    unproved: Sequence[str] = (),
    weak_delta: bool = False,
    seed: int | None = None,
    progress: bool | Progress = False,
) -> Synthesizer:
    """Fit a synthesizer to one table, or to the tables of several sites in a simulated federation.

    Parameters
    ----------
    train
        The rows: the path of a CSV or Parquet file, the address of a database's table, a data frame (of pandas, polars,
        DuckDB, Arrow, or whatever exports Arrow streams), or an encoded :class:`~fedsynth.rows.Table`; or several of
        them, by site name or as a list. For a frame, the guarantee begins with the frame: the statement says if
        some of its columns are no text, since whatever chose their types may have looked at all rows, as
        ``pandas.read_csv`` does. :func:`read_table` does not.
    schema
        The public description of the table. Under a drafted one (:meth:`Schema.draft <fedsynth.schema.Schema.draft>`)
        the statement says that its bounds and lists are not covered.
    epsilon, delta
        The limit on the privacy cost of all releases together; ``epsilon = inf`` adds no noise: NOT PRIVATE.
    method
        A method's name, or its object. ``options`` are its options by name, of columns by the column's name.
    trust
        Who adds the noise: "trusted", "local", "secure" or "three-servers", or a trust's object; if it is empty,
        :func:`~fedsynth.trusts.default_trust` of the number of sites. ``trust_options`` are its settings by name, such
        as ``{"min_honest": 3}``.
    target
        The column to predict, for methods that have an option of this name.
    questions
        Declared questions and criteria, as in a file for ``fedsynth simulate --questions``: ``{"question": [{"kind":
        "mean", "name": "nights", "column": "nights"}]}``. They get a part of the budget, and the synthesizer's
        :attr:`~fedsynth.models.synthesizer.Synthesizer.answers` have their intervals.
    rows_per_person, sites_per_person
        The unit of protection: a person with at most so many rows at each of so many sites. More than 1 needs
        ``person``.
    person
        Column that tells persons apart; no more of a person's rows are used than the unit says.
    unproved
        Classes of other packages (``package.module:Class``) on which the guarantee may rest although fedsynth does not
        prove them: a query, trust, method or source that is not named here makes the result not for publication.
    weak_delta
        The yes that a ``delta`` above .01 needs.
    public_sizes
        Treat each site's number of rows as public.
    seed
        Seed of everything *including the noise*: reproducible, therefore not private, as the statement says.
    progress
        Whether to show progress bars, in a terminal or a notebook; or a callback.

    The synthesizer has the run's :attr:`~fedsynth.models.synthesizer.Synthesizer.statement`, a summary of its ledger
    and its limitations; printing it prints them. For the ledger itself, call
    :func:`~fedsynth.federation.simulate.federate` and the method's ``fit``. A ``UserWarning`` says if the guarantee is
    weak, as the statement does (a ``delta`` above 1 / rows, or an unusually large ``epsilon``), and which columns are
    lost. Raises :class:`Unsupported` for an unknown method, trust or option, and for a method that does not run under
    the trust; :class:`InvalidParameter` for values out of range, and for rows of persons whom no column tells apart;
    and :class:`SchemaError` for rows that do not fit the schema.
    """
    from fedsynth.federation.simulate import have_types
    from fedsynth.runs.simulation import fitted, simulated
    from fedsynth.schema import Schema

    if not isinstance(schema, Schema):
        raise SchemaError(_no_schema(schema))
    sites = _by_site(train)
    given = dict(options or {})
    if target and isinstance(method, str) and "target" in options_of(find_method(method).kind):
        given.setdefault("target", target)
    job = Job(
        method if isinstance(method, str) else name_of(method),
        epsilon,
        delta,
        sites=max(len(sites), 1),
        trust=trust if isinstance(trust, str) else trust.name,
        seed=seed,
        rows_per_person=rows_per_person,
        sites_per_person=sites_per_person,
        target=target,
        options=given,
        trust_options=trust_options or {},
        weak_delta=weak_delta,
        unproved=tuple(unproved),
        public_sizes=public_sizes,
        **declared_in(questions or {}),
    )
    if target:
        schema.plain().index(target)
    built = job.build_method(schema) if isinstance(method, str) else method
    if isinstance(trust, str):
        declared(type(built), job.method).check_trust(job.trust)
    rows = {name: _rows(one, schema, person) for name, one in sites.items()}
    with shown(progress) as report:
        trust = job.build_trust() if isinstance(trust, str) else trust
        federation = simulated(job, built, schema, rows, trust, sources=sites.values(), person=person, progress=report)
        typed = have_types(sites.values(), schema, person)  # files have the types that they have
        report(job.method, 0, 1)  # methods of few rounds report no steps of their own
        made = fitted(job, built, replace(federation, typed_elsewhere=typed))
        report(job.method, 1, 1)
    assert made.statement is not None
    for text in made.statement.warnings:
        warnings.warn(text, stacklevel=2)
    return made


def _no_schema(given: object) -> str:
    return f"schema is of the type {type(given).__name__}; Schema.load reads one from a file, Schema.draft drafts one"


def _by_site(train: Rows | Mapping[str, Rows] | Sequence[Rows]) -> dict[str, pd.DataFrame | Table | Path | str]:
    """Return what was passed by site name: encoded tables, places of files and databases, and all else as frames."""
    from fedsynth.data.frames import as_frame

    listed = train if isinstance(train, list | tuple) else [train]
    named = train if isinstance(train, Mapping) else {f"site-{at:03d}": one for at, one in enumerate(listed)}
    return {
        name: rows if isinstance(rows, Table | str | Path) else as_frame(rows, f"the table of site {name!r}")
        for name, rows in named.items()
    }


def _rows(rows: pd.DataFrame | Table | Path | str, schema: Schema, person: str) -> pd.DataFrame | Table:
    """Return the rows of a site as a simulation takes them: those of a file or database are read and encoded.

    If a column of a ``person`` is named, rows are limited before they are encoded, and come as a frame of their cells.
    """
    if not isinstance(rows, str | Path):
        return rows
    from fedsynth.data.read import read_fitting, read_with_persons

    return read_with_persons(rows, schema, person) if person else read_fitting(rows, schema)


def advise(
    schema: Schema,
    *,
    rows: int,
    sites: int = 1,
    epsilon: float,
    delta: float,
    methods: Sequence[str] = (),
    trust: str = "",
    trust_options: Mapping[str, Any] | None = None,
    unit: Unit = ONE_ROW,
    public_sizes: bool = False,
    partition: str = "iid",
    wanted: float | None = None,
    tables: int = 3,
    seconds: float = 120.0,
    progress: bool | Progress = False,
) -> AdviceTable:
    """Predict each method's errors in a planned run by runs over random tables; no row is read.

    ``schema`` is the public one, ``rows`` the number of rows of all ``sites`` together, and ``epsilon`` and ``delta``
    the planned limit. ``methods`` names the methods (default: all private ones that train no network), ``trust`` the
    trust model (default: :func:`~fedsynth.trusts.default_trust` of ``sites``; a method that does not run
    under it runs under "trusted"), and ``unit`` is the unit of protection. The other options, and what the errors mean,
    are those of :class:`~fedsynth.runs.plan.PlannedRun` and :func:`fedsynth.runs.plan.advise`.
    """
    from fedsynth.federation.policy_file import trust_named
    from fedsynth.federation.trust import settings_of
    from fedsynth.runs import plan
    from fedsynth.terms import Terms
    from fedsynth.trusts import default_trust

    trust = trust or default_trust(sites)
    able = (method.name for method in all_methods() if method.private and not method.trains)
    settings = settings_of(trust_named(trust, trust_options or {}))
    terms = Terms(schema, budget_of(epsilon, delta), trust, settings, unit, public_sizes)
    planned = plan.PlannedRun(terms, rows, sites, partition)
    built = {name: Job(name, epsilon, delta, weak_delta=True).build_method(schema) for name in (methods or able)}
    with shown(progress) as report:
        return plan.advise(planned, built, wanted=wanted, tables=tables, seconds=seconds, progress=report)
