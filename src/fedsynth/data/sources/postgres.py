"""A site's rows in a PostgreSQL database, counted there or read in Arrow batches through ADBC (Arrow's driver).

Counting statements are compiled by ibis (:mod:`fedsynth.data.sources.ibis`) and run here: ibis' own PostgreSQL backend
sets neither the transaction nor its timeout and search path, and its error messages quote values. The reading of each
PostgreSQL type, which ibis does not know, is written by hand (:data:`_READS`).

Rule 1: nothing is written: every statement runs in a read-only, repeatable-read transaction with a timeout.
Rule 2: no password is held, so none can be disclosed. PostgreSQL's client library, libpq, takes passwords from their
    usual places (a PGPASSFILE, a service of PGSERVICEFILE, or the environment), and an address with a password is
    refused.
Rule 3: names and texts enter SQL only through :func:`quote_name` and :func:`quote_text`, or as literals of the
    statements that ibis compiles.
Rule 4: of the database's own messages only those about a failed connection are passed on; any other is replaced by a
    sentence of this module, because a message about a value could quote a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from fedsynth.data.sources.database import read_address, refuse_counting, refuse_missing_values, role_of, unfit
from fedsynth.errors import FedsynthError, SchemaError, from_extra
from fedsynth.rows import BadLine, Rows, absent_columns
from fedsynth.schema import MISSING, Schema
from fedsynth.schema.columns import Column

# libpq options that hold no secret and affect neither the content nor the format of the replies.
_OPTIONS = {
    "connect_timeout", "gssencmode", "krbsrvname", "passfile", "service", "sslcert", "sslcrl", "sslkey", "sslmode",
    "sslrootcert", "target_session_attrs",
}  # fmt: skip
_BATCH = 1 << 22  # bytes of the database's reply held at a time
_UNITS: dict[Any, int] = {"timestamp": 1, "date": 86_400_000_000}  # microseconds
_LARGEST_DOUBLE = "1.7976931348623157e308"
# ADBC counts from 1970, PostgreSQL from 2000. In the conversion, infinity and the last years wrap around to before the
# first time that PostgreSQL knows. Dates extend beyond the range of microseconds in 64 bits.
_FIRST, _LAST = -210_866_803_200_000_000, 2**63 - 1

_CATALOGUE = """
WITH RECURSIVE known(number, name, type, typed, base, kind) AS (
  SELECT a.attnum, a.attname::text, t.typname::text, format_type(a.atttypid, a.atttypmod), t.typbasetype,
    t.typtype::text
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
  JOIN pg_attribute AS a ON a.attrelid = c.oid JOIN pg_type AS t ON t.oid = a.atttypid
  WHERE n.nspname = {schema} AND c.relname = {table} AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
    AND a.attnum > 0 AND NOT a.attisdropped
  UNION ALL
  SELECT k.number, k.name, t.typname::text, k.typed, t.typbasetype, t.typtype::text
  FROM known AS k JOIN pg_type AS t ON t.oid = k.base WHERE k.kind = 'd'
)
SELECT name, CASE WHEN kind = 'e' THEN 'enum' ELSE type END, typed FROM known WHERE kind <> 'd' ORDER BY number
"""

_FAMILIES = {
    **dict.fromkeys(("int2", "int4", "int8"), "integer"),
    **dict.fromkeys(("float4", "float8"), "float"),
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "citext", "uuid", "enum"), "text"),
    **{name: name for name in ("numeric", "bool", "date", "timestamp", "timestamptz", "bytea")},
}

# How each kind of column reads each family of types: text where text matters, everything else in binary. Bytes become
# text only here (fedsynth.data.sources.arrow): in the database, bytes that are not UTF-8 would stop the statement.
_AS_IT_IS, _TEXT, _DOUBLE, _WHOLE = "{}", "{}::text", "{}::float8", "{}::int4"
_DIGITS = "NULLIF({}, 'NaN')::text"  # all of them: a double has no more than 17
_TEXTS = {"text": _TEXT, "bytea": _AS_IT_IS}
_READS: dict[str, dict[str, str]] = {
    "label": {
        **_TEXTS, **dict.fromkeys(("integer", "bool", "date", "timestamp", "timestamptz"), _TEXT),
        **dict.fromkeys(("numeric", "float"), _DIGITS),
    },
    "number": {**_TEXTS, "integer": _AS_IT_IS, "bool": _WHOLE, "numeric": _DOUBLE, "float": _DOUBLE},
    "boolean": {**_TEXTS, "integer": _AS_IT_IS, "bool": _AS_IT_IS, "numeric": _DOUBLE, "float": _DOUBLE},
    "time": {**_TEXTS, "date": _AS_IT_IS, "timestamp": _AS_IT_IS},
    "aware time": {**_TEXTS, "date": _AS_IT_IS, "timestamp": _AS_IT_IS, "timestamptz": _AS_IT_IS},
    "anything": {
        **_TEXTS, "integer": _AS_IT_IS, "numeric": _DIGITS, "float": _DOUBLE, "bool": _AS_IT_IS, "date": _AS_IT_IS,
        "timestamp": _AS_IT_IS, "timestamptz": _AS_IT_IS,
    },
}  # fmt: skip
# How a counted column is compared: a cast of the value that is read, and the resulting ibis type.
_COUNTED = {
    **dict.fromkeys([("label", kind) for kind in _READS["label"] if kind != "bytea"], ('({}) COLLATE "C"', "string")),
    **dict.fromkeys([(role, kind) for role in ("number", "boolean") for kind in ("numeric", "float")],
                    ("{}", "float64")),
    **dict.fromkeys([("number", "integer"), ("number", "bool"), ("boolean", "integer")], ("{}", "int64")),
    ("boolean", "bool"): ("{}", "boolean"),
    **dict.fromkeys([(role, kind) for role in ("time", "aware time") for kind in ("date", "timestamp")],
                    ("({})::timestamp", "timestamp")),
    ("aware time", "timestamptz"): ("(({}) AT TIME ZONE 'UTC')", "timestamp"),
}  # fmt: skip


@dataclass(frozen=True)
class PostgresTable:
    """A site's rows in a table or view of a PostgreSQL database, as a :class:`~fedsynth.rows.Source`.

    ``address`` is the database's URI, as PostgreSQL's client library libpq reads it, without a password. ``relation``
    is the table's schema (in PostgreSQL's sense) and name. No statement may run longer than ``timeout`` seconds;
    reading the whole table is one statement. ``cursor`` is the database cursor of a :meth:`snapshot`'s transaction.
    Rows that row-level security hides from the database role that reads do not belong to the site's rows.
    """

    address: str
    relation: tuple[str, str]
    timeout: float = 3600.0
    cursor: Any = field(default=None, repr=False, compare=False)  # of the session of a snapshot
    file: Path | None = None
    is_text = False
    keeps_order = False

    @property
    def name(self) -> str:
        """Name of the table for messages, as schema.name."""
        return ".".join(self.relation)

    @property
    def quoted(self) -> str:
        """Name of the table, quoted for SQL."""
        return ".".join(quote_name(part) for part in self.relation)

    def columns(self) -> list[str]:
        """Return the names of the table's columns in order; raises :class:`SchemaError` if there is no such table."""
        with session(self) as cursor:
            return list(types_of(self, cursor))

    def unfit(self, columns: Sequence[Column]) -> dict[str, str]:
        """Return an error message, by name, for each of the schema's ``columns`` that cannot read its SQL type here."""
        with session(self) as cursor:
            found = types_of(self, cursor)
        families = {column.name: found[column.name] for column in columns if column.name in found}
        return {
            column.name: str(_unfit(column.name, families[column.name][1], column))
            for column in columns
            if column.name in families and families[column.name][0] not in _READS[role_of(column)]
        }

    def require(self, wanted: Mapping[str, Column | None]) -> None:
        """Raise an error unless the database answers, and lets its role read the ``wanted`` columns, by their types."""
        with session(self) as cursor:
            run(self, cursor, f"{self._selection(cursor, wanted, strict=False)} LIMIT 0")

    def batches(
        self, wanted: Mapping[str, Column | None], chunk_rows: int, *, strict: bool = False
    ) -> Iterator[tuple[Any, Sequence[BadLine]]]:
        """Yield pairs of an Arrow table with the ``wanted`` columns, and an empty list, since no line is malformed.

        A table has about 4 MiB; rows come in an arbitrary order. Raises :class:`SchemaError` if a column's SQL type
        cannot be read by its schema column (or at all, if that is ``None``). Times at infinity, or outside the range of
        64-bit microseconds (4713 BC to the year 294000), become the first or last time in the range; but ``strict``
        refuses them in a column that ``wanted`` maps to ``None``.
        """
        with session(self) as cursor:
            statement = self._selection(cursor, wanted, strict=strict)
            with _errors_translated(self):
                cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(_BATCH)})
                cursor.execute(statement)
                reader = cursor.fetch_record_batch()
            with reader:
                while (batch := _next(self, reader)) is not None:
                    if strict:
                        _refuse_no_time(self, batch)
                    yield pa.Table.from_batches([batch]), ()

    def _selection(self, cursor: Any, wanted: Mapping[str, Column | None], *, strict: bool) -> str:
        found = types_of(self, cursor, wanted)
        selected = ", ".join(
            f"{_expression(name, column, *found[name], strict=strict)} AS {quote_name(name)}"
            for name, column in wanted.items()
        )
        return f"SELECT {selected} FROM {self.quoted}"

    @contextmanager
    def snapshot(self) -> Iterator[PostgresTable]:
        """Yield the table as it is at this moment, within a ``with`` block: everything is read in one transaction."""
        with session(self) as cursor:
            yield replace(self, cursor=cursor)

    @contextmanager
    def counted(self, schema: Schema) -> Iterator[Rows]:
        """Yield the rows, which the database counts, within a ``with`` block: for rows that must not leave it.

        An open snapshot keeps the database from cleaning up old row versions: open one for each message that the site
        answers, not one for a whole run. Raises :class:`SchemaError` if the table, its columns or their types do not
        fit, and :class:`Unsupported` for text that stands for numbers, booleans or times, which only a reader can
        interpret, and for times in units too fine to be counted exactly in SQL.
        """
        from fedsynth.data.sources.ibis import CountedRows

        with self.snapshot() as held:
            yield CountedRows(schema, _Counting.of(held, schema))


