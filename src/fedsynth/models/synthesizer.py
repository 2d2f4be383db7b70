"""Synthesizers: fitted models that draw rows under the schema and can be saved to disk.

A model draws codes for each column; the column's axis turns its codes into values; the schema turns values into the
published frame. Synthesizers differ only in their model and axes.

Rows that break a rule of the schema, or a bound of a derived column, are redrawn up to ``REDRAWS`` times: the result is
the model's distribution given that rows are valid, unless some are still invalid then. Most models exclude most invalid
rows beforehand.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Protocol

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedsynth.archive import pack, unpack
from fedsynth.encoding import any_broken, frame_of, publish, published, store, with_numbers
from fedsynth.errors import FedsynthError, InvalidParameter, SchemaError
from fedsynth.files import write_whole
from fedsynth.models.adaptive_bins import AdaptiveBins
from fedsynth.models.bayes_net import BayesianNetwork
from fedsynth.models.card import Limitations, ModelCard, card_html, card_text, pair_names
from fedsynth.models.conditions import Condition, Is, read_conditions, with_implied
from fedsynth.models.copula import Copula, OneAxis
from fedsynth.models.evidence import Evidence, Sampler
from fedsynth.models.gum import GradualRows
from fedsynth.models.mrf import MarkovRandomField
from fedsynth.models.ranked import RankedGroups
from fedsynth.models.saved import DrawnColumn, read_head
from fedsynth.models.tilt import Tilt, pool_size
from fedsynth.plugins import named, of_features, place_of
from fedsynth.privacy.cost import to_json
from fedsynth.privacy.ledger import Releases
from fedsynth.rows import Table, concatenate
from fedsynth.schema import Schema
from fedsynth.schema.bins import Grid
from fedsynth.schema.coarse import agree
from fedsynth.schema.columns import Column
from fedsynth.statement import SavedStatement, Statement
from fedsynth.text import printable

FORMAT = 1
REDRAWS = 100
_BLOCK = 100_000  # rows drawn from one pool
_LEAST = 1024  # fewest rows drawn at a time when rows are redrawn
_MOST_ROWS = 1 << 28  # most rows drawn unless a number is asked for
_MANY = 0.2  # share of rows that break a rule above which a warning is logged
_log = logging.getLogger(__name__)


class Model(Sampler, Protocol):
    """The fitted distribution of rows inside a :class:`Synthesizer`, independent of privacy and schema.

    The columns' axes (:class:`ModelAxis`) convert what it draws to values. ``kind`` names the type in a saved file.
    """

    kind: ClassVar[str]

    @property
    def total(self) -> float:
        """The estimated number of records: the default number of rows to sample."""

    @property
    def drawn_columns(self) -> Sequence[DrawnColumn]:
        """What the model draws for each stored column."""

    @property
    def related(self) -> NDArray[np.bool_] | None:
        """Whether the model holds the relation of two columns: symmetric, ``(columns, columns)``; ``None``: unknown."""

    def given(self, evidence: Mapping[int, Evidence]) -> Sampler | None:
        """Return a sampler of rows that meet conditions, by column position; ``None`` if they have probability 0."""

    def to_arrays(self) -> tuple[dict[str, Any], Mapping[str, NDArray[Any]]]:
        """Return all that a file must hold to restore the model: JSON values, and named arrays."""

    @classmethod
    def from_arrays(cls, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Model:
        """Restore the model, exactly, from both results of :meth:`to_arrays`.

        The file may be hostile: whatever is not a model that can be sampled raises :class:`FedsynthError`.
        """


class ModelAxis(Protocol):
    """The conversion between a model's codes for one column and the column's values.

    A model may use finer, coarser or other codes than the schema, such as groups of cells or points of a normal axis.
    """

    kind: ClassVar[str]

    def drawn(self, codes: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        """Convert the model's codes for this column, one per row, to values, shape ``(rows,)``.

        Integers in the result are codes of the schema; floats are numbers or times themselves (NaN: missing). ``rng``
        draws values within a code, if a code stands for several.
        """

    def given(self, column: Column, condition: Condition) -> tuple[Evidence, ModelAxis]:
        """Translate a condition on the values of ``column`` to evidence on the codes, and an axis to go with it.

        The axis replaces this one for rows drawn given the evidence: it converts their codes only to values that meet
        the condition.
        """

    def cells(self, column: Column) -> Grid | None:
        """Return the intervals within which numbers of ``column`` are drawn evenly; ``None`` if there are none."""

    def to_arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return this axis as named arrays."""

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> ModelAxis:
        """Restore an axis from :meth:`to_arrays`; arrays of a hostile file raise :class:`FedsynthError`."""

    def check(self, column: Column, drawn: DrawnColumn) -> None:
        """Raise :class:`InvalidParameter` unless it converts all that a model has ``drawn`` to values of ``column``."""


