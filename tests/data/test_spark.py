"""The nasty table, counted by Spark on this machine, and read from it: equal tables (`make spark`)."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from tests.data.test_rows import ROWS, SCHEMA, WAYS, nasty, questions

from fedsynth.data.sources import open_source
from fedsynth.data.sources.streamed import stream
from fedsynth.errors import FedsynthError

pytestmark = pytest.mark.spark
sql = pytest.importorskip("pyspark.sql", reason="Spark is not installed here; make spark")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    import pyarrow.parquet as pq

    folder: Path = tmp_path_factory.mktemp("spark")
    pq.write_table(nasty(), folder / "rows.parquet")
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    builder = sql.SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.read.parquet(str(folder / "rows.parquet")).write.saveAsTable("nasty")
    return "pyspark://?table=default.nasty"


@pytest.mark.parametrize("way", {way for _, way in WAYS}, ids=lambda way: way.__name__)
def test_every_column_and_pair_is_counted_as_from_a_file(address, tmp_path, way):
    import pyarrow.parquet as pq

    pq.write_table(nasty(), tmp_path / "rows.parquet")
    axes = questions(np.random.default_rng(5))
    cliques: list[tuple[int, ...]] = [(at,) for at in range(len(axes))]
    cliques += itertools.combinations(range(len(SCHEMA.stored)), 2)
    with stream(open_source("rows.parquet", tmp_path), SCHEMA) as rows:
        expected, kept = rows.tables(axes, cliques), len(rows)
    with way(open_source(address, immutable=True), SCHEMA) as rows:
        assert (len(rows), rows.rows_read) == (kept, ROWS)
        for clique, table, right in zip(cliques, rows.tables(axes, cliques), expected, strict=True):
            np.testing.assert_array_equal(table, right, err_msg=str([axes[at] for at in clique]))


def test_a_table_that_changes_ends_the_question(address):
    session = sql.SparkSession.builder.getOrCreate()
    session.sql("CREATE TABLE short AS SELECT * FROM nasty LIMIT 9")

    def ask() -> None:
        with open_source("pyspark://?table=short", immutable=True).counted(SCHEMA) as rows:
            session.sql("INSERT INTO short SELECT * FROM nasty LIMIT 1")
            len(rows)

    with pytest.raises(FedsynthError, match="has changed while it was read"):
        ask()
