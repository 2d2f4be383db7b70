"""Exact inversion sampling: turns uniform random numbers into draws from a discrete law. Used only by `noise`.

A law (probability distribution) is a sequence of cells 0, 1, 2, ..., its possible outcomes; the ratios of successive
cells' probabilities are known exactly. `cumulative_bounds` turns these ratios into lower and upper bounds of the
cumulative probabilities by integer interval arithmetic, so the bounds hold at any precision. A uniform number is known
by its first binary digits, a word; `LookupTable` finds the cell between whose bounds it lies, for many numbers at once.
If the word leaves the cell undecided, which is the rarer the higher the precision, `decide` draws more digits. The
infinite tail is one such undecided case: the longer the word, the further the bounds reach.
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
    """The law of |k| for a discrete Gaussian k of parameter ``sigma``.

    Cell k has the unnormalised weight 1 for k = 0 and 2 exp(-k²/(2σ²)) above. ``finite`` is false: there is no last
    cell.
    """

    sigma: float
    finite = False

    def cells(self, length: int) -> int:
        """Return the number of cells beyond which the tail's probability is about ``2**-length``."""
        return 4 + math.ceil(self.sigma * math.sqrt(2 * math.log(2) * length))

    def ratios(self, cells: int, width: int) -> Iterator[tuple[int, int]]:
        """Yield integers (low, high) around the ratio of the weights of cells k + 1 and k, times ``2**width``.

        k runs from 0 to ``cells`` - 1. The ratios are 2a, a³, a⁵, ... with a = exp(-1/(2σ²)).
        """
        low, high = exp_minus(1 / (2 * Fraction(self.sigma) ** 2), width)
        low_square, high_square = low * low >> width, _shift_up(high * high, width)
        yield 2 * low, 2 * high
        for _ in range(cells - 1):
            low, high = low * low_square >> width, _shift_up(high * high_square, width)
            yield low, high


@dataclass(frozen=True)
class Geometric:
    """The law of a geometric integer, or of one of its digits.

    Cell k has the unnormalised weight exp(-k step/scale). With ``base`` = ``None``, the cells are all k >= 0. With a
    ``base``, they are k < ``base``: the law of one digit, in that base, of a geometric integer of this ``scale``, where
    the digit counts multiples of ``step``.
    """

    scale: float
    step: int
    base: int | None

    @property
    def finite(self) -> bool:
        """Whether there is a last cell, so that no tail needs a bound."""
        return self.base is not None

    def cells(self, length: int) -> int:
        """Return the number of cells as for :class:`GaussianMagnitude`; a law with a ``base`` has exactly that many."""
        return self.base or 4 + math.ceil(self.scale / self.step * math.log(2) * length)

    def ratios(self, cells: int, width: int) -> Iterator[tuple[int, int]]:
        """Yield ratios as for :class:`GaussianMagnitude`; all are equal."""
        ratio = exp_minus(self.step / Fraction(self.scale), width)
        for _ in range(cells):
            yield ratio


