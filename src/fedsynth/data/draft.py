"""Drafts of schemas, made from one site's own file, for a person to edit before the schema is shared.

A draft is derived from the data: its bounds, bin edges, categories and missing flags are facts about that site's rows,
which no privacy budget covers. So are its notes, which its TOML file holds as comments: they name rare categories and
common values.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd

from fedsynth.data.sdv import sdv_kinds
from fedsynth.errors import SchemaError, number_of
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
    is_text,
    readable,
    sound_bounds,
)

_HEADER = """\
# DRAFT, derived from one site's data. Do not share it as it is: bounds, edges, lists of categories, missing flags and
# these comments are facts about real rows, and no privacy budget covers them. Replace them by facts that are known
# without looking at the rows (code books, law, physics), delete rare categories (or set unknown = "other"), these
# comments and the line draft = true, then share the file: all sites must use the same schema.
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


@dataclass(frozen=True)
class Draft:
    """A schema proposed from one site's rows, for a person to edit before it is shared.

    ``notes`` are sentences for its editor by column, including columns that were left out; they state facts about rows,
    as the schema does.
    """

    schema: Schema
    notes: dict[str, list[str]]

    @property
    def left_out(self) -> dict[str, list[str]]:
        """The columns of the file that the schema leaves out, with the reasons."""
        return {name: notes for name, notes in self.notes.items() if name not in self.schema.names}

    def to_toml(self) -> str:
        """Return the schema as TOML text, with the notes and a warning against sharing it unedited as comments."""
        remarks = {name: [_comment(note) for note in notes] for name, notes in self.notes.items()}
        left_out = [f"# left out: {_comment(name)}: {note}\n" for name in self.left_out for note in remarks[name]]
        if any(_MADE_UP in line for line in left_out):
            left_out.append(_SUGGESTED)
        return _HEADER + "".join(left_out) + "\n" + self.schema.to_toml(remarks)


def draft_schema(frame: pd.DataFrame, *, max_categories: int = 50, rare: int = 10, bins: int = 32) -> Draft:
    """Return a draft of the schema of ``frame``, whose rows determine the columns' types, values and bounds.

    Columns of text, such as those of a CSV file, are first converted to the type that all their values have in common
    (:func:`parse_text`); the usual spellings of missing values are missing.

    * Text with at most ``max_categories`` distinct values becomes categorical. With more, the ``max_categories``
      commonest are listed and the others counted as "other". Text in which over 20 values all differ, or in which the
      distinct values exceed both ``max_categories`` and half the values present, is left out as an identifier or free
      text.
    * ``true`` and ``false`` become boolean.
    * Integers with at most 20 distinct values (and at most ``max_categories``) become categorical, and columns with
      integers beyond 2^53 are treated as text. Other numbers get ``bins`` bins between bounds rounded outwards (or
      about one for each value, if integers or decimals admit fewer), and up to five values that 5 % of the rows share
      get bins of their own. Integers that look as if they number the rows (over 100 values, all different and close
      together) are left out.
    * Times get ``bins`` bins between whole years, or one for each day or second, if these are fewer.

    The notes for its editor count the categories with fewer than ``rare`` rows, and name up to eight of them. Raises
    :class:`SchemaError` for a table without rows, or if no column is left.
    """
    if frame.empty:
        raise SchemaError("the table has a header but no rows; pass a table with at least one row")
    columns: list[Column] = []
    notes: dict[str, list[str]] = {}
    for name in frame:
        column, remarks = _draft_column(str(name), _guessed(frame[name]), max_categories, rare, bins)
        if column is not None:
            columns.append(column)
        if remarks:
            notes[str(name)] = remarks
    if not columns:
        raise SchemaError(
            "no column of the file can be modelled: all look empty, like identifiers or like free text; write the "
            "schema by hand (docs/schema.md)"
        )
    return Draft(Schema(tuple(columns), drafted=True), notes)


