"""CSV files of two declared kinds (:data:`~fedsynth.files.Records`), of which neither is ever guessed from the rows.

``lines``: no cell holds a newline. A line ends in LF; a CR directly in front of it, or at the end of the file, belongs
    to that end. Each line is one record, or is malformed and left out by itself. Proof that one more line, of any bytes
    but LF, adds at most one row and changes no other: lines are separated at every LF, with any bytes between, and
    what becomes of a line is computed from its bytes and the header alone. A CR elsewhere makes its line malformed;
    were it an end, one record with many of them would be many rows.
``rfc4180``: cells in quotes may hold newlines. The whole file is valid, or it is refused. Proof that one more valid
    record between two others adds one row and changes no other: a record of a valid file begins outside quotes and ends
    at the first LF outside quotes, so where it ends, and its cells, are computed from its bytes and the header alone.
    Whether the file is valid depends on all rows: nothing may be answered from parts of a file before the last one was
    found valid, and privacy statements say that this bit is not protected.

The delimiter and the number of cells come from the header alone, or are declared
(:class:`~fedsynth.data.sources.source_file.CsvSection`); so is an encoding of one byte a character, by which no byte
depends on another. Empty lines are skipped. In a file of lines, an empty cell too many at the end of a line is none.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedsynth.data.sources.source_file import PLAIN, CsvSection
from fedsynth.errors import SchemaError
from fedsynth.files import Records
from fedsynth.rows import BadLine

_BLOCK = 1 << 22  # bytes of text parsed at a time; also the maximum length of a record
_OBJECT = 33  # bytes that a line takes in memory beside its text
_BOM = b"\xef\xbb\xbf"
_START = re.compile(rb"(?:\xef\xbb\xbf)?(?:\r?\n)*+(?:sep=(.)\r?\n(?:\r?\n)*+)?")
_WORKBOOK = b"PK\x03\x04"
_SPACED = rb'("(?:[^"]++|"")*+")|(%b)\x20++'
_QUOTED = rb'"(?:[^"]++|"")*+"'
_HEADER = {"lines": re.compile(rb"[^\n]*+"), "rfc4180": re.compile(rb'(?:%b|[^"\n])*+"?+' % _QUOTED)}
# Unquoted text: in a file of lines, a quote inside it is literal, as in: bandage 6"
_TEXT = {"lines": rb'(?!")[^%b\r\n]*+', "rfc4180": rb'(?!")[^"%b\r\n]*+'}
_OPEN = "opens a quote that is not closed"
_RETURN = "has a carriage return (CR) without a line feed (LF)"
_LONG = f"is longer than {_BLOCK >> 20} MiB"


class CsvFile:
    """A CSV file of the kind ``records``: text delimited by commas, UTF-8 unless its ``form`` says otherwise.

    The delimiter is the one that ``form`` or a first line ``sep=;`` declares, else the commonest of comma, semicolon,
    tab and bar in the header (a tab in a .tsv file). Quotes are special at the start of a cell, and are doubled inside
    it. ``names`` are the column names in the header, or those of ``form``.
    """

    def __init__(self, path: Path, records: Records = "lines", form: CsvSection = PLAIN) -> None:
        """Read the header; raises :class:`SchemaError` if there is none that is readable."""
        self.path, self.records, self._form = path, records, form
        with self._opened() as file:
            start = file.read(_BLOCK)
        if start.startswith(_WORKBOOK):
            raise SchemaError(f"{path.name} is a workbook of Excel and no text; rename it, to end in .xlsx")
        begins = 0
        for _ in range(form.first_line - 1):
            begins = start.find(b"\n", begins) + 1
            if not begins:
                raise self._unreadable(f"it has no line {form.first_line}, which first_line names")
        found = _START.match(start, begins)
        begins = found.end() if found else begins
        line = None if form.names else _HEADER[records].match(start, begins)
        header = b"" if line is None else line.group().removesuffix(b"\r")
        if not header and begins == len(start) and not form.names:
            raise self._unreadable("it is empty")
        self._begins = begins if form.names else len(start) if line is None else line.end() + 1
        said = form.separator[:1].encode() or (found[1] if found else b"") or b""
        names = re.sub(_QUOTED, b"", header)
        often = b"\t" if path.suffix.lower() == ".tsv" else max((b",", b";", b"\t", b"|"), key=names.count)
        self._mark = said or often
        self._spaces = re.compile(_SPACED % re.escape(self._mark)) if form.separator[1:] else None
        self._header = self._closed_up(header)
        mark = re.escape(self._mark)
        cell = rb"(?:%b|%b)" % (_QUOTED, _TEXT[records] % mark)
        self._cell, self._next_cell = re.compile(cell), re.compile(mark + cell)
        self._any_record = re.compile(rb"%b(?:%b%b)*+" % (cell, mark, cell))
        if self._begins > _BLOCK:
            raise self._unreadable("its header is too long")
        if not self._any_record.fullmatch(self._header):
            raise self._unreadable(f"its header {self._fault(self._header, 0)}")
        self._lines = start.count(b"\n", 0, self._begins)  # of the header, and empty ones before it
        if form.names:
            self.names = list(form.names)
        else:
            self.names = self._header_names()
        self._record = re.compile(rb"%b(?:%b%b){%d}+" % (cell, mark, cell, len(self.names) - 1))
        self._valid = re.compile(rb"(?:(?:%b)?+\r?\n)*+" % self._record.pattern)

    def _header_names(self) -> list[str]:
        first = self._cell.match(self._header)
        rest = self._next_cell.finditer(self._header, first.end() if first else 0)
        cells = [first.group() if first else b"", *(found.group()[1:] for found in rest)]
        try:
            return [_unquoted(cell).decode() for cell in cells]
        except UnicodeDecodeError as error:
            raise self._unreadable("its header is not UTF-8") from error

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        """Yield the file's text as UTF-8, from its start; it may be compressed (.gz)."""
        packed = self.path.suffix.lower() == ".gz"
        with self.path.open("rb", buffering=1 << 20) as file:
            raw: Any = io.BufferedReader(gzip.GzipFile(fileobj=file), 1 << 20) if packed else file
            if not self._form.is_utf8:
                raw = io.BufferedReader(_Utf8(raw, self._form.encoding), 1 << 20)
            try:
                yield raw
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise SchemaError(f"{self.path.name} is not gzip or is damaged ({error}); write it again") from error

    def _closed_up(self, line: bytes) -> bytes:
        """Return a line without the spaces after its delimiters, if they are declared to be none of its cells."""
        if self._spaces is None:
            return line
        return self._spaces.sub(lambda found: found[1] or found[2], line)

    def _ended(self, line: bytes) -> bytes:
        """Return a line without an empty cell too many at its end."""
        if not line.endswith(self._mark) or len(self.names) == 1:  # a single cell could be anything
            return line
        plain = b'"' not in line
        too_many = line.count(self._mark) == len(self.names) if plain else self._record.fullmatch(line[:-1])
        return line[:-1] if too_many else line

    def batches(self, names: Sequence[str]) -> Iterator[tuple[Any, list[BadLine]]]:
        """Yield pairs of an Arrow table of text with the columns ``names``, and the malformed lines left out of it.

        A table comes from about 4 MiB of the file. The text has not yet been checked to be UTF-8. Raises
        :class:`SchemaError`, maybe only after some tables, for a file declared ``rfc4180`` that is not valid: callers
        must then not use these tables either.
        """
        if self.records == "rfc4180":
            for text in self._valid_blocks():
                yield self._parsed(text, names), []
            return
        lines: list[bytes] = []
        bad: list[BadLine] = []
        size = 0
        for number, line in self._numbered():
            if wrong := self._wrong(line):
                bad.append(BadLine(number, wrong))
            elif line:
                lines.append(line)
            size += len(line) + _OBJECT
            if size >= _BLOCK:
                yield self._parsed(b"\n".join(lines), names), bad
                lines, bad, size = [], [], 0
        if lines or bad:
            yield self._parsed(b"\n".join(lines), names), bad

    def _numbered(self) -> Iterator[tuple[int, bytes]]:
        """Yield number and text of each line after the header, without its end; of too long ones only a start."""
        with self._opened() as file:
            file.read(self._begins)
            number = self._lines
            while line := file.readline(_BLOCK + 2):  # 2 bytes for its end
                number += 1
                yield number, self._ended(self._closed_up(line.removesuffix(b"\n").removesuffix(b"\r")))
                while line and not line.endswith(b"\n"):
                    line = file.readline(_BLOCK)

    def _wrong(self, line: bytes) -> str:
        """Return what is wrong with a line; empty for a record and for an empty line."""
        if len(line) > _BLOCK:
            return _LONG
        if b"\r" in line:
            return _RETURN
        plain = b'"' not in line and line.count(self._mark) == len(self.names) - 1
        if plain or self._record.fullmatch(line):
            again = len(self.names) > 1 and line.removeprefix(_BOM) == self._header
            return "repeats the header" if again else ""  # in concatenated files; a single cell could be a value
        return self._fault(line + b"\n", 0) if line else ""

    def _valid_blocks(self) -> Iterator[bytes]:
        """Yield the records in blocks of up to 4 MiB, until the first that is not valid raises :class:`SchemaError`.

        A block begins at the start of a record, so that a record of at most 4 MiB is never taken for a longer one.
        """
        with self._opened() as file:
            file.read(self._begins)
            held, lines, last = b"", self._lines, False
            while not last:
                wanted = _BLOCK - len(held)
                read = file.read(wanted)
                last = len(read) < wanted
                held += read
                if last and not held.endswith((b"\n", b"\r")):
                    held += b"\n"
                found = self._valid.match(held)
                end = found.end() if found else 0
                if end < len(held) and (last or not end):
                    raise self._invalid(lines + held.count(b"\n", 0, end) + 1, self._fault(held, end))
                if end:
                    yield held[:end]
                lines += held.count(b"\n", 0, end)
                held = held[end:]

    def _fault(self, text: bytes, at: int) -> str:
        """Return what is wrong with the record that begins at a position of ``text``, which is not valid."""
        found = self._any_record.match(text, at)
        if found is None or text.startswith(self._mark, found.end()):
            return _OPEN
        end = found.end()
        if text.startswith((b"\n", b"\r\n"), end):
            first = self._cell.match(text, at)
            cells = 1 + len(self._next_cell.findall(text, first.end() if first else at, end))
            return f"has {cells} cells, not {len(self.names)}"
        if end == len(text):
            return _LONG
        if text.startswith(b"\r", end):
            return _RETURN
        if text.startswith(b'"', end):
            return "has a quote in a cell without quotes"
        return _OPEN if b"\n" in text[at:end] else "has text after a closing quote"  # the former: by a later record's

    def _parsed(self, text: bytes, names: Sequence[str]) -> Any:
        """Return the columns ``names`` of valid records."""
        import pyarrow as pa  # not needed for the header, which a site looks at before every charge
        import pyarrow.csv as pa_csv

        if not text.strip(b"\r\n"):
            return pa.table({name: pa.array([], pa.string()) for name in names})
        # Arrow takes a mark of byte order at the start for no part of the first cell, and skips an empty line.
        return pa_csv.read_csv(
            io.BytesIO(b"\n" + text),
            read_options=pa_csv.ReadOptions(
                use_threads=False, block_size=2 * _BLOCK + len(text), column_names=self.names
            ),
            parse_options=pa_csv.ParseOptions(delimiter=self._mark.decode(), newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                check_utf8=False,
                include_columns=list(names),
                strings_can_be_null=False,
            ),
        )

    def _unreadable(self, why: str) -> SchemaError:
        hint = ""
        if self.records == "lines" and why.endswith(_OPEN):
            hint = f"; if its cells hold newlines, declare it: {_declare('rfc4180')}"
        return SchemaError(
            f"cannot read {self.path.name} ({why}); save it as UTF-8 text with a header, its lines ended by LF or "
            f"CRLF{hint}"
        )

    def _invalid(self, line: int, why: str) -> SchemaError:
        return SchemaError(
            f"{self.path.name} is not valid RFC 4180, so none of it is read: line {line} {why}; correct that, or, if "
            "no cell holds a newline, declare a file of lines, of which malformed ones are left out: "
            f"{_declare('lines')}"
        )


