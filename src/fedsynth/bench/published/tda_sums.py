"""Queries of Fed-TDA's replicas, meant for exact sums (NOT PRIVATE): moments of encoded columns, E steps of mixtures.

A site knows them only if its policy names them. Integers are computed from each row and the parameters alone, so that
sums are the same however rows are split over sites.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedsynth.errors import InvalidParameter
from fedsynth.federation.query import Position, Query
from fedsynth.methods.tda_sums import GRAIN, LONGEST, EncodedRows, Encoding, latent_count
from fedsynth.privacy.cost import Sensitivity
from fedsynth.rows import Table
from fedsynth.schema import Schema
from fedsynth.schema.bins import MOST_COLUMNS, Floats, Integers
from fedsynth.schema.columns import Column

FIXED = 2**30
"""An E step adds up integers in units of 1 / FIXED: sums over 2^28 rows stay below 2^58."""
EVIDENCE = 2.0**12
"""A row's log evidence is clipped to this many nats, so that its resolution is 2^-18 nats."""
MOST_COMPONENTS = 256
_LARGEST_COEFFICIENT = 2.0**100  # log densities stay finite
_LARGEST_EXPONENT = 200  # of a mixture's numbers, as a power of 2: they and their logarithms stay finite
_SHARES = 1 << 18  # responsibilities computed at a time: they fit into the CPU cache

# ---------------------------------------------------------------------------------------------------------------------
# Moments of encoded rows


class MixtureEncoding(Encoding, frozen=True, array_like=True, forbid_unknown_fields=True, eq=False):
    """Encoding of a column's values as one or two integers, by cells or, as in the paper, by a mixture.

    A numeric column may have a ``mixture`` instead of cut points (an array of its T components' weights, means and
    deviations, shape ``(3, T)``). A value is then two integers: its place within the likeliest component, and that
    component's entry in ``scores``, which has one more entry for missing values.
    """

    mixture: Floats | None = None

    @property
    @override
    def latents(self) -> int:
        return 1 if self.mixture is None else 2

    @property
    @override
    def width(self) -> int:
        return 1 if self.mixture is None else max(2, self.mixture.shape[1])

    @override
    def cells(self, at: int, column: Column) -> int:
        if self.mixture is None:
            return super().cells(at, column)
        if not column.is_number:
            raise InvalidParameter(f"column {at} is not numeric, as a mixture needs")
        if self.cuts is not None:
            raise InvalidParameter(f"column {at} has both cut points and a mixture; give only one of them")
        if self.mixture.ndim != 2 or self.mixture.shape[0] != 3 or not 1 <= self.mixture.shape[1] <= MOST_COMPONENTS:
            raise InvalidParameter(f"the mixture of column {at} must have shape (3, T), T at most {MOST_COMPONENTS}")
        weights, means, deviations = self.mixture
        least, most = 2.0**-_LARGEST_EXPONENT, 2.0**_LARGEST_EXPONENT
        positive = np.stack([weights, deviations])
        if not ((positive >= least) & (positive <= most) & (np.abs(means) <= most)).all():
            raise InvalidParameter(f"the mixture of column {at} has weights, means or deviations out of range")
        return int(self.mixture.shape[1]) + 1

    @override
    def encode(self, codes: NDArray[Any], numbers: Floats | None) -> list[NDArray[Any]]:
        if self.mixture is None:
            return super().encode(codes, numbers)
        from fedsynth.bench.published.mixture import Mixture

        assert numbers is not None
        missing = np.isnan(numbers)
        place, component = Mixture(*self.mixture).places(np.where(missing, 0.0, numbers))
        encoded = np.rint(np.clip(place * GRAIN, -LONGEST, LONGEST))
        last = self.mixture.shape[1]
        return [np.where(missing, 0.0, encoded), self.scores[np.where(missing, last, component)]]


