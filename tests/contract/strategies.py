"""The whole parameter domain of every question: a strategy for each kind, which a new kind adds to ``STRATEGIES``.

A strategy is given a schema and draws questions of its kind: what a server would ask, the extremes of every field, and
what a site must refuse. It need not draw types that the wire cannot carry. Bulky arrays are drawn from a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.contract.tda_strategies import mixture_sums, moments, products
from tests.contract.training_strategies import gradient_sums, local_trainings, rare

from fedsynth.answers.queries import GRID as SHARES
from fedsynth.answers.queries import ScoreHistogram, SiteDistances
from fedsynth.cliques import MOST_WEIGHT
from fedsynth.federation.query import MOST_ROWS, AnyQuery, Counts, RecordCount
from fedsynth.federation.weighted import WeightedCounts
from fedsynth.methods.flaim_scores import GRID, MOST_PENALTY, FLAIMSelection, MeasuredTables
from fedsynth.methods.interactions import Contrasts, Interactions
from fedsynth.methods.sketch import Sketches
from fedsynth.rows import Table
from fedsynth.schema import (
    Categorical,
    Computed,
    Rule,
    Schema,
    Stored,
)
from fedsynth.schema.bins import Axis
from fedsynth.schema.columns import Datetime, Numeric

Strategy = Callable[[Schema], st.SearchStrategy[AnyQuery]]

SCHEMAS = (
    Schema(tuple(Categorical(f"c{j}", tuple(f"v{v}" for v in range(size))) for j, size in enumerate((2, 3, 4, 5)))),
    Schema((Numeric("x", 0, 9, bins=4, missing=True), Categorical("c", ("a", "b", "c")))),
    Schema((Numeric("n", -5, 20, bins=6, integer=True),)),
    Schema(
        (
            Categorical("c", ("a", "b")),
            Numeric("n", 0, 9, bins=4),
            Numeric("m", -9, 30, bins=5, missing=True, stored=Stored(difference=("m", "n"), lower=-3, upper=9)),
            Categorical("d", ("x", "y", "z")),
            Numeric("s", -9, 39, missing=True, computed=Computed(sum=("n", "m"))),
        ),
        rules=(Rule({"c": ["a"], "d": ["y", "z"]}),),
    ),
)
"""Categories alone; a number that may be missing beside a category; one integer column; derived columns and a rule."""


@st.composite
def rows(draw: st.DrawFn, schema: Schema, least: int = 0, most: int = 20) -> Table:
    """Draw rows that the schema admits: bounds, edges of bins and missing values among them."""
    count = draw(st.integers(least, most))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    codes: list[NDArray[Any]] = []
    numbers: dict[int, NDArray[np.float64]] = {}
    for at, column in enumerate(schema.stored):
        if not isinstance(column, Numeric | Datetime):
            codes.append(rng.integers(0, column.size, count).astype(np.uint8))
            continue
        edges = column.bin_edges
        values = np.where(rng.random(count) < 0.3, rng.choice(edges, count), rng.uniform(edges[0], edges[-1], count))
        values = np.floor(values) if getattr(column, "integer", True) else values
        found = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
        gone = rng.random(count) < 0.2 if column.missing else np.zeros(count, dtype=bool)
        codes.append(np.where(gone, column.size - 1, found).astype(np.uint8))
        numbers[at] = np.where(gone, np.nan, values)
    return Table(schema, tuple(codes), numbers)


# ---------------------------------------------------------------------------------------------------------------------
# Tables


@st.composite
def axes(draw: st.DrawFn, schema: Schema) -> Axis:
    """Draw an axis: the schema's bins or cut points, in groups or not."""
    at = draw(rare(st.integers(0, len(schema.stored) - 1), st.integers(0, len(schema.stored))))
    column = schema.stored[min(at, len(schema.stored) - 1)]
    cuts = None
    if draw(rare(st.just(column.is_number and draw(st.booleans())), st.booleans())):
        points = st.lists(st.floats(-20, 30).map(lambda point: point + 0.0), min_size=1, max_size=5, unique=True)
        cuts = np.array(draw(rare(points.map(sorted), st.lists(st.just(1.0), max_size=2))), dtype=np.float64)
    groups = None
    if draw(st.booleans()):
        cells = column.size if cuts is None else len(cuts) + column.missing
        count = draw(rare(st.just(cells), st.integers(0, cells + 1)))
        groups = np.array(
            draw(st.lists(rare(st.integers(0, 3), st.integers(-1, 2**40)), min_size=count, max_size=count)),
            dtype=np.int64,
        )
    return Axis(at, cuts, groups)