class _Utf8(io.RawIOBase):
    """A file in an encoding of one byte a character as UTF-8; U+FFFD stands for bytes that are no character."""

    def __init__(self, file: Any, encoding: str) -> None:
        self._file, self._encoding = file, encoding

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        text = self._file.read(max(1, len(buffer) // 4)).decode(self._encoding, "replace").encode()
        buffer[: len(text)] = text
        return len(text)


def _unquoted(cell: bytes) -> bytes:
    return cell[1:-1].replace(b'""', b'"') if cell.startswith(b'"') else cell


def _declare(records: Records) -> str:
    return f'`records = "{records}"` under [source] in site.toml, or `--records {records}`'


def kind_problem(path: Path, records: Records, form: CsvSection = PLAIN) -> str:
    """Return why a CSV file seems to be of the other kind than the declared ``records``, and which to declare, or "".

    The sign is the line that follows one with an open quote: if cells hold newlines, it is no record by itself; if the
    quote was never closed, it is one. This proves nothing, which is why the kind is declared: the result is advice, and
    changes no reading.
    """
    try:
        single, whole = CsvFile(path, "lines", form), CsvFile(path, "rfc4180", form)
    except SchemaError:
        return ""
    apart: list[int] = []  # lines with an open quote before one that is a record by itself, and before others
    joined: list[int] = []
    opened = fine = malformed = 0
    for number, line in single._numbered():
        if opened and len(single.names) > 1:  # a single cell could be anything
            (apart if whole._record.fullmatch(line) else joined).append(opened)
        wrong = single._wrong(line)
        opened = number if wrong == _OPEN else 0
        malformed += bool(wrong)
        fine += bool(line) and not wrong
    try:
        for _ in whole._valid_blocks():
            pass
        invalid = ""
    except SchemaError as error:
        invalid = str(error).partition(";")[0]
    if records == "lines" and len(joined) > len(apart):
        return (
            f"cells seem to hold newlines: line {joined[0]} opens a quote, and the next one is no record by itself; "
            f"declare that: {_declare('rfc4180')}" + (f", and correct it: {invalid}" if invalid else "")
        )
    if records == "rfc4180" and invalid and len(joined) <= len(apart):
        return (
            f"as a file of lines, {fine} records fit the header and {malformed} lines are malformed; if no cell holds "
            f"a newline, declare that: {_declare('lines')}"
        )
    if records == "rfc4180" and len(joined) < len(apart):
        return (
            f"a quote seems to be never closed: line {apart[0]} opens one, and the next line is a record by itself, "
            f"but becomes a part of the cell; if no cell holds a newline, declare that: {_declare('lines')}"
        )
    return ""
