"""Interactions: what a row adds, tables from interactions and margins, and noise below that of whole tables."""

from __future__ import annotations

import math
import tracemalloc
from itertools import permutations, product

import numpy as np
import pandas as pd
import pytest
from tests.world import request_of

from fedsynth.encoding import encode
from fedsynth.errors import InvalidParameter
from fedsynth.federation.query import Counts
from fedsynth.federation.simulate import federate
from fedsynth.federation.trusted import TrustedServer
from fedsynth.methods.contrasts import _blocks, contrasts, halvings, most_halvings
from fedsynth.methods.domain import Domain
from fedsynth.methods.interactions import (
    GRAIN,
    Contrasts,
    Interactions,
    _norms,
    basis,
    codes,
    completed,
    encoded,
    measure_interactions,
)
from fedsynth.methods.survey import Survey
from fedsynth.models.adaptive_bins import AdaptiveBins
from fedsynth.privacy.cost import Budget
from fedsynth.privacy.release import Exact
from fedsynth.rows import Table
from fedsynth.schema import Categorical, Schema
from fedsynth.schema.bins import Axis
from fedsynth.schema.columns import Column, Numeric

SIZES = (2, 3, 5, 8)
SCHEMA = Schema(tuple(Categorical(f"c{j}", tuple(f"v{v}" for v in range(size))) for j, size in enumerate(SIZES)))
AXES = tuple(Axis(at) for at in range(len(SIZES)))
HALVES = tuple(Axis(at, None, np.arange(size) % 2) for at, size in enumerate(SIZES))


def table(rows: int, seed: int = 0) -> Table:
    """Return rows of dependent columns."""
    rng = np.random.default_rng(seed)
    hidden = rng.random(rows)
    return Table(
        SCHEMA, tuple((np.clip(hidden + rng.normal(0, 0.2, rows), 0, 0.999) * size).astype(np.uint8) for size in SIZES)
    )


@pytest.mark.parametrize("groups", [2, 3, 7, 24, 300])
def test_codes_are_vertices_of_a_simplex(groups):
    exact, coded = basis(groups), codes(groups) / GRAIN
    assert np.allclose(exact.T @ exact, np.eye(groups - 1))
    assert np.allclose(exact.sum(axis=0), 0)
    assert np.allclose(exact @ exact.T, np.eye(groups) - 1 / groups)
    assert np.abs(coded - exact).max() <= 0.5 / GRAIN
    counts = np.random.default_rng(0).integers(0, 1000, (3, groups, 2))
    assert (encoded(counts, 1) == np.einsum("igj,gk->ikj", counts, codes(groups))).all()
    products = codes(groups) @ codes(groups).T
    longest = products.diagonal().max(), max(0, -products.min()), np.abs(codes(groups)).sum(axis=1).max()
    assert _norms(groups, False) == longest


@pytest.mark.parametrize(("tables", "whole"), [(((0, 1),), ()), (((1, 3), (0,)), ()), (((0, 2, 3), (2, 3)), (0,))])
def test_the_declared_sensitivity_is_reached_by_some_row_and_exceeded_by_none(tables, whole):
    query = Interactions(AXES, tables, whole, tuple(range(1, len(tables) + 1)))
    every = [np.array(row) for row in product(*map(range, SIZES))]
    answers = [query.answer(Table(SCHEMA, tuple(row[:, None].astype(np.uint8)))) for row in every]
    said = query.sensitivity(SCHEMA)
    assert max(float(np.linalg.norm(one)) for one in answers) == pytest.approx(said.l2, rel=1e-3)
    assert max(float(np.linalg.norm(one)) for one in answers) <= said.l2
    assert max(float(np.abs(one).sum()) for one in answers) <= said.l1
    distances = [float(np.linalg.norm(one - other)) for one in answers for other in answers]
    assert max(distances) <= said.of("replace").l2
    if len(tables) == 1:  # of several tables, not all need to move most for one and the same pair of rows
        assert max(distances) == pytest.approx(said.of("replace").l2, rel=1e-3)


