"""A site's rows in an engine that ibis connects to, counted there or read in Arrow batches.

Rule 1: nothing is written: every statement is a ``SELECT``.
Rule 2: fedsynth has tested no snapshot of these engines, so the site promises that the table does not change
    (``immutable = true``). The number of rows and a digest of the columns, before and after each question, are compared
    to keep it; where they differ, the question ends with an error.
Rule 3: no address with a password is accepted, and no message of the engine or its driver is passed on, because it
    could quote a row or a credential: only the class of its error is.
Rule 4: a column is read, and counted, by its type in the engine; each value by itself, so that none stops a statement.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedsynth.data.sources.database import (
    Address,
    read_address,
    refuse_counting,
    refuse_missing_values,
    role_of,
    unfit,
)
from fedsynth.data.sources.ibis import ROWS, CountedRows, with_steps
from fedsynth.errors import FedsynthError, SchemaError, Unsupported, from_extra
from fedsynth.rows import BadLine, Rows, absent_columns
from fedsynth.schema import Schema
from fedsynth.schema.columns import Categorical, Column

TABLES = 200
"""Most tables of one statement, whose length engines bound."""
_REPLY = {"block": "int64", "cell": "int64", "rows": "int64"}
_SIMPLE = {"text", "bytes", "integer", "number", "boolean"}
_READ = {
    "label": {*_SIMPLE, "decimal", "date", "time", "aware time"},
    "number": {*_SIMPLE, "decimal"},
    "boolean": {*_SIMPLE, "decimal"},
    "time": {"text", "bytes", "date", "time"},
    "aware time": {"text", "bytes", "date", "time", "aware time"},
    "anything": {*_SIMPLE, "decimal", "date", "time", "aware time"},
}
# The engines in which a time with a time zone is known to be cast to the local time in UTC.
_IN_UTC = ("duckdb", "pyspark")
# The engines that compare texts by their bytes; in others, a collation may take "a" for "A".
_BY_BYTES = ("duckdb", "sqlite", "pyspark", "databricks", "trino", "bigquery", "snowflake", "clickhouse")


@dataclass(frozen=True)
class EngineTable:
    """A site's rows in a table or view of an engine, as a :class:`~fedsynth.rows.Source`.

    ``connection`` is the ibis backend of a :meth:`snapshot`. ``folder`` is that which paths of files are relative to.
    """

    address: Address = field(repr=False)
    folder: Path = Path()
    connection: Any = field(default=None, repr=False, compare=False)
    file = None
    is_text = False
    keeps_order = False
    fence = ""  # SQL at the end of a subquery whose values are to be computed only once
    materialized = ""  # SQL before the last relation of WITH, which is to be computed only once

    @property
    def name(self) -> str:
        """Name of the table for messages, as schema.name."""
        return ".".join(part for part in self.address.relation if part)

    def columns(self) -> list[str]:
        """Return the names of the table's columns in order; raises :class:`SchemaError` if there is no such table."""
        with self.session() as held:
            return list(held.table().columns)

    def unfit(self, columns: Sequence[Column]) -> dict[str, str]:
        """Return an error message, by name, for each of the schema's ``columns`` that cannot read its type here."""
        with self.session() as held:
            kinds = held.table().schema()
        there = [column for column in columns if column.name in kinds]
        return {
            column.name: str(_unfit(column.name, kinds[column.name], column))
            for column in there
            if family_of(kinds[column.name]) not in _READ[role_of(column)]
        }

    def require(self, wanted: Mapping[str, Column | None]) -> None:
        """Raise an error unless the engine answers, and lets the ``wanted`` columns be read, by their types."""
        with self.session() as held:
            for _ in held.tables(held.selection(wanted).limit(0), 1):
                pass

    def batches(
        self, wanted: Mapping[str, Column | None], chunk_rows: int, *, strict: bool = False
    ) -> Iterator[tuple[Any, Sequence[BadLine]]]:
        """Yield pairs of an Arrow table with the ``wanted`` columns, and an empty list, since no line is malformed.

        Rows come in an arbitrary order; ``strict`` is ignored. Raises :class:`SchemaError` if a column's type cannot be
        read by its schema column (or at all, if that is ``None``).
        """
        with self.snapshot() if self.connection is None else self.session() as held:
            for table in held.tables(held.selection(wanted), chunk_rows):
                yield table, ()

    def tables(self, selection: Any, chunk_rows: int) -> Iterator[Any]:
        """Yield the rows of an ibis expression as Arrow tables."""
        with self.errors_translated():
            reader = self.reader(selection, chunk_rows)
        while True:
            try:
                with self.errors_translated(StopIteration):
                    batch = reader.read_next_batch()
            except StopIteration:
                return
            yield pa.Table.from_batches([batch])

    def reader(self, selection: Any, chunk_rows: int) -> Any:
        """Return a reader of the rows of an ibis expression in Arrow batches."""
        return self.connection.to_pyarrow_batches(selection, chunk_size=chunk_rows)

    @contextmanager
    def snapshot(self) -> Iterator[EngineTable]:
        """Yield the table, within a ``with`` block, at whose end :class:`FedsynthError` is raised if it has changed."""
        with self.session() as held:
            before = held.stamp()
            yield held
            if held.stamp() != before:
                raise FedsynthError(
                    f"{self.name} has changed while it was read, though immutable = true says that it does not; name a "
                    "table that nobody writes to, such as a dated copy"
                )

    @contextmanager
    def counted(self, schema: Schema) -> Iterator[Rows]:
        """Yield the rows, which the engine counts, within a ``with`` block: for rows that must not leave it.

        Raises :class:`SchemaError` if the table, its columns or their types do not fit, and :class:`Unsupported` for
        values that the engine cannot interpret as a reader does.
        """
        with self.snapshot() as held:
            values = held.table([column.name for column in schema.asked])
            named = {
                f"v{at}": held.counted_value(column, values[column.name], schema.missing_values)
                for at, column in enumerate(schema.asked)
            }
            yield CountedRows(schema, _Counting(held, values.select(**named)))

    # -----------------------------------------------------------------------------------------------------------------
    # Within a session

    @contextmanager
    def session(self) -> Iterator[Any]:
        """Yield the source with a connection, within a ``with`` block; its own, if it has one, which stays open."""
        if self.connection is not None:
            yield self
            return
        with from_extra("sql", "an engine needs ibis"):
            import ibis  # noqa: F401
        with self.errors_translated():
            connection = self.connect()
        try:
            yield replace(self, connection=connection)
        finally:
            with self.errors_translated():
                self.disconnect(connection)

    def connect(self) -> Any:
        """Return a connected ibis backend; raises :class:`Unsupported` without the engine's driver."""
        import ibis

        scheme, place, options = self.address.scheme, self.address.place, self.address.options
        try:
            getattr(ibis, scheme)  # imports the engine's driver
        except ImportError as error:
            raise Unsupported(
                f"{scheme}:// needs the driver of its engine; pip install 'ibis-framework[{scheme}]'"
            ) from error
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return ibis.connect(os.path.expandvars(f"{scheme}://{place}" + (f"?{query}" if query else "")))

    def disconnect(self, connection: Any) -> None:
        """Close a connection."""
        connection.disconnect()

    def table(self, needed: Sequence[str] = ()) -> Any:
        """Return the table as an ibis expression; raises :class:`SchemaError` if it, or a needed column, is missing."""
        from ibis.common.exceptions import TableNotFound

        schema, name = self.address.relation
        with self.errors_translated():
            try:
                found = self.connection.table(name, database=(schema,) if schema else None)
            except TableNotFound:
                raise SchemaError(
                    f"the database has no table or view {self.name}; correct table=schema.name (names are "
                    "case-sensitive)"
                ) from None
        if absent := absent_columns(self.name, list(found.columns), needed):
            raise SchemaError(absent)
        return found

    def selection(self, wanted: Mapping[str, Column | None]) -> Any:
        """Return the expression of the ``wanted`` columns as they are read; raises :class:`SchemaError`."""
        table = self.table(list(wanted))
        return table.select(**{name: self.read_value(name, column, table[name]) for name, column in wanted.items()})

    def read_value(self, name: str, column: Column | None, value: Any) -> Any:
        """Return the expression that a schema ``column`` reads of a table's column ``name``."""
        family = family_of(value.type())
        if family not in _READ[role_of(column)]:
            raise _unfit(name, value.type(), column)
        return _as_number(value, column) if family == "decimal" else value.cast("string") if family == "text" else value

    def counted_value(self, column: Column, value: Any, missing_values: Sequence[str]) -> Any:
        """Return the expression of a column's value in statements that count rows.

        It is a text, an "int64", a "float64" that is not NaN, a "boolean", or a time in UTC within the years 1 to 9999.
        """
        kind, role = value.type(), role_of(column)
        family = family_of(kind)
        value = self.read_value(column.name, column, value)
        if isinstance(column, Categorical) and role == "label":
            if family in ("bytes", "number", "time", "aware time"):
                raise refuse_counting(column, str(kind))
            import ibis

            if family == "boolean":
                return ibis.ifelse(value.isnull(), ibis.null("string"), ibis.ifelse(value, "True", "False"))
            if family == "text" and self.address.scheme not in _BY_BYTES:
                raise refuse_counting(column, "text")
            return self.by_bytes(value.cast("string"))
        if family in ("text", "bytes"):
            raise refuse_counting(column, "bytes" if family == "bytes" else "text")
        refuse_missing_values(column, missing_values)
        if "time" in role:
            if getattr(kind, "scale", None) not in (None, 0, 3, 6) or (
                family == "aware time" and self.address.scheme not in _IN_UTC
            ):
                raise refuse_counting(column, str(kind))
            return _bounded(value)
        if family in ("number", "decimal"):
            return self.without_nan(value.cast("float64"))
        if family == "boolean":
            return value if role == "boolean" else value.cast("int64")
        return value.cast("float64" if str(kind).endswith("uint64") else "int64")

    def by_bytes(self, text: Any) -> Any:
        """Return the expression of a text without its collation, so that texts are equal only if their bytes are."""
        return text

    def without_nan(self, value: Any) -> Any:
        """Return the expression of a double that is NULL in place of NaN."""
        import ibis

        return ibis.ifelse(value.isnan(), ibis.null("float64"), value)

    def stamp(self) -> tuple[int, str]:
        """Return the number of rows, and a digest of the names and types of the columns."""
        table = self.table()
        told = repr([(name, str(kind)) for name, kind in table.schema().items()])
        return self.count(table), hashlib.sha256(told.encode()).hexdigest()

    def count(self, table: Any) -> int:
        """Return the number of rows of an ibis expression."""
        import ibis

        zero = ibis.literal(0, "int64")
        counted = table.aggregate(rows=table.count()).select(block=zero, cell=zero, rows="rows")
        with self.errors_translated():
            return int(self.run(self.connection.compile(counted)).column(2)[0].as_py())

    def replies(self, steps: Mapping[str, str], counts: Sequence[str]) -> Iterator[Any]:
        """Yield the replies to counting statements, as in :class:`~fedsynth.data.sources.ibis.Counting`."""
        for start in range(0, len(counts), TABLES):
            yield self.run(with_steps(steps, counts[start : start + TABLES], self.fence, self.materialized))

    def run(self, sql: str) -> Any:
        """Return the reply to a statement as an Arrow table."""
        return self.connection.to_pyarrow(self.connection.sql(sql, schema=_REPLY))

    @contextmanager
    def errors_translated(self, *passed: type[Exception]) -> Iterator[None]:
        """Translate errors of the engine and its driver, which may quote rows or credentials."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of ibis' use of drivers that are newer than itself
                yield
        except Exception as error:
            if isinstance(error, (FedsynthError, *passed)):
                raise
            raise self.refused(error) from None

    def refused(self, error: Exception) -> FedsynthError:
        """Return the error for one of the engine or its driver."""
        return FedsynthError(
            f"{self.address.scheme}:// could not be opened, or refused to read {self.name} ({type(error).__name__}); "
            "check the address and the rights of its user, and see the engine's own log"
        )


def parse_address(text: str, folder: Path, *, immutable: bool = False) -> EngineTable:
    """Parse the address of a table in an engine, such as ``trino://user@host/catalog?table=schema.name``.

    All but ``table`` and ``immutable`` is as `ibis.connect` takes it. Raises :class:`FedsynthError` unless the site
    promises that the table is ``immutable`` (an argument, or the option ``immutable=true``).
    """
    found = read_address(
        text,
        "engine://user@host/database?table=schema.name",
        "write a variable of the environment, $NAME, in its place",
        variables=True,
    )
    promised = found.options.pop("immutable", "true" if immutable else "")
    if promised != "true":
        raise FedsynthError(
            f"fedsynth has tested no snapshot of {found.scheme}://, so a question could see some rows twice or not at "
            "all: write immutable = true under [source] of site.toml (immutable=true in the address), if nobody writes "
            "to the table during a run"
        )
    if found.scheme == "pyspark":
        from fedsynth.data.sources.spark import SparkTable

        return SparkTable(found, folder)
    if found.scheme == "sqlite":
        from fedsynth.data.sources.sqlite import SqliteTable

        return SqliteTable(found, folder)
    return EngineTable(found, folder)


@dataclass(frozen=True)
class _Counting:
    """A table's snapshot as a :class:`~fedsynth.data.sources.ibis.Counting`, of the expressions of its values."""

    source: EngineTable
    rows: Any
    orders_text = False  # unknown: texts are compared one by one

    @property
    def types(self) -> Mapping[int, str]:
        return {int(name[1:]): str(kind) for name, kind in self.rows.schema().items()}

    def sql(self, expression: Any) -> str:
        return str(self.source.connection.compile(expression))

    def ask(self, columns: Sequence[int], steps: Mapping[str, str], counts: Sequence[str]) -> Iterator[Any]:
        import ibis

        values = [f"v{column}" for column in columns]
        read = self.rows.select(*values) if values else self.rows.select(nothing=ibis.literal(1, "int64"))
        with self.source.errors_translated():
            yield from self.source.replies({ROWS: self.sql(read), **steps}, counts)

    def rows_read(self) -> int:
        return self.source.count(self.rows)


