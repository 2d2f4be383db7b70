"""Reading a site's rows (CSV and Parquet files, PostgreSQL tables) in chunks, and writing files.

A ``place`` is a file's path, a table's address (:func:`~fedsynth.data.sources.open_source`) or a
:class:`~fedsynth.rows.Source`; ``records`` is the kind of a CSV file (:data:`~fedsynth.files.Records`) whose path is
given. Cells of a CSV file are read as text and interpreted by the schema, so that "007" keeps its zeros. No row stops
the reading of a table: a row that does not fit the schema is clipped, recoded or left out, as the schema declares, and
a malformed line of a CSV file is left out. The exception is a CSV file that is declared ``rfc4180``, because its cells
hold newlines: it is valid as a whole, or :class:`SchemaError` names the line.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedsynth import encoding
from fedsynth.data.sources import open_source
from fedsynth.data.sources.arrow import counts_of, encode, encode_column, frame_of, in_parts
from fedsynth.data.sources.cells import AMBIGUOUS
from fedsynth.data.sources.declared import DeclaredRows
from fedsynth.data.sources.files import CsvRows, check_suffix
from fedsynth.encoding import assembled
from fedsynth.encoding import frame_of as typed_frame
from fedsynth.errors import InvalidParameter, SchemaError
from fedsynth.files import Records, sync, writing
from fedsynth.persons import UNKNOWN, identify, keep_rows, require_persons
from fedsynth.rows import BadLine, Source, Table, absent_columns, concatenate
from fedsynth.schema import Schema
from fedsynth.schema.columns import Column, Encoded
from fedsynth.schema.misfits import Misfits, breaking

Place = Source | Path | str
"""A source, or the path of a file with rows."""

_SHOWN = 3  # malformed lines named in a message
_log = logging.getLogger(__name__)


class PersonLimit(NamedTuple):
    """The persons of rows for :func:`read_table`, and a limit: at most ``most`` rows of each person are kept.

    ``column`` names the column that identifies the person of a row; it need not be part of the schema. ``key`` is a
    secret that determines which rows of a person are kept (:func:`~fedsynth.persons.keep_rows`). If ``most`` is None,
    as in an evaluation, all rows are kept, those without a person (:data:`~fedsynth.persons.UNKNOWN`) included.
    """

    column: str
    most: int | None = None
    key: bytes = b""

    def __repr__(self) -> str:
        return f"PersonLimit({self.column!r}, {self.most})"


@dataclass(frozen=True)
class FileCheck:
    """The result of :func:`check_table`: ``rows`` read, rows ``left_out``, and a sentence for each problem.

    ``ok`` is true if the table can be read, no row is left out, and a CSV file does not seem to be of another kind than
    declared. ``problems`` also lists values that are clipped or counted as other or missing, and columns that the
    schema does not name; these leave ``ok`` true. ``readable`` is false if a column is missing or cannot be read, so
    that no row can be used. The sentences quote values of rows.
    """

    ok: bool
    rows: int
    problems: list[str] = field(repr=False)
    left_out: int = 0
    readable: bool = True


def _source(place: Place, records: Records | None) -> Source:
    if not isinstance(place, Source):
        return open_source(str(place), records=records)
    if records is not None:
        raise InvalidParameter("a source already has the kind of its records; pass records to open_source, or a path")
    return place


def read_table(
    place: Place,
    schema: Schema,
    *,
    records: Records | None = None,
    persons: PersonLimit | None = None,
    chunk_rows: int = 1 << 16,
    unused: Collection[str] = (),
    quiet: bool = False,
) -> Table:
    """Encode the rows of a file or a database table, for a site that loads its data into memory.

    At most about ``chunk_rows`` rows (or 4 MiB of CSV text) are held as values at a time. Only their codes are kept,
    and a float for each value of a numeric or datetime column. Rows of a database are sorted by content
    (:func:`in_canonical_order`); NULL and NaN are missing values. Rows that do not fit are handled as in
    :func:`~fedsynth.encoding.encode`. The log says what was left out or changed, with counts
    and a few values (:meth:`Table.findings <fedsynth.rows.Table.findings>`), and which columns are ignored, except
    those in ``unused``, unless ``quiet`` is true. Raises :class:`SchemaError` for a missing column, a column of a
    database whose type cannot be read, a file without a header, and an invalid file that is declared ``rfc4180``.

    With ``persons``, the result has the persons of its rows. If they have a limit, rows beyond it and rows without a
    person are dropped first and not counted as left out: their number would reveal more about a person than the limit
    allows. For the same reason malformed lines are not counted either. A file is then read twice, and the rows of a
    database table are all held as values.
    """
    source = _source(place, records)
    check_use(source, "" if persons is None else persons.column)
    check_columns(source, schema)
    wanted = {column.name: column for column in schema.asked}
    bad = BadLines()
    remarks: list[str] = []
    parts = []
    for rows, positions, of in _numbered(source, wanted, persons, chunk_rows, bad, remarks):
        part = encode(schema, rows, of)
        parts.append(replace(part, misfits=part.misfits.renumbered(positions)))
    table = (
        concatenate(parts)
        if parts
        else encoding.encode(schema, pd.DataFrame(columns=[column.name for column in schema.asked]))
    )
    parts.clear()  # frees memory for sorting
    remarks += bad.remarks()
    ignored = _ignored(source, schema, persons, unused)
    table = replace(table, misfits=replace(table.misfits, ignored=ignored, remarks=tuple(remarks)))
    if bad.count and (persons is None or persons.most is None):
        of = None if table.persons is None else np.append(table.persons, np.full(bad.count, UNKNOWN))
        table = replace(table, left_out=table.left_out + bad.count, persons=of)
    if not quiet:
        log_findings(source.name, table)
    return table if source.keeps_order else in_canonical_order(table)


def read_fitting(
    place: Place, schema: Schema, *, records: Records | None = None, persons: PersonLimit | None = None
) -> Table:
    """Return the rows as :func:`read_table` does; raises :class:`SchemaError` also if there are some and none fits."""
    source = _source(place, records)
    table = read_table(source, schema, persons=persons, quiet=True)
    table.require_rows(source.name)
    log_findings(source.name, table)
    return table


def log_findings(name: str, table: Table) -> None:
    """Write to the log, as warnings, what was left out or changed when a table of the source ``name`` was encoded."""
    for finding in table.findings():
        _log.warning("%s: %s", name, finding)


def _ignored(
    source: Source, schema: Schema, persons: PersonLimit | None, unused: Collection[str] = ()
) -> tuple[str, ...]:
    used = {*unused, *([persons.column] if persons else [])}
    return tuple(name for name in schema.ignored(source.columns()) if name not in used)


def check_table(
    place: Place,
    schema: Schema,
    *,
    records: Records | None = None,
    persons: PersonLimit | None = None,
    chunk_rows: int = 1 << 16,
) -> FileCheck:
    """Validate a source against a schema and report every kind of fault, with counts and the first examples of each.

    The sentences of the result tell how the faulty values are handled (:func:`~fedsynth.encoding.problems`), and
    number rows by position, from 0, without the header and malformed lines. A database table has no row order, so its
    rows are numbered as the database returned them. With ``persons``, rows beyond a person's limit are not checked, as
    :func:`read_table` does not use them. The source is read once in chunks; rows that break a rule of the schema, or a
    bound of a derived column, are counted in one more pass; they are not left out. If a CSV file seems to be of the
    other kind, that is the first sentence. Raises :class:`FedsynthError` or ``OSError`` for a source that cannot be
    read at all.
    """
    source = _source(place, records)
    names = source.columns()
    absent = absent_columns(source.name, names, [column.name for column in schema.asked])
    unreadable = [absent] if absent else []
    present = [column for column in schema.asked if column.name in names]
    unfit = source.unfit(present)
    unreadable += unfit.values()
    unreadable = [*kind_problems(source), *unreadable]
    readable = [column for column in present if column.name not in unfit]
    wanted: dict[str, Column | None] = {column.name: column for column in readable} or dict.fromkeys(names)
    parts: list[Misfits] = []
    broken: list[str] = []
    remarks: list[str] = []
    bad = BadLines()
    rows = left_out = 0
    try:
        for batch, positions, _ in _numbered(source, wanted, persons, chunk_rows, bad, remarks):
            kept = np.ones(batch.num_rows, dtype=bool)
            encoded = [(column.name, encode_column(schema, column, batch)) for column in readable]
            for _, codes in encoded:
                kept &= codes.codes >= 0
            parts.append(Misfits.of(encoded).renumbered(positions))
            rows += batch.num_rows
            left_out += int(np.count_nonzero(~kept))
        if not unreadable:
            broken = _breaking(source, schema, chunk_rows)
    except SchemaError as error:
        unreadable.append(str(error))
    remarks += bad.remarks()
    misfits = Misfits.merged(parts)
    about_table = Misfits(ignored=_ignored(source, schema, persons), remarks=(*broken, *remarks))
    if not persons:
        rows, left_out = rows + bad.count, left_out + bad.count
    return FileCheck(
        not unreadable and not left_out and not any(AMBIGUOUS in sentence for sentence in bad.cells),
        rows,
        [*unreadable, *misfits.sentences(), *about_table.sentences()],
        left_out,
        not unreadable,
    )


def _breaking(source: Source, schema: Schema, chunk_rows: int) -> list[str]:
    """Return a sentence for each rule, and each bound of a derived column, that rows of the source violate."""
    if not (schema.rules or schema.derives):
        return []
    plain = schema.plain(source.columns())
    wanted: dict[str, Column | None] = {column.name: column for column in plain.asked}
    counts: Counter[str] = Counter()
    for rows in _batches(source, wanted, chunk_rows, BadLines()):
        counts.update(
            {sentence: int(mask.sum()) for sentence, mask in encoding.broken(schema, encode(plain, rows)).items()}
        )
    return breaking(counts)


def read_frame(
    place: Place, columns: Sequence[str] | None = None, *, records: Records | None = None, strict: bool = False
) -> pd.DataFrame:
    """Return the cells of a file or a database table as a data frame, without guessing what they mean.

    All cells of a CSV file are text, empty ones and spellings of missing values included. Other sources keep their
    types, except that bytes become text (:func:`~fedsynth.data.sources.arrow.readable`), and so do a database's exact
    decimals. Under every schema, :func:`~fedsynth.encoding.encode` makes of the frame what
    :func:`read_table` makes of the source, except for what a source file declares of all numbers or all times: which
    columns these are, only a schema says. ``columns`` selects columns by name (default: all). Rows of a database are
    sorted by content. Malformed lines of a CSV file are left out and reported in the log. ``strict`` refuses text that
    is not UTF-8, and times of a database that cannot be represented, where otherwise such cells are replaced one by
    one. Raises :class:`SchemaError` for these, for an unknown column, for an invalid file that is declared ``rfc4180``,
    and for a column of a database whose type cannot be read.
    """
    source, bad = _source(place, records), BadLines()
    held = _whole(source, dict.fromkeys(_selected(source, columns)), bad, strict=strict)
    for remark in bad.remarks():
        _log.warning("%s: %s", source.name, remark)
    return frame_of(held, typed=True, strict=strict)


def read_with_persons(place: Place, schema: Schema, person: str) -> pd.DataFrame:
    """Return the cells of a schema's columns and of the column ``person``, as :func:`read_frame` returns them.

    It is for limits on a person's rows at several sites, which must be known before rows are encoded. The log says
    which lines are left out and which columns are ignored. Raises what :func:`read_table` does.
    """
    source, bad = _source(place, None), BadLines()
    check_use(source, person)
    check_columns(source, schema)
    require_persons(source, person)
    held = _whole(source, {person: None} | {column.name: column for column in schema.asked}, bad)
    about = Misfits(ignored=_ignored(source, schema, PersonLimit(person)), remarks=tuple(bad.remarks()))
    for sentence in about.sentences():
        _log.warning("%s: %s", source.name, sentence)
    return frame_of(held, typed=True)


def read_typed(
    place: Place, schema: Schema, columns: Sequence[str] | None = None, *, records: Records | None = None
) -> pd.DataFrame:
    """Return the rows of a file or a database table as a data frame with the types of a schema's columns.

    Each cell is read for its column in the schema alone, and each row by itself, as :func:`read_table` encodes it:
    numbers become numbers, clipped to their bounds, times become times in the column's unit, and categories become
    labels as the schema spells them, ``"other"`` included. A cell that the schema counts as missing is missing. A row
    that it leaves out is not in the frame, nor is a malformed line of a CSV file; the log says what was changed and
    left out. Under this schema, the frame is encoded as the source is, but for the number of rows left out, and for
    cells that are clipped or rounded to a value that stands for a missing one, such as -9. In computed columns, cells
    that do not fit are missing. Identifiers, and columns that the schema does not name, are as in
    :func:`read_frame`. ``columns`` selects columns of the result by name (default: all). Raises what :func:`read_table`
    does, and :class:`SchemaError` for an unknown column.
    """
    source = _source(place, records)
    check_columns(source, schema)
    names, selected, bad = source.columns(), _selected(source, columns), BadLines()
    asked = {column.name: column for column in schema.asked}
    # Sites never read computed columns, so that no row is left out because of them.
    plain = (c if c.name in asked else msgspec.structs.replace(c, missing=True) for c in schema.plain(names).asked)
    typed = {column.name: column for column in plain if column.name in {*asked, *selected}}
    held = _whole(source, {name: typed.get(name) for name in names if name in {*typed, *selected}}, bad)
    encoded = {name: encode_column(schema, column, held) for name, column in typed.items()}
    table = assembled(schema, (encoded[name] for name in asked))
    remarks = tuple(bad.remarks())
    misfits = replace(table.misfits, remarks=remarks)
    log_findings(source.name, replace(table, left_out=table.left_out + bad.count, misfits=misfits))
    kept = np.logical_and.reduce([encoded[name].codes >= 0 for name in asked])
    values = {name: _values(column, encoded[name])[kept] for name, column in typed.items()}
    found = typed_frame(Schema(tuple(typed.values())), values, np.random.default_rng(0))  # nothing of it is drawn
    others = held.select([name for name in selected if name not in typed]).filter(pa.array(kept))
    frame = found.join(frame_of(others, typed=True))
    return frame[selected]


def _selected(source: Source, columns: Sequence[str] | None) -> list[str]:
    """Return the names of the selected columns, by default all; raises :class:`SchemaError` for an unknown one."""
    names = source.columns()
    if unknown := [name for name in columns or () if name not in names]:
        raise SchemaError(f"{source.name} has no columns {unknown}; it has {', '.join(names)}")
    return list(columns) if columns is not None else names


def _whole(source: Source, wanted: Mapping[str, Column | None], bad: BadLines, *, strict: bool = False) -> Any:
    """Return the ``wanted`` columns of all rows as an Arrow table; rows of a database are sorted by content."""
    read = list(_batches(source, wanted, 1 << 20, bad, strict=strict))
    if not read:
        return pa.table({name: pa.array([], pa.string()) for name in wanted})
    held = pa.concat_tables(read).unify_dictionaries()
    return held if source.keeps_order else held.take(_by_content(held))


def _by_content(table: Any) -> Any:
    """Return the positions of an Arrow table's rows in an order that their content alone determines.

    The order in which a database returns rows may change with any other row.
    """
    return pc.sort_indices(table, [(name, "ascending") for name in table.column_names])


def _values(column: Column, encoded: Encoded) -> NDArray[Any]:
    """Return the numbers of an encoded column, or the codes of one without, with missing values where none fits."""
    if encoded.numbers is not None:
        return np.where(encoded.codes < 0, np.nan, encoded.numbers)
    return np.where(encoded.codes < 0, column.size - 1, encoded.codes)


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """Write a data frame to ``path`` (.csv or .parquet), without its index.

    A CSV file is valid RFC 4180 (``records="rfc4180"`` reads it back); its lines end in LF, or in CRLF if a text has a
    carriage return. An existing file is replaced only when the new one is complete. Raises :class:`Unsupported` for
    another suffix.
    """
    check_suffix(path)
    partial = path.with_name(path.name + ".partial")
    try:
        with writing(path):
            with partial.open("wb") as file:  # not by pandas, whose error for a missing folder has no number
                if path.suffix.lower() == ".parquet":
                    frame.to_parquet(file, index=False)
                else:
                    # pandas rather than pyarrow: it adds quotes only where needed and writes times as ISO 8601.
                    _early_years(frame).to_csv(file, index=False, lineterminator=_line_end(frame))
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
            sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def _line_end(frame: pd.DataFrame) -> str:
    """Return the end of lines with which pandas, before Python 3.13, adds quotes to all cells that need them."""
    texts = frame.select_dtypes(exclude=["number", "bool", "datetime", "datetimetz"])
    held = (value for name in texts for value in texts[name].unique())
    return "\r\n" if any("\r" in str(text) for text in (*frame.columns, *held)) else "\n"


def _early_years(frame: pd.DataFrame) -> pd.DataFrame:
    """Convert times before the year 1000 to ISO 8601 text, since pandas writes their years with too few digits."""
    times = frame.select_dtypes(["datetime", "datetimetz"])
    early = [name for name in times if (times[name].dt.year < 1000).any()]
    return frame.assign(**{str(name): frame[name].map(lambda time: time.isoformat(), "ignore") for name in early})


def check_use(source: Source, person: str) -> None:
    """Raise :class:`InvalidParameter` if a source file keeps its rows from a run that protects these persons."""
    if isinstance(source, DeclaredRows):
        source.check(person)


def kind_problems(source: Source) -> list[str]:
    """Return why text files seem to be of another kind than declared, and what to declare; empty if nothing does."""
    if isinstance(source, DeclaredRows):
        return source.problems()
    problem = source.kind_problem() if isinstance(source, CsvRows) else ""
    return [problem] if problem else []


def check_columns(source: Source, schema: Schema) -> None:
    """Raise :class:`SchemaError` if the source lacks a column that sites read under this schema; reads no row."""
    if absent := absent_columns(source.name, source.columns(), [column.name for column in schema.asked]):
        raise SchemaError(absent)


def column_names(place: Place, *, records: Records | None = None) -> list[str]:
    """Return the names of a source's columns in order; raises :class:`SchemaError` for duplicates."""
    return _source(place, records).columns()


