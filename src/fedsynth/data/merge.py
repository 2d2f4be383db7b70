"""Schemas or outlines of several sites made into one: the union of their columns, and each difference with its remedy.

An *outline* has names, kinds and units of columns: no value, bound or count, so that sites may show each other what
they have before anybody agrees on anything. What is merged depends on the files alone; no row is read.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import tomli_w
from msgspec import Meta

from fedsynth.data.recognise import key_of, one_line
from fedsynth.errors import InvalidParameter, SchemaError, listed
from fedsynth.files import load_toml
from fedsynth.schema import MISSING, Datetime, Schema
from fedsynth.schema.schema import FORMAT, KINDS, OUTLINE, column_block, entries_of, rule_block, without_defaults
from fedsynth.settings import Settings, read_settings
from fedsynth.text import printable

Entries = dict[str, Any]
_UNITS = {"numeric": ("integer", "decimals"), "datetime": ("unit", "timezone")}
_FILLED = {"numeric": ("low", "high"), "datetime": ("low", "high"), "categorical": ("values",)}
_OPERANDS = {"sum", "difference", "product", "ratio", "copy", "lookup", "of"}  # entries that name columns
_STEPS = ("us", "ms", "s", "min", "h", "D")
_RULE = "rule {}"
_WIDER = 10  # times: bounds so much wider than others may be in another unit
_WORD = 6  # letters from which on a letter or two are a slip
_LIKE_NAMES, _LIKE_VALUES = 85, 90  # per cent of equal letters
_COMPARED = 200  # names or values that only one side has, among which similar ones are looked for
_HEAD = """\
# An outline: names, kinds and units of columns, without any value, bound or count. It is no schema; merge it with those
# of the other sites: fedsynth schema merge
"""


class OutlineColumn(Settings, frozen=True):
    """The entry ``[[column]]`` of an outline."""

    name: str
    type: Literal["categorical", "boolean", "numeric", "datetime", "id"]
    integer: bool = False
    decimals: Annotated[int, Meta(ge=0, le=12)] | None = None
    unit: Literal["us", "ms", "s", "min", "h", "D"] = "s"
    timezone: str | None = None
    form: str = ""


class _Outline(Settings, frozen=True):
    fedsynth_outline: Literal[1]
    column: tuple[OutlineColumn, ...]


def outline_toml(schema: Schema, dates: Mapping[str, str], left_out: Iterable[str]) -> str:
    """Return the outline of a drafted ``schema`` as TOML: names, kinds and units of its columns.

    ``dates`` are the forms of times in the site's file by column, and ``left_out`` the names of columns that the draft
    leaves out.
    """
    columns = []
    for column in schema.columns:
        said = entries_of(column)
        kept = {key: said[key] for key in ("name", "type", *_UNITS.get(said["type"], ())) if key in said}
        columns.append(kept | ({"form": dates[column.name]} if column.name in dates else {}))
    head = "".join(f"# left out: {printable(name)}\n" for name in left_out)
    return "\n".join([f"{_HEAD}{head}{OUTLINE} = 1\n", *map(column_block, columns)])


_Settle = Callable[[str, str, Any, "Merged"], Any]
"""Returns one value from those of several files, from a column's name and key, and notes the difference."""


