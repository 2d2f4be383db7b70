"""The resolution of a run: which groups of rows, relations and trainings stand out from its noise, at no privacy cost.

Everything here follows from public facts (the questions, their noise, the number of sites) and from released numbers (a
noisy number of rows, synthetic rows). No real row is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsynth.federation.noise_record import epsilon_for
from fedsynth.federation.query import Counts
from fedsynth.text import rows_text

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.rows import Table

TWICE = 2.0
"""A count below so many standard deviations of its noise may be noise alone."""
STRONG, CLEAR, LOOK = 0.5, 4.0, 0.1
"""A balanced pair with Cramér's V of 0.5 has to stand out by 4 standard deviations, at a tenth of the budget."""


# ---------------------------------------------------------------------------------------------------------------------
# Columns


@dataclass(frozen=True)
class CarriedColumns:
    """How many of ``columns`` columns a run can relate to each other: ``carried``, and a ``warning`` if not all."""

    columns: int
    carried: int
    warning: str = ""


def columns_carried(federation: Federation, rows: float, columns: int) -> CarriedColumns:
    """Return among how many of ``columns`` columns strong relations stand out from the noise, without asking a site.

    A relation is strong if Cramér's V is 0.5 after either column is halved into +1 and -1; then the sum of products
    over ``rows`` rows is 0.5 ``rows`` away from that of independent columns. It stands out if this is at least 4
    standard deviations of the noise that one number per pair has at a tenth of the budget. A product changes by at most
    1 if a record is added or removed, as a cell of a table does, and by 2 if it is replaced, where cells change by 1
    twice: sqrt(2) times the noise of tables. Raises :class:`Unsupported` under a trust model without sums.
    """
    replaced = math.sqrt(2) if federation.terms.public_sizes else 1.0

    def excess(many: int) -> float:
        query = Counts.of(1, [(0,)] * max(1, many * (many - 1) // 2))
        return CLEAR * replaced * federation.std(query, LOOK) / (STRONG * max(rows, 1.0))

    if columns < 2 or (much := excess(columns)) <= 1:
        return CarriedColumns(columns, columns)
    low, high = 1, columns  # so many are carried, so many are not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if excess(middle) <= 1 else (low, middle)
    budget = federation.budget
    among = f"only among {low} of them" if low > 1 else "between no two of them"
    return CarriedColumns(
        columns,
        low,
        f"which of the {columns} columns are related is partly a guess: with {rows_text(rows)} at epsilon "
        f"{budget.epsilon:.3g}, strong relations (Cramér's V of 0.5) stand out {among}. Leave out the columns that no "
        f"analysis needs, or take about epsilon {epsilon_for(budget, much)} or {rows_text(rows * much)}",
    )


def weakest_columns(table: Table, count: int) -> list[str]:
    """Return the names of the ``count`` columns of a table whose strongest relation is the weakest, that one first.

    Both columns of a pair are halved, by the order of their codes and by their values' frequency; the strength is the
    larger absolute correlation. For synthetic rows, it costs no privacy.
    """
    halves = []
    for codes in table.codes:
        many = np.bincount(codes)
        for place in (np.arange(len(many)), np.argsort(np.argsort(-many, kind="stable"))):
            before = np.cumsum(np.bincount(place, weights=many))
            upper = place > int(np.argmin(np.abs(before - before[-1] / 2)))
            half = upper[codes].astype(np.float64) - upper[codes].mean()
            halves.append(half / max(float(np.linalg.norm(half)), 1.0))
    sides = np.stack(halves)
    strength = np.abs(sides @ sides.T).reshape(len(table.codes), 2, len(table.codes), 2).max(axis=(1, 3))
    np.fill_diagonal(strength, 0.0)
    order = np.argsort(strength.max(axis=0), kind="stable")
    return [table.schema.stored[at].name for at in order[:count]]


# ---------------------------------------------------------------------------------------------------------------------
# Summary


@dataclass(frozen=True)
class Resolution:
    """What stands out from the noise of a planned run, from public facts alone.

    ``value`` and ``crossing`` are the smallest groups, in rows: twice the typical noise in a count of a value of one
    column, and of a combination of values of two; ``None`` if the run counts none. ``carried`` is that of
    :class:`CarriedColumns`; ``None`` unless relations are found in sums of tables. ``warnings`` are sentences about
    what the noise drowns.
    """

    value: float | None = None
    crossing: float | None = None
    carried: int | None = None
    warnings: tuple[str, ...] = ()


def resolution(federation: Federation, rows: float) -> Resolution:
    """Return what stands out from the noise of a run that is over, or of a dry run, if its sites have ``rows`` rows."""
    noise, carried = federation.noise, None
    value, crossing = (None if (std := noise.typical(order)) is None else TWICE * std for order in (1, 2))
    warnings = list(noise.drowned(federation.budget, rows).values())
    if noise.summed and not noise.chosen:
        found = columns_carried(federation, rows, len(federation.schema.stored))
        carried = found.carried
        warnings += [found.warning] if found.warning else []
    return Resolution(value, crossing, carried, tuple(warnings))
