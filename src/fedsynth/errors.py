"""Everything that fedsynth raises on purpose; every message ends with what to do next."""

from __future__ import annotations

from collections.abc import Iterable


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


def positive(**numbers: float | None) -> None:
    """Raise :class:`InvalidParameter` for a number that is not positive; ``None`` stands for a default."""
    for name, number in numbers.items():
        if number is not None and not number > 0:
            raise InvalidParameter(f"{name} must be positive, not {number}")


def hint(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the known name that is spelt most like an unknown one; "" if none is."""
    import difflib

    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""