@dataclass(frozen=True)
class Described:
    """What a file says of a table: a schema, or an outline, which says less of each column.

    ``columns`` are the entries of columns by name, with defaults. ``drafted`` marks a schema whose bounds and lists
    were taken from rows and not reviewed.
    """

    name: str
    columns: Mapping[str, Entries]
    rules: tuple[Entries, ...] = ()
    missing_values: tuple[str, ...] = MISSING
    is_outline: bool = False
    drafted: bool = False

    @property
    def is_agreed(self) -> bool:
        """Whether it is a schema that is no draft."""
        return not (self.is_outline or self.drafted)

    @classmethod
    def load(cls, path: Path) -> Described:
        """Read a schema or an outline (TOML); raises :class:`SchemaError` for a file that is neither."""
        content = load_toml(path)
        if OUTLINE not in content:
            schema = Schema.load(path)
            columns = {column.name: entries_of(column, defaults=True) for column in schema.columns}
            rules = tuple(map(entries_of, schema.rules))
            return cls(str(path), columns, rules, schema.missing_values, drafted=schema.drafted)
        try:
            outline = read_settings(_Outline, content, str(path))
        except InvalidParameter as error:
            raise SchemaError(str(error)) from error
        said = {
            one.name: {key: getattr(one, key) for key in ("name", "type", *_UNITS.get(one.type, ()))}
            for one in outline.column
        }
        if len(said) < len(outline.column):
            raise SchemaError(f"{path} names a column twice; give each column a name of its own")
        return cls(str(path), said, is_outline=True)

    def renamed(self, names: Mapping[str, str]) -> Described:
        """Return the same with other names of columns, also where relations and rules name them."""

        def named(value: Any) -> Any:
            many = isinstance(value, list | tuple)
            return [names.get(one, one) for one in value] if many else names.get(value, value)

        def relation(entries: Entries | None) -> Entries | None:
            if entries is None:
                return None
            return {key: named(value) if key in _OPERANDS else value for key, value in entries.items()}

        columns = {}
        for name, entries in self.columns.items():
            renamed: Entries = {**entries, "name": named(name)}
            renamed.update({key: relation(entries[key]) for key in ("stored", "computed") if key in entries})
            columns[renamed["name"]] = renamed
        rules = tuple({"never": {named(name): of for name, of in rule["never"].items()}} for rule in self.rules)
        return replace(self, columns=columns, rules=rules)


class Difference(NamedTuple):
    """A difference between files: ``where`` ("": the whole file; a column; "rule 1"), ``what``, and the ``remedy``.

    ``decide`` says that a person has to choose; the rest is a proposal. ``lines`` may be pasted in place of others.
    """

    where: str
    what: str
    remedy: str
    decide: bool = False
    lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        return printable(f"{self.where}{': ' * bool(self.where)}{self.what}; {self.remedy}")

    @property
    def comments(self) -> list[str]:
        """The comment lines of a merged file."""
        mark = "DECIDE" if self.decide else "PROPOSED"
        return [printable(line) for line in (f"{mark}: {self.what}; {self.remedy}", *self.lines)]


@dataclass
class Merged:
    """The result of :func:`merge`.

    ``columns`` and ``rules`` are entries of the merged schema, ``absent`` the columns that the site of each file lacks,
    and ``forms`` the entries of columns for its source file. ``to_fill`` are the entries that no file says, by column.
    With ``agreed``, the name of the schema that all the others follow, this is a comparison.
    """

    files: Sequence[Described]
    agreed: str = ""
    columns: dict[str, Entries] = field(default_factory=dict)
    rules: list[Entries] = field(default_factory=list)
    missing_values: tuple[str, ...] = MISSING
    differences: list[Difference] = field(default_factory=list)
    absent: dict[str, list[str]] = field(default_factory=dict)
    forms: dict[str, dict[str, Entries]] = field(default_factory=dict)
    to_fill: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_decided(self) -> bool:
        """Whether nothing is left to decide or to fill in; in a comparison, whether there is nothing to do."""
        return not (self.to_fill or any(self.agreed or one.decide for one in self.differences))

    def note(
        self, where: str, what: str, remedies: tuple[str, str], lines: Sequence[str] = (), *, decide: bool = False
    ) -> None:
        """Add a difference; ``remedies`` are those of a merge, and of a site that compares itself ("": none needed)."""
        if remedy := remedies[bool(self.agreed)]:
            self.differences.append(Difference(where, what, remedy, decide, tuple(lines)))

    def declare(self, file: str, name: str, key: str, entry: Any) -> None:
        """Add an entry of a column to the source file of the site of ``file``."""
        self.forms.setdefault(file, {}).setdefault(name, {})[key] = entry

    @property
    def sources(self) -> dict[str, list[str]]:
        """The lines of each site's source file, by the name of the site's schema or outline."""
        found: dict[str, list[str]] = {}
        for file in self.files:
            lines = [f"absent = {one_line(self.absent[file.name])}"] if file.name in self.absent else []
            for name, form in self.forms.get(file.name, {}).items():
                lines += [f"[column.{key_of(name)}]", *(f"{key} = {one_line(own)}" for key, own in form.items())]
            if lines:
                found[file.name] = lines
        return found

    def to_toml(self) -> str:
        """Return the merged schema as TOML, a draft with a comment at each difference, unless nothing is to be said."""
        listing = {} if self.missing_values == MISSING else {"missing_values": list(self.missing_values)}
        head = tomli_w.dumps({"fedsynth_schema": FORMAT, **listing})
        if self.differences or self.to_fill:
            said = [f"Merged from {', '.join(file.name for file in self.files)}."]
            said += [
                "Lines marked DECIDE and FILL IN are for the sites to settle; those marked PROPOSED were settled by"
            ]
            said += ["fedsynth: read them. Then delete these comments, and the line draft = true."]
            said += self._comments("")
            for name, lines in self.sources.items():
                said += [f"In the source file of the site of {name}:", *(f"    {line}" for line in lines)]
            head += "".join(f"# {printable(line)}\n" for line in said) + "draft = true\n"
        blocks = [head]
        for name, entries in self.columns.items():
            comments = self._comments(name)
            if keys := self.to_fill.get(name):
                comments += ["FILL IN what everybody may know without looking at rows, and delete the signs # before:"]
                comments += [f"{key} = " for key in keys]
            written = {key: value for key, value in entries.items() if key in ("name", "type")}
            written |= without_defaults(KINDS[entries["type"]], entries)
            blocks.append(column_block(written, comments))
        blocks += [rule_block(rule, self._comments(_RULE.format(at))) for at, rule in enumerate(self.rules, 1)]
        return "\n".join(blocks)

    def _comments(self, where: str) -> list[str]:
        return [line for one in self.differences if one.where == where for line in one.comments]