def parse_address(text: str) -> PostgresTable:
    """Parse an address such as ``postgresql://user@host:port/database?table=schema.name``; nothing is opened.

    PostgreSQL's schema (default: ``public``) and the table's name are taken literally, without folding to lower case or
    a search path. A name that contains a dot must be in double quotes. The option ``timeout`` is in seconds (default:
    3600); all others are options of libpq, PostgreSQL's client library, of which only some are admitted. Raises
    :class:`FedsynthError`, which never repeats the address because it may hold a password.
    """
    form = "postgresql://user@host/database?table=schema.name"
    parts = read_address(
        text,
        form,
        "put it into a password file (host:port:database:user:password, chmod 600) given by PGPASSFILE or passfile=, "
        "or use a service",
    )
    given = parts.options
    timeout = given.pop("timeout", "3600")
    if not re.fullmatch(r"\d{1,6}", timeout) or not int(timeout):
        raise FedsynthError("timeout in the database's address must be a whole number of seconds, 1 to 999999")
    if unknown := sorted(set(given) - _OPTIONS):
        raise FedsynthError(f"unknown options {unknown} in the database's address; known options: {sorted(_OPTIONS)}")
    options = {"connect_timeout": "30", **given, "fallback_application_name": "fedsynth"}
    address = f"postgresql://{parts.place}?" + "&".join(
        f"{key}={quote(value, safe='')}" for key, value in options.items()
    )
    schema, table = parts.relation
    return PostgresTable(address, (schema or "public", table), float(timeout))


