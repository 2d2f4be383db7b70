"""The kinds of declared questions: what each is asked as, and how its interval follows from released sums.

A question is a struct, as in a section ``[[question]]`` of a run's settings. :meth:`Question.parts` says which tables
answer it (:class:`Part`), and :meth:`Question.answered` turns their noisy values into :class:`Answer`\\ s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, pairwise
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta
from typing_extensions import override

from fedsynth.answers import intervals
from fedsynth.answers.condition import INSIDE, Condition, read_condition
from fedsynth.answers.intervals import Interval
from fedsynth.answers.queries import GRID, SiteDistances
from fedsynth.answers.ranges import FINE, UNIT, Range, cell_labels, quantile_axis, scaled, value_axis
from fedsynth.errors import InvalidParameter
from fedsynth.schema import Schema
from fedsynth.schema.bins import Axis, Floats, Integers
from fedsynth.schema.columns import Numeric
from fedsynth.settings import Settings

_SMALLEST = 4.0  # noise deviations that a group must have, to be divided by
_LEVELS = tuple(np.round(np.arange(1, 16) / 16, 4))  # shares at which the cells of a quantile's table end
_NEAR = (0.0025, 0.005, 0.0075, 0.01, 0.0125, 0.015, 0.02, 0.04)  # and these away from the quantile
_MOST_TIMES = 60
_MOST_CELLS = 256
_MOST_FEATURES = 12
_LONGEST_NAME = 200
_SINGULAR = 1 / UNIT  # a variance, in squared units of the ranges, that the rounding of squares makes alone
_PRECISIONS = (0.25, 0.5, 1.0)  # of the number of records, of sums, and of sums of products


class Part(NamedTuple):
    """A table of a question: its axes, each with weights to sum over or ``None``, and its part of the precision."""

    axes: tuple[tuple[Axis, Integers | None], ...]
    precision: float = 1.0


class NoisyTable(NamedTuple):
    """The released values of a part, in records times weights, and the noise's standard deviation in each."""

    values: Floats
    std: float


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An answer: the estimand in words, its ``value`` and its interval for 95 %, or why it is ``refused``.

    ``noise`` and ``sampling`` are the half-widths by the run's noise alone and by the sampling of the rows alone.
    ``label`` tells several answers to one question apart. All numbers are ``None`` if the answer is refused.
    """

    question: str
    label: str
    estimand: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    noise: float | None = None
    sampling: float | None = None
    refused: str = ""

    @property
    def half_width(self) -> float:
        """Half the length of the interval; infinite for a refused answer."""
        return math.inf if self.low is None or self.high is None else (self.high - self.low) / 2


@dataclass(frozen=True, eq=False)
class Scope:
    """What questions refer to: the ``schema``, declared ``cuts`` by column, and ``ranges`` of columns by position."""

    schema: Schema
    cuts: Mapping[str, tuple[float, ...]]
    ranges: Mapping[int, Range]

    def number(self, name: str) -> tuple[int, Numeric]:
        """Return position and description of a column of numbers; raises :class:`InvalidParameter` for any other."""
        at = self.schema.index(name)
        column = self.schema.stored[at]
        if not isinstance(column, Numeric):
            raise InvalidParameter(f"{name!r} is no column of numbers; ask for its share, count or cross table instead")
        if at in self.schema.links:
            raise InvalidParameter(f"{name!r} is stored as {self.schema.links[at].form.kind}: sums of it are not known")
        return at, column

    def value_axis(self, name: str) -> tuple[Axis, Floats, Range]:
        """Return a fine axis of a number, the values of its cells (NaN: missing), and its range."""
        at, column = self.number(name)
        axis, values = value_axis(column, at, self.ranges[at])
        return axis, values, self.ranges[at]

    def range(self, name: str) -> Range:
        """Return the range of a number."""
        return self.ranges[self.number(name)[0]]

    def group_axis(self, name: str) -> tuple[Axis, tuple[str, ...]]:
        """Return an axis of a category's values, or of a number's declared cuts or bins, and the cells' labels."""
        at = self.schema.index(name)
        column = self.schema.stored[at]
        cuts = self.cuts.get(name) if column.is_number else None
        if not cuts or not column.is_number:
            return Axis(at), tuple(cell_labels(column, Axis(at)))
        size, last = column.per_unit, float(column.bin_edges[-1])
        inner = (np.ceil(np.round(np.array(cuts) * size, 6)) - 0.5) / size if size else np.nextafter(cuts, -np.inf)
        labels = [f"below {cuts[0]:g}", *(f"{a:g} to below {b:g}" for a, b in pairwise(cuts)), f"{cuts[-1]:g} and more"]
        axis = Axis(at, np.append(inner, last + (0.5 / size if size else 0.0)) + 0.0)
        return axis, (*labels, *("missing",) * column.missing)


