"""Rows of a site's own exports, in the form that a source file declares.

Each record is mapped by itself: what becomes of it depends on its own cells, the source file and the schema, so that
one record more or less changes no other, and none raises. With a ``lookup``, a record also depends on the lines of the
other table that are about its person; whoever uses the rows must then protect that person
(:meth:`DeclaredRows.check`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from fedsynth.data.sources.files import CsvRows, RowFile
from fedsynth.data.sources.source_file import SourceColumn, SourceFile
from fedsynth.data.sources.workbook import WorkbookRows
from fedsynth.errors import InvalidParameter, SchemaError, Unsupported
from fedsynth.rows import BadLine, Rows, Source, absent_columns
from fedsynth.schema import Schema
from fedsynth.schema.columns import Column, Numeric

if TYPE_CHECKING:
    from fedsynth.data.sources.cells import Reading


@dataclass(frozen=True)
class DeclaredRows:
    """The rows of ``bases``, files of one form or an address, as the source file ``told`` declares them.

    ``other`` is the table of the lookup. ``name`` is the source file's, or that of a workbook without one. A
    :class:`~fedsynth.rows.Source`; ``file`` is ``None``, since the rows depend on several files.
    """

    name: str
    told: SourceFile
    bases: tuple[Source, ...]
    other: Source | None = None
    file = None

    @property
    def is_text(self) -> bool:
        """Whether all cells are read as text, and numbers and times of it."""
        return all(base.is_text for base in self.bases)

    @property
    def keeps_order(self) -> bool:
        """Whether every read returns the rows in the same order."""
        return all(base.keeps_order for base in self.bases)

    @property
    def records(self) -> str:
        """The kind of the text files; empty without any."""
        return self.told.csv.records if any(isinstance(base, CsvRows) for base in self.bases) else ""

    @property
    def digest(self) -> str:
        """The digest (hex) of the source file, to which runs are bound."""
        return self.told.digest

    def __str__(self) -> str:
        return self.name

    def check(self, person: str) -> None:
        """Raise :class:`InvalidParameter` if a run may not use the rows, whose persons the column ``person`` names.

        It may not while the source file is a draft, nor with a lookup unless its persons are those that are protected.
        """
        if self.told.draft:
            raise InvalidParameter(
                f"{self.name} is a draft: check its entries against the file, then delete its line draft = true"
            )
        if (lookup := self.told.lookup) is not None and person != (lookup.person or lookup.key):
            raise InvalidParameter(
                f"{self.name} has a lookup by the column {lookup.person or lookup.key!r}, so that column must identify "
                "the persons that are protected: name it (person in [source] of site.toml, --person), or delete lookup"
            )

    def problems(self) -> list[str]:
        """Return a sentence for each text file that seems to be of another kind than declared, and on a draft."""
        found = [base.kind_problem() for base in self.bases if isinstance(base, CsvRows)]
        draft = [f"{self.name} is a draft: check its entries, then delete draft = true"] if self.told.draft else []
        return [f"{said.partition(' under [source]')[0]} under csv in {self.name}" for said in found if said] + draft

    @cached_property
    def _raw(self) -> tuple[dict[str, str], ...]:
        """The columns of each base: their names, without spaces around them, and as they stand there."""
        return tuple(_trimmed(base) for base in self.bases)

    @cached_property
    def _looked_up(self) -> dict[str, str]:
        """The columns that the lookup adds, as :attr:`_raw`."""
        lookup = self.told.lookup
        if lookup is None or self.other is None:
            return {}
        names = _trimmed(self.other)
        if lookup.key not in names:
            raise SchemaError(f"{self.other.name} has no column {lookup.key!r}, which lookup.key names; correct it")
        added = {name: raw for name, raw in names.items() if name != lookup.key}
        if twice := [name for name in added if name in self._raw[0]]:
            raise SchemaError(f"{self.other.name} and {self.bases[0].name} both have {twice}; rename one of them")
        return added

    def columns(self) -> list[str]:
        """Return the names of the columns: of the files and the lookup, of ``[column]``, and the absent ones."""
        there = [*self._raw[0], *self._looked_up]
        renamed = {*self.told.read_names()}
        added = [name for name in (*self.told.column, *self.told.absent) if name not in there]
        self._sources([*self.told.column])
        return [name for name in there if name not in renamed or name in self.told.column] + added

    def _sources(self, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return the columns of files or lookup that each of these columns is read from, by name."""
        found: dict[str, tuple[str, ...]] = {}
        for name in names:
            of = self.told.forms(name).from_
            found[name] = () if name in self.told.absent else (of,) if isinstance(of, str) else of
            for base, raw in zip(self.bases, self._raw, strict=True):
                if lost := [one for one in found[name] if one not in raw and one not in self._looked_up]:
                    raise SchemaError(
                        f"{base.name} lacks the column {lost[0]!r}, from which {self.name} reads {name!r}; correct "
                        "`from` there, or list the column in absent"
                    )
        return found

    def unfit(self, columns: Sequence[Column]) -> dict[str, str]:
        """Return what keeps columns from being read: absent ones that may not be missing, and types of an address."""
        here = [one for one in columns if one.name not in (*self.told.column, *self.told.absent)]
        return {**self.bases[0].unfit(here), **{one.name: self._not_admitted(one) for one in self._refused(columns)}}

    def _refused(self, columns: Iterable[Column | None]) -> list[Column]:
        """Return the absent ones among a schema's columns that the schema does not let be missing."""
        return [one for one in columns if one is not None and one.name in self.told.absent and not one.missing]

    def _not_admitted(self, column: Column) -> str:
        return (
            f"{self.name} declares the column {column.name!r} absent, but the schema does not let it be missing: have "
            "all sites agree on missing = true for it, or say which column of the file holds it (from) instead"
        )

    def require(self, wanted: Mapping[str, Column | None]) -> None:
        """Raise an error unless the files open and have what the ``wanted`` columns are read from."""
        if absent := absent_columns(self.name, self.columns(), wanted):
            raise SchemaError(absent)
        self._sources(list(wanted))
        if refused := self._refused(wanted.values()):
            raise SchemaError(self._not_admitted(refused[0]))
        if any(not isinstance(base, RowFile) for base in self.bases):
            told = self.told
            plain = SourceFile(data=told.data, column={n: SourceColumn(from_=c.from_) for n, c in told.column.items()})
            if told != plain:
                raise Unsupported(
                    f"{self.name}: a database's values have types, and of {self.bases[0].name} only columns can be "
                    "renamed (from); delete the other entries, and write a view there that does what they say"
                )

    def batches(
        self, wanted: Mapping[str, Column | None], chunk_rows: int, *, strict: bool = False
    ) -> Iterator[tuple[Any, Sequence[BadLine]]]:
        """Yield tables of the ``wanted`` columns: texts, float64 for numeric columns, timestamps for datetime ones.

        A column that is read for no schema's column is text, unless the source file says more of it. The metadata of a
        table count the cells that could not be read, by sentence.
        """
        self.require(wanted)
        sources = self._sources(list(wanted))
        readings = {name: self.reading(name, column) for name, column in wanted.items()}
        numbers = {one for name, reading in readings.items() if reading.kind == "number" for one in sources[name]}
        lookup = None if self.told.lookup is None else _Lookup.read(self, sources, numbers)
        for base, raw in zip(self.bases, self._raw, strict=True):
            asked: dict[str, Column | None] = {}
            for name, column in wanted.items():
                for one in (one for one in sources[name] if one in raw):
                    asked[raw[one]] = column if not isinstance(base, RowFile) else _NUMBER if one in numbers else None
            asked |= {raw[one]: None for one in (*self.told.skip, *([lookup.person] if lookup else [])) if one in raw}
            asked = asked or {next(iter(raw.values())): None}
            with base.snapshot() as held:
                for table, bad in held.batches(asked, chunk_rows, strict=strict):
                    several = f"of {base.name} " if len(self.bases) > 1 else ""
                    lines = [BadLine(line.number, several + line.wrong) for line in bad]
                    yield self._mapped(table, sources, readings, lookup), lines

    def reading(self, name: str, column: Column | None) -> Reading:
        """Return how the cells of a column are read, for a ``column`` of the schema or for none."""
        from fedsynth.data.sources.cells import Reading  # imports pyarrow

        forms, kind = self.told.forms(name), "text"
        own = self.told.column.get(name, SourceColumn())
        if (column is not None and column.is_number and column.is_time) or own.dates:
            kind = "time"
        elif (column is not None and column.is_number) or own.factor is not None or own.decimal or own.thousands:
            kind = "number"
        zoned = getattr(column, "timezone", None) is not None
        books = any(isinstance(base, WorkbookRows) for base in (*self.bases, self.other))
        return Reading(name, kind, forms, self.told.zone, self.told.fold, zoned, books, own.for_text)  # type: ignore[arg-type]

    def _mapped(
        self,
        table: Any,
        sources: Mapping[str, tuple[str, ...]],
        readings: Mapping[str, Reading],
        lookup: _Lookup | None,
    ) -> Any:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        from fedsynth.data.sources.arrow import counts_of, with_counts

        counts = Counter(counts_of(table))
        table = table.rename_columns([name.strip() for name in table.column_names])  # without metadata
        kept = np.ones(table.num_rows, bool)
        for name, cells in self.told.skip.items():
            if name not in table.column_names:
                raise SchemaError(f"{self.name}: skip names the column {name!r}, which the file lacks; correct it")
            texts = pc.utf8_trim_whitespace(table[name].cast(pa.string()))
            kept &= ~np.asarray(pc.is_in(texts, pa.array([str(cell) for cell in cells])))
        if not kept.all():
            counts["records that skip names, which are left out"] += int((~kept).sum())
            table = table.filter(pa.array(kept))
        person = None if lookup is None else lookup.persons(table)
        columns = {}
        for name, reading in readings.items():
            given = [
                table[one] if lookup is None or one in table.column_names else lookup.column(one, person)
                for one in sources[name]
            ]
            columns[name] = reading.read(given, counts) if given else pa.nulls(table.num_rows, pa.string())
        return with_counts(pa.table(columns), counts)

    @contextmanager
    def snapshot(self) -> Iterator[Self | DeclaredRows]:
        """Yield the rows as they are at this moment; a file that changes raises an error at the end of the block."""
        with ExitStack() as stack:
            held = tuple(stack.enter_context(base.snapshot()) for base in self.bases)
            other = None if self.other is None else stack.enter_context(self.other.snapshot())
            yield DeclaredRows(self.name, self.told, held, other)

    def counted(self, schema: Schema) -> AbstractContextManager[Rows]:
        """Raise :class:`Unsupported`: a database that counts its rows knows nothing of a source file."""
        raise Unsupported(
            f"{self.name} declares how rows are read, and a database that counts them reads none; write a view there, "
            "and name it as data in [source]"
        )