def quote_name(name: str) -> str:
    """Quote a name for SQL, in which all characters stand for themselves; raises :class:`SchemaError` for a NUL."""
    return '"' + _without_zero(name).replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """Quote a text for SQL, in which all characters stand for themselves; raises :class:`SchemaError` for a NUL.

    In a :func:`session`, a backslash is an ordinary character (``standard_conforming_strings``).
    """
    return "'" + _without_zero(text).replace("'", "''") + "'"


@contextmanager
def session(source: PostgresTable) -> Iterator[Any]:
    """Yield a database cursor within a ``with`` block, for reading one state of the database of ``source``.

    The cursor is in a read-only transaction, which later changes do not affect. If ``source`` is a snapshot, its own
    cursor is yielded and stays open. Raises :class:`Unsupported` without the database's driver, and
    :class:`FedsynthError` if the database cannot be reached.
    """
    if source.cursor is not None:
        yield source.cursor
        return
    with from_extra("sql", "reading from a database needs a driver"):
        import adbc_driver_postgresql.dbapi as driver
    settings = {
        "statement_timeout": str(int(source.timeout * 1000)),
        "standard_conforming_strings": "on",
        "search_path": "pg_catalog, pg_temp",  # system functions only
        "TimeZone": "UTC",
        "DateStyle": "ISO",
        "extra_float_digits": "1",  # doubles as text: the shortest that identifies them
        "jit": "off",  # would compile every expression anew for each statement, which costs more than it saves
    }
    with _errors_translated(source):
        connection = driver.connect(source.address, autocommit=True)
    try:
        with _errors_translated(source):
            cursor = connection.cursor()
        try:
            with _errors_translated(source):
                cursor.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                for key, value in settings.items():
                    cursor.execute(f"SET LOCAL {key} = {value if key == 'search_path' else quote_text(value)}")
            yield cursor
        finally:
            cursor.close()
    finally:
        connection.close()


