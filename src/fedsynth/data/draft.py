"""Drafts of schemas, made from one site's own file, for a person to edit before the schema is shared.

A draft is derived from the data: its bounds, bin edges, categories and missing flags are facts about that site's rows,
which no privacy budget covers. So are its notes, which its TOML file holds as comments. Neither quotes a value of an
identifier, or one that fewer than ``rare`` rows have.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from fedsynth.data.recognise import (
    INTEGER,
    ISO,
    PLAIN,
    Cells,
    Counts,
    Floats,
    Found,
    all_match,
    as_numbers,
    as_times,
    key_of,
    looks_like_a_value,
    one_line,
    outwards,
    parsed_times,
    recognise,
    recognise_numbers,
    totals,
)
from fedsynth.data.relations import LEAST_ROWS, Known, relations
from fedsynth.data.sdv import sdv_formats, sdv_kinds
from fedsynth.errors import SchemaError, number_of
from fedsynth.progress import Progress, ignore_progress
from fedsynth.schema import MISSING, Schema
from fedsynth.schema.canonical import canonical_texts
from fedsynth.schema.columns import (
    LARGEST,
    LARGEST_INTEGER,
    Boolean,
    Categorical,
    Column,
    Datetime,
    Numeric,
    distinct_values,
    is_missing,
    is_text,
    readable,
    sound_bounds,
)
from fedsynth.schema.forms import Identifier

_HEADER = """\
# DRAFT, derived from one site's data. Do not share it as it is: bounds, edges, lists of categories, missing flags and
# these comments are facts about real rows, and no privacy budget covers them. Replace them by facts that are known
# without looking at the rows (code books, law, physics), delete these comments and the line draft = true, then share
# the file: all sites must use the same schema.
"""
_SOURCE = """\
# This file has a form of its own. A source file, which never leaves the site, says how it is read:
"""

_MADE_UP = "an identifier"
_SUGGESTED = """\
# A synthetic table may have generated identifiers, which do not depend on any row:
#     [[column]]
#     name = "..."
#     type = "id"
#     form = "uuid"    # or "sequence", or a pattern such as "P-#####"
"""

_LAST_YEAR = 9999
_MISSING = frozenset(MISSING)
_ATOM, _MAX_ATOMS = 0.05, 5  # a value gets its own bin from this share of the rows on; most such values per column
_FEW = 20  # numbers of at most so many values are listed one by one


@dataclass(frozen=True)
class Draft:
    """A schema proposed from one site's rows, for a person to edit before it is shared.

    ``notes`` are sentences for its editor by column, including columns that were left out; they state facts about rows,
    as the schema does. ``entries`` are lines by column that may be pasted in place of the column's own, ``source`` the
    lines of a source file that reads the file's form, and ``dates`` the forms of times that are not ISO 8601.
    ``relations`` are lines that declare how columns depend on others (:mod:`fedsynth.data.relations`).
    """

    schema: Schema
    notes: dict[str, list[str]]
    entries: dict[str, list[str]] = field(default_factory=dict)
    source: tuple[str, ...] = ()
    dates: Mapping[str, str] = field(default_factory=dict)
    relations: dict[str, list[str]] = field(default_factory=dict)

    @property
    def left_out(self) -> dict[str, list[str]]:
        """The columns of the file that the schema leaves out, with the reasons."""
        kept = set(self.schema.names)
        return {name: notes for name, notes in self.notes.items() if name not in kept}

    def to_toml(self) -> str:
        """Return the schema as TOML text, with the notes and a warning against sharing it unedited as comments."""
        remarks = {name: [_comment(note) for note in notes] for name, notes in self.notes.items()}
        left_out = [f"# left out: {_comment(name)}: {note}\n" for name in self.left_out for note in remarks[name]]
        if any(_MADE_UP in line for line in left_out):
            left_out.append(_SUGGESTED)
        source = [_SOURCE, *(f"#     {_comment(line)}\n" for line in self.source)] if self.source else []
        for name, lines in (*self.entries.items(), *self.relations.items()):
            remarks[name] = [*remarks.get(name, []), *map(_comment, lines)]
        return _HEADER + "".join([*source, *left_out]) + "\n" + self.schema.to_toml(remarks)


def draft_schema(
    frame: pd.DataFrame,
    *,
    max_categories: int = 50,
    rare: int = 10,
    bins: int = 32,
    form: Sequence[str] = (),
    progress: Progress = ignore_progress,
) -> Draft:
    """Return a draft of the schema of ``frame``, whose rows determine the columns' types, values and bounds.

    What a column is follows from its distinct cells as text (:mod:`fedsynth.data.recognise`), also where the frame has
    types of its own. Usual spellings of missing values are missing, but "NA" and "None" among texts are values.

    * Text with at most ``max_categories`` distinct values becomes categorical. Values with fewer than ``rare`` rows,
      and all beyond the ``max_categories`` commonest, are counted as "other". Identifiers and free text are left out:
      text in which over 20 values all differ, or in which distinct values exceed both 50 and half the values present,
      or whose name or form is that of an identifier.
    * ``true`` and ``false`` become boolean.
    * Whole numbers with at most 20 distinct values become categorical if none is rare, and codes (by their name, by
      leading zeros, or because they repeat and lie far apart) become categorical texts. Other numbers get ``bins`` bins
      between bounds rounded outwards (or about one for each value, if integers or decimals admit fewer), and values
      that 5 % of the rows share, or all of at most 20, get bins of their own.
    * Times get ``bins`` bins between whole years, or one for each day or second, if these are fewer.

    Dates, numbers and words for missing in a form of the site's own are drafted as what they mean, and ``source`` of
    the draft declares the form, after the lines ``form`` on the file itself. ``relations`` that all rows have are
    proposed, and not applied. Raises :class:`SchemaError` for a table without rows or a header, and if no column is
    left.
    """
    _check_frame(frame)
    notes: dict[str, list[str]] = {}
    source: dict[str, dict[str, str]] = {}
    rows, skip = _without_totals(frame)
    found: dict[str, Found] = {}
    for at, (name, values) in enumerate(rows.items()):
        found[str(name)] = _found(str(name), values, rare, ".")
        progress("columns", at + 1, rows.shape[1])
    if any(each.entries.get("decimal") == '","' for each in found.values()):
        doubtful = [name for name, each in found.items() if each.either]
        found |= {name: _found(name, rows[name], rare, ",") for name in doubtful}
    columns: list[Column] = []
    entries: dict[str, list[str]] = {}
    for name, each in found.items():
        column, remarks, lines = _column(name, each, max_categories, rare, bins)
        if column is not None:
            columns.append(column)
            if lines:
                entries[name] = lines
        if remarks:
            notes[name] = remarks
        if each.entries and column is not None:
            source[name] = each.entries
    if not columns:
        raise SchemaError(
            "no column of the file can be modelled: all look empty, rare, like identifiers or like free text; write "
            "the schema by hand (docs/schema.md)"
        )
    numbers = any(each.kind == "number" for each in found.values())
    declared = _declared(form, source, skip, numbers=numbers)
    draft = Draft(Schema(tuple(columns), drafted=True), notes, entries, declared, _dates(source))
    return _with_relations(draft, found, rows)


def _declared(
    form: Sequence[str], source: Mapping[str, Mapping[str, str]], skip: Mapping[str, list[str]], *, numbers: bool
) -> tuple[str, ...]:
    """Return the lines of a source file on the file itself, and on its columns, some of which may be ``numbers``."""
    declared = [*form, *_source_lines(source, skip)]
    if declared and numbers and not any("decimal" in own for own in source.values()):
        declared.insert(len(form), 'decimal = "."')  # without it, a source file reads no cell such as 1.234
    return tuple(declared)


def _with_relations(draft: Draft, found: Mapping[str, Found], frame: pd.DataFrame) -> Draft:
    """Return the draft with the relations that all rows of its frame have."""
    if len(frame) < LEAST_ROWS:
        return draft
    vocabulary: dict[str, int] = {}
    known = [
        _known(column, found[column.name], frame[column.name], vocabulary)
        for column in draft.schema.columns
        if not isinstance(column, Identifier)
    ]
    texts = list(vocabulary)
    proposed = relations([replace(each, texts=texts) for each in known], len(frame))
    for name, notes in proposed.notes.items():
        draft.notes.setdefault(name, []).extend(notes)
    return replace(draft, relations=proposed.lines())


def _known(column: Column, found: Found, cells: pd.Series[Any], vocabulary: dict[str, int]) -> Known:
    """Return a column's values by row; ``vocabulary`` has, and gets, the numbers that stand for texts."""
    which = _positions(found, cells)
    if isinstance(column, Datetime):
        times = cells if which is None else found.times
        assert times is not None
        clock = times if times.dt.tz is None else times.dt.tz_convert(None)
        ticks = clock.to_numpy().astype("datetime64[us]")
        whole = (ticks.astype(np.int64) // column.microseconds).astype(np.float64)
        return Known(column, np.where(np.isnat(ticks), np.nan, whole), which)
    if isinstance(column, Numeric) or type(column.labels[0]) is int:
        assert found.numbers is not None
        return Known(column, np.where(np.abs(found.numbers) <= LARGEST, found.numbers, np.nan), which)
    texts = [str(text).lower() if isinstance(column, Boolean) else text for text in found.labels or ("false", "true")]
    return Known(column, np.array([float(vocabulary.setdefault(text, len(vocabulary))) for text in texts]), which)


def _positions(found: Found, cells: pd.Series[Any]) -> Counts | None:
    """Return the position of each row's value among those found, -1 for a missing one; ``None`` for typed times."""
    if found.cells is not None:
        return _placed(found, found.cells)
    if found.times is not None and found.numbers is None:
        return None
    numbers = cells.to_numpy(np.float64, na_value=np.nan)
    values = np.array([0.0, 1.0]) if found.numbers is None else found.numbers
    at = np.minimum(np.searchsorted(values, numbers), len(values) - 1)
    return np.where(values[at] == numbers, at, -1).astype(np.int64)


def _placed(found: Found, cells: Cells) -> Counts:
    """Return for each row the position of its text among those that were not taken for missing, -1 for others."""
    assert cells.which is not None
    if found.labels is cells.texts or list(found.labels) == list(cells.texts):
        return cells.which
    places = {text: at for at, text in enumerate(found.labels)}
    return np.array([*(places.get(text, -1) for text in cells.texts), -1], np.int64)[cells.which]


def _dates(source: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    return {name: own["dates"].strip('"') for name, own in source.items() if "dates" in own}


def _source_lines(source: Mapping[str, Mapping[str, str]], skip: Mapping[str, list[str]]) -> list[str]:
    """Return the lines of a source file: what all columns concerned share first, then those of single columns."""
    shared = {}
    for key in ("decimal", "thousands", "dates"):
        forms = {own[key] for own in source.values() if key in own}
        if len(forms) == 1 and '"excel"' not in forms:
            shared[key] = forms.pop()
    lines = [f"{key} = {form}" for key, form in shared.items()]
    lines += [f"skip = {one_line(skip)}"] if skip else []
    for name, own in source.items():
        if rest := {key: entry for key, entry in own.items() if key not in shared}:
            lines += [f"[column.{key_of(name)}]", *(f"{key} = {entry}" for key, entry in rest.items())]
    return lines


def draft_from_sdv(frame: pd.DataFrame, metadata: Mapping[str, Any], *, rare: int = 10, bins: int = 32) -> Draft:
    """Return a draft of a schema with the column types of SDV ``metadata``, and with values and bounds from ``frame``.

    ``metadata`` is as in :func:`~fedsynth.data.sdv.sdv_kinds`, and its ``datetime_format`` is that of the cells.
    ``rare`` and ``bins`` are as in :func:`draft_schema`. Columns that the metadata does not describe, or marks as
    identifying, text or unknown, are left out. Raises :class:`SchemaError` for a column of the metadata that is missing
    in the frame or has values of another type, if no column is left, and for metadata that is not SDV's or describes
    several tables.
    """
    _check_frame(frame)
    kinds, formats = sdv_kinds(metadata), sdv_formats(metadata)
    if absent := [name for name in kinds if name not in frame.columns]:
        raise SchemaError(f"the file lacks the columns {absent} of the metadata; it has {', '.join(frame.columns)}")
    columns: list[Column] = []
    notes: dict[str, list[str]] = {}
    entries: dict[str, list[str]] = {}
    source: dict[str, dict[str, str]] = {}
    kept: dict[str, Found] = {}
    for name in frame:
        if name not in kinds:
            notes[str(name)] = ["the metadata marks it as identifying, or does not describe it"]
            continue
        found = _as_kind(str(name), kinds[str(name)], formats.get(str(name)), frame[name], rare)
        if isinstance(found, str):
            raise SchemaError(
                f"the metadata declares column {str(name)!r} as {kinds[str(name)]}, but the file's values do not fit "
                f"({found}); correct its sdtype"
            )
        column, notes[str(name)], entries[str(name)] = _column(str(name), found, len(frame), rare, bins)
        if column is not None:
            columns.append(column)
        if found.entries:
            source[str(name)] = found.entries
        kept[str(name)] = found
    if not columns:
        raise SchemaError(
            "according to the metadata, no column of the file can be modelled; give some of them another sdtype"
        )
    lines = tuple(_source_lines(source, {}))
    draft = Draft(Schema(tuple(columns), drafted=True), notes, entries, lines, _dates(source))
    return _with_relations(draft, kept, frame)


def _as_kind(name: str, kind: str, form: str | None, values: pd.Series[Any], rare: int) -> Found | str:
    """Return a column as one of SDV's kinds, or why it is none."""
    found = _found(name, values, rare, ".")
    told = {"datetime": "time", "numerical": "number"}.get(kind, kind)
    if found.kind in ("empty", told) and (form is None or not found.entries):
        return found
    cells = _cells(name, readable(values))
    if kind == "categorical":
        if found.kind == "number" and found.whole:
            found.kind = "category"
            return found
        return Found("category", cells.counts, cells.empty, labels=cells.texts, cells=cells)
    held = cells.kept(np.array([text not in _MISSING for text in cells.texts], bool))
    if kind == "boolean":
        known = Boolean(name)
        fits = all(known.code(text) >= 0 for text in held.texts)
        if not fits:
            return "some are neither true nor false"
        words = ["true" if known.code(text) else "false" for text in held.texts]
        return Found("boolean", held.counts, held.empty, labels=words)
    if kind == "datetime":
        times = as_times(held, rare, (form,) if form else None)
        return replace(times, cells=cells) if times else "they are no dates of one form"
    numbers = as_numbers(held, rare, ".")
    return replace(numbers, cells=cells) if numbers else "they are no numbers"


def _check_frame(frame: pd.DataFrame) -> None:
    """Raise :class:`SchemaError` for a frame without rows, or without names of its own."""
    if frame.empty:
        raise SchemaError("the table has a header but no rows; pass a table with at least one row")
    if not all(isinstance(name, str) for name in frame.columns):
        raise SchemaError(
            "the names of the table's columns are not all text; name them, as with df.columns = df.columns.map(str)"
        )
    if twice := sorted({name for name, count in Counter(frame.columns).items() if count > 1}):
        raise SchemaError(f"the table has two columns named {twice}; rename one of them")
    if problem := no_header(frame):
        raise SchemaError(problem)


def no_header(frame: pd.DataFrame) -> str:
    """Return why the names of a table seem to be a record, and what to do; "" if they do not. It quotes none."""
    names = [str(name) for name in frame.columns]
    values = [name.strip() for name in names if looks_like_a_value(name)]
    numbers = [int(name) for name in values if re.fullmatch("[0-9]{1,9}", name)]
    counted = len(numbers) == len(values) > 1 and numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    years = len(numbers) == len(values) < len(names) and all(1900 <= number <= 2100 for number in numbers)
    first = frame.iloc[:1000]
    texts = [name for name, kind in zip(names, frame.dtypes, strict=True) if kind.kind == "O" or is_text(first[name])]
    repeated = sum(any(isinstance(cell, str) and cell == name for cell in first[name]) for name in texts)
    as_names = bool(texts) and 4 * repeated >= len(texts) and len(names) > 1
    as_names = as_names and not any(_heads_values(name, first[name]) for name in names)
    if (values and not counted and not years) or as_names:
        sample = one_line(["age", "sex", "..."])
        return (
            f"the table seems to have no header: {max(len(values), repeated)} of its {len(names)} names look like "
            "values of a record, which would be published as names; write a header into the file, or declare the names "
            f"in a source file: csv = {{ names = {sample} }}"
        )
    return ""


def _heads_values(name: str, cells: pd.Series[Any]) -> bool:
    """Return whether a name that is neither a number nor a date stands above numbers and dates alone."""
    texts = {str(cell).strip() for cell in cells.dropna()} - _MISSING
    a_name = bool(name.strip()) and name not in _MISSING and not looks_like_a_value(name)
    return a_name and bool(texts) and all(map(looks_like_a_value, texts))


def _without_totals(frame: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, list[str]]]:
    """Return the rows that are no sums of others, as a row "Total" is, and the words of the others by column."""
    if len(frame) < _FEW:
        return frame, {}
    skip: dict[str, list[str]] = {}
    gone = np.zeros(len(frame), bool)
    for name, values in frame.items():
        if (values.dtype == object or isinstance(values.dtype, pd.StringDtype)) and (words := totals(values)):
            skip[str(name)] = words
            gone |= values.isin(words).to_numpy(bool)
    return (frame[~gone], skip) if skip else (frame, skip)


def guess_types(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame whose text columns have the types that a draft takes them for (:func:`parse_text`).

    Missing values are those of pandas and the usual spellings (``?``, ``NA``, ...). All rows together decide what a
    cell is: one more may change all others. It is for drafts, and for schemas that are made of all rows anyway.
    """
    return pd.DataFrame({name: _guessed(frame[name]) for name in frame}, index=frame.index)


def _guessed(values: pd.Series[Any]) -> pd.Series[Any]:
    values = readable(values)
    return parse_text(values) if is_text(values) else without_missing(values)


def without_missing(values: pd.Series[Any]) -> pd.Series[Any]:
    """Return a column with missing values in place of their usual spellings (``?``, ``NA``, ...)."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        return values.cat.remove_categories([label for label in values.cat.categories if label in _MISSING])
    if is_text(values):
        return values.mask(values.isin(MISSING))
    if values.dtype == object:
        return values.map(lambda value: None if isinstance(value, str) and value in _MISSING else value)
    return values


def parse_text(values: pd.Series[Any]) -> pd.Series[Any]:
    """Convert a text column to the type that all its values have in common, if any.

    Missing values stay missing, and their usual spellings (``?``, ``NA``, ...) become so. The types are tried in this
    order: ``true``/``false`` as booleans, integers, numbers, ISO 8601 times (in UTC if any has a time zone). A column
    with a number of leading zeros, or of more than 18 digits before the point, is taken for labels and stays text, as
    does a column without values. The index and the name stay.
    """
    codes, distinct = distinct_values(values)
    present = np.array([*(text not in _MISSING for text in distinct), False])
    missing = ~present[codes]
    texts = [text for text, there in zip(distinct, present.tolist(), strict=False) if there]
    kinds = {"boolean": "(?i:true|false)", "Int64": INTEGER, "Float64": PLAIN, "time": ISO}
    kind = next((kind for kind, form in kinds.items() if all_match(texts, form)), None)
    parsed = None if kind is None else _parsed(texts, kind)
    if parsed is None:
        return values.mask(missing) if missing.any() else values
    if kind in ("boolean", "Int64") and missing.any():
        parsed = parsed.astype(kind)  # type: ignore[call-overload]
    at = np.cumsum(present) - 1  # position among the texts
    result: pd.Series[Any] = parsed.take(np.where(missing, 0, at[codes])).set_axis(values.index)
    result.name = values.name
    return result.mask(missing) if missing.any() else result


def _parsed(texts: Sequence[str], kind: str) -> pd.Series[Any] | None:
    """Return texts as values of one kind; ``None`` if some look like times and are not in the calendar."""
    column = pd.Series(texts, dtype=object)  # independent of pandas' default type for text
    if kind == "boolean":
        return column.str.lower() == "true"
    if kind == "time":
        return parsed_times(texts)
    try:
        return pd.to_numeric(column)
    except ValueError:  # pandas before version 3 does not read 1e999
        return column.astype("float64")


def _found(name: str, values: pd.Series[Any], rare: int, mark: str) -> Found:
    """Return what a column is; a pandas category with an order is a column by itself."""
    if isinstance(values.dtype, pd.StringDtype):
        return _recognised(_cells(name, values), rare, mark)
    values = readable(values)
    present = values.dropna()
    empty = len(values) - len(present)
    ones: Counts = np.ones(len(present), np.int64)
    if not len(present):
        return Found("empty", ones, empty)
    if unusable := _unusable(present):
        return Found("text", ones, empty, notes=[f"holds {unusable}; write numbers, text or times"])
    if pd.api.types.is_bool_dtype(present.dtype):
        return Found("boolean", ones, empty)
    if pd.api.types.is_datetime64_any_dtype(present.dtype):
        return Found("time", ones, empty, times=present)
    if isinstance(values.dtype, pd.CategoricalDtype) and values.dtype.ordered:
        cells = _cells(name, values)
        order = [str(label) for label in values.dtype.categories if str(label) in set(cells.texts)]
        by_text = dict(zip(cells.texts, cells.counts.tolist(), strict=True))
        held = np.array([by_text[text] for text in order])
        return Found("category", held, empty, labels=order, ordered=True, cells=cells)
    if pd.api.types.is_numeric_dtype(present.dtype):
        whole = bool(pd.api.types.is_integer_dtype(present.dtype))
        numbers, counts = np.unique(present.to_numpy(None if whole else np.float64), return_counts=True)
        if whole and not (int(numbers[0]) >= -LARGEST_INTEGER and int(numbers[-1]) <= LARGEST_INTEGER):
            return recognise(Cells(name, list(map(str, numbers.tolist())), counts, empty), rare=rare)
        if present.dtype == np.float32 or str(present.dtype) == "Float32":
            numbers = np.array([float(str(np.float32(number))) for number in numbers])
        found = Found("number", counts.astype(np.int64), empty, numbers=numbers.astype(np.float64), whole=whole)
        return recognise_numbers(found, name, rare)
    return _recognised(_cells(name, values), rare, mark)


def _recognised(cells: Cells, rare: int, mark: str) -> Found:
    return replace(recognise(cells, rare=rare, mark=mark), cells=cells)


def _cells(name: str, values: pd.Series[Any]) -> Cells:
    """Return the distinct cells of a column as text: text as it is, any other value by its canonical text."""
    which, distinct = distinct_values(values)
    there = which >= 0
    counted = np.bincount(which[there], minlength=len(distinct))
    if set(map(type, distinct)) == {str}:
        return Cells(name, distinct, counted, int((~there).sum()), which)
    counts: dict[str, int] = {}
    known: dict[str, int] = {}
    places = np.full(len(distinct) + 1, -1)
    for at, (value, count) in enumerate(zip(distinct, counted.tolist(), strict=True)):
        if not is_missing(value):
            text = value if isinstance(value, str) else (*canonical_texts(value), str(value))[0]
            counts[text] = counts.get(text, 0) + count
            places[at] = known.setdefault(text, len(known))
    present = np.array(list(counts.values()), np.int64)
    return Cells(name, list(counts), present, len(values) - int(present.sum()), places[which])


def _column(
    name: str, found: Found, max_categories: int, rare: int, bins: int
) -> tuple[Column | None, list[str], list[str]]:
    """Return a column of the draft (``None``: it is left out) with its notes, and lines to paste in its place."""
    if found.kind == "empty":
        return None, ["has no values"], []
    notes = [f"missing in {number_of(found.missing, 'row')}"] if found.missing else []
    notes += found.notes
    missing = found.missing > 0
    if found.kind in ("text", "identifier"):
        free = f"looks like {_MADE_UP} or free text: (nearly) every row has a different value"
        return None, found.notes or [free], []
    if found.kind == "boolean":
        return Boolean(name, missing), notes, []
    if found.kind == "time":
        assert found.times is not None
        column, notes = _draft_times(name, found.times, missing, bins, notes)
        return column, notes, []
    if found.kind == "number":
        assert found.numbers is not None
        few = found.whole and bool(np.isfinite(found.numbers).all()) and len(found.numbers) <= min(_FEW, max_categories)
        common = int(found.counts.min()) >= rare or set(found.numbers.tolist()) <= {0.0, 1.0}
        if few and common and not found.entries:
            values = sorted(int(number) for number in found.numbers)
            low, high = outwards(float(values[0]), float(values[-1]), integer=True)
            number = ['or a number: type = "numeric"', f"low = {low:g}", f"high = {high:g}", "integer = true"]
            return Categorical(name, tuple(values), missing), notes, number if len(values) > 2 else []
        return _draft_numbers(name, found.numbers, found.counts, missing, bins, rare, notes)
    if found.kind == "code" and not found.labels:
        assert found.numbers is not None
        found.labels = [str(int(number)) for number in found.numbers]
    if found.kind == "category" and found.numbers is not None:
        found.labels = [str(int(number)) for number in found.numbers]
        if int(found.counts.min()) >= rare:
            return Categorical(name, tuple(sorted(int(label) for label in found.labels)), missing), notes, []
    return _draft_categories(name, found, missing, max_categories, rare, notes)


def _draft_categories(
    name: str, found: Found, missing: bool, max_categories: int, rare: int, notes: list[str]
) -> tuple[Column | None, list[str], list[str]]:
    counts = dict(zip(found.labels, found.counts.tolist(), strict=True))
    rows = sum(counts.values())
    if broken := sum("\ufffd" in value for value in counts):
        notes.append(f"{number_of(broken, 'value')} with U+FFFD in place of bytes that are not UTF-8: write UTF-8")
    if found.kind == "code":
        notes.append("looks like codes, which are texts: 007 keeps its zeros, and no code lies between two others")
    common = {value: count for value, count in _commonest_first(counts)[:max_categories] if count >= rare}
    if not common:
        return None, [*notes, f"no value has {rare} rows: listing any might identify a person"], []
    values = tuple(value for value in found.labels if value in common) if found.ordered else tuple(sorted(common))
    few = sum(count < rare for count in counts.values())
    if len(common) == len(counts):
        return Categorical(name, values, missing, found.ordered), notes, []
    if few:
        many, their = ("1 value has", "its") if few == 1 else (f"{few} values have", "their")
        notes.append(f"{many} fewer than {rare} rows, and {their} presence may identify a person: counted as 'other'")
    rest = rows - sum(common.values())
    notes.append(
        f"{len(counts)} values; the {len(common)} commonest are listed, all others become 'other' "
        f"({rest} of {rows} rows, {rest / rows:.1%}); list more of them from a code book"
    )
    return Categorical(name, values, missing, found.ordered, unknown="other"), notes, []


def _draft_numbers(
    name: str, numbers: Floats, counts: Counts, missing: bool, bins: int, rare: int, notes: list[str]
) -> tuple[Column | None, list[str], list[str]]:
    usable = np.abs(numbers) <= LARGEST
    present, held = numbers[usable], counts[usable]
    if not len(present) or not sound_bounds(float(present.min()), float(present.max())):
        return None, [f"no two numbers lie within {LARGEST:g} in size and {1 / LARGEST:g} apart: use another unit"], []
    if not usable.all():
        notes.append(f"{int(counts[~usable].sum())} numbers are infinite or beyond {LARGEST:g} and will be clipped")
    integer = bool((present % 1 == 0).all() and np.abs(present).max() < LARGEST_INTEGER)
    low, high = outwards(float(present.min()), float(present.max()), integer)
    notes.append(f"bounds rounded outwards from the smallest and largest value in the rows to [{low:g}, {high:g}]")
    decimals = None if integer else _decimals(present)
    if decimals is not None:  # a bin without a value is none
        bins = max(1, min(bins, round((high - low) * 10**decimals)))
    column = Numeric(name, low, high, None, bins, integer, decimals, missing)
    digits = decimals or 0
    atoms = sorted({round(value, digits) + 0.0 for value in _atoms(present, held, column, rare)})
    if atoms:
        own = [edge for value in atoms for edge in (value, round(value + 10.0**-digits, digits)) if low < edge < high]
        edges = tuple(sorted({*np.round(column.bin_edges, digits).tolist(), *own}))
        column = Numeric(name, low, high, edges, bins, integer, decimals, missing)
        notes.append(f"separate bins for the values {', '.join(f'{value:g}' for value in atoms)}, common in the rows")
    lines = []
    whole = float(held[present % 1 == 0].sum() / held.sum())
    if 0.99 <= whole < 1:
        notes.append(f"{whole:.1%} of the numbers are whole; integer = true leaves the others out")
        lines = ["in place of decimals: integer = true"]
    if not integer and len(present) <= _FEW and atoms:
        listed = one_line([f"{value:.15g}" for value in atoms])
        lines += ['or listed values: type = "categorical"', f"values = {listed}"]
        lines += ['unknown = "other"'] * (len(atoms) < len(present))
    return column, notes, lines


def _atoms(present: Floats, counts: Counts, column: Numeric, rare: int) -> list[float]:
    """Return the few most common values, which bins would otherwise merge with their neighbours."""
    if not column.integer and column.decimals is None:
        return []
    if len(column.bin_edges) > column.high - column.low and column.integer:
        return []  # every value has its own bin already
    few = len(present) <= _FEW
    least = rare if few else max(rare, _ATOM * counts.sum())
    common = {float(value): int(count) for value, count in zip(present, counts, strict=True) if count >= least}
    return sorted(value for value, _ in _commonest_first(common)[: _FEW if few else _MAX_ATOMS])


def _decimals(present: Floats) -> int | None:
    """Return the number of decimals that all values need, or None for more than six."""
    for digits in range(1, 7):
        if np.allclose(present, np.round(present, digits), rtol=0, atol=1e-9):
            return digits
    return None


def _draft_times(
    name: str, present: pd.Series[Any], missing: bool, bins: int, notes: list[str]
) -> tuple[Column, list[str]]:
    zone = None if present.dt.tz is None else str(present.dt.tz)
    first, last = (min(max(year, 1), _LAST_YEAR) for year in (present.min().year, present.max().year))
    unit = "D" if (present == present.dt.normalize()).all() else "s"
    low, high = f"{first:04}-01-01", f"{last + 1:04}-01-01"
    if last == _LAST_YEAR:  # ISO 8601 cannot express the next year
        high = f"{last}-12-31" + ("T23:59:59" if unit == "s" else "")
    notes.append(f"bounds rounded outwards to whole years, [{low}, {high}]")
    return Datetime(name, low, high, bins=bins, unit=unit, timezone=zone, missing=missing), notes


def _unusable(present: pd.Series[Any]) -> str:
    """Return the kind of values that no schema column can describe, or an empty text if there are none."""
    if pd.api.types.is_timedelta64_dtype(present.dtype):
        return "durations"
    if pd.api.types.is_complex_dtype(present.dtype):
        return "complex numbers"
    if present.dtype == object and not is_text(present) and not all(isinstance(value, Hashable) for value in present):
        return "lists or records"
    return ""


def _commonest_first(counts: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    """Return values with their counts, commonest first; ties are ordered by value, independently of the row order."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _comment(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)
