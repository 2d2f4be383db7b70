"""Distances of synthetic rows to training rows: exact matches, nearest neighbours, distance ratios."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedsynth.errors import Unsupported, from_extra
from fedsynth.evaluation.features import MixedSpace
from fedsynth.evaluation.persons import (
    count_persons,
    drawn_persons,
    effective_rows,
    numbered_persons,
    persons_with,
)
from fedsynth.evaluation.score import Estimate, EvaluationTables
from fedsynth.rows import Table

Points = NDArray[np.float32]
Keys = NDArray[np.int64]
_Z = 1.959964  # 95 % of a normal law
_CHUNK = 4096
_TIE = 1e-9  # distances that differ by less are equal: rounding depends on the order of summation


def keys_by_code(tables: Sequence[Table]) -> list[Keys]:
    """Return an int64 key for each row of each table, shape ``(rows,)``: equal keys, equal codes in all columns.

    A code numbers a column's category or bin, so numbers in the same bin agree. Keys are comparable between the
    ``tables`` of one call, which must have one schema.
    """
    sizes = tables[0].schema.sizes
    columns = ((np.concatenate([table.codes[j] for table in tables]), sizes[j]) for j in range(len(sizes)))
    return _split(_number_rows(columns), tables)


def keys_by_value(tables: Sequence[Table]) -> list[Keys]:
    """Return the keys of :func:`keys_by_code` by value: categories and numbers agree, and missing with missing."""
    first = tables[0]

    def columns() -> Iterable[tuple[NDArray[Any], int]]:
        for j, size in enumerate(first.schema.sizes):
            if j in first.numbers:
                found, values = pd.factorize(
                    np.concatenate([table.numbers[j] for table in tables]), use_na_sentinel=False
                )
                yield found, len(values)
            else:
                yield np.concatenate([table.codes[j] for table in tables]), size

    return _split(_number_rows(columns()), tables)


def _number_rows(columns: Iterable[tuple[NDArray[Any], int]]) -> Keys:
    """Return a number for each row (from mixed radix, renumbered from 0); different rows never have the same."""
    keys: Keys = np.zeros(0, dtype=np.int64)
    distinct = 1
    for codes, size in columns:
        if len(keys) and distinct > np.iinfo(np.int64).max // size:
            keys, found = pd.factorize(keys)
            distinct = len(found)
        keys = codes.astype(np.int64) if not len(keys) else keys * size + codes
        distinct *= size
    return pd.factorize(keys)[0]


def _split(keys: Keys, tables: Sequence[Table]) -> list[Keys]:
    return np.split(keys, np.cumsum([len(table) for table in tables])[:-1])


def matches(queries: Keys, rows: Keys) -> NDArray[np.int64]:
    """Return, for each key in ``queries``, how many ``rows`` have it; shape ``(queries,)``."""
    return np.bincount(rows, minlength=int(queries.max()) + 1)[queries]


def share(hits: float, of: float) -> Estimate:
    """Return the share ``hits / of`` with its exact binomial (Clopper-Pearson) 95 % interval.

    ``of`` is the number of trials, at least 1; both may be fractional (ties counted in expectation, rows that are not
    independent counted as fewer).
    """
    from scipy.special import betaincinv

    low = float(betaincinv(hits, of - hits + 1, 0.025)) if hits > 0 else 0.0
    high = float(betaincinv(hits + 1, of - hits, 0.975)) if hits < of else 1.0
    return Estimate(hits / of, low, high)


def share_of(hits: NDArray[np.bool_], table: Table) -> Estimate:
    """Return the share of ``hits``, one for each row of ``table``, with its 95 % interval.

    It is that of :func:`share`, for as many trials as the rows are worth if rows of one person resemble each other
    (:func:`~fedsynth.evaluation.persons.effective_rows`; Korn and Graubard 1998, Survey Methodology 24, 193-201).
    """
    of = effective_rows(hits, table)
    return share(float(hits.sum()) * of / len(hits), of)


def nearest(queries: Points, points: Points, many: int = 1) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return each query's Euclidean distances to its ``many`` nearest points, and the positions of these points.

    ``queries`` and ``points`` are float32 coordinates, shape ``(rows, dimensions)``; each array of the result has shape
    ``(queries, many)``, nearest first. ``many`` must not exceed the number of points. scikit-learn's distances are
    recomputed in float64 from coordinate differences, since its ``|x|^2 - 2xy + |y|^2`` loses precision near zero.
    Raises :class:`Unsupported` without scikit-learn (the extra ``evaluate``).
    """
    with from_extra("evaluate", "distances need scikit-learn"):
        from sklearn.neighbors import NearestNeighbors
    index = NearestNeighbors(n_neighbors=many, algorithm="brute").fit(points)
    which: NDArray[np.int64] = index.kneighbors(queries, return_distance=False)
    found = np.empty(which.shape)
    for start in range(0, len(queries), _CHUNK):
        part = slice(start, start + _CHUNK)
        gaps = queries[part, None, :].astype(np.float64) - points[which[part]]
        found[part] = np.sqrt(np.einsum("qkd,qkd->qk", gaps, gaps))
    order = np.argsort(found, axis=1, kind="stable")
    return np.take_along_axis(found, order, axis=1), np.take_along_axis(which, order, axis=1)