def draft_from_sdv(frame: pd.DataFrame, metadata: Mapping[str, Any], *, bins: int = 32) -> Draft:
    """Return a draft of a schema with the column types of SDV ``metadata``, and with values and bounds from ``frame``.

    ``metadata`` is as in :func:`~fedsynth.data.sdv.sdv_kinds`. ``bins`` is the number of bins of numbers and times, to
    which common values add bins of their own. Columns that the metadata does not describe, or marks as identifying,
    text or unknown, are left out. Raises :class:`SchemaError` for a column of the metadata that is missing in the frame
    or has values of another type, if no column is left, and for metadata that is not SDV's or describes several tables.
    """
    kinds = sdv_kinds(metadata)
    if absent := [name for name in kinds if name not in frame.columns]:
        raise SchemaError(f"the file lacks the columns {absent} of the metadata; it has {', '.join(frame.columns)}")
    columns: list[Column] = []
    notes: dict[str, list[str]] = {}
    for name in frame:
        if name not in kinds:
            notes[str(name)] = ["the metadata marks it as identifying, or does not describe it"]
            continue
        present = _guessed(frame[name]).dropna()
        try:
            column, remarks = _as_kind(str(name), kinds[str(name)], present, len(present) < len(frame), bins)
        except (TypeError, ValueError) as error:
            raise SchemaError(
                f"the metadata declares column {str(name)!r} as {kinds[str(name)]}, but the file's values do not fit "
                f"({error}); correct its sdtype"
            ) from error
        if column is not None:
            columns.append(column)
        notes[str(name)] = remarks
    if not columns:
        raise SchemaError(
            "according to the metadata, no column of the file can be modelled; give some of them another sdtype"
        )
    return Draft(Schema(tuple(columns), drafted=True), notes)


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
    kinds = {
        "boolean": r"(?i:true|false)",
        "Int64": r"[+-]?(?:0|[1-9]\d{0,17})",
        "Float64": _NUMBER,
        "time": _TIME,
    }
    kind = next((kind for kind, form in kinds.items() if _all_match(texts, form)), None)
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
        aware = any(map(_ZONED.search, texts))
        # A schema's finest unit is the microsecond; the unit that pandas would choose depends on its version.
        parsed: pd.Series[Any] = pd.to_datetime(column, format="ISO8601", utc=aware, errors="coerce").dt.as_unit("us")
        # Some are outside the range of pandas' nanoseconds.
        return parsed if parsed.dt.year.between(1, 9999).all() else _far_times(texts, aware)
    try:
        return pd.to_numeric(column)
    except ValueError:  # pandas before version 3 does not read 1e999
        return column.astype("float64")


_NUMBER = r"[+-]?(?:0|[1-9]\d{0,17}|(?=\.\d))(?:\.\d*)?(?:[eE][+-]?\d+)?|[+-]?inf"
_ZONED = re.compile(r"(?:Z|[+-]\d\d:?\d\d)$")
_TIME = r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)?"


def _far_times(texts: Sequence[str], aware: bool) -> pd.Series[Any] | None:
    """Return times of the years 1 to 9999 in microseconds (in UTC if ``aware``); ``None`` if one is not a time."""
    try:
        times = [datetime.fromisoformat(text) for text in texts]
        plain = [(time - (time.utcoffset() or timedelta(0))).replace(tzinfo=None) for time in times]
    except (ValueError, OverflowError):
        return None
    found: pd.Series[Any] = pd.Series(np.array(plain, dtype="datetime64[us]"))
    return found.dt.tz_localize("UTC") if aware else found


def _all_match(texts: Sequence[Any], form: str) -> bool:
    """Return whether there is at least one text and all match the regular expression ``form``."""
    # Python's engine, because pandas matches some text types by another engine.
    whole = re.compile(form, re.ASCII).fullmatch
    return bool(texts) and all(isinstance(text, str) and whole(text) for text in texts)