@st.composite
def counts(draw: st.DrawFn, schema: Schema) -> Counts:
    """Draw tables over any axes."""
    ours = draw(st.lists(axes(schema), min_size=1, max_size=4))
    place = rare(st.integers(0, len(ours) - 1), st.integers(0, len(ours)))
    table = st.lists(place, min_size=1, max_size=3, unique=True)
    tables = draw(st.lists(table, min_size=1, max_size=4))
    weights = draw(st.booleans()) and [draw(st.sampled_from([1, 2, 7, 64])) for _ in tables]
    if draw(rare(st.just(False), st.just(True))):
        weights = [1]
    return Counts(tuple(ours), tuple(map(tuple, tables)), tuple(weights or ()))


@st.composite
def weighted_counts(draw: st.DrawFn, schema: Schema) -> WeightedCounts:
    """Draw tables over any axes, some of them summed over with weights of either sign, small or at the limit."""
    base = draw(counts(schema))
    weights: list[NDArray[np.int64] | None] = []
    for axis in base.axes:
        column = schema.stored[min(axis.column, len(schema.stored) - 1)]
        size = column.size if axis.cuts is None else len(axis.cuts) + column.missing
        if axis.groups is not None and axis.groups.size:
            size = max(0, min(int(axis.groups.max()), 20)) + 1
        size = draw(rare(st.just(size), st.integers(0, size + 1)))
        number = rare(st.integers(-3, 1024), st.sampled_from([-(2**32), 2**32, 2**33]))
        some = st.lists(number, min_size=size, max_size=size).map(lambda of: np.array(of, dtype=np.int64))
        weights.append(draw(st.one_of(st.none(), some)))
    factors = [draw(rare(st.sampled_from([1, 7, 2**20]), st.just(2**26))) for _ in base.tables]
    return WeightedCounts(base.axes, tuple(weights), base.tables, tuple(factors))


@st.composite
def site_distances(draw: st.DrawFn, schema: Schema) -> SiteDistances:
    """Draw distances from any shares, most of the time of one whole."""
    ours = draw(st.lists(axes(schema), min_size=1, max_size=3))
    shares = []
    for axis in ours:
        column = schema.stored[min(axis.column, len(schema.stored) - 1)]
        size = column.size if axis.cuts is None else len(axis.cuts) + column.missing
        if axis.groups is not None and axis.groups.size:
            size = max(0, min(int(axis.groups.max()), 20)) + 1
        weights = np.array(
            draw(st.lists(st.integers(0, 9), min_size=max(size, 1), max_size=max(size, 1))), dtype=np.float64
        )
        ends = np.rint(SHARES * np.cumsum(weights) / weights.sum()) if weights.sum() else np.full(len(weights), SHARES)
        share = np.diff(ends, prepend=0.0).astype(np.int64)
        share[0] += draw(rare(st.just(0), st.sampled_from([-1, 1, -SHARES, 2**40])))
        shares.append(share)
    return SiteDistances(tuple(ours), tuple(shares))


@st.composite
def score_histograms(draw: st.DrawFn, schema: Schema) -> ScoreHistogram:
    """Draw points for any axes, cuts and a label, at the limits and beyond."""
    ours = draw(st.lists(axes(schema), min_size=1, max_size=3))
    points = []
    for axis in ours:
        column = schema.stored[min(axis.column, len(schema.stored) - 1)]
        size = column.size if axis.cuts is None else len(axis.cuts) + column.missing
        if axis.groups is not None and axis.groups.size:
            size = max(0, min(int(axis.groups.max()), 20)) + 1
        number = rare(st.integers(-5, 5), st.sampled_from([2**20, -(2**20), 2**21, -(2**63)]))
        points.append(np.array(draw(st.lists(number, min_size=size, max_size=size)), dtype=np.int64))
    cuts = draw(st.lists(st.integers(-9, 9), min_size=1, max_size=5, unique=True))
    cuts = draw(rare(st.just(sorted(cuts)), st.just(cuts)))
    return ScoreHistogram(tuple(ours), tuple(points), np.array(cuts, dtype=np.int64), draw(axes(schema)))


