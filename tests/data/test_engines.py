"""Tables in DuckDB, and in engines that ibis connects to: addresses, promises, locks, errors without values, SQL."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.world import contingency

from fedsynth.data.read import check_table, read_table
from fedsynth.data.sources import open_source
from fedsynth.data.sources.database import Address
from fedsynth.data.sources.engine import EngineTable
from fedsynth.errors import FedsynthError, InvalidParameter, SchemaError, Unsupported
from fedsynth.schema import MISSING, Boolean, Categorical, Datetime, Numeric, Schema, Stored
from fedsynth.schema.bins import Axis

ibis = pytest.importorskip("ibis", reason="the extra [sql] is not installed")
duckdb = pytest.importorskip("duckdb", reason="the extra [duckdb] is not installed")

SCHEMA = Schema((Categorical("sex", ("f", "m"), missing=True), Numeric("age", 0, 120, integer=True)))
SECRET = "4711-patient"
GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def clinic(tmp_path: Path) -> Path:
    """A DuckDB file with two tables; the schema of the second has a dot in its name."""
    with duckdb.connect(str(tmp_path / "clinic.duckdb")) as connection:
        connection.execute("CREATE TABLE visits AS SELECT * FROM (VALUES ('f', 30), ('m', 40), (NULL, 50)) t(sex, age)")
        connection.execute('CREATE SCHEMA "s.1"; CREATE TABLE "s.1"."a""b" AS SELECT * FROM visits LIMIT 1')
        connection.execute(f"CREATE VIEW faulty AS SELECT sex, ('{SECRET}' || age)::int AS age FROM visits")
        connection.execute("CREATE TABLE odd AS SELECT [1] AS sex, '2020-01-01'::timestamp_ns AS age")
    return tmp_path


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A SQLite file, of whose cells some have another type than their column."""
    pytest.importorskip("regex", reason="ibis needs it for SQLite")
    with sqlite3.connect(tmp_path / "lake.db") as connection:
        connection.execute("CREATE TABLE visits (sex TEXT, age INTEGER)")
        rows = [("f", 30), ("m", 40), (None, 50), ("m", "old"), (b"\xff", 7)]
        connection.executemany("INSERT INTO visits VALUES (?, ?)", rows)
    connection.close()
    return tmp_path


def test_a_duckdb_file_is_read_streamed_and_counted(clinic):
    source = open_source("duckdb://clinic.duckdb?table=visits", clinic)
    assert source.columns() == ["sex", "age"]
    read = read_table(source, SCHEMA)
    assert check_table(source, SCHEMA).ok
    with source.counted(SCHEMA) as counted:
        np.testing.assert_array_equal(contingency(counted, (0, 1)), contingency(read, (0, 1)))
        assert len(counted) == counted.rows_read == len(read) == 3
    (clinic / "north.toml").write_text(f'data = "duckdb://{clinic}/clinic.duckdb?table=visits"\n')
    assert len(read_table(clinic / "north.toml", SCHEMA)) == 3
    assert len(read_table(open_source(f'duckdb://{clinic}/clinic.duckdb?table="s.1"."a""b"'), SCHEMA)) == 1


def test_duckdb_locks_out_writers_during_a_question_and_is_locked_out_by_them(clinic):
    write = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", write, str(clinic / "clinic.duckdb")]
    source = open_source("duckdb://clinic.duckdb?table=visits", clinic)
    with source.counted(SCHEMA) as counted:
        done = subprocess.run(command, input="", capture_output=True, text=True)
        assert "lock" in done.stderr
        assert len(counted) == 3
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
        with pytest.raises(FedsynthError, match="Close the program that has it open for writing"):
            source.columns()
        writer.stdin.close()
    assert len(read_table(source, SCHEMA)) == 3