class Question(Settings, frozen=True, kw_only=True, tag_field="kind"):
    """A declared question; each of its kinds is a subclass."""

    name: str
    """Name of the question in answers and messages."""
    among: str = ""
    """Condition on the rows that the question is about, such as "age>70 & sex=f". Default: all rows."""
    within: Annotated[float, Meta(gt=0)] | None = None
    """Half-width that the interval should have at most; `plan` refuses a question that cannot have it."""
    weight: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    """Part of the questions' budget that it gets, relative to the others'."""
    tolerance: Annotated[float, Meta(gt=0)] | None = None
    """Of a criterion: how far the synthetic table may be from the real rows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name.strip() or len(self.name) > _LONGEST_NAME:
            raise InvalidParameter(f"a question has the name {self.name[:20]!r}; give 1 to {_LONGEST_NAME} letters")
        for field in self.__struct_fields__:
            value = getattr(self, field)
            texts = value if isinstance(value, tuple) else (value,)
            if any(isinstance(text, str) and not text.isprintable() for text in texts):
                raise InvalidParameter(
                    f"{field} of the question {self.name!r} has a line break or another control character; write it on "
                    "one line"
                )  # stewards read questions on a terminal before they approve a plan

    def looked_at(self, schema: Schema) -> tuple[str, ...]:
        """Return the columns whose ranges the first look finds out."""
        return ()

    def parts(self, scope: Scope) -> list[Part]:
        """Return the tables that answer the question; raises errors for what does not fit the schema."""
        raise NotImplementedError

    def answered(self, scope: Scope, tables: Sequence[NoisyTable]) -> list[Answer]:
        """Return the answers from the noisy ``tables``, one for each of the parts."""
        raise NotImplementedError

    @property
    def words(self) -> str:
        """The question in words."""
        raise NotImplementedError

    @property
    def _among(self) -> str:
        return f" among rows with {self.among}" if self.among else ""

    def group(self, scope: Scope) -> tuple[tuple[Axis, Integers | None], ...]:
        """Return the axes that keep only the rows of the question's group."""
        return tuple((axis, INSIDE) for axis in read_condition(scope.schema, self.among).axes)

    def answer(self, interval: Interval, label: str = "", estimand: str = "") -> Answer:
        """Return an answer with this interval."""
        value, low, high = float(interval.value), float(interval.low), float(interval.high)
        of = (value, low, high, float(interval.noise), float(interval.sampling))
        return Answer(self.name, label, estimand or self.words, *of)

    def refusal(self, why: str, label: str = "", estimand: str = "") -> Answer:
        """Return an answer that says why there is none."""
        return Answer(self.name, label, estimand or self.words, refused=why)

    def once(self, names: Sequence[str]) -> Sequence[str]:
        """Return columns as they are; raises :class:`InvalidParameter` if one is named twice."""
        if twice := [name for at, name in enumerate(names) if name in names[:at]]:
            raise InvalidParameter(f"the question {self.name!r} names {twice[0]!r} twice; leave one out")
        return names

    def bounds(
        self, answers: Sequence[Answer], scope: Scope, tables: Sequence[NoisyTable], z: float
    ) -> list[tuple[float, float]]:
        """Return between which values the counted rows' own answers lie if the noise is within ``z`` deviations.

        ``answers`` are those of :meth:`answered` to the same tables. The bounds of a refused one say nothing.
        """
        reach = [math.inf if of.noise is None else z / intervals.Z * of.noise for of in answers]
        return [((of.value or 0.0) - far, (of.value or 0.0) + far) for of, far in zip(answers, reach, strict=True)]

    def too_small(self, records: float, std: float) -> str:
        """Return why a group is too small to divide by, or nothing."""
        if records >= _SMALLEST * std and records > 0:
            return ""
        return (
            f"the group has about {max(0.0, records):.0f} rows, below {_SMALLEST:g} deviations of the noise ({std:.0f})"
        )


def _kept(condition: Condition) -> tuple[tuple[Axis, None], ...]:
    return tuple((axis, None) for axis in condition.axes)


