"""What a site adds up for Fed-TDA, and how far one record moves it.

Everything is a sum of integers over rows: rows are encoded on a grid of 1 / ``GRAIN``, so that the sums are exact and
the same however rows are split over sites; only the sums of a mixture's E step are rounded, once at each site.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.column import Datetime, Numeric
from fedsynth.errors import InvalidParameter
from fedsynth.federation.task import finite, query
from fedsynth.models.axis import Array, Grid, Integers, cell_count, cells_of, is_number
from fedsynth.models.mixture import Mixture, e_step
from fedsynth.privacy.release import Sensitivity
from fedsynth.schema import Schema
from fedsynth.table import Table

GRAIN = 1024  # parts of a standard deviation that encoded rows are rounded to
FIXED = 2.0**32  # parts of one that sums of an E step are rounded to: 2^30 rows do not pass 2^62
LONGEST = 8 * GRAIN  # no encoded number lies further out: products of 2^30 rows stay below 2^57
EVIDENCE = 2.0**20  # no row's log evidence counts for more, and its sum is rounded to 2^-12 nats
_LARGEST_COEFFICIENT = 2.0**100  # beyond it, log densities might not be finite
_CHUNK = 1 << 16  # rows at a time: their products stay below 2^53, where doubles are exact


# ---------------------------------------------------------------------------------------------------------------------
# Release A: a histogram of every column


def histograms_cells(schema: Schema, bins: int) -> int:
    """Cells of all columns together."""
    return sum(cell_count(column, bins) for column in schema.columns)


def histograms_sensitivity(schema: Schema, bins: int) -> Sensitivity:
    """One record moves one cell of each of the m columns by one: m in L1, sqrt(m) in L2."""
    return Sensitivity(l1=len(schema.columns), l2=math.sqrt(len(schema.columns)))


@query(sensitivity=histograms_sensitivity, cells=histograms_cells)
def histograms(table: Table, bins: int) -> Integers:
    """Count the rows in each cell of each column: codes of categories, cells of the public grid of numbers."""
    columns = enumerate(table.schema.columns)
    counted = [np.bincount(cells_of(table, at, bins), minlength=cell_count(column, bins)) for at, column in columns]
    return np.concatenate(counted).astype(np.int64)


# ---------------------------------------------------------------------------------------------------------------------
# Release B: products of encoded columns


def encoded(table: Table, columns: Sequence[Mapping[str, Any]], start: int, stop: int) -> Array:
    """Return rows ``start`` to ``stop`` as integers (held as doubles) on all axes, shape ``(rows, latents)``.

    A column is described by the ``scores`` of its cells (in parts of 1 / GRAIN), for a number with its grid (``lower``,
    ``upper`` and ``per_unit``); or, in the paper's encoding of a number, by a ``mixture`` (weights, means, deviations)
    and the scores of its components, the last for missing values: then it gives two numbers, the place within the
    likeliest component and the component's score.
    """
    rows = table.take(np.arange(start, min(stop, len(table))))
    parts: list[NDArray[Any]] = []
    for at, column in enumerate(columns):
        scores = np.asarray(column["scores"])
        if "mixture" in column:
            mixture, x = Mixture(*np.asarray(column["mixture"])), rows.numbers[at]
            component = np.where(np.isnan(x), len(mixture.means), mixture.log_joint(np.nan_to_num(x)).argmax(axis=1))
            held = np.minimum(component, len(mixture.means) - 1)
            place = np.nan_to_num((x - mixture.means[held]) / mixture.deviations[held])
            parts += [place * GRAIN, scores[component]]
        else:
            parts.append(scores[_cells(rows, at, column)])
    # Whatever a request describes, rows become small integers: what the sensitivities rest on.
    return np.rint(np.clip(np.nan_to_num(np.stack(parts, axis=1).astype(np.float64)), -LONGEST, LONGEST))


def _cells(rows: Table, at: int, described: Mapping[str, Any]) -> Integers:
    if not is_number(rows.schema.columns[at]):
        return rows.codes[at].astype(np.int64)
    lower, upper = np.asarray(described["lower"]), np.asarray(described["upper"])
    return Grid(lower, upper, int(described["per_unit"])).cells(rows.numbers[at])


def clipped(rows: Array, bound: int) -> Array:
    """Return integer rows whose squared norm is at most ``bound``: longer ones are shortened, towards zero.

    Shortening by the ratio of the norms leaves a squared norm of ``bound``, but for a rounding of far less than the
    2^-40 that is taken off besides; cutting the fractions off makes it smaller still.
    """
    squared = (rows**2).sum(axis=1)
    long = squared > bound
    if not long.any():
        return rows
    shortened = rows.copy()
    shortened[long] = np.trunc(rows[long] * (np.sqrt(bound / squared[long]) * (1 - 2.0**-40))[:, None])
    return shortened


def _check(schema: Schema, columns: Sequence[Mapping[str, Any]]) -> None:
    """Refuse what does not describe every column, or a score that is not one for each cell."""
    if len(columns) != len(schema.columns):
        raise InvalidParameter(f"{len(columns)} columns are described of {len(schema.columns)}; start the run again")
    for at, (column, described) in enumerate(zip(schema.columns, columns, strict=True)):
        if "mixture" in described:
            if not is_number(column):
                raise InvalidParameter(f"column {at} holds no numbers for a mixture; start the run again")
            components = np.shape(described["mixture"])[-1]
            finite(described["mixture"], (3, components), f"the mixture of column {at}")
            cells = components + 1
        elif is_number(column):
            cells = np.size(described["upper"])
            for name in ("lower", "upper"):
                finite(described[name], (cells,), f"the grid of column {at}")
            finite(described["per_unit"], (), f"the unit of column {at}")
            cells += column.missing
        else:
            cells = column.size
        finite(described["scores"], (cells,), f"scores of the cells of column {at}")


def _gram(table: Table, columns: Sequence[Mapping[str, Any]], bound: int) -> tuple[Integers, Integers]:
    """Return the sums and the products of the clipped rows: exact, since no partial sum leaves 2^53."""
    _check(table.schema, columns)
    latents = latent_count(columns)
    first, second = np.zeros(latents, dtype=np.int64), np.zeros((latents, latents), dtype=np.int64)
    for start in range(0, len(table), _CHUNK):
        rows = clipped(encoded(table, columns, start, start + _CHUNK), bound)
        first += rows.sum(axis=0).astype(np.int64)
        second += (rows.T @ rows).astype(np.int64)
    return first, second


def _checked(bound: int) -> int:
    """Return a bound under which products of a chunk of rows are exact; refuse one that a request makes up."""
    if not 0 < bound * _CHUNK <= 2**53:
        raise InvalidParameter(f"bound = {bound} on squared lengths is out of range; it must lie in 1 to 2^37")
    return bound


def latent_count(columns: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of axes that described columns take."""
    return sum(2 if "mixture" in column else 1 for column in columns)


