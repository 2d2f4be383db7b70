"""Files of rows: CSV (all cells are text) and Parquet, read in batches.

A CSV file (.csv, .tsv, .txt, also compressed as .gz) is UTF-8 text with a header unless a source file declares another
dialect, of a declared kind (:mod:`fedsynth.data.sources.csv_file`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedsynth.data.sources.source_file import PLAIN, CsvSection
from fedsynth.errors import FedsynthError, SchemaError, Unsupported
from fedsynth.files import Records
from fedsynth.rows import BadLine, Rows, absent_columns
from fedsynth.schema import Schema
from fedsynth.schema.columns import Column

if TYPE_CHECKING:
    from fedsynth.data.sources.csv_file import CsvFile


@dataclass(frozen=True)
class RowFile(ABC):
    """A file of rows as a :class:`~fedsynth.rows.Source`: the base class of CSV and Parquet files."""

    file: Path
    is_text: ClassVar[bool]
    keeps_order: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Name of the file without its folder."""
        return self.file.name

    def __str__(self) -> str:
        return str(self.file)

    def stamp(self) -> dict[str, int]:
        """Return the file's size (bytes), times (ns) and inode by name, by which a change of the file is noticed.

        Two changes within the resolution of the file system's clock, at one size, may have the same stamp.
        """
        found = self.file.stat()
        return {name: getattr(found, f"st_{name}") for name in ("size", "mtime_ns", "ctime_ns", "ino")}

    def unfit(self, columns: Sequence[Column]) -> dict[str, str]:
        """Return nothing: whether a file's values fit the schema's ``columns`` shows only on reading."""
        return {}

    def columns(self) -> list[str]:
        """Return the names of the columns in order; raises :class:`SchemaError` for duplicates."""
        names = self._names()
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SchemaError(f"{self.name} has two columns named {twice}; rename one of them in the file")
        return names

    @abstractmethod
    def _names(self) -> list[str]: ...

    def require(self, wanted: Mapping[str, Column | None]) -> None:
        """Raise an error unless the file opens and its header has the ``wanted`` columns; their types do not matter."""
        if absent := absent_columns(self.name, self.columns(), wanted):
            raise SchemaError(absent)

    @abstractmethod
    def batches(
        self, wanted: Mapping[str, Column | None], chunk_rows: int, *, strict: bool = False
    ) -> Iterator[tuple[Any, Sequence[BadLine]]]:
        """Yield pairs of an Arrow table with the ``wanted`` columns and its malformed lines; ``strict`` is ignored."""

    @contextmanager
    def snapshot(self) -> Iterator[RowFile]:
        """Yield this file; raise :class:`FedsynthError` at the end of the ``with`` block if it has changed."""
        before = self.stamp()
        yield self
        if self.stamp() != before:
            raise FedsynthError(f"{self.file} changed while it was read; try again when it is complete")

    def counted(self, schema: Schema) -> AbstractContextManager[Rows]:
        """Raise :class:`Unsupported`: a file counts nothing itself."""
        raise Unsupported(f"{self.name} is a file, and only a database counts its rows; write streamed = true instead")


@dataclass(frozen=True)
class CsvRows(RowFile):
    """The rows of a CSV ``file`` as text; ``records`` is its declared kind, ``form`` the rest of its dialect."""

    records: Records = "lines"
    form: CsvSection = PLAIN
    is_text = True

    def _names(self) -> list[str]:
        return self._opened().names

    def _opened(self) -> CsvFile:
        from fedsynth.data.sources.csv_file import CsvFile

        return CsvFile(self.file, self.records, self.form)

    def kind_problem(self) -> str:
        """Return why the file seems to be of the other kind, and what to declare; empty if nothing speaks for it."""
        from fedsynth.data.sources.csv_file import kind_problem

        return kind_problem(self.file, self.records, self.form)

    def batches(
        self, wanted: Mapping[str, Column | None], chunk_rows: int, *, strict: bool = False
    ) -> Iterator[tuple[Any, Sequence[BadLine]]]:
        """Yield pairs of an Arrow table of text (about 4 MiB, not yet checked to be UTF-8) and its malformed lines.

        Raises :class:`SchemaError` for a file without a readable header and, maybe only after some tables, for a file
        that is declared ``rfc4180`` and not valid.
        """
        yield from self._opened().batches(list(wanted))


@dataclass(frozen=True)
class ParquetRows(RowFile):
    """The rows of a Parquet ``file``, with the file's types."""

    is_text = False

    def _names(self) -> list[str]:
        with _open_parquet(self.file) as file:
            return list(file.schema_arrow.names)

    def batches(
        self, wanted: Mapping[str, Column | None], chunk_rows: int, *, strict: bool = False
    ) -> Iterator[tuple[Any, Sequence[BadLine]]]:
        """Yield pairs of an Arrow table of at most ``chunk_rows`` rows (empty for an empty file), and an empty list.

        Raises :class:`SchemaError` for a file that is damaged or not Parquet.
        """
        import pyarrow as pa

        names = list(wanted)
        with _open_parquet(self.file) as file:
            empty = file.schema_arrow.empty_table()
            batches = (pa.Table.from_batches([batch]) for batch in file.iter_batches(chunk_rows, columns=names))
            for part in batches if file.metadata.num_rows else [empty]:
                yield part.select(names), ()


FORMATS: dict[str, type[RowFile]] = {".csv": CsvRows, ".parquet": ParquetRows}
"""Formats by suffix; .tsv, .txt and compressed text (.gz) are read as .csv is."""
_TEXTS = (".csv", ".tsv", ".txt")
SOURCE_FILE, WORKBOOK = ".toml", ".xlsx"


def is_csv(path: Path) -> bool:
    """Return whether the file's suffix, in any case, is that of a text file (.csv, .tsv, .txt, also .gz)."""
    return path.name.lower().removesuffix(".gz").endswith(_TEXTS)


def open_file(path: Path) -> RowFile | None:
    """Return a text file, or one of :data:`FORMATS`, as the source of its rows; ``None`` for any other suffix."""
    if is_csv(path):
        return CsvRows(path)
    kind = FORMATS.get(path.suffix.lower())
    return None if kind is None else kind(path)


def check_suffix(path: Path) -> None:
    """Raise :class:`Unsupported` unless a file to be written is, by its suffix in any case, in :data:`FORMATS`."""
    if path.suffix.lower() not in FORMATS:
        raise Unsupported(f"{path.name} is no {' or '.join(FORMATS)} file; save the table as one of these")


@contextmanager
def _open_parquet(path: Path) -> Iterator[Any]:
    """Yield a Parquet file; :class:`SchemaError` if it is damaged, even if this shows only during reading."""
    import pyarrow as pa
    import pyarrow.parquet as pa_parquet

    try:
        with pa_parquet.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # an error of the operating system
            raise
        reason = "".join(character for character in " ".join(str(error).split()) if character.isprintable())
        raise SchemaError(f"{path.name} is not a Parquet file or is damaged ({reason}); write it again") from error