class Share(Question, frozen=True, kw_only=True, tag="share"):
    """The share of rows that meet a condition, among those of a group."""

    of: str
    """Condition that is counted, such as "readmitted=yes"."""

    @property
    @override
    def words(self) -> str:
        return f"share of rows with {self.of}{self._among}"

    @override
    def parts(self, scope: Scope) -> list[Part]:
        condition = read_condition(scope.schema, self.of)
        if not condition.axes:
            raise InvalidParameter(f"the question {self.name!r} counts nothing; give of = a condition")
        return [Part((*_kept(condition), *self.group(scope)))]

    @override
    def answered(self, scope: Scope, tables: Sequence[NoisyTable]) -> list[Answer]:
        ((values, std),) = tables
        inside, cells = float(values[(1,) * values.ndim]), values.size
        outside, records_std = float(values.sum()) - inside, std * math.sqrt(cells)
        if why := self.too_small(inside + outside, records_std):
            return [self.refusal(why)]
        return [self.answer(intervals.share(inside, std, outside, std * math.sqrt(cells - 1)))]


class Count(Question, frozen=True, kw_only=True, tag="count"):
    """The number of rows of a group."""

    @property
    @override
    def words(self) -> str:
        return f"number of rows{f' with {self.among}' if self.among else ''} at the sites"

    @override
    def parts(self, scope: Scope) -> list[Part]:
        if group := self.group(scope):
            return [Part(group)]
        size = scope.schema.stored[0].size
        return [Part(((Axis(0), np.ones(size, dtype=np.int64)),))]

    @override
    def answered(self, scope: Scope, tables: Sequence[NoisyTable]) -> list[Answer]:
        ((values, std),) = tables
        return [self.answer(intervals.normal(float(values), std))]


class Cross(Question, frozen=True, kw_only=True, tag="cross"):
    """The shares of all combinations of values of some columns."""

    columns: Annotated[tuple[str, ...], Meta(min_length=1, max_length=4)]
    """Columns of the table; numbers are grouped by their declared cuts, else by their bins in the schema."""

    @property
    @override
    def words(self) -> str:
        return f"shares of rows by {' and '.join(self.columns)}{self._among}"

    @override
    def parts(self, scope: Scope) -> list[Part]:
        axes = [scope.group_axis(name)[0] for name in self.once(self.columns)]
        return [Part((*((axis, None) for axis in axes), *self.group(scope)))]

    @override
    def answered(self, scope: Scope, tables: Sequence[NoisyTable]) -> list[Answer]:
        ((values, std),) = tables
        labels = [scope.group_axis(name)[1] for name in self.columns]
        rest_std = std * math.sqrt(values.size - 1)
        answers = []
        for place in np.ndindex(values.shape):
            label = ", ".join(
                f"{name} {labels[side][at]}" for side, (name, at) in enumerate(zip(self.columns, place, strict=True))
            )
            inside = float(values[place])
            rest = float(values.sum()) - inside
            if why := self.too_small(inside + rest, math.hypot(std, rest_std)):
                answers.append(self.refusal(why, label))
            else:
                answers.append(self.answer(intervals.share(inside, std, rest, rest_std), label))
        return answers


class _OfNumber(Question, frozen=True, kw_only=True):
    column: str
    """Column of numbers."""

    @override
    def looked_at(self, schema: Schema) -> tuple[str, ...]:
        return (self.column,)

    def clipped(self, scope: Scope) -> str:
        """Return in words the bounds at which the column is clipped."""
        within = scope.range(self.column)
        return f"{self.column} clipped to [{within.low:g}, {within.high:g}]"


class Mean(_OfNumber, frozen=True, kw_only=True, tag="mean"):
    """The mean of a number over the rows of a group that have one."""

    @property
    @override
    def words(self) -> str:
        return f"mean of {self.column}{self._among}"

    @override
    def parts(self, scope: Scope) -> list[Part]:
        axis, values, within = scope.value_axis(self.column)
        integers, group = scaled(values, within, FINE), self.group(scope)
        known = np.where(np.isnan(values), 0, 1)
        squares = np.rint(integers**2 / FINE).astype(np.int64)
        return [Part(((axis, of), *group), part) for of, part in ((known, 0.5), (integers, 1.0), (squares, 0.4))]

    @override
    def answered(self, scope: Scope, tables: Sequence[NoisyTable]) -> list[Answer]:
        (records, records_std), (sums, std), (squares, _) = [(float(values), std) for values, std in tables]
        within, estimand = scope.range(self.column), f"mean of {self.clipped(scope)}{self._among}"
        if why := self.too_small(records, records_std):
            return [self.refusal(why, estimand=estimand)]
        mean = sums / FINE / records
        variance = min(max(squares / FINE / records - mean**2, 1 / FINE**2), 1.0)
        mean_interval = intervals.ratio(sums / FINE, std / FINE, records, records_std, variance)
        return [
            self.answer(_moved(mean_interval, within.centre, within.scale, within.low, within.high), estimand=estimand)
        ]


