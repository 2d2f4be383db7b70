"""Weighted counts: sums and products of values as a direct computation gives them, their bounds, and refusals."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
from msgspec import structs

from fedsynth.encoding import encode
from fedsynth.errors import InvalidParameter
from fedsynth.federation.query import Query
from fedsynth.federation.weighted import LARGEST_BOUND, WeightedCounts
from fedsynth.rows import Table
from fedsynth.schema import Categorical, Numeric, Schema
from fedsynth.schema.bins import Axis

SCHEMA = Schema(
    (
        Categorical("ward", ("a", "b", "c"), missing=True),
        Numeric("nights", 0, 4, integer=True),
        Numeric("change", -2, 2, integer=True, missing=True),
    )
)
WARD, NIGHTS, CHANGE = (Axis(0), Axis(1, np.arange(5.0)), Axis(2, np.arange(-2.0, 3.0)))
QUERY = WeightedCounts(
    (WARD, NIGHTS, CHANGE, Axis(0, None, np.array([0, 1, 1, 0])), CHANGE),
    (None, np.arange(5), np.array([-2, -1, 0, 1, 2, 0]), np.array([0, 1]), None),
    ((0,), (0, 1), (1, 2), (1, 3), (2, 4)),
    (1, 3, 7, 2, 5),
)


def rows(count: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "ward": pd.Series(rng.choice(["a", "b", "c"], count)).mask(rng.random(count) < 0.1),
            "nights": rng.integers(0, 5, count),
            "change": pd.Series(rng.integers(-2, 3, count)).astype("Int64").mask(rng.random(count) < 0.1),
        }
    )


def every_record() -> list[Table]:
    """Return a table for each record that there may be."""
    values = itertools.product(["a", "b", "c", None], range(5), [-2, -1, 0, 1, 2, None])
    table = encode(SCHEMA, pd.DataFrame(list(values), columns=SCHEMA.names).astype({"change": "Int64"}))
    return [table.take(np.array([at])) for at in range(len(table))]


def test_sums_of_values_and_products_are_those_of_a_direct_computation():
    frame = rows(2000)
    by_ward, nights, product, of_two, weighted = QUERY.split(SCHEMA, QUERY.answer(encode(SCHEMA, frame)))
    wards = frame.ward.fillna("missing")
    order = ["a", "b", "c", "missing"]
    np.testing.assert_array_equal(by_ward, wards.value_counts().reindex(order))
    np.testing.assert_array_equal(nights, frame.nights.groupby(wards).sum().reindex(order))
    assert product == (frame.nights * frame.change.fillna(0)).sum()
    assert of_two == frame.nights[frame.ward.isin(["b", "c"])].sum()
    changes = frame.change.value_counts().reindex([-2, -1, 0, 1, 2], fill_value=0)
    np.testing.assert_array_equal(weighted, [*(changes * changes.index), 0])
    assert QUERY.shapes(SCHEMA) == [(4,), (4,), (), (), (6,)]
    assert QUERY.cells(SCHEMA) == 16
    assert tuple(QUERY.extent(SCHEMA)) == (3, 2, 16)
    assert QUERY.stds(2.1) == pytest.approx([2.1, 0.7, 0.3, 1.05, 0.42])


@pytest.mark.parametrize(
    "query",
    [
        QUERY,
        structs.replace(QUERY, tables=((0,), (0, 1)), factors=(1, 3)),
        structs.replace(QUERY, tables=((1,),), factors=(9,)),
        structs.replace(QUERY, tables=((2,), (4,)), factors=(4, 2)),
    ],
)
def test_some_record_moves_the_answer_as_far_as_declared(query):
    """In L1 and L2 when one is added; when one is replaced in L1, and in L2 where few enough tables are in the way."""
    declared = query.sensitivity(SCHEMA)
    answers = [query.answer(record).astype(float) for record in every_record()]
    assert max(np.abs(answer).sum() for answer in answers) == declared.l1
    assert max(np.linalg.norm(answer) for answer in answers) == pytest.approx(declared.l2)
    moved = [one - other for one in answers for other in answers]
    assert max(np.abs(of).sum() for of in moved) <= declared.replace_l1
    largest = max(np.linalg.norm(of) for of in moved)
    assert largest <= declared.replace_l2 * (1 + 1e-12)
    low, high = query.row_range(SCHEMA)
    assert max(answer.max() for answer in answers) == high
    assert min(answer.min() for answer in answers) >= low


def test_weights_of_one_sign_cost_less_when_a_record_is_replaced():
    """Two numbers change by at most b each, or one by 2 b where weights have both signs."""
    positive = WeightedCounts((WARD, NIGHTS), (None, np.arange(5)), ((0, 1),), (1,))
    signed = WeightedCounts((CHANGE,), (np.array([-2, -1, 0, 1, 2, 0]),), ((0,),), (1,))
    for query, l1, l2 in ((positive, 8.0, 4 * 2**0.5), (signed, 4.0, 4.0)):
        answers = [query.answer(record).astype(float) for record in every_record()]
        moved = [one - other for one in answers for other in answers]
        found = query.sensitivity(SCHEMA).of("replace")
        assert max(np.abs(of).sum() for of in moved) == l1 == found[0]
        assert max(np.linalg.norm(of) for of in moved) == pytest.approx(l2) == found[1]


def test_bounds_at_the_limit_are_exact():
    weights = np.array([0, 1, 2, 3, LARGEST_BOUND])
    query = WeightedCounts((NIGHTS,), (weights,), ((0,),), (1,))
    query.check(SCHEMA)
    nobody = rows(0)
    four = pd.concat([nobody, pd.DataFrame({"ward": ["a"] * 3, "nights": [4, 4, 1], "change": [0, 0, 0]})])
    assert query.answer(encode(SCHEMA, four)) == [2 * LARGEST_BOUND + 1]
    assert query.sensitivity(SCHEMA).l2 == LARGEST_BOUND


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"weights": QUERY.weights[:4]}, "4 weights for 5 axes"),
        ({"weights": (None, np.arange(4), *QUERY.weights[2:])}, "column 1 has 5 cells but 4 weights"),
        ({"weights": (None, np.arange(10).reshape(5, 2), *QUERY.weights[2:])}, "column 1 has 5 cells but 10 weights"),
        ({"weights": (np.array([0, 0, 0, LARGEST_BOUND + 1]), *QUERY.weights[1:])}, "a weight of column 0 exceeds"),
        ({"weights": (np.array([0, 0, 0, -(2**63)]), *QUERY.weights[1:])}, "a weight of column 0 exceeds"),
        ({"weights": (None, np.arange(5) * 2**29, *QUERY.weights[2:])}, "one record may add"),
        ({"factors": (1, 3, 7, 2)}, "4 weights for 5 tables"),
        ({"tables": (*QUERY.tables[:4], (5,))}, "invalid table over axes"),
        ({"tables": (*QUERY.tables[:4], (4, 4))}, "at most once"),
        ({"axes": (Axis(9), *QUERY.axes[1:])}, "there is no column 9"),
    ],
)
def test_what_fits_no_schema_or_grows_too_large_is_refused(change, says):
    QUERY.check(SCHEMA)
    with pytest.raises(InvalidParameter, match=says):
        structs.replace(QUERY, **change).check(SCHEMA)


def test_tables_that_a_site_sums_over_may_not_be_too_large_either():
    """Their answer is a single number, but they are counted in whole first."""
    wide = Schema(tuple(Numeric(f"c{at}", 0, 4999, integer=True) for at in range(2)))
    axes = tuple(Axis(at, np.arange(5000.0)) for at in range(2))
    weights: Any = (np.arange(5000), np.arange(5000))
    with pytest.raises(InvalidParameter, match="tables to sum over have 25000000 cells"):
        WeightedCounts(axes, weights, ((0, 1),), (1,)).check(wide)
    query: Query = WeightedCounts(axes, weights, ((0,), (1,)), (1, 1))
    query.check(wide)
