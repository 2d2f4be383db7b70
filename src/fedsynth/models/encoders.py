"""Rows as what networks read: a token for each column, and for each number a place within its token's group.

Everything here is made from released counts (:class:`~fedsynth.models.cells.Cells`): nothing is fitted to rows. The
groups of a column are its tokens; of a number they are its modes, so that a value which many rows share is a mode of
its own; the place of a number within its mode is the share of the mode's rows below it. One group is a quantile
transform, several are mode-specific normalisation (Xu et al., arXiv 1907.00503) with a histogram in place of a Gaussian
mixture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import InvalidParameter
from fedsynth.schema.bins import MOST_COLUMNS, Axis, Floats, Integers

if TYPE_CHECKING:
    from fedsynth.models.cells import Cells
    from fedsynth.rows import Table
    from fedsynth.schema import Schema
    from fedsynth.schema.columns import Column

MOST_TOKENS = 2**14
"""Tokens of a column at most."""
ALL_TOKENS = 2**18
"""Tokens of all columns together at most: a group may have any number, so that few bytes could ask for many vectors."""
_BELOW_1 = 1 - 2.0**-38  # the highest place; the last token plus it is still no whole number in float64


class Places(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, eq=False):
    """Where in its group each fine cell of a number lies: all arrays have one entry a cell of the grid.

    Cell i holds the values above ``lower[i]`` up to ``upper[i]`` (its cut point); the rows of its group that lie below
    it are the share ``begin[i]`` of the group, those in it ``share[i]``.
    """

    lower: Floats
    upper: Floats
    begin: Floats
    share: Floats

    def check(self, at: int) -> None:
        """Raise :class:`InvalidParameter` unless every number has a place from 0 to 1."""
        if len({self.lower.shape, self.upper.shape, self.begin.shape, self.share.shape}) > 1 or self.lower.ndim != 1:
            raise InvalidParameter(f"the places of column {at} need four numbers for each cell")
        if not (self.lower <= self.upper).all():
            raise InvalidParameter(f"cells of column {at} must not end before they begin")
        if not ((self.begin >= 0) & (self.share >= 0) & (self.begin + self.share <= 1 + 1e-9)).all():
            raise InvalidParameter(f"places of column {at} must lie between 0 and 1")

    def of(self, cells: Integers, numbers: Floats) -> Floats:
        """Return the place (0 to 1) of each of ``numbers``, which lie in these ``cells``."""
        lower, upper = self.lower[cells], self.upper[cells]
        wide = upper > lower
        with np.errstate(over="ignore", invalid="ignore"):
            within = np.where(wide, (numbers - lower) / np.where(wide, upper - lower, 1.0), 0.5)
        # An infinite width (bounds of 1e308) leaves no place; any one will do, as long as it is a number.
        within = np.nan_to_num(within, nan=0.5)
        return np.clip(self.begin[cells] + np.clip(within, 0, 1) * self.share[cells], 0, 1)


class Encoder(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, eq=False):
    """One column: ``groups`` numbers the token of each fine cell (of the codes, of a number its grid and the missing).

    ``places`` is given for a number alone.
    """

    groups: Integers
    places: Places | None = None

    @classmethod
    def of(cls, cells: Cells) -> Encoder:
        """Return the encoder of a column, from the released counts of its cells."""
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
        return cls(cells.groups, Places(cells.grid.lower + 0.0, cells.grid.cuts, begin + 0.0, share))

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return int(self.groups.max()) + 1

    def axis(self, at: int) -> Axis:
        """Return the axis of contingency tables that has these tokens, for the column at that position."""
        return Axis(at, None if self.places is None else self.places.upper, self.groups)

    def check(self, at: int, column: Column) -> None:
        """Raise :class:`InvalidParameter` unless every value of the column at ``at`` has a token and a place."""
        if column.is_number != (self.places is not None):
            raise InvalidParameter(f"column {at}: numbers, and they alone, need places")
        if self.places is not None:
            self.places.check(at)
        self.axis(at).check(column.size, column.missing, column.is_number)
        if self.tokens > MOST_TOKENS:
            raise InvalidParameter(f"column {at} has {self.tokens} tokens; {MOST_TOKENS} is the most")

    def encode(self, codes: NDArray[Any], numbers: Floats | None) -> tuple[Integers, Floats | None]:
        """Return the tokens of rows, and of numbers their places (0.5 where missing)."""
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


class Batch(NamedTuple):
    """Rows as networks read them: ``tokens`` (rows, columns), int64, and ``places`` (rows, numbers), float64 in [0, 1].

    Numbers stand in the schema's order.
    """

    tokens: Integers
    places: Floats


class Layout(NamedTuple):
    """What a network knows of the columns: the number of ``tokens`` of each, and which hold ``numbers``."""

    tokens: tuple[int, ...]
    numbers: tuple[int, ...]

    @classmethod
    def of(cls, encoders: Sequence[Encoder]) -> Layout:
        """Return the layout of encoded rows."""
        numbers = tuple(at for at, one in enumerate(encoders) if one.places is not None)
        return cls(tuple(one.tokens for one in encoders), numbers)


def check_encoders(encoders: Sequence[Encoder], schema: Schema) -> None:
    """Raise :class:`InvalidParameter` for encoders that do not describe every stored column."""
    if len(encoders) != len(schema.stored):
        raise InvalidParameter(f"{len(encoders)} encoders are given for {len(schema.stored)} columns")
    for at, (one, column) in enumerate(zip(encoders, schema.stored, strict=True)):
        one.check(at, column)
    if (tokens := sum(one.tokens for one in encoders)) > ALL_TOKENS:
        raise InvalidParameter(
            f"the columns have {tokens} tokens together; {ALL_TOKENS} is the most: put rare values into one group"
        )


def encode_rows(table: Table, encoders: Sequence[Encoder], rows: NDArray[Any] | slice = slice(None)) -> Batch:
    """Return ``rows`` (positions, or a part) of a table as networks read them."""
    tokens, places = [], []
    for at, one in enumerate(encoders):
        numbers = table.numbers[at][rows] if at in table.numbers else None
        token, place = one.encode(table.codes[at][rows], numbers)
        tokens.append(token)
        if place is not None:
            places.append(place)
    count = len(tokens[0])
    held = np.stack(places, axis=1) if places else np.zeros((count, 0))
    return Batch(np.stack(tokens, axis=1), held)


def codes_of(batch: Batch, layout: Layout) -> list[NDArray[Any]]:
    """Return rows as codes on axes (:class:`~fedsynth.models.cells.Cells`): tokens; of numbers the token plus place."""
    found: list[NDArray[Any]] = [batch.tokens[:, at] for at in range(len(layout.tokens))]
    for number, at in enumerate(layout.numbers):
        found[at] = found[at] + np.clip(batch.places[:, number], 0, _BELOW_1)
    return found