@st.composite
def halved(draw: st.DrawFn, schema: Schema) -> Axis:
    """Draw an axis of two groups, most of the time: the schema's bins, in groups."""
    at = draw(st.integers(0, len(schema.stored) - 1))
    size = schema.stored[at].size
    inner = draw(st.lists(st.integers(0, 1), min_size=size - 2, max_size=size - 2))
    return Axis(at, None, np.array([0, *inner, draw(rare(st.just(1), st.integers(0, 2)))], dtype=np.int64))


@st.composite
def blocks(draw: st.DrawFn, first: int, count: int) -> Contrasts:
    """Draw contrasts of axes, of which those from the position ``first`` on, of ``count``, are mostly halved."""
    place = rare(st.integers(min(first, count - 1), count - 1), st.integers(0, count))
    named = draw(st.lists(place, min_size=2, max_size=5, unique=draw(rare(st.just(True), st.just(False)))))
    cut = draw(st.integers(0, len(named)))
    return Contrasts(tuple(named[:cut]), tuple(named[cut:]), draw(st.sampled_from([1, 2, 7, 64])))


@st.composite
def interactions(draw: st.DrawFn, schema: Schema) -> Interactions:
    """Draw interactions of one to three of any axes, at most two of a table's encoded, and contrasts of halved ones."""
    ours = draw(st.lists(axes(schema), min_size=1, max_size=4))
    place = rare(st.integers(0, len(ours) - 1), st.integers(0, len(ours)))
    some = draw(st.sampled_from([(1, 4), (0, 4), (0, 0)]))
    tables = draw(st.lists(st.lists(place, min_size=1, max_size=3, unique=True), min_size=some[0], max_size=some[1]))
    whole = draw(st.lists(place, max_size=2, unique=True))
    if not draw(rare(st.just(False), st.just(True))):
        whole += [at for table in tables for at in [of for of in table if of not in whole][2:]]
    weights = draw(st.booleans()) and [draw(st.sampled_from([1, 2, 7, 64])) for _ in tables]
    halves = draw(st.one_of(st.just([]), st.lists(halved(schema), min_size=2, max_size=6)))
    block = blocks(len(ours), len(ours) + len(halves))
    contrasts = draw(st.lists(block, min_size=1, max_size=3)) if halves else []
    return Interactions(
        (*ours, *halves), tuple(map(tuple, tables)), tuple(whole), tuple(weights or ()), tuple(contrasts)
    )


@st.composite
def sketches(draw: st.DrawFn, schema: Schema) -> Sketches:
    """Draw sketches of any pairs, narrower and wider than their tables."""
    columns = range(len(schema.stored))
    anything = st.tuples(*[st.integers(0, len(columns))] * 2)
    two = st.permutations(columns).map(lambda order: tuple(order[:2])) if len(columns) > 1 else anything
    pairs = draw(st.lists(rare(two, anything), min_size=1, max_size=4))
    width = draw(st.one_of(st.integers(1, 30), st.sampled_from([100, 2**16])))
    return Sketches(tuple(pairs), width, draw(st.sampled_from([0, 1, 2**63 - 1])))


# ---------------------------------------------------------------------------------------------------------------------
# FLAIM's scores


def _cells(schema: Schema, cliques: list[tuple[int, ...]]) -> list[int]:
    return [int(np.prod(schema.shape([j % len(schema.stored) for j in q]))) for q in cliques]


