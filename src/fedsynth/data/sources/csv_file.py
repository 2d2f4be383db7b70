"""A CSV reader that no line can stop: malformed lines are left out one by one and reported.

Rule 1: the handling of a line depends on that line alone. The exception is a quoted cell that spans several lines: such
    a record must follow RFC 4180 exactly and have as many cells as the header. Otherwise its first line is left out and
    the next line starts a new record, so that a quote that is never closed removes no other row.
Rule 2: after the header has been read, no error is raised except for disk errors.
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

_BLOCK = 1 << 22  # bytes of text parsed at a time; also the maximum length of a record
_BOM = b"\xef\xbb\xbf"
_END = rb"(?:\r\n?|\n|\Z)"
_QUOTED = rb'"(?:[^"]++|"")*+"'
_HEADER = re.compile(rb'(?:%b|[^"\r\n])*+' % _QUOTED)


class CsvFile:
    """A CSV file: UTF-8 text delimited by commas (or semicolons, tabs or bars if its header has no comma).

    A line ends in LF, CR or CRLF; empty lines are skipped. Quotes are special only at the start of a cell, and are
    doubled inside it. ``names`` are the column names in the header, which is read at once. Raises :class:`SchemaError`
    for a file without a readable header.
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
        # As in Arrow: text after a closing quote, and quotes inside unquoted text, are taken literally.
        self._cell = re.compile(rb"(?:%b[^%b\r\n]*+|(?!\")[^%b\r\n]*+)" % (_QUOTED, mark, mark))
        self._next_cell = re.compile(mark + self._cell.pattern)
        self._line = re.compile(rb"%b(?:%b)*+%b" % (self._cell.pattern, self._next_cell.pattern, _END))
        header = self._line.match(start, begins)
        if header is None or header.end() == _BLOCK:
            raise self._unreadable("its header has an unclosed quote, or is too long")
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
        """Yield pairs of an Arrow table of text with the columns ``names``, and the malformed lines left out of it.

        A table comes from about 4 MiB of the file. The text has not yet been checked to be UTF-8.
        """
        with self.path.open("rb") as file:
            file.seek(self._begins)
            held, number, last = b"", self._lines + 1, False
            while not last:
                read = file.read(_BLOCK)
                last = not read
                held += read
                records, bad, used, lines = self._taken(held, number, last)
                # The rest is shorter than the longest record, or is a single line that is already too long.
                held, number = held[used : used + _BLOCK + 1], number + lines
                if records or bad:
                    yield self._parsed(b"".join(records), names), bad

    def _taken(self, held: bytes, number: int, last: bool) -> tuple[list[bytes], list[BadLine], int, int]:
        """Return the records and malformed lines at the start of ``held``, and the number of bytes and lines consumed.

        The rest may continue in the next block, unless this block is the ``last``.
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
                    wrong = "repeats the header"  # in concatenated files; a single cell could be a value
            elif not last and len(held) - at < _BLOCK:
                break
            else:
                found = self._by_the_book.match(held, at, at + _BLOCK)
                ends = found is not None and (held[found.end() - 1] in b"\r\n" or (last and found.end() == len(held)))
                if found is not None and ends:
                    record = found.group()
                else:
                    wrong = "opens a quote that is not closed properly"
            if wrong:
                bad.append(BadLine(number + index, wrong))
            else:
                records.append(record)
            at += len(record)
            index += len(record.splitlines())
        return records, bad, at, index

    def _cells(self, line: bytes) -> int:
        """Return the number of cells of a complete line."""
        if b'"' not in line:
            return 1 + line.count(self._mark.encode())
        first = self._cell.match(line)
        return 1 + len(self._next_cell.findall(line, first.end() if first else 0))

    def _parsed(self, text: bytes, names: Sequence[str] | None) -> Any:
        """Return the columns ``names`` of complete records; if ``names`` is None, the first record is the header."""
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
        return SchemaError(f"cannot read {self.path.name} ({why}); save it as UTF-8 text with a header")
