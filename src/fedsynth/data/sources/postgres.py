"""A site's rows in a PostgreSQL database, read as Arrow batches through ADBC, or counted there.

Counting statements are compiled by ibis (:mod:`fedsynth.data.sources.ibis`) and run here: ibis' own backend for
PostgreSQL sets neither the transaction nor its timeout and its search path, and its errors quote values. What is
written here by hand is the reading of each type of PostgreSQL (:data:`_READS`), which ibis does not know.

Rule 1: nothing is written: every statement runs in a read-only, repeatable-read transaction with a timeout.
Rule 2: no password is held, so none can be shown: passwords come from where libpq looks for them (a
    PGPASSFILE, a service of PGSERVICEFILE, or the environment), and an address that has one is refused unread.
Rule 3: names and texts enter SQL through :func:`quote_name` and :func:`quote_text` only.
Rule 4: of the database's messages only those about names, roles and connections are passed on; one about a value
    could quote a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc

from fedsynth.errors import FedsynthError, SchemaError, Unsupported
from fedsynth.rows import BadLine, Rows
from fedsynth.schema import Schema
from fedsynth.schema.bins import Axis
from fedsynth.schema.columns import Categorical, Column, Datetime

# Options of libpq that hold no secret and change neither what is read nor how it is written.
_OPTIONS = {
    "connect_timeout", "gssencmode", "krbsrvname", "passfile", "service", "sslcert", "sslcrl", "sslkey", "sslmode",
    "sslrootcert", "target_session_attrs",
}  # fmt: skip
_PART = r'"(?:[^"]|"")+"|[^".]+'
_RELATION = re.compile(rf"(?:(?P<schema>{_PART})\.)?(?P<table>{_PART})")
_BATCH = 1 << 22  # bytes of the database's reply held at once
_UNITS: dict[Any, int] = {"timestamp": 1, "date": 86_400_000_000}  # microseconds
_LARGEST_DOUBLE = "1.7976931348623157e308"
# ADBC counts from 1970 where PostgreSQL counts from 2000, and lets infinity and the last years wrap around: they come
# out before the first instant that PostgreSQL knows. Dates go on where microseconds in 64 bits end.
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
    **{name: name for name in ("numeric", "bool", "date", "timestamp", "timestamptz")},
}

# What each kind of column reads, and how: text is kept where text decides, everything else goes over in binary.
_AS_IT_IS, _TEXT, _DOUBLE = "{}", "{}::text", "{}::float8"
_READS: dict[str, dict[str, str]] = {
    "label": {"text": _TEXT, "integer": _TEXT, "numeric": _TEXT},
    "number": {"text": _TEXT, "integer": _AS_IT_IS, "numeric": _DOUBLE, "float": _DOUBLE},
    "boolean": {"text": _TEXT, "integer": _AS_IT_IS, "bool": _AS_IT_IS},
    "time": {"text": _TEXT, "date": _AS_IT_IS, "timestamp": _AS_IT_IS},
    "aware time": {"text": _TEXT, "date": _AS_IT_IS, "timestamp": _AS_IT_IS, "timestamptz": _AS_IT_IS},
    "anything": {
        "text": _TEXT, "integer": _AS_IT_IS, "numeric": _DOUBLE, "float": _DOUBLE, "bool": _AS_IT_IS, "date": _AS_IT_IS,
        "timestamp": _AS_IT_IS, "timestamptz": _AS_IT_IS,
    },
}  # fmt: skip
# How a column that is counted is compared: a cast of what is read, and the type of ibis that it then has.
_COUNTED = {
    **dict.fromkeys([("label", kind) for kind in ("text", "integer", "numeric")], ('{} COLLATE "C"', "string")),
    **dict.fromkeys([("number", kind) for kind in ("numeric", "float")], ("{}", "float64")),
    ("number", "integer"): ("{}", "int64"),
    ("boolean", "integer"): ("{}", "int64"),
    ("boolean", "bool"): ("{}", "boolean"),
    **dict.fromkeys([(role, kind) for role in ("time", "aware time") for kind in ("date", "timestamp")],
                    ("({})::timestamp", "timestamp")),
    ("aware time", "timestamptz"): ("(({}) AT TIME ZONE 'UTC')", "timestamp"),
}  # fmt: skip


@dataclass(frozen=True)
class PostgresTable:
    """Where a site's rows are: the table or view ``relation`` (schema, name) of the database at ``address``.

    ``address`` is a libpq URI without a password. No statement may run longer than ``timeout`` seconds; a
    reading of the whole table is one statement. What row-level security hides from the role is not
    part of the site's rows.
    """

    address: str
    relation: tuple[str, str]
    timeout: float = 3600.0
    cursor: Any = field(default=None, repr=False, compare=False)  # of a snapshot's session
    file: Path | None = None
    is_text = False
    keeps_order = False

    @property
    def name(self) -> str:
        """The table as messages name it."""
        return ".".join(self.relation)

    @property
    def quoted(self) -> str:
        """The table as SQL names it."""
        return ".".join(quote_name(part) for part in self.relation)

    def columns(self) -> list[str]:
        """Return the names of the table's columns in their order."""
        with session(self) as cursor:
            return list(types_of(self, cursor))

    def unfit(self, columns: Sequence[Column]) -> dict[str, str]:
        """Return a sentence for each of the columns whose type its column of the schema does not read."""
        with session(self) as cursor:
            found = types_of(self, cursor)
        families = {column.name: found[column.name] for column in columns if column.name in found}
        return {
            column.name: str(unfit(column.name, families[column.name][1], column))
            for column in columns
            if column.name in families and families[column.name][0] not in _READS[role_of(column)]
        }

    def batches(
        self, wanted: Mapping[str, Column | None], chunk_rows: int, *, strict: bool = False
    ) -> Iterator[tuple[Any, Sequence[BadLine]]]:
        """Yield the columns ``wanted`` in tables of about 4 MiB, in whatever order the database likes.

        Each column's type must be one that its column of the schema reads (any that can be read, where that is
        ``None``): :class:`SchemaError` otherwise. ``strict`` also refuses a column without a schema that holds infinity
        for a time; otherwise such times are the first or the last that can be counted, as for a column of the schema.
        """
        with session(self) as cursor:
            found = types_of(self, cursor, wanted)
            selected = ", ".join(
                f"{_expression(name, column, *found[name], strict=strict)} AS {quote_name(name)}"
                for name, column in wanted.items()
            )
            with _told(self):
                cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(_BATCH)})
                cursor.execute(f"SELECT {selected} FROM {self.quoted}")
                reader = cursor.fetch_record_batch()
            with reader:
                while (batch := _next(self, reader)) is not None:
                    if strict:
                        _refuse_no_time(self, batch)
                    yield pa.Table.from_batches([batch]), ()

    @contextmanager
    def snapshot(self) -> Iterator[PostgresTable]:
        """Give the table as it is now: whatever is read of it while the block lasts is of one transaction."""
        with session(self) as cursor:
            yield replace(self, cursor=cursor)

    @contextmanager
    def counted(self, schema: Schema) -> Iterator[Rows]:
        """Give one snapshot of the table, to be counted where it is while the block lasts.

        For rows that must not leave the database. A snapshot keeps the database from cleaning up behind later changes:
        open one for each message, not one for a run. Raises :class:`SchemaError` where table, columns or types do not
        fit, and :class:`Unsupported` for text that stands for numbers or times, which only reading understands.
        """
        from fedsynth.data.sources.ibis import CountedRows

        with self.snapshot() as held:
            yield CountedRows(schema, _Counting.of(held, schema))


