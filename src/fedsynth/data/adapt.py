"""Drafts of source files: what each column of an agreed schema is read from, proposed from one site's own file.

Each proposal is tried by the reader of runs itself, so the counts beside it are those of a run. What a draft declares
are constants; nothing is inferred when rows are read (:mod:`fedsynth.data.sources.declared`). No draft quotes a value
that fewer than ``rare`` rows have, nor one of an identifier, but for words that everybody knows.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs
from numpy.typing import NDArray
from rapidfuzz import fuzz, process
from scipy.optimize import linear_sum_assignment

from fedsynth.data.draft import no_header
from fedsynth.data.meanings import folded, meanings, named_alike
from fedsynth.data.recognise import (
    CLOCK,
    KNOWN_UNITS,
    NUMBER,
    WORDS,
    Cells,
    is_sentinel,
    key_of,
    likely_forms,
    looks_like_a_value,
    one_line,
    recognise,
    totals,
)
from fedsynth.data.sources import declared_rows
from fedsynth.data.sources.arrow import encode_column, is_text, readable
from fedsynth.data.sources.declared import DeclaredRows
from fedsynth.data.sources.files import WORKBOOK, CsvRows, is_csv
from fedsynth.data.sources.source_file import SourceColumn, SourceFile, Word
from fedsynth.data.sources.workbook import WorkbookRows
from fedsynth.data.text_form import text_form
from fedsynth.errors import SchemaError, Unsupported, number_of
from fedsynth.progress import Progress, ignore_progress
from fedsynth.schema import Schema
from fedsynth.schema.columns import Boolean, Categorical, Column, Datetime, Numeric
from fedsynth.settings import read_settings

Mask = NDArray[np.bool_]
LOOK = "# LOOK:"
_OFFER = "#: "  # before an entry that a person may want
_SAMPLE = 400  # commonest cells by which pairs of columns are compared
_PAIRS = 4000  # pairs of columns from which on only those with names alike are compared by values
_FITS = 0.9  # share of the distinct cells from which on they speak for a column
_ALIKE = 0.75  # names alike enough to be read without a look at the values
_SHOWN = 5  # kinds of cells named in a comment
_Marks = tuple[Any, Any]  # decimal and thousands
_MARKS: tuple[_Marks, ...] = (
    *((None, None), (".", None), (",", None), (".", ","), (",", ".")),
    *((mark, by) for mark in ".," for by in (" ", "'")),
)
_EXTRACTS = ("", r"^(\d+) ?/", NUMBER)  # a number, the first of two, one among other signs
_HEADER = """\
# DRAFT of a source file, from the rows of {name}. It never leaves this site. Decide where a comment begins with LOOK
# (to take up an entry that it offers, delete the signs #: before it), compare the other entries with the file, and
# delete the line draft = true: until then, no run reads the rows.
draft = true
"""


@dataclass(frozen=True)
class Adapted:
    """A drafted source file as ``text``, and the ``rows`` that it declares, as if it were confirmed."""

    text: str
    rows: DeclaredRows

    @property
    def looks(self) -> list[str]:
        """The sentences that a person has to decide on."""
        return [line.partition(LOOK)[2].strip() for line in self.text.splitlines() if LOOK in line]


@dataclass
class _Choice:
    """What a column of the schema is read from, and the sentences that a person has to decide on."""

    entry: SourceColumn
    looks: list[str] = field(default_factory=list)
    offers: list[str] = field(default_factory=list)  # entries that a person may want
    rivals: list[_Marks] = field(default_factory=list)  # marks by which the same cells are other numbers

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of the file."""
        of = self.entry.from_
        return (of,) if isinstance(of, str) else of