def products_cells(schema: Schema, columns: Sequence[Mapping[str, Any]], bound: int) -> int:
    """One product for each pair of axes."""
    return math.comb(latent_count(columns), 2)


def products_sensitivity(schema: Schema, columns: Sequence[Mapping[str, Any]], bound: int) -> Sensitivity:
    """One record adds z_i z_j for each pair i < j of its l encoded numbers, whose squares sum to at most B = ``bound``.

    The squared norm is sum_(i<j) z_i^2 z_j^2 = ((sum z^2)^2 - sum z^4) / 2, and sum z^4 >= (sum z^2)^2 / l by Cauchy
    and Schwarz: at most B^2 (1 - 1/l) / 2, which l equal numbers reach. In L1 it is ((sum |z|)^2 - sum z^2) / 2,
    at most B (l - 1) / 2 in the same way. Rows are integers, so nothing is rounded afterwards.
    """
    latents, bound = latent_count(columns), _checked(bound)
    return Sensitivity(l1=bound * (latents - 1) / 2, l2=bound * math.sqrt((1 - 1 / latents) / 2))


@query(sensitivity=products_sensitivity, cells=products_cells)
def products(table: Table, columns: Sequence[Mapping[str, Any]], bound: int) -> Integers:
    """Sum over rows the products of pairs of axes (lower triangle, row by row), in parts of 1 / GRAIN^2."""
    _, second = _gram(table, columns, bound)
    return second[np.tril_indices(len(second), -1)]


