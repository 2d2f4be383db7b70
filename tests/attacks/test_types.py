"""B3: one more row changes the type of a whole column, and the encoding of every other row with it.

A missing value turns whole numbers into doubles ("1" into "1.0"), a number with more decimals turns "1.5" into "1.50",
a number turns booleans into 0 and 1, a time turns days into times, and a cell of bytes turns text into bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.attacks.world import ask_deployed, deployed, question, values

from fedsynth.encoding import encode
from fedsynth.errors import DataWarning
from fedsynth.federation.local import LocalNoise
from fedsynth.federation.query import Counts
from fedsynth.federation.simulate import federate
from fedsynth.persons import keep_rows
from fedsynth.privacy.cost import Budget
from fedsynth.privacy.release import Gaussian
from fedsynth.schema import Categorical, Numeric, Schema
from fedsynth.schema.bins import Axis

ONE = Schema((Categorical("sex", ("1", "2")),))
"""One column of codes, as registers have them: the schema lists them as text."""


def whole_numbers(rows: int) -> pd.DataFrame:
    """Return a column of whole numbers, a third of which are 1."""
    return pd.DataFrame({"sex": np.where(np.arange(rows) % 3 == 0, 1, 2)})


def deployed_counts(folder: Path, rows: pd.DataFrame) -> list[int]:
    """Return what a deployed site with ``rows`` in a Parquet file answers to one cheap question, rho 1e-4."""
    config = deployed(folder, rows, ONE, None, "rows.parquet")
    asked = question(Counts((Axis(0),), ((0,),)), schema=ONE.digest, release=Gaussian(1e-4))
    return list(values(ask_deployed(config, asked)))


def test_b3_one_missing_value_does_not_empty_a_deployed_site(tmp_path):
    """A site of 9,000 rows over Parquet; before, the answer (3060, 5922) became (-27, -111) by one row more."""
    rows = whole_numbers(9000)
    more = pd.concat([rows, pd.DataFrame({"sex": [None]}, dtype=float)], ignore_index=True)
    assert more["sex"].dtype == np.float64
    for name, given in (("without", rows), ("with", more)):
        counts = deployed_counts(tmp_path / name, given)
        assert np.abs(np.subtract(counts, (3000, 6000))).max() < 6 * 71  # one standard deviation of the noise is 71


def test_b3_one_cell_of_bytes_does_not_empty_a_deployed_site(tmp_path):
    """A site of 9,000 rows of text over Parquet; before, (3000, 6000) became noise by one row more."""
    rows = whole_numbers(9000).astype(str).astype(object)
    more = pd.concat([rows, pd.DataFrame({"sex": [b"\xff"]})], ignore_index=True)
    for name, given in (("without", rows), ("with", more)):
        counts = deployed_counts(tmp_path / name, given)
        assert np.abs(np.subtract(counts, (3000, 6000))).max() < 6 * 71
    assert pq.read_schema(tmp_path / "with" / "rows.parquet").field("sex").type == pa.binary()


def test_b3_one_missing_value_does_not_empty_a_table_of_a_simulation():
    """Frames of 8,980 rows and one more; before, 1 of 8,981 rows was left, and nothing was said."""
    rows = whole_numbers(8980)
    more = pd.concat([rows, pd.DataFrame({"sex": [np.nan]})], ignore_index=True)
    sizes = []
    for given in (rows, more):
        with nullcontext() if given is rows else pytest.warns(DataWarning, match="1 of the 8981 rows do not fit"):
            federation = federate([given], ONE, Budget.none(), trust=LocalNoise())
        sizes.append(federation.sum(Counts((Axis(0),), ((0,),)), 0.5).values.tolist())
    assert sizes == [[2994, 5986]] * 2


DAYS = pd.to_datetime(["2020-01-01", "2020-01-02", "2020-01-02"])
CHANGES: dict[str, tuple[tuple[str, ...], list[Any], Callable[[list[Any]], pa.Array], list[Any]]] = {
    "whole numbers and a missing value": (("1", "2"), [1, 2, 2], lambda held: pa.array(held, pa.float64()), [None]),
    "decimals and one with more of them": (("1.5", "2.5"), list(map(Decimal, ("1.5", "2.5", "2.5"))), pa.array,
                                           [Decimal("2.25")]),
    "booleans and a number": (("False", "True"), [False, True, True],
                              lambda held: pa.array(list(map(int, held)), pa.int8()), [2]),
    "days and a time": (("2020-01-01", "2020-01-02"), [day.date() for day in DAYS],
                        lambda held: pa.array(map(pd.Timestamp, held), pa.timestamp("us")),
                        [pd.Timestamp("2020-01-02 12:30")]),
    "numbers and a text": (("1", "2"), [1.0, 2.0, 2.0], lambda held: pa.array(map(str, held)), ["many"]),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_b3_no_row_changes_the_type_of_the_others(tmp_path, change):
    """The rows of a Parquet file, and the same rows in the type that one more row gives the column."""
    from fedsynth.data.read import read_table

    listed, held, unified, more = CHANGES[change]
    schema = Schema((Categorical("a", listed),))
    pq.write_table(pa.table({"a": pa.array(held)}), tmp_path / "without.parquet")
    pq.write_table(pa.table({"a": unified([*held, *more])}), tmp_path / "with.parquet")
    without, with_more = (read_table(tmp_path / f"{name}.parquet", schema) for name in ("without", "with"))
    assert without.codes[0].tolist() == with_more.codes[0].tolist() == [0, 1, 1]


def test_b3_no_row_changes_which_rows_of_the_others_are_kept():
    """Identifiers of persons in the file of an exporter that writes whole numbers beside a missing one as doubles."""
    ids = [7, 8, 7, 7, 8, 7]
    exported = pd.Series([*ids, None]).to_csv(index=False, header=False).split("\n")[:7]
    assert exported[0] == "7.0"
    np.testing.assert_array_equal(keep_rows([*exported[:6], ""], 2, bytes(32))[:6], keep_rows(ids, 2, bytes(32)))


def test_a_complex_number_leaves_the_other_rows_of_a_frame_as_they_are() -> None:
    schema = Schema((Categorical("text", ("1", "2")), Categorical("whole", (1, 2)), Numeric("number", 0, 4, bins=4)))
    rows = pd.DataFrame({name: [1, 2, 2, 1] for name in schema.names})
    more = pd.concat([rows, pd.DataFrame({name: [3j] for name in schema.names})], ignore_index=True)
    before, after = encode(schema, rows), encode(schema, more)
    assert more["number"].dtype == complex
    assert after.left_out == 1
    assert [column.tolist() for column in after.codes] == [column.tolist() for column in before.codes]


@pytest.mark.parametrize("value", [Decimal("sNaN"), pd.Timestamp("2020-01-01"), np.clongdouble(3j)], ids=repr)
@pytest.mark.parametrize("dtype", ["int64", "Sparse[int64]"])
def test_no_value_makes_the_columns_of_a_frame_unreadable(value: Any, dtype: str) -> None:
    schema = Schema((Categorical("text", ("1", "2")), Categorical("whole", (1, 2)), Numeric("number", 0, 4, bins=4)))
    rows = pd.DataFrame({name: pd.Series([1, 2, 2, 1], dtype=dtype) for name in schema.names})
    more = pd.concat([rows, pd.DataFrame({name: [value] for name in schema.names})], ignore_index=True)
    assert [column.tolist() for column in encode(schema, more).codes] == [
        column.tolist() for column in encode(schema, rows).codes
    ]
