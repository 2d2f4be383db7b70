"""A site's rows in a DuckDB file, counted there or read in Arrow batches.

The file is opened for reading only, in a transaction. While it is, DuckDB lets no process open it for writing, nor the
other way round: whoever writes to it has to wait for the end of a question, and a question fails while it is written.
So a question sees one state of the rows, without a promise of the site.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsynth.data.sources.database import read_address
from fedsynth.data.sources.engine import EngineTable
from fedsynth.errors import FedsynthError, SchemaError, from_extra


@dataclass(frozen=True)
class DuckDbTable(EngineTable):
    """A site's rows in a table or view of a DuckDB file."""

    materialized = " MATERIALIZED"

    def connect(self) -> Any:
        """Open the file for reading only."""
        with from_extra("duckdb", "reading a DuckDB file needs duckdb"):
            import duckdb
            import ibis

            backend = ibis.duckdb
        path = self.folder / self.address.place
        if not path.is_file():
            raise FedsynthError(f"the DuckDB file {path} is missing, or not a file; correct the address")
        try:
            connection = backend.connect(path, read_only=True)
            connection.raw_sql("SET TimeZone = 'UTC'; SET enable_external_access = false; BEGIN TRANSACTION")
        except (duckdb.IOException, duckdb.ConnectionException):
            raise FedsynthError(
                f"the DuckDB file {path} could not be opened for reading: DuckDB opens a file for one writer or for "
                "readers, never both. Close the program that has it open for writing (a notebook, a shell, an import) "
                "and try again, or name a copy of the file; if none has, it is of a newer DuckDB or damaged"
            ) from None
        return connection

    @contextmanager
    def snapshot(self) -> Iterator[EngineTable]:
        """Yield the table as it is at this moment, within a ``with`` block."""
        with self.session() as held:
            held.table()
            yield held

    def by_bytes(self, text: Any) -> Any:
        """Return the expression of a text without its column's collation, which a cast keeps."""
        import ibis

        decode, encode = (
            ibis.udf.scalar.builtin(lambda value: None, name=name, signature=((given,), made))
            for name, given, made in (("decode", "binary", "string"), ("encode", "string", "binary"))
        )
        return decode(encode(text))

    def reader(self, selection: Any, chunk_rows: int) -> Any:
        """Return a reader of the rows of an ibis expression in Arrow batches."""
        return self.connection.con.sql(self.connection.compile(selection)).to_arrow_reader(chunk_rows)

    def run(self, sql: str) -> Any:
        """Return the reply to a counting statement as an Arrow table."""
        return self.connection.con.sql(sql).to_arrow_table()

    def refused(self, error: Exception) -> FedsynthError:
        """Return the error for one of DuckDB."""
        return SchemaError(
            f"DuckDB could not read {self.name} ({type(error).__name__}); a view there cannot compute a value, or the "
            "file is damaged: SELECT from it in DuckDB's own shell to see why"
        )


def parse_address(text: str, folder: Path) -> DuckDbTable:
    """Parse an address such as ``duckdb:///path/file.duckdb?table=schema.name``; nothing is opened.

    A path without the third slash is relative to ``folder``. The schema's default is DuckDB's, ``main``.
    """
    found = read_address(text, form := "duckdb:///path/file.duckdb?table=schema.name", f"write {form}")
    if found.options or not found.place:
        raise FedsynthError(f"the database's address is not of the form {form}; correct it")
    return DuckDbTable(found, folder)
