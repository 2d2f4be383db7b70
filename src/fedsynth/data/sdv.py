"""Import of the metadata (JSON) of SDV, the Synthetic Data Vault: a schema format that many users already have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsynth.errors import SchemaError
from fedsynth.schema import Schema
from fedsynth.schema.columns import Boolean, Categorical, Column, Datetime, Numeric

_LEFT_OUT = {"id", "unknown", "text"}
_KINDS = {"categorical", "numerical", "datetime", "boolean"}


def schema_from_sdv(
    metadata: Mapping[str, Any],
    *,
    values: Mapping[str, tuple[str, ...] | tuple[int, ...]] | None = None,
    bounds: Mapping[str, tuple[Any, Any]] | None = None,
    table: str | None = None,
    bins: int = 32,
) -> Schema:
    """Convert the ``metadata`` of SDV, the Synthetic Data Vault (its JSON as a mapping), to a schema.

    The metadata may describe a single table (V1), or several ``tables``, of which ``table`` names one. SDV metadata may
    lack parts of a public schema: give lists of categories in ``values`` and (low, high) in ``bounds``, by column name.
    ``bins`` is the number of bins of numbers and times. All columns admit missing values. Columns of personal data and
    those of the types id, text and unknown are left out. Raises :class:`SchemaError` that names every column
    without categories, bounds or a known type, and for a ``table`` that the metadata does not describe.
    """
    columns = _table(metadata, table).get("columns", {})
    given_values, given_bounds = values or {}, bounds or {}
    built: list[Column] = []
    lacking: list[str] = []
    for name, entry in columns.items():
        kind = entry.get("sdtype")
        if kind in _LEFT_OUT or entry.get("pii"):
            continue
        if kind == "boolean":
            built.append(Boolean(name, missing=True))
        elif kind == "categorical":
            listed = given_values.get(name) or entry.get("order") or entry.get("category_values")
            if not listed:
                lacking.append(f"values[{name!r}]")
            else:
                built.append(Categorical(name, tuple(listed), missing=True, ordered=bool(entry.get("order"))))
        elif kind in ("numerical", "datetime"):
            low, high = given_bounds.get(name, (entry.get("range_min"), entry.get("range_max")))
            if low is None or high is None:
                lacking.append(f"bounds[{name!r}]")
            elif kind == "datetime":
                built.append(Datetime(name, str(low), str(high), bins=bins, missing=True))
            else:
                integer = "Int" in str(entry.get("computer_representation", "Float"))
                built.append(Numeric(name, low, high, bins=bins, integer=integer, missing=True))
        else:
            lacking.append(f"a type for column {name!r} (sdtype {kind!r}): categorical, numerical, datetime or boolean")
    if lacking:
        raise SchemaError(f"the SDV metadata is not sufficient for a public schema; also give {', '.join(lacking)}")
    return Schema(tuple(built))


def sdv_kinds(metadata: Mapping[str, Any], *, table: str | None = None) -> dict[str, str]:
    """Return the type (categorical, numerical, datetime or boolean) of each column that SDV would model, by name.

    ``metadata`` is the JSON of SDV (Synthetic Data Vault) as a mapping, and ``table`` names the table if there are
    several. Columns of personal data and those of the types id, text and unknown are left out; types that are not among
    SDV's general ones, such as "email", count as categorical. Raises :class:`SchemaError` for metadata that is not
    SDV's, and without ``table`` if it describes several tables.
    """
    columns = _table(metadata, table).get("columns", {})
    if not isinstance(columns, Mapping) or not all(
        isinstance(entry, Mapping) and isinstance(entry.get("sdtype"), str) for entry in columns.values()
    ):
        raise SchemaError("the metadata has a column without sdtype; export it again with SDV's Metadata.save_to_json")
    kept = {
        name: entry["sdtype"]
        for name, entry in columns.items()
        if entry.get("sdtype") not in _LEFT_OUT and not entry.get("pii")
    }
    return {name: kind if kind in _KINDS else "categorical" for name, kind in kept.items()}


def _table(metadata: Mapping[str, Any], name: str | None) -> Mapping[str, Any]:
    tables: Mapping[str, Mapping[str, Any]] | None = metadata.get("tables")
    if tables is None:
        return metadata
    if not isinstance(tables, Mapping) or not all(isinstance(entry, Mapping) for entry in tables.values()):
        raise SchemaError("the metadata's tables are not objects; export it again with SDV's Metadata.save_to_json")
    if name is None and len(tables) == 1:
        return next(iter(tables.values()))
    if name is None or name not in tables:
        raise SchemaError(
            f"the metadata describes the tables {sorted(tables)}; give one of them as table=, or keep only one in the "
            "file"
        )
    return tables[name]