class BadLines:
    """The malformed lines of a CSV file: their ``count``, and as text (``str``) a description of the first few."""

    def __init__(self) -> None:
        """Start with no lines."""
        self.count = 0
        self.cells: Counter[str] = Counter()
        self._first: list[BadLine] = []

    def __str__(self) -> str:
        first = "; ".join(f"line {line.number} {line.wrong}" for line in self._first)
        more = f"; and {self.count - len(self._first)} more" if self.count > len(self._first) else ""
        return (
            f"malformed lines, which are left out: {self.count} ({first}{more}); write as many cells in every row as "
            'in the header, and close every quote, or declare a file whose cells hold newlines: records = "rfc4180" '
            "(--records rfc4180)"
        )

    def remarks(self) -> list[str]:
        """Return a sentence on the lines, if there are any, and one on each kind of cell that was not read."""
        cells = [f"{sentence}: {number}" for sentence, number in self.cells.items()]
        return [str(self)] * bool(self.count) + cells

    def add(self, rows: Any, lines: Sequence[BadLine]) -> None:
        """Count further malformed ``lines``, the first few of which are kept, and the cells that ``rows`` count."""
        self.cells.update(counts_of(rows))
        self.count += len(lines)
        self._first += lines[: _SHOWN - len(self._first)]


