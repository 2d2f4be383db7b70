"""Encoding of rows for neural networks: a token for each column, and for each number a place within its token.

All encoders are made from released counts (:class:`~fedsynth.models.adaptive_bins.AdaptiveBins`); none is fitted to
rows. A token is the code of a group of a column's values or intervals. A number's groups stand for its modes: a value
with many rows mostly has a group of its own. A number's place is the share of its group's rows below it. A single group
gives a quantile transform; several groups give mode-specific normalisation (Xu et al., arXiv 1907.00503), with a
histogram instead of a Gaussian mixture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter
from fedsynth.models.saved import DrawnColumn
from fedsynth.schema.bins import MOST_COLUMNS, Axis, Floats, Integers

if TYPE_CHECKING:
    from fedsynth.models.adaptive_bins import AdaptiveBins
    from fedsynth.rows import Table
    from fedsynth.schema import Schema
    from fedsynth.schema.columns import Column

MOST_TOKENS = 2**14
"""Largest number of tokens of a column."""
ALL_TOKENS = 2**18
"""Largest number of tokens of all columns together; without a limit, a small message could ask for many vectors."""
_BELOW_1 = 1 - 2.0**-38  # largest place; the last token plus this place stays below the next integer in float64


class CellPlaces(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, eq=False):
    """What sites need to compute a number's place within its token: part of an :class:`Encoder`.

    All arrays have one entry for each fine cell (interval), ascending. Cell i begins at ``lower[i]`` and holds the
    values above the cut point ``upper[i - 1]``, up to and including its own, ``upper[i]``. Of the rows of its token,
    the share ``begin[i]`` lies below the cell and the share ``share[i]`` within it, estimated from released counts.
    """

    lower: Floats
    upper: Floats
    begin: Floats
    share: Floats

    def check(self, at: int) -> None:
        """Raise :class:`InvalidParameter` unless the arrays fit together and give places from 0 to 1 only."""
        if len({self.lower.shape, self.upper.shape, self.begin.shape, self.share.shape}) > 1 or self.lower.ndim != 1:
            raise InvalidParameter(f"the places of column {at} need four equally long lists, with one entry per cell")
        if not (self.lower <= self.upper).all():
            raise InvalidParameter(f"cells of column {at} must have lower <= upper")
        if not ((self.begin >= 0) & (self.share >= 0) & (self.begin + self.share <= 1 + 1e-9)).all():
            raise InvalidParameter(f"places of column {at} must lie between 0 and 1")

    def of(self, cells: Integers, numbers: Floats) -> Floats:
        """Return the places (0 to 1) of ``numbers`` in ``cells``: linear, or the middle in a cell of width 0."""
        lower, upper = self.lower[cells], self.upper[cells]
        wide = upper > lower
        with np.errstate(over="ignore", invalid="ignore"):
            within = np.where(wide, (numbers - lower) / np.where(wide, upper - lower, 1.0), 0.5)
        # An infinite width (bounds of 1e308) gives NaN; any place will do as long as it is a number.
        within = np.nan_to_num(within, nan=0.5)
        return np.clip(self.begin[cells] + np.clip(within, 0, 1) * self.share[cells], 0, 1)


class Encoder(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, eq=False):
    """How sites encode one column for a neural network: as tokens and, for a number, places within tokens.

    ``groups`` holds the token, numbered from 0, of each fine cell: of each code of a category, or of each interval of a
    number or time and a last one for missing values if the column admits them. ``places`` is given for numbers and
    times only.
    """

    groups: Integers
    places: CellPlaces | None = None

    @classmethod
    def of(cls, cells: AdaptiveBins) -> Encoder:
        """Make the encoder of a column from its adaptive bins, whose groups become tokens."""
        if cells.grid is None:
            return cls(cells.groups)
        size = len(cells.grid)
        groups, shares = cells.groups[:size], cells.shares[:size]
        order = np.argsort(groups, kind="stable")
        below = np.cumsum(shares[order]) - shares[order]
        first = np.searchsorted(groups[order], groups[order])
        begin = np.empty(size)
        begin[order] = np.clip(below - below[first], 0, 1)
        share = np.minimum(shares, 1 - begin) + 0.0
        return cls(cells.groups, CellPlaces(cells.grid.lower + 0.0, cells.grid.cuts, begin + 0.0, share))

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return int(self.groups.max()) + 1

    def axis(self, at: int) -> Axis:
        """Return the tokens as the axis by which sites count the column at the position ``at``."""
        return Axis(at, None if self.places is None else self.places.upper, self.groups)

    def check(self, at: int, column: Column) -> None:
        """Raise :class:`InvalidParameter` unless every value has a token, of at most 2^14, and every number a place."""
        if column.is_number != (self.places is not None):
            raise InvalidParameter(f"column {at}: give places for numeric and datetime columns, and only for these")
        if self.places is not None:
            self.places.check(at)
        self.axis(at).check(column.size, column.missing, column.is_number)
        if self.tokens > MOST_TOKENS:
            raise InvalidParameter(f"column {at} has {self.tokens} tokens; at most {MOST_TOKENS} are allowed")

    def encode(self, codes: NDArray[Any], numbers: Floats | None) -> tuple[Integers, Floats | None]:
        """Return the tokens of rows, int64, and the places of numbers within them, 0.5 if missing, or ``None``.

        ``codes`` are the rows' codes under the schema; ``numbers``, for a numeric or datetime column only, their values
        (NaN: missing).
        """
        if self.places is None:
            return self.groups[codes], None
        assert numbers is not None
        fine = Axis(0, self.places.upper).places(codes, numbers)
        held = fine < len(self.places.upper)
        places = np.full(len(fine), 0.5)
        places[held] = self.places.of(fine[held], numbers[held])
        return self.groups[fine], places


Encoders = Annotated[tuple[Encoder, ...], msgspec.Meta(min_length=1, max_length=MOST_COLUMNS)]
"""One encoder for each stored column, in the schema's order."""


