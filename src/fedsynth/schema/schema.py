"""The schema: a public description of a table in a TOML file, agreed before a run and never fitted to pooled rows."""

from __future__ import annotations

import hashlib
import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import tomli_w
from msgspec import Meta

from fedsynth.cliques import Clique
from fedsynth.errors import DataWarning, FedsynthError, InvalidParameter, SchemaError, nearest
from fedsynth.files import parse_toml, read_text, write_whole
from fedsynth.plugins import named
from fedsynth.schema.bins import MOST_COLUMNS
from fedsynth.schema.coarse import CoarseColumn, coarse_columns, learned_columns
from fedsynth.schema.columns import (
    LARGEST,
    Boolean,
    Categorical,
    Column,
    Datetime,
    Numeric,
    sound_bounds,
)
from fedsynth.schema.derive import (
    ColumnLink,
    Grouped,
    Mask,
    Rule,
    check_computed,
    computed_form,
    forbidden_cells,
    links_of,
)
from fedsynth.schema.forms import ComputedForm, Identifier, StoredForm
from fedsynth.schema.lists import with_lists
from fedsynth.schema.misfits import with_lines
from fedsynth.settings import members, read_settings

__all__ = ["Boolean", "Categorical", "Column", "Datetime", "Numeric", "Schema"]

_Kind = TypeVar("_Kind")
FORMAT = 1
OUTLINE = "fedsynth_outline"
"""The entry that marks an outline (:mod:`fedsynth.data.merge`), in place of ``fedsynth_schema``."""
_RELATIONS = {"stored": StoredForm, "computed": ComputedForm}
_SHOWN = 12  # values of a category that are named
_MOST_CODES = 1 << 22  # values and bins of all columns: more would exhaust the memory before a row is read
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "None", "?")
_DRAFT = """\
# Derived from one site's rows, which no privacy budget covers. Replace its bounds and lists by facts that are known
# without looking at the rows; then delete the next line.
"""


