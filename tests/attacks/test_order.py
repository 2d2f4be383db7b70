"""B1: a database returns rows in an order that other rows can change; which rows of a person are used must not follow.

PostgreSQL reads a table in parallel, in no fixed order, once it is large enough: one more row can make it so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pyarrow as pa

from fedsynth.data.read import PersonLimit, read_table
from fedsynth.data.sources.files import ParquetRows
from fedsynth.rows import BadLine
from fedsynth.schema import Categorical, Schema
from fedsynth.schema.columns import Column


@dataclass(frozen=True)
class Unordered(ParquetRows):
    """A table that returns its rows in another order, as a database may."""

    seed: int = 0
    keeps_order: ClassVar[bool] = False

    def batches(
        self, wanted: Mapping[str, Column | None], chunk_rows: int, *, strict: bool = False
    ) -> Iterator[tuple[Any, Sequence[BadLine]]]:
        rows = pa.concat_tables([rows for rows, _ in super().batches(wanted, chunk_rows)])
        order = np.random.default_rng(self.seed).permutation(rows.num_rows)
        for part in np.array_split(order, 3):
            yield rows.take(pa.array(part)), ()


def test_the_rows_used_of_a_person_do_not_depend_on_the_order_of_a_database(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    schema = Schema((Categorical("a", tuple("abcdefgh")), Categorical("b", ("x", "y"), missing=True)))
    rows = pd.DataFrame(
        {
            "person": rng.integers(0, 40, 400),
            "a": rng.choice(list("abcdefgh"), 400),
            "b": rng.choice(["x", "y", None], 400),  # type: ignore[arg-type]
        }
    )
    rows.to_parquet(tmp_path / "rows.parquet", index=False)
    limit = PersonLimit("person", 2, b"key")
    found = [read_table(Unordered(tmp_path / "rows.parquet", seed), schema, persons=limit) for seed in (1, 2)]
    assert found[0].digest == found[1].digest
    assert len(found[0]) == 80