def merge(files: Sequence[Described], *, agreed: bool = False) -> Merged:
    """Return the union of the files' columns, with what differs between them.

    Columns stand in the order of the first file, then of the others. With ``agreed``, the first file is the agreed
    schema, and the differences say what the site of the other one has to do. Raises :class:`InvalidParameter` for fewer
    than two files, and for one that is given twice.
    """
    if len(files) < 2 or len({file.name for file in files}) < len(files):
        raise InvalidParameter("give two or more different files: schemas or outlines")
    made = Merged(files, files[0].name if agreed else "")
    for file in files:
        if file.drafted:
            what = f"{file.name} is a draft, whose bounds and lists are facts about rows"
            made.note("", what, ("replace them by public facts before other sites see them", ""), decide=True)
    files = _with_common_names(files, made)
    for name in dict.fromkeys(name for file in files for name in file.columns):
        given = {file.name: file.columns[name] for file in files if name in file.columns}
        made.columns[name] = _column(name, given, made)
        _lacking(name, [file.name for file in files if name not in file.columns], made)
    for entries in made.columns.values():  # operands come first
        named = [value for key, value in (entries.get("computed") or {}).items() if key in _OPERANDS]
        operands = [of for value in named for of in ([value] if isinstance(value, str) else value)]
        if not entries.get("missing") and any(made.columns.get(of, {}).get("missing") for of in operands):
            entries["missing"] = True
            what = f"computed from {', '.join(operands)}, of which one may be missing"
            made.note(entries["name"], what, ("missing = true is written", ""))
    _rules(files, made)
    _missing_values(files, made)
    if not agreed and not made.to_fill:
        try:
            Schema.from_toml(made.to_toml())
        except SchemaError as error:
            made.note("", f"the merged schema is not valid yet: {error}", ("correct it in this file", ""), decide=True)
    return made


# ---------------------------------------------------------------------------------------------------------------------
# Names


def _with_common_names(files: Sequence[Described], made: Merged) -> list[Described]:
    """Return the files with one name for names that differ in capitals, spaces and signs alone; note similar ones."""
    known: dict[str, str] = {}
    found = []
    for file in files:
        other = {name: known[_plain(name)] for name in file.columns if _plain(name) in known}
        names = {own: name for own, name in other.items() if own != name and name not in file.columns}
        for own, name in names.items():
            what = f"{file.name} calls it {own!r}"
            made.note(name, what, ("one column, which the source file there renames (from)",) * 2)
            made.declare(file.name, name, "from", own)
        found.append(file.renamed(names))
        known |= {_plain(name): name for name in found[-1].columns if _plain(name) not in known}
    for one, other in _similar([tuple(file.columns) for file in found], _LIKE_NAMES):
        what = f"looks like {one!r}, and no file has both"
        remedy = f"one column? Then delete this one, and declare [column.{key_of(one)}] from = {one_line(other)}"
        made.note(other, what, (remedy + " in the source file of the sites that have it",) * 2, decide=True)
    return found


