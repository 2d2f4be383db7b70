"""What all sources of rows in databases share: addresses without passwords, and how columns read values of a type."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from fedsynth.errors import FedsynthError, SchemaError, Unsupported
from fedsynth.schema.columns import Categorical, Column, Datetime, missing_spellings

_PART = r'"(?:[^"]|"")+"|[^".]+'
_RELATION = re.compile(rf"(?:(?P<schema>{_PART})\.)?(?P<table>{_PART})")
_SECRET = re.compile("pass|pwd|token|secret|credential|key|auth|sas|signature", re.IGNORECASE)
_FILES = ("passfile", "sslkey")  # options of PostgreSQL that name a file
_VARIABLE = re.compile(r"\$\w+|\$\{\w+\}")


@dataclass(frozen=True)
class Address:
    """A database table's address, in its parts: ``scheme://place?options``, of which ``relation`` is ``table``.

    The relation is the table's schema (in the database's sense, empty if none was given) and name.
    """

    scheme: str
    place: str
    options: dict[str, str]
    relation: tuple[str, str]


def read_address(text: str, form: str, remedy: str, *, variables: bool = False) -> Address:
    """Parse the address of a database table; nothing is opened.

    Names are taken literally; one that contains a dot must be in double quotes. ``form`` is what an address looks like,
    and ``remedy`` where a password belongs. With ``variables``, a password may stand in the address as a variable of
    the environment, ``$NAME``. Raises :class:`FedsynthError`, which never repeats the address, because it may hold a
    password.
    """
    scheme, _, rest = text.partition("://")
    place, _, query = rest.partition("?")
    given: dict[str, str] = {}
    for entry in query.split("&") if query else ():
        option, _, value = map(unquote, entry.partition("="))
        if option in given:
            raise FedsynthError(f"duplicate option {option!r} in the database's address; give it once")
        given[option] = value
    _, colon, password = unquote(place).rpartition("@")[0].partition(":")
    secrets = [password] * bool(colon)
    secrets += [value for option, value in given.items() if _SECRET.search(option) and option not in _FILES]
    if not all(variables and _VARIABLE.fullmatch(secret) for secret in secrets):
        raise FedsynthError(
            f"the database's address contains a password, which a configuration must not hold; {remedy}"
        )
    relation = _RELATION.fullmatch(given.pop("table", ""))
    if "#" in text or relation is None:
        raise FedsynthError(f"the database's address is not of the form {form}; correct it")
    schema, table = (_name(relation[part] or "") for part in ("schema", "table"))
    return Address(scheme, place, given, (schema, table))


def role_of(column: Column | None) -> str:
    """Return the role of a schema column, which determines how a database's values are read for it.

    It is "label" (text categories), "number" (also for integer categories), "boolean", "time", "aware time" (with a
    time zone), or "anything" if ``column`` is ``None``.
    """
    match column:
        case None:
            return "anything"
        case Categorical():
            return "label" if isinstance(column.values[0], str) else "number"
        case Datetime():
            return "time" if column.timezone is None else "aware time"
        case _:
            return {"numeric": "number", "boolean": "boolean"}[column.kind]


def unfit(name: str, typed: str, column: Column | None, *, zoned: bool) -> SchemaError:
    """Return the error for a column ``name`` of the type ``typed`` that its schema ``column`` cannot read.

    ``zoned`` says whether the type is that of times with a time zone.
    """
    what = "cannot be read" if column is None else f"does not fit a {column.kind} column"
    if isinstance(column, Datetime) and column.timezone is None and zoned:
        return SchemaError(f"column {name!r} has a time zone ({typed}); set timezone, or remove the zone in a view")
    return SchemaError(
        f"column {name!r} has the SQL type {typed}, which {what}; use a view that casts it to text, double precision, "
        "boolean or timestamp"
    )


def refuse_counting(column: Column, what: str) -> Unsupported:
    """Return the error for a column whose values a reader can interpret, but not a database that counts."""
    return Unsupported(
        f"column {column.name!r} holds {what} but the schema declares a {column.kind} column; cast the column in a "
        "view, or let the site read its rows (without counted in site.toml)"
    )


def refuse_missing_values(column: Column, missing_values: Sequence[str]) -> None:
    """Raise :class:`Unsupported` if numbers, booleans or times of a column stand for missing values."""
    if gone := sorted(missing_spellings(column, missing_values)[1]):
        raise Unsupported(
            f"the missing values {gone} of column {column.name!r} cannot be counted in the database; let the site read "
            "its rows, or replace them by NULL in a view"
        )


def _name(written: str) -> str:
    return unquoted.replace('""', '"') if (unquoted := written[1:-1]) and written[0] == '"' else written
