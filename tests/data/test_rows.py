"""One nasty table, counted by everything that can count: equal tables for every axis, and equally many rows."""

from __future__ import annotations

import csv
import itertools
import math
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, date, datetime, timedelta, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.data import postgres

from fedsynth.data.read import in_canonical_order, read_table
from fedsynth.data.sources import ibis, open_source
from fedsynth.data.sources.streamed import stream
from fedsynth.encoding import encode
from fedsynth.errors import FedsynthError, SchemaError, Unsupported
from fedsynth.rows import Rows, Source, Table, pairs_of
from fedsynth.schema import (
    Boolean,
    Categorical,
    Computed,
    Datetime,
    Identifier,
    Numeric,
    Rule,
    Schema,
    Stored,
)
from fedsynth.schema.bins import Axis

pytest.importorskip("ibis", reason="the extra [sql] is not installed")

LABELS = ("a", "A", "a ", " a", "é", "e\u0301", 'say, "hi"\nthere', "O'Hara\\", "NA", "𝔘", "\u200b", "z%s{}$1", "-0.0")
SCHEMA = Schema(
    (
        Categorical("label", LABELS, missing=True, unknown="missing"),
        Categorical("strict", LABELS[:6]),
        Categorical("open", ("a", "é"), missing=True, unknown="other"),
        Categorical("grade", (1, 2, 30, -4), missing=True, unknown="missing"),
        Boolean("flag", missing=True),
        Numeric("number", -2.5, 7.5, (-2.5, -0.1, 0.0, 0.1, 0.3, 7.5), missing=True),
        Numeric("bounded", 0.1, 0.7, bins=6, outside="drop", missing=True),
        Numeric("count", 0, 20, bins=7, integer=True, missing=True),
        Numeric("whole", -3, 3, integer=True, missing=True, outside="drop"),
        Datetime("day", "1999-12-31", "2001-01-01", bins=5, unit="D", missing=True),
        Datetime("seen", "2000-01-01", "2000-01-01T01:00:00", bins=7, unit="s", missing=True),
        Datetime("paid", "2000-01-01", "2000-03-01", timezone="Europe/Zurich", missing=True, outside="drop"),
        Numeric("rest", -5.0, 9.0, missing=True, stored=Stored(difference=("number", "rest"), lower=-6.0, upper=3.0)),
        Numeric(
            "rate", -8.0, 8.0, bins=9, missing=True, stored=Stored(ratio=("rate", "number"), lower=-2.0, upper=9.0)
        ),
        Numeric("price", 0.0, 3.0, decimals=1, bins=6),
        Numeric(
            "paid_in", 0.0, 4.0, decimals=2, bins=8, stored=Stored(difference=("paid_in", "price"), lower=-1, upper=2)
        ),
        Numeric(
            "steps", 0, 40, integer=True, missing=True, stored=Stored(difference=("steps", "count"), lower=0, upper=9)
        ),
        Datetime(
            "leaves",
            "1999-06-01",
            "2002-01-01",
            unit="D",
            missing=True,
            stored=Stored(difference=("leaves", "day"), unit="day", lower=-20, upper=400),
        ),
        Datetime(
            "gone",
            "2000-01-01",
            "2000-01-02",
            unit="s",
            missing=True,
            outside="drop",
            stored=Stored(difference=("gone", "seen"), unit="minute", lower=0, upper=90),
        ),
        Identifier("id", "uuid"),
        Categorical("size", ("small", "big"), missing=True, computed=Computed(lookup="open", table={"a": "small"})),
    ),
    rules=(Rule({"label": ["a", ""], "strict": ["A"]}), Rule({"flag": [True], "grade": [2], "open": ["other"]})),
)
NUMBERS = SCHEMA.index("number"), SCHEMA.index("bounded"), SCHEMA.index("count"), SCHEMA.index("seen")


def beside(numbers: Sequence[float]) -> list[float]:
    """Numbers, and the doubles next to them."""
    return [x for n in numbers for x in (n, math.nextafter(n, math.inf), math.nextafter(n, -math.inf))]


def instants(*texts: str) -> list[datetime]:
    step = timedelta(microseconds=1)
    return [time for text in texts for time in (datetime.fromisoformat(text) + k * step for k in (-1, 0, 1))]


SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 5e-324, -5e-324, 1e300, -1e300, None]
POOLS: dict[str, tuple[Any, list[Any]]] = {
    "label": (pa.string(), [*LABELS, "b", "", None, "nan", "?", "a\t", "other"]),
    "strict": (pa.string(), [*(LABELS[:6] * 12), "b", None]),
    "open": (pa.string(), ["a", "é", "e\u0301", "other", "A", None]),
    "grade": (pa.int64(), [1, 2, 30, -4, 0, 3, 2**62, -(2**63), None]),
    "flag": (pa.bool_(), [True, False, None]),
    "number": (pa.float64(), beside([-2.5, -0.1, 0.1, 0.3, 7.5, 0.1 + 0.2]) + SPECIAL),
    "bounded": (pa.float64(), beside(np.linspace(0.1, 0.7, 7).tolist()[1:-1]) * 3 + [0.1, 0.7, math.nan, None]),
    "count": (pa.int32(), [*range(-2, 23), 2**31 - 1, None]),
    "whole": (pa.float64(), [float(k) for k in range(-3, 4)] * 5 + [0.5, 4.0, 1e300, -0.0, math.nan, None]),
    "day": (pa.date32(), [date(1, 1, 1), date(1999, 12, 30), date(2000, 2, 29), date(9999, 12, 31), None]),
    "seen": (
        pa.timestamp("us"),
        [*instants("2000-01-01", "2000-01-01T00:08:34", "2000-01-01T00:08:35", "2000-01-01T01:00:00"),
         datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999), None],
    ),
    "paid": (
        pa.timestamp("us", tz="UTC"),
        [time.replace(tzinfo=UTC) for time in instants("1999-12-31T23:00:01", "2000-01-15T12:00:00")] * 4
        + [datetime(2000, 2, 29, 23, tzinfo=timezone(timedelta(hours=-1))), datetime(2100, 1, 1, tzinfo=UTC), None],
    ),
    "rest": (pa.float64(), beside([-5.0, 0.0, 2.2, 5.7, 9.0]) + SPECIAL),
    "rate": (pa.float64(), beside([-8.0, 0.1, 0.3, 3.3, 8.0]) + SPECIAL),
    "price": (pa.float64(), [k / 10 for k in range(-2, 33)]),
    "paid_in": (pa.float64(), [k / 100 for k in range(-5, 410)] + [1e300, -1e300, math.inf]),
    "steps": (pa.int64(), [*range(-2, 43), 2**62, -(2**63), None]),
    "leaves": (
        pa.timestamp("us"),
        [*instants("1999-12-31", "2000-02-29", "2000-06-01T12:00:00", "2001-02-03"),
         datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999), None],
    ),
    "gone": (
        pa.timestamp("us"),
        instants("2000-01-01T00:00:01", "2000-01-01T00:08:35", "2000-01-01T01:00:00", "2000-01-01T02:30:00") * 6
        + [datetime(2001, 1, 1), None],
    ),
}  # fmt: skip
TYPES = (
    "text",
    "text",
    "text",
    "int8",
    "bool",
    "float8",
    "float8",
    "int4",
    "float8",
    "date",
    "timestamp",
    "timestamptz",
    "float8",
    "float8",
    "numeric",
    "float8",
    "int8",
    "timestamp",
    "timestamp",
)
ROWS = 3000


def nasty() -> pa.Table:
    """Rows that hold every value of the pools, in every column, at random."""
    rng = np.random.default_rng(11)
    columns = {}
    for name, (kind, pool) in POOLS.items():
        values = [*pool, *(pool[k] for k in rng.integers(0, len(pool), ROWS - len(pool)))]
        columns[name] = pa.array([values[k] for k in rng.permutation(ROWS)], kind)
    return pa.table(columns)


