"""The source file: what a site declares of the form of its own export, so that rows need no preparation.

It is a site's own and stays there: what is public belongs to the agreed schema. Everything in it is a constant, and
each record is read by itself, from its own cells and these constants
(:mod:`fedsynth.data.sources.declared`); only ``lookup`` adds cells of another table, those of the record's person.
"""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Meta

from fedsynth.errors import InvalidParameter, listed
from fedsynth.files import Records, load_toml
from fedsynth.settings import Settings, read_settings

Word = str | int | float
_DIRECTIVES = "YymdHIMSfbBpzaA%"


class CsvSection(Settings, frozen=True):
    """The entry ``csv`` of a source file: the dialect of a text file (.csv, .tsv, .txt)."""

    encoding: str = "utf-8"
    """Encoding of the text: utf-8, or one with a byte for each character, such as cp1252 or latin-1."""
    separator: str = ""
    """Sign between cells; ", " with the space drops the spaces after each comma. Default: what a first line sep=;
    says, else the commonest of comma, semicolon, tab and bar in the header."""
    names: tuple[str, ...] = ()
    """Names of the columns, for a file without a header, or in place of its header (with first_line = 2)."""
    first_line: Annotated[int, Meta(ge=1)] = 1
    """Line of the header, from 1; with names, of the first record. The lines above are not read."""
    records: Records = "lines"
    """Kind of the file. lines: each line is a record; rfc4180: cells in quotes hold newlines."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.is_utf8 or _one_byte(self.encoding)):
            raise InvalidParameter(
                f"csv.encoding = {self.encoding!r}: write utf-8, or an encoding of one byte a sign such as cp1252; "
                "save a file in any other as UTF-8"
            )
        if self.separator and not re.fullmatch(r'[!-~\t ](?<!["\w.+-]) ?', self.separator):
            raise InvalidParameter(f"csv.separator = {self.separator!r}: give one sign, such as ';' or '\\t'")
        if len(self.separator) > 1 and self.records != "lines":
            raise InvalidParameter("csv.separator with a space is for records = 'lines'; give the sign alone")
        if len(set(self.names)) < len(self.names):
            raise InvalidParameter("csv.names names a column twice; give each column a name of its own")

    @property
    def is_utf8(self) -> bool:
        """Whether the text is UTF-8, with or without a mark of byte order."""
        return self.encoding.lower().replace("_", "-") in ("utf-8", "utf8", "utf-8-sig", "ascii")


def _one_byte(encoding: str) -> bool:
    """Return whether each byte of an encoding is a character by itself, and those of ASCII are ASCII's."""
    try:
        codecs.lookup(encoding)
        every = [bytes([byte]).decode(encoding, "replace") for byte in range(256)]
        together = bytes(range(256)).decode(encoding, "replace")
    except (LookupError, ValueError, TypeError, AssertionError):  # codecs of bytes to bytes, such as hex
        return False
    return every[:128] == [chr(byte) for byte in range(128)] and together == "".join(every) and len(together) == 256


PLAIN = CsvSection()
"""A text file without declarations."""


class LookupSection(Settings, frozen=True):
    """The entry ``lookup`` of a source file: a private table of persons whose columns are added to their records."""

    data: str
    """File with the table."""
    key: str
    """Column of the table that identifies the person. Where lines of one person differ, the value is missing."""
    person: str = ""
    """Column of the records that identifies the person, the one that `person` in site.toml (--person) names. Default:
    that of key."""
    sheet: str = ""
    """Sheet of a workbook; default: the first."""


class _Forms(Settings, frozen=True):
    """What a column's cells may declare, and all columns together."""

    decimal: Literal[".", ","] | None = None
    """Decimal mark of numbers. Undeclared, it is a point, and cells such as 1.234, which may be read in two ways, are
    missing."""
    thousands: Literal[".", ",", " ", "'"] | None = None
    """Mark between groups of three digits; a space stands for all kinds of spaces. Default: none."""
    dates: str = ""
    """Form of dates and times, e.g. "%d.%m.%Y %H:%M", of %Y %y %m %d %H %I %M %S %f %p %z, %b and %B (English months),
    %a and %A. A cell of another form is missing, and so is a day that does not exist. Default: ISO 8601."""
    pivot: int | None = None
    """First of the hundred years that two-digit years (%y) stand for: with 1930, '35' is 1935 and '29' is 2029."""
    missing: tuple[Word, ...] = ()
    """Cells that stand for a missing value, besides empty ones, as texts or numbers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.thousands is not None and self.thousands == (self.decimal or "."):
            raise InvalidParameter(f"thousands = {self.thousands!r} is the decimal mark; declare the other one")
        used = re.findall("%(.?)", self.dates)
        if unknown := [f"%{sign}" for sign in used if sign not in [*_DIRECTIVES]]:
            raise InvalidParameter(f"dates = {self.dates!r} has {unknown[0]}; {listed([f'%{s}' for s in _DIRECTIVES])}")
        if self.dates and (len(set(used)) < len(used) or not {"Y", "y"} & {*used}):
            raise InvalidParameter(f"dates = {self.dates!r} must have a year (%Y or %y), and nothing twice")


class SourceColumn(_Forms, frozen=True, rename={"from_": "from"}):
    """The entry ``[column.NAME]`` of a source file: what a column of the schema is read from, and how.

    Raises :class:`~fedsynth.errors.InvalidParameter` for a regular expression that is none, or has not one group.
    """

    from_: str | tuple[str, str] = ""
    """Column of the file; or two, for a date and its time of day. Default: that of the same name."""
    extract: str = ""
    """Regular expression (RE2), whose one group, (...), is kept of each cell; a cell without a match is missing."""
    recode: Mapping[str, Word] = {}
    """Values in place of cells, after extract; other cells stay."""
    factor: float | None = None
    """Factor to multiply numbers with, for another unit. Signs of currencies and % are left out of numbers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.extract:
            import pyarrow as pa  # only where it is used: a site's process starts without
            import pyarrow.compute as pc

            try:
                groups = re.compile(self.extract).groups
                pc.match_substring_regex(pa.array([""]), self.extract)
            except (re.error, pa.ArrowInvalid) as error:
                raise InvalidParameter(
                    f"extract = {self.extract!r} is no regular expression of RE2: {error}"
                ) from error
            if groups != 1:
                raise InvalidParameter(
                    f"extract = {self.extract!r} has {groups} groups; put what is kept into one, (...)"
                )

    @property
    def for_text(self) -> tuple[str, ...]:
        """The entries that only cells of text can have, by name."""
        said = {"extract": self.extract, "recode": self.recode, "dates": self.dates, "pivot": self.pivot}
        said |= {"decimal": self.decimal, "thousands": self.thousands}
        return tuple(name for name, value in said.items() if value not in ("", {}, None))


