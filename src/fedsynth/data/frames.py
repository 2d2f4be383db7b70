"""Tables of other libraries as data frames: whatever exports Arrow, such as polars, DuckDB and Arrow itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedsynth.errors import SchemaError

if TYPE_CHECKING:
    import pandas as pd


class ArrowStream(Protocol):
    """A table that exports an Arrow stream: of polars, DuckDB, Arrow and others."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the stream as a capsule."""


def as_frame(rows: Any, what: str) -> pd.DataFrame:
    """Return a table as a data frame: one of pandas as it is, any that exports an Arrow stream, or a file by its path.

    Cells of files are text (:func:`fedsynth.read_table`), others keep their types. ``what`` names the table in errors.
    Raises :class:`SchemaError` for anything else, with what to do.
    """
    import pandas as pd

    if isinstance(rows, pd.DataFrame):
        return rows
    if isinstance(rows, str | Path):
        from fedsynth.data.read import read_frame

        return read_frame(rows)
    kind = f"{type(rows).__module__.partition('.')[0]}.{type(rows).__name__}"
    exports = hasattr(rows, "__arrow_c_stream__") and not isinstance(rows, pd.Series)
    if not exports and hasattr(rows, "collect"):
        raise SchemaError(f"{what} is a {kind}, whose rows are not there yet; pass what its collect() returns")
    if not exports:
        raise SchemaError(
            f"{what} is of the type {kind}; pass a data frame (of pandas, polars, DuckDB or Arrow), or the path of a "
            "CSV or Parquet file (a dict or a series becomes one with pd.DataFrame(...))"
        )
    import pyarrow as pa

    from fedsynth.data.sources.arrow import frame_of

    try:
        table = pa.RecordBatchReader.from_stream(rows).read_all()
    except pa.ArrowInvalid as error:
        raise SchemaError(f"{what} is a {kind}, which is no table ({error}); pass a data frame") from error
    views = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    fields = [field.with_type(views.get(field.type, field.type)) for field in table.schema]
    return frame_of(table.cast(pa.schema(fields)), typed=True)
