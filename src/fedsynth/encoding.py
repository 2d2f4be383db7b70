"""Rows under a schema: encoded as codes, decoded, validated, and converted between stored and published rows.

A schema describes a table (:mod:`fedsynth.schema.schema`); here are the functions from frames to tables of codes and
back. Each row is encoded by itself (:mod:`fedsynth.schema.derive`, rule 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsynth.errors import SchemaError, Unsupported
from fedsynth.rows import Table
from fedsynth.schema.canonical import canonical_text, canonical_texts
from fedsynth.schema.coarse import agree
from fedsynth.schema.columns import (
    Column,
    Encoded,
    distinct_values,
    is_missing,
    is_text,
    missing_spellings,
    readable,
)
from fedsynth.schema.derive import NEAR, Mask, Values, computed_form, computed_values
from fedsynth.schema.forms import Identifier, Lookup
from fedsynth.schema.misfits import Misfits, breaking, with_examples
from fedsynth.schema.schema import Schema

if TYPE_CHECKING:
    import pandas as pd


def encode(schema: Schema, frame: pd.DataFrame) -> Table:
    """Encode the rows of a data frame as codes; columns that the schema does not name are ignored.

    Values that do not fit are handled as their columns declare, without a warning; ``left_out`` of the table counts
    the rows left out, and :meth:`Table.findings <fedsynth.rows.Table.findings>` says what was left out or changed.
    The encoding of a row depends on that row and the schema alone, not on the dtypes that other rows give the
    columns. This begins with the frame: an integer beyond 2^53 in a column that a missing value turned into doubles
    has lost its last digits, and "007" is 7 if ``pandas.read_csv`` took it for a number (read files with
    :func:`fedsynth.read_table`). Raises :class:`SchemaError` only for a missing column, and for two of one name.
    """
    table = assembled(schema, (encode_column(schema, column, frame) for column in schema.asked))
    ignored = schema.ignored(map(str, frame.columns))
    return replace(table, misfits=replace(table.misfits, ignored=ignored)) if ignored else table


def assembled(schema: Schema, columns: Iterable[Encoded], persons: NDArray[np.uint64] | None = None) -> Table:
    """Return the table of rows whose columns are encoded, without the rows that some column leaves out (code -1).

    ``columns`` are those that sites are asked about (``schema.asked``), encoded, in their order; those to be stored are
    computed here. The table carries the record of the values that do not fit. ``persons`` has an integer for the person
    of each row (uint64, shape ``(rows,)``), if it is known.
    """
    asked = tuple(columns)
    stored = [
        schema.links[at].encoded(column, asked[schema.links[at].other]) if at in schema.links else column
        for at, column in enumerate(asked)
    ]
    known = dict(zip((column.name for column in schema.asked), asked, strict=True))
    for one in schema.coarse:
        finer = known[one.finer.name]
        given = Encoded(one.codes(finer.codes if finer.numbers is None else finer.numbers), None, ())
        known[one.column.name] = given
        stored.append(given)
    kept: NDArray[np.bool_] | None = None
    codes: list[NDArray[Any]] = []
    numbers: dict[int, NDArray[np.float64]] = {}
    for position, (column, encoded) in enumerate(zip(schema.stored, stored, strict=True)):
        fits = encoded.codes >= 0
        kept = fits if kept is None else kept & fits
        codes.append(encoded.codes.astype(np.min_scalar_type(column.size - 1)))
        if encoded.numbers is not None:
            numbers[position] = encoded.numbers
    assert kept is not None  # a schema has columns
    names = [column.name for column in schema.asked]
    misfits = Misfits.of(zip(names, asked, strict=True))
    if schema.rules or schema.links:
        values = {name: (one.codes if one.numbers is None else one.numbers)[kept] for name, one in known.items()}
        counts = {sentence: int(np.count_nonzero(mask)) for sentence, mask in violations(schema, values).items()}
        misfits = replace(misfits, broken=counts)
    table = Table(schema, tuple(codes), numbers, persons=persons)
    if not kept.all():
        ordered = None if persons is None else np.concatenate([persons[kept], persons[~kept]])
        table = replace(table.take(kept), left_out=int(np.count_nonzero(~kept)), persons=ordered)
    return replace(table, misfits=misfits)


def encode_column(schema: Schema, column: Column, frame: pd.DataFrame) -> Encoded:
    """Return one of the columns in ``schema.asked`` of a data frame in encoded form; its stored form comes later.

    Raises :class:`SchemaError` if the frame lacks the column, or has several of its name.
    """
    if column.name not in frame.columns:
        known = f"the table has {', '.join(map(str, frame.columns))}"
        unknown = f"if nobody knows its values here, df[{column.name!r}] = None says so"
        raise SchemaError(
            f"column {column.name!r} is missing; add it to the table, or remove it from the schema; {unknown}"
            f"{'' if column.missing else ', where the schema says missing = true of it'} ({known})"
        )
    values = frame[column.name]
    if values.ndim > 1:
        raise SchemaError(f"the table has several columns {column.name!r}; keep one of them")
    values = readable(values)
    return with_examples(column.encode(values, _missing_among(schema, column, values)), values)


def problems(schema: Schema, frame: pd.DataFrame) -> list[str]:
    """Validate rows: return a sentence for every kind of fault in every column, with counts and the first examples.

    Each sentence tells how the value is handled: clipped, counted as ``'other'`` or as missing, or its row left
    out. If all columns can be read, rows that violate a rule, or a bound of a derived column, are also counted. An
    empty list means that :func:`encode` clips and recodes no value and leaves out no row.
    """
    found: list[str] = []
    complete = True
    for column in schema.asked:
        try:
            found += Misfits.of([(column.name, encode_column(schema, column, frame))]).sentences()
        except SchemaError as error:  # the frame lacks the column
            found.append(str(error))
            complete = False
    if complete and (schema.rules or schema.derives):
        masks = broken(schema, encode(schema.plain(map(str, frame.columns)), frame))
        found += breaking({sentence: int(mask.sum()) for sentence, mask in masks.items()})
    return found


def decode(schema: Schema, table: Table | Sequence[NDArray[Any]], rng: np.random.Generator) -> pd.DataFrame:
    """Decode rows to a data frame with the columns' dtypes; numbers and times are drawn uniformly from their bins.

    ``table`` may be only its codes: a list with an integer array of shape ``(rows,)`` for each column of
    ``schema.stored``. The numbers that a table may hold are not used. ``rng`` draws the values and the identifiers.
    """
    codes = table if isinstance(table, Sequence) else table.codes
    return frame_of(schema, published(with_numbers(Table(schema, tuple(map(np.asarray, codes))), rng)), rng)


def publish(schema: Schema, table: Table) -> Table:
    """Convert stored rows to published rows, with all derived columns: a table under ``schema.plain()``.

    Raises :class:`Unsupported` if the schema derives columns, but ``table`` lacks the numbers of some column.
    """
    if schema.is_plain:
        return table
    values = published(table)
    plain = schema.plain(values)
    found = Table.of(plain, [values[name] for name in plain.names])
    return replace(found, left_out=table.left_out, persons=table.persons, misfits=table.misfits)


def store(schema: Schema, plain: Table) -> Table:
    """Convert published rows, a table under ``schema.plain()``, to stored rows.

    Columns with a stored form, and those to which they refer, must have numbers in ``plain``.
    """
    if schema.is_plain:
        return plain
    places = [plain.schema.index(column.name) for column in schema.asked]
    codes = ((at, plain.codes[at].astype(np.int64)) for at in places)
    persons = None if plain.persons is None else plain.persons[: len(plain)]
    table = assembled(schema, (Encoded(found, plain.numbers.get(at), ()) for at, found in codes), persons)
    if table.persons is not None and plain.persons is not None:
        table = replace(table, persons=np.concatenate([table.persons, plain.persons[len(plain) :]]))
    return replace(table, left_out=table.left_out + plain.left_out, misfits=plain.misfits)


def broken(schema: Schema, plain: Table) -> dict[str, NDArray[np.bool_]]:
    """Return, for each rule and each bound of a derived column, a mask of the published rows that violate it.

    The keys are sentences that state the rule or bound.
    """
    return violations(schema, values_of(plain))


def _missing_among(schema: Schema, column: Column, values: pd.Series[Any]) -> NDArray[np.bool_]:
    """Return which values are missing: pandas', and those in an agreed spelling that the column does not list."""
    import pandas as pd

    texts, by_value = missing_spellings(column, schema.missing_values)
    missing: NDArray[np.bool_]
    if by_value:

        def gone(value: Any) -> bool:
            if isinstance(value, str):
                return value in texts or canonical_text(value) in by_value
            return is_missing(value) or any(text in by_value for text in canonical_texts(value))

        which, distinct = distinct_values(values)
        missing = np.array([*map(gone, distinct), True], dtype=bool)[which]
        return missing
    if values.dtype == object and not is_text(values):  # pandas' isna and isin fail on some objects, such as lists
        held = ((value in texts) if isinstance(value, str) else is_missing(value) for value in values)
        return np.fromiter(held, dtype=bool, count=len(values))
    missing = values.isna().to_numpy(dtype=bool)
    has_text = isinstance(values.dtype, pd.CategoricalDtype) or is_text(values)
    return missing | values.isin(list(texts)).to_numpy() if has_text else missing