class SourceFile(_Forms, frozen=True):
    """A source file: where a site's rows are, and the form in which they are there.

    Raises :class:`~fedsynth.errors.InvalidParameter` for entries that contradict each other.
    """

    data: str | tuple[str, ...] = ()
    """File with the rows: .csv, .tsv or .txt (also .gz), .xlsx or .parquet; several of one form in a list; or an
    address, of which only columns can be renamed."""
    csv: CsvSection = PLAIN
    """Dialect of text files: encoding, separator, names, first_line, records."""
    sheet: str = ""
    """Sheet of a workbook (.xlsx); default: the first."""
    zone: str = ""
    """IANA time zone of times without one, e.g. Europe/Zurich, for columns whose schema has a timezone. Times that the
    zone skips are missing, and so are those that it has twice, unless fold says which. Default: UTC."""
    fold: Literal[0, 1] | None = None
    """Which of two equal local times is meant when clocks go back: 0 the first, 1 the second."""
    absent: tuple[str, ...] = ()
    """Columns of the schema that these files lack: missing in every record."""
    skip: Mapping[str, tuple[Word, ...]] = {}
    """Records that are none, such as lines of totals: cells, by column, that only they have."""
    lookup: LookupSection | None = None
    """Private table of persons, whose columns are added to each of their records: data, key, person, sheet."""
    column: Mapping[str, SourceColumn] = {}
    """Columns that are not read as they are; see the entries of `[column.NAME]`."""
    draft: bool = False
    """Whether entries are guesses that nobody has confirmed; a run refuses them until this line is deleted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.files:
            raise InvalidParameter("data is missing; name the file with the rows")
        if self.zone:
            try:
                ZoneInfo(self.zone)
            except (KeyError, ValueError, OSError) as error:
                raise InvalidParameter(f"zone = {self.zone!r}; give an IANA name such as Europe/Zurich") from error
        for name, column in self.column.items():
            if "%y" in (column.dates or self.dates) and column.pivot is None and self.pivot is None:
                raise InvalidParameter(f"dates of column {name!r} have two-digit years (%y): declare pivot, as 1930")
        if "%y" in self.dates and self.pivot is None:
            raise InvalidParameter("dates have two-digit years (%y): declare pivot, the first of the hundred, as 1930")
        if twice := sorted({*self.absent} & {*self.column}):
            raise InvalidParameter(f"{twice} are absent and have entries of [column]; delete one of them")

    @property
    def files(self) -> tuple[str, ...]:
        """The files, or the address."""
        return (self.data,) if isinstance(self.data, str) else self.data

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of all entries; comments and the order of entries do not count."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a source file (TOML).

        Raises :class:`~fedsynth.errors.FedsynthError` for a file that is not TOML, and
        :class:`~fedsynth.errors.InvalidParameter` for an entry that is unknown or does not fit.
        """
        return read_settings(cls, load_toml(path), str(path))

    def forms(self, name: str) -> SourceColumn:
        """Return what is declared of a column, with the file's own entries where it has none."""
        column = self.column.get(name, SourceColumn())
        ours = {one: getattr(self, one) for one in ("decimal", "thousands", "dates", "pivot")}
        missing = (*self.missing, *column.missing)
        filled = {one: value for one, value in ours.items() if getattr(column, one) in (None, "")}
        if column.decimal is not None and filled.get("thousands") == column.decimal:
            filled["thousands"] = None
        return msgspec.structs.replace(column, missing=missing, from_=column.from_ or name, **filled)

    def read_names(self) -> Iterator[str]:
        """Yield the names of the file's columns that columns of another name are read from."""
        for name, column in self.column.items():
            both = (column.from_,) if isinstance(column.from_, str) else column.from_
            yield from (one for one in both if one and one != name)
