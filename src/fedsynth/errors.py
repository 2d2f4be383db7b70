"""Everything that fedsynth raises on purpose; every message ends with what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LISTED = 40  # names in a message; a table may have a thousand columns


class FedsynthError(Exception):
    """Root of the errors that a user or a site can act on."""


class SchemaError(FedsynthError):
    """A table, a value or a schema file does not fit: names column, row, value and the mend."""


class BudgetExceeded(FedsynthError):
    """A request would cost more privacy than the ledger that was asked still allows."""


class Refused(FedsynthError):
    """A site's policy says no; nothing was computed and nothing was charged."""


class Unsupported(FedsynthError):
    """The trust, transport or data at hand cannot do what was asked."""


class InvalidParameter(FedsynthError, ValueError):
    """A number that cannot be: an epsilon of 0, a cohort of rate 2."""


class SiteLost(FedsynthError):
    """Too few sites answered for the round to go on."""


class Incomplete(FedsynthError):
    """A run has stopped where it cannot go on until something is brought; the same command then goes on."""


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
    """Return the exit code of a command, or the code of a run's end, for an error; docs/cli.md lists them."""
    return next((code for kind, code in _EXIT.items() if isinstance(error, kind)), 8)


def nearest(name: str, known: Iterable[str], otherwise: str = "choose one of") -> str:
    """Return what to write instead of a name that is not known: the nearest one that is, or all there are."""
    names = list(known)
    by_case = {one.lower(): one for one in names}
    if near := difflib.get_close_matches(name.lower(), list(by_case), 1):
        return f"did you mean {by_case[near[0]]!r}?"
    more = f", ... ({len(names) - _LISTED} more)" if len(names) > _LISTED else ""
    return f"{otherwise} {', '.join(names[:_LISTED])}{more}" if names else "there is none"


def positive(**numbers: float | None) -> None:
    """Raise :class:`InvalidParameter` for a number that is not positive; ``None`` stands for a default."""
    for name, number in numbers.items():
        if number is not None and not number > 0:
            raise InvalidParameter(f"{name} must be positive, not {number}")
