"""Exact inversion: which cell of a discrete law holds a uniform number, for `noise` alone.

A law is a sequence of cells whose ratios of successive weights are known exactly. `cumulative_bounds` turns
them into lower and upper bounds of the cumulative probabilities by integer interval arithmetic, so that the
bounds hold whatever the precision; precision only sets how rarely a word is in doubt. A uniform number, known
by its first binary digits, is located between those bounds by `Table`, many at once, or, in doubt, refined by
`decide`. The infinite tail is such a doubt too: the longer the word, the further the bounds reach.
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
"""Digits of a uniform number that are looked up first: 2^62 itself fits an int64 and a word leaves a sign."""

Bounds = tuple[list[int], list[int]]
"""low_j <= F_j 2^length <= high_j for the cumulative probabilities F_0 <= F_1 <= ..., in two sorted lists."""

Words = Callable[[int], NDArray[np.uint64]]
"""The next n uniform 64-bit words."""


@dataclass(frozen=True)
class GaussianMagnitude:
    """|k| for the discrete Gaussian law: weights 1, then 2 exp(-k²/(2σ²))."""

    sigma: float
    finite = False

    def cells(self, length: int) -> int:
        """How many cells leave a tail of about 2^-length."""
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
    """Weights exp(-k step/scale): for all k >= 0, or only for k < base where a base is given."""

    scale: float
    step: int
    base: int | None

    @property
    def finite(self) -> bool:
        """Whether the last cell ends the law."""
        return self.base is not None

    def cells(self, length: int) -> int:
        """How many cells leave a tail of about 2^-length."""
        return self.base or 4 + math.ceil(self.scale / self.step * math.log(2) * length)

    def ratios(self, cells: int, width: int) -> Iterator[tuple[int, int]]:
        """Bounds of weight[k + 1] / weight[k] times 2^width, for k < cells."""
        ratio = exp_minus(self.step / Fraction(self.scale), width)
        for _ in range(cells):
            yield ratio


@dataclass(frozen=True)
class Polya:
    """The negative binomial law of a shape of at most 1 and ratio p = exp(-1/scale); of shape 1 it is geometric.

    Weights prod_{j<k} (j + shape)/(j + 1) p^k for k >= 0.
    """

    scale: float
    shape: Fraction
    finite = False

    def cells(self, length: int) -> int:
        """How many cells leave a tail of about 2^-length (its weights are below those of the geometric law)."""
        return 4 + math.ceil(self.scale * math.log(2) * length)

    def ratios(self, cells: int, width: int) -> Iterator[tuple[int, int]]:
        """Bounds of weight[k + 1] / weight[k] times 2^width, for k < cells; the last bounds all further ones too.

        The ratios p (k + shape)/(k + 1) rise to p, so p is the upper bound of the last.
        """
        low, high = exp_minus(1 / Fraction(self.scale), width)
        part, whole = self.shape.as_integer_ratio()
        for k in range(cells - 1):
            above, below = k * whole + part, (k + 1) * whole
            yield low * above // below, -(-high * above // below)
        yield 0, high


Law = GaussianMagnitude | Geometric | Polya
"""Cells 0, 1, 2, ..., cell 0 being the unit of weight. No ratio of successive weights exceeds the bound given for the
last one asked for, because they never increase, or (Polya) because that is bounded together with all beyond."""


def cumulative_bounds(law: Law, length: int) -> Bounds:
    """Bounds of the cumulative probabilities of a law, times 2^length; 2 µs a cell for 62 digits.

    Raises:
        ArithmeticError: if the table ends before its tail can be bounded: let `cells` reach further.
    """
    cells, width = law.cells(length), 2 * length + 64
    low = high = 1 << width
    lows, highs, tail = [low], [high], 0
    for cell, (low_ratio, high_ratio) in enumerate(law.ratios(cells, width), start=1):
        if cell < cells:
            low, high = low * low_ratio >> width, _shift_up(high * high_ratio, width)
            lows.append(lows[-1] + low)
            highs.append(highs[-1] + high)
        elif not law.finite:  # no ratio beyond exceeds this one's bound, so a geometric series bounds the tail
            if high_ratio >= 1 << width:
                raise ArithmeticError(f"{law} has no bounded tail after {cells} cells: raise its `cells`")
            tail = 1 + high * high_ratio // ((1 << width) - high_ratio)
    return normalised_bounds(lows, highs, tail, length)


def normalised_bounds(lows: list[int], highs: list[int], tail: int, length: int) -> Bounds:
    """Bounds of F_j 2^length from bounds of the running sums of weights and of the weight `tail` beyond them.

    The last entry is exactly 2^length without a tail. With one its upper bound is 2^length, so that a word
    above its lower bound stays in doubt and is refined with a longer table.
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

    The quotient and decimal's exp are correctly rounded, so exp(-x) is off by less than
    (x + 1) 10^(1-digits), which for x <= width and the digits chosen is less than 2^-width: one unit, and
    another for the floor.
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
    """The cell of the uniform number that starts with the 62 digits of `word`; in doubt more are drawn.

    Each round leaves doubt with a probability of about 2^-64 per cell, so it ends, and the cell has exactly
    the law that `bounds` (from a length to bounds at that length) encloses ever more closely.
    """
    length = DIGITS
    while True:
        low, high = bounds(length)
        # The number lies in [word, word + 1) 2^-length: F_j is surely at most that if high_j <= word, and
        # surely above it if low_j > word.
        cell = bisect_right(high, word)
        if cell == bisect_right(low, word):
            return cell
        word = word << 64 | int(more(1)[0])
        length += 64


@dataclass(frozen=True, eq=False)
class Table:
    """The first look-up of many words at once: bounds at 62 digits and a guide on the leading digits."""

    law: Law
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    guide: NDArray[np.int64]  # the cell of the words with these leading digits; -1 where they differ
    shift: int

    def cells(self, words: NDArray[np.int64], more: Words) -> NDArray[np.int64]:
        """The cell of each 62-digit word, same shape; words in doubt are refined one by one."""
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
    """The table of a law, built once."""
    low, high = (np.array(bound, dtype=np.int64) for bound in cumulative_bounds(law, DIGITS))
    leading = min(16, max(8, (16 * low.size).bit_length()))  # at most about a pattern in 16 holds a threshold
    shift = DIGITS - leading
    first = np.arange(1 << leading, dtype=np.int64) << shift
    sure = np.searchsorted(high, first, side="right")
    settled = sure == np.searchsorted(low, first + ((1 << shift) - 1), side="right")
    return Table(law, low, high, np.where(settled, sure, -1), shift)
