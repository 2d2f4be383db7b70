"""Ranges cut into bins: their edges, and values drawn from them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import SchemaError

_MOST = 10**6  # bins of a column: more are a slip of the pen, and fill the memory


def equal_bins(low: float, high: float, bins: int, *, whole: bool, per_unit: int) -> NDArray[np.float64]:
    """Return the edges of ``bins`` bins of one width; of whole numbers no more bins than values.

    An edge that is a multiple of ``1 / per_unit`` but for rounding (25.000000000000004) becomes that multiple: such a
    value lies at the lower end of a bin, as it does for :func:`grid`.
    """
    if low == high:
        return np.array([low, high], dtype=np.float64)
    if whole and high - low < bins:
        return np.append(np.arange(low, high + 1, dtype=np.float64), high)  # a bin a value; the last has no width
    edges = np.linspace(low, high, bins + 1)
    if not per_unit:
        return edges
    multiples = np.rint(edges * per_unit)
    return np.where(np.isclose(edges * per_unit, multiples, rtol=1e-15, atol=1e-9), multiples / per_unit, edges)


def grid(edges: NDArray[np.float64], per_unit: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the first and last multiple of ``1 / per_unit`` in each bin, as multiples; first > last where none is."""
    scaled = np.round(edges * per_unit, 6)  # 0.29 * 100 is not 29 to the last bit
    first, last = np.ceil(scaled[:-1]), np.ceil(scaled[1:]) - 1
    last[-1] = np.floor(scaled[-1])
    return first, last


def draw(
    edges: NDArray[np.float64], bins: NDArray[np.int64], rng: np.random.Generator, per_unit: int
) -> NDArray[np.float64]:
    """Return a value drawn uniformly from each bin; a multiple of ``1 / per_unit`` unless that is zero."""
    if not per_unit:
        low, high = edges[bins], edges[bins + 1]
        return low + (high - low) * rng.random(len(bins))
    first, last = grid(edges, per_unit)
    many = (last - first + 1)[bins]
    drawn: NDArray[np.float64] = (first[bins] + np.floor(rng.random(len(bins)) * many)) / per_unit
    return drawn


def check_bins(name: str, low: float, high: float, edges: Sequence[float] | None, bins: int) -> None:
    """Raise :class:`SchemaError` for a range, a number of bins or edges that cannot be."""
    if low > high:
        raise SchemaError(f"column {name!r} has low = {low} above high = {high}; swap them")
    if not 1 <= bins <= _MOST:
        raise SchemaError(f"column {name!r} has bins = {bins}; give at least 1, and at most {_MOST}")
    if edges is None:
        return
    if len(edges) < 2 or edges[0] != low or edges[-1] != high:
        raise SchemaError(f"column {name!r}: edges must run from low = {low} to high = {high}")
    if low < high and any(b <= a for a, b in itertools.pairwise(edges)):
        raise SchemaError(f"column {name!r}: edges must increase")