@dataclass(frozen=True)
class _Held:
    """A column of the file: its cells by row, and its distinct ones that are not empty, commonest first."""

    name: str
    cells: Any
    rare: int
    secret: bool  # named as the persons' column

    @cached_property
    def _counted(self) -> tuple[Any, NDArray[np.int64]]:
        found = pc.value_counts(self.cells)
        values, counts = found.field("values"), np.asarray(found.field("counts"), np.int64)
        keep = np.asarray(pc.is_valid(values)) & (np.asarray(pc.not_equal(_texts(values).fill_null(""), "")))
        at = np.flatnonzero(keep)[np.argsort(-counts[keep], kind="stable")]
        return values.take(pa.array(at)), counts[at]

    @property
    def values(self) -> Any:
        return self._counted[0]

    @property
    def counts(self) -> NDArray[np.int64]:
        return self._counted[1]

    @cached_property
    def texts(self) -> list[str]:
        found: list[str] = _texts(self.values).to_pylist()
        return found

    @property
    def is_text(self) -> bool:
        return bool(is_text(self.cells.type))

    @cached_property
    def identifies(self) -> bool:
        """Whether its values may identify something, so that none is quoted."""
        empty = len(self.cells) - int(self.counts.sum())
        kind = recognise(Cells(self.name, self.texts, self.counts, empty), rare=self.rare).kind
        return self.secret or (bool(self.texts) and kind in ("identifier", "text"))

    def share(self, fits: Mask) -> float:
        """Return the share of the sampled distinct cells that fit; words for missing are left out."""
        told = np.array([text.lower() not in WORDS for text in self.texts[: len(fits)]], bool)
        return float(fits[told].mean()) if told.any() else 0.0


def _texts(cells: Any) -> Any:
    return pc.utf8_trim_whitespace(cells.cast(pa.string()))


def adapt(
    path: Path,
    schema: Schema,
    folder: Path,
    *,
    name: str = "source file",
    person: str = "",
    rare: int = 10,
    progress: Progress = ignore_progress,
) -> Adapted:
    """Return a draft of the source file by which the file ``path`` is read for a schema, to lie in ``folder``.

    For every column of the schema it proposes the file's column by name (spelling, and words for the same in a few
    languages) and by values (the share of its distinct cells that the schema's column admits); and with it codes by
    meaning, a factor, an expression, and words that mean missing. Categories and times are also proposed by their
    values alone; other columns only as a comment. ``person`` names the column of the file that identifies persons,
    which is never quoted. Raises :class:`SchemaError` for a file that cannot be read or has no header, and
    :class:`Unsupported` for one of another kind.
    """
    if not (is_csv(path) or path.suffix.lower() in (WORKBOOK, ".parquet")):
        raise Unsupported(
            f"{path.name} is no .csv, .tsv, .txt (also .gz), .xlsx or .parquet file; save the table as one, or in a "
            "database write a view with the schema's names"
        )
    base, lines = _base(path, schema, folder)
    drafting = _Drafting(schema, declared_rows(name, base, folder), rare, person)
    choices = drafting.choose(progress)
    text = _HEADER.format(name=path.name) + "".join(f"{line}\n" for line in (*lines, *drafting.lines(choices)))
    told = read_settings(SourceFile, tomllib.loads(text), name)
    return Adapted(text, declared_rows(name, structs.replace(told, draft=False), folder))


# ---------------------------------------------------------------------------------------------------------------------
# The file's own form


def _base(path: Path, schema: Schema, folder: Path) -> tuple[SourceFile, list[str]]:
    """Return a source file with the dialect of a file, and its lines."""
    data = os.path.relpath(path.resolve(), folder.resolve())
    lines = [f"data = {one_line(Path(data).as_posix())}"]
    if is_csv(path):
        form = text_form(path)
        lines += [] if form.is_default and path.suffix.lower() == ".csv" else form.lines()
        told = tomllib.loads("\n".join(lines))
        (source,) = declared_rows("", read_settings(SourceFile, told), folder).bases
        assert isinstance(source, CsvRows)
        if source.kind_problem():
            csv = {**told.get("csv", {}), "records": "rfc4180"}
            lines = [lines[0], f"{LOOK} cells in quotes seem to hold newlines", f"csv = {one_line(csv)}"]
    elif path.suffix.lower() == WORKBOOK:
        lines += _sheet(path, schema)
    return read_settings(SourceFile, tomllib.loads("\n".join(lines))), lines


