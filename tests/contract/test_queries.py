"""Every question over its whole parameter domain: how far a record moves the answer, and what an answer gives away.

A question without a strategy fails the first test. Norms are taken of single rows and of pairs of rows directly, since
an answer is a sum over rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contract.strategies import SCHEMAS, STRATEGIES, rows
from tests.contract.training_strategies import SITE, sent_with
from tests.world import request_of

from fedsynth.answers.queries import SiteDistances
from fedsynth.deep import training
from fedsynth.deep.training import GradientSum, LocalTraining, NetworkTraining
from fedsynth.errors import InvalidParameter
from fedsynth.federation.query import (
    BUILT_IN,
    LARGEST_WEIGHT,
    MOST_ROWS,
    PUBLISHED,
    AnyQuery,
    Counts,
    Query,
    Selection,
    SiteMeasurement,
    SiteRandomness,
    Training,
    Weights,
    check_cells,
    query_class,
    read_weights,
)
from fedsynth.federation.wire import WireError
from fedsynth.methods.flaim_scores import GRID, FLAIMSelection
from fedsynth.privacy.cost import Sensitivity, Unit
from fedsynth.privacy.noise import KeyedBits, RandomBits
from fedsynth.privacy.release import Exact
from fedsynth.rows import PairBlock, Table, concatenate
from fedsynth.schema import Schema
from fedsynth.schema.bins import Axis, Integers

CLASSES = {kind: query_class(kind, None) for kind in (*BUILT_IN, *PUBLISHED)}
TRAINING = sorted(kind for kind, one in CLASSES.items() if issubclass(one, Training))
QUERIES = sorted(kind for kind, one in CLASSES.items() if issubclass(one, Query) and kind not in TRAINING)
SELECTIONS = sorted(set(CLASSES) - set(QUERIES) - set(TRAINING))
MANY = settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


def received(query: AnyQuery, schema: Schema) -> AnyQuery | None:
    """Return a question as a site reads it, nothing if it refuses it."""
    try:
        read = request_of(
            query,
            run="r",
            step=0,
            verb="sum",
            release=Exact(),
            trust="local",
            schema=schema.digest,
            unit=Unit(),
            neighbours="add-remove",
        ).query
    except (WireError, InvalidParameter):  # the latter: it is too large to be sent
        return None
    try:
        read.check(schema)
        if isinstance(read, Query):
            check_cells(read, schema, 2**20)
    except InvalidParameter:
        return None
    return read


def norms(vector: Integers) -> tuple[float, float]:
    return float(np.abs(vector).sum()), float(np.sqrt((vector.astype(np.float64) ** 2).sum()))


def excess(declared: Sensitivity, answers: Sequence[Integers]) -> float:
    """Return the largest norm of single rows' answers, and of their differences, in units of what is declared."""
    worst = 0.0
    for first in answers:
        moved = [(first, declared.of("add-remove"))]
        moved += [(first - second, declared.of("replace")) for second in answers]
        for vector, bounds in moved:
            for norm, bound in zip(norms(vector), bounds[:2], strict=True):
                worst = max(worst, norm / bound if bound else float(norm > 0))
    return worst


def test_every_question_has_a_strategy():
    assert set(STRATEGIES) == set(CLASSES)