class MomentSums(EncodedRows, frozen=True):
    """Query of Fed-TDA for the number of rows, the sums, and the sums of products of encoded rows.

    From them the server computes a covariance. Products are in the order of the lower triangle with the diagonal, row
    by row.
    """

    kind: ClassVar[str] = "moments"

    columns: Annotated[tuple[MixtureEncoding, ...], msgspec.Meta(min_length=1, max_length=MOST_COLUMNS)]

    def sensitivity(self, schema: Schema) -> Sensitivity:
        """Return a bound on how far one record moves a site's answer (integers), in L1 and L2; noise is sized by it.

        Adding a row z of l integers, with |z|^2 <= B = ``bound``, adds 1, z and its products. The products i <= j have
        a squared norm of ((sum z^2)^2 + sum z^4) / 2 <= |z|^4, reached by one number alone: 1 + B + B^2 in all. In L1:
        1 + |z|_1 + (|z|_1^2 + |z|^2) / 2, with |z|_1^2 <= l |z|^2.

        Replacing it by w leaves the number of rows unchanged. With s = z w the sums move by |z|^2 + |w|^2 - 2 s at most
        2 B - 2 s (squared), the products by at most 2 B^2 - s^2: 2 B^2 + 2 B + 1 together, for every s. In L1 twice the
        above without the number of rows.
        """
        latents, bound = latent_count(self.columns), float(self.bound)
        sums = math.sqrt(latents * bound) + (latents + 1) * bound / 2
        return Sensitivity(
            l1=1 + sums,
            l2=math.sqrt(1 + bound + bound**2),
            replace_l1=2 * sums,
            replace_l2=math.sqrt(2 * bound**2 + 2 * bound + 1),
        )

    def cells(self, schema: Schema) -> int:
        """Return the number of integers in an answer: the row count, l sums and l (l + 1) / 2 products."""
        latents = latent_count(self.columns)
        return 1 + latents + math.comb(latents + 1, 2)

    def row_range(self, schema: Schema) -> tuple[int, int]:
        """Return bounds on what one record adds: a square is at most the sum of all, an integer at most its square."""
        most = min(self.bound, LONGEST**2)
        return -most, most

    def answer(self, rows: Table) -> Integers:
        """Return a site's exact row count, sums (in 1 / ``GRAIN``) and products (in ``1 / GRAIN^2``), int64."""
        first, second = self.gram(rows)
        return np.concatenate([[len(rows)], first, second[np.tril_indices(len(second))]]).astype(np.int64)

    def split(self, schema: Schema, flat: NDArray[Any]) -> list[Floats]:
        """Return three arrays, ``(1,)``, ``(l,)`` and ``(l (l + 1) / 2,)``: number of records, sums, sums of products.

        Sums are in units of a standard deviation on the latent normal axis, products in its square.
        """
        latents = latent_count(self.columns)
        records, first, second = np.split(flat.astype(np.float64), [1, 1 + latents])
        return [records, first / GRAIN, second / GRAIN**2]

    def stds(self, std: float) -> list[float]:
        """Return the standard deviations of the noise in the three parts of :meth:`split`."""
        return [std, std / GRAIN, std / GRAIN**2]


# ---------------------------------------------------------------------------------------------------------------------
# The E step of mixtures


def scaling(edges: Floats) -> tuple[float, float]:
    """Return centre and half-width (1 for equal bounds) of the bounds of bins: u = (x - centre) / half-width."""
    low, high = float(edges[0]), float(edges[-1])
    return (low + high) / 2, (high - low) / 2 or 1.0


