"""Relations between columns that hold in all rows of one site: proposals for a draft of a schema.

Candidates are found in a sample of rows, and verified in all. Much holds trivially (ages are below incomes), so that a
relation is proposed only if it says something: if it breaks in at least 1 % of the sample's rows once the values of any
one operand are permuted, and in so many that chance alone would not have kept it. A proposal names columns and counts
of rows; it holds no value of a row.
"""

from __future__ import annotations

import calendar
import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from fedsynth.data.recognise import outwards
from fedsynth.errors import SchemaError
from fedsynth.schema.bins import Floats, Integers
from fedsynth.schema.coarse import parts_of
from fedsynth.schema.columns import Categorical, Column, Datetime, Numeric
from fedsynth.schema.derive import NEAR, Mask
from fedsynth.schema.forms import (
    ComputedForm,
    Copy,
    Difference,
    Lookup,
    Part,
    Product,
    StoredDifference,
    StoredForm,
    Sum,
    microseconds_of,
)
from fedsynth.schema.schema import Schema, lines_of

_SAMPLE = 10_000  # rows in which candidates are found
_CELLS = 20_000_000  # most cells of the sample
LEAST_ROWS = 10  # of fewer, nothing can be told from chance
_FIRST = 64  # of these, rows in which all pairs are compared
_LEAST = 0.01  # share of the sample's rows in which a permutation must break a relation
_MOST = {"numbers": 128, "categories": 128, "times": 32}  # columns among which relations of several are looked for
_TRIED = 50  # most sums and products tried for one column
_LEARNED, _SHARES = 0.05, 0.25  # share of the budget of a learned lookup, and of all together
_UNITS = ("day", "hour", "minute", "second")
_DIFFERENCES = re.compile(r"diff|delta|change|gap|margin|net|rest|remain|dur|length|stay|los|days|elapsed", re.I)
_NAMES = {
    "weekday": [[*calendar.day_name], [*calendar.day_abbr]],
    "month": [[*calendar.month_name][1:], [*calendar.month_abbr][1:]],
    "hour": [],
}

Broken = Callable[[Sequence[Floats]], Mask]


@dataclass(frozen=True, eq=False)
class Known:
    """A column of a draft with its values: numbers, times in the column's unit, or numbers that stand for texts.

    ``values`` (float64, NaN: missing) are those of all rows, or, with ``which`` (int64), of the distinct cells, whose
    position it has for each row (-1: missing). ``texts`` are those that such numbers stand for, of all columns.
    """

    column: Column
    values: Floats
    which: Integers | None = None
    texts: Sequence[str] = ()

    def at(self, rows: Integers | slice) -> Floats:
        """Return the values of some rows."""
        if self.which is None:
            return self.values[rows]
        found: Floats = np.append(self.values, np.nan)[self.which[rows]]
        return found

    @property
    def kind(self) -> str:
        """What the values are; whole numbers that are listed are both numbers and categories."""
        if isinstance(self.column, Datetime):
            return "times"
        return "numbers" if self.is_listed or isinstance(self.column, Numeric) else "categories"

    @property
    def is_listed(self) -> bool:
        """Whether the column lists whole numbers."""
        return isinstance(self.column, Categorical) and type(self.column.values[0]) is int

    @property
    def tolerance(self) -> float:
        """Half a unit of the column's numbers, by which rounding may change them."""
        if self.is_listed:
            return 0.5
        return 0.5 / self.column.per_unit if isinstance(self.column, Numeric) and self.column.per_unit else 0.0


@dataclass(frozen=True, eq=False)
class _Proposal:
    """A ``form`` of the column ``target``; ``broken`` masks rows by the values of the target and its operands."""

    target: str
    form: ComputedForm | StoredForm
    says: str
    broken: Broken
    listed: Column | None = None  # the target, where it has to list other values

    @property
    def names(self) -> tuple[str, ...]:
        return (self.target, *(name for name in self.form.operands if name != self.target))


@dataclass(eq=False)
class Relations:
    """What is proposed: ``notes`` (sentences) by column, and the ``columns`` as they would be declared."""

    drafted: Mapping[str, Column]
    notes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    columns: dict[str, Column] = field(default_factory=dict)

    def lines(self) -> dict[str, list[str]]:
        """Return the entries of the proposed columns that differ from the drafted ones, each on one line."""
        return {name: lines_of(column, self.drafted[name]) for name, column in self.columns.items()}