def _batches(
    source: Source, wanted: Mapping[str, Column | None], chunk_rows: int, bad: BadLines, *, strict: bool = False
) -> Iterator[Any]:
    """Yield the ``wanted`` columns as Arrow tables of at most ``chunk_rows`` rows; add malformed lines to ``bad``."""
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows = {chunk_rows}; give at least 1")
    for rows, lines in source.batches(wanted, chunk_rows, strict=strict):
        bad.add(rows, lines)
        yield from in_parts(rows, chunk_rows)


def _numbered(
    source: Source,
    wanted: Mapping[str, Column | None],
    persons: PersonLimit | None,
    chunk_rows: int,
    bad: BadLines,
    remarks: list[str],
) -> Iterator[tuple[Any, NDArray[np.int64], NDArray[np.uint64] | None]]:
    """Yield the ``wanted`` columns in batches, each with the positions of its rows in the source.

    With ``persons``, only the rows that are kept of each person are yielded, with their persons, and ``remarks`` gets a
    sentence that counts the others.
    """
    if persons is not None:
        yield from _limited(source, wanted, persons, chunk_rows, bad, remarks)
        return
    start = 0
    for rows in _batches(source, wanted, chunk_rows, bad):
        yield rows, np.arange(start, start + rows.num_rows), None
        start += rows.num_rows


