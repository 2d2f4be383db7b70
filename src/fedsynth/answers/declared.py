"""The declared questions of a run as its settings have them, and the queries that they become."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from fedsynth.answers.questions import AnyQuestion, Part, Scope, Sites
from fedsynth.answers.ranges import Range, look_axis
from fedsynth.errors import InvalidParameter, nearest
from fedsynth.federation.query import Extent
from fedsynth.federation.weighted import WHOLE, WeightedCounts
from fedsynth.schema import Schema
from fedsynth.schema.bins import Axis, Integers
from fedsynth.schema.columns import Numeric
from fedsynth.settings import Settings, read_settings

_MOST = 64


class Declared(Settings, frozen=True):
    """The declared questions and criteria of a run, as in its settings."""

    question: Annotated[tuple[AnyQuestion, ...], Meta(max_length=_MOST)] = ()
    """Questions to answer with intervals."""
    criterion: Annotated[tuple[AnyQuestion, ...], Meta(max_length=_MOST)] = ()
    """Questions by which the synthetic table is judged: each with a tolerance."""
    cuts: Mapping[str, tuple[float, ...]] = {}
    """Points that divide a number for cross tables and covariates, ascending; each begins a group."""
    clips: Mapping[str, tuple[float, float]] = {}
    """Bounds to which numbers are clipped in sums, by column. Default: those within which nearly all rows lie by a
    first look."""
    answer_share: Annotated[float, Meta(gt=0, lt=1)] = 0.2
    """Share of the budget that questions and criteria get together."""

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [asked.name for asked in self.all]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidParameter(f"two questions are called {twice}; give each a name of its own")
        if lacking := [asked.name for asked in self.criterion if asked.tolerance is None]:
            raise InvalidParameter(f"the criteria {lacking} have no tolerance; give each a tolerance = NUMBER")
        if strange := [asked.name for asked in self.criterion if isinstance(asked, Sites)]:
            raise InvalidParameter(f"the criteria {strange} compare sites, which a synthetic table does not have")
        if needless := [asked.name for asked in self.question if asked.tolerance is not None]:
            raise InvalidParameter(f"{needless} have a tolerance: write them as [[criterion]], or leave it out")
        for name, points in self.cuts.items():
            if not points or list(points) != sorted(set(points)):
                raise InvalidParameter(f"cuts of {name!r} are {list(points)}; list ascending numbers")

        for name, (low, high) in self.clips.items():
            if not low < high:
                raise InvalidParameter(f"clips of {name!r} are {[low, high]}; give the lower one first")

    @property
    def all(self) -> tuple[AnyQuestion, ...]:
        """All questions, criteria last."""
        return (*self.question, *self.criterion)

    def looked_at(self, schema: Schema) -> dict[int, Numeric]:
        """Return the columns whose ranges the first look finds out, by their positions."""
        names = dict.fromkeys(name for asked in self.all for name in asked.looked_at(schema))
        scope = Scope(schema, self.cuts, {})
        return dict(scope.number(name) for name in names)

    def check(self, schema: Schema) -> None:
        """Raise errors for questions that do not fit the schema, before anything is asked."""
        self.largest(schema)

    def largest(self, schema: Schema) -> Extent:
        """Return the largest tables of the questions, for plans: answers move cut points, and add no table or axis."""
        for name, cuts in self.cuts.items():
            _, column = Scope(schema, self.cuts, {}).number(name)
            if not column.low < cuts[0] <= cuts[-1] <= column.high:
                raise InvalidParameter(
                    f"cuts of {name!r} are {list(cuts)}; list numbers within its bounds in the schema, above "
                    f"{column.low:g} and up to {column.high:g}"
                )
        for name, (low, high) in self.clips.items():
            _, column = Scope(schema, self.cuts, {}).number(name)
            if not (low < column.high and high > column.low):
                raise InvalidParameter(
                    f"clips of {name!r} are {low:g} and {high:g}, outside its bounds in the schema, {column.low:g} and "
                    f"{column.high:g}"
                )
        columns = self.looked_at(schema)
        queries = [look_query(columns)] if columns else []
        ranges = {at: Range.of(column.low, column.high) for at, column in columns.items()}
        scope = Scope(schema, self.cuts, ranges)
        if any(asked.parts(scope) for asked in self.all):
            queries.append(compiled(self.all, scope))
        for query in queries:
            query.check(schema)
        extents = [query.extent(schema) for query in queries]
        return Extent(*(max((1, *each)) for each in zip(*extents, strict=True))) if extents else Extent(1, 1, 1)


def read_declared(content: Mapping[str, Any], where: str = "") -> Declared:
    """Return the declared questions that a mapping describes, such as a TOML file; raises :class:`InvalidParameter`."""
    kinds = [of.__struct_config__.tag for of in typing.get_args(AnyQuestion)]
    for section in ("question", "criterion"):
        entries = content.get(section, ())
        for entry in entries if isinstance(entries, list | tuple) else ():
            if isinstance(entry, Mapping) and entry.get("kind") not in kinds:
                said = f"kind = {entry['kind']!r}" if "kind" in entry else "no kind"
                raise InvalidParameter(f"a [[{section}]] has {said}; {nearest(str(entry.get('kind')), kinds)}")
    return read_settings(Declared, content, where)


def look_query(columns: Mapping[int, Numeric]) -> WeightedCounts:
    """Return the first look at some columns, by their positions: a table of each."""
    axes = tuple(look_axis(column, at) for at, column in columns.items())
    return WeightedCounts(axes, (None,) * len(axes), tuple((at,) for at in range(len(axes))), (WHOLE,) * len(axes))


def compiled(questions: Sequence[AnyQuestion], scope: Scope) -> WeightedCounts:
    """Return the query for all questions: the tables of each, in the order of the questions.

    A record moves the tables of a question by at most about ``WHOLE`` in L2 together, within a tenth since factors
    are whole numbers, times the root of its weight. The tables divide that by their precision: questions share the
    budget by their weights.
    """
    axes: list[Axis] = []
    weights: list[Integers | None] = []
    places: dict[Any, int] = {}
    tables, factors = [], []
    heaviest = max(asked.weight for asked in questions)
    for asked in questions:
        of_question = asked.parts(scope)
        norm = math.sqrt(math.fsum(part.precision**2 for part in of_question) * heaviest / asked.weight)
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
    return WeightedCounts(tuple(axes), tuple(weights), tuple(tables), tuple(factors))


def _factor(part: Part, norm: float) -> int:
    largest = math.prod(int(np.abs(along).max()) for _, along in part.axes if along is not None)
    return max(1, round(WHOLE * part.precision / norm / max(largest, 1)))


def words_of(content: Mapping[str, Any]) -> list[str]:
    """Return each of the declared questions of an agreement in words, with its name."""
    declared = read_declared(content, "the plan's questions")
    return [
        f"{asked.name}: {asked.words}"
        + ("" if asked.tolerance is None else f" (a criterion, within {asked.tolerance:g})")
        for asked in declared.all
    ]
