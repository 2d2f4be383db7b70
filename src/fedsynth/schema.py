"""The public description of the table: agreed first, in a file that people read, never fitted to pooled rows."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import tomli_w
from numpy.typing import NDArray

from fedsynth.column import KINDS, Boolean, Categorical, Column, Datetime, Encoded, Fault, Numeric
from fedsynth.errors import SchemaError

if TYPE_CHECKING:
    from fedsynth.table import Table

__all__ = ["Boolean", "Categorical", "Column", "Datetime", "Numeric", "Schema"]

FORMAT = 1
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "None", "?")
_SHOWN = 3  # faulty rows named per column and kind of fault


@dataclass(frozen=True)
class Schema:
    """Columns in their order, and the spellings that text files use for a missing value.

    Two schemas with equal ``digest`` encode every table alike; the digest travels in every request.
    """

    columns: tuple[Column, ...]
    missing_values: tuple[str, ...] = MISSING

    def __post_init__(self) -> None:
        """Refuse a schema whose columns cannot be told apart."""
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "missing_values", tuple(self.missing_values))
        if not self.columns:
            raise SchemaError("the schema has no columns; describe at least one")
        names = [column.name for column in self.columns]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SchemaError(f"the schema names {twice} twice; name each column once")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of codes of each column."""
        return tuple(column.size for column in self.columns)

    def shape(self, clique: Sequence[int]) -> tuple[int, ...]:
        """Shape of the contingency table of some columns, given by position."""
        return tuple(self.sizes[column] for column in clique)

    def index(self, name: str) -> int:
        """Position of a column; raises :class:`SchemaError` for a name that is not there."""
        if name not in self.names:
            raise SchemaError(f"no column {name!r} in the schema; it has {', '.join(self.names)}")
        return self.names.index(name)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the content, whatever the layout of the file that it came from."""
        return hashlib.sha256(json.dumps(self._content(), sort_keys=True).encode()).hexdigest()

    def encode(self, frame: pd.DataFrame, first_row: int = 0) -> Table:
        """Return the rows as codes; columns that the schema does not name are left out.

        Raises :class:`SchemaError` naming column, row (counted from ``first_row``), value and mend, if any
        value does not fit.
        """
        from fedsynth.table import Table

        codes: list[NDArray[Any]] = []
        numbers: dict[int, NDArray[np.float64]] = {}
        for position, (column, encoded) in enumerate(self._encoded(frame)):
            if encoded.faults:
                raise SchemaError(_describe(column, frame, encoded.faults[0], first_row, shown=1)[0])
            codes.append(encoded.codes.astype(np.min_scalar_type(column.size - 1)))
            if encoded.numbers is not None:
                numbers[position] = encoded.numbers
        return Table(self, tuple(codes), numbers)

    def problems(self, frame: pd.DataFrame, first_row: int = 0) -> list[str]:
        """Return a sentence for every kind of fault in every column, for the first few rows that have it."""
        found = [
            f"column {name!r} is missing; add it to the file, or take it out of the schema"
            for name in self.names
            if name not in frame.columns
        ]
        present = (
            Schema(tuple(c for c in self.columns if c.name in frame.columns), self.missing_values)
            if len(found) < len(self.columns)
            else None
        )
        for column, encoded in present._encoded(frame) if present else ():
            for fault in encoded.faults:
                found += _describe(column, frame, fault, first_row, shown=_SHOWN)
        return found

    def decode(self, table: Table | Sequence[NDArray[Any]], rng: np.random.Generator) -> pd.DataFrame:
        """Return rows as a data frame with the dtypes of the columns; bins decode to values drawn with ``rng``."""
        codes = table if isinstance(table, Sequence) else table.codes
        series = [
            column.decode(np.asarray(one).astype(np.int64), rng)
            for column, one in zip(self.columns, codes, strict=True)
        ]
        return pd.DataFrame({column.name: one for column, one in zip(self.columns, series, strict=True)})

    def to_toml(self, comments: Mapping[str, Sequence[str]] | None = None) -> str:
        """Return the schema as TOML, with ``comments`` by column name; what has its default is left out."""
        content = self._content()
        blocks = [tomli_w.dumps({"fedsynth_schema": FORMAT, **{k: v for k, v in content.items() if k != "column"}})]
        for entry in content["column"]:
            said = "".join(f"# {line}\n" for line in (comments or {}).get(entry["name"], ()))
            blocks.append(f"[[column]]\n{said}{tomli_w.dumps(entry)}")
        return "\n".join(blocks)

    @classmethod
    def from_toml(cls, text: str) -> Schema:
        """Return the schema that a TOML text describes; raises :class:`SchemaError` for anything unknown in it."""
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise SchemaError(f"the schema is not TOML: {error}") from error
        if content.pop("fedsynth_schema", None) != FORMAT:
            raise SchemaError(f"the file does not say fedsynth_schema = {FORMAT}; is it a schema of this version?")
        columns = [_column(dict(entry)) for entry in content.pop("column", [])]
        missing_values = content.pop("missing_values", MISSING)
        if content:
            raise SchemaError(f"unknown entries {sorted(content)} in the schema; known: missing_values, column")
        return cls(tuple(columns), tuple(missing_values))

    def save(self, path: Path | str) -> None:
        """Write the schema to a file, atomically."""
        target = Path(path)
        partial = target.with_name(target.name + ".partial")
        partial.write_text(self.to_toml(), encoding="utf-8")
        os.replace(partial, target)

    @classmethod
    def load(cls, path: Path | str) -> Schema:
        """Return the schema of a file."""
        return cls.from_toml(Path(path).read_text(encoding="utf-8"))

    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = (
            {} if self.missing_values == MISSING else {"missing_values": list(self.missing_values)}
        )
        return {**content, "column": [_entry(column) for column in self.columns]}

    def _encoded(self, frame: pd.DataFrame) -> Iterator[tuple[Column, Encoded]]:
        for column in self.columns:
            if column.name not in frame.columns:
                raise SchemaError(
                    f"column {column.name!r} is missing; add it to the table, or take it out of the schema "
                    f"(the table has {', '.join(map(str, frame.columns))})"
                )
            values = frame[column.name]
            yield column, column.encode(values, self._missing(column, values))

    def _missing(self, column: Column, values: pd.Series[Any]) -> NDArray[np.bool_]:
        """Say which values are missing: those that pandas calls so, and text in one of the agreed spellings."""
        missing: NDArray[np.bool_] = values.isna().to_numpy(dtype=bool)
        if pd.api.types.is_string_dtype(values.dtype) or values.dtype == object:
            listed = column.values if isinstance(column, Categorical) else ()
            missing = missing | values.isin([text for text in self.missing_values if text not in listed]).to_numpy()
        return missing


def _entry(column: Column) -> dict[str, Any]:
    """Return a column as TOML values, without what has its default."""
    entry: dict[str, Any] = {"name": column.name, "type": column.kind}
    for one in dataclasses.fields(column):
        value = getattr(column, one.name)
        if one.name != "name" and value is not None and (one.default is dataclasses.MISSING or value != one.default):
            entry[one.name] = list(value) if isinstance(value, tuple) else value
    return entry


def _column(entry: dict[str, Any]) -> Column:
    name = entry.get("name")
    if not isinstance(name, str):
        raise SchemaError('a column has no name; every [[column]] needs name = "..."')
    kind = entry.pop("type", None)
    if kind not in KINDS:
        raise SchemaError(f"column {name!r} has type = {kind!r}; choose one of {', '.join(KINDS)}")
    fields = {one.name: one for one in dataclasses.fields(KINDS[kind])}
    if unknown := sorted(set(entry) - set(fields)):
        raise SchemaError(f"column {name!r} has unknown entries {unknown}; a {kind} column knows {sorted(fields)}")
    required = {field for field, one in fields.items() if one.default is dataclasses.MISSING}
    if lacking := sorted(required - set(entry)):
        raise SchemaError(f"column {name!r} lacks {lacking}; a {kind} column needs them")
    for field, value in entry.items():
        expected = fields[field].default
        if isinstance(expected, bool) != isinstance(value, bool) and field not in ("values",):
            raise SchemaError(f"column {name!r} has {field} = {value!r}; that is the wrong type")
        entry[field] = tuple(value) if isinstance(value, list) else value
    try:
        return KINDS[kind](**entry)
    except TypeError as error:
        raise SchemaError(
            f"column {name!r} has an entry of the wrong type ({error}); compare it with the docs"
        ) from error


def _describe(column: Column, frame: pd.DataFrame, fault: Fault, first_row: int, shown: int) -> list[str]:
    """Return a sentence for the first ``shown`` rows of a fault."""
    values = frame[column.name]
    told = [
        f"column {column.name!r}, row {first_row + row}: {_shown(values.iloc[row])} {fault.wrong}; {fault.mend}"
        for row in fault.rows[:shown].tolist()
    ]
    more = len(fault.rows) - shown
    if more > 0:
        told[-1] += f" ({more} more such rows)"
    return told


def _shown(value: Any) -> str:
    return repr(value.item() if isinstance(value, np.generic) else value)
