"""CSV files, of which no line can stop the reading: a line that is no row is left out, by itself, and said so.

Rule 1: what becomes of a line depends on that line alone. The exception is a cell in quotes that goes on over several
    lines: such a record must be written by the book (RFC 4180), with as many cells as the header. Where it is not, its
    first line is left out, and the next line begins a record of its own, so that a quote that is never closed takes no
    other row with it.
Rule 2: nothing is raised once the header has been read, but for errors of the disk.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv

from fedsynth.errors import SchemaError
from fedsynth.rows import BadLine

_BLOCK = 1 << 22  # bytes of text parsed at once; also the longest record that is read
_BOM = b"\xef\xbb\xbf"
_END = rb"(?:\r\n?|\n|\Z)"
_QUOTED = rb'"(?:[^"]++|"")*+"'
_HEADER = re.compile(rb'(?:%b|[^"\r\n])*+' % _QUOTED)


class CsvFile:
    """A CSV file: UTF-8 text with a header, whose delimiter is the comma or, without one, semicolon, tab or bar.

    A line ends in LF, CR or both, and empty lines are skipped. Quotes count at the start of a cell only, and are
    doubled inside. Raises :class:`SchemaError` for a file without a header that can be read.
    """

    def __init__(self, path: Path) -> None:
        """Read the header."""
        self.path = path
        with path.open("rb") as file:
            start = file.read(_BLOCK)
        begins = len(_BOM) if start.startswith(_BOM) else 0
        begins = len(start) - len(start[begins:].lstrip(b"\r\n"))
        if begins == len(start):
            raise self._unreadable("it is empty")
        line = _HEADER.match(start, begins)
        names = b"" if line is None else re.sub(_QUOTED, b"", line.group())
        self._mark = next((mark for mark in ",;\t|" if mark.encode() in names), ",")
        mark = re.escape(self._mark.encode())
        # As Arrow reads it: text after a closing quote, and quotes inside other text, are taken as they are.
        self._cell = re.compile(rb"(?:%b[^%b\r\n]*+|(?!\")[^%b\r\n]*+)" % (_QUOTED, mark, mark))
        self._next_cell = re.compile(mark + self._cell.pattern)
        self._line = re.compile(rb"%b(?:%b)*+%b" % (self._cell.pattern, self._next_cell.pattern, _END))
        header = self._line.match(start, begins)
        if header is None or header.end() == _BLOCK:
            raise self._unreadable("its header opens a quote that it does not close, or is too long")
        self._header = header.group().rstrip(b"\r\n")
        self._begins, self._lines = header.end(), len(start[: header.end()].splitlines())
        try:
            self.names: list[str] = list(self._parsed(header.group() + b"\n", None).schema.names)
        except UnicodeDecodeError as error:
            raise self._unreadable("its header is not UTF-8") from error
        except pa.ArrowInvalid as error:
            raise self._unreadable(str(error)) from error
        cell = rb"(?:%b|[^\"%b\r\n]*+)" % (_QUOTED, mark)
        self._by_the_book = re.compile(rb"%b(?:%b%b){%d}%b" % (cell, mark, cell, len(self.names) - 1, _END))

    def batches(self, names: Sequence[str]) -> Iterator[tuple[Any, list[BadLine]]]:
        """Yield the columns ``names`` of the rows as Arrow tables of text, each with the lines left out of it.

        Nobody has looked yet whether the text is UTF-8.
        """
        with self.path.open("rb") as file:
            file.seek(self._begins)
            held, number, last = b"", self._lines + 1, False
            while not last:
                read = file.read(_BLOCK)
                last = not read
                held += read
                records, bad, used, lines = self._taken(held, number, last)
                # What is left is shorter than the longest record, or a single line that is too long already.
                held, number = held[used : used + _BLOCK + 1], number + lines
                if records or bad:
                    yield self._parsed(b"".join(records), names), bad

    def _taken(self, held: bytes, number: int, last: bool) -> tuple[list[bytes], list[BadLine], int, int]:
        """Return records and bad lines at the start of a text, and how many bytes and lines they are.

        The rest may go on in the text that follows, unless this is the ``last``.
        """
        lines = held.splitlines(keepends=True)
        records: list[bytes] = []
        bad: list[BadLine] = []
        at = index = 0
        while index < len(lines) - (not last):
            record, wrong = lines[index], ""
            if len(record) > _BLOCK:
                wrong = f"is longer than {_BLOCK >> 20} MiB"
            elif b'"' not in record or self._line.fullmatch(record):
                cells = self._cells(record)
                if cells != len(self.names) and record.strip(b"\r\n"):
                    wrong = f"has {cells} cells, not {len(self.names)}"
                elif cells > 1 and record.startswith(self._header) and record.rstrip(b"\r\n") == self._header:
                    wrong = "repeats the header"  # of files that were put together; one cell alone may be a value
            elif not last and len(held) - at < _BLOCK:
                break
            else:
                found = self._by_the_book.match(held, at, at + _BLOCK)
                ends = found is not None and (held[found.end() - 1] in b"\r\n" or (last and found.end() == len(held)))
                if found is not None and ends:
                    record = found.group()
                else:
                    wrong = "opens a quote that is not closed as it should be"
            if wrong:
                bad.append(BadLine(number + index, wrong))
            else:
                records.append(record)
            at += len(record)
            index += len(record.splitlines())
        return records, bad, at, index

    def _cells(self, line: bytes) -> int:
        """Return the number of cells of a line that is whole."""
        if b'"' not in line:
            return 1 + line.count(self._mark.encode())
        first = self._cell.match(line)
        return 1 + len(self._next_cell.findall(line, first.end() if first else 0))

    def _parsed(self, text: bytes, names: Sequence[str] | None) -> Any:
        """Return the columns ``names`` of whole records; without ``names`` the first record is the header."""
        if names is not None and not text:
            return pa.table({name: pa.array([], pa.string()) for name in names})
        return pa_csv.read_csv(
            io.BytesIO(text),
            read_options=pa_csv.ReadOptions(
                use_threads=False, block_size=2 * _BLOCK + len(text), column_names=None if names is None else self.names
            ),
            parse_options=pa_csv.ParseOptions(delimiter=self._mark, newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(names or (), pa.string()),
                check_utf8=False,
                include_columns=list(names or ()),
                strings_can_be_null=False,
            ),
        )

    def _unreadable(self, why: str) -> SchemaError:
        return SchemaError(f"{self.path.name} cannot be read ({why}); save it as UTF-8 text with a header")
