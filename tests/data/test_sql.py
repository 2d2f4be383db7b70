"""Rows in a real PostgreSQL: the codes of files, one digest for the same rows, neither secret nor value told."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from tests.data import postgres
from tests.public_data import public_data
from tests.world import contingencies, contingency, request_of

from fedsynth.data.draft import draft_schema, guess_types
from fedsynth.data.read import PersonLimit, check_table, in_canonical_order, read_frame, read_table
from fedsynth.data.sources import open_source
from fedsynth.data.sources.postgres import PostgresTable, parse_address
from fedsynth.encoding import decode, encode
from fedsynth.errors import FedsynthError, SchemaError, Unsupported
from fedsynth.federation.events import PlainAnswer
from fedsynth.federation.local import LocalNoise
from fedsynth.federation.policy import Policy
from fedsynth.federation.query import Counts, Query
from fedsynth.federation.site import Site
from fedsynth.federation.transport import Message
from fedsynth.federation.wire import AuditPosition, Reply
from fedsynth.files import Records
from fedsynth.keys import Keys
from fedsynth.privacy.book import Book
from fedsynth.privacy.cost import ONE_ROW, Budget
from fedsynth.privacy.release import Exact
from fedsynth.rows import Rows, Table
from fedsynth.schema import Boolean, Categorical, Datetime, Numeric, Schema
from fedsynth.schema.bins import Axis

pytest.importorskip("adbc_driver_postgresql", reason="the driver of the extra [sql] is not installed")
pytestmark = pytest.mark.skipif(postgres.binaries() is None, reason="no PostgreSQL server is installed here")

KEY = bytes(32)
ZIP = ("007", "0123", 'say, "hi"\nthere', "O'Hara\\", "Zürich", "NA")
VISITS = Schema(
    (
        Categorical("zip", ZIP, missing=True),
        Categorical("grade", (1, 2, 30), missing=True),
        Categorical("job", ("nurse", "cook"), unknown="other"),
        Boolean("member", missing=True),
        Numeric("age", 0, 120, integer=True, missing=True),
        Numeric("pay", 0, 1000, bins=10, decimals=2, missing=True),
        Numeric("height", 0.5, 2.5, bins=7),
        Datetime("born", "1900-01-01", "2020-01-01", unit="D", missing=True),
        Datetime("seen", "2020-01-01", "2021-01-01", bins=11),
        Datetime("paid", "2020-01-01", "2021-01-01", timezone="Europe/Zurich", missing=True),
    )
)
CREATE = """CREATE TYPE trade AS ENUM ('nurse', 'cook', 'pilot');
CREATE DOMAIN years AS smallint CHECK (value >= 0);
CREATE TABLE visits (zip text, grade int8, job trade, member bool, age years, pay numeric(10, 3), height float8,
                     born date, seen timestamp, paid timestamptz, note bytea)"""


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    with pytest.MonkeyPatch.context() as patch, postgres.server(fsync="off") as running:
        for name, value in running.environment.items():
            patch.setenv(name, value)
        yield running


@pytest.fixture
def visits(server: postgres.Server, tmp_path: Path) -> Iterator[PostgresTable]:
    """A table of every kind of column, from a CSV file that is left beside it."""
    server.run(CREATE)
    visit_rows().to_csv(tmp_path / "visits.csv", index=False)
    columns = ", ".join(VISITS.names)
    server.run(f"COPY visits ({columns}) FROM STDIN (FORMAT csv, HEADER)", rows=tmp_path / "visits.csv")
    yield table_of(server, "visits")
    server.run("DROP TABLE visits CASCADE; DROP TYPE trade; DROP DOMAIN years")
    assert server.sessions_left() == 0


def visit_rows(rows: int = 500) -> pd.DataFrame:
    """Rows with missing values, values past the bounds of ``pay`` and jobs that are not listed."""
    rng = np.random.default_rng(7)
    frame = decode(VISITS, [rng.integers(0, size, rows) for size in VISITS.sizes], rng)
    frame["job"] = rng.choice(["nurse", "cook", "pilot"], rows)
    frame["height"] = frame["height"].round(3)
    frame["pay"] = frame["pay"].mask(frame.index % 17 == 0, 5000.125)
    return frame


def table_of(server: postgres.Server, name: str, role: str = postgres.OWNER, **options: str) -> PostgresTable:
    query = "&".join(f"{key}={value}" for key, value in {"table": name, **options}.items())
    source = open_source(server.uri(query, role))
    assert isinstance(source, PostgresTable)
    return source


def assert_same_rows(first: Table, second: Table) -> None:
    """Whatever their order: canonical order makes equal rows equal arrays, bit for bit."""
    one, other = in_canonical_order(first), in_canonical_order(second)
    for a, b in zip(one.codes, other.codes, strict=True):
        np.testing.assert_array_equal(a, b)
    for column, numbers in one.numbers.items():
        np.testing.assert_array_equal(numbers.view(np.int64), other.numbers[column].view(np.int64))
    assert one.digest == other.digest


# ---------------------------------------------------------------------------------------------------------------------
# The same codes as from files


def test_csv_parquet_and_sql_give_the_same_codes_to_the_bit(visits, server, tmp_path):
    visit_rows().to_parquet(tmp_path / "visits.parquet", index=False)
    printed = tmp_path / "printed.csv"
    printed.write_text(server.run("COPY visits TO STDOUT (FORMAT csv, HEADER)") + "\n")
    read = read_table(visits, VISITS, chunk_rows=64)
    assert len(read) == 500
    for name in ("visits.csv", "visits.parquet", "printed.csv"):
        kind: Records | None = "rfc4180" if name.endswith("csv") else None
        assert_same_rows(read, read_table(tmp_path / name, VISITS, records=kind))
    assert read.digest == read_table(visits, VISITS).digest == in_canonical_order(read).digest
    with visits.counted(VISITS) as counted:
        assert len(counted) == 500
        cliques = [(0,), (9, 2), (1, 0), (3, 4), (5, 6, 7), (8, 9), (2, 9), (2, 2)]
        for clique, counts in zip(cliques, contingencies(counted, cliques), strict=True):
            np.testing.assert_array_equal(counts, contingency(read, clique))
            np.testing.assert_array_equal(counts, contingency(counted, clique))
        assert contingencies(counted, []) == []


def test_real_adult_in_all_three(server, tmp_path):
    file = public_data("adult.csv")
    adult = guess_types(read_frame(file))
    schema = draft_schema(adult).schema
    adult.to_parquet(tmp_path / "adult.parquet", index=False)
    columns = ", ".join(f'"{name}" {"integer" if adult[name].dtype == "int64" else "text"}' for name in adult)
    server.run(f"CREATE TABLE adult ({columns})")
    server.run("COPY adult FROM STDIN (FORMAT csv, HEADER, NULL '')", rows=file)
    source = table_of(server, "adult")
    read = read_table(source, schema)
    assert len(read) == 32_561
    assert_same_rows(read, read_table(file, schema))
    assert_same_rows(read, read_table(tmp_path / "adult.parquet", schema))
    pd.testing.assert_frame_equal(
        guess_types(read_frame(source)).sort_values(list(schema.names), ignore_index=True),
        adult.sort_values(list(schema.names), ignore_index=True),
        check_dtype=False,
    )
    with source.counted(schema) as counted:
        for clique in [(0, 1), (13, 5), (2, 3, 14)]:
            np.testing.assert_array_equal(contingency(counted, clique), contingency(read, clique))


def test_an_empty_table_is_an_empty_site(visits, server):
    server.run("DELETE FROM visits")
    assert len(read_table(visits, VISITS)) == 0
    with visits.counted(VISITS) as counted:
        assert len(counted) == 0
        assert contingency(counted, (0, 3)).sum() == 0
        assert [table.sum() for table in contingencies(counted, [(0, 3), (1,)])] == [0, 0]


# ---------------------------------------------------------------------------------------------------------------------
# The digest, and what a site makes of it


def digest(source: PostgresTable, schema: Schema) -> str:
    return read_table(source, schema).digest


def test_the_digest_follows_the_rows_and_not_where_they_lie(visits, server):
    before = digest(visits, VISITS)
    order = "SELECT string_agg(coalesce(zip, '-') || seen, ',') FROM visits"
    lay = server.run(order)
    server.run("UPDATE visits SET age = age WHERE zip IS NOT NULL")
    server.run("CREATE INDEX by_height ON visits (height); CLUSTER visits USING by_height; ANALYZE visits")
    assert server.run(order) != lay  # they did move
    assert digest(visits, VISITS) == before
    server.run("UPDATE visits SET note = 'not in the schema'")
    assert digest(visits, VISITS) == before
    seen = {before}
    for change in (
        "INSERT INTO visits SELECT * FROM visits LIMIT 1",
        "DELETE FROM visits WHERE seen = (SELECT max(seen) FROM visits)",
        "UPDATE visits SET member = NOT member WHERE ctid = (SELECT min(ctid) FROM visits WHERE member)",
    ):
        server.run(change)
        seen.add(digest(visits, VISITS))
    assert len(seen) == 4


def test_two_rows_that_swap_a_value_are_other_rows(server):
    schema = Schema((Categorical("a", (0, 1)), Categorical("b", (0, 1))))
    server.run("CREATE TABLE pairs AS VALUES (0, 0), (1, 1); ALTER TABLE pairs RENAME column1 TO a")
    server.run("ALTER TABLE pairs RENAME column2 TO b")
    before = digest(table_of(server, "pairs"), schema)
    server.run("UPDATE pairs SET b = 1 - b")
    after = digest(table_of(server, "pairs"), schema)
    assert before != after


@dataclass(frozen=True)
class Counted:
    """Rows that their database counts, in a snapshot for each question."""

    source: PostgresTable
    schema: Schema = VISITS
    holds_rows: bool = False

    def require(self, run: str) -> None:
        """Raise nothing: the database is there."""

    def opened(self, run: str) -> contextlib.AbstractContextManager[Rows]:
        """Give a snapshot of the table as it is now."""
        return self.source.counted(self.schema)


@pytest.mark.parametrize("counted", [False, True], ids=["read", "counted"])
def test_a_site_answers_once_from_rows_that_it_reads_or_has_counted(visits, server, counted):
    account, coordinator = Book(), Keys(bytes(32))

    def ask(query: Query, step: int = 0) -> Reply:
        policy = Policy(Budget.none(), {"local": LocalNoise()}, exact=True, any_plan=True)
        request = request_of(
            query,
            run="run",
            step=step,
            verb="sum",
            release=Exact(),
            trust="local",
            schema=VISITS.digest,
            unit=ONE_ROW,
            neighbours="add-remove",
        )
        message = Message.of("a", Keys(bytes(32)).identity, request, coordinator, AuditPosition())
        rows = Counted(visits) if counted else read_table(visits, VISITS)
        site = Site("a", rows, policy, account, bytes(32), coordinator.public)
        return message.reply(site.answer(message.data).data)

    def values(reply: Reply) -> Any:
        assert isinstance(reply.answer, PlainAnswer)
        return reply.answer.values

    def exact() -> Any:
        table = read_table(visits, VISITS)
        return np.concatenate([contingency(table, (0, 3)).ravel(), contingency(table, (9,)).ravel()])

    query = Counts.of(len(VISITS.columns), [(0, 3), (9,)])
    before = exact()
    np.testing.assert_array_equal(values(ask(query)), before)
    server.run("INSERT INTO visits SELECT * FROM visits LIMIT 1")
    np.testing.assert_array_equal(values(ask(query)), before)  # the stored answer, whatever the rows are now
    np.testing.assert_array_equal(values(ask(query, 1)), exact())
    cut = Counts((Axis(4, np.array([18.0, 120.0])),), ((0,),))
    np.testing.assert_array_equal(values(ask(cut, 2)), read_table(visits, VISITS).tables(cut.axes, cut.tables)[0])
    assert account.exact == 3


def test_a_snapshot_does_not_see_what_is_written_meanwhile(visits, server):
    with visits.counted(VISITS) as counted:
        before = contingency(counted, (3,))
        server.run("DELETE FROM visits")
        np.testing.assert_array_equal(contingency(counted, (3,)), before)
        assert contingencies(counted, [(3,)])[0].sum() == len(counted) == 500


def test_a_task_that_needs_rows_is_told_to_read_them(visits):
    with visits.counted(VISITS) as counted:
        for rows in (lambda: counted.codes, lambda: counted.numbers):
            with pytest.raises(Unsupported, match="read_table"):
                rows()
        assert "500" not in repr(counted)


# ---------------------------------------------------------------------------------------------------------------------
# Hostile names, secrets, and what errors say


def test_hostile_names_are_names(server):
    table, column, other = 'x"; DROP TABLE kept; --', "a\"b'; DROP TABLE kept; --", "c d.e%s{}$1"
    hostile = "'); DROP TABLE kept; --"
    server.run('CREATE TABLE kept (); CREATE SCHEMA "s.1"')

    def quoted(name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    server.run(f'CREATE TABLE "s.1".{quoted(table)} ({quoted(column)} text, {quoted(other)} float8)')
    value = hostile.replace("'", "''")
    server.run(f"INSERT INTO \"s.1\".{quoted(table)} VALUES ('{value}', 1), ('\\', 2), (NULL, 1)")
    schema = Schema((Categorical(column, (hostile, "\\"), missing=True), Numeric(other, 0, 4, bins=4)), (hostile, "'"))
    source = PostgresTable(table_of(server, "kept").address, ("s.1", table))
    read = read_table(source, schema)
    assert sorted(read.codes[0].tolist()) == [0, 1, 2]
    assert check_table(source, schema).ok
    with source.counted(schema) as counted:
        np.testing.assert_array_equal(contingency(counted, (0, 1)), contingency(read, (0, 1)))
    assert server.run("SELECT count(*) FROM pg_class WHERE relname = 'kept'") == "1"
    with pytest.raises(SchemaError, match="NUL character"):
        read_table(replace(source, relation=("public", "a\0b")), schema)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://reader:hunter2@db/clinic?table=visits",
        "postgresql://reader@db/clinic?table=visits&password=hunter2",
        "postgresql://reader@db/clinic?table=visits&sslpassword=hunter2",
        "postgresql://reader:hunter2#@db/clinic?table=visits",
        "postgresql://reader:hun@ter2@db/clinic?table=visits",
        "postgresql://reader@db/clinic?hunter2",
        "postgresql://reader@db/clinic?table=a.b.c&x=hunter2",
        "postgresql://reader@db/clinic?table=visits&options=-c%20hunter2",
        "postgresql://reader@db/clinic?table=visits&timeout=hunter2",
    ],
)
def test_an_address_with_a_password_or_anything_unknown_is_refused_and_not_repeated(text):
    with pytest.raises(FedsynthError) as caught:
        open_source(text)
    assert "hunter2" not in str(caught.value)
    assert "ter2" not in str(caught.value)


def test_addresses():
    source = parse_address("postgres://r%C3%A9@db:5433/clinic?table=Visits&sslmode=verify-full&timeout=5")
    assert source.relation == ("public", "Visits")
    assert source.timeout == 5
    assert source.address.startswith("postgresql://r%C3%A9@db:5433/clinic?")
    assert "sslmode=verify-full" in source.address
    assert parse_address('postgresql:///?service=clinic&table="a.b"."c""d"').relation == ("a.b", 'c"d')
    assert parse_address("postgresql://db/clinic?table=a.b").name == "a.b"


def test_sources_of_a_configuration(tmp_path):
    text, typed = open_source("rows.csv", tmp_path), open_source("/data/rows.parquet", tmp_path)
    assert (text.file, text.is_text) == (tmp_path / "rows.csv", True)
    assert (typed.file, typed.is_text) == (Path("/data/rows.parquet"), False)
    for other in ("nosuch://db/x", "https://example.org/rows.csv", "rows.ods"):
        with pytest.raises(Unsupported):
            open_source(other, tmp_path)


SECRET = "4711-patient"


@pytest.mark.parametrize(
    ("sql", "error", "says"),
    [
        ("SELECT '4711-patient'::text::int AS age", SchemaError, "22P02"),
        ("SELECT 1 / (g - 90000) AS age FROM generate_series(1, 100000) AS g", SchemaError, "stopped sending|22012"),
        ("SELECT pg_sleep(20)::text::int AS age", FedsynthError, "longer than 1 s"),
        ("SELECT nextval('counter')::int AS age", FedsynthError, "25006|stopped sending"),
        ("SELECT raises('4711-patient') AS age", SchemaError, "P0001|stopped sending"),
    ],
)
def test_what_goes_wrong_in_the_database_is_told_without_a_value_and_leaves_no_connection(server, sql, error, says):
    server.run(
        "CREATE SEQUENCE IF NOT EXISTS counter; CREATE OR REPLACE FUNCTION raises(x text) RETURNS int LANGUAGE plpgsql "
        "VOLATILE AS $$ BEGIN RAISE EXCEPTION 'value %', x; END $$"
    )
    server.run(f"CREATE OR REPLACE VIEW faulty AS {sql}")
    source = table_of(server, "faulty", timeout="1" if "pg_sleep" in sql else "600")
    schema = Schema((Numeric("age", 0, 120, integer=True),))

    def count() -> None:
        with source.counted(schema) as counted:
            contingency(counted, (0,))

    for attempt in (lambda: read_table(source, schema), count):
        with pytest.raises(error, match=says) as caught:
            attempt()
        assert SECRET not in str(caught.value)
        assert caught.value.__suppress_context__
    assert server.sessions_left() == 0
    server.run("DROP VIEW faulty")


def test_what_is_not_there_or_not_allowed(visits, server):
    server.run("CREATE ROLE reader LOGIN PASSWORD NULL; CREATE ROLE guest LOGIN")
    server.run(f"ALTER ROLE guest PASSWORD $pw${postgres.PASSWORD}$pw$")
    for source, error, says in [
        (table_of(server, "nowhere"), SchemaError, "no table or view public.nowhere"),
        (table_of(server, "Visits"), SchemaError, "case-sensitive"),
        (table_of(server, "visits", role="guest"), FedsynthError, "grant it SELECT"),
        (table_of(server, "visits", role="reader"), FedsynthError, "cannot connect.*password"),
        (replace(visits, address=visits.address.replace("/postgres?", "/nix?")), FedsynthError, 'database "nix"'),
        (parse_address("postgresql://owner@127.0.0.1:1/x?table=t"), FedsynthError, "refused"),
    ]:
        with pytest.raises(error, match=says) as caught:
            read_table(source, VISITS)
        assert postgres.PASSWORD not in str(caught.value)
        with pytest.raises(error), source.counted(VISITS):
            pass
    more = Schema((*VISITS.columns, Boolean("absent")))
    with pytest.raises(SchemaError, match=r"public\.visits lacks the columns \['absent'\]"):
        read_table(visits, more)
    with pytest.raises(SchemaError, match="absent"), visits.counted(more):
        pass


def test_types_that_do_not_fit_are_named_with_what_to_do(visits, server):
    server.run("ALTER TABLE visits ALTER note TYPE json USING NULL")
    schema = Schema((Categorical("note", ("a",)), Boolean("seen"), Datetime("paid", "2020-01-01", "2021-01-01")))
    report = check_table(visits, schema)
    assert not report.ok
    said = "\n".join(report.problems)
    assert "'note' has the SQL type json" in said
    assert "'seen' has the SQL type timestamp without time zone, which does not fit a boolean column" in said
    assert "'paid' has a time zone" in said
    assert "'zip'" in report.problems[-1]  # a column that the schema does not name
    for column in schema.columns:
        with pytest.raises(SchemaError):
            read_table(visits, Schema((column,)))
        with pytest.raises(SchemaError), visits.counted(Schema((column,))):
            pass


def assert_counted(source: PostgresTable, schema: Schema, rows: int, left_out: int) -> Table:
    """Read and count the same table, and return what was read."""
    read = read_table(source, schema)
    assert (len(read), read.left_out, read.rows_read) == (rows, left_out, rows + left_out)
    with source.counted(schema) as counted:
        assert (len(counted), counted.rows_read) == (rows, rows + left_out)
        cliques = [(0,), (4,), (9, 2), (3, 4), (5, 6, 7)]
        for clique, counts in zip(cliques, contingencies(counted, cliques), strict=True):
            np.testing.assert_array_equal(counts, contingency(read, clique))
            np.testing.assert_array_equal(counts, contingency(counted, clique))
    report = check_table(source, schema, chunk_rows=64)
    assert (report.ok, report.rows, report.left_out) == (not left_out, rows + left_out, left_out)
    return read


def test_rows_that_do_not_fit_are_left_out_alike_and_named_by_a_check(visits, server, tmp_path):
    before = assert_counted(visits, VISITS, 500, 0)
    assert not [one for one in check_table(visits, VISITS).problems if "row left out" in one]
    server.run("UPDATE visits SET age = 300 WHERE ctid = (SELECT max(ctid) FROM visits)")  # its pay is within bounds
    assert any("300 lies outside [0, 120]: clipped" in one for one in check_table(visits, VISITS).problems)
    assert_counted(visits, VISITS, 500, 0)
    strict = Schema(
        tuple(
            msgspec.structs.replace(one, outside="drop") if isinstance(one, Numeric) else one for one in VISITS.columns
        )
    )
    dear = sum(visit_rows()["pay"] > 1000)
    left = assert_counted(visits, strict, 499 - dear, 1 + dear)
    said = "\n".join(check_table(visits, strict).problems)
    assert "300 lies outside [0, 120]: row left out" in said
    assert "'pilot' is not listed: counted as 'other'" in said
    printed = tmp_path / "printed.csv"
    printed.write_text(server.run("COPY visits TO STDOUT (FORMAT csv, HEADER)") + "\n")
    assert_same_rows(left, read_table(printed, strict, records="rfc4180"))
    server.run("UPDATE visits SET seen = NULL WHERE age = 300")  # the same row, for a second reason
    assert_counted(visits, strict, 499 - dear, 1 + dear)
    assert before.digest != left.digest


def test_a_row_that_is_left_out_is_part_of_the_digest(visits, server):
    first = digest(visits, VISITS)
    server.run("UPDATE visits SET seen = NULL WHERE ctid = (SELECT min(ctid) FROM visits)")
    second = digest(visits, VISITS)
    server.run("DELETE FROM visits WHERE seen IS NULL")
    third = digest(visits, VISITS)
    assert len({first, second, third}) == 3


@pytest.mark.parametrize("value", ["'infinity'", "'-infinity'"])
@pytest.mark.parametrize("column", ["born", "seen", "paid"])
def test_infinite_times_are_clipped_or_left_out_and_never_wrap_around(visits, server, column, value):
    server.run(f"UPDATE visits SET {column} = {value}")
    at = VISITS.index(column)
    held = VISITS.columns[at]
    assert isinstance(held, Datetime)
    clipped = assert_counted(visits, VISITS, 500, 0)
    assert set(clipped.codes[at].tolist()) == {0 if "-" in value else held.bins - 1}
    assert any("clipped" in one for one in check_table(visits, VISITS).problems if column in one)
    dropping = [
        msgspec.structs.replace(one, outside="drop") if isinstance(one, Datetime) else one for one in VISITS.columns
    ]
    assert_counted(visits, Schema(tuple(dropping)), 0, 500)


def test_a_number_or_a_date_beyond_what_others_can_hold_stops_nothing(server):
    server.run(
        "CREATE TABLE far AS SELECT * FROM (VALUES (1e400::numeric, '5874897-12-31'::date), (-1e-400, "
        "'4714-11-24 BC'), ('NaN', NULL), (NULL, '2020-05-05')) AS far(number, day)"
    )
    schema = Schema(
        (Numeric("number", 0, 9, bins=3, missing=True), Datetime("day", "2020", "2021", bins=2, missing=True))
    )
    source = table_of(server, "far")
    read = read_table(source, schema)
    assert sorted(zip(*(codes.tolist() for codes in read.codes), strict=True)) == [(0, 0), (2, 1), (3, 0), (3, 2)]
    with source.counted(schema) as counted:
        np.testing.assert_array_equal(contingency(counted, (0, 1)), contingency(read, (0, 1)))


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "WIN1252"])
def test_text_that_no_encoding_knows_stops_no_other_row(server, encoding):
    server.run(f"CREATE DATABASE {encoding} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'")
    strange = replace(server, database=encoding.lower())
    strange.run("CREATE TABLE towns AS SELECT unnest(ARRAY['Bern', E'Z\\x81rich', 'Bern', NULL]) AS town")
    schema = Schema((Categorical("town", ("Bern",), missing=True),))
    source = table_of(strange, "towns")
    read = read_table(source, schema)
    assert (sorted(read.codes[0].tolist()), read.left_out) == ([0, 0, 1], 1)
    with source.counted(schema) as counted:
        assert (contingency(counted, (0,)).tolist(), counted.rows_read - len(counted)) == ([2, 1], 1)


@pytest.mark.parametrize("kind", ["date", "timestamp", "timestamptz", "numeric", "float8", "text", "bool", "int"])
def test_a_person_is_named_by_values_of_any_type_whatever_they_are(server, kind):
    """None of them stops the reading, be it infinite; rows without a person take no part."""
    known = {"bool": ["t", "f"], "int": ["1", "2"]}.get(kind, ["infinity", "-infinity"])
    values = ", ".join("(NULL)" if value is None else f"('{value}')" for value in (*known, *known, None))
    server.run(f"DROP TABLE IF EXISTS who; CREATE TABLE who (person {kind}, a int DEFAULT 1)")
    server.run(f"INSERT INTO who (person) VALUES {values}")
    table = read_table(
        table_of(server, "who"), Schema((Categorical("a", (0, 1)),)), persons=PersonLimit("person", 1, KEY)
    )
    assert (len(table), table.left_out) == (2, 0)


def test_bytes_are_text_cell_by_cell_and_are_not_counted_by_the_database(server):
    """One that is not UTF-8 stops nothing; in the database, its conversion to text would stop the statement."""
    server.run(
        "CREATE TABLE told AS SELECT convert_to(a, 'UTF8') AS a, b FROM (VALUES ('+1', 1), ('é', 1), ('7', 0), "
        "(NULL, 1), ('2020-01-02', 0)) AS told(a, b); INSERT INTO told VALUES ('\\xff37', 0)"
    )
    source = table_of(server, "told")
    for column, codes in (
        (Categorical("a", ("1", "é", "\ufffd7"), missing=True), [0, 1, 2, 3]),
        (Numeric("a", 0, 9, bins=9, missing=True), [1, 7, 9]),
        (Datetime("a", "2020-01-01", "2020-01-11", bins=10, unit="D", missing=True), [1, 10]),
    ):
        schema = Schema((column,))
        table = read_table(source, schema)
        assert (sorted(table.codes[0].tolist()), table.rows_read) == (codes, 6)
        assert sorted(encode(schema, read_frame(source)).codes[0].tolist()) == codes
        with pytest.raises(Unsupported, match="holds bytes"), source.counted(schema):
            pass
    kept = read_table(source, Schema((Categorical("b", (0, 1)),)), persons=PersonLimit("a", 1, KEY))
    assert kept.codes[0].tolist() == [0, 0, 0, 1, 1]


def test_exact_decimals_keep_their_digits_in_a_frame(server):
    """A double has no more than 17 of them, and the schema may list more."""
    texts = ("12345678901234567.1", "12345678901234567.2", "-0.50")
    server.run(f"CREATE TABLE exact AS SELECT unnest(ARRAY{list(texts)}::numeric[]) AS a FROM generate_series(1, 10)")
    schema = Schema((Categorical("a", texts),))
    source = table_of(server, "exact")
    for rows in (read_table(source, schema), encode(schema, read_frame(source))):
        assert np.bincount(rows.codes[0]).tolist() == [10] * 3
    assert draft_schema(read_frame(source)).schema.names == ("a",)


def test_a_draft_is_not_made_of_times_that_are_none(server):
    server.run("CREATE TABLE ends AS SELECT 'infinity'::date AS day")
    with pytest.raises(SchemaError, match="holds infinity or a year after 294000"):
        read_frame(table_of(server, "ends"), strict=True)
    assert read_frame(table_of(server, "ends"))["day"].dt.year.tolist() == [294000]


def test_a_reader_that_stops_early_closes_its_connection(server):
    server.run("CREATE VIEW endless AS SELECT generate_series(1, 2000000) AS age")
    batches = table_of(server, "endless").batches({"age": None}, 1000)
    assert 0 < next(batches)[0].num_rows < 2_000_000
    batches.close()  # type: ignore[attr-defined]
    # A server that still had to send rows would wait for their reader for ever.
    assert server.sessions_left() == 0