@dataclass(frozen=True)
class Schema:
    """The public description of a table: its columns in order, the texts that stand for missing values, and rules.

    ``columns`` are the columns of the published table. :attr:`asked` are those that sites read from their rows: all
    except computed columns and identifiers. :attr:`stored` are the columns as sites encode them: the same, some of them
    by their relation to another column, and those that another one determines. Cliques (sets of columns that are
    counted together), sizes, positions and codes refer to stored columns. ``missing_values`` are the spellings of
    missing values in text. ``rules`` are combinations of values that no row has.

    Two schemas with equal :attr:`digest` encode every table in the same way; the digest is part of every request. It
    covers neither rules nor columns that sites are not queried about. ``drafted`` marks a schema whose bounds and lists
    come from rows (:meth:`draft`), so that publishing them reveals facts about those rows. It is not part of the digest
    either; after editing, a person deletes the line ``draft = true`` of the file, or calls :meth:`confirmed`. Raises
    :class:`SchemaError` for no or duplicate columns, if sites would hold none of them, for invalid derivations of
    columns, and for rules that do not fit the columns or forbid everything.
    """

    columns: tuple[Column | Identifier, ...]
    missing_values: tuple[str, ...] = MISSING
    drafted: bool = False
    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "missing_values", tuple(self.missing_values))
        object.__setattr__(self, "rules", tuple(self.rules))
        if not self.columns:
            raise SchemaError("the schema has no columns; describe at least one")
        names = [column.name for column in self.columns]
        if twice := sorted(name for name, many in Counter(names).items() if many > 1):
            raise SchemaError(
                f"duplicate column {', '.join(map(repr, twice))} in the schema; give each column a name of its own"
            )
        if not self.asked:
            raise SchemaError("all columns are computed or identifiers; describe at least one column that sites hold")
        check_computed(self.columns)
        for rule in self.rules:
            for name in rule.never:
                self.index(name)  # it is stored
        if self.learned or self.links or self.rules:
            self.forbidden_cells()

    @cached_property
    def asked(self) -> tuple[Column, ...]:
        """The columns that sites read from their rows, as they are published; positions are those of :attr:`stored`."""
        return tuple(
            column for column in self.columns if not isinstance(column, Identifier) and computed_form(column) is None
        )

    @cached_property
    def links(self) -> dict[int, ColumnLink]:
        """The links of columns with a stored form, by position in :attr:`stored`."""
        return links_of(self.columns, self.asked)

    @cached_property
    def coarse(self) -> tuple[CoarseColumn, ...]:
        """The columns that a single other one determines (:mod:`fedsynth.schema.coarse`)."""
        return coarse_columns(column for column in self.columns if not isinstance(column, Identifier))

    @cached_property
    def learned(self) -> tuple[CoarseColumn, ...]:
        """The columns that a single other one determines by a table that a run finds out."""
        found = learned_columns(self.asked)
        finer, known = {one.finer.name for one in found}, {one.finer.name for one in self.coarse}
        if both := sorted(finer & known):
            raise SchemaError(
                f"columns are looked up by {both[0]!r} with a table and without; let all be learned, or none"
            )
        return found

    def with_tables(self, tables: Mapping[str, Mapping[str, str | int | bool]]) -> Schema:
        """Return the schema with the learned ``tables`` of its lookups, by the name of the column that is looked up."""

        columns = {column.name: column for column in self.columns}
        for lookup in self.learned:
            form = msgspec.structs.replace(lookup.form, table=tables[lookup.column.name])
            columns[lookup.column.name] = msgspec.structs.replace(lookup.column, computed=form)
        return replace(self, columns=tuple(columns.values()))

    @cached_property
    def stored(self) -> tuple[Column, ...]:
        """The columns as sites encode them and models represent them: :attr:`asked`, then :attr:`coarse`.

        Some of the former are replaced by a difference or ratio.
        """
        read = (self.links[at].held if at in self.links else column for at, column in enumerate(self.asked))
        return (*read, *(coarse.column for coarse in self.coarse))

    @cached_property
    def is_plain(self) -> bool:
        """Whether sites encode just the columns that are published: none is derived or an identifier; and no rules."""
        return not (self.links or self.rules or self.learned or len(self.columns) > len(self.asked))

    @classmethod
    def draft(cls, frame: Any, **options: int) -> Schema:
        """Return a schema drafted from one site's rows: it is :attr:`drafted` until somebody has edited it.

        ``frame`` is a data frame of any library, or a file's path (:func:`~fedsynth.data.frames.as_frame`). ``options``
        are those of :func:`~fedsynth.data.draft.draft_schema`, which says how types, values and bounds are chosen, and
        returns notes for the editor as well. A :class:`~fedsynth.errors.DataWarning` names columns that the
        draft leaves out, with the reasons.
        """
        frame = named("fedsynth.data.frames:as_frame")(frame, "the table of a draft")
        found = named("fedsynth.data.draft:draft_schema")(frame, **options)
        if found.left_out:
            reasons = [f"{name}: {'; '.join(notes)}" for name, notes in found.left_out.items()]
            warnings.warn(with_lines("the draft leaves columns out:", reasons), DataWarning, stacklevel=2)
        schema: Schema = found.schema
        return schema

    def confirmed(self) -> Schema:
        """Return the schema as one that is public: its bounds and lists were checked to reveal nothing about rows."""
        return replace(self, drafted=False)

    @cached_property
    def derives(self) -> bool:
        """Whether published columns are computed or looked up, or stored as differences from, or ratios to, others."""
        return bool(self.links or self.learned) or any(computed_form(column) is not None for column in self.columns)

    def plain(self, names: Iterable[str] | None = None) -> Schema:
        """Return the schema of published values: the same columns without derivations, rules and identifiers.

        Tables of published rows, real or synthetic, are encoded under it for comparison. It includes only those
        computed columns that are in ``names`` (default: all).
        """
        if self.is_plain:
            return self
        known = {column.name for column in self.columns} if names is None else set(names)
        asked = {column.name for column in self.asked}
        kept = (column for column in self.columns if column.name in asked or column.name in known)
        columns = tuple(_plain(column) for column in kept if not isinstance(column, Identifier))
        return Schema(columns, self.missing_values, self.drafted)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the :attr:`stored` columns, in order."""
        return tuple(column.name for column in self.stored)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of codes of each :attr:`stored` column: the length of its axis in a contingency table."""
        return tuple(column.size for column in self.stored)

    def shape(self, clique: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the contingency table of a ``clique``."""
        return tuple(self.sizes[column] for column in clique)

    def index(self, name: str) -> int:
        """Return the position of a column in :attr:`stored`; raises :class:`SchemaError` for an unknown name."""
        if name not in self.names and name in [column.name for column in self.columns]:
            raise SchemaError(
                f"column {name!r} is not stored at the sites (it is computed or an identifier); name another column"
            )
        if name not in self.names:
            raise SchemaError(f"no column {name!r} in the schema; {nearest(name, self.names, 'it has')}")
        return self.names.index(name)

    def forbidden_cells(self, axes: Sequence[Grouped] | None = None) -> dict[Clique, Mask]:
        """Return the cells of tables that the rules forbid (:func:`~fedsynth.schema.derive.forbidden_cells`)."""
        return forbidden_cells(self.rules, self.stored, self.missing_values, axes)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of what determines the encoding, independent of the layout of the schema file."""
        learned = {one.column.name for one in self.learned}
        read = (_plain(column) if column.name in learned else column for column in self.asked)
        content = self._content([*read, *(one.column for one in self.coarse)])
        if wide := [list(link.held.bin_edges) for link in self.links.values() if link.top < math.inf]:
            content["held"] = wide
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def ignored(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those column ``names`` of a table that the schema does not name, in order."""
        known = {column.name for column in self.columns}
        return tuple(name for name in names if name not in known)

    def to_toml(self, comments: Mapping[str, Sequence[str]] | None = None) -> str:
        """Return the schema as TOML text, without default values; ``comments`` has comment lines by column name."""
        content = self._content(self.columns)
        columns = content.pop("column")
        head = tomli_w.dumps({"fedsynth_schema": FORMAT, **content})
        blocks = [head + (_DRAFT + "draft = true\n" if self.drafted else "")]
        blocks += [column_block(column, (comments or {}).get(column["name"], ())) for column in columns]
        return "\n".join([*blocks, *(rule_block(entries_of(rule)) for rule in self.rules)])

    @classmethod
    def from_toml(cls, text: str, folder: Path | None = None) -> Schema:
        """Parse a schema from TOML text; raises :class:`SchemaError` for invalid or unknown entries.

        Lists of values and tables of lookups may be CSV files in ``folder`` (:mod:`fedsynth.schema.lists`).
        """
        try:
            content = parse_toml(text, "the schema")
        except FedsynthError as error:
            raise SchemaError(str(error)) from error
        if OUTLINE in content:
            raise SchemaError(
                "this is an outline, which says neither bounds nor values, and no schema; merge it with those of the "
                "other sites (fedsynth schema merge), fill in the marked lines, and use the merged file"
            )
        if content.pop("fedsynth_schema", None) != FORMAT:
            raise SchemaError(
                f"the file lacks fedsynth_schema = {FORMAT} and is not a schema of this version; if it is a schema, "
                "add this line at the top (docs/schema.md), or use the fedsynth version that wrote it"
            )
        file = _read(_File, content, "the schema")
        rules = tuple(_read(Rule, entry, f"rule {at}") for at, entry in enumerate(file.rule, 1))
        return cls(
            _columns([with_lists(entry, folder) for entry in file.column]), file.missing_values, file.draft, rules
        )

    def _repr_html_(self) -> str:
        lines = "".join(
            f"<tr><td>{escape(column.name)}</td><td>{column.kind}</td><td>{escape(_domain(column))}</td></tr>"
            for column in self.columns
        )
        rules = "".join(f"<li>{escape(str(rule))}</li>" for rule in self.rules)
        draft = "<p><strong>A draft: its bounds and lists come from one site's rows.</strong></p>" * self.drafted
        head = "<tr><th>column</th><th>type</th><th>values</th></tr>"
        return f"{draft}<table>{head}{lines}</table>" + f"<ul>{rules}</ul>" * bool(rules)

    def save(self, path: Path | str) -> None:
        """Write the schema to a TOML file, which replaces an existing one only when it is complete."""
        write_whole(Path(path), self.to_toml())

    @classmethod
    def load(cls, path: Path | str) -> Schema:
        """Load a schema from a TOML file; raises :class:`SchemaError` if it is invalid, ``OSError`` if unreadable."""
        try:
            return cls.from_toml(read_text(Path(path)), Path(path).parent)
        except FedsynthError as error:
            raise SchemaError(f"{path}: {error}") from error

    def _content(self, columns: Sequence[Column | Identifier]) -> dict[str, Any]:
        content: dict[str, Any] = (
            {} if self.missing_values == MISSING else {"missing_values": list(self.missing_values)}
        )
        return {**content, "column": [entries_of(column) for column in columns]}


def _domain(column: Column | Identifier) -> str:
    """Return in words which values a column has, and how it follows from others."""
    if isinstance(column, Identifier):
        return f"generated, {column.form}"
    if column.is_number:
        ends = (end if isinstance(end, str) else f"{end:g}" for end in (column.low, column.high))
        parts = [" to ".join(ends)]
    else:
        more = f" and {len(column.texts) - _SHOWN} more" if len(column.texts) > _SHOWN else ""
        parts = [", ".join(column.texts[:_SHOWN]) + more]
    parts += ["may be missing"] * column.missing
    for key in ("stored", "computed"):
        if form := getattr(column, key, None):
            parts.append(f"{key}: {form.kind} of {', '.join(form.operands)}")
    return "; ".join(parts)


def _plain(column: Column) -> Column:
    """Return a column without its stored or computed form."""
    forms = {key: None for key in _RELATIONS if hasattr(column, key)}
    return msgspec.structs.replace(column, **forms)


def entries_of(declared: Column | Identifier | Rule, *, defaults: bool = False) -> dict[str, Any]:
    """Return a struct of the schema as the entries of a TOML file, with or without its ``defaults``."""
    name = {"name": declared.name} if not isinstance(declared, Rule) else {}
    content = {**name, **msgspec.to_builtins(declared, enc_hook=float)}  # doubles of NumPy are no float to msgspec
    for key in ("stored", "computed"):
        if content.get(key):
            del content[key]["relation"]  # the key of its operands says the same
    return content if defaults else without_defaults(type(declared), content)


def without_defaults(kind: type[msgspec.Struct], content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a struct of this kind that differ from its defaults."""
    optional = reversed(kind.__struct_encode_fields__)
    usual = dict(zip(optional, reversed(kind.__struct_defaults__), strict=False))  # those of the last entries
    return {key: value for key, value in content.items() if value is not None and value != usual.get(key)}


def column_block(entries: Mapping[str, Any], comments: Sequence[str] = ()) -> str:
    """Return a ``[[column]]`` as TOML, with comment lines before its ``entries`` and relations on one line."""
    plain = {key: value for key, value in entries.items() if key not in _RELATIONS}
    relations = _lines({key: entries[key] for key in _RELATIONS if key in entries})
    return f"[[column]]\n{_remarks(comments)}{tomli_w.dumps(plain)}{relations}"


def rule_block(entries: Mapping[str, Any], comments: Sequence[str] = ()) -> str:
    """Return a ``[[rule]]`` as TOML, with comment lines before its ``entries``."""
    return f"[[rule]]\n{_remarks(comments)}{_lines(entries)}"


def _remarks(comments: Sequence[str]) -> str:
    return "".join(f"# {line}\n" for line in comments)


def lines_of(column: Column, beside: Column) -> list[str]:
    """Return the entries of a ``column`` as TOML lines: those that another one lacks, or all of another type."""
    entries, known = entries_of(column), entries_of(beside) if column.kind == beside.kind else {}
    changed = {key: value for key, value in entries.items() if key != "name" and known.get(key) != value}
    return _lines(changed).splitlines()


def _lines(entries: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {_inline(value)}\n" for key, value in entries.items())


def _inline(value: Any) -> str:
    """Return a value as TOML on a single line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(str(key))} = {_inline(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_inline, value)) + "]"
    # tomli_w quotes text correctly; a scalar is always written on one line.
    return tomli_w.dumps({"a": value}).removeprefix("a = ").rstrip("\n")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _inline(name)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    column: Annotated[list[dict[str, Any]], Meta(description="tables, each under its own [[column]]")] = []
    rule: Annotated[list[dict[str, Any]], Meta(description="tables, each under its own [[rule]]")] = []
    missing_values: tuple[str, ...] = MISSING
    draft: bool = False


def _read(kind: type[_Kind], entries: Mapping[str, Any], where: str) -> _Kind:
    """Return the struct that the entries of a table describe; ``where`` begins the message of an error."""
    try:
        return read_settings(kind, entries, where, ".".join)
    except InvalidParameter as error:
        raise SchemaError(str(error)) from error


def _relation(union: Any, key: str, entries: Any) -> Any:
    """Return the relation in a ``union`` that a column's entry ``key`` describes: its tag is one of the entries."""
    kinds = _by_tag(union)
    named = [tag for tag in kinds if isinstance(entries, dict) and tag in entries]
    if len(named) != 1:
        raise SchemaError(f"{key} = {entries!r}; write {key} = {{ ... }} with one of the entries {', '.join(kinds)}")
    return _read(kinds[named[0]], entries, key)


def Stored(**entries: Any) -> StoredForm:  # noqa: N802
    """Return how a column is stored, from the entries of a schema file's ``stored``.

    ``Stored(difference=("left", "came"), unit="day", lower=0, upper=90)`` is a
    :class:`~fedsynth.schema.forms.StoredDifference`, ``Stored(ratio=("total", "months"), lower=0, upper=100)`` a
    :class:`~fedsynth.schema.forms.StoredRatio`. Raises :class:`SchemaError` for other entries.
    """
    form: StoredForm = _relation(StoredForm, "stored", entries)
    return form


def Computed(**entries: Any) -> ComputedForm:  # noqa: N802
    """Return how a column is computed, from the entries of a schema file's ``computed``.

    They are ``sum=``, ``product=`` or ``difference=`` with the names of columns (a difference of times also with its
    ``unit=``), ``copy=`` with one column's name, ``lookup=`` with one column's name and ``table=``, or ``part=``
    (weekday, month or hour) with the name of a datetime column in ``of=``. Raises :class:`SchemaError` for other
    entries.
    """
    form: ComputedForm = _relation(ComputedForm, "computed", entries)
    return form


def _by_tag(union: Any) -> dict[str, Any]:
    return {kind.__struct_config__.tag: kind for kind in members(union)}


KINDS: Mapping[str, type[Column | Identifier]] = _by_tag(Column | Identifier)
"""The structs of columns by their entry ``type``."""


def _columns(entries: Sequence[dict[str, Any]]) -> tuple[Column | Identifier, ...]:
    """Return the columns, unless they, or their bins, are too many for any run."""
    if len(entries) > MOST_COLUMNS:
        raise SchemaError(f"the schema has {len(entries)} columns; at most {MOST_COLUMNS} are allowed")
    found: list[Column | Identifier] = []
    codes = 0
    for entry in entries:
        column = _column(entry)
        found.append(column)
        codes += 0 if isinstance(column, Identifier) else column.size
        if codes > _MOST_CODES:
            raise SchemaError(
                f"the columns up to {column.name!r} have {codes} values and bins together, more than {_MOST_CODES}; "
                "give columns fewer bins or values"
            )
    return tuple(found)


def _column(entry: dict[str, Any]) -> Column | Identifier:
    name = entry.get("name")
    if not isinstance(name, str):
        raise SchemaError('a column has no name; every [[column]] needs name = "..."')
    if (kind := entry.get("type")) not in list(KINDS):
        raise SchemaError(f"column {name!r} has type = {kind!r}; {nearest(str(kind), KINDS)}")
    try:
        relations = {key: _relation(union, key, entry[key]) for key, union in _RELATIONS.items() if key in entry}
    except SchemaError as error:
        raise SchemaError(f"column {name!r}: {error}") from error
    column: Column | Identifier = _read(KINDS[kind], {**entry, **relations}, f"column {name!r}")
    if isinstance(column, Numeric) and not sound_bounds(column.low, column.high):
        raise SchemaError(
            f"column {name!r} has bounds [{column.low:g}, {column.high:g}], which computations cannot handle: their "
            f"absolute values must be at most {LARGEST:g} and their distance at least {1 / LARGEST:g}; give the "
            "numbers in another unit"
        )
    return column