def test_nothing_can_be_written_or_read_beside_the_file(clinic):
    source: Any = open_source("duckdb://clinic.duckdb?table=visits", clinic)
    with source.session() as held:
        for sql in ("CREATE TABLE t (a int)", "INSERT INTO visits VALUES ('f', 1)", "SELECT * FROM '/etc/passwd'"):
            with pytest.raises(FedsynthError, match="DuckDB could not read visits"), held.errors_translated():
                held.connection.raw_sql(sql).fetchall()


def test_errors_of_duckdb_tell_no_value(clinic):
    def count(name: str, schema: Schema = SCHEMA) -> None:
        with open_source(f"duckdb://clinic.duckdb?table={name}", clinic).counted(schema) as counted:
            contingency(counted, (0,))

    def read(name: str) -> None:
        read_table(open_source(f"duckdb://clinic.duckdb?table={name}", clinic), SCHEMA)

    for name, says in (("faulty", "ConversionException"), ("nowhere", "no table or view nowhere")):
        for attempt in (count, read):
            with pytest.raises(SchemaError, match=says) as caught:
                attempt(name)
            assert SECRET not in str(caught.value)
            assert caught.value.__suppress_context__
    with pytest.raises(FedsynthError, match="missing, or not a file"):
        open_source("duckdb://none.duckdb?table=t", clinic).columns()
    (clinic / "text.duckdb").write_text("sex,age\n")
    with pytest.raises(FedsynthError, match="of a newer DuckDB or damaged"):
        open_source("duckdb://text.duckdb?table=t", clinic).columns()
    odd = open_source("duckdb://clinic.duckdb?table=odd", clinic)
    assert "'sex' has the SQL type array<int32>" in "\n".join(check_table(odd, SCHEMA).problems)
    times = Schema((Datetime("age", "2020", "2021"),))
    with pytest.raises(Unsupported, match=r"'age' holds timestamp\(9\)"), odd.counted(times):
        pass
    assert len(read_table(odd, times)) == 1
    for column, error in ((Boolean("sex"), "holds text"), (Numeric("sex", 0, 1), "holds text")):
        with pytest.raises(Unsupported, match=error):
            count("visits", Schema((column,)))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("duckdb:///a.duckdb", "not of the form duckdb:///path/file.duckdb"),
        ("duckdb:///a.duckdb?table=t&read_only=false", "not of the form"),
        ("trino://u:hunter2@h/c?table=t", "write a variable of the environment"),
        ("databricks://h/c?table=t&access_token=hunter2", "write a variable of the environment"),
        ("snowflake://u:$PASS-hunter2@h/c?table=t&immutable=true", "write a variable of the environment"),
        ("trino://u@h/c?hunter2", "not of the form"),
        ("trino://u@h/c?table=s.t", r"tested no snapshot of trino://.*write immutable = true under \[source\]"),
        ("trino://u@h/c?table=s.t&immutable=hunter2", "write immutable = true"),
    ],
)
def test_addresses_that_are_refused_are_not_repeated(text, says):
    with pytest.raises(FedsynthError, match=says) as caught:
        open_source(text)
    assert "hunter2" not in str(caught.value)


def test_where_immutable_has_no_meaning_it_is_refused(clinic):
    for text in ("duckdb://clinic.duckdb?table=visits", "postgresql://h/d?table=t", "rows.csv"):
        with pytest.raises(InvalidParameter, match="delete it"):
            open_source(text, clinic, immutable=True)


def test_a_password_is_taken_from_the_environment_and_is_in_no_error(monkeypatch):
    monkeypatch.setenv("CLINIC_PASSWORD", SECRET)

    seen: list[str] = []

    def connect(address: str) -> None:
        seen.append(address)
        raise RuntimeError(address)

    monkeypatch.setattr(ibis, "connect", connect)
    source = EngineTable(Address("duckdb", "u:$CLINIC_PASSWORD@h/d", {"a": "b"}, ("", "t")))
    with pytest.raises(FedsynthError, match="RuntimeError") as caught:
        source.columns()
    assert seen == [f"duckdb://u:{SECRET}@h/d?a=b"]
    assert SECRET not in str(caught.value)
    assert "CLINIC" not in repr(source)


