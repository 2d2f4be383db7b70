"""Coarse columns: categories that another, finer column determines, such as a city's country or a time's weekday.

A coarse column is never read from rows: sites compute its code from that of the finer column, so that it is a function
of the row and the schema alone (:mod:`fedsynth.schema.derive`, rule 1). It is counted and modelled like any other
column. A model relates the two only roughly; when rows are published, the coarse value stays and the finer one is moved
to a value that agrees with it. The other way round, the coarse column's relations to further columns would be lost,
since a model merges the rare values of a fine column.

What value leads where may also be *learned* (:class:`~fedsynth.schema.forms.Lookup`). Sites then read both columns, and
a row's encoding is that of two plain columns; only published rows are moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import SchemaError, nearest
from fedsynth.schema.bins import Floats, Integers
from fedsynth.schema.columns import Boolean, Categorical, Column, Datetime, code_of
from fedsynth.schema.forms import Lookup, Part

_DAY = 86400.0
_UNREACHED = -1
_OTHER = "other"

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class CoarseColumn:
    """A coarse ``column``, which its ``form`` computes from the ``finer`` one.

    ``leads`` is the code of the coarse column for each code of a category (int64), -1 where a learned table does not
    say; ``None`` for a part of a time. ``root`` is the name of the column that is read from rows: the finest.
    """

    column: Categorical | Boolean
    finer: Column
    form: Lookup | Part
    leads: Integers | None
    root: str

    @property
    def learned(self) -> bool:
        """Whether sites read the column, and a run finds out what leads to its values."""
        return isinstance(self.form, Lookup) and self.form.learned is not None

    @property
    def leading(self) -> Mask:
        """A mask of the codes of a finer category that lead to a coarse one; by a declared table, all do."""
        assert self.leads is not None
        found: Mask = (self.leads != _UNREACHED) & ~self.free
        return found

    @property
    def free(self) -> Mask:
        """A mask of a finer category's codes that go with any coarse value: by a learned table, "other" and missing."""
        assert not self.finer.is_number
        codes = np.arange(self.finer.size)
        found: Mask = self.learned & ((codes >= len(self.finer.labels)) | (codes == self.other))
        return found

    @property
    def other(self) -> int:
        """The code of "other" of a finer category, -1 without one."""
        labels = () if self.finer.is_number else self.finer.texts
        return labels.index(_OTHER) if _OTHER in labels else -1

    def codes(self, values: NDArray[Any]) -> Integers:
        """Return the coarse column's codes (int64), from the finer one's codes, or its numbers if these are times."""
        if self.leads is not None:
            return np.where(values < 0, -1, self.leads[values])
        assert isinstance(self.finer, Datetime)
        assert isinstance(self.form, Part)
        gone = np.isnan(values)
        found = parts_of(self.finer, np.where(gone, 0.0, values))[self.form.part]
        return np.where(gone, self.column.size - 1, found)


def coarse_columns(columns: Iterable[Column]) -> tuple[CoarseColumn, ...]:
    """Return those ``columns`` that another one determines, in order."""
    known = {column.name: column for column in columns}
    found: dict[str, CoarseColumn] = {}
    for column in known.values():
        form = coarse_form(column)
        if form is not None:
            name = form.operands[0]
            coarse = coarse_column(column, known[name], form)
            found[column.name] = replace(coarse, root=found[name].root) if name in found else coarse
    return tuple(found.values())


def coarse_form(column: Column) -> Lookup | Part | None:
    """Return the form of a coarse column that sites compute, ``None`` for any other."""
    form = None if isinstance(column, Datetime) else column.computed
    return form if isinstance(form, Part) or (isinstance(form, Lookup) and form.learned is None) else None


def learned_columns(asked: Iterable[Column]) -> tuple[CoarseColumn, ...]:
    """Return the columns that another one determines by a table to be learned, in order; both are ``asked``.

    Raises :class:`SchemaError` for columns that are not both categories, for a finer one that has no value "other" to
    stand for those whose result noise hides, and for shares of the budget above 0.5 together.
    """
    known = {column.name: column for column in asked}
    found = []
    for column in known.values():
        form = column.computed
        if not isinstance(form, Lookup):
            continue
        if (finer := known.get(form.lookup)) is None or isinstance(finer.computed, Lookup):
            raise _wrong(
                column,
                f"{form.lookup!r} is not a column that is read from rows and not looked up itself; "
                + nearest(form.lookup, (name for name in known if known[name].computed is None)),
            )
        if not isinstance(column, Categorical | Boolean):
            raise _wrong(column, "a lookup needs a categorical or boolean column")
        if not isinstance(finer, Categorical) or _OTHER not in finer.labels:
            raise _wrong(
                column,
                f"a learned lookup needs a categorical {finer.name!r} with unknown = 'other', which stands for the "
                "values whose result noise hides",
            )
        leads = np.full(finer.size, _UNREACHED) if not form.table else _leads(column, finer, form)
        found.append(CoarseColumn(column, finer, form, leads, finer.name))
    if (share := sum(one.form.learned for one in found if isinstance(one.form, Lookup) and one.form.learned)) > 0.5:
        raise SchemaError(f"learned lookups cost {share:g} of the budget together; leave at least half to the method")
    return tuple(found)


