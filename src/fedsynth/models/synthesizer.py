"""What a method returns: a model wrapped so that it draws rows under the schema, and survives on disk.

The model draws codes on axes; the axes turn codes into values; the schema turns values into the published frame. How
models differ (a graphical model over the schema's own bins, a Bayesian network over groups of cells, a copula over
normal scores, rows by gradual update) is said by the model and its axes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedsynth.archive import pack, unpack
from fedsynth.column import Datetime, Numeric
from fedsynth.errors import FedsynthError, InvalidParameter, SchemaError, Unsupported
from fedsynth.files import write_whole
from fedsynth.models.bayes_net import BayesianNetwork
from fedsynth.models.cells import Cells
from fedsynth.models.copula import Cellwise, Componentwise, Copula
from fedsynth.models.gum import GradualRows
from fedsynth.models.mrf import MarkovRandomField
from fedsynth.models.normal_scores import codes_of, series_of
from fedsynth.schema import Schema
from fedsynth.table import Table

FORMAT = 2


class Model(Protocol):
    """A distribution of rows on axes; it knows neither privacy nor the schema."""

    kind: ClassVar[str]

    @property
    def total(self) -> float:
        """The estimated number of records."""

    def sample(self, rows: int, rng: np.random.Generator) -> Sequence[NDArray[Any]]:
        """Return rows by axis: codes, shape ``(rows,)``, or points of latent axes, shape ``(rows, latents)``."""

    def to_arrays(self) -> tuple[dict[str, Any], Mapping[str, NDArray[Any]]]:
        """Return the model as JSON values and named arrays."""

    @classmethod
    def from_arrays(cls, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Model:
        """Return the model that :meth:`to_arrays` described, to the last bit."""


class ModelAxis(Protocol):
    """One column as a model sees it: how the model's codes become values."""

    kind: ClassVar[str]

    def drawn(self, codes: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        """Return the values of codes: integers are codes of the schema, floats are numbers (NaN where missing)."""

    def to_arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return the axis as named arrays."""

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> ModelAxis:
        """Return the axis that :meth:`to_arrays` gave."""


@dataclass(frozen=True)
class Bins:
    """The schema's own bins or values: what a model draws are the schema's codes."""

    kind: ClassVar[str] = "bins"

    def drawn(self, codes: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        """Return the codes as they are."""
        return codes

    def to_arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return nothing: the schema says it all."""
        return {}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Bins:
        """Return the axis."""
        return cls()


_MODELS: tuple[type[Model], ...] = (MarkovRandomField, GradualRows, Copula, BayesianNetwork)
_AXES: tuple[type[ModelAxis], ...] = (Bins, Cells, Cellwise, Componentwise)
MODELS = {one.kind: one for one in _MODELS}
AXES = {one.kind: one for one in _AXES}


def own_bins(schema: Schema) -> tuple[Bins, ...]:
    """Return the axes of a model over the schema's own bins."""
    return tuple(Bins() for _ in schema.columns)


@dataclass(frozen=True, eq=False)
class Synthesizer:
    """A fitted generator of rows: ``model`` over ``axes``, one for each column of the public ``schema``.

    ``info`` holds JSON values about how it was fitted: the method, what it measured.
    """

    schema: Schema
    axes: tuple[ModelAxis, ...]
    model: Model
    info: Mapping[str, Any] = field(default_factory=dict)

    def sample(self, rows: int | None = None, rng: np.random.Generator | int | None = None) -> pd.DataFrame:
        """Return ``rows`` synthetic rows (by default as many as the model's estimate of the total) as a data frame.

        ``rng`` is a generator, a seed, or ``None`` for fresh entropy. Numbers are as fine as the axes, which may be
        finer than the schema's bins. Sampling costs no privacy.
        """
        generator = np.random.default_rng(rng)
        return _frame_of(self.sample_table(rows, generator), generator)

    def sample_table(self, rows: int | None = None, rng: np.random.Generator | int | None = None) -> Table:
        """Return synthetic rows still encoded: what metrics on codes need.

        The table holds numbers of the columns that the axes draw more finely than the schema's bins.
        """
        generator = np.random.default_rng(rng)
        return self._table(self.model.sample(self._count(rows), generator), generator)

    def sample_given(
        self, column: str, values: Sequence[Any], rng: np.random.Generator | int | None = None
    ) -> pd.DataFrame:
        """Return one synthetic row for each of ``values`` of a category, drawn given that value.

        Raises :class:`SchemaError` for a value that the category does not list, :class:`InvalidParameter` for a
        column of numbers or times, :class:`Unsupported` for a model other than a copula.
        """
        at, axis, generator = *self._category(column), np.random.default_rng(rng)
        one = Schema((self.schema.columns[at],), self.schema.missing_values)
        frame = pd.DataFrame({column: list(values)})
        encoded = one.encode(frame)
        if encoded.left_out:
            raise SchemaError("; ".join(one.problems(frame)))
        return self._given(at, axis, encoded.codes[0].astype(np.int64), generator)

    def sample_balanced(
        self, target: str, rows: int | None = None, rng: np.random.Generator | int | None = None
    ) -> pd.DataFrame:
        """Return rows in which every value of the category ``target`` is equally frequent (to one row), shuffled.

        Values that the model gives no share are left out: nothing is known about their rows. Raises what
        :meth:`sample_given` raises.
        """
        at, axis, generator = *self._category(target), np.random.default_rng(rng)
        held = np.flatnonzero(axis.axis.shares > 0)
        codes = generator.permutation(np.resize(held, self._count(rows)))
        return self._given(at, axis, codes, generator)

    @property
    def log_likelihood(self) -> Callable[[Table], NDArray[np.float64]] | None:
        """Each row's log probability in nats, as a function of a table; ``None`` but for a graphical model."""
        model = self.model
        return (lambda table: model.log_likelihood(table.codes)) if isinstance(model, MarkovRandomField) else None

    def save(self, path: Path | str) -> None:
        """Write one zip of JSON and arrays, whole or not at all; :func:`load` reads it."""
        meta, arrays = self.model.to_arrays()
        head = {
            "format": FORMAT,
            "schema": self.schema.to_toml(),
            "info": dict(self.info),
            "kind": self.model.kind,
            "model": meta,
            "axes": [axis.kind for axis in self.axes],
        }
        held = {f"model.{name}": array for name, array in arrays.items()}
        for at, axis in enumerate(self.axes):
            held |= {f"axis{at}.{name}": array for name, array in axis.to_arrays().items()}
        write_whole(Path(path), pack(head, held))

    def _count(self, rows: int | None) -> int:
        count = max(1, round(self.model.total)) if rows is None else rows
        if count < 1:
            raise InvalidParameter(f"rows must be at least 1, not {rows}")
        return count

    def _table(self, drawn: Sequence[NDArray[Any]], rng: np.random.Generator) -> Table:
        """Return rows that the model drew: their values by the axes, and the schema's codes of these."""
        codes, numbers = [], {}
        for at, (column, axis, one) in enumerate(zip(self.schema.columns, self.axes, drawn, strict=True)):
            values = axis.drawn(one, rng)
            if isinstance(column, Numeric | Datetime) and values.dtype == np.float64:
                numbers[at] = values
                values = codes_of(column, values)
            codes.append(values.astype(np.min_scalar_type(column.size - 1), copy=False))
        return Table(self.schema, tuple(codes), numbers)

    def _category(self, name: str) -> tuple[int, Cellwise]:
        at = self.schema.index(name)
        if isinstance(self.schema.columns[at], Numeric | Datetime):
            raise InvalidParameter(f"{name!r} holds numbers or times; rows can be drawn given a category only")
        axis = self.axes[at]
        if not isinstance(axis, Cellwise):
            raise Unsupported("only a copula draws rows given a value, or balanced ones; sample without it")
        return at, axis

    def _given(self, at: int, axis: Cellwise, codes: NDArray[np.int64], rng: np.random.Generator) -> pd.DataFrame:
        """Return one row for each of a category's codes."""
        assert isinstance(self.model, Copula)
        return _frame_of(self._table(self.model.sample_given(at, axis.axis.within(codes, rng), rng), rng), rng)


def load(path: Path | str) -> Synthesizer:
    """Return the generator that ``save`` wrote; executes nothing from the file."""
    head, arrays = unpack(Path(path).read_bytes())
    if head.get("format") != FORMAT or head.get("kind") not in MODELS or not set(head.get("axes", ())) <= set(AXES):
        raise FedsynthError(
            f"{path} holds format {head.get('format')} kind {head.get('kind')!r}, this version reads format {FORMAT} "
            f"kinds {', '.join(MODELS)}; install the fedsynth that wrote it"
        )
    parts: dict[str, dict[str, NDArray[Any]]] = {}
    for name, array in arrays.items():
        owner, _, own = name.partition(".")
        parts.setdefault(owner, {})[own] = array
    try:
        model = MODELS[head["kind"]].from_arrays(head["model"], parts.get("model", {}))
        axes = tuple(AXES[kind].from_arrays(parts.get(f"axis{at}", {})) for at, kind in enumerate(head["axes"]))
        return Synthesizer(Schema.from_toml(head["schema"]), axes, model, head["info"])
    except (KeyError, TypeError, ValueError) as error:
        raise FedsynthError(f"{path} is no whole model ({error}); copy it again, or fit it again") from error


def _frame_of(table: Table, rng: np.random.Generator) -> pd.DataFrame:
    """Return rows as values: numbers as they were drawn where the table holds them, else drawn from their bins."""
    return pd.DataFrame(
        {
            column.name: series_of(column, table.numbers[at])
            if isinstance(column, Numeric | Datetime) and at in table.numbers
            else column.decode(table.codes[at].astype(np.int64), rng)
            for at, column in enumerate(table.schema.columns)
        }
    )