@st.composite
def _shares(draw: st.DrawFn, cells: list[int]) -> NDArray[np.int64]:
    """Draw shares of a hostile server: anything from zeros to twice a whole, in one cell or in many."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    parts = []
    for size in cells:
        share = np.zeros(size, dtype=np.int64)
        match draw(st.sampled_from(["none", "one", "two", "even", "odd", "too much", "negative"])):
            case "one":
                share[rng.integers(size)] = GRID
            case "two":
                share[[0, -1]] = GRID
            case "even":
                share[:] = GRID // size
            case "odd":
                share[:] = rng.multinomial(draw(st.integers(0, 2 * GRID)), np.full(size, 1 / size))
            case "too much" if draw(st.integers(0, 7)) == 0:
                share[:] = GRID
            case "negative" if draw(st.integers(0, 7)) == 0:
                share[0] = -1
        parts.append(share)
    return np.concatenate(parts)


@st.composite
def scores(draw: st.DrawFn, schema: Schema) -> FLAIMSelection:
    """Draw scores against any model, with any weights, penalties, shares and numbers of records."""
    columns = len(schema.stored)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    column = rare(st.integers(0, columns - 1), st.integers(0, columns))
    clique = st.lists(column, min_size=1, max_size=3, unique=True).map(sorted).map(tuple)
    candidates = draw(st.lists(clique, min_size=1, max_size=4))
    factors = draw(st.lists(clique, min_size=1, max_size=3))
    potentials = rng.normal(0, draw(st.sampled_from([0.0, 1.0, 30.0, 1e4])), sum(_cells(schema, factors))) + 0.0
    potentials[rng.random(len(potentials)) < 0.2] = draw(st.sampled_from([0.0, -1e12, 1e12, 1e13]))
    weight = rare(st.sampled_from([1, 2, 100, MOST_WEIGHT]), st.integers(0, MOST_WEIGHT + 1))
    extreme = MOST_PENALTY - 1
    penalty = rare(st.integers(-extreme, extreme), st.sampled_from([extreme, -extreme, MOST_PENALTY]))
    steps = draw(st.sampled_from([1, 1, 2, 3]))
    proxy = draw(st.sampled_from(["", "column", "candidate", "candidate column"]))
    measured = None
    if draw(rare(st.just(steps > 1), st.booleans())):
        held = [*factors, *draw(st.lists(clique, max_size=2))]
        cells = _cells(schema, held)
        values = rng.normal(10, 100, sum(cells)) * draw(st.sampled_from([1.0, 1e-3, 1e6, 1e12]))
        stds = np.array([draw(st.sampled_from([1e-6, 0.01, 1.0, 1e6, 1e12])) for _ in held])
        measured = MeasuredTables(
            tuple(held), values, stds, draw(st.sampled_from([1.0, 50.0, 2.0**48])), draw(st.integers(1, 4))
        )
    return FLAIMSelection(
        steps=steps,
        look_share=0.5 if steps > 1 else 0.0,
        records=draw(st.one_of(st.sampled_from([1, 2, MOST_ROWS]), st.integers(1, 100))),
        candidates=tuple(candidates),
        weights=np.array([draw(weight) for _ in candidates], dtype=np.int64),
        penalties=np.array([draw(penalty) for _ in candidates], dtype=np.int64),
        factors=tuple(factors),
        potentials=potentials,
        by_column=draw(_shares(list(schema.sizes))) if "column" in proxy else None,
        by_candidate=draw(_shares(_cells(schema, candidates))) if "candidate" in proxy else None,
        measured=measured,
    )


STRATEGIES: dict[str, Strategy] = {
    "size": lambda schema: st.just(RecordCount()),
    "counts": counts,
    "weighted-counts": weighted_counts,
    "site-distances": site_distances,
    "score-histogram": score_histograms,
    "interactions": interactions,
    "sketches": sketches,
    "flaim-scores": scores,
    "products": products,
    "moments": moments,
    "gradient-sum": gradient_sums,
    "local-training": local_trainings,
    # Without numbers there is nothing to sum: a site refuses what is made for another schema.
    "mixture-sums": lambda schema: mixture_sums(schema if any(c.is_number for c in schema.stored) else SCHEMAS[1]),
}