def run(source: PostgresTable, cursor: Any, sql: str) -> pa.Table:
    """Return the complete reply to the statement ``sql``; a :class:`FedsynthError` contains no value of a row."""
    with _errors_translated(source):
        cursor.execute(sql)
        return cursor.fetch_arrow_table()


def types_of(source: PostgresTable, cursor: Any, needed: Iterable[str] = ()) -> dict[str, tuple[str, str]]:
    """Return the family of each column's SQL type, and the type as written in SQL, by column name, in order.

    The family ("integer", "text", "timestamp", ...) determines how values are read, and is empty for an unreadable
    type. Raises :class:`SchemaError` if the table, or a column named in ``needed``, does not exist.
    """
    schema, table = (quote_text(part) for part in source.relation)
    rows = run(source, cursor, _CATALOGUE.format(schema=schema, table=table)).to_pylist()
    if not rows:
        raise SchemaError(
            f"the database has no table or view {source.name}; correct table=schema.name (names are case-sensitive)"
        )
    found = {name: (_FAMILIES.get(kind, ""), typed) for name, kind, typed in (tuple(row.values()) for row in rows)}
    if absent := absent_columns(source.name, list(found), needed):
        raise SchemaError(absent)
    return found


def counted_value(column: Column, family: str, typed: str, missing_values: Sequence[str] = MISSING) -> tuple[str, str]:
    """Return the SQL expression of a schema ``column``'s value in statements that count rows, and its type in ibis.

    ``family`` and ``typed`` are those of :func:`types_of`. Raises :class:`SchemaError` for a type that the column
    cannot read, and :class:`Unsupported` for text that stands for numbers, booleans or times, and for numbers, booleans
    or times that stand for missing values.
    """
    value = _expression(column.name, column, family, typed, strict=False)
    if (role_of(column), family) not in _COUNTED:
        raise refuse_counting(column, "bytes" if family == "bytea" else "text")
    cast, kind = _COUNTED[role_of(column), family]
    if kind == "string":
        return cast.format(value), kind
    refuse_missing_values(column, missing_values)
    return cast.format(f"NULLIF({value}, 'NaN')" if kind == "float64" else value), kind


@dataclass(frozen=True)
class _Counting:
    """A table's snapshot as a :class:`~fedsynth.data.sources.ibis.Counting`.

    ``values`` are the SQL expressions of the columns. Text is compared byte by byte, regardless of its column's
    collation. Byte order equals the order of Python's text only in UTF-8, and in databases without an encoding.
    """

    source: PostgresTable
    values: Mapping[int, str]
    types: Mapping[int, str]
    orders_text: bool

    @classmethod
    def of(cls, source: PostgresTable, schema: Schema) -> _Counting:
        found = types_of(source, source.cursor, [column.name for column in schema.asked])
        values, types = {}, {}
        for position, column in enumerate(schema.asked):
            kind = found[column.name]
            values[position], types[position] = counted_value(column, *kind, schema.missing_values)
        # Reads no row, but checks that the role may read the table.
        sql = f"SELECT current_setting('server_encoding') WHERE NOT EXISTS (SELECT FROM {source.quoted} LIMIT 0)"
        encoding = run(source, source.cursor, sql).column(0)[0].as_py()
        return cls(source, values, types, encoding in ("UTF8", "SQL_ASCII"))

    def sql(self, expression: Any) -> str:
        import ibis

        return str(ibis.to_sql(expression, dialect="postgres", pretty=False))

    def ask(self, columns: Sequence[int], steps: Mapping[str, str], counts: Sequence[str]) -> Iterator[Any]:
        """Yield the reply to a single statement: a read-only transaction cannot store codes in a temporary table."""
        from fedsynth.data.sources.ibis import ROWS, with_steps

        values = ", ".join(f"{self.values[column]} AS v{column}" for column in columns) or "1 AS nothing"
        steps = {ROWS: f"SELECT {values} FROM {self.source.quoted}", **steps}
        # OFFSET 0 keeps the planner from recomputing a value for each comparison with it.
        yield run(self.source, self.source.cursor, with_steps(steps, counts, " OFFSET 0", " MATERIALIZED"))

    def rows_read(self) -> int:
        counted = run(self.source, self.source.cursor, f"SELECT count(*) FROM {self.source.quoted}")
        return int(counted.column(0)[0].as_py())


