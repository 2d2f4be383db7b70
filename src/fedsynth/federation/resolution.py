"""The resolution of a run: which groups of rows, relations and trainings stand out from its noise, at no privacy cost.

Everything here follows from public facts (the questions, their noise, the number of sites) and from released numbers (a
noisy number of rows, synthetic rows). No real row is read.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from fedsynth.cliques import Clique
from fedsynth.federation.query import AnyQuery, Counts, Query, Training
from fedsynth.federation.quote import Quote, noise_of
from fedsynth.privacy.cost import Budget, epsilon_of
from fedsynth.privacy.ledger import Entry
from fedsynth.privacy.noise import noise_std
from fedsynth.schema import Schema
from fedsynth.text import rows_text, two_digits

if TYPE_CHECKING:
    from fedsynth.federation.federation import Federation
    from fedsynth.rows import Table

TWICE = 2.0
"""A count below so many standard deviations of its noise may be noise alone."""
DROWNED = 0.1
"""Share of the rows: tables with more noise than that in a cell show no relations between columns."""
UNTRAINED = 0.08
"""Share of the clip norm: more noise than that in the mean gradient of all steps hides what a network would learn."""
STRONG, CLEAR, LOOK = 0.5, 4.0, 0.1
"""A balanced pair with Cramér's V of 0.5 has to stand out by 4 standard deviations, at a tenth of the budget."""

_log = logging.getLogger(__name__)


# ---------------------------------------------------------------------------------------------------------------------
# Noise of the questions


def say_nothing(sentence: str) -> None:
    """Ignore a warning; for the ``tell`` of a :class:`NoiseRecord` whose warnings are read later."""


@dataclass(eq=False)
class NoiseRecord:
    """The noise of a run's questions; its federation notes each as it is asked, before any site answers.

    ``tables`` holds, for every column and pair of columns that was counted (positions in ``schema.stored``, ascending),
    the smallest standard deviation of the noise in a count, in rows of all sites. Sums over larger tables count as
    tables, but not for a single column whose values they merge. ``training`` is the noise of all training steps
    together: the L2 norm of the noise in the mean of their mean gradients, in units of the clip norm, times the number
    of rows. ``summed`` says whether tables of several columns were summed over sites, and ``chosen`` whether sites or a
    vault were to select tables.

    ``rows`` is the number of rows of all sites; ``None`` until it is known. From then on ``tell(sentence)`` is called
    once for each of :meth:`drowned`.
    """

    rows: float | None = None
    tell: Callable[[str], None] = _log.warning
    tables: dict[Clique, float] = field(default_factory=dict)
    training: float = 0.0
    summed: bool = False
    chosen: bool = False
    _told: set[str] = field(default_factory=set)

    def add(self, quote: Quote, entry: Entry, budget: Budget, sites: int) -> None:
        """Note a question with its ledger ``entry``."""
        query, asked = quote.request.query, max(1, len(entry.sites))
        self.chosen |= entry.verb in ("choose", "deposit")
        if isinstance(query, Training):
            std = entry.std if entry.verb == "sum" else noise_std(noise_of(entry.release), quote.norms) * asked**0.5
            norm = math.sqrt(entry.cells) * std / (query.rate * query.sensitivity(quote.schema).l2) * sites / asked
            # The mean of T steps has 1 / sqrt(T) of the noise of one, and all T cost the budget together.
            self.training = norm * math.sqrt(budget.share_of(entry.cost) / query.steps)
        elif not math.isnan(entry.std):
            own = asked**0.5 if entry.verb == "each" else 1.0  # in the sum of the sites' own answers
            unit = query.unit if isinstance(query, Query) else 1.0
            self.count(query, quote.schema, entry.std * unit * own * sites / asked)
            self.summed |= any(len(columns) > 1 for columns in self.tables)
        self.warn(budget)

    def count(self, query: AnyQuery, schema: Schema, std: float) -> None:
        """Note released tables: ``std`` is the standard deviation of the noise in each number of the flat answer."""
        if isinstance(query, Query):
            for columns, noise in query.noise_of_counts(schema, std):
                self.tables[columns] = min(noise, self.tables.get(columns, math.inf))

    def times(self, factor: float) -> NoiseRecord:
        """Return the same noise for ``factor`` times as many rows, in each of which it is the same share."""
        tables = {columns: factor * std for columns, std in self.tables.items()}
        return replace(self, tables=tables, training=factor * self.training)

    def warn(self, budget: Budget) -> None:
        """Tell what the noise drowns, each sentence once, if the number of rows is known."""
        for what, sentence in self.drowned(budget, self.rows).items() if self.rows else ():
            if what not in self._told:
                self._told.add(what)
                self.tell(sentence)

    def typical(self, order: int) -> float | None:
        """Return the median noise in a count of ``order`` (1 or 2) columns, in rows; ``None`` if none was counted."""
        found = [std for clique, std in self.tables.items() if len(clique) == order]
        return statistics.median(found) if found else None

    def drowned(self, budget: Budget, rows: float) -> dict[str, str]:
        """Return a sentence with a remedy for each thing ("training", "tables") whose noise drowns ``rows`` rows."""
        found = {}
        if (much := self.training / (UNTRAINED * rows)) > 1:
            found["training"] = (
                f"noise drowns this training: over all its steps it is {self.training / rows:.2g} of the clip norm, "
                f"and networks learn little from {UNTRAINED:g} on. A network needs about epsilon "
                f"{_epsilon(budget, much)}, {rows_text(rows * much)}, or {two_digits(100 / much**2)} % of its weights; "
                "the method auto counts tables instead"
            )
        noise = self.typical(2) or 0.0
        if (much := noise / (DROWNED * rows)) > 1:
            found["tables"] = (
                f"noise drowns these tables: its standard deviation in a cell, {rows_text(noise)}, is more than a "
                f"tenth of all {rows_text(rows)}. Relations of columns need about epsilon {_epsilon(budget, much)}, "
                f"{rows_text(rows * much)}, or fewer columns"
            )
        return found


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
        f"analysis needs, or take about epsilon {_epsilon(budget, much)} or {rows_text(rows * much)}",
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


def _epsilon(budget: Budget, much: float) -> str:
    """Return the epsilon at which the noise of tables is smaller by the factor ``much``, at the same delta."""
    if budget.pure:
        return two_digits(budget.epsilon * much)
    return two_digits(epsilon_of(budget.rho * much**2, budget.delta))
