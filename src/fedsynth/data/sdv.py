"""Import of the metadata (JSON) of SDV, the Synthetic Data Vault: a schema format that many users already have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsynth.errors import SchemaError

_LEFT_OUT = {"id", "unknown", "text"}
_KINDS = {"categorical", "numerical", "datetime", "boolean"}


def sdv_kinds(metadata: Mapping[str, Any], *, table: str | None = None) -> dict[str, str]:
    """Return the type (categorical, numerical, datetime or boolean) of each column that SDV would model, by name.

    ``metadata`` is the JSON of SDV as a mapping, and ``table`` names the table if there are several. Columns of
    personal data and those of the types id, text and unknown are left out; types that are not among SDV's general ones,
    such as "email", count as categorical. Raises :class:`SchemaError` for metadata that is not SDV's, and without
    ``table`` if it describes several tables.
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


def sdv_formats(metadata: Mapping[str, Any], *, table: str | None = None) -> dict[str, str]:
    """Return the ``datetime_format`` of each column that states one; arguments are those of :func:`sdv_kinds`."""
    columns: Mapping[str, Mapping[str, Any]] = _table(metadata, table).get("columns", {})
    formats = {name: entry.get("datetime_format") for name, entry in columns.items()}
    return {name: form for name, form in formats.items() if isinstance(form, str)}


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