class Total(_OfNumber, frozen=True, kw_only=True, tag="total"):
    """The sum of a number over the rows of a group that have one."""

    @property
    @override
    def words(self) -> str:
        return f"total of {self.column}{self._among} at the sites"

    @override
    def parts(self, scope: Scope) -> list[Part]:
        axis, values, within = scope.value_axis(self.column)
        return [
            Part(((axis, scaled(np.nan_to_num(values, nan=0.0), self._from_zero(within), FINE)), *self.group(scope)))
        ]

    def _from_zero(self, within: Range) -> Range:
        return Range(within.low, within.high, 0.0, within.edges, within.cumulated)

    @override
    def answered(self, scope: Scope, tables: Sequence[NoisyTable]) -> list[Answer]:
        ((values, std),) = tables
        within = self._from_zero(scope.range(self.column))
        total = intervals.normal(float(values), std)
        moved = _moved(total, 0.0, within.scale / FINE)
        return [self.answer(moved, estimand=f"total of {self.clipped(scope)}{self._among} at the sites")]


def _moved(of: Interval, centre: float, scale: float, least: float = -math.inf, most: float = math.inf) -> Interval:
    """Return an interval in a column's own unit, within bounds, from one in units of ``scale`` from the ``centre``."""
    value, low, high = (min(max(centre + scale * end, least), most) for end in (of.value, of.low, of.high))
    return Interval(value, low, high, of.noise * scale, of.sampling * scale)


class Quantile(_OfNumber, frozen=True, kw_only=True, tag="quantile"):
    """Quantiles of a number over the rows of a group that have one, such as the median."""

    at: Annotated[tuple[Annotated[float, Meta(gt=0, lt=1)], ...], Meta(min_length=1, max_length=9)] = (0.5,)
    """Shares of the rows that lie below each quantile; 0.5 is the median."""

    @property
    @override
    def words(self) -> str:
        return f"{', '.join(f'{100 * level:g} %' for level in self.at)} quantile of {self.column}{self._among}"

    def _axis(self, scope: Scope) -> tuple[Axis, Floats]:
        at, column = scope.number(self.column)
        near = {level + way * away for level in self.at for away in _NEAR for way in (1, -1)}
        return quantile_axis(column, at, scope.ranges[at], sorted({*_LEVELS, *(x for x in near if 0 < x < 1)}))

    @override
    def parts(self, scope: Scope) -> list[Part]:
        return [Part(((self._axis(scope)[0], None), *self.group(scope)))]

    @override
    def bounds(
        self, answers: Sequence[Answer], scope: Scope, tables: Sequence[NoisyTable], z: float
    ) -> list[tuple[float, float]]:
        ((values, std),) = tables
        ends = self._axis(scope)[1]
        return [intervals.quantile_of_rows(values[: len(ends) - 1], std, ends, level, z) for level in self.at]

    @override
    def answered(self, scope: Scope, tables: Sequence[NoisyTable]) -> list[Answer]:
        ((values, std),) = tables
        ends = self._axis(scope)[1]
        counts = values[: len(ends) - 1]
        if why := self.too_small(float(counts.sum()), std * math.sqrt(len(counts))):
            return [self.refusal(why, f"{100 * level:g} %") for level in self.at]
        return [self.answer(intervals.quantile(counts, std, ends, level), f"{100 * level:g} %") for level in self.at]


class _Feature(NamedTuple):
    """A number of each row: a column's axis, its value in each cell in units of 1 / UNIT, and what turns it back."""

    name: str
    axis: Axis
    integers: Integers
    known: Integers
    centre: float = 0.0
    scale: float = 1.0


def _moments(features: Sequence[_Feature], group: tuple[tuple[Axis, Integers | None], ...]) -> Iterator[Part]:
    """Yield the tables of the number of records, the sums of the features, and of products of every two of them.

    Records with a missing value in any of the columns are left out of all.
    """
    columns = {feature.axis.column: feature for feature in features}
    for pair in [(), *((at,) for at in range(len(features))), *combinations_with_replacement(range(len(features)), 2)]:
        weights = {column: feature.known for column, feature in columns.items()}
        for at in pair:
            feature = features[at]
            before = weights[feature.axis.column]
            weights[feature.axis.column] = before * feature.integers
        squared = len(pair) == 2 and features[pair[0]].axis.column == features[pair[1]].axis.column
        axes = []
        for column, feature in columns.items():
            of = weights[column]
            if squared and column == features[pair[0]].axis.column:
                of = np.rint(of / UNIT).astype(np.int64)
            used = any(features[at].axis.column == column for at in pair)
            if used or not feature.known.all():
                axes.append((feature.axis if used else _whether_known(feature), of if used else INSIDE))
        if not axes and not group:
            axes.append((_all_rows(features[0]), np.array([1])))
        yield Part((*axes, *group), _PRECISIONS[len(pair)])