# ---------------------------------------------------------------------------------------------------------------------
# Published values


def with_numbers(table: Table, rng: np.random.Generator) -> Table:
    """Return a table that has numbers for all numeric and datetime columns.

    Those that ``table`` lacks are drawn uniformly from the bin of each row's code.
    """
    numbers = dict(table.numbers)
    for at, column in enumerate(table.schema.stored):
        if column.is_number and at not in numbers:
            codes = table.codes[at].astype(np.int64)
            numbers[at] = column.bins_as_cells.values(codes, rng.random(len(codes)))
    return replace(table, numbers=numbers)


def published(table: Table) -> Values:
    """Return the published values of the rows of a ``table``, without identifiers.

    If the table lacks the numbers of a numeric or datetime column, a schema that derives no column gives the column's
    codes instead, and one that derives columns raises :class:`Unsupported`; :func:`with_numbers` draws the numbers.
    """
    schema = table.schema
    numbers = [at for at, column in enumerate(schema.stored) if column.is_number]
    if schema.derives and not set(numbers) <= set(table.numbers):
        raise Unsupported("these rows hold no numbers to derive columns from; encode them from a frame or file")
    values: dict[str, NDArray[Any]] = {
        name: table.numbers[at] if at in table.numbers else table.codes[at] for at, name in enumerate(schema.names)
    }
    derived = {link.column.name for link in schema.links.values()}
    agree(values, [one for one in schema.coarse if one.root not in derived])
    for link in schema.links.values():
        other = values[schema.names[link.other]]
        values[link.column.name] = link.published_numbers(link.consistent(values[link.column.name], other), other)
        agree(values, [one for one in schema.coarse if one.root == link.column.name])
    columns = {column.name: column for column in schema.columns if isinstance(column, Column)}
    for column in columns.values():
        if (form := computed_form(column)) is not None:
            values[column.name] = computed_values(column, form, values, columns)
    return values


