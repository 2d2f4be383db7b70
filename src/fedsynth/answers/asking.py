"""Declared questions put to sites before a run's method, for a reserved part of its budget."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedsynth.answers.declared import Declared, compiled, look_query
from fedsynth.answers.questions import NoisyTable, Scope
from fedsynth.answers.ranges import Range, found_range
from fedsynth.answers.results import Answers
from fedsynth.errors import Unsupported
from fedsynth.federation.federation import Federation
from fedsynth.methods.measure import EXACT_STD
from fedsynth.models.tilt import Tilt, tilted

if TYPE_CHECKING:
    from fedsynth.models.synthesizer import Synthesizer

LOOK = 0.15
"""Part of the questions' share that the first look gets, if any question names a number."""


def ask(declared: Declared, federation: Federation) -> tuple[Federation, Answers]:
    """Put the questions to the sites; return the federation with what is left of the budget, and the answers.

    The first look and the questions are two sums (:class:`~fedsynth.federation.weighted.WeightedCounts`), charged like
    any other. Everything else is a function of what they release. Raises :class:`Unsupported` under a trust model that
    has no sums, and :class:`InvalidParameter` or :class:`~fedsynth.errors.SchemaError` for questions that do not fit
    the schema.
    """
    schema, share = federation.schema, declared.answer_share
    if federation.trust.sums is None:
        raise Unsupported(
            f"declared questions need sums over sites, which --trust {federation.trust.name} does not have; leave them "
            "out, or choose another trust"
        )
    declared.check(schema)
    columns, ranges = declared.looked_at(schema), dict[int, Range]()
    if columns:
        look = federation.sum(look_query(columns), share * LOOK)
        for (at, column), counts, std in zip(columns.items(), look.tables, look.stds, strict=True):
            ranges[at] = found_range(column, counts, max(std, EXACT_STD))
            if (clip := declared.clips.get(column.name)) is not None:
                ranges[at] = ranges[at].clipped(max(clip[0], column.low), min(clip[1], column.high))
    query, _ = compiled(declared.all, Scope(schema, declared.cuts, ranges))
    released = federation.sum(query, share * (1 - LOOK) if columns else share)
    tables = tuple(map(NoisyTable, released.tables, released.stds))
    left = replace(federation, part=federation.part * (1 - share))
    return left, Answers.of(declared, schema, ranges, tables)


@dataclass(frozen=True, eq=False)
class Questioned:
    """A method whose federation is asked declared questions first, and whose rows agree with the answers."""

    declared: Declared
    method: Any

    def fit(self, federation: Federation) -> Synthesizer:
        """Ask the questions, fit the method with the rest of the budget, and tilt its rows towards the answers.

        Rows are drawn whole, so that no sum is pulled closer than to what a single row may add to it.
        """
        left, answers = ask(self.declared, federation)
        synthesizer: Synthesizer = self.method.fit(left)
        query, _ = compiled(self.declared.all, answers.scope(federation.schema))
        tables = answers.tables
        tilt = tilted(
            synthesizer,
            Tilt(query.axes, query.weights, query.tables),
            [table.values for table in tables],
            [max(table.std, of_row) for table, of_row in zip(tables, query.largest, strict=True)],
        )
        return replace(synthesizer, tilt=tilt, info={**synthesizer.info, "answers": answers.to_json()})