def family_of(kind: Any) -> str:
    """Return the family of an ibis type, which determines how it is read; empty for one that cannot be read."""
    tests: dict[str, Callable[[], bool]] = {
        "boolean": kind.is_boolean,
        "integer": kind.is_integer,
        "number": kind.is_floating,
        "decimal": kind.is_decimal,
        "bytes": kind.is_binary,
        "date": kind.is_date,
    }
    if kind.is_string() or kind.is_uuid():
        return "text"
    if kind.is_timestamp():
        return "time" if kind.timezone is None else "aware time"
    return next((family for family, test in tests.items() if test()), "")


def _as_number(value: Any, column: Column | None) -> Any:
    """Return the expression of a decimal: its digits, or for a column of numbers the nearest double.

    The double is that of the digits, since engines divide a decimal's integer by a power of ten, which rounds twice.
    """
    digits = value.cast("string")
    return digits if role_of(column) in ("label", "anything") else digits.cast("float64")


def _bounded(value: Any) -> Any:
    """Return the expression of a time without a zone; one outside the years 1 to 9999 is moved to the nearer end."""
    import ibis

    if value.type().is_timestamp():
        value = value.cast("timestamp")
        first, last = ibis.literal("0001-01-01 00:00:00"), ibis.literal("9999-12-31 23:59:59.999999")
        low, high = first.cast("timestamp"), last.cast("timestamp")
    else:
        low, high = ibis.literal(date(1, 1, 1)), ibis.literal(date(9999, 12, 31))
    return ibis.ifelse(value < low, low, ibis.ifelse(value > high, high, value)).cast("timestamp")


def _unfit(name: str, kind: Any, column: Column | None) -> SchemaError:
    return unfit(name, str(kind), column, zoned=family_of(kind) == "aware time")