@dataclass(frozen=True, eq=False)
class NeighbourIndex:
    """An index of the table ``rows`` for nearest-neighbour search in the embedding ``space``.

    ``points`` are the coordinates of a random sample of the rows, shape ``(points, dimensions)``. Exact matches are
    looked up among all rows, so a copied row has distance 0 even if it was not sampled.
    """

    rows: Table
    space: MixedSpace
    points: Points

    @classmethod
    def of(cls, rows: Table, space: MixedSpace, rng: np.random.Generator, max_points: int) -> NeighbourIndex:
        """Return an index of ``rows`` with the coordinates of at most ``max_points`` of them, drawn by ``rng``."""
        return cls(rows, space, space.coordinates(drawn(rows, max_points, rng)))

    def distances(self, queries: Table, many: int = 1) -> NDArray[np.float64]:
        """Return the distances of each query to the ``many`` nearest indexed rows, ascending: ``(queries, many)``.

        There are fewer columns if the index has fewer points. Raises :class:`Unsupported` without scikit-learn.
        """
        many = min(many, len(self.points))
        found, _ = nearest(self.space.coordinates(queries), self.points, many)
        if len(self.points) == len(self.rows):
            return found
        query_keys, row_keys = keys_by_value([queries, self.rows])
        equal = np.minimum(matches(query_keys, row_keys), many)
        missed = np.maximum(equal - (found == 0).sum(axis=1), 0)
        zeros = np.where(np.arange(many) < missed[:, None], 0.0, np.inf)
        return np.sort(np.concatenate([zeros, found], axis=1), axis=1)[:, :many]


@dataclass(frozen=True)
class DistanceToReal:
    """Distances of ``rows`` query rows to their nearest real rows (DCR), in a :class:`.MixedSpace`.

    ``median`` and ``minimum`` are over the queries. ``ratio`` is the median of the distance to the nearest real row
    divided by that to the second nearest (NNDR): near 0 where a row is close to one particular real row, near 1 where
    it is not.
    """

    median: Estimate
    minimum: float
    ratio: Estimate
    rows: int


def closeness(queries: Table, index: NeighbourIndex) -> DistanceToReal:
    """Return the distances of the queries to the rows of ``index``, which are real rows.

    Two distances of 0 have ratio 1: the query equals several rows, not one in particular. The ratio is nan if the index
    has one point. Raises :class:`Unsupported` without scikit-learn.
    """
    found = index.distances(queries, 2)
    ratio = Estimate(math.nan)
    if found.shape[1] == 2:
        ratio = median(np.divide(found[:, 0], found[:, 1], out=np.ones(len(found)), where=found[:, 1] > 0), queries)
    return DistanceToReal(median(found[:, 0], queries), float(found[:, 0].min()), ratio, len(queries))


def median(values: NDArray[np.float64], table: Table | None = None) -> Estimate:
    """Return the median of ``values``, shape ``(values,)``, with its 95 % interval.

    The ends of the interval are order statistics, so it is distribution-free. With fewer than six values it is their
    whole range, which covers less than 95 %. If ``values`` are of the rows of a ``table`` with persons, the ends are
    those for as many values as these are worth to a share of one half
    (:func:`~fedsynth.evaluation.persons.effective_rows`; Woodruff 1952, doi 10.1080/01621459.1952.10483443).
    """
    from scipy.stats import binom

    ordered = np.sort(values)
    worth = len(values) if table is None else int(effective_rows(values <= np.median(values), table))
    below = max(int(binom.ppf(0.025, worth, 0.5)) - 1, 0) * len(values) // worth
    return Estimate(float(np.median(values)), float(ordered[below]), float(ordered[len(values) - 1 - below]))


