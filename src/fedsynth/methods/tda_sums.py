"""The query of Fed-TDA: products of encoded columns.

Rows are encoded as integers in parts of 1 / ``GRAIN``, each from the row and the parameters alone. The sums are
therefore exact, and the same however rows are split over sites.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter
from fedsynth.federation.query import Query
from fedsynth.privacy.cost import Sensitivity
from fedsynth.schema.bins import MOST_COLUMNS, Axis, Floats, Integers
from fedsynth.schema.columns import Column

if TYPE_CHECKING:
    from fedsynth.rows import Table
    from fedsynth.schema import Schema

GRAIN = 1024
"""Rows are encoded as integers in units of 1 / GRAIN standard deviation."""
LONGEST = 8 * GRAIN
"""Largest encoded number, in units of 1 / GRAIN: sums of products over 2^28 rows stay below 2^54."""
LARGEST_BOUND = 2 * MOST_COLUMNS * LONGEST**2
"""Largest bound on a row's squared length: no row of two numbers a column is longer."""
_CELLS = 1 << 22  # encoded numbers held at a time

# ---------------------------------------------------------------------------------------------------------------------
# Rows as integers


class Encoding(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, eq=False):
    """Encoding of a column's values as integers, in units of 1 / ``GRAIN`` (1/1024) standard deviation.

    ``scores`` has one integer for each cell of the column: the cell's place on a latent standard normal axis
    (:class:`~fedsynth.models.normal_scores.NormalScores`). Cells are the schema's own codes of the column's values, or
    lie between the cut points ``cuts`` (:class:`~fedsynth.schema.bins.Axis`).
    """

    scores: Integers
    cuts: Floats | None = None

    @property
    def latents(self) -> int:
        """Number of integers that encode a value."""
        return 1

    @property
    def width(self) -> int:
        """Largest number of numbers that are held at a time to encode a value."""
        return self.latents

    def cells(self, at: int, column: Column) -> int:
        """Return the number of cells of ``column``; raises :class:`InvalidParameter` if the cut points do not fit."""
        axis = Axis(at, self.cuts)
        axis.check(column.size, column.missing, column.is_number)
        return axis.cells(column.size, column.missing)

    def check(self, at: int, column: Column) -> None:
        """Raise :class:`InvalidParameter` unless every value has a score of at most ``LONGEST`` (8 deviations)."""
        cells = self.cells(at, column)
        if self.scores.shape != (cells,):
            raise InvalidParameter(f"column {at} has {cells} cells but {self.scores.size} scores; give one per cell")
        if self.scores.min() < -LONGEST or self.scores.max() > LONGEST:
            raise InvalidParameter(f"scores of column {at} must lie within {LONGEST} of zero")

    def encode(self, codes: NDArray[Any], numbers: Floats | None) -> list[NDArray[Any]]:
        """Return the integers that encode a column's values in some rows: ``latents`` arrays, shape ``(rows,)`` each.

        ``numbers`` are the values themselves, NaN where missing (``None`` for a categorical column).
        """
        return [self.scores[Axis(0, self.cuts).places(codes, numbers)]]


Encodings = Annotated[tuple[Encoding, ...], msgspec.Meta(min_length=1, max_length=MOST_COLUMNS)]
"""One encoding for each column of the schema, in its order."""
Bound = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_BOUND)]


def latent_count(columns: Sequence[Encoding]) -> int:
    """Return the number of integers (latents) that encode a row by ``columns``."""
    return sum(column.latents for column in columns)