def parse_address(text: str) -> PostgresTable:
    """Return what ``postgresql://user@host:port/database?table=schema.name`` names.

    Schema and name are taken as they are written, neither folded to lower case nor looked up (the schema
    is ``public`` where none is given); a name with a dot goes in double quotes. ``timeout`` is in seconds;
    other options are libpq's. Raises :class:`FedsynthError`, which never repeats the text: it may hold a password.
    """
    scheme, _, rest = text.partition("://")
    place, _, query = rest.partition("?")
    given: dict[str, str] = {}
    for entry in query.split("&") if query else ():
        option, _, value = entry.partition("=")
        if option in given:
            raise FedsynthError(f"the database's address gives {option!r} twice; give it once")
        given[option] = unquote(value)
    if ":" in place.rpartition("@")[0] or "password" in given or "sslpassword" in given:
        raise FedsynthError(
            "the database's address holds a password, which a configuration must not; write it into a password file "
            "(host:port:database:user:password, chmod 600) that PGPASSFILE or passfile= names, or use a service"
        )
    relation = _RELATION.fullmatch(given.pop("table", ""))
    if scheme not in ("postgresql", "postgres") or "#" in text or relation is None:
        raise FedsynthError(
            "the database's address is not of the form postgresql://user@host/database?table=schema.name; correct it"
        )
    timeout = given.pop("timeout", "3600")
    if not re.fullmatch(r"\d{1,6}", timeout) or not int(timeout):
        raise FedsynthError("the database's address has a timeout that is no whole number of seconds; correct it")
    if unknown := sorted(set(given) - _OPTIONS):
        raise FedsynthError(f"the database's address has unknown options {unknown}; known are {sorted(_OPTIONS)}")
    options = {"connect_timeout": "30", **given, "fallback_application_name": "fedsynth"}
    address = f"postgresql://{place}?" + "&".join(f"{key}={quote(value, safe='')}" for key, value in options.items())
    schema, table = (_name(relation[part] or "public") for part in ("schema", "table"))
    return PostgresTable(address, (schema, table), float(timeout))


