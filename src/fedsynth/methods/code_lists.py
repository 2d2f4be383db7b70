"""Code lists: categories of so many public values, such as a classification of diseases, that most of them have no row.

Noise gives a count to every code of a list, so that a quarter of the rows would get one that no row has. The codes that
stand out from the largest noise to be expected among all of them stay; the rows of the others are given to the longest
listed code with which theirs begins ("E11" for "E11.9") if these rows together stand out, and otherwise to "other".
What stays is a function of released counts, and costs nothing more.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedsynth.methods.measure import EXACT_STD
from fedsynth.schema.bins import Floats, Integers
from fedsynth.schema.columns import Categorical, Column

if TYPE_CHECKING:
    from fedsynth.models.adaptive_bins import AdaptiveBins

LISTED = 1000  # a category with "other" and more values than this is a code list
SHARE = 0.05  # part of the budget for which a survey counts a code list, at least


def is_code_list(column: Column) -> bool:
    """Return whether a column is a code list: a category of over 1,000 values, with "other" for those not listed."""
    return isinstance(column, Categorical) and len(column.values) > LISTED and "other" in column.labels


def at_least(prices: list[float], lists: list[int], share: float) -> list[float]:
    """Return the ``prices`` of a survey's tables with those at the places ``lists`` raised to :data:`SHARE` each.

    ``share`` is the survey's share of the budget, of which other tables keep at least half.
    """
    if not lists:
        return prices
    part = min(SHARE / share, 0.5 / len(lists))
    others = sum(price for at, price in enumerate(prices) if at not in lists)
    least = others * part / (1 - part * len(lists))
    return [max(price, least) if at in lists else price for at, price in enumerate(prices)]


def kept_codes(column: Categorical, cells: AdaptiveBins, counts: Floats, std: float, total: float) -> AdaptiveBins:
    """Return the cells of a code list with the rows of hidden codes given to shorter codes, or to "other".

    ``counts`` are the noisy counts of the codes, shape ``(codes,)``, with noise of ``std`` rows in each, of about
    ``total`` rows. A code stays if its count exceeds std sqrt(2 ln codes), about the largest of so many draws of noise.
    Each code that stays is a group with those whose rows it gets.
    """
    labels, other = column.labels, column.labels.index("other")
    clear = max(std, EXACT_STD) * math.sqrt(2 * math.log(len(counts)))
    above = _shorter(column)
    rows, many, kept = counts.copy(), np.ones(len(counts)), np.zeros(len(counts), dtype=bool)
    kept[[other, *range(len(labels), len(counts))]] = True
    target = np.where(above < 0, other, above)
    for code in sorted(range(len(labels)), key=lambda code: -len(str(labels[code]))):
        kept[code] |= rows[code] > clear * math.sqrt(many[code])
        if not kept[code] and above[code] >= 0:
            rows[target[code]] += rows[code]
            many[target[code]] += many[code]
    held = np.arange(len(counts))
    for code in sorted(range(len(labels)), key=lambda code: len(str(labels[code]))):
        held[code] = code if kept[code] else held[target[code]] if above[code] >= 0 else other
    found = np.where(kept, np.maximum(rows, 0.0), 0.0)
    found[other] = 0.0
    found *= min(1.0, total / max(float(found.sum()), EXACT_STD))
    found[other] = max(total - float(found.sum()), 0.0)
    variances = np.where(kept, std**2 * many, EXACT_STD**2)
    _, groups = np.unique(held, return_inverse=True)
    return replace(cells, groups=groups, counts=found, variances=variances)


def _shorter(column: Categorical) -> Integers:
    """Return the code of the longest other listed value with which each value begins, -1 without one: ``(codes,)``."""
    codes = {str(label): code for code, label in enumerate(column.labels)}
    found = np.full(column.size, -1)
    for text, code in codes.items():
        found[code] = next((codes[text[:end]] for end in range(len(text) - 1, 0, -1) if text[:end] in codes), -1)
    return found