def _sheet(path: Path, schema: Schema) -> list[str]:
    """Return the lines that declare sheet and header of a workbook: those whose names are most like the schema's."""
    found = []
    names = [_plain(column.name) for column in schema.asked]
    sheets = WorkbookRows(path).sheets()
    for at, sheet in enumerate(sheets):
        rows = list(islice(WorkbookRows(path, sheet).rows(), 300))
        widths = Counter(sum(cell != "" for cell in row) for _, row in rows)
        usual = max(widths, key=lambda width: (widths[width] * (width > 1), width), default=0)
        for number, row in rows:
            header = [cell for cell in row if cell != ""]
            if header and 2 * len(header) > usual and all(isinstance(cell, str) for cell in header):
                alike = sum(max(_alike(_plain(cell), name) for cell in header) >= _ALIKE for name in names)
                found.append((alike, len(header) >= usual, -at, -number))
                if len(header) >= usual:
                    break
    if not found:
        raise SchemaError(f"{path.name} has no header that could be found: write one above the first record")
    *_, at, number = max(found)
    lines = []
    if len(sheets) > 1:
        lines += [f"{LOOK} one of {len(sheets)} sheets, whose names are most like the schema's"] * (at < 0)
        lines += [f"sheet = {one_line(sheets[-at])}"]
    return lines + [f"csv = {{ first_line = {-number} }}"] * (number < -1)


# ---------------------------------------------------------------------------------------------------------------------
# Columns


def _plain(name: str) -> str:
    """Return a column's name as folded words, without units and what stands in brackets."""
    bare = re.sub(r"\(.*?\)|\[.*?\]", " ", name)
    words = folded(re.sub(r"([a-z])([A-Z])", r"\1 \2", bare)).split()
    while len(words) > 1 and words[-1] in KNOWN_UNITS:
        words.pop()
    return " ".join(words)


def _alike(name: str, other: str) -> float:
    """Return how much two plain names are alike, from 0 to 1."""
    if not name or not other:
        return 0.0
    if named_alike(name, other):
        return 0.95
    joined = fuzz.ratio(name.replace(" ", ""), other.replace(" ", ""))
    return float(max(joined, fuzz.token_sort_ratio(name, other), 0.8 * fuzz.token_set_ratio(name, other))) / 100


