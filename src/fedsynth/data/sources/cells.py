"""Cells of text as a source file declares them: texts, numbers and times, each cell by itself.

Nothing is inferred and nothing raises: what a cell becomes depends on its text and on constants alone, and a cell that
is not of the declared form is missing and counted.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedsynth.data.sources.arrow import is_text, readable
from fedsynth.data.sources.source_file import SourceColumn
from fedsynth.errors import SchemaError
from fedsynth.schema.canonical import canonical_text

AMBIGUOUS = "can be read in two ways"
_EXPONENT = (
    r"-?\d+(?:\.\d*)?[eE][+-]?\d+"  # always with a point: programs write it, and so does our reader of workbooks
)
_TWO_WAYS = r"^-?[1-9]\d{0,2}[.,]\d{3}$"
_SPACES = "[\u00a0\u2007\u2009\u202f]"
_UNDRESSED = (  # signs around a number, in turn: true minus, typographic marks, (200), currencies and %
    ("[\u2212\u2012\u2013]", "-"),
    ("\u2019", "'"),
    (_SPACES, " "),
    (r"^\((.*)\)$", r"-\1"),
    (r"^([+-]?) *\p{Sc} *", r"\1"),
    (r" *[\p{Sc}%]$", ""),
    (r"^\+", ""),
)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_NAMED = "|".join(("jan(?:uary)?", "feb(?:ruary)?", "mar(?:ch)?", "apr(?:il)?", "may", "june?", "july?", "aug(?:ust)?"))
_NAMED += "|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?"
_FIELDS = {
    "Y": r"(?P<Y>\d{4})",
    "y": r"(?P<y>\d{2})",
    "f": r"(?P<f>\d{1,6})",
    "p": r"(?P<p>[ap])\.?m\.?",
    "z": r"(?P<z>z|[+-]\d{2}:?\d{2})",
    "b": rf"(?P<b>{_NAMED})\.?",
    "a": r"[a-z]+\.?",
    "%": "%",
}
_NO_ZONE = -(10**6)  # minutes
_CLOCK = r"(?P<H>\d{1,2}):(?P<M>\d{2})(?::(?P<S>\d{2})(?:\.(?P<f>\d{1,6})\d*)?)?"
_ISO = rf"(?P<Y>\d{{4}})-(?P<m>\d{{2}})-(?P<d>\d{{2}})(?:[ t]{_CLOCK}(?P<z>z|[+-]\d{{2}}:?\d{{2}})?)?"


@dataclass(frozen=True)
class Reading:
    """How the cells of the column ``name`` are read: as what ``kind``, and in the declared ``forms``.

    Times are instants in UTC if ``zoned``, those without a zone from local times of ``zone``; otherwise they have none.
    ``workbook`` says whether cells may be real dates of a workbook, as ISO 8601, and ``for_text`` which entries of the
    column itself only text can have.
    """

    name: str
    kind: Literal["text", "number", "time"]
    forms: SourceColumn
    zone: str = ""
    fold: int | None = None
    zoned: bool = False
    workbook: bool = False
    for_text: tuple[str, ...] = ()

    def read(self, given: list[Any], counts: Counter[str]) -> Any:
        """Return a column from one or two Arrow columns; ``counts`` gets a sentence on each kind of cell not read.

        Texts become text, numbers float64, times timestamps. Raises :class:`SchemaError` for typed columns, if entries
        are declared that only text can have.
        """
        columns = [readable(self.name, column).combine_chunks() for column in given]
        if not all(is_text(column.type) for column in columns):
            return self._typed(columns)
        joined = columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, " ", null_handling="skip")
        cells = (joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined).dictionary_encode()
        if isinstance(cells, pa.ChunkedArray):  # of no chunk
            cells = pa.array([], pa.string()).dictionary_encode()
        distinct = pc.utf8_trim_whitespace(cells.dictionary.cast(pa.string()))
        found, faults = self._read(distinct)
        known = np.asarray(cells.indices.drop_null())
        often = np.bincount(known, minlength=len(distinct))
        for fault, mask in faults:
            if number := int(often[np.asarray(mask.fill_null(False))].sum()):
                counts[f"column {self.name!r}: cells that {fault}"] += number
        return found.take(cells.indices)

    def _read(self, texts: Any) -> tuple[Any, list[tuple[str, Any]]]:
        gone = self.is_missing(texts)
        texts, faults = pc.if_else(gone, None, texts), []
        if self.forms.extract:
            matches = pc.match_substring_regex(texts, self.forms.extract)
            kept = pc.replace_substring_regex(texts, rf"(?s)^.*?(?:{self.forms.extract}).*$", r"\1")
            faults.append(("do not match extract, and are missing", pc.invert(matches)))
            texts = pc.if_else(matches, kept, None)
        if self.forms.recode:
            names = pa.array(list(self.forms.recode), pa.string())
            exact = "e0" if self.kind == "number" else ""  # of a number in the file, no declared mark applies
            values = [f"{v}{exact}" if isinstance(v, float) else str(v) for v in self.forms.recode.values()]
            at = pc.index_in(texts, names)
            texts = pc.if_else(pc.is_valid(at), pa.array(values, pa.string()).take(at), texts)
        texts = pc.if_else(self.is_missing(texts), None, texts)
        if self.kind == "text":
            return texts, faults
        read = self._numbers if self.kind == "number" else self._times
        values, found = read(texts)
        return values, faults + found

    def is_missing(self, texts: Any) -> Any:
        """Return which cells are empty, or stand for a missing value by text or by value; none of them is null."""
        words = [str(word) for word in self.forms.missing]
        gone = pc.is_in(texts, pa.array(["", *words], pa.string()))
        values = {canonical_text(str(word)) for word in self.forms.missing if not isinstance(word, str)}
        if values:
            same = [text is not None and canonical_text(text) in values for text in texts.to_pylist()]
            gone = pc.or_(gone, pa.array(same, pa.bool_()))
        return gone

    def _typed(self, columns: list[Any]) -> Any:
        """Return a column that is not of text, such as one of a Parquet file."""
        forms = self.forms
        if len(columns) > 1 or self.for_text:
            what = "two columns in `from`" if len(columns) > 1 else ", ".join(self.for_text)
            raise SchemaError(
                f"column {self.name!r}: {what} is for cells of text, and these have the type {columns[0].type}; delete "
                "that entry, or change the values where the file is written"
            )
        column = columns[0]
        numeric = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
        if not (numeric or pa.types.is_decimal(column.type)):
            return column
        words = [float(word) for word in forms.missing if not isinstance(word, str)]
        if forms.factor is None and not words:
            return column
        numbers = column.cast(pa.float64(), safe=False)
        numbers = pc.if_else(pc.is_in(numbers, pa.array(words, pa.float64())), None, numbers)
        return numbers if forms.factor is None else _times(numbers, forms.factor)

    # -----------------------------------------------------------------------------------------------------------------
    # Numbers

    def _numbers(self, texts: Any) -> tuple[Any, list[tuple[str, Any]]]:
        forms = self.forms
        dressed = pc.and_(pc.is_valid(texts), pc.invert(pc.match_substring_regex(texts, self._pattern)))
        if pc.any(dressed).as_py():
            plain = texts.filter(dressed)
            for pattern, put in _UNDRESSED:
                plain = pc.replace_substring_regex(plain, pattern, put)
            texts = pc.replace_with_mask(texts, dressed.fill_null(False), plain)
        fits = pc.match_substring_regex(texts, self._pattern)
        twofold = pa.array(np.zeros(len(texts), bool))
        if forms.decimal is None and forms.thousands is None:
            twofold = pc.match_substring_regex(texts, _TWO_WAYS)
        exponent = pc.match_substring_regex(texts, f"^{_EXPONENT}$")
        spelled = texts if forms.thousands is None else pc.replace_substring(texts, forms.thousands, "")
        spelled = spelled if forms.decimal != "," else pc.replace_substring(spelled, ",", ".")
        spelled = pc.if_else(exponent, texts, spelled)
        numbers = pc.if_else(pc.and_(fits, pc.invert(twofold)), spelled, None).cast(pa.float64())
        if forms.factor is not None:
            numbers = _times(numbers, forms.factor)
        return numbers, [
            (
                f'{AMBIGUOUS}, such as 1.234, and are missing; declare decimal = "." or decimal = ","',
                twofold,
            ),
            (
                "are no numbers in the declared form, and are missing; see decimal, thousands, missing and extract",
                pc.and_(pc.invert(fits), pc.invert(twofold)),
            ),
        ]

    @property
    def _pattern(self) -> str:
        mark = re.escape(self.forms.decimal or ".")
        whole = r"\d+"
        if self.forms.thousands is not None:
            whole = rf"(?:\d{{1,3}}(?:{re.escape(self.forms.thousands)}\d{{3}})+|\d+)"
        return rf"^(?:-?(?:{whole}(?:{mark}\d*)?|{mark}\d+)|{_EXPONENT})$"

    # -----------------------------------------------------------------------------------------------------------------
    # Times

    def _times(self, texts: Any) -> tuple[Any, list[tuple[str, Any]]]:
        lower = pc.utf8_lower(texts)
        times, offsets, fits = _moments(lower, self._form, self.forms.pivot)
        if self.workbook and self.forms.dates:
            others, zones, real = _moments(lower, rf"^{_ISO}$")
            times, offsets, fits = np.where(fits, times, others), np.where(fits, offsets, zones), fits | real
        zoned = offsets != _NO_ZONE
        wrong = fits & zoned & (not self.zoned)
        instants = times - np.where(zoned, offsets, 0).astype("timedelta64[m]")
        lost = np.zeros(len(times), bool)
        if self.zoned and self.zone:
            local, lost = _instants(times, self.zone, self.fold)
            instants, lost = np.where(zoned, instants, local), fits & ~zoned & lost
        kept = fits & ~wrong & ~lost
        found = pa.array(instants, pa.timestamp("us"), mask=~kept)
        if self.zoned:
            found = found.cast(pa.timestamp("us", "UTC"))
        form = "the declared form" if self.forms.dates else "ISO 8601; declare dates"
        valid = np.asarray(pc.is_valid(texts))
        return found, [
            (f"are no days or times in {form}, and are missing", pa.array(valid & ~fits)),
            ("have a time zone that the schema lacks, and are missing; set timezone there", pa.array(wrong)),
            ("are local times that the zone skips, or has twice without fold, and are missing", pa.array(lost)),
        ]

    @property
    def _form(self) -> str:
        """The regular expression of the declared form, in lower case."""
        if not self.forms.dates:
            return rf"^{_ISO}$"
        found, last = "", 0
        spots = list(re.finditer("%(.)", self.forms.dates))
        for at, spot in enumerate(spots):
            found += re.escape(self.forms.dates[last : spot.start()].lower())
            sign, last = spot[1].replace("B", "b").replace("A", "a"), spot.end()
            beside = [one for one in spots[max(0, at - 1) : at + 2] if one.start() == last or one.end() == spot.start()]
            digits = r"\d{2}" if beside else r"\d{1,2}"  # 20230115 has no marks that tell digits apart
            found += _FIELDS.get(sign, f"(?P<{sign}>{digits})")
        found += re.escape(self.forms.dates[last:].lower())
        if not isinstance(self.forms.from_, str) and not re.search("%[HI]", self.forms.dates):
            found += f"(?: {_CLOCK})?"
        return f"^{found}$"


def _times(numbers: Any, factor: float) -> Any:
    """Return numbers times a factor, rounded to 15 digits: 1.15 x 100 is 115."""
    values = np.asarray(numbers.fill_null(0.0)) * factor
    with np.errstate(all="ignore"):
        power = 10.0 ** (14 - np.floor(np.log10(np.abs(values))))
        rounded = np.rint(values * power) / power
    safe = np.isfinite(rounded) & (power >= 1) & (power <= 1e22)
    return pa.array(np.where(safe, rounded, values), mask=np.asarray(numbers.is_null()))


def _moments(
    texts: Any, pattern: str, pivot: int | None = None
) -> tuple[NDArray[np.datetime64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return times, their offsets from UTC in minutes, and which texts are of a form and name a time that exists."""
    found = pc.extract_regex(texts, pattern=pattern)
    names = [field.name for field in found.type]
    fits = np.asarray(found.is_valid())

    def parts(name: str) -> Any:
        return found.field(names.index(name)).fill_null("")

    def number(name: str, default: int = 0) -> NDArray[np.int64]:
        if name not in names:
            return np.full(len(texts), default)
        digits = pc.utf8_rpad(parts(name), 6, "0") if name == "f" else parts(name)
        return np.asarray(pc.if_else(pc.equal(parts(name), ""), str(default), digits).cast(pa.int64()))

    year, month, day, hour = number("Y"), number("m", 1), number("d", 1), number("H")
    if "y" in names and pivot is not None:
        year = pivot // 100 * 100 + number("y")
        year += 100 * (year < pivot)
    if "b" in names:
        month = np.asarray(pc.index_in(pc.utf8_slice_codeunits(parts("b"), 0, 3), pa.array(_MONTHS)).fill_null(-1)) + 1
    if "I" in names:
        hour = number("I")
        fits &= (hour >= 1) & (hour <= 12)
        hour = hour % 12 + 12 * np.asarray(pc.equal(parts("p"), "p") if "p" in names else False)
    minute, second = number("M"), number("S")
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + (day - 1)
    fits &= (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (days.astype("datetime64[M]") == months)
    fits &= (hour < 24) & (minute < 60) & (second < 60)
    micros = ((hour * 60 + minute) * 60 + second) * 10**6 + number("f")
    times = np.where(fits, days.astype("datetime64[us]") + micros, np.datetime64(0, "us"))
    offsets = np.full(len(texts), _NO_ZONE)
    if "z" in names:
        zones = pc.replace_substring(parts("z"), ":", "").to_pylist()
        known = {zone: _minutes(zone) for zone in set(zones)}
        offsets = np.array([known[zone] for zone in zones], dtype=np.int64)
    return times, offsets, fits


def _minutes(zone: str) -> int:
    if zone in ("", "z"):
        return 0 if zone else _NO_ZONE
    return int(f"{zone[0]}1") * (60 * int(zone[1:3]) + int(zone[3:5]))


def _instants(
    times: NDArray[np.datetime64], zone: str, fold: int | None
) -> tuple[NDArray[np.datetime64], NDArray[np.bool_]]:
    """Return local times of a zone in UTC, and which of them do not exist or are two."""
    local = pa.array(times, pa.timestamp("us"))
    first, last = (
        pc.assume_timezone(local, zone, ambiguous=which, nonexistent=which) for which in ("earliest", "latest")
    )
    skipped = np.asarray(pc.not_equal(pc.local_timestamp(first), local))
    in_utc = [np.asarray(one.cast(pa.timestamp("us"))) for one in (first, last)]
    twice = (in_utc[0] != in_utc[1]) & (fold is None)
    return in_utc[fold or 0], skipped | twice
