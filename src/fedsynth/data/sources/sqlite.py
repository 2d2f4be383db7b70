"""A site's rows in a SQLite file, which has types of single cells and none of times.

A cell of another type than its column's is missing. Columns of texts, and of declared times, are counted as times by
functions of this process that read a text as a reader of files does.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from fedsynth.data.sources.database import role_of
from fedsynth.data.sources.engine import EngineTable, family_of
from fedsynth.data.sources.ibis import NO_TIME
from fedsynth.errors import FedsynthError
from fedsynth.schema.columns import Column, Datetime, microseconds_of_text, missing_spellings

_TIMES = dict.fromkeys(("date", "datetime", "timestamp", "timestamptz", "timestamp with time zone"), "string")
_TYPES = {**_TIMES, "boolean": "int64", "bool": "int64"}  # such a column may hold any integer
_CELLS = {"text": ["text"], "bytes": ["blob"], "integer": ["integer"]}
_ARROW = {"text": pa.string(), "bytes": pa.binary(), "integer": pa.int64()}


@dataclass(frozen=True)
class SqliteTable(EngineTable):
    """A site's rows in a table or view of a SQLite file."""

    fence = " LIMIT -1 OFFSET 0"  # keeps SQLite from recomputing a value for each comparison with it
    materialized = " MATERIALIZED"

    def connect(self) -> Any:
        """Open the file for reading only."""
        import ibis

        path = (self.folder / self.address.place).resolve()
        if not path.is_file():
            raise FedsynthError(f"the SQLite file {path} is missing, or not a file; correct the address")
        opened = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)
        opened.execute("BEGIN")  # what is read first fixes what is read later
        opened.text_factory = lambda cell: cell.decode("utf-8", "replace")
        return ibis.sqlite.from_connection(opened, type_map=_TYPES)

    def read_value(self, name: str, column: Column | None, value: Any) -> Any:
        """Return the expression of the cells that have the column's type."""
        import ibis

        read = super().read_value(name, column, value)
        cells = _CELLS.get(family_of(value.type()), ["integer", "real"])
        return ibis.ifelse(value.typeof().isin(cells), read, ibis.null(read.type()))

    def counted_value(self, column: Column, value: Any, missing_values: Sequence[str]) -> Any:
        """Return the expression of a column's value; a time is in microseconds since 1970."""
        import ibis

        if not (isinstance(column, Datetime) and family_of(value.type()) == "text"):
            return super().counted_value(column, value, missing_values)
        gone = missing_spellings(column, missing_values)[0]
        zones = role_of(column) == "aware time"

        def ticks(text: str | None) -> int | None:
            return None if text is None or text in gone else microseconds_of_text(text, zones, NO_TIME)

        name = f"fedsynth_ticks_{hashlib.sha256(column.name.encode()).hexdigest()[:16]}"
        self.connection.con.create_function(name, 1, ticks, deterministic=True)
        function = ibis.udf.scalar.builtin(lambda text: None, name=name, signature=(("string",), "int64"))
        return function(self.read_value(column.name, column, value))

    def without_nan(self, value: Any) -> Any:
        """Return the value: SQLite stores NaN as NULL."""
        return value

    def tables(self, selection: Any, chunk_rows: int) -> Iterator[Any]:
        """Yield the rows of an ibis expression as Arrow tables, of the cells' own types."""
        types = [_ARROW.get(family_of(kind), pa.float64()) for kind in selection.schema().types]
        with self.errors_translated():
            cursor = self.connection.con.execute(self.connection.compile(selection))
        while True:
            with self.errors_translated():
                rows = cursor.fetchmany(chunk_rows)
            if not rows:
                return
            columns = [pa.array(cells, kind) for cells, kind in zip(zip(*rows, strict=True), types, strict=True)]
            yield pa.table(columns, names=list(selection.columns))

    def run(self, sql: str) -> Any:
        """Return the reply to a counting statement as an Arrow table."""
        rows = self.connection.con.execute(sql).fetchall()
        return pa.table(
            [pa.array([row[k] for row in rows], pa.int64()) for k in range(3)], names=["block", "cell", "rows"]
        )