@dataclass(frozen=True)
class Bins:
    """The axis of a column whose model uses the schema's own codes (bins or listed values)."""

    kind: ClassVar[str] = "bins"

    def drawn(self, codes: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        """Return ``codes``."""
        return codes

    def given(self, column: Column, condition: Condition) -> tuple[Evidence, ModelAxis]:
        """Return evidence on the bins, and an axis that can draw numbers from the part of a bin that meets it."""
        return AdaptiveBins.of_bins(column).given(column, condition)

    def cells(self, column: Column) -> Grid | None:
        """Return the bins of a number or time."""
        return column.bins_as_cells if column.is_number else None

    def to_arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return nothing: the schema alone determines how codes become values."""
        return {}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Bins:
        """Return the axis; ``arrays`` is not needed."""
        return cls()

    def check(self, column: Column, drawn: DrawnColumn) -> None:
        """Raise :class:`InvalidParameter` unless the model has ``drawn`` the codes of ``column``, without places."""
        if drawn != DrawnColumn(column.size):
            raise InvalidParameter(f"the model does not draw the {column.size} codes of {column.name!r}")


_MODELS: tuple[type[Model], ...] = (
    MarkovRandomField,
    RankedGroups,
    GradualRows,
    Copula,
    BayesianNetwork,
)
_AXES: tuple[type[ModelAxis], ...] = (Bins, AdaptiveBins, OneAxis)


@cache
def saved_kinds() -> tuple[dict[str, str], dict[str, str]]:
    """Return the kinds of models and of axes in files, each with its class as ``package.module:Class``.

    They are those of this package, and those that features list in ``MODELS`` and ``AXES`` of a module ``models``
    (:data:`fedsynth.plugins.FEATURES`). Their classes are imported when a file holds one.
    """
    models = {model.kind: place_of(model) for model in _MODELS}
    axes = {axis.kind: place_of(axis) for axis in _AXES}
    for feature in of_features("models"):
        models |= feature.MODELS
        axes |= feature.AXES
    return models, axes


def own_bins(schema: Schema) -> tuple[Bins, ...]:
    """Return an axis for each stored column, for a model of the schema's own codes."""
    return tuple(Bins() for _ in schema.stored)


@dataclass(frozen=True, eq=False, repr=False)
class Synthesizer:
    """A fitted generator of synthetic rows; every method's ``fit`` returns one, and :func:`load` reads a saved one.

    ``model`` draws codes, ``axes`` (one for each stored column) convert them to values, and the public ``schema`` turns
    these into the published table. ``info`` holds JSON values about the fit. ``statement`` is the privacy statement of
    the run that fitted it, and ``releases`` summarises its ledger, one line for each kind of release.
    ``limitations`` say what the run's noise hides, where a run or :func:`fedsynth.fit` found it out. All three are in
    the file as well, where nobody signs them; they are ``None`` and empty for a model that no federation was asked for.
    ``tilt`` weights drawn rows so that they agree with the answers to declared questions; ``None`` without any.
    Printing the synthesizer prints its :attr:`card`.
    """

    schema: Schema
    axes: tuple[ModelAxis, ...]
    model: Model
    info: Mapping[str, Any] = field(default_factory=dict)
    statement: Statement | None = None
    releases: tuple[Releases, ...] = ()
    limitations: Limitations | None = None
    tilt: Tilt | None = None

    @property
    def card(self) -> ModelCard:
        """What is known of the model from released numbers and public facts alone: no row was, or is, read for it."""
        stated = self.statement
        held, pairs = pair_names(self.model.related, [column.name for column in self.schema.stored])
        card = ModelCard(
            printable(str(self.info.get("method", self.model.kind)), 60),
            len(self.schema.stored),
            self.model.total,
            held=held,
            pairs=pairs,
            limitations=self.limitations,
            releases=self.releases,
        )
        if stated is None:
            return card
        guaranteed = stated.private and not stated.seeded
        return msgspec.structs.replace(
            card,
            headline=stated.headline,
            sentence=stated.sentence,
            conditions=stated.conditions,
            publishable=stated.publishable,
            guarantee=(stated.epsilon, stated.limit.delta) if guaranteed else None,
            unknown=stated.terms.change.unknown,
        )

    def __repr__(self) -> str:
        return f"<{self.card.summary}>"

    def __str__(self) -> str:
        return card_text(self.card)

    def _repr_html_(self) -> str:
        return card_html(self.card)

    def sample(
        self,
        rows: int | None = None,
        seed: np.random.Generator | int | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> pd.DataFrame:
        """Return ``rows`` synthetic rows as a data frame (default: as many as the estimated number of records).

        ``seed`` is a number, a generator, or ``None`` for fresh entropy. Numbers have the resolution of the model's
        axes, which may be finer than the schema's bins. Sampling costs no privacy budget.

        ``where`` holds conditions on all rows, by column: a category's value, or a list of them; a number or time, or
        an interval ``(low, high)`` of these or of listed integers (ends included, ``None`` for an open one); ``None``
        for a missing value. Rows are drawn from the model's conditional
        distribution, directly if the model can, and by rejection sampling otherwise. Raises :class:`SchemaError` for
        unknown columns or values, and :class:`InvalidParameter` for fewer than one row, and for conditions that cannot
        be met: such rows have probability 0, some of them still break a rule after 100 draws, or fewer than one in
        10,000 drawn rows is kept. Neural networks need PyTorch; without it, they raise
        :class:`~fedsynth.errors.Unsupported`.

        If the schema has rules (forbidden combinations of values) or columns derived from others,
        ``frame.attrs["redrawn"]`` is the share of rows (0 to 1) that broke a rule or a derived column's bound and were
        redrawn. A share above a fifth causes a warning in the log, and so do rows that are still invalid after 100
        draws, which are kept if there are no conditions.
        """
        generator = np.random.default_rng(seed)
        drawn = self._drawn(rows, generator, where)
        return self._frame(drawn.table, drawn.redrawn, generator)

    def sample_table(
        self,
        rows: int | None = None,
        seed: np.random.Generator | int | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> Table:
        """Return synthetic rows as integer codes of the stored columns, for metrics on codes; see :meth:`sample`.

        The table also holds the numbers of columns whose axes draw numbers instead of the schema's bins and, if the
        schema derives columns, of all numeric and datetime columns.
        """
        return self._drawn(rows, np.random.default_rng(seed), where).table

    def _drawn(self, rows: int | None, generator: np.random.Generator, where: Mapping[str, Any] | None) -> _Drawn:
        count = self._count(rows)
        given = self._given(read_conditions(self.schema, where or {}))
        if given is None:
            shown = ", ".join(f"{name} = {value!r}" for name, value in (where or {}).items())
            raise InvalidParameter(
                f"the model has no rows with {shown}; drop a condition or widen an interval (a single real number has "
                "probability zero: give an interval around it)"
            )
        return given.draw(count, generator)

    def sample_balanced(
        self, target: str, rows: int | None = None, seed: np.random.Generator | int | None = None
    ) -> pd.DataFrame:
        """Return shuffled rows in which all values of the category ``target`` are equally frequent (up to one row).

        Of a finer column whose lookup was learned, only values whose result is known are among them.
        ``rows``, ``seed`` and the data frame are those of :meth:`sample`. A missing value counts as one of them. Values
        to which the model gives no probability are left out, since nothing is known about their rows. Raises
        :class:`InvalidParameter` for a numeric or datetime column, and what :meth:`sample` raises with each value as
        condition.
        """
        at, generator, count = self.schema.index(target), np.random.default_rng(seed), self._count(rows)
        column = self.schema.stored[at]
        if column.is_number:
            raise InvalidParameter(f"{target!r} is numeric or datetime; rows can be balanced only over a category")
        given = [rows_of for code in range(column.size) if (rows_of := self._given_code(at, code)) is not None]
        many = np.bincount(np.arange(count) % len(given))
        parts = [rows_of.draw(int(part), generator) for rows_of, part in zip(given, many, strict=False)]
        redrawn = sum(part.redrawn * len(part.table) for part in parts) / count
        table = concatenate([part.table for part in parts]).take(generator.permutation(count))
        return self._frame(table, redrawn, generator)

    def plot(self, column: str, rows: int = 10_000, seed: np.random.Generator | int | None = None) -> Any:
        """Return the plot of a column of ``rows`` synthetic rows (:class:`~fedsynth.evaluation.plots.Plot`).

        Raises :class:`SchemaError` for a column that the published table does not have.
        """
        generator = np.random.default_rng(seed)
        table = publish(self.schema, with_numbers(self.sample_table(rows, generator), generator))
        return named("fedsynth.evaluation.plots:synthetic_plot")(column, table)

    def _given_code(self, at: int, code: int) -> _Rows | None:
        """Return a sampler of rows with one value, ``None`` if there are none, or noise hides what goes with it."""
        try:
            return self._given(with_implied(self.schema, {at: Is((code,))}))
        except SchemaError:
            return None

    @property
    def answers(self) -> Any:
        """The answers to declared questions (:class:`~fedsynth.answers.results.Answers`); ``None`` without any."""
        content = self.info.get("answers")
        return None if content is None else named("fedsynth.answers.results:Answers").from_json(content, self.schema)

    @property
    def unplaced(self) -> dict[str, float]:
        """Columns of which noise hid what values some rows have, and about how many rows those are.

        These rows were counted, beside many others of one value (zeros, say), but no cell of the survey showed them.
        Their number is an estimate, and their values say nothing: they are put next to zero, those of times anywhere,
        and where they are most rows in the cells that noisy counts suggest.
        """
        unplaced = {
            column.name: axis.unplaced
            for column, axis in zip(self.schema.stored, self.axes, strict=True)
            if isinstance(axis, AdaptiveBins | OneAxis)
        }
        return {name: rows for name, rows in unplaced.items() if rows}

    @property
    def log_likelihood(self) -> Callable[[Table], NDArray[np.float64]] | None:
        """A function that takes a table and returns each row's log probability, in nats, shape ``(rows,)``.

        The table is encoded under the synthesizer's own schema, like that of :meth:`sample_table`, or under
        ``schema.plain()``, which holds the values of derived columns. In both cases the probability is that of the
        row's codes as sites encode it; correlations of numbers within groups (:class:`RankedGroups`) are not in it.
        ``None`` unless the model is a graphical model over the schema's own bins or over groups of them.
        """
        model = self.model.groups if isinstance(self.model, RankedGroups) else self.model
        parts = [_of_codes(axis, column) for axis, column in zip(self.axes, self.schema.stored, strict=True)]
        if not isinstance(model, MarkovRandomField) or None in parts:
            return None

        def of(table: Table) -> NDArray[np.float64]:
            if table.schema.digest != self.schema.digest:
                table = store(self.schema, table)
            held = [part for part in parts if part is not None]
            groups = tuple(group[codes] for (group, _), codes in zip(held, table.codes, strict=True))
            within = [share[codes] for (_, share), codes in zip(held, table.codes, strict=True)]
            found: NDArray[np.float64] = model.log_likelihood(groups) + np.sum(within, axis=0)
            return found

        return of

    def save(self, path: Path | str) -> None:
        """Write the synthesizer to a zip archive of JSON and arrays at ``path``, atomically."""
        meta, arrays = self.model.to_arrays()
        head = {
            "format": FORMAT,
            "schema": self.schema.to_toml(),
            "info": dict(self.info),
            "kind": self.model.kind,
            "model": meta,
            "axes": [axis.kind for axis in self.axes],
            "statement": None if self.statement is None else to_json(self.statement.saved()),
            "releases": to_json(self.releases),
            "limitations": to_json(self.limitations),
        }
        named_arrays = {f"model.{name}": array for name, array in arrays.items()}
        if self.tilt is not None:
            head["tilt"], of_tilt = self.tilt.to_arrays()
            named_arrays |= {f"tilt.{name}": array for name, array in of_tilt.items()}
        for at, axis in enumerate(self.axes):
            named_arrays |= {f"axis{at}.{name}": array for name, array in axis.to_arrays().items()}
        write_whole(Path(path), pack(head, named_arrays))

    def _frame(self, table: Table, redrawn: float, rng: np.random.Generator) -> pd.DataFrame:
        """Convert rows to values; numbers that the table does not hold are drawn from their bins."""
        frame = frame_of(self.schema, published(with_numbers(table, rng)), rng)
        if self.schema.rules or self.schema.derives:
            frame.attrs["redrawn"] = redrawn
        return frame

    def _count(self, rows: int | None) -> int:
        if rows is None and self.model.total > _MOST_ROWS:
            raise InvalidParameter(f"the model stands for {self.model.total:g} records; say how many rows to draw")
        count = max(1, round(self.model.total)) if rows is None else rows
        if count < 1:
            raise InvalidParameter(f"rows must be at least 1, not {rows}")
        return count

    def _given(self, conditions: Mapping[int, Condition]) -> _Rows | None:
        if not conditions:
            return _Rows(self.schema, self.axes, self.model, conditions, self.tilt)
        axes: list[ModelAxis] = list(self.axes)
        evidence: dict[int, Evidence] = {}
        for at, condition in conditions.items():
            evidence[at], axes[at] = axes[at].given(self.schema.stored[at], condition)
        sampler = self.model.given(evidence)
        return None if sampler is None else _Rows(self.schema, tuple(axes), sampler, conditions, self.tilt)


@dataclass(frozen=True, eq=False)
class _Drawn:
    """Drawn rows, and the share of them that was redrawn."""

    table: Table
    redrawn: float = 0.0


@dataclass(frozen=True, eq=False)
class _Rows:
    """A sampler of rows under the schema: a sampler on axes, the axes, the conditions that rows meet, and a tilt."""

    schema: Schema
    axes: tuple[ModelAxis, ...]
    sampler: Sampler
    conditions: Mapping[int, Condition]
    tilt: Tilt | None = None

    def draw(self, rows: int, rng: np.random.Generator) -> _Drawn:
        """Draw rows, with a tilt from pools of more of them."""
        if self.tilt is None:
            return self._valid(rows, rng)
        drawn = []
        for start in range(0, rows, _BLOCK):
            some = min(_BLOCK, rows - start)
            pool = self._valid(pool_size(some), rng)
            table = with_numbers(pool.table, rng)
            drawn.append(_Drawn(table.take(self.tilt.choose(table, some, rng)), pool.redrawn))
        return _Drawn(concatenate([part.table for part in drawn]), float(np.mean([part.redrawn for part in drawn])))

    def _valid(self, rows: int, rng: np.random.Generator) -> _Drawn:
        """Draw rows and replace invalid ones, as far as ``REDRAWS`` draws provide replacements."""
        table = self._table(rows, rng)
        if not (self.schema.rules or self.schema.derives):
            return _Drawn(table)
        bad = np.flatnonzero(any_broken(table))
        share = len(bad) / max(1, rows)
        for _ in range(REDRAWS):
            if not len(bad):
                break
            fresh = self._table(max(len(bad), _LEAST), rng)
            good = np.flatnonzero(~any_broken(fresh))[: len(bad)]
            order = np.arange(rows)
            order[bad[: len(good)]] = rows + good
            table, bad = concatenate([table, fresh]).take(order), bad[len(good) :]
        if share > _MANY:
            _log.warning(
                "%.0f %% of the rows broke a rule of the schema and were redrawn: the result may be far from the "
                "measured tables; methods that fit tables respect most rules by themselves",
                100 * share,
            )
        if len(bad) and self.conditions:
            raise InvalidParameter(
                f"{len(bad)} of {rows} rows that meet the conditions break a rule of the schema in every draw: drop a "
                "condition, or widen an interval"
            )
        if len(bad):
            _log.warning("%d of %d rows still break a rule after %d draws", len(bad), rows, REDRAWS)
        return _Drawn(table, share)

    def _table(self, rows: int, rng: np.random.Generator) -> Table:
        drawn = self.sampler.sample(rows, rng)
        values = [axis.drawn(on_axis, rng) for axis, on_axis in zip(self.axes, drawn, strict=True)]
        for at, condition in self.conditions.items():
            values[at] = condition.impose(values[at])
        named_values = dict(zip(self.schema.names, values, strict=True))
        allowed = {self.schema.names[at]: on.codes for at, on in self.conditions.items() if isinstance(on, Is)}
        agree(named_values, [one for one in self.schema.coarse if one.leads is not None], allowed)
        agree(named_values, [one for one in self.schema.learned if one.leading.any()], allowed)
        table = Table.of(self.schema, list(named_values.values()))
        return with_numbers(table, rng) if self.schema.derives else table


def _of_codes(axis: ModelAxis, column: Column) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
    """Return, for each code of the schema, the model's code and the log share within it; ``None`` for finer axes."""
    if isinstance(axis, Bins):
        return np.arange(column.size), np.zeros(column.size)
    if isinstance(axis, AdaptiveBins) and axis.covers(column):
        with np.errstate(divide="ignore"):  # values with share 0 have log probability -inf
            return axis.groups, np.log(axis.shares)
    return None


def load(path: Path | str) -> Synthesizer:
    """Return the synthesizer that :meth:`Synthesizer.save` wrote to ``path``; executes nothing from the file.

    Its statement is what the file says: nothing signs it, so take model files from those whom you would believe the
    guarantee. ``fedsynth verify`` checks the statement of a run's folder.

    Raises :class:`FedsynthError` for a file that is no complete model or of another format, and ``OSError`` if there is
    no such file.
    """
    if Path(path).is_dir():
        raise FedsynthError(f"{path} is a folder; name the model's file in it, as in model.fedsynth of a run")
    data = Path(path).read_bytes()
    try:
        head, arrays = unpack(data)
    except FedsynthError as error:
        raise FedsynthError(f"{path} is {error}") from error
    kinds, _ = saved_kinds()
    if head.get("format") != FORMAT or str(head.get("kind")) not in kinds:
        raise FedsynthError(
            f"{path} holds format {head.get('format')}, kind {head.get('kind')!r}, but this version reads format "
            f"{FORMAT}, kinds {', '.join(kinds)}; install the fedsynth version that wrote it"
        )
    try:
        return _restored(read_head(head, _Head), arrays)
    except Exception as error:  # whatever a hostile file makes a parser raise
        raise FedsynthError(f"{path} is not a complete model ({error}); copy it again, or fit it again") from error


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The head of a saved synthesizer."""

    format: int
    schema: str
    info: dict[str, Any]
    kind: str
    model: dict[str, Any]
    axes: tuple[str, ...]
    statement: SavedStatement | None
    releases: tuple[Releases, ...]
    limitations: Limitations | None
    tilt: dict[str, Any] | None = None


def _restored(head: _Head, arrays: Mapping[str, NDArray[Any]]) -> Synthesizer:
    schema = Schema.from_toml(head.schema)
    if len(head.axes) != len(schema.stored):
        raise InvalidParameter(f"{len(head.axes)} axes for {len(schema.stored)} columns")
    parts: dict[str, dict[str, NDArray[Any]]] = {}
    for name, array in arrays.items():
        owner, _, own = name.partition(".")
        parts.setdefault(owner, {})[own] = array
    models, axis_kinds = saved_kinds()
    model = named(models[head.kind]).from_arrays(head.model, parts.get("model", {}))
    axes = tuple(named(axis_kinds[kind]).from_arrays(parts.get(f"axis{at}", {})) for at, kind in enumerate(head.axes))
    for column, axis, drawn in zip(schema.stored, axes, model.drawn_columns, strict=True):
        axis.check(column, drawn)
    statement = None if head.statement is None else head.statement.statement(schema)
    tilt = None if head.tilt is None else Tilt.from_arrays(head.tilt, parts.get("tilt", {}), schema)
    return Synthesizer(schema, axes, model, head.info, statement, head.releases, head.limitations, tilt)
