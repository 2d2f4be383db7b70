"""Strategies of the queries of Fed-TDA: valid values over the whole domain of their parameters."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedsynth.methods.tda_sums import (
    LARGEST_BOUND,
    LONGEST,
    MOST_COMPONENTS,
    Encoding,
    MixtureSums,
    MomentSums,
    ProductSums,
)
from fedsynth.schema import Column, Datetime, Numeric, Schema

_EXTREMES = st.sampled_from([0.0, 1.0, -1.0, 2.0**99, -(2.0**99), 2.0**100, -(2.0**100), 1e-300, -1e-300])
_EXPONENTS = st.sampled_from([-200, -199, -60, -1, 0, 1, 60, 199, 200]) | st.integers(-200, 200)


def products(schema: Schema) -> st.SearchStrategy[ProductSums]:
    """Return valid products under a schema."""
    return st.builds(ProductSums, encodings(schema), bounds())


def moments(schema: Schema) -> st.SearchStrategy[MomentSums]:
    """Return valid moments under a schema."""
    return st.builds(MomentSums, encodings(schema), bounds())


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
    """Return one column's encoding: by the schema's bins, by cut points, or by a mixture."""
    cuts, mixture, cells = None, None, column.size
    if isinstance(column, Numeric | Datetime):
        how = draw(st.sampled_from(["bins", "cuts", "mixture"]))
        rng = np.random.default_rng(draw(st.integers(0, 2**32)))
        if how == "cuts":
            low, high = column.bin_edges[0], column.bin_edges[-1]
            drawn = low + (high - low) * rng.uniform(-0.5, 1.5, draw(st.integers(1, 20)))
            cuts = np.unique(drawn) + 0.0
            cells = len(cuts) + column.missing
        elif how == "mixture":
            mixture = _mixture(draw, rng, column)
            cells = mixture.shape[1] + 1
    scores = draw(st.lists(_scores(), min_size=cells, max_size=cells) | _scores().map(lambda one: [one] * cells))
    return Encoding(np.array(scores, dtype=np.int64), cuts, mixture)


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