def _unfit(name: str, typed: str, column: Column | None) -> SchemaError:
    return unfit(name, typed, column, zoned="with time zone" in typed)


def as_double(value: str, family: str) -> str:
    """Return the SQL of the double nearest to a number; a ``numeric`` beyond the range of doubles becomes infinite.

    A plain cast would raise an error for such a value, so that a single row could stop the statement.
    """
    if family != "numeric":
        return f"{value}::float8"
    return (
        f"CASE WHEN abs({value}) < 3e-324 THEN 0 WHEN {value} = 'NaN' THEN 'NaN' "
        f"WHEN {value} > {_LARGEST_DOUBLE} THEN 'Infinity' WHEN {value} < -{_LARGEST_DOUBLE} THEN '-Infinity' "
        f"ELSE {value}::float8 END"
    )


def bounded_time(value: str, family: str) -> str:
    """Return the SQL of a value whose times are clipped (infinity included) to 4713 BC and the year 294000.

    Times in this range fit 64-bit microseconds.
    """
    if family not in ("date", "timestamp", "timestamptz"):
        return value
    first, last = (f"{family} '{end}'" for end in ("4713-12-01 BC", "294000-01-01"))
    return f"CASE WHEN {value} < {first} THEN {first} WHEN {value} > {last} THEN {last} ELSE {value} END"


def _expression(name: str, column: Column | None, family: str, typed: str, *, strict: bool) -> str:
    form = _READS[role_of(column)].get(family)
    if form is None:
        raise _unfit(name, typed, column)
    value = quote_name(name)
    if form == _DOUBLE:
        return as_double(value, family)
    return form.format(value if column is None and strict else bounded_time(value, family))


def _next(source: PostgresTable, reader: Any) -> pa.RecordBatch | None:
    try:
        with _errors_translated(source):
            return reader.read_next_batch()
    except StopIteration:
        return None


def _refuse_no_time(source: PostgresTable, batch: pa.RecordBatch) -> None:
    for name, values in zip(batch.schema.names, batch.columns, strict=True):
        if not pa.types.is_temporal(values.type):
            continue
        date = pa.types.is_date32(values.type)
        unit = _UNITS["date" if date else "timestamp"]
        ends = pc.min_max(values.cast(pa.int32()).cast(pa.int64()) if date else values.cast(pa.int64())).as_py()
        if ends["min"] is not None and (ends["min"] < _FIRST // unit or ends["max"] > _LAST // unit):
            raise SchemaError(
                f"column {name!r} of {source.name} holds infinity or a year after 294000, which fedsynth cannot "
                "represent; read a view that replaces it by NULL or by a date within the bounds"
            )


@contextmanager
def _errors_translated(source: PostgresTable) -> Iterator[None]:
    """Translate the driver's errors; no message or traceback contains the value of a row."""
    from adbc_driver_manager import Error

    try:
        yield
    except Error as error:
        raise _translated(source, error.sqlstate, str(error)) from None
    except (OSError, pa.ArrowException):  # raised by a stream of batches, whatever the cause
        raise SchemaError(
            f"the database stopped sending {source.name}: it took longer than {source.timeout:g} s, the connection "
            "was lost, or a view could not compute a value; see the database's own log"
        ) from None


def _translated(source: PostgresTable, state: str | None, text: str) -> FedsynthError:
    if state is None:
        reason = text.split("Failed to connect: ", 1)[-1].split("\n", 1)[0].strip()
        return FedsynthError(f"cannot connect to the database: {reason}; check [source], PGPASSFILE and PGHOST")
    match state:
        case "42501":
            return FedsynthError(
                f"the database role may not read {source.name}; grant it SELECT on the table (and USAGE on its schema)"
            )
        case "42P01" | "42703" | "3F000":
            return SchemaError(f"{source.name} or one of its columns no longer exists; correct table=schema.name")
        case "57014":
            return FedsynthError(
                f"reading {source.name} took longer than {source.timeout:g} s and was stopped; set timeout= higher"
            )
        case _ if state[:2] in ("22", "23", "P0"):
            return SchemaError(
                f"a value of {source.name} does not fit its type or its view (SQLSTATE {state}); see the database's "
                "own log"
            )
        case _:
            return FedsynthError(f"the database refused to read {source.name} (SQLSTATE {state}); see its own log")


def _without_zero(text: str) -> str:
    if "\0" in text:
        raise SchemaError(f"{text!r} contains a NUL character, which PostgreSQL cannot store; drop it from the schema")
    return text