def quote_name(name: str) -> str:
    """Return a name as SQL writes it, whatever it holds."""
    return '"' + _without_zero(name).replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """Return a text as SQL writes it, whatever it holds; sessions have standard strings, without escapes."""
    return "'" + _without_zero(text).replace("'", "''") + "'"


@contextmanager
def session(source: PostgresTable) -> Iterator[Any]:
    """Give a cursor inside a read-only transaction that sees one state of the database, and close all at the end.

    The cursor of a snapshot is given again, and stays open.
    """
    if source.cursor is not None:
        yield source.cursor
        return
    try:
        import adbc_driver_postgresql.dbapi as driver
    except ImportError as error:
        raise Unsupported("reading from a database needs its driver; pip install 'fedsynth[sql]'") from error
    settings = {
        "statement_timeout": str(int(source.timeout * 1000)),
        "standard_conforming_strings": "on",
        "search_path": "pg_catalog, pg_temp",  # nobody's functions but the system's
        "TimeZone": "UTC",
        "DateStyle": "ISO",
        "jit": "off",  # compiles every encoding anew for each statement, and costs more than it saves
    }
    with _told(source):
        connection = driver.connect(source.address, autocommit=True)
    try:
        with _told(source):
            cursor = connection.cursor()
        try:
            with _told(source):
                cursor.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                for key, value in settings.items():
                    cursor.execute(f"SET LOCAL {key} = {value if key == 'search_path' else quote_text(value)}")
            yield cursor
        finally:
            cursor.close()
    finally:
        connection.close()


def run(source: PostgresTable, cursor: Any, sql: str) -> pa.Table:
    """Return the whole reply to a statement; raises :class:`FedsynthError` without a row's value."""
    with _told(source):
        cursor.execute(sql)
        return cursor.fetch_arrow_table()