def written(value: Any) -> str:
    """A value as a CSV file has it."""
    if value is None:
        return ""
    return value.isoformat() if isinstance(value, date) else str(value).lower() if value is True else str(value)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Source]]:
    """The same rows as CSV and Parquet, in DuckDB, in SQLite, and where a server is installed in PostgreSQL."""
    folder, rows = tmp_path_factory.mktemp("rows"), nasty()
    pq.write_table(rows, folder / "rows.parquet", row_group_size=700)
    with (folder / "rows.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(rows.column_names)
        writer.writerows([written(value) for value in row.values()] for row in rows.to_pylist())
    found = {
        "csv": open_source("rows.csv", folder, records="rfc4180"),  # labels hold newlines
        "parquet": open_source("rows.parquet", folder),
    }
    if find_spec("duckdb"):
        found["duckdb"] = open_source(table_in_duckdb(folder, rows), folder)
    if find_spec("regex"):  # which ibis needs for SQLite
        found["sqlite"] = open_source(table_in_sqlite(folder, rows), folder, immutable=True)
    with pytest.MonkeyPatch.context() as patch, table_in_postgres(folder / "rows.csv", patch) as address:
        yield found | ({"postgres": open_source(address)} if address else {})


def table_in_duckdb(folder: Path, rows: pa.Table) -> str:
    import duckdb

    with duckdb.connect(str(folder / "rows.duckdb")) as connection:
        connection.register("given", rows)
        connection.execute("CREATE TABLE nasty AS SELECT * FROM given")
    return "duckdb://rows.duckdb?table=nasty"


def table_in_sqlite(folder: Path, rows: pa.Table) -> str:
    """SQLite has no type of times: they are texts."""
    kinds = {"text": "text", "int8": "bigint", "int4": "integer", "bool": "boolean", "float8": "double",
             "numeric": "double", "date": "date", "timestamp": "timestamp", "timestamptz": "timestamp"}  # fmt: skip
    columns = ", ".join(f"{name} {kinds[kind]}" for name, kind in zip(rows.column_names, TYPES, strict=True))
    connection = sqlite3.connect(folder / "rows.db")
    connection.execute(f"CREATE TABLE nasty ({columns})")
    cells = ([v.isoformat() if isinstance(v, date) else v for v in row.values()] for row in rows.to_pylist())
    connection.executemany(f"INSERT INTO nasty VALUES ({', '.join('?' * rows.num_columns)})", cells)
    connection.commit()
    connection.close()
    return "sqlite://rows.db?table=nasty"


@contextmanager
def table_in_postgres(file: Path, patch: pytest.MonkeyPatch) -> Iterator[str]:
    if postgres.binaries() is None:
        yield ""
        return
    pytest.importorskip("adbc_driver_postgresql", reason="the extra [sql] is not installed")
    with postgres.server(fsync="off") as server:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        columns = ", ".join(
            f"{name} {kind}" for name, kind in zip((column.name for column in SCHEMA.asked), TYPES, strict=True)
        )
        server.run(f"CREATE TABLE nasty ({columns})")
        server.run("COPY nasty FROM STDIN (FORMAT csv, HEADER)", rows=file)
        yield server.uri("table=nasty")


def read(source: Source, schema: Schema) -> AbstractContextManager[Rows]:
    return nullcontext(read_table(source, schema, chunk_rows=500))


def counted(source: Source, schema: Schema) -> AbstractContextManager[Rows]:
    return source.counted(schema)


def streamed(source: Source, schema: Schema) -> AbstractContextManager[Rows]:
    return stream(source, schema, chunk_rows=500)


DATABASES = ("postgres", "duckdb", "sqlite")
Way = Callable[[Source, Schema], AbstractContextManager[Rows]]
WAYS: list[tuple[str, Way]] = [
    *itertools.product(["csv", "parquet", "postgres", "duckdb", "sqlite"], [read, streamed]),
    *itertools.product(DATABASES, [counted]),
]
each_way = pytest.mark.parametrize(("place", "way"), WAYS, ids=[f"{place}-{way.__name__}" for place, way in WAYS])


@pytest.fixture(scope="module")
def expected() -> Table:
    """The rows value by value, as Python's own objects."""
    rows = nasty().to_pydict()
    return encode(SCHEMA, pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in rows.items()}))


def questions(rng: np.random.Generator) -> list[Axis]:
    """The schema's own bins of all columns, groups of some of them, cut points, and groups of cut points."""
    axes = [Axis(column) for column in range(len(SCHEMA.stored))]
    for column in (0, 2, 3, 4, *NUMBERS, *SCHEMA.links):
        axes.append(Axis(column, None, rng.integers(0, 3, SCHEMA.sizes[column])))
    cuts = {
        "number": [-math.inf, -3.0, -2.5, -0.1, -0.0, 0.1, 0.3, 1.0, 7.5, 8.0, math.inf],
        "bounded": [0.2, 0.30000000000000004, 0.69],
        "count": [-1.5, 0.0, 3.0, 3.5, 20.0, 21.0],
        "seen": (SCHEMA.stored[NUMBERS[-1]].bin_edges[[0, 2, 3, 7]] + [0, 0.5, 0, 1]).tolist(),  # type: ignore[union-attr]
    }
    cuts |= {
        SCHEMA.names[at]: [-1.0, 0.1, *link.held.bin_edges[[3, 4, -1]] + [0, 0.5, 0]]
        for at, link in SCHEMA.links.items()
    }
    for name, points in cuts.items():
        column = SCHEMA.index(name)
        axes += [Axis(column, np.array(points)), Axis(column, np.array(points[:1]))]
        axes.append(Axis(column, np.array(points), rng.integers(0, 4, len(points) + 1)))
    return axes