def _as_kind(
    name: str, kind: str, present: pd.Series[Any], missing: bool, bins: int
) -> tuple[Column | None, list[str]]:
    if not len(present):
        return None, ["it has no values"]
    if kind == "boolean":
        boolean = Boolean(name, missing)
        if (boolean.encode(present, np.zeros(len(present), dtype=bool)).codes < 0).any():
            raise ValueError("some are neither true nor false")
        return boolean, []
    if kind == "categorical":
        whole = pd.api.types.is_integer_dtype(present.dtype)
        counts: Counter[Any] = Counter(present.astype("int64").tolist()) if whole else _labels(present)
        return Categorical(name, tuple(sorted(counts)), missing), _rare(counts, rare=10)
    if kind == "datetime":
        return _draft_times(name, pd.to_datetime(present, format="ISO8601"), missing, bins, [])
    return _draft_numbers(name, present.astype("float64"), missing, bins, [])


def _draft_column(
    name: str, values: pd.Series[Any], max_categories: int, rare: int, bins: int
) -> tuple[Column | None, list[str]]:
    present = values.dropna()
    missing = len(present) < len(values)
    if not len(present):
        return None, ["has no values"]
    if unusable := _unusable(present):
        return None, [f"holds {unusable}; write numbers, text or times"]
    if pd.api.types.infer_dtype(present) == "decimal":
        present = present.astype("float64")
    notes = [f"missing in {number_of(len(values) - len(present), 'row')}"] if missing else []
    if pd.api.types.is_bool_dtype(present.dtype):
        return Boolean(name, missing), notes
    if pd.api.types.is_datetime64_any_dtype(present.dtype):
        return _draft_times(name, present, missing, bins, notes)
    if pd.api.types.is_numeric_dtype(present.dtype):
        distinct = present.nunique()
        if (
            pd.api.types.is_integer_dtype(present.dtype)
            and distinct == len(present) > 100
            and int(present.max()) - int(present.min()) < 2 * distinct
        ):
            return None, [f"looks like a row number or {_MADE_UP}: every row has a different value"]
        codes = pd.api.types.is_integer_dtype(present.dtype) and bool(
            (present > LARGEST_INTEGER).any() or (present < -LARGEST_INTEGER).any()
        )
        if pd.api.types.is_integer_dtype(present.dtype) and distinct <= min(20, max_categories) and not codes:
            counts = Counter(present.tolist())
            return Categorical(name, tuple(sorted(counts)), missing), notes + _rare(counts, rare)
        if not codes:
            return _draft_numbers(name, present.astype("float64"), missing, bins, notes)
        notes.append("integers beyond 2^53, which floating-point numbers cannot represent exactly, are taken as codes")
    text = _labels(present)
    if broken := sum("\ufffd" in value for value in text):
        if 2 * broken > len(text):
            return None, ["holds bytes that are no UTF-8 text; write numbers, text or times"]
        notes.append(f"{number_of(broken, 'value')} with U+FFFD in place of bytes that are not UTF-8: write UTF-8")
    if {value.lower() for value in text} <= {"true", "false"}:
        return Boolean(name, missing), notes
    distinct = len(text)
    if distinct == len(present) > 20 or distinct > max(max_categories, len(present) // 2):
        return None, [f"looks like {_MADE_UP} or free text: (nearly) every row has a different value"]
    if distinct > max_categories:
        text = Counter(dict(_commonest_first(text)[:max_categories]))
        notes.append(f"{distinct} values; the {max_categories} commonest are listed, all others become 'other'")
        return Categorical(name, tuple(sorted(text)), missing, unknown="other"), notes + _rare(text, rare)
    return Categorical(name, tuple(sorted(text)), missing), notes + _rare(text, rare)


def _labels(present: pd.Series[Any]) -> Counter[str]:
    """Count the values of a column as labels: text as it is, any other value by its canonical text."""
    which, distinct = distinct_values(present)
    counts: Counter[str] = Counter()
    for value, count in zip(distinct, np.bincount(which, minlength=len(distinct)).tolist(), strict=True):
        texts = (value,) if isinstance(value, str) else canonical_texts(value)
        counts.update(dict.fromkeys(texts[-1:], count))
    return counts


def _draft_numbers(
    name: str, present: pd.Series[Any], missing: bool, bins: int, notes: list[str]
) -> tuple[Column | None, list[str]]:
    usable = present[present.abs() <= LARGEST]
    if not len(usable) or not sound_bounds(float(usable.min()), float(usable.max())):
        return None, [f"no two numbers lie within {LARGEST:g} in size and {1 / LARGEST:g} apart: use another unit"]
    if len(usable) < len(present):
        notes.append(f"{len(present) - len(usable)} numbers are infinite or beyond {LARGEST:g} and will be clipped")
        present = usable
    integer = bool((present % 1 == 0).all() and present.abs().max() < LARGEST_INTEGER)
    low, high = _outwards(float(present.min()), float(present.max()), integer)
    notes.append(f"bounds rounded outwards from the smallest and largest value in the rows to [{low:g}, {high:g}]")
    decimals = None if integer else _decimals(present)
    if decimals is not None:  # a bin without a value is none
        bins = max(1, min(bins, round((high - low) * 10**decimals)))
    column = Numeric(name, low, high, None, bins, integer, decimals, missing)
    digits = decimals or 0
    atoms = sorted({round(value, digits) for value in _atoms(present, column)})
    if atoms:
        own = [edge for value in atoms for edge in (value, round(value + 10.0**-digits, digits)) if low < edge < high]
        edges = tuple(sorted({*np.round(column.bin_edges, digits).tolist(), *own}))
        column = Numeric(name, low, high, edges, bins, integer, decimals, missing)
        notes.append(f"separate bins for the values {', '.join(f'{value:g}' for value in atoms)}, common in the rows")
    return column, notes


def _atoms(present: pd.Series[Any], column: Numeric) -> list[float]:
    """Return the few most common values, which bins would otherwise merge with their neighbours."""
    if not column.integer and column.decimals is None:
        return []
    if len(column.bin_edges) > column.high - column.low and column.integer:
        return []  # every value has its own bin already
    shares = present.value_counts(normalize=True)
    shares = shares[shares >= _ATOM]
    common = dict(zip(shares.index.tolist(), shares.tolist(), strict=True))
    return sorted(value for value, _ in _commonest_first(common)[:_MAX_ATOMS])


def _decimals(present: pd.Series[Any]) -> int | None:
    """Return the number of decimals that all values need, or None for more than six."""
    for digits in range(1, 7):
        if np.allclose(present, present.round(digits), rtol=0, atol=1e-9):
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


def _rare(counts: Mapping[Any, int], rare: int) -> list[str]:
    few = [str(value) for value, count in _commonest_first(counts) if count < rare]
    if not few:
        return []
    shown = ", ".join(repr(value) for value in few[:8]) + (", ..." if len(few) > 8 else "")
    many, their = ("1 value has", "its") if len(few) == 1 else (f"{len(few)} values have", "their")
    return [f"{many} fewer than {rare} rows, and {their} presence may identify a person: {shown}"]


def _outwards(low: float, high: float, integer: bool) -> tuple[float, float]:
    """Return bounds rounded outwards to one digit of the range, or of the value itself for a constant."""
    step = 10.0 ** math.floor(math.log10((high - low) or abs(high) or 1.0))
    if integer:
        step = max(step, 1.0)
    # Division is more exact than multiplication by the inverse: 0.1 * 3 is not 0.3.
    low, high = math.floor(low / step), math.ceil(high / step)
    return (low * step, high * step) if step >= 1 else (low / round(1 / step), high / round(1 / step))


def _comment(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)