class EncodedBatch(NamedTuple):
    """Encoded rows, the input of neural networks: ``tokens``, int64, and ``places``, float64 from 0 to 1.

    ``tokens`` has shape ``(rows, columns)``; ``places`` has shape ``(rows, numbers)``: one for each numeric or datetime
    column, in the schema's order.
    """

    tokens: Integers
    places: Floats


class SavedLayout(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A :class:`BatchLayout` in the head of a saved model."""

    tokens: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)], ...],
        msgspec.Meta(min_length=1, max_length=MOST_COLUMNS),
    ]
    numbers: tuple[int, ...]

    def layout(self) -> BatchLayout:
        """Return the layout; raises :class:`InvalidParameter` for more than 2^18 tokens and for invalid positions."""
        if list(self.numbers) != sorted(set(self.numbers) & set(range(len(self.tokens)))):
            raise InvalidParameter("its numbers are not ascending positions of columns")
        if sum(self.tokens) > ALL_TOKENS:
            raise InvalidParameter(f"its columns have {sum(self.tokens)} tokens; at most {ALL_TOKENS} are allowed")
        return BatchLayout(self.tokens, self.numbers)


class BatchLayout(NamedTuple):
    """Layout of an :class:`EncodedBatch`: each column's number of ``tokens``, and the positions of ``numbers``."""

    tokens: tuple[int, ...]
    numbers: tuple[int, ...]

    @classmethod
    def of(cls, encoders: Sequence[Encoder]) -> BatchLayout:
        """Return the layout of rows encoded by ``encoders``."""
        numbers = tuple(at for at, encoder in enumerate(encoders) if encoder.places is not None)
        return cls(tuple(encoder.tokens for encoder in encoders), numbers)

    @property
    def drawn_columns(self) -> tuple[DrawnColumn, ...]:
        """What a network draws for each column: tokens, and places in those of numbers."""
        placed = set(self.numbers)
        return tuple(DrawnColumn(tokens, at in placed) for at, tokens in enumerate(self.tokens))


def check_encoders(encoders: Sequence[Encoder], schema: Schema) -> None:
    """Raise :class:`InvalidParameter` unless ``encoders`` can encode the stored columns of ``schema``, in order.

    All columns together may have at most 2^18 tokens. Sites call it before they encode rows.
    """
    if len(encoders) != len(schema.stored):
        raise InvalidParameter(f"{len(encoders)} encoders do not fit {len(schema.stored)} columns; give one per column")
    for at, (encoder, column) in enumerate(zip(encoders, schema.stored, strict=True)):
        encoder.check(at, column)
    if (tokens := sum(encoder.tokens for encoder in encoders)) > ALL_TOKENS:
        raise InvalidParameter(
            f"the columns have {tokens} tokens in total; at most {ALL_TOKENS} are allowed: merge rare values"
        )


def encode_rows(table: Table, encoders: Sequence[Encoder], rows: NDArray[Any] | slice = slice(None)) -> EncodedBatch:
    """Encode the ``rows`` of a ``table``, which must hold the numbers of numeric and datetime columns."""
    tokens, places = [], []
    for at, encoder in enumerate(encoders):
        numbers = table.numbers[at][rows] if at in table.numbers else None
        token, place = encoder.encode(table.codes[at][rows], numbers)
        tokens.append(token)
        if place is not None:
            places.append(place)
    count = len(tokens[0])
    held = np.stack(places, axis=1) if places else np.zeros((count, 0))
    return EncodedBatch(np.stack(tokens, axis=1), held)


def codes_of(batch: EncodedBatch, layout: BatchLayout) -> list[NDArray[Any]]:
    """Return encoded rows as codes for :class:`~fedsynth.models.adaptive_bins.AdaptiveBins`, an array per column.

    Tokens of a category are int64; a number is token + place in float64, with the place from 0 to below 1.
    """
    found: list[NDArray[Any]] = [batch.tokens[:, at] for at in range(len(layout.tokens))]
    for number, at in enumerate(layout.numbers):
        found[at] = found[at] + np.clip(batch.places[:, number], 0, _BELOW_1)
    return found