def _whether_known(feature: _Feature) -> Axis:
    return Axis(feature.axis.column, feature.axis.cuts, feature.known)


def _all_rows(feature: _Feature) -> Axis:
    return Axis(feature.axis.column, feature.axis.cuts, np.zeros(len(feature.known), dtype=np.int64))


def _gram(values: Floats, many: int) -> Floats:
    """Return the matrix of sums of products of 1 and the features, from the sums in the order of :func:`_moments`."""
    gram = np.zeros((many + 1, many + 1))
    gram[0, 0], gram[0, 1:], gram[1:, 0] = values[0], values[1 : many + 1], values[1 : many + 1]
    for (a, b), value in zip(combinations_with_replacement(range(1, many + 1), 2), values[many + 1 :], strict=True):
        gram[a, b] = gram[b, a] = value
    return gram


def _scales(features: Sequence[_Feature]) -> Floats:
    """Return the unit of each sum of :func:`_moments`, in the units of its weights."""
    many, units = len(features), [1.0]
    units += [float(UNIT)] * many
    for a, b in combinations_with_replacement(range(many), 2):
        same = features[a].axis.column == features[b].axis.column
        units.append(float(UNIT) if same else float(UNIT) ** 2)
    return np.array(units)


class Correlation(Question, frozen=True, kw_only=True, tag="correlation"):
    """Pearson's correlation of every two of some numbers, over the rows of a group that have all of them."""

    columns: Annotated[tuple[str, ...], Meta(min_length=2, max_length=8)]
    """Columns of numbers."""

    @property
    @override
    def words(self) -> str:
        return f"correlation of {' and '.join(self.columns)}{self._among}"

    @override
    def looked_at(self, schema: Schema) -> tuple[str, ...]:
        return self.columns

    def _features(self, scope: Scope) -> list[_Feature]:
        return [_number_feature(scope, name) for name in self.once(self.columns)]

    @override
    def parts(self, scope: Scope) -> list[Part]:
        return list(_moments(self._features(scope), self.group(scope)))

    @override
    def answered(self, scope: Scope, tables: Sequence[NoisyTable]) -> list[Answer]:
        values, stds = _in_units(tables, _scales(self._features(scope)))
        labels = [f"{self.columns[b]}, {self.columns[a]}" for a, b in self._pairs]
        if why := self.too_small(values[0], stds[0]):
            return [self.refusal(why, label) for label in labels]
        many = len(self.columns)
        covariance = _covariance(_gram(values, many))
        noise = np.sqrt(np.diag(_gram(stds**2, many))[1:])
        answers = []
        for (a, b), label in zip(self._pairs, labels, strict=True):
            least = np.maximum(_SMALLEST * noise / values[0], _SINGULAR)
            hidden = [self.columns[at] for at in (a, b) if covariance[at, at] <= least[at]]
            if hidden:
                why = f"the variance of {' and '.join(hidden)} is below {_SMALLEST:g} deviations of its noise"
                answers.append(self.refusal(why, label))
                continue
            interval = intervals.correlation(_correlated(many, a, b), values, stds, values[0])
            answers.append(self.answer(interval, label))
        return answers

    @override
    def bounds(
        self, answers: Sequence[Answer], scope: Scope, tables: Sequence[NoisyTable], z: float
    ) -> list[tuple[float, float]]:
        values, stds = _in_units(tables, _scales(self._features(scope)))
        moments = [_correlated(len(self.columns), *pair) for pair in self._pairs]
        return [
            (-1.0, 1.0) if answer.value is None else intervals.correlation_within(of_pair, values, stds, z)
            for answer, of_pair in zip(answers, moments, strict=True)
        ]

    @property
    def _pairs(self) -> list[tuple[int, int]]:
        return [(a, b) for a in range(len(self.columns)) for b in range(a)]


def _in_units(tables: Sequence[NoisyTable], units: Floats) -> tuple[Floats, Floats]:
    """Return the sums of tables with a single number each, and their noise's standard deviations, ``(tables,)``."""
    values, stds = (np.array([float(table[side]) for table in tables]) / units for side in (0, 1))
    return values, stds


