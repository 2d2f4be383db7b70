"""What a method returns: something that samples rows under the schema, and survives on disk."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedsynth.archive import pack, unpack
from fedsynth.column import Datetime, Numeric
from fedsynth.errors import FedsynthError, InvalidParameter, SchemaError
from fedsynth.models.bayes_net import BayesianNetwork
from fedsynth.models.cells import Cells
from fedsynth.models.copula import Copula
from fedsynth.models.gum import GradualUpdate
from fedsynth.models.mrf import MarkovRandomField
from fedsynth.models.normal_scores import codes_of, series_of
from fedsynth.schema import Schema
from fedsynth.table import Table

FORMAT = 1


class Synthesizer(Protocol):
    """A fitted generator of rows."""

    @property
    def schema(self) -> Schema:
        """The public schema of the rows."""

    @property
    def info(self) -> Mapping[str, Any]:
        """JSON values about how it was fitted: the method, what it measured."""

    def sample(self, rows: int | None = None, rng: np.random.Generator | int | None = None) -> pd.DataFrame:
        """Return ``rows`` synthetic rows as a data frame."""

    def sample_table(self, rows: int | None = None, rng: np.random.Generator | int | None = None) -> Table:
        """Return synthetic rows still encoded: what metrics on codes need."""

    def save(self, path: Path | str) -> None:
        """Write the generator to one file."""


@dataclass(frozen=True, eq=False)
class GraphicalSynthesizer:
    """Rows from a Markov random field. ``info`` holds JSON values about how it was fitted."""

    schema: Schema
    model: MarkovRandomField
    info: Mapping[str, Any] = field(default_factory=dict)

    def sample(self, rows: int | None = None, rng: np.random.Generator | int | None = None) -> pd.DataFrame:
        """Return ``rows`` synthetic rows (by default as many as the model's estimate of the total).

        ``rng`` is a generator, a seed, or ``None`` for fresh entropy. Sampling costs no privacy.
        """
        generator = np.random.default_rng(rng)
        return self.schema.decode(self.sample_table(rows, generator), generator)

    def sample_table(self, rows: int | None = None, rng: np.random.Generator | int | None = None) -> Table:
        """Return synthetic rows still encoded: what metrics on codes need."""
        count = _count(rows, self.model.total)
        return Table(self.schema, tuple(self.model.sample(count, np.random.default_rng(rng))))

    def log_likelihood(self, table: Table) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return each row's log probability in nats, shape ``(rows,)``."""
        return self.model.log_likelihood(table.codes)

    def save(self, path: Path | str) -> None:
        """Write one zip of JSON and arrays, atomically; :func:`load` reads it."""
        meta, arrays = self.model.to_arrays()
        _write(path, {"kind": "graphical", "model": meta}, self.schema, self.info, arrays)


@dataclass(frozen=True, eq=False)
class GradualSynthesizer:
    """Rows moved until they match consistent tables (GUM), among them the 1-way table of every column.

    ``total`` is the estimated number of records, ``info`` holds JSON values about how the tables came about.
    """

    schema: Schema
    update: GradualUpdate
    total: float
    info: Mapping[str, Any] = field(default_factory=dict)

    def sample(self, rows: int | None = None, rng: np.random.Generator | int | None = None) -> pd.DataFrame:
        """Return ``rows`` synthetic rows (by default as many as estimated); ``rng`` as for a graphical model."""
        generator = np.random.default_rng(rng)
        return self.schema.decode(self.sample_table(rows, generator), generator)

    def sample_table(self, rows: int | None = None, rng: np.random.Generator | int | None = None) -> Table:
        """Return synthetic rows still encoded: independent columns first, then updated sweep by sweep."""
        count = _count(rows, self.total)
        generator = np.random.default_rng(rng)
        narrow = np.min_scalar_type(max(self.schema.sizes) - 1)
        start = np.empty((len(self.schema.sizes), count), dtype=narrow)
        for column, size in enumerate(self.schema.sizes):
            share = self.update.targets[(column,)] / self.update.targets[(column,)].sum()
            start[column] = generator.choice(size, count, p=share)
        return Table(self.schema, tuple(self.update.rows(start, generator)))

    def save(self, path: Path | str) -> None:
        """Write one zip of JSON and arrays, atomically; :func:`load` reads it."""
        meta = {
            "cliques": [list(clique) for clique in self.update.targets],
            "sweeps": self.update.sweeps,
            "total": self.total,
        }
        arrays = {f"table{at}": table for at, table in enumerate(self.update.targets.values())}
        _write(path, {"kind": "gradual", "model": meta}, self.schema, self.info, arrays)


@dataclass(frozen=True, eq=False)
class CopulaSynthesizer:
    """Rows from a Gaussian copula. ``info`` holds JSON values about how it was fitted."""

    schema: Schema
    model: Copula
    info: Mapping[str, Any] = field(default_factory=dict)

    def sample(self, rows: int | None = None, rng: np.random.Generator | int | None = None) -> pd.DataFrame:
        """Return ``rows`` synthetic rows (by default as many as estimated); ``rng`` as for a graphical model.

        Numbers are as fine as the model's own cells, not only as the schema's bins.
        """
        generator = np.random.default_rng(rng)
        return _frame_of(self.sample_table(rows, generator), generator)

    def sample_table(self, rows: int | None = None, rng: np.random.Generator | int | None = None) -> Table:
        """Return synthetic rows still encoded: what metrics on codes need."""
        return _table_of(self.schema, self.model.sample(_count(rows, self.model.total), np.random.default_rng(rng)))

    def sample_given(
        self, column: str, values: Sequence[Any], rng: np.random.Generator | int | None = None
    ) -> pd.DataFrame:
        """Return one synthetic row for each of ``values`` of a category, drawn given that value.

        Raises :class:`SchemaError` for a value that the category does not list, :class:`InvalidParameter` for a
        column of numbers or times.
        """
        at, generator = self._category(column), np.random.default_rng(rng)
        one = Schema((self.schema.columns[at],), self.schema.missing_values)
        frame = pd.DataFrame({column: list(values)})
        encoded = one.encode(frame)
        if encoded.left_out:
            raise SchemaError("; ".join(one.problems(frame)))
        codes = encoded.codes[0].astype(np.int64)
        return _frame_of(_table_of(self.schema, self.model.sample_given(at, codes, generator)), generator)

    def sample_balanced(
        self, target: str, rows: int | None = None, rng: np.random.Generator | int | None = None
    ) -> pd.DataFrame:
        """Return rows in which every value of the category ``target`` is equally frequent (to one row), shuffled.

        Values that the model gives no share are left out: nothing is known about their rows.
        """
        at, generator = self._category(target), np.random.default_rng(rng)
        held = np.flatnonzero(self.model.margins[at].axis.shares > 0)
        codes = generator.permutation(np.resize(held, _count(rows, self.model.total)))
        return _frame_of(_table_of(self.schema, self.model.sample_given(at, codes, generator)), generator)

    def save(self, path: Path | str) -> None:
        """Write one zip of JSON and arrays, atomically; :func:`load` reads it."""
        meta, arrays = self.model.to_arrays()
        _write(path, {"kind": "copula", "model": meta}, self.schema, self.info, arrays)

    def _category(self, name: str) -> int:
        at = self.schema.index(name)
        if isinstance(self.schema.columns[at], Numeric | Datetime):
            raise InvalidParameter(f"{name!r} holds numbers or times; rows can be drawn given a category only")
        return at


@dataclass(frozen=True, eq=False)
class BayesSynthesizer:
    """Rows from a Bayesian network over groups of the ``columns``' cells. ``info`` holds JSON values about the fit."""

    schema: Schema
    columns: tuple[Cells, ...]
    network: BayesianNetwork
    info: Mapping[str, Any] = field(default_factory=dict)

    def sample(self, rows: int | None = None, rng: np.random.Generator | int | None = None) -> pd.DataFrame:
        """Return ``rows`` synthetic rows (by default as many as estimated); ``rng`` as for a graphical model.

        Numbers are as fine as the cells, not only as the schema's bins.
        """
        generator = np.random.default_rng(rng)
        return _frame_of(self.sample_table(rows, generator), generator)

    def sample_table(self, rows: int | None = None, rng: np.random.Generator | int | None = None) -> Table:
        """Return synthetic rows still encoded: what metrics on codes need."""
        generator = np.random.default_rng(rng)
        groups = self.network.sample(_count(rows, self.network.total), generator)
        return _table_of(
            self.schema, [cells.drawn(group, generator) for cells, group in zip(self.columns, groups, strict=True)]
        )

    def save(self, path: Path | str) -> None:
        """Write one zip of JSON and arrays, atomically; :func:`load` reads it."""
        meta, arrays = self.network.to_arrays()
        cells = {f"{name}{at}": value for at, one in enumerate(self.columns) for name, value in one.to_arrays().items()}
        _write(path, {"kind": "bayes", "model": meta}, self.schema, self.info, {**arrays, **cells})


def load(path: Path | str) -> GraphicalSynthesizer | GradualSynthesizer | CopulaSynthesizer | BayesSynthesizer:
    """Return the generator that ``save`` wrote; executes nothing from the file."""
    head, arrays = unpack(Path(path).read_bytes())
    kind = head.get("kind")
    if head.get("format") != FORMAT or kind not in ("graphical", "gradual", "copula", "bayes"):
        raise FedsynthError(
            f"{path} holds format {head.get('format')} kind {kind!r}, this version reads format {FORMAT} "
            "kinds 'graphical', 'gradual', 'copula' and 'bayes'; install the fedsynth that wrote it"
        )
    schema, model, info = Schema.from_toml(head["schema"]), head["model"], head["info"]
    if kind == "graphical":
        return GraphicalSynthesizer(schema, MarkovRandomField.from_arrays(model, arrays), info)
    if kind == "copula":
        return CopulaSynthesizer(schema, Copula.from_arrays(len(schema.columns), model, arrays), info)
    if kind == "bayes":
        columns = tuple(Cells.from_arrays(arrays, at) for at in range(len(schema.columns)))
        return BayesSynthesizer(schema, columns, BayesianNetwork.from_arrays(model, arrays), info)
    tables = {tuple(clique): arrays[f"table{at}"] for at, clique in enumerate(model["cliques"])}
    return GradualSynthesizer(schema, GradualUpdate(schema.sizes, tables, model["sweeps"]), model["total"], info)


def _table_of(schema: Schema, drawn: Sequence[NDArray[Any]]) -> Table:
    """Return rows from what was drawn by column: codes of categories, numbers (NaN where missing) of the others."""
    codes, numbers = [], {}
    for at, (column, values) in enumerate(zip(schema.columns, drawn, strict=True)):
        if isinstance(column, Numeric | Datetime):
            numbers[at] = values
        found = codes_of(column, values) if isinstance(column, Numeric | Datetime) else values
        codes.append(found.astype(np.min_scalar_type(column.size - 1)))
    return Table(schema, tuple(codes), numbers)


def _frame_of(table: Table, rng: np.random.Generator) -> pd.DataFrame:
    """Return rows as values, numbers as they were drawn and not only as their codes."""
    return pd.DataFrame(
        {
            column.name: series_of(column, table.numbers[at])
            if isinstance(column, Numeric | Datetime)
            else column.decode(table.codes[at].astype(np.int64), rng)
            for at, column in enumerate(table.schema.columns)
        }
    )


def _count(rows: int | None, total: float) -> int:
    count = max(1, round(total)) if rows is None else rows
    if count < 1:
        raise InvalidParameter(f"rows must be at least 1, not {rows}")
    return count


def _write(
    path: Path | str, head: Mapping[str, Any], schema: Schema, info: Mapping[str, Any], arrays: Mapping[str, Any]
) -> None:
    content = {"format": FORMAT, "schema": schema.to_toml(), "info": dict(info), **head}
    target = Path(path)
    partial = target.with_name(target.name + ".partial")
    partial.write_bytes(pack(content, arrays))
    os.replace(partial, target)
