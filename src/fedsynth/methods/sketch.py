"""Sketches: every pair's contingency table in a few numbers, enough to tell which pairs depend.

Source: HeteroFedSyn. Corrected: one public projection for all sites, on counts, and an estimator whose corrections
follow from the noise of the trust in use.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.federation.federation import Federation
from fedsynth.federation.task import query
from fedsynth.models.estimate import Measurement
from fedsynth.privacy.release import Gaussian, Sensitivity
from fedsynth.schema import Schema
from fedsynth.table import Table
from fedsynth.workload import Clique

# ---------------------------------------------------------------------------------------------------------------------
# What a site computes


def project(table: NDArray[Any], pair: Sequence[int], width: int, seed: int) -> NDArray[np.float64]:
    """Return a flat table of a pair, counts or not, times a public matrix of ``width`` columns of +1 and -1.

    The matrix is the same at every site: it comes from a hash of the public seed and the pair. Each of its rows has
    the norm sqrt(width), so that a sketch over sqrt(width) keeps squared norms on average and one record
    moves it by 1 (normal entries as published have rows twice as long, and cost four times the variance). A
    table of no more cells than ``width`` is sketched by the largest multiple of itself that one record moves
    no further. Integers give integers, exactly: they stay far below 2^53.
    """
    if table.size <= width:
        return np.asarray(table, dtype=np.float64) * math.isqrt(width)
    digest = hashlib.shake_256(f"projection {seed} {tuple(pair)} {table.size} {width}".encode())
    bits = np.unpackbits(np.frombuffer(digest.digest(-(-table.size * width // 8)), dtype=np.uint8))
    signs = bits[: table.size * width].reshape(table.size, width)
    held = np.flatnonzero(table)
    projected: NDArray[np.float64] = table[held] @ (2.0 * signs[held] - 1.0)
    return projected


def record_norm(cells: int, width: int) -> float:
    """Return the norm of what one record adds to a sketch."""
    return float(math.isqrt(width)) if cells <= width else math.sqrt(width)


def _cells(schema: Schema, pair: Sequence[int]) -> int:
    return math.prod(schema.shape(pair))


def sketches_sensitivity(schema: Schema, pairs: Sequence[Sequence[int]], width: int, seed: int) -> Sensitivity:
    """One record adds one row of each pair's projection: its norms add up, squared for L2, entries for L1."""
    norms = [record_norm(_cells(schema, pair), width) for pair in pairs]
    l1 = sum(norm if _cells(schema, pair) <= width else width for norm, pair in zip(norms, pairs, strict=True))
    return Sensitivity(l1=float(l1), l2=math.sqrt(sum(norm**2 for norm in norms)))


def sketches_cells(schema: Schema, pairs: Sequence[Sequence[int]], width: int, seed: int) -> int:
    """``width`` numbers a pair; a pair of fewer cells has one number a cell."""
    return sum(min(width, _cells(schema, pair)) for pair in pairs)


@query(sensitivity=sketches_sensitivity, cells=sketches_cells)
def sketches(table: Table, pairs: Sequence[Sequence[int]], width: int, seed: int) -> NDArray[np.int64]:
    """Each pair's contingency table (flattened in C order) times its :func:`project`, one after the other."""
    parts = [project(table.counts(pair).ravel(), pair, width, seed) for pair in pairs]
    flat: NDArray[np.int64] = np.rint(np.concatenate(parts)).astype(np.int64)
    return flat


# ---------------------------------------------------------------------------------------------------------------------
# What the server makes of it


@dataclass(frozen=True, eq=False)
class Sketch:
    """A pair's noisy sketch, in the norm of its table (records), and the noise's variance in each number."""

    pair: Clique
    values: NDArray[np.float64]
    variance: float
    width: int
    seed: int

    def of(self, table: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the same sketch of another table of the pair, without noise."""
        return project(table.ravel(), self.pair, self.width, self.seed) / record_norm(table.size, self.width)

    def distance(self, table: NDArray[np.float64]) -> float:
        """Return an unbiased estimate of the squared distance of the pair's table to a known one; may be negative."""
        return float(((self.values - self.of(table)) ** 2).sum()) - self.values.size * self.variance


def sketch(federation: Federation, pairs: Sequence[Clique], rho: float, width: int, seed: int) -> list[Sketch]:
    """Return noisy sketches of ``pairs``, all of them for ``rho``."""
    released = federation.sum(sketches, Gaussian(rho), pairs=pairs, width=width, seed=seed)
    cells = [_cells(federation.schema, pair) for pair in pairs]
    ends = np.cumsum([min(width, size) for size in cells])
    norms = [record_norm(size, width) for size in cells]
    return [
        Sketch(pair, flat / norm, (released.std / norm) ** 2, width, seed)
        for pair, norm, flat in zip(pairs, norms, np.split(released.values, ends[:-1]), strict=True)
    ]


def dependence(of_pair: Sketch, first: Measurement, second: Measurement, total: float) -> float:
    """Return an unbiased estimate of || table - first x second / total ||^2, in squared records; may be negative.

    InDif2 of HeteroFedSyn. With noise of variances v, w in the 1-way tables a, b, the product of the noisy tables has
    v |a| ||b||^2 + w |b| ||a||^2 + v w |a| |b| too much squared norm on average, and the exact ||a||^2 is known as
    that of the noisy table less v |a|. The projection keeps squared norms on average.
    """
    a, b = first.values, second.values
    v, w = first.std**2, second.std**2
    too_much = v * a.size * float((b**2).sum()) + w * b.size * float((a**2).sum()) - v * w * a.size * b.size
    return of_pair.distance(np.outer(a, b) / total) - too_much / total**2