def encoded(table: Table, columns: Sequence[Encoding], bound: int) -> Iterator[Floats]:
    """Yield the encoded rows in blocks of shape ``(rows, latents)``, as doubles, :func:`shortened` to ``bound``."""
    widest = max(latent_count(columns), *(column.width for column in columns))
    step = max(1, _CELLS // widest)
    for start in range(0, len(table), step):
        part = slice(start, start + step)
        latents: list[NDArray[Any]] = []
        for at, column in enumerate(columns):
            numbers = table.numbers[at][part] if at in table.numbers else None
            latents += column.encode(table.codes[at][part], numbers)
        yield shortened(np.stack(latents, axis=1).astype(np.float64), bound)


def shortened(rows: Floats, bound: int) -> Floats:
    """Return the encoded ``rows``, each scaled down if the sum of its squared integers exceeds ``bound``.

    ``rows`` and the result are integers held as doubles, shape ``(rows, latents)``. Scaled rows are truncated to
    integers again. Each number is at most ``LONGEST`` = 2^13, and there are at most 2^13 of them, so squared norms are
    integers up to 2^39, which doubles hold exactly. Scaling by the ratio of the norms gives a squared norm of
    ``bound``, up to a relative rounding error far below 2^-40; the additional factor 1 - 2^-40 outweighs it, and
    truncation towards zero makes the norm smaller still.
    """
    squared = (rows**2).sum(axis=1)
    ratio = np.sqrt(bound / np.maximum(squared, 1)) * (1 - 2.0**-40)
    # All rows take the same operations, for constant time; a factor of 1 leaves a row unchanged.
    return np.trunc(rows * np.where(squared > bound, ratio, 1.0)[:, None])


# ---------------------------------------------------------------------------------------------------------------------
# Sums of encoded rows


class EncodedRows(Query, frozen=True):
    """Common part of :class:`ProductSums` and other queries for sums over rows encoded as integers.

    ``columns`` has one :class:`Encoding` for each stored column. A row whose squared integers add up to more than
    ``bound`` is scaled down to it (:func:`shortened`), which bounds the sensitivity.
    """

    needs_rows: ClassVar[bool] = True

    columns: Encodings
    bound: Bound

    def check(self, schema: Schema) -> None:
        """Raise :class:`InvalidParameter` for encodings that do not cover every column and each of its values."""
        if len(self.columns) != len(schema.stored):
            raise InvalidParameter(f"{len(self.columns)} encodings for {len(schema.stored)} columns; give one for each")
        for at, (column, described) in enumerate(zip(self.columns, schema.stored, strict=True)):
            column.check(at, described)

    def gram(self, table: Table) -> tuple[Integers, Integers]:
        """Return the sums of encoded rows, shape ``(latents,)``, and of their products, ``(latents, latents)``.

        Both are int64; sums are in units of 1 / ``GRAIN``, products in units of ``1 / GRAIN^2``. They are exact: at
        most 2^22 products, each at most 2^26, are added up in doubles, which stay below 2^48.
        """
        latents = latent_count(self.columns)
        first, second = np.zeros(latents, dtype=np.int64), np.zeros((latents, latents), dtype=np.int64)
        for rows in encoded(table, self.columns, self.bound):
            first += rows.sum(axis=0).astype(np.int64)
            second += (rows.T @ rows).astype(np.int64)
        return first, second


class ProductSums(EncodedRows, frozen=True):
    """Query of Fed-TDA for sums over rows: of the product of every two of the integers that encode a row.

    From them the server estimates correlations. The integers stand at different places i < j of the encoded row; the
    order of the products is that of the lower triangle without the diagonal, row by row.
    """

    kind: ClassVar[str] = "products"

    def sensitivity(self, schema: Schema) -> Sensitivity:
        """Return a bound on how far one record moves a site's answer (integers), in L1 and L2; noise is sized by it.

        Adding a row z of l integers adds z_i z_j for each pair i < j, where the squares of z add up to at most B =
        ``bound``. The squared norm of what is added is sum_(i<j) z_i^2 z_j^2 = ((sum z^2)^2 - sum z^4) / 2, and sum z^4
        >= (sum z^2)^2 / l by Cauchy and Schwarz: at most B^2 (1 - 1/l) / 2, which l equal numbers reach. In L1 it is
        ((sum |z|)^2 - sum z^2) / 2, at most B (l - 1) / 2 in the same way.

        Replacing it by w: the squared norm of the change is (|z|^4 + |w|^4) / 2 - (z w)^2 - sum (z_i^2 - w_i^2)^2 / 2,
        at most B^2; in L1, over l (l - 1) / 2 pairs, at most the root of their number times as much. Rows are integers,
        so nothing is rounded afterwards.
        """
        latents, bound = latent_count(self.columns), self.bound
        return Sensitivity(
            l1=bound * (latents - 1) / 2,
            l2=bound * math.sqrt((1 - 1 / latents) / 2),
            replace_l1=bound * math.sqrt(math.comb(latents, 2)),
            replace_l2=float(bound),
        )

    def cells(self, schema: Schema) -> int:
        """Return the number of integers in an answer: one product for each two of a row's integers."""
        return math.comb(latent_count(self.columns), 2)

    def row_range(self, schema: Schema) -> tuple[int, int]:
        """Return bounds on what one record adds: a product of two numbers is at most half the sum of their squares."""
        most = min(self.bound // 2, LONGEST**2)
        return -most, most

    def answer(self, rows: Table) -> Integers:
        """Return a site's exact sums of products, int64, in units of ``1 / GRAIN^2``."""
        _, second = self.gram(rows)
        return second[np.tril_indices(len(second), -1)]

    def split(self, schema: Schema, flat: NDArray[Any]) -> list[Floats]:
        """Return the sums in units of squared standard deviations, shape ``(pairs,)``, as the only array."""
        return [flat / GRAIN**2]

    def stds(self, std: float) -> list[float]:
        """Return the standard deviation of the noise in the sums of :meth:`split`, in their unit."""
        return [std / GRAIN**2]
