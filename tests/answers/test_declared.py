"""Settings of declared questions, and the queries that they become."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.answers.world import CONTENT, DECLARED, SCHEMA, declared

from fedsynth.answers.declared import compiled, look_query, read_declared
from fedsynth.answers.questions import Scope
from fedsynth.answers.ranges import Range, found_range, look_axis, quantile_axis, scaled, value_axis
from fedsynth.errors import FedsynthError, InvalidParameter
from fedsynth.federation.weighted import WHOLE
from fedsynth.schema import Datetime, Numeric, Schema

SHARE = {"kind": "share", "name": "a", "of": "sex=f"}
WIDEST = {at: Range.of(column.low, column.high) for at, column in DECLARED.looked_at(SCHEMA).items()}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"question": [SHARE, SHARE]}, r"two questions are called \['a'\]"),
        ({"question": [SHARE], "criterion": [{**SHARE, "tolerance": 0.1}]}, r"two questions are called \['a'\]"),
        ({"criterion": [SHARE]}, r"the criteria \['a'\] have no tolerance"),
        ({"question": [{**SHARE, "tolerance": 0.1}]}, "have a tolerance: write them as"),
        ({"criterion": [{**SHARE, "tolerance": 0}]}, "tolerance"),
        ({"question": [{**SHARE, "within": -1}]}, "within"),
        (
            {"question": [{"kind": "shares", "name": "a"}]},
            r"a \[\[question\]\] has kind = 'shares'; did you mean 'share'",
        ),
        ({"criterion": [{"name": "a", "of": "sex=f"}]}, r"a \[\[criterion\]\] has no kind; "),
        ({"question": [{**SHARE, "off": "x"}]}, "off"),
        ({"question": [{"kind": "share", "of": "sex=f"}]}, "name"),
        ({"question": [SHARE], "answer_share": 1}, "answer_share"),
        ({"question": [SHARE], "answer_share": 0}, "answer_share"),
        ({"question": [SHARE], "cuts": {"age": [60, 40]}}, "list ascending numbers"),
        ({"question": [SHARE], "cuts": {"age": []}}, "list ascending numbers"),
        ({"question": [SHARE], "clips": {"age": [60, 40]}}, "give the lower one first"),
        ({"question": [{"kind": "quantile", "name": "q", "column": "age", "at": [1.0]}]}, "at"),
        ({"question": [{"kind": "correlation", "name": "q", "columns": ["age"]}]}, "columns"),
        ({"question": [{**SHARE, "name": str(at)} for at in range(65)]}, "question"),
    ],
)
def test_settings_that_contradict_themselves_are_refused(content, says):
    with pytest.raises(InvalidParameter, match=says):
        read_declared(content)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"cuts": {"ward": [1]}}, "'ward' is no column of numbers"),
        ({"cuts": {"age": [0, 40]}}, "list numbers within its bounds in the schema, above 0 and up to 110"),
        ({"cuts": {"age": [40, 111]}}, "list numbers within its bounds in the schema, above 0 and up to 110"),
        ({"clips": {"wards": [0, 1]}}, "wards"),
        ({"clips": {"bill": [70_000, 80_000]}}, "outside its bounds in the schema, 0 and 60000"),
    ],
)
def test_cuts_and_clips_of_what_is_no_number_are_refused(content, says):
    with pytest.raises(FedsynthError, match=says):
        read_declared({"question": [SHARE], **content}).check(SCHEMA)


def test_numbers_that_questions_name_are_looked_at_once():
    """Those of shares, cross tables, survival and logistic regressions need no range."""
    assert [SCHEMA.stored[at].name for at in DECLARED.looked_at(SCHEMA)] == ["nights", "bill", "age"]
    assert declared("share", "cross", "odds", "survival", "count").looked_at(SCHEMA) == {}
    query = look_query(DECLARED.looked_at(SCHEMA))
    assert query.sensitivity(SCHEMA).l2 == pytest.approx(WHOLE * math.sqrt(3))


def test_questions_share_the_noise_evenly():
    """A record moves the tables of each question by the same in L2, and all together by no more than declared."""
    scope = Scope(SCHEMA, DECLARED.cuts, WIDEST)
    query, counts = compiled(DECLARED.all, scope), [len(asked.parts(scope)) for asked in DECLARED.all]
    assert sum(counts) == len(query.tables)
    begin = 0
    for number in counts:
        of_question = query.tables[begin : begin + number], query.factors[begin : begin + number]
        part = type(query)(query.axes, query.weights, *of_question)
        assert part.sensitivity(SCHEMA).l2 == pytest.approx(WHOLE, rel=0.1)
        begin += number
    assert query.sensitivity(SCHEMA).l2 == pytest.approx(WHOLE * math.sqrt(len(counts)), rel=0.02)


def test_a_regression_on_many_columns_takes_no_more_than_its_part():
    """It has 91 products, each of which would take as much as a whole question if factors were too coarse."""
    columns = tuple(Numeric(f"c{at}", 0, 100, integer=True) for at in range(13))
    wide, ranges = Schema(columns), {at: Range.of(0, 100) for at in range(13)}
    covariates = [column.name for column in columns[:8]]
    of_many = {"kind": "regression", "name": "many", "outcome": "c12", "covariates": covariates}
    query = compiled(read_declared({"question": [of_many]}).all, Scope(wide, {}, ranges))
    assert len(query.tables) == 1 + 9 + 45
    assert query.sensitivity(wide).l2 == pytest.approx(WHOLE, rel=0.1)


def test_ranges_move_cut_points_and_neither_axes_nor_cells_grow():
    """A plan's slot is as large as the largest query that any answer to the first look leads to."""
    largest = DECLARED.largest(SCHEMA)
    rng = np.random.default_rng(0)
    for _ in range(30):
        ranges = {}
        for at, column in DECLARED.looked_at(SCHEMA).items():
            axis = look_axis(column, at)
            assert axis.cuts is not None
            noisy = rng.normal(0, 50, len(axis.cuts)) + rng.integers(0, 5000) * rng.dirichlet(
                np.full(len(axis.cuts), 0.1)
            )
            ranges[at] = found_range(column, noisy, 50.0)
        query = compiled(DECLARED.all, Scope(SCHEMA, DECLARED.cuts, ranges))
        query.check(SCHEMA)
        for part, most in zip(query.extent(SCHEMA), largest, strict=True):
            assert part <= most


