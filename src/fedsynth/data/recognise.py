"""What the cells of a column are, from its distinct texts with their counts: for drafts of schemas alone.

A rule here looks at all rows of one site. What it finds is a proposal for a person, never the way in which rows are
read. Texts of rows leave this module only if they are words that everybody knows (:data:`WORDS`), or if at least
``rare`` rows have them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedsynth.errors import number_of
from fedsynth.schema import MISSING
from fedsynth.schema.columns import LARGEST_INTEGER

Kind = Literal["empty", "boolean", "number", "time", "category", "code", "identifier", "text"]
Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

KEPT = {"NA", "None"}  # spellings of missing values that stay values among texts: Namibia, "no damage"
_ODD = 5  # most distinct texts among numbers or times that are none
_MANY = 64  # texts from which on Arrow is faster than Python
_UNIT_TEXTS = 10  # distinct numbers that have a unit which is not one that everybody knows
_SAMPLE = 400  # texts by which a form is chosen, before all are read by it

PLAIN = r"[+-]?(?:(?:0|[1-9][0-9]{0,17})(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?inf"
INTEGER = r"[+-]?(?:0|[1-9][0-9]{0,17})"
NUMBER = "([-+−]?[0-9](?:[0-9., ]*[0-9])?)"  # among other signs, as an expression of a source file
_LEADING = r"[+-]?0[0-9]+(?:\.[0-9]*)?"
ISO = (
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?)?"
)
_ZONE = r"(?:Z|[+-]\d\d:?\d\d)"

_WORDS_LIST = (
    "n/a na nil none null nan - -- . .. x unknown missing nd n.d. #n/a #null! #div/0! #value! #ref! #num! "
    "#name? k.a. n.v. total totals sum summe gesamt unbekannt inconnu inconnue onbekend desconocido n.r. n.c."
)
WORDS = frozenset(_WORDS_LIST.split()) | {"not available", "not done", "k. a.", "keine angabe", "grand total", "<na>"}
_TOTALS = re.compile(r"(?:grand |sub)?totals?:?|sum:?|summe:?|gesamt:?|insgesamt:?|averages?|mittelwert", re.IGNORECASE)

_CURRENCY = r"(?:US\$|R\$|[$€£¥₹]|USD|EUR|CHF|GBP|SEK|NOK|DKK|JPY|Fr\.|kr\.?)"
_UNITS = (
    "kg g mg µg μg ug ng lb lbs oz st cm mm m km in ft l dl ml cl bpm mmhg years year yrs yr y a months days day d "
    "hours hrs h min mins s sec ms c f k kcal cal kj j iu u w kw v mv hz pa kpa bar mmol mol meq % ‰ °c °f °"
)
_UNIT = re.compile(r"%|‰|°[A-Za-z]?|[A-Za-zµμ]{1,7}[²³]?(?:/[A-Za-zµμ0-9.²³]{1,9})?|\[[^\]]{1,12}\]")
_DRESSED = re.compile(
    rf"(?P<open>\()?\s*(?P<sign>[+\-−])?\s*(?P<before>{_CURRENCY})?\s*(?P<sign2>[+\-−])?"
    r"(?P<digits>[0-9][0-9.,'’   ]*|[.,][0-9]+)(?P<power>[eE][+-]?[0-9]+)?"
    rf"(?P<gap>[   ]*)(?P<after>{_CURRENCY}|{_UNIT.pattern})?\s*(?P<close>\))?"
)
KNOWN_UNITS = frozenset(_UNITS.split())
_GROUPED = {
    mark: re.compile(
        rf"(?:[1-9][0-9]{{0,2}}(?P<by>[{other}'’   ])[0-9]{{3}}(?:(?P=by)[0-9]{{3}})*|0|[1-9][0-9]{{0,17}})"
        rf"(?:\{mark}[0-9]*)?|\{mark}[0-9]+"
    )
    for mark, other in ((".", ","), (",", "."))
}

_NAME_PARTS = re.compile(r"[A-Z]?[a-zäöüß]+|[A-Z]+(?![a-z])|[0-9]+")
_CODE_NAMES_LIST = (
    "code codes concept zip zipcode postal postcode plz icd icd9 icd10 dx diag diagnosis snomed loinc atc cpt "
    "drg ndc fips hcpcs procedure ops type category kode"
)
_CODE_NAMES = frozenset(_CODE_NAMES_LIST.split())
_ID_NAMES_LIST = "id ids uid uuid guid mrn nbr pid ssn identifier key nhs kvnr fallnummer patientennummer"
_ID_NAMES = frozenset(_ID_NAMES_LIST.split())
_PERSON_NAMES_LIST = (
    "patient person subject participant respondent member customer client pat mrn pid ssn nhs user proband"
)
_PERSON_NAMES = frozenset(_PERSON_NAMES_LIST.split())
_RUN_TOGETHER = re.compile(r"(?:patient|person|subject|participant|member|visit|case|record)(?:id|no|nr|number)")
_DATE_NAMES = re.compile(
    r"dat(?:e|um)|dob|born|birth|geb|admi|discharge|entlass|aufnahme|visit|start|end|filed|(?:^|_)dt|day$|tag$", re.I
)
_UUID = re.compile(r"(?=.*[0-9])[0-9a-fA-F]{6,}(?:-[0-9a-fA-F]{3,})+|(?=.*[0-9])(?=.*[a-f])[0-9a-f]{16,}")

_MONTH = r"(?:[Jj]an|JAN|[Ff]eb|FEB|[Mm]ar|MAR|[Aa]pr|APR|[Mm]ay|MAY|[Jj]un|JUN|[Jj]ul|JUL|[Aa]ug|AUG|[Ss]ep|SEP"
_MONTH += r"|[Oo]ct|OCT|[Nn]ov|NOV|[Dd]ec|DEC)"
_PARTS = {"%d": r"\d{1,2}", "%m": r"\d{1,2}", "%Y": r"\d{4}", "%y": r"\d{2}", "%b": _MONTH, "%B": r"[A-Za-z]{3,9}"}
_PARTS |= {"%H": r"\d{1,2}", "%I": r"\d{1,2}", "%M": r"\d\d", "%S": r"\d\d", "%f": r"\d{1,6}", "%p": "[AaPp][Mm]"}
_DAYS = (
    "%d.%m.%Y %d/%m/%Y %m/%d/%Y %d-%m-%Y %m-%d-%Y %Y/%m/%d %Y.%m.%d %Y%m%d %d-%b-%Y %d/%b/%Y %d%b%Y %d.%m.%y %d/%m/%y "
    "%m/%d/%y %d-%b-%y %d_%b_%Y %d_%B_%Y %b_%d,_%Y %B_%d,_%Y %Y-%m-%d"
)
_CLOCKS = ("", " %H:%M", " %H:%M:%S", "T%H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p")


def _form(form: str) -> re.Pattern[str]:
    return re.compile(re.sub("%[a-zA-Z]", lambda part: _PARTS[part.group()], re.escape(form).replace("\\%", "%")), re.A)


_FORMS = {form: _form(form) for form in (day.replace("_", " ") + clock for day in _DAYS.split() for clock in _CLOCKS)}
CLOCK = re.compile(r"(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d)?(?: ?[AaPp][Mm])?", re.ASCII)
_PAIR = re.compile(r"\d{1,3} ?/ ?\d{1,3}", re.ASCII)


@dataclass(frozen=True)
class Cells:
    """The distinct ``texts`` of a column, with the number of rows that have each; ``empty`` rows have none.

    ``which`` is the position of each row's text, -1 for an empty one.
    """

    name: str
    texts: Sequence[str]
    counts: Counts
    empty: int = 0
    which: Counts | None = None

    @property
    def rows(self) -> int:
        """Number of rows with a text."""
        return int(self.counts.sum())

    def kept(self, keep: NDArray[np.bool_]) -> Cells:
        """Return the cells of the texts that a mask selects."""
        texts = [text for text, there in zip(self.texts, keep.tolist(), strict=True) if there]
        return Cells(self.name, texts, self.counts[keep], self.empty + int(self.counts[~keep].sum()))


@dataclass
class Found:
    """What a column's cells are: ``numbers`` or ``times`` of the distinct values, or their ``labels``, with counts.

    Where the cells were texts, ``labels`` are those of the numbers or times as well, and ``cells`` are all of them.
    ``notes`` are sentences for the draft's editor, ``entries`` those of the column in a source file (values as TOML),
    and ``missing`` counts the rows whose cell stands for a missing value.
    """

    kind: Kind
    counts: Counts
    missing: int
    numbers: Floats | None = None
    times: pd.Series[Any] | None = None
    labels: Sequence[str] = ()
    notes: list[str] = field(default_factory=list)
    entries: dict[str, str] = field(default_factory=dict)
    whole: bool = False  # numbers, none of which was written with a point
    either: bool = False  # numbers that a decimal comma would make others
    ordered: bool = False
    cells: Cells | None = None


def recognise(cells: Cells, *, rare: int = 10, mark: str = ".") -> Found:
    """Return what the cells of a column are; ``mark`` is the decimal mark wherever both would do."""
    none = frozenset(MISSING)
    places = [at for at, text in enumerate(cells.texts) if text in none or text.isspace()]
    words = {cells.texts[at]: int(cells.counts[at]) for at in places}
    held = cells.kept(np.array([text not in words for text in cells.texts], bool)) if words else cells
    words = {text: count for text, count in words.items() if text.strip()}
    if not held.texts:
        return Found("empty", held.counts, held.empty)
    notes = [f"{number_of(count, 'cell')} read {text!r}, as missing" for text, count in words.items()]
    found = _boolean(held) or as_times(held, rare) or _numbers(held, rare, mark)
    if found is not None and found.kind != "code":
        found.notes[:0] = notes
        return found
    kept = {text: count for text, count in words.items() if text in KEPT and count >= rare}
    if kept:  # a text among texts
        keep = np.array([text in kept or (text not in words and bool(text.strip())) for text in cells.texts], bool)
        held = cells.kept(keep)
        notes = [note for note in notes if not any(repr(text) in note for text in kept)]
        notes += [
            f'{count} cells read {text!r}, a value here; if it means missing: missing = ["{text}"]'
            for text, count in kept.items()
        ]
    labelled = _labelled(held, rare, code=found is not None)
    labelled.notes[:0] = [*notes, *(found.notes if found else [])]
    found = labelled
    return found


def _boolean(cells: Cells) -> Found | None:
    if len(cells.texts) > 6 or not {text.lower() for text in cells.texts} <= {"true", "false"}:
        return None
    return Found("boolean", cells.counts, cells.empty, labels=cells.texts)


# Times


def _sample(texts: Sequence[str]) -> Sequence[str]:
    return texts if len(texts) <= _SAMPLE else texts[:: len(texts) // _SAMPLE]


def as_times(cells: Cells, rare: int, declared: Sequence[str] | None = None) -> Found | None:
    """Return the column as times if one form, among the ``declared`` ones, reads all its texts but a few words."""
    if not any(character in "0123456789" for text in cells.texts[:6] for character in text):
        return None
    if declared is None and all_match(cells.texts, ISO):
        times = parsed_times(cells.texts)
        if times is not None:
            return Found("time", cells.counts, cells.empty, times=times, labels=cells.texts)
    sample = [text.strip() for text in _sample(cells.texts)]
    fitting = {form: sum(map(bool, map(pattern.fullmatch, sample))) for form, pattern in likely_forms(sample)}
    least = max(1, len(sample) - _ODD)
    forms = [form for form, count in fitting.items() if count >= least and 2 * count > len(sample)]
    read: dict[str, pd.Series[Any]] = {}
    forms = list(declared or forms)
    if not forms:
        return None
    column = pd.Series(list(cells.texts), dtype=object).str.strip()
    for form in forms:
        times = pd.to_datetime(column, format=form, errors="coerce")
        times = times.where(times.dt.year.between(1, 9999))
        odd = times.isna().to_numpy()
        if form.startswith("%Y%m%d") and (len(column) < 3 or not times.dropna().dt.year.between(1900, 2100).all()):
            continue
        if odd.sum() <= _ODD and 2 * int(cells.counts[odd].sum()) < cells.rows and not odd.all():
            read[form] = times.dt.as_unit("us")
    if not read:
        return None
    fewest = min(int(times.isna().sum()) for times in read.values())
    best = [form for form, times in read.items() if int(times.isna().sum()) == fewest]
    times = read[best[0]]
    found = Found("time", cells.counts, cells.empty)
    if best[0] not in ("%Y-%m-%d", *(f"%Y-%m-%d{clock}" for clock in _CLOCKS)):
        found.entries["dates"] = f'"{best[0]}"'
        found.notes.append(f'looks like dates of the form {best[0]}; declare it in a source file: dates = "{best[0]}"')
    if len(best) > 1:
        found.notes.append(
            f'every date reads as {best[1]} as well: which comes first, the day or the month? dates = "…"'
        )
    if "%y" in best[0]:
        found.notes.append("years of two digits are read as 1969 to 2068")
    _set_apart(found, cells, times.isna().to_numpy(), rare)
    found.times, found.labels = times[times.notna()].reset_index(drop=True), cells.kept(times.notna().to_numpy()).texts
    return found


def likely_forms(sample: Sequence[str]) -> list[tuple[str, re.Pattern[str]]]:
    """Return the forms that read at least one of the first texts that have a digit."""
    first = [text for text in sample if any(map(str.isdigit, text))][:8]
    return [(form, pattern) for form, pattern in _FORMS.items() if any(map(pattern.fullmatch, first))]


def parsed_times(texts: Sequence[str]) -> pd.Series[Any] | None:
    """Return ISO 8601 texts as times (in UTC if any has a zone); ``None`` if one is not in the calendar."""
    aware = bool(_matches(texts, rf".{{10}}.*{_ZONE}").any())
    if len(texts) < _MANY:
        return _far_times(texts, aware)
    column = pd.Series(list(texts), dtype=object)  # independent of pandas' default type for text
    # A schema's finest unit is the microsecond; the unit that pandas would choose depends on its version.
    parsed: pd.Series[Any] = pd.to_datetime(column, format="ISO8601", utc=aware, errors="coerce").dt.as_unit("us")
    # Some are outside the range of pandas' nanoseconds.
    return parsed if parsed.dt.year.between(1, 9999).all() else _far_times(texts, aware)


def _far_times(texts: Sequence[str], aware: bool) -> pd.Series[Any] | None:
    """Return times of the years 1 to 9999 in microseconds (in UTC if ``aware``); ``None`` if one is not a time."""
    try:
        times = [datetime.fromisoformat(text) for text in texts]
        plain = [(time - (time.utcoffset() or timedelta(0))).replace(tzinfo=None) for time in times]
    except (ValueError, OverflowError):
        return None
    found: pd.Series[Any] = pd.Series(np.array(plain, dtype="datetime64[us]"))
    return found.dt.tz_localize("UTC") if aware else found


def all_match(texts: Sequence[Any], form: str) -> bool:
    """Return whether there is at least one text and all match a regular expression, which RE2 must have as well."""
    whole = re.compile(form, re.ASCII).fullmatch
    if not texts or not all(isinstance(text, str) and whole(text) for text in texts[:_MANY]):
        return False
    return len(texts) <= _MANY or bool(_matches(texts[_MANY:], form).all())


def _matches(texts: Sequence[str], form: str) -> NDArray[np.bool_]:
    if len(texts) >= _MANY:
        import pyarrow as pa
        import pyarrow.compute as pc

        try:
            found = pc.match_substring_regex(pa.array(texts, pa.large_string()), rf"\A(?:{form})\z")
        except (UnicodeEncodeError, pa.ArrowException):  # half a surrogate pair, or something that is no text
            pass
        else:
            return np.asarray(found.to_numpy(zero_copy_only=False), bool)
    whole = re.compile(form, re.ASCII).fullmatch
    return np.array([isinstance(text, str) and whole(text) is not None for text in texts], bool)


def _set_apart(found: Found, cells: Cells, odd: NDArray[np.bool_], rare: int) -> None:
    """Take the ``odd`` texts for missing, with a note that names those that everybody knows or many rows have."""
    if not odd.any():
        return
    named: list[str] = []
    others = 0
    for at in np.flatnonzero(odd).tolist():
        text, count = cells.texts[at].strip(), int(cells.counts[at])
        if count >= rare or text.lower() in WORDS:
            named.append(cells.texts[at])
            found.notes.append(f"{found.kind}s, but {number_of(count, 'cell')} read {text!r}")
        else:
            others += count
    if others:
        found.notes.append(
            f"{found.kind}s, but {number_of(others, 'cell')} hold other words, too rare to be named here"
        )
    if named:
        found.entries["missing"] = one_line(named)
    if len(named) or others:
        found.notes.append(
            f"to read them as missing, in a source file: missing = {one_line([*named, *['…'] * bool(others)])}"
        )
    found.missing += int(cells.counts[odd].sum())
    found.counts = cells.counts[~odd]


def one_line(value: Any) -> str:
    """Return a value as TOML on one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key_of(key)} = {one_line(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(one_line, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:.15g}"
    plain = "".join(
        letter if letter.isprintable() else f"\\u{ord(letter):04x}" for letter in re.sub(r'(["\\])', r"\\\1", value)
    )
    return f'"{plain}"'


# Numbers


def _numbers(cells: Cells, rare: int, mark: str) -> Found | None:
    """Return the column as numbers, or as codes or identifiers made of digits; ``None`` if its texts are others."""
    leading = _matches(cells.texts, rf"\s*{_LEADING}\s*")
    if leading.any():
        digits = int((leading | _matches(cells.texts, rf"\s*(?:{PLAIN})\s*")).sum())
        if 2 * digits <= len(leading) or digits < len(leading) - _ODD:
            return None
        return Found("code", cells.counts, cells.empty)
    found = as_numbers(cells, rare, mark)
    if found is None:
        return None
    assert found.numbers is not None
    if len(found.labels) < len(cells.texts) and (
        _parts(cells.name) & _CODE_NAMES or _matches(cells.texts, "[A-Z][0-9]{2,}.*").sum() > 1
    ):  # V57 among 428
        return Found("code", cells.counts, cells.empty)
    if found.whole and np.abs(found.numbers).max() > LARGEST_INTEGER:
        why = "integers beyond 2^53, which floating-point numbers cannot represent exactly, are taken as codes"
        return Found("code", cells.counts, cells.empty, notes=[why])
    if not found.entries and _other_zeros(found):
        return Found("code", cells.counts, cells.empty)
    return recognise_numbers(found, cells.name, rare)


def as_numbers(cells: Cells, rare: int, mark: str) -> Found | None:
    """Return the column as numbers, whatever they stand for; ``None`` if more than a few of its texts are others."""
    found = Found("number", cells.counts, cells.empty)
    if _matches(cells.texts, PLAIN).all() and not (mark == "," and _grouped_or_not(cells.texts)):
        numbers, odd = _as_floats(cells.texts), np.zeros(len(cells.texts), bool)
        found.either = _grouped_or_not(cells.texts)
    else:
        dress = _dress(_sample(cells.texts), mark)
        if dress is None:
            return None
        numbers = np.array([dress.number(text) for text in cells.texts])
        odd = np.isnan(numbers)
        few = odd.sum() <= _ODD and 2 * int(cells.counts[odd].sum()) < cells.rows and (~odd).sum() >= 10
        if odd.any() and not few:
            return None
        found.either = bool(dress.thousands) and dress.either
        found.notes += dress.notes()
        found.entries |= dress.entries()
    found.numbers, found.labels = numbers[~odd], cells.kept(~odd).texts if odd.any() else cells.texts
    found.whole = bool(_matches(found.labels, r"\s*[+-]?[0-9]+\s*").all())
    _set_apart(found, cells, odd, rare)
    return found


def _grouped_or_not(texts: Sequence[str]) -> bool:
    """Return whether a point may stand before decimals or between thousands in every text."""
    return all_match(texts, r"[+-]?[0-9]{1,3}(?:\.[0-9]{3})*") and any("." in text for text in texts)


def _as_floats(texts: Sequence[str]) -> Floats:
    return np.array(texts, dtype=object).astype(np.float64)


def _other_zeros(found: Found) -> bool:
    """Return whether one number is written with other zeros at its end, as in 250.0 and 250.00: so are codes."""
    assert found.numbers is not None
    if found.whole:
        return False
    pointed = _matches(found.labels, r"[0-9]+\.[0-9]+")
    return len(np.unique(found.numbers[pointed])) < int(pointed.sum())


@dataclass(frozen=True)
class _Dress:
    """How the numbers of a column are written: their decimal ``mark``, and a text ``before`` or ``after`` them."""

    mark: str
    before: str = ""
    after: str = ""
    thousands: str = ""  # what separates groups, as a source file declares it
    minus: bool = False  # U+2212
    brackets: bool = False
    either: bool = False  # another mark would do as well

    def number(self, text: str) -> float:
        """Return a text as number, NaN for one that is not written so."""
        found = _DRESSED.fullmatch(text.strip())
        if found is None:
            return float("inf") if text.strip().lstrip("+") == "inf" else np.nan
        if (found["before"] or "") not in ("", self.before) or (found["after"] or "") not in ("", self.after):
            return np.nan
        digits = found["digits"].strip()
        grouped = _GROUPED[self.mark].fullmatch(digits)
        if grouped is None or (found["open"] is None) != (found["close"] is None):
            return np.nan
        whole, _, part = digits.partition(self.mark)
        number = float(f"{re.sub('[^0-9]', '', whole) or '0'}.{part or '0'}{found['power'] or ''}")
        return (
            -number
            if found["open"] or "-" in (sign := (found["sign"] or found["sign2"] or "")) or "−" in sign
            else number
        )

    def notes(self) -> list[str]:
        """Return a sentence on what surrounds the numbers, if anything does."""
        seen = [repr(part) for part in (self.before, self.after) if part]
        seen += ["a decimal comma"] * (self.mark == ",") + ["groups of thousands"] * bool(self.thousands)
        seen += ["U+2212 as minus"] * self.minus + ["brackets for negative numbers"] * self.brackets
        said = ", ".join(f"{key} = {value}" for key, value in self.entries().items())
        return [f"numbers written with {', '.join(seen)}; a source file reads them: {said}"] if seen else []

    def entries(self) -> dict[str, str]:
        """Return the entries of a source file that read such numbers."""
        found = {}
        if self.mark == "," or self.thousands or self.minus or self.brackets:
            found["decimal"] = one_line(self.mark)
        if self.thousands:
            found["thousands"] = one_line(self.thousands)
        if self.before or self.after:
            found["extract"] = f"'{NUMBER}'"
        return found


def _dress(sample: Sequence[str], mark: str) -> _Dress | None:
    """Return how most numbers of a sample are written; ``None`` if most texts are no numbers."""
    found = [match for match in (_DRESSED.fullmatch(text.strip()) for text in sample) if match]
    if 2 * len(found) <= len(sample) or len(found) < len(sample) - len(sample) // 4 - _ODD:
        return None
    before = Counter(match["before"] for match in found if match["before"]).most_common(1)
    units = Counter(match["after"] for match in found if match["after"] and _is_unit(match)).most_common(1)
    after = [(unit, many) for unit, many in units if many >= _UNIT_TEXTS or _is_public(unit)]
    digits = [match["digits"].strip() for match in found]
    fits = {each: sum(map(bool, map(_GROUPED[each].fullmatch, digits))) for each in ".,"}
    best = mark if fits[mark] >= max(fits.values()) else max(fits, key=lambda each: fits[each])
    grouped = [match["by"] for match in map(_GROUPED[best].fullmatch, digits) if match and match["by"]]
    by = Counter(grouped).most_common(1)[0][0] if grouped else ""
    return _Dress(
        best if grouped or any(best in text for text in digits) else ".",
        before[0][0] if before else "",
        after[0][0] if after else "",
        {"’": "'"}.get(by, by if by in "',." else " "),
        any("−" in (match["sign"] or "") + (match["sign2"] or "") for match in found),
        any(match["open"] for match in found),
        fits["."] == fits[","],
    )


def _is_unit(match: re.Match[str]) -> bool:
    unit = match["after"]
    known = unit.lower().partition("/")[0].rstrip("²³") in KNOWN_UNITS or bool(re.fullmatch(_CURRENCY, unit))
    return bool(match["gap"]) or known or unit.startswith("[")


def _is_public(unit: str) -> bool:
    parts = [part.rstrip("²³") for part in unit.lower().split("/")]
    return bool(re.fullmatch(_CURRENCY, unit)) or all(part in KNOWN_UNITS for part in parts)


def recognise_numbers(found: Found, name: str, rare: int) -> Found:
    """Return numbers as what they stand for: identifiers, codes, dates of Excel, or numbers with sentinels."""
    assert found.numbers is not None
    numbers, counts = found.numbers, found.counts
    rows, distinct = int(counts.sum()), len(numbers)
    finite = numbers[np.isfinite(numbers)]
    whole = bool(len(finite) == distinct and np.all(finite == np.floor(finite)))
    lost = any("E+" in text.upper() for text in found.labels[:_SAMPLE]) and whole and bool(finite.max() >= 1e9)
    if lost:
        share = sum(int(count) for text, count in zip(found.labels, counts, strict=True) if "E+" in text.upper())
        found.notes.append(
            f"{number_of(share, 'cell')} written like …E+11 have lost digits in a spreadsheet: export them as text"
        )
    if whole and not found.entries.keys() & {"decimal", "extract"}:
        parts = _parts(name)
        span = float(finite.max() - finite.min()) + 1
        if why := _numbers_identify(parts, name, rows, distinct, span, float(finite.min())):
            return _identifier(found, why, distinct < rows)
        if lost or ((found.whole or finite.max() < LARGEST_INTEGER) and _is_code(parts, finite, rows, distinct, span)):
            found.kind = "code"
            return found
        if _DATE_NAMES.search(name) and finite.min() >= 10_000 and finite.max() <= 80_000 and distinct >= 10:
            days = pd.to_timedelta(pd.Series(numbers), unit="D")
            found.kind, found.times = "time", (pd.Timestamp("1899-12-30") + days).dt.as_unit("us")
            found.entries["dates"] = '"excel"'
            found.notes.append('looks like serial numbers of dates in Excel; in a source file: dates = "excel"')
            return found
    _take_out_sentinels(found, rare)
    return found


def _parts(name: str) -> set[str]:
    return {part.lower() for part in _NAME_PARTS.findall(name)}


def _numbers_identify(parts: set[str], name: str, rows: int, distinct: int, span: float, low: float) -> str:
    """Return why whole numbers identify something, or "" if nothing says so."""
    if distinct == rows > 100 and span < 2 * distinct:
        return "looks like a row number or an identifier: every row has a different value"
    if parts & _CODE_NAMES and not parts & _PERSON_NAMES:
        return ""
    named = bool(parts & _ID_NAMES or _RUN_TOGETHER.search(name.lower()))
    if named and (distinct > 50 or (parts & (_PERSON_NAMES | {"encounter", "visit"}) and distinct > 20)):
        return "looks like an identifier, by its name"
    if named and parts & {"mrn", "ssn", "pid", "nhs", "uuid", "guid"}:
        return "looks like an identifier, by its name"
    if distinct == rows > 20 and (low >= 10**8 or rows**2 / (2 * span) > 6):
        return "looks like an identifier: no value repeats, where chance would repeat some"
    return ""


def _identifier(found: Found, why: str, repeats: bool) -> Found:
    person = "; if it identifies persons, of whom each may have several rows: --person with its name" if repeats else ""
    found.kind, found.notes = "identifier", [*found.notes, why + person]
    found.numbers, found.labels = None, ()
    return found


def _is_code(parts: set[str], numbers: Floats, rows: int, distinct: int, span: float) -> bool:
    """Return whether whole numbers are codes, by the column's name, or because they repeat and lie far apart."""
    if parts & _CODE_NAMES and numbers.min() >= 0 and (numbers.max() > 20 or parts & {"code", "concept", "zip"}):
        return True
    if parts & _ID_NAMES:
        return True
    apart = numbers.min() >= 1000 and distinct > 2 and rows >= 5 * distinct and span >= 10 * distinct
    return bool(apart and np.gcd.reduce(numbers.astype(np.int64)) < 10)


def _take_out_sentinels(found: Found, rare: int) -> None:
    """Take repeated values that lie a quarter of the range outside for missing ones, and propose to declare them."""
    numbers, counts = found.numbers, found.counts
    assert numbers is not None
    for _ in range(3):
        order = np.argsort(numbers)
        finite = order[np.isfinite(numbers[order])]
        if len(finite) < 8:
            return
        low, second, third, high = (float(numbers[finite[at]]) for at in (0, 1, -2, -1))
        out = None
        usual = low in (-9, -99, -999, -9999) and second >= 0 and counts[finite[0]] > 1
        if usual or (is_sentinel(low, int(counts[finite[0]]), rare) and second - low >= 0.25 * (high - second)):
            out = int(finite[0])
        elif is_sentinel(high, int(counts[finite[-1]]), rare) and high - third >= 0.25 * (third - low):
            out = int(finite[-1])
        if out is None:
            return
        value, count = float(numbers[out]), int(counts[out])
        found.notes.append(
            f"{number_of(count, 'cell')} read {value:.15g}, far outside of all others: likely a code for missing, "
            f"which the bounds leave out; in a source file: missing = [{value:.15g}]"
        )
        listed = found.entries.get("missing", "[]")[1:-1]
        found.entries["missing"] = f"[{listed + ', ' if listed else ''}{value:.15g}]"
        found.missing += count
        numbers, counts = np.delete(numbers, out), np.delete(counts, out)
        found.numbers, found.counts = numbers, counts
        found.labels = [text for at, text in enumerate(found.labels) if at != out]


def is_sentinel(value: float, count: int, rare: int) -> bool:
    """Return whether a value that many rows share is written as codes for missing are: 999, -9, -200 or 8888.

    Usual codes may be those of few rows; any other value is named only if ``rare`` rows have it.
    """
    digits = f"{abs(value):.15g}"
    usual = len(set(digits)) == 1 and digits[0] in "789" and len(digits) <= 5
    typical = usual or value in (-200, -100, -1000)
    return value != 0 and count >= (3 if typical else rare)


# Texts


def _labelled(cells: Cells, rare: int, *, code: bool) -> Found:
    """Return texts as categories, identifiers or free text, with notes on spellings that look alike."""
    rows, distinct = cells.rows, len(cells.texts)
    if 2 * sum("\ufffd" in text for text in cells.texts) > distinct:
        unread = "holds bytes that are no UTF-8 text; write numbers, text or times"
        return Found("text", cells.counts, cells.empty, notes=[unread])
    found = Found("code" if code else "category", cells.counts, cells.empty, labels=cells.texts)
    parts = _parts(cells.name)
    coded = bool(parts & _CODE_NAMES)
    first = cells.texts[: 2 * _MANY]
    named = bool(parts & _ID_NAMES or _RUN_TOGETHER.search(cells.name.lower())) and not coded
    if distinct > 20 and (
        (named and (distinct > 50 or parts & _PERSON_NAMES))
        or sum(map(bool, map(_UUID.fullmatch, first))) > 0.9 * len(first)
    ):
        return _identifier(found, "looks like an identifier, by its name or form", distinct < rows)
    if distinct > 50 and not coded and _numbered_evenly(first, cells.counts):
        return _identifier(found, "looks like an identifier: a letter and a number, spread evenly", distinct < rows)
    if sum(map(bool, map(CLOCK.fullmatch, first))) == len(first):
        found.notes.append(
            f'looks like times of day; a source file joins it with its day: from = ["…", {one_line(cells.name)}]'
        )
    elif len(first) > 5 and sum(map(bool, map(_PAIR.fullmatch, first))) > 0.9 * len(first):
        found.notes.append("looks like two numbers in a cell; a source file takes them apart: extract = '^(\\d+)/'")
    most = int(cells.counts.max())
    if (distinct == rows > 20 or distinct > max(50, rows // 2)) and not (coded and most >= rare):
        found.kind, found.labels = "text", ()
        return found
    found.notes += _alike(cells, rare)
    return found


def _numbered_evenly(texts: Sequence[str], counts: Counts) -> bool:
    form = re.compile(r"[A-Za-z]{0,4}[-_ ]?\d{4,}", re.ASCII)
    return all(map(form.fullmatch, texts)) and int(counts.max()) <= 4 * float(counts.mean()) + 4


def _alike(cells: Cells, rare: int) -> list[str]:
    """Return sentences on labels that differ in spaces, capitals or accents' encoding only, or in a letter."""
    import unicodedata

    if len(cells.texts) > 1000:
        return []
    groups: dict[str, list[tuple[int, str]]] = {}
    for text, count in zip(cells.texts, cells.counts.tolist(), strict=True):
        key = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
        groups.setdefault(key, []).append((count, text))
    notes, hidden = [], 0
    for group in groups.values():
        if len(group) > 1 and all(count < rare for count, _ in group):
            hidden += len(group)
        elif len(group) > 1:
            shown = ", ".join(repr(text) for count, text in sorted(group, reverse=True) if count >= rare)
            rest = sum(count < rare for count, _ in group)
            more = f"{' and ' if shown else ''}{number_of(rest, 'rare spelling')}" if rest else ""
            notes.append(f"{shown}{more} look like one label: agree on one spelling, and write it in the file")
    if hidden:
        notes.append(
            f"{hidden} rare spellings look like others of them: agree on one for each, and write it in the file"
        )
    return notes + _similar([text for text, count in zip(cells.texts, cells.counts, strict=True) if count >= rare])


def _similar(texts: Sequence[str]) -> list[str]:
    from rapidfuzz import fuzz, process  # compiled; loaded only where labels are compared

    words = [text for text in texts if len(text) >= 6 and not any(map(str.isdigit, text))][:200]
    if len(words) < 2:
        return []
    scores = np.triu(process.cdist(words, words, scorer=fuzz.ratio, processor=str.casefold, score_cutoff=90), 1)
    pairs = [(words[one], words[two]) for one, two in np.argwhere(scores >= 90).tolist()]
    return [
        f"{one!r} and {two!r} differ in a letter or two: one label?"
        for one, two in pairs[:5]
        if one.casefold().split() != two.casefold().split()
    ]


def totals(values: pd.Series[Any]) -> list[str]:
    """Return the texts of a column that name a sum of other rows, such as "Total", if few rows have them."""
    texts = [text for text in values if isinstance(text, str)] if len(values) < _MANY else _ending(values)
    counts = Counter(text for text in texts if _TOTALS.fullmatch(text.strip()))
    return [text for text, count in counts.items() if count <= max(1, len(values) // 100)]


def _ending(values: pd.Series[Any]) -> list[str]:
    """Return the texts that begin as a word for a total does."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        texts = pa.array(values, pa.large_string(), from_pandas=True)
    except (pa.ArrowException, UnicodeEncodeError):  # not all are text
        return [text for text in values if isinstance(text, str)]
    found: list[str] = texts.filter(
        pc.match_substring_regex(texts, rf"(?i)\A\s*(?:{_TOTALS.pattern})\s*\z")
    ).to_pylist()
    return found


def looks_like_a_value(name: str) -> bool:
    """Return whether a name reads as a number or a date."""
    text = name.strip()
    if not re.match(r"[+\-.]?[0-9]|[A-Z][a-z]{2,8} [0-9]", text):
        return False
    return bool(re.fullmatch(f"{PLAIN}|{_LEADING}|{ISO}", text)) or any(
        form.fullmatch(text) for form in _FORMS.values()
    )


def outwards(low: float, high: float, integer: bool) -> tuple[float, float]:
    """Return bounds rounded outwards to one digit of the range, or of the value itself for a constant."""
    step = 10.0 ** math.floor(math.log10((high - low) or abs(high) or 1.0))
    if integer:
        step = max(step, 1.0)
    # Division is more exact than multiplication by the inverse: 0.1 * 3 is not 0.3.
    low, high = math.floor(low / step), math.ceil(high / step)
    return (low * step, high * step) if step >= 1 else (low / round(1 / step), high / round(1 / step))


def key_of(name: str) -> str:
    """Return a column's name as a key of TOML."""
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else one_line(name)