_NUMBER = Numeric("number", 0.0, 1.0)  # stands for all columns of numbers, which a workbook reads exactly


@dataclass(frozen=True)
class _Lookup:
    """The columns that a lookup adds, one value for each person: missing where that person's lines differ."""

    person: str
    keys: Any
    values: Any

    @classmethod
    def read(cls, rows: DeclaredRows, sources: Mapping[str, tuple[str, ...]], numbers: set[str]) -> _Lookup:
        """Read the wanted columns of a lookup's table."""
        import pyarrow as pa
        import pyarrow.compute as pc

        told, other, added = rows.told.lookup, rows.other, rows._looked_up
        assert told is not None
        assert other is not None
        wanted = {one: added[one] for of in sources.values() for one in of if one in added}
        key = next(raw for name, raw in _trimmed(other).items() if name == told.key)
        asked = {key: None, **{raw: _NUMBER if name in numbers else None for name, raw in wanted.items()}}
        read = [table for table, _ in other.batches(asked, 1 << 16)]
        held = pa.concat_tables(read)
        ids = _identifiers(held[key])
        cells = {raw: pc.utf8_trim_whitespace(held[raw].cast(pa.string())) for raw in wanted.values()}
        grouped = pa.table({"key": ids, **{f"of {raw}": of for raw, of in cells.items()}}).group_by("key")
        made = grouped.aggregate(
            [(f"of {raw}", "min") for raw in cells]
            + [(f"of {raw}", "count_distinct", pc.CountOptions(mode="all")) for raw in cells]
        )
        values = {
            name: pc.if_else(pc.equal(made[f"of {raw}_count_distinct"], 1), made[f"of {raw}_min"], None)
            for name, raw in wanted.items()
        }
        return cls(told.person or told.key, made["key"], values)

    def persons(self, table: Any) -> Any:
        """Return the place of each record's person in the lookup; null for persons that it lacks."""
        import pyarrow.compute as pc

        return pc.index_in(_identifiers(table[self.person]), self.keys.combine_chunks(), skip_nulls=True)

    def column(self, name: str, persons: Any) -> Any:
        """Return a column of the lookup for the records' persons."""
        return self.values[name].take(persons)


def _identifiers(cells: Any) -> Any:
    """Return identifiers of persons as canonical texts, null for empty ones."""
    import pyarrow as pa

    from fedsynth.data.sources.arrow import readable
    from fedsynth.schema.canonical import canonical_texts

    coded = readable("", cells).combine_chunks().dictionary_encode()
    if isinstance(coded, pa.ChunkedArray):
        return pa.chunked_array([pa.array([], pa.string())])
    spelled = [value.strip() if isinstance(value, str) else value for value in coded.dictionary.to_pylist()]
    texts = [next(iter(canonical_texts(value)), None) or None for value in spelled]
    return pa.chunked_array([pa.array(texts, pa.string()).take(coded.indices)])


def _trimmed(source: Source) -> dict[str, str]:
    """Return the names of a source's columns without spaces around them, each with the name as it stands there."""
    names = source.columns()
    trimmed = {name.strip(): name for name in names}
    if len(trimmed) < len(names):
        raise SchemaError(f"{source.name} has two columns whose names differ in spaces alone; rename one of them")
    return trimmed