def _plain(name: object) -> str:
    """Return a name or value without capitals, spaces, signs and ways to encode accents; itself if nothing is left."""
    text = unicodedata.normalize("NFKC", str(name)).casefold()
    return re.sub(r"[\W_]+", "", text) or text


def _similar(lists: Sequence[Sequence[Any]], least: float) -> list[tuple[Any, Any]]:
    """Return pairs of similar texts that no list has both of, and not all lists have: the earlier one first."""
    from rapidfuzz import fuzz  # compiled; loaded only where texts are compared

    having = {one: {at for at, few in enumerate(lists) if one in few} for few in map(set, lists) for one in few}
    every = [one for one in dict.fromkeys(one for few in lists for one in few) if isinstance(one, str)]
    some = [(one, _plain(one)) for one in every if len(having[one]) < len(lists)][:_COMPARED]
    found = []
    for at, (one, plain) in enumerate(some):
        for other, plain_other in some[at + 1 :]:
            words = min(len(plain), len(plain_other)) >= _WORD and not re.search(r"\d", plain + plain_other)
            if not having[one] & having[other] and (
                plain == plain_other or (words and fuzz.ratio(plain, plain_other) >= least)
            ):
                found.append((one, other))
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Columns


def _lacking(name: str, without: Sequence[str], made: Merged) -> None:
    """Let a column be missing at the sites that lack it; sites never have identifiers and computed columns."""
    entries = made.columns[name]
    form = entries.get("computed")
    if not without or entries["type"] == "id" or (form and "learned" not in form):  # a learned table needs the rows
        return
    if made.agreed in without:
        made.note(name, f"{made.agreed} does not have it", ("", "a run ignores it"))
        return
    what = f"{' and '.join(without)} {'lacks' if len(without) == 1 else 'lack'} it"
    agreed = "say which column holds it (from), or declare it absent"
    agreed += "" if entries.get("missing") else ", for which all sites have to agree on missing = true"
    made.note(name, what, ("missing = true is written, and absent for the source file there; or leave it out", agreed))
    for file in without:
        made.absent.setdefault(file, []).append(name)
    if not made.agreed:
        entries["missing"] = True


def _column(name: str, given: Mapping[str, Entries], made: Merged) -> Entries:
    """Return the merged entries of a column that these files have."""
    first, found = next(iter(given.items()))
    kind = found["type"]
    if others := {file: entries for file, entries in given.items() if entries["type"] != kind}:
        lines = [line for file, one in others.items() for line in (f"or, as {file} has it:", *_lines(one))]
        remedies = (
            f"that of {first} is written; numbers that count are numeric, codes and labels categorical",
            "bring it into the agreed form in the source file: recode, extract, factor, dates",
        )
        types = {file: entries["type"] for file, entries in given.items()}
        made.note(name, _told("type", types), remedies, lines, decide=True)
    same = {file: entries for file, entries in given.items() if entries["type"] == kind}
    merged: Entries = {}
    for key in dict.fromkeys(key for entries in same.values() for key in entries):
        said = {file: entries[key] for file, entries in same.items() if key in entries}
        merged[key] = next(iter(said.values()))
        if _distinct(said.values()) > 1 and key not in ("low", "high", "edges", "integer", "decimals"):
            settle: _Settle = _SETTLED.get(key, _first)
            merged[key] = settle(name, key, said, made)
    _numbers(name, same, merged, made)
    if merged.get("unknown") == "other":
        merged["values"] = [str(value) for value in merged["values"]]
    if lacking := tuple(key for key in _FILLED.get(kind, ()) if key not in merged):
        made.to_fill[name] = lacking
    return merged


def _first(name: str, key: str, said: Mapping[str, Any], made: Merged) -> Any:
    """Return what the first file says, for a person to decide."""
    file, value = next(iter(said.items()))
    agreed = "declare zone in the source file, for times without one" if key == "timezone" else ""
    made.note(name, _told(key, said), (f"agree on one; that of {file} is written", agreed), decide=True)
    return value


