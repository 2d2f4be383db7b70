"""Import of SDV metadata (JSON), the schema format that most users of synthetic data have at hand."""

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
    """Return the schema that SDV metadata describes: single-table (V1) or with ``tables``.

    SDV's metadata may lack what a public schema needs: give lists of categories in ``values`` and (low, high)
    in ``bounds``, by column name. Identifiers and columns of personal data are left out, as SDV replaces them
    by fakes. Raises :class:`SchemaError` naming every column that lacks something.
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
            lacking.append(
                f"a column of sdtype {kind!r} ({name}): declare it categorical, numerical, datetime or boolean"
            )
    if lacking:
        raise SchemaError(f"SDV's metadata does not say enough for a public schema; also give {', '.join(lacking)}")
    return Schema(tuple(built))


def sdv_kinds(metadata: Mapping[str, Any], *, table: str | None = None) -> dict[str, str]:
    """Return categorical, numerical, datetime or boolean for each column that SDV metadata would have modelled."""
    columns = _table(metadata, table).get("columns", {})
    if not isinstance(columns, Mapping) or not all(
        isinstance(one, Mapping) and isinstance(one.get("sdtype"), str) for one in columns.values()
    ):
        raise SchemaError("the metadata has a column without sdtype; export it again with SDV's Metadata.save_to_json")
    kept = {name: one for name, one in columns.items() if one.get("sdtype") not in _LEFT_OUT and not one.get("pii")}
    return {name: one["sdtype"] if one["sdtype"] in _KINDS else "categorical" for name, one in kept.items()}


def _table(metadata: Mapping[str, Any], name: str | None) -> Mapping[str, Any]:
    tables: Mapping[str, Mapping[str, Any]] | None = metadata.get("tables")
    if tables is None:
        return metadata
    if not isinstance(tables, Mapping) or not all(isinstance(one, Mapping) for one in tables.values()):
        raise SchemaError("the metadata's tables are no objects; export it again with SDV's Metadata.save_to_json")
    if name is None and len(tables) == 1:
        return next(iter(tables.values()))
    if name is None or name not in tables:
        raise SchemaError(f"the metadata describes the tables {sorted(tables)}; say which one with table=")
    return tables[name]
