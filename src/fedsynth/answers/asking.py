"""Declared questions put to sites before a run's method, for a reserved part of its budget."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from fedsynth.answers.questions import LARGEST, Answer, AnyQuestion, NoisyTable, Part, Scope
from fedsynth.answers.ranges import Range, found_range, look_axis
from fedsynth.errors import InvalidParameter, Unsupported
from fedsynth.federation.federation import Federation
from fedsynth.federation.query import Extent
from fedsynth.federation.weighted import WeightedCounts
from fedsynth.methods.measure import EXACT_STD
from fedsynth.models.tilt import Tilt, tilted
from fedsynth.privacy.cost import to_json
from fedsynth.schema import Schema
from fedsynth.schema.bins import Axis, Integers
from fedsynth.settings import Settings, read_settings

if TYPE_CHECKING:
    from fedsynth.models.synthesizer import Synthesizer

LOOK = 0.15
"""Part of the questions' share that the first look gets, if any question names a number."""
_MOST = 64


class Declared(Settings, frozen=True):
    """The declared questions and criteria of a run, as in its settings."""

    question: Annotated[tuple[AnyQuestion, ...], Meta(max_length=_MOST)] = ()
    """Questions to answer with intervals."""
    criterion: Annotated[tuple[AnyQuestion, ...], Meta(max_length=_MOST)] = ()
    """Questions by which the synthetic table is judged: each with a tolerance."""
    cuts: Mapping[str, tuple[float, ...]] = {}
    """Points that divide a number for cross tables and covariates, ascending; each begins a group."""
    answer_share: Annotated[float, Meta(gt=0, lt=1)] = 0.2
    """Share of the budget that questions and criteria get together."""

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [asked.name for asked in self.all]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidParameter(f"two questions are called {twice}; give each a name of its own")
        if lacking := [asked.name for asked in self.criterion if asked.tolerance is None]:
            raise InvalidParameter(f"the criteria {lacking} have no tolerance; give each a tolerance = NUMBER")
        if needless := [asked.name for asked in self.question if asked.tolerance is not None]:
            raise InvalidParameter(f"{needless} have a tolerance: write them as [[criterion]], or leave it out")
        for name, points in self.cuts.items():
            if not points or list(points) != sorted(set(points)):
                raise InvalidParameter(f"cuts of {name!r} are {list(points)}; list ascending numbers")

    @property
    def all(self) -> tuple[AnyQuestion, ...]:
        """All questions, criteria last."""
        return (*self.question, *self.criterion)

    def looked_at(self, schema: Schema) -> list[int]:
        """Return the positions of the columns whose ranges the first look finds out."""
        names = dict.fromkeys(name for asked in self.all for name in asked.looked_at(schema))
        scope = Scope(schema, self.cuts, {})
        return [scope.number(name)[0] for name in names]

    def check(self, schema: Schema) -> None:
        """Raise errors for questions that do not fit the schema, before anything is asked."""
        self.largest(schema)

    def largest(self, schema: Schema) -> Extent:
        """Return the largest tables of the questions, for plans: no answer changes their axes but for where cuts lie."""
        for name in self.cuts:
            Scope(schema, self.cuts, {}).number(name)
        columns = self.looked_at(schema)
        queries = [look_query(schema, columns)] if columns else []
        ranges = {at: _widest(schema, at) for at in columns}
        queries.append(compiled(self.all, Scope(schema, self.cuts, ranges))[0])
        for query in queries:
            query.check(schema)
        extents = [query.extent(schema) for query in queries]
        return Extent(*(max(each) for each in zip(*extents, strict=True)))


def _widest(schema: Schema, at: int) -> Range:
    """Return a range of a column with the most cells that any first look could lead to."""
    low, high = (float(end) for end in schema.stored[at].bin_edges[[0, -1]])
    return Range.declared(low, high)