def _values(name: str, _: str, said: Mapping[str, Sequence[Any]], made: Merged) -> list[Any]:
    """Return all values, those that differ in capitals, spaces and signs alone by their first spelling."""
    texts = any(isinstance(value, str) for values in said.values() for value in values)
    lists = {file: [str(value) if texts else value for value in values] for file, values in said.items()}
    alike = _similar(list(lists.values()), _LIKE_VALUES)
    same = {other: one for one, other in reversed(alike) if _plain(one) == _plain(other)}
    for file, values in lists.items():
        if recode := {value: same[value] for value in values if value in same}:
            what = f"{file} spells {_many(list(recode.values()))} as {_many(list(recode))}"
            made.note(name, what, ("one value each, which the source file there brings together (recode)",) * 2)
            made.declare(file, name, "recode", recode)
    spelled = {file: [same.get(value, value) for value in values] for file, values in lists.items()}
    every = list(dict.fromkeys(value for values in spelled.values() for value in values))
    groups: dict[str, list[Any]] = {}
    for value in every:
        having = [file for file, values in spelled.items() if value in values]
        if len(having) < len(spelled) and having != [made.agreed]:
            groups.setdefault(" and ".join(having), []).append(value)
    if what := "; ".join(f"only {files} has {_many(values)}" for files, values in groups.items()):
        made.note(name, what, ("all are written", "recode them, or leave them to the agreed column's entry unknown"))
    elif not same:
        made.note(name, "values are in another order", ("that of the first file is written", ""))
    for one, other in (pair for pair in alike if pair[1] not in same):
        remedy = (
            f"one value? Then keep one, and where the rows have {other!r} declare recode = {one_line({other: one})}"
        )
        made.note(name, f"{one!r} and {other!r} look alike, and no file has both", (remedy,) * 2, decide=True)
    return every


def _many(values: Sequence[Any]) -> str:
    return listed([repr(value) for value in values], "").strip()


def _missing(name: str, key: str, said: Mapping[str, bool], made: Merged) -> bool:
    agreed = (
        "" if said.get(made.agreed) else "rows with a missing value are left out; agree on missing = true to keep them"
    )
    made.note(name, _told(key, said), ("missing = true is written", agreed))
    return True


def _unknown(name: str, key: str, said: Mapping[str, str], made: Merged) -> str:
    kept = next(one for one in ("other", "missing", "drop") if one in said.values())
    made.note(name, _told(key, said), (f"{kept!r} is written, which leaves no row out", ""))
    return kept


def _unit(name: str, key: str, said: Mapping[str, str], made: Merged) -> str:
    coarse = max(said.values(), key=_STEPS.index)
    made.note(name, _told(key, said), (f"the coarsest, {coarse!r}, is written: times are rounded down to it",) * 2)
    return coarse


def _bins(name: str, key: str, said: Mapping[str, int], made: Merged) -> int:
    made.note(name, _told(key, said), ("the most are written", ""))
    return max(said.values())


def _stored(name: str, key: str, said: Mapping[str, Entries | None], made: Merged) -> Any:
    forms = [{k: v for k, v in (one or {}).items() if k not in ("lower", "upper")} for one in said.values()]
    if _distinct(forms) > 1:
        return _first(name, key, said, made)
    every = [one for one in said.values() if one]
    made.note(name, _told(key, said), ("the widest bounds are written", ""))
    return {**every[0], "lower": min(one["lower"] for one in every), "upper": max(one["upper"] for one in every)}


_SETTLED: Mapping[str, _Settle] = {
    "values": _values,
    "missing": _missing,
    "unknown": _unknown,
    "unit": _unit,
    "bins": _bins,
    "stored": _stored,
}


