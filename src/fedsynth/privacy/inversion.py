"""Exact inversion sampling: locates uniform numbers among the cells of a discrete law. Used only by `noise`.

A law is a sequence of cells whose ratios of successive weights are known exactly. `cumulative_bounds` turns
these ratios into lower and upper bounds of the cumulative probabilities by integer interval arithmetic, so the
bounds hold at any precision; the precision only determines how rarely a word is undecided. A uniform number, known
by its first binary digits, is located between those bounds by `Table` (many at once) or, if undecided, refined by
`decide`. The infinite tail is one such undecided case: the longer the word, the further the bounds reach.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

DIGITS = 62
"""Digits of a uniform number in the first look-up: 2^62 itself fits an int64, and a word has a bit left for a sign."""

Bounds = tuple[list[int], list[int]]
"""low_j <= F_j 2^length <= high_j for the cumulative probabilities F_0 <= F_1 <= ..., in two sorted lists."""

Words = Callable[[int], NDArray[np.uint64]]
"""The next n uniform 64-bit words."""


@dataclass(frozen=True)
class GaussianMagnitude:
    """|k| under the discrete Gaussian law: weights 1, then 2 exp(-k²/(2σ²))."""

    sigma: float
    finite = False

    def cells(self, length: int) -> int:
        """Number of cells beyond which the tail is about 2^-length."""
        return 4 + math.ceil(self.sigma * math.sqrt(2 * math.log(2) * length))

    def ratios(self, cells: int, width: int) -> Iterator[tuple[int, int]]:
        """Bounds of weight[k + 1] / weight[k] times 2^width, for k < cells.

        The ratios are 2a, a³, a⁵, ... with a = exp(-1/(2σ²)).
        """
        low, high = exp_minus(1 / (2 * Fraction(self.sigma) ** 2), width)
        low_square, high_square = low * low >> width, _shift_up(high * high, width)
        yield 2 * low, 2 * high
        for _ in range(cells - 1):
            low, high = low * low_square >> width, _shift_up(high * high_square, width)
            yield low, high


@dataclass(frozen=True)
class Geometric:
    """Weights exp(-k step/scale): for all k >= 0, or only for k < base if a base is given."""

    scale: float
    step: int
    base: int | None

    @property
    def finite(self) -> bool:
        """Whether the last cell ends the law."""
        return self.base is not None

    def cells(self, length: int) -> int:
        """Number of cells beyond which the tail is about 2^-length."""
        return self.base or 4 + math.ceil(self.scale / self.step * math.log(2) * length)

    def ratios(self, cells: int, width: int) -> Iterator[tuple[int, int]]:
        """Bounds of weight[k + 1] / weight[k] times 2^width, for k < cells."""
        ratio = exp_minus(self.step / Fraction(self.scale), width)
        for _ in range(cells):
            yield ratio


@dataclass(frozen=True)
class Polya:
    """The negative binomial law with a shape of at most 1 and ratio p = exp(-1/scale); geometric for shape 1.

    Weights prod_{j<k} (j + shape)/(j + 1) p^k for k >= 0.
    """

    scale: float
    shape: Fraction
    finite = False

    def cells(self, length: int) -> int:
        """Number of cells beyond which the tail is about 2^-length (weights are below those of the geometric law)."""
        return 4 + math.ceil(self.scale * math.log(2) * length)

    def ratios(self, cells: int, width: int) -> Iterator[tuple[int, int]]:
        """Bounds of weight[k + 1] / weight[k] times 2^width, for k < cells; the last one bounds all further ratios too.

        The ratios p (k + shape)/(k + 1) increase to p, so p is the upper bound of the last one.
        """
        low, high = exp_minus(1 / Fraction(self.scale), width)
        part, whole = self.shape.as_integer_ratio()
        for k in range(cells - 1):
            above, below = k * whole + part, (k + 1) * whole
            yield low * above // below, -(-high * above // below)
        yield 0, high


Law = GaussianMagnitude | Geometric | Polya
"""Cells 0, 1, 2, ..., where cell 0 has weight 1. No later ratio of successive weights exceeds the bound of the last
requested ratio, because ratios never increase, or (Polya) because that bound also covers all later ratios."""


def cumulative_bounds(law: Law, length: int) -> Bounds:
    """Bounds of the cumulative probabilities of a law, times 2^length; takes 2 µs per cell for 62 digits.

    Raises:
        ArithmeticError: if the table ends before its tail can be bounded; increase `cells`.
    """
    cells, width = law.cells(length), 2 * length + 64
    low = high = 1 << width
    lows, highs, tail = [low], [high], 0
    for cell, (low_ratio, high_ratio) in enumerate(law.ratios(cells, width), start=1):
        if cell < cells:
            low, high = low * low_ratio >> width, _shift_up(high * high_ratio, width)
            lows.append(lows[-1] + low)
            highs.append(highs[-1] + high)
        elif not law.finite:  # no later ratio exceeds the bound of this one, so a geometric series bounds the tail
            if high_ratio >= 1 << width:
                raise ArithmeticError(f"{law} has no bounded tail after {cells} cells; increase its `cells`")
            tail = 1 + high * high_ratio // ((1 << width) - high_ratio)
    return normalised_bounds(lows, highs, tail, length)


def normalised_bounds(lows: list[int], highs: list[int], tail: int, length: int) -> Bounds:
    """Bounds of F_j 2^length from bounds of the cumulative sums of weights and of the weight `tail` beyond them.

    Without a tail the last entry is exactly 2^length. With a tail its upper bound is 2^length, so a word
    above its lower bound stays undecided and is refined with a longer table.
    """
    end = 1 << length
    below = [(total << length) // (highs[-1] + tail) for total in lows]
    above = [min(end, 1 + (total << length) // lows[-1]) for total in highs]
    above[-1] = end
    if not tail:
        below[-1] = end
    return below, above


def exp_minus(x: Fraction, width: int) -> tuple[int, int]:
    """Integers low <= exp(-x) 2^width <= high, at most 3 apart, for a rational x >= 0.

    The quotient and decimal's exp are correctly rounded, so the error of exp(-x) is less than
    (x + 1) 10^(1-digits), which for x <= width and the chosen number of digits is less than 2^-width: one unit,
    and one more for the floor.
    """
    if x > width:
        return 0, 1
    context = Context(prec=width // 3 + 25, rounding=ROUND_HALF_EVEN)
    value = context.exp(context.divide(Decimal(-x.numerator), Decimal(x.denominator)))
    numerator, denominator = value.as_integer_ratio()
    floor = (numerator << width) // denominator
    return max(0, floor - 1), floor + 2


def _shift_up(value: int, width: int) -> int:
    """value / 2^width, rounded up."""
    return -(-value >> width)


def decide(word: int, bounds: Callable[[int], Bounds], more: Words) -> int:
    """The cell of the uniform number that starts with the 62 digits of `word`; more digits are drawn if undecided.

    Each round stays undecided with a probability of about 2^-64 per cell, so the loop ends. The cell has exactly
    the law that `bounds` (from a length to bounds of that length) encloses ever more closely.
    """
    length = DIGITS
    while True:
        low, high = bounds(length)
        # The number lies in [word, word + 1) 2^-length: F_j is certainly at most that if high_j <= word, and
        # certainly above it if low_j > word.
        cell = bisect_right(high, word)
        if cell == bisect_right(low, word):
            return cell
        word = word << 64 | int(more(1)[0])
        length += 64


@dataclass(frozen=True, eq=False)
class Table:
    """The first look-up of many words at once: bounds at 62 digits, and a guide indexed by the leading digits."""

    law: Law
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    guide: NDArray[np.int64]  # the cell of all words with these leading digits; -1 if they have different cells
    shift: int

    def cells(self, words: NDArray[np.int64], more: Words) -> NDArray[np.int64]:
        """The cell of each 62-digit word, same shape; undecided words are refined one by one."""
        cells: NDArray[np.int64] = self.guide[words >> self.shift]
        unsettled = np.flatnonzero(cells < 0)
        if unsettled.size:
            rest = words[unsettled]
            sure = np.searchsorted(self.high, rest, side="right")
            cells[unsettled] = sure
            for i in unsettled[sure != np.searchsorted(self.low, rest, side="right")]:
                cells[i] = decide(int(words[i]), lambda length: cumulative_bounds(self.law, length), more)
        return cells


@lru_cache(maxsize=64)  # at most 1.2 MB each
def table(law: Law) -> Table:
    """The table of a law, cached."""
    low, high = (np.array(bound, dtype=np.int64) for bound in cumulative_bounds(law, DIGITS))
    leading = min(16, max(8, (16 * low.size).bit_length()))  # about one in 16 patterns, or fewer, contains a threshold
    shift = DIGITS - leading
    first = np.arange(1 << leading, dtype=np.int64) << shift
    sure = np.searchsorted(high, first, side="right")
    settled = sure == np.searchsorted(low, first + ((1 << shift) - 1), side="right")
    return Table(law, low, high, np.where(settled, sure, -1), shift)