def moments_cells(schema: Schema, columns: Sequence[Mapping[str, Any]], bound: int) -> int:
    """Records, sums, and products with the diagonal."""
    latents = latent_count(columns)
    return 1 + latents + math.comb(latents + 1, 2)


def moments_sensitivity(schema: Schema, columns: Sequence[Mapping[str, Any]], bound: int) -> Sensitivity:
    """One record adds 1, its encoded numbers z, and their products: squares of 1 + |z|^2 + |z|^4, |z|^2 <= ``bound``.

    The products i <= j have a squared norm of ((sum z^2)^2 + sum z^4) / 2 <= |z|^4, reached by one number alone. In
    L1: 1 + |z|_1 + (|z|_1^2 + |z|^2) / 2, with |z|_1^2 <= l |z|^2.
    """
    latents, bound = latent_count(columns), _checked(bound)
    return Sensitivity(
        l1=1 + math.sqrt(latents * bound) + (latents + 1) * bound / 2, l2=math.sqrt(1 + bound + float(bound) ** 2)
    )


@query(sensitivity=moments_sensitivity, cells=moments_cells)
def moments(table: Table, columns: Sequence[Mapping[str, Any]], bound: int) -> Integers:
    """Number of records, sums, and products of axes (lower triangle with the diagonal), in powers of 1 / GRAIN."""
    first, second = _gram(table, columns, bound)
    return np.concatenate([[len(table)], first, second[np.tril_indices(len(second))]]).astype(np.int64)


# ---------------------------------------------------------------------------------------------------------------------
# The E step of mixtures


def scaling(column: Numeric | Datetime) -> tuple[float, float]:
    """Return centre and half-width of a column's public bounds: u = (x - centre) / half-width lies in [-1, 1]."""
    low, high = float(column.bin_edges[0]), float(column.bin_edges[-1])
    return (low + high) / 2, (high - low) / 2 or 1.0


def mixture_sums_cells(schema: Schema, columns: Sequence[int], coefficients: Array) -> int:
    """3 T + 1 numbers a column."""
    return len(columns) * (3 * int(np.shape(coefficients)[-1]) + 1)


def mixture_sums_sensitivity(schema: Schema, columns: Sequence[int], coefficients: Array) -> Sensitivity:
    """In each column one record adds r, r u and r u^2 with sum r = 1, |u| <= 1, and a log evidence cut to one.

    The norms of the four are at most 1 (in L1 too) in units of ``FIXED``: 2 together in L2, 4 in L1. Rounding two
    sums moves them apart by one more a cell. Meant for exact releases: iterations paid for one by one cost far more
    than a histogram that serves them all.
    """
    if not (np.abs(coefficients) < _LARGEST_COEFFICIENT).all():
        raise InvalidParameter("coefficients of an E step must be finite; start the fit again")
    cells = mixture_sums_cells(schema, columns, coefficients)
    return Sensitivity(l1=4 * FIXED * len(columns) + cells, l2=2 * FIXED * math.sqrt(len(columns)) + math.sqrt(cells))


@query(sensitivity=mixture_sums_sensitivity, cells=mixture_sums_cells)
def mixture_sums(table: Table, columns: Sequence[int], coefficients: Array) -> Integers:
    """E step of all ``columns`` under broadcast ``coefficients`` of shape ``(3, columns, T)``: r, r u, r u^2, evidence.

    Values are compressed to distinct values and counts first; missing ones take no part.
    """
    coefficients = finite(coefficients, (3, len(columns), np.shape(coefficients)[-1]), "coefficients of an E step")
    parts = []
    for at, place in enumerate(columns):
        column = table.schema.columns[place]
        assert isinstance(column, Numeric | Datetime)
        centre, half = scaling(column)
        x, counts = np.unique(table.numbers[place][~np.isnan(table.numbers[place])], return_counts=True)
        sums = e_step((x - centre) / half, counts.astype(np.float64), np.asarray(coefficients)[:, at], EVIDENCE)
        evidence = sums.evidence / EVIDENCE
        parts.append(np.concatenate([sums.counts, sums.first, sums.second, [evidence]]) * FIXED)
    return np.rint(np.concatenate(parts)).astype(np.int64)
