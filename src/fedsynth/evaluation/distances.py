"""Distances of synthetic rows to training rows: exact matches, nearest neighbours, distance ratios."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedsynth.errors import Unsupported
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
    """Return each row's key, an integer that stands for its content: rows have equal keys if all their codes agree.

    A code is the integer that numbers a column's category or bin, so numbers in the same bin agree. Rows that differ in
    a code have different keys. Keys are comparable between the ``tables`` of one call, which must have one schema. The
    result has an int64 array of keys for each table, shape ``(rows,)``.
    """
    sizes = tables[0].schema.sizes
    columns = ((np.concatenate([table.codes[j] for table in tables]), sizes[j]) for j in range(len(sizes)))
    return _split(_number_rows(columns), tables)


def keys_by_value(tables: Sequence[Table]) -> list[Keys]:
    """Return each row's key, an integer that stands for its content: rows have equal keys if all their values agree.

    A missing value equals a missing value. Rows that differ in a category or a number have different keys. Keys are
    comparable between the ``tables`` of one call, which must have one schema. The result has an int64 array of keys for
    each table, shape ``(rows,)``.
    """
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
    """Return, for each row of one table, how many rows of another table have the same content; shape ``(queries,)``.

    ``queries`` are the keys of the first table and ``rows`` those of the second, one for each row: integers that stand
    for a row's content, from one call of :func:`keys_by_code` or :func:`keys_by_value`.
    """
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

    ``queries`` and ``points`` are float32 coordinates, shape ``(rows, dimensions)``. Each array of the result has shape
    ``(queries, many)``; the nearest point comes first. ``many`` must not exceed the number of points. scikit-learn's
    exhaustive search finds the neighbours. The distances are then recomputed in float64 from coordinate differences,
    since its ``|x|^2 - 2xy + |y|^2`` loses precision near zero. Raises :class:`Unsupported` without scikit-learn (the
    extra ``evaluate``).
    """
    try:
        from sklearn.neighbors import NearestNeighbors
    except ImportError as error:
        raise Unsupported("distances need scikit-learn; pip install 'fedsynth[evaluate]'") from error
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
        """Return an index of ``rows`` with the coordinates of at most ``max_points`` of them, drawn by ``rng``.

        ``space`` is the embedding that gives the coordinates.
        """
        return cls(rows, space, space.coordinates(drawn(rows, max_points, rng)))

    def distances(self, queries: Table, many: int = 1) -> NDArray[np.float64]:
        """Return the Euclidean distances of each row of ``queries`` to the ``many`` nearest indexed rows, ascending.

        The shape is ``(queries, many)``. There are fewer columns if the index has fewer than ``many`` points. Raises
        :class:`Unsupported` without scikit-learn (the extra ``evaluate``).
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
    """Distances of ``rows`` query rows to their nearest real rows (DCR): the result of :func:`closeness`.

    ``median`` and ``minimum`` are over the queries; a number counts by its difference as a fraction of the range, a
    different category as 1 (:class:`~fedsynth.evaluation.features.MixedSpace`). ``ratio`` is the median of the distance
    to the nearest real row divided by that to the second nearest (NNDR): near 0 where a row is close to one particular
    real row, near 1 where it is not.
    """

    median: Estimate
    minimum: float
    ratio: Estimate
    rows: int


def closeness(queries: Table, index: NeighbourIndex) -> DistanceToReal:
    """Return the distances of the queries to the rows of ``index``; the intervals of medians are from order statistics.

    ``index`` is a nearest-neighbour index of real rows. Two distances of 0 have ratio 1: the query equals several rows,
    not one in particular. The ratio is nan if the index has one point. Raises :class:`Unsupported` without scikit-learn
    (the extra ``evaluate``).
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

    ``value`` is the share with its 95 % interval; 1/2 is expected if nothing was copied. ``of_a_copy`` is approximately
    the value that a verbatim copy of the training rows would have. It is below 1 if distances are measured to a random
    sample of ``side`` training rows (and as many hold-out rows) instead of all, or if training rows equal a hold-out
    row, so that they tie. If rows have persons, ``side`` counts persons. ``queries`` counts the synthetic rows used;
    ``tied`` is the share of them with both distances equal, a mean over draws.
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

    A table that copies nothing has 1/2 in expectation; ties count one half. ``evidence`` holds the synthetic, the
    training and the hold-out rows. Distances are measured in the embedding ``space``. The share is a mean over
    ``draws`` random draws, made by ``rng``: each takes equally many training and hold-out rows, all of the smaller
    table, and as many of the larger, without replacement (with replacement, duplicates would push the share below 1/2),
    at most ``max_points`` of each. All draws use the same synthetic rows, at most ``max_queries``, or fewer (though not
    below 1000) to keep to ``max_pairs`` pairs of a synthetic and a training row. Raises :class:`Unsupported` without
    hold-out rows, or without scikit-learn (the extra ``evaluate``).

    Interval: if the synthetic rows were independent of the training rows, the labels "training" and "hold-out" of the
    ``2 m`` rows of a draw would be exchangeable. With ``c_j`` the number of queries whose nearest row is ``j``, the
    variance of the share over such labels is exactly ``m / 2 * var(c) / queries^2`` (sampling ``m`` of ``2 m`` without
    replacement). This variance covers the noise of the queries, of the training draw and of the hold-out, and rows that
    are the nearest of many queries. The interval reaches 1.96 times the root of the variance to each side of the mean.
    It shows the noise of one draw: averaging over draws reduces only the part that comes from drawing among the rows of
    the larger table. If rows have persons, these are drawn, with all of their rows, in place of rows: then persons are
    exchangeable, ``m`` is their number on each side, and ``c_j`` the number of queries whose nearest row is person
    ``j``'s.
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