def _correlated(many: int, a: int, b: int) -> Callable[[Floats], Floats]:
    """Return a function from sums to the covariance of two of many features and the product of their deviations."""

    def moments(sums: Floats) -> Floats:
        covariance = _covariance(_gram(sums, many))
        return np.array([covariance[a, b], math.sqrt(max(covariance[a, a] * covariance[b, b], 1e-300))])

    return moments


def _covariance(gram: Floats) -> Floats:
    means = gram[0, 1:] / gram[0, 0]
    found: Floats = gram[1:, 1:] / gram[0, 0] - np.outer(means, means)
    return found


def _number_feature(scope: Scope, name: str) -> _Feature:
    axis, values, within = scope.value_axis(name)
    known = np.where(np.isnan(values), 0, 1)
    return _Feature(name, axis, scaled(values, within), known, within.centre, within.scale)


class Regression(Question, frozen=True, kw_only=True, tag="regression"):
    """A regression of an outcome on covariates: linear for a number, logistic for a condition.

    Categories enter by an indicator for each value but the first. In a logistic regression numbers enter by indicators
    of their declared cuts.
    """

    outcome: str
    """Column of numbers (linear), or a condition such as "readmitted=yes" (logistic)."""
    covariates: Annotated[tuple[str, ...], Meta(min_length=1, max_length=8)]
    """Columns that explain it."""

    @property
    def _logistic(self) -> bool:
        return any(mark in self.outcome for mark in "=<>")

    @property
    @override
    def words(self) -> str:
        kind = "log odds" if self._logistic else "slope"
        return f"{kind} of {self.outcome} by {', '.join(self.covariates)}{self._among}"

    @override
    def looked_at(self, schema: Schema) -> tuple[str, ...]:
        named = () if self._logistic else (self.outcome, *self.covariates)
        return tuple(name for name in named if schema.stored[schema.index(name)].is_number)

    @override
    def parts(self, scope: Scope) -> list[Part]:
        if not self._logistic:
            return list(_moments(self._features(scope), self.group(scope)))
        condition = read_condition(scope.schema, self.outcome)
        if len(condition.axes) != 1:
            raise InvalidParameter(f"the outcome {self.outcome!r} of {self.name!r} must be a condition on one column")
        axes = [(axis, None) for axis, _ in self._groups(scope)]
        return [Part((*_kept(condition), *axes, *self.group(scope)))]

    def _groups(self, scope: Scope) -> list[tuple[Axis, tuple[str, ...]]]:
        groups = [scope.group_axis(name) for name in self.once(self.covariates)]
        if (cells := math.prod(len(labels) for _, labels in groups)) > _MOST_CELLS:
            raise InvalidParameter(
                f"the covariates of {self.name!r} have {cells} combinations, and at most "
                f"{_MOST_CELLS} can be asked; leave some out, or declare fewer cuts = {{ column = [...] }}"
            )
        return groups

    def _features(self, scope: Scope) -> list[_Feature]:
        features = []
        if not scope.schema.stored[scope.schema.index(self.outcome)].is_number:
            raise InvalidParameter(
                f"the outcome {self.outcome!r} of {self.name!r} is no number; write a condition, such as "
                f"{self.outcome}=VALUE, for a logistic regression"
            )
        for name in self.once((*self.covariates, self.outcome)):
            column = scope.schema.stored[scope.schema.index(name)]
            if column.is_number:
                features.append(_number_feature(scope, name))
                continue
            axis, labels = scope.group_axis(name)
            known = np.array([1] * (len(labels) - column.missing) + [0] * column.missing)
            for code in range(1, len(labels) - column.missing):
                indicator = np.where(np.arange(len(labels)) == code, UNIT, 0)
                features.append(_Feature(f"{name}={labels[code]}", axis, indicator, known))
        if len(features) > _MOST_FEATURES:
            raise InvalidParameter(
                f"the question {self.name!r} has {len(features)} terms, and at most {_MOST_FEATURES}"
            )
        return features

    @override
    def answered(self, scope: Scope, tables: Sequence[NoisyTable]) -> list[Answer]:
        return self._log_odds(scope, tables[0]) if self._logistic else self._slopes(scope, tables)

    def _slopes(self, scope: Scope, tables: Sequence[NoisyTable]) -> list[Answer]:
        *features, outcome = self._features(scope)
        units, many = _scales([*features, outcome]), len(features) + 1
        values, stds = _in_units(tables, units)
        names = [feature.name for feature in features]
        if why := self.too_small(values[0], stds[0]):
            return [self.refusal(why, name) for name in names]
        gram, noise = _gram(values, many), _gram(stds**2, many)
        centred = _covariance(gram)[:-1, :-1] * values[0]
        least, vectors = np.linalg.eigh(centred)
        direction = vectors[:, 0] ** 2
        noise_std = math.sqrt(max(0.0, float(direction @ noise[1:-1, 1:-1] @ direction)))
        if least[0] <= max(_SMALLEST * noise_std, _SINGULAR * values[0]):
            why = f"the covariates' variance is below {_SMALLEST:g} deviations of its noise in some direction"
            return [self.refusal(why, name) for name in names]
        scales = np.array([outcome.scale / feature.scale for feature in features])

        def slopes(sums: Floats) -> Floats:
            covariance = _covariance(_gram(sums, many))
            found: Floats = np.linalg.solve(covariance[:-1, :-1], covariance[:-1, -1]) * scales
            return found

        covariance = _covariance(gram)
        explained = float(slopes(values) / scales @ covariance[:-1, -1])
        left = max(covariance[-1, -1] - explained, 0.0) * values[0] / max(values[0] - many, 1.0)
        sampling = np.sqrt(np.maximum(np.diag(np.linalg.inv(centred)), 0.0) * left) * scales
        fitted = intervals.by_delta(slopes, values, stds, sampling)
        return [self.answer(interval, name) for interval, name in zip(fitted, names, strict=True)]

    def _log_odds(self, scope: Scope, table: NoisyTable) -> list[Answer]:
        negative, positive = (table.values[side].ravel() for side in (0, 1))
        design, names = self._design(scope)
        fit = intervals.logistic(design, positive, negative, table.std)
        if not fit.clear:
            why = f"the least information of the covariates is below {_SMALLEST:g} deviations of its noise"
            return [self.refusal(why, name) for name in names[1:]]
        each = zip(fit.coefficients, fit.noise, fit.sampling, strict=True)
        return [
            self.answer(intervals.normal(*map(float, numbers)), name)
            for numbers, name in list(zip(each, names, strict=True))[1:]
        ]

    def _design(self, scope: Scope) -> tuple[Floats, list[str]]:
        """Return the design of the cells, ``(cells, columns)``, and the columns' names, the intercept first."""
        groups = self._groups(scope)
        shape = [len(labels) for _, labels in groups]
        places = np.indices(shape).reshape(len(shape), -1)
        columns, names = [np.ones(places.shape[1])], ["intercept"]
        for side, (name, (_, labels)) in enumerate(zip(self.covariates, groups, strict=True)):
            for code in range(1, len(labels)):
                columns.append((places[side] == code).astype(np.float64))
                names.append(f"{name}={labels[code]}")
        return np.stack(columns, axis=1), names


