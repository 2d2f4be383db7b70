"""Cliques (sets of columns whose joint table is of interest), workloads (lists of cliques), and their tables."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Clique = tuple[int, ...]
Workload = tuple[Clique, ...]

MOST_WEIGHT = 255  # largest integer weight of a candidate's score


def all_marginals(columns: int, order: int) -> Workload:
    """Return all sets of ``order`` columns, numbered from 0 to ``columns - 1``, in lexicographic order."""
    return tuple(itertools.combinations(range(columns), order))


def random_workload(columns: int, order: int, count: int, seed: int) -> Workload:
    """Return ``count`` distinct sets of ``order`` columns (or all), drawn uniformly as by FLAIM (arXiv 2310.06447)."""
    every = all_marginals(columns, order)
    if len(every) <= count:
        return every
    drawn = np.random.default_rng(seed).choice(len(every), size=count, replace=False)
    return tuple(every[index] for index in drawn)


def related(columns: int, cliques: Iterable[Sequence[int]]) -> NDArray[np.bool_]:
    """Return which columns are together in one of ``cliques``: a symmetric matrix, shape ``(columns, columns)``."""
    found = np.zeros((columns, columns), dtype=bool)
    for clique in cliques:
        found[np.ix_(clique, clique)] = True
    np.fill_diagonal(found, False)
    return found


def kruskal(pairs: Sequence[Clique]) -> tuple[list[Clique], list[Clique]]:
    """Split ``pairs`` of columns into those of a spanning forest (Kruskal 1956) and the others, in the given order.

    Pairs are taken in the given order unless they close a cycle. If they are ordered from the strongest to the weakest,
    the forest is one of maximum weight (doi 10.1090/S0002-9939-1956-0078686-7).
    """
    root = {column: column for pair in pairs for column in pair}
    tree, others = [], []
    for pair in pairs:
        first, second = (root[column] for column in pair)
        if first == second:
            others.append(pair)
            continue
        tree.append(pair)
        root = {column: second if head == first else head for column, head in root.items()}
    return tree, others


def downward_closure(workload: Sequence[Clique]) -> Workload:
    """Return every non-empty subset of a member of ``workload``, sorted, by size and then lexicographically."""
    subsets = {
        subset
        for clique in workload
        for order in range(1, len(clique) + 1)
        for subset in itertools.combinations(sorted(clique), order)
    }
    return tuple(sorted(subsets, key=lambda clique: (len(clique), clique)))


def maximal(cliques: Sequence[Clique]) -> Workload:
    """Return the cliques that are contained in no larger one, in their order.

    Equal tuples are returned once; ``(0, 1)`` and ``(1, 0)`` are different tuples.
    """
    distinct = {clique: frozenset(clique) for clique in cliques}
    every = list(distinct.values())
    holders: defaultdict[int, list[frozenset[int]]] = defaultdict(list)
    for columns in every:
        for column in columns:
            holders[column].append(columns)
    # A clique that contains another contains all its columns, so only the cliques of its rarest column are compared.
    return tuple(
        clique
        for clique, columns in distinct.items()
        if not any(columns < other for other in min((holders[column] for column in columns), key=len, default=every))
    )


def weights(candidates: Sequence[Clique], workload: Sequence[Clique]) -> list[float]:
    """Return each candidate's weight in AIM (arXiv 2201.12677): how many columns it shares with the workload.

    The weight of a candidate q is the sum, over all members r of the workload, of the number of columns that q and r
    have in common.
    """
    members = Counter(column for clique in workload for column in set(clique))
    return [float(sum(members[column] for column in set(clique))) for clique in candidates]


def integer_weights(weights: ArrayLike) -> NDArray[np.int64]:
    """Scale the positive weights of candidates to integers from 1 to ``MOST_WEIGHT`` (255), in the same shape.

    The largest becomes 255; the others are scaled by the same factor and rounded, to at least 1. A candidate's score,
    an integer, is multiplied by its weight; the product is then an integer, too, whose sensitivity is exact, since it
    is computed without rounding.
    """
    scaled = np.asarray(weights, dtype=np.float64) * (MOST_WEIGHT / np.max(weights))
    found: NDArray[np.int64] = np.maximum(np.rint(scaled), 1).astype(np.int64)
    return found


def as_tables(flat: NDArray[np.float64], shapes: Sequence[tuple[int, ...]]) -> list[NDArray[np.float64]]:
    """Split a flat vector into consecutive tables of the given ``shapes``, each in C order."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), shapes, strict=True)]
