"""The schema: a public description of a table in a TOML file, agreed before a run and never fitted to pooled rows."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from fedsynth.cliques import Clique
from fedsynth.errors import DataWarning, FedsynthError, SchemaError, nearest
from fedsynth.files import parse_toml, read_text, write_whole
from fedsynth.plugins import named
from fedsynth.schema.bins import MOST_COLUMNS
from fedsynth.schema.columns import (
    KINDS,
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
from fedsynth.schema.forms import Computed, Identifier, Stored
from fedsynth.schema.misfits import with_lines

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Boolean", "Categorical", "Column", "Datetime", "Numeric", "Schema"]

FORMAT = 1
_MOST_CODES = 1 << 22  # values and bins of all columns: more would exhaust the memory before a row is read
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "None", "?")
_DRAFT = """\
# Derived from one site's rows, which no privacy budget covers. Replace its bounds and lists by facts that are known
# without looking at the rows; then delete the next line.
"""


@dataclass(frozen=True)
class Schema:
    """The public description of a table: its columns in order, the texts that stand for missing values, and rules.

    ``columns`` are the columns of the published table. :attr:`asked` are those that sites are queried about: all except
    computed columns and identifiers. :attr:`stored` are the same columns as sites encode them, some of them by their
    relation to another column; cliques (sets of columns that are counted together), sizes, positions and codes refer to
    stored columns. ``missing_values`` are the spellings of missing values in text. ``rules`` are combinations of values
    that no row has.

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
        if self.links or self.rules:
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
    def stored(self) -> tuple[Column, ...]:
        """The columns as sites encode them and models represent them: some replaced by a difference or ratio."""
        return tuple(self.links[at].held if at in self.links else column for at, column in enumerate(self.asked))

    @cached_property
    def is_plain(self) -> bool:
        """Whether sites encode just the columns that are published: none is derived or an identifier; and no rules."""
        return not (self.links or self.rules or len(self.columns) > len(self.asked))

    @classmethod
    def draft(cls, frame: pd.DataFrame, **options: int) -> Schema:
        """Return a schema drafted from one site's rows: it is :attr:`drafted` until somebody has edited it.

        ``options`` are those of :func:`~fedsynth.data.draft.draft_schema`, which says how types, values and bounds are
        chosen, and returns notes for the editor as well. A :class:`~fedsynth.errors.DataWarning` names columns that the
        draft leaves out, with the reasons.
        """
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
        """Whether some published column is computed, or stored as a difference from, or ratio to, another one."""
        return bool(self.links) or any(computed_form(column) is not None for column in self.columns)

    def plain(self, names: Iterable[str] | None = None) -> Schema:
        """Return the schema of published values: the same columns without derivations, rules and identifiers.

        Tables of published rows, real or synthetic, are encoded under it for comparison. It includes only those
        computed columns that are in ``names`` (default: all).
        """
        if self.is_plain:
            return self
        known = {column.name for column in self.columns} if names is None else set(names)
        asked = set(self.names)
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
        return hashlib.sha256(json.dumps(self._content(self.asked), sort_keys=True).encode()).hexdigest()

    def ignored(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those column ``names`` of a table that the schema does not name, in order."""
        known = {column.name for column in self.columns}
        return tuple(name for name in names if name not in known)

    def to_toml(self, comments: Mapping[str, Sequence[str]] | None = None) -> str:
        """Return the schema as TOML text, without default values; ``comments`` has comment lines by column name."""
        content = self._content(self.columns)
        head = tomli_w.dumps({"fedsynth_schema": FORMAT, **{k: v for k, v in content.items() if k != "column"}})
        blocks = [head + (_DRAFT + "draft = true\n" if self.drafted else "")]
        for entry in content["column"]:
            remarks = "".join(f"# {line}\n" for line in (comments or {}).get(entry["name"], ()))
            forms = "".join(f"{key} = {_inline(entry.pop(key))}\n" for key in ("stored", "computed") if key in entry)
            blocks.append(f"[[column]]\n{remarks}{tomli_w.dumps(entry)}{forms}")
        blocks += [f"[[rule]]\nnever = {_inline(rule.never)}\n" for rule in self.rules]
        return "\n".join(blocks)

    @classmethod
    def from_toml(cls, text: str) -> Schema:
        """Parse a schema from TOML text; raises :class:`SchemaError` for invalid or unknown entries."""
        try:
            content = parse_toml(text, "the schema")
        except FedsynthError as error:
            raise SchemaError(str(error)) from error
        if content.pop("fedsynth_schema", None) != FORMAT:
            raise SchemaError(
                f"the file lacks fedsynth_schema = {FORMAT} and is not a schema of this version; if it is a schema, "
                "add this line at the top (docs/schema.md), or use the fedsynth version that wrote it"
            )
        columns = _columns(_tables(content, "column"))
        rules = [_rule(entry) for entry in _tables(content, "rule")]
        missing_values = content.pop("missing_values", list(MISSING))
        if not isinstance(missing_values, list) or not all(isinstance(value, str) for value in missing_values):
            raise SchemaError(f"the schema has missing_values = {missing_values!r}; give a list of strings")
        draft = content.pop("draft", False)
        if not isinstance(draft, bool):
            raise SchemaError(f"the schema has draft = {draft!r}; write true, or delete the line")
        if content:
            raise SchemaError(
                f"unknown entries {sorted(content)} in the schema; known: missing_values, draft, column, rule"
            )
        return cls(tuple(columns), tuple(missing_values), draft, tuple(rules))

    def save(self, path: Path | str) -> None:
        """Write the schema to a TOML file, which replaces an existing one only when it is complete."""
        write_whole(Path(path), self.to_toml())

    @classmethod
    def load(cls, path: Path | str) -> Schema:
        """Load a schema from a TOML file; raises :class:`SchemaError` if it is invalid, ``OSError`` if unreadable."""
        try:
            return cls.from_toml(read_text(Path(path)))
        except FedsynthError as error:
            raise SchemaError(f"{path}: {error}") from error

    def _content(self, columns: Sequence[Column | Identifier]) -> dict[str, Any]:
        content: dict[str, Any] = (
            {} if self.missing_values == MISSING else {"missing_values": list(self.missing_values)}
        )
        return {**content, "column": [_entry(column) for column in columns]}


def _plain(column: Column) -> Column:
    """Return a column without its stored or computed form."""
    if isinstance(column, Numeric):
        return replace(column, stored=None, computed=None)
    return replace(column, stored=None) if isinstance(column, Datetime) else replace(column, computed=None)


def _entry(column: Column | Identifier) -> dict[str, Any]:
    """Return a column as TOML values, without its defaults."""
    entry: dict[str, Any] = {"name": column.name, "type": column.kind}
    for field in dataclasses.fields(column):
        value = getattr(column, field.name)
        is_default = field.default is not dataclasses.MISSING and value == field.default
        if field.name != "name" and value is not None and not is_default:
            entry[field.name] = _toml_value(value)
    return entry


def _toml_value(value: Any) -> Any:
    if isinstance(value, Stored | Computed):
        held = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: _toml_value(part) for name, part in held.items() if part is not None}
    return list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value


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


def _tables(content: dict[str, Any], key: str) -> list[dict[str, Any]]:
    entries = content.pop(key, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise SchemaError(f"the schema has {key} entries that are not tables; write each under its own [[{key}]]")
    return [dict(entry) for entry in entries]


def _rule(entry: dict[str, Any]) -> Rule:
    if set(entry) != {"never"}:
        raise SchemaError(f"a rule has the entries {sorted(entry)}; write never = {{ column = [values], ... }}")
    return Rule(entry["never"])


def _form(name: str, key: str, entry: Any) -> Stored | Computed:
    """Build the stored or computed form of a column; errors have the column's name."""
    kind = Stored if key == "stored" else Computed
    known = {field.name: field for field in dataclasses.fields(kind)}
    if not isinstance(entry, dict):
        raise SchemaError(
            f"column {name!r} has {key} = {entry!r}; write {key} = {{ ... }} with entries from {sorted(known)}"
        )
    if unknown := sorted(set(entry) - set(known)):
        raise SchemaError(
            f"column {name!r} has unknown entries {unknown} in {key}; {nearest(unknown[0], sorted(known))}"
        )
    if lacking := [one for one, what in known.items() if what.default is dataclasses.MISSING and one not in entry]:
        raise SchemaError(f"column {name!r} lacks {lacking} in {key}; add them")
    try:
        return kind(**entry)
    except SchemaError as error:
        raise SchemaError(f"column {name!r}: {error}") from error
    except (TypeError, ValueError) as error:
        raise SchemaError(
            f"column {name!r} has an entry of the wrong type in {key} ({error}); see docs/schema.md"
        ) from error


def _columns(entries: list[dict[str, Any]]) -> list[Column | Identifier]:
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
    return found


def _column(entry: dict[str, Any]) -> Column | Identifier:
    name = entry.get("name")
    if not isinstance(name, str):
        raise SchemaError('a column has no name; every [[column]] needs name = "..."')
    kind = entry.pop("type", None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise SchemaError(f"column {name!r} has type = {kind!r}; {nearest(str(kind), KINDS)}")
    fields = {field.name: field for field in dataclasses.fields(KINDS[kind])}
    if unknown := sorted(set(entry) - set(fields)):
        hint = nearest(unknown[0], sorted(fields), f"a {kind} column has")
        raise SchemaError(f"column {name!r} has unknown entries {unknown}; {hint}")
    required = {field for field, one in fields.items() if one.default is dataclasses.MISSING}
    if lacking := sorted(required - set(entry)):
        raise SchemaError(f"column {name!r} lacks {lacking}; add them, since {kind} columns need them")
    for key, value in entry.items():
        if key in ("stored", "computed"):
            entry[key] = _form(name, key, value)
            continue
        expected = fields[key].default
        if isinstance(expected, bool) != isinstance(value, bool) and key not in ("values",):
            raise SchemaError(f"column {name!r} has {key} = {value!r}, which has the wrong type; see docs/schema.md")
        entry[key] = tuple(value) if isinstance(value, list) else value
    try:
        column = KINDS[kind](**entry)
    except (TypeError, ValueError, OverflowError) as error:
        raise SchemaError(f"column {name!r} has an entry of the wrong type ({error}); see docs/schema.md") from error
    if isinstance(column, Numeric) and not sound_bounds(column.low, column.high):
        raise SchemaError(
            f"column {name!r} has bounds [{column.low:g}, {column.high:g}], which computations cannot handle: their "
            f"absolute values must be at most {LARGEST:g} and their distance at least {1 / LARGEST:g}; give the "
            "numbers in another unit"
        )
    return column