class MixtureSums(Query, frozen=True):
    """Query for the E step of Gaussian mixtures, one per column: sums of r, r u, r u^2 and of the log evidence.

    ``columns`` are positions of numeric columns, and u is a row's value scaled to [-1, 1] (:func:`scaling`).
    ``coefficients`` c of shape ``(3, columns, T)`` give the unnormalised weight rho_t of each of T components for a
    row, ln rho_t = c_0 + c_1 u + c_2 u^2. The responsibilities r_t are the shares of the rho_t in their sum, and the
    log evidence is ln of that sum, in nats. Missing values are skipped. The running time depends on the number of rows
    alone. Meant for releases without noise: under a budget, one histogram for all iterations is far cheaper than a
    release per iteration.
    """

    kind: ClassVar[str] = "mixture-sums"
    needs_rows: ClassVar[bool] = True

    columns: Annotated[tuple[Position, ...], msgspec.Meta(min_length=1, max_length=MOST_COLUMNS)]
    coefficients: Floats

    def check(self, schema: Schema) -> None:
        """Raise :class:`InvalidParameter` for columns not numeric, and for coefficients that might overflow."""
        for place in self.columns:
            column = schema.stored[place] if place < len(schema.stored) else None
            if column is None or not column.is_number:
                raise InvalidParameter(f"column {place} is not numeric, as a mixture needs")
            if not np.isfinite(scaling(column.bin_edges)).all():
                raise InvalidParameter(f"the bounds of column {place} are too far apart for a mixture")
        shape = self.coefficients.shape
        if len(shape) != 3 or shape[:2] != (3, len(self.columns)) or not 1 <= shape[2] <= MOST_COMPONENTS:
            raise InvalidParameter(
                f"coefficients of {len(self.columns)} columns must have the shape (3, columns, T), T at most "
                f"{MOST_COMPONENTS}, not {shape}"
            )
        if not (np.abs(self.coefficients) <= _LARGEST_COEFFICIENT).all():
            raise InvalidParameter("coefficients of an E step are too large; restart the fit")

    def sensitivity(self, schema: Schema) -> Sensitivity:
        """Return a bound on how far one record moves a site's answer (integers), in L1 and L2; noise is sized by it.

        For each column, a row with the value u (scaled to [-1, 1]) adds four parts to the answer: integers r_t >= 0,
        which are the responsibilities of the components t and add up to F = ``FIXED``; the products r_t u; the products
        r_t u^2; and the log evidence e.

        The running sums of the responsibilities rise from 0 to exactly 1 and are rounded before differences are taken,
        so r_t >= 0 and sum r_t = F, whatever the coefficients. Since |u| <= 1, the products are at most r_t in absolute
        value, also after rounding; and |e| <= F. So each of the four parts has a norm of at most F, both in L1 and in
        L2. Together the norms are at most 4 F in L1 and 2 F in L2 for each column.

        Replacing a row by another moves the answer at most twice as far in L1. In L2, the vectors (r, r u, r u^2) of
        two rows have an inner product that is not negative, since r_t r'_t >= |r_t u| |r'_t u'|. So their squared
        distance is at most 3 F^2 + 3 F^2, and that of the evidence is at most 4 F^2.
        """
        count = len(self.columns)
        return Sensitivity(
            l1=4.0 * FIXED * count, l2=2 * FIXED * math.sqrt(count), replace_l2=FIXED * math.sqrt(10 * count)
        )

    def cells(self, schema: Schema) -> int:
        """Return the number of integers in an answer: 3 T + 1 for each column, with T components."""
        return len(self.columns) * (3 * int(self.coefficients.shape[2]) + 1)

    def row_range(self, schema: Schema) -> tuple[int, int]:
        """Return -``FIXED`` and ``FIXED``, which no integer of a row exceeds."""
        return -FIXED, FIXED

    def answer(self, rows: Table) -> Integers:
        """Return a site's exact sums, int64, column by column: T of r, T of r u, T of r u^2, and the log evidence.

        They are in units of 1 / ``FIXED`` (2^-30), the evidence in units of ``EVIDENCE`` / ``FIXED`` (2^-18) nats.
        """
        return np.concatenate([self._column(rows, at) for at in range(len(self.columns))])

    def split(self, schema: Schema, flat: NDArray[Any]) -> list[Floats]:
        """Return sums of r, of r u and of r u^2, shape ``(columns, T)``, and log evidence in nats, ``(columns,)``."""
        by_column = (flat / FIXED).reshape(len(self.columns), -1)
        counts, first, second = np.split(by_column[:, :-1], 3, axis=1)
        return [counts, first, second, by_column[:, -1] * EVIDENCE]

    def stds(self, std: float) -> list[float]:
        """Return the standard deviations of the noise in the four arrays of :meth:`split`, each in the array's unit."""
        return [std / FIXED, std / FIXED, std / FIXED, std / FIXED * EVIDENCE]

    def _column(self, rows: Table, at: int) -> Integers:
        place = self.columns[at]
        column = rows.schema.stored[place]
        assert column.is_number
        centre, half = scaling(column.bin_edges)
        components = int(self.coefficients.shape[2])
        added = np.zeros(3 * components + 1, dtype=np.int64)
        step = _SHARES // components
        for start in range(0, len(rows), step):
            x = rows.numbers[place][start : start + step]
            u = np.clip((x - centre) / half, -1.0, 1.0)
            known = ~np.isnan(u)
            integers = responsibilities(np.where(known, u, 0.0), self.coefficients[:, at])
            added += (integers * known).sum(axis=1)
        return added


def responsibilities(u: Floats, coefficients: Floats) -> Integers:
    """Return the integers r, r u, r u^2 and log evidence of each value ``u``, shape ``(3 T + 1, values)``.

    The integers are those of :class:`MixtureSums`, in the units of its answer; r, r u and r u^2 take T lines each, the
    evidence takes the last one. Values ``u``, shape ``(values,)``, lie in [-1, 1]; ``coefficients`` have shape ``(3,
    T)``. Every column of the result depends on one value alone: sums over components are taken in a fixed order.
    """
    constant, linear, square = coefficients[:, :, None]
    log_rho = constant + linear * u + square * (u * u)
    largest = log_rho.max(axis=0)
    cumulated = np.cumsum(np.exp(log_rho - largest), axis=0)
    # A number divided by itself is exactly 1: the last step is FIXED, and no difference is negative.
    steps = np.rint(cumulated / cumulated[-1] * FIXED)
    r = np.diff(steps, axis=0, prepend=0.0)
    evidence = np.clip((largest + np.log(cumulated[-1])) / EVIDENCE, -1.0, 1.0) * FIXED
    parts = [r, np.rint(r * u), np.rint(r * (u * u)), np.rint(evidence)[None]]
    return np.concatenate(parts).astype(np.int64)