@pytest.mark.parametrize("kind", QUERIES)
def test_a_row_moves_an_answer_no_further_than_declared(kind):
    worst = [0.0]

    @MANY
    @given(st.data(), st.sampled_from(SCHEMAS))
    def holds(data: st.DataObject, schema: Schema) -> None:
        query = received(data.draw(STRATEGIES[kind](schema)), schema)
        if query is None:
            return
        assert isinstance(query, Query)
        table = data.draw(rows(schema, least=1, most=8))
        single = [query.answer(table.take(np.array([at]))) for at in range(len(table))]
        if isinstance(query, SiteDistances):  # no sum over records: what a record moves depends on the others
            others = [table.take(np.delete(np.arange(len(table)), at)) for at in range(len(table))]
            single += [query.answer(table) - query.answer(without) for without in others]
            bound, moved = query.sensitivity(schema), np.abs(single)
            assert moved.sum(axis=1).max() <= bound.l1
            assert np.sqrt((moved.astype(np.float64) ** 2).sum(axis=1)).max() <= bound.l2 * (1 + 1e-9)
            worst[0] = max(worst[0], float(moved.sum(axis=1).max()) / bound.l1)
            low, high = query.row_range(schema)
            assert low * len(table) <= query.answer(table).min() <= query.answer(table).max() <= high * len(table)
            return
        found = excess(query.sensitivity(schema), single)
        assert found <= 1 + 1e-9
        worst[0] = max(worst[0], found)
        low, high = query.row_range(schema)
        assert low <= 0 <= high
        for answer in single:
            assert answer.dtype == np.int64
            assert answer.shape == (query.cells(schema),)
            assert low <= answer.min()
            assert answer.max() <= high
        np.testing.assert_array_equal(query.answer(table), np.sum(single, axis=0))
        nobody = query.answer(table.take(np.array([], dtype=np.int64)))
        np.testing.assert_array_equal(nobody, np.zeros(query.cells(schema)))
        parts = query.split(schema, query.answer(table))
        assert len(parts) == len(query.stds(1.0))
        assert sum(part.size for part in parts) == query.cells(schema)

    holds()
    assert worst[0] > 0.5  # were much more declared than need be, every release would have too much noise


@pytest.mark.parametrize("kind", TRAINING)
def test_a_row_moves_the_sum_of_a_step_no_further_than_declared(kind, monkeypatch):
    """Neighbouring tables, with the same draws for the rows that they share and the same answers to earlier steps."""
    pytest.importorskip("torch")
    monkeypatch.setattr(training, "_generator", Coupled)
    worst, asked = [0.0], [0]

    @MANY
    @given(st.data(), st.sampled_from(SCHEMAS), st.integers(0, 2**32))
    def holds(data: st.DataObject, schema: Schema, seed: int) -> None:
        query = received(data.draw(STRATEGIES[kind](schema)), schema)
        if query is None:
            return
        assert isinstance(query, NetworkTraining)
        sent = sent_with(query)
        if sent is None or query.steps > 8:
            return
        # What is refused is refused for the weights alone, and what is not must be answered, whatever the rows are.
        if not (np.abs(sent) <= LARGEST_WEIGHT).all():
            with pytest.raises(InvalidParameter, match="finite"):
                read_weights(query, schema, sent.tobytes())
            return
        weights = read_weights(query, schema, sent.tobytes())
        assert weights is not None
        table = data.draw(rows(schema, least=1, most=8))
        more, less, nobody = (
            trained(query, table.take(np.arange(count)), weights, seed, schema)
            for count in (len(table), len(table) - 1, 0)
        )
        if not query.clipped:
            assert isinstance(query, LocalTraining)
            assert not more.steps
            assert not nobody.answer.any()
            return
        assert len(more.steps) == len(less.steps) == query.steps or not more.steps
        low, high = query.row_range(schema)
        for with_it, without, none in zip(more.steps, less.steps, nobody.steps, strict=True):
            assert not none.any()
            moved = with_it - without
            for norm, bound in zip(norms(moved), query.sensitivity(schema).of("add-remove")[:2], strict=True):
                assert norm <= bound
                worst[0] = max(worst[0], norm / bound)
            assert low <= moved.min()
            assert moved.max() <= high
        asked[0] += 1

    holds()
    assert asked[0] > 60
    assert worst[0] > 0.5