class _Drafting:
    """The proposals for the columns of a schema from the rows of a file, of which only the dialect is declared."""

    def __init__(self, schema: Schema, rows: DeclaredRows, rare: int, person: str) -> None:
        """Read the file."""
        self.schema, self.rows = schema, rows
        base = rows.bases[0]
        number = Numeric("number", 0.0, 1.0)  # stands for all: a workbook then gives its numbers exactly
        names = [each for each in base.columns() if each.strip()]
        wanted: dict[str, Column | None] = dict.fromkeys(names, number if isinstance(base, WorkbookRows) else None)
        parts = [part.replace_schema_metadata() for part, _ in base.batches(wanted, 1 << 16)]
        if not any(part.num_rows for part in parts):
            raise SchemaError(f"{base.name} has a header but no rows; give a file with at least one row")
        table = pa.concat_tables(parts)
        table = table.select([one.name for one in table.schema if not pa.types.is_nested(one.type)])
        table = pa.table({each.strip(): readable(each, table[each]) for each in table.column_names})
        if person and person not in table.column_names:
            raise SchemaError(f"{base.name} has no column {person!r}, which --person names; correct it")
        if problem := no_header(table.slice(0, 1000).to_pandas()):
            raise SchemaError(f"{base.name}: {problem}")
        self.skip = {each: words for each in table.column_names if (words := _totals(table[each]))}
        for each, words in self.skip.items():
            table = table.filter(pc.invert(pc.is_in(_texts(table[each]), pa.array(words))))
        self.held = {
            each: _Held(each, table[each].combine_chunks(), rare, each == person) for each in table.column_names
        }

    # -----------------------------------------------------------------------------------------------------------------
    # Which column is which

    def choose(self, progress: Progress) -> dict[str, _Choice]:
        """Return what the columns of the schema are read from, by name; those that the file seems to lack are not."""
        columns, held = self.schema.asked, list(self.held.values())
        wanted, there = ([_plain(each.name) for each in some] for some in (columns, held))
        alike = np.array([[_alike(one, other) for other in there] for one in wanted])
        alike[[[column.name == one.name for one in held] for column in columns]] = 1.0
        made: dict[tuple[int, int], _Choice] = {}
        scores = np.zeros(alike.shape)
        for at, column in enumerate(columns):
            for other, one in enumerate(held):
                near = bool(alike[at, other] >= _ALIKE)
                if not near and (alike.size > _PAIRS or one.identifies):
                    continue
                choice, share = self._tried(column, one, thorough=near)
                made[at, other] = choice
                if near or (share >= _FITS and _tells(column, choice.entry)):
                    scores[at, other] = 3 * near + alike[at, other] + share
                elif share >= _FITS:
                    scores[at, other] = (alike[at, other] + share) / 10  # enough for a comment
                if not near:
                    choice.looks.insert(0, f"names differ, and {share:.0%} of the distinct cells fit: is it this one?")
            progress("columns", at + 1, len(columns))
        first, second = (each.tolist() for each in linear_sum_assignment(-scores))
        picked = [two for two in zip(first, second, strict=True) if scores[two]]
        self.likely = {columns[at].name: made[at, other] for at, other in picked if scores[at, other] < 0.5}
        chosen = {columns[at].name: made[at, other] for at, other in picked if scores[at, other] >= 0.5}
        self._join_times(chosen)
        used = {name for choice in (*chosen.values(), *self.likely.values()) for name in choice.names}
        named = {*chosen, *self.likely}
        lost = [column for column in columns if column.name not in named and not column.missing]
        rest = [one for one in held if one.name not in used and not one.identifies and one.texts]
        if len(lost) == len(rest) == 1:  # the last ones
            self.likely[lost[0].name], _ = self._tried(lost[0], rest[0], thorough=True)
        return chosen

    def _join_times(self, chosen: dict[str, _Choice]) -> None:
        """Join days with a column of times of day, where the schema has both in one."""
        used, names = {name for choice in chosen.values() for name in choice.names}, list(self.held)
        clocks = [
            each.name
            for each in self.held.values()
            if each.name not in used and each.texts and all(map(CLOCK.fullmatch, each.texts[:_SAMPLE]))
        ]
        for column in self.schema.asked:
            choice = chosen.get(column.name)
            if not isinstance(column, Datetime) or column.unit == "D" or choice is None or not clocks:
                continue
            (day,) = choice.names
            if self.held[day].is_text and not any(":" in text for text in self.held[day].texts[:_SAMPLE]):
                best = min(clocks, key=lambda clock: abs(names.index(clock) - names.index(day) - 0.5))
                clocks.remove(best)
                choice.entry = structs.replace(choice.entry, from_=(day, best))
                choice.looks.append(f"is {best!r} its time of day?")

    # -----------------------------------------------------------------------------------------------------------------
    # How one column is read

    def _tried(self, column: Column, held: _Held, *, thorough: bool) -> tuple[_Choice, float]:
        """Return the form in which a column of the file fits one of the schema best, and the share that fits.

        Numbers among other signs are looked for if ``thorough``.
        """
        if isinstance(column, Numeric):
            return self._number(column, held, _EXTRACTS if thorough and held.is_text else _EXTRACTS[:1])
        if isinstance(column, Datetime):
            return self._time(column, held)
        return self._labels(column, held)

    def _read(self, column: Column, entry: SourceColumn, cells: Sequence[Any]) -> Any:
        told = structs.replace(self.rows.told, column={column.name: entry})
        return (
            replace(self.rows, told=told)
            .reading(column.name, column)
            .read([pa.chunked_array([each]) for each in cells], Counter())
        )

    def _numbers(self, column: Numeric, entry: SourceColumn, held: _Held) -> tuple[NDArray[np.float64], int, Mask]:
        """Return the numbers of the sampled cells, and what :func:`_power` does of them."""
        found = self._read(column, entry, [held.values.slice(0, _SAMPLE)])
        plain = pa.types.is_integer(found.type) or pa.types.is_floating(found.type) or pa.types.is_decimal(found.type)
        numbers = found.cast(pa.float64(), safe=False) if plain else pa.nulls(len(found), pa.float64())
        values = np.asarray(numbers.fill_null(np.nan))
        return values, *_power(column, values)

    def _number(self, column: Numeric, held: _Held, extracts: Sequence[str]) -> tuple[_Choice, float]:
        texts = "".join(held.texts[:_SAMPLE])
        marks = [
            (decimal, thousands)
            for decimal, thousands in _MARKS
            if held.is_text and (thousands in texts if thousands else decimal in (None, ".") or decimal in texts)
        ]
        tried = []
        for extract in extracts:
            for decimal, thousands in marks or _MARKS[:1]:
                entry = SourceColumn(from_=held.name, extract=extract, decimal=decimal, thousands=thousands)
                tried.append((entry, *self._numbers(column, entry, held)))
            if max(held.share(inside) for *_, inside in tried) >= _FITS:
                break
        best = max(tried, key=lambda each: (held.share(each[-1]), -abs(each[2])))
        entry, numbers, power, inside = best
        if not inside.any():
            return self._with_missing(_Choice(SourceColumn(from_=held.name)), column, held, ~inside), 0.0
        choice = _Choice(entry)
        for other, values, _, also in tried:
            both = np.isfinite(numbers) & np.isfinite(values)
            if other.extract == entry.extract and (also == inside).all() and (numbers[both] != values[both]).any():
                choice.rivals.append((other.decimal, other.thousands))
        if power:
            choice.entry = structs.replace(choice.entry, factor=10.0**power)
            choice.looks.append(
                f"as they are, the numbers lie outside of {column.low:g} to {column.high:g}: is it another unit?"
            )
        elif 0 < 100 * (most := np.nanmax(np.abs(numbers))) <= (bound := max(abs(column.low), abs(column.high))):
            choice.looks.append(f"the numbers are below a hundredth of the bound {bound:g}: is it another unit?")
            choice.offers.append(f"factor = {10 ** int(np.log10(bound / most))}")
        if entry.extract:
            choice.looks.append("of cells that hold more than a number, this is kept")
        outside = numbers[np.isfinite(numbers) & ~inside & (held.counts[:_SAMPLE] >= held.rare)]
        gone: list[Word] = [
            number for number in map(_plain_number, outside) if is_sentinel(number, held.rare, held.rare)
        ]
        return self._with_missing(choice, column, held, ~np.isfinite(numbers), gone), held.share(inside)

    def _time(self, column: Datetime, held: _Held) -> tuple[_Choice, float]:
        sample, tried = held.values.slice(0, _SAMPLE), []
        forms = [form for form, _ in likely_forms(held.texts[:_SAMPLE])] if held.is_text else []
        for form in dict.fromkeys(["", *forms]):
            pivot = int(column.low[:4]) if "%y" in form else None
            entry = SourceColumn(from_=held.name, dates=form, pivot=pivot)
            found = self._read(column, entry, [sample])
            fits, _ = self._fitting(column, found)
            tried.append((held.share(fits), entry, fits, found))
        share, entry, fits, found = max(tried, key=lambda each: each[0])
        choice = _Choice(entry if share else SourceColumn(from_=held.name))
        rivals = [other.dates for part, other, _, times in tried if part == share > 0 and not times.equals(found)]
        choice.looks += [f"{rival} fits as well: which comes first, the day or the month?" for rival in rivals[:1]]
        if entry.pivot is not None and share:
            choice.looks.append(f"years of two digits begin with {entry.pivot}, as the schema does")
        if column.timezone and not self.rows.told.zone:
            choice.looks.append('times without a zone are read as UTC; for local ones: zone = "Continent/City", above')
        return self._with_missing(choice, column, held, ~fits), share

    def _labels(self, column: Categorical | Boolean, held: _Held) -> tuple[_Choice, float]:
        values = held.texts[:_SAMPLE] if held.is_text else held.values.slice(0, _SAMPLE).to_pylist()
        fits = np.array([column.code(value) >= 0 for value in values], bool)
        choice = _Choice(SourceColumn(from_=held.name))
        if not held.is_text:
            return choice, held.share(fits)
        labels: Sequence[str | int] = column.values if isinstance(column, Categorical) else column.texts
        near: dict[str, list[str | int]] = {}
        for label in labels:
            near.setdefault(_joined(label), []).append(label)
        meant = {meaning: label for label in labels if (meaning := meanings(column.texts).get(str(label)))}
        codes = meanings([text for text in values[:50] if text.lower() not in WORDS])
        by_code = {text: meant[of] for text, of in codes.items() if of in meant}
        if len({*by_code.values()}) < 2 or all(fits[at] for at, text in enumerate(values) if text in by_code):
            by_code = {}
        recode: dict[str, Word] = {}
        for at, text in enumerate(values):
            same = near.get(_joined(text), [])
            public = text in [change(str(label)) for label in same for change in (str.upper, str.title, str.capitalize)]
            if text in by_code:  # also a label: with "h" for "m", "m" is "f"
                recode |= {text: by_code[text]} if text != str(by_code[text]) else {}
            elif not fits[at] and len(same) == 1 and not held.secret and (public or held.counts[at] >= held.rare):
                recode[text] = same[0]
            fits[at] |= text in recode
        coded = [text for text in recode if len(folded(text)) == 1 and folded(text) != folded(str(recode[text]))]
        choice.entry = structs.replace(choice.entry, recode=recode)
        if coded:
            choice.looks.append(f"{', '.join(map(one_line, coded))}: taken for what it stands for most often")
        return self._with_missing(choice, column, held, ~fits), held.share(fits)

    def _with_missing(
        self, choice: _Choice, column: Column, held: _Held, odd: Mask, numbers: Sequence[Word] = ()
    ) -> _Choice:
        """Declare as missing the ``numbers``, and those of the ``odd`` cells that are words for nothing."""
        if not held.is_text:
            choice.entry = structs.replace(choice.entry, missing=tuple(numbers))
            return choice
        usual = {text for text in self.schema.missing_values if column.missing}
        words = [text for text, is_odd in zip(held.texts, odd, strict=False) if is_odd]
        if column.is_number:
            words = [text for text in words if text.lower() in WORDS or text in usual]
        else:
            words = [text for text in words if text.lower() in WORDS and text not in usual]
        if told := [*numbers, *(word for word in words if word not in usual)]:
            gone = "" if column.missing else " The schema admits none: these rows are left out"
            choice.looks.append(f"{', '.join(map(one_line, told))}: does this mean missing?{gone}")
        choice.entry = structs.replace(choice.entry, missing=(*numbers, *words))
        return choice

    def _fitting(self, column: Column, values: Any) -> tuple[Mask, Mask]:
        """Return which values the schema's column admits as they are, and which are missing."""
        encoded = encode_column(self.schema, column, pa.table({column.name: values}))
        gone = np.asarray(pc.is_null(values, nan_is_null=True)) | ((encoded.codes == column.size - 1) & column.missing)
        fits = (encoded.codes >= 0) & ~gone
        for fault in encoded.faults:
            fits[fault.rows] = False
        return fits, gone

    # -----------------------------------------------------------------------------------------------------------------
    # The text

    def lines(self, chosen: dict[str, _Choice]) -> list[str]:
        """Return the lines of the source file below those of the file's dialect."""
        columns = self.schema.asked
        lines = self._shared_marks(chosen) + self._shared_dates(chosen)
        self.rows = replace(self.rows, told=structs.replace(self.rows.told, **tomllib.loads("\n".join(lines))))
        lost = [column for column in columns if column.name not in chosen]
        if absent := [column.name for column in lost if column.missing]:
            said = "nothing in the file seems to be these; if so, they are missing in every record"
            lines += [f"{LOOK} {said}", f"absent = {one_line(absent)}"]
        if self.skip:
            lines += ["# records that are sums of others", f"skip = {one_line(self.skip)}"]
        used = {name for choice in chosen.values() for name in choice.names}
        if rest := [name for name in self.held if name not in used]:
            lines += [f"# not read: {', '.join(map(one_line, rest))}"]
        for column in columns:
            choice = chosen.get(column.name)
            about = self._column_lines(column, choice) if choice else self._lost_lines(column)
            lines += ["", *about] if about else []
        return lines

    def _shared_marks(self, chosen: Mapping[str, _Choice]) -> list[str]:
        """Give all numbers the commonest marks by which they fit as well, and return the lines that declare them."""
        numeric = [
            (column, choice, self.held[choice.names[0]])
            for column in self.schema.asked
            if isinstance(column, Numeric)
            and (choice := chosen.get(column.name))
            and self.held[choice.names[0]].is_text
        ]

        def share(column: Numeric, choice: _Choice, held: _Held, marks: _Marks) -> float:
            entry = structs.replace(choice.entry, factor=None, decimal=marks[0], thousands=marks[1])
            return held.share(np.isfinite(self._numbers(column, entry, held)[0]))

        sure = [each for each in numeric if not each[1].rivals and each[1].entry.decimal]
        seen = dict.fromkeys((c.entry.decimal, c.entry.thousands) for _, c, _ in sure or numeric if c.entry.decimal)
        fitting = {marks: sum(share(*each, marks) for each in sure or numeric) for marks in seen}
        shared: _Marks = max(fitting, key=lambda marks: fitting[marks], default=(None, None))
        for column, choice, held in numeric:
            own = choice.entry
            shares = [share(column, choice, held, marks) for marks in ((own.decimal, own.thousands), shared)]
            if shares[1] >= shares[0]:
                choice.entry = structs.replace(own, decimal=None, thousands=None)
            elif own.decimal is None and shared[0]:
                choice.entry = structs.replace(own, decimal=".")
            if choice.rivals and not (sure and shares[1] >= shares[0]):
                others = ", ".join(
                    f"decimal = {one_line(d or '.')}, thousands = {one_line(t or '')}" for d, t in choice.rivals
                )
                choice.looks.append(f"the cells are other numbers, and within the bounds too, by {others}")
        keys = (("decimal", shared[0]), ("thousands", shared[1]))
        return [f"{key} = {one_line(mark)}" for key, mark in keys if mark]

    def _shared_dates(self, chosen: Mapping[str, _Choice]) -> list[str]:
        """Return the line that declares the form of all times, if they have one, and take it out of the columns."""
        times = [choice for name, choice in chosen.items() if isinstance(self._column(name), Datetime)]
        forms = {choice.entry.dates for choice in times if self.held[choice.names[0]].is_text}
        if len(forms) != 1 or "" in forms or any("%y" in form for form in forms):
            return []
        for choice in times:
            choice.entry = structs.replace(choice.entry, dates="")
        return [f"dates = {one_line(forms.pop())}"]

    def _column(self, name: str) -> Column:
        return next(column for column in self.schema.asked if column.name == name)

    def _column_lines(self, column: Column, choice: _Choice) -> list[str]:
        """Return the entries of a column, below comments with what fits and what has to be decided."""
        said, odd = self._counted(column, choice)
        lines = [f"{LOOK} {look}" for look in [*choice.looks, *odd]]
        entries = _entries(column.name, choice.entry) + [f"{_OFFER}{offer}" for offer in choice.offers]
        if not entries:
            return [*lines, f"# {key_of(column.name)}, as it is: {said}"]
        return [*lines, f"# {said}", f"[column.{key_of(column.name)}]", *entries]

    def _lost_lines(self, column: Column) -> list[str]:
        """Return what to do about a column that the file seems to lack."""
        name = one_line(column.name)
        if (choice := self.likely.get(column.name)) is None:
            if column.missing:
                return []
            return [
                f"{LOOK} nothing seems to be {name}, and the schema admits no missing value: name its column",
                f"{_OFFER}[column.{key_of(column.name)}]",
                f'{_OFFER}from = "..."',
            ]
        said, _ = self._counted(column, choice)
        listed = ", and take it out of absent" * column.missing
        return [
            f"{LOOK} no name is like {name}; of the other columns, this one fits best ({said}): take it up if it is "
            f"the one{listed}",
            f"{_OFFER}[column.{key_of(column.name)}]",
            *(_OFFER + line for line in (*_entries(column.name, choice.entry), *choice.offers)),
        ]

    def _counted(self, column: Column, choice: _Choice) -> tuple[str, list[str]]:
        """Return how many of all cells fit, and a sentence on those that do not and many rows have."""
        held, entry = [self.held[name] for name in choice.names], choice.entry
        values = self._read(column, entry, [one.cells for one in held])
        fits, gone = self._fitting(column, values)
        texts = _texts(held[0].cells).fill_null("")
        meant = np.asarray(pc.equal(texts, ""))
        filled = int((~meant).sum())
        if held[0].is_text:
            told = structs.replace(self.rows.told, column={column.name: entry})
            meant |= np.asarray(replace(self.rows, told=told).reading(column.name, column).is_missing(texts))
            spelled = pa.array(self.schema.missing_values, pa.string())
            meant |= gone & np.asarray(pc.is_in(texts, spelled)) & column.missing
        else:
            meant |= gone
        wrong = ~meant & ~fits
        cells = int((~meant).sum())
        said = f"{cells - int(wrong.sum()):,} of {cells:,} cells fit"
        said += f"; {filled - cells:,} mean missing" * (filled > cells)
        if not wrong.any():
            return said, []
        counted = pc.value_counts(texts.filter(pa.array(wrong)))
        counts = Counter(
            dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True))
        )
        shown = [(text, count) for text, count in counts.most_common(_SHOWN) if count >= held[0].rare]
        if len(held) > 1 or held[0].identifies:
            shown = []
        rest = int(wrong.sum()) - sum(count for _, count in shown)
        said += f"; {int(wrong.sum()):,} do not: " + ", ".join(f"{count:,} x {one_line(text)}" for text, count in shown)
        said += (f"{' and ' * bool(shown)}{number_of(rest, 'cell')} not named here") * bool(rest)
        if not shown and 2 * int(wrong.sum()) < cells:
            return said, []
        if isinstance(column, Categorical):
            listed = ", ".join(map(one_line, column.values[:12])) + ", ..." * (len(column.values) > 12)
            near = {text: process.extractOne(text, column.texts, score_cutoff=80) for text, _ in shown}
            recode = {**entry.recode, **{text: best[0] if best else "..." for text, best in near.items()}}
            choice.offers += [f"recode = {one_line(recode)}"] if shown else []
            return said, [f"cells that do not fit: recode them, or list them in missing; the schema has {listed}"]
        return said, [
            "cells that do not fit: recode them, list them in missing, or correct from, if it is another column"
        ]


