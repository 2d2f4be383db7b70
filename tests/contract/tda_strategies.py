"""Strategies of the queries of Fed-TDA: valid values over the whole domain of their parameters."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedsynth.bench.published.tda_sums import MOST_COMPONENTS, MixtureEncoding, MixtureSums, MomentSums
from fedsynth.methods.tda_sums import LARGEST_BOUND, LONGEST, Encoding, ProductSums
from fedsynth.schema import Column, Datetime, Numeric, Schema

_EXTREMES = st.sampled_from([0.0, 1.0, -1.0, 2.0**99, -(2.0**99), 2.0**100, -(2.0**100), 1e-300, -1e-300])
_EXPONENTS = st.sampled_from([-200, -199, -60, -1, 0, 1, 60, 199, 200]) | st.integers(-200, 200)


def products(schema: Schema) -> st.SearchStrategy[ProductSums]:
    return st.builds(ProductSums, encodings(schema), bounds())


def moments(schema: Schema) -> st.SearchStrategy[MomentSums]:
    columns = st.tuples(*(mixture_encoding(column) for column in schema.stored))
    return st.builds(MomentSums, columns, bounds())


@st.composite
def mixture_sums(draw: st.DrawFn, schema: Schema) -> MixtureSums:
    """Return a valid E step of some of a schema's numbers (of which there must be one), tied and huge ones included."""
    numbers = [at for at, column in enumerate(schema.stored) if column.is_number]
    columns = tuple(draw(st.lists(st.sampled_from(numbers), min_size=1, max_size=4)))
    components = draw(st.sampled_from([1, 2, 3, 7, MOST_COMPONENTS]))
    shape = (3, len(columns), components)
    if draw(st.booleans()):
        return MixtureSums(columns, np.full(shape, draw(_EXTREMES)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return MixtureSums(columns, _spread(rng, shape, draw(st.integers(-10, 100))))


def encodings(schema: Schema) -> st.SearchStrategy[tuple[Encoding, ...]]:
    """Return one encoding for each column."""
    return st.tuples(*(encoding(column) for column in schema.stored))


def bounds() -> st.SearchStrategy[int]:
    """Return bounds on squared lengths: small ones, likely ones, and any."""
    return st.integers(1, 100) | st.integers(1, 2**26) | st.integers(1, LARGEST_BOUND) | st.just(LARGEST_BOUND)


@st.composite
def encoding(draw: st.DrawFn, column: Column) -> Encoding:
    """Return one column's encoding: by the schema's bins, or by cut points."""
    cuts, cells = None, column.size
    if isinstance(column, Numeric | Datetime) and draw(st.booleans()):
        rng = np.random.default_rng(draw(st.integers(0, 2**32)))
        low, high = column.bin_edges[0], column.bin_edges[-1]
        drawn = low + (high - low) * rng.uniform(-0.5, 1.5, draw(st.integers(1, 20)))
        cuts = np.unique(drawn) + 0.0
        cells = len(cuts) + column.missing
    return Encoding(draw(_scores_of(cells)), cuts)


@st.composite
def mixture_encoding(draw: st.DrawFn, column: Column) -> MixtureEncoding:
    """Return one column's encoding: by the schema's bins, by cut points, or by a mixture."""
    if isinstance(column, Numeric | Datetime) and draw(st.integers(0, 2)) == 0:
        mixture = _mixture(draw, np.random.default_rng(draw(st.integers(0, 2**32))), column)
        return MixtureEncoding(draw(_scores_of(mixture.shape[1] + 1)), mixture=mixture)
    plain = draw(encoding(column))
    return MixtureEncoding(plain.scores, plain.cuts)


def _scores_of(cells: int) -> st.SearchStrategy[NDArray[np.int64]]:
    different, equal = st.lists(_scores(), min_size=cells, max_size=cells), _scores().map(lambda one: [one] * cells)
    return (different | equal).map(lambda scores: np.array(scores, dtype=np.int64))


def _scores() -> st.SearchStrategy[int]:
    return st.sampled_from([0, 1, -1, LONGEST, -LONGEST, 777]) | st.integers(-LONGEST, LONGEST)


def _mixture(draw: st.DrawFn, rng: np.random.Generator, column: Numeric | Datetime) -> NDArray[np.float64]:
    components = draw(st.sampled_from([1, 2, 5]))
    weights, deviations = (2.0 ** np.array([draw(_EXPONENTS) for _ in range(components)]) for _ in range(2))
    means = _spread(rng, (components,), draw(st.sampled_from([0, 5, 190])))
    if draw(st.booleans()):
        means = rng.uniform(column.bin_edges[0], column.bin_edges[-1], components)
    return np.stack([weights, means + 0.0, deviations])


def _spread(rng: np.random.Generator, shape: tuple[int, ...], exponent: int) -> NDArray[np.float64]:
    """Return numbers of either sign, up to 2 to some power, of one size or of very different ones."""
    sizes = 2.0 ** (exponent - rng.choice([0.0, 1.0, 50.0]) * rng.random(shape))
    spread: NDArray[np.float64] = rng.uniform(-1, 1, shape) * sizes + 0.0
    return spread