def _numbers(name: str, given: Mapping[str, Entries], merged: Entries, made: Merged) -> None:
    """Settle what whole numbers, decimals, bounds and edges of these files become."""
    digits = {file: 0 if one["integer"] else one["decimals"] for file, one in given.items() if "integer" in one}
    if _distinct(digits.values()) > 1:
        most = None if None in digits.values() else max(digits.values(), key=lambda many: many or 0)
        merged |= {"integer": False, "decimals": most}
        said = {file: "any" if many is None else many for file, many in digits.items()}
        finer = made.agreed and digits[made.agreed] != most
        agreed = "is it another unit? Then declare factor; whole numbers keep out all others" if finer else ""
        made.note(name, "decimals: " + _by(said), ("the most are written; is it another unit?", agreed))
    bounded = {file: one for file, one in given.items() if "low" in one}
    if not bounded:
        return
    ends = {file: _ends(one) for file, one in bounded.items()}
    lows, highs = ({file: pair[at] for file, pair in ends.items()} for at in (0, 1))
    merged["low"] = bounded[min(lows, key=lows.__getitem__)]["low"]
    merged["high"] = bounded[max(highs, key=highs.__getitem__)]["high"]
    if _distinct(ends.values()) > 1:
        what = "bounds " + _by({file: f"{one['low']} to {one['high']}" for file, one in bounded.items()})
        widths = [high - low for low, high in ends.values()]
        apart = max(lows.values()) > min(highs.values())
        if apart or max(widths) > _WIDER * min(widths):
            remedy = (
                "is it another unit? Then keep the bounds of one, and declare factor in the source file of the other"
            )
            made.note(name, what, (remedy,) * 2, decide=True)
        else:
            beyond = made.agreed and (min(lows.values()), max(highs.values())) != ends[made.agreed]
            agreed = "what lies beyond the agreed ones is clipped, or left out" if beyond else ""
            made.note(name, what, ("the widest are written", agreed))
    edges = [edge for one in bounded.values() for edge in one["edges"] or ()]  # floats, or times as texts
    if edges:
        order = {
            _ends({**merged, "low": edge, "high": edge})[0]: edge for edge in [*edges, merged["low"], merged["high"]]
        }
        merged["edges"] = [order[at] if merged["type"] == "datetime" else at for at in sorted(order)]
        if _distinct(tuple(one["edges"] or ()) for one in bounded.values()) > 1:
            made.note(name, "edges of bins differ", ("all are written", ""))


def _ends(entries: Entries) -> tuple[float, float]:
    """Return the bounds of a column as numbers: of times, microseconds."""
    if entries["type"] == "numeric":
        return float(entries["low"]), float(entries["high"])
    zone = entries["timezone"]
    time = Datetime("time", entries["low"], entries["high"], bins=1, unit="us", timezone=zone).bin_edges
    return float(time[0]), float(time[-1])


# ---------------------------------------------------------------------------------------------------------------------
# The rest of the file


def _rules(files: Sequence[Described], made: Merged) -> None:
    """Write all rules, and note those that a file lacks although it has their columns."""
    kept: dict[str, tuple[Entries, list[str]]] = {}
    for file in files:
        for rule in file.rules:
            key = repr(sorted((name, sorted(map(str, values))) for name, values in rule["never"].items()))
            kept.setdefault(key, (rule, []))[1].append(file.name)
    for at, (rule, having) in enumerate(kept.values(), 1):
        made.rules.append(rule)
        able = [one.name for one in files if not one.is_outline and {*rule["never"]} <= {*one.columns}]
        if without := [name for name in able if name not in having]:
            what = f"only in {' and '.join(having)}"
            remedies = (f"true at {' and '.join(without)} as well? If not, delete it", "")
            made.note(_RULE.format(at), what, remedies, decide=True)


def _missing_values(files: Sequence[Described], made: Merged) -> None:
    said = {file.name: file.missing_values for file in files if not file.is_outline}
    made.missing_values = tuple(dict.fromkeys(text for texts in said.values() for text in texts)) or MISSING
    if _distinct(said.values()) > 1:
        made.note("", _told("missing_values", said), ("all are written", "declare missing in the source file"))


def _distinct(values: Iterable[Any]) -> int:
    return len({repr(value) for value in values})


def _by(said: Mapping[str, Any]) -> str:
    """Return what files say, each value once: "1 (north.toml), 2 (south.toml and east.toml)"."""
    groups: dict[str, list[str]] = {}
    for file, value in said.items():
        groups.setdefault(str(value), []).append(file)
    return ", ".join(f"{value} ({' and '.join(files)})" for value, files in groups.items())


def _told(key: str, said: Mapping[str, Any]) -> str:
    return f"{key} = " + _by({file: "none" if one is None else one_line(one) for file, one in said.items()})


def _lines(entries: Entries) -> list[str]:
    shown = without_defaults(KINDS[entries["type"]], {key: value for key, value in entries.items() if key != "name"})
    return [f"{key} = {one_line(value)}" for key, value in ({"type": entries["type"]} | shown).items()]