def relations(known: Sequence[Known], rows: int, seed: int = 0) -> Relations:
    """Return the relations between columns that all ``rows`` have, of which a sample drawn by ``seed`` has candidates.

    Of relations that say the same the simplest is returned: copies before sums, sums of few columns before those of
    many, and of two columns that determine each other, one.
    """
    search = _Search(known, rows, np.random.default_rng(seed))
    for look in (_copies, _parts, _sums, _time_differences, _orders, _lookups):
        look(search)
    for kind, most in _MOST.items():
        if len(names := search.names(kind, all_of_them=True)) > most:
            search.found.notes[names[most]].append(
                f"the table has {len(names)} {kind}: relations, equal columns apart, were looked for among the first "
                f"{most} alone, which this column is not one of"
            )
    return search.found


class _Search:
    """The columns of a table with the sample of their rows, and what has been found so far."""

    def __init__(self, known: Sequence[Known], rows: int, rng: np.random.Generator) -> None:
        self.known = {each.column.name: each for each in known}
        self.place = {name: at for at, name in enumerate(self.known)}
        self.rng = rng
        size = min(rows, _SAMPLE, _CELLS // max(1, len(known)))
        some = np.sort(rng.choice(rows, size, replace=False)) if size < rows else np.arange(rows)
        self.sample = {name: each.at(some) for name, each in self.known.items()}
        self.first = rng.permutation(len(some))[:_FIRST]
        self.distinct = {name: len(np.unique(x[~np.isnan(x)])) for name, x in self.sample.items()}
        self.found = Relations({name: each.column for name, each in self.known.items()})
        self.computed: set[str] = set()

    def names(self, kind: str, *, least: int = 2, all_of_them: bool = False) -> list[str]:
        """Return the columns of a kind that are not computed and have enough values, at most :data:`_MOST`."""
        fitting = [name for name, each in self.known.items() if each.kind == kind]
        if all_of_them:
            return fitting
        kept = [name for name in fitting[: _MOST[kind]] if self.distinct[name] >= least]
        return [name for name in kept if name not in self.computed]

    def pairs(self, names: Sequence[str], broken: Callable[[Floats, Floats], Mask]) -> Mask:
        """Return, for each pair of columns, whether no row of the first ones breaks a relation of two."""
        fits = np.ones((len(names), len(names)), bool)
        values = np.array([self.sample[name][self.first] for name in names])
        for row in values.T:
            fits &= ~broken(row[:, None], row[None, :])
        np.fill_diagonal(fits, False)
        return fits

    def column(self, name: str) -> Column:
        """Return a column as it has been proposed so far."""
        return self.found.columns.get(name, self.known[name].column)

    def says_something(self, proposal: _Proposal, tries: int) -> bool:
        """Return whether the sample's rows have a relation, and would lose it by a permutation of any operand."""
        values = [self.sample[name] for name in proposal.names]
        there = ~np.isnan(values).any(axis=0)
        values = [each[there] for each in values]
        least = max(_LEAST * there.sum(), math.log(100 * max(1, tries)))
        if there.sum() < least or proposal.broken(values).any():
            return False
        return all(
            proposal.broken([self.rng.permutation(x) if at == other else x for other, x in enumerate(values)]).sum()
            >= least
            for at in range(1, len(values))
        )

    def propose(self, proposal: _Proposal, tries: int) -> bool:
        """Return whether a relation says something, holds in all rows and can be declared; then it is kept."""
        if not self.says_something(proposal, tries):
            return False
        values = [self.known[name].at(slice(None)) for name in proposal.names]
        gone = np.isnan(values)
        there = ~gone.any(axis=0)
        if proposal.broken([each[there] for each in values] if not there.all() else values).any():
            return False
        columns = {name: self.column(name) for name in proposal.names}
        changed = _declared(columns | ({proposal.target: proposal.listed} if proposal.listed else {}), proposal)
        if not self._fits(changed):
            return False
        self.found.columns |= {name: each for name, each in changed.items() if each != self.known[name].column}
        both = "both are" if len(values) == 2 else "all are"
        note = f"{proposal.says} in all {int(there.sum()):,} rows where {both} known"
        if not isinstance(proposal.form, StoredDifference | Lookup):
            self.computed.add(proposal.target)
            if lost := int((~gone[0] & gone[1:].any(axis=0)).sum()):
                note += f"; computed, it would be missing in {lost:,} rows that have a value now"
            if more := int((gone[0] & ~gone[1:].any(axis=0)).sum()):
                note += f"; computed, it would have a value in {more:,} rows where it is missing now"
        self.found.notes[proposal.target].append(note)
        return True

    def _fits(self, changed: Mapping[str, Column]) -> bool:
        """Return whether columns can be declared as they are ``changed``, with all that refer to them or they to."""
        columns = dict(changed)
        waiting = [
            *changed.values(),
            *(each for each in self.found.columns.values() if _operands(each) & changed.keys()),
        ]
        while waiting:
            column = columns.setdefault(waiting[-1].name, waiting.pop())
            waiting += [self.column(name) for name in _operands(column) - columns.keys()]
        try:
            Schema(tuple(columns[name] for name in sorted(columns, key=self.place.__getitem__)))
        except SchemaError:
            return False
        return True


def _operands(column: Column) -> set[str]:
    """Return the names of the columns to which a column's forms refer."""
    forms = (column.computed, column.stored) if column.is_number else (column.computed,)
    return {name for form in forms if form is not None for name in form.operands}


def _declared(columns: dict[str, Column], proposal: _Proposal) -> dict[str, Column]:
    """Return the columns of a proposal as they have to be declared for it."""
    form, target = proposal.form, proposal.target
    if isinstance(form, Lookup):
        finer = columns[form.lookup]
        if isinstance(finer, Categorical):  # as text, since whole numbers have no "other"
            texts = tuple(map(str, finer.values))
            columns[form.lookup] = msgspec.structs.replace(finer, values=texts, unknown="other")
    elif not isinstance(form, Copy | Part):
        columns = {name: _as_number(column) for name, column in columns.items()}
    if isinstance(form, StoredDifference):
        columns[target] = msgspec.structs.replace(columns[target], stored=form)
        return columns
    lost = not isinstance(form, Lookup) and any(columns[name].missing for name in form.operands)
    columns[target] = msgspec.structs.replace(columns[target], computed=form, missing=columns[target].missing or lost)
    return columns


def _as_number(column: Column) -> Column:
    if not isinstance(column, Categorical) or type(column.values[0]) is not int:
        return column
    low, high = outwards(float(min(map(int, column.values))), float(max(map(int, column.values))), integer=True)
    return Numeric(column.name, low, high, integer=True, missing=column.missing)


def _near(*values: Floats) -> Floats:
    """Return the rounding error of a computed number that is tolerated."""
    size = np.maximum(1.0, np.abs(values[0]))
    for each in values[1:]:
        size = np.maximum(size, np.abs(each))
    return 4 * NEAR * size


# Copies, and parts of times


def _copies(search: _Search) -> None:
    first: dict[bytes, str] = {}
    for name, values in search.sample.items():  # in one pass over all columns, however many
        if search.distinct[name] > 1:
            known = search.known[name]
            key = hashlib.sha256(f"{known.kind} {known.column.kind}".encode() + (values + 0.0).tobytes()).digest()
            if (source := first.setdefault(key, name)) != name:
                search.propose(_copy(search, name, source), len(first) ** 2)
    for kind in _MOST:
        names = search.names(kind)
        fits = search.pairs(names, lambda x, y: np.abs(x - y) > 0.5 + _near(x, y)) if names else np.zeros((0, 0))
        if kind == "times":
            fits = ~np.eye(len(names), dtype=bool)
        rank = {name: _rank(search, name) for name in names}
        for target in sorted(names, key=rank.__getitem__):
            at = names.index(target)
            sources = sorted((names[other] for other in np.flatnonzero(fits[at])), key=rank.__getitem__)
            for source in sources:
                if rank[source] < rank[target] and not {source, target} & search.computed:
                    search.propose(_copy(search, target, source), len(names) ** 2)


def _rank(search: _Search, name: str) -> tuple[float, float, int]:
    """Return the place of a column among those that might be copied: the most complete and precise come first."""
    known = search.known[name]
    unit = known.column.microseconds if isinstance(known.column, Datetime) else known.tolerance
    return unit, int(np.isnan(search.sample[name]).sum()), search.place[name]


def _copy(search: _Search, target: str, source: str) -> _Proposal:
    own, other = search.known[target], search.known[source]
    if isinstance(own.column, Datetime) and isinstance(other.column, Datetime):
        step = own.column.microseconds / other.column.microseconds
        says = f"{target} = {source}" if step == 1 else f"{target} is the date of {source}"
        return _Proposal(target, Copy(source), says, lambda x: x[0] != np.floor(x[1] / step))
    return _Proposal(
        target,
        Copy(source),
        f"{target} = {source}",
        lambda x: np.abs(x[0] - x[1]) > own.tolerance + _near(*x),
    )


def _parts(search: _Search) -> None:
    times = search.names("times")
    others = [name for kind in ("categories", "numbers") for name in search.names(kind)]
    others = [name for name in others if search.distinct[name] <= 24]
    for time in times:
        column = search.known[time].column
        assert isinstance(column, Datetime)
        there = ~np.isnan(search.sample[time])
        seen = parts_of(column, np.where(there, search.sample[time], 0.0))
        for part in ("weekday", "month", *(["hour"] if column.unit != "D" else [])):
            for name in others:
                both = there & ~np.isnan(search.sample[name])
                if name not in search.computed and both.any():
                    form = Part(part, time)  # type: ignore[arg-type]
                    listed = _listed_parts(search.known[name], form, seen[part][both], search.sample[name][both])
                    if listed is not None:
                        search.propose(_part(listed, form, column), 3 * len(times) * len(others))


def _part(listed: Categorical, form: Part, column: Datetime) -> _Proposal:
    def broken(values: Sequence[Floats]) -> Mask:
        codes = parts_of(column, values[1])[form.part]
        wrong: Mask = _representatives(codes, values[0])[codes] != values[0]
        return wrong

    return _Proposal(listed.name, form, f"{listed.name} is the {form.part} of {form.of}", broken, listed)


def _representatives(codes: Integers, values: Floats) -> Floats:
    """Return a value that goes with each code (NaN: none does)."""
    found = np.full(int(codes.max(initial=-1)) + 1, np.nan)
    found[codes] = values
    return found


def _listed_parts(known: Known, form: Part, codes: Integers, values: Floats) -> Categorical | None:
    """Return a column that lists the values of a part of times in order, by the part's ``codes`` of rows with values.

    ``None`` if the values are no such part, or if not all that the column must list are known.
    """
    size, column = form.values, known.column
    leads = _representatives(codes, values)
    leads = np.concatenate([leads, np.full(size - len(leads), np.nan)])
    seen = np.flatnonzero(~np.isnan(leads))
    if (leads[codes] != values).any() or len(np.unique(leads[seen])) < len(seen):
        return None
    if known.kind == "numbers":  # from 0 or 1 on, from any month or weekday on, or as the draft lists them all
        starts = (0, 1) if form.part == "hour" else (1, 0)
        orders = [(np.arange(size) + turn) % size + float(start) for start in starts for turn in range(size)]
        if isinstance(column, Categorical) and set(leads.tolist()) <= {float(value) for value in column.values}:
            orders.append(leads)
        fitting = [order for order in orders if np.array_equal(order[seen], leads[seen])]
        if len(seen) < 3 or not fitting:
            return None
        return Categorical(column.name, tuple(int(value) for value in fitting[0]), column.missing)
    if not isinstance(column, Categorical):
        return None
    texts = {at: known.texts[int(leads[at])] for at in seen.tolist()}
    if len(texts) == size and set(texts.values()) <= set(column.values):
        return Categorical(column.name, tuple(texts[at] for at in range(size)), column.missing)
    for names in _NAMES[form.part]:
        for case in (str, str.upper, str.lower):
            if len(texts) > 2 and all(case(names[at]) == text for at, text in texts.items()):
                return Categorical(column.name, tuple(map(case, names)), column.missing)
    return None


# Sums, differences and products


def _sums(search: _Search) -> None:
    used: set[frozenset[str]] = set()
    for combine in (np.add, np.multiply):
        names = search.names("numbers", least=3 if combine is np.multiply else 2)
        tries = len(names) ** 3
        for target in sorted(names, key=lambda name: float(np.nanmean(np.abs(search.sample[name])))):  # subtotals first
            if search.distinct[target] < 3:
                continue
            for one, two in _combined(search, names, target, combine):
                if frozenset((target, one, two)) in used or {one, two} <= {target}:
                    continue
                for proposal in _of_three(search, target, one, two, combine):
                    if proposal.target not in search.computed and search.propose(proposal, tries):
                        used.add(frozenset((target, one, two)))
                        break
        if combine is np.add:
            _long_sums(search)


def _combined(search: _Search, names: Sequence[str], target: str, combine: np.ufunc) -> Iterator[tuple[str, str]]:
    """Yield pairs of columns that give a third one in the sample's rows where that is largest."""
    own = search.sample[target]
    rows = np.argsort(-np.where(np.isnan(own), -1.0, np.abs(own)), kind="stable")[: 4 * _FIRST]
    fits = np.triu(np.ones((len(names), len(names)), bool), 1)
    at = names.index(target)
    fits[at], fits[:, at] = False, False
    values = np.array([search.sample[name][rows] for name in names])
    for row in values.T:
        found = combine(row[:, None], row[None, :])
        fits &= ~(np.abs(found - row[at]) > search.known[target].tolerance + _near(found, row[at]))
        if not fits.any():
            return
    for one, two in np.argwhere(fits)[:_TRIED].tolist():
        yield names[one], names[two]


def _of_three(search: _Search, total: str, one: str, two: str, combine: np.ufunc) -> list[_Proposal]:
    """Return the ways to say that two columns give a third, the best first.

    A sum of numbers that are never negative keeps its bounds, a difference does not: unless a name says so, the largest
    is computed. Where one column alone may be negative, it is the difference.
    """
    if combine is np.multiply:
        return [_sum(search, total, [one, two], Product)]
    negative = [name for name in (total, one, two) if np.nanmin(search.sample[name]) < 0]
    last = max((total, one, two), key=search.place.__getitem__)
    whole, difference = _sum(search, total, [one, two], Sum), None
    if len(negative) == 1 and negative[0] != total:
        difference = negative[0]
    elif last != total and (negative or _DIFFERENCES.search(last)):
        difference = last
    if difference is None:
        return [whole]
    other = two if difference == one else one
    return [_difference(search, difference, total, other), whole]


def _sum(search: _Search, target: str, names: Sequence[str], kind: type[Sum] | type[Product]) -> _Proposal:
    names = sorted(names, key=search.place.__getitem__)
    mark = " + " if kind is Sum else " x "
    tolerance = search.known[target].tolerance

    def broken(values: Sequence[Floats]) -> Mask:
        found = kind.combine.reduce(values[1:], axis=0)
        wrong: Mask = np.abs(values[0] - found) > tolerance + _near(*values, found)
        return wrong

    return _Proposal(target, kind(tuple(names)), f"{target} = {mark.join(names)}", broken)


def _difference(
    search: _Search, target: str, first: str, second: str, unit: str | None = None, step: float = 1.0
) -> _Proposal:
    tolerance = search.known[target].tolerance

    def broken(values: Sequence[Floats]) -> Mask:
        wrong: Mask = np.abs(values[0] - (values[1] - values[2]) / step) > tolerance + _near(*values) / step
        return wrong

    says = f"{target} = {first} - {second}" + (f" in {unit}s" if unit else "")
    return _Proposal(target, Difference((first, second), unit), says, broken)


def _long_sums(search: _Search) -> None:
    """Propose sums of three and more columns: non-negative least squares, whose coefficients are all 0 or 1."""
    names = search.names("numbers")
    names.sort(key=lambda name: int(np.isnan(search.sample[name]).sum()))
    while len(names) > 3:  # the most complete columns, of which enough rows know all
        values = np.array([search.sample[name] for name in names]).T
        values = values[~np.isnan(values).any(axis=1)]
        if len(values) >= 2 * len(names) + 10:
            break
        names.pop()
    if len(names) < 4:
        return
    scale = np.linalg.norm(values, axis=0)
    scale[scale == 0] = 1.0
    scaled = values / scale
    left = 1 / np.diag(np.linalg.inv(scaled.T @ scaled + 1e-12 * np.eye(len(names))))
    for at in np.argsort(-scale):
        target, own = names[at], search.known[names[at]]
        rounding = max((2 * own.tolerance) ** 2 * len(values) / scale[at] ** 2, 1e-9)
        if search.distinct[target] < 3 or target in search.computed or left[at] > rounding:
            continue
        from scipy.optimize import nnls  # takes a second to import, and few tables have such a column

        others = [other for other in range(len(names)) if other != at and names[other] not in search.computed]
        weights = nnls(values[:, others], values[:, at])[0]
        operands = [names[other] for other, weight in zip(others, weights, strict=True) if weight > 0.5]
        if 2 < len(operands) <= Sum.most and np.abs(weights - (weights > 0.5)).max() < 0.05:
            search.propose(_sum(search, target, operands, Sum), len(names) ** 3)


def _time_differences(search: _Search) -> None:
    targets = search.names("numbers", least=3)
    groups = _comparable_times(search)
    tries = len(targets) * sum(len(group) ** 2 for group in groups) * len(_UNITS)
    if not targets:
        return
    numbers = np.array([search.sample[name][search.first] for name in targets])
    tolerance = np.array([search.known[name].tolerance for name in targets])[:, None]
    for group in groups:
        for first, second in ((one, two) for one in group for two in group if one != two):
            column = search.known[first].column
            assert isinstance(column, Datetime)
            apart = search.sample[first][search.first] - search.sample[second][search.first]
            for unit in _UNITS:
                step = microseconds_of(unit) / column.microseconds
                if step < 1:
                    continue
                fits = ~(np.abs(numbers - apart / step) > tolerance + 1e-6).any(axis=1)
                for at in np.flatnonzero(fits):
                    if targets[at] not in search.computed:
                        search.propose(_difference(search, targets[at], first, second, unit, step), tries)


def _comparable_times(search: _Search) -> list[list[str]]:
    """Return the times in groups that have the same unit and time zone."""
    groups: dict[tuple[str, str | None], list[str]] = defaultdict(list)
    for name in search.names("times"):
        column = search.known[name].column
        assert isinstance(column, Datetime)
        groups[column.unit, column.timezone].append(name)
    return list(groups.values())


# Orders


def _orders(search: _Search) -> None:
    """Propose that one number or time is never above another; what follows from two such orders is not proposed."""
    for names in [search.names("numbers", least=3), *_comparable_times(search)]:
        fits = search.pairs(names, lambda x, y: x > y) if len(names) > 1 else np.zeros((0, 0), bool)
        orders = {(names[low], names[high]) for low, high in np.argwhere(fits).tolist()}
        orders = {(low, high) for low, high in orders if _overlap(search, low, high) > _LEAST / 2}
        orders = {(low, high) for low, high in orders if (search.sample[low] <= search.sample[high]).any()}
        refused: set[tuple[str, str]] = set()
        tried: set[tuple[str, str]] = set()
        while more := sorted(_reduced(orders - refused) - tried, key=lambda pair: [search.place[n] for n in pair]):
            for low, high in more:
                tried.add((low, high))
                if not _propose_order(search, low, high, len(names) ** 2):
                    refused.add((low, high))


def _reduced(orders: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return those orders that do not follow from two others."""
    above: dict[str, set[str]] = defaultdict(set)
    for low, high in orders:
        above[low].add(high)
    return {(low, high) for low, high in orders if not any(high in above[mid] for mid in above[low] if mid != high)}


def _overlap(search: _Search, low: str, high: str) -> float:
    """Return the share of rows in which independent values would break an order."""
    one, two = (search.sample[name][~np.isnan(search.sample[name])] for name in (low, high))
    if not len(one) or not len(two):
        return 0.0
    levels = np.linspace(0, 1, 401)
    below = np.searchsorted(np.quantile(two, levels), np.quantile(one, levels), "left")
    return float(below.mean() / len(levels))


def _propose_order(search: _Search, low: str, high: str, tries: int) -> bool:
    """Propose an order at the column that comes later in the file, or else at the other one."""
    column, unit, step = search.known[high].column, None, 1.0
    apart = search.sample[high] - search.sample[low]
    if isinstance(column, Datetime):
        lengths = {each: microseconds_of(each) / column.microseconds for each in _UNITS}
        fitting = [each for each, length in lengths.items() if length >= 1]
        unit = next((each for each in fitting if np.nanmedian(apart) >= lengths[each]), fitting[-1])
        step = lengths[unit]
    most = float(np.nanmax(search.known[high].at(slice(None)) - search.known[low].at(slice(None)))) / step
    whole = unit is not None or all(search.known[name].tolerance == 0.5 for name in (low, high))
    form = StoredDifference((high, low), lower=0, upper=_generous(most, whole=whole), unit=unit)
    later = max(low, high, key=search.place.__getitem__)
    for target in (later, low if later == high else high):
        if getattr(search.column(target), "stored", None) is None:
            sign = 1 if target == high else -1
            if search.propose(_Proposal(target, form, f"{high} >= {low}", _disordered(sign)), tries):
                return True
    return False


def _disordered(sign: int) -> Broken:
    def broken(values: Sequence[Floats]) -> Mask:
        wrong: Mask = sign * (values[0] - values[1]) < -_near(*values)
        return wrong

    return broken


def _generous(most: float, *, whole: bool) -> int | float:
    """Return a bound of one digit, 1, 2 or 5, that lies at least a quarter above the largest difference."""
    wanted = max(1.25 * most, 1.0 if whole else 1e-12)
    power = 10.0 ** math.floor(math.log10(wanted))
    bound = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= wanted)
    return round(bound) if bound >= 1 else bound


# Lookups


def _lookups(search: _Search) -> None:
    """Propose that one category determines another: the finer the coarser, and of two that do so, the later."""
    as_numbers = {name for name, column in search.found.columns.items() if column.is_number}
    names = search.names("categories")
    names += [name for name in search.names("numbers") if search.known[name].is_listed and name not in as_numbers]
    names.sort(key=search.place.__getitem__)
    codes = {name: _coded(search.sample[name]) for name in names}
    ahead = [name for name in names if isinstance(search.known[name].column, Categorical)]
    leads = {
        (finer, coarse)
        for finer in ahead
        for coarse in names
        if finer != coarse
        and search.distinct[finer] >= search.distinct[coarse]
        and all(_determines(codes[finer][rows], codes[coarse][rows]) for rows in (search.first, slice(None)))
    }
    rank = {name: (search.known[name].is_listed, search.place[name]) for name in names}
    leads = {(one, two) for one, two in leads if (two, one) not in leads or rank[one] < rank[two]}
    tries = len(names) ** 2
    leads = {(one, two) for one, two in leads if search.says_something(_lookup(one, two, _LEARNED), tries)}
    determined = {coarse for _, coarse in leads}
    share = min(_LEARNED, float(f"{_SHARES / max(1, len(determined)):.2g}"))
    for coarse in sorted(determined, key=search.place.__getitem__):
        finest = [finer for finer, to in leads if to == coarse and finer not in determined]
        for finer in sorted(finest, key=lambda name: (search.distinct[name], search.place[name])):
            before = search.column(finer)
            if search.propose(_lookup(finer, coarse, share), tries):
                search.found.notes[coarse].append(
                    f'where everybody can know which value goes with which: table = "{coarse}.csv" in place of learned'
                )
                if search.column(finer) != before:
                    search.found.notes[finer].append(f'the lookup of {coarse} needs unknown = "other" here')
                break


def _lookup(finer: str, coarse: str, share: float) -> _Proposal:
    def broken(values: Sequence[Floats]) -> Mask:
        codes = _coded(values[1])
        wrong: Mask = _representatives(codes, values[0])[codes] != values[0]
        return wrong

    return _Proposal(coarse, Lookup(finer, learned=share), f"{finer} gives {coarse}", broken)


def _coded(values: Floats) -> Integers:
    """Return the rank of each value among the distinct ones, -1 for a missing one."""
    found = np.unique(values, return_inverse=True)[1].astype(np.int64)
    return np.where(np.isnan(values), -1, found)


def _determines(finer: Integers, coarse: Integers) -> bool:
    there = (finer >= 0) & (coarse >= 0)
    finer, coarse = finer[there], coarse[there]
    found = np.zeros(int(finer.max(initial=-1)) + 1, np.int64)
    found[finer] = coarse
    return bool((found[finer] == coarse).all())
