"""All exceptions that fedsynth raises on purpose; every message ends with the next step for the user."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LISTED = 40  # most names listed in a message; a table may have a thousand columns


class FedsynthError(Exception):
    """Root of the errors that a user or a site can act on."""


class SchemaError(FedsynthError):
    """A table, a value or a schema file does not fit; the message names the column, the row, the value and the fix."""


class BudgetExceeded(FedsynthError):
    """A request would cost more privacy budget than the ledger has left."""


class Refused(FedsynthError):
    """A site's policy forbids the request; nothing was computed and nothing was charged."""


class Unsupported(FedsynthError):
    """The chosen trust model, transport or data source cannot do what was requested."""


class InvalidParameter(FedsynthError, ValueError):
    """A parameter is outside its domain, such as an epsilon of 0 or a sampling rate of 2."""


class SiteLost(FedsynthError):
    """Too few sites answered for the round to continue."""


class Incomplete(FedsynthError):
    """A run has paused because an input is missing; after it has been provided, the same command continues the run."""


_EXIT: dict[type[FedsynthError], int] = {
    InvalidParameter: 2,
    SchemaError: 3,
    BudgetExceeded: 4,
    Refused: 5,
    Unsupported: 6,
    SiteLost: 7,
    Incomplete: 9,
}


def exit_code(error: FedsynthError) -> int:
    """Return the code with which a command exits, or a run ends, for an error; docs/cli.md lists the codes."""
    return next((code for kind, code in _EXIT.items() if isinstance(error, kind)), 8)


def nearest(name: str, known: Iterable[str], otherwise: str = "choose one of") -> str:
    """Return a suggestion for an unknown name: the most similar known name, or else the list of known names."""
    names = list(known)
    by_case = {known_name.lower(): known_name for known_name in names}
    if near := difflib.get_close_matches(name.lower(), list(by_case), 1):
        return f"did you mean {by_case[near[0]]!r}?"
    more = f", ... ({len(names) - _LISTED} more)" if len(names) > _LISTED else ""
    return f"{otherwise} {', '.join(names[:_LISTED])}{more}" if names else "there are none"


def positive(**numbers: float | None) -> None:
    """Raise :class:`InvalidParameter` unless every number is positive; ``None`` (use the default) is accepted."""
    for name, number in numbers.items():
        if number is not None and not number > 0:
            raise InvalidParameter(f"{name} must be positive, not {number}")