def test_a_sqlite_table_is_read_and_counted_if_it_is_immutable(lake):
    source = open_source("sqlite://lake.db?table=visits&immutable=true", lake)
    read = read_table(source, SCHEMA)
    assert (len(read), read.left_out) == (4, 1)  # an age that is a text is missing, and so is a sex of bytes
    with source.counted(SCHEMA) as counted:
        np.testing.assert_array_equal(contingency(counted, (0, 1)), contingency(read, (0, 1)))
        assert (len(counted), counted.rows_read) == (4, 5)
    with pytest.raises(FedsynthError, match="missing, or not a file"):
        open_source("sqlite://none.db?table=t", lake, immutable=True).columns()
    assert not (lake / "none.db").exists()
    source = open_source("sqlite://lake.db?table=nowhere", lake, immutable=True)
    with pytest.raises(SchemaError, match="no table or view nowhere"):
        source.columns()


@pytest.mark.parametrize("reading", [False, True])
@pytest.mark.parametrize(
    "change",
    ["INSERT INTO visits VALUES ('f', 1)", "DELETE FROM visits WHERE age = 30", "ALTER TABLE visits ADD COLUMN x TEXT"],
)
def test_a_promise_that_is_broken_ends_the_question(lake, change, reading):
    source = open_source("sqlite://lake.db?table=visits", lake, immutable=True)

    def write() -> None:
        with sqlite3.connect(lake / "lake.db") as connection:
            connection.execute(change)
        connection.close()

    def count() -> None:
        with source.counted(SCHEMA) as counted:
            assert len(counted) == 4
            write()

    def read() -> None:
        for k, _ in enumerate(source.batches({"sex": None}, 1)):
            if k == 4:
                write()

    with pytest.raises(FedsynthError, match="visits has changed while it was read, though immutable = true"):
        (read if reading else count)()


# ---------------------------------------------------------------------------------------------------------------------
# Statements for engines that no test connects to

KINDS = Schema(
    (
        Categorical("town", ("Bern", "7"), missing=True, unknown="missing"),
        Categorical("grade", (1, 2)),
        Boolean("member", missing=True),
        Numeric("pay", 0, 1000, bins=3, missing=True),
        Numeric("rent", 0, 500, bins=2, stored=Stored(difference=("rent", "pay"), lower=-9, upper=9)),
        Datetime("born", "1900-01-01", "2020-01-01", bins=2, unit="D", missing=True),
        Datetime("seen", "2020-01-01", "2021-01-01", bins=2),
    )
)
TYPES = ("string", "int64", "boolean", "decimal(10, 2)", "float64", "date", "timestamp")


@dataclass
class Written:
    """A database that writes its statements down."""

    dialect: str
    rows: Any
    orders_text: bool = False
    statements: list[str] = field(default_factory=list)

    @property
    def types(self) -> Mapping[int, str]:
        return {int(name[1:]): str(kind) for name, kind in self.rows.schema().items()}

    def sql(self, expression: Any) -> str:
        return str(ibis.to_sql(expression, dialect=self.dialect, pretty=False))

    def ask(self, columns: Sequence[int], steps: Mapping[str, str], counts: Sequence[str]) -> Iterator[Any]:
        from fedsynth.data.sources.ibis import ROWS, with_steps

        read = self.rows.select(*(f"v{column}" for column in columns))
        self.statements.append(with_steps({ROWS: self.sql(read), **steps}, counts, "\n", ""))
        return iter(())

    def rows_read(self) -> int:
        return 0