# ---------------------------------------------------------------------------------------------------------------------
# Ranges

BILL, NIGHTS = (Scope(SCHEMA, {}, {}).number(name)[1] for name in ("bill", "nights"))


def looked(column: Numeric, values: Any, std: float) -> Range:
    axis = look_axis(column, 0)
    assert axis.cuts is not None
    places = np.minimum(np.searchsorted(axis.cuts, values), len(axis.cuts) - 1)
    counts = np.bincount(places, minlength=len(axis.cuts)) + np.random.default_rng(0).normal(0, std, len(axis.cuts))
    return found_range(column, counts, std)


def test_a_range_holds_nearly_all_rows_and_not_the_whole_column():
    values = np.random.default_rng(1).lognormal(7, 0.8, 10_000).clip(0, 60_000).round(2)
    found = looked(BILL, values, 20.0)
    assert ((values >= found.low) & (values <= found.high)).mean() > 0.99
    assert found.high < 40_000
    assert found.low <= found.centre <= found.high
    assert found.scale == max(found.high - found.centre, found.centre - found.low)
    shares = np.array([0.1, 0.25, 0.5, 0.75, 0.9])
    below = np.searchsorted(np.sort(values), found.quantiles(shares)) / len(values)
    np.testing.assert_allclose(below, shares, atol=0.015)  # by straight lines within the cells, .9 would be .95
    assert found.clipped(100, 200).centre == 200