class Survival(Question, frozen=True, kw_only=True, tag="survival"):
    """The share that survives each of some times, by Kaplan and Meier."""

    time: str
    """Column of times to the event or to the end of observation, a number."""
    event: str
    """Condition that says that the event happened, such as "died=yes"."""
    at: Annotated[tuple[float, ...], Meta(min_length=1, max_length=_MOST_TIMES)]
    """Times whose survival is wanted, ascending."""
    intervals: Annotated[int, Meta(ge=1, le=_MOST_TIMES)] = 30
    """Number of equal intervals up to the last time, into which times are grouped."""

    @property
    @override
    def words(self) -> str:
        return f"survival by {self.time} until {self.event}{self._among}"

    def _cuts(self, scope: Scope) -> tuple[Axis, Floats]:
        """Return the axis of the intervals, with one cell for all later times, and the intervals' ends."""
        at, column = scope.number(self.time)
        last = float(column.bin_edges[-1])
        if list(self.at) != sorted(set(self.at)) or not 0 < self.at[0] <= self.at[-1] <= last:
            raise InvalidParameter(f"the question {self.name!r} needs ascending times above 0 and up to {last:g}")
        even = np.linspace(0, self.at[-1], self.intervals + 1)[1:]
        ends = np.unique(np.concatenate([even, self.at]))
        if len(ends) > _MOST_TIMES:
            ends = np.unique(np.asarray(self.at))
        half = 0.5 / column.per_unit if column.per_unit else 0.0
        cuts = np.unique(np.floor(np.round(ends * column.per_unit, 6)) / column.per_unit + half) if half else ends
        later = [last + 2 * half + 1.0] if cuts[-1] < last + half else []
        return Axis(at, np.append(cuts, later) + 0.0), cuts

    @override
    def parts(self, scope: Scope) -> list[Part]:
        condition = read_condition(scope.schema, self.event)
        if len(condition.axes) != 1:
            raise InvalidParameter(f"the event {self.event!r} of {self.name!r} must be a condition on one column")
        return [Part((*_kept(condition), (self._cuts(scope)[0], None), *self.group(scope)))]

    @override
    def answered(self, scope: Scope, tables: Sequence[NoisyTable]) -> list[Answer]:
        ((values, std),) = tables
        axis, cuts = self._cuts(scope)
        assert axis.cuts is not None
        known = values[:, : len(axis.cuts)]
        curve = intervals.survival(known[1], known[0], std)
        answers = []
        for time in self.at:
            place, label = int(np.searchsorted(cuts, time)), f"{time:g}"
            if place < len(curve):
                answers.append(self.answer(curve[place], label))
            else:
                answers.append(self.refusal("too few are at risk by then, below 6 deviations of the noise", label))
        return answers