def violations(schema: Schema, values: Values) -> dict[str, Mask]:
    """Return, for each rule of a schema and each bound of a derived column, a mask of the rows that violate it.

    The keys are sentences that state the rule or bound. ``values`` are published values, of a model or of real rows. A
    row violates the bounds of a computed column if the value computed from its other columns lies outside them, or
    differs from the row's own value in that column. Missing numbers, and computed columns that (or whose operands) are
    not in ``values``, violate nothing.
    """
    found: dict[str, Mask] = {}
    for rule in schema.rules:
        masks = [
            member[values[schema.names[at]]]
            for at, member in rule.members(schema.stored, schema.missing_values).items()
        ]
        found[str(rule)] = np.logical_and.reduce(masks)
    for link in schema.links.values():
        found[str(link)] = link.breaks(values[link.column.name], values[schema.names[link.other]])
    columns = {column.name: column for column in schema.columns if isinstance(column, Column)}
    for name, column in columns.items():
        computed = computed_form(column)
        if computed is None or not {name, *computed.operands} <= set(values):
            continue
        right = computed_values(column, computed, values, columns)
        if not column.is_number:
            found[f"{name} as its table says" if isinstance(computed, Lookup) else f"{name} as computed"] = (
                values[name] != right
            )
            continue
        low, high = column.bin_edges[[0, -1]]
        with np.errstate(invalid="ignore"):
            near = NEAR * np.maximum(1.0, np.abs(right)) + (0.5 / column.per_unit if column.per_unit else 0.0)
            off = (np.abs(values[name] - right) > near) | (right < low - near) | (right > high + near)
        ends = (column.low, column.high) if column.is_time else (f"{column.low:g}", f"{column.high:g}")
        found[f"{name} as computed, from {ends[0]} to {ends[1]}"] = off
    return found


def any_broken(table: Table) -> Mask:
    """Return a mask of the encoded rows that violate a rule or a bound of a derived column; it needs their numbers."""
    masks = list(violations(table.schema, published(table)).values())
    return np.logical_or.reduce(masks) if masks else np.zeros(len(table), dtype=bool)


def values_of(plain: Table) -> Values:
    """Return the values of rows under a :meth:`Schema.plain <fedsynth.schema.schema.Schema.plain>` by column name."""
    return {name: plain.numbers.get(at, plain.codes[at]) for at, name in enumerate(plain.schema.names)}


def frame_of(schema: Schema, values: Values, rng: np.random.Generator) -> pd.DataFrame:
    """Return published values as a data frame in the schema's column order, with identifiers.

    These are generated with ``rng``, after any other draw from it.
    """
    import pandas as pd

    rows = len(next(iter(values.values())))
    series = {
        column.name: column.series(values[column.name])
        if column.is_number
        else column.decode(values[column.name].astype(np.int64), rng)
        for column in schema.columns
        if isinstance(column, Column)
    }
    series |= {column.name: column.draw(rows, rng) for column in schema.columns if isinstance(column, Identifier)}
    return pd.DataFrame({column.name: series[column.name] for column in schema.columns})