@dataclass(frozen=True)
class HoldoutShare:
    """The share of synthetic rows nearer to a training row than to a hold-out row: the result of :func:`holdout_share`.

    ``value`` is 1/2 in expectation if nothing was copied. ``of_a_copy`` is approximately that of a verbatim copy of the
    training rows: below 1 if distances are measured to a random sample of ``side`` training rows (or persons) instead
    of all, or if training rows equal a hold-out row. ``queries`` counts the synthetic rows used; ``tied`` is the share
    of them with both distances equal, a mean over draws.
    """

    value: Estimate
    of_a_copy: float
    queries: int
    side: int
    tied: float


def holdout_share(
    evidence: EvaluationTables,
    space: MixedSpace,
    rng: np.random.Generator,
    *,
    draws: int = 10,
    max_queries: int = 10_000,
    max_points: int = 100_000,
    max_pairs: int = 100_000_000,
) -> HoldoutShare:
    """Return the share of synthetic rows nearer to a training row than to a hold-out row.

    Ties count one half. Distances are in the embedding ``space``. The share is a mean over ``draws`` random draws: each
    takes equally many training and hold-out rows, all of the smaller table, and as many of the larger, without
    replacement (with replacement, duplicates would push the share below 1/2), at most ``max_points`` of each. All draws
    use the same synthetic rows, at most ``max_queries``, or fewer (though not below 1000) to keep to ``max_pairs``
    pairs of a synthetic and a training row. Raises :class:`Unsupported` without hold-out rows, or without scikit-learn.

    Interval: if the synthetic rows were independent of the training rows, the labels "training" and "hold-out" of the
    ``2 m`` rows of a draw would be exchangeable. With ``c_j`` the number of queries whose nearest row is ``j``, the
    variance of the share over such labels is exactly ``m / 2 * var(c) / queries^2`` (sampling ``m`` of ``2 m`` without
    replacement). The interval reaches 1.96 times its root to each side of the mean. It shows the noise of one draw:
    averaging over draws reduces only the part that comes from drawing among the rows of the larger table. If rows have
    persons, these are drawn, with all of their rows, in place of rows: then persons are exchangeable, ``m`` is their
    number on each side, and ``c_j`` the number of queries whose nearest row is person ``j``'s.
    """
    if evidence.holdout is None:
        raise Unsupported("the share needs rows that the synthesizer never saw; keep some back (--holdout)")
    both = (evidence.real, evidence.holdout)
    side = min(*map(count_persons, both), *(persons_with(table, max_points) for table in both))
    rows = side * len(evidence.real) // count_persons(evidence.real)
    asked = drawn(evidence.synthetic, min(max_queries, max(max_pairs // rows, 1000)), rng)
    queries = space.coordinates(asked)

    def neighbours(table: Table) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        points = drawn_persons(table, side, rng)
        found, which = nearest(queries, space.coordinates(points))
        return found, numbered_persons(points)[which]

    whole = [neighbours(table) if count_persons(table) <= side else None for table in both]  # the same in every draw
    shares, variances, ties = [], [], []
    for _ in range(draws):
        (train, near_train), (held, near_held) = (
            found or neighbours(table) for found, table in zip(whole, both, strict=True)
        )
        tied = np.isclose(train[:, 0], held[:, 0], rtol=_TIE, atol=_TIE)
        won = ~tied & (train[:, 0] < held[:, 0])
        lost = ~tied & ~won
        counts = np.concatenate(
            [np.bincount(near[who, 0], minlength=side) for near, who in ((near_train, won), (near_held, lost))]
        )
        shares.append(float(won.mean() + tied.mean() / 2))
        variances.append(side / 2 * float(counts.var(ddof=1)) / len(queries) ** 2)
        ties.append(float(tied.mean()))
    mean, reach = float(np.mean(shares)), _Z * math.sqrt(float(np.mean(variances)))
    twins = matches(*keys_by_value([evidence.real, evidence.holdout])) > 0
    copy = 0.5 + side / count_persons(evidence.real) / 2 * (1 - float(twins.mean()))
    band = Estimate(mean, max(mean - reach, 0.0), min(mean + reach, 1.0))
    return HoldoutShare(band, copy, len(queries), side, float(np.mean(ties)))


def drawn(table: Table, rows: int, rng: np.random.Generator) -> Table:
    """Return at most ``rows`` rows of a table, drawn by ``rng`` without replacement; the table if it has no more."""
    if len(table) <= rows:
        return table
    return table.take(rng.choice(len(table), rows, replace=False, shuffle=False))