@dataclass(frozen=True)
class Polya:
    """The Polya (negative binomial) law of ratio p = exp(-1/``scale``).

    Cell k >= 0 has the weight prod_{j<k} (j + shape)/(j + 1) p^k. ``shape`` is at most 1; for 1 the law is geometric.
    """

    scale: float
    shape: Fraction
    finite = False

    def cells(self, length: int) -> int:
        """Return the number of cells as for :class:`GaussianMagnitude`, by the geometric law's heavier tail."""
        return 4 + math.ceil(self.scale * math.log(2) * length)

    def ratios(self, cells: int, width: int) -> Iterator[tuple[int, int]]:
        """Yield ratios as for :class:`GaussianMagnitude`.

        The ratios p (k + shape)/(k + 1) increase to p. So p is the upper bound of the last one, and of all further
        ratios.
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
    """Return integer bounds of a law's cumulative probabilities F_j, times ``2**length``: sorted lists, low and high.

    F_j is the probability of cells 0 to j, for as many cells as ``law.cells(length)`` counts; 2 µs each for 62 digits.
    Raises ``ArithmeticError`` if the law has too few cells to bound its tail.
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
    """Return the bounds of :func:`cumulative_bounds` from sums of unnormalised weights.

    ``lows[j]`` and ``highs[j]`` bound the sum of the weights of cells 0 to j, and ``tail`` bounds the weight of all
    further cells from above; all are integers on one common scale, which cancels.

    Without a tail (0) the last entry of both lists is 2^length. With a tail only the last entry of the upper bounds is:
    a uniform number above the last lower bound is undecided, and more of its digits are drawn for a longer table.
    """
    end = 1 << length
    below = [(total << length) // (highs[-1] + tail) for total in lows]
    above = [min(end, 1 + (total << length) // lows[-1]) for total in highs]
    above[-1] = end
    if not tail:
        below[-1] = end
    return below, above


def exp_minus(x: Fraction, width: int) -> tuple[int, int]:
    """Return integers (low, high) with low <= exp(-x) 2^width <= high, at most 3 apart, for a rational ``x`` >= 0.

    The quotient and decimal's exp are correctly rounded, so the error of exp(-x) is less than (x + 1) 10^(1-digits),
    which for x <= width and the chosen number of digits is less than 2^-width: one unit, and one more for the floor.
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
    """Return the cell into which a uniform number falls, drawing further binary digits of it until the cell is certain.

    ``word`` is the number's first 62 digits as an integer, ``bounds(length)`` returns the :data:`Bounds`, and
    ``more(n)`` the next n uniform 64-bit words.

    Each round stays undecided with a probability of about 2^-64 per cell, so the loop ends. The cell has exactly the
    law that the ``bounds`` enclose ever more closely as the length grows.
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
class LookupTable:
    """The first look-up of many uniform numbers at once among the cells of a ``law``; made by :func:`table`.

    ``low`` and ``high`` are the bounds of :func:`cumulative_bounds` at 62 digits (int64, one entry per cell). ``guide``
    is indexed by a number's 62 digits shifted right by ``shift``.
    """

    law: Law
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    guide: NDArray[np.int64]  # the cell of all words with these leading digits; -1 if they have different cells
    shift: int

    def cells(self, words: NDArray[np.int64], more: Words) -> NDArray[np.int64]:
        """Return the cell into which each uniform number falls: int64, same shape as ``words``, their first 62 digits.

        Numbers that the table leaves undecided are refined one by one with random words from ``more(n)``.
        """
        cells: NDArray[np.int64] = self.guide[words >> self.shift]
        unsettled = np.flatnonzero(cells < 0)
        if unsettled.size:
            rest = words[unsettled]
            sure = np.searchsorted(self.high, rest, side="right")
            cells[unsettled] = sure
            for i in unsettled[sure != np.searchsorted(self.low, rest, side="right")]:
                cells[i] = decide(int(words[i]), lambda length: cumulative_bounds(self.law, length), more)
        return cells


@lru_cache(maxsize=64)  # at most 3.4 MB each
def table(law: Law) -> LookupTable:
    """Return the look-up table from which :mod:`~fedsynth.privacy.noise` samples a ``law``; 64 tables are cached."""
    low, high = (np.array(bound, dtype=np.int64) for bound in cumulative_bounds(law, DIGITS))
    leading = min(16, max(8, (16 * low.size).bit_length()))  # at most one in 16 patterns (Polya: 4) has a threshold
    shift = DIGITS - leading
    first = np.arange(1 << leading, dtype=np.int64) << shift
    sure = np.searchsorted(high, first, side="right")
    settled = sure == np.searchsorted(low, first + ((1 << shift) - 1), side="right")
    return LookupTable(law, low, high, np.where(settled, sure, -1), shift)
