"""Rows in files: CSV, of which every cell is text, and Parquet; written whole, or read batch by batch.

A CSV file is UTF-8 text with a header (:mod:`fedsynth.data.sources.csv_file`). A file may be scanned by DuckDB to be
counted; DuckDB opens no file itself, but is handed the batches, so that the rows are the same as for a reader.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fedsynth.errors import FedsynthError, SchemaError, Unsupported
from fedsynth.rows import BadLine, Rows
from fedsynth.schema import Schema
from fedsynth.schema.columns import Column


@dataclass(frozen=True)
class RowFile(ABC):
    """A file of rows: what CSV and Parquet have in common."""

    file: Path
    is_text: ClassVar[bool]
    keeps_order: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.file.name

    def __str__(self) -> str:
        return str(self.file)

    def stamp(self) -> dict[str, int]:
        """Return what changes when the file does: its size, times and inode."""
        found = self.file.stat()
        return {name: getattr(found, f"st_{name}") for name in ("size", "mtime_ns", "ctime_ns", "ino")}

    def unfit(self, columns: Sequence[Column]) -> dict[str, str]:
        """Return none: whether a file's values can be read shows as they are."""
        return {}

    def columns(self) -> list[str]:
        """Return the names of the columns in their order; raises :class:`SchemaError` if two are equal."""
        names = self._names()
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SchemaError(f"{self.name} has two columns named {twice}; rename one of them in the file")
        return names

    @abstractmethod
    def _names(self) -> list[str]: ...

    @abstractmethod
    def batches(
        self, wanted: Mapping[str, Column | None], chunk_rows: int, *, strict: bool = False
    ) -> Iterator[tuple[Any, Sequence[BadLine]]]:
        """Yield the columns ``wanted`` as Arrow tables, each with the lines left out."""

    @contextmanager
    def snapshot(self) -> Iterator[RowFile]:
        """Give the file while the block lasts; raises :class:`FedsynthError` at its end if the file has changed."""
        before = self.stamp()
        yield self
        if self.stamp() != before:
            raise FedsynthError(f"{self.file} changed while it was read; try again when it is complete")

    def counted(self, schema: Schema) -> AbstractContextManager[Rows]:
        """Give the rows, counted by DuckDB, which scans the file for every question."""
        from fedsynth.data.sources.duck import count_file

        return count_file(self, schema)


@dataclass(frozen=True)
class CsvRows(RowFile):
    """The rows of a CSV file: text, except for lines that are no rows."""

    is_text = True

    def _names(self) -> list[str]:
        from fedsynth.data.sources.csv_file import CsvFile

        return CsvFile(self.file).names

    def batches(
        self, wanted: Mapping[str, Column | None], chunk_rows: int, *, strict: bool = False
    ) -> Iterator[tuple[Any, Sequence[BadLine]]]:
        """Yield about 4 MiB of text at a time; nobody has looked yet whether it is UTF-8."""
        from fedsynth.data.sources.csv_file import CsvFile

        yield from CsvFile(self.file).batches(list(wanted))


@dataclass(frozen=True)
class ParquetRows(RowFile):
    """The rows of a Parquet file, with its types."""

    is_text = False

    def _names(self) -> list[str]:
        with _open_parquet(self.file) as file:
            return list(file.schema_arrow.names)

    def batches(
        self, wanted: Mapping[str, Column | None], chunk_rows: int, *, strict: bool = False
    ) -> Iterator[tuple[Any, Sequence[BadLine]]]:
        """Yield ``chunk_rows`` rows at a time; an empty file yields its types."""
        import pyarrow as pa

        names = list(wanted)
        with _open_parquet(self.file) as file:
            empty = file.schema_arrow.empty_table()  # whose types are refused as if there were rows
            batches = (pa.Table.from_batches([batch]) for batch in file.iter_batches(chunk_rows, columns=names))
            for part in batches if file.metadata.num_rows else [empty]:
                yield part.select(names), ()


FORMATS: dict[str, type[RowFile]] = {".csv": CsvRows, ".parquet": ParquetRows}


def check_suffix(path: Path) -> None:
    """Raise :class:`Unsupported` for a file of another format than :data:`FORMATS`."""
    if path.suffix.lower() not in FORMATS:
        raise Unsupported(f"{path.name} ends in {path.suffix!r}; use a file that ends in {' or '.join(FORMATS)}")


@contextmanager
def _open_parquet(path: Path) -> Iterator[Any]:
    """Yield a Parquet file; raises :class:`SchemaError` for one that is damaged, wherever that shows."""
    import pyarrow as pa
    import pyarrow.parquet as pa_parquet

    try:
        with pa_parquet.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the system's own: no such file, no permission
            raise
        said = "".join(one for one in " ".join(str(error).split()) if one.isprintable())
        raise SchemaError(f"{path.name} is not a Parquet file, or is damaged ({said}); write it again") from error
