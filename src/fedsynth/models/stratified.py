"""Draws for rows of models: uniform numbers that are spread evenly, so that samples follow their model closely."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_GOLDEN = np.uint32(2654435769)  # 2^32 divided by the golden ratio
_BLOCK = 1 << 20  # most rows within which draws are even
STRATA = 1 << 12  # most strata of a group


def stratified_uniforms(groups: NDArray[Any], rng: np.random.Generator, strata: NDArray[Any] | None = None) -> Array:
    """Draw uniform numbers, one per row, that are evenly spread within each group: sampling with less variance.

    ``groups`` holds each row's group, an integer from 0 to below 2^20, and ``strata`` a class within it, below 2^12
    (:func:`strata_of`); the result is float64 in [0, 1), shape ``(rows,)``. Each draw is uniform by itself. The draws
    of one group, of one stratum of it, and those of neighbouring groups together, are evenly spread: the rows of a
    group, ordered by stratum and within it at random, take successive points of an additive recurrence of the golden
    ratio with a random start. Frequencies of samples drawn with them deviate from their probabilities by about one row
    instead of the square root of the number of rows; this holds within blocks of 2^20 rows. Draws are multiples of
    2^-32, so that the sum of a row's group and its draw is exact.
    """
    if len(groups) > _BLOCK:
        blocks = (slice(start, start + _BLOCK) for start in range(0, len(groups), _BLOCK))
        return np.concatenate(
            [stratified_uniforms(groups[rows], rng, None if strata is None else strata[rows]) for rows in blocks]
        )
    keys = groups.astype(np.int64)
    keys <<= 23  # layout: sign, 20 bits of the group, 23 of the stratum (12) and of chance, 20 of the position
    keys += rng.integers(0, 1 << (23 if strata is None else 11), len(keys), dtype=np.uint32)
    if strata is not None:
        keys += strata << 11
    keys <<= 20
    keys += np.arange(len(keys))
    keys.sort()
    keys &= _BLOCK - 1
    points = np.arange(len(keys), dtype=np.uint32)
    points *= _GOLDEN
    points += rng.integers(0, 1 << 32, dtype=np.uint32)
    drawn = np.empty(len(keys))
    drawn[keys] = points
    drawn *= 2.0**-32
    return drawn


def even_places(sizes: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return an order of the rows of each group in which rows that lie side by side are spread over the whole group.

    ``sizes`` are the numbers of rows of successive groups, each at least 1. The result, of shape ``(rows,)``, is a
    permutation of all row numbers that maps each group to itself: by a stride of about the golden ratio of its size,
    with a random start, so that each row takes each place of its group with equal probability.
    """
    stride = np.rint(sizes * (_GOLDEN * 2.0**-32)).astype(np.int64)
    while (shared := np.gcd(stride, sizes) > 1).any():
        stride[shared] += 1
    first = np.cumsum(sizes) - sizes
    places = np.arange(sizes.sum())
    places -= np.repeat(first, sizes)
    places *= np.repeat(stride, sizes)
    places += np.repeat(rng.integers(0, sizes), sizes)
    places %= np.repeat(sizes, sizes)
    places += np.repeat(first, sizes)
    return places


def strata_of(
    columns: Iterable[int], sizes: Sequence[int], codes: Sequence[NDArray[Any]], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return a stratum for each row, below 2^12: rows of one agree in those ``columns`` that have the fewest values.

    ``sizes`` and ``codes`` are those of all columns, by position. Strata that agree in the first of these columns lie
    side by side, and within them those that agree in the second, and so on, in random order at each level (nested
    uniform scrambling; Owen 1995, doi 10.1007/978-1-4612-2552-2_19). In one and the same order, with few rows in a
    stratum, columns drawn one after the other would come out as functions of each other.
    """
    strata, order = np.zeros(len(codes[0]), dtype=np.int64), np.zeros(1, dtype=np.int64)
    for column in sorted(columns, key=lambda column: (sizes[column], column)):
        size = sizes[column]
        if len(order) * size > STRATA:
            break
        strata *= size
        strata += codes[column]
        within = rng.permuted(np.tile(np.arange(size), (len(order), 1)), axis=1)
        order = (order[:, None] * size + within).ravel()
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return places[strata]