class Coupled:
    """What rows draw for themselves: row i draws the same, whatever the number of rows is.

    In an order with one row more that row stands somewhere, and the one whose place it took stands at the end.
    """

    def __init__(self, bits: RandomBits) -> None:
        self.seed, self.calls = int(bits.words(1)[0]), 0
        self.order: Integers | None = None

    def _fresh(self) -> np.random.Generator:
        self.calls += 1
        return np.random.default_rng((self.seed, self.calls))

    def _ordered(self, found: Any) -> Any:
        return found if self.order is None else found[self.order]

    def integers(self, *args: Any, **options: Any) -> Any:
        return self._ordered(self._fresh().integers(*args, **options))

    def standard_normal(self, *args: Any, **options: Any) -> Any:
        return self._ordered(self._fresh().standard_normal(*args, **options))

    def random(self, *args: Any, **options: Any) -> Any:
        return self._fresh().random(*args, **options)

    def gumbel(self, *args: Any, **options: Any) -> Any:
        return self._fresh().gumbel(*args, **options)

    def permutation(self, rows: Any) -> Any:
        if isinstance(rows, int):
            return self._fresh().permutation(rows)
        places = (self._fresh().random(len(rows)) * (np.arange(len(rows)) + 1)).astype(np.int64)
        self.order = np.arange(len(rows))
        for row, place in enumerate(places):
            self.order[[place, row]] = self.order[[row, place]]
        return rows[self.order]


class Trained(NamedTuple):
    """An answer, and the sums of its steps as they were before noise."""

    answer: Integers
    steps: list[Integers]


def trained(query: NetworkTraining, table: Table, weights: Weights, seed: int, schema: Schema) -> Trained:
    """Answer as a site does, with one noise for all tables: steps then begin at the same weights."""
    steps: list[Integers] = []
    deviation = query.sensitivity(schema).l2

    def noisy(values: Integers, step: int) -> Integers:
        assert values.dtype == np.int64
        assert values.shape == weights.shape
        steps.append(values)
        said = np.rint(np.random.default_rng((seed, step)).normal(0, deviation, values.shape)).astype(np.int64)
        return values if isinstance(query, GradientSum) else said

    bits = lambda purpose: KeyedBits(seed.to_bytes(16, "little"), purpose.encode())  # noqa: E731
    answer = query.trained(table, weights, SiteRandomness(SITE, bits, noisy))
    low, high = query.answer_range(schema, len(table), 0.0)
    assert answer.dtype == np.int64
    assert answer.shape == (query.cells(schema),)
    if isinstance(query, GradientSum):
        np.testing.assert_array_equal(answer, steps[0])
    else:
        assert isinstance(query, LocalTraining)
        assert low <= answer.min()
        assert answer.max() <= high
        assert answer.any() <= (SITE in dict(query.sizes))
    parts = query.split(schema, answer)
    assert sum(part.size for part in parts) == query.cells(schema)
    assert len(parts) == len(query.stds(1.0))
    return Trained(answer, steps)


@pytest.mark.parametrize("kind", SELECTIONS)
def test_a_row_moves_no_utility_further_than_declared(kind):
    worst = [0.0]

    @MANY
    @given(st.data(), st.sampled_from(SCHEMAS))
    def holds(data: st.DataObject, schema: Schema) -> None:
        selection = received(data.draw(STRATEGIES[kind](schema)), schema)
        if selection is None:
            return
        assert isinstance(selection, Selection)
        table = data.draw(rows(schema, most=12))
        one, other = data.draw(rows(schema, least=1, most=1)), data.draw(rows(schema, least=1, most=1))
        looks = [data.draw(look_of(selection, schema)) for _ in range(data.draw(st.integers(0, selection.steps - 1)))]
        less, more, changed = (
            selection.utilities(found, looks)
            for found in (table, concatenate([table, one]), concatenate([table, other]))
        )
        for utilities in (less, more, changed):
            assert utilities.dtype == np.int64
            assert utilities.shape == (selection.candidate_count,)
            assert max(map(abs, utilities.tolist())) < 2**62
        span = selection.span(schema)
        assert np.abs(more - less).max() <= span.add
        assert np.abs(more - changed).max() <= span.replace
        worst[0] = max(worst[0], float(np.abs(more - less).max() / span.add))
        for candidate in range(selection.candidate_count if selection.steps > 1 else 0):
            statistic = selection.look(candidate, schema)
            assert received(statistic, schema) is not None
            declared = statistic.sensitivity(schema)
            assert (declared.l1, declared.l2) == (1, 1)

    holds()
    assert worst[0] > 0.5