def types_of(source: PostgresTable, cursor: Any, needed: Iterable[str] = ()) -> dict[str, tuple[str, str]]:
    """Return for each column, in order, the family of its type and the type as SQL writes it.

    Raises :class:`SchemaError` where there is no such table, or none of the ``needed`` columns in it.
    """
    schema, table = (quote_text(part) for part in source.relation)
    rows = run(source, cursor, _CATALOGUE.format(schema=schema, table=table)).to_pylist()
    if not rows:
        raise SchemaError(
            f"the database has no table or view {source.name}; correct table=schema.name (names are taken as they are "
            "written, capitals included)"
        )
    found = {name: (_FAMILIES.get(kind, ""), typed) for name, kind, typed in (tuple(one.values()) for one in rows)}
    if absent := [name for name in needed if name not in found]:
        raise SchemaError(
            f"{source.name} lacks the columns {absent}; add them to the table, or remove them from the schema"
        )
    return found


def counted_value(column: Column, family: str, typed: str) -> tuple[str, str]:
    """Return the SQL of a column's values as they are compared, and the type of ibis that it has.

    Raises :class:`SchemaError` for a type that the column does not read, :class:`Unsupported` for text that stands for
    numbers or times.
    """
    value = _expression(column.name, column, family, typed, strict=False)
    if (role_of(column), family) not in _COUNTED:
        raise Unsupported(
            f"column {column.name!r} holds text where the schema wants a {column.kind} column; let the site read "
            "its rows, or cast the column in a view"
        )
    cast, kind = _COUNTED[role_of(column), family]
    return cast.format(value), kind


@dataclass(frozen=True)
class _Counting:
    """The counting of a table's snapshot: each column's SQL, as a type that ibis knows, and whether text has an order.

    Text is compared byte by byte, whatever the collation of its column. Bytes are in the order of Python's texts in
    UTF-8 only, and in databases that know no encoding.
    """

    source: PostgresTable
    values: Mapping[int, str]
    types: Mapping[int, str]
    orders_text: bool
    dialect = "postgres"
    fence = " OFFSET 0"  # keeps the planner from computing a value anew for each comparison with it

    @classmethod
    def of(cls, source: PostgresTable, schema: Schema) -> _Counting:
        """Return the counting of a snapshot under a schema."""
        found = types_of(source, source.cursor, schema.names)
        values, types = {}, {}
        for position, column in enumerate(schema.asked):
            values[position], types[position] = counted_value(column, *found[column.name])
        # No row is read, but whether the role may read any.
        sql = f"SELECT current_setting('server_encoding') WHERE NOT EXISTS (SELECT FROM {source.quoted} LIMIT 0)"
        encoding = run(source, source.cursor, sql).column(0)[0].as_py()
        return cls(source, values, types, encoding in ("UTF8", "SQL_ASCII"))

    def ask(
        self, columns: Sequence[int], places: Mapping[int, Axis], coded: str, counts: Sequence[str]
    ) -> Iterator[Any]:
        """Yield the reply to one statement: a read-only transaction creates no temporary table to keep codes in."""
        values = ", ".join(f"{self.values[column]} AS v{column}" for column in columns) or "1 AS nothing"
        rows = f"SELECT {values} FROM {self.source.quoted}{self.fence}"
        every = " UNION ALL ".join(f"({count})" for count in counts)
        sql = f"WITH coded AS MATERIALIZED (WITH rows AS ({rows}), {coded}) {every}"
        yield run(self.source, self.source.cursor, sql)

    def rows_read(self) -> int:
        """Return the number of rows of the snapshot."""
        counted = run(self.source, self.source.cursor, f"SELECT count(*) FROM {self.source.quoted}")
        return int(counted.column(0)[0].as_py())


def role_of(column: Column | None) -> str:
    """Return what decides how a column's values are read."""
    match column:
        case None:
            return "anything"
        case Categorical():
            return "label" if isinstance(column.values[0], str) else "number"
        case Datetime():
            return "time" if column.timezone is None else "aware time"
        case _:
            return {"numeric": "number", "boolean": "boolean"}[column.kind]


def unfit(name: str, typed: str, column: Column | None) -> SchemaError:
    """Return the error for a column whose type its column of the schema does not read."""
    what = "cannot be read" if column is None else f"does not fit a {column.kind} column"
    if isinstance(column, Datetime) and column.timezone is None and "with time zone" in typed:
        return SchemaError(f"column {name!r} has a time zone ({typed}); set timezone, or strip the zone in a view")
    return SchemaError(
        f"column {name!r} has the SQL type {typed}, which {what}; name a view that casts it to text, double precision, "
        "boolean or timestamp"
    )


