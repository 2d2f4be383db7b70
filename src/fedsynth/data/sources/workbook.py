"""Sheets of workbooks (.xlsx), whose cells become text: what a workbook stores as a number or date stays exact.

Rows without any cell are skipped. A formula counts by the value that the workbook stores for it; one without is an
empty cell.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any

from fedsynth.data.sources.files import RowFile
from fedsynth.errors import SchemaError, from_extra, listed
from fedsynth.rows import BadLine
from fedsynth.schema.columns import Column

_EXACT = 10**15  # from here on, a workbook has lost digits of whole numbers
_UNSTORED = re.compile(rb"</f>\s*(?:<v\s*/>|<v>\s*</v>)?\s*</c>|<f[^>]*/>\s*</c>")
_CHUNK = 1 << 16


@dataclass(frozen=True)
class WorkbookRows(RowFile):
    """The rows of a ``sheet`` (the first, if empty) of a workbook, as text.

    The header is in row ``first_line``, from 1; with ``names``, the first record is.
    """

    sheet: str = ""
    first_line: int = 1
    names: tuple[str, ...] = ()
    is_text = True

    def sheets(self) -> list[str]:
        """Return the names of the workbook's sheets; raises :class:`SchemaError` for a file that is no workbook."""
        return list(self._book().sheet_names)

    def _book(self) -> Any:
        with from_extra("excel", "reading workbooks (.xlsx) needs the package python-calamine"):
            import python_calamine as calamine
        try:
            return calamine.CalamineWorkbook.from_object(self.file)
        except calamine.CalamineError as error:
            raise SchemaError(f"{self.file.name} is no workbook or is damaged ({error}); save it again") from error

    def rows(self) -> Iterator[tuple[int, list[Any]]]:
        """Yield the rows from ``first_line`` on with their numbers, from 1; raises what :meth:`sheets` does."""
        book = self._book()
        from python_calamine import CalamineError

        try:
            if self.sheet and self.sheet not in book.sheet_names:
                known = listed(book.sheet_names, "it has")
                raise SchemaError(f"{self.file.name} has no sheet {self.sheet!r}; {known}")
            sheet = book.get_sheet_by_name(self.sheet or book.sheet_names[0])
            above = sheet.start[0] if sheet.start else 0  # empty rows, which iter_rows skips
            rows = iter(sheet.iter_rows())
        except (CalamineError, IndexError) as error:
            raise SchemaError(f"{self.file.name} is no workbook or is damaged ({error}); save it again") from error
        for at, row in enumerate(rows, above + 1):
            if at >= self.first_line:
                yield at, row

    def _names(self) -> list[str]:
        return list(self.names) or self._header(next(self.rows(), (0, []))[1])

    def _header(self, row: Sequence[Any]) -> list[str]:
        texts = [_text(cell, exact=False).strip() for cell in row]
        while texts and not texts[-1]:
            texts.pop()
        if not texts:
            raise SchemaError(f"{self.file.name} has no header in row {self.first_line}; declare csv.first_line")
        return texts

    def batches(
        self, wanted: Mapping[str, Column | None], chunk_rows: int, *, strict: bool = False
    ) -> Iterator[tuple[Any, Sequence[BadLine]]]:
        """Yield tables of text; the metadata of the last one count digits that are lost and formulas without values.

        A number in a column that is read for a numeric one has an exponent, so that no declared mark applies to it.
        """
        import pyarrow as pa

        from fedsynth.data.sources.arrow import with_counts

        rows = (row for _, row in self.rows())
        names = list(self.names) or self._header(next(rows, []))
        at = [(name, names.index(name), column is not None and column.is_number) for name, column in wanted.items()]
        held: list[list[Any]] = []
        lost = 0

        def made() -> Any:
            columns = {
                name: [_text(row[place], exact=exact) if place < len(row) else "" for row in held]
                for name, place, exact in at
            }
            return pa.table({name: pa.array(cells, pa.string()) for name, cells in columns.items()})

        for row in rows:
            if all(cell == "" for cell in row):
                continue
            held.append(row)
            places = [row[place] for _, place, _ in at if place < len(row)]
            lost += sum(isinstance(cell, float) and abs(cell) >= _EXACT for cell in places)
            if len(held) == min(chunk_rows, _CHUNK):
                yield made(), ()
                held = []
        counts = {
            f"{self.file.name}: numbers of more than 15 digits, of which the workbook has lost some; store "
            "identifiers as text": lost,
            f"{self.file.name}: formulas without a stored value, which are empty cells; open the workbook in a "
            "spreadsheet program and save it": self._unstored(),
        }
        yield with_counts(made(), counts), ()

    def _unstored(self) -> int:
        """Return how many formulas of the workbook, on any sheet, have no stored value."""
        with zipfile.ZipFile(self.file) as book:
            sheets = [name for name in book.namelist() if name.startswith("xl/worksheets/") and name.endswith(".xml")]
            return sum(len(_UNSTORED.findall(book.read(name))) for name in sheets)


def _text(cell: Any, *, exact: bool) -> str:
    """Return the text of a cell; with ``exact``, that of a number that is not whole has an exponent."""
    if isinstance(cell, bool | str):
        return str(cell)
    if isinstance(cell, float):
        whole = cell.is_integer() and abs(cell) < 1e300
        spelled = str(int(cell)) if whole else repr(cell)
        return spelled if whole or "e" in spelled or not exact else f"{spelled}e0"
    if isinstance(cell, datetime | date):
        return cell.isoformat()
    if isinstance(cell, timedelta):
        return str(time.min if cell < timedelta() else (datetime.min + cell % timedelta(days=1)).time())
    return str(cell)