def _limited(
    source: Source,
    wanted: Mapping[str, Column | None],
    persons: PersonLimit,
    chunk_rows: int,
    bad: BadLines,
    remarks: list[str],
) -> Iterator[tuple[Any, NDArray[np.int64], NDArray[np.uint64]]]:
    """Yield the ``wanted`` columns of the rows that are kept of each person, with their positions and their persons."""
    require_persons(source, persons.column)
    person = {persons.column: wanted.get(persons.column)}
    batches: Iterable[Any]
    if source.keeps_order:  # the source is read twice
        ids = [frame_of(rows)[persons.column] for rows in _batches(source, person, chunk_rows, BadLines())]
        batches = _batches(source, wanted, chunk_rows, bad)
    else:
        batches = list(_batches(source, {**wanted, **person}, chunk_rows, bad))
        ids = [frame_of(rows.select([persons.column]))[persons.column] for rows in batches]
    every = pd.concat(ids, ignore_index=True) if ids else pd.Series([], dtype=object)
    known = identify(every)
    kept = np.ones(len(every), bool)
    if persons.most is not None:
        order = np.arange(len(every))
        if not source.keeps_order and len(every):  # by content: other rows can change the order in a database
            order = _by_content(pa.concat_tables(batches)).to_numpy()
        kept[order] = keep_rows(every.iloc[order], persons.most, persons.key)
    if dropped := int(np.count_nonzero(~kept)):
        remarks.append(
            f"{dropped} of the {len(kept)} rows are not used: at most {persons.most} of each {persons.column!r} are, "
            "and none without one"
        )
    start = 0
    for rows in batches:
        these = kept[start : start + rows.num_rows]
        positions = start + np.flatnonzero(these)
        yield rows.filter(pa.array(these)), positions, known[positions]
        start += rows.num_rows


def in_canonical_order(table: Table) -> Table:
    """Return the rows of a ``table`` sorted by content, so that equal sets of rows give equal tables.

    It is for rows of a database, which keeps no row order. A table's digest depends on the order, and runs and reports
    compare digests to find out whether rows have changed: unsorted rows would seem to change whenever the database
    rewrites them. Codes are packed into as few sort keys as possible. Numbers are sorted by their bits, because the
    digest covers those bits; the codes of numeric columns need no key because the numbers determine them.
    """
    keys: list[np.ndarray[Any, Any]] = [values.view(np.int64) for values in table.numbers.values()]
    room = 1
    for position, size in enumerate(table.schema.sizes):
        if position in table.numbers:
            continue
        if room == 1 or room * size >= 2**63:
            keys.append(table.codes[position].astype(np.int64))
            room = size
        else:
            keys[-1] *= size
            keys[-1] += table.codes[position]
            room *= size
    if table.persons is not None:
        keys.insert(0, table.persons[: len(table)])
    found = replace(table.take(np.lexsort(keys)), left_out=table.left_out, misfits=table.misfits)
    if table.persons is None or found.persons is None:
        return found
    return replace(found, persons=np.concatenate([found.persons, np.sort(table.persons[len(table) :])]))