@pytest.mark.parametrize("dialect", ["trino", "bigquery", "snowflake", "databricks"])
def test_statements_for_warehouses_are_as_written(dialect, tmp_path):
    """They are not run: that they are valid there is not known. FEDSYNTH_GOLDEN=1 writes them anew."""
    import os

    from fedsynth.data.sources.ibis import CountedRows

    source = EngineTable(Address(dialect, "", {}, ("", "visits")))
    table = ibis.table(dict(zip(KINDS.names, TYPES, strict=True)), name="visits")
    values = {f"v{at}": source.counted_value(c, table[c.name], MISSING) for at, c in enumerate(KINDS.asked)}
    database = Written(dialect, table.select(**values))
    CountedRows(KINDS, database).tables([Axis(at) for at in range(len(KINDS.stored))], [(0, 1), (2, 3, 4), (5, 6)])
    golden = GOLDEN / f"{dialect}.sql"
    if os.environ.get("FEDSYNTH_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text("\n".join(database.statements) + "\n", encoding="utf-8")
    assert "\n".join(database.statements) + "\n" == golden.read_text(encoding="utf-8")


def both(source: Any, schema: Schema) -> tuple[list[int], list[int]]:
    """A column's counts, by the engine and from rows that are read."""
    with source.counted(schema) as counted:
        return contingency(counted, (0,)).tolist(), contingency(read_table(source, schema), (0,)).tolist()


def test_booleans_as_labels_and_collations_are_counted_as_they_are_read(tmp_path):
    with duckdb.connect(str(tmp_path / "d.duckdb")) as connection:
        connection.execute("CREATE TABLE flags AS SELECT unnest([true, false, NULL, NULL]) AS x")
        connection.execute("CREATE TABLE labels (x VARCHAR COLLATE NOCASE)")
        connection.execute("INSERT INTO labels VALUES ('a'), ('A'), ('b'), ('B'), ('B ')")
    flags = Schema((Categorical("x", ("True", "False"), missing=True),))
    counted, read = both(open_source(f"duckdb://{tmp_path}/d.duckdb?table=flags"), flags)
    assert counted == read == [1, 1, 2]
    labels = Schema((Categorical("x", ("a", "b", "c"), unknown="other"),))
    counted, read = both(open_source(f"duckdb://{tmp_path}/d.duckdb?table=labels"), labels)
    assert counted == read == [1, 1, 0, 3]


def test_a_sqlite_boolean_is_the_integer_that_it_holds_and_a_table_may_have_any_name(tmp_path):
    pytest.importorskip("regex", reason="ibis needs it for SQLite")
    with sqlite3.connect(tmp_path / "l.db") as connection:
        for name in ("rows", "places"):
            connection.execute(f"CREATE TABLE {name} (x BOOLEAN, {'ü' * 70} TEXT)")
            connection.executemany(
                f"INSERT INTO {name} VALUES (?, ?)", [(1, "2000-03-01"), (0, ""), (2, None), (-1, "")]
            )
    connection.close()
    for name in ("rows", "places"):
        source = open_source(f"sqlite://{tmp_path}/l.db?table={name}&immutable=true")
        counted, read = both(source, Schema((Boolean("x"),)))
        assert counted == read == [1, 1]
        counted, read = both(source, Schema((Datetime("ü" * 70, "2000-01-01", "2001-01-01", unit="D", missing=True),)))
        assert counted == read


@pytest.mark.parametrize(
    "entry",
    ["spark.hadoop.fs.azure.account.key=K", "access.key=K", "pass=K", "auth=K", "sas=K", "signature=K", "pass%77ord=K"],
)
def test_secrets_in_addresses_are_refused_however_they_are_called(entry):
    for address in (f"pyspark://host?table=t&{entry}", "trino://user%3Apw@host/c?table=t"):
        with pytest.raises(FedsynthError, match="contains a password"):
            open_source(f"{address}&immutable=true")


def test_texts_are_not_counted_where_a_collation_may_join_them():
    source = EngineTable(Address("mysql", "", {}, ("", "t")))
    value = ibis.table({"x": "string"}, name="t").x
    with pytest.raises(Unsupported, match="'x' holds text"):
        source.counted_value(Categorical("x", ("a", "b")), value, MISSING)


def test_files_that_hold_a_secret_may_be_named():
    source = open_source("postgresql://me@host/db?table=t&passfile=/etc/pgpass&sslkey=/etc/key.pem")
    assert source.name == "public.t"
