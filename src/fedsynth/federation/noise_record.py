"""The noise of a run's questions, and what it drowns, from public facts alone."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from fedsynth.cliques import Clique
from fedsynth.federation.query import AnyQuery, Query, Training
from fedsynth.federation.quote import Quote, noise_of
from fedsynth.privacy.cost import Budget, epsilon_of
from fedsynth.privacy.ledger import Entry
from fedsynth.privacy.noise import noise_std
from fedsynth.schema import Schema
from fedsynth.text import rows_text, two_digits

DROWNED = 0.1
"""Share of the rows: tables with more noise than that in a cell show no relations between columns."""
UNTRAINED = 0.08
"""Share of the clip norm: more noise than that in the mean gradient of all steps hides what a network would learn."""

_log = logging.getLogger(__name__)


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
                f"{epsilon_for(budget, much)}, {rows_text(rows * much)}, or {two_digits(100 / much**2)} % of its "
                "weights; the method auto counts tables instead"
            )
        noise = self.typical(2) or 0.0
        if (much := noise / (DROWNED * rows)) > 1:
            found["tables"] = (
                f"noise drowns these tables: its standard deviation in a cell, {rows_text(noise)}, is more than a "
                f"tenth of all {rows_text(rows)}. Relations of columns need about epsilon {epsilon_for(budget, much)}, "
                f"{rows_text(rows * much)}, or fewer columns"
            )
        return found


def epsilon_for(budget: Budget, much: float) -> str:
    """Return the epsilon at which the noise of tables is smaller by the factor ``much``, at the same delta."""
    if budget.pure:
        return two_digits(budget.epsilon * much)
    return two_digits(epsilon_of(budget.rho * much**2, budget.delta))
