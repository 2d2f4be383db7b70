"""Declared questions over rows that are streamed, or counted in a database: the same integers as in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.answers.world import DECLARED, SCHEMA, declared, rows
from tests.data import postgres

from fedsynth.answers.declared import compiled, look_query
from fedsynth.answers.questions import Scope
from fedsynth.answers.ranges import Range
from fedsynth.data.sources import open_source
from fedsynth.data.sources.streamed import stream
from fedsynth.encoding import encode
from fedsynth.federation.weighted import WeightedCounts
from fedsynth.rows import Rows

FRAME = rows(3000)
TABLE = encode(SCHEMA, FRAME)
REALS = {SCHEMA.index("bill"): Range.of(300.0, 9_000.0), SCHEMA.index("nights"): Range.of(0, 12)}
"""Ranges beyond which there are rows, as a first look may find them."""


def queries() -> list[WeightedCounts]:
    """Return the first look, the questions, and some of these with an interval of a category beside one of a number."""
    columns = DECLARED.looked_at(SCHEMA)
    ranges = {at: REALS.get(at, Range.of(column.low, column.high)) for at, column in columns.items()}
    more = declared(
        question=[
            {"kind": "share", "name": "a", "of": "bill=99.99..1200.01", "among": "ward!=surgery & smoker=missing"},
            {"kind": "mean", "name": "b", "column": "bill", "among": "nights=missing & sex=m"},
            {"kind": "count", "name": "c", "among": "age>=50 & age<=70 & nights>3"},
        ]
    )
    scope = Scope(SCHEMA, DECLARED.cuts, ranges)
    return [look_query(columns), compiled(DECLARED.all, scope), compiled(more.all, scope)]


@contextmanager
def parquet(folder: Path) -> Iterator[Rows]:
    FRAME.to_parquet(folder / "rows.parquet")
    with stream(open_source("rows.parquet", folder), SCHEMA, chunk_rows=700) as streamed:
        yield streamed


@contextmanager
def csv(folder: Path) -> Iterator[Rows]:
    FRAME.to_csv(folder / "rows.csv", index=False)
    with stream(open_source("rows.csv", folder), SCHEMA, chunk_rows=700) as streamed:
        yield streamed


@contextmanager
def duckdb(folder: Path) -> Iterator[Rows]:
    engine = pytest.importorskip("duckdb", reason="the extra [duckdb] is not installed")
    pytest.importorskip("ibis", reason="the extra [sql] is not installed")
    FRAME.to_parquet(folder / "rows.parquet")
    with engine.connect(str(folder / "clinic.duckdb")) as connection:
        connection.execute(f"CREATE TABLE visits AS SELECT * FROM '{folder}/rows.parquet'")
    with open_source("duckdb://clinic.duckdb?table=visits", folder).counted(SCHEMA) as counted:
        yield counted


@contextmanager
def postgresql(folder: Path) -> Iterator[Rows]:
    pytest.importorskip("adbc_driver_postgresql", reason="the driver of the extra [sql] is not installed")
    if postgres.binaries() is None:
        pytest.skip("no PostgreSQL server is installed here")
    FRAME.to_csv(folder / "rows.csv", index=False)
    with pytest.MonkeyPatch.context() as patch, postgres.server(fsync="off") as server:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        kinds = "ward text, sex text, smoker bool, age int, nights int, bill numeric(10, 2), readmitted text"
        server.run(f"CREATE TABLE visits ({kinds})")
        server.run("COPY visits FROM STDIN (FORMAT csv, HEADER)", rows=folder / "rows.csv")
        with open_source(server.uri("table=visits")).counted(SCHEMA) as counted:
            yield counted


@pytest.mark.parametrize("held", [parquet, csv, duckdb, postgresql])
def test_questions_are_answered_alike_wherever_rows_lie(held, tmp_path):
    asked = queries()
    with held(tmp_path) as elsewhere:
        assert len(elsewhere) == len(FRAME)
        for query in asked:
            query.check(SCHEMA)
            np.testing.assert_array_equal(query.answer(elsewhere), query.answer(TABLE))
    share, *_, count = asked[2].split(SCHEMA, asked[2].answer(TABLE))
    inside = FRAME.bill.between(99.99, 1200.01) & FRAME.ward.notna() & (FRAME.ward != "surgery") & FRAME.smoker.isna()
    assert share[1] == inside.sum() > 0
    assert count == (FRAME.age.between(50, 70) & (FRAME.nights > 3).fillna(False)).sum() > 0