@each_way
def test_every_axis_is_counted_alike(sources, expected, place, way, monkeypatch):
    if place not in sources:
        pytest.skip(f"nothing for {place} is installed here")
    monkeypatch.setattr(ibis, "_PAIRS", 3)
    rng = np.random.default_rng(5)
    axes = questions(rng)
    cliques: list[tuple[int, ...]] = [(at,) for at in range(len(axes))]
    cliques += [tuple(pair) for pair in itertools.combinations(range(len(SCHEMA.stored)), 2)]
    cliques += [tuple(rng.permutation(len(axes))[:3].tolist()) for _ in range(10)] + [(2, 2), (5, 1, 0)]
    halves = [Axis(column, None, np.arange(size) % 2) for column, size in enumerate(SCHEMA.sizes) if size > 1]
    blocks = [((0, 2, 1), (4,)), ((3,), (1, 5)), ((2, 1), ())]
    with way(sources[place], SCHEMA) as rows:
        assert (len(rows), rows.rows_read) == (len(expected), ROWS)
        assert 0 < len(rows) < ROWS
        found = rows.tables(axes, cliques)
        (alone,) = rows.tables(axes, [(5, 0)])
        assert rows.tables(axes, []) == []
        products = rows.products(halves, blocks)
        assert rows.products(halves, []) == []
        assert str(len(rows)) not in repr(rows)
    for clique, table, right in zip(cliques, found, expected.tables(axes, cliques), strict=True):
        np.testing.assert_array_equal(table, right, err_msg=str([axes[at] for at in clique]))
        assert table.dtype == np.int64
    np.testing.assert_array_equal(alone, expected.tables(axes, [(5, 0)])[0])
    for block, sums in zip(blocks, products, strict=True):
        tables = expected.tables(halves, pairs_of(block).tolist())
        assert sums.tolist() == [2 * int(table.trace()) - len(expected) for table in tables]
        assert sums.dtype == np.int64


def test_what_is_read_is_the_same_to_the_bit(sources):
    digests = {place: in_canonical_order(read_table(source, SCHEMA)).digest for place, source in sources.items()}
    assert len(digests) > 1
    assert len(set(digests.values())) == 1, digests


@each_way
def test_numbers_and_times_as_text(tmp_path, sources, place, way):
    """Files may hold anything as text; a database that counts is told to cast it."""
    texts = ["1", " 2.5 ", "1e1", "+3", "-0", "1_000", "0x10", "inf", "1e999", "nan", "", "abc", "٣", None]
    times = ["2000-01-01", "2000", "2000-02-01T10:00:00Z", "20000101", "2000-W05-1", "yesterday", None]
    yes = ["yes", "F", " true ", "1.0", "0", "2", None]
    pools = {"x": texts, "t": times, "b": yes}
    frame = pa.table({name: pa.array([pool[k % len(pool)] for k in range(60)]) for name, pool in pools.items()})
    schema = Schema(
        (Numeric("x", 0, 10, bins=4, missing=True), Datetime("t", "1999", "2001", missing=True), Boolean("b", True))
    )
    if place in DATABASES:
        if way is not counted or place not in sources:
            pytest.skip("read as text, like every text of a database")
        with (
            pytest.raises(Unsupported, match="cast the column"),
            sources[place].counted(Schema((Numeric("label", 0, 1),))),
        ):
            pass
        return
    pq.write_table(frame, tmp_path / "text.parquet")
    with (tmp_path / "text.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [frame.column_names, *([value or "" for value in row.values()] for row in frame.to_pylist())]
        )
    right = encode(schema, frame.to_pandas())
    axes = [Axis(0), Axis(1), Axis(2), Axis(0, np.array([1.0, 3.0])), Axis(0, np.array([2.5]), np.array([1, 0]))]
    cliques = [(0, 1), (1, 2), (3, 2), (4,)]
    with way(open_source(f"text.{place}", tmp_path), schema) as rows:
        for table, other in zip(rows.tables(axes, cliques), right.tables(axes, cliques), strict=True):
            np.testing.assert_array_equal(table, other)
        assert (len(rows), rows.rows_read) == (len(right), 60)


