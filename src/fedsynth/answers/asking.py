"""Declared questions put to sites before a run's method, and after it, for a reserved part of its budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedsynth.answers.declared import Declared, compiled, look_query
from fedsynth.answers.queries import SiteDistances
from fedsynth.answers.questions import AUC, NoisyTable, Scope, Sites
from fedsynth.answers.ranges import Range, found_range
from fedsynth.answers.results import Answers
from fedsynth.answers.scorer import fitted_scorer
from fedsynth.errors import Unsupported
from fedsynth.federation.federation import Federation, Sum
from fedsynth.methods.measure import EXACT_STD
from fedsynth.models.tilt import Tilt, tilted

if TYPE_CHECKING:
    from fedsynth.models.synthesizer import Synthesizer

LOOK = 0.1
"""Part of the questions' share that the first look gets, if any question names a number."""
SLACKS = 1.0, 0.25
"""Deviations of its noise by which rows may differ from an answer to a question, and to a criterion, before it pulls.

A narrower slack costs statistics that nobody asked for more, and lets the rows differ less from what is judged.
"""
_SCORED = 50_000  # most synthetic rows to which a scorer is fitted


def parts_of(declared: Declared, looks: bool) -> tuple[float, float, float, float]:
    """Return the parts of the questions' share: first look, all tables, distances of sites, and histograms of scores.

    A question counts by its weight in each sum that it takes part in.
    """
    look = LOOK if looks else 0.0
    of_sites, of_scores = (
        sum(asked.weight for asked in declared.all if isinstance(asked, kind)) for kind in (Sites, AUC)
    )
    weights = (sum(asked.weight for asked in declared.all) - of_scores, of_sites, of_scores)
    tables, distances, scores = ((1 - look) * weight / sum(weights) for weight in weights)
    return look, tables, distances, scores


def ask(declared: Declared, federation: Federation) -> tuple[Federation, Answers]:
    """Put the questions to the sites; return the federation with what is left of the budget, and the answers.

    The first look, the tables of all questions (:class:`~fedsynth.federation.weighted.WeightedCounts`), and the
    distances of sites are a sum each, charged like any other. Everything else is a function of what they release.
    Questions about the synthetic table come after it (:func:`ask_scores`), and their part of the budget is kept back.
    Raises :class:`Unsupported` under a trust model that has no sums, and :class:`InvalidParameter` or
    :class:`~fedsynth.errors.SchemaError` for questions that do not fit the schema.
    """
    schema, share = federation.schema, declared.answer_share
    if federation.trust.sums is None:
        raise Unsupported(
            f"declared questions need sums over sites, which --trust {federation.trust.name} does not have; leave them "
            "out, or choose another trust"
        )
    declared.check(schema)
    columns, ranges = declared.looked_at(schema), dict[int, Range]()
    of_look, of_tables, of_distances, _ = parts_of(declared, bool(columns))
    if columns:
        look = federation.sum(look_query(columns), share * of_look)
        for (at, column), counts, std in zip(columns.items(), look.tables, look.stds, strict=True):
            ranges[at] = found_range(column, counts, max(std, EXACT_STD))
            if (clip := declared.clips.get(column.name)) is not None:
                ranges[at] = ranges[at].clipped(max(clip[0], column.low), min(clip[1], column.high))
    scope = Scope(schema, declared.cuts, ranges)
    tables: Sequence[NoisyTable] = ()
    if of_tables:
        tables = _noisy(federation.sum(compiled(declared.all, scope), share * of_tables))
    answers = Answers.of(declared, schema, ranges, tables)
    if comparing := [asked for asked in declared.all if isinstance(asked, Sites)]:
        queries = [asked.distances(scope, answers.tables_of(schema)[asked.name]) for asked in comparing]
        query = SiteDistances(
            tuple(axis for of in queries for axis in of.axes), tuple(shares for of in queries for shares in of.shares)
        )
        ((values, std),) = _noisy(federation.sum(query, share * of_distances))
        begin = 0
        for asked in comparing:
            end = begin + len(asked.columns)
            answers = answers.with_later(schema, asked.name, NoisyTable(values[begin:end], std))
            begin = end
    return replace(federation, part=federation.part * (1 - share)), answers


def ask_scores(answers: Answers, federation: Federation, synthesizer: Synthesizer) -> Answers:
    """Return the ``answers`` with those about scorers that are fitted to the synthetic table, asked of the sites."""
    declared, schema = answers.declared, federation.schema
    scored = [asked for asked in declared.all if isinstance(asked, AUC)]
    if not scored:
        return answers
    *_, of_scores = parts_of(declared, bool(declared.looked_at(schema)))
    rows = min(max(1, round(synthesizer.model.total)), _SCORED)
    table = synthesizer.sample_table(rows, 0)
    for asked in scored:
        scorer = fitted_scorer(table, asked.of, asked.bins)
        share = declared.answer_share * of_scores * asked.weight / sum(of.weight for of in scored)
        released = federation.sum(scorer.query(schema, asked.of), share)
        (table_of_scores,) = _noisy(released)
        answers = answers.with_later(schema, asked.name, table_of_scores, scorer)
    return answers


def _noisy(released: Sum) -> tuple[NoisyTable, ...]:
    return tuple(map(NoisyTable, released.tables, released.stds))


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
        if tables := answers.tables:
            scope = answers.scope(federation.schema)
            query = compiled(self.declared.all, scope)
            tilt = Tilt(query.axes, query.weights, query.tables)
            stds = [max(table.std, of_row) for table, of_row in zip(tables, query.largest, strict=True)]
            slacks = [
                slack
                for questions, slack in zip((self.declared.question, self.declared.criterion), SLACKS, strict=True)
                for asked in questions
                for _ in asked.parts(scope)
            ]
            released = [table.values for table in tables]
            synthesizer = replace(synthesizer, tilt=tilted(synthesizer, tilt, released, stds, slacks))
        answers = ask_scores(answers, federation, synthesizer)
        return replace(synthesizer, info={**synthesizer.info, "answers": answers.to_json()})