@pytest.mark.parametrize(
    "contrasts",
    [
        (Contrasts((0, 1, 2, 3)),),
        (Contrasts((0, 2), (3,), 3), Contrasts((3,), (2, 1, 0))),  # pairs again, and in another order
        (Contrasts((1, 4, 5), (2,)), Contrasts((4,), (5,), 64)),  # one column on several axes
        (Contrasts((4,), (6,)), Contrasts((6, 4, 7)), Contrasts((4, 7))),  # one and the same division, or its opposite
    ],
)
@pytest.mark.parametrize("tables", [(), ((0, 1), (4,))])
def test_no_row_moves_contrasts_by_more_than_is_declared_however_they_overlap(contrasts, tables):
    more = (Axis(1, None, np.array([0, 0, 1])), Axis(1, None, np.array([1, 1, 0])), Axis(3, None, np.arange(8) // 4))
    query = Interactions((*HALVES, *more, more[0]), tables, contrasts=contrasts)
    query.check(SCHEMA)
    rows = [np.array(row)[:, None].astype(np.uint8) for row in product(*map(range, SIZES))]
    answers = np.array([query.answer(Table(SCHEMA, tuple(row))) for row in rows]).astype(float)
    declared = query.sensitivity(SCHEMA)
    numbers = sum(block.cells * block.weight**2 for block in contrasts)
    if not tables:
        assert np.linalg.norm(answers, axis=1) == pytest.approx(np.full(len(rows), GRAIN**2 * math.sqrt(numbers) / 2))
    assert np.linalg.norm(answers, axis=1).max() <= declared.l2 * (1 + 1e-12)
    assert np.abs(answers).sum(axis=1).max() <= declared.l1
    moved = [np.linalg.norm(answers - answer, axis=1).max() for answer in answers]
    assert max(moved) <= declared.of("replace").l2
    assert np.abs(answers).max() <= query.row_range(SCHEMA)[1]
    cells = sum(map(math.prod, query.shapes(SCHEMA)))
    assert query.cells(SCHEMA) == answers.shape[1] == cells
    assert query.extent(SCHEMA) == (len(named(query)), 2, cells)


def named(query: Interactions) -> set[int]:
    """Return the columns that the tables or contrasts of a query have."""
    blocks = [(*block.first, *block.second) for block in query.contrasts]
    return {query.axes[at].column for positions in (*query.tables, *blocks) for at in positions}


def test_a_row_moves_halved_columns_half_as_much_as_their_table():
    halved = Interactions(AXES[:1] * 2, ((0, 1),)).sensitivity(SCHEMA).l2 / GRAIN**2
    assert halved == pytest.approx(0.5, rel=1e-3)
    assert Counts.of(4, [(0, 1)]).sensitivity(SCHEMA).l2 == 1


def test_contrasts_are_the_interactions_of_halved_columns():
    """And one record moves each of them by half a record, or by a whole one if it is replaced."""
    rows = table(500)
    blocks = (Contrasts((2, 0), (3,), 2), Contrasts((1, 3, 2)))
    pairs = [(2, 0), (2, 3), (0, 3), (1, 3), (1, 2), (3, 2)]
    compact = Interactions(HALVES, contrasts=blocks)
    parts = compact.split(SCHEMA, compact.answer(rows))
    assert [len(part) for part in parts] == [3, 3]
    tables = Interactions(HALVES, tuple(pairs))
    for found, wanted in zip(np.concatenate(parts), tables.split(SCHEMA, tables.answer(rows)), strict=True):
        assert found == pytest.approx(wanted[0, 0], rel=1e-3)
    signs = [1 - 2 * (codes % 2).astype(int) for codes in rows.codes]
    assert np.concatenate(parts).tolist() == [float(signs[i] @ signs[j]) / 2 for i, j in pairs]
    said = compact.sensitivity(SCHEMA)
    assert said.l2 / GRAIN**2 == math.sqrt(3 * 4 + 3) / 2
    assert said.of("replace").l2 == 2 * said.l2
    both = Interactions(HALVES, tuple(pairs), contrasts=blocks)
    assert np.array_equal(both.answer(rows), np.concatenate([tables.answer(rows), compact.answer(rows)]))


def test_contrasts_of_600_columns_fit_into_a_question_and_into_the_memory_of_a_site():
    schema = Schema(tuple(Categorical(f"c{at}", tuple("abcd")) for at in range(600)))
    places = {at: list(range(3 * at, 3 * at + 3)) for at in range(600)}
    thirds = [np.array(groups) for groups in ([0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0])]
    axes = tuple(Axis(at // 3, None, thirds[at % 3]) for at in range(1800))
    query = Interactions(axes, contrasts=tuple(_blocks(places)))
    assert query.cells(schema) == 3 * 600 * 599 // 2
    request = request_of(query, run="r", step=0, verb="sum", release=Exact(), schema=schema.digest, trust="trusted")
    assert len(request.body) < 2**18
    rng = np.random.default_rng(0)
    rows = Table(schema, tuple(rng.integers(0, 4, 200).astype(np.uint8) for _ in range(600)))
    tracemalloc.start()
    answer = query.answer(rows)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 * 2**20
    assert answer.shape == (query.cells(schema),)


@pytest.mark.parametrize("columns", [2, 40, 300, 600, 1448])
@pytest.mark.parametrize("favoured", [0, 0.2])
def test_one_question_has_room_for_as_many_halvings_as_are_asked_for(columns, favoured):
    """With the pairs of interest counted twice, too; the bounds are those of the query."""
    schema = Schema(tuple(Categorical(f"c{at}", tuple("abcd")) for at in range(columns)))
    pairs = columns * (columns - 1) // 2
    most = min(most_halvings(columns, int(favoured * pairs)), 3)
    if not most:
        assert columns == 1448
        assert favoured
        return
    axes = tuple(Axis(at // most, None, np.arange(4) % 2) for at in range(most * columns))
    blocks = list(_blocks({at: range(most * at, most * at + most) for at in range(columns)}))
    again = math.ceil(favoured * pairs) * most
    assert sum(block.cells for block in blocks) + again <= 2**20
    Interactions(axes, contrasts=tuple(blocks)).check(schema)


def test_nothing_is_asked_of_fewer_than_two_columns_with_two_values():
    schema = Schema((Categorical("a", ("x", "y")), Categorical("b", ("z",))))
    rows = Table(schema, tuple(np.zeros(9, dtype=np.uint8) for _ in range(2)))
    federation = federate([rows], schema, Budget(1.0, 1e-6), trust=TrustedServer(), seed=0)
    cells = [counted(column, [9.0] * column.size) for column in schema.stored]
    found = contrasts(federation, Survey(cells, 9, ("site-000",)), 3, 0.5, [(0, 1)], 0.25)
    assert (found.strengths, found.clear) == ({}, ())
    assert not federation.ledger.entries


def test_the_largest_question_for_contrasts_takes_little_memory():
    query = Interactions(HALVES[:1] * 1448, contrasts=(Contrasts(tuple(range(1448))),))
    query.check(SCHEMA)
    rows = table(8)
    tracemalloc.start()
    answer = query.answer(rows)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 * 2**20
    assert len(answer) == 1448 * 1447 // 2


def test_interactions_and_margins_are_the_table():
    rows = table(500)
    domain = Domain(SCHEMA)
    federation = federate([rows], SCHEMA, Budget.none(), trust=TrustedServer(), seed=0)
    cliques = [(0, 1), (2, 3), (0, 2, 3)]
    pairs = measure_interactions(federation, domain, cliques, 1.0, whole=0)
    exact = rows.tables(AXES, cliques)
    for found, counts in zip(pairs[:2], exact, strict=False):
        assert np.allclose(completed(found.values, [counts.sum(axis=1), counts.sum(axis=0)]), counts)
    for value, counts in zip(pairs[2].values, exact[2], strict=True):
        assert np.allclose(completed(value, [counts.sum(axis=1), counts.sum(axis=0)]), counts)
    assert np.allclose(pairs[2].summed(0).values, pairs[1].values, atol=500 / GRAIN)


@pytest.mark.parametrize("delta", [1e-6, 0.0])
def test_released_interactions_have_the_noise_that_they_state(delta):
    domain = Domain(SCHEMA)
    rows = table(2000)
    counts = rows.tables(AXES, [(2, 3)])[0].astype(float)
    exact = (codes(5) / GRAIN).T @ counts @ (codes(8) / GRAIN)
    errors, stds = [], []
    for seed in range(60):
        federation = federate([rows], SCHEMA, Budget(1.0, delta), trust=TrustedServer(), seed=seed)
        (found,) = measure_interactions(federation, domain, [(2, 3)], 1.0)
        errors.append(((found.values - exact) ** 2).mean())
        stds.append(found.std)
    assert np.mean(errors) == pytest.approx(np.mean(stds) ** 2, rel=5 * math.sqrt(2 / (60 * 28)) * (1 if delta else 2))
    if delta:  # the share of the variance of a whole table's noise
        federation = federate([rows], SCHEMA, Budget(1.0, delta), trust=TrustedServer(), seed=0)
        assert stds[0] / federation.std(Counts.of(4, [(2, 3)]), 1.0) == pytest.approx(math.sqrt(0.8 * 0.875), rel=1e-3)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (Interactions((Axis(9),), ((0,),)), "no column 9"),
        (Interactions((Axis(1, None, np.array([0, 0, 0])),), ((0,),)), "1 groups"),
        (Interactions(AXES, ((0, 0),)), "at most once"),
        (Interactions(AXES, ((0, 4),)), "invalid table"),
        (Interactions(AXES, ((0, 1, 2),)), "more than 2 axes"),
        (Interactions(AXES, ((0, 1),), (4,)), "does not exist"),
        (Interactions(AXES, ((0, 1),), (), (1, 2)), "2 weights for 1 tables"),
        (Interactions(HALVES), "without tables and contrasts"),
        (Interactions(HALVES, ((0, 1),), contrasts=(Contrasts((0, 1)), Contrasts((2,)))), "of no pair"),
        (Interactions(HALVES, contrasts=(Contrasts((), (0, 1, 2)),)), "of no pair"),
        (Interactions(HALVES, contrasts=(Contrasts((0, 4)),)), "at most once"),
        (Interactions(HALVES, contrasts=(Contrasts((0,), (0,)),)), "at most once"),
        (Interactions(AXES, contrasts=(Contrasts((0, 1)),)), "two groups"),
        (Interactions(HALVES[:1] * 1449, contrasts=(Contrasts(tuple(range(1449))),)), "1049076 contrasts are more"),
    ],
)
def test_what_a_bound_does_not_cover_is_refused(query, message):
    with pytest.raises(InvalidParameter, match=message):
        query.check(SCHEMA)


# ---------------------------------------------------------------------------------------------------------------------
# Contrasts


def counted(column: Column, counts: list[float]) -> AdaptiveBins:
    """Return the fine cells of a column with these counts, which have no noise."""
    cells = AdaptiveBins.of(column)
    return AdaptiveBins(cells.groups, cells.whole, np.array(counts, dtype=float), np.zeros(len(counts)), cells.grid)


def even(column: Column) -> AdaptiveBins:
    """Return the fine cells of a number whose rows are uniform over its range, and none missing."""
    grid = AdaptiveBins.of(column).grid
    assert grid is not None
    return counted(column, [*np.maximum(grid.upper - grid.lower, 0.0), *[0.0] * column.missing])


def divisions(column: Column, cells: AdaptiveBins, most: int = 3) -> list[list[int]]:
    return [one.axis.groups.tolist() for one in halvings(0, column, cells, most) if one.axis.groups is not None]


def test_a_category_is_halved_in_its_order_by_frequency_and_alternately():
    column = Categorical("c", ("a", "b", "c", "d", "e"))
    cells = counted(column, [15, 30, 25, 20, 10])
    assert divisions(column, cells) == [[0, 0, 1, 1, 1], [1, 0, 0, 1, 1], [1, 0, 1, 0, 1]]
    assert divisions(column, cells, 2) == [[0, 0, 1, 1, 1], [1, 0, 0, 1, 1]]
    assert [one.mean for one in halvings(0, column, cells, 3)] == pytest.approx([0.1, -0.1, 0.0])


def test_a_value_of_most_rows_is_told_from_the_others_and_the_next_ones_as_well():
    column = Categorical("c", ("a", "b", "c", "d"))
    cells = counted(column, [12, 60, 8, 20])
    assert divisions(column, cells) == [[1, 0, 1, 1], [1, 1, 1, 0], [0, 1, 1, 1]]
    assert [one.mean for one in halvings(0, column, cells, 3)] == pytest.approx([-0.2, 0.6, 0.76])
    many = Categorical("c", ("a", "b"), missing=True)
    assert divisions(many, counted(many, [60, 30, 10])) == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]


def test_one_division_is_not_asked_for_twice_and_none_of_a_single_value():
    two = Categorical("c", ("a", "b"))
    assert len({id(one) for one in halvings(0, two, counted(two, [10, 90]), 3)}) == 1
    one = Categorical("c", ("a",))
    assert halvings(0, one, counted(one, [10]), 3) == []
    missing = Categorical("c", ("a",), missing=True)
    assert len({id(one) for one in halvings(0, missing, counted(missing, [10, 5]), 3)}) == 1


def test_a_number_and_an_ordered_category_are_halved_once():
    ordered = Categorical("c", ("a", "b", "c"), ordered=True)
    assert divisions(ordered, counted(ordered, [40, 30, 30])) == [[0, 1, 1]]
    number = Numeric("x", 0.0, 10.0, missing=True)
    (halving,) = halvings(0, number, even(number), 3)
    assert halving.axis.cuts is not None
    assert len(halving.axis.cuts) == 2  # whatever the number of its fine cells
    values = np.array([0.0, 1.0, 4.0, 6.0, 10.0, np.nan])
    assert halving.axis.places(np.zeros(6, dtype=np.uint8), values).tolist() == [0, 0, 0, 1, 1, 0]


def test_contrasts_tell_equally_common_values_apart_that_one_division_mixes():
    """The number is high in the first and fourth of four classes: halved in their order, they say nothing about it."""
    rng = np.random.default_rng(0)
    schema = Schema((Categorical("c", tuple("abcd")), Numeric("x", 0.0, 1.0)))
    kind = rng.integers(0, 4, 20_000)
    number = np.where(np.isin(kind, (0, 3)), 0.75, 0.25) + rng.uniform(-0.2, 0.2, kind.size)
    rows = encode(schema, pd.DataFrame({"c": np.array(list("abcd"))[kind], "x": number}))
    found = []
    for counts in permutations([5003.0, 5002.0, 5001.0, 5000.0]):
        federation = federate([rows], schema, Budget(1.0, 1e-6), trust=TrustedServer(), seed=0)
        cells = [counted(schema.stored[0], list(counts)), even(schema.stored[1])]
        survey = Survey(cells, len(rows), ("site-000",))
        found.append(contrasts(federation, survey, 3, 1.0, [], 0.25))
    shown = [one.strengths[0, 1] for one in found]
    assert np.mean([one > 4000 for one in shown]) == pytest.approx(2 / 3)  # by frequency or alternately


def test_contrasts_show_dependence_in_either_direction_and_none_where_there_is_none():
    rng = np.random.default_rng(0)
    schema = Schema(tuple(Categorical(name, ("a", "b", "c")) for name in "xyzu"))
    x = rng.integers(0, 3, 20_000)
    columns = (x, np.where(rng.random(x.size) < 0.5, x, rng.integers(0, 3, x.size)), 2 - x, rng.integers(0, 3, x.size))
    rows = Table(schema, tuple(column.astype(np.uint8) for column in columns))
    federation = federate([rows], schema, Budget(1.0, 1e-6), trust=TrustedServer(), seed=0)
    cells = [
        counted(column, np.bincount(codes, minlength=3).tolist())
        for column, codes in zip(schema.stored, rows.codes, strict=True)
    ]
    found = contrasts(federation, Survey(cells, len(rows), ("site-000",)), 3, 1.0, [], 0.25)
    assert found.clear[0] == (0, 2)
    assert set(found.clear[1:3]) == {(0, 1), (1, 2)}
    assert (
        max(found.strengths[pair] for pair in [(0, 3), (1, 3), (2, 3)]) < 5 * math.sqrt(20_000) / 2
    )  # as in any sample
    # Half the covariance of the signs: of x and 2 - x, halved into a third and two thirds, 20,000 (1 - 1/9) / 2.
    assert found.strengths[0, 2] == pytest.approx(20_000 * (1 - 1 / 9) / 2, rel=0.05)
