"""The form of a text file as people bring it: encoding, separator, lines before the header. For drafts alone.

A form is found from the rows, so it is a proposal: it is printed as the entry ``csv`` of a source file. Whatever reads
rows for a run reads them by what is declared.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import pandas as pd

from fedsynth.data.read import read_frame
from fedsynth.data.recognise import looks_like_a_value, one_line
from fedsynth.data.sources import open_source
from fedsynth.data.sources.files import is_csv
from fedsynth.errors import SchemaError, number_of
from fedsynth.files import Records

_SEPARATORS = ",;\t|"
_START = 1 << 20  # bytes from which the form is found
_LINES = 300
_KINDS = {
    b"PK\x03\x04": "a zip file, such as an Excel workbook (.xlsx)",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook (.xls)",
    b"\x1f\x8b": "compressed (gzip)",
    b"PAR1": "a Parquet file",
}
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TextForm:
    """How a text file is written; the line of its header counts from 1."""

    separator: str
    encoding: str = "utf-8"
    first_line: int = 1
    names: tuple[str, ...] = ()
    trailing: bool = False
    spaces: bool = False

    @property
    def is_default(self) -> bool:
        """Whether the file can be read as it is."""
        first = next((mark for mark in _SEPARATORS if any(mark in name for name in self.names)), "")
        usual = not first or _SEPARATORS.index(first) > _SEPARATORS.index(self.separator)
        plain = self.encoding == "utf-8" and self.first_line == 1 and not self.trailing and not self.spaces
        return plain and usual

    def lines(self) -> list[str]:
        """Return the lines of a source file that declare the form, with what was found as a comment."""
        found: dict[str, Any] = {} if self.encoding == "utf-8" else {"encoding": self.encoding}
        found |= {"separator": self.separator.replace("\t", "\\t")}
        if self.trailing:
            found |= {"first_line": self.first_line + 1, "names": [*self.names, "nothing"]}
        elif self.first_line > 1:
            found |= {"first_line": self.first_line}
        said = ["each line ends in a separator that the header lacks"] * self.trailing
        said += ["a space follows each separator: names and cells are taken without it"] * self.spaces
        entry = one_line(found).replace("\\\\t", "\\t")
        return [f"csv = {entry}" + f"  # {'; '.join(said)}" * bool(said)]


def read_raw(place: str, records: Records | None = None) -> tuple[pd.DataFrame, list[str]]:
    """Return the cells of a file or a database table, and the lines of a source file that declare a text file's form.

    There are no lines for a file that can be read as it is. Lines of other widths than the header's are left out and
    counted in the log. Raises :class:`SchemaError` for a file of another kind, and one without a header.
    """
    path = Path(place)
    usual = path.suffix.lower() == ".csv"
    if not is_csv(path) or not path.is_file() or (usual and records == "rfc4180"):
        return read_frame(open_source(place, records=records), strict=True), []
    form = text_form(path)
    if form.is_default and usual:
        return read_frame(open_source(place, records=records), strict=True), []
    return _read(path, form, records), form.lines()


def text_form(path: Path) -> TextForm:
    """Return the form of a text file; raises :class:`SchemaError` if it is no text, or has no header."""
    with _opened(path) as file:
        start = file.read(_START)
    if kind := next((kind for begins, kind in _KINDS.items() if start.startswith(begins)), ""):
        raise SchemaError(f"{path.name} is {kind}, not text; save its table as CSV, with a header")
    encoding = _encoding(path, start)
    if not encoding:
        return TextForm(",")  # no text, as reading it says
    text = start.decode(encoding, "ignore").removeprefix("\ufeff")
    lines = text.split("\n")[: _LINES + 1]
    if len(start) == _START or len(lines) > _LINES:
        lines = lines[:-1]
    lines = [line.removesuffix("\r") for line in lines] or [""]
    declared = lines[0][4:5] if lines[0].lower().startswith("sep=") else ""
    candidates = [_fitted(lines, mark, bool(declared)) for mark in (declared or _SEPARATORS)]
    found = [(fit, form) for fit, form in candidates if form.names]
    if not found:
        return TextForm(",", encoding)  # a single column, or nothing that could be read
    _, form = max(found, key=lambda each: each[0])
    return replace(form, encoding=encoding)


def _opened(path: Path) -> IO[bytes]:
    """Open a file, which may be compressed (.gz)."""
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]


def _encoding(path: Path, start: bytes) -> str:
    for mark, name in ((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")):
        if start.startswith(mark):
            return name
    if start.startswith(codecs.BOM_UTF8):
        return "utf-8"
    decoder = codecs.getincrementaldecoder("utf-8")()
    with _opened(path) as file:
        try:
            while block := file.read(_START):
                decoder.decode(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            text = not any(byte in start for byte in b"\0\x81\x8d\x8f\x90\x9d")  # none of which cp1252 has
            return "cp1252" if text else ""
    return "utf-8"


def _cells(line: str, mark: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=mark), [])
    except csv.Error:  # a carriage return, or a very long cell: no line of a table
        return []


def _fitted(lines: Sequence[str], mark: str, declared: bool) -> tuple[tuple[Any, ...], TextForm]:
    """Return how well a separator divides the lines (more is better), and the form that it gives."""
    rows = [_cells(line, mark) for line in lines]
    widths = Counter(len(row) for row in rows[declared:] if row)
    beyond = {width: count for width, count in widths.items() if width > 1}
    if not beyond:
        return (), TextForm(mark)
    width = max(beyond, key=lambda each: (beyond[each], each))
    share = beyond[width] / sum(widths.values())
    # A header as wide as the rows, or one narrower where all rows end in a separator.
    body = [row for row in rows if len(row) == width]
    trailing = all(not row[-1] for row in body[1:]) and len(body) > 1
    at = next(
        (
            at
            for at, row in enumerate(rows)
            if at >= declared and len(row) in ((width, width - 1) if trailing else (width,))
        ),
        None,
    )
    if at is None:
        return (), TextForm(mark)
    names = rows[at]
    short = trailing and len(names) == width - 1
    spaces = len(names) > 1 and all(name.startswith(" ") for name in names[1:])
    like_data = sum(map(looks_like_a_value, names)) / len(names)
    skipped = sum(bool(row) for row in rows[:at])
    form = TextForm(mark, "utf-8", at + 1 if skipped else 1, tuple(names), short, spaces)
    return (like_data < 0.3, round(share, 2), width > 1, width), form


def _read(path: Path, form: TextForm, records: Records | None) -> pd.DataFrame:
    """Return a text file's cells as text, read by its form."""
    with _opened(path) as file:
        content = file.read()
    text = content.decode(form.encoding, "strict" if form.encoding == "utf-8" else "replace")
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    begins = 0
    for _ in range(form.first_line):
        begins = text.find("\n", begins) + 1
    if not begins:
        raise SchemaError(f"{path.name} has a header but no rows; pass a table with at least one row")
    names = [name.strip() for name in form.names]
    held = [name or f"unnamed {at}" for at, name in enumerate([*names, *[""] * form.trailing], 1)]
    if twice := sorted({name for name in held if held.count(name) > 1}):
        raise SchemaError(f"{path.name} has two columns named {twice}; rename one of them in the file")
    if form.spaces:  # a quote after a space begins a cell, which Arrow does not know
        rows = list(csv.reader(io.StringIO(text[begins:]), delimiter=form.separator, skipinitialspace=True))
        kept = [row for row in rows if len(row) == len(held)]
        frame = pd.DataFrame(kept, columns=pd.Index(held), dtype="str")
        odd = sum(map(bool, rows)) - len(kept)
    else:
        frame, odd = _parsed(text[begins:], held, form.separator, newlines=records == "rfc4180")
    if odd:
        _log.warning("%s: %s of another width than the header left out", path.name, number_of(odd, "line"))
    nothing = [name for name, given in zip(held, [*names, ""], strict=False) if not given and not frame[name].any()]
    return frame.drop(columns=nothing)


def _parsed(text: str, names: Sequence[str], separator: str, *, newlines: bool) -> tuple[pd.DataFrame, int]:
    """Return the records of a text as a frame of text, and the number of lines that are none."""
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    odd: list[int] = []

    def leave_out(_: Any) -> str:
        odd.append(1)
        return "skip"

    table = pa_csv.read_csv(
        io.BytesIO(b"\n" + text.encode()),
        read_options=pa_csv.ReadOptions(use_threads=False, column_names=list(names)),
        parse_options=pa_csv.ParseOptions(
            delimiter=separator, newlines_in_values=newlines, invalid_row_handler=leave_out
        ),
        convert_options=pa_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
        ),
    )
    return table.to_pandas(), len(odd)