def as_double(value: str, family: str) -> str:
    """Return the SQL of the double nearest to a number; a ``numeric`` beyond all doubles is infinite, and raises not.

    PostgreSQL would stop at such a value, and so at one row.
    """
    if family != "numeric":
        return f"{value}::float8"
    return (
        f"CASE WHEN abs({value}) < 3e-324 THEN 0 WHEN {value} = 'NaN' THEN 'NaN' "
        f"WHEN {value} > {_LARGEST_DOUBLE} THEN 'Infinity' WHEN {value} < -{_LARGEST_DOUBLE} THEN '-Infinity' "
        f"ELSE {value}::float8 END"
    )


def bounded_time(value: str, family: str) -> str:
    """Return the SQL of a time or date moved into the years that microseconds in 64 bits can count, infinity too."""
    if family not in ("date", "timestamp", "timestamptz"):
        return value
    first, last = (f"{family} '{end}'" for end in ("4713-12-01 BC", "294000-01-01"))
    return f"CASE WHEN {value} < {first} THEN {first} WHEN {value} > {last} THEN {last} ELSE {value} END"


def _expression(name: str, column: Column | None, family: str, typed: str, *, strict: bool) -> str:
    form = _READS[role_of(column)].get(family)
    if form is None:
        raise unfit(name, typed, column)
    value = quote_name(name)
    if form == _DOUBLE:
        return as_double(value, family)
    return form.format(value if column is None and strict else bounded_time(value, family))


def _next(source: PostgresTable, reader: Any) -> pa.RecordBatch | None:
    try:
        with _told(source):
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
                f"column {name!r} of {source.name} holds infinity or a year past 294000, which is no time here; read a "
                "view that turns it into NULL or a date within the bounds"
            )


@contextmanager
def _told(source: PostgresTable) -> Iterator[None]:
    """Turn the driver's errors into ours, without the value of a row and without a trace that has one."""
    from adbc_driver_manager import Error

    try:
        yield
    except Error as error:
        raise _translated(source, error.sqlstate, str(error)) from None
    except (OSError, pa.ArrowException):  # what a stream of batches raises, whatever went wrong
        raise SchemaError(
            f"the database broke off while it sent {source.name}: it took longer than {source.timeout:g} s, the "
            "connection was lost, or a view could not compute a value; its own log says which"
        ) from None


def _translated(source: PostgresTable, state: str | None, text: str) -> FedsynthError:
    if state is None:
        said = text.split("Failed to connect: ", 1)[-1].split("\n", 1)[0].strip()
        return FedsynthError(f"cannot connect to the database: {said}; correct [source], or see PGPASSFILE and PGHOST")
    match state:
        case "42501":
            return FedsynthError(
                f"the role may not read {source.name}; have SELECT granted on it (and USAGE on its schema)"
            )
        case "42P01" | "42703" | "3F000":
            return SchemaError(f"{source.name} or a column of it is gone; correct table=schema.name")
        case "57014":
            return FedsynthError(
                f"reading {source.name} took longer than {source.timeout:g} s and was stopped; set timeout= higher"
            )
        case _ if state[:2] in ("22", "23", "P0"):
            return SchemaError(
                f"a value of {source.name} cannot be read as its type or its view says (SQLSTATE {state}); the "
                "database's own log names it"
            )
        case _:
            return FedsynthError(f"the database refused to read {source.name} (SQLSTATE {state}); its own log says why")


def _name(written: str) -> str:
    return unquoted.replace('""', '"') if (unquoted := written[1:-1]) and written[0] == '"' else written


def _without_zero(text: str) -> str:
    if "\0" in text:
        raise SchemaError(f"{text!r} holds a zero character, which PostgreSQL cannot; take it out of the schema")
    return text