def _joined(label: str | int) -> str:
    return folded(str(label)).replace(" ", "")


def _totals(cells: Any) -> list[str]:
    """Return the words of a column of text that name sums of other records."""
    if not is_text(cells.type) or len(cells) < 20:
        return []
    return [word.strip() for word in totals(cells.to_pandas())]


def _power(column: Numeric, numbers: NDArray[np.float64]) -> tuple[int, Mask]:
    """Return by which power of ten numbers are to be multiplied to lie within the bounds, and which then do."""

    def inside(power: int) -> Mask:
        moved = np.round(numbers * 10.0**power, 9)
        return (moved >= column.low) & (moved <= column.high)

    present = max(1, int(np.isfinite(numbers).sum()))
    shares = {power: float(inside(power).sum()) / present for power in sorted(range(-6, 7), key=abs)}
    best = max(shares, key=lambda power: (round(shares[power], 2), -abs(power)))
    power = best if shares[0] < 0.5 and shares[best] >= _FITS else 0
    return power, inside(power)


def _tells(column: Column, entry: SourceColumn) -> bool:
    """Return whether values alone tell what a column is: those of times, and labels that are neither codes nor yes."""
    if isinstance(column, Datetime):
        return True
    texts = column.texts if isinstance(column, Categorical) else ()
    if len(texts) < 2 or all(map(looks_like_a_value, texts)) or any(map(str.isdigit, entry.recode)):
        return False
    return not {*meanings(texts).values()} & {"yes", "no"}


def _plain_number(number: float) -> int | float:
    return int(number) if float(number).is_integer() else float(number)


def _entries(name: str, entry: SourceColumn) -> list[str]:
    """Return the lines of a column's entries that differ from their defaults."""
    found = {} if entry.from_ == name else {"from": one_line(entry.from_)}
    found |= {"extract": f"'{entry.extract}'"} if entry.extract else {}
    for key in ("decimal", "thousands", "dates", "pivot", "recode", "factor", "missing"):
        if (value := getattr(entry, key)) not in (None, "", (), {}):
            found[key] = one_line(value)
    return [f"{key} = {value}" for key, value in found.items()]