@st.composite
def look_of(draw: st.DrawFn, selection: Selection, schema: Schema) -> SiteMeasurement:
    """Draw a noisy look at a candidate, however far the noise has gone."""
    candidate = draw(st.integers(0, selection.candidate_count - 1))
    cells = selection.look(candidate, schema).cells(schema)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    reach = draw(st.sampled_from([5, 1000, 2**40]))
    return SiteMeasurement(candidate, rng.integers(-reach, reach, cells), draw(st.sampled_from([0.0, 1.0, 1e6])))


@dataclass
class Crowd:
    """As many rows as a site may hold, all alike."""

    schema: Schema
    one: Table
    count: int

    def __len__(self) -> int:
        return self.count

    @property
    def rows_read(self) -> int:
        """None is left out."""
        return self.count

    def tables(self, axes: Sequence[Axis], cliques: Sequence[Sequence[int]]) -> list[Integers]:
        """Return the counts of all the rows."""
        return [table * self.count for table in self.one.tables(axes, cliques)]

    def products(self, axes: Sequence[Axis], blocks: Sequence[PairBlock]) -> list[Integers]:
        """Return the products of all the rows."""
        return [sums * self.count for sums in self.one.products(axes, blocks)]


@MANY
@given(st.data(), st.sampled_from(SCHEMAS))
def test_scores_of_the_largest_site_are_exact(data, schema):
    scores = received(data.draw(STRATEGIES["flaim-scores"](schema)), schema)
    if scores is None:
        return
    assert isinstance(scores, FLAIMSelection)
    one = data.draw(rows(schema, least=1, most=1))
    full = scores.utilities(Crowd(schema, one, MOST_ROWS), [])
    less = scores.utilities(Crowd(schema, one, MOST_ROWS - 1), [])
    assert max(map(abs, full.tolist())) < 2**62
    assert np.abs(full - less).max() <= scores.span(schema).add


def test_a_wrong_declaration_is_caught():
    class Understated(Counts, frozen=True):
        def sensitivity(self, schema: Schema) -> Sensitivity:
            return Sensitivity(1, 1)

    query = Understated((Axis(0), Axis(1)), ((0,), (1,), (0, 1)))
    schema = SCHEMAS[0]
    table = Table(schema, tuple(np.zeros(1, dtype=np.uint8) for _ in schema.columns))
    assert excess(query.sensitivity(schema), [query.answer(table)]) == 3


def test_normalising_by_the_sites_own_count_breaks_the_published_bound():
    # Why scores are kept in records: || c / N - p ||_1 of a normalised table moves by up to 2 / (N + 1), not 1 / N.
    share = np.array([1.0, 0.0])
    before, after = np.array([440, 0]), np.array([440, 1])
    moved = np.abs(after / after.sum() - share).sum() - np.abs(before / before.sum() - share).sum()
    assert moved > 1.9 / 440


def test_scores_against_an_invalid_model_are_refused_before_anything_is_computed():
    schema = SCHEMAS[0]
    fields: dict[str, Any] = {
        "records": 10,
        "candidates": ((0, 1),),
        "weights": np.array([1]),
        "penalties": np.array([0]),
        "factors": ((0,),),
        "potentials": np.zeros(2),
    }
    assert received(FLAIMSelection(**fields), schema) is not None
    for wrong in (
        {"weights": np.array([256])},
        {"weights": np.array([1, 1])},
        {"penalties": np.array([2**59])},
        {"potentials": np.array([0.0, np.inf])},
        {"potentials": np.array([0.0, 1e13])},
        {"candidates": ((1, 0),)},
        {"candidates": ((0, 4),)},
        {"by_column": np.full(14, GRID)},
        {"by_candidate": -np.ones(6, dtype=np.int64)},
        {"records": 0},
        {"records": 2**28 + 1},
        {"steps": 2},
    ):
        assert received(FLAIMSelection(**{**fields, **wrong}), schema) is None, wrong