@pytest.mark.parametrize("way", [read, streamed])
def test_text_that_is_broken_or_holds_a_zero_stops_no_other_row(tmp_path, way):
    cells = [b"a", b"a\0", b"\xff", b"a", None, b"b"]
    text = pa.Array.from_buffers(pa.string(), len(cells), pa.array(cells, pa.binary()).buffers())
    pq.write_table(pa.table({"x": text, "n": pa.array([1.5] * 6, pa.float32())}), tmp_path / "t.parquet")
    for labels, right in ((("a", "b"), [2, 1, 3]), (("a", "a\0"), [2, 1, 3])):
        schema = Schema((Categorical("x", labels, missing=True, unknown="missing"), Numeric("n", 0, 2, bins=2)))
        with way(open_source("t.parquet", tmp_path), schema) as rows:
            np.testing.assert_array_equal(rows.tables([Axis(0)], [(0,)])[0], right)


def test_files_without_rows_lines_that_are_none_and_files_that_change(tmp_path):
    way: Way = streamed
    schema = Schema((Categorical("x", ("a", "b")), Numeric("n", 0, 2, bins=2, missing=True)))
    file = tmp_path / "t.csv"
    file.write_text("x,n\n")
    with way(open_source("t.csv", tmp_path), schema) as rows:
        assert rows.tables([Axis(0)], [(0,)])[0].tolist() == [0, 0]
        assert (len(rows), rows.rows_read) == (0, 0)
    file.write_text("x,n\na,1\nb\nb,x,3\na,\n")
    with way(open_source("t.csv", tmp_path), schema) as rows:
        assert (rows.rows_read, len(rows)) == (4, 2)
        assert rows.tables([Axis(0)], [(0,)])[0].tolist() == [2, 0]

    def change() -> None:
        with way(open_source("t.csv", tmp_path), schema) as rows:
            file.write_text("x,n\nb,1\n")
            rows.tables([Axis(0)], [(0,)])

    with pytest.raises(FedsynthError, match="changed while"):
        change()
    pq.write_table(pa.table({"x": pa.array([], pa.string()), "n": pa.array([], pa.int8())}), tmp_path / "t.parquet")
    with way(open_source("t.parquet", tmp_path), schema) as rows:
        assert rows.tables([Axis(0), Axis(1)], [(0, 1)])[0].shape == (2, 3)
        assert len(rows) == 0


def test_a_file_counts_nothing_itself(tmp_path):
    (tmp_path / "t.csv").write_text("x\na\n")
    with pytest.raises(Unsupported, match="write streamed = true"):
        open_source("t.csv", tmp_path).counted(Schema((Categorical("x", ("a",)),)))


def test_single_rows_are_not_handed_out(tmp_path):
    way: Way = streamed
    (tmp_path / "t.csv").write_text("x\na\n")
    with way(open_source("t.csv", tmp_path), Schema((Categorical("x", ("a",)),))) as rows:
        for name in ("codes", "numbers"):
            with pytest.raises(Unsupported, match="read_table"):
                getattr(rows, name)


def test_errors_of_a_file_are_its_own(tmp_path):
    way: Way = streamed
    schema = Schema((Categorical("x", ("a",)), Numeric("n", 0, 1)))
    (tmp_path / "t.csv").write_text("x\nsecret-4711\n")
    pq.write_table(pa.table({"x": ["secret-4711"] * 9, "n": [0.5] * 9}), tmp_path / "cut.parquet")
    content = bytearray((tmp_path / "cut.parquet").read_bytes())
    content[4:40] = bytes(36)
    (tmp_path / "cut.parquet").write_bytes(content)
    faults = {"t.csv": r"lacks the columns \['n'\]", "cut.parquet": "damaged"}
    for name, says in faults.items():

        def ask(name: str = name) -> None:
            with way(open_source(name, tmp_path), schema) as rows:
                rows.tables([Axis(0)], [(0,)])

        with pytest.raises(SchemaError, match=says) as caught:
            ask()
        assert "4711" not in str(caught.value)