def test_quantiles_step_over_a_value_that_many_rows_share():
    """Also where its cell has no width, as of a column of real numbers; a range of one value has one quantile."""
    edges = np.array([-1.0, 0.0, np.nextafter(0.0, 1.0), 1.0, 1.0])
    found = Range(-1.0, 1.0, 0.0, edges, np.array([0.0, 0.3, 0.6, 0.9, 1.0]))
    assert found.quantiles([0.0, 0.3, 0.45, 0.95]) == pytest.approx([-1.0, 0.0, 0.0, 1.0], abs=0.02)
    assert (np.diff(found.quantiles(np.linspace(0, 1, 50))) >= 0).all()
    assert found.quantiles([0.15])[0] == pytest.approx(-0.5, abs=0.1)
    assert Range.of(3.0, 3.0).quantiles([0.2, 0.5]).tolist() == [3.0, 3.0]


def test_noise_alone_gives_a_range_within_the_column():
    rng = np.random.default_rng(2)
    axis = look_axis(NIGHTS, 0)
    assert axis.cuts is not None
    for _ in range(200):
        found = found_range(NIGHTS, rng.normal(0, 30, len(axis.cuts)), 30.0)
        assert 0 <= found.low <= found.centre <= found.high <= 60
        assert (np.diff(found.cumulated) >= 0).all()


def test_a_narrow_range_has_a_cell_for_each_value_and_a_wide_one_256():
    axis, values = value_axis(NIGHTS, 4, Range.of(0, 30))
    assert axis.cuts is not None
    np.testing.assert_array_equal(values[:-1], np.arange(31))
    assert np.isnan(values[-1])
    np.testing.assert_array_equal(axis.cuts, np.arange(31) + 0.5)
    axis, values = value_axis(BILL, 5, Range.of(0, 1000))
    assert axis.cuts is not None
    assert len(axis.cuts) == len(values) == 258
    assert (np.diff(axis.cuts) > 0).all()
    rows = np.array([0.0, 0.01, 500.0, 999.99, 1000.0, 50_000.0])
    places = np.minimum(np.searchsorted(axis.cuts, rows), 257)
    assert np.abs(values[places] - rows.clip(0, 1000)).max() <= 1000 / 256 / 2 + 1e-9
    axis, values = value_axis(BILL, 5, Range.of(7, 7))
    assert values.tolist() == [7.0]


def test_rounded_values_are_whole_units_from_the_centre():
    found = scaled(np.array([0.0, 10, 5, np.nan, 7.501]), Range.of(0, 10))
    assert found.tolist() == [-1024, 1024, 0, 0, 512]


def test_cells_of_quantiles_end_between_values():
    axis, ends = quantile_axis(NIGHTS, 4, Range.of(0, 30), (0.1, 0.5, 0.51))
    assert ends.tolist() == [-0.5, 3.5, 15.5, 60.5]
    assert axis.cuts is not None
    assert axis.cuts.tolist() == ends[1:].tolist()


def test_groups_of_a_number_are_those_of_its_cuts_or_of_its_bins():
    """A cut begins a group, whether it is a value of the column or lies between two."""
    for cuts, ages, groups in (((40, 60.5), (39, 40, 60, 61), [0, 1, 1, 2]), ((40.5,), (40, 41), [0, 1])):
        axis, labels = Scope(SCHEMA, {"age": tuple(map(float, cuts))}, {}).group_axis("age")
        assert axis.cuts is not None
        assert np.searchsorted(axis.cuts, ages).tolist() == groups
        assert len(labels) == len(axis.cuts) == len(cuts) + 1
    assert Scope(SCHEMA, {}, {}).group_axis("age")[1][:2] == ("0..9", "10..19")
    assert Scope(SCHEMA, {}, {}).group_axis("smoker")[1][-1] == "missing"
    days = Schema((Datetime("seen", "2024-01-01", "2024-12-31", unit="D", bins=4), Numeric("height", 0.5, 2.5, bins=2)))
    assert Scope(days, {}, {}).group_axis("seen")[1] == (
        "2024-01-01..2024-04-01",
        "2024-04-02..2024-07-01",
        "2024-07-02..2024-09-30",
        "2024-10-01..2024-12-31",
    )
    assert Scope(days, {}, {}).group_axis("height")[1] == ("0.5..1.5", "1.5..2.5")


def test_all_kinds_of_questions_are_in_the_tests():
    kinds = {"share", "count", "cross", "mean", "total", "quantile", "correlation", "regression", "survival"}
    assert {of["kind"] for of in CONTENT["question"]} == kinds