class Sites(Question, frozen=True, kw_only=True, tag="sites"):
    """How different the sites are: the mean over rows of the L1 distance (0 to 2) of their site's shares from all's."""

    columns: Annotated[tuple[str, ...], Meta(min_length=1, max_length=32)]
    """Columns to compare; numbers are grouped by their declared cuts, else by their bins in the schema."""

    @property
    @override
    def words(self) -> str:
        return f"distance of the sites' shares from those of all rows, by {', '.join(self.columns)}"

    @override
    def parts(self, scope: Scope) -> list[Part]:
        if self.among:
            raise InvalidParameter(f"the question {self.name!r} compares sites over all their rows; leave among out")
        return [Part(((scope.group_axis(name)[0], None),)) for name in self.columns]

    def distances(self, scope: Scope, tables: Sequence[NoisyTable]) -> SiteDistances:
        """Return the query for the distances from the shares that noisy tables say."""
        shares = []
        for values, _ in tables:
            kept = np.maximum(values, 0.0)
            ends = np.rint(GRID * np.cumsum(kept) / kept.sum()) if kept.sum() > 0 else np.full(len(kept), float(GRID))
            shares.append(np.diff(ends, prepend=0.0).astype(np.int64))
        return SiteDistances(tuple(scope.group_axis(name)[0] for name in self.columns), tuple(shares))

    @override
    def answered(self, scope: Scope, tables: Sequence[NoisyTable]) -> list[Answer]:
        if len(tables) == len(self.columns):  # of a synthetic table, which has no sites
            return [self.refusal("the sites have not been compared", name) for name in self.columns]
        *counted, (distances, std) = tables
        answers = []
        for name, (values, count_std), distance in zip(self.columns, counted, distances, strict=True):
            records, records_std = float(values.sum()), count_std * math.sqrt(values.size)
            if why := self.too_small(records, records_std):
                answers.append(self.refusal(why, name))
            else:
                answers.append(self.answer(intervals.ratio(float(distance), std, records, records_std, 0.0), name))
        return answers


class AUC(Question, frozen=True, kw_only=True, tag="auc"):
    """How well a scorer that the synthetic rows make ranks the real rows: the area under its ROC curve."""

    of: str
    """Condition on one column that the scorer predicts from all other columns, such as "readmitted=yes"."""
    bins: Annotated[int, Meta(ge=2, le=1024)] = 64
    """Number of bins of the scores; fewer mean less noise, and more rows that count as equal."""

    @property
    @override
    def words(self) -> str:
        return f"AUC in real rows of a points scorer of {self.of}, fitted to the synthetic rows"

    @override
    def parts(self, scope: Scope) -> list[Part]:
        if self.among or len(read_condition(scope.schema, self.of).axes) != 1:
            raise InvalidParameter(f"the question {self.name!r} needs of = a condition on one column, and no among")
        return []

    @override
    def answered(self, scope: Scope, tables: Sequence[NoisyTable]) -> list[Answer]:
        if not tables:
            return [self.refusal("it is asked once the table is fitted")]
        ((values, std),) = tables
        counts, many = values[:, :2], len(values)
        for label, side in (("fail", 0), ("meet", 1)):
            records = float(counts[:, side].sum())
            if records <= 0 or records < _SMALLEST * std * math.sqrt(many):
                return [
                    self.refusal(f"about {max(0.0, records):.0f} rows {label} the condition, too few for the noise")
                ]
        return [self.answer(intervals.auc(counts[:, 1], counts[:, 0], std))]


AnyQuestion = Share | Count | Cross | Mean | Total | Quantile | Correlation | Regression | Survival | Sites | AUC
"""All kinds of questions, by the entry ``kind``."""