def read_declared(content: Mapping[str, Any], where: str = "") -> Declared:
    """Return the declared questions that a mapping describes, such as a TOML file; raises :class:`InvalidParameter`."""
    return read_settings(Declared, content, where)


def look_query(schema: Schema, columns: Sequence[int]) -> WeightedCounts:
    """Return the first look at some columns: a table of each."""
    axes = tuple(look_axis(schema.stored[at], at) for at in columns)
    return WeightedCounts(axes, (None,) * len(axes), tuple((at,) for at in range(len(axes))), (1,) * len(axes))


def compiled(questions: Sequence[AnyQuestion], scope: Scope) -> tuple[WeightedCounts, list[int]]:
    """Return the query for all questions, and the number of tables of each.

    A record moves the tables of each question by at most about ``LARGEST`` in L2 together, divided between them by
    their precision: questions share the budget evenly.
    """
    parts = [asked.parts(scope) for asked in questions]
    axes: list[Axis] = []
    weights: list[Integers | None] = []
    places: dict[Any, int] = {}
    tables, factors = [], []
    for of_question in parts:
        norm = math.sqrt(math.fsum(part.precision**2 for part in of_question))
        for part in of_question:
            table = []
            for axis, along in part.axes:
                key = (axis.column, *(None if of is None else of.tobytes() for of in (axis.cuts, axis.groups, along)))
                if key not in places:
                    places[key] = len(axes)
                    axes.append(axis)
                    weights.append(along)
                table.append(places[key])
            tables.append(tuple(table))
            factors.append(_factor(part, norm))
    query = WeightedCounts(tuple(axes), tuple(weights), tuple(tables), tuple(factors))
    return query, [len(of_question) for of_question in parts]


def _factor(part: Part, norm: float) -> int:
    largest = math.prod(int(np.abs(along).max()) for _, along in part.axes if along is not None)
    return max(1, round(LARGEST * part.precision / norm / max(largest, 1)))


@dataclass(frozen=True, eq=False)
class Asked:
    """The answers to declared questions, and the released query with its noisy tables."""

    answers: tuple[Answer, ...]
    query: WeightedCounts
    tables: tuple[NoisyTable, ...]


def ask(declared: Declared, federation: Federation) -> tuple[Federation, Asked]:
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
    columns, ranges = declared.looked_at(schema), {}
    if columns:
        look = federation.sum(look_query(schema, columns), share * LOOK)
        for at, counts, std in zip(columns, look.tables, look.stds, strict=True):
            ranges[at] = found_range(schema.stored[at], counts, max(std, EXACT_STD))
    scope = Scope(schema, declared.cuts, ranges)
    query, many = compiled(declared.all, scope)
    released = federation.sum(query, share * (1 - LOOK) if columns else share)
    tables = tuple(map(NoisyTable, released.tables, released.stds))
    answers: list[Answer] = []
    begin = 0
    for asked, count in zip(declared.all, many, strict=True):
        answers += asked.answered(scope, tables[begin : begin + count])
        begin += count
    left = replace(federation, part=federation.part * (1 - share))
    return left, Asked(tuple(answers), query, tables)


@dataclass(frozen=True, eq=False)
class Questioned:
    """A method whose federation is asked declared questions first, and whose rows agree with the answers."""

    declared: Declared
    method: Any

    def fit(self, federation: Federation) -> Synthesizer:
        """Ask the questions, fit the method with the rest of the budget, and tilt its rows towards the answers."""
        left, asked = ask(self.declared, federation)
        synthesizer: Synthesizer = self.method.fit(left)
        query = asked.query
        towards = Tilt(query.axes, query.weights, query.tables)
        stds = [max(table.std, EXACT_STD) for table in asked.tables]
        tilt = tilted(synthesizer, towards, [table.values for table in asked.tables], stds)
        answers = [msgspec.to_builtins(answer) for answer in asked.answers]
        return replace(synthesizer, tilt=tilt, info={**synthesizer.info, "answers": to_json(answers)})
