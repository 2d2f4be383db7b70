"""A site's rows in Spark, on this machine or on a cluster.

Spark inlines the relations of ``WITH`` into each statement that reads them, and expressions into each other: statements
of many tables outgrow its planner. Each relation is stored on its workers instead, without the plan that it comes from,
as a temporary view of the session; Spark deletes it when nothing refers to it any more.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsynth.data.sources.engine import TABLES, EngineTable

_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True)
class SparkTable(EngineTable):
    """A site's rows in a table or view of Spark."""

    def connect(self) -> Any:
        """Return the process' session of Spark, or start one; the address' options are its settings."""
        import ibis
        from pyspark.sql import SparkSession

        builder = SparkSession.builder
        for name, value in self.address.options.items():
            builder = builder.config(name, os.path.expandvars(value))
        return ibis.pyspark.connect(builder.getOrCreate())

    def disconnect(self, connection: Any) -> None:
        """Leave the session open: it belongs to the whole process."""

    def reader(self, selection: Any, chunk_rows: int) -> Any:
        """Return a reader of the rows, which Spark first collects in this process."""
        return self.run(self.connection.compile(selection)).to_reader(chunk_rows)

    def run(self, sql: str) -> Any:
        """Return the reply to a statement as an Arrow table."""
        return self.connection._session.sql(sql).toArrow()

    def replies(self, steps: Mapping[str, str], counts: Sequence[str]) -> Iterator[Any]:
        """Yield the replies to counting statements, over stored relations."""
        session = self.connection._session
        _ONE_AT_A_TIME.acquire()  # the relations' names are the session's, which is the process'
        try:
            for name, sql in steps.items():
                session.sql(sql).localCheckpoint().createOrReplaceTempView(name)
            for start in range(0, len(counts), TABLES):
                yield self.run(" UNION ALL ".join(counts[start : start + TABLES]))
        finally:
            for name in steps:
                session.catalog.dropTempView(name)
            _ONE_AT_A_TIME.release()