def coarse_column(column: Column, finer: Column, form: Lookup | Part) -> CoarseColumn:
    """Return the coarse ``column`` with the ``finer`` one; :class:`SchemaError` for a ``form`` that does not fit."""
    leads = _leads(column, finer, form) if isinstance(form, Lookup) else None
    if isinstance(form, Part):
        _check_part(column, finer, form)
    assert isinstance(column, Categorical | Boolean)
    return CoarseColumn(column, finer, form, leads, finer.name)


def _leads(column: Column, finer: Column, form: Lookup) -> Integers:
    if column.is_number or finer.is_number:
        raise _wrong(column, "a lookup needs a categorical or boolean column, looked up by another such column")
    leads = np.full(finer.size, _UNREACHED)
    for key, value in form.table.items():
        code, result = code_of(finer, key, ()), code_of(column, value, ())
        if code is None:
            raise _wrong(column, f"the table has the key {key!r}, which is not a value of {finer.name!r}")
        if result is None:
            raise _wrong(column, f"the table maps to {value!r}, which the column does not list; add it to values")
        leads[code] = result
    if form.learned is not None:
        return leads
    if (leads == _UNREACHED).any() and not column.missing:
        raise _wrong(
            column,
            f"the table lacks values of {finer.name!r} (which may include missing); add them, or set missing = true",
        )
    return np.where(leads == _UNREACHED, column.size - 1, leads)


def _check_part(column: Column, finer: Column, form: Part) -> None:
    if not isinstance(finer, Datetime):
        raise _wrong(column, f"{finer.name!r} is not a datetime column, which alone has a {form.part}")
    if column.is_number or len(column.labels) != form.values:
        raise _wrong(column, f"a {form.part} needs a categorical column of {form.values} values, in order")
    if finer.missing and not column.missing:
        raise _wrong(column, f"{finer.name!r} may be missing, which makes the value missing; set missing = true")
    if form.part == "hour" and finer.unit == "D":
        raise _wrong(column, f"{finer.name!r} has no hours, since its unit is D; give it a finer unit")


def _wrong(column: Column, why: str) -> SchemaError:
    return SchemaError(f"column {column.name!r}: {why}")


# ---------------------------------------------------------------------------------------------------------------------
# Publishing


def agree(
    values: MutableMapping[str, NDArray[Any]],
    coarse: Sequence[CoarseColumn],
    allowed: Mapping[str, Sequence[int]] | None = None,
) -> None:
    """Move the values of finer columns in ``values`` to some that agree with the coarse ones of the same row.

    ``values`` are those of drawn rows by column (codes, or times as numbers), changed in place. Afterwards, coarse
    values are as computed: where no finer value leads to them together, they give way. Rows that agree are not changed.
    By a learned table, coarse values always stay: a finer value that leads nowhere, and is not missing, becomes
    "other", and so does one that cannot be moved. ``allowed`` are the only codes that rows may have of a finer column,
    where there are conditions on it.
    """
    by_finer: dict[str, list[CoarseColumn]] = {}
    for one in coarse:
        by_finer.setdefault(one.finer.name, []).append(one)
    for name, several in reversed(by_finer.items()):  # a coarse column may be finer than another: the coarsest first
        if isinstance(several[0].finer, Datetime):
            values[name] = _moved_times(values, several[0].finer, several)
        else:
            values[name] = _moved_codes(values[name], values, several, (allowed or {}).get(name))
    for one in coarse:
        if not one.learned:
            values[one.column.name] = one.codes(values[one.finer.name])


def _moved_codes(
    codes: Integers,
    values: Mapping[str, NDArray[Any]],
    several: Sequence[CoarseColumn],
    allowed: Sequence[int] | None,
) -> Integers:
    """Return the ``codes`` of a category, exchanged among rows that disagree with its coarse columns.

    Rows that are left over take the value of a row that agrees, or any value that leads to theirs.
    """
    finer = several[0].finer
    leads, wanted = np.zeros(finer.size, dtype=np.int64), np.zeros(len(codes), dtype=np.int64)
    for one in several:
        assert one.leads is not None
        leads = leads * one.column.size + one.leads
        wanted = wanted * one.column.size + values[one.column.name].astype(np.int64)
    leading, free = (np.logical_and.reduce([getattr(one, which) for one in several]) for which in ("leading", "free"))
    leads[~leading] = _UNREACHED
    found = codes.astype(np.int64)
    found[~(leading | free)[found]] = several[0].other
    other = [several[0].other] if free.any() and (allowed is None or several[0].other in allowed) else []
    wrong = leading[found] & (leads[found] != wanted)
    spare = np.flatnonzero(wrong)
    spare = spare[np.argsort(leads[found[spare]], kind="stable")]
    ends = leads[found[spare]]
    moved = found.copy()

    def leading_to(value: int) -> Integers:
        codes = np.flatnonzero(leads == value)
        return codes if allowed is None else np.intersect1d(codes, allowed)

    for value in np.unique(wanted[wrong]):
        rows = np.flatnonzero(wrong & (wanted == value))
        pool = found[spare[np.searchsorted(ends, value) : np.searchsorted(ends, value, side="right")]]
        if len(pool) < len(rows):
            right = found[(~wrong) & (wanted == value)]
            more = right if len(right) else pool if len(pool) else np.array([*leading_to(value), *other])
            if not len(more):
                continue  # no finer value leads there
            pool = np.concatenate([pool, np.resize(more, len(rows) - len(pool))])
        moved[rows] = pool[: len(rows)]
    return moved


def _moved_times(values: Mapping[str, NDArray[Any]], column: Datetime, several: Sequence[CoarseColumn]) -> Floats:
    """Return a column's times, moved to the month, weekday and hour of their rows, as little as that takes.

    A month keeps the day (or its last one), a weekday is at most three days away if the month is free, an hour keeps
    the minutes. A time stays where the part is missing, or where it would leave the column's bounds.
    """
    times = values[column.name]
    wanted = {one.form.part: one for one in several if isinstance(one.form, Part)}
    for part in ("month", "weekday", "hour"):
        if part not in wanted:
            continue
        code, one = values[wanted[part].column.name], wanted[part]
        rows = np.flatnonzero(~np.isnan(times) & (code < len(one.column.labels)) & (one.codes(times) != code))
        fixed = part == "weekday" and "month" in wanted
        found = _moved(column, times[rows], part, code[rows].astype(np.int64), fixed)
        low, high = column.bin_edges[[0, -1]]
        times = times.copy()
        times[rows] = np.where((found >= low) & (found <= high), found, times[rows])
    return times


def _moved(column: Datetime, times: Floats, part: str, code: Integers, within_month: bool) -> Floats:
    """Return known times moved to another ``part``, whose ``code`` is given; within the month, if that is asked for."""
    now, day = parts_of(column, times), _DAY * 1e6 / column.microseconds
    found: Floats
    if part == "hour":
        found = times + (code - now["hour"]) * day / 24
        return found
    if part == "weekday":
        ahead = (code - now["weekday"] + 3) % 7 - 3
        if within_month:
            shifted = now["day"] + ahead
            ahead = ahead + np.where(shifted < 1, 7, 0) - np.where(shifted > now["days"], 7, 0)
        found = times + ahead * day
        return found
    first = (now["year"] - 1970).astype("datetime64[Y]").astype("datetime64[M]") + code
    last = ((first + 1).astype("datetime64[D]") - first.astype("datetime64[D]")).astype(np.int64)
    goal = first.astype("datetime64[D]").astype(np.int64) + np.minimum(now["day"], last) - 1
    found = times + (goal - now["since"]) * day
    return found


def parts_of(column: Datetime, times: Floats) -> dict[str, Integers]:
    """Return parts of known times in the column's own zone: weekday (0 is Monday), month and hour from 0, and dates."""
    series = column.series(times)
    clock = series.dt.tz_localize(None) if column.timezone is not None else series
    since = clock.to_numpy().astype("datetime64[D]").astype(np.int64)
    fields = {"weekday": "day_of_week", "hour": "hour", "day": "day", "days": "days_in_month", "year": "year"}
    parts = {name: getattr(clock.dt, field).to_numpy(np.int64) for name, field in fields.items()}
    return {**parts, "month": clock.dt.month.to_numpy(np.int64) - 1, "since": since}
